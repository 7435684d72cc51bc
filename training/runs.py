"""The frame of a run: its errors on the command line, its clock, how it is stopped, and how it is repeated.

A script's `main` reads its arguments and gives them, with the function of one run, to `repeat`.
"""

import contextlib
import dataclasses
import os
import re
import signal
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
from accelerate import PartialState
from accelerate.utils import parse_flag_from_env

from training import hub, reporting
from training.arguments import RunArguments, hub_model_id
from training.checkpoints import IDENTITY, folders, remove
from training.command_line import run_command
from training.ensembles import members
from training.files import write_atomically
from training.launching import check_launch, claim


Run = Callable[[RunArguments], dict[str, float]]


# The command line


def command(main: Callable[[], object]) -> None:
    """`run_command` for the scripts of runs, whose clock and processes begin and end with it."""
    Stopwatch.before = time.time() - psutil.Process().create_time()  # the interpreter's start and the imports
    run_command(main, "interrupted: what was finished is kept, and --resume goes on from it")
    PartialState().destroy_process_group()


class Interrupted(KeyboardInterrupt):
    """The run was told to stop and has saved what it needs to go on; the message says how."""


@contextlib.contextmanager
def stop_signals() -> Iterator[list[int]]:
    """A list that receives Ctrl-C and the SIGTERM of schedulers, so that a run can stop between two updates.

    A second Ctrl-C acts at once. A second SIGTERM does not: launchers pass on what a scheduler sends to all processes
    anyway. Outside the main thread nothing is caught.
    """
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def receive(number: int, frame: object) -> None:
        if not received:
            with contextlib.suppress(OSError):  # nobody reads it
                os.write(2, b"\nstopping after this update; Ctrl-C once more stops at once\n")  # print: not re-entrant
        received.append(number)
        signal.signal(signal.SIGINT, handlers[signal.SIGINT])

    for number in handlers:
        signal.signal(number, receive)
    try:
        yield received
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


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


# Repetition


def repeat(run: Run, args: RunArguments) -> dict[str, float]:
    """One `run(args)`; with --seeds or --max_restarts one a seed, of which the best is kept."""
    PartialState(cpu=parse_flag_from_env("ACCELERATE_USE_CPU"))  # as Accelerator will; all others find this one
    check_launch()
    if args.ensemble is not None:  # a folder that is missing costs seconds
        PartialState().print(f"ensemble: the mean of {', '.join(map(str, members(args)))}")
    with claim(args):
        pushes = args.push_to_hub and PartialState().is_main_process
        if pushes:  # a missing token costs seconds, not the run
            args = dataclasses.replace(args, hub_model_id=hub.create_repository(args))
        if args.seeds > 1 or args.max_restarts:
            results = run_seeds(run, args)
        elif args.resume and folders(Path(args.output_dir), reporting.SEED):
            raise ValueError(f"{args.output_dir} holds runs of several seeds: --resume them with --seeds")
        else:
            results = run(args)
        if pushes:
            hub.push(args)
        return results


def run_seeds(run: Run, args: RunArguments) -> dict[str, float]:
    """Runs each seed in OUTPUT_DIR/seed-N, moves the files of the best to OUTPUT_DIR, and writes what all scored.

    Returns the best's results and, for each of its scores, mean, median, standard deviation, least and greatest over
    the seeds. A run that diverged, or whose predictions on the validation set were all one class, is replaced, while
    --max_restarts allows. With --resume, seeds that have finished are not run again.
    """
    output, state = Path(args.output_dir), PartialState()
    runs: dict[int, dict[str, float]] = {}
    replaced: dict[int, dict[str, float | str]] = {}
    if state.is_main_process and not args.resume:
        # --overwrite_output_dir permits it: beside the new runs, the earlier ones' would pass for theirs.
        reporting.remove_results(output, reporting.SEED, *reporting.CHECKPOINTS)
    state.wait_for_everyone()
    seed = args.seed
    while len(runs) < args.seeds:
        state.print(f"seed {seed}")
        try:
            results = _run_seed(run, args, seed)
        except FloatingPointError as error:
            if len(replaced) == args.max_restarts:
                raise FloatingPointError(f"seed {seed}: {error}; --max_restarts lets other seeds take over") from error
            results = {"error": str(error)}
        failed = "error" in results or results.get("eval_predicted_classes") == 1
        if failed and len(replaced) < args.max_restarts:
            state.print(f"seed {seed} {results.get('error', 'predicts one class only')}: replaced by another")
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
        record = reporting.read_record(folder / "metrics.json")
        if record.get("identity") != reporting.identity(ours):
            raise ValueError(
                f"{folder} is of a run with other arguments, data or configuration: this one needs an --output_dir of "
                "its own"
            )
        for flag, what in (("do_predict", "predictions"), ("save_outputs", "saved outputs")):
            if getattr(args, flag) and not record["args"].get(flag):
                raise ValueError(f"{folder} has no {what}: --{flag} with --model_name_or_path {args.output_dir}")
        return {name: value for name, value in record.items() if name not in reporting.CIRCUMSTANCES}
    folder.mkdir(parents=True, exist_ok=True)
    if PartialState().is_main_process:
        _note_other_seeds(folder, args)
    PartialState().wait_for_everyone()
    return run(ours)


def _note_other_seeds(folder: Path, args: RunArguments) -> None:
    """Leaves in a seed's folder, for its training to compare, which run a finished seed was; {}: none has finished."""
    others = [other / IDENTITY for other in folders(folder.parent, reporting.SEED) if other != folder]
    noted = [path.read_text(encoding="utf-8") for path in others if args.resume and path.is_file()]
    write_atomically(folder / IDENTITY, next((text for text in noted if text != "{}"), "{}"))


def _keep_results(folder: Path) -> None:
    """Removes a run's weights and checkpoints, since it is not the best; its scores, outputs and curves stay."""
    for path in folder.iterdir():
        if path.is_dir() and path.name not in ("runs", "wandb"):
            remove(path)
        elif path.is_file() and path.name != IDENTITY and not reporting.RESULTS.fullmatch(path.name):
            path.unlink()


def score(results: dict[str, float], args: RunArguments) -> float:
    """What --metric_for_best_model calls good, greater where better: the first metric, or the negative of a loss."""
    scores = [name for name in results if re.fullmatch("eval_(?!runtime|samples).*", name)]
    wanted = args.metric_for_best_model
    name = f"eval_{wanted.removeprefix('eval_')}" if wanted else scores[0]
    if name not in scores:
        known = ", ".join(name.removeprefix("eval_") for name in scores)
        raise ValueError(f"--metric_for_best_model {wanted} is none of {known}")
    lower_is_better = name.startswith(("eval_loss", "eval_perplexity"))  # not f1_LOSS, of a type of entities
    return -results[name] if lower_is_better else results[name]


def spread(runs: list[dict[str, float]]) -> dict[str, float]:
    """Mean, median, standard deviation (of a sample), least and greatest of each score over `runs`.

    Scores of single types of entities are left to the runs' own records.
    """
    summary = {}
    for name in runs[0]:
        score = re.fullmatch(r"(eval|test)_(?!runtime|predicted_classes|samples).*", name)
        if score and not reporting.is_of_a_type(name, runs[0]):
            values = [results[name] for results in runs]
            summary[f"{name}_mean"] = statistics.fmean(values)
            summary[f"{name}_median"] = statistics.median(values)
            summary[f"{name}_std"] = statistics.stdev(values) if len(values) > 1 else 0.0
            summary[f"{name}_min"], summary[f"{name}_max"] = min(values), max(values)
    return summary
