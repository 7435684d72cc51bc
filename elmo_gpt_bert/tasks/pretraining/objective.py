"""What every objective of pre-training is to the training loop, a way from sample numbers to losses; and the losses on
held-out text, with the measures made of them: perplexity and bits per byte.
"""

from __future__ import annotations

import functools
import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import extract_model_from_parallel, send_to_device

from elmo_gpt_bert.tasks.pretraining.corpus import Corpus
from elmo_gpt_bert.training.batches import in_pieces, load_batches, with_packing
from elmo_gpt_bert.training.errors import DivergedError, as_user_errors
from elmo_gpt_bert.training.task import Outputs


if TYPE_CHECKING:
    from transformers import PreTrainedModel


LARGEST_LOSS = 700  # its exponential is a float


class Use(IntEnum):
    """What random numbers are for: the part of their key after the seed. Different uses are independent."""

    ORDER = 0
    PAIRS = 1
    CUTS = 2
    MASKED = 3
    REPLACED = 4
    WORDS = 5


class Objective(ABC):
    """Makes batches of a corpus, and computes the losses of a model on them.

    A sample is one row of a batch. Its number is epoch * size + index, so a run counts on from one epoch to the next.
    Objectives are pickled for the workers of a DataLoader.

    Attributes:
        corpus: the text.
        losses: the names of the losses, such as ("masked_lm", "next_sentence").
        word_losses: those of them that are losses of words or subwords, for the perplexity.
        weights: the training loss is the sum of the losses, each times its weight.
        gradient_scale: what the training loss is multiplied by for its gradient.
        size: samples in an epoch.
        predictions: how many words or subwords one loss predicts in the whole corpus, for bits per byte.
        batch_size: how many samples a batch of all processes must hold; None: any number.
    """

    corpus: Corpus
    losses: tuple[str, ...]
    word_losses: tuple[str, ...]
    weights: tuple[float, ...]
    gradient_scale: float = 1.0
    size: int
    predictions: int
    batch_size: int | None = None

    @abstractmethod
    def batch(self, samples: Sequence[int]) -> dict[str, torch.Tensor]:
        """The model's inputs and labels for these samples, in their order.

        Depends on the objective's parameters and the sample numbers only: not on earlier calls, on the other samples
        but for the amount of padding, or on the process.
        """

    @abstractmethod
    def count(self, batch: Mapping[str, torch.Tensor]) -> list[int]:
        """How many predictions each loss of the batch is the mean of."""

    @abstractmethod
    def compute(
        self, model: PreTrainedModel, batch: Mapping[str, torch.Tensor], options: Mapping[str, Any]
    ) -> torch.Tensor:
        """(number of losses,) the mean of each loss over the batch's predictions, with gradients.

        Args:
            batch: what `batch` returns, on the model's device.
            options: further arguments of the model, such as {"unpad": False}.
        """

    def state(self) -> dict[str, torch.Tensor]:
        """What a checkpoint keeps in addition to the model: tensors on the CPU, with one entry for each row.

        Only for objectives whose rows continue in the next batch. Each process has the entries of its rows; those of
        all processes, concatenated, are the state of the run.
        """
        return {}

    def load_state(self, state: Mapping[str, torch.Tensor]) -> None:  # noqa: B027 - most objectives have no state
        """Continues from what `state` returned: that of all processes, concatenated. Their number may differ now."""

    def begin_evaluation(self, device: torch.device) -> None:  # noqa: B027 - most objectives have nothing to do
        """Prepares an evaluation on `device`. Every process calls it before the first batch.

        By default, changes nothing.
        """

    def finish(self, model: PreTrainedModel) -> None:  # noqa: B027 - most objectives have nothing to do
        """Prepares the model to be saved at the end of the training. By default, changes nothing."""


def skip_logits(model: PreTrainedModel) -> dict[str, bool]:
    """The argument that asks the model for its loss without the scores of all words, if it has one."""
    return {"skip_logits": True} if _skips_logits(type(extract_model_from_parallel(model))) else {}


@functools.cache  # for each batch
def _skips_logits(model_class: type) -> bool:
    return "skip_logits" in inspect.signature(model_class.forward).parameters


# Held-out text


@dataclass(frozen=True)
class HeldOut:
    """The samples of held-out text, in their order.

    samples: how many of them are evaluated, the first
    """

    objective: Objective
    samples: int

    def __len__(self) -> int:
        return self.samples

    def select(self, samples: range) -> HeldOut:
        """The first of the samples."""
        return replace(self, samples=len(samples))


@torch.no_grad()
def compute_losses(
    held_out: HeldOut,
    model: PreTrainedModel,
    accelerator: Accelerator,
    batch_size: int,
    options: Mapping[str, Any],
    workers: int = 0,
) -> Outputs:
    """The mean of each loss as "losses" (losses,), and how many predictions each is the mean of as "counts" (losses,).

    A batch holds `batch_size` samples of each process. Raises FloatingPointError if a loss is not finite.
    """
    objective = held_out.objective
    model.to(accelerator.device).eval()
    objective.begin_evaluation(accelerator.device)
    rank, processes = accelerator.process_index, accelerator.num_processes
    batches = in_pieces(range(held_out.samples), objective.batch_size or batch_size * processes)
    local = [samples[rank::processes] or samples[:1] for samples in batches]
    sums = torch.zeros(2, len(objective.losses), dtype=torch.float64)
    collate = with_packing(objective.batch, model, accelerator.device)
    for samples, batch in zip(batches, load_batches(range(len(held_out)), local, collate, workers), strict=True):
        with accelerator.autocast(), as_user_errors():
            losses = objective.compute(model, send_to_device(batch, accelerator.device), options)
        if samples[rank::processes]:
            counts = torch.tensor(objective.count(batch), dtype=torch.float64)
            losses = losses.cpu().double().where(counts > 0, 0)  # the mean of nothing may be NaN
            sums += torch.stack([losses * counts, counts])
    losses, counts = accelerator.reduce(sums.to(accelerator.device), "sum").cpu().numpy()
    if not np.isfinite(losses).all():
        raise DivergedError("the loss on held-out text is not finite")
    return {"losses": [losses / np.maximum(counts, 1)], "counts": [counts]}


def score(held_out: HeldOut, outputs: Outputs) -> dict[str, float]:
    """Perplexity, bits per byte of the text, and each loss if there are several.

    The perplexity is that of words: of BERT's masked ones, and of a biLM's in the mean of both directions, each of
    which also has its own. Bits per byte make models with different tokens comparable. They are the mean loss, in
    bits, times the predictions of the whole text, divided by its bytes. A masked model sees the words around each
    masked one, so its bits per byte are no code length.
    """
    objective = held_out.objective
    losses = dict(zip(objective.losses, outputs["losses"][0].tolist(), strict=True))
    words = {name: losses[name] for name in objective.word_losses}
    mean = sum(words.values()) / len(words)
    bits_per_byte = mean / math.log(2) * objective.predictions / objective.corpus.num_bytes
    values = {"perplexity": math.exp(min(mean, LARGEST_LOSS)), "bits_per_byte": bits_per_byte}
    if len(words) > 1:
        values |= {f"{name}_perplexity": math.exp(min(loss, LARGEST_LOSS)) for name, loss in words.items()}
    if len(losses) > 1:
        values |= {f"{name}_loss": loss for name, loss in losses.items()}
    total = sum(loss * weight for loss, weight in zip(losses.values(), objective.weights, strict=True))
    return values | {"loss": total}
