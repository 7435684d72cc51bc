"""The losses of a language model on held-out text, and the measures made of them: perplexity and bits per byte."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import send_to_device

from elmo_gpt_bert.tasks.pretraining.objective import Objective
from elmo_gpt_bert.training.batches import in_pieces, load_batches, with_packing
from elmo_gpt_bert.training.errors import DivergedError, as_user_errors
from elmo_gpt_bert.training.task import Outputs


if TYPE_CHECKING:
    from transformers import PreTrainedModel


LARGEST_LOSS = 700  # its exponential is a float


@dataclass(frozen=True)
class HeldOut:
    """The samples of held-out text, in their order.

    samples: how many of them are evaluated, the first
    """

    objective: Objective
    samples: int

    @classmethod
    def of(cls, objective: Objective, limit: int | None = None) -> HeldOut:
        """All samples of the objective's corpus, or the first up to `limit`."""
        return cls(objective, objective.size if limit is None else min(limit, objective.size))

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
