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
"""What a configuration freezes: it gets no gradients once a model is made or loaded, until the user trains it."""

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
    """Whether any parameter of these modules gets a gradient, such as that of an adapter."""
    return any(parameter.requires_grad for part in parts for parameter in part.parameters())
