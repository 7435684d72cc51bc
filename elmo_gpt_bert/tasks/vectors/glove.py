"""GloVe (Pennington et al. 2014, aclanthology.org/D14-1162), section 3: counts of words that are near each other, and
word vectors whose products are the logarithms of these counts.

What differs from the released code: it updates the parameters after each count; here, an update sums the gradients of
many counts, as products of matrices, so that numpy and scipy do the work. Its AdaGrad multiplies gradients by the
learning rate before it adds up their squares; here, the squares are those of the gradients. Both sums begin with 1.
Gradients are not clipped.

Memory: a pair of words that are neighbours anywhere takes 16 bytes while the vectors are trained, and about 50 while
the pairs are divided into batches. With a window of 5, there are about as many pairs as words in the text.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.sparse import coo_array, csr_array

from elmo_gpt_bert.tasks.vectors.data import MIN_COUNT, NumberedText
from elmo_gpt_bert.training.errors import InputError


BLOCK = 1 << 20  # words whose neighbours are counted at a time
X_MAX, ALPHA = 100.0, 0.75  # of the weighting function, section 3 and figure 1
BATCH = 1 << 14  # pairs of words of an update
FIRST_SUM = 1.0  # of AdaGrad's squares: from 0, rare words would learn their few counts by heart
ROWS_AT_ONCE = 4096  # pairs whose vectors are multiplied at a time: both fit into a processor's cache


def count_neighbours(text: NumberedText, window: int) -> csr_array:
    """(V, V) float32, symmetric: how often two words stand within `window` words of each other in a sentence.

    Two words at distance d count 1/d (section 4.2).
    """
    size, lengths = len(text.words), np.diff(text.ends, prepend=0)
    sentence = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)
    upper = csr_array((size, size), dtype=np.float32)
    for begin in range(0, len(text.numbers), BLOCK):
        lows, highs, weights = [], [], []
        for distance in range(1, window + 1):
            end = max(begin, min(begin + BLOCK, len(text.numbers) - distance))
            left, right = slice(begin, end), slice(begin + distance, end + distance)
            together = sentence[left] == sentence[right]
            first, second = text.numbers[left][together], text.numbers[right][together]
            lows.append(np.minimum(first, second))
            highs.append(np.maximum(first, second))
            weights.append(np.full(len(first), 1 / distance, np.float32))
        places = (np.concatenate(lows), np.concatenate(highs))
        upper = upper + coo_array((np.concatenate(weights), places), shape=(size, size)).tocsr()
    return (upper + upper.T).tocsr()


@dataclass(frozen=True)
class Batch:
    """B pairs of words that one update reads, sorted by rows, with the factors of equation 8.

    words, contexts: the numbers of the distinct words in the rows and in the columns
    rows, columns: (B,) the places of each pair's words in these
    starts: the place of each row's first pair, and B
    """

    words: np.ndarray
    contexts: np.ndarray
    rows: np.ndarray
    columns: np.ndarray
    starts: np.ndarray
    logs: np.ndarray  # (B,) log X
    weights: np.ndarray  # (B,) f(X)


def make_batches(counts: csr_array, pairs: int, rng: np.random.Generator) -> list[Batch]:
    """All counts above 0 in batches of about this many, each pair of words in a random one."""
    entries = counts.tocoo()
    numbers = rng.integers(0, max(1, round(entries.nnz / pairs)), entries.nnz, dtype=np.uint32)
    order = np.argsort(numbers, kind="stable")  # so that the rows of a batch stay sorted
    ends = np.cumsum(np.bincount(numbers))
    batches = []
    for members in np.split(order, ends[:-1]):
        words, starts, rows = np.unique(entries.row[members], return_index=True, return_inverse=True)
        contexts, columns = np.unique(entries.col[members], return_inverse=True)
        values = entries.data[members]
        weights = np.minimum(1, (values / X_MAX) ** ALPHA).astype(np.float32)
        places = [places.astype(np.int32) for places in (rows, columns, np.append(starts, len(members)))]
        batches.append(Batch(words, contexts, *places, np.log(values), weights))
    return batches


@dataclass
class Side:
    """The vectors and biases of words, or of words as context, with AdaGrad's sums of squared gradients."""

    vectors: np.ndarray  # (V, size)
    biases: np.ndarray  # (V,)

    def __post_init__(self) -> None:
        self.sums = [np.full_like(parameters, FIRST_SUM) for parameters in (self.vectors, self.biases)]

    def update(self, rows: np.ndarray, gradients: tuple[np.ndarray, np.ndarray], learning_rate: float) -> None:
        """A step of AdaGrad (Duchi et al. 2011) for these rows."""
        for parameters, squares, gradient in zip((self.vectors, self.biases), self.sums, gradients, strict=True):
            total = squares[rows] + gradient * gradient
            squares[rows] = total
            parameters[rows] -= learning_rate * gradient / np.sqrt(total)


