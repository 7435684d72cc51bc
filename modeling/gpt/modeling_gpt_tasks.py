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
"""GPT fine-tuned (Radford et al. 2018, section 3.2): one linear layer on the state of the last token.

The inputs are those of section 3.3: for every task the tokenizer makes one row of tokens (tokenization_gpt.py). The
last real token of a row is the extract token, whose state the head reads; padding may be on either side. The two
sentences of a similarity task have no order: with `config.both_orders`, the row with the sentences swapped is made
here, and the two final states are added.

Equation 5's language modeling loss, weighted by `config.lm_loss_weight`, is the mean over the tokens of each row, then
the mean over the rows. So a long row counts as much as a short one, as in the released code.

Letters: as in modeling_gpt.py; C classes, K choices of a question, R rows.
"""

import torch
import torch.nn as nn
from transformers.cache_utils import Cache
from transformers.modeling_outputs import (
    BaseModelOutputWithPast,
    MultipleChoiceModelOutput,
    QuestionAnsweringModelOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)
from transformers.processing_utils import Unpack
from transformers.utils import ModelOutput, TransformersKwargs, auto_docstring
from transformers.utils.generic import can_return_tuple

from ..shared.modeling_heads import (
    check_shapes,
    class_loss,
    flatten_choices,
    is_possible,
    loss_needs_padding,
    one_of,
    sequence_classification_loss,
    token_loss,
    word_loss,
)
from ..shared.modeling_onednn import is_opaque
from ..shared.modeling_packing import cache_of_either_name, cached_tokens, last_columns, states_at
from .configuration_gpt import ZooGPTConfig
from .modeling_gpt import ZooGPTModel, ZooGPTPreTrainedModel


# The task decides this, for any checkpoint:
# trf-ignore: TRF041 config.both_orders


def second_order(input_ids: torch.Tensor, attention_mask: torch.Tensor, delimiter: int | None) -> torch.Tensor:
    """(B, T) the columns that turn rows "start, A, delimiter, B, extract" into "start, B, delimiter, A, extract".

    Padding stays where it is. The first delimiter of a row separates the sentences; a row without one raises
    ValueError.
    """
    columns = torch.arange(input_ids.shape[1], device=input_ids.device)  # (T,)
    real = attention_mask.to(input_ids.device) != 0
    is_delimiter = (input_ids == (-1 if delimiter is None else delimiter)) & real
    if not is_opaque(is_delimiter) and not bool(is_delimiter.any(-1).all()):
        row = int(is_delimiter.any(-1).int().argmin())
        raise ValueError(
            f"row {row} has no delimiter (sep_token_id={delimiter}), so its sentences cannot be swapped: tokenize "
            "pairs with the tokenizer's task_inputs=True and give the model its sep_token_id, or set both_orders=False"
        )
    start, middle = real.int().argmax(-1, keepdim=True), is_delimiter.int().argmax(-1, keepdim=True)  # (B, 1)
    extract = last_columns(input_ids, attention_mask).unsqueeze(1)
    new_middle = start + extract - middle  # the delimiter's column after the swap
    second, first = columns - start + middle, columns - new_middle + start
    source = torch.where(columns < new_middle, second, torch.where(columns > new_middle, first, middle))
    return torch.where((columns > start) & (columns < extract), source, columns)


def positions_of_real_tokens(
    inputs: torch.Tensor, attention_mask: torch.Tensor | None, past: int = 0
) -> torch.Tensor | None:
    """(B, T) positions that count from each row's first real token, or None where these are the columns' numbers.

    The mask is (B, P + T), where a cache holds P tokens, `past`; positions then count from P.
    """
    if attention_mask is None or attention_mask.dim() != 2:
        return None
    real = attention_mask[:, past:].to(inputs.device) != 0
    if not is_opaque(real) and bool(real[:, 0].all()):
        return None
    columns = torch.arange(real.shape[1], device=inputs.device)
    return past + (columns - real.int().argmax(-1, keepdim=True)).clamp(min=0)


