"""Fine-tunes and evaluates a sequence classifier on GLUE (Wang et al. 2018), SNLI, SciTail or text of your own.

    python run_glue.py configs/bert/mrpc.yaml                               # the paper's recipe, data from the Hub
    python run_glue.py configs/bert/sst2_scratch.yaml --data_dir glue_data  # random weights, the GLUE zip's folders
    python run_glue.py configs/gpt/snli.yaml --data_dir snli_1.0            # the unpacked release
    python run_glue.py --model_name_or_path CHECKPOINT --train_file a.csv --validation_file b.csv \\
        --do_train --do_eval --output_dir runs/mine
    python run_glue.py --model_name_or_path runs/mine --test_file c.csv --do_predict --output_dir runs/predictions
    python run_glue.py --model_name_or_path runs/bert/mnli --task_name ax --do_predict --output_dir runs/bert/ax
    python run_glue.py --model_name_or_path runs/bert/mnli --task_name hans --do_eval --output_dir runs/bert/hans

Files of your own are csv, tsv (without quoting) or json (one object a line) with the columns `label` and `sentence`,
`text`, or `sentence1` and `sentence2`; `--text_column_names` and `--label_column_name` give them other names. Labels
that are numbers, not all of them whole, make a regression; so does `--problem_type regression` of whole ones.
AX and HANS examine a model trained on MNLI, whose own names for the classes say what its numbers mean.
The test sets of SNLI and SciTail have labels: --do_predict scores its predictions there, as test_accuracy. The
pairs of SNLI without a gold label are left out of every split.
OUTPUT_DIR receives metrics.json, predictions.tsv (`predictions_mm.tsv` for MNLI's mismatched part), and the checkpoint
with its model card.
"""

import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from accelerate import PartialState
from datasets import Dataset, DatasetDict
from transformers import (
    AutoModelForSequenceClassification,
    DataCollatorWithPadding,
    PreTrainedConfig,
    PreTrainedTokenizerBase,
)
from transformers.hf_argparser import HfArg

import metrics
from tasks.glue import DIAGNOSTICS, EVERY_TASK, TASKS, Task
from tasks.glue_data import read_hub, read_own_files, read_zip
from training.arguments import DataArguments, PathOrName, one_of
from training.ensembles import check_ensemble
from training.files import write_atomically
from training.flags import parse_arguments
from training.launching import start
from training.loading import check_length, load_config, load_model, load_tokenizer
from training.loop import Outputs, evaluate, predict, train
from training.reporting import finish, remove_earlier_results
from training.runs import Stopwatch, command, repeat
from training.samples import count_samples, first_examples, sizes


@dataclass(frozen=True, kw_only=True)
class GlueArguments(DataArguments):
    """What this script adds."""

    task_name: Annotated[str, one_of(EVERY_TASK)] | None = HfArg(
        default=None, help=f"one of {', '.join(TASKS)}; {', '.join(DIAGNOSTICS)} examine a model trained on mnli"
    )
    data_dir: PathOrName | None = HfArg(
        default=None, help="the task's folder as it was published, or the folder above"
    )
    train_file: PathOrName | None = HfArg(default=None, help="csv, tsv or json of your own")
    problem_type: Literal["regression", "single_label_classification"] | None = HfArg(
        default=None, help="of a train file of your own; default: a regression if its labels have decimals"
    )
    text_column_names: str | None = HfArg(
        default=None, help="in files of your own: one, or two with a comma between them; default: sentence, text, ..."
    )
    label_column_name: str | None = HfArg(default=None, help="in files of your own; default: label")

    def __post_init__(self) -> None:
        super().__post_init__()
        own = [self.train_file, self.validation_file, self.test_file]
        if (self.task_name is None) == (not any(own)):
            raise ValueError("give either --task_name or --train_file, --validation_file, --test_file")
        if self.task_name is not None:
            self._check_task()
        elif self.data_dir is not None:
            raise ValueError("--data_dir holds the data of a --task_name")
        elif self.text_column_names is not None and not re.fullmatch("[^,]+(,[^,]+)?", self.text_column_names):
            raise ValueError(f"--text_column_names must be one column or two, as in a,b, not {self.text_column_names}")
        label = self.label_column_name or "label"
        if (self.do_train or self.do_eval) and label in (self.text_column_names or "").split(","):
            raise ValueError(f"--text_column_names {self.text_column_names} has the column of the labels, {label}")
        if self.problem_type is not None and not (self.train_file and self.do_train):
            raise ValueError("--problem_type says what to train on a --train_file; tasks and checkpoints know theirs")

    def _check_task(self) -> None:
        if self.task_name in DIAGNOSTICS and self.do_train:
            raise ValueError(
                f"--task_name {self.task_name} is nothing to train on: train on mnli, and give that checkpoint as "
                "--model_name_or_path"
            )
        for split, needed in self.parts.items():
            if needed and split not in EVERY_TASK[self.task_name].splits:
                raise ValueError(f"--task_name {self.task_name} has no {split} split")
        if self.text_column_names is not None or self.label_column_name is not None:
            raise ValueError("--text_column_names and --label_column_name are for files of your own")


