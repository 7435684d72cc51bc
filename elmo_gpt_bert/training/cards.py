"""Writes model cards: the scores, the origin of the weights, how to use the model, and the recipe.

The licence of weights that started from random ones is that of this project, like the licence of the code that is
saved with them. Other weights have the licence of the checkpoint that they started from, if `LICENSES` or the card in
its folder names it. Otherwise the card names no licence.
"""

from __future__ import annotations

import dataclasses
import html
import json
import re
from dataclasses import asdict, astuple
from pathlib import Path
from typing import TYPE_CHECKING

import transformers
import yaml
from huggingface_hub import EvalResult, ModelCard, ModelCardData
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

from elmo_gpt_bert.training import published
from elmo_gpt_bert.training.arguments import RunArguments, hub_model_id, public_arguments
from elmo_gpt_bert.training.layers import saved_class
from elmo_gpt_bert.training.optimization import samples_of_update
from elmo_gpt_bert.training.output_folder import CHECKPOINT
from elmo_gpt_bert.training.results import MISMATCHED, NUMBER, TYPE_SCORES, Results, SeedSpread
from elmo_gpt_bert.training.task import Description


if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel


LICENSES = {"google-bert/": "apache-2.0", "openai-community/openai-gpt": "mit"}  # prefixes of Hub ids
PROJECT_LICENSE = "apache-2.0"
SEED_SHOWN = "\nThis is seed "  # begins the part of a card that tells of all seeds
UNSHARED = {"resume", "overwrite_output_dir", "push_to_hub", "hub_model_id", "hub_private_repo", "report_to"}


def model_card(
    model: PreTrainedModel, results: Results, description: Description, args: RunArguments, processes: int
) -> ModelCard:
    """The card: scores, as model-index and in comparison with the papers, how to use the model, and the recipe.

    A split that --max_*_samples cuts is marked as such. Its scores are neither in the model-index nor compared.
    """
    uncut = [suffix for suffix in results.validation if not _is_cut(results, f"validation{suffix}")]
    scores = {
        f"{name}{suffix}": value for suffix in uncut for name, value in results.validation[suffix].scores.items()
    }
    comparison = published.comparison(scores, description.dataset_type, description.dataset_config)
    first_examples = ""
    if _is_cut(results, "train"):  # the papers trained on all examples
        comparison, first_examples = "", f"{results.samples['train'].first} of "
    batch = samples_of_update(args, processes)
    return ModelCard(f"""---
{card_data(model, scores, description, args).to_yaml()}
---

# {escape(_title(args))}

`{saved_class(model).__name__}` from {_starting_weights(args)}, \
trained on {first_examples}{escape(description.dataset_name)}.

{score_table(results)}
{comparison}
{usage(model, hub_model_id(args), description.task_type, description.pairs)}

## Recipe

It repeats this run, on {processes} process{"es" if processes > 1 else ""}, so with batches of {batch} examples. \
What it does not name has its default; files and folders are named without the path to them.

{code_block(recipe(args), "yaml")}
""")


def evaluation_card(
    model: PreTrainedModel, results: Results, description: Description, args: RunArguments
) -> ModelCard:
    """The card of a run that only evaluates: the scores, also as model-index, and how to repeat the run."""
    name = public_arguments(args)["model_name_or_path"]
    whole = not _is_cut(results, "validation")
    metadata = ModelCardData(
        model_name=Path(name).name,
        language=description.language,
        eval_results=evaluated(results.validation[""].scores, description) if whole else None,
    )
    return ModelCard(f"""---
{metadata.to_yaml()}
---

# Scores of {escape(Path(name).name)}

`{saved_class(model).__name__}` from {_starting_weights(args)} was evaluated on {escape(description.dataset_name)}.
This folder holds its scores, not the model.

{score_table(results, "test")}

## Recipe

It repeats this run. What it does not name has its default; files and folders are named without the path to them.

{code_block(recipe(args), "yaml")}
""")


def card_data(
    model: PreTrainedModel, scores: dict[str, float], description: Description, args: RunArguments
) -> ModelCardData:
    """The metadata at the top of the card; `scores` are those of splits that were not cut."""
    base, data_set = origin(args), description.dataset_type
    return ModelCardData(
        model_name=_title(args),
        library_name="transformers",
        pipeline_tag=description.task_type,
        tags=[model.config.model_type, description.task_type],
        language=description.language,
        license=base.license,
        base_model=base.base_model,
        datasets=data_set if "/" in data_set else None,
        eval_results=evaluated(scores, description),
    )


