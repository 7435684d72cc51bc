"""Exceptions for mistakes that a user can correct.

A command ends with the one line of such an exception; other exceptions show their traceback. Each class also derives
from the builtin exception that a Python caller expects.
"""

import contextlib
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass


LONGEST = 1000  # characters of a library's message that are shown; some repeat a value of any length


@dataclass(frozen=True)
class Parameter:
    """A parameter in an error message: its name for a Python caller, its flag on the command line."""

    name: str
    option: str | None = None  # the flag without dashes, if it differs from the name

    @property
    def flag(self) -> str:
        return f"--{self.option or self.name}"

    def __str__(self) -> str:
        return self.name


Text = str | tuple[str | Parameter, ...]


class UserError(Exception):
    """A mistake that a user can correct. The message names the value, where it came from, and the remedy.

    `pieces` are the parts of the message, which are joined without spaces: text, parameters, and tuples of both.
    """

    shows_flags = False

    def __init__(self, *pieces: Parameter | Text) -> None:
        self.pieces = [part for piece in pieces for part in (piece if isinstance(piece, tuple) else (piece,))]
        super().__init__("".join(map(str, self.pieces)))

    def __str__(self) -> str:
        return "".join(
            piece.flag if self.shows_flags and isinstance(piece, Parameter) else str(piece) for piece in self.pieces
        )


@contextlib.contextmanager
def flags_in_errors() -> Iterator[None]:
    """Makes a UserError that the block raises name flags instead of parameters. For commands."""
    try:
        yield
    except UserError as error:
        error.shows_flags = True
        raise


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
    """The loss, a weight or an output is not finite. A remedy has pieces of its own."""

    @property
    def problem(self) -> str:
        """The message without its remedy."""
        return str(self.pieces[0])
