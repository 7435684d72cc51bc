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
"""Parts that ELMo's task networks share: the vectors of the words they read, a bidirectional LSTM, sentence pairs.

A word is the concatenation of its word vector, a convolution over its characters, and the biLM's vector (Peters et al.
2018, section 3.3). Each of the three is optional. Without the biLM, the networks are the paper's baselines.

No value depends on padding, on the side it is on, or on other rows; values at padding are zero.

Letters: B rows, T columns, N real words, W ids of a word, D size of a word's vector, H size of a mix, R cells of one
direction.
"""

from functools import partial
from typing import NamedTuple

import torch
import torch.nn as nn
from torch.nn.utils.rnn import PackedSequence
from transformers.utils import auto_docstring
from transformers.utils.import_utils import is_tracing

from ..shared.modeling_heads import IGNORED
from ..shared.modeling_onednn import is_faster, is_plain, linear, needs_static_shapes
from ..shared.modeling_recurrence import lacks_lstm, rnn_weights, run_padded
from .configuration_elmo import ElmoConfig
from .modeling_elmo import ElmoModel, ElmoPreTrainedModel, word_mask
from .modeling_elmo_characters import distinct
from .modeling_elmo_lstm import Sentences, run_both
from .tokenization_elmo_spelling import Marks


# The paper's tables have networks with and without each of these, so branches on them name no checkpoint:
# trf-ignore: TRF041 config.use_elmo, config.elmo_placement, config.mix_l2
# trf-ignore: TRF041 config.num_word_vectors, config.freeze_word_vectors, config.task_char_filters

DIRECTIONS = ("l0", "l0_reverse")  # the endings of the names of their weights in torch


class ElmoWords(NamedTuple):
    """The inputs of a task network.

    Attributes:
        words: (B, T, D) the vectors of the words, zero at padding.
        mask: (B, T) booleans, False at padding.
        late: (B, T, H) the mix that is concatenated to states inside the network: those of the first LSTM layer, or of
            the last, as `config.elmo_placement` says. None with the placement "input" and without the biLM.
        hidden_states: the biLM's layers if they are requested, else None.
    """

    words: torch.Tensor
    mask: torch.Tensor
    late: torch.Tensor | None
    hidden_states: tuple[torch.Tensor, ...] | None


