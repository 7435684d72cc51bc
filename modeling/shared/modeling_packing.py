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
"""A padded batch as one row of real tokens, and the plan of a call that says whether to compute it so.

The longest row of a batch determines its number of columns. With random lengths, half of the batch is padding, and
every layer computes it. Only attention needs to know which token belongs to which sequence. So the real tokens of all
rows are laid end to end (`Packing`), a model runs on them as on any batch of one row, and attention runs within each
sequence (modeling_attention.py).

`make_plan` decides once a call whether a batch is packed, and which token of each row is read. Rows that hold several
sequences (`find_starts`) are separated in the same way. To find the sequences, it reads values of the batch, for which
a program has to wait if they are on a GPU. The collator of packing_collator.py finds them before the batch goes there.

transformers calls the cache of keys and values `past_key_values` up to 5.23 and `cache` since 5.24: in `forward`, in a
model's output, and in the functions that create masks. Here, `forward` takes it under both names; what goes to
transformers, or comes from it, has the name of the installed release (`CACHE`). A layer takes it as `layer_past`,
which gradient checkpointing leaves out in every release.

Letters: B rows, T columns, N tokens of a packed row, S sequences (S = B unless rows hold several), L the length of the
longest, H hidden size, Q queries, P tokens in a cache.
"""

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Literal

import torch
import torch.nn as nn
import torch.nn.modules.module as every_module
from transformers.cache_utils import Cache
from transformers.modeling_outputs import BaseModelOutputWithPast
from transformers.modeling_utils import PreTrainedModel
from transformers.utils.generic import is_flash_attention_requested
from transformers.utils.import_utils import is_tracing

from .modeling_heads import IGNORED
from .modeling_onednn import HOOKS, is_opaque, product_type


GROUPED_DEVICES = ("cpu",)
READ_DEVICES = ("cpu",)  # whose values a program reads without waiting
FLASH_DEVICES = ("cuda",)
FLASH_TYPES = (torch.bfloat16, torch.float16)
FLASH_HEADS = range(8, 193, 8)  # their sizes; some GPUs have no gradients of larger ones
FLASH_ARGUMENTS = ["query", "key", "value", "cum_seq_q", "cum_seq_k", "max_q", "max_k"]
FLASH_ARGUMENTS += ["dropout_p", "is_causal", "return_debug_mask"]
# Tokens of a padded batch. With fewer, a GPU waits for the calls of its kernels, of which there are more to find the
# sequences of a batch that does not carry its packing, and for a grid. How many tokens these are was estimated.
FEW_TOKENS = 2048
# Packages whose hooks take states of any shape: they record, place, gather or watch whole tensors.
ANY_SHAPE = ("accelerate", "deepspeed", "peft.mixed_model", "peft.peft_model", "peft.utils", "torch", "transformers")
NEEDS_PADDING = ("transformers.integrations.neftune",)  # scales its noise by the number of columns
Token = Literal["first", "last"]
CACHE_NAMES = ["cache", "past_key_values"]
CACHE = next(name for name in CACHE_NAMES if name in BaseModelOutputWithPast.__dataclass_fields__)
BOUNDARIES = ("cu_seq_lens_q", "cu_seq_lens_k", "seq_idx")  # names of transformers' collators


