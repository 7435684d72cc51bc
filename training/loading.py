"""A run's tokenizer, configuration and model, from a checkpoint folder, the Hub or a configuration JSON.

What is loaded is what was saved, or an error says what is wrong and what helps. Where a folder has a SHA256SUMS, its
files are compared with that first; without one, a changed number among the weights, or a changed but possible value in
a JSON file, looks like any other.
"""

import copy
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator
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

from training.arguments import ModelSource
from training.checksums import verify_checksums
from training.errors import FileError, InputError, MissingFileError, PackageError, Parameter, Text, UserError
from training.files import read_json
from training.folders import check_tokenizer_files, read_weight_types


# An Egyptian hieroglyph, for vocabularies that lack it: a letter, which normalisers keep.
UNKNOWN = "\U00013000"
TOKENIZER, IMPLEMENTATION = Parameter("tokenizer_name"), Parameter("implementation")
TRAIN = Parameter("train=True", "do_train")


def load_tokenizer(source: ModelSource) -> PreTrainedTokenizerBase:
    """The tokenizer of a model, or the one that `source` names; a vocab.txt is read as BERT's word pieces."""
    name = source.tokenizer_name or source.model_name_or_path
    _verify(name)
    with _explained(name, ("Copy it again; ", TOKENIZER, " may name a vocab.txt.")):
        if name.endswith(".txt"):
            tokenizer = _word_pieces(Path(name), source.do_lower_case)
        else:
            check_tokenizer_files(Path(name))
            tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=source.trust_remote_code)
        if hasattr(tokenizer, "task_inputs"):  # a language model's: by itself it would give the text alone
            tokenizer.task_inputs = True
        if tokenizer.vocab_files_names and len(tokenizer) <= len(set(tokenizer.all_special_tokens)):
            raise InputError("it has no tokenizer files, or no words in them")
        tokenizer(UNKNOWN, UNKNOWN)  # damage to unknown tokens and pairs shows only in use
    if tokenizer.pad_token is None:
        raise InputError(
            f"the tokenizer {name} has no padding token, which batches of several texts need: save it with one, e.g. "
            "tokenizer.pad_token = tokenizer.eos_token, and give its folder as ",
            TOKENIZER,
        )
    return tokenizer


def _word_pieces(path: Path, do_lower_case: bool) -> BertTokenizer:
    """Raises ValueError where the tokenizer would add a special token, one that the model does not know."""
    content = path.read_bytes()
    if b"\r" in content and b"\n" not in content:
        raise InputError("no line of it ends with a line feed: convert it, e.g. with mac2unix")
    lines = set(path.read_text(encoding="utf-8").split("\n"))
    tokenizer = BertTokenizer(vocab=str(path), do_lower_case=do_lower_case)
    lacking = set(tokenizer.special_tokens_map.values()) - lines
    if lacking:
        raise InputError(f"it has no {', '.join(sorted(lacking))}, so these are not BERT's word pieces")
    return tokenizer


def load_config(source: ModelSource) -> PreTrainedConfig:
    """The configuration of a model, with the overrides of `source`.

    A configuration names its family in "model_type"; in a config JSON, and among the overrides, a key that this family
    does not have raises ValueError.
    """
    name, overrides = source.model_name_or_path, source.config_overrides
    _verify(name)
    changed = (" or ", Parameter("config_overrides")) if overrides else ()
    with _explained(name, ("Correct it", *changed, ", or copy it again.")):
        if name.endswith(".json"):
            return _config_from_json(Path(name), source)
        if Path(name).is_dir():
            _read_config(Path(name, "config.json"), source)
        config, unused = AutoConfig.from_pretrained(
            name, trust_remote_code=source.trust_remote_code, return_unused_kwargs=True, **overrides
        )
        _check_known(config.model_type, overrides.keys() & unused.keys())
        if overrides:
            config.validate()
        return config


def _config_from_json(path: Path, source: ModelSource) -> PreTrainedConfig:
    values = {**_read_config(path, source), **source.config_overrides}
    model_type = values.pop("model_type")
    default = AutoConfig.for_model(model_type)
    _check_known(model_type, values.keys() - default.to_dict().keys() - default.attribute_map.keys())
    return AutoConfig.for_model(model_type, **values)


def _check_known(model_type: str, unknown: Iterable[str]) -> None:
    if unknown := sorted(unknown):
        raise InputError(f"{model_type} has no {', '.join(unknown)}")


def _read_config(path: Path, source: ModelSource) -> dict[str, Any]:
    """The fields in a file that names its family, one that there is. transformers would guess it from the path."""
    if not path.is_file():
        raise InputError(f"it has no {path.name}")
    values = read_json(path)
    model_type = values.get("model_type") if isinstance(values, dict) else None
    if not isinstance(model_type, str):
        raise InputError(f'{path.name} must be a JSON object that names its family, e.g. {{"model_type": "bert"}}')
    if model_type not in CONFIG_MAPPING and not (source.trust_remote_code and "auto_map" in values):
        raise InputError(
            f'transformers {transformers.__version__} does not know the "model_type" {model_type!r} in {path.name}, '
            "and a checkpoint's own code runs only with ",
            Parameter("trust_remote_code"),
        )
    return values


