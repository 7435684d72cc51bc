"""Which tokens each token of a sentence attends to, in one head of one layer."""

from dataclasses import dataclass

import numpy as np
import torch

from elmo_gpt_bert.explorer.models import LanguageModel
from elmo_gpt_bert.explorer.sentences import words_of
from elmo_gpt_bert.training.errors import InputError
from modeling.elmo.tokenization_elmo import split_words


@dataclass(frozen=True)
class Attention:
    """`weights` (T, T): a row for each token, which adds up to 1 over the tokens that it attends to."""

    tokens: list[str]
    weights: np.ndarray


def sizes(model: LanguageModel) -> tuple[int, int]:
    """The numbers of layers and of heads."""
    config = model.scorer.config
    return config.num_hidden_layers, config.num_attention_heads


@torch.no_grad()
def attend(model: LanguageModel, sentence: str, layer: int, head: int | None) -> Attention:
    """The attention of a layer and a head, from 1 on; of head None, the mean of all heads.

    Raises ValueError for a layer or head that the model does not have, and for a sentence that is empty or too long.
    """
    words_of(sentence, split_words(sentence))
    layers, heads = sizes(model)
    for name, number, most in (("layer", layer, layers), ("head", 1 if head is None else head, heads)):
        if number not in range(1, most + 1):
            raise InputError(f"{model.name} has no {name} {number}: it has {name}s 1 to {most}.")
    inputs = model.scorer.tokenizer(sentence, return_tensors="pt")
    ids = inputs["input_ids"]
    model.check_length(ids.shape[1])
    outputs = model.scorer.model.base_model(
        input_ids=ids, attention_mask=inputs["attention_mask"], output_attentions=True, return_dict=True
    )
    weights = outputs.attentions[layer - 1][0]  # (A, T, T)
    weights = weights.mean(0) if head is None else weights[head - 1]
    return Attention(model.pieces(ids[0].tolist()), weights.float().numpy())
