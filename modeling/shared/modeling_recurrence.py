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
"""Loops over time in operations of static shapes, for traced graphs and XLA: a scan, and torch's RNNs written out.

Letters: B rows, T columns, D size of an input, R cells of one direction, G gates.
"""

import importlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
import torch.nn as nn

from .modeling_onednn import product_type
from .modeling_parameters import compute_weights


Tensors = Sequence[torch.Tensor]
Stepped = tuple[Tensors, torch.Tensor]  # the new state, and an output
Step = Callable[[Tensors, Tensors, Tensors], Stepped]
Clips = tuple[float | None, float | None]  # limits of an LSTM's cells and outputs; None: no limit


def scan(step: Step, state: Tensors, columns: Tensors, weights: Tensors = ()) -> tuple[Tensors, torch.Tensor]:
    """Calls `step(state, column, weights)` for one column after another; it returns the new state and an output.

    On XLA this is one loop, compiled in the same time for rows of any length. A traced graph holds every step.

    Args:
        step: a function without random numbers and side effects. On XLA, it refers to no other tensors than it gets.
        state: the tensors before the first step; each step returns as many, of the same shapes and types.
        columns: (T, ...) each; a step gets one entry of each.
        weights: the tensors that all steps read.

    Returns:
        The state after the last step, and the outputs (T, ...) of all steps.
    """
    if columns[0].device.type == "xla":
        outputs, *state = _Scan.apply(step, (len(state), len(columns)), *state, *columns, *weights)
        return state, outputs
    if not len(columns[0]):
        _, output = step(state, [tensor.new_zeros(tensor.shape[1:]) for tensor in columns], weights)
        return state, output.new_zeros(0, *output.shape)
    outputs = []
    for column in zip(*(tensor.unbind(0) for tensor in columns), strict=True):
        state, output = step(state, column, weights)
        outputs.append(output)
    return state, torch.stack(outputs)


class _Scan(torch.autograd.Function):
    """`scan` as a loop of XLA. It keeps the state before each step, from which the backward pass computes it again."""

    @staticmethod
    @torch.amp.custom_fwd(device_type="xla")
    def forward(ctx, step, counts, *tensors):
        state, columns, weights = _split(tensors, counts)

        def forward_step(carry: tuple[list, list], column: list) -> tuple[tuple[list, list], tuple]:
            state, weights = carry
            new_state, output = step(state, column, weights)
            return (list(new_state), weights), (output, state)

        (end, _), (outputs, states) = loop(forward_step, (state, weights), columns)
        ctx.save_for_backward(*states, *columns, *weights)
        ctx.step, ctx.counts = step, counts
        return outputs, *end

    @staticmethod
    @torch.amp.custom_bwd(device_type="xla")
    def backward(ctx, outputs_gradient, *end_gradients):
        states, columns, weights = _split(ctx.saved_tensors, ctx.counts)

        def backward_step(carry: tuple[list, list, list], inputs: tuple) -> tuple[tuple[list, list, list], list]:
            gradients, sums, weights = carry
            output_gradient, state, column = inputs
            leaves = [
                tensor.detach().requires_grad_(tensor.is_floating_point()) for tensor in state + column + weights
            ]
            with torch.enable_grad():
                new_state, output = ctx.step(*_split(leaves, ctx.counts))
            gradients = _gradients([*new_state, output], leaves, [*gradients, output_gradient])
            of_state, of_column, of_weights = _split(gradients, ctx.counts)
            return (of_state, [a + b for a, b in zip(sums, of_weights, strict=True)], weights), of_column

        zeros, inputs = [torch.zeros_like(weight) for weight in weights], (outputs_gradient, states, columns)
        carry, of_columns = loop(backward_step, (list(end_gradients), zeros, weights), inputs, reverse=True)
        return None, None, *carry[0], *of_columns, *carry[1]


def _split(tensors: Tensors, counts: tuple[int, int]) -> tuple[list, list, list]:
    """The tensors of the state, of the columns, and of the weights."""
    states, columns = counts
    return list(tensors[:states]), list(tensors[states : states + columns]), list(tensors[states + columns :])


def _gradients(outputs: Tensors, inputs: Tensors, gradients: Tensors) -> list[torch.Tensor | None]:
    """The gradient of each input, zeros if no output depends on it; None for integers and booleans."""
    pairs = [pair for pair in zip(outputs, gradients, strict=True) if pair[0].requires_grad]
    leaves = [tensor for tensor in inputs if tensor.requires_grad]
    outputs, gradients = zip(*pairs, strict=True)
    found = iter(torch.autograd.grad(outputs, leaves, gradients, materialize_grads=True))
    return [next(found) if tensor.requires_grad else None for tensor in inputs]


