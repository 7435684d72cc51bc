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
"""What the heads of the models share: checks of their inputs and labels, and losses.

In all losses, each label counts the same within a step. Trainer passes `num_items_in_batch`, the number of labels in
all batches whose gradients it accumulates. A loss is then the sum over its batch divided by that number. Without it, a
loss is the mean over its batch.

The (N, V) scores of N predictions, their softmax in fp32 and its gradient take most of the memory of a step, and more
time than the layers of a small model. `word_loss` computes scores from states, for a part of the rows at a time. On
the CPU, it computes the softmax of a few rows at a time, which stay in the processor's cache.
"""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn as nn
from transformers.configuration_utils import PreTrainedConfig
from transformers.utils.generic import maybe_autocast
from transformers.utils.import_utils import is_tracing

from .modeling_onednn import fill_up, is_opaque, is_transformed, linear, product_type


IGNORED = -100  # the label of what no loss counts
SCORES_AT_ONCE = 2**25  # 128 MB in fp32
SCORES_AT_ONCE_ON_GPU = 2**28  # 1 GB in fp32; a GPU waits for the calls of many small parts
SCORES_IN_CACHE = 2**20  # 4 MB in fp32


def one_of(input_ids: torch.Tensor | None, inputs_embeds: torch.Tensor | None) -> torch.Tensor:
    """The one that is given. Raises ValueError for none and for both."""
    if (input_ids is None) == (inputs_embeds is None):
        raise ValueError("Give exactly one of input_ids and inputs_embeds.")
    return inputs_embeds if input_ids is None else input_ids


