"""What the benchmarks print and write: the machine, tables in Markdown, and JSON."""

import datetime
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
import transformers

from elmo_gpt_bert.training import files
from elmo_gpt_bert.training.processes import device_name

from .limits import launch_time, matrix_peak, read_bandwidth
from .measure import CPU
from .precision import medium_rounds


def describe_machine(device: torch.device = CPU) -> dict[str, object]:
    """Hardware, versions, and the limits with the present number of threads."""
    return {
        "date": datetime.date.today().isoformat(),
        "processor": device_name(CPU),
        "instructions": " ".join([torch.backends.cpu.get_cpu_capability(), *extensions()]),
        **({} if device == CPU else {"device": device_name(device)}),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "medium rounds to bf16": medium_rounds(device),
        **describe_limits(device),
    }


def extensions() -> list[str]:
    """Which of the processor's instructions for products of short numbers torch knows."""
    names = {"AMX": "_is_amx_tile_supported", "AVX512-bf16": "_is_avx512_bf16_supported", "VNNI": "_is_vnni_supported"}
    return [name for name, function in names.items() if getattr(torch.cpu, function, bool)()]


def describe_limits(device: torch.device) -> dict[str, object]:
    """Per second of CPU time on the CPU, so with several threads of one core; else of wall time.

    Of a GPU, also the microseconds from one kernel to the next.
    """
    return {
        "threads": torch.get_num_threads(),
        "fp32 GFLOP/s": round(matrix_peak(device, torch.float32) / 1e9),
        "bf16 GFLOP/s": round(matrix_peak(device, torch.bfloat16) / 1e9),
        "reads GB/s": round(read_bandwidth(device) / 1e9, 1),
        **({} if device == CPU else {"launch us": round(launch_time(device) * 1e6, 1)}),
    }


def markdown(cells: Sequence[str]) -> str:
    """A line of a table."""
    return f"| {' | '.join(cells)} |"


def print_machine(machine: Mapping[str, object]) -> None:
    print(", ".join(f"{name} {value}" for name, value in machine.items()))


def print_head(columns: Sequence[str]) -> None:
    """The first two lines of a table, after an empty one."""
    print("", markdown(columns), markdown(["---"] * len(columns)), sep="\n", flush=True)


def write_json(path: Path | None, document: Mapping[str, object]) -> None:
    """Writes what --json asks for; nothing without it."""
    if path is not None:
        files.write_json(path, document)
