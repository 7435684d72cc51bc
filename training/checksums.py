"""SHA256SUMS, in the format of `sha256sum -c`: whether a folder's files are all there and as they were written."""

import re
import stat
from pathlib import Path

from training.errors import FileError
from training.files import file_digest, sha256, sync


NAME = "SHA256SUMS"
LONGEST = 1 << 24  # bytes of a list: of 100,000 files
# What transformers, tokenizers, peft and accelerate look for in a folder. What a run writes beside its model, and a
# user's notes and scripts, have other names.
LOOKED_FOR = re.compile(
    r".*(config|token|vocab|template|processor|modules|\.index).*\.json|(vocab|merges).*\.txt"
    r"|(adapter_)?model.*\.safetensors|.*\.(bin|jinja|model|pt)|(custom_checkpoint|random_states)_\d+\.pkl"
    r"|(configuration|feature_extraction|image_processing|modeling|processing|tokenization)_.*\.py",
    re.IGNORECASE,
)


def write_checksums(folder: Path) -> None:
    """Lists all files of `folder` but README.md, which is there to be edited; all then survive a loss of power."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file() or path.is_dir()]
    names = {path.relative_to(folder).as_posix(): path for path in paths if path.is_file()}
    files = {name: path for name, path in names.items() if name not in (NAME, "README.md")}
    sizes = [f"# {path.stat().st_size} bytes  {name}\n" for name, path in files.items()]
    sums = [f"{sha256(path)}  {name}\n" for name, path in files.items()]
    (folder / NAME).write_text("".join(sizes + sums), encoding="utf-8", newline="\n")
    for path in {*paths, folder / NAME, folder}:
        sync(path)


def damage(folder: Path) -> str | None:
    """What is wrong with the list, a file that is not as it was, or one that the list lacks; None where nothing is.

    A link may lead elsewhere, as in the Hub's cache: what it leads to is compared.
    """
    try:
        text = _read_list(folder / NAME)
    except OSError:
        return f"there is no {NAME}"
    sizes = {name: int(size) for size, name in re.findall(r"^# (\d{1,18}) bytes  (.+)$", text, re.MULTILINE)}
    sums = _sums(text)
    # A list of sha256sum's own has no sizes. Where there are sizes, fewer sums mean that the list was cut short.
    if not sums or len(sizes) + len(sums) != text.count("\n") or sizes.keys() not in (sums.keys(), set()):
        return f"{NAME} itself is damaged"
    for name, digest in sums.items():
        try:
            problem = _damage_of(folder, name, digest, sizes.get(name))
        except (OSError, ValueError) as error:  # ValueError: no system has such a name
            problem = f"{name[:200]}: {getattr(error, 'strerror', error)}"
        if problem:
            return problem
    unlisted = sorted(_looked_for(folder) - sums.keys())
    return f"{unlisted[0]} is not in {NAME}, but would be read" if unlisted else None


def _read_list(path: Path) -> str:
    """Empty where it is no file, or too long to be a list."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode) or status.st_size > LONGEST:
        return ""
    return path.read_text(encoding="utf-8", errors="replace")


def _damage_of(folder: Path, name: str, digest: str, size: int | None) -> str | None:
    path = folder / name
    if Path(name).is_absolute() or ".." in Path(name).parts:
        return f"{NAME} lists {name[:200]}, which is not in the folder"
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        return f"{name} is no file"
    more = 0 if size is None else status.st_size - size
    if more:
        return f"{name} has {abs(more)} bytes {'more' if more > 0 else 'less'} than it had"
    if file_digest(path) != digest:
        return f"{name} was changed"
    return None


def _sums(text: str) -> dict[str, str]:
    return {name: digest for digest, name in re.findall(r"^([0-9a-f]{64}) [ *](.+)$", text, re.MULTILINE)}


def _looked_for(folder: Path) -> set[str]:
    """The names of what stands in `folder` itself and would be looked for there."""
    return {path.name for path in folder.iterdir() if LOOKED_FOR.fullmatch(path.name) and not path.is_dir()}


def listed(folder: Path) -> set[str]:
    """The names in the list that would be looked for in `folder`, and stand there; none where there is no list."""
    return _looked_for(folder) & _sums(_read_list(folder / NAME)).keys() if (folder / NAME).exists() else set()


def superseded(folder: Path, new: Path) -> set[str]:
    """Of what is `listed` in `folder`, the names that the list of the folder `new` lacks."""
    return listed(folder) - _sums(_read_list(new / NAME)).keys()


def verify_checksums(folder: Path) -> None:
    """Raises OSError where `folder` has a SHA256SUMS and is not as that says."""
    problem = damage(folder) if (folder / NAME).exists() else None
    if problem:
        raise FileError(f"{folder}: {problem}. Copy the folder again or, if that is on purpose, delete its {NAME}.")
