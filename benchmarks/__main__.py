"""Measures this zoo against other implementations and prints a Markdown table.

python -m benchmarks [ROW or MODEL ...] [--settings fp32 medium bf16 portable mixed] [--threads N] [--json FILE]
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

from elmo_gpt_bert.training.environment import device_name

from . import bert, elmo, gpt
from .measure import Build, assert_equal, matrix_peak, take_turns
from .precision import medium_rounds, model_dtype


# The rows of each model. The name of a model stands for all of its rows.
MODELS: dict[str, dict[str, tuple[str, Build]]] = {"bert": bert.ROWS, "elmo": elmo.ROWS, "gpt": gpt.ROWS}
ROWS = {row: build for rows in MODELS.values() for row, build in rows.items()}

# Precision of the side and of its baseline.
SETTINGS = {
    "fp32": ("highest", "highest"),  # as torch ships
    "medium": ("medium", "medium"),
    "bf16": ("bf16", "bf16"),
    "portable": ("portable", "highest"),  # for models that use oneDNN's products themselves
    "mixed": ("medium", "highest"),  # compares different precisions, so only on request
}
DEFAULT_SETTINGS = {
    "bert": ["fp32", "medium", "bf16"],
    "elmo": ["fp32", "portable", "bf16"],
    "gpt": ["fp32", "portable", "bf16"],
}


@dataclass(frozen=True)
class Result:
    """One line of the table. Times are in milliseconds, memory is in MB, ratios are baseline / side."""

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
    share: float | None  # of `matrix_peak`
    baseline_share: float | None
    peak_mb: float | None
    baseline_peak_mb: float | None


def measure(row: str, setting: str, tiny: bool, pairs: int) -> Result:
    """Measures one row in one setting, in `pairs` pairs of turns.

    Raises:
        DifferentResults: if the results of the two sides differ.
    """
    title, build = ROWS[row]
    contest = build(*SETTINGS[setting], tiny)
    difference = assert_equal(contest)
    timing = take_turns(contest, pairs, seconds=0.0 if tiny else 0.3)
    side, baseline = contest.side, contest.baseline
    precision, baseline_precision = SETTINGS[setting]
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
        share=share_of_peak(timing.rate, precision),
        baseline_share=share_of_peak(timing.baseline_rate, baseline_precision),
        peak_mb=side.peak_memory() if side.peak_memory else None,
        baseline_peak_mb=baseline.peak_memory() if baseline.peak_memory else None,
    )


def share_of_peak(rate: float | None, precision: str) -> float | None:
    return None if rate is None else rate / matrix_peak(model_dtype(precision))


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
        "fp32 GFLOP/s": round(matrix_peak(torch.float32) / 1e9),
    }


HEADER = ["row", "what", "on", "setting", "compared", "CPU ms", "CPU time ratio", "wall", "difference"]
HEADER += ["% of peak", "peak MB"]


def table_line(result: Result) -> list[str]:
    share = "" if result.share is None else f"{100 * result.share:.0f} : {100 * result.baseline_share:.0f}"
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
        share,
        memory,
    ]


def markdown(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def main(argv: list[str] | None = None) -> list[Result]:
    parser = argparse.ArgumentParser("python -m benchmarks", description=__doc__.splitlines()[0])
    names = ", ".join((*MODELS, *ROWS))
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"{names}; all of them when none is named")
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, help="default: those of each model")
    parser.add_argument("--pairs", type=int, default=3, help="how many times the sides take turns")
    parser.add_argument("--threads", type=int, help="torch's threads; default: its own choice")
    parser.add_argument("--size", choices=["full", "tiny"], default="full", help="tiny only tests that the rows run")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the results to this file")
    args = parser.parse_args(argv)
    if unknown := [row for row in args.rows if row not in (*MODELS, *ROWS)]:
        parser.error(f"no row is called {', '.join(unknown)}; there are {names}")
    if args.pairs < 1:
        parser.error("--pairs must be positive")
    if args.threads is not None:
        torch.set_num_threads(args.threads)

    machine = describe_machine()
    print(", ".join(f"{name} {value}" for name, value in machine.items()), end="\n\n")
    print(markdown(HEADER), markdown(["---"] * len(HEADER)), sep="\n")
    results = []
    for model, rows in MODELS.items():
        for row in rows:
            if args.rows and not {model, row} & set(args.rows):
                continue
            for setting in args.settings or DEFAULT_SETTINGS[model]:
                results.append(measure(row, setting, args.size == "tiny", args.pairs))
                print(markdown(table_line(results[-1])), flush=True)
    if args.json is not None:
        document = {"machine": machine, "results": [vars(result) for result in results]}
        args.json.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    return results


if __name__ == "__main__":
    main()
