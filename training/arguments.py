"""Recipe and flags -> the read-only `args` of a run.

A recipe is a YAML file whose keys are exactly the script's flags, which win over it:

    python run_glue.py configs/bert/sst2.yaml --learning_rate 5e-5

Paths, in recipes too, are relative to the directory the command runs in; the recipes under configs/ are written for
the repository's root.
"""

import argparse
import dataclasses
import difflib
import glob
import math
import os
import re
import reprlib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import yaml
from transformers.hf_argparser import HfArg, string_to_bool

from training.aliases import NAMES, VALUES, translate


TRACKERS = ("tensorboard", "wandb", "trackio")
NAMES_OF_FILES = ("_path", "_dir", "_file", "_cache", "_name")  # how the names of their flags end
LONGEST_NAME = 255  # bytes, of a file on most systems


@dataclass(frozen=True, kw_only=True)
class RunArguments:
    """What any run needs; a script subclasses it with its own few fields. Names and meanings are transformers'."""

    model_name_or_path: str = HfArg(help="checkpoint folder, Hub id, or config JSON (random weights)")
    config_overrides: str | None = HfArg(
        default=None, help="other values of fields of its configuration, as in task_dropout=0.3,use_crf=false"
    )
    tokenizer_name: str | None = HfArg(
        default=None,
        help="folder, Hub id or vocab.txt, where it differs from the model's; required with a config JSON",
    )
    do_lower_case: bool = HfArg(default=True, help="casing for a vocab.txt; other tokenizers know their own")
    implementation: Literal["zoo", "transformers"] = HfArg(
        default="zoo", help="whose model code runs: this project's, or transformers' own for comparison"
    )
    attn_implementation: str | None = HfArg(default=None, help="eager, sdpa, flash_attention_2, ...")
    trust_remote_code: bool = HfArg(default=False, help="run model code that comes with the checkpoint")
    output_dir: str = HfArg(help="receives checkpoint, metrics.json, predictions and model card")
    overwrite_output_dir: bool = HfArg(default=False, help="write into a folder that already holds something")
    resume: bool = HfArg(default=False, help="go on from the newest whole checkpoint in OUTPUT_DIR, if there is one")
    do_train: bool = HfArg(default=False, help="train on the train split")
    do_eval: bool = HfArg(default=False, help="evaluate, after each epoch when training")
    do_predict: bool = HfArg(default=False, help="write predictions for the test split")
    save_outputs: bool = HfArg(
        default=False, help="keep what the final model gives for the validation and the test set, for --ensemble"
    )
    ensemble: str | None = HfArg(
        default=None,
        help="output folders of runs with --save_outputs, as in runs/a,runs/b or 'runs/a/seed-*': the mean of what "
        "they kept takes the place of the model's outputs",
    )
    per_device_train_batch_size: int = HfArg(default=8, help="examples a process and micro-batch")
    per_device_eval_batch_size: int = HfArg(default=32, help="examples a process and batch")
    gradient_accumulation_steps: int = HfArg(default=1, help="micro-batches an update")
    optim: Literal["adamw", "bert_adam"] = HfArg(
        default="adamw", help="AdamW, or BERT's Adam of 2018, which does not correct the bias of its early averages"
    )
    learning_rate: float = HfArg(default=5e-5, help="its peak")
    layerwise_lr_decay: float = HfArg(
        default=1.0, help="factor of the learning rate from each layer to the one below it (Howard and Ruder 2018)"
    )
    reinit_layers: int = HfArg(
        default=0, help="start this many top layers, and the pooler, from random weights (Zhang et al. 2021)"
    )
    weight_decay: float = HfArg(default=0.0, help="on matrices only")
    adam_beta1: float = HfArg(default=0.9, help="of the running mean of gradients")
    adam_beta2: float = HfArg(default=0.999, help="of the running mean of their squares")
    adam_epsilon: float = HfArg(default=1e-8, help="added to the root of the latter")
    max_grad_norm: float = HfArg(default=1.0, help="clips the norm of the gradient; 0 does not clip")
    num_train_epochs: float = HfArg(default=3.0, help="fractions are possible")
    max_steps: int = HfArg(default=-1, help="updates in all, instead of epochs")
    lr_scheduler_type: Literal["linear", "cosine", "constant", "constant_with_warmup"] = HfArg(
        default="linear", help="how the learning rate goes on after its peak"
    )
    warmup_ratio: float = HfArg(default=0.0, help="share of the updates with a rising learning rate")
    warmup_steps: int = HfArg(default=0, help="updates with a rising learning rate, instead of their share")
    max_loss_rise: float = HfArg(
        default=1.0,
        help="stop when the loss (mean of 20 updates) is above its lowest by this many times the first; 0: never",
    )
    eval_strategy: Literal["no", "steps", "epoch"] | None = HfArg(
        default=None,
        help="when to evaluate, beside at the end; default: steps where --eval_steps is given, or epoch",
    )
    eval_steps: int | None = HfArg(default=None, help="updates between two evaluations")
    load_best_model_at_end: bool = HfArg(default=False, help="keep the best of the evaluated models, not the last")
    metric_for_best_model: str | None = HfArg(default=None, help="what best means; default: the task's first metric")
    early_stopping_patience: int | None = HfArg(
        default=None, help="stop after this many evaluations in a row that are no better than the best"
    )
    save_strategy: Literal["no", "steps", "epoch"] = HfArg(default="epoch", help="when to save what --resume needs")
    save_steps: int = HfArg(default=500, help="updates between two checkpoints with --save_strategy steps")
    save_total_limit: int = HfArg(default=2, help="checkpoints kept, beside the best")
    seed: int = HfArg(default=42, help="of the order of examples, dropout and new weights")
    seeds: int = HfArg(default=1, help="repeat the run with this many seeds, from --seed on, and keep the best")
    max_restarts: int = HfArg(
        default=0, help="replace runs that predict one class only by runs with further seeds, at most so many"
    )
    mixed_precision: Literal["no", "fp16", "bf16"] = HfArg(
        default="no", help="what most products are computed in; weights stay in float32"
    )
    matmul_precision: Literal["highest", "high", "medium"] = HfArg(
        default="highest", help="of float32 matrix products; below highest they may round to TF32 or bfloat16"
    )
    gradient_checkpointing: bool = HfArg(default=False, help="recompute activations: less memory, more time")
    group_by_length: bool = HfArg(default=False, help="train on batches of similar lengths: less padding")
    pad_to_max_length: bool = HfArg(default=False, help="one shape for every batch, for XLA and compile")
    dataloader_num_workers: int = HfArg(
        default=0, help="processes that make batches ready beside each process that trains; 0: none"
    )
    logging_steps: int = HfArg(default=50, help="updates between two values of the training loss")
    report_to: str = HfArg(
        default="none",
        help=f"who draws the curves: {', '.join(TRACKERS)}, several of these, or all that are installed; "
        "TensorBoard's are under OUTPUT_DIR/runs",
    )
    push_to_hub: bool = HfArg(default=False, help="upload the output folder at the end")
    hub_model_id: str | None = HfArg(default=None, help="repository to push to; default: the output folder's name")
    hub_private_repo: bool = HfArg(default=False, help="make that repository, where it is new, a private one")

    def __post_init__(self) -> None:
        if not (self.do_train or self.do_eval or self.do_predict):
            raise ValueError("nothing to do: give at least one of --do_train, --do_eval, --do_predict")
        if self.ensemble is not None and self.do_train:
            raise ValueError("--ensemble averages runs that were trained before: leave --do_train out")
        if self.save_outputs and not (self.do_eval or self.do_predict):
            raise ValueError("--save_outputs keeps what --do_eval and --do_predict compute: give one of them")
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(f"--{field.name} must be a finite number, not {value}")
            if value == "":
                raise ValueError(f"--{field.name} is empty")
            names = value.split("/") if field.name.endswith(NAMES_OF_FILES) and isinstance(value, str) else []
            if any(len(os.fsencode(name)) > LONGEST_NAME for name in names):
                raise ValueError(f"--{field.name} {value[:20]}... has a name longer than {LONGEST_NAME} bytes")
        positive = ["per_device_train_batch_size", "per_device_eval_batch_size", "gradient_accumulation_steps"]
        positive += ["logging_steps", "eval_steps", "save_steps", "save_total_limit", "early_stopping_patience"]
        positive += ["seeds", "layerwise_lr_decay"] + (["num_train_epochs"] if self.max_steps == -1 else [])
        for name in positive:
            if getattr(self, name) is not None and getattr(self, name) <= 0:
                raise ValueError(f"--{name} must be positive, not {getattr(self, name)}")
        rates = ["learning_rate", "weight_decay", "max_grad_norm", "max_loss_rise", "adam_epsilon"]
        for name in [*rates, "reinit_layers", "max_restarts", "warmup_steps", "dataloader_num_workers"]:
            if getattr(self, name) < 0:
                raise ValueError(f"--{name} must not be negative, not {getattr(self, name)}")
        for name in ["adam_beta1", "adam_beta2"]:
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"--{name} must be at least 0 and below 1, not {getattr(self, name)}")
        if not 0 <= self.seed <= 2**31:  # numpy takes twice that; further seeds and processes count on from it
            raise ValueError(f"--seed must be between 0 and {2**31}, not {self.seed}")
        if self.max_steps == 0 or self.max_steps < -1:
            raise ValueError(f"--max_steps must be positive, or -1 to count epochs, not {self.max_steps}")
        choosing = self.load_best_model_at_end or self.early_stopping_patience or self.seeds > 1 or self.max_restarts
        if choosing and not (self.do_train and self.do_eval):
            raise ValueError("to choose among models, or to stop early, a run needs --do_train and --do_eval")
        self._check_evaluations()
        self._check_warm_up()
        self._check_trackers()
        if self.implementation == "transformers" and self.trust_remote_code:
            raise ValueError(
                "--implementation transformers runs transformers' own code, --trust_remote_code the checkpoint's: "
                "give one of them"
            )
        if self.model_name_or_path.endswith(".json") and self.tokenizer_name is None:
            raise ValueError(
                f"{self.model_name_or_path} is a configuration without a tokenizer: give --tokenizer_name"
            )

    def _check_evaluations(self) -> None:
        for name in ["eval_steps", "eval_strategy"]:
            if getattr(self, name) not in (None, "no") and not (self.do_train and self.do_eval):
                raise ValueError(f"--{name} says when training stops to evaluate: give --do_train and --do_eval")
        if self.eval_strategy == "steps" and self.eval_steps is None:
            raise ValueError("--eval_strategy steps needs --eval_steps, the updates between two evaluations")
        for name in ["load_best_model_at_end", "early_stopping_patience"]:
            if self.eval_strategy == "no" and getattr(self, name):
                raise ValueError(f"--{name} needs evaluations to choose among: --eval_strategy steps or epoch")

    def _check_warm_up(self) -> None:
        if not 0 <= self.warmup_ratio <= 1:
            raise ValueError(f"--warmup_ratio must be between 0 and 1, not {self.warmup_ratio}")
        if self.warmup_ratio and self.warmup_steps:
            raise ValueError(
                f"--warmup_ratio {self.warmup_ratio} and --warmup_steps {self.warmup_steps} both say how long the "
                "learning rate rises: give one of them"
            )
        for name in ["warmup_ratio", "warmup_steps"]:
            if getattr(self, name) and self.lr_scheduler_type == "constant":
                raise ValueError(f"--{name} needs another --lr_scheduler_type, e.g. constant_with_warmup")

    def _check_trackers(self) -> None:
        chosen = self.report_to.split(",")
        for name in chosen:
            if name not in ("none", "all", *TRACKERS):
                raise ValueError(f"--report_to {name} is none of none, all, {', '.join(TRACKERS)}")
        if len(chosen) > 1 and not {*chosen} <= {*TRACKERS}:
            raise ValueError(f"--report_to {self.report_to}: none and all stand alone")


