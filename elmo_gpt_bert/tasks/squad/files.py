"""Files of questions about contexts -> checked examples, in plain Python: SQuAD's official JSON, and JSON lines.

Files of annotation tools differ from the official ones: they may be a list of articles, of paragraphs or of questions,
have numbers as ids or none, and give a question without an answer an empty one.

data.py makes data sets of these examples. scoring.py uses them as they are.
"""

import re
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from elmo_gpt_bert.tasks.rows import listed, part_of, read_json, read_json_lines, read_lines, unbroken
from elmo_gpt_bert.training.errors import InputError, Parameter, Text
from elmo_gpt_bert.training.files import shown


VERSION_2 = Parameter("version_2", "version_2_with_negative")
LOCATE = Parameter("locate_answers")
LAYOUT = (
    "the official layout is one object with data, a list of articles with paragraphs, each with context and qas, the "
    "list of its questions; a list of articles, of paragraphs or of questions with their context is read, too"
)
IS_2_0 = ("If some questions have no answer, the data are SQuAD 2.0, with empty lists of answers: add ", VERSION_2)
SEARCH = ("add ", LOCATE, " to look for such answers")
MARKED = 'Questions that have no answer need "is_impossible": true'
Rows = Iterable[tuple[str, dict]]  # the place of a question, for errors, and the question with the Hub's columns


# Layouts


def read_questions(
    path: Path,
    split: str,
    version_2: bool,
    limit: int | None = None,
    locate: bool = False,
    held_out: float | None = None,
) -> tuple[list[dict], int]:
    """The examples of a file, and how many it holds. `locate` is that of `check_questions`.

    With `held_out`, they are those of the split, as `part_of` says. Questions about one context stay together.

    A .json file has the official layout. A .jsonl file has one question a line, with the Hub's columns and optionally
    SQuAD 2.0's is_impossible. Questions after the first `limit` are counted, but not checked or returned.
    """
    if path.suffix.lower() not in READERS:
        raise InputError(
            f"{path}: a file must be .json, with the official layout, or .jsonl, with one question a line"
        )
    rows = READERS[path.suffix.lower()](path)
    rows = part_of(rows, split, held_out, path, key=lambda row: row.get("context"), kind="questions")
    examples = check_questions(islice(rows, limit), path, split, version_2, locate)
    total = len(examples)
    if total == limit:
        of_lines = path.suffix.lower() == ".jsonl" and held_out is None
        total = _count_lines(path) if of_lines else total + sum(1 for _ in rows)
    return examples, total


def _lines(path: Path) -> Iterator[tuple[str, dict]]:
    """Yields the questions of JSON lines, each with its place."""
    for line, row in unbroken(read_json_lines(path), path):
        if "data" in row and "context" not in row:
            raise InputError(f"{path}:{line}: this is the official layout, whose files are called .json")
        yield f"{path}:{line}", row


def _official(path: Path) -> Iterator[tuple[str, dict]]:
    """Yields the questions of the official JSON, or of a list of its parts, each with its place."""
    content = read_json(path)
    content = {"data": content} if isinstance(content, list) else content
    for article, at_article in members(content, "data", str(path), "article"):
        if "paragraphs" not in article and "qas" in article:
            article = {"title": article.get("title"), "paragraphs": [article]}
        elif "paragraphs" not in article and "question" in article:
            yield at_article, article
            continue
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
    """Yields the objects in the list `name` of `parent`, each with its place.

    Raises ValueError, with the expected `layout`, if there is no such list or one of its members is not an object.
    """
    members = parent.get(name) if isinstance(parent, dict) else None
    if not isinstance(members, list):
        raise InputError(f"{where}: no list {name} in {shown(parent)}: {layout}")
    for number, member in enumerate(members, start=1):
        if not isinstance(member, dict):
            raise InputError(f"{where}, {kind} {number}: {shown(member)} is not an object: {layout}")
        yield member, f"{where}, {kind} {number}"


def check_text(value: Any, name: str, where: str, gaps: bool = False) -> str:
    """The `value`. Raises ValueError unless it is text that UTF-8 can encode and, without `gaps`, not blank."""
    if not isinstance(value, str):
        raise InputError(f"{where}: {name} is {shown(value)}, not text")
    if not (gaps or value.strip()):
        raise InputError(f"{where}: {name} is empty ({shown(value)}): give it a text, or leave the question out")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"{where}: {name} holds {value[error.start]!r}, half a surrogate pair, which is not a character: write "
            "the whole pair, or the character itself"
        ) from error
    return value


# Rows -> examples