def check_shapes(
    inputs: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    token_type_ids: torch.Tensor | None = None,
    position_ids: torch.Tensor | None = None,
    labels: torch.Tensor | None = None,
    past: int | torch.Tensor = 0,
) -> None:
    """Raises ValueError for inputs whose shapes do not fit the tokens.

    Args:
        inputs: (B, T) token ids or (B, T, H) embeddings.
        attention_mask: (B, P + T). A mask that is not a tensor, or has four dimensions, is not checked.
        token_type_ids, position_ids: of a shape that broadcasts against (B, T).
        labels: (B, T).
        past: P, the tokens that a cache holds; a static one's is a tensor, which on a GPU is not waited for.
    """
    if is_tracing(inputs):
        return
    tokens = tuple(inputs.shape[:2])
    is_unchecked = attention_mask is not None and (not torch.is_tensor(attention_mask) or attention_mask.dim() == 4)
    if torch.is_tensor(past):
        is_unchecked, past = is_unchecked or past.device.type != "cpu", int(past) if past.device.type == "cpu" else 0
    shapes = {
        "attention_mask": (None if is_unchecked else attention_mask, (tokens[0], past + tokens[1])),
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


def flatten_choices(
    input_ids: torch.Tensor | None,
    attention_mask: torch.Tensor | None,
    token_type_ids: torch.Tensor | None,
    position_ids: torch.Tensor | None,
    inputs_embeds: torch.Tensor | None,
) -> tuple[torch.Size, list[torch.Tensor | None]]:
    """The shape (B, K), and the tensors (B, K, T, ...) -> (B * K, T, ...) in the same order.

    Raises ValueError for inputs that are not choices, (B, K, T) or embeddings (B, K, T, H), and for a tensor of three
    dimensions that are not theirs; one of two dimensions is already flat.
    """
    inputs = one_of(input_ids, inputs_embeds)
    if inputs.dim() != 3 + inputs.is_floating_point():
        raise ValueError(f"the inputs are {tuple(inputs.shape)}, but must be (rows, choices, tokens).")
    choices = inputs.shape[:3]
    tensors = {"attention_mask": attention_mask, "token_type_ids": token_type_ids, "position_ids": position_ids}
    for name, tensor in tensors.items():
        if tensor is not None and tensor.dim() == 3 and tensor.shape != choices:
            raise ValueError(
                f"{name} is {tuple(tensor.shape)}, but must be {tuple(choices)}, the shape of the choices' tokens."
            )
    others = (None if each is None else each.reshape(-1, each.shape[-1]) for each in tensors.values())
    flat_ids, flat_embeds = (None if each is None else each.flatten(0, 1) for each in (input_ids, inputs_embeds))
    return choices[:2], [flat_ids, *others, flat_embeds]


def loss_needs_padding(
    labels: torch.Tensor | None,
    attention_mask: torch.Tensor | None,
    predicts_next: bool = False,
    packing: Any | None = None,
    shift_labels: torch.Tensor | None = None,
    **kwargs,
) -> bool:
    """Whether padding has a label or, if a language model `predicts_next`, a label is predicted from padding.

    The loss then needs the states of padding. It is True if the values cannot be read. A `packing` of the same mask
    and labels tells it without reading them.

    Args:
        labels: (B, T). A language model shifts them, but takes `shift_labels` in their place as they are.
        kwargs: those of a model's `forward`, of which the others are ignored.
    """
    has_shifted = predicts_next and shift_labels is not None
    targets = shift_labels if has_shifted else labels
    if targets is None or attention_mask is None or attention_mask.dim() != 2:
        return False
    mask = attention_mask[:, -targets.shape[1] :]  # without the columns of a cache
    if mask.shape != targets.shape:
        return False  # the model raises an error for it
    if predicts_next and not has_shifted:  # each label is predicted from the token before it, the first one from none
        mask = nn.functional.pad(mask[:, :-1], (1, 0), value=1)
    elif packing is not None and packing.knows(has_shifted) and packing.fits(mask):
        return packing.labels_padding
    return is_opaque(targets) or is_opaque(mask) or bool(((targets != IGNORED) & (mask == 0).to(targets.device)).any())


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


# Losses of words


def word_loss(
    states: torch.Tensor,
    words: torch.Tensor,
    targets: torch.Tensor,
    weights: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """The weighted sum of the cross-entropies of N predictions; the scores are (N, H) states @ (V, H) words' + bias.

    `targets` and `weights` are (N,), and `bias` is (V,). Without weights, each of them is 1. Gradients are computed
    together with the loss. Second derivatives, `torch.func` and forward-mode differentiation need the memory of all
    scores.
    """
    if is_transformed() or not len(states):
        return _at_once(states, words, bias, targets, weights)
    return _WordLoss.apply(states, words, bias, targets, weights, torch.is_grad_enabled())


def mean_word_loss(
    states: torch.Tensor, head: nn.Linear, targets: torch.Tensor, count: torch.Tensor | int | None = None
) -> torch.Tensor:
    """The mean loss of (N,) targets that the head predicts from (N, H) states, or its sum divided by `count`."""
    loss = word_loss(states, head.weight, targets, bias=head.bias)
    return loss / (len(targets) if count is None else count)


def _at_once(
    states: torch.Tensor,
    words: torch.Tensor,
    bias: torch.Tensor | None,
    targets: torch.Tensor,
    weights: torch.Tensor | None,
) -> torch.Tensor:
    """As `word_loss`, in ordinary operations."""
    losses = nn.functional.cross_entropy(linear(states, words, bias).float(), targets, reduction="none")  # (N,)
    return (losses if weights is None else losses * weights).sum()


class _WordLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, states, words, bias, targets, weights, with_gradients):
        needs_states, needs_words, needs_bias = (with_gradients and needed for needed in ctx.needs_input_grad[:3])
        states_gradient = torch.empty_like(states) if needs_states else None
        words_gradient, bias_gradient = None, None
        dtype = product_type(states)
        table, offsets = words.to(dtype), None if bias is None else bias.to(dtype)
        # Products with small weights would underflow in fp16, so the largest weight is the gradients' scale.
        scale = None if weights is None else weights.max().clamp(min=1e-30)
        loss = torch.zeros((), dtype=torch.float32, device=states.device)
        with maybe_autocast(states.device.type, enabled=False):
            for part in _parts(states, words):
                rows, target = fill_up(states[part].to(dtype)), targets[part]  # (n, H), with rows of zeros at the end
                errors = linear(rows, table, offsets)  # (n, V), scores, which become their errors
                losses = _losses(errors, target)
                shares = None
                if weights is not None:
                    losses, shares = losses * weights[part], (weights[part] / scale).unsqueeze(1).to(dtype)  # (n, 1)
                loss += losses.sum()
                if needs_states:
                    states_gradient[part] = _times(linear(errors, table.T)[: len(target)], shares)
                if needs_bias:
                    products = _times(errors[: len(target)], shares).sum(0, dtype=torch.float32)
                    bias_gradient = products if bias_gradient is None else bias_gradient + products
                if needs_words:
                    rows = rows if shares is None else fill_up(states[part].to(dtype) * shares)
                    words_gradient = _add(words_gradient, linear(errors.T, rows.T))
        gradients = (states_gradient, words_gradient, bias_gradient)
        ctx.save_for_backward(states, words, bias, targets, weights, scale, *gradients)
        return loss

    @staticmethod
    def backward(ctx, gradient):
        *inputs, scale, states_gradient, words_gradient, bias_gradient = ctx.saved_tensors
        factor = gradient if scale is None else gradient * scale
        gradients = [
            None if part is None else factor * part for part in (states_gradient, words_gradient, bias_gradient)
        ]
        if torch.is_grad_enabled():  # create_graph: the saved gradients are constants
            needed = [index for index in range(3) if ctx.needs_input_grad[index]]
            graph = torch.autograd.grad(_at_once(*inputs), [inputs[index] for index in needed], create_graph=True)
            for index, part in zip(needed, graph, strict=True):
                gradients[index] = gradient * part
        return *gradients, None, None, None


def _parts(states: torch.Tensor, words: torch.Tensor) -> Iterator[slice]:
    """Slices of the states, of about equal size, whose scores are not more than are allowed at once."""
    allowed = SCORES_AT_ONCE if states.device.type == "cpu" else SCORES_AT_ONCE_ON_GPU
    parts = -(-len(states) // max(1, allowed // len(words)))
    step = -(-len(states) // parts)
    return (slice(start, start + step) for start in range(0, len(states), step))


def _in_cache(rows: int, scores: torch.Tensor) -> Iterator[slice]:
    """Slices of so many rows; on the CPU, so small that their scores stay in its cache."""
    step = SCORES_IN_CACHE // scores.shape[1] if scores.device.type == "cpu" else rows
    return (slice(start, start + max(1, step)) for start in range(0, rows, max(1, step)))


def _losses(scores: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The cross-entropies (n,) of the first n of (N, V) scores, which become their gradients in place."""
    scores = scores[: len(targets)]
    losses = torch.empty(len(targets), dtype=torch.float32, device=scores.device)
    for piece in _in_cache(len(targets), scores):
        log_probabilities = scores[piece].log_softmax(-1, dtype=torch.float32)
        target = targets[piece].unsqueeze(1)
        losses[piece] = -log_probabilities.gather(1, target).squeeze(1)
        errors = log_probabilities.exp_()
        scores[piece] = errors.scatter_add_(1, target, torch.full_like(target, -1, dtype=errors.dtype))
    return losses


def _times(rows: torch.Tensor, shares: torch.Tensor | None) -> torch.Tensor:
    """(n, ...) rows, each times its (n, 1) share; None: as they are."""
    return rows if shares is None else rows * shares


def _add(total: torch.Tensor | None, product: torch.Tensor) -> torch.Tensor:
    """total + product in fp32, in place."""
    if total is None:
        return product.float()
    for piece in _in_cache(len(total), total):
        total[piece].add_(product[piece])
    return total
