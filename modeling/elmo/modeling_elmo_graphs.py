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
"""The loop over time of ELMo's LSTM on a GPU, as CUDA graphs.

A step of the loop is a dozen small kernels for each direction, and Python takes longer to launch one than the GPU to
compute it. Here, both directions are one batch, and a CUDA graph launches the kernels of `CHUNK` steps at once. It
works on tensors of fixed shapes at fixed addresses. So inputs are copied into its tensors and outputs out of them,
sentences that have ended are computed along and dropped, and the last chunk is filled up.

It is off by default. The environment variable ZOO_CUDA_GRAPHS=1 switches it on; it is read at each call.

Letters: S sentences, filled up to a multiple of `ROWS`; K steps of a chunk; T steps, filled up to a multiple of K; M
steps of all sentences, as in modeling_elmo_lstm.py; C cells; P size of the projection. Tensors have the two directions
in front: (2, ...).
"""

import functools
import os
import threading
from functools import partial

import torch
import torch.nn as nn
from torch.utils._python_dispatch import _get_current_dispatch_mode

from ..shared.modeling_recurrence import Clips, Tensors, lstm_step, lstm_step_backward


VARIABLE = "ZOO_CUDA_GRAPHS"
CHUNK = 8  # steps of a graph
ROWS = 8  # sentences are filled up to a multiple of this, so that few graphs serve all batches
KEPT_GRAPHS = 16  # of a stream
DEVICES = ("cuda",)

_lock = threading.Lock()  # a graph's tensors belong to one call at a time
_kept: dict[tuple[torch.device, int], "_Graphs"] = {}  # by device and stream


def uses_graphs(tensor: torch.Tensor) -> bool:
    """Whether ZOO_CUDA_GRAPHS is 1, and the tensor is on a GPU.

    Not if the caller captures a graph, nor under a mode that has to see each operation, as torch's counter of FLOPs.
    """
    value = os.environ.get(VARIABLE, "")
    if value not in ("", "0", "1"):
        raise ValueError(f"{VARIABLE}={value}: set it to 1 for CUDA graphs of ELMo's recurrence, to 0 for none.")
    is_wanted = value == "1" and tensor.device.type in DEVICES
    return is_wanted and _get_current_dispatch_mode() is None and not _is_captured()


def run_forward(
    gates: torch.Tensor,  # (2, M, 4C)
    weights: Tensors,  # U (2, 4C, P) and, unless states are the cells, the projection (2, P, C)
    state: Tensors,  # hidden (2, S, P), cell (2, S, C) in float32
    sizes: tuple[int, ...],  # sentences of each step, which never grow
    clips: Clips,
    save: bool,
) -> tuple[torch.Tensor, Tensors, Tensors]:
    """Projections (2, M, P), the last state, and, if `save`, activated gates (2, M, 4C) and cells (2, M, C)."""
    grid = _grid_of(sizes, gates.device)
    columns = [grid.spread(gates)]
    function = partial(forward_steps, clips=clips, save=save)
    outputs, state = _run(function, weights, [grid.fill(part) for part in state], columns, grid.is_real)
    outputs, *saved = (grid.gather(output) for output in outputs)
    return outputs, [part[:, : sizes[0]] for part in state], saved


def run_backward(
    weights: Tensors,
    cell: torch.Tensor,  # (2, S, C), the first
    columns: Tensors,  # activated gates, cells, projections and their gradients, (2, M, ...) each
    d_state: Tensors,  # of the last state: (2, S, P), (2, S, C)
    sizes: tuple[int, ...],
    clips: Clips,
) -> tuple[torch.Tensor, torch.Tensor, Tensors]:
    """The gradients of the gates (2, M, 4C), of the projections (2, M, P) as the steps see them, and of the state."""
    grid = _grid_of(sizes, cell.device)
    activated, cells, outputs, d_outputs = (grid.spread(column) for column in columns)
    before = torch.cat([grid.fill(cell).unsqueeze(1), cells[:, :-1]], 1)
    columns = [activated, cells, before, outputs, d_outputs]
    function = partial(backward_steps, clips=clips)
    state = [grid.fill(part) for part in d_state]
    gradients, state = _run(function, weights, state, columns, grid.is_real, from_the_end=True)
    d_gates, d_projected = (grid.gather(gradient) for gradient in gradients)
    return d_gates, d_projected, [part[:, : sizes[0]] for part in state]


