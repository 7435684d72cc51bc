# /// script
# requires-python = ">=3.11"
# dependencies = ["elmo-gpt-bert==0.1.0"]
# ///
"""Fine-tunes and evaluates a model that answers questions about texts, as in SQuAD 1.1 and 2.0 and CMRC 2018.

    python run_squad.py configs/bert/squad.yaml                               # the paper's recipe, data from the Hub
    python run_squad.py configs/bert/squad_v2_large.yaml --data_dir squad     # train-v2.0.json and dev-v2.0.json
    python run_squad.py configs/elmo/squad.yaml                               # ELMo's BiDAF, which reads words
    python run_squad.py configs/bert/cmrc2018.yaml                            # Chinese, scored as in CMRC 2018
    python run_squad.py --model_name_or_path runs/bert/squad --test_file questions.json --do_predict \\
        --output_dir runs/answers
    python run_squad.py --do_eval --predictions_file predictions.json --validation_file dev-v1.1.json   # no model

Your own files are SQuAD's JSON, or JSON lines (.jsonl) with the Hub's columns id, context, question and answers. A
--test_file needs no answers: if all of them are missing or empty, the questions are answered and nothing is scored. In
SQuAD 2.0, "is_impossible": true marks a question that has no answer, as opposed to one whose answer is not known.
A context that is longer than --max_seq_length allows is read in windows that overlap, and the best answer of all its
windows is predicted. Answers are cut from the original text and have at most --max_answer_length tokens.
OUTPUT_DIR receives metrics.json and the trained model with its model card. In the official formats, it also receives
predictions.json, nbest_predictions.json and, with --version_2_with_negative, null_odds.json for the test file, and the
same files with _validation in their names for the validation set. Of a --predictions_file the scores are printed
(elmo_gpt_bert/tasks/squad/scoring.py).
"""

from __future__ import annotations

import elmo_gpt_bert.starting  # noqa: F401 - says so before the imports below, which take seconds


# isort: split

import json
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from accelerate import PartialState
from datasets import DatasetDict
from transformers import AutoModelForQuestionAnswering

from elmo_gpt_bert.metrics.squad_scores import best_thresholds, cmrc2018_scores, mark, squad1_scores, squad2_scores
from elmo_gpt_bert.tasks.rows import hub_version
from elmo_gpt_bert.tasks.squad import scoring
from elmo_gpt_bert.tasks.squad.answering import Answers, find_answers
from elmo_gpt_bert.tasks.squad.data import find_file, read_files, read_hub
from elmo_gpt_bert.tasks.squad.features import Windows, collate, make_features
from elmo_gpt_bert.training.arguments import (
    DATA_PAIRS,
    DataArguments,
    NonNegativeInt,
    Pair,
    PositiveInt,
    flag,
    public_arguments,
)
from elmo_gpt_bert.training.errors import InputError
from elmo_gpt_bert.training.flags import parse_arguments
from elmo_gpt_bert.training.loading import check_length, load_config, load_model, load_tokenizer
from elmo_gpt_bert.training.results import count_samples, describe_number, first_examples, scores_of
from elmo_gpt_bert.training.runs import command, repeat, run_task
from elmo_gpt_bert.training.task import Description, Evaluation, Outputs, Task


if TYPE_CHECKING:
    from datasets import Dataset


NEVER = -1e6  # a threshold above which "no answer" always is


