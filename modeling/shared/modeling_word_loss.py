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
"""The loss of scores for all words of a vocabulary, without the memory for all of them at a time."""

import torch
import torch.nn as nn

from .modeling_onednn import fill_up, is_transformed, linear


SCORES_AT_ONCE = 2**24  # 64 MB of them


def word_loss(states: torch.Tensor, words: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """The sum of the cross-entropies of (N, H) states' scores for (V, H) words, with (N,) targets and weights.

    (N, V) scores, their softmax and its gradient would be most of the memory of a step; here they are there for some
    of the rows at a time, and the gradients are computed beside them. Second derivatives, `torch.func` and
    forward-mode differentiation need all of that memory.
    """
    if is_transformed():
        return _at_once(states, words, targets, weights)
    return _WordLoss.apply(states, words, targets, weights, torch.is_grad_enabled())


def _at_once(states: torch.Tensor, words: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """The same in ordinary operations."""
    scores = linear(states, words).float()  # (N, V)
    return (nn.functional.cross_entropy(scores, targets, reduction="none") * weights).sum()


class _WordLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, states, words, targets, weights, with_gradients):
        loss = torch.zeros((), device=states.device)
        for_states, for_words = (with_gradients and needed for needed in ctx.needs_input_grad[:2])
        to_states = torch.empty_like(states) if for_states else None
        to_words = torch.zeros_like(words, dtype=torch.float32) if for_words else None  # a sum of many parts
        rows = max(1, SCORES_AT_ONCE // len(words))
        for start in range(0, len(states), rows):
            part = slice(start, start + rows)
            target, weight = targets[part], weights[part]
            count = len(target)
            given = fill_up(states[part])  # (n, H) and rows of zeros
            log_probabilities = linear(given, words).float().log_softmax(-1)  # (n, V)
            loss -= (log_probabilities[:count].gather(1, target.unsqueeze(1)).squeeze(1) * weight).sum()
            if not (for_states or for_words):
                continue
            errors = log_probabilities.exp_()
            errors[torch.arange(count, device=target.device), target] -= 1
            errors = errors.to(states.dtype)
            if for_states:
                to_states[part] = linear(errors, words.T)[:count] * weight.unsqueeze(1)
            if for_words:
                scale = weight.max().clamp(min=1e-30)  # so that fp16 does not lose what small weights leave
                shares = nn.functional.pad(weight / scale, (0, len(given) - count)).unsqueeze(1).to(given.dtype)
                to_words.addcmul_(linear(errors.T, (shares * given).T).float(), scale)
        ctx.save_for_backward(states, words, targets, weights, to_states, to_words)
        return loss

    @staticmethod
    def backward(ctx, gradient):
        *given, to_states, to_words = ctx.saved_tensors
        gradients = [to_states, to_words]
        if torch.is_grad_enabled():  # create_graph: these two are constants
            needed = [number for number in (0, 1) if ctx.needs_input_grad[number]]
            found = torch.autograd.grad(_at_once(*given), [given[number] for number in needed], create_graph=True)
            for number, part in zip(needed, found, strict=True):
                gradients[number] = part
        return *(None if part is None else gradient * part for part in gradients), None, None, None
