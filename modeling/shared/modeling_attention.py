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
"""Attention within each sequence of a batch, padded or packed (modeling_packing.py).

`attend` is the one way from queries, keys and values to states. In a padded batch, a mask hides padding, and the
configured function of transformers does the rest. In a packed row, `way_to_attend` says how the sequences are kept
apart: computed in groups of equal length, by the boundaries that a flash attention takes, or on a grid with padding.

Letters: as in modeling_packing.py.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn as nn
from transformers.cache_utils import Cache
from transformers.configuration_utils import PreTrainedConfig
from transformers.masking_utils import (
    create_bidirectional_mask,
    create_causal_mask,
    packed_sequence_mask_function,
)
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs
from transformers.utils.generic import is_flash_attention_requested
from transformers.utils.import_utils import is_tracing

from .modeling_onednn import Linear, has_amx, is_opaque, is_plain, product_type
from .modeling_packing import (
    CACHE,
    FLASH_OPERATION,
    Packing,
    Plan,
    is_recorded,
    is_well_known,
    states_at,
    way_to_attend,
)


TOGETHER_DEVICES = ("cuda",)


def attend(
    function: Callable,
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Any = None,
    cache: Cache | None = None,
    place: int | None = None,
    packing: Packing | None = None,
    **kwargs,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """softmax(QK' / sqrt(D)) V in each row, or in each sequence of a packed row.

    Args:
        function: what computes it, as transformers' `ALL_ATTENTION_FUNCTIONS` has it.
        module: the attention layer, with `config` and `is_causal`.
        query: (B, Q, A, D); packed, (1, N, A, D), or (1, S, A, D) of one token of each sequence: any in an encoder,
            the last in a decoder.
        key, value: (B, T, A, D); packed, (1, N, A, D).
        attention_mask: as `create_mask` makes it; None if packed.
        cache: keys and values (B, A, P, D) of tokens before, to which these are added; None if packed.
        place: of the layer in the model; only a cache asks for it.
        kwargs: what the function takes, `dropout` and `scaling` among others, and `is_causal` in the module's place.

    Returns: (B, Q, A * D), and probabilities (B, A, Q, P + T) if the implementation returns them.
    """
    if packing is None:
        query, key, value = (states.transpose(1, 2) for states in (query, key, value))  # (B, A, Q or T, D)
        if cache is not None and place is None:
            raise ValueError("a cache holds the states of all layers: give the layer's `place`, as the model does")
        if cache is not None:
            key, value = cache.update(key, value, place)  # (B, A, P + T, D)
        output, probabilities = function(module, query, key, value, attention_mask, **kwargs)
        return output.flatten(2), probabilities
    way = way_to_attend(module.config, query.device, product_type(query), query.shape[-1], kwargs["dropout"])
    ways = {
        "groups": _attend_in_groups,
        "grid": _attend_on_a_grid,
        "flash": _attend_by_flash,
        "named": _attend_by_name,
    }
    return ways[way](function, module, query, key, value, packing, **kwargs).flatten(2), None


def _attend_in_groups(function, module, query, key, value, packing: Packing, **kwargs) -> torch.Tensor:
    """One call for all sequences of the same length: (1, N or S, A, D)."""
    keys = [count * length for count, length in packing.groups]
    queries = keys if query.shape[1] == key.shape[1] else [count for count, _ in packing.groups]
    parts = zip(packing.groups, query.split(queries, 1), key.split(keys, 1), value.split(keys, 1), strict=True)
    outputs = []
    for (count, _), *states in parts:
        # (1, count * length, A, D) -> (count, A, 1 or length, D)
        states = (state.squeeze(0).unflatten(0, (count, -1)).transpose(1, 2) for state in states)
        output, _ = function(module, *states, None, **kwargs)  # (count, 1 or length, A, D)
        outputs.append(output.flatten(0, 1))
    return torch.cat(outputs).unsqueeze(0)


def _attend_on_a_grid(function, module, query, key, value, packing: Packing, **kwargs) -> torch.Tensor:
    """One call for all sequences, padded to the longest of them: (1, N or S, A, D)."""
    one_query = query.shape[1] != key.shape[1]  # which sees all of its sequence
    is_causal = is_causal_call(kwargs, module.is_causal) and not one_query
    mask = packing.causal_mask if is_causal else packing.mask
    query = query.transpose(0, 1) if one_query else packing.grid.unpack(query)
    states = (query, packing.grid.unpack(key), packing.grid.unpack(value))  # (S, 1 or L, A, D)
    states = (state.transpose(1, 2) for state in states)
    output, _ = function(module, *states, mask.to(key.device), **kwargs)
    return output.transpose(0, 1) if one_query else packing.grid.pack(output)


def _attend_by_name(function, module, query, key, value, packing: Packing, **kwargs) -> torch.Tensor:
    """One call of the configuration's flash attention, with the sequences' boundaries: (1, N or S, A, D)."""
    states = (state.transpose(1, 2) for state in (query, key, value))
    return function(module, *states, None, **kwargs | _boundaries(query, key, packing))[0]


def _attend_by_flash(function, module, query, key, value, packing, scaling, dropout, **kwargs) -> torch.Tensor:
    """As `_attend_by_name`, by torch's own flash attention."""
    lengths = _boundaries(query, key, packing)
    dtype = product_type(query)  # autocast does not cast for this operation
    states = (state.squeeze(0).to(dtype) for state in (query, key, value))  # (N or S, A, D)
    # A single query of a causal layer is its sequence's last token, which sees all others.
    is_causal = is_causal_call(kwargs, module.is_causal) and lengths["max_length_q"] > 1
    output, *_ = FLASH_OPERATION(*states, *lengths.values(), dropout, is_causal, False, scale=scaling)
    return output.unsqueeze(0)


def _boundaries(query: torch.Tensor, key: torch.Tensor, packing: Packing) -> dict[str, Any]:
    """Where sequences begin and end, (S + 1,) int32, and the longest length; of queries, one or all of a sequence."""
    keys, longest = packing.boundaries.to(key.device), packing.longest
    queries, most = keys, longest
    if query.shape[1] != key.shape[1]:
        queries, most = torch.arange(len(keys), dtype=torch.int32, device=key.device), 1
    return {"cu_seq_lens_q": queries, "cu_seq_lens_k": keys, "max_length_q": most, "max_length_k": longest}


def attention_implementation(config, query: torch.Tensor, kwargs: dict) -> str:
    """The attention function: the configuration's, or "eager" where sdpa does not suit the (B, Q, A, D) query.

    sdpa returns no attention probabilities and takes no empty batch. In bfloat16 on the CPU, it is slower for one
    query, as in a step of generation, with dropout, for which it computes in float32, and, on processors without AMX,
    in its backward pass. `kwargs` are those of the attention function. Raises ValueError if attentions are requested
    and the configured implementation cannot return them.
    """
    implementation = config._attn_implementation
    recorded = is_recorded(config, "attentions", kwargs)
    if recorded and (is_flash_attention_requested(config) or implementation == "flex_attention"):  # trf-ignore: TRF051
        raise ValueError(
            f"output_attentions=True, but the attention {implementation!r} has none to show: call "
            'model.set_attn_implementation("eager") or ("sdpa") first.'
        )
    if implementation != "sdpa":  # trf-ignore: TRF051
        return implementation
    suits = not recorded and (is_tracing(query) or _is_for_sdpa(query, kwargs["dropout"]))
    return implementation if suits else "eager"


def _is_for_sdpa(query: torch.Tensor, dropout: float) -> bool:
    slow = query.shape[1] == 1 or dropout > 0 or (torch.is_grad_enabled() and not has_amx())
    return query.numel() > 0 and not (slow and query.device.type == "cpu" and product_type(query) == torch.bfloat16)


def project(module: nn.Module, states: torch.Tensor, read: torch.Tensor | None) -> Sequence[torch.Tensor]:
    """(B, T, H) states -> queries (B, Q, A * D) of the tokens in the columns `read`, keys and values (B, T, A * D).

    Under autocast, each product casts its states for itself, and its weight and bias once. On a small batch, a GPU
    waits for the calls of so many kernels. So there, plain layers are one product with the weights of all. Its parts
    may not be changed in place, as an attention function of the user might.

    Args:
        module: the attention layer, with `config` and the layers `query`, `key` and `value`.
        read: (B, Q); None: all tokens.
    """
    layers, queries = [module.query, module.key, module.value], []
    if read is not None:
        layers, queries = layers[1:], [module.query(states_at(states, read))]
    if not _are_one_product(module.config, states, layers):
        return [*queries, *(layer(states) for layer in layers)]
    weight, bias = (torch.cat([getattr(layer, name) for layer in layers]) for name in ("weight", "bias"))
    products = nn.functional.linear(states, weight, bias)
    return [*queries, *products.split([layer.out_features for layer in layers], -1)]


def _are_one_product(config, states: torch.Tensor, layers: list[nn.Module]) -> bool:
    """Not with weights that autocast does not cast: one product would only keep one more copy of them."""
    device = states.device.type
    if device not in TOGETHER_DEVICES or not torch.is_autocast_enabled(device) or is_tracing(states):
        return False
    are_plain = is_well_known(config) and all(is_plain(layer, Linear) and layer.bias is not None for layer in layers)
    return are_plain and all(layer.weight.dtype != torch.get_autocast_dtype(device) for layer in layers)


def is_causal_call(kwargs: dict, default: bool) -> bool:
    """Whether a token sees none after it: as transformers' argument `is_causal` says or, without it, by default."""
    return default if kwargs.get("is_causal") is None else kwargs["is_causal"]


def split_heads(states: torch.Tensor, head_dim: int) -> torch.Tensor:
    """(B, T, A * D) -> (B, T, A, D), also for an empty batch. Under tensor parallelism, A is a process's heads.

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
    if attention_mask is None and is_causal_call(kwargs, module.is_causal) and query.shape[2] > 1:
        attention_mask = torch.ones(scores.shape[2:], dtype=torch.bool, device=scores.device).tril()
    if attention_mask is not None and attention_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attention_mask, torch.finfo(scores.dtype).min)
    elif attention_mask is not None:
        scores = scores + attention_mask
    probabilities = scores.softmax(-1)
    probabilities = nn.functional.dropout(probabilities, p=dropout, training=module.training)
    return (probabilities @ value).transpose(1, 2).contiguous(), probabilities  # (B, T, A, D)


def create_mask(
    config: PreTrainedConfig, states: torch.Tensor, plan: Plan, cache: Cache | None, is_causal: bool
) -> Any:
    """The mask for the attention function of a batch, as transformers makes it, or None; None for a packed batch.

    It hides padding, the other sequences of a row and, if `is_causal`, later tokens.

    Args:
        states: (B, T, H); only shape, type and device are used.
    """
    if plan.packing is not None:
        return None
    overlay = None
    if plan.starts is not None:
        if config._attn_implementation not in ("eager", "sdpa", "flex_attention"):  # trf-ignore: TRF051
            raise ValueError(
                f"a row holds several sequences, and the attention {config._attn_implementation!r} keeps them "
                "apart only where padding is not computed. Choose eager, sdpa or flex_attention, or keep unpad=True, "
                "label no padding, and request no cache, no attentions, and no hidden states with gradients."
            )
        if torch.jit.is_tracing():
            raise ValueError(
                "TorchScript cannot trace the masks that separate the sequences of a row, as positions of a batch of "
                "one row may do: use torch.export, or torch.onnx.export with dynamo=True."
            )
        # torch_xla sums booleans to booleans.
        overlay = packed_sequence_mask_function(plan.starts.expand(states.shape[:2]).int().cumsum(-1))
    elif plan.is_padded and config._attn_implementation in ("eager", "sdpa"):  # trf-ignore: TRF051
        return _padding_mask(plan.attention_mask.to(states.device), is_causal)
    elif is_opaque(plan.attention_mask) and not is_tracing(plan.attention_mask):
        overlay = _allow_all  # without an overlay, transformers would read the values of the mask
    return (create_causal_mask if is_causal else create_bidirectional_mask)(
        config=config,
        inputs_embeds=states,
        attention_mask=plan.attention_mask,
        and_mask_function=overlay,
        **{CACHE: cache},
    )


def _padding_mask(attention_mask: torch.Tensor, is_causal: bool) -> torch.Tensor:
    """(B, 1, T, T) booleans: which tokens see which, of a batch that has padding or counts as if.

    transformers would read the (B, T) mask first, to see whether there is any.
    """
    columns = attention_mask.shape[1]
    mask = (attention_mask != 0)[:, None, None, :].expand(-1, 1, columns, columns)
    return mask & torch.ones(columns, columns, dtype=torch.bool, device=mask.device).tril() if is_causal else mask


def mask_of_queries(mask: Any, read: torch.Tensor | None) -> tuple[Any, torch.Tensor | None]:
    """The mask of a layer that computes only the tokens in the (B or 1, Q) columns `read`, and these columns.

    The masks of flash and flex attention cannot be cut down to some queries. The layer then computes all tokens.
    """
    if read is None or mask is None:
        return mask, read
    if not (torch.is_tensor(mask) and mask.dim() == 4):
        return mask, None
    columns = read[:, None, :, None].expand(-1, mask.shape[1], -1, mask.shape[3]).to(mask.device)
    return mask.expand(read.shape[0], -1, -1, -1).gather(2, columns), read


def _allow_all(batch_idx, head_idx, q_idx, kv_idx) -> torch.Tensor:
    """A mask function, as transformers calls it for pairs of tokens, that hides none of them."""
    return q_idx >= 0
