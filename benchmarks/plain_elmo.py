"""A plain biLM of ELMo, as in AllenNLP: the baseline for the zoo's.

Written from a description of AllenNLP's ELMo (in its `modules`: elmo.py, elmo_lstm.py, lstm_cell_with_projection.py).
It has the same costs. Batches are padded. The word layer computes every row of 50 character ids, including padding
and repeated words. Each direction of each layer is a Python loop over columns, whose step multiplies its input and its
state, for the rows whose sentence reaches that column. One thing differs: sentences start from zeros, AllenNLP's from
the last state of the batch before. Names of parameters are the zoo's.

Letters: B rows, T words of the longest row, K character ids of a word, P size of a direction's states, C cells.
"""

from collections.abc import Callable, Sequence

import torch
import torch.nn as nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from modeling import ElmoConfig
from modeling.elmo.modeling_elmo_pretraining import expected_count, sample_words


LSTM_MODE = 2  # cuDNN's number for an LSTM
SENTENCE_BEGIN, SENTENCE_END, WORD_BEGIN, WORD_END, WORD_PADDING = 257, 258, 259, 260, 261


class PlainHighway(nn.Module):
    def __init__(self, size: int):
        super().__init__()
        self.transform = nn.Linear(size, size)
        self.carry = nn.Linear(size, size)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        gate = torch.sigmoid(self.carry(inputs))
        return gate * torch.relu(self.transform(inputs)) + (1 - gate) * inputs


class PlainTokenEncoder(nn.Module):
    def __init__(self, config: ElmoConfig):
        super().__init__()
        size = sum(count for _, count in config.filters)
        self.char_embeddings = nn.Embedding(config.vocab_size, config.char_embedding_size)
        self.convolutions = nn.ModuleList(
            [nn.Conv1d(config.char_embedding_size, count, width) for width, count in config.filters]
        )
        self.highways = nn.ModuleList([PlainHighway(size) for _ in range(config.num_highway_layers)])
        self.projection = nn.Linear(size, config.projection_size)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        """(B, T, K) -> (B, T, P)."""
        characters = self.char_embeddings(input_ids.flatten(0, 1)).transpose(1, 2)  # (B * T, E, K)
        pooled = [torch.relu(convolution(characters).max(-1).values) for convolution in self.convolutions]
        states = torch.cat(pooled, -1)
        for highway in self.highways:
            states = highway(states)
        return self.projection(states).unflatten(0, input_ids.shape[:2])


class PlainLSTM(nn.Module):
    """One direction of one layer. Rows of `input` and `recurrent`: gates i, f, g, o."""

    def __init__(self, config: ElmoConfig):
        super().__init__()
        size, cells = config.projection_size, config.cell_size
        self.input = nn.Linear(size, 4 * cells)
        self.recurrent = nn.Linear(size, 4 * cells, bias=False)
        self.projection = nn.Linear(cells, size, bias=False)
        self.cell_clip, self.proj_clip = config.cell_clip, config.proj_clip

    def forward(self, inputs: torch.Tensor, lengths: Sequence[int], from_the_end: bool = False) -> torch.Tensor:
        """(B, T, P) -> (B, T, P), zero at padding. Rows are sorted, longest first."""
        hidden = inputs.new_zeros(len(inputs), self.recurrent.in_features)
        cell = inputs.new_zeros(len(inputs), self.projection.in_features)
        outputs = torch.zeros_like(inputs)
        columns = range(inputs.shape[1])
        for column in reversed(columns) if from_the_end else columns:
            rows = sum(length > column for length in lengths)
            gates = self.input(inputs[:rows, column]) + self.recurrent(hidden[:rows])
            i, f, g, o = gates.chunk(4, 1)
            new_cell = torch.sigmoid(i) * torch.tanh(g) + torch.sigmoid(f) * cell[:rows]
            new_cell = new_cell.clamp(-self.cell_clip, self.cell_clip)
            projected = self.projection(torch.sigmoid(o) * torch.tanh(new_cell))
            projected = projected.clamp(-self.proj_clip, self.proj_clip)
            hidden, cell = hidden.clone(), cell.clone()
            hidden[:rows], cell[:rows] = projected, new_cell
            outputs[:rows, column] = projected
        return outputs


class CudnnLSTM(PlainLSTM):
    """The same without clips by torch's LSTM with projections, which cuDNN computes on a GPU."""

    def __init__(self, config: ElmoConfig):
        super().__init__(config)
        size, cells = config.projection_size, config.cell_size
        lstm = nn.LSTM(size, cells, proj_size=size, batch_first=True)
        lstm.weight_ih_l0, lstm.bias_ih_l0 = self.input.weight, self.input.bias
        lstm.weight_hh_l0, lstm.weight_hr_l0 = self.recurrent.weight, self.projection.weight
        lstm.bias_hh_l0 = nn.Parameter(torch.zeros(4 * cells), requires_grad=False)
        self.lstms = (lstm,)  # in a tuple: its parameters are those of this module

    def _apply(self, function: Callable, recurse: bool = True) -> nn.Module:
        super()._apply(function, recurse)
        (lstm,) = self.lstms
        lstm.bias_hh_l0.data = function(lstm.bias_hh_l0.data)
        if lstm.bias_hh_l0.is_cuda:
            with torch.no_grad():  # one piece of memory, as `flatten_parameters` makes, but in bf16 too
                torch._cudnn_rnn_flatten_weight(
                    lstm._flat_weights, 5, lstm.input_size, LSTM_MODE, lstm.hidden_size, lstm.proj_size, 1, True, False
                )
        return self

    def forward(self, inputs: torch.Tensor, lengths: Sequence[int], from_the_end: bool = False) -> torch.Tensor:
        """(B, T, P) -> (B, T, P), zero at padding. Rows are sorted, longest first."""
        columns = torch.arange(inputs.shape[1])
        if from_the_end:  # the last word of each row first, and padding where it was
            columns = (torch.tensor(lengths)[:, None] - 1 - columns) % inputs.shape[1]
        index = columns.expand(len(inputs), -1).to(inputs.device)[..., None].expand_as(inputs)
        packed = pack_padded_sequence(inputs.gather(1, index), lengths, batch_first=True)
        outputs, _ = pad_packed_sequence(self.lstms[0].train(self.training)(packed)[0], batch_first=True)
        return outputs.gather(1, index)  # the same index puts them back


