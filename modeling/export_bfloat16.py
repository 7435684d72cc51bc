"""A model folder -> the same model with weights in bfloat16, in half the space, for people who have this package.

    python -m modeling.export_bfloat16 --model runs/bert/bert-books --output checkpoints/bert-books \\
        --evaluations runs/bert/blimp

The output has the configuration, the tokenizer, the weights and the card. It leaves out the copy of our code, with
which a folder works without this package; `save_pretrained` adds it again. Weights are stored in bfloat16, with 8 bits
of precision, and load in the type that the configuration names, so in float32 if the model was trained in it.

A checkpoint of a run that goes on, or was cut, may be the model, too. It has no card.

`--evaluations` are output folders of scripts that only evaluate, such as run_blimp.py. The card gets their scores.
"""

import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import torch
from huggingface_hub import ModelCard
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from transformers.hf_argparser import HfArg

from elmo_gpt_bert.training.cards import add_evaluations, renamed, without_code
from elmo_gpt_bert.training.checksums import damage, listed_files
from elmo_gpt_bert.training.errors import FileError, InputError, Parameter
from elmo_gpt_bert.training.output_folder import CHECKPOINT

from .conversion import command_line, new_folder, read_json, read_text, write_folder


MODEL, EVALUATIONS = Parameter("model"), Parameter("evaluations")
WEIGHTS = "model.safetensors"


def export(model: str, output: str, evaluations: list[str] | None = None) -> None:
    """Writes the folder `output`, which must be new or empty.

    Raises:
        OSError: when a file is missing or damaged, or `output` holds something.
        ValueError: when `model` is no folder of a finished run and no checkpoint, when a folder of `evaluations` has
            no card, and for evaluations of a checkpoint.
    """
    new_folder(output)
    source = Path(model)
    problem = damage(source)
    if problem:
        raise FileError(MODEL, f" {model}: {problem}. Give the output folder of a finished run")
    names = listed_files(source)
    if WEIGHTS not in names:
        raise InputError(MODEL, f" {model} has no {WEIGHTS}: weights in several files are not supported")
    card = _make_card(source, evaluations or [])
    weights = _read_weights(source / WEIGHTS)

    def write(folder: Path) -> None:
        for name in names:
            if name.endswith("config.json"):
                values = read_json(source / name)
                values.pop("auto_map", None)  # it names files of the code
                (folder / name).write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
            elif not name.endswith((".py", WEIGHTS, ".bin", ".pkl")):  # code, weights, and what resumes a run
                shutil.copyfile(source / name, folder / name)
        save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})
        if card is not None:
            (folder / "README.md").write_text(str(renamed(card, Path(output).name)), encoding="utf-8")

    write_folder(output, write)
    size = sum(path.stat().st_size for path in Path(output).iterdir())
    print(f"{output}: {sum(tensor.numel() for tensor in weights.values()):,} parameters, {size / 1e6:.1f} MB")


def _read_weights(path: Path) -> dict[str, torch.Tensor]:
    """The tensors of the file, those of floating point numbers in bfloat16."""
    try:
        tensors = load_file(path)
    except SafetensorError as error:
        raise FileError(f"{path}: {error}") from error
    return {name: tensor.bfloat16() if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}


def _make_card(source: Path, evaluations: list[str]) -> ModelCard | None:
    """The card in `source` with the scores of `evaluations`; None for a checkpoint."""
    if CHECKPOINT.fullmatch(source.name):
        if evaluations:
            raise InputError(
                EVALUATIONS, f": {source} is a checkpoint and has no card for their scores: leave them out"
            )
        return None
    card = without_code(ModelCard(read_text(source / "README.md")))
    return add_evaluations(card, [_read_evaluation(Path(folder)) for folder in evaluations])


def _read_evaluation(folder: Path) -> ModelCard:
    card = ModelCard(read_text(folder / "README.md"))
    if "# Scores of" not in card.text:
        raise InputError(EVALUATIONS, f" {folder}: its README.md is not the card of a run that only evaluates")
    return card


@dataclass(frozen=True)
class ExportArguments:
    """The arguments of the command, those of `export`."""

    model: str = HfArg(help="the output folder of a run, or one of its checkpoints")
    output: str = HfArg(help="the folder to write; must be new or empty")
    evaluations: list[str] = field(
        default_factory=list, metadata={"help": "output folders of evaluations, whose scores the card gets"}
    )


def main(argv: list[str] | None = None) -> None:
    """Calls `export` with the arguments in `argv`, by default those of the command line."""
    command_line(export, ExportArguments, argv)


if __name__ == "__main__":
    main()
