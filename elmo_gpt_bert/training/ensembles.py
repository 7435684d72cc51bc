"""Saves the outputs of runs and averages them: an ensemble is used like one model with the mean of the outputs.

    OUTPUT_DIR/outputs-KEY.safetensors    written by --save_outputs: the final model's outputs for one data set
        NAME                              float32, the flattened outputs of all examples in a row
        NAME.shapes                       int64 (examples, axes)

KEY is a digest of the features, so that all runs of an ensemble have the same examples with the same tokens. A file is
written under a temporary name, synced to the disk and renamed when it is complete. A file that was changed is refused.

The mean is taken over the outputs themselves: logits or, in a regression, predicted numbers. The softmax of a mean of
logits is the normalised geometric mean of the runs' probabilities. A mean of probabilities would need to know, for
each output, along which axis it is a distribution, and the number of a regression is none. Also, answers to SQuAD are
ranked by sums of logits, against "no answer" and across windows. The paper says of BERT's ensemble of seven models
that they differ in checkpoints and seeds, but not how they were averaged (Devlin et al. 2018, table 2). With a CRF,
the outputs are the scores of the best sequences that contain each tag. The mean then chooses the best tag of each word
independently.
"""

from __future__ import annotations

import glob
import json
import os
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from elmo_gpt_bert.training.errors import FileError, InputError, MissingFileError, Parameter
from elmo_gpt_bert.training.files import load_tensors, save_tensors
from elmo_gpt_bert.training.identity import digest
from elmo_gpt_bert.training.output_folder import METRICS, SEED, note_results
from elmo_gpt_bert.training.processes import versions
from elmo_gpt_bert.training.results import read_record
from elmo_gpt_bert.training.task import Outputs


if TYPE_CHECKING:
    from datasets import Dataset


SHAPES = ".shapes"
ENSEMBLE, OUTPUT_DIR, SAVE_OUTPUTS = map(Parameter, ("ensemble", "output_dir", "save_outputs"))
NOT_INPUTS = {"labels", "cached_at"}  # columns that a model's outputs do not depend on


def outputs_file_name(data_set: Dataset) -> str:
    """The name of the file with the outputs for a data set, the same for data sets with the same model inputs."""
    inputs = data_set.select_columns(sorted({*data_set.column_names} - NOT_INPUTS))
    return f"outputs-{digest(inputs)[:16]}.safetensors"


def save_outputs(outputs: Outputs, data_set: Dataset, id2label: dict[int, str], folder: Path) -> None:
    """Writes a model's outputs for `data_set` to `folder`, with the model's labels, and lists the file there.

    Only one process may call it. Raises OSError, and removes the incomplete file, if they cannot be written.
    """
    tensors = {name: np.concatenate([array.ravel() for array in arrays]) for name, arrays in outputs.items()}
    shapes = {name + SHAPES: np.array([array.shape for array in arrays], int) for name, arrays in outputs.items()}
    metadata = {"id2label": json.dumps(id2label, sort_keys=True), "versions": json.dumps(versions())}
    remedy = ("Make room, choose another ", OUTPUT_DIR, ", or leave ", SAVE_OUTPUTS, " out")
    name = outputs_file_name(data_set)
    note_results(folder, name)
    save_tensors(tensors | shapes, folder / name, metadata, remedy)


def members(ensemble: str, output_dir: str) -> list[Path]:
    """The folders of the runs of an ensemble, which is given as folders and patterns with commas between them.

    The folder of a run with several seeds stands for its best seed. A pattern leaves out runs that --max_restarts has
    replaced, because they collapsed or diverged.
    Raises FileNotFoundError if a folder does not exist, and ValueError if there are fewer than two runs, if a run is
    named twice, or if one is in `output_dir`, whose results are removed.
    """
    folders = []
    for name in ensemble.split(","):
        paths = [name] if os.path.isdir(name) else sorted(filter(os.path.isdir, glob.glob(name)))
        if not paths:
            raise MissingFileError(ENSEMBLE, f" {ensemble}: there is no folder {name!r}")
        folders += [_best_seed(Path(path)) for path in paths if path == name or not _was_replaced(Path(path))]
    if len(folders) < 2:
        replaced = ("has only runs that ", Parameter("max_restarts"), " replaced")
        problem = "is one run" if folders else replaced
        raise InputError(ENSEMBLE, f" {ensemble} ", problem, ": give two or more, with commas between them")
    places = [folder.resolve() for folder in folders]
    for number, (folder, place) in enumerate(zip(folders, places, strict=True)):
        if place in places[:number]:
            raise InputError(ENSEMBLE, f" {ensemble} has the run {folder} twice")
        if Path(output_dir).resolve() in (place, place.parent):
            raise InputError(OUTPUT_DIR, f" {output_dir} holds {folder}, a run of ", ENSEMBLE, ": choose another")
    return folders


