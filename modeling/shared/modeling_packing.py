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
"""Attention without padding: the real tokens of a padded batch, packed into one row.

The longest row of a batch determines its number of columns. With random lengths, half of the batch is padding, and
every layer computes it. Only attention needs to know which token belongs to which sequence. So the real tokens of all
rows are laid end to end, everything else runs on that one row, and attention runs within each sequence:

- a flash kernel, or on a GPU torch's own (modeling_varlen.py), takes all sequences at once, with their boundaries;
- on the CPU, sequences of equal length are computed together;
- on other devices, where many small calls would cost more than they save, sequences are padded for attention only.

Rows that hold several sequences (`find_starts`) are separated in the same way.

Letters: B rows, T columns, N real tokens, S sequences (S = B unless rows are packed), L the length of the longest,
A heads, D dimensions of a head.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

import torch
import torch.nn as nn
from transformers.cache_utils import Cache
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs
from transformers.utils.generic import is_flash_attention_requested
from transformers.utils.import_utils import is_tracing

from .modeling_cache import cached_tokens, is_paged
from .modeling_losses import IGNORED
from .modeling_onednn import has_amx, product_type
from .modeling_static import is_opaque
from .modeling_varlen import VARLEN, VARLEN_DEVICES, takes_varlen


GROUPED_DEVICES = ("cpu",)


@dataclass(frozen=True)
class PackedSequences:
    """The real tokens of a (B, T) batch, sorted by the length of their sequence, shortest first.

    Attributes:
        shape: (B, T) of the padded batch.
        tokens: (N,) the index of each real token in the flattened batch.
        starts: (S,) the index in `tokens` of each sequence's first token.
        rows: (B,) the first sequence of each row.
        groups: (number of sequences, their length) of each length, shortest first.
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
        """(N, ...) -> (B, T, ...), with zeros at padding."""
        rows, columns = self.shape
        padded = packed.new_zeros(rows * columns, *packed.shape[1:])
        return padded.index_copy(0, self.tokens.to(packed.device), packed).unflatten(0, (rows, columns))

    def first_tokens(self, packed: torch.Tensor) -> torch.Tensor:
        """(N, ...) -> (S, ...), the first token of each sequence."""
        return packed.index_select(0, self.starts.to(packed.device))

    def last_tokens(self, packed: torch.Tensor) -> torch.Tensor:
        """(N, ...) -> (S, ...), the last token of each sequence."""
        return packed.index_select(0, (self.boundaries[1:] - 1).to(packed.device))

    def to_rows(self, states: torch.Tensor) -> torch.Tensor:
        """(S, ...), one state per sequence -> (B, 1, ...), the state of the first sequence of each row."""
        return states.index_select(0, self.rows.to(states.device)).unsqueeze(1)

    @property
    def has_packed_rows(self) -> bool:
        """Whether some rows hold several sequences."""
        return len(self.starts) != self.shape[0]

    @property
    def longest(self) -> int:
        return self.groups[-1][1]

    @cached_property
    def mask(self) -> torch.Tensor:
        """(S, L) booleans: whether the sequence has a token in that column."""
        return torch.arange(self.longest, device=self.starts.device) < self.boundaries.diff().unsqueeze(1)

    def grid_mask(self, module: nn.Module, one_query: bool) -> torch.Tensor:
        """(S, 1, 1 or L, L) booleans: which tokens of its sequence each token of a layer sees."""
        mask = self.mask[:, None, None, :]
        if not module.is_causal or one_query:  # a single query is its sequence's last token, or sees all
            return mask
        return mask & torch.ones(self.longest, self.longest, dtype=torch.bool, device=mask.device).tril()

    @cached_property
    def boundaries(self) -> torch.Tensor:
        """(S + 1,) where each sequence begins and where the last one ends, as flash kernels take it."""
        return nn.functional.pad(self.starts, (0, 1), value=len(self.tokens)).to(torch.int32)

    @cached_property
    def cells(self) -> torch.Tensor:
        """(N,) the index of each token in a flattened (S, L) grid with one sequence per row."""
        lengths = torch.tensor([length for count, length in self.groups for _ in range(count)])
        mask = torch.arange(self.longest) < lengths.unsqueeze(1)  # as `mask`, on the CPU, which waits for no device
        return mask.flatten().nonzero().squeeze(1).to(self.starts.device)


