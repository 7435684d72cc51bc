"""A run's tokenizer, configuration and model, from a checkpoint folder, the Hub or a configuration JSON.

What is loaded is what was saved, or an error says what is wrong and what helps. Where a folder has a SHA256SUMS, its
files are compared with that first; without one, a changed number among the weights, or a changed but possible value in
a JSON file, looks like any other.
"""

import json
import sys
import textwrap
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from accelerate import PartialState
from huggingface_hub import constants
from transformers import (
    CONFIG_MAPPING,
    AutoConfig,
    AutoModel,
    AutoTokenizer,
    BertTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from training.arguments import RunArguments
from training.checksums import verify_checksums
from training.files import read_json
from training.folders import check_tokenizer_files, read_weight_types


# An Egyptian hieroglyph, for vocabularies that lack it: a letter, which normalisers keep.
UNKNOWN = "\U00013000"


def load_tokenizer(args: RunArguments) -> PreTrainedTokenizerBase:
    """The model's own tokenizer, or `--tokenizer_name`; a vocab.txt is read as BERT's word pieces."""
    _choose_implementation(args)
    name = args.tokenizer_name or args.model_name_or_path
    with _explained(name, "Copy it again; --tokenizer_name may name a vocab.txt."):
        if name.endswith(".txt"):
            tokenizer = _word_pieces(Path(name), args.do_lower_case)
        else:
            check_tokenizer_files(Path(name))
            tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=args.trust_remote_code)
        if hasattr(tokenizer, "task_inputs"):  # a language model's: by itself it would give the text alone
            tokenizer.task_inputs = True
        if tokenizer.vocab_files_names and set(tokenizer.get_vocab()) <= set(tokenizer.all_special_tokens):
            raise ValueError("it has no tokenizer files, or no words in them")
        tokenizer(UNKNOWN, UNKNOWN)  # damage to unknown tokens and pairs shows only in use
    if tokenizer.pad_token is None:
        raise ValueError(
            f"the tokenizer {name} has no padding token, which batches of several texts need: save it with one, e.g. "
            "tokenizer.pad_token = tokenizer.eos_token, and give its folder as --tokenizer_name"
        )
    return tokenizer


def _word_pieces(path: Path, do_lower_case: bool) -> BertTokenizer:
    """Raises ValueError where the tokenizer would add a special token, one that the model does not know."""
    content = path.read_bytes()
    if b"\r" in content and b"\n" not in content:
        raise ValueError("no line of it ends with a line feed: convert it, e.g. with mac2unix")
    lines = set(path.read_text(encoding="utf-8").split("\n"))
    tokenizer = BertTokenizer(vocab=str(path), do_lower_case=do_lower_case)
    lacking = set(tokenizer.special_tokens_map.values()) - lines
    if lacking:
        raise ValueError(f"it has no {', '.join(sorted(lacking))}, so these are not BERT's word pieces")
    return tokenizer


def load_config(args: RunArguments, **changes: Any) -> PreTrainedConfig:
    """The configuration behind `--model_name_or_path` with `--config_overrides`, and with `changes` to its fields.

    A configuration names its family in "model_type"; in a config JSON, and among the overrides, a key that this family
    does not have raises ValueError.
    """
    _choose_implementation(args)
    name, overrides = args.model_name_or_path, parse_overrides(args.config_overrides)
    with _explained(name, f"Correct it{' or --config_overrides' if overrides else ''}, or copy it again."):
        if name.endswith(".json"):
            return _config_from_json(Path(name), args, overrides, changes)
        if Path(name).is_dir():
            _read_config(Path(name, "config.json"), args)
        config, unused = AutoConfig.from_pretrained(
            name, trust_remote_code=args.trust_remote_code, return_unused_kwargs=True, **(overrides | changes)
        )
        _check_known(config.model_type, overrides.keys() & unused.keys())
        if overrides:
            config.validate()
        return config


