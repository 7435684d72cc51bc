"""A prepared corpus: for each split one file of tokens, and where its documents and sentences end.

    FOLDER/manifest.json       the sizes of all files; written last: without it, there is no corpus
    FOLDER/train.tokens        tokens, little-endian uint16; uint32 where a number exceeds 65,535
    FOLDER/train.documents     int64: the end of each document, in tokens from the start
    FOLDER/train.sentences     int64: the end of each sentence
    FOLDER/validation.*        the same of the held-out documents
    FOLDER/words.txt           for words: each distinct word, in the order of their numbers
    FOLDER/characters.npy      (W, max_characters_per_token), the row of each of them

Opening compares the sizes of the files, so it takes milliseconds however long the text is. A process, such as a worker
of a DataLoader, maps a file when it first reads from it. Pickling keeps paths only.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from elmo_gpt_bert.tasks.features import count_up
from elmo_gpt_bert.training.errors import FileError, InputError, MissingFileError
from elmo_gpt_bert.training.files import read_json_object, sync, write_json


VERSION = 3
MANIFEST, WORDS, CHARACTERS = "manifest.json", "words.txt", "characters.npy"
TOKENS, DOCUMENTS, SENTENCES = ".tokens", ".documents", ".sentences"  # follow the name of the split
ENDS = np.dtype("<i8")


def token_type(numbers: int) -> np.dtype:
    """The type of tokens that are below `numbers`."""
    return np.dtype("<u2" if numbers <= 1 << 16 else "<u4")


# Reading


class FileArray:
    """A one-dimensional array in a file, which is mapped when it is first read."""

    def __init__(self, path: Path, kind: np.dtype):
        self.path, self.kind = path, kind
        self._length = path.stat().st_size // kind.itemsize
        self._values: np.ndarray | None = None

    def __getstate__(self) -> dict:
        return self.__dict__ | {"_values": None}  # a memory map would be pickled as a copy of the file

    def __len__(self) -> int:
        return self._length

    @property
    def values(self) -> np.ndarray:
        if self._values is None:
            array = np.memmap(self.path, self.kind, mode="r")
            self._values = array.view(np.ndarray)  # np.memmap's own indexing is several times slower
        return self._values


class Ends(FileArray):
    """The ends of units (documents or sentences) as offsets in the row of all tokens."""

    def __init__(self, path: Path):
        super().__init__(path, ENDS)

    def __getitem__(self, numbers: np.ndarray | int) -> np.ndarray:
        """The ends of the units with these numbers, int64 in their shape. Raises IndexError for other numbers."""
        numbers = np.asarray(numbers, np.int64)
        if numbers.size and (numbers.min() < 0 or numbers.max() >= len(self)):
            raise IndexError(f"units are numbered from 0 to {len(self) - 1}")
        return self.values[numbers]

    def find(self, offsets: np.ndarray | int) -> np.ndarray:
        """The number of the unit that holds the token at each offset, int64 in the shape of `offsets`."""
        return np.searchsorted(self.values, np.asarray(offsets, np.int64), side="right")

    def between(self, start: int, stop: int) -> np.ndarray:
        """The ends e with start < e <= stop, ascending, int64."""
        low, high = self.find([start, stop])
        return self.values[low:high]


def ends_within(units: Ends, starts: np.ndarray, stops: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For N runs of tokens: the ends e of units with start < e < stop, in ascending order, and the run of each."""
    first, last = units.find(np.stack([starts, stops - 1]))
    counts = last - first
    runs = np.repeat(np.arange(len(starts)), counts)
    return runs, units[first[runs] + count_up(counts)]


@dataclasses.dataclass(frozen=True)
class Manifest:
    """What a corpus consists of."""

    vocab_size: int  # of the language model, in words or subwords
    token_size: int  # in bytes
    tokenizer: str  # its digest
    num_bytes: dict[str, int]  # of the text of each split
    files: dict[str, int]  # by their names: the size that each has, as long as it is undamaged
    origin: dict = dataclasses.field(default_factory=dict)  # the text and the settings that it was made from
    version: int = VERSION


