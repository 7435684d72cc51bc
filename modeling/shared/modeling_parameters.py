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
"""Parameters that a configuration freezes, and weights that are read without a call of their layer."""

import torch
import torch.nn as nn


class FreezesParts:
    """Base of models whose configuration freezes some of their parameters.

    Gradients are switched off once, not in each call of `train`: `requires_grad_(True)` then trains a frozen part
    after all, and adapters in it are trained.
    """

    def freeze_parts(self) -> None:
        """Switches off the gradients of what the configuration freezes. Models inside this one do so themselves."""

    def post_init(self) -> None:
        super().post_init()
        self.freeze_parts()
        self.train()

    @classmethod
    def from_pretrained(cls, *args, **kwargs):
        """As in transformers, where loaded parameters all get gradients; here, what is frozen gets none."""
        loaded = super().from_pretrained(*args, **kwargs)
        model = loaded[0] if isinstance(loaded, tuple) else loaded  # with output_loading_info=True
        for part in model.modules():
            if isinstance(part, FreezesParts):
                part.freeze_parts()
        return loaded


def is_trained(*parts: nn.Module) -> bool:
    """Whether any parameter of these modules gets a gradient, such as that of an adapter.

    The replicas of nn.DataParallel, as which Trainer uses several GPUs in one process, have tensors in their place.
    """
    if any(parameter.requires_grad for part in parts for parameter in part.parameters()):
        return True
    copies = [getattr(module, "_former_parameters", {}) for part in parts for module in part.modules()]
    return any(parameter.requires_grad for named in copies for parameter in named.values())


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
