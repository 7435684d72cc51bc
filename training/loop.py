"""Training a model and predicting with it. One loop for every script.

One update weighs all its examples equally, or all their labelled tokens where tokens have labels, however they are
spread over processes and accumulation steps; only rounding and dropout's draws depend on that.
"""

import contextlib
import dataclasses
import inspect
import math
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import torch
from accelerate import Accelerator, DistributedType
from accelerate.utils import broadcast_object_list, send_to_device, set_seed, tqdm
from datasets import Dataset
from torch.utils.data import DataLoader
from transformers import PreTrainedModel, PreTrainedTokenizerBase, get_scheduler

from training.arguments import RunArguments
from training.checkpoints import Checkpoints, Mean, Progress
from training.ensembles import average, save_outputs
from training.launching import start_trackers
from training.optimization import build_optimizer, count_updates, move_schedule, reinitialize_layers, warm_up_updates
from training.reporting import hardware, is_of_a_type, versions
from training.runs import Interrupted, Stopwatch, score, stop_signals


Collate = Callable[[list[dict]], Mapping[str, torch.Tensor]]
Outputs = dict[str, list[np.ndarray]]  # name -> one array an example, in data-set order
Metrics = Callable[[Outputs, Dataset], dict[str, float]]

# The label of a token that has none, as torch's losses have it. modeling/ defines it for itself: its files go to the
# Hub without this one, and a run with --implementation transformers does without modeling/.
IGNORED = -100
WINDOW = 20  # updates whose mean loss is compared with the lowest so far


def train(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    train_set: Dataset,
    eval_sets: dict[str, Dataset],
    collate: Collate,
    metrics: Metrics,
    args: RunArguments,
    accelerator: Accelerator,
    references: Dataset | None = None,
) -> dict[str, float]:
    """Trains `model` in place, evaluates on `eval_sets` and saves checkpoints as `args` says; with --resume goes on.

    `references` is what `metrics` knows of the validation set beside `eval_sets`: a run that is resumed must have the
    same.

    Returns train_loss (mean over the examples, or labelled tokens, seen), train_updates, the seconds train_runtime,
    eval_runtime and save_runtime, and the results of the last evaluation; with --load_best_model_at_end those of the
    best, its weights, and best_update. With --save_outputs the final model's outputs for `eval_sets` are kept.
    Raises FloatingPointError when the loss is no longer finite or rises by more than --max_loss_rise, Interrupted when
    the user or the system ends the run, both naming the checkpoint to go on from, ValueError for what
    --gradient_checkpointing or --reinit_layers ask of a model that cannot do it.
    """
    reinitialize_layers(model, args.reinit_layers)
    set_seed(args.seed, device_specific=True)  # dropout differs between processes; the order of examples does not
    if args.gradient_checkpointing:
        if not model.supports_gradient_checkpointing:
            raise ValueError(
                f"{type(model).__name__} cannot recompute activations: leave --gradient_checkpointing out"
            )
        model.gradient_checkpointing_enable()
    passing = dataclasses.replace(args, save_outputs=False)  # only the final model's outputs are kept
    evaluating = partial(evaluate, model, eval_sets, collate, metrics, passing, accelerator) if eval_sets else None
    if eval_sets and args.metric_for_best_model:  # a name that is wrong should cost seconds
        few = {suffix: examples.select(range(min(2, len(examples)))) for suffix, examples in eval_sets.items()}
        score(evaluate(model, few, collate, metrics, passing, accelerator), args)
    data = {"training data": train_set} | {f"validation data{suffix}": each for suffix, each in eval_sets.items()}
    if eval_sets and references is not None:
        data["validation references"] = references
    with stop_signals() as signals:
        results = _Training(model, tokenizer, train_set, data, collate, evaluating, signals, args, accelerator).run()
    if args.save_outputs and eval_sets:
        started = time.perf_counter()
        for data_set in eval_sets.values():
            predict(model, data_set, collate, args, accelerator)
        results["eval_runtime"] += time.perf_counter() - started
    return results


