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
"""Whether padding is computed, decided once a call by `choose_layout`, and what follows from it in each place.

The tokens of a batch enter the model, attend to each other, and leave again. They enter and leave in rows and columns.
In between they keep these (`PaddedLayout`), or are one row without padding (`PackedLayout`, see modeling_packing.py).
Where a caller reads one token of each row, the last layer computes only that one, in either layout.

Letters: B rows, T columns, P tokens in a cache, N real tokens, S sequences (S = B unless rows are packed), L the
length of the longest, H hidden size, A heads, D dimensions of a head.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
import torch.nn as nn
import torch.nn.modules.module as every_module
from transformers.cache_utils import Cache
from transformers.configuration_utils import PreTrainedConfig
from transformers.masking_utils import packed_sequence_mask_function
from transformers.modeling_utils import PreTrainedModel
from transformers.utils.generic import is_flash_attention_requested
from transformers.utils.import_utils import is_tracing

from .modeling_packing import (
    PackedSequences,
    attends_on_a_grid,
    find_sequences,
    holds_packed_rows,
    is_opaque,
    packed_attention,
    sequence_starts,
)


# Where hooks come from that take states of any shape: they record, place, gather or watch what passes as a whole.
INDIFFERENT = ("accelerate", "deepspeed", "peft.mixed_model", "peft.peft_model", "peft.utils", "torch", "transformers")
PARTICULAR = ("transformers.integrations.neftune",)  # its noise is scaled by the columns
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")  # of a module


@dataclass(frozen=True)
class PaddedLayout:
    """States in rows and columns, (B, T, ...), as the batch came: padding is computed.

    Attributes:
        attention_mask: as the user gave it: (B, P + T), zero at padding, with P tokens in front of the row in a cache;
            or for each pair of tokens; or None.
        position_ids: (B or 1, T) as the user gave them, or None.
        token: the one token of each row whose state leaves; None where all states leave.
        last_columns: (B,) where the last token of each row is, if that is the one.
        zeroes_padding: whether the states of padding are set to zero in the end.
        alone: whether a layer computes that one token alone.
    """

    attention_mask: torch.Tensor | None
    position_ids: torch.Tensor | None
    token: Literal["first", "last"] | None = None
    last_columns: torch.Tensor | None = None
    zeroes_padding: bool = False
    alone: bool = False

    def enter(self, padded: torch.Tensor | None) -> torch.Tensor | None:
        """(B or 1, T, ...) -> the same; what is not there stays away."""
        return padded

    def leave(self, states: torch.Tensor) -> torch.Tensor:
        """(B, T, ...) -> the same, or (B, 1, ...) of the one token, unless the last layer gave it alone."""
        return states if self.token is None or self.alone else self._pick(states)

    def queries(self, states: torch.Tensor) -> torch.Tensor:
        """(B, T, ...) -> the states that a layer computes anew: the same, or (B, 1, ...) of the one token."""
        return self._pick(states) if self.alone else states

    def _pick(self, states: torch.Tensor) -> torch.Tensor:
        """(B, T, ...) -> (B, 1, ...)."""
        if self.token == "first":
            return states[:, :1]
        rows = torch.arange(states.shape[0], device=states.device)
        return states[rows, self.last_columns.to(states.device)].unsqueeze(1)

    def for_last_layer(self, mask: Any) -> tuple["PaddedLayout", Any]:
        """The layout and the mask of the last layer, which computes the one token alone if the mask allows it."""
        if self.token is None or not (mask is None or (torch.is_tensor(mask) and mask.dim() == 4)):
            return self, mask  # flash and flex attention's masks cannot be cut down to one query
        if mask is not None and self.token == "first":
            mask = mask[:, :, :1]  # (B, 1, 1, P + T)
        elif mask is not None:
            queries_first = mask.expand(self.last_columns.shape[0], -1, -1, -1).transpose(1, 2)  # (B, T, 1, P + T)
            mask = self._pick(queries_first).transpose(1, 2)
        zeroes_padding = self.zeroes_padding and self.token == "first"  # a last token is not padding
        return replace(self, alone=True, zeroes_padding=zeroes_padding), mask

    def create_mask(
        self, create: Callable, config: PreTrainedConfig, states: torch.Tensor, cache: Cache | None
    ) -> Any:
        """What the attention implementation takes as a mask, padding and packed rows kept apart; None for no mask.

        Args:
            create: transformers' function that creates the masks of an encoder, or of a decoder.
            states: (B, T, H), of which only shape, type and device count.
        """
        overlay = None
        position_ids = self.position_ids if cache is None else None  # a cache holds one sequence a row
        if holds_packed_rows(position_ids, self.attention_mask):
            overlay = _packed_rows_overlay(config, position_ids.expand(states.shape[:2]))
        elif is_opaque(self.attention_mask) and not is_tracing(self.attention_mask):
            overlay = _hides_nothing  # without one, transformers looks whether the mask hides anything
        return create(
            config=config,
            inputs_embeds=states,
            attention_mask=self.attention_mask,
            past_key_values=cache,
            and_mask_function=overlay,
        )

    def attend(
        self,
        attention_interface: Callable,
        module: nn.Module,
        query: torch.Tensor,  # (B, 1 or T, A, D)
        key: torch.Tensor,  # (B, T, A, D)
        value: torch.Tensor,
        mask: Any,
        cache: Cache | None,
        **kwargs,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """(B, 1 or T, A * D) and, where the implementation shows them, probabilities (B, A, 1 or T, P + T)."""
        query, key, value = (state.transpose(1, 2) for state in (query, key, value))  # (B, A, T, D)
        if cache is not None:
            key, value = cache.update(key, value, module.layer_idx)  # (B, A, P + T, D)
        output, probabilities = attention_interface(module, query, key, value, mask, **kwargs)
        return output.flatten(2), probabilities

    def zero_padding(self, states: torch.Tensor) -> torch.Tensor:
        """(B, T, H), or (B, 1, H) of first tokens -> the same, zero at padding if it shall be."""
        mask = self.attention_mask
        if not self.zeroes_padding or mask is None or mask.dim() != 2:
            return states
        return states.masked_fill((mask[:, : states.shape[1], None] == 0).to(states.device), 0)


@dataclass(frozen=True)
class PackedLayout:
    """The real tokens of a batch as one row, (N, ...): padding is not computed, and only attention sees sequences.

    The methods are those of `PaddedLayout`. There is no cache.

    Attributes:
        sequences: which tokens these are.
        padded: the layout of the batch as it came.
        alone: whether a layer computes one token of each sequence alone.
    """

    sequences: PackedSequences
    padded: PaddedLayout
    alone: bool = False

    def enter(self, padded: torch.Tensor | None) -> torch.Tensor | None:
        """(B or 1, T, ...) -> (N, ...)."""
        return None if padded is None else self.sequences.pack(padded.expand(*self.sequences.shape, *padded.shape[2:]))

    def leave(self, states: torch.Tensor) -> torch.Tensor:
        """(N, ...) -> (B, T, ...) with zeros at padding; of one token, (N, ...) or (S, ...) -> (B, 1, ...)."""
        return self.sequences.of_rows(states) if self.alone else self.padded.leave(self.sequences.pad(states))

    def queries(self, states: torch.Tensor) -> torch.Tensor:
        """(N, ...) -> the same, or (S, ...) of one token of each sequence."""
        if not self.alone:
            return states
        first = self.padded.token == "first"
        return self.sequences.first_tokens(states) if first else self.sequences.last_tokens(states)

    def for_last_layer(self, mask: torch.Tensor | None) -> tuple["PackedLayout", torch.Tensor | None]:
        token = self.padded.token
        if token is None or (token == "last" and self.sequences.packs_rows):  # `of_rows` has the first of several
            return self, mask
        if mask is not None:
            mask = mask[:, :, :1] if token == "first" else mask[:, :, -1:]  # (S, 1, 1, L)
        return replace(self, alone=True), mask

    def create_mask(
        self, create: Callable, config: PreTrainedConfig, states: torch.Tensor, cache: None
    ) -> torch.Tensor | None:
        """A mask of the (S, L) grid, or None where attention takes the sequences otherwise."""
        if not attends_on_a_grid(config, states.device):
            return None
        mask = self.sequences.mask
        states = states[:1].expand(*mask.shape, -1)  # only shape, type and device count
        return create(config=config, inputs_embeds=states, attention_mask=mask, past_key_values=cache)

    def attend(
        self,
        attention_interface: Callable,
        module: nn.Module,
        query: torch.Tensor,  # (N, A, D), or (S, A, D) when one token of each sequence asks
        key: torch.Tensor,  # (N, A, D)
        value: torch.Tensor,
        mask: torch.Tensor | None,
        cache: None,
        **kwargs,
    ) -> tuple[torch.Tensor, None]:
        """(N or S, A * D), and no probabilities."""
        return packed_attention(attention_interface, module, query, key, value, self.sequences, mask, **kwargs), None

    def zero_padding(self, states: torch.Tensor) -> torch.Tensor:
        """(..., H) -> the same: padding is not there, or left as zeros."""
        return states


Layout = PaddedLayout | PackedLayout
ROWS_AND_COLUMNS = PaddedLayout(attention_mask=None, position_ids=None)  # of a layer that is called by itself


def choose_layout(
    model: PreTrainedModel,
    inputs: torch.Tensor,
    attention_mask: torch.Tensor | None,
    position_ids: torch.Tensor | None,
    unpad: bool | None,
    token: Literal["first", "last"] | None,
    uses_cache: bool,
    records: bool,
) -> Layout:
    """Decides, once a call, whether padding is computed, and whether one token of each row leaves or all do.

    Args:
        inputs: (B, T) token ids or (B, T, H) embeddings.
        unpad: the argument of `forward`; it wins over the configuration and, if True, over hooks.
        token: the one token of each row that the caller reads. All leave nevertheless where a hook may expect them,
            and with `config.unpad=False` unless `unpad` is True.
        uses_cache: whether keys and values are kept, or come from an earlier call. Padding is then computed, and its
            states leave.
        records: whether outputs are recorded that have rows and columns inside the layers. Padding is then computed.
    """
    leaves_out = token is not None or not uses_cache  # a step of generation need not look for hooks
    listened = unpad is not True and leaves_out and not is_tracing(inputs) and is_listened_to(model)
    unpad = model.config.unpad if unpad is None else unpad
    if listened or not (unpad or model.config.unpad):
        token = None
    sequences, columns = None, None
    if unpad and not (uses_cache or records or listened):
        sequences = plan_sequences(model.config, inputs, attention_mask, position_ids)
    if token == "last" and (sequences is None or sequences.packs_rows):  # else it is where a row's sequence ends
        columns = last_columns(inputs, attention_mask)
    padded = PaddedLayout(attention_mask, position_ids, token, columns, zeroes_padding=unpad and not uses_cache)
    return padded if sequences is None else PackedLayout(sequences, padded)


def plan_sequences(
    config, inputs: torch.Tensor, attention_mask: torch.Tensor | None, position_ids: torch.Tensor | None
) -> PackedSequences | None:
    """The sequences of a call that may be packed, or None where it runs on the whole batch.

    Traced graphs (torch.compile, torch.export, ONNX), `torch.vmap` over masks and XLA want static shapes; a 4-D mask
    says more than which tokens are padding; flex attention and attention functions of the user's own get the whole
    batch and its mask.

    Args:
        inputs: (B, T) token ids or (B, T, H) embeddings.
    """
    if is_tracing(inputs) or is_opaque(attention_mask) or is_opaque(position_ids):
        return None
    if inputs.device.type in ("xla", "meta"):
        return None
    if attention_mask is not None and attention_mask.dim() != 2:
        return None
    # The layout of the whole model hangs on this; the call of the backend stays with the interface.
    in_calls = config._attn_implementation in ("eager", "sdpa")  # trf-ignore: TRF051
    if not in_calls and not is_flash_attention_requested(config):
        return None
    sequences = find_sequences(inputs.shape[:2], inputs.device, attention_mask, position_ids)
    if sequences is not None and attends_on_a_grid(config, inputs.device):
        rows, columns = sequences.shape
        if len(sequences.starts) * sequences.longest > 2 * rows * columns:  # short sequences packed beside a long one
            return None
    return sequences


def is_listened_to(model: nn.Module) -> bool:
    """Whether someone reads or changes states inside the model who may count on their shape being (B, T, ...).

    By hooks on the model, its modules or all modules of the process, or by another `forward` in the place of one of
    its modules'. Hooks come and go: each call looks anew.
    """
    listeners = [hook for name in HOOKS for hook in getattr(every_module, f"_global{name}").values()]
    modules = [model]
    for module in modules:  # which grows
        if module is None:
            continue
        if module._modules:
            modules += module._modules.values()
        if module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks:
            listeners += [hook for name in HOOKS for hook in getattr(module, name).values()]
        if "forward" in module.__dict__ and module is not model:  # whose own, as of autocast, sees nothing packed
            listeners.append(module.forward)
    return any(minds_shapes(listener) for listener in listeners)


def minds_shapes(listener: Callable) -> bool:
    """Whether a hook may count on states of shape (B, T, ...), told by the module that defines it."""
    while isinstance(listener, partial):
        listener = listener.func
    origin = f"{getattr(listener, '__module__', None)}."
    indifferent = origin.startswith(tuple(f"{name}." for name in INDIFFERENT))
    return not indifferent or origin.startswith(tuple(f"{name}." for name in PARTICULAR))


def last_columns(inputs: torch.Tensor, attention_mask: torch.Tensor | None) -> torch.Tensor:
    """(B,) the column of each row's last real token, wherever its padding is; the last one if no mask tells."""
    rows, columns = inputs.shape[:2]
    if attention_mask is None or attention_mask.dim() != 2:
        return torch.full((rows,), columns - 1, device=inputs.device)
    numbers = torch.arange(columns, device=inputs.device)
    return ((attention_mask[:, -columns:].to(inputs.device) != 0) * numbers).argmax(-1)


