"""Training a model. One loop for every script.

One update weighs all its examples equally, or all their labelled tokens where tokens have labels, however they are
spread over processes and accumulation steps; only rounding and dropout's draws depend on that.
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
from training.batches import Collate, count_items, count_tokens, epoch_updates, load_batches, static_shapes
from training.checkpoints import Checkpoints, Mean, Progress
from training.clock import Clock
from training.command_line import Interrupted, stop_signals
from training.environment import hardware, versions
from training.errors import DivergedError, InputError, flags_in_errors, refusals
from training.launching import start_trackers
from training.optimization import build_optimizer, build_schedule, count_updates, move_schedule, reinitialize_layers
from training.results import Results, ScoresBySet, flatten, goodness
from training.task import Compute, Evaluation, Task, evaluate


WINDOW = 20  # updates whose mean loss is compared with the lowest so far


@dataclass(frozen=True)
class Trained:
    """What `train` reports, and the evaluations with the scores that it reports, by suffix.

    There are no evaluations where the run was resumed after the one that counts.
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
    """Trains `model` in place, evaluates what it computes by `compute`, and saves checkpoints as `args` says; with
    --resume goes on.

    The results have the training's loss, updates and seconds, and the scores of the last evaluation; with
    --load_best_model_at_end those of the best, whose weights the model then has.
    Raises FloatingPointError when the loss is no longer finite or rises by more than --max_loss_rise, Interrupted when
    the user or the system ends the run, both naming the checkpoint to go on from, ValueError for what
    --gradient_checkpointing or --reinit_layers ask of a model that cannot do it.
    """
    reinitialize_layers(model, args.reinit_layers)
    set_seed(args.seed, device_specific=True)  # dropout differs between processes; the order of examples does not
    if args.gradient_checkpointing:
        if not model.supports_gradient_checkpointing:
            raise InputError(
                f"{type(model).__name__} cannot recompute activations: leave --gradient_checkpointing out"
            )
        model.gradient_checkpointing_enable()
    if task.evaluated and args.metric_for_best_model:  # a name that is wrong should cost seconds
        few = {suffix: evaluate(task, split, compute, first=2).scores for suffix, split in task.evaluated.items()}
        goodness(few, args.metric_for_best_model)
    with stop_signals() as signals:
        return _Training(model, tokenizer, task, compute, signals, args, accelerator).run()


