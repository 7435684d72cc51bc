"""Files that a user brings: one or two texts on each row, with a class, any number of classes, or a number.

The files are tab-separated without quoting, csv, or JSON with one object a line. A broken file is a ValueError that
names the file, the line and the mistake. Several classes stand in a list of JSON: of their names, or of 0.0 and 1.0
for each class.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING
from unicodedata import normalize

from elmo_gpt_bert.tasks.glue import PAIR, TEXT, GlueTask, is_number, parse_number, to_number
from elmo_gpt_bert.tasks.rows import columns, ending, listed, needed_files, part_of, read_rows, to_dataset
from elmo_gpt_bert.training.errors import InputError
from elmo_gpt_bert.training.files import shown


if TYPE_CHECKING:
    from datasets import DatasetDict
    from transformers import PreTrainedConfig


Label = str | list[str] | list[float]  # of a row of a file: a name or a number, names, or 0.0 and 1.0 for each class

ENDINGS = (".csv", ".tsv", ".json", ".jsonl")
DEFAULT_TEXT_COLUMNS = (PAIR, ("sentence",), ("text",))
ADDED_COLUMNS = ("prediction", "score")  # of predictions.csv
MULTI_LABEL = "multi_label_classification"  # as transformers calls it
JSON_LIST = '["a", "b"] or [1.0, 0.0], with double quotes and commas'  # a remedy
LIST = re.compile(r"\[\s*(['\"\d].*)?\]", re.DOTALL)  # of labels, also as Python and NumPy write it
INTEGER = re.compile("0|-?[1-9][0-9]*")  # as Python writes it


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
    file or, without one, those of the model's `config`. A text has any number of labels if `problem_type` says so, if
    a file has a list of them or, without a train file, if it has in `config`.
    `held_out` is the percentage of the train file that is the validation split, as in `part_of`.
    """
    from datasets import DatasetDict  # the import takes a second, which --help does not need

    parts, labels_of = {}, {}
    for split, path in needed_files(files):
        rows = _read_file(path, text_columns, None if split == "test" else label_column or "label")
        labels_of[split] = [row.get("label") for row in rows]
        parts[split] = list(part_of(enumerate(rows, start=1), split, held_out, path, key=_texts))
    if len({"text_pair" in row for part in parts.values() for _, row in part}) > 1:
        raise InputError("some of the files have one text for each example, others two: give all of them the same")
    multi_label = _is_multi_label(parts, files, problem_type, config)
    train_labels = labels_of.get("train", [])
    if "train" in parts and multi_label:
        labels = label_names or _find_labels_of_lists(train_labels, files["train"])
    elif label_names is not None:
        labels = label_names
    elif "train" not in parts:
        labels = () if config.num_labels == 1 else tuple(name for _, name in sorted(config.id2label.items()))
    else:
        labels = _find_labels(train_labels, problem_type, files["train"])
    if "train" in parts and label_names is None:
        _check_spellings(labels, files["train"])
    text = PAIR if "text_pair" in next(iter(parts.values()))[0][1] else ("sentence",)
    scores = "multi_label" if multi_label else "classes" if labels else "stsb"
    task = GlueTask("", text, labels, scores, multi_label=multi_label)
    has_order = label_names is not None or any(map(_are_flags, train_labels))
    has_order = has_order or ("train" not in parts and _are_numbered(labels))
    for split in parts.keys() - {"test"}:
        _check_whole_numbers(labels_of[split], task, files[split])
        for number, row in parts[split]:
            if _are_flags(row["label"]) and not has_order:
                source = "train file" if "train" in parts else "model"
                raise InputError(
                    f"{files[split]}, example {number}: a list of numbers, but the {source} has names, which are in "
                    "no order: write names here, too, or give --label_names"
                )
            row["label"] = _read_label(row["label"], task, f"{files[split]}, example {number}", label_names)
    data = {split: to_dataset([row for _, row in part], files[split]) for split, part in parts.items()}
    return task, DatasetDict(data)


