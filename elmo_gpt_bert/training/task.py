"""The interface between a script and the code that all scripts share: a script subclasses Task.

And how a model's outputs are computed, decoded and scored for a data set, or those of several runs saved and averaged:
an ensemble is used like one model with the mean of the outputs.

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
import math
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import send_to_device, tqdm
from torch import nn

from elmo_gpt_bert.training.arguments import RunArguments
from elmo_gpt_bert.training.batches import (
    Collate,
    EpochPlan,
    Plan,
    count_tokens,
    count_workers,
    in_pieces,
    load_batches,
    padding_options,
    with_packing,
)
from elmo_gpt_bert.training.errors import DivergedError, FileError, InputError, MissingFileError, as_user_errors
from elmo_gpt_bert.training.files import load_tensors, save_tensors
from elmo_gpt_bert.training.identity import digest
from elmo_gpt_bert.training.output_folder import SEED
from elmo_gpt_bert.training.processes import from_all, versions
from elmo_gpt_bert.training.results import describe_samples, read_record


if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


Outputs = dict[str, list[np.ndarray]]  # name -> one array for each example, in the order of the data set


@torch.no_grad()  # not inference_mode, whose tensors cannot be trained on later
def predict(
    model: nn.Module,
    data_set: Dataset,
    collate: Collate,
    accelerator: Accelerator,
    batch_size: int,
    one_shape: bool = False,
    workers: int = 0,
) -> Outputs:
    """The model's outputs named "...logits" or "...log_likelihoods" for all examples, on every process.

    Outputs of tokens are without padding. A batch holds `batch_size` examples of similar length, so that it has little
    padding. With `one_shape` every batch is full, and `collate` pads to one length. `workers` processes, if any,
    prepare the batches. Raises FloatingPointError if an output is not finite.
    """
    model.to(accelerator.device).eval()
    lengths = count_tokens(data_set)
    order = sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True)
    batches = _batches_of_process(order, batch_size, one_shape, accelerator)
    bar = tqdm(total=len(batches), desc="predict", leave=False, disable=not sys.stderr.isatty())
    options = padding_options(model, one_shape)
    collate, computed = with_packing(collate, model, accelerator.device), {}
    for indices, batch in zip(batches, load_batches(data_set, batches, collate, workers), strict=True):
        inputs = {name: value for name, value in batch.items() if name != "labels"}
        with accelerator.autocast(), as_user_errors():
            outputs = model(**send_to_device(inputs, accelerator.device), **options)
        arrays = {
            name: _without_padding(value.float().cpu().numpy(), inputs.get("attention_mask"), model.config.num_labels)
            for name, value in outputs.items()
            if name.endswith(("logits", "log_likelihoods"))
        }
        computed |= {index: {name: rows[i] for name, rows in arrays.items()} for i, index in enumerate(indices)}
        bar.update()
    bar.close()
    return _gather(computed)


def _gather(computed: dict[int, dict[str, np.ndarray]]) -> Outputs:
    """The outputs of all processes, in the order of the examples."""
    by_index = {}
    for outputs in from_all(computed):  # accelerate's gather_object does not know XLA
        by_index |= outputs
    rows = [by_index[index] for index in range(len(by_index))]
    names = list(rows[0]) if rows else []
    for index, arrays in enumerate(rows):
        broken = [name for name in names if not np.isfinite(arrays[name]).all()]
        if broken:
            raise DivergedError(
                f"the model's {', '.join(broken)} for example {index} are not finite",
                ": use a --mixed_precision with a wider range, or train with a lower --learning_rate",
            )
    return {name: [arrays[name] for arrays in rows] for name in names}


def _without_padding(rows: np.ndarray, mask: torch.Tensor | None, labels: int) -> list[np.ndarray]:
    """Splits a batch's output into examples, and removes padding if its second axis is that of the tokens.

    An output of two axes is one of classes if its second axis has as many entries as there are `labels`, even if the
    batch has as many tokens.
    """
    of_tokens = mask is not None and rows.shape[1:2] == mask.shape[1:] and (rows.ndim > 2 or rows.shape[1] != labels)
    return [row[tokens] for row, tokens in zip(rows, mask.bool().numpy(), strict=True)] if of_tokens else list(rows)


def _batches_of_process(order: list[int], size: int, one_shape: bool, accelerator: Accelerator) -> list[list[int]]:
    """This process's batches. All processes get the same number, because a sharded model computes on all at once.

    Some examples are computed twice for that reason, with the same outputs. With `one_shape` all batches are full.
    """
    if one_shape:
        order = np.resize(order, math.ceil(len(order) / size) * size).tolist()
    batches = in_pieces(order, size)
    rounds = math.ceil(len(batches) / accelerator.num_processes)
    return [batches[(i * accelerator.num_processes + accelerator.process_index) % len(batches)] for i in range(rounds)]


Compute = Callable[["Dataset"], Outputs]  # computes the outputs for a data set, with one model or as a mean over runs


# Tasks


@dataclass(frozen=True)
class Description:
    """The data that the scores were measured on, for the model card. Fields are named as in EvalResult.

    Language and `trained_on` are those of the data that the model was trained on, where it was trained.
    """

    task_type: str  # the Hub's name of the task
    dataset_type: str = "text"
    dataset_name: str = "the user's own files"
    dataset_config: str | None = None
    dataset_split: str | None = None
    language: str | None = None  # of the texts; None if it is unknown
    pairs: bool = False  # whether examples are pairs of texts
    trained_on: str | None = None  # the name of that data set if it is another one


@dataclass
class Task(ABC):
    """The data of a run and how to score and write predictions for it.

    The keys of `data` and `features` are the splits that the run needs: train, validation, validation_mm, test,
    test_mm.

    data: the examples as they were read
    samples: the entries of metrics.json for the numbers of examples, as `count_samples` makes them
    model, tokenizer: those of the run
    features: the features made from them, limited to the number of examples that the run uses
    collate: makes a batch of a list of features
    """

    data: DatasetDict
    samples: Mapping[str, int]
    description: Description
    model: PreTrainedModel | None = field(default=None, kw_only=True)
    tokenizer: PreTrainedTokenizerBase | None = field(default=None, kw_only=True)
    features: Mapping[str, Dataset] = field(default_factory=dict, kw_only=True)
    collate: Collate | None = field(default=None, kw_only=True)

    writes_validation: ClassVar[bool] = False  # whether predictions for the validation set are written, too
    unit: ClassVar[str] = "examples"  # what the console calls an example

    def describe(self) -> str:
        """What is loaded besides the model, for the console."""
        return f"; {describe_samples(self.samples)} {self.unit}"

    def featurize(self, args: RunArguments) -> None:  # noqa: B027 - others come with them
        """Makes `features` and `collate`, where `run_task` loads the task without them."""

    def keep_states(self, args: RunArguments, accelerator: Accelerator) -> bool:
        """Adds states of a frozen model to the features, where the run keeps them on disk; whether it does."""
        return False

    def splits(self, kind: str) -> dict[str, str]:
        """The splits of a kind, validation or test: suffix of the names of their scores -> split."""
        return {split.removeprefix(kind): split for split in self.features if split.startswith(kind)}

    @property
    def evaluation_splits(self) -> dict[str, str]:
        """The splits to evaluate on, as in `splits`."""
        return self.splits("validation")

    @property
    def output_module(self) -> nn.Module:
        """The module that computes the outputs: the model, unless one around it does."""
        return self.model

    def build_plan(self, args: RunArguments, accelerator: Accelerator) -> Plan:
        """The updates of training."""
        return EpochPlan(self.features["train"], self.collate, args, accelerator)

    def build_compute(self, args: RunArguments, accelerator: Accelerator) -> Compute:
        """The function that computes the model's outputs."""
        return partial(
            predict,
            self.output_module,
            collate=self.collate,
            accelerator=accelerator,
            batch_size=args.per_device_eval_batch_size,
            one_shape=args.pad_to_max_length,
            workers=count_workers(args.dataloader_num_workers, accelerator.device),
        )

    def finish(self) -> None:  # noqa: B027 - most models are finished when they are trained
        """Prepares the trained model to be saved."""

    def decode(self, split: str, outputs: Outputs) -> Any:
        """Makes predictions from the outputs for a split, or its first examples; by default the outputs themselves."""
        return outputs

    @abstractmethod
    def score(self, split: str, outputs: Outputs, predictions: Any) -> dict[str, float]:
        """The scores of the predictions, named as in metrics.json (training/results.py) without the split's prefix.

        The main score, which chooses the best model, is the first. Without labels there are none.
        """

    @abstractmethod
    def write(self, split: str, predictions: Any) -> dict[str, str]:
        """Returns the files of predictions: name -> content."""

    def tune(self, evaluation: Evaluation) -> None:  # noqa: B027 - most tasks have nothing to tune
        """Chooses, by the final model's evaluation, what predictions for the test set depend on, e.g. a threshold."""


