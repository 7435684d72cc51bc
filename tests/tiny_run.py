"""A run on a model of a few hundred parameters: its arguments, its parts, and the whole of it."""

from dataclasses import dataclass
from pathlib import Path

import torch
from datasets import Dataset
from transformers import (
    AutoModelForSequenceClassification,
    DataCollatorWithPadding,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from training import launching, loading, loop
from training.arguments import RunArguments


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
    accelerator = launching.start(args)
    tokenizer = load_tokenizer(args)
    return accelerator, tokenizer, load_model(args, tokenizer=tokenizer), DataCollatorWithPadding(tokenizer)


def fit(args: RunArguments, data_set: Dataset, eval_sets: dict | None = None, metrics=None):
    """(results, trained model)"""
    accelerator, tokenizer, model, collate = prepare(args)
    results = loop.train(model, tokenizer, data_set, eval_sets or {}, collate, metrics, args, accelerator)
    return results, model


def weights(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def recipe(tmp_path: Path, text: str) -> str:
    path = tmp_path / "recipe.yaml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def checkpoint_names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("checkpoint-*"))
