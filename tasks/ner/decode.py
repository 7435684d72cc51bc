"""What a tagger gives -> tags of words, and the file that conlleval reads."""

import re
from collections.abc import Sequence
from pathlib import Path

from tasks.columns import BREAK, DOCUMENT
from training.files import write_atomically


def write_conll(
    path: Path,
    sentences: Sequence[Sequence[str]],
    predictions: Sequence[Sequence[str]],
    references: Sequence[Sequence[str]] | None = None,
    documents: Sequence[int] | None = None,
) -> None:
    """Writes a line a word, as conlleval reads it: the word, its tag if `references` has it, the predicted tag.

    A blank line ends each sentence. Where `documents` numbers the sentences as `read_files` does, -X- begins each
    document, which conlleval does not count; -DOCSTART- would be a word outside entities to it. White space in a word
    or tag would part it, so an underscore takes its place, and that of a word that is one of these marks. Raises
    ValueError where a sentence has not as many tags as words.
    """
    known = [] if references is None else [references]
    documents = [0] * len(sentences) if documents is None else documents
    lines, last = [], 0
    for document, *values in zip(documents, sentences, *known, predictions, strict=True):
        if document != last:
            lines += [" ".join([BREAK, *("O" for _ in values[1:])]), ""]
            last = document
        lines += [" ".join(map(_column, row)) for row in zip(*values, strict=True)]
        lines.append("")
    write_atomically(path, "\n".join(lines) + "\n")


def _column(text: str) -> str:
    return "_" if text in ("", BREAK, DOCUMENT) else re.sub(r"[ \t\r\n]", "_", text)
