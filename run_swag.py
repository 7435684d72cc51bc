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
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from datasets import DatasetDict
from transformers import AutoModelForMultipleChoice
from transformers.hf_argparser import HfArg

import metrics
from tasks.choices.data import read_files, read_folder, read_hub
from tasks.choices.features import collate, make_features
from tasks.choices.table import TASKS
from training.arguments import DataArguments, PathOrName, one_of
from training.clock import Clock
from training.errors import InputError
from training.flags import parse_arguments
from training.launching import make_accelerator
from training.loading import check_length, load_config, load_model, load_tokenizer
from training.prediction import Outputs
from training.results import Results, Scores
from training.runs import carry_out, command, repeat
from training.samples import count_samples, describe_samples
from training.task import Description, Task


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
            raise InputError("give either --task_name or --train_file, --validation_file, --test_file")
        if self.task_name is None:
            if self.data_dir is not None:
                raise InputError("--data_dir holds the data of a --task_name")
        elif TASKS[self.task_name].hub is None and self.data_dir is None:
            raise InputError(
                f"the Hub does not have {self.task_name}, whose authors give it to those who ask: give --data_dir "
                f"with {' and '.join(dict.fromkeys(TASKS[self.task_name].files.values()))}"
            )


def load_data(args: SwagArguments) -> DatasetDict:
    """The splits that this run needs."""
    splits = [split for split, needed in args.parts.items() if needed]
    if args.task_name is None:
        return read_files({split: getattr(args, f"{split}_file") for split in splits})
    task = TASKS[args.task_name]
    return read_hub(task, splits) if args.data_dir is None else read_folder(Path(args.data_dir), task, splits)


class Choosing(Task):
    """Contexts, each with choices of which one is right."""

    def score(self, split: str, outputs: Outputs, predictions: Outputs) -> Scores | None:
        """How often the choice with the highest score is the right one, in each part of the data too, and the mean
        loss.
        """
        if "labels" not in self.features[split].column_names:
            return None
        logits = torch.from_numpy(np.stack(outputs["logits"]))
        labels = torch.tensor(self.features[split]["labels"][: len(logits)])
        choices, parts = logits.argmax(-1), self.data[split]["part"][: len(logits)]
        values = metrics.load("accuracy", "choices").compute(predictions=choices, references=labels, parts=parts)
        loss = torch.nn.functional.cross_entropy(logits, labels).item()
        return Scores(values, predicted_classes=len(choices.unique()), loss=loss)

    def write(self, split: str, predictions: Outputs) -> dict[str, str]:
        """One line an example: its number in the test set and that of its choice, both from 0.

        The file is the one that SWAG's leaderboard takes, a pandas table with an index that has no name:
        https://github.com/rowanz/swagaf/blob/master/csv_predict.py
        """
        rows = [f"{index},{logits.argmax()}" for index, logits in enumerate(predictions["logits"])]
        return {"predictions.csv": "\n".join([",pred", *rows]) + "\n"}


def main(argv: list[str] | None = None) -> dict[str, float]:
    """From the command line or `argv`, one run or several; returns what metrics.json says of them."""
    return repeat(run, parse_arguments(SwagArguments, argv))


def run(args: SwagArguments) -> Results:
    """One run."""
    clock = Clock()
    accelerator = make_accelerator(args)
    clock.lap("start")
    config = load_config(args.source)
    tokenizer = load_tokenizer(args.source)
    data = load_data(args)
    model = load_model(AutoModelForMultipleChoice, args.source, config, tokenizer, train=args.do_train)
    check_length(args.max_seq_length, model, tokenizer, pair=True)
    samples = count_samples(data, args.limits)
    size = f"{model.num_parameters():,} parameters; {describe_samples(samples)} examples"
    accelerator.print(f"load: {type(model).__name__}, {size}")
    clock.lap("load")
    features = make_features(data, tokenizer, length=args.max_seq_length, limits=args.limits)
    clock.lap("tokenize")
    batch = partial(collate, tokenizer=tokenizer, **args.padding)
    task = Choosing(data, features, batch, samples, describe_data(args))
    return carry_out(task, model, tokenizer, args, accelerator, clock)


def describe_data(args: SwagArguments) -> Description:
    """What the model card says the scores were measured on."""
    if args.task_name is None:
        return Description("multiple-choice")
    task = TASKS[args.task_name]
    data_set, configuration = task.hub or (args.task_name, None)
    return Description("multiple-choice", data_set, task.name, configuration, "validation", "en")


if __name__ == "__main__":
    command(main)
