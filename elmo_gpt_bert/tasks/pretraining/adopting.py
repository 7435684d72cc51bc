"""Shards that datatrove wrote, as a corpus: they stay where they are, and the manifest points to them.

They have no ends of sentences, and no text to count the bytes of. A token that datatrove appended to each document,
such as <|endoftext|>, stays in the document.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from elmo_gpt_bert.tasks.language_models import reads_words
from elmo_gpt_bert.tasks.pretraining.shards import DOCUMENTS, ENDS, FileRecord, Shard
from elmo_gpt_bert.tasks.pretraining.vocabulary import TOKENIZER
from elmo_gpt_bert.training.errors import FileError, InputError, MissingFileError
from elmo_gpt_bert.training.files import file_digest


if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def are_shards(files: Mapping[str, list[Path]]) -> bool:
    """Whether the files are shards rather than text. Raises ValueError for some of each."""
    kinds = {path.suffix == ".ds" for paths in files.values() for path in paths}
    if len(kinds) > 1:
        raise InputError("some of the files are shards (.ds) and others are text: prepare the text alone")
    return kinds == {True}


def adopt_shards(files: Mapping[str, list[Path]], tokenizer: PreTrainedTokenizerBase | None) -> dict[str, list[Shard]]:
    """The shards of each split, by absolute paths.

    Raises ValueError without a tokenizer, or with one that has fewer tokens, and OSError for a damaged shard.
    """
    if tokenizer is None or reads_words(tokenizer):
        raise InputError("shards hold the subwords of a tokenizer: give it as ", TOKENIZER)
    return {split: [_adopt(path.resolve(), tokenizer) for path in paths] for split, paths in files.items()}


def _adopt(path: Path, tokenizer: PreTrainedTokenizerBase) -> Shard:
    index = path.with_name(path.name + DOCUMENTS)
    if not index.is_file():
        raise MissingFileError(f"{path} has no {index.name} with the ends of its documents: copy it too")
    ends = np.fromfile(index, ENDS)
    count, size = int(ends[-1]) if len(ends) else 0, path.stat().st_size
    if size not in (2 * count, 4 * count) or count == 0 or (np.diff(ends.astype(np.int64)) < 0).any():
        problem = f"it has {size} bytes for the {count} tokens of its index"
        raise FileError(f"{path} is empty or damaged: {problem}. Write it again with datatrove")
    token_size = size // count
    largest = int(np.memmap(path, f"<u{token_size}", mode="r").max())
    if largest >= len(tokenizer):
        raise InputError(
            f"{path} has the token {largest}, the tokenizer only {len(tokenizer)}: give the one that made it, ",
            TOKENIZER,
        )
    files = {
        suffix: FileRecord(file.stat().st_size, file_digest(file)) for suffix, file in (("", path), (DOCUMENTS, index))
    }
    return Shard(str(path), token_size, count, len(ends), None, None, None, files)
