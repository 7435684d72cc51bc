"""The software and hardware that a run's numbers depend on: versions of packages, processor, processes, threads."""

import contextlib
import importlib.metadata
import platform
import re
from collections.abc import Iterator
from pathlib import Path

import torch
from accelerate import Accelerator

from elmo_gpt_bert import __version__


PACKAGES = ("transformers", "accelerate", "datasets")


def versions() -> dict[str, str]:
    """The versions of Python, torch, `PACKAGES` and this package, by name."""
    packages = {name: importlib.metadata.version(name) for name in PACKAGES}
    # torch's includes the build, +cpu or +cu130.
    return {"python": platform.python_version(), "torch": torch.__version__, **packages, "elmo-gpt-bert": __version__}


def hardware(accelerator: Accelerator) -> dict[str, str | int]:
    """The device, the machine's architecture, and the numbers of processes and threads."""
    return {
        "device": device_name(accelerator.device),
        "machine": platform.machine(),
        "processes": accelerator.num_processes,
        "threads": torch.get_num_threads(),
    }


def device_name(device: torch.device) -> str:
    """The model name of the GPU or the processor; on XLA the kind of the device."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if device.type == "xla":
        from torch_xla.core import xla_model

        return f"XLA on {xla_model.xla_device_hw(device)}"  # TPU, CPU, ...
    try:
        model = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text(encoding="utf-8"))
    except OSError:
        model = None
    return model.group(1) if model else platform.processor() or platform.machine()


@contextlib.contextmanager
def one_thread_beside(device: torch.device) -> Iterator[None]:
    """Within the context, torch uses one thread of the CPU, unless the CPU is the device that computes.

    Beside a GPU, the CPU launches kernels, and its own operations are short, such as counting a batch's labels. torch
    shares a count of 65,536 labels among threads, and all of them wait for a thread whose processor is busy with
    preparing batches. That took 13 of 48 milliseconds of an update on an H200 with 16 processors.
    """
    if device.type == "cpu":
        yield
        return
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
