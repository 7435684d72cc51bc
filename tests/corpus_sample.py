"""Small prepared corpora on disk, made from tokens in memory."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from elmo_gpt_bert.tasks.pretraining.corpus import Corpus
from elmo_gpt_bert.tasks.pretraining.shards import Manifest, write_characters, write_manifest, write_shard


Documents = Sequence[Sequence[Sequence[int]]]


def random_documents(count: int, vocab_size: int, first: int = 0, longest: int = 7, seed: int = 0) -> Documents:
    """Documents of 1 to 4 sentences of 1 to `longest` tokens from `first` to `vocab_size` - 1."""
    rng = np.random.default_rng(seed)
    return [
        [rng.integers(first, vocab_size, rng.integers(1, longest + 1)).tolist() for _ in range(rng.integers(1, 5))]
        for _ in range(count)
    ]


def write_corpus(
    folder: Path,
    documents: Documents,
    vocab_size: int,
    characters: np.ndarray | None = None,
    documents_per_shard: int = 5,
    split: str = "train",
) -> Corpus:
    """Writes a corpus of one split, and opens it. With the rows of `characters`, its tokens are words."""
    numbers = vocab_size if characters is None else len(characters)
    pieces = [documents[at : at + documents_per_shard] for at in range(0, len(documents), documents_per_shard)]
    shards = []
    for number, piece in enumerate(pieces):
        text = [" ".join(str(token) for sentence in document for token in sentence) for document in piece]
        shards.append(write_shard(folder, f"{split}/{number:05d}", piece, numbers, text))
    words = None if characters is None else write_characters(folder, characters)
    write_manifest(folder, Manifest(vocab_size, "a tokenizer", {split: shards}, words))
    return Corpus.open(folder, split)
