"""Measures this zoo against other implementations and prints a Markdown table.

python -m benchmarks [ROW ...] [--settings fp32 medium bf16 mixed] [--threads N] [--json FILE]
"""

import argparse
import datetime
import json
import os
import platform
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers

from training.reporting import device_name

from . import bert
from .measure import Contest, assert_equal, medium_rounds, take_turns


ROWS = {**bert.ROWS}

# Precision of the side and of its baseline.
SETTINGS = {
    "fp32": ("highest", "highest"),  # as torch ships
    "medium": ("medium", "medium"),
    "bf16": ("bf16", "bf16"),
    "mixed": ("medium", "highest"),  # not like with like: only on request
}


@dataclass(frozen=True)
class Result:
    """One line of the table. Times in milliseconds, memory in MB, ratios baseline : side."""

    row: str
    title: str
    setting: str
    side: str
    baseline: str
    work: str
    cpu_ms: float
    baseline_cpu_ms: float
    cpu_ratio: float
    lowest_cpu_ratio: float
    highest_cpu_ratio: float
    wall_ratio: float
    pairs: int
    difference: float
    tolerance: float
    peak_mb: float | None
    baseline_peak_mb: float | None


def measure(row: str, setting: str, tiny: bool) -> Result:
    """One row in one setting.

    Raises:
        DifferentResults: when the two sides do not compute the same.
    """
    title, build = ROWS[row]
    contest: Contest = build(*SETTINGS[setting], tiny)
    difference = assert_equal(contest)
    timing = take_turns(contest, **({"pairs": 2, "seconds": 0.0} if tiny else {"pairs": 5, "seconds": 0.3}))
    side, baseline = contest.side, contest.baseline
    return Result(
        row=row,
        title=title,
        setting=setting,
        side=side.name,
        baseline=baseline.name,
        work=contest.work,
        cpu_ms=1000 * timing.cpu_seconds,
        baseline_cpu_ms=1000 * timing.baseline_cpu_seconds,
        cpu_ratio=timing.cpu_ratio,
        lowest_cpu_ratio=min(timing.cpu_ratios),
        highest_cpu_ratio=max(timing.cpu_ratios),
        wall_ratio=timing.wall_ratio,
        pairs=len(timing.cpu_ratios),
        difference=difference,
        tolerance=contest.tolerance,
        peak_mb=side.peak_memory() if side.peak_memory else None,
        baseline_peak_mb=baseline.peak_memory() if baseline.peak_memory else None,
    )


def describe_machine() -> dict[str, object]:
    return {
        "date": datetime.date.today().isoformat(),
        "processor": device_name(torch.device("cpu")),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "medium rounds to bf16": medium_rounds(),
    }


HEADER = ["row", "what", "on", "setting", "compared", "CPU ms", "CPU time ratio", "wall", "difference", "peak MB"]


def table_line(result: Result) -> list[str]:
    memory = "" if result.peak_mb is None else f"{result.peak_mb:.0f} : {result.baseline_peak_mb:.0f}"
    return [
        result.row,
        result.title,
        result.work,
        result.setting,
        f"{result.side} : {result.baseline}",
        f"{result.cpu_ms:.0f} : {result.baseline_cpu_ms:.0f}",
        f"**{result.cpu_ratio:.2f}** ({result.lowest_cpu_ratio:.2f} - {result.highest_cpu_ratio:.2f})",
        f"{result.wall_ratio:.2f}",
        f"{result.difference:.0e}",
        memory,
    ]


def markdown(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def main(argv: list[str] | None = None) -> list[Result]:
    parser = argparse.ArgumentParser("python -m benchmarks", description=__doc__.splitlines()[0])
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"{', '.join(ROWS)}; all of them when none is named")
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=["fp32", "medium", "bf16"])
    parser.add_argument("--threads", type=int, help="of torch; its own choice when left out")
    parser.add_argument("--size", choices=["full", "tiny"], default="full", help="tiny tries the rows out, in seconds")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the results go too, with every digit")
    args = parser.parse_args(argv)
    if unknown := [row for row in args.rows if row not in ROWS]:
        parser.error(f"no row is called {', '.join(unknown)}; there are {', '.join(ROWS)}")
    if args.threads is not None:
        torch.set_num_threads(args.threads)

    machine = describe_machine()
    print(", ".join(f"{name} {value}" for name, value in machine.items()), end="\n\n")
    print(markdown(HEADER), markdown(["---"] * len(HEADER)), sep="\n")
    results = []
    for row in args.rows or ROWS:
        for setting in args.settings:
            results.append(measure(row, setting, tiny=args.size == "tiny"))
            print(markdown(table_line(results[-1])), flush=True)
    if args.json is not None:
        document = {"machine": machine, "results": [vars(result) for result in results]}
        args.json.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    return results


if __name__ == "__main__":
    main()