def forward_steps(
    weights: Tensors, state: Tensors, columns: Tensors, is_real: torch.Tensor, clips: Clips, save: bool
) -> tuple[Tensors, Tensors]:
    """K steps of both directions: what each returns (2, K, S, ...), and the state after them.

    `columns` are the inputs' part of the gates (2, K, S, 4C). `is_real` (K, S, 1) says which sentences have a step.
    """
    (hidden, cell), (gates,) = state, columns
    results = []
    for step, real in enumerate(is_real.unbind(0)):
        output, new_cell, activated = lstm_step(gates[:, step], hidden, cell, weights, clips)
        results.append((output, torch.cat(activated, -1).to(gates.dtype), new_cell) if save else (output,))
        hidden, cell = torch.where(real, output, hidden), torch.where(real, new_cell, cell)
    return [torch.stack(parts, 1) for parts in zip(*results, strict=True)], [hidden, cell]


def backward_steps(
    weights: Tensors, state: Tensors, columns: Tensors, is_real: torch.Tensor, clips: Clips
) -> tuple[Tensors, Tensors]:
    """The gradients of `forward_steps`, from the last step to the first; `state` is the gradient of its state."""
    (d_hidden, d_cell), (activated, cells, before, outputs, d_outputs) = state, columns
    recurrent, *projection = weights

    def by_recurrent(gradient: torch.Tensor) -> torch.Tensor:
        return gradient @ recurrent

    def by_projection(gradient: torch.Tensor) -> torch.Tensor:
        return gradient @ projection[0] if projection else gradient

    results = []
    for step in range(len(is_real) - 1, -1, -1):
        d_output, both_cells = d_hidden + d_outputs[:, step], (cells[:, step], before[:, step])
        d_gates, d_projected, d_before, d_cell_before = lstm_step_backward(
            d_output,
            d_cell.clone(),
            activated[:, step],
            both_cells,
            outputs[:, step],
            by_recurrent,
            by_projection,
            clips,
        )
        results.append((d_gates, d_projected))
        d_hidden = torch.where(is_real[step], d_before, d_hidden)
        d_cell = torch.where(is_real[step], d_cell_before, d_cell)
    return [torch.stack(parts[::-1], 1) for parts in zip(*results, strict=True)], [d_hidden, d_cell]


class _Grid:
    """Where the M rows are in tensors of fixed shapes (2, T, S, ...).

    Attributes:
        is_real: (T, S, 1) booleans.
        places: (M,) the place of each row in T * S.
    """

    def __init__(self, sizes: tuple[int, ...], device: torch.device):
        self.steps, self.sentences = _up_to(len(sizes), CHUNK), _up_to(sizes[0], ROWS)
        counts = torch.tensor([*sizes, *[0] * (self.steps - len(sizes))])
        is_real = (counts.unsqueeze(1) > torch.arange(self.sentences)).unsqueeze(-1)
        places = is_real.flatten().nonzero().squeeze(1)
        self.is_real, self.places = (_moved(tensor, device) for tensor in (is_real, places))

    def spread(self, rows: torch.Tensor) -> torch.Tensor:
        """(2, M, D) -> (2, T, S, D), zeros where there is no row."""
        grid = rows.new_zeros(2, self.steps * self.sentences, rows.shape[-1])
        return grid.index_copy_(1, self.places, rows).unflatten(1, (self.steps, self.sentences))

    def gather(self, grid: torch.Tensor) -> torch.Tensor:
        """(2, T, S, D) -> (2, M, D)"""
        return grid.flatten(1, 2).index_select(1, self.places)

    def fill(self, state: torch.Tensor) -> torch.Tensor:
        """(2, S, D) -> the same with rows of zeros up to the number of sentences."""
        return nn.functional.pad(state, (0, 0, 0, self.sentences - state.shape[1]))


@functools.lru_cache(maxsize=2)
def _grid_of(sizes: tuple[int, ...], device: torch.device) -> _Grid:
    """One for all layers of a batch, in both passes."""
    with torch.inference_mode(False):
        return _Grid(sizes, device)


