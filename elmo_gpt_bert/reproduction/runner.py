"""The steps of a table: a row with a seed -> the command of a script, and whether it has been carried out. The runner
carries out several at once, and goes on after one that fails.
"""

import contextlib
import hashlib
import importlib.util
import io
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from glob import glob
from pathlib import Path
from typing import Any

import torch
import yaml

from elmo_gpt_bert.training import files, output_folder
from elmo_gpt_bert.training.arguments import RunArguments
from elmo_gpt_bert.training.command_line import Interrupted, start_of_script, stop_signals
from elmo_gpt_bert.training.errors import InputError, LaunchError, UserError
from elmo_gpt_bert.training.flags import find_config, parse_arguments
from elmo_gpt_bert.training.identity import read_finished
from elmo_gpt_bert.training.reporting import LOADER

from .tables import Place, Row, Table, places


FIRST_SEED = 42  # the scripts' default
MADE_OF = "made_of.json"  # in the output of a conversion that is complete
SCRIPTS = "elmo_gpt_bert.scripts"
WITHOUT_EFFECT = {"do_train", "do_eval", "output_dir"}  # keys of recipes; each row trains, evaluates, and has a folder
POLL_SECONDS = 0.2


@dataclass(frozen=True)
class Folders:
    """Where data, models and the runs of a table are on this machine."""

    data: Path
    models: Mapping[str, str]  # by the names of MODELS
    runs: Path

    def find(self, place: Place) -> str:
        """Its path, or a model's name on the Hub."""
        if place.kind in ("data", "row"):
            return str(Path(self.data if place.kind == "data" else self.runs, place.name, place.file))
        name = self.models[place.name]
        return name if place.kind == "hub model" else str(Path(name, place.file))

    def has(self, place: Place) -> bool:
        """Whether the place is here, or wanted; False for data that the script then takes from the Hub."""
        return not place.unless_hub or (self.data / place.name / place.unless_hub).exists()


@dataclass(frozen=True)
class Step:
    """A command: a run of a script, or a conversion, or the training of static vectors, which others begin with.

    needs: the steps whose output it reads, by their names
    kept: what other rows read in its output: the names of checkpoints and files, or "" for the model
    """

    row: Row
    seed: int | None
    folders: Folders
    needs: Sequence["Step"] = ()
    kept: Collection[str] = ()

    @property
    def name(self) -> str:
        return self.row.name if self.seed is None else f"{self.row.name}, seed {self.seed}"

    @property
    def output(self) -> Path:
        return self.folders.runs / self.row.name / ("" if self.seed is None else f"seed-{self.seed}")

    @property
    def log(self) -> Path:
        """What the command prints."""
        return self.output.with_name(f"{self.output.name}.log")

    @property
    def words(self) -> list[str]:
        """What follows the name of the script. A run goes on with what an earlier one has left, if anything."""
        row, here = self.row, self.folders
        flags = {name: value for name, value in row.flags.items() if all(map(here.has, places(value)))}
        flags |= {} if self.seed is None else {"seed": self.seed}
        if row.overrides:
            overrides = read_recipe(row).get("config_overrides"), row.overrides
            flags["config_overrides"] = ",".join(filter(None, overrides))
        flags |= {"output" if row.script.startswith("elmo_gpt_bert.convert.") else "output_dir": self.output}
        words = [row.recipe] if row.recipe else []
        for name, value in flags.items():
            text = str(value).lower() if isinstance(value, bool) else str(value)
            words += [f"--{name}", *([here.find(place) for place in places(value)] or [text])]
        # A run that only evaluates begins anew.
        again = "--overwrite_output_dir" if row.script == "run_blimp" else "--resume"
        return [*words, *([again] if row.is_run else [])]

    @property
    def command(self) -> list[str]:
        """As a user types it, in a checkout or, if the table was started as `zoo-reproduce`, in an installation."""
        start = shlex.split(start_of_script(self.row.script)) if self.row.is_run else ["python", "-m", self.row.script]
        return [*start, *self.words]

    def inputs(self, *kinds: str) -> list[str]:
        """The places of these kinds that it reads, apart from data that it takes from the Hub."""
        here = self.folders
        return [here.find(place) for place in self.row.places if place.kind in kinds and here.has(place)]


def plan(table: Table, folders: Folders, seeds: int) -> list[Step]:
    """The steps of all rows, in order."""
    read = [place for row in table.rows for place in row.places if place.kind == "row"]
    steps: dict[str, list[Step]] = {}
    for row in table.rows:
        needs = [step for name in sorted(row.needs) for step in steps[name]]
        kept = {place.file for place in read if place.name == row.name} | ({""} if row.keeps_model else set())
        numbers = range(FIRST_SEED, FIRST_SEED + seeds) if row.seeded else [None]
        steps[row.name] = [Step(row, seed, folders, needs, kept) for seed in numbers]
    return [step for of_row in steps.values() for step in of_row]


