"""Writes the results of a run: metrics.json, the model folder and its card. And uploads them to the Hub.

The card fills in the template card.md: the scores, the origin of the weights, how to use the model, and the recipe.
The licence of weights that started from random ones is that of this project, like the licence of the code that is
saved with them. Other weights have the licence of the checkpoint that they started from, if `LICENSES` or the card in
its folder names it. Otherwise the card names no licence.
"""

from __future__ import annotations

import dataclasses
import glob
import html
import json
import os
import re
import shlex
import shutil
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import huggingface_hub
import torch
import transformers
import yaml
from accelerate import Accelerator
from huggingface_hub import EvalResult, ModelCard, ModelCardData, constants
from huggingface_hub.errors import HfHubHTTPError, HTTPError
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

from elmo_gpt_bert.training import output_folder
from elmo_gpt_bert.training.arguments import RunArguments, hub_model_id, public_arguments
from elmo_gpt_bert.training.command_line import start_of_script
from elmo_gpt_bert.training.errors import FileError
from elmo_gpt_bert.training.files import follow_umask, read_text, write_json, write_text, writing
from elmo_gpt_bert.training.log import finish_trackers
from elmo_gpt_bert.training.optimization import gather_weights, samples_of_update, saved_class
from elmo_gpt_bert.training.output_folder import SEED
from elmo_gpt_bert.training.processes import hardware, versions
from elmo_gpt_bert.training.results import (
    MISMATCHED,
    NUMBER,
    STATISTICS,
    TYPE_SCORES,
    describe_results,
    main_scores,
    markdown_table,
    part_used,
    read_results,
    scores_of,
    types_of,
)
from elmo_gpt_bert.training.task import Description, Task


if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel


TEMPLATE = Path(__file__).with_name("card.md")
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the first, in C, takes a ninth of the time
HEADS = {
    "text-classification": "AutoModelForSequenceClassification",
    "token-classification": "AutoModelForTokenClassification",
    "question-answering": "AutoModelForQuestionAnswering",
    "multiple-choice": "AutoModelForMultipleChoice",
    "fill-mask": "AutoModelForMaskedLM",
    "text-generation": "AutoModelForCausalLM",
    "feature-extraction": "AutoModel",
}
LICENSES = {"google-bert/": "apache-2.0", "openai-community/openai-gpt": "mit"}  # prefixes of Hub ids
PROJECT_LICENSE = "apache-2.0"
SEED_SHOWN = "\nThis is seed "  # begins the part of a card that tells of all seeds
OUTPUT_FLAGS = ("do_predict", "save_outputs", "test_file", "max_predict_samples")  # of files that a later run keeps
UNSHARED = {"resume", "overwrite_output_dir", "push_to_hub", "hub_model_id", "hub_private_repo", "report_to"}


