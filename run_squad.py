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

import hashlib
import json
import math
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from datasets import Dataset, DatasetDict
from transformers import AutoModelForQuestionAnswering, PreTrainedTokenizerBase
from transformers.hf_argparser import HfArg

import metrics
from tasks.rows import total
from tasks.spans import Answers, find_answers
from tasks.squad_data import read_files, read_folder, read_hub
from tasks.windows import FORMAT, Windows, cached_windows, make_windows
from training.arguments import DataArguments, NonNegativeInt, PathOrName, PositiveInt, public_arguments
from training.checkpoints import digest
from training.ensembles import check_ensemble
from training.files import write_atomically
from training.flags import parse_arguments
from training.launching import start
from training.loading import check_length, load_model, load_tokenizer
from training.loop import Outputs, evaluate, predict, train
from training.reporting import finish, remove_earlier_results
from training.runs import Stopwatch, command, repeat
from training.samples import count_samples, extent


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
            raise ValueError("--do_predict answers the questions of a --test_file")
        if self.null_score_diff_threshold is not None and not self.version_2_with_negative:
            raise ValueError("--null_score_diff_threshold is for questions without answers: --version_2_with_negative")

    @property
    def shape(self) -> dict[str, int]:
        """That of windows, as `make_windows` calls it."""
        lengths = {"max_length": self.max_seq_length, "max_query_length": self.max_query_length}
        return {**lengths, "stride": self.doc_stride}


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


# Text -> features


def tokenize(data: DatasetDict, tokenizer: PreTrainedTokenizerBase, args: SquadArguments) -> dict[str, Windows]:
    """The windows of each split; with --window_cache those of an earlier run, where it had the same."""
    windows = {}
    for split, examples in data.items():
        make = partial(make_windows, examples, tokenizer, **args.shape, train=split == "train")
        if args.window_cache is None:
            windows[split] = make()
        else:
            key = json.dumps([FORMAT, digest_of(tokenizer), digest(examples), args.shape, split == "train"])
            key = hashlib.sha256(key.encode()).hexdigest()[:32]
            windows[split] = cached_windows(make, Path(args.window_cache), key)
    return windows


def digest_of(tokenizer: PreTrainedTokenizerBase) -> str:
    """Of all the files that it is loaded from."""
    content = hashlib.sha256()
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        for path in sorted(Path(folder).iterdir()):
            content.update(path.name.encode() + path.read_bytes())
    return content.hexdigest()


def collate(examples: list[dict], tokenizer: PreTrainedTokenizerBase, **padding: object) -> dict[str, torch.Tensor]:
    """A batch for the model, padded on the right: answers are columns."""
    labels = ("start_positions", "end_positions")
    inputs = [{name: values for name, values in example.items() if name not in labels} for example in examples]
    batch = dict(tokenizer.pad(inputs, padding_side="right", return_tensors="pt", **padding))
    return batch | {name: torch.tensor([row[name] for row in examples]) for name in labels if name in examples[0]}


# Metrics and predictions


class Scorer:
    """The metrics of a validation or test set; keeps the answers that it scored last."""

    def __init__(self, examples: Dataset, windows: Windows, args: SquadArguments) -> None:
        self.examples, self.windows, self.args = examples, windows, args
        self.answers: Answers | None = None
        self.scores: dict[str, float] = {}

    def find(self, outputs: Outputs, threshold: float = 0.0) -> Answers:
        """The answers to all questions of which `outputs` has windows."""
        windows = self.windows.head(len(outputs["start_logits"]))
        examples = self.examples.select(range(windows.question[-1] + 1))
        if self.args.null_score_diff_threshold is not None:
            threshold = self.args.null_score_diff_threshold
        threshold = threshold if self.args.version_2_with_negative else None
        return find_answers(examples, windows, outputs, self.args.n_best_size, self.args.max_answer_length, threshold)

    def __call__(self, outputs: Outputs, data_set: Dataset) -> dict[str, float]:
        self.answers = self.find(outputs)
        self.scores = compute_metrics(self.answers, self.examples, self.args.version_2_with_negative)
        return self.scores

    def has_answers_of(self, results: dict[str, float]) -> bool:
        """Whether the answers to all questions are at hand that have the scores eval_... of `results`."""
        last = results.get("best_update") == results.get("train_updates") or "best_update" not in results
        whole = self.answers is not None and len(self.answers.predictions) == len(self.examples)
        return last and whole and all(results.get(f"eval_{name}") == value for name, value in self.scores.items())

    @property
    def threshold(self) -> float:
        """That with the best F1. Where that is no answer at all, the scorer says 0, but some log odds are lower."""
        best = self.scores.get("best_f1_thresh", 0.0)
        return best if best in self.answers.null_odds.values() else -math.inf


