"""Exact match and F1 of answers to questions, as the official scorers of SQuAD 1.1 and of SQuAD 2.0 count them."""

from collections import Counter

import datasets
import evaluate

from .scores import best_thresholds, mark, squad1_scores, squad2_scores


DESCRIPTION = """\
Exact match is how many answers are a reference, F1 how well their words overlap, each with the best of a question's
references (Rajpurkar et al. 2016, section 6.1), in per cent. Case, ASCII punctuation, articles and the amount of space
do not count.

v1.1: exact_match and f1 over all references.
v2.0 (Rajpurkar, Jia and Liang 2018): exact, f1 and total over all questions, HasAns_exact, ... over those with
answers, NoAns_exact, ... over those without; a group without questions has no scores. "" is the prediction that there
is no answer. best_exact and best_f1 are the scores where every question more probably without answer than
best_exact_thresh, best_f1_thresh is answered "".

As the scorers differ, so do the versions. References of articles and punctuation alone are left out in v2.0, and so is
the question's last one: then "" is right. In v1.1 they stay, and a prediction that is as empty has an exact match of 1
and an F1 of 0.
"""
CITATION = """\
@inproceedings{rajpurkar2016squad,
  title={{SQuAD}: 100,000+ Questions for Machine Comprehension of Text},
  author={Rajpurkar, Pranav and Zhang, Jian and Lopyrev, Konstantin and Liang, Percy},
  booktitle={Conference on Empirical Methods in Natural Language Processing},
  year={2016}
}
@inproceedings{rajpurkar2018know,
  title={Know What You Don't Know: Unanswerable Questions for {SQuAD}},
  author={Rajpurkar, Pranav and Jia, Robin and Liang, Percy},
  booktitle={Annual Meeting of the Association for Computational Linguistics},
  year={2018}
}
"""
INPUTS = """\
predictions: for each question of the references {"id", "prediction_text"}, in v2.0 with "no_answer_probability", any
number that grows with it. `evaluate` takes no fewer predictions than references; squad_scores.py scores files that
lack some as the official scorers do, which count these questions 0 in v1.1, and in v2.0 not at all.
references: for each question {"id", "answers": {"text": [...], "answer_start": [...]}}, in any order.
no_answer_threshold (v2.0): predict "" where no_answer_probability is above it; by default predictions are as they are.
"""

VERSIONS = ("v1.1", "v2.0")


class Squad(evaluate.Metric):
    """`evaluate.load("metrics/squad/squad.py", "v2.0").compute(predictions=..., references=...)`."""

    def _info(self) -> evaluate.MetricInfo:
        if self.config_name not in VERSIONS:
            raise KeyError(f"{self.config_name!r} is no version of SQuAD: choose one of {', '.join(VERSIONS)}")
        text = datasets.Value("string")
        prediction = {"id": text, "prediction_text": text}
        if self.config_name == "v2.0":
            prediction["no_answer_probability"] = datasets.Value("float64")
        answers = {"text": datasets.Sequence(text), "answer_start": datasets.Sequence(datasets.Value("int32"))}
        return evaluate.MetricInfo(
            description=DESCRIPTION,
            citation=CITATION,
            inputs_description=INPUTS,
            features=datasets.Features({"predictions": prediction, "references": {"id": text, "answers": answers}}),
        )

    def _compute(
        self, predictions: list[dict], references: list[dict], no_answer_threshold: float | None = None
    ) -> dict[str, float]:
        texts = _by_id(predictions, "prediction_text", "predictions")
        answers = {name: answer["text"] for name, answer in _by_id(references, "answers", "references").items()}
        if unknown := [name for name in texts if name not in answers]:
            raise ValueError(f"{len(unknown):,} predictions have no references, the first is {unknown[0]}")
        if self.config_name == "v1.1":
            if no_answer_threshold is not None:
                raise ValueError("no_answer_threshold is of v2.0: in v1.1 every question has an answer")
            return squad1_scores(texts, answers)
        marks = mark(texts, answers, _by_id(predictions, "no_answer_probability", "predictions"))
        return squad2_scores(marks, no_answer_threshold) | best_thresholds(marks)


def _by_id(rows: list[dict], column: str, name: str) -> dict[str, object]:
    """id -> the column's value. Raises ValueError for an id of two rows, and for a value that is missing."""
    values = {row["id"]: row[column] for row in rows}
    if len(values) < len(rows):
        repeated, count = Counter(row["id"] for row in rows).most_common(1)[0]
        raise ValueError(f"{name}: {count} have the id {repeated}: give each question once")
    if missing := [row["id"] for row in rows if row[column] is None]:
        raise ValueError(f"{name}: {missing[0]} has no {column}")
    return values
