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
"""What ELMo's task networks share: the words they read, and the bidirectional LSTM that reads them.

A word is what is known of it, side by side: its word vector, a convolution over its characters, the biLM's vector
(Peters et al. 2018, section 3.3). Each of the three is optional; without the biLM the networks are the paper's
baselines.

Everything here is exact: no value depends on padding, on the side it is on or on other rows, and is zero at padding.

Letters: B rows, T columns, N real words, W ids of a word, D features of a word, H size of a mix, R cells of one
direction.
"""

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import NamedTuple

import torch
import torch.nn as nn
from torch.nn.utils.rnn import PackedSequence
from transformers.utils import auto_docstring
from transformers.utils.import_utils import is_tracing

from ..shared.modeling_losses import IGNORED
from ..shared.modeling_onednn import is_faster, is_transformed, linear
from .configuration_elmo import ElmoConfig
from .modeling_elmo import ElmoModel, ElmoPreTrainedModel
from .modeling_elmo_characters import distinct
from .modeling_elmo_lstm import Steps, run_both
from .tokenization_elmo import WORD_PADDING


# The paper's tables have networks with and without each of these, so there is no checkpoint to name at every branch:
# trf-ignore: TRF041 config.use_elmo, config.elmo_placement, config.mix_l2
# trf-ignore: TRF041 config.num_word_vectors, config.freeze_word_vectors, config.task_char_filters

DIRECTIONS = ("l0", "l0_reverse")  # how torch ends the names of their weights


class ElmoWords(NamedTuple):
    """What a task network reads.

    Attributes:
        words: (B, T, D) the words, zero at padding.
        mask: (B, T) booleans, False at padding.
        late: (B, T, H) the mix that joins later than the words, as `config.elmo_placement` says: with the states of
            the first LSTM layer ("after_first_rnn") or those of the last ("output", "both"); else None.
        hidden_states: the biLM's layers where they are asked for; else None.
    """

    words: torch.Tensor
    mask: torch.Tensor
    late: torch.Tensor | None
    hidden_states: tuple[torch.Tensor, ...] | None


