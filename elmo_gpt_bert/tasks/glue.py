"""Tasks of one or two texts with a class or, in a regression, a number: GLUE (Wang et al. 2018, arXiv 1804.07461) and
similar ones.

The table has their texts, labels, files and metrics. The data of a task come from the Hub or from its published files.
For GLUE those are the folders that download_glue_data.py of github.com/nyu-mll/GLUE-baselines makes, called "the zip"
here. labelled_texts.py reads files that a user brings.

Every reader returns splits with the columns text, text_pair if examples are pairs, and label if there are labels: a
string or, in a regression, a number. A broken file is a ValueError that names the file, the line and the mistake.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from accelerate import PartialState

from elmo_gpt_bert.tasks.features import map_examples, report_known_words
from elmo_gpt_bert.tasks.rows import (
    PUBLISHED,
    check_folder,
    columns,
    load_hub,
    read_json_lines,
    read_tsv,
    to_dataset,
)
from elmo_gpt_bert.training.errors import InputError, MissingFileError
from elmo_gpt_bert.training.files import shown


if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict
    from transformers import PreTrainedConfig, PreTrainedTokenizerBase


TEXT = ("text", "text_pair")
PAIR = ("sentence1", "sentence2")
PLACE = "place"  # the column of an example's number in the whole test set, from 0, if some are left out
UNDIVIDED = "msr_paraphrase_train.txt"  # MRPC's train and dev pairs together, as Microsoft publishes them


# The table


@dataclass(frozen=True)
class Split:
    """Where a split of a task is found."""

    hub: str | None  # its name on the Hub; None: not there
    files: tuple[str, ...]  # its possible file names in the zip
    text: tuple[str, ...] | None = None  # the columns of the texts, if the task's other files name them differently
    labelled: bool = True


# "_mm" is MNLI's mismatched half.
SPLITS = {
    "train": Split("train", ("train.tsv",)),
    "validation": Split("validation", ("dev.tsv",)),
    "test": Split("test", ("test.tsv", "msr_paraphrase_test.txt"), labelled=False),
}
MNLI_SPLITS = {
    "train": SPLITS["train"],
    "validation": Split("validation_matched", ("dev_matched.tsv",)),
    "validation_mm": Split("validation_mismatched", ("dev_mismatched.tsv",)),
    "test": Split("test_matched", ("test_matched.tsv",), labelled=False),
    "test_mm": Split("test_mismatched", ("test_mismatched.tsv",), labelled=False),
}


class LeaderboardFile(NamedTuple):
    """One of the eleven files that the zip for the GLUE leaderboard (gluebenchmark.com/submit) holds.

    The names are in jiant's benchmarks.py (github.com/nyu-mll/jiant). A file has one line for each example of the
    published test file. The data set card of nyu-mll/glue has the numbers of examples.
    """

    name: str
    examples: int


def _labelled_splits(*names: str) -> dict[str, Split]:
    """Three splits with labels. In the possible `names` of their files, {} stands for train, dev or test."""
    words = {"train": "train", "validation": "dev", "test": "test"}
    return {split: Split(split, tuple(name.format(word) for name in names)) for split, word in words.items()}


@dataclass(frozen=True)
class GlueTask:
    """One row of the table."""

    folder: str  # the task's folder in the zip, and its name
    text: tuple[str, ...]  # one or two columns on the Hub
    labels: tuple[str, ...]  # in the Hub's order; empty: a regression
    metric: str  # the argument of metrics.load
    multi_label: bool = False  # a text has any number of the labels
    numbered: bool = False  # the zip and the leaderboard have the numbers of labels, not their names
    tsv_text: tuple[str, ...] | None = None  # the columns of the texts in the zip, if they have other names there
    tsv_label: str = "label"
    train_header: tuple[str, ...] | None = None  # the columns of the files with labels, if they have no header line
    skip_broken_lines: bool = False  # the published train and dev files have some
    no_label: str | None = None  # in files, the label of an example whose annotators did not agree; the Hub has -1
    splits: Mapping[str, Split] = field(default_factory=lambda: SPLITS)
    hub: str = "nyu-mll/glue"
    hub_configuration: str | None = None  # None: the task's name
    hub_label: str = "label"
    hub_revision: str | None = None  # None: the newest; another has no configurations
    answers: Mapping[str, str] = field(default_factory=dict)  # class of the model -> label, if they differ
    metric_columns: Mapping[str, str] = field(default_factory=dict)  # further arguments of the metric -> their columns
    leaderboard: Mapping[str, LeaderboardFile] = field(default_factory=dict)  # split -> the file for its predictions

    @property
    def classes(self) -> tuple[str, ...]:
        """The classes that a model of this task predicts."""
        return tuple(self.answers) or self.labels

    def label_of(self, name: str) -> str:
        """The label that the model's class `name` stands for."""
        return self.answers.get(name, name)

    def for_leaderboard(self, prediction: str) -> str:
        """A line's prediction as the server reads it: the name or the number of a class, or a similarity from 0 to 5.

        Source: write_glue_preds in src/evaluate.py of jiant's first releases.
        """
        if not self.labels:
            return f"{min(max(float(prediction), 0.0), HIGHEST_SIMILARITY):.4f}"
        return str(self.labels.index(prediction)) if self.numbered else prediction