@dataclass(frozen=True)
class Evaluation:
    """The model's outputs for one split, the predictions made of them, and their scores."""

    outputs: Outputs
    predictions: Any
    scores: dict[str, float]


def evaluate(task: Task, split: str, compute: Compute, first: int | None = None) -> Evaluation:
    """Evaluates on a whole split, or on its `first` examples."""
    features = task.features[split]
    outputs = compute(features if first is None else features.select(range(min(first, len(features)))))
    predictions = task.decode(split, outputs)
    return Evaluation(outputs, predictions, task.score(split, outputs, predictions))


def results_of(evaluations: Mapping[str, Evaluation], prefix: str = "eval") -> dict[str, float]:
    """The entries of metrics.json for the scores of evaluations, whose keys are the suffixes of the names."""
    return {
        f"{prefix}_{name}{suffix}": value
        for suffix, evaluation in evaluations.items()
        for name, value in evaluation.scores.items()
    }


# Ensembles


SHAPES = ".shapes"
NOT_INPUTS = {"labels", "cached_at"}  # columns that a model's outputs do not depend on


def outputs_file_name(data_set: Dataset) -> str:
    """The name of the file with the outputs for a data set, the same for data sets with the same model inputs."""
    inputs = data_set.select_columns(sorted({*data_set.column_names} - NOT_INPUTS))
    return f"outputs-{digest(inputs)[:16]}.safetensors"