def evaluated(scores: dict[str, float], description: Description) -> list[EvalResult] | None:
    """The entries of the model-index; None, as ModelCardData takes it, where there are none."""
    fields = asdict(description)
    del fields["language"], fields["pairs"]
    return [
        EvalResult(
            **fields | ({"dataset_split": "validation_mismatched"} if name.endswith(MISMATCHED) else {}),
            metric_type=name.removesuffix(MISMATCHED),
            metric_value=value,
        )
        for name, value in scores.items()
    ] or None


def score_table(results: Results, data_set: str = "validation") -> str:
    """The scores of the validation set as Markdown, then those of each type of entity or phenomenon."""
    validation = results.validation
    scores = {f"{name}{suffix}": v for suffix, of_set in validation.items() for name, v in of_set.scores.items()}
    if not scores:
        return "It was not evaluated."
    rows = [f"| {name} | {value:.4f} |" for name, value in scores.items()]
    types = "".join(type_table(of_set.types) for of_set in validation.values())
    return "\n".join([f"| {scored_on(results, data_set)} | score |", "|---|---|", *rows]) + types


def type_table(types: dict[str, dict[str, float]]) -> str:
    """The scores of each type of entity or phenomenon as Markdown; empty where there are none."""
    columns = [name for name in TYPE_SCORES if any(name in values for values in types.values())]
    rows = []
    for kind, values in types.items():
        scores = " | ".join(f"{values[name]:.4f}" for name in columns)
        rows.append(f"| {escape(kind)} | {scores} | {values[NUMBER]} |")
    head = ["", "", f"| type | {' | '.join(columns)} | number |", "|---" * (len(columns) + 2) + "|"]
    return "\n".join(head + rows) if rows else ""


def with_spread(card: str, best: int, spread: SeedSpread, results: Results, seeds: int) -> str:
    """The card with the scores of all seeds at its end: the best seed's score alone would flatter the method.

    They replace those of an earlier command with fewer seeds.
    """
    rows = [
        f"| {name} | " + " | ".join(f"{value:.4f}" for value in astuple(spread.validation[name])) + " |"
        for name in spread.ranked
    ]
    head = f"| {scored_on(results)} | mean | median | standard deviation | min | max |"
    table = "\n".join([head, "|---" * 6 + "|", *rows])
    text = f"{best}, the best of {seeds} on the validation set. All seeds:\n\n{table}\n"
    return f"{card.partition(SEED_SHOWN)[0]}{SEED_SHOWN}{text}"


def scored_on(results: Results, data_set: str = "validation") -> str:
    """The head of a table of scores: the name of the data set and, if it was cut, how many of its examples."""
    text = data_set
    if _is_cut(results, "validation"):
        text += f", {results.samples['validation'].first}"
    if _is_cut(results, "validation_mm"):
        text += f"; of the mismatched part, {results.samples['validation_mm'].first}"
    return text


def _is_cut(results: Results, split: str) -> bool:
    return split in results.samples and results.samples[split].is_cut


def recipe(args: RunArguments) -> str:
    """The arguments that differ from their defaults as the YAML of a recipe, without paths.

    Those that no result depends on, and that another user would set otherwise, are left out.
    """
    changed = public_arguments(args)
    for field in dataclasses.fields(args):
        if getattr(args, field.name) == field.default or field.name in UNSHARED:
            changed.pop(field.name, None)
    return yaml.safe_dump(changed, sort_keys=False).strip()


def _starting_weights(args: RunArguments) -> str:
    if args.model_name_or_path.endswith(".json"):
        return "random weights"
    return code(public_arguments(args)["model_name_or_path"])


def _title(args: RunArguments) -> str:
    return hub_model_id(args).split("/")[-1]


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
    if CHECKPOINT.fullmatch(folder.resolve().name) and not (folder / "README.md").exists():
        folder = folder.resolve().parent
    try:
        return ModelCard.load(folder / "README.md").data
    except (OSError, ValueError, yaml.YAMLError):
        return ModelCardData()


# How to use


USE = "## How to use"
HEADS = {
    "text-classification": "AutoModelForSequenceClassification",
    "token-classification": "AutoModelForTokenClassification",
    "question-answering": "AutoModelForQuestionAnswering",
    "multiple-choice": "AutoModelForMultipleChoice",
    "fill-mask": "AutoModelForMaskedLM",
    "text-generation": "AutoModelForCausalLM",
    "feature-extraction": "AutoModel",
}
CLASSIFY = """inputs = tokenizer({texts}, return_tensors="pt")
logits = model(**inputs).logits[0]
print({result})"""
TAG = """words = "Ada Lovelace lived in London .".split()
inputs = tokenizer(words, is_split_into_words=True, return_tensors="pt")
tokens = model(**inputs).logits[0].argmax(-1).tolist()
print([model.config.id2label[token] for token in tokens])"""
ANSWER = """inputs = tokenizer("Who wrote it ?", "It was Ada Lovelace who wrote it .", return_tensors="pt")
outputs = model(**inputs)
start, end = outputs.start_logits[0].argmax(), outputs.end_logits[0].argmax()
print(tokenizer.decode(inputs["input_ids"][0][start : end + 1]))"""
CHOOSE = """choices = ["and went out .", "and ate it ."]
inputs = tokenizer(["She opened the door"] * len(choices), choices, padding=True, return_tensors="pt")
inputs = {name: values.unsqueeze(0) for name, values in inputs.items()}
print(choices[model(**inputs).logits[0].argmax()])"""