@dataclass(frozen=True, kw_only=True)
class DataArguments(RunArguments):
    """What the scripts share that read texts in three splits."""

    data_dir: str | None = HfArg(default=None, help="folder of the data as they were published")
    train_file: str | None = HfArg(default=None, help="a file of your own")
    validation_file: str | None = HfArg(default=None, help="another, to evaluate on")
    test_file: str | None = HfArg(default=None, help="another, to predict; it needs no labels")
    max_seq_length: int = HfArg(default=128, help="tokens; longer texts are cut")
    max_train_samples: int | None = HfArg(default=None, help="only the first examples to train on")
    max_eval_samples: int | None = HfArg(default=None, help="only the first to evaluate on")
    max_predict_samples: int | None = HfArg(default=None, help="only the first to predict")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ["max_train_samples", "max_eval_samples", "max_predict_samples"]:
            limit = getattr(self, name)
            if limit is not None and limit <= 0:
                raise ValueError(f"--{name} must be positive, not {limit}")
        model, output = Path(self.model_name_or_path), Path(self.output_dir)
        if self.overwrite_output_dir and not self.do_train and model.is_dir() and output.resolve() == model.resolve():
            raise ValueError(
                f"--overwrite_output_dir would lose the results of the run in {model}: give another --output_dir, or, "
                "for its predictions, repeat its own command with --do_predict --resume"
            )

    @property
    def parts(self) -> dict[str, bool]:
        """split -> does this run need it?"""
        return {"train": self.do_train, "validation": self.do_eval, "test": self.do_predict}

    @property
    def limits(self) -> dict[str, int | None]:
        """split -> how many of its examples this run takes; None: all"""
        return {"train": self.max_train_samples, "validation": self.max_eval_samples, "test": self.max_predict_samples}


