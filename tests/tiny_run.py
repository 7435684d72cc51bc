"""A run on a model of a few hundred parameters: its arguments, its parts, and the whole of it."""

from dataclasses import dataclass
from pathlib import Path

import torch
from datasets import Dataset
from transformers import AutoModelForSequenceClassification, DataCollatorWithPadding

from training import launching, loading, loop
from training.arguments import RunArguments


@dataclass(frozen=True, kw_only=True)
class Arguments(RunArguments):
    task_name: str | None = None


def prepare(args: RunArguments):
    """(accelerator, tokenizer, model, collate) of a run, the same weights each time."""
    accelerator = launching.start(args)
    tokenizer = loading.load_tokenizer(args)
    model = loading.load_model(AutoModelForSequenceClassification, args, tokenizer)
    return accelerator, tokenizer, model, DataCollatorWithPadding(tokenizer)


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
