"""Text of any size as documents, which are strings whose lines hold whole sentences: where it comes from, how it is
read, and whether it is still the text that was prepared.

    plain text     .txt and any other name; blank lines separate documents, or each file is one
    JSON lines     .json, .jsonl, .ndjson: one object a line, its text in one column
    csv            .csv, and .tsv with tabs and without quoting: their text in one column, which the first line names
    parquet        .parquet: its text in one column

The name may go on with .gz, .bz2, .xz or .zst. Text is UTF-8. Documents without text are left out. Of a file, no more
than a document is in memory.
"""

from __future__ import annotations

import dataclasses
import io
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from glob import glob, has_magic
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pyarrow
from pyarrow import parquet

from elmo_gpt_bert.tasks.rows import READERS, ending, hub_version, load_hub, read_lines
from elmo_gpt_bert.training.errors import FileError, InputError, MissingFileError
from elmo_gpt_bert.training.files import file_digest, plain


if TYPE_CHECKING:
    from datasets import Dataset


Documents = Literal["blank_lines", "files"]
Sentences = Literal["split", "lines"]

PARQUET = (".parquet",)

# A document of lines is cut at the end of a line once it has this many bytes, so that a file without blank lines needs
# no more memory than this.
LONGEST_DOCUMENT = 1 << 24

Texts = Callable[[], Iterator[str]]  # begins to read documents

MORE_HELD_OUT = "hold out more by --validation_file or --validation_split_percentage"
DEFAULT_PERCENTAGE = 1.0


# Files


def find_files(names: str, flag: str) -> list[Path]:
    """The files that `flag` names: paths and patterns such as "books/*.txt", with commas between them.

    The files of a pattern are sorted by their paths. A file that is named twice counts once. Raises FileNotFoundError
    where nothing has the name.
    """
    if Path(names).is_file():
        return [Path(names)]  # whose name may have commas and brackets
    files = []
    for name in filter(None, map(str.strip, names.split(","))):
        matches = sorted(Path(path) for path in glob(name, recursive=True)) if has_magic(name) else [Path(name)]
        matches = [path for path in matches if path.is_file()]
        if not matches:
            problem = "no file matches this pattern" if has_magic(name) else "no such file"
            hint = ": a folder is read by a pattern such as FOLDER/*.txt" if Path(name).is_dir() else ""
            raise MissingFileError(f"{flag} {plain(name)}: {problem}{hint}")
        files += matches
    if not files:
        raise InputError(f"{flag} {plain(names)!r} names no file")
    return [*{file.resolve(): file for file in reversed(files)}.values()][::-1]


def read_documents(path: Path, documents: Documents = "blank_lines", column: str = "text") -> Iterator[str]:
    """Yields the documents of a file, each with text.

    Raises ValueError, which names the place, for text that is not UTF-8, a row that is broken, and a value of `column`
    that is missing or no string; OSError for a file that cannot be read, or is damaged or cut short.
    """
    kind = ending(path)
    if kind in PARQUET:
        texts = _parquet_texts(path, column)
    elif kind in READERS:
        texts = (text_of(row, column, f"{path}:{line}") for line, row in READERS[kind](path))
    else:
        texts = _plain_texts(path, documents == "blank_lines")
    return (text for text in texts if text and not text.isspace())


def _plain_texts(path: Path, blank_lines: bool) -> Iterator[str]:
    lines, size = [], 0  # of the document: its lines, its number of bytes
    for line in _lines(path):
        ends = blank_lines and not line.strip()
        if not ends:
            lines.append(line)
        size += len(line) if line.isascii() else len(line.encode())
        if ends or size >= LONGEST_DOCUMENT:
            yield "".join(lines)
            lines, size = [], 0
    yield "".join(lines)


def _lines(path: Path) -> Iterator[str]:
    """The lines of a file, which end with LF, with CR LF or, in a file without LF, with CR."""
    for number, line in read_lines(path):
        is_all = number == 1 and not line.endswith("\n")
        yield from io.StringIO(line.replace("\r", "\n")) if is_all else (line,)


