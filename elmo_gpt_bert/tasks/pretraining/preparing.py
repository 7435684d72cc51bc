"""Prepares a corpus: text -> a tokenizer, if there is none -> shards. What was prepared before is used again.

FOLDER/origin.json     the text and the settings that the folder is made from, written first
FOLDER/text/           a data set of the Hub, as it was streamed; it may be removed when all is complete
FOLDER/tokenizer/      the tokenizer, if it was made from the text
FOLDER/words/          for words: each distinct word and its characters
FOLDER/train/, FOLDER/validation/, FOLDER/finished/     shards, and a record of each piece of text that has its own
FOLDER/manifest.json   written last: the corpus is complete
"""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elmo_gpt_bert.tasks.language_models import reads_words
from elmo_gpt_bert.tasks.pretraining.adopting import adopt_shards, are_shards
from elmo_gpt_bert.tasks.pretraining.corpus import Corpus
from elmo_gpt_bert.tasks.pretraining.shards import (
    CHARACTERS,
    MANIFEST,
    WORDS,
    FileRecord,
    Manifest,
    Shard,
    check_sizes,
    read_manifest,
    write_characters,
    write_manifest,
)
from elmo_gpt_bert.tasks.pretraining.sources import (
    FOLDER,
    PERCENTAGE,
    VALIDATION_FILE,
    TextSource,
    changed_file,
    changed_setting,
    describe,
)
from elmo_gpt_bert.tasks.pretraining.vocabulary import (
    Encoder,
    digest,
    number_words,
    refuse_characters,
    rows_of_characters,
    size_field,
    tokenizer_class,
    train_subwords,
    word_tokenizer,
    word_vocabulary,
)
from elmo_gpt_bert.tasks.pretraining.writing import (
    FINISHED,
    Reader,
    WritePiece,
    count_words,
    is_undamaged,
    write_shards,
)
from elmo_gpt_bert.tasks.rows import listed
from elmo_gpt_bert.training.errors import ExistingFileError, FileError, FolderInUseError, InputError, MissingFileError
from elmo_gpt_bert.training.files import acquire_lock, new_folder, read_json_object, write_json, write_text, writing


if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedTokenizerBase


ORIGIN, TOKENIZER, TEXT, WORDS_RECORD = "origin.json", "tokenizer", "text", "words/record.json"
PIECE_SIZE = 1 << 25
LOCK_SECONDS = 5  # processes of a run that was killed let go of the lock at once


@dataclasses.dataclass(frozen=True)
class PreparedText:
    """What `prepare` returns; `validation` is None if no document is held out.

    `train.vocab_size` is the size of the tokenizer's vocabulary. It is less than the configuration's if the tokenizer
    was made from a text that has no more words or pieces.
    """

    tokenizer: PreTrainedTokenizerBase
    train: Corpus
    validation: Corpus | None