def _moved(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """The tensor on the device, without a wait for what the device computes."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def _up_to(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple


def _run(
    function: partial, weights: Tensors, state: Tensors, columns: Tensors, is_real: torch.Tensor, from_the_end=False
) -> tuple[Tensors, Tensors]:
    """Runs one chunk after another: what the steps return (2, T, S, ...), and the last state."""
    device = is_real.device
    with (
        _lock,
        torch.cuda.device_of(is_real),
        torch.inference_mode(False),
        torch.no_grad(),
        torch.autocast(device.type, enabled=False),  # a backward pass may be inside of one
    ):
        starts, wholes = range(0, len(is_real), CHUNK), []
        first = [column[:, :CHUNK] for column in columns], is_real[:CHUNK]
        graph = _graphs_of(device).get(function, weights, state, *first)
        graph.load(weights, state)
        for start in reversed(starts) if from_the_end else starts:
            chunk = slice(start, start + CHUNK)
            graph.replay([column[:, chunk] for column in columns], is_real[chunk])
            wholes = wholes or [part.new_empty(2, len(is_real), *part.shape[2:]) for part in graph.results]
            for whole, part in zip(wholes, graph.results, strict=True):
                whole[:, chunk].copy_(part)
        return wholes, [part.clone() for part in graph.state]


class _Graph:
    """A chunk of steps that is captured once. Each replay goes on from the state of the one before.

    Attributes:
        results: what the steps of the latest replay return, (2, K, S, ...) each.
        state: the state after them.
    """

    def __init__(self, function: partial, weights: Tensors, state: Tensors, columns: Tensors, is_real: torch.Tensor):
        self.weights = weights
        self.state, self.columns = ([part.clone() for part in parts] for parts in (state, columns))
        self.is_real = is_real.clone()
        self.function = function

    def compute(self) -> None:
        self.results, state = self.function(self.weights, self.state, self.columns, self.is_real)
        _copy(self.state, state)

    def capture(self, **options) -> None:
        graph = torch.cuda.CUDAGraph()
        # Other threads may go on to use the GPU, as those that load data do.
        with torch.cuda.graph(graph, capture_error_mode="thread_local", **options):
            self.compute()
        self.launch = graph.replay

    def load(self, weights: Tensors, state: Tensors) -> None:
        """Takes the weights of all following steps, and the state before them."""
        _copy([*self.weights, *self.state], [*weights, *state])

    def replay(self, columns: Tensors, is_real: torch.Tensor) -> None:
        _copy([*self.columns, self.is_real], [*columns, is_real])
        self.launch()


class _Graphs:
    """The graphs that are launched on one stream, one after another.

    They share the memory in which their kernels work, and the copies of the weights. Where there are too many, all are
    given up: cuBLAS's workspace, which all of them write to, is memory of the one that was captured first.
    """

    def __init__(self):
        self.warm_up_stream, self.capture_stream = torch.cuda.Stream(), torch.cuda.Stream()
        self.clear()

    def clear(self) -> None:
        self.graphs: dict[tuple, _Graph] = {}
        self.weights: dict[tuple, Tensors] = {}
        self.pool = torch.cuda.graph_pool_handle()

    def get(
        self, function: partial, weights: Tensors, state: Tensors, columns: Tensors, is_real: torch.Tensor
    ) -> _Graph:
        """The graph of this function for tensors of these shapes and types, captured if there is none."""
        shapes = _shapes([*weights, *state, *columns, is_real])
        key = (function.func, *function.keywords.values(), shapes, _precision())
        if key not in self.graphs:
            if len(self.graphs) >= KEPT_GRAPHS:
                self.clear()
            if (of_weights := _shapes(weights)) not in self.weights:
                self.weights[of_weights] = [part.clone() for part in weights]
            graph = _Graph(function, self.weights[of_weights], state, columns, is_real)
            self.warm_up(graph)
            graph.capture(stream=self.capture_stream, pool=self.pool)
            self.graphs[key] = graph
        return self.graphs[key]

    def warm_up(self, graph: _Graph) -> None:
        """Computes once: the first product of a thread makes what cannot be made during a capture."""
        self.warm_up_stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.warm_up_stream):
            graph.compute()
        torch.cuda.current_stream().wait_stream(self.warm_up_stream)


def _graphs_of(device: torch.device) -> _Graphs:
    """Those of this device and of the stream that is in use."""
    key = device, torch.cuda.current_stream().cuda_stream
    return _kept.get(key) or _kept.setdefault(key, _Graphs())


def _copy(old: Tensors, new: Tensors) -> None:
    for one, other in zip(old, new, strict=True):
        one.copy_(other)


def _shapes(tensors: Tensors) -> tuple:
    return tuple((tensor.shape, tensor.dtype) for tensor in tensors)


def _precision() -> str:
    """That of products in float32, which a graph keeps."""
    return getattr(torch.backends.cuda.matmul, "fp32_precision", None) or torch.get_float32_matmul_precision()


def _is_captured() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
