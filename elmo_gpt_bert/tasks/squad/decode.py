"""Start and end scores of windows -> answers: the n best spans for each question, cut from the original context.

As in BERT's paper (section 4.2), the score of a span is the sum of the scores of its start and its end, and the score
of "no answer" is that of the column which stands for it. A question with several windows has the lowest of their "no
answer" scores, as in the released code, because one window with an answer is enough. The code works on arrays; the
result is that of a loop over all starts and ends.
Letters: W windows, T tokens of context, K starts, L tokens that an answer may have.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from elmo_gpt_bert.tasks.squad.features import Windows


if TYPE_CHECKING:
    from datasets import Dataset


ROWS = 1024  # windows that are scored at a time


@dataclass(frozen=True)
class Spans:
    """Spans of contexts. Each array has one entry for each span."""

    question: np.ndarray
    score: np.ndarray
    start_logit: np.ndarray
    end_logit: np.ndarray
    begin: np.ndarray  # the first character in the context
    end: np.ndarray  # the first character after the span

    @property
    def rows(self) -> list[tuple]:
        """The fields of `Entry` after the text, in its order, of each span."""
        columns = self.begin, self.end, self.score, self.start_logit, self.end_logit
        return list(zip(*(values.tolist() for values in columns), strict=True))

    def sort(self) -> Spans:
        """The spans in the order of their questions, for each question the best score first."""
        return self.take(np.lexsort((self.end, self.begin, -self.score, self.question)))

    def take(self, which: np.ndarray) -> Spans:
        """Some of the spans, by their numbers or a mask."""
        return Spans(**{name: values[which] for name, values in vars(self).items()})


class Entry(NamedTuple):
    """A possible answer: its text, its place in the context in characters, and its scores."""

    text: str
    begin: int
    end: int
    score: float
    start_logit: float
    end_logit: float


@dataclass(frozen=True)
class Candidates:
    """The possible answers to all questions.

    Attributes:
        contexts: the context of each question.
        spans: the `n` best spans of each window, in no order.
        nulls: the span of "no answer" of each question, in their order.
        n: how many answers to a question are wanted.
    """

    contexts: list[str]
    spans: Spans
    nulls: Spans
    n: int

    def best(self) -> tuple[list[str], list[float]]:
        """The text and the score of the first answer that `rank` yields for each question. Others are not ranked."""
        highest = np.full(len(self.contexts), -np.inf, dtype=self.spans.score.dtype)
        np.maximum.at(highest, self.spans.question, self.spans.score)
        spans = self.spans.take(self.spans.score == highest[self.spans.question]).sort()
        spans = spans.take(np.unique(spans.question, return_index=True)[1])
        places = zip(self.contexts, spans.begin.tolist(), spans.end.tolist(), strict=True)
        texts, scores = [context[begin:end].strip() for context, begin, end in places], spans.score.tolist()
        for question, text in enumerate(texts):
            if not text:  # a token may have no character
                rows = self.spans.take(self.spans.question == question).sort().rows
                (first, *_) = _entries(self.contexts[question], rows)
                texts[question], scores[question] = first.text, first.score
        return texts, scores

    def rank(self) -> Iterator[tuple[list[Entry], Entry]]:
        """Yields for each question up to `n` different answers, the best first, and the entry of "no answer"."""
        spans = self.spans.sort()
        rows = spans.rows
        ends = np.append(np.flatnonzero(np.diff(spans.question)) + 1, len(rows)).tolist()
        for context, null, first, last in zip(self.contexts, self.nulls.rows, [0, *ends[:-1]], ends, strict=True):
            yield _entries(context, rows[first:last])[: self.n], Entry("", *null)


def _entries(context: str, rows: Iterable[tuple]) -> list[Entry]:
    """The entries of `rows`, which are sorted and in the form of `Spans.rows`; of equal texts only the best."""
    best: dict[str, Entry] = {}
    for begin, end, *scores in rows:
        text = context[begin:end]
        begin += len(text) - len(text.lstrip())  # some tokenizers join a space to the word after it
        text = text.strip()
        if text not in best:
            best[text] = Entry(text, begin, begin + len(text), *scores)
    # A token may have no character, but a question without any other answer needs this one.
    return [entry for entry in best.values() if entry.text or len(best) == 1]


@dataclass(frozen=True)
class Answers:
    """The answers to questions, by the questions' ids.

    Attributes:
        predictions: the text of the predicted answer; "" for no answer.
        best: the text of the best answer, even if "no answer" scores more.
        null_odds: the score of "no answer" less that of the best answer; empty if every question has an answer.
        questions: the ids of all questions, in their order.
        candidates: what the n best are made of.
    """

    predictions: dict[str, str]
    best: dict[str, str]
    null_odds: dict[str, float]
    questions: list[str] = field(repr=False)
    candidates: Candidates = field(compare=False, repr=False)

    @cached_property
    def nbest(self) -> dict[str, list[dict[str, str | float]]]:
        """Different texts with probability, start_logit and end_logit, the best first.

        They are made when they are first read, which takes longer than all the rest. With `null_odds`, "no answer" is
        one of them.
        """
        nbest = {}
        for question, (entries, null) in zip(self.questions, self.candidates.rank(), strict=True):
            if self.null_odds:
                entries = with_null(entries, null, self.candidates.n)
            nbest[question] = [
                {
                    "text": entry.text,
                    "probability": probability,
                    "start_logit": entry.start_logit,
                    "end_logit": entry.end_logit,
                }
                for entry, probability in zip(entries, probabilities(entries), strict=True)
            ]
        return nbest


def find_answers(
    examples: Dataset,
    windows: Windows,
    outputs: dict[str, list[np.ndarray]],
    n_best_size: int = 20,
    max_answer_length: int = 30,
    null_threshold: float | None = None,
) -> Answers:
    """The answers to all `examples`, from start_logits and end_logits, which have one array for each of the `windows`.

    `n_best_size` and `max_answer_length` are those of `find_candidates`. With a `null_threshold` (SQuAD 2.0) a
    question may have no answer: "" is predicted if "no answer" scores more than the threshold above the best answer.
    """
    candidates = find_candidates(examples["context"][:], windows, outputs, n_best_size, max_answer_length)
    questions, (texts, scores) = examples["id"][:], candidates.best()
    best = dict(zip(questions, texts, strict=True))
    if null_threshold is None:
        return Answers(dict(best), best, {}, questions, candidates)
    nulls = candidates.nulls.score.tolist()
    odds = {name: null - score for name, null, score in zip(questions, nulls, scores, strict=True)}
    predictions = {name: "" if odds[name] > null_threshold else text for name, text in best.items()}
    return Answers(predictions, best, odds, questions, candidates)


def find_candidates(
    contexts: Iterable[str],
    windows: Windows,
    outputs: dict[str, list[np.ndarray]],
    n_best_size: int,
    max_answer_length: int,
) -> Candidates:
    """The `n_best_size` best spans of each window, of at most `max_answer_length` tokens.

    `contexts` has the context of each question.
    """
    logits = outputs["start_logits"], outputs["end_logits"]
    spans = best_spans(*logits, windows, n_best_size, max_answer_length)
    return Candidates(list(contexts), spans, null_scores(*logits, windows), n_best_size)


def with_null(entries: list[Entry], null: Entry, n: int) -> list[Entry]:
    """The `n` best of the answers and "no answer", the best first. If "no answer" is not among them, it follows."""
    ranked = sorted([*entries, null], key=lambda entry: -entry.score)
    return ranked[:n] + [null] * (null in ranked[n:])


def probabilities(entries: list[Entry]) -> list[float]:
    """The softmax over the scores of the entries."""
    highest = max(entry.score for entry in entries)
    weights = [math.exp(entry.score - highest) for entry in entries]
    total = sum(weights)
    return [weight / total for weight in weights]


def best_spans(
    start_logits: list[np.ndarray], end_logits: list[np.ndarray], windows: Windows, n: int, max_answer_length: int
) -> Spans:
    """The `n` best spans of each window, or all if its context has fewer.

    The starts of the n best spans are among the n starts that score best with their best end. So no more than n starts
    of a window have to be combined with all their ends.
    """
    parts = []
    for begin in range(0, len(windows.question), ROWS):
        rows = slice(begin, begin + ROWS)
        place = windows.column[rows], windows.tokens[rows]
        starts, ends = (_context_only(logits[rows], *place) for logits in (start_logits, end_logits))  # (W, T) each
        window, start, end = _best_pairs(starts, ends, n, max_answer_length)
        parts.append((begin + window, start, end, starts[window, start], ends[window, end]))
    window, start, end, start_logit, end_logit = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
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
    """(W, T) the scores of the context's tokens, followed by minus infinity."""
    scores = np.full((len(logits), tokens.max()), -np.inf, dtype=np.float32)
    for row, column, number, values in zip(scores, columns, tokens, logits, strict=True):
        row[:number] = values[column : column + number]
    return scores


