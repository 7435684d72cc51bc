"""A corpus of any size that takes no space: its tokens and ends are computed."""

import numpy as np


class FakeEnds:
    """Units of one length."""

    def __init__(self, num_tokens: int, length: int):
        self.count, self.length = num_tokens // length, length

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, numbers: np.ndarray) -> np.ndarray:
        return (np.asarray(numbers) + 1) * self.length

    def find(self, offsets: np.ndarray) -> np.ndarray:
        return np.asarray(offsets) // self.length


class FakeCorpus:
    """Documents of 1000 tokens, in sentences of 10."""

    def __init__(self, num_tokens: int):
        self.num_tokens = num_tokens
        self.documents, self.sentences = FakeEnds(num_tokens, 1000), FakeEnds(num_tokens, 10)

    def read(self, start: int, stop: int) -> np.ndarray:
        return np.arange(start, stop) % 50 + 10