def text_of(row: dict, column: str, place: str) -> str:
    """The text in the row's column. Raises ValueError, which names the `place` of the row, if it has none."""
    if column not in row:
        columns = ", ".join(map(plain, row))
        raise InputError(f"{place}: no column {column} among {columns}. Name the text's with --text_column")
    text = row[column]
    if not isinstance(text, str):
        problem = f"{place}: the column {column} is no string, but {plain(repr(text))}"
        raise InputError(f"{problem}. Drop the row, or name the text's column with --text_column")
    return text


def _parquet_texts(path: Path, column: str) -> Iterator[str]:
    try:
        with parquet.ParquetFile(path) as file:
            wanted = [column] if column in file.schema_arrow.names else None  # None: all, for the message
            for batch in file.iter_batches(1024, columns=wanted):
                for row in batch.to_pylist():
                    yield text_of(row, column, str(path))
    except FileNotFoundError as error:
        raise MissingFileError(f"cannot read {path}: no such file") from error
    except (pyarrow.ArrowException, OSError) as error:
        problem = " ".join(str(error).split())
        raise FileError(f"{path} is damaged or no parquet file ({problem}): get it again") from error


# Sentences

# The end of a sentence: its marks, and the quotes and brackets that they close. White space follows, and then a
# capital, a digit or an opening mark. After the full stops of Chinese and Japanese, none of these is needed. The marks
# are looked at from their first one only, so that a long row of dots takes no longer than other text.
END = re.compile(r"""(?<![.!?…])([.!?…]+)["'”’»)\]]*\s+(?=[^\W_]|["'“‘«(\[—–-])|[。！？]+[」』”’）]*\s*""")
OPENING = frozenset("\"'“‘«([—–-")

# No sentence ends after these with a period, nor after an initial ("J. Smith") or letters with periods ("U.S. Army").
TITLES = frozenset(
    re.findall(
        r"\w+",
        "mr mrs ms messrs mme mlle dr prof rev hon st mt gen col maj capt cpt lt sgt gov sen rep pres supt ft vs cf "
        "viz al ed eds approx dept univ assn bros",
    )
)
NUMBERED = frozenset(re.findall(r"\w+", "no nos vol vols fig figs p pp ch chap sec art op eq"))  # before a digit only
INITIAL = re.compile(r"(?:[^\W\d_]\.)*[^\W\d_]")
LONGEST = 64  # characters of an abbreviation


def split_sentences(text: str, sentences: Sentences = "split") -> list[str]:
    """The sentences of a document, without the white space around them. A line break always ends a sentence.

    With "lines", a line is a sentence. With "split", a line is split after each `END` that no abbreviation has.
    """
    lines = filter(None, map(str.strip, text.split("\n")))
    if sentences == "lines":
        return list(lines)
    return [sentence for line in lines for sentence in _split_line(line)]


def _split_line(line: str) -> Iterator[str]:
    begin = 0
    for match in END.finditer(line):
        if match.end() < len(line) and _ends_sentence(line, match):
            yield line[begin : match.end()].rstrip()
            begin = match.end()
    yield line[begin:]


def _ends_sentence(line: str, match: re.Match) -> bool:
    following = line[match.end()]
    if match[1] is None:
        return True
    if not (following.isupper() or following.isdigit() or following in OPENING):
        return False
    if match[1] != "." or not line[match.start() + 1].isspace():
        return True
    word = re.split(r"\s", line[max(0, match.start() - LONGEST) : match.start()])[-1].lstrip("\"'“‘«([—–-")
    if INITIAL.fullmatch(word):
        return word == "I"
    return word.lower() not in TITLES and not (word.lower() in NUMBERED and following.isdigit())


def pieces(texts: Iterable[str], size: int) -> Iterator[list[str]]:
    """Lists of successive documents that have at least `size` characters together, the last one fewer."""
    piece, length = [], 0
    for text in texts:
        piece.append(text)
        length += len(text)
        if length >= size:
            yield piece
            piece, length = [], 0
    if piece:
        yield piece


# The text of a run


