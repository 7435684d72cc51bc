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
"""BERT: Pre-training of Deep Bidirectional Transformers (Devlin et al. 2018, arXiv 1810.04805).

Section 3 describes the encoder and section 3.1 the masked LM and next-sentence heads; the fine-tuning heads of section
4 are in modeling_bert_tasks.py. Released code: google-research/bert, `modeling.py`. Parameter names are those of every
published PyTorch checkpoint. The results are those of the released code; the way they are computed differs:

- padding is not computed: the real tokens of a batch run as a batch of one row (modeling_packing.py), and only
  attention separates the sequences (modeling_attention.py);
- with `skip_logits=True`, the masked LM head runs at the labelled positions only;
- on the CPU, oneDNN computes matrix products where it is faster (modeling_onednn.py);
- where only the state of [CLS] is read, the last layer computes only that state.

With `config.is_decoder`, attention is from left to right, and `ZooBertLMHeadModel` predicts the next token, as in the
paper's ablation "LTR & No NSP" (section 5.1). It has no cache, generation or cross-attention.

Letters: B rows, T columns, H hidden size, A heads, D = H / A, V vocabulary, C classes, Q queries, P keys and values in
front of a row (prefix tuning). In a packed batch, B is 1 and T the number of real tokens.
"""

from typing import TYPE_CHECKING

import torch
import torch.nn as nn
from transformers import initialization as init
from transformers.activations import ACT2FN
from transformers.cache_utils import Cache
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import (
    BaseModelOutputWithPastAndCrossAttentions,
    BaseModelOutputWithPoolingAndCrossAttentions,
    CausalLMOutputWithCrossAttentions,
    MaskedLMOutput,
)
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, PreTrainedModel, slice_logits_to_keep
from transformers.models.bert.modeling_bert import BertForPreTrainingOutput
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs, auto_docstring
from transformers.utils.generic import can_return_tuple, merge_with_config_defaults
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from ..hub_code import SavedWithCode, TakesStockConfig
from ..shared.modeling_attention import (
    attend,
    attention_implementation,
    create_mask,
    eager_attention_forward,
    is_causal_call,
    mask_of_queries,
    project,
    split_heads,
)
from ..shared.modeling_heads import (
    check_shapes,
    class_loss,
    loss_needs_padding,
    mean_word_loss,
    one_of,
    token_loss,
)
from ..shared.modeling_onednn import Linear, is_opaque, is_plain
from ..shared.modeling_packing import (
    Packing,
    Plan,
    at_labels,
    cache_of_either_name,
    cached_tokens,
    check_places,
    hooks_need_padding,
    last_columns,
    make_plan,
    states_at,
)
from .configuration_bert import NO_DECODER, ZooBertConfig


if TYPE_CHECKING:  # from the Hub, transformers brings the files that another one imports
    from .modeling_bert_tasks import ZooBertForSequenceClassification


PRETRAINING_HEADS = [r"^cls\.predictions\.", r"^cls\.seq_relationship\."]  # keys of checkpoints


class ZooBertEmbeddings(nn.Module):
    """The sum of word piece, position and segment embeddings, normalised (section 3, figure 2)."""

    def __init__(self, config: ZooBertConfig):
        super().__init__()
        self.word_embeddings = nn.Embedding(config.vocab_size, config.hidden_size, padding_idx=config.pad_token_id)
        self.position_embeddings = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(
        self,
        input_ids: torch.Tensor | None = None,  # (B, T)
        token_type_ids: torch.Tensor | None = None,  # broadcasts against the ids; None: all in the first segment
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,  # (B, T, H), instead of input_ids
        past_key_values_length: int = 0,  # P, from which positions count by default
    ) -> torch.Tensor:
        words = self.word_embeddings(input_ids) if inputs_embeds is None else inputs_embeds
        if position_ids is None:
            columns = torch.arange(words.shape[1], device=words.device)
            position_ids = (past_key_values_length + columns).unsqueeze(0)  # (1, T)
        if token_type_ids is None:
            token_type_ids = torch.zeros_like(position_ids)
        embeddings = words + self.token_type_embeddings(token_type_ids) + self.position_embeddings(position_ids)
        return self.dropout(self.LayerNorm(embeddings))  # (B, T, H)


