"""Writes the results of a run: metrics.json, the model folder and its card. And uploads them to the Hub."""

from __future__ import annotations

import glob
import os
import shlex
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import huggingface_hub
import torch
from accelerate import Accelerator
from huggingface_hub import ModelCard, constants
from huggingface_hub.errors import HfHubHTTPError, HTTPError
from safetensors import SafetensorError

from elmo_gpt_bert.training.arguments import RunArguments, public_arguments
from elmo_gpt_bert.training.cards import model_card
from elmo_gpt_bert.training.command_line import start_of_script
from elmo_gpt_bert.training.errors import FileError
from elmo_gpt_bert.training.files import follow_umask, write_json, write_text
from elmo_gpt_bert.training.layers import gather_weights
from elmo_gpt_bert.training.log import finish_trackers
from elmo_gpt_bert.training.output_folder import (
    CHECKPOINT,
    METRICS,
    PICTURES,
    PREDICTION_FILES,
    SEED,
    SHA256SUMS,
    files_of,
    loaded_names,
    matching_folders,
    superseded_files,
    write_checksums,
)
from elmo_gpt_bert.training.processes import hardware, versions
from elmo_gpt_bert.training.results import describe_results, read_results
from elmo_gpt_bert.training.task import Task


def write_results(
    task: Task,
    results: dict[str, float],
    args: RunArguments,
    accelerator: Accelerator,
    identity: dict[str, Any],
    has_model: bool = False,
) -> None:
    """Writes the model with its card, after training, and metrics.json; prints the results.

    With `has_model`, the folder holds the finished model, of which only the card is written again. Every process must
    call it. A reader finds each file either old or completely new. Raises OSError if the files cannot be written; the
    last checkpoint, if there is one, then still holds the model.
    """
    accelerator.wait_for_everyone()
    started = time.perf_counter()
    weights = gather_weights(task.model) if args.do_train and not has_model else None
    if accelerator.is_main_process:
        output = Path(args.output_dir)
        if args.do_train or args.only_evaluates:
            card = model_card(task.model, results, task.description, args, accelerator.num_processes)
            if weights is not None:
                save_model(task, weights, card, output)
            else:
                write_text(output / "README.md", str(card))
        saving = results.get("save_runtime", 0.0) + time.perf_counter() - started
        record = {
            **results,
            "save_runtime": saving,
            "seed": args.seed,
            "args": public_arguments(args),
            "identity": identity,
            "versions": versions(),
            "hardware": hardware(accelerator),
        }
        write_json(output / METRICS, record)
    finish_trackers(accelerator)  # now that the model is safe
    if accelerator.is_main_process:
        print_results(results, args)
    accelerator.wait_for_everyone()


