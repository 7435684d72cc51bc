"""Multiple choice, as in SWAG, RACE and Story Cloze: a context and several choices, of which one is right.

Every reader returns splits with the columns context (a text), choices (a list of texts), part (RACE's middle or high,
else empty) and, if there are labels, label: the number of the right choice, from 0. All examples of a split have the
same number of choices. A broken file is a ValueError that names the file, the line and the mistake. A model reads each
choice as a second text, after the context.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from datasets import DatasetDict

from elmo_gpt_bert.tasks.features import map_examples, report_known_words
from elmo_gpt_bert.tasks.rows import (
    check_folder,
    columns,
    hub_splits,
    listed,
    needed_files,
    part_of,
    read_json,
    read_rows,
    to_dataset,
)
from elmo_gpt_bert.training.errors import InputError, MissingFileError
from elmo_gpt_bert.training.files import shown


if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedTokenizerBase


ENDINGS = (".csv", ".json", ".jsonl")  # of the user's own files
PARTS = ("middle", "high")  # of RACE
Rows = Iterable[tuple[str, dict]]  # the place of a row, for errors, and the row


# The table


@dataclass(frozen=True)
class Columns:
    """The columns of a task's rows."""

    context: tuple[str, ...]  # their texts are joined by a space
    choices: tuple[str, ...] | str  # one column for each choice, or one column with a list of all
    label: str = "label"
    first: str = "0"  # the label of the first choice; the others count on from it, as 1, 2 or B, C
    beginning: str | None = None  # the column of the text that all choices begin with
    gaps: bool = False  # texts may be empty, as some of the published ones are

    @property
    def of_texts(self) -> list[str]:
        choices = [self.choices] if isinstance(self.choices, str) else self.choices
        return [*self.context, *([self.beginning] if self.beginning else []), *choices]


# SWAG: as usual for BERT and GPT, the context is sent1, and a choice is sent2 with an ending.
SWAG = Columns(("sent1",), ("ending0", "ending1", "ending2", "ending3"), beginning="sent2", gaps=True)
RACE = Columns(("article", "question"), "options", "answer", first="A", gaps=True)
STORY_CLOZE = Columns(
    tuple(f"InputSentence{number}" for number in range(1, 5)),
    ("RandomFifthSentenceQuiz1", "RandomFifthSentenceQuiz2"),
    "AnswerRightEnding",
    first="1",
)
PUBLISHED = (SWAG, RACE, STORY_CLOZE)


@dataclass(frozen=True)
class ChoiceTask:
    """One row of the table."""

    name: str
    columns: Columns
    files: Mapping[str, str]  # split -> its file (of RACE, its folder) in the published folder
    folder: str = "."  # the name of the published folder
    hub: tuple[str, str] | None = None  # data set and configuration; None: not on the Hub


STORIES = "cloze_test_val__spring2016 - cloze_test_ALL_val.csv"
TASKS = {
    # Zellers et al. 2018, arXiv 1808.05326
    "swag": ChoiceTask(
        "SWAG",
        SWAG,
        {"train": "train.csv", "validation": "val.csv", "test": "test.csv"},
        hub=("allenai/swag", "regular"),
    ),
    # Lai et al. 2017, arXiv 1704.04683
    "race": ChoiceTask(
        "RACE", RACE, {"train": "train", "validation": "dev", "test": "test"}, "RACE", ("ehovy/race", "all")
    ),
    # Mostafazadeh et al. 2016, arXiv 1604.01696. The training stories have no wrong endings, so GPT was trained on the
    # validation stories.
    "storycloze": ChoiceTask(
        "Story Cloze",
        STORY_CLOZE,
        {"train": STORIES, "validation": STORIES, "test": "cloze_test_test__spring2016 - cloze_test_ALL_test.csv"},
    ),
}


# Sources


def read_hub(task: ChoiceTask, splits: Iterable[str]) -> DatasetDict:
    """The splits on the Hub. Raises OSError when the Hub is out of reach."""
    name, configuration = task.hub
    data = DatasetDict()
    for split, examples in hub_splits(name, splits, configuration):
        rows = ((f"{name}, {split} {number}", row) for number, row in enumerate(examples))
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
        raise MissingFileError(f"{folder} has no {path.name}: --data_dir is not the folder of {task.name}")
    return path


def find_files(data_dir: Path, task: ChoiceTask, split: str) -> list[Path]:
    """The files that `read_folder` reads for a split."""
    path = find_path(data_dir, task, split)
    return [file for part in PARTS for file in _articles(path, part)] if task.columns is RACE else [path]


def _articles(folder: Path, part: str) -> list[Path]:
    files = sorted((folder / part).glob("*.txt"))
    if not files:
        raise MissingFileError(f"{folder / part} holds no .txt files: --data_dir is not the folder of RACE")
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
        rows = part_of(_read_file(path), split, held_out, path, key=_context)
        data[split] = _examples(rows, path, split)
    return data


