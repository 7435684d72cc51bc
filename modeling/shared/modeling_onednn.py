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
"""Matrix products on the CPU by oneDNN where it is faster, and what a computation may do with a tensor or a module.

In float32, torch uses MKL for matrix products, which reaches only half of the speed of processors that are not made by
Intel. oneDNN, which is part of torch and computes its convolutions, has no such limit. In bfloat16, torch uses oneDNN
itself, but converts the layout of the weight for each product. Results differ by rounding only.

`Linear` and `linear` use oneDNN for plain float32 or bfloat16 tensors on the CPU. Wherever `can_multiply` is False (a
traced graph, autocast, `torch.func`, another type or device, a build without oneDNN), and for products that are SMALL,
they are torch's. Which is faster depends on the processor; `is_chosen` decides by what it says of itself, so that a
machine always computes in the same way. The environment variable ZOO_ONEDNN overrides this: 1 for oneDNN, 0 for torch.

oneDNN compiles code for each number of rows it meets, which takes a few milliseconds and a megabyte, and keeps a
thousand of these programs. Without padding, nearly every batch has a different number of rows. So `linear` adds rows
of zeros until their number is one of eight between each power of two and the next.
"""

import contextlib
import functools
import os
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.nn as nn
import torch.nn.modules.module as every_module
from torch.autograd import forward_ad
from torch.utils.flop_counter import register_flop_formula
from transformers.utils.import_utils import is_tracing


DEVICES = ("cpu",)  # asked first: on a small batch, a GPU waits for each question
WORTH_PACKING = 24  # from this many products with the same weight on, packing it first saves time
SMALL = 2**20  # multiplications; below, the calls from here to oneDNN and back take longer than the product
VARIABLE = "ZOO_ONEDNN"
PLAIN = (torch.Tensor, nn.Parameter)  # no subclass, and no stand-in while a graph is traced
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")  # attributes of a module


class Linear(nn.Linear):
    """nn.Linear, computed as by `linear`."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return linear(inputs, self.weight, self.bias)  # (..., I) -> (..., O)


def linear(inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """inputs (..., I) @ weight (O, I)' + bias (O) -> (..., O)."""
    if inputs.device.type not in DEVICES or torch.compiler.is_compiling() or not _pays(inputs, weight, bias):
        return nn.functional.linear(inputs, weight, bias)
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (inputs, weight, bias)):
        return _without_filling(_FilledProduct.apply(inputs, weight, bias), inputs.shape[:-1])
    return multiply_rows(inputs, weight, bias)


