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
"""GPT: Improving Language Understanding by Generative Pre-Training (Radford et al. 2018).

Section 3.1 describes the decoder, section 4.1 its sizes; released code: openai/finetune-transformer-lm, `train.py`.
The fine-tuning heads of section 3.2 are in modeling_gpt_tasks.py. Parameter names and layouts are those of every
published PyTorch checkpoint. Apart from one softmax, the results are those of the released code, but they are computed
in other ways:

- generation keeps keys and values in a cache, which the released model does not have;
- without a cache, padding is not computed: the real tokens of a batch run as a batch of one row (modeling_packing.py),
  and only attention separates the sequences (modeling_attention.py);
- where only the state of the last token is read, the last block computes only that state;
- on the CPU, oneDNN computes matrix products where it is faster (modeling_onednn.py), and `generate` packs the weights
  for it (`keeping_packed_weights`).

In the released code, one matrix holds the embeddings of words and positions, and the softmax over words includes the
512 positions. Here, as in every other implementation, it is over the words only.

Letters: B rows, T columns, P tokens in the cache, Q queries, H hidden size, A heads, D = H / A, V vocabulary. In a
packed batch, B is 1 and T the number of real tokens.
"""

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING

import torch
import torch.nn as nn
from transformers import initialization as init
from transformers.activations import ACT2FN
from transformers.cache_utils import Cache, DynamicCache
from transformers.generation import GenerationMixin
from transformers.loss.loss_utils import ForCausalLMLoss
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, PreTrainedModel, slice_logits_to_keep
from transformers.processing_utils import Unpack
from transformers.pytorch_utils import Conv1D
from transformers.utils import TransformersKwargs, auto_docstring
from transformers.utils.generic import can_return_tuple, merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from ..hub_code import SavedWithCode, TakesStockConfig
from ..shared.modeling_attention import (
    attend,
    attention_implementation,
    create_mask,
    eager_attention_forward,
    is_causal_call,
    mask_of_queries,
    split_heads,
)
from ..shared.modeling_heads import (
    IGNORED,
    check_shapes,
    loss_needs_padding,
    mean_word_loss,
    one_of,
)
from ..shared.modeling_onednn import WORTH_PACKING, is_faster, is_opaque, is_plain, linear, multiply_rows, packed
from ..shared.modeling_packing import (
    CACHE,
    CACHE_NAMES,
    Packing,
    Plan,
    at_labels,
    cache_of_either_name,
    cached_tokens,
    check_places,
    make_plan,
    states_at,
)
from .configuration_gpt import ACTIVATIONS, ZooGPTConfig


if TYPE_CHECKING:  # from the Hub, transformers brings the files that another one imports
    from .modeling_gpt_tasks import ZooGPTForSequenceClassification


PRODUCTS_BEFORE_PACKING = 12  # with the same weight, within one generated text


class ZooGPTProjection(Conv1D):
    """xW + b with W stored as (in, out), as in published files: the released "1-D convolution" of width 1."""

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return linear_in_steps(states, self.weight, self.bias, transposed=True)  # (..., in) -> (..., out)


class ZooGPTWordPredictor(nn.Linear):
    """The scores of all words: products with the word embeddings (equation 2)."""

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return linear_in_steps(states, self.weight, self.bias)  # (..., H) -> (..., V)