@dataclasses.dataclass(frozen=True)
class TextSource:
    """The text and the rules by which it is read.

    Attributes:
        train_file, validation_file: paths and patterns, with commas between them.
        dataset_name, dataset_config_name: a data set of the Hub instead of `train_file`.
        text_column: of JSON lines, csv, parquet and data sets.
        documents: what a document of plain text is: "blank_lines" separate them, or they are "files".
        sentences: each line is "split" into sentences, or "lines" are sentences.
        validation_split_percentage: the share of the documents that is held out, chosen by a hash of their text. None
            means 1 % if there is no other text to validate on, else none.
    """

    train_file: str | None = None
    validation_file: str | None = None
    dataset_name: str | None = None
    dataset_config_name: str | None = None
    text_column: str = "text"
    documents: Documents = "blank_lines"
    sentences: Sentences = "split"
    validation_split_percentage: float | None = None

    def __post_init__(self):
        """Raises ValueError for fields that exclude each other, or a share that is none."""
        if (self.train_file is None) == (self.dataset_name is None):
            raise InputError("the text to train on comes from --train_file or --dataset_name: give one of them")
        share = self.validation_split_percentage
        if share is not None and not 0 <= share < 100:
            raise InputError(f"--validation_split_percentage {share}: must be at least 0 and below 100")
        if share is not None and self.validation_file is not None:
            raise InputError("--validation_file is the held-out text: leave out --validation_split_percentage")

    def files(self, evaluates: bool = True) -> dict[str, list[Path]]:
        """The files of each split; a data set of the Hub has none here.

        Unless the run `evaluates`, the `validation_file` may be missing; no document is held out for it.
        Raises ValueError for a file of both splits, and OSError for one that is missing.
        """
        files = {} if self.train_file is None else {"train": find_files(self.train_file, "--train_file")}
        if self.validation_file is not None:
            try:
                files["validation"] = find_files(self.validation_file, "--validation_file")
            except MissingFileError:
                if evaluates:
                    raise
            trained = {file.resolve() for file in files.get("train", ())}
            for file in files.get("validation", ()):
                if file.resolve() in trained:
                    raise InputError(f"--validation_file {file} is among the files to train on: leave it out of one")
        return files

    def texts(self, files: Mapping[str, list[Path]]) -> dict[str, Texts]:
        """What begins to read the documents of each split, "train" first.

        A data set of the Hub is downloaded to the cache of `datasets`. Its split "validation" is the held-out text,
        unless another one is given. Raises OSError when the Hub is out of reach, and ValueError for a data set without
        a split "train".
        """
        texts = {split: partial(self.read, paths) for split, paths in files.items()}
        if self.dataset_name is None:
            return texts
        hub = load_hub(self.dataset_name, self.dataset_config_name, None, "--train_file")
        if "train" not in hub:
            raise InputError(
                f"--dataset_name {self.dataset_name} has no train split, but {', '.join(hub)}. Or give --train_file"
            )
        has_other = self.validation_file is not None or self.validation_split_percentage is not None
        wanted = ["train"] if has_other else ["train", "validation"]
        return {split: partial(self._rows, hub[split]) for split in wanted if split in hub} | texts

    def share(self, splits: Collection[str]) -> float:
        """The share of the training documents that is held out, from 0 to 1, of a text with these splits."""
        if "validation" in splits or self.validation_file is not None:
            return 0.0
        percentage = self.validation_split_percentage
        return (DEFAULT_PERCENTAGE if percentage is None else percentage) / 100

    def read(self, files: list[Path]) -> Iterator[str]:
        """The documents of some files of a split."""
        for file in files:
            yield from read_documents(file, self.documents, self.text_column)

    def _rows(self, dataset: Dataset) -> Iterator[str]:
        """The documents of a split of the data set, one of each row."""
        column = self.text_column
        rows = dataset.select_columns([column]) if column in dataset.column_names else dataset
        for number, row in enumerate(rows):
            yield text_of(row, column, f"{self.dataset_name}: row {number}")


# Whether it is the same


def describe(source: TextSource, files: Mapping[str, list[Path]]) -> dict[str, Any]:
    """The name and the SHA-256 of each file of the splits, and the `hub_version` of a data set of the Hub.

    Raises ValueError for held-out text that is a copy of training text.
    """
    hub = source.dataset_name
    trained = {file_digest(file): file for file in files.get("train", ())}
    for file in files.get("validation", ()):
        if file.stat().st_size and (copy := trained.get(file_digest(file))):
            raise InputError(f"the held-out text {file} is a copy of {copy}, which is trained on: leave one out")
    digests = {split: [[file.name, file_digest(file)] for file in paths] for split, paths in files.items()}
    return digests if hub is None else digests | {"hub": hub_version(hub, source.dataset_config_name, None)}
