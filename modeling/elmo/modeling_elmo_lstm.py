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

`lstm_step` and `lstm_step_backward` (modeling_recurrence.py) have the equations of one step. `_forward` writes the
former in place, because new memory for each step takes a CPU longer.

Letters: S sentences, M steps of all sentences, C cells, P size of the projection. Tensors of all steps are (M, ...):
the rows of step 0, longest sentence first, then those of step 1, ...; `sizes` counts the rows of each step.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
import torch.nn as nn
from transformers import initialization as init

from ..shared.modeling_onednn import Linear, fill_up, is_faster, is_transformed, packed, product
from ..shared.modeling_recurrence import Clips, Stepped, Tensors, lstm_step, lstm_step_backward, scan, tanh, tanh_
from ..shared.modeling_weights import weight_of
from .modeling_elmo_graphs import run_backward, run_forward, uses_graphs


Pair = tuple[torch.Tensor, torch.Tensor]  # one tensor of the forward and one of the backward direction
State = tuple[torch.Tensor, torch.Tensor]  # hidden (2, S, P) and cell (2, S, C), forward then backward
Weights = Sequence[Sequence[torch.Tensor]]  # the `step_weights` of each direction


class Steps(NamedTuple):
    """The order of the M steps of S sentences: the first steps of all, longest sentence first, then the second steps.

    Attributes:
        order: (S,) the numbers of the sentences, longest first.
        rank: (S,) the place of each sentence in that order.
        sizes: (steps,) the number of sentences that have each step; it never grows.
        begins: (steps,) the first of the M rows that belongs to each step.
    """

    order: torch.Tensor
    rank: torch.Tensor
    sizes: torch.Tensor
    begins: torch.Tensor

    @classmethod
    def of(cls, lengths: torch.Tensor) -> "Steps":
        """From the number of steps (S,) of each sentence."""
        order = lengths.argsort(descending=True, stable=True)
        rank = torch.empty_like(order)
        rank[order] = torch.arange(len(order), device=order.device)
        steps = torch.arange(int(lengths.max()) if len(lengths) else 0, device=lengths.device)
        sizes = (lengths > steps[:, None]).sum(1)
        return cls(order, rank, sizes, sizes.cumsum(0) - sizes)

    def rows(self, sentences: torch.Tensor, steps: torch.Tensor) -> torch.Tensor:
        """(N,) sentences and (N,) one step of each -> (N,) their rows among the M."""
        return self.begins[steps] + self.rank[sentences]


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

    @staticmethod
    def step(state: Tensors, column: Tensors, weights: Tensors, clips: Clips) -> Stepped:
        """One step of `scan`, with one row per sentence.

        Args:
            state: hidden (S, P) and cell (S, C).
            column: the inputs' part of the gates (S, 4C), and whether the sentence has this step (S, 1).
            weights: the `step_weights`.
        """
        (hidden, cell), (gates, is_real) = state, column
        output, new_cell, _ = lstm_step(gates, hidden, cell, weights, clips)
        return (torch.where(is_real, output, hidden), torch.where(is_real, new_cell, cell)), output


def run_both(
    gates: tuple[torch.Tensor, torch.Tensor],
    weights: Weights,
    state: State,
    sizes: list[int],
    clips: Clips,
) -> tuple[torch.Tensor, torch.Tensor, State]:
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
    recurrent = [each[0].to(dtype) for each in weights]
    projections = [each[1].to(dtype) if len(each) > 1 else None for each in weights]
    hidden, cell = state
    records = torch.is_grad_enabled()  # inside the function, gradients are always disabled
    with torch.autocast(gates[0].device.type, enabled=False):
        outputs = _Recurrence.apply(
            *gates, *recurrent, *projections, hidden.to(dtype), cell.float(), tuple(sizes), clips, records
        )
    return outputs[0], outputs[1], (outputs[2], outputs[3])


