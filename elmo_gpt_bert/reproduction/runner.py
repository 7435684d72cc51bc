"""The steps of a table: a row with a seed -> the command of a script, and whether it has been carried out. The runner
carries out several at once, and goes on after one that fails.
"""

import contextlib
import functools
import hashlib
import importlib.util
import io
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from glob import glob
from pathlib import Path
from typing import Any, TextIO

import torch
import yaml

from elmo_gpt_bert.training.arguments import RunArguments
from elmo_gpt_bert.training.command_line import COMMAND, Interrupted, start_of_script, stop_signals
from elmo_gpt_bert.training.errors import InputError, UserError
from elmo_gpt_bert.training.files import file_digest, make_folder, read_json, remove_folder, write_json, writing
from elmo_gpt_bert.training.flags import find_config, parse_arguments
from elmo_gpt_bert.training.identity import read_finished, run_identity
from elmo_gpt_bert.training.launching import write_batch
from elmo_gpt_bert.training.output_folder import (
    CHECKPOINT,
    METRICS,
    SHA256SUMS,
    matching_folders,
    remove_all_but_results,
    write_checksums,
)

from .tables import Place, Row, Table, places


FIRST_SEED = 42  # the scripts' default
SCRIPTS = "elmo_gpt_bert.scripts"
WITHOUT_EFFECT = {"do_train", "do_eval", "output_dir"}  # keys of recipes; each row trains, evaluates, and has a folder
POLL_SECONDS = 0.2


@dataclass(frozen=True)
class Folders:
    """Where data, models and results are on this machine."""

    data: Path
    models: Mapping[str, str]  # by the names of MODELS
    output: Path  # of all tables

    def find(self, place: Place, runs: str) -> str:
        """Its path, or a model's name on the Hub. `runs` is the folder of the table's runs in that of all tables."""
        if place.kind == "hub model":
            return self.models[place.name]
        folder = {"data": self.data, "row": self.output / runs}.get(place.kind)
        folder = Path(self.models[place.name]) if folder is None else folder / place.name
        return str(folder / place.file)

    def has(self, place: Place) -> bool:
        """Whether the place is here, or wanted; False for data that the script then takes from the Hub."""
        return not place.unless_hub or (self.data / place.name / place.unless_hub).exists()


@dataclass(frozen=True)
class Step:
    """A command: a run of a script, or a conversion, or the training of static vectors, which others begin with.

    words: what follows the name of the script
    inputs: the data and models that it reads, apart from those of other rows and of the Hub
    hub_models: the models of the Hub that it reads, or the folders that stand for them
    is_kept: whether another row, or an analysis, reads the model
    keeps_checkpoints: whether another row begins with one of its checkpoints
    launcher: the words of a command that starts a run in several processes; none: in one
    """

    row: Row
    seed: int | None
    output: Path
    words: tuple[str, ...]
    inputs: tuple[str, ...]
    hub_models: tuple[str, ...]
    is_kept: bool
    keeps_checkpoints: bool = False
    launcher: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.row.name if self.seed is None else f"{self.row.name}, seed {self.seed}"

    @property
    def log(self) -> Path:
        """What the command prints."""
        return self.output.with_name(f"{self.output.name}.log")

    @property
    def mark(self) -> Path:
        """The identity and the commit with which the command was started."""
        return self.output.with_name(f"{self.output.name}.json")

    @property
    def arguments(self) -> list[str]:
        """What follows the name of the script. A run goes on with what an earlier one has left, if anything."""
        # A run that only evaluates begins anew.
        again = "--overwrite_output_dir" if self.row.script == "run_blimp" else "--resume"
        return [*self.words, *([again] if self.row.is_run else [])]

    @property
    def command(self) -> list[str]:
        """As a user types it, in a checkout or, if the table was started as `zoo-reproduce`, in an installation."""
        name = start_of_script(self.row.script)
        if not name.startswith(COMMAND) or not self.row.is_run:
            return self.command_with("python", f"{self.row.script}.py")
        start = [*self.launcher, "-m", f"{SCRIPTS}.{self.row.script}"] if self.launcher else [name]
        return [*start, *self.arguments]

    def command_with(self, python: str, script: str) -> list[str]:
        """With this interpreter, unless a launcher starts it, and this file of the script if it is a run."""
        if not self.row.is_run:
            return [python, "-m", self.row.script, *self.arguments]
        return [*(self.launcher or [python]), script, *self.arguments]


