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
"""How the tokens of a batch are laid out inside a model: with padding, or packed into one row without it.

`choose_layout` decides this once per call. The layout it returns then does everything that depends on the decision:
states enter it at the embeddings, attend to each other in each layer, and leave it at the end. Outside the model they
have rows and columns. Inside, they keep them (`PaddedLayout`) or form one row without padding (`PackedLayout`, see
modeling_packing.py). If the caller reads only one token of each row, the last layer computes only that one.

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

from .modeling_cache import ATTENTION_FILLS_PAGED_CACHE, CACHE, is_paged
from .modeling_packing import (
    PackedSequences,
    attends_on_a_grid,
    find_sequences,
    packed_attention,
)
from .modeling_static import is_opaque
from .modeling_varlen import VARLEN


# Packages whose hooks take states of any shape: they record, place, gather or watch whole tensors.
ANY_SHAPE = ("accelerate", "deepspeed", "peft.mixed_model", "peft.peft_model", "peft.utils", "torch", "transformers")
NEEDS_PADDING = ("transformers.integrations.neftune",)  # scales its noise by the number of columns
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")  # attributes of a module


@dataclass(frozen=True)
class PaddedLayout:
    """States in rows and columns, (B, T, ...), as in the input batch. Padding is computed.

    Attributes:
        attention_mask: the user's mask: (B, P + T), zero at padding, where P tokens come from a cache; or a mask over
            pairs of tokens; or None.
        starts: (B or 1, T), True where a sequence of a row begins, or None if each row is one sequence.
        token: the token of each row whose state is returned; None to return all states.
        last_columns: (B,) the column of each row's last token, if `token` is "last".
        zeroes_padding: whether the states of padding are set to zero at the end.
        one_query: whether a layer computes only the state of `token`.
    """

    attention_mask: torch.Tensor | None
    starts: torch.Tensor | None
    token: Literal["first", "last"] | None = None
    last_columns: torch.Tensor | None = None
    zeroes_padding: bool = False
    one_query: bool = False

    def enter(self, padded: torch.Tensor | None) -> torch.Tensor | None:
        """(B or 1, T, ...) -> the same; None -> None."""
        return padded

    def leave(self, states: torch.Tensor) -> torch.Tensor:
        """(B, T, ...) -> the same, or (B, 1, ...) of `token`. If a layer has already picked that token, it is kept."""
        return states if self.token is None or self.one_query else self._pick(states)

    def queries(self, states: torch.Tensor) -> torch.Tensor:
        """(B, T, ...) -> the states that a layer is to compute: all of them, or (B, 1, ...) of `token`."""
        return self._pick(states) if self.one_query else states

    def _pick(self, states: torch.Tensor) -> torch.Tensor:
        """(B, T, ...) -> (B, 1, ...), the state of `token`."""
        if self.token == "first":
            return states[:, :1]
        rows = torch.arange(states.shape[0], device=states.device)
        return states[rows, self.last_columns.to(states.device)].unsqueeze(1)

    def for_last_layer(self, mask: Any) -> tuple["PaddedLayout", Any]:
        """The layout and the mask of the last layer, which computes only `token` if the mask can be cut down to it."""
        if self.token is None or not (mask is None or (torch.is_tensor(mask) and mask.dim() == 4)):
            return self, mask  # the masks of flash and flex attention cannot be cut down to one query
        if mask is not None and self.token == "first":
            mask = mask[:, :, :1]  # (B, 1, 1, P + T)
        elif mask is not None:
            queries_first = mask.expand(self.last_columns.shape[0], -1, -1, -1).transpose(1, 2)  # (B, T, 1, P + T)
            mask = self._pick(queries_first).transpose(1, 2)
        zeroes_padding = self.zeroes_padding and self.token == "first"  # a last token is not padding
        return replace(self, one_query=True, zeroes_padding=zeroes_padding), mask

    def create_mask(
        self, create: Callable, config: PreTrainedConfig, states: torch.Tensor, cache: Cache | None
    ) -> Any:
        """The mask for the attention implementation, which hides padding and other sequences of a packed row, or None.

        Args:
            create: transformers' function that creates the masks of an encoder or of a decoder.
            states: (B, T, H); only shape, type and device are used.
        """
        overlay = None
        if self.starts is not None:
            overlay = _packed_rows_overlay(config, self.starts.expand(states.shape[:2]))
        elif is_opaque(self.attention_mask) and not is_tracing(self.attention_mask):
            overlay = _allow_all  # without an overlay, transformers would read the values of the mask
        return create(
            config=config,
            inputs_embeds=states,
            attention_mask=self.attention_mask,
            and_mask_function=overlay,
            **{CACHE: None if is_paged(cache) else cache},
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
        place: int | None,
        **kwargs,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """(B, 1 or T, A * D), and probabilities (B, A, 1 or T, P + T) if the implementation returns them.

        A cache has keys and values for each place of a layer in the model: layers may be copied, shared or removed.
        """
        query, key, value = (state.transpose(1, 2) for state in (query, key, value))  # (B, A, T, D)
        if is_paged(cache):
            if module.layer_idx != place:  # transformers' attention functions read the number
                raise ValueError(
                    f"layer {place} of the model is numbered {module.layer_idx}, and continuous batching goes by "
                    "numbers: set layer_idx of layers that were copied, shared or moved, or call generate."
                )
            if ATTENTION_FILLS_PAGED_CACHE:
                kwargs["cache"] = cache
            else:
                key, value = cache.update(key, value, place, kwargs=kwargs)  # adds what flash reads
        elif cache is not None:
            key, value = cache.update(key, value, module.layer_idx if place is None else place)  # (B, A, P + T, D)
        output, probabilities = attention_interface(module, query, key, value, mask, **kwargs)
        return output.flatten(2), probabilities

    def zero_padding(self, states: torch.Tensor) -> torch.Tensor:
        """(B, T, H), or (B, 1, H) of `token` -> the same, with zeros at padding if `zeroes_padding`."""
        mask = self.attention_mask
        if not self.zeroes_padding or mask is None or mask.dim() != 2:
            return states
        if self.token == "last" and states.shape[1] == 1:  # it is not padding
            return states
        return states.masked_fill((mask[:, : states.shape[1], None] == 0).to(states.device), 0)


@dataclass(frozen=True)
class PackedLayout:
    """The real tokens of a batch as one row, (N, ...). Padding is not computed; attention separates the sequences.

    The methods are those of `PaddedLayout`. There is no cache.

    Attributes:
        sequences: the tokens in the row, and the sequences they form.
        padded: the layout of the input batch.
        one_query: whether a layer computes only one token of each sequence.
    """

    sequences: PackedSequences
    padded: PaddedLayout
    one_query: bool = False

    def enter(self, padded: torch.Tensor | None) -> torch.Tensor | None:
        """(B or 1, T, ...) -> (N, ...)."""
        return None if padded is None else self.sequences.pack(padded.expand(*self.sequences.shape, *padded.shape[2:]))

    def leave(self, states: torch.Tensor) -> torch.Tensor:
        """(N, ...) -> (B, T, ...) with zeros at padding; if one token is returned, (N or S, ...) -> (B, 1, ...)."""
        return self.sequences.to_rows(states) if self.one_query else self.padded.leave(self.sequences.pad(states))

    def queries(self, states: torch.Tensor) -> torch.Tensor:
        """(N, ...) -> the same, or (S, ...), one token of each sequence."""
        if not self.one_query:
            return states
        is_first = self.padded.token == "first"
        return self.sequences.first_tokens(states) if is_first else self.sequences.last_tokens(states)

    def for_last_layer(self, mask: torch.Tensor | None) -> tuple["PackedLayout", torch.Tensor | None]:
        token = self.padded.token
        if token is None or (token == "last" and self.sequences.has_packed_rows):  # `to_rows` takes a row's first
            return self, mask
        if mask is not None:
            mask = mask[:, :, :1] if token == "first" else mask[:, :, -1:]  # (S, 1, 1, L)
        return replace(self, one_query=True), mask

    def create_mask(
        self, create: Callable, config: PreTrainedConfig, states: torch.Tensor, cache: None
    ) -> torch.Tensor | None:
        """A mask of the (S, L) grid, or None if attention does not run on such a grid."""
        if not attends_on_a_grid(config, states.device):
            return None
        mask = self.sequences.mask
        states = states[:1].expand(*mask.shape, -1)  # only shape, type and device are used
        return create(config=config, inputs_embeds=states, attention_mask=mask, **{CACHE: cache})

    def attend(
        self,
        attention_interface: Callable,
        module: nn.Module,
        query: torch.Tensor,  # (N, A, D), or (S, A, D) of one token of each sequence
        key: torch.Tensor,  # (N, A, D)
        value: torch.Tensor,
        mask: torch.Tensor | None,
        cache: None,
        place: int | None,
        **kwargs,
    ) -> tuple[torch.Tensor, None]:
        """(N or S, A * D), and no probabilities."""
        return packed_attention(attention_interface, module, query, key, value, self.sequences, mask, **kwargs), None

    def zero_padding(self, states: torch.Tensor) -> torch.Tensor:
        """(..., H) -> the same: there is no padding, or `leave` has filled it with zeros."""
        return states


Layout = PaddedLayout | PackedLayout
ROWS_AND_COLUMNS = PaddedLayout(attention_mask=None, starts=None)  # for a layer that is called by itself


def choose_layout(
    model: PreTrainedModel,
    inputs: torch.Tensor,
    attention_mask: torch.Tensor | None,
    starts: torch.Tensor | None,
    unpad: bool | None,
    token: Literal["first", "last"] | None,
    uses_cache: bool,
    records: bool,
) -> Layout:
    """Decides, once per call, whether padding is computed, and whether all states are returned or one of each row.

    Args:
        inputs: (B, T) token ids or (B, T, H) embeddings.
        starts: (B or 1, T), True where a sequence of a row begins, or None if each row is one sequence.
        unpad: the argument of `forward`. It takes precedence over the configuration and, if True, over hooks.
        token: the token of each row that the caller reads. All states are returned nevertheless when a hook may need
            them, and with `config.unpad=False` unless `unpad` is True.
        uses_cache: whether keys and values are kept, or come from an earlier call. If so, padding is computed and its
            states are returned.
        records: whether outputs with rows and columns are recorded inside the layers. If so, padding is computed.
    """
    may_skip_tokens = token is not None or not uses_cache  # no search for hooks in each step of generation
    hooked = unpad is not True and may_skip_tokens and not is_tracing(inputs) and hooks_need_padding(model)
    configured = getattr(model.config, "unpad", True)  # EncoderDecoderModel may set transformers' configuration
    unpad = configured if unpad is None else unpad
    if hooked or not (unpad or configured):
        token = None
    sequences, columns = None, None
    if unpad and not (uses_cache or records or hooked):
        sequences = plan_sequences(model.config, inputs, attention_mask, starts)
    if token == "last" and (sequences is None or sequences.has_packed_rows):  # else it ends the row's one sequence
        columns = last_columns(inputs, attention_mask)
    padded = PaddedLayout(attention_mask, starts, token, columns, zeroes_padding=unpad and not uses_cache)
    return padded if sequences is None else PackedLayout(sequences, padded)


def plan_sequences(
    config, inputs: torch.Tensor, attention_mask: torch.Tensor | None, starts: torch.Tensor | None
) -> PackedSequences | None:
    """The sequences to pack in this call, or None if it computes the whole batch.

    The whole batch is computed in traced graphs (torch.compile, torch.export, ONNX), under `torch.vmap` over masks and
    on XLA, which need static shapes; with a 4-D mask, which says more than where padding is; and with flex attention
    or an attention function of the user, which get the batch and its mask.

    Args:
        inputs: (B, T) token ids or (B, T, H) embeddings.
    """
    if is_tracing(inputs) or is_opaque(attention_mask) or is_opaque(starts):
        return None
    if inputs.device.type in ("xla", "meta"):
        return None
    if attention_mask is not None and attention_mask.dim() != 2:
        return None
    # Only the layout of the model depends on this; the backend itself is called through transformers' interface.
    takes_groups = config._attn_implementation in ("eager", "sdpa", VARLEN)  # trf-ignore: TRF051
    if not takes_groups and not is_flash_attention_requested(config):
        return None
    sequences = find_sequences(inputs.shape[:2], inputs.device, attention_mask, starts)
    if sequences is not None and attends_on_a_grid(config, inputs.device):
        rows, columns = sequences.shape
        if len(sequences.starts) * sequences.longest > 2 * rows * columns:  # short sequences next to a long one
            return None
    return sequences


def hooks_need_padding(model: nn.Module) -> bool:
    """Whether a hook may rely on states inside the model having the shape (B, T, ...).

    Hooks are those of the model, of its modules and of all modules of the process; a replaced `forward` of a module
    counts as one. They can be added and removed at any time, so this is determined in each call.
    """
    hooks = [hook for name in HOOKS for hook in getattr(every_module, f"_global{name}").values()]
    modules = [model]
    for module in modules:  # the list grows in the loop
        if module is None:
            continue
        if module._modules:
            modules += module._modules.values()
        if module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks:
            hooks += [hook for name in HOOKS for hook in getattr(module, name).values()]
        if "forward" in module.__dict__ and module is not model:  # the model's own `forward` sees nothing packed
            hooks.append(module.forward)
    return any(may_need_padding(hook) for hook in hooks)


def may_need_padding(hook: Callable) -> bool:
    """Whether a hook may rely on states of shape (B, T, ...), judged by the module that defines it."""
    while isinstance(hook, partial):
        hook = hook.func
    origin = f"{getattr(hook, '__module__', None)}."
    takes_any_shape = origin.startswith(tuple(f"{name}." for name in ANY_SHAPE))
    return not takes_any_shape or origin.startswith(tuple(f"{name}." for name in NEEDS_PADDING))


def last_columns(inputs: torch.Tensor, attention_mask: torch.Tensor | None) -> torch.Tensor:
    """(B,) the column of each row's last real token; without a (B, T) mask, the last column."""
    rows, columns = inputs.shape[:2]
    if attention_mask is None or attention_mask.dim() != 2:
        return torch.full((rows,), columns - 1, device=inputs.device)
    numbers = torch.arange(columns, device=inputs.device)
    return ((attention_mask[:, -columns:].to(inputs.device) != 0) * numbers).argmax(-1)


