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
"""The LSTM of ELMo's biLM: clipped cells, a clipped projection, and no padding.

Equations as in the released code (allenai/bilm-tf, TensorFlow's LSTMCell without peepholes):

    i, f, g, o = W x_t + U h_{t-1} + b        the forget gate's +1 is in b
    c_t = clip(sigmoid(f) c_{t-1} + sigmoid(i) tanh(g), cell_clip)
    h_t = clip(P (sigmoid(o) tanh(c_t)), proj_clip)

torch's LSTM with `proj_size` does not clip, and values of published models do reach the limits. This implementation is
fast for the following reasons, none of which changes a result:

- one matrix product before the loop over time computes W x_t + b of all words;
- sentences are sorted by length, and step t computes only those that are longer than t, so padding is not computed and
  the rows of a step are adjacent;
- after the loop, one product each computes the gradients of U and of P;
- oneDNN computes the products where it is faster (modeling_onednn.py), from weights packed once for all steps.

`lstm_step` and `lstm_step_backward` (modeling_recurrence.py) have the equations of one step. `forward_steps` and
`backward_steps` call them step by step: for each direction alone or, in CUDA graphs (modeling_elmo_graphs.py), for
both at once, with the directions as the first dimension.

Letters: B rows of a batch, T words of a row, N words of all rows, S sentences, M steps of all sentences, C cells, P
size of the projection, H = 2 P. Tensors of all steps are (M, ...): the rows of step 0, longest sentence first, then
those of step 1, ...; `sizes` counts the rows of each step.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn as nn
from transformers import initialization as init

from ..shared.modeling_onednn import Linear, fill_up, is_faster, is_transformed, packed, product
from ..shared.modeling_parameters import weight_of
from ..shared.modeling_recurrence import (
    IN_PLACE,
    Clips,
    Tensors,
    lstm_step,
    lstm_step_backward,
    scan,
    scanned_lstm_step,
    tanh_,
)
from .modeling_elmo_graphs import run_in_graphs, uses_graphs


BEGIN, END = 0, 1  # the numbers of <S> and </S> among the tokens; words are numbered from 2

Pair = tuple[torch.Tensor, torch.Tensor]  # one tensor of the forward and one of the backward direction
State = tuple[torch.Tensor, torch.Tensor]  # hidden (2, S, P) and cell (2, S, C), forward then backward
Weights = Sequence[Sequence[torch.Tensor]]  # the `step_weights` of each direction
Products = Sequence[Callable[[torch.Tensor], torch.Tensor]]


@dataclass
class Sentences:
    """The sentences of a batch and their steps: the first steps of all, longest sentence first, then the second steps.

    N words, S sentences, M steps in all. A `Pair` is (forward, backward).
    """

    shape: tuple[int, int]  # (B, T) of the batch
    boundaries: int  # steps of each sentence that read a boundary
    per_row: int  # sentences of each row: two if any row of the batch has a second one
    places: torch.Tensor  # (N,) the index of each word in the flattened batch, B * T
    sentence: torch.Tensor  # (N,) the number of each word's sentence
    position: torch.Tensor  # (N,) the position of each word in its sentence, from 0
    lengths: torch.Tensor  # (S,) in words
    order: torch.Tensor  # (S,) the numbers of the sentences, longest first
    rank: torch.Tensor  # (S,) the place of each sentence in that order
    sizes: torch.Tensor  # (steps,) the number of sentences that have each step; it never grows
    begins: torch.Tensor  # (steps,) the first of the M rows that belongs to each step

    @classmethod
    def of(cls, mask: torch.Tensor, token_type_ids: torch.Tensor | None = None, boundaries: int = 1) -> "Sentences":
        """From a (B, T) mask that is True at words.

        A sentence is a row or, with token types, the words of one type in a row. Its first step reads a boundary: <S>
        in the forward direction, </S> in the backward one. With two `boundaries`, its last step reads the one at the
        other end, which a state that is carried on must have read. With none, steps read the words of the mask only.
        """
        rows, columns = mask.nonzero(as_tuple=True)  # by rows, then by columns
        # A state that is carried on needs the same number of sentences in each batch.
        per_row = 2 if token_type_ids is not None and (boundaries == 2 or token_type_ids.any()) else 1
        second = mask & (token_type_ids > 0) if per_row == 2 else torch.zeros_like(mask)
        first = mask & ~second
        sentence = per_row * rows + second[mask]
        lengths = torch.bincount(sentence, minlength=per_row * len(mask))
        order = lengths.argsort(descending=True, stable=True)
        steps = torch.arange(int(lengths.max()) + boundaries if len(lengths) else 0, device=mask.device)
        sizes = (lengths + boundaries > steps[:, None]).sum(1)
        return cls(
            shape=tuple(mask.shape),
            boundaries=boundaries,
            per_row=per_row,
            places=rows * mask.shape[1] + columns,
            sentence=sentence,
            position=torch.where(second, second.long().cumsum(1), first.long().cumsum(1))[mask] - 1,
            lengths=lengths,
            order=order,
            rank=order.argsort(),
            sizes=sizes,
            begins=sizes.cumsum(0) - sizes,
        )

    def rows(self, sentences: torch.Tensor, steps: torch.Tensor) -> torch.Tensor:
        """(N,) sentences and (N,) one step of each -> (N,) their rows among the M."""
        return self.begins[steps] + self.rank[sentences]

    @functools.cached_property
    def slots(self) -> Pair:
        """(N,) each: the step that reads each word."""
        first = min(self.boundaries, 1)
        backward = self.rows(self.sentence, self.lengths[self.sentence] - 1 - self.position + first)
        return self.rows(self.sentence, self.position + first), backward

    def tokens(self) -> Pair:
        """(M,) each: the token that each step reads."""
        tokens = []
        for slots, first, last in zip(self.slots, (BEGIN, END), (END, BEGIN), strict=True):
            inputs = torch.full((int(self.sizes.sum()),), first, device=slots.device)
            inputs[slots] = torch.arange(2, len(slots) + 2, device=slots.device)
            if self.boundaries == 2:
                inputs[self.begins[self.lengths + 1] + self.rank] = last
            tokens.append(inputs)
        return tuple(tokens)

    def steps_before(self) -> Pair:
        """(N,) each: the step before the one that reads the word; its output predicts the word."""
        last = self.lengths[self.sentence] - 1
        return self.rows(self.sentence, self.position), self.rows(self.sentence, last - self.position)

    def layers(self, word: torch.Tensor, outputs: list[Pair]) -> list[torch.Tensor]:
        """The L + 1 layers (N, H): the word layer (N, P) twice, then both directions (M, P) of each LSTM layer."""
        sides = [(forward[self.slots[0]], backward[self.slots[1]]) for forward, backward in outputs]
        return [torch.cat(pair, -1) for pair in [(word, word), *sides]]

    def with_boundaries(self, marks: torch.Tensor, words: torch.Tensor, outputs: list[Pair]) -> list[torch.Tensor]:
        """As `layers`, padded to (B, T + 2, H), with <S> in column 0 and </S> behind the last word of each row.

        The sentences are rows with two `boundaries`. `marks` (2, P) and `words` (N, P) are the word layer.
        """
        count, columns = len(self.lengths), self.shape[1] + 2
        number = torch.arange(count, device=words.device)
        first, last = self.rows(number, torch.zeros_like(number)), self.rows(number, self.lengths + 1)
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


class ElmoLSTM(nn.Module):
    """The parameters of one direction of one layer. Rows of `input` and `recurrent`: gates i, f, g, o, C each."""

    def __init__(self, input_size: int, cell_size: int, projection_size: int):
        super().__init__()
        self.input = Linear(input_size, 4 * cell_size)
        self.recurrent = nn.Linear(projection_size, 4 * cell_size, bias=False)
        self.projection = nn.Linear(cell_size, projection_size, bias=False) if cell_size != projection_size else None

    def reset(self) -> None:
        """TensorFlow's initial values: Glorot's, with W and U as one matrix; zero biases, 1 for the forget gate."""
        cells = self.recurrent.out_features // 4
        inputs = self.input.in_features + self.recurrent.in_features
        for part in (self.input, self.recurrent):
            limit = (6 / (inputs + 4 * cells)) ** 0.5
            init.uniform_(part.weight, -limit, limit)
        bias = torch.zeros_like(self.input.bias)
        bias[cells : 2 * cells] = 1.0
        init.copy_(self.input.bias, bias)
        if self.projection is not None:
            init.xavier_uniform_(self.projection.weight)

    @property
    def step_weights(self) -> list[torch.Tensor]:
        """The weights that each step reads: U and, unless states are the cells, P."""
        return [weight_of(part) for part in (self.recurrent, self.projection) if part is not None]


def run_both(gates: Pair, weights: Weights, state: State, sizes: list[int], clips: Clips) -> tuple:
    """Runs both directions through all steps.

    `gates` are (M, 4C) of each direction, `weights` its `step_weights`. `state` has one row per sentence, longest
    first. `sizes` counts the rows of each step and never grows. Returns the projections (M, P) of each direction, and
    the state after each sentence's last step.

    Raises:
        NotImplementedError: under `torch.func` and forward-mode differentiation, and in a backward pass that is to be
            differentiated again (`create_graph=True`). Only first derivatives in reverse mode are implemented. On XLA,
            for sentences of unequal length.
    """
    if is_transformed():
        raise NotImplementedError(
            "torch.func and forward-mode differentiation are not implemented for ELMo's recurrence, which "
            "ElmoForPreTraining uses: call loss.backward(), or differentiate ElmoModel, which uses ordinary operations"
        )
    if gates[0].device.type == "xla":
        return _run_on_xla(gates, weights, state, sizes, clips)
    dtype = gates[0].dtype  # under autocast, its type
    hidden, cell = state[0].to(dtype), state[1].to(torch.promote_types(dtype, torch.float32))
    if not sizes:
        return *(part[:, :1].expand(-1, hidden.shape[-1]) for part in gates), (hidden, cell)
    weights = [[weight.to(dtype) for weight in step_weights] for step_weights in weights]
    sizes, records = tuple(sizes), torch.is_grad_enabled()  # inside the function, gradients are always disabled
    with torch.autocast(gates[0].device.type, enabled=False):
        if uses_graphs(hidden):  # both directions are one call, whose tensors are (2, ...)
            inputs = [torch.stack(pair) for pair in (gates, *zip(*weights, strict=True))]
            outputs, *end = _Recurrence.apply(sizes, clips, records, hidden, cell, *inputs)
            return *outputs.unbind(0), tuple(end)
        sides = zip(hidden, cell, gates, weights, strict=True)
        (forward, *end), (backward, *other_end) = (
            _Recurrence.apply(sizes, clips, records, *tensors, *step_weights) for *tensors, step_weights in sides
        )
    return forward, backward, tuple(map(torch.stack, zip(end, other_end, strict=True)))


def scan_both(gates: Pair, masks: Pair, weights: Weights, state: State, clips: Clips) -> tuple:
    """As `run_both`, in operations of static shapes, for traced graphs and XLA.

    `gates` are (T, S, 4C) of each direction, `weights` its `step_weights`. `masks` (T, S, 1) are False where a
    sentence has no step, which keeps its state. Returns the projections (T, S, P) of each direction, and the last
    state.
    """
    outputs, ends = [], []
    for direction, step_weights in enumerate(weights):
        hidden, cell = (part[direction] for part in state)
        dtype, columns = gates[direction].dtype, (gates[direction], masks[direction])
        start = hidden.to(dtype), cell.to(torch.promote_types(dtype, torch.float32))
        end, output = scan(partial(scanned_lstm_step, clips=clips), start, columns, step_weights)
        outputs.append(output)
        ends.append(end)
    return outputs[0], outputs[1], tuple(torch.stack(parts) for parts in zip(*ends, strict=True))


def _run_on_xla(gates: Pair, weights: Weights, state: State, sizes: list[int], clips: Clips) -> tuple:
    """`run_both` for sentences of one length, as streams are."""
    if len(set(sizes)) > 1:
        raise NotImplementedError(
            "ElmoForPreTraining reads streams on XLA, but these are sentences of unequal length: read them on the CPU"
        )
    gates = tuple(part.unflatten(0, (len(sizes), -1)) for part in gates)
    masks = (gates[0].new_ones(*gates[0].shape[:2], 1, dtype=torch.bool),) * 2
    forward, backward, end = scan_both(gates, masks, weights, state, clips)
    return forward.flatten(0, 1), backward.flatten(0, 1), end


class _Recurrence(torch.autograd.Function):
    """The loop over time of one direction, or of both, (2, ...). Backward needs five stored numbers per cell and step.

    Returns the projections (..., M, P), and the state after each sentence's last step, (..., S, P) and (..., S, C),
    which gets no gradient.
    """

    @staticmethod
    def forward(ctx, sizes, clips, records, hidden, cell, gates, *weights):
        save = records and any(ctx.needs_input_grad)
        function = partial(forward_steps, clips=clips, save=save)
        outputs, *saved, last_hidden, last_cell = _run(function, weights, [hidden, cell], [gates], sizes)
        if save:
            ctx.save_for_backward(hidden, cell, outputs, *saved, *weights)
            ctx.sizes, ctx.clips = sizes, clips
        ctx.mark_non_differentiable(last_hidden, last_cell)
        return outputs, last_hidden, last_cell

    @staticmethod
    def backward(ctx, d_outputs, *_):
        if torch.is_grad_enabled() or is_transformed():
            raise NotImplementedError(
                "second derivatives (create_graph=True) and batches of gradients (is_grads_batched=True) of ELMo's "
                "recurrence are not implemented: use torch.func (as torch.func.jvp of torch.func.grad), under which "
                "ElmoModel uses ordinary operations"
            )
        hidden, cell, outputs, activated, cells, *weights = ctx.saved_tensors
        columns = [activated, cells, _before(cells, cell, ctx.sizes), outputs, d_outputs]
        function = partial(backward_steps, clips=ctx.clips)
        zeros = [torch.zeros_like(hidden), torch.zeros_like(cell)]
        d_gates, d_projected, *d_state = _run(function, weights, zeros, columns, ctx.sizes, from_the_end=True)
        d_weights = [_transposed_product(d_gates, _before(outputs, hidden, ctx.sizes))]
        if len(weights) > 1:
            d_weights.append(_transposed_product(d_projected, _squashed(activated, cells, outputs)))
        return None, None, None, *d_state, d_gates, *d_weights


def _run(
    function: partial, weights: Tensors, state: Tensors, columns: Tensors, sizes: tuple[int, ...], from_the_end=False
) -> list[torch.Tensor]:
    """Calls `forward_steps` or, from the last step on, `backward_steps` for the columns (..., M, D) of all steps.

    Returns what the steps return, (..., M, D) each, and the state that they end with.
    """
    if state[0].dim() == 3:
        return run_in_graphs(function, weights, state, columns, sizes, from_the_end)
    products = [_product_with(weight.T if from_the_end else weight, len(sizes)) for weight in weights]
    results, state = function(products, state, list(zip(*(column.split(sizes) for column in columns), strict=True)))
    return [*map(torch.cat, results), *state]


def forward_steps(
    products: Products, state: Tensors, columns: list[tuple], clips: Clips, save: bool
) -> tuple[list[Tensors], Tensors]:
    """Steps of the recurrence: what each returns, and the state after the last step of each sentence.

    Args:
        products: the functions h -> U h and h -> P h.
        state: hidden (..., S, P) and cell (..., S, C), before.
        columns: of each step, the inputs' part of the gates (..., size, 4C) of the sentences that have the step. In
            graphs, all sentences have all steps, and (1, S, 1) booleans are False where one keeps its state.
    """
    hidden, cell = state
    results, ends = [], []
    for gates, *is_real in columns:
        size = gates.shape[-2]
        if size < hidden.shape[-2]:  # the last sentences have ended
            ends.append((hidden[size:], cell[size:]))
            hidden, cell = hidden[:size], cell[:size]
        output, new_cell, activated = lstm_step(gates, hidden, cell, products, clips, IN_PLACE)
        results.append((output, activated.to(gates.dtype), new_cell) if save else (output,))
        for real in is_real:
            output, new_cell = torch.where(real, output, hidden), torch.where(real, new_cell, cell)
        hidden, cell = output, new_cell
    ends.append((hidden, cell))
    return list(zip(*results, strict=True)), [torch.cat(parts[::-1], -2) for parts in zip(*ends, strict=True)]


def backward_steps(
    products: Products, state: Tensors, columns: list[tuple], clips: Clips
) -> tuple[list[Tensors], Tensors]:
    """The gradients of `forward_steps`, from the last step to the first: of each step, and of the state before.

    In graphs, gradients of outputs are zero where a sentence has no step, and so are those that are computed there.

    Args:
        products: the functions d -> d U and d -> d P.
        state: the gradients (..., S, P) and (..., S, C) that later steps have, or zeros.
        columns: the activated gates, the cells after and before the step, the projections and their gradient.
    """
    d_hidden, d_cell = (part[..., : columns[-1][0].shape[-2], :] for part in state)
    results = []
    for activated, cells, before, output, d_output in reversed(columns):
        ended = cells.shape[-2] - d_hidden.shape[-2]  # the sentences that end with this step
        if ended:
            d_hidden, d_cell = (nn.functional.pad(part, (0, 0, 0, ended)) for part in (d_hidden, d_cell))
        d_gates, d_projected, d_hidden, d_cell = lstm_step_backward(
            d_hidden + d_output, d_cell, activated, (cells, before), output, products, clips
        )
        results.append((d_gates, d_projected))
    return [parts[::-1] for parts in zip(*results, strict=True)], [d_hidden, d_cell]


def _before(states: torch.Tensor, first: torch.Tensor, sizes: tuple[int, ...]) -> torch.Tensor:
    """(..., M, D) states after each step, and (..., S, D) before the first -> (..., M, D) before each step."""
    pieces = [first, *states.split(sizes, -2)][:-1]
    return torch.cat([piece[..., :size, :] for piece, size in zip(pieces, sizes, strict=True)], -2)


def _squashed(activated: torch.Tensor, cells: torch.Tensor, outputs: torch.Tensor) -> torch.Tensor:
    """(..., M, C), sigmoid(o) tanh(c), which P multiplies."""
    return (activated[..., 3 * cells.shape[-1] :].to(cells.dtype) * tanh_(cells.clone())).to(outputs.dtype)


def _product_with(weight: torch.Tensor, steps: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """The function states -> states @ weight', prepared for many steps."""
    if is_faster(weight, weight, steps):
        return partial(product, weight=packed(weight, steps))
    return partial(nn.functional.linear, weight=weight)


def _transposed_product(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """one' @ other: (..., M, A), (..., M, B) -> (..., A, B)."""
    if one.dim() == 2 and is_faster(one, other):
        return product(fill_up(one).T, fill_up(other).T)
    return one.mT @ other
