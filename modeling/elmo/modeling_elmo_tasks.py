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
"""ELMo's task networks (Peters et al. 2018, arXiv 1802.05365, section 4 and supplement A).

- `ElmoForTokenClassification`: words -> bidirectional LSTM -> conditional random field (named entities, parts of
  speech). Without the biLM, it is the baseline of that paper. With the biLM's top layer joined to the states of the
  first LSTM layer (`elmo_placement="after_first_rnn"`, `mix_top_layer_only=True`), it is TagLM (Peters et al. 2017,
  arXiv 1705.00108).
- `ElmoForSequenceClassification`: GLUE's BiLSTM + ELMo + Attn baseline (Wang et al. 2018, arXiv 1804.07461; released
  code: nyu-mll/GLUE-baselines, `src/models.py`). What differs from the released code: single sentences have the
  classifier of pairs; regression has its hidden layer too; and a late mix, if the config has one, is concatenated to
  the states that are pooled, for pairs too.
- `ElmoForMultipleChoice`: ESIM (Chen et al. 2017, arXiv 1609.06038, section 3), in the version of ELMo's paper: ReLU
  layers, variational dropout on the input of each LSTM, and dropout on the inputs of the last two layers. The context
  is read again with each choice.
- `ElmoForQuestionAnswering`: BiDAF with self-attention (Clark and Gardner 2017, arXiv 1710.10723, after Seo et al.
  2016, arXiv 1611.01603; released code: allenai/document-qa, `docqa/elmo`). In ELMo's paper, it has GRUs of 90 cells
  with variational dropout of 0.2, and reads ELMo in both places.

The last two concatenate a late mix to the states of their first RNN, before the alignment or the attention.

Letters: B rows (for choices, of one choice each), T columns, D size of a word's vector, E size of an encoded word, R
size of a state (of one direction in ESIM and BiDAF), C classes.
"""

import torch
import torch.nn as nn
from transformers import initialization as init
from transformers.modeling_outputs import (
    MultipleChoiceModelOutput,
    QuestionAnsweringModelOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs, auto_docstring
from transformers.utils.generic import can_return_tuple
from transformers.utils.import_utils import is_tracing

from ..shared.modeling_heads import IGNORED, class_loss, is_possible, sequence_classification_loss, token_loss
from ..shared.modeling_parameters import weight_of
from .configuration_elmo import ElmoConfig
from .modeling_elmo_crf import ConditionalRandomField
from .modeling_elmo_layers import (
    BiLSTM,
    ElmoTaskModel,
    VariationalDropout,
    across,
    attend,
    max_pool,
    mean_pool,
    read_apart,
    refuse_taglm,
    sentence_masks,
)


# Choices of the user, for any checkpoint:
# trf-ignore: TRF041 config.use_crf, config.constrain_tags

# The arguments of all four, for `auto_docstring`. Of choices, shapes have `num_choices` after `batch_size`.
INPUTS = r"""
    vector_ids (`torch.LongTensor` of shape `(batch_size, sequence_length)`, *optional*):
        The row of each word in the word vectors: 0 for padding, 1 for unknown words.
    layer_states (`torch.Tensor` of shape `(batch_size, sequence_length, layers, hidden_size)`, *optional*):
        The frozen biLM's layers for each word, computed earlier; the biLM is then not run.
"""
OF_TAGGER = r"""
    cut (`torch.BoolTensor` of shape `(batch_size, 2)`, *optional*):
        Whether the sentence begins before the row, and whether it ends behind it. An entity may then, too, so the CRF
        decodes any tag there.
"""


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
    @auto_docstring(custom_args=INPUTS + OF_TAGGER)
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        vector_ids: torch.Tensor | None = None,
        layer_states: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        cut: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple[torch.Tensor] | TokenClassifierOutput:
        r"""
        input_ids (`torch.LongTensor` of shape `(batch_size, sequence_length, max_characters_per_token)`, *optional*):
            Character ids of each word, from `ElmoTokenizer`.
        token_type_ids (`torch.LongTensor` of shape `(batch_size, sequence_length)`, *optional*):
            0 for the words of a row's first sentence, 1 for those of its second. The biLM reads each by itself.
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
            logits=self.crf.max_marginals(emissions, mask, cut) if decodes else emissions,
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


@auto_docstring(
    custom_intro="""
    ELMo with a classifier, or a regression, of a sentence or of a pair (GLUE). A sentence is represented by the
    maximum over the states of a BiLSTM. In a pair, each word first attends to the other sentence by dot products, and
    a second BiLSTM reads its state together with the result. One network does both: a row with words of type 1 is a
    pair; in other rows, the second sentence is a vector of zeros.
    """
)
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
    @auto_docstring(custom_args=INPUTS)
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
    @auto_docstring(custom_args=INPUTS)
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


class BiGRU(BiLSTM):
    """As `BiLSTM`, with gated recurrent units."""

    layer_class = nn.GRU

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


@auto_docstring(
    custom_intro="""
    ELMo with a start and an end score for each word that may answer a question (SQuAD). If the context has no answer,
    the answer starts and ends at the row's first word, where BERT has [CLS]. That word belongs to the question, so it
    is never part of an answer. Clark and Gardner compare "no answer" with all spans at once. Here it is compared with
    the starts and with the ends, so that start and end scores suffice; it is computed from the states that predict
    them, without a third attention.
    """
)
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
    @auto_docstring(custom_args=INPUTS)
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


__all__ = [
    "ElmoForMultipleChoice",
    "ElmoForQuestionAnswering",
    "ElmoForSequenceClassification",
    "ElmoForTokenClassification",
]
