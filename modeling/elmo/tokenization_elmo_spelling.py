# Copyright 2026 the authors of this model zoo.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""How words are written as rows of ids: by bytes (bilm-tf's `UnicodeCharsVocabulary`, ids plus one) or by characters.

    row of "Zoë", 9 ids wide:  259  91 112 196 172  260  261 261 261
                               begin  UTF-8 bytes   end  padding within the word

The id 0 is no word. The last five ids are the marks: begin and end of a sentence, begin and end of a word, padding
within a word. The ids between are letters: of the released models, the 256 bytes; of ELMoForManyLangs, the id 1 for
unknown characters, then the characters (code points) of the language. Such a model may also have vectors of whole
words: rows then end with one more number, the word's place among these vectors.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Marks(NamedTuple):
    """The ids that are no letters."""

    sentence_begin: int
    sentence_end: int
    word_begin: int
    word_end: int
    word_padding: int

    @classmethod
    def of(cls, vocab_size: int) -> "Marks":
        """The last five ids."""
        return cls(*range(vocab_size - 5, vocab_size))


# Places among the vectors of whole words. The place 0 is for padding.
UNKNOWN_WORD, SENTENCE_BEGIN_WORD, SENTENCE_END_WORD = 1, 2, 3


def boundary_rows(vocab_size: int, max_characters: int, has_lexicon: bool) -> list[list[int]]:
    """The rows of the begin and the end of a sentence, which the model adds to each sentence."""
    # Not a `Marks`, which torch.compile cannot make.
    sentence_begin, sentence_end, word_begin, word_end, word_padding = range(vocab_size - 5, vocab_size)
    padding = [word_padding] * (max_characters - 3)
    rows = []
    for mark, place in ((sentence_begin, SENTENCE_BEGIN_WORD), (sentence_end, SENTENCE_END_WORD)):
        rows.append([word_begin, mark, word_end, *padding, *([place] if has_lexicon else [])])
    return rows


class ByteSpelling:
    """Words by the bytes of UTF-8: byte b is the id b + 1.

    As in the released code, a word is cut after `max_characters` - 2 bytes, even within a character, and the words <S>
    and </S> are the marks. A lone surrogate is left out, because UTF-8 cannot encode it.

    Attributes:
        names: of the ids; that of a byte is written as <0x41>.
        marks: the ids that are no letters.
        columns: number of ids of a word.
    """

    sentence_marks = ("<S>", "</S>")
    names = ("[PAD]", *(f"<0x{byte:02X}>" for byte in range(256)), *sentence_marks, "<W>", "</W>", "<W_PAD>")
    marks = Marks.of(len(names))

    def __init__(self, max_characters: int):
        self.max_characters = self.columns = max_characters

    def rows(self, words: Sequence[str]) -> np.ndarray:
        """(n, columns) int64: the rows of n words."""
        spelled = [word.encode("utf-8", "ignore")[: self.max_characters - 2] for word in words]
        letters = np.frombuffer(b"".join(spelled), dtype=np.uint8).astype(np.int64) + 1
        rows = _fill(list(map(len, spelled)), letters, self.marks, self.max_characters)
        return _put_marks(rows, words, self.sentence_marks, self.marks)

    def saved(self) -> dict[str, list[str]]:
        """The lists to save, by the tokenizer's argument: none, since all tokenizers know the bytes."""
        return {}

    def word(self, row: Sequence[int]) -> str:
        """The word of a row; "[PAD]" for a row of zeros, with U+FFFD for a character that was cut."""
        if not any(row):
            return self.names[0]
        for mark, number in zip(self.sentence_marks, self.marks, strict=False):
            if number in row:
                return mark
        return bytes(number - 1 for number in row if 1 <= number <= 256).decode("utf-8", "replace")


