"""Files of questions about contexts -> checked examples, in plain Python: the official JSON of SQuAD, and JSON lines.

data.py makes a run's data sets of them; the scorer of files of answers needs no more than these.
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from tasks.rows import listed, read_json, read_json_lines, read_lines, unbroken
from training.errors import InputError, Parameter
from training.files import shown


VERSION_2 = Parameter("version_2", "version_2_with_negative")
LAYOUT = (
    "the official layout is one object with data, a list of articles with paragraphs, each with context and qas, the "
    "list of its questions"
)
IS_2_0 = (
    "Where questions have no answer, it is SQuAD 2.0, whose lists are empty there, and which ",
    VERSION_2,
    " reads",
)
MARKED = "Those that are known to have none say is_impossible with true"
Rows = Iterable[tuple[str, dict]]  # where a question comes from, for errors, and the question with the Hub's columns


# Layouts


def read_questions(path: Path, split: str, version_2: bool, limit: int | None = None) -> tuple[list[dict], int]:
    """The examples of the official .json, or of .jsonl with the Hub's columns, a question a line; and how many it has.

    A line may also have SQuAD 2.0's is_impossible. With a `limit`, questions after the first so many are counted only.
    """
    if path.suffix.lower() not in READERS:
        raise InputError(f"{path}: a file is {' or '.join(READERS)}: the official layout, or one question a line")
    rows = READERS[path.suffix.lower()](path)
    examples = check_questions(islice(rows, limit), path, split, version_2)
    total = len(examples)
    if total == limit:
        total = _count_lines(path) if path.suffix.lower() == ".jsonl" else total + sum(1 for _ in rows)
    return examples, total


def _lines(path: Path) -> Iterator[tuple[str, dict]]:
    for line, row in unbroken(read_json_lines(path), path):
        if "data" in row and "context" not in row:
            raise InputError(f"{path}:{line}: this is the official layout, whose files are called .json")
        yield f"{path}:{line}", row


def _official(path: Path) -> Iterator[tuple[str, dict]]:
    for article, at_article in members(read_json(path), "data", str(path), "article"):
        title = {"title": article.get("title")}
        for paragraph, at_paragraph in members(article, "paragraphs", at_article, "paragraph"):
            context = {"context": paragraph["context"]} if "context" in paragraph else {}
            for question, where in members(paragraph, "qas", at_paragraph, "question"):
                yield where, title | context | question


def _count_lines(path: Path) -> int:
    return sum(1 for _, line in read_lines(path) if line.strip())


READERS = {".json": _official, ".jsonl": _lines}


# Objects


def members(parent: Any, name: str, where: str, kind: str, layout: str = LAYOUT) -> Iterator[tuple[dict, str]]:
    """The objects of the list `name` of an object, each with its place."""
    listed = parent.get(name) if isinstance(parent, dict) else None
    if not isinstance(listed, list):
        raise InputError(f"{where}: no list {name} in {shown(parent)}: {layout}")
    for number, member in enumerate(listed, start=1):
        if not isinstance(member, dict):
            raise InputError(f"{where}, {kind} {number}: {shown(member)} is no object: {layout}")
        yield member, f"{where}, {kind} {number}"


def check_text(value: Any, name: str, where: str, gaps: bool = False) -> str:
    """`value`, if it is text that can be written as UTF-8 and, unless `gaps`, has more than whitespace."""
    if not isinstance(value, str):
        raise InputError(f"{where}: {name} is {shown(value)}, not text")
    if not (gaps or value.strip()):
        raise InputError(f"{where}: {name} is empty ({shown(value)}): give it a text, or leave the question out")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"{where}: {name} holds {value[error.start]!r}, half a surrogate pair, which is no character: write the "
            "whole pair, or the character itself"
        ) from error
    return value


# Rows -> examples


def check_questions(rows: Rows, source: Path | str, split: str, version_2: bool) -> list[dict]:
    """Examples with the columns of data.py; `answers` are pairs of text and place, None in a test set without.

    Raises ValueError for what is broken. An id of two questions is broken where there will be predictions, whose names
    ids are: not in training data.
    """
    examples, places, misplaced, unmarked = [], {}, [], []
    for where, row in rows:
        example = _example(row, where, split == "test", version_2)
        first = places.setdefault(example["id"], where)
        if first != where and split != "train":
            raise InputError(f"{where}: its id {shown(example['id'])} is also that of {first}: give it its own")
        examples.append(example)
        if example["answers"] == [] and row.get("is_impossible") is None:
            unmarked.append(example)
        for answer, start in example["answers"] or ():
            if not example["context"].startswith(answer, start):
                misplaced.append((example, where, answer, start))
    if not examples:
        raise InputError(f"{source} holds no questions")
    if misplaced:
        raise InputError(_misplaced(*misplaced[0], len(misplaced)))
    if unmarked and not any(example["answers"] for example in examples):
        _settle_unmarked(unmarked, source, split)
    if 0 < (missing := sum(example["answers"] is None for example in examples)) < len(examples):
        raise InputError(
            f"{source} has no answers to {missing} of {len(examples)} questions: give them to all, or to none. ",
            MARKED if version_2 else IS_2_0,
        )
    return examples


def _settle_unmarked(unmarked: list[dict], source: Path | str, split: str) -> None:
    """Examples whose answers are empty in a source without any answer: those of a test set are unknown.

    Beside answers to other questions, empty lists are the Hub's way to say that there is none.
    """
    if split != "test":
        raise InputError(
            f"{source}: no question that was read has an answer, and {len(unmarked):,} are not marked as impossible, "
            f"the first is {shown(unmarked[0]['id'])}: give answers or, where there are none, is_impossible with true"
        )
    for example in unmarked:
        example["answers"] = None


def _example(row: dict, where: str, test: bool, version_2: bool) -> dict:
    """The columns; answers are pairs of text and place, or None where a test file has none."""
    if isinstance(row.get("id"), str):
        where = f"{where}, id {row['id'][:80]!r}"
    wanted = ["id", "context", "question", *([] if test else ["answers"])]
    if lacking := [name for name in wanted if name not in row]:
        raise InputError(f"{where}: no {', '.join(lacking)} among {listed(row)}")
    title = row.get("title")
    example = {
        "id": check_text(row["id"], "id", where),
        "title": "" if title is None else check_text(title, "title", where, gaps=True),
        "context": check_text(row["context"], "context", where),
        "question": check_text(row["question"], "question", where),
    }
    answers = row.get("answers")
    if test and _is_blank(answers):
        answers = None
    else:
        answers = [_answer(answer, start, example["context"], where) for answer, start in _pairs(answers, where)]
    example["answers"] = _check_possible(answers, row.get("is_impossible"), where, test, version_2)
    return example


def _is_blank(answers: Any) -> bool:
    """Whether there are no answers, or only empty texts: what fills the column of a file without labels."""
    if isinstance(answers, dict):
        answers = answers.get("text")
    entries = answers if isinstance(answers, list) else [answers]
    texts = [entry.get("text") if isinstance(entry, dict) else entry for entry in entries]
    return bool(texts) and all(text is None or (isinstance(text, str) and not text.strip()) for text in texts)


def _pairs(answers: Any, where: str) -> list[tuple[Any, Any]]:
    """Text and place of each answer: the official files list objects, the Hub has an object of lists."""
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
        "with two lists of these names, equally long"
    )


def _answer(answer: Any, start: Any, context: str, where: str) -> tuple[str, int]:
    check_text(answer, "an answer's text", where)
    if not isinstance(start, int) or isinstance(start, bool):
        raise InputError(f"{where}: answer_start of {shown(answer)} is {shown(start)}, no integer")
    if not 0 <= start < len(context):
        raise InputError(
            f"{where}: answer_start of {shown(answer)} is {shown(start)}, but the context has {len(context)} "
            f"characters, counted from 0; {_occurrences(answer, context)}"
        )
    return answer, start


def _check_possible(
    answers: list[tuple[str, int]] | None, impossible: Any, where: str, test: bool, version_2: bool
) -> list[tuple[str, int]] | None:
    """The answers, None where there are none to be known, if they suit the version and SQuAD 2.0's mark."""
    if not (impossible is None or isinstance(impossible, bool)):
        raise InputError(f"{where}: is_impossible is {shown(impossible)}, neither true nor false")
    if answers and impossible:
        raise InputError(f"{where}: is_impossible is true, but there is the answer {shown(answers[0][0])}: drop one")
    if impossible and not version_2:
        raise InputError(f"{where}: is_impossible is true: this is SQuAD 2.0, which ", VERSION_2, " reads")
    if answers or impossible:
        return answers or []
    if test and (answers is None or impossible is False or not version_2):
        return None
    if not version_2:
        raise InputError(f"{where}: there is no answer: this is SQuAD 2.0, which ", VERSION_2, " reads")
    if impossible is False:
        raise InputError(f"{where}: is_impossible is false, but there is no answer: give one, or say true")
    return answers


def _misplaced(example: dict, where: str, answer: str, start: int, count: int) -> str:
    context, others = example["context"], f" So it is with {count} answers of this file." if count > 1 else ""
    return (
        f"{where}, id {shown(example['id'])}: answer_start {start} leads to "
        f"{shown(context[start : start + len(answer)])}, not to {shown(answer)}; {_occurrences(answer, context)}. "
        f"Characters count, not bytes, from 0: correct it, or leave the question out.{others}"
    )


def _occurrences(answer: str, context: str) -> str:
    found = [context.find(answer)]
    while found[-1] >= 0 and len(found) < 6:
        found.append(context.find(answer, found[-1] + 1))
    if found == [-1]:
        return "the text occurs nowhere in it"
    return f"the text occurs at {', '.join(map(str, found[:-1]))}{' and elsewhere' if found[-1] >= 0 else ''}"
