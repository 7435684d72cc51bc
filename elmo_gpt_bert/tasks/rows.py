"""Readers of rows for all tasks: tab-separated without quoting, csv, JSON with one object a line, and data sets of the
Hub. Files may be compressed.

A broken file is a ValueError that names the file, the line and the mistake. Values stay as the file has them: "null"
and "NA" are text.
"""

import bz2
import csv
import gzip
import hashlib
import json
import lzma
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import lru_cache, partial
from io import BufferedReader
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

from elmo_gpt_bert.training.errors import FileError, InputError, MissingFileError, UserError
from elmo_gpt_bert.training.files import hub_remedy, open_file, parse_json, plain, shown


if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict


Place, Row = TypeVar("Place"), TypeVar("Row")

PUBLISHED = "--data_dir with the published files"  # a remedy where the Hub fails


# Data sets of the Hub, folders and files


def listed(names: Collection[str]) -> str:
    """The first 20 of these names of columns or labels, for an error; in quotes where a space would not be seen."""
    first = [repr(name) if name != name.strip() else name for name in map(plain, islice(names, 20))]
    return ", ".join([*first, "..."] if len(names) > len(first) else first)


def load_hub(name: str, configuration: str | None, revision: str | None, otherwise: str) -> "DatasetDict":
    """A data set of the Hub. `otherwise` is the source of the data that errors recommend instead.

    Raises:
        OSError: when the Hub is out of reach.
        ValueError: when the data set has no such configuration, or is a script, which datasets no longer runs.
    """
    from datasets import load_dataset  # the import takes seconds, which readers of local files do not need

    try:
        load = load_dataset if Path(name).exists() else partial(_load_once, load_dataset)  # a folder may change
        return load(name, configuration, revision=revision)
    except OSError as error:
        reason, remedy = " ".join(str(error).split()).rstrip("."), hub_remedy(error, "the data are")
        raise FileError(f"{reason}. {remedy}, or give {otherwise}.") from error
    except (ValueError, RuntimeError) as error:
        raise InputError(f"cannot read {name} from the Hub: {error}. Or give {otherwise}.") from error


@lru_cache
def _load_once(load_dataset: Callable, name: str, configuration: str | None, revision: str | None) -> "DatasetDict":
    """A data set: a run asks for its version, and then for its examples."""
    return load_dataset(name, configuration, revision=revision)


def hub_version(name: str, configuration: str | None, revision: str | None) -> str:
    """NAME@VERSION of a data set of the Hub, or NAME where it is out of reach.

    The version is the revision or, without one, what the splits hold.
    """
    if revision is not None:
        return f"{name}@{revision}"
    try:
        hub = load_hub(name, configuration, None, PUBLISHED)
    except UserError:
        return name
    contents = [[split, hub[split]._fingerprint] for split in hub]
    return f"{name}@{hashlib.sha256(json.dumps(contents).encode()).hexdigest()[:16]}"


def hub_splits(
    name: str,
    splits: Iterable[str],
    configuration: str | None = None,
    revision: str | None = None,
    otherwise: str = PUBLISHED,
) -> Iterator[tuple[str, "Dataset"]]:
    """Yields these splits of a data set of the Hub. Raises as `load_hub`, and ValueError if one is missing."""
    hub = load_hub(name, configuration, revision, otherwise)
    for split in splits:
        if split not in hub:
            problem = f"{name} has no {split} split, but {', '.join(hub)}"
            raise InputError(f"{problem}: give --{split}_file and the others")
        yield split, hub[split]


def check_folder(data_dir: Path) -> None:
    """Raises FileNotFoundError where there is no such folder."""
    if not data_dir.is_dir():
        raise MissingFileError(f"--data_dir {data_dir}: no such folder")


def needed_files(files: Mapping[str, str | None]) -> Iterator[tuple[str, Path]]:
    """Yields the splits that a run needs, each with its file. Raises ValueError for a split without a file."""
    for split, file in files.items():
        if file is None:
            raise InputError(f"this run needs --{split}_file")
        yield split, Path(file)


# Rows


def read_rows(path: Path, endings: Collection[str]) -> Iterator[tuple[int, dict]]:
    """The rows of the user's own file, each with its line. Raises ValueError if its name has none of the `endings`."""
    if ending(path) not in endings:
        raise InputError(f"{path}: your own file must be one of {', '.join(endings)}")
    return READERS[ending(path)](path)


def ending(path: Path) -> str:
    """The end of the file's name that tells its format, in lower case: .tsv of A.TSV.gz."""
    plain_path = path.with_suffix("") if path.suffix.lower() in COMPRESSED else path
    return plain_path.suffix.lower()


