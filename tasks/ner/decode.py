"""Outputs of a tagger -> tags of words, and the file of them that conlleval reads."""

import re
from collections.abc import Sequence

import numpy as np
from datasets import Dataset

from tasks.columns import BREAK, DOCUMENT
from tasks.ner.tags import convert_tags


def predicted_tags(
    outputs: dict[str, list[np.ndarray]], data_set: Dataset, examples: Dataset, names: list[str], scheme: str
) -> list[list[str]]:
    """The tags of all words of the first of the `examples`, as many as `data_set` has, in the data's `scheme`."""
    sentences = []
    rows = zip(outputs["logits"], data_set["word"], examples["words"], strict=False)
    for logits, places, words in rows:
        tags = ["O"] * len(words)
        for place, best in zip(places, logits.argmax(-1), strict=True):
            if place >= 0:
                tags[place] = names[best]
        sentences.append(convert_tags(tags, scheme))
    return sentences


def conll_text(
    sentences: Sequence[Sequence[str]],
    predictions: Sequence[Sequence[str]],
    references: Sequence[Sequence[str]] | None = None,
    documents: Sequence[int] | None = None,
) -> str:
    """A line a word, as conlleval reads it: the word, its tag if `references` has it, the predicted tag.

    A blank line ends each sentence. Where `documents` numbers the sentences as `read_files` does, -X- begins each
    document, which conlleval does not count; -DOCSTART- would be a word outside entities to it. White space in a word
    or tag would part it, so an underscore takes its place, and that of a word that is one of these marks. Raises
    ValueError where a sentence has not as many tags as words.
    """
    tags = [] if references is None else [references]
    documents = [0] * len(sentences) if documents is None else documents
    lines, last = [], 0
    for document, *values in zip(documents, sentences, *tags, predictions, strict=True):
        if document != last:
            lines += [" ".join([BREAK, *("O" for _ in values[1:])]), ""]
            last = document
        lines += [" ".join(map(_column, row)) for row in zip(*values, strict=True)]
        lines.append("")
    return "\n".join(lines) + "\n"


def _column(text: str) -> str:
    return "_" if text in ("", BREAK, DOCUMENT) else re.sub(r"[ \t\r\n]", "_", text)
