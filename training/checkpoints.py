"""The checkpoints of a training run: each is whole or is not there, and continues the run to the same bits.

    OUTPUT_DIR/checkpoint-UPDATES/
        model.safetensors, optimizer.bin, random_states_RANK.pkl, ...   accelerate's, whatever the run is spread over
        progress.json                                                   how far the run is, and which run it is
        config.json, tokenizer.json, ...                                so that from_pretrained reads the folder too,
                                                                        but for the parts of a sharded model
        SHA256SUMS                                                      so that damage is noticed

A checkpoint is written under another name, synced to the disk, and renamed when it is whole. Whoever plants a file can
list it in SHA256SUMS too, so none of them is read in a way that could run code (pickles.py). The schedule has no file:
the number of updates says where it is.

    OUTPUT_DIR/seed-N/.identity.json    with --seeds: which run it is, until then which another seed's was
"""

import dataclasses
import json
import shutil
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list
from datasets import Dataset
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from training.arguments import RunArguments
from training.checksums import damage, write_checksums
from training.digests import digest
from training.errors import DivergedError, FileError, InputError
from training.files import new_folder, read_json_object, remove, write_json
from training.identity import FREE, difference, may_differ, settings
from training.optimization import schedule
from training.output_folder import CHECKPOINT, HALF_WRITTEN, IDENTITY, folders
from training.pickles import danger
from training.results import ScoresBySet, flatten, goodness, read_evaluation


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
    """How far a run has come: what a checkpoint holds beside weights, optimizer, schedule and random numbers."""

    update: int = 0
    run: Mean = field(default_factory=Mean)  # training losses: of the whole run,
    epoch: Mean = field(default_factory=Mean)  # since the epoch began,
    logged: Mean = field(default_factory=Mean)  # since the last value was logged,
    recent: Mean = field(default_factory=Mean)  # and of the last few updates, whose
    first: float | None = None  # first
    lowest: float | None = None  # and lowest means tell a spike
    scores: ScoresBySet = field(default_factory=dict)  # of the last evaluation
    best_update: int | None = None
    best_scores: ScoresBySet = field(default_factory=dict)
    worse: int = 0  # evaluations in a row that were no better than the best
    stopped: bool = False  # early
    seconds: dict[str, float] = field(default_factory=dict)

    def note_scores(self, metric: str | None) -> bool:
        """Compares the last evaluation with the best one, by `metric`; True where it is better."""
        reached = goodness(self.scores, metric)
        improved = self.best_update is None or reached > goodness(self.best_scores, metric)
        if improved:
            self.best_update, self.best_scores, self.worse = self.update, self.scores, 0
        else:
            self.worse += 1
        return improved

    def as_dict(self) -> dict[str, Any]:
        values = dataclasses.asdict(self) | {"results": flatten("eval", self.scores)}
        values |= {"best_results": flatten("eval", self.best_scores)}
        return {name: value for name, value in values.items() if name not in ("scores", "best_scores")}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Progress":
        means = {f.name: Mean(**values[f.name]) for f in dataclasses.fields(cls) if f.default_factory is Mean}
        values = values | means | {"scores": read_evaluation("eval", values["results"])}
        values |= {"best_scores": read_evaluation("eval", values["best_results"])}
        return cls(**{name: value for name, value in values.items() if name not in ("results", "best_results")})


