"""Models of each kind, word vectors, tagged sentences, senses and a text in miniature, of `glue_sample`'s words."""

from pathlib import Path

import numpy as np

from tests.support.ner_sample import sentence
from tests.support.pairs_sample import write_bert, write_bilm, write_gpt


TEXT = """The film is a good film . The plot is bad .
A dull film , but the cast is good . Not a very bad film .
The cast is not dull ."""


def write_vectors(path: Path, words: list[str], size: int = 7) -> Path:
    """A file in GloVe's layout."""
    vectors = np.random.default_rng(0).normal(size=(len(words), size))
    lines = [" ".join([word, *(f"{number:.4f}" for number in row)]) for word, row in zip(words, vectors, strict=True)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def write_models(folder: Path) -> list[str]:
    """The names of a BERT, a GPT, a biLM, and a file of word vectors."""
    models = [write(folder) for write in (write_bert, write_gpt, write_bilm)]
    return [
        *map(str, models),
        str(write_vectors(folder / "vectors.txt", ["the", "film", "is", "good", "plot", "cast"])),
    ]


def write_tags(path: Path, rows: range) -> Path:
    """Sentences in two columns; the tags are those of entities."""
    blocks = ["".join(f"{word}\t{tag}\n" for word, tag in zip(*sentence(row), strict=True)) for row in rows]
    path.write_text("\n".join(blocks), encoding="utf-8")
    return path


def write_senses(path: Path) -> Path:
    """Two words of two senses each."""
    rows = [
        "film\tgood\tA good *film* .",
        "film\tbad\tThe *film* is bad .",
        "film\tbad\tA very bad *film* .",
    ]
    rows += ["film\tgood\tThe *film* is good .", "cast\tgood\tA good *cast* !", "cast\tbad\tThe *Cast* is dull ."]
    rows += ["cast\tgood\tIs the *cast* good ?", "cast\tbad\tA dull *cast* ."]
    path.write_text("\n".join(["word\tsense\tsentence", *rows]) + "\n", encoding="utf-8")
    return path
