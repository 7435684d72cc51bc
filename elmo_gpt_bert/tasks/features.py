"""Examples -> features, where each example becomes one row."""

from collections.abc import Callable, Mapping

from datasets import DatasetDict

from elmo_gpt_bert.training.samples import first_examples


def map_examples(
    data: DatasetDict, featurize: Callable[[dict[str, list]], dict[str, list]], limits: Mapping[str, int | None]
) -> DatasetDict:
    """The features that `featurize` makes of batches of the first examples of each split, up to its limit."""
    return DatasetDict(
        {
            split: examples.map(featurize, batched=True, remove_columns=examples.column_names, keep_in_memory=True)
            for split, examples in first_examples(data, limits).items()
        }
    )
