"""Fine-tunes and evaluates a sequence classifier on a GLUE task (Wang et al. 2018), or on labelled text of your own.

    python run_glue.py configs/bert/mrpc.yaml                               # the paper's recipe, data from the Hub
    python run_glue.py configs/bert/sst2_scratch.yaml --data_dir glue_data  # random weights, the GLUE zip's folders
    python run_glue.py --model_name_or_path CHECKPOINT --train_file a.csv --validation_file b.csv \\
        --do_train --do_eval --output_dir runs/mine
    python run_glue.py --model_name_or_path runs/mine --task_name rte --do_predict --output_dir runs/predictions

Files of your own are csv, tsv (without quoting) or json (one object a line) with the columns `label` and `sentence`,
`text`, or `sentence1` and `sentence2`. Labels that are numbers, not all of them whole, make a regression; so does
`--problem_type regression` of whole ones.
OUTPUT_DIR receives metrics.json, predictions.tsv (`predictions_mm.tsv` for MNLI's mismatched part), and the checkpoint
with its model card.
"""

import time
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from accelerate import PartialState
from datasets import Dataset, DatasetDict, load_dataset
from transformers import (
    AutoModelForSequenceClassification,
    DataCollatorWithPadding,
    PreTrainedConfig,
    PreTrainedTokenizerBase,
)
from transformers.hf_argparser import HfArg

import metrics
from arguments import RunArguments, parse_arguments
from glue_data import columns, read_own_file, read_tsv, to_dataset
from loading import load_config, load_model, load_tokenizer
from reporting import finish, remove_earlier_results, write_atomically
from training import Outputs, evaluate, predict, start, train


@dataclass(frozen=True)
class Task:
    """One row of the table: where text and labels stand, on the Hub and in the GLUE zip, and what scores them."""

    folder: str  # in the GLUE zip
    text: tuple[str, ...]  # one or two columns on the Hub
    labels: tuple[str, ...]  # in the Hub's order; none: a regression
    metric: str  # the configuration of metrics/glue
    tsv_text: tuple[str, ...] | None = None  # where the zip's columns have other names
    tsv_label: str = "label"
    train_header: tuple[str, ...] | None = None  # where the zip's train and dev files have no header line
    skip_broken_lines: bool = False  # the published train and dev files have some


PAIR = ("sentence1", "sentence2")
ENTAILMENT = ("entailment", "not_entailment")
TASKS = {
    "cola": Task(
        "CoLA",
        ("sentence",),
        ("unacceptable", "acceptable"),
        "cola",
        train_header=("source", "label", "judgement", "sentence"),
    ),
    "sst2": Task("SST-2", ("sentence",), ("negative", "positive"), "sst2"),
    "mrpc": Task(
        "MRPC",
        PAIR,
        ("not_equivalent", "equivalent"),
        "mrpc",
        tsv_text=("#1 String", "#2 String"),
        tsv_label="Quality",
    ),
    "stsb": Task("STS-B", PAIR, (), "stsb", tsv_label="score"),
    "qqp": Task(
        "QQP",
        ("question1", "question2"),
        ("not_duplicate", "duplicate"),
        "qqp",
        tsv_label="is_duplicate",
        skip_broken_lines=True,
    ),
    "mnli": Task(
        "MNLI",
        ("premise", "hypothesis"),
        ("entailment", "neutral", "contradiction"),
        "mnli",
        tsv_text=PAIR,
        tsv_label="gold_label",
    ),
    "qnli": Task("QNLI", ("question", "sentence"), ENTAILMENT, "qnli"),
    "rte": Task("RTE", PAIR, ENTAILMENT, "rte"),
    "wnli": Task("WNLI", PAIR, ("not_entailment", "entailment"), "wnli"),
}

# split -> its name on the Hub, its possible names in the zip. "_mm" is MNLI's mismatched half.
SPLITS = {
    "train": ("train", ("train.tsv", "msr_paraphrase_train.txt")),
    "validation": ("validation", ("dev.tsv",)),
    "test": ("test", ("test.tsv", "msr_paraphrase_test.txt")),
}
MNLI_SPLITS = {
    "train": SPLITS["train"],
    "validation": ("validation_matched", ("dev_matched.tsv",)),
    "validation_mm": ("validation_mismatched", ("dev_mismatched.tsv",)),
    "test": ("test_matched", ("test_matched.tsv",)),
    "test_mm": ("test_mismatched", ("test_mismatched.tsv",)),
}


