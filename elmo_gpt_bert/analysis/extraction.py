"""Splits a text into parts that fit into memory, and computes the vectors of the lines of one part.

Letters: L layers that were asked for, W words or tokens of a line, H size of a vector.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal

import numpy as np

from elmo_gpt_bert.analysis.representations import ElmoEncoder, Pieces, SubwordEncoder, Tokens, piece_weights
from elmo_gpt_bert.analysis.vector_files import Part
from elmo_gpt_bert.tasks.rows import read_lines
from elmo_gpt_bert.training.batches import in_pieces
from elmo_gpt_bert.training.errors import InputError


Unit = Literal["words", "tokens", "sentences"]
Combination = Literal["none", "mean", "concatenate"]
MEMORY = 1 << 29  # bytes of the vectors of a part, at most
LINES = 2000  # of a part


@dataclass(frozen=True)
class Plan:
    """How a text is split: the numbers of the lines in each part, 0 for the first line of the text.

    digest: SHA-256 of the lines
    empty: how many lines have no words
    """

    parts: list[range]
    digest: str
    empty: int


def make_plan(path: Path, bytes_each: int) -> Plan:
    """Splits a text into parts of up to LINES lines whose vectors take up to MEMORY, or of a single longer line.

    `bytes_each` is the memory of a vector; a line has no more words or tokens than bytes. With 0, only the number of
    lines counts. The text is read to its end, so that what is broken in it is found before the work begins. Raises
    ValueError if there is no line.
    """
    parts, first, size, empty = [], 0, 0, 0
    content, number = hashlib.sha256(), 0
    for number, (_, line) in enumerate(read_lines(path), start=1):
        encoded = line.encode()
        content.update(encoded)
        empty += not line.split()
        last = number - 1
        if last > first and (last - first == LINES or (size + len(encoded)) * bytes_each > MEMORY):
            parts.append(range(first, last))
            first, size = last, 0
        size += len(encoded)
    if not number:
        raise InputError(f"{path} has no lines")
    return Plan([*parts, range(first, number)], content.hexdigest(), empty)


def read_parts(path: Path, parts: Sequence[range]) -> Iterator[tuple[range, list[str]]]:
    """Yields each part with its lines, without white space around them. `parts` are in order, some may be missing."""
    lines, place = read_lines(path), 0
    for part in parts:
        texts = [line.strip() for _, line in islice(lines, part.start - place, part.stop - place)]
        place = part.stop
        yield part, texts


@dataclass(frozen=True)
class LineVectors:
    """The vectors (L, W, H) of a line, or (L, 1, H), and its words or tokens.

    length: the number of tokens of the whole line, if the model cannot read all of them; otherwise None
    """

    words: list[str]
    vectors: np.ndarray
    length: int | None = None


@dataclass
class Extractor:
    """Computes the vectors of lines.

    unit: what has a vector. "words" are split at spaces, "tokens" by the tokenizer. A sentence is read as its tokens.
    pieces: whose vector a sentence has: the mean of the text's tokens, or that of the first or last token that the
        model reads. Whose vector a word has is up to the encoder.
    layers: the numbers of layers, in the order of the result
    truncate: a line that is too long for the model is no error: what it does not read has zeros
    """

    encoder: SubwordEncoder | ElmoEncoder
    unit: Unit
    pieces: Pieces
    layers: list[int]
    combination: Combination
    batch_size: int
    truncate: bool

    def __post_init__(self) -> None:
        (example,) = self.encoder.encode([["a"]], self.layers)
        self.size: int = example.shape[-1]

    @property
    def columns(self) -> list[str]:
        """What each layer of the result is called."""
        if len(self.layers) == 1 or self.combination != "none":
            return ["vectors"]
        return [f"layer_{number}" for number in self.layers]

    def extract(self, path: Path, part: range, lines: list[str]) -> Part:
        """The vectors of a part of the text `path`. Raises ValueError for a line that is too long for the model."""
        nothing = np.zeros((len(self.layers), int(self.unit == "sentences"), self.size), np.float32)
        results = [LineVectors([], nothing)] * len(lines)
        order = sorted((n for n, line in enumerate(lines) if line), key=lambda n: len(lines[n]))
        for numbers in in_pieces(order, self.batch_size):
            for number, result in zip(numbers, self._batch([lines[n] for n in numbers]), strict=True):
                results[number] = result
        truncated = [part[number] for number, result in enumerate(results) if result.length is not None]
        if truncated and not self.truncate:
            length = results[truncated[0] - part.start].length
            raise InputError(
                f"{path}:{truncated[0] + 1}: the line has {length} tokens, and the model reads "
                f"{self.encoder.longest}: split it, or give --truncate, which reads its first tokens only"
            )
        vectors = [self._combined(result.vectors) for result in results]
        if self.unit == "sentences":
            return Part(part.start, self.columns, lines, None, [each[:, 0] for each in vectors], truncated)
        return Part(part.start, self.columns, None, [result.words for result in results], vectors, truncated)

    def _combined(self, vectors: np.ndarray) -> np.ndarray:
        """(1, W, H) or (1, W, L * H) if the layers are combined."""
        if self.combination == "mean":
            return vectors.mean(0, keepdims=True)
        if self.combination == "concatenate":
            return np.concatenate(vectors, axis=-1)[None]
        return vectors

    def _batch(self, lines: list[str]) -> Iterator[LineVectors]:
        if isinstance(self.encoder, ElmoEncoder):
            yield from self._words_of_elmo(lines)
        elif self.unit == "words":
            yield from self._words_of_tokens(lines)
        else:
            yield from self._tokens(lines)

    def _words_of_elmo(self, lines: list[str]) -> Iterator[LineVectors]:
        """Its tokens are words, too, which its tokenizer splits."""
        split = str.split if self.unit == "words" else self.encoder.tokenizer.tokenize
        sentences = [split(line) for line in lines]
        for words, vectors in zip(sentences, self.encoder.encode(sentences, self.layers), strict=True):
            if self.unit == "sentences":
                vectors = np.einsum("w,lwh->lh", _shares([0] * len(words), self.pieces), vectors)[:, None]
            yield LineVectors(words, vectors)

    def _words_of_tokens(self, lines: list[str]) -> Iterator[LineVectors]:
        sentences = [line.split() for line in lines]
        for words, (vectors, read) in zip(sentences, self.encoder.read_words(sentences, self.layers), strict=True):
            yield LineVectors(words, vectors, _length(read))

    def _tokens(self, lines: list[str]) -> Iterator[LineVectors]:
        for read in self.encoder.read([[line] for line in lines], self.layers):
            vectors = read.states.numpy()
            if self.unit == "sentences":
                vectors = np.einsum("t,lth->lh", _shares(read.words, self.pieces), vectors)[:, None]
            yield LineVectors(read.tokens, vectors, _length(read))


def _length(read: Tokens) -> int | None:
    return read.length if read.length > len(read.tokens) else None


def _shares(words_of_tokens: Sequence[int | None], pieces: Pieces) -> np.ndarray:
    """(T) the share of each token in the sentence's vector. The first and the last one may be special tokens."""
    if pieces != "mean":
        words_of_tokens = [0] * len(words_of_tokens)
    return piece_weights(words_of_tokens, 1, pieces)[0].numpy()


def choose_layers(names: Sequence[str], encoder: SubwordEncoder | ElmoEncoder) -> list[int]:
    """The numbers of layers, 0 for the embeddings, of names such as "all", "0" and "-1", which is the last one.

    A name may be several numbers with commas between them. Raises ValueError for a layer that the model does not have,
    or that is named twice.
    """
    count, numbers = len(encoder.layers), []
    for name in ",".join(names).split(","):
        if name.strip() == "all":
            numbers += range(count)
            continue
        try:
            number = range(count)[int(name)]
        except (ValueError, IndexError) as error:
            last = count - 1
            raise InputError(f"--layers {name}: the model has the layers 0 to {last}, or -{count} to -1") from error
        numbers.append(number)
    if len({*numbers}) < len(numbers):
        raise InputError(f"--layers {' '.join(names)} names a layer twice: leave one out")
    return numbers
