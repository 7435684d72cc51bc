"""Digests that tell whether data sets, models and files hold the same values, and SHA256SUMS of a folder's files.

SHA256SUMS has the format of `sha256sum -c`.
"""

from __future__ import annotations

import hashlib
import json
import re
import stat
from collections.abc import Container, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
import torch

from elmo_gpt_bert.training.errors import FileError, InputError
from elmo_gpt_bert.training.files import file_digest, sha256, sync


if TYPE_CHECKING:
    import pyarrow as pa
    from datasets import Dataset
    from transformers import PreTrainedModel


# Fields of a configuration that the states of its base model do not depend on.
UNRELATED = ("architectures", "auto_map", "dtype", "id2label", "label2id", "problem_type", "transformers_version")


@runtime_checkable
class Digested(Protocol):
    """Data that comes with a digest."""

    digest: str


def digest(data_set: Dataset | Digested) -> str:
    """SHA-256 of the columns' names, types and values, in hexadecimal digits.

    It is the same for data in memory, on disk, or selected from a larger data set.
    """
    if isinstance(data_set, Digested):
        return data_set.digest
    content, tables = hashlib.sha256(), data_set.with_format("arrow")
    if not len(data_set):
        content.update(repr(data_set.column_names).encode())
    for start in range(0, len(data_set), 1000):
        table = tables[start : start + 1000].combine_chunks()
        for name, column in zip(table.column_names, table.columns, strict=True):
            content.update(name.encode())
            for part in _parts(column.chunk(0)):
                content.update(part)
    return content.hexdigest()


def _parts(array: pa.Array) -> Iterator[bytes | np.ndarray]:
    """Yields the array's type and values. Arrow's buffers also hold bytes outside a slice and under missing values."""
    from pyarrow import types  # the import takes time, which --help does not need

    yield f" {array.type} {len(array)} {array.null_count} ".encode()
    if array.null_count:
        yield array.is_valid().to_numpy(zero_copy_only=False)
        array = array.drop_null()
    if types.is_null(array.type):  # a column without a value, or with empty lists alone
        return
    if types.is_string(array.type) or types.is_large_string(array.type):
        array = array.cast("large_binary")
    if types.is_binary(array.type) or types.is_large_binary(array.type):
        texts = array.to_pylist()
        yield np.array([len(text) for text in texts])
        yield b"".join(texts)
    elif types.is_struct(array.type):
        for field in array.flatten():
            yield from _parts(field)
    elif types.is_nested(array.type):  # lists
        yield array.value_lengths().to_numpy()
        yield from _parts(array.flatten())
    else:
        values = array.to_numpy(zero_copy_only=False)
        if values.dtype == object:  # addresses in memory
            raise InputError(f"values of type {array.type} cannot be compared: convert them to numbers or text")
        yield values


def model_digest(model: PreTrainedModel, leave_out: Container[str] = ()) -> str:
    """SHA-256 of the configuration and the weights, but those whose names are left out, in hexadecimal digits."""
    config = {name: value for name, value in model.config.to_dict().items() if name not in UNRELATED}
    content = hashlib.sha256(json.dumps(config, sort_keys=True, default=str).encode())
    for name, tensor in sorted(model.state_dict().items()):
        if name not in leave_out:
            content.update(name.encode())
            content.update(tensor.cpu().contiguous().view(-1).view(torch.uint8).numpy())
    return content.hexdigest()


# SHA256SUMS


SHA256SUMS = "SHA256SUMS"
MAX_SIZE = 1 << 24  # bytes of SHA256SUMS, enough for 100,000 files
# The names of files that transformers, tokenizers, peft and --resume load from a folder. The other files of a run, and
# a user's notes and scripts, have other names.
LOADED_FILES = re.compile(
    r".*(config|token|vocab|template|processor|modules|characters|lexicon|\.index).*\.json|(vocab|merges|words).*\.txt"
    r"|(adapter_)?model.*\.safetensors|(optimizer|plan)\.safetensors|.*\.(bin|jinja|model|pt)"
    r"|(configuration|feature_extraction|image_processing|modeling|processing|tokenization)_.*\.py",
    re.IGNORECASE,
)


