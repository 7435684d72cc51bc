"""Checks a model folder or a checkpoint before a library opens it: files are complete, and hold no code.

A pickle may name any function, which is called while it is read. torch.load with weights_only accepts only functions
that make tensors and numbers.
"""

import pickle
import random
import re
import zipfile
from pathlib import Path

import numpy as np
import torch
from accelerate.utils import load

from elmo_gpt_bert.training.errors import InputError
from elmo_gpt_bert.training.files import plain, read_json, read_json_object, shown


TOKENIZER_FILES = ("*token*.json", "vocab*.json")
TORCH_SUFFIXES = {".bin", ".ckpt", ".pkl", ".pt", ".pth"}  # of files that torch.save writes
RANDOM_STATES = re.compile(r"random_states_\d+\.pkl")


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


# Checkpoints


def danger(folder: Path) -> str | None:
    """The problem of the first file of a checkpoint that could run code or cannot be read; None if there is none."""
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_dir() and not path.is_symlink():
            continue
        if not path.is_file():  # a pipe, or a link to a folder, which is not searched
            return f"{name} is not a file"
        try:
            if path.suffix in TORCH_SUFFIXES:
                _check_tensors(path)
        except Exception as error:  # of any type: from pickle or zipfile, KeyError, EOFError
            return f"{name} is broken, or holds more than tensors and numbers ({type(error).__name__})"
    return None


def _check_tensors(path: Path) -> None:
    """Raises an exception if the file holds anything but tensors and numbers, or cannot be read."""
    if RANDOM_STATES.fullmatch(path.name):  # accelerate ignores random states that it cannot read
        states = load(path)
        random.Random().setstate(states["random_state"])
        np.random.RandomState().set_state(states["numpy_random_seed"])
        torch.Generator().set_state(states["torch_manual_seed"])
        return
    torch.load(path, map_location="meta", mmap=True, weights_only=True)  # reads no tensor


def random_states(folder: Path, process: int) -> Path:
    """The file of a checkpoint with the random states of a process."""
    return folder / f"random_states_{process}.pkl"


def has_random_states(path: Path, device: torch.device) -> bool:
    """Whether the random states of a process are there, and can be used on its device.

    Those of GPUs can be used on as many GPUs. A file that `danger` has checked is complete.
    """
    if not path.is_file() or device.type != "cuda":
        return path.is_file()
    return len(load(path).get("torch_cuda_manual_seed", ())) == torch.cuda.device_count()
