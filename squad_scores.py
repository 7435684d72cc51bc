# /// script
# requires-python = ">=3.11"
# dependencies = ["elmo-gpt-bert==0.1.0"]
# ///
"""Scores a file of answers to SQuAD 1.1, SQuAD 2.0 or CMRC 2018, with the results of the official scorers.

    python squad_scores.py dev-v1.1.json runs/bert/squad/predictions_validation.json
    python squad_scores.py dev-v2.0.json runs/bert/squad_v2/predictions_validation.json \\
        --na_prob_file runs/bert/squad_v2/null_odds_validation.json --out_image_dir plots
    python squad_scores.py cmrc2018_dev.json runs/bert/cmrc2018/predictions_validation.json --metric cmrc2018

Predictions are one JSON object, id -> text, with "" for no answer. The --na_prob_file is one JSON object too, id ->
probability or log odds of no answer; it adds the best thresholds and the average precisions (pr_exact_ap, pr_f1_ap,
pr_oracle_ap). elmo_gpt_bert/metrics/squad/squad.py says what the scores are and how the two versions differ.

A prediction of "" stays "" at any threshold. So the best scores are at most run_squad.py's eval_best_exact and
eval_best_f1, which are computed from the best answers to all questions. They are equal for a run with
--null_score_diff_threshold 1e9, which predicts the best answer to every question.

If a question of 2.0 has no prediction, evaluate-v2.0.py leaves it out of the total, and then ends in a KeyError. This
script leaves it out of all scores.
"""

import argparse
import io
import json
import math
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from elmo_gpt_bert.metrics.squad.cmrc2018 import cmrc2018_scores
from elmo_gpt_bert.metrics.squad.scores import (
    Marks,
    best_thresholds,
    mark,
    precision_recall,
    squad1_scores,
    squad2_scores,
)
from elmo_gpt_bert.tasks.rows import read_json
from elmo_gpt_bert.tasks.squad.files import read_questions
from elmo_gpt_bert.training.command_line import run_command
from elmo_gpt_bert.training.errors import InputError, PackageError
from elmo_gpt_bert.training.files import new_file, plain, shown


if TYPE_CHECKING:
    from matplotlib.figure import Figure

WITHOUT_PREDICTION = {"1.1": "each counts as wrong", "2.0": "no score counts them"}  # what happens to questions
CURVES = {
    "exact": "Precision and recall of exact match",
    "f1": "Precision and recall of F1",
    "oracle": "Precision and recall of having an answer (oracle)",
}


def main(argv: list[str] | None = None) -> None:
    """Prints the scores that `argv`, by default the command line, asks for, and writes the files that it names."""
    args = parse(argv)
    is_cmrc = args.metric == "cmrc2018"
    questions, _ = read_questions(Path(args.data_file), "validation", version_2=not is_cmrc, locate=is_cmrc)
    references = {question["id"]: [text for text, _ in question["answers"]] for question in questions}
    version = "1.1" if is_cmrc else choose_version(args, references)
    predictions = read_predictions(Path(args.pred_file), references, version)
    if is_cmrc:
        scores = cmrc2018_scores(predictions, references)
    elif version == "1.1":
        scores = squad1_scores(predictions, references)
    else:
        no_answer = read_no_answer(args.na_prob_file, predictions, references) if args.na_prob_file else None
        marks = mark(predictions, references, no_answer)
        if no_answer is None:
            scores = squad2_scores(marks)
        else:
            threshold = 1.0 if args.na_prob_thresh is None else args.na_prob_thresh
            scores = squad2_scores(marks, threshold) | best_thresholds(marks) | analysis(marks, args.out_image_dir)
    text = json.dumps(scores, indent=2)
    if args.out_file:
        write(args.out_file, f"{text}\n".encode())
    print(text)


