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
"""Attention without padding: a padded batch as one row of its real tokens.

A batch of B rows is T columns wide because its longest row is; with random lengths half of it is padding, and every
layer computes it. Only attention needs to know which token belongs to which sequence. So the real tokens of all rows
are laid end to end, everything else runs on that one row, and attention runs over the sequences:

- in a flash kernel, all at once, with their boundaries;
- on CPU, those of equal length together;
- elsewhere, where many small calls would cost more than they save, padded again for the attention alone.

Rows that hold several sequences (`position_ids` that restart) are taken apart the same way.

Letters: B rows, T columns, N real tokens, S sequences (S = B unless rows are packed), L the length of the longest,
A heads, D dimensions of a head.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

import torch
import torch.nn as nn
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs
from transformers.utils.generic import is_flash_attention_requested
from transformers.utils.import_utils import is_tracing

from .modeling_losses import IGNORED


GROUPED_DEVICES = ("cpu",)


@dataclass(frozen=True)
class PackedSequences:
    """The real tokens of a (B, T) batch, sorted by the length of their sequence, shortest first.

    Attributes:
        shape: (B, T) of the padded batch.
        tokens: (N,) the index of each real token in the flattened batch.
        starts: (S,) the index in `tokens` of each sequence's first token.
        rows: (B,) the sequence that each row begins with.
        groups: (number of sequences, their length), in order.
    """

    shape: tuple[int, int]
    tokens: torch.Tensor
    starts: torch.Tensor
    rows: torch.Tensor
    groups: list[tuple[int, int]]

    def pack(self, padded: torch.Tensor) -> torch.Tensor:
        """(B, T, ...) -> (N, ...)."""
        return padded.flatten(0, 1).index_select(0, self.tokens.to(padded.device))

    def pad(self, packed: torch.Tensor) -> torch.Tensor:
        """(N, ...) -> (B, T, ...), zeros where the padding was."""
        rows, columns = self.shape
        padded = packed.new_zeros(rows * columns, *packed.shape[1:])
        return padded.index_copy(0, self.tokens.to(packed.device), packed).unflatten(0, (rows, columns))

    def first_tokens(self, packed: torch.Tensor) -> torch.Tensor:
        """(N, ...) -> (S, ...), the first token of each sequence."""
        return packed.index_select(0, self.starts.to(packed.device))

    def last_tokens(self, packed: torch.Tensor) -> torch.Tensor:
        """(N, ...) -> (S, ...), the last token of each sequence."""
        return packed.index_select(0, (self.boundaries[1:] - 1).to(packed.device))

    def of_rows(self, tokens: torch.Tensor) -> torch.Tensor:
        """(S, ...) -> (B, 1, ...), from one token a sequence that of the sequence which each row begins with."""
        return tokens.index_select(0, self.rows.to(tokens.device)).unsqueeze(1)

    @property
    def packs_rows(self) -> bool:
        """Whether some rows hold several sequences."""
        return len(self.starts) != self.shape[0]

    @property
    def longest(self) -> int:
        return self.groups[-1][1]

    @cached_property
    def mask(self) -> torch.Tensor:
        """(S, L), whether the sequence has that many tokens."""
        return torch.arange(self.longest, device=self.starts.device) < self.boundaries.diff().unsqueeze(1)

    @cached_property
    def boundaries(self) -> torch.Tensor:
        """(S + 1,), where each sequence begins and the last one ends, as flash kernels take it."""
        return nn.functional.pad(self.starts, (0, 1), value=len(self.tokens)).to(torch.int32)

    @cached_property
    def cells(self) -> torch.Tensor:
        """(N,), the place of each token in a flattened (S, L) grid with one sequence a row."""
        return self.mask.flatten().nonzero().squeeze(1)


def is_opaque(tensor: torch.Tensor | None) -> bool:
    """Whether no decision may depend on the values: while a graph is traced, and where `torch.vmap` maps over them."""
    if tensor is None or is_tracing(tensor):
        return tensor is not None
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):  # once for each of vmap, grad, ...
        if torch._C._functorch.is_batchedtensor(tensor):
            return True
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return False


def sequence_starts(position_ids: torch.Tensor) -> torch.Tensor:
    """(B, T) positions -> (B, T) booleans: whether a sequence begins there, at column 0 and at position 0 after it."""
    starts = position_ids == 0
    starts[:, 0] = True
    return starts


def holds_packed_rows(position_ids: torch.Tensor | None, attention_mask: torch.Tensor | None) -> bool:
    """Whether the user's position ids restart between real tokens. Where nobody may look, any may."""
    if position_ids is None or is_opaque(position_ids) or is_opaque(attention_mask):
        return position_ids is not None
    restarts = position_ids[:, 1:] == 0
    if attention_mask is not None and attention_mask.dim() == 2:  # what padding at the ends has for positions is moot
        real = (attention_mask != 0).to(restarts.device)
        restarts = restarts & real.cummax(-1).values[:, :-1] & real.flip(-1).cummax(-1).values.flip(-1)[:, 1:]
    return bool(restarts.any())


