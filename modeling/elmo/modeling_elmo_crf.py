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
"""A linear-chain conditional random field (Lafferty et al. 2001), the last layer of ELMo's tagger.

The score of a sequence of tags is the sum of its words' scores (the emissions), of each tag after the one before it,
of its first tag as a beginning and of its last as an end (Collobert et al. 2011, section 3.2.2). Its probability is a
softmax over all sequences. The sum over sequences in the likelihood and the maximum in decoding are one recursion over
the words, with another rule of what arrives at a tag.

Everything is computed in float32, and skips padding wherever it is in a row.

Letters: B rows, T columns, C tags, K = C + 1: one more tag, the last, stands for the outside of a sentence; start
scores are transitions from it, end scores transitions to it. In the recursions rows come last, S of them, so that
what lies side by side in memory goes through the same steps.
"""

from collections.abc import Callable, Sequence

import torch
import torch.nn as nn
from transformers import initialization as init

from ..shared.modeling_losses import IGNORED
from ..shared.modeling_onednn import is_transformed


# Finite, or differences would be undefined; far below the score of any sequence, so that it is known from the score
# whether a sequence has a part that is ruled out.
NEVER = -1e9
FAINT = -80.0  # e to the power of less is lost in a float32 sum with a 1, and takes several times as long to compute
LOWEST = -1e4  # the logit of a tag that no lawful sequence has at its word; float16 can hold it