class _Training:
    """One call of `train`: what its steps share."""

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
        self.static = static_shapes(model, args.pad_to_max_length)
        self.total, self.per_epoch = count_updates(len(self.train_set), args, accelerator.num_processes)
        model.to(accelerator.device)
        model.tie_weights(recompute_mapping=False)  # XLA has made a copy of a shared weight for each of its places
        optimizer = build_optimizer(model, args)
        if accelerator.distributed_type == DistributedType.DEEPSPEED:  # which clips by itself
            accelerator.deepspeed_plugin.deepspeed_config.update(
                train_micro_batch_size_per_gpu=args.per_device_train_batch_size, gradient_clipping=args.max_grad_norm
            )
        self.model, self.optimizer = accelerator.prepare(model, optimizer)
        self.scheduler = build_schedule(optimizer, args, self.total)
        circumstances = versions() | hardware(accelerator)
        self.checkpoints = Checkpoints(model, tokenizer, task.inputs, circumstances, args, accelerator)
        restored = self.checkpoints.restore()
        self.progress = restored or Progress()
        self.latest: dict[str, Evaluation] | None = None  # evaluations of this process, by suffix,
        self.best: dict[str, Evaluation] | None = None  # and those of the best model, if it is to be kept
        self.clock = Clock(self.progress.seconds)
        self.unread: list[tuple[torch.Tensor, int]] = []  # losses still on the device: reading waits for it
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
                self.model, *inputs, self.static, self.args.dataloader_num_workers, self.accelerator
            ):
                self.update(share, items)
                self.between_updates()
                if self.finished:
                    break
        self.bar.close()
        if self.args.load_best_model_at_end and progress.best_update != progress.update:
            self.checkpoints.load(progress.best_update)
        self.checkpoints.keep_identity()
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
        """One step of the optimizer, its gradient ready."""
        if self.args.max_grad_norm > 0:
            self.accelerator.clip_grad_norm_(self.model.parameters(), self.args.max_grad_norm)
        self.optimizer.step()
        self.scheduler.step()
        self.optimizer.zero_grad()
        run_pending(self.accelerator)
        self.unread.append((share, items))
        self.progress.update += 1
        self.bar.update()

    def between_updates(self) -> None:
        """Whatever is due after an update: a line in the log, an evaluation, a checkpoint, the end."""
        args, update = self.args, self.progress.update
        ends = update % self.per_epoch == 0 or update == self.total  # an epoch, or the run
        if update % args.logging_steps == 0 or update == self.total:
            self.log()
        strategy = args.eval_strategy or ("epoch" if args.eval_steps is None else "steps")
        due = {"no": update == self.total, "steps": self.is_due(args.eval_steps, ends), "epoch": ends}
        improved = self.evaluate() if self.task.evaluated and due[strategy] else False
        if ends:
            self.end_epoch()
        save = {"no": False, "steps": self.is_due(args.save_steps, ends), "epoch": ends}
        stop = self.must_stop()
        keep = args.load_best_model_at_end and improved
        if save[args.save_strategy] or keep or stop or (self.progress.stopped and args.save_strategy != "no"):
            self.save()
        if stop:
            raise Interrupted(f"stopped at update {update} of {self.total}. {self.checkpoints.how_to_go_on()}")

    def is_due(self, steps: int | None, ends: bool) -> bool:
        """Whether what happens every `steps` updates, by default at the end of an epoch, happens now."""
        update = self.progress.update
        return ends if steps is None else update % steps == 0 or update == self.total

    def read_losses(self) -> None:
        """Moves the losses of the latest updates to `progress`; raises FloatingPointError if they have diverged."""
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
            if progress.recent.updates == WINDOW:
                self.check_rise(update)

    def check_rise(self, update: int) -> None:
        progress, limit = self.progress, self.args.max_loss_rise
        mean, progress.recent = progress.recent.value, Mean()
        progress.first = mean if progress.first is None else progress.first
        progress.lowest = mean if progress.lowest is None else min(mean, progress.lowest)
        if limit and mean > progress.lowest + limit * max(progress.first, 0.1):  # a loss near 0 may well double
            self.diverged(
                f"the training loss rose from {progress.lowest:.4g} to {mean:.4g}, more than --max_loss_rise {limit} "
                f"times {progress.first:.4g}, in the {WINDOW} updates before {update}"
            )

    def diverged(self, what: str) -> None:
        saved = self.checkpoints.saved_updates()
        last = f"{self.checkpoints.path(saved[0])} is the last good checkpoint" if saved else "no checkpoint was saved"
        raise DivergedError(
            f"{what} of {self.total}: lower --learning_rate (peak {self.args.learning_rate}), or use a "
            f"--mixed_precision with a wider range; {last}, for --model_name_or_path of another run"
        )

    def log(self) -> None:
        """The mean loss since the last call, on the console and to trackers."""
        self.read_losses()
        if not self.progress.logged.updates:
            return
        mean, self.progress.logged = self.progress.logged.value, Mean()
        rate = self.scheduler.get_last_lr()[0]
        self.print(f"update {self.progress.update}/{self.total}: train_loss {mean:.4f}, learning_rate {rate:.3g}")
        self.accelerator.log({"train_loss": mean, "learning_rate": rate}, step=self.progress.update)

    def print(self, line: str) -> None:
        """A line above the bar, which is drawn again with the next update."""
        self.bar.clear()
        self.accelerator.print(line)

    def evaluate(self) -> bool:
        """True where this is the best model so far. Stops the run where that has been long ago."""
        progress = self.progress
        self.read_losses()
        self.clock.lap("train")
        try:
            evaluated = self.task.evaluated.items()
            with flags_in_errors():
                self.latest = {suffix: evaluate(self.task, split, self.compute) for suffix, split in evaluated}
        except DivergedError as error:
            self.diverged(f"{error}, at update {progress.update}")
        self.clock.lap("eval")
        self.model.train()
        progress.scores = {suffix: evaluation.scores for suffix, evaluation in self.latest.items()}
        self.accelerator.log(flatten("eval", progress.scores), step=progress.update)
        improved = progress.note_scores(self.args.metric_for_best_model)
        if improved and self.args.load_best_model_at_end:
            self.best = self.latest
        self.print(f"update {progress.update}/{self.total}:{_line(progress.scores)}")
        if progress.worse == self.args.early_stopping_patience:
            progress.stopped = True  # at the last update, too: a longer run would have stopped there
            if progress.update < self.total:
                self.log()
                self.print(f"stopped early: update {progress.best_update} was better")
        return improved

    def end_epoch(self) -> None:
        self.read_losses()
        mean = self.progress.epoch.value
        if self.progress.update % self.per_epoch == 0:  # a longer run goes on with the same epoch
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
        """Whether any process was told to stop; asked where processes that run ahead of their GPU wait anyway."""
        if self.accelerator.num_processes == 1:
            return bool(self.signals)
        if self.accelerator.device.type != "cpu" and self.progress.update % self.args.logging_steps:
            return False
        told = torch.tensor(len(self.signals), device=self.accelerator.device)
        return bool(self.accelerator.reduce(told, "sum").item())


