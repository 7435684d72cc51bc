"""Named entities in miniature: sentences of `glue_sample`'s words, in the published layouts."""

import json
from pathlib import Path

from elmo_gpt_bert.tasks.ner.data import convert_tags
from modeling import ElmoConfig, ElmoForTokenClassification, ElmoTokenizer
from tests.support.glue_sample import text


SIZES = {"train.txt": 12, "valid.txt": 6, "test.txt": 5}


def sentence(row: int) -> tuple[list[str], list[str]]:
    """Words and tags, IOB2: "film plot" is one work, "cast" and "bad" are people, and nothing else is anything."""
    words = text(row, 0).split()
    tags = []
    for before, word in zip(["", *words], words, strict=False):
        follows = word == "plot" and before == "film"
        tags.append({"film": "B-WORK", "cast": "B-PER", "bad": "B-PER"}.get(word, "I-WORK" if follows else "O"))
    return words, tags


def write_conll(path: Path, rows: range, scheme: str = "iob2", document: int = 3) -> str:
    """A file of sentences, `document` of them in each document (0: no documents told apart); gives its name."""
    lines = []
    for number, row in enumerate(rows):
        if document and number % document == 0:
            lines += ["-DOCSTART- -X- O", ""]
        words, tags = sentence(row)
        lines += [f"{word} X {tag}" for word, tag in zip(words, convert_tags(tags, scheme), strict=True)]
        lines.append("")
    path.write_text("\n".join(lines), encoding="utf-8")
    return str(path)


def write_folder(folder: Path, **options: object) -> Path:
    """The files of most copies of CoNLL-2003, as many sentences as `SIZES` says."""
    folder.mkdir()
    for start, (name, size) in enumerate(SIZES.items()):
        write_conll(folder / name, range(start, start + size), **options)
    return folder


def read_columns(path: Path) -> list[list[list[str]]]:
    """The lines of each sentence, in columns; those of documents left out."""
    blocks = [block.splitlines() for block in path.read_text(encoding="utf-8").strip().split("\n\n")]
    return [[line.split(" ") for line in block] for block in blocks if not block[0].startswith(("-DOCSTART-", "-X-"))]


def write_json(path: Path, rows: list[tuple[list[str], list[str]]]) -> str:
    """A file of sentences, words and tags; gives its name."""
    lines = [json.dumps({"words": words, "tags": tags}) for words, tags in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


def write_elmo(folder: Path) -> str:
    """A biLM and a tagger's sizes, all weights random, with dropout; gives the folder's name."""
    sizes = {"filters": [[1, 4], [2, 5]], "char_embedding_size": 3, "hidden_size": 6, "cell_size": 7}
    sizes |= {"num_highway_layers": 1, "rnn_size": 9, "rnn_layers": 1, "task_char_filters": 4}
    ElmoForTokenClassification(ElmoConfig(**sizes)).save_pretrained(folder)
    ElmoTokenizer().save_pretrained(folder)
    return str(folder)