@dataclass(frozen=True, kw_only=True)
class GlueArguments(RunArguments):
    """What this script adds."""

    task_name: str | None = HfArg(default=None, help=f"one of {', '.join(TASKS)}")
    data_dir: str | None = HfArg(default=None, help="the task's folder in the GLUE zip's layout, or the folder above")
    train_file: str | None = HfArg(default=None, help="csv, tsv or json of your own")
    validation_file: str | None = None
    test_file: str | None = None
    problem_type: Literal["regression", "single_label_classification"] | None = HfArg(
        default=None, help="of a train file of your own; default: a regression if its labels have decimals"
    )
    max_seq_length: int = HfArg(default=128, help="tokens; longer texts are cut")
    max_train_samples: int | None = HfArg(default=None, help="only the first examples")
    max_eval_samples: int | None = None
    max_predict_samples: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        own = [self.train_file, self.validation_file, self.test_file]
        if (self.task_name is None) == (not any(own)):
            raise ValueError("give either --task_name or --train_file, --validation_file, --test_file")
        if self.task_name is not None and self.task_name not in TASKS:
            raise ValueError(f"--task_name {self.task_name} is none of {', '.join(TASKS)}")
        if self.data_dir is not None and self.task_name is None:
            raise ValueError("--data_dir holds the data of a --task_name")
        if self.problem_type is not None and not (self.train_file and self.do_train):
            raise ValueError("--problem_type says what to train on a --train_file; tasks and checkpoints know theirs")
        for name in ["max_train_samples", "max_eval_samples", "max_predict_samples"]:
            limit = getattr(self, name)
            if limit is not None and limit <= 0:
                raise ValueError(f"--{name} must be positive, not {limit}")

    @property
    def parts(self) -> dict[str, bool]:
        """split -> does this run need it?"""
        return {"train": self.do_train, "validation": self.do_eval, "test": self.do_predict}


# Data: every source gives splits of `text`, perhaps `text_pair`, and, but for test, `label`


def load_data(args: GlueArguments, config: PreTrainedConfig) -> tuple[Task, DatasetDict]:
    """The task and the splits this run needs, labels as strings or, in a regression, numbers."""
    if args.task_name is None:
        return read_own_files(args, config)
    task = TASKS[args.task_name]
    splits = {
        split: names
        for split, names in (MNLI_SPLITS if args.task_name == "mnli" else SPLITS).items()
        if args.parts[split.removesuffix("_mm")]
    }
    if args.data_dir is None:
        return task, read_hub(args.task_name, splits)
    folder = Path(args.data_dir)
    folder = folder / task.folder if (folder / task.folder).is_dir() else folder
    return task, DatasetDict(
        {split: read_glue_tsv(folder, split, names, task) for split, (_, names) in splits.items()}
    )


def read_hub(task_name: str, splits: dict[str, tuple]) -> DatasetDict:
    task = TASKS[task_name]
    try:
        hub = load_dataset("nyu-mll/glue", task_name)
    except OSError as error:
        raise OSError(
            f"{error}. Without network, give --data_dir with the GLUE zip's folders, or set HF_HUB_OFFLINE=1 to use "
            "only what is cached."
        ) from error
    data = DatasetDict()
    for split, (name, _) in splits.items():
        values = dict(zip(("text", "text_pair"), (hub[name][column] for column in task.text), strict=False))
        if not split.startswith("test"):
            labels = hub[name]["label"]
            values["label"] = [task.labels[label] for label in labels] if task.labels else labels
        data[split] = Dataset.from_dict({column: list(value) for column, value in values.items()})
    return data


def read_glue_tsv(folder: Path, split: str, names: tuple[str, ...], task: Task) -> Dataset:
    """One file of the GLUE zip. Raises ValueError with file and line for whatever the published files do not have."""
    found = [folder / name for name in names if (folder / name).is_file()]
    if not found:
        raise FileNotFoundError(f"{folder} has no {' or '.join(names)}: --data_dir is not the folder of {task.folder}")
    test = split.startswith("test")
    wanted = list(task.tsv_text or task.text) + ([] if test else [task.tsv_label])
    rows, broken = [], 0
    for line, row in read_tsv(found[0], None if test else task.train_header):
        if isinstance(row, str):
            if test or not task.skip_broken_lines:  # predictions stand for the lines of the test file
                raise ValueError(f"{found[0]}:{line}: {row}")
            broken += 1
            continue
        values = columns(row, wanted, found[0], line)
        if not test:
            values[-1] = _glue_label(values[-1], task, f"{found[0]}:{line}")
        rows.append(values)
    if broken:
        PartialState().print(f"{found[0]}: {broken} of {broken + len(rows)} lines skipped, they lack columns")
    return to_dataset(rows, len(task.text), found[0])


def _glue_label(label: str, task: Task, where: str) -> str | float:
    """The zip writes either a label's name or its number."""
    if not task.labels:
        return _number(label, where)
    if label in task.labels:
        return label
    if label in map(str, range(len(task.labels))):
        return task.labels[int(label)]
    raise ValueError(f"{where}: unknown label {label!r}, {task.folder} has {', '.join(task.labels)}")


