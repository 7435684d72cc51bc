"""Readers of questions about contexts, SQuAD 1.1 or 2.0: from the Hub, from the published folder, or from files.

Every reader returns splits with the Hub's columns id, title, context, question and answers. answers holds the lists
text and answer_start; the latter counts Python's characters in the context, from 0. In SQuAD 2.0 both lists are empty
if the question has no answer. A test split without any answers lacks the column answers. Texts stay as the source has
them. A mistake in the data is a ValueError that names its place, the value and the remedy.

Files of annotation tools differ from the official ones: they may be a list of articles, of paragraphs or of questions,
have numbers as ids or none, and give a question without an answer an empty one.

With `locate`, answers that are not at their answer_start are looked for, as CMRC 2018 needs it. Those that occur
nowhere have an answer_start of -1: they count in scores, and questions without any other answer are left out of the
training data.
"""

import gc
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from accelerate import PartialState
from datasets import Dataset, DatasetDict, Features, List, Value
from datasets.fingerprint import generate_random_fingerprint
from datasets.table import InMemoryTable

from elmo_gpt_bert.tasks.rows import (
    check_folder,
    check_text,
    hub_splits,
    listed,
    members,
    needed_files,
    part_of,
    read_json,
    read_json_lines,
)
from elmo_gpt_bert.training.errors import InputError, MissingFileError
from elmo_gpt_bert.training.files import shown


LAYOUT = (
    "the official layout is one object with data, a list of articles with paragraphs, each with context and qas, the "
    "list of its questions; a list of articles, of paragraphs or of questions with their context is read, too"
)
IS_2_0 = (
    "If some questions have no answer, the data are SQuAD 2.0, with empty lists of answers: add "
    "--version_2_with_negative"
)
MARKED = 'Questions that have no answer need "is_impossible": true'
FILES = {"train": "train-v{}.json", "validation": "dev-v{}.json", "test": "test-v{}.json"}
VERSIONS = {False: "1.1", True: "2.0"}  # by version_2
FEATURES = {
    "id": Value("string"),
    "title": Value("string"),
    "context": Value("string"),
    "question": Value("string"),
    "answers": {"text": List(Value("string")), "answer_start": List(Value("int32"))},
}
Rows = Iterable[tuple[str, dict]]  # the place of a question, for errors, and the question with the Hub's columns
Answer = tuple[str, int]  # its text and its answer_start


# Sources


def read_hub(name: str, splits: Iterable[str], version_2: bool, locate: bool = False) -> DatasetDict:
    """The splits of a data set on the Hub. Raises OSError when the Hub is out of reach."""
    data = DatasetDict()
    for split, questions in hub_splits(name, splits):
        rows = _numbered((f"{name}, {split} {number}", row) for number, row in enumerate(questions.to_list()))
        data[split] = _to_dataset(check_questions(rows, f"{name}, {split}", split, version_2, locate), split)
    return data


def read_folder(data_dir: Path, splits: Iterable[str], version_2: bool, locate: bool = False) -> DatasetDict:
    """The splits from the published files in `data_dir`: train-v1.1.json and dev-v1.1.json, or those of 2.0."""
    files = {split: str(find_file(data_dir, split, version_2)) for split in splits}
    return read_files(files, version_2, locate)


def find_file(data_dir: Path, split: str, version_2: bool) -> Path:
    """The published file of a split. Raises FileNotFoundError, with the version that is there, if it is missing."""
    check_folder(data_dir)
    path, other = (data_dir / FILES[split].format(VERSIONS[version]) for version in (version_2, not version_2))
    if path.is_file():
        return path
    problem = f"{data_dir} has no {path.name}"
    if other.is_file():
        remedy = "leave --version_2_with_negative out" if version_2 else "add --version_2_with_negative"
        raise MissingFileError(f"{problem}, but {other.name}: to read SQuAD {VERSIONS[not version_2]}, {remedy}")
    wrong_folder = f"--data_dir is not the folder of SQuAD {VERSIONS[version_2]}"
    raise MissingFileError(f"{problem}: {wrong_folder}, or give --{split}_file")


def read_files(
    files: Mapping[str, str | None], version_2: bool, locate: bool = False, held_out: float | None = None
) -> DatasetDict:
    """The splits that a run needs, each from its file, which `read_questions` reads.

    `held_out` is the percentage of the train file that is the validation split.
    """
    data = DatasetDict()
    for split, path in needed_files(files):
        data[split] = _to_dataset(read_questions(path, split, version_2, locate, held_out), split)
    return data


def read_questions(
    path: Path, split: str, version_2: bool, locate: bool = False, held_out: float | None = None
) -> list[dict]:
    """The examples of a file. `locate` is that of `check_questions`. A question without an id gets its number in the
    file, counted from 1.

    With `held_out`, they are those of the split, as `part_of` says. Questions about one context stay together.

    A .json file has the official layout. A .jsonl file has one question a line, with the Hub's columns and optionally
    SQuAD 2.0's is_impossible.
    """
    if path.suffix.lower() not in READERS:
        raise InputError(
            f"{path}: a file must be .json, with the official layout, or .jsonl, with one question a line"
        )
    rows = _numbered(READERS[path.suffix.lower()](path))
    rows = part_of(rows, split, held_out, path, key=lambda row: row.get("context"), kind="questions")
    return check_questions(rows, path, split, version_2, locate)


