"""Fine-tunes and evaluates a model that answers questions about a text: SQuAD 1.1 and 2.0 (Rajpurkar et al.).

    python run_squad.py configs/bert/squad.yaml                               # the paper's recipe, data from the Hub
    python run_squad.py configs/bert/squad_v2_large.yaml --data_dir squad     # train-v2.0.json and dev-v2.0.json
    python run_squad.py configs/elmo/squad.yaml                               # ELMo's BiDAF, which reads words
    python run_squad.py --model_name_or_path runs/bert/squad --test_file questions.json --do_predict \\
        --output_dir runs/answers

Files of your own are SQuAD's JSON, or JSON lines (.jsonl) with the columns id, context, question and answers, as the
Hub has them. A --test_file needs no answers: where all are missing or empty, its questions are answered and nothing
is scored. In SQuAD 2.0 is_impossible, true, tells a question without answer from one whose answer is not known.
Where a context is longer than --max_seq_length allows, the model reads it in windows, and the best answer of all of
them is taken. Answers are cut from the original text; they have at most --max_answer_length tokens.
OUTPUT_DIR receives metrics.json, the checkpoint with its model card and, as the official files are, predictions.json,
nbest_predictions.json and, with --version_2_with_negative, null_odds.json for the test file, and the same with
_validation in their names for the validation set.
"""

import json
import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from datasets import Dataset, DatasetDict
from transformers import AutoModelForQuestionAnswering
from transformers.hf_argparser import HfArg

import metrics
from tasks.rows import total
from tasks.squad.data import read_files, read_folder, read_hub
from tasks.squad.decode import Answers, find_answers
from tasks.squad.features import Windows, collate, make_features
from training.arguments import DataArguments, NonNegativeInt, PathOrName, PositiveInt, public_arguments
from training.clock import Clock
from training.errors import InputError
from training.flags import parse_arguments
from training.launching import make_accelerator
from training.loading import check_length, load_config, load_model, load_tokenizer
from training.prediction import Outputs
from training.results import Results, Scores
from training.runs import carry_out, command, repeat
from training.samples import count_samples
from training.task import Description, Evaluation, Task