def parse_overrides(text: str | None) -> dict[str, Any]:
    """--config_overrides a=1,b=true,c=word as a dictionary."""
    values = {}
    for pair in text.split(",") if text else []:
        key, equals, value = pair.strip().partition("=")
        if not (key and equals and value):
            raise ValueError(f"--config_overrides must be fields and values, as in a=1,b=true, not {pair!r}")
        try:
            values[key] = json.loads(value)
        except ValueError:  # a word
            values[key] = value
    return values


def _config_from_json(
    path: Path, args: RunArguments, overrides: dict[str, Any], changes: dict[str, Any]
) -> PreTrainedConfig:
    values = _read_config(path, args) | overrides
    model_type = values.pop("model_type")
    default = AutoConfig.for_model(model_type)
    _check_known(model_type, values.keys() - default.to_dict().keys() - default.attribute_map.keys())
    return AutoConfig.for_model(model_type, **(values | changes))


def _check_known(model_type: str, unknown: Iterable[str]) -> None:
    if unknown := sorted(unknown):
        raise ValueError(f"{model_type} has no {', '.join(unknown)}")


def _read_config(path: Path, args: RunArguments) -> dict[str, Any]:
    """The fields in a file that names its family, one that there is. transformers would guess it from the path."""
    if not path.is_file():
        raise ValueError(f"it has no {path.name}")
    values = read_json(path)
    model_type = values.get("model_type") if isinstance(values, dict) else None
    if not isinstance(model_type, str):
        raise ValueError(f'{path.name} must be a JSON object that names its family, e.g. {{"model_type": "bert"}}')
    if model_type not in CONFIG_MAPPING and not (args.trust_remote_code and "auto_map" in values):
        raise ValueError(
            f'transformers {transformers.__version__} does not know the "model_type" {model_type!r} in {path.name}, '
            "and a checkpoint's own code runs only with --trust_remote_code"
        )
    return values


def load_model(
    auto_class: type, args: RunArguments, tokenizer: PreTrainedTokenizerBase, **config_changes: Any
) -> PreTrainedModel:
    """A model of `auto_class` in float32: pre-trained, or with random weights where args names a config JSON.

    A head that the checkpoint does not hold starts from random weights, and that is said; only where the run trains.
    Raises ValueError or OSError where tokenizer and model, or configuration and weights, do not fit together, and
    where a weight is not finite. Tokens added to the tokenizer get new rows in the embeddings, where the run trains.
    """
    config = load_config(args, **config_changes)
    added = _added_tokens(tokenizer, config, args)
    if getattr(config, "pad_token_id", None) is None:  # GPT-2's, without which it does not find the end of a text
        config.pad_token_id = tokenizer.pad_token_id
    if getattr(config, "sep_token_id", 0) is None:  # GPT's, without which it does not find the second sentence
        config.sep_token_id = tokenizer.sep_token_id
    name = args.model_name_or_path
    options = {"attn_implementation": args.attn_implementation, "trust_remote_code": args.trust_remote_code}
    options["dtype"] = torch.float32  # the optimiser's precision; mixed_precision is the accelerator's business
    with _explained(name, "Correct it or this run's flags, or copy it again."):
        _check_head(auto_class, config, args)
        if name.endswith(".json"):
            if added:
                config.vocab_size = max(added) + 1
            return auto_class.from_config(config, **options)
        held = read_weight_types(Path(name))
        layers = getattr(config, "num_hidden_layers", 0)
        if held and layers > max(len(held), 1000):  # hours to build
            raise ValueError(f"config.json says {layers} layers, but the checkpoint holds only {len(held)} weights")
        options |= {"config": config, "ignore_mismatched_sizes": True, "output_loading_info": True}
        # First without memory: sizes may be wrong by any factor.
        outline, info = auto_class.from_pretrained(name, device_map="meta", **options)
        new = _check_names(outline, auto_class is AutoModel, info, held)
    if new and not args.do_train:
        raise ValueError(f"{name} does not hold {_some(new)}, or not in the size needed: train first, with --do_train")
    model, _ = auto_class.from_pretrained(name, **options)
    _check_finite(model, name)
    if added:
        model.resize_token_embeddings(max(added) + 1, mean_resizing=False)  # as any fresh weight, not the words' mean
        PartialState().print(f"new rows in the embeddings: {', '.join(added[number] for number in sorted(added))}")
    if new:
        PartialState().print(f"newly initialised, not in {name}: {', '.join(new)}")
    return model