def plan(table: Table, folders: Folders, seeds: int) -> list[Step]:
    """The steps of all rows, in order."""
    read = [place for row in table.rows for value in row.flags.values() for place in places(value)]
    needed = {place.name for place in read if place.kind == "row"}
    begun_with = {place.name for place in read if CHECKPOINT.fullmatch(place.file)}
    return [
        make_step(row, seed, table.runs_folder, folders, row.keeps_model or row.name in needed, row.name in begun_with)
        for row in table.rows
        for seed in (range(FIRST_SEED, FIRST_SEED + seeds) if row.seeded else [None])
    ]


def choose(
    steps: Sequence[Step],
    only: Collection[str] = (),
    families: Collection[str] = (),
    recorded: Collection[tuple[str, str]] = (),
) -> list[Step]:
    """The steps of these tasks and families, by default of all, and those that they need.

    All rows come with their first seed, then all with the next one, so that a table that is stopped early can compare
    its rows. Of a row and a seed that are `recorded`, only what others need.
    """
    chosen: list[Step] = []
    for step in reversed(steps):
        row, seed = step.row, str(FIRST_SEED if step.seed is None else step.seed)
        is_asked = row.cells and (not only or row.task in only) and (not families or row.family in families)
        if (is_asked and (row.name, seed) not in recorded) or any(row.name in other.row.needs for other in chosen):
            chosen.insert(0, step)
    return sorted(chosen, key=lambda step: FIRST_SEED if step.seed is None else step.seed)


def make_step(
    row: Row, seed: int | None, runs: str, folders: Folders, is_kept: bool, keeps_checkpoints: bool = False
) -> Step:
    """`runs` is the folder of the table's runs in that of all tables."""
    folder = folders.output / runs / row.name
    folder = folder if seed is None else folder / f"seed-{seed}"
    flags = {name: value for name, value in row.flags.items() if all(map(folders.has, places(value)))}
    flags |= {} if seed is None else {"seed": seed}
    if row.overrides:
        recipe = read_recipe(row)
        flags["config_overrides"] = ",".join(filter(None, [recipe.get("config_overrides"), row.overrides]))
    flags |= {"output" if row.script.startswith("elmo_gpt_bert.convert.") else "output_dir": folder}
    words = [row.recipe] if row.recipe else []
    inputs, hub_models = [], []
    for name, value in flags.items():
        paths = [folders.find(place, runs) for place in places(value)]
        text = str(value).lower() if isinstance(value, bool) else str(value)
        words += [f"--{name}", *(paths or [text])]
        for path, place in zip(paths, places(value), strict=True):
            if place.kind != "row":
                (hub_models if place.kind == "hub model" else inputs).append(path)
    return Step(row, seed, folder, tuple(words), tuple(inputs), tuple(hub_models), is_kept, keeps_checkpoints)


def read_recipe(row: Row) -> dict[str, Any]:
    """The flags in the recipe's file; none if the row has no recipe."""
    return yaml.safe_load(Path(find_config(row.recipe)).read_text(encoding="utf-8")) if row.recipe else {}


# Whether a step has been carried out


@functools.cache
def arguments_of(script: str) -> type[RunArguments]:
    """The class of a script's arguments."""
    module = importlib.import_module(f"{SCRIPTS}.{script}")
    classes = [value for value in vars(module).values() if isinstance(value, type) and issubclass(value, RunArguments)]
    return next(each for each in classes if each.__module__ == module.__name__)


def identity(step: Step) -> dict[str, Any]:
    """All that the results depend on: the flags, and digests of the files and models that they name.

    For a run it is that of its metrics.json, if one process carries it out.
    """
    if step.row.is_run:
        return run_identity(parse(step), absent=True)
    contents = _contents(Path(find_config(word)) for word in step.words if Path(word) != step.output)
    return {"script": step.row.script, "words": list(step.words), "contents": contents}


