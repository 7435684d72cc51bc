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
"""Weights that are read without a call of their layer, because a computation of another kind uses them."""

import torch
import torch.nn as nn


def weight_of(layer: nn.Module) -> torch.Tensor:
    """The weight of a layer that is not called, because a computation of another kind reads its weight.

    Raises NotImplementedError for a layer that does more (LoRA, quantization), or whose weight accelerate would bring
    from elsewhere when the layer is called.
    """
    if not isinstance(layer, (nn.Linear, nn.Conv1d)):
        raise NotImplementedError(
            f"{type(layer).__name__} stands in the place of a layer whose weight is read without a call, so it would "
            "have no effect: leave this layer out of the adapter's target_modules, or unquantized"
        )
    if layer.weight.is_meta and hasattr(layer, "_hf_hook"):
        raise NotImplementedError(
            "this weight is offloaded, but read without a call of its layer: offload whole modules with accelerate's "
            "preload_module_classes=model._no_split_modules, or keep the model on one device"
        )
    compute_weights(layer)
    return layer.weight


def compute_weights(layer: nn.Module) -> None:
    """Computes the weights that hooks compute before each call of a layer (torch's pruning, weight_norm, ...).

    This is for layers whose weights are read without a call. Such a hook leaves its weight as a plain tensor in the
    place of a parameter. The hooks of a layer that has no such tensor are not run: they get to see no inputs here.
    """
    if layer._forward_pre_hooks and any(isinstance(value, torch.Tensor) for value in vars(layer).values()):
        for hook in layer._forward_pre_hooks.values():
            hook(layer, ())
