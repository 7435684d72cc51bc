"""Which language model a configuration is one of: masked, causal or bidirectional."""

from transformers import (
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForPreTraining,
    PreTrainedConfig,
    PreTrainedTokenizerBase,
)


def reads_words(tokenizer: PreTrainedTokenizerBase | type) -> bool:
    """Whether the tokenizer, or its class, is one of words rather than of subwords."""
    return hasattr(tokenizer, "word_targets")


def candidate_heads(config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase | type) -> list[type]:
    """The Auto classes of the language models that the configuration may have, the likeliest first.

    A tokenizer of words asks for a biLM. Of the others, a model that is configured as a decoder is causal, if there is
    such a head, and any other is masked.
    """
    if reads_words(tokenizer):
        return [AutoModelForPreTraining]
    heads = [AutoModelForMaskedLM, AutoModelForCausalLM]
    return heads[::-1] if getattr(config, "is_decoder", False) else heads
