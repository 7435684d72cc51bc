"""The pickles of a checkpoint, looked at before accelerate, torch and DeepSpeed read them: none of them runs code.

A pickle may name any function to be called while it is read. torch.load with weights_only knows only those that make
tensors and numbers. Of what a checkpoint holds, these are read otherwise:

    FSDP's .metadata              a bare pickle, of where each shard's tensors and settings stand
    FSDP's *.distcp               the optimizer's settings among them
    DeepSpeed's *.pt              with three classes of its own
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


TORCH = {".bin", ".ckpt", ".pkl", ".pt", ".pth"}  # what torch.save has written
CUSTOM = re.compile(r"custom_checkpoint_\d+\.pkl")  # accelerate's, read without weights_only
RANDOM_STATES = re.compile(r"random_states_\d+\.pkl")
OF_SHARDS = {
    ("torch.distributed.checkpoint.metadata", name)
    for name in ("Metadata", "MetadataIndex", "StorageMeta", "TensorProperties", "_MEM_FORMAT_ENCODING")
    + ("BytesStorageMetadata", "ChunkStorageMetadata", "TensorStorageMetadata")
}
OF_SHARDS |= {("torch.distributed.checkpoint.filesystem", "_StorageInfo")}
OF_SHARDS |= {("torch", "Size"), ("torch.serialization", "_get_layout")}
OF_SHARDS |= {(module, name) for module in ("pathlib", "pathlib._local") for name in ("PosixPath", "WindowsPath")}


def danger(folder: Path) -> str | None:
    """What is wrong with the first file of a checkpoint that could run code or that cannot be read; None: nothing."""
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_dir() and not path.is_symlink():
            continue
        if not path.is_file():  # a pipe, or a link to a folder, which has not been looked into
            return f"{name} is no file"
        if CUSTOM.fullmatch(path.name):  # of this project's earlier versions
            return f"{name} could run code when it is read, and no checkpoint needs it any more"
        try:
            if path.suffix in TORCH:
                _check_tensors(path)
            elif path.name.endswith(".metadata"):
                _check_shards(path)
        except Exception as error:  # of any type: a broken pickle's own, zipfile's, KeyError, EOFError
            return f"{name} is broken, or holds more than tensors and numbers ({type(error).__name__})"
    return None


def _check_tensors(path: Path) -> None:
    """Raises what torch or a random generator does for a file that accelerate would fail at, or call code of."""
    if RANDOM_STATES.fullmatch(path.name):  # accelerate goes on without those that it cannot read
        states = load(path)
        random.Random().setstate(states["random_state"])
        np.random.RandomState().set_state(states["numpy_random_seed"])
        torch.Generator().set_state(states["torch_manual_seed"])
        return
    with torch.serialization.safe_globals(_of_deepspeed() if path.parent.name == "pytorch_model" else []):
        torch.load(path, map_location="meta", mmap=True, weights_only=True)  # reads no tensor


def _of_deepspeed() -> list[type]:
    if not is_deepspeed_available():
        return []
    from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
    from deepspeed.runtime.zero.config import ZeroStageEnum
    from deepspeed.utils.tensor_fragment import fragment_address

    return [DynamicLossScaler, LossScaler, ZeroStageEnum, fragment_address]


def _check_shards(path: Path) -> None:
    """FSDP's list of what its shards hold, and of these what is no tensor: torch reads both without weights_only."""
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    with path.open("rb") as file:
        content = _Shards(file).load()
    for index, place in content.storage_data.items():
        if place.relative_path != Path(place.relative_path).name or getattr(place, "transform_descriptors", None):
            raise ValueError("accelerate writes shards beside their list, and as they are")
        if not isinstance(content.state_dict_metadata[index.fqn], TensorStorageMetadata):
            with (path.parent / place.relative_path).open("rb") as file:
                file.seek(place.offset)
                torch.load(io.BytesIO(file.read(place.length)), weights_only=True)


class _Shards(pickle.Unpickler):
    """Knows the classes of FSDP's list alone."""

    def find_class(self, module: str, name: str) -> Any:
        known = (module, name) in OF_SHARDS
        if known or (module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name} is none of its classes")
