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
"""What the heads of the models share: checks of their inputs and labels, and the losses of those that score classes.

In all losses, each label counts the same within a step. Trainer passes `num_items_in_batch`, the number of labels in
all batches whose gradients it accumulates. A loss is then the sum over its batch divided by that number. Without it, a
loss is the mean over its batch.
"""

from typing import Any

import torch
import torch.nn as nn
from transformers.configuration_utils import PreTrainedConfig
from transformers.utils.import_utils import is_tracing

from .modeling_static import is_opaque


IGNORED = -100  # the label of what no loss counts


def check_shapes(
    inputs: torch.Tensor | None,
    attention_mask: torch.Tensor | None = None,
    token_type_ids: torch.Tensor | None = None,
    position_ids: torch.Tensor | None = None,
    labels: torch.Tensor | None = None,
    past: int = 0,
) -> None:
    """Raises ValueError for inputs whose shapes do not fit the tokens.

    Args:
        inputs: (B, T) token ids or (B, T, H) embeddings.
        attention_mask: (B, P + T). A mask that is not a tensor, or has four dimensions, is not checked.
        token_type_ids, position_ids: of a shape that broadcasts against (B, T).
        labels: (B, T).
        past: P, the tokens that a cache holds.
    """
    if inputs is None or is_tracing(inputs):  # the model itself raises an error without inputs
        return
    tokens = tuple(inputs.shape[:2])
    masks_pairs = attention_mask is not None and (not torch.is_tensor(attention_mask) or attention_mask.dim() == 4)
    shapes = {
        "attention_mask": (None if masks_pairs else attention_mask, (tokens[0], past + tokens[1])),
        "labels": (labels, tokens),
        "token_type_ids": (token_type_ids, tokens),
        "position_ids": (position_ids, tokens),
    }
    for name, (tensor, shape) in shapes.items():
        if tensor is None or tensor.shape == shape or (name.endswith("_ids") and _broadcasts_to(tensor, shape)):
            continue
        cached = f", after {past} in the cache" if past else ""
        raise ValueError(f"{name} is {tuple(tensor.shape)}, but must be {shape}: the tokens are {tokens}{cached}.")


def _broadcasts_to(tensor: torch.Tensor, shape: tuple[int, ...]) -> bool:
    """Whether the tensor broadcasts against the shape without changing it."""
    sizes = zip(reversed(tensor.shape), reversed(shape), strict=False)
    return 0 < tensor.dim() <= len(shape) and all(size in (1, full_size) for size, full_size in sizes)


def check_choices(inputs: torch.Tensor | None, **tensors: torch.Tensor | None) -> None:
    """Raises ValueError for inputs that are not choices, and for a tensor of three dimensions that are not theirs.

    Args:
        inputs: (B, K, T) token ids or (B, K, T, H) embeddings.
        tensors: (B, K, T).
    """
    if inputs is None:
        raise ValueError("Give exactly one of input_ids and inputs_embeds.")
    if inputs.dim() != 3 + inputs.is_floating_point():
        raise ValueError(f"the inputs are {tuple(inputs.shape)}, but must be (rows, choices, tokens).")
    choices = tuple(inputs.shape[:3])
    for name, tensor in tensors.items():
        if tensor is not None and tensor.dim() == 3 and tensor.shape != choices:
            raise ValueError(
                f"{name} is {tuple(tensor.shape)}, but must be {choices}, the shape of the choices' tokens."
            )


def labels_need_padding(
    labels: torch.Tensor | None,
    attention_mask: torch.Tensor | None,
    packing: Any | None = None,
    shifted: bool = False,
) -> bool:
    """Whether padding has a label, so that the loss needs its states; True if the values cannot be read.

    A `packing` of the same mask and labels tells it without reading them. `shifted`: they are `shift_labels`.
    """
    if labels is None or attention_mask is None or attention_mask.dim() != 2:
        return False
    if packing is not None and packing.knows(shifted) and packing.fits(attention_mask):
        return packing.labels_padding
    mask = attention_mask[:, -labels.shape[1] :]  # without the columns of a cache
    if mask.shape != labels.shape:
        return False  # the model raises an error for it
    return is_opaque(labels) or is_opaque(mask) or bool(((labels != IGNORED) & (mask == 0).to(labels.device)).any())


def predicts_from_padding(
    labels: torch.Tensor | None,
    attention_mask: torch.Tensor | None,
    shift_labels: torch.Tensor | None = None,
    packing: Any | None = None,
    **kwargs,
) -> bool:
    """Whether a label is predicted from padding, so that the loss needs the states of padding.

    Args: as those of a language model's `forward`, of which the others are ignored.
    """
    targets = labels if shift_labels is None else shift_labels
    if targets is None or attention_mask is None or attention_mask.dim() != 2:
        return False
    mask = attention_mask[:, -targets.shape[1] :]  # without the columns of a cache
    if shift_labels is None:  # each label is predicted from the token before it, the first one from none
        mask = nn.functional.pad(mask[:, :-1], (1, 0), value=1)
        packing = None  # which knows `labels` as they are
    return labels_need_padding(targets, mask, packing, shifted=True)


def states_to_predict_from(states: torch.Tensor, logits_to_keep: int | torch.Tensor) -> torch.Tensor:
    """Those of the (B, T, H) states for which a head computes logits.

    logits_to_keep: how many at the end of each row (0: all), (N,) positions of all rows, (B, N) positions of each row,
        or a (B, T) mask, which gives (number of true entries, H) states. transformers has these forms.
    """
    if isinstance(logits_to_keep, int):
        return states[:, -logits_to_keep:]
    if logits_to_keep.dim() < 2:
        return states[:, logits_to_keep]
    if logits_to_keep.dtype == torch.bool:
        return states[logits_to_keep]
    return states.take_along_dim(logits_to_keep[..., None], dim=1)


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
