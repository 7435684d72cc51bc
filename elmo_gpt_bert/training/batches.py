"""Which examples each update of a run trains on, what its loss is the mean of, and how batches are loaded."""

from __future__ import annotations

import atexit
import contextlib
import functools
import inspect
import math
import multiprocessing
import os
import signal
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader

from elmo_gpt_bert.training.arguments import RunArguments
from elmo_gpt_bert.training.errors import LaunchError
from elmo_gpt_bert.training.identity import ENDS_EPOCH
from elmo_gpt_bert.training.optimization import count_updates


if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedModel


Collate = Callable[[list[dict]], Mapping[str, torch.Tensor]]

# The label that torch's losses ignore, for tokens without a label. modeling/ defines it again: its files go to the Hub
# without this one, and a run with --implementation transformers does not import modeling/.
IGNORED = -100

GPU_WORKERS = 4
WITHOUT_PACKING = ("cpu", "xla")  # devices


def count_tokens(data_set: Dataset) -> list[int]:
    """The number of tokens of each example; of its longest choice if the model reads several choices.

    Tokens around a sentence that a column `sentence_mask` marks do not count: states that are kept have none there.
    They are counted in the mask, because input ids may be nested for another reason: ELMo has several for each token.
    """
    if "sentence_mask" in data_set.column_names:
        return [sum(mask) for mask in data_set["sentence_mask"]]
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
    """Turns what torch raises for a worker that was killed into one line."""
    try:
        yield
    except RuntimeError as error:
        if not str(error).startswith("DataLoader worker"):
            raise
        for process in multiprocessing.active_children():  # they may wait for a lock that the killed one had
            process.kill()
            process.join()
        raise LaunchError(
            "a process that prepared batches was killed, perhaps because memory ran out: start again with fewer "
            "--dataloader_num_workers"
        ) from error


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


Update = Sequence[Sequence[int]]  # micro-batches -> the indices of the examples of all processes
Batch = Mapping[str, torch.Tensor]


# Plans


@dataclass(frozen=True)
class Stretch:
    """Updates whose examples one data loader reads: an epoch or, of pre-training, a phase; or the rest of it.

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
    """

    updates: int
    losses: tuple[str, ...] = ("loss",)
    loss_weights: tuple[float, ...] = (1.0,)
    gradient_scale: float = 1.0

    def __init__(self, args: RunArguments, accelerator: Accelerator) -> None:
        self.args, self.accelerator = args, accelerator

    def share(self, samples: Sequence[int]) -> Sequence[int]:
        """The part of a micro-batch of all processes that this process computes; may be empty."""
        size = self.args.per_device_train_batch_size
        first = self.accelerator.process_index * size
        return samples[first : first + size]

    @abstractmethod
    def stretch(self, update: int) -> Stretch:
        """The updates from `update`, which is below `updates`, to the end of its epoch, its phase, or the run."""

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
        return {"updates": self.updates, ENDS_EPOCH: self.ends_epoch(self.updates)}
