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
"""ELMo's language model: each direction predicts its next word (section 3.1); both share one softmax.

Released code: allenai/bilm-tf, `bilm/training.py`. As there, the loss is the mean of the two directions' mean losses,
and in training the softmax may be over a sample of the vocabulary (Jean et al. 2015, arXiv 1412.2007).

Letters: B rows, T words of a row, S sentences, M steps of all sentences, P size of a direction's states, V words of
the vocabulary, N predictions, R sampled words.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn as nn
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint
from transformers import initialization as init
from transformers.processing_utils import Unpack
from transformers.utils import ModelOutput, TransformersKwargs, auto_docstring
from transformers.utils.generic import can_return_tuple

from ..shared.modeling_heads import IGNORED
from ..shared.modeling_onednn import is_opaque, linear
from ..shared.modeling_parameters import compute_weights
from .configuration_elmo import ElmoConfig
from .modeling_elmo import ElmoModel, ElmoPreTrainedModel
from .modeling_elmo_lstm import BEGIN, END, Pair, Sentences, State


Sample = tuple[torch.Tensor, torch.Tensor | int]  # the sampled words (R,), and the number of draws that found them

AT_ONCE = 512  # predictions whose scores of all words are in memory at the same time


class ElmoSoftmax(nn.Linear):
    """The scores of all words: (..., P) -> (..., V)."""

    def reset(self) -> None:
        init.normal_(self.weight, std=self.in_features**-0.5)
        init.zeros_(self.bias)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return linear(states, self.weight, self.bias)

    def losses(self, states: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """-log p of each target, (N, P), (N,) -> (N,), with the scores of AT_ONCE predictions in memory at a time."""

        def piece_losses(states: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            return nn.functional.cross_entropy(self(states).float(), targets, reduction="none")

        pieces = zip(states.split(AT_ONCE), targets.split(AT_ONCE), strict=True)
        if torch.is_grad_enabled() and len(states) > AT_ONCE and not is_opaque(states):
            return torch.cat([checkpoint(piece_losses, *piece, use_reentrant=False) for piece in pieces])
        return torch.cat([piece_losses(*piece) for piece in pieces])

    def sampled_losses(
        self, states: torch.Tensor, targets: torch.Tensor, sampled: torch.Tensor, expected: Pair
    ) -> torch.Tensor:
        """As `losses`, but with a softmax over the target and the words `sampled` (R,) only.

        `expected` is the probability that each target (N,) and each sampled word (R,) is drawn. Its logarithm is
        subtracted from the scores, so that each word counts as in the full softmax. A sampled word that equals the
        target is left out.
        """
        compute_weights(self)
        rows, biases = (part[torch.cat([targets, sampled])] for part in (self.weight, self.bias))  # one gradient each
        count = len(targets)
        true = (states * rows[:count]).sum(-1) + biases[:count] - expected[0].log()  # (N,)
        words, biases = rows[count:].to(states.dtype), (biases[count:] - expected[1].log()).float()
        ordered, order = sampled.sort()
        nearest = torch.searchsorted(ordered, targets).clamp(max=len(sampled) - 1)
        is_sampled = ordered[nearest] == targets  # (N,)
        return _SampledLoss.apply(states, words, biases, true.float(), order[nearest], is_sampled)


class _SampledLoss(torch.autograd.Function):
    """log(exp(t) + sum_r exp(x_r)) - t of the target's score t and the scores x = states @ words' + biases.

    The (N, R) scores take most of the memory. Here they become exponentials in place, which the gradients are made of.
    """

    @staticmethod
    def forward(ctx, states, words, biases, true, places, is_sampled):
        """(N, P), (R, P), (R,), (N,) -> (N,). Where `is_sampled` (N,), the word at `places` (N,) is left out."""
        scores = linear(states, words).float().add_(biases)
        columns = places[:, None]
        scores.scatter_(1, columns, scores.gather(1, columns).masked_fill(is_sampled[:, None], -torch.inf))
        top = torch.maximum(scores.amax(1), true)
        exponentials = scores.sub_(top[:, None]).exp_()
        sums = exponentials.sum(1) + (true - top).exp()
        losses = sums.log() + top - true
        ctx.save_for_backward(states, words, exponentials, sums, losses)
        return losses

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        states, words, exponentials, sums, losses = ctx.saved_tensors
        shares = gradient / sums
        biases_gradient = shares @ exponentials
        exponentials, shares = exponentials.to(states.dtype), shares.to(states.dtype)[:, None]
        states_gradient = linear(exponentials, words.T) * shares
        words_gradient = linear((states * shares).T.contiguous(), exponentials.T).T
        true_gradient = gradient * torch.expm1(-losses)  # the target's probability, less 1
        return states_gradient, words_gradient, biases_gradient, true_gradient, None, None


def sample_words(vocabulary: int, count: int, device: torch.device) -> Sample:
    """`count` different words, drawn by frequency, and the number of draws that were needed to find them.

    P(word k) = log((k + 2) / (k + 1)) / log(V + 1), which is Zipf's law for a vocabulary sorted by frequency.
    """
    drawn = torch.empty(0, dtype=torch.long, device=device)
    while True:
        exponents = torch.rand(2 * count, dtype=torch.float64, device=device) * math.log(vocabulary + 1)
        drawn = torch.cat([drawn, (exponents.exp().long() - 1).clamp(0, vocabulary - 1)])
        words, indices = drawn.unique(return_inverse=True)
        if len(words) >= count:
            places = torch.arange(len(drawn), device=device)
            first = places.new_full((len(words),), len(drawn)).scatter_reduce(0, indices, places, "amin")
            first = first.sort().values[:count]  # the draws that found a new word, until there were enough
            return drawn[first], int(first[-1]) + 1


def expected_count(words: torch.Tensor, vocabulary: int, draws: torch.Tensor | int) -> torch.Tensor:
    """The probability that a word is found within this number of draws: 1 - (1 - P)^draws."""
    words = words.double()
    probability = ((words + 2) / (words + 1)).log() / math.log(vocabulary + 1)
    return -torch.expm1(draws * torch.log1p(-probability)).float()


@auto_docstring(custom_intro="The loss of both directions, or their predictions.")
@dataclass
class ElmoForPreTrainingOutput(ModelOutput):
    r"""
    loss (`torch.FloatTensor` of shape `(1,)`, *optional*, returned when `labels` is provided):
        The mean of the two directions' mean losses. Its exponential is the perplexity, except in training with sampled
        words, where the softmax is over the sample.
    direction_losses (`torch.FloatTensor` of shape `(2,)`, *optional*, returned when `labels` is provided):
        The mean losses of the forward and the backward direction.
    log_likelihoods (`torch.FloatTensor` of shape `(batch_size, 2)`, *optional*):
        In evaluation, with the `labels` of sentences: the log-probability of each row in the forward and the backward
        direction, with its boundaries.
    logits (`torch.FloatTensor` of shape `(batch_size, sequence_length, lm_vocab_size)`, *optional*):
        Without labels: the forward direction's scores for the word at each position, given the words before it.
    reverse_logits (`torch.FloatTensor` of shape `(batch_size, sequence_length, lm_vocab_size)`, *optional*):
        Without labels: the backward direction's scores, given the words after it.
    hidden_states (`tuple(torch.FloatTensor)`, *optional*):
        For sentences, with `output_hidden_states=True`: the layers, as returned by `ElmoModel`.
    stream_state (`tuple(torch.FloatTensor)`, *optional*):
        For streams: the states in which they end, without gradients. The next batch continues from them.
    """

    loss: torch.FloatTensor | None = None
    direction_losses: torch.FloatTensor | None = None
    log_likelihoods: torch.FloatTensor | None = None
    logits: torch.FloatTensor | None = None
    reverse_logits: torch.FloatTensor | None = None
    hidden_states: tuple[torch.FloatTensor, ...] | None = None
    stream_state: tuple[torch.FloatTensor, ...] | None = None


@auto_docstring(custom_intro="The biLM as a language model in both directions, which share one softmax.")
class ElmoForPreTraining(ElmoPreTrainedModel):
    # The loss is the mean of two means; Trainer's count of labels is the number of predictions of neither.
    accepts_loss_kwargs = False

    def __init__(self, config: ElmoConfig):
        super().__init__(config)
        self.elmo = ElmoModel(config, trains=True)
        self.lm_head = ElmoSoftmax(config.projection_size, config.lm_vocab_size)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.loss_type = "ForMaskedLM"  # unused, the loss is written out below; without it, transformers warns
        self.post_init()

    def freeze_parts(self) -> None:
        self.elmo.mixes.requires_grad_(False)  # only task networks learn them

    @can_return_tuple
    @auto_docstring
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        reverse_input_ids: torch.Tensor | None = None,
        reverse_labels: torch.Tensor | None = None,
        stream_state: tuple[torch.Tensor, torch.Tensor] | None = None,
        sampled_words: torch.Tensor | None = None,
        num_draws: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple[torch.Tensor] | ElmoForPreTrainingOutput:
        r"""
        input_ids (`torch.LongTensor` of shape `(batch_size, sequence_length, max_characters_per_token)`):
            Character ids of sentences, as for `ElmoModel`, or of a stream if there are `reverse_input_ids`.
        token_type_ids (`torch.Tensor` of shape `(batch_size, sequence_length)`, *optional*):
            0 for the words of a row's first sentence, 1 for those of its second.
        labels (`torch.LongTensor` of shape `(batch_size, sequence_length)`, *optional*):
            The number of each word in the vocabulary; -100 for words that are not to be predicted. <S> and </S> are
            predicted as well. For a stream: the number of each *next* word.
        reverse_input_ids (`torch.LongTensor` of the same shape, *optional*):
            The stream of the backward direction, whose sentences are reversed. As in the released code, training reads
            streams: rows of words, with <S> and </S>, that continue in the next batch (`config.state="carry"`).
        reverse_labels (`torch.LongTensor` of shape `(batch_size, sequence_length)`, *optional*):
            The number of each next word in that stream.
        stream_state (`tuple(torch.Tensor)`, *optional*):
            For streams: the states in which they start, hidden `(layers, 2, batch_size, hidden_size / 2)` and cell
            `(layers, 2, batch_size, cell_size)`, such as the `stream_state` of the output for the batch before. By
            default, `config.state` decides.
        sampled_words (`torch.LongTensor` of shape `(2, num_sampled)`, *optional*):
            For streams: the different words in the sampled softmax of the forward and of the backward direction. By
            default, they are drawn in training, as `config.num_sampled` says.
        num_draws (`torch.LongTensor` of shape `(2,)`, *optional*):
            The number of draws that found the `sampled_words` of each direction.
        """
        if reverse_input_ids is not None or reverse_labels is not None:
            samples = self.samples_of(sampled_words, num_draws)
            return self.predict_streams(
                (input_ids, reverse_input_ids), (labels, reverse_labels), samples, stream_state
            )
        mask = self.elmo.words_of(input_ids, attention_mask, token_type_ids)
        packed = Sentences.of(mask, token_type_ids, self.elmo.boundary_steps)
        word_layer, outputs = self.elmo.read(input_ids[mask], packed)
        states = [self.dropout(direction) for direction in outputs[-1]]
        if labels is None:
            directions = zip(states, packed.steps_before(), strict=True)
            scores = [packed.pad(self.lm_head(direction[steps])) for direction, steps in directions]
            output = ElmoForPreTrainingOutput(logits=scores[0], reverse_logits=scores[1])
        else:
            if labels.shape != mask.shape:
                raise ValueError(f"labels are {tuple(labels.shape)}, not {tuple(mask.shape)}: the number of each word")
            words = labels.to(mask.device)[mask]
            output = self.predict_sentences(states, words, packed)
        if self.wants_layers(**kwargs):
            output.hidden_states = tuple(packed.pad(layer) for layer in packed.layers(word_layer, outputs))
        return output

    def predict_sentences(
        self, states: list[torch.Tensor], words: torch.Tensor, packed: Sentences
    ) -> ElmoForPreTrainingOutput:
        """The loss of both directions' states (M, P) for the words (N,)."""
        counts = packed.lengths.new_zeros(len(packed.lengths)).index_add(0, packed.sentence, (words != IGNORED).long())
        has_labels = counts > 0  # nothing is predicted in other sentences, not even their ends
        last = packed.rows(has_labels, packed.lengths[has_labels])  # the steps that predict the boundaries
        sentences = torch.cat([packed.sentence[words != IGNORED], has_labels.nonzero()[:, 0]])
        losses = []
        for direction, steps, boundary in zip(states, packed.steps_before(), (END, BEGIN), strict=True):
            steps = torch.cat([steps[words != IGNORED], last])
            targets = torch.cat([words[words != IGNORED], words.new_full((len(last),), boundary)])
            losses.append(self.losses(direction[steps], targets))
        output = _mean_of_both(list(map(_mean, losses)))
        if not self.training:
            rows = sentences // packed.per_row
            sums = [loss.new_zeros(packed.shape[0]).index_add(0, rows, -loss) for loss in losses]
            output.log_likelihoods = torch.stack(sums, 1)  # (B, 2)
        return output

    def samples_of(self, words: torch.Tensor | None, draws: torch.Tensor | None) -> list[Sample | None]:
        """The sample of each direction; None if the model is to draw it. Raises ValueError for wrong shapes."""
        if words is None and draws is None:
            return [None, None]
        shapes = [None if tensor is None else tuple(tensor.shape) for tensor in (words, draws)]
        if None in shapes or len(shapes[0]) != 2 or shapes[0][0] != 2 or shapes[1] != (2,):
            raise ValueError(
                f"sampled_words and num_draws are {shapes[0]} and {shapes[1]}, not (2, words) and (2,): a sample for "
                "each direction"
            )
        return list(zip(words, draws, strict=True))

    def predict_streams(
        self, inputs: Pair, labels: tuple, samples: list[Sample | None], state: State | None
    ) -> ElmoForPreTrainingOutput:
        """The loss of streams (B, T, K), one for each direction, which continue from batch to batch."""
        columns = self.config.ids_per_word
        shapes = [None if tensor is None else tuple(tensor.shape) for tensor in (*inputs, *labels)]
        if None in shapes or shapes[0] != (*shapes[2][:2], columns) or shapes != [shapes[0]] * 2 + [shapes[2]] * 2:
            raise ValueError(
                f"streams need input_ids and reverse_input_ids (rows, words, {columns}) and labels and reverse_labels "
                f"(rows, words), but these are {', '.join(map(str, shapes))}"
            )
        rows, steps, _ = inputs[0].shape
        words = torch.cat([ids.transpose(0, 1).flatten(0, 1) for ids in inputs])  # step by step
        vectors, indices = self.elmo.encode_words(words)
        order = torch.arange(rows, device=words.device)
        start = self.elmo.first_state(order) if state is None else state
        outputs, end = self.elmo.run_layers((vectors, vectors), start, [rows] * steps, indices[2:].chunk(2))
        if state is None:
            self.elmo.carry(end, order)
        losses = []
        for states, targets, sample in zip(outputs[-1], labels, samples, strict=True):
            targets = targets.T.flatten()
            states, is_predicted = self.dropout(states), targets != IGNORED
            if is_opaque(targets):  # static shapes: every word has a loss
                every_loss = self.losses(states, targets.clamp(min=0), sample)
                losses.append((every_loss * is_predicted).sum() / is_predicted.sum().clamp(min=1))
            else:
                losses.append(_mean(self.losses(states[is_predicted], targets[is_predicted], sample)))
        output = _mean_of_both(losses)
        output.stream_state = end
        return output

    def losses(self, states: torch.Tensor, targets: torch.Tensor, sample: Sample | None = None) -> torch.Tensor:
        """-log p of each target, (N, P), (N,) -> (N,). In training, one sample of words serves all predictions."""
        readable = len(targets) and not is_opaque(targets)
        if readable and not 0 <= int(targets.min()) <= int(targets.max()) < self.config.lm_vocab_size:
            raise ValueError(
                f"labels go from {int(targets.min())} to {int(targets.max())}, but lm_vocab_size is "
                f"{self.config.lm_vocab_size}: number the words by the vocabulary that the model was made for"
            )
        # CODEPATH: the released models were trained with samples; a small vocabulary needs none.
        samples = self.training and 0 < self.config.num_sampled < self.config.lm_vocab_size
        if sample is None and not samples:
            return self.lm_head.losses(states, targets)
        if sample is None:
            sample = sample_words(self.config.lm_vocab_size, self.config.num_sampled, states.device)
        sampled, draws = sample
        expected = tuple(expected_count(words, self.config.lm_vocab_size, draws) for words in (targets, sampled))
        return self.lm_head.sampled_losses(states, targets, sampled, expected)


def _mean_of_both(losses: list[torch.Tensor]) -> ElmoForPreTrainingOutput:
    means = torch.stack(losses)
    return ElmoForPreTrainingOutput(loss=means.mean(), direction_losses=means)


def _mean(losses: torch.Tensor) -> torch.Tensor:
    """Of the losses (N,) of predictions; 0 if there are none."""
    return losses.mean() if len(losses) else losses.sum()


__all__ = ["ElmoForPreTraining", "ElmoForPreTrainingOutput"]
