"""The scores of classes and numbers, from scikit-learn and scipy, as a metric of `evaluate`.

One configuration is for each task of GLUE (Wang et al. 2018, arXiv 1804.07461, section 3). CoLA: matthews_correlation.
MRPC, QQP: f1 of class 1 (equivalent, duplicate), accuracy. STS-B: spearmanr, pearson. SST-2, MNLI, QNLI, RTE, WNLI:
accuracy. AX, the diagnostics: matthews_correlation of three classes, which the paper calls R3. GLUE reports 100 times
these numbers. If a task has two scores, BERT's paper reports the first.

Two more are for texts of other sources. classes, one for each text: accuracy, and f1_macro, the mean of the F1 of the
classes that are predicted or present. multi_label, any number of classes for each text: f1_micro, of all decisions
together, f1_macro, the mean of the F1 of all classes, and accuracy, the share of texts whose classes are all right.

Predictions and references are numbers of classes, for STS-B real numbers, and for multi_label lists with 0 or 1 for
each class.

The last two are for data with parts, "" for none. Each has accuracy over all examples, and scores of each part that
has some. choices: accuracy_PART, for parts such as RACE's middle and high (Lai et al. 2017, arXiv 1704.04683, section
3). hans: a part has the examples made for one heuristic (lexical_overlap, subsequence, constituent), and class 0 is
entailment. It has three scores: over all of its examples (lexical_overlap), over those where the heuristic is right
(lexical_overlap_entailed), and over those where it misleads (lexical_overlap_non_entailed), as evaluate_heur_output.py
of McCoy, Pavlick and Linzen 2019 (arXiv 1902.01007) counts them. The paper reports the last two of each, in per cent.
A model that follows the heuristics gets 100 and 0; chance is 50.
"""

import datasets
import evaluate
import numpy as np
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef


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
    # Of a single class, scikit-learn would count its absence as another one.
    labels = [1] if np.shape(references)[1:] == (1,) else None
    scores = {
        f"f1_{average}": float(f1_score(references, predictions, labels=labels, average=average, zero_division=0))
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
# Configuration -> the name of each score of a part, and the class that it counts; None: all.
PARTS = {
    "choices": {"accuracy_{}": None},
    "hans": {"{}": None, "{}_entailed": 0, "{}_non_entailed": 1},
}


def accuracies(
    predictions: list[int], references: list[int], parts: list[str], names: dict[str, int | None]
) -> dict[str, float]:
    """Those of all examples and of each part; `names` are those of a part's scores, as in `PARTS`."""
    references, column = np.array(references), np.array(parts)
    right = np.array(predictions) == references
    groups = {"accuracy": np.full(len(right), True)}
    for part in filter(None, dict.fromkeys(parts)):
        for name, label in names.items():
            groups[name.format(part)] = (column == part) & (True if label is None else references == label)
    return {name: float(right[group].mean()) for name, group in groups.items() if group.any()}


class Glue(evaluate.Metric):
    """`evaluate.load("elmo_gpt_bert/metrics/glue.py", "mrpc").compute(predictions=..., references=...)`."""

    def _info(self) -> evaluate.MetricInfo:
        if self.config_name not in (*TASKS, *PARTS):
            raise KeyError(f"{self.config_name!r} is no configuration: choose one of {', '.join((*TASKS, *PARTS))}")
        value = datasets.Value("float64" if self.config_name == "stsb" else "int64")
        value = datasets.List(value) if self.config_name == "multi_label" else value
        columns = {"predictions": value, "references": value}
        if self.config_name in PARTS:
            columns["parts"] = datasets.Value("string")
        return evaluate.MetricInfo(description=__doc__, citation="", features=datasets.Features(columns))

    def _compute(self, predictions: list, references: list, parts: list[str] | None = None) -> dict[str, float]:
        if parts is not None:
            return accuracies(predictions, references, parts, PARTS[self.config_name])
        return TASKS[self.config_name](predictions, references)
