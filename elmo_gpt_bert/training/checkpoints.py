"""Saves and loads the checkpoints of a training run. A resumed run computes the same bits as one without a break.

    OUTPUT_DIR/checkpoint-UPDATES/
        model.safetensors, config.json, tokenizer.json, ...    for from_pretrained
        optimizer.safetensors                                  the state of the optimizer
        plan.safetensors                                       where the streams of a biLM are; of no other run
        progress.json                                          how far the run has come, its identity
        SHA256SUMS                                             checksums of all files

A checkpoint is written under a temporary name, synced to the disk, and renamed when it is complete. It is the same
whatever the number of processes, and with FSDP too. The schedule has no file, because it depends only on the number of
updates; neither have random states, because each micro-batch has a seed. No file can run code when it is read.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shutil
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from elmo_gpt_bert.training.arguments import RunArguments
from elmo_gpt_bert.training.batches import Plan
from elmo_gpt_bert.training.errors import DivergedError, FileError, UserError, as_user_errors
from elmo_gpt_bert.training.files import new_folder, read_json_object, remove_folder
from elmo_gpt_bert.training.identity import PREDICTIONS, allowed_differences, check_same, flatten_config
from elmo_gpt_bert.training.optimization import (
    gather_state,
    gather_weights,
    load_state,
    load_weights,
    saved_class,
    saved_name,
)
from elmo_gpt_bert.training.output_folder import CHECKPOINT, HALF_WRITTEN, damage, matching_folders, write_checksums
from elmo_gpt_bert.training.processes import on_main
from elmo_gpt_bert.training.results import goodness
from elmo_gpt_bert.training.task import Task


WEIGHTS, OPTIMIZER, PLAN = "model.safetensors", "optimizer.safetensors", "plan.safetensors"
REMEDY = "so remove it, and --resume uses the one before"  # of a damaged checkpoint
BATCH_SIZE = "per_device_train_batch_size"


@dataclass
class Mean:
    """A running mean of losses, each weighted by its items: examples or labelled tokens."""

    total: float = 0.0
    items: int = 0
    updates: int = 0

    def add(self, loss: float, items: int) -> None:
        self.total += loss * items
        self.items += items
        self.updates += 1

    @property
    def value(self) -> float:
        return self.total / max(self.items, 1)


@dataclass
class Progress:
    """How far a run has come: the losses, scores and counts in progress.json, whose keys are these fields."""

    update: int = 0
    run: Mean = field(default_factory=Mean)  # training losses of the whole run
    epoch: Mean = field(default_factory=Mean)  # training losses since the epoch began
    logged: Mean = field(default_factory=Mean)  # training losses since the last value was logged
    losses: dict[str, Mean] = field(default_factory=dict)  # the same, of each of the model's losses
    best_update: int | None = None
    worse: int = 0  # evaluations in a row that were no better than the best
    stopped: bool = False  # by early stopping
    scaler: dict[str, float] = field(default_factory=dict)  # the scale of fp16's gradients, and how it grows
    seconds: dict[str, float] = field(default_factory=dict)
    results: dict[str, float] = field(default_factory=dict)  # of the last evaluation, as in metrics.json
    best_results: dict[str, float] = field(default_factory=dict)

    def note_results(self, metric: str | None) -> bool:
        """Compares the last evaluation with the best one by `metric`; True if it is better."""
        current = goodness(self.results, metric)
        improved = self.best_update is None or current > goodness(self.best_results, metric)
        if improved:
            self.best_update, self.best_results, self.worse = self.update, self.results, 0
        else:
            self.worse += 1
        return improved

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Progress:
        """The inverse of `dataclasses.asdict`. Raises TypeError or KeyError if an entry is missing or unknown."""
        means = {f.name: Mean(**values[f.name]) for f in dataclasses.fields(cls) if f.default_factory is Mean}
        losses = {name: Mean(**mean) for name, mean in values["losses"].items()}
        results = {name: dict(values[name]) for name in ("results", "best_results")}
        return cls(**values | means | results | {"losses": losses})


class Checkpoints:
    """The checkpoints in the output folder of one run."""

    def __init__(
        self,
        task: Task,
        optimizer: torch.optim.Optimizer,
        plan: Plan,
        identity: dict[str, Any],
        args: RunArguments,
        accelerator: Accelerator,
    ) -> None:
        """
        task, optimizer: the model and the optimizer as Accelerator.prepare has left them, and not in its wrappers
        identity: of the run, as in metrics.json
        """
        self.model, self.optimizer, self.tokenizer, self.plan = task.model, optimizer, task.tokenizer, plan
        self.args, self.accelerator = args, accelerator
        # What changes only rounding and, if it is the size, what dropout draws.
        self.circumstances = {"processes": accelerator.num_processes, BATCH_SIZE: args.per_device_train_batch_size}
        # Now, because FSDP gives the model other parameters while it computes.
        self.names = {weight: saved_name(task.model, name) for name, weight in task.model.named_parameters()}
        self.folder = Path(args.output_dir)
        # What a run and its continuation have in common, as JSON. It has the configuration before training, because
        # the model may record the type of its loss there.
        training = {name: value for name, value in identity.items() if name not in PREDICTIONS}
        whole = training | plan.identity | flatten_config(task.model.config.to_dict())
        self.identity = json.loads(json.dumps(whole, default=str))
        self.newest: int | None = None  # the update after which this run saved or found a checkpoint

    def path(self, update: int) -> Path:
        return self.folder / f"checkpoint-{update}"

    def saved_updates(self) -> list[int]:
        """The updates after which a checkpoint was saved, the newest first."""
        names = [path.name for path in matching_folders(self.folder, CHECKPOINT)]
        return sorted((int(CHECKPOINT.fullmatch(name)[1]) for name in names), reverse=True)

    def save(self, progress: Progress) -> None:
        """Writes a checkpoint, then removes the oldest beyond --save_total_limit. Every process must call it.

        Raises FloatingPointError, before it writes anything, if a weight is not finite. Raises OSError, and removes
        the incomplete checkpoint, if it cannot be written.
        """
        self.check_weights(progress.update)
        if self.accelerator.scaler is not None:
            progress.scaler = self.accelerator.scaler.state_dict()
        tensors = {WEIGHTS: gather_weights(self.model), OPTIMIZER: gather_state(self.optimizer, self.names)}
        tensors[PLAN] = self.plan.state()
        on_main(partial(self._write, progress, tensors))
        self.newest = progress.update

    def _write(self, progress: Progress, tensors: dict[str, dict[str, torch.Tensor]]) -> None:
        """The main process's part of `save`. `tensors`: file -> its tensors; one without tensors is not written."""
        path = self.path(progress.update)
        with new_folder(path, f"Make room. {self.how_to_resume()}") as temporary:
            for name in [name for name in tensors if tensors[name]]:
                save_file(tensors[name], temporary / name, {"format": "pt"})
            config = self.model.config
            config.architectures = [saved_class(self.model).__name__]
            config.save_pretrained(temporary)
            self.tokenizer.save_pretrained(temporary)
            record = dataclasses.asdict(progress) | {"identity": self.identity, "circumstances": self.circumstances}
            (temporary / "progress.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
            write_checksums(temporary)
        self._remove_old()

    def check_weights(self, update: int) -> None:
        """Raises FloatingPointError unless the weights on all processes are finite. Waits for the device only once."""
        broken = torch.zeros((), dtype=torch.long, device=self.accelerator.device)
        for parameter in self.model.parameters():
            part = parameter.detach()
            part = part.to_local() if hasattr(part, "to_local") else part  # FSDP's shard, a DTensor
            broken += (~torch.isfinite(part)).sum()
        if self.accelerator.reduce(broken, "sum").item():
            raise DivergedError(f"a weight is not finite after update {update}")

    def _remove_old(self) -> None:
        """Keeps the newest checkpoints and, with --load_best_model_at_end, the best ones that they name."""
        saved = self.saved_updates()
        kept = set(saved[: self.args.save_total_limit])
        if self.args.load_best_model_at_end:
            for update in {*kept}:
                with contextlib.suppress(UserError):
                    kept.add(self._read(update)[0].best_update)
        for update in set(saved) - kept:
            remove_folder(self.path(update))

    def _read(self, update: int) -> tuple[Progress, dict[str, Any], dict[str, Any]]:
        """(progress, identity, circumstances). Raises ValueError if one of them is missing, and OSError if all are."""
        path = self.path(update) / "progress.json"
        with as_user_errors(f"{path} is damaged, {REMEDY}: ", TypeError, KeyError):
            values = read_json_object(path)
            identity, circumstances = dict(values.pop("identity")), dict(values.pop("circumstances"))
            return Progress.from_dict(values), identity, circumstances

    def restore(self) -> Progress | None:
        """With --resume, loads the newest complete checkpoint; None without --resume, or if there is no checkpoint.

        Every process must call it. Raises OSError if all checkpoints are damaged, and ValueError if the newest one
        belongs to another run.
        """
        if not self.args.resume:
            return None
        saved = on_main(self._find)
        if saved is None:
            return None
        progress, circumstances = saved
        self.newest = progress.update
        self._print_changes(circumstances, self.path(progress.update))
        self.load(progress.update)
        if self.accelerator.scaler is not None:
            self.accelerator.scaler.load_state_dict(progress.scaler)
        if self.accelerator.is_main_process:  # checkpoints that the run will write again
            for newer in [other for other in self.saved_updates() if other > progress.update]:
                remove_folder(self.path(newer))
        return progress

    def _find(self) -> tuple[Progress, dict[str, Any]] | None:
        """Progress and circumstances of the newest complete checkpoint of this run; None if there is no checkpoint."""
        for half_written in matching_folders(self.folder, HALF_WRITTEN):
            shutil.rmtree(half_written)
        problems = []
        for update in self.saved_updates():
            path = self.path(update)
            problem = damage(path)
            if problem is None:
                progress, saved, circumstances = self._read(update)
                check_same(self.identity, saved, path, allowed_differences(self.identity, saved, path, update))
                return progress, circumstances
            problems.append(f"{path}: {problem}")
            self.accelerator.print(f"{problems[-1]}: not used")
        if problems:
            raise FileError(f"all checkpoints are damaged ({'; '.join(problems)}): remove them to begin again")
        return None

    def _print_changes(self, saved: dict[str, int], path: Path) -> None:
        """Prints which circumstances differ from those that are `saved` in `path`, and what may differ by that."""
        changes = {name: value for name, value in self.circumstances.items() if value != saved.get(name)}
        if changes:
            listed = "; ".join(f"{name} {saved.get(name)}, now {value}" for name, value in changes.items())
            draws = ", and dropout draws other numbers" if BATCH_SIZE in changes else ""
            self.accelerator.print(f"{path} was written with {listed}: the last bits may differ{draws}")

    def load(self, update: int) -> None:
        """Loads the weights and the state of the checkpoint after `update`. Every process must call it.

        Raises OSError if it is damaged, and ValueError if its checksums do not show it.
        """
        on_main(partial(self._check, update))
        folder = self.path(update)
        with as_user_errors(f"{folder} is damaged, {REMEDY}: ", SafetensorError):
            load_weights(self.model, load_file(folder / WEIGHTS))
            load_state(self.optimizer, self.names, load_file(folder / OPTIMIZER))
            self.plan.load_state(load_file(folder / PLAN) if (folder / PLAN).is_file() else {})

    def _check(self, update: int) -> None:
        if problem := damage(self.path(update)):
            remedy = "Remove it and the later ones, and --resume continues from the one before"
            raise FileError(f"{self.path(update)}: {problem}. {remedy}")

    def how_to_resume(self) -> str:
        """For messages: the newest checkpoint, and how to continue from it."""
        if self.newest is None:
            return "No checkpoint has been saved yet."
        return f"{self.path(self.newest)} is complete: the same command with --resume continues from it."