def write_results(
    task: Task,
    results: dict[str, float],
    args: RunArguments,
    accelerator: Accelerator,
    identity: dict[str, Any],
    former: Mapping[str, Any],
) -> None:
    """Writes the model with its card, after training, and metrics.json; prints the results.

    `former` is the metrics.json of a run that has finished before. The folder then holds its model, of which only the
    card is written again, and versions and hardware stay those that trained it. Every process must call it. A reader
    finds each file either old or completely new. Raises OSError if the files cannot be written; the last checkpoint,
    if there is one, then still holds the model.
    """
    accelerator.wait_for_everyone()
    started = time.perf_counter()
    weights = gather_weights(task.model) if args.do_train and not former else None
    if accelerator.is_main_process:
        output = Path(args.output_dir)
        if args.do_train or args.only_evaluates:
            card = model_card(task.model, results, task.description, args, accelerator.num_processes)
            if weights is not None:
                save_model(task, weights, card, output)
            else:
                write_text(output / "README.md", str(card))
        saving = results.get("save_runtime", 0.0) + time.perf_counter() - started
        kept = {name: value for name, value in former.get("args", {}).items() if name in OUTPUT_FLAGS and value}
        record = {
            **results,
            "save_runtime": saving,
            "seed": args.seed,
            "args": public_arguments(args) | ({} if args.do_predict else kept),
            "identity": identity,
            "versions": former.get("versions", versions()),
            "hardware": former.get("hardware", hardware(accelerator)),
        }
        write_json(output / output_folder.METRICS, record)
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
    saved = output_folder.matching_folders(output, output_folder.CHECKPOINT)
    remedy = "continues from the last checkpoint" if saved else "begins again: there is no checkpoint"
    try:
        with writing(output, f"Make room; the same command with --resume {remedy}"):
            task.model.save_pretrained(temporary, state_dict=weights)
            task.tokenizer.save_pretrained(temporary)
            for path in temporary.glob("*.safetensors"):
                follow_umask(path)
            output_folder.write_checksums(temporary)
            card.save(temporary / "README.md")
            move_model(list(temporary.iterdir()), output)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def move_model(files: list[Path], output: Path) -> None:
    """Moves the files of a model to `output`, and removes those of an earlier model that the new one does not have.

    from_pretrained would read them, too. SHA256SUMS is moved last: if the process is killed before, the checksums do
    not fit the files, and the same command with --resume completes the folder.
    """
    for path in sorted(files, key=lambda path: path.name == output_folder.SHA256SUMS):
        if path.name == output_folder.SHA256SUMS:
            for name in output_folder.superseded_files(output, path.parent):
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
    files = [*(["model", "README.md (its card)"] if args.do_train else []), output_folder.METRICS]
    files += output_folder.files_in(output, output_folder.PREDICTION_FILES)
    print(f"written to {output}: {', '.join(files)}")
    if args.do_train and args.next_command and not SEED.fullmatch(output.name):  # a seed's model may be removed
        script = Path(sys.modules[type(args).__module__].__file__).stem
        vectors = start_of_script("extract", module="elmo_gpt_bert.analysis.extraction")
        scripts = {"script": start_of_script(script), "vectors": vectors}
        words = [args.next_command.format(output=shlex.quote(str(output)), **scripts)]
        for name, value in args.repeated_flags(results).items():
            words += [f"--{name}", *([] if value is True else [shlex.quote(str(value))])]
        print("next:", *words)


# The card


def model_card(
    model: PreTrainedModel, results: dict[str, float], description: Description, args: RunArguments, processes: int
) -> ModelCard:
    """The card of a run that trained a model: scores, also as model-index and in comparison with the papers, and use.

    That of a run that only evaluates has scores, also as model-index. Both say how to repeat the run. A split that
    --max_*_samples cuts is marked as such. The scores are then neither in the model-index nor compared.
    """
    is_cut = part_used(results, "validation") or part_used(results, "validation_mm")
    scores, part = {} if is_cut else main_scores(scores_of(results)), part_used(results, "train")
    name = public_arguments(args)["model_name_or_path"]
    head, from_zoo = HEADS[description.task_type], saved_class(model).__module__.startswith("modeling.")
    return ModelCard.from_template(
        card_data(model, scores, description, args),
        str(TEMPLATE),
        trains=args.do_train,
        title=escape(_title(args)),
        class_name=saved_class(model).__name__,
        starting_weights="random weights" if name.endswith(".json") else f"`{name}`",
        part=part,
        data_set=escape(description.trained_on or description.dataset_name),
        evaluated_on=escape(description.dataset_name) if description.trained_on else None,
        score_table=score_table(results, "validation" if args.do_train else "test"),
        # The papers trained on all examples of the same data set.
        comparison=""
        if part or description.trained_on
        else comparison(scores, description.dataset_type, description.dataset_config),
        head=head,
        from_zoo=from_zoo,
        from_transformers=_transformers_reads(model.config, head),
        from_saved_code=from_zoo or head in (getattr(model.config, "auto_map", None) or {}),
        repository=json.dumps(hub_model_id(args)),
        description=description,
        config=model.config,
        processes=processes,
        batch=samples_of_update(args, processes),
        recipe=recipe(args),
    )


