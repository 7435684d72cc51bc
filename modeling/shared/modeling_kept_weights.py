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
"""Weights that are packed once for all steps of a generated text.

A step of generation multiplies a few rows with every weight of the model, so it takes as long as reading them does.
In oneDNN's layout a weight is read faster, but packing all of them takes as long as what 40 steps save in float32, or
10 in bfloat16. So a weight is packed at its twelfth product within one call of `generate`, and short texts do without.
At the end of the call the packed copies are released; until then they take as much memory as the weights themselves.

No call sees the packed weights of another. Within a call, a weight is packed anew after it has been replaced, moved,
converted or changed in place. A change by way of `weight.data[...] = `, of which torch keeps no record, is not noticed
until the next call. Weights that are computed for each product (parametrizations) or loaded for it (offloading),
and those of other types (quantized, sharded), are never packed.
"""

import functools
import weakref
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass

import torch

from .modeling_onednn import WORTH_PACKING, is_faster, linear, multiply_rows, packed


PRODUCTS_BEFORE_PACKING = 12  # with the same weight, within one text


@dataclass
class KeptWeight:
    """What is known of a weight, and its packed copy after some products.

    Attributes:
        weight: the weight itself; this reference does not keep it in memory.
        state: what differs after a change: how often it was changed in place, where it lies, and how.
    """

    weight: weakref.ref
    state: tuple
    products: int = 0
    copy: torch.Tensor | None = None


_kept: ContextVar[dict[int, KeptWeight] | None] = ContextVar("kept", default=None)


def keeping_packed_weights(generate: Callable) -> Callable:
    """`generate`, during which `linear_in_steps` packs weights. A call inside it, of an assistant, shares them."""

    @functools.wraps(generate)
    def generate_with_packed_weights(*args, **kwargs):
        if _kept.get() is not None:
            return generate(*args, **kwargs)
        token = _kept.set({})
        try:
            return generate(*args, **kwargs)
        finally:
            _kept.reset(token)

    generate_with_packed_weights.__doc__ = "transformers' `GenerationMixin.generate`, with weights packed for oneDNN."
    return generate_with_packed_weights


def linear_in_steps(
    inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, transposed: bool = False
) -> torch.Tensor:
    """inputs (..., I) @ weight (O, I)' + bias (O) -> (..., O); the weight is (I, O) if it is `transposed`."""
    if not torch.compiler.is_compiling() and _kept.get() is not None and not torch.is_grad_enabled():
        copy = _packed_copy(_kept.get(), inputs, weight, transposed)
        if copy is not None:
            return multiply_rows(inputs, copy, bias)
    return linear(inputs, weight.T if transposed else weight, bias)


def _packed_copy(
    kept: dict[int, KeptWeight], inputs: torch.Tensor, weight: torch.Tensor, transposed: bool
) -> torch.Tensor | None:
    """The packed copy of the weight as it is now, or None if there is none yet, or oneDNN cannot be used."""
    if not is_faster(inputs, weight, WORTH_PACKING) or weight.is_inference():  # whose changes torch does not count
        return None
    state = weight._version, weight.data_ptr(), weight.stride()
    entry = kept.get(id(weight))
    if entry is None or entry.weight() is not weight or entry.state != state:
        entry = kept[id(weight)] = KeptWeight(weakref.ref(weight), state)
    entry.products += 1
    if entry.products == PRODUCTS_BEFORE_PACKING:
        entry.copy = packed(weight.T if transposed else weight, WORTH_PACKING)
    return entry.copy
