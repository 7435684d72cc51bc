"""What a run leaves behind: metrics.json, the checkpoint and its model card."""

import dataclasses
import hashlib
import importlib.metadata
import json
import os
import platform
import re
import shutil
import time
from collections.abc import Container
from pathlib import Path
from typing import Any

import torch
import yaml
from accelerate import Accelerator, DistributedType
from huggingface_hub import EvalResult, ModelCard, ModelCardData
from safetensors import SafetensorError
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from training import cards, published
from training.arguments import RunArguments, hub_model_id, public_arguments
from training.checkpoints import FOLDER, FREE, HALF_WRITTEN, IDENTITY, folders, remove
from training.checksums import NAME as SHA256SUMS
from training.checksums import file_digest, follow_umask, superseded, write_checksums
from training.files import parse_json, read_text, write_atomically
from training.samples import first_of, is_cut


# What stands beside the scores of a task: losses, times, counts, SQuAD's numbers of questions and its thresholds.
BESIDE = re.compile(r"eval_(loss|runtime|predicted_classes|samples).*|eval_(.*_)?(total|thresh)(_mean)?")
OUTPUTS = re.compile(r"outputs-[0-9a-f]{16}\.safetensors")
PREDICTIONS = r"predictions(_mm|_validation)?\.(tsv|csv|json|conll)|(nbest_predictions|null_odds)(_validation)?\.json"
RESULTS = re.compile(rf"metrics\.json|{PREDICTIONS}|{OUTPUTS.pattern}")
CHECKPOINTS = (FOLDER, HALF_WRITTEN)
SEED = re.compile(r"seed-(\d+)")
CIRCUMSTANCES = ("seed", "args", "identity", "versions", "hardware")  # what metrics.json holds beside results


def remove_earlier_results(args: RunArguments, accelerator: Accelerator) -> None:
    """Removes scores, predictions, kept outputs and training checkpoints of an earlier run that output_dir holds.

    Beside the new ones they would pass for theirs. To be called when all that a run reads has been read, so that a
    typo costs nothing. The earlier run's model and card stay until new ones replace them; its checkpoints go with a
    new training.
    """
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        remove_results(Path(args.output_dir), *(CHECKPOINTS if args.do_train and not args.resume else ()))


def remove_results(output: Path, *kinds: re.Pattern) -> None:
    """Removes scores, predictions and kept outputs, and the folders of these `kinds` of names."""
    for path in [path for path in output.glob("*") if path.is_file() and RESULTS.fullmatch(path.name)]:
        path.unlink()
    for path in [path for kind in kinds for path in folders(output, kind)]:
        remove(path)