def scan_both(
    gates: Pair, masks: Pair, weights: Weights, state: State, clips: Clips
) -> tuple[torch.Tensor, torch.Tensor, State]:
    """As `run_both`, in operations of static shapes, for traced graphs and XLA.

    `gates` are (T, S, 4C) of each direction, `weights` its `step_weights`. `masks` (T, S, 1) are False where a
    sentence has no step, which keeps its state. Returns the projections (T, S, P) of each direction, and the last
    state.
    """
    outputs, ends = [], []
    for direction, step_weights in enumerate(weights):
        hidden, cell = (part[direction] for part in state)
        start, columns = (hidden.to(gates[direction].dtype), cell.float()), (gates[direction], masks[direction])
        end, output = scan(partial(ElmoLSTM.step, clips=clips), start, columns, step_weights)
        outputs.append(output)
        ends.append(end)
    return outputs[0], outputs[1], tuple(torch.stack(parts) for parts in zip(*ends, strict=True))


def _run_on_xla(gates: Pair, weights: Weights, state: State, sizes: list[int], clips: Clips):
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
    """The loop over time of both directions. The backward pass needs five stored numbers per cell and step."""

    @staticmethod
    def forward(ctx, gates_f, gates_b, u_f, u_b, p_f, p_b, hidden, cell, sizes, clips, records):
        save = records and any(ctx.needs_input_grad)
        sides = [(gates_f, u_f, p_f, hidden[0], cell[0]), (gates_b, u_b, p_b, hidden[1], cell[1])]
        (out_f, last_f, saved_f), (out_b, last_b, saved_b) = _forward_both(sides, sizes, clips, save)
        if save:
            ctx.save_for_backward(u_f, u_b, p_f, p_b, hidden, cell, out_f, out_b, *saved_f, *saved_b)
            ctx.sizes, ctx.clips = sizes, clips
        return out_f, out_b, torch.stack([last_f[0], last_b[0]]), torch.stack([last_f[1], last_b[1]])

    @staticmethod
    def backward(ctx, d_out_f, d_out_b, d_hidden, d_cell):
        if torch.is_grad_enabled() or is_transformed():
            raise NotImplementedError(
                "second derivatives (create_graph=True) and batches of gradients (is_grads_batched=True) of ELMo's "
                "recurrence are not implemented: use torch.func (as torch.func.jvp of torch.func.grad), under which "
                "ElmoModel uses ordinary operations"
            )
        u_f, u_b, p_f, p_b, hidden, cell, out_f, out_b, *saved = ctx.saved_tensors
        sides = [
            (u_f, p_f, hidden[0], cell[0], out_f, *saved[:2], d_out_f, d_hidden[0], d_cell[0]),
            (u_b, p_b, hidden[1], cell[1], out_b, *saved[2:], d_out_b, d_hidden[1], d_cell[1]),
        ]
        gradients = _backward_both(sides, ctx.sizes, ctx.clips)
        (gates_f, du_f, dp_f, dh_f, dc_f), (gates_b, du_b, dp_b, dh_b, dc_b) = gradients
        states = torch.stack([dh_f, dh_b]), torch.stack([dc_f, dc_b])
        return gates_f, gates_b, du_f, du_b, dp_f, dp_b, *states, None, None, None


def _forward_both(sides, sizes, clips, save):
    """What `_forward` returns for each direction."""
    u = sides[0][1]
    if not sizes or not uses_graphs(u):
        return [_forward(*side, sizes, clips, save) for side in sides]
    gates, u, p, *state = _stack(sides)
    outputs, state, saved = run_forward(gates, [u] if p is None else [u, p], state, sizes, clips, save)
    return [(outputs[d], [part[d] for part in state], [part[d] for part in saved]) for d in range(2)]


def _backward_both(sides, sizes, clips):
    """What `_backward` returns for each direction."""
    u = sides[0][0]
    if not sizes or not uses_graphs(u):
        return [_backward(*side, sizes, clips) for side in sides]
    u, p, _, cell, outputs, activated, cells, d_outputs, *d_state = _stack(sides)
    columns = activated, cells, outputs, d_outputs
    d_gates, d_projected, d_state = run_backward([u] if p is None else [u, p], cell, columns, d_state, sizes, clips)
    gradients = []
    for d, (_, p, hidden, _, outputs, activated, cells, *_) in enumerate(sides):
        d_weights = _weight_gradients(p, hidden, outputs, activated, cells, d_gates[d], d_projected[d], sizes)
        gradients.append((d_gates[d], *d_weights, *(part[d] for part in d_state)))
    return gradients


def _stack(sides: list[tuple]) -> list[torch.Tensor | None]:
    """The tensors of both directions as one, (2, ...); None where they have none."""
    return [None if parts[0] is None else torch.stack(parts) for parts in zip(*sides, strict=True)]


