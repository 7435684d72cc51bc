"""The arguments of a run, with checks of their values and combinations. flags.py reads them from the command line."""

import dataclasses
import functools
import glob
import json
import math
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, ClassVar, Literal, get_args, get_type_hints

from transformers.hf_argparser import HfArg

from elmo_gpt_bert.training.errors import InputError
from elmo_gpt_bert.training.output_folder import CHECKPOINT, SEED


CURVES = "curves"  # the tracker of this project, which is always installed
TRACKERS = ("tensorboard", "wandb", "trackio", CURVES)
AUTO = "auto"  # the precision that `choose_precision` chooses when a run starts


@dataclass(frozen=True)
class Allowed:
    """The values that a flag accepts, as metadata of an `Annotated` type; the parser of flags sees only the type."""

    test: Callable[[Any], bool]
    text: str  # what they are, for the message


def one_of(names: Collection[str]) -> Allowed:
    """Accepts only these names."""
    return Allowed(lambda value: value in names, f"one of {', '.join(names)}")


def flag(default: Any, text: str) -> Any:
    """A field of arguments, which the flag of its name sets; `text` is for --help."""
    return HfArg(default=default, help=text)


Positive = Allowed(lambda number: number > 0, "positive")
PositiveInt = Annotated[int, Positive]
# Above this limit the number of updates could be infinite.
Epochs = Annotated[float, Allowed(lambda epochs: epochs <= 1e9, "at most 1e9")]
NonNegativeInt = Annotated[int, Allowed(lambda number: number >= 0, "0 or more")]
NonNegativeFloat = Annotated[float, Allowed(lambda number: number >= 0, "0 or more")]
Decay = Annotated[float, Allowed(lambda rate: 0 <= rate < 1, "at least 0 and below 1")]
Percentage = Annotated[float, Allowed(lambda share: 0 < share < 100, "between 0 and 100")]
Share = Annotated[float, Allowed(lambda share: 0 <= share <= 1, "between 0 and 1")]
# numpy accepts twice as much; --seeds and processes add to it
Seed = Annotated[int, Allowed(lambda seed: 0 <= seed <= 2**31, f"between 0 and {2**31}")]
UpdateLimit = Annotated[int, Allowed(lambda number: number > 0 or number == -1, "positive, or -1 to count epochs")]


@dataclass(frozen=True)
class ModelSource:
    """Where a model, its configuration and its tokenizer come from, and how to load them."""

    model_name_or_path: str
    config_overrides: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # field -> value
    tokenizer_name: str | None = None  # None: the model's
    do_lower_case: bool = True  # for a vocab.txt only
    attn_implementation: str | None = None
    trust_remote_code: bool = False


@dataclass(frozen=True)
class Pair:
    """Flags of which a run uses `one` or the `other`: names, with spaces between them.

    clashes: whether the values of a run leave a side without effect, where both are given; by default they do
    about: what else a recipe says of the side that is left out, which goes with it
    one_way: whether `one` decides, also by its default, and is never left out for the `other`
    """

    one: str
    other: str
    clashes: Callable[[Any], bool] = lambda args: True
    one_way: bool = False
    about: str = ""

    def clash(self, values: Mapping[str, Any], defaults: Mapping[str, Any]) -> tuple[str, str] | None:
        """A flag of each side that the given `values` set, if they clash."""
        one = [name for name in self.one.split() if name in values or self.one_way]
        other = [name for name in self.other.split() if name in values]
        if one and other and self.clashes(SimpleNamespace(**{**defaults, **values})):
            return one[0], other[0]
        return None


OneWay = functools.partial(Pair, one_way=True)


def chooses_model(args: Any) -> bool:
    """Whether models are compared: of several updates, or of several seeds."""
    return args.load_best_model_at_end or args.early_stopping_patience or args.seeds > 1 or args.max_restarts > 0


