"""The files of a prepared corpus: shards of tokens in datatrove's layout, and the manifest that lists them.

    FOLDER/manifest.json             counts and checksums of all files, and what they were made from
    FOLDER/train/00000.ds            tokens, little-endian uint16; uint32 where a number exceeds 65,535
                00000.ds.index       uint64: the end of each document, in tokens from the start of the shard
                00000.ds.metadata    text: the tokenizer and the bytes of a token, the number of tokens, twice
                00000.ds.sentences   uint64: the end of each sentence, as in the index
    FOLDER/validation/               the same of the held-out documents
    FOLDER/words/words.txt           for words: each distinct word, in the order of their numbers
    FOLDER/words/characters.npy      (W, max_characters_per_token), the row of each of them

The first three files of a shard are those of datatrove (github.com/huggingface/datatrove, its TokenizedFile), whose
readers read them. Shards that it wrote lack the sentences.
"""

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from elmo_gpt_bert.training.errors import FileError, InputError, MissingFileError
from elmo_gpt_bert.training.files import new_file, read_json_object, sha256, write_json, write_text


VERSION = 1
MANIFEST = "manifest.json"
CHARACTERS, WORDS = "words/characters.npy", "words/words.txt"
DOCUMENTS, METADATA, SENTENCES = ".index", ".metadata", ".sentences"  # follow the name of the file of tokens
ENDS = np.dtype("<u8")


def token_type(numbers: int) -> np.dtype:
    """The type of tokens that are below `numbers`."""
    return np.dtype("<u2" if numbers <= 1 << 16 else "<u4")


@dataclasses.dataclass(frozen=True)
class FileRecord:
    """The size in bytes and the SHA-256 that a file has, as long as it is undamaged."""

    size: int
    sha256: str

    @classmethod
    def of(cls, path: Path) -> "FileRecord":
        return cls(path.stat().st_size, sha256(path))


@dataclasses.dataclass(frozen=True)
class Shard:
    """A file of tokens and the files that belong to it. Those of another program lack some counts."""

    path: str  # of the file of tokens, from the manifest's folder
    token_size: int  # in bytes
    tokens: int
    documents: int
    sentences: int | None
    bytes: int | None  # of the text in UTF-8
    characters: int | None
    files: dict[str, FileRecord]  # by what follows the path: "", ".index", ...

    @property
    def token_type(self) -> np.dtype:
        return np.dtype(f"<u{self.token_size}")

    def digest(self) -> str:
        """Of its tokens and their ends, wherever they lie."""
        content = [self.files[suffix].sha256 for suffix in sorted({*self.files} - {METADATA})]
        return hashlib.sha256("".join(content).encode()).hexdigest()

    @classmethod
    def from_json(cls, values: dict) -> "Shard":
        files = {suffix: FileRecord(**record) for suffix, record in values["files"].items()}
        return cls(**values | {"files": files})


@dataclasses.dataclass(frozen=True)
class Manifest:
    """What a corpus consists of, and what it was made from."""

    vocab_size: int  # of the language model, in words or subwords
    tokenizer: str  # its digest
    splits: dict[str, list[Shard]]
    words: FileRecord | None = None  # of the rows of characters; None for subwords
    origin: dict = dataclasses.field(default_factory=dict)  # the text and the settings; another origin, other shards
    version: int = VERSION

    def digest(self, split: str) -> str:
        """Of the split's tokens, wherever the folder lies."""
        words = None if self.words is None else self.words.sha256
        content = [self.vocab_size, self.tokenizer, words, [shard.digest() for shard in self.splits[split]]]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()

    def files(self, split: str) -> Iterable[tuple[str, FileRecord]]:
        """The paths of the split's files, from the manifest's folder, with their records."""
        for shard in self.splits[split]:
            for suffix, record in shard.files.items():
                yield f"{shard.path}{suffix}", record
        if self.words is not None:
            yield CHARACTERS, self.words