class Glove:
    """The parameters of equation 8, and an update from a batch."""

    def __init__(self, vocab_size: int, vector_size: int, rng: np.random.Generator):
        def draw(*shape: int) -> np.ndarray:
            return (rng.random(shape, np.float32) - 0.5) / vector_size

        self.words, self.contexts = (Side(draw(vocab_size, vector_size), draw(vocab_size)) for _ in range(2))

    @property
    def vectors(self) -> np.ndarray:
        """(V, size): the sums of both vectors of each word (section 4.2)."""
        return self.words.vectors + self.contexts.vectors

    def update(self, batch: Batch, learning_rate: float) -> float:
        """Lowers the loss of the batch, half its weighted squared errors, and returns what it was before."""
        words, contexts = self.words.vectors[batch.words], self.contexts.vectors[batch.contexts]
        biases = self.words.biases[batch.words][batch.rows] + self.contexts.biases[batch.contexts][batch.columns]
        errors = _products(words, contexts, batch) + biases - batch.logs
        slopes = batch.weights * errors  # (B,) of the loss by the errors
        matrix = csr_array((slopes, batch.columns, batch.starts), shape=(len(words), len(contexts)))
        self.words.update(batch.words, (matrix @ contexts, matrix.sum(1)), learning_rate)
        self.contexts.update(batch.contexts, (matrix.T @ words, matrix.sum(0)), learning_rate)
        return float(slopes @ errors) / 2


def _products(words: np.ndarray, contexts: np.ndarray, batch: Batch) -> np.ndarray:
    """(B,) the product of the two vectors of each pair."""
    products = np.empty(len(batch.rows), np.float32)
    for begin in range(0, len(products), ROWS_AT_ONCE):
        piece = slice(begin, begin + ROWS_AT_ONCE)
        np.einsum("ij,ij->i", words[batch.rows[piece]], contexts[batch.columns[piece]], out=products[piece])
    return products


def train_glove(
    text: NumberedText,
    vector_size: int,
    window: int,
    epochs: int,
    learning_rate: float,
    seed: int,
    report: Callable[[str], None],
    batch_size: int = BATCH,
) -> np.ndarray:
    """(V, size) float32: the vectors of the vocabulary. Equal arguments give equal vectors.

    `report` receives a line for the counts, and one with the mean loss after each epoch.

    Raises:
        ValueError: for a text without two neighbouring words.
    """
    rng = np.random.default_rng(seed)
    counts = count_neighbours(text, window)
    if not counts.nnz:
        raise InputError("no two words of the text are neighbours: give more text, or a lower ", MIN_COUNT)
    report(f"{counts.nnz:,} pairs of neighbouring words")
    batches = make_batches(counts, batch_size, rng)
    model = Glove(len(text.words), vector_size, rng)
    for epoch in range(1, epochs + 1):
        loss = sum(model.update(batches[number], learning_rate) for number in rng.permutation(len(batches)))
        report(f"epoch {epoch}/{epochs}: loss {loss / counts.nnz:.5f}")
    return model.vectors