def loop(step: Callable, state: object, columns: object, reverse: bool = False) -> tuple[object, object]:
    """`step(state, column)` for each column, in a loop of XLA: the last state, and the outputs of all steps.

    torch_xla's public `scan` has gradients, but keeps all that its steps have read for each of them, weights included.
    """
    # By name, because code on the Hub may import only what is installed everywhere.
    return importlib.import_module("torch_xla.experimental.scan")._scan_impl_pytree(step, state, columns, reverse)


class Operations(NamedTuple):
    """How `lstm_step` computes: in new memory for each result, or in the memory of what it has computed before."""

    add: Callable
    sigmoid: Callable
    tanh: Callable
    addcmul: Callable
    clip: Callable[[torch.Tensor, float | None], torch.Tensor]


def clip(states: torch.Tensor, limit: float | None) -> torch.Tensor:
    return states if limit is None else states.clamp(-limit, limit)


def clip_(states: torch.Tensor, limit: float | None) -> torch.Tensor:
    return states if limit is None else states.clamp_(-limit, limit)


def tanh_(states: torch.Tensor) -> torch.Tensor:
    """tanh in place. On the CPU it uses the sigmoid, several times as fast, with an error below 1e-7."""
    return states.mul_(2).sigmoid_().mul_(2).sub_(1) if states.device.type == "cpu" else states.tanh_()


OUT_OF_PLACE = Operations(torch.add, torch.sigmoid, torch.tanh, torch.addcmul, clip)
# Without gradients. New memory for each result would take a CPU longer.
IN_PLACE = Operations(torch.Tensor.add_, torch.sigmoid_, tanh_, torch.Tensor.addcmul_, clip_)


