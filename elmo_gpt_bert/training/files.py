"""Reads and writes text, JSON and tensors. Readers check the content, writers never leave an incomplete file."""

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
from filelock import FileLock, Timeout
from huggingface_hub import constants
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from elmo_gpt_bert.training.errors import FileError, InputError


DIGEST = "sha256"  # also the key of the digest in the metadata of a file of tensors
WINDOWS = sys.platform == "win32"
REMEDY = "Make room, or choose another place"

_shortener = reprlib.Repr()
_shortener.maxstring = 80
shown = _shortener.repr  # shows a value in an error, on one short line


def plain(text: str) -> str:
    """Shows a name in an error: unchanged, or like `shown` if it is long or holds line breaks."""
    return text if len(text) <= 80 and text.isprintable() else shown(text)


def is_path(name: str) -> bool:
    """Whether what names a model or a tokenizer can only be a file or a folder, and no name on the Hub."""
    return name.endswith((".json", ".txt")) or name.startswith((".", "/", "~")) or name.count("/") > 1


def hub_remedy(error: BaseException, what: str) -> str:
    """The remedy for an error of the Hub's libraries. `what`: "the data are", "the model is"."""
    if constants.HF_HUB_OFFLINE:
        return f"HF_HUB_OFFLINE is set, and {what} not in the cache: unset it"
    if _is_refusal(error):
        login = "run `hf auth login` or set HF_TOKEN"
        return f"Check its name; if it is private or gated, ask for access on its page, and {login}"
    return "Without network, set HF_HUB_OFFLINE=1 to use only what is cached"


def _is_refusal(error: BaseException) -> bool:
    """Whether the Hub has answered that there is no such repository, or none that this token may read."""
    cause = error.__cause__ or error.__context__
    status = getattr(getattr(error, "response", None), "status_code", None)
    by_name = type(error).__name__ in ("DatasetNotFoundError", "XetAuthenticationError")  # which have no response
    return by_name or status in (401, 403, 404) or (cause is not None and _is_refusal(cause))


def open_file(path: Path) -> BinaryIO:
    """Opens a file to read bytes. Raises OSError for a device such as /dev/zero, whose first line never ends."""
    file = path.open("rb")
    if stat.S_ISCHR(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "it is a device, not a file", str(path))
    return file


def read_text(path: Path) -> str:
    with open_file(path) as file:
        return file.read().decode("utf-8")