def check_questions(rows: Rows, source: Path | str, split: str, version_2: bool, locate: bool = False) -> list[dict]:
    """Examples with the columns of data.py. Their `answers` are pairs of text and answer_start, or None in a test set
    without answers.

    With `locate`, an answer that is not at its answer_start gets the place nearest to it where its text occurs, or -1.
    A question without an id gets its number, counted from 1; numbers as ids are text from here on. Raises ValueError
    for mistakes in the data. Two questions with one id are a mistake, but not in training data: predictions are stored
    by id.
    """
    examples, places, misplaced, unmarked = [], {}, [], []
    for number, (where, row) in enumerate(rows, start=1):
        if row.get("id") is None:
            row = row | {"id": number}
        example = _example(row, where, split == "test", version_2, locate)
        first = places.setdefault(example["id"], where)
        if first != where and split != "train":
            raise InputError(f"{where}: its id {shown(example['id'])} is also that of {first}: give it another id")
        examples.append(example)
        if example["answers"] == [] and row.get("is_impossible") is None:
            unmarked.append(example)
        if locate:
            example["answers"] = _locate(example["answers"], example["context"])
        else:
            misplaced += [
                (example, where, answer, start)
                for answer, start in example["answers"] or ()
                if not example["context"].startswith(answer, start)
            ]
    if not examples:
        raise InputError(f"{source} holds no questions")
    if misplaced:
        raise InputError(*_misplaced(*misplaced[0], len(misplaced)))
    if unmarked and not any(example["answers"] for example in examples):
        _settle_unmarked(unmarked, source, split)
    if 0 < (missing := sum(example["answers"] is None for example in examples)) < len(examples):
        raise InputError(
            f"{source} has no answers to {missing} of {len(examples)} questions: give answers to all, or to none. ",
            MARKED if version_2 else IS_2_0,
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


def _locate(answers: list[tuple[str, int]] | None, context: str) -> list[tuple[str, int]] | None:
    """The answers, each at the place nearest to its answer_start where its text occurs; -1: it occurs nowhere."""
    if answers is None:
        return None
    located = []
    for answer, start in answers:
        places = [match.start() for match in re.finditer(f"(?={re.escape(answer)})", context)]
        located.append((answer, min(places, key=lambda place: abs(place - start), default=-1)))
    return located


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
    if _is_blank(answers) and row.get("is_impossible") is True:
        answers = []
    elif test and _is_blank(answers):
        answers = None
    else:
        context = None if locate else example["context"]
        answers = [_answer(answer, start, context, where) for answer, start in _pairs(answers, where)]
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


def _answer(answer: Any, start: Any, context: str | None, where: str) -> tuple[str, int]:
    """The answer's text and answer_start. Raises ValueError unless both are of their types and within the context, if
    there is one.
    """
    check_text(answer, "an answer's text", where)
    if not isinstance(start, int) or isinstance(start, bool):
        raise InputError(f"{where}: answer_start of {shown(answer)} is {shown(start)}, not an integer")
    if context is not None and not 0 <= start < len(context):
        raise InputError(
            f"{where}: answer_start of {shown(answer)} is {shown(start)}, but the context has {len(context)} "
            f"characters, counted from 0; {_occurrences(answer, context)}: ",
            SEARCH,
        )
    return answer, start


def _check_possible(
    answers: list[tuple[str, int]] | None, impossible: Any, where: str, test: bool, version_2: bool
) -> list[tuple[str, int]] | None:
    """The answers, or None if they are unknown. Raises ValueError if they contradict the version or is_impossible."""
    if not (impossible is None or isinstance(impossible, bool)):
        raise InputError(f"{where}: is_impossible is {shown(impossible)}, neither true nor false")
    if answers and impossible:
        raise InputError(f"{where}: is_impossible is true, but there is the answer {shown(answers[0][0])}: drop one")
    if impossible and not version_2:
        raise InputError(f"{where}: is_impossible is true: to read SQuAD 2.0, add ", VERSION_2)
    if answers or impossible:
        return answers or []
    if test and (answers is None or impossible is False or not version_2):
        return None
    if not version_2:
        raise InputError(f"{where}: there is no answer: to read SQuAD 2.0, add ", VERSION_2)
    if impossible is False:
        raise InputError(f"{where}: is_impossible is false, but there is no answer: give one, or say true")
    return answers


def _misplaced(example: dict, where: str, answer: str, start: int, count: int) -> Text:
    """The error for an answer that is not at its answer_start, the first of `count` such answers."""
    context, others = example["context"], f" There are {count} such answers in this file." if count > 1 else ""
    return (
        f"{where}, id {shown(example['id'])}: answer_start {start} leads to "
        f"{shown(context[start : start + len(answer)])}, not to {shown(answer)}; {_occurrences(answer, context)}. "
        f"It counts characters, not bytes, from 0: correct it, leave the question out, or ",
        SEARCH,
        f".{others}",
    )


def _occurrences(answer: str, context: str) -> str:
    """Where the answer is in the context, for an error: at most five places."""
    places = [context.find(answer)]
    while places[-1] >= 0 and len(places) < 6:
        places.append(context.find(answer, places[-1] + 1))
    if places == [-1]:
        return "the text occurs nowhere in it"
    return f"the text occurs at {', '.join(map(str, places[:-1]))}{' and elsewhere' if places[-1] >= 0 else ''}"