@dataclass(frozen=True, kw_only=True)
class SquadArguments(DataArguments):
    """The arguments of this script, in addition to those of every run on texts.

    A split comes from its file or, if it has none, from --data_dir or --dataset_name.
    """

    mixes_sources: ClassVar[bool] = True
    pairs: ClassVar[tuple[Pair, ...]] = (
        *DATA_PAIRS,
        Pair("data_dir", "dataset_name"),
        Pair(
            "train_file validation_file validation_split_percentage",  # no folder has the questions of a --test_file
            "data_dir dataset_name",
            lambda args: (
                (args.train_file or not args.do_train)
                and (args.validation_file or args.validation_split_percentage or not args.do_eval)
            ),
        ),
    )

    flags_of_use: ClassVar[tuple[str, ...]] = (
        *DataArguments.flags_of_use,
        *("doc_stride", "max_query_length", "max_answer_length", "version_2_with_negative", "metric"),
        "null_score_diff_threshold",
    )

    dataset_name: str | None = flag(None, "data set on the Hub, e.g. rajpurkar/squad")
    version_2_with_negative: bool = flag(False, "SQuAD 2.0: some questions have no answer")
    max_seq_length: int = flag(384, "tokens of question and context together, in one window")
    doc_stride: NonNegativeInt = flag(128, "tokens that two neighbouring windows share")
    max_query_length: PositiveInt = flag(64, "tokens of a question; longer ones are cut")
    locate_answers: bool = flag(False, "look for answers that are not at their answer_start, as in CMRC 2018")
    metric: Literal["squad", "cmrc2018"] = flag(
        "squad", "the official scorer; cmrc2018 counts Chinese characters, for DRCD, too"
    )
    n_best_size: PositiveInt = flag(20, "answers for each question in nbest_predictions.json")
    max_answer_length: PositiveInt = flag(30, "tokens of an answer")
    null_score_diff_threshold: float | None = flag(
        None,
        "predict '' where 'no answer' scores more than this above the best answer; default: 0, or the best on the "
        "validation set",
    )

    def repeated_flags(self, results: Mapping[str, float]) -> dict[str, Any]:
        """As in every script; for SQuAD 2.0 with the threshold that has the best F1 on the validation set."""
        best = tuned_threshold(scores_of(results))
        return ({} if best is None else {"null_score_diff_threshold": best}) | super().repeated_flags(results)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.do_predict and self.test_file is None:
            raise InputError("--do_predict answers the questions of a --test_file: give one")
        if self.null_score_diff_threshold is not None and not self.version_2_with_negative:
            raise InputError(
                "--null_score_diff_threshold is for questions without answers: add --version_2_with_negative"
            )
        if self.metric == "cmrc2018" and self.version_2_with_negative:
            raise InputError("--metric cmrc2018 is for questions with answers: leave --version_2_with_negative out")

    def data_sources(self) -> dict[str, list[Path] | str]:
        sources = super().data_sources()
        for split in [split for split in self.splits if split not in sources]:
            if self.data_dir is not None:
                sources[split] = [find_file(Path(self.data_dir), split, self.version_2_with_negative)]
            else:
                sources[split] = hub_version(self.dataset_name, None, None)
        return sources

    @property
    def window_shape(self) -> dict[str, int]:
        """The lengths that say how contexts are cut into windows, as `make_features` takes them."""
        return {name: getattr(self, name) for name in ("max_seq_length", "doc_stride", "max_query_length")}


def load_data(args: SquadArguments) -> DatasetDict:
    """The splits that this run needs."""
    options = {"version_2": args.version_2_with_negative, "locate": args.locate_answers}
    data, sources = DatasetDict(), args.data_sources()
    for split in args.splits:
        if isinstance(sources[split], str):
            data |= read_hub(args.dataset_name, [split], **options)
        else:
            (file,) = sources[split]
            data |= read_files({split: file}, **options, held_out=args.validation_split_percentage)
    return data


@dataclass
class Answering(Task):
    """Questions whose answers are spans of a context; in SQuAD 2.0 some have no answer.

    args: of the run
    windows: the windows of each split
    best_threshold: the threshold with the best F1 on the validation set, which the test set has unless one is given
    """

    args: SquadArguments
    windows: dict[str, Windows] = field(default_factory=dict, init=False)
    best_threshold: float = field(default=0.0, init=False)

    writes_validation = True

    def describe(self) -> str:
        return ""  # `featurize` prints the numbers of questions, with those of their windows

    def featurize(self, args: SquadArguments) -> None:
        self.windows = make_features(self.data, self.tokenizer, **args.window_shape)
        for split, windows in self.windows.items():
            questions = describe_number(self.samples, split)
            PartialState().print(f"{split}: {questions} questions, {describe_windows(windows)}")
        if "test" in self.data and "answers" not in self.data["test"].column_names:
            PartialState().print(f"test: {args.test_file} has no answers to score against: predictions only")
        self.features = {split: windows.features for split, windows in self.windows.items()}
        self.collate = partial(collate, tokenizer=self.tokenizer, **args.padding)

    def decode(self, split: str, outputs: Outputs) -> Answers:
        """The answers to all questions whose windows are in `outputs`."""
        windows = self.windows[split].head(len(outputs["start_logits"]))
        examples = self.data[split].select(range(windows.question[-1] + 1))
        threshold = self.args.null_score_diff_threshold
        if self.args.version_2_with_negative and threshold is None:
            threshold = self.best_threshold if split == "test" else 0.0
        return find_answers(examples, windows, outputs, self.args.n_best_size, self.args.max_answer_length, threshold)

    def score(self, split: str, outputs: Outputs, predictions: Answers) -> dict[str, float]:
        """The percentages of the official scorer."""
        if "answers" not in self.data[split].column_names:
            return {}
        return score_answers(predictions, self.data[split], self.args.version_2_with_negative, self.args.metric)

    def write(self, split: str, predictions: Answers) -> dict[str, str]:
        """The official files; those of the validation set have _validation in their names."""
        contents = {
            "predictions": predictions.predictions,
            "nbest_predictions": predictions.nbest,
            "null_odds": predictions.null_odds,
        }
        suffix = "_validation" if split == "validation" else ""
        return {
            f"{name}{suffix}.json": json.dumps(content, indent=4, ensure_ascii=False) + "\n"
            for name, content in contents.items()
            if content
        }

    def tune(self, evaluation: Evaluation) -> None:
        """Takes the threshold with the best F1 on the validation set."""
        best = tuned_threshold(evaluation.scores)
        self.best_threshold = 0.0 if best is None else best