def _best_seed(folder: Path) -> Path:
    """The folder with the outputs of the run in `folder`: with --seeds, that of its best seed."""
    record = _record(folder)
    return folder / f"seed-{record['seed']}" if "runs" in record else folder


def _was_replaced(folder: Path) -> bool:
    """Whether `folder` is OUTPUT_DIR/seed-N of a seed that was replaced."""
    seed = SEED.fullmatch(folder.name)
    return seed is not None and seed[1] in _record(folder.parent).get("replaced_runs", {})


def _record(folder: Path) -> dict[str, Any]:
    """The content of metrics.json; empty if there is none."""
    path = folder / METRICS
    return read_record(path) if path.is_file() else {}


def average(data_set: Dataset, folders: list[Path], model_name: str, id2label: dict[int, str]) -> Outputs:
    """The mean, in float32, of the outputs for `data_set` that the runs in `folders` saved.

    Their models must have the labels `id2label` of the model `model_name`. Sums are in float64, because scores may be
    as low as float32's minimum. Raises OSError if a run has no outputs for `data_set` or its file is damaged, and
    ValueError if labels or shapes differ.
    """
    name, model_labels = outputs_file_name(data_set), json.dumps(id2label, sort_keys=True)
    first_tensors: dict[str, np.ndarray] = {}
    totals: dict[str, np.ndarray] = {}
    for folder in folders:
        tensors, labels = _read(folder / name, len(data_set))
        if labels != model_labels:
            raise InputError(
                ENSEMBLE,
                f": {folder} was trained on the labels {labels}, {model_name} on {model_labels}: only outputs for the "
                "same labels in the same order can be averaged",
            )
        first_tensors = first_tensors or tensors
        _check_shapes(tensors, folder, first_tensors, folders[0])
        for output in tensors:
            if not output.endswith(SHAPES):
                totals[output] = totals.get(output, 0) + tensors[output].astype(np.float64)
    means = {output: (total / len(folders)).astype(np.float32) for output, total in totals.items()}
    return {output: _split(mean, first_tensors[output + SHAPES]) for output, mean in means.items()}


def _read(path: Path, examples: int) -> tuple[dict[str, np.ndarray], str]:
    """(tensors, id2label of the model as JSON). Raises OSError if the file is missing or damaged."""
    if not path.is_file():
        raise MissingFileError(
            ENSEMBLE,
            f": {path.parent} has no outputs for these {examples:,} examples: it was run on other data, with another "
            "tokenizer, ",
            (Parameter("max_seq_length"), " or ", Parameter("max_*_samples"), ", or without ", SAVE_OUTPUTS),
        )
    try:
        tensors, metadata = load_tensors(path)
        return tensors, metadata["id2label"]
    except (ValueError, KeyError) as error:
        raise FileError(f"{path}: {error}. Copy it again, or repeat its run with ", SAVE_OUTPUTS) from error


def _check_shapes(
    tensors: dict[str, np.ndarray], folder: Path, first_tensors: dict[str, np.ndarray], first_folder: Path
) -> None:
    """Raises ValueError, with the first example, if a run's outputs do not have the shapes of the first run's."""
    for name in sorted(tensors.keys() | first_tensors.keys()):
        shapes, first_shapes = (run.get(name, np.array([], int)) for run in (tensors, first_tensors))
        if name.endswith(SHAPES) and not np.array_equal(shapes, first_shapes):
            pairs = enumerate(zip_longest(shapes.tolist(), first_shapes.tolist()))
            number, (shape, first_shape) = next((number, pair) for number, pair in pairs if pair[0] != pair[1])
            raise InputError(
                ENSEMBLE,
                f": the {name.removesuffix(SHAPES)} for example {number} have the shape {shape} in {folder} "
                f"and {first_shape} in {first_folder}: only outputs of the same shapes can be averaged",
            )


def _split(flat: np.ndarray, shapes: np.ndarray) -> list[np.ndarray]:
    """Splits the flattened outputs of all examples into arrays of these shapes."""
    ends = np.cumsum(shapes.prod(1))
    return [part.reshape(shape) for part, shape in zip(np.split(flat, ends[:-1]), shapes, strict=True)]
