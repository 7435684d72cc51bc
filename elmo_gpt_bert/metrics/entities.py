"""Entity precision, recall and F1, as counted by conlleval, the script of CoNLL's shared tasks of 2000 to 2003."""

from collections.abc import Iterable
from functools import cache

import datasets
import evaluate
import numpy as np


DESCRIPTION = """\
An entity is right if its first word, its last word and its type are right (Tjong Kim Sang and De Meulder 2003, section
2.4). f1, precision and recall are over all entities, accuracy is over words. f1_TYPE, precision_TYPE, recall_TYPE and
number_TYPE, the number of entities in the references, are those of one type. A ratio with a denominator of 0 is 0.
Malformed sequences, which models without a CRF can predict, have entities too: I-PER after O begins one; I-LOC after
I-PER ends one and begins another.
"""
CITATION = "Tjong Kim Sang and De Meulder 2003, https://aclanthology.org/W03-0419"
INPUTS = """\
predictions, references: for each sentence, the list of its words' tags: O, B-PER, I-PER, E-PER, S-PER, or the brackets
that conlleval also reads.
"""

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


def entity_scores(predictions: list[list[str]], references: list[list[str]]) -> dict[str, float]:
    """f1, precision, recall and accuracy over all types; then f1_TYPE, precision_TYPE, recall_TYPE and number_TYPE.

    Raises ValueError if a sentence has more or fewer predictions than references, and for a string that is no tag.
    """
    for number, (predicted, tags) in enumerate(zip(predictions, references, strict=True), start=1):
        if len(predicted) != len(tags):
            raise ValueError(f"sentence {number} has {len(predicted)} predictions for {len(tags)} words")
    guess, gold = _concatenate(predictions), _concatenate(references)
    types, right, predicted, present = _count(guess, gold)
    words = sum(map(len, references))
    equal = sum(map(str.__eq__, guess, gold)) - (len(gold) - words)
    scores = _ratios(sum(right), sum(predicted), sum(present)) | {"accuracy": equal / words if words else 0.0}
    for kind, *counts in zip(types, right, predicted, present, strict=True):
        if kind and any(counts):
            of_type = _ratios(*counts) | {"number": counts[-1]}
            scores |= {f"{name}_{kind}": value for name, value in of_type.items()}
    return scores


def _concatenate(sentences: Iterable[list[str]]) -> list[str]:
    """The tags of all sentences, with O before, between and after the sentences."""
    flat = ["O"]
    for tags in sentences:
        flat += tags
        flat.append("O")
    return flat


def _count(guess: list[str], gold: list[str]) -> tuple[list[str], list[int], list[int], list[int]]:
    """The types and, for each type, the number of entities in both, in `guess` and in `gold`.

    The rules are evaluated once for each pair of tags; the results are looked up for all neighbouring words.
    """
    tags = sorted({*guess, *gold})
    types = sorted({split_tag(tag)[1] for tag in tags})
    type_of = np.array([types.index(split_tag(tag)[1]) for tag in tags])
    start, end = (np.array([[rule(old, new) for new in tags] for old in tags]) for rule in (starts, ends))
    number = {tag: index for index, tag in enumerate(tags)}
    guess, gold = (np.fromiter(map(number.get, flat), dtype=np.int64, count=len(flat)) for flat in (guess, gold))
    guess_starts, gold_starts = (start[flat[:-1], flat[1:]] for flat in (guess, gold))
    guess_ends, gold_ends = (end[flat[:-1], flat[1:]] for flat in (guess, gold))
    guess, gold = type_of[guess], type_of[gold]
    same_type = (guess == gold)[1:]

    # Both have started an entity at the same word and agreed since (inCorrect in conlleval).
    last_start = _last(guess_starts & gold_starts & same_type)
    last_stop = _last(guess_ends | gold_ends | ~same_type)
    agree = np.append(False, (last_start >= 0) & (last_start >= last_stop))[:-1]
    right = agree & guess_ends & gold_ends

    counted = [gold[:-1][right], guess[1:][guess_starts], gold[1:][gold_starts]]
    return types, *(np.bincount(numbers, minlength=len(types)).tolist() for numbers in counted)


def _last(mask: np.ndarray) -> np.ndarray:
    """For each position, the last position up to it where `mask` is true, or -1."""
    return np.maximum.accumulate(np.where(mask, np.arange(len(mask)), -1))


def _ratios(right: int, predicted: int, present: int) -> dict[str, float]:
    return {
        "f1": 2 * right / (predicted + present) if right else 0.0,
        "precision": right / predicted if predicted else 0.0,
        "recall": right / present if present else 0.0,
    }


class Entities(evaluate.Metric):
    """`evaluate.load("elmo_gpt_bert/metrics/entities.py").compute(predictions=..., references=...)`."""

    def _info(self) -> evaluate.MetricInfo:
        tags = datasets.Sequence(datasets.Value("string"))
        return evaluate.MetricInfo(
            description=DESCRIPTION,
            citation=CITATION,
            inputs_description=INPUTS,
            features=datasets.Features({"predictions": tags, "references": tags}),
        )

    def _compute(self, predictions: list[list[str]], references: list[list[str]]) -> dict[str, float]:
        return entity_scores(predictions, references)
