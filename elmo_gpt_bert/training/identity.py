"""Tells whether a checkpoint or finished results belong to a run, and whether a run has finished.

A run's identity is a dictionary of its arguments and of digests of what it reads: the data, the tokenizer, and the
model that it begins with. No name or place of a file is in it, so that data may move, or be named another way.
metrics.json has it and, with the configuration, the progress.json of a checkpoint. A run and its continuation
have the same identity, except for a length and a schedule that change nothing up to the checkpoint.
"""

from __future__ import annotations

import contextlib
import dataclasses
import glob
import hashlib
import json
import re
from collections.abc import Container, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from accelerate import PartialState
from huggingface_hub import try_to_load_from_cache

from elmo_gpt_bert.training.arguments import AUTO, RunArguments, default_strategy
from elmo_gpt_bert.training.errors import InputError, MissingFileError
from elmo_gpt_bert.training.files import file_digest, is_path, read_json_object
from elmo_gpt_bert.training.optimization import learning_rates, samples_of_update
from elmo_gpt_bert.training.output_folder import DIVERGED, METRICS, adapted_model, loadable_files, tokenizer_of
from elmo_gpt_bert.training.results import read_record


if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedModel


# Arguments that may differ between a run and its continuation.
FREE = {"output_dir", "overwrite_output_dir", "resume", "trust_remote_code", "seeds", "max_restarts", "do_predict"}
FREE |= {"save_strategy", "save_steps", "save_total_limit", "logging_steps", "per_device_eval_batch_size"}
FREE |= {"report_to", "push_to_hub", "hub_model_id", "save_outputs", "hub_private_repo", "dataloader_num_workers"}
FREE |= {"state_cache", "ddp_timeout", "preprocessing_num_workers", "corpus_dir"}
# How an update is divided; `SAMPLES` is what counts.
FREE |= {"per_device_train_batch_size", "gradient_accumulation_steps", "gradient_checkpointing"}
FREE |= {"full_determinism"}  # what it changes is rounding
# Arguments that name files, whose content counts.
FILES = {"model_name_or_path", "tokenizer_name", "data_dir", "train_file", "validation_file", "test_file", "data_file"}
FILES |= {"dataset_name", "dataset_config_name", "ensemble", "metric_name"}
# Fields of a configuration that the states of its base model do not depend on.
UNRELATED = ("architectures", "auto_map", "dtype", "id2label", "label2id", "problem_type", "transformers_version")
# Fields of a configuration that no result depends on.
IGNORED_FIELDS = {"_name_or_path", "architectures", "auto_map", "dtype", "transformers_version"}
LENGTH = ("max_steps", "num_train_epochs")
SAMPLES = "samples of an update"  # of all processes
FINAL_LENGTH = "first update of the final length"  # of the rows of a language model
ENDS_EPOCH = "updates end with an epoch"
EPOCH_SAMPLES = "training samples of an epoch"  # behind "training data", which is named where the text is another
RATES = ("warmup_ratio", "warmup_steps", "decay_ratio")
PREDICTIONS = {"test data", "test data_mm", "max_predict_samples"}  # what only predictions depend on
MODEL, TOKENIZER, OUTPUTS = "initial model", "tokenizer", "outputs of the ensemble"
# The files with a run's identity, seen from its output folder or from a checkpoint of it.
RECORDS = (METRICS, "progress.json", "checkpoint-*/progress.json")
RECORDS += (f"seed-*/{METRICS}", f"seed-*/{DIVERGED}", "seed-*/checkpoint-*/progress.json")
# Among the files of a model folder, those of the tokenizer, and those of a checkpoint, ours or another trainer's, from
# which only training goes on.
TOKENIZER_FILES = re.compile(
    r".*(token|vocab|template|processor|characters|lexicon).*\.json|(vocab|merges|words).*\.txt|.*\.(jinja|model)"
    r"|tokenization_.*\.py",
    re.IGNORECASE,
)
TRAINING_STATE = re.compile(r"(optimizer|plan)\.safetensors|(optimizer|scheduler|scaler|training_args)\.(bin|pt)")


