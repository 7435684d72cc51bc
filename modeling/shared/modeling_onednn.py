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
"""Matrix products on the CPU by oneDNN where that is faster than what `torch.nn.functional.linear` picks.

In float32, torch gives matrix products to MKL, which on processors that are not Intel's stays at half of what they can
do; oneDNN, which torch brings along and uses for convolutions, does not. In bfloat16, torch takes oneDNN itself, but
lays out the weight anew for each product. Results differ by rounding only. oneDNN is used here where it is there, has
agreed with torch on a first small product, and `torch.backends.mkldnn.enabled` is left on. In other types, on other
devices, where a graph is traced, and under `torch.func` and forward-mode differentiation, `linear` is torch's.

oneDNN compiles code for each number of rows it meets, a few milliseconds and a megabyte each, and keeps a thousand of
them. Where batches are not padded, nearly each has a number of its own; so `linear` fills up with rows of zeros to one
of eight numbers in each doubling.
"""

import functools
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.nn as nn
from torch.autograd import forward_ad
from transformers.utils.import_utils import is_tracing


WORTH_PACKING = 24  # products with the same weight, from which on packing it first takes less time


def linear(inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """inputs (..., I) @ weight (O, I)' + bias (O) -> (..., O)."""
    one_row = inputs.numel() == weight.shape[1]  # then torch is as fast, if the weight lies as (I, O)
    if (one_row and not weight.is_contiguous()) or not is_faster(inputs, weight):
        return nn.functional.linear(inputs, weight, bias)
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (inputs, weight, bias)):
        outputs = _FilledProduct.apply(inputs, weight, bias)
    else:
        outputs = product(fill_up(inputs), weight, bias)
    return _without_filling(outputs, inputs.shape[:-1])


def _without_filling(rows: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """(N, O) rows, those of zeros last -> (*shape, O)."""
    count = shape.numel()
    return (rows if count == len(rows) else rows[:count]).view(*shape, rows.shape[1])


def fill_up(inputs: torch.Tensor) -> torch.Tensor:
    """(..., I) as rows (N, I), with rows of zeros after them up to a number that is met more often."""
    rows = inputs.flatten(0, -2)
    step = 1 << max(0, len(rows).bit_length() - 4)  # an eighth of the power of two below
    missing = -len(rows) % step
    return nn.functional.pad(rows, (0, 0, 0, missing)) if missing else rows


def is_faster(inputs: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether these are plain tensors on the CPU, of a type that oneDNN can use here, and nothing looks inside."""
    return (
        type(weight) in (torch.Tensor, nn.Parameter)
        and inputs.device.type == weight.device.type == "cpu"
        and inputs.dtype == weight.dtype
        and inputs.numel() > 0
        and torch.backends.mkldnn.enabled
        and not torch.is_autocast_enabled("cpu")
        and not is_tracing(inputs)
        and not is_transformed()
        and _works(inputs.dtype)
    )


def is_transformed() -> bool:
    """Whether `torch.func` (grad, vmap, jvp, ...) or forward-mode differentiation follows what is computed now.

    oneDNN's operations have neither a rule for batches nor a forward derivative, which would pass for zero.
    """
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


@functools.cache
def _works(dtype: torch.dtype) -> bool:
    """Whether this build and this processor have the operation in that type, and it computes what torch computes.

    The answer is kept, so it is found in a thread of its own, which none of the caller's modes reaches.
    """
    if dtype not in (torch.float32, torch.bfloat16):
        return False
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(_agrees, dtype).result()


def _agrees(dtype: torch.dtype) -> bool:
    numbers = torch.Generator().manual_seed(0)
    shapes = ((3, 17), (19, 17), (19,))
    inputs, weight, bias = (torch.randn(*shape, generator=numbers, device="cpu").to(dtype) for shape in shapes)
    try:
        if dtype == torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
            return False
        found = [product(inputs, weight, bias), product(inputs, packed(weight, WORTH_PACKING))]
        found += [product(weight, inputs), product(inputs[:, :3], weight[:3, :3].T)]
    except (AttributeError, NotImplementedError, RuntimeError):
        return False
    wanted = [inputs @ weight.T + bias, inputs @ weight.T, weight @ inputs.T, inputs[:, :3] @ weight[:3, :3]]
    tolerance = 1e-4 if dtype == torch.float32 else 0.1  # of numbers around 4
    return all(torch.allclose(one, other, atol=tolerance) for one, other in zip(found, wanted, strict=True))


def product(inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """As `linear` where `is_faster`, for a weight packed or not, and without a gradient."""
    return torch.ops.mkldnn._linear_pointwise(inputs, weight, bias, "none", [], "")


def packed(weight: torch.Tensor, products: int) -> torch.Tensor:
    """`weight` (O, I) in oneDNN's own layout, if so many `product`s are to come that it pays."""
    return torch.ops.mkldnn._reorder_linear_weight(weight) if products >= WORTH_PACKING else weight


class _FilledProduct(torch.autograd.Function):
    """`product` of `fill_up(inputs)`. The rows of zeros stay: outputs that are a view could not change in place."""

    @staticmethod
    def forward(ctx, inputs, weight, bias):
        ctx.save_for_backward(inputs, weight)
        return product(fill_up(inputs), weight, bias)  # (N, O)

    @staticmethod
    def backward(ctx, gradient):  # (N, O)
        inputs, weight = ctx.saved_tensors
        to_inputs, to_weight, to_bias = ctx.needs_input_grad
        # For second derivatives (create_graph), and batches of gradients, these are ordinary operations.
        multiply = nn.functional.linear if torch.is_grad_enabled() or is_transformed() else product
        read = fill_up(inputs).contiguous()  # (N, I); windows overlap
        return (
            _without_filling(multiply(gradient, weight.T), inputs.shape[:-1]) if to_inputs else None,
            multiply(gradient.T, read.T) if to_weight else None,
            gradient.sum(0) if to_bias else None,
        )
