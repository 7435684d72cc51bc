"""Readers of questions about contexts, SQuAD 1.1 or 2.0: from the Hub, from the published folder, or from files.

Every reader returns splits with the Hub's columns id, title, context, question and answers. answers holds the lists
text and answer_start; the latter counts Python's characters in the context, from 0. In SQuAD 2.0 both lists are empty
if the question has no answer. A test split without any answers lacks the column answers. Texts stay as the source has
them. A mistake in the data is a ValueError that names its place, the value and the remedy. If only the first questions
are read, `elmo_gpt_bert.tasks.rows.total` still has the number of all.

With `locate`, answers that are not at their answer_start are looked for, as CMRC 2018 needs it. Those that occur
nowhere have an answer_start of -1: they count in scores, and questions without any other answer are left out of the
training data.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

from accelerate import PartialState
from datasets import Dataset, DatasetDict, Features, List, Value
from datasets.fingerprint import generate_random_fingerprint
from datasets.table import InMemoryTable

from elmo_gpt_bert.tasks.rows import (
    DATA_DIR,
    PUBLISHED,
    check_folder,
    check_split,
    load_hub,
    needed_files,
    note_total,
    split_file,
)
from elmo_gpt_bert.tasks.squad.files import VERSION_2, check_questions, read_questions
from elmo_gpt_bert.training.errors import InputError, MissingFileError


FILES = {"train": "train-v{}.json", "validation": "dev-v{}.json", "test": "test-v{}.json"}
VERSIONS = {False: "1.1", True: "2.0"}  # by version_2
FEATURES = {
    "id": Value("string"),
    "title": Value("string"),
    "context": Value("string"),
    "question": Value("string"),
    "answers": {"text": List(Value("string")), "answer_start": List(Value("int32"))},
}
Limits = Mapping[str, int | None]  # split -> how many of its questions are read, the first ones; None: all


def read_hub(
    name: str, splits: Iterable[str], version_2: bool, limits: Limits | None = None, locate: bool = False
) -> DatasetDict:
    """The splits of a data set on the Hub. Raises OSError when the Hub is out of reach."""
    hub = load_hub(name, None, None, PUBLISHED)
    data = DatasetDict()
    for split in splits:
        check_split(hub, name, split)
        total = len(hub[split])
        first = hub[split].select(range(min((limits or {}).get(split) or total, total)))
        rows = ((f"{name}, {split} {number}", row) for number, row in enumerate(first.to_list()))
        examples = check_questions(rows, f"{name}, {split}", split, version_2, locate)
        data[split] = _to_dataset(examples, total, split)
    return data


def read_folder(
    data_dir: Path, splits: Iterable[str], version_2: bool, limits: Limits | None = None, locate: bool = False
) -> DatasetDict:
    """The splits from the published files in `data_dir`: train-v1.1.json and dev-v1.1.json, or those of 2.0."""
    files = {split: str(find_file(data_dir, split, version_2)) for split in splits}
    return read_files(files, version_2, limits, locate)


def find_file(data_dir: Path, split: str, version_2: bool) -> Path:
    """The published file of a split. Raises FileNotFoundError, with the version that is there, if it is missing."""
    check_folder(data_dir)
    path, other = (data_dir / FILES[split].format(VERSIONS[version]) for version in (version_2, not version_2))
    if path.is_file():
        return path
    problem = f"{data_dir} has no {path.name}"
    if other.is_file():
        remedy = ("leave ", VERSION_2, " out") if version_2 else ("add ", VERSION_2)
        raise MissingFileError(f"{problem}, but {other.name}: to read SQuAD {VERSIONS[not version_2]}, ", remedy)
    reason = f" is not the folder of SQuAD {VERSIONS[version_2]}, or give "
    raise MissingFileError(f"{problem}: ", DATA_DIR, reason, split_file(split))


def read_files(
    files: Mapping[str, str | None],
    version_2: bool,
    limits: Limits | None = None,
    locate: bool = False,
    held_out: float | None = None,
) -> DatasetDict:
    """The splits that a run needs, each from its file, which `read_questions` reads.

    `held_out` is the percentage of the train file that is the validation split.
    """
    data = DatasetDict()
    for split, path in needed_files(files):
        limit = (limits or {}).get(split)
        data[split] = _to_dataset(*read_questions(path, split, version_2, limit, locate, held_out), split)
    return data


def _with_place(examples: list[dict], total: int) -> tuple[list[dict], int]:
    """The examples to train on, with the answers that have a place in the context, and `total` without the others.

    Raises ValueError if there are none.
    """
    placed = []
    for example in examples:
        answers = [(answer, start) for answer, start in example["answers"] if start >= 0]
        if answers or not example["answers"]:
            placed.append(example | {"answers": answers})
    if left_out := len(examples) - len(placed):
        problem = f"train: {left_out:,} of {len(examples):,} questions have no answer that occurs in their context"
        if not placed:
            raise InputError(f"{problem}: there is nothing to learn, so correct the answers")
        PartialState().print(f"{problem}; they are left out")
    return placed, total - left_out


def _to_dataset(examples: list[dict], total: int, split: str) -> Dataset:
    """The examples as a data set; without the column `answers` if these are None, as they then are for all examples.

    `total` is the number of examples in the source.
    """
    if split == "train":
        examples, total = _with_place(examples, total)
    columns = {name: [example[name] for example in examples] for name in FEATURES}
    columns["answers"] = [
        {"text": [answer for answer, _ in answers or ()], "answer_start": [start for _, start in answers or ()]}
        for answers in columns["answers"]
    ]
    # Dataset.from_dict would look at every single value, which takes longer than all the rest, and without a
    # fingerprint Dataset would copy all of them.
    table = InMemoryTable.from_pydict(columns, schema=Features(FEATURES).arrow_schema)
    data = Dataset(table, fingerprint=generate_random_fingerprint())
    note_total(data, total)
    return data.remove_columns("answers") if examples[0]["answers"] is None else data
