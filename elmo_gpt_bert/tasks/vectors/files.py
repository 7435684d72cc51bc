"""Writes word vectors."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from elmo_gpt_bert.training.files import new_file


def write_vectors(path: Path, words: Sequence[str], table: np.ndarray) -> None:
    """A file in word2vec's text format: a line with both sizes, then a word and its numbers a line.

    Each number has the digits that give the same float32 when they are read.
    """
    with new_file(path) as temporary, open(temporary, "w", encoding="utf-8", newline="\n") as file:
        file.write(f"{len(words)} {table.shape[1]}\n")
        for word, row in zip(words, table.astype(np.float32), strict=True):
            file.write(f"{word} {' '.join(map(str, row))}\n")
