"""Fits the arguments of a run to this machine: its precision, and its batches when a run goes on there.

`auto` in --mixed_precision and --matmul_precision stands for what the GPU can do. And an update keeps its number of
samples when a run goes on with another number of processes:

OUTPUT_DIR/.batch.json    --per_device_train_batch_size and --gradient_accumulation_steps as they were when the run
                          began, and the number of processes that it had then; until the run is complete
"""

import contextlib
import dataclasses
import math
import os
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from accelerate import PartialState
from transformers import PreTrainedConfig

from elmo_gpt_bert.training.arguments import AUTO, RunArguments
from elmo_gpt_bert.training.errors import InputError
from elmo_gpt_bert.training.files import read_json_object, write_json
from elmo_gpt_bert.training.optimization import samples_of_update
from elmo_gpt_bert.training.output_folder import BATCH, CHECKPOINT, DIVERGED, METRICS, SEED, matching_folders
from elmo_gpt_bert.training.processes import on_main


Arguments = TypeVar("Arguments", bound=RunArguments)
Precision = dict[str, str]  # by the names of the flags

FLOAT32: Precision = {"mixed_precision": "no", "matmul_precision": "highest"}
BFLOAT16: Precision = {"mixed_precision": "bf16", "matmul_precision": "high"}
# The files with a run's identity, seen from its output folder or from a checkpoint of it.
RECORDS = (METRICS, "progress.json", "checkpoint-*/progress.json")
RECORDS += (f"seed-*/{METRICS}", f"seed-*/{DIVERGED}", "seed-*/checkpoint-*/progress.json")
SIZES = ("per_device_train_batch_size", "gradient_accumulation_steps")


# Precision


def choose_precision(args: Arguments) -> Arguments:
    """The arguments with a precision in place of `auto`; a line on the console says where it is not float32.

    A run that --resume continues keeps its precision, unless the launcher was told one. On a GPU that computes in
    bfloat16, a run that trains takes bf16, and one that only evaluates takes what the run of its model recorded. ELMo
    stays in float32, because its scores in bf16 have not been measured. Every process must call it.
    """
    precision, reason = on_main(partial(_choose, args))
    changes = {name: value for name, value in precision.items() if getattr(args, name) == AUTO}
    name = changes.get("mixed_precision", "no")
    if name != "no":
        PartialState().print(f"--mixed_precision auto: {name}, as {reason}; --mixed_precision no computes in float32")
    return dataclasses.replace(args, **changes)


def _choose(args: RunArguments) -> tuple[Precision, str]:
    """The precision that `auto` stands for, and a reason."""
    saved = _recorded(Path(args.output_dir)) if args.resume and args.do_train else {}
    launched = os.environ.get("ACCELERATE_MIXED_PRECISION")
    if launched in ("fp16", "bf16"):
        return FLOAT32 | saved | {"mixed_precision": launched}, "the launcher was told"
    if saved:
        return FLOAT32 | saved, f"the run in {args.output_dir} began"
    gpu = _gpu_with_bfloat16()
    if gpu is None or args.mixed_precision != AUTO:
        return FLOAT32, ""
    if not args.do_train:
        return FLOAT32 | _recorded(Path(args.model_name_or_path)), f"the run of {args.model_name_or_path} computed"
    return (FLOAT32, "") if _is_elmo(args.model_name_or_path) else (BFLOAT16, f"the GPU {gpu} has it")


def _recorded(folder: Path) -> Precision:
    """The precision of the run that wrote to a folder; empty where no record of it can be read."""
    for path in (path for name in RECORDS for path in folder.glob(name)):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):  # damaged: others report it
            identity = read_json_object(path)["identity"]
            return {name: identity[name] for name in FLOAT32}
    return {}


def _gpu_with_bfloat16() -> str | None:
    """The name of this process's GPU if it computes in bfloat16; None on other devices."""
    device = PartialState().device
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < (8, 0):
        return None
    return torch.cuda.get_device_name(device)


def _is_elmo(name: str) -> bool:
    """Whether a model is of the family of ELMo, by its configuration alone."""
    with contextlib.suppress(Exception):  # `load_config` reports what is wrong with it
        return PreTrainedConfig.get_config_dict(name)[0]["model_type"] == "elmo"
    return False


# Batches


def keep_global_batch(args: Arguments) -> Arguments:
    """The arguments with which this number of processes makes the same updates as the run that --resume continues.

    A launcher that restarts a run on fewer machines, or on more, repeats its flags. If they are those that the run
    began with, batch size and accumulation are adapted to the processes. Other flags are left as they are, and
    --resume compares the samples of an update. Every process must call it. Raises ValueError if the processes cannot
    share the samples equally.
    """
    state, path = PartialState(), Path(args.output_dir, BATCH)
    sizes = {name: getattr(args, name) for name in SIZES}
    began = on_main(lambda: read_json_object(path) if args.resume and path.is_file() else {})
    if {name: began.get(name) for name in SIZES} == sizes and began["processes"] != state.num_processes:
        return _adapted(args, began["processes"], state)
    if state.is_main_process and args.do_train and not (args.resume and _has_progress(path.parent)):
        write_batch(path.parent, args, state.num_processes)
    return args


def write_batch(output: Path, args: RunArguments, processes: int = 1) -> None:
    """Writes to the folder that its run began with these arguments in so many processes.

    A run that then starts there with --resume and other processes makes the same updates.
    """
    output.mkdir(parents=True, exist_ok=True)
    write_json(output / BATCH, {name: getattr(args, name) for name in SIZES} | {"processes": processes})


def forget_global_batch(args: RunArguments) -> None:
    """Removes what `keep_global_batch` wrote: the run is complete."""
    if PartialState().is_main_process:
        Path(args.output_dir, BATCH).unlink(missing_ok=True)


def _has_progress(output: Path) -> bool:
    return bool(matching_folders(output, CHECKPOINT) or matching_folders(output, SEED))


def _adapted(args: Arguments, began: int, state: PartialState) -> Arguments:
    """The arguments of a run that `began` with another number of processes. Prints what was adapted."""
    samples, processes = samples_of_update(args, began), state.num_processes
    if samples % processes:
        raise InputError(
            f"the run began with {began} processes and {samples} examples in an update, which {processes} processes "
            "cannot share equally: start another number of processes"
        )
    batch, accumulation = share(samples // processes, args.per_device_train_batch_size)
    changes: dict[str, Any] = dict(zip(SIZES, (batch, accumulation), strict=True))
    flags = " ".join(f"--{name} {value}" for name, value in changes.items())
    state.print(f"the run began with {began} processes, now {processes}: {flags} keep {samples} examples in an update")
    return dataclasses.replace(args, **changes)


def share(samples: int, largest: int) -> tuple[int, int]:
    """(batch size, accumulation steps) for so many samples of one process, in batches of at most the `largest` size.

    Of the possible batches it is the largest, so that an update has as few of them as possible.
    """
    steps = next(steps for steps in range(math.ceil(samples / largest), samples + 1) if samples % steps == 0)
    return samples // steps, steps
