"""Reads a recipe and flags into the read-only arguments of a run.

A recipe is a YAML file whose keys are the script's flags. Flags on the command line override it:

    python run_glue.py configs/bert/sst2.yaml --learning_rate 5e-5

Paths, also in recipes, are relative to the directory in which the command runs. Those that begin with configs/ are
found in every directory.
"""

import argparse
import dataclasses
import difflib
import re
import reprlib
import sys
from pathlib import Path
from typing import Literal, TypeVar, get_args, get_origin, get_type_hints

import yaml
from transformers.hf_argparser import HfArgumentParser, string_to_bool

from elmo_gpt_bert.training.aliases import NAMES, VALUES, translate
from elmo_gpt_bert.training.arguments import RunArguments
from elmo_gpt_bert.training.errors import InputError, flags_in_errors
from elmo_gpt_bert.training.files import read_text
from elmo_gpt_bert.training.recipes import find_config


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
# A flag -> the key of a recipe that it overrides, although the key has another name.
OVERRIDDEN_KEYS = {
    "warmup_steps": "warmup_ratio",
    "warmup_ratio": "warmup_steps",
    "eval_steps": "eval_strategy",
    "save_steps": "save_strategy",
    "save_strategy": "save_steps",
    "num_train_epochs": "max_steps",
    "train_file": "dataset_name",
}
# A flag and its value -> the keys of a recipe that are not used with it.
UNUSED_KEYS = {
    ("lr_scheduler_type", "constant"): ("warmup_ratio", "warmup_steps", "decay_ratio"),
    **{("lr_scheduler_type", name): ("decay_ratio",) for name in ("constant_with_warmup", "linear", "cosine")},
    **{(name, "false"): ("eval_strategy", "eval_steps") for name in ("do_train", "do_eval")},
}
CONFIGURATIONS = {"model_name_or_path"}  # flags whose value may be a configuration JSON of this project
LISTS = {"report_to"}  # flags that take several values, separated by spaces or commas, or a YAML list

NO_VALUE = ("", "~", "null", "Null", "NULL")  # how YAML writes that there is none
FLAG = re.compile("--?[A-Za-z]")  # -1 and -.5 are values

Settings = list[tuple[str, list[str]]]  # flags or keys as the user wrote them, each with its values


def parse_fields(fields: type[Fields], argv: list[str] | None, description: str | None = None) -> Fields:
    """The dataclass `fields` of a command without recipes, from `argv`, by default the command line.

    The help texts of the fields state the defaults.
    """
    form = {"allow_abbrev": False, "formatter_class": argparse.HelpFormatter, "description": description}
    parser = HfArgumentParser(fields, **form)
    values, unknown = parser.parse_args_into_dataclasses(argv, return_remaining_strings=True)
    if unknown:
        parser.exit(2, f"{parser.prog}: error: unknown argument {unknown[0]}; --help lists all flags\n")
    return values


class _Parser(argparse.ArgumentParser):
    """The flags of a class of arguments, in groups. An error is one line, which names the recipe if that is wrong."""

    recipe: Path | None = None
    recipe_keys: frozenset[str] = frozenset()

    def __init__(self, arguments_class: type[RunArguments]) -> None:
        title = (sys.modules[arguments_class.__module__].__doc__ or "").partition("\n")[0]
        super().__init__(usage="%(prog)s [RECIPE.yaml] --flag value ...", description=title, allow_abbrev=False)
        types = get_type_hints(arguments_class)
        self.names = [field.name for field in arguments_class.flags()]
        self.booleans = {name for name in self.names if types[name] is bool}
        self.former_names = {  # former name -> name, from HfArg(aliases=["--NAME"]); not listed in --help
            alias.removeprefix("--"): field.name
            for field in arguments_class.flags()
            for alias in field.metadata.get("aliases", [])
        }
        shared = {field.name for field in dataclasses.fields(RunArguments)}
        script_fields = [name for name in self.names if name not in shared]
        titles = GROUPS | dict.fromkeys(script_fields[:1], "data and task")
        group = None
        for field in arguments_class.flags():
            group = self.add_argument_group(titles[field.name]) if field.name in titles else group
            _add(group, field, types[field.name])

    def error(self, message: str) -> None:
        key = re.match(r"argument --(\w+)", message)
        origin = f"{self.recipe}: " if key and key.group(1) in self.recipe_keys else ""
        self.exit(2, f"{self.prog}: error: {origin}{message}\n")