def states_of_token(
    states: torch.Tensor, token: Literal["first", "last"], inputs: torch.Tensor, attention_mask: torch.Tensor | None
) -> torch.Tensor:
    """(B, T, H) -> (B, H), the state of each row's first or last real token; (B, 1, H) holds only that one."""
    if token == "first" or states.shape[1] == 1:
        return states[:, 0]
    columns = last_columns(inputs, attention_mask).to(states.device)
    return states[torch.arange(len(columns), device=states.device), columns]


def keeps_packed_rows_apart(config) -> bool:
    """Whether the attention implementation takes a mask over pairs of tokens."""
    return config._attn_implementation in ("eager", "sdpa", VARLEN, "flex_attention")  # trf-ignore: TRF051


def _packed_rows_overlay(config: PreTrainedConfig, starts: torch.Tensor) -> Callable:
    """The mask function that separates the sequences of (B, T) packed rows.

    Raises ValueError for an attention implementation without masks over pairs of tokens.
    """
    if not keeps_packed_rows_apart(config):
        raise ValueError(
            f"a row holds several sequences, and the attention {config._attn_implementation!r} keeps them "
            "apart only where padding is not computed. Choose eager, sdpa or flex_attention, or keep "
            "unpad=True, label no padding, and request no cache, hidden states or attentions."
        )
    if torch.jit.is_tracing():
        raise ValueError(
            "TorchScript cannot trace the masks that separate the sequences of a row, as positions of a batch of one "
            "row may do: use torch.export, or torch.onnx.export with dynamo=True."
        )
    # torch_xla sums booleans to booleans.
    return packed_sequence_mask_function(starts.int().cumsum(-1))


def _allow_all(batch_idx, head_idx, q_idx, kv_idx) -> torch.Tensor:
    """A mask function, as transformers calls it for pairs of tokens, that hides none of them."""
    return q_idx >= 0
