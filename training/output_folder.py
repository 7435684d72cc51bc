"""What stands in a run's output folder, and what of it another run replaces.

OUTPUT_DIR/metrics.json, predictions*.*, outputs-*.safetensors     results
OUTPUT_DIR/.results.json                                           which files of results there are
OUTPUT_DIR/config.json, model.safetensors, README.md, SHA256SUMS   the model folder
OUTPUT_DIR/checkpoint-UPDATES/                                     what --resume reads
OUTPUT_DIR/seed-N/                                                 with --seeds, the same of each run
OUTPUT_DIR/seed-N/.identity.json                                   which run it is
"""

import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from training.errors import InputError
from training.files import read_json, remove, shown, write_json


METRICS = "metrics.json"
IDENTITY = ".identity.json"
RESULTS = ".results.json"
CHECKPOINT = re.compile(r"checkpoint-(\d+)")
HALF_WRITTEN = re.compile(r"\.checkpoint-(\d+)\.new")
SEED = re.compile(r"seed-(\d+)")


def folders(output: Path, name: re.Pattern) -> list[Path]:
    """The folders in `output` of exactly this kind of name: others there are the user's."""
    return [path for path in output.glob("*") if path.is_dir() and name.fullmatch(path.name)]


@dataclass(frozen=True)
class ResultFiles:
    """The names of the files of results in an output folder, beside metrics.json."""

    predictions: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)  # what --save_outputs kept


def note_results(output: Path, predictions: Iterable[str] = (), outputs: Iterable[str] = ()) -> None:
    """Puts names on the folder's record; before the files are written, so that a run that is killed leaves none that
    a later run does not know.
    """
    noted = noted_results(output)
    both = ResultFiles(sorted({*noted.predictions, *predictions}), sorted({*noted.outputs, *outputs}))
    if both != noted:
        write_json(output / RESULTS, asdict(both))


def noted_results(output: Path) -> ResultFiles:
    """The folder's record. Raises ValueError where it is not what `note_results` writes."""
    path = output / RESULTS
    if not path.is_file():
        return ResultFiles()
    record = read_json(path)
    lists = [record.get(field.name) for field in fields(ResultFiles)] if isinstance(record, dict) else [None]
    if not all(isinstance(names, list) and all(map(_is_file_name, names)) for names in lists):
        raise InputError(f"{path} holds {shown(record)}, which are no names of files: remove it")
    return ResultFiles(*lists)


def _is_file_name(name: object) -> bool:
    return isinstance(name, str) and Path(name).name == name


def remove_results(output: Path, *kinds: re.Pattern) -> None:
    """Removes scores, predictions and kept outputs, and the folders of these `kinds` of names."""
    noted = noted_results(output)
    for name in (METRICS, *noted.predictions, *noted.outputs, RESULTS):
        (output / name).unlink(missing_ok=True)
    for path in [path for kind in kinds for path in folders(output, kind)]:
        remove(path)
