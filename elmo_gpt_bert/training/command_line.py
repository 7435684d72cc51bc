"""Runs a script as a command: one-line errors, signals that stop it, and output that outlives its reader.

This module imports only the standard library and errors.py, so that scripts without a model start at once.
"""

import contextlib
import importlib.util
import os
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO

from elmo_gpt_bert.training.errors import UserError, flags_in_errors


COMMAND = "zoo-"  # zoo-run-glue is run_glue.py, where the package is installed
TRACEBACK = "ZOO_TRACEBACK"  # this environment variable, set to 1, shows tracebacks for user errors, too


def run_command(main: Callable[[], object], interrupted: str = "interrupted") -> None:
    """Runs a script's `main`. A UserError ends it with one line and status 1, Ctrl-C with status 130.

    Other exceptions keep their traceback, because they are mistakes in the code. With ZOO_TRACEBACK=1, a UserError
    keeps it, too. `interrupted` is the message after Ctrl-C if the exception has none. SIGTERM counts as Ctrl-C.
    """
    with lasting_streams(), _terminated_as_interrupted():
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
        sys.stderr.write(f"{program()}: error: {error}\n")
        sys.exit(1)


def program() -> str:
    """The command as the user typed it: "run_glue.py", "zoo-app" or "python -m elmo_gpt_bert.explorer"."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)  # of a module that `python -m` runs, or None
    if spec is not None and spec.origin == sys.argv[0]:
        return f"python -m {spec.name.removesuffix('.__main__')}"
    return Path(sys.argv[0]).name


def start_of_script(name: str, module: str | None = None) -> str:
    """How a user starts the script of that name: "python run_glue.py" or, in an installation, "zoo-run-glue".

    In an installation the scripts are modules of this package, and no module is called run_glue.

    A command that is no script has its `module`: "python -m elmo_gpt_bert.analysis.extraction", or "zoo-extract".
    """
    this = Path(sys.argv[0])
    if this.name.startswith(COMMAND) or importlib.util.find_spec("run_glue") is None:
        return f"{COMMAND}{name.replace('_', '-')}"
    if module is not None:
        return f"python -m {module}"
    beside = this.with_name(f"{name}.py")  # not where a notebook or another program calls the script's `main`
    return f"python {shlex.quote(str(beside)) if beside.is_file() else beside.name}"


# Signals


@contextlib.contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """Within the context, the first SIGTERM raises KeyboardInterrupt, and others do nothing.

    Processes that this one forks end by it without a word, as usual. Outside the main thread nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    process, handler = os.getpid(), signal.getsignal(signal.SIGTERM)

    def receive(number: int, frame: object) -> None:
        if os.getpid() != process:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, receive)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, handler)


class Interrupted(KeyboardInterrupt):
    """The run was told to stop. It has saved what it needs to continue, and the message says how."""


@contextlib.contextmanager
def stop_signals() -> Iterator[list[int]]:
    """Gives a list that collects SIGINT (Ctrl-C) and SIGTERM, so that a run can stop between two updates.

    A second Ctrl-C stops the process at once. A second SIGTERM does not: a process may receive it twice, from the
    scheduler and from its launcher. Outside the main thread no signal is caught.
    """
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def receive(number: int, frame: object) -> None:
        if not received:
            with contextlib.suppress(OSError):  # standard error is closed
                # print is not re-entrant
                os.write(2, b"\nstopping after this update; Ctrl-C once more stops at once\n")
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
    """A stream that can be written to after its reader has gone; the text is then lost."""

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
    """Within the context, each line is written at once, also to files and pipes, and a missing reader is no error."""
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(line_buffering=True)
    with (
        open(os.devnull, "w", encoding="utf-8") as nowhere,  # for a stream that was closed before Python started
        contextlib.redirect_stdout(_Lasting(sys.stdout or nowhere)),
        contextlib.redirect_stderr(_Lasting(sys.stderr or nowhere)),
    ):
        try:
            yield
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