FILES = "train_file validation_file test_file"  # the user's own
OWN_DATA = f"{FILES} validation_split_percentage"
CHOICE = "early_stopping_patience load_best_model_at_end"  # which compare the evaluations in training
# bf16 and fp16 have a value only where they are false. Otherwise they are other names of --mixed_precision.
PAIRS = (
    Pair("max_steps", "num_train_epochs", lambda args: args.max_steps != -1),
    Pair("warmup_steps", "warmup_ratio"),
    Pair("eval_strategy", "eval_steps", lambda args: args.eval_strategy != "steps"),
    Pair("save_strategy", "save_steps", lambda args: args.save_strategy != "steps"),
    Pair("bf16", "mixed_precision", lambda args: args.mixed_precision in (AUTO, "bf16")),
    Pair("fp16", "mixed_precision", lambda args: args.mixed_precision in (AUTO, "fp16")),
    OneWay("do_train", "eval_strategy eval_steps", lambda args: not args.do_train and args.eval_strategy != "no"),
    OneWay("do_eval", "eval_strategy eval_steps", lambda args: not args.do_eval and args.eval_strategy != "no"),
    Pair("do_train", CHOICE, lambda args: not args.do_train),
    Pair("do_eval", CHOICE, lambda args: not args.do_eval),
    Pair("eval_strategy", CHOICE, lambda args: args.eval_strategy == "no"),
    OneWay("load_best_model_at_end", "metric_for_best_model", lambda args: not chooses_model(args)),
    OneWay("save_strategy", "save_total_limit", lambda args: args.save_strategy == "no"),
    OneWay("lr_scheduler_type", "warmup_steps", lambda args: args.lr_scheduler_type == "constant"),
    OneWay("lr_scheduler_type", "warmup_ratio", lambda args: args.lr_scheduler_type == "constant"),
    OneWay("lr_scheduler_type", "decay_ratio", lambda args: args.lr_scheduler_type != "warmup_stable_decay"),
    OneWay("optim", "adam_beta1 adam_beta2 adam_epsilon", lambda args: args.optim == "adagrad"),
    OneWay("torch_compile", "torch_compile_mode", lambda args: not args.torch_compile),
    OneWay("push_to_hub", "hub_private_repo", lambda args: not args.push_to_hub),
)

DATA_PAIRS = (  # of data in splits
    *PAIRS,
    Pair("validation_split_percentage", "validation_file"),
    OneWay("do_train", "validation_split_percentage", lambda args: not (args.do_train or args.do_eval)),
)

# split -> the flag of RunArguments that uses it: what a run does
PURPOSES_OF = {"train": "do_train", "validation": "do_eval", "test": "do_predict"}
# The fields of RunArguments that a script without training has flags for.
EVALUATION = ("model_name_or_path", "config_overrides", "tokenizer_name", "do_lower_case", "implementation")
EVALUATION += ("attn_implementation", "trust_remote_code", "output_dir", "overwrite_output_dir", "do_eval")
EVALUATION += ("per_device_eval_batch_size", "seed", "mixed_precision", "matmul_precision", "dataloader_num_workers")


