"""Prepares a corpus: text -> a tokenizer, if there is none -> shards. What was prepared before is used again.

FOLDER/origin.json     the text and the settings that the folder is made from, written first
FOLDER/text/           a data set of the Hub, as it was streamed
FOLDER/tokenizer/      the tokenizer, if it was made from the text
FOLDER/words/          for words: each distinct word and its characters
FOLDER/train/, FOLDER/validation/, FOLDER/finished/     shards, and a record of each piece of text that has its own
FOLDER/manifest.json   written last: the corpus is complete
"""

import contextlib
import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from tasks.pretraining.adopting import adopt_shards, are_shards
from tasks.pretraining.corpus import Corpus
from tasks.pretraining.shards import (
    CHARACTERS,
    MANIFEST,
    WORDS,
    FileRecord,
    Manifest,
    check_sizes,
    read_manifest,
    write_characters,
    write_manifest,
)
from tasks.pretraining.sources import (
    FOLDER,
    PERCENTAGE,
    VALIDATION_FILE,
    TextSource,
    changed_file,
    changed_setting,
    describe,
)
from tasks.pretraining.vocabulary import (
    Encoder,
    digest,
    number_words,
    reads_words,
    rows_of_characters,
    size_field,
    tokenizer_class,
    train_subwords,
    word_tokenizer,
    word_vocabulary,
)
from tasks.pretraining.writing import Reader, WritePiece, count_words, is_undamaged, write_shards
from training.errors import ExistingFileError, FileError, FolderInUseError, InputError, MissingFileError
from training.files import new_folder, read_json_object, write_json, write_text, writing


