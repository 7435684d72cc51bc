"""Reads a recipe and flags into the read-only arguments of a run.

A recipe is a YAML file whose keys are a script's flags. Its words, --key=value, are read like those of the command
line, which override them:

    python run_glue.py configs/bert/glue.yaml --task_name sst2 --learning_rate 5e-5

A recipe that names none of do_train, do_eval and do_predict trains and evaluates. The default --output_dir is named
after the recipe and the task: runs/bert/glue/sst2.

Paths, also in recipes, are relative to the directory in which the command runs. Those that begin with configs/ are
found in every directory. Flags of transformers' example scripts, past and present, that have another name or another
value here are translated. A flag that a script has itself is not looked up there.
"""

import argparse
import dataclasses
import difflib
import os
import re
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import yaml
from transformers.hf_argparser import HfArgumentParser, string_to_bool

from elmo_gpt_bert.training.arguments import FILES, PURPOSES_OF, RunArguments, switch_off
from elmo_gpt_bert.training.command_line import program
from elmo_gpt_bert.training.errors import InputError
from elmo_gpt_bert.training.files import read_text


# transformers' flag, or a former one -> this project's flag with the same values.
NAMES = {
    "activation_checkpointing": "gradient_checkpointing",
    "evaluation_strategy": "eval_strategy",
    "feature_cache": "state_cache",
    "max_length": "max_seq_length",
    "max_train_steps": "max_steps",
    "num_warmup_steps": "warmup_steps",
    "per_gpu_eval_batch_size": "per_device_eval_batch_size",
    "per_gpu_train_batch_size": "per_device_train_batch_size",
    "push_to_hub_model_id": "hub_model_id",
    "text_column_name": "text_column_names",
    "tokenizer": "tokenizer_name",
}

# transformers' flags for values of --mixed_precision.
PRECISIONS = ("bf16", "fp16")


Arguments = TypeVar("Arguments", bound=RunArguments)
Fields = TypeVar("Fields")

# The first field of each group in --help -> the group's title. A script's own fields have the title "data and task".
GROUPS = {
    "model_name_or_path": "model",
    "output_dir": "run",
    "per_device_train_batch_size": "training",
    "eval_strategy": "evaluation",
    "save_strategy": "checkpoints",
    "seed": "repetition",
    "mixed_precision": "computation",
    "logging_steps": "reports",
}
SOURCES = {"task_name", "dataset_name", "data_dir", *FILES.split()}  # flags that name data
LISTS = {"report_to"}  # flags that take several values, separated by spaces or commas, or a YAML list
NO_VALUE = ("", "~", "null", "Null", "NULL")  # how YAML writes that there is none

_PACKAGE = Path(__file__).resolve().parents[1]
CONFIGS = next(folder for folder in (_PACKAGE / "configs", _PACKAGE.parent / "configs") if folder.is_dir())

FLAG = re.compile("--[A-Za-z]")
SHARE = re.compile(r"0?\.\d+")  # of the updates, instead of their number
NEGATIVE = re.compile(r"-[\d.]")  # begins a number; argparse takes some of them, such as -1e-5, for flags


def find_config(path: str) -> str:
    """The file of that path or, if there is none and the path begins with configs/, the project's file of that name.

    So the commands of the guides, and recipes that name a configuration, work in every directory.
    """
    first, *rest = Path(path).parts or [""]
    shipped = CONFIGS.joinpath(*rest)
    return str(shipped) if first == "configs" and not Path(path).exists() and shipped.is_file() else path


def updates_or_share(text: str) -> int | float:
    """A number of updates or, as in transformers, their share of all updates."""
    try:
        return float(text) if SHARE.fullmatch(text) and float(text) else int(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text} is neither a number of updates nor a share, as 0.1 is") from error


# Flags whose values the type of their field does not say.
TYPES = {
    "model_name_or_path": find_config,  # it may be a configuration JSON of this project
    "optim": lambda text: "adamw" if text in ("adamw_torch", "adamw_torch_fused") else text,  # in transformers
    "task_name": lambda text: re.sub("[-_ ]", "", text.lower()),  # MRPC, SST-2 and STS-B are mrpc, sst2 and stsb
    "warmup_steps": updates_or_share,
}


class _Parser(HfArgumentParser):
    """transformers' parser without abbreviations. An error is one line, which names the recipe that it is in."""

    recipe: Path | None = None  # whose words are parsed

    def __init__(self, *fields: type, **options: Any) -> None:
        super().__init__(fields, prog=program(), allow_abbrev=False, formatter_class=argparse.HelpFormatter, **options)
        self._negative_number_matcher = NEGATIVE

    def error(self, message: str) -> None:
        if self.recipe is not None:
            message = f"{self.recipe}: {re.sub('^argument --', 'key ', message)}"
        self.exit(2, f"{self.prog}: error: {message}\n")


