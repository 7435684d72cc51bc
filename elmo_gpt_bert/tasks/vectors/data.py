"""Reads text to train word vectors on, as numbers of words, sentence by sentence.

The words are those that ELMo reads: `split_sentences` ends the sentences, `ElmoTokenizer` splits them into words.
"""

import sys
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from elmo_gpt_bert.tasks.pretraining.sources import TextSource, is_held_out
from elmo_gpt_bert.tasks.pretraining.text import split_sentences
from elmo_gpt_bert.training.errors import InputError, Parameter
from modeling import ElmoTokenizer


MIN_COUNT = Parameter("min_count")
BLOCK = 1 << 20  # words that are looked up at a time, for which numpy needs 8 bytes each


@dataclass(frozen=True)
class NumberedText:
    """A text whose words are numbers. Words outside the vocabulary are left out, as if they were not in the text.

    words: the vocabulary, the most frequent word first, those of equal frequency in the order of their characters
    counts: (V,) how often each of them occurs
    numbers: (N,) int32, the place in `words` of each word of the text
    ends: (S,) the end of each sentence in `numbers`
    total: the words of the text with those outside the vocabulary
    """

    words: list[str]
    counts: np.ndarray
    numbers: np.ndarray
    ends: np.ndarray
    total: int

    def sentences(self, longest: int = sys.maxsize) -> Iterator[list[str]]:
        """The words of each sentence that has any; a sentence of more than `longest` words comes in parts."""
        begin = 0
        for end in self.ends.tolist():
            for start in range(begin, end, longest):
                yield [self.words[number] for number in self.numbers[start : min(start + longest, end)].tolist()]
            begin = end


def read_text(
    source: TextSource,
    max_words: int | None = None,
    lower_case: bool = False,
    min_count: int = 1,
    vocab_size: int | None = None,
) -> NumberedText:
    """The first `max_words` words of a text, or all, without the documents that `source` holds out.

    The vocabulary has the words that occur at least `min_count` times; at most `vocab_size`, the most frequent. The
    text takes 4 bytes a word, and about 10 while it is read.

    Raises:
        ValueError: for text without a word, or without a word that is frequent enough.
        OSError: for a file that cannot be read.
    """
    numbers, ends, distinct = array("i"), array("q"), {}
    for words in _sentences(source, lower_case):
        if max_words is not None:
            words = words[: max_words - len(numbers)]
        numbers.extend([distinct.setdefault(word, len(distinct)) for word in words])
        ends.append(len(numbers))
        if len(numbers) == max_words:
            break
    if not numbers:
        raise InputError("the text of ", Parameter("train_file"), f" {source.train_file} has no word: give another")
    return _with_vocabulary(list(distinct), np.asarray(numbers), np.asarray(ends), min_count, vocab_size)


def _sentences(source: TextSource, lower_case: bool) -> Iterator[list[str]]:
    tokenizer, files = ElmoTokenizer(), source.files(Path())
    share = source.share(files)
    for document in source.read(files["train"]):
        if not is_held_out(document, share):
            for sentence in split_sentences(document, source.sentences):
                yield tokenizer.tokenize(sentence.lower() if lower_case else sentence)


def _with_vocabulary(
    distinct: list[str], numbers: np.ndarray, ends: np.ndarray, min_count: int, vocab_size: int | None
) -> NumberedText:
    """Changes `numbers` in place."""
    blocks = np.array_split(numbers, 1 + len(numbers) // BLOCK)
    counts = sum(np.bincount(block, minlength=len(distinct)) for block in blocks)
    kept = sorted(np.flatnonzero(counts >= min_count).tolist(), key=lambda place: (-counts[place], distinct[place]))
    kept = kept[:vocab_size]
    if not kept:
        raise InputError(
            f"no word of the text's {len(numbers):,} occurs as often as ", MIN_COUNT, f" {min_count}: lower it"
        )
    renumbered = np.full(len(distinct), -1, np.int32)
    renumbered[kept] = np.arange(len(kept))
    for block in blocks:
        block[:] = renumbered[block]
    is_kept = numbers >= 0
    ends = ends - np.searchsorted(np.flatnonzero(~is_kept), ends)  # less the words that are left out before each
    words = [distinct[place] for place in kept]
    return NumberedText(words, counts[kept], numbers[is_kept], ends, len(numbers))
