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
"""What a computation may do with a tensor (read its values, differentiate it, in which type) and with a module."""

import functools

import torch
import torch.nn as nn
import torch.nn.modules.module as every_module
from torch.autograd import forward_ad
from transformers.utils.import_utils import is_tracing


HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")  # attributes of a module


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


@functools.cache
def has_amx() -> bool:
    """Whether the processor has AMX. Builds of torch that do not tell are taken to run on one without."""
    tells = getattr(torch.cpu, "_is_amx_tile_supported", None)
    return tells is not None and tells()


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