def _forward(gates, u, p, hidden, cell, sizes, clips, save):
    """One direction: projections (M, P), the last state (hidden (S, P), cell (S, C)), and tensors for `_backward`."""
    hidden, cell = hidden.clone(), cell.clone()  # row s: the state of sentence s after its latest step
    outputs = gates.new_empty(len(gates), hidden.shape[1])
    activated = torch.empty_like(gates) if save else None
    cells = cell.new_empty(len(gates), cell.shape[1]) if save else None
    by_u, by_p = _product_with(u, len(sizes)), _product_with(p, len(sizes))
    start = 0
    for size in sizes:
        rows = slice(start, start + size)
        sums = by_u(hidden[:size]).add_(gates[rows]).float()  # (size, 4C)
        i, f, g, o = sums.chunk(4, 1)
        tanh_(g)
        sums[:, : 2 * cell.shape[1]].sigmoid_()  # i and f
        o.sigmoid_()
        new = cell[:size].mul_(f).addcmul_(i, g)  # in place in `cell`
        if clips[0] is not None:
            new.clamp_(-clips[0], clips[0])
        projected = by_p(tanh_(new.clone()).mul_(o).to(gates.dtype))
        if clips[1] is not None:
            projected = projected.clamp_(-clips[1], clips[1])
        outputs[rows] = projected
        hidden[:size] = projected
        if save:
            activated[rows] = sums
            cells[rows] = new
        start += size
    return outputs, (hidden, cell), (activated, cells)


def _backward(u, p, hidden, cell, outputs, activated, cells, d_outputs, d_hidden, d_cell, sizes, clips):
    """One direction: the gradients of gates (M, 4C), U, P and the first state."""
    d_gates, d_projected = torch.empty_like(activated), torch.empty_like(outputs)
    d_hidden, d_cell = d_hidden.clone(), d_cell.clone()  # rows of shorter sentences are unused until their last step
    steps = len(sizes)
    by_u = _product_with(u.T, steps)
    by_p = _product_with(None if p is None else p.T, steps)
    end = len(outputs)
    for step in range(steps - 1, -1, -1):
        size = sizes[step]
        rows = slice(end - size, end)
        end -= size
        previous_rows = slice(end - sizes[step - 1], end - sizes[step - 1] + size)
        both_cells = cells[rows], cells[previous_rows] if step else cell[:size]
        d_output = d_hidden[:size].add_(d_outputs[rows])
        d_gates[rows], d_projected[rows], d_hidden[:size], _ = lstm_step_backward(  # which overwrites `d_cell`
            d_output, d_cell[:size], activated[rows], both_cells, outputs[rows], by_u, by_p, clips
        )
    d_weights = _weight_gradients(p, hidden, outputs, activated, cells, d_gates, d_projected, sizes)
    return d_gates, *d_weights, d_hidden, d_cell


def _weight_gradients(p, hidden, outputs, activated, cells, d_gates, d_projected, sizes):
    """One direction: the gradients of U and P, each by one product over all steps."""
    d_u = _transposed_product(d_gates, _previous_states(outputs, hidden, sizes))
    if p is None:
        return d_u, None
    o = activated[:, 3 * cells.shape[1] :].float()
    return d_u, _transposed_product(d_projected, (o * tanh(cells)).to(outputs.dtype))


def _previous_states(outputs: torch.Tensor, first: torch.Tensor, sizes: tuple[int, ...]) -> torch.Tensor:
    """(M, P), h_{t-1} of each step."""
    pieces, start = [first[: sizes[0]]], 0
    for size, following in zip(sizes, sizes[1:], strict=False):
        pieces.append(outputs[start : start + following])
        start += size
    return torch.cat(pieces)


def _product_with(weight: torch.Tensor | None, steps: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """The function states -> states @ weight', prepared for many steps; without a weight, the identity."""
    if weight is None:
        return lambda states: states
    if is_faster(weight, weight, steps):
        packed_weight = packed(weight, steps)
        return lambda states: product(states, packed_weight)
    return lambda states: nn.functional.linear(states, weight)


def _transposed_product(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """one' @ other: (M, A), (M, B) -> (A, B)."""
    return product(fill_up(one).T, fill_up(other).T) if is_faster(one, other) else one.T @ other