def find_sequences(
    shape: tuple[int, int],
    device: torch.device,
    attention_mask: torch.Tensor | None,
    position_ids: torch.Tensor | None,
) -> PackedSequences | None:
    """The packed layout of a batch, or None where there is nothing to gain: no padding and no packed rows.

    Args:
        attention_mask: (B, T), zero at padding, or None. A row must not begin with padding: its first token is what
            poolers read, so such a batch (left padding) is left as it is.
        position_ids: (B or 1, T) as given by the user, or None.
    """
    rows, columns = shape
    packed_rows = holds_packed_rows(position_ids, attention_mask)
    positions = position_ids.to(device) if packed_rows else torch.arange(columns, device=device).unsqueeze(0)
    starts = sequence_starts(positions).expand(shape)
    real = (
        torch.ones(shape, dtype=torch.bool, device=device)
        if attention_mask is None
        else attention_mask.to(device).bool()
    )
    full, from_the_first = torch.stack([real.all(), real[:, 0].all()]).tolist()  # one wait for the device, not two
    if (full and not packed_rows) or not from_the_first:
        return None

    sequence = starts.flatten().cumsum(0) - 1  # (B * T,)
    tokens = real.flatten().nonzero().squeeze(1)  # (N,)
    count = int(starts.sum()) if packed_rows else rows
    lengths = torch.zeros(count, dtype=torch.long, device=device)
    lengths = lengths.index_add(0, sequence[tokens], torch.ones_like(tokens))
    lengths, order = lengths.sort(stable=True)
    rank = torch.empty_like(order).index_copy(0, order, torch.arange(count, device=device))
    tokens = tokens[rank[sequence[tokens]].argsort(stable=True)]
    known_lengths = lengths.tolist()
    empty = known_lengths.count(0)  # sequences of nothing but padding, inside packed rows; the sort put them first
    lengths = lengths[empty:]
    return PackedSequences(
        shape=(rows, columns),
        tokens=tokens,
        starts=lengths.cumsum(0) - lengths,
        rows=rank[sequence[::columns]] - empty,
        groups=[(len(list(same)), length) for length, same in groupby(known_lengths[empty:])],
    )


def check_shapes(
    inputs: torch.Tensor | None,
    attention_mask: torch.Tensor | None = None,
    token_type_ids: torch.Tensor | None = None,
    position_ids: torch.Tensor | None = None,
    labels: torch.Tensor | None = None,
    past: int = 0,
) -> None:
    """Raises ValueError for what does not fit the tokens, and would be read askew.

    Args:
        inputs: (B, T) token ids or (B, T, H) embeddings.
        attention_mask: (B, P + T). What is not a tensor, or has four dimensions, is the attention function's affair.
        token_type_ids, position_ids: what broadcasts against (B, T).
        labels: (B, T).
        past: P, the tokens that a cache holds.
    """
    if inputs is None or is_tracing(inputs):  # that there are none, the model will say
        return
    tokens = tuple(inputs.shape[:2])
    masks_pairs = attention_mask is not None and (not torch.is_tensor(attention_mask) or attention_mask.dim() == 4)
    wanted = {
        "attention_mask": (None if masks_pairs else attention_mask, (tokens[0], past + tokens[1])),
        "labels": (labels, tokens),
        "token_type_ids": (token_type_ids, tokens),
        "position_ids": (position_ids, tokens),
    }
    for name, (given, shape) in wanted.items():
        if given is None or given.shape == shape or (name.endswith("_ids") and _spreads_over(given, shape)):
            continue
        after = f", after {past} in the cache" if past else ""
        raise ValueError(f"{name} is {tuple(given.shape)}, but must be {shape}: the tokens are {tokens}{after}.")