def _texts(row: dict[str, Label]) -> list[str]:
    return [row[name] for name in TEXT if name in row]


def _is_multi_label(
    parts: Mapping[str, Sequence[tuple[int, dict[str, Label]]]],
    files: Mapping[str, str],
    problem_type: str | None,
    config: PreTrainedConfig,
) -> bool:
    """Whether a text has any number of labels. Raises ValueError for a list of them where `problem_type` says one."""
    if problem_type == MULTI_LABEL:
        return True
    for split, part in parts.items():
        number = next((number for number, row in part if isinstance(row.get("label"), list)), None)
        if number is not None and problem_type is not None:
            raise InputError(
                f"{files[split]}, example {number}: a list of labels, which {MULTI_LABEL} has, and --problem_type is "
                f"{problem_type}"
            )
        if number is not None:
            return True
    return "train" not in parts and config.problem_type == MULTI_LABEL


def _read_file(path: Path, text: tuple[str, ...] | None, label: str | None) -> list[dict[str, Label]]:
    """The columns `text` and `label` of a file with the names text, text_pair if there are two, label.

    Without `label`, they are examples to predict, and `row` is the whole row as JSON, for `predictions_csv`.
    """
    rows = []
    for line, row in read_rows(path, ENDINGS):
        text = text or _text_columns(row, path)
        wanted = dict(zip(TEXT, text, strict=False)) | ({} if label is None else {"label": label})
        remedy = ": --text_column_names and --label_column_name choose other columns"
        where = f"{path}:{line}"
        values = dict(zip(wanted, columns(row, wanted.values(), where, remedy), strict=True))
        if label is None and (taken := [name for name in ADDED_COLUMNS if name in row]):
            raise InputError(f"{where}: the column {taken[0]} has a name that predictions.csv adds: rename it")
        whole = {"row": json.dumps(row, ensure_ascii=False)} if label is None else {}
        rows.append({name: _value(name, value, f"{where}: {wanted[name]}") for name, value in values.items()} | whole)
    if not rows:
        raise InputError(f"{path} holds no examples")
    texts = (value for row in rows for name, value in row.items() if name != "row")
    quoted = (isinstance(value, str) and value[:1] == value[-1:] == '"' for value in texts)
    if ending(path) == ".tsv" and all(quoted):
        raise InputError(f"{path}: all values stand in quotes, which tsv does not have: save it as csv")
    return rows


def _text_columns(row: dict, path: Path) -> tuple[str, ...]:
    """The columns of the texts in a file that has the default ones."""
    for names in DEFAULT_TEXT_COLUMNS:
        if set(names) <= row.keys():
            return names
    raise InputError(
        f"{path} has the columns {listed(row)}: the texts must be in sentence, in text, or in sentence1 and "
        "sentence2, or --text_column_names must name their columns"
    )


def _value(name: str, value: object, where: str) -> Label:
    """The `value` of the column `name`: a text, or a label without white space around it."""
    if name == "label" and isinstance(value, str) and LIST.fullmatch(value.strip()):
        try:
            value = json.loads(value)  # a list as predictions.csv has it
        except ValueError as error:  # as Python and NumPy write a list
            raise InputError(f"{where} is {shown(value)}, which is no list of JSON: write {JSON_LIST}") from error
    if name == "label" and isinstance(value, list):
        return _list_of_labels(value, where)
    if not isinstance(value, (str, int, float)):
        raise InputError(f"{where} is {shown(value)}, neither text nor a number")
    if name != "label":
        return str(value)
    if not str(value).strip():
        raise InputError(f"{where} is empty: name the class, or leave the example out")
    return str(value).strip()