def hub_model_id(args: RunArguments) -> str:
    return args.hub_model_id or Path(args.output_dir).resolve().name


def published(args: RunArguments) -> dict[str, Any]:
    """The arguments as strangers may see them: of files and folders the names, without where they lie."""
    values = dataclasses.asdict(args)
    names = {name: _without_folders(value) for name, value in values.items() if isinstance(value, str)}
    return values | names | {"hub_model_id": args.hub_model_id}  # a folder may have the same name


def _without_folders(value: str) -> str:
    """Of each path in `value`, which --ensemble parts by commas, the last part; all else, as Hub ids, stays."""

    def is_path(text: str) -> bool:
        return os.path.isabs(text) or text.startswith((".", "~")) or bool(glob.glob(text))

    if is_path(value):
        return os.path.basename(os.path.abspath(value))
    return ",".join(Path(part).name if is_path(part) else part for part in value.split(","))


Arguments = TypeVar("Arguments", bound=RunArguments)

# The headings of --help, each with the first of the fields below it; what a script adds stands under "data and task".
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
# A flag -> the key of a recipe that says otherwise by another name: the flag wins.
DISPLACED = {
    "warmup_steps": "warmup_ratio",
    "warmup_ratio": "warmup_steps",
    "eval_steps": "eval_strategy",
    "num_train_epochs": "max_steps",
}
LISTS = {"report_to"}  # flags that take several values, separated by spaces or commas, or a YAML list