def content_digests(steps: Iterable[Step]) -> dict[str, str | None]:
    """The names of the rows -> a digest of all that their results depend on, but the seed.

    It is the same on other machines: it has the contents of models and of files with data instead of their paths.
    It is None if something that the row reads is not here. The steps are those of a plan, in which a row comes after
    those that it needs.
    """
    digests: dict[str, str | None] = {}
    for step in steps:
        row = step.row
        if row.name in digests:
            continue
        flags = {name: [asdict(place) for place in places(value)] or value for name, value in row.flags.items()}
        found = [sorted(glob(path)) for path in step.inputs]
        contents = _contents(Path(path) for paths in found for path in paths)
        contents += [_contents([Path(name)]) if Path(name).is_dir() else name for name in step.hub_models]
        needed = [digests[name] for name in sorted(row.needs)]
        recipe = {name: value for name, value in read_recipe(row).items() if name not in WITHOUT_EFFECT}
        values = json.dumps([row.script, recipe, flags, row.overrides, contents, needed], sort_keys=True)
        is_whole = all(found) and None not in needed
        digests[row.name] = hashlib.sha256(values.encode()).hexdigest() if is_whole else None
    return digests


def _contents(paths: Iterable[Path]) -> list[str]:
    """The digests of files, and of models by their configuration and their checksums."""
    files = [file for path in paths for file in (path, path / "config.json", path / SHA256SUMS)]
    return [file_digest(file) for file in files if file.is_file()]


def parse(step: Step) -> RunArguments:
    """The arguments of a run. Raises ValueError where the command would end with status 2, such as for a wrong key."""
    printed = io.StringIO()
    try:
        with contextlib.redirect_stderr(printed):
            return parse_arguments(arguments_of(step.row.script), step.arguments)
    except SystemExit as error:
        raise InputError(printed.getvalue().strip().partition("error: ")[2]) from error


def is_finished(step: Step) -> bool:
    """Whether the results of the step are there.

    Raises ValueError for those of a run with other flags, data or configuration, which may have cost hours.
    """
    if not step.row.is_run:
        is_complete = (step.output / SHA256SUMS).is_file() and step.mark.is_file()
        return is_complete and read_json(step.mark)["identity"] == identity(step)
    if not (step.output / METRICS).is_file():
        return False
    return read_finished(step.output, parse(step), absent=True) is not None


def begin(step: Step) -> None:
    """Writes what the step is started with. What a conversion has left of other input is removed."""
    if not step.row.is_run and step.output.is_dir():
        remove_folder(step.output)
    make_folder(step.output.parent)
    write_json(step.mark, {"identity": identity(step), "commit": commit()})
    if step.launcher and step.row.is_run and not step.output.exists() and (args := parse(step)).do_train:
        write_batch(step.output, args)  # so that several processes make updates of the recipe's size


def complete(step: Step) -> None:
    """Removes the checkpoints of a finished run and its model, unless they are kept, but not its card.

    A conversion gets its checksums.
    """
    if not step.row.is_run:
        write_checksums(step.output)
    elif not step.is_kept:
        remove_all_but_results(step.output, keep_card=True)
    if not step.keeps_checkpoints:
        for checkpoint in matching_folders(step.output, CHECKPOINT):
            remove_folder(checkpoint)


@functools.cache
def commit() -> str | None:
    """The commit of this project's code, with -dirty if files differ from it; None outside of a checkout."""
    words = ["git", "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty"]
    try:
        process = subprocess.run(words, cwd=Path(__file__).parent, capture_output=True, text=True)
    except OSError:  # no git
        return None
    return process.stdout.strip() or None


def executable(step: Step) -> list[str]:
    """The command with this interpreter, and with the script where it is, in whichever directory it runs."""
    script = importlib.util.find_spec(f"{SCRIPTS}.{step.row.script}").origin if step.row.is_run else ""
    return step.command_with(sys.executable, script)


# The runner