def compute_metrics(answers: Answers, examples: Dataset, version_2: bool) -> dict[str, float]:
    """The official scorer's percentages; of SQuAD 2.0 also the best there are with other thresholds, and these.

    Those are of the best answers to all questions, so they may lie above the threshold of the predictions, too.
    """
    metric = metrics.load("squad", "v2.0" if version_2 else "v1.1")
    references = [{"id": row["id"], "answers": row["answers"]} for row in examples.select_columns(["id", "answers"])]

    def score(texts: dict[str, str]) -> dict[str, float]:
        rows = [{"id": name, "prediction_text": text} for name, text in texts.items()]
        if version_2:
            rows = [row | {"no_answer_probability": answers.null_odds[row["id"]]} for row in rows]
        return metric.compute(predictions=rows, references=references[: len(rows)])

    scores = score(answers.predictions)
    if version_2:
        scores |= {name: value for name, value in score(answers.best).items() if name.startswith("best_")}
    return {"exact_match" if name == "exact" else name: value for name, value in scores.items()}


def write_answers(answers: Answers, suffix: str, args: SquadArguments) -> None:
    """The official files: predictions<suffix>.json and so on."""
    files = {"predictions": answers.predictions, "nbest_predictions": answers.nbest, "null_odds": answers.null_odds}
    for name, content in files.items():
        if content:
            text = json.dumps(content, indent=4, ensure_ascii=False) + "\n"
            write_atomically(Path(args.output_dir) / f"{name}{suffix}.json", text)


def main(argv: list[str] | None = None) -> dict[str, float]:
    """From the command line or `argv`, one run or several; returns what metrics.json says of them."""
    return repeat(run, parse_arguments(SquadArguments, argv))


def run(args: SquadArguments) -> dict[str, float]:
    """One run."""
    watch = Stopwatch()
    accelerator = start(args)
    watch.lap("start")
    tokenizer = load_tokenizer(args)
    data = load_data(args)
    samples = count_samples(data, args.limits, {split: total(examples) for split, examples in data.items()})
    model = load_model(AutoModelForQuestionAnswering, args, tokenizer)
    check_length(args.max_seq_length, model, tokenizer, pair=True)
    accelerator.print(f"load: {type(model).__name__}, {model.num_parameters():,} parameters")
    watch.lap("load")
    windows = tokenize(data, tokenizer, args)
    for split in data:
        accelerator.print(f"{split}: {extent(samples, split)} questions, {describe(windows[split])}")
    watch.lap("tokenize")

    check_ensemble([each.features for each in windows.values()], model.config.id2label, args)
    remove_earlier_results(args, accelerator)
    padding = {"padding": "max_length", "max_length": args.max_seq_length} if args.pad_to_max_length else {}
    batch = partial(collate, tokenizer=tokenizer, **padding)
    scorers = {split: Scorer(data[split], windows[split], args) for split in data}
    eval_sets = {"": windows["validation"].features} if args.do_eval else {}
    results = {}
    if args.do_train:
        train_set, score = windows["train"].features, scorers.get("validation")
        results = train(
            model, tokenizer, train_set, eval_sets, batch, score, args, accelerator, data.get("validation")
        )
        watch.skip()
    if args.do_eval:
        if not scorers["validation"].has_answers_of(results):  # those of the best model, which was not the last
            results |= evaluate(model, eval_sets, batch, scorers["validation"], args, accelerator)
        if accelerator.is_main_process:
            write_answers(scorers["validation"].answers, "_validation", args)
        watch.lap("eval")
    if args.do_predict:
        outputs = predict(model, windows["test"].features, batch, args, accelerator)
        answers = scorers["test"].find(outputs, scorers["validation"].threshold if args.do_eval else 0.0)
        if "answers" in data["test"].column_names:
            scores = compute_metrics(answers, data["test"], args.version_2_with_negative)
            results |= {f"test_{name}": value for name, value in scores.items()}
        else:
            accelerator.print(f"test: {args.test_file} has no answers to score against: predictions only")
        if accelerator.is_main_process:
            write_answers(answers, "", args)
        watch.lap("predict")
    for name, seconds in watch.runtimes().items():  # train() has measured its own evaluations
        results[name] = results.get(name, 0.0) + seconds
    results |= samples
    finish(model, tokenizer, results, description(args), args, accelerator)
    return results


def describe(windows: Windows) -> str:
    """How many they are and, of those to train on, how many answers they hold."""
    text = f"{len(windows.question):,} windows"
    if "start_positions" in windows.features.column_names:
        held = np.array(windows.features["start_positions"][:]) != windows.null
        text += f" with the answers to {len(np.unique(windows.question[held])):,}"
    return text


def description(args: SquadArguments) -> dict[str, str]:
    """What the model card says the scores were measured on."""
    names = {"dataset_type": "text", "dataset_name": "files of our own"}
    if args.validation_file is None and (args.dataset_name is not None or args.data_dir is not None):
        squad = f"rajpurkar/squad{'_v2' * args.version_2_with_negative}"
        name = public_arguments(args)["dataset_name"] if args.data_dir is None else squad
        names = {"dataset_type": name, "dataset_name": name, "dataset_split": "validation"}
        names |= {"language": "en"} if name == squad else {}
    return {"task_type": "question-answering", **names}


if __name__ == "__main__":
    command(main)