class ConditionalRandomField(nn.Module):
    """Scores of tags next to each other.

    Args:
        labels: the tags' names, if sequences that break their scheme (see `ruled_out`) are to have probability 0, and
            never be chosen.
    """

    def __init__(self, num_tags: int, labels: Sequence[str] | None = None):
        super().__init__()
        self.transitions = nn.Parameter(torch.zeros(num_tags, num_tags))  # from the row to the column
        self.start = nn.Parameter(torch.zeros(num_tags))
        self.end = nn.Parameter(torch.zeros(num_tags))
        self.labels = labels
        unlawful = ruled_out(labels) if labels else None
        self.unlawful = None if unlawful is None else nn.Buffer(unlawful, persistent=False)  # (K, K)

    def reset(self) -> None:
        """Zeros: at first, all lawful sequences are alike."""
        for scores in (self.transitions, self.start, self.end):
            init.zeros_(scores)
        if self.unlawful is not None:
            init.copy_(self.unlawful, ruled_out(self.labels))

    def scores(self) -> torch.Tensor:
        """All transitions, from the row to the column: (K, K)."""
        transitions, start, end = (scores.float() for scores in (self.transitions, self.start, self.end))
        rows = torch.cat([transitions, start.unsqueeze(0)])
        return torch.cat([rows, nn.functional.pad(end, (0, 1)).unsqueeze(1)], 1)

    def negative_log_likelihood(
        self, emissions: torch.Tensor, labels: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        """(B, T, C) emissions, (B, T) labels, (B, T) booleans -> (B,) of each row.

        A word labelled IGNORED may have any tag: the likelihood is the sum of those of all its tags. A row whose
        labels break the scheme of the tags (one cut off within an entity, say) is scored among all sequences, those
        that are ruled out elsewhere too: its loss is an ordinary number, and its words still teach.
        """
        tags = torch.arange(emissions.shape[2], device=labels.device)
        wrong = (labels.unsqueeze(-1) != tags) & (labels != IGNORED).unsqueeze(-1)  # (B, T, C): what a word is not
        known = _with_outside(torch.zeros_like(wrong, dtype=torch.float32).masked_fill(wrong, NEVER))  # (T, K, B)
        scores, mask = _with_outside(emissions.float()), mask.T
        transitions = self.scores().unsqueeze(-1).expand(-1, -1, labels.shape[0])  # (K, K, B)
        if self.unlawful is not None:
            never = self.unlawful.unsqueeze(-1).expand_as(transitions)
            lawful = _whole(known, never * NEVER, mask, _best) > NEVER / 2  # (B,)
            transitions = transitions.masked_fill(never & lawful, NEVER)
        both = torch.cat([scores, scores + known], -1)  # (T, K, 2B)
        every, labelled = _whole(both, transitions.repeat(1, 1, 2), mask.repeat(1, 2), _sum).chunk(2)
        return every - labelled

    def max_marginals(self, emissions: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """(B, T, C) emissions, (B, T) booleans -> (B, T, C) logits, float32, zero at padding.

        The logit of a tag is the score of the best sequence with this tag at this word, minus the score of the best
        of all: 0 for the tags of the best sequence, below 0 for all others, so that a word's greatest logit is at its
        tag in the best sequence (Viterbi's). LOWEST for tags that no lawful sequence has there.
        """
        transitions = self.scores()
        if self.unlawful is not None:
            transitions = transitions.masked_fill(self.unlawful, NEVER)
        scores, ways = _with_outside(emissions.float()), transitions.unsqueeze(-1).expand(-1, -1, emissions.shape[0])
        both = _pass(  # the same from the last word to the first
            torch.cat([scores, scores.flip(0)], -1),
            torch.cat([ways, ways.transpose(0, 1)], -1),
            torch.cat([mask.T, mask.T.flip(0)], -1),
            _best,
        )
        left, right = both.unflatten(-1, (2, -1)).unbind(-2)  # (T + 1, K, B) each
        right = right.flip(0)
        through = (left[1:] + right[:-1] - scores)[:, :-1].permute(2, 0, 1)  # (B, T, C)
        logits = (through - through.amax(-1, keepdim=True)).clamp(LOWEST, -torch.finfo(through.dtype).eps)
        chosen = nn.functional.one_hot(_best_tags(right, transitions, mask.T).T, emissions.shape[2]).bool()
        return logits.masked_fill(chosen | ~mask.unsqueeze(-1), 0)


def ruled_out(labels: Sequence[str]) -> torch.Tensor | None:
    """Which tags (rows) the scheme of the names does not let stand before which (columns): (K, K) booleans.

    IOB2 (B-PER I-PER O): I-X follows B-X or I-X. BIOES, and BIOUL, which writes L and U for E and S: besides, I-X or
    E-X follows B-X and I-X. None for names that are of neither scheme or have only a part of one: IOB1 and IO, where
    I-X may begin an entity, and tags that are no entities' at all. (IOB1 that has a B-X for every type has the names
    of IOB2; write such data in IOB2, or leave the constraint off.)
    """
    parts = [label.partition("-") for label in labels]
    tags = [({"L": "E", "U": "S"}.get(prefix, prefix), kind) for prefix, _, kind in parts]
    prefixes = {prefix for prefix, _ in tags}
    closes = bool(prefixes & {"E", "S"})  # BIOES
    needs = {"O": "O", "B": "E", "I": "B", "E": "B", "S": "S"} if closes else {"O": "O", "B": "B", "I": "B"}
    complete = all((needs.get(prefix), kind) in tags and not (prefix == "O" and kind) for prefix, kind in tags)
    alone = prefixes & {"O", "S" if closes else "B"}  # what the word of a sentence of one can be
    if not complete or not alone:
        return None
    tags.append(("O", ""))  # the outside of a sentence
    table = [[_breaks(before, tag, closes) for tag in tags] for before in tags]
    return torch.tensor(table) if any(map(any, table)) else None


def _breaks(before: tuple[str, str], tag: tuple[str, str], closes: bool) -> bool:
    """Whether a tag may not follow the one before it; both are (prefix, type of entity)."""
    is_open, goes_on = before[0] in ("B", "I"), tag[0] in ("I", "E")
    if goes_on:
        return not is_open or before[1] != tag[1]
    return closes and is_open


def _with_outside(emissions: torch.Tensor) -> torch.Tensor:
    """(B, T, C) -> (T, K, B): no word has the tag of the outside."""
    return nn.functional.pad(emissions, (0, 1), value=NEVER).permute(1, 2, 0)


def _best(states: torch.Tensor, transitions: torch.Tensor) -> torch.Tensor:
    """What arrives at each tag: the best of all ways. (K, S), (K, K, S) -> (K, S)."""
    return (states.unsqueeze(1) + transitions).amax(0)


def _sum(states: torch.Tensor, transitions: torch.Tensor) -> torch.Tensor:
    """As `_best`: the log of the sum over all ways."""
    if is_transformed():
        return (states.unsqueeze(1) + transitions).logsumexp(0)
    return _Sum.apply(states, transitions)


class _Sum(torch.autograd.Function):
    """`_sum` in fewer steps. Its gradient needs the softmax of all ways, which it has on the way."""

    @staticmethod
    def forward(ctx, states, transitions):
        ways = states.unsqueeze(1) + transitions
        greatest = ways.amax(0)
        ways = ways.sub_(greatest).clamp_(min=FAINT).exp_()
        total = ways.sum(0)
        ctx.save_for_backward(states, transitions, ways.div_(total))
        return total.log_().add_(greatest)

    @staticmethod
    def backward(ctx, gradient):  # (K, S)
        states, transitions, shares = ctx.saved_tensors
        if torch.is_grad_enabled():  # create_graph: what was saved is a constant
            shares = (states.unsqueeze(1) + transitions).softmax(0)
        gradients = shares * gradient
        return gradients.sum(1), gradients


def _pass(
    scores: torch.Tensor,  # (T, K, S)
    transitions: torch.Tensor,  # (K, K, S)
    mask: torch.Tensor,  # (T, S)
    arrive: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> torch.Tensor:
    """The best or the sum of all sequences up to each tag of each word, that tag's own score included.

    Returns (T + 1, K, S): before the first word, only the outside has been. Padding leaves things as they were.
    """
    state = scores.new_full(scores.shape[1:], NEVER)
    state[-1] = 0
    states = [state]
    for word, here in zip(scores.unbind(0), mask.unbind(0), strict=True):
        state = torch.where(here, arrive(state, transitions) + word, state)
        states.append(state)
    return torch.stack(states)


def _whole(scores: torch.Tensor, transitions: torch.Tensor, mask: torch.Tensor, arrive: Callable) -> torch.Tensor:
    """Of whole sequences, the way back to the outside included: (S,)."""
    return arrive(_pass(scores, transitions, mask, arrive)[-1], transitions)[-1]


def _best_tags(right: torch.Tensor, transitions: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The best sequences (T, B), from the best scores of all that is still to come (T + 1, K, B).

    One tag is chosen after the other, so that it is one lawful sequence where several are the best.
    """
    tags = torch.zeros_like(right[1:, 0], dtype=torch.long)
    before = torch.full_like(right[0, 0], len(transitions) - 1, dtype=torch.long)  # the outside
    for column, here in enumerate(mask.unbind(0)):
        best = (transitions[before, :-1].T + right[column, :-1]).argmax(0)
        tags[column] = best
        before = torch.where(here, best, before)
    return tags