def keeps_packed_rows_apart(config) -> bool:
    """Whether the attention implementation takes a mask for every pair of tokens."""
    return config._attn_implementation in ("eager", "sdpa", "flex_attention")  # trf-ignore: TRF051


def _packed_rows_overlay(config: PreTrainedConfig, position_ids: torch.Tensor) -> Callable:
    """What keeps the sequences of (B, T) packed rows apart in a mask; ValueError for attention without such masks."""
    if not keeps_packed_rows_apart(config):
        raise ValueError(
            f"position_ids restart inside a row, and the attention {config._attn_implementation!r} keeps its "
            "sequences apart only where padding is not computed: leave unpad on, give no labels to padding, ask "
            "for neither a cache nor hidden states nor attentions, or choose eager, sdpa or flex_attention."
        )
    if torch.jit.is_tracing():
        raise ValueError(
            "TorchScript cannot trace the masks that keep rows packed with position_ids apart (GPT's task heads "
            "make these from a mask): use torch.export, or torch.onnx.export with dynamo=True."
        )
    return packed_sequence_mask_function(sequence_starts(position_ids).cumsum(-1))


def _hides_nothing(batch_idx, head_idx, q_idx, kv_idx) -> torch.Tensor:
    """What transformers calls for each pair of tokens that its mask shows."""
    return q_idx >= 0
