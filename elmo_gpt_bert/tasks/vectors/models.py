"""The vectors that a language model gives to words without their context."""

from collections.abc import Sequence

import numpy as np
import torch
from transformers import AutoModel

from elmo_gpt_bert.tasks.language_models import reads_words
from elmo_gpt_bert.tasks.minimal_pairs.scoring import REMEDY, choose_head
from elmo_gpt_bert.training.arguments import ModelSource
from elmo_gpt_bert.training.loading import load_config, load_model, load_tokenizer


@torch.no_grad()
def embed_words(name: str, words: Sequence[str]) -> dict[str, np.ndarray]:
    """The first layer of the model in a folder or on the Hub: of ELMo, what its CNN computes from the characters of a
    word; of a model of subwords, the mean of the embeddings of the word's pieces.

    Raises ValueError or OSError for what is no folder of a language model.
    """
    source = ModelSource(name)
    config, tokenizer = load_config(source), load_tokenizer(source, for_task=False)
    head = AutoModel if reads_words(tokenizer) else choose_head(config, tokenizer, source)
    model = load_model(head, source, config, tokenizer, train=False, remedy=REMEDY)
    if reads_words(tokenizer):
        layers = model.embed(
            [[word] for word in words], layers="all", tokenizer=tokenizer
        )  # of each word: (L + 1, 1, H)
        return {word: each[0, 0].numpy() for word, each in zip(words, layers, strict=True)}
    table = model.get_input_embeddings().weight
    pieces = [tokenizer(word, add_special_tokens=False)["input_ids"] for word in words]
    return {word: table[ids].mean(0).numpy() for word, ids in zip(words, pieces, strict=True) if ids}
