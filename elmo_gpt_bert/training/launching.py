"""Prepares a run on this machine: output folder, Accelerator, precision, and the batches when a run goes on there.

`auto` in --mixed_precision and --matmul_precision stands for what the GPU can do. A run that goes on keeps its
precision, which its records say, and the number of samples of an update with another number of processes:

OUTPUT_DIR/.batch.json    --per_device_train_batch_size and --gradient_accumulation_steps as they were when the run
                          began, and the number of processes that it had then; until the run is complete
"""

import contextlib
import dataclasses
import gc
import importlib
import math
import os
import sys
from collections.abc import Iterator
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
import transformers
from accelerate import Accelerator, DistributedType, PartialState
from accelerate.utils import set_seed
from transformers import PreTrainedConfig

from elmo_gpt_bert.training import output_folder
from elmo_gpt_bert.training.arguments import AUTO, RunArguments
from elmo_gpt_bert.training.errors import ExistingFileError, FolderInUseError, InputError
from elmo_gpt_bert.training.files import acquire_lock, read_json_object, write_json, writing
from elmo_gpt_bert.training.identity import recorded_identity
from elmo_gpt_bert.training.log import trackers_of
from elmo_gpt_bert.training.optimization import samples_of_update
from elmo_gpt_bert.training.processes import check_shared, on_main


CHOOSE = "Choose another --output_dir"

Arguments = TypeVar("Arguments", bound=RunArguments)

# The folder above that of the first of several seeds. Its earlier files go when that seed begins.
_folder_of_seeds: ContextVar[Path | None] = ContextVar("_folder_of_seeds", default=None)


@contextlib.contextmanager
def lock_output_folder(args: RunArguments) -> Iterator[None]:
    """Locks the output folder within the context, so that no other run writes to it.

    Every process must call it. It raises FileExistsError on all of them if the folder is not empty and neither
    --resume nor --overwrite_output_dir is given, BlockingIOError if another run is writing to it, OSError if it cannot
    be written to, and ValueError if a machine does not see it.
    """
    output = Path(args.output_dir)
    with contextlib.ExitStack() as run:
        on_main(lambda: run.enter_context(_locked(output, args)))
        check_shared(output, "--output_dir")
        yield


@contextlib.contextmanager
def _locked(output: Path, args: RunArguments) -> Iterator[None]:
    """Checks and locks the folder, in the main process."""
    with writing(output, CHOOSE):
        has_files = output.is_dir() and not all(map(_is_bookkeeping, output.iterdir()))
    if has_files and not (args.overwrite_output_dir or args.resume):
        resume = "" if args.only_evaluates else " --resume the run in it,"
        raise ExistingFileError(
            f"--output_dir {output} exists and is not empty: choose another,{resume} or --overwrite_output_dir"
        )
    is_new = not output.exists()
    try:
        with locked(output):
            yield
    finally:
        if is_new and output.is_dir() and all(map(_is_bookkeeping, output.iterdir())):  # it failed early
            for path in output.iterdir():
                path.unlink()
            output.rmdir()


def _is_bookkeeping(path: Path) -> bool:
    """Whether a file in the output folder is of no use without others: a lock, as of a corpus, or a note of a run."""
    return path.name == output_folder.BATCH or path.name.endswith(".lock")


@contextlib.contextmanager
def locked(output: Path) -> Iterator[None]:
    """Makes the folder, and locks it within the context. Raises BlockingIOError if another run is writing to it."""
    in_use = FolderInUseError(f"another run is writing to --output_dir {output}: choose another")
    with writing(output, CHOOSE):
        output.mkdir(parents=True, exist_ok=True)
        lock = acquire_lock(output, in_use)
    try:
        yield
    finally:
        (output / ".lock").unlink(missing_ok=True)
        lock.release()