def card_data(
    model: PreTrainedModel, scores: dict[str, float], description: Description, args: RunArguments
) -> ModelCardData:
    """The metadata at the top of the card; `scores` are those of a whole validation set."""
    fields = asdict(description)
    shown = {"model_name": _title(args), "language": fields.pop("language")}
    del fields["pairs"], fields["trained_on"]
    shown["eval_results"] = [
        EvalResult(
            **fields | ({"dataset_split": "validation_mismatched"} if name.endswith(MISMATCHED) else {}),
            metric_type=name.removesuffix(MISMATCHED),
            metric_value=value,
        )
        for name, value in scores.items()
    ] or None  # as ModelCardData takes it
    if not args.do_train:
        return ModelCardData(**shown)
    base, data_set = origin(args), description.trained_on or description.dataset_type
    return ModelCardData(
        **shown,
        library_name="transformers",
        pipeline_tag=description.task_type,
        tags=[model.config.model_type, description.task_type],
        license=base.license,
        base_model=base.base_model,
        datasets=data_set if "/" in data_set else None,
    )


def score_table(results: dict[str, float], data_set: str = "validation") -> str:
    """The scores of the validation set as Markdown, then those of each type of entity or phenomenon."""
    scores = scores_of(results)
    rows = [[name, f"{value:.4f}"] for name, value in main_scores(scores).items()]
    if not rows:
        return "It was not evaluated."
    tables = [markdown_table([scored_on(results, data_set), "score"], rows)]
    if types := types_of(scores):
        columns = [name for name in TYPE_SCORES if any(f"{name}_{kind}" in scores for kind in types)]
        rows = [
            [escape(kind), *(f"{scores[f'{name}_{kind}']:.4f}" for name in columns), str(scores[f"{NUMBER}_{kind}"])]
            for kind in types
        ]
        tables.append(markdown_table(["type", *columns, "number"], rows))
    return "\n\n".join(tables)


def with_spread(card: str, best: int, spread: dict[str, float], results: dict[str, float], seeds: int) -> str:
    """The card with the scores of all seeds at its end: the best seed's score alone would flatter the method.

    They replace those of an earlier command with fewer seeds.
    """
    rows = [
        [name, *(f"{spread[f'eval_{name}_{statistic}']:.4f}" for statistic in STATISTICS)]
        for name in main_scores(scores_of(results))
        if f"eval_{name}_mean" in spread  # all seeds have it
    ]
    table = markdown_table([scored_on(results), "mean", "median", "standard deviation", "min", "max"], rows)
    text = f"{best}, the best of {seeds} on the validation set. All seeds:\n\n{table}\n"
    return f"{card.partition(SEED_SHOWN)[0]}{SEED_SHOWN}{text}"


def scored_on(results: dict[str, float], data_set: str = "validation") -> str:
    """The head of a table of scores: the name of the data set and, if it was cut, how many of its examples."""
    text = data_set
    if part := part_used(results, "validation"):
        text += f", {part}"
    if part := part_used(results, "validation_mm"):
        text += f"; of the mismatched part, {part}"
    return text


def recipe(args: RunArguments) -> str:
    """The arguments that differ from their defaults as the YAML of a recipe, without paths.

    Those that no result depends on, and that another user would set otherwise, are left out.
    """
    changed = public_arguments(args)
    for field in dataclasses.fields(args):
        if getattr(args, field.name) == field.default or field.name in UNSHARED:
            changed.pop(field.name, None)
    return yaml.safe_dump(changed, sort_keys=False).strip()


def _title(args: RunArguments) -> str:
    """The name of the model that is saved or, in a run that only evaluates, of the one that is not."""
    name = hub_model_id(args) if args.do_train else public_arguments(args)["model_name_or_path"]
    return name.split("/")[-1]


def _transformers_reads(config: PreTrainedConfig, head: str) -> bool:
    """Whether transformers itself has the model and computes the same: it does not read pairs in both orders."""
    names = getattr(transformers, head)._model_mapping._model_mapping  # model type -> name of the class
    has_model = config.model_type in CONFIG_MAPPING_NAMES and hasattr(transformers, str(names.get(config.model_type)))
    return has_model and not getattr(config, "both_orders", False)


# The papers' scores


def read_papers(path: Path) -> dict[str, dict[str, dict[str, float | None]]]:
    """entry -> system -> score -> the figure, in percent; None: not published."""
    return {
        name: {
            system: dict(zip(entry["scores"], figures, strict=True)) for system, figures in entry["systems"].items()
        }
        for name, entry in yaml.load(read_text(path), LOADER).items()
    }