@auto_docstring(custom_intro="Base of ELMo's task networks: makes the vectors of the words that they read.")
class ElmoTaskModel(ElmoPreTrainedModel):  # trf-ignore: TRF013 (each network calls post_init itself)
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

    def freeze_parts(self) -> None:
        if self.config.num_word_vectors and self.config.freeze_word_vectors:
            self.word_vectors.requires_grad_(False)

    @property
    def word_size(self) -> int:
        """D, the size of the vectors that the first layer of the network reads."""
        config = self.config
        size = config.task_char_filters
        size += config.word_vector_size if config.num_word_vectors else 0
        return size + (config.hidden_size if config.use_elmo and config.elmo_placement in ("input", "both") else 0)

    @property
    def late_size(self) -> int:
        """The size of `ElmoWords.late`: H, or 0 if there is none."""
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
        """The vectors of each word.

        Raises:
            ValueError: if an input that the configured network needs is missing, if shapes differ, or if `vector_ids`
                exceed the word vectors.
        """
        inputs = {"input_ids": input_ids, "vector_ids": vector_ids, "layer_states": layer_states}
        mask = word_mask(attention_mask, token_type_ids, **inputs)
        vectors, late, hidden_states = [], None, None
        if self.config.num_word_vectors:
            vectors.append(self._look_up(vector_ids))
        if self.config.task_char_filters:
            if input_ids is None:
                raise ValueError(
                    f"task_char_filters={self.config.task_char_filters}, but there are no input_ids to read the "
                    "characters from: give input_ids, also together with layer_states."
                )
            vectors.append(self.characters(input_ids))
        if self.config.use_elmo:
            outputs = self.elmo(input_ids, mask, token_type_ids, layer_states=layer_states, return_dict=True, **kwargs)
            placement, hidden_states = self.config.elmo_placement, outputs.hidden_states
            if placement in ("input", "both"):
                vectors.append(outputs.mixes[:, 0])
            if placement != "input":
                late = outputs.mixes[:, 1 if placement == "both" else 0]
        words = torch.cat(vectors, -1).masked_fill(~mask.unsqueeze(-1), 0)  # (B, T, D)
        return ElmoWords(words, mask, late, hidden_states)

    def _look_up(self, vector_ids: torch.Tensor | None) -> torch.Tensor:
        """(B, T) -> (B, T, word_vector_size)"""
        rows = self.config.num_word_vectors
        if vector_ids is None:
            raise ValueError(
                f"num_word_vectors={rows}, but no vector_ids are given, the words' rows in them: ElmoTokenizer makes "
                "them from the file words.txt in the model's folder."
            )
        if vector_ids.device.type == "cpu" and not is_tracing(vector_ids):  # elsewhere, it would wait
            invalid = vector_ids[(vector_ids < 0) | (vector_ids >= rows)]
            if len(invalid):
                raise ValueError(
                    f"vector_ids hold {int(invalid[0])}, but the model has num_word_vectors={rows}: they come from "
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
        """Adds the penalty on the weights of the mixes to the loss, in all once per step.

        When Trainer accumulates batches, each adds its share: its labels divided by `num_items_in_batch`.
        """
        if not (self.config.use_elmo and self.config.mix_l2):
            return loss
        share = 1 if num_items_in_batch is None else (labels != IGNORED).sum() / num_items_in_batch
        return loss + share * self.elmo.mix_penalty()


class ElmoTaskCharacters(nn.Module):
    """The character CNN of a task network: one convolution, its maximum over the word, ReLU.

    The paper's supplement has 16 dimensions per character and 128 filters of width 3 for named entities. Windows lie
    within the word with its begin and end marks; a word shorter than a window is padded with zeros.
    """

    def __init__(self, config: ElmoConfig):
        super().__init__()
        self.width = config.task_char_width
        self.letters = config.max_characters_per_token  # columns of them, in a row of ids
        self.word_padding = Marks.of(config.vocab_size).word_padding
        self.embeddings = nn.Embedding(config.vocab_size, config.task_char_embedding_size, padding_idx=0)
        self.convolution = nn.Conv1d(config.task_char_embedding_size, config.task_char_filters, self.width)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        """(B, T, W) -> (B, T, filters)"""
        words = input_ids.flatten(0, 1)[:, : self.letters]  # (B * T, W)
        if needs_static_shapes(input_ids) or not words.numel():
            return self._convolve(words).unflatten(0, input_ids.shape[:2])
        distinct_words, indices = distinct(words)  # every other word of a text has occurred in it before
        longest = int(self._lengths(distinct_words).max())
        vectors = self._convolve(distinct_words[:, : max(longest, 1)])
        return nn.functional.embedding(indices, vectors).unflatten(0, input_ids.shape[:2])

    def _convolve(self, words: torch.Tensor) -> torch.Tensor:
        """(N, W) -> (N, filters)"""
        lengths = self._lengths(words).unsqueeze(1)  # (N, 1)
        inside = torch.arange(words.shape[1], device=words.device) < lengths
        characters = self.embeddings(words) * inside.unsqueeze(-1)  # (N, W, E)
        missing = max(self.width - words.shape[1], 0)
        characters = nn.functional.pad(characters.transpose(1, 2), (0, missing))  # (N, E, W)
        windows = self.convolution(characters)  # (N, filters, windows)
        starts = torch.arange(windows.shape[-1], device=words.device)
        outside = starts > (lengths - self.width).clamp(min=0)  # windows that reach beyond the word
        lowest = torch.finfo(windows.dtype).min
        return windows.masked_fill(outside.unsqueeze(1), lowest).amax(-1).relu()

    def _lengths(self, words: torch.Tensor) -> torch.Tensor:
        """(N, W) -> (N,) the number of ids of each word, without the padding."""
        positions = torch.arange(1, words.shape[1] + 1, device=words.device)
        return (positions * ((words != 0) & (words != self.word_padding))).amax(1)


class BiLSTM(nn.Module):
    """LSTM layers that read the words of each row in both directions, without the padding.

    Dropout is variational (Gal and Ghahramani 2016), as in the paper's supplement for named entities: on the input of
    each layer, it drops the same dimensions in all words of a row.

    Attributes:
        output_size: size of the states that it returns.
    """

    layer_class = nn.LSTM

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
        late: torch.Tensor | None = None,  # (B, T, late_size), concatenated to the first layer's states
    ) -> torch.Tensor:
        """(B, T, output_size), zero at padding."""
        is_static = needs_static_shapes(states)
        run = partial(run_padded, mask=mask) if is_static else partial(_run_packed, packing=_pack(mask))
        for index, layer in enumerate(self.layers):
            states = run(layer, self.dropout(states))  # (B, T, 2R)
            if index == 0 and late is not None:
                states = torch.cat([states, late], -1)
        return states


class VariationalDropout(nn.Dropout):
    """Drops the same dimensions in all words of a row."""

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """(B, T, D) -> (B, T, D)"""
        if not self.training or not self.p:
            return states
        return states * super().forward(torch.ones_like(states[:, :1]))


