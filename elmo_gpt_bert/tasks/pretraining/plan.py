"""Which samples of a corpus each update of pre-training reads: batch ramp, lengths, epochs, all as functions."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from accelerate import Accelerator

from elmo_gpt_bert.tasks.pretraining.objective import Objective
from elmo_gpt_bert.training.arguments import RunArguments
from elmo_gpt_bert.training.batches import Batch, Counts, Plan, Stretch, Update
from elmo_gpt_bert.training.identity import ENDS_EPOCH, EPOCH_SAMPLES, FINAL_LENGTH
from elmo_gpt_bert.training.optimization import samples_of_update
from elmo_gpt_bert.training.processes import from_all


if TYPE_CHECKING:
    from transformers import PreTrainedModel


ALL_SAMPLES = range(2**62)


class Ramp:
    """The number of samples of each update: it rises in equal steps to `size` in the first `updates`."""

    def __init__(self, size: int, updates: int = 0) -> None:
        self.size, self.updates = size, updates
        rising = (-(-size * number // updates) for number in range(1, updates + 1))  # rounded up
        self.starts = [0, *itertools.accumulate(rising)]  # the samples before each of these updates, and after them

    def samples(self, update: int) -> int:
        """The samples of all updates before `update`."""
        if update <= self.updates:
            return self.starts[update]
        return self.starts[-1] + (update - self.updates) * self.size

    def updates_for(self, samples: float) -> int:
        """The smallest number of updates that read this many samples."""
        if samples <= self.starts[-1]:
            return bisect.bisect_left(self.starts, samples)
        return self.updates + math.ceil((samples - self.starts[-1]) / self.size)


@dataclass(frozen=True)
class Updates:
    """The micro-batches of some updates, as numbers of samples."""

    ramp: Ramp
    numbers: range
    micro_batch: int  # samples, of all processes
    first_sample: int  # of the phase: samples are counted from here

    def __iter__(self) -> Iterator[Update]:
        for update in self.numbers:
            start, stop = (self.ramp.samples(number) - self.first_sample for number in (update, update + 1))
            yield [range(at, min(at + self.micro_batch, stop)) for at in range(start, stop, self.micro_batch)]


@dataclass(frozen=True)
class Phase:
    """The updates from `first` on, up to the next phase, which train on one objective."""

    objective: Objective
    first: int = 0


class CorpusPlan(Plan):
    """Updates over an endless row of samples."""

    def __init__(
        self,
        phases: Sequence[Phase],
        args: RunArguments,
        accelerator: Accelerator,
        ramp_updates: int = 0,
    ) -> None:
        """
        phases: in their order; the first begins with update 0
        ramp_updates: in this many updates the batch rises to its size
        """
        super().__init__(args, accelerator)
        self.phases = phases
        self.micro_batch = args.per_device_train_batch_size * accelerator.num_processes
        self.ramp = Ramp(samples_of_update(args, accelerator.num_processes), ramp_updates)
        objective = phases[0].objective
        self.losses, self.loss_weights = objective.losses, objective.weights
        self.gradient_scale = objective.gradient_scale
        self.updates = args.max_steps
        if args.max_steps <= 0:
            self.updates = self.ramp.updates_for(round(objective.size * args.num_train_epochs, 6))

    def __str__(self) -> str:
        size = f"{self.phases[0].objective.size:,} samples an epoch"
        return f"{size}, {self.ramp.size:,} an update, {self.updates:,} updates"

    def stretch(self, update: int) -> Stretch:
        phase, stop = self._phase(update)
        updates = Updates(self.ramp, range(update, stop), self.micro_batch, self.ramp.samples(phase.first))
        return Stretch(ALL_SAMPLES, phase.objective.batch, updates)

    def epochs(self, update: int) -> float:
        epochs = 0.0
        for phase, stop in zip(self.phases, [*(phase.first for phase in self.phases[1:]), update], strict=True):
            if phase.first < update:
                epochs += self._samples(phase, min(stop, update)) / phase.objective.size
        return epochs

    def ends_epoch(self, update: int) -> bool:
        if update == 0:
            return False
        phase, _ = self._phase(update - 1)
        before, after = (self._samples(phase, number) // phase.objective.size for number in (update - 1, update))
        return after > before

    def count(self, update: Update, batches: list[Batch]) -> Counts:
        objective, nothing = self.phases[0].objective, [0] * len(self.losses)
        local = [
            objective.count(batch) if self.share(samples) else nothing
            for samples, batch in zip(update, batches, strict=True)
        ]
        totals = [sum(counts) for counts in zip(*local, strict=True)]
        if self.accelerator.num_processes > 1:
            totals = self.accelerator.reduce(torch.tensor(totals, device=self.accelerator.device), "sum")
        return Counts(local, totals)

    def compute(self, model: PreTrainedModel, batch: Batch, options: Mapping[str, Any]) -> torch.Tensor:
        return self.phases[0].objective.compute(model, batch, options)

    @property
    def identity(self) -> dict[str, Any]:
        return {
            "updates": self.updates,
            FINAL_LENGTH: self.phases[-1].first,
            ENDS_EPOCH: self.ends_epoch(self.updates),
            EPOCH_SAMPLES: self.phases[0].objective.size,
        }

    def state(self) -> dict[str, torch.Tensor]:
        """The state of the objective, of all processes."""
        parts = [state for state in from_all(self.phases[0].objective.state()) if state]
        return {name: torch.cat([part[name] for part in parts]) for name in parts[0]} if parts else {}

    def load_state(self, state: Mapping[str, torch.Tensor]) -> None:
        self.phases[0].objective.load_state(state)

    def _phase(self, update: int) -> tuple[Phase, int]:
        """The phase of an update, and where it ends."""
        stops = [*(phase.first for phase in self.phases[1:]), self.updates]
        number = max(index for index, phase in enumerate(self.phases) if phase.first <= update)
        return self.phases[number], stops[number]

    def _samples(self, phase: Phase, update: int) -> int:
        """The samples of this phase that the updates before `update` read."""
        return self.ramp.samples(update) - self.ramp.samples(phase.first)
