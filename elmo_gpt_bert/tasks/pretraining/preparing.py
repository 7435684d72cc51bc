"""Prepares a corpus: text -> a tokenizer, if there is none -> tokens. What was prepared before is used again.

A corpus is written to a temporary folder, which gets its name when all is complete. So a preparation that was killed
begins again, and what it left is never read. `corpus.py` describes the files. FOLDER/tokenizer is the tokenizer, if it
was made from the text. Text becomes tokens in several processes: pieces of text go out, and tokens come back in their
order.
"""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import os
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from tqdm import tqdm

from elmo_gpt_bert.tasks.features import reads_words
from elmo_gpt_bert.tasks.pretraining import vocabulary
from elmo_gpt_bert.tasks.pretraining.corpus import (
    MANIFEST,
    Corpus,
    Manifest,
    SplitWriter,
    Tokens,
    read_manifest,
    sizes_of_files,
    token_type,
    write_manifest,
    write_words,
)
from elmo_gpt_bert.tasks.pretraining.text import (
    Sentences,
    Texts,
    TextSource,
    describe,
    pieces,
    split_sentences,
)
from elmo_gpt_bert.tasks.pretraining.vocabulary import (
    Encoder,
    digest,
    is_of_words,
    reading_rules,
    refuse_characters,
    size_field,
    tokenizer_class,
)
from elmo_gpt_bert.tasks.rows import is_held_out, listed
from elmo_gpt_bert.training.errors import (
    ExistingFileError,
    FolderInUseError,
    InputError,
    LaunchError,
    MissingFileError,
)
from elmo_gpt_bert.training.files import acquire_lock, new_folder, writing


if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedTokenizerBase


TOKENIZER = "tokenizer"
PIECE_SIZE = 1 << 22  # the characters of text that a process gets at once, and a document at most
LOCK_SECONDS = 5  # processes of a run that was killed let go of the lock at once
SENTENCES_AT_ONCE = 1024

