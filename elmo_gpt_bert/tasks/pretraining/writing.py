"""Converts text to tokens in several processes: pieces of text go out, and tokens come back in their order."""

from __future__ import annotations

import contextlib
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
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from tqdm import tqdm

from elmo_gpt_bert.tasks.pretraining.corpus import SplitWriter, Tokens
from elmo_gpt_bert.tasks.pretraining.sources import Texts
from elmo_gpt_bert.tasks.pretraining.text import Sentences, pieces, split_sentences
from elmo_gpt_bert.tasks.pretraining.vocabulary import Encoder
from elmo_gpt_bert.tasks.rows import is_held_out
from elmo_gpt_bert.training.errors import LaunchError, Parameter


if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


SENTENCES_AT_ONCE = 1024
WORKERS = Parameter("preprocessing_num_workers")

Piece = dict[str, list[str]]  # some successive documents of the text: those to train on, and those held out
Result = TypeVar("Result")


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
                    piece["validation" if is_held_out(text, share) else split].append(text)
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
        problem = "a process that read the text was killed, perhaps because memory ran out: start again with fewer "
        raise LaunchError(problem, WORKERS) from error
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
