"""CoNLL columns: one line for each word, tabs or spaces between its columns, a blank line after each sentence.

A mistake in a file is a ValueError that names its place. This module imports nothing heavy, because a converter uses
it too.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from elmo_gpt_bert.training.errors import InputError


# A line with one of these in the first column begins a document; BREAK only does so between sentences. CoNLL-2003 uses
# DOCUMENT, which conlleval counts as a word outside entities. It takes BREAK for the end of a sentence.
DOCUMENT, BREAK = "-DOCSTART-", "-X-"


@dataclass
class Sentence:
    """A sentence, and where it stands in its source."""

    words: list[str]
    tags: list[str] | None
    source: str  # the beginning of each place, before the line
    line: int
    lines_a_word: int = 0
    document: int = 0

    def place(self, word: int) -> str:
        """Where the word of this number stands, for errors."""
        return f"{self.source}{self.line + word * self.lines_a_word}"


def read_columns(
    lines: Iterable[tuple[int, str]],
    path: Path,
    text_column: str | None = None,
    label_column: str | None = None,
    tagged: bool = True,
) -> Iterator[Sentence | None]:
    """Yields the sentences of a file's numbered `lines`, and None where a document begins.

    `text_column` and `label_column` are numbers, 1 for the first column, -1 for the last. Without `tagged`, a file of
    one column is a list of words without tags.
    """
    sentence, width = None, 0
    for line, content in lines:
        if "\r" in content.rstrip("\r\n"):
            raise InputError(f"{path}:{line}: a carriage return within the line: lines must end with \\n (mac2unix)")
        row = split_columns(content)
        is_mark = row[:1] == [DOCUMENT] or (row[:1] == [BREAK] and not sentence)
        if not row or is_mark:
            if sentence:
                yield sentence
            if is_mark:
                yield None
            sentence = None
            continue
        if not width:
            width = len(row)
            if row[0].startswith('{"') and row[-1].endswith("}"):
                raise InputError(
                    f"{path}:{line}: a JSON object, where lines have columns: let the file's name end in .jsonl"
                )
            text, label = _positions(path, line, width, text_column, label_column, tagged)
        if len(row) != width:
            raise InputError(f"{path}:{line}: {len(row)} column{'s' * (len(row) != 1)} instead of {width}")
        if not row[text]:
            raise InputError(f"{path}:{line}: no word before the tab")
        sentence = sentence or Sentence([], None if label is None else [], f"{path}:", line, lines_a_word=1)
        sentence.words.append(row[text])
        if label is not None:
            sentence.tags.append(row[label])
    if sentence:
        yield sentence


def split_columns(content: str) -> list[str]:
    """The columns of a line. White space other than tabs and spaces, such as U+00A0, is part of a word."""
    content = content.rstrip("\r\n")
    if not content.strip(" \t"):
        return []
    if "\t" in content:
        return [value.strip(" ") for value in content.split("\t")]
    return re.split(" +", content.strip(" "))


def _positions(
    path: Path, line: int, width: int, text_column: str | None, label_column: str | None, tagged: bool
) -> tuple[int, int | None]:
    """The indices of the words' and the tags' columns, of a file's `width` columns. None: the file has no tags."""
    if width == 1 and not tagged and label_column is None:
        return 0, None
    positions = []
    for flag, column in [("--text_column_name", text_column or "1"), ("--label_column_name", label_column or "-1")]:
        number = int(column) if re.fullmatch(r"-?\d{1,9}", column) else 0
        if not 1 <= abs(number) <= width:
            raise InputError(
                f"{path}:{line}: {flag} {column} is none of the {width} columns: they have numbers, 1 for the first, "
                "-1 for the last"
            )
        positions.append(number - 1 if number > 0 else width + number)
    if positions[0] == positions[1]:
        # Of several columns, flags have chosen one for both.
        others = "; --text_column_name and --label_column_name give other columns by their numbers"
        raise InputError(
            f"{path}:{line}: words and tags are both in column {positions[0] + 1} of {width}: a line is a word, a tab "
            f"or a space, and its tag{others if width > 1 else ''}"
        )
    return tuple(positions)