def load_model(
    auto_class: type,
    source: ModelSource,
    config: PreTrainedConfig,
    tokenizer: PreTrainedTokenizerBase,
    *,
    train: bool,
) -> PreTrainedModel:
    """A model of `auto_class` in float32: pre-trained, or with random weights where `source` names a config JSON.

    `config` is that of `load_config`, with a head of the caller's. A head that the checkpoint does not hold starts
    from random weights, and that is said, where the caller will `train` it; so do the rows of the embeddings for
    tokens that were added to the tokenizer.
    Raises ValueError or OSError where tokenizer and model, or configuration and weights, do not fit together, and
    where a weight is not finite.
    """
    name = source.model_name_or_path
    added = _added_tokens(tokenizer, config, source, train)
    config = _with_special_tokens(config, tokenizer)
    options = {"attn_implementation": source.attn_implementation, "trust_remote_code": source.trust_remote_code}
    options["dtype"] = torch.float32  # the optimiser's precision; mixed_precision is the accelerator's business
    _verify(name)
    with _explained(name, "Correct it or this run's arguments, or copy it again."):
        _check_head(auto_class, config, source)
        if name.endswith(".json"):
            if added:
                config.vocab_size = max(added) + 1
            return auto_class.from_config(config, **options)
        options |= {"config": config, "ignore_mismatched_sizes": True}
        new = _new_weights(auto_class, name, options)
    if new and not train:
        raise InputError(f"{name} does not hold {_some(new)}, or not in the size needed: train first, with ", TRAIN)
    model = auto_class.from_pretrained(name, **options)
    _check_finite(model, name)
    if added:
        model.resize_token_embeddings(max(added) + 1, mean_resizing=False)  # as any fresh weight, not the words' mean
        PartialState().print(f"new rows in the embeddings: {', '.join(added[number] for number in sorted(added))}")
    if new:
        PartialState().print(f"newly initialised, not in {name}: {', '.join(new)}")
    return model


def _added_tokens(
    tokenizer: PreTrainedTokenizerBase, config: PreTrainedConfig, source: ModelSource, train: bool
) -> dict[int, str]:
    """The tokens, by their ids, that were added to the tokenizer and that the model's embeddings have no row for."""
    vocab_size = getattr(config, "vocab_size", None)
    if vocab_size is None:
        return {}
    beyond = {number: token for token, number in tokenizer.get_vocab().items() if number >= vocab_size}
    were_added = set(tokenizer.get_added_vocab()).issuperset(beyond.values())
    if not beyond or (train and were_added):
        return beyond
    remedy = ("choose the tokenizer the model was made for",)
    if were_added:
        tokens = ", ".join(beyond[number] for number in sorted(beyond))
        remedy = (f"{tokens} were added to it and are new to the model: train first, with ", TRAIN, ", or ", *remedy)
    raise InputError(
        f"the tokenizer {source.tokenizer_name or source.model_name_or_path} has {max(beyond) + 1} entries, the model "
        f"{source.model_name_or_path} only {vocab_size}: ",
        remedy,
    )


def _with_special_tokens(config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase) -> PreTrainedConfig:
    """A copy that knows the tokenizer's padding and separator where a model needs them and `config` has none."""
    config = copy.deepcopy(config)
    if getattr(config, "pad_token_id", None) is None:  # GPT-2's, without which it does not find the end of a text
        config.pad_token_id = tokenizer.pad_token_id
    if getattr(config, "sep_token_id", 0) is None:  # GPT's, without which it does not find the second sentence
        config.sep_token_id = tokenizer.sep_token_id
    return config


def _check_head(auto_class: type, config: PreTrainedConfig, source: ModelSource) -> None:
    remote = (getattr(config, "auto_map", None) or {}) if source.trust_remote_code else {}
    if type(config) not in auto_class._model_mapping and auto_class.__name__ not in remote:
        raise InputError(f"{type(config).__name__} has no {auto_class.__name__}: try another ", IMPLEMENTATION)
    if getattr(config, "both_orders", False) and not hasattr(type(config), "both_orders"):  # it would read one order
        raise InputError("it reads pairs in both orders, which ", IMPLEMENTATION, " transformers does not know")


def _new_weights(auto_class: type, name: str, options: dict[str, Any]) -> list[str]:
    """The weights of head and pooler that the checkpoint lacks; raises ValueError unless the rest is the checkpoint's.

    The model is built without memory: the sizes in its config.json may be wrong by any factor.
    """
    types = read_weight_types(Path(name))
    outline, info = auto_class.from_pretrained(name, device_map="meta", output_loading_info=True, **options)
    resized = {key for key, *_ in info["mismatched_keys"]}
    prefix = f"{outline.base_model_prefix}."
    floating = {key.removeprefix(prefix) for key, weight in outline.state_dict().items() if weight.is_floating_point()}
    integers = [key for key, number in types.items() if not number.is_floating_point]  # transformers converts them
    in_body = _body_of(outline, auto_class is AutoModel)
    for problem, names in {
        "the checkpoint lacks": filter(in_body, info["missing_keys"]),
        "the model of its config.json has no": filter(in_body, info["unexpected_keys"]),
        "config.json and weights disagree on the size of": filter(in_body, resized),
        "the checkpoint holds integers for": [key for key in integers if key.removeprefix(prefix) in floating],
    }.items():
        if wrong := sorted(names):
            raise InputError(f"{problem} {_some(wrong)}")
    return sorted(info["missing_keys"] | resized)