Given = list[tuple[str, list[str]]]  # flags or keys as they were given, each with its values


class _Parser(argparse.ArgumentParser):
    """The flags of a class of arguments, in groups. An error is one line that says whether recipe or flag is wrong."""

    recipe: Path | None = None
    recipe_keys: frozenset[str] = frozenset()

    def __init__(self, arguments_class: type[RunArguments]) -> None:
        title = (sys.modules[arguments_class.__module__].__doc__ or "").partition("\n")[0]
        super().__init__(usage="%(prog)s [RECIPE.yaml] --flag value ...", description=title, allow_abbrev=False)
        types = get_type_hints(arguments_class)
        self.names = [field.name for field in dataclasses.fields(arguments_class)]
        self.booleans = {name for name in self.names if types[name] is bool}
        added = self.names[len(dataclasses.fields(RunArguments)) :]
        titles = GROUPS | dict.fromkeys(added[:1], "data and task")
        group = None
        for field in dataclasses.fields(arguments_class):
            group = self.add_argument_group(titles[field.name]) if field.name in titles else group
            _add(group, field, types[field.name])

    def error(self, message: str) -> None:
        key = re.match(r"argument --(\w+)", message)
        origin = f"{self.recipe}: " if key and key.group(1) in self.recipe_keys else ""
        self.exit(2, f"{self.prog}: error: {origin}{message}\n")


def _add(group: argparse._ArgumentGroup, field: dataclasses.Field, kind: object) -> None:
    """The flag of one field of type `kind`; of `X | None` the values are those of X."""
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
    """Reads `[RECIPE.yaml] --flag value ...` (default: the command line) into read-only arguments; flags win.

    Flags and keys of transformers' example scripts are taken for ours. Prints one line and exits with status 2 on an
    unknown key or flag, a value of the wrong type, a missing one, or two that contradict each other.
    """
    argv = sys.argv[1:] if argv is None else list(argv)
    parser = _Parser(arguments_class)
    keys: Given = []
    if argv and not argv[0].startswith("-"):
        parser.recipe = Path(argv.pop(0))
        keys = _read_recipe(parser)
    settings = _in_our_words(keys, f"{parser.recipe}: key ", "", parser)
    typed = _split(argv)
    if {name for name, _ in typed} & {"h", "help"}:
        parser.print_help()
        parser.exit()
    flags = _in_our_words(typed, "argument ", "--", parser)
    for name in flags.keys() & DISPLACED.keys():
        settings.pop(DISPLACED[name], None)
    parser.recipe_keys = frozenset(settings.keys() - flags.keys())
    words = [word for name, values in (settings | flags).items() for word in _flag(name, values)]
    namespace, unknown = parser.parse_known_args(words)
    if unknown:
        parser.error(f"unknown argument {unknown[0]}; --help lists what exists")
    try:
        args = arguments_class(**vars(namespace))
        _check_own_checkpoint(dict(keys + typed).get("resume_from_checkpoint", []), args)
    except ValueError as error:
        parser.error(str(error))
    return args