def _list_of_labels(labels: list, where: str) -> list[str] | list[float]:
    """The names of a text's classes, or 0.0 and 1.0 for each class."""
    if labels and all(isinstance(label, float) for label in labels):
        if not {*labels} <= {0.0, 1.0}:
            raise InputError(f"{where} is {shown(labels)}: its numbers must be 0.0 or 1.0, one for each class")
        return labels
    names = [str(label).strip() for label in labels if isinstance(label, (str, int)) and not isinstance(label, bool)]
    if len(names) < len(labels) or not all(names):
        raise InputError(f"{where} is {shown(labels)}: a list has names of classes, or 0.0 or 1.0 for each class")
    if len({*names}) < len(names):
        raise InputError(
            f"{where} is {shown(labels)}: a list of names has each name once; write 0.0 and 1.0 for flags of classes"
        )
    return names


def _find_labels_of_lists(labels: list[Label], file: str) -> tuple[str, ...]:
    """The different names in the lists of a train file, sorted as in `_find_labels`; 0, 1, ... where they hold flags.

    A label that is no list is one class. Raises ValueError where the lists differ in length, or name fewer than two
    classes.
    """
    flags = next(filter(_are_flags, labels), None)
    if flags is not None:
        for number, label in enumerate(labels, start=1):
            if isinstance(label, str) or len(label) not in (0, len(flags)):
                raise InputError(
                    f"{file}, example {number}: the label {shown(label)} is not a list of {len(flags)} numbers, as "
                    "others are: one for each class"
                )
        names = {str(number) for number in range(len(flags))}
    else:
        classes_of_texts = {frozenset(_names(label)) for label in labels}
        names = {name for classes in classes_of_texts for name in classes}
        if len(classes_of_texts) == 1 and len(names) > 1:
            raise InputError(
                f"{file}: every text has the same classes: add others, or write 0.0 and 1.0 for flags of classes"
            )
    if len(names) < 2:
        classes = f"the class {shown(*names)} alone" if names else "no class"
        raise InputError(f"{file}: the lists name {classes}: add examples of another class")
    return _sorted(names)


def _check_spellings(names: Sequence[str], file: str) -> None:
    """Raises ValueError where two names of classes are the same characters in two Unicode forms."""
    first: dict[str, str] = {}
    for name in names:
        other = first.setdefault(normalize("NFC", name), name)
        if other != name:
            raise InputError(
                f"{file}: the classes {ascii(other)} and {ascii(name)} are one name in two Unicode forms: convert the "
                "file to one form, such as NFC"
            )


def _check_whole_numbers(labels: list[Label], task: GlueTask, file: str) -> None:
    """Raises ValueError where [0, 1] and [1, 0] are the only lists, which may be meant as flags of two classes."""
    if not task.multi_label or len(task.labels) != 2 or {*task.labels} == {"0", "1"}:
        return
    if {frozenset(_names(label)) for label in labels if label} == {frozenset(("0", "1"))}:
        raise InputError(
            f"{file}: every list holds 0 and 1, which as numbers of classes are both of {listed(task.labels)}: write "
            "0.0 and 1.0 for flags of classes, or the names of a text's classes"
        )


def _are_numbered(names: Sequence[str]) -> bool:
    """Whether the names of classes say their order: they are whole numbers, or LABEL_0, LABEL_1, ..."""
    numbers = [name.removeprefix("LABEL_") for name in names]
    return all(map(_is_whole, numbers)) and _sorted({*numbers}) == (*numbers,)


def _are_flags(label: Label) -> bool:
    """Whether a label is a list of 0.0 and 1.0 for each class."""
    return isinstance(label, list) and isinstance(next(iter(label), None), float)


def _names(label: str | list[str]) -> list[str]:
    """The names of a text's classes: a label that is no list is one class."""
    return [label] if isinstance(label, str) else label


