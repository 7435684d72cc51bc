"""The arguments of a run: what each may be, and which of them exclude each other; flags.py reads them."""

import dataclasses
import glob
import json
import math
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_type_hints

from transformers.hf_argparser import HfArg

from training.errors import InputError


TRACKERS = ("tensorboard", "wandb", "trackio")
LONGEST_NAME = 255  # bytes, of a file on most systems


@dataclass(frozen=True)
class Allowed:
    """Which values of its type a flag takes. It stands in `Annotated`, where the flags' parser sees the type alone."""

    test: Callable[[Any], bool]
    error: str  # goes on after the flag; {} stands for the value


def one_of(names: Collection[str]) -> Allowed:
    return Allowed(lambda value: value in names, f"{{:.60}} is none of {', '.join(names)}")


def _restrictions(hint: Any) -> Iterator[Allowed]:
    """Those in the annotation of a field, an `Annotated` type or a union with one."""
    for part in (hint, *get_args(hint)):
        yield from getattr(part, "__metadata__", ())


def _fits_file_names(path: str) -> bool:
    return all(len(os.fsencode(name)) <= LONGEST_NAME for name in path.split("/"))


POSITIVE = Allowed(lambda number: number > 0, "must be positive, not {}")
NOT_NEGATIVE = Allowed(lambda number: number >= 0, "must not be negative, not {}")

PositiveInt = Annotated[int, POSITIVE]
PositiveFloat = Annotated[float, POSITIVE]
# More would be infinite, as a number of updates or as the learning rate of the lowest of many layers.
LayerFactor = Annotated[float, POSITIVE, Allowed(lambda factor: factor <= 10, "must be at most 10, not {}")]
Epochs = Annotated[float, Allowed(lambda epochs: epochs <= 1e9, "must be at most 1e9, not {}")]
NonNegativeInt = Annotated[int, NOT_NEGATIVE]
NonNegativeFloat = Annotated[float, NOT_NEGATIVE]
Decay = Annotated[float, Allowed(lambda rate: 0 <= rate < 1, "must be at least 0 and below 1, not {}")]
Share = Annotated[float, Allowed(lambda share: 0 <= share <= 1, "must be between 0 and 1, not {}")]
# numpy takes twice that; further seeds and processes count on from it
Seed = Annotated[int, Allowed(lambda seed: 0 <= seed <= 2**31, f"must be between 0 and {2**31}, not {{}}")]
UpdateLimit = Annotated[
    int, Allowed(lambda number: number > 0 or number == -1, "must be positive, or -1 to count epochs, not {}")
]
PathOrName = Annotated[str, Allowed(_fits_file_names, f"{{:.20}}... has a name longer than {LONGEST_NAME} bytes")]


@dataclass(frozen=True)
class ModelSource:
    """Where a model, its configuration and its tokenizer come from, and how they are read."""

    model_name_or_path: str
    config_overrides: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # of fields of its configuration
    tokenizer_name: str | None = None  # None: the model's
    do_lower_case: bool = True  # of a tokenizer that is a vocab.txt
    attn_implementation: str | None = None
    trust_remote_code: bool = False