@auto_docstring(custom_intro="The base of ELMo's task networks: what they read, as far as the config has it.")
class ElmoTaskModel(ElmoPreTrainedModel):  # trf-ignore: TRF013 (each network calls post_init, when it is whole)
    def __init__(self, config: ElmoConfig):
        super().__init__(config)
        if config.use_elmo:
            self.elmo = ElmoModel(config)
        if config.num_word_vectors:
            self.word_vectors = nn.Embedding(config.num_word_vectors, config.word_vector_size, padding_idx=0)
        if config.task_char_filters:
            self.characters = ElmoTaskCharacters(config)
        if not self.word_size:
            raise ValueError(
                f"The network has no words to read: use_elmo={config.use_elmo} with elmo_placement="
                f"{config.elmo_placement!r}, num_word_vectors=0 and task_char_filters=0. Set one of the last two, or "
                'use_elmo=True with elmo_placement="input".'
            )
        self.train()

    def train(self, mode: bool = True) -> "ElmoTaskModel":
        """As for every module, but frozen word vectors want no gradients, which from_pretrained gives to all."""
        super().train(mode)
        if self.config.num_word_vectors and self.config.freeze_word_vectors:
            self.word_vectors.requires_grad_(False)
        return self

    @property
    def word_size(self) -> int:
        """D: features of a word that the network reads first."""
        config = self.config
        size = config.task_char_filters
        size += config.word_vector_size if config.num_word_vectors else 0
        return size + (config.hidden_size if config.use_elmo and config.elmo_placement in ("input", "both") else 0)

    @property
    def late_size(self) -> int:
        """Features of `ElmoWords.late`: H, or 0 where there is none."""
        return self.config.hidden_size if self.config.use_elmo and self.config.elmo_placement != "input" else 0

    def embed_words(
        self,
        input_ids: torch.Tensor | None,  # (B, T, W)
        attention_mask: torch.Tensor | None = None,  # (B, T)
        token_type_ids: torch.Tensor | None = None,  # (B, T)
        vector_ids: torch.Tensor | None = None,  # (B, T)
        layer_states: torch.Tensor | None = None,  # (B, T, layers, H)
        **kwargs,
    ) -> ElmoWords:
        """All that is known of each word.

        Raises:
            ValueError: where what the config's networks read is missing, or a row of the word vectors is.
        """
        _check_words(input_ids, vector_ids, layer_states, attention_mask=attention_mask, token_type_ids=token_type_ids)
        mask = _word_mask(attention_mask, input_ids, vector_ids, layer_states)
        features, late, hidden_states = [], None, None
        if self.config.num_word_vectors:
            features.append(self._look_up(vector_ids))
        if self.config.task_char_filters:
            if input_ids is None:
                raise ValueError(
                    f"task_char_filters={self.config.task_char_filters}, but there are no input_ids to read the "
                    "characters from: give them, beside layer_states too."
                )
            features.append(self.characters(input_ids))
        if self.config.use_elmo:
            outputs = self.elmo(input_ids, mask, token_type_ids, layer_states=layer_states, return_dict=True, **kwargs)
            placement, hidden_states = self.config.elmo_placement, outputs.hidden_states
            if placement in ("input", "both"):
                features.append(outputs.mixes[:, 0])
            if placement != "input":
                late = outputs.mixes[:, 1 if placement == "both" else 0]
        words = torch.cat(features, -1).masked_fill(~mask.unsqueeze(-1), 0)  # (B, T, D)
        return ElmoWords(words, mask, late, hidden_states)

    def _look_up(self, vector_ids: torch.Tensor | None) -> torch.Tensor:
        """(B, T) -> (B, T, word_vector_size)"""
        rows = self.config.num_word_vectors
        if vector_ids is None:
            raise ValueError(
                f"num_word_vectors={rows}, but no vector_ids are given, the rows of the words in them: ElmoTokenizer "
                "makes them from the list words.txt in the model's folder."
            )
        if vector_ids.device.type == "cpu" and not is_tracing(vector_ids):  # elsewhere, to look would be to wait
            beyond = vector_ids[(vector_ids < 0) | (vector_ids >= rows)]
            if len(beyond):
                raise ValueError(
                    f"vector_ids hold {int(beyond[0])}, but the model has num_word_vectors={rows}: they come from "
                    "another model's words.txt. Use the tokenizer in this model's folder."
                )
        return self.word_vectors(vector_ids)

    def add_mix_penalty(
        self,
        loss: torch.Tensor,
        labels: torch.Tensor,
        num_items_in_batch: torch.Tensor | int | None = None,
        **kwargs,
    ) -> torch.Tensor:
        """The loss plus that on the weights of the mixes, once in a step.

        Of the batches that Trainer accumulates, each adds its share: that of the `num_items_in_batch` labels.
        """
        if not (self.config.use_elmo and self.config.mix_l2):
            return loss
        share = 1 if num_items_in_batch is None else (labels != IGNORED).sum() / num_items_in_batch
        return loss + share * self.elmo.mix_penalty()


def _check_words(
    input_ids: torch.Tensor | None, vector_ids: torch.Tensor | None, layer_states: torch.Tensor | None, **numbers
) -> None:
    """Raises ValueError where what is given is not of the same words, (B, T)."""
    inputs = {"input_ids": input_ids, "vector_ids": vector_ids, "layer_states": layer_states}
    given = {name: tuple(tensor.shape[:2]) for name, tensor in inputs.items() if tensor is not None}
    given |= {name: tuple(tensor.shape) for name, tensor in numbers.items() if tensor is not None}
    first, *others = given.items() or [(None, None)]
    for name, shape in others:
        if shape != first[1]:
            raise ValueError(
                f"{name} has words of shape {shape}, but {first[0]} of {first[1]}: give one for each word."
            )


def _word_mask(attention_mask: torch.Tensor | None, *inputs: torch.Tensor | None) -> torch.Tensor:
    """(B, T) booleans, False at padding. Without a mask, a word is what is not zero in the first input there is."""
    if attention_mask is not None:
        return attention_mask.bool()
    for given in inputs:
        if given is not None:
            return (given != 0).view(*given.shape[:2], -1).any(-1)
    raise ValueError("Give input_ids or, if the network reads only these, vector_ids or layer_states.")