def write_checksums(folder: Path) -> None:
    """Lists all files of `folder` except README.md, which users may edit, and syncs them to the disk."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file() or path.is_dir()]
    names = {path.relative_to(folder).as_posix(): path for path in paths if path.is_file()}
    files = {name: path for name, path in names.items() if name not in (SHA256SUMS, "README.md")}
    sizes = [f"# {path.stat().st_size} bytes  {name}\n" for name, path in files.items()]
    sums = [f"{sha256(path)}  {name}\n" for name, path in files.items()]
    (folder / SHA256SUMS).write_text("".join(sizes + sums), encoding="utf-8", newline="\n")
    for path in {*paths, folder / SHA256SUMS, folder}:
        sync(path)


def damage(folder: Path) -> str | None:
    """The first problem of a folder: a damaged list, a changed file, or an unlisted one; None if there is none.

    A link may lead outside the folder, as in the Hub's cache; its target is compared.
    """
    try:
        text = _read_list(folder / SHA256SUMS)
    except OSError:
        return f"there is no {SHA256SUMS}"
    sizes = {name: int(size) for size, name in re.findall(r"^# (\d{1,18}) bytes  (.+)$", text, re.MULTILINE)}
    sums = _sums(text)
    # A list written by sha256sum has no sizes. If there are sizes, but fewer sums, the list was cut short.
    if not sums or len(sizes) + len(sums) != text.count("\n") or sizes.keys() not in (sums.keys(), set()):
        return f"{SHA256SUMS} itself is damaged"
    for name, digest in sums.items():
        try:
            problem = _damage_of(folder, name, digest, sizes.get(name))
        except (OSError, ValueError) as error:  # ValueError: for a name that no system allows, e.g. with a null byte
            problem = f"{name[:200]}: {getattr(error, 'strerror', error)}"
        if problem:
            return problem
    unlisted = [path.name for path in loadable_files(folder) if path.name not in sums]
    return f"{unlisted[0]} is not in {SHA256SUMS}, but would be read" if unlisted else None


def _read_list(path: Path) -> str:
    """The content of SHA256SUMS; empty if it is not a regular file or too large."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_SIZE:
        return ""
    return path.read_text(encoding="utf-8", errors="replace")


def _damage_of(folder: Path, name: str, digest: str, size: int | None) -> str | None:
    path = folder / name
    if Path(name).is_absolute() or ".." in Path(name).parts:
        return f"{SHA256SUMS} lists {name[:200]}, which is not in the folder"
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        return f"{name} is not a file"
    growth = 0 if size is None else status.st_size - size
    if growth:
        return f"{name} has {abs(growth)} bytes {'more' if growth > 0 else 'less'} than it had"
    if file_digest(path) != digest:
        return f"{name} was changed"
    return None


def _sums(text: str) -> dict[str, str]:
    """name -> SHA-256, for each file in the list."""
    return {name: digest for digest, name in re.findall(r"^([0-9a-f]{64}) [ *](.+)$", text, re.MULTILINE)}


def loaded_names(listing: Path) -> set[str]:
    """The names in a SHA256SUMS that a library would load from the folder itself."""
    return {name for name in _sums(_read_list(listing)) if "/" not in name and LOADED_FILES.fullmatch(name)}


def loadable_files(folder: Path) -> list[Path]:
    """The files in `folder`, not below it, that a library would load, sorted by their names."""
    return sorted(path for path in folder.iterdir() if LOADED_FILES.fullmatch(path.name) and not path.is_dir())


def superseded_files(folder: Path, new: Path) -> set[str]:
    """The files of a model in `folder` that its SHA256SUMS lists, and that of the folder `new` does not."""
    if not (folder / SHA256SUMS).exists():
        return set()
    here = {path.name for path in loadable_files(folder)}
    return here & loaded_names(folder / SHA256SUMS) - loaded_names(new / SHA256SUMS)


def verify_checksums(folder: Path) -> None:
    """Raises OSError if `folder` has a SHA256SUMS that its files do not match."""
    problem = damage(folder) if (folder / SHA256SUMS).exists() else None
    if problem:
        raise FileError(
            f"{folder}: {problem}. Copy the folder again or, if the change is on purpose, delete its {SHA256SUMS}."
        )
