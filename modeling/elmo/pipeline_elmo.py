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
"""The pipelines that ELMo's models need, because transformers' own read subwords.

pipeline("token-classification", model=..., tokenizer=..., pipeline_class=ElmoTokenClassificationPipeline)
pipeline("fill-mask", model=..., tokenizer=..., pipeline_class=ElmoFillMaskPipeline)
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from transformers import Pipeline, TokenClassificationPipeline
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


class ElmoFillMaskPipeline(Pipeline):
    """The most probable words for a place in a text, by the biLM of `ElmoForPreTraining`.

    The forward direction has read the words before the place, the backward direction those behind it. The score of a
    word is the product of the probabilities that they give it, over the sum of all products. Neither direction sees
    both sides, so this is weaker than a masked language model.

    The calls and the dictionaries are those of `FillMaskPipeline`: "score", "token" (the number of the word in
    vocab.txt), "token_str" and "sequence", the words joined by spaces. <S>, </S> and <UNK> are no answers.

        fill("The cat [MASK] on the mat .", top_k=5)
        fill([["The", "cat", "[MASK]", "."]], targets=["sat", "slept"])  # a list of texts, or of lists of words

    Args of a call:
        top_k (`int`, *optional*, defaults to 5): the number of words.
        targets (`list[str]`, *optional*): the only words to score, whose scores then sum to 1.
        mask (`str`, *optional*, defaults to "[MASK]"): what stands in the place of the word.
    """

    def check_model_type(self, supported_models: Any) -> None:
        """Does nothing: transformers would report an error for models that are not its own."""

    def _sanitize_parameters(
        self, top_k: int | None = None, targets: Sequence[str] | str | None = None, mask: str | None = None
    ) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        if self.tokenizer.targets is None:
            raise ValueError("the tokenizer has no vocab.txt, so the language model's words have no names")
        if top_k is not None and top_k < 1:
            raise ValueError(f"top_k={top_k}: ask for one word or more")
        if mask == "":
            raise ValueError('mask="": name what stands in the place of the word, such as "[MASK]"')
        targets = [targets] if isinstance(targets, str) else targets
        # The first three words are <S>, </S> and <UNK>.
        unknown = [word for word in targets or () if self.tokenizer.targets.get(word, 0) < 3]
        if unknown or (targets is not None and not targets):
            raise ValueError(f"targets={targets!r:.80}: {unknown[:5]} are not among the language model's words")
        given = {"top_k": top_k, "targets": targets}
        after = {name: value for name, value in given.items() if value is not None}
        return {} if mask is None else {"mask": mask}, {}, after

    def preprocess(self, sentence: str | list[str], mask: str = "[MASK]") -> dict[str, Any]:
        if isinstance(sentence, str):  # `tokenize` would split the mask
            pieces = [self.tokenizer.tokenize(piece) for piece in sentence.split(mask)]
        else:
            places = [place for place, word in enumerate(sentence) if word == mask]
            ends = zip([-1, *places], [*places, len(sentence)], strict=True)
            pieces = [sentence[start + 1 : end] for start, end in ends]
        if len(pieces) != 2:
            raise ValueError(f"{sentence!r:.80} has {mask} {len(pieces) - 1} times, but must have it once")
        words = [*pieces[0], mask, *pieces[1]]
        inputs = self.tokenizer(words, is_split_into_words=True, return_tensors="pt")
        return {**inputs, "place": torch.tensor([[len(pieces[0])]]), "words": words}

    def _forward(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """The scores (B, 2, V) of both directions for each of the B places."""
        place, words = inputs.pop("place"), inputs.pop("words")
        outputs = self.model(**inputs, return_dict=True)
        real = inputs["attention_mask"]
        here = (real != 0) & (real.cumsum(1) == place.to(real.device) + 1)  # padding may be on either side
        scores = torch.stack([outputs.logits[here], outputs.reverse_logits[here]], 1)
        return {"scores": scores, "place": place, "words": words}

    def postprocess(
        self, outputs: dict[str, Any], top_k: int = 5, targets: Sequence[str] | None = None
    ) -> list[dict[str, Any]]:
        names = {number: word for word, number in self.tokenizer.targets.items()}
        numbers = range(3, len(names)) if targets is None else [self.tokenizer.targets[word] for word in targets]
        numbers = torch.tensor(list(dict.fromkeys(numbers)))
        directions = outputs["scores"][0].float().log_softmax(-1)  # (2, V)
        best = directions.sum(0)[numbers].softmax(-1).topk(min(top_k, len(numbers)))
        words, place = outputs["words"], int(outputs["place"])
        answers = []
        for score, number in zip(best.values.tolist(), numbers[best.indices].tolist(), strict=True):
            sequence = " ".join([*words[:place], names[number], *words[place + 1 :]])
            answers.append({"score": score, "token": number, "token_str": names[number], "sequence": sequence})
        return answers


__all__ = ["ElmoFillMaskPipeline", "ElmoTokenClassificationPipeline"]
