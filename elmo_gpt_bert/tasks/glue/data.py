"""Readers of texts and labels: from the Hub, from a task's published files, or from the user's own files.

Every reader returns splits with the columns text, text_pair if examples are pairs, and label if there are labels: a
string or, in a regression, a number. Files are tab-separated without quoting (as in GLUE's zip), csv, or JSON with one
object a line. A broken file is a ValueError that names the file, the line and the mistake.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING
from unicodedata import normalize

from accelerate import PartialState

from elmo_gpt_bert.tasks.glue.table import EVERY_TASK, PAIR, GlueTask
from elmo_gpt_bert.tasks.rows import (
    DATA_DIR,
    PUBLISHED,
    TABLES,
    check_folder,
    columns,
    listed,
    load_hub,
    needed_files,
    part_of,
    read_json_lines,
    read_tsv,
    to_dataset,
    unbroken,
)
from elmo_gpt_bert.training.errors import InputError, MissingFileError, Parameter
from elmo_gpt_bert.training.files import shown


if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict
    from transformers import PreTrainedConfig


TEXT = ("text", "text_pair")
TEXT_COLUMNS = Parameter("text_columns", "text_column_names")
LABEL_COLUMN = Parameter("label_column", "label_column_name")
DEFAULT_TEXT_COLUMNS = (PAIR, ("sentence",), ("text",))  # in the user's own files
INTEGER = re.compile("0|-?[1-9][0-9]*")  # as Python writes it
UNDIVIDED = "msr_paraphrase_train.txt"  # MRPC's train and dev pairs together, as Microsoft publishes them


# The tasks of the table


def read_hub(task_name: str, splits: Iterable[str]) -> DatasetDict:
    """The splits on the Hub. Raises OSError when the Hub is out of reach, ValueError when it lacks a split."""
    from datasets import Dataset, DatasetDict  # the import takes a second, which --help does not need

    task = EVERY_TASK[task_name]
    for split in splits:
        if task.splits[split].hub is None:
            file = task.splits[split].files[0]
            raise InputError(f"the Hub has {task_name} without labels: give ", DATA_DIR, f" with the folder of {file}")
    configuration = None if task.hub_revision else task.hub_configuration or task_name
    hub = load_hub(task.hub, configuration, task.hub_revision, PUBLISHED)
    data = DatasetDict()
    for split in splits:
        rows = hub[task.splits[split].hub]
        values = dict(zip(TEXT, (rows[column] for column in task.text), strict=False))
        if task.splits[split].labelled:
            values["label"] = [_hub_label(label, task) for label in rows[task.hub_label][:]]
            values |= {column: rows[column] for column in task.metric_columns.values()}
        examples = Dataset.from_dict({column: value[:] for column, value in values.items()})
        data[split] = _with_gold_labels(examples, f"{task.hub}, {task.splits[split].hub}")
    return data


def _hub_label(label: str | float, task: GlueTask) -> str | float | None:
    """The name of the label, or a regression's number; None if the annotators did not agree."""
    if not task.labels:
        return label
    if isinstance(label, str):
        return task.label_of(label)
    return None if task.no_label is not None and label == -1 else task.labels[label]


def _with_gold_labels(examples: Dataset, source: Path | str) -> Dataset:
    """The examples whose label is not None; prints how many others there are."""
    labels = examples["label"][:] if "label" in examples.column_names else []
    if None not in labels:
        return examples
    labelled = [number for number, label in enumerate(labels) if label is not None]
    if not labelled:
        raise InputError(f"{source} holds no examples with a gold label")
    left_out = len(examples) - len(labelled)
    PartialState().print(f"{source}: {left_out} of {len(examples)} examples left out, they have no gold label")
    return examples.select(labelled)


def read_folder(data_dir: Path, task: GlueTask, splits: Iterable[str]) -> DatasetDict:
    """The splits from the task's published files in `data_dir`, or in its subfolder with the task's name."""
    from datasets import DatasetDict

    check_folder(data_dir)
    return DatasetDict({split: _read_split(find_file(data_dir, task, split), task, split) for split in splits})