def find_starts(
    inputs: torch.Tensor,
    attention_mask: torch.Tensor | None,
    position_ids: torch.Tensor | None,
    cache: Cache | None,
    kwargs: dict,
) -> torch.Tensor | None:
    """(B or 1, T) booleans, True where a sequence of a row begins, or None if each row is one sequence.

    Boundaries are those of transformers' DataCollatorWithFlattening, which are taken out of `kwargs`: `cu_seq_lens_q`
    (S + 1,), where the sequences of a batch of one row begin and where the last one ends, or `seq_idx` (B, T), the
    number of each token's sequence. As in transformers' flash attention, the positions of a batch of one row without
    padding may show them, too. Anywhere else, positions are nothing but positions.

    Raises ValueError for boundaries that do not fit the tokens, or beside a mask over pairs or cached tokens.
    """
    if is_paged(cache):
        return None
    ends, ends_of_keys, numbers = (kwargs.pop(name, None) for name in ("cu_seq_lens_q", "cu_seq_lens_k", "seq_idx"))
    past = cached_tokens(cache)
    if ends is None and ends_of_keys is None and numbers is None:
        is_one_row = inputs.shape[0] == 1 and position_ids is not None and not torch.is_tensor(past) and past == 0
        return restarts(position_ids, attention_mask) if is_one_row else None
    _check_boundaries(inputs, attention_mask, past, ends, ends_of_keys, numbers)
    columns = torch.arange(inputs.shape[1], device=inputs.device)
    starts = (columns == 0).unsqueeze(0)  # (1, T)
    if ends is not None:
        ends = ends.to(inputs.device)
        starts = starts | _changes(torch.searchsorted(ends, columns.to(ends.dtype), right=True).unsqueeze(0))
    if numbers is not None:
        starts = starts | _changes(numbers.to(inputs.device))
    return starts


def _changes(numbers: torch.Tensor) -> torch.Tensor:
    """(B, T) numbers -> (B, T) booleans: True in each column, but the first, that differs from the one before it."""
    return nn.functional.pad(numbers[:, 1:] != numbers[:, :-1], (1, 0))


def _check_boundaries(
    inputs: torch.Tensor,
    attention_mask: torch.Tensor | None,
    past: int | torch.Tensor,
    ends: torch.Tensor | None,
    ends_of_keys: torch.Tensor | None,
    numbers: torch.Tensor | None,
) -> None:
    tokens = tuple(inputs.shape[:2])
    if attention_mask is not None and (not torch.is_tensor(attention_mask) or attention_mask.dim() != 2):
        raise ValueError("The mask says which pairs of tokens see each other: leave out cu_seq_lens_q and seq_idx.")
    if torch.is_tensor(past) or past > 0:
        raise ValueError("A cache that holds tokens holds one sequence a row: leave out cu_seq_lens_q and seq_idx.")
    if numbers is not None and tuple(numbers.shape) != tokens:
        raise ValueError(f"seq_idx is {tuple(numbers.shape)}, but must be {tokens}: one number for each token.")
    if ends is None and ends_of_keys is None:
        return
    if tokens[0] != 1:
        raise ValueError(f"cu_seq_lens_q divides a batch of one row, but this one has {tokens[0]}: give seq_idx.")
    valid = ends is not None and (is_opaque(ends) or _divides(ends.tolist(), tokens[1]))
    if not valid or not (ends_of_keys is None or is_opaque(ends) or ends.tolist() == ends_of_keys.tolist()):
        raise ValueError(
            f"cu_seq_lens_q is {ends} and cu_seq_lens_k is {ends_of_keys}, but both must be the same rising numbers "
            f"from 0 to {tokens[1]}, the tokens of the row."
        )


def _divides(ends: list[int], tokens: int) -> bool:
    return len(ends) > 1 and (ends[0], ends[-1]) == (0, tokens) and ends == sorted(ends)


