"""Where the text of a corpus comes from, how it is read, and whether it is still the text that was prepared."""

import dataclasses
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow
from pyarrow import parquet

from elmo_gpt_bert.tasks.pretraining.text import Documents, Sentences, find_files, pieces, read_documents
from elmo_gpt_bert.training.errors import FileError, InputError, MissingFileError, Parameter, as_user_errors
from elmo_gpt_bert.training.files import file_digest, new_file, plain, read_json_object, write_json


TRAIN_FILE, VALIDATION_FILE = Parameter("train_file"), Parameter("validation_file")
DATASET, PERCENTAGE = Parameter("dataset_name"), Parameter("validation_split_percentage")
FOLDER = Parameter("folder", "corpus_dir")
MORE_HELD_OUT = ("hold out more by ", VALIDATION_FILE, " or ", PERCENTAGE)
DEFAULT_PERCENTAGE = 1.0
STREAMED = 1 << 26  # characters in each file that keeps a part of a streamed data set


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
            raise InputError("the text to train on comes from ", TRAIN_FILE, " or ", DATASET, ": give one of them")
        share = self.validation_split_percentage
        if share is not None and not 0 <= share < 100:
            raise InputError(PERCENTAGE, f" {share}: must be at least 0 and below 100")
        if share and self.validation_file is not None:
            raise InputError(VALIDATION_FILE, " is the held-out text: leave out ", PERCENTAGE)

    def files(self, folder: Path, evaluates: bool = True) -> dict[str, list[Path]]:
        """The files of each split. Those of a data set of the Hub are first written to `folder`.

        Unless the run `evaluates`, the `validation_file` may be missing; no document is held out for it.
        Raises ValueError for a file of both splits, and OSError for one that is missing.
        """
        if self.dataset_name is not None:
            files = download(self, folder)
        else:
            files = {"train": find_files(self.train_file, TRAIN_FILE)}
        if self.validation_file is not None:
            try:
                files["validation"] = find_files(self.validation_file, VALIDATION_FILE)
            except MissingFileError:
                if evaluates:
                    raise
            trained = {file.resolve() for file in files["train"]}
            for file in files.get("validation", ()):
                if file.resolve() in trained:
                    raise InputError(VALIDATION_FILE, f" {file} is among the files to train on: leave it out of one")
        elif self.validation_split_percentage is not None:
            files.pop("validation", None)
        return files

    def share(self, files: Mapping[str, list[Path]]) -> float:
        """The share of the training documents that is held out, from 0 to 1."""
        if "validation" in files or self.validation_file is not None:
            return 0.0
        percentage = self.validation_split_percentage
        return (DEFAULT_PERCENTAGE if percentage is None else percentage) / 100

    def read(self, files: list[Path]) -> Iterator[str]:
        """The documents of some files of a split."""
        for file in files:
            yield from read_documents(file, self.documents, self.text_column)


