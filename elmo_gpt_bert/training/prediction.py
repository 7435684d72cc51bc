"""Computes a model's outputs for each example of a data set."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import send_to_device, tqdm
from torch import nn

from elmo_gpt_bert.training.batches import (
    Collate,
    count_tokens,
    in_pieces,
    load_batches,
    padding_options,
    with_packing,
)
from elmo_gpt_bert.training.errors import DivergedError, Parameter, as_user_errors
from elmo_gpt_bert.training.processes import from_all


if TYPE_CHECKING:
    from datasets import Dataset


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
                ": use a ",
                Parameter("mixed_precision"),
                " with a wider range, or train with a lower ",
                Parameter("learning_rate"),
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