def _number(label: object, where: str) -> float:
    try:
        number = float(label)
    except (TypeError, ValueError):
        number = float("nan")
    if not np.isfinite(number):
        raise ValueError(f"{where}: the label {label!r} is not a number")
    return number


def read_own_files(args: GlueArguments, config: PreTrainedConfig) -> tuple[Task, DatasetDict]:
    """Files of the user's own. The train file says what the labels are; without training, the checkpoint does."""
    files = {"train": args.train_file, "validation": args.validation_file, "test": args.test_file}
    data = DatasetDict()
    for split in [split for split, needed in args.parts.items() if needed]:
        if files[split] is None:
            raise ValueError(f"this run needs --{split}_file")
        data[split] = read_own_file(Path(files[split]), labelled=split != "test")
    if len({"text_pair" in data[split].column_names for split in data}) > 1:
        raise ValueError("some of the files have one text an example, some two")
    task = own_task(data, args, config)
    for split in data.keys() - {"test"}:
        labels = [
            _own_label(label, task, f"{files[split]}, example {i}") for i, label in enumerate(data[split]["label"], 1)
        ]
        data[split] = data[split].remove_columns("label").add_column("label", labels)
    return task, data


def own_task(data: DatasetDict, args: GlueArguments, config: PreTrainedConfig) -> Task:
    """Classes, scored by accuracy as RTE is, or a regression, scored by correlations as STS-B is.

    Whole numbers are classes, in whichever way the files write them: 1 and 1.0 are the class 1.
    """
    text = PAIR if "text_pair" in next(iter(data.values())).column_names else ("sentence",)
    if args.do_train:
        names = set(data["train"]["label"])
        whole = all(map(_is_whole, names))
        decimals = all(map(_is_number, names)) and not whole
        regression = decimals if args.problem_type is None else args.problem_type == "regression"
        labels = sorted(set(map(_integer, names)), key=int) if whole else sorted(names)
        if len(labels) == 1 and not regression:
            raise ValueError(f"{args.train_file}: every label is {labels[0]!r}: add examples of another class")
    else:
        regression, labels = config.num_labels == 1, list(config.id2label.values())
    return Task("", text, (), "stsb") if regression else Task("", text, tuple(labels), "rte")


def _own_label(label: str, task: Task, where: str) -> str | float:
    if not task.labels:
        return _number(label, where)
    names = [label]
    if _is_whole(label):
        names += [_integer(label), f"LABEL_{_integer(label)}"]  # transformers' name for class 0, 1, ...
    known = [name for name in names if name in task.labels]
    if not known:
        raise ValueError(f"{where}: unknown label {label!r}, known are {', '.join(task.labels)}")
    return known[0]


def _is_number(label: str) -> bool:
    try:
        return bool(np.isfinite(float(label)))
    except ValueError:
        return False


def _is_whole(label: str) -> bool:
    return _is_number(label) and float(label).is_integer()


def _integer(label: str) -> str:
    return str(int(Decimal(label)))  # a float would round long numbers


# Text -> features


def class_names(task: Task, config: PreTrainedConfig, args: GlueArguments) -> list[str]:
    """The classes in the order of the model's outputs: the checkpoint's if it knows these classes, else the task's."""
    own = [config.id2label[i] for i in range(config.num_labels)]
    if set(own) == set(task.labels):
        return own
    unnamed = own == [f"LABEL_{i}" for i in range(len(task.labels) or 1)]
    if args.do_train or unnamed:
        return list(task.labels)
    raise ValueError(
        f"{args.model_name_or_path} tells {', '.join(own)} apart, but the task is "
        f"{', '.join(task.labels) or 'a regression'}: train it on this task first"
    )


def check_length(
    args: GlueArguments, config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase, pair: bool
) -> None:
    """Raises ValueError where --max_seq_length is more than the model takes, or leaves no room for text."""
    longest = getattr(config, "max_position_embeddings", args.max_seq_length)
    if args.max_seq_length > longest:
        raise ValueError(f"--max_seq_length {args.max_seq_length} is more than the model's {longest} positions")
    special = tokenizer.num_special_tokens_to_add(pair=pair)
    if args.max_seq_length <= special:
        raise ValueError(f"--max_seq_length {args.max_seq_length} must be more than the {special} special tokens")


def featurize(batch: dict[str, list], tokenizer: PreTrainedTokenizerBase, names: list[str], length: int) -> dict:
    """Token ids, and `labels` as class numbers or, without `names`, as they are."""
    features = dict(tokenizer(batch["text"], batch.get("text_pair"), truncation=True, max_length=length))
    if "label" in batch:
        features["labels"] = [names.index(label) if names else label for label in batch["label"]]
    return features


