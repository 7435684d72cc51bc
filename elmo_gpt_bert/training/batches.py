"""Chooses the examples of each batch and loads them."""

from __future__ import annotations

import atexit
import contextlib
import functools
import inspect
import math
import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader

from elmo_gpt_bert.training.arguments import RunArguments
from elmo_gpt_bert.training.errors import LaunchError, Parameter, UserError


if TYPE_CHECKING:
    from datasets import Dataset


Collate = Callable[[list[dict]], Mapping[str, torch.Tensor]]

# The label that torch's losses ignore, for tokens without a label. modeling/ defines it again: its files go to the Hub
# without this one, and a run with --implementation transformers does not import modeling/.
IGNORED = -100

WORKERS = Parameter("workers", "dataloader_num_workers")
GPU_WORKERS = 4
WITHOUT_PACKING = ("cpu", "xla")  # devices


def count_tokens(data_set: Dataset) -> list[int]:
    """The number of tokens of each example; of its longest choice if the model reads several choices.

    They are counted in the mask, because input ids may be nested for another reason: ELMo has several for each token.
    """
    if "attention_mask" not in data_set.column_names:
        return [len(ids) for ids in data_set["input_ids"]]
    if isinstance(next(iter(data_set[0]["attention_mask"]), 0), list):
        return [max(map(len, masks)) for masks in data_set["attention_mask"]]
    return [len(mask) for mask in data_set["attention_mask"]]


def count_items(train_set: Dataset) -> list[int]:
    """The number of losses that each example has: one, or one for each labelled token."""
    if "labels" not in train_set.column_names or not isinstance(train_set[0]["labels"], list):
        return [1] * len(train_set)
    return [sum(label != IGNORED for label in labels) for labels in train_set["labels"]]


def count_real_tokens(batch: Mapping[str, torch.Tensor]) -> int:
    """The number of tokens of a batch, without padding."""
    if "attention_mask" in batch:
        return int(batch["attention_mask"].sum())
    return math.prod(batch["input_ids"].shape[:2])


def epoch_updates(lengths: list[int], args: RunArguments, epoch: int, processes: int) -> list[list[list[int]]]:
    """The indices of one epoch's examples as updates -> micro-batches -> indices, the same on every process.

    Which examples share an update depends only on the number of examples in an update, not on processes or
    accumulation. A micro-batch holds the examples of all processes.
    With group_by_length, the shuffled examples are sorted by length in blocks of 50 updates and the updates are
    shuffled again; an incomplete update stays last. With pad_to_max_length, the epoch's first examples fill up the
    last update, so that all batches have one shape.
    """
    rng = np.random.default_rng((args.seed, epoch))
    micro = args.per_device_train_batch_size * processes
    size = micro * args.gradient_accumulation_steps
    order = rng.permutation(len(lengths)).tolist()
    if args.pad_to_max_length:
        order = np.resize(order, math.ceil(len(order) / size) * size).tolist()
    if args.group_by_length:
        blocks = in_pieces(order, 50 * size)
        order = [index for block in blocks for index in sorted(block, key=lengths.__getitem__)]
    updates = in_pieces(order, size)
    if args.group_by_length:
        complete = len(order) // size
        updates = [updates[i] for i in rng.permutation(complete)] + updates[complete:]
    return [in_pieces(update, micro) for update in updates]


def in_pieces(indices: list[int], size: int) -> list[list[int]]:
    return [indices[i : i + size] for i in range(0, len(indices), size)]


def count_workers(chosen: int | None, device: torch.device) -> int:
    """How many processes prepare this process's batches: --dataloader_num_workers or, by default, none on a CPU.

    There they would take processors from the model. On a GPU they are up to `GPU_WORKERS`, as many as there are other
    processors, if the system can start them as copies of this process. Elsewhere each would first import everything.
    """
    if chosen is not None:
        return chosen
    if device.type != "cuda" or multiprocessing.get_start_method() != "fork":
        return 0
    processors = len(os.sched_getaffinity(0)) // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return max(0, min(GPU_WORKERS, processors - 1))


@contextlib.contextmanager
def worker_errors() -> Iterator[None]:
    """Turns what torch raises for a worker that was killed, or that raised a UserError, into one line."""
    try:
        yield
    except UserError as error:
        kind, text = type(error), str(error)
        if not text.startswith(f"Caught {kind.__name__} in DataLoader worker"):
            raise
        raise kind(text.rpartition(f"{kind.__name__}: ")[2].strip()) from error  # without the worker's traceback
    except (RuntimeError, OSError, EOFError) as error:
        # The worker was killed before its last batch was received, which asks it for a file descriptor.
        is_gone = isinstance(error, (EOFError, ConnectionError, FileNotFoundError))
        left_a_batch = is_gone and "rebuild_storage_fd" in "".join(traceback.format_exception(error))
        if not (left_a_batch or str(error).startswith("DataLoader worker")):
            raise
        for process in multiprocessing.active_children():  # they may wait for a lock that the killed one had
            process.kill()
            process.join()
        problem = "a process that prepared batches was killed, perhaps because memory ran out: start again with fewer "
        raise LaunchError(problem, WORKERS) from error


def load_batches(
    data_set: Dataset | range,
    batches: Iterable[list[int]],
    collate: Collate,
    workers: int = 0,
    pin_memory: bool = False,
) -> DataLoader:
    """Loads the `batches`, each a list of indices, in order; `workers` processes, if any, prepare them in advance."""
    if workers:
        _end_workers_at_exit()
    return DataLoader(
        data_set,
        batch_sampler=batches,
        collate_fn=collate,
        num_workers=workers,
        worker_init_fn=_ignore_signals,
        pin_memory=pin_memory,
        generator=torch.Generator(),  # the loader draws a seed from it
    )


def _ignore_signals(worker: int) -> None:
    """A signal that stops the run reaches its workers, too, but the update in progress still needs their batches."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


@functools.cache
def _end_workers_at_exit() -> None:
    """Kills workers that an error has left, when this process exits.

    multiprocessing would send them SIGTERM, which they ignore, and wait for them without end.
    """

    def kill() -> None:
        for process in multiprocessing.active_children():
            if process.daemon:
                process.kill()

    atexit.register(kill)  # after multiprocessing has registered its own function, so it is called before that


def padding_options(model: nn.Module, one_shape: bool) -> dict[str, bool]:
    """The arguments that keep a model from removing padding, if all batches are to have `one_shape`."""
    return {"unpad": False} if one_shape and _takes(model, "unpad") else {}


def with_packing(collate: Collate, model: nn.Module, device: torch.device) -> Collate:
    """`collate`, whose batches tell a model of the zoo where their real tokens are, so that it waits for no GPU.

    A CPU reads its values without waiting, and XLA takes no shapes that depend on values.
    """
    head = inspect.signature(model.forward).parameters.values()
    passes_it_on = any(each.name == "packing" or each.kind == each.VAR_KEYWORD for each in head)
    if device.type in WITHOUT_PACKING or not (passes_it_on and _takes(model, "packing")):
        return collate
    from modeling import DataCollatorWithPacking  # a run with transformers' models imports no modeling/

    return DataCollatorWithPacking(collate)


def _takes(model: nn.Module, name: str) -> bool:
    """Whether the model, below its head, has an argument of this name."""
    return name in inspect.signature(getattr(model, "base_model", model).forward).parameters
