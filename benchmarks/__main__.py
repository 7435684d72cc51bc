"""Measures this zoo against other implementations and prints a Markdown table.

python -m benchmarks [ROW or MODEL ...] [--settings fp32 medium bf16 portable mixed] [--threads N ...]
    [--device cuda] [--quick] [--json FILE]
python -m benchmarks --show FILE
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Collection
from dataclasses import dataclass, field, fields
from pathlib import Path

import torch

from . import STARTED, attention, bert, elmo, gpt, gpu, overhead, serving
from .limits import matrix_peak, read_bandwidth
from .measure import CPU, Build, Contest, Side, added_memory, assert_equal, clock_of, results_file, take_turns
from .precision import matrix_setting, model_dtype
from .reporting import describe_limits, describe_machine, markdown, print_head, print_machine, write_json


# The rows of each model, of attention, and those that only a GPU runs unless they are named. A name stands for all of
# its rows.
MODELS: dict[str, Collection[str]] = {
    "bert": bert.ROWS,
    "elmo": elmo.ROWS,
    "gpt": gpt.ROWS,
    "attention": attention.ROWS,
    "overhead": overhead.ROWS,
    "serving": serving.ROWS,
    "gpu": gpu.ORDER,
}
ROWS: dict[str, tuple[str, Build]] = (
    bert.ROWS | elmo.ROWS | gpt.ROWS | attention.ROWS | overhead.ROWS | serving.ROWS | gpu.ROWS
)

# Precision of the side and of its baseline.
SETTINGS = {
    "fp32": ("highest", "highest"),  # as torch ships
    "medium": ("medium", "medium"),
    "bf16": ("bf16", "bf16"),
    "portable": ("portable", "highest"),  # ours without oneDNN's products
    "mixed": ("medium", "highest"),  # compares different precisions, so only on request
}
DEFAULT_SETTINGS = ["fp32", "portable", "bf16"]
GPU_SETTINGS = ["fp32", "bf16"]  # oneDNN is for the CPU
TURN_SECONDS, QUICK_TURN_SECONDS = 0.3, 0.2  # at least, of one side's turn
QUICK_SECONDS = 400  # with the start of the command, in which --quick has to end


@dataclass(frozen=True)
class Result:
    """One line of a table. Times are in milliseconds, memory is in MB, ratios are baseline / side."""

    row: str
    title: str
    setting: str
    side: str
    baseline: str
    work: str
    device: str
    threads: int
    cpu_ms: float
    baseline_cpu_ms: float
    cpu_ratio: float
    lowest_cpu_ratio: float
    highest_cpu_ratio: float
    wall_ms: float
    baseline_wall_ms: float
    wall_ratio: float
    lowest_wall_ratio: float
    highest_wall_ratio: float
    pairs: int
    difference: float
    tolerance: float
    limit: str  # products or reads
    share: float | None  # of that limit of the device; None in records of the first days
    baseline_share: float | None
    peak_mb: float | None
    baseline_peak_mb: float | None
    items_per_second: float | None
    baseline_items_per_second: float | None
    items: str | None  # tokens or sentences


@dataclass(frozen=True)
class RunResult:
    """One line of a table, for a run of a script."""

    row: str
    command: str
    seconds: float
    train_loss: float
    eval_accuracy: float


def measure(
    row: str, setting: str, tiny: bool, pairs: int, device: torch.device, turn_seconds: float = TURN_SECONDS
) -> Result | RunResult:
    """Measures one row in one setting, in `pairs` pairs of turns of so many seconds. A run has its own setting.

    Raises:
        DifferentResults: if the results of the two sides differ.
    """
    if row in gpu.RUNS:
        return measure_run(row, tiny, device)
    title, build = ROWS[row]
    precisions = SETTINGS[setting]
    contest = build(*precisions, tiny, device)
    difference = assert_equal(contest)
    timing = take_turns(contest, pairs, seconds=0.0 if tiny else turn_seconds)
    side, baseline = contest.side, contest.baseline
    limit, baseline_limit = (limit_of(contest, precision) for precision in precisions)
    return Result(
        row=row,
        title=title,
        setting=setting,
        side=side.name,
        baseline=baseline.name,
        work=contest.work,
        device=device.type,
        threads=torch.get_num_threads(),
        cpu_ms=1000 * timing.cpu_seconds,
        baseline_cpu_ms=1000 * timing.baseline_cpu_seconds,
        cpu_ratio=timing.cpu_ratio,
        lowest_cpu_ratio=min(timing.cpu_ratios),
        highest_cpu_ratio=max(timing.cpu_ratios),
        wall_ms=1000 * timing.wall_seconds,
        baseline_wall_ms=1000 * timing.baseline_wall_seconds,
        wall_ratio=timing.wall_ratio,
        lowest_wall_ratio=min(timing.wall_ratios),
        highest_wall_ratio=max(timing.wall_ratios),
        pairs=len(timing.cpu_ratios),
        difference=difference,
        tolerance=contest.tolerance,
        limit=contest.need.limit,
        share=timing.rate / limit,
        baseline_share=timing.baseline_rate / baseline_limit,
        peak_mb=peak_of(side, device),
        baseline_peak_mb=peak_of(baseline, device),
        items_per_second=timing.item_rate,
        baseline_items_per_second=timing.baseline_item_rate,
        items=contest.unit if contest.items else None,
    )


def measure_run(row: str, tiny: bool, device: torch.device) -> RunResult:
    """What a whole run took, and what it learned."""
    record = gpu.RUNS[row].run(tiny, device.type)
    scores = (record[name] for name in ("seconds", "train_loss", "eval_accuracy"))
    return RunResult(row, gpu.RUNS[row].title, *scores)


def peak_of(side: Side, device: torch.device) -> float | None:
    """MB: of a process that does the work of the row, if the row reports it; on a GPU, of what a run adds."""
    if device.type == "cuda":
        return added_memory(lambda: side.run(0), device)
    return side.peak_memory() if side.peak_memory else None


def limit_of(contest: Contest, precision: str) -> float:
    """What the device can do at most of what limits the row, per second of its clock."""
    if contest.need.limit == "reads":
        return read_bandwidth(contest.device)
    return matrix_peak(contest.device, model_dtype(precision), matrix_setting(precision))


COLUMNS = ["row", "what", "on", "setting", "compared"]
TIMES = {"cpu": ["CPU ms", "CPU time ratio", "wall"], "wall": ["wall ms", "wall ratio", "CPU time"]}


def header(device: torch.device) -> list[str]:
    """The first ratio is that of the device's clock."""
    return [*COLUMNS, *TIMES[clock_of(device)], "difference", "% of limit", "peak MB", "per second"]


