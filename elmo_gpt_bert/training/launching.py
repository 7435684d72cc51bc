"""Prepares a run: locks its output folder, makes the Accelerator and starts trackers."""

import contextlib
import gc
import importlib
import os
import sys
from collections.abc import Iterator
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Literal

import torch
import transformers
from accelerate import Accelerator, DistributedType
from accelerate.tracking import GeneralTracker, TensorBoardTracker, get_available_trackers
from accelerate.utils import set_seed

from elmo_gpt_bert.training.arguments import CURVES, TRACKERS, RunArguments, public_arguments
from elmo_gpt_bert.training.errors import (
    ExistingFileError,
    FileError,
    FolderInUseError,
    InputError,
    LaunchError,
    PackageError,
    Parameter,
)
from elmo_gpt_bert.training.files import acquire_lock
from elmo_gpt_bert.training.history import History
from elmo_gpt_bert.training.output_folder import (
    BATCH,
    CHECKPOINT,
    HALF_WRITTEN,
    RESULTS,
    SEED,
    remove_curves,
    remove_results,
)
from elmo_gpt_bert.training.processes import check_shared, on_main


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
        check_shared(output, Parameter("output_dir"))
        yield


@contextlib.contextmanager
def _locked(output: Path, args: RunArguments) -> Iterator[None]:
    """Checks and locks the folder, in the main process."""
    with _output_dir_errors(output):
        is_file = output.exists() and not output.is_dir()
        has_files = output.is_dir() and not all(map(_is_bookkeeping, output.iterdir()))
    if is_file:
        raise ExistingFileError(f"--output_dir {output} is a file")
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
    return path.name in (RESULTS, BATCH) or path.name.endswith(".lock")


@contextlib.contextmanager
def locked(output: Path) -> Iterator[None]:
    """Makes the folder, and locks it within the context. Raises BlockingIOError if another run is writing to it."""
    in_use = FolderInUseError(f"another run is writing to --output_dir {output}: choose another")
    with _output_dir_errors(output):
        output.mkdir(parents=True, exist_ok=True)
        lock = acquire_lock(output, in_use)
    try:
        yield
    finally:
        (output / ".lock").unlink(missing_ok=True)
        lock.release()


@contextlib.contextmanager
def _output_dir_errors(output: Path) -> Iterator[None]:
    """Turns errors of writing to --output_dir into a FileError of one line."""
    try:
        yield
    except FileError:
        raise
    except OSError as error:
        raise FileError(f"cannot write to --output_dir {output}: {error.strerror or error}: choose another") from error


def _import_libraries() -> None:
    """Imports what every run needs and --help does not, without progress bars.

    It takes two seconds, and half a second more with garbage collection: what imports make is no garbage, but the
    collector looks through all of it again and again.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        for name in ("datasets", "transformers.modeling_utils"):
            importlib.import_module(name)
    finally:
        if collects:
            gc.enable()
    transformers.utils.logging.disable_progress_bar()
    importlib.import_module("datasets").disable_progress_bars()


def make_accelerator(args: RunArguments) -> Accelerator:
    """Prepares this process for a run with the models of its --implementation, and returns its Accelerator.

    The arguments have a precision, as `choose_precision` returns them, not `auto`.
    Raises ValueError for a precision that the processor does not have, or for an option of the launcher that the run
    has to get instead, and ImportError for a tracker that is not installed.
    """
    _import_libraries()
    transformers.utils.logging.set_verbosity_error()
    torch.set_float32_matmul_precision(args.matmul_precision)
    accelerator = Accelerator(mixed_precision=args.mixed_precision, log_with=_trackers(args) or None)
    _check_launcher(args, accelerator)
    if args.mixed_precision == "fp16" and accelerator.device.type == "cpu":  # accelerate would compute in float32
        raise InputError("--mixed_precision fp16 needs a GPU: on CPU use bf16 or no")
    choose_implementation(args.implementation)
    set_seed(args.seed)
    return accelerator


def choose_implementation(name: Literal["zoo", "transformers"]) -> None:
    """Makes the Auto classes find the zoo's models, or transformers' own, in this process."""
    if name == "zoo":
        import modeling

        modeling.register()
    elif "modeling" in sys.modules:
        sys.modules["modeling"].unregister()


def _trackers(args: RunArguments) -> list[str | GeneralTracker]:
    """The trackers of --report_to, for Accelerator. Raises ImportError for one that is not installed."""
    installed = [*map(str, get_available_trackers()), CURVES]
    names = {"none": [], "all": [name for name in TRACKERS if name in installed]}
    names = names.get(args.report_to, args.report_to.split(","))
    for name in names:
        if name not in installed:  # accelerate would ignore it
            raise PackageError(f"--report_to {name} needs a package that is not installed: pip install {name}")
    # By its name, TensorBoard would write to a folder named after the project.
    own = {
        "tensorboard": partial(TensorBoardTracker, "runs", args.output_dir),
        CURVES: partial(History, Path(args.output_dir), resumes=args.resume),
    }
    return [own[name]() if name in own else name for name in names]


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


def start_trackers(args: RunArguments, accelerator: Accelerator) -> None:
    """Starts the trackers of --report_to. TensorBoard writes to OUTPUT_DIR/runs; others name the run after OUTPUT_DIR.

    The curves of an earlier run go, unless this one may go on from it: the tracker would show them as its own.
    Raises RuntimeError if a tracker cannot start, for example without a login or network.
    """
    names = {"wandb": {"name": args.output_dir, "dir": args.output_dir}, "trackio": {"name": args.output_dir}}
    config = {name: str(value) for name, value in public_arguments(args).items()}  # TensorBoard does not accept None
    if accelerator.is_main_process and not args.resume:
        remove_curves(Path(args.output_dir))
    try:
        accelerator.init_trackers("elmo-gpt-bert", config, init_kwargs=names)
    except Exception as error:  # each tracker raises its own
        problem = " ".join(str(error).split())
        remedy = "WANDB_MODE=offline keeps wandb's curves here"
        raise LaunchError(f"--report_to {args.report_to}: {problem} {remedy}") from error


def finish_trackers(accelerator: Accelerator) -> None:
    """Finishes the trackers that have been started; a second call does nothing."""
    trackers, accelerator.trackers = accelerator.trackers, []
    for tracker in trackers:
        tracker.finish()


@contextlib.contextmanager
def trackers_finished(accelerator: Accelerator) -> Iterator[None]:
    """Finishes the trackers after an error within the context, because another seed may follow in this process."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(FileError):  # the first error says more
            finish_trackers(accelerator)
        raise


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
        output, kinds = Path(args.output_dir), (SEED, CHECKPOINT, HALF_WRITTEN)
        if (above := _folder_of_seeds.get()) is not None:
            remove_results(above, *kinds, keep=output)
            remove_curves(above)
        remove_results(output, *(kinds if args.do_train and not args.resume else ()))