def parse_json(text: str, parse_constant: Callable[[str], Any] | None = None) -> Any:
    """Like `json.loads`, and raises ValueError for deep nesting and for an object that has a name twice.

    `json.loads` would keep the last of its values. `parse_constant` is called with NaN, Infinity or -Infinity.
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
    """Reads a file like `parse_json`; the error names the file."""
    try:
        return parse_json(read_text(path))
    except ValueError as error:
        raise InputError(f"{path.name} is not JSON ({error})") from error


def read_json_object(path: Path) -> dict[str, Any]:
    """Reads a JSON object; raises ValueError for any other value. The error names the file and its folder."""
    try:
        content = read_json(path)
    except ValueError as error:
        raise InputError(f"{path.parent}: {error}") from error
    if not isinstance(content, dict):
        raise InputError(f"{path.parent}: {path.name} must be a JSON object, not {json.dumps(content):.40}")
    return content


# Writing


@contextlib.contextmanager
def new_file(path: Path, remedy: str = REMEDY) -> Iterator[Path]:
    """Gives the path of a temporary file, which is renamed to `path` when the context ends without an error.

    A reader finds either the old file or the complete new one. If the file cannot be written, the temporary file is
    removed, and an OSError names the reason and the `remedy`.
    """
    temporary = path.with_name(f".{path.name}.new")
    with writing(path, remedy):
        try:
            yield temporary
            follow_umask(temporary)
            sync(temporary)
            os.replace(temporary, path)
        finally:
            with contextlib.suppress(OSError):  # a folder in which nothing can be written
                temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def new_folder(path: Path, remedy: str = REMEDY) -> Iterator[Path]:
    """Gives the path of a temporary folder, which is renamed to `path` as in `new_file`.

    `path` must not exist or must be empty.
    """
    temporary = path.with_name(f".{path.name}.new")
    with writing(path, remedy):
        try:
            shutil.rmtree(temporary, ignore_errors=True)  # left by a process that was killed
            temporary.mkdir(parents=True, exist_ok=True)
            yield temporary
            for file in temporary.rglob("*.safetensors"):
                follow_umask(file)
            if path.is_dir():
                path.rmdir()  # Windows cannot rename to an existing folder
            os.replace(temporary, path)
            sync(path.parent)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise


@contextlib.contextmanager
def writing(path: Path, remedy: str = REMEDY) -> Iterator[None]:
    """Turns errors of writing `path` into a FileError of one line, with the `remedy`."""
    try:
        yield
    except FileError:
        raise
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise FileError(f"cannot write {path}: {reason}. {remedy}") from error


def make_folder(folder: Path) -> None:
    """Makes the folder, and those above it, unless it is there. Raises FileError, in one line, where that fails."""
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)


def acquire_lock(folder: Path, in_use: FileError, seconds: float = 0, name: str = ".lock") -> FileLock:
    """Makes a file in the folder and locks it. Raises `in_use` if another process holds it for longer than this."""
    path = folder / name
    path.touch()  # FileLock mistakes some errors of writing for another process's lock
    lock = FileLock(path, timeout=seconds, blocking=seconds > 0)
    try:
        lock.acquire()
    except Timeout as error:
        raise in_use from error
    return lock


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Writes a file as `new_file` does."""
    with new_file(path) as temporary:
        temporary.write_bytes(content)


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Writes a file as `new_file` does. Raises ValueError for numbers that JSON does not have, such as NaN."""
    write_text(path, json.dumps(values, indent=2, allow_nan=False) + "\n")


def sync(path: Path) -> None:
    """Waits until a file's content, or a folder's list of names, is on the disk. Windows cannot sync folders."""
    if WINDOWS and path.is_dir():
        return
    descriptor = os.open(path, os.O_RDWR if WINDOWS else os.O_RDONLY)  # Windows syncs only files opened for writing
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def follow_umask(path: Path) -> None:
    """Gives a file the permissions of new files in this process: safetensors lets only the user read its files."""
    umask = os.umask(0o077)  # reading it means setting it; until it is back, files of other threads are private
    os.umask(umask)
    path.chmod(0o666 & ~umask)


def remove_folder(folder: Path) -> None:
    """Removes a folder and its content. For a link to a folder, only the link is removed."""
    if folder.is_symlink():
        folder.unlink()
    else:
        shutil.rmtree(folder)


# Tensors


def save_tensors(
    tensors: dict[str, np.ndarray], path: Path, metadata: dict[str, str] | None = None, remedy: str = REMEDY
) -> None:
    """Writes a safetensors file with a digest, for `load_tensors`, as `new_file` does."""
    metadata = metadata or {}
    with new_file(path, remedy) as temporary:
        save_file(tensors, temporary, metadata | {DIGEST: _digest(tensors, metadata)})


def load_tensors(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """(tensors, metadata). Raises ValueError if the file was changed or cannot be read."""
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
    """A digest of tensors and metadata. The bytes of the file would not do: their order may vary."""
    content = hashlib.sha256(json.dumps(metadata, sort_keys=True).encode())
    for name, array in sorted(tensors.items()):
        content.update(f"{name} {array.dtype} {array.shape} ".encode())
        content.update(np.ascontiguousarray(array).data)
    return content.hexdigest()


# Digests


def file_digest(path: Path) -> str:
    """SHA-256 of a file's content, in hexadecimal digits. A file is read only once, unless it changes."""
    status = path.stat()
    return _sha256_once(path, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def sha256(path: Path) -> str:
    """Like `file_digest`, but always reads the file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, DIGEST).hexdigest()


@lru_cache(maxsize=1 << 16)  # RACE has 28,000 files
def _sha256_once(path: Path, *state: int) -> str:
    """Reads a file again only if its `state`, its size and times, has changed."""
    return sha256(path)