@dataclass(frozen=True, kw_only=True)
class RunArguments:
    """The arguments that all scripts share; a subclass adds a script's own. Names and meanings are transformers'.

    makes_tokenizer: whether the script makes a tokenizer where no flag names one
    only_evaluates: whether the script does nothing but evaluate; it then lacks the flags of training, checkpoints,
        repetition and reports
    without_flag: other fields that mean nothing to the script, so that it lacks their flags; a field without a flag
        keeps its default
    pairs: flags that exclude each other
    next_command: what to do with a trained model, shown at the end of its run; `script` and `vectors` stand for the
        start of this script and of zoo-extract, `output` for the output folder
    flags_of_use: flags that a use of the model repeats, because they say which model it is and how texts are read
    """

    makes_tokenizer: ClassVar[bool] = False
    only_evaluates: ClassVar[bool] = False
    without_flag: ClassVar[frozenset[str]] = frozenset()
    pairs: ClassVar[tuple[Pair, ...]] = PAIRS
    next_command: ClassVar[str | None] = None
    flags_of_use: ClassVar[tuple[str, ...]] = ("implementation", "trust_remote_code")

    model_name_or_path: str = flag(dataclasses.MISSING, "checkpoint folder, Hub id, or config JSON (random weights)")
    config_overrides: str | None = flag(None, "changes fields of the configuration, as in dropout=0.3,use_crf=false")
    tokenizer_name: str | None = flag(
        None, "folder, Hub id or vocab.txt; default: the model's; a config JSON needs it"
    )
    do_lower_case: bool = flag(True, "convert text to lower case, for a vocab.txt; a saved tokenizer knows itself")
    implementation: Literal["zoo", "transformers"] = flag(
        "zoo", "the model code: this project's, or transformers' to compare"
    )
    attn_implementation: str | None = flag(None, "eager, sdpa, flash_attention_2, ...")
    trust_remote_code: bool = flag(False, "run model code that comes with the checkpoint")
    output_dir: str = flag(dataclasses.MISSING, "folder of model, checkpoints, metrics.json, predictions, card")
    overwrite_output_dir: bool = flag(False, "write to a folder that is not empty")
    resume: bool = flag(False, "continue from the newest complete checkpoint in OUTPUT_DIR, if any")
    do_train: bool = flag(False, "train on the train split")
    do_eval: bool = flag(False, "evaluate, after each epoch when training")
    do_predict: bool = flag(False, "write predictions for the test split")
    save_outputs: bool = flag(False, "save the final model's outputs for validation and test set, for --ensemble")
    ensemble: str | None = flag(None, "use the mean of what runs with --save_outputs kept, as in a,b or 'a/seed-*'")
    per_device_train_batch_size: PositiveInt = flag(8, "examples per process and micro-batch")
    per_device_eval_batch_size: PositiveInt = flag(32, "examples per process and batch")
    gradient_accumulation_steps: PositiveInt = flag(1, "micro-batches per update")
    optim: Literal["adamw", "bert_adam", "adagrad", "muon"] = flag(
        "adamw",
        "AdamW; BERT's Adam of 2018, which does not correct the bias of its early averages; Adagrad, as for the "
        "biLM; or Muon for hidden matrices with AdamW for the rest",
    )
    learning_rate: NonNegativeFloat = flag(5e-5, "peak learning rate")
    reinit_layers: NonNegativeInt = flag(0, "start this many top layers, and the pooler, from random weights")
    freeze_layers: NonNegativeInt | None = flag(None, "do not train the embeddings and this many lowest layers")
    weight_decay: NonNegativeFloat = flag(0.0, "for matrices only")
    adam_beta1: Decay = flag(0.9, "decay of the running mean of gradients")
    adam_beta2: Decay = flag(0.999, "decay of the running mean of squared gradients")
    adam_epsilon: NonNegativeFloat = flag(1e-8, "added to the root of the mean of squares")
    max_grad_norm: NonNegativeFloat = flag(1.0, "norm to which gradients are clipped; 0: no clipping")
    num_train_epochs: Epochs = flag(3.0, "fractions are possible")
    max_steps: UpdateLimit = flag(-1, "number of updates, instead of epochs")
    lr_scheduler_type: Literal["linear", "cosine", "constant", "constant_with_warmup", "warmup_stable_decay"] = flag(
        "linear", "how the learning rate changes after its peak"
    )
    decay_ratio: Share | None = flag(None, "share of the last updates, in which warmup_stable_decay falls (0.1)")
    warmup_ratio: Share = flag(0.0, "share of the updates in which the learning rate rises")
    warmup_steps: NonNegativeInt = flag(0, "updates in which the learning rate rises, instead of --warmup_ratio")
    eval_strategy: Literal["no", "steps", "epoch"] | None = flag(
        None, "when to evaluate, apart from the end; default: steps if --eval_steps is given, otherwise epoch"
    )
    eval_steps: PositiveInt | None = flag(None, "updates between two evaluations")
    load_best_model_at_end: bool = flag(False, "keep the best of the evaluated models, not the last")
    metric_for_best_model: str | None = flag(None, "metric that chooses the best model; default: the task's first")
    early_stopping_patience: PositiveInt | None = flag(None, "stop after this many evaluations without a better one")
    save_strategy: Literal["no", "steps", "epoch"] | None = flag(
        None, "when to save a checkpoint; default: steps if --save_steps is given, otherwise epoch"
    )
    save_steps: PositiveInt | None = flag(None, "updates between two checkpoints; 500 with --save_strategy steps")
    save_total_limit: PositiveInt = flag(2, "number of checkpoints to keep, apart from the best")
    seed: Seed = flag(42, "random seed for the order of examples, dropout and new weights")
    seeds: PositiveInt = flag(1, "run with this many seeds, starting with --seed, and keep the best model")
    max_restarts: NonNegativeInt = flag(0, "replace up to this many runs that diverge or predict one class only")
    mixed_precision: Literal["auto", "no", "fp16", "bf16"] = flag(
        AUTO, "of most matrix products; auto trains in bf16 on GPUs that compute in it, except ELMo"
    )
    matmul_precision: Literal["auto", "highest", "high", "medium"] = flag(
        AUTO, "of float32 matrix products; auto is high where --mixed_precision auto is bf16 on a GPU"
    )
    torch_compile: bool = flag(False, "compile the layers of BERT or GPT for pre-training on a GPU")
    torch_compile_mode: Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"] = flag(
        "default", "what torch.compile optimizes"
    )
    full_determinism: bool = flag(False, "compute the same bits each time on a GPU, too, as on a CPU: slower")
    gradient_checkpointing: bool = flag(False, "recompute activations: less memory, more time")
    group_by_length: bool = flag(False, "train on batches of similar length: less padding")
    pad_to_max_length: bool = flag(False, "pad every batch to one shape, for XLA and torch.compile")
    dataloader_num_workers: NonNegativeInt | None = flag(
        None, "processes that prepare batches, for each process that trains; default: none on a CPU, up to 4 on a GPU"
    )
    ddp_timeout: PositiveInt = flag(1800, "seconds that one of several processes waits for another before it gives up")
    logging_steps: PositiveInt = flag(50, "updates between two reports of the training loss")
    report_to: str = flag("none", f"trackers that draw curves: some of {', '.join(TRACKERS)}, or all installed")
    push_to_hub: bool = flag(False, "upload the output folder at the end")
    hub_model_id: str | None = flag(None, "repository to push to; default: the output folder's name")
    hub_private_repo: bool = flag(False, "make a new repository private")

    def __post_init__(self) -> None:
        self._check_purpose()
        self._check_values()
        if chooses_model(self) and not (self.do_train and self.do_eval):
            raise InputError("to choose among models, or to stop early, a run needs --do_train and --do_eval")
        if self.eval_strategy == "steps" and self.eval_steps is None:
            raise InputError("--eval_strategy steps needs --eval_steps, the updates between two evaluations")
        decay = 0.1 if self.decay_ratio is None else self.decay_ratio
        if self.lr_scheduler_type == "warmup_stable_decay" and self.warmup_ratio + decay > 1 + 1e-9:
            raise InputError(
                f"--warmup_ratio {self.warmup_ratio} and --decay_ratio {decay} are more than the whole run"
            )
        trackers = self.report_to.split(",")
        if trackers not in (["none"], ["all"]) and sorted(trackers) != sorted({*trackers} & {*TRACKERS}):
            raise InputError(f"--report_to must be none, all or some of {', '.join(TRACKERS)}, not {self.report_to}")
        if self.max_steps == -1 and self.num_train_epochs <= 0:
            raise InputError(f"--num_train_epochs must be positive, not {self.num_train_epochs}")
        if self.implementation == "transformers" and self.trust_remote_code:
            raise InputError("--implementation transformers and --trust_remote_code choose the code: give one of them")
        makes_tokenizer = self.makes_tokenizer or self.tokenizer_name is not None
        if self.model_name_or_path.endswith(".json") and not makes_tokenizer:
            raise InputError(f"{self.model_name_or_path} comes without a tokenizer: give --tokenizer_name")

    def repeated_flags(self, results: Mapping[str, float]) -> dict[str, Any]:
        """The `flags_of_use` that are not their defaults, for a use of the model that has these results."""
        fields = {field.name: field for field in self.flags() if field.name in self.flags_of_use}
        values = {name: getattr(self, name) for name in self.flags_of_use if name in fields}
        return {name: value for name, value in values.items() if value != fields[name].default}

    @classmethod
    def flags(cls) -> list[dataclasses.Field]:
        """The fields that the command line sets."""
        shared = {field.name for field in dataclasses.fields(RunArguments)}
        left_out = shared - {*EVALUATION} if cls.only_evaluates else cls.without_flag
        return [field for field in dataclasses.fields(cls) if field.name not in left_out]

    def _check_purpose(self) -> None:
        if not (self.do_train or self.do_eval or self.do_predict):
            purposes = [f"--{field.name}" for field in self.flags() if field.name in PURPOSES_OF.values()]
            raise InputError(f"nothing to do: give {'at least one of ' * (len(purposes) > 1)}{', '.join(purposes)}")
        if self.ensemble is not None and self.do_train:
            raise InputError("--ensemble averages runs that were trained before: give --do_train false")
        if self.save_outputs and not (self.do_eval or self.do_predict):
            raise InputError("--save_outputs keeps what --do_eval and --do_predict compute: give one of them")
        cause = "--resume" if self.resume else "--overwrite_output_dir"
        replaces = (self.resume or self.overwrite_output_dir) and not (self.do_train or self.only_evaluates)
        model = Path(self.model_name_or_path)
        is_own = replaces and model.is_dir() and model.resolve() == Path(self.output_dir).resolve()
        if is_own or (replaces and self._is_removed(self.model_name_or_path)):
            repeat = "; for its predictions, repeat its command with --do_predict --resume" if self.do_predict else ""
            raise InputError(
                f"{cause} without --do_train would remove the results of the run in {self.output_dir}: choose another "
                f"--output_dir{repeat}"
            )
        if self.do_train and self.overwrite_output_dir and not self.resume:
            for name in filter(None, [self.model_name_or_path, self.tokenizer_name]):
                if self._is_removed(name):
                    raise InputError(
                        f"--overwrite_output_dir would remove {name}, which the run begins with: choose another "
                        "--output_dir"
                    )

    def _is_removed(self, model: str) -> bool:
        """Whether a model is in a checkpoint or a seed of the output folder, which a new run there removes."""
        folder, output = Path(model).resolve(), Path(self.output_dir).resolve()
        if not folder.is_dir() or output not in folder.parents:
            return False
        first = folder.relative_to(output).parts[0]
        return any(kind.fullmatch(first) for kind in (CHECKPOINT, SEED))

    def _check_values(self) -> None:
        """Checks each value alone: numbers are finite, texts are not empty, and their annotation allows both."""
        for name, hint in get_type_hints(type(self), include_extras=True).items():
            value = getattr(self, name)
            if isinstance(value, float) and not math.isfinite(value):
                raise InputError(f"--{name} must be a finite number, not {value}")
            if value == "":
                raise InputError(f"--{name} is empty")
            parts = (hint, *get_args(hint))  # the hint is an `Annotated` type, or a union with one
            for allowed in [each for part in parts for each in getattr(part, "__metadata__", ())]:
                if value is not None and not allowed.test(value):
                    raise InputError(f"--{name} must be {allowed.text}, not {value}")

    @property
    def source(self) -> ModelSource:
        """The flags of model and tokenizer, for `load_config`, `load_tokenizer` and `load_model`."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(ModelSource)}
        return ModelSource(**values | {"config_overrides": parse_overrides(self.config_overrides)})

    def data_sources(self) -> dict[str, list[Path] | str]:
        """Where the data of each split come from: files, or a data set of the Hub, as in NAME@VERSION.

        Raises FileNotFoundError if a file is missing.
        """
        return {}


def switch_off(
    arguments_class: type[RunArguments], recipe: Mapping[str, Any], flags: Mapping[str, Any]
) -> dict[str, Any]:
    """The values of a recipe without those that flags of the command line replace, or leave without effect.

    Raises ValueError if two flags, or two keys, leave one of them without effect.
    """
    kept = {name: value for name, value in recipe.items() if name not in flags}
    if "dataset_name" in recipe and flags.get("dataset_name", recipe["dataset_name"]) != recipe["dataset_name"]:
        kept.pop("dataset_config_name", None)
    defaults = {field.name: field.default for field in arguments_class.flags()}
    for pair in arguments_class.pairs:
        one, other = pair.one.split(), pair.other.split()
        for side, opposite in [(other, one), (one, other)][: 1 if pair.one_way else 2]:
            is_of_recipe = any(name in kept for name in opposite) and not any(name in flags for name in opposite)
            if pair.clash(kept | flags, defaults) and not is_of_recipe:
                kept = {name: value for name, value in kept.items() if name not in (*side, *pair.about.split())}
        values = defaults | kept | flags
        decider, idle = pair.clash(kept | flags, defaults) or (None, None)
        is_set = decider and (values[idle] or values[idle] != defaults.get(idle))  # 0 is its default, or a value
        if is_set and (pair.one_way or values[decider]):  # a warm-up of 0 contradicts none
            remedy = f"leave it out, or change --{decider}" if pair.one_way else "leave out one"
            raise InputError(f"--{idle} {values[idle]} has no effect with --{decider} {values[decider]}: {remedy}")
    return kept


def parse_overrides(text: str | None) -> dict[str, Any]:
    """The dictionary of --config_overrides a=1,b=true,c=word."""
    values = {}
    for pair in text.split(",") if text else []:
        key, equals, value = pair.strip().partition("=")
        if not (key and equals and value):
            raise InputError(f"--config_overrides must be fields and values, as in a=1,b=true, not {pair!r}")
        try:
            values[key] = json.loads(value)
        except ValueError:  # a word
            values[key] = value
    return values


def parse_names(flag_name: str, text: str) -> list[str]:
    """The names of --label_names or --tag_names a,b. Raises ValueError unless they are two or more, all different."""
    names = [name.strip() for name in text.split(",")]
    if len(names) < 2 or "" in names or len({*names}) < len(names):
        twice = [f": {name} is there twice" for name in names if names.count(name) > 1]
        problem = ": one is empty" if "" in names else "".join(twice[:1])
        raise InputError(f"--{flag_name} {text} must be two or more different names, as in a,b{problem}")
    return names


@dataclass(frozen=True, kw_only=True)
class DataArguments(RunArguments):
    """The arguments of scripts whose data have the splits train, validation and test."""

    next_command: ClassVar[str] = (
        "{script} --model_name_or_path {output} --test_file FILE --do_predict --output_dir {output}-predictions"
    )
    flags_of_use: ClassVar[tuple[str, ...]] = (*RunArguments.flags_of_use, "max_seq_length")
    mixes_sources: ClassVar[bool] = False  # whether the user's own files may stand beside another source of the data

    data_dir: str | None = flag(None, "folder of the data in its published format")
    train_file: str | None = flag(None, "your own file to train on, in a format of this script")
    validation_file: str | None = flag(None, "your own file to evaluate on")
    test_file: str | None = flag(None, "your own file to predict; it needs no labels")
    validation_split_percentage: Percentage | None = flag(
        None, "percentage of --train_file's examples to evaluate on, the same for every --seed"
    )
    max_seq_length: int = flag(128, "tokens of an input; longer texts are cut")
    max_train_samples: PositiveInt | None = flag(None, "train on only this many examples, the first")
    max_eval_samples: PositiveInt | None = flag(None, "evaluate on only this many examples, the first")
    max_predict_samples: PositiveInt | None = flag(None, "predict only this many examples, the first")

    def __post_init__(self) -> None:
        """Raises ValueError as the class above does, and for overrides of what the data decide."""
        super().__post_init__()
        if self.validation_split_percentage is not None and self.train_file is None:
            percentage = f"--validation_split_percentage {self.validation_split_percentage:g}"
            raise InputError(f"{percentage} is a part of the examples of --train_file: give it")
        self._check_files()
        for name in ("num_labels", "id2label", "label2id"):
            if name in parse_overrides(self.config_overrides):
                raise InputError(f"--config_overrides {name} has no effect: the labels of the data decide it")

    def _check_files(self) -> None:
        """Raises ValueError unless one source has all the data that the run needs."""
        given = next((name for name in FILES.split() if getattr(self, name) is not None), None)
        others = [name for name in ("task_name", "dataset_name", "data_dir") if hasattr(self, name)]
        if others[0] == "task_name":
            others = ["task_name"]  # whose data --data_dir holds
            if self.data_dir is not None and self.task_name is None:
                raise InputError("--data_dir holds the data of a task: give its --task_name")
        named = [name for name in others if getattr(self, name) is not None]
        both = named if self.mixes_sources or given is None else [*named, given]
        if len(both) > 1:
            raise InputError(f"--{both[0]} and --{both[1]} both name the data: give one of them")
        if named:
            return
        if given is None:
            sources = ", ".join(f"--{name}" for name in [*others, *FILES.split()])
            raise InputError(f"there are no data: name them by one of {sources}")
        for split in [split for split, file in self.files.items() if file is None]:
            raise InputError(
                f"--{given} {getattr(self, given)} is read without a recipe's --{others[0]}, so "
                f"--{PURPOSES_OF[split]} needs --{split}_file: give it, or --{PURPOSES_OF[split]} false"
            )

    @property
    def splits(self) -> list[str]:
        """The splits that this run needs."""
        return [split for split, purpose in PURPOSES_OF.items() if getattr(self, purpose)]

    @property
    def files(self) -> dict[str, str | None]:
        """The user's own file for each of these splits; None where no flag names one.

        With --validation_split_percentage, the examples to evaluate on are in the train file, too.
        """
        files = {split: getattr(self, f"{split}_file") for split in self.splits}
        if self.validation_split_percentage is not None and "validation" in files:
            files["validation"] = self.train_file
        return files

    def data_sources(self) -> dict[str, list[Path] | str]:
        """The `files`; a script adds its other sources."""
        return {split: [Path(file)] for split, file in self.files.items() if file is not None}

    @property
    def padding(self) -> dict[str, Any]:
        """The arguments of a tokenizer that pads a batch: with --pad_to_max_length, to --max_seq_length."""
        return {"padding": "max_length", "max_length": self.max_seq_length} if self.pad_to_max_length else {}

    @property
    def limits(self) -> dict[str, int | None]:
        """split -> the largest number of examples that this run uses; None: all"""
        return {"train": self.max_train_samples, "validation": self.max_eval_samples, "test": self.max_predict_samples}


def default_strategy(steps: int | None) -> str:
    """What --eval_strategy and --save_strategy are by default, with so many --eval_steps or --save_steps."""
    return "epoch" if steps is None else "steps"


def hub_model_id(args: RunArguments) -> str:
    """The repository to push to; by default the name of the output folder."""
    return args.hub_model_id or Path(args.output_dir).resolve().name


def public_arguments(args: RunArguments) -> dict[str, Any]:
    """The arguments for publication: files and folders have only their names, without the path to them."""
    values = {field.name: getattr(args, field.name) for field in args.flags()}
    names = {name: without_folders(value) for name, value in values.items() if isinstance(value, str)}
    if "hub_model_id" in values:
        names["hub_model_id"] = args.hub_model_id  # a repository, even if a folder has the same name
    return values | names


def without_folders(value: str) -> str:
    """Reduces each path in `value` to its last part. Hub ids stay as they are.

    Flags of several paths have commas between them, as a single path may, too.
    """

    def is_path(text: str) -> bool:
        return os.path.isabs(text) or text.startswith((".", "~")) or bool(glob.glob(text))

    if is_path(value) and ("," not in value or os.path.exists(value)):
        return os.path.basename(os.path.abspath(value))
    return ",".join(Path(part).name if is_path(part.strip()) else part for part in value.split(","))
