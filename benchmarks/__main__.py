"""Measures this zoo against other implementations and prints a Markdown table.

python -m benchmarks [ROW or MODEL ...] [--settings fp32 medium bf16 portable mixed] [--threads N ...]
    [--device cuda] [--quick] [--json FILE]
"""

import argparse
import time
from dataclasses import dataclass

import torch

from . import attention, bert, elmo, gpt, gpu
from .limits import matrix_peak, read_bandwidth
from .measure import CPU, Build, Contest, Side, added_memory, assert_equal, clock_of, results_file, take_turns
from .precision import matrix_setting, model_dtype
from .reporting import describe_limits, describe_machine, markdown, print_head, print_machine, write_json


# The rows of each model, of attention, and those that only a GPU runs unless they are named. A name stands for all of
# its rows.
MODELS: dict[str, dict[str, tuple[str, Build]]] = {
    "bert": bert.ROWS,
    "elmo": elmo.ROWS,
    "gpt": gpt.ROWS,
    "attention": attention.ROWS,
    "gpu": gpu.ROWS,
}
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
QUICK_SECONDS = 480  # after which --quick begins no further row


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
    tokens_per_second: float | None
    baseline_tokens_per_second: float | None


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
        peak_mb=peak_of(side, device),
        baseline_peak_mb=peak_of(baseline, device),
        tokens_per_second=timing.token_rate,
        baseline_tokens_per_second=timing.baseline_token_rate,
    )


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
    """The first ratio is that of the device's clock. Tables of a GPU have one more column."""
    tokens = [] if device == CPU else ["tokens / second"]
    return [*COLUMNS, *TIMES[clock_of(device)], "difference", "% of limit", "peak MB", *tokens]


def table_line(result: Result) -> list[str]:
    clock = clock_of(torch.device(result.device))
    other = "wall" if clock == "cpu" else "cpu"
    ms, baseline_ms, ratio, lowest, highest = (
        getattr(result, name.format(clock))
        for name in ("{}_ms", "baseline_{}_ms", "{}_ratio", "lowest_{}_ratio", "highest_{}_ratio")
    )
    memory = "" if result.peak_mb is None else f"{result.peak_mb:.0f} : {result.baseline_peak_mb:.0f}"
    rates = result.tokens_per_second, result.baseline_tokens_per_second
    tokens = [] if clock == "cpu" else ["" if None in rates else " : ".join(f"{rate:,.0f}" for rate in rates)]
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
        *tokens,
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
    parser.add_argument("--quick", action="store_true", help=f"bf16, two pairs, no new row after {QUICK_SECONDS} s")
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
    end = time.monotonic() + QUICK_SECONDS if args.quick else float("inf")
    print_machine(describe_machine(device))
    results, left_out = [], []
    print_head(header(device))
    for row, setting in lines(args, device):
        if time.monotonic() > end:
            left_out.append(row)
            continue
        results.append(measure(row, setting, args.size == "tiny", 2 if args.quick else args.pairs, device))
        print(markdown(table_line(results[-1])), flush=True)
    print(f"\nunmeasured after {QUICK_SECONDS} seconds: {', '.join(left_out)}" if left_out else "")
    return results


def lines(args: argparse.Namespace, device: torch.device) -> list[tuple[str, str]]:
    """The rows that the command line names, each with one of its settings, those of a GPU first."""
    names = set(args.rows or [model for model in MODELS if model != "gpu" or device.type == "cuda"])
    models = sorted(MODELS, key=lambda model: model != "gpu")
    rows = [row for model in models for row in MODELS[model] if {model, row} & names]

    def settings_of(row: str) -> list[str]:
        if args.quick or row in gpu.ROWS:  # whose attention computes in bf16
            return ["bf16"]
        return DEFAULT_SETTINGS if device == CPU else GPU_SETTINGS

    return [(row, setting) for row in rows for setting in args.settings or settings_of(row)]


if __name__ == "__main__":
    main()