def _find_labels(labels: list[str], problem_type: str | None, file: str) -> tuple[str, ...]:
    """The different labels of a train file, sorted; none for a regression.

    Whole numbers are classes, named as in the file: 01 and 1 are two. Only 1 and 1.0 are one class, 1, because pandas
    writes either for the same number. Raises ValueError where the labels look like a regression's, but some are not
    numbers, and where all are the same class.
    """
    names = set(labels)
    whole = all(map(_is_whole, names))
    decimals = any(is_number(name) and not _is_whole(name) for name in names)
    if problem_type is None and (decimals or (not whole and all(parse_number(name) is not None for name in names))):
        for number, label in enumerate(labels, start=1):
            if not is_number(label):
                raise InputError(
                    f"{file}, example {number}: the label {shown(label)} is not a number, as others are: correct it, "
                    "or give --problem_type single_label_classification if all are names of classes"
                )
        problem_type = "regression"
    if problem_type == "regression":
        return ()
    sorted_names = _sorted(names)
    if len(sorted_names) == 1:
        raise InputError(f"{file}: every label is {shown(sorted_names[0])}: add examples of another class")
    return sorted_names


def _sorted(names: set[str]) -> tuple[str, ...]:
    """Names of classes in their order: by value if all are whole numbers, of which 1.0 is called 1."""
    if not all(map(_is_whole, names)):
        return tuple(sorted(names))
    return tuple(sorted(set(map(_without_decimal, names)), key=lambda name: (Decimal(name), name)))


def _read_label(
    label: Label, task: GlueTask, where: str, of_numbers: tuple[str, ...] | None
) -> str | float | list[str]:
    """The name of the label among the task's, a list of names, or a regression's number.

    `of_numbers` are names of class 0, 1, ...
    """
    if task.multi_label and _are_flags(label):
        if len(label) != len(task.labels):
            raise InputError(
                f"{where}: the label is a list of {len(label)} numbers, but there are {len(task.labels)} classes: "
                f"{listed(task.labels)}"
            )
        return [name for name, flag in zip(task.labels, label, strict=True) if flag]
    if task.multi_label:
        return [_read_name(name, task, where, of_numbers) for name in _names(label)]
    return _read_name(label, task, where, of_numbers) if task.labels else to_number(label, where)


def _read_name(label: str, task: GlueTask, where: str, of_numbers: tuple[str, ...] | None) -> str:
    integer, numbers = _without_decimal(label), map(str, range(len(of_numbers or ())))
    if label not in task.labels and integer in numbers and not any(map(_is_whole, task.labels)):
        return of_numbers[int(integer)]
    # LABEL_0 and so on: transformers' names for the classes 0, 1, ...
    for name in (label, integer, f"{integer}.0", f"LABEL_{integer}"):
        if name in task.labels:
            return name
    for name in task.labels:
        if normalize("NFKC", name) == normalize("NFKC", label):
            raise InputError(
                f"{where}: the label {ascii(label)} looks like {ascii(name)}, which is known, and has other "
                "characters: convert the files to one Unicode form, such as NFC"
            )
    remedy = "" if of_numbers is None else ": --label_names must have all labels of the files"
    raise InputError(f"{where}: unknown label {shown(label)}, known are {listed(task.labels)}{remedy}")


def _is_whole(label: str) -> bool:
    return is_number(label) and float(label).is_integer()


def _without_decimal(label: str) -> str:
    """1.0 as 1; any other label as it is."""
    number, point, decimal = label.partition(".")
    return number if INTEGER.fullmatch(number) and point + decimal == ".0" else label


def predictions_csv(rows: Sequence[str], predictions: Sequence[str], scores: Sequence[str] | None) -> str:
    """The `rows` of a test file as csv with all of its columns, and with the prediction and the score of each."""
    rows = [*map(json.loads, rows)]
    names = list(dict.fromkeys(name for row in rows for name in row))
    content = io.StringIO(newline="")
    writer = csv.writer(content)  # lines end with \r\n, so that a \r inside a cell is quoted, too
    writer.writerow([*names, *ADDED_COLUMNS[: 1 if scores is None else 2]])
    added = zip(predictions) if scores is None else zip(predictions, scores, strict=True)
    for row, values in zip(rows, added, strict=True):
        writer.writerow([*(_cell(row.get(name)) for name in names), *values])
    return content.getvalue()


def _cell(value: object) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    return json.dumps(value, ensure_ascii=False)
