"""GPT: this zoo's classes against those of transformers, on the same weights and inputs.

transformers' GPT has no cache for generation, computes padding, and its classifier has no language modeling loss.
`PlainFineTuning` adds that loss by the paper's formula.
"""

from functools import partial

import torch
import torch.nn as nn
import transformers
from transformers import PreTrainedConfig, PreTrainedModel, StaticCache
from transformers.initialization import no_init_weights

import modeling
from modeling.shared.modeling_heads import IGNORED
from modeling.shared.modeling_packing import CACHE

from .bert import (
    BATCHES,
    OURS,
    STOCK,
    Batch,
    Inputs,
    classify,
    draw_lengths,
    draw_sequences,
    drawn_once,
    lengths_of,
    make_classified_batches,
    on,
    pad,
    padding,
    train_step,
)
from .limits import layers_flop, tighter, weight_bytes
from .measure import Build, Contest, Outputs, Side
from .precision import inference, model_dtype, tolerance


class LanguageModelOfTraining(modeling.ZooGPTLMHeadModel):
    """Returns the loss only, as run_pretraining.py asks for it."""

    def forward(self, input_ids, **inputs):
        return super().forward(input_ids, **inputs, skip_logits=True)


CLASSES = {
    "Model": {OURS: modeling.ZooGPTModel, STOCK: transformers.OpenAIGPTModel},
    "LMLoss": {OURS: LanguageModelOfTraining, STOCK: transformers.OpenAIGPTLMHeadModel},
    "LMHeadModel": {OURS: modeling.ZooGPTLMHeadModel, STOCK: transformers.OpenAIGPTLMHeadModel},
    "ForSequenceClassification": {
        OURS: modeling.ZooGPTForSequenceClassification,
        STOCK: transformers.OpenAIGPTForSequenceClassification,
    },
}
SIZES = {
    "base": {"n_layer": 12, "n_embd": 768, "n_head": 12},
    "small": {"n_layer": 4, "n_embd": 512, "n_head": 8},
    "tiny": {"n_layer": 2, "n_embd": 36, "n_head": 3},
}
VOCABULARY, TINY_VOCABULARY = 40478, 97
LM_LOSS_WEIGHT = 0.5


class PlainFineTuning(transformers.OpenAIGPTForSequenceClassification):
    """transformers' classifier with equation 5: adds the mean over rows of the mean loss of their tokens."""

    def forward(self, input_ids, attention_mask, labels):
        states = self.transformer(input_ids, attention_mask=attention_mask).last_hidden_state
        last = attention_mask.sum(-1) - 1
        scores = self.score(states[torch.arange(len(states)), last])
        words = nn.functional.linear(states[:, :-1], self.transformer.tokens_embed.weight)  # (B, T - 1, V)
        targets, is_real = input_ids[:, 1:], attention_mask[:, 1:]
        losses = nn.functional.cross_entropy(words.flatten(0, 1), targets.flatten(), reduction="none")
        lm_loss = ((losses.view_as(targets) * is_real).sum(-1) / is_real.sum(-1)).mean()
        loss = nn.functional.cross_entropy(scores, labels) + LM_LOSS_WEIGHT * lm_loss
        return transformers.modeling_outputs.SequenceClassifierOutput(loss=loss, logits=scores)


@drawn_once
def make_models(
    head: str, size: str, tiny: bool, dropout: float = 0.0, lm_loss: bool = False, **changes: int
) -> dict[str, PreTrainedModel]:
    """The classes of both sides with the same random weights, large enough to reveal a missing term.

    `changes` are fields of their configurations.
    """
    sizes = {**SIZES["tiny" if tiny else size], "vocab_size": TINY_VOCABULARY if tiny else VOCABULARY, **changes}
    dropouts = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop", "summary_first_dropout"), dropout)
    classes = dict(CLASSES[head])
    if lm_loss:
        classes[STOCK] = PlainFineTuning
    models = {}
    for side, model_class in classes.items():
        config = model_class.config_class(**sizes, **dropouts, pad_token_id=0)
        if lm_loss and side == OURS:
            config.lm_loss_weight = LM_LOSS_WEIGHT
        with no_init_weights():  # all are drawn below
            models[side] = model_class(config)
        models[side].tie_weights()
    generator = torch.Generator().manual_seed(0)
    for name, parameter in models[STOCK].named_parameters():
        mean = 1.0 if ".ln_" in name and name.endswith("weight") else 0.0
        parameter.data.normal_(mean, 0.05, generator=generator)
    models[OURS].load_state_dict(models[STOCK].state_dict())
    return models


