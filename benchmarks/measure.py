"""Compares two implementations: first their results, then the time of each, in turns, and the memory of each.

A ratio is computed within each pair of turns, and the median over the pairs is reported. So a machine that speeds up
or slows down affects both sides alike. There are two clocks: the CPU time of this process, summed over its threads,
and wall time, which is the time that a user waits. With one thread, CPU time hardly depends on other processes. With
several threads it does: threads that wait for each other spin, and on a shared machine they wait long.
"""

import argparse
import functools
import multiprocessing
import resource
import statistics
import sys
import time
from collections.abc import Callable, Collection
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import TypeVar

import torch

from modeling.shared.modeling_onednn import linear


Outputs = dict[str, torch.Tensor]
Result = TypeVar("Result")


class DifferentResults(RuntimeError):
    """The results of the two sides differ, so their speeds cannot be compared."""


@dataclass(frozen=True)
class Side:
    """One of the two implementations that are compared.

    Attributes:
        name: the name in the table.
        run: does the work on input number i; the other side's `run(i)` does the same work.
        check: returns the results of this side on one input, without dropout.
        peak_memory: returns the peak memory in MB, measured in a separate process; None if the row reports none.
    """

    name: str
    run: Callable[[int], object]
    check: Callable[[], Outputs]
    peak_memory: Callable[[], float] | None = None


@dataclass(frozen=True)
class Contest:
    side: Side
    baseline: Side
    work: str  # a description of the input of one turn
    tolerance: float  # the limit of `largest_difference`
    flop: Callable[[int], float] | None = None  # multiplications and additions that `run(i)` needs at least


Build = Callable[[str, str, bool], Contest]  # makes a row's contest: (precision, baseline's precision, tiny)


@dataclass(frozen=True)
class Timing:
    """The seconds of one `run`, as medians over the pairs, and the ratio baseline time / side time of each pair.

    The rates are `Contest.flop` per CPU second, also as medians; None if the contest has no `flop`.
    """

    cpu_seconds: float
    baseline_cpu_seconds: float
    cpu_ratios: list[float]
    wall_ratios: list[float]
    rate: float | None
    baseline_rate: float | None

    @property
    def cpu_ratio(self) -> float:
        return statistics.median(self.cpu_ratios)

    @property
    def wall_ratio(self) -> float:
        return statistics.median(self.wall_ratios)


def largest_difference(outputs: Outputs, expected: Outputs) -> float:
    """The largest difference of any two numbers, relative to the largest number of their tensor."""
    if outputs.keys() != expected.keys():
        raise DifferentResults(f"One side computes {sorted(outputs)}, the other {sorted(expected)}.")
    differences = []
    for name, theirs in expected.items():
        ours = outputs[name].float()
        theirs = theirs.float()
        if ours.shape != theirs.shape:
            raise DifferentResults(f"{name} has two shapes: {tuple(ours.shape)} and {tuple(theirs.shape)}.")
        differences.append((ours - theirs).abs().max() / theirs.abs().max())
    return torch.stack(differences).max().item()  # NaN if any difference is NaN


def assert_equal(contest: Contest) -> float:
    """The largest difference between the two sides' results.

    Raises:
        DifferentResults: if the difference exceeds the contest's tolerance or is NaN.
    """
    difference = largest_difference(contest.side.check(), contest.baseline.check())
    if not difference <= contest.tolerance:
        raise DifferentResults(
            f"{contest.side.name} and {contest.baseline.name} differ by {difference:.1e} of the largest value on "
            f"{contest.work}; {contest.tolerance:.0e} is allowed. Nothing was timed."
        )
    return difference


