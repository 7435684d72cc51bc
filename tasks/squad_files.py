"""Files of questions about contexts -> checked examples, in plain Python: the official JSON of SQuAD, and JSON lines.

squad_data.py makes a run's data sets of them; the scorer of files of answers needs no more than these.
"""

import json
import reprlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tasks.rows import read_json_lines, read_lines, unbroken


FLAG = "--version_2_with_negative"
LAYOUT = (
    "the official layout is one object with data, a list of articles with paragraphs, each with context and qas, the "
    "list of its questions"
)
Rows = Iterable[tuple[str, dict]]  # where a question comes from, for errors, and the question with the Hub's columns

_shortener = reprlib.Repr()
_shortener.maxstring = 80
shown = _shortener.repr  # of a value in an error: one line, however long the value


# Layouts


def read_questions(path: Path, split: str, version_2: bool) -> list[dict]:
    """The examples of the official .json, or of .jsonl with the Hub's columns, a question a line.

    A line may also have SQuAD 2.0's is_impossible.
    """
    if path.suffix.lower() not in READERS:
        raise ValueError(f"{path}: a file is {' or '.join(READERS)}: the official layout, or one question a line")
    return check(READERS[path.suffix.lower()](path), path, split, version_2)


def _lines(path: Path) -> Iterator[tuple[str, dict]]:
    for line, row in unbroken(read_json_lines(path), path):
        if "data" in row and "context" not in row:
            raise ValueError(f"{path}:{line}: this is the official layout, whose files are called .json")
        yield f"{path}:{line}", row


def _official(path: Path) -> Iterator[tuple[str, dict]]:
    for article, at_article in members(read_json(path), "data", str(path), "article"):
        title = {"title": article.get("title")}
        for paragraph, at_paragraph in members(article, "paragraphs", at_article, "paragraph"):
            context = {"context": paragraph["context"]} if "context" in paragraph else {}
            for question, where in members(paragraph, "qas", at_paragraph, "question"):
                yield where, title | context | question


READERS = {".json": _official, ".jsonl": _lines}


# JSON


def read_json(path: Path) -> Any:
    """The value that a whole file holds."""
    content = "".join(line for _, line in read_lines(path))
    try:
        return json.loads(content)
    except ValueError as error:
        lines = "; a file with one object a line is called .jsonl" if "Extra data" in str(error) else ""
        raise ValueError(f"{path}: not JSON ({error}){lines}") from error


def members(parent: Any, name: str, where: str, kind: str, layout: str = LAYOUT) -> Iterator[tuple[dict, str]]:
    """The objects of the list `name` of an object, each with its place."""
    listed = parent.get(name) if isinstance(parent, dict) else None
    if not isinstance(listed, list):
        raise ValueError(f"{where}: no list {name} in {shown(parent)}: {layout}")
    for number, member in enumerate(listed, start=1):
        if not isinstance(member, dict):
            raise ValueError(f"{where}, {kind} {number}: {shown(member)} is no object: {layout}")
        yield member, f"{where}, {kind} {number}"


def check_text(value: Any, name: str, where: str, gaps: bool = False) -> str:
    """`value`, if it is text that can be written as UTF-8 and, unless `gaps`, has more than whitespace."""
    if not isinstance(value, str):
        raise ValueError(f"{where}: {name} is {shown(value)}, not text")
    if not (gaps or value.strip()):
        raise ValueError(f"{where}: {name} is empty ({shown(value)}): give it a text, or leave the question out")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{where}: {name} holds {value[error.start]!r}, half a surrogate pair, which is no character: write the "
            "whole pair, or the character itself"
        ) from error
    return value


# Rows -> examples


def check(rows: Rows, source: Path | str, split: str, version_2: bool) -> list[dict]:
    """Examples with the columns of squad_data.py; `answers` are pairs of text and place, None where they are unknown.

    Raises ValueError for what is broken, and for an id of two questions.
    """
    examples, places, misplaced = [], {}, []
    for where, row in rows:
        example = _example(row, where, split == "test", version_2)
        first = places.setdefault(example["id"], where)
        if first != where:
            raise ValueError(f"{where}: its id {shown(example['id'])} is also that of {first}: give it its own")
        examples.append(example)
        for answer, start in example["answers"] or ():
            if not example["context"].startswith(answer, start):
                misplaced.append((example, where, answer, start))
    if not examples:
        raise ValueError(f"{source} holds no questions")
    if misplaced:
        raise ValueError(_misplaced(*misplaced[0], len(misplaced)))
    missing = sum(example["answers"] is None for example in examples)
    if 0 < missing < len(examples):
        raise ValueError(
            f"{source} has no answers to {missing} of {len(examples)} questions: give them to all, or to none. Where "
            f"questions have no answer, it is SQuAD 2.0, whose lists are empty there, and which {FLAG} reads"
        )
    return examples


def _example(row: dict, where: str, test: bool, version_2: bool) -> dict:
    """The columns; answers are pairs of text and place, or None where a test file has none."""
    if isinstance(row.get("id"), str):
        where = f"{where}, id {row['id'][:80]!r}"
    wanted = ["id", "context", "question", *([] if test else ["answers"])]
    if lacking := [name for name in wanted if name not in row]:
        raise ValueError(f"{where}: no {', '.join(lacking)} among {', '.join(row)}")
    title = row.get("title")
    example = {
        "id": check_text(row["id"], "id", where),
        "title": "" if title is None else check_text(title, "title", where, gaps=True),
        "context": check_text(row["context"], "context", where),
        "question": check_text(row["question"], "question", where),
    }
    answers = row.get("answers")
    if not (test and answers is None):
        answers = [_answer(answer, start, example["context"], where) for answer, start in _pairs(answers, where)]
    example["answers"] = _check_possible(answers, row.get("is_impossible"), where, test, version_2)
    return example


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
    raise ValueError(
        f"{where}: answers is {shown(answers)}, neither a list of objects with text and answer_start nor an object "
        "with two lists of these names, equally long"
    )


def _answer(answer: Any, start: Any, context: str, where: str) -> tuple[str, int]:
    check_text(answer, "an answer's text", where)
    if not isinstance(start, int) or isinstance(start, bool):
        raise ValueError(f"{where}: answer_start of {shown(answer)} is {shown(start)}, no integer")
    if not 0 <= start < len(context):
        raise ValueError(
            f"{where}: answer_start of {shown(answer)} is {start}, but the context has {len(context)} characters, "
            f"counted from 0; {_occurrences(answer, context)}"
        )
    return answer, start


def _check_possible(
    answers: list[tuple[str, int]] | None, impossible: Any, where: str, test: bool, version_2: bool
) -> list[tuple[str, int]] | None:
    """The answers, None where there are none to be known, if they suit the version and SQuAD 2.0's mark."""
    if not (impossible is None or isinstance(impossible, bool)):
        raise ValueError(f"{where}: is_impossible is {shown(impossible)}, neither true nor false")
    if answers and impossible:
        raise ValueError(f"{where}: is_impossible is true, but there is the answer {shown(answers[0][0])}: drop one")
    if not (answers or version_2):
        if test and not impossible:
            return None
        why = "is_impossible is true" if impossible else "there is no answer"
        raise ValueError(f"{where}: {why}: this is SQuAD 2.0, which {FLAG} reads")
    if answers == [] and impossible is False:
        raise ValueError(f"{where}: is_impossible is false, but there is no answer: give one, or say true")
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
