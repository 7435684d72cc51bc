"""Examples -> features, where each example becomes one row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from elmo_gpt_bert.training.results import first_examples


if TYPE_CHECKING:
    from datasets import DatasetDict


def map_examples(
    data: DatasetDict, featurize: Callable[[dict[str, list]], dict[str, list]], limits: Mapping[str, int | None]
) -> DatasetDict:
    """The features that `featurize` makes of batches of the first examples of each split, up to its limit."""
    return type(data)(
        {
            split: examples.map(featurize, batched=True, remove_columns=examples.column_names, keep_in_memory=True)
            for split, examples in first_examples(data, limits).items()
        }
    )
