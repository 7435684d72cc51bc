"""What the processes of a run, on one machine or several, have to agree on: errors, and where the files are.

The files of a run are those that the main process writes and reads. The other machines need not share their folder:
the main process gets what they have to save, and sends what they have to load.
"""

import contextlib
import pickle
import socket
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TypeVar

from accelerate import Accelerator, DistributedType, PartialState
from accelerate.utils import broadcast_object_list

from elmo_gpt_bert.training.errors import UserError
from elmo_gpt_bert.training.waiting import arrive


Value = TypeVar("Value")
PART = 1 << 26  # bytes of a file that are sent at a time


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
    arrive()
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


@contextlib.contextmanager
def in_turn(accelerator: Accelerator) -> Iterator[None]:
    """Lets the main process go first, then the first one of each machine, then the others.

    So what a process writes is there for those after it, if they share its folder, or else for those on its machine.
    """
    if not accelerator.is_main_process:
        arrive("what the first process prepares")
    with accelerator.main_process_first(), accelerator.local_main_process_first():
        yield
        if accelerator.is_main_process:
            arrive()


# Folders


def name_of_process() -> str:
    """As in "gpu-7 (process 3)"."""
    return f"{socket.gethostname()} (process {PartialState().process_index})"


def processes_without(folder: Path) -> list[int]:
    """The numbers of the processes that do not see the main process's `folder`, but perhaps another of its name.

    Every process must call it.
    """
    if PartialState().num_processes == 1:
        return []
    with contextlib.ExitStack() as marks:
        mark = partial(tempfile.NamedTemporaryFile, dir=folder, prefix=".shared-")
        # A name that was looked up nowhere before, so that no network file system remembers that there is none.
        name = on_main(lambda: Path(marks.enter_context(mark()).name).name)
        return [process for process, sees in enumerate(from_all((folder / name).exists())) if not sees]


@contextlib.contextmanager
def received(folder: Path) -> Iterator[Path]:
    """Gives the main process's `folder` or, on a machine that does not see it, a copy, which is removed at the end.

    Every process must call it.
    """
    state, without = PartialState(), processes_without(folder.parent)
    if not without:
        yield folder
        return
    lacks_it = state.process_index in without
    with tempfile.TemporaryDirectory() if lacks_it and state.is_local_main_process else _nothing() as copy:
        copies = from_all(copy)  # those of a machine have numbers in a row
        for name in on_main(lambda: _files_below(folder)):
            _send(folder / name, None if copy is None else Path(copy, name))
        state.wait_for_everyone()  # until all are written
        yield Path(copies[state.process_index - state.local_process_index]) if lacks_it else folder
        state.wait_for_everyone()  # until all are read


def _nothing() -> contextlib.nullcontext:
    return contextlib.nullcontext()


def _files_below(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def _send(source: Path, target: Path | None) -> None:
    """Sends a file of the main process to those that have a `target` for it. Every process must call it."""
    is_main = PartialState().is_main_process
    if target is not None:
        target.parent.mkdir(parents=True, exist_ok=True)
    with source.open("rb") if is_main else _nothing() as file, target.open("wb") if target else _nothing() as copy:
        while part := broadcast(file.read(PART) if is_main else None):
            if copy is not None:
                copy.write(part)
