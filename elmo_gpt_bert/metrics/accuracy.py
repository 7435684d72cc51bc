"""The share of examples whose predicted class is right, over all examples and over each part of the data."""

import datasets
import evaluate
import numpy as np


DESCRIPTION = """\
Accuracy over all examples (accuracy), and over the examples of each part that the data name. A part without examples
has no score. There are two configurations:
choices: accuracy_PART, for parts such as RACE's middle and high (Lai et al. 2017, arXiv 1704.04683, section 3).
hans: a part has the examples made for one heuristic (lexical_overlap, subsequence, constituent). It has three scores:
over all of its examples (lexical_overlap), over those where the heuristic is right (lexical_overlap_entailed), and
over those where it misleads (lexical_overlap_non_entailed), as evaluate_heur_output.py of McCoy, Pavlick and Linzen
2019 (arXiv 1902.01007) counts them. The paper reports the last two of each, in per cent. A model that follows the
heuristics gets 100 and 0; chance is 50.
"""
CITATION = "Lai et al. 2017, arXiv 1704.04683 (choices); McCoy, Pavlick and Linzen 2019, arXiv 1902.01007 (hans)"
INPUTS = """\
predictions, references: class numbers; for HANS, 0 is entailment and 1 is non-entailment. parts: the part of each
example, "" for none; for HANS, the column heuristic.
"""


# Configuration -> the name of each score of a part, and the class that it counts; None: both.
SCORES = {
    "choices": {"accuracy_{}": None},
    "hans": {"{}": None, "{}_entailed": 0, "{}_non_entailed": 1},
}


class Accuracy(evaluate.Metric):
    """`evaluate.load(FILE, "hans").compute(predictions=..., references=..., parts=...)`, where FILE is this file."""

    def _info(self) -> evaluate.MetricInfo:
        if self.config_name not in SCORES:
            raise KeyError(f"{self.config_name!r} is no way to part examples: choose one of {', '.join(SCORES)}")
        label = datasets.Value("int64")
        return evaluate.MetricInfo(
            description=DESCRIPTION,
            citation=CITATION,
            inputs_description=INPUTS,
            features=datasets.Features({"predictions": label, "references": label, "parts": datasets.Value("string")}),
        )

    def _compute(self, predictions: list[int], references: list[int], parts: list[str]) -> dict[str, float]:
        references, column = np.array(references), np.array(parts)
        right = np.array(predictions) == references
        groups = {"accuracy": np.full(len(right), True)}
        for part in filter(None, dict.fromkeys(parts)):
            for name, label in SCORES[self.config_name].items():
                is_counted = column == part if label is None else (column == part) & (references == label)
                groups[name.format(part)] = is_counted
        return {name: float(right[group].mean()) for name, group in groups.items() if group.any()}
