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
"""CUDA graphs around the steps of ELMo's recurrence (modeling_elmo_lstm.py) on a GPU.

A step of the loop is a dozen small kernels for each direction, and Python takes longer to launch one than the GPU to
compute it. Here, both directions are one batch, and a CUDA graph launches the kernels of `CHUNK` steps at once. It
works on tensors of fixed shapes at fixed addresses. So inputs are copied into its tensors and outputs out of them,
sentences that have ended are computed along and dropped, and the last chunk is filled up.

It is off by default. The environment variable ZOO_CUDA_GRAPHS=1 switches it on; it is read at each call.

Letters: S sentences, filled up to a multiple of `ROWS`; K steps of a chunk; T steps, filled up to a multiple of K; M
steps of all sentences, as in modeling_elmo_lstm.py. Tensors have the two directions in front: (2, ...).
"""

import functools
import os
import threading
from functools import partial

import torch
import torch.nn as nn
from torch.utils._python_dispatch import _get_current_dispatch_mode

from ..shared.modeling_recurrence import Tensors


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


def run_in_graphs(
    function: partial,
    weights: Tensors,  # U (2, 4C, P) and, unless states are the cells, the projection (2, P, C)
    state: Tensors,  # (2, S, P) and (2, S, C)
    columns: Tensors,  # (2, M, D) each
    sizes: tuple[int, ...],  # sentences of each step, which never grow
    from_the_end: bool,
) -> list[torch.Tensor]:
    """`forward_steps` or `backward_steps` for all steps: what they return, (2, M, D) each, then the last state."""
    device = state[0].device
    with (
        _lock,
        torch.cuda.device_of(state[0]),
        torch.inference_mode(False),
        torch.no_grad(),
        torch.autocast(device.type, enabled=False),  # a backward pass may be inside of one
    ):
        grid = _grid_of(sizes, device)
        columns = [*map(grid.spread, columns)] + ([] if from_the_end else [grid.is_real])
        chunks = list(zip(*(column.split(grid.chunk, 1) for column in columns), strict=True))
        state = [grid.fill(part) for part in state]
        graph = _graphs_of(device).get(function, from_the_end, weights, state, *chunks[0])
        graph.load(weights, state)
        wholes = [part.new_empty(2, grid.is_real.numel(), part.shape[-1]) for part in graph.results]
        for number in reversed(range(len(chunks))) if from_the_end else range(len(chunks)):
            graph.replay(chunks[number])
            for whole, part in zip(wholes, graph.results, strict=True):
                whole.narrow(1, number * grid.chunk, grid.chunk).copy_(part)
        return [*map(grid.gather, wholes), *(part[:, : sizes[0]].clone() for part in graph.state)]


class _Grid:
    """Where the M rows are in tensors of fixed shapes (2, T * S, D).

    Attributes:
        chunk: the rows of K steps.
        is_real: (1, T * S, 1) booleans.
        places: (M,) the place of each row in T * S.
    """

    def __init__(self, sizes: tuple[int, ...], device: torch.device):
        steps, self.sentences = _up_to(len(sizes), CHUNK), _up_to(sizes[0], ROWS)
        self.chunk = CHUNK * self.sentences
        counts = torch.tensor([*sizes, *[0] * (steps - len(sizes))])
        is_real = (counts.unsqueeze(1) > torch.arange(self.sentences)).view(1, -1, 1)
        places = is_real.flatten().nonzero().squeeze(1)
        self.is_real, self.places = (_moved(tensor, device) for tensor in (is_real, places))

    def spread(self, rows: torch.Tensor) -> torch.Tensor:
        """(2, M, D) -> (2, T * S, D), zeros where there is no row."""
        return rows.new_zeros(2, self.is_real.numel(), rows.shape[-1]).index_copy_(1, self.places, rows)

    def gather(self, grid: torch.Tensor) -> torch.Tensor:
        """(2, T * S, D) -> (2, M, D)"""
        return grid.index_select(1, self.places)

    def fill(self, state: torch.Tensor) -> torch.Tensor:
        """(2, S, D) -> the same with rows of zeros up to the number of sentences."""
        return nn.functional.pad(state, (0, 0, 0, self.sentences - state.shape[1]))


_grid_of = functools.lru_cache(maxsize=2)(_Grid)  # one for all layers of a batch, in both passes


def _moved(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """The tensor on the device, without a wait for what the device computes."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def _up_to(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple


class _Graph:
    """A chunk of steps that is captured once. Each replay goes on from the state of the one before.

    Attributes:
        results: what the steps of the latest replay return, (2, K * S, D) each.
        state: the state after them.
    """

    def __init__(self, function: partial, from_the_end: bool, weights: Tensors, state: Tensors, chunk: Tensors):
        self.weights = weights
        self.state, self.chunk = ([part.clone() for part in parts] for parts in (state, chunk))
        parts = weights if from_the_end else [weight.mT for weight in weights]
        self.function = partial(function, [partial(torch.matmul, other=part) for part in parts])

    def compute(self) -> None:
        steps = list(zip(*(column.chunk(CHUNK, 1) for column in self.chunk), strict=True))
        results, state = self.function(self.state, steps)
        self.results = [torch.cat(parts, 1) for parts in results]
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

    def replay(self, chunk: Tensors) -> None:
        _copy(self.chunk, chunk)
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

    def get(self, function: partial, from_the_end: bool, weights: Tensors, state: Tensors, *chunk: torch.Tensor):
        """The graph of this function for tensors of these shapes and types, captured if there is none."""
        shapes = _shapes([*weights, *state, *chunk])
        key = (function.func, *function.keywords.values(), shapes, _precision())
        if key not in self.graphs:
            if len(self.graphs) >= KEPT_GRAPHS:
                self.clear()
            if (of_weights := _shapes(weights)) not in self.weights:
                self.weights[of_weights] = [part.clone() for part in weights]
            graph = _Graph(function, from_the_end, self.weights[of_weights], state, chunk)
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