class _Training:
    """One call of `train`: what its steps share."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        train_set: Dataset,
        data: dict[str, Dataset],
        collate: Collate,
        evaluate: Callable[[], dict[str, float]] | None,
        signals: list[int],
        args: RunArguments,
        accelerator: Accelerator,
    ) -> None:
        self.train_set, self.collate, self.evaluate, self.signals = train_set, collate, evaluate, signals
        self.args, self.accelerator = args, accelerator
        self.lengths = count_tokens(train_set)
        self.items = count_items(train_set)
        self.static = static_shapes(model, args)
        self.total, self.per_epoch = count_updates(len(train_set), args, accelerator.num_processes)
        model.to(accelerator.device)
        model.tie_weights(recompute_mapping=False)  # XLA has made a copy of a shared weight for each of its places
        optimizer = build_optimizer(model, args)
        if accelerator.distributed_type == DistributedType.DEEPSPEED:  # which clips by itself
            accelerator.deepspeed_plugin.deepspeed_config.update(
                train_micro_batch_size_per_gpu=args.per_device_train_batch_size, gradient_clipping=args.max_grad_norm
            )
        self.model, self.optimizer = accelerator.prepare(model, optimizer)
        # Not prepared: a prepared scheduler ticks once a process.
        warm_up = warm_up_updates(args, self.total)
        self.scheduler = get_scheduler(args.lr_scheduler_type, optimizer, warm_up, self.total)
        circumstances = versions() | hardware(accelerator)
        self.checkpoints = Checkpoints(model, tokenizer, data, circumstances, args, accelerator)
        restored = self.checkpoints.restore()
        self.progress = restored or Progress()
        self.watch = Stopwatch(self.progress.seconds)
        self.unread: list[tuple[torch.Tensor, int]] = []  # losses still on the device: reading waits for it
        accelerator.print(f"train: {len(train_set):,} examples, {self.total:,} updates, on {accelerator.device.type}")
        if restored:
            move_schedule(self.scheduler, restored.update)
            accelerator.print(f"resumed from {self.checkpoints.path(restored.update)}")
        start_trackers(args, accelerator)
        self.bar = tqdm(initial=self.progress.update, total=self.total, desc="train", disable=not sys.stderr.isatty())

    @property
    def finished(self) -> bool:
        return self.progress.stopped or self.progress.update >= self.total

    def run(self) -> dict[str, float]:
        progress = self.progress
        while not self.finished:
            epoch, done = divmod(progress.update, self.per_epoch)
            updates = epoch_updates(self.lengths, self.args, epoch, self.accelerator.num_processes)
            updates = updates[done : self.total - epoch * self.per_epoch]
            self.model.train()
            inputs = (self.train_set, self.items, updates, self.collate)
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
        return self.results()

    def results(self) -> dict[str, float]:
        progress = self.progress
        results = {"train_loss": progress.run.value, "train_updates": progress.update}
        if self.args.load_best_model_at_end:
            results |= {"best_update": progress.best_update, **progress.best_results}
        else:
            results |= progress.results
        self.watch.lap("train")
        return results | self.watch.runtimes()

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
        evaluate = {"no": update == self.total, "steps": self.is_due(args.eval_steps, ends), "epoch": ends}
        improved = self.judge() if self.evaluate and evaluate[strategy] else False
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
        found = self.checkpoints.found()
        last = f"{self.checkpoints.path(found[0])} is the last good checkpoint" if found else "no checkpoint was saved"
        raise FloatingPointError(
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

    def judge(self) -> bool:
        """Evaluates; True where this is the best model so far. Stops the run where that has been long ago."""
        progress = self.progress
        self.read_losses()
        self.watch.lap("train")
        try:
            progress.results = self.evaluate()
        except FloatingPointError as error:
            self.diverged(f"{error}, at update {progress.update}")
        self.watch.lap("eval")
        self.model.train()
        self.accelerator.log(progress.results, step=progress.update)
        reached = score(progress.results, self.args)
        improved = progress.best_update is None or reached > score(progress.best_results, self.args)
        if improved:
            progress.best_update, progress.best_results, progress.worse = progress.update, progress.results, 0
        else:
            progress.worse += 1
        whole = {name: value for name, value in progress.results.items() if not is_of_a_type(name, progress.results)}
        scores = "".join(f"  {name} {value:.4f}" for name, value in whole.items())
        self.print(f"update {progress.update}/{self.total}:{scores}")
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
        self.watch.lap("train")
        try:
            self.checkpoints.save(self.progress)
        except FloatingPointError as error:
            self.diverged(str(error))
        self.watch.lap("save")

    def must_stop(self) -> bool:
        """Whether any process was told to stop; asked where processes that run ahead of their GPU wait anyway."""
        if self.accelerator.num_processes == 1:
            return bool(self.signals)
        if self.accelerator.device.type != "cpu" and self.progress.update % self.args.logging_steps:
            return False
        told = torch.tensor(len(self.signals), device=self.accelerator.device)
        return bool(self.accelerator.reduce(told, "sum").item())


def count_tokens(data_set: Dataset) -> list[int]:
    """The length that each example asks of its batch: of its longest choice, where the model reads several choices.

    The mask tells: ids are nested too where a token has several, ELMo's characters, and take long to read then.
    """
    if "attention_mask" not in data_set.column_names:
        return [len(ids) for ids in data_set["input_ids"]]
    if isinstance(next(iter(data_set[0]["attention_mask"]), 0), list):
        return [max(map(len, masks)) for masks in data_set["attention_mask"]]
    return [len(mask) for mask in data_set["attention_mask"]]


def count_items(train_set: Dataset) -> list[int]:
    """What the mean loss of each example is a mean over: 1, or its labelled tokens."""
    if "labels" not in train_set.column_names or not isinstance(train_set[0]["labels"], list):
        return [1] * len(train_set)
    return [sum(label != IGNORED for label in labels) for labels in train_set["labels"]]


def epoch_updates(lengths: list[int], args: RunArguments, epoch: int, processes: int) -> list[list[list[int]]]:
    """The examples of one epoch as updates of micro-batches of indices, the same on every process.

    The examples that share an update depend on their number alone, not on processes or accumulation. A micro-batch
    holds those of all processes; process r takes [r::processes]. With group_by_length the shuffled examples are sorted
    by length in blocks of 50 updates, and the updates shuffled again, an incomplete one staying last. With
    pad_to_max_length the epoch's first examples fill the last update up, so that all batches have one shape.
    """
    rng = np.random.default_rng((args.seed, epoch))
    micro = args.per_device_train_batch_size * processes
    size = micro * args.gradient_accumulation_steps
    order = rng.permutation(len(lengths)).tolist()
    if args.pad_to_max_length:
        order = np.resize(order, math.ceil(len(order) / size) * size).tolist()
    if args.group_by_length:
        blocks = _cut(order, 50 * size)
        order = [index for block in blocks for index in sorted(block, key=lengths.__getitem__)]
    updates = _cut(order, size)
    if args.group_by_length:
        complete = len(order) // size
        updates = [updates[i] for i in rng.permutation(complete)] + updates[complete:]
    return [_cut(update, micro) for update in updates]


def _cut(indices: list[int], size: int) -> list[list[int]]:
    return [indices[i : i + size] for i in range(0, len(indices), size)]


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
                loss = model(**batch, **static).loss
                loss = loss * weight if weight else 0 * loss.nan_to_num()
                accelerator.backward(loss * processes)  # the gradient is averaged over processes
            share += loss.detach()
        yield share, total


def load_batches(
    data_set: Dataset, batches: list[list[int]], collate: Collate, workers: int = 0, pinned: bool = False
) -> DataLoader:
    """The `batches` of examples in their order; `workers` processes, if any, read and collate them ahead."""
    return DataLoader(
        data_set,
        batch_sampler=batches,
        collate_fn=collate,
        num_workers=workers,
        worker_init_fn=_ignore_signals,
        pin_memory=pinned,
        generator=torch.Generator(),  # of its own: to begin draws none of dropout's numbers
    )


def _ignore_signals(worker: int) -> None:
    """What stops a run is sent to all its processes, but its last checkpoint still needs batches."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def static_shapes(model: PreTrainedModel, args: RunArguments) -> dict[str, bool]:
    """What keeps a model from leaving padding out where --pad_to_max_length wants one shape in every batch."""
    can_unpad = "unpad" in inspect.signature(model.base_model.forward).parameters
    return {"unpad": False} if args.pad_to_max_length and can_unpad else {}


