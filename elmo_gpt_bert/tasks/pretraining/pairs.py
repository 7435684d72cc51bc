"""Pairs of segments for next sentence prediction, as the released `create_pretraining_data.py` draws them.

A row of the partition is a run of sentences of one document. Segment A is its first sentences, up to a random one.
With probability 1/2, and always if the row is a single sentence, segment B begins at a random sentence of another
document; otherwise it is the rest of the row. So at most half of the pairs follow, and none where each document is a
single sentence. The released code puts the rest of a row whose B is random back into the text, so that its later rows
begin elsewhere. Here rows are read in any order, and their boundaries are fixed: such a rest is left out in this
epoch.
"""

import numpy as np

from elmo_gpt_bert.tasks.pretraining.corpus import Corpus, Ends
from elmo_gpt_bert.tasks.pretraining.draws import uniform
from elmo_gpt_bert.tasks.pretraining.objective import Use
from elmo_gpt_bert.tasks.pretraining.rows import Rows, target_lengths


ROWS_AT_MOST = 100_000  # that are counted


def draw_pairs(
    corpus: Corpus, samples: np.ndarray, starts: np.ndarray, stops: np.ndarray, capacity: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Draws two segments for each of B rows, `capacity` tokens in all at most.

    Args:
        samples, starts, stops: (B,) the samples' numbers, and the tokens of their rows.

    Returns:
        (B, 2, 2) the start and stop of each segment in the corpus, and (B,) whether the second one is random.
    """
    split, chance, document, sentence = uniform(samples, 4, seed, Use.PAIRS).T
    first, last = corpus.sentences.find(np.stack([starts, stops - 1]))
    ends_a = first + np.floor(split * (last - first)).astype(np.int64)  # the last sentence of segment A
    middles = np.where(first < last, corpus.sentences[ends_a], stops)
    is_random = (first == last) | (chance < 0.5)
    wanted = target_lengths(starts, capacity) - (middles - starts)
    others = _other_documents(corpus, starts, document)
    random_starts, random_stops = _random_sentences(corpus, others, sentence, wanted, capacity)
    starts_b, stops_b = np.where(is_random, (random_starts, random_stops), (middles, stops))
    segments = np.stack([starts, middles, starts_b, stops_b], axis=1).reshape(-1, 2, 2)
    return truncate_pairs(segments, capacity, samples, seed), is_random


def share_of_following(corpus: Corpus, rows: Rows) -> float:
    """The expected share of pairs whose second segment follows the first: half of the rows of several sentences."""
    starts, stops = rows.bounds(np.arange(0, len(rows), 1 + len(rows) // ROWS_AT_MOST))
    first, last = corpus.sentences.find(np.stack([starts, stops - 1]))
    return float((first < last).mean()) / 2


def _other_documents(corpus: Corpus, starts: np.ndarray, draws: np.ndarray) -> np.ndarray:
    """For each row, a document other than its own, by one random number each."""
    others = np.floor(draws * (len(corpus.documents) - 1)).astype(np.int64)
    return others + (others >= corpus.documents.find(starts))


def _random_sentences(
    corpus: Corpus, documents: np.ndarray, draws: np.ndarray, wanted: np.ndarray, capacity: int
) -> tuple[np.ndarray, np.ndarray]:
    """Sentences from a random one of each document on: until they reach `wanted` tokens, or the document ends."""
    document_stops = corpus.documents[documents]
    first, last = corpus.sentences.find(np.stack([_starts(corpus.documents, documents), document_stops - 1]))
    starts = _starts(corpus.sentences, first + np.floor(draws * (last + 1 - first)).astype(np.int64))
    reached = np.minimum(starts + np.maximum(wanted, 1), document_stops) - 1
    stops = corpus.sentences[corpus.sentences.find(reached)]
    return starts, np.minimum(stops, starts + capacity)


def _starts(units: Ends, numbers: np.ndarray) -> np.ndarray:
    """The first token of each unit."""
    return np.where(numbers > 0, units[np.maximum(numbers - 1, 0)], 0)


def truncate_pairs(segments: np.ndarray, capacity: int, samples: np.ndarray, seed: int) -> np.ndarray:
    """(B, 2, 2) starts and stops -> those of pairs of `capacity` tokens at most.

    The rule of the released `truncate_seq_pair`: while a pair is too long, the longer segment, or the second of two
    that are equal, loses a token at its front or its back, with the same probability.
    """
    first, second = np.diff(segments)[..., 0].T
    kept = np.minimum(first, np.maximum(capacity - second, -(-capacity // 2)))
    excess = np.stack([first - kept, second - np.minimum(second, capacity - kept)], axis=1)  # (B, 2)
    columns = np.arange(excess.max(initial=0))
    fronts = np.empty_like(excess)
    for number in range(2):
        draws = uniform(samples, len(columns), seed, Use.CUTS, number) < 0.5
        fronts[:, number] = (draws & (columns < excess[:, number, None])).sum(1)
    return np.stack([segments[..., 0] + fronts, segments[..., 1] - (excess - fronts)], axis=-1)
