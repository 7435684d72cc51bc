"""How many examples of each split a run uses: --max_*_samples limits it to the first ones, and reports say so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict


# split -> its entry in metrics.json. The entries of MNLI's mismatched parts end in _mm.
NAMES = {"train": "train_samples", "validation": "eval_samples", "test": "predict_samples"}


@dataclass(frozen=True)
class Samples:
    """How many examples of a split a run uses, and how many there are.

    `total` is None if the reader stopped early, so that there are more examples than the run uses.
    """

    taken: int
    total: int | None

    @property
    def is_cut(self) -> bool:
        """Whether the run uses only some of the examples."""
        return self.taken != self.total

    def __str__(self) -> str:
        """As in "1,000 of 8,551", or "8,551"."""
        if self.total is None:
            return f"{self.taken:,} (the rest was not read)"
        return f"{self.taken:,} of {self.total:,}" if self.is_cut else f"{self.taken:,}"

    @property
    def first(self) -> str:
        """The examples that the run uses of a split that is cut, as in "the first 1,000 of 8,551 examples"."""
        return f"the first {self.taken:,} examples" if self.total is None else f"the first {self} examples"


def count_samples(
    data: Mapping[str, Dataset], limits: Mapping[str, int | None], totals: Mapping[str, int | None] | None = None
) -> dict[str, Samples]:
    """Counts the examples of each split of `data`, as it was read, and those that the run uses.

    The keys of `limits` are the splits without _mm, as in `first_examples`. A reader that may stop early gives the
    `totals` of all splits, with None for a split that it has not read to the end.
    """
    return {
        split: Samples(_limited(split, examples, limits), len(examples) if totals is None else totals[split])
        for split, examples in data.items()
    }


def first_examples(data: DatasetDict, limits: Mapping[str, int | None]) -> DatasetDict:
    """The splits cut to their `limits`, whose keys are the splits without _mm: both parts of MNLI have one limit."""
    return type(data)(
        {split: examples.select(range(_limited(split, examples, limits))) for split, examples in data.items()}
    )


def _limited(split: str, examples: Dataset, limits: Mapping[str, int | None]) -> int:
    limit = limits[split.removesuffix("_mm")]
    return len(examples) if limit is None else min(limit, len(examples))


def describe_samples(samples: Mapping[str, Samples]) -> str:
    """For the console, as in "train 1,000 of 8,551, validation 1,043"."""
    return ", ".join(f"{split} {numbers}" for split, numbers in samples.items())


# metrics.json


def flatten_samples(samples: Mapping[str, Samples]) -> dict[str, int]:
    """The entries of metrics.json: train_samples, train_samples_total, eval_samples, ... without unknown totals."""
    entries = {}
    for split, numbers in samples.items():
        taken, total = _keys(split)
        entries[taken] = numbers.taken
        if numbers.total is not None:
            entries[total] = numbers.total
    return entries


def read_samples(entries: Mapping[str, float]) -> dict[str, Samples]:
    """The inverse of `flatten_samples`; there may be other entries."""
    samples = {}
    for split in (*NAMES, "validation_mm", "test_mm"):
        taken, total = _keys(split)
        if taken in entries:
            samples[split] = Samples(entries[taken], entries.get(total))
    return samples


def _keys(split: str) -> tuple[str, str]:
    """The keys in metrics.json of the number of examples used and of the total."""
    name, suffix = NAMES[split.removesuffix("_mm")], "_mm" if split.endswith("_mm") else ""
    return f"{name}{suffix}", f"{name}_total{suffix}"
