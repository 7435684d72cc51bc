"""The papers' own scores on the data sets that a model card names, for the card to show beside its own."""

SPLIT = "test"
SYSTEMS = ("BiLSTM+ELMo+Attn", "OpenAI GPT", "BERT-base", "BERT-large")
SOURCE = "[Devlin et al. 2018](https://arxiv.org/abs/1810.04805), table 1"
# (data set, its configuration) -> metric -> 100 times the score of each system. WNLI is not in the paper.
SCORES = {
    ("nyu-mll/glue", "mnli"): {"accuracy": (76.4, 82.1, 84.6, 86.7), "accuracy_mm": (76.1, 81.4, 83.4, 85.9)},
    ("nyu-mll/glue", "qqp"): {"f1": (64.8, 70.3, 71.2, 72.1)},
    ("nyu-mll/glue", "qnli"): {"accuracy": (79.8, 87.4, 90.5, 92.7)},
    ("nyu-mll/glue", "sst2"): {"accuracy": (90.4, 91.3, 93.5, 94.9)},
    ("nyu-mll/glue", "cola"): {"matthews_correlation": (36.0, 45.4, 52.1, 60.5)},
    ("nyu-mll/glue", "stsb"): {"spearmanr": (73.3, 80.0, 85.8, 86.5)},
    ("nyu-mll/glue", "mrpc"): {"f1": (84.9, 82.3, 88.9, 89.3)},
    ("nyu-mll/glue", "rte"): {"accuracy": (56.8, 56.0, 66.4, 70.1)},
}


def comparison(scores: dict[str, float], data_set: str, configuration: str | None) -> str:
    """A Markdown table of `scores` beside the papers', both times 100; empty where no paper has any.

    `scores` are named as in `SCORES` and measured on the validation set, which is why the table names both splits.
    """
    table = SCORES.get((data_set, configuration), {})
    rows = [
        f"| {metric} | " + " | ".join(f"{score:.1f}" for score in (100 * scores[metric], *theirs)) + " |"
        for metric, theirs in table.items()
        if metric in scores
    ]
    if not rows:
        return ""
    head = "| times 100 | this model, validation | " + " | ".join(f"{name}, {SPLIT}" for name in SYSTEMS) + " |"
    lines = [head, "|---" * (len(SYSTEMS) + 2) + "|", *rows]
    return f"\nBeside the systems of {SOURCE}:\n\n" + "\n".join(lines) + "\n"
