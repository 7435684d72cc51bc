"""Measures whether the layers of a model tell the senses of a word apart.

    python -m elmo_gpt_bert.analysis.senses --output_dir runs/senses runs/bert runs/gpt runs/elmo \\
        glove.6B.100d.txt --random

It reads sentences in which one word is marked and has a sense: the 351 of word_senses.tsv, or a --labelled_file of
your own. As in section 5.3 of the ELMo paper, the vectors of each sense are averaged. An occurrence is right if the
mean of its own sense, without it, is the nearest by the cosine. If several means are equally near, each counts its
share, so a model that gives all occurrences of a word one vector has the accuracy of a random guess. Accuracies are
means over the words. OUTPUT_DIR receives senses.json and senses.png.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from elmo_gpt_bert.analysis import frame
from elmo_gpt_bert.analysis.representations import Encoder, occurrence_vectors, unit
from elmo_gpt_bert.tasks.rows import columns, read_tsv
from elmo_gpt_bert.training.command_line import run_command
from elmo_gpt_bert.training.errors import InputError
from elmo_gpt_bert.training.files import shown
from modeling.elmo.tokenization_elmo import split_words


LABELLED = Path(__file__).with_name("word_senses.tsv")
MARKED = re.compile(r"\*(\w[^\s*]*)\*")
EQUAL = 1e-5  # cosines that differ by less are the same


@dataclass(frozen=True)
class Occurrence:
    """A word in a sentence."""

    words: list[str]
    place: int
    sense: str

    @property
    def word(self) -> str:
        return self.words[self.place].lower()


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Carries out what `argv`, by default the command line, asks for; returns what senses.json holds."""
    parser = frame.make_parser(__doc__)
    frame.add_models(parser)
    labelled = "tab-separated columns word, sense and sentence, in which *asterisks* mark the word"
    parser.add_argument("--labelled_file", type=Path, default=LABELLED, metavar="FILE", help=labelled)
    args = frame.parse(parser, argv)
    occurrences = read_labelled(args.labelled_file)
    by_word: dict[str, dict[str, dict[str, float]]] = {}
    for name, encoder in frame.named_encoders(args, {word for each in occurrences for word in each.words}):
        print(f"{name}: {', '.join(encoder.layers)}", file=sys.stderr)
        vectors = vectors_of(encoder, occurrences)
        by_word[name] = {layer: accuracies(x, occurrences) for layer, x in zip(encoder.layers, vectors, strict=True)}
    baselines = baseline_accuracies(occurrences)
    results = {"occurrences": len(occurrences), "words": by_word, "baselines": baselines}
    scores = {name: {layer: mean(of) for layer, of in layers.items()} for name, layers in by_word.items()}
    references = {name: mean(of) for name, of in baselines.items()}
    labels = ("How often the vector of a word in its sentence tells its sense", "occurrences with the right sense")
    frame.report_layers(args.output_dir, "senses", results, scores, references, *labels)
    print(f"\n{best_layers_table(by_word, scores, baselines)}")
    return results


def best_layers_table(by_word: Mapping, scores: Mapping, baselines: Mapping) -> str:
    """A row for each model with the accuracy of each word in its best layer, and one for each baseline."""
    best = {name: max(layers, key=layers.get) for name, layers in scores.items()}
    rows = {f"{name}, {layer}": by_word[name][layer] for name, layer in best.items()} | baselines
    return frame.table(
        [{"": name} | {word: f"{score:.1%}" for word, score in of.items()} for name, of in rows.items()]
    )


def mean(scores: Mapping[str, float]) -> float:
    return sum(scores.values()) / len(scores)


# Occurrences


