"""Before a run: the output folder that it locks, its processes, their Accelerator, and the curves that it draws."""

import contextlib
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import datasets
import psutil
import torch
import transformers
from accelerate import Accelerator, DistributedType, PartialState
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.commands.launch import launch_command_parser
from accelerate.tracking import TensorBoardTracker, get_available_trackers
from accelerate.utils import set_seed
from filelock import FileLock, Timeout
from transformers.integrations import unset_hf_deepspeed_config

from training.arguments import TRACKERS, RunArguments, public_arguments
from training.errors import ExistingFileError, FileError, FolderInUseError, InputError, LaunchError, PackageError


@contextlib.contextmanager
def lock_output_folder(args: RunArguments) -> Iterator[None]:
    """The output folder belongs to this run alone while the context lasts.

    Raises FileExistsError where it holds something and neither --resume nor --overwrite_output_dir is given,
    BlockingIOError where another run is writing to it, OSError where it cannot be written to.
    """
    output, state = Path(args.output_dir), PartialState()
    with _writing(output):
        is_file = output.exists() and not output.is_dir()
        held = output.is_dir() and any(path.name != ".lock" for path in output.iterdir())
    if is_file:
        raise ExistingFileError(f"--output_dir {output} is a file")
    if held and not (args.overwrite_output_dir or args.resume):
        raise ExistingFileError(
            f"--output_dir {output} exists and is not empty: choose another, --resume the run in it, or "
            "--overwrite_output_dir"
        )
    state.wait_for_everyone()  # the check above came before anyone writes
    if not state.is_main_process:
        yield
        return
    new = not output.exists()
    lock = FileLock(output / ".lock", blocking=False)
    try:
        with _writing(output):
            output.mkdir(parents=True, exist_ok=True)
            (output / ".lock").touch()  # FileLock takes some refusals for another run's lock
            lock.acquire()
    except Timeout as error:
        raise FolderInUseError(f"another run is writing to --output_dir {output}: choose another") from error
    try:
        yield
    finally:
        (output / ".lock").unlink(missing_ok=True)
        lock.release()
        if new and not any(output.iterdir()):  # refused before anything was done
            output.rmdir()


@contextlib.contextmanager
def _writing(output: Path) -> Iterator[None]:
    """Turns what the system says against --output_dir into one line, but for another run's lock."""
    try:
        yield
    except Timeout:
        raise
    except OSError as error:
        raise FileError(f"cannot write to --output_dir {output}: {error.strerror or error}: choose another") from error


def check_launch() -> None:
    """Raises RuntimeError where several processes were asked for, and each counts itself alone."""
    asked = max(int(os.environ.get("WORLD_SIZE", "1")), _asked_of_accelerate())
    if asked > 1 and PartialState().num_processes == 1:
        raise LaunchError(
            f"{asked} processes were asked for, but each counts itself alone and would repeat the same work. "
            "On CPU: ACCELERATE_USE_CPU=true torchrun --nproc_per_node N run_X.py ..."
        )


def _asked_of_accelerate() -> int:
    """How many processes `accelerate launch`, if that is the parent, was asked for; with --cpu it starts one."""
    parent, words = psutil.Process().parent(), []
    with contextlib.suppress(psutil.Error):  # another user's process keeps its command to itself
        words = parent.cmdline() if parent else []
    launch = r"\baccelerate(?:\.exe)?(?:\n|-|\.commands\.)launch(?:\.exe)?\n(.*)"
    command = re.search(launch, "\n".join(words), re.DOTALL)
    if command is None:
        return 1
    options, _ = launch_command_parser().parse_known_args(command[1].split("\n"))
    if options.num_processes is None and (options.config_file or not options.cpu):  # where accelerate looks, too
        with contextlib.suppress(OSError):  # it was never configured
            return load_config_from_file(options.config_file).num_processes or 1
    return options.num_processes or 1


def make_accelerator(args: RunArguments) -> Accelerator:
    """Prepares this process for a run, for the models of its --implementation, and gives its Accelerator.

    Raises ValueError for a precision that the processor does not have, or what the launcher was told and the run was
    not; ImportError for a tracker not installed.
    """
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    datasets.disable_progress_bars()
    torch.set_float32_matmul_precision(args.matmul_precision)
    accelerator = Accelerator(mixed_precision=args.mixed_precision, log_with=_trackers(args) or None)
    _check_launcher(args, accelerator)
    if accelerator.distributed_type == DistributedType.DEEPSPEED:
        # Under ZeRO-3 transformers would make empty weights, whose shapes do not tell what decays. DeepSpeed divides
        # the whole ones when training begins.
        unset_hf_deepspeed_config()
    if args.mixed_precision == "fp16" and accelerator.device.type == "cpu":  # accelerate would compute in float32
        raise InputError("--mixed_precision fp16 needs a GPU: on CPU use bf16 or no")
    choose_implementation(args.implementation)
    set_seed(args.seed)
    return accelerator


def choose_implementation(name: Literal["zoo", "transformers"]) -> None:
    """Lets the Auto classes resolve to the zoo's models in this process, or gives them back to transformers."""
    if name == "zoo":
        import modeling

        modeling.register()
    elif "modeling" in sys.modules:
        sys.modules["modeling"].unregister()


def _trackers(args: RunArguments) -> list[str | TensorBoardTracker]:
    """Those of --report_to as Accelerator takes them. Raises ImportError for one that is not installed."""
    installed = [str(tracker) for tracker in get_available_trackers()]
    names = {"none": [], "all": [name for name in TRACKERS if name in installed]}
    names = names.get(args.report_to, args.report_to.split(","))
    for name in names:
        if name not in installed:  # accelerate would go on without
            raise PackageError(f"--report_to {name} needs a package that is not installed: pip install {name}")
    # TensorBoard would name its folder after the project.
    return [TensorBoardTracker("runs", args.output_dir) if name == "tensorboard" else name for name in names]


def _check_launcher(args: RunArguments, accelerator: Accelerator) -> None:
    """Raises ValueError where the launcher, by its flags or file, was told what only the run's own flags can do."""
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
    """Begins the curves of --report_to: TensorBoard's in OUTPUT_DIR/runs, others' under the output folder's name.

    Raises RuntimeError where a tracker cannot begin, as for want of a login or network.
    """
    names = {"wandb": {"name": args.output_dir, "dir": args.output_dir}, "trackio": {"name": args.output_dir}}
    config = {name: str(value) for name, value in public_arguments(args).items()}  # TensorBoard takes no None
    try:
        accelerator.init_trackers("elmo-gpt-bert", config, init_kwargs=names)
    except Exception as error:  # each tracker has its own
        problem = " ".join(str(error).split())
        remedy = "WANDB_MODE=offline keeps wandb's curves here"
        raise LaunchError(f"--report_to {args.report_to}: {problem} {remedy}") from error
