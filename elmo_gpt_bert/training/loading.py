"""Loads a tokenizer, a configuration and a model from a model folder, the Hub or a configuration JSON.

Loading gives what was saved, or raises an error with the problem and its remedy. The files of a folder with SHA256SUMS
are compared with it first. Without it, a changed number in the weights, or a changed but valid value in a JSON file,
cannot be noticed. Before a library opens a folder, its files are checked: they are complete, and hold no code. A
pickle may name any function, which is called while it is read. torch.load with weights_only accepts only functions
that make tensors and numbers.
"""

from __future__ import annotations

import copy
import pickle
import textwrap
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import transformers
from accelerate import PartialState
from transformers import CONFIG_MAPPING, AutoConfig, AutoModel, AutoTokenizer, BertTokenizer
from transformers.utils import is_peft_available

from elmo_gpt_bert.training.arguments import ModelSource
from elmo_gpt_bert.training.errors import FileError, InputError, MissingFileError, PackageError
from elmo_gpt_bert.training.files import hub_remedy, is_path, plain, read_json, read_json_object, shown
from elmo_gpt_bert.training.output_folder import adapted_model, base_of_adapter, tokenizer_of, verify_checksums


if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase


# An Egyptian hieroglyph: a letter, so normalisers keep it, that hardly any vocabulary has.
UNKNOWN = "\U00013000"
TOKENIZER_FILES = ("*token*.json", "vocab*.json")


def load_tokenizer(source: ModelSource, *, for_task: bool = True) -> PreTrainedTokenizerBase:
    """Loads the model's tokenizer, or the one that `source` names. A vocab.txt is read as BERT's word pieces.

    With `for_task`, a language model's tokenizer adds the tokens of task inputs, and it must have a padding token.
    """
    name = source.tokenizer_name or tokenizer_of(source.model_name_or_path)
    _verify(name)
    with _loading_errors(name, "Copy it again; --tokenizer_name may name a vocab.txt."):
        if name.endswith(".txt"):
            tokenizer = _word_pieces(Path(name), source.do_lower_case)
        else:
            for pattern in TOKENIZER_FILES:
                for path in Path(name).glob(pattern):
                    read_json(path)  # raises ValueError for a file that cannot be read
            tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=source.trust_remote_code)
        _check_numbers(tokenizer)
        if hasattr(tokenizer, "task_inputs"):  # a language model's tokenizer adds no special tokens by default
            tokenizer.task_inputs = for_task
        if tokenizer.vocab_files_names and len(tokenizer) <= len(set(tokenizer.all_special_tokens)):
            raise InputError("it has no tokenizer files, or no words in them")
        tokenizer(UNKNOWN, UNKNOWN)  # some damage shows only with unknown tokens and pairs
    if for_task and tokenizer.pad_token is None:
        raise InputError(
            f"the tokenizer {name} has no padding token, which batches of several texts need: save it with one, e.g. "
            "tokenizer.pad_token = tokenizer.eos_token, and give its folder as --tokenizer_name"
        )
    return tokenizer


def _word_pieces(path: Path, do_lower_case: bool) -> BertTokenizer:
    """Raises ValueError if a special token is missing: the tokenizer would add it, and the model does not know it."""
    lines = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").removesuffix("\n").split("\n"), start=1):
        if lines.setdefault(line, number) != number:
            raise InputError(f"{shown(line)} stands in line {lines[line]} and in line {number}: each has one number")
    tokenizer = BertTokenizer(vocab=str(path), do_lower_case=do_lower_case)
    missing = set(tokenizer.special_tokens_map.values()) - lines.keys()
    if missing:
        raise InputError(f"it has no {', '.join(sorted(missing))}, so these are not BERT's word pieces")
    return tokenizer


def _check_numbers(tokenizer: PreTrainedTokenizerBase) -> None:
    """Raises ValueError if two tokens have one id, as an added token gets one if the vocabulary leaves out ids."""
    tokens = {}
    for token, number in tokenizer.get_vocab().items():
        if tokens.setdefault(number, token) != token:
            raise InputError(f"its tokens {shown(tokens[number])} and {shown(token)} have the same id, {number}")


