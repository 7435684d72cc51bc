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
"""Cross-entropy over all words of a vocabulary, in less time and memory than of all scores at the same time.

The (N, V) scores of N predictions, their softmax in fp32 and its gradient take most of the memory of a step, and more
time than the layers of a small model. `word_loss` computes scores from states, for a part of the rows at a time.
`language_loss` is given all scores, and keeps only their gradient, in their type. On the CPU, both compute the softmax
of a few rows at a time, which stay in the processor's cache.
"""

from collections.abc import Iterator

import torch
import torch.nn as nn
from transformers.loss.loss_utils import ForCausalLMLoss
from transformers.utils.generic import maybe_autocast

from .modeling_heads import IGNORED
from .modeling_onednn import fill_up, linear
from .modeling_static import is_transformed, needs_static_shapes, product_type


SCORES_AT_ONCE = 2**25  # 128 MB in fp32
SCORES_AT_ONCE_ON_GPU = 2**28  # 1 GB in fp32; a GPU waits for the calls of many small parts
SCORES_IN_CACHE = 2**20  # 4 MB in fp32


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


def language_loss(
    logits: torch.Tensor,
    labels: torch.Tensor,
    vocab_size: int,
    num_items_in_batch: torch.Tensor | int | None = None,
    ignore_index: int = IGNORED,
    shift_labels: torch.Tensor | None = None,
    **kwargs,
) -> torch.Tensor:
    """The mean loss of (B, T, V) logits, each of which predicts the next of the (B, T) labels.

    The same as transformers' ForCausalLMLoss, which takes about twice as long on the CPU and is called elsewhere.
    """
    if logits.device.type != "cpu" or type(logits) is not torch.Tensor or needs_static_shapes(logits):
        return ForCausalLMLoss(logits, labels, vocab_size, num_items_in_batch, ignore_index, shift_labels, **kwargs)
    if shift_labels is None:
        shift_labels = nn.functional.pad(labels, (0, 1), value=ignore_index)[..., 1:]  # trf-ignore: TRF053
    if shift_labels.numel() * vocab_size != logits.numel():
        raise ValueError(
            f"labels of shape {tuple(shift_labels.shape)} do not fit logits of shape {tuple(logits.shape)}"
        )
    targets = shift_labels.reshape(-1).to(logits.device)
    counted = (targets != ignore_index).nonzero().squeeze(1)
    count = torch.as_tensor(len(counted) if num_items_in_batch is None else num_items_in_batch, device=logits.device)
    scores = logits.reshape(-1, vocab_size)
    return _ScoreLoss.apply(scores, targets, counted, 1 / count, torch.is_grad_enabled(), logits.is_leaf)


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
        scores[piece] = _less_one(log_probabilities.exp_(), target)
    return losses


def _times(rows: torch.Tensor, shares: torch.Tensor | None) -> torch.Tensor:
    """(n, ...) rows, each times its (n, 1) share; None: as they are."""
    return rows if shares is None else rows * shares


def _less_one(probabilities: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The gradient of the cross-entropies of (n, 1) targets, in place."""
    return probabilities.scatter_add_(1, targets, torch.full_like(targets, -1, dtype=probabilities.dtype))


def _add(total: torch.Tensor | None, product: torch.Tensor) -> torch.Tensor:
    """total + product in fp32, in place."""
    if total is None:
        return product.float()
    for piece in _in_cache(len(total), total):
        total[piece].add_(product[piece])
    return total


class _ScoreLoss(torch.autograd.Function):
    """The sum of the cross-entropies of (N, V) scores, times a `factor`, for those rows that are `counted` (n,).

    The gradient of a leaf stays with the user, who may change it, so it gets memory of its own.
    """

    @staticmethod
    def forward(ctx, scores, targets, counted, factor, with_gradients, is_leaf):
        # Small errors would underflow in fp16, before the gradient, which has the loss's scale.
        kept = torch.float32 if scores.dtype == torch.float16 else scores.dtype
        errors = torch.empty_like(scores, dtype=kept) if with_gradients and ctx.needs_input_grad[0] else None
        losses = torch.empty(len(counted), dtype=torch.float32)
        for piece in _in_cache(len(counted), scores):
            rows, target = counted[piece], targets[counted[piece]].unsqueeze(1)
            log_probabilities = scores.index_select(0, rows).float().log_softmax(-1)
            losses[piece] = -log_probabilities.gather(1, target).squeeze(1)
            if errors is not None:
                part = _less_one(log_probabilities.exp_(), target).mul_(factor)
                errors.index_copy_(0, rows, part.to(kept))
        if errors is not None:
            is_counted = torch.zeros(len(scores), dtype=torch.bool).index_fill_(0, counted, True)
            errors.index_fill_(0, (~is_counted).nonzero().squeeze(1), 0)
        ctx.save_for_backward(scores, targets, counted, errors)
        ctx.factor, ctx.is_leaf = factor, is_leaf
        return losses.sum() * factor

    @staticmethod
    def backward(ctx, gradient):
        scores, targets, counted, errors = ctx.saved_tensors
        if torch.is_grad_enabled():  # create_graph: in ordinary operations
            errors = scores[counted].float().softmax(-1) - nn.functional.one_hot(targets[counted], scores.shape[1])
            errors = torch.zeros_like(scores, dtype=torch.float32).index_copy(0, counted, errors * ctx.factor)
        is_batch = is_transformed() or torch._C._functorch.is_legacy_batchedtensor(gradient)
        is_kept = not torch.is_grad_enabled() and not is_batch and gradient == 1 and not ctx.is_leaf
        return (errors if is_kept else gradient * errors).to(scores.dtype), None, None, None, None, None
