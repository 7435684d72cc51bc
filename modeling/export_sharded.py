"""A checkpoint whose model several processes wrote in parts, with FSDP2 or DeepSpeed -> a model folder.

    python -m modeling.export_sharded --checkpoint runs/bert/mnli/checkpoint-500 --output bert-mnli

A run puts the parts together itself when it ends. This command is for a run that did not end, or for an earlier
checkpoint of it. It needs the memory of the whole model, and no GPU. The weights are in float32, as the optimizer has
them.
"""

import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers
from accelerate.utils import is_deepspeed_available, merge_fsdp_weights
from safetensors.torch import load_file
from transformers import AutoTokenizer, PreTrainedModel
from transformers.hf_argparser import HfArg

import modeling
from elmo_gpt_bert.training.checksums import damage, write_checksums
from elmo_gpt_bert.training.errors import FileError, InputError, PackageError, Parameter
from elmo_gpt_bert.training.output_folder import DEEPSPEED_PARTS, FSDP_PARTS
from elmo_gpt_bert.training.pickles import danger

from .bert import configuration_bert
from .conversion import command_line, new_folder, read_json, write_folder
from .gpt import configuration_gpt


CHECKPOINT = Parameter("checkpoint")
OURS = {stock: name for family in (configuration_bert, configuration_gpt) for name, stock in family.STOCK.items()}


def export(checkpoint: str, output: str) -> None:
    """Writes the folder `output`, which must be new or empty: the model, our code and the tokenizer.

    Raises:
        OSError: when a file is missing or damaged, or `output` holds something.
        ValueError: when `checkpoint` holds no model in parts.
    """
    new_folder(output)
    source = Path(checkpoint)
    if not any((source / parts).is_dir() for parts in (FSDP_PARTS, DEEPSPEED_PARTS)):
        raise InputError(
            CHECKPOINT, f" {checkpoint} holds no model in parts: give a checkpoint-N of FSDP2 or DeepSpeed"
        )
    if problem := damage(source) or danger(source):
        raise FileError(CHECKPOINT, f" {checkpoint}: {problem}. Give another checkpoint, or copy it again")
    model = _build(_model_class(source), _merge(source), source)

    def write(folder: Path) -> None:
        model.save_pretrained(folder)
        AutoTokenizer.from_pretrained(source).save_pretrained(folder)
        write_checksums(folder)

    write_folder(output, write)


def _model_class(source: Path) -> type[PreTrainedModel]:
    """The class of the model, and its implementation made the one that Auto classes find."""
    config = read_json(source / "config.json")
    (name,) = config.get("architectures") or [None]
    is_ours = "auto_map" in config  # then transformers' class has the name of one of ours
    (modeling.register if is_ours else modeling.unregister)()
    library, names = (modeling, OURS) if is_ours else (transformers, {})
    model_class = getattr(library, names.get(name, str(name)), None)
    if model_class is None:
        raise InputError(f'{source / "config.json"} has the "architectures" {name}, which is no class of a model')
    return model_class


def _merge(source: Path) -> dict[str, torch.Tensor]:
    """The whole weights."""
    if (source / FSDP_PARTS).is_dir():
        with tempfile.TemporaryDirectory() as folder:
            merge_fsdp_weights(str(source / FSDP_PARTS), folder)
            return load_file(Path(folder, "model.safetensors"))
    if not is_deepspeed_available():
        raise PackageError(f"{source} was written by DeepSpeed, which is not installed: pip install deepspeed")
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

    return get_fp32_state_dict_from_zero_checkpoint(str(source))


def _build(model_class: type[PreTrainedModel], weights: dict[str, torch.Tensor], source: Path) -> PreTrainedModel:
    """The model with these weights, each tied weight once. Raises ValueError if one is missing."""
    config = model_class.config_class.from_pretrained(source)
    with torch.device("meta"):
        shapes = {name: weight.shape for name, weight in model_class(config).state_dict().items()}
    for name in [name for name in weights if shapes.get(name) == ()]:  # they have one in a checkpoint
        weights[name] = weights[name].reshape([])
    options = {"config": config, "dtype": torch.float32, "output_loading_info": True}
    model, info = model_class.from_pretrained(None, state_dict=weights, **options)
    if missing := sorted(info["missing_keys"]):
        raise InputError(CHECKPOINT, f" {source} lacks {', '.join(missing[:4])}: give another checkpoint")
    return model


@dataclass(frozen=True)
class ExportArguments:
    """The arguments of the command, those of `export`."""

    checkpoint: str = HfArg(help="the checkpoint-N of a run with FSDP2 or DeepSpeed")
    output: str = HfArg(help="the folder to write; must be new or empty")


def main(argv: list[str] | None = None) -> None:
    """Calls `export` with the arguments in `argv`, by default those of the command line."""
    command_line(export, ExportArguments, argv)


if __name__ == "__main__":
    main()
