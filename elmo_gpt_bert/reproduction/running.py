"""Carries out steps, several at once, and goes on after one that fails."""

import os
import shlex
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from glob import glob
from pathlib import Path
from typing import TextIO

import torch

from elmo_gpt_bert.training.command_line import Interrupted, stop_signals
from elmo_gpt_bert.training.errors import UserError
from elmo_gpt_bert.training.files import writing

from .steps import Step, begin, complete, executable, is_finished


POLL_SECONDS = 0.2


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
    """The steps that wait, run, and are done, and the reasons of those that failed."""

    waiting: list[Step]
    failures: dict[str, str]
    done: int = 0

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
                    self.finish(step, "had finished before")
                    complete(step)
                else:
                    return step
            except UserError as error:
                self.fail(step, str(error))
        return None

    def finish(self, step: Step, how: str) -> None:
        self.done += 1
        print(f"{step.name}: {how}")

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
                    seconds = time.monotonic() - job.started
                    why = job.failure()
                    how = f"{seconds / 60:.1f} minutes, {len(progress.waiting) + len(running)} left"
                    progress.fail(job.step, why) if why else progress.finish(job.step, how)
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
