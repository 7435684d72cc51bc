"""Parts of a model card: where the weights come from, how the model is used, and names written so that they stay text.

A card names no licence where none is known. Weights that began as random ones have this project's, like the code that
is saved with them; others have that of the checkpoint they began as, if `LICENSES` or the card in its folder says it.
"""

import html
import json
import re
from pathlib import Path

import transformers
import yaml
from huggingface_hub import ModelCard, ModelCardData
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

from training.arguments import RunArguments


LICENSES = {"google-bert/": "apache-2.0", "openai-community/openai-gpt": "mit"}  # Hub ids, or how they begin
OURS = "apache-2.0"


def origin(args: RunArguments) -> ModelCardData:
    """The licence and the published checkpoint, if any, of the weights that the training began with."""
    name = args.model_name_or_path
    if name.endswith(".json"):
        return ModelCardData(license=OURS)
    if Path(name).exists():
        return _card_of(Path(name))
    licences = [licence for start, licence in LICENSES.items() if name.startswith(start)]
    return ModelCardData(license=licences[0] if licences else None, base_model=name)


def _card_of(folder: Path) -> ModelCardData:
    """What the card in a model folder says; nothing where there is none, or none that can be read."""
    try:
        return ModelCard.load(folder / "README.md").data
    except (OSError, ValueError, yaml.YAMLError):
        return ModelCardData()


# How to use


HEADS = {
    "text-classification": "AutoModelForSequenceClassification",
    "token-classification": "AutoModelForTokenClassification",
    "question-answering": "AutoModelForQuestionAnswering",
    "multiple-choice": "AutoModelForMultipleChoice",
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


def usage(model: PreTrainedModel, name: str, task_type: str, pairs: bool) -> str:
    """Markdown with code that loads and uses the model, in each of the ways that there are for it.

    `name` is its repository or, from the folder above, its folder; `pairs`: it classifies pairs of texts.
    """
    head = HEADS[task_type]
    ours = type(model).__module__.startswith("modeling.")
    ways = []
    if ours:
        ways += [("With this project's code (`import modeling`, from its folder or installed):", True, "")]
    if _stock_reads(model.config, head):
        ways += [("With transformers alone:", False, "")]
    if ours or head in (getattr(model.config, "auto_map", None) or {}):
        option = ", trust_remote_code=True"
        ways += [("With the code that is saved beside the weights, which then runs on your machine:", False, option)]
    parts = ["## How to use"]
    for title, registers, option in ways:
        load = "import modeling\n" * registers + f"from transformers import {head}, AutoTokenizer\n\n"
        load += "modeling.register()\n" * registers
        for variable, loader in (("tokenizer", "AutoTokenizer"), ("model", head)):
            load += f"{variable} = {loader}.from_pretrained({json.dumps(name)}{option})\n"
        parts += [title, code_block(load + _example(model.config, task_type, pairs), "python")]
    return "\n\n".join(parts)


def _example(config: PreTrainedConfig, task_type: str, pairs: bool) -> str:
    if task_type != "text-classification":
        return {"token-classification": TAG, "question-answering": ANSWER, "multiple-choice": CHOOSE}[task_type]
    texts = '"A film that is not very good .", "It is bad ."' if pairs else '"A film that is not very good ."'
    number = config.problem_type == "regression"
    return CLASSIFY.format(
        texts=texts, result="logits.item()" if number else "model.config.id2label[logits.argmax().item()]"
    )


def _stock_reads(config: PreTrainedConfig, head: str) -> bool:
    """Whether transformers itself has the model, and reads the same from it: not pairs in both orders."""
    names = getattr(transformers, head)._model_mapping._model_mapping  # model type -> name of the class
    known = config.model_type in CONFIG_MAPPING_NAMES and hasattr(transformers, str(names.get(config.model_type)))
    return known and not getattr(config, "both_orders", False)


# Text


def escape(text: str) -> str:
    """`text`, a name from data or from a disk, so that Markdown and HTML show it as it is, in a table's cell too."""
    line = html.escape(" ".join(text.split()), quote=False)
    return re.sub(r"([\\`*\[\]|~$])", r"\\\1", line)


def code(text: str) -> str:
    """`text` in a line of code, between more backticks than it has itself."""
    line = " ".join(text.split())
    fence = "`" * (_longest(line) + 1)
    return f"{fence} {line} {fence}" if "`" in line else f"{fence}{line}{fence}"


def code_block(text: str, language: str) -> str:
    fence = "`" * max(_longest(text) + 1, 3)
    return f"{fence}{language}\n{text}\n{fence}"


def _longest(text: str) -> int:
    """The most backticks in a row."""
    return max(map(len, re.findall("`+", text)), default=0)
