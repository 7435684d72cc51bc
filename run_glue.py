# /// script
# requires-python = ">=3.11"
# dependencies = ["elmo-gpt-bert==0.1.0"]
# ///
"""Fine-tunes and evaluates a sequence classifier on GLUE (Wang et al. 2018), SNLI, SciTail or your own texts.

    python run_glue.py configs/bert/glue.yaml --task_name mrpc  # the paper's recipe, data from the Hub
    python run_glue.py configs/bert/sst2_scratch.yaml --data_dir glue_data  # random weights, the GLUE zip's folders
    python run_glue.py configs/gpt/glue.yaml --task_name snli --data_dir snli_1.0 --do_predict
    python run_glue.py --model_name_or_path CHECKPOINT --train_file a.csv --validation_file b.csv \\
        --do_train --do_eval --output_dir runs/mine
    python run_glue.py --model_name_or_path runs/mine --test_file c.csv --do_predict --output_dir runs/predictions
    python run_glue.py --model_name_or_path runs/bert/glue/mnli --task_name ax --do_predict --output_dir runs/ax
    python run_glue.py --model_name_or_path runs/bert/glue/mnli --task_name hans --do_eval --output_dir runs/hans

Your own files are csv, tsv (without quoting) or json (one object a line). Their columns are `label` and `sentence`,
`text`, or `sentence1` and `sentence2`; `--text_column_names` and `--label_column_name` choose other columns. The task
is a regression if the labels are numbers and some have decimals, or with `--problem_type regression`. In json, the
label may be a list, of names or of 0.0 and 1.0 for each class: the text then has any number of classes.
AX and HANS test a model that was trained on MNLI; the class names in its config.json say what its outputs mean.
The test sets of SNLI and SciTail have labels, so --do_predict also scores the predictions, as test_accuracy. Pairs of
SNLI without a gold label are left out of every split; the index in predictions.tsv counts them.
OUTPUT_DIR receives metrics.json, predictions.tsv (and predictions_mm.tsv for MNLI's mismatched part), and the trained
model with its model card. For a whole test set of GLUE, it also receives the leaderboard's file, such as CoLA.tsv. For
your own test file, predictions.csv has all of its columns, the prediction and its score.
"""

from __future__ import annotations

import elmo_gpt_bert.starting  # noqa: F401 - says so before the imports below, which take seconds


# isort: split

import json
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import numpy as np
import torch
from accelerate import PartialState
from transformers import AutoModelForSequenceClassification, DataCollatorWithPadding

from elmo_gpt_bert import metrics
from elmo_gpt_bert.tasks.glue import (
    DIAGNOSTICS,
    EVERY_TASK,
    PLACE,
    TASKS,
    GlueTask,
    class_names,
    find_file,
    make_features,
    read_folder,
    read_hub,
)
from elmo_gpt_bert.tasks.labelled_texts import MULTI_LABEL, predictions_csv, read_files
from elmo_gpt_bert.tasks.rows import hub_version, listed
from elmo_gpt_bert.training.arguments import (
    DATA_PAIRS,
    OWN_DATA,
    DataArguments,
    OneWay,
    Pair,
    flag,
    one_of,
    parse_names,
)
from elmo_gpt_bert.training.errors import InputError
from elmo_gpt_bert.training.flags import parse_arguments
from elmo_gpt_bert.training.loading import check_length, load_config, load_model, load_tokenizer
from elmo_gpt_bert.training.results import PREDICTED_CLASSES, count_samples
from elmo_gpt_bert.training.runs import command, repeat, run_task
from elmo_gpt_bert.training.task import Description, Outputs, Task


if TYPE_CHECKING:
    from datasets import DatasetDict
    from evaluate import EvaluationModule
    from transformers import PreTrainedConfig


FOR_OWN_FILES = "text_column_names label_column_name label_names metric_name problem_type"  # flags