def _split(argv: list[str]) -> Given:
    """The flags, without dashes in front and within, each with the words behind it."""
    given: Given = []
    for word in argv:
        if re.match("--?[A-Za-z]", word):  # -1 and -.5 are values
            name, equals, value = word.partition("=")
            given.append((name.lstrip("-").replace("-", "_"), [value] if equals else []))
        else:
            given[-1][1].append(word)
    return given


def _flag(name: str, values: list[str]) -> list[str]:
    if name in LISTS:
        values = [",".join(values)]
    return [f"--{name}={values[0]}", *values[1:]] if values else [f"--{name}"]


def _in_our_words(given: Given, where: str, dashes: str, parser: _Parser) -> dict[str, list[str]]:
    """Our flags with their values, whatever names were `given`; of those given twice the last."""
    settings: dict[str, list[str]] = {}
    origins: dict[str, str] = {}
    for name, values in given:
        try:
            negated = name.removeprefix("no_") if name.startswith("no_") else ""
            known = {negated: ["false", *values]} if negated in parser.booleans else None
            known = known or translate(name, values, parser.names)
        except ValueError as error:
            parser.error(f"{where}{dashes}{name}: {error}")
        if known is None:
            parser.error(_unknown(f"{where}{dashes}{name}", name, dashes, parser.names))
        for flag, value in known.items():
            if settings.get(flag, value) != value and origins[flag] != name:
                parser.error(
                    f"{where}{dashes}{name} contradicts {dashes}{origins[flag]}: both say what {dashes}{flag} is, "
                    "give one of them"
                )
            settings[flag], origins[flag] = value, name
    return settings


def _check_own_checkpoint(values: list[str], args: RunArguments) -> None:
    """Raises ValueError where --resume_from_checkpoint names another checkpoint than the one --resume goes on from."""
    if not values or values[0].lower() in ("true", "false"):
        return
    path, output = Path(values[0]).resolve(), Path(args.output_dir).resolve()
    if path not in (output, *output.glob("checkpoint-*")):
        raise ValueError(
            f"--resume_from_checkpoint {values[0]}: a run goes on from a checkpoint in its own --output_dir; to train "
            "on from another, give it as --model_name_or_path"
        )
    later = [other for other in output.glob("checkpoint-*") if _number(other) > _number(path)]
    if path != output and later:
        raise ValueError(
            f"--resume_from_checkpoint {values[0]}: a run goes on from its newest checkpoint, which is "
            f"{max(later, key=_number).name}: remove those that are later"
        )


def _number(checkpoint: Path) -> int:
    number = checkpoint.name.rpartition("-")[2]
    return int(number) if number.isdecimal() else 0


class _RecipeLoader(yaml.SafeLoader):
    """Of YAML what a recipe needs: a mapping to single values, or lists of them, in which no key stands twice.

    Aliases and nesting, which make gigabytes of a few bytes, are refused before anything is made of them.
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
                raise yaml.constructor.ConstructorError(None, None, f"{key.value} stands there twice", key.start_mark)
        return super().construct_mapping(node, deep)


def _read_recipe(parser: _Parser) -> Given:
    """The YAML's keys with their values as they would be typed, so that one parser checks the types of both."""
    try:
        content = yaml.load(parser.recipe.read_text(encoding="utf-8"), _RecipeLoader)
    except (OSError, ValueError, yaml.YAMLError) as error:
        parser.error(f"cannot read the recipe {parser.recipe}: {' '.join(str(error).split())}")
    if not isinstance(content, dict):
        parser.error(f"{parser.recipe}: a recipe is a YAML mapping of flags to values")
    given: Given = []
    for key, value in content.items():
        values = value if isinstance(value, list) and key in LISTS else [value]
        if not values or any(each is None or isinstance(each, list) for each in values):
            parser.error(f"{parser.recipe}: {key} needs one value, not {reprlib.repr(value)}")
        given.append((str(key), [str(each) for each in values]))
    return given


def _unknown(what: str, name: str, dashes: str, names: list[str]) -> str:
    close = difflib.get_close_matches(name[:100], [*names, *NAMES, *VALUES], n=1, cutoff=0.8)
    return f"unknown {what}" + (f"; did you mean {dashes}{close[0]}?" if close else "; --help lists what exists")
