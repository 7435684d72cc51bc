"""Which examples each update of a run trains on, and what its loss is the mean of."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from accelerate import Accelerator

from elmo_gpt_bert.training.arguments import RunArguments
from elmo_gpt_bert.training.batches import Collate, count_items, count_tokens, epoch_updates
from elmo_gpt_bert.training.identity import SAMPLES
from elmo_gpt_bert.training.optimization import count_updates, samples_of_update, schedule


if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedModel


Update = Sequence[Sequence[int]]  # micro-batches -> the indices of the examples of all processes
Batch = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Stretch:
    """Updates whose examples one data loader reads: an epoch, or the rest of it.

    updates: may be iterated over several times
    """

    data_set: Dataset | range
    collate: Collate
    updates: Iterable[Update]


@dataclass(frozen=True)
class Counts:
    """How many items, examples or labelled tokens, the losses of an update are means of.

    batches: for each micro-batch of this process, the number for each loss
    totals: for each loss, the number in the whole update, over all processes
    """

    batches: Sequence[Sequence[int]]
    totals: Sequence[int] | torch.Tensor


class Plan(ABC):
    """The updates of a run.

    An update reads the same samples whatever the number of processes and of accumulation steps, so a run may go on
    with others. The samples that all processes compute at the same time lie side by side, those of the first process
    first. So two processes compute the same micro-batches as one that accumulates twice as many.

    updates: their number in the whole run
    losses: the names of the losses that the model computes
    loss_weights: the training loss is the sum of the losses, multiplied by these
    gradient_scale: what the training loss is multiplied by for its gradient
    measures_peak: whether the log names the share of the device's matrix-product peak
    """

    updates: int
    losses: tuple[str, ...] = ("loss",)
    loss_weights: tuple[float, ...] = (1.0,)
    gradient_scale: float = 1.0
    measures_peak: bool = False

    def __init__(self, args: RunArguments, accelerator: Accelerator) -> None:
        self.args, self.accelerator = args, accelerator

    def share(self, samples: Sequence[int]) -> Sequence[int]:
        """The part of a micro-batch of all processes that this process computes; may be empty."""
        size = self.args.per_device_train_batch_size
        first = self.accelerator.process_index * size
        return samples[first : first + size]

    @abstractmethod
    def stretch(self, update: int) -> Stretch:
        """The updates from `update`, which is below `updates`, to the end of its epoch or of the run."""

    @abstractmethod
    def epochs(self, update: int) -> float:
        """How many epochs the updates before `update` are."""

    @abstractmethod
    def count(self, update: Update, batches: list[Batch]) -> Counts:
        """The items of the micro-batches of one update, `batches`, of this process. Every process must call it."""

    @abstractmethod
    def __str__(self) -> str:
        """The size of the run, for the console."""

    @property
    @abstractmethod
    def identity(self) -> dict[str, Any]:
        """What the updates depend on apart from arguments, data and configuration: the same in a resumed run."""

    def ends_epoch(self, update: int) -> bool:
        """Whether an epoch ends with the last of the first `update` updates."""
        return update > 0 and int(self.epochs(update)) > int(self.epochs(update - 1))

    def compute(self, model: PreTrainedModel, batch: Batch, options: Mapping[str, Any]) -> torch.Tensor:
        """(losses,) the mean of each loss over its items of the batch. `options` are arguments of the model."""
        return model(**batch, **options).loss.reshape(1)

    def state(self) -> dict[str, torch.Tensor]:
        """What the next update needs apart from its number: most plans nothing. Every process must call it."""
        return {}

    def load_state(self, state: Mapping[str, torch.Tensor]) -> None:  # noqa: B027
        """Continues from what `state` returned."""


class EpochPlan(Plan):
    """Epochs of a data set, each in a new random order."""

    def __init__(self, train_set: Dataset, collate: Collate, args: RunArguments, accelerator: Accelerator) -> None:
        super().__init__(args, accelerator)
        self.train_set, self.collate = train_set, collate
        self.lengths, self.items = count_tokens(train_set), count_items(train_set)
        self.updates, self.per_epoch = count_updates(len(train_set), args, accelerator.num_processes)

    def __str__(self) -> str:
        return f"{len(self.train_set):,} examples, {self.updates:,} updates"

    def stretch(self, update: int) -> Stretch:
        epoch, done = divmod(update, self.per_epoch)
        updates = epoch_updates(self.lengths, self.args, epoch, self.accelerator.num_processes)
        return Stretch(self.train_set, self.collate, updates[done : self.updates - epoch * self.per_epoch])

    def epochs(self, update: int) -> float:
        return update / self.per_epoch

    def count(self, update: Update, batches: list[Batch]) -> Counts:
        local = [[sum(self.items[index] for index in self.share(examples))] for examples in update]
        return Counts(local, [sum(self.items[index] for examples in update for index in examples)])

    @property
    def identity(self) -> dict[str, Any]:
        return {
            SAMPLES: samples_of_update(self.args, self.accelerator.num_processes),
            **schedule(self.args, self.updates),
            "updates an epoch": self.per_epoch,
        }