def write_manifest(folder: Path, manifest: Manifest) -> None:
    write_json(folder / MANIFEST, dataclasses.asdict(manifest))


def read_manifest(folder: Path) -> Manifest:
    """Raises FileNotFoundError if the folder holds no corpus, or none that was finished, and ValueError for a manifest
    of another version or one that was changed."""
    if not (folder / MANIFEST).is_file():
        raise MissingFileError(f"{folder} holds no prepared corpus: it has no {MANIFEST}. Prepare it again")
    values = read_json_object(folder / MANIFEST)
    if values.get("version") != VERSION:
        problem = f"{folder}: {MANIFEST} is of version {values.get('version')}, this program reads {VERSION}"
        raise InputError(f"{problem}. Prepare the corpus in another folder")
    try:
        shards = {name: [*map(Shard.from_json, shards)] for name, shards in values["splits"].items()}
        words = None if values["words"] is None else FileRecord(**values["words"])
        return Manifest(**values | {"splits": shards, "words": words})
    except (AttributeError, KeyError, TypeError) as error:
        raise InputError(
            f"{folder}: {MANIFEST} was changed ({error}). Prepare the corpus in another folder"
        ) from error


def check_sizes(folder: Path, files: Iterable[tuple[str, FileRecord]]) -> None:
    """Raises OSError for the first file that is missing or has another size than when it was written."""
    for name, record in files:
        path = folder / name
        size = path.stat().st_size if path.is_file() else None
        if size != record.size:
            problem = "is missing" if size is None else f"has {size} bytes instead of {record.size}"
            raise FileError(f"{path} is damaged: it {problem}. Prepare the corpus again from its text")


def write_shard(
    folder: Path,
    name: str,
    documents: Sequence[Sequence[Sequence[int]]],
    numbers: int,
    text: Sequence[str] | None = None,
    tokenizer: str = "",
) -> Shard:
    """Writes FOLDER/NAME.ds and the files that belong to it.

    Args:
        name: such as "train/00000"
        documents: each a list of sentences, which are lists of tokens; none of them is empty
        numbers: all tokens are below it
        text: of each document, for the counts of bytes and characters
        tokenizer: its name, for the metadata
    """
    path, kind = folder / f"{name}.ds", token_type(numbers)
    path.parent.mkdir(parents=True, exist_ok=True)
    sentences = [sentence for document in documents for sentence in document]
    lengths = np.fromiter(map(len, sentences), dtype=np.int64, count=len(sentences))
    ends = np.cumsum(lengths)
    last = np.cumsum(np.fromiter(map(len, documents), dtype=np.int64, count=len(documents))) - 1
    tokens = np.concatenate([np.asarray(sentence, kind) for sentence in sentences]) if sentences else np.empty(0, kind)
    for suffix, array in {"": tokens, DOCUMENTS: ends[last].astype(ENDS), SENTENCES: ends.astype(ENDS)}.items():
        with new_file(path.with_name(path.name + suffix)) as temporary:
            array.tofile(temporary)
    write_text(path.with_name(path.name + METADATA), f"{tokenizer}|{kind.itemsize}\n{len(tokens)}\n{len(tokens):,} T")
    return Shard(
        path=f"{name}.ds",
        token_size=kind.itemsize,
        tokens=len(tokens),
        documents=len(documents),
        sentences=len(sentences),
        bytes=None if text is None else sum(len(each.encode()) for each in text),
        characters=None if text is None else sum(map(len, text)),
        files={
            suffix: FileRecord.of(path.with_name(path.name + suffix))
            for suffix in ("", DOCUMENTS, METADATA, SENTENCES)
        },
    )


def write_characters(folder: Path, characters: np.ndarray) -> FileRecord:
    """Writes the row of each distinct word, (W, max_characters_per_token), as FOLDER/words/characters.npy."""
    path = folder / CHARACTERS
    path.parent.mkdir(parents=True, exist_ok=True)
    with new_file(path) as temporary, temporary.open("wb") as file:
        np.save(file, characters)
    return FileRecord.of(path)