def load_config(source: ModelSource) -> PreTrainedConfig:
    """Loads the configuration of a model, with the overrides of `source`.

    Raises ValueError if a config JSON, or an override, has a key that its "model_type" does not have. An adapter has
    the configuration of the model that it was trained on, and may name its own classes in base.json.
    """
    name, overrides = adapted_model(source.model_name_or_path), source.config_overrides
    _verify(name)
    overridden = " or --config_overrides" if overrides else ""
    with _loading_errors(name, f"Correct it{overridden}, or copy it again."):
        if name.endswith(".json"):
            return _config_from_json(Path(name), source)
        if Path(name).is_dir():
            _read_config(Path(name, "config.json"), source)
        config, unused = AutoConfig.from_pretrained(
            name, trust_remote_code=source.trust_remote_code, return_unused_kwargs=True, **overrides
        )
        _check_field_names(config.model_type, overrides.keys() & unused.keys())
        if overrides:
            config.validate()
    if name != source.model_name_or_path:
        config.architectures = None  # the adapter's head is another one
        record = base_of_adapter(source.model_name_or_path)
        if "id2label" in record:
            config.id2label = {int(number): label for number, label in record["id2label"].items()}
            config.label2id = {label: number for number, label in config.id2label.items()}
            config.problem_type = record["problem_type"]
    return config


def _config_from_json(path: Path, source: ModelSource) -> PreTrainedConfig:
    values = _read_config(path, source)
    model_type = values.pop("model_type")
    for name in ("auto_map", "custom_pipelines"):  # of a saved model: where its code is, for those who have no other
        values.pop(name, None)
    default = AutoConfig.for_model(model_type)
    fields = default.to_dict().keys() | default.attribute_map.keys()
    former = _former_fields(values, fields)
    _check_field_names(model_type, (values.keys() - former | source.config_overrides.keys()) - fields)
    if former:  # which `from_pretrained` keeps, too: T5 reads one
        PartialState().print(f"{path}: {model_type} has no fields {', '.join(former)}; they are kept as they are")
    return AutoConfig.for_model(model_type, **values | source.config_overrides)


def _former_fields(values: Mapping[str, Any], fields: Iterable[str]) -> list[str]:
    """What a file that a release of transformers has written holds besides the fields of this one, as BERT's own does.

    Names that are nearly those of fields are mistakes, and so are all in a file that a person wrote.
    """
    if not {"architectures", "transformers_version"} & values.keys():
        return []
    return sorted(name for name in values.keys() - fields if not get_close_matches(name, fields, cutoff=0.85))


def _check_field_names(model_type: str, unknown: Iterable[str]) -> None:
    if unknown := sorted(unknown):
        raise InputError(f"{model_type} has no {', '.join(unknown)}")


def _read_config(path: Path, source: ModelSource) -> dict[str, Any]:
    """Reads a configuration. Raises ValueError without "model_type", which transformers would guess from the path."""
    if not path.is_file():
        raise InputError(f"it has no {path.name}")
    values = read_json(path)
    model_type = values.get("model_type") if isinstance(values, dict) else None
    if not isinstance(model_type, str):
        raise InputError(f'{path.name} must be a JSON object that names its model, e.g. {{"model_type": "bert"}}')
    if model_type not in CONFIG_MAPPING and not (source.trust_remote_code and "auto_map" in values):
        raise InputError(
            f'transformers {transformers.__version__} does not know the "model_type" {model_type!r:.80} in '
            f"{path.name}, and a checkpoint's own code runs only with --trust_remote_code"
        )
    return values


