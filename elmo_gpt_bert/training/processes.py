"""The processes of a run and the machine they compute on.

Joins the processes, on one machine or several, and makes them agree: on values, and on errors. And says which
versions, processor and threads the run's numbers depend on.
"""

import contextlib
import importlib.metadata
import os
import pickle
import platform
import re
import socket
import tempfile
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch
from accelerate import Accelerator, DistributedType, PartialState
from accelerate.utils import broadcast_object_list, parse_flag_from_env

from elmo_gpt_bert import __version__
from elmo_gpt_bert.training.errors import InputError, LaunchError, UserError


Value = TypeVar("Value")


def join_processes(timeout: int) -> None:
    """Makes the processes that were launched together know of each other. Accelerator uses their state again.

    timeout: the seconds after which a process gives up waiting for another
    Raises RuntimeError for DeepSpeed, and if several processes were launched that do not know of each other.
    """
    if parse_flag_from_env("ACCELERATE_USE_DEEPSPEED"):
        raise LaunchError(
            "the launcher was told to use DeepSpeed, which the scripts do not support: --config_file "
            "configs/accelerate/fsdp2.yaml divides a model among GPUs"
        )
    state = PartialState(cpu=parse_flag_from_env("ACCELERATE_USE_CPU"), timeout=timedelta(seconds=timeout))
    # The only process of XLA is -1 of its machine for accelerate, and would print nothing.
    state.local_process_index = max(state.local_process_index, 0)
    if state.num_processes == 1:
        _check_alone(state)


def _check_alone(state: PartialState) -> None:
    """Raises RuntimeError if the environment tells a process that knows of no other that there are more."""
    remedy = "GPUs: accelerate launch --config_file configs/accelerate/multi_gpu.yaml --num_processes N run_X.py ... "
    remedy += "CPU: ACCELERATE_USE_CPU=true torchrun --nproc_per_node N run_X.py ..."
    requested = os.environ.get("WORLD_SIZE")
    if requested is None and "MASTER_ADDR" in os.environ:  # as `accelerate launch --cpu --num_processes 2` leaves it
        raise LaunchError(
            f"MASTER_ADDR is {os.environ['MASTER_ADDR']}, as a launcher of several processes sets it, but WORLD_SIZE "
            f"is not set, so there is one process. {remedy} One process: unset MASTER_ADDR"
        )
    if int(requested or 1) > 1:
        if state.distributed_type == DistributedType.XLA:
            remedy = "XLA has one device here: --num_processes 1"
        raise LaunchError(
            f"{requested} processes were asked for, but each would run alone and repeat the same work. {remedy}"
        )


def check_shared(folder: Path, flag: str) -> None:
    """Raises ValueError, on all processes, unless all of them see the main process's `folder`, which `flag` names.

    Another folder of the same name would give a process other checkpoints than those of the run. Every process must
    call it.
    """
    state = PartialState()
    if state.num_processes == 1:
        return
    with contextlib.ExitStack() as marks:
        mark = partial(tempfile.NamedTemporaryFile, dir=folder, prefix=".shared-")
        # A name that was looked up nowhere before, so that no network file system remembers that there is none.
        name = on_main(lambda: Path(marks.enter_context(mark()).name).name)
        sees = from_all((f"{socket.gethostname()} (process {state.process_index})", (folder / name).exists()))
    if blind := [process for process, is_seen in sees if not is_seen]:
        raise InputError(
            f"{flag} {folder} is not shared: {blind[0]} does not see it: choose a folder that all machines see"
        )


def broadcast(value: Value, process: int = 0) -> Value:
    """The value that `process` has, on all of them. Every process must call it."""
    state = PartialState()
    if state.distributed_type == DistributedType.NO:
        return value
    # As bytes: torch_xla reads what it receives by torch.load, which takes no other objects than tensors and numbers.
    content = pickle.dumps(value) if state.process_index == process else None
    return pickle.loads(broadcast_object_list([content], from_process=process)[0])


def from_all(value: Value) -> list[Value]:
    """The values of all processes, in the order of their numbers. Every process must call it."""
    return [broadcast(value, process) for process in range(PartialState().num_processes)]


def on_main(function: Callable[[], Value]) -> Value:
    """What `function` returns on the main process, on all of them; or its UserError, which then ends them all.

    Every process must call it.
    """
    value, error = None, None
    if PartialState().is_main_process:
        try:
            value = function()
        except UserError as problem:
            error = problem
    value, error = broadcast((value, error))
    if error is not None:
        raise error
    return value


# Versions and hardware


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
