"""SQuAD 1.1 and 2.0 in miniature, in the official layout, of words that the tiny tokenizers know."""

import json
from pathlib import Path


SENTENCES = {"train": (1, 3, 8, 2, 5), "dev": (2, 7, 1)}  # of each split's contexts; 7 are longer than 32 tokens
NOUNS = ("film", "plot", "cast")
PHRASES = ("good", "not bad", "very very dull", "bad but not dull", "NA , null")


def subject(number: int) -> str:
    """Of 30 different ones."""
    return f"the {NOUNS[number % 3]} {number % 10}"


def make_articles(
    version: str = "1.1", sentences: tuple[int, ...] = SENTENCES["train"], answers: int = 1, first: int = 0
) -> list[dict]:
    """The official "data": articles of up to two contexts, with as many sentences, at most 29 each, as given.

    A context says of several subjects what they are, and up to three questions ask for that: of the first sentence,
    the middle one and the last. In 2.0 another one asks for a subject that the context does not name.
    `answers` is how many there are to a question; the second one is only the last word of the first one.
    `first` numbers the contexts, which are different ones, and the questions' ids.
    """
    paragraphs = [_paragraph(first + number, count, version, answers) for number, count in enumerate(sentences)]
    return [
        {"title": f"Article_{first + number}", "paragraphs": paragraphs[number : number + 2]}
        for number in range(0, len(paragraphs), 2)
    ]


def _paragraph(number: int, sentences: int, version: str, answers: int) -> dict:
    phrases = [PHRASES[(number + 2 * place) % len(PHRASES)] for place in range(sentences)]
    parts = [f"{subject(number + place)} is {phrase} ." for place, phrase in enumerate(phrases)]
    context, questions = " ".join(parts), []
    for place in sorted({0, sentences // 2, sentences - 1}):
        start = len(" ".join([*parts[:place], f"{subject(number + place)} is "]))
        phrase = phrases[place]
        last = phrase.split()[-1]
        known = [(phrase, start), (last, start + len(phrase) - len(last))]
        spans = [{"text": text, "answer_start": begin} for text, begin in (known[i % 2] for i in range(answers))]
        questions.append({"id": f"{number}-{place}", "question": f"is {subject(number + place)} ?", "answers": spans})
    if version == "2.0":
        questions = [{**question, "is_impossible": False} for question in questions]
        questions.append(
            {
                "id": f"{number}-none",
                "question": f"is {subject(number + sentences)} ?",
                "answers": [],
                "is_impossible": True,
                "plausible_answers": [{"text": phrases[0], "answer_start": context.index(phrases[0])}],
            }
        )
    return {"context": context, "qas": questions}


def rows_of(articles: list[dict]) -> list[dict]:
    """The same questions as the Hub has them, one row each."""
    return [
        {
            "id": question["id"],
            "title": article.get("title", ""),
            "context": paragraph["context"],
            "question": question["question"],
            "answers": {name: [answer[name] for answer in question["answers"]] for name in ("text", "answer_start")},
        }
        for article in articles
        for paragraph in article["paragraphs"]
        for question in paragraph["qas"]
    ]


def write_squad(path: Path, version: str = "1.1", articles: list[dict] | None = None) -> str:
    """Writes the official JSON of `articles`, or else of `make_articles(version)`; gives the file's name."""
    data = make_articles(version) if articles is None else articles
    content = {"version": version if version == "1.1" else f"v{version}", "data": data}
    path.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
    return str(path)


def write_folder(folder: Path, version: str = "1.1") -> Path:
    """Writes train-v1.1.json and dev-v1.1.json, or those of 2.0; the dev file has three answers to a question."""
    folder.mkdir(parents=True, exist_ok=True)
    write_squad(folder / f"train-v{version}.json", version)
    dev = make_articles(version, SENTENCES["dev"], answers=3, first=100)
    write_squad(folder / f"dev-v{version}.json", version, dev)
    return folder