def load_model(
    auto_class: type,
    source: ModelSource,
    config: PreTrainedConfig,
    tokenizer: PreTrainedTokenizerBase,
    *,
    train: bool,
    new_labels: bool = False,
    remedy: str = "train first, with --do_train",
) -> PreTrainedModel:
    """Loads a model of `auto_class` in float32; with random weights if `source` names a config JSON.

    `config` comes from `load_config`; the caller may have set its head. With `train`, a head that the checkpoint lacks
    gets random weights, and so do embeddings for tokens that were added to the tokenizer; a line on the console says
    so. Without it, a head that the checkpoint lacks is an error, which ends with the `remedy`. `new_labels` says that
    the checkpoint's head is of other labels, though of as many; it then counts as lacking. Raises ValueError or
    OSError if tokenizer and model, or configuration and weights, do not fit together, or if a weight is not finite.
    """
    name, base = source.model_name_or_path, adapted_model(source.model_name_or_path)
    if base != name and not is_peft_available():
        raise PackageError(f"{name} is an adapter, which peft reads: pip install peft")
    if train and base != name:
        raise InputError(f"{name} is an adapter, which is only evaluated here: train one with peft")
    added = _added_tokens(tokenizer, config, source, train)
    config = _for_runs(_with_special_tokens(config, tokenizer), name)
    options = {"attn_implementation": source.attn_implementation, "trust_remote_code": source.trust_remote_code}
    options["dtype"] = torch.float32  # for the optimizer; the accelerator applies mixed_precision
    _verify(name)
    with _loading_errors(name, "Correct it or this run's arguments, or copy it again."):
        _check_head(auto_class, config, source)
        if name.endswith(".json"):
            if added:
                config.vocab_size = max(added) + 1
            return auto_class.from_config(config, **options)
        options |= {"config": config, "ignore_mismatched_sizes": True}
        new_weights = _new_weights(auto_class, name, base, options)
        of_labels = _weights_of_labels(auto_class, name, base, options) if new_labels else []
    if new_weights and not train:
        raise InputError(f"{name} does not hold {_first_names(new_weights)}, or not in the right size: {remedy}")
    with _loading_errors(name, "Correct it, or copy it again."):
        model, info = auto_class.from_pretrained(name, output_loading_info=True, **options)
    wrong = info["missing_keys"] | info["unexpected_keys"] | {key for key, *_ in info["mismatched_keys"]}
    if base != name and wrong:
        raise InputError(
            f"{name} and its adapter_config.json disagree on {_first_names(sorted(wrong))}: copy it again or, if peft "
            "trained it so, save the whole model, by merge_and_unload()"
        )
    _check_finite(model, name)
    _initialise_anew(model, [key for key in of_labels if key not in new_weights])
    new_weights = of_labels or new_weights
    if added:
        model.resize_token_embeddings(max(added) + 1, mean_resizing=False)  # random, not the mean of the other rows
        PartialState().print(f"new rows in the embeddings: {', '.join(added[number] for number in sorted(added))}")
    if new_weights and auto_class is not AutoModel:  # which can only lack a pooler, and nobody reads that one
        PartialState().print(f"newly initialised, not in {name}: {', '.join(new_weights)}")
    return model


def _added_tokens(
    tokenizer: PreTrainedTokenizerBase, config: PreTrainedConfig, source: ModelSource, train: bool
) -> dict[int, str]:
    """id -> token, for tokens that were added to the tokenizer and that the model's embeddings have no row for."""
    vocab_size = getattr(config, "vocab_size", None)
    if vocab_size is None:
        return {}
    beyond = {number: token for token, number in tokenizer.get_vocab().items() if number >= vocab_size}
    were_added = set(tokenizer.get_added_vocab()).issuperset(beyond.values())
    if not beyond or (train and were_added):
        return beyond
    remedy = "choose the tokenizer the model was made for"
    if were_added:
        tokens = ", ".join(beyond[number] for number in sorted(beyond))
        remedy = f"{tokens} were added to it and are new to the model: train first, with --do_train, or {remedy}"
    raise InputError(
        f"the tokenizer {source.tokenizer_name or source.model_name_or_path} has {max(beyond) + 1} entries, the model "
        f"{source.model_name_or_path} only {vocab_size}: {remedy}"
    )


def _for_runs(config: PreTrainedConfig, name: str) -> PreTrainedConfig:
    """Changes the settings of the configuration that a run may not leave to the folder's users, and returns it."""
    config.return_dict = True  # outputs are read by their names
    if getattr(config, "state", None) == "carry":  # of ELMo: what a text gives would depend on the batches before it
        config.state = "warm"
        PartialState().print(f"{name}: each text starts from the stored state (warm), not where the last one ended")
    return config


def _with_special_tokens(config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase) -> PreTrainedConfig:
    """A copy of `config` with the tokenizer's padding and separator ids, if the model needs them and has none."""
    config = copy.deepcopy(config)
    if getattr(config, "pad_token_id", None) is None:  # GPT-2 finds the end of a text by it
        config.pad_token_id = tokenizer.pad_token_id
    if getattr(config, "sep_token_id", 0) is None:  # GPT finds the second sentence by it
        config.sep_token_id = tokenizer.sep_token_id
    return config


def has_head(auto_class: type, config: PreTrainedConfig, source: ModelSource) -> bool:
    """Whether the implementation, or the checkpoint's own code if it may run, has a model for `auto_class`."""
    remote = (getattr(config, "auto_map", None) or {}) if source.trust_remote_code else {}
    return type(config) in auto_class._model_mapping or auto_class.__name__ in remote