# What a forward pass needs


def classifier_flop(config: PreTrainedConfig, batch: Batch) -> float:
    """Of the layers, where only the state of the last token is read, and the scores of the labels."""
    lengths = lengths_of(batch)
    head = 2 * len(lengths) * config.hidden_size * config.num_labels
    return layers_flop(config, lengths, causal=True, one_state=True) + head


def language_flop(config: PreTrainedConfig, batch: Batch) -> float:
    """Of the layers and, for each token but the first of a row, the scores of all words."""
    lengths = lengths_of(batch)
    head = 2 * (sum(lengths) - len(lengths)) * config.hidden_size * config.vocab_size
    return layers_flop(config, lengths, causal=True, one_state=False) + head


def classifier_and_language_flop(config: PreTrainedConfig, batch: Batch) -> float:
    return language_flop(config, batch) + 2 * len(batch["input_ids"]) * config.hidden_size * config.num_labels


# Generation


def make_prompts(rows: int, tiny: bool) -> Batch:
    """Prompts of up to 32 tokens; several are padded on the left."""
    longest = 5 if tiny else 32
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(1, TINY_VOCABULARY if tiny else VOCABULARY, (rows, longest), generator=generator)
    lengths = torch.linspace(longest, max(1, longest // 2), rows).long()
    mask = (torch.arange(longest) >= longest - lengths[:, None]).long()
    return {"input_ids": ids * mask, "attention_mask": mask}


def generation_flop(config: PreTrainedConfig, prompts: Batch, new_tokens: int, beams: int) -> float:
    """Of the layers and the scores of all words: for each prompt once, and for the words of each beam."""
    lengths = lengths_of(prompts)
    whole = [length + new_tokens - 1 for length in lengths]  # nothing follows the last word
    layers = [layers_flop(config, each, causal=True, one_state=False) for each in (whole, lengths)]
    scored = len(lengths) * (1 + beams * (new_tokens - 1))  # the first words of all beams come from one state
    head = 2 * scored * config.hidden_size * config.vocab_size
    return beams * layers[0] - (beams - 1) * layers[1] + head


def generate(rows: int, new_tokens: int, beams: int = 1, cache: str | None = None) -> Build:
    """Generation without sampling. Both sides must agree on the logits of a text; ours are computed with a cache.

    cache: the implementation of ours; of a "static" one, transformers compiles the steps on a GPU
    """

    def build(precision: str, baseline_precision: str, tiny: bool, device: torch.device) -> Contest:
        prompts, tokens = on(device, make_prompts(rows, tiny)), 4 if tiny else new_tokens
        models = make_models("LMHeadModel", "base", tiny)

        def side(name: str, precision: str) -> Side:
            model = models[name].eval().to(device, model_dtype(precision))
            model.generation_config.eos_token_id = None
            options = {"max_new_tokens": tokens, "do_sample": False, "num_beams": beams}
            options |= {"cache_implementation": cache} if name == OURS else {}

            def run(index: int) -> torch.Tensor:
                with inference(precision):
                    return model.generate(**prompts, **options)

            def check() -> Outputs:
                with inference(precision):
                    logits = step_by_step(model, prompts, cache) if name == OURS else model(**prompts).logits
                real = prompts["attention_mask"].bool()
                outputs = {"logits": logits[real]}
                return outputs | {"tokens": run(0)} if model.dtype == torch.float32 else outputs

            return Side(name, run, check)

        sides = side(OURS, precision), side(STOCK, baseline_precision)
        reads = tokens * weight_bytes(models[OURS])
        products = generation_flop(models[OURS].config, prompts, tokens, beams)
        return Contest(
            *sides,
            f"{rows} x {prompts['input_ids'].shape[1]} + {tokens} tokens" + f", {beams} beams" * (beams > 1),
            tolerance(precision, baseline_precision, device=device),
            tighter(device, precision, reads, products),
            device,
            items=lambda index: rows * tokens,
        )

    return build


def step_by_step(model: PreTrainedModel, prompts: Batch, implementation: str | None) -> torch.Tensor:
    """(B, T, V) logits, each column computed with the cache of the columns before it. Positions are columns."""
    ids, mask = prompts["input_ids"], prompts["attention_mask"]
    cache = StaticCache(model.config, max_cache_len=ids.shape[1]) if implementation == "static" else None
    steps = []
    for column in range(ids.shape[1]):
        output = model(
            ids[:, column : column + 1],
            attention_mask=mask[:, : column + 1],
            position_ids=torch.tensor([[column]], device=ids.device),
            cache=cache,
            use_cache=True,
        )
        cache = output[CACHE]
        steps.append(output.logits)
    return torch.cat(steps, 1)


# Training


def make_texts(tiny: bool, rows: int = 8, columns: int = 128) -> Inputs:
    """Tokens without padding, all of which are predicted."""
    rows, columns = (3, 19) if tiny else (rows, columns)
    generator = torch.Generator().manual_seed(0)
    vocabulary = TINY_VOCABULARY if tiny else VOCABULARY
    batches = [torch.randint(1, vocabulary, (rows, columns), generator=generator) for _ in range(BATCHES)]
    batches = [{"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids} for ids in batches]
    return Inputs(batches, f"{rows} x {columns}, no padding")


def make_paragraphs(tiny: bool) -> Inputs:
    """8 paragraphs of up to 128 tokens, padded to the longest, all of whose tokens are predicted."""
    rows, count = (3, 2) if tiny else (8, BATCHES)
    sequences = draw_sequences(draw_lengths("paragraphs", rows * count), tiny)
    batches = [pad(sequences[start : start + rows]) for start in range(0, len(sequences), rows)]
    for batch in batches:
        batch["labels"] = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, IGNORED)
    return Inputs(batches, f"{rows} paragraphs, padded {padding(batches):.2f}x")


ROWS: dict[str, tuple[str, Build]] = {
    "gpt-greedy": ("GPT, greedy generation", generate(rows=1, new_tokens=128)),
    "gpt-greedy-batch": ("GPT, greedy generation", generate(rows=4, new_tokens=64)),
    "gpt-greedy-batch16": ("GPT, greedy generation", generate(rows=16, new_tokens=32)),
    "gpt-beams": ("GPT, generation by beams", generate(rows=1, new_tokens=64, beams=4)),
    "gpt-sst2": ("GPT, inference", classify("base", "sst2-train", make_models, classifier_flop)),
    "gpt-pairs": ("GPT, inference", classify("base", "pairs", make_models, classifier_flop)),
    "gpt-finetuning": (
        "4 x 512, fine-tuning step",
        train_step("ForSequenceClassification", make_classified_batches, classifier_flop, make_models=make_models),
    ),
    "gpt-finetuning-lm": (
        "4 x 512, fine-tuning step with LM loss",
        train_step(
            "ForSequenceClassification",
            make_classified_batches,
            classifier_and_language_flop,
            make_models=partial(make_models, lm_loss=True),
        ),
    ),
    "gpt-lm": (
        "4 x 512, language modeling step",
        train_step("LMHeadModel", make_texts, language_flop, make_models=make_models),
    ),
    "gpt-lm-text": (
        "4 x 512, language modeling step",
        train_step("LMLoss", make_paragraphs, language_flop, make_models=make_models),
    ),
}