def tokenize(
    data: DatasetDict, tokenizer: PreTrainedTokenizerBase, names: list[str], args: GlueArguments
) -> DatasetDict:
    """The features of each split, cut to --max_*_samples."""
    limits = {"train": args.max_train_samples, "validation": args.max_eval_samples, "test": args.max_predict_samples}
    convert = partial(featurize, tokenizer=tokenizer, names=names, length=args.max_seq_length)
    features = DatasetDict()
    for split, examples in data.items():
        limit = limits[split.removesuffix("_mm")]
        chosen = examples if limit is None else examples.select(range(min(limit, len(examples))))
        features[split] = chosen.map(convert, batched=True, remove_columns=chosen.column_names, keep_in_memory=True)
    return features


# Metrics and predictions


def compute_metrics(outputs: Outputs, data_set: Dataset, task: Task, names: list[str]) -> dict[str, float]:
    """The task's own scores and the mean loss."""
    logits = torch.from_numpy(np.stack(outputs["logits"]))
    labels = torch.tensor(list(data_set["labels"]))
    if not task.labels:
        predictions, loss = logits.squeeze(-1), torch.nn.functional.mse_loss(logits.squeeze(-1), labels)
    else:
        # F1 is that of the task's class 1, which may have another number in the checkpoint.
        number = torch.tensor([task.labels.index(name) for name in names])
        loss = torch.nn.functional.cross_entropy(logits, labels)
        predictions, labels = number[logits.argmax(-1)], number[labels]
    scores = metrics.load("glue", task.metric).compute(predictions=predictions, references=labels)
    return {**scores, "loss": loss.item()}


def write_predictions(outputs: Outputs, names: list[str], path: Path) -> None:
    """One line an example: its number in the test set, from 0, and the class's name or the number predicted."""
    rows = [names[int(logits.argmax())] if names else f"{logits.item():.4f}" for logits in outputs["logits"]]
    lines = ["index\tprediction", *(f"{index}\t{row}" for index, row in enumerate(rows))]
    write_atomically(path, "\n".join(lines) + "\n")


def main(argv: list[str] | None = None) -> dict[str, float]:
    """One run, from the command line or `argv`; returns what metrics.json says of it."""
    args = parse_arguments(GlueArguments, argv)
    accelerator = start(args)
    started = time.perf_counter()
    config = load_config(args)
    tokenizer = load_tokenizer(args)
    task, data = load_data(args, config)
    check_length(args, config, tokenizer, pair=len(task.text) == 2)
    names = class_names(task, config, args)
    model = load_model(AutoModelForSequenceClassification, args, tokenizer, **head(names))
    sizes = ", ".join(f"{split} {len(examples):,}" for split, examples in data.items())
    accelerator.print(f"load: {type(model).__name__}, {model.num_parameters():,} parameters; {sizes} examples")
    loaded = time.perf_counter()
    features = tokenize(data, tokenizer, names, args)
    results = {"load_runtime": loaded - started, "tokenize_runtime": time.perf_counter() - loaded}

    remove_earlier_results(args, accelerator)
    padding = {"padding": "max_length", "max_length": args.max_seq_length} if args.pad_to_max_length else {}
    collate = DataCollatorWithPadding(tokenizer, **padding)
    score = partial(compute_metrics, task=task, names=names)
    eval_sets = {split.removeprefix("validation"): features[split] for split in features if "validation" in split}
    if args.do_train:
        results |= train(model, features["train"], eval_sets, collate, score, args, accelerator)
    elif args.do_eval:
        results |= evaluate(model, eval_sets, collate, score, args, accelerator)
    for split in [split for split in features if split.startswith("test")]:
        outputs = predict(model, features[split], collate, args, accelerator)
        if accelerator.is_main_process:
            write_predictions(outputs, names, Path(args.output_dir) / f"predictions{split.removeprefix('test')}.tsv")
    finish(model, tokenizer, results, description(task, args), args, accelerator)
    return results


def head(names: list[str]) -> dict[str, object]:
    """The configuration of a classifier over `names`, or of a regression if there are none."""
    if not names:
        return {"num_labels": 1, "problem_type": "regression"}
    label2id = {name: number for number, name in enumerate(names)}
    return {"id2label": dict(enumerate(names)), "label2id": label2id, "problem_type": "single_label_classification"}


def description(task: Task, args: GlueArguments) -> dict[str, str]:
    """What the model card says the scores were measured on."""
    if args.task_name is None:
        return {"task_type": "text-classification", "dataset_type": "text", "dataset_name": "files of our own"}
    names = {"dataset_type": "nyu-mll/glue", "dataset_name": f"GLUE {task.folder}", "dataset_config": args.task_name}
    return {"task_type": "text-classification", **names}


if __name__ == "__main__":
    main()