def _check_head(auto_class: type, config: PreTrainedConfig, source: ModelSource) -> None:
    """Raises ValueError if the implementation has no model for `auto_class`, or not the one of `config`."""
    if not has_head(auto_class, config, source):
        raise InputError(f"{type(config).__name__} has no {auto_class.__name__}: try another --implementation")
    # transformers would ignore the field, and read the pairs in one order.
    if getattr(config, "both_orders", False) and not hasattr(type(config), "both_orders"):
        raise InputError("it reads pairs in both orders, which --implementation transformers does not know")


def _new_weights(auto_class: type, name: str, base: str, options: dict[str, Any]) -> list[str]:
    """The weights of head and pooler that the checkpoint lacks. Raises ValueError if it lacks any other weight.

    The model is built on the meta device, without memory: a wrong size in its config.json may be huge. If `name` is an
    adapter of `base`, it has the head that its model lacks.
    """
    check_indices(Path(base))
    weights, of_adapter = {}, set()
    # First, because the library's messages name no file, and it makes numbers of integers without a word.
    for path in [*Path(base).glob("model*.safetensors")] or [*Path(base).glob("pytorch_model*.bin")]:
        weights |= _read_headers(path)
    if base != name:
        for path in Path(name).glob("adapter_model.*"):
            of_adapter |= {key.removeprefix("base_model.model.") for key in _read_headers(path)}
    outline, info = auto_class.from_pretrained(base, device_map="meta", output_loading_info=True, **options)
    mismatched = {key for key, *_ in info["mismatched_keys"]}
    prefix = f"{outline.base_model_prefix}."
    floating = {key.removeprefix(prefix) for key, weight in outline.state_dict().items() if weight.is_floating_point()}
    integers = [key for key, weight in weights.items() if not weight.is_floating_point()]
    in_body = _body_of(outline, auto_class is AutoModel)
    for problem, names in {
        "the checkpoint lacks": filter(in_body, info["missing_keys"]),
        "the model of its config.json has no": filter(in_body, info["unexpected_keys"]),
        "config.json and weights disagree on the size of": filter(in_body, mismatched),
        "the checkpoint holds integers for": [key for key in integers if key.removeprefix(prefix) in floating],
    }.items():
        if wrong := sorted(names):
            raise InputError(f"{problem} {_first_names(wrong)}")
    return sorted((info["missing_keys"] | mismatched) - of_adapter)


def _weights_of_labels(auto_class: type, name: str, base: str, options: dict[str, Any]) -> list[str]:
    """The weights that have another size with another number of labels, and those that the checkpoint lacks."""
    config = copy.deepcopy(options["config"])
    config.num_labels += 1
    return _new_weights(auto_class, name, base, options | {"config": config})


def _initialise_anew(model: PreTrainedModel, names: list[str]) -> None:
    """Gives these weights the random values that they have where a checkpoint lacks them."""
    for name in names:
        for part in (model.get_parameter(name), model.get_submodule(name.rpartition(".")[0])):
            part._is_hf_initialized = False
    if names:
        model.initialize_weights()


def _body_of(model: PreTrainedModel, is_base: bool) -> Callable[[str], bool]:
    """A function that tells whether a name is a weight of the body, which is neither head nor pooler nor a buffer."""
    prefix = f"{model.base_model_prefix}."
    # Without a base model the whole model is its head.
    base = model.base_model if is_base or hasattr(model, model.base_model_prefix) else None
    parts = {name.partition(".")[0] for name in base.state_dict()} if base is not None else set()
    buffers = {name.removeprefix(prefix) for name, _ in model.named_buffers()}

    def in_body(name: str) -> bool:
        short = name.removeprefix(prefix)
        inside = short != name or short.partition(".")[0] in parts
        return inside and not short.startswith("pooler.") and short not in buffers

    return in_body


def _check_finite(model: PreTrainedModel, name: str) -> None:
    """Raises ValueError if a weight is not finite."""
    # A sum is finite only if all its terms are, and takes a twentieth of the time of checking each.
    broken = [key for key, weight in model.named_parameters() if not torch.isfinite(weight.sum())]
    if broken and PartialState().is_local_main_process:  # with FSDP, other processes have no weights yet
        raise InputError(
            f"{name}: not all of {_first_names(broken)} is finite. Its training diverged, or the file is damaged: "
            "take an earlier checkpoint, or copy it again."
        )