def _pack(mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The real words of a batch, step by step: the first words of all rows, longest row first, then the second words.

    Returns their places (N,) in the flattened batch, B * T; for each, the step (N,) at which the other direction reads
    it; and the number of rows that have a word at each step, on the CPU.
    """
    rows = Sentences.of(mask, boundaries=0)
    forward, backward = rows.slots  # (N,) each: the step that reads each word
    words = forward.argsort()  # (N,) the word that each step reads
    return rows.places[words], backward[words], rows.sizes.cpu()


def _run_packed(layer: nn.RNNBase, states: torch.Tensor, packing: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """Runs one layer on the real words only: (B, T, D) -> (B, T, 2R)."""
    batch, (places, mirror, sizes) = states.shape[:2], packing
    if not len(places):
        return states.new_zeros(*batch, 2 * layer.hidden_size)
    words = states.flatten(0, 1)[places]
    is_fast = is_plain(layer, nn.LSTM) and is_faster(words, layer.weight_ih_l0, len(sizes))
    if is_fast or (isinstance(layer, nn.LSTM) and lacks_lstm(words)):
        outputs = _run_fast(layer, words, mirror, sizes.tolist())
    else:
        outputs = layer(PackedSequence(words, sizes))[0].data
    grid = outputs.new_zeros(batch.numel(), outputs.shape[1])
    return grid.index_copy(0, places, outputs).unflatten(0, batch)


def _run_fast(lstm: nn.LSTM, words: torch.Tensor, mirror: torch.Tensor, sizes: list[int]) -> torch.Tensor:
    """Runs torch's LSTM by the biLM's recurrence, which trains in two thirds of the time: (N, D) -> (N, 2R)."""
    weights = [rnn_weights(lstm, direction) for direction in DIRECTIONS]
    forward, backward = (linear(words, input_weight, sum(biases)) for input_weight, _, *biases in weights)  # (N, 4R)
    recurrent_weights = [[recurrent_weight] for _, recurrent_weight, *_ in weights]
    zeros = words.new_zeros(2, sizes[0], lstm.hidden_size)
    gates = (forward, backward[mirror])
    forward, backward, _ = run_both(gates, recurrent_weights, (zeros, zeros), sizes, clips=(None, None))
    return torch.cat([forward, backward[mirror]], -1)


# Sentence pairs. The words of both sentences are in one row, and so are their states. Token types tell the sentences
# apart: a sentence is a mask over the columns. Attention then computes some products that are not used, but no shape
# depends on the data. A sentence without words neither attends nor is attended to, and pools to zeros.


def refuse_taglm(config: ElmoConfig) -> None:
    """Raises ValueError if the config reads the biLM between RNN layers, which only the tagger can do."""
    if config.use_elmo and config.elmo_placement == "after_first_rnn":
        raise ValueError(
            'elmo_placement="after_first_rnn" is TagLM, a tagger; other networks: choose "input", "output" or "both".'
        )


def sentence_masks(mask: torch.Tensor, token_type_ids: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """(B, T) mask of all words -> masks of the first sentence (type 0) and the second. No types: all are first."""
    second = torch.zeros_like(mask) if token_type_ids is None else mask & (token_type_ids != 0).to(mask.device)
    return mask & ~second, second


def read_apart(rnn: nn.Module, words: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Runs the RNN on each sentence alone: (B, T, D) words and two (B, T) masks -> (B, T, R) states."""
    of_first, of_second = rnn(torch.cat([words, words]), torch.cat([first, second])).unflatten(0, (2, -1))
    return of_first + of_second  # each is zero outside its sentence


def across(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """(B, T, T) booleans: whether two words are in different sentences of their row."""
    pairs = first.unsqueeze(2) & second.unsqueeze(1)
    return pairs | pairs.transpose(1, 2)


def attend(scores: torch.Tensor, states: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
    """For each word, the mean of the states it attends to, weighted by a softmax; zero if there are none.

    Args:
        scores: (B, T, S) of each word for each state.
        states: (B, S, R).
        visible: (B, T, S) booleans: the states that a word attends to.
    """
    weights = scores.masked_fill(~visible, torch.finfo(scores.dtype).min).softmax(-1)
    return weights.masked_fill(~visible, 0) @ states  # (B, T, R); zeros where no state is visible


def max_pool(states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The maximum of the states (B, T, R) over the words in the mask (B, T): (B, R)."""
    if not states.shape[1]:  # a batch of empty sentences
        return states.sum(1)
    highest = states.masked_fill(~mask.unsqueeze(-1), torch.finfo(states.dtype).min).amax(1)
    return highest.masked_fill(~mask.any(1, keepdim=True), 0)


def mean_pool(states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The mean of the states (B, T, R) over the words in the mask (B, T): (B, R)."""
    total = states.masked_fill(~mask.unsqueeze(-1), 0).sum(1)
    return total / mask.sum(1, keepdim=True).clamp(min=1)