def _read_split(path: Path, task: GlueTask, split: str) -> Dataset:
    """The examples of one file. Raises ValueError, with file and line, for what the published files do not have."""
    published = task.splits[split]
    wanted = dict(zip(TEXT, published.text or task.tsv_text or task.text, strict=False))
    if published.labelled:
        wanted |= {"label": task.tsv_label} | {column: column for column in task.metric_columns.values()}
    header = task.train_header if published.labelled else None
    rows, broken = [], 0
    for line, row in read_json_lines(path) if path.suffix == ".jsonl" else read_tsv(path, header):
        if isinstance(row, str):
            if not (published.labelled and task.skip_broken_lines):  # predictions need every line of a test file
                raise InputError(f"{path}:{line}: {row}")
            broken += 1
            continue
        values = dict(zip(wanted, columns(row, wanted.values(), path, line), strict=True))
        for name, value in values.items():
            if not isinstance(value, str):
                raise InputError(f"{path}:{line}: {wanted[name]} is {shown(value)}, not text")
        if published.labelled:
            values["label"] = _glue_label(values["label"], task, f"{path}:{line}")
        rows.append(values)
    if broken:
        PartialState().print(f"{path}: {broken} of {broken + len(rows)} lines skipped, they lack columns")
    return _with_gold_labels(to_dataset(rows, path), path)


def find_file(data_dir: Path, task: GlueTask, split: str) -> Path:
    """The split's file in `data_dir`, or in its subfolder with the task's name, under the first name that exists."""
    folder = data_dir / task.folder if (data_dir / task.folder).is_dir() else data_dir
    published = task.splits[split]
    for name in published.files:
        if (folder / name).is_file():
            return folder / name
    names = " or ".join(published.files)
    if published.labelled and (folder / UNDIVIDED).is_file():
        raise MissingFileError(
            f"{folder} has no {names}: {UNDIVIDED} holds GLUE's train and dev pairs together; let "
            "download_glue_data.py of github.com/nyu-mll/GLUE-baselines divide it into train.tsv and dev.tsv"
        )
    raise MissingFileError(f"{folder} has no {names}: ", DATA_DIR, f" is not the folder of {task.folder}")


def _glue_label(label: str, task: GlueTask, where: str) -> str | float | None:
    """The label of a published file, read as `_hub_label` reads one of the Hub."""
    if not task.labels:
        return _number(label, where)
    if label == task.no_label:
        return None
    names = {str(number) if task.numbered else name: name for number, name in enumerate(task.labels)}
    if label not in names:
        raise InputError(f"{where}: unknown label {shown(label)}, {task.folder} has {', '.join(names)}")
    return names[label]


def _number(label: object, where: str) -> float:
    """The label of a regression. Raises ValueError unless it is a finite number."""
    try:
        number = float(label)
    except (TypeError, ValueError):
        number = float("nan")
    if not math.isfinite(number):
        raise InputError(f"{where}: the label {shown(label)} is not a number")
    return number


# The user's own files
def read_files(
    files: Mapping[str, str | None],
    config: PreTrainedConfig,
    problem_type: str | None = None,
    text_columns: tuple[str, ...] | None = None,
    label_column: str | None = None,
    label_names: tuple[str, ...] | None = None,
    held_out: float | None = None,
) -> tuple[GlueTask, DatasetDict]:
    """The task that the user's `files` define, and the splits that a run needs, each from its file.

    The labels are `label_names`, the names of class 0, 1 and so on. If these are None, they are those of the train
    file or, without one, those of the model's `config`. The metric is that of RTE or, for a regression, that of STS-B.
    `held_out` is the percentage of the train file that is the validation split, as in `part_of`.
    """
    from datasets import Dataset, DatasetDict

    data, train_labels = DatasetDict(), []
    for split, path in needed_files(files):
        rows = _read_file(path, text_columns, None if split == "test" else label_column or "label")
        train_labels = [row["label"] for row in rows] if split == "train" else train_labels
        part = part_of(enumerate(rows), split, held_out, path, key=_texts)
        data[split] = to_dataset([row for _, row in part], path)
    if len({"text_pair" in data[split].column_names for split in data}) > 1:
        raise InputError("some of the files have one text for each example, others two: give all of them the same")
    if label_names is not None:
        labels = label_names
    elif "train" in data:
        labels = _find_labels(train_labels, problem_type, files["train"])
    else:
        labels = () if config.num_labels == 1 else tuple(config.id2label.values())
    for label in labels:  # predictions.tsv has no quotes, as GLUE's files
        if any(mark in label for mark in "\t\r\n"):
            raise InputError(
                f"{files.get('train') or 'the model'}: the label {shown(label)} has a tab or a line break, which a "
                "line of predictions.tsv cannot hold: rename the class"
            )
    text = PAIR if "text_pair" in next(iter(data.values())).column_names else ("sentence",)
    task = GlueTask("", text, labels, ("glue", "rte" if labels else "stsb"))
    for split in data.keys() - {"test"}:
        values = data[split][:]
        values["label"] = [
            _read_label(label, task, f"{files[split]}, example {number}", label_names)
            for number, label in enumerate(values["label"], start=1)
        ]
        data[split] = Dataset.from_dict(values)
    return task, data


def _texts(row: dict[str, str]) -> list[str]:
    return [row[name] for name in TEXT if name in row]