def read_tsv(
    path: Path, header: tuple[str, ...] | None = None, broken: list[str] | None = None
) -> Iterator[tuple[int, dict[str, str]]]:
    """Yields (line number, row) for each row of a tab-separated file without quoting.

    `header` names the columns if the file's first line does not. A byte order mark, carriage returns and empty lines
    are dropped. The mistakes of rows that are `broken` are added to that list; without one, they are raised.
    """
    return _rows(_tsv_lines(path), path, header, broken)


def _tsv_lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    for line, content in read_lines(path):
        values = content.rstrip("\r\n")
        if line == 1 and "\r" in values and not content.endswith("\n"):
            raise InputError(f"{path}: its lines end with a carriage return alone: they must end with \\n (mac2unix)")
        if values:
            yield line, values.split("\t")


def read_csv(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """Like `read_tsv`, for a csv file. A row has the number of the line that it begins in."""
    return _rows(_csv_lines(path), path)


def _csv_lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    csv.field_size_limit(2**31 - 1)  # the default of 131,072 characters is shorter than some texts
    reader = csv.reader((content for _, content in read_lines(path)), strict=True)
    line = 1
    try:
        for values in reader:
            if line == 1 and len(values) == 1 and (";" in values[0] or "\t" in values[0]):
                problem = f"{path}:1: a csv file has commas between its columns, and not semicolons or tabs"
                raise InputError(f"{problem}: save it with commas")
            if values:
                yield line, values
            line = reader.line_num + 1
    except csv.Error as error:
        raise InputError(
            f"{path}:{line}: not csv ({error}): close each quote, double those inside, and end lines with \\n"
        ) from error


def _rows(
    lines: Iterable[tuple[int, list[str]]],
    path: Path,
    header: tuple[str, ...] | None = None,
    broken: list[str] | None = None,
) -> Iterator[tuple[int, dict[str, str]]]:
    for line, values in lines:
        if header is None:
            header = tuple(values)
            if repeated := sorted(name for name, count in Counter(header).items() if name and count > 1):
                raise InputError(f"{path}:{line}: the header has {listed(repeated)} more than once")
        elif len(values) == len(header):
            if header.count("") > 1:
                _check_unnamed(header, values, f"{path}:{line}")
            yield line, dict(zip(header, values, strict=True))
        else:
            quotes = path.suffix == ".tsv" and any(value.startswith('"') for value in values)
            hint = ": tsv has no quotes around a text with line breaks or tabs, save it as csv" if quotes else ""
            columns = f"{len(values)} column{'s' * (len(values) != 1)}"
            problem = f"{path}:{line}: {columns} instead of {len(header)}{hint}"
            if broken is None:
                raise InputError(problem)
            broken.append(problem)


def _check_unnamed(header: tuple[str, ...], values: list[str], where: str) -> None:
    """Raises ValueError if one of the columns without a name, which a row keeps only one of, holds a value."""
    unnamed = [value for name, value in zip(header, values, strict=True) if not name]
    if any(unnamed):
        value = next(filter(None, unnamed))
        problem = f"{where}: {len(unnamed)} columns have no name, and one holds {shown(value)}"
        raise InputError(f"{problem}: name each in the header, or leave them out")


def read_json_lines(path: Path) -> Iterator[tuple[int, dict]]:
    """Like `read_tsv`, for a file with one JSON object a line."""
    for line, content in read_lines(path):
        if not content.strip():
            continue
        try:
            row = parse_json(content, _no_number)
        except ValueError as error:
            raise InputError(f"{path}:{line}: not JSON ({error}); a file holds one object a line") from error
        if not isinstance(row, dict):
            raise InputError(f"{path}:{line}: not a JSON object; a file holds one object a line")
        _check_pairs(row, content, f"{path}:{line}")
        yield line, row


def _no_number(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON value")


# The end of a file's name -> its reader.
JSON_LINES = (".json", ".jsonl", ".ndjson")  # the ends of the names of such files
READERS = {".csv": read_csv, ".tsv": read_tsv} | dict.fromkeys(JSON_LINES, read_json_lines)


def columns(row: dict, names: Iterable[str], where: str, remedy: str = "") -> list:
    """The row's values under `names`. Raises ValueError, which ends with `remedy`, if it lacks one of them."""
    if missing := [name for name in names if name not in row]:
        raise InputError(f"{where}: no column {', '.join(missing)} among {listed(row)}{remedy}")
    return [row[name] for name in names]


# Lines and JSON


def _check_pairs(value: Any, text: str, where: str) -> None:
    """Raises ValueError if the value of a JSON text holds half a surrogate pair, such as \\ud83d."""
    if "\\u" not in text:  # nothing else can stand for it in a file of UTF-8
        return
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        half = ascii(error.object[error.start])
        raise InputError(f"{where}: {half} is half a surrogate pair: write both halves, or the character") from error


def read_json(path: Path) -> Any:
    """The JSON value that a whole file holds."""
    content = "".join(line for _, line in read_lines(path))
    try:
        value = parse_json(content)
    except ValueError as error:
        lines = "; a file with one object a line is called .jsonl" if "Extra data" in str(error) else ""
        raise InputError(f"{path}: not JSON ({error}){lines}") from error
    _check_pairs(value, content, str(path))
    return value


def members(parent: Any, name: str, where: str, kind: str, layout: str) -> Iterator[tuple[dict, str]]:
    """Yields the objects in the list `name` of the JSON object `parent`, each with its place.

    Raises ValueError, with the expected `layout`, if there is no such list or one of its members is not an object.
    """
    members = parent.get(name) if isinstance(parent, dict) else None
    if not isinstance(members, list):
        raise InputError(f"{where}: no list {name} in {shown(parent)}: {layout}")
    for number, member in enumerate(members, start=1):
        if not isinstance(member, dict):
            raise InputError(f"{where}, {kind} {number}: {shown(member)} is not an object: {layout}")
        yield member, f"{where}, {kind} {number}"


def check_text(value: Any, name: str, where: str, gaps: bool = False) -> str:
    """The `value`. Raises ValueError unless it is text and, without `gaps`, not blank."""
    if not isinstance(value, str):
        raise InputError(f"{where}: {name} is {shown(value)}, not text")
    if not (gaps or value.strip()):
        raise InputError(f"{where}: {name} is empty ({shown(value)}): give it a text, or leave the question out")
    return value


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yields (line number, line with its end) for each line of a file in UTF-8. A byte order mark is dropped.

    A file whose name ends in .gz, .bz2, .xz or .zst is decompressed.
    """
    with reading(path) as content:
        for line, raw in enumerate(content, start=1):
            try:
                text = raw.decode("utf-8-sig" if line == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise InputError(f"{path}:{line}: not UTF-8 ({error}): convert the file, e.g. with iconv") from error
            if "\0" in text:
                raise InputError(f"{path}:{line}: a NUL byte: the file is not text, or UTF-16; convert it with iconv")
            yield line, text


def _open_zstandard(file: BinaryIO) -> BinaryIO:
    import pyarrow  # the import takes a while, which other files do not need

    return pyarrow.CompressedInputStream(pyarrow.PythonFile(file, "r"), "zstd")


COMPRESSED = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open, ".zst": _open_zstandard}
DAMAGE = (EOFError, lzma.LZMAError, zlib.error, OSError)  # what the decompressors raise
BUFFER = 1 << 20  # bytes


@contextmanager
def reading(path: Path) -> Iterator[BinaryIO]:
    """The content of a file. Raises OSError, in one line, if it cannot be opened or is damaged or cut short."""
    opener = COMPRESSED.get(path.suffix.lower())
    try:
        with open_file(path) as file, opener(file) if opener else nullcontext(file) as content:
            yield BufferedReader(content, BUFFER) if opener else content
    except UserError:
        raise
    except DAMAGE as error:
        if isinstance(error, OSError) and error.strerror:  # missing, a folder, a device, not allowed
            kind = MissingFileError if isinstance(error, FileNotFoundError) else FileError
            raise kind(f"cannot read {path}: {error.strerror}") from error
        raise FileError(f"{path} is damaged or cut short ({error}): get it again") from error


# Examples


def to_dataset(rows: list[dict], source: Path | str, kind: str = "examples") -> "Dataset":
    """The rows as a data set. Raises ValueError if the source had none; `kind` is what it calls the rows."""
    from datasets import Dataset

    if not rows:
        raise InputError(f"{source} holds no {kind}")
    return Dataset.from_dict({name: [row[name] for row in rows] for name in rows[0]})


def part_of(
    rows: Iterable[tuple[Place, Row]],
    split: str,
    percentage: float | None,
    path: Path,
    key: Callable[[Row], object],
    kind: str = "examples",
) -> Iterator[tuple[Place, Row]]:
    """Yields the rows of a file, each with its place, that belong to the split: all of them without a `percentage`.

    Otherwise so many percent of the rows are of the validation split, and the others are to train on. A hash of the
    row's `key` decides. So rows with equal keys are in the same split, and a row that is added to the file moves none
    of the others. Raises ValueError after the last row if none was of the split; `kind` is what it calls the rows.
    """
    if percentage is None or split == "test":
        yield from rows
        return
    number = chosen = 0
    for place, row in rows:
        number += 1
        text = json.dumps(key(row), ensure_ascii=False)
        if is_held_out(text, percentage / 100) == (split == "validation"):
            chosen += 1
            yield place, row
    if not chosen:
        raise InputError(
            f"--validation_split_percentage {percentage:g} leaves none of the {number:,} {kind} in {path} for the "
            f"{split} split: choose another"
        )


def is_held_out(text: str, share: float) -> bool:
    """Whether a text is among the `share`, from 0 to 1, of all texts that is held out. Equal ones are together."""
    digest = hashlib.blake2b(text.strip().encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") < share * 2**64