class ElmoTaskCharacters(nn.Module):
    """A task network's own character CNN: one convolution, its maximum over the word, ReLU.

    The paper's supplement, for named entities: 16 dimensions a character, 128 filters of width 3. Windows reach as far
    as the word does with its begin and end marks; a word shorter than a window is filled up with zeros.
    """

    def __init__(self, config: ElmoConfig):
        super().__init__()
        self.width = config.task_char_width
        self.embeddings = nn.Embedding(config.vocab_size, config.task_char_embedding_size, padding_idx=0)
        self.convolution = nn.Conv1d(config.task_char_embedding_size, config.task_char_filters, self.width)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        """(B, T, W) -> (B, T, filters)"""
        words = input_ids.flatten(0, 1)  # (B * T, W)
        if is_tracing(input_ids) or is_transformed() or not words.numel():
            return self._convolve(words).unflatten(0, input_ids.shape[:2])
        found, which = distinct(words)  # exact, and every other word of a text is one that it had before
        longest = int(_lengths(found).max())
        vectors = self._convolve(found[:, : max(longest, 1)])
        return nn.functional.embedding(which, vectors).unflatten(0, input_ids.shape[:2])

    def _convolve(self, words: torch.Tensor) -> torch.Tensor:
        """(N, W) -> (N, filters)"""
        lengths = _lengths(words).unsqueeze(1)  # (N, 1)
        inside = torch.arange(words.shape[1], device=words.device) < lengths
        characters = self.embeddings(words) * inside.unsqueeze(-1)  # (N, W, E)
        missing = max(self.width - words.shape[1], 0)
        characters = nn.functional.pad(characters.transpose(1, 2), (0, missing))  # (N, E, W)
        windows = self.convolution(characters)  # (N, filters, windows)
        starts = torch.arange(windows.shape[-1], device=words.device)
        beyond = starts > (lengths - self.width).clamp(min=0)  # windows that a longer row of ids would not have
        lowest = torch.finfo(windows.dtype).min
        return windows.masked_fill(beyond.unsqueeze(1), lowest).amax(-1).relu()


def _lengths(words: torch.Tensor) -> torch.Tensor:
    """(N, W) -> (N,) ids of each word, without what fills its row up."""
    positions = torch.arange(1, words.shape[1] + 1, device=words.device)
    return (positions * ((words != 0) & (words != WORD_PADDING))).amax(1)


def _run_lstm(
    inputs: torch.Tensor,  # (B, T, D)
    input_weight: torch.Tensor,  # (4R, D): gates i, f, g, o
    recurrent_weight: torch.Tensor,  # (4R, R)
    *biases: torch.Tensor,  # (4R,) each
) -> torch.Tensor:
    """One direction of torch's LSTM written out, which a traced graph does not take as a whole: (B, T, R)."""
    gates = nn.functional.linear(inputs, input_weight, sum(biases))  # (B, T, 4R)
    hidden = cell = gates.new_zeros(inputs.shape[0], recurrent_weight.shape[1])
    outputs = []
    for step in gates.unbind(1):
        i, f, g, o = (step + nn.functional.linear(hidden, recurrent_weight)).chunk(4, -1)
        cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
        hidden = o.sigmoid() * cell.tanh()
        outputs.append(hidden)
    return torch.stack(outputs, 1)


class BiLSTM(nn.Module):
    """LSTM layers that read the words of each row in both directions, and nothing else of it.

    Dropout is variational, as the paper's supplement has it for named entities: on the input of each layer, the same
    features of all words of a row (Gal and Ghahramani 2016).

    Attributes:
        output_size: features of the states that it returns.
    """

    layer_class = nn.LSTM
    run_direction = staticmethod(_run_lstm)

    def __init__(self, input_size: int, rnn_size: int, layers: int = 1, dropout: float = 0.0, late_size: int = 0):
        super().__init__()
        sizes = [input_size, 2 * rnn_size + late_size] + [2 * rnn_size] * layers
        self.layers = nn.ModuleList(self.layer_class(size, rnn_size, bidirectional=True) for size in sizes[:layers])
        self.dropout = VariationalDropout(dropout)
        self.output_size = sizes[layers]

    def forward(
        self,
        states: torch.Tensor,  # (B, T, input_size)
        mask: torch.Tensor,  # (B, T) booleans
        late: torch.Tensor | None = None,  # (B, T, late_size), joined to what the first layer gives
    ) -> torch.Tensor:
        """(B, T, output_size), zero at padding."""
        static = is_tracing(states) or is_transformed() or states.device.type == "xla"
        padded = partial(_run_padded, mask=mask, run_direction=self.run_direction)
        run = padded if static else partial(_run_packed, packing=_pack(mask))
        for index, layer in enumerate(self.layers):
            states = run(layer, self.dropout(states))  # (B, T, 2R)
            if index == 0 and late is not None:
                states = torch.cat([states, late], -1)
        return states


