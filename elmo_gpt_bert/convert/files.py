"""What the converters share: their command line, readers of files, and a folder written whole or not at all."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from elmo_gpt_bert.training import files
from elmo_gpt_bert.training.command_line import run_command
from elmo_gpt_bert.training.errors import (
    ExistingFileError,
    FileError,
    InputError,
    MissingFileError,
    PackageError,
    Parameter,
    UserError,
)
from elmo_gpt_bert.training.flags import parse_fields


if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def command_line(convert: Callable[..., None], arguments: type, argv: list[str] | None) -> None:
    """Calls `convert` with the fields of the dataclass `arguments`, parsed from `argv`, by default the command line.

    A user's mistake is printed as one line, and the exit status is then 1.
    """
    args = parse_fields(arguments, argv)

    def run() -> None:
        try:
            convert(**vars(args))
        except UserError:
            raise
        except OSError as error:  # the system's error about a file that the command names
            raise FileError(str(error)) from error

    run_command(run)


def new_folder(output: str) -> Path:
    """The path of `output`. Raises FileExistsError unless it is new or empty."""
    folder = Path(output).resolve()
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise ExistingFileError(Parameter("output"), f" {output} already holds something: name a new folder")
    return folder


def write_folder(output: str, write: Callable[[Path], None]) -> None:
    """Calls `write` with a temporary folder, and renames that to `output` when it is complete."""
    with files.new_folder(new_folder(output), "Name a place with room that is yours") as temporary:
        write(temporary)


def write_model(output: str, model: "PreTrainedModel", tokenizer: "PreTrainedTokenizerBase") -> None:
    """Writes the folder `output` with the model, our code and the tokenizer, whole or not at all."""

    def write(folder: Path) -> None:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)

    write_folder(output, write)


def read_text(path: Path) -> str:
    """The text of a file in UTF-8. Raises OSError or ValueError, with the file's name, if it cannot be read."""
    if not path.is_file():
        raise MissingFileError(f"{path}: no such file")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8: {error}") from error


def parse_json(path: Path) -> Any:
    """The JSON value that a file holds."""
    try:
        return files.parse_json(read_text(path))
    except ValueError as error:
        raise InputError(f"{path} is not JSON: {error}") from error


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object that a file holds. Raises ValueError if it holds another value."""
    values = parse_json(path)
    if not isinstance(values, dict):
        raise InputError(f"{path} must hold one JSON object, not {type(values).__name__}")
    return values


def read_checkpoint(prefix: str, unread: tuple[str, ...] = ()) -> dict[str, np.ndarray]:
    """The tensors of a TensorFlow checkpoint by name. TensorFlow verifies their checksums.

    Tensors whose names end with one of `unread`, such as an optimizer's, are left out.
    """
    try:
        import tensorflow as tf
    except ImportError as error:
        raise PackageError(
            f'reading {prefix} needs TensorFlow ({error}): pip install -c constraints.txt -e ".[convert]", '
            "or pip install tensorflow"
        ) from error
    if Path(prefix).is_dir():  # TensorFlow would follow the paths in the file "checkpoint", wherever they lead
        raise InputError(f"{prefix} is a folder: name the path that its checkpoint's files share, up to .index")
    try:
        reader = tf.train.load_checkpoint(prefix)
        names = [name for name in reader.get_variable_to_shape_map() if not name.endswith(unread)]
        return {name: reader.get_tensor(name) for name in names}
    except (tf.errors.OpError, IndexError, RuntimeError, ValueError) as error:  # what a damaged file raises
        raise FileError(
            f"cannot read the checkpoint {prefix}: {' '.join(str(error).split())}. Name the path of its files up to "
            ".index and .data-00000-of-00001; if both are there, download them again"
        ) from error


def name_all(names: list[str]) -> str:
    """The names in an error, on one short line, as in "a, b, c, d and 2 more"."""
    return ", ".join(map(files.plain, names[:4])) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def check_names(missing: set[str], unknown: set[str], mismatch: str, remedy: str) -> None:
    """Raises ValueError if tensors of a file are `missing` or `unknown`. The error begins with `mismatch`."""
    problems = [
        f"{what} {name_all(sorted(names))}"
        for what, names in (("lacks", missing), ("has the unknown", unknown))
        if names
    ]
    if problems:
        raise InputError(f"{mismatch} it {' and '.join(problems)}. {remedy}")
