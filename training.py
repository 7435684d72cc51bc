"""What every script of this project shares: loading a model, training it, predicting with it.

Data moves once, in one direction:

    recipe + flags -> args -> the script builds model, data, collate, metrics -> train() / predict()
    -> metrics.json, checkpoint, model card

arguments.py reads the first line of this, reporting.py writes the last.

On several processes, `accelerate launch` or `torchrun` starts the same command; on CPU it is
`ACCELERATE_USE_CPU=true torchrun --nproc_per_node 2 run_X.py ...`. One update weighs all its examples equally, however
they are spread over processes and accumulation steps; only rounding and dropout's draws depend on that.
"""

import contextlib
import dataclasses
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import datasets
import huggingface_hub
import numpy as np
import torch
import transformers
from accelerate import Accelerator
from accelerate.utils import gather_object, send_to_device, set_seed, tqdm
from datasets import Dataset
from torch.utils.data import DataLoader
from transformers import (
    PreTrainedModel,
    get_scheduler,
)

from arguments import RunArguments, hub_model_id


Collate = Callable[[list[dict]], Mapping[str, torch.Tensor]]
Outputs = dict[str, list[np.ndarray]]  # name -> one array an example, in data-set order
Metrics = Callable[[Outputs, Dataset], dict[str, float]]


def start(args: RunArguments) -> Accelerator:
    """Checks what would otherwise fail after hours of work, prepares this process, and gives its Accelerator.

    Raises FileExistsError where output_dir holds something, ValueError for a precision that the processor does not
    have, RuntimeError where processes do not know of each other.
    """
    output = Path(args.output_dir)
    if output.is_file() or (output.is_dir() and any(output.iterdir()) and not args.overwrite_output_dir):
        raise FileExistsError(
            f"--output_dir {output} exists and is not empty: choose another or --overwrite_output_dir"
        )
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    datasets.disable_progress_bars()
    torch.set_float32_matmul_precision(args.matmul_precision)
    accelerator = Accelerator(
        mixed_precision=args.mixed_precision,
        log_with=None if args.report_to == "none" else args.report_to,
        project_dir=output,
    )
    if args.mixed_precision == "fp16" and accelerator.device.type == "cpu":  # accelerate would compute in float32
        raise ValueError("--mixed_precision fp16 needs a GPU: on CPU use bf16 or no")
    launched = int(os.environ.get("WORLD_SIZE", "1"))
    if launched > 1 and accelerator.num_processes == 1:
        raise RuntimeError(
            f"{launched} processes were started, but each counts itself alone and would repeat the same work. "
            "On CPU: ACCELERATE_USE_CPU=true torchrun --nproc_per_node N run_X.py ..."
        )
    accelerator.wait_for_everyone()  # the check above came before anyone writes
    if accelerator.is_main_process:
        output.mkdir(parents=True, exist_ok=True)
        if args.push_to_hub:  # now, so that a missing token costs seconds and not the run
            huggingface_hub.HfApi().create_repo(hub_model_id(args), exist_ok=True)
    set_seed(args.seed)
    return accelerator


# Training


def train(
    model: PreTrainedModel,
    train_set: Dataset,
    eval_sets: dict[str, Dataset],
    collate: Collate,
    metrics: Metrics,
    args: RunArguments,
    accelerator: Accelerator,
) -> dict[str, float]:
    """Trains `model` in place with AdamW, warm-up and decay; evaluates on `eval_sets` after each epoch.

    Returns train_loss (mean over the examples seen), train_runtime (seconds, evaluation not counted), train_updates,
    and the last evaluation's results. Raises FloatingPointError when the loss is no longer finite.
    """
    set_seed(args.seed, device_specific=True)  # dropout differs between processes; the order of examples does not
    if args.gradient_checkpointing:
        model.gradient_checkpointing_enable()
    optimizer = build_optimizer(model.to(accelerator.device), args)
    prepared, wrapped = accelerator.prepare(model, optimizer)
    lengths = [len(ids) for ids in train_set["input_ids"]]
    total, epochs = count_updates(len(train_set), args, accelerator.num_processes)
    # Not prepared: a prepared scheduler ticks once a process.
    scheduler = get_scheduler(args.lr_scheduler_type, optimizer, math.ceil(args.warmup_ratio * total), total)
    accelerator.print(f"train: {len(train_set):,} examples, {total:,} updates, on {accelerator.device.type}")
    bar = tqdm(total=total, desc="train", disable=not sys.stderr.isatty())
    log = _Log(args, accelerator, bar)
    results, evaluating, started = {}, 0.0, time.perf_counter()
    for epoch in range(epochs):
        model.train()
        updates = epoch_updates(lengths, args, epoch, accelerator.num_processes)[: total - len(log.counts)]
        first = len(log.counts)
        for loss, count in _losses(prepared, train_set, updates, collate, accelerator):
            if args.max_grad_norm > 0:
                accelerator.clip_grad_norm_(model.parameters(), args.max_grad_norm)
            wrapped.step()
            if not accelerator.optimizer_step_was_skipped:
                scheduler.step()
            wrapped.zero_grad()
            log.add(loss, count, scheduler.get_last_lr()[0])
        summary = f"epoch {epoch + 1}/{epochs}: train_loss {log.mean(first):.4f}"
        if eval_sets:
            results = evaluate(model, eval_sets, collate, metrics, args, accelerator)
            evaluating += results["eval_runtime"]
            accelerator.log(results, step=len(log.counts))
            summary += "".join(f"  {name} {value:.4f}" for name, value in results.items() if name != "eval_runtime")
        bar.clear()
        accelerator.print(summary)
    bar.close()
    seconds = time.perf_counter() - started - evaluating
    return {"train_loss": log.mean(), "train_runtime": seconds, "train_updates": total, **results}