def real_positions(positions: torch.Tensor, attention_mask: torch.Tensor | None, states: torch.Tensor) -> torch.Tensor:
    """(B,) positions in (B, T, ...) states; those at padding become T, which the loss leaves out."""
    positions = positions.reshape(-1).to(states.device)
    if attention_mask is None or attention_mask.dim() != 2:
        return positions
    real = attention_mask.to(states.device) != 0
    return positions.masked_fill(~is_possible(positions.clamp(min=0), real), states.shape[1])


@auto_docstring(custom_intro="Base of the heads, most of which read the state of each row's last token.")
class ZooGPTTaskModel(ZooGPTPreTrainedModel):
    def decode(
        self,
        input_ids: torch.Tensor | None,
        attention_mask: torch.Tensor | None,
        token_type_ids: torch.Tensor | None,
        position_ids: torch.Tensor | None,
        inputs_embeds: torch.Tensor | None,
        labels: torch.Tensor | None = None,
        cache: Cache | None = None,
        unpad: bool | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutputWithPast:
        """The model's output. Positions count from each row's first real token; `labels` are those of tokens."""
        inputs, past = one_of(input_ids, inputs_embeds), int(cached_tokens(cache))
        check_shapes(inputs, attention_mask, position_ids=position_ids, labels=labels, past=past)
        packing = kwargs.get("packing")
        if position_ids is None and (packing is None or not packing.fits(attention_mask)):  # it has none on the left
            position_ids = positions_of_real_tokens(inputs, attention_mask, past)
        return self.transformer(
            input_ids,
            attention_mask,
            token_type_ids,
            position_ids,
            inputs_embeds,
            unpad=False if loss_needs_padding(labels, attention_mask, packing=packing) else unpad,
            cache=cache,
            return_dict=True,
            **kwargs | {"use_cache": False},
        )

    def mask_padding(
        self, input_ids: torch.Tensor | None, attention_mask: torch.Tensor | None, past: int = 0
    ) -> torch.Tensor | None:
        """The user's mask, or one that hides `pad_token_id` after a row's last token, as in transformers' GPT.

        The new mask is (B, P + T) and shows the P tokens, `past`, that a cache holds.
        """
        if attention_mask is not None or input_ids is None or self.config.pad_token_id is None:
            return attention_mask
        last = last_columns(input_ids, input_ids != self.config.pad_token_id).unsqueeze(1)
        mask = (torch.arange(input_ids.shape[1], device=input_ids.device) <= last).long()
        return nn.functional.pad(mask, (past, 0), value=1)

    def read(
        self,
        input_ids: torch.Tensor | None,
        attention_mask: torch.Tensor | None,
        token_type_ids: torch.Tensor | None,
        position_ids: torch.Tensor | None,
        inputs_embeds: torch.Tensor | None,
        labels: torch.Tensor | None,
        unpad: bool | None,
        cache: Cache | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple[ModelOutput, torch.Tensor, torch.Tensor | None]:
        """Runs the model: its output on R rows, the (R, H) states of their last tokens, and the weighted LM loss.

        The LM loss is None without labels and with `config.lm_loss_weight=0`. `num_items_in_batch` counts labels.
        """
        with_lm_loss = labels is not None and self.config.lm_loss_weight > 0
        if with_lm_loss and input_ids is None:
            raise ValueError("lm_loss_weight needs words to predict: give input_ids instead of inputs_embeds")
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        outputs = self.decode(*inputs, cache=cache, unpad=unpad, last_token_only=not with_lm_loss, **kwargs)
        states = outputs.last_hidden_state  # (R, 1 or T, H)
        if not with_lm_loss and states.shape[1] == 1:
            return outputs, states[:, 0], None
        last_states = states_at(states, last_columns(states, attention_mask).unsqueeze(1))[:, 0]
        if not with_lm_loss:
            return outputs, last_states, None
        lm_loss = self.lm_loss(states, input_ids, attention_mask)
        rows = len(states)
        lm_loss = lm_loss / (rows if num_items_in_batch is None else rows * num_items_in_batch / labels.numel())
        return outputs, last_states, self.config.lm_loss_weight * lm_loss

    def lm_loss(
        self, hidden_states: torch.Tensor, input_ids: torch.Tensor, attention_mask: torch.Tensor | None
    ) -> torch.Tensor:
        """The sum over R rows of the mean cross-entropy of the tokens that follow a row's first (equation 1)."""
        targets = input_ids[:, 1:]
        counted = torch.ones_like(targets, dtype=torch.bool)
        if attention_mask is not None and attention_mask.dim() == 2:
            real = attention_mask[:, -input_ids.shape[1] :].to(targets.device) != 0
            counted = real[:, :-1] & real[:, 1:]
        weights = counted / counted.sum(-1, keepdim=True).clamp(min=1)  # (R, T - 1), float32
        states, words = hidden_states[:, :-1], self.word_table()
        if is_opaque(counted):
            logits = nn.functional.linear(states, words).float().transpose(1, 2)  # (R, V, T - 1)
            return (nn.functional.cross_entropy(logits, targets, reduction="none") * weights).sum()
        return word_loss(states[counted], words, targets[counted], weights[counted])

    def word_table(self) -> torch.Tensor:
        """(V, H) word embeddings. Only their module can assemble them if sharded (FSDP) or adapted (peft)."""
        embedding = self.transformer.tokens_embed
        if type(embedding) is nn.Embedding:
            return embedding.weight
        return embedding(torch.arange(self.config.vocab_size, device=embedding.weight.device))


@auto_docstring(custom_intro="GPT with a classifier, or a regression, on the state of the last token (GLUE).")
class ZooGPTForSequenceClassification(ZooGPTTaskModel):
    def __init__(self, config: ZooGPTConfig):
        super().__init__(config)
        self.num_labels = config.num_labels
        self.transformer = ZooGPTModel(self.config)
        self.dropout = nn.Dropout(config.summary_first_dropout)
        self.score = nn.Linear(config.n_embd, config.num_labels, bias=False)  # equation 3 has no bias
        self.loss_function = sequence_classification_loss
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
        past_key_values: Cache | None = None,
        unpad: bool | None = None,
        cache: Cache | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple[torch.Tensor] | SequenceClassifierOutput:
        r"""
        token_type_ids (`torch.LongTensor` of shape `(batch_size, sequence_length)`, *optional*):
            Tokens whose embeddings are added to those of the words, as in transformers' OpenAI GPT.
        labels (`torch.Tensor` of shape `(batch_size,)`, or `(batch_size, num_labels)`, *optional*):
            Class indices, floats for regression, or rows of 0 and 1 for multi-label classification, as
            `config.problem_type` says. If that is `None`, `num_labels=1` means regression; otherwise integers are
            class indices and floats are multi-label rows. The loss includes `config.lm_loss_weight` times the language
            modeling loss.
        past_key_values (`Cache`, *optional*):
            The cache, under its name up to transformers 5.23.
        unpad (`bool`, *optional*, defaults to `config.unpad`):
            Whether to leave padding out; see `ZooGPTModel.forward`.
        cache (`Cache`, *optional*):
            Keys and values of P tokens in front of each row, as prefix tuning learns them; `attention_mask` then has P
            more columns. Not with `config.both_orders`, which reads two rows per pair.
        """
        cache = cache_of_either_name(cache, past_key_values)
        attention_mask = self.mask_padding(input_ids, attention_mask, int(cached_tokens(cache)))
        rows = [input_ids, attention_mask, token_type_ids, position_ids]
        if self.config.both_orders:
            if cache is not None:
                raise ValueError("both_orders reads two rows a pair, but the cache holds one: use only one of the two")
            rows = self.in_both_orders(*rows)
            kwargs.pop("packing", None)  # of one row a pair
        outputs, states, lm_loss = self.read(*rows, inputs_embeds, labels, unpad=unpad, cache=cache, **kwargs)
        if self.config.both_orders:
            states = states.unflatten(0, (2, -1)).sum(0)  # (2B, H) -> (B, H)
        logits = self.score(self.dropout(states))  # (B, C)
        loss = None
        if labels is not None:
            loss = self.loss_function(labels=labels, pooled_logits=logits, config=self.config, **kwargs)
        if lm_loss is not None:
            loss = loss + lm_loss
        return SequenceClassifierOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )

    def in_both_orders(self, input_ids, attention_mask, token_type_ids, position_ids) -> list[torch.Tensor | None]:
        """B rows of pairs -> 2B rows, the second half with the sentences swapped."""
        if input_ids is None:
            raise ValueError("both_orders finds the two sentences by their tokens: give input_ids, not inputs_embeds")
        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids)
        check_shapes(input_ids, attention_mask, token_type_ids, position_ids)
        order = second_order(input_ids, attention_mask, self.config.sep_token_id)
        swapped = [
            None if ids is None else torch.cat([ids, ids.gather(1, order)])
            for ids in (input_ids, None if token_type_ids is None else token_type_ids.expand(input_ids.shape))
        ]
        repeated = [
            None if tensor is None else tensor.expand(input_ids.shape).repeat(2, 1)
            for tensor in (attention_mask, position_ids)
        ]
        return [swapped[0], repeated[0], swapped[1], repeated[1]]


