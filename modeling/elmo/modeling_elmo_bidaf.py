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
"""ELMo with a start and an end score for each word of a context: BiDAF with self-attention (SQuAD).

Clark and Gardner 2017 (arXiv 1710.10723), after BiDAF (Seo et al. 2016, arXiv 1611.01603). In ELMo's paper (Peters et
al. 2018, supplement A), it has GRUs of 90 cells with variational dropout of 0.2. Released code: allenai/document-qa,
`docqa/elmo`. If the config has a late mix, it is concatenated to the states of the first GRU, before the attention.
The paper's best network reads ELMo in both places.

If the context has no answer, the answer starts and ends at the row's first word, where BERT has [CLS]. That word
belongs to the question, so it is never part of an answer. Clark and Gardner compare "no answer" with all spans at
once. Here it is compared with the starts and with the ends, so that start and end scores suffice; it is computed from
the states that predict them, without a third attention.

Letters: B rows, T columns, D size of a word's vector, E size of an encoded word, R cells of one direction.
"""

import torch
import torch.nn as nn
from transformers import initialization as init
from transformers.modeling_outputs import QuestionAnsweringModelOutput
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs, auto_docstring
from transformers.utils.generic import can_return_tuple

from ..shared.modeling_heads import IGNORED, class_loss, is_possible
from ..shared.modeling_recurrence import run_gru
from ..shared.modeling_weights import weight_of
from .configuration_elmo import ElmoConfig
from .modeling_elmo_layers import BiLSTM, ElmoTaskModel, VariationalDropout
from .modeling_elmo_pairs import attend, max_pool, read_apart, refuse_taglm, sentence_masks


class BiGRU(BiLSTM):
    """As `BiLSTM`, with gated recurrent units."""

    layer_class = nn.GRU
    run_direction = staticmethod(run_gru)

    def reset(self) -> None:
        """Initialises GRUs as transformers initialises LSTMs; it does not initialise GRUs itself."""
        for parameter in self.parameters():
            init.xavier_uniform_(parameter) if parameter.dim() > 1 else init.zeros_(parameter)


