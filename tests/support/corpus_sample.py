"""Small prepared corpora on disk, made from tokens in memory."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from elmo_gpt_bert.tasks.pretraining.corpus import (
    MANIFEST,
    Corpus,
    Manifest,
    SplitWriter,
    Tokens,
    sizes_of_files,
    token_type,
    write_manifest,
    write_words,
)


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
    split: str = "train",
) -> Corpus:
    """Writes a corpus of one split, and opens it. With the rows of `characters`, its tokens are words."""
    kind = token_type(vocab_size if characters is None else len(characters))
    folder.mkdir(exist_ok=True)
    (folder / MANIFEST).unlink(missing_ok=True)  # of another corpus
    writer = SplitWriter(folder, split)
    for document in documents:
        ends = np.cumsum([len(sentence) for sentence in document])
        text = " ".join(str(token) for sentence in document for token in sentence)
        writer.append(Tokens(np.concatenate(document).astype(kind), ends[-1:], ends, len(text)))
    writer.close()
    if characters is not None:
        write_words(folder, map(str, range(len(characters))), characters)
    sizes = vocab_size, kind.itemsize
    write_manifest(folder, Manifest(*sizes, "a tokenizer", {split: writer.num_bytes}, sizes_of_files(folder)))
    return Corpus.open(folder, split)