def table_line(result: Result | RunResult) -> list[str]:
    if isinstance(result, RunResult):
        loss = f"{result.seconds:.0f} s, train loss {result.train_loss:.3f}, dev accuracy {result.eval_accuracy:.3f}"
        return [result.row, result.command, loss]
    clock = clock_of(torch.device(result.device))
    other = "wall" if clock == "cpu" else "cpu"
    ms, baseline_ms, ratio, lowest, highest = (
        getattr(result, name.format(clock))
        for name in ("{}_ms", "baseline_{}_ms", "{}_ratio", "lowest_{}_ratio", "highest_{}_ratio")
    )
    ours, theirs = result.share, result.baseline_share
    shares = "" if ours is None else f"{100 * ours:.0f} : {100 * theirs:.0f} {result.limit}"
    memory = "" if result.peak_mb is None else f"{result.peak_mb:.0f} : {result.baseline_peak_mb:.0f}"
    rates = result.items_per_second, result.baseline_items_per_second
    per_second = "" if None in rates else f"{rates[0]:,.0f} : {rates[1]:,.0f} {result.items}"
    return [
        result.row,
        result.title,
        result.work,
        result.setting,
        f"{result.side} : {result.baseline}",
        f"{ms:.0f} : {baseline_ms:.0f}",
        f"**{ratio:.2f}** ({lowest:.2f} - {highest:.2f})",
        f"{getattr(result, f'{other}_ratio'):.2f}",
        f"{result.difference:.0e}",
        shares,
        memory,
        per_second,
    ]


@dataclass
class Report:
    """What the table has so far. The file of --json is written again with each row, so that a cut leaves the others.

    Attributes:
        failures: rows without a result, each with its setting and the reason.
        unmeasured: rows for which --quick had no time.
    """

    path: Path | None
    machine: dict[str, object] = field(default_factory=dict)
    limits: list[dict[str, object]] = field(default_factory=list)
    results: list[Result | RunResult] = field(default_factory=list)
    failures: list[dict[str, str]] = field(default_factory=list)
    unmeasured: list[str] = field(default_factory=list)

    def write(self) -> None:
        values = {name: value for name, value in vars(self).items() if name != "path"}
        write_json(self.path, values | {"results": [vars(result) for result in self.results]})


def show(path: Path) -> None:
    """Prints the tables of a file that --json has written, or of a record, which lacks what was never printed."""
    document = json.loads(path.read_text(encoding="utf-8"))
    machine, absent = document.pop("machine"), dict.fromkeys(field.name for field in fields(Result))
    print(*(document.pop(name) for name in ("command", "note") if name in document), sep="\n")
    for limits in document.get("limits", [{}]):
        print_machine(machine | limits)
        rows = [row for row in document.get("results", []) if row.get("threads") in (None, limits.get("threads"))]
        results = [RunResult(**row) if "command" in row else Result(**absent | row) for row in rows]
        if results:
            print_head(header(torch.device("cuda" if "device" in machine else "cpu")))
            print(*(markdown(table_line(result)) for result in results), sep="\n")
    for name, rows in document.items():
        if isinstance(rows, list) and rows and isinstance(rows[0], list):  # as the commands of whole runs write them
            print(f"\n{name}")
            print_head(rows[0])
            print(*map(markdown, rows[1:]), sep="\n")