class CharacterSpelling:
    """Words by the characters (code points) of a language, and by their place in a lexicon of words, if there is one.

    As in ELMoForManyLangs, a word is cut after `max_characters` - 2 characters, and that is all that is changed about
    it: case and white space count, and its place is looked up after the cut. The words <bos> and <eos> are the marks.

    Attributes as of `ByteSpelling`, and:
        lexicon: the place of each word; None: the model has no vectors of words.

    Args:
        characters: those with the ids 2, 3, ...
        lexicon: the words with the places 4, 5, ...
    """

    sentence_marks = ("<bos>", "<eos>")
    reserved_letters = ("[PAD]", "<oov>", *sentence_marks, "<W>", "</W>", "<W_PAD>")
    reserved_words = ("<oov>", *sentence_marks)

    def __init__(self, max_characters: int, characters: Sequence[str], lexicon: Sequence[str] | None = None):
        self.names = (*self.reserved_letters[:2], *characters, *self.reserved_letters[2:])
        self.marks, self.words, self.lexicon = Marks.of(len(self.names)), None, None
        letters = sorted((ord(name), number) for number, name in enumerate(characters, start=2) if len(name) == 1)
        self.code_points, self.letters = np.array(letters or [(0, 1)], dtype=np.int64).T
        if lexicon is not None:
            self.words = (*self.reserved_words, *lexicon)
            self.lexicon = {word: place for place, word in enumerate(self.words, start=UNKNOWN_WORD)}
        self.max_characters = max_characters
        self.columns = max_characters + (lexicon is not None)

    def rows(self, words: Sequence[str]) -> np.ndarray:
        """(n, columns) int64: the rows of n words."""
        words = [word[: self.max_characters - 2] for word in words]
        code_points = np.frombuffer("".join(words).encode("utf-32-le", "surrogatepass"), dtype="<u4")
        places = np.searchsorted(self.code_points, code_points).clip(max=len(self.code_points) - 1)
        letters = np.where(self.code_points[places] == code_points, self.letters[places], 1)
        rows = _fill(list(map(len, words)), letters, self.marks, self.max_characters)
        rows = _put_marks(rows, words, self.sentence_marks, self.marks)
        if self.lexicon is None:
            return rows
        places = [self.lexicon.get(word, UNKNOWN_WORD) for word in words]
        return np.concatenate([rows, np.array(places, dtype=np.int64)[:, None]], axis=1)

    def saved(self) -> dict[str, list[str]]:
        """The characters and the words to save, by the tokenizer's argument."""
        lists = {"characters_file": list(self.names[2:-5])}
        if self.words is not None:
            lists["lexicon_file"] = list(self.words[len(self.reserved_words) :])
        return lists

    def word(self, row: Sequence[int]) -> str:
        """The word of a row; "[PAD]" for a row of zeros. An unknown character of an unknown word is U+FFFD."""
        if not any(row):
            return self.names[0]
        if self.lexicon is not None and row[-1] != UNKNOWN_WORD:
            return self.words[row[-1] - UNKNOWN_WORD]
        for mark, number in zip(self.sentence_marks, self.marks, strict=False):
            if number in row[: self.max_characters]:
                return mark
        letters = [number for number in row[: self.max_characters] if 0 < number < self.marks.sentence_begin]
        return "".join("\ufffd" if number == 1 else self.names[number] for number in letters)


def check_words(words: Sequence[str]) -> None:
    """Raises ValueError for words that are not strings."""
    for index, word in enumerate(words):
        if not isinstance(word, str):
            place = f"word {index} of {words!r:.80}"
            raise ValueError(f"{place} is {word!r:.80}, of type {type(word).__name__}: words must be strings")


def _fill(lengths: list[int], letters: np.ndarray, marks: Marks, columns: int) -> np.ndarray:
    """(n, columns): begin, the letters of each of n words, end, padding. `letters` are those of all words."""
    lengths = np.array(lengths, dtype=np.int64)
    rows = np.full((len(lengths), columns), marks.word_padding, dtype=np.int64)
    rows[:, 0] = marks.word_begin
    rows[:, 1:][np.arange(columns - 1) < lengths[:, None]] = letters
    rows[np.arange(len(lengths)), lengths + 1] = marks.word_end
    return rows


def _put_marks(rows: np.ndarray, words: Sequence[str], names: Sequence[str], marks: Marks) -> np.ndarray:
    """The rows, in which those of the words that are a sentence's begin or end have the mark."""
    boundaries = dict(zip(names, boundary_rows(marks.word_padding + 1, rows.shape[1], False), strict=True))
    for index, word in enumerate(words):
        if word in boundaries:
            rows[index] = boundaries[word]
    return rows