def multiply_rows(inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """`product` for any number of rows."""
    return _without_filling(product(fill_up(inputs), weight, bias), inputs.shape[:-1])


def _pays(inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> bool:
    """Whether `is_faster`, except for small products, and for one row and a weight that is stored as (I, O)."""
    if inputs.numel() * weight.shape[0] < SMALL or inputs.dim() < 2:
        return False
    if (inputs.numel() == weight.shape[1] and not weight.is_contiguous()) or not is_faster(inputs, weight):
        return False
    return bias is None or bias.dtype == weight.dtype


class _FilledProduct(torch.autograd.Function):
    """`product` of `fill_up(inputs)`, rows of zeros included: without them, outputs would be a view.

    A view that such a function returns cannot be changed in place.
    """

    @staticmethod
    def forward(ctx, inputs, weight, bias):
        ctx.save_for_backward(inputs, weight)
        return product(fill_up(inputs), weight, bias)  # (N, O)

    @staticmethod
    def backward(ctx, gradient):  # (N, O)
        inputs, weight = ctx.saved_tensors
        needs_inputs, needs_weight, needs_bias = ctx.needs_input_grad
        # Second derivatives (create_graph) and batches of gradients need torch's own operations.
        multiply = nn.functional.linear if torch.is_grad_enabled() or is_transformed() else product
        rows = fill_up(inputs).contiguous()  # (N, I); the inputs may be overlapping windows
        return (
            _without_filling(multiply(gradient, weight.T), inputs.shape[:-1]) if needs_inputs else None,
            multiply(gradient.T, rows.T) if needs_weight else None,
            gradient.sum(0) if needs_bias else None,
        )


def fill_up(inputs: torch.Tensor) -> torch.Tensor:
    """(..., I) -> (N, I), with rows of zeros at the end up to one of the numbers of rows that are in use."""
    rows = inputs.flatten(0, -2)
    step = 1 << max(0, len(rows).bit_length() - 4)  # an eighth of the power of two below
    missing = -len(rows) % step
    return nn.functional.pad(rows, (0, 0, 0, missing)) if missing else rows


def _without_filling(rows: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """(N, O) rows, of which the last may be filled up -> (*shape, O)."""
    count = shape.numel()
    return (rows if count == len(rows) else rows[:count]).view(*shape, rows.shape[1])


def product(inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """As `linear`, by oneDNN and without a gradient; `weight` may be `packed`. Only if it `can_multiply`."""
    bias = None if bias is None else bias.contiguous()  # oneDNN would read the numbers that lie next to the first
    return torch.ops.mkldnn._linear_pointwise(inputs, weight, bias, "none", [], "")


def packed(weight: torch.Tensor, products: int) -> torch.Tensor:
    """`weight` (O, I) in oneDNN's layout, if the number of `products` with it is worth the conversion."""
    return torch.ops.mkldnn._reorder_linear_weight(weight) if products >= WORTH_PACKING else weight


def product_flops(inputs: torch.Size, weight: torch.Size, *rest: object, **names: object) -> int:
    """The work of a `product` for torch's counter of FLOPs, from the shapes (..., I) and (O, I)."""
    return 2 * inputs.numel() * weight[0]


if hasattr(torch.ops.mkldnn, "_linear_pointwise"):  # not in every build of torch
    with contextlib.suppress(RuntimeError):  # another copy of this file, in a saved folder, was first
        register_flop_formula(torch.ops.mkldnn._linear_pointwise)(product_flops)


# Where oneDNN is used


def is_faster(inputs: torch.Tensor, weight: torch.Tensor, products: int = 1) -> bool:
    """Whether to use oneDNN, for so many `products` with this weight. What is longest to answer is asked last."""
    return not torch.compiler.is_compiling() and is_chosen(products) and can_multiply(inputs, weight)


def is_chosen(products: int = 1) -> bool:
    """Whether oneDNN is for this processor, or ZOO_ONEDNN says so.

    On an Intel Xeon with AMX, oneDNN took 1.04 to 1.23 times as long as torch for several sizes of products, in fp32
    and in bf16. Weights that are `packed` are oneDNN's on every processor, because no product has to convert them.
    """
    setting = _setting()
    return products >= WORTH_PACKING or not has_amx() if setting is None else setting


@functools.cache
def _setting() -> bool | None:
    """What ZOO_ONEDNN says; None: nothing."""
    value = os.environ.get(VARIABLE, "")
    if value not in ("", "0", "1"):
        raise ValueError(f"{VARIABLE}={value}: set it to 1 for oneDNN's products, to 0 for torch's, or leave it out.")
    return value == "1" if value else None


@functools.cache
def has_amx() -> bool:
    """Whether the processor has AMX, Intel's units for products. Builds of torch that do not tell count as without."""
    tells = getattr(torch.cpu, "_is_amx_tile_supported", None)
    return tells is not None and tells()


def can_multiply(inputs: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether oneDNN can be used: plain CPU tensors of a type that it computes here, no tracing, no transforms."""
    return (
        type(weight) in PLAIN
        and type(inputs) in PLAIN
        and inputs.device.type == weight.device.type == "cpu"
        and inputs.dtype == weight.dtype
        and inputs.numel() > 0
        and torch.backends.mkldnn.enabled
        and not torch.is_autocast_enabled("cpu")
        and not torch.jit.is_tracing()
        and not is_transformed()
        and _works(inputs.dtype)
    )


@functools.cache
def _works(dtype: torch.dtype) -> bool:
    """Whether this build and this processor have the operation in that type, with the results of torch.

    The answer is cached, so it is computed in a new thread, where the caller's modes (autocast, ...) are not active.
    """
    if dtype not in (torch.float32, torch.bfloat16):
        return False
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(_agrees, dtype).result()


def _agrees(dtype: torch.dtype) -> bool:
    generator = torch.Generator().manual_seed(0)
    shapes = ((3, 17), (19, 17), (19,))
    inputs, weight, bias = (torch.randn(*shape, generator=generator, device="cpu").to(dtype) for shape in shapes)
    try:
        if dtype == torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
            return False
        results = [product(inputs, weight, bias), product(inputs, packed(weight, WORTH_PACKING))]
        results += [product(weight, inputs), product(inputs[:, :3], weight[:3, :3].T)]
    except (AttributeError, NotImplementedError, RuntimeError):
        return False
    expected = [inputs @ weight.T + bias, inputs @ weight.T, weight @ inputs.T, inputs[:, :3] @ weight[:3, :3]]
    tolerance = 1e-4 if dtype == torch.float32 else 0.1  # for numbers around 4
    return all(torch.allclose(one, other, atol=tolerance) for one, other in zip(results, expected, strict=True))


# What a computation may do with a tensor or a module


def is_opaque(tensor: torch.Tensor | None) -> bool:
    """Whether the values cannot be read, or should not be: each shape that depends on them would be another graph.

    So it is while a graph is traced, where `torch.vmap` maps over the tensor, and on XLA, which compiles a graph for
    each new shape and computes all that is pending when a value is read.
    """
    if tensor is None or is_tracing(tensor):
        return tensor is not None
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):  # one wrapper for each of vmap, grad, ...
        if torch._C._functorch.is_batchedtensor(tensor):
            return True
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor.device.type in ("xla", "meta")


def is_transformed() -> bool:
    """Whether `torch.func` (grad, vmap, jvp, ...) or forward-mode differentiation is active.

    oneDNN's operations have no rule for batches and no forward derivative, which torch would take for zero.
    """
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def needs_static_shapes(tensor: torch.Tensor) -> bool:
    """Whether to compute with ordinary operations of static shapes: the tensor `is_opaque`, or is transformed."""
    return is_opaque(tensor) or is_transformed()


def product_type(states: torch.Tensor) -> torch.dtype:
    """The type in which products with these states are computed, with autocast or without."""
    device = states.device.type
    autocasts = device != "meta" and torch.is_autocast_enabled(device)
    return torch.get_autocast_dtype(device) if autocasts else states.dtype


def is_plain(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether a call of the module is that of its class `kind` and nothing else, with its own weight if it has one."""
    hooked = any(getattr(module, name) or getattr(every_module, f"_global{name}") for name in HOOKS)
    is_own = type(getattr(module, "weight", None)) in (nn.Parameter, type(None)) and "forward" not in vars(module)
    return type(module) is kind and is_own and not hooked