def parse_fields(fields: type[Fields], argv: list[str] | None, description: str | None = None) -> Fields:
    """The dataclass `fields` of a command without recipes, from `argv`, by default the command line.

    The help texts of the fields state the defaults.
    """
    parser = _Parser(fields, description=description)
    words = _normalize(sys.argv[1:] if argv is None else argv)
    # By default the parser would read a file NAME.args beside the script NAME.py.
    values, unknown = parser.parse_args_into_dataclasses(
        words, return_remaining_strings=True, look_for_args_file=False
    )
    if unknown:
        parser.error(f"unknown argument {unknown[0]}; --help lists all flags")
    return values


def parse_arguments(arguments_class: type[Arguments], argv: list[str] | None = None) -> Arguments:
    """Reads `[RECIPE.yaml] --flag value ...` (default: the command line) into read-only arguments.

    A flag overrides the recipe's word of the same name, and its words that have no effect beside the flag
    (`switch_off`). Flags of transformers' example scripts are translated. Prints one line and exits with status 2 if a
    flag or key is unknown, a value is missing or has the wrong type, or two contradict each other.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    parser = _RunParser(arguments_class)
    path = Path(find_config(words.pop(0))) if words and not words[0].startswith("-") else None
    recipe: dict[str, Any] = {}
    try:
        if path is not None:
            recipe = parser.read(_read_recipe(path, parser.optional), path)
        flags = parser.read(words)
        if path is not None:
            recipe = parser.defaults_with(path, recipe, flags) | recipe
        recipe = switch_off(arguments_class, recipe, flags)
        given = recipe | flags
        if given.keys() & {"bf16", "fp16"}:  # --bf16 false, alone, means float32, not auto
            given = {"mixed_precision": "no"} | given
        values = {name: value for name, value in given.items() if name in parser.names}
        if missing := [f"--{name}" for name in parser.required if name not in values]:
            raise InputError(f"the following arguments are required: {', '.join(missing)}")
        args = arguments_class(**values)
    except ValueError as error:
        flag = re.match(r"--(\w+)", str(error))
        parser.recipe = path if flag is not None and flag[1] in recipe.keys() - flags.keys() else None
        parser.error(str(error))
    return args


def _normalize(argv: list[str]) -> list[str]:
    """The words with underscores in flags and the home folder for ~ in values."""
    words = []
    for word in argv:
        flag, equals, value = word.partition("=") if FLAG.match(word) else ("", "", word)
        value = ",".join(map(os.path.expanduser, value.split(",")))  # some flags take several paths
        words.append(flag[:2] + flag[2:].replace("-", "_") + equals + value)
    return words


def _read_recipe(recipe: Path, optional: Collection[str]) -> list[str]:
    """The words --key=value of a recipe, each value as the text that is written there.

    YAML's own types would change values: no is false, 1.10 is 1.1, 2026_11_23 is a number, and 1e-5 is none. As for
    transformers' HfArgumentParser, null is the default of an `optional` key, and "null" in quotes is a text.
    Raises ValueError if the file is not a mapping, or a key occurs twice, has no value, or more than one.
    """
    try:
        root = yaml.compose(read_text(recipe), yaml.BaseLoader)
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise InputError(f"cannot read the recipe {recipe}: {' '.join(str(error).split())}") from error
    if not isinstance(root, yaml.MappingNode):
        raise InputError(f"{recipe}: a recipe is a YAML mapping of flags to values")
    words: dict[str, str] = {}
    for node, value in root.value:
        key = node.value if isinstance(node, yaml.ScalarNode) else "?"
        key = key[:60].encode("unicode_escape").decode()  # on one short line
        if not re.fullmatch(r"[A-Za-z][\w-]*", key, flags=re.ASCII):
            raise InputError(f"{recipe}: unknown key {key}; --help lists all flags")
        key = key.replace("-", "_")
        if key in words:
            raise InputError(f"{recipe}: {key} occurs twice")
        texts = value.value if isinstance(value, yaml.SequenceNode) and key in LISTS else [value]
        if not texts or not all(isinstance(text, yaml.ScalarNode) for text in texts):
            raise InputError(f"{recipe}: {key} needs one value, not a list or mapping")
        if any(text.style is None and text.value in NO_VALUE for text in texts):
            if key not in optional:
                raise InputError(f"{recipe}: {key} has no value: leave it out")
            words[key] = ""
        else:
            words[key] = f"--{key}={','.join(text.value for text in texts)}"
    return [word for word in words.values() if word]


# The parser of a script that has recipes


class _RunParser(_Parser):
    """The flags of a class of arguments, in groups. Their other names, which --help does not list, are translated."""

    def __init__(self, arguments_class: type[RunArguments]) -> None:
        title = (sys.modules[arguments_class.__module__].__doc__ or "").partition("\n")[0]
        usage = "%(prog)s [RECIPE.yaml] --flag value ..."
        super().__init__(usage=usage, description=title, argument_default=argparse.SUPPRESS)
        fields = arguments_class.flags()
        self.names = [field.name for field in fields]
        self.required = [field.name for field in fields if field.default is dataclasses.MISSING]
        self.optional = [field.name for field in fields if field.default is None]
        shared = {field.name for field in dataclasses.fields(RunArguments)}
        script_fields = [name for name in self.names if name not in shared]
        titles = GROUPS | dict.fromkeys(script_fields[:1], "data and task")
        types = get_type_hints(arguments_class)
        group = None
        for field in fields:
            group = self.add_argument_group(titles[field.name]) if field.name in titles else group
            self._add(group, field, types[field.name])
        for name in PRECISIONS if "mixed_precision" in self.names else ():
            options = {"type": str.lower, "choices": ("true", "false"), "nargs": "?", "const": "true"}
            self.add_argument(f"--{name}", help=argparse.SUPPRESS, **options)

    def _add(self, group: argparse._ArgumentGroup, field: dataclasses.Field, kind: object) -> None:
        """Adds the flag of a field of type `kind`. For `X | None`, its values are of type X."""
        if type(None) in get_args(kind):
            (kind,) = (part for part in get_args(kind) if part is not type(None))
        text = field.metadata.get("help", "").replace("%", "%%")
        if get_origin(kind) is Literal:
            options = {"type": TYPES.get(field.name), "choices": get_args(kind), "metavar": "NAME"}
            text += f": {', '.join(get_args(kind))}"
        elif kind is bool:
            options = {"type": string_to_bool, "nargs": "?", "const": True, "metavar": "BOOL"}
            opposite = f"no_{field.name}"
            self.add_argument(f"--{opposite}", dest=field.name, action="store_false", help=argparse.SUPPRESS)
        else:
            options = {"type": TYPES.get(field.name, kind), "metavar": {str: "TEXT", int: "N", float: "X"}[kind]}
        if field.name in LISTS:
            options["nargs"] = "+"
        if not any(field.default is value for value in (dataclasses.MISSING, None, False)):
            text += f" (default: {field.default})"
        group.add_argument(f"--{field.name}", help=text, **options)
        for name in [name for name, ours in NAMES.items() if ours == field.name and name not in self.names]:
            self.add_argument(f"--{name}", help=argparse.SUPPRESS, **options)

    def read(self, words: list[str], recipe: Path | None = None) -> dict[str, Any]:
        """The values that the words give to flags; of those that occur twice, the last. A flag's names must agree.

        Of transformers' flags for a precision, those that are false are left as they are, for `switch_off`.
        """
        self.recipe = recipe
        parsed, others = self.parse_known_args(_normalize(words))
        if others:
            self._refuse(others[0])
        given: dict[str, tuple[str, Any]] = {}  # a flag -> the name that set it, and its value
        for name, value in vars(parsed).items():
            ours, value = self._translate(name, value)
            other, former = given.setdefault(ours, (name, value))
            if name != other and value != former:
                both = f"both set --{ours}, give only one of them"
                self.error(f"argument --{name} contradicts --{other}: {both}")
        self.recipe = None
        return {ours: value for ours, (_, value) in given.items()}

    def _refuse(self, word: str) -> None:
        """Ends with one line for a word that is no flag, nor the value of one."""
        if not FLAG.match(word):
            hint = "stands where a flag must be, as in --seed 1; a recipe comes first, before all flags"
            self.error(f"{word[:100]} {hint}")
        name = word[2:].partition("=")[0]
        kind, dashes = ("argument", "--") if self.recipe is None else ("key", "")
        known = [option.removeprefix("--") for option in self._option_string_actions]
        similar = difflib.get_close_matches(name, known, n=1, cutoff=0.8)
        hint = f"did you mean {dashes}{similar[0]}?" if similar else "--help lists all flags"
        self.error(f"unknown {kind} {dashes}{name[:100]}; {hint}")

    def _translate(self, name: str, value: Any) -> tuple[str, Any]:
        """The flag of this script that a flag sets, with its value."""
        if name in PRECISIONS:
            return ("mixed_precision", name) if value == "true" else (name, value)
        ours = name if name in self.names else NAMES[name]
        if ours == "warmup_steps" and isinstance(value, float):
            ours = "warmup_ratio"
        return ours, ",".join(value) if isinstance(value, list) else value

    def defaults_with(self, path: Path, recipe: Mapping[str, Any], flags: Mapping[str, Any]) -> dict[str, Any]:
        """What a run with the recipe in `path` does where its words and the `flags` of the command line do not say it.

        A recipe that says what to do does nothing else. The output folder has the recipe's name and that of what
        is chosen with it: a task, features, or a file where the recipe has no data.
        """
        chosen = [flags.get("task_name"), (recipe | flags).get("features")]
        if recipe.keys().isdisjoint(SOURCES):
            chosen += [Path(flags[name]).stem for name in FILES.split() if flags.get(name)][:1]
        parts = [str(name) for name in chosen if name is not None]
        defaults = {"output_dir": str(Path("runs", path.resolve().parent.name, path.stem, *parts))}
        if recipe.keys().isdisjoint(PURPOSES_OF.values()):
            defaults |= {"do_train": True, "do_eval": True}
        return {name: value for name, value in defaults.items() if name in self.names}
