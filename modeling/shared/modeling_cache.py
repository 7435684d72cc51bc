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
"""The two names and the two kinds of a cache of keys and values.

transformers calls it `past_key_values` up to 5.23 and `cache` since 5.24: in `forward`, in a model's output, and in
the functions that create masks. Here, `forward` takes it under both names. What goes to transformers, or comes from
it, has the name of the installed release. A layer takes it as `layer_past`, which gradient checkpointing leaves out
in every release.

transformers' continuous batching has a cache of its own, the paged one, which holds the keys of many requests. The
caller gives the positions and the mask. Its attention functions fill the cache up to 5.23, a layer does since 5.24.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from transformers.cache_utils import Cache
from transformers.modeling_outputs import BaseModelOutputWithPast


CACHE_NAMES = ["cache", "past_key_values"]
CACHE = next(name for name in CACHE_NAMES if name in BaseModelOutputWithPast.__dataclass_fields__)
ATTENTION_FILLS_PAGED_CACHE = CACHE == "past_key_values"


def cache_of_either_name(cache: Cache | None, past_key_values: Cache | None) -> Cache | None:
    """The one that is given, or None. Raises ValueError for both."""
    if cache is not None and past_key_values is not None:
        raise ValueError("cache and past_key_values are two names of the same argument: give one of them.")
    return past_key_values if cache is None else cache


def without_cache_by_default(forward: Callable) -> Callable:
    """`forward`, whose `use_cache` is False unless the caller says otherwise, rather than the configuration's.

    `generate` reads that of the configuration and passes it.
    """

    @functools.wraps(forward)
    def forward_without_cache(self, *args, use_cache: bool | None = None, **kwargs):
        return forward(self, *args, use_cache=bool(use_cache), **kwargs)

    return forward_without_cache


def check_places(cache: Cache | None, layers: int, field: str) -> None:
    """Raises ValueError for a cache of fewer layers than the model has, as of a configuration from before a change."""
    if not isinstance(cache, Cache) or cache.layer_class_to_replicate is not None:  # one that grows
        return
    if len(cache.layers) < layers:
        raise ValueError(
            f"The cache has {len(cache.layers)} layers and the model {layers}: set config.{field} to {layers} after "
            "adding layers, and make the cache anew."
        )


def is_paged(cache: Any) -> bool:
    """Whether it is the cache of continuous batching, which is no `Cache`; by name, because its module may move."""
    return type(cache).__name__ == "PagedAttentionCache"


def cached_tokens(cache: Cache | None) -> int | torch.Tensor:
    """P, the tokens in front of each row: 0 for None and for a paged cache, a tensor for a static one."""
    return 0 if cache is None or is_paged(cache) else cache.get_seq_length()
