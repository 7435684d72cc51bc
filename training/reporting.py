"""What a run leaves behind: metrics.json, the model folder and its card."""

import os
import shutil
import time
from pathlib import Path

import torch
from accelerate import Accelerator, DistributedType
from huggingface_hub import ModelCard
from safetensors import SafetensorError
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from training.arguments import RunArguments, public_arguments
from training.cards import model_card
from training.checksums import NAME as SHA256SUMS
from training.checksums import superseded, write_checksums
from training.environment import hardware, versions
from training.errors import FileError
from training.files import follow_umask, write_json
from training.identity import identity
from training.output_folder import CHECKPOINT, HALF_WRITTEN, METRICS, folders, remove_results
from training.results import Results
from training.task import Description


def remove_earlier_results(args: RunArguments, accelerator: Accelerator) -> None:
    """Removes scores, predictions, kept outputs and training checkpoints of an earlier run that output_dir holds.

    Beside the new ones they would pass for theirs. To be called when all that a run reads has been read, so that a
    typo costs nothing. The earlier run's model and card stay until new ones replace them; its checkpoints go with a
    new training.
    """
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        checkpoints = (CHECKPOINT, HALF_WRITTEN) if args.do_train and not args.resume else ()
        remove_results(Path(args.output_dir), *checkpoints)


def finish(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    results: Results,
    description: Description,
    args: RunArguments,
    accelerator: Accelerator,
) -> None:
    """Writes, after training, the model and its card, then metrics.json; prints the results.

    To be called by every process. Each file is the old one or the whole new one. Raises OSError where the disk does
    not take them; the last checkpoint, if there is one, then still holds the model.
    """
    accelerator.wait_for_everyone()
    started = time.perf_counter()
    weights = whole_weights(model, accelerator) if args.do_train else None
    if accelerator.is_main_process:
        output, entries = Path(args.output_dir), results.flat()
        if args.do_train:
            card = model_card(model, results, description, args, accelerator.num_processes)
            save_model(model, weights, tokenizer, card, output)
        saving = results.seconds.get("save", 0.0) + time.perf_counter() - started
        record = {
            **entries,
            "save_runtime": saving,
            "seed": args.seed,
            "args": public_arguments(args),
            "identity": identity(args),
            "versions": versions(),
            "hardware": hardware(accelerator),
        }
        write_json(output / METRICS, record)
        print_results(entries, output)
    for tracker in accelerator.trackers:
        tracker.finish()
    accelerator.wait_for_everyone()


def whole_weights(model: PreTrainedModel, accelerator: Accelerator) -> dict[str, torch.Tensor]:
    """The trained weights for the main process, whole however they were spread; to be called by every process.

    A weight that stands in several places comes once: what was gathered from shards or copied from a TPU no longer
    shows that it is shared.
    """
    deepspeed = accelerator.distributed_type == DistributedType.DEEPSPEED
    weights = accelerator.get_state_dict(accelerator.deepspeed_engine_wrapped.engine if deepspeed else model)
    if not accelerator.is_main_process:
        return {}
    return {name: weight.cpu() for name, weight in weights.items() if name not in model.all_tied_weights_keys}


def save_model(
    model: PreTrainedModel, weights: dict, tokenizer: PreTrainedTokenizerBase, card: ModelCard, output: Path
) -> None:
    """Writes what from_pretrained reads, and its checksums, first into a folder in `output`, so that half a model is
    never there.
    """
    temporary = output / ".saving"
    shutil.rmtree(temporary, ignore_errors=True)  # of a run that was killed
    try:
        model.save_pretrained(temporary, state_dict=weights)
        tokenizer.save_pretrained(temporary)
        for path in temporary.glob("*.safetensors"):
            follow_umask(path)
        write_checksums(temporary)
        card.save(temporary / "README.md")
        move_model(list(temporary.iterdir()), output)
    except (OSError, SafetensorError) as error:
        saved = folders(output, CHECKPOINT)
        remedy = "finishes from the last checkpoint" if saved else "begins again: there is no checkpoint"
        raise FileError(
            f"cannot save the model in {output}: {' '.join(str(error).split())}. Make room, then the same command "
            f"with --resume {remedy}"
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def move_model(files: list[Path], output: Path) -> None:
    """Moves a model's files, the list of them last; what an earlier model in `output` had beside them goes.

    from_pretrained would read that, too. A kill on the way leaves a folder that is damaged, and can be finished.
    """
    for path in sorted(files, key=lambda path: path.name == SHA256SUMS):
        if path.name == SHA256SUMS:
            for name in superseded(output, path.parent):
                (output / name).unlink()
        os.replace(path, output / path.name)


def print_results(results: dict[str, float], output: Path) -> None:
    for name, value in results.items():
        print(f"  {name:32}{value:12,d}" if isinstance(value, int) else f"  {name:32}{value:12.4f}")
    names = sorted(path.name for path in output.iterdir() if not path.name.startswith("."))
    print(f"written to {output}: {', '.join(names)}")
