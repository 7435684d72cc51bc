"""What the converters share: their command line, readers of files, and a folder written whole or not at all."""

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import make_dataclass
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, get_args

import numpy as np
import torch
from transformers.hf_argparser import HfArg

from elmo_gpt_bert.training import files
from elmo_gpt_bert.training.command_line import run_command
from elmo_gpt_bert.training.errors import (
    ExistingFileError,
    FileError,
    InputError,
    PackageError,
    UserError,
    as_user_errors,
)
from elmo_gpt_bert.training.flags import parse_fields
from modeling.released import Table, as_parameters


if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase


def command_line(convert: Callable[..., None], argv: list[str] | None) -> None:
    """Calls `convert` with the flags of `argv`, by default the command line, one for each of its parameters.

    A parameter's annotation has its help, as in Annotated[str, "the folder to write"]. A user's mistake is printed as
    one line, and the exit status is then 1.
    """
    fields = []
    for parameter in inspect.signature(convert).parameters.values():
        kind, text = get_args(parameter.annotation)
        default = None if NoneType in get_args(kind) else parameter.default
        flag = HfArg(help=text) if default is parameter.empty else HfArg(help=text, default=default)
        fields.append((parameter.name, kind, flag))
    description = inspect.getmodule(convert).__doc__.splitlines()[0]
    args = parse_fields(make_dataclass("Arguments", fields, kw_only=True), argv, description)

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
        raise ExistingFileError(f"--output {output} already holds something: name a new folder")
    return folder


def whole_folder(output: str) -> AbstractContextManager[Path]:
    """Gives the path of a temporary folder, which is renamed to `output` when the context ends without an error."""
    return files.new_folder(new_folder(output), "Name a place with room that is yours")


def write_model(output: str, model: "PreTrainedModel", tokenizer: "PreTrainedTokenizerBase") -> None:
    """Writes the folder `output` with the model, our code and the tokenizer, whole or not at all."""
    with whole_folder(output) as folder:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


def build_model(
    model_class: type["PreTrainedModel"],
    config: "PreTrainedConfig",
    tensors: dict[str, np.ndarray],
    table: Table,
    weights: str,
    sizes: str,
    remedy: str,
) -> "PreTrainedModel":
    """The model of `config` with the weights of `tensors`, all of which are used. The rest is for `as_parameters`."""
    with torch.device("meta"):  # nothing is initialised, because the tensors hold all values
        model = model_class(config)
    with as_user_errors("", ImportError):
        parameters = dict(model.named_parameters())  # tied parameters under one name
        values = as_parameters(tensors, parameters, table, weights, sizes, remedy)
    model.load_state_dict(values, strict=False, assign=True)  # not strict: tied parameters have a second name
    model.tie_weights()
    return model


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


def read_pickle(path: Path) -> dict[str, torch.Tensor]:
    """The state dict in a file of torch.save, of any version of torch and any device. No code in it is run."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)  # tensors only: a pickle could run any code
    except Exception as error:  # torch raises many: OSError, pickle's, zipfile's, KeyError, EOFError
        raise FileError(
            f"{path} is not a state dict that torch.save wrote, or is damaged ({type(error).__name__}): copy it again"
        ) from error
    if not isinstance(state, dict) or not all(isinstance(value, torch.Tensor) for value in state.values()):
        raise InputError(f"{path} must hold a state dict, from names to tensors")
    return state