class ZooGPTSummary(nn.Module):
    """Dropout, then a linear layer that scores a state (`multiple_choice_head` in published files)."""

    def __init__(self, config: ZooGPTConfig):
        super().__init__()
        self.dropout = nn.Dropout(config.summary_first_dropout)
        self.summary = nn.Linear(config.n_embd, 1)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return self.summary(self.dropout(states)).squeeze(-1)  # (..., H) -> (...)


@auto_docstring(
    custom_intro="GPT with one score per choice, from the last token of context and choice (Story Cloze, RACE)."
)
class ZooGPTForMultipleChoice(ZooGPTTaskModel):
    def __init__(self, config: ZooGPTConfig):
        super().__init__(config)
        self.transformer = ZooGPTModel(self.config)
        self.multiple_choice_head = ZooGPTSummary(config)
        self.loss_function = class_loss
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
        unpad: bool | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple[torch.Tensor] | MultipleChoiceModelOutput:
        r"""
        input_ids (`torch.LongTensor` of shape `(batch_size, num_choices, sequence_length)`):
            Token ids of the context with each choice. Masks and positions have the same shape.
        token_type_ids (`torch.LongTensor` of shape `(batch_size, num_choices, sequence_length)`, *optional*):
            Tokens whose embeddings are added to those of the words, as in transformers' OpenAI GPT.
        position_ids (`torch.LongTensor` of shape `(batch_size, num_choices, sequence_length)`, *optional*):
            Positions of the tokens.
        inputs_embeds (`torch.Tensor` of shape `(batch_size, num_choices, sequence_length, hidden_size)`, *optional*):
            Embeddings instead of `input_ids`.
        labels (`torch.LongTensor` of shape `(batch_size,)`, *optional*):
            The index of the right choice. The loss includes `config.lm_loss_weight` times the language modeling loss.
        unpad (`bool`, *optional*, defaults to `config.unpad`):
            Whether to leave padding out; see `ZooGPTModel.forward`.
        """
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        shape, rows = flatten_choices(*inputs)  # (B * K, T)
        rows[1] = self.mask_padding(*rows[:2])
        outputs, states, lm_loss = self.read(*rows, labels, unpad=unpad, **kwargs)
        logits = self.multiple_choice_head(states).unflatten(0, shape)  # (B, K)
        loss = None if labels is None else self.loss_function(logits=logits, labels=labels, **kwargs)
        if lm_loss is not None:
            loss = loss + lm_loss
        return MultipleChoiceModelOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


