"""Readers of contexts with choices: from the Hub, from published folders, or from the user's own files.

Every reader returns splits with the columns context (a text), choices (a list of texts), part (RACE's middle or high,
else empty) and, if there are labels, label: the number of the right choice, from 0. All examples of a split have the
same number of choices. A broken file is a ValueError that names the file, the line and the mistake.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from datasets import DatasetDict

from elmo_gpt_bert.tasks.choices.table import RACE, STORIES, STORY_CLOZE, SWAG, ChoiceTask, Columns
from elmo_gpt_bert.tasks.rows import (
    DATA_DIR,
    PUBLISHED,
    check_characters,
    check_folder,
    listed,
    load_hub,
    needed_files,
    part_of,
    read_csv,
    read_json,
    read_json_lines,
    to_dataset,
    unbroken,
)
from elmo_gpt_bert.training.errors import InputError, MissingFileError
from elmo_gpt_bert.training.files import shown


if TYPE_CHECKING:
    from datasets import Dataset


READERS = {".csv": read_csv, ".json": read_json_lines, ".jsonl": read_json_lines}
PARTS = ("middle", "high")  # of RACE
Rows = Iterable[tuple[str, dict]]  # the place of a row, for errors, and the row


# Sources


def read_hub(task: ChoiceTask, splits: Iterable[str]) -> DatasetDict:
    """The splits on the Hub. Raises OSError when the Hub is out of reach."""
    name, configuration = task.hub
    hub = load_hub(name, configuration, None, PUBLISHED)
    data = DatasetDict()
    for split in splits:
        rows = ((f"{name}, {split} {number}", row) for number, row in enumerate(hub[split]))
        data[split] = _examples(rows, f"{name}, {split},", split, task.columns)
    return data


def read_folder(data_dir: Path, task: ChoiceTask, splits: Iterable[str]) -> DatasetDict:
    """The splits from the task's published files in `data_dir` or, for RACE, in its subfolder with that name."""
    data = DatasetDict()
    for split in splits:
        path = find_path(data_dir, task, split)
        rows = _read_race(path) if task.columns is RACE else _read_file(path)
        data[split] = _examples(rows, path, split, task.columns)
        if path.name == STORIES:
            data[split] = _split_stories(data[split], split)
    return data


def find_path(data_dir: Path, task: ChoiceTask, split: str) -> Path:
    """The split's file in `data_dir` or, for RACE, its folder of articles. Raises FileNotFoundError without one."""
    check_folder(data_dir)
    folder = data_dir / task.folder if (data_dir / task.folder).is_dir() else data_dir
    path = folder / task.files[split]
    if not path.exists():
        raise MissingFileError(f"{folder} has no {path.name}: ", DATA_DIR, f" is not the folder of {task.name}")
    return path


def find_files(data_dir: Path, task: ChoiceTask, split: str) -> list[Path]:
    """The files that `read_folder` reads for a split."""
    path = find_path(data_dir, task, split)
    return [file for part in PARTS for file in _articles(path, part)] if task.columns is RACE else [path]


def _articles(folder: Path, part: str) -> list[Path]:
    files = sorted((folder / part).glob("*.txt"))
    if not files:
        raise MissingFileError(f"{folder / part} holds no .txt files: ", DATA_DIR, " is not the folder of RACE")
    return files


def _split_stories(stories: Dataset, split: str) -> Dataset:
    """The 1497 stories of Story Cloze on which the released code of GPT trains, or the 374 on which it validates.
    https://github.com/openai/finetune-transformer-lm/blob/master/datasets.py
    """
    from sklearn.model_selection import train_test_split  # the import takes seconds, which others do not need

    if len(stories) < 2:
        raise InputError(f"{STORIES}: a single story cannot be both trained on and validated on: add others")
    held_out = max(1, round(len(stories) / 5))
    train, validation = train_test_split(range(len(stories)), test_size=held_out, random_state=3535999445)
    return stories.select(train if split == "train" else validation)


def read_files(files: Mapping[str, str | None], held_out: float | None = None) -> DatasetDict:
    """The splits that a run needs, each from its file.

    `held_out` is the percentage of the train file that is the validation split, as in `part_of`. Questions about one
    context stay together.
    """
    data = DatasetDict()
    for split, path in needed_files(files):
        if path.suffix.lower() not in READERS:
            raise InputError(f"{path}: your own file must be one of {', '.join(READERS)}")
        rows = part_of(_read_file(path), split, held_out, path, key=_context)
        data[split] = _examples(rows, path, split)
    return data


def _context(row: dict) -> object:
    """The first text of a row of the user's own file, which its questions share; None if its columns are wrong."""
    try:
        return row[_recognise(row, "").context[0]]
    except InputError:  # which `_examples` raises again, with the place of the row
        return None


def _read_file(path: Path) -> Iterator[tuple[str, dict]]:
    """The rows of a csv file or of JSON lines, each with its place."""
    for line, row in unbroken(READERS[path.suffix.lower()](path), path):
        yield f"{path}:{line}", row


def _read_race(folder: Path) -> Iterator[tuple[str, dict]]:
    """The rows of a split's folder as the Hub has them: one for each question of middle/*.txt, then of high/*.txt."""
    for part in PARTS:
        for path in _articles(folder, part):
            for number, row in enumerate(_passage(path), start=1):
                yield f"{path}, question {number}", {"example_id": f"{part}{path.name}", **row}


