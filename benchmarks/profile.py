"""Where the time of a row goes: the shares of products, copies, zeros, random numbers and so on, for both sides.

Times are those of torch's profiler, which lengthens small operations, on one input. The first run warms up.
"""

import argparse
from collections import Counter

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from .__main__ import DEFAULT_SETTINGS, ROWS, SETTINGS
from .measure import CPU, Side, in_new_process, results_file
from .reporting import describe_machine, markdown, print_head, print_machine, write_json


WORK = "work"
# What operations do, by their names in the profiler; those that are not here compute something else.
KINDS = {
    "products": (
        "mm addmm bmm baddbmm mv addmv _linear_pointwise mkldnn_convolution convolution_overrideable "
        "convolution_backward "
        "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention_for_cpu_backward"
    ),
    "copies": (
        "copy_ cat gather index index_select index_copy_ index_put_ _index_put_impl_ embedding masked_select "
        "_reorder_linear_weight"
    ),
    "zeros": "fill_ zero_",
    "random numbers": "bernoulli_ native_dropout uniform_",
    "optimizer": "_fused_adamw_",
}
OTHER, REST = "other operations", "calls"
COLUMNS = (*KINDS, OTHER, REST)
KIND = {name: kind for kind, names in KINDS.items() for name in names.split()}


def kind_of(event: str) -> str:
    """The column of a profiler's event: `aten::mm` is a product; what is no operation is the cost of calls."""
    library, _, name = event.partition("::")
    return KIND.get(name, OTHER) if name and library in ("aten", "mkldnn") else REST


def shares(side: Side, runs: int) -> tuple[float, dict[str, float]]:
    """Milliseconds of a run, and the share of each kind."""
    side.run(0)
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for _ in range(runs):
            with record_function(WORK):
                side.run(0)
    times = Counter()
    for event in profiler.key_averages():
        times[kind_of(event.key)] += event.self_cpu_time_total
    return times.total() / 1000 / runs, {kind: times[kind] / times.total() for kind in COLUMNS}


def profile_row(row: str, setting: str, tiny: bool, threads: int) -> list[dict[str, object]]:
    """One line for each side."""
    torch.set_num_threads(threads)
    title, build = ROWS[row]
    contest = build(*SETTINGS[setting], tiny, CPU)
    lines = []
    for side in (contest.side, contest.baseline):
        milliseconds, parts = shares(side, runs=1 if tiny else 5)
        lines.append({"row": row, "what": title, "setting": setting, "side": side.name, "ms": milliseconds, **parts})
    return lines


def line(values: dict[str, object]) -> str:
    names = [str(values[name]) for name in ("row", "what", "setting", "side")]
    return markdown([*names, f"{values['ms']:.0f}", *(f"{100 * values[kind]:.0f}" for kind in COLUMNS)])


def main(argv: list[str] | None = None) -> list[dict[str, object]]:
    parser = argparse.ArgumentParser("python -m benchmarks.profile", description=__doc__.splitlines()[0])
    parser.add_argument("rows", nargs="+", metavar="ROW", choices=ROWS, help=", ".join(ROWS))
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=DEFAULT_SETTINGS)
    parser.add_argument("--size", choices=["full", "tiny"], default="full", help="tiny only tests that the rows run")
    parser.add_argument("--json", type=results_file, metavar="FILE", help="also write the table to this file")
    args = parser.parse_args(argv)
    machine = describe_machine()
    print_machine(machine)
    columns = ["row", "what", "setting", "side", "ms", *(f"{kind} %" for kind in COLUMNS)]
    print_head(columns)
    results = []
    for row in args.rows:
        for setting in args.settings:  # in a process of its own, whose memory is as new
            lines, _ = in_new_process(profile_row, row, setting, args.size == "tiny", torch.get_num_threads())
            print(*map(line, lines), sep="\n", flush=True)
            results += lines
    write_json(args.json, {"machine": machine, "results": results})
    return results


if __name__ == "__main__":
    main()
