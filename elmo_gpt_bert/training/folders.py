"""Checks a model folder before a library opens it: files are complete, and hold no code.

A pickle may name any function, which is called while it is read. torch.load with weights_only accepts only functions
that make tensors and numbers.
"""

import pickle
import zipfile
from pathlib import Path

import torch

from elmo_gpt_bert.training.errors import InputError
from elmo_gpt_bert.training.files import plain, read_json, read_json_object, shown


TOKENIZER_FILES = ("*token*.json", "vocab*.json")


def check_tokenizer_files(folder: Path) -> None:
    """Raises ValueError for a JSON file of the tokenizer that cannot be read."""
    for pattern in TOKENIZER_FILES:
        for path in folder.glob(pattern):
            read_json(path)


def check_indices(folder: Path) -> None:
    """Raises ValueError unless an index of sharded weights names only files in its folder."""
    for path in folder.glob("*.index.json"):
        names = read_json_object(path).get("weight_map")
        for name in names.values() if isinstance(names, dict) else ():
            if not isinstance(name, str):
                raise InputError(f"{path} names {shown(name)}, which is not a file: copy it again")
            if Path(name).is_absolute() or ".." in Path(name).parts:
                raise InputError(
                    f"{path} names {plain(name)}, which is outside its folder: copy the weights into the folder"
                )


def read_weight_types(folder: Path) -> dict[str, torch.dtype]:
    """The data type of each weight in a folder, by name; empty if `folder` is the name of a model on the Hub.

    Reads only the headers of safetensors files. PyTorch's zip files are compared with their checksums. Raises
    ValueError with the name of a file that is broken or may hold code.
    """
    check_indices(folder)
    types = {}
    for path in [*folder.glob("model*.safetensors")] or [*folder.glob("pytorch_model*.bin")]:
        types |= {name: weight.dtype for name, weight in _read_headers(path).items()}
    return types


def _read_headers(path: Path) -> dict[str, torch.Tensor]:
    """The weights of a file as tensors on the meta device."""
    from transformers.modeling_utils import load_state_dict  # the import takes seconds, which --help does not need

    try:
        changed = zipfile.ZipFile(path).testzip() if zipfile.is_zipfile(path) else None
        if changed:
            raise InputError(f"{changed} in it was changed")
        return load_state_dict(path, map_location="meta")
    except pickle.UnpicklingError as error:
        raise InputError(
            f"{path.name} is broken, or holds more than tensors, which could run any code: have it converted to "
            "model.safetensors by someone you trust"
        ) from error
    except Exception as error:  # of any type, from safetensors, zip files and pickle
        raise InputError(f"{path.name} is broken or cut short ({type(error).__name__}: {error})") from error
