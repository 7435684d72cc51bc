"""Start and end scores of windows -> answers: the n best spans of each question, cut from its original text.

As in BERT's paper (section 4.2) the score of a span is that of its start plus that of its end. "No answer" competes
with the score of its own column: of several windows the lowest, as in the released code, since one window with an
answer is enough. The result is that of a loop over all starts and ends, computed by arrays.

Letters: W windows, T tokens of context, K starts, L tokens that an answer may have.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from datasets import Dataset

from tasks.squad.features import Windows


ROWS = 1024  # windows at a time


@dataclass(frozen=True)
class Answers:
    """By the ids of questions.

    Attributes:
        predictions: the answer's text; "" for none.
        best: the text of the best answer, however much "no answer" scores.
        nbest: different texts with probability, start_logit and end_logit, the best first.
        null_odds: how much more "no answer" scores than the best answer; empty where each question has an answer.
    """

    predictions: dict[str, str]
    best: dict[str, str]
    nbest: dict[str, list[dict[str, str | float]]]
    null_odds: dict[str, float]


@dataclass(frozen=True)
class Spans:
    """One after the other: `question`, then the best `score` first. All arrays have one entry a span."""

    question: np.ndarray
    score: np.ndarray
    start_logit: np.ndarray
    end_logit: np.ndarray
    begin: np.ndarray  # characters in the context, from
    end: np.ndarray  # and up to

    @property
    def columns(self) -> tuple[np.ndarray, ...]:
        """In the order of `Entry`."""
        return self.begin, self.end, self.score, self.start_logit, self.end_logit

    def sort(self) -> "Spans":
        order = np.lexsort((self.end, self.begin, -self.score, self.question))
        return Spans(**{name: values[order] for name, values in vars(self).items()})


class Entry(NamedTuple):
    """A possible answer: its text, the characters of the context that it is, and its scores."""

    text: str
    begin: int
    end: int
    score: float
    start_logit: float
    end_logit: float


def find_answers(
    examples: Dataset,
    windows: Windows,
    outputs: dict[str, list[np.ndarray]],
    n_best_size: int = 20,
    max_answer_length: int = 30,
    null_threshold: float | None = None,
) -> Answers:
    """The answers to all `examples`, from the start_logits and end_logits of their `windows`, one array a window.

    `n_best_size` and `max_answer_length` are as in `rank`. With a `null_threshold` (SQuAD 2.0) a question may have no
    answer, and "" is predicted where that scores more than the threshold above the best answer.
    """
    answers = Answers({}, {}, {}, {})
    ranked = rank(examples["context"][:], windows, outputs, n_best_size, max_answer_length)
    for name, (entries, null) in zip(examples["id"][:], ranked, strict=True):
        best = entries[0]
        answers.predictions[name] = answers.best[name] = best.text
        if null_threshold is not None:
            answers.null_odds[name] = null.score - best.score
            if null.score - best.score > null_threshold:
                answers.predictions[name] = ""
            entries = with_null(entries, null, n_best_size)
        answers.nbest[name] = [
            {
                "text": entry.text,
                "probability": probability,
                "start_logit": entry.start_logit,
                "end_logit": entry.end_logit,
            }
            for entry, probability in zip(entries, probabilities(entries), strict=True)
        ]
    return answers


def rank(
    contexts: Iterable[str],
    windows: Windows,
    outputs: dict[str, list[np.ndarray]],
    n_best_size: int,
    max_answer_length: int,
) -> Iterator[tuple[list[Entry], Entry]]:
    """For each question, in `contexts` its own, up to `n_best_size` answers, the best first, and that there is none.

    An answer has at most `max_answer_length` tokens. Each window gives its `n_best_size` best spans; equal texts are
    one answer, the one with the best score.
    """
    logits = outputs["start_logits"], outputs["end_logits"]
    nulls = zip(*(values.tolist() for values in null_scores(*logits, windows).columns), strict=True)
    spans = best_spans(*logits, windows, n_best_size, max_answer_length).sort()
    rows = list(zip(*(values.tolist() for values in spans.columns), strict=True))
    ends = np.append(np.flatnonzero(np.diff(spans.question)) + 1, len(rows)).tolist()
    for context, null, first, last in zip(contexts, nulls, [0, *ends], ends, strict=False):
        best: dict[str, Entry] = {}
        for begin, end, *scores in rows[first:last]:
            text = context[begin:end]
            begin += len(text) - len(text.lstrip())  # some tokenizers have the space in the token of the word after it
            text = text.strip()
            if text not in best:
                best[text] = Entry(text, begin, begin + len(text), *scores)
        entries = [entry for entry in best.values() if entry.text or len(best) == 1]  # a token may have no character
        yield entries[:n_best_size], Entry("", *null)


def with_null(entries: list[Entry], null: Entry, n: int) -> list[Entry]:
    """The `n` best of all, the best first; if "no answer" is none of them, it is the last one more."""
    ranked = sorted([*entries, null], key=lambda entry: -entry.score)
    return ranked[:n] + [null] * (null in ranked[n:])


def probabilities(entries: list[Entry]) -> list[float]:
    """A softmax over the scores of these."""
    highest = max(entry.score for entry in entries)
    weights = [math.exp(entry.score - highest) for entry in entries]
    total = sum(weights)
    return [weight / total for weight in weights]


def best_spans(
    start_logits: list[np.ndarray], end_logits: list[np.ndarray], windows: Windows, n: int, max_answer_length: int
) -> Spans:
    """The `n` best spans of each window; fewer where its context has fewer.

    A start is among those of the n best spans only if it is among the n best by its score with its best end, so no
    more than n starts of a window need to be looked at with all their ends.
    """
    parts = []
    for begin in range(0, len(windows.question), ROWS):
        part = slice(begin, begin + ROWS)
        place = windows.column[part], windows.tokens[part]
        starts, ends = (_context_only(logits[part], *place) for logits in (start_logits, end_logits))  # (W, T) each
        window, start, end = _best_pairs(starts, ends, n, max_answer_length)
        parts.append((begin + window, start, end, starts[window, start], ends[window, end]))
    window, start, end, start_logit, end_logit = (np.concatenate(values) for values in zip(*parts, strict=True))
    first = windows.first[window]
    return Spans(
        question=windows.question[window],
        score=start_logit + end_logit,
        start_logit=start_logit,
        end_logit=end_logit,
        begin=windows.spans[first + start, 0],
        end=windows.spans[first + end, 1],
    )


def _context_only(logits: list[np.ndarray], columns: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """(W, T) the scores of the tokens of the context, and minus infinity after them."""
    scores = np.full((len(logits), tokens.max()), -np.inf, dtype=np.float32)
    for row, column, number, values in zip(scores, columns, tokens, logits, strict=True):
        row[:number] = values[column : column + number]
    return scores


def _best_pairs(starts: np.ndarray, ends: np.ndarray, n: int, longest: int) -> tuple[np.ndarray, ...]:
    """Row, start and end of the `n` best pairs of each row, of (W, T) scores each, in no order."""
    longest = min(longest, ends.shape[1])
    best_end = ends.copy()  # (W, T) of those that a start at this token may have
    for length in range(1, longest):
        np.maximum(best_end[:, :-length], ends[:, length:], out=best_end[:, :-length])
    chosen = _largest(starts + best_end, n)  # (W, K)
    ends = np.pad(ends, ((0, 0), (0, longest - 1)), constant_values=-np.inf)
    own_ends = chosen[:, :, None] + np.arange(longest)  # (W, K, L)
    rows = np.arange(len(starts))[:, None]
    pairs = starts[rows, chosen][:, :, None] + ends[rows[:, :, None], own_ends]
    best = _largest(pairs.reshape(len(pairs), -1), n)  # (W, n)
    start = np.take_along_axis(chosen, best // longest, 1)
    found = np.isfinite(np.take_along_axis(pairs.reshape(len(pairs), -1), best, 1))
    row = np.broadcast_to(rows, found.shape)
    return row[found], start[found], (start + best % longest)[found]


def _largest(scores: np.ndarray, n: int) -> np.ndarray:
    """(W, n) the columns of the `n` largest of each row, in no order."""
    n = min(n, scores.shape[1])
    return np.argpartition(-scores, n - 1, axis=1)[:, :n]


def null_scores(start_logits: list[np.ndarray], end_logits: list[np.ndarray], windows: Windows) -> Spans:
    """The score of "no answer" for each question, of the window that gives it the lowest."""
    start, end = (
        np.array([values[null] for values, null in zip(logits, windows.null, strict=True)])
        for logits in (start_logits, end_logits)
    )
    order = np.lexsort((start + end, windows.question))
    lowest = order[np.unique(windows.question[order], return_index=True)[1]]
    nowhere = np.zeros_like(lowest)
    return Spans(windows.question[lowest], (start + end)[lowest], start[lowest], end[lowest], nowhere, nowhere)