FILL = """inputs = tokenizer(f"She opened the {tokenizer.mask_token} .", return_tensors="pt")
logits = model(**inputs).logits[inputs["input_ids"] == tokenizer.mask_token_id]
print(tokenizer.decode(logits.argmax(-1)))"""
GENERATE = """inputs = tokenizer("she opened the door", return_tensors="pt")
print(tokenizer.decode(model.generate(**inputs, max_new_tokens=20)[0]))"""
EMBED = """inputs = tokenizer("She opened the door .", return_tensors="pt")
print(model(**inputs).last_hidden_state.shape)"""
EXAMPLES = {"token-classification": TAG, "question-answering": ANSWER, "multiple-choice": CHOOSE}
EXAMPLES |= {"fill-mask": FILL, "text-generation": GENERATE, "feature-extraction": EMBED}


SAVED_CODE = "With the code that is saved beside the weights, which then runs on your machine:"


def usage(model: PreTrainedModel, name: str, task_type: str, pairs: bool) -> str:
    """Markdown with code that loads and uses the model, for each way to load it.

    name: the model's repository, or its folder as seen from the folder above
    pairs: whether it classifies pairs of texts
    """
    head = HEADS[task_type]
    from_zoo = saved_class(model).__module__.startswith("modeling.")
    ways = []
    if from_zoo:
        ways += [("With this project's code (`import modeling`, from its folder or installed):", True, "")]
    if _transformers_reads(model.config, head):
        ways += [("With transformers alone:", False, "")]
    if from_zoo or head in (getattr(model.config, "auto_map", None) or {}):
        option = ", trust_remote_code=True"
        ways += [(SAVED_CODE, False, option)]
    parts = [USE]
    for title, registers, option in ways:
        load = "import modeling\n" * registers + f"from transformers import {head}, AutoTokenizer\n\n"
        load += "modeling.register()\n" * registers
        for variable, loader in (("tokenizer", "AutoTokenizer"), ("model", head)):
            load += f"{variable} = {loader}.from_pretrained({json.dumps(name)}{option})\n"
        parts += [title, code_block(load + _example(model.config, task_type, pairs), "python")]
    return "\n\n".join(parts)


def _example(config: PreTrainedConfig, task_type: str, pairs: bool) -> str:
    if task_type != "text-classification":
        return EXAMPLES[task_type]
    texts = '"A film that is not very good .", "It is bad ."' if pairs else '"A film that is not very good ."'
    number = config.problem_type == "regression"
    return CLASSIFY.format(
        texts=texts, result="logits.item()" if number else "model.config.id2label[logits.argmax().item()]"
    )


def _transformers_reads(config: PreTrainedConfig, head: str) -> bool:
    """Whether transformers itself has the model and computes the same: it does not read pairs in both orders."""
    names = getattr(transformers, head)._model_mapping._model_mapping  # model type -> name of the class
    has_model = config.model_type in CONFIG_MAPPING_NAMES and hasattr(transformers, str(names.get(config.model_type)))
    return has_model and not getattr(config, "both_orders", False)


# Text


def escape(text: str) -> str:
    """Escapes a name from data or from a disk, so that Markdown and HTML show it as it is, also in a table."""
    line = html.escape(" ".join(text.split()), quote=False)
    return re.sub(r"([\\`*\[\]|~$])", r"\\\1", line)


def code(text: str) -> str:
    """`text` as inline code, between more backticks than it contains."""
    line = " ".join(text.split())
    fence = "`" * (_longest(line) + 1)
    return f"{fence} {line} {fence}" if "`" in line else f"{fence}{line}{fence}"


def code_block(text: str, language: str) -> str:
    """`text` as a fenced block, with a fence longer than any in `text`."""
    fence = "`" * max(_longest(text) + 1, 3)
    return f"{fence}{language}\n{text}\n{fence}"


def _longest(text: str) -> int:
    """The length of the longest row of backticks."""
    return max(map(len, re.findall("`+", text)), default=0)