def run_pending(accelerator: Accelerator) -> None:
    """On XLA, which only notes down what is to be computed, an update is one graph: computes it."""
    if accelerator.distributed_type == DistributedType.XLA:
        import torch_xla

        torch_xla.sync()


# Prediction and evaluation


def predict(
    model: PreTrainedModel, data_set: Dataset, collate: Collate, args: RunArguments, accelerator: Accelerator
) -> Outputs:
    """The model's outputs named "...logits", one array an example, in the order of `data_set`, on every process.

    Outputs for each token are those of the example's own tokens, without padding. Labels stay in the data set. With
    --ensemble they are the mean of its runs' outputs, with --save_outputs they are kept in the output folder, too.
    Raises FloatingPointError where an output is not finite.
    """
    if args.ensemble is None:
        outputs = _compute(model, data_set, collate, args, accelerator)
    else:
        outputs = average(data_set, model.config.id2label, args)
    if args.save_outputs and accelerator.is_main_process:
        save_outputs(outputs, data_set, model.config.id2label, Path(args.output_dir))
    return outputs


@torch.no_grad()  # not inference_mode: tensors made there could not be trained on after
def _compute(
    model: PreTrainedModel, data_set: Dataset, collate: Collate, args: RunArguments, accelerator: Accelerator
) -> Outputs:
    """Batches hold examples of similar length, so little of them is padding."""
    model.to(accelerator.device).eval()
    lengths = count_tokens(data_set)
    order = sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True)
    mine = _my_batches(order, args, accelerator)
    bar = tqdm(total=len(mine), desc="predict", leave=False, disable=not sys.stderr.isatty())
    loader = load_batches(data_set, mine, collate, args.dataloader_num_workers)
    static = static_shapes(model, args)
    computed = {}
    for indices, batch in zip(mine, loader, strict=True):
        inputs = {name: value for name, value in batch.items() if name != "labels"}
        with accelerator.autocast():
            outputs = model(**send_to_device(inputs, accelerator.device), **static)
        arrays = {
            name: _without_padding(value.float().cpu().numpy(), inputs.get("attention_mask"), model.config.num_labels)
            for name, value in outputs.items()
            if name.endswith("logits")
        }
        computed |= {index: {name: rows[i] for name, rows in arrays.items()} for i, index in enumerate(indices)}
        bar.update()
    bar.close()
    by_index = {}
    for process in range(accelerator.num_processes):  # accelerate's gather_object does not know XLA
        (theirs,) = broadcast_object_list([computed], from_process=process)
        by_index |= theirs
    names = by_index[0] if by_index else {}
    for index, arrays in sorted(by_index.items()):
        broken = [name for name in names if not np.isfinite(arrays[name]).all()]
        if broken:
            raise FloatingPointError(
                f"the model's {', '.join(broken)} for example {index} are not finite: use a --mixed_precision with a "
                "wider range, or train with a lower --learning_rate"
            )
    return {name: [by_index[index][name] for index in range(len(lengths))] for name in names}


