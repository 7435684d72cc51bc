"""The entities of a sentence, with probabilities of the tags, by any model that run_ner.py trained."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import torch
from datasets import Dataset, DatasetDict
from transformers import AutoModelForTokenClassification

from elmo_gpt_bert.explorer.language_models import Span, check_named, words_of
from elmo_gpt_bert.metrics.entities import split_tag, starts
from elmo_gpt_bert.tasks.ner.features import class_names, collate, make_features, predicted_tags
from elmo_gpt_bert.training.arguments import ModelSource
from elmo_gpt_bert.training.errors import InputError
from elmo_gpt_bert.training.loading import load_config, load_model, load_tokenizer, positions
from modeling.elmo.tokenization_elmo import split_words


if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


LONGEST_ROW = 512  # tokens of a row, of models without a limit
BEST = 3  # tags that are shown of a word


@dataclass(frozen=True, eq=False)
class Tagger:
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    names: list[str]  # of the tags, in the order of the model's outputs
    scheme: str


@dataclass(frozen=True)
class TaggedWord:
    """`tag` is the best tag, in IOB2; `best` are tags with probabilities, the most probable first, as the model has
    them. A word without a token has none.
    """

    span: Span
    tag: str
    best: list[tuple[str, float]]


@dataclass(frozen=True)
class Entity:
    """`score` is the mean of its words' probabilities of their best tags, as in transformers' pipeline."""

    span: Span
    type: str
    score: float


@lru_cache(maxsize=2)
def load_tagger(name: str) -> Tagger:
    """Loads a folder that run_ner.py has fine-tuned. Raises ValueError for a model of another task."""
    check_named(name)
    source = ModelSource(name)
    config, remedy = load_config(source), "name a folder that run_ner.py trained"
    saved = config.architectures or []
    if saved and not any("TokenClassification" in architecture for architecture in saved):
        raise InputError(f"{name} holds {', '.join(saved)}, which run_ner.py did not train: {remedy}.")
    tokenizer = load_tokenizer(source)
    model = load_model(AutoModelForTokenClassification, source, config, tokenizer, train=False, remedy=remedy)
    names, scheme = class_names(DatasetDict(), model.config, train=False, tag_scheme="iob2", model_name=name)
    return Tagger(model.eval(), tokenizer, names, scheme)


@torch.no_grad()
def tag_words(tagger: Tagger, sentence: str) -> list[TaggedWord]:
    """The tag of each word of the sentence, read as run_ner.py reads it: in several parts if it is too long."""
    words = words_of(sentence, spans := split_words(sentence))
    data = DatasetDict(test=Dataset.from_dict({"words": [words]}))
    length = min(positions(tagger.model) or LONGEST_ROW, LONGEST_ROW)
    features = make_features(
        data, tagger.tokenizer, tagger.model, tagger.names, tagger.scheme, length=length, limits={"test": None}
    )["test"]
    logits = tagger.model(**collate(list(features), tagger.tokenizer)).logits.float()
    outputs = {"logits": [of.numpy()[: len(row)] for of, row in zip(logits, features["word"], strict=True)]}
    (tags,) = predicted_tags(outputs, features, data["test"], tagger.names, "iob2")
    best: dict[int, list[tuple[str, float]]] = {}
    for row, numbers in zip(logits.softmax(-1).numpy(), features["word"], strict=True):
        for shares, number in zip(row, numbers, strict=False):  # padding is behind
            if number >= 0:
                order = np.argsort(-shares, kind="stable")[:BEST]
                best[number] = [(tagger.names[place], float(shares[place])) for place in order]
    return [TaggedWord(span, tag, best.get(n, [])) for n, (span, tag) in enumerate(zip(spans, tags, strict=True))]


def entities_of(words: list[TaggedWord]) -> list[Entity]:
    """The entities that the tags of the words make."""
    groups: list[list[TaggedWord]] = []
    previous = "O"
    for word in words:
        if starts(previous, word.tag):
            groups.append([])
        if word.tag != "O":
            groups[-1].append(word)
        previous = word.tag
    entities = []
    for group in groups:
        score = float(np.mean([word.best[0][1] for word in group]))
        entities.append(Entity((group[0].span[0], group[-1].span[1]), split_tag(group[0].tag)[1], score))
    return entities
