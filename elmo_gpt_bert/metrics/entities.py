"""Entity precision, recall and F1, as counted by conlleval, the script of CoNLL's shared tasks of 2000 to 2003.

An entity is right if its first word, its last word and its type are right (Tjong Kim Sang and De Meulder 2003,
https://aclanthology.org/W03-0419, section 2.4). Malformed sequences, which models without a CRF can predict, have
entities too: I-PER after O begins one; I-LOC after I-PER ends one and begins another.
"""

from collections import Counter
from functools import cache


# The rules endOfChunk and startOfChunk of conlleval (version of 2004-01-26). It has no rules for S, nor for B after E;
# these are from its later copies for BIOES. Brackets are entities of one word.
PREFIXES = "O.BIES[]"
OUTSIDE = "O."
# The prefixes before which an entity with a prefix ends, and those after which it starts.
ENDS = {"B": "OBS", "I": "OBS", "E": "OBIES", "S": "OBIES", "[": PREFIXES, "]": PREFIXES}
STARTS = {"B": "OBIES", "S": "OBIES", "I": "OES", "E": "OES", "[": PREFIXES, "]": PREFIXES}


@cache
def split_tag(tag: str) -> tuple[str, str]:
    """B-creative-work -> (B, creative-work); the type may be missing. Raises ValueError for other strings."""
    prefix, _, kind = tag.partition("-")
    if len(prefix) != 1 or prefix not in PREFIXES or (kind and prefix in OUTSIDE):
        raise ValueError(f"{tag!r} is no tag of an entity: it must be O, or begin with B-, I-, E- or S-")
    return prefix, kind


def ends(previous: str, tag: str) -> bool:
    """Whether an entity ends between two neighbouring words with these tags."""
    (before, old_type), (after, new_type) = split_tag(previous), split_tag(tag)
    return after in ENDS.get(before, "") or (before not in OUTSIDE and old_type != new_type)


def starts(previous: str, tag: str) -> bool:
    """Whether an entity starts with the second of two neighbouring words with these tags."""
    (before, old_type), (after, new_type) = split_tag(previous), split_tag(tag)
    return before in STARTS.get(after, "") or (after not in OUTSIDE and old_type != new_type)


@cache
def _step(previous: str, tag: str) -> tuple[bool, bool, str]:
    """Whether an entity ends between two neighbouring words, whether one starts there, and the second word's type."""
    return ends(previous, tag), starts(previous, tag), split_tag(tag)[1]


def entity_scores(predictions: list[list[str]], references: list[list[str]]) -> dict[str, float]:
    """f1, precision and recall over all entities, and accuracy over words; then f1_TYPE, precision_TYPE, recall_TYPE
    and number_TYPE, the number of entities in the references. A ratio with a denominator of 0 is 0.

    Of each sentence the tags of its words are given: O, B-PER, I-PER, E-PER, S-PER, or the brackets that conlleval
    also reads.

    Raises ValueError if a sentence has more or fewer predictions than references, and for a string that is no tag.
    """
    right, predicted, present = Counter(), Counter(), Counter()  # of each type
    words = equal = 0
    for number, (guess, gold) in enumerate(zip(predictions, references, strict=True), start=1):
        if len(guess) != len(gold):
            raise ValueError(f"sentence {number} has {len(guess)} predictions for {len(gold)} words")
        words += len(gold)
        equal += sum(map(str.__eq__, guess, gold))
        agreed = None  # the type of an entity that both started at the same word, and not ended since (inCorrect)
        steps = (map(_step, ["O", *tags], [*tags, "O"]) for tags in (guess, gold))
        for (guess_ends, guess_starts, guess_type), (gold_ends, gold_starts, gold_type) in zip(*steps, strict=True):
            if agreed is not None and guess_ends and gold_ends:
                right[agreed] += 1
            if guess_ends or gold_ends or guess_type != gold_type:
                agreed = None
            if guess_starts and gold_starts and guess_type == gold_type:
                agreed = gold_type
            if guess_starts:
                predicted[guess_type] += 1
            if gold_starts:
                present[gold_type] += 1
    scores = _ratios(right.total(), predicted.total(), present.total()) | {"accuracy": equal / words if words else 0.0}
    for kind in sorted({*predicted, *present}):
        if kind:
            of_type = _ratios(right[kind], predicted[kind], present[kind]) | {"number": present[kind]}
            scores |= {f"{name}_{kind}": value for name, value in of_type.items()}
    return scores


def _ratios(right: int, predicted: int, present: int) -> dict[str, float]:
    return {
        "f1": 2 * right / (predicted + present) if right else 0.0,
        "precision": right / predicted if predicted else 0.0,
        "recall": right / present if present else 0.0,
    }