@dataclass(frozen=True, kw_only=True)
class RunArguments:
    """What any run needs; a script subclasses it with its own few fields. Names and meanings are transformers'."""

    model_name_or_path: PathOrName = HfArg(help="checkpoint folder, Hub id, or config JSON (random weights)")
    config_overrides: str | None = HfArg(
        default=None, help="other values of fields of its configuration, as in task_dropout=0.3,use_crf=false"
    )
    tokenizer_name: PathOrName | None = HfArg(
        default=None,
        help="folder, Hub id or vocab.txt, where it differs from the model's; required with a config JSON",
    )
    do_lower_case: bool = HfArg(default=True, help="casing for a vocab.txt; other tokenizers know their own")
    implementation: Literal["zoo", "transformers"] = HfArg(
        default="zoo", help="whose model code runs: this project's, or transformers' own for comparison"
    )
    attn_implementation: str | None = HfArg(default=None, help="eager, sdpa, flash_attention_2, ...")
    trust_remote_code: bool = HfArg(default=False, help="run model code that comes with the checkpoint")
    output_dir: PathOrName = HfArg(help="receives checkpoint, metrics.json, predictions and model card")
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
    per_device_train_batch_size: PositiveInt = HfArg(default=8, help="examples a process and micro-batch")
    per_device_eval_batch_size: PositiveInt = HfArg(default=32, help="examples a process and batch")
    gradient_accumulation_steps: PositiveInt = HfArg(default=1, help="micro-batches an update")
    optim: Literal["adamw", "bert_adam"] = HfArg(
        default="adamw", help="AdamW, or BERT's Adam of 2018, which does not correct the bias of its early averages"
    )
    learning_rate: NonNegativeFloat = HfArg(default=5e-5, help="its peak")
    layerwise_lr_decay: LayerFactor = HfArg(
        default=1.0, help="factor of the learning rate from each layer to the one below it (Howard and Ruder 2018)"
    )
    reinit_layers: NonNegativeInt = HfArg(
        default=0, help="start this many top layers, and the pooler, from random weights (Zhang et al. 2021)"
    )
    weight_decay: NonNegativeFloat = HfArg(default=0.0, help="on matrices only")
    adam_beta1: Decay = HfArg(default=0.9, help="of the running mean of gradients")
    adam_beta2: Decay = HfArg(default=0.999, help="of the running mean of their squares")
    adam_epsilon: NonNegativeFloat = HfArg(default=1e-8, help="added to the root of the latter")
    max_grad_norm: NonNegativeFloat = HfArg(default=1.0, help="clips the norm of the gradient; 0 does not clip")
    num_train_epochs: Epochs = HfArg(default=3.0, help="fractions are possible")
    max_steps: UpdateLimit = HfArg(default=-1, help="updates in all, instead of epochs")
    lr_scheduler_type: Literal["linear", "cosine", "constant", "constant_with_warmup"] = HfArg(
        default="linear", help="how the learning rate goes on after its peak"
    )
    warmup_ratio: Share = HfArg(default=0.0, help="share of the updates with a rising learning rate")
    warmup_steps: NonNegativeInt = HfArg(default=0, help="updates with a rising learning rate, instead of their share")
    max_loss_rise: NonNegativeFloat = HfArg(
        default=1.0,
        help="stop when the loss (mean of 20 updates) is above its lowest by this many times the first; 0: never",
    )
    eval_strategy: Literal["no", "steps", "epoch"] | None = HfArg(
        default=None,
        help="when to evaluate, beside at the end; default: steps where --eval_steps is given, or epoch",
    )
    eval_steps: PositiveInt | None = HfArg(default=None, help="updates between two evaluations")
    load_best_model_at_end: bool = HfArg(default=False, help="keep the best of the evaluated models, not the last")
    metric_for_best_model: str | None = HfArg(default=None, help="what best means; default: the task's first metric")
    early_stopping_patience: PositiveInt | None = HfArg(
        default=None, help="stop after this many evaluations in a row that are no better than the best"
    )
    save_strategy: Literal["no", "steps", "epoch"] = HfArg(default="epoch", help="when to save what --resume needs")
    save_steps: PositiveInt = HfArg(default=500, help="updates between two checkpoints with --save_strategy steps")
    save_total_limit: PositiveInt = HfArg(default=2, help="checkpoints kept, beside the best")
    seed: Seed = HfArg(default=42, help="of the order of examples, dropout and new weights")
    seeds: PositiveInt = HfArg(
        default=1, help="repeat the run with this many seeds, from --seed on, and keep the best"
    )
    max_restarts: NonNegativeInt = HfArg(
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
    dataloader_num_workers: NonNegativeInt = HfArg(
        default=0, help="processes that make batches ready beside each process that trains; 0: none"
    )
    logging_steps: PositiveInt = HfArg(default=50, help="updates between two values of the training loss")
    report_to: str = HfArg(
        default="none",
        help=f"who draws the curves: {', '.join(TRACKERS)}, several of these, or all that are installed; "
        "TensorBoard's are under OUTPUT_DIR/runs",
    )
    push_to_hub: bool = HfArg(default=False, help="upload the output folder at the end")
    hub_model_id: str | None = HfArg(default=None, help="repository to push to; default: the output folder's name")
    hub_private_repo: bool = HfArg(default=False, help="make that repository, where it is new, a private one")

    def __post_init__(self) -> None:
        self._check_purpose()
        self._check_values()
        self._check_evaluations()
        self._check_warm_up()
        self._check_trackers()
        if self.max_steps == -1 and self.num_train_epochs <= 0:
            raise InputError(f"--num_train_epochs must be positive, not {self.num_train_epochs}")
        if self.implementation == "transformers" and self.trust_remote_code:
            raise InputError(
                "--implementation transformers runs transformers' own code, --trust_remote_code the checkpoint's: "
                "give one of them"
            )
        if self.model_name_or_path.endswith(".json") and self.tokenizer_name is None:
            raise InputError(
                f"{self.model_name_or_path} is a configuration without a tokenizer: give --tokenizer_name"
            )

    def _check_purpose(self) -> None:
        if not (self.do_train or self.do_eval or self.do_predict):
            raise InputError("nothing to do: give at least one of --do_train, --do_eval, --do_predict")
        if self.ensemble is not None and self.do_train:
            raise InputError("--ensemble averages runs that were trained before: leave --do_train out")
        if self.save_outputs and not (self.do_eval or self.do_predict):
            raise InputError("--save_outputs keeps what --do_eval and --do_predict compute: give one of them")

    def _check_values(self) -> None:
        """Each value by itself: numbers are finite, texts are not empty, and both are what their annotation allows."""
        for name, hint in get_type_hints(type(self), include_extras=True).items():
            value = getattr(self, name)
            if isinstance(value, float) and not math.isfinite(value):
                raise InputError(f"--{name} must be a finite number, not {value}")
            if value == "":
                raise InputError(f"--{name} is empty")
            for allowed in _restrictions(hint):
                if value is not None and not allowed.test(value):
                    raise InputError(f"--{name} {allowed.error.format(value)}")

    @property
    def source(self) -> ModelSource:
        """What the flags of model and tokenizer say, for `load_config`, `load_tokenizer` and `load_model`."""
        return ModelSource(
            self.model_name_or_path,
            parse_overrides(self.config_overrides),
            self.tokenizer_name,
            self.do_lower_case,
            self.attn_implementation,
            self.trust_remote_code,
        )

    def _check_evaluations(self) -> None:
        choosing = self.load_best_model_at_end or self.early_stopping_patience or self.seeds > 1 or self.max_restarts
        if choosing and not (self.do_train and self.do_eval):
            raise InputError("to choose among models, or to stop early, a run needs --do_train and --do_eval")
        for name in ["eval_steps", "eval_strategy"]:
            if getattr(self, name) not in (None, "no") and not (self.do_train and self.do_eval):
                raise InputError(f"--{name} says when training stops to evaluate: give --do_train and --do_eval")
        if self.eval_strategy == "steps" and self.eval_steps is None:
            raise InputError("--eval_strategy steps needs --eval_steps, the updates between two evaluations")
        for name in ["load_best_model_at_end", "early_stopping_patience"]:
            if self.eval_strategy == "no" and getattr(self, name):
                raise InputError(f"--{name} needs evaluations to choose among: --eval_strategy steps or epoch")

    def _check_warm_up(self) -> None:
        if self.warmup_ratio and self.warmup_steps:
            raise InputError(
                f"--warmup_ratio {self.warmup_ratio} and --warmup_steps {self.warmup_steps} both say how long the "
                "learning rate rises: give one of them"
            )
        for name in ["warmup_ratio", "warmup_steps"]:
            if getattr(self, name) and self.lr_scheduler_type == "constant":
                raise InputError(f"--{name} needs another --lr_scheduler_type, e.g. constant_with_warmup")

    def _check_trackers(self) -> None:
        chosen = self.report_to.split(",")
        for name in chosen:
            if name not in ("none", "all", *TRACKERS):
                raise InputError(f"--report_to {name} is none of none, all, {', '.join(TRACKERS)}")
        if len(chosen) > 1 and not {*chosen} <= {*TRACKERS}:
            raise InputError(f"--report_to {self.report_to}: none and all stand alone")


def parse_overrides(text: str | None) -> dict[str, Any]:
    """--config_overrides a=1,b=true,c=word as a dictionary."""
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


@dataclass(frozen=True, kw_only=True)
class DataArguments(RunArguments):
    """What the scripts share that read texts in three splits."""

    data_dir: PathOrName | None = HfArg(default=None, help="folder of the data as they were published")
    train_file: PathOrName | None = HfArg(default=None, help="a file of your own")
    validation_file: PathOrName | None = HfArg(default=None, help="another, to evaluate on")
    test_file: PathOrName | None = HfArg(default=None, help="another, to predict; it needs no labels")
    max_seq_length: int = HfArg(default=128, help="tokens; longer texts are cut")
    max_train_samples: PositiveInt | None = HfArg(default=None, help="only the first examples to train on")
    max_eval_samples: PositiveInt | None = HfArg(default=None, help="only the first to evaluate on")
    max_predict_samples: PositiveInt | None = HfArg(default=None, help="only the first to predict")

    def __post_init__(self) -> None:
        super().__post_init__()
        model, output = Path(self.model_name_or_path), Path(self.output_dir)
        if self.overwrite_output_dir and not self.do_train and model.is_dir() and output.resolve() == model.resolve():
            raise InputError(
                f"--overwrite_output_dir would lose the results of the run in {model}: give another --output_dir, or, "
                "for its predictions, repeat its own command with --do_predict --resume"
            )

    @property
    def parts(self) -> dict[str, bool]:
        """split -> does this run need it?"""
        return {"train": self.do_train, "validation": self.do_eval, "test": self.do_predict}

    @property
    def padding(self) -> dict[str, Any]:
        """How a tokenizer is to pad a batch: to --max_seq_length where all batches are to have one shape."""
        return {"padding": "max_length", "max_length": self.max_seq_length} if self.pad_to_max_length else {}

    @property
    def limits(self) -> dict[str, int | None]:
        """split -> how many of its examples this run takes; None: all"""
        return {"train": self.max_train_samples, "validation": self.max_eval_samples, "test": self.max_predict_samples}


def hub_model_id(args: RunArguments) -> str:
    return args.hub_model_id or Path(args.output_dir).resolve().name


def public_arguments(args: RunArguments) -> dict[str, Any]:
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
