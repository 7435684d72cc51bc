"""How much of its data a run takes: --max_*_samples cut a split to its first examples, and every report says so.

metrics.json has of each split that the run reads, with _mm in the end for MNLI's mismatched parts:

    train_samples, eval_samples, predict_samples                      how many examples the run takes
    train_samples_total, eval_samples_total, predict_samples_total    how many there are; absent where the reader
                                                                      stopped early and does not know
"""

from collections.abc import Iterable, Mapping

from datasets import Dataset, DatasetDict


NAMES = {"train": "train_samples", "validation": "eval_samples", "test": "predict_samples"}


def first_examples(data: DatasetDict, limits: Mapping[str, int | None]) -> DatasetDict:
    """The splits cut to their `limits`, which know no _mm: both parts of MNLI have the same."""
    return DatasetDict({split: rows.select(range(_taken(split, rows, limits))) for split, rows in data.items()})


def count_samples(
    data: Mapping[str, Dataset], limits: Mapping[str, int | None], totals: Mapping[str, int | None] | None = None
) -> dict[str, int]:
    """What metrics.json says of these splits, as they were read.

    A reader that stops early gives the `totals`: how many examples there are of each split; None: more than it read.
    """
    counts = {}
    for split, rows in data.items():
        taken, total = _keys(split)
        counts[taken] = _taken(split, rows, limits)
        number = len(rows) if totals is None else totals[split]
        if number is not None:
            counts[total] = number
    return counts


def is_cut(counts: Mapping[str, float], split: str) -> bool:
    """Whether a run, of which `counts` holds the numbers, took less than all of a split."""
    taken, total = _keys(split)
    return taken in counts and counts[taken] != counts.get(total)


def sizes(counts: Mapping[str, float], splits: Iterable[str]) -> str:
    """For the console: train 1,000 of 8,551, validation 1,043."""
    return ", ".join(f"{split} {extent(counts, split)}" for split in splits)


def extent(counts: Mapping[str, float], split: str) -> str:
    """How many examples of a split a run took, and of how many: 1,000 of 8,551, or 8,551."""
    taken, total = _keys(split)
    if total not in counts:
        return f"{counts[taken]:,} (the rest was not read)"
    return f"{counts[taken]:,} of {counts[total]:,}" if is_cut(counts, split) else f"{counts[taken]:,}"


def first_of(counts: Mapping[str, float], split: str) -> str:
    """What a run took of a split that is cut, for a sentence: the first 1,000 of 8,551 examples."""
    taken, total = _keys(split)
    return f"the first {extent(counts, split) if total in counts else f'{counts[taken]:,}'} examples"


def _taken(split: str, rows: Dataset, limits: Mapping[str, int | None]) -> int:
    limit = limits[split.removesuffix("_mm")]
    return len(rows) if limit is None else min(limit, len(rows))


def _keys(split: str) -> tuple[str, str]:
    """Those of metrics.json: of the examples taken, and of all."""
    name, suffix = NAMES[split.removesuffix("_mm")], "_mm" if split.endswith("_mm") else ""
    return f"{name}{suffix}", f"{name}_total{suffix}"