@dataclass(frozen=True, kw_only=True)
class SquadArguments(DataArguments):
    """What this script adds."""

    dataset_name: PathOrName | None = HfArg(default=None, help="on the Hub: rajpurkar/squad, rajpurkar/squad_v2, ...")
    data_dir: PathOrName | None = HfArg(default=None, help="folder with train-v1.1.json and dev-v1.1.json, or -v2.0")
    train_file: PathOrName | None = HfArg(default=None, help="SQuAD's JSON, or its rows as .jsonl, of your own")
    version_2_with_negative: bool = HfArg(default=False, help="SQuAD 2.0: some questions have no answer")
    max_seq_length: int = HfArg(default=384, help="tokens of question and context together, in one window")
    doc_stride: NonNegativeInt = HfArg(default=128, help="tokens that two neighbouring windows share")
    max_query_length: PositiveInt = HfArg(default=64, help="tokens of a question; longer ones are cut")
    n_best_size: PositiveInt = HfArg(default=20, help="answers a question in nbest_predictions.json")
    max_answer_length: PositiveInt = HfArg(default=30, help="tokens of an answer")
    null_score_diff_threshold: float | None = HfArg(
        default=None,
        help="'' is predicted where 'no answer' scores more than this above the best answer; default: 0 and, for the "
        "test file of a run that evaluates, what gives the best F1 on the validation set",
    )
    window_cache: PathOrName | None = HfArg(
        default=None, aliases=["--feature_cache"], help="folder that keeps tokenised windows for further runs"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.do_predict and self.test_file is None:
            raise InputError("--do_predict answers the questions of a --test_file")
        if self.null_score_diff_threshold is not None and not self.version_2_with_negative:
            raise InputError("--null_score_diff_threshold is for questions without answers: --version_2_with_negative")

    @property
    def shape(self) -> dict[str, int]:
        """That of windows, as `make_features` calls it."""
        return {name: getattr(self, name) for name in ("max_seq_length", "doc_stride", "max_query_length")}


def load_data(args: SquadArguments) -> DatasetDict:
    """The questions that this run needs: of each split the first --max_*_samples, the rest is not looked at.

    A split's own file wins over --data_dir, and that over --dataset_name: flags may say otherwise than a recipe.
    """
    version_2 = args.version_2_with_negative
    data = DatasetDict()
    for split in [split for split, needed in args.parts.items() if needed]:
        file = getattr(args, f"{split}_file")
        if file is None and split != "test" and args.data_dir is not None:
            data |= read_folder(Path(args.data_dir), [split], version_2, args.limits)
        elif file is None and split != "test" and args.dataset_name is not None:
            data |= read_hub(args.dataset_name, [split], version_2, args.limits)
        else:
            data |= read_files({split: file}, version_2, args.limits)
    return data


# Metrics and predictions


def score_answers(answers: Answers, examples: Dataset, version_2: bool) -> Scores:
    """The official scorer's percentages; of SQuAD 2.0 also the best there are with other thresholds, and these.

    Those are of the best answers to all questions, so they may lie above the threshold of the predictions, too.
    """
    metric = metrics.load("squad", "v2.0" if version_2 else "v1.1")
    references = list(examples.select_columns(["id", "answers"]))

    def compute(texts: dict[str, str]) -> dict[str, float]:
        rows = [{"id": name, "prediction_text": text} for name, text in texts.items()]
        if version_2:
            rows = [row | {"no_answer_probability": answers.null_odds[row["id"]]} for row in rows]
        return metric.compute(predictions=rows, references=references[: len(rows)])

    values = compute(answers.predictions)
    if version_2:
        values |= {name: value for name, value in compute(answers.best).items() if name.startswith("best_")}
    return Scores({"exact_match" if name == "exact" else name: value for name, value in values.items()})


@dataclass
class Answering(Task):
    """Questions whose answers are spans of a context; in SQuAD 2.0 some have none.

    windows: what stands in which window, by split
    threshold: '' is predicted where "no answer" scores more than this above the best answer; None: 0 and, for the test
        set, what gives the best F1 on the validation set
    """

    windows: dict[str, Windows]
    version_2: bool
    n_best_size: int
    max_answer_length: int
    threshold: float | None
    best_threshold: float = 0.0

    writes_validation = True

    def decode(self, split: str, outputs: Outputs) -> Answers:
        """The answers to all questions of which `outputs` has windows."""
        windows = self.windows[split].head(len(outputs["start_logits"]))
        examples = self.data[split].select(range(windows.question[-1] + 1))
        threshold = self.threshold
        if threshold is None:
            threshold = self.best_threshold if split == "test" else 0.0
        threshold = threshold if self.version_2 else None
        return find_answers(examples, windows, outputs, self.n_best_size, self.max_answer_length, threshold)

    def score(self, split: str, outputs: Outputs, predictions: Answers) -> Scores | None:
        """The official scorer's percentages."""
        examples = self.data[split]
        return score_answers(predictions, examples, self.version_2) if "answers" in examples.column_names else None

    def write(self, split: str, predictions: Answers) -> dict[str, str]:
        """The official files, those of the validation set with its name in theirs."""
        contents = {"predictions": predictions.predictions, "nbest_predictions": predictions.nbest}
        contents |= {"null_odds": predictions.null_odds}
        suffix = "_validation" if split == "validation" else ""
        return {
            f"{name}{suffix}.json": json.dumps(content, indent=4, ensure_ascii=False) + "\n"
            for name, content in contents.items()
            if content
        }

    def tune(self, evaluation: Evaluation) -> None:
        """Takes the threshold with the best F1. Where that is no answer at all, the scorer says 0, but some log odds
        are lower.
        """
        best = evaluation.scores.values.get("best_f1_thresh", 0.0)
        self.best_threshold = best if best in evaluation.predictions.null_odds.values() else -math.inf


def main(argv: list[str] | None = None) -> dict[str, float]:
    """From the command line or `argv`, one run or several; returns what metrics.json says of them."""
    return repeat(run, parse_arguments(SquadArguments, argv))


def run(args: SquadArguments) -> Results:
    """One run."""
    clock = Clock()
    accelerator = make_accelerator(args)
    clock.lap("start")
    config = load_config(args.source)
    tokenizer = load_tokenizer(args.source)
    data = load_data(args)
    samples = count_samples(data, args.limits, {split: total(examples) for split, examples in data.items()})
    model = load_model(AutoModelForQuestionAnswering, args.source, config, tokenizer, train=args.do_train)
    check_length(args.max_seq_length, model, tokenizer, pair=True)
    accelerator.print(f"load: {type(model).__name__}, {model.num_parameters():,} parameters")
    clock.lap("load")
    cache = None if args.window_cache is None else Path(args.window_cache)
    windows = make_features(data, tokenizer, **args.shape, window_cache=cache)
    for split, numbers in samples.items():
        accelerator.print(f"{split}: {numbers} questions, {describe(windows[split])}")
    clock.lap("tokenize")
    if "test" in data and "answers" not in data["test"].column_names:
        accelerator.print(f"test: {args.test_file} has no answers to score against: predictions only")
    features = {split: each.features for split, each in windows.items()}
    batch = partial(collate, tokenizer=tokenizer, **args.padding)
    decoding = args.version_2_with_negative, args.n_best_size, args.max_answer_length, args.null_score_diff_threshold
    task = Answering(data, features, batch, samples, describe_data(args), windows, *decoding)
    return carry_out(task, model, tokenizer, args, accelerator, clock)


def describe(windows: Windows) -> str:
    """How many they are and, of those to train on, how many answers they hold."""
    text = f"{len(windows.question):,} windows"
    if "start_positions" in windows.features.column_names:
        held = np.array(windows.features["start_positions"][:]) != windows.null
        text += f" with the answers to {len(np.unique(windows.question[held])):,}"
    return text


def describe_data(args: SquadArguments) -> Description:
    """What the model card says the scores were measured on."""
    if args.validation_file is not None or (args.dataset_name is None and args.data_dir is None):
        return Description("question-answering")
    squad = f"rajpurkar/squad{'_v2' * args.version_2_with_negative}"
    name = public_arguments(args)["dataset_name"] if args.data_dir is None else squad
    language = "en" if name == squad else None
    return Description("question-answering", name, name, dataset_split="validation", language=language)


if __name__ == "__main__":
    command(main)
