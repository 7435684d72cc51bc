"""Compares two implementations: first their results, then the time of each, in turns, and the memory of each.

A ratio is computed within each pair of turns, and the median over the pairs is reported. So a machine that speeds up
or slows down affects both sides alike. There are two clocks: the CPU time of this process, summed over its threads,
and wall time, which is the time that a user waits. With one thread, CPU time hardly depends on other processes. With
several threads it does: threads that wait for each other spin, and on a shared machine they wait long. On a GPU only
wall time says how long the work takes.
"""

import argparse
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
from typing import Literal, NamedTuple, TypeVar

import torch


CPU = torch.device("cpu")
Clock = Literal["cpu", "wall"]
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
class Need:
    """What `run(i)` needs at least of that which limits it.

    Attributes:
        limit: FLOPs of matrix products, or bytes that are read from memory.
        amount: how many `run(i)` needs.
    """

    limit: Literal["products", "reads"]
    amount: Callable[[int], float]


@dataclass(frozen=True)
class Contest:
    side: Side
    baseline: Side
    work: str  # a description of the input of one turn
    tolerance: float  # the limit of `largest_difference`
    need: Need | None = None
    device: torch.device = CPU
    items: Callable[[int], int] | None = None  # how many real tokens `run(i)` computes; None if the row reports none
    unit: str = "tokens"  # or what `items` counts in their place


# Makes a row's contest: (precision, baseline's precision, tiny, device)
Build = Callable[[str, str, bool, torch.device], Contest]


class Seconds(NamedTuple):
    cpu: float  # of all threads
    wall: float


@dataclass(frozen=True)
class Timing:
    """The seconds of one `run`, as medians over the pairs, and the ratio baseline time / side time of each pair.

    The rates are what the contest needs, and its items, per second of the device's clock, also as medians; None if it
    names none.
    """

    cpu_seconds: float
    baseline_cpu_seconds: float
    wall_seconds: float
    baseline_wall_seconds: float
    cpu_ratios: list[float]
    wall_ratios: list[float]
    rate: float | None
    baseline_rate: float | None
    item_rate: float | None
    baseline_item_rate: float | None

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

    In each pair of turns, both sides work on the same inputs; other pairs have other inputs. On a GPU, both work on
    them once before: the first batch of a shape also loads its kernels and takes memory from the system.
    """
    quickest = _quickest(contest)
    if quickest < seconds:  # the first run may be slower than later ones
        quickest = _quickest(contest)
    repeats = max(1, ceil(seconds / quickest))
    ours, theirs, needs, items = [], [], [], []
    for pair in range(pairs):
        inputs = list(range(pair * repeats, (pair + 1) * repeats))
        if contest.device.type != "cpu":
            for side in (contest.side, contest.baseline):
                _turn(side, inputs, contest.device)
        ours.append(_turn(contest.side, inputs, contest.device))
        theirs.append(_turn(contest.baseline, inputs, contest.device))
        needs.append(sum(map(contest.need.amount, inputs)) if contest.need else None)
        items.append(sum(map(contest.items, inputs)) if contest.items else None)
    ratios = [[b / a for a, b in zip(mine, base, strict=True)] for mine, base in zip(ours, theirs, strict=True)]
    cpu_ratios, wall_ratios = map(list, zip(*ratios, strict=True))
    clock = clock_of(contest.device)
    medians = [statistics.median(times) / repeats for side in (ours, theirs) for times in zip(*side, strict=True)]
    return Timing(
        cpu_seconds=medians[0],
        baseline_cpu_seconds=medians[2],
        wall_seconds=medians[1],
        baseline_wall_seconds=medians[3],
        cpu_ratios=cpu_ratios,
        wall_ratios=wall_ratios,
        rate=_rate(needs, ours, clock),
        baseline_rate=_rate(needs, theirs, clock),
        item_rate=_rate(items, ours, clock),
        baseline_item_rate=_rate(items, theirs, clock),
    )


def _rate(amounts: list[float | None], turns: list[Seconds], clock: Clock) -> float | None:
    if None in amounts:
        return None
    return statistics.median(amount / getattr(turn, clock) for amount, turn in zip(amounts, turns, strict=True))


def _quickest(contest: Contest) -> float:
    """The wall seconds of the faster side's run."""
    return min(_turn(side, [0], contest.device).wall for side in (contest.side, contest.baseline))


def _turn(side: Side, inputs: list[int], device: torch.device) -> Seconds:
    def run_all() -> None:
        for index in inputs:
            side.run(index)

    return timed(run_all, device)


def timed(work: Callable[[], object], device: torch.device = CPU) -> Seconds:
    """The seconds of a call, until all of its work on that device is done."""
    _wait_for(device)
    cpu, wall = time.process_time(), time.perf_counter()
    work()
    _wait_for(device)
    return Seconds(time.process_time() - cpu, time.perf_counter() - wall)


def _wait_for(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def clock_of(device: torch.device) -> Clock:
    """The clock that tells how much a device has worked."""
    return "cpu" if device.type == "cpu" else "wall"


def added_memory(work: Callable[[], object], device: torch.device) -> float:
    """The MB of tensors on the GPU that `work()` adds at its peak to those that are there before."""
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    work()
    return (torch.cuda.max_memory_allocated(device) - before) / 2**20


def peak_memory(work: Callable[..., object], *args) -> float:
    """The peak memory in MB of a new process that runs `work(*args)`: as in `in_new_process`."""
    return in_new_process(work, *args)[1]


def in_new_process(work: Callable[..., Result], *args) -> tuple[Result, float]:
    """What `work(*args)` returns in a new process, and the peak memory of that process in MB.

    It is that of tensors on the GPU if the process uses one, else of the process with interpreter and libraries.
    """
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
        return process.submit(_work_and_peak, work, *args).result()


def _work_and_peak(work: Callable[..., Result], *args) -> tuple[Result, float]:
    return work(*args), _peak_here()


def _peak_here() -> float:
    if torch.cuda.is_initialized():
        return torch.cuda.max_memory_allocated() / 2**20
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
    parser.add_argument("--json", type=results_file, metavar="FILE", help="also write the tables to this file")
    args = parser.parse_args(argv)
    if args.pairs < 1:
        parser.error("--pairs must be positive")
    if unknown := [table for table in args.tables if table not in tables]:
        parser.error(f"no table is called {', '.join(unknown)}; there are {', '.join(tables)}")
    return args


def results_file(name: str) -> Path:
    """The type of --json. Its folder must be there, because the file is written when all is measured."""
    path = Path(name)
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise argparse.ArgumentTypeError(f"{name} must be a file in a folder that exists")
    return path