def is_held_out(text: str, share: float) -> bool:
    """Whether a document is among the `share` that is held out: equal documents always are together."""
    if share == 0:
        return False
    digest = hashlib.blake2b(text.strip().encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") < share * 2**64


# The Hub


def download(source: TextSource, folder: Path) -> dict[str, list[Path]]:
    """The files, in `folder`, of the data set's splits, streamed to there once.

    A download that was interrupted goes on after its last whole file. Raises OSError when the Hub is out of reach, and
    ValueError for a data set without a split "train" or without the column, and for a folder with another data set or
    with other splits.
    """
    complete, record = folder / "complete", folder / "source.json"
    has_validation = source.validation_file is not None or source.validation_split_percentage is not None
    described = {
        "name": source.dataset_name,
        "configuration": source.dataset_config_name,
        "column": source.text_column,
        "splits": ["train"] if has_validation else ["train", "validation"],  # where the data set has them
    }
    if not record.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        write_json(record, described)
    elif read_json_object(record) != described:
        raise InputError(f"{folder} holds another data set or other splits: remove it, or choose another ", FOLDER)
    if not complete.is_file():
        with as_user_errors(f"cannot read {source.dataset_name}, start again to go on: "):
            for split, dataset in _streams(source, described["splits"]).items():
                _write_stream(dataset, source, folder / split)
        with new_file(complete) as temporary:
            temporary.touch()
    return {split.name: sorted(split.glob("*.parquet")) for split in sorted(folder.iterdir()) if split.is_dir()}


def _streams(source: TextSource, wanted: Sequence[str]) -> dict:
    """Those of the wanted splits that the data set has. Raises ValueError without one for training."""
    from datasets import load_dataset  # the import takes seconds, which readers of local files do not need

    name = source.dataset_name
    try:
        splits = load_dataset(name, source.dataset_config_name, streaming=True)
    except OSError as error:
        raise FileError(f"{error}. With the files of {name} on this machine, give ", TRAIN_FILE) from error
    except (ValueError, RuntimeError) as error:
        raise InputError(f"cannot read {name} from the Hub: {error}. Or give ", TRAIN_FILE) from error
    if "train" not in splits:
        raise InputError(DATASET, f" {name} has no train split, but {', '.join(splits)}. Or give ", TRAIN_FILE)
    return {split: splits[split] for split in wanted if split in splits}


def _write_stream(dataset: Any, source: TextSource, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    rows = sum(parquet.read_metadata(file).num_rows for file in folder.glob("*.parquet"))
    number = len([*folder.glob("*.parquet")])
    for texts in pieces(_texts(dataset.skip(rows) if rows else dataset, source, rows), STREAMED):
        with new_file(folder / f"{number:05d}.parquet") as temporary:
            table = pyarrow.table({source.text_column: pyarrow.array(texts, pyarrow.large_string())})
            parquet.write_table(table, temporary, compression="zstd")
        number += 1


def _texts(dataset: Any, source: TextSource, first: int) -> Iterator[str]:
    """The texts of the rows, which are counted from `first` for messages."""
    column = source.text_column
    for number, row in enumerate(dataset, start=first):
        if not isinstance(row.get(column), str):
            problem = f"has {plain(repr(row[column]))} in" if column in row else "lacks"
            columns = ", ".join(map(plain, row))
            raise InputError(
                DATASET,
                f" {source.dataset_name}: row {number} {problem} the column {column} (of {columns}). Name the ",
                "text's with ",
                Parameter("text_column"),
            )
        yield row[column]


# Whether it is the same


def describe(files: Mapping[str, list[Path]]) -> dict[str, list[dict]]:
    """The name, size, time and SHA-256 of each file of the splits.

    Raises ValueError for held-out text that is a copy of training text.
    """
    described = {split: [_describe(file) for file in paths] for split, paths in files.items()}
    trained = {record["sha256"]: file for file, record in zip(files["train"], described["train"], strict=True)}
    for file, record in zip(files.get("validation", ()), described.get("validation", ()), strict=True):
        if record["size"] and (copy := trained.get(record["sha256"])):
            raise InputError(f"the held-out text {file} is a copy of {copy}, which is trained on: leave one out")
    return described


def _describe(file: Path) -> dict[str, Any]:
    status = file.stat()
    return {"name": file.name, "size": status.st_size, "mtime": status.st_mtime_ns, "sha256": file_digest(file)}


def changed_file(files: Mapping[str, list[Path]], described: dict[str, list[dict]]) -> str | None:
    """What differs between the files and those that were described, or None.

    Only files of another time are read. If their content is the same, the description gets the time.
    """
    for split in {*files, *described}:
        paths, records = files.get(split, []), described.get(split, [])
        names, former = [path.name for path in paths], [record["name"] for record in records]
        if names != former:
            differing = sorted({*names} ^ {*former}) or names
            return f"the files of its {split} text, {differing[0]} among them"
        for path, record in zip(paths, records, strict=True):
            status = path.stat()
            is_same = status.st_size == record["size"]
            if is_same and status.st_mtime_ns != record["mtime"]:
                is_same = file_digest(path) == record["sha256"]
            if not is_same:
                return f"the file {path}"
            record["mtime"] = status.st_mtime_ns
    return None


def changed_setting(settings: Mapping[str, Any], former: Mapping[str, Any]) -> str | None:
    """The first setting with another value, as in "other settings: documents was files, ...", or None."""
    for name, value in settings.items():
        if value != former.get(name):
            if name == "tokenizer":  # whose value is a digest, or how it was made
                return "another tokenizer"
            return f"other settings: {name} was {former.get(name)}, and is {value} now"
    return None