def save_model(task: Task, weights: dict[str, torch.Tensor], card: ModelCard, output: Path) -> None:
    """Writes the model folder that from_pretrained reads, with checksums and card.

    The files are written to a temporary folder in `output`, and moved when all of them are complete.
    """
    temporary = output / ".saving"
    shutil.rmtree(temporary, ignore_errors=True)  # left by a run that was killed
    try:
        task.model.save_pretrained(temporary, state_dict=weights)
        task.tokenizer.save_pretrained(temporary)
        for path in temporary.glob("*.safetensors"):
            follow_umask(path)
        write_checksums(temporary)
        card.save(temporary / "README.md")
        move_model(list(temporary.iterdir()), output)
    except (OSError, SafetensorError) as error:
        saved = matching_folders(output, CHECKPOINT)
        remedy = "continues from the last checkpoint" if saved else "begins again: there is no checkpoint"
        raise FileError(
            f"cannot save the model in {output}: {' '.join(str(error).split())}. Make room; the same command with "
            f"--resume {remedy}"
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def move_model(files: list[Path], output: Path) -> None:
    """Moves the files of a model to `output`, and removes those of an earlier model that the new one does not have.

    from_pretrained would read them, too. SHA256SUMS is moved last: if the process is killed before, the checksums do
    not fit the files, and the same command with --resume completes the folder.
    """
    for path in sorted(files, key=lambda path: path.name == SHA256SUMS):
        if path.name == SHA256SUMS:
            for name in superseded_files(output, path.parent):
                (output / name).unlink()
        os.replace(path, output / path.name)


def print_results(results: Mapping[str, float], args: RunArguments, seed: int | None = None) -> None:
    """Prints scores, seconds, what is in the output folder and, after training, a command that uses the model.

    seed: of several seeds, the one whose model is in the folder; the seconds are those of its run
    """
    output = Path(args.output_dir)
    scores, seconds, _ = read_results(results)
    if scores:  # predictions alone have none
        print(describe_results(scores))
    if seconds:
        steps = ", ".join(f"{name.removesuffix('_runtime')} {value:,.1f}" for name, value in seconds.items())
        of_seed = "" if seed is None else f" of seed {seed}"
        print(f"seconds{of_seed}: {steps}; {sum(seconds.values()):,.1f} in all")
    files = [*(["model", "README.md (its card)"] if args.do_train else []), METRICS]
    print(f"written to {output}: {', '.join([*files, *files_of(output, PREDICTION_FILES, PICTURES)])}")
    if args.do_train and args.next_command and not SEED.fullmatch(output.name):  # a seed's model may be removed
        script = Path(sys.modules[type(args).__module__].__file__).stem
        vectors = start_of_script("extract", module="elmo_gpt_bert.analysis.extraction")
        scripts = {"script": start_of_script(script), "vectors": vectors}
        words = [args.next_command.format(output=shlex.quote(str(output)), **scripts)]
        for name, value in args.repeated_flags(results).items():
            words += [f"--{name}", *([] if value is True else [shlex.quote(str(value))])]
        print("next:", *words)


# The Hub


# Files that are not pushed: only --resume, an ensemble or a tracker needs them.
LEFT_OUT = ("checkpoint-*", "seed-*/*", "outputs-*.safetensors", "wandb/*", "corpus/*", ".*")
EXCLUDED = [word for pattern in LEFT_OUT for word in ("--exclude", pattern)]  # for the Hub's own command


def create_repository(name: str, private: bool) -> str:
    """Creates the repository if it does not exist; returns its full name, with its owner.

    Raises OSError if it cannot be created, or the user may not write to it.
    """
    api = huggingface_hub.HfApi()
    try:
        name = api.create_repo(name, private=private or None, exist_ok=True).repo_id
        api.auth_check(name, write=True)
    except (OSError, HTTPError, ValueError) as error:
        raise FileError(
            f"cannot push to {name} on {constants.ENDPOINT}: {_reason(error)}, or leave --push_to_hub out"
        ) from error
    return name


def push(name: str, folder: Path) -> None:
    """Uploads a folder but for what is `LEFT_OUT`. huggingface_hub tries again where the Hub fails for a while.

    Files that the repository has already are not sent again, so an upload that was interrupted goes on when it is
    repeated. The `_pushed_before` of an earlier push go in the same commit. Raises OSError with a command that
    uploads the folder.
    """
    api = huggingface_hub.HfApi()
    try:
        old = [glob.escape(file) for file in _pushed_before(api, name)] or None
        url = api.upload_folder(repo_id=name, folder_path=folder, ignore_patterns=[*LEFT_OUT], delete_patterns=old)
    except (OSError, HTTPError, ValueError) as error:
        raise FileError(
            f"{folder} is complete, but could not be pushed to {name} on {constants.ENDPOINT}: {_reason(error)}. "
            f"Then: {shlex.join(['hf', 'upload', name, str(folder), *EXCLUDED])}"
        ) from error
    print(f"pushed to {url}")


def _pushed_before(api: huggingface_hub.HfApi, name: str) -> list[str]:
    """The files of an earlier push that must not stand beside another model: those it listed and loads, predictions.

    The next push replaces those that it has, too. All other files are the user's.
    """
    files = api.list_repo_files(name)
    listed = loaded_names(Path(api.hf_hub_download(name, SHA256SUMS))) if SHA256SUMS in files else set()
    return [file for file in files if file in listed or PREDICTION_FILES.fullmatch(file)]


def _reason(error: Exception) -> str:
    """The problem and its remedy, in one line."""
    status = error.response.status_code if isinstance(error, HfHubHTTPError) else None
    if constants.is_offline_mode():
        return "HF_HUB_OFFLINE is set: unset it"
    if status == 401 and huggingface_hub.get_token() is None:
        return "you are not logged in: run `hf auth login` or set HF_TOKEN"
    if status == 401:
        return "the token was not accepted (401): run `hf auth login` or set HF_TOKEN with a valid one"
    if status == 403:
        tokens = f"{constants.ENDPOINT}/settings/tokens"
        return f"the token may not write there (403): change that at {tokens}, give another --hub_model_id"
    if status is not None:
        return f"the Hub answered with an error ({status}): try again later"
    if isinstance(error, HTTPError):
        return f"it cannot be reached ({str(error) or type(error).__name__}): check the network, try again later"
    remedy = "give another --hub_model_id" if isinstance(error, ValueError) else "correct that"
    return f"{' '.join(str(error).split()).rstrip('.')}: {remedy}"