def main(argv: list[str] | None = None, started: float | None = None) -> list[Result | RunResult]:
    """Prints a table for each number of threads; ends with status 1 if a row of a quick run has failed.

    started: when the command was started, as `time.monotonic` has it; default: now
    """
    started = time.monotonic() if started is None else started
    parser = argparse.ArgumentParser("python -m benchmarks", description=__doc__.splitlines()[0])
    names = ", ".join((*MODELS, *ROWS, *gpu.RUNS))
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"{names}; all of them when none is named")
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, help=f"default: {', '.join(DEFAULT_SETTINGS)}")
    parser.add_argument("--pairs", type=int, default=3, help="how many times the sides take turns")
    parser.add_argument(
        "--threads",
        type=int,
        nargs="+",
        metavar="N",
        help="torch's threads, one table for each; default: its own choice",
    )
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--quick", action="store_true", help=f"bf16, in {QUICK_SECONDS} s; a row may fail")
    parser.add_argument("--size", choices=["full", "tiny"], default="full", help="tiny only tests that the rows run")
    parser.add_argument("--json", type=results_file, metavar="FILE", help="also write the results to this file")
    parser.add_argument("--show", type=Path, metavar="FILE", help="print the tables of a file of --json, and end")
    args = parser.parse_args(argv)
    if args.show is not None:
        try:
            show(args.show)
        except (OSError, ValueError, KeyError, TypeError) as error:
            parser.error(f"--show {args.show} cannot be read: {error!r}")
        return []
    if unknown := [row for row in args.rows if row not in (*MODELS, *ROWS, *gpu.RUNS)]:
        parser.error(f"no row is called {', '.join(unknown)}; there are {names}")
    if args.pairs < 1 or min(args.threads or [1]) < 1:
        parser.error("--pairs and --threads must be positive")
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: torch finds no GPU here")
    device, report = torch.device(args.device), Report(args.json)
    end = started + QUICK_SECONDS if args.quick else float("inf")
    for threads in args.threads or [torch.get_num_threads()]:
        torch.set_num_threads(threads)
        print_table(args, device, report, end)
    if report.failures:
        sys.exit(f"{len(report.failures)} rows failed: {', '.join(failure['row'] for failure in report.failures)}")
    return report.results


def print_table(args: argparse.Namespace, device: torch.device, report: Report, end: float = float("inf")) -> None:
    """Measures the rows that the command line names, and prints each as soon as it is there.

    end: the time after which no row of a quick run must be expected to end
    """
    machine, limits = describe_machine(device), describe_limits(device)
    print_machine(machine)
    report.machine = {name: value for name, value in machine.items() if name not in limits}
    report.limits.append(limits)
    print_head(header(device))
    report.write()
    for row, setting in lines(args, device):
        if time.monotonic() + gpu.expected_seconds(row) > end:
            report.unmeasured.append(row)
        else:
            print_row(row, setting, args, device, report)
        report.write()
    print(f"\nunmeasured: {', '.join(report.unmeasured)}" if report.unmeasured else "")


def print_row(row: str, setting: str, args: argparse.Namespace, device: torch.device, report: Report) -> None:
    """Measures a row and prints it. If it fails, so does the command, but with --quick the next row begins."""
    try:
        turn_seconds = QUICK_TURN_SECONDS if args.quick else TURN_SECONDS
        result = measure(row, setting, args.size == "tiny", args.pairs, device, turn_seconds)
        report.results.append(result)
        print(markdown(table_line(result)), flush=True)
    except Exception as error:
        if not args.quick:
            raise
        report.failures.append({"row": row, "setting": setting, "reason": reason_of(error)})
        print(f"{row} FAILED: {report.failures[-1]['reason']}", flush=True)


def reason_of(error: Exception) -> str:
    """One line. Of a command that failed, its first line of errors that names one."""
    text = str(error)
    if isinstance(error, subprocess.CalledProcessError):
        text = next((line for line in error.stderr.splitlines() if "error:" in line.lower()), text)
    return f"{type(error).__name__}: {' '.join(text.split())}"


def lines(args: argparse.Namespace, device: torch.device) -> list[tuple[str, str]]:
    """The rows that the command line names, each with one of its settings, those of a GPU first."""
    every = ["gpu"] if args.quick and device.type == "cuda" else MODELS
    elsewhere = ["gpu"] if device == CPU else serving.CONVERTED  # what is not for this device, unless it is named
    names = set(args.rows or [model for model in every if model not in elsewhere])
    models = sorted(MODELS, key=lambda model: model != "gpu")
    rows = [row for model in models for row in MODELS[model] if {model, row} & names]
    rows = [row for row in rows if row in names or row not in elsewhere]

    def settings_of(row: str) -> list[str]:
        if row in serving.CONVERTED:  # from fp32
            return ["fp32"]
        if args.quick or row in gpu.ORDER:  # whose attention computes in bf16
            return ["bf16"]
        return DEFAULT_SETTINGS if device == CPU else GPU_SETTINGS

    return [(row, setting) for row in rows for setting in args.settings or settings_of(row)]


if __name__ == "__main__":
    main(started=STARTED)