class VariationalDropout(nn.Dropout):
    """Drops the same features of all words of a row."""

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """(B, T, D) -> (B, T, D)"""
        if not self.training or not self.p:
            return states
        return states * super().forward(torch.ones_like(states[:, :1]))


class _Packing(NamedTuple):
    """The real words of a batch, step by step: the first of every row, rows with more words first, then the second.

    Attributes:
        words: (N,) the index of each in the flattened (B, T).
        mirror: (N,) the place of the word that the other direction reads at the same step of the same row.
        sizes: (steps,) how many rows have a word at that step; on the CPU.
    """

    words: torch.Tensor
    mirror: torch.Tensor
    sizes: torch.Tensor


def _pack(mask: torch.Tensor) -> _Packing:
    rows, columns = mask.nonzero(as_tuple=True)  # (N,)
    lengths = mask.sum(1)  # (B,)
    steps = Steps.of(lengths)
    position = (mask.cumsum(1) - 1)[mask]  # (N,) of each word in its row
    slots = steps.rows(rows, position)
    words, mirror = torch.empty_like(slots), torch.empty_like(slots)
    words[slots] = rows * mask.shape[1] + columns
    mirror[slots] = steps.rows(rows, lengths[rows] - 1 - position)
    return _Packing(words, mirror, steps.sizes.cpu())


def _run_packed(layer: nn.RNNBase, states: torch.Tensor, packing: _Packing) -> torch.Tensor:
    """One layer on the real words only: (B, T, D) -> (B, T, 2R)."""
    batch = states.shape[:2]
    if not len(packing.words):
        return states.new_zeros(*batch, 2 * layer.hidden_size)
    words = states.flatten(0, 1)[packing.words]
    if isinstance(layer, nn.LSTM) and is_faster(words, layer.weight_ih_l0):
        outputs = _run_fast(layer, words, packing)
    else:
        outputs = layer(PackedSequence(words, packing.sizes))[0].data
    grid = outputs.new_zeros(batch.numel(), outputs.shape[1])
    return grid.index_copy(0, packing.words, outputs).unflatten(0, batch)


def _run_fast(lstm: nn.LSTM, words: torch.Tensor, packing: _Packing) -> torch.Tensor:
    """The same by the biLM's recurrence, on the CPU: training takes two thirds of torch's time. (N, D) -> (N, 2R)."""
    weights = [_weights(lstm, direction) for direction in DIRECTIONS]
    forward, backward = (linear(words, of_input, sum(biases)) for of_input, _, *biases in weights)  # (N, 4R)
    sides = tuple(SimpleNamespace(recurrent=SimpleNamespace(weight=side[1]), projection=None) for side in weights)
    sizes = packing.sizes.tolist()
    zeros = words.new_zeros(2, sizes[0], lstm.hidden_size)
    gates = (forward, backward[packing.mirror])
    forward, backward, _ = run_both(gates, sides, (zeros, zeros), sizes, clips=(None, None))
    return torch.cat([forward, backward[packing.mirror]], -1)


def _weights(layer: nn.RNNBase, direction: str) -> tuple[torch.Tensor, ...]:
    """Of the input (gates R, D) and the states (gates R, R), and the bias of each (gates R)."""
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    return tuple(getattr(layer, f"{name}_{direction}") for name in names)


def _run_padded(layer: nn.RNNBase, states: torch.Tensor, mask: torch.Tensor, run_direction: Callable) -> torch.Tensor:
    """As `_run_packed`, in shapes and steps that do not depend on the data: what a traced graph is made of.

    Each direction reads its rows with the words in front, so that padding comes after all that counts.
    """
    padding = (~mask).int()
    forward = padding.argsort(dim=1, stable=True)  # (B, T): where the first word is, the second, ...
    backward = mask.shape[1] - 1 - padding.flip(1).argsort(dim=1, stable=True)
    outputs = []
    for order, direction in zip((forward, backward), DIRECTIONS, strict=True):
        inputs = states.gather(1, order.unsqueeze(-1).expand_as(states))
        found = run_direction(inputs, *_weights(layer, direction))
        outputs.append(found.gather(1, order.argsort(1).unsqueeze(-1).expand_as(found)))
    return torch.cat(outputs, -1).masked_fill(padding.bool().unsqueeze(-1), 0)
