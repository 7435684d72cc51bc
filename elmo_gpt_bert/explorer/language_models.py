"""The language models of the three columns, each loaded once, when it is first needed; the words of the sentence that
they read; and which tokens each token attends to.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoModelForPreTraining

from elmo_gpt_bert.analysis.representations import Encoder, make_encoder
from elmo_gpt_bert.tasks.features import choose_head
from elmo_gpt_bert.tasks.minimal_pairs import REMEDY, Scorer, make_scorer
from elmo_gpt_bert.training.arguments import ModelSource
from elmo_gpt_bert.training.errors import InputError
from elmo_gpt_bert.training.loading import load_config, load_model, load_tokenizer, positions
from modeling.elmo.tokenization_elmo import split_words


LONGEST_SENTENCE = 100  # words of a sentence
LETTERS = 2_000  # characters of a sentence

Span = tuple[int, int]  # the first character, and the first after it

# column -> the Auto class of its language models, and what they are called
FAMILIES = {
    "ELMo": (AutoModelForPreTraining, "a language model of two directions"),
    "GPT": (AutoModelForCausalLM, "a causal language model"),
    "BERT": (AutoModelForMaskedLM, "a masked language model"),
}


@dataclass(frozen=True, eq=False)
class LanguageModel:
    """One model with two readers: `scorer` gives probabilities, `encoder` the vectors of layers."""

    name: str
    scorer: Scorer
    encoder: Encoder

    def pieces(self, ids: list[int]) -> list[str]:
        """The text of each token, without the space or the mark of a word's end that belongs to it."""
        tokens = self.scorer.tokenizer.convert_ids_to_tokens(ids)
        texts = [self.scorer.tokenizer.decode([number]).strip() for number in ids]
        return [text or token for text, token in zip(texts, tokens, strict=True)]

    def check_length(self, tokens: int) -> None:
        """Raises ValueError if a row has more tokens than the model has positions, or none but special ones."""
        if tokens <= self.scorer.tokenizer.num_special_tokens_to_add():
            raise InputError(f"{self.name} has no token for this sentence: write a few words.")
        longest = positions(self.scorer.model)
        if longest is not None and tokens > longest:
            raise InputError(f"The sentence has {tokens} tokens, but {self.name} reads at most {longest}: shorten it.")


@lru_cache(maxsize=6)
def load_language_model(family: str, name: str) -> LanguageModel:
    """Loads a model folder or a model of the Hub. Raises ValueError for a model that does not belong to the column."""
    check_named(name)
    source = ModelSource(name, attn_implementation="eager")  # which can show its attention
    config, tokenizer = load_config(source), load_tokenizer(source, for_task=False)
    wanted, description = FAMILIES[family]
    head = choose_head(config, tokenizer, source)
    if head is not wanted:
        (other,) = (name for name, (auto_class, _) in FAMILIES.items() if auto_class is head)
        raise InputError(f"{name} is not {description}, it belongs in the column of {other}.")
    model = load_model(head, source, config, tokenizer, train=False, remedy=REMEDY)
    scorer = make_scorer(head, model.eval(), tokenizer, "within_word_l2r").eval()
    pieces = "last" if head is AutoModelForCausalLM else "first"  # only the last has read the whole word
    return LanguageModel(name, scorer, make_encoder(model.base_model, tokenizer, pieces))


def check_named(name: str) -> None:
    if not name or name.isspace():
        raise InputError("No model is named: give a model folder, or a model of the Hub.")


# The sentence


def words_of(sentence: str, spans: list[Span] | None = None) -> list[str]:
    """The words of a sentence, which are at the `spans`, or where `split_words` finds them.

    Raises ValueError for a text without a word, and for one that is too long.
    """
    spans = split_words(sentence) if spans is None else spans
    if not spans:
        raise InputError("The sentence is empty: write a few words.")
    if len(spans) > LONGEST_SENTENCE:
        raise InputError(f"The sentence has {len(spans):,} words: shorten it to {LONGEST_SENTENCE} or fewer.")
    if len(sentence) > LETTERS:
        raise InputError(f"The sentence has {len(sentence):,} characters: shorten it to {LETTERS:,} or fewer.")
    return [sentence[begin:end] for begin, end in spans]


# Attention


@dataclass(frozen=True)
class Attention:
    """`weights` (T, T): a row for each token, which adds up to 1 over the tokens that it attends to.

    `ends` (T,) says which tokens the tokenizer puts around a sentence, such as [CLS]. `share` of the attention is for
    such tokens, where they are left out.
    """

    tokens: list[str]
    weights: np.ndarray
    ends: np.ndarray
    share: float = 0.0

    def without_ends(self) -> Attention:
        """The words' attention to words, which adds up to less than 1."""
        inner = ~self.ends
        tokens = [token for token, is_inner in zip(self.tokens, inner, strict=True) if is_inner]
        share = float(self.weights[inner][:, self.ends].sum(1).mean())
        return Attention(tokens, self.weights[inner][:, inner], self.ends[inner], share)


@torch.no_grad()
def attend(model: LanguageModel, sentence: str, layer: int, head: int | None) -> Attention:
    """The attention of a layer and a head, from 1 on; of head None, the mean of all heads.

    Raises ValueError for a sentence that is empty or too long.
    """
    words_of(sentence)
    inputs = model.scorer.tokenizer(sentence, return_tensors="pt")
    ids = inputs["input_ids"]
    model.check_length(ids.shape[1])
    outputs = model.scorer.model.base_model(
        input_ids=ids, attention_mask=inputs["attention_mask"], output_attentions=True, return_dict=True
    )
    weights = outputs.attentions[layer - 1][0]  # (A, T, T)
    weights = weights.mean(0) if head is None else weights[head - 1]
    marks = (model.scorer.tokenizer.cls_token_id, model.scorer.tokenizer.sep_token_id)
    ends = np.array([number in marks for number in ids[0].tolist()])
    return Attention(model.pieces(ids[0].tolist()), weights.float().numpy(), ends)