@dataclass(frozen=True, kw_only=True)
class GlueArguments(DataArguments):
    """The arguments of this script, in addition to those of every run on texts."""

    pairs: ClassVar[tuple[Pair, ...]] = (
        *DATA_PAIRS,
        Pair(OWN_DATA, "task_name data_dir", about=FOR_OWN_FILES),
        OneWay("task_name", FOR_OWN_FILES, lambda args: args.task_name is not None),
        OneWay("do_train", "problem_type", lambda args: not args.do_train),
        OneWay("do_eval", "metric_name", lambda args: not args.do_eval),
    )

    flags_of_use: ClassVar[tuple[str, ...]] = (*DataArguments.flags_of_use, "text_column_names", "label_column_name")

    task_name: Annotated[str, one_of(EVERY_TASK)] | None = flag(
        None, f"one of {', '.join(TASKS)}; {', '.join(DIAGNOSTICS)} test a model trained on mnli"
    )
    problem_type: Literal["regression", "single_label_classification", "multi_label_classification"] | None = flag(
        None, "what to train on your own file; default: what its labels look like"
    )
    text_column_names: str | None = flag(
        None, "in your own files: one, or two as in a,b; default: sentence, text, ..."
    )
    label_column_name: str | None = flag(None, "in your own files; default: label")
    metric_name: str | None = flag(None, "for your own files, one more metric: a module of `evaluate` by name or file")
    label_names: str | None = flag(
        None, "for your own files, the names of the model's classes, as in negative,positive"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.task_name is not None:
            self._check_task()
        elif self.text_column_names is not None and not re.fullmatch("[^,]+(,[^,]+)?", self.text_column_names):
            raise InputError(f"--text_column_names must be one column or two, as in a,b, not {self.text_column_names}")
        label_column = self.label_column_name or "label"
        if (self.do_train or self.do_eval) and label_column in (self.text_column_names or "").split(","):
            raise InputError(
                f"--text_column_names {self.text_column_names} has the column of the labels, {label_column}"
            )
        if self.names is not None and self.problem_type == "regression":
            raise InputError("--label_names are those of classes, and --problem_type regression has none")

    @property
    def names(self) -> tuple[str, ...] | None:
        """The names of --label_names."""
        return None if self.label_names is None else tuple(parse_names("label_names", self.label_names))

    @property
    def text_columns(self) -> tuple[str, ...] | None:
        """The columns of --text_column_names."""
        return None if self.text_column_names is None else tuple(self.text_column_names.split(","))

    @property
    def task_splits(self) -> list[str]:
        """The splits of the task that this run needs, such as validation and validation_mm."""
        return [split for split in EVERY_TASK[self.task_name].splits if split.removesuffix("_mm") in self.splits]

    def data_sources(self) -> dict[str, list[Path] | str]:
        if self.task_name is None:
            name = self.metric_name
            metric = {} if name is None else {"metric": [Path(name)] if Path(name).is_file() else name}
            return super().data_sources() | metric
        task = EVERY_TASK[self.task_name]
        if self.data_dir is not None:
            return {split: [find_file(Path(self.data_dir), task, split)] for split in self.task_splits}
        configuration = None if task.hub_revision else task.hub_configuration or self.task_name
        return dict.fromkeys(self.task_splits, hub_version(task.hub, configuration, task.hub_revision))

    def _check_task(self) -> None:
        if self.task_name in DIAGNOSTICS and self.do_train:
            remedy = "train on mnli, and give that model, with --do_train false"
            raise InputError(f"--task_name {self.task_name} has no data to train on: {remedy}")
        for split in self.splits:
            if split not in EVERY_TASK[self.task_name].splits:
                raise InputError(f"--task_name {self.task_name} has no {split} split")


def load_data(args: GlueArguments, config: PreTrainedConfig) -> tuple[GlueTask, DatasetDict]:
    """The task, and the splits that this run needs."""
    if args.task_name is None:
        options = args.problem_type, args.text_columns, args.label_column_name, args.names
        return read_files(args.files, config, *options, held_out=args.validation_split_percentage)
    task = EVERY_TASK[args.task_name]
    if args.data_dir is None:
        return task, read_hub(args.task_name, args.task_splits)
    return task, read_folder(Path(args.data_dir), task, args.task_splits)


@dataclass
class Classification(Task):
    """Texts, or pairs of texts, that have a class, any number of classes or, in a regression, a number.

    glue_task: the task's row in the table of tasks, or what the user's files define
    names: the names of the classes in the order of the model's outputs; empty for a regression
    args: of the run
    """

    glue_task: GlueTask
    names: list[str]
    args: GlueArguments
    metric: EvaluationModule | None = field(default=None, init=False)  # of --metric_name

    def describe(self) -> str:
        several = ", of which a text has any number" * self.glue_task.multi_label
        classes = f"{len(self.names)} classes{several}: {listed(self.names)}"
        return f"{super().describe()}\n{classes if self.names else 'a regression: labels are numbers'}"

    def featurize(self, args: GlueArguments) -> None:
        labels = [self.glue_task.label_of(name) for name in self.names]
        options = {"length": args.max_seq_length, "limits": args.limits}
        self.features = make_features(self.data, self.tokenizer, labels, **options)
        self.collate = DataCollatorWithPadding(self.tokenizer, **args.padding)
        if args.metric_name is not None:  # a metric that does not suit the labels is an error before the work
            self.metric = load_metric(args.metric_name, self.glue_task.multi_label)
            self.check_metric(torch.tensor(self.features["validation"]["labels"][:]))

    def check_metric(self, labels: torch.Tensor) -> None:
        """Raises ValueError if --metric_name cannot score these labels, or a prediction of a class that none has."""
        self.named_score(labels, labels)
        if not self.names or self.glue_task.multi_label:
            return
        others = sorted({*range(len(self.names))} - {*labels.tolist()})[: len(labels)]
        if others:
            predictions = labels.clone()
            predictions[: len(others)] = torch.tensor(others)
            self.named_score(predictions, labels)

    def named_score(self, predictions: torch.Tensor, labels: torch.Tensor) -> dict[str, float]:
        """The values of --metric_name. Raises ValueError if it gives anything but numbers.

        One that is not finite is undefined for these predictions, and no result of the run.
        """
        try:
            values = self.metric.compute(predictions=predictions.tolist(), references=labels.tolist())
            values = {name: float(value) for name, value in values.items()}
        except (TypeError, ValueError) as error:
            metric, reason = f"--metric_name {self.args.metric_name}", " ".join(str(error).split())
            raise InputError(f"{metric} does not score these labels ({reason}): choose another") from error
        if undefined := {name: value for name, value in values.items() if not math.isfinite(value)}:
            print(f"--metric_name {self.args.metric_name}: {undefined} is no number, so it is left out")
        return values

    def score(self, split: str, outputs: Outputs, predictions: Outputs) -> dict[str, float]:
        """The task's metrics, the value of --metric_name if it is given, and the mean loss.

        Several classes of the model may stand for one label (HANS), so the loss is that of their summed probability.
        A text with any number of classes has those of a probability above one half.
        """
        if "labels" not in self.features[split].column_names:
            return {}
        logits = torch.from_numpy(np.stack(outputs["logits"]))
        labels = torch.tensor(self.features[split]["labels"][: len(logits)])
        columns = {
            argument: self.data[split][column][: len(logits)]
            for argument, column in self.glue_task.metric_columns.items()
        }
        counts = {}
        if not self.names:
            predicted = logits.squeeze(-1)
            loss = torch.nn.functional.mse_loss(predicted, labels)
        elif self.glue_task.multi_label:
            predicted = (logits > 0).long()
            loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, labels)
            labels, counts = labels.long(), {PREDICTED_CLASSES: len(predicted.unique(dim=0))}
        else:
            # F1 is that of the task's label 1, which may have another number among the model's classes.
            of_task = [self.glue_task.labels.index(self.glue_task.label_of(name)) for name in self.names]
            of_task = torch.tensor(of_task)
            predicted, labels = of_task[logits.argmax(-1)], of_task[labels]
            wrong = of_task != labels[:, None]
            loss = (logits.logsumexp(-1) - logits.masked_fill(wrong, -torch.inf).logsumexp(-1)).mean()
            counts = {PREDICTED_CLASSES: len(predicted.unique())}
        metric = metrics.load(self.glue_task.metric)
        values = metric.compute(predictions=predicted, references=labels, **columns)
        others = {} if self.metric is None else self.named_score(predicted, labels)
        if clash := sorted(others.keys() & {*values, *counts, "loss", "samples", "runtime"}):
            raise InputError(
                f"--metric_name {self.args.metric_name} gives {clash[0]}, which is reported anyway: leave it out"
            )
        return values | others | counts | {"loss": loss.item()}

    def write(self, split: str, predictions: Outputs) -> dict[str, str]:
        """The predicted classes or numbers and, for a test set of GLUE, the same as the leaderboard reads them.

        The latter has numbers of classes for some tasks. The server refuses a file that lacks a line, so there is none
        for a part of a test set. A test file of the user's has other columns, and stays with its predictions.
        """
        logits = torch.from_numpy(np.stack(predictions["logits"]))
        if self.args.task_name is None:
            rows = self.data[split]["row"][: len(logits)]
            return {"predictions.csv": predictions_csv(rows, *self.with_scores(logits))}
        values = [self.names[row.argmax()] if self.names else f"{row.item():.4f}" for row in logits]
        test = self.data[split]
        numbers = test[PLACE][: len(values)] if PLACE in test.column_names else range(len(values))
        files = {f"predictions{split.removeprefix('test')}.tsv": numbered_lines(values, numbers)}
        for_leaderboard = self.glue_task.leaderboard.get(split)
        if for_leaderboard is not None and len(values) == for_leaderboard.examples:
            files[for_leaderboard.name] = numbered_lines(map(self.glue_task.for_leaderboard, values), numbers)
        elif for_leaderboard is not None:
            Path(self.args.output_dir, for_leaderboard.name).unlink(missing_ok=True)  # of an earlier test file
            published = f"{for_leaderboard.examples:,} examples of the published test set"
            print(f"no {for_leaderboard.name} for the leaderboard: it has to predict all {published}")
        return files

    def with_scores(self, logits: torch.Tensor) -> tuple[list[str], list[str] | None]:
        """The predictions for texts, and their probabilities; None for numbers.

        Of a text with any number of classes, these are the list of its classes and the probability of each class.
        """
        if not self.names:
            return [f"{number:.4f}" for number in logits.squeeze(-1).tolist()], None
        if not self.glue_task.multi_label:
            probabilities, classes = logits.softmax(-1).max(-1)
            return [self.names[index] for index in classes], [f"{value:.4f}" for value in probabilities]
        predictions = [list(compress(self.names, row)) for row in (logits > 0).tolist()]
        rounded = [[round(value, 4) for value in row] for row in logits.sigmoid().tolist()]
        scores = [dict(zip(self.names, row, strict=True)) for row in rounded]
        return [[json.dumps(value, ensure_ascii=False) for value in values] for values in (predictions, scores)]


