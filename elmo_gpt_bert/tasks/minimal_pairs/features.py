"""Pairs of sentences -> the distinct rows that a scorer reads, and which two rows each pair has."""

import numpy as np
from datasets import Dataset

from elmo_gpt_bert.tasks.minimal_pairs.data import SENTENCES
from elmo_gpt_bert.tasks.minimal_pairs.scoring import Scorer
from elmo_gpt_bert.training.errors import InputError


AT_ONCE = 10_000  # sentences that are tokenised in one call


def make_features(data: Dataset, scorer: Scorer, longest: int | None) -> tuple[Dataset, np.ndarray]:
    """The distinct rows as features, and their numbers for each pair, (pairs, 2).

    A row that occurs twice is scored once, so two sentences of the same tokens have the same score to the last bit.
    Raises ValueError for a sentence of more than `longest` tokens, and for one without a token to score.
    """
    sentences = [sentence for pair in zip(*(data[name][:] for name in SENTENCES), strict=True) for sentence in pair]
    numbers: dict[tuple, int] = {}  # the content of a row -> its number
    rows, row_of = [], []
    for start in range(0, len(sentences), AT_ONCE):
        for row in scorer.encode(sentences[start : start + AT_ONCE]):
            _check(row, scorer, longest, data, len(row_of))
            key = tuple(map(tuple, row.values()))
            if key not in numbers:
                numbers[key] = len(rows)
                rows.append(row)
            row_of.append(numbers[key])
    features = Dataset.from_dict({name: [row[name] for row in rows] for name in rows[0]})
    return features, np.array(row_of).reshape(-1, 2)


def _check(row: dict[str, list], scorer: Scorer, longest: int | None, data: Dataset, number: int) -> None:
    """Raises ValueError if the row of sentence `number` cannot be scored."""
    pair, column = divmod(number, 2)
    length, scored = len(next(iter(row.values()))), scorer.count_scored(row)
    if longest is not None and length > longest:
        problem = f"has {length} tokens, but the model reads at most {longest}"
    elif scored < 1:
        problem = f"has {length} token{'s' * (length != 1)}, none of which can be scored: leave the pair out"
    else:
        return
    raise InputError(f"{data[pair]['place']}: {SENTENCES[column]} {problem}")