def _spreads_over(given: torch.Tensor, shape: tuple[int, ...]) -> bool:
    """Whether the tensor broadcasts against the shape without changing it."""
    sizes = zip(reversed(given.shape), reversed(shape), strict=False)
    return 0 < given.dim() <= len(shape) and all(size in (1, whole) for size, whole in sizes)


def check_choices(inputs: torch.Tensor, **given: torch.Tensor | None) -> None:
    """Raises ValueError for a tensor of three dimensions that are not those of the choices, (B, K, T)."""
    choices = tuple(inputs.shape[:3])
    for name, tensor in given.items():
        if tensor is not None and tensor.dim() == 3 and tensor.shape != choices:
            raise ValueError(
                f"{name} is {tuple(tensor.shape)}, but must be {choices}, as the tokens of the choices are."
            )


def is_recorded(config, name: str, kwargs: dict) -> bool:
    """Whether the caller wants `hidden_states` or `attentions`, the way `capture_outputs` decides it."""
    wanted = kwargs.get(f"output_{name}", getattr(config, f"output_{name}", False))
    return wanted is not None and wanted is not False


def labels_need_padding(labels: torch.Tensor | None, attention_mask: torch.Tensor | None) -> bool:
    """Whether a label stands on padding, so that the loss needs the states there. Where nobody may look, one may."""
    if labels is None or attention_mask is None or attention_mask.dim() != 2:
        return False
    mask = attention_mask[:, -labels.shape[1] :]  # without what a cache holds
    if mask.shape != labels.shape:
        return False  # the model will refuse it
    return is_opaque(labels) or is_opaque(mask) or bool(((labels != IGNORED) & (mask == 0).to(labels.device)).any())


def attends_on_a_grid(config, device: torch.device) -> bool:
    """Whether `packed_attention` pads the sequences again, and wants a mask for that (S, L) grid."""
    return not is_flash_attention_requested(config) and device.type not in GROUPED_DEVICES


def attention_implementation(config, states: torch.Tensor, kwargs: dict) -> str:
    """The configuration's attention function; the eager one where sdpa shows no attentions, or takes no empty batch.

    Raises ValueError where attentions are asked for and only another setting can give them.
    """
    implementation = config._attn_implementation
    shows = is_recorded(config, "attentions", kwargs)
    if shows and (is_flash_attention_requested(config) or implementation == "flex_attention"):  # trf-ignore: TRF051
        raise ValueError(
            f"output_attentions=True, but the attention {implementation!r} has none to show: call "
            'model.set_attn_implementation("eager") first, or "sdpa".'
        )
    empty = not is_tracing(states) and not states.numel()
    return "eager" if implementation == "sdpa" and (shows or empty) else implementation  # trf-ignore: TRF051


def split_heads(states: torch.Tensor, head_dim: int) -> torch.Tensor:
    """(..., A * D) -> (..., A, D), of a batch without rows too; under tensor parallelism A is a process's share.

    Not by `unflatten`, which would write the traced sizes into TorchScript's ONNX graphs.
    """
    return states.reshape(*states.shape[:-1], states.shape[-1] // head_dim, head_dim)


def eager_attention_forward(
    module: nn.Module,
    query: torch.Tensor,  # (B, A, T, D)
    key: torch.Tensor,  # (B, A, P + T, D), P of them from a cache
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,  # (B, 1, T, P + T), added, or True for what is seen; None: no padding
    scaling: float,
    dropout: float = 0.0,
    **kwargs: Unpack[TransformersKwargs],
) -> tuple[torch.Tensor, torch.Tensor]:
    """softmax(QK' / sqrt(D)) V written out: the one implementation that shows its probabilities."""
    scores = query @ key.transpose(2, 3) * scaling  # (B, A, T, P + T)
    if attention_mask is None and module.is_causal and query.shape[2] > 1:
        attention_mask = torch.ones(scores.shape[2:], dtype=torch.bool, device=scores.device).tril()
    if attention_mask is not None and attention_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attention_mask, torch.finfo(scores.dtype).min)
    elif attention_mask is not None:
        scores = scores + attention_mask
    probabilities = scores.softmax(-1)
    probabilities = nn.functional.dropout(probabilities, p=dropout, training=module.training)
    return (probabilities @ value).transpose(1, 2).contiguous(), probabilities  # (B, T, A, D)