def load_data(args: GlueArguments, config: PreTrainedConfig) -> tuple[Task, DatasetDict]:
    """The task and the splits that this run needs."""
    if args.task_name is None:
        files = {split: getattr(args, f"{split}_file") for split, needed in args.parts.items() if needed}
        text = tuple(args.text_column_names.split(",")) if args.text_column_names else None
        return read_own_files(files, config, args.problem_type, text, args.label_column_name)
    task = EVERY_TASK[args.task_name]
    splits = [split for split in task.splits if args.parts[split.removesuffix("_mm")]]
    if args.data_dir is None:
        return task, read_hub(args.task_name, splits)
    return task, read_zip(Path(args.data_dir), task, splits)


# Text -> features


def class_names(task: Task, config: PreTrainedConfig, args: GlueArguments) -> list[str]:
    """The task's classes in the order of the model's outputs: the checkpoint's if it knows them, else the task's.

    ENTAILMENT is entailment, and "not equivalent" is not_equivalent: unless the task itself tells such names apart.
    """
    if sorted(config.id2label) != list(range(config.num_labels)):
        raise ValueError(f"{args.model_name_or_path}: id2label must number the classes from 0: {config.id2label}")
    own = [config.id2label[number] for number in range(config.num_labels)]
    if sorted(own) == sorted(task.classes):
        return own
    spelling = {_plain(name): name for name in task.classes}
    if sorted(map(_plain, own)) == sorted(spelling) and len(spelling) == len(task.classes):
        return [spelling[_plain(name)] for name in own]
    unnamed = own == [f"LABEL_{number}" for number in range(len(task.classes) or 1)]
    if unnamed and task.classes and not args.do_train:
        PartialState().print(
            f"{args.model_name_or_path} does not name its classes: taken for {', '.join(task.classes)}, in this order"
        )
    if args.do_train or unnamed:
        return list(task.classes)
    knows = f"tells {', '.join(own)} apart" if len(own) > 1 else "predicts a number"
    wanted = ", ".join(task.classes) or "a regression"
    remedy = f"train it on {'mnli' if args.task_name in DIAGNOSTICS else 'this task'} first"
    raise ValueError(f"{args.model_name_or_path} {knows}, but the task is {wanted}: {remedy}")


def _plain(name: str) -> str:
    return re.sub(r"[\s_-]+", "_", name.strip().lower())


def featurize(batch: dict[str, list], tokenizer: PreTrainedTokenizerBase, names: list[str], length: int) -> dict:
    """Token ids, and `labels` as the first number that stands for them in `names` or, without names, as they are."""
    features = dict(tokenizer(batch["text"], batch.get("text_pair"), truncation=True, max_length=length))
    if "label" in batch:
        features["labels"] = [names.index(label) if names else label for label in batch["label"]]
    return features


def tokenize(
    data: DatasetDict, tokenizer: PreTrainedTokenizerBase, names: list[str], args: GlueArguments
) -> DatasetDict:
    """The features of each split, cut to --max_*_samples. `names` are the labels behind the model's outputs."""
    convert = partial(featurize, tokenizer=tokenizer, names=names, length=args.max_seq_length)
    features = DatasetDict()
    for split, chosen in first_examples(data, args.limits).items():
        features[split] = chosen.map(convert, batched=True, remove_columns=chosen.column_names, keep_in_memory=True)
    return features


# Metrics and predictions


def compute_metrics(
    outputs: Outputs, data_set: Dataset, task: Task, names: list[str], beside: dict[str, list]
) -> dict[str, float]:
    """The task's own scores, for which `beside` has the columns that its metric needs, and the mean loss.

    The most probable class decides; the loss is that of the summed probability of all classes with the right label.
    """
    logits = torch.from_numpy(np.stack(outputs["logits"]))
    labels = torch.tensor(list(data_set["labels"]))
    if not task.labels:
        predictions, loss = logits.squeeze(-1), torch.nn.functional.mse_loss(logits.squeeze(-1), labels)
    else:
        # F1 is that of the task's label 1, which may have another number in the checkpoint.
        number = torch.tensor([task.labels.index(task.label_of(name)) for name in names])
        predictions, labels = number[logits.argmax(-1)], number[labels]
        wrong = number != labels[:, None]
        loss = (logits.logsumexp(-1) - logits.masked_fill(wrong, -torch.inf).logsumexp(-1)).mean()
    columns = {name: values[: len(labels)] for name, values in beside.items()}
    scores = metrics.load(*task.metric).compute(predictions=predictions, references=labels, **columns)
    if task.labels:
        scores["predicted_classes"] = len(predictions.unique())  # 1: the model has collapsed
    return {**scores, "loss": loss.item()}


