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
"""ELMo with one score per choice: ESIM, which compares a context with each possible continuation (SWAG, entailment).

Chen et al. 2017 (arXiv 1609.06038), section 3, in the version of ELMo's paper (Peters et al. 2018, supplement A): ReLU
layers, variational dropout on the input of each LSTM, and dropout on the inputs of the last two layers. If the config
has a late mix, it is concatenated to the states of the first LSTM, before the alignment. The context is read again
with each choice.

Letters: B rows (of one choice each), T columns, E size of an encoded word, R cells of one direction.
"""

import torch
import torch.nn as nn
from transformers.modeling_outputs import MultipleChoiceModelOutput
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs, auto_docstring
from transformers.utils.generic import can_return_tuple

from ..shared.modeling_heads import class_loss
from .configuration_elmo import ElmoConfig
from .modeling_elmo_layers import BiLSTM, ElmoTaskModel
from .modeling_elmo_pairs import across, attend, max_pool, mean_pool, read_apart, refuse_taglm, sentence_masks


@auto_docstring(custom_intro="ELMo with one score per choice, which is compared with the context word by word (SWAG).")
class ElmoForMultipleChoice(ElmoTaskModel):
    def __init__(self, config: ElmoConfig):
        super().__init__(config)
        refuse_taglm(config)
        size, dropout = config.rnn_size, config.task_dropout
        self.sentence_rnn = BiLSTM(self.word_size, size, 1, dropout)
        self.projection = nn.Linear(4 * (self.sentence_rnn.output_size + self.late_size), size)
        self.pair_rnn = BiLSTM(size, size, 1, dropout)
        self.hidden = nn.Linear(4 * self.pair_rnn.output_size, config.classifier_size)
        self.classifier = nn.Linear(config.classifier_size, 1)
        self.dropout = nn.Dropout(dropout)
        self.loss_function = class_loss
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
    ) -> tuple[torch.Tensor] | MultipleChoiceModelOutput:
        r"""
        input_ids (`torch.LongTensor` of shape `(batch_size, num_choices, sequence_length, characters)`):
            Character ids of the words of the context and of each choice. The other inputs have `num_choices` too. The
            last two dimensions may be flattened, as transformers' `DataCollatorForMultipleChoice` leaves them.
        token_type_ids (`torch.LongTensor` of shape `(batch_size, num_choices, sequence_length)`):
            0 for the words of the context, 1 for those of the choice.
        vector_ids (`torch.LongTensor` of shape `(batch_size, num_choices, sequence_length)`, *optional*):
            The row of each word in the word vectors: 0 for padding, 1 for unknown words.
        layer_states (`torch.Tensor` of shape `(batch_size, num_choices, sequence_length, layers, hidden_size)`):
            The frozen biLM's layers for each word, computed earlier; the biLM is then not run.
        labels (`torch.LongTensor` of shape `(batch_size,)`, *optional*):
            The index of the right choice.
        """
        if token_type_ids is None:
            raise ValueError("token_type_ids is missing: 0 for the words of the context, 1 for those of the choice.")
        if token_type_ids.dim() != 3:
            raise ValueError(f"token_type_ids are {tuple(token_type_ids.shape)}, not (rows, choices, words).")
        choices = token_type_ids.shape[1]
        if input_ids is not None and input_ids.dim() == 3:
            input_ids = self.unfold(input_ids, token_type_ids.shape[2])
        inputs = (input_ids, attention_mask, token_type_ids, vector_ids, layer_states)
        inputs = [None if tensor is None else tensor.flatten(0, 1) for tensor in inputs]  # B, choices -> B * choices
        words, mask, late, hidden_states = self.embed_words(*inputs, **kwargs)
        first, second = sentence_masks(mask, inputs[2])
        compared = self.compare(words, first, second, late)  # (B, T, 2R)
        pooled = [pool(compared, sentence) for sentence in (first, second) for pool in (mean_pool, max_pool)]
        hidden = self.hidden(self.dropout(torch.cat(pooled, -1))).relu()
        logits = self.classifier(self.dropout(hidden)).unflatten(0, (-1, choices)).squeeze(-1)  # (B, choices)
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, **kwargs)
            loss = self.add_mix_penalty(loss, labels, **kwargs)
        return MultipleChoiceModelOutput(loss=loss, logits=logits, hidden_states=hidden_states)

    def unfold(self, input_ids: torch.Tensor, words: int) -> torch.Tensor:
        """(B, choices, T * characters) -> (B, choices, T, characters), T being `words`."""
        characters = self.config.ids_per_word
        if input_ids.shape[2] != words * characters:
            raise ValueError(
                f"input_ids are {tuple(input_ids.shape)}, not (rows, choices, words, {characters}) or, of the {words} "
                f"words of a choice, (rows, choices, {words * characters}): ElmoTokenizer makes the {characters} "
                "character ids of each word."
            )
        return input_ids.unflatten(2, (words, characters))

    def compare(
        self, words: torch.Tensor, first: torch.Tensor, second: torch.Tensor, late: torch.Tensor | None
    ) -> torch.Tensor:
        """Reads each word together with its alignment in the other sentence: (B, T, D) -> (B, T, 2R)."""
        states = read_apart(self.sentence_rnn, words, first, second)  # 3.1, input encoding
        if late is not None:
            states = torch.cat([states, late], -1)  # (B, T, E)
        aligned = attend(states @ states.transpose(1, 2), states, across(first, second))  # 3.2
        enhanced = torch.cat([states, aligned, states - aligned, states * aligned], -1)
        return read_apart(self.pair_rnn, self.projection(enhanced).relu(), first, second)  # 3.3


__all__ = ["ElmoForMultipleChoice"]
