"""Keeps the number of samples in an update when a run goes on with another number of processes.

OUTPUT_DIR/.batch.json    --per_device_train_batch_size and --gradient_accumulation_steps as they were when the run
                          began, and the number of processes that it had then; until the run is complete
"""

import dataclasses
import math
from pathlib import Path
from typing import Any, TypeVar

from accelerate import PartialState

from elmo_gpt_bert.training.arguments import RunArguments
from elmo_gpt_bert.training.errors import InputError
from elmo_gpt_bert.training.files import read_json_object, write_json
from elmo_gpt_bert.training.optimization import samples_of_update
from elmo_gpt_bert.training.output_folder import BATCH, CHECKPOINT, SEED, matching_folders
from elmo_gpt_bert.training.processes import on_main


SIZES = ("per_device_train_batch_size", "gradient_accumulation_steps")
Arguments = TypeVar("Arguments", bound=RunArguments)


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