def prepare(
    folder: Path,
    source: TextSource,
    config: PreTrainedConfig,
    tokenizer: PreTrainedTokenizerBase | None = None,
    do_lower_case: bool | None = None,
    processes: int = 1,
    piece_size: int = PIECE_SIZE,
    verify: bool = False,
    evaluates: bool = True,
) -> PreparedText:
    """Prepares the text in a folder, or opens what was prepared there before, which any number of processes may do.

    Args:
        config: of the model; without a `tokenizer`, its type and size decide what is made.
        do_lower_case: for a tokenizer that is made; None leaves it to the tokenizer's class.
        processes: to read and write with. The files do not depend on their number.
        piece_size: the characters of text in a shard, and a document at most.
        verify: whether to compare the checksums of all files. By default, it is their sizes.
        evaluates: whether the run needs the text of the source's `validation_file`, if it names one.

    Raises:
        ValueError: for another text, tokenizer or setting than the folder was made with, and text that cannot be read.
        OSError: for files that are missing, damaged, or cannot be written, and for a folder that another run prepares.
    """
    refuse_characters(tokenizer)
    folder = Path(folder)
    preparation = _Preparation(folder, source, config, tokenizer, do_lower_case, processes, piece_size, evaluates)
    if not preparation.is_complete(verify):
        with _locked(folder):
            if not preparation.is_complete(verify):  # as another process may have left it since
                preparation.write()
    return preparation.open()


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keeps other runs from preparing the folder. Raises FileExistsError for a folder with other content."""
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    if ORIGIN not in names and names - {".lock", TEXT}:
        raise ExistingFileError(FOLDER, f" {folder} is not empty and holds no corpus: choose another folder")
    in_use = FolderInUseError(f"another run prepares {folder}: wait for it, or choose another ", FOLDER)
    with writing(folder, ("Choose another ", FOLDER)):
        folder.mkdir(parents=True, exist_ok=True)
        lock = acquire_lock(folder, in_use, LOCK_SECONDS)
    try:
        yield
    finally:
        lock.release()


@dataclasses.dataclass
class _Preparation:
    """The parameters of `prepare`, and its steps."""

    folder: Path
    source: TextSource
    config: PreTrainedConfig
    tokenizer: PreTrainedTokenizerBase | None
    do_lower_case: bool | None
    processes: int
    piece_size: int
    evaluates: bool

    def is_complete(self, verify: bool = False) -> bool:
        """Whether the corpus was finished and is undamaged.

        Raises ValueError if it was made from something else, and OSError if it is damaged and its text is gone.
        """
        if not (self.folder / MANIFEST).is_file():
            return False
        files = self._files()
        origin = self._check_origin(files)
        if origin != self._origin():
            # So that the next start need not read the text. Where nothing can be written, it does.
            with contextlib.suppress(OSError), _locked(self.folder):
                write_json(self.folder / ORIGIN, origin)
        return not self._is_damaged(verify, has_text=files is not None or self.source.dataset_name is not None)

    def open(self) -> PreparedText:
        manifest, tokenizer = read_manifest(self.folder), self._tokenizer()
        if digest(tokenizer) != manifest.tokenizer:
            self._refuse(f"with another tokenizer than that in {self.folder / TOKENIZER}")
        splits = {split: Corpus.open(self.folder, split) for split in manifest.splits}
        return PreparedText(tokenizer, splits["train"], splits.get("validation"))

    def write(self) -> None:
        """Writes what is missing or damaged. The manifest of a damaged corpus is removed first, and written last."""
        (self.folder / MANIFEST).unlink(missing_ok=True)
        files = self._files()
        self._check_origin(files)
        if are_shards(files):
            self._write_manifest(files, self._adopt(files), len(self.tokenizer), None)
            return
        reader = Reader(self.source, files, self.piece_size)
        if self._reads_words:
            words, record = self._words(reader)
        else:
            words, record = None, None
            if not self._has_tokenizer():
                self._save(train_subwords(self.config, reader.training_texts, self.do_lower_case))
        tokenizer = self._tokenizer()
        vocab_size = len(tokenizer) if words is None else len(tokenizer.targets)
        self._write_manifest(files, self._write_shards(reader, tokenizer, words), vocab_size, record)

    # The tokenizer

    @property
    def _reads_words(self) -> bool:
        return reads_words(self.tokenizer or tokenizer_class(self.config))

    @property
    def _makes_tokenizer(self) -> bool:
        """A tokenizer of words may come without those that the language model predicts."""
        return self.tokenizer is None or (self._reads_words and self.tokenizer.targets is None)

    def _has_tokenizer(self) -> bool:
        return not self._makes_tokenizer or (self.folder / TOKENIZER).is_dir()

    def _tokenizer(self) -> PreTrainedTokenizerBase:
        if not self._makes_tokenizer:
            return self.tokenizer
        return tokenizer_class(self.config).from_pretrained(self.folder / TOKENIZER)

    def _save(self, tokenizer: PreTrainedTokenizerBase) -> None:
        with new_folder(self.folder / TOKENIZER) as temporary:
            try:
                tokenizer.save_pretrained(temporary)
            except Exception as error:
                if type(error) is Exception:  # what the library raises where the disk is full
                    raise OSError(str(error)) from error
                raise

    def _words(self, reader: Reader) -> tuple[list[str], FileRecord]:
        """All distinct words in the order of their numbers, and the record of their rows of characters."""
        if not self._has_words():
            self._write_words(reader)
        words = (self.folder / WORDS).read_text(encoding="utf-8").split("\n")[:-1]
        return words, FileRecord(**read_json_object(self.folder / WORDS_RECORD)[CHARACTERS])

    def _has_words(self) -> bool:
        record = self.folder / WORDS_RECORD
        return (record.is_file() and self._has_tokenizer()) and all(
            is_undamaged(self.folder / name, FileRecord(**values)) for name, values in read_json_object(record).items()
        )

    def _write_words(self, reader: Reader) -> None:
        (self.folder / WORDS_RECORD).unlink(missing_ok=True)
        (self.folder / WORDS).parent.mkdir(exist_ok=True)
        counts = count_words(reader, self.tokenizer or tokenizer_class(self.config)(), self.processes)
        if not self._has_tokenizer():
            vocabulary = word_vocabulary(counts, getattr(self.config, size_field(self.config)))
            with tempfile.TemporaryDirectory() as temporary:
                self._save(word_tokenizer(self.config, vocabulary, Path(temporary)))
        tokenizer = self._tokenizer()
        words = number_words(tokenizer, counts)
        write_text(self.folder / WORDS, "".join(f"{word}\n" for word in words))
        characters = write_characters(self.folder, rows_of_characters(tokenizer, words))
        records = {WORDS: FileRecord.of(self.folder / WORDS), CHARACTERS: characters}
        write_json(self.folder / WORDS_RECORD, {name: dataclasses.asdict(each) for name, each in records.items()})

    # The origin

    def _settings(self) -> dict[str, Any]:
        """What decides the shards besides the text."""
        settings = dataclasses.asdict(self.source) | {"piece_size": self.piece_size}
        del settings["train_file"], settings["validation_file"]  # a text may move
        if self._makes_tokenizer:
            made = {"class": tokenizer_class(self.config).__name__, "do_lower_case": self.do_lower_case}
            return settings | {"tokenizer": made | {"size": getattr(self.config, size_field(self.config))}}
        made = self._made_tokenizer()
        return settings | {"tokenizer": digest(self.tokenizer) if made is None else made}

    def _made_tokenizer(self) -> dict[str, Any] | None:
        """How the given tokenizer was made for this folder; None if it is another.

        A model that was trained on the corpus comes with the corpus' tokenizer.
        """
        made = (self._origin() or {"settings": {"tokenizer": None}})["settings"]["tokenizer"]
        if not isinstance(made, dict) or made["class"] != type(self.tokenizer).__name__:
            return None
        folder = self.folder / TOKENIZER
        is_same = folder.is_dir() and digest(type(self.tokenizer).from_pretrained(folder)) == digest(self.tokenizer)
        return made if is_same else None

    def _names(self) -> list[str | None]:
        return [self.source.train_file, self.source.validation_file]

    def _origin(self) -> dict[str, Any] | None:
        path = self.folder / ORIGIN
        return read_json_object(path) if path.is_file() else None

    def _files(self) -> dict[str, list[Path]] | None:
        """The files of the text; None if they are gone and the corpus, which was made from them, is finished."""
        is_finished = (self.folder / MANIFEST).is_file()
        if is_finished and self.source.dataset_name is not None and not (self.folder / TEXT).is_dir():
            return None
        try:
            return self.source.files(self.folder / TEXT, self.evaluates or is_finished)
        except MissingFileError:
            if is_finished and self._origin()["names"] == self._names():
                return None
            raise

    def _has_begun(self) -> bool:
        """Whether anything was made that depends on the origin."""
        made = (self.folder / TOKENIZER, self.folder / WORDS_RECORD, self.folder / MANIFEST)
        return any(path.exists() for path in made) or any(self.folder.glob(f"{FINISHED}/*.json"))

    def _check_origin(self, files: dict[str, list[Path]] | None) -> dict[str, Any]:
        """Writes the origin of a new folder. Raises ValueError if that of an old one differs.

        Returns the origin, with the times that the files have now.
        """
        settings, origin = self._settings(), self._origin()
        if origin is None or not self._has_begun():
            origin = {"settings": settings, "names": self._names(), "files": describe(files)}
            write_json(self.folder / ORIGIN, origin)
        elif change := changed_setting(settings, origin["settings"]):
            self._refuse(f"with {change}")
        elif files is not None and (change := changed_file(files, origin["files"])):
            self._refuse(f"from another text: {change} changed since")
        return origin

    def _refuse(self, change: str) -> None:
        remedy = ("Undo the change, remove the folder, or choose another ", FOLDER)
        raise InputError(f"the corpus in {self.folder} was prepared {change}. ", remedy)

    def _is_damaged(self, verify: bool, has_text: bool) -> bool:
        """Whether files are damaged. Raises OSError if there is no text to make them from."""
        manifest = read_manifest(self.folder)
        records = [item for split in manifest.splits for item in manifest.files(split)]
        try:
            check_sizes(self.folder, records)
            if not self._has_tokenizer():
                raise FileError(f"{self.folder / TOKENIZER} is missing")
            for name, record in records if verify else ():
                if not is_undamaged(self.folder / name, record):
                    raise FileError(f"{self.folder / name} is damaged: its checksum differs")
        except FileError as error:
            if not has_text:
                raise FileError(f"{error}, and the text is gone: put it back, and start again") from error
            return True
        return False

    # Writing

    def _adopt(self, files: Mapping[str, list[Path]]) -> dict[str, list[Shard]]:
        if self.source.validation_split_percentage:
            raise InputError(PERCENTAGE, ": shards are not split: give others as ", VALIDATION_FILE)
        return adopt_shards(files, self.tokenizer)

    def _write_shards(
        self, reader: Reader, tokenizer: PreTrainedTokenizerBase, words: Sequence[str] | None
    ) -> dict[str, list[Shard]]:
        numbers = len(tokenizer) if words is None else len(words)
        name = (not self._makes_tokenizer and tokenizer.name_or_path) or type(tokenizer).__name__
        share = self.source.share(reader.files)
        write = WritePiece(self.folder, Encoder(tokenizer, words), self.source, share, numbers, name)
        return write_shards(reader, write, self.processes)

    def _write_manifest(
        self,
        files: Mapping[str, list[Path]],
        shards: dict[str, list[Shard]],
        vocab_size: int,
        words: FileRecord | None,
    ) -> None:
        origin = self._origin()
        if change := changed_file(files, origin["files"]):
            self._refuse(f"from another text: {change} changed while it was read")
        for split, name in (("train", "training"), ("validation", "held-out")):
            if split in files and split not in shards:
                raise InputError(f"the {name} text, {listed([*map(str, files[split])])}, has no tokens: give another")
        write_manifest(self.folder, Manifest(vocab_size, digest(self._tokenizer()), shards, words, origin))