def finish(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    results: dict[str, float],
    data: dict[str, Any],
    args: RunArguments,
    accelerator: Accelerator,
) -> None:
    """Writes, after training, the model and its card, then metrics.json; prints the results.

    `data` says what the scores were measured on: task_type, dataset_type, ... of huggingface_hub's EvalResult, the
    `language` of the texts where it is known, and whether examples are `pairs` of texts. To be called by every
    process. Each file is the old one or the whole new one. Raises OSError where the disk does not take them; the last
    checkpoint, if there is one, then still holds the model.
    """
    accelerator.wait_for_everyone()
    started = time.perf_counter()
    weights = whole_weights(model, accelerator) if args.do_train else None
    if accelerator.is_main_process:
        output = Path(args.output_dir)
        if args.do_train:
            card = model_card(model, results, data, args, accelerator.num_processes)
            save_model(model, weights, tokenizer, card, output)
        saving = results.get("save_runtime", 0.0) + time.perf_counter() - started
        record = {
            **results,
            "save_runtime": saving,
            "seed": args.seed,
            "args": public_arguments(args),
            "identity": identity(args),
            "versions": versions(),
            "hardware": hardware(accelerator),
        }
        write_atomically(output / "metrics.json", json.dumps(record, indent=2, allow_nan=False) + "\n")
        print_results(results, output)
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
    """Writes what from_pretrained reads, and its checksums, first beside its place: half a model is never there."""
    temporary = output / ".saving"
    shutil.rmtree(temporary, ignore_errors=True)  # of a run that was killed
    try:
        model.save_pretrained(temporary, state_dict=weights)
        tokenizer.save_pretrained(temporary)
        for path in temporary.glob("*.safetensors"):
            follow_umask(path)
        write_checksums(temporary)
        card.save(temporary / "README.md")
        _move(list(temporary.iterdir()), output)
    except (OSError, SafetensorError) as error:
        kept = (
            "finishes from the last checkpoint" if folders(output, FOLDER) else "begins again: there is no checkpoint"
        )
        raise OSError(
            f"cannot save the model in {output}: {' '.join(str(error).split())}. Make room, then the same command "
            f"with --resume {kept}"
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _move(files: list[Path], output: Path) -> None:
    """Moves a model's files, the list of them last; what an earlier model in `output` had beside them goes.

    from_pretrained would read that, too. A kill on the way leaves a folder that is damaged, and can be finished.
    """
    for path in sorted(files, key=lambda path: path.name == SHA256SUMS):
        if path.name == SHA256SUMS:
            for name in superseded(output, path.parent):
                (output / name).unlink()
        os.replace(path, output / path.name)


def keep_best(
    output: Path,
    best: int,
    runs: dict[int, dict[str, float]],
    replaced: dict[int, dict[str, float]],
    results: dict[str, float],
    args: RunArguments,
) -> None:
    """Moves the model of seed `best` from OUTPUT/seed-N to OUTPUT, and says there what every seed scored.

    What --save_outputs kept stays with its seed.
    """
    folder, earlier = output / f"seed-{best}", output / "metrics.json"
    moved = not (folder / "README.md").is_file()  # by an earlier call
    if moved and not (earlier.is_file() and read_record(earlier)["seed"] == best):
        raise ValueError(
            f"{folder} was not the best of the seeds of an earlier command, and its model is gone: give other seeds, "
            "or as many, another --output_dir"
        )
    record = read_record(folder / "metrics.json")
    if not moved:
        card = (folder / "README.md").read_text(encoding="utf-8")
        stay = ("metrics.json", "README.md", ".lock", IDENTITY)
        files = [path for path in folder.iterdir() if path.is_file() and path.name not in stay]
        _move([path for path in files if not OUTPUTS.fullmatch(path.name)], output)
        write_atomically(output / "README.md", card + spread_card(best, results, len(runs)))
    for path in folders(output, SEED):
        for checkpoint in folders(path, FOLDER):
            remove(checkpoint)
    record |= {**results, "seed": best, "args": public_arguments(args), "runs": runs, "replaced_runs": replaced}
    write_atomically(output / "metrics.json", json.dumps(record, indent=2, allow_nan=False) + "\n")
    (folder / "README.md").unlink(missing_ok=True)  # last, for it says that not all of this has been done
    print_results(results, output)


def spread_card(best: int, results: dict[str, float], seeds: int) -> str:
    """The part of the card that keeps the best seed's score from passing for the method's."""
    names = [name.removesuffix("_mean") for name in results if name.startswith("eval_") and name.endswith("_mean")]
    rows = [
        f"| {name.removeprefix('eval_')} | "
        + " | ".join(f"{results[f'{name}_{what}']:.4f}" for what in ("mean", "median", "std", "min", "max"))
        + " |"
        for name in names
        if not BESIDE.fullmatch(name)
    ]
    head = f"| {scored_on(results)} | mean | median | standard deviation | min | max |"
    table = "\n".join([head, "|---" * 6 + "|", *rows])
    return f"\nThis is seed {best}, the best of {seeds} on the validation set. All of them:\n\n{table}\n"


def print_results(results: dict[str, float], output: Path) -> None:
    for name, value in results.items():
        print(f"  {name:32}{value:12,d}" if isinstance(value, int) else f"  {name:32}{value:12.4f}")
    names = sorted(path.name for path in output.iterdir() if not path.name.startswith("."))
    print(f"written to {output}: {', '.join(names)}")


def read_record(path: Path) -> dict[str, Any]:
    """A metrics.json. Raises ValueError where it is damaged, or its seed or one of its parts is of another type."""
    try:
        record = parse_json(read_text(path))
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({error}): copy it again, or repeat its run") from error
    is_ours = isinstance(record, dict) and type(record.get("seed")) is int
    if not (is_ours and all(isinstance(record.get(name, {}), dict) for name in ("args", "runs", "replaced_runs"))):
        raise ValueError(f"{path} is not what a run writes: copy it again, or repeat its run")
    return record


def identity(args: RunArguments) -> str:
    """Tells the arguments that decide a run's results, and the data files and the configuration that they name, from
    any others, without showing what metrics.json does not.
    """
    free = FREE - {"test_file", "max_predict_samples"}  # a finished seed keeps its predictions
    values = {name: value for name, value in dataclasses.asdict(args).items() if name not in free}
    model = Path(args.model_name_or_path)
    files = [model / "config.json" if model.is_dir() else model]
    files += [Path(values[name]) for name in ("train_file", "validation_file", "test_file") if values.get(name)]
    contents = [file_digest(path) for path in files if path.is_file()]
    return hashlib.sha256(json.dumps([values, contents], sort_keys=True).encode()).hexdigest()


def versions() -> dict[str, str]:
    packages = ["transformers", "accelerate", "datasets", "elmo-gpt-bert"]
    found = {"python": platform.python_version(), "torch": torch.__version__}  # with its build, +cpu or +cu130
    for name in packages:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:  # run from a checkout
            found[name] = "not installed"
    return found


def hardware(accelerator: Accelerator) -> dict[str, str | int]:
    return {
        "device": device_name(accelerator.device),
        "machine": platform.machine(),
        "processes": accelerator.num_processes,
        "threads": torch.get_num_threads(),
    }


def device_name(device: torch.device) -> str:
    """The GPU's or the processor's own name."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        model = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text(encoding="utf-8"))
    except OSError:
        model = None
    return model.group(1) if model else platform.processor() or platform.machine()


def recipe(args: RunArguments) -> str:
    """The arguments that are not their defaults, as a recipe's YAML, as strangers may see them."""
    changed = public_arguments(args)
    for field in dataclasses.fields(args):
        if getattr(args, field.name) == field.default or field.name in ("resume", "overwrite_output_dir"):
            del changed[field.name]
    return yaml.safe_dump(changed, sort_keys=False).strip()


def is_of_a_type(name: str, results: Container[str]) -> bool:
    """Whether a score is one of those for each type of entity, as eval_f1_PER beside eval_number_PER."""
    split, _, metric = name.partition("_")
    return f"{split}_number_{metric.partition('_')[2]}" in results


def type_table(results: dict[str, float]) -> str:
    """The scores of each type of entity as Markdown; empty where there are none."""
    types = sorted(name.removeprefix("eval_number_") for name in results if name.startswith("eval_number_"))
    columns = ("precision", "recall", "f1")
    rows = [
        f"| {cards.escape(kind)} | "
        + " | ".join(f"{results[f'eval_{column}_{kind}']:.4f}" for column in columns)
        + f" | {results[f'eval_number_{kind}']} |"
        for kind in types
    ]
    head = ["", "", f"| type | {' | '.join(columns)} | entities |", "|---|---|---|---|---|"]
    return "\n".join(head + rows) if rows else ""


def model_card(
    model: PreTrainedModel, results: dict[str, float], data: dict[str, Any], args: RunArguments, processes: int
) -> ModelCard:
    """The Hub's README: the scores, as model-index and beside the papers', how to use the model, and the recipe that
    repeats the run. `data` is what `finish` takes.
    """
    scores = {
        name.removeprefix("eval_"): value
        for name, value in results.items()
        if name.startswith("eval_") and not BESIDE.fullmatch(name) and not is_of_a_type(name, results)
    }
    cut = [split for split in ("validation", "validation_mm") if is_cut(results, split)]
    whole = {name: value for name, value in scores.items() if _split_of(name) not in cut}
    beside = ""
    if not is_cut(results, "train"):  # the papers trained on all
        beside = published.comparison(whole, data["dataset_type"], data.get("dataset_config"))
    trained = f"{first_of(results, 'train')} of " if is_cut(results, "train") else ""
    batch = args.per_device_train_batch_size * args.gradient_accumulation_steps * processes
    return ModelCard(f"""---
{card_data(model, whole, data, args).to_yaml()}
---

# {cards.escape(_title(args))}

`{type(model).__name__}` from {_start(args)}, trained on {trained}{cards.escape(data["dataset_name"])}.

{score_table(results, scores)}
{beside}
{cards.usage(model, hub_model_id(args), data["task_type"], data.get("pairs", False))}

## Recipe

It repeats this run, on {processes} process{"es" if processes > 1 else ""}, so with batches of {batch} examples. \
What it does not name has its default; files and folders are named without the path to them.

{cards.code_block(recipe(args), "yaml")}
""")


def card_data(
    model: PreTrainedModel, scores: dict[str, float], data: dict[str, Any], args: RunArguments
) -> ModelCardData:
    """The card's head; `scores` are those of whole sets."""
    origin, data_set = cards.origin(args), data["dataset_type"]
    measured = {name: value for name, value in data.items() if name not in ("language", "pairs")}
    results = [
        EvalResult(
            **measured | ({"dataset_split": "validation_mismatched"} if name.endswith("_mm") else {}),
            metric_type=name.removesuffix("_mm"),
            metric_value=value,
        )
        for name, value in scores.items()
    ]
    return ModelCardData(
        model_name=_title(args),
        library_name="transformers",
        pipeline_tag=data["task_type"],
        tags=[model.config.model_type, data["task_type"]],
        language=data.get("language"),
        license=origin.license,
        base_model=origin.base_model,
        datasets=data_set if "/" in data_set else None,
        eval_results=results or None,
    )


def score_table(results: dict[str, float], scores: dict[str, float]) -> str:
    if not scores:
        return "It was not evaluated."
    rows = [f"| {name} | {value:.4f} |" for name, value in scores.items()]
    return "\n".join([f"| {scored_on(results)} | score |", "|---|---|", *rows]) + type_table(results)


def scored_on(results: dict[str, float]) -> str:
    """The head of a table of scores: the validation set or, where it was cut, how much of it."""
    text = "validation"
    if is_cut(results, "validation"):
        text += f", {first_of(results, 'validation')}"
    if is_cut(results, "validation_mm"):
        text += f"; of the mismatched part, {first_of(results, 'validation_mm')}"
    return text


def _split_of(score: str) -> str:
    return "validation_mm" if score.endswith("_mm") else "validation"


def _start(args: RunArguments) -> str:
    if args.model_name_or_path.endswith(".json"):
        return "random weights"
    return cards.code(public_arguments(args)["model_name_or_path"])


def _title(args: RunArguments) -> str:
    return hub_model_id(args).split("/")[-1]
