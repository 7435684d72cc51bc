"""Runs in processes of their own: forked, so that they start at once, and there to be killed; and fresh ones."""

import faulthandler
import gc
import multiprocessing
import os
import runpy
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import evaluate  # noqa: F401 - each run imports these four, and a process that is forked here need not do so again
import peft  # noqa: F401
import sklearn.metrics  # noqa: F401
import transformers.optimization  # noqa: F401
from accelerate.state import AcceleratorState

from tests.conftest import ROOT


def fork(function: Callable[[], object], count: int = 1) -> list[multiprocessing.Process]:
    """`count` processes that call `function` as torchrun's would, with exit status 1 where it raises."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def call(rank: int) -> None:
        if count > 1:
            os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count)}
            os.environ |= {"LOCAL_WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            os.environ |= {"ACCELERATE_USE_CPU": "true"}
        AcceleratorState._reset_state(True)
        gc.freeze()  # the garbage of pytest's process may belong to threads that are not here
        faulthandler.register(signal.SIGUSR1, file=2, all_threads=True)
        try:
            function()
        except BaseException as error:  # noqa: B036 - what a test expects, it reads from the standard error
            traceback.print_exc()
            os._exit(130 if isinstance(error, KeyboardInterrupt) else 1)
        os._exit(0)  # nothing of pytest's happens twice

    started = [multiprocessing.get_context("fork").Process(target=call, args=(rank,)) for rank in range(count)]
    for process in started:
        process.start()
    return started


def wait(processes: list[multiprocessing.Process], seconds: float = 60) -> list[int | None]:
    """Their exit statuses, negative where a signal ended them, None where one was still running.

    Such a one writes to the standard error what each of its threads is doing, and is killed.
    """
    for process in processes:
        process.join(seconds)
    statuses = [process.exitcode for process in processes]
    for process in processes:
        if process.is_alive():
            os.kill(process.pid, signal.SIGUSR1)
            process.join(1)
            process.kill()
    return statuses


def run_script(path: Path, *words: str) -> None:
    """In a forked process, what `python PATH WORDS` does: it imports anew all that is not installed from elsewhere."""
    places = {str(ROOT), str(ROOT / "examples")}
    sys.path[:] = [str(path.parent), *(place for place in sys.path if place not in places)]
    for name, module in [*sys.modules.items()]:
        file = getattr(module, "__file__", None)
        if file and Path(file).is_relative_to(ROOT) and "site-packages" not in file:
            del sys.modules[name]
    sys.argv = [str(path), *words]
    runpy.run_path(str(path), run_name="__main__")