def _added_tokens(tokenizer: PreTrainedTokenizerBase, config: PreTrainedConfig, args: RunArguments) -> dict[int, str]:
    """The tokens, by their ids, that were added to the tokenizer and that the model's embeddings have no row for."""
    vocab_size = getattr(config, "vocab_size", None)
    if vocab_size is None:
        return {}
    beyond = {number: token for token, number in tokenizer.get_vocab().items() if number >= vocab_size}
    added = set(tokenizer.get_added_vocab())
    if not beyond or (args.do_train and added.issuperset(beyond.values())):
        return beyond
    remedy = "choose the tokenizer the model was made for"
    if added.issuperset(beyond.values()):
        tokens = ", ".join(beyond[number] for number in sorted(beyond))
        remedy = f"{tokens} were added to it and are new to the model: train first, with --do_train, or {remedy}"
    raise ValueError(
        f"the tokenizer {args.tokenizer_name or args.model_name_or_path} has {max(beyond) + 1} entries, the model "
        f"{args.model_name_or_path} only {vocab_size}: {remedy}"
    )


def _check_head(auto_class: type, config: PreTrainedConfig, args: RunArguments) -> None:
    own = (getattr(config, "auto_map", None) or {}) if args.trust_remote_code else {}
    if type(config) not in auto_class._model_mapping and auto_class.__name__ not in own:
        raise ValueError(f"{config.model_type} of --implementation {args.implementation} has no {auto_class.__name__}")
    if getattr(config, "both_orders", False) and not hasattr(type(config), "both_orders"):  # it would read one order
        raise ValueError(f"it reads pairs in both orders, which --implementation {args.implementation} does not know")


def _check_names(
    model: PreTrainedModel, is_base: bool, info: dict[str, set], held: dict[str, torch.dtype]
) -> list[str]:
    """The weights of head and pooler that the checkpoint lacks; raises ValueError unless the rest is the checkpoint's.

    `info` is what transformers says of the loading. It ignores integers where weights belong, so `held` is needed too.
    """
    resized = {name for name, *_ in info["mismatched_keys"]}
    prefix = f"{model.base_model_prefix}."
    base = model.base_model if is_base or hasattr(model, model.base_model_prefix) else None  # None: it is all head
    parts = {name.partition(".")[0] for name in base.state_dict()} if base is not None else set()
    buffers = {name.removeprefix(prefix) for name, _ in model.named_buffers()}  # older versions saved them
    own = {name.removeprefix(prefix): tensor.is_floating_point() for name, tensor in model.state_dict().items()}

    decoder = any(name.startswith("funnel.decoder.") for name in info["unexpected_keys"])
    remedy = " decoder (Funnel has base checkpoints for this, e.g. funnel-transformer/small-base):" if decoder else ""

    def body(names: Iterable[str]) -> list[str]:
        short = {name: name.removeprefix(prefix) for name in names}
        inside = [name for name in names if name != short[name] or short[name].partition(".")[0] in parts]
        return sorted(n for n in inside if not short[n].startswith("pooler.") and short[n] not in buffers)

    integers = [n for n, number in held.items() if not number.is_floating_point and own.get(n.removeprefix(prefix))]
    for problem, names in {
        "the checkpoint lacks": body(info["missing_keys"]),
        f"the model of its config.json has no{remedy}": body(info["unexpected_keys"]),
        "config.json and weights disagree on the size of": body(resized),
        "the checkpoint holds integers for": sorted(integers),
    }.items():
        if names:
            raise ValueError(f"{problem} {_some(names)}")
    return sorted(info["missing_keys"] | resized)


