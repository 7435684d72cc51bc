"""Checks that the pickles of a checkpoint run no code, before accelerate and torch read them.

A pickle may name any function, which is called while it is read. torch.load with weights_only accepts only functions
that make tensors and numbers.
"""

import random
import re
from pathlib import Path

import numpy as np
import torch
from accelerate.utils import load


TORCH_SUFFIXES = {".bin", ".ckpt", ".pkl", ".pt", ".pth"}  # of files that torch.save writes
RANDOM_STATES = re.compile(r"random_states_\d+\.pkl")


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