def take_turns(contest: Contest, pairs: int, seconds: float) -> Timing:
    """Times the two sides in turns A B A B ..., where each turn takes at least about `seconds` of wall time.

    In each pair of turns, both sides work on the same inputs; other pairs have other inputs.
    """
    quickest = _quickest(contest)
    if quickest < seconds:  # the first run may be slower than later ones
        quickest = _quickest(contest)
    repeats = max(1, ceil(seconds / quickest))
    ours, theirs, work = [], [], []
    for pair in range(pairs):
        inputs = list(range(pair * repeats, (pair + 1) * repeats))
        ours.append(_turn(contest.side, inputs))
        theirs.append(_turn(contest.baseline, inputs))
        work.append(sum(map(contest.flop, inputs)) if contest.flop else None)
    ratios = [[b / a for a, b in zip(mine, base, strict=True)] for mine, base in zip(ours, theirs, strict=True)]
    cpu_ratios, wall_ratios = map(list, zip(*ratios, strict=True))
    return Timing(
        cpu_seconds=statistics.median(cpu for cpu, _ in ours) / repeats,
        baseline_cpu_seconds=statistics.median(cpu for cpu, _ in theirs) / repeats,
        cpu_ratios=cpu_ratios,
        wall_ratios=wall_ratios,
        rate=_rate(work, ours),
        baseline_rate=_rate(work, theirs),
    )


def _rate(work: list[float | None], turns: list[tuple[float, float]]) -> float | None:
    if None in work:
        return None
    return statistics.median(flop / cpu for flop, (cpu, _) in zip(work, turns, strict=True))


def _quickest(contest: Contest) -> float:
    """The wall seconds of the faster side's run."""
    return min(_turn(side, [0])[1] for side in (contest.side, contest.baseline))


def _turn(side: Side, inputs: list[int]) -> tuple[float, float]:
    def run_all() -> None:
        for index in inputs:
            side.run(index)

    return timed(run_all)


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """(CPU seconds, wall seconds) of a call."""
    cpu, wall = time.process_time(), time.perf_counter()
    work()
    return time.process_time() - cpu, time.perf_counter() - wall


@functools.cache
def matrix_peak(dtype: torch.dtype) -> float:
    """Multiplications and additions per CPU second in a large matrix product, the best of several.

    It uses oneDNN where that is faster than torch's choice, in any setting, because it measures the limit of the chip.
    """
    size, seconds = 2048, []
    factors = torch.rand(size, size).to(dtype)
    with torch.inference_mode():
        for _ in range(5):
            before = time.process_time()
            linear(factors, factors)
            seconds.append(time.process_time() - before)
    return 2 * size**3 / min(seconds)


def peak_memory(work: Callable[..., object], *args) -> float:
    """The peak memory in MB of a new process that runs `work(*args)`, with interpreter and libraries."""
    return in_new_process(work, *args)[1]


def in_new_process(work: Callable[..., Result], *args) -> tuple[Result, float]:
    """What `work(*args)` returns in a new process, and the peak memory of that process in MB."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
        return process.submit(_work_and_peak, work, *args).result()


def _work_and_peak(work: Callable[..., Result], *args) -> tuple[Result, float]:
    return work(*args), _peak_here()


def _peak_here() -> float:
    status = Path("/proc/self/status")
    if status.exists():
        # Not ru_maxrss: on Linux, a new process inherits the value of its parent.
        (line,) = (line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) / 1024  # kB
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 1024  # bytes on macOS, kB elsewhere


def parse_tables(
    parser: argparse.ArgumentParser, tables: Collection[str], argv: list[str] | None
) -> argparse.Namespace:
    """Parses the command line of a benchmark that prints `tables`: names, --pairs, --size, --json and its own."""
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=f"{', '.join(tables)}; all when none is named")
    parser.add_argument("--pairs", type=int, default=3, help="how many times the sides take turns")
    parser.add_argument("--size", choices=["full", "tiny"], default="full", help="tiny only tests the commands")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the tables to this file")
    args = parser.parse_args(argv)
    if args.pairs < 1:
        parser.error("--pairs must be positive")
    if unknown := [table for table in args.tables if table not in tables]:
        parser.error(f"no table is called {', '.join(unknown)}; there are {', '.join(tables)}")
    return args