class PlainLayer(nn.Module):
    def __init__(self, config: ElmoConfig, lstm_class: type[PlainLSTM]):
        super().__init__()
        self.forward_lstm = lstm_class(config)
        self.backward_lstm = lstm_class(config)


class PlainMix(nn.Module):
    def __init__(self, layers: int):
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(layers))
        self.gamma = nn.Parameter(torch.ones(()))

    def forward(self, layers: list[torch.Tensor]) -> torch.Tensor:
        weights = self.weights.softmax(0)
        return self.gamma * sum(weight * layer for weight, layer in zip(weights, layers, strict=True))


class PlainElmo(nn.Module):
    """(B, T, K) ids -> the mix and all layers, (B, T, 2P) each. It has skip connections, clips and one mix."""

    lstm_class = PlainLSTM

    def __init__(self, config: ElmoConfig):
        super().__init__()
        self.token_encoder = PlainTokenEncoder(config)
        self.layers = nn.ModuleList([PlainLayer(config, self.lstm_class) for _ in range(config.num_hidden_layers)])
        self.mixes = nn.ModuleList([PlainMix(config.num_hidden_layers + 1)])

    def forward(self, input_ids: torch.Tensor) -> list[torch.Tensor]:
        mask = (input_ids != 0).any(-1)
        words = self.token_encoder(add_boundaries(input_ids, mask))  # (B, T + 2, P)
        layers = [torch.cat([words, words], -1), *self.run_layers(words, mask.sum(1) + 2)]
        layers = [remove_boundaries(layer, mask) for layer in layers]
        return [self.mixes[0](layers), *layers]

    def run_layers(self, words: torch.Tensor, lengths: torch.Tensor) -> list[torch.Tensor]:
        """(B, T + 2, P) -> (B, T + 2, 2P) of each layer."""
        order = lengths.argsort(descending=True)
        back = order.argsort()
        forward = backward = words[order]
        lengths, layers = lengths[order].tolist(), []
        for index, layer in enumerate(self.layers):
            outputs = layer.forward_lstm(forward, lengths), layer.backward_lstm(backward, lengths, from_the_end=True)
            forward, backward = (forward + outputs[0], backward + outputs[1]) if index else outputs
            layers.append(torch.cat([forward, backward], -1)[back])
        return layers


class CudnnElmo(PlainElmo):
    """The same without clips, whose loop over time is cuDNN's."""

    lstm_class = CudnnLSTM


class PlainForPreTraining(nn.Module):
    """The sampled-softmax loss of both directions' streams: (B, T, K) ids and (B, T) next words of each."""

    def __init__(self, config: ElmoConfig):
        super().__init__()
        self.elmo = PlainElmo(config)
        self.lm_head = nn.Linear(config.projection_size, config.lm_vocab_size)
        self.sampled = config.num_sampled

    def forward(self, input_ids, labels, reverse_input_ids, reverse_labels) -> torch.Tensor:
        losses = []
        for name, ids, targets in (
            ("forward_lstm", input_ids, labels),
            ("backward_lstm", reverse_input_ids, reverse_labels),
        ):
            states = self.elmo.token_encoder(ids)
            for index, layer in enumerate(self.elmo.layers):
                outputs = getattr(layer, name)(states, [ids.shape[1]] * len(ids))
                states = states + outputs if index else outputs
            losses.append(self.sampled_loss(states.flatten(0, 1), targets.flatten()))
        return sum(losses) / 2

    def sampled_loss(self, states: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """(N, P), (N,) -> the mean of -log p of the targets, with one sample of words for all."""
        vocabulary = self.lm_head.out_features
        words, draws = sample_words(vocabulary, self.sampled, states.device)
        targets_expected, words_expected = (expected_count(drawn, vocabulary, draws) for drawn in (targets, words))
        true = (states * self.lm_head.weight[targets]).sum(-1) + self.lm_head.bias[targets] - targets_expected.log()
        others = states @ self.lm_head.weight[words].T + self.lm_head.bias[words] - words_expected.log()
        others = others.masked_fill(targets[:, None] == words, float("-inf"))
        scores = torch.cat([true[:, None], others], 1)
        return nn.functional.cross_entropy(scores, torch.zeros_like(targets))


def add_boundaries(input_ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """(B, T, K) -> (B, T + 2, K): <S> before the first word of each row and </S> after its last."""
    rows, columns, characters = input_ids.shape
    longer = input_ids.new_zeros(rows, columns + 2, characters)
    longer[:, 1:-1] = input_ids
    marks = input_ids.new_full((2, characters), WORD_PADDING)
    marks[:, 0], marks[:, 2] = WORD_BEGIN, WORD_END
    marks[0, 1], marks[1, 1] = SENTENCE_BEGIN, SENTENCE_END
    longer[:, 0] = marks[0]
    longer[torch.arange(rows, device=mask.device), mask.sum(1) + 1] = marks[1]
    return longer


def remove_boundaries(layer: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """(B, T + 2, D) -> (B, T, D), zero at padding."""
    return layer[:, 1:-1] * mask[..., None]
