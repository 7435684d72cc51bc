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
"""How the files of a release become a model. Every tensor is used and every parameter filled.

A table has a row for each parameter, in the order of the architecture: the release's name, ours, and how to convert.
{} in both names is the number of a layer. Errors are a ValueError or an OSError of one line.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch


Shape = tuple[int, ...]


class Conversion(NamedTuple):
    """How a tensor of a release becomes a parameter of our model."""

    shape: Callable[[Shape], Shape]  # the parameter's shape -> the released tensor's
    values: Callable[[np.ndarray], np.ndarray]  # the released tensor -> the parameter


AS_IS = Conversion(lambda ours: ours, lambda tensor: tensor)
# TensorFlow multiplies from the right, x W, so its kernels are (in, out) where torch's weights are (out, in).
DENSE = Conversion(lambda ours: ours[::-1], lambda kernel: kernel.T)

Table = tuple[tuple[str, str, Conversion], ...]


def released_names(table: Table, parameters: Iterable[str]) -> dict[str, tuple[str, Conversion]]:
    """The original name, and the conversion, of each parameter that the table has."""
    parameters = set(parameters)
    return {
        name: (original.format(number), conversion)
        for original, ours, conversion in table
        for number in range(len(parameters))
        if (name := ours.format(number)) in parameters
    }


def as_parameters(
    tensors: Mapping[str, np.ndarray],
    parameters: Mapping[str, torch.nn.Parameter],
    table: Table,
    weights: str,
    sizes: str,
    remedy: str,
) -> dict[str, torch.Tensor]:
    """The values of all `parameters`, made of all `tensors`.

    Errors name the file of the tensors, `weights`, and what the parameters' shapes are from, `sizes`.

    Raises:
        ValueError: when a tensor is missing, unknown, of another shape or type, or not finite.
    """
    rows = released_names(table, parameters)
    if rows.keys() != parameters.keys():
        raise RuntimeError(f"the table lacks the parameters {name_all(sorted(parameters.keys() - rows.keys()))}")
    mismatch = f"{weights} does not fit {sizes}:"
    originals = {original for original, _ in rows.values()}
    differences = (("lacks", originals - tensors.keys()), ("has the unknown", tensors.keys() - originals))
    problems = [f"{what} {name_all(sorted(names))}" for what, names in differences if names]
    if problems:
        raise ValueError(f"{mismatch} it {' and '.join(problems)}. {remedy}")
    values = {}
    for name, (original, conversion) in rows.items():
        tensor = tensors[original]
        expected = conversion.shape(tuple(parameters[name].shape))
        if tensor.shape != expected or tensor.dtype != np.float32:
            raise ValueError(
                f"{mismatch} {original} is {tensor.dtype} {tensor.shape}, but should be float32 {expected}. {remedy}"
            )
        if not np.isfinite(tensor).all():
            raise ValueError(
                f"{weights}: not all numbers of {original} are finite. Its training diverged, or the file is damaged: "
                "download it again"
            )
        values[name] = torch.from_numpy(conversion.values(tensor)).contiguous()
    return values


def name_all(names: list[str]) -> str:
    """The names in an error, on one short line, as in "a, b, c, d and 2 more"."""
    shown = [name if len(name) <= 80 and name.isprintable() else f"{name!r:.80}" for name in names[:4]]
    return ", ".join(shown) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


# Text


def read_text(path: Path) -> str:
    """The text of a file in UTF-8. Raises OSError or ValueError, with the file's name, if it cannot be read."""
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8: {error}") from error


def parse_json(path: Path) -> Any:
    """The JSON value that a file holds. An object that has a name twice is an error: `json` keeps the last value."""
    text = read_text(path)
    try:
        return json.loads(text, object_pairs_hook=_object)
    except (RecursionError, ValueError) as error:  # RecursionError: nested too deeply
        raise ValueError(f"{path} is not JSON: {error}") from error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        name, count = Counter(name for name, _ in pairs).most_common(1)[0]
        raise ValueError(f"an object has the name {name!r:.80} {count} times: keep one of them")
    return values


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object that a file holds. Raises ValueError if it holds another value."""
    values = parse_json(path)
    if not isinstance(values, dict):
        raise ValueError(f"{path} must hold one JSON object, not {type(values).__name__}")
    return values
