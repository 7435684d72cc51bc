"""What every objective of pre-training is to the training loop: a way from sample numbers to losses."""

from __future__ import annotations

import functools
import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import torch
from accelerate.utils import extract_model_from_parallel

from elmo_gpt_bert.tasks.pretraining.corpus import Corpus


if TYPE_CHECKING:
    from transformers import PreTrainedModel


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

    def load_state(self, state: Mapping[str, torch.Tensor]) -> None:
        """Continues from what `state` returned: that of all processes, concatenated. Their number may differ now."""
        if state:
            raise ValueError(f"{type(self).__name__} has no state, but this one holds {', '.join(state)}.")

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
