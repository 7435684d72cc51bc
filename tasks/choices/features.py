"""A context and choices -> inputs of a model: each choice is the second of two texts, after the context."""

from collections.abc import Mapping
from functools import partial
from itertools import chain

import numpy as np
import torch
from datasets import DatasetDict
from transformers import PreTrainedTokenizerBase

from training.samples import first_examples


def make_features(
    data: DatasetDict, tokenizer: PreTrainedTokenizerBase, *, length: int, limits: Mapping[str, int | None]
) -> DatasetDict:
    """The features of each split, of at most `length` tokens a choice, for its first examples up to its limit."""
    convert = partial(featurize, tokenizer=tokenizer, length=length)
    features = DatasetDict()
    for split, chosen in first_examples(data, limits).items():
        features[split] = chosen.map(convert, batched=True, remove_columns=chosen.column_names, keep_in_memory=True)
    return features


def featurize(batch: dict[str, list], tokenizer: PreTrainedTokenizerBase, length: int) -> dict[str, list]:
    """For each example its inputs, each a list with one list a choice, and `labels`, the number of the right one."""
    contexts = [context for context, choices in zip(batch["context"], batch["choices"], strict=True) for _ in choices]
    rows = iter(encode(contexts, list(chain(*batch["choices"])), tokenizer, length))
    grouped = [[next(rows) for _ in choices] for choices in batch["choices"]]
    features = {name: [[row[name] for row in group] for group in grouped] for name in grouped[0][0]}
    return features | ({"labels": batch["label"]} if "label" in batch else {})


def encode(
    contexts: list[str], choices: list[str], tokenizer: PreTrainedTokenizerBase, length: int
) -> list[dict[str, list]]:
    """The inputs of each pair, of at most `length` tokens.

    The beginning of the context gives way. Where a choice leaves no room for it, the beginning of the longer text does
    until both are equally long.
    """
    room = length - tokenizer.num_special_tokens_to_add(pair=True)
    short = np.array([len(ids) < room for ids in tokenizer(choices, add_special_tokens=False)["input_ids"]])
    inputs: list[dict[str, list]] = [{} for _ in choices]
    side, tokenizer.truncation_side = tokenizer.truncation_side, "left"
    for truncation, chosen in (("only_first", short), ("longest_first", ~short)):
        numbers = np.flatnonzero(chosen).tolist()
        if numbers:
            pairs = [contexts[number] for number in numbers], [choices[number] for number in numbers]
            encoded = tokenizer(*pairs, truncation=truncation, max_length=length, return_attention_mask=True)
            for row, number in enumerate(numbers):
                inputs[number] = {name: values[row] for name, values in encoded.items()}
    tokenizer.truncation_side = side
    return inputs


def collate(examples: list[dict], tokenizer: PreTrainedTokenizerBase, **padding: object) -> dict[str, torch.Tensor]:
    """A batch for the model: what the tokenizer gave as (B, choices, T), `labels` as (B,)."""
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