@auto_docstring(custom_intro="GPT with a classifier on every token, which sees only the tokens before it (tagging).")
class ZooGPTForTokenClassification(ZooGPTTaskModel):
    def __init__(self, config: ZooGPTConfig):
        super().__init__(config)
        self.num_labels = config.num_labels
        self.transformer = ZooGPTModel(self.config)
        self.dropout = nn.Dropout(config.summary_first_dropout)
        self.classifier = nn.Linear(config.n_embd, config.num_labels)
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
        unpad: bool | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple[torch.Tensor] | TokenClassifierOutput:
        r"""
        token_type_ids (`torch.LongTensor` of shape `(batch_size, sequence_length)`, *optional*):
            Tokens whose embeddings are added to those of the words, as in transformers' OpenAI GPT.
        labels (`torch.LongTensor` of shape `(batch_size, sequence_length)`, *optional*):
            The class of each token; -100 for tokens that do not count.
        unpad (`bool`, *optional*, defaults to `config.unpad`):
            Whether to leave padding out if the loss does not need it; see `ZooGPTModel.forward`.
        """
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        outputs = self.decode(*inputs, labels, unpad=unpad, **kwargs)
        logits = self.classifier(self.dropout(outputs.last_hidden_state))  # (B, T, C)
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, config=self.config, **kwargs)
        return TokenClassifierOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


