"""Fine-tunes and evaluates a model that chooses: SWAG (Zellers et al. 2018), RACE, Story Cloze, or your own choices.

    python run_swag.py configs/gpt/swag.yaml                                  # the paper's recipe, data from the Hub
    python run_swag.py configs/gpt/race.yaml --data_dir RACE                  # RACE's folder as it is published
    python run_swag.py configs/gpt/storycloze.yaml --data_dir storycloze      # the folder of the two csv files of 2016
    python run_swag.py --model_name_or_path CHECKPOINT --train_file a.csv --validation_file b.csv \\
        --do_train --do_eval --output_dir runs/mine
    python run_swag.py --model_name_or_path runs/mine --test_file c.csv --do_predict --output_dir runs/predictions

A folder given as --data_dir holds SWAG's train.csv, val.csv and test.csv, RACE's train, dev and test with middle and
high in each, or Story Cloze's files of 2016 under their own names. Of the latter GPT learns from the stories for
validation; 374 of them are kept for evaluation, those of its released code.
Files of your own are csv or json (one object a line) with the columns context, perhaps question, choice0, choice1 and
so on or, in json, the list choices, and label, the number of the right choice, from 0; a test file may leave it out.
Within a file, all examples have equally many choices. The columns of SWAG, RACE and Story Cloze are known too, so
others' files in their form, as CODAH's or those of Story Cloze of 2018, are read as files of your own.
A choice is read as the second of two texts, after its context. Where both are longer than --max_seq_length, the
beginning of the context gives way: what is asked, or goes on, stands at its end.
OUTPUT_DIR receives metrics.json, predictions.csv (the number of the choice, from 0, for each example of the test set,
as SWAG's leaderboard takes it), and the checkpoint with its model card.
"""

from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from datasets import Dataset, DatasetDict
from transformers import AutoModelForMultipleChoice, PreTrainedTokenizerBase
from transformers.hf_argparser import HfArg

import metrics
from tasks.choices import TASKS, read_folder, read_hub, read_own_files
from training.arguments import DataArguments, PathOrName, one_of
from training.ensembles import check_ensemble
from training.files import write_atomically
from training.flags import parse_arguments
from training.launching import start
from training.loading import check_length, load_model, load_tokenizer
from training.loop import Outputs, evaluate, predict, train
from training.reporting import finish, remove_earlier_results
from training.runs import Stopwatch, command, repeat
from training.samples import count_samples, first_examples, sizes


@dataclass(frozen=True, kw_only=True)
class SwagArguments(DataArguments):
    """What this script adds."""

    task_name: Annotated[str, one_of(TASKS)] | None = HfArg(default=None, help=f"one of {', '.join(TASKS)}")
    data_dir: PathOrName | None = HfArg(default=None, help="the task's folder as it was published")
    train_file: PathOrName | None = HfArg(default=None, help="csv or json of your own")

    def __post_init__(self) -> None:
        super().__post_init__()
        own = [self.train_file, self.validation_file, self.test_file]
        if (self.task_name is None) == (not any(own)):
            raise ValueError("give either --task_name or --train_file, --validation_file, --test_file")
        if self.task_name is None:
            if self.data_dir is not None:
                raise ValueError("--data_dir holds the data of a --task_name")
        elif TASKS[self.task_name].hub is None and self.data_dir is None:
            raise ValueError(
                f"the Hub does not have {self.task_name}, whose authors give it to those who ask: give --data_dir "
                f"with {' and '.join(dict.fromkeys(TASKS[self.task_name].files.values()))}"
            )


def load_data(args: SwagArguments) -> DatasetDict:
    """The splits that this run needs."""
    splits = [split for split, needed in args.parts.items() if needed]
    if args.task_name is None:
        return read_own_files({split: getattr(args, f"{split}_file") for split in splits})
    task = TASKS[args.task_name]
    return read_hub(task, splits) if args.data_dir is None else read_folder(Path(args.data_dir), task, splits)


# Text -> features


def encode(
    contexts: list[str], choices: list[str], tokenizer: PreTrainedTokenizerBase, length: int
) -> list[dict[str, list]]:
    """The inputs of each pair, of at most `length` tokens.

    The beginning of the context gives way. Where a choice leaves no room for it, the beginning of the longer text does
    until both are equally long.
    """
    room = length - tokenizer.num_special_tokens_to_add(pair=True)
    short = np.array([len(ids) < room for ids in tokenizer(choices, add_special_tokens=False)["input_ids"]])
    inputs: list[dict[str, list]] = [{} for _ in choices]
    side, tokenizer.truncation_side = tokenizer.truncation_side, "left"
    for truncation, chosen in (("only_first", short), ("longest_first", ~short)):
        numbers = np.flatnonzero(chosen).tolist()
        if numbers:
            pairs = [contexts[number] for number in numbers], [choices[number] for number in numbers]
            encoded = tokenizer(*pairs, truncation=truncation, max_length=length, return_attention_mask=True)
            for row, number in enumerate(numbers):
                inputs[number] = {name: values[row] for name, values in encoded.items()}
    tokenizer.truncation_side = side
    return inputs


def featurize(batch: dict[str, list], tokenizer: PreTrainedTokenizerBase, length: int) -> dict[str, list]:
    """For each example its inputs, each a list with one list a choice, and `labels`, the number of the right one."""
    contexts = [context for context, choices in zip(batch["context"], batch["choices"], strict=True) for _ in choices]
    rows = iter(encode(contexts, list(chain(*batch["choices"])), tokenizer, length))
    grouped = [[next(rows) for _ in choices] for choices in batch["choices"]]
    features = {name: [[row[name] for row in group] for group in grouped] for name in grouped[0][0]}
    return features | ({"labels": batch["label"]} if "label" in batch else {})