def make_accelerator(args: RunArguments) -> Accelerator:
    """Prepares this process for a run with the models of its --implementation, and returns its Accelerator.

    The arguments have a precision, as `choose_precision` returns them, not `auto`.
    Raises ValueError for a precision that the processor does not have, or for an option of the launcher that the run
    has to get instead, and ImportError for a tracker that is not installed.
    """
    # Every run needs these imports, and --help does not. What they make is no garbage, but the collector would look
    # through all of it again and again, for half a second.
    gc.disable()
    importlib.import_module("transformers.modeling_utils")
    importlib.import_module("datasets").disable_progress_bars()
    gc.enable()
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    torch.set_float32_matmul_precision(args.matmul_precision)
    accelerator = Accelerator(mixed_precision=args.mixed_precision, log_with=trackers_of(args) or None)
    _check_launcher(args, accelerator)
    if args.mixed_precision == "fp16" and accelerator.device.type == "cpu":  # accelerate would compute in float32
        raise InputError("--mixed_precision fp16 needs a GPU: on CPU use bf16 or no")
    choose_implementation(args.implementation)
    set_seed(args.seed)
    if args.full_determinism:
        transformers.enable_full_determinism(args.seed)
    return accelerator


def choose_implementation(name: Literal["zoo", "transformers"]) -> None:
    """Makes the Auto classes find the zoo's models, or transformers' own, in this process."""
    if name == "zoo":
        import modeling

        modeling.register()
    elif "modeling" in sys.modules:
        sys.modules["modeling"].unregister()


def _check_launcher(args: RunArguments, accelerator: Accelerator) -> None:
    """Raises ValueError if the launcher's flags or file have an option that only the run's flags can set, or if it
    starts processes in a way in which compiled layers have not been tried.
    """
    if args.torch_compile and accelerator.distributed_type in (DistributedType.FSDP, DistributedType.XLA):
        kind = accelerator.distributed_type.value
        raise InputError(f"--torch_compile is for one process, or several with DDP, and not for {kind}: leave it out")
    precision = os.environ.get("ACCELERATE_MIXED_PRECISION", "no")
    if precision not in ("no", args.mixed_precision):
        raise InputError(
            f"the launcher was told mixed_precision {precision}, the run {args.mixed_precision}: give "
            f"--mixed_precision {precision} to the run, which records it, or leave it out of the launcher's file"
        )
    if accelerator.gradient_accumulation_steps > 1:
        raise InputError(
            f"the launcher was told gradient_accumulation_steps {accelerator.gradient_accumulation_steps}: give "
            "--gradient_accumulation_steps to the run instead, which weighs every example of an update equally"
        )


@contextlib.contextmanager
def first_of_seeds(folder: Path) -> Iterator[None]:
    """Within the context, `remove_earlier_results` also removes those in `folder`, which holds the seeds' folders."""
    token = _folder_of_seeds.set(folder)
    try:
        yield
    finally:
        _folder_of_seeds.reset(token)


def remove_earlier_results(args: RunArguments, accelerator: Accelerator) -> None:
    """Removes an earlier run's scores, predictions and saved outputs and, before a new training, its checkpoints.

    Otherwise they would look like files of the new run. Call it when no check can refuse the run any more, so that a
    wrong flag costs no results. The earlier model and its card stay until new ones replace them.
    """
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        output = Path(args.output_dir)
        kinds = output_folder.SEED, output_folder.CHECKPOINT, output_folder.HALF_WRITTEN
        if (above := _folder_of_seeds.get()) is not None:
            output_folder.remove_results(above, *kinds, keep=output)
            output_folder.remove_curves(above)
        output_folder.remove_results(output, *(kinds if args.do_train and not args.resume else ()))


# Precision


Precision = dict[str, str]  # by the names of the flags

FLOAT32: Precision = {"mixed_precision": "no", "matmul_precision": "highest"}
BFLOAT16: Precision = {"mixed_precision": "bf16", "matmul_precision": "high"}


