"""What makers of features share: a row of each example, which words of a text a model knows, which model it is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import chain, islice
from typing import TYPE_CHECKING

import numpy as np
from accelerate import PartialState
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoModelForPreTraining

from elmo_gpt_bert.training.arguments import ModelSource
from elmo_gpt_bert.training.errors import InputError
from elmo_gpt_bert.training.loading import has_head
from elmo_gpt_bert.training.results import first_examples


if TYPE_CHECKING:
    from datasets import DatasetDict
    from transformers import PreTrainedConfig, PreTrainedTokenizerBase


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


def count_up(counts: np.ndarray) -> np.ndarray:
    """0, 1, ..., count - 1 for each count, one range after the other."""
    return np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)


def reads_words(tokenizer: PreTrainedTokenizerBase | type | None) -> bool:
    """Whether the tokenizer, or its class, is one of words rather than of subwords."""
    return hasattr(tokenizer, "word_targets")


def report_known_words(split: str, texts: Iterable[str | list[str]], tokenizer: PreTrainedTokenizerBase) -> None:
    """Says of how many words of a split's first texts, which may be split into words, the model has vectors.

    Only models with such vectors need it: those of ELMoForManyLangs.
    """
    if getattr(tokenizer, "has_lexicon", False):
        texts = islice(texts, 10_000)
        words = (tokenizer.tokenize(text) if isinstance(text, str) else text for text in texts)
        _, line = tokenizer.known_words(chain.from_iterable(words))
        PartialState().print(f"{split}: {line}")


def candidate_heads(config: PreTrainedConfig, words: bool) -> list[type]:
    """The Auto classes of the language models that the configuration may have, the likeliest first.

    A model that reads `words` is a biLM. Of the others, a model that is configured as a decoder is causal, if there is
    such a head, and any other is masked.
    """
    if words:
        return [AutoModelForPreTraining]
    heads = [AutoModelForMaskedLM, AutoModelForCausalLM]
    return heads[::-1] if getattr(config, "is_decoder", False) else heads


def choose_head(config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase, source: ModelSource) -> type:
    """The Auto class of the model: the first of `candidate_heads` that it has. Raises ValueError if it has none."""
    heads = candidate_heads(config, reads_words(tokenizer))
    for head in heads:
        if has_head(head, config, source):
            return head
    names = " or ".join(head.__name__ for head in heads)
    raise InputError(f"{source.model_name_or_path}: {type(config).__name__} is no language model, it has no {names}")
