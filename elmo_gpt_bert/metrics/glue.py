"""The scores of the GLUE benchmark (Wang et al. 2018, arXiv 1804.07461, section 3), from scikit-learn and scipy."""

import datasets
import evaluate
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef


DESCRIPTION = """\
One configuration per task. CoLA: matthews_correlation. MRPC, QQP: f1 of class 1 (equivalent, duplicate), accuracy.
STS-B: spearmanr, pearson. SST-2, MNLI, QNLI, RTE, WNLI: accuracy. AX, the diagnostics: matthews_correlation of three
classes, which the paper calls R3.
GLUE reports 100 times these numbers. If a task has two scores, BERT's paper reports the first.
"""
CITATION = "Wang et al. 2018, arXiv 1804.07461"
INPUTS = """\
predictions, references: lists of the same length, of class numbers or, for STS-B, of real numbers.
"""


def accuracy(predictions: list[int], references: list[int]) -> dict[str, float]:
    return {"accuracy": float(accuracy_score(references, predictions))}


def f1_and_accuracy(predictions: list[int], references: list[int]) -> dict[str, float]:
    """f1 is 0, not undefined, if class 1 is neither predicted nor present."""
    f1 = f1_score(references, predictions, pos_label=1, average="binary", zero_division=0)
    return {"f1": float(f1), **accuracy(predictions, references)}


def matthews_correlation(predictions: list[int], references: list[int]) -> dict[str, float]:
    """0 if the predictions or the references are all of one class."""
    return {"matthews_correlation": float(matthews_corrcoef(references, predictions))}


def correlations(predictions: list[float], references: list[float]) -> dict[str, float]:
    """0 if the predictions or the references are constant or a single value, for which scipy returns NaN."""
    if len(set(predictions)) < 2 or len(set(references)) < 2:
        return {"spearmanr": 0.0, "pearson": 0.0}
    return {
        "spearmanr": float(spearmanr(predictions, references).statistic),
        "pearson": float(pearsonr(predictions, references).statistic),
    }


TASKS = {
    "cola": matthews_correlation,
    "sst2": accuracy,
    "mrpc": f1_and_accuracy,
    "stsb": correlations,
    "qqp": f1_and_accuracy,
    "mnli": accuracy,
    "qnli": accuracy,
    "rte": accuracy,
    "wnli": accuracy,
    "ax": matthews_correlation,
}


class Glue(evaluate.Metric):
    """`evaluate.load("elmo_gpt_bert/metrics/glue.py", "mrpc").compute(predictions=..., references=...)`."""

    def _info(self) -> evaluate.MetricInfo:
        if self.config_name not in TASKS:
            raise KeyError(f"{self.config_name!r} is no GLUE task: choose one of {', '.join(TASKS)}")
        value = datasets.Value("float64" if TASKS[self.config_name] is correlations else "int64")
        return evaluate.MetricInfo(
            description=DESCRIPTION,
            citation=CITATION,
            inputs_description=INPUTS,
            features=datasets.Features({"predictions": value, "references": value}),
        )

    def _compute(self, predictions: list, references: list) -> dict[str, float]:
        return TASKS[self.config_name](predictions, references)
