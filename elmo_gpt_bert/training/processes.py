"""Joins the processes of a run, on one machine or several, and makes them agree: on values, and on errors."""

import contextlib
import os
import pickle
import socket
import tempfile
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TypeVar

from accelerate import DistributedType, PartialState
from accelerate.utils import broadcast_object_list, parse_flag_from_env

from elmo_gpt_bert.training.errors import InputError, LaunchError, Parameter, UserError


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


def check_shared(folder: Path, flag: Parameter) -> None:
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
            flag, f" {folder} is not shared: {blind[0]} does not see it: choose a folder that all machines see"
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


def together(function: Callable[[], Value]) -> Value:
    """What `function` returns on this process. A UserError on any of them ends them all. All must call it."""
    value, error = None, None
    try:
        value = function()
    except UserError as problem:
        error = problem
    errors = [each for each in from_all(error) if each is not None]
    if errors:
        raise error or errors[0]
    return value
