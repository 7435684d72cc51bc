# /// script
# requires-python = ">=3.11"
# dependencies = ["elmo-gpt-bert==0.1.0"]
# ///
"""Fine-tunes and evaluates a model on multiple choice: SWAG (Zellers et al. 2018), RACE, Story Cloze or your own data.

    python run_swag.py configs/gpt/choices.yaml --task_name swag  # the paper's recipe, data from the Hub
    python run_swag.py configs/gpt/choices.yaml --task_name race --data_dir RACE --do_predict
    python run_swag.py configs/gpt/choices.yaml --task_name storycloze --data_dir storycloze --do_predict
    python run_swag.py --model_name_or_path CHECKPOINT --train_file a.csv --validation_file b.csv \\
        --do_train --do_eval --output_dir runs/mine
    python run_swag.py --model_name_or_path runs/mine --test_file c.csv --do_predict --output_dir runs/predictions

The folder --data_dir holds SWAG's train.csv, val.csv and test.csv; RACE's folders train, dev and test, each with
middle and high; or Story Cloze's files of 2016 under their published names. As in GPT's paper, training on Story Cloze
uses its validation stories, and the 374 that the released code holds out are the validation set.
Your own files are csv or json (one object a line). Their columns are context, optionally question, the choices as
choice0, choice1 and so on (or, in json, as the list choices), and label, the number of the right choice, counted from
0. A test file needs no label. All examples of a file have the same number of choices. Files with the columns of SWAG,
RACE or Story Cloze are read too, such as CODAH's or those of Story Cloze of 2018.
The model reads each choice as the second of two texts, after its context. If both together are longer than
--max_seq_length, the beginning of the context is cut off: the question, or the sentence to continue, is at its end.
OUTPUT_DIR receives metrics.json, predictions.csv (the chosen number, from 0, for each example of the test set, in the
format of SWAG's leaderboard), and the trained model with its model card.
"""

from __future__ import annotations

import elmo_gpt_bert.starting  # noqa: F401 - says so before the imports below, which take seconds


# isort: split

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import numpy as np
import torch
from transformers import AutoModelForMultipleChoice

from elmo_gpt_bert import metrics
from elmo_gpt_bert.tasks.choices import TASKS, collate, find_files, make_features, read_files, read_folder, read_hub
from elmo_gpt_bert.tasks.rows import hub_version
from elmo_gpt_bert.training.arguments import DATA_PAIRS, OWN_DATA, DataArguments, Pair, flag, one_of
from elmo_gpt_bert.training.errors import InputError
from elmo_gpt_bert.training.flags import parse_arguments
from elmo_gpt_bert.training.loading import check_length, load_config, load_model, load_tokenizer
from elmo_gpt_bert.training.results import PREDICTED_CLASSES, count_samples
from elmo_gpt_bert.training.runs import command, repeat, run_task
from elmo_gpt_bert.training.task import Description, Outputs, Task


if TYPE_CHECKING:
    from datasets import DatasetDict


@dataclass(frozen=True, kw_only=True)
class SwagArguments(DataArguments):
    """The arguments of this script, in addition to those of every run on texts."""

    pairs: ClassVar[tuple[Pair, ...]] = (*DATA_PAIRS, Pair(OWN_DATA, "task_name data_dir"))

    task_name: Annotated[str, one_of(TASKS)] | None = flag(None, f"one of {', '.join(TASKS)}")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.task_name is not None and TASKS[self.task_name].hub is None and self.data_dir is None:
            raise InputError(
                f"{self.task_name} is not on the Hub: ask its authors for the data, and give --data_dir with "
                f"{' and '.join(dict.fromkeys(TASKS[self.task_name].files.values()))}"
            )

    def data_sources(self) -> dict[str, list[Path] | str]:
        if self.task_name is None:
            return super().data_sources()
        task = TASKS[self.task_name]
        if self.data_dir is None:
            return dict.fromkeys(self.splits, hub_version(*task.hub, None))
        return {split: find_files(Path(self.data_dir), task, split) for split in self.splits}


def load_data(args: SwagArguments) -> DatasetDict:
    """The splits that this run needs."""
    if args.task_name is None:
        return read_files(args.files, args.validation_split_percentage)
    task = TASKS[args.task_name]
    if args.data_dir is None:
        return read_hub(task, args.splits)
    return read_folder(Path(args.data_dir), task, args.splits)


@dataclass
class MultipleChoice(Task):
    """Contexts with several choices each, of which one is right."""

    def featurize(self, args: SwagArguments) -> None:
        self.features = make_features(self.data, self.tokenizer, length=args.max_seq_length, limits=args.limits)
        self.collate = partial(collate, tokenizer=self.tokenizer, **args.padding)

    def score(self, split: str, outputs: Outputs, predictions: Outputs) -> dict[str, float]:
        """The accuracy, overall and for each part of the data, and the mean loss."""
        if "labels" not in self.features[split].column_names:
            return {}
        logits = torch.from_numpy(np.stack(outputs["logits"]))
        labels = torch.tensor(self.features[split]["labels"][: len(logits)])
        predicted, parts = logits.argmax(-1), self.data[split]["part"][: len(logits)]
        values = metrics.load("choices").compute(predictions=predicted, references=labels, parts=parts)
        loss = torch.nn.functional.cross_entropy(logits, labels).item()
        return values | {PREDICTED_CLASSES: len(predicted.unique()), "loss": loss}

    def write(self, split: str, predictions: Outputs) -> dict[str, str]:
        """One line an example: its index in the test set and the number of its choice, both from 0.

        SWAG's leaderboard takes this file, a pandas table whose index column has no name:
        https://github.com/rowanz/swagaf/blob/master/csv_predict.py
        """
        lines = [",pred", *(f"{index},{row.argmax()}" for index, row in enumerate(predictions["logits"]))]
        return {"predictions.csv": "\n".join(lines) + "\n"}


def main(argv: list[str] | None = None) -> dict[str, float]:
    """Carries out what `argv`, by default the command line, asks for; returns metrics.json's numbers."""
    return repeat(partial(run_task, load), parse_arguments(SwagArguments, argv))


def load(args: SwagArguments) -> MultipleChoice:
    """The task, and a model that scores one choice at a time."""
    config, tokenizer = load_config(args.source), load_tokenizer(args.source)
    data = load_data(args)
    model = load_model(AutoModelForMultipleChoice, args.source, config, tokenizer, train=args.do_train)
    check_length(args.max_seq_length, model, tokenizer, pair=True)
    samples = count_samples(data, args.limits)
    return MultipleChoice(data, samples, describe_data(args), model=model, tokenizer=tokenizer)


def describe_data(args: SwagArguments) -> Description:
    """What the model card says the scores were measured on."""
    if args.task_name is None:
        return Description("multiple-choice")
    task = TASKS[args.task_name]
    dataset_type, configuration = task.hub or (args.task_name, None)
    return Description(
        "multiple-choice",
        dataset_type=dataset_type,
        dataset_name=task.name,
        dataset_config=configuration,
        dataset_split="validation",
        language="en",
    )


if __name__ == "__main__":
    command(main)
