"""A run on a model of a few hundred parameters: its arguments, its parts, and the whole of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from accelerate import Accelerator
from datasets import Dataset, DatasetDict
from transformers import (
    AutoModelForSequenceClassification,
    DataCollatorWithPadding,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from elmo_gpt_bert.training import launching, loading, loop
from elmo_gpt_bert.training.arguments import RunArguments
from elmo_gpt_bert.training.batches import Collate
from elmo_gpt_bert.training.identity import run_identity
from elmo_gpt_bert.training.task import Compute, Description, Outputs, Task, predict


@dataclass(frozen=True, kw_only=True)
class Arguments(RunArguments):
    task_name: str | None = None


def load_config(args: RunArguments) -> PreTrainedConfig:
    """As a run does, of its --implementation."""
    launching.choose_implementation(args.implementation)
    return loading.load_config(args.source)


def load_tokenizer(args: RunArguments) -> PreTrainedTokenizerBase:
    """As a run does, of its --implementation."""
    launching.choose_implementation(args.implementation)
    return loading.load_tokenizer(args.source)


def load_model(
    args: RunArguments,
    auto_class: type = AutoModelForSequenceClassification,
    tokenizer: PreTrainedTokenizerBase | None = None,
    **head: object,
) -> PreTrainedModel:
    """As a run does, with other values of the configuration for its head."""
    if tokenizer is None:
        tokenizer = load_tokenizer(args)
    config = load_config(args)
    config.update(head)
    return loading.load_model(auto_class, args.source, config, tokenizer, train=args.do_train)


def prepare(args: RunArguments):
    """(accelerator, tokenizer, model, collate) of a run, the same weights each time."""
    accelerator = launching.make_accelerator(args)
    tokenizer = load_tokenizer(args)
    return accelerator, tokenizer, load_model(args, tokenizer=tokenizer), DataCollatorWithPadding(tokenizer)


@dataclass
class TinyTask(Task):
    """A task whose scores a test computes."""

    metrics: Callable[[Outputs, Dataset], dict[str, float]] | None

    def score(self, split: str, outputs: Outputs, predictions: Outputs) -> dict[str, float]:
        examples = self.features[split].select(range(len(outputs["logits"])))
        return self.metrics(outputs, examples)

    def write(self, split: str, predictions: Outputs) -> dict[str, str]:
        return {}


def tiny_task(
    data_set: Dataset, eval_sets: Mapping[str, Dataset] | None, collate: Collate, metrics=None, **parts: object
) -> TinyTask:
    """`eval_sets` by their suffix; `parts`: model and tokenizer."""
    features = {"train": data_set} | {f"validation{suffix}": each for suffix, each in (eval_sets or {}).items()}
    return TinyTask(
        DatasetDict(features),
        {},
        Description("text-classification", "tiny", "Tiny"),
        metrics,
        features=features,
        collate=collate,
        **parts,
    )


def computation(model: PreTrainedModel, collate: Collate, args: RunArguments, accelerator: Accelerator) -> Compute:
    return partial(
        predict,
        model,
        collate=collate,
        accelerator=accelerator,
        batch_size=args.per_device_eval_batch_size,
        one_shape=args.pad_to_max_length,
    )


def fit(args: RunArguments, data_set: Dataset, eval_sets: dict | None = None, metrics=None):
    """(results, trained model)"""
    accelerator, tokenizer, model, collate = prepare(args)
    task = tiny_task(data_set, eval_sets, collate, metrics, model=model, tokenizer=tokenizer)
    compute = computation(model, collate, args, accelerator)
    return loop.train(task, compute, args, accelerator, run_identity(args)).results, model


def weights(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def recipe(tmp_path: Path, text: str) -> str:
    path = tmp_path / "recipe.yaml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def checkpoint_names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("checkpoint-*"))
