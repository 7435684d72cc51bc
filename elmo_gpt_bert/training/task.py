"""The interface between a script and the code that all scripts share: a script subclasses Task."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from accelerate import Accelerator

from elmo_gpt_bert.training.arguments import RunArguments
from elmo_gpt_bert.training.batches import Collate, count_workers
from elmo_gpt_bert.training.plan import EpochPlan, Plan
from elmo_gpt_bert.training.prediction import Outputs, predict


if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict
    from transformers import PreTrainedModel


Compute = Callable[["Dataset"], Outputs]  # computes the outputs for a data set, with one model or as a mean over runs


@dataclass(frozen=True)
class Description:
    """The data that the scores were measured on, for the model card. Fields are named as in EvalResult."""

    task_type: str  # the Hub's name of the task
    dataset_type: str = "text"
    dataset_name: str = "the user's own files"
    dataset_config: str | None = None
    dataset_split: str | None = None
    language: str | None = None  # of the texts; None if it is unknown
    pairs: bool = False  # whether examples are pairs of texts


@dataclass
class Task(ABC):
    """The data of a run and how to score and write predictions for it.

    The keys of `data` and `features` are the splits that the run needs: train, validation, validation_mm, test,
    test_mm.

    data: the examples as they were read
    features: the features made from them, limited to the number of examples that the run uses
    collate: makes a batch of a list of features
    samples: the entries of metrics.json for the numbers of examples, as `count_samples` makes them
    """

    data: DatasetDict
    features: Mapping[str, Dataset]
    collate: Collate
    samples: Mapping[str, int]
    description: Description

    writes_validation: ClassVar[bool] = False  # whether predictions for the validation set are written, too

    @property
    def evaluation_splits(self) -> dict[str, str]:
        """The splits to evaluate on: suffix of the names of their scores -> split."""
        return {split.removeprefix("validation"): split for split in self.features if split.startswith("validation")}

    @property
    def test_splits(self) -> dict[str, str]:
        """The splits to write predictions for: suffix of the names of their scores -> split."""
        return {split.removeprefix("test"): split for split in self.features if split.startswith("test")}

    @property
    def compared_data(self) -> dict[str, Dataset]:
        """All data that the results of training depend on, which --resume compares with the checkpoint's.

        The keys are the names that its errors use.
        """
        data = {"training data": self.features["train"]}
        data |= {f"validation data{suffix}": self.features[split] for suffix, split in self.evaluation_splits.items()}
        references = {"validation references": self.data["validation"]} if self.evaluation_splits else {}
        return data | references

    def build_plan(self, args: RunArguments, accelerator: Accelerator) -> Plan:
        """The updates of training."""
        return EpochPlan(self.features["train"], self.collate, args, accelerator)

    def build_compute(self, model: PreTrainedModel, args: RunArguments, accelerator: Accelerator) -> Compute:
        """The function that computes the model's outputs."""
        return partial(
            predict,
            model,
            collate=self.collate,
            accelerator=accelerator,
            batch_size=args.per_device_eval_batch_size,
            one_shape=args.pad_to_max_length,
            workers=count_workers(args.dataloader_num_workers, accelerator.device),
        )

    def finish(self, model: PreTrainedModel) -> None:  # noqa: B027 - most models are finished when they are trained
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
    def write(self, split: str, predictions: Any) -> dict[str, str | bytes]:
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