def _passage(path: Path) -> Iterator[dict]:
    """The rows of one article, one for each of its questions."""
    names = ("questions", "options", "answers")
    passage = read_json(path)
    try:
        check_characters(passage)
    except UnicodeEncodeError as error:
        raise InputError(f"{path} holds half a surrogate pair, which is no character ({error})") from error
    try:
        article, *lists = (passage[name] for name in ("article", *names))
        rows = list(zip(*lists, strict=True))
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{path}: a file of RACE is one object with article and, of equal length, the lists {', '.join(names)}"
        ) from error
    for question, options, answer in rows:
        yield {"article": article, "question": question, "options": options, "answer": answer}


# Rows -> examples


def _examples(rows: Rows, source: Path | str, split: str, names: Columns | None = None) -> Dataset:
    """The examples of a split, whose labels are optional in a test split.

    `names` are the columns of the rows; None: they are recognised by the names that a row has.
    """
    examples = []
    for where, row in rows:
        examples.append(_example(row, names or _recognise(row, where), where, split == "test"))
        counts = [len(example["choices"]) for example in (examples[0], examples[-1])]
        if counts[0] != counts[1]:
            raise InputError(
                f"{where}: {counts[1]} choices, but the first example has {counts[0]}: put examples with another "
                "number of choices into another file"
            )
    missing = sum(example["label"] is None for example in examples)
    if 0 < missing < len(examples):
        raise InputError(f"{source} has no label for {missing} of {len(examples)} examples: give all of them, or none")
    data = to_dataset(examples, source)
    return data.remove_columns("label") if missing else data


def _recognise(row: dict, where: str) -> Columns:
    """The columns of a row of the user's own file."""
    for published in (SWAG, RACE, STORY_CLOZE):
        if not _lacking(row, published):
            return published
    context = ("context", "question") if "question" in row else ("context",)
    numbered = [name for name in row if re.fullmatch(r"choice\d+", name)]
    choices = "choices" if "choices" in row else tuple(f"choice{number}" for number in range(len(numbered)))
    names = Columns(context, choices)
    if _lacking(row, names) or not choices:
        raise InputError(
            f"{where}: the columns are {listed(row)}, but should be label, context, question if there is one, and "
            "choice0, choice1 and so on or, in JSON, the list choices; or those of SWAG, RACE or Story Cloze"
        )
    return names


def _lacking(row: dict, names: Columns) -> list[str]:
    """The columns of the texts that the row does not have."""
    choices = [names.choices] if isinstance(names.choices, str) else names.choices
    wanted = [*names.context, *([names.beginning] if names.beginning else []), *choices]
    return [name for name in wanted if name not in row]


def _example(row: dict, names: Columns, where: str, test: bool) -> dict:
    """The example of a row with the columns `names`, at the place `where`. In a `test` split the label may be None."""
    if lacking := _lacking(row, names):
        raise InputError(f"{where}: no column {', '.join(lacking)} among {listed(row)}")

    def join(*named: tuple[str, object]) -> str:
        for name, value in named:
            if isinstance(value, bool) or not isinstance(value, (str, int, float)):
                raise InputError(f"{where}: {name} is {shown(value)}, neither text nor a number")
            if not (names.gaps or str(value).strip()):
                raise InputError(f"{where}: {name} is empty: give it a text, or leave the example out")
        return " ".join(str(value) for _, value in named if value != "")

    is_list = isinstance(names.choices, str)
    choices = row[names.choices] if is_list else [row[name] for name in names.choices]
    if not isinstance(choices, list):
        raise InputError(
            f"{where}: {names.choices} is {shown(choices)}, not a list; csv has choice0, choice1, ... instead"
        )
    if len(choices) < 2:
        raise InputError(f"{where}: an example must have at least two choices, not {len(choices)}")
    titles = [f"choice {number} of {names.choices}" for number in range(len(choices))] if is_list else names.choices
    beginning = [(names.beginning, row[names.beginning])] if names.beginning else []
    part = re.match("middle|high", str(row.get("example_id", ""))) if names is RACE else None
    return {
        "context": join(*((name, row[name]) for name in names.context)),
        "choices": [join(*beginning, named) for named in zip(titles, choices, strict=True)],
        "part": part.group() if part else "",
        "label": _label(row, names, len(choices), where, test),
    }


def _label(row: dict, names: Columns, choices: int, where: str, test: bool) -> int | None:
    """The number of the right choice; None if the label of a test file is missing, empty or -1."""
    value = row.get(names.label)
    label = "" if value is None else str(value).strip()
    label = re.sub(r"(?<=\d)\.0+$", "", label)  # 1.0, as pandas writes whole numbers beside missing ones
    if test and label in ("", "-1"):
        return None
    if names.label not in row:
        raise InputError(f"{where}: no column {names.label} among {listed(row)}")
    first = names.first
    labels = [str(int(first) + n) if first.isdigit() else chr(ord(first) + n) for n in range(choices)]
    if label not in labels:
        raise InputError(
            f"{where}: the {names.label} {shown(label)} is none of {listed(labels)}, the labels of the choices"
        )
    return labels.index(label)
