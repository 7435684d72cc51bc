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
padding, steps of generation and other devices go to sdpa.

Letters: N tokens of all sequences, S sequences, A heads, D dimensions of a head.
"""

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
    """Attention within the sequences that the boundaries separate: (1, N or S, A, D). Without boundaries: sdpa's.

    Raises:
        ImportError: if this release of torch has no such attention.
        ValueError: for dropout, which the kernel does not have, and for types other than bfloat16 and float16.
    """
    if cu_seq_lens_q is None:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
    if dropout > 0:
        raise ValueError(
            f"the attention {VARLEN!r} has no dropout, but this model's is {dropout}: set the dropout of attention to "
            '0 in the configuration, or choose attn_implementation="sdpa".'
        )
    if query.dtype not in VARLEN_TYPES:
        raise ValueError(
            f"the attention {VARLEN!r} computes in bfloat16 and float16, but the states are {query.dtype}: train with "
            'mixed precision, load the model with dtype=torch.bfloat16, or choose attn_implementation="sdpa".'
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


def _kernel() -> Callable:
    """`torch.nn.attention.varlen.varlen_attn`, imported when it is first called, because earlier torch has none."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        varlen_attn = None
    if varlen_attn is None or "window_size" not in inspect.signature(varlen_attn).parameters:
        raise ImportError(
            f"the attention {VARLEN!r} needs torch.nn.attention.varlen with windows, which torch {torch.__version__} "
            'does not have: install torch 2.11 or later, or choose attn_implementation="sdpa".'
        )
    return varlen_attn


AttentionInterface.register(VARLEN, varlen_attention_forward)
AttentionMaskInterface.register(VARLEN, sdpa_mask)
