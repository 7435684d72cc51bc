"""Trains a model: the training loop of all scripts.

An update weighs all its examples equally, or all their labelled tokens if tokens have labels. How many of its
micro-batches each process computes changes only rounding. Their size also changes what dropout draws.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import random
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator, DistributedType
from accelerate.utils import send_to_device, tqdm

from elmo_gpt_bert.training import memory
from elmo_gpt_bert.training.arguments import RunArguments, default_strategy
from elmo_gpt_bert.training.batches import (
    Batch,
    Counts,
    Plan,
    Stretch,
    count_real_tokens,
    count_workers,
    load_batches,
    padding_options,
    with_packing,
)
from elmo_gpt_bert.training.checkpoints import Checkpoints, Mean, Progress
from elmo_gpt_bert.training.command_line import Interrupted, stop_signals
from elmo_gpt_bert.training.errors import DivergedError, InputError, as_user_errors
from elmo_gpt_bert.training.launching import remove_earlier_results
from elmo_gpt_bert.training.log import start_trackers
from elmo_gpt_bert.training.optimization import (
    build_optimizer,
    build_schedule,
    check_ties,
    compiled_layers,
    freeze_layers,
    make_divisible,
    move_schedule,
    recompute_activations,
    reinitialize_layers,
)
from elmo_gpt_bert.training.processes import one_thread_beside
from elmo_gpt_bert.training.results import Clock, check_metric, defined, scores_of, without_types
from elmo_gpt_bert.training.task import Compute, Evaluation, Task, evaluate, results_of


# Other values have four digits.
LOG_FORMATS = {"learning_rate": ".3g", "grad_norm": ".3g", "tokens_per_second": ",.0f"}
SAVE_STEPS = 500  # updates between two checkpoints with --save_strategy steps alone
MAX_OVERFLOWS = 20  # in a row: then no scale of the gradients in fp16 would help


@dataclass(frozen=True)
class Trained:
    """What training leaves beside the model.

    results: entries of metrics.json, for the training loss, the number of updates and the last evaluation or, with
        --load_best_model_at_end, the best one
    seconds: by step, as in `Clock`
    evaluations: suffix -> the evaluation of these results; None if the run was resumed after that evaluation
    record: the metrics.json of a run that had finished before; empty if this one has trained
    """

    results: dict[str, float]
    seconds: dict[str, float]
    evaluations: dict[str, Evaluation] | None
    record: Mapping[str, Any] = field(default_factory=dict)


def train(
    task: Task, compute: Compute, args: RunArguments, accelerator: Accelerator, identity: dict[str, Any]
) -> Trained:
    """Trains the task's model, evaluates it and saves checkpoints as `args` say; with --resume continues a run.

    `identity` is what `run_identity` returned. With --load_best_model_at_end the model gets the weights of the best
    evaluation.
    Raises FloatingPointError if the loss is not finite, and Interrupted if the user or the system stops the run; both
    name the checkpoint to continue from. Raises ValueError if the model does not support --gradient_checkpointing,
    --reinit_layers or --freeze_layers.
    """
    model = task.model
    check_ties(model)
    reinitialize_layers(model, args.reinit_layers)
    freeze_layers(model, args.freeze_layers, args.reinit_layers)
    if args.gradient_checkpointing:
        if not model.supports_gradient_checkpointing:
            raise InputError(
                f"{type(model).__name__} cannot recompute activations: leave --gradient_checkpointing out"
            )
        recompute_activations(model, accelerator)
    if task.evaluation_splits and args.metric_for_best_model:  # a wrong name fails before training
        _check_metric(task, compute, args.metric_for_best_model)
    if accelerator.device.type == "cpu":
        memory.keep_blocks()
    compiled = compiled_layers(model, args.torch_compile_mode) if args.torch_compile else contextlib.nullcontext()
    with compiled:
        training = _Training(task, compute, args, accelerator, identity)
        with training.remedies():
            trained = training.run()
    memory.release()
    return trained


def _check_metric(task: Task, compute: Compute, metric: str) -> None:
    """Raises ValueError if evaluations have no such score.

    The scores of two examples tell it for most names. Scores of a kind of examples, such as one type of entities, are
    missing where those two are not of that kind; then all examples are evaluated.
    """
    splits = task.evaluation_splits.items()
    with contextlib.suppress(InputError):
        check_metric(results_of({suffix: evaluate(task, split, compute, first=2) for suffix, split in splits}), metric)
        return
    check_metric(results_of({suffix: evaluate(task, split, compute) for suffix, split in splits}), metric)


def seed_draws(device: torch.device, *key: int) -> None:
    """Makes all random numbers of a micro-batch on `device` a function of the key.

    The key is the seed, the update, and the number of the micro-batch in it, counted over all processes. So nothing
    depends on earlier draws, and a checkpoint needs no random states.
    torch.manual_seed would seed all kinds of devices, and is slow where one of them is not in use.
    """
    number = int.from_bytes(hashlib.blake2b(repr(key).encode(), digest_size=4).digest())
    random.seed(number)
    np.random.seed(number)
    torch.default_generator.manual_seed(number)
    if device.type == "xla":
        from torch_xla.core import xla_model

        xla_model.set_rng_state(number)
    elif device.type != "cpu":
        torch.get_device_module(device).manual_seed(number)


def run_pending(accelerator: Accelerator) -> None:
    """Computes an update, which XLA has only recorded."""
    if accelerator.distributed_type == DistributedType.XLA:
        import torch_xla

        torch_xla.sync()


class _Training:
    """The state of one call of `train`."""

    def __init__(
        self, task: Task, compute: Compute, args: RunArguments, accelerator: Accelerator, identity: dict[str, Any]
    ) -> None:
        self.task, self.compute, self.args, self.accelerator = task, compute, args, accelerator
        model = task.model
        self.plan = task.build_plan(args, accelerator)
        self.total = self.plan.updates
        # Compiled for a CPU, each batch without its padding would be another graph.
        is_padded = args.pad_to_max_length or (args.torch_compile and accelerator.device.type == "cpu")
        self.padding_options = padding_options(model, is_padded)
        model.to(accelerator.device)
        model.tie_weights(recompute_mapping=False)  # on XLA, `to` copies a shared weight once for each use
        if accelerator.distributed_type == DistributedType.FSDP:
            make_divisible(model)
        optimizer = build_optimizer(model, args)
        self.scheduler = build_schedule(optimizer, args, self.total)  # first: it watches the steps that fp16 wraps
        self.model, self.optimizer = accelerator.prepare(model, optimizer)
        self.checkpoints = Checkpoints(task, optimizer, self.plan, identity, args, accelerator)
        restored = self.checkpoints.restore()
        self.progress = restored or Progress()
        self.latest: dict[str, Evaluation] | None = None  # suffix -> the last evaluation in this process,
        self.best: dict[str, Evaluation] | None = None  # and that of the best model, with --load_best_model_at_end
        self.clock = Clock(self.progress.seconds)
        self.unread: list[tuple[torch.Tensor, torch.Tensor]] = []  # (losses, items): reading waits for the device
        self.learning_rate = self.scheduler.get_last_lr()[0]  # of the last update
        self.gradient_norm: torch.Tensor | None = None  # of the last update, if gradients are clipped
        self.overflows = 0  # in a row
        self.tokens = 0  # of this process, since the last line of the log,
        self.seconds = self.clock.seconds.get("train", 0.0)  # at which so much time had gone into training
        self.print_plan()
        if restored:
            move_schedule(self.scheduler, restored.update)
            accelerator.print(f"resumed from {self.checkpoints.path(restored.update)}")
        start_trackers(args, accelerator, self.progress.update)
        if self.progress.update < self.total:  # otherwise they are those of this run
            remove_earlier_results(args, accelerator)
        self.bar = tqdm(initial=self.progress.update, total=self.total, desc="train", disable=not sys.stderr.isatty())

    def print_plan(self) -> None:
        """What the run trains on, and a warm-up that it does not end."""
        self.accelerator.print(f"train: {self.plan}, on {self.accelerator.device.type}")
        if 0 < self.total <= self.args.warmup_steps:
            steps = f"--warmup_steps {self.args.warmup_steps}, but there are {self.total} updates"
            self.accelerator.print(f"{steps}: the learning rate ends before its peak")

    @property
    def finished(self) -> bool:
        return self.progress.stopped or self.is_last

    def run(self) -> Trained:
        progress = self.progress
        with stop_signals() as self.signals, one_thread_beside(self.accelerator.device):
            while not self.finished:
                stretch = self.plan.stretch(progress.update)
                self.model.train()
                for losses, items in self.losses(stretch):
                    if self.step():
                        self.update(losses, items)
                        self.between_updates()
                    if self.finished:
                        break
        self.bar.close()
        if self.args.load_best_model_at_end and progress.best_update != progress.update:
            self.checkpoints.load(progress.best_update)
        self.checkpoints.check_weights(progress.update)
        self.clock.lap("train")
        results = {"train_loss": progress.run.value, "train_updates": progress.update}
        if not self.args.load_best_model_at_end:
            return Trained(results | progress.results, self.clock.seconds, self.latest)
        results["best_update"] = progress.best_update
        return Trained(results | progress.best_results, self.clock.seconds, self.best)

    def losses(self, stretch: Stretch) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yields this process's share of each loss of an update, after the backward pass, and the update's items.

        Both are (losses,). A process that has no example of the last micro-batch computes one with weight zero. If the
        caller makes no update, its losses are computed again.
        """
        plan, accelerator = self.plan, self.accelerator
        pin_memory = accelerator.device.type == "cuda"
        examples = (plan.share(batch) or batch[:1] for update in stretch.updates for batch in update)
        workers = count_workers(self.args.dataloader_num_workers, accelerator.device)
        collate = with_packing(stretch.collate, self.checkpoints.model, accelerator.device)
        loader = iter(load_batches(stretch.data_set, examples, collate, workers, pin_memory))
        for number, update in enumerate(stretch.updates, self.progress.update):
            batches = [next(loader) for _ in update]
            counts = plan.count(update, batches)
            while self.progress.update == number:
                yield self.accumulate(batches, counts), torch.as_tensor(counts.totals)

    def accumulate(self, batches: list[Batch], counts: Counts) -> torch.Tensor:
        """(losses,) this process's shares of the losses of an update, after the backward passes of its micro-batches.

        A micro-batch's mean loss is weighted by its part of the update's items. If it has no labelled token, its mean
        loss is NaN, and its weight zero.
        """
        accelerator, device = self.accelerator, self.accelerator.device
        shares = torch.zeros(len(self.plan.losses), device=device)
        for step, (batch, items) in enumerate(zip(batches, counts.batches, strict=True)):
            inputs = send_to_device(batch, device, non_blocking=device.type == "cuda")
            shares_of_items = [
                count / total if count else None for count, total in zip(items, counts.totals, strict=True)
            ]
            accelerator.sync_gradients = step == len(batches) - 1
            micro_batch = step * accelerator.num_processes + accelerator.process_index
            seed_draws(device, self.args.seed, self.progress.update, micro_batch)
            with contextlib.nullcontext() if accelerator.sync_gradients else accelerator.no_sync(self.model):
                shares += self.backward(inputs, shares_of_items)
            self.tokens += count_real_tokens(batch)
        return shares

    def backward(self, inputs: dict[str, torch.Tensor], shares: list[float | torch.Tensor | None]) -> torch.Tensor:
        """(losses,) this process's shares of the losses of a micro-batch, after the backward pass.

        shares: for each loss, the micro-batch's part of the update's items; None if it has no item
        """
        plan = self.plan
        with as_user_errors():
            losses = plan.compute(self.model, inputs, self.padding_options)
        parts = [
            0 * loss.nan_to_num() if share is None else loss * share
            for loss, share in zip(losses, shares, strict=True)
        ]
        loss = sum(part * weight for part, weight in zip(parts, plan.loss_weights, strict=True))
        # Gradients are averaged over processes.
        self.accelerator.backward(loss * (plan.gradient_scale * self.accelerator.num_processes))
        return torch.stack(parts).detach()

    def step(self) -> bool:
        """One step of the optimizer, after the backward pass. False if there was none, since fp16 overflowed.

        The scaler then lowers its scale. Accelerate does not notice that a fused optimizer has left out the step.
        """
        if self.args.max_grad_norm > 0:
            self.gradient_norm = self.accelerator.clip_grad_norm_(self.model.parameters(), self.args.max_grad_norm)
        scaler = self.accelerator.scaler
        scale = 0.0 if scaler is None else scaler.get_scale()
        self.optimizer.step()
        self.optimizer.zero_grad()
        if scaler is None or scaler.get_scale() >= scale:
            self.overflows = 0
            return True
        self.overflows += 1
        if self.overflows == MAX_OVERFLOWS:
            times = f"{MAX_OVERFLOWS} times in a row"
            raise DivergedError(f"fp16 gradients overflowed {times} after update {self.progress.update}")
        self.print(f"{self.position}: fp16 gradients overflowed; again with a scale of {scaler.get_scale():g}")
        return False

    def update(self, losses: torch.Tensor, items: torch.Tensor) -> None:
        """Counts an update, after the optimizer's step, for this process's shares of the losses."""
        self.progress.update += 1
        self.learning_rate = self.scheduler.get_last_lr()[0]
        self.scheduler.step()
        run_pending(self.accelerator)
        self.unread.append((losses, items))
        self.bar.update()

    @property
    def is_last(self) -> bool:
        """Whether all updates have been made."""
        return self.progress.update >= self.total

    def between_updates(self) -> None:
        """Does what is due after an update: logs, evaluates, saves a checkpoint, or stops."""
        args, update, is_last = self.args, self.progress.update, self.is_last
        ends = self.plan.ends_epoch(update) or is_last
        if update % memory.UPDATES == 0:
            memory.release()
        if update % args.logging_steps == 0 or is_last:
            self.log()
        evaluates = is_last if args.eval_strategy == "no" else self.is_due(args.eval_strategy, args.eval_steps, ends)
        improved = self.evaluate() if self.task.evaluation_splits and evaluates else False
        if ends:
            self.end_epoch()
        stop = self.must_stop()
        saves = self.is_due(args.save_strategy, args.save_steps, ends)
        saves |= self.progress.stopped and args.save_strategy != "no"
        if saves or stop or (args.load_best_model_at_end and improved):
            self.save()
        if stop:
            raise Interrupted(f"stopped at update {update} of {self.total}. {self.checkpoints.how_to_resume()}")

    def is_due(self, strategy: str | None, steps: int | None, ends: bool) -> bool:
        """Whether to evaluate or save now by --X_strategy and --X_steps; ends: whether an epoch, or the run, does."""
        if (strategy or default_strategy(steps)) == "steps":
            return self.progress.update % (steps or SAVE_STEPS) == 0 or self.is_last
        return ends and strategy != "no"

    def read_losses(self) -> None:
        """Adds the losses of the latest updates to `progress`. Raises FloatingPointError if one is no number."""
        if not self.unread:
            return
        shares, items = (torch.stack(tensors) for tensors in zip(*self.unread, strict=True))
        all_losses = self.accelerator.reduce(shares, "sum").tolist()
        self.unread = []
        progress, weights = self.progress, self.plan.loss_weights
        first = progress.update - len(all_losses) + 1
        for update, (losses, counts) in enumerate(zip(all_losses, items.tolist(), strict=True), start=first):
            loss = sum(each * weight for each, weight in zip(losses, weights, strict=True))
            if not math.isfinite(loss):
                raise DivergedError(f"the training loss is {loss} at update {update}")
            for mean in (progress.run, progress.epoch, progress.logged):
                mean.add(loss, counts[0])
            for name, each, count in zip(self.plan.losses, losses, counts, strict=True):
                progress.losses.setdefault(name, Mean()).add(each, count)

    @contextlib.contextmanager
    def remedies(self) -> Iterator[None]:
        """Adds remedies to the message of a divergence and, if there is one, the last checkpoint."""
        try:
            yield
        except DivergedError as error:
            newest = self.checkpoints.newest
            last = "no checkpoint was saved"
            if newest is not None:
                path = self.checkpoints.path(newest)
                last = f"{path} is the last good checkpoint, for --model_name_or_path of another run"
            raise DivergedError(
                f"{error.problem} of {self.total}: lower --learning_rate (peak {self.args.learning_rate}), or use a "
                f"--mixed_precision with a wider range; {last}"
            ) from error

    def log(self) -> None:
        """Prints the mean loss since the last call, and sends it to the trackers."""
        self.read_losses()
        progress = self.progress
        if not progress.logged.updates:
            return
        values = {"train_loss": progress.logged.value}
        if len(progress.losses) > 1:
            values |= {f"train_{name}_loss": mean.value for name, mean in progress.losses.items()}
        progress.logged, progress.losses = Mean(), {}
        values["learning_rate"] = self.learning_rate
        if self.gradient_norm is not None:
            values["grad_norm"] = float(self.gradient_norm)
        self.clock.lap("train")
        passed = max(self.clock.seconds["train"] - self.seconds, 1e-9)
        values["tokens_per_second"] = self.tokens * self.accelerator.num_processes / passed
        self.tokens, self.seconds = 0, self.clock.seconds["train"]
        parts = [f"{name} {value:{LOG_FORMATS.get(name, '.4f')}}" for name, value in values.items()]
        self.bar.set_postfix(loss=f"{values['train_loss']:.4f}", refresh=False)
        self.print(f"{self.position}: {', '.join([*parts, self.time_left()])}")
        self.accelerator.log(values, step=progress.update)

    @property
    def position(self) -> str:
        """How far the run has come, as in "update 50/100"."""
        return f"update {self.progress.update}/{self.total}"

    def time_left(self) -> str:
        """As in "0:02:10 left", from the run's mean speed until now."""
        seconds = self.clock.total * (self.total / self.progress.update - 1)
        return f"{timedelta(seconds=round(seconds))} left"

    def print(self, line: str) -> None:
        """Prints a line above the progress bar, which is drawn again at the next update."""
        self.bar.clear()
        self.accelerator.print(line)

    def evaluate(self) -> bool:
        """Evaluates the model; True if it is the best so far. Stops the run early if the best was long ago."""
        progress = self.progress
        self.read_losses()
        self.clock.lap("train")
        try:
            splits = self.task.evaluation_splits.items()
            with torch.compiler.set_stance("force_eager"):  # not compiled
                self.latest = {suffix: evaluate(self.task, split, self.compute) for suffix, split in splits}
        except DivergedError as error:
            raise DivergedError(f"{error.problem}, at update {progress.update}") from error
        self.clock.lap("eval")
        self.model.train()
        progress.results = defined(results_of(self.latest))
        self.accelerator.log(progress.results, step=progress.update)
        improved = progress.note_results(self.args.metric_for_best_model)
        if improved and self.args.load_best_model_at_end:
            self.best = self.latest
        overall = without_types(scores_of(progress.results))
        self.print(f"{self.position}:{''.join(f'  eval_{name} {value:.4f}' for name, value in overall.items())}")
        if progress.worse == self.args.early_stopping_patience:
            progress.stopped = True  # also after the last update, where a longer run would stop as well
            if progress.update < self.total:
                self.log()
                self.print(f"stopped early: update {progress.best_update} was better")
        return improved

    def end_epoch(self) -> None:
        self.read_losses()
        plan, update, mean = self.plan, self.progress.update, self.progress.epoch.value
        if plan.ends_epoch(update):  # otherwise a longer run continues this epoch
            self.progress.epoch = Mean()
        number, epochs = (epoch_number(plan, end) for end in (update, self.total))
        self.print(f"epoch {number}/{epochs}: train_loss {mean:.4f}")

    def save(self) -> None:
        self.read_losses()
        self.clock.lap("train")
        self.checkpoints.save(self.progress)
        self.clock.lap("save")

    def must_stop(self) -> bool:
        """Whether any process received a signal to stop. With several GPUs, asks only at log lines."""
        if self.accelerator.num_processes == 1:
            return bool(self.signals)
        # Reducing waits for the GPU, which logging does anyway.
        logs = self.progress.update % self.args.logging_steps == 0 or self.finished
        if self.accelerator.device.type != "cpu" and not logs:
            return False
        signals = torch.tensor(len(self.signals), device=self.accelerator.device)
        return bool(self.accelerator.reduce(signals, "sum").item())


def epoch_number(plan: Plan, update: int) -> int:
    """The epoch that ends with the update, which may begin the next one, or the epoch in which the update is."""
    epochs = round(plan.epochs(update), 6)
    return math.floor(epochs) if plan.ends_epoch(update) else max(1, math.ceil(epochs))