def _read_file(path: Path, text: tuple[str, ...] | None, label: str | None) -> list[dict[str, str]]:
    """The columns `text` and `label` of a file, as strings, with the names text, text_pair if there are two, label."""
    readers = TABLES | dict.fromkeys((".json", ".jsonl"), read_json_lines)
    suffix = path.suffix.lower()
    if suffix not in readers:
        raise InputError(f"{path}: your own file must be one of {', '.join(readers)}")
    rows = []
    for line, row in unbroken(readers[suffix](path), path):
        text = text or next((names for names in DEFAULT_TEXT_COLUMNS if set(names) <= row.keys()), None)
        if text is None:
            raise InputError(
                f"{path} has the columns {listed(row)}: the texts must be in sentence, in text, or in sentence1 and "
                "sentence2, or ",
                TEXT_COLUMNS,
                " must name their columns",
            )
        wanted = dict(zip(TEXT, text, strict=False)) | ({} if label is None else {"label": label})
        remedy = (": ", TEXT_COLUMNS, " and ", LABEL_COLUMN, " choose other columns")
        values = dict(zip(wanted, columns(row, wanted.values(), path, line, remedy), strict=True))
        for name, value in values.items():
            if not isinstance(value, (str, int, float)):
                raise InputError(f"{path}:{line}: {wanted[name]} is {shown(value)}, neither text nor a number")
            if name == "label" and not str(value).strip():
                raise InputError(f"{path}:{line}: {wanted[name]} is empty: name the class, or leave the example out")
        rows.append({name: str(value).strip() if name == "label" else str(value) for name, value in values.items()})
    if suffix == ".tsv" and rows and all(value[:1] == value[-1:] == '"' for row in rows for value in row.values()):
        raise InputError(f"{path}: all values stand in quotes, which tsv does not have: save it as csv")
    return rows


def _find_labels(labels: list[str], problem_type: str | None, file: str) -> tuple[str, ...]:
    """The different labels of a train file, sorted; none for a regression.

    Whole numbers are classes, named as in the file: 01 and 1 are two. Only 1 and 1.0 are one class, 1, because pandas
    writes either for the same number. Raises ValueError where the labels look like a regression's, but some are not
    numbers, and where all are the same class.
    """
    names = set(labels)
    whole = all(map(_is_whole, names))
    decimals = any(_is_number(name) and not _is_whole(name) for name in names)
    if problem_type is None and (decimals or (not whole and all(map(_is_float, names)))):
        for number, label in enumerate(labels, start=1):
            if not _is_number(label):
                raise InputError(
                    f"{file}, example {number}: the label {shown(label)} is not a number, as others are: correct it, "
                    "or give ",
                    Parameter("problem_type"),
                    " single_label_classification if all are names of classes",
                )
        problem_type = "regression"
    if problem_type == "regression":
        return ()
    if whole:
        names = set(map(_without_decimal, names))
    if len(names) == 1:
        raise InputError(f"{file}: every label is {shown(names.pop())}: add examples of another class")
    return tuple(sorted(names, key=(lambda name: (Decimal(name), name)) if whole else None))


def _read_label(label: str, task: GlueTask, where: str, of_numbers: tuple[str, ...] | None) -> str | float:
    """The name of the label among the task's, or a regression's number. `of_numbers` are names of class 0, 1, ..."""
    if not task.labels:
        return _number(label, where)
    integer = _without_decimal(label)
    if of_numbers is not None and label not in task.labels and integer in map(str, range(len(of_numbers))):
        return of_numbers[int(integer)]
    for name in (
        label,
        integer,
        f"{integer}.0",
        f"LABEL_{integer}",
    ):  # the last: transformers' name for class 0, 1, ...
        if name in task.labels:
            return name
    for name in task.labels:
        if normalize("NFKC", name) == normalize("NFKC", label):
            raise InputError(
                f"{where}: the label {ascii(label)} looks like {ascii(name)}, which is known, and has other "
                "characters: convert the files to one Unicode form, such as NFC"
            )
    raise InputError(f"{where}: unknown label {shown(label)}, known are {listed(task.labels)}")


def _is_float(label: str) -> bool:
    """Whether it is a number, finite or not: nan and 1e400 are floats too."""
    try:
        float(label)
    except ValueError:
        return False
    return True


def _is_number(label: str) -> bool:
    """Whether it is a finite number."""
    return _is_float(label) and math.isfinite(float(label))


def _is_whole(label: str) -> bool:
    return _is_number(label) and float(label).is_integer()


def _without_decimal(label: str) -> str:
    """1.0 as 1; any other label as it is."""
    number, point, decimal = label.partition(".")
    return number if INTEGER.fullmatch(number) and point + decimal == ".0" else label
