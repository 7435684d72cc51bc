"""Start and end scores of windows -> answers: the n best spans for each question, cut from the original context.

As in BERT's paper (section 4.2), the score of a span is the sum of the scores of its start and its end, and the score
of "no answer" is that of the column which stands for it. A question with several windows has the lowest of their "no
answer" scores, as in the released code, because one window with an answer is enough. The code works on arrays; the
result is that of a loop over all starts and ends.

QuestionAnswerer answers questions by any model that run_squad.py trained; transformers 5 has no pipeline for this.

answer = QuestionAnswerer(AutoModelForQuestionAnswering.from_pretrained(name), AutoTokenizer.from_pretrained(name))
answer("Who wrote it?", "It was written by Jane Austen, and printed by others.")
{"score": 0.93, "start": 18, "end": 29, "answer": "Jane Austen"}

Letters: W windows, T tokens of context, K starts, L tokens that an answer may have.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from datasets import Dataset

from elmo_gpt_bert.tasks.rows import check_text
from elmo_gpt_bert.tasks.squad.features import Windows, make_windows
from elmo_gpt_bert.training.errors import DivergedError, InputError
from elmo_gpt_bert.training.loading import check_length, positions


if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


N_BEST = 20  # answers over which probabilities are computed
ROWS = 1024  # windows that are scored at a time


# Spans


def make_spans(question: np.ndarray, begin: np.ndarray, end: np.ndarray, *logits: np.ndarray) -> np.recarray:
    """Spans of contexts: the number of the question, the first character, the first after the span, and the scores.

    `logits` are the scores of starts and of ends.
    """
    columns = question, begin, end, sum(logits), *logits
    return np.rec.fromarrays(columns, names="question, begin, end, score, start_logit, end_logit")


def best_spans(
    start_logits: list[np.ndarray], end_logits: list[np.ndarray], windows: Windows, n: int, max_answer_length: int
) -> np.recarray:
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
    begin, end = windows.spans[first + start, 0], windows.spans[first + end, 1]
    return make_spans(windows.question[window], begin, end, start_logit, end_logit)


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


def null_spans(start_logits: list[np.ndarray], end_logits: list[np.ndarray], windows: Windows) -> np.recarray:
    """The span of "no answer" for each question, from the window where its score is lowest."""
    start, end = (
        np.array([values[null] for values, null in zip(logits, windows.null, strict=True)])
        for logits in (start_logits, end_logits)
    )
    order = np.lexsort((start + end, windows.question))
    lowest = order[np.unique(windows.question[order], return_index=True)[1]]
    nowhere = np.zeros_like(lowest)
    return make_spans(windows.question[lowest], nowhere, nowhere, start[lowest], end[lowest])


# Answers


class Entry(NamedTuple):
    """A possible answer: its text, its place in the context in characters, and its scores."""

    text: str
    begin: int
    end: int
    score: float
    start_logit: float
    end_logit: float


@dataclass(frozen=True)
class Answers:
    """The answers to questions, by the questions' ids.

    Attributes:
        predictions: the text of the predicted answer; "" for no answer.
        best: the text of the best answer, even if "no answer" scores more.
        null_odds: the score of "no answer" less that of the best answer; empty if every question has an answer.
        nbest: different texts with probability, start_logit and end_logit, the best first. With `null_odds`, "no
            answer" is one of them.
    """

    predictions: dict[str, str]
    best: dict[str, str]
    null_odds: dict[str, float]
    nbest: dict[str, list[dict[str, str | float]]]


def find_answers(
    examples: Dataset,
    windows: Windows,
    outputs: dict[str, list[np.ndarray]],
    n_best_size: int = 20,
    max_answer_length: int = 30,
    null_threshold: float | None = None,
) -> Answers:
    """The answers to all `examples`. Other parameters are those of `rank_answers`.

    With a `null_threshold` (SQuAD 2.0) a question may have no answer: "" is predicted if "no answer" scores more than
    the threshold above the best answer.
    """
    best, odds, nbest = {}, {}, {}
    ranked = rank_answers(examples["context"][:], windows, outputs, n_best_size, max_answer_length)
    for question, (entries, null) in zip(examples["id"][:], ranked, strict=True):
        best[question] = entries[0].text
        if null_threshold is not None:
            odds[question] = null.score - entries[0].score
            entries = with_null(entries, null, n_best_size)
        nbest[question] = [
            {
                "text": entry.text,
                "probability": probability,
                "start_logit": entry.start_logit,
                "end_logit": entry.end_logit,
            }
            for entry, probability in zip(entries, probabilities(entries), strict=True)
        ]
    predictions = {name: "" if odds and odds[name] > null_threshold else text for name, text in best.items()}
    return Answers(predictions, best, odds, nbest)


def rank_answers(
    contexts: list[str],
    windows: Windows,
    outputs: dict[str, list[np.ndarray]],
    n_best_size: int,
    max_answer_length: int,
) -> Iterator[tuple[list[Entry], Entry]]:
    """Yields for each question up to `n_best_size` different answers, the best first, and the entry of "no answer".

    `outputs` has start_logits and end_logits, one array for each of the `windows`. Of each window, the `n_best_size`
    best spans of at most `max_answer_length` tokens are looked at.
    """
    logits = outputs["start_logits"], outputs["end_logits"]
    spans = best_spans(*logits, windows, n_best_size, max_answer_length)
    spans = spans[np.lexsort((spans.end, spans.begin, -spans.score, spans.question))]
    ends = np.append(np.flatnonzero(np.diff(spans.question)) + 1, len(spans)).tolist()
    rows, nulls = spans.tolist(), null_spans(*logits, windows).tolist()
    for context, null, first, last in zip(contexts, nulls, [0, *ends[:-1]], ends, strict=True):
        yield _entries(context, rows[first:last])[:n_best_size], Entry("", *null[1:])


def _entries(context: str, rows: Iterable[tuple]) -> list[Entry]:
    """The entries of ranked spans as tuples; of equal texts only the best."""
    best: dict[str, Entry] = {}
    for _, begin, end, *scores in rows:
        text = context[begin:end]
        begin += len(text) - len(text.lstrip())  # some tokenizers join a space to the word after it
        text = text.strip()
        if text not in best:
            best[text] = Entry(text, begin, begin + len(text), *scores)
    # A token may have no character, but a question without any other answer needs this one.
    return [entry for entry in best.values() if entry.text or len(best) == 1]


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


# Questions of one's own code


class QuestionAnswerer:
    """Answers questions about contexts of any length, which the model reads in windows.

    The model is set to evaluation mode and stays on its device.

    Args:
        max_seq_length: the tokens of question and context in one window; default: 384, or as many as the model and
            the tokenizer allow.
        doc_stride: the tokens that two neighbouring windows share; default: 128, or a third of a window.
        max_answer_length: the tokens that an answer may have.
        null_threshold: for models trained on questions without answers: the answer is "" if "no answer" scores more
            than this above the best answer. Default: every question has an answer.
        batch_size: the windows that the model reads at a time.

    Raises:
        ValueError: when `max_seq_length` is more than the model or the tokenizer allows.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        max_seq_length: int | None = None,
        doc_stride: int | None = None,
        max_answer_length: int = 30,
        null_threshold: float | None = None,
        batch_size: int = 32,
    ) -> None:
        self.model, self.tokenizer = model.eval(), tokenizer
        longest = min(384, positions(model) or 384, tokenizer.model_max_length)
        self.max_seq_length = longest if max_seq_length is None else max_seq_length
        check_length(self.max_seq_length, model, tokenizer, pair=True)
        self.doc_stride = min(128, self.max_seq_length // 3) if doc_stride is None else doc_stride
        self.max_answer_length, self.null_threshold = max_answer_length, null_threshold
        self.batch_size = batch_size

    def __call__(
        self, question: str | list[str], context: str | list[str], top_k: int = 1
    ) -> dict | list[dict] | list[list[dict]]:
        """The answer to a question or, if `top_k` is more than 1, a list of the best answers. For a list of questions,
        a list of these; all may share one `context`.

        An answer is a dictionary with "answer", "start" and "end" (its place in the context, in characters), and
        "score", its probability among the 20 best answers, or among `top_k` if that is more.
        """
        several = isinstance(question, (list, tuple))
        questions = list(question) if several else [question]
        contexts = list(context) if isinstance(context, (list, tuple)) else [context] * len(questions)
        if top_k < 1:
            raise InputError(f"top_k={top_k}: ask for at least one answer")
        if len(contexts) != len(questions):
            raise InputError(f"there are {len(questions)} questions but {len(contexts)} contexts: give one for each")
        for name, texts in (("question", questions), ("context", contexts)):
            for number, text in enumerate(texts):
                check_text(text, f"{name} {number}", "cannot answer")
        if not questions:
            return []
        columns = {"id": [*map(str, range(len(questions)))], "question": questions, "context": contexts}
        question_length = min(64, self.max_seq_length // 4)
        windows = make_windows(
            Dataset.from_dict(columns), self.tokenizer, self.max_seq_length, self.doc_stride, question_length
        )
        ranked = rank_answers(contexts, windows, self.read(windows), max(top_k, N_BEST), self.max_answer_length)
        answers = [self.best(entries, null, top_k) for entries, null in ranked]
        answers = [best[0] for best in answers] if top_k == 1 else answers
        return answers if several else answers[0]

    @torch.no_grad()
    def read(self, windows: Windows) -> dict[str, list[np.ndarray]]:
        """start_logits and end_logits, one array for each window. Windows of similar length are read together."""
        rows = windows.features
        order = np.argsort(windows.column + windows.tokens).tolist()
        by_name: dict[str, dict[int, np.ndarray]] = {"start_logits": {}, "end_logits": {}}
        for first in range(0, len(order), self.batch_size):
            indices = order[first : first + self.batch_size]
            batch = self.tokenizer.pad([rows[index] for index in indices], padding_side="right", return_tensors="pt")
            outputs = self.model(**batch.to(self.model.device))
            for name, logits in by_name.items():
                values = outputs[name].float()
                if not values.isfinite().all():
                    raise DivergedError(f"the model's {name} are not finite: its weights may be damaged")
                logits.update(zip(indices, values.cpu().numpy(), strict=True))
        return {name: [logits[index] for index in range(len(order))] for name, logits in by_name.items()}

    def best(self, entries: list[Entry], null: Entry, top_k: int) -> list[dict[str, str | float | int]]:
        """The first `top_k` entries as dictionaries. With a threshold, `null` is an entry too, the first if it exceeds
        the threshold.
        """
        if self.null_threshold is not None:
            first = null if null.score - entries[0].score > self.null_threshold else entries[0]
            others = [entry for entry in [*entries, null] if entry is not first]
            entries = [first, *sorted(others, key=lambda entry: -entry.score)]
        return [
            {"score": probability, "start": entry.begin, "end": entry.end, "answer": entry.text}
            for probability, entry in list(zip(probabilities(entries), entries, strict=True))[:top_k]
        ]
