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
"""The losses of the heads that score classes. In all of them, each label counts the same within a step.

Trainer passes `num_items_in_batch`, the number of labels in all batches whose gradients it accumulates. A loss is then
the sum over its batch divided by that number. Without it, a loss is the mean over its batch.
"""

import torch
import torch.nn as nn
from transformers.configuration_utils import PreTrainedConfig


IGNORED = -100  # the label of what no loss counts


def check_labels(labels: torch.Tensor, count: int, shape: tuple[int, ...]) -> None:
    """Raises ValueError if the number of labels is not `count`, which scores of this shape need."""
    if labels.numel() != count:
        raise ValueError(
            f"labels are {tuple(labels.shape)}, but the scores are {tuple(shape)}: they need {count} labels in all."
        )


def is_possible(positions: torch.Tensor, possible: torch.Tensor) -> torch.Tensor:
    """(B,) booleans: whether each of the (B,) positions is one of those that are True in `possible` (B, T)."""
    inside = positions.clamp(0, possible.shape[1] - 1)
    return (inside == positions) & possible.gather(1, inside.unsqueeze(1)).squeeze(1)


def class_loss(
    logits: torch.Tensor, labels: torch.Tensor, num_items_in_batch: torch.Tensor | int | None = None, **kwargs
) -> torch.Tensor:
    """Cross-entropy of (B, C) logits with (B,) labels; IGNORED rows do not count."""
    check_labels(labels, logits.shape[0], logits.shape)
    labels = labels.view(-1).to(logits.device)
    reduction = "mean" if num_items_in_batch is None else "sum"
    loss = nn.functional.cross_entropy(logits, labels, ignore_index=IGNORED, reduction=reduction)
    return loss if num_items_in_batch is None else loss / num_items_in_batch


def token_loss(
    logits: torch.Tensor, labels: torch.Tensor, num_items_in_batch: torch.Tensor | int | None = None, **kwargs
) -> torch.Tensor:
    """Cross-entropy of (..., C) logits with (...) labels; IGNORED tokens do not count.

    It is computed in float32, or in float64 if the logits are, which transformers' own losses of tokens round.
    """
    scores = logits if logits.dtype == torch.float64 else logits.float()
    return class_loss(scores.flatten(0, -2), labels, num_items_in_batch)


def sequence_classification_loss(
    labels: torch.Tensor,
    pooled_logits: torch.Tensor,
    config: PreTrainedConfig,
    num_items_in_batch: torch.Tensor | int | None = None,
    **kwargs,
) -> torch.Tensor:
    """Cross-entropy, squared error or binary cross-entropy, by `config.problem_type` or else by the labels.

    transformers' own loss for this head ignores `num_items_in_batch` in the latter two.
    """
    labels = labels.to(pooled_logits.device)
    if config.problem_type is None:
        if config.num_labels == 1:
            config.problem_type = "regression"
        else:
            are_classes = labels.dtype in (torch.long, torch.int)
            config.problem_type = "single_label_classification" if are_classes else "multi_label_classification"
    if config.problem_type == "single_label_classification":
        return class_loss(pooled_logits, labels, num_items_in_batch)
    losses = {
        "regression": nn.functional.mse_loss,
        "multi_label_classification": nn.functional.binary_cross_entropy_with_logits,
    }
    if config.problem_type not in losses:
        raise ValueError(
            f"config.problem_type={config.problem_type!r} is not known; choose {', '.join(losses)} or "
            "single_label_classification, or leave it None to let the labels decide."
        )
    check_labels(labels, pooled_logits.numel(), pooled_logits.shape)
    labels = labels.view_as(pooled_logits).to(pooled_logits.dtype)
    per_item = losses[config.problem_type](pooled_logits, labels, reduction="none")
    return per_item.mean() if num_items_in_batch is None else per_item.sum() / num_items_in_batch