def marked(text: str, sense: str, source: str) -> Occurrence:
    """The occurrence of a text in which asterisks mark one word. Raises ValueError, which names the source, if not."""
    marks = [*MARKED.finditer(text)]
    if len(marks) != 1:
        raise InputError(f"{source}: {shown(text)} must mark one word, as in: The *bank* was closed.")
    spans = split_words(text := MARKED.sub(r"\1", text))
    begin = marks[0].start()
    place = next((number for number, span in enumerate(spans) if span == (begin, begin + len(marks[0][1]))), None)
    if place is None:
        raise InputError(f"{source}: {marks[0][1]!r} is not a whole word of {shown(text)}: mark all of the word")
    return Occurrence([text[slice(*span)] for span in spans], place, sense)


def read_labelled(path: Path) -> list[Occurrence]:
    """The occurrences of a file, by words.

    Raises ValueError for a row that marks another word, for a word of one sense, and for a sense with one sentence.
    """
    occurrences = []
    for line, row in read_tsv(path):
        where = f"{path}:{line}"
        word, sense, sentence = columns(row, ("word", "sense", "sentence"), where)
        occurrence = marked(sentence, sense, where)
        if occurrence.word != word.lower():
            raise InputError(f"{where}: the sentence marks {occurrence.word}, not {word}")
        occurrences.append(occurrence)
    counts = Counter((each.word, each.sense) for each in occurrences)
    senses = Counter(word for word, _ in counts)
    if not senses or min(senses.values()) < 2:
        word = min(senses, key=senses.get, default="it")
        raise InputError(f"{path}: {word} has fewer than two senses: add sentences")
    word, sense = min(counts, key=counts.get)
    if counts[word, sense] < 2:  # its mean is that of its other occurrences
        raise InputError(f"{path}: {word} has a single sentence of the sense {sense}: add another, or leave it out")
    return sorted(occurrences, key=lambda occurrence: occurrence.word)


# Measures


def vectors_of(encoder: Encoder, occurrences: Sequence[Occurrence]) -> np.ndarray:
    """The vectors (layers, occurrences, size), each of length 1, or 0."""
    places = [each.place for each in occurrences]
    return unit(occurrence_vectors(encoder, [each.words for each in occurrences], places))


def accuracies(vectors: np.ndarray, occurrences: list[Occurrence]) -> dict[str, float]:
    """word -> the share of its occurrences that are nearest to the mean of the other occurrences of their sense."""
    words = np.array([each.word for each in occurrences])
    senses = np.array([each.sense for each in occurrences])
    return {str(word): sense_accuracy(vectors[words == word], senses[words == word]) for word in np.unique(words)}


def sense_accuracy(vectors: np.ndarray, senses: np.ndarray) -> float:
    """The same for the occurrences of one word, whose vectors (N, H) have length 1."""
    of_senses = (senses == np.unique(senses)[:, None]).astype(vectors.dtype)  # (S, N)
    right = of_senses.argmax(0)  # (N,) the number of each occurrence's sense
    sums = (of_senses @ vectors)[None].repeat(len(vectors), 0)  # (N, S, H)
    sums[np.arange(len(vectors)), right] -= vectors  # an occurrence is not part of its own mean
    lengths = np.maximum(np.linalg.norm(sums, axis=-1), 1e-12)
    cosines = np.einsum("nsh,nh->ns", sums, vectors) / lengths  # those of the means, too
    nearest = cosines >= cosines.max(1, keepdims=True) - EQUAL
    return float((nearest[np.arange(len(vectors)), right] / nearest.sum(1)).mean())


def baseline_accuracies(occurrences: list[Occurrence]) -> dict[str, dict[str, float]]:
    """word -> the accuracy of the most frequent sense, and that of a random one."""
    words = sorted({each.word for each in occurrences})
    counts = {word: Counter(each.sense for each in occurrences if each.word == word) for word in words}
    return {
        "most frequent sense": {word: max(senses.values()) / senses.total() for word, senses in counts.items()},
        "random sense": {word: 1 / len(senses) for word, senses in counts.items()},
    }


if __name__ == "__main__":
    run_command(main)
