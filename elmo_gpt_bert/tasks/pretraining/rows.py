"""The partition of a corpus into the rows of a masked language model, made once and kept with its tokens.

A row is a run of whole sentences. Where the rows begin depends on all sentences before, so their boundaries are
computed in one pass and written to a file, from which any row is read at once:

    FOLDER/rows/SEGMENTS-LENGTH-DIGEST.rows    32 bytes that identify corpus and partition, then int64: the first
                                               token of each row, and the number of tokens of the corpus
"""

import hashlib
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path

import numpy as np
from filelock import FileLock

from elmo_gpt_bert.tasks.pretraining.corpus import ENDS, Corpus, Ends, FileArray
from elmo_gpt_bert.tasks.pretraining.draws import uniform
from elmo_gpt_bert.tasks.pretraining.sources import MORE_HELD_OUT
from elmo_gpt_bert.training.errors import InputError, Parameter
from elmo_gpt_bert.training.files import new_file, writing


VERSION = 1
HEADER = 32  # bytes
BLOCK = 1 << 22  # tokens
SHORT_TARGETS = 0.1
SEGMENTS = Parameter("segments")


class Segments(StrEnum):
    """What a row of a masked language model holds."""

    NEXT_SENTENCE = "next_sentence"
    FULL_SENTENCES = "full_sentences"
    DOCUMENT_SENTENCES = "document_sentences"

    __str__ = str.__str__  # as enum.StrEnum has it, which needs Python 3.11

    def capacity(self, length: int) -> int:
        """The tokens of text in a row of `length`, without [CLS] and the [SEP] after each segment."""
        return length - (3 if self is Segments.NEXT_SENTENCE else 2)