PAPERS = read_papers(Path(__file__).with_name("papers.yaml"))
# data set, with its configuration -> the entry of the paper that has scores on it
COMPARED = {
    name: entry
    for entry in yaml.load(read_text(Path(__file__).with_name("compared.yaml")), LOADER)
    for name in entry["data"]
}


def comparison(scores: dict[str, float], data_set: str, configuration: str | None) -> str:
    """A Markdown table of `scores` and the papers' scores, on the papers' scale; empty if no paper has scores."""
    name = data_set if configuration is None else f"{data_set} {configuration}"
    if name not in COMPARED or scores.keys().isdisjoint(COMPARED[name]["data"][name]):
        return ""
    entry = COMPARED[name]
    published = entry["data"][name]  # our name of a score -> the paper's
    columns: dict[str, dict[str, float]] = {}
    for figure in entry["figures"]:
        of_system, names = PAPERS[figure["entry"]][figure["system"]], figure.get("scores", published)
        columns.setdefault(figure["column"], {}).update({ours: of_system[names[ours]] for ours in names})
    unit, factor = ("percent", 1) if entry.get("percent") else ("times 100", 100)
    columns = {"this model, validation": {metric: factor * score for metric, score in scores.items()}} | columns
    rows = [
        [metric, *(f"{column[metric]:.1f}" for column in columns.values())] for metric in published if metric in scores
    ]
    return f"\nCompared with the systems of {entry['source']}:\n\n{markdown_table([unit, *columns], rows)}\n"


# Where the weights come from


def origin(args: RunArguments) -> ModelCardData:
    """The licence and the published checkpoint, if any, of the weights that training started from."""
    name = args.model_name_or_path
    if name.endswith(".json"):
        return ModelCardData(license=PROJECT_LICENSE)
    if Path(name).exists():
        return _card_of(Path(name))
    licences = [licence for prefix, licence in LICENSES.items() if name.startswith(prefix)]
    return ModelCardData(license=licences[0] if licences else None, base_model=name)


def _card_of(folder: Path) -> ModelCardData:
    """The metadata of the card in a model folder; empty if there is no card or it cannot be read.

    A checkpoint has the card of its run.
    """
    if output_folder.CHECKPOINT.fullmatch(folder.resolve().name) and not (folder / "README.md").exists():
        folder = folder.resolve().parent
    try:
        return ModelCard.load(folder / "README.md").data
    except (OSError, ValueError, yaml.YAMLError):
        return ModelCardData()


# Text


def escape(text: str) -> str:
    """Escapes a name from data or from a disk, so that Markdown and HTML show it as it is, also in a table."""
    line = html.escape(" ".join(text.split()), quote=False)
    return re.sub(r"([\\`*\[\]|~$])", r"\\\1", line)


# The Hub


# Files that are not pushed: only --resume, an ensemble or a tracker needs them.
LEFT_OUT = ("checkpoint-*", "seed-*/*", "outputs-*.safetensors", "wandb/*", "corpus/*", ".*")
REFUSALS = {
    401: "run `hf auth login` or set HF_TOKEN",
    403: "let the token write there, give another --hub_model_id",
}
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
    listed = (
        output_folder.loaded_names(Path(api.hf_hub_download(name, output_folder.SHA256SUMS)))
        if output_folder.SHA256SUMS in files
        else set()
    )
    return [file for file in files if file in listed or output_folder.PREDICTION_FILES.fullmatch(file)]


def _reason(error: Exception) -> str:
    """The problem and its remedy, in one line."""
    if constants.is_offline_mode():
        return "HF_HUB_OFFLINE is set: unset it"
    if isinstance(error, HfHubHTTPError):
        status = error.response.status_code
        return f"the Hub answered with an error ({status}): {REFUSALS.get(status, 'try again later')}"
    if type(error).__name__ == "XetAuthenticationError":  # where the Hub keeps large files
        return f"the Hub answered with an error (403): {REFUSALS[403]}"
    if isinstance(error, HTTPError):
        return f"it cannot be reached ({str(error) or type(error).__name__}): check the network, try again later"
    remedy = "give another --hub_model_id" if isinstance(error, ValueError) else "correct that"
    return f"{' '.join(str(error).split()).rstrip('.')}: {remedy}"
