"""The language models of the three columns. Each is loaded once, when it is first needed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoModelForPreTraining

from elmo_gpt_bert.analysis.representations import Encoder, make_encoder
from elmo_gpt_bert.tasks.features import choose_head
from elmo_gpt_bert.tasks.minimal_pairs import REMEDY, Scorer, make_scorer
from elmo_gpt_bert.training.arguments import ModelSource
from elmo_gpt_bert.training.errors import InputError
from elmo_gpt_bert.training.loading import load_config, load_model, load_tokenizer, positions


if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


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


def load_trained(
    auto_class: type, name: str, task: str, script: str
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Loads a folder that the script has fine-tuned. Raises ValueError for a model of another task."""
    check_named(name)
    source = ModelSource(name)
    config = load_config(source)
    saved = config.architectures or []
    if saved and not any(task in architecture for architecture in saved):
        raise InputError(
            f"{name} holds {', '.join(saved)}, which {script} did not train: name a folder that it trained."
        )
    tokenizer = load_tokenizer(source)
    remedy = f"name a folder that {script} trained"
    return load_model(auto_class, source, config, tokenizer, train=False, remedy=remedy), tokenizer
