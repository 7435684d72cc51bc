"""Standard output and error of a command whose reader may stop reading, as `head` does, or follow a log file."""

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any, TextIO


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