def run_identity(args: RunArguments, processes: int | None = None, absent: bool = False) -> dict[str, Any]:
    """The identity of a run: the arguments that its results depend on, and digests of the content of what it reads.

    processes: how many the run has; default: those of this one
    absent: whether data may be missing; they are then left out
    Raises FileNotFoundError if a file of the data is missing.
    """
    free = FREE | FILES | (set() if args.do_predict else PREDICTIONS)
    if not args.torch_compile:
        free |= {"torch_compile", "torch_compile_mode"}
    values = {name: value for name, value in dataclasses.asdict(args).items() if name not in free}
    values["eval_strategy"] = args.eval_strategy or default_strategy(args.eval_steps)
    values[SAMPLES] = samples_of_update(args, processes or PartialState().num_processes)
    models = dict.fromkeys([args.model_name_or_path, adapted_model(args.model_name_or_path)])  # two for an adapter
    contents = [_content_of(name, of_tokenizer=False) for name in models]
    values[MODEL] = contents[0] if len(contents) == 1 else " on ".join(map(str, contents))
    name = args.tokenizer_name or tokenizer_of(args.model_name_or_path)
    is_made = args.tokenizer_name is None and name.endswith(".json")
    values[TOKENIZER] = "made of the text" if is_made else _content_of(name, of_tokenizer=True)
    if args.ensemble is not None:
        folders = [Path(path) for name in args.ensemble.split(",") for path in sorted(glob.glob(name))]
        files = [file for folder in folders for file in sorted(folder.rglob("outputs-*.safetensors"))]
        values[OUTPUTS] = files_digest(files)
    try:
        for split, source in args.data_sources().items():
            values[data_name(split)] = source if isinstance(source, str) else files_digest(source)
    except MissingFileError:
        if not absent:
            raise
    return json.loads(json.dumps(values, default=str))


def data_name(split: str) -> str:
    """The name of a split's data in an identity, as errors show it: training data, validation data_mm."""
    name, _, part = split.partition("_")
    return f"{'training' if name == 'train' else name} data{part and '_' + part}"


def is_content(name: str) -> bool:
    """Whether a name in an identity is of a digest, and not of an argument."""
    return name in (MODEL, TOKENIZER, OUTPUTS) or " data" in name


def files_digest(files: Iterable[Path]) -> str:
    """A short digest of the contents of files, in their order. Each file is read once in a process."""
    return hashlib.sha256("".join(map(file_digest, files)).encode()).hexdigest()[:16]


def _content_of(name: str, of_tokenizer: bool) -> str | None:
    """A digest of what `from_pretrained` reads of a tokenizer, or of a model without it; None if there is nothing.

    A name on the Hub stands for itself, with the commit that is in the cache, if one is.
    """
    if Path(name).is_dir():
        files = [path for path in loadable_files(Path(name)) if not TRAINING_STATE.fullmatch(path.name)]
        files = [path for path in files if bool(TOKENIZER_FILES.fullmatch(path.name)) == of_tokenizer]
        content = json.dumps([[path.name, file_digest(path)] for path in files])
        return hashlib.sha256(content.encode()).hexdigest()[:16] if files else None
    if Path(name).is_file():
        return files_digest([Path(name)])
    if is_path(name):
        return None
    with contextlib.suppress(ValueError):  # no name on the Hub
        for file in ("config.json", "tokenizer_config.json"):
            if isinstance(path := try_to_load_from_cache(name, file), str):
                return f"{name}@{Path(path).parent.name}"
    return name


def recorded_identity(folder: Path) -> dict[str, Any]:
    """The identity of the run that wrote to a folder, or to a checkpoint; empty where no record of it can be read."""
    for path in (path for name in RECORDS for path in folder.glob(name)):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):  # damaged: others report it
            return dict(read_json_object(path)["identity"])
    return {}


def read_finished(folder: Path, args: RunArguments, absent: bool = False) -> dict[str, Any] | None:
    """The metrics.json of the run with these arguments if it has finished in the folder; None if none has.

    Raises ValueError, with what differs, for the results of another run. With `absent`, data and models that are not
    here are not compared. A precision `auto` stands for any.
    """
    record = read_record(folder)
    if not record:
        return None
    identity, saved = run_identity(args, absent=absent), record.get("identity", {})
    left_out = PREDICTIONS - (identity.keys() & saved.keys())
    left_out |= {name for name, value in identity.items() if value == AUTO}
    if absent:
        names = {None, args.model_name_or_path, args.tokenizer_name}  # of what is not here
        missing = {name for name in saved if is_content(name) and identity.get(name) in names}
        left_out |= {name for name in missing if "@" not in str(saved[name])}
    check_same(identity, saved, folder, left_out)
    return record