def _check_finite(model: PreTrainedModel, name: str) -> None:
    # A sum is finite only if all of its terms are, and costs a twentieth of looking at each.
    broken = [key for key, weight in model.named_parameters() if not torch.isfinite(weight.sum())]
    if broken and PartialState().is_local_main_process:  # FSDP leaves the weights of the others for later
        raise ValueError(
            f"{name}: not all of {_some(broken)} is finite. Its training diverged, or the file is damaged: take an "
            "earlier checkpoint, or copy it again."
        )


def check_length(length: int, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, pair: bool = False) -> None:
    """Raises ValueError where `length`, --max_seq_length, is more than the model takes, or leaves no room for text."""
    longest = positions(model)
    if longest is not None and length > longest:
        raise ValueError(f"--max_seq_length {length} is more than the model's {longest} positions")
    longest = tokenizer.model_max_length
    if length > longest:
        raise ValueError(f"--max_seq_length {length} is more than the tokenizer's {longest} tokens")
    special = tokenizer.num_special_tokens_to_add(pair=pair)
    if length <= special:
        raise ValueError(f"--max_seq_length {length} must be more than the {special} special tokens")


def positions(model: PreTrainedModel) -> int | None:
    """How many tokens the model can number; None: any. RoBERTa's numbers begin after the padding's."""
    size = getattr(model.base_model.config, "max_position_embeddings", -1)
    if size <= 0:  # XLNet's: -1
        return None
    for name, module in model.named_modules():
        table = isinstance(module, torch.nn.Embedding) and "position" in name and module.num_embeddings == size
        if table and module.padding_idx is not None:
            return size - module.padding_idx - 1
    return size


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _choose_implementation(args: RunArguments) -> None:
    """Lets the Auto classes resolve to the zoo's models, or gives them back to transformers."""
    if args.implementation == "zoo":
        import modeling

        modeling.register()
    elif "modeling" in sys.modules:
        sys.modules["modeling"].unregister()


@contextmanager
def _explained(name: str, remedy: str) -> Iterator[None]:
    """Verifies the folder `name`; turns whatever the block raises into one OSError or ValueError with a remedy.

    Broken files make the libraries raise anything: KeyError, AssertionError, and the panics of tokenizers, which are
    no Exception. An ImportError stays one, and says itself what to install.
    """
    path = Path(name)
    file = path.suffix in (".json", ".txt")
    if not path.exists() and (file or name.startswith((".", "/", "~")) or name.count("/") > 1):
        raise FileNotFoundError(f"{name}: no such {'file' if file else 'folder'}")
    verify_checksums(path)
    try:
        yield
    except BaseException as error:
        if not (isinstance(error, Exception) or "Panic" in type(error).__name__):
            raise
        if isinstance(error, ImportError):
            line = str(error).strip().partition("\n")[0]
            remedy = "Install it, or choose another model, tokenizer or --attn_implementation."
            raise ImportError(f"cannot load {name}: {line.rstrip('.')}. {remedy}") from error
        reason = str(error) if isinstance(error, (OSError, ValueError)) else f"{type(error).__name__}: {error}"
        if isinstance(error, OSError) and not path.exists():
            offline = "HF_HUB_OFFLINE is set, and the model is not in the cache: unset it"
            cached = "Without network, set HF_HUB_OFFLINE=1 to use only what is cached"
            remedy = f"{offline if constants.HF_HUB_OFFLINE else cached}, or give a local folder."
        message = f"cannot load {name}: {textwrap.shorten(reason, 400, placeholder=' ...').rstrip('.')}. {remedy}"
        raise (OSError if isinstance(error, OSError) else ValueError)(message) from error