def restarts(position_ids: torch.Tensor, attention_mask: torch.Tensor | None) -> torch.Tensor | None:
    """(1, T) booleans, True where (1, T) positions begin again, or None unless they are runs that begin alike.

    A run is m, m + 1, ... with the same m, mostly 0, for all of them. Runs of one token only are none.
    """
    if attention_mask is not None and (not torch.is_tensor(attention_mask) or attention_mask.dim() != 2):
        return None
    if position_ids.shape[1] < 2:
        return None
    begins = position_ids == position_ids[:, :1]
    follows = position_ids[:, 1:] == position_ids[:, :-1] + 1
    are_runs = (begins[:, 1:] | follows).all() & follows.any()
    if attention_mask is not None:
        are_runs = are_runs & (attention_mask != 0).all().to(are_runs.device)
    starts = begins & (are_runs | (torch.arange(begins.shape[1], device=begins.device) == 0))
    return starts if is_opaque(position_ids) or is_opaque(attention_mask) or int(starts.sum()) > 1 else None


def find_positions(
    inputs: torch.Tensor,
    position_ids: torch.Tensor | None,
    starts: torch.Tensor | None,
    cache: Cache | None,
    longest: int,
) -> torch.Tensor:
    """(B or 1, T) positions: the user's, or those that count from each of the `starts`, or on from the cache.

    Raises ValueError for positions that are not below `longest`, those of the model.
    """
    columns, past = torch.arange(inputs.shape[1], device=inputs.device), cached_tokens(cache)
    if position_ids is None and starts is not None:
        position_ids = columns - torch.where(starts, columns, 0).cummax(-1).values
    values = past if position_ids is None else position_ids
    on_device = torch.is_tensor(values) and (is_opaque(values) or values.device.type != "cpu")
    is_checked = not (on_device or is_tracing(inputs))  # reading the values would make the program wait for the device
    reached = past + inputs.shape[1]
    if position_ids is None:
        position_ids = (columns + past).unsqueeze(0)
    elif is_checked:  # a packed row may be longer than its sequences
        reached = int(position_ids.max()) + 1 if position_ids.numel() else 0
    if is_checked and reached > longest:
        raise ValueError(
            f"The input reaches position {int(reached)} and the model has {longest}: pass truncation=True, "
            f"max_length={longest} to the tokenizer, cut the text into windows, or let generate make fewer new tokens."
        )
    return position_ids


def find_sequences(
    shape: tuple[int, int],
    device: torch.device,
    attention_mask: torch.Tensor | None,
    starts: torch.Tensor | None = None,
) -> PackedSequences | None:
    """The sequences of a batch, or None if packing would gain nothing: no padding and one sequence in each row.

    None, too, for a batch with padding on the left, because poolers read the first token of each row.

    Args:
        attention_mask: (B, T), zero at padding, or None.
        starts: (B or 1, T), True where a sequence begins, in column 0 among others; None if each row is one sequence.
    """
    rows, columns = shape
    real = torch.ones(shape, dtype=torch.bool) if attention_mask is None else attention_mask.cpu().bool()
    if (real.all() and starts is None) or not real[:, 0].all():
        return None
    # On the CPU: a GPU is waited for once, for the mask, and not for each count and each list below.
    starts = (torch.arange(columns) == 0).unsqueeze(0) if starts is None else starts.cpu()
    starts = starts.expand(shape)

    sequence = starts.flatten().cumsum(0) - 1  # (B * T,)
    tokens = real.flatten().nonzero().squeeze(1)  # (N,)
    count = int(starts.sum())
    lengths = torch.zeros(count, dtype=torch.long)
    lengths = lengths.index_add(0, sequence[tokens], torch.ones_like(tokens))
    lengths, order = lengths.sort(stable=True)
    rank = torch.empty_like(order).index_copy(0, order, torch.arange(count))
    tokens = tokens[rank[sequence[tokens]].argsort(stable=True)]
    all_lengths = lengths.tolist()
    empty = all_lengths.count(0)  # sequences of padding only, inside packed rows; sorted to the front
    lengths = lengths[empty:]
    return PackedSequences(
        shape=(rows, columns),
        tokens=tokens.to(device),
        starts=(lengths.cumsum(0) - lengths).to(device),
        rows=(rank[sequence[::columns]] - empty).to(device),
        groups=[(len(list(group)), length) for length, group in groupby(all_lengths[empty:])],
    )


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