HIGHEST_SIMILARITY = 5.0  # of STS-B
INFERENCE = ("entailment", "neutral", "contradiction")
ENTAILMENT = ("entailment", "not_entailment")
TASKS = {
    "cola": GlueTask(
        "CoLA",
        ("sentence",),
        ("unacceptable", "acceptable"),
        "cola",
        numbered=True,
        train_header=("source", "label", "judgement", "sentence"),
        leaderboard={"test": LeaderboardFile("CoLA.tsv", 1063)},
    ),
    "sst2": GlueTask(
        "SST-2",
        ("sentence",),
        ("negative", "positive"),
        "sst2",
        numbered=True,
        leaderboard={"test": LeaderboardFile("SST-2.tsv", 1821)},
    ),
    "mrpc": GlueTask(
        "MRPC",
        PAIR,
        ("not_equivalent", "equivalent"),
        "mrpc",
        numbered=True,
        tsv_text=("#1 String", "#2 String"),
        tsv_label="Quality",
        leaderboard={"test": LeaderboardFile("MRPC.tsv", 1725)},
    ),
    "stsb": GlueTask(
        "STS-B",
        PAIR,
        (),
        "stsb",
        tsv_label="score",
        leaderboard={"test": LeaderboardFile("STS-B.tsv", 1379)},
    ),
    "qqp": GlueTask(
        "QQP",
        ("question1", "question2"),
        ("not_duplicate", "duplicate"),
        "qqp",
        numbered=True,
        tsv_label="is_duplicate",
        skip_broken_lines=True,
        leaderboard={"test": LeaderboardFile("QQP.tsv", 390965)},
    ),
    "mnli": GlueTask(
        "MNLI",
        ("premise", "hypothesis"),
        INFERENCE,
        "mnli",
        tsv_text=PAIR,
        tsv_label="gold_label",
        splits=MNLI_SPLITS,
        leaderboard={"test": LeaderboardFile("MNLI-m.tsv", 9796), "test_mm": LeaderboardFile("MNLI-mm.tsv", 9847)},
    ),
    "qnli": GlueTask(
        "QNLI",
        ("question", "sentence"),
        ENTAILMENT,
        "qnli",
        leaderboard={"test": LeaderboardFile("QNLI.tsv", 5463)},
    ),
    "rte": GlueTask("RTE", PAIR, ENTAILMENT, "rte", leaderboard={"test": LeaderboardFile("RTE.tsv", 3000)}),
    "wnli": GlueTask(
        "WNLI",
        PAIR,
        ("not_entailment", "entailment"),
        "wnli",
        numbered=True,
        leaderboard={"test": LeaderboardFile("WNLI.tsv", 146)},
    ),
    # Bowman et al. 2015, arXiv 1508.05326: the files of snli_1.0.zip.
    "snli": GlueTask(
        "SNLI",
        ("premise", "hypothesis"),
        INFERENCE,
        "mnli",
        tsv_text=PAIR,
        tsv_label="gold_label",
        no_label="-",
        splits=_labelled_splits("snli_1.0_{}.jsonl", "snli_1.0_{}.txt"),
        hub="stanfordnlp/snli",
        hub_configuration="plain_text",
    ),
    # Khot, Sabharwal and Clark 2018: the tsv_format of SciTailV1.1.zip, where quotes are part of the text. The Hub's
    # tsv_format was read as csv, which lost 499 of the 23,596 training pairs. Its snli_format is complete, and its
    # label for entails is entailment.
    "scitail": GlueTask(
        "SciTail",
        PAIR,
        ("entails", "neutral"),
        "rte",
        tsv_label="gold_label",
        train_header=(*PAIR, "gold_label"),
        splits=_labelled_splits("scitail_1.0_{}.tsv"),
        hub="allenai/scitail",
        hub_configuration="snli_format",
        hub_label="gold_label",
        answers={"entailment": "entails", "neutral": "neutral"},
    ),
}