class Checkpoints:
    """The checkpoints in the output folder of one run."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        data: dict[str, Dataset],
        circumstances: dict[str, str | int],
        args: RunArguments,
        accelerator: Accelerator,
    ) -> None:
        """`data`: all that the results depend on. `circumstances`, as versions, change no more than rounding."""
        self.model, self.tokenizer, self.args, self.accelerator = model, tokenizer, args, accelerator
        self.data, self.circumstances, self.folder = data, circumstances, Path(args.output_dir)
        self.settings = settings(model.config.to_dict())  # before training, which may note its loss there

    @cached_property
    def identity(self) -> dict[str, Any]:
        """What the run and its continuation have in common, as JSON has it. Reads all data, so only when needed."""
        identity = {
            **{name: value for name, value in dataclasses.asdict(self.args).items() if name not in FREE},
            "processes": self.accelerator.num_processes,
            "distribution": self.accelerator.distributed_type.value,
            **schedule(len(self.data["training data"]), self.args, self.accelerator.num_processes),
            **self.settings,
            **{name: digest(data_set)[:16] for name, data_set in self.data.items()},  # which stand in errors
        }
        return json.loads(json.dumps(identity, default=str))

    def path(self, update: int) -> Path:
        return self.folder / f"checkpoint-{update}"

    def saved_updates(self) -> list[int]:
        """The updates after which there is a checkpoint, the newest first."""
        names = [path.name for path in folders(self.folder, CHECKPOINT)]
        return sorted((int(CHECKPOINT.fullmatch(name)[1]) for name in names), reverse=True)

    def save(self, progress: Progress) -> None:
        """Writes a checkpoint, then removes those beyond --save_total_limit. To be called by every process.

        Raises FloatingPointError, and writes nothing, where a weight is not finite; OSError, having removed what is
        half written, where the disk does not take it.
        """
        path = self.path(progress.update)
        if not self._is_finite():
            raise DivergedError(f"a weight is not finite after update {progress.update}")
        is_main = self.accelerator.is_main_process
        with new_folder(path, remedy=self.how_to_go_on(), renames=is_main) as temporary:
            self.accelerator.wait_for_everyone()  # until the folder is empty
            self._save_state(temporary)
            self.accelerator.wait_for_everyone()
            if is_main:
                self._complete(temporary, progress)
        if is_main:
            self._remove_old()
        self.accelerator.wait_for_everyone()

    def _save_state(self, folder: Path) -> None:
        try:
            self.accelerator.save_state(str(folder))
        except RuntimeError as error:  # torch's own where the disk is full
            raise OSError(" ".join(str(error).split())) from error

    def _is_finite(self) -> bool:
        """Whether every weight is finite, whichever process holds it or a part of it. One wait for the device."""
        broken = torch.zeros((), dtype=torch.long, device=self.accelerator.device)
        for parameter in self.model.parameters():
            part = getattr(parameter, "ds_tensor", parameter).detach()  # DeepSpeed's
            part = part.to_local() if isinstance(part, DTensor) else part  # FSDP's
            broken += (~torch.isfinite(part)).sum()
        return self.accelerator.reduce(broken, "sum").item() == 0

    def _complete(self, temporary: Path, progress: Progress) -> None:
        self.model.config.save_pretrained(temporary)
        self.tokenizer.save_pretrained(temporary)
        record = progress.as_dict() | {"identity": self.identity, "circumstances": self.circumstances}
        (temporary / "progress.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
        write_checksums(temporary)

    def _remove_old(self) -> None:
        """Keeps the newest and, where they are wanted in the end, the best that each of those knows of."""
        saved = self.saved_updates()
        keep = set(saved[: self.args.save_total_limit])
        if self.args.load_best_model_at_end:
            keep |= {self._read(update)[0].best_update for update in keep if self._damage_of_progress(update) is None}
        for update in set(saved) - keep:
            remove(self.path(update))

    def _read(self, update: int) -> tuple[Progress, dict[str, Any], dict[str, Any]]:
        """(progress, identity, circumstances). Raises ValueError, TypeError or KeyError where the file lacks one."""
        values = read_json_object(self.path(update) / "progress.json")
        identity, circumstances = dict(values.pop("identity")), dict(values.pop("circumstances"))
        return Progress.from_dict(values), identity, circumstances

    def restore(self) -> Progress | None:
        """With --resume goes back to the newest whole checkpoint; None where there is none at all, or a run begins.

        To be called by every process. Raises OSError where all are damaged, ValueError where the newest, or one of
        the other seeds, is of another run.
        """
        if not self.args.resume:
            return None
        if self.accelerator.is_main_process:
            for half_written in folders(self.folder, HALF_WRITTEN):
                shutil.rmtree(half_written)
        theirs = read_json_object(self.folder / IDENTITY) if (self.folder / IDENTITY).is_file() else {}
        if theirs:
            self._compare(theirs | {"seed": self.args.seed}, self.folder.parent, update=0)
        (update,) = broadcast_object_list([self._newest() if self.accelerator.is_main_process else None])
        if update is None:
            return None
        progress, theirs, circumstances = self._read(update)
        self._compare(theirs, self.path(update), update)
        self._tell_circumstances(circumstances, self.path(update))
        self.load(update)
        if self.accelerator.is_main_process:  # what the run will write again
            for newer in [other for other in self.saved_updates() if other > update]:
                remove(self.path(newer))
        return progress

    def _compare(self, theirs: dict[str, Any], path: Path, update: int) -> None:
        """Raises ValueError where what stands in `path` is not of this run, or of a shorter one until `update`."""
        ours, longer = self.identity, may_differ(self.identity, theirs, path, update)
        name = difference(*({name: run[name] for name in run.keys() - longer} for run in (ours, theirs)))
        if name is not None:
            raise InputError(
                f"{path} is of a run with {name} {theirs.get(name)}, not {ours.get(name)}: --resume goes on with the "
                "same run, another needs its own --output_dir"
            )

    def _tell_circumstances(self, theirs: dict[str, str | int], path: Path) -> None:
        ours = self.circumstances
        changed = [f"{name} {theirs.get(name)}, now {ours[name]}" for name in ours if ours[name] != theirs.get(name)]
        if changed:
            self.accelerator.print(f"{path} was written with {'; '.join(changed)}: the last bits may differ")

    def keep_identity(self) -> None:
        """Says, when a run with --seeds is over, which run it was. To be called by every process."""
        if self.accelerator.is_main_process and (self.folder / IDENTITY).is_file():
            write_json(self.folder / IDENTITY, self.identity)

    def _newest(self) -> int | None:
        problems = []
        for update in self.saved_updates():
            problem = self._damage_of(update) or self._damage_of_best(update)
            if problem is None:
                return update
            problems.append(f"{self.path(update)}: {problem}")
            self.accelerator.print(f"{problems[-1]}: not used")
        if problems:
            raise FileError(f"no checkpoint is whole ({'; '.join(problems)}): remove them to begin again")
        return None

    def _damage_of(self, update: int) -> str | None:
        path = self.path(update)
        return damage(path) or danger(path) or self._damage_of_progress(update)

    def _damage_of_progress(self, update: int) -> str | None:
        try:
            written = self._read(update)[0].update
        except (OSError, ValueError, TypeError, KeyError) as error:
            return f"progress.json is damaged, or of an earlier version ({type(error).__name__}: {error})"
        return None if written == update else f"it is the checkpoint of update {written} under another name"

    def _damage_of_best(self, update: int) -> str | None:
        best = self._read(update)[0].best_update if self.args.load_best_model_at_end else None
        problem = None if best is None else self._damage_of(best)
        return problem and f"of the best before it, {self.path(best)}, {problem}"

    def load(self, update: int) -> None:
        """Weights, optimizer and random numbers of the checkpoint after `update`, to every process.

        Raises OSError where it is damaged.
        """
        (problem,) = broadcast_object_list([self._damage_of(update) if self.accelerator.is_main_process else None])
        if problem:
            raise FileError(f"{self.path(update)}: {problem}. Remove it, and --resume goes on from the one before")
        self.accelerator.load_state(str(self.path(update)))

    def how_to_go_on(self) -> str:
        """For messages: what is there, and the flag that uses it."""
        saved = self.saved_updates()
        if not saved:
            return "No checkpoint has been saved yet."
        return f"{self.path(saved[0])} is whole: the same command with --resume goes on from it."