@dataclass(frozen=True)
class Packing:
    """The real tokens of a (B, T) batch as one row, sorted by the length of their sequence, shortest first.

    Attributes:
        shape: (B, T) of the padded batch.
        tokens: (N,) the index of each real token in the flattened batch.
        boundaries: (S + 1,) int32, where each sequence begins in `tokens` and where the last one ends.
        rows, last_rows: (B,) the first sequence of each row, and the one of its last real token.
        groups: (number of sequences, their length) of each length, shortest first.
        longest: the length of the longest sequence.
        row_starts: (B or 1, T) booleans, True where a sequence of a row begins, or None if each row is one sequence.
        of_mask: whether the batch had a mask when this was made.
        labelled: (n,) the index of each token with a label in the flattened batch; None if nobody looked for them, or
            if tokens have none.
        shifted: whether these labels are `shift_labels`.
        labels_padding: whether padding has a label.
    """

    shape: tuple[int, int]
    tokens: torch.Tensor
    boundaries: torch.Tensor
    rows: torch.Tensor
    last_rows: torch.Tensor
    groups: list[tuple[int, int]]
    longest: int
    row_starts: torch.Tensor | None = None
    of_mask: bool = True
    labelled: torch.Tensor | None = None
    shifted: bool = False
    labels_padding: bool = False

    def to(self, device: torch.device | str, non_blocking: bool = False) -> "Packing":
        return self._with_tensors(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> "Packing":
        return self._with_tensors(torch.Tensor.pin_memory)

    def _with_tensors(self, change: Callable[[torch.Tensor], torch.Tensor]) -> "Packing":
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        tensors = {name: change(value) for name, value in values.items() if torch.is_tensor(value)}
        return dataclasses.replace(self, **tensors)

    def knows(self, shifted: bool) -> bool:
        """Whether it was made with these labels of tokens: `shift_labels` if `shifted`, and `labels` otherwise."""
        return self.labelled is not None and self.shifted == shifted

    def fits(self, attention_mask: torch.Tensor | None) -> bool:
        """Whether the mask may be the one that this was made with: none has been made, or left out, since then."""
        return self.of_mask == (attention_mask is not None)

    @property
    def sequences(self) -> int:
        """S, their number."""
        return len(self.boundaries) - 1

    @property
    def starts(self) -> torch.Tensor:
        """(S,) the index in `tokens` of each sequence's first token."""
        return self.boundaries[:-1].long()

    @property
    def is_padded(self) -> bool:
        return len(self.tokens) < self.shape[0] * self.shape[1]

    def pack(self, padded: torch.Tensor) -> torch.Tensor:
        """(B or 1, T, ...) -> (1, N, ...)."""
        tokens = padded.expand(*self.shape, *padded.shape[2:]).flatten(0, 1)
        return tokens.index_select(0, self.tokens.to(padded.device)).unsqueeze(0)

    def unpack(self, packed: torch.Tensor) -> torch.Tensor:
        """(1, N, ...) -> (B, T, ...), with zeros at padding."""
        rows, columns = self.shape
        padded = packed.new_zeros(rows * columns, *packed.shape[2:])
        return padded.index_copy(0, self.tokens.to(packed.device), packed.squeeze(0)).unflatten(0, (rows, columns))

    @cached_property
    def mask(self) -> torch.Tensor:
        """(S, 1, 1, L) booleans: whether the sequence has a token in that column of a grid."""
        mask = torch.arange(self.longest, device=self.boundaries.device) < self.boundaries.diff().unsqueeze(1)
        return mask[:, None, None, :]

    @cached_property
    def causal_mask(self) -> torch.Tensor:
        """(S, 1, L, L) booleans: as `mask`, for tokens that see none after them."""
        return self.mask & torch.ones(self.longest, self.longest, dtype=torch.bool, device=self.mask.device).tril()

    @cached_property
    def grid(self) -> "Packing":
        """The same tokens as those of a batch (S, L) with one sequence per row."""
        starts = self.starts
        numbers = torch.arange(len(self.tokens), device=starts.device)
        sequence = torch.searchsorted(starts, numbers, right=True) - 1
        cells = sequence * self.longest + numbers - starts[sequence]  # (N,)
        return dataclasses.replace(self, shape=(self.sequences, self.longest), tokens=cells)


def find_sequences(
    shape: tuple[int, int],
    device: torch.device,
    attention_mask: torch.Tensor | None,
    starts: torch.Tensor | None = None,
    if_whole: bool = False,
) -> Packing | None:
    """The sequences of a batch, or None if packing would gain nothing: no padding and one sequence in each row.

    None, too, for a batch with padding on the left, because poolers read the first token of each row.

    Args:
        attention_mask: (B, T), zero at padding, or None.
        starts: (B or 1, T), True where a sequence begins, in column 0 among others; None if each row is one sequence.
        if_whole: also if packing would gain nothing.
    """
    rows, columns = shape
    real = torch.ones(shape, dtype=torch.bool) if attention_mask is None else attention_mask.cpu().bool()
    if (real.all() and starts is None and not if_whole) or not real[:, 0].all():
        return None
    # On the CPU: a GPU is waited for once, for the mask, and not for each count and each list below.
    begins = (torch.arange(columns) == 0).unsqueeze(0) if starts is None else starts.cpu()
    sequence = begins.expand(shape).flatten().cumsum(0) - 1  # (B * T,)
    tokens = real.flatten().nonzero().squeeze(1)  # (N,)
    lengths = torch.bincount(sequence[tokens], minlength=int(sequence[-1]) + 1)
    tokens = tokens[lengths[sequence[tokens]].argsort(stable=True)]
    lengths, order = lengths.sort(stable=True)
    empty = int((lengths == 0).sum())  # sequences of padding only, inside rows that hold several; sorted to the front
    lengths = lengths[empty:]
    rank, last = order.argsort(), last_columns(real, real).unsqueeze(1)
    of_group, counts = lengths.unique_consecutive(return_counts=True)
    return Packing(
        shape=(rows, columns),
        tokens=tokens.to(device),
        boundaries=nn.functional.pad(lengths.cumsum(0), (1, 0)).to(device, torch.int32),
        rows=(rank[sequence[::columns]] - empty).to(device),
        last_rows=(rank[sequence.view(shape).gather(1, last)].squeeze(1) - empty).to(device),
        groups=list(zip(counts.tolist(), of_group.tolist(), strict=True)),
        longest=int(of_group[-1]),
        row_starts=None if len(order) == rows else begins.to(device),
    )


def labelled_tokens(labels: torch.Tensor) -> torch.Tensor:
    """(n,) the index of each token of the flattened batch that has one of the (B, T) labels."""
    return (labels.flatten() != IGNORED).nonzero().squeeze(1)


def at_labels(
    states: torch.Tensor, labels: torch.Tensor, packing: Packing | None, shifted: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """(B, T, H) states and (B, T) labels -> (n, H) and (n,), those of the n tokens that have a label.

    shifted: whether the labels are the model's argument `shift_labels`, and not `labels`.
    """
    if packing is not None and packing.knows(shifted):
        labelled = packing.labelled.to(labels.device)
    else:
        labelled = labelled_tokens(labels)
    return states.flatten(0, 1).index_select(0, labelled), labels.flatten().index_select(0, labelled)


def usable_packing(
    packing: Packing | None, inputs: torch.Tensor, attention_mask: torch.Tensor | None, cache: Cache | None
) -> Packing | None:
    """The packing that came with a batch; None with a cache, a mask over pairs, or a mask that it does not fit.

    Raises ValueError for a packing of another batch, as far as it shows without waiting for a device.
    """
    if packing is None or cache is not None or not packing.fits(attention_mask) or not is_of_rows(attention_mask):
        return None
    shape, real = tuple(inputs.shape[:2]), len(packing.tokens)
    if attention_mask is not None and attention_mask.device.type in READ_DEVICES and not is_opaque(attention_mask):
        real = int(attention_mask.count_nonzero())
    if packing.shape != shape or real != len(packing.tokens):
        raise ValueError(
            f"packing is of a batch of shape {packing.shape} with {len(packing.tokens)} real tokens, but this one is "
            f"{shape} and has {real}: make it of this batch, or leave it out."
        )
    return packing


def counts_as_padded(inputs: torch.Tensor, attention_mask: torch.Tensor | None, cache: Cache | None) -> bool:
    """Whether a GPU would take longer to tell if a batch of few tokens has padding than to compute with a mask.

    Where the user allows flash attention alone, which takes no mask, padding is looked for.
    """
    if attention_mask is None or cache is not None or not is_of_rows(attention_mask) or is_opaque(attention_mask):
        return False
    rows, columns = inputs.shape[:2]
    if attention_mask.device.type in READ_DEVICES or rows * columns >= FEW_TOKENS:
        return False
    return torch.backends.cuda.mem_efficient_sdp_enabled() or torch.backends.cuda.math_sdp_enabled()


@dataclass(frozen=True)
class Plan:  # trf-ignore: TRF031 a decision, no output of a model
    """How one call of a model computes its batch, decided by `make_plan`.

    Attributes:
        attention_mask: the user's: (B, P + T), zero at padding; or a mask over pairs of tokens; or None.
        starts: (B or 1, T), True where a sequence of a row begins, or None if each row is one sequence.
        positions: (B or 1, T) of the tokens.
        packing: the real tokens as one row; None where the batch is computed as it is, with its padding.
        columns: (B, 1) where the only token is in each row whose state is returned or, packed, (1, S) in each
            sequence; None to return all states.
        rows: (B,) the sequence of each row in which that token is, if packed.
        read: `columns`, if the last layer has to compute no other tokens; None: all.
        padding: (B, T or 1) True at padding that is computed and whose states become zero, or None.
        is_padded: whether the batch is known to have padding, or counts as if, so that nobody has to
            read the mask.
    """

    attention_mask: torch.Tensor | None
    starts: torch.Tensor | None
    positions: torch.Tensor
    packing: Packing | None
    columns: torch.Tensor | None
    rows: torch.Tensor | None
    read: torch.Tensor | None
    padding: torch.Tensor | None
    is_padded: bool

    def enter(self, *inputs: torch.Tensor | None) -> list[torch.Tensor | None]:
        """(B or 1, T, ...) each -> the same, or (1, N, ...) if packed; None stays None."""
        if self.packing is None:
            return list(inputs)
        return [None if padded is None else self.packing.pack(padded) for padded in inputs]

    def leave(self, states: torch.Tensor | None, is_last: bool = False) -> torch.Tensor | None:
        """States after a layer, (B, T, H) or (1, N, H) -> (B, T, H); packed padding is zero. None stays None.

        After the last layer, they may be those of `read`, and become (B, 1, H) if the state of one token is wanted.
        The layer may have computed all tokens where `read` names some: one that skips, or if there is no layer.
        """
        if is_last and self.columns is not None:
            if states.shape[1] != self.columns.shape[1]:
                states = states_at(states, self.columns)
            return states if self.rows is None else states_at(states, self.rows.unsqueeze(0)).transpose(0, 1)
        return states if states is None or self.packing is None else self.packing.unpack(states)

    def zero_padding(self, states: torch.Tensor) -> torch.Tensor:
        """(B, T or 1, H), what the last layer left -> the same, with zeros at `padding`."""
        return states if self.padding is None else states.masked_fill(self.padding.unsqueeze(-1).to(states.device), 0)


def states_at(states: torch.Tensor, columns: torch.Tensor | None) -> torch.Tensor:
    """(B, T, H) -> (B, Q, H), the states in the (B, Q) columns; None: all of them."""
    if columns is None:
        return states
    return states.gather(1, columns.to(states.device).unsqueeze(-1).expand(-1, -1, states.shape[-1]))


def make_plan(
    model: PreTrainedModel,
    inputs: torch.Tensor,
    attention_mask: torch.Tensor | None,
    position_ids: torch.Tensor | None,
    cache: Cache | None,
    kwargs: dict,
    unpad: bool | None,
    token: Token | None,
    longest: int,
    packing: Packing | None = None,
) -> Plan:
    """Decides, once per call, whether padding is computed, and whether all states are returned or one of each row.

    With a cache, padding is computed and its states are returned. Padding is also computed for recorded attentions,
    which have rows and columns, and for recorded hidden states with gradients, which would not reach copies that are
    unpacked at the end.

    Args:
        inputs: (B, T) token ids or (B, T, H) embeddings.
        position_ids: the user's, which broadcast against (B, T), or None.
        kwargs: of `forward`, from which the boundaries of sequences are taken out (`find_starts`).
        unpad: the argument of `forward`. It takes precedence over the configuration and, if True, over hooks.
        token: the token of each row that the caller reads. All states are returned nevertheless when a hook may need
            them, and with `config.unpad=False` unless `unpad` is True.
        longest: the number of the model's positions.
        packing: as `DataCollatorWithPacking` found it, or None; see `usable_packing`.
    """
    position_ids = None if position_ids is None else torch.atleast_2d(position_ids).expand(-1, inputs.shape[1])
    packing = usable_packing(packing, inputs, attention_mask, cache)
    is_padded = counts_as_padded(inputs, attention_mask, cache) if packing is None else packing.is_padded
    boundaries = [kwargs.pop(name, None) for name in BOUNDARIES]
    if packing is None:
        starts = find_starts(inputs, attention_mask, position_ids, cache, *boundaries)
    else:
        starts, attention_mask = packing.row_starts, attention_mask if is_padded else None
    positions = find_positions(inputs, position_ids, starts, cache, longest)
    hidden_states, attentions = (is_recorded(model.config, name, kwargs) for name in ("hidden_states", "attentions"))
    may_skip_tokens = token is not None or cache is None  # no search for hooks in each step of generation
    hooked = unpad is not True and may_skip_tokens and not is_tracing(inputs) and hooks_need_padding(model)
    configured = getattr(model.config, "unpad", True)  # EncoderDecoderModel may set transformers' configuration
    skips = configured if unpad is None else unpad
    if skips and not (hooked or attentions or cache is not None or (hidden_states and torch.is_grad_enabled())):
        packing = choose_packing(model, inputs, attention_mask, starts, packing, always=unpad is True)
    else:
        packing = None
    token = None if hooked or not (skips or configured) else token
    columns, rows = find_token(token, inputs, attention_mask, packing)
    read, padding = None if hidden_states or attentions else columns, None
    is_computed = packing is None and skips and cache is None and attention_mask is not None
    if is_computed and token != "last" and attention_mask.dim() == 2:  # a row's last token is no padding
        padding = attention_mask[:, : inputs.shape[1] if token is None else 1] == 0
    return Plan(attention_mask, starts, positions, packing, columns, rows, read, padding, is_padded)


def find_token(
    token: Token | None, inputs: torch.Tensor, attention_mask: torch.Tensor | None, packing: Packing | None
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """The `columns` and `rows` of a `Plan` for the first or the last token of each row; None for None."""
    if token is None:
        return None, None
    if packing is None:
        first = torch.zeros(inputs.shape[0], dtype=torch.long, device=inputs.device)
        return (first if token == "first" else last_columns(inputs, attention_mask)).unsqueeze(1), None
    if token == "first":
        return packing.starts.unsqueeze(0), packing.rows
    return (packing.boundaries[1:].long() - 1).unsqueeze(0), packing.last_rows


def choose_packing(
    model: PreTrainedModel,
    inputs: torch.Tensor,
    attention_mask: torch.Tensor | None,
    starts: torch.Tensor | None,
    packing: Packing | None,
    always: bool,
) -> Packing | None:
    """The sequences to pack in this call, or None if it computes the whole batch.

    The whole batch is computed in traced graphs (torch.compile, torch.export, ONNX), under `torch.vmap` and on XLA,
    which need static shapes; with a 4-D mask, which says more than where padding is; with flex attention or an
    attention function of the user, which get the batch and its mask; and, on a GPU with sdpa, if the batch is small,
    unless it carries its packing and flash attention takes it.

    Args:
        inputs: (B, T) token ids or (B, T, H) embeddings.
        packing: the batch's, if the collator found it.
        always: also if the batch is small.
    """
    if is_opaque(inputs) or is_opaque(attention_mask) or is_opaque(starts) or not is_of_rows(attention_mask):
        return None
    if not is_well_known(model.config):
        return None
    rows, columns = inputs.shape[:2]
    weight = next(model.parameters(), None)  # a copy of `nn.DataParallel` has none that tells the type
    dtype = None if weight is None else product_type(weight)
    head_size = model.config.hidden_size // model.config.num_attention_heads
    way = way_to_attend(model.config, inputs.device, dtype, head_size)
    is_cheap = way in ("groups", "named") or (packing is not None and way == "flash")
    if starts is None and rows * columns < FEW_TOKENS and not (is_cheap or always):
        return None
    if packing is None:
        packing = find_sequences((rows, columns), inputs.device, attention_mask, starts)
    if packing is None or not (packing.is_padded or packing.sequences > rows):
        return None
    if way == "grid" and packing.sequences * packing.longest > 2 * rows * columns:
        return None  # short sequences next to a long one
    return packing


def is_well_known(config) -> bool:
    """Whether attention is transformers' eager, sdpa or flash, which take sequences by themselves and change no input.

    It is called through transformers' interface all the same.
    """
    is_simple = config._attn_implementation in ("eager", "sdpa")  # trf-ignore: TRF051
    return is_simple or is_flash_attention_requested(config)


def way_to_attend(
    config, device: torch.device, dtype: torch.dtype | None, head_size: int, dropout: float = 0.0
) -> Literal["named", "groups", "flash", "grid"]:
    """How attention within the sequences of a packed row is computed, with heads of this size in this type.

    - "named": all sequences at once, with their boundaries, by the flash attention that the configuration names;
    - "groups": sequences of equal length together, on the CPU, where many small calls cost little;
    - "flash": all at once by torch's flash attention, with sdpa, if the GPU has it and the user leaves it on;
    - "grid": sequences padded to the longest of them.
    """
    implementation = config._attn_implementation  # read once, because transformers' configurations are slow to read
    if is_flash_attention_requested(requested_attention_implementation=implementation):
        return "named"
    if device.type in GROUPED_DEVICES:
        return "groups"
    suits = implementation == "sdpa" and device.type in FLASH_DEVICES  # trf-ignore: TRF051
    suits = suits and dtype in FLASH_TYPES and head_size in FLASH_HEADS
    return "flash" if suits and _flash_is_on(device, dropout > 0) else "grid"


@torch.compiler.assume_constant_result
def _flash_is_on(device: torch.device, with_dropout: bool) -> bool:
    """Whether torch's flash attention is there and switched on. A compiled graph keeps the first answer.

    FlashAttention 3 or 4, which the user may have put in the place of torch's kernel, have no dropout.
    """
    replacement = getattr(torch.nn.attention, "current_flash_attention_impl", None)  # since torch 2.11
    if with_dropout and replacement is not None and replacement() is not None:
        return False
    return torch.backends.cuda.flash_sdp_enabled() and _has_flash(device)


@functools.cache
def _has_flash(device: torch.device) -> bool:
    is_built = torch.version.hip is None and torch.backends.cuda.is_flash_attention_available()
    return is_built and torch.cuda.get_device_capability(device) >= (8, 0) and FLASH_OPERATION is not None


def find_flash_operation() -> Callable | None:
    """torch's private operation, whose gradients are C++; None if it takes other arguments than are given here.

    Its public wrapper, `torch.nn.attention.varlen`, has no dropout, and each call of it is several in Python.
    """
    operation = getattr(torch.ops.aten, "_flash_attention_forward", None)
    if operation is None:
        return None
    names = [argument.name for argument in operation.default._schema.arguments]
    return operation.default if names[: len(FLASH_ARGUMENTS)] == FLASH_ARGUMENTS and "scale" in names else None


FLASH_OPERATION = find_flash_operation()  # once: a graph that is traced could not look it up


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
    if hasattr(getattr(hook, "__self__", None), "kernel_layer_name"):  # a kernel of the Hub, by `use_kernels=True`
        return False
    origin = f"{getattr(hook, '__module__', None)}."
    takes_any_shape = origin.startswith(tuple(f"{name}." for name in ANY_SHAPE))
    return not takes_any_shape or origin.startswith(tuple(f"{name}." for name in NEEDS_PADDING))


def is_recorded(config, name: str, kwargs: dict) -> bool:
    """Whether the caller requests `hidden_states` or `attentions`, decided as `capture_outputs` does."""
    name = f"output_{name}"
    return bool(kwargs[name] if name in kwargs else getattr(config, name, False))  # 0 and [] ask for nothing


def last_columns(inputs: torch.Tensor, attention_mask: torch.Tensor | None) -> torch.Tensor:
    """(B,) the column of each row's last real token; without a (B, T) mask, the last column."""
    rows, columns = inputs.shape[:2]
    if attention_mask is None or attention_mask.dim() != 2:
        return torch.full((rows,), columns - 1, device=inputs.device)
    numbers = torch.arange(columns, device=inputs.device)
    return ((attention_mask[:, -columns:].to(inputs.device) != 0) * numbers).argmax(-1)


def find_starts(
    inputs: torch.Tensor,
    attention_mask: torch.Tensor | None,
    position_ids: torch.Tensor | None,
    cache: Cache | None,
    ends: torch.Tensor | None,
    ends_of_keys: torch.Tensor | None,
    numbers: torch.Tensor | None,
) -> torch.Tensor | None:
    """(B or 1, T) booleans, True where a sequence of a row begins, or None if each row is one sequence.

    Boundaries are those of transformers' DataCollatorWithFlattening: `cu_seq_lens_q` and `cu_seq_lens_k` (S + 1,),
    where the sequences of a batch of one row begin and where the last one ends, or `seq_idx` (B, T), the number of
    each token's sequence. As in transformers' flash attention, the positions of a batch of one row without padding may
    show them, too. Anywhere else, positions are nothing but positions.

    Raises ValueError for boundaries that do not fit the tokens, or beside a mask over pairs or cached tokens.
    """
    past = cached_tokens(cache)
    is_empty = not torch.is_tensor(past) and past == 0
    if ends is None and ends_of_keys is None and numbers is None:
        is_one_row = inputs.shape[0] == 1 and position_ids is not None and is_empty
        return restarts(position_ids, attention_mask) if is_one_row else None
    tokens = tuple(inputs.shape[:2])
    if not is_of_rows(attention_mask):
        raise ValueError("The mask says which pairs of tokens see each other: leave out cu_seq_lens_q and seq_idx.")
    if not is_empty:
        raise ValueError("A cache that holds tokens holds one sequence a row: leave out cu_seq_lens_q and seq_idx.")
    if numbers is not None and tuple(numbers.shape) != tokens:
        raise ValueError(f"seq_idx is {tuple(numbers.shape)}, but must be {tokens}: one number for each token.")
    columns = torch.arange(inputs.shape[1], device=inputs.device)
    starts = (columns == 0).unsqueeze(0)  # (1, T)
    if ends is not None or ends_of_keys is not None:
        _check_ends(tokens, ends, ends_of_keys)
        ends = ends.to(inputs.device)
        starts = starts | _changes(torch.searchsorted(ends, columns.to(ends.dtype), right=True).unsqueeze(0))
    if numbers is not None:
        starts = starts | _changes(numbers.to(inputs.device))
    return starts


def is_of_rows(attention_mask: Any) -> bool:
    """Whether it is None or a (B, P + T) mask, and not one over pairs of tokens."""
    return attention_mask is None or (torch.is_tensor(attention_mask) and attention_mask.dim() == 2)


def _changes(numbers: torch.Tensor) -> torch.Tensor:
    """(B, T) numbers -> (B, T) booleans: True in each column, but the first, that differs from the one before it."""
    return nn.functional.pad(numbers[:, 1:] != numbers[:, :-1], (1, 0))


def _check_ends(tokens: tuple[int, int], ends: torch.Tensor | None, ends_of_keys: torch.Tensor | None) -> None:
    if tokens[0] != 1:
        raise ValueError(f"cu_seq_lens_q divides a batch of one row, but this one has {tokens[0]}: give seq_idx.")
    if ends is not None and is_opaque(ends):
        return
    numbers = [] if ends is None else ends.tolist()
    divides = len(numbers) > 1 and (numbers[0], numbers[-1]) == (0, tokens[1]) and numbers == sorted(numbers)
    if not divides or not (ends_of_keys is None or numbers == ends_of_keys.tolist()):
        raise ValueError(
            f"cu_seq_lens_q is {ends} and cu_seq_lens_k is {ends_of_keys}, but both must be the same rising numbers "
            f"from 0 to {tokens[1]}, the tokens of the row."
        )


def restarts(position_ids: torch.Tensor, attention_mask: torch.Tensor | None) -> torch.Tensor | None:
    """(1, T) booleans, True where (1, T) positions begin again, or None unless they are runs that begin alike.

    A run is m, m + 1, ... with the same m, mostly 0, for all of them. Runs of one token only are none.
    """
    if not is_of_rows(attention_mask) or position_ids.shape[1] < 2:
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
    on_device = torch.is_tensor(values) and (is_opaque(values) or values.device.type not in READ_DEVICES)
    is_checked = not (on_device or is_tracing(inputs))
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


def cache_of_either_name(cache: Cache | None, past_key_values: Cache | None) -> Cache | None:
    """The one that is given, or None. Raises ValueError for both, and for a cache of another class."""
    if cache is not None and past_key_values is not None:
        raise ValueError("cache and past_key_values are two names of the same argument: give one of them.")
    cache = past_key_values if cache is None else cache
    if cache is not None and not isinstance(cache, Cache):  # a tuple, or that of continuous batching
        raise ValueError(f"the cache is a {type(cache).__name__}; give a DynamicCache")
    return cache


def check_places(cache: Cache | None, layers: int, field: str) -> None:
    """Raises ValueError for a cache of fewer layers than the model has, as of a configuration from before a change."""
    if cache is None or cache.layer_class_to_replicate is not None:  # one that grows
        return
    if len(cache.layers) < layers:
        raise ValueError(
            f"The cache has {len(cache.layers)} layers and the model {layers}: set config.{field} to {layers} after "
            "adding layers, and make the cache anew."
        )


def cached_tokens(cache: Cache | None) -> int | torch.Tensor:
    """P, the tokens in front of each row: 0 for None, a tensor for a static cache."""
    return 0 if cache is None else cache.get_seq_length()