# The tasks that test a model trained on MNLI.
DIAGNOSTICS = {
    # Wang et al. 2018, section 4. The leaderboard's file has no labels. diagnostic-full.tsv, published with the
    # analysis, has the same examples in the same order, with labels.
    "ax": GlueTask(
        "diagnostic",
        ("premise", "hypothesis"),
        INFERENCE,
        "ax",
        tsv_text=PAIR,
        tsv_label="Label",
        splits={
            "validation": Split(None, ("diagnostic-full.tsv",), text=("Premise", "Hypothesis")),
            "test": Split("test", ("diagnostic.tsv",), labelled=False),
        },
        leaderboard={"test": LeaderboardFile("AX.tsv", 1104)},
    ),
    # HANS: McCoy, Pavlick and Linzen 2019, arXiv 1902.01007; the file of github.com/tommccoy1/hans. As its README
    # says, the predicted classes neutral and contradiction count as non-entailment; probabilities are not added up.
    "hans": GlueTask(
        "hans",
        ("premise", "hypothesis"),
        ("entailment", "non-entailment"),
        "hans",
        tsv_text=PAIR,
        tsv_label="gold_label",
        splits={"validation": Split("validation", ("heuristics_evaluation_set.txt",))},
        hub="jhu-cogsci/hans",
        hub_revision="refs/convert/parquet",  # the newest is a script, which datasets no longer runs
        answers={"entailment": "entailment", "neutral": "non-entailment", "contradiction": "non-entailment"},
        metric_columns={"parts": "heuristic"},
    ),
}
EVERY_TASK = TASKS | DIAGNOSTICS


# Readers of the table's tasks


def read_hub(task_name: str, splits: Iterable[str]) -> DatasetDict:
    """The splits on the Hub. Raises OSError when the Hub is out of reach, ValueError when it lacks a split."""
    from datasets import Dataset, DatasetDict  # the import takes a second, which --help does not need

    task = EVERY_TASK[task_name]
    for split in splits:
        if task.splits[split].hub is None:
            file = task.splits[split].files[0]
            raise InputError(f"the Hub has {task_name} without labels: give --data_dir with the folder of {file}")
    configuration = None if task.hub_revision else task.hub_configuration or task_name
    hub = load_hub(task.hub, configuration, task.hub_revision, PUBLISHED)
    data = DatasetDict()
    for split in splits:
        rows = hub[task.splits[split].hub]
        values = dict(zip(TEXT, (rows[column] for column in task.text), strict=False))
        if task.splits[split].labelled:
            values["label"] = [_hub_label(label, task) for label in rows[task.hub_label][:]]
            values |= {column: rows[column] for column in task.metric_columns.values()}
        examples = Dataset.from_dict({column: value[:] for column, value in values.items()})
        data[split] = _with_gold_labels(examples, f"{task.hub}, {task.splits[split].hub}", split)
    return data


def _hub_label(label: str | float, task: GlueTask) -> str | float | None:
    """The name of the label, or a regression's number; None if the annotators did not agree."""
    if not task.labels:
        return label
    if isinstance(label, str):
        return task.label_of(label)
    return None if task.no_label is not None and label == -1 else task.labels[label]


