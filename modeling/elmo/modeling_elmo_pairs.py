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
"""What the networks that compare two sentences share: an RNN on each alone, attention across, pooling.

The words of both sentences stand in one row, told apart by their token types, and so do their states: a sentence is a
mask over the columns. That costs the attention some products it does not use, and leaves every shape free of the data.
All of it is exact: no state depends on padding, on the side it is on or on other rows; a sentence without words sees
nothing, is seen by nothing, and pools to zeros.

Letters: B rows, T columns, D features of a word, R of a state.
"""

import torch
import torch.nn as nn

from .configuration_elmo import ElmoConfig


def refuse_taglm(config: ElmoConfig) -> None:
    """Raises ValueError where the config has the biLM between the RNN layers, which only the tagger does."""
    if config.use_elmo and config.elmo_placement == "after_first_rnn":
        raise ValueError(
            'elmo_placement="after_first_rnn" is TagLM\'s, a tagger; here, choose "input", "output" or "both".'
        )


def sentence_masks(mask: torch.Tensor, token_type_ids: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """(B, T) booleans of all words -> those of the first sentence (type 0) and of the second; no types: all first."""
    second = torch.zeros_like(mask) if token_type_ids is None else mask & (token_type_ids != 0).to(mask.device)
    return mask & ~second, second


def read_apart(rnn: nn.Module, words: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """The RNN's states of each word in its own sentence: (B, T, D) words and two (B, T) masks -> (B, T, R)."""
    of_first, of_second = rnn(torch.cat([words, words]), torch.cat([first, second])).unflatten(0, (2, -1))
    return of_first + of_second  # each is zero off its sentence


def across(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """(B, T, T): whether two words are of different sentences of their row."""
    pairs = first.unsqueeze(2) & second.unsqueeze(1)
    return pairs | pairs.transpose(1, 2)


def attend(scores: torch.Tensor, states: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
    """Means of the states that each word sees, weighted by a softmax of its scores; zero where it sees none.

    Args:
        scores: (B, T, S) of each word for each state.
        states: (B, S, R).
        visible: (B, T, S), which states a word sees.
    """
    weights = scores.masked_fill(~visible, torch.finfo(scores.dtype).min).softmax(-1)
    return weights.masked_fill(~visible, 0) @ states  # (B, T, R); a row of zeros where the softmax had nothing to see


def max_pool(states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The greatest value of each feature over the words of (B, T, R) that the (B, T) mask names: (B, R)."""
    if not states.shape[1]:  # a batch of empty sentences
        return states.sum(1)
    highest = states.masked_fill(~mask.unsqueeze(-1), torch.finfo(states.dtype).min).amax(1)
    return highest.masked_fill(~mask.any(1, keepdim=True), 0)


def mean_pool(states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The mean of each feature over the words of (B, T, R) that the (B, T) mask names: (B, R)."""
    total = states.masked_fill(~mask.unsqueeze(-1), 0).sum(1)
    return total / mask.sum(1, keepdim=True).clamp(min=1)