def choose_precision(args: Arguments) -> Arguments:
    """The arguments with a precision in place of `auto`; a line on the console says where it is not float32.

    A run that --resume continues keeps its precision, unless the launcher was told one. On a GPU that computes in
    bfloat16, a run that trains takes bf16, and one that only evaluates takes what the run of its model recorded. ELMo
    stays in float32, because its scores in bf16 have not been measured. On a processor that only imitates bfloat16, a
    line says what else to give. Every process must call it.
    """
    precision, reason = on_main(partial(_choose, args))
    changes = {name: value for name, value in precision.items() if getattr(args, name) == AUTO}
    name = changes.get("mixed_precision", "no")
    if name != "no":
        PartialState().print(f"--mixed_precision auto: {name}, as {reason}; --mixed_precision no computes in float32")
    args = dataclasses.replace(args, **changes)
    if args.mixed_precision == "bf16" and PartialState().device.type == "cpu" and not _cpu_has_bfloat16():
        PartialState().print(
            "--mixed_precision bf16: this processor imitates bfloat16, and an update takes up to ten times as long as "
            "in float32, which --mixed_precision no computes in"
        )
    return args


def _choose(args: RunArguments) -> tuple[Precision, str]:
    """The precision that `auto` stands for, and a reason."""
    saved = _precision_of(args.output_dir) if args.resume and args.do_train else {}
    launched = os.environ.get("ACCELERATE_MIXED_PRECISION")
    if launched in ("fp16", "bf16"):
        return FLOAT32 | saved | {"mixed_precision": launched}, "the launcher was told"
    if saved:
        return FLOAT32 | saved, f"the run in {args.output_dir} began"
    gpu = _gpu_with_bfloat16()
    if gpu is None or args.mixed_precision != AUTO:
        return FLOAT32, ""
    if not args.do_train:
        return FLOAT32 | _precision_of(args.model_name_or_path), f"the run of {args.model_name_or_path} computed"
    return (FLOAT32, "") if _is_elmo(args.model_name_or_path) else (BFLOAT16, f"the GPU {gpu} has it")


def _precision_of(folder: str) -> Precision:
    """The precision of the run that wrote to a folder; empty where no record of it can be read."""
    identity = recorded_identity(Path(folder))
    return {name: identity[name] for name in FLOAT32 if name in identity}


def _cpu_has_bfloat16() -> bool:
    """Whether products in bfloat16 are not slower than in float32, as far as torch tells; AVX2 alone imitates them."""
    return not torch.backends.mkldnn.is_available() or torch.ops.mkldnn._is_mkldnn_bf16_supported()


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


SIZES = ("per_device_train_batch_size", "gradient_accumulation_steps")


def keep_global_batch(args: Arguments) -> Arguments:
    """The arguments with which this number of processes makes the same updates as the run that --resume continues.

    A launcher that restarts a run on fewer machines, or on more, repeats its flags. If they are those that the run
    began with, batch size and accumulation are adapted to the processes. Other flags are left as they are, and
    --resume compares the samples of an update. Every process must call it. Raises ValueError if the processes cannot
    share the samples equally.
    """
    state, path = PartialState(), Path(args.output_dir, output_folder.BATCH)
    sizes = {name: getattr(args, name) for name in SIZES}
    began = on_main(lambda: read_json_object(path) if args.resume and path.is_file() else {})
    if {name: began.get(name) for name in SIZES} == sizes and began["processes"] != state.num_processes:
        return _adapted(args, began["processes"], state)
    kinds = output_folder.CHECKPOINT, output_folder.SEED
    goes_on = args.resume and any(output_folder.matching_folders(path.parent, kind) for kind in kinds)
    if state.is_main_process and args.do_train and not goes_on:
        write_json(path, sizes | {"processes": state.num_processes})
    return args


def forget_global_batch(args: RunArguments) -> None:
    """Removes what `keep_global_batch` wrote: the run is complete."""
    if PartialState().is_main_process:
        Path(args.output_dir, output_folder.BATCH).unlink(missing_ok=True)


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
