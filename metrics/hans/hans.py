"""The scores of HANS (McCoy, Pavlick and Linzen 2019, arXiv 1902.01007), as evaluate_heur_output.py counts them."""

import datasets
import evaluate
import numpy as np


DESCRIPTION = """\
Accuracy over all examples (accuracy), over those made for each heuristic (lexical_overlap, subsequence, constituent),
and among these over the examples where the heuristic is right (lexical_overlap_entailed, ...) and where it misleads
(lexical_overlap_non_entailed, ...). A group without examples has no score.
The paper reports the six last ones, in per cent. Whoever trusts the heuristics gets 100 and 0; chance is 50.
"""
CITATION = """\
@inproceedings{mccoy2019right,
  title={Right for the Wrong Reasons: Diagnosing Syntactic Heuristics in Natural Language Inference},
  author={McCoy, Tom and Pavlick, Ellie and Linzen, Tal},
  booktitle={Annual Meeting of the Association for Computational Linguistics},
  year={2019}
}
"""
INPUTS = """\
predictions, references: 0 for entailment, 1 for non-entailment. heuristic: the column of that name.
"""
ANSWERS = ("entailed", "non_entailed")


class Hans(evaluate.Metric):
    """`evaluate.load("metrics/hans/hans.py").compute(predictions=..., references=..., heuristic=...)`."""

    def _info(self) -> evaluate.MetricInfo:
        label = datasets.Value("int64")
        return evaluate.MetricInfo(
            description=DESCRIPTION,
            citation=CITATION,
            inputs_description=INPUTS,
            features=datasets.Features(
                {"predictions": label, "references": label, "heuristic": datasets.Value("string")}
            ),
        )

    def _compute(self, predictions: list[int], references: list[int], heuristic: list[str]) -> dict[str, float]:
        references, heuristics = np.array(references), np.array(heuristic)
        right = np.array(predictions) == references
        scores = {"accuracy": float(right.mean())}
        for name in dict.fromkeys(heuristic):
            group = heuristics == name
            scores[name] = float(right[group].mean())
            for label, answer in enumerate(ANSWERS):
                examples = group & (references == label)
                if examples.any():
                    scores[f"{name}_{answer}"] = float(right[examples].mean())
        return scores
