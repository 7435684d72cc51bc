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

The score of a sequence of tags is the sum of the scores of its words' tags (the emissions), of the transitions from
each tag to the next, of the start with its first tag and of the end with its last (Collobert et al. 2011, section
3.2.2). Its probability is a softmax over all sequences. The likelihood needs a sum over all sequences, decoding a
maximum. Both are the same recursion over the words, with a different rule to combine the scores that lead to a tag.

Everything is computed in float32. Padding is skipped, wherever it is in a row.

Letters: B rows, T columns, C tags, K = C + 1. The additional tag, the last, is the outside of a sentence: start scores
are transitions from it, end scores are transitions to it. In the recursions, rows are the last dimension, S of them,
so that neighbours in memory take the same steps.
"""

from collections.abc import Callable, Sequence

import torch
import torch.nn as nn
from transformers import initialization as init

from ..shared.modeling_heads import IGNORED
from ..shared.modeling_onednn import is_transformed
from ..shared.modeling_parameters import compute_weights
from ..shared.modeling_recurrence import Stepped, Tensors, scan


# The score of a forbidden part of a sequence. It is finite, because differences of infinities are undefined, and so
# far below other scores that the score of a sequence shows whether it has a forbidden part.
FORBIDDEN = -1e9
NEGLIGIBLE = -80.0  # e to a lower power is lost in a float32 sum with 1, and takes several times as long to compute
LOWEST = -1e4  # the logit of a tag that no valid sequence has at a word; float16 can represent it


class ConditionalRandomField(nn.Module):
    """The scores of transitions between tags.

    Args:
        labels: the names of the tags, to give sequences that break their scheme (see `forbidden_transitions`)
            probability 0. None to allow all sequences.
    """

    def __init__(self, num_tags: int, labels: Sequence[str] | None = None):
        super().__init__()
        self.transitions = nn.Parameter(torch.zeros(num_tags, num_tags))  # from the row to the column
        self.start = nn.Parameter(torch.zeros(num_tags))
        self.end = nn.Parameter(torch.zeros(num_tags))
        self.labels = None
        # (K, K), or None, which an nn.Buffer cannot be:
        self.register_buffer("forbidden", None, persistent=False)  # trf-ignore: TRF058
        self.constrain(labels)

    def constrain(self, labels: Sequence[str] | None) -> None:
        """Forbids the sequences that break the scheme of these names from now on, and no others."""
        if labels != self.labels:
            self.labels = labels
            with torch.inference_mode(False):  # training may follow
                forbidden = forbidden_transitions(labels) if labels else None
                self.forbidden = None if forbidden is None else forbidden.to(self.transitions.device)

    def reset(self) -> None:
        """Zeros: at first, the CRF prefers no valid sequence to another."""
        for scores in (self.transitions, self.start, self.end):
            init.zeros_(scores)
        if self.forbidden is not None:
            init.copy_(self.forbidden, forbidden_transitions(self.labels))

    def scores(self) -> torch.Tensor:
        """The scores of all transitions, from the row to the column: (K, K)."""
        compute_weights(self)
        transitions, start, end = (scores.float() for scores in (self.transitions, self.start, self.end))
        rows = torch.cat([transitions, start.unsqueeze(0)])
        return torch.cat([rows, nn.functional.pad(end, (0, 1)).unsqueeze(1)], 1)

    def negative_log_likelihood(
        self, emissions: torch.Tensor, labels: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        """(B, T, C) emissions, (B, T) labels, (B, T) mask -> (B,), one value per row.

        A word labelled IGNORED may have any tag: the likelihood is the sum over all its tags. If the labels of a row
        break the scheme of the tags (as when a row is cut within an entity), no sequence is forbidden for that row.
        Its loss is then an ordinary number, and the model learns from its words too.
        """
        tags = torch.arange(emissions.shape[2], device=labels.device)
        wrong = (labels.unsqueeze(-1) != tags) & (labels != IGNORED).unsqueeze(-1)  # (B, T, C), tags a word lacks
        only_labels = _with_outside(torch.zeros_like(wrong, dtype=torch.float32).masked_fill(wrong, FORBIDDEN))
        scores, mask = _with_outside(emissions.float()), mask.T
        transitions = self.scores().unsqueeze(-1).expand(-1, -1, labels.shape[0])  # (K, K, B)
        if self.forbidden is not None:
            forbidden = self.forbidden.unsqueeze(-1).expand_as(transitions)
            is_valid = _total(only_labels, forbidden * FORBIDDEN, mask, _best) > FORBIDDEN / 2  # (B,)
            transitions = transitions.masked_fill(forbidden & is_valid, FORBIDDEN)
        both = torch.cat([scores, scores + only_labels], -1)  # (T, K, 2B)
        all_sequences, labelled = _total(both, transitions.repeat(1, 1, 2), mask.repeat(1, 2), _sum).chunk(2)
        return all_sequences - labelled

    def max_marginals(
        self, emissions: torch.Tensor, mask: torch.Tensor, cut: torch.Tensor | None = None
    ) -> torch.Tensor:
        """(B, T, C) emissions, (B, T) mask, (B, 2) cut -> (B, T, C) logits, float32, zero at padding.

        The logit of a tag is the score of the best sequence with this tag at this word, minus the score of the best
        sequence of all. It is 0 for the tags of the best sequence and below 0 for all others. So the greatest logit of
        a word is at its tag in the best sequence, which is Viterbi's. It is LOWEST for tags that no valid sequence has
        at this word. Where a row is `cut` from its sentence, any tag may be its first, or its last one.
        """
        paths = self.scores().unsqueeze(-1)
        if self.forbidden is not None:
            paths = paths.masked_fill(self._forbidden_in_rows(cut), FORBIDDEN)
        scores, paths = _with_outside(emissions.float()), paths.expand(-1, -1, emissions.shape[0])  # (K, K, B)
        both = _recursion(  # from the first word to the last, and at the same time from the last to the first
            torch.cat([scores, scores.flip(0)], -1),
            torch.cat([paths, paths.transpose(0, 1)], -1),
            torch.cat([mask.T, mask.T.flip(0)], -1),
            _best,
        )
        left, right = both.unflatten(-1, (2, -1)).unbind(-2)  # (T + 1, K, B) each
        right = right.flip(0)
        through = (left[1:] + right[:-1] - scores)[:, :-1].permute(2, 0, 1)  # (B, T, C)
        logits = (through - through.amax(-1, keepdim=True)).clamp(LOWEST, -torch.finfo(through.dtype).eps)
        is_best = nn.functional.one_hot(_best_tags(right, paths, mask.T).T, emissions.shape[2]).bool()
        return logits.masked_fill(is_best | ~mask.unsqueeze(-1), 0)

    def _forbidden_in_rows(self, cut: torch.Tensor | None) -> torch.Tensor:
        """(B, 2) -> (K, K, B), or (K, K, 1) for all rows, if none is cut."""
        forbidden = self.forbidden.unsqueeze(-1)
        if cut is None:
            return forbidden
        start, end = forbidden[-1:] & ~cut[:, 0], forbidden[:-1, -1:] & ~cut[:, 1]
        inside = forbidden[:-1, :-1].expand(-1, -1, cut.shape[0])
        return torch.cat([torch.cat([inside, end], 1), start])


def forbidden_transitions(labels: Sequence[str]) -> torch.Tensor | None:
    """(K, K) booleans: the transitions, from the row to the column, that the scheme of the tags' names does not have.

    In IOB2 (B-PER I-PER O), I-X only follows B-X or I-X. In BIOES, and in BIOUL, which writes L and U for E and S,
    also only I-X or E-X follows B-X or I-X. None if the names are not a complete set of either scheme: in IOB1 and IO,
    I-X may begin an entity, and other tags are not of entities. (IOB1 with a B-X for every type has the names of IOB2;
    convert such data to IOB2, or switch the constraint off.)
    """
    parts = [label.partition("-") for label in labels]
    tags = [({"L": "E", "U": "S"}.get(prefix, prefix), kind) for prefix, _, kind in parts]
    prefixes = {prefix for prefix, _ in tags}
    closes = bool(prefixes & {"E", "S"})  # BIOES
    required = {"O": "O", "B": "E", "I": "B", "E": "B", "S": "S"} if closes else {"O": "O", "B": "B", "I": "B"}
    complete = all((required.get(prefix), kind) in tags and not (prefix == "O" and kind) for prefix, kind in tags)
    single_word = prefixes & {"O", "S" if closes else "B"}  # the tags that a sentence of one word can have
    if not complete or not single_word:
        return None
    tags.append(("O", ""))  # the outside of a sentence
    table = [[_breaks(before, tag, closes) for tag in tags] for before in tags]
    return torch.tensor(table) if any(map(any, table)) else None


def _breaks(before: tuple[str, str], tag: tuple[str, str], closes: bool) -> bool:
    """Whether the tag must not follow the tag before it; both are (prefix, type of entity)."""
    is_open, continues = before[0] in ("B", "I"), tag[0] in ("I", "E")
    if continues:
        return not is_open or before[1] != tag[1]
    return closes and is_open


def _with_outside(emissions: torch.Tensor) -> torch.Tensor:
    """(B, T, C) -> (T, K, B): the tag of the outside is forbidden at all words."""
    return nn.functional.pad(emissions, (0, 1), value=FORBIDDEN).permute(1, 2, 0)


def _best(states: torch.Tensor, transitions: torch.Tensor) -> torch.Tensor:
    """The best score of all transitions to each tag: (K, S), (K, K, S) -> (K, S)."""
    return (states.unsqueeze(1) + transitions).amax(0)


def _sum(states: torch.Tensor, transitions: torch.Tensor) -> torch.Tensor:
    """As `_best`, but the log of the sum over all transitions to each tag."""
    if is_transformed():
        return (states.unsqueeze(1) + transitions).logsumexp(0)
    return _Sum.apply(states, transitions)


class _Sum(torch.autograd.Function):
    """`_sum` in fewer steps. The gradient needs the softmax over the transitions, which forward computes anyway."""

    @staticmethod
    def forward(ctx, states, transitions):
        paths = states.unsqueeze(1) + transitions
        greatest = paths.amax(0)
        paths = paths.sub_(greatest).clamp_(min=NEGLIGIBLE).exp_()
        total = paths.sum(0)
        ctx.save_for_backward(states, transitions, paths.div_(total))
        return total.log_().add_(greatest)

    @staticmethod
    def backward(ctx, gradient):  # (K, S)
        states, transitions, shares = ctx.saved_tensors
        if torch.is_grad_enabled():  # create_graph: the saved softmax is a constant
            shares = (states.unsqueeze(1) + transitions).softmax(0)
        gradients = shares * gradient
        return gradients.sum(1), gradients


def _recursion(
    scores: torch.Tensor,  # (T, K, S)
    transitions: torch.Tensor,  # (K, K, S)
    mask: torch.Tensor,  # (T, S)
    combine: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],  # `_best` or `_sum`
) -> torch.Tensor:
    """The combined score of all sequences that end with each tag at each word, its emission included.

    Returns (T + 1, K, S). Before the first word, the only tag is the outside. Padding leaves the scores unchanged.
    """

    def step(state: Tensors, column: Tensors, weights: Tensors) -> Stepped:
        (before,), (word, is_word) = state, column
        after = torch.where(is_word, combine(before, *weights) + word, before)
        return (after,), after

    first = scores.new_full(scores.shape[1:], FORBIDDEN)
    first[-1] = 0
    _, states = scan(step, [first], [scores, mask], [transitions])
    return torch.cat([first.unsqueeze(0), states])


def _total(scores: torch.Tensor, transitions: torch.Tensor, mask: torch.Tensor, combine: Callable) -> torch.Tensor:
    """The combined score of all whole sequences, with the transition to the outside at the end: (S,)."""
    return combine(_recursion(scores, transitions, mask, combine)[-1], transitions)[-1]


def _best_tags(right: torch.Tensor, transitions: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The best sequences (T, B); `right` (T + 1, K, B) is the best score of what follows, from each tag on.

    Tags are chosen one after another, so that the result is one valid sequence even if several are the best.
    """

    def step(state: Tensors, column: Tensors, weights: Tensors) -> Stepped:
        (before,), (follows, is_word) = state, column
        onward = weights[0][:, :-1].gather(0, before.expand(1, *follows.shape)).squeeze(0)  # (C, B)
        best = (onward + follows).argmax(0)
        return (torch.where(is_word, best, before),), best

    outside = torch.full_like(right[0, 0], len(transitions) - 1, dtype=torch.long)
    return scan(step, [outside], [right[:-1, :-1], mask], [transitions])[1]
