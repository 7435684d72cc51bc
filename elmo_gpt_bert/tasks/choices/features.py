"""A context and choices -> the inputs of a model, which reads each choice as a second text, after the context."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
import torch

from elmo_gpt_bert.tasks.features import map_examples
from elmo_gpt_bert.tasks.language_models import report_known_words


if TYPE_CHECKING:
    from datasets import DatasetDict
    from transformers import PreTrainedTokenizerBase


def make_features(
    data: DatasetDict, tokenizer: PreTrainedTokenizerBase, *, length: int, limits: Mapping[str, int | None]
) -> DatasetDict:
    """The features, of at most `length` tokens a choice, of the first examples of each split, up to its limit."""
    for split, examples in data.items():
        report_known_words(split, chain(examples["context"], chain.from_iterable(examples["choices"])), tokenizer)
    return map_examples(data, partial(featurize, tokenizer=tokenizer, length=length), limits)


def featurize(batch: dict[str, list], tokenizer: PreTrainedTokenizerBase, length: int) -> dict[str, list]:
    """The model's inputs, each with one list for each choice of an example, and `labels`, the right choices."""
    contexts = [context for context, choices in zip(batch["context"], batch["choices"], strict=True) for _ in choices]
    rows = iter(encode(contexts, list(chain(*batch["choices"])), tokenizer, length))
    grouped = [[next(rows) for _ in choices] for choices in batch["choices"]]
    features = {name: [[row[name] for row in group] for group in grouped] for name in grouped[0][0]}
    return features | ({"labels": batch["label"]} if "label" in batch else {})


def encode(
    contexts: list[str], choices: list[str], tokenizer: PreTrainedTokenizerBase, length: int
) -> list[dict[str, list]]:
    """The tokenizer's inputs of each pair, cut to `length` tokens.

    The beginning of the context is cut off. If the choice alone fills the room, the beginning of the longer text is
    cut off until both are equally long, and then that of both.
    """
    room = length - tokenizer.num_special_tokens_to_add(pair=True)
    leaves_room = np.array([len(ids) < room for ids in tokenizer(choices, add_special_tokens=False)["input_ids"]])
    inputs: list[dict[str, list]] = [{} for _ in choices]
    side, tokenizer.truncation_side = tokenizer.truncation_side, "left"
    for truncation, is_cut_so in (("only_first", leaves_room), ("longest_first", ~leaves_room)):
        numbers = np.flatnonzero(is_cut_so).tolist()
        if numbers:
            pairs = [contexts[number] for number in numbers], [choices[number] for number in numbers]
            encoded = tokenizer(*pairs, truncation=truncation, max_length=length, return_attention_mask=True)
            for row, number in enumerate(numbers):
                inputs[number] = {name: values[row] for name, values in encoded.items()}
    tokenizer.truncation_side = side
    return inputs


def collate(examples: list[dict], tokenizer: PreTrainedTokenizerBase, **padding: object) -> dict[str, torch.Tensor]:
    """A batch for the model: the tokenizer's inputs as (B, choices, T), and `labels` as (B,)."""
    names = examples[0].keys() - {"labels"}
    rows = [
        {name: example[name][choice] for name in names}
        for example in examples
        for choice in range(len(example["input_ids"]))
    ]
    padded = tokenizer.pad(rows, return_tensors="pt", **padding)
    batch = {name: tensor.unflatten(0, (len(examples), -1)) for name, tensor in padded.items()}
    if "labels" in examples[0]:
        batch["labels"] = torch.tensor([example["labels"] for example in examples])
    return batch