def _add(group: argparse._ArgumentGroup, field: dataclasses.Field, kind: object) -> None:
    """Adds the flag of a field of type `kind`. For `X | None`, the flag's values are of type X."""
    if type(None) in get_args(kind):
        (kind,) = (part for part in get_args(kind) if part is not type(None))
    text = field.metadata.get("help", "").replace("%", "%%")
    options: dict[str, object] = {"required": field.default is dataclasses.MISSING}
    if get_origin(kind) is Literal:
        options |= {"choices": get_args(kind), "metavar": "NAME"}
        text += f": {', '.join(get_args(kind))}"
    elif kind is bool:
        options |= {"type": string_to_bool, "nargs": "?", "const": True, "metavar": "BOOL"}
    else:
        options |= {"type": kind, "metavar": {str: "TEXT", int: "N", float: "X"}[kind]}
    if not options["required"]:
        options["default"] = field.default
        text += "" if field.default is None or field.default is False else f" (default: {field.default})"
    group.add_argument(f"--{field.name}", help=text, **options)


def parse_arguments(arguments_class: type[Arguments], argv: list[str] | None = None) -> Arguments:
    """Reads `[RECIPE.yaml] --flag value ...` (default: the command line) into read-only arguments.

    Flags override the recipe. Flags and keys of transformers' example scripts are translated. Prints one line and
    exits with status 2 if a flag or key is unknown, a value is missing or has the wrong type, or two contradict each
    other.
    """
    argv = sys.argv[1:] if argv is None else list(argv)
    parser = _Parser(arguments_class)
    keys: Settings = []
    if argv and not argv[0].startswith("-"):
        parser.recipe = Path(find_config(argv.pop(0)))
        keys = _read_recipe(parser)
    settings = _translate_settings(keys, f"{parser.recipe}: key ", "", parser)
    if argv and not FLAG.match(argv[0]):
        parser.error(f"{argv[0][:100]} stands where a flag must be, as in --seed 1")
    command_line = _split(argv)
    surplus = [word for name, values in command_line for word in values[name not in parser.booleans :]]
    if late := [word for word in surplus if word.endswith((".yaml", ".yml"))]:
        parser.error(f"{late[0][:100]} stands after a flag: give the recipe first, before all flags")
    if {name for name, _ in command_line} & {"h", "help"}:
        parser.print_help()
        parser.exit()
    flags = _translate_settings(command_line, "argument ", "--", parser)
    for name in flags.keys() & OVERRIDDEN_KEYS.keys():
        if flags[name] != ["steps"]:  # --save_strategy, which takes their number from the recipe
            settings.pop(OVERRIDDEN_KEYS[name], None)
    for name, values in flags.items():
        for key in UNUSED_KEYS.get((name, "".join(values).lower()), ()):
            settings.pop(key, None)
    for name, values in command_line:  # --bf16 false, which says nothing where the recipe has another precision
        if [value.lower() for value in values] == ["false"] and settings.get("mixed_precision") == [name]:
            settings["mixed_precision"] = ["no"]
    parser.recipe_keys = frozenset(settings.keys() - flags.keys())
    words = [word for name, values in (settings | flags).items() for word in _flag(name, values)]
    namespace, unknown = parser.parse_known_args(words)
    if unknown:
        parser.error(f"unknown argument {unknown[0]}; --help lists all flags")
    try:
        with flags_in_errors():
            args = arguments_class(**vars(namespace))
        _check_resume_from_checkpoint(dict(keys + command_line).get("resume_from_checkpoint", []), args)
    except ValueError as error:
        parser.error(str(error))
    return args


def _split(argv: list[str]) -> Settings:
    """The flags as names of fields, each with the words that follow it."""
    settings: Settings = []
    for word in argv:
        if FLAG.match(word):
            name, equals, value = word.partition("=")
            settings.append((name.lstrip("-").replace("-", "_"), [value] if equals else []))
        else:
            settings[-1][1].append(word)
    return settings


def _flag(name: str, values: list[str]) -> list[str]:
    """The words of a flag for argparse."""
    if name in LISTS:
        values = [",".join(values)]
    elif name in CONFIGURATIONS:
        values = [*map(find_config, values)]
    return [f"--{name}={values[0]}", *values[1:]] if values else [f"--{name}"]


