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
"""Cross-entropy over all words of a vocabulary, without keeping all scores in memory at the same time."""

import torch
import torch.nn as nn

from .modeling_onednn import fill_up, linear
from .modeling_static import is_transformed


SCORES_AT_ONCE = 2**24  # 64 MB


def word_loss(states: torch.Tensor, words: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """The weighted sum of the cross-entropies of N predictions; the scores are (N, H) states @ (V, H) words'.

    `targets` and `weights` are (N,). The (N, V) scores, their softmax and its gradient would take most of the memory
    of a step. Here they are computed for a part of the rows at a time, gradients included. Second derivatives,
    `torch.func` and forward-mode differentiation do need all of that memory.
    """
    if is_transformed():
        return _at_once(states, words, targets, weights)
    return _WordLoss.apply(states, words, targets, weights, torch.is_grad_enabled())


def _at_once(states: torch.Tensor, words: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """As `word_loss`, in ordinary operations."""
    scores = linear(states, words).float()  # (N, V)
    return (nn.functional.cross_entropy(scores, targets, reduction="none") * weights).sum()


class _WordLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, states, words, targets, weights, with_gradients):
        loss = torch.zeros((), device=states.device)
        needs_states, needs_words = (with_gradients and needed for needed in ctx.needs_input_grad[:2])
        states_gradient = torch.empty_like(states) if needs_states else None
        words_gradient = torch.zeros_like(words, dtype=torch.float32) if needs_words else None  # a sum over many parts
        rows = max(1, SCORES_AT_ONCE // len(words))
        for start in range(0, len(states), rows):
            part = slice(start, start + rows)
            target, weight = targets[part], weights[part]
            count = len(target)
            filled = fill_up(states[part])  # (n, H), then rows of zeros
            log_probabilities = linear(filled, words).float().log_softmax(-1)  # (n, V)
            loss -= (log_probabilities[:count].gather(1, target.unsqueeze(1)).squeeze(1) * weight).sum()
            if not (needs_states or needs_words):
                continue
            errors = log_probabilities.exp_()
            errors[torch.arange(count, device=target.device), target] -= 1
            errors = errors.to(states.dtype)
            if needs_states:
                states_gradient[part] = linear(errors, words.T)[:count] * weight.unsqueeze(1)
            if needs_words:
                scale = weight.max().clamp(min=1e-30)  # so that products with small weights do not underflow in fp16
                shares = nn.functional.pad(weight / scale, (0, len(filled) - count)).unsqueeze(1).to(filled.dtype)
                words_gradient.addcmul_(linear(errors.T, (shares * filled).T).float(), scale)
        ctx.save_for_backward(states, words, targets, weights, states_gradient, words_gradient)
        return loss

    @staticmethod
    def backward(ctx, gradient):
        *inputs, states_gradient, words_gradient = ctx.saved_tensors
        gradients = [states_gradient, words_gradient]
        if torch.is_grad_enabled():  # create_graph: the saved gradients are constants
            needed = [index for index in (0, 1) if ctx.needs_input_grad[index]]
            graph = torch.autograd.grad(_at_once(*inputs), [inputs[index] for index in needed], create_graph=True)
            for index, part in zip(needed, graph, strict=True):
                gradients[index] = part
        return *(None if part is None else gradient * part for part in gradients), None, None, None
