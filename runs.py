"""The frame of a run: the folder it claims, the processes and the clock it has, how it is stopped, how it is repeated.

A script's `main` reads its arguments and gives them, with the function of one run, to `repeat`.
"""

import contextlib
import dataclasses
import json
import os
import re
import shutil
import signal
import statistics
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import datasets
import psutil
import torch
import transformers
from accelerate import Accelerator, DistributedType, PartialState
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.commands.launch import launch_command_parser
from accelerate.utils import parse_flag_from_env, set_seed
from filelock import FileLock, Timeout
from transformers.integrations import unset_hf_deepspeed_config

import reporting
from arguments import RunArguments, hub_model_id
from checkpoints import FREE


Run = Callable[[RunArguments], dict[str, float]]
ROOT = Path(__file__).resolve().parent


# The command line


def command(main: Callable[[], object]) -> None:
    """Runs a script's `main`; what a user can mend ends it with one line and status 1, Ctrl-C with status 130.

    Errors from below this project's own files keep their traceback: they are nobody's mistake in a command.
    """
    Stopwatch.before = time.time() - psutil.Process().create_time()  # the interpreter's start and the imports
    try:
        main()
    except KeyboardInterrupt as stop:
        sys.stderr.write(f"{stop or 'interrupted'}\n")
        sys.exit(130)
    except (OSError, ValueError, ArithmeticError, RuntimeError, ImportError) as error:
        raised_in = Path(traceback.extract_tb(error.__traceback__)[-1].filename).parent
        if raised_in not in (ROOT, ROOT / "modeling"):
            raise
        sys.stderr.write(f"{Path(sys.argv[0]).name}: error: {error}\n")
        sys.exit(1)
    PartialState().destroy_process_group()


class Interrupted(KeyboardInterrupt):
    """The run was told to stop and has saved what it needs to go on; the message says how."""


@contextlib.contextmanager
def stop_signals() -> Iterator[list[int]]:
    """A list that receives Ctrl-C and the SIGTERM of schedulers, so that a run can stop between two updates.

    A second signal acts at once, as it would without this. Outside the main thread nothing is caught.
    """
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, handler in handlers.items():
            signal.signal(number, handler)

    def receive(number: int, frame: object) -> None:
        received.append(number)
        restore()
        os.write(2, b"\nstopping after this update; once more stops at once\n")  # print may not be re-entered

    for number in handlers:
        signal.signal(number, receive)
    try:
        yield received
    finally:
        restore()


class Stopwatch:
    """Seconds by what they were spent on, in a dictionary of the caller's."""

    before = 0.0  # seconds of this process before its first lap

    def __init__(self, seconds: dict[str, float] | None = None) -> None:
        self.seconds = {} if seconds is None else seconds
        self.last = time.perf_counter() - Stopwatch.before
        Stopwatch.before = 0.0

    def lap(self, name: str) -> None:
        """Counts the time since the last lap as spent on `name`."""
        now = time.perf_counter()
        self.seconds[name] = self.seconds.get(name, 0.0) + now - self.last
        self.last = now

    def skip(self) -> None:
        """The time since the last lap is counted elsewhere."""
        self.last = time.perf_counter()

    def runtimes(self) -> dict[str, float]:
        return {f"{name}_runtime": seconds for name, seconds in self.seconds.items()}


# Start


@contextlib.contextmanager
def claim(args: RunArguments) -> Iterator[None]:
    """The output folder belongs to this run alone while the context lasts.

    Raises FileExistsError where it holds something and neither --resume nor --overwrite_output_dir is given,
    BlockingIOError where another run is writing to it.
    """
    output, state = Path(args.output_dir), PartialState()
    if output.exists() and not output.is_dir():
        raise FileExistsError(f"--output_dir {output} is a file")
    held = output.is_dir() and any(path.name != ".lock" for path in output.iterdir())
    if held and not (args.overwrite_output_dir or args.resume):
        raise FileExistsError(
            f"--output_dir {output} exists and is not empty: choose another, --resume the run in it, or "
            "--overwrite_output_dir"
        )
    state.wait_for_everyone()  # the check above came before anyone writes
    if not state.is_main_process:
        yield
        return
    output.mkdir(parents=True, exist_ok=True)
    lock = FileLock(output / ".lock", blocking=False)
    try:
        lock.acquire()
    except Timeout as error:
        raise BlockingIOError(f"another run is writing to --output_dir {output}: choose another") from error
    try:
        yield
    finally:
        (output / ".lock").unlink(missing_ok=True)
        lock.release()


