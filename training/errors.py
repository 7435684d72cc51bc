"""Mistakes that a user can mend. A command ends with their one line; other exceptions show where they were raised.

Each is the builtin exception, too, that a caller from Python expects.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Parameter:
    """A parameter that an error speaks of: to a caller from Python by its name, on the command line by its flag."""

    name: str
    option: str | None = None  # the flag, without dashes, where it has another name

    @property
    def flag(self) -> str:
        return f"--{self.option or self.name}"

    def __str__(self) -> str:
        return self.name


Text = str | tuple[str | Parameter, ...]


class UserError(Exception):
    """Its message names the value, where it came from, and what helps.

    The message is given in pieces, which are joined as they stand: text, parameters, and tuples of both.
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
    """Around what a command does: where a UserError speaks of parameters, its text then has the flags."""
    try:
        yield
    except UserError as error:
        error.shows_flags = True
        raise


@contextlib.contextmanager
def refusals(prefix: str = "", *kinds: type[Exception]) -> Iterator[None]:
    """Around calls of libraries, and of model files, with what a user gave: their refusal becomes a user's error.

    Of the block, an OSError becomes a FileError, a ValueError or one of these `kinds` an InputError. Its one line
    begins with `prefix`.
    """
    try:
        yield
    except UserError:
        raise
    except (OSError, ValueError, *kinds) as error:
        ours = FileError if isinstance(error, OSError) else InputError
        raise ours(f"{prefix}{' '.join(str(error).split())}") from error


class InputError(UserError, ValueError):
    """A value that cannot be: of a flag, or in a file."""


class FileError(UserError, OSError):
    """A file or folder that cannot be read or written."""


class MissingFileError(FileError, FileNotFoundError):
    """A file or folder that is not there."""


class ExistingFileError(FileError, FileExistsError):
    """A file or folder that is there, and would be lost."""


class FolderInUseError(FileError, BlockingIOError):
    """A folder that another run is writing to."""


class PackageError(UserError, ImportError):
    """A package that is not installed."""


class LaunchError(UserError, RuntimeError):
    """Processes, or a service outside of them, that a run cannot begin with."""


class DivergedError(UserError, FloatingPointError):
    """Numbers of a model that are no longer finite, or rise without end."""