def check_length(
    max_seq_length: int, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, pair: bool = False
) -> None:
    """Raises ValueError if `max_seq_length` is more than the model can read, or leaves no room for text."""
    longest = positions(model)
    if longest is not None and max_seq_length > longest:
        raise InputError(f"--max_seq_length {max_seq_length} is more than the model's {longest} positions")
    longest = tokenizer.model_max_length
    if max_seq_length > longest:
        raise InputError(f"--max_seq_length {max_seq_length} is more than the tokenizer's {longest} tokens")
    special = tokenizer.num_special_tokens_to_add(pair=pair)
    if max_seq_length <= special:
        raise InputError(f"--max_seq_length {max_seq_length} must be more than the {special} special tokens")


def positions(model: PreTrainedModel) -> int | None:
    """The longest input in tokens; None if there is no limit. RoBERTa's positions start after the id of padding."""
    size = getattr(model.base_model.config, "max_position_embeddings", None)
    if size is None or size < 0:  # XLNet says -1
        return None
    for name, module in model.named_modules():
        is_table = isinstance(module, torch.nn.Embedding) and "position" in name and module.num_embeddings == size
        if is_table and module.padding_idx is not None:
            return size - module.padding_idx - 1
    return size


def _first_names(names: list[str]) -> str:
    """As in "a, b, c and 2 more"."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _verify(name: str) -> None:
    """Raises FileNotFoundError if the path `name` does not exist, OSError if its files do not match SHA256SUMS."""
    path = Path(name)
    is_file = path.suffix in (".json", ".txt")
    if not path.exists() and is_path(name):
        raise MissingFileError(f"{name}: no such {'file' if is_file else 'folder'}")
    verify_checksums(path)


@contextmanager
def _loading_errors(name: str, remedy: str) -> Iterator[None]:
    """Turns any exception of loading `name` into an OSError or ValueError of one line, with a remedy.

    For damaged files the libraries raise exceptions of any type: KeyError, AssertionError, and panics of tokenizers,
    which are not of type Exception. An ImportError stays one; its message says what to install.
    """
    try:
        yield
    except BaseException as error:
        if not (isinstance(error, Exception) or "Panic" in type(error).__name__):
            raise
        if isinstance(error, ImportError):
            line = str(error).strip().partition("\n")[0]
            remedy = "Install it, or choose another model, tokenizer or --attn_implementation."
            raise PackageError(f"cannot load {name}: {line.rstrip('.')}. {remedy}") from error
        reason = str(error) if isinstance(error, (OSError, ValueError)) else f"{type(error).__name__}: {error}"
        if isinstance(error, OSError) and not Path(name).exists():
            remedy = f"{hub_remedy(error, 'the model is')}, or give a local folder."
        error_type = FileError if isinstance(error, OSError) else InputError
        line = textwrap.shorten(reason, 400, placeholder=" ...").rstrip(".")
        raise error_type(f"cannot load {name}: {line}. {remedy}") from error


# The files of a folder


def check_indices(folder: Path) -> None:
    """Raises ValueError unless an index of sharded weights names only files in its folder."""
    for path in folder.glob("*.index.json"):
        names = read_json_object(path).get("weight_map")
        for name in names.values() if isinstance(names, dict) else ():
            if not isinstance(name, str):
                raise InputError(f"{path} names {shown(name)}, which is not a file: copy it again")
            if Path(name).is_absolute() or ".." in Path(name).parts:
                raise InputError(f"{path} names {plain(name)}, which is outside its folder: copy the weights there")


def _read_headers(path: Path) -> dict[str, torch.Tensor]:
    """The weights of a file as tensors on the meta device. PyTorch's zip files are compared with their checksums."""
    from transformers.modeling_utils import load_state_dict  # the import takes seconds, which --help does not need

    try:
        changed = zipfile.ZipFile(path).testzip() if zipfile.is_zipfile(path) else None
        if changed:
            raise InputError(f"{changed} in it was changed")
        return load_state_dict(path, map_location="meta")
    except pickle.UnpicklingError as error:
        raise InputError(
            f"{path.name} is broken, or holds more than tensors, which could run any code: have it converted to "
            "model.safetensors by someone you trust"
        ) from error
    except Exception as error:  # of any type, from safetensors, zip files and pickle
        raise InputError(f"{path.name} is broken or cut short ({type(error).__name__}: {error})") from error
