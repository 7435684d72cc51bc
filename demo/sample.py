"""Writes the demo's sample: short film reviews in SST-2's layout, and their word pieces.

    python -m demo.sample

A review has one or two clauses; a clause has a subject and a verdict. Verdicts come in opposite pairs of similar words
("is never boring", "is never funny"). If two clauses disagree, the label is that of the clause after "but", or of the
main clause after an "although" clause. So single words do not reveal the label. Every word of dev occurs in train, but
no clause does, because each pair of subject and verdict is used in only one of the two.

All of it was written for this project and has its licence, Apache-2.0.
"""

import itertools
import random
import string
from collections.abc import Callable
from pathlib import Path


NEGATIVE, POSITIVE = 0, 1
ROWS = {"train": 1600, "dev": 320}
HELD_OUT = 5  # one in five (subject, verdict) pairs is used in dev

SUBJECTS = """
this film, the movie, the sequel, her debut, this little thriller, the comedy, the documentary, the remake,
this fairy tale, the script, the plot, the acting, the dialogue, the music, the camera work, the ending,
the first hour, the final act, the cast, the lead performance, the editing, the pace, the humour, the whole thing
"""

# positive | negative, with words as similar as the language allows
VERDICTS = """
is a quiet delight                      | is a loud bore
is warm and honest                      | is cold and false
is sharp , funny and true               | is dull , flat and empty
is a joy from start to finish           | is a bore from start to finish
is a small miracle                      | is a small disaster
is simply wonderful                     | is simply awful
is fresh and full of ideas              | is stale and out of ideas
is full of wit and grace                | is short of wit and grace
is not bad at all                       | is not good at all
is never boring                         | is never funny
is anything but dull                    | is anything but good
is far from boring                      | is far from funny
is better than it looks                 | is worse than it looks
has real heart                          | has no heart
glows with life                         | is drained of life
hits every note                         | misses every note
never puts a foot wrong                 | never puts a foot right
never loses its nerve                   | never finds its nerve
works like a charm                      | wears off like a cheap charm
surprises at every turn                 | is predictable at every turn
makes two hours fly by                  | makes two hours feel like ten
could hardly be better                  | could hardly be worse
earns every tear                        | has not earned a single tear
does not waste a minute                 | wastes every minute
stays with you for days                 | is gone before the lights come up
rewards a second viewing                | does not survive a first viewing
keeps you guessing to the last frame    | gives itself away in the first frame
leaves you smiling                      | leaves you yawning
deserves all the praise                 | deserves none of the praise
lands with quiet force                  | lands with a dull thud
holds together to the end               | falls apart long before the end
gets better with every scene            | gets worse with every scene
"""

OPENINGS = ["", "", "i must say ", "for once , ", "in the end , ", "to my mind , ", "no doubt about it : "]


def review(clause: Callable[[int], str], label: int, rng: random.Random) -> str:
    """A sentence with the sentiment `label`, of one clause, of two that agree, or of two that disagree."""
    kind = rng.random()
    if kind < 0.5:
        return f"{rng.choice(OPENINGS)}{clause(label)} ."
    if kind < 0.7:
        return f"{clause(label)} , and {clause(label)} ."
    if kind < 0.85:
        return f"{clause(1 - label)} , but {clause(label)} ."
    return f"although {clause(1 - label)} , {clause(label)} ."


def split_rows(split: str) -> list[tuple[str, int]]:
    """The distinct (sentence, label) rows of a split, half of them positive; the same in every call."""
    subjects = [" ".join(subject.split()) for subject in SUBJECTS.split(",")]
    verdicts = [line.split("|") for line in VERDICTS.strip().splitlines()]
    pairs = [
        (subject, verdict)
        for (i, subject), (j, verdict) in itertools.product(enumerate(subjects), enumerate(verdicts))
        if ((i + 2 * j) % HELD_OUT == 0) == (split == "dev")
    ]
    rng = random.Random(f"demo {split}")

    def clause(label: int) -> str:
        subject, (positive, negative) = rng.choice(pairs)
        return f"{subject} {(positive if label == POSITIVE else negative).strip()}"

    rows: dict[str, int] = {}
    while len(rows) < ROWS[split]:
        label = len(rows) % 2
        rows.setdefault(review(clause, label, rng), label)
    return list(rows.items())


def word_pieces(sentences: list[str]) -> list[str]:
    """BERT's special tokens, all words, and all characters, also as continuations, so that any word can be split."""
    words = {word for sentence in sentences for word in sentence.split()}
    characters = set(string.ascii_lowercase + string.digits + string.punctuation)
    continuations = [f"##{character}" for character in sorted(characters)]
    return [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        *sorted(characters),
        *continuations,
        *sorted(words - characters),
    ]


def write_sample(folder: Path) -> None:
    """Writes `data/train.tsv`, `data/dev.tsv` and, from train's words alone, `vocab.txt` into `folder`."""
    for split in ROWS:
        lines = ["sentence\tlabel", *(f"{sentence}\t{label}" for sentence, label in split_rows(split))]
        write_lines(folder / "data" / f"{split}.tsv", lines)
    write_lines(folder / "vocab.txt", word_pieces([sentence for sentence, _ in split_rows("train")]))


def write_lines(path: Path, lines: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write_sample(Path(__file__).parent)