class ZooBertSelfAttention(nn.Module):
    """Multi-head attention of every token to every token of its sequence; from left to right, to those before it."""

    def __init__(self, config: ZooBertConfig):
        super().__init__()
        self.config = config
        self.head_dim = config.hidden_size // config.num_attention_heads
        self.scaling = self.head_dim**-0.5
        self.query = Linear(config.hidden_size, config.hidden_size)
        self.key = Linear(config.hidden_size, config.hidden_size)
        self.value = Linear(config.hidden_size, config.hidden_size)
        self.dropout = nn.Dropout(config.attention_probs_dropout_prob)

    @property
    def is_causal(self) -> bool:
        return self.config.is_decoder

    def forward(
        self,
        hidden_states: torch.Tensor,  # (B, T, H)
        attention_mask: torch.Tensor | None = None,
        read: torch.Tensor | None = None,  # (B, Q) the columns whose tokens attend; None: all
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        states = project(self, hidden_states, read)
        query, key, value = (split_heads(each, self.head_dim) for each in states)  # (B, Q, A, D), (B, T, A, D) twice
        kwargs |= {"dropout": self.dropout.p if self.training else 0.0, "scaling": self.scaling}
        attention_interface = ALL_ATTENTION_FUNCTIONS.get_interface(
            attention_implementation(self.config, query, kwargs), eager_attention_forward
        )
        # (B, Q, H), and (B, A, Q, P + T) if the implementation returns probabilities
        return attend(attention_interface, self, query, key, value, attention_mask, **kwargs)


class ZooBertResidual(nn.Module):
    """LayerNorm(residual + Dropout(Wx)), the end of each half of a layer. The norm comes after the sum."""

    def __init__(self, config: ZooBertConfig, in_features: int):
        super().__init__()
        self.dense = Linear(in_features, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, hidden_states: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return self.LayerNorm(self.dropout(self.dense(hidden_states)) + residual)


class ZooBertAttention(nn.Module):
    def __init__(self, config: ZooBertConfig):
        super().__init__()
        self.self = ZooBertSelfAttention(config)
        self.output = ZooBertResidual(config, config.hidden_size)

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        read: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        attended, probabilities = self.self(hidden_states, attention_mask, read, **kwargs)
        return self.output(attended, states_at(hidden_states, read)), probabilities


class ZooBertIntermediate(nn.Module):
    def __init__(self, config: ZooBertConfig):
        super().__init__()
        self.dense = Linear(config.hidden_size, config.intermediate_size)
        self.activation = ACT2FN[config.hidden_act]  # the erf GELU, as released; GPT has the tanh approximation

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return self.activation(self.dense(hidden_states))


class ZooBertLayer(GradientCheckpointingLayer):
    """Self-attention, then a feed-forward network on each token."""

    def __init__(self, config: ZooBertConfig):
        super().__init__()
        self.attention = ZooBertAttention(config)
        self.intermediate = ZooBertIntermediate(config)
        self.output = ZooBertResidual(config, config.intermediate_size)

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        read: torch.Tensor | None = None,
        layer_past: Cache | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> torch.Tensor:
        """(B, T, H) -> (B, T, H), or (B, Q, H) of the tokens in the (B, Q) columns `read`.

        `kwargs` are those of the attention: `packing`, and `place`, the layer's place in the model.
        """
        attended, _ = self.attention(hidden_states, attention_mask, read, cache=layer_past, **kwargs)
        return self.output(self.intermediate(attended), attended)


class ZooBertEncoder(nn.Module):
    def __init__(self, config: ZooBertConfig):
        super().__init__()
        self.layer = nn.ModuleList([ZooBertLayer(config) for _ in range(config.num_hidden_layers)])

    def forward(
        self,
        hidden_states: torch.Tensor,  # (B, T, H)
        attention_mask: torch.Tensor | None = None,  # over pairs of tokens, as transformers' functions create it
        read: torch.Tensor | None = None,  # (B, Q) the columns of the only tokens that the last layer computes
        cache: Cache | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        refused = ("encoder_hidden_states", "encoder_attention_mask", "past_key_values")
        if given := [name for name in refused if kwargs.get(name) is not None]:
            raise ValueError(f"{', '.join(given)}: {NO_DECODER}")
        check_places(cache, len(self.layer), "num_hidden_layers")
        last, (last_mask, read) = len(self.layer) - 1, mask_of_queries(attention_mask, read)
        for place, layer in enumerate(self.layer):
            mask, columns = (attention_mask, None) if place < last else (last_mask, read)
            hidden_states = layer(hidden_states, mask, columns, layer_past=cache, place=place, **kwargs)
        return BaseModelOutputWithPastAndCrossAttentions(last_hidden_state=hidden_states)


class ZooBertPooler(nn.Module):
    """tanh(W [CLS]): the vector that represents the whole input (section 3.1, task 2).

    From left to right, [CLS] sees no other token, so the model passes the state of the last one alone.
    """

    def __init__(self, config: ZooBertConfig):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return self.dense(hidden_states[:, 0]).tanh()  # (B, T, H) -> (B, H)


class ZooBertPredictionTransform(nn.Module):
    def __init__(self, config: ZooBertConfig):
        super().__init__()
        self.dense = Linear(config.hidden_size, config.hidden_size)
        self.activation = ACT2FN[config.hidden_act]
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return self.LayerNorm(self.activation(self.dense(hidden_states)))


class ZooBertLMPredictionHead(nn.Module):
    """One more layer, then a decoder whose weights are the word embeddings, plus a bias (section 3.1, task 1)."""

    def __init__(self, config: ZooBertConfig):
        super().__init__()
        self.transform = ZooBertPredictionTransform(config)
        self.decoder = Linear(config.hidden_size, config.vocab_size)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))  # the decoder's, named as in published files

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return self.decoder(self.transform(hidden_states))  # (..., H) -> (..., V)


class ZooBertPretrainingHeads(nn.Module):
    """The masked LM head, the next-sentence classifier, or both (`cls` in published checkpoints)."""

    def __init__(self, config: ZooBertConfig, masked_lm: bool, next_sentence: bool):
        super().__init__()
        if masked_lm:
            self.predictions = ZooBertLMPredictionHead(config)
        if next_sentence:
            self.seq_relationship = nn.Linear(config.hidden_size, 2)

    def forward(self, *states: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """The scores of each head, for (..., H) states of the tokens, for the (B, H) pooled state, or for both."""
        scores = tuple(head(state) for head, state in zip(self.children(), states, strict=True))
        return scores[0] if len(scores) == 1 else scores


@auto_docstring
class ZooBertPreTrainedModel(SavedWithCode, TakesStockConfig, PreTrainedModel):
    config: ZooBertConfig
    base_model_prefix = "bert"
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _can_compile_fullgraph = True
    _no_split_modules = ["ZooBertEmbeddings", "ZooBertLayer"]
    _can_record_outputs = {
        "hidden_states": ZooBertLayer,
        "attentions": ZooBertSelfAttention,
        # There is no such layer, so this is empty, as it is in transformers' encoder.
        "cross_attentions": OutputRecorder(ZooBertSelfAttention, index=1, layer_name="crossattention"),
    }
    # Heads of a pre-training checkpoint that the loaded model lacks, and a buffer that old files contain.
    _keys_to_ignore_on_load_unexpected = [*PRETRAINING_HEADS, r"pooler\.dense", r"position_ids$"]

    @torch.no_grad()
    def _init_weights(self, module):
        """N(0, initializer_range) weights and zero biases (the released code truncates the normal at two sigmas)."""
        super()._init_weights(module)
        if isinstance(module, ZooBertLMPredictionHead):
            init.zeros_(module.bias)

    def encode_tokens(
        self,
        input_ids: torch.Tensor | None,
        attention_mask: torch.Tensor | None,
        token_type_ids: torch.Tensor | None,
        position_ids: torch.Tensor | None,
        inputs_embeds: torch.Tensor | None,
        labels: torch.Tensor | None,
        unpad: bool | None,
        predicts_next: bool = False,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutputWithPoolingAndCrossAttentions:
        """The encoder's output for a head with (B, T) labels. Padding is computed if the loss needs it."""
        check_shapes(one_of(input_ids, inputs_embeds), labels=labels)
        unpad = False if loss_needs_padding(labels, attention_mask, predicts_next, **kwargs) else unpad
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        return self.bert(*inputs, unpad=unpad, return_dict=True, **kwargs)


@auto_docstring(custom_intro="BERT's encoder, without a head: embeddings, layers, and the pooler of [CLS].")
class ZooBertModel(ZooBertPreTrainedModel):
    _keys_to_ignore_on_load_unexpected = [*PRETRAINING_HEADS, r"position_ids$"]

    def __init__(self, config: ZooBertConfig, add_pooling_layer: bool = True):
        r"""
        add_pooling_layer (`bool`, *optional*, defaults to `True`):
            Whether to compute `pooler_output`.
        """
        super().__init__(config)
        if getattr(config, "add_cross_attention", False):
            raise ValueError(f"add_cross_attention=True: {NO_DECODER}")
        self.embeddings = ZooBertEmbeddings(config)
        self.encoder = ZooBertEncoder(self.config)
        self.pooler = ZooBertPooler(config) if add_pooling_layer else None
        if not add_pooling_layer:
            self._keys_to_ignore_on_load_unexpected = ZooBertPreTrainedModel._keys_to_ignore_on_load_unexpected
        self.post_init()

    def get_input_embeddings(self):
        return self.embeddings.word_embeddings

    def set_input_embeddings(self, value):
        self.embeddings.word_embeddings = value

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
        unpad: bool | None = None,
        first_token_only: bool = False,
        cache: Cache | None = None,
        packing: Packing | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple[torch.Tensor] | BaseModelOutputWithPoolingAndCrossAttentions:
        r"""
        past_key_values (`Cache`, *optional*):
            The cache, under its name up to transformers 5.23.
        unpad (`bool`, *optional*, defaults to `config.unpad`):
            Whether to compute the real tokens only. This applies where the mask shows padding, or
            `cu_seq_lens_q` or `seq_idx` that a row holds several sequences. Padding is computed all the same when
            attentions are returned, or hidden states with gradients, when shapes must be static (a traced graph, XLA)
            and, unless `True` is passed, when a module of the model has a hook or a GPU gets few tokens. In all of
            these cases `last_hidden_state` is zero at padding. With `False`, it holds the states of padding.
        first_token_only (`bool`, *optional*, defaults to `False`):
            Whether to return only the state of the first token, or with `config.is_decoder` of the last real one:
            `last_hidden_state` is then `(batch_size, 1, hidden_size)`. Has no effect with `config.unpad=False` unless
            `unpad=True` is passed, or when a module of the model has a hook that may need all states.
        cache (`Cache`, *optional*):
            Keys and values of P tokens in front of each row, as prefix tuning learns them. `attention_mask` then has
            P more columns, the positions of the tokens begin at P, and padding is computed and has states.
        packing (`Packing`, *optional*):
            Where the real tokens are, as `DataCollatorWithPacking` finds it. It changes no result; a GPU then need not
            be waited for to read the mask.
        """
        inputs, cache = one_of(input_ids, inputs_embeds), cache_of_either_name(cache, past_key_values)
        self._check_no_decoder(kwargs)
        check_shapes(inputs, attention_mask, token_type_ids, position_ids, past=cached_tokens(cache))
        token, longest = "last" if self.config.is_decoder else "first", self.config.max_position_embeddings
        token = token if first_token_only else None
        plan = make_plan(self, inputs, attention_mask, position_ids, cache, kwargs, unpad, token, longest, packing)
        tensors = plan.enter(input_ids, token_type_ids, plan.positions, inputs_embeds)
        encoded = self._encode(*tensors, plan, cache, return_dict=True, **kwargs)
        hidden_states = plan.leave(encoded.last_hidden_state, is_last=True)  # (B, 1 or T, H)
        pooled = None
        if self.pooler is not None:  # before padding is zero: a row may begin with it
            states = hidden_states
            if self.config.is_decoder and states.shape[1] > 1:
                states = states_at(states, last_columns(inputs, attention_mask).unsqueeze(1))
            pooled = self.pooler(states)  # (B, H)
        return BaseModelOutputWithPoolingAndCrossAttentions(
            last_hidden_state=plan.zero_padding(hidden_states),
            pooler_output=pooled,
            hidden_states=encoded.hidden_states and tuple(map(plan.leave, encoded.hidden_states)),
            attentions=encoded.attentions,
            cross_attentions=encoded.cross_attentions,
        )

    @capture_outputs
    def _encode(
        self,
        input_ids: torch.Tensor | None,
        token_type_ids: torch.Tensor | None,
        position_ids: torch.Tensor,
        inputs_embeds: torch.Tensor | None,
        plan: Plan,
        cache: Cache | None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        """The encoder on a batch with its padding, (B, T), or on a packed one, (1, N); states of that shape."""
        hidden_states = self.embeddings(input_ids, token_type_ids, position_ids, inputs_embeds)
        is_causal = is_causal_call(kwargs, default=self.config.is_decoder)
        mask = create_mask(self.config, hidden_states, plan, cache, is_causal)
        return self.encoder(hidden_states, mask, packing=plan.packing, read=plan.read, cache=cache, **kwargs)

    def _check_no_decoder(self, kwargs: dict):
        """Raises ValueError for inputs of a decoder."""
        decoder_names = ["encoder_hidden_states", "encoder_attention_mask"] + ["use_cache"] * self.config.is_decoder
        unsupported = [name for name in decoder_names if kwargs.get(name) is not None and kwargs[name] is not False]
        if unsupported:
            raise ValueError(f"{', '.join(unsupported)}: {NO_DECODER}")
        if kwargs.get("is_causal") and not self.config.is_decoder:
            raise ValueError(
                "is_causal=True, but this is an encoder: set config.is_decoder=True to read left to right."
            )


class ZooBertWordPredictor(ZooBertPreTrainedModel):
    """Base of the models with a language modeling head, whose weights are those of the embeddings."""

    _tied_weights_keys = {
        "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    }
    _tp_plan = {"cls.predictions.decoder": "colwise_gather_output", "cls.predictions.bias": "colwise"}

    def get_output_embeddings(self):
        return self.cls.predictions.decoder

    def set_output_embeddings(self, new_embeddings):
        self.cls.predictions.decoder = new_embeddings
        self.cls.predictions.bias = new_embeddings.bias

    def predict_words(
        self, hidden_states: torch.Tensor, labels: torch.Tensor | None, skip_logits: bool, **kwargs
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """The masked LM head on (B, T, H) states: (B, T, V) logits and the loss, each None where it is not wanted.

        The head costs as much as several layers, and pre-training labels 15 % of the tokens. So without logits it runs
        at the labelled tokens only.
        """
        if labels is None:
            if skip_logits:
                raise ValueError("skip_logits=True returns the loss in place of logits: give labels")
            return self.cls.predictions(hidden_states), None
        labels = labels.to(hidden_states.device)
        if skip_logits and not (is_opaque(labels) or hooks_need_padding(self.cls)):
            hidden_states, labels = at_labels(hidden_states, labels, kwargs.get("packing"))  # (n, H), (n,)
            head, count = self.cls.predictions, kwargs.get("num_items_in_batch")
            plain = is_plain(head, ZooBertLMPredictionHead) and is_plain(head.decoder, Linear)
            if plain and self.loss_function is token_loss and hidden_states.dtype != torch.float64:
                return None, mean_word_loss(head.transform(hidden_states), head.decoder, labels, count)
        logits = self.cls.predictions(hidden_states)
        loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size, **kwargs)
        return None if skip_logits else logits, loss


@auto_docstring(custom_intro="BERT with a masked language modeling head.")
class ZooBertForMaskedLM(ZooBertWordPredictor):
    def __init__(self, config: ZooBertConfig):
        super().__init__(config)
        self.bert = ZooBertModel(self.config, add_pooling_layer=False)
        self.cls = ZooBertPretrainingHeads(config, masked_lm=True, next_sentence=False)
        self.loss_function = token_loss
        self.post_init()

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
        skip_logits: bool = False,
        unpad: bool | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple[torch.Tensor] | MaskedLMOutput:
        r"""
        labels (`torch.LongTensor` of shape `(batch_size, sequence_length)`, *optional*):
            The word pieces to predict; -100 elsewhere.
        skip_logits (`bool`, *optional*, defaults to `False`):
            Whether to return `logits=None`. The head then runs at the labelled positions only. Needs `labels`.
        unpad (`bool`, *optional*, defaults to `config.unpad`):
            Whether to leave padding out if the loss does not need it; see `ZooBertModel.forward`.
        """
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        outputs = self.encode_tokens(*inputs, labels, unpad, **kwargs)
        logits, loss = self.predict_words(outputs.last_hidden_state, labels, skip_logits, **kwargs)
        return MaskedLMOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


@auto_docstring(custom_intro="BERT with both pre-training heads: masked words and next sentence prediction.")
class ZooBertForPreTraining(ZooBertWordPredictor):
    # Trainer counts one kind of label; the two losses here are means over labels of different kinds.
    accepts_loss_kwargs = False

    def __init__(self, config: ZooBertConfig):
        super().__init__(config)
        self.bert = ZooBertModel(self.config)
        self.cls = ZooBertPretrainingHeads(config, masked_lm=True, next_sentence=True)
        self.loss_function = token_loss
        self.post_init()

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
        next_sentence_label: torch.Tensor | None = None,
        skip_logits: bool = False,
        unpad: bool | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple[torch.Tensor] | BertForPreTrainingOutput:
        r"""
        labels (`torch.LongTensor` of shape `(batch_size, sequence_length)`, *optional*):
            The word pieces to predict; -100 elsewhere.
        next_sentence_label (`torch.LongTensor` of shape `(batch_size,)`, *optional*):
            0 where the second segment follows the first, 1 where it is a random one.
        skip_logits (`bool`, *optional*, defaults to `False`):
            Whether to return `prediction_logits=None`. The masked LM head then runs at the labelled positions only.
            Needs `labels`.
        unpad (`bool`, *optional*, defaults to `config.unpad`):
            Whether to leave padding out if the loss does not need it; see `ZooBertModel.forward`.
        """
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        outputs = self.encode_tokens(*inputs, labels, unpad, **kwargs)
        prediction_logits, loss = self.predict_words(outputs.last_hidden_state, labels, skip_logits, **kwargs)
        next_sentence_logits = self.cls.seq_relationship(outputs.pooler_output)  # (B, 2)
        if next_sentence_label is not None:
            next_sentence_loss = class_loss(next_sentence_logits, next_sentence_label)
            loss = next_sentence_loss if loss is None else loss + next_sentence_loss
        return BertForPreTrainingOutput(
            loss=loss,
            prediction_logits=prediction_logits,
            seq_relationship_logits=next_sentence_logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


@auto_docstring(custom_intro="BERT from left to right, with a head that predicts the next token.")
class ZooBertLMHeadModel(ZooBertWordPredictor):
    def __init__(self, config: ZooBertConfig):
        if not config.is_decoder:
            raise ValueError(
                "is_decoder=False: this BERT is a bidirectional encoder and does not decode, because every token sees "
                "the one that the head predicts. Train it from left to right with is_decoder=True, or load this "
                "checkpoint with transformers.BertLMHeadModel, or call modeling.unregister() first"
            )
        super().__init__(config)
        self.bert = ZooBertModel(self.config, add_pooling_layer=False)
        self.cls = ZooBertPretrainingHeads(config, masked_lm=True, next_sentence=False)
        self.loss_type = "ForCausalLM"  # which the class's name does not show
        self.post_init()

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
        unpad: bool | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple[torch.Tensor] | CausalLMOutputWithCrossAttentions:
        r"""
        labels (`torch.LongTensor` of shape `(batch_size, sequence_length)`, *optional*):
            The tokens themselves, usually `input_ids`; -100 for tokens that are not to be predicted. The model shifts
            them.
        unpad (`bool`, *optional*, defaults to `config.unpad`):
            Whether to leave padding out if the loss does not need it; see `ZooBertModel.forward`.
        """
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        outputs = self.encode_tokens(*inputs, labels, unpad, predicts_next=True, **kwargs)
        logits = self.cls.predictions(slice_logits_to_keep(outputs.last_hidden_state, logits_to_keep))  # (B, T, V)
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size, **kwargs)
        return CausalLMOutputWithCrossAttentions(
            loss=loss,
            logits=logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
            cross_attentions=outputs.cross_attentions,
        )

    def generate(self, *args, **kwargs):
        """Raises ValueError: the model has no cache, and is for pre-training and scoring."""
        raise ValueError(f"generate: {NO_DECODER}")


__all__ = [
    "ZooBertForMaskedLM",
    "ZooBertForPreTraining",
    "ZooBertLMHeadModel",
    "ZooBertModel",
    "ZooBertPreTrainedModel",
]
