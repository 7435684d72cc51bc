"""Which run a checkpoint or a finished seed is of, and what may differ between a run and its continuation."""

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

from training.arguments import RunArguments
from training.errors import InputError
from training.files import file_digest


# What may differ between a run and its continuation.
FREE = {"output_dir", "overwrite_output_dir", "resume", "trust_remote_code", "seeds", "max_restarts", "do_predict"}
FREE |= {"save_strategy", "save_steps", "save_total_limit", "logging_steps", "per_device_eval_batch_size"}
FREE |= {"report_to", "push_to_hub", "hub_model_id", "test_file", "max_predict_samples"}
FREE |= {"save_outputs", "hub_private_repo", "dataloader_num_workers", "state_cache", "window_cache"}
# Fields of a configuration that no result depends on.
UNUSED = {"_name_or_path", "architectures", "auto_map", "dtype", "transformers_version"}
LENGTH = ("max_steps", "num_train_epochs", "updates")
WARM_UP = ("warmup_ratio", "warmup_steps", "warm-up")


def identity(args: RunArguments) -> str:
    """Tells the arguments that decide a run's results, and the data files and the configuration that they name, from
    any others, without showing what metrics.json does not.
    """
    free = FREE - {"test_file", "max_predict_samples"}  # a finished seed keeps its predictions
    values = {name: value for name, value in dataclasses.asdict(args).items() if name not in free}
    model = Path(args.model_name_or_path)
    files = [model / "config.json" if model.is_dir() else model]
    files += [Path(values[name]) for name in ("train_file", "validation_file", "test_file") if values.get(name)]
    contents = [file_digest(path) for path in files if path.is_file()]
    return hashlib.sha256(json.dumps([values, contents], sort_keys=True).encode()).hexdigest()


def settings(config: dict[str, Any], prefix: str = "config") -> dict[str, Any]:
    """What a configuration says of its model, under names like config.hidden_size, config.encoder.hidden_size."""
    values = {}
    for name, value in config.items():
        if isinstance(value, dict) and "model_type" in value:
            values |= settings(value, f"{prefix}.{name}")
        elif name not in UNUSED:
            values[f"{prefix}.{name}"] = value
    return values


def difference(ours: dict[str, Any], theirs: dict[str, Any]) -> str | None:
    """The first name with different values; None where both are of the same run.

    A field of the configuration that only one of them has is of another version of transformers.
    """
    names = {name for name in ours.keys() ^ theirs.keys() if not name.startswith("config.")}
    names |= {name for name in ours.keys() & theirs.keys() if ours[name] != theirs[name]}
    return min(names, default=None)


def may_differ(ours: dict[str, Any], theirs: dict[str, Any], checkpoint: Path, update: int) -> set[str]:
    """What of their identities may differ between a run and the longer one that goes on from its `checkpoint`.

    A run may be longer where it has done until `update` what the longer one would have done: its learning rate does
    not depend on its end. Raises ValueError, with what to do instead, where another length was asked for in vain.
    """
    changed = [name for name in LENGTH[:2] if ours[name] != theirs.get(name)]
    same_warm_up = ours["warm-up"] == theirs.get("warm-up")
    if same_warm_up and ours["updates"] == theirs["updates"]:
        return {*LENGTH, *WARM_UP}  # the same in other words
    if not changed or "updates" not in theirs:
        return set()
    reason = None
    if ours["updates"] < theirs["updates"]:
        reason = f"that run has {theirs['updates']} updates, and goes on to as many or more"
    elif not ours["lr_scheduler_type"].startswith("constant"):
        reason = f"with --lr_scheduler_type {ours['lr_scheduler_type']} the learning rate depends on the last update"
    elif not same_warm_up:
        reason = f"its warm-up has {theirs['warm-up']} updates, not {ours['warm-up']}; --warmup_steps keeps it"
    elif update == theirs["updates"] and _chose_at_its_end(theirs):
        reason = f"it chose among models after update {update}, its last, where a longer run evaluates none"
    if reason:
        raise InputError(
            f"{checkpoint} is of a run with {changed[0]} {theirs[changed[0]]}, not {ours[changed[0]]}: {reason}. To "
            f"train on from there, begin another run with --model_name_or_path {checkpoint} and its own --output_dir"
        )
    return {*LENGTH, *WARM_UP}


def _chose_at_its_end(run: dict[str, Any]) -> bool:
    """Whether the best model, or early stopping, depends on an evaluation that took place because the run ended."""
    chooses = run["load_best_model_at_end"] or run["early_stopping_patience"] is not None
    by_steps = run["eval_strategy"] == "steps" or (run["eval_strategy"] is None and run["eval_steps"] is not None)
    return chooses and run["updates"] % (run["eval_steps"] if by_steps else run["updates an epoch"]) != 0
