"""Readers of minimal pairs: BLiMP's folder, or a file of the user's own.

The examples have the columns sentence_good, sentence_bad, field, linguistics_term, UID and pairID, as in BLiMP, and
place, which says where a pair comes from. Only the sentences are needed; the other columns are empty where the data
lack them. A broken file is a ValueError that names the file, the line and the mistake.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from elmo_gpt_bert.tasks.compressed import COMPRESSED
from elmo_gpt_bert.tasks.rows import (
    DATA_DIR,
    TABLES,
    check_folder,
    listed,
    read_json_lines,
    to_dataset,
    unbroken,
)
from elmo_gpt_bert.training.errors import InputError, MissingFileError
from elmo_gpt_bert.training.files import shown


if TYPE_CHECKING:
    from datasets import Dataset


READERS = TABLES | dict.fromkeys((".json", ".jsonl", ".ndjson"), read_json_lines)
SENTENCES = ("sentence_good", "sentence_bad")
PHENOMENA = ("field", "linguistics_term", "UID")  # from the widest to the narrowest
NAMES = (*PHENOMENA, "pairID")
BLIMP_PAIRS, BLIMP_UIDS = 67_000, 67
BLIMP_TERMS = {"anaphor_agreement", "argument_structure", "binding", "control_raising", "determiner_noun_agreement"}
BLIMP_TERMS |= {
    "ellipsis",
    "filler_gap_dependency",
    "irregular_forms",
    "island_effects",
    "npi_licensing",
    "quantifiers",
}
BLIMP_TERMS |= {"s-selection", "subject_verb_agreement"}


def read_folder(data_dir: Path) -> Dataset:
    """The pairs of all files of JSON lines in a folder, which is BLiMP's or has its layout, in the order of names."""
    return _examples((pair for path in find_files(data_dir) for pair in _read(path)), data_dir)


def find_files(data_dir: Path) -> list[Path]:
    """The files that `read_folder` reads. Raises FileNotFoundError if there are none."""
    check_folder(data_dir)
    folder = data_dir / "data" if (data_dir / "data").is_dir() else data_dir
    paths = sorted(path for path in folder.iterdir() if _reader(path) is read_json_lines)
    if not paths:
        raise MissingFileError(f"{folder} holds no .jsonl files: ", DATA_DIR, " is not the folder of BLiMP")
    return paths


def read_file(path: Path) -> Dataset:
    """The pairs of one file."""
    if _reader(path) is None:
        endings = f"{', '.join(READERS)}, which may be compressed as {', '.join(COMPRESSED)}"
        raise InputError(f"{path}: a file of pairs must be one of {endings}")
    return _examples(_read(path), path)


def phenomena(data: Dataset) -> dict[str, list[str]]:
    """The column of `PHENOMENA` -> the names in it, in their first order. Columns without a name are left out.

    Raises ValueError if a name stands in two columns, since its score has only one place in metrics.json.
    """
    columns = {column: [name for name in dict.fromkeys(data[column][:]) if name] for column in PHENOMENA}
    seen: dict[str, str] = {}
    for column, names in columns.items():
        for name in names:
            if seen.setdefault(name, column) != column:
                raise InputError(f"{shown(name)} is both a {seen[name]} and a {column}: rename one of them")
    return {column: names for column, names in columns.items() if names}


def is_blimp(data: Dataset) -> bool:
    """Whether the pairs are BLiMP's, all of them, judged by their number and the names of their phenomena."""
    numbers = (len(data), len({*data["UID"][:]}))
    return numbers == (BLIMP_PAIRS, BLIMP_UIDS) and {*data["linguistics_term"][:]} == BLIMP_TERMS


def _reader(path: Path) -> object:
    """The function that reads the file's rows; None if its name has none of the endings of `READERS`."""
    plain = path.with_suffix("") if path.suffix.lower() in COMPRESSED else path
    return READERS.get(plain.suffix.lower())


def _read(path: Path) -> Iterator[dict[str, str]]:
    for line, row in unbroken(_reader(path)(path), path):
        yield _pair(row, f"{path.name}:{line}")


def _pair(row: dict, place: str) -> dict[str, str]:
    """The columns of one pair. BLiMP's files spell one field both "syntax/semantics" and "syntax_semantics"."""
    missing = [name for name in SENTENCES if name not in row]
    if missing:
        raise InputError(f"{place}: no column {', '.join(missing)} among {listed(row)}")
    pair = {name: row[name] for name in SENTENCES} | {name: row.get(name) for name in NAMES}
    for name, value in pair.items():
        if name in SENTENCES and not (isinstance(value, str) and value.strip()):
            problem = "empty: leave the pair out" if value in ("", None) else f"{shown(value)}, not a sentence"
            raise InputError(f"{place}: {name} is {problem}")
        if isinstance(value, (bool, float, list, dict)):
            raise InputError(f"{place}: {name} is {shown(value)}, not a name")
        pair[name] = "" if value is None else str(value)
    return pair | {"field": pair["field"].replace("/", "_"), "place": place}


def _examples(pairs: Iterable[dict[str, str]], source: Path) -> Dataset:
    rows = list(pairs)
    if not rows:
        raise InputError(f"{source} holds no pairs")
    return to_dataset(rows, source)
