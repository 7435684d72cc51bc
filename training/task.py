"""What is special about a script: its examples, what the model reads of them, scores, and files of predictions."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from datasets import Dataset, DatasetDict

from training.batches import Collate
from training.prediction import Outputs
from training.results import Scores
from training.samples import Samples


Compute = Callable[[Dataset], Outputs]  # the outputs for a data set: of one model, or the mean of several runs'


@dataclass(frozen=True)
class Description:
    """What the scores were measured on, for the model card: the names are those of huggingface_hub's EvalResult."""

    task_type: str  # as the Hub calls it
    dataset_type: str = "text"
    dataset_name: str = "files of our own"
    dataset_config: str | None = None
    dataset_split: str | None = None
    language: str | None = None  # of the texts, where it is known
    pairs: bool = False  # whether examples are pairs of texts


@dataclass
class Task(ABC):
    """A script's task over the splits that a run needs: train, validation, validation_mm, test, test_mm.

    data: the examples as they were read
    features: the model's inputs made from them, cut to the examples that the run takes
    collate: features -> a batch
    samples: how many examples the run takes
    """

    data: DatasetDict
    features: Mapping[str, Dataset]
    collate: Collate
    samples: Mapping[str, Samples]
    description: Description

    writes_validation: ClassVar[bool] = False  # whether predictions for the validation set are written, too

    @property
    def evaluated(self) -> dict[str, str]:
        """The splits that models are evaluated on, by the suffix of their scores' names."""
        return {split.removeprefix("validation"): split for split in self.features if split.startswith("validation")}

    @property
    def predicted(self) -> dict[str, str]:
        """The splits that predictions are written for, by their suffix."""
        return {split.removeprefix("test"): split for split in self.features if split.startswith("test")}

    @property
    def inputs(self) -> dict[str, Dataset]:
        """All data that the results of a training depend on, under the names that errors call them by."""
        inputs = {"training data": self.features["train"]}
        inputs |= {f"validation data{suffix}": self.features[split] for suffix, split in self.evaluated.items()}
        references = {"validation references": self.data["validation"]} if self.evaluated else {}
        return inputs | references

    def decode(self, split: str, outputs: Outputs) -> Any:
        """The predictions for a split, of which `outputs` has all examples or the first; here the outputs."""
        return outputs

    @abstractmethod
    def score(self, split: str, outputs: Outputs, predictions: Any) -> Scores | None:
        """What the predictions score; None where the split has nothing to score against."""

    @abstractmethod
    def write(self, split: str, predictions: Any) -> dict[str, str]:
        """The files of predictions: name -> content."""

    def tune(self, evaluation: "Evaluation") -> None:  # noqa: B027 - most tasks have nothing to tune
        """Takes from the final model's evaluation what predictions for the test set depend on, as a threshold."""


@dataclass(frozen=True)
class Evaluation:
    """One split: the model's outputs, the predictions they mean, and what these score."""

    outputs: Outputs
    predictions: Any
    scores: Scores | None


def evaluate(task: Task, split: str, compute: Compute, first: int | None = None) -> Evaluation:
    """Of the whole split, or of its `first` examples."""
    features = task.features[split]
    outputs = compute(features if first is None else features.select(range(min(first, len(features)))))
    predictions = task.decode(split, outputs)
    return Evaluation(outputs, predictions, task.score(split, outputs, predictions))
