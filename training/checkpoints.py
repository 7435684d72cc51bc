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
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list
from datasets import Dataset
from safetensors import SafetensorError
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from training.arguments import RunArguments
from training.checksums import damage, follow_umask, sync, write_checksums
from training.files import read_json_object, write_atomically
from training.optimization import may_differ, schedule
from training.pickles import danger


# What may differ between a run and its continuation.
FREE = {"output_dir", "overwrite_output_dir", "resume", "trust_remote_code", "seeds", "max_restarts", "do_predict"}
FREE |= {"save_strategy", "save_steps", "save_total_limit", "logging_steps", "per_device_eval_batch_size"}
FREE |= {"report_to", "push_to_hub", "hub_model_id", "test_file", "max_predict_samples"}
FREE |= {"save_outputs", "hub_private_repo", "dataloader_num_workers", "state_cache", "window_cache"}

# Fields of a configuration that no result depends on.
UNUSED = {"_name_or_path", "architectures", "auto_map", "dtype", "transformers_version"}

IDENTITY = ".identity.json"
FOLDER = re.compile(r"checkpoint-(\d+)")
HALF_WRITTEN = re.compile(r"\.checkpoint-(\d+)")


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
    results: dict[str, float] = field(default_factory=dict)  # of the last evaluation
    best_update: int | None = None
    best_results: dict[str, float] = field(default_factory=dict)
    worse: int = 0  # evaluations in a row that were no better than the best
    stopped: bool = False  # early
    seconds: dict[str, float] = field(default_factory=dict)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Progress":
        means = {f.name: Mean(**values[f.name]) for f in dataclasses.fields(cls) if f.default_factory is Mean}
        return cls(**(values | means))


def folders(output: Path, name: re.Pattern) -> list[Path]:
    """The folders in `output` of exactly this kind of name: others there are the user's."""
    return [path for path in output.glob("*") if path.is_dir() and name.fullmatch(path.name)]


def remove(folder: Path) -> None:
    """With all that is in it; of a folder elsewhere that is linked here, the link."""
    if folder.is_symlink():
        folder.unlink()
    else:
        shutil.rmtree(folder)


def settings(config: dict[str, Any], prefix: str = "config") -> dict[str, Any]:
    """What a configuration says of its model, under names like config.hidden_size, config.encoder.hidden_size."""
    values = {}
    for name, value in config.items():
        if isinstance(value, dict) and "model_type" in value:
            values |= settings(value, f"{prefix}.{name}")
        elif name not in UNUSED:
            values[f"{prefix}.{name}"] = value
    return values


def difference(ours: dict[str, Any], theirs: dict[str, Any]) -> str | None:
    """The first name with different values; None where both are of the same run.

    A field of the configuration that only one of them has is of another version of transformers.
    """
    names = {name for name in ours.keys() ^ theirs.keys() if not name.startswith("config.")}
    names |= {name for name in ours.keys() & theirs.keys() if ours[name] != theirs[name]}
    return min(names, default=None)


def digest(data_set: Dataset) -> str:
    """Tells any other data from these, in whatever pieces they are kept: in memory, on disk, or as part of others."""
    content, tables = hashlib.sha256(), data_set.with_format("arrow")
    for start in range(0, len(data_set), 1000):
        table = tables[start : start + 1000].combine_chunks()
        for name, column in zip(table.column_names, table.columns, strict=True):
            content.update(name.encode())
            for part in _parts(column.chunk(0)):
                content.update(part)
    return content.hexdigest()


def _parts(array: pa.Array) -> Iterator[bytes | np.ndarray]:
    """What the values are. Arrow's own buffers also hold what stands beside a slice, and under missing values."""
    yield f" {array.type} {len(array)} {array.null_count} ".encode()
    if array.null_count:
        yield array.is_valid().to_numpy(zero_copy_only=False)
        array = array.drop_null()
    if pa.types.is_string(array.type):
        texts = [text.encode() for text in array.to_pylist()]
        yield np.array([len(text) for text in texts])
        yield b"".join(texts)
    elif pa.types.is_struct(array.type):
        for field in array.flatten():
            yield from _parts(field)
    elif pa.types.is_nested(array.type):  # lists
        yield array.value_lengths().to_numpy()
        yield from _parts(array.flatten())
    else:
        yield array.to_numpy(zero_copy_only=False)


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

    def found(self) -> list[int]:
        """The updates after which there is a checkpoint, the newest first."""
        return sorted((int(FOLDER.fullmatch(path.name)[1]) for path in folders(self.folder, FOLDER)), reverse=True)

    def save(self, progress: Progress) -> None:
        """Writes a checkpoint, then removes those beyond --save_total_limit. To be called by every process.

        Raises FloatingPointError, and writes nothing, where a weight is not finite; OSError, having removed what is
        half written, where the disk does not take it.
        """
        path = self.path(progress.update)
        temporary = path.with_name(f".{path.name}")
        if not self._is_finite():
            raise FloatingPointError(f"a weight is not finite after update {progress.update}")
        try:
            self.accelerator.save_state(str(temporary))
            self.accelerator.wait_for_everyone()
            if self.accelerator.is_main_process:
                self._complete(temporary, progress)
                os.replace(temporary, path)
                sync(self.folder)
        except (OSError, RuntimeError, SafetensorError) as error:
            shutil.rmtree(temporary, ignore_errors=True)
            raise OSError(f"cannot save {path}: {' '.join(str(error).split())}. {self.how_to_go_on()}") from error
        if self.accelerator.is_main_process:
            self._remove_old()
        self.accelerator.wait_for_everyone()

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
        record = {**dataclasses.asdict(progress), "identity": self.identity, "circumstances": self.circumstances}
        (temporary / "progress.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
        for path in temporary.rglob("*.safetensors"):
            follow_umask(path)
        write_checksums(temporary)

    def _remove_old(self) -> None:
        """Keeps the newest and, where they are wanted in the end, the best that each of those knows of."""
        found = self.found()
        keep = set(found[: self.args.save_total_limit])
        if self.args.load_best_model_at_end:
            keep |= {self._read(update)[0].best_update for update in keep if self._damage_of_progress(update) is None}
        for update in set(found) - keep:
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
            for newer in [other for other in self.found() if other > update]:
                remove(self.path(newer))
        return progress

    def _compare(self, theirs: dict[str, Any], path: Path, update: int) -> None:
        """Raises ValueError where what stands in `path` is not of this run, or of a shorter one until `update`."""
        ours, longer = self.identity, may_differ(self.identity, theirs, path, update)
        name = difference(*({name: run[name] for name in run.keys() - longer} for run in (ours, theirs)))
        if name is not None:
            raise ValueError(
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
            write_atomically(self.folder / IDENTITY, json.dumps(self.identity, indent=2) + "\n")

    def _newest(self) -> int | None:
        problems = []
        for update in self.found():
            problem = self._damage_of(update) or self._damage_of_best(update)
            if problem is None:
                return update
            problems.append(f"{self.path(update)}: {problem}")
            self.accelerator.print(f"{problems[-1]}: not used")
        if problems:
            raise OSError(f"no checkpoint is whole ({'; '.join(problems)}): remove them to begin again")
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
            raise OSError(f"{self.path(update)}: {problem}. Remove it, and --resume goes on from the one before")
        self.accelerator.load_state(str(self.path(update)))

    def how_to_go_on(self) -> str:
        """For messages: what is there, and the flag that uses it."""
        found = self.found()
        if not found:
            return "No checkpoint has been saved yet."
        return f"{self.path(found[0])} is whole: the same command with --resume goes on from it."
