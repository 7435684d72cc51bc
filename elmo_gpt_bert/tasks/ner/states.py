"""Computes the states of a frozen base model once and keeps them on disk, where every epoch reads them.

    STATE_CACHE/KEY/states-00000.safetensors, ...   `layer_states` (tokens, layers + 1, hidden size) of 256 examples

KEY is a digest of base model, features and precision, so that runs with other seeds or other task networks use the
same files. A file is written under a temporary name, synced to the disk and renamed when it is complete: a run that is
killed leaves only complete files, and the next run computes the rest. Each file has a checksum, which is compared when
a run starts; a file that was changed is computed again. Files are mapped into memory. Several machines need a shared
folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import json
import sys
from functools import partial
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from accelerate import Accelerator
from accelerate.utils import send_to_device, tqdm
from filelock import FileLock, Timeout
from safetensors import safe_open

from elmo_gpt_bert.training.batches import Collate
from elmo_gpt_bert.training.errors import InputError, as_user_errors
from elmo_gpt_bert.training.files import load_tensors, save_tensors, writing
from elmo_gpt_bert.training.identity import digest, model_digest
from elmo_gpt_bert.training.processes import check_shared, on_main


if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict
    from transformers import PreTrainedModel


STATES = "layer_states"
FILE = 256  # examples in a file
PATIENCE = 5.0  # seconds until all processes ask again whether another run has finished its states


def cache_states(
    model: PreTrainedModel,
    features: DatasetDict,
    collate: Collate,
    state_cache: Path,
    batch_size: int,
    accelerator: Accelerator,
) -> tuple[DatasetDict, Collate]:
    """Writes missing states to `state_cache`; returns (features, collate) for batches that have `layer_states`.

    All columns of `features` have one value for each token. Tokens that a column `sentence_mask` does not mark are
    context, and are left out of the features returned. Every process must call it. Raises ValueError if the base model
    is not frozen or its states depend on earlier calls, and OSError if the states cannot be written.
    """
    if STATES not in inspect.signature(model.forward).parameters:
        raise InputError(f"--state_cache keeps the states of a frozen base model, and {type(model).__name__} has none")
    model.to(accelerator.device).eval()
    _check_frozen(model.base_model, collate([next(iter(features.values()))[0]]), accelerator)
    # Trained weights, as ELMo's mix of layers, change no state.
    trained = {name for name, parameter in model.base_model.named_parameters() if parameter.requires_grad}
    base = [model_digest(model.base_model, trained), accelerator.mixed_precision, torch.get_float32_matmul_precision()]
    cached_features, files = type(features)(), []
    for split, data_set in features.items():
        sentences = data_set.map(_without_context, keep_in_memory=True)
        lengths = [len(ids) for ids in sentences["input_ids"]]
        columns = {*inspect.signature(model.base_model.forward).parameters, "sentence_mask"}
        inputs = digest(data_set.select_columns([name for name in data_set.column_names if name in columns]))
        key = hashlib.sha256(json.dumps([*base, inputs]).encode()).hexdigest()[:32]
        parts = [range(first, min(first + FILE, len(lengths))) for first in range(0, len(lengths), FILE)]
        places = [[len(files) + n, sum(lengths[part.start : i])] for n, part in enumerate(parts) for i in part]
        cached_features[split] = sentences.add_column("cached_at", places)
        paths = {state_cache / key / f"states-{n:05}.safetensors": part for n, part in enumerate(parts)}
        _write_missing(paths, lengths, model.base_model, data_set, collate, batch_size, accelerator)
        files += paths
    return cached_features, CachedStates(files, collate)


def _check_frozen(base: PreTrainedModel, batch: dict[str, torch.Tensor], accelerator: Accelerator) -> None:
    """Raises ValueError if the states for `batch` have a gradient, or differ in a second call."""
    with torch.enable_grad():
        first, again = (_states(base, batch, accelerator) for _ in range(2))
    if first.requires_grad:
        raise InputError(
            f"--state_cache needs a frozen base model, and the states of {type(base).__name__} are trained: leave out "
            "the cache, or freeze the model in its configuration"
        )
    if not torch.allclose(first, again, atol=1e-5):
        raise InputError(
            f"--state_cache needs states that depend only on their example, and {type(base).__name__} gives others at "
            "a second call: leave out the cache"
        )


def _states(base: PreTrainedModel, batch: dict[str, torch.Tensor], accelerator: Accelerator) -> torch.Tensor:
    """The states of all layers, (B, T, L + 1, H)."""
    parameters = inspect.signature(base.forward).parameters
    inputs = send_to_device({name: value for name, value in batch.items() if name in parameters}, accelerator.device)
    with accelerator.autocast(), as_user_errors():
        outputs = base(**inputs, output_hidden_states=True, return_dict=True)
    return torch.stack(outputs.hidden_states, dim=-2)


def _without_context(example: dict[str, list | int]) -> dict[str, list | int]:
    mask = example.pop("sentence_mask", None)
    if mask is None:
        return example
    return {
        name: list(compress(values, mask)) if isinstance(values, list) else values  # the number of a row's example
        for name, values in example.items()
    }


def _write_missing(
    paths: dict[Path, range],
    lengths: list[int],
    base: PreTrainedModel,
    data_set: Dataset,
    collate: Collate,
    batch_size: int,
    accelerator: Accelerator,
) -> None:
    """Computes missing or damaged files, each process its share. Other runs with the same key wait."""
    folder = next(iter(paths)).parent
    remedy = "Make room, or give another --state_cache; the next run uses the states that are already there"
    with writing(folder, remedy):
        if accelerator.is_main_process:
            folder.mkdir(parents=True, exist_ok=True)
        check_shared(folder, "--state_cache")
        lock = FileLock(folder / ".lock")
        _acquire(lock, accelerator)
        try:
            share = list(paths.items())[accelerator.process_index :: accelerator.num_processes]
            missing = [(path, part) for path, part in share if not _is_whole(path, sum(lengths[i] for i in part))]
            for path, part in tqdm(missing, desc="states", leave=False, disable=not sys.stderr.isatty()):
                states = _compute(base, data_set.select(part), collate, batch_size, accelerator)
                save_tensors({STATES: states.numpy()}, path, remedy=remedy)
            accelerator.wait_for_everyone()
        finally:
            lock.release()


def _acquire(lock: FileLock, accelerator: Accelerator) -> None:
    """Locks on the main process. All of them ask again every few seconds, so that none waits at one place too long."""

    def acquire(seconds: float) -> bool:
        with contextlib.suppress(Timeout):
            lock.acquire(timeout=seconds)
        return lock.is_locked

    if not on_main(partial(acquire, 0)):
        accelerator.print(f"waits for another run that writes {Path(lock.lock_file).parent}")
        while not on_main(partial(acquire, PATIENCE)):
            pass


@torch.no_grad()
def _compute(
    base: PreTrainedModel, data_set: Dataset, collate: Collate, batch_size: int, accelerator: Accelerator
) -> torch.Tensor:
    """The states (tokens, L + 1, H) of all examples in a row, without context and padding."""
    order = sorted(range(len(data_set)), key=lambda i: len(data_set[i]["input_ids"]))
    by_example: dict[int, torch.Tensor] = {}
    for first in range(0, len(order), batch_size):
        indices = order[first : first + batch_size]
        batch = collate([data_set[i] for i in indices])
        states = _states(base, batch, accelerator).float().cpu()
        mask = batch.get("sentence_mask", batch["attention_mask"]).bool()
        by_example |= {i: states[row, mask[row]] for row, i in enumerate(indices)}
    return torch.cat([by_example[i] for i in range(len(data_set))])


def _is_whole(path: Path, tokens: int) -> bool:
    try:
        return load_tensors(path)[0][STATES].shape[0] == tokens
    except (ValueError, KeyError):  # it is missing or damaged
        return False


class CachedStates:
    """A collate function that adds the states of its examples to a batch."""

    def __init__(self, files: list[Path], collate: Collate) -> None:
        self.files, self.collate = files, collate
        self.slices = [safe_open(path, "pt").get_slice(STATES) for path in files]

    def __reduce__(self) -> tuple:  # for workers that do not share this process's memory, e.g. on Windows
        return CachedStates, (self.files, self.collate)

    def __call__(self, examples: list[dict]) -> dict[str, torch.Tensor]:
        states_by_example = []
        for example in examples:
            (file, first), length = example["cached_at"], len(example["input_ids"])
            states_by_example.append(self.slices[file][first : first + length])
        inputs = [{name: value for name, value in example.items() if name != "cached_at"} for example in examples]
        batch = dict(self.collate(inputs))
        tokens = batch["attention_mask"].bool()
        states = torch.zeros(*tokens.shape, *states_by_example[0].shape[1:])  # (B, T, L + 1, H)
        states[tokens] = torch.cat(states_by_example)
        return batch | {STATES: states}