def save_outputs(outputs: Outputs, data_set: Dataset, id2label: dict[int, str], folder: Path) -> None:
    """Writes a model's outputs for `data_set` to `folder`, with the model's labels.

    Only one process may call it. Raises OSError, and removes the incomplete file, if they cannot be written.
    """
    tensors = {name: np.concatenate([array.ravel() for array in arrays]) for name, arrays in outputs.items()}
    shapes = {name + SHAPES: np.array([array.shape for array in arrays], int) for name, arrays in outputs.items()}
    metadata = {"id2label": json.dumps(id2label, sort_keys=True), "versions": json.dumps(versions())}
    remedy = "Make room, choose another --output_dir, or leave --save_outputs out"
    save_tensors(tensors | shapes, folder / outputs_file_name(data_set), metadata, remedy)


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
            raise MissingFileError(f"--ensemble {ensemble}: there is no folder {name!r}")
        folders += [_best_seed(Path(path)) for path in paths if path == name or not _was_replaced(Path(path))]
    if len(folders) < 2:
        problem = "is one run" if folders else "has only runs that --max_restarts replaced"
        raise InputError(f"--ensemble {ensemble} {problem}: give two or more, with commas between them")
    places = [folder.resolve() for folder in folders]
    for number, (folder, place) in enumerate(zip(folders, places, strict=True)):
        if place in places[:number]:
            raise InputError(f"--ensemble {ensemble} has the run {folder} twice")
        if Path(output_dir).resolve() in (place, place.parent):
            raise InputError(f"--output_dir {output_dir} holds {folder}, a run of --ensemble: choose another")
    return folders


def _best_seed(folder: Path) -> Path:
    """The folder with the outputs of the run in `folder`: with --seeds, that of its best seed."""
    record = read_record(folder)
    return folder / f"seed-{record['seed']}" if "runs" in record else folder


def _was_replaced(folder: Path) -> bool:
    """Whether `folder` is OUTPUT_DIR/seed-N of a seed that was replaced."""
    seed = SEED.fullmatch(folder.name)
    return seed is not None and seed[1] in read_record(folder.parent).get("replaced_runs", {})


def average(data_set: Dataset, folders: list[Path], model_name: str, id2label: dict[int, str]) -> Outputs:
    """The mean, in float32, of the outputs for `data_set` that the runs in `folders` saved.

    Their models must have the labels `id2label` of the model `model_name`. Sums are in float64, because scores may be
    as low as float32's minimum. Raises OSError if a run has no outputs for `data_set` or its file is damaged, and
    ValueError if labels or shapes differ.
    """
    name, model_labels = outputs_file_name(data_set), json.dumps(id2label, sort_keys=True)
    runs = (_read(folder / name, len(data_set)) for folder in folders)
    common: dict[str, list[list[int]]] = {}  # the shapes of the first run
    totals: dict[str, np.ndarray] = {}
    for folder, (outputs, shapes, labels) in zip(folders, runs, strict=True):
        if labels != model_labels:
            raise InputError(
                f"--ensemble: {folder} was trained on the labels {labels}, {model_name} on {model_labels}: only "
                "outputs for the same labels in the same order can be averaged"
            )
        common = common or shapes
        if shapes != common:
            raise InputError(
                f"--ensemble: {folder} and {folders[0]} have outputs of different shapes: only those of one shape "
                "have a mean"
            )
        for output, array in outputs.items():
            totals[output] = totals.get(output, 0) + array.astype(np.float64)
    means = {output: (total / len(folders)).astype(np.float32) for output, total in totals.items()}
    return {output: _split(mean, common[output]) for output, mean in means.items()}


def _read(path: Path, examples: int) -> tuple[dict[str, np.ndarray], dict[str, list[list[int]]], str]:
    """(flattened outputs, shapes, id2label of the model as JSON). Raises OSError if the file is missing or damaged."""
    if not path.is_file():
        raise MissingFileError(
            f"--ensemble: {path.parent} has no outputs for these {examples:,} examples: it was run on other data, "
            "with another tokenizer, --max_seq_length or --max_*_samples, or without --save_outputs"
        )
    try:
        tensors, metadata = load_tensors(path)
        shapes = {name: tensors.pop(name + SHAPES).tolist() for name in [*tensors] if not name.endswith(SHAPES)}
        return tensors, shapes, metadata["id2label"]
    except (ValueError, KeyError) as error:
        raise FileError(f"{path}: {error}. Copy it again, or repeat its run with --save_outputs") from error


def _split(flat: np.ndarray, shapes: list[list[int]]) -> list[np.ndarray]:
    """Splits the flattened outputs of all examples into arrays of these shapes."""
    ends = np.cumsum(np.prod(shapes, axis=1))
    return [part.reshape(shape) for part, shape in zip(np.split(flat, ends[:-1]), shapes, strict=True)]