class ElmoTrilinear(nn.Module):
    """w1 x + w2 y + w3 (x * y), the attention score of word x for word y."""

    def __init__(self, size: int):
        super().__init__()
        self.first = nn.Linear(size, 1, bias=False)
        self.second = nn.Linear(size, 1, bias=False)
        self.product = nn.Linear(size, 1, bias=False)

    def forward(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        """(B, T, E) and (B, S, E) -> (B, T, S)."""
        products = (first * weight_of(self.product)) @ second.transpose(1, 2)
        return products + self.first(first) + self.second(second).transpose(1, 2)


class ElmoBiAttention(nn.Module):
    """Joins each word of the context with its attention to the question, and the question's attention to the context.

    Seo et al., section 2, attention flow: [h; u; h * u; h * g]. u is the mean of the question's words, weighted by the
    scores of h for them. g is the mean of the context's words, each weighted by its best score with the question.
    """

    def __init__(self, size: int):
        super().__init__()
        self.scores = ElmoTrilinear(size)

    def forward(self, states: torch.Tensor, question: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        """(B, T, E) states and two (B, T) masks -> (B, T, 4E), to be used at the words of the context."""
        scores = self.scores(states, states)  # (B, T, T)
        attended = attend(scores, states, context.unsqueeze(2) & question.unsqueeze(1))  # (B, T, E)
        highest = max_pool(scores.transpose(1, 2), question)  # (B, T), over the words of the question
        summary = attend(highest.unsqueeze(1), states, context.unsqueeze(1))  # (B, 1, E)
        return torch.cat([states, attended, states * attended, states * summary], -1)


class ElmoSelfAttention(nn.Module):
    """A residual layer in which each word of the context attends to the others, or to none of them."""

    def __init__(self, size: int, dropout: float):
        super().__init__()
        self.rnn = BiGRU(size, size // 2, 1, dropout)
        self.scores = ElmoTrilinear(size)
        self.nothing = nn.Parameter(torch.empty(1))  # the score of attending to none, as in the released code
        self.projection = nn.Linear(3 * size, size)
        self.dropout = VariationalDropout(dropout)

    def reset(self) -> None:
        init.constant_(self.nothing, -1.0)

    def forward(self, inputs: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        """(B, T, 2R) and a (B, T) mask -> (B, T, 2R)."""
        states = self.dropout(self.rnn(inputs, context))
        itself = torch.eye(states.shape[1], dtype=torch.bool, device=states.device)
        others = context.unsqueeze(2) & context.unsqueeze(1) & ~itself  # (B, T, T)
        scores = self.scores(states, states)
        scores = torch.cat([scores, self.nothing.expand(*scores.shape[:2], 1)], -1)  # (B, T, T + 1)
        states_and_none = nn.functional.pad(states, (0, 0, 0, 1))  # one more state, of zeros
        attended = attend(scores, states_and_none, nn.functional.pad(others, (0, 1), value=True))
        return inputs + self.projection(torch.cat([attended, states, attended * states], -1)).relu()


class ElmoSpan(nn.Module):
    """Start scores from a GRU, end scores from a second GRU that also reads its states, and scores of no answer."""

    def __init__(self, config: ElmoConfig):
        super().__init__()
        size = 2 * config.rnn_size
        self.start_rnn = BiGRU(size, config.rnn_size)
        self.end_rnn = BiGRU(2 * size, config.rnn_size)
        self.start = nn.Linear(size, 1)
        self.end = nn.Linear(size, 1)
        self.hidden = nn.Linear(2 * size, config.classifier_size)
        self.no_answer = nn.Linear(config.classifier_size, 2)

    def forward(self, inputs: torch.Tensor, context: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(B, T, 2R) and a (B, T) mask -> scores (B, T, 2) of each word of the context, and (B, 2) of no answer."""
        start_states = self.start_rnn(inputs, context)
        end_states = self.end_rnn(torch.cat([inputs, start_states], -1), context)
        scores = torch.cat([self.start(start_states), self.end(end_states)], -1)
        expected = [
            attend(bound_scores.unsqueeze(1), states, context.unsqueeze(1)).squeeze(1)  # (B, 2R)
            for bound_scores, states in zip(scores.unbind(-1), (start_states, end_states), strict=True)
        ]
        return scores, self.no_answer(self.hidden(torch.cat(expected, -1)).relu())


def span_loss(
    logits: torch.Tensor,
    positions: torch.Tensor,
    possible: torch.Tensor,
    num_items_in_batch: torch.Tensor | int | None = None,
    **kwargs,
) -> torch.Tensor:
    """Cross-entropy of (B, T) logits with (B,) positions; positions that are not in `possible` (B, T) do not count.

    It is 0 if none counts.
    """
    if not logits.shape[1]:
        return logits.sum()
    positions = positions.view(-1).to(logits.device)
    counts = is_possible(positions, possible)
    if num_items_in_batch is None:
        num_items_in_batch = counts.sum().clamp(min=1)
    return class_loss(logits, positions.masked_fill(~counts, IGNORED), num_items_in_batch)


@auto_docstring(custom_intro="ELMo with a start and an end score for each word that may answer a question (SQuAD).")
class ElmoForQuestionAnswering(ElmoTaskModel):
    def __init__(self, config: ElmoConfig):
        super().__init__(config)
        refuse_taglm(config)
        size = 2 * config.rnn_size
        self.sentence_rnn = BiGRU(self.word_size, config.rnn_size, 1, config.task_dropout)
        self.attention = ElmoBiAttention(size + self.late_size)
        self.projection = nn.Linear(4 * (size + self.late_size), size)
        self.self_attention = ElmoSelfAttention(size, config.task_dropout)
        self.span = ElmoSpan(config)
        self.dropout = VariationalDropout(config.task_dropout)
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
        start_positions: torch.Tensor | None = None,
        end_positions: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple[torch.Tensor] | QuestionAnsweringModelOutput:
        r"""
        token_type_ids (`torch.LongTensor` of shape `(batch_size, sequence_length)`):
            0 for the words of the question, 1 for those of the context.
        vector_ids (`torch.LongTensor` of shape `(batch_size, sequence_length)`, *optional*):
            The row of each word in the word vectors: 0 for padding, 1 for unknown words.
        layer_states (`torch.Tensor` of shape `(batch_size, sequence_length, layers, hidden_size)`, *optional*):
            The frozen biLM's layers for each word, computed earlier; the biLM is then not run.
        start_positions (`torch.LongTensor` of shape `(batch_size,)`, *optional*):
            The column of the answer's first word, or of the row's first word if the context has no answer. A position
            outside the row, on padding or on another word of the question does not count.
        end_positions (`torch.LongTensor` of shape `(batch_size,)`, *optional*):
            The column of the answer's last word.
        """
        if token_type_ids is None:
            raise ValueError("token_type_ids is missing: 0 for the words of the question, 1 for those of the context.")
        words, mask, late, hidden_states = self.embed_words(
            input_ids, attention_mask, token_type_ids, vector_ids, layer_states, **kwargs
        )
        question, context = sentence_masks(mask, token_type_ids)
        scores, no_answer = self.span(self.read(words, question, context, late), context)
        first_word = question & (mask.int().cumsum(1) == 1)  # torch_xla sums booleans to booleans
        logits = torch.where(first_word.unsqueeze(-1), no_answer.unsqueeze(1), scores)  # (B, T, 2)
        possible = context | first_word
        logits = logits.masked_fill(~possible.unsqueeze(-1), torch.finfo(logits.dtype).min)
        start_logits, end_logits = (scores.contiguous() for scores in logits.unbind(-1))  # (B, T) each
        loss = None
        if start_positions is not None and end_positions is not None:
            losses = [
                span_loss(bound_logits, positions, possible, **kwargs)
                for bound_logits, positions in ((start_logits, start_positions), (end_logits, end_positions))
            ]
            loss = self.add_mix_penalty(sum(losses) / 2, start_positions, **kwargs)
        return QuestionAnsweringModelOutput(
            loss=loss, start_logits=start_logits, end_logits=end_logits, hidden_states=hidden_states
        )

    def read(
        self, words: torch.Tensor, question: torch.Tensor, context: torch.Tensor, late: torch.Tensor | None
    ) -> torch.Tensor:
        """The states of the context's words, given the question: (B, T, D) -> (B, T, 2R)."""
        states = read_apart(self.sentence_rnn, words, question, context)
        states = self.dropout(states)  # (B, T, 2R)
        if late is not None:
            states = torch.cat([states, late], -1)  # (B, T, E)
        states = self.projection(self.attention(states, question, context)).relu()  # (B, T, 2R)
        return self.dropout(self.self_attention(states, context))


__all__ = ["ElmoForQuestionAnswering"]
