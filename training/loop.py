"""Trains a model: the training loop of all scripts.

An update weighs all its examples equally, or all their labelled tokens if tokens have labels. How they are distributed
over processes and accumulation steps changes only rounding and the random numbers of dropout.
"""

import contextlib
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from accelerate import Accelerator, DistributedType
from accelerate.utils import send_to_device, set_seed, tqdm
from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from training.arguments import RunArguments
from training.batches import Collate, count_items, count_tokens, epoch_updates, load_batches, padding_options
from training.checkpoints import Checkpoints, Mean, Progress
from training.clock import Clock
from training.command_line import Interrupted, stop_signals
from training.environment import hardware, versions
from training.errors import DivergedError, InputError, as_user_errors, flags_in_errors
from training.launching import start_trackers
from training.optimization import build_optimizer, build_schedule, count_updates, move_schedule, reinitialize_layers
from training.results import Results, ScoresBySet, flatten_scores, goodness
from training.task import Compute, Evaluation, Task, evaluate


LOSSES_IN_MEAN = 20  # losses, one for each update, whose mean is compared with the lowest such mean so far


@dataclass(frozen=True)
class Trained:
    """The results of training, and the evaluations that their scores come from.

    evaluations: suffix -> evaluation; None if the run was resumed after that evaluation
    """

    results: Results
    evaluations: dict[str, Evaluation] | None


def train(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    task: Task,
    compute: Compute,
    args: RunArguments,
    accelerator: Accelerator,
) -> Trained:
    """Trains `model` in place, evaluates it and saves checkpoints as `args` say; with --resume continues a run.

    The results hold the training loss, the number of updates, the seconds and the scores of the last evaluation. With
    --load_best_model_at_end they hold the scores of the best evaluation, and the model gets its weights.
    Raises FloatingPointError if the loss is not finite or rises by more than --max_loss_rise, and Interrupted if the
    user or the system stops the run; both name the checkpoint to continue from. Raises ValueError if the model does
    not support --gradient_checkpointing or --reinit_layers.
    """
    reinitialize_layers(model, args.reinit_layers)
    set_seed(args.seed, device_specific=True)  # dropout differs between processes, the order of examples does not
    if args.gradient_checkpointing:
        if not model.supports_gradient_checkpointing:
            raise InputError(
                f"{type(model).__name__} cannot recompute activations: leave --gradient_checkpointing out"
            )
        model.gradient_checkpointing_enable()
    if task.evaluation_splits and args.metric_for_best_model:  # a wrong name fails before training
        splits = task.evaluation_splits.items()
        scores = {suffix: evaluate(task, split, compute, first=2).scores for suffix, split in splits}
        goodness(scores, args.metric_for_best_model)
    with stop_signals() as signals:
        return _Training(model, tokenizer, task, compute, signals, args, accelerator).run()


