"""Files that are read with suspicion and written whole: text, JSON, and tensors with a digest of all that they are."""

import errno
import hashlib
import json
import os
import reprlib
import stat
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from training.checksums import follow_umask, sync


DIGEST = "sha256"  # where a file of tensors keeps its digest, among its metadata

_shortener = reprlib.Repr()
_shortener.maxstring = 80
shown = _shortener.repr  # of a value in an error: one line, however long the value


def plain(text: str) -> str:
    """A name in an error: as it stands or, where that is long or would break the line, as `shown` has it."""
    return text if len(text) <= 80 and text.isprintable() else shown(text)


def open_file(path: Path) -> BinaryIO:
    """The file, opened to be read as bytes. Raises OSError for a device: /dev/zero has no end, and not even a line."""
    file = path.open("rb")
    if stat.S_ISCHR(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "it is a device, not a file", str(path))
    return file


def read_text(path: Path) -> str:
    with open_file(path) as file:
        return file.read().decode("utf-8")


def parse_json(text: str, parse_constant: Callable[[str], Any] | None = None) -> Any:
    """`json.loads`, but what is nested too deeply is a ValueError, and so is a name that an object has twice.

    Of its values `json.loads` would keep the last. `parse_constant` is called with NaN, Infinity or -Infinity.
    """
    try:
        return json.loads(text, object_pairs_hook=_object, parse_constant=parse_constant)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        name, count = Counter(name for name, _ in pairs).most_common(1)[0]
        raise ValueError(f"an object has the name {shown(name)} {count} times: keep one of them")
    return values


def read_json(path: Path) -> Any:
    """As `parse_json`, with the file's name in the error."""
    try:
        return parse_json(read_text(path))
    except ValueError as error:
        raise ValueError(f"{path.name} is not JSON ({error})") from error


def read_json_object(path: Path) -> dict[str, Any]:
    """As `read_json`, and raises ValueError where it is a list, a number, ... too, with the folder's name."""
    try:
        content = read_json(path)
    except ValueError as error:
        raise ValueError(f"{path.parent}: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path.parent}: {path.name} must be a JSON object, not {json.dumps(content):.40}")
    return content


def write_atomically(path: Path, text: str) -> None:
    """A reader finds the old file or the whole new one, never half of it."""
    temporary = path.with_name(f".{path.name}.new")
    try:
        temporary.write_text(text, encoding="utf-8")
        sync(temporary)
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise OSError(f"cannot write {path}: {error.strerror}. Make room, or choose another place") from error


def save_tensors(tensors: dict[str, np.ndarray], path: Path, metadata: dict[str, str] | None = None) -> None:
    """Writes a safetensors file that `load_tensors` knows again: the old one or the whole new one.

    Raises OSError or SafetensorError, having removed what is half written, where the disk does not take it.
    """
    temporary = path.with_name(f".{path.name}.new")
    metadata = metadata or {}
    try:
        save_file(tensors, temporary, metadata | {DIGEST: _digest(tensors, metadata)})
        follow_umask(temporary)
        sync(temporary)
        os.replace(temporary, path)
    except (OSError, SafetensorError):
        temporary.unlink(missing_ok=True)
        raise


def load_tensors(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """(tensors, metadata) as they were saved. Raises ValueError where they are not, or cannot be read."""
    try:
        with safe_open(path, "np") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            metadata = file.metadata() or {}
    except (OSError, SafetensorError, TypeError, ValueError) as error:
        raise ValueError(f"it cannot be read: {error}") from error
    saved = metadata.pop(DIGEST, None)
    if saved is None:
        raise ValueError("it has no checksum")
    if saved != _digest(tensors, metadata):
        raise ValueError("it was changed")
    return tensors, metadata


def _digest(tensors: Mapping[str, np.ndarray], metadata: Mapping[str, str]) -> str:
    """Of all that a reader gets. The file's own bytes may be ordered in several ways."""
    content = hashlib.sha256(json.dumps(metadata, sort_keys=True).encode())
    for name, array in sorted(tensors.items()):
        content.update(f"{name} {array.dtype} {array.shape} ".encode())
        content.update(np.ascontiguousarray(array).data)
    return content.hexdigest()