def parse(argv: list[str] | None) -> argparse.Namespace:
    """The arguments of the command line. Raises ValueError as `check` does."""
    parser = argparse.ArgumentParser(description="exact match and F1 of answers to SQuAD or CMRC 2018")
    parser.add_argument("data_file", help="the data: the official .json, or .jsonl with the Hub's columns")
    parser.add_argument("pred_file", help="the predictions: JSON, id -> text")
    parser.add_argument(
        "-n", "--na_prob_file", "--na-prob-file", type=Path, metavar="JSON", help="id -> probability of no answer"
    )
    parser.add_argument(
        "-t",
        "--na_prob_thresh",
        "--na-prob-thresh",
        type=float,
        metavar="T",
        help="predict no answer if its probability is above T (default: 1, as in the official script, which keeps all "
        "predictions if the file has probabilities; inf keeps them for log odds)",
    )
    parser.add_argument("-o", "--out_file", "--out-file", type=Path, metavar="JSON", help="write the scores here too")
    parser.add_argument(
        "-p",
        "--out_image_dir",
        "--out-image-dir",
        type=Path,
        metavar="DIR",
        help="write images of precision-recall curves and histograms into this folder",
    )
    parser.add_argument(
        "--metric",
        choices=("squad", "cmrc2018"),
        default="squad",
        help="the official scorer; cmrc2018 counts Chinese characters (default: squad)",
    )
    parser.add_argument(
        "--version",
        choices=list(WITHOUT_PREDICTION),
        help="the version of SQuAD (default: 2.0 with a --na_prob_file or if a question has no answer; else 1.1)",
    )
    args = parser.parse_args(argv)
    check(args)
    return args


def check(args: argparse.Namespace) -> None:
    """Raises ValueError for arguments that contradict or need each other."""
    if args.metric == "cmrc2018" and (args.version or args.na_prob_file):
        flag = "--na_prob_file" if args.na_prob_file else "--version"
        raise InputError(f"{flag} is for SQuAD: leave it out, or --metric cmrc2018")
    if args.na_prob_thresh is not None and math.isnan(args.na_prob_thresh):
        raise InputError("--na_prob_thresh nan is not a number: inf leaves all predictions as they are")
    if not args.na_prob_file:
        for flag, value in (("--na_prob_thresh", args.na_prob_thresh), ("--out_image_dir", args.out_image_dir)):
            if value is not None:
                raise InputError(f"{flag} {value} needs the probabilities of no answer: add --na_prob_file")
    elif args.version == "1.1":
        raise InputError(f"--na_prob_file {args.na_prob_file} is for SQuAD 2.0: leave it out, or --version 1.1")


def choose_version(args: argparse.Namespace, references: dict[str, list[str]]) -> str:
    """The version that the arguments or the data say. Raises ValueError for 1.1 if a question has no answer."""
    impossible = [name for name, texts in references.items() if not texts]
    if args.version == "1.1" and impossible:
        raise InputError(
            f"{args.data_file}: {len(impossible):,} questions have no answer, the first is {plain(impossible[0])}: "
            "in SQuAD 1.1 every question has one, so leave --version 1.1 out"
        )
    return args.version or ("2.0" if impossible or args.na_prob_file else "1.1")


# Files


def read_predictions(path: Path, references: Collection[str], version: str) -> dict[str, str]:
    """id -> text. Writes to stderr how many questions have no prediction, and how many predictions no question."""
    predictions = _read_object(path, "text", lambda value: isinstance(value, str))
    missing = [name for name in references if name not in predictions]
    if len(missing) == len(references):
        raise InputError(f"{path} has no prediction for any of {len(references):,} questions: is it for other data?")
    if missing:
        counts = (
            f"{len(missing):,} of {len(references):,} questions have no prediction, the first is {plain(missing[0])}"
        )
        sys.stderr.write(f"{path}: {counts}: {WITHOUT_PREDICTION[version]}\n")
    if unknown := [name for name in predictions if name not in references]:
        counts = f"{len(unknown):,} predictions are for other questions, the first is {plain(unknown[0])}"
        sys.stderr.write(f"{path}: {counts}: no score counts them\n")
    return predictions


