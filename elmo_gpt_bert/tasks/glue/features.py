"""One or two texts and their label -> the inputs of a classifier."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from accelerate import PartialState

from elmo_gpt_bert.tasks.features import map_examples
from elmo_gpt_bert.tasks.glue.table import DIAGNOSTICS, GlueTask
from elmo_gpt_bert.tasks.language_models import report_known_words
from elmo_gpt_bert.training.errors import InputError


if TYPE_CHECKING:
    from datasets import DatasetDict
    from transformers import PreTrainedConfig, PreTrainedTokenizerBase


def class_names(task: GlueTask, config: PreTrainedConfig, *, train: bool, model_name: str) -> list[str]:
    """The task's classes in the order of the model's outputs: the model's order if it names them, else the task's.

    Case, spaces, hyphens and underscores of the model's names do not matter (ENTAILMENT, "not equivalent"), unless the
    task has names that differ in these alone. Errors call the model `model_name`.

    Raises:
        ValueError: when the model is not to `train`, but has the classes of another task.
    """
    if sorted(config.id2label) != list(range(config.num_labels)):
        raise InputError(f"{model_name}: id2label must number the classes from 0: {config.id2label}")
    names = [config.id2label[number] for number in range(config.num_labels)]
    if not task.classes and len(names) == 1:  # a regression, whatever its output is called
        return []
    if sorted(names) == sorted(task.classes):
        return names
    spelling = {_plain(name): name for name in task.classes}
    if sorted(map(_plain, names)) == sorted(spelling) and len(spelling) == len(task.classes):
        return [spelling[_plain(name)] for name in names]
    unnamed = names == [f"LABEL_{number}" for number in range(len(task.classes))]
    if unnamed and not train:
        PartialState().print(
            f"{model_name} does not name its classes: they are taken for {', '.join(task.classes)}, in this order"
        )
    if train or unnamed:
        return list(task.classes)
    outputs = f"tells {', '.join(names)} apart" if len(names) > 1 else "predicts a number"
    wanted = ", ".join(task.classes) or "a regression"
    remedy = f"train it on {'mnli' if task in DIAGNOSTICS.values() else 'this task'} first"
    raise InputError(f"{model_name} {outputs}, but the task is {wanted}: {remedy}")


def _plain(name: str) -> str:
    """The name without differences of case, spaces, hyphens and underscores."""
    return re.sub(r"[\s_-]+", "_", name.strip().lower())


def make_features(
    data: DatasetDict,
    tokenizer: PreTrainedTokenizerBase,
    names: list[str],
    *,
    length: int,
    limits: Mapping[str, int | None],
) -> DatasetDict:
    """The features, of at most `length` tokens each, of the first examples of each split, up to its limit.

    `names` are the labels that the model's outputs stand for.
    """
    for split, examples in data.items():
        texts = [examples[name] for name in ("text", "text_pair") if name in examples.column_names]
        report_known_words(split, chain.from_iterable(zip(*texts, strict=True)), tokenizer)
    return map_examples(data, partial(featurize, tokenizer=tokenizer, names=names, length=length), limits)


def featurize(batch: dict[str, list], tokenizer: PreTrainedTokenizerBase, names: list[str], length: int) -> dict:
    """The tokenizer's inputs, and `labels`: the first place of a label in `names` or, in a regression, its value."""
    features = dict(tokenizer(batch["text"], batch.get("text_pair"), truncation=True, max_length=length))
    if "label" in batch:
        features["labels"] = [names.index(label) if names else label for label in batch["label"]]
    return features