def tokenize(data: DatasetDict, tokenizer: PreTrainedTokenizerBase, args: SwagArguments) -> DatasetDict:
    """The features of each split, cut to --max_*_samples."""
    convert = partial(featurize, tokenizer=tokenizer, length=args.max_seq_length)
    features = DatasetDict()
    for split, chosen in first_examples(data, args.limits).items():
        features[split] = chosen.map(convert, batched=True, remove_columns=chosen.column_names, keep_in_memory=True)
    return features


def collate(examples: list[dict], tokenizer: PreTrainedTokenizerBase, **padding: object) -> dict[str, torch.Tensor]:
    """A batch for the model: what the tokenizer gave as (B, choices, T), `labels` as (B,)."""
    names = examples[0].keys() - {"labels"}
    rows = [
        {name: example[name][choice] for name in names}
        for example in examples
        for choice in range(len(example["input_ids"]))
    ]
    padded = tokenizer.pad(rows, return_tensors="pt", **padding)
    batch = {name: tensor.unflatten(0, (len(examples), -1)) for name, tensor in padded.items()}
    if "labels" in examples[0]:
        batch["labels"] = torch.tensor([example["labels"] for example in examples])
    return batch


# Metrics and predictions


def compute_metrics(outputs: Outputs, data_set: Dataset, parts: list[str]) -> dict[str, float]:
    """How often the choice with the highest score is the right one, in each of the `parts` too, and the mean loss."""
    logits = torch.from_numpy(np.stack(outputs["logits"]))
    labels = torch.tensor(list(data_set["labels"]))
    predictions = logits.argmax(-1)
    inputs = {"predictions": predictions, "references": labels, "parts": parts[: len(labels)]}
    scores = metrics.load("accuracy", "choices").compute(**inputs)
    scores["predicted_classes"] = len(predictions.unique())  # 1: the model has collapsed, all scores are equal
    return {**scores, "loss": torch.nn.functional.cross_entropy(logits, labels).item()}


def write_predictions(outputs: Outputs, path: Path) -> None:
    """One line an example: its number in the test set and that of its choice, both from 0.

    The file is the one that SWAG's leaderboard takes, a pandas table with an index that has no name:
    https://github.com/rowanz/swagaf/blob/master/csv_predict.py
    """
    rows = [f"{index},{logits.argmax()}" for index, logits in enumerate(outputs["logits"])]
    write_atomically(path, "\n".join([",pred", *rows]) + "\n")


def main(argv: list[str] | None = None) -> dict[str, float]:
    """From the command line or `argv`, one run or several; returns what metrics.json says of them."""
    return repeat(run, parse_arguments(SwagArguments, argv))


def run(args: SwagArguments) -> dict[str, float]:
    """One run."""
    watch = Stopwatch()
    accelerator = start(args)
    watch.lap("start")
    tokenizer = load_tokenizer(args)
    data = load_data(args)
    model = load_model(AutoModelForMultipleChoice, args, tokenizer)
    check_length(args.max_seq_length, model, tokenizer, pair=True)
    samples = count_samples(data, args.limits)
    size = f"{model.num_parameters():,} parameters; {sizes(samples, data)} examples"
    accelerator.print(f"load: {type(model).__name__}, {size}")
    watch.lap("load")
    features = tokenize(data, tokenizer, args)
    watch.lap("tokenize")

    check_ensemble(features.values(), model.config.id2label, args)
    remove_earlier_results(args, accelerator)
    padding = {"padding": "max_length", "max_length": args.max_seq_length} if args.pad_to_max_length else {}
    batch = partial(collate, tokenizer=tokenizer, **padding)
    scores = {split: partial(compute_metrics, parts=examples["part"][:]) for split, examples in data.items()}
    results = {}
    if args.do_train:
        eval_sets = {"": features["validation"]} if args.do_eval else {}
        score = scores.get("validation")
        results = train(
            model, tokenizer, features["train"], eval_sets, batch, score, args, accelerator, data.get("validation")
        )
        watch.skip()
    elif args.do_eval:
        results = evaluate(model, {"": features["validation"]}, batch, scores["validation"], args, accelerator)
        watch.lap("eval")
    if args.do_predict:
        outputs = predict(model, features["test"], batch, args, accelerator)
        if "labels" in features["test"].column_names:
            found = scores["test"](outputs, features["test"])
            results |= {f"test_{name}": value for name, value in found.items()}
        if accelerator.is_main_process:
            write_predictions(outputs, Path(args.output_dir) / "predictions.csv")
        watch.lap("predict")
    results |= watch.runtimes() | samples
    finish(model, tokenizer, results, description(args), args, accelerator)
    return results


def description(args: SwagArguments) -> dict[str, str]:
    """What the model card says the scores were measured on."""
    if args.task_name is None:
        return {"task_type": "multiple-choice", "dataset_type": "text", "dataset_name": "files of our own"}
    task = TASKS[args.task_name]
    names = {"dataset_type": args.task_name, "dataset_name": task.name, "dataset_split": "validation"}
    if task.hub is not None:
        names["dataset_type"], names["dataset_config"] = task.hub
    return {"task_type": "multiple-choice", **names, "language": "en"}


if __name__ == "__main__":
    command(main)