def _losses(
    model: torch.nn.Module,
    train_set: Dataset,
    items: list[int],
    updates: list[list[list[int]]],
    collate: Collate,
    static: dict[str, bool],
    workers: int,
    accelerator: Accelerator,
) -> Iterator[tuple[torch.Tensor, int]]:
    """Yields this process's share of each update's mean loss, its gradient ready, and the update's number of items.

    A micro-batch's mean loss weighs as much as its items (`count_items`) do in the whole update, so accumulation and
    processes change nothing but rounding and dropout's draws. A process without an example in the last micro-batch
    computes one of weight zero, as is a micro-batch without a labelled token, whose mean loss is no number.
    """
    rank, processes = accelerator.process_index, accelerator.num_processes
    mine = [batch[rank::processes] or batch[:1] for update in updates for batch in update]
    pinned = accelerator.device.type == "cuda"
    batches = iter(load_batches(train_set, mine, collate, workers, pinned))
    for update in updates:
        total = sum(items[index] for batch in update for index in batch)
        share = torch.zeros((), device=accelerator.device)
        for step, examples in enumerate(update, start=1):
            weight = sum(items[index] for index in examples[rank::processes]) / max(total, 1)
            batch = send_to_device(next(batches), accelerator.device, non_blocking=pinned)
            accelerator.sync_gradients = step == len(update)  # DeepSpeed's backward() then takes the step too
            with contextlib.nullcontext() if accelerator.sync_gradients else accelerator.no_sync(model):
                with refusals():
                    loss = model(**batch, **static).loss
                loss = loss * weight if weight else 0 * loss.nan_to_num()
                accelerator.backward(loss * processes)  # the gradient is averaged over processes
            share += loss.detach()
        yield share, total


def _line(scores: ScoresBySet) -> str:
    """eval_f1 0.9000  eval_loss 0.1000: all but the scores of single types."""
    named = [(f"eval_{name}{suffix}", value) for suffix, each in scores.items() for name, value in each.whole.items()]
    return "".join(f"  {name} {value:.4f}" for name, value in named)


def run_pending(accelerator: Accelerator) -> None:
    """On XLA, which only notes down what is to be computed, an update is one graph: computes it."""
    if accelerator.distributed_type == DistributedType.XLA:
        import torch_xla

        torch_xla.sync()
