"""Where the text of a corpus comes from, how it is read, and whether it is still the text that was prepared."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elmo_gpt_bert.tasks.pretraining.text import Documents, Sentences, find_files, read_documents, text_of
from elmo_gpt_bert.tasks.rows import load_hub
from elmo_gpt_bert.training.errors import InputError, MissingFileError, Parameter
from elmo_gpt_bert.training.files import file_digest


if TYPE_CHECKING:
    from datasets import Dataset


Texts = Callable[[], Iterator[str]]  # begins to read documents

TRAIN_FILE, VALIDATION_FILE = Parameter("train_file"), Parameter("validation_file")
DATASET, PERCENTAGE = Parameter("dataset_name"), Parameter("validation_split_percentage")
FOLDER = Parameter("folder", "corpus_dir")
MORE_HELD_OUT = ("hold out more by ", VALIDATION_FILE, " or ", PERCENTAGE)
DEFAULT_PERCENTAGE = 1.0


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

    def files(self, evaluates: bool = True) -> dict[str, list[Path]]:
        """The files of each split; a data set of the Hub has none here.

        Unless the run `evaluates`, the `validation_file` may be missing; no document is held out for it.
        Raises ValueError for a file of both splits, and OSError for one that is missing.
        """
        files = {} if self.train_file is None else {"train": find_files(self.train_file, TRAIN_FILE)}
        if self.validation_file is not None:
            try:
                files["validation"] = find_files(self.validation_file, VALIDATION_FILE)
            except MissingFileError:
                if evaluates:
                    raise
            trained = {file.resolve() for file in files.get("train", ())}
            for file in files.get("validation", ()):
                if file.resolve() in trained:
                    raise InputError(VALIDATION_FILE, f" {file} is among the files to train on: leave it out of one")
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
        hub = load_hub(self.dataset_name, self.dataset_config_name, None, TRAIN_FILE)
        if "train" not in hub:
            raise InputError(
                DATASET, f" {self.dataset_name} has no train split, but {', '.join(hub)}. Or give ", TRAIN_FILE
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


def describe(files: Mapping[str, list[Path]]) -> dict[str, list[dict]]:
    """The name, size, time and SHA-256 of each file of the splits.

    Raises ValueError for held-out text that is a copy of training text.
    """
    trained = {file_digest(file): file for file in files.get("train", ())}
    for file in files.get("validation", ()):
        if file.stat().st_size and (copy := trained.get(file_digest(file))):
            raise InputError(f"the held-out text {file} is a copy of {copy}, which is trained on: leave one out")
    return {split: [_describe(file) for file in paths] for split, paths in files.items()}


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
            has_same_size = status.st_size == record["size"]
            if not has_same_size or (status.st_mtime_ns != record["mtime"] and file_digest(path) != record["sha256"]):
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