def main(argv: list[str] | None = None) -> dict[str, float]:
    """Carries out what `argv`, by default the command line, asks for; returns metrics.json's numbers.

    To score a file of predictions takes no model and other flags. It then returns the scores of the file.
    """
    words = sys.argv[1:] if argv is None else argv
    if any(word.partition("=")[0] in ("--predictions_file", "--predictions-file") for word in words):
        return scoring.main(words)
    return repeat(partial(run_task, load), parse_arguments(SquadArguments, argv))


def load(args: SquadArguments) -> Answering:
    """The task, and a model that scores their first and last tokens."""
    config, tokenizer = load_config(args.source), load_tokenizer(args.source)
    data = load_data(args)
    model = load_model(AutoModelForQuestionAnswering, args.source, config, tokenizer, train=args.do_train)
    check_length(args.max_seq_length, model, tokenizer, pair=True)
    samples, data = count_samples(data, args.limits), first_examples(data, args.limits)
    return Answering(data, samples, describe_data(args), args, model=model, tokenizer=tokenizer)


def describe_windows(windows: Windows) -> str:
    """For the console: the number of windows and, of training data, the number of questions whose answer they hold."""
    text = f"{len(windows.question):,} windows"
    if "start_positions" in windows.features.column_names:
        has_answer = np.array(windows.features["start_positions"][:]) != windows.null
        text += f" with the answers to {len(np.unique(windows.question[has_answer])):,}"
    return text


def score_answers(
    answers: Answers, examples: Dataset, version_2: bool, metric_name: str = "squad"
) -> dict[str, float]:
    """The percentages of the official scorer. For SQuAD 2.0 also the best scores of any threshold, with the threshold.

    The best scores are computed from the best answers to all questions, whether or not "no answer" is predicted.
    """
    first = examples[: len(answers.predictions)]
    references = {name: each["text"] for name, each in zip(first["id"], first["answers"], strict=True)}
    if not version_2:
        return (squad1_scores if metric_name == "squad" else cmrc2018_scores)(answers.predictions, references)
    predicted, best = (mark(texts, references, answers.null_odds) for texts in (answers.predictions, answers.best))
    values = squad2_scores(predicted) | best_thresholds(best)
    return {"exact_match" if name == "exact" else name: value for name, value in values.items()}


def tuned_threshold(scores: Mapping[str, float]) -> float | None:
    """The threshold with the best F1; None without the scores of SQuAD 2.0.

    The scorer's is 0 where it is best to predict no answer at all, though some log odds are below 0.
    """
    best, share = scores.get("best_f1_thresh"), scores.get("NoAns_total", 0) / scores.get("total", 1)
    return NEVER if best == 0 and math.isclose(scores["best_f1"], 100 * share) else best


def describe_data(args: SquadArguments) -> Description:
    """What the model card says the model was trained on, and the scores were measured on."""
    squad, of_user = f"rajpurkar/squad{'_v2' * args.version_2_with_negative}", Description.dataset_name
    published = squad if args.data_dir is not None else public_arguments(args)["dataset_name"]
    names = {split: published if file is None else of_user for split, file in args.files.items()}
    evaluated_on = names.get("validation", names.get("train", of_user))
    trained_on = names.get("train", evaluated_on)
    about = {} if evaluated_on == of_user else {"dataset_type": evaluated_on, "dataset_split": "validation"}
    return Description(
        "question-answering",
        dataset_name=evaluated_on,
        language="en" if trained_on == squad else None,
        trained_on=None if trained_on == evaluated_on else trained_on,
        **about,
    )


if __name__ == "__main__":
    command(main)
