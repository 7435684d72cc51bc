"""A script on the command line: its errors in one line each, the signals that stop it, its output without a reader.

Imports nothing that takes time: scripts that need no model start at once.
"""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO

from training.errors import UserError, flags_in_errors


TRACEBACK = "ZOO_TRACEBACK"  # set to 1, this variable of the environment shows where a user's mistake was noticed


def run_command(main: Callable[[], object], interrupted: str = "interrupted") -> None:
    """Runs a script's `main`; what a user can mend ends it with one line and status 1, Ctrl-C with status 130.

    Other exceptions keep their traceback: they are mistakes of the code. With ZOO_TRACEBACK=1 all do. `interrupted` is
    what Ctrl-C says where the exception itself says nothing.
    """
    with lasting_streams():
        _call(main, interrupted)


def _call(main: Callable[[], object], interrupted: str) -> None:
    try:
        with flags_in_errors():
            main()
    except KeyboardInterrupt as stop:
        sys.stderr.write(f"{str(stop) or interrupted}\n")
        sys.exit(130)
    except UserError as error:
        if os.environ.get(TRACEBACK) == "1":
            raise
        sys.stderr.write(f"{Path(sys.argv[0]).name}: error: {error}\n")
        sys.exit(1)


# Signals


class Interrupted(KeyboardInterrupt):
    """The run was told to stop and has saved what it needs to go on; the message says how."""


@contextlib.contextmanager
def stop_signals() -> Iterator[list[int]]:
    """A list that receives Ctrl-C and the SIGTERM of schedulers, so that a run can stop between two updates.

    A second Ctrl-C acts at once. A second SIGTERM does not: launchers pass on what a scheduler sends to all processes
    anyway. Outside the main thread nothing is caught.
    """
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def receive(number: int, frame: object) -> None:
        if not received:
            with contextlib.suppress(OSError):  # nobody reads it
                os.write(2, b"\nstopping after this update; Ctrl-C once more stops at once\n")  # print: not re-entrant
        received.append(number)
        signal.signal(signal.SIGINT, handlers[signal.SIGINT])

    for number in handlers:
        signal.signal(number, receive)
    try:
        yield received
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


# Standard output and error


class _Lasting:
    """A stream that goes on without its reader: once that is gone, what is written to it is lost."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        with self._reader_may_be_gone():
            self.stream.write(text)
        return len(text)

    def flush(self) -> None:
        with self._reader_may_be_gone():
            self.stream.flush()

    @contextlib.contextmanager
    def _reader_may_be_gone(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.stream.fileno())
            os.close(nowhere)


@contextlib.contextmanager
def lasting_streams() -> Iterator[None]:
    """While the context lasts, each line is written at once, to a file or pipe too, and no reader is needed."""
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(line_buffering=True)
    with (
        open(os.devnull, "w", encoding="utf-8") as nowhere,  # for a stream that was closed before Python began
        contextlib.redirect_stdout(_Lasting(sys.stdout or nowhere)),
        contextlib.redirect_stderr(_Lasting(sys.stderr or nowhere)),
    ):
        try:
            yield
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
