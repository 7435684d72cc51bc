"""Files that are read with suspicion and written whole: text, JSON, and tensors with a digest of all that they are."""

import contextlib
import errno
import hashlib
import json
import os
import reprlib
import shutil
import stat
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from training.errors import FileError, InputError, Text


DIGEST = "sha256"  # where a file of tensors keeps its digest, among its metadata
WINDOWS = sys.platform == "win32"
ROOM = "Make room, or choose another place"

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
        raise InputError(f"{path.name} is not JSON ({error})") from error


def read_json_object(path: Path) -> dict[str, Any]:
    """As `read_json`, and raises ValueError where it is a list, a number, ... too, with the folder's name."""
    try:
        content = read_json(path)
    except ValueError as error:
        raise InputError(f"{path.parent}: {error}") from error
    if not isinstance(content, dict):
        raise InputError(f"{path.parent}: {path.name} must be a JSON object, not {json.dumps(content):.40}")
    return content


# Writing


@contextlib.contextmanager
def new_file(path: Path, remedy: Text = ROOM) -> Iterator[Path]:
    """Gives the path of a temporary file; what the context writes there becomes `path` when it ends without an error.

    A reader finds the old file or the whole new one. Raises OSError, having removed what is half written, with the
    reason and the `remedy` where the disk does not take it.
    """
    temporary = path.with_name(f".{path.name}.new")
    with writing(path, remedy):
        try:
            yield temporary
            follow_umask(temporary)
            sync(temporary)
            os.replace(temporary, path)
        finally:
            with contextlib.suppress(OSError):  # a folder that takes no files
                temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def new_folder(path: Path, remedy: Text = ROOM, renames: bool = True) -> Iterator[Path]:
    """Gives a temporary folder; with what the context writes there it becomes `path`, which must be new or empty.

    As `new_file`. Where several processes write into one folder, one of them `renames` it, after all have written.
    """
    temporary = path.with_name(f".{path.name}.new")
    with writing(path, remedy):
        try:
            if renames:
                shutil.rmtree(temporary, ignore_errors=True)  # of a process that was killed
            temporary.mkdir(parents=True, exist_ok=True)
            yield temporary
            if renames:
                for file in temporary.rglob("*.safetensors"):
                    follow_umask(file)
                if path.is_dir():
                    path.rmdir()  # only POSIX renames onto an empty folder
                os.replace(temporary, path)
                sync(path.parent)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise


@contextlib.contextmanager
def writing(path: Path, remedy: Text = ROOM) -> Iterator[None]:
    """Turns what the system says against writing `path` into one line with the `remedy`."""
    try:
        yield
    except FileError:
        raise
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise FileError(f"cannot write {path}: {reason}. ", remedy) from error


def write_text(path: Path, text: str) -> None:
    """As `new_file`."""
    with new_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """As `new_file`; raises ValueError for numbers that JSON does not have, as NaN."""
    write_text(path, json.dumps(values, indent=2, allow_nan=False) + "\n")


def sync(path: Path) -> None:
    """Returns when a file's content, or a folder's list of names, is on the disk. Windows opens no folders."""
    if WINDOWS and path.is_dir():
        return
    descriptor = os.open(path, os.O_RDWR if WINDOWS else os.O_RDONLY)  # Windows syncs what may be written
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def follow_umask(path: Path) -> None:
    """Gives a file the rights that new files have in this process: safetensors makes its own for the user alone."""
    umask = os.umask(0o077)  # there is no way to read it; nothing that another thread makes meanwhile is open to all
    os.umask(umask)
    path.chmod(0o666 & ~umask)


def remove(folder: Path) -> None:
    """Removes a folder with all that is in it; of a folder elsewhere that is linked here, the link."""
    if folder.is_symlink():
        folder.unlink()
    else:
        shutil.rmtree(folder)


# Tensors


def save_tensors(
    tensors: dict[str, np.ndarray], path: Path, metadata: dict[str, str] | None = None, remedy: Text = ROOM
) -> None:
    """Writes a safetensors file that `load_tensors` knows again, as `new_file`."""
    metadata = metadata or {}
    with new_file(path, remedy) as temporary:
        save_file(tensors, temporary, metadata | {DIGEST: _digest(tensors, metadata)})


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


# Digests


def file_digest(path: Path) -> str:
    """SHA-256 of a file's content, in hexadecimal digits. A file is read once, and again when it has changed."""
    status = path.stat()
    return _sha256_once(path, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def sha256(path: Path) -> str:
    """As `file_digest`, and always reads."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


@lru_cache(maxsize=1024)
def _sha256_once(path: Path, *state: int) -> str:
    """Reads a file once a process, and again when its `state`, the size and the times, is another."""
    return sha256(path)
