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
"""Parts of the networks that compare two sentences: an RNN on each sentence, attention between them, and pooling.

The words of both sentences are in one row, and so are their states. Token types tell the sentences apart: a sentence
is a mask over the columns. Attention then computes some products that are not used, but no shape depends on the data.
No state depends on padding, on the side it is on, or on other rows. A sentence without words neither attends nor is
attended to, and pools to zeros.

Letters: B rows, T columns, D size of a word's vector, R size of a state.
"""

import torch
import torch.nn as nn

from .configuration_elmo import ElmoConfig


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