def check_same(identity: dict[str, Any], saved: dict[str, Any], path: Path, ignored: Iterable[str] = ()) -> None:
    """Raises ValueError if the identity `saved` in `path` is of another run; `ignored` names may differ."""
    name = first_difference(*({name: run[name] for name in run.keys() - {*ignored}} for run in (identity, saved)))
    if name is not None:
        product = "--per_device_train_batch_size x --gradient_accumulation_steps x processes"
        how = f" ({product})" if name == SAMPLES else ""
        raise InputError(
            f"{path} is of a run with {name} {saved.get(name)}, not {identity.get(name)}{how}: --resume "
            "continues the same run, another needs its own --output_dir"
        )


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

    A flag comes before the data, whose names have spaces, because it may be what changed them.
    A field of the configuration that only one of them has comes from another version of transformers, and is ignored.
    """
    names = {name for name in identity.keys() ^ saved.keys() if not name.startswith("config.")}
    names |= identity.keys() & saved.keys()
    different = [name for name in names if not _is_same(name, identity.get(name), saved.get(name))]
    return min(different, key=lambda name: (" " in name, name), default=None)


def _is_same(name: str, value: Any, saved: Any) -> bool:
    """Whether two values are equal. A name on the Hub of which no version is in the cache stands for any version."""
    values = [value, saved]
    if is_content(name) and all(isinstance(each, str) for each in values):
        versions = ["@" in each for each in values]
        if versions[0] != versions[1]:
            value, saved = (each.partition("@")[0] for each in values)
    return value == saved


def allowed_differences(identity: dict[str, Any], saved: dict[str, Any], checkpoint: Path, update: int) -> set[str]:
    """The names whose values may differ between a run and the identity saved in its `checkpoint` after `update`.

    Length and schedule may differ if both runs do the same up to `update`. Raises ValueError, with what to do instead,
    if they do not.
    """
    changed = [name for name in (*LENGTH, *RATES) if identity[name] != saved[name]]
    if not changed:
        return set()
    last = _last_common_update(identity, saved)
    if update > last:
        raise InputError(
            f"{checkpoint} is of a run with {changed[0]} {saved[changed[0]]}, not {identity[changed[0]]}, and both do "
            f"the same only up to update {last}: resume from a checkpoint up to there or, to train further, begin "
            f"another run with --model_name_or_path {checkpoint} and its own --output_dir"
        )
    return {*LENGTH, *RATES, FINAL_LENGTH, ENDS_EPOCH, "updates"}


def _last_common_update(identity: dict[str, Any], saved: dict[str, Any]) -> int:
    """The last update up to which two runs, of different lengths or schedules, do the same."""
    shorter, longer = sorted((identity, saved), key=lambda run: run["updates"])
    updates = shorter["updates"]
    rates, others = (learning_rates(SimpleNamespace(**run), run["updates"]) for run in (shorter, longer))
    last = next((update for update in range(updates) if rates(update) != others(update)), updates)
    if updates < longer["updates"] and (shorter is identity or _chose_at_its_end(shorter)):
        last = min(last, updates - 1)  # its end has an evaluation that the longer run does not make
    lengths = {run.get(FINAL_LENGTH, 0) for run in (shorter, longer)}
    return min([last, *filter(None, lengths)]) if len(lengths) > 1 else last


def _chose_at_its_end(run: dict[str, Any]) -> bool:
    """Whether the best model, or early stopping, depends on an evaluation that took place because the run ended."""
    chooses = run["load_best_model_at_end"] or run["early_stopping_patience"] is not None
    is_due = run["updates"] % run["eval_steps"] == 0 if run["eval_strategy"] == "steps" else run[ENDS_EPOCH]
    return chooses and not is_due


# Digests of data and models in memory


def digest(data_set: Dataset) -> str:
    """SHA-256 of the columns' names, types and values, in hexadecimal digits.

    It is the same for data in memory, on disk, or selected from a larger data set: `take` copies no bytes from outside
    a slice. Of structs and lists of a fixed length, it also counts bytes under missing values.
    """
    tables = data_set.with_format("arrow")
    content = hashlib.sha256(repr([(field.name, str(field.type)) for field in tables[:0].schema]).encode())
    for start in range(0, len(data_set), 1000):
        table = tables[start : start + 1000]
        for batch in table.take(np.arange(len(table))).combine_chunks().to_batches():
            content.update(batch.serialize())
    return content.hexdigest()


def model_digest(model: PreTrainedModel, leave_out: Container[str] = ()) -> str:
    """SHA-256 of the configuration and the weights, but those whose names are left out, in hexadecimal digits."""
    config = {name: value for name, value in model.config.to_dict().items() if name not in UNRELATED}
    content = hashlib.sha256(json.dumps(config, sort_keys=True, default=str).encode())
    for name, tensor in sorted(model.state_dict().items()):
        if name not in leave_out:
            content.update(name.encode())
            content.update(tensor.cpu().contiguous().view(-1).view(torch.uint8).numpy())
    return content.hexdigest()
