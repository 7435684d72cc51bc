"""The scores of answers to questions, computed from plain texts as by the official scorers of SQuAD 1.1 and 2.0, and
by that of CMRC 2018, version 5.

Exact match is the share of answers that equal a reference; F1 is the overlap of their words. Both are taken with the
best of a question's references (Rajpurkar et al. 2016, arXiv 1606.05250, section 6.1), in per cent. Case, ASCII
punctuation, articles and the amount of space do not count.

The versions differ as the official scorers do. In 2.0 (Rajpurkar, Jia and Liang 2018, arXiv 1806.03822), "" is the
prediction that there is no answer. References that consist only of articles and punctuation are left out; if no
reference remains, "" is right. In 1.1 they stay, and a prediction that is empty in the same way has an exact match of
1 and an F1 of 0.

CMRC 2018 (Cui et al. 2019, arXiv 1810.07366, section 3.3) is in Chinese, where no spaces part words. Case and most
punctuation do not count, articles do and, in exact match, spaces within an answer. The units of F1 are single Chinese
characters and, between them, the words that NLTK's word_tokenize (version 3.10) finds; the ends of English sentences
within an answer are found by a simpler rule. What two answers share is the longest run of units that both hold, not a
bag.

This module needs only NumPy.
"""

import re
import string
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import chain

import numpy as np


ARTICLES = re.compile(r"\b(?:a|an|the)\b")
NO_PUNCTUATION = str.maketrans("", "", string.punctuation)  # ASCII only: typographic quotes and dashes count


# One question of SQuAD


def normalize_answer(text: str) -> str:
    """The part of an answer that counts. The order of steps matters: "a." is an article, "a-b" is the word "ab"."""
    return " ".join(ARTICLES.sub(" ", text.lower().translate(NO_PUNCTUATION)).split())


def word_f1(prediction: list[str], reference: list[str]) -> float:
    """F1 of two bags of words; 0 if they share no word, as two empty bags."""
    shared = (Counter(prediction) & Counter(reference)).total()
    if not shared:
        return 0.0
    # Not 2 * shared / (all words): the best thresholds depend on ties of sums, and so on the rounding of each score.
    precision, recall = shared / len(prediction), shared / len(reference)
    return 2 * precision * recall / (precision + recall)


def best_scores(prediction: str, references: Collection[str]) -> tuple[float, float]:
    """(exact match, F1), each with the best of the references. All texts are normalised; there is a reference."""
    words = prediction.split()
    return float(prediction in references), max(word_f1(words, reference.split()) for reference in references)


# SQuAD 1.1


def squad1_scores(predictions: Mapping[str, str], references: Mapping[str, Collection[str]]) -> dict[str, float]:
    """exact_match and f1 in per cent, of predictions and texts of reference answers by question id.

    A question without a prediction counts 0. Predictions for other questions are ignored.
    """

    def score(prediction: str, texts: Collection[str]) -> tuple[float, float]:
        return best_scores(normalize_answer(prediction), dict.fromkeys(map(normalize_answer, texts)))

    return _mean_scores(predictions, references, score, "SQuAD 1.1 does not know: score as version 2.0")


def _mean_scores(
    predictions: Mapping[str, str],
    references: Mapping[str, Collection[str]],
    score: Callable[[str, Collection[str]], tuple[float, float]],
    problem: str,
) -> dict[str, float]:
    """The means of exact match and F1 in per cent. `problem` ends the error for a question without answers."""
    exact = f1 = 0.0
    for name, texts in references.items():
        if not texts:
            raise ValueError(f"question {name} has no answers, which {problem}")
        if name in predictions:
            question_exact, question_f1 = score(predictions[name], texts)
            exact, f1 = exact + question_exact, f1 + question_f1
    if not references:
        raise ValueError("there are no questions to score")
    return {"exact_match": 100 * exact / len(references), "f1": 100 * f1 / len(references)}


# SQuAD 2.0