def _lines(path: Path) -> Iterator[tuple[str, dict]]:
    """Yields the questions of JSON lines, each with its place."""
    for line, row in read_json_lines(path):
        if "data" in row and "context" not in row:
            raise InputError(f"{path}:{line}: this is the official layout, whose files are called .json")
        yield f"{path}:{line}", row


def _official(path: Path) -> Iterator[tuple[str, dict]]:
    """Yields the questions of the official JSON, or of a list of its parts, each with its place."""
    content = read_json(path)
    content = {"data": content} if isinstance(content, list) else content
    for article, at_article in members(content, "data", str(path), "article", LAYOUT):
        if "paragraphs" not in article and "qas" in article:
            article = {"title": article.get("title"), "paragraphs": [article]}
        elif "paragraphs" not in article and "question" in article:
            yield at_article, article
            continue
        title = {"title": article.get("title")}
        for paragraph, at_paragraph in members(article, "paragraphs", at_article, "paragraph", LAYOUT):
            context = {"context": paragraph["context"]} if "context" in paragraph else {}
            for question, where in members(paragraph, "qas", at_paragraph, "question", LAYOUT):
                yield where, title | context | question


READERS = {".json": _official, ".jsonl": _lines}


# Rows -> examples


def _numbered(rows: Rows) -> Rows:
    """The rows of a whole source, with a number, counted from 1, as the id of those that have none."""
    for number, (where, row) in enumerate(rows, start=1):
        yield where, row if row.get("id") is not None else row | {"id": number}


@contextmanager
def _without_collecting() -> Iterator[None]:
    """Keeps away Python's collector of cycles, which would look at all objects of a large file again and again."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@_without_collecting()
def check_questions(rows: Rows, source: Path | str, split: str, version_2: bool, locate: bool = False) -> list[dict]:
    """Examples with the Hub's columns. Their `answers` are pairs of text and answer_start, or None in a test set
    without answers.

    With `locate`, an answer that is not at its answer_start gets the place nearest to it where its text occurs, or -1.
    Numbers as ids are text from here on. Raises ValueError for mistakes in the data. Two questions with one id are a
    mistake, but not in training data: predictions are stored by id.
    """
    examples, places, unmarked = [], {}, []
    for where, row in rows:
        example = _example(row, where, split == "test", version_2, locate)
        first = places.setdefault(example["id"], where)
        if first != where and split != "train":
            raise InputError(f"{where}: its id {shown(example['id'])} is also that of {first}: give it another id")
        examples.append(example)
        if example["answers"] == [] and row.get("is_impossible") is None:
            unmarked.append(example)
    if not examples:
        raise InputError(f"{source} holds no questions")
    if unmarked and not any(example["answers"] for example in examples):
        _settle_unmarked(unmarked, source, split)
    if 0 < (missing := sum(example["answers"] is None for example in examples)) < len(examples):
        raise InputError(
            f"{source} has no answers to {missing} of {len(examples)} questions: give answers to all, or to none. "
            f"{MARKED if version_2 else IS_2_0}"
        )
    return examples


def _settle_unmarked(unmarked: list[dict], source: Path | str, split: str) -> None:
    """Sets empty answers to None, which means unknown, in a test set where all answers are empty.

    If other questions of a source have answers, an empty list means that there is no answer, as on the Hub. Raises
    ValueError for splits other than test, which need answers.
    """
    if split != "test":
        raise InputError(
            f"{source}: no question that was read has an answer, and {len(unmarked):,} are not marked as impossible, "
            f'the first is {shown(unmarked[0]["id"])}: give answers or, if there are none, "is_impossible": true'
        )
    for example in unmarked:
        example["answers"] = None


def _example(row: dict, where: str, test: bool, version_2: bool, locate: bool) -> dict:
    """The example of a row. Its answers are pairs of text and answer_start, or None if a `test` file has none."""
    if isinstance(row.get("id"), str):
        where = f"{where}, id {row['id'][:80]!r}"
    wanted = ["context", "question", *([] if test else ["answers"])]
    if lacking := [name for name in wanted if name not in row]:
        raise InputError(f"{where}: no {', '.join(lacking)} among {listed(row)}")
    title = row.get("title")
    example = {
        "id": str(row["id"]) if type(row["id"]) is int else check_text(row["id"], "id", where),
        "title": "" if title is None else check_text(title, "title", where, gaps=True),
        "context": check_text(row["context"], "context", where),
        "question": check_text(row["question"], "question", where),
    }
    answers = row.get("answers")
    if row.get("is_impossible") is True and _is_blank(answers):
        answers = []
    elif test and _is_blank(answers):
        answers = None
    else:
        pairs = _pairs(answers, where)
        answers = [_answer(answer, start, example["context"], where, locate) for answer, start in pairs]
    example["answers"] = _check_possible(answers, row.get("is_impossible"), where, test, version_2)
    return example


def _is_blank(answers: Any) -> bool:
    """Whether all answers are null or empty texts, which fill the column of a file without labels."""
    if isinstance(answers, dict):
        answers = answers.get("text")
    entries = answers if isinstance(answers, list) else [answers]
    texts = [entry.get("text") if isinstance(entry, dict) else entry for entry in entries]
    return bool(texts) and all(text is None or (isinstance(text, str) and not text.strip()) for text in texts)


def _pairs(answers: Any, where: str) -> list[tuple[Any, Any]]:
    """The text and answer_start of each answer, from the official list of objects or the Hub's object of lists."""
    try:
        if isinstance(answers, list):
            return [(answer["text"], answer["answer_start"]) for answer in answers]
        lists = answers["text"], answers["answer_start"]
        if all(isinstance(values, list) for values in lists):
            return list(zip(*lists, strict=True))
    except (KeyError, TypeError, ValueError):
        pass
    raise InputError(
        f"{where}: answers is {shown(answers)}, neither a list of objects with text and answer_start nor an object "
        "with two lists of these names and equal lengths"
    )