def choose(steps: Sequence[Step], only: list[str], families: list[str], recorded: Container) -> list[Step]:
    """The steps of these tasks and families, or of all if none is named, and those that they need.

    All rows come with their first seed, then all with the next one, so that a table that is stopped early can compare
    its rows. Of a (row, seed) that is `recorded`, only what others need.
    """
    chosen: list[Step] = []
    for step in reversed(steps):
        row, seed = step.row, str(step.seed or FIRST_SEED)
        is_asked = row.scores and (not only or row.task in only) and (not families or row.family in families)
        if (is_asked and (row.name, seed) not in recorded) or any(row.name in other.row.needs for other in chosen):
            chosen.insert(0, step)
    return sorted(chosen, key=lambda step: step.seed or FIRST_SEED)


def read_recipe(row: Row) -> dict[str, Any]:
    """The flags in the recipe's file; none if the row has no recipe."""
    return yaml.load(files.read_text(Path(find_config(row.recipe))), LOADER) if row.recipe else {}


# Whether a step has been carried out


def digest(step: Step) -> str | None:
    """A digest of all that the results of the step depend on, but the seed.

    It is the same on other machines: it has the contents of models and of files with data instead of their paths.
    It is None if something that the step, or one that it needs, reads is not here.
    """
    row = step.row
    flags = {name: [asdict(place) for place in places(value)] or value for name, value in row.flags.items()}
    found = [sorted(glob(path)) for path in step.inputs("data", "model")]
    contents = _contents(Path(path) for paths in found for path in paths)
    contents += [_contents([Path(name)]) if Path(name).is_dir() else name for name in step.inputs("hub model")]
    needed = [digest(other) for other in {other.row.name: other for other in step.needs}.values()]
    recipe = {name: value for name, value in read_recipe(row).items() if name not in WITHOUT_EFFECT}
    values = json.dumps([row.script, recipe, flags, row.overrides, contents, needed], sort_keys=True)
    return hashlib.sha256(values.encode()).hexdigest() if all(found) and None not in needed else None


def _contents(paths: Iterable[Path]) -> list[str]:
    """The digests of files, and of models by their configuration and their checksums."""
    names = ("", "config.json", output_folder.SHA256SUMS)
    return [files.file_digest(path / name) for path in paths for name in names if (path / name).is_file()]


def parse(step: Step) -> RunArguments:
    """The arguments of a run. Raises ValueError where the command would end with status 2, such as for a wrong key."""
    module = importlib.import_module(f"{SCRIPTS}.{step.row.script}")
    classes = [value for value in vars(module).values() if isinstance(value, type) and issubclass(value, RunArguments)]
    printed = io.StringIO()
    try:
        with contextlib.redirect_stderr(printed):
            return parse_arguments(next(each for each in classes if each.__module__ == module.__name__), step.words)
    except SystemExit as error:
        raise InputError(printed.getvalue().strip().partition("error: ")[2]) from error


def results_of(step: Step) -> dict[str, Any] | None:
    """The metrics.json of a run; None if it has not finished.

    Raises ValueError for that of a run with other flags, data or configuration, which may have cost hours.
    """
    return read_finished(step.output, parse(step), absent=True)


def is_finished(step: Step) -> bool:
    """Whether the results of the step are there. Raises ValueError for those of another run."""
    if step.row.is_run:
        return results_of(step) is not None
    made, now = step.output / MADE_OF, made_of(step)
    return now["digest"] is not None and made.is_file() and files.read_json(made) == now


def made_of(step: Step) -> dict[str, Any]:
    """What the output of a conversion depends on: its digest, and the contents of all files that its words name.

    Some are in no digest: configurations of this project, and files in the output of other steps.
    """
    words = [word for word in step.words if Path(word) != step.output]
    return {"digest": digest(step), "contents": _contents(Path(find_config(word)) for word in words)}


def complete(step: Step) -> None:
    """Leaves of a finished run its results and its card, and what others read. Notes what a conversion was made of."""
    with files.writing(step.output):
        if not step.row.is_run:
            if not is_finished(step):  # the list of checksums, which digests have, stays the same
                output_folder.write_checksums(step.output)
                files.write_json(step.output / MADE_OF, made_of(step))
        elif not step.kept:
            output_folder.remove_all_but_results(step.output, keep_card=True)
        for checkpoint in output_folder.matching_folders(step.output, output_folder.CHECKPOINT):
            if checkpoint.name not in step.kept:
                files.remove_folder(checkpoint)