def _context(row: dict) -> object:
    """The first text of a row of the user's own file, which its questions share."""
    published = _published(row)
    return row.get("context") if published is None else row[published.context[0]]


def _read_file(path: Path) -> Iterator[tuple[str, dict]]:
    """The rows of a csv file or of JSON lines, each with its place."""
    for line, row in read_rows(path, ENDINGS):
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


def _published(row: dict) -> Columns | None:
    """The published data set whose columns of texts a row of the user's own file has; None if it is none."""
    return next((each for each in PUBLISHED if row.keys() >= {*each.of_texts}), None)


def _recognise(row: dict, where: str) -> Columns:
    """The columns of a row of the user's own file."""
    if (published := _published(row)) is not None:
        return published
    context = ("context", "question") if "question" in row else ("context",)
    numbered = [name for name in row if re.fullmatch(r"choice\d+", name)]
    choices = "choices" if "choices" in row else tuple(f"choice{number}" for number in range(len(numbered)))
    names = Columns(context, choices)
    if not choices or not row.keys() >= {*names.of_texts}:
        raise InputError(
            f"{where}: the columns are {listed(row)}, but should be label, context, question if there is one, and "
            "choice0, choice1 and so on or, in JSON, the list choices; or those of SWAG, RACE or Story Cloze"
        )
    return names


def _example(row: dict, names: Columns, where: str, test: bool) -> dict:
    """The example of a row with the columns `names`, at the place `where`. In a `test` split the label may be None."""
    columns(row, names.of_texts, where)

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
    columns(row, [names.label], where)
    first = names.first
    labels = [str(int(first) + n) if first.isdigit() else chr(ord(first) + n) for n in range(choices)]
    if label not in labels:
        raise InputError(
            f"{where}: the {names.label} {shown(label)} is none of {listed(labels)}, the labels of the choices"
        )
    return labels.index(label)


# Features


def make_features(
    data: DatasetDict, tokenizer: PreTrainedTokenizerBase, *, length: int, limits: Mapping[str, int | None]
) -> DatasetDict:
    """The features, of at most `length` tokens a choice, of the first examples of each split, up to its limit."""
    for split, examples in data.items():
        report_known_words(split, chain(examples["context"], chain.from_iterable(examples["choices"])), tokenizer)
    return map_examples(data, partial(featurize, tokenizer=tokenizer, length=length), limits)


def featurize(batch: dict[str, list], tokenizer: PreTrainedTokenizerBase, length: int) -> dict[str, list]:
    """The model's inputs, each with one list for each choice of an example, and `labels`, the right choices."""
    contexts = [context for context, choices in zip(batch["context"], batch["choices"], strict=True) for _ in choices]
    rows = iter(encode(contexts, list(chain(*batch["choices"])), tokenizer, length))
    grouped = [[next(rows) for _ in choices] for choices in batch["choices"]]
    features = {name: [[row[name] for row in group] for group in grouped] for name in grouped[0][0]}
    return features | ({"labels": batch["label"]} if "label" in batch else {})


def encode(
    contexts: list[str], choices: list[str], tokenizer: PreTrainedTokenizerBase, length: int
) -> list[dict[str, list]]:
    """The tokenizer's inputs of each pair, cut to `length` tokens.

    The beginning of the context is cut off. If the choice alone fills the room, the beginning of the longer text is
    cut off until both are equally long, and then that of both.
    """
    room = length - tokenizer.num_special_tokens_to_add(pair=True)
    leaves_room = np.array([len(ids) < room for ids in tokenizer(choices, add_special_tokens=False)["input_ids"]])
    inputs: list[dict[str, list]] = [{} for _ in choices]
    side, tokenizer.truncation_side = tokenizer.truncation_side, "left"
    for truncation, is_cut_so in (("only_first", leaves_room), ("longest_first", ~leaves_room)):
        numbers = np.flatnonzero(is_cut_so).tolist()
        if numbers:
            pairs = [contexts[number] for number in numbers], [choices[number] for number in numbers]
            encoded = tokenizer(*pairs, truncation=truncation, max_length=length, return_attention_mask=True)
            for row, number in enumerate(numbers):
                inputs[number] = {name: values[row] for name, values in encoded.items()}
    tokenizer.truncation_side = side
    return inputs


def collate(examples: list[dict], tokenizer: PreTrainedTokenizerBase, **padding: object) -> dict[str, torch.Tensor]:
    """A batch for the model: the tokenizer's inputs as (B, choices, T), and `labels` as (B,)."""
    names = examples[0].keys() - {"labels"}
    rows = [
        {name: example[name][choice] for name in names}
        for example in examples
        for choice in range(len(example["input_ids"]))
    ]
    padded = tokenizer.pad(rows, return_tensors="pt", **padding)
    batch = {name: tensor.unflatten(0, (len(examples), -1)) for name, tensor in padded.items()}
    if "labels" in examples[0]:
        batch["labels"] = torch.tensor([example["labels"] for example in examples])
    return batch