def _answer(answer: Any, start: Any, context: str, where: str, locate: bool) -> Answer:
    """The answer's text and answer_start or, with `locate`, the place nearest to it where the text occurs, or -1.

    Raises ValueError unless both are of their types and, without `locate`, the text is at its answer_start.
    """
    check_text(answer, "an answer's text", where)
    if not isinstance(start, int) or isinstance(start, bool):
        raise InputError(f"{where}: answer_start of {shown(answer)} is {shown(start)}, not an integer")
    if locate:
        return answer, min(_places(answer, context), key=lambda place: abs(place - start), default=-1)
    if start < 0 or not context.startswith(answer, start):
        problem = f"{where}: {shown(answer)} is not at its answer_start, {shown(start)}, in characters from 0"
        raise InputError(f"{problem}: correct it, or add --locate_answers to look for such answers")
    return answer, start


def _check_possible(
    answers: list[Answer] | None, impossible: Any, where: str, test: bool, version_2: bool
) -> list[Answer] | None:
    """The answers, or None if they are unknown. Raises ValueError if they contradict the version or is_impossible."""
    if not (impossible is None or isinstance(impossible, bool)):
        raise InputError(f"{where}: is_impossible is {shown(impossible)}, neither true nor false")
    if answers and impossible:
        raise InputError(f"{where}: is_impossible is true, but there is the answer {shown(answers[0][0])}: drop one")
    if impossible and not version_2:
        raise InputError(f"{where}: is_impossible is true: to read SQuAD 2.0, add --version_2_with_negative")
    if answers or impossible:
        return answers or []
    if test and (answers is None or impossible is False or not version_2):
        return None
    if not version_2:
        raise InputError(f"{where}: there is no answer: to read SQuAD 2.0, add --version_2_with_negative")
    if impossible is False:
        raise InputError(f"{where}: is_impossible is false, but there is no answer: give one, or say true")
    return answers


def _places(text: str, context: str) -> Iterator[int]:
    """Where the text begins in the context; occurrences may overlap."""
    return (match.start() for match in re.finditer(f"(?={re.escape(text)})", context))


# Examples -> data sets


def _with_place(examples: list[dict]) -> list[dict]:
    """The examples to train on, with the answers that have a place in the context. Raises ValueError if none has."""
    placed = []
    for example in examples:
        answers = [(answer, start) for answer, start in example["answers"] if start >= 0]
        if answers or not example["answers"]:
            example["answers"] = answers
            placed.append(example)
    if left_out := len(examples) - len(placed):
        problem = f"train: {left_out:,} of {len(examples):,} questions have no answer that occurs in their context"
        if not placed:
            raise InputError(f"{problem}: there is nothing to learn, so correct the answers")
        PartialState().print(f"{problem}; they are left out")
    return placed


@_without_collecting()
def _to_dataset(examples: list[dict], split: str) -> Dataset:
    """The examples as a data set, without the column `answers` if these are None: they are then so in all examples."""
    if split == "train":
        examples = _with_place(examples)
    columns = {name: [example[name] for example in examples] for name in FEATURES}
    columns["answers"] = [
        {"text": [answer for answer, _ in answers or ()], "answer_start": [start for _, start in answers or ()]}
        for answers in columns["answers"]
    ]
    # Dataset.from_dict would look at every single value, which takes longer than all the rest, and without a
    # fingerprint Dataset would copy all of them.
    table = InMemoryTable.from_pydict(columns, schema=Features(FEATURES).arrow_schema)
    data = Dataset(table, fingerprint=generate_random_fingerprint())
    return data.remove_columns("answers") if examples[0]["answers"] is None else data
