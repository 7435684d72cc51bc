"""Writes the vectors of a part of a text as safetensors or parquet, and reads what a written file says of itself.

The same part gives the same bytes each time: a file has one entry of metadata, `vectors`, because safetensors stores
several in any order.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from elmo_gpt_bert.training.files import new_file


Format = Literal["safetensors", "parquet"]
REMEDY = "Make room, then give the same command with --resume"
INFO = "vectors"  # the entry of metadata


@dataclass(frozen=True)
class Part:
    """The vectors of a few lines of a text.

    first: the number of the first line, 0 for the first of the text
    columns: what the layers of `vectors` are called: one name if they were combined, or only one was asked for
    texts: the lines, if a line has one vector; otherwise None
    words: the words or tokens of each line; None if a line has one vector
    vectors: of each line (L, W, H), or (L, H) if it has one vector; L has its name in `columns`
    truncated: the numbers of the lines that the model has not read to their end
    """

    first: int
    columns: list[str]
    texts: list[str] | None
    words: list[list[str]] | None
    vectors: list[np.ndarray]
    truncated: list[int]

    @property
    def info(self) -> dict[str, Any]:
        """What the file says of itself."""
        count = len(self.vectors) if self.words is None else sum(map(len, self.words))
        return {"first": self.first, "lines": len(self.vectors), "vectors": count, "truncated": self.truncated}


def write_part(part: Part, path: Path, kind: Format) -> None:
    """Writes a file as `new_file` does: it is complete, or it is not there."""
    with new_file(path, REMEDY) as temporary:
        WRITERS[kind](part, temporary)


def read_info(path: Path, kind: Format) -> dict[str, Any] | None:
    """What a file says of itself; None if it is missing or damaged."""
    try:
        return READERS[kind](path)
    except (OSError, SafetensorError, pa.ArrowException, KeyError, ValueError):
        return None


# safetensors


def _write_safetensors(part: Part, path: Path) -> None:
    """A tensor for each line, named by its number; if each line has one vector, one tensor `vectors` of all of them.

    With one column, tensors lack the dimension of layers.
    """
    arrays = [array[0] if len(part.columns) == 1 else array for array in part.vectors]
    info = part.info | {"columns": part.columns}
    if part.words is None:
        tensors = {"vectors": np.stack(arrays)}
    else:
        tensors = {str(number): np.ascontiguousarray(array) for number, array in enumerate(arrays, part.first)}
        info["words"] = part.words
    save_file(tensors, path, {INFO: json.dumps(info, ensure_ascii=False)})


def _read_safetensors(path: Path) -> dict[str, Any]:
    with safe_open(path, "np") as file:
        return json.loads(file.metadata()[INFO])


# parquet


def _write_parquet(part: Part, path: Path) -> None:
    """A row for each line: its number, its text or its words, and a column of vectors for each name in `columns`."""
    lines = np.arange(part.first, part.first + len(part.vectors))
    columns: dict[str, pa.Array] = {"line": pa.array(lines, pa.int64())}
    if part.words is None:
        columns["text"] = pa.array(part.texts, pa.string())
    else:
        columns["words"] = pa.array(part.words, pa.list_(pa.string()))
    for number, name in enumerate(part.columns):
        columns[name] = _vectors([array[number] for array in part.vectors])
    table = pa.table(columns)
    # In groups of a few rows, a reader needs not hold the whole file.
    pq.write_table(table.replace_schema_metadata({INFO: json.dumps(part.info)}), path, row_group_size=100)


def _vectors(arrays: Sequence[np.ndarray]) -> pa.Array:
    """An array of each line's vectors (W, H), or of its one vector (H)."""
    flat = np.concatenate([array.reshape(-1, array.shape[-1]) for array in arrays])
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(flat.reshape(-1)), flat.shape[-1])
    if arrays[0].ndim == 1:
        return vectors
    ends = np.cumsum([0, *map(len, arrays)])
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), vectors)


def _read_parquet(path: Path) -> dict[str, Any]:
    return json.loads(pq.read_schema(path).metadata[INFO.encode()])


WRITERS: dict[Format, Callable[[Part, Path], None]] = {"safetensors": _write_safetensors, "parquet": _write_parquet}
READERS: dict[Format, Callable[[Path], dict]] = {"safetensors": _read_safetensors, "parquet": _read_parquet}
