"""How much of its data a run takes: --max_*_samples cut a split to its first examples, and every report says so."""

from collections.abc import Mapping
from dataclasses import dataclass

from datasets import Dataset, DatasetDict


# The splits, as metrics.json names them; MNLI's mismatched parts have _mm after that.
NAMES = {"train": "train_samples", "validation": "eval_samples", "test": "predict_samples"}


@dataclass(frozen=True)
class Samples:
    """How many examples of a split a run takes, and of how many.

    `total` is None where the reader stopped early: there are more than the run takes.
    """

    taken: int
    total: int | None

    @property
    def is_cut(self) -> bool:
        """Whether the run takes less than all."""
        return self.taken != self.total

    def __str__(self) -> str:
        """1,000 of 8,551, or 8,551."""
        if self.total is None:
            return f"{self.taken:,} (the rest was not read)"
        return f"{self.taken:,} of {self.total:,}" if self.is_cut else f"{self.taken:,}"

    @property
    def first(self) -> str:
        """What the run takes of a split that is cut, for a sentence: the first 1,000 of 8,551 examples."""
        return f"the first {self.taken:,} examples" if self.total is None else f"the first {self} examples"


def count_samples(
    data: Mapping[str, Dataset], limits: Mapping[str, int | None], totals: Mapping[str, int | None] | None = None
) -> dict[str, Samples]:
    """The numbers of examples of each split of `data`, as it was read; `limits` know no _mm, as in `first_examples`.

    A reader that stops early gives the `totals`: how many examples there are of each split; None: more than it read.
    """
    return {
        split: Samples(_taken(split, rows, limits), len(rows) if totals is None else totals[split])
        for split, rows in data.items()
    }


def first_examples(data: DatasetDict, limits: Mapping[str, int | None]) -> DatasetDict:
    """The splits cut to their `limits`, which know no _mm: both parts of MNLI have the same."""
    return DatasetDict({split: rows.select(range(_taken(split, rows, limits))) for split, rows in data.items()})


def _taken(split: str, rows: Dataset, limits: Mapping[str, int | None]) -> int:
    limit = limits[split.removesuffix("_mm")]
    return len(rows) if limit is None else min(limit, len(rows))


def describe_samples(samples: Mapping[str, Samples]) -> str:
    """For the console: train 1,000 of 8,551, validation 1,043."""
    return ", ".join(f"{split} {taken}" for split, taken in samples.items())


# metrics.json


def flatten_samples(samples: Mapping[str, Samples]) -> dict[str, int]:
    """The entries of metrics.json: train_samples, train_samples_total, eval_samples, ...; no total that is unknown."""
    entries = {}
    for split, numbers in samples.items():
        taken, total = _keys(split)
        entries[taken] = numbers.taken
        if numbers.total is not None:
            entries[total] = numbers.total
    return entries


def read_samples(entries: Mapping[str, float]) -> dict[str, Samples]:
    """What `flatten_samples` has made of these numbers."""
    samples = {}
    for split in (*NAMES, "validation_mm", "test_mm"):
        taken, total = _keys(split)
        if taken in entries:
            samples[split] = Samples(entries[taken], entries.get(total))
    return samples


def _keys(split: str) -> tuple[str, str]:
    """Those of metrics.json: of the examples taken, and of all."""
    name, suffix = NAMES[split.removesuffix("_mm")], "_mm" if split.endswith("_mm") else ""
    return f"{name}{suffix}", f"{name}_total{suffix}"
