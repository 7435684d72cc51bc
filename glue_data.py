"""Files of text and labels, in rows: unquoted tab-separated as the GLUE zip's, csv, or JSON with one object a line.

A broken file is a ValueError that names it, the line and the mistake. Values stay what the file says: "null" and "NA"
are text.
"""

import csv
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from datasets import Dataset


OWN_TEXT = (("sentence1", "sentence2"), ("sentence",), ("text",))


def read_own_file(path: Path, labelled: bool) -> Dataset:
    """A file of the user's own as columns text, text_pair if there are two, and label as a string."""
    readers = {".csv": read_csv, ".tsv": read_tsv, ".json": read_json_lines, ".jsonl": read_json_lines}
    if path.suffix not in readers:
        raise ValueError(f"{path}: a file of your own is one of {', '.join(readers)}")
    rows, text = [], None
    for line, row in readers[path.suffix](path):
        if isinstance(row, str):
            raise ValueError(f"{path}:{line}: {row}")
        text = text or next((names for names in OWN_TEXT if set(names) <= row.keys()), None)
        if text is None:
            wanted = "sentence, text, or sentence1 and sentence2"
            raise ValueError(f"{path} has the columns {', '.join(row)}: the text's must be {wanted}")
        names = [*text, "label"] if labelled else text
        values = columns(row, names, path, line)
        for name, value in zip(names, values, strict=True):
            if not isinstance(value, (str, int, float)) or (name == "label" and not str(value).strip()):
                raise ValueError(f"{path}:{line}: {name} is {value!r}, neither text nor a number")
        rows.append([str(value) for value in values])
    return to_dataset(rows, len(text or ()), path)


def read_tsv(path: Path, header: tuple[str, ...] | None = None) -> Iterator[tuple[int, dict[str, str] | str]]:
    """Yields (line number, row) of an unquoted tab-separated file; of a broken row (line number, what is wrong).

    `header` names the columns where the file's first line does not. Byte order mark and carriage returns are dropped.
    """
    lines = ((line, content.rstrip("\r\n").split("\t")) for line, content in _lines(path))
    return _rows(lines, path, header)


def read_csv(path: Path) -> Iterator[tuple[int, dict[str, str] | str]]:
    """As `read_tsv`, of a csv file. A row has the number of the line it begins in."""
    return _rows(_csv_lines(path), path)


def _csv_lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    csv.field_size_limit(2**31 - 1)  # the default of 131,072 characters is shorter than some texts
    reader = csv.reader((content for _, content in _lines(path)), strict=True)
    line = 1
    try:
        for values in reader:
            yield line, values
            line = reader.line_num + 1
    except csv.Error as error:
        raise ValueError(
            f"{path}:{line}: not csv ({error}): close each quote, double those inside, and end lines with \\n"
        ) from error


def _rows(
    lines: Iterable[tuple[int, list[str]]], path: Path, header: tuple[str, ...] | None = None
) -> Iterator[tuple[int, dict[str, str] | str]]:
    for line, values in lines:
        if header is None:
            header = tuple(values)
            if repeated := sorted({name for name in header if name and header.count(name) > 1}):
                raise ValueError(f"{path}:{line}: the header has {', '.join(repeated)} more than once")
        elif len(values) == len(header):
            yield line, dict(zip(header, values, strict=True))
        elif values not in ([], [""]):
            yield line, f"{len(values)} columns instead of {len(header)}"


def read_json_lines(path: Path) -> Iterator[tuple[int, dict | str]]:
    """As `read_tsv`, of a file with one JSON object a line."""
    for line, content in _lines(path):
        if not content.strip():
            continue
        try:
            row = json.loads(content)
        except json.JSONDecodeError as error:
            yield line, f"not JSON ({error}); a file holds one object a line"
            continue
        yield line, row if isinstance(row, dict) else "not a JSON object"


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    with path.open("rb") as file:
        for line, raw in enumerate(file, start=1):
            try:
                yield line, raw.decode("utf-8-sig" if line == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise ValueError(f"{path}:{line}: not UTF-8 ({error}): convert the file, e.g. with iconv") from error


def columns(row: dict, names: Iterable[str], path: Path, line: int) -> list:
    """The row's values under `names`."""
    missing = [name for name in names if name not in row]
    if missing:
        raise ValueError(f"{path}:{line}: no column {', '.join(missing)} among {', '.join(row)}")
    return [row[name] for name in names]


def to_dataset(rows: list[list], texts: int, path: Path) -> Dataset:
    """Rows of one or two texts, perhaps followed by a label, under the names text, text_pair, label."""
    if not rows:
        raise ValueError(f"{path} holds no examples")
    names = ["text", "text_pair"][:texts] + ["label"] * (len(rows[0]) - texts)
    return Dataset.from_dict(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)))