ORIGIN, TOKENIZER, TEXT, WORDS_RECORD = "origin.json", "tokenizer", "text", "words/record.json"
PIECE_SIZE = 1 << 26
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
) -> PreparedText:
    """Prepares the text in a folder, or opens what was prepared there before. Only one process may call it at a time.

    Args:
        config: of the model; without a `tokenizer`, its type and size decide what is made.
        do_lower_case: for a tokenizer that is made; None leaves it to the tokenizer's class.
        processes: to read and write with. The files do not depend on their number.
        piece_size: the characters of text in a shard, and a document at most.
        verify: whether to compare the checksums of all files. By default, it is their sizes.

    Raises:
        ValueError: for another text, tokenizer or setting than the folder was made with, and text that cannot be read.
        OSError: for files that are missing, damaged, or cannot be written, and for a folder that another run prepares.
    """
    folder = Path(folder)
    with _locked(folder):
        preparation = _Preparation(folder, source, config, tokenizer, do_lower_case, processes, piece_size)
        return preparation.run(verify)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keeps other runs from preparing the folder. Raises FileExistsError for a folder with other content."""
    if folder.is_dir() and not (folder / ORIGIN).is_file() and any(path.name != ".lock" for path in folder.iterdir()):
        raise ExistingFileError(FOLDER, f" {folder} is not empty and holds no corpus: choose another folder")
    with writing(folder, ("Choose another ", FOLDER)):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ".lock").touch()  # FileLock mistakes some errors of writing for another run's lock
    lock = FileLock(folder / ".lock", timeout=LOCK_SECONDS)
    try:
        lock.acquire()
    except Timeout as error:
        raise FolderInUseError(f"another run prepares {folder}: wait for it, or choose another ", FOLDER) from error
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

    def run(self, verify: bool) -> PreparedText:
        is_finished = (self.folder / MANIFEST).is_file()
        files = self._check_origin(is_finished)
        if is_finished and not self._damage(verify, has_text=files is not None):
            return self._open()
        (self.folder / MANIFEST).unlink(missing_ok=True)
        self._write(files)
        return self._open()

    # The origin

    @property
    def _makes_tokenizer(self) -> bool:
        """A tokenizer of words may come without those that the language model predicts."""
        return self.tokenizer is None or (reads_words(self.tokenizer) and self.tokenizer.targets is None)

    def _settings(self) -> dict[str, Any]:
        """What decides the shards besides the text."""
        settings = dataclasses.asdict(self.source) | {"piece_size": self.piece_size}
        del settings["train_file"], settings["validation_file"]  # a text may move
        if self._makes_tokenizer:
            made = {"class": tokenizer_class(self.config).__name__, "do_lower_case": self.do_lower_case}
            return settings | {"tokenizer": made | {"size": getattr(self.config, size_field(self.config))}}
        return settings | {"tokenizer": digest(self.tokenizer)}

    def _names(self) -> list[str | None]:
        return [self.source.train_file, self.source.validation_file]

    def _check_origin(self, is_finished: bool) -> dict[str, list[Path]] | None:
        """The files of the text; None if they are gone and the corpus, which was made from them, is finished.

        Writes the origin of a new folder. Raises ValueError if a former one differs.
        """
        path, settings = self.folder / ORIGIN, self._settings()
        former = read_json_object(path) if path.is_file() else None
        if former is not None and (change := changed_setting(settings, former["settings"])):
            self._refuse(f"with another {change}")
        try:
            files = self.source.files(self.folder / TEXT)
        except MissingFileError:
            if is_finished and former["names"] == self._names():
                return None
            raise
        if former is None:
            write_json(path, {"settings": settings, "names": self._names(), "files": describe(files)})
        elif change := changed_file(files, former["files"]):
            self._refuse(f"from another text: {change} changed since")
        return files

    def _refuse(self, change: str) -> None:
        raise InputError(
            f"the corpus in {self.folder} was prepared {change}. Undo the change, or choose another ", FOLDER
        )

    def _damage(self, verify: bool, has_text: bool) -> bool:
        """Whether files are damaged. Raises OSError if there is no text to make them from."""
        manifest = read_manifest(self.folder)
        records = [item for split in manifest.splits for item in manifest.files(split)]
        try:
            check_sizes(self.folder, records)
            for name, record in records if verify else ():
                if not is_undamaged(self.folder / name, record):
                    raise FileError(f"{self.folder / name} is damaged: its checksum differs")
        except FileError as error:
            if not has_text:
                raise FileError(f"{error}, and the text is gone: put it back, and start again") from error
            return True
        return False

    def _open(self) -> PreparedText:
        manifest = read_manifest(self.folder)
        tokenizer = self._made_tokenizer() if self._makes_tokenizer else self.tokenizer
        if digest(tokenizer) != manifest.tokenizer:
            self._refuse(f"with another tokenizer than that in {self.folder / TOKENIZER}")
        splits = {split: Corpus.open(self.folder, split) for split in manifest.splits}
        return PreparedText(tokenizer, splits["train"], splits.get("validation"))

    # Writing

    def _write(self, files: Mapping[str, list[Path]]) -> None:
        if are_shards(files):
            if self.source.validation_split_percentage:
                raise InputError(PERCENTAGE, ": shards are not split: give others as ", VALIDATION_FILE)
            shards = adopt_shards(files, self.tokenizer)
            tokenizer, vocab_size, record = self.tokenizer, len(self.tokenizer), None
        else:
            reader = Reader(self.source, files, self.piece_size)
            tokenizer, words, record = self._vocabulary(reader)
            vocab_size = len(tokenizer) if words is None else len(tokenizer.targets)
            shards = self._write_shards(reader, tokenizer, words)
        origin = read_json_object(self.folder / ORIGIN)
        if change := changed_file(files, origin["files"]):
            self._refuse(f"from another text: {change} changed meanwhile")
        if "train" not in shards:
            raise InputError(
                "the training text has no tokens: ", *map(str, files["train"][:1]), " and the other files"
            )
        write_manifest(self.folder, Manifest(vocab_size, digest(tokenizer), shards, record, origin))

    def _write_shards(self, reader: Reader, tokenizer: PreTrainedTokenizerBase, words: Sequence[str] | None) -> dict:
        numbers = len(tokenizer) if words is None else len(words)
        name = (not self._makes_tokenizer and tokenizer.name_or_path) or type(tokenizer).__name__
        share = self.source.share(reader.files)
        write = WritePiece(self.folder, Encoder(tokenizer, words), self.source, share, numbers, name)
        return write_shards(reader, write, self.processes)

    def _vocabulary(self, reader: Reader) -> tuple[PreTrainedTokenizerBase, list[str] | None, FileRecord | None]:
        """The tokenizer; for words, all distinct words in the order of their numbers, and their rows' record."""
        kind = tokenizer_class(self.config) if self.tokenizer is None else type(self.tokenizer)
        if not reads_words(kind):
            if self._makes_tokenizer and not (self.folder / TOKENIZER).is_dir():
                self._save(train_subwords(self.config, reader.training_texts, self.do_lower_case))
            return (self._made_tokenizer() if self._makes_tokenizer else self.tokenizer), None, None
        if not self._has_words():
            self._write_words(reader)
        record = FileRecord(**read_json_object(self.folder / WORDS_RECORD)[CHARACTERS])
        words = (self.folder / WORDS).read_text(encoding="utf-8").split("\n")[:-1]
        return (self._made_tokenizer() if self._makes_tokenizer else self.tokenizer), words, record

    def _has_words(self) -> bool:
        record = self.folder / WORDS_RECORD
        return record.is_file() and all(
            is_undamaged(self.folder / name, FileRecord(**values)) for name, values in read_json_object(record).items()
        )

    def _write_words(self, reader: Reader) -> None:
        (self.folder / WORDS_RECORD).unlink(missing_ok=True)
        (self.folder / WORDS).parent.mkdir(exist_ok=True)
        counts = count_words(reader, self.tokenizer or tokenizer_class(self.config)(), self.processes)
        tokenizer = self._word_tokenizer(counts) if self._makes_tokenizer else self.tokenizer
        words = number_words(tokenizer, counts)
        write_text(self.folder / WORDS, "".join(f"{word}\n" for word in words))
        write_characters(self.folder, rows_of_characters(tokenizer, words))
        records = {name: FileRecord.of(self.folder / name) for name in (WORDS, CHARACTERS)}
        write_json(self.folder / WORDS_RECORD, {name: dataclasses.asdict(each) for name, each in records.items()})

    def _word_tokenizer(self, counts: Counter[str]) -> PreTrainedTokenizerBase:
        if not (self.folder / TOKENIZER).is_dir():
            words = word_vocabulary(counts, getattr(self.config, size_field(self.config)))
            self._save(word_tokenizer(self.config, words, self.folder / "words"))
        return self._made_tokenizer()

    def _save(self, tokenizer: PreTrainedTokenizerBase) -> None:
        with new_folder(self.folder / TOKENIZER) as temporary:
            tokenizer.save_pretrained(temporary)

    def _made_tokenizer(self) -> PreTrainedTokenizerBase:
        return tokenizer_class(self.config).from_pretrained(self.folder / TOKENIZER)
