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
"""The words of a padded batch without the padding, in the order of steps of modeling_elmo_lstm.py."""

from dataclasses import dataclass

import torch

from .modeling_elmo_lstm import Pair, Steps


BEGIN, END = 0, 1  # the numbers of <S> and </S> among the tokens; words are numbered from 2


@dataclass
class Sentences:
    """The sentences of a batch, longest first. Step 0 reads <S> in the forward direction, </S> in the backward one.

    N words, S sentences, M steps in all. A `Pair` is (forward, backward).
    """

    shape: tuple[int, int]  # (B, T) of the batch
    places: torch.Tensor  # (N,) the index of each word in the flattened batch, B * T
    lengths: torch.Tensor  # (S,) in words
    steps: Steps  # the order of the steps, boundaries included
    sentence: torch.Tensor  # (N,) the number of each word's sentence
    position: torch.Tensor  # (N,) the position of each word in its sentence, from 0
    slots: Pair  # (N,) each: the step that reads each word
    tokens: Pair  # (M,) each: the token that each step reads

    @classmethod
    def of(cls, mask: torch.Tensor, token_type_ids: torch.Tensor | None, closes: bool) -> "Sentences":
        """From a (B, T) mask that is True at words.

        A sentence is a row or, with token types, the words of one type in a row. With `closes`, each sentence ends
        with a step that reads the boundary at its other end, which a state that is carried on must have read.
        """
        rows, columns = mask.nonzero(as_tuple=True)  # by rows, then by columns
        if token_type_ids is None or not (closes or token_type_ids.any()):  # a state goes on from sentence to sentence
            number = rows
            count = mask.shape[0]
        else:
            number = 2 * rows + token_type_ids[mask].clamp(0, 1).long()
            count = 2 * mask.shape[0]
        lengths = torch.bincount(number, minlength=count)
        starts = lengths.cumsum(0) - lengths
        by_sentence = number.argsort(stable=True)
        position = torch.empty_like(number)
        position[by_sentence] = torch.arange(len(number), device=mask.device) - starts[number[by_sentence]]
        steps = Steps.of(lengths + 1 + closes)
        forward = steps.rows(number, position + 1)
        backward = steps.rows(number, lengths[number] - position)
        tokens = []
        for slots, first, last in ((forward, BEGIN, END), (backward, END, BEGIN)):
            inputs = torch.full((int(steps.sizes.sum()),), first, device=mask.device)
            inputs[slots] = torch.arange(2, len(number) + 2, device=mask.device)
            if closes:
                inputs[steps.begins[lengths + 1] + steps.rank] = last
            tokens.append(inputs)
        return cls(
            shape=tuple(mask.shape),
            places=rows * mask.shape[1] + columns,
            lengths=lengths,
            steps=steps,
            sentence=number,
            position=position,
            slots=(forward, backward),
            tokens=tuple(tokens),
        )

    @property
    def per_row(self) -> int:
        """The number of sentences of each row: two if any row of the batch has a second one."""
        return len(self.lengths) // max(self.shape[0], 1)

    def steps_before(self) -> Pair:
        """(N,) each: the step before the one that reads the word; its output predicts the word."""
        last = self.lengths[self.sentence] - 1
        forward = self.steps.rows(self.sentence, self.position)
        return forward, self.steps.rows(self.sentence, last - self.position)

    def layers(self, word: torch.Tensor, outputs: list[Pair]) -> list[torch.Tensor]:
        """The L + 1 layers (N, H): the word layer (N, P) twice, then both directions (M, P) of each LSTM layer."""
        sides = [(forward[self.slots[0]], backward[self.slots[1]]) for forward, backward in outputs]
        return [torch.cat(pair, -1) for pair in [(word, word), *sides]]

    def with_boundaries(self, marks: torch.Tensor, words: torch.Tensor, outputs: list[Pair]) -> list[torch.Tensor]:
        """As `layers`, padded to (B, T + 2, H), with <S> in column 0 and </S> behind the last word of each row.

        The sentences are rows that were read with `closes`. `marks` (2, P) and `words` (N, P) are the word layer.
        """
        count, columns = len(self.lengths), self.shape[1] + 2
        number = torch.arange(count, device=words.device)
        first, last = self.steps.rows(number, torch.zeros_like(number)), self.steps.rows(number, self.lengths + 1)
        forward = torch.cat([first, self.slots[0], last])  # <S>, the words and </S> of all sentences
        backward = torch.cat([last, self.slots[1], first])
        words = torch.cat([marks[:1].expand(count, -1), words, marks[1:].expand(count, -1)])
        sides = [(words, words), *((ahead[forward], behind[backward]) for ahead, behind in outputs)]
        places = torch.cat([number * 0, self.position + 1, self.lengths + 1])
        places = places + columns * torch.cat([number, self.sentence, number])
        zeros = words.new_zeros(count * columns, 2 * words.shape[1])
        return [zeros.index_copy(0, places, torch.cat(pair, -1)).view(count, columns, -1) for pair in sides]

    def pad(self, states: torch.Tensor) -> torch.Tensor:
        """(N, D) -> (B, T, D), zero at padding."""
        rows, columns = self.shape
        flat = states.new_zeros(rows * columns, states.shape[-1]).index_copy(0, self.places, states)
        return flat.view(rows, columns, states.shape[-1])