class Rows:
    """Where each row begins and ends, memory-mapped. Pickling keeps the path only."""

    def __init__(self, path: Path):
        self._file = FileArray(path, ENDS)

    def __len__(self) -> int:
        return len(self._file) - HEADER // ENDS.itemsize - 1

    def bounds(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The first tokens of these rows, and the tokens after their last ones."""
        boundaries = self._file.values[HEADER // ENDS.itemsize :]
        return boundaries[numbers], boundaries[numbers + 1]


def open_rows(corpus: Corpus, segments: Segments, length: int) -> Rows:
    """Opens the partition of the corpus into rows of this kind and length, and makes it if there is none.

    Of several processes, one makes it and the others wait. 75 million tokens take two seconds.

    Raises:
        ValueError: if the rows have no room for text, or the corpus lacks what they need.
        OSError: if the file cannot be written.
    """
    check_corpus(corpus, segments, length)
    path = corpus.folder / "rows" / f"{segments}-{length}-{corpus.digest[:16]}.rows"
    header = hashlib.sha256(f"{VERSION} {segments} {length} {corpus.digest}".encode()).digest()
    if not _is_complete(path, header, corpus.num_tokens):
        with writing(path):
            path.parent.mkdir(exist_ok=True)
            with FileLock(path.with_suffix(".lock")):
                if not _is_complete(path, header, corpus.num_tokens):  # another process may have made it
                    _write_rows(path, header, corpus, segments, length)
    return Rows(path)


def _write_rows(path: Path, header: bytes, corpus: Corpus, segments: Segments, length: int) -> None:
    with new_file(path) as temporary, temporary.open("wb") as file:
        file.write(header)
        for starts in find_rows(corpus, segments, length):
            file.write(starts.astype(ENDS).tobytes())
        file.write(np.array([corpus.num_tokens], ENDS).tobytes())


def _is_complete(path: Path, header: bytes, num_tokens: int) -> bool:
    if not path.is_file() or path.stat().st_size < HEADER + ENDS.itemsize:
        return False
    with path.open("rb") as file:
        start = file.read(HEADER)
        file.seek(-ENDS.itemsize, 2)
        return start == header and int(np.frombuffer(file.read(), ENDS)[0]) == num_tokens


def check_corpus(corpus: Corpus, segments: Segments, length: int) -> None:
    """Raises ValueError if the corpus cannot be divided into such rows."""
    least = length - segments.capacity(length) + 2
    if length < least:
        limit = Parameter("length", "max_seq_length")
        raise InputError(limit, f"={length} has no room for text in rows of {segments}: use {least} or more")
    if segments is not Segments.NEXT_SENTENCE:
        return
    others = f"{Segments.FULL_SENTENCES} or {Segments.DOCUMENT_SENTENCES}"
    if len(corpus.documents) < 2:
        problem = f"={segments} takes sentences of other documents, but {corpus.name} is one document"
        remedy = ("separate its documents by blank lines",) if corpus.split == "train" else MORE_HELD_OUT
        raise InputError(SEGMENTS, f"{problem}: ", remedy, f", or choose {others}")


def find_rows(corpus: Corpus, segments: Segments, length: int, block: int = BLOCK) -> Iterator[np.ndarray]:
    """The first token of each row, block by block. Each token is in one row.

    A sentence that does not fit into a row is cut into pieces that do. The size of a block, in tokens, changes nothing
    but the memory it takes.
    """
    units = corpus.sentences
    capacity = segments.capacity(length)
    block = max(block, 4 * length)  # a row of next_sentence may be almost twice as long as its target
    start = 0
    while start < corpus.num_tokens:
        stop = min(start + block, corpus.num_tokens)
        stop = int(units[units.find(np.array([stop - 1]))][0])
        starts, ends = cut_units(start, units.between(start, stop), capacity)
        documents = np.searchsorted(corpus.documents.between(start, stop), ends - 1, side="right")
        following = find_next_rows(starts, ends, documents, segments, capacity)
        chosen, first = [], 0
        while first < len(starts) and (following[first] < len(starts) or stop == corpus.num_tokens):
            chosen.append(first)
            first = following[first]
        yield starts[chosen]
        start = int(starts[first]) if first < len(starts) else stop


def cut_units(start: int, ends: np.ndarray, capacity: int) -> tuple[np.ndarray, np.ndarray]:
    """The begins and ends of the pieces of each unit, all but the last of them of `capacity` tokens."""
    starts = np.concatenate([[start], ends[:-1]])
    counts = -(-(ends - starts) // capacity)
    pieces = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    starts = np.repeat(starts, counts) + pieces * capacity
    return starts, np.minimum(starts + capacity, np.repeat(ends, counts))


def find_next_rows(
    starts: np.ndarray, ends: np.ndarray, documents: np.ndarray, segments: Segments, capacity: int
) -> list[int]:
    """For each sentence: the sentence with which the next row begins, if a row begins with this one.

    Args:
        starts, ends: of sentences, none longer than `capacity`.
        documents: the number of each sentence's document.
    """
    if segments is Segments.FULL_SENTENCES:  # a separator stands between two documents
        return np.searchsorted(ends + documents, starts + documents + capacity, side="right").tolist()
    if segments is Segments.NEXT_SENTENCE:  # the sentence that reaches the target is the row's last
        following = np.searchsorted(ends, starts + target_lengths(starts, capacity), side="left") + 1
    else:
        following = np.searchsorted(ends, starts + capacity, side="right")
    return np.minimum(following, np.searchsorted(documents, documents, side="right")).tolist()


def target_lengths(starts: np.ndarray, capacity: int) -> np.ndarray:
    """How many tokens a row of next_sentence collects: `capacity`, and in 10 % of the rows from 2 to `capacity`.

    The released code draws the target once for a document, anew in each of its ten passes. The partition here is the
    same in all epochs, so that a book with a target of 2 would remain a book of such rows: each row has its own.
    """
    is_short, share = uniform(starts, 2).T
    return np.where(is_short < SHORT_TARGETS, 2 + np.floor(share * (capacity - 1)), capacity).astype(np.int64)


def ends_within(units: Ends, starts: np.ndarray, stops: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For N runs of tokens: the ends e of units with start < e < stop, in ascending order, and the run of each."""
    first, last = units.find(np.stack([starts, stops - 1]))
    counts = last - first
    runs = np.repeat(np.arange(len(starts)), counts)
    numbers = first[runs] + np.arange(len(runs)) - np.repeat(np.cumsum(counts) - counts, counts)
    return runs, units[numbers]