@dataclass(frozen=True)
class Marks:
    """The scores of the predictions for N questions, without a threshold. All arrays are (N,)."""

    exact: np.ndarray
    f1: np.ndarray
    answerable: np.ndarray  # whether the question has an answer
    answered: np.ndarray  # whether the prediction is not "", before it is normalised
    no_answer: np.ndarray  # probability or log odds


def mark(
    predictions: Mapping[str, str],
    references: Mapping[str, Collection[str]],
    no_answer: Mapping[str, float] | None = None,
) -> Marks:
    """Marks the questions, by id, that have a prediction and a reference; others do not count.

    `no_answer` holds the probability that a question has no answer; without it, all are equal. Raises ValueError if
    there is no question to mark, and if a probability is missing or NaN.
    """
    if no_answer is None:
        no_answer = dict.fromkeys(predictions, 0.0)
    names = [name for name in no_answer if name in predictions and name in references]
    if missing := [name for name in predictions if name in references and name not in no_answer]:
        raise ValueError(f"{len(missing):,} predictions have no no-answer probability, the first is {missing[0]}")
    if not names:
        raise ValueError("no question has a prediction: there is nothing to score")
    probabilities = np.array([no_answer[name] for name in names], dtype=np.float64)
    if np.isnan(probabilities).any():
        raise ValueError(f"the no-answer probability of question {names[np.isnan(probabilities).argmax()]} is NaN")
    exact, f1 = np.array([_mark(predictions[name], references[name]) for name in names]).T
    answerable = np.array([bool(references[name]) for name in names])
    return Marks(exact, f1, answerable, np.array([bool(predictions[name]) for name in names]), probabilities)


def _mark(prediction: str, references: Collection[str]) -> tuple[float, float]:
    answers = dict.fromkeys(filter(None, map(normalize_answer, references))) or {"": None}
    exact, f1 = best_scores(normalize_answer(prediction), answers)
    return exact, max(exact, f1)  # unlike in 1.1, "" for "" has an F1 of 1


def squad2_scores(marks: Marks) -> dict[str, float]:
    """exact, f1 and total over all questions, with (HasAns_) and without answers (NoAns_). A group without questions
    has no scores.
    """
    scores = {}
    all_questions = np.ones_like(marks.answerable)
    for prefix, group in (("", all_questions), ("HasAns_", marks.answerable), ("NoAns_", ~marks.answerable)):
        if group.any():
            scores[f"{prefix}exact"] = 100 * float(marks.exact[group].mean())
            scores[f"{prefix}f1"] = 100 * float(marks.f1[group].mean())
            scores[f"{prefix}total"] = int(group.sum())
    return scores


def best_thresholds(marks: Marks) -> dict[str, float]:
    """best_exact and best_f1, in per cent: the scores if "" is predicted for every question whose no_answer is above
    best_exact_thresh or best_f1_thresh, the lowest threshold that gives the best score.

    As in the official scorer, predictions are added one by one, beginning with the questions that most probably have
    an answer. So among equal probabilities, the best score may be one that no threshold gives. If "" is the best
    prediction for all questions, the threshold is 0, which is wrong for log odds, since some are below 0.
    """
    order = np.argsort(marks.no_answer, kind="stable")
    unanswered = (~marks.answerable).sum()  # the score of "" for all questions
    scores = {}
    for name, marked in (("exact", marks.exact), ("f1", marks.f1)):
        gains = np.where(marks.answerable, marked, np.where(marks.answered, -1.0, 0.0))[order]
        totals = np.cumsum([unanswered, *gains])
        best = int(totals.argmax())
        scores[f"best_{name}"] = 100 * float(totals[best]) / len(gains)
        scores[f"best_{name}_thresh"] = float(marks.no_answer[order[best - 1]]) if best else 0.0
    return scores


# CMRC 2018, for Chinese

# Signs that do not count. The ellipsis … does; the official list holds two of them, which no single character equals.
SIGNS = frozenset("-:_*^/\\~`+=，。：？！“”；’《》·、「」（）－～『』")
CHINESE = re.compile("[\u4e00-\u9fa5]")  # each a segment; rare characters outside this range are parts of words