@dataclass
class Job:
    """A step whose command runs."""

    step: Step
    process: subprocess.Popen
    log: TextIO
    started: float
    devices: str = ""  # its GPUs, as CUDA_VISIBLE_DEVICES has them; "": all

    @classmethod
    def start(cls, step: Step, threads: int, devices: str) -> "Job":
        begin(step)
        with writing(step.log):
            log = step.log.open("a", encoding="utf-8")
        environment = {"OMP_NUM_THREADS": str(threads)} | os.environ
        environment |= {"CUDA_VISIBLE_DEVICES": devices} if devices else {}
        process = subprocess.Popen(
            executable(step), stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=environment
        )
        return cls(step, process, log, time.monotonic(), devices)

    def failure(self) -> str | None:
        """Why the command that has ended did not carry out the step, or None; the step is then complete."""
        self.log.close()
        if self.process.returncode:
            return f"{_last_line(self.step.log)} (status {self.process.returncode}; all of it is in {self.step.log})"
        try:
            if self.step.row.is_run and not is_finished(self.step):
                return f"it wrote no metrics.json; {self.step.log} has what it printed"
            complete(self.step)
        except UserError as error:  # the disk is full, or a file that it reads has changed since it began
            return str(error)
        return None


@dataclass
class Progress:
    """The steps that wait, and the reasons of those that failed."""

    waiting: list[Step]
    failures: dict[str, str]

    def next_step(self, running: Sequence[Job]) -> Step | None:
        """Takes the next step out of those that wait: one whose needs are neither waiting nor running.

        Those that need a step that failed, and those that are finished, are taken out, too.
        """
        for step in list(self.waiting):
            busy = {other.row.name for other in [*self.waiting, *(job.step for job in running)]}
            if step.row.needs & busy:
                continue
            self.waiting.remove(step)
            failed = sorted(step.row.needs & self.failures.keys())
            missing = sorted(path for path in step.inputs if not glob(path))
            try:
                if missing:
                    self.fail(step, f"{missing[0]} does not exist: name its place with --data_root or --models")
                elif failed:
                    self.fail(step, f"it needs {', '.join(failed)}")
                elif is_finished(step):
                    print(f"{step.name}: had finished before")
                    complete(step)
                else:
                    return step
            except UserError as error:
                self.fail(step, str(error))
        return None

    def fail(self, step: Step, why: str) -> None:
        self.failures[step.name] = why
        print(f"{step.name}: FAILED: {why}")


def run_steps(steps: Sequence[Step], jobs: int) -> dict[str, str]:
    """Carries out the steps that have not finished, `jobs` at once; returns name -> reason of those that failed.

    Ctrl-C and SIGTERM stop the commands, which save what they need to go on. A second call does the rest, also after
    a kill at any other moment.
    """
    progress, running = Progress(list(steps), {}), []
    threads, free = max(1, (os.cpu_count() or 1) // jobs), share_devices(jobs)
    with stop_signals() as received:
        try:
            while progress.waiting or running:
                while len(running) < jobs and not received and (step := progress.next_step(running)):
                    print(f"{step.name}: {shlex.join(step.command)}")
                    try:
                        running.append(Job.start(step, threads, free[0]))
                        free.pop(0)
                    except UserError as error:  # the disk is full
                        progress.fail(step, str(error))
                if received:
                    raise Interrupted("interrupted: the same command goes on from here")
                time.sleep(POLL_SECONDS)
                for job in [job for job in running if job.process.poll() is not None]:
                    running.remove(job)
                    free.append(job.devices)
                    minutes = (time.monotonic() - job.started) / 60
                    if why := job.failure():
                        progress.fail(job.step, why)
                    else:
                        left = len(progress.waiting) + len(running)
                        print(f"{job.step.name}: {minutes:.1f} minutes, {left} left")
        finally:
            for job in running:
                job.process.terminate()
            for job in running:
                job.process.wait()
                job.log.close()
    return progress.failures


def share_devices(jobs: int) -> list[str]:
    """The GPUs of each of the jobs that run at once, as CUDA_VISIBLE_DEVICES has them; "" where it stays as it is."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    devices = visible.split(",") if visible else [str(number) for number in range(torch.cuda.device_count())]
    if len(devices) < 2:
        return [""] * jobs
    return [",".join(devices[place::jobs]) or devices[place % len(devices)] for place in range(jobs)]


def _last_line(log: Path) -> str:
    """What a command printed last: for a mistake of the user, its error."""
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "it printed nothing")