class _Training:
    """The state of one call of `train`."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        task: Task,
        compute: Compute,
        signals: list[int],
        args: RunArguments,
        accelerator: Accelerator,
    ) -> None:
        self.task, self.compute, self.signals, self.args, self.accelerator = task, compute, signals, args, accelerator
        self.train_set = task.features["train"]
        self.lengths = count_tokens(self.train_set)
        self.items = count_items(self.train_set)
        self.padding_options = padding_options(model, args.pad_to_max_length)
        self.total, self.per_epoch = count_updates(len(self.train_set), args, accelerator.num_processes)
        model.to(accelerator.device)
        model.tie_weights(recompute_mapping=False)  # on XLA, `to` copies a shared weight once for each use
        optimizer = build_optimizer(model, args)
        if accelerator.distributed_type == DistributedType.DEEPSPEED:  # DeepSpeed clips gradients itself
            accelerator.deepspeed_plugin.deepspeed_config.update(
                train_micro_batch_size_per_gpu=args.per_device_train_batch_size, gradient_clipping=args.max_grad_norm
            )
        self.model, self.optimizer = accelerator.prepare(model, optimizer)
        self.scheduler = build_schedule(optimizer, args, self.total)
        circumstances = versions() | hardware(accelerator)
        self.checkpoints = Checkpoints(model, tokenizer, task.compared_data, circumstances, args, accelerator)
        restored = self.checkpoints.restore()
        self.progress = restored or Progress()
        self.latest: dict[str, Evaluation] | None = None  # suffix -> the last evaluation in this process,
        self.best: dict[str, Evaluation] | None = None  # and that of the best model, with --load_best_model_at_end
        self.clock = Clock(self.progress.seconds)
        self.unread: list[tuple[torch.Tensor, int]] = []  # (loss, items), not read yet: reading waits for the device
        examples = f"{len(self.train_set):,} examples, {self.total:,} updates"
        accelerator.print(f"train: {examples}, on {accelerator.device.type}")
        if restored:
            move_schedule(self.scheduler, restored.update)
            accelerator.print(f"resumed from {self.checkpoints.path(restored.update)}")
        start_trackers(args, accelerator)
        self.bar = tqdm(initial=self.progress.update, total=self.total, desc="train", disable=not sys.stderr.isatty())

    @property
    def finished(self) -> bool:
        return self.progress.stopped or self.progress.update >= self.total

    def run(self) -> Trained:
        progress = self.progress
        while not self.finished:
            epoch, done = divmod(progress.update, self.per_epoch)
            updates = epoch_updates(self.lengths, self.args, epoch, self.accelerator.num_processes)
            updates = updates[done : self.total - epoch * self.per_epoch]
            self.model.train()
            inputs = (self.train_set, self.items, updates, self.task.collate)
            for share, items in _losses(
                self.model, *inputs, self.padding_options, self.args.dataloader_num_workers, self.accelerator
            ):
                self.update(share, items)
                self.between_updates()
                if self.finished:
                    break
        self.bar.close()
        if self.args.load_best_model_at_end and progress.best_update != progress.update:
            self.checkpoints.load(progress.best_update)
        self.checkpoints.write_identity()
        self.clock.lap("train")
        return self.report()

    def report(self) -> Trained:
        progress = self.progress
        results = Results(progress.run.value, progress.update, seconds=self.clock.seconds)
        if self.args.load_best_model_at_end:
            results.best_update, results.validation = progress.best_update, progress.best_scores
            return Trained(results, self.best)
        results.validation = progress.scores
        return Trained(results, self.latest)

    def update(self, share: torch.Tensor, items: int) -> None:
        """One step of the optimizer, after the backward pass. `share` is this process's part of the loss."""
        if self.args.max_grad_norm > 0:
            self.accelerator.clip_grad_norm_(self.model.parameters(), self.args.max_grad_norm)
        self.optimizer.step()
        self.scheduler.step()
        self.optimizer.zero_grad()
        _run_pending(self.accelerator)
        self.unread.append((share, items))
        self.progress.update += 1
        self.bar.update()

    def between_updates(self) -> None:
        """Does what is due after an update: logs, evaluates, saves a checkpoint, or stops."""
        args, update = self.args, self.progress.update
        ends = update % self.per_epoch == 0 or update == self.total  # an epoch, or the run
        if update % args.logging_steps == 0 or update == self.total:
            self.log()
        strategy = args.eval_strategy or ("epoch" if args.eval_steps is None else "steps")
        due = {"no": update == self.total, "steps": self.is_due(args.eval_steps, ends), "epoch": ends}
        improved = self.evaluate() if self.task.evaluation_splits and due[strategy] else False
        if ends:
            self.end_epoch()
        save = {"no": False, "steps": self.is_due(args.save_steps, ends), "epoch": ends}
        stop = self.must_stop()
        is_best = args.load_best_model_at_end and improved
        if save[args.save_strategy] or is_best or stop or (self.progress.stopped and args.save_strategy != "no"):
            self.save()
        if stop:
            raise Interrupted(f"stopped at update {update} of {self.total}. {self.checkpoints.how_to_resume()}")

    def is_due(self, steps: int | None, ends: bool) -> bool:
        """Whether an action is due that takes place every `steps` updates, or at the end of each epoch by default."""
        update = self.progress.update
        return ends if steps is None else update % steps == 0 or update == self.total

    def read_losses(self) -> None:
        """Adds the losses of the latest updates to `progress`. Raises FloatingPointError if they have diverged."""
        if not self.unread:
            return
        shares, items = zip(*self.unread, strict=True)
        losses = self.accelerator.reduce(torch.stack(shares), "sum").tolist()
        self.unread = []
        progress = self.progress
        first = progress.update - len(losses) + 1
        for update, (loss, count) in enumerate(zip(losses, items, strict=True), start=first):
            if not math.isfinite(loss):
                self.diverged(f"the training loss is {loss} at update {update}")
            for mean in (progress.run, progress.epoch, progress.logged, progress.recent):
                mean.add(loss, count)
            if progress.recent.updates == LOSSES_IN_MEAN:
                self.check_rise(update)

    def check_rise(self, update: int) -> None:
        """Raises FloatingPointError if the mean of the latest losses is above the lowest by --max_loss_rise."""
        progress, limit = self.progress, self.args.max_loss_rise
        mean, progress.recent = progress.recent.value, Mean()
        progress.first = mean if progress.first is None else progress.first
        progress.lowest = mean if progress.lowest is None else min(mean, progress.lowest)
        if limit and mean > progress.lowest + limit * max(progress.first, 0.1):  # a loss near 0 may double
            self.diverged(
                f"the training loss rose from {progress.lowest:.4g} to {mean:.4g}, more than --max_loss_rise {limit} "
                f"times {progress.first:.4g}, in the {LOSSES_IN_MEAN} updates before {update}"
            )

    def diverged(self, problem: str) -> None:
        """Raises FloatingPointError with the problem, its remedies and the last checkpoint."""
        saved = self.checkpoints.saved_updates()
        last = f"{self.checkpoints.path(saved[0])} is the last good checkpoint" if saved else "no checkpoint was saved"
        raise DivergedError(
            f"{problem} of {self.total}: lower --learning_rate (peak {self.args.learning_rate}), or use a "
            f"--mixed_precision with a wider range; {last}, for --model_name_or_path of another run"
        )

    def log(self) -> None:
        """Prints the mean loss since the last call, and sends it to the trackers."""
        self.read_losses()
        if not self.progress.logged.updates:
            return
        mean, self.progress.logged = self.progress.logged.value, Mean()
        rate = self.scheduler.get_last_lr()[0]
        self.print(f"update {self.progress.update}/{self.total}: train_loss {mean:.4f}, learning_rate {rate:.3g}")
        self.accelerator.log({"train_loss": mean, "learning_rate": rate}, step=self.progress.update)

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
            with flags_in_errors():
                self.latest = {suffix: evaluate(self.task, split, self.compute) for suffix, split in splits}
        except DivergedError as error:
            self.diverged(f"{error}, at update {progress.update}")
        self.clock.lap("eval")
        self.model.train()
        progress.scores = {suffix: evaluation.scores for suffix, evaluation in self.latest.items()}
        self.accelerator.log(flatten_scores("eval", progress.scores), step=progress.update)
        improved = progress.note_scores(self.args.metric_for_best_model)
        if improved and self.args.load_best_model_at_end:
            self.best = self.latest
        self.print(f"update {progress.update}/{self.total}:{_score_line(progress.scores)}")
        if progress.worse == self.args.early_stopping_patience:
            progress.stopped = True  # also after the last update, where a longer run would stop as well
            if progress.update < self.total:
                self.log()
                self.print(f"stopped early: update {progress.best_update} was better")
        return improved

    def end_epoch(self) -> None:
        self.read_losses()
        mean = self.progress.epoch.value
        if self.progress.update % self.per_epoch == 0:  # otherwise a longer run continues this epoch
            self.progress.epoch = Mean()
        epoch = math.ceil(self.progress.update / self.per_epoch)
        self.print(f"epoch {epoch}/{math.ceil(self.total / self.per_epoch)}: train_loss {mean:.4f}")

    def save(self) -> None:
        self.read_losses()
        self.clock.lap("train")
        try:
            self.checkpoints.save(self.progress)
        except DivergedError as error:
            self.diverged(str(error))
        self.clock.lap("save")

    def must_stop(self) -> bool:
        """Whether any process received a signal to stop. With several GPUs, asks only at log lines."""
        if self.accelerator.num_processes == 1:
            return bool(self.signals)
        # Reducing waits for the GPU, which logging does anyway.
        if self.accelerator.device.type != "cpu" and self.progress.update % self.args.logging_steps:
            return False
        signals = torch.tensor(len(self.signals), device=self.accelerator.device)
        return bool(self.accelerator.reduce(signals, "sum").item())


