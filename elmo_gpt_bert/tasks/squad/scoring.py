"""Scores a file of answers to SQuAD 1.1, SQuAD 2.0 or CMRC 2018, whoever made it, as the official scorers do.

    python run_squad.py --do_eval --predictions_file predictions.json --validation_file dev-v1.1.json
    python run_squad.py --do_eval --predictions_file predictions.json --validation_file dev-v2.0.json \\
        --version_2_with_negative --null_odds_file null_odds.json

No model is needed. Predictions are one JSON object, id -> text, with "" for no answer, and are scored as they are. The
--null_odds_file is one JSON object too, id -> probability or log odds of no answer. It adds the best thresholds.
elmo_gpt_bert/metrics/squad_scores.py says what the scores are and how the two versions differ.

A prediction of "" stays "" at any threshold. So the best scores are at most a run's eval_best_exact and eval_best_f1,
which are computed from the best answers to all questions. They are equal for a run with
--null_score_diff_threshold 1e9, which predicts the best answer to every question.

If a question of 2.0 has no prediction, evaluate-v2.0.py leaves it out of the total, and then ends in a KeyError. Here
it is left out of all scores.
"""

import json
import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from transformers.hf_argparser import HfArg

from elmo_gpt_bert.metrics.squad_scores import best_thresholds, cmrc2018_scores, mark, squad1_scores, squad2_scores
from elmo_gpt_bert.tasks.rows import read_json
from elmo_gpt_bert.tasks.squad.data import read_questions
from elmo_gpt_bert.training.errors import InputError
from elmo_gpt_bert.training.files import plain, shown
from elmo_gpt_bert.training.flags import parse_fields


@dataclass(frozen=True)
class ScoringArguments:
    """The flags of run_squad.py where it scores a file. A run has most of them, too, and they mean the same there."""

    predictions_file: str = HfArg(help="the answers: JSON, id -> text, with '' for no answer")
    validation_file: str = HfArg(help="the questions: SQuAD's JSON, or .jsonl with the Hub's columns")
    do_eval: bool = HfArg(default=False, help="score the answers")
    version_2_with_negative: bool = HfArg(default=False, help="SQuAD 2.0: some questions have no answer")
    null_odds_file: str | None = HfArg(default=None, help="JSON, id -> probability or log odds of no answer")
    metric: Literal["squad", "cmrc2018"] = HfArg(
        default="squad", help="the official scorer; cmrc2018 counts Chinese characters (default: squad)"
    )

    def __post_init__(self) -> None:
        if not self.do_eval:
            raise InputError("--predictions_file is scored, by --do_eval: give both, and no other purpose")
        if self.metric == "cmrc2018" and self.version_2_with_negative:
            raise InputError("--metric cmrc2018 is for questions with answers: leave --version_2_with_negative out")
        if self.null_odds_file is not None and not self.version_2_with_negative:
            raise InputError(
                f"--null_odds_file {self.null_odds_file} is for questions without answers: add "
                "--version_2_with_negative"
            )


def main(argv: list[str]) -> dict[str, float]:
    """Prints the scores that the command line `argv` asks for, under the official scorers' names, and returns them."""
    args = parse_fields(ScoringArguments, argv, description=__doc__.partition("\n")[0])
    version_2 = args.version_2_with_negative
    # The scorers ask for the texts of answers alone, so it does not matter whether they are at their answer_start.
    questions, _ = read_questions(Path(args.validation_file), "validation", version_2, locate=True)
    references = {question["id"]: [text for text, _ in question["answers"]] for question in questions}
    predictions = read_predictions(Path(args.predictions_file), references, version_2)
    if args.metric == "cmrc2018":
        scores = cmrc2018_scores(predictions, references)
    elif not version_2:
        scores = squad1_scores(predictions, references)
    elif args.null_odds_file is None:
        scores = squad2_scores(mark(predictions, references))
    else:
        marks = mark(predictions, references, read_null_odds(Path(args.null_odds_file), predictions, references))
        scores = squad2_scores(marks) | best_thresholds(marks)
    print(json.dumps(scores, indent=2))
    return scores


def read_predictions(path: Path, references: Collection[str], version_2: bool) -> dict[str, str]:
    """id -> text. Writes to stderr how many questions have no prediction, and how many predictions no question."""
    predictions = _read_object(path, "text", lambda value: isinstance(value, str))
    missing = [name for name in references if name not in predictions]
    if len(missing) == len(references):
        raise InputError(f"{path} has no prediction for any of {len(references):,} questions: is it for other data?")
    if missing:
        counts = (
            f"{len(missing):,} of {len(references):,} questions have no prediction, the first is {plain(missing[0])}"
        )
        sys.stderr.write(f"{path}: {counts}: {'no score counts them' if version_2 else 'each counts as wrong'}\n")
    if unknown := [name for name in predictions if name not in references]:
        counts = f"{len(unknown):,} predictions are for other questions, the first is {plain(unknown[0])}"
        sys.stderr.write(f"{path}: {counts}: no score counts them\n")
    return predictions


def read_null_odds(path: Path, predictions: Collection[str], references: Collection[str]) -> dict[str, float]:
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
