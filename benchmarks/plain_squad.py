"""SQuAD's windows and answers, made as in transformers' example run_qa.py: the baseline for the zoo's.

It follows the same rules, but is not its code. Each question is tokenised together with its context, which the
tokenizer cuts into windows. Python loops find the tokens of the answer in each window and, with a model's scores, the
best spans. As in the example, only the best starts of a window are combined with its best ends, so a better span of
other starts and ends can be missed.
"""

from collections.abc import Iterable, Sequence

import numpy as np
from transformers import PreTrainedTokenizerBase


CONTEXT = 1  # the number of the second text of a pair
Batch = dict[str, list]  # columns


# Windows


def train_features(examples: Batch, tokenizer: PreTrainedTokenizerBase, max_length: int, stride: int) -> Batch:
    """The windows of a batch of questions, with the first answer's start_positions and end_positions."""
    features = _encode(examples, tokenizer, max_length, stride)
    questions, offsets = features.pop("overflow_to_sample_mapping"), features.pop("offset_mapping")
    starts, ends = [], []
    for window, question in enumerate(questions):
        ids, answers = features["input_ids"][window], examples["answers"][question]
        null = ids.index(tokenizer.cls_token_id) if tokenizer.cls_token_id in ids else 0
        start, end = _answer(answers, offsets[window], features.sequence_ids(window), null)
        starts.append(start)
        ends.append(end)
    return dict(features) | {"start_positions": starts, "end_positions": ends}


def validation_features(examples: Batch, tokenizer: PreTrainedTokenizerBase, max_length: int, stride: int) -> Batch:
    """The windows of a batch of questions, with the question's id and, in the context, each token's characters."""
    features = _encode(examples, tokenizer, max_length, stride)
    names = [examples["id"][question] for question in features.pop("overflow_to_sample_mapping")]
    offsets = []
    for window, spans in enumerate(features.pop("offset_mapping")):
        sides = features.sequence_ids(window)
        offsets.append([span if sides[column] == CONTEXT else None for column, span in enumerate(spans)])
    return dict(features) | {"example_id": names, "offset_mapping": offsets}


def _encode(examples: Batch, tokenizer: PreTrainedTokenizerBase, max_length: int, stride: int):
    return tokenizer(
        [question.lstrip() for question in examples["question"]],
        examples["context"],
        truncation="only_second",
        max_length=max_length,
        stride=stride,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )


def _answer(answers: dict, offsets: list, sides: list, null: int) -> tuple[int, int]:
    """The columns of the first answer's first and last token, or `null` twice if the window lacks a part of it."""
    if not answers["answer_start"]:
        return null, null
    begin = answers["answer_start"][0]
    end = begin + len(answers["text"][0])
    first, last = 0, len(sides) - 1
    while sides[first] != CONTEXT:
        first += 1
    while sides[last] != CONTEXT:
        last -= 1
    if offsets[first][0] > begin or offsets[last][1] < end:
        return null, null
    while first < len(offsets) and offsets[first][0] <= begin:
        first += 1
    while offsets[last][1] >= end:
        last -= 1
    return first - 1, last + 1


# Answers


def best_of_best(starts: np.ndarray, ends: np.ndarray, offsets: list, n: int, longest: int) -> list[dict]:
    """The spans of at most `longest` tokens from the `n` best starts to the `n` best ends."""
    spans = []
    best_ends = np.argsort(ends)[: -n - 1 : -1].tolist()
    for start in np.argsort(starts)[: -n - 1 : -1].tolist():
        for end in best_ends:
            if max(start, end) >= len(offsets) or offsets[start] is None or offsets[end] is None:
                continue
            if start <= end < start + longest:
                spans.append(_span(starts, ends, offsets, start, end))
    return spans


def _span(starts: np.ndarray, ends: np.ndarray, offsets: list, start: int, end: int) -> dict:
    return {
        "offsets": (offsets[start][0], offsets[end][1]),
        "score": starts[start] + ends[end],
        "start_logit": starts[start],
        "end_logit": ends[end],
    }


def find_answers(
    examples: Iterable[dict],
    features: Sequence[dict],
    logits: tuple[Sequence[np.ndarray], Sequence[np.ndarray]],
    n: int = 20,
    longest: int = 30,
) -> dict[str, str]:
    """The answers to all questions from the scores of their windows, which are the rows of `validation_features`.

    As in the example, the n best of each question get their texts and probabilities, too.
    """
    windows: dict[str, list[int]] = {}
    for window, feature in enumerate(features):
        windows.setdefault(feature["example_id"], []).append(window)
    predictions = {}
    for example in examples:
        spans = []
        for window in windows[example["id"]]:
            offsets = features[window]["offset_mapping"]
            spans += best_of_best(logits[0][window], logits[1][window], offsets, n, longest)
        predictions[example["id"]] = _entries(spans, example["context"], n)[0]["text"]
    return predictions


def _entries(spans: list[dict], context: str, n: int) -> list[dict]:
    """The `n` best with their texts and probabilities, as numbers that JSON knows."""
    chosen = sorted(spans, key=lambda span: span["score"], reverse=True)[:n]
    scores = np.array([span["score"] for span in chosen])
    weights = np.exp(scores - scores.max())
    return [
        {"text": context[slice(*span["offsets"])], "probability": float(share)}
        | {name: float(span[name]) for name in ("start_logit", "end_logit")}
        for span, share in zip(chosen, weights / weights.sum(), strict=True)
    ]