def _without_padding(rows: np.ndarray, mask: torch.Tensor | None, labels: int) -> list[np.ndarray]:
    """The examples of a batch's output, cut to their own tokens where its second axis is that of the tokens.

    An output of two axes whose second is as long as there are `labels` is one of classes, whatever the batch's length.
    """
    of_tokens = mask is not None and rows.shape[1:2] == mask.shape[1:] and (rows.ndim > 2 or rows.shape[1] != labels)
    return [row[own] for row, own in zip(rows, mask.bool().numpy(), strict=True)] if of_tokens else list(rows)


def _my_batches(order: list[int], args: RunArguments, accelerator: Accelerator) -> list[list[int]]:
    """This process's batches: as many as every other's, since a sharded model computes on all at once.

    Examples that occur twice for that reason give the same outputs twice. With pad_to_max_length all batches are full.
    """
    size = args.per_device_eval_batch_size
    if args.pad_to_max_length:
        order = np.resize(order, math.ceil(len(order) / size) * size).tolist()
    batches = _cut(order, size)
    rounds = math.ceil(len(batches) / accelerator.num_processes)
    return [batches[(i * accelerator.num_processes + accelerator.process_index) % len(batches)] for i in range(rounds)]


def evaluate(
    model: PreTrainedModel,
    eval_sets: dict[str, Dataset],
    collate: Collate,
    metrics: Metrics,
    args: RunArguments,
    accelerator: Accelerator,
) -> dict[str, float]:
    """`eval_<metric><suffix>` for each suffix and set of `eval_sets` ("" for the only one)."""
    results = {}
    for suffix, data_set in eval_sets.items():
        scores = metrics(predict(model, data_set, collate, args, accelerator), data_set)
        results |= {f"eval_{name}{suffix}": value for name, value in scores.items()}
    return results
