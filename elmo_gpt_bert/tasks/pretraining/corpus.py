"""A prepared corpus as one row of tokens: all shards of a split, memory-mapped.

Opening reads the manifest and compares the sizes of the files, so it takes milliseconds however long the text is. A
process, such as a worker of a DataLoader, maps a shard when it first reads from it. Pickling keeps paths only.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from elmo_gpt_bert.tasks.pretraining.shards import (
    CHARACTERS,
    DOCUMENTS,
    ENDS,
    MANIFEST,
    SENTENCES,
    Manifest,
    Shard,
    check_sizes,
    read_manifest,
)
from elmo_gpt_bert.training.errors import InputError


class Files:
    """One-dimensional arrays in files, which are mapped when they are first read."""

    def __init__(self, paths: Sequence[Path], types: Sequence[np.dtype]):
        self.paths, self.types = paths, types
        self._arrays: dict[int, np.ndarray] = {}

    def __getstate__(self) -> dict:
        return self.__dict__ | {"_arrays": {}}  # a memory map would be pickled as a copy of the file

    def __getitem__(self, number: int) -> np.ndarray:
        if number not in self._arrays:
            array = np.memmap(self.paths[number], self.types[number], mode="r")
            self._arrays[number] = array.view(np.ndarray)  # np.memmap's own indexing is several times slower
        return self._arrays[number]


class Ends:
    """The ends of units (documents or sentences) as offsets in the row of all tokens.

    The files hold the ends within each shard; `firsts` and `counts` are, of each shard, its first token and the number
    of its units.
    """

    def __init__(self, files: Files, firsts: np.ndarray, counts: np.ndarray):
        self.files, self.firsts = files, firsts
        self.units = np.concatenate([[0], np.cumsum(counts)])  # the units before each shard, and of all shards

    def __len__(self) -> int:
        return int(self.units[-1])

    def __getitem__(self, numbers: np.ndarray | int) -> np.ndarray:
        """The ends of the units with these numbers, int64 in their shape. Raises IndexError for other numbers."""
        numbers = np.asarray(numbers, np.int64)
        if numbers.size and (numbers.min() < 0 or numbers.max() >= len(self)):
            raise IndexError(f"units are numbered from 0 to {len(self) - 1}")
        shards = np.searchsorted(self.units, numbers, side="right") - 1
        ends = np.empty(numbers.shape, np.int64)
        for shard in np.unique(shards):
            here = shards == shard
            ends[here] = self.files[shard][numbers[here] - self.units[shard]].astype(np.int64) + self.firsts[shard]
        return ends

    def find(self, offsets: np.ndarray | int) -> np.ndarray:
        """The number of the unit that holds the token at each offset, int64 in the shape of `offsets`."""
        offsets = np.asarray(offsets, np.int64)
        shards = np.searchsorted(self.firsts, offsets, side="right") - 1
        numbers = np.empty(offsets.shape, np.int64)
        for shard in np.unique(shards):
            here = shards == shard
            local = (offsets[here] - self.firsts[shard]).astype(ENDS)
            numbers[here] = np.searchsorted(self.files[shard], local, side="right") + self.units[shard]
        return numbers

    def between(self, start: int, stop: int) -> np.ndarray:
        """The ends e with start < e <= stop, ascending, int64."""
        first = max(int(np.searchsorted(self.firsts, start, side="right")) - 1, 0)
        last = int(np.searchsorted(self.firsts, stop, side="left"))
        pieces = [np.empty(0, np.int64)]
        for shard in range(first, last):
            bounds = np.array([max(start - self.firsts[shard], 0), stop - self.firsts[shard]], ENDS)
            low, high = np.searchsorted(self.files[shard], bounds, side="right")
            pieces.append(self.files[shard][low:high].astype(np.int64) + self.firsts[shard])
        return np.concatenate(pieces)


class Corpus:
    """A split of a prepared corpus: the tokens of all its documents, one after the other, without special tokens.

    Attributes:
        num_tokens: of all shards.
        num_bytes: of the text in UTF-8; None if it is not known, for shards of another program.
        digest: of the tokens and their ends, and of the tokenizer.
        split: "train" or "validation".
        name: of the split and its folder, for messages.
        documents, sentences: where they end; `sentences` is None for shards of another program.
        vocab_size: the number of words or subwords of the language model.
    """

    def __init__(self, folder: Path, manifest: Manifest, split: str):
        shards = manifest.splits[split]
        lengths = np.array([shard.tokens for shard in shards], np.int64)
        self.folder, self.vocab_size, self.digest = folder, manifest.vocab_size, manifest.digest(split)
        self.split = split
        self.name = f"the {'training' if split == 'train' else 'held-out'} text in {folder}"
        self.offsets = np.concatenate([[0], np.cumsum(lengths)])  # the first token of each shard, and the end of all
        self.num_tokens = int(self.offsets[-1])
        sizes = [shard.bytes for shard in shards]
        self.num_bytes = None if None in sizes else sum(sizes)
        self._tokens = Files([folder / shard.path for shard in shards], [shard.token_type for shard in shards])
        self.documents = self._ends(shards, DOCUMENTS, [shard.documents for shard in shards])
        counts = [shard.sentences for shard in shards]
        self.sentences = None if None in counts else self._ends(shards, SENTENCES, counts)
        self.has_words = manifest.words is not None
        self._characters: np.ndarray | None = None

    def _ends(self, shards: Sequence[Shard], suffix: str, counts: Sequence[int]) -> Ends:
        files = Files([self.folder / f"{shard.path}{suffix}" for shard in shards], [ENDS] * len(shards))
        return Ends(files, self.offsets[:-1], np.array(counts, np.int64))

    def __getstate__(self) -> dict:
        return self.__dict__ | {"_characters": None}

    @property
    def characters(self) -> np.ndarray | None:
        """(W, max_characters_per_token), memory-mapped: the row of each distinct word, for words; None for subwords.

        Words are numbered as tokens are. The first `vocab_size` are those of the language model; it reads the
        characters of the others too, but predicts <UNK> for them.
        """
        if self.has_words and self._characters is None:
            self._characters = np.load(self.folder / CHARACTERS, mmap_mode="r")
        return self._characters

    def read(self, start: int, stop: int) -> np.ndarray:
        """The tokens from `start` to before `stop`, int64. Raises IndexError beyond the row."""
        if not 0 <= start <= stop <= self.num_tokens:
            raise IndexError(f"tokens {start} to {stop}: the corpus has {self.num_tokens}")
        tokens = np.empty(stop - start, np.int64)
        shard = int(np.searchsorted(self.offsets, start, side="right")) - 1
        position = start
        while position < stop:
            first, end = int(self.offsets[shard]), min(stop, int(self.offsets[shard + 1]))
            tokens[position - start : end - start] = self._tokens[shard][position - first : end - first]
            position, shard = end, shard + 1
        return tokens

    @classmethod
    def open(cls, folder: Path, split: str = "train") -> "Corpus":
        """Opens a split of the corpus in a folder.

        Raises FileNotFoundError if the folder holds no finished corpus, OSError for a damaged file, and ValueError if
        there is no such split or a manifest of another version.
        """
        folder = Path(folder)
        manifest = read_manifest(folder)
        if split not in manifest.splits:
            splits = ", ".join(manifest.splits)
            raise InputError(f"{folder}: {MANIFEST} lists no split {split!r}, but {splits}")
        check_sizes(folder, manifest.files(split))
        return cls(folder, manifest, split)