def build_optimizer(model: PreTrainedModel, args: RunArguments) -> torch.optim.AdamW:
    """AdamW, with bias correction, that decays matrices and embeddings but not biases and LayerNorms, as both papers.

    By dimension, not by name: lists of names miss a model's own LayerNorms.
    """
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in trained if p.dim() > 1], "weight_decay": args.weight_decay},
        {"params": [p for p in trained if p.dim() <= 1], "weight_decay": 0.0},
    ]
    fused = {parameter.device.type for parameter in trained} <= {"cpu", "cuda", "mps", "xpu"}
    betas = (args.adam_beta1, args.adam_beta2)
    return torch.optim.AdamW(groups, lr=args.learning_rate, betas=betas, eps=args.adam_epsilon, fused=fused)


def count_updates(examples: int, args: RunArguments, processes: int) -> tuple[int, int]:
    """(updates, epochs begun) of a run over `examples`."""
    per_update = args.per_device_train_batch_size * args.gradient_accumulation_steps * processes
    per_epoch = math.ceil(examples / per_update)
    total = args.max_steps if args.max_steps > 0 else math.ceil(args.num_train_epochs * per_epoch)
    return total, math.ceil(total / per_epoch)


def epoch_updates(lengths: list[int], args: RunArguments, epoch: int, processes: int) -> list[list[list[int]]]:
    """The examples of one epoch as updates of micro-batches of indices, the same on every process.

    The examples that share an update depend on their number alone, not on processes or accumulation. A micro-batch
    holds those of all processes; process r takes [r::processes]. With group_by_length the shuffled examples are sorted
    by length in blocks of 50 updates, and the updates shuffled again, an incomplete one staying last.
    """
    rng = np.random.default_rng((args.seed, epoch))
    micro = args.per_device_train_batch_size * processes
    size = micro * args.gradient_accumulation_steps
    order = rng.permutation(len(lengths)).tolist()
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
    updates: list[list[list[int]]],
    collate: Collate,
    accelerator: Accelerator,
) -> Iterator[tuple[torch.Tensor, int]]:
    """Yields this process's share of each update's mean loss, its gradient ready, and the update's number of examples.

    A micro-batch's mean loss weighs as much as its examples do in the whole update, so accumulation and processes
    change nothing but rounding and dropout's draws. A process without an example in the last micro-batch computes one
    of weight zero.
    """
    rank, processes = accelerator.process_index, accelerator.num_processes
    mine = [batch[rank::processes] or batch[:1] for update in updates for batch in update]
    pinned = accelerator.device.type == "cuda"
    batches = iter(DataLoader(train_set, batch_sampler=mine, collate_fn=collate, pin_memory=pinned))
    for update in updates:
        total = sum(map(len, update))
        share = torch.zeros((), device=accelerator.device)
        for step, examples in enumerate(update, start=1):
            weight = len(examples[rank::processes]) / total
            batch = send_to_device(next(batches), accelerator.device, non_blocking=pinned)
            with contextlib.nullcontext() if step == len(update) else accelerator.no_sync(model):
                loss = model(**batch).loss * weight
                accelerator.backward(loss * processes)  # the gradient is averaged over processes
            share += loss.detach()
        yield share, total


