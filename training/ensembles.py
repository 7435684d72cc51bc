"""Ensembles from saved outputs: each run predicts once, and the mean of several is used like the outputs of one model.

    OUTPUT_DIR/outputs-KEY.safetensors    by --save_outputs: what the run's final model gives for one set of examples
        NAME                              float32, of all examples, one after the other
        NAME.shapes                       int64 (examples, axes)

KEY is a digest of what the models read, so that an example, and each token of it, meets itself in every run. A file is
written under another name, synced to the disk and renamed when it is whole; one that was changed since is refused.

The mean is that of the outputs as they are: of logits and, in a regression, of the predicted numbers. The softmax of a
mean of logits is the geometric mean of the runs' probabilities, made to sum to one. The mean of the probabilities
themselves would need to know of each output over which axis it is a distribution, which the number of a regression is
not; and spans of SQuAD are ranked, also against "no answer" and across windows, by sums of logits. Of BERT's ensemble
of seven (Devlin et al. 2018, table 2) the paper says that checkpoints and seeds differ, and not how it was averaged.
With a CRF the outputs are the scores of the best sequences with each tag: the best tag of their mean is that of each
word by itself.
"""

import glob
import json
import os
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset

from training.digests import digest
from training.environment import versions
from training.errors import FileError, InputError, MissingFileError, Parameter
from training.files import load_tensors, save_tensors
from training.output_folder import METRICS, SEED
from training.prediction import Outputs
from training.results import read_record


SHAPES = ".shapes"
ENSEMBLE, OUTPUT_DIR, SAVE_OUTPUTS = map(Parameter, ("ensemble", "output_dir", "save_outputs"))
UNREAD = {"labels", "cached_at"}  # columns that a model's outputs do not depend on


def file_name(data_set: Dataset) -> str:
    """Of the outputs for exactly these inputs."""
    return f"outputs-{digest(data_set.select_columns(sorted({*data_set.column_names} - UNREAD)))[:16]}.safetensors"


def save_outputs(outputs: Outputs, data_set: Dataset, id2label: dict[int, str], folder: Path) -> None:
    """Keeps in `folder` the outputs for `data_set` of a model with these labels; to be called by one process.

    Raises OSError, having removed what is half written, where the disk does not take them.
    """
    tensors = {name: np.concatenate([array.ravel() for array in arrays]) for name, arrays in outputs.items()}
    shapes = {name + SHAPES: np.array([array.shape for array in arrays], int) for name, arrays in outputs.items()}
    metadata = {"id2label": json.dumps(id2label, sort_keys=True), "versions": json.dumps(versions())}
    remedy = ("Make room, choose another ", OUTPUT_DIR, ", or leave ", SAVE_OUTPUTS, " out")
    save_tensors(tensors | shapes, folder / file_name(data_set), metadata, remedy)


def members(ensemble: str, output_dir: str) -> list[Path]:
    """The folders of the runs that `ensemble` names; a run of several seeds stands for the best of them.

    A pattern leaves out the runs that --max_restarts has replaced, because they collapsed or diverged.
    Raises FileNotFoundError where one does not exist, ValueError where they are no ensemble or one of them is
    `output_dir`, which loses its results.
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
    """The folder that keeps the outputs of the run in `folder`: of one with --seeds, OUTPUT_DIR/seed-N."""
    record = _record(folder)
    return folder / f"seed-{record['seed']}" if "runs" in record else folder


def _was_replaced(folder: Path) -> bool:
    """Whether it is OUTPUT_DIR/seed-N, and OUTPUT_DIR's results are without seed N."""
    seed = SEED.fullmatch(folder.name)
    return seed is not None and seed[1] in _record(folder.parent).get("replaced_runs", {})


def _record(folder: Path) -> dict[str, Any]:
    path = folder / METRICS
    return read_record(path) if path.is_file() else {}


def average(data_set: Dataset, folders: list[Path], model_name: str, id2label: dict[int, str]) -> Outputs:
    """The mean, in float32, of what the runs in `folders` kept for `data_set`; a model of that name has these labels.

    The sum is one of float64, since scores may be as low as float32 goes. Raises OSError where a run has no outputs
    for `data_set` or its file is damaged, ValueError where labels or shapes differ.
    """
    name, ours = file_name(data_set), json.dumps(id2label, sort_keys=True)
    first: dict[str, np.ndarray] = {}
    totals: dict[str, np.ndarray] = {}
    for folder in folders:
        tensors, labels = _read(folder / name, len(data_set))
        if labels != ours:
            raise InputError(
                ENSEMBLE,
                f": {folder} was trained on the labels {labels}, {model_name} on {ours}: only "
                "outputs for the same labels, in one order, have a mean",
            )
        first = first or tensors
        _check_shapes(tensors, folder, first, folders[0])
        for output in tensors:
            if not output.endswith(SHAPES):
                totals[output] = totals.get(output, 0) + tensors[output].astype(np.float64)
    means = {output: (total / len(folders)).astype(np.float32) for output, total in totals.items()}
    return {output: _divide(mean, first[output + SHAPES]) for output, mean in means.items()}


def _read(path: Path, examples: int) -> tuple[dict[str, np.ndarray], str]:
    """The file's tensors, and the id2label of the model that computed them, as JSON."""
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
    tensors: dict[str, np.ndarray], folder: Path, first: dict[str, np.ndarray], first_folder: Path
) -> None:
    """Raises ValueError, naming the first example, where a run's outputs are not those of the first run's kind."""
    for name in sorted(tensors.keys() | first.keys()):
        theirs, ours = (each.get(name, np.array([], int)) for each in (tensors, first))
        if name.endswith(SHAPES) and not np.array_equal(theirs, ours):
            pairs = enumerate(zip_longest(theirs.tolist(), ours.tolist()))
            number, (their, our) = next((number, pair) for number, pair in pairs if pair[0] != pair[1])
            raise InputError(
                ENSEMBLE,
                f": the {name.removesuffix(SHAPES)} for example {number} have the shape {their} in {folder} "
                f"and {our} in {first_folder}: only outputs of the same shapes have a mean",
            )


def _divide(flat: np.ndarray, shapes: np.ndarray) -> list[np.ndarray]:
    ends = np.cumsum(shapes.prod(1))
    return [part.reshape(shape) for part, shape in zip(np.split(flat, ends[:-1]), shapes, strict=True)]
