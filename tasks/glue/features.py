"""One or two texts and their label -> inputs of a classifier."""

import re
from collections.abc import Mapping
from functools import partial

from accelerate import PartialState
from datasets import DatasetDict
from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from tasks.glue.table import DIAGNOSTICS, GlueTask
from training.errors import InputError
from training.samples import first_examples


def class_names(task: GlueTask, config: PreTrainedConfig, *, train: bool, model_name: str) -> list[str]:
    """The task's classes in the order of the model's outputs: the checkpoint's if it knows them, else the task's.

    ENTAILMENT is entailment, and "not equivalent" is not_equivalent: unless the task itself tells such names apart.
    Raises ValueError where a model, which errors call `model_name`, is not to `train` and is of another task.
    """
    if sorted(config.id2label) != list(range(config.num_labels)):
        raise InputError(f"{model_name}: id2label must number the classes from 0: {config.id2label}")
    names = [config.id2label[number] for number in range(config.num_labels)]
    if sorted(names) == sorted(task.classes):
        return names
    spelling = {_plain(name): name for name in task.classes}
    if sorted(map(_plain, names)) == sorted(spelling) and len(spelling) == len(task.classes):
        return [spelling[_plain(name)] for name in names]
    unnamed = names == [f"LABEL_{number}" for number in range(len(task.classes) or 1)]
    if unnamed and task.classes and not train:
        PartialState().print(
            f"{model_name} does not name its classes: taken for {', '.join(task.classes)}, in this order"
        )
    if train or unnamed:
        return list(task.classes)
    knows = f"tells {', '.join(names)} apart" if len(names) > 1 else "predicts a number"
    wanted = ", ".join(task.classes) or "a regression"
    remedy = f"train it on {'mnli' if task in DIAGNOSTICS.values() else 'this task'} first"
    raise InputError(f"{model_name} {knows}, but the task is {wanted}: {remedy}")


def _plain(name: str) -> str:
    return re.sub(r"[\s_-]+", "_", name.strip().lower())


def make_features(
    data: DatasetDict,
    tokenizer: PreTrainedTokenizerBase,
    names: list[str],
    *,
    length: int,
    limits: Mapping[str, int | None],
) -> DatasetDict:
    """The features of each split, of at most `length` tokens, for its first examples up to its limit.

    `names` are the labels behind the model's outputs.
    """
    convert = partial(featurize, tokenizer=tokenizer, names=names, length=length)
    features = DatasetDict()
    for split, chosen in first_examples(data, limits).items():
        features[split] = chosen.map(convert, batched=True, remove_columns=chosen.column_names, keep_in_memory=True)
    return features


def featurize(batch: dict[str, list], tokenizer: PreTrainedTokenizerBase, names: list[str], length: int) -> dict:
    """Token ids, and `labels` as the first number that stands for them in `names` or, without names, as they are."""
    features = dict(tokenizer(batch["text"], batch.get("text_pair"), truncation=True, max_length=length))
    if "label" in batch:
        features["labels"] = [names.index(label) if names else label for label in batch["label"]]
    return features
