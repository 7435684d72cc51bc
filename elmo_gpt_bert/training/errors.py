"""Exceptions for mistakes that a user can correct.

A command ends with the one line of such an exception; other exceptions show their traceback. Each class also derives
from the builtin exception that a Python caller expects.
"""

import contextlib
import textwrap
from collections.abc import Iterator


LONGEST = 1000  # characters of a library's message that are shown; some repeat a value of any length


class UserError(Exception):
    """A mistake that a user can correct. The message names the value, where it came from, and the remedy.

    It calls a parameter by its flag, as in "--max_seq_length 600", also where Python code calls the function.
    """


@contextlib.contextmanager
def as_user_errors(prefix: str = "", *kinds: type[Exception]) -> Iterator[None]:
    """Turns what a library raises for a user's input into a UserError of one line, which begins with `prefix`.

    An OSError becomes a FileError or MissingFileError; an ImportError, if it is among the `kinds`, a PackageError; a
    ValueError, or an exception of another of the `kinds`, an InputError.
    """
    try:
        yield
    except UserError:
        raise
    except (OSError, ValueError, *kinds) as error:
        pairs = ((FileNotFoundError, MissingFileError), (OSError, FileError), (ImportError, PackageError))
        error_type = next((ours for theirs, ours in pairs if isinstance(error, theirs)), InputError)
        raise error_type(f"{prefix}{textwrap.shorten(str(error), LONGEST, placeholder=' ...')}") from error


class InputError(UserError, ValueError):
    """An invalid value of a parameter or in a file."""


class FileError(UserError, OSError):
    """A file or folder that cannot be read or written."""


class MissingFileError(FileError, FileNotFoundError):
    """A file or folder that does not exist."""


class ExistingFileError(FileError, FileExistsError):
    """A file or folder that exists and would be overwritten."""


class FolderInUseError(FileError, BlockingIOError):
    """A folder that another run is writing to."""


class PackageError(UserError, ImportError):
    """A package that is not installed."""


class LaunchError(UserError, RuntimeError):
    """A run cannot start with the processes that were launched, or without a service outside of them."""


class DivergedError(UserError, FloatingPointError):
    """The loss, a weight or an output is not finite. `problem` is the message without its `remedy`."""

    def __init__(self, problem: str, remedy: str = "") -> None:
        super().__init__(f"{problem}{remedy}")
        self.problem = problem