def _with_gold_labels(examples: Dataset, source: Path | str, split: str) -> Dataset:
    """The examples whose label is not None; prints how many others there are.

    Where a test set has others, the examples have the column `PLACE`.
    """
    labels = examples["label"][:] if "label" in examples.column_names else []
    if None not in labels:
        return examples
    labelled = [number for number, label in enumerate(labels) if label is not None]
    if not labelled:
        raise InputError(f"{source} holds no examples with a gold label")
    left_out = len(examples) - len(labelled)
    PartialState().print(f"{source}: {left_out} of {len(examples)} examples left out, they have no gold label")
    examples = examples.select(labelled)
    return examples.add_column(PLACE, labelled) if split == "test" else examples


def read_folder(data_dir: Path, task: GlueTask, splits: Iterable[str]) -> DatasetDict:
    """The splits from the task's published files in `data_dir`, or in its subfolder with the task's name."""
    from datasets import DatasetDict

    check_folder(data_dir)
    return DatasetDict({split: _read_split(find_file(data_dir, task, split), task, split) for split in splits})


def _read_split(path: Path, task: GlueTask, split: str) -> Dataset:
    """The examples of one file. Raises ValueError, with file and line, for what the published files do not have."""
    published = task.splits[split]
    wanted = dict(zip(TEXT, published.text or task.tsv_text or task.text, strict=False))
    if published.labelled:
        wanted |= {"label": task.tsv_label} | {column: column for column in task.metric_columns.values()}
    header = task.train_header if published.labelled else None
    # Predictions need every line of a test file.
    broken: list[str] | None = [] if published.labelled and task.skip_broken_lines else None
    rows = []
    for line, row in read_json_lines(path) if path.suffix == ".jsonl" else read_tsv(path, header, broken):
        where = f"{path}:{line}"
        values = dict(zip(wanted, columns(row, wanted.values(), where), strict=True))
        for name, value in values.items():
            if not isinstance(value, str):
                raise InputError(f"{where}: {wanted[name]} is {shown(value)}, not text")
        if published.labelled:
            values["label"] = _glue_label(values["label"], task, where)
        rows.append(values)
    if broken:
        lines = f"{len(broken)} of {len(broken) + len(rows)} lines"
        PartialState().print(f"{path}: {lines} skipped, they lack columns")
    return _with_gold_labels(to_dataset(rows, path), path, split)


def find_file(data_dir: Path, task: GlueTask, split: str) -> Path:
    """The split's file in `data_dir`, or in its subfolder with the task's name, under the first name that exists."""
    folder = data_dir / task.folder if (data_dir / task.folder).is_dir() else data_dir
    published = task.splits[split]
    for name in published.files:
        if (folder / name).is_file():
            return folder / name
    names = " or ".join(published.files)
    if published.labelled and (folder / UNDIVIDED).is_file():
        raise MissingFileError(
            f"{folder} has no {names}: {UNDIVIDED} holds GLUE's train and dev pairs together, and "
            "download_glue_data.py no longer divides them; read the task from the Hub, without --data_dir"
        )
    raise MissingFileError(f"{folder} has no {names}: --data_dir is not the folder of {task.folder}")


def _glue_label(label: str, task: GlueTask, where: str) -> str | float | None:
    """The label of a published file, read as `_hub_label` reads one of the Hub."""
    if not task.labels:
        return to_number(label, where)
    if label == task.no_label:
        return None
    names = {str(number) if task.numbered else name: name for number, name in enumerate(task.labels)}
    if label not in names:
        raise InputError(f"{where}: unknown label {shown(label)}, {task.folder} has {', '.join(names)}")
    return names[label]


def to_number(label: object, where: str) -> float:
    """The label of a regression. Raises ValueError unless it is a finite number."""
    if not is_number(label):
        raise InputError(f"{where}: the label {shown(label)} is not a number")
    return float(label)


def parse_number(label: object) -> float | None:
    """The number that a label is, finite or not: nan and 1e400 are numbers too. None: it is no number."""
    try:
        return float(label)
    except (TypeError, ValueError):
        return None


