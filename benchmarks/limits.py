"""What a device can do at most, measured, and what the work of a row needs at least, counted from its shapes.

A multiplication and an addition are two operations (FLOPs). Both sides of a row are measured by the same need, so a
side that computes padding, or states that nobody reads, has a smaller share of the limit.
"""

import functools
from collections.abc import Callable

import torch
import torch.nn as nn
from transformers import PreTrainedConfig, PreTrainedModel

from modeling.shared.modeling_onednn import can_multiply, product

from .measure import Need, clock_of, timed
from .precision import matmul_precision, matrix_setting, model_dtype


CPU_SIZE, GPU_SIZE = 2048, 8192  # rows of the matrices whose product is timed
READ_BYTES = 2**28  # more than caches hold
TURNS = 5


# The limits


def matrix_peak(device: torch.device, dtype: torch.dtype, precision: str = "highest") -> float:
    """FLOPs per second in a large matrix product, the best of several: of CPU time on the CPU, else of wall time.

    `precision` is that of torch's fp32 products. On the CPU the best of torch's product and oneDNN's counts, in any
    setting, because this is the limit of the chip.
    """
    return _matrix_peak(device, dtype, precision, torch.get_num_threads())


@functools.cache
@torch.inference_mode()
def _matrix_peak(device: torch.device, dtype: torch.dtype, precision: str, threads: int) -> float:
    size = CPU_SIZE if device.type == "cpu" else GPU_SIZE
    factors = torch.rand(size, size, generator=torch.Generator().manual_seed(0)).to(device, dtype)
    products = [nn.functional.linear, product] if can_multiply(factors, factors) else [nn.functional.linear]
    with matmul_precision(precision):
        seconds = [_quickest(functools.partial(multiply, factors, factors), device) for multiply in products]
    return 2 * size**3 / min(seconds)


def read_bandwidth(device: torch.device) -> float:
    """Bytes per second that a sum over a large array reads, the best of several, by the clock of `matrix_peak`."""
    return _read_bandwidth(device, torch.get_num_threads())


@functools.cache
@torch.inference_mode()
def _read_bandwidth(device: torch.device, threads: int) -> float:
    numbers = torch.ones(READ_BYTES // 4, device=device)
    return READ_BYTES / _quickest(numbers.sum, device)


def launch_time(device: torch.device) -> float:
    """Seconds of an operation on one number: on a GPU, how soon torch's next kernel can follow."""
    number, count = torch.zeros(1, device=device), 1000
    return _quickest(lambda: [number.add_(1) for _ in range(count)], device) / count


def _quickest(work: Callable[[], object], device: torch.device) -> float:
    return min(getattr(timed(work, device), clock_of(device)) for _ in range(TURNS))


# What a row needs


def tighter(device: torch.device, precision: str, reads: float, products: float) -> Need:
    """The bytes or the FLOPs that a run needs, whichever take longer at the limit of the device."""
    slow_reads = reads / read_bandwidth(device)
    slow_products = products / matrix_peak(device, model_dtype(precision), matrix_setting(precision))
    limit, amount = ("reads", reads) if slow_reads > slow_products else ("products", products)
    return Need(limit, lambda index: amount)


def layers_flop(config: PreTrainedConfig, lengths: list[int], causal: bool, one_state: bool) -> float:
    """The FLOPs of the layers of a transformer for sequences of these lengths, without padding.

    A query of a `causal` layer attends to its own and earlier tokens only. With `one_state`, only one state of each
    sequence is read, the last if the layers are causal. Then the last layer needs one query a sequence, and the keys
    and values of all tokens.
    """
    hidden = config.hidden_size
    inner = getattr(config, "intermediate_size", None) or 4 * hidden
    tokens, pairs = sum(lengths), sum(n * (n + 1) // 2 if causal else n * n for n in lengths)

    def layer(queries: int, pairs: int) -> int:
        keys_and_values = 2 * tokens * hidden * hidden
        attended = 2 * queries * hidden * hidden + 2 * pairs * hidden  # query and output; scores and mix
        return keys_and_values + attended + 2 * queries * hidden * inner

    last = layer(len(lengths), tokens) if one_state else layer(tokens, pairs)
    return 2.0 * ((config.num_hidden_layers - 1) * layer(tokens, pairs) + last)


def weight_bytes(model: PreTrainedModel) -> int:
    """The bytes of weights that a token of generation reads: all but the tables of which it takes one row.

    A table that is the matrix of the language modeling head, too, is read in whole.
    """
    head = model.get_output_embeddings()
    rows = [module.weight for module in model.modules() if isinstance(module, nn.Embedding)]
    looked_up = {id(weight) for weight in rows if weight is not head.weight}
    return sum(weight.nbytes for weight in model.parameters() if id(weight) not in looked_up)
