"""Outputs of a tagger -> the tags of words, and the file that conlleval reads."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from elmo_gpt_bert.tasks.columns import BREAK, DOCUMENT
from elmo_gpt_bert.tasks.ner.tags import convert_tags


if TYPE_CHECKING:
    from datasets import Dataset


def predicted_tags(
    outputs: dict[str, list[np.ndarray]], features: Dataset, examples: Dataset, names: list[str], scheme: str
) -> list[list[str]]:
    """The predicted tags of all words of each example that has rows in `features`, in `scheme`; a word without a token
    is O.

    `outputs` are those of the first rows. `names` are the tags in the order of the model's outputs.
    """
    numbers = features["example"][: len(outputs["logits"])]
    predictions = [["O"] * len(words) for words in examples["words"][: numbers[-1] + 1]]
    for logits, word_of_token, number in zip(outputs["logits"], features["word"], numbers, strict=False):
        for word, best in zip(word_of_token, logits.argmax(-1), strict=True):
            if word >= 0:
                predictions[number][word] = names[best]
    return [convert_tags(tags, scheme) for tags in predictions]


def conll_text(
    sentences: Sequence[Sequence[str]],
    predictions: Sequence[Sequence[str]],
    references: Sequence[Sequence[str]] | None = None,
    documents: Sequence[int] | None = None,
) -> str:
    """One line for each word, as conlleval reads it: the word, its tag if there are `references`, the predicted tag.

    A blank line ends each sentence. If `documents` has the number of each sentence's document, a line with -X- begins
    each document. conlleval does not count such a line, whereas it counts -DOCSTART- as a word outside entities.
    An underscore replaces white space within a word or tag, and a word that is one of these two marks. Raises
    ValueError if a sentence does not have as many tags as words.
    """
    tags = [] if references is None else [references]
    documents = [0] * len(sentences) if documents is None else documents
    lines, previous = [], 0
    for document, *columns in zip(documents, sentences, *tags, predictions, strict=True):
        if document != previous:
            lines += [" ".join([BREAK, *("O" for _ in columns[1:])]), ""]
            previous = document
        lines += [" ".join(map(_column, row)) for row in zip(*columns, strict=True)]
        lines.append("")
    return "\n".join(lines) + "\n"


def _column(text: str) -> str:
    """The word or tag without white space, and an underscore for an empty word or a mark."""
    return "_" if text in ("", BREAK, DOCUMENT) else re.sub(r"[ \t\r\n]", "_", text)