def is_recorded(config, name: str, kwargs: dict) -> bool:
    """Whether the caller requests `hidden_states` or `attentions`, decided as `capture_outputs` does."""
    requested = kwargs.get(f"output_{name}", getattr(config, f"output_{name}", False))
    return requested is not None and requested is not False


def labels_need_padding(labels: torch.Tensor | None, attention_mask: torch.Tensor | None) -> bool:
    """Whether padding has a label, so that the loss needs its states; True if the values cannot be read."""
    if labels is None or attention_mask is None or attention_mask.dim() != 2:
        return False
    mask = attention_mask[:, -labels.shape[1] :]  # without the columns of a cache
    if mask.shape != labels.shape:
        return False  # the model raises an error for it
    return is_opaque(labels) or is_opaque(mask) or bool(((labels != IGNORED) & (mask == 0).to(labels.device)).any())


def predicts_from_padding(
    labels: torch.Tensor | None, shift_labels: torch.Tensor | None, attention_mask: torch.Tensor | None
) -> bool:
    """Whether a label is predicted from padding, so that the loss needs the states of padding."""
    targets = labels if shift_labels is None else shift_labels
    if targets is None or attention_mask is None or attention_mask.dim() != 2:
        return False
    mask = attention_mask[:, -targets.shape[1] :]  # without the columns of a cache
    if shift_labels is None:  # each label is predicted from the token before it, the first one from none
        mask = nn.functional.pad(mask[:, :-1], (1, 0), value=1)
    return labels_need_padding(targets, mask)


def states_to_predict_from(states: torch.Tensor, logits_to_keep: int | torch.Tensor) -> torch.Tensor:
    """Those of the (B, T, H) states for which a head computes logits.

    logits_to_keep: how many at the end of each row (0: all), (N,) positions of all rows, (B, N) positions of each row,
        or a (B, T) mask, which gives (number of true entries, H) states. transformers 5.23 has these forms, earlier
        releases the first two.
    """
    if isinstance(logits_to_keep, int):
        return states[:, -logits_to_keep:]
    if logits_to_keep.dim() < 2:
        return states[:, logits_to_keep]
    if logits_to_keep.dtype == torch.bool:
        return states[logits_to_keep]
    return states.take_along_dim(logits_to_keep[..., None], dim=1)


def attends_by_boundaries(config, device: torch.device) -> bool:
    """Whether the attention implementation takes all sequences at once, with their boundaries."""
    varlen = config._attn_implementation == VARLEN and device.type in VARLEN_DEVICES  # trf-ignore: TRF051
    return varlen or is_flash_attention_requested(config)


def attends_on_a_grid(config, device: torch.device) -> bool:
    """Whether `packed_attention` pads the sequences to an (S, L) grid, and needs a mask for it."""
    return not attends_by_boundaries(config, device) and device.type not in GROUPED_DEVICES


def attention_implementation(config, states: torch.Tensor, kwargs: dict, cache: Cache | None = None) -> str:
    """The name of the attention function: the configuration's, or "eager" where sdpa does not suit (..., H) states.

    sdpa returns no attention probabilities and takes no empty batch. In bfloat16 on the CPU, it is slower for one
    query, as in a step of generation, with dropout, for which it computes in float32, and, on processors without AMX,
    in its backward pass. The same holds for torch_varlen, which calls sdpa. A paged cache is updated by the
    configuration's function alone. `kwargs` are those of the attention function. Raises ValueError if attentions are
    requested and the configured implementation cannot return them.
    """
    implementation = config._attn_implementation
    recorded = is_recorded(config, "attentions", kwargs)
    if recorded and (is_flash_attention_requested(config) or implementation == "flex_attention"):  # trf-ignore: TRF051
        raise ValueError(
            f"output_attentions=True, but the attention {implementation!r} has none to show: call "
            'model.set_attn_implementation("eager") or ("sdpa") first.'
        )
    if implementation not in ("sdpa", VARLEN) or is_paged(cache):  # trf-ignore: TRF051
        return implementation
    suits = not recorded and (is_tracing(states) or _is_for_sdpa(states, kwargs["dropout"]))
    return implementation if suits else "eager"


