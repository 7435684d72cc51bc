# Copyright 2026 the authors of this model zoo.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""Finds the sequences of a batch on the CPU, before the batch goes to a GPU. No model needs this file."""

import dataclasses
from collections.abc import Callable, MutableMapping
from typing import Any

from .modeling_heads import loss_needs_padding
from .modeling_packing import BOUNDARIES, Packing, find_sequences, find_starts, labelled_tokens


class DataCollatorWithPacking:
    """Adds to the batches of another collator what the models here would otherwise find out on the device.

        Trainer(model, data_collator=DataCollatorWithPacking(DataCollatorWithPadding(tokenizer)), ...)

    A batch gets one more entry, `packing`, an argument of ZooBert and ZooGPT models. Their results do not change. On a
    GPU, a forward and backward pass then reads no value of the batch, for which the program would wait.

    A packing belongs to its batch. Whoever changes the mask, the boundaries or the labels of a batch later has to
    leave its `packing` out. Whoever cuts or joins batches cannot use it: `nn.DataParallel`, and Accelerate with
    `dispatch_batches` or `split_batches`. With several GPUs, start one process for each.
    """

    def __init__(self, collator: Callable[[Any], MutableMapping[str, Any]]) -> None:
        self.collator = collator

    def __call__(self, examples: Any) -> MutableMapping[str, Any]:
        batch = self.collator(examples)
        packing = find_packing(batch)
        if packing is not None:
            batch["packing"] = packing
        return batch


def find_packing(batch: MutableMapping[str, Any]) -> Packing | None:
    """The packing of a batch of input_ids, (B, T) or (B, K, T); None without them, or with padding on the left.

    Raises ValueError for boundaries of sequences that do not fit the tokens.
    """
    names = ("input_ids", "attention_mask", "position_ids", "labels", "shift_labels")
    tokens, attention_mask, position_ids, labels, shift_labels = map(batch.get, names)
    if tokens is None:
        return None
    if tokens.dim() == 3:
        tokens, position_ids = tokens.flatten(0, 1), None
        attention_mask = None if attention_mask is None else attention_mask.flatten(0, 1)
    starts = find_starts(tokens, attention_mask, position_ids, None, *map(batch.get, BOUNDARIES))
    packing = find_sequences(tuple(tokens.shape), tokens.device, attention_mask, starts, if_whole=True)
    if packing is None:
        return None
    labels = labels if shift_labels is None else shift_labels
    are_of_tokens = labels is not None and labels.shape == tokens.shape
    return dataclasses.replace(
        packing,
        of_mask=attention_mask is not None,
        labelled=labelled_tokens(labels) if are_of_tokens else None,
        shifted=shift_labels is not None,
        labels_padding=are_of_tokens and loss_needs_padding(labels, attention_mask),
    )


__all__ = ["DataCollatorWithPacking"]