def _losses(
    model: torch.nn.Module,
    train_set: Dataset,
    items: list[int],
    updates: list[list[list[int]]],
    collate: Collate,
    options: dict[str, bool],
    workers: int,
    accelerator: Accelerator,
) -> Iterator[tuple[torch.Tensor, int]]:
    """Yields this process's share of each update's mean loss, after the backward pass, and the update's items.

    Items are examples or labelled tokens (`count_items`). The mean loss of a micro-batch is weighted by its part of
    the update's items, so that accumulation and processes change only rounding and the random numbers of dropout. A
    process that has no example of the last micro-batch computes one with weight zero. A micro-batch without a labelled
    token, whose mean loss is NaN, has weight zero, too. `options` are further arguments of the model.
    """
    rank, processes = accelerator.process_index, accelerator.num_processes
    process_batches = [batch[rank::processes] or batch[:1] for update in updates for batch in update]
    pin_memory = accelerator.device.type == "cuda"
    batches = iter(load_batches(train_set, process_batches, collate, workers, pin_memory))
    for update in updates:
        total = sum(items[index] for batch in update for index in batch)
        share = torch.zeros((), device=accelerator.device)
        for step, examples in enumerate(update, start=1):
            weight = sum(items[index] for index in examples[rank::processes]) / max(total, 1)
            batch = send_to_device(next(batches), accelerator.device, non_blocking=pin_memory)
            accelerator.sync_gradients = step == len(update)  # with DeepSpeed, backward() then takes the step, too
            with contextlib.nullcontext() if accelerator.sync_gradients else accelerator.no_sync(model):
                with as_user_errors():
                    loss = model(**batch, **options).loss
                loss = loss * weight if weight else 0 * loss.nan_to_num()
                accelerator.backward(loss * processes)  # the gradient is averaged over processes
            share += loss.detach()
        yield share, total


def _score_line(scores_by_set: ScoresBySet) -> str:
    """As in "eval_f1 0.9000  eval_loss 0.1000", without the scores of single types."""
    return "".join(
        f"  eval_{name}{suffix} {value:.4f}"
        for suffix, scores in scores_by_set.items()
        for name, value in scores.overall.items()
    )


def _run_pending(accelerator: Accelerator) -> None:
    """Computes an update on XLA, which records operations and computes them as one graph."""
    if accelerator.distributed_type == DistributedType.XLA:
        import torch_xla

        torch_xla.sync()
