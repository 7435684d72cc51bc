"""Answers to questions about texts, by any model that run_squad.py trained. transformers 5 has no pipeline for this.

answer = QuestionAnswerer(AutoModelForQuestionAnswering.from_pretrained(name), AutoTokenizer.from_pretrained(name))
answer("Who wrote it?", "It was written by Jane Austen, and printed by others.")
{"score": 0.93, "start": 18, "end": 29, "answer": "Jane Austen"}
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch
from datasets import Dataset

from elmo_gpt_bert.tasks.squad.decode import Entry, find_candidates, probabilities
from elmo_gpt_bert.tasks.squad.features import Windows, make_windows
from elmo_gpt_bert.tasks.squad.files import check_text
from elmo_gpt_bert.training.errors import DivergedError, InputError
from elmo_gpt_bert.training.loading import check_length, positions


if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


N_BEST = 20  # answers over which probabilities are computed


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
        questions = list(question) if isinstance(question, (list, tuple)) else [question]
        contexts = list(context) if isinstance(context, (list, tuple)) else [context] * len(questions)
        if top_k < 1:
            raise InputError(f"top_k={top_k}: ask for at least one answer")
        if not questions:
            return []
        ranked = self.rank(questions, contexts, max(top_k, N_BEST))
        answers = [self.best(entries, null, top_k) for entries, null in ranked]
        answers = [best[0] for best in answers] if top_k == 1 else answers
        return answers if isinstance(question, (list, tuple)) else answers[0]

    def rank(self, questions: list[str], contexts: list[str], n: int = N_BEST) -> Iterator[tuple[list[Entry], Entry]]:
        """Yields for each question its `n` best answers, the best first, and the entry of "no answer"."""
        examples = self.examples(questions, contexts)
        windows = make_windows(
            examples, self.tokenizer, self.max_seq_length, self.doc_stride, min(64, self.max_seq_length // 4)
        )
        return find_candidates(contexts, windows, self.read(windows), n, self.max_answer_length).rank()

    def examples(self, questions: list[str], contexts: list[str]) -> Dataset:
        """The questions and contexts as a data set.

        Raises ValueError for a value that is not text, and if there are not as many contexts as questions.
        """
        if len(contexts) != len(questions):
            raise InputError(f"there are {len(questions)} questions but {len(contexts)} contexts: give one for each")
        for name, texts in (("question", questions), ("context", contexts)):
            for number, text in enumerate(texts):
                check_text(text, f"{name} {number}", "cannot answer")
        return Dataset.from_dict(
            {"id": [*map(str, range(len(questions)))], "question": questions, "context": contexts}
        )

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