# What is cut off from the words between Chinese characters, as by NLTK's word_tokenize: signs that stand alone, ...
ALONE = re.compile(r"(\.{2,}|``|''|[«»‘„;@#$%&?!()\[\]{}<>‒–—―]|,(?!\d)|(?<!\w)'(?!(?:re|ve|ll|m|t|s|d|n)\b)(?=\w))")
# ... quotes, which become `` where they open and '' elsewhere, ...
QUOTE = re.compile("\"|''")
OPENING = re.compile(r"""(?:^|(?<=[([{<«‘„]))(?:"|'')+""")
# ... the ends of English words: it's, we'll, don't, the dogs', ...
ENDING = re.compile(r"(?<=[^'])(?:'(?:s|m|d|ll|re|ve)?|n't)$")
# ... and the period at the end of a sentence, behind which brackets and quotes may close.
PERIOD = re.compile(r"(?<=[^.])\.(?=[])}>']*$)")
# Words whose period ends no sentence: initials, numbers, and the commonest abbreviations.
NO_END = re.compile(r"(?:\w|\d+|a\.m|p\.m|u\.s|u\.k|co|corp|dr|inc|jr|ltd|mr|mrs|ms|prof|sr|st|vs)\.")


def without_signs(text: str) -> str:
    """The part of an answer that counts for exact match: lower case, without `SIGNS`; spaces within it stay."""
    return "".join(character for character in text.lower().strip() if character not in SIGNS)


def segments(text: str) -> list[str]:
    """The units of which F1 counts the overlap: each Chinese character, and the words between them."""
    parts = re.split(f"({CHINESE.pattern})", without_signs(text))
    return [segment for part in parts for segment in ([part] if CHINESE.match(part) else _words(part))]


def _words(text: str) -> Iterator[str]:
    """The words and signs of text without Chinese characters."""
    chunks = text.split()
    for number, chunk in enumerate(chunks, start=1):
        chunk = OPENING.sub(lambda quotes: "``" * len(QUOTE.findall(quotes.group())), chunk)
        chunk = QUOTE.sub("''", chunk)
        if number == len(chunks) or (chunk.endswith(".") and not NO_END.fullmatch(chunk.lstrip("`'([{<"))):
            chunk = PERIOD.sub(" . ", chunk)
        for piece in filter(None, chain.from_iterable(map(ALONE.split, chunk.split()))):
            ending = None if ALONE.fullmatch(piece) else ENDING.search(piece)
            yield from filter(None, (piece[: ending.start()], ending.group()) if ending else (piece,))


def longest_shared_run(one: Sequence[str], other: Sequence[str]) -> int:
    """The length of the longest run of segments, one right after the other, that both hold."""
    return SequenceMatcher(None, one, other, autojunk=False).find_longest_match().size


def run_f1(prediction: Sequence[str], reference: Sequence[str]) -> float:
    """F1 of two lists of segments, of which the longest shared run is right; 0 if there is none."""
    shared = longest_shared_run(prediction, reference)
    return 2 * shared / (len(prediction) + len(reference)) if shared else 0.0


def cmrc2018_scores(predictions: Mapping[str, str], references: Mapping[str, Collection[str]]) -> dict[str, float]:
    """exact_match, f1 and their mean `average`, in per cent, of predictions and reference texts by question id.

    A question without a prediction counts 0. Predictions for other questions are ignored.
    """

    def score(prediction: str, texts: Collection[str]) -> tuple[float, float]:
        answers = dict.fromkeys(tuple(segments(text)) for text in texts)
        exact = without_signs(prediction) in map(without_signs, texts)
        return exact, max(run_f1(segments(prediction), answer) for answer in answers)

    means = _mean_scores(predictions, references, score, "CMRC 2018 does not know: score as SQuAD 2.0")
    return means | {"average": (means["exact_match"] + means["f1"]) / 2}
