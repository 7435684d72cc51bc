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
"""ELMo with a classifier of sentences and sentence pairs: GLUE's BiLSTM + ELMo + Attn baseline.

Wang et al. 2018 (arXiv 1804.07461); released code: nyu-mll/GLUE-baselines, `src/models.py`. A sentence is represented
by the maximum over the states of a BiLSTM. In a pair, each word first attends to the other sentence by dot products,
and a second BiLSTM reads its state together with the result. One network does both: a row with words of type 1 is a
pair; in other rows, the second sentence is a vector of zeros. What differs from the released code: single sentences
have the classifier of pairs; regression has its hidden layer too; and a late mix, if the config has one, is
concatenated to the states that are pooled, for pairs too.

Letters: B rows, T columns, D size of a word's vector, R size of a state, C classes.
"""

import torch
import torch.nn as nn
from transformers.modeling_outputs import SequenceClassifierOutput
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs, auto_docstring
from transformers.utils.generic import can_return_tuple

from ..shared.modeling_heads import sequence_classification_loss
from .configuration_elmo import ElmoConfig
from .modeling_elmo_layers import BiLSTM, ElmoTaskModel
from .modeling_elmo_pairs import across, attend, max_pool, read_apart, refuse_taglm, sentence_masks


@auto_docstring(custom_intro="ELMo with a classifier, or a regression, of a sentence or of a pair (GLUE).")
class ElmoForSequenceClassification(ElmoTaskModel):
    def __init__(self, config: ElmoConfig):
        super().__init__(config)
        refuse_taglm(config)
        self.num_labels = config.num_labels
        self.sentence_rnn = BiLSTM(self.word_size, config.rnn_size, config.rnn_layers, config.task_dropout)
        self.pair_rnn = BiLSTM(2 * self.sentence_rnn.output_size, config.rnn_size, 1, config.task_dropout)
        pooled = self.pair_rnn.output_size + self.late_size
        self.hidden = nn.Linear(4 * pooled, config.classifier_size)
        self.classifier = nn.Linear(config.classifier_size, config.num_labels)
        self.dropout = nn.Dropout(config.task_dropout)
        self.loss_function = sequence_classification_loss
        self.post_init()

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
    ) -> tuple[torch.Tensor] | SequenceClassifierOutput:
        r"""
        token_type_ids (`torch.LongTensor` of shape `(batch_size, sequence_length)`, *optional*):
            0 for the words of the first sentence, 1 for those of the second.
        vector_ids (`torch.LongTensor` of shape `(batch_size, sequence_length)`, *optional*):
            The row of each word in the word vectors: 0 for padding, 1 for unknown words.
        layer_states (`torch.Tensor` of shape `(batch_size, sequence_length, layers, hidden_size)`, *optional*):
            The frozen biLM's layers for each word, computed earlier; the biLM is then not run.
        labels (`torch.Tensor` of shape `(batch_size,)`, or `(batch_size, num_labels)`, *optional*):
            Class indices, floats for regression, or rows of 0 and 1 for multi-label classification, as
            `config.problem_type` says. If that is `None`, `num_labels=1` means regression; otherwise integers are
            class indices and floats are multi-label rows.
        """
        words, mask, late, hidden_states = self.embed_words(
            input_ids, attention_mask, token_type_ids, vector_ids, layer_states, **kwargs
        )
        first, second = sentence_masks(mask, token_type_ids)
        states = self.read(words, first, second)  # (B, T, R)
        if late is not None:
            states = torch.cat([states, late], -1)
        u, v = max_pool(states, first), max_pool(states, second)
        pooled = self.dropout(torch.cat([u, v, (u - v).abs(), u * v], -1))
        logits = self.classifier(self.dropout(self.hidden(pooled).tanh()))  # (B, C)
        loss = None
        if labels is not None:
            loss = self.loss_function(labels=labels, pooled_logits=logits, config=self.config, **kwargs)
            loss = self.add_mix_penalty(loss, labels, **kwargs)
        return SequenceClassifierOutput(loss=loss, logits=logits, hidden_states=hidden_states)

    def read(self, words: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        """(B, T, D) -> (B, T, R): the states of the second BiLSTM for pairs, of the first for single sentences."""
        states = read_apart(self.sentence_rnn, words, first, second)
        attended = attend(states @ states.transpose(1, 2), states, across(first, second))
        is_pair = second.any(1, keepdim=True)  # (B, 1)
        # One word of a single sentence is read too but not used: DistributedDataParallel needs every parameter in use.
        is_read = is_pair | (first.int().cumsum(1) == 1)  # torch_xla sums booleans to booleans
        compared = read_apart(self.pair_rnn, torch.cat([states, attended], -1), first & is_read, second)
        return torch.where(is_pair.unsqueeze(-1), compared, states)


__all__ = ["ElmoForSequenceClassification"]
