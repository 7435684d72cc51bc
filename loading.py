"""A run's tokenizer, configuration and model, from a checkpoint folder, the Hub or a configuration JSON."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoTokenizer,
    BertTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from arguments import RunArguments


def load_tokenizer(args: RunArguments) -> PreTrainedTokenizerBase:
    """The model's own tokenizer, or `--tokenizer_name`; a vocab.txt is read as BERT's word pieces."""
    _choose_implementation(args)
    name = args.tokenizer_name or args.model_name_or_path
    if name.endswith(".txt"):
        if not Path(name).is_file():
            raise FileNotFoundError(f"--tokenizer_name {name}: no such file")
        return BertTokenizer(vocab=name, do_lower_case=args.do_lower_case)
    try:
        return _pretrained(AutoTokenizer.from_pretrained, name, trust_remote_code=args.trust_remote_code)
    except (TypeError, ValueError) as error:  # what broken or missing tokenizer files raise
        message = " ".join(str(error).split())
        raise OSError(
            f"cannot load a tokenizer from {name}: {message} --tokenizer_name may name a vocab.txt."
        ) from error


def load_config(args: RunArguments, **changes: Any) -> PreTrainedConfig:
    """The configuration behind `--model_name_or_path`, with `changes` to its fields.

    A config JSON names its family in "model_type"; a key that this family does not have raises ValueError.
    """
    _choose_implementation(args)
    name = args.model_name_or_path
    if not name.endswith(".json"):
        return _pretrained(AutoConfig.from_pretrained, name, trust_remote_code=args.trust_remote_code, **changes)
    if not Path(name).is_file():
        raise FileNotFoundError(f"--model_name_or_path {name}: no such file")
    try:
        values = json.loads(Path(name).read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"--model_name_or_path {name} is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise ValueError(f"--model_name_or_path {name} must hold one JSON object of configuration fields")
    model_type = values.pop("model_type", None)
    if model_type is None:
        raise ValueError(f'{name} does not name its family: add "model_type", e.g. "model_type": "bert"')
    default = AutoConfig.for_model(model_type)
    unknown = sorted(values.keys() - default.to_dict().keys() - default.attribute_map.keys())
    if unknown:
        raise ValueError(f"{name}: {model_type} has no {', '.join(unknown)}")
    return AutoConfig.for_model(model_type, **(values | changes))


def load_model(
    auto_class: type, args: RunArguments, tokenizer: PreTrainedTokenizerBase, **config_changes: Any
) -> PreTrainedModel:
    """A model of `auto_class` in float32: pre-trained, or with random weights where args names a config JSON.

    Says which weights the checkpoint does not hold. Raises ValueError where the tokenizer has more entries than the
    model's vocabulary, or a weight below the head has another size than the checkpoint's.
    """
    config = load_config(args, **config_changes)
    vocab_size = getattr(config, "vocab_size", None)
    if vocab_size is not None and len(tokenizer) > vocab_size:
        raise ValueError(
            f"the tokenizer {args.tokenizer_name or args.model_name_or_path} has {len(tokenizer)} entries, the model "
            f"{args.model_name_or_path} only {vocab_size}: choose the tokenizer the model was made for"
        )
    options = {"attn_implementation": args.attn_implementation, "trust_remote_code": args.trust_remote_code}
    options["dtype"] = torch.float32  # the optimiser's precision; mixed_precision is the accelerator's business
    if args.model_name_or_path.endswith(".json"):
        return auto_class.from_config(config, **options)
    options |= {"config": config, "ignore_mismatched_sizes": True, "output_loading_info": True}
    model, info = _pretrained(auto_class.from_pretrained, args.model_name_or_path, **options)
    resized = {name for name, *_ in info["mismatched_keys"]}
    body = sorted(name for name in resized if name.startswith(f"{model.base_model_prefix}."))
    if body:
        raise ValueError(
            f"{args.model_name_or_path}: config.json and weights disagree on the size of {', '.join(body)}"
        )
    new = sorted(set(info["missing_keys"]) | resized)
    if new:
        PartialState().print(f"newly initialised, not in {args.model_name_or_path}: {', '.join(new)}")
    return model


def _choose_implementation(args: RunArguments) -> None:
    """Lets the Auto classes resolve to the zoo's models, or gives them back to transformers."""
    if args.implementation == "zoo":
        import modeling

        modeling.register()
    elif "modeling" in sys.modules:
        sys.modules["modeling"].unregister()


def _pretrained(load: Callable, name: str, **options: Any) -> Any:
    """`load(name, **options)` with an error that says what `name` may be."""
    if not Path(name).exists() and (name.startswith((".", "/", "~")) or name.count("/") > 1):
        raise FileNotFoundError(f"{name}: no such folder")
    try:
        return load(name, **options)
    except SafetensorError as error:
        raise OSError(
            f"cannot load {name}: a .safetensors file is broken or cut short ({error}). Copy it again."
        ) from error
    except OSError as error:
        if Path(name).exists():
            remedy = "A folder needs config.json, model weights and tokenizer files."
        else:
            remedy = "Without network, give a local folder, or set HF_HUB_OFFLINE=1 to use only what is cached."
        raise OSError(f"cannot load {name}: {str(error).splitlines()[0]} {remedy}") from error
