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
"""ELMo's tagger: words -> bidirectional LSTM -> conditional random field (named entities, parts of speech).

Peters et al. 2018 (arXiv 1802.05365), section 4 and the supplement on named entities. Without the biLM, it is the
baseline of that paper. With the biLM's top layer joined to the states of the first LSTM layer
(`elmo_placement="after_first_rnn"`, `mix_top_layer_only=True`), it is TagLM (Peters et al. 2017, arXiv 1705.00108).
"""

import torch
import torch.nn as nn
from transformers.modeling_outputs import TokenClassifierOutput
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs, auto_docstring
from transformers.utils.generic import can_return_tuple
from transformers.utils.import_utils import is_tracing

from ..shared.modeling_heads import IGNORED, token_loss
from .configuration_elmo import ElmoConfig
from .modeling_elmo_crf import ConditionalRandomField
from .modeling_elmo_layers import BiLSTM, ElmoTaskModel, VariationalDropout


# Choices of the user, for any checkpoint:
# trf-ignore: TRF041 config.use_crf, config.constrain_tags


@auto_docstring(
    custom_intro="A bidirectional LSTM over words, with or without ELMo's vectors, and a CRF over their tags."
)
class ElmoForTokenClassification(ElmoTaskModel):
    def __init__(self, config: ElmoConfig):
        super().__init__(config)
        self.num_labels = config.num_labels
        joins_first_rnn = config.elmo_placement == "after_first_rnn"
        self.rnn = BiLSTM(
            self.word_size,
            config.rnn_size,
            config.rnn_layers,
            dropout=config.task_dropout,
            late_size=self.late_size if joins_first_rnn else 0,
        )
        late_size = 0 if joins_first_rnn else self.late_size
        self.classifier = nn.Linear(self.rnn.output_size + late_size, config.num_labels)
        self.dropout = VariationalDropout(config.task_dropout)
        self.crf = None
        if config.use_crf:
            self.crf = ConditionalRandomField(config.num_labels, self.constraining_names())
        self.post_init()

    def constraining_names(self) -> list[str] | None:
        """The names of all tags, or None without `constrain_tags`. Raises ValueError for a tag without a name."""
        if not self.config.constrain_tags:
            return None
        names = [self.config.id2label.get(tag) for tag in range(self.num_labels)]
        if None in names:
            raise ValueError(
                f"config.id2label has no name for tag {names.index(None)}, but the model has {self.num_labels} tags, "
                "whose names the CRF reads: name them all by their numbers, or set config.constrain_tags=False"
            )
        return names

    @can_return_tuple
    @auto_docstring
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        vector_ids: torch.Tensor | None = None,
        layer_states: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple[torch.Tensor] | TokenClassifierOutput:
        r"""
        input_ids (`torch.LongTensor` of shape `(batch_size, sequence_length, max_characters_per_token)`, *optional*):
            Character ids of each word, from `ElmoTokenizer`.
        token_type_ids (`torch.LongTensor` of shape `(batch_size, sequence_length)`, *optional*):
            0 for the words of a row's first sentence, 1 for those of its second. The biLM reads each by itself.
        vector_ids (`torch.LongTensor` of shape `(batch_size, sequence_length)`, *optional*):
            The row of each word in the word vectors: 0 for padding, 1 for unknown words.
        layer_states (`torch.Tensor` of shape `(batch_size, sequence_length, layers, hidden_size)`, *optional*):
            The frozen biLM's layers for each word, computed earlier; the biLM is then not run.
        labels (`torch.LongTensor` of shape `(batch_size, sequence_length)`, *optional*):
            The tag of each word; -100 where it is unknown, for which the CRF sums over all tags.

        With a CRF, `logits` are its emission scores in training mode. Otherwise they are its max-marginals: the
        greatest logit of each word is at its tag in the best sequence.
        """
        words, mask, late, hidden_states = self.embed_words(
            input_ids, attention_mask, token_type_ids, vector_ids, layer_states, **kwargs
        )
        joins_first_rnn = self.config.elmo_placement == "after_first_rnn"
        states = self.rnn(words, mask, late if joins_first_rnn else None)  # (B, T, R)
        if late is not None and not joins_first_rnn:
            states = torch.cat([states, late], -1)
        emissions = self.classifier(self.dropout(states))  # (B, T, C)
        if self.crf is not None:
            self.crf.constrain(self.constraining_names())  # the configuration may have changed
        loss = None
        if labels is not None:
            if labels.shape != mask.shape:
                raise ValueError(f"labels are {tuple(labels.shape)}, not {tuple(mask.shape)}: one tag a word")
            labels = labels.to(emissions.device).masked_fill(~mask, IGNORED)
            loss = self.tag_loss(emissions, labels, mask, **kwargs)
            loss = self.add_mix_penalty(loss, labels, **kwargs)
        decodes = self.crf is not None and not self.training
        return TokenClassifierOutput(
            loss=loss,
            logits=self.crf.max_marginals(emissions, mask) if decodes else emissions,
            hidden_states=hidden_states,
        )

    def tag_loss(
        self,
        emissions: torch.Tensor,
        labels: torch.Tensor,
        mask: torch.Tensor,
        num_items_in_batch: torch.Tensor | int | None = None,
        **kwargs,
    ) -> torch.Tensor:
        """The negative log-likelihood of (B, T) labels per word: the mean over the words with a label."""
        if labels.device.type == "cpu" and not is_tracing(labels):  # elsewhere, reading would wait for the device
            invalid = labels[(labels != IGNORED) & ((labels < 0) | (labels >= self.num_labels))]
            if len(invalid):
                raise ValueError(
                    f"labels hold {int(invalid[0])}, but the model has num_labels={self.num_labels} tags, from 0 on; "
                    f"{IGNORED} means not labelled. Map the data's tags with the model's config.label2id."
                )
        if num_items_in_batch is None:
            num_items_in_batch = (labels != IGNORED).sum().clamp(min=1)
        if self.crf is None:
            return token_loss(emissions, labels, num_items_in_batch)
        return self.crf.negative_log_likelihood(emissions, labels, mask).sum() / num_items_in_batch


__all__ = ["ElmoForTokenClassification"]
