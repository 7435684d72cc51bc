"""Writes the results of a run: metrics.json, the model folder and its card."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from accelerate import Accelerator
from huggingface_hub import ModelCard
from safetensors import SafetensorError

from elmo_gpt_bert.training.arguments import RunArguments, public_arguments
from elmo_gpt_bert.training.cards import model_card
from elmo_gpt_bert.training.command_line import start_of_script
from elmo_gpt_bert.training.digests import SHA256SUMS, superseded_files, write_checksums
from elmo_gpt_bert.training.errors import FileError
from elmo_gpt_bert.training.files import follow_umask, write_json, write_text
from elmo_gpt_bert.training.layers import gather_weights
from elmo_gpt_bert.training.log import finish_trackers
from elmo_gpt_bert.training.output_folder import CHECKPOINT, METRICS, SEED, matching_folders, read_result_files
from elmo_gpt_bert.training.processes import hardware, versions
from elmo_gpt_bert.training.results import describe_results, read_results
from elmo_gpt_bert.training.task import Description


if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def write_results(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    results: dict[str, float],
    description: Description,
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
    weights = gather_weights(model) if args.do_train and not has_model else None
    if accelerator.is_main_process:
        output = Path(args.output_dir)
        if args.do_train or args.only_evaluates:
            card = model_card(model, results, description, args, accelerator.num_processes)
            if weights is not None:
                save_model(model, weights, tokenizer, card, output)
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


def save_model(
    model: PreTrainedModel,
    weights: dict[str, torch.Tensor],
    tokenizer: PreTrainedTokenizerBase,
    card: ModelCard,
    output: Path,
) -> None:
    """Writes the model folder that from_pretrained reads, with checksums and card.

    The files are written to a temporary folder in `output`, and moved when all of them are complete.
    """
    temporary = output / ".saving"
    shutil.rmtree(temporary, ignore_errors=True)  # left by a run that was killed
    try:
        model.save_pretrained(temporary, state_dict=weights)
        tokenizer.save_pretrained(temporary)
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
    print(f"written to {output}: {', '.join([*files, *sorted(read_result_files(output).predictions)])}")
    if args.do_train and args.next_command and not SEED.fullmatch(output.name):  # a seed's model may be removed
        script = Path(sys.modules[type(args).__module__].__file__).stem
        vectors = start_of_script("extract", module="elmo_gpt_bert.analysis.extraction")
        scripts = {"script": start_of_script(script), "vectors": vectors}
        words = [args.next_command.format(output=shlex.quote(str(output)), **scripts)]
        for name, value in args.repeated_flags(results).items():
            words += [f"--{name}", *([] if value is True else [shlex.quote(str(value))])]
        print("next:", *words)
