"""Checks that the pickles of a checkpoint run no code, before accelerate, torch and DeepSpeed read them.

A pickle may name any function, which is called while it is read. torch.load with weights_only accepts only functions
that make tensors and numbers. These files of a checkpoint are read without weights_only:

    FSDP's .metadata              a plain pickle with the place of each tensor and setting in the shards
    FSDP's *.distcp               the shards; the optimizer's settings in them are pickles
    DeepSpeed's *.pt              tensors, and objects of three classes of DeepSpeed
"""

import io
import pickle
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate.utils import is_deepspeed_available, load


TORCH_SUFFIXES = {".bin", ".ckpt", ".pkl", ".pt", ".pth"}  # of files that torch.save writes
CUSTOM_STATE = re.compile(r"custom_checkpoint_\d+\.pkl")  # accelerate's, read without weights_only
RANDOM_STATES = re.compile(r"random_states_\d+\.pkl")
SHARD_CLASSES = {
    ("torch.distributed.checkpoint.metadata", name)
    for name in ("Metadata", "MetadataIndex", "StorageMeta", "TensorProperties", "_MEM_FORMAT_ENCODING")
    + ("BytesStorageMetadata", "ChunkStorageMetadata", "TensorStorageMetadata")
}
SHARD_CLASSES |= {("torch.distributed.checkpoint.filesystem", "_StorageInfo")}
SHARD_CLASSES |= {("torch", "Size"), ("torch.serialization", "_get_layout")}
SHARD_CLASSES |= {(module, name) for module in ("pathlib", "pathlib._local") for name in ("PosixPath", "WindowsPath")}


def danger(folder: Path) -> str | None:
    """The problem of the first file of a checkpoint that could run code or cannot be read; None if there is none."""
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_dir() and not path.is_symlink():
            continue
        if not path.is_file():  # a pipe, or a link to a folder, which is not searched
            return f"{name} is not a file"
        if CUSTOM_STATE.fullmatch(path.name):  # written by earlier versions of this project
            return f"{name} could run code when it is read, and no checkpoint needs it any more"
        try:
            if path.suffix in TORCH_SUFFIXES:
                _check_tensors(path)
            elif path.name.endswith(".metadata"):
                _check_shards(path)
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
    with torch.serialization.safe_globals(_deepspeed_classes() if path.parent.name == "pytorch_model" else []):
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


def _deepspeed_classes() -> list[type]:
    """The classes in DeepSpeed's files; none if it is not installed."""
    if not is_deepspeed_available():
        return []
    from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
    from deepspeed.runtime.zero.config import ZeroStageEnum
    from deepspeed.utils.tensor_fragment import fragment_address

    return [DynamicLossScaler, LossScaler, ZeroStageEnum, fragment_address]


def _check_shards(path: Path) -> None:
    """Checks FSDP's list of tensors and settings, and the settings in its shards."""
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    with path.open("rb") as file:
        content = _Shards(file).load()
    for index, entry in content.storage_data.items():
        if entry.relative_path != Path(entry.relative_path).name or getattr(entry, "transform_descriptors", None):
            raise ValueError("accelerate writes shards into the folder of their list, without transforming them")
        if not isinstance(content.state_dict_metadata[index.fqn], TensorStorageMetadata):
            with (path.parent / entry.relative_path).open("rb") as file:
                file.seek(entry.offset)
                torch.load(io.BytesIO(file.read(entry.length)), weights_only=True)


class _Shards(pickle.Unpickler):
    """An unpickler that accepts only the classes in FSDP's list."""

    def find_class(self, module: str, name: str) -> Any:
        is_allowed = (module, name) in SHARD_CLASSES
        if is_allowed or (module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name} is none of its classes")