def _translate_settings(settings: Settings, where: str, dashes: str, parser: _Parser) -> dict[str, list[str]]:
    """flag -> values, with this project's names of flags. If a flag occurs twice, the last values count.

    where: the beginning of an error message; dashes: what stands before a name in it
    """
    flags: dict[str, list[str]] = {}
    origins: dict[str, str] = {}  # flag -> the name that the user wrote
    for name, values in settings:
        try:
            negated = name.removeprefix("no_") if name.startswith("no_") else ""
            translated = {negated: ["false", *values]} if negated in parser.booleans else None
            translated = translated or translate(parser.former_names.get(name, name), values, parser.names)
        except ValueError as error:
            parser.error(f"{where}{dashes}{name}: {error}")
        if translated is None:
            parser.error(_unknown(f"{where}{dashes}{name}", name, dashes, [*parser.names, *parser.former_names]))
        for flag, value in translated.items():
            if flags.get(flag, value) != value and origins[flag] != name:
                parser.error(
                    f"{where}{dashes}{name} contradicts {dashes}{origins[flag]}: both set {dashes}{flag}, give only "
                    "one of them"
                )
            flags[flag], origins[flag] = value, name
    return flags


def _check_resume_from_checkpoint(values: list[str], args: RunArguments) -> None:
    """Raises ValueError if --resume_from_checkpoint names another checkpoint than the one that --resume loads."""
    if not values or values[0].lower() in ("true", "false"):
        return
    path, output = Path(values[0]).resolve(), Path(args.output_dir).resolve()
    if path not in (output, *output.glob("checkpoint-*")):
        raise InputError(
            f"--resume_from_checkpoint {values[0]}: a run continues from a checkpoint in its own --output_dir; to "
            "train from another one, give it as --model_name_or_path"
        )
    later = [other for other in output.glob("checkpoint-*") if _number(other) > _number(path)]
    if path != output and later:
        raise InputError(
            f"--resume_from_checkpoint {values[0]}: a run continues from its newest checkpoint, which is "
            f"{max(later, key=_number).name}: remove the newer ones"
        )


def _number(checkpoint: Path) -> int:
    number = checkpoint.name.rpartition("-")[2]
    return int(number) if number.isdecimal() else 0


class _RecipeLoader(yaml.BaseLoader):
    """Loads the part of YAML that recipes need: a mapping of unique keys to texts or lists of texts.

    YAML's own types would change values: no is false, 1.10 is 1.1, and 2026_11_23 is a number.
    Aliases and nesting are refused before they are loaded: with them, a few bytes can become gigabytes.
    """

    def compose_node(self, parent: yaml.Node | None, index: object) -> yaml.Node:
        event = self.peek_event()
        if isinstance(event, yaml.AliasEvent):
            raise yaml.composer.ComposerError(None, None, f"the alias *{event.anchor}", event.start_mark)
        nested = isinstance(event, yaml.MappingStartEvent) or isinstance(parent, yaml.SequenceNode)
        if parent is not None and nested and isinstance(event, yaml.CollectionStartEvent):
            raise yaml.composer.ComposerError(None, None, "more than one value, or a list of them", event.start_mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        keys = [key.value for key, _ in node.value]
        for key, _ in node.value:
            if keys.count(key.value) > 1:
                raise yaml.constructor.ConstructorError(None, None, f"{key.value} occurs twice", key.start_mark)
        return super().construct_mapping(node, deep)


def _read_recipe(parser: _Parser) -> Settings:
    """The recipe's keys with their values as text, whose types the parser of flags checks."""
    try:
        content = yaml.load(read_text(parser.recipe), _RecipeLoader)
    except (OSError, ValueError, yaml.YAMLError) as error:
        parser.error(f"cannot read the recipe {parser.recipe}: {' '.join(str(error).split())}")
    if not isinstance(content, dict):
        parser.error(f"{parser.recipe}: a recipe is a YAML mapping of flags to values")
    settings: Settings = []
    for key, value in content.items():
        values = value if isinstance(value, list) and key in LISTS else [value]
        if not values or any(isinstance(item, list) or item in NO_VALUE for item in values):
            parser.error(f"{parser.recipe}: {_plain(key)} needs one value, not {reprlib.repr(value)}")
        settings.append((_plain(key), values))
    return settings


def _plain(key: str) -> str:
    """Shows a recipe's key on one short line. The name of a flag stays as it is."""
    return key[:60].encode("unicode_escape").decode()


def _unknown(description: str, name: str, dashes: str, names: list[str]) -> str:
    """The error for an unknown flag or key, with the most similar name."""
    similar = difflib.get_close_matches(name[:100], [*names, *NAMES, *VALUES], n=1, cutoff=0.8)
    hint = f"did you mean {dashes}{similar[0]}?" if similar else "--help lists all flags"
    return f"unknown {description}; {hint}"
