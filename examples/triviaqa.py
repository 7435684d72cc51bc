"""TriviaQA (Joshi et al. 2017, arXiv 1705.03551) -> the official JSON of SQuAD 1.1, as data to fine-tune on first.

    python examples/triviaqa.py --questions qa/wikipedia-train.json --evidence evidence/wikipedia \\
        --output triviaqa-train.json

BERT's paper (arXiv 1810.04805, section 4.2) uses the first 400 tokens of each Wikipedia document of a question, if
they contain at least one of its answers. It does not say what a token is; here, it is a word or a punctuation mark.

The answers to a question are its value, the aliases, the normalised aliases, and the human answers. Each is taken
where it first occurs as whole words, in any case. The earliest of them is the first answer of the output; if several
begin at one place, the longest.

Of a file of verified questions, only the verified questions and documents are kept. An id joins the question's id and
the document's file name, as in the release's evaluation. Search results, which web questions have, are not read.
"""

import argparse
import json
import os
import re
import sys
import unicodedata
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from elmo_gpt_bert.tasks.rows import check_text, members, read_json, read_lines
from elmo_gpt_bert.training.command_line import run_command
from elmo_gpt_bert.training.errors import InputError, MissingFileError
from elmo_gpt_bert.training.files import plain, shown, write_text


# An accent may be a character of its own, which \w does not match.
MARKS = "".join(c for c in map(chr, range(sys.maxunicode + 1)) if unicodedata.category(c).startswith("M"))
WORD, TOKEN = re.compile(rf"[\w{MARKS}]+"), re.compile(rf"[\w{MARKS}]+|[^\w\s]")
LAYOUT = "a file of TriviaQA is one object with Data, a list of questions, each with EntityPages, its documents"


class Question(NamedTuple):
    id: str
    text: str
    answers: list[str]  # as `fold` returns them


class Document(NamedTuple):
    title: str
    questions: dict[str, Question]  # by their ids


# Questions


def read_questions(path: Path) -> dict[str, Document]:
    """The documents of all questions in a file, by their file names."""
    file, documents, places = read_json(path), {}, {}
    verified = isinstance(file, dict) and file.get("VerifiedEval") is True
    for row, where in members(file, "Data", str(path), "question", LAYOUT):
        question = read_question(row, where)
        first = places.setdefault(question.id, where)
        if first != where:
            raise InputError(f"{where}: its QuestionId {shown(question.id)} is also that of {first}: drop one of them")
        for page, at_page in members(row, "EntityPages", where, "document", LAYOUT):
            if verified and not (row.get("QuestionPartOfVerifiedEval") and page.get("DocPartOfVerifiedEval")):
                continue
            name = check_text(page.get("Filename"), "Filename", at_page)
            title = check_text(page.get("Title", ""), "Title", at_page, gaps=True)
            documents.setdefault(name, Document(title, {})).questions[question.id] = question
    if not documents:
        raise InputError(f"{path} names no document that could be read: {LAYOUT}")
    return documents


def read_question(row: dict, where: str) -> Question:
    """The question of an object of Data, at the place `where`."""
    if lacking := [name for name in ("QuestionId", "Question", "Answer") if name not in row]:
        raise InputError(f"{where}: no {', '.join(lacking)} (the release's test questions come without answers)")
    name, text = (check_text(row[column], column, where) for column in ("QuestionId", "Question"))
    return Question(name, text, read_answers(row["Answer"], f"{where}, QuestionId {shown(name)}"))


def read_answers(answer: Any, where: str) -> list[str]:
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


def make_article(name: str, document: Document, path: Path, max_tokens: int) -> dict | None:
    """An article of SQuAD with the questions that the beginning of the document answers; None if there are none."""
    context = beginning("".join(line for _, line in read_lines(path)), max_tokens)
    folded, answered = fold(context), []
    for question in document.questions.values():
        spans = find_answers(folded, question.answers)
        answers = [{"text": context[start:end], "answer_start": start} for start, end in spans]
        if answers:
            answered.append({"id": f"{question.id}--{name}", "question": question.text, "answers": answers})
    return {"title": document.title, "paragraphs": [{"context": context, "qas": answered}]} if answered else None


def find_file(folder: Path, name: str) -> Path | None:
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


def beginning(text: str, max_tokens: int) -> str:
    """The part of the text from its first token to token number `max_tokens`, unchanged."""
    tokens = list(islice(TOKEN.finditer(text), max_tokens))
    return text[tokens[0].start() : tokens[-1].end()] if tokens else ""


def fold(text: str) -> str:
    """The text in lower case, of the same length: İ, whose lower case is two characters, becomes i."""
    return text.replace("İ", "i").lower()


def find_answers(folded: str, answers: list[str]) -> list[tuple[int, int]]:
    """Start and end of the first occurrence of each answer as whole words; the earliest first, then the longest."""
    spans = set()
    for answer in answers:
        start = folded.find(answer)
        while start >= 0 and (cuts_word(folded, start) or cuts_word(folded, start + len(answer))):
            start = folded.find(answer, start + 1)
        if start >= 0:
            spans.add((start, start + len(answer)))
    return sorted(spans, key=lambda span: (span[0], -span[1]))


def cuts_word(text: str, place: int) -> bool:
    """Whether a cut before the character at `place` would divide a word."""
    return 0 < place < len(text) and all(WORD.match(text[at]) for at in (place - 1, place))


def main(argv: list[str] | None = None) -> None:
    """Carries out what `argv`, by default the command line, asks for. The file is written whole or not at all."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0], allow_abbrev=False)
    questions = "the release's qa/wikipedia-train.json, wikipedia-dev.json or verified-..."
    parser.add_argument("--questions", type=Path, required=True, help=questions)
    parser.add_argument("--evidence", type=Path, required=True, help="the release's folder evidence/wikipedia")
    parser.add_argument("--output", type=Path, required=True, help="the JSON file to write; is replaced if it exists")
    parser.add_argument("--max_tokens", type=int, default=400, help="tokens of each document that are kept")
    args = parser.parse_args(argv)
    if args.max_tokens < 1:
        raise InputError(f"--max_tokens must be positive, not {args.max_tokens}")
    if not args.evidence.is_dir():
        raise MissingFileError(f"--evidence {args.evidence}: no such folder")
    documents = read_questions(args.questions)
    paths = {name: find_file(args.evidence, name) for name in documents}
    found = {name: path for name, path in paths.items() if path is not None}
    if not found:
        name = plain(next(iter(documents)))
        problem = f"none of the {len(documents)} documents, such as {name}, is in {args.evidence}"
        raise MissingFileError(f"{problem}: --evidence must be the release's folder evidence/wikipedia")
    articles = [make_article(name, documents[name], path, args.max_tokens) for name, path in found.items()]
    articles = [article for article in articles if article is not None]
    if not articles:
        problem = f"no answer occurs in the first {args.max_tokens} tokens of any document in {args.evidence}"
        raise InputError(f"{args.questions}: {problem}")
    write_text(args.output, json.dumps({"version": "1.1", "data": articles}, ensure_ascii=False))
    missing = len(documents) - len(found)
    print(f"{args.output}: {len(articles)} of {len(documents)} documents have an answer, {missing} files are missing")


if __name__ == "__main__":
    run_command(main)
