"""SHA256SUMS, in the format of `sha256sum -c`: whether a folder's files are all there and as they were written."""

import hashlib
import os
import re
from functools import lru_cache
from pathlib import Path


NAME = "SHA256SUMS"


def write_checksums(folder: Path) -> None:
    """Lists all files of `folder` but README.md, which is there to be edited; all then survive a loss of power."""
    paths = sorted(folder.rglob("*"))
    listed = {path.relative_to(folder).as_posix(): path for path in paths if path.is_file()}
    files = {name: path for name, path in listed.items() if name not in (NAME, "README.md")}
    sizes = [f"# {path.stat().st_size} bytes  {name}\n" for name, path in files.items()]
    sums = [f"{_sha256(path)}  {name}\n" for name, path in files.items()]
    (folder / NAME).write_text("".join(sizes + sums), encoding="utf-8", newline="\n")
    for path in {*paths, folder / NAME, folder}:
        sync(path)


def damage(folder: Path) -> str | None:
    """What is wrong with the first listed file that is not as it was, or with the list; None where nothing is."""
    try:
        text = (folder / NAME).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return f"there is no {NAME}"
    sizes = {name: int(size) for size, name in re.findall(r"^# (\d+) bytes  (.+)$", text, re.MULTILINE)}
    sums = {name: digest for digest, name in re.findall(r"^([0-9a-f]{64}) [ *](.+)$", text, re.MULTILINE)}
    # A list of sha256sum's own has no sizes. Where there are sizes, fewer sums mean that the list was cut short.
    if not sums or len(sizes) + len(sums) != text.count("\n") or sizes.keys() not in (sums.keys(), set()):
        return f"{NAME} itself is damaged"
    for name, digest in sums.items():
        try:
            stat = (folder / name).stat()
            more = stat.st_size - sizes.get(name, stat.st_size)
            if more:
                return f"{name} has {abs(more)} bytes {'more' if more > 0 else 'less'} than it had"
            if _sha256_once(folder / name, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns) != digest:
                return f"{name} was changed"
        except OSError as error:
            return f"{name}: {error.strerror}"
    return None


def verify_checksums(folder: Path) -> None:
    """Raises OSError where `folder` has a SHA256SUMS and is not as that says."""
    problem = damage(folder) if (folder / NAME).exists() else None
    if problem:
        raise OSError(f"{folder}: {problem}. Copy the folder again or, if that is on purpose, delete its {NAME}.")


def sync(path: Path) -> None:
    """Returns when a file's content, or a folder's list of names, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def follow_umask(path: Path) -> None:
    """Gives a file the rights that new files have in this process: safetensors makes its own for the user alone."""
    umask = os.umask(0o077)  # there is no way to read it; nothing that another thread makes meanwhile is open to all
    os.umask(umask)
    path.chmod(0o666 & ~umask)


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


@lru_cache(maxsize=1024)
def _sha256_once(path: Path, *state: int) -> str:
    """Reads a file once a process, and again when its `state`, the size and the times, is another."""
    return _sha256(path)