def _is_for_sdpa(states: torch.Tensor, dropout: float) -> bool:
    slow = states.shape[-2] == 1 or dropout > 0 or (torch.is_grad_enabled() and not has_amx())
    return states.numel() > 0 and not (slow and states.device.type == "cpu" and product_type(states) == torch.bfloat16)


def split_heads(states: torch.Tensor, head_dim: int) -> torch.Tensor:
    """(..., A * D) -> (..., A, D), also for an empty batch. Under tensor parallelism, A is a process's heads.

    `unflatten` is not used, because it would write the traced sizes into TorchScript's ONNX graphs.
    """
    return states.reshape(*states.shape[:-1], states.shape[-1] // head_dim, head_dim)


def eager_attention_forward(
    module: nn.Module,
    query: torch.Tensor,  # (B, A, T, D)
    key: torch.Tensor,  # (B, A, P + T, D), P of them from a cache
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,  # (B, 1, T, P + T), floats to add, or True where visible; None: no padding
    scaling: float,
    dropout: float = 0.0,
    **kwargs: Unpack[TransformersKwargs],
) -> tuple[torch.Tensor, torch.Tensor]:
    """softmax(QK' / sqrt(D)) V written out; the only implementation that returns its probabilities."""
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
    """Attention within each sequence, and none across sequences.

    Args:
        query: (N, A, D), or (S, A, D) of one token of each sequence: any in an encoder, the last in a decoder.
        key, value: (N, A, D).
        attention_mask: the mask that transformers made of `sequences.mask`, if `attends_on_a_grid`.

    Returns: (N or S, A * D), the heads of each token of `query` joined.
    """
    by_boundaries = attends_by_boundaries(module.config, query.device)
    if by_boundaries and (is_flash_attention_requested(module.config) or takes_varlen(query, kwargs["dropout"])):
        attend = _attend_by_boundaries
    elif by_boundaries or attends_on_a_grid(module.config, query.device):
        attend = _attend_on_a_grid
        one_query = query.shape[0] != key.shape[0]
        kwargs["attention_mask"] = sequences.grid_mask(module, one_query) if by_boundaries else attention_mask
    else:
        attend = _attend_in_groups
    return attend(attention_interface, module, query, key, value, sequences, **kwargs)


def _attend_in_groups(attention_interface, module, query, key, value, sequences: PackedSequences, **kwargs):
    """One call for all sequences of the same length."""
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
    """One call for all sequences, padded to the longest of them."""
    shape, cells = sequences.mask.shape, sequences.cells.to(key.device)

    def to_grid(states: torch.Tensor) -> torch.Tensor:
        """(N, A, D) -> (S, A, L, D)."""
        grid = states.new_zeros(shape[0] * shape[1], *states.shape[1:]).index_copy(0, cells, states)
        return grid.unflatten(0, shape).transpose(1, 2)

    one_query = query.shape[0] != key.shape[0]
    query = query.unsqueeze(2) if one_query else to_grid(query)  # (S, A, 1 or L, D)
    output, _ = attention_interface(module, query, to_grid(key), to_grid(value), attention_mask, **kwargs)
    output = output.flatten(2).flatten(0, 1)  # (S or S * L, A * D)
    return output if one_query else output.index_select(0, cells)


def _attend_by_boundaries(attention_interface, module, query, key, value, sequences: PackedSequences, **kwargs):
    """One call of a kernel that takes all sequences end to end, with their boundaries."""
    boundaries, longest = sequences.boundaries.to(key.device), sequences.longest
    query_boundaries, most_queries = boundaries, longest
    if query.shape[0] != key.shape[0]:  # one query per sequence
        query_boundaries, most_queries = torch.arange(len(boundaries), dtype=torch.int32, device=key.device), 1
    kwargs |= {"cu_seq_lens_q": query_boundaries, "cu_seq_lens_k": boundaries}
    kwargs |= {"max_length_q": most_queries, "max_length_k": longest}
    states = (state.transpose(0, 1).unsqueeze(0) for state in (query, key, value))  # (1, A, N, D)
    output, _ = attention_interface(module, *states, None, **kwargs)  # (1, N, A, D)
    return output.flatten(2).squeeze(0)