Piece = dict[str, list[str]]  # some successive documents of the text: those to train on, and those held out
Result = TypeVar("Result")


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
    evaluates: bool = True,
) -> PreparedText:
    """Prepares the text in a folder, or opens what was prepared there before, which any number of processes may do.

    Args:
        config: of the model; without a `tokenizer`, its type and size decide what is made.
        do_lower_case: for a tokenizer that is made; None leaves it to the tokenizer's class.
        processes: to tokenize with. The files do not depend on their number.
        evaluates: whether the run needs the text of the source's `validation_file`, if it names one.

    Raises:
        ValueError: for another text, tokenizer or setting than the folder was made with, and text that cannot be read.
        OSError: for files that are missing, damaged, or cannot be written, and for a folder that another run prepares.
    """
    refuse_characters(tokenizer)
    folder = Path(folder).resolve()  # a link may lead to another disk
    preparation = _Preparation(folder, source, config, tokenizer, do_lower_case, processes, evaluates)
    if not preparation.is_complete():
        with _locked(folder):
            if not preparation.is_complete():  # as another process may have left it since
                with new_folder(folder) as temporary:
                    preparation.write(temporary)
    return preparation.open()


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keeps other runs from preparing the folder."""
    in_use = FolderInUseError(f"another run prepares {folder}: wait for it, or choose another --corpus_dir")
    with writing(folder, "Choose another --corpus_dir"):
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = acquire_lock(folder.parent, in_use, LOCK_SECONDS, f".{folder.name}.lock")
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()  # a place that cannot be renamed, such as a disk, is an error before the work
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
    evaluates: bool

    def is_complete(self) -> bool:
        """Whether there is a corpus.

        Raises ValueError if it was made with other settings or from other text, and OSError if it is damaged, and for
        a folder with other content.
        """
        if not (self.folder / MANIFEST).is_file():
            if self.folder.is_dir() and any(self.folder.iterdir()):
                problem = "is not empty and holds no corpus: choose another folder"
                raise ExistingFileError(f"--corpus_dir {self.folder} {problem}")
            return False
        manifest = read_manifest(self.folder)
        former = manifest.origin
        try:
            files = describe(self.source, self.source.files())
        except MissingFileError:
            if former["names"] != self._names():
                raise
            files = former["files"]  # the text may be gone
        if files.get("hub", "") == self.source.dataset_name:  # which is out of reach, so its version is not known
            files["hub"] = former["files"].get("hub")
        if (self._settings(manifest), files) != (former["settings"], former["files"]):
            self._refuse("from another text, with another tokenizer or with other settings")
        return True

    def open(self) -> PreparedText:
        manifest = read_manifest(self.folder)
        tokenizer = self._load_tokenizer(self.folder)
        if digest(tokenizer) != manifest.tokenizer:
            self._refuse(f"with another tokenizer than that in {self.folder / TOKENIZER}")
        splits = {split: Corpus.open(self.folder, split) for split in manifest.num_bytes}
        return PreparedText(tokenizer, splits["train"], splits.get("validation"))

    def write(self, folder: Path) -> None:
        """Writes the corpus to an empty folder."""
        files = self.source.files(self.evaluates)
        origin = {"settings": self._settings(), "names": self._names(), "files": describe(self.source, files)}
        texts = self.source.texts(files)
        text = (texts, self.source.share(texts), PIECE_SIZE)
        words, counts, rule = None, None, self.source.sentences
        if self._reads_words:
            counts = count_words(read_pieces(*text, "count words"), self._reader, rule, self.processes)
        if self._makes_tokenizer:
            _save(self._make_tokenizer(partial(training_texts, *text), counts), folder / TOKENIZER)
        tokenizer = self._load_tokenizer(folder)
        if counts is not None:
            words = vocabulary.number_words(tokenizer, counts)
            write_words(folder, words, vocabulary.rows_of_characters(tokenizer, words))
        kind, encoder = token_type(len(words or tokenizer)), Encoder(tokenizer, words)
        num_bytes = write_tokens(folder, read_pieces(*text, "write tokens"), encoder, rule, kind, self.processes)
        if describe(self.source, files) != origin["files"]:
            self._refuse("from a text that changed while it was read")
        for split, name in (("train", "training"), ("validation", "held-out")):
            if split in texts and split not in num_bytes:
                named = listed([*map(str, files.get(split, [self.source.dataset_name]))])
                raise InputError(f"the {name} text, {named}, has no tokens: give another")
        size = len(tokenizer if words is None else tokenizer.targets)
        manifest = Manifest(size, kind.itemsize, digest(tokenizer), num_bytes, sizes_of_files(folder), origin)
        write_manifest(folder, manifest)

    # The tokenizer

    @property
    def _reads_words(self) -> bool:
        return is_of_words(self.config) if self.tokenizer is None else reads_words(self.tokenizer)

    @property
    def _makes_tokenizer(self) -> bool:
        """A tokenizer of words may come without those that the language model predicts."""
        return self.tokenizer is None or (self._reads_words and self.tokenizer.targets is None)

    @property
    def _reader(self) -> PreTrainedTokenizerBase:
        """What finds the words of a text."""
        return self.tokenizer or tokenizer_class(self.config)()

    def _make_tokenizer(
        self, texts: Callable[[], Iterator[list[str]]], counts: Counter[str] | None
    ) -> PreTrainedTokenizerBase:
        """A tokenizer from the training text or, of words, from their counts."""
        if counts is None:
            return vocabulary.train_subwords(self.config, texts, self.do_lower_case)
        words = vocabulary.word_vocabulary(counts, getattr(self.config, size_field(self.config)))
        return vocabulary.word_tokenizer(self.config, words, self._reader)

    def _load_tokenizer(self, folder: Path) -> PreTrainedTokenizerBase:
        if not self._makes_tokenizer:
            return self.tokenizer
        return tokenizer_class(self.config).from_pretrained(folder / TOKENIZER)

    # Whether it is the same text

    def _names(self) -> list[str | None]:
        return [self.source.train_file, self.source.validation_file]

    def _settings(self, manifest: Manifest | None = None) -> dict[str, Any]:
        """What decides the tokens besides the text.

        A model that was trained on the corpus comes with the corpus' tokenizer, which is then no other one.
        """
        settings = dataclasses.asdict(self.source)
        del settings["train_file"], settings["validation_file"]  # a text may move
        if self._makes_tokenizer:
            made = {"class": tokenizer_class(self.config).__name__, "do_lower_case": self.do_lower_case}
            made["size"] = getattr(self.config, size_field(self.config))
            if self._reads_words:
                made |= reading_rules(self._reader) | {"width": self.config.max_characters_per_token}
            return settings | {"tokenizer": made}
        tokenizer = digest(self.tokenizer)
        if manifest is not None and manifest.tokenizer == tokenizer:
            tokenizer = manifest.origin["settings"]["tokenizer"]
        return settings | {"tokenizer": tokenizer}

    def _refuse(self, change: str) -> None:
        remedy = "Undo the change, remove the folder, or choose another --corpus_dir"
        raise InputError(f"the corpus in {self.folder} was prepared {change}. {remedy}")


def _save(tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    try:
        tokenizer.save_pretrained(folder)
    except Exception as error:
        if type(error) is Exception:  # what the library raises where the disk is full
            raise OSError(str(error)) from error
        raise


# Pieces of text


def read_pieces(texts: Mapping[str, Texts], share: float, size: int, work: str) -> Iterator[Piece]:
    """Reads the text of all splits, in pieces of `size` characters and a document at most.

    Args:
        share: of the training documents that is held out, from 0 to 1.
        work: what they are read for, for a progress bar on the terminal.
    """
    with tqdm(desc=work, unit=" characters", unit_scale=True, disable=not sys.stderr.isatty()) as bar:
        for split, read in texts.items():
            for documents in pieces(read(), size):
                piece = {"train": [], "validation": []}
                for text in documents:
                    lines = "\n".join(map(str.strip, text.splitlines()))  # equal documents, also of a file with CR LF
                    piece["validation" if is_held_out(lines, share) else split].append(text)
                yield piece
                bar.update(sum(map(len, documents)))


def training_texts(texts: Mapping[str, Texts], share: float, size: int) -> Iterator[list[str]]:
    """The training documents without those held out, in pieces."""
    for piece in read_pieces({"train": texts["train"]}, share, size, "train the tokenizer"):
        yield piece["train"]


# Work on pieces


def count_words(
    text: Iterable[Piece], tokenizer: PreTrainedTokenizerBase, sentences: Sentences, processes: int
) -> Counter[str]:
    """How often each distinct word is in the training text; 0 for those of held-out text only."""
    counts = Counter()
    for words in compute(partial(_count_words, tokenizer, sentences), text, processes):
        counts.update(words)
    return counts


def _count_words(tokenizer: PreTrainedTokenizerBase, sentences: Sentences, piece: Piece) -> Counter[str]:
    def count(texts: list[str]) -> Counter[str]:
        rows = chain.from_iterable(split_sentences(text, sentences) for text in texts)
        return Counter(chain.from_iterable(map(tokenizer.tokenize, rows)))

    words = count(piece["train"])
    words.update(dict.fromkeys(count(piece["validation"]), 0))
    return words


def write_tokens(
    folder: Path, text: Iterable[Piece], encoder: Encoder, sentences: Sentences, kind: np.dtype, processes: int
) -> dict[str, int]:
    """Writes tokens of this type for each split that has one. Returns the bytes of text of each of them."""
    writers = {}
    with contextlib.ExitStack() as stack:
        for parts in compute(partial(_encode_piece, encoder, sentences, kind), text, processes):
            for split, part in parts.items():
                if split not in writers:
                    writers[split] = stack.enter_context(contextlib.closing(SplitWriter(folder, split)))
                writers[split].append(part)
    return {split: writer.num_bytes for split, writer in writers.items()}


def _encode_piece(encoder: Encoder, sentences: Sentences, kind: np.dtype, piece: Piece) -> dict[str, Tokens]:
    parts = {split: encode(encoder, sentences, kind, texts) for split, texts in piece.items()}
    return {split: part for split, part in parts.items() if len(part.tokens)}


def encode(encoder: Encoder, sentences: Sentences, kind: np.dtype, texts: list[str]) -> Tokens:
    """The documents as tokens. Documents and sentences without a token vanish."""
    documents = [split_sentences(text, sentences) for text in texts]
    separated = (
        encoder.separator + sentence if number else sentence
        for document in documents
        for number, sentence in enumerate(document)
    )
    tokens, lengths = [np.empty(0, kind)], []  # lengths of sentences
    while batch := list(islice(separated, SENTENCES_AT_ONCE)):
        rows = encoder.encode(batch)
        tokens.append(np.fromiter(chain.from_iterable(rows), kind))  # Python's integers take ten times the memory
        lengths += map(len, rows)
    lengths, counts = np.array(lengths, np.int64), [len(document) for document in documents]
    holders = np.repeat(np.arange(len(documents)), counts)  # the document of each sentence
    sizes = np.bincount(holders, lengths, len(documents)).astype(np.int64)  # the tokens of each document
    kept = (document for document, size in zip(documents, sizes, strict=True) if size)
    num_bytes = sum(len(" ".join(document).encode()) for document in kept)
    return Tokens(np.concatenate(tokens), np.cumsum(sizes[sizes > 0]), np.cumsum(lengths[lengths > 0]), num_bytes)


# Processes

_function: Callable | None = None  # of a worker


def compute(function: Callable[[Piece], Result], items: Iterable[Piece], processes: int) -> Iterator[Result]:
    """Yields `function(item)` for each item in its order, computed in this number of processes.

    At most `processes` + 2 items are in memory. Raises RuntimeError if a process was killed.
    """
    if processes <= 1:
        yield from map(function, items)
        return
    # Forked processes start at once and share what the function holds. Elsewhere than on Linux, they are not safe.
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    pool = ProcessPoolExecutor(processes, context, _start, (function,))
    waiting = deque()
    try:
        for item in items:
            waiting.append(pool.submit(_call, item))
            if len(waiting) > processes + 1:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool as error:
        raise LaunchError(
            "a process that read the text was killed, perhaps because memory ran out: start again with fewer "
            "--preprocessing_num_workers"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _start(function: Callable) -> None:
    global _function
    _function = function
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # a thread in each process, not one for each processor
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Ends this process when its parent was killed; otherwise it would wait for work forever."""
    multiprocessing.parent_process().join()
    os._exit(1)


def _call(item: Piece) -> Result:
    return _function(item)