def write_predictions(outputs: Outputs, names: list[str], path: Path) -> None:
    """One line an example: its number in the test set, from 0, and the class's name or the number predicted."""
    rows = [names[int(logits.argmax())] if names else f"{logits.item():.4f}" for logits in outputs["logits"]]
    lines = ["index\tprediction", *(f"{index}\t{row}" for index, row in enumerate(rows))]
    write_atomically(path, "\n".join(lines) + "\n")


def main(argv: list[str] | None = None) -> dict[str, float]:
    """From the command line or `argv`, one run or several; returns what metrics.json says of them."""
    return repeat(run, parse_arguments(GlueArguments, argv))


def run(args: GlueArguments) -> dict[str, float]:
    """One run."""
    watch = Stopwatch()
    accelerator = start(args)
    watch.lap("start")
    config = load_config(args)
    tokenizer = load_tokenizer(args)
    task, data = load_data(args, config)
    names = class_names(task, config, args)
    model = load_model(AutoModelForSequenceClassification, args, tokenizer, **head(names))
    check_length(args.max_seq_length, model, tokenizer, pair=len(task.text) == 2)
    samples = count_samples(data, args.limits)
    size = f"{model.num_parameters():,} parameters; {sizes(samples, data)} examples"
    accelerator.print(f"load: {type(model).__name__}, {size}")
    watch.lap("load")
    features = tokenize(data, tokenizer, [task.label_of(name) for name in names], args)
    watch.lap("tokenize")

    check_ensemble(features.values(), model.config.id2label, args)
    remove_earlier_results(args, accelerator)
    padding = {"padding": "max_length", "max_length": args.max_seq_length} if args.pad_to_max_length else {}
    collate = DataCollatorWithPadding(tokenizer, **padding)
    beside = {name: list(data["validation"][column]) for name, column in task.metric_columns.items()}
    score = partial(compute_metrics, task=task, names=names, beside=beside)
    eval_sets = {split.removeprefix("validation"): features[split] for split in features if "validation" in split}
    results = {}
    if args.do_train:
        results = train(
            model, tokenizer, features["train"], eval_sets, collate, score, args, accelerator, data.get("validation")
        )
        watch.skip()
    elif args.do_eval:
        results = evaluate(model, eval_sets, collate, score, args, accelerator)
        watch.lap("eval")
    for split in [split for split in features if split.startswith("test")]:
        outputs = predict(model, features[split], collate, args, accelerator)
        if "labels" in features[split].column_names:
            results |= {f"test_{name}": value for name, value in score(outputs, features[split]).items()}
        if accelerator.is_main_process:
            write_predictions(outputs, names, Path(args.output_dir) / f"predictions{split.removeprefix('test')}.tsv")
    if args.do_predict:
        watch.lap("predict")
    results |= watch.runtimes() | samples
    finish(model, tokenizer, results, description(task, args), args, accelerator)
    return results


def head(names: list[str]) -> dict[str, object]:
    """The configuration of a classifier over `names`, or of a regression if there are none."""
    if not names:
        return {"num_labels": 1, "problem_type": "regression"}
    label2id = {name: number for number, name in enumerate(names)}
    return {"id2label": dict(enumerate(names)), "label2id": label2id, "problem_type": "single_label_classification"}


def description(task: Task, args: GlueArguments) -> dict[str, Any]:
    """What the model card says the scores were measured on."""
    if args.task_name is None:
        names = {"dataset_type": "text", "dataset_name": "files of our own"}
        return {"task_type": "text-classification", **names, "pairs": len(task.text) == 2}
    names = {
        "dataset_type": task.hub,
        "dataset_name": f"GLUE {task.folder}" if task.hub == Task.hub else task.folder,
        "dataset_config": task.hub_configuration or args.task_name,
    }
    names |= {"dataset_split": task.splits["validation"].hub, "language": "en", "pairs": len(task.text) == 2}
    return {"task_type": "text-classification", **names}


if __name__ == "__main__":
    command(main)