# The runner


@dataclass
class Job:
    """A step whose command runs."""

    step: Step
    process: subprocess.Popen
    devices: str  # its GPUs, as CUDA_VISIBLE_DEVICES has them; "": all
    started: float
    made_of: dict[str, Any] | None = None  # of a conversion, when it began


def run_steps(steps: Sequence[Step], jobs: int) -> dict[str, str]:
    """Carries out the steps that have not finished, `jobs` at once; returns name -> reason of those that failed.

    Ctrl-C and SIGTERM stop the commands, which save what they need to go on. A second call does the rest, also after
    a kill at any other moment.
    """
    waiting, running, failures = list(steps), [], {}
    free = share_devices(jobs)
    with stop_signals() as received:
        try:
            while waiting or running:
                while free and not received and (step := take_next(waiting, running)):
                    with reported(step, failures):
                        if has_to_run(step, failures):
                            running.append(start(step, jobs, free[0]))
                            free.pop(0)
                if received:
                    raise Interrupted("interrupted: the same command goes on from here")
                time.sleep(POLL_SECONDS)
                for job in [job for job in running if job.process.poll() is not None]:
                    running.remove(job)
                    free.append(job.devices)
                    with reported(job.step, failures):
                        finish(job)
                        minutes, left = (time.monotonic() - job.started) / 60, len(waiting) + len(running)
                        print(f"{job.step.name}: {minutes:.1f} minutes, {left} left")
        finally:
            for job in running:
                job.process.terminate()
            for job in running:
                job.process.wait()
    return failures


@contextlib.contextmanager
def reported(step: Step, failures: dict[str, str]) -> Iterator[None]:
    """Prints the mistake of a user for which the step failed, and adds it to the failures; other steps go on."""
    try:
        yield
    except UserError as error:
        failures[step.name] = str(error)
        print(f"{step.name}: FAILED: {error}")


def take_next(waiting: list[Step], running: Sequence[Job]) -> Step | None:
    """Takes out the first of those that wait whose needs are neither waiting nor running."""
    busy = {step.row.name for step in [*waiting, *(job.step for job in running)]}
    for step in waiting:
        if not step.row.needs & busy:
            waiting.remove(step)
            return step
    return None


def has_to_run(step: Step, failures: Collection[str]) -> bool:
    """Whether the step has to be run. Raises UserError if it cannot, or if other results are in its place."""
    missing = sorted(path for path in step.inputs("data", "model") if not glob(path))
    failed = sorted(step.row.needs & {*failures})
    if missing:
        raise InputError(f"{missing[0]} does not exist: name its place with --data_root or --models")
    if failed:
        raise LaunchError(f"it needs {', '.join(failed)}")
    if is_finished(step):
        print(f"{step.name}: had finished before")
        complete(step)
        return False
    return True


def start(step: Step, jobs: int, devices: str) -> Job:
    """Starts the command with this interpreter, and with the script where it is, in whichever directory it runs."""
    print(f"{step.name}: {shlex.join(step.command)}")
    begun_with = None if step.row.is_run else made_of(step)
    if not step.row.is_run and step.output.is_dir():
        with files.writing(step.output):
            files.remove_folder(step.output)  # what a conversion has left of other input
    files.make_folder(step.output.parent)
    with files.writing(step.log):
        log = step.log.open("a", encoding="utf-8")
    environment = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // jobs))} | os.environ
    environment |= {"CUDA_VISIBLE_DEVICES": devices} if devices else {}
    with log:
        process = subprocess.Popen(
            executable(step), stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=environment
        )
    return Job(step, process, devices, time.monotonic(), begun_with)


def executable(step: Step) -> list[str]:
    script = step.row.script
    program = [importlib.util.find_spec(f"{SCRIPTS}.{script}").origin] if step.row.is_run else ["-m", script]
    return [sys.executable, *program, *step.words]


def finish(job: Job) -> None:
    """Completes the step whose command has ended. Raises UserError if the command did not carry it out."""
    step, status = job.step, job.process.returncode
    if status:
        raise LaunchError(f"{_last_line(step.log)} (status {status}; all of it is in {step.log})")
    if step.row.is_run and not is_finished(step):
        raise LaunchError(f"it wrote no metrics.json; {step.log} has what it printed")
    if not step.row.is_run and made_of(step) != job.made_of:
        raise InputError("a file that it reads has changed since it began")
    complete(step)


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
