"""Exact match and F1 of answers to questions, as in the official scorers of SQuAD 1.1, SQuAD 2.0 and CMRC 2018."""

from collections import Counter

import datasets
import evaluate

from .squad_scores import best_thresholds, cmrc2018_scores, mark, squad1_scores, squad2_scores


DESCRIPTION = """\
Exact match is the share of answers that equal a reference; F1 is the overlap of their words. Both are taken with the
best of a question's references (Rajpurkar et al. 2016, section 6.1), in per cent. Case, ASCII punctuation, articles
and the amount of space do not count.

v1.1: exact_match and f1 over all questions.
v2.0 (Rajpurkar, Jia and Liang 2018): exact, f1 and total over all questions, HasAns_exact, ... over those with an
answer, NoAns_exact, ... over those without; a group without questions has no scores. "" is the prediction that there
is no answer. best_exact and best_f1 are the scores if "" is predicted for every question whose no-answer probability
is above best_exact_thresh or best_f1_thresh.

The versions differ as the official scorers do. In v2.0, references that consist only of articles and punctuation are
left out; if no reference remains, "" is right. In v1.1 they stay, and a prediction that is empty in the same way has
an exact match of 1 and an F1 of 0.

cmrc2018 (Cui et al. 2019, arXiv 1810.07366, section 3.3, and the official scorer, version 5): for Chinese, where no
spaces part words. Case and most punctuation do not count, articles do and, in exact_match, spaces within an answer.
The units of F1 are single Chinese characters and, between them, the words that NLTK's word_tokenize (version 3.10)
finds; the ends of English sentences within an answer are found by a simpler rule. What two answers share is the
longest run of units that both hold, not a bag. average is the mean of exact_match and f1.
"""
CITATION = (
    "Rajpurkar et al. 2016, arXiv 1606.05250 (v1.1) and 2018, arXiv 1806.03822 (v2.0); Cui et al. 2019 (cmrc2018)"
)
INPUTS = """\
predictions: for each question of the references {"id", "prediction_text"}; in v2.0 also "no_answer_probability", which
may be any number that grows with the probability. `evaluate` takes no fewer predictions than references.
run_squad.py --predictions_file scores files that lack some as the official scorers do: a question without a prediction
counts 0 in v1.1 and cmrc2018, and is ignored in v2.0.
references: for each question {"id", "answers": {"text": [...], "answer_start": [...]}}, in any order.
no_answer_threshold (v2.0): "" is predicted if no_answer_probability is above it. By default, none is changed.
"""

VERSIONS = ("v1.1", "v2.0", "cmrc2018")


class Squad(evaluate.Metric):
    """`evaluate.load("elmo_gpt_bert/metrics/squad.py", "v2.0").compute(predictions=..., references=...)`."""

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
        if self.config_name != "v2.0":
            if no_answer_threshold is not None:
                raise ValueError(f"no_answer_threshold is of v2.0: in {self.config_name} every question has an answer")
            return (squad1_scores if self.config_name == "v1.1" else cmrc2018_scores)(texts, answers)
        marks = mark(texts, answers, _by_id(predictions, "no_answer_probability", "predictions"))
        return squad2_scores(marks, no_answer_threshold) | best_thresholds(marks)


def _by_id(rows: list[dict], column: str, name: str) -> dict[str, object]:
    """id -> value of the column. Raises ValueError if two rows have the same id, and if a value is missing."""
    values = {row["id"]: row[column] for row in rows}
    if len(values) < len(rows):
        repeated, count = Counter(row["id"] for row in rows).most_common(1)[0]
        raise ValueError(f"{name}: {count} have the id {repeated}: give each question once")
    if missing := [row["id"] for row in rows if row[column] is None]:
        raise ValueError(f"{name}: {missing[0]} has no {column}")
    return values
