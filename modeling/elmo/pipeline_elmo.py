# Copyright 2026 the authors of this model zoo.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""The token classification pipeline for ELMo. In transformers' own, a word is one id; here it is a row of ids.

pipeline("token-classification", model=..., tokenizer=..., pipeline_class=ElmoTokenClassificationPipeline)
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from transformers import TokenClassificationPipeline
from transformers.pipelines.token_classification import AggregationStrategy


class ElmoTokenClassificationPipeline(TokenClassificationPipeline):
    """`TokenClassificationPipeline` with `ElmoTokenizer`: the same calls return the same kind of dictionaries.

    A token is a word. `start` and `end` are its place in the text; for a list of words (`is_split_into_words=True`),
    in the text of these words joined by `delimiter`. Since words have no parts, the strategies "simple", "first",
    "average" and "max" are the same. Entities in BIOES are grouped like those in IOB2.
    """

    def check_model_type(self, supported_models: Any) -> None:
        """Does nothing: transformers would report an error for models that are not its own."""

    def _sanitize_parameters(
        self,
        ignore_labels: list[str] | None = None,
        aggregation_strategy: AggregationStrategy | str | None = None,
        is_split_into_words: bool = False,
        delimiter: str | None = None,
    ) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        if aggregation_strategy is not None and AggregationStrategy(aggregation_strategy) != AggregationStrategy.NONE:
            aggregation_strategy = AggregationStrategy.SIMPLE
        return super()._sanitize_parameters(
            ignore_labels=ignore_labels,
            aggregation_strategy=aggregation_strategy,
            is_split_into_words=is_split_into_words,
            delimiter=delimiter,
        )

    def preprocess(
        self, sentence: str | list[str], is_split_into_words: bool = False, delimiter: str = " "
    ) -> Iterator[dict[str, Any]]:
        if isinstance(sentence, str) == is_split_into_words:
            expected = "a list of words" if is_split_into_words else "a string (is_split_into_words=True takes words)"
            raise ValueError(f"a sentence must be {expected}, not {sentence!r:.80}")
        inputs = self.tokenizer(
            sentence,
            is_split_into_words=is_split_into_words,
            truncation=True,
            return_tensors="pt",
            return_special_tokens_mask=True,
            return_offsets_mapping=True,
        )
        if is_split_into_words:
            begins = np.cumsum([0, *(len(word) + len(delimiter) for word in sentence)])
            inputs["offset_mapping"] += torch.tensor(begins[inputs.word_ids()])[:, None]
            sentence = delimiter.join(sentence)
        yield {**inputs, "sentence": sentence, "is_last": True}

    def gather_pre_entities(
        self,
        sentence: str,
        input_ids: torch.Tensor,
        scores: np.ndarray,
        offset_mapping: torch.Tensor,
        special_tokens_mask: np.ndarray,
        aggregation_strategy: AggregationStrategy,
        word_ids: None = None,
        word_to_chars_map: None = None,
    ) -> list[dict[str, Any]]:
        """One dictionary per word, with the (classes,) scores of its tags. `special_tokens_mask` is 1 at padding."""
        rows = zip(scores, offset_mapping.tolist(), special_tokens_mask, strict=True)
        return [
            {"word": sentence[start:end], "scores": word_scores, "start": start, "end": end, "index": index}
            for index, (word_scores, (start, end), padding) in enumerate(rows)
            if not padding
        ]

    def get_tag(self, entity_name: str) -> tuple[str, str]:
        """B or I, and the type. In BIOES, S begins an entity as B does, and E continues it as I does."""
        first = {"S-": "B-", "E-": "I-"}.get(entity_name[:2])
        return super().get_tag(first + entity_name[2:] if first else entity_name)


__all__ = ["ElmoTokenClassificationPipeline"]
