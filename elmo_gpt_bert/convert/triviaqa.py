"""TriviaQA (Joshi et al. 2017, arXiv 1705.03551) -> the official JSON of SQuAD 1.1, as data to fine-tune on first.

    python -m elmo_gpt_bert.convert.triviaqa --questions qa/wikipedia-train.json --evidence evidence/wikipedia \\
        --output triviaqa-train.json

BERT's paper (arXiv 1810.04805, section 4.2) uses the first 400 tokens of each Wikipedia document of a question, if
they contain at least one of its answers. It does not say what a token is; here, it is a word or a punctuation mark.

The answers to a question are its value, the aliases, the normalised aliases, and the human answers. Each is taken
where it first occurs as whole words, in any case. The earliest of them is the first answer of the output; if several
begin at one place, the longest.

Of a file of verified questions, only the verified questions and documents are kept. An id joins the question's id and
the document's file name, as in the release's evaluation. Search results, which web questions have, are not read.
"""

import json
import os
import re
import sys
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

from elmo_gpt_bert.convert.files import command_line
from elmo_gpt_bert.tasks.rows import check_text, members, read_json, read_lines
from elmo_gpt_bert.training.errors import InputError, MissingFileError, Parameter
from elmo_gpt_bert.training.files import plain, shown, write_text


LAYOUT = "a file of TriviaQA is one object with Data, a list of questions, each with EntityPages, its documents"


@dataclass(frozen=True)
class Question:
    """A question and its possible answers."""

    id: str
    text: str
    answers: list[str]  # as `fold` returns them


@dataclass
class Document:
    """A document, and the questions about it by their ids."""

    title: str
    questions: dict[str, Question] = field(default_factory=dict)


def convert(
    questions: Annotated[str, "the release's qa/wikipedia-train.json, wikipedia-dev.json or verified-..."],
    evidence: Annotated[str, "the release's folder evidence/wikipedia"],
    output: Annotated[str, "the JSON file to write; is replaced where it exists"],
    max_tokens: Annotated[int, "tokens of each document that are kept (default: 400)"] = 400,
) -> None:
    """Writes the file `output`, whole or not at all, and prints how much was kept.

    Raises:
        OSError: when a file or all of the evidence is missing, or `output` cannot be written.
        ValueError: when a file does not have TriviaQA's layout, or no document holds an answer.
    """
    folder, path = Path(evidence), Path(output)
    if max_tokens < 1:
        raise InputError(Parameter("max_tokens"), f" must be positive, not {max_tokens}")
    if not folder.is_dir():
        raise MissingFileError(Parameter("evidence"), f" {folder}: no such folder")
    if path.is_dir() or not path.parent.is_dir():
        raise MissingFileError(Parameter("output"), f" {path} must be a file in a folder that exists")
    documents, total, unverified = _read_questions(Path(questions))
    paths = {name: _find(folder, name) for name in documents}
    missing = [name for name, file in paths.items() if file is None]
    articles = dict(_articles(documents, paths, max_tokens))
    if len(missing) == len(documents):
        raise MissingFileError(
            f"none of the {len(documents)} documents, such as {plain(missing[0])}, is in {folder}: ",
            Parameter("evidence"),
            " must be the release's folder evidence/wikipedia",
        )
    if not articles:
        raise InputError(f"{questions}: no answer occurs in the first {max_tokens} tokens of any document in {folder}")
    write_text(path, json.dumps({"version": "1.1", "data": [*articles.values()]}, ensure_ascii=False))
    answered = [
        pair["id"].removesuffix(f"--{name}")
        for name, article in articles.items()
        for pair in article["paragraphs"][0]["qas"]
    ]
    pairs = sum(len(document.questions) for document in documents.values())
    lost = sum(len(documents[name].questions) for name in missing)
    names = ", ".join([*map(plain, missing[:3]), *(["..."] if len(missing) > 3 else [])]) or "none"
    print(
        f"{path}: {len({*answered})} of {total} questions, {len(answered)} of their {pairs} documents. "
        f"Left out: {lost} documents whose file is missing ({names}), {pairs - lost - len(answered)} "
        f"without an answer in their first {max_tokens} tokens, {unverified} questions not verified"
    )


# Questions


def _read_questions(path: Path) -> tuple[dict[str, Document], int, int]:
    """The documents of all questions in a file by their file names, and the numbers of all and unverified ones."""
    file, documents, places, unverified = read_json(path), {}, {}, 0
    verified = isinstance(file, dict) and file.get("VerifiedEval") is True
    for row, where in members(file, "Data", str(path), "question", LAYOUT):
        question = _question(row, where)
        first = places.setdefault(question.id, where)
        if first != where:
            raise InputError(f"{where}: its QuestionId {shown(question.id)} is also that of {first}: drop one of them")
        if verified and not row.get("QuestionPartOfVerifiedEval"):
            unverified += 1
            continue
        for page, at_page in members(row, "EntityPages", where, "document", LAYOUT):
            if verified and not page.get("DocPartOfVerifiedEval"):
                continue
            name = check_text(page.get("Filename"), "Filename", at_page)
            title = check_text(page.get("Title", ""), "Title", at_page, gaps=True)
            documents.setdefault(name, Document(title)).questions[question.id] = question
    if not documents:
        raise InputError(f"{path} names no document that could be read: {LAYOUT}")
    return documents, len(places), unverified


