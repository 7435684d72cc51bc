"""Runs a script as a command: one-line errors, and signals that stop it.

This module imports only the standard library and errors.py, so that scripts without a model start at once.
"""

import contextlib
import errno
import importlib.util
import os
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from elmo_gpt_bert.training.errors import UserError


COMMAND = "zoo-"  # zoo-run-glue is run_glue.py, where the package is installed
TRACEBACK = "ZOO_TRACEBACK"  # this environment variable, set to 1, shows tracebacks for user errors, too


def run_command(main: Callable[[], object], interrupted: str = "interrupted") -> None:
    """Runs a script's `main`. A UserError ends it with one line and status 1, Ctrl-C with status 130.

    So does an OSError for a name that is too long for the system, wherever a path of the user's is first looked at.

    Other exceptions keep their traceback, because they are mistakes in the code. With ZOO_TRACEBACK=1, a UserError
    keeps it, too. `interrupted` is the message after Ctrl-C if the exception has none. SIGTERM counts as Ctrl-C.
    """
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(line_buffering=True)  # also in files and pipes, a line is written when it is printed
    with _terminated_as_interrupted():
        try:
            main()
        except KeyboardInterrupt as stop:
            print(str(stop) or interrupted, file=sys.stderr)
            sys.exit(130)
        except (UserError, OSError) as error:
            is_input = isinstance(error, UserError) or error.errno == errno.ENAMETOOLONG
            if not is_input or os.environ.get(TRACEBACK) == "1":
                raise
            print(f"{program()}: error: {error}", file=sys.stderr)
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
def _handling(handlers: Mapping[int, Callable[[int, object], None]]) -> Iterator[None]:
    """Within the context, the handlers receive their signals. Outside the main thread, nothing changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    former = {number: signal.signal(number, receive) for number, receive in handlers.items()}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def _terminated_as_interrupted() -> contextlib.AbstractContextManager[None]:
    """Within the context, the first SIGTERM raises KeyboardInterrupt, and others do nothing.

    Processes that this one forks end by it without a word, as usual.
    """
    process = os.getpid()

    def receive(number: int, frame: object) -> None:
        if os.getpid() != process:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    return _handling({signal.SIGTERM: receive})


class Interrupted(KeyboardInterrupt):
    """The run was told to stop. It has saved what it needs to continue, and the message says how."""


@contextlib.contextmanager
def stop_signals() -> Iterator[list[int]]:
    """Gives a list that collects SIGINT (Ctrl-C) and SIGTERM, so that a run can stop between two updates.

    A second Ctrl-C stops the process at once. A second SIGTERM does not: a process may receive it twice, from the
    scheduler and from its launcher.
    """
    received: list[int] = []
    interrupt = signal.getsignal(signal.SIGINT)

    def receive(number: int, frame: object) -> None:
        if not received:
            with contextlib.suppress(OSError):  # standard error is closed
                # print is not re-entrant
                os.write(2, b"\nstopping after this update; Ctrl-C once more stops at once\n")
        received.append(number)
        signal.signal(signal.SIGINT, interrupt)

    with _handling({signal.SIGINT: receive, signal.SIGTERM: receive}):
        yield received