def packed_attention(
    attention_interface: Callable,
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    sequences: PackedSequences,
    attention_mask: torch.Tensor | None,
    **kwargs,
) -> torch.Tensor:
    """Attention inside each sequence, none across.

    Args:
        query: (N, A, D), or (S, A, D) when one token of each sequence asks: any in an encoder, the last in a decoder.
        key, value: (N, A, D).
        attention_mask: what the attention implementation makes of `sequences.mask`, where `attends_on_a_grid`.

    Returns: the same shape as `query`, heads joined: (N or S, A * D).
    """
    if is_flash_attention_requested(module.config):
        attend = _attend_by_boundaries
    elif attends_on_a_grid(module.config, query.device):
        attend = _attend_on_a_grid
        kwargs["attention_mask"] = attention_mask
    else:
        attend = _attend_in_groups
    return attend(attention_interface, module, query, key, value, sequences, **kwargs)


def _attend_in_groups(attention_interface, module, query, key, value, sequences: PackedSequences, **kwargs):
    """One call for all sequences of one length."""
    one_query = query.shape[0] != key.shape[0]
    keys = [count * length for count, length in sequences.groups]
    queries = [count for count, _ in sequences.groups] if one_query else keys
    parts = zip(sequences.groups, query.split(queries), key.split(keys), value.split(keys), strict=True)
    outputs = []
    for (count, _), *states in parts:
        states = (state.unflatten(0, (count, -1)).transpose(1, 2) for state in states)  # (count, A, 1 or length, D)
        output, _ = attention_interface(module, *states, None, **kwargs)  # (count, 1 or length, A, D)
        outputs.append(output.flatten(2).flatten(0, 1))
    return torch.cat(outputs)


def _attend_on_a_grid(
    attention_interface, module, query, key, value, sequences: PackedSequences, attention_mask, **kwargs
):
    """One call for all sequences, padded to the longest."""
    shape, cells = sequences.mask.shape, sequences.cells.to(key.device)

    def spread(states: torch.Tensor) -> torch.Tensor:
        """(N, A, D) -> (S, A, L, D)."""
        grid = states.new_zeros(shape[0] * shape[1], *states.shape[1:]).index_copy(0, cells, states)
        return grid.unflatten(0, shape).transpose(1, 2)

    one_query = query.shape[0] != key.shape[0]
    asking = query.unsqueeze(2) if one_query else spread(query)  # (S, A, 1 or L, D)
    output, _ = attention_interface(module, asking, spread(key), spread(value), attention_mask, **kwargs)
    output = output.flatten(2).flatten(0, 1)  # (S or S * L, A * D)
    return output if one_query else output.index_select(0, cells)


def _attend_by_boundaries(attention_interface, module, query, key, value, sequences: PackedSequences, **kwargs):
    """One call of a flash attention kernel, which takes all sequences end to end and where each begins."""
    known, longest = sequences.boundaries.to(key.device), sequences.longest
    asked, most = known, longest
    if query.shape[0] != key.shape[0]:  # one token of each sequence asks
        asked, most = torch.arange(len(known), dtype=torch.int32, device=key.device), 1
    kwargs |= {"cu_seq_lens_q": asked, "cu_seq_lens_k": known, "max_length_q": most, "max_length_k": longest}
    states = (state.transpose(0, 1).unsqueeze(0) for state in (query, key, value))  # (1, A, N, D)
    output, _ = attention_interface(module, *states, None, **kwargs)  # (1, N, A, D)
    return output.flatten(2).squeeze(0)
