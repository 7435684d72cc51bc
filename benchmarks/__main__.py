"""Measures this zoo against other implementations and prints a Markdown table.

python -m benchmarks [ROW or MODEL ...] [--settings fp32 medium bf16 portable mixed] [--threads N ...]
    [--device cuda] [--json FILE]
"""

import argparse
from dataclasses import dataclass

import torch

from . import bert, elmo, gpt
from .limits import matrix_peak, read_bandwidth
from .measure import CPU, Build, Contest, assert_equal, clock_of, results_file, take_turns
from .precision import matrix_setting, model_dtype
from .reporting import describe_limits, describe_machine, markdown, print_head, print_machine, write_json


# The rows of each model. The name of a model stands for all of its rows.
MODELS: dict[str, dict[str, tuple[str, Build]]] = {"bert": bert.ROWS, "elmo": elmo.ROWS, "gpt": gpt.ROWS}
ROWS = {row: build for rows in MODELS.values() for row, build in rows.items()}

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
    share: float  # of that limit of the device
    baseline_share: float
    peak_mb: float | None
    baseline_peak_mb: float | None


def measure(row: str, setting: str, tiny: bool, pairs: int, device: torch.device) -> Result:
    """Measures one row in one setting, in `pairs` pairs of turns.

    Raises:
        DifferentResults: if the results of the two sides differ.
    """
    title, build = ROWS[row]
    precisions = SETTINGS[setting]
    contest = build(*precisions, tiny, device)
    difference = assert_equal(contest)
    timing = take_turns(contest, pairs, seconds=0.0 if tiny else 0.3)
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
        peak_mb=side.peak_memory() if side.peak_memory else None,
        baseline_peak_mb=baseline.peak_memory() if baseline.peak_memory else None,
    )


def limit_of(contest: Contest, precision: str) -> float:
    """What the device can do at most of what limits the row, per second of its clock."""
    if contest.need.limit == "reads":
        return read_bandwidth(contest.device)
    return matrix_peak(contest.device, model_dtype(precision), matrix_setting(precision))


COLUMNS = ["row", "what", "on", "setting", "compared"]
TIMES = {"cpu": ["CPU ms", "CPU time ratio", "wall"], "wall": ["wall ms", "wall ratio", "CPU time"]}


def header(device: torch.device) -> list[str]:
    """The first ratio is that of the device's clock."""
    return [*COLUMNS, *TIMES[clock_of(device)], "difference", "% of limit", "peak MB"]


def table_line(result: Result) -> list[str]:
    clock = clock_of(torch.device(result.device))
    other = "wall" if clock == "cpu" else "cpu"
    ms, baseline_ms, ratio, lowest, highest = (
        getattr(result, name.format(clock))
        for name in ("{}_ms", "baseline_{}_ms", "{}_ratio", "lowest_{}_ratio", "highest_{}_ratio")
    )
    memory = "" if result.peak_mb is None else f"{result.peak_mb:.0f} : {result.baseline_peak_mb:.0f}"
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
        f"{100 * result.share:.0f} : {100 * result.baseline_share:.0f} {result.limit}",
        memory,
    ]


def main(argv: list[str] | None = None) -> list[Result]:
    parser = argparse.ArgumentParser("python -m benchmarks", description=__doc__.splitlines()[0])
    names = ", ".join((*MODELS, *ROWS))
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
    parser.add_argument("--size", choices=["full", "tiny"], default="full", help="tiny only tests that the rows run")
    parser.add_argument("--json", type=results_file, metavar="FILE", help="also write the results to this file")
    args = parser.parse_args(argv)
    if unknown := [row for row in args.rows if row not in (*MODELS, *ROWS)]:
        parser.error(f"no row is called {', '.join(unknown)}; there are {names}")
    if args.pairs < 1 or min(args.threads or [1]) < 1:
        parser.error("--pairs and --threads must be positive")
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: torch finds no GPU here")
    device, results, limits = torch.device(args.device), [], []
    for threads in args.threads or [torch.get_num_threads()]:
        torch.set_num_threads(threads)
        results += print_table(args, device)
        limits.append(describe_limits(device))
    machine = {name: value for name, value in describe_machine(device).items() if name not in limits[0]}
    write_json(args.json, {"machine": machine, "limits": limits, "results": [vars(result) for result in results]})
    return results


def print_table(args: argparse.Namespace, device: torch.device) -> list[Result]:
    """Measures the rows that the command line names, and prints each as soon as it is there."""
    print_machine(describe_machine(device))
    columns, results = header(device), []
    settings = args.settings or (DEFAULT_SETTINGS if device == CPU else GPU_SETTINGS)
    print_head(columns)
    for model, rows in MODELS.items():
        for row in rows:
            if args.rows and not {model, row} & set(args.rows):
                continue
            for setting in settings:
                results.append(measure(row, setting, args.size == "tiny", args.pairs, device))
                print(markdown(table_line(results[-1])), flush=True)
    print()
    return results


if __name__ == "__main__":
    main()
