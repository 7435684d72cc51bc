"""Tells whether a checkpoint or a finished seed belongs to a run.

A run's identity is a dictionary of its arguments, data and configuration. A run and its continuation have the same
identity, except for the length of a run that --resume makes longer.
"""

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

from elmo_gpt_bert.training.arguments import RunArguments
from elmo_gpt_bert.training.checksums import SHA256SUMS
from elmo_gpt_bert.training.errors import InputError
from elmo_gpt_bert.training.files import file_digest


# Arguments that may differ between a run and its continuation.
FREE = {"output_dir", "overwrite_output_dir", "resume", "trust_remote_code", "seeds", "max_restarts", "do_predict"}
FREE |= {"save_strategy", "save_steps", "save_total_limit", "logging_steps", "per_device_eval_batch_size"}
FREE |= {"report_to", "push_to_hub", "hub_model_id", "test_file", "max_predict_samples"}
FREE |= {"save_outputs", "hub_private_repo", "dataloader_num_workers", "state_cache", "window_cache", "ddp_timeout"}
# Fields of a configuration that no result depends on.
IGNORED_FIELDS = {"_name_or_path", "architectures", "auto_map", "dtype", "transformers_version"}
DATA_FILES = ("train_file", "validation_file", "test_file", "data_file")
LENGTH = ("max_steps", "num_train_epochs", "updates")
SAMPLES = "samples of an update"  # of all processes
FINAL_LENGTH = "first update of the final length"  # of the rows of a language model
RATES = ("warmup_ratio", "warmup_steps", "warm-up", "decay_ratio", "decay")


def run_digest(args: RunArguments, predicts: bool | None = None) -> str:
    """A digest of all arguments that the results depend on, and of the data files and the model that they name.

    The model's weights count where it has checksums, as each one that a run has saved. `predicts` takes the place of
    --do_predict: without predictions, the results depend on nothing of the test set.

    It stands in metrics.json. Unlike the arguments themselves, it shows no paths.
    """
    predicts = args.do_predict if predicts is None else predicts
    free = FREE - {"test_file", "max_predict_samples"}  # the predictions of a finished run depend on these
    values = {name: value for name, value in dataclasses.asdict(args).items() if name not in free}
    if not predicts:
        values |= dict.fromkeys({"test_file", "max_predict_samples"} & values.keys())
    model = Path(args.model_name_or_path)
    files = [model / "config.json", model / SHA256SUMS] if model.is_dir() else [model]
    files += [Path(values[name]) for name in DATA_FILES if values.get(name)]
    contents = [file_digest(path) for path in files if path.is_file()]
    return hashlib.sha256(json.dumps([values, contents], sort_keys=True).encode()).hexdigest()


def flatten_config(config: dict[str, Any], prefix: str = "config") -> dict[str, Any]:
    """The fields of a configuration as config.hidden_size, config.encoder.hidden_size, ..."""
    values = {}
    for name, value in config.items():
        if isinstance(value, dict) and "model_type" in value:
            values |= flatten_config(value, f"{prefix}.{name}")
        elif name not in IGNORED_FIELDS:
            values[f"{prefix}.{name}"] = value
    return values


def first_difference(identity: dict[str, Any], saved: dict[str, Any]) -> str | None:
    """The first name, in alphabetical order, whose values differ; None if both identities are of the same run.

    A field of the configuration that only one of them has comes from another version of transformers, and is ignored.
    """
    names = {name for name in identity.keys() ^ saved.keys() if not name.startswith("config.")}
    names |= identity.keys() & saved.keys()
    return min((name for name in names if identity.get(name) != saved.get(name)), default=None)


def allowed_differences(identity: dict[str, Any], saved: dict[str, Any], checkpoint: Path, update: int) -> set[str]:
    """The names whose values may differ between a run and the identity saved in its `checkpoint` after `update`.

    A run may have another length than the saved one if both do the same up to `update`: the learning rate must not
    depend on the last update. Raises ValueError, with what to do instead, if the length was changed and this is not
    so.
    """
    changed = [name for name in LENGTH[:2] if identity[name] != saved[name]]
    same_rates = all(identity.get(name) == saved.get(name) for name in ("warm-up", "decay"))
    if same_rates and identity["updates"] == saved["updates"]:
        return {*LENGTH, *RATES}  # other flags for the same length
    if not changed:
        return set()
    reason = _difference(identity, saved, update)
    if reason:
        raise InputError(
            f"{checkpoint} is of a run with {changed[0]} {saved[changed[0]]}, not {identity[changed[0]]}: {reason}. "
            f"To train further, begin another run with --model_name_or_path {checkpoint} and its own --output_dir"
        )
    return {*LENGTH, *RATES, FINAL_LENGTH}


def _difference(identity: dict[str, Any], saved: dict[str, Any], update: int) -> str | None:
    """What differs up to `update` between runs of different lengths with these identities; None if nothing does."""
    runs = (identity, saved)
    before = "resume from a checkpoint before it"
    if "decay" in identity and "decay" in saved:
        stable = min(run["updates"] - run["decay"] for run in runs)
        if update > stable:
            return f"in one of them the learning rate falls after update {stable}; {before}"
    elif identity["updates"] < saved["updates"]:
        return f"that run has {saved['updates']} updates, and can only be resumed with as many or more"
    elif not identity["lr_scheduler_type"].startswith("constant"):
        scheduler = identity["lr_scheduler_type"]
        return f"with --lr_scheduler_type {scheduler} the learning rate depends on the last update"
    if identity["warm-up"] != saved["warm-up"]:
        return f"its warm-up has {saved['warm-up']} updates, not {identity['warm-up']}; --warmup_steps sets it"
    first = min((run[FINAL_LENGTH] for run in runs if run.get(FINAL_LENGTH)), default=update)
    if update > first:
        return f"in one of them --final_seq_length begins after update {first}; {before}"
    if update == saved["updates"] and _chose_at_its_end(saved):
        return f"it evaluated its model after update {update}, its last, where a longer run does not"
    return None


def _chose_at_its_end(run: dict[str, Any]) -> bool:
    """Whether the best model, or early stopping, depends on an evaluation that took place because the run ended."""
    chooses = run["load_best_model_at_end"] or run["early_stopping_patience"] is not None
    unit = run["eval_steps"] if run["eval_strategy"] == "steps" else run["updates an epoch"]
    return chooses and run["updates"] % unit != 0