def _question(row: dict, where: str) -> Question:
    """The question of an object of Data, at the place `where`."""
    if lacking := [name for name in ("QuestionId", "Question", "Answer") if name not in row]:
        raise InputError(f"{where}: no {', '.join(lacking)} (the release's test questions come without answers)")
    identifier = check_text(row["QuestionId"], "QuestionId", where)
    text = check_text(row["Question"], "Question", where)
    return Question(identifier, text, _answers(row["Answer"], f"{where}, QuestionId {shown(identifier)}"))


def _answers(answer: Any, where: str) -> list[str]:
    """The different answers in the object Answer, folded."""
    if not isinstance(answer, dict):
        raise InputError(f"{where}: Answer is {shown(answer)}, not an object with Value and Aliases")
    texts = [answer["Value"]] if "Value" in answer else []
    for name in ("Aliases", "HumanAnswers", "NormalizedAliases"):
        aliases = answer.get(name, [])
        if not isinstance(aliases, list):
            raise InputError(f"{where}: {name} is {shown(aliases)}, not a list of texts")
        texts += aliases
    if wrong := [text for text in texts if not isinstance(text, str)]:
        raise InputError(f"{where}: the answer {shown(wrong[0])} is not text")
    answers = [text for text in dict.fromkeys(fold(text.strip()) for text in texts) if text]
    if not answers:
        raise InputError(f"{where}: Answer {shown(answer)} has neither Value nor Aliases: leave the question out")
    return answers


# Documents


def _articles(
    documents: dict[str, Document], paths: dict[str, Path | None], max_tokens: int
) -> Iterator[tuple[str, dict]]:
    """Yields the name of each document that answers one of its questions, with an article of SQuAD."""
    for name, document in documents.items():
        path = paths[name]
        if path is None:
            continue
        context = beginning("".join(line for _, line in read_lines(path)), max_tokens)
        folded, answered = fold(context), []
        for question in document.questions.values():
            spans = find_answers(folded, question.answers)
            answers = [{"text": context[start:end], "answer_start": start} for start, end in spans]
            if answers:
                answered.append({"id": f"{question.id}--{name}", "question": question.text, "answers": answers})
        if answered:
            yield name, {"title": document.title, "paragraphs": [{"context": context, "qas": answered}]}


def _find(folder: Path, name: str) -> Path | None:
    """The document's file; None if it is missing. Its accents may be separate characters or parts of letters.

    Raises ValueError if the name, or a link, leads out of the folder.
    """
    spellings = dict.fromkeys([name, *(unicodedata.normalize(form, name) for form in ("NFC", "NFD"))])
    path = next((folder / spelling for spelling in spellings if os.path.isfile(folder / spelling)), None)
    if path is not None and not path.resolve().is_relative_to(folder.resolve()):
        raise InputError(
            f"the Filename {shown(name)} leads out of {folder}, to {path.resolve()}: only files in the folder of the "
            "evidence are read. Remove it from the questions, or put a copy there"
        )
    return path


@cache
def patterns() -> tuple[re.Pattern[str], re.Pattern[str]]:
    """A word, and a word or a punctuation mark. An accent may be a character of its own, which \\w does not match."""
    marks = "".join(c for c in map(chr, range(sys.maxunicode + 1)) if unicodedata.category(c).startswith("M"))
    word = rf"[\w{marks}]+"
    return re.compile(word), re.compile(rf"{word}|[^\w\s]")


def beginning(text: str, max_tokens: int) -> str:
    """The part of the text from its first token to token number `max_tokens`, unchanged."""
    tokens = list(islice(patterns()[1].finditer(text), max_tokens))
    return text[tokens[0].start() : tokens[-1].end()] if tokens else ""


def fold(text: str) -> str:
    """The text in lower case, of the same length: İ, whose lower case is two characters, becomes i."""
    return text.replace("İ", "i").lower()


def find_answers(folded: str, answers: list[str]) -> list[tuple[int, int]]:
    """Start and end of the first occurrence of each answer as whole words; the earliest first, then the longest."""
    spans = set()
    for answer in answers:
        start = folded.find(answer)
        while start >= 0 and (_cuts(folded, start) or _cuts(folded, start + len(answer))):
            start = folded.find(answer, start + 1)
        if start >= 0:
            spans.add((start, start + len(answer)))
    return sorted(spans, key=lambda span: (span[0], -span[1]))


def _cuts(text: str, place: int) -> bool:
    """Whether a cut before the character at `place` would divide a word."""
    return 0 < place < len(text) and all(patterns()[0].match(text[at]) for at in (place - 1, place))


def main(argv: list[str] | None = None) -> None:
    command_line(convert, argv)


if __name__ == "__main__":
    main()
