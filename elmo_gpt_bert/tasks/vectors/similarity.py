"""Word similarity: whether the cosines of word vectors order pairs of words as people do.

SimLex-999 (Hill et al. 2015, arXiv 1408.3456) asks for similarity, WordSim-353 (Finkelstein et al. 2002) also for
relatedness, so "coffee" and "cup" score low in one and high in the other.
"""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.stats import spearmanr

from elmo_gpt_bert.training.errors import InputError, MissingFileError
from elmo_gpt_bert.training.files import plain


SIMLEX = "SimLex999"  # the name of the column of scores in SimLex-999's own file


@dataclass(frozen=True)
class Similarity:
    """How well cosines agree with the scores of people.

    spearman: the rank correlation over the pairs whose words both have a vector
    spearman_all: over all pairs; one without a vector has the mean of the other cosines
    Both are None where the cosines or the scores do not differ.
    """

    pairs: int
    covered: int
    spearman: float | None
    spearman_all: float | None


def read_pairs(path: Path) -> list[tuple[str, str, float]]:
    """Two words and a score from each line of a file, separated by tabs or commas; a first line may name the columns.

    Raises ValueError for a line without a score, and OSError for a missing file.
    """
    if not path.is_file():
        raise MissingFileError(f"{path}: no such file")
    try:
        lines = [line for line in path.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8: {error}") from error
    rows = [line.split("\t") if "\t" in line else next(csv.reader([line])) for line in lines]
    column, first = 2, 0
    if rows and len(rows[0]) > 2 and not _is_number(rows[0][2]):
        column, first = (rows[0].index(SIMLEX) if SIMLEX in rows[0] else 2), 1
    for row, line in zip(rows[first:], lines[first:], strict=True):
        if len(row) <= column or not _is_number(row[column]):
            raise InputError(f"{path}: the line {plain(line)} must have two words and a score, between tabs or commas")
    if not rows[first:]:
        raise InputError(f"{path} holds no pair of words")
    return [(row[0].strip(), row[1].strip(), float(row[column])) for row in rows[first:]]


def _is_number(text: str) -> bool:
    try:
        return bool(np.isfinite(float(text)))
    except ValueError:
        return False


def look_up(word: str, vectors: Mapping[str, np.ndarray]) -> np.ndarray | None:
    """The vector of the word, else of the word in lower case, as ELMo's task networks find it."""
    return vectors.get(word, vectors.get(word.lower()))


def score(pairs: Sequence[tuple[str, str, float]], vectors: Mapping[str, np.ndarray]) -> Similarity:
    """Compares the cosines of vectors with the scores of pairs."""
    cosines = np.full(len(pairs), np.nan)
    for number, (first, second, _) in enumerate(pairs):
        left, right = look_up(first, vectors), look_up(second, vectors)
        if left is not None and right is not None:
            lengths = np.linalg.norm(left) * np.linalg.norm(right)
            cosines[number] = left @ right / lengths if lengths else 0.0
    gold, covered = np.array([value for *_, value in pairs]), ~np.isnan(cosines)
    mean = cosines[covered].mean() if covered.any() else 0.0
    return Similarity(
        len(pairs),
        int(covered.sum()),
        _spearman(cosines[covered], gold[covered]),
        _spearman(np.where(covered, cosines, mean), gold),
    )


def _spearman(cosines: np.ndarray, gold: np.ndarray) -> float | None:
    if len({*cosines.tolist()}) < 2 or len({*gold.tolist()}) < 2:  # scipy's correlation would be NaN
        return None
    return float(spearmanr(cosines, gold).statistic)
