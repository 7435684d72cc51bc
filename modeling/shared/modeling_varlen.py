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
"""torch's own flash attention over sequences of different lengths, as an attention implementation of transformers.

`attn_implementation="torch_varlen"` is sdpa, except that one call of `torch.nn.attention.varlen` computes all
sequences of a packed row on a GPU. It ships with torch, so nothing has to be installed or downloaded. Batches without
padding and steps of generation go to sdpa, and so does whatever the kernel does not take (`takes_varlen`): dropout,
other types and sizes, other devices.

Letters: N tokens of all sequences, S sequences, A heads, D dimensions of a head.
"""

import functools
import inspect
from collections.abc import Callable

import torch
import torch.nn as nn
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask


VARLEN = "torch_varlen"
VARLEN_DEVICES = ("cuda",)
VARLEN_TYPES = (torch.bfloat16, torch.float16)
HEAD_DIMS = range(8, 257, 8)
EVERYTHING, EARLIER_TOKENS = (-1, -1), (-1, 0)  # how many tokens to the left and to the right a query sees; -1: all


def varlen_attention_forward(
    module: nn.Module,
    query: torch.Tensor,  # (1, A, N or S, D) if there are boundaries
    key: torch.Tensor,  # (1, A, N, D)
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    cu_seq_lens_q: torch.Tensor | None = None,  # (S + 1,), int32
    cu_seq_lens_k: torch.Tensor | None = None,
    max_length_q: int | None = None,
    max_length_k: int | None = None,
    **kwargs,
) -> tuple[torch.Tensor, None]:
    """Attention within the sequences that the boundaries separate: (1, N or S, A, D). Without boundaries: sdpa's."""
    if cu_seq_lens_q is None:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
    # A single query of a causal layer is its sequence's last token, which sees all others.
    window = EARLIER_TOKENS if module.is_causal and max_length_q > 1 else EVERYTHING
    query, key, value = (states.squeeze(0).transpose(0, 1) for states in (query, key, value))  # (N or S, A, D)
    output = _kernel()(
        query,
        key,
        value,
        cu_seq_lens_q,
        cu_seq_lens_k,
        max_length_q,
        max_length_k,
        scale=scaling,
        window_size=window,
    )
    return output.unsqueeze(0), None


def takes_varlen(query: torch.Tensor, dropout: float) -> bool:
    """Whether torch's kernel computes attention of (N, A, D) queries, with this dropout, on their GPU."""
    if dropout > 0 or query.dtype not in VARLEN_TYPES or query.shape[-1] not in HEAD_DIMS:
        return False
    is_old = query.device.type == "cuda" and torch.cuda.get_device_capability(query.device) < (8, 0)
    return not is_old and _kernel() is not None


@functools.cache
def _kernel() -> Callable | None:
    """`torch.nn.attention.varlen.varlen_attn`, imported when it is first called, or None before torch 2.11."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    return varlen_attn if "window_size" in inspect.signature(varlen_attn).parameters else None


AttentionInterface.register(VARLEN, varlen_attention_forward)
AttentionMaskInterface.register(VARLEN, sdpa_mask)