def _body_of(model: PreTrainedModel, is_base: bool) -> Callable[[str], bool]:
    """Tells whether a name is a weight's below head and pooler. The buffers that older versions saved are none."""
    prefix = f"{model.base_model_prefix}."
    base = model.base_model if is_base or hasattr(model, model.base_model_prefix) else None  # None: it is all head
    parts = {name.partition(".")[0] for name in base.state_dict()} if base is not None else set()
    buffers = {name.removeprefix(prefix) for name, _ in model.named_buffers()}

    def in_body(name: str) -> bool:
        short = name.removeprefix(prefix)
        inside = short != name or short.partition(".")[0] in parts
        return inside and not short.startswith("pooler.") and short not in buffers

    return in_body


def _check_finite(model: PreTrainedModel, name: str) -> None:
    # A sum is finite only if all of its terms are, and costs a twentieth of looking at each.
    broken = [key for key, weight in model.named_parameters() if not torch.isfinite(weight.sum())]
    if broken and PartialState().is_local_main_process:  # FSDP leaves the weights of the others for later
        raise InputError(
            f"{name}: not all of {_some(broken)} is finite. Its training diverged, or the file is damaged: take an "
            "earlier checkpoint, or copy it again."
        )


def check_length(
    max_seq_length: int, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, pair: bool = False
) -> None:
    """Raises ValueError where `max_seq_length` is more than the model takes, or leaves no room for text."""
    name, length = Parameter("max_seq_length"), max_seq_length
    longest = positions(model)
    if longest is not None and length > longest:
        raise InputError(name, f" {length} is more than the model's {longest} positions")
    longest = tokenizer.model_max_length
    if length > longest:
        raise InputError(name, f" {length} is more than the tokenizer's {longest} tokens")
    special = tokenizer.num_special_tokens_to_add(pair=pair)
    if length <= special:
        raise InputError(name, f" {length} must be more than the {special} special tokens")


def positions(model: PreTrainedModel) -> int | None:
    """How many tokens the model can number; None: any. RoBERTa's numbers begin after the padding's."""
    size = getattr(model.base_model.config, "max_position_embeddings", None)
    if size is None:
        return None
    for name, module in model.named_modules():
        table = isinstance(module, torch.nn.Embedding) and "position" in name and module.num_embeddings == size
        if table and module.padding_idx is not None:
            return size - module.padding_idx - 1
    return size


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _verify(name: str) -> None:
    """Raises FileNotFoundError where nothing is at the path `name`, OSError where its files are not as they were."""
    path = Path(name)
    file = path.suffix in (".json", ".txt")
    if not path.exists() and (file or name.startswith((".", "/", "~")) or name.count("/") > 1):
        raise MissingFileError(f"{name}: no such {'file' if file else 'folder'}")
    verify_checksums(path)


@contextmanager
def _explained(name: str, remedy: Text) -> Iterator[None]:
    """Turns whatever the block raises while it loads `name` into one OSError or ValueError with a remedy.

    Broken files make the libraries raise anything: KeyError, AssertionError, and the panics of tokenizers, which are
    no Exception. An ImportError stays one, and says itself what to install.
    """
    try:
        yield
    except BaseException as error:
        if not (isinstance(error, Exception) or "Panic" in type(error).__name__):
            raise
        if isinstance(error, ImportError):
            line = str(error).strip().partition("\n")[0]
            remedy = ("Install it, or choose another model, tokenizer or ", Parameter("attn_implementation"), ".")
            raise PackageError(f"cannot load {name}: {line.rstrip('.')}. ", remedy) from error
        reason = error.pieces if isinstance(error, UserError) else [str(error)]
        if not isinstance(error, (OSError, ValueError)):
            reason = [f"{type(error).__name__}: {error}"]
        if isinstance(error, OSError) and not Path(name).exists():
            offline = "HF_HUB_OFFLINE is set, and the model is not in the cache: unset it"
            cached = "Without network, set HF_HUB_OFFLINE=1 to use only what is cached"
            remedy = f"{offline if constants.HF_HUB_OFFLINE else cached}, or give a local folder."
        kind = FileError if isinstance(error, OSError) else InputError
        raise kind(f"cannot load {name}: ", *map(_one_line, reason), ". ", remedy) from error


def _one_line(piece: str | Parameter) -> str | Parameter:
    """Of a message by a library, its beginning; the spaces at the ends of a piece stay."""
    if isinstance(piece, Parameter):
        return piece
    line = re.sub(r"\s+", " ", piece).rstrip(".")
    return line if len(line) <= 400 else textwrap.shorten(line, 400, placeholder=" ...").rstrip(".")