@auto_docstring(custom_intro="GPT with a score for each token as the start and as the end of the answer (SQuAD).")
class ZooGPTForQuestionAnswering(ZooGPTTaskModel):
    def __init__(self, config: ZooGPTConfig):
        super().__init__(config)
        self.transformer = ZooGPTModel(self.config)
        self.qa_outputs = nn.Linear(config.n_embd, 2)
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
        start_positions: torch.Tensor | None = None,
        end_positions: torch.Tensor | None = None,
        unpad: bool | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple[torch.Tensor] | QuestionAnsweringModelOutput:
        r"""
        token_type_ids (`torch.LongTensor` of shape `(batch_size, sequence_length)`, *optional*):
            Tokens whose embeddings are added to those of the words, as in transformers' OpenAI GPT.
        start_positions (`torch.LongTensor` of shape `(batch_size,)`, *optional*):
            The index of the answer's first token. The loss is a softmax over all real tokens; an answer that is none
            of them does not count.
        end_positions (`torch.LongTensor` of shape `(batch_size,)`, *optional*):
            The index of the answer's last token.
        unpad (`bool`, *optional*, defaults to `config.unpad`):
            Whether to leave padding out; see `ZooGPTModel.forward`.
        """
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        outputs = self.decode(*inputs, unpad=unpad, **kwargs)
        logits = self.qa_outputs(outputs.last_hidden_state)  # (B, T, 2)
        if attention_mask is not None and attention_mask.dim() == 2:
            padding = (attention_mask == 0).unsqueeze(-1).to(logits.device)
            logits = logits.masked_fill(padding, torch.finfo(logits.dtype).min)
        start_logits, end_logits = (scores.contiguous() for scores in logits.unbind(-1))  # (B, T) each
        loss = None
        if start_positions is not None and end_positions is not None:
            positions = [real_positions(each, attention_mask, logits) for each in (start_positions, end_positions)]
            loss = self.loss_function(start_logits, end_logits, *positions, **kwargs)
        return QuestionAnsweringModelOutput(
            loss=loss,
            start_logits=start_logits,
            end_logits=end_logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


__all__ = [
    "ZooGPTForMultipleChoice",
    "ZooGPTForQuestionAnswering",
    "ZooGPTForSequenceClassification",
    "ZooGPTForTokenClassification",
]