def is_number(label: object) -> bool:
    """Whether it is a finite number."""
    number = parse_number(label)
    return number is not None and math.isfinite(number)


# Classes and features


def class_names(task: GlueTask, config: PreTrainedConfig, *, train: bool, model_name: str) -> list[str]:
    """The task's classes in the order of the model's outputs: the model's order if it names them, else the task's.

    Case, spaces, hyphens and underscores of the model's names do not matter (ENTAILMENT, "not equivalent"), unless the
    task has names that differ in these alone. Errors call the model `model_name`.

    Raises:
        ValueError: when the model is not to `train`, but has the classes of another task, or gives a text one class
            where the task has any number, or the reverse.
    """
    if sorted(config.id2label) != list(range(config.num_labels)):
        raise InputError(f"{model_name}: id2label must number the classes from 0: {config.id2label}")
    names = [config.id2label[number] for number in range(config.num_labels)]
    if not task.classes and len(names) == 1:  # a regression, whatever its output is called
        return []
    is_multi_label = config.problem_type == "multi_label_classification"
    if not train and task.classes and is_multi_label != task.multi_label:
        kinds = ("one class", "any number of classes")
        raise InputError(
            f"{model_name} gives a text {kinds[is_multi_label]}, but the task has {kinds[task.multi_label]}: train it "
            "on this task first"
        )
    if sorted(names) == sorted(task.classes):
        return names
    spelling = {_plain(name): name for name in task.classes}
    if sorted(map(_plain, names)) == sorted(spelling) and len(spelling) == len(task.classes):
        return [spelling[_plain(name)] for name in names]
    unnamed = names == [f"LABEL_{number}" for number in range(len(task.classes))]
    if unnamed and not train:
        PartialState().print(
            f"{model_name} does not name its classes: they are taken for {', '.join(task.classes)}, in this order"
        )
    if train or unnamed:
        return list(task.classes)
    outputs = f"tells {', '.join(names)} apart" if len(names) > 1 else "predicts a number"
    wanted = ", ".join(task.classes) or "a regression"
    if not task.folder:  # own files without a train file: by default their classes are the model's
        remedy = "give the names of its outputs, in their order, or train it on these first"
        raise InputError(f"{model_name} {outputs}, but --label_names are {wanted}: {remedy}")
    remedy = f"train it on {'mnli' if task in DIAGNOSTICS.values() else 'this task'} first"
    raise InputError(f"{model_name} {outputs}, but the task is {wanted}: {remedy}")


def _plain(name: str) -> str:
    """The name without differences of case, spaces, hyphens and underscores."""
    return re.sub(r"[\s_-]+", "_", name.strip().lower())


def make_features(
    data: DatasetDict,
    tokenizer: PreTrainedTokenizerBase,
    names: list[str],
    *,
    length: int,
    limits: Mapping[str, int | None],
) -> DatasetDict:
    """The features, of at most `length` tokens each, of the first examples of each split, up to its limit.

    `names` are the labels that the model's outputs stand for.
    """
    for split, examples in data.items():
        texts = [examples[name] for name in ("text", "text_pair") if name in examples.column_names]
        report_known_words(split, chain.from_iterable(zip(*texts, strict=True)), tokenizer)
    return map_examples(data, partial(featurize, tokenizer=tokenizer, names=names, length=length), limits)


def featurize(batch: dict[str, list], tokenizer: PreTrainedTokenizerBase, names: list[str], length: int) -> dict:
    """The tokenizer's inputs, and `labels`: the first place of a label in `names` or, in a regression, its value.

    Of a text with any number of labels, they are a row with 1.0 at the place of each and 0.0 at the others.
    """
    features = dict(tokenizer(batch["text"], batch.get("text_pair"), truncation=True, max_length=length))

    def target(label: str | float | list[str]) -> int | float | list[float]:
        if isinstance(label, list):
            return [float(name in label) for name in names]
        return names.index(label) if names else label

    if "label" in batch:
        features["labels"] = [target(label) for label in batch["label"]]
    return features