def read_no_answer(path: Path, predictions: Collection[str], references: Collection[str]) -> dict[str, float]:
    """id -> number, in the file's order. Raises ValueError if a question with a prediction has no number."""
    numbers = _read_object(path, "number", _is_number)
    if lacking := [name for name in predictions if name in references and name not in numbers]:
        raise InputError(
            f"{path} lacks {len(lacking):,} questions that have predictions, the first is {plain(lacking[0])}: "
            "give the file of the same run"
        )
    return numbers


def _read_object(path: Path, kind: str, fits: Callable[[object], bool]) -> dict:
    """A file's JSON object from ids to values of the `kind` that `fits` checks. Raises ValueError for other values."""
    values = read_json(path)
    if not isinstance(values, dict):
        raise InputError(f"{path} must hold a JSON object, id -> {kind}, not {shown(values)}")
    if wrong := [name for name, value in values.items() if not fits(value)]:
        raise InputError(f"{path}: {plain(wrong[0])} has {shown(values[wrong[0]])}, which is no {kind}")
    return values


def _is_number(value: object) -> bool:
    """Whether it is a number that a finite float can hold; JSON's integers may be larger."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return False
    return abs(value) <= sys.float_info.max


def write(path: Path, content: bytes) -> None:
    """Writes the file, whole or not at all. A missing folder is created."""
    with new_file(path, "Give a place with room where you may write") as temporary:
        temporary.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(content)


# Precision and recall


def analysis(marks: Marks, folder: Path | None) -> dict[str, float]:
    """The average precisions, if a question has an answer. Writes the images into `folder`, if there is one."""
    scores, images = {}, {}
    if marks.answerable.any():
        for (name, title), values in zip(CURVES.items(), (marks.exact, marks.f1, marks.answerable), strict=True):
            precisions, recalls, scores[f"pr_{name}_ap"] = precision_recall(values, marks)
            if folder:
                images[f"pr_{name}.png"] = draw_curve(precisions, recalls, title)
    if folder:
        for name, group in (("hasAns", marks.answerable), ("noAns", ~marks.answerable)):
            if group.any():
                images[f"na_prob_hist_{name}.png"] = draw_histogram(marks.no_answer, group, name)
    for name, image in images.items():
        write(folder / name, image)
    return scores


def draw_curve(precisions: np.ndarray, recalls: np.ndarray, title: str) -> bytes:
    """The curve as a PNG, with a step between two thresholds."""
    figure = empty_figure()
    axes = figure.add_subplot(title=title, xlabel="Recall", ylabel="Precision", xlim=(0, 1.05), ylim=(0, 1.05))
    axes.step(recalls, precisions, where="post")
    axes.fill_between(recalls, precisions, step="post", alpha=0.2)
    return _png(figure)


def draw_histogram(numbers: np.ndarray, group: np.ndarray, name: str) -> bytes:
    """A PNG of the group's share in each of 20 bins, from 0 to 1 or, for log odds, over the range of all `numbers`."""
    span = (numbers.min(initial=0.0), numbers.max(initial=1.0))
    figure = empty_figure()
    axes = figure.add_subplot(
        title=f"No answer: {name}", xlabel="Probability or log odds of no answer", ylabel="Proportion of questions"
    )
    axes.hist(numbers[group], bins=20, range=span, weights=np.full(group.sum(), 1 / group.sum()))
    return _png(figure)


def empty_figure() -> "Figure":
    """A figure of matplotlib without pyplot, which needs a display and keeps all figures."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise PackageError(
            '--out_image_dir needs matplotlib, which is not installed: pip install "elmo-gpt-bert[plots]"'
        ) from error
    return Figure(layout="constrained")


def _png(figure: "Figure") -> bytes:
    content = io.BytesIO()
    figure.savefig(content, format="png")
    return content.getvalue()


if __name__ == "__main__":
    run_command(main)
