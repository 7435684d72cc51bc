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
Two more configurations are for texts of other sources. classes, one for each text: accuracy, and f1_macro, the mean
of the F1 of the classes that are predicted or present. multi_label, any number of classes for each text: f1_micro, of
all decisions together, f1_macro, the mean of the F1 of all classes, and accuracy, the share of texts whose classes are
all right.
"""
CITATION = "Wang et al. 2018, arXiv 1804.07461"
INPUTS = """\
predictions, references: lists of the same length, of class numbers; for STS-B, of real numbers; for multi_label, of
lists with 0 or 1 for each class.
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


def accuracy_and_macro_f1(predictions: list[int], references: list[int]) -> dict[str, float]:
    f1 = f1_score(references, predictions, average="macro", zero_division=0)
    return {**accuracy(predictions, references), "f1_macro": float(f1)}


def multi_label(predictions: list[list[int]], references: list[list[int]]) -> dict[str, float]:
    """The F1 of a class is 0, not undefined, if it is neither predicted nor present."""
    scores = {
        f"f1_{average}": float(f1_score(references, predictions, average=average, zero_division=0))
        for average in ("micro", "macro")
    }
    return {**scores, **accuracy(predictions, references)}


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
    "classes": accuracy_and_macro_f1,
    "multi_label": multi_label,
}


class Glue(evaluate.Metric):
    """`evaluate.load("elmo_gpt_bert/metrics/glue.py", "mrpc").compute(predictions=..., references=...)`."""

    def _info(self) -> evaluate.MetricInfo:
        if self.config_name not in TASKS:
            raise KeyError(f"{self.config_name!r} is no configuration: choose one of {', '.join(TASKS)}")
        value = datasets.Value("float64" if TASKS[self.config_name] is correlations else "int64")
        value = datasets.List(value) if TASKS[self.config_name] is multi_label else value
        return evaluate.MetricInfo(
            description=DESCRIPTION,
            citation=CITATION,
            inputs_description=INPUTS,
            features=datasets.Features({"predictions": value, "references": value}),
        )

    def _compute(self, predictions: list, references: list) -> dict[str, float]:
        return TASKS[self.config_name](predictions, references)
