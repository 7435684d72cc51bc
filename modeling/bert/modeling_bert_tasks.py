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
"""BERT fine-tuned (Devlin et al. 2018, section 4 and appendix A.5): one linear layer on the encoder's states.

Letters: as in modeling_bert.py; C classes.
"""

import torch
import torch.nn as nn
from transformers.modeling_outputs import (
    MultipleChoiceModelOutput,
    NextSentencePredictorOutput,
    QuestionAnsweringModelOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)
from transformers.processing_utils import Unpack
from transformers.utils import ModelOutput, TransformersKwargs, auto_docstring
from transformers.utils.generic import can_return_tuple

from ..shared.modeling_heads import class_loss, flatten_choices, sequence_classification_loss, token_loss
from .configuration_bert import ZooBertConfig
from .modeling_bert import ZooBertModel, ZooBertPreTrainedModel, ZooBertPretrainingHeads


def classifier_dropout(config: ZooBertConfig) -> nn.Dropout:
    """The dropout before the linear layer that fine-tuning adds (section 4)."""
    dropout = config.classifier_dropout
    return nn.Dropout(config.hidden_dropout_prob if dropout is None else dropout)


class ZooBertClassifier(ZooBertPreTrainedModel):
    """The frame of the heads that score classes: `forward` runs the encoder, and a head computes `score`."""

    output_type: type[ModelOutput]
    reads_first_token = True  # whether `score` takes the pooled (B, H) state of [CLS], or else all (B, T, H) states

    def score(self, states: torch.Tensor) -> torch.Tensor:
        """(..., H) -> (..., C)."""
        return self.classifier(self.dropout(states))

    def loss(self, logits: torch.Tensor, labels: torch.Tensor, **kwargs: Unpack[TransformersKwargs]) -> torch.Tensor:
        return self.loss_function(logits=logits, labels=labels, **kwargs)

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
    ) -> tuple[torch.Tensor] | SequenceClassifierOutput:
        r"""
        labels (`torch.Tensor`, *optional*):
            The right classes. The description of the model has their shape.
        unpad (`bool`, *optional*, defaults to `config.unpad`):
            Whether to leave padding out if the loss does not need it; see `ZooBertModel.forward`.
        """
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        if self.reads_first_token:
            outputs = self.bert(*inputs, unpad=unpad, first_token_only=True, return_dict=True, **kwargs)
        else:
            outputs = self.encode_tokens(*inputs, labels, unpad, **kwargs)
        logits = self.score(outputs.pooler_output if self.reads_first_token else outputs.last_hidden_state)
        loss = None if labels is None else self.loss(logits, labels, **kwargs)
        return self.output_type(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


@auto_docstring(
    custom_intro="""
    BERT with a next sentence prediction head. `labels` are `(batch_size,)`: 0 where the second segment follows the
    first, 1 where it is a random one.
    """
)
class ZooBertForNextSentencePrediction(ZooBertClassifier):
    output_type = NextSentencePredictorOutput

    def __init__(self, config: ZooBertConfig):
        super().__init__(config)
        self.bert = ZooBertModel(self.config)
        self.cls = ZooBertPretrainingHeads(config, masked_lm=False, next_sentence=True)
        self.loss_function = class_loss
        self.post_init()

    def score(self, states: torch.Tensor) -> torch.Tensor:
        return self.cls.seq_relationship(states)  # (B, H) -> (B, 2)


@auto_docstring(
    custom_intro="""
    BERT with a classifier, or a regression, on the pooled [CLS] state (GLUE). `labels` are `(batch_size,)` class
    indices or floats, or `(batch_size, num_labels)` rows of 0 and 1 for multi-label classification, as
    `config.problem_type` says. If that is `None`, `num_labels=1` means regression; otherwise integers are class
    indices and floats are multi-label rows.
    """
)
class ZooBertForSequenceClassification(ZooBertClassifier):
    output_type = SequenceClassifierOutput

    def __init__(self, config: ZooBertConfig):
        super().__init__(config)
        self.num_labels = config.num_labels
        self.bert = ZooBertModel(self.config)
        self.dropout = classifier_dropout(config)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.loss_function = sequence_classification_loss
        self.post_init()

    def loss(self, logits: torch.Tensor, labels: torch.Tensor, **kwargs: Unpack[TransformersKwargs]) -> torch.Tensor:
        return self.loss_function(labels=labels, pooled_logits=logits, config=self.config, **kwargs)


@auto_docstring(
    custom_intro="""
    BERT with a classifier on every token (named entities). `labels` are `(batch_size, sequence_length)` classes; -100
    for tokens that do not count.
    """
)
class ZooBertForTokenClassification(ZooBertClassifier):
    output_type = TokenClassifierOutput
    reads_first_token = False

    def __init__(self, config: ZooBertConfig):
        super().__init__(config)
        self.num_labels = config.num_labels
        self.bert = ZooBertModel(self.config, add_pooling_layer=False)
        self.dropout = classifier_dropout(config)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.loss_function = token_loss
        self.post_init()


@auto_docstring(custom_intro="BERT with one score per choice, from the pooled state of [CLS] (SWAG).")
class ZooBertForMultipleChoice(ZooBertClassifier):
    output_type = MultipleChoiceModelOutput

    def __init__(self, config: ZooBertConfig):
        super().__init__(config)
        self.bert = ZooBertModel(self.config)
        self.dropout = classifier_dropout(config)
        self.classifier = nn.Linear(config.hidden_size, 1)
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
            Token ids of the question with each choice. Masks, segments and positions have the same shape.
        token_type_ids (`torch.LongTensor` of shape `(batch_size, num_choices, sequence_length)`, *optional*):
            0 for the first segment, 1 for the second.
        position_ids (`torch.LongTensor` of shape `(batch_size, num_choices, sequence_length)`, *optional*):
            Positions of the tokens.
        inputs_embeds (`torch.Tensor` of shape `(batch_size, num_choices, sequence_length, hidden_size)`, *optional*):
            Embeddings instead of `input_ids`.
        labels (`torch.LongTensor` of shape `(batch_size,)`, *optional*):
            The index of the right choice.
        unpad (`bool`, *optional*, defaults to `config.unpad`):
            Whether to leave padding out; see `ZooBertModel.forward`.
        """
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        shape, flat = flatten_choices(*inputs)  # (B * choices, T)
        outputs = super().forward(*flat, unpad=unpad, return_dict=True, **kwargs)
        logits = outputs.logits.view(shape)  # (B, choices)
        loss = None if labels is None else self.loss_function(logits=logits, labels=labels, **kwargs)
        return MultipleChoiceModelOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


@auto_docstring(custom_intro="BERT with a score for each token as the start and as the end of the answer (SQuAD).")
class ZooBertForQuestionAnswering(ZooBertPreTrainedModel):
    def __init__(self, config: ZooBertConfig):
        super().__init__(config)
        self.bert = ZooBertModel(self.config, add_pooling_layer=False)
        self.qa_outputs = nn.Linear(config.hidden_size, 2)
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
        start_positions (`torch.LongTensor` of shape `(batch_size,)`, *optional*):
            The index of the answer's first token. As in the released code, the softmax of the loss is over all
            columns, so padding is computed. The scores returned for padding are the lowest number of their type.
        end_positions (`torch.LongTensor` of shape `(batch_size,)`, *optional*):
            The index of the answer's last token.
        unpad (`bool`, *optional*, defaults to `config.unpad`):
            Whether to leave padding out if the loss does not need it; see `ZooBertModel.forward`.
        """
        with_loss = start_positions is not None and end_positions is not None
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        outputs = self.bert(*inputs, unpad=False if with_loss else unpad, return_dict=True, **kwargs)
        logits = self.qa_outputs(outputs.last_hidden_state)  # (B, T, 2)
        loss = self.loss_function(*logits.unbind(-1), start_positions, end_positions, **kwargs) if with_loss else None
        if attention_mask is not None and attention_mask.dim() == 2:
            padding = (attention_mask[:, -logits.shape[1] :] == 0).unsqueeze(-1).to(logits.device)
            logits = logits.masked_fill(padding, torch.finfo(logits.dtype).min)
        start_logits, end_logits = (scores.contiguous() for scores in logits.unbind(-1))  # (B, T) each
        return QuestionAnsweringModelOutput(
            loss=loss,
            start_logits=start_logits,
            end_logits=end_logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


__all__ = [
    "ZooBertForMultipleChoice",
    "ZooBertForNextSentencePrediction",
    "ZooBertForQuestionAnswering",
    "ZooBertForSequenceClassification",
    "ZooBertForTokenClassification",
]
