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
"""The two names of a cache of keys and values.

transformers calls it `past_key_values` up to 5.23 and `cache` since 5.24: in `forward`, in a model's output, and in
the functions that create masks. Here, `forward` takes it under both names. What goes to transformers, or comes from
it, has the name of the installed release. A layer takes it as `layer_past`, which gradient checkpointing leaves out
in every release.
"""

from transformers.cache_utils import Cache
from transformers.modeling_outputs import BaseModelOutputWithPast


CACHE_NAMES = ["cache", "past_key_values"]
CACHE = next(name for name in CACHE_NAMES if name in BaseModelOutputWithPast.__dataclass_fields__)


def cache_of_either_name(cache: Cache | None, past_key_values: Cache | None) -> Cache | None:
    """The one that is given, or None. Raises ValueError for both."""
    if cache is not None and past_key_values is not None:
        raise ValueError("cache and past_key_values are two names of the same argument: give one of them.")
    return past_key_values if cache is None else cache
