"""The files in a run's output folder, and which of them another run in the same folder replaces.

OUTPUT_DIR/metrics.json, predictions*.*, outputs-*.safetensors     results
OUTPUT_DIR/.results.json                                           the names of the files of results
OUTPUT_DIR/.batch.json                                             the batch that the run began with, until its end
OUTPUT_DIR/log.jsonl, curves.png                                   the lines of the log, with --report_to curves
OUTPUT_DIR/runs/                                                   TensorBoard's files
OUTPUT_DIR/config.json, model.safetensors, README.md, SHA256SUMS   the model folder
OUTPUT_DIR/checkpoint-UPDATES/                                     what --resume reads
OUTPUT_DIR/seed-N/                                                 with --seeds, the output folder of each run
OUTPUT_DIR/seed-N/.diverged.json                                   how that run diverged, if another seed replaced it
"""

import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from elmo_gpt_bert.training.errors import InputError
from elmo_gpt_bert.training.files import read_json, remove_folder, shown, write_json


METRICS = "metrics.json"
DIVERGED = ".diverged.json"
RESULTS = ".results.json"
BATCH = ".batch.json"
LOG, CURVES = "log.jsonl", "curves.png"
TENSORBOARD = ("runs/events.out.tfevents.*", "runs/*/events.out.tfevents.*", "runs/*/hparams.yml")
CHECKPOINT = re.compile(r"checkpoint-(\d+)")
HALF_WRITTEN = re.compile(r"\.checkpoint-(\d+)\.new")
SEED = re.compile(r"seed-(\d+)")


def matching_folders(output: Path, name: re.Pattern) -> list[Path]:
    """The folders in `output` whose whole name matches. All other folders belong to the user."""
    return [path for path in output.glob("*") if path.is_dir() and name.fullmatch(path.name)]


@dataclass(frozen=True)
class ResultFiles:
    """The names of the files of results in an output folder, except metrics.json."""

    predictions: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)  # written by --save_outputs


def record_result_files(output: Path, predictions: Iterable[str] = (), outputs: Iterable[str] = ()) -> None:
    """Adds names to the folder's list of result files.

    Call it before the files are written: then a later run finds all files of a run that was killed.
    """
    listed = read_result_files(output)
    files = ResultFiles(sorted({*listed.predictions, *predictions}), sorted({*listed.outputs, *outputs}))
    if files != listed:
        write_json(output / RESULTS, asdict(files))


def read_result_files(output: Path) -> ResultFiles:
    """The folder's list of result files. Raises ValueError if `record_result_files` cannot have written it."""
    path = output / RESULTS
    if not path.is_file():
        return ResultFiles()
    try:
        record = read_json(path)
    except ValueError as error:
        raise InputError(f"{output} lists its predictions in a damaged file ({error}): remove {path}") from error
    lists = [record.get(field.name) for field in fields(ResultFiles)] if isinstance(record, dict) else [None]
    if not all(isinstance(names, list) and all(map(_is_file_name, names)) for names in lists):
        raise InputError(f"{path} holds {shown(record)}, which are not names of files: remove it")
    return ResultFiles(*lists)


def _is_file_name(name: object) -> bool:
    return isinstance(name, str) and name not in ("", "..") and Path(name).name == name


def remove_results(output: Path, *kinds: re.Pattern, keep: Path | None = None) -> None:
    """Removes scores, predictions and saved outputs, and the folders whose names match one of `kinds`, but `keep`."""
    files = read_result_files(output)
    for name in (METRICS, *files.predictions, *files.outputs, RESULTS):
        (output / name).unlink(missing_ok=True)
    for path in [path for kind in kinds for path in matching_folders(output, kind)]:
        if path != keep:
            remove_folder(path)


def remove_curves(output: Path) -> None:
    """Removes the log, the picture of its curves, and TensorBoard's files. All else in runs/ belongs to the user."""
    for pattern in (LOG, CURVES, *TENSORBOARD):
        for path in output.glob(pattern):
            path.unlink()