class ZooGPTAttention(nn.Module):
    """Multi-head attention of every token to itself and to the tokens before it."""

    def __init__(self, config: ZooGPTConfig, layer_idx: int):
        super().__init__()
        self.config = config
        self.layer_idx = layer_idx
        self.is_causal = True
        self.head_dim = config.n_embd // config.n_head
        self.scaling = self.head_dim**-0.5
        self.c_attn = ZooGPTProjection(3 * config.n_embd, config.n_embd)  # query, key and value in one
        self.c_proj = ZooGPTProjection(config.n_embd, config.n_embd)
        self.attn_dropout = nn.Dropout(config.attn_pdrop)
        self.resid_dropout = nn.Dropout(config.resid_pdrop)

    def forward(
        self,
        hidden_states: torch.Tensor,  # (B, T, H)
        attention_mask: torch.Tensor | None = None,
        read: torch.Tensor | None = None,  # (B, Q) the columns whose tokens attend; None: all
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        query, key, value = self.c_attn(hidden_states).chunk(3, -1)
        query = split_heads(states_at(query, read), self.head_dim)  # (B, Q, A, D)
        key, value = split_heads(key, self.head_dim), split_heads(value, self.head_dim)  # (B, T, A, D)
        kwargs.setdefault("place", self.layer_idx)  # not read here: each value would be another compiled graph
        kwargs |= {"dropout": self.attn_dropout.p if self.training else 0.0, "scaling": self.scaling}
        attention_interface = ALL_ATTENTION_FUNCTIONS.get_interface(
            attention_implementation(self.config, query, kwargs), eager_attention_forward
        )
        output, probabilities = attend(attention_interface, self, query, key, value, attention_mask, **kwargs)
        return self.resid_dropout(self.c_proj(output)), probabilities  # (B, Q, H), (B, A, Q, P + T)


class ZooGPTMLP(nn.Module):
    """The feed-forward network on each token; its hidden layer is four times as wide."""

    def __init__(self, config: ZooGPTConfig):
        super().__init__()
        self.c_fc = ZooGPTProjection(4 * config.n_embd, config.n_embd)
        self.c_proj = ZooGPTProjection(config.n_embd, 4 * config.n_embd)
        self.activation = ACT2FN[ACTIVATIONS[config.afn]]  # the tanh GELU
        self.dropout = nn.Dropout(config.resid_pdrop)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return self.dropout(self.c_proj(self.activation(self.c_fc(hidden_states))))


class ZooGPTBlock(GradientCheckpointingLayer):
    """Attention, then the feed-forward network; each is added to its input, and the sum is normalised."""

    def __init__(self, config: ZooGPTConfig, layer_idx: int):
        super().__init__()
        self.attn = ZooGPTAttention(config, layer_idx)
        self.ln_1 = nn.LayerNorm(config.n_embd, eps=config.layer_norm_epsilon)
        self.mlp = ZooGPTMLP(config)
        self.ln_2 = nn.LayerNorm(config.n_embd, eps=config.layer_norm_epsilon)

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        layer_past: Cache | None = None,
        read: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> torch.Tensor:
        """(B, T, H) -> (B, T, H), or (B, Q, H) of the tokens in the (B, Q) columns `read`.

        `kwargs` are those of the attention: `packing`, and `place`, the layer's place in the model.
        """
        attended, _ = self.attn(hidden_states, attention_mask, read, cache=layer_past, **kwargs)
        hidden_states = self.ln_1(states_at(hidden_states, read) + attended)
        return self.ln_2(hidden_states + self.mlp(hidden_states))


@auto_docstring
class ZooGPTPreTrainedModel(SavedWithCode, TakesStockConfig, PreTrainedModel):
    config: ZooGPTConfig
    base_model_prefix = "transformer"
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _can_compile_fullgraph = True
    _no_split_modules = ["ZooGPTBlock"]
    _skip_keys_device_placement = [*CACHE_NAMES, "layer_past"]
    _can_record_outputs = {"hidden_states": ZooGPTBlock, "attentions": ZooGPTAttention}
    # A buffer that old files contain, and the language model's head, whose weights are the word embeddings.
    _keys_to_ignore_on_load_unexpected = [r"attn\.bias$", r"^lm_head\.weight$"]

    @torch.no_grad()
    def _init_weights(self, module):
        """N(0, initializer_range) weights and zero biases (section 4.1)."""
        super()._init_weights(module)
        if isinstance(module, Conv1D):
            init.normal_(module.weight, mean=0.0, std=self.config.initializer_range)
            init.zeros_(module.bias)

    def resize_token_embeddings(
        self,
        new_num_tokens: int | None = None,
        pad_to_multiple_of: int | None = None,
        mean_resizing: bool = False,
    ) -> nn.Embedding:
        """As `PreTrainedModel.resize_token_embeddings`, but `mean_resizing` is off by default.

        New rows are then N(0, initializer_range), as the released code initialises the rows of its start, delimiter
        and extract tokens (`train.py`).
        """
        return super().resize_token_embeddings(new_num_tokens, pad_to_multiple_of, mean_resizing)


def without_cache_by_default(forward: Callable) -> Callable:
    """`forward`, whose `use_cache` is False unless the caller says otherwise, rather than the configuration's.

    `generate` reads that of the configuration and passes it.
    """

    @functools.wraps(forward)
    def forward_without_cache(self, *args, use_cache: bool | None = None, **kwargs):
        return forward(self, *args, use_cache=bool(use_cache), **kwargs)

    return forward_without_cache


@auto_docstring(custom_intro="GPT's decoder, without a head: embeddings and layers.")
class ZooGPTModel(ZooGPTPreTrainedModel):
    def __init__(self, config: ZooGPTConfig):
        super().__init__(config)
        self.tokens_embed = nn.Embedding(config.vocab_size, config.n_embd)
        self.positions_embed = nn.Embedding(config.n_positions, config.n_embd)
        self.drop = nn.Dropout(config.embd_pdrop)
        self.h = nn.ModuleList([ZooGPTBlock(self.config, index) for index in range(config.n_layer)])
        self.exits_early = False  # while `generate` lets the first config.n_layer blocks propose tokens
        self.post_init()

    def get_input_embeddings(self):
        return self.tokens_embed

    def set_input_embeddings(self, value):
        self.tokens_embed = value

    @without_cache_by_default
    @can_return_tuple
    @merge_with_config_defaults
    @auto_docstring
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        past_key_values: Cache | None = None,
        use_cache: bool | None = None,
        unpad: bool | None = None,
        last_token_only: bool = False,
        cache: Cache | None = None,
        packing: Packing | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple[torch.Tensor] | BaseModelOutputWithPast:
        r"""
        token_type_ids (`torch.LongTensor` of shape `(batch_size, sequence_length)`, *optional*):
            Tokens whose embeddings are added to those of the words, as in transformers' OpenAI GPT.
        past_key_values (`Cache`, *optional*):
            The cache, under its name up to transformers 5.23.
        use_cache (`bool`, *optional*):
            Whether to return the cache. Defaults to `False`: `config.use_cache` is for `generate`.
        unpad (`bool`, *optional*, defaults to `config.unpad`):
            Whether to compute the real tokens only. This applies where the mask shows padding after them, or
            `cu_seq_lens_q` or `seq_idx` that a row holds several sequences; the states of padding are then zero.
            Padding is computed all the same with a cache, when attentions are returned, or hidden states with
            gradients, and, unless `True` is passed, when a module of the model has a hook or a GPU gets few tokens.
        last_token_only (`bool`, *optional*, defaults to `False`):
            Whether to return only the state of each row's last real token: `last_hidden_state` is then
            `(batch_size, 1, hidden_size)`. Has no effect with `config.unpad=False` unless `unpad=True` is passed,
            or when a module of the model has a hook that may need all states.
        cache (`Cache`, *optional*):
            Keys and values of P tokens in front of each row. `attention_mask` then has P more columns.
        packing (`Packing`, *optional*):
            Where the real tokens are, as `DataCollatorWithPacking` finds it. It changes no result; a GPU then need not
            be waited for to read the mask.
        """
        inputs, cache = one_of(input_ids, inputs_embeds), cache_of_either_name(cache, past_key_values)
        check_shapes(inputs, attention_mask, token_type_ids, position_ids, past=cached_tokens(cache))
        if cache is None and use_cache:
            cache = DynamicCache()
        token, longest = "last" if last_token_only else None, self.config.n_positions
        plan = make_plan(self, inputs, attention_mask, position_ids, cache, kwargs, unpad, token, longest, packing)
        tensors = plan.enter(input_ids, token_type_ids, plan.positions, inputs_embeds)
        decoded = self._decode(*tensors, plan, cache, return_dict=True, **kwargs)
        return BaseModelOutputWithPast(
            last_hidden_state=plan.zero_padding(plan.leave(decoded.last_hidden_state, is_last=True)),
            **{CACHE: cache if use_cache else None},
            hidden_states=decoded.hidden_states and tuple(map(plan.leave, decoded.hidden_states)),
            attentions=decoded.attentions,
        )

    @capture_outputs
    def _decode(
        self,
        input_ids: torch.Tensor | None,
        token_type_ids: torch.Tensor | None,
        position_ids: torch.Tensor,
        inputs_embeds: torch.Tensor | None,
        plan: Plan,
        cache: Cache | None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutputWithPast:
        """Equation 2 on a batch with its padding, (B, T), or on a packed one, (1, N): states of that shape."""
        words = self.tokens_embed(input_ids) if inputs_embeds is None else inputs_embeds
        hidden_states = words + self.positions_embed(position_ids)
        if token_type_ids is not None:
            hidden_states = hidden_states + self.tokens_embed(token_type_ids)
        hidden_states = self.drop(hidden_states)
        mask = create_mask(self.config, hidden_states, plan, cache, is_causal_call(kwargs, default=True))
        blocks = list(self.h)[: self.config.n_layer] if self.exits_early else list(self.h)
        check_places(cache, len(blocks), "n_layer")
        last, (last_mask, read) = len(blocks) - 1, mask_of_queries(mask, plan.read)
        for place, block in enumerate(blocks):
            block_mask, columns = (mask, None) if place < last else (last_mask, read)
            hidden_states = block(
                hidden_states, block_mask, layer_past=cache, read=columns, place=place, packing=plan.packing, **kwargs
            )
        return BaseModelOutputWithPast(last_hidden_state=hidden_states)


@auto_docstring(custom_intro="GPT with its language modeling head, tied to the word embeddings.")
class ZooGPTLMHeadModel(ZooGPTPreTrainedModel, GenerationMixin):
    _tied_weights_keys = {"lm_head.weight": "transformer.tokens_embed.weight"}
    _keys_to_ignore_on_load_unexpected = [r"attn\.bias$"]

    def __init__(self, config: ZooGPTConfig):
        super().__init__(config)
        self.transformer = ZooGPTModel(self.config)
        self.lm_head = ZooGPTWordPredictor(config.n_embd, config.vocab_size, bias=False)
        self.generates = False
        self.loss_type = "ForCausalLM"  # which the class's name does not show
        self.post_init()

    @functools.wraps(GenerationMixin.generate)
    def generate(self, *args, **kwargs):
        before = self.generates, self.transformer.exits_early
        self.transformer.exits_early = self.generates  # only an assistant that exits early calls its model once more
        self.generates = True
        try:
            with keeping_packed_weights():
                return super().generate(*args, **kwargs)
        finally:
            self.generates, self.transformer.exits_early = before

    def init_continuous_batching(self, *args, **kwargs):
        """Raises ValueError: the model has no cache of pages."""
        raise ValueError(
            "generate_batch: ZooGPT has no continuous batching. Pad the prompts on the left, and call generate"
        )

    @can_return_tuple
    @auto_docstring
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        past_key_values: Cache | None = None,
        use_cache: bool | None = None,
        skip_logits: bool = False,
        unpad: bool | None = None,
        cache: Cache | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple[torch.Tensor] | CausalLMOutputWithPast:
        r"""
        token_type_ids (`torch.LongTensor` of shape `(batch_size, sequence_length)`, *optional*):
            Tokens whose embeddings are added to those of the words, as in transformers' OpenAI GPT.
        past_key_values (`Cache`, *optional*):
            The cache, under its name up to transformers 5.23.
        labels (`torch.LongTensor` of shape `(batch_size, sequence_length)`, *optional*):
            The tokens themselves, usually `input_ids`; -100 for tokens that are not to be predicted. The model shifts
            them.
        use_cache (`bool`, *optional*):
            Whether to return the cache. Defaults to `False`: `config.use_cache` is for `generate`.
        skip_logits (`bool`, *optional*, defaults to `False`):
            Whether to return only the loss, with `logits=None`. The scores of all words are then computed for a few
            of the labelled tokens at a time, which takes a small part of the memory. With another `loss_function`
            than transformers', all scores are computed, and left out of the output. Needs `labels`.
        unpad (`bool`, *optional*, defaults to `config.unpad`):
            Whether to leave padding out if the loss does not need it; see `ZooGPTModel.forward`.
        cache (`Cache`, *optional*):
            Keys and values of P tokens in front of each row. `attention_mask` then has P more columns.
        """
        if skip_logits and labels is None:
            raise ValueError("skip_logits=True returns nothing but the loss: give labels")
        check_shapes(one_of(input_ids, inputs_embeds), labels=labels)
        needs_padding = loss_needs_padding(labels, attention_mask, predicts_next=True, **kwargs)
        outputs = self.transformer(
            input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            cache=cache_of_either_name(cache, past_key_values),
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            unpad=False if needs_padding else unpad,
            return_dict=True,
            **kwargs,
        )
        states = outputs.last_hidden_state
        logits, loss = None, None
        if skip_logits and self.loss_function is ForCausalLMLoss and not is_opaque(labels):
            loss = self.loss_without_logits(states, labels, **kwargs)
        else:
            logits = self.lm_head(states if skip_logits else slice_logits_to_keep(states, logits_to_keep))
            if labels is not None:
                loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size, **kwargs)
        return CausalLMOutputWithPast(
            loss=loss,
            logits=None if skip_logits else logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
            **{CACHE: outputs.get(CACHE)},
        )

    def loss_without_logits(
        self,
        hidden_states: torch.Tensor,
        labels: torch.Tensor,
        shift_labels: torch.Tensor | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        packing: Packing | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> torch.Tensor:
        """The loss of (B, T, H) states, as `loss_function` computes it from their logits (B, T, V).

        The weights are read from the head. If the head does not hold them itself (LoRA, sharded weights), or is
        watched by a hook, it is called, and the logits of the labelled tokens are in memory at the same time.
        """
        if shift_labels is None:  # `loss_function`, which shifts them otherwise, takes nothing but logits
            shift_labels = nn.functional.pad(labels, (0, 1), value=IGNORED)[:, 1:]  # trf-ignore: TRF053
            packing = None  # which knows `labels` as they are
        shift_labels = shift_labels.to(hidden_states.device)
        states, targets = at_labels(hidden_states, shift_labels, packing, shifted=True)  # (n, H), (n,)
        if is_plain(self.lm_head, ZooGPTWordPredictor):
            return mean_word_loss(states, self.lm_head, targets, num_items_in_batch)
        loss = nn.functional.cross_entropy(self.lm_head(states).float(), targets, reduction="sum")
        return loss / (len(targets) if num_items_in_batch is None else num_items_in_batch)


# Weights packed for all steps of a generated text. A step multiplies a few rows with every weight of the model, so it
# takes as long as reading them does. In oneDNN's layout a weight is read faster, but packing all of them takes as long
# as what 40 steps save in float32, or 10 in bfloat16. So a weight is packed at its twelfth product within one call of
# `generate`, and no call sees those of another. At its end the copies are released; until then they take as much
# memory as the weights.


# By the id of a weight: what differs after a change, the number of products since, and the packed copy.
Kept = dict[int, tuple[tuple, int, torch.Tensor | None]]

_kept: ContextVar[Kept | None] = ContextVar("kept", default=None)


@contextlib.contextmanager
def keeping_packed_weights() -> Iterator[None]:
    """While it is open, `linear_in_steps` packs weights. One inside it, of an assistant, shares them."""
    token = _kept.set({}) if _kept.get() is None else None
    try:
        yield
    finally:
        if token is not None:
            _kept.reset(token)


def linear_in_steps(
    inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, transposed: bool = False
) -> torch.Tensor:
    """inputs (..., I) @ weight (O, I)' + bias (O) -> (..., O); the weight is (I, O) if it is `transposed`."""
    if not torch.compiler.is_compiling() and _kept.get() is not None and not torch.is_grad_enabled():
        copy = _packed_copy(_kept.get(), inputs, weight, transposed)
        if copy is not None:
            return multiply_rows(inputs, copy, bias)
    return linear(inputs, weight.T if transposed else weight, bias)


def _packed_copy(kept: Kept, inputs: torch.Tensor, weight: torch.Tensor, transposed: bool) -> torch.Tensor | None:
    """The packed copy of the weight as it is now, or None if there is none yet, or oneDNN cannot be used.

    A weight is packed anew after it has been replaced, moved, converted or changed in place. A change by way of
    `weight.data[...] = `, of which torch keeps no record, is not noticed until the next call of `generate`. Weights
    that are computed for each product (parametrizations) or loaded for it (offloading) are never packed.
    """
    if not is_faster(inputs, weight, WORTH_PACKING) or weight.is_inference():  # whose changes torch does not count
        return None
    # A weight has one weak reference, which does not keep it in memory; another weight may get the same id later.
    state = weakref.ref(weight), weight._version, weight.data_ptr(), weight.stride()
    before, products, copy = kept.get(id(weight), (state, 0, None))
    if before != state:
        products, copy = 0, None
    if products + 1 == PRODUCTS_BEFORE_PACKING:
        copy = packed(weight.T if transposed else weight, WORTH_PACKING)
    kept[id(weight)] = state, products + 1, copy
    return copy


__all__ = ["ZooGPTLMHeadModel", "ZooGPTModel", "ZooGPTPreTrainedModel"]