class _Log:
    """The training loss of every update, read from the device only every logging_steps: reading waits for it."""

    def __init__(self, args: RunArguments, accelerator: Accelerator, bar: Any) -> None:
        self.args, self.accelerator, self.bar = args, accelerator, bar
        self.losses: list[float] = []
        self.counts: list[int] = []  # examples of each update
        self.unread: list[torch.Tensor] = []  # this process's shares
        if args.report_to != "none":
            # TensorBoard takes neither None nor lists.
            accelerator.init_trackers("runs", {key: str(value) for key, value in dataclasses.asdict(args).items()})

    def add(self, share: torch.Tensor, examples: int, learning_rate: float) -> None:
        self.unread.append(share)
        self.counts.append(examples)
        self.bar.update()
        if len(self.counts) % self.args.logging_steps == 0:
            loss = self.mean(len(self.losses))
            self.bar.set_postfix(loss=f"{loss:.4f}", refresh=False)
            self.accelerator.log({"train_loss": loss, "learning_rate": learning_rate}, step=len(self.losses))

    def mean(self, first: int = 0) -> float:
        """The mean loss of the examples since update `first`."""
        if self.unread:
            read = self.accelerator.reduce(torch.stack(self.unread), "sum").tolist()
            for update, loss in enumerate(read, start=len(self.losses) + 1):
                if not math.isfinite(loss):
                    raise FloatingPointError(
                        f"the training loss is {loss} at update {update} of {self.bar.total}: lower --learning_rate "
                        f"(peak {self.args.learning_rate}), or use a --mixed_precision with a wider range"
                    )
            self.losses += read
            self.unread = []
        return float(np.average(self.losses[first:], weights=self.counts[first:]))


# Prediction and evaluation


@torch.no_grad()  # not inference_mode: tensors made there could not be trained on after
def predict(
    model: PreTrainedModel, data_set: Dataset, collate: Collate, args: RunArguments, accelerator: Accelerator
) -> Outputs:
    """The model's outputs named "...logits", one array an example, in the order of `data_set`, on every process.

    Batches hold examples of similar length, so little of them is padding. Outputs for each token keep the length their
    batch had: the script cuts them. Labels stay in the data set. Raises FloatingPointError where an output is not
    finite.
    """
    model.to(accelerator.device).eval()
    lengths = [len(ids) for ids in data_set["input_ids"]]
    order = sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True)
    mine = _cut(order, args.per_device_eval_batch_size)[accelerator.process_index :: accelerator.num_processes]
    bar = tqdm(total=len(mine), desc="predict", leave=False, disable=not sys.stderr.isatty())
    # A generator of its own: an evaluation during training draws none of training's random numbers.
    loader = DataLoader(data_set, batch_sampler=mine, collate_fn=collate, generator=torch.Generator())
    computed = []
    for indices, batch in zip(mine, loader, strict=True):
        inputs = {name: value for name, value in batch.items() if name != "labels"}
        with accelerator.autocast():
            outputs = model(**send_to_device(inputs, accelerator.device))
        arrays = {name: value.float().cpu().numpy() for name, value in outputs.items() if name.endswith("logits")}
        computed += [(index, {name: rows[i] for name, rows in arrays.items()}) for i, index in enumerate(indices)]
        bar.update()
    bar.close()
    by_index = dict(gather_object(computed))
    names = by_index[0] if by_index else {}
    for index, arrays in sorted(by_index.items()):
        broken = [name for name in names if not np.isfinite(arrays[name]).all()]
        if broken:
            raise FloatingPointError(
                f"the model's {', '.join(broken)} for example {index} are not finite: use a --mixed_precision with a "
                "wider range, or train with a lower --learning_rate"
            )
    return {name: [by_index[index][name] for index in range(len(lengths))] for name in names}


def evaluate(
    model: PreTrainedModel,
    eval_sets: dict[str, Dataset],
    collate: Collate,
    metrics: Metrics,
    args: RunArguments,
    accelerator: Accelerator,
) -> dict[str, float]:
    """`eval_<metric><suffix>` for each suffix and set of `eval_sets` ("" for the only one), and eval_runtime."""
    started = time.perf_counter()
    results = {}
    for suffix, data_set in eval_sets.items():
        scores = metrics(predict(model, data_set, collate, args, accelerator), data_set)
        results |= {f"eval_{name}{suffix}": value for name, value in scores.items()}
    return results | {"eval_runtime": time.perf_counter() - started}