def _best_pairs(starts: np.ndarray, ends: np.ndarray, n: int, longest: int) -> tuple[np.ndarray, ...]:
    """The row, start and end of the `n` best pairs in each row, in no order. `starts` and `ends` are (W, T) scores."""
    longest = min(longest, ends.shape[1])
    best_end = ends.copy()  # (W, T) the best score of the ends that are possible for a start at this token
    length = 1
    while length < longest:  # the best of twice as many ends, or of as many as there may be
        step = min(length, longest - length)
        np.maximum(best_end[:, :-step], best_end[:, step:], out=best_end[:, :-step])
        length += step
    chosen = _largest(starts + best_end, n)  # (W, K)
    ends = np.pad(ends, ((0, 0), (0, longest - 1)), constant_values=-np.inf)
    possible_ends = chosen[:, :, None] + np.arange(longest)  # (W, K, L)
    rows = np.arange(len(starts))[:, None]
    scores = starts[rows, chosen][:, :, None] + ends[rows[:, :, None], possible_ends]
    scores = scores.reshape(len(scores), -1)  # (W, K * L)
    best = _largest(scores, n)  # (W, n)
    start = np.take_along_axis(chosen, best // longest, 1)
    is_pair = np.isfinite(np.take_along_axis(scores, best, 1))
    row = np.broadcast_to(rows, is_pair.shape)
    return row[is_pair], start[is_pair], (start + best % longest)[is_pair]


def _largest(scores: np.ndarray, n: int) -> np.ndarray:
    """(W, n) the columns of the `n` largest scores of each row, in no order."""
    n = min(n, scores.shape[1])
    return np.argpartition(-scores, n - 1, axis=1)[:, :n]


def null_scores(start_logits: list[np.ndarray], end_logits: list[np.ndarray], windows: Windows) -> Spans:
    """The span of "no answer" for each question, from the window where its score is lowest."""
    start, end = (
        np.array([values[null] for values, null in zip(logits, windows.null, strict=True)])
        for logits in (start_logits, end_logits)
    )
    order = np.lexsort((start + end, windows.question))
    lowest = order[np.unique(windows.question[order], return_index=True)[1]]
    nowhere = np.zeros_like(lowest)
    return Spans(windows.question[lowest], (start + end)[lowest], start[lowest], end[lowest], nowhere, nowhere)
