"""How fast a run trains: tokens a second, and the share of its machine's limit.

The limit is that of matrix products of one process and its device. A multiplication and an addition are two operations
(FLOPs), both where they are counted and where the limit is measured.
"""

import contextlib
import functools
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

import torch
from accelerate import Accelerator
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from elmo_gpt_bert.training.arguments import RunArguments
from elmo_gpt_bert.training.batches import count_real_tokens
from elmo_gpt_bert.training.layers import not_compiled


Result = TypeVar("Result")

DTYPES = {"no": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}  # of matrix products, by precision

SECONDS = 0.15  # for which the limit is measured
SHORT = 0.002  # seconds of a product that is too small to use the whole device
SIZES = (512, 1024, 2048, 4096, 8192)  # rows of the matrices


class Speed:
    """Counts the tokens of micro-batches, and the operations of the first one."""

    def __init__(self, seconds: float, measures_peak: bool, args: RunArguments, accelerator: Accelerator) -> None:
        """
        seconds: that the run has spent on training before
        measures_peak: whether `values` has `peak_share`
        """
        self.seconds, self.tokens, self.processes = seconds, 0, accelerator.num_processes
        self.throughput = Throughput(accelerator.device, args.mixed_precision) if measures_peak else None
        self.operations_per_token: float | None = None

    def measure(self, batch: Mapping[str, torch.Tensor], step: Callable[[], Result]) -> Result:
        """Returns `step()`, the forward and backward pass of a micro-batch."""
        tokens = count_real_tokens(batch)
        self.tokens += tokens
        if self.throughput is None or self.operations_per_token is not None:
            return step()
        results: list[Result] = []
        operations = self.throughput.count(lambda: results.append(step()))
        self.operations_per_token = operations / max(tokens, 1)
        return results[0]

    def values(self, seconds: float) -> dict[str, float]:
        """The speed since the last call, of all processes, when the run has spent `seconds` on training."""
        passed, self.seconds = max(seconds - self.seconds, 1e-9), seconds
        rate, self.tokens = self.tokens / passed, 0
        values = {"tokens_per_second": rate * self.processes}
        if self.operations_per_token is not None and self.throughput.peak:
            values["peak_share"] = rate * self.operations_per_token / self.throughput.peak
        return values


class Throughput:
    """The limit of the device, and the work of a step.

    Args:
        precision: --mixed_precision of the run.
    """

    def __init__(self, device: torch.device, precision: str) -> None:
        self.device, self.precision = device, precision

    @property
    def peak(self) -> float | None:
        """FLOPs a second of large matrix products in the run's precision, measured once; None on XLA."""
        if self.device.type == "xla":  # products run when their result is read
            return None
        settings = torch.get_num_threads(), torch.get_float32_matmul_precision()
        return _matrix_peak(self.device, DTYPES[self.precision], settings)

    def count(self, step: Callable[[], object]) -> int:
        """Calls `step`, usually a forward and a backward pass, and returns its FLOPs.

        They are those of matrix products, convolutions and attention, as they are run: padding counts where it is
        computed, and what gradient checkpointing computes again counts twice. Attention counts in full where its mask
        hides a part. LSTMs that run as one operation of cuDNN or oneDNN (torch.nn.LSTM) are not counted. Compiled
        layers are computed uncompiled here, with other draws of dropout. Otherwise counting changes no result.

        On XLA nothing is counted, and the number is 0: while torch counts, torch_xla 2.9 takes a slice of a slice from
        a wrong place.
        """
        if self.device.type == "xla":
            step()
            return 0
        counter = FlopCounterMode(display=False, custom_mapping=FORMULAS)
        counter.mod_tracker = _NoModules()
        with counter, not_compiled():
            step()
        return counter.get_total_flops()


class _NoModules(contextlib.nullcontext):
    """Takes the place of the counter's hooks on all modules, with which BERT's products would be torch's own."""

    parents = frozenset({"Global"})


def _attention(query: torch.Size, key: torch.Size, value: torch.Size, *rest: object, **names: object) -> int:
    return sdpa_flop_count(query, key, value)


def _attention_backward(
    gradient: torch.Size, query: torch.Size, key: torch.Size, value: torch.Size, *rest: object, **names: object
) -> int:
    return sdpa_backward_flop_count(gradient, query, key, value)


# The work of attention on the CPU, which torch's counter does not have. modeling_onednn.py adds products of oneDNN.
FORMULAS = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
}


@functools.cache
@torch.inference_mode()
def _matrix_peak(device: torch.device, dtype: torch.dtype, settings: tuple[int, str]) -> float:
    """FLOPs a second in the fastest of several products of matrices that are large enough to use the whole device.

    On the CPU they run on oneDNN where that is faster than torch's choice, because the limit is the chip's. `settings`
    are those settings of torch that the result depends on.
    """
    factors = _large_matrix(device, dtype)
    seconds, stop = [], time.perf_counter() + SECONDS
    while not seconds or time.perf_counter() < stop:
        seconds.append(_time_product(factors))
    return 2 * len(factors) ** 3 / min(seconds)


def _large_matrix(device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    """A square matrix of random numbers, the smallest of `SIZES` whose product with itself is not `SHORT`.

    On a GPU it is the largest of them: where another process computes, a product of any size takes long.
    """
    generator = torch.Generator(device).manual_seed(0)  # the run's own generator stays as it is
    for size in SIZES if device.type == "cpu" else SIZES[-1:]:
        matrix = torch.rand(size, size, generator=generator, device=device).to(dtype)
        if min(_time_product(matrix) for _ in range(3)) > SHORT:  # the first of each size is slow
            break
    return matrix


def _time_product(factors: torch.Tensor) -> float:
    """The seconds of one product, on a device that has nothing else to do."""
    from modeling.shared.modeling_onednn import linear  # the import takes time, which --help does not need

    before = time.perf_counter()
    linear(factors, factors)
    if factors.device.type != "cpu":
        torch.accelerator.synchronize(factors.device)
    return time.perf_counter() - before