def lstm_step(
    gates: torch.Tensor,
    hidden: torch.Tensor,
    cell: torch.Tensor,
    products: Sequence[Callable],
    clips: Clips = (None, None),
    compute: Operations = OUT_OF_PLACE,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """One step of an LSTM: its output (..., P), the new cell (..., C), and the gates (..., 4C).

        i, f, g, o = gates + U h
        c = clip(sigmoid(f) c + sigmoid(i) tanh(g))
        h = clip(P (sigmoid(o) tanh(c)))

    Args:
        gates: (..., 4C), the inputs' part of the gates, with the bias.
        hidden, cell: (..., P) and (..., C). The cell is computed in its own type.
        products: the function h -> U h and, unless outputs are as large as cells, that of P.
        clips: the limits of cells and of outputs.
        compute: `IN_PLACE` where no gradient is recorded. The gates that are returned are then the activated ones.
    """
    by_recurrent, *by_projection = products
    cells = cell.shape[-1]
    sums = compute.add(by_recurrent(hidden), gates).to(cell.dtype)
    i_and_f, g, o = sums.split([2 * cells, cells, cells], -1)
    (i, f), g, o = compute.sigmoid(i_and_f).chunk(2, -1), compute.tanh(g), compute.sigmoid(o)
    cell = compute.clip(compute.addcmul(f * cell, i, g), clips[0])
    output = (compute.tanh(cell.clone()) * o).to(gates.dtype)
    for multiply in by_projection:
        output = multiply(output)
    return compute.clip(output, clips[1]), cell, sums


def scanned_lstm_step(state: Tensors, column: Tensors, weights: Tensors, clips: Clips = (None, None)) -> Stepped:
    """`lstm_step` for `scan`. A column is the gates and, if some rows lack the step, (..., 1) booleans, False there.

    `weights` are U (..., 4C, P) and, unless outputs are as large as cells, P (..., P, C).
    """
    (hidden, cell), (gates, *is_real) = state, column
    products = [partial(torch.matmul, other=weight.mT) for weight in weights]
    output, new_cell, _ = lstm_step(gates, hidden, cell, products, clips)
    for real in is_real:
        return (torch.where(real, output, hidden), torch.where(real, new_cell, cell)), output
    return (output, new_cell), output


def lstm_step_backward(
    d_output: torch.Tensor,
    d_cell: torch.Tensor,
    activated: torch.Tensor,
    cells: tuple[torch.Tensor, torch.Tensor],
    output: torch.Tensor,
    products: Sequence[Callable],
    clips: Clips,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """The gradients of the gates (..., 4C), of the output before its clip (..., P), and of the state before the step.

    Args:
        d_output: the gradient of the output, by all that read it.
        d_cell: that of the cell.
        activated: (..., 4C), the activated gates side by side.
        cells: the cell after the step, and before it.
        output: what the step returned.
        products: the functions d -> d U and d -> d P.
    """
    by_recurrent, *by_projection = products
    i, f, g, o = activated.to(d_cell.dtype).chunk(4, -1)
    cell, previous = cells
    if clips[1] is not None:  # the gradient is zero where the output was clipped
        d_output = d_output * (output.abs() < clips[1])
    d_squashed = d_output  # of sigmoid(o) tanh(c)
    for multiply in by_projection:
        d_squashed = multiply(d_squashed)
    d_squashed, squashed = d_squashed.to(d_cell.dtype), tanh_(cell.clone())
    d_cell = d_cell + d_squashed * o * (1 - squashed * squashed)
    if clips[0] is not None:
        d_cell = d_cell * (cell.abs() < clips[0])
    parts = [d_cell * g * i * (1 - i), d_cell * previous * f * (1 - f)]
    parts += [d_cell * i * (1 - g * g), d_squashed * squashed * o * (1 - o)]
    d_gates = torch.cat(parts, -1).to(activated.dtype)
    return d_gates, d_output, by_recurrent(d_gates), d_cell * f


def gru_step(state: Tensors, column: Tensors, weights: Tensors) -> Stepped:
    """A step of torch's GRU for `scan`. A column is the gates (..., 3R): reset, update, candidate."""
    (hidden,), (gates,) = state, column
    recurrent = nn.functional.linear(hidden, *weights).chunk(3, -1)
    reset, update, candidate = gates.chunk(3, -1)
    reset, update = (reset + recurrent[0]).sigmoid(), (update + recurrent[1]).sigmoid()
    hidden = (candidate + reset * recurrent[2]).tanh().lerp(hidden, update)
    return (hidden,), hidden


def run_padded(rnn: nn.RNNBase, states: torch.Tensor, mask: torch.Tensor, layer: int = 0) -> torch.Tensor:
    """Runs a layer of a bidirectional LSTM or GRU: (B, T, D) and a (B, T) mask -> (B, T, 2R), zero at padding.

    Each direction reads the words of a row first and padding after them.
    """
    padding = (~mask).int()
    forward = padding.argsort(dim=1, stable=True)  # (B, T): the column of the first word, of the second, ...
    backward = mask.shape[1] - 1 - padding.flip(1).argsort(dim=1, stable=True)
    outputs = []
    for order, direction in zip((forward, backward), (f"l{layer}", f"l{layer}_reverse"), strict=True):
        input_weight, recurrent_weight, input_bias, recurrent_bias = rnn_weights(rnn, direction)
        is_gru = rnn.mode == "GRU"  # torch_xla puts another class in the place of nn.GRU
        bias = input_bias if is_gru else input_bias + recurrent_bias
        inputs = states.gather(1, order.unsqueeze(-1).expand_as(states))
        gates = nn.functional.linear(inputs, input_weight, bias).transpose(0, 1)  # (T, B, gates * R)
        zeros = gates.new_zeros(gates.shape[1], rnn.hidden_size)
        if is_gru:
            _, in_order = scan(gru_step, [zeros], [gates], [recurrent_weight, recurrent_bias])  # (T, B, R)
        else:
            _, in_order = scan(scanned_lstm_step, [zeros, zeros], [gates], [recurrent_weight])
        in_order = in_order.transpose(0, 1)
        outputs.append(in_order.gather(1, order.argsort(1).unsqueeze(-1).expand_as(in_order)))
    return torch.cat(outputs, -1).masked_fill(padding.bool().unsqueeze(-1), 0)


def rnn_weights(rnn: nn.RNNBase, direction: str) -> tuple[torch.Tensor, ...]:
    """The weights of the input (G * R, D) and of the states (G * R, R), and the bias of each (G * R).

    `direction` is the ending of their names, such as "l0" or "l0_reverse".
    """
    compute_weights(rnn)
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    return tuple(getattr(rnn, f"{name}_{direction}") for name in names)


def lacks_lstm(states: torch.Tensor) -> bool:
    """Whether torch's LSTM may fail on these states: on a CPU it leaves bfloat16 to oneDNN, which needs AVX-512."""
    computes_in_bfloat16 = states.device.type == "cpu" and product_type(states) == torch.bfloat16
    return computes_in_bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported()
