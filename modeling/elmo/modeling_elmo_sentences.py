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
"""Where the words of a padded batch lie when only they are computed, in the order of modeling_elmo_lstm.py."""

from dataclasses import dataclass

import torch

from .modeling_elmo_lstm import Pair, Steps


BEGIN, END = 0, 1  # <S> and </S> among the tokens; words count from 2


@dataclass
class Sentences:
    """The sentences of a batch, longest first. Step 0 of the forward direction reads <S>, that of the other </S>.

    N words, S sentences, M steps in all; pairs are (forward, backward).
    """

    shape: tuple[int, int]  # (B, T) of the batch
    places: torch.Tensor  # (N,) of the words among B * T
    lengths: torch.Tensor  # (S,) in words
    steps: Steps  # of words and boundaries
    sentence: torch.Tensor  # (N,) of each word
    position: torch.Tensor  # (N,) of each word in its sentence, from 0
    slots: Pair  # (N,) each: the step that reads the word
    tokens: Pair  # (M,) each: what each step reads

    @classmethod
    def of(cls, mask: torch.Tensor, token_type_ids: torch.Tensor | None, closes: bool) -> "Sentences":
        """From (B, T) True where words are.

        A sentence is a row, or, with token types, what a row has of one type. `closes` says whether each ends with a
        step that reads the boundary on its other side, as a state that goes on has to.
        """
        rows, columns = mask.nonzero(as_tuple=True)  # by rows, then by columns
        if token_type_ids is None:
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
            read = torch.full((int(steps.sizes.sum()),), first, device=mask.device)
            read[slots] = torch.arange(2, len(number) + 2, device=mask.device)
            if closes:
                read[steps.begins[lengths + 1] + steps.rank] = last
            tokens.append(read)
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

    def steps_before(self) -> Pair:
        """(N,) each: the step before the one that reads the word, after which a direction can predict it."""
        last = self.lengths[self.sentence] - 1
        forward = self.steps.rows(self.sentence, self.position)
        return forward, self.steps.rows(self.sentence, last - self.position)

    def layers(self, word: torch.Tensor, outputs: list[Pair]) -> list[torch.Tensor]:
        """The layers, L + 1 times (N, H): the word layer (N, P) twice, then what each LSTM layer says (M, P)."""
        sides = [(forward[self.slots[0]], backward[self.slots[1]]) for forward, backward in outputs]
        return [torch.cat(pair, -1) for pair in [(word, word), *sides]]

    def pad(self, states: torch.Tensor) -> torch.Tensor:
        """(N, D) -> (B, T, D), zero at padding."""
        rows, columns = self.shape
        flat = states.new_zeros(rows * columns, states.shape[-1]).index_copy(0, self.places, states)
        return flat.view(rows, columns, states.shape[-1])