def read_manifest(folder: Path) -> Manifest:
    """What the corpus in a folder consists of, whose files all have their sizes.

    Raises FileNotFoundError if the folder holds no corpus, or none that was finished, OSError for a damaged one, and
    ValueError for a manifest of another version or one that was changed.
    """
    if not (folder / MANIFEST).is_file():
        raise MissingFileError(f"{folder} holds no prepared corpus: it has no {MANIFEST}. Prepare it again")
    values = read_json_object(folder / MANIFEST)
    problem = f"{folder}: {MANIFEST} is of version {values.get('version')}, this program reads {VERSION}"
    if values.get("version") == VERSION:
        try:
            manifest = Manifest(**values)
        except TypeError as error:
            problem = f"{folder}: {MANIFEST} was changed ({error})"
        else:
            _check_sizes(folder, manifest)
            return manifest
    raise InputError(f"{problem}. Prepare the corpus in another folder")


def _check_sizes(folder: Path, manifest: Manifest) -> None:
    for name, size in manifest.files.items():
        path = folder / name
        found = path.stat().st_size if path.is_file() else None
        if found != size:
            problem = "is missing" if found is None else f"has {found} bytes instead of {size}"
            raise FileError(f"{path} is damaged: it {problem}. Remove {folder}, and prepare the corpus again")


class Corpus:
    """A split of a prepared corpus: the tokens of all its documents, one after the other, without special tokens.

    Attributes:
        num_tokens: of all documents.
        num_bytes: of the text in UTF-8.
        split: "train" or "validation".
        name: of the split and its folder, for messages.
        documents, sentences: where they end.
        vocab_size: the number of words or subwords of the language model.
    """

    def __init__(self, folder: Path, manifest: Manifest, split: str):
        self.folder, self.vocab_size = folder, manifest.vocab_size
        self.split, self.num_bytes = split, manifest.num_bytes[split]
        self.name = f"the {'training' if split == 'train' else 'held-out'} text in {folder}"
        self._tokens = FileArray(folder / f"{split}{TOKENS}", np.dtype(f"<u{manifest.token_size}"))
        self.num_tokens = len(self._tokens)
        self.documents, self.sentences = (Ends(folder / f"{split}{suffix}") for suffix in (DOCUMENTS, SENTENCES))
        self.has_words = CHARACTERS in manifest.files
        self._characters: np.ndarray | None = None

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
        return self._tokens.values[start:stop].astype(np.int64)

    @classmethod
    def open(cls, folder: Path, split: str = "train") -> "Corpus":
        """Opens a split of the corpus in a folder.

        Raises FileNotFoundError if the folder holds no finished corpus, OSError for a damaged file, and ValueError if
        there is no such split or a manifest of another version.
        """
        folder = Path(folder)
        manifest = read_manifest(folder)
        if split not in manifest.num_bytes:
            splits = ", ".join(manifest.num_bytes)
            raise InputError(f"{folder}: {MANIFEST} lists no split {split!r}, but {splits}")
        return cls(folder, manifest, split)


# Writing


@dataclasses.dataclass(frozen=True)
class Tokens:
    """Some successive documents as tokens, and where the documents and sentences end in these."""

    tokens: np.ndarray
    documents: np.ndarray
    sentences: np.ndarray
    num_bytes: int  # of the text in UTF-8


class SplitWriter:
    """Appends documents to the files of a split."""

    def __init__(self, folder: Path, split: str):
        self.files = [(folder / f"{split}{suffix}").open("wb") for suffix in (TOKENS, DOCUMENTS, SENTENCES)]
        self.num_tokens = self.num_bytes = 0

    def append(self, part: Tokens) -> None:
        arrays = (part.tokens, part.documents + self.num_tokens, part.sentences + self.num_tokens)
        for file, array in zip(self.files, arrays, strict=True):
            file.write(array.tobytes())
        self.num_tokens += len(part.tokens)
        self.num_bytes += part.num_bytes

    def close(self) -> None:
        for file in self.files:
            file.close()


def write_words(folder: Path, words: Sequence[str], characters: np.ndarray) -> None:
    """Writes each distinct word and its row of `characters`, (W, max_characters_per_token)."""
    (folder / WORDS).write_text("".join(f"{word}\n" for word in words), encoding="utf-8")
    np.save(folder / CHARACTERS, characters)


def sizes_of_files(folder: Path) -> dict[str, int]:
    """What `Manifest.files` says of all files in the folder, which are on the disk then."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    for path in paths:
        sync(path)
    return {path.relative_to(folder).as_posix(): path.stat().st_size for path in paths}


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Declares that the files which are in the manifest are a corpus."""
    write_json(folder / MANIFEST, dataclasses.asdict(manifest))
