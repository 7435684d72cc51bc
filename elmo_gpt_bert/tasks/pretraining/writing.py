"""Writes the shards of a text, piece by piece. A piece that was finished before is kept if it is undamaged."""

from __future__ import annotations

import dataclasses
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from tqdm import tqdm

from elmo_gpt_bert.tasks.pretraining.processes import compute
from elmo_gpt_bert.tasks.pretraining.shards import FileRecord, Shard, token_type, write_shard
from elmo_gpt_bert.tasks.pretraining.sources import TextSource, is_held_out
from elmo_gpt_bert.tasks.pretraining.text import pieces, split_sentences
from elmo_gpt_bert.tasks.pretraining.vocabulary import Encoder
from elmo_gpt_bert.training.files import read_json_object, write_json


if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


SPLITS = ("train", "validation")
FINISHED = "finished"
SENTENCES_AT_ONCE = 1024


@dataclasses.dataclass(frozen=True)
class Piece:
    """Some successive documents of the text of a split."""

    split: str
    number: int
    texts: list[str]


@dataclasses.dataclass(frozen=True)
class Reader:
    """Reads the text of all splits, in pieces of `piece_size` characters and a document at most."""

    source: TextSource
    files: Mapping[str, list[Path]]
    piece_size: int

    def pieces(self, work: str) -> Iterator[Piece]:
        """Yields all pieces. A progress bar on the terminal is labelled with the `work` that they are read for."""
        with tqdm(desc=work, unit=" characters", unit_scale=True, disable=not sys.stderr.isatty()) as bar:
            for split, files in self.files.items():
                for number, texts in enumerate(pieces(self.source.read(files), self.piece_size)):
                    yield Piece(split, number, texts)
                    bar.update(sum(map(len, texts)))

    def training_texts(self) -> Iterator[list[str]]:
        """The training documents without those held out, in pieces."""
        share = self.source.share(self.files)
        training = dataclasses.replace(self, files={"train": self.files["train"]})
        for piece in training.pieces("train the tokenizer"):
            yield [text for text in piece.texts if not is_held_out(text, share)]


@dataclasses.dataclass(frozen=True)
class CountWords:
    """Counts the words of a piece; those of held-out documents count 0."""

    tokenizer: PreTrainedTokenizerBase
    source: TextSource
    share: float

    def __call__(self, piece: Piece) -> Counter[str]:
        words, held_out = Counter(), set()
        for text in piece.texts:
            counts = piece.split == "train" and not is_held_out(text, self.share)
            update = words.update if counts else held_out.update
            for sentence in split_sentences(text, self.source.sentences):
                update(self.tokenizer.tokenize(sentence))
        words.update(dict.fromkeys(held_out, 0))
        return words


def count_words(reader: Reader, tokenizer: PreTrainedTokenizerBase, processes: int) -> Counter[str]:
    """How often each distinct word is in the training text; 0 for those of held-out text only."""
    counts = Counter()
    count = CountWords(tokenizer, reader.source, reader.source.share(reader.files))
    for words in compute(count, reader.pieces("count words"), processes):
        counts.update(words)
    return counts


@dataclasses.dataclass(frozen=True)
class WritePiece:
    """Writes the shards of a piece: at most one of each split, and the record that they are finished."""

    folder: Path
    encoder: Encoder
    source: TextSource
    share: float
    numbers: int  # all tokens are below it
    tokenizer: str  # its name, for the metadata

    def __call__(self, piece: Piece) -> dict[str, Shard]:
        texts = {split: [] for split in SPLITS}
        for text in piece.texts:
            held_out = piece.split == "validation" or is_held_out(text, self.share)
            texts[SPLITS[held_out]].append(text)
        shards = {split: self._write(f"{split}/{piece.number:05d}", texts[split]) for split in SPLITS}
        shards = {split: shard for split, shard in shards.items() if shard is not None}
        record = {split: dataclasses.asdict(shard) for split, shard in shards.items()}
        write_json(record_path(self.folder, piece), record)
        return shards

    def _write(self, name: str, texts: Sequence[str]) -> Shard | None:
        """Writes a shard; None if the texts have no token."""
        sentences = [split_sentences(text, self.source.sentences) for text in texts]
        separator = self.encoder.separator
        tokens = self._encode(
            separator + sentence if number else sentence
            for document in sentences
            for number, sentence in enumerate(document)
        )
        documents = [[row for row in islice(tokens, len(document)) if len(row)] for document in sentences]
        kept = [number for number, document in enumerate(documents) if document]
        if not kept:
            return None
        joined = [" ".join(sentences[number]) for number in kept]
        return write_shard(
            self.folder, name, [documents[number] for number in kept], self.numbers, joined, self.tokenizer
        )

    def _encode(self, sentences: Iterator[str]) -> Iterator[np.ndarray]:
        kind = token_type(self.numbers)
        while batch := list(islice(sentences, SENTENCES_AT_ONCE)):
            for row in self.encoder.encode(batch):
                yield np.array(row, kind)  # a list of Python's integers takes ten times the memory


def record_path(folder: Path, piece: Piece) -> Path:
    return folder / FINISHED / f"{piece.split}-{piece.number:05d}.json"


def finished_shards(folder: Path, piece: Piece) -> dict[str, Shard] | None:
    """The shards of a piece that was finished before and is undamaged, else None."""
    path = record_path(folder, piece)
    if not path.is_file():
        return None
    shards = {split: Shard.from_json(values) for split, values in read_json_object(path).items()}
    files = [(f"{shard.path}{suffix}", record) for shard in shards.values() for suffix, record in shard.files.items()]
    return shards if all(is_undamaged(folder / name, record) for name, record in files) else None


def is_undamaged(path: Path, record: FileRecord) -> bool:
    return path.is_file() and path.stat().st_size == record.size and FileRecord.of(path) == record


def write_shards(reader: Reader, write: WritePiece, processes: int) -> dict[str, list[Shard]]:
    """Writes what is not yet finished. Returns the shards of each split that has text, in the order of the text."""
    (write.folder / FINISHED).mkdir(parents=True, exist_ok=True)
    finished = []  # of each piece in its order, its shards, or None while they have to be written

    def unfinished() -> Iterator[Piece]:
        for piece in reader.pieces("write shards"):
            finished.append(finished_shards(write.folder, piece))
            if finished[-1] is None:
                yield piece

    written = list(compute(write, unfinished(), processes))
    rest = iter(written)
    shards = [next(rest) if before is None else before for before in finished]
    splits = {split: [each[split] for each in shards if split in each] for split in SPLITS}
    return {split: row for split, row in splits.items() if row}