def load_metric(name: str, multi_label: bool) -> EvaluationModule:
    """A module of `evaluate`. Raises ValueError if there is none of that name."""
    import evaluate  # it takes seconds, which other runs need not

    try:
        return evaluate.load(name, "multilabel" if multi_label else None)
    except (ImportError, OSError, ValueError) as error:
        reason = " ".join(str(error).split()).rstrip(".")
        raise InputError(
            f"--metric_name {name} cannot be loaded ({reason}): give its file, or its name on the Hub"
        ) from error


def numbered_lines(values: Iterable[str], numbers: Iterable[int]) -> str:
    """One line an example, as the leaderboard has them: its index in the test set, from 0, and the prediction."""
    lines = (f"{number}\t{value}\n" for number, value in zip(numbers, values, strict=True))
    return "index\tprediction\n" + "".join(lines)


def main(argv: list[str] | None = None) -> dict[str, float]:
    """Carries out what `argv`, by default the command line, asks for; returns metrics.json's numbers."""
    return repeat(partial(run_task, load), parse_arguments(GlueArguments, argv))


def load(args: GlueArguments) -> Classification:
    """The task, whose classes are those of the data or of the model, and a model with a head for them."""
    config, tokenizer = load_config(args.source), load_tokenizer(args.source)
    glue_task, data = load_data(args, config)
    names = class_names(glue_task, config, train=args.do_train, model_name=args.model_name_or_path)
    if args.do_train and args.names not in (None, tuple(names)):
        order = f"the classes are in the order {listed(names)}, as {args.model_name_or_path} has them"
        PartialState().print(f"{order}, and not in that of --label_names {args.label_names}")
    config.update(classifier_fields(names, glue_task.multi_label))
    model = load_model(AutoModelForSequenceClassification, args.source, config, tokenizer, train=args.do_train)
    check_length(args.max_seq_length, model, tokenizer, pair=len(glue_task.text) == 2)
    description, samples = describe_data(glue_task, args), count_samples(data, args.limits)
    return Classification(data, samples, description, glue_task, names, args, model=model, tokenizer=tokenizer)


def classifier_fields(names: list[str], multi_label: bool) -> dict[str, object]:
    """The configuration fields of a classifier over `names`, or of a regression if there are none."""
    if not names:
        return {"num_labels": 1, "problem_type": "regression"}
    label2id = {name: number for number, name in enumerate(names)}
    problem_type = MULTI_LABEL if multi_label else "single_label_classification"
    return {"id2label": dict(enumerate(names)), "label2id": label2id, "problem_type": problem_type}


def describe_data(glue_task: GlueTask, args: GlueArguments) -> Description:
    """What the model card says the scores were measured on."""
    pairs = len(glue_task.text) == 2
    if args.task_name is None:
        return Description("text-classification", pairs=pairs)
    return Description(
        "text-classification",
        dataset_type=glue_task.hub,
        dataset_name=f"GLUE {glue_task.folder}" if glue_task.hub == GlueTask.hub else glue_task.folder,
        dataset_config=glue_task.hub_configuration or args.task_name,
        dataset_split=glue_task.splits["validation"].hub,
        language="en",
        pairs=pairs,
    )


if __name__ == "__main__":
    command(main)
