"""Digests of data sets and models, which tell whether two of them hold the same values."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Container, Iterator
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
import torch

from elmo_gpt_bert.training.errors import InputError


if TYPE_CHECKING:
    import pyarrow as pa
    from datasets import Dataset
    from transformers import PreTrainedModel


# Fields of a configuration that the states of its base model do not depend on.
UNRELATED = ("architectures", "auto_map", "dtype", "id2label", "label2id", "problem_type", "transformers_version")


@runtime_checkable
class Digested(Protocol):
    """Data that comes with a digest."""

    digest: str


def digest(data_set: Dataset | Digested) -> str:
    """SHA-256 of the columns' names, types and values, in hexadecimal digits.

    It is the same for data in memory, on disk, or selected from a larger data set.
    """
    if isinstance(data_set, Digested):
        return data_set.digest
    content, tables = hashlib.sha256(), data_set.with_format("arrow")
    if not len(data_set):
        content.update(repr(data_set.column_names).encode())
    for start in range(0, len(data_set), 1000):
        table = tables[start : start + 1000].combine_chunks()
        for name, column in zip(table.column_names, table.columns, strict=True):
            content.update(name.encode())
            for part in _parts(column.chunk(0)):
                content.update(part)
    return content.hexdigest()


def _parts(array: pa.Array) -> Iterator[bytes | np.ndarray]:
    """Yields the array's type and values. Arrow's buffers also hold bytes outside a slice and under missing values."""
    from pyarrow import types  # the import takes time, which --help does not need

    yield f" {array.type} {len(array)} {array.null_count} ".encode()
    if array.null_count:
        yield array.is_valid().to_numpy(zero_copy_only=False)
        array = array.drop_null()
    if types.is_null(array.type):  # a column without a value, or with empty lists alone
        return
    if types.is_string(array.type) or types.is_large_string(array.type):
        array = array.cast("large_binary")
    if types.is_binary(array.type) or types.is_large_binary(array.type):
        texts = array.to_pylist()
        yield np.array([len(text) for text in texts])
        yield b"".join(texts)
    elif types.is_struct(array.type):
        for field in array.flatten():
            yield from _parts(field)
    elif types.is_nested(array.type):  # lists
        yield array.value_lengths().to_numpy()
        yield from _parts(array.flatten())
    else:
        values = array.to_numpy(zero_copy_only=False)
        if values.dtype == object:  # addresses in memory
            raise InputError(f"values of type {array.type} cannot be compared: convert them to numbers or text")
        yield values


def model_digest(model: PreTrainedModel, leave_out: Container[str] = ()) -> str:
    """SHA-256 of the configuration and the weights, but those whose names are left out, in hexadecimal digits."""
    config = {name: value for name, value in model.config.to_dict().items() if name not in UNRELATED}
    content = hashlib.sha256(json.dumps(config, sort_keys=True, default=str).encode())
    for name, tensor in sorted(model.state_dict().items()):
        if name not in leave_out:
            content.update(name.encode())
            content.update(tensor.cpu().contiguous().view(-1).view(torch.uint8).numpy())
    return content.hexdigest()