def check_launch() -> None:
    """Raises RuntimeError where several processes were asked for, and each counts itself alone."""
    asked = max(int(os.environ.get("WORLD_SIZE", "1")), _asked_of_accelerate())
    if asked > 1 and PartialState().num_processes == 1:
        raise RuntimeError(
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


def start(args: RunArguments) -> Accelerator:
    """Prepares this process for a run and gives its Accelerator.

    Raises ValueError for a precision that the processor does not have, or what the launcher was told and the run was
    not; ImportError for a tracker not installed.
    """
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    datasets.disable_progress_bars()
    torch.set_float32_matmul_precision(args.matmul_precision)
    tracker = None if args.report_to == "none" else args.report_to
    accelerator = Accelerator(
        mixed_precision=args.mixed_precision, log_with=tracker, project_dir=Path(args.output_dir)
    )
    _check_launcher(args, accelerator)
    if accelerator.distributed_type == DistributedType.DEEPSPEED:
        # Under ZeRO-3 transformers would make empty weights, whose shapes do not tell what decays. DeepSpeed divides
        # the whole ones when training begins.
        unset_hf_deepspeed_config()
    if args.mixed_precision == "fp16" and accelerator.device.type == "cpu":  # accelerate would compute in float32
        raise ValueError("--mixed_precision fp16 needs a GPU: on CPU use bf16 or no")
    if tracker and not accelerator.log_with:  # accelerate would go on without
        raise ImportError(f"--report_to {tracker} needs a package that is not installed: pip install {tracker}")
    set_seed(args.seed)
    return accelerator


def _check_launcher(args: RunArguments, accelerator: Accelerator) -> None:
    """Raises ValueError where the launcher, by its flags or file, was told what only the run's own flags can do."""
    precision = os.environ.get("ACCELERATE_MIXED_PRECISION", "no")
    if precision not in ("no", args.mixed_precision):
        raise ValueError(
            f"the launcher was told mixed_precision {precision}, the run {args.mixed_precision}: give "
            f"--mixed_precision {precision} to the run, which records it, or leave it out of the launcher's file"
        )
    if accelerator.gradient_accumulation_steps > 1:
        raise ValueError(
            f"the launcher was told gradient_accumulation_steps {accelerator.gradient_accumulation_steps}: give "
            "--gradient_accumulation_steps to the run instead, which weighs every example of an update equally"
        )


def start_tracker(args: RunArguments, accelerator: Accelerator) -> None:
    """Begins the curves of --report_to: TensorBoard's in OUTPUT_DIR/runs, others' under the output folder's name."""
    if args.report_to == "none":
        return
    project = "runs" if args.report_to == "tensorboard" else "elmo-gpt-bert"
    names = {"wandb": {"name": args.output_dir, "dir": args.output_dir}, "trackio": {"name": args.output_dir}}
    config = {name: str(value) for name, value in dataclasses.asdict(args).items()}  # TensorBoard takes no None
    accelerator.init_trackers(project, config, init_kwargs=names)


# Repetition


def repeat(run: Run, args: RunArguments) -> dict[str, float]:
    """One `run(args)`; with --seeds or --max_restarts one a seed, of which the best is kept."""
    PartialState(cpu=parse_flag_from_env("ACCELERATE_USE_CPU"))  # as Accelerator will; all others find this one
    check_launch()
    with claim(args):
        if args.push_to_hub and PartialState().is_main_process:  # a missing token costs seconds, not the run
            reporting.create_repository(args)
        if args.do_train and (args.seeds > 1 or args.max_restarts):
            return run_seeds(run, args)
        return run(args)


def run_seeds(run: Run, args: RunArguments) -> dict[str, float]:
    """Runs each seed in OUTPUT_DIR/seed-N, moves the files of the best to OUTPUT_DIR, and writes what all scored.

    Returns the best's results and, for each of its scores, mean, median, standard deviation, least and greatest over
    the seeds. A run whose predictions on the validation set were all one class is replaced, while --max_restarts
    allows. With --resume, seeds that have finished are not run again.
    """
    output, state = Path(args.output_dir), PartialState()
    runs: dict[int, dict[str, float]] = {}
    replaced: dict[int, dict[str, float]] = {}
    seed = args.seed
    while len(runs) < args.seeds:
        state.print(f"seed {seed}")
        results = _run_seed(run, args, seed)
        if results.get("eval_predicted_classes") == 1 and len(replaced) < args.max_restarts:
            state.print(f"seed {seed} predicts one class only: replaced by another")
            replaced[seed] = results
        else:
            runs[seed] = results
        best = max(runs, key=lambda other: score(runs[other], args), default=None)
        if state.is_main_process:
            for other in (runs.keys() | replaced.keys()) - {best}:
                _keep_results(output / f"seed-{other}")
        state.wait_for_everyone()
        seed += 1
    results = runs[best] | spread(list(runs.values()))
    if state.is_main_process:
        reporting.keep_best(output, best, runs, replaced, results, args)
    state.wait_for_everyone()
    return results


def _run_seed(run: Run, args: RunArguments, seed: int) -> dict[str, float]:
    folder = Path(args.output_dir, f"seed-{seed}")
    changes = {"seed": seed, "seeds": 1, "max_restarts": 0, "output_dir": str(folder), "push_to_hub": False}
    ours = dataclasses.replace(args, **changes, hub_model_id=hub_model_id(args))
    if args.resume and (folder / "metrics.json").is_file():
        record = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
        asked = dataclasses.asdict(ours)
        if any(record["args"].get(name) != value for name, value in asked.items() if name not in FREE):
            raise ValueError(f"{folder} is of a run with other arguments: this one needs its own --output_dir")
        return {name: value for name, value in record.items() if name not in reporting.CIRCUMSTANCES}
    return run(ours)


def _keep_results(folder: Path) -> None:
    """Removes weights and checkpoints of a run that is not the best, but not its scores and predictions."""
    for path in folder.iterdir():
        if path.is_dir() and path.name != "runs":
            shutil.rmtree(path)
        elif path.is_file() and path.name != "metrics.json" and not path.name.startswith("predictions"):
            path.unlink()


def score(results: dict[str, float], args: RunArguments) -> float:
    """What --metric_for_best_model calls good, greater where better: the first metric, or the negative of a loss."""
    scores = [name for name in results if name.startswith("eval_") and not name.endswith("_runtime")]
    wanted = args.metric_for_best_model
    name = f"eval_{wanted.removeprefix('eval_')}" if wanted else scores[0]
    if name not in scores:
        known = ", ".join(name.removeprefix("eval_") for name in scores)
        raise ValueError(f"--metric_for_best_model {wanted} is none of {known}")
    return -results[name] if "loss" in name or "perplexity" in name else results[name]


def spread(runs: list[dict[str, float]]) -> dict[str, float]:
    """Mean, median, standard deviation (of a sample), least and greatest of each score over `runs`."""
    summary = {}
    for name in runs[0]:
        if name.startswith("eval_") and not name.endswith("_runtime"):
            values = [results[name] for results in runs]
            summary[f"{name}_mean"] = statistics.fmean(values)
            summary[f"{name}_median"] = statistics.median(values)
            summary[f"{name}_std"] = statistics.stdev(values) if len(values) > 1 else 0.0
            summary[f"{name}_min"], summary[f"{name}_max"] = min(values), max(values)
    return summary
