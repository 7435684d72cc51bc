"""The papers' scores, which a model card compares with its own."""

from dataclasses import dataclass


DEVLIN = "[Devlin et al. 2018](https://arxiv.org/abs/1810.04805)"
PETERS = "[Peters et al. 2018](https://arxiv.org/abs/1802.05365)"
RADFORD = "[Radford et al. 2018](https://cdn.openai.com/research-covers/language-unsupervised/language_understanding_paper.pdf)"


@dataclass(frozen=True)
class Published:
    """A table of a paper: metric -> the score of each system, times 100."""

    source: str
    systems: tuple[str, ...]  # the names of the columns: system and split
    scores: dict[str, tuple[float, ...]]
    percent: bool = False  # whether this project's scores are percent, too; otherwise they are fractions


def _glue(**scores: tuple[float, ...]) -> Published:
    systems = ("BiLSTM+ELMo+Attn", "OpenAI GPT", "BERT-base", "BERT-large")
    return Published(f"{DEVLIN}, table 1", tuple(f"{system}, test" for system in systems), scores)


CONLL = Published(
    f"{DEVLIN}, table 7",
    (
        "BiLSTM-CRF+ELMo, validation",
        "BERT-base, validation",
        "BERT-large, validation",
        "BERT-base as features, last four layers, validation",
    ),
    {"f1": (95.7, 96.4, 96.6, 96.1)},
)
SWAG = Published(
    f"{DEVLIN}, table 4",
    ("ESIM+GloVe, validation", "ESIM+ELMo, validation", "OpenAI GPT, test", "BERT-base, validation")
    + ("BERT-large, validation",),
    {"accuracy": (51.9, 59.1, 78.0, 81.6, 86.6)},
)
# For SQuAD 2.0 the paper reports F1 with the threshold that is best for F1 on the validation set: best_f1 here. Its
# exact match, 78.7, uses the same threshold. It is left out, because best_exact here uses the best threshold for exact
# match.
SQUAD_2 = Published(f"{DEVLIN}, table 3", ("BERT-large, validation",), {"best_f1": (81.9,)}, percent=True)
SQUAD = Published(
    f"{DEVLIN}, table 2, and {PETERS}, supplement A",
    ("BiDAF+ELMo, test", "BERT-base, validation", "BERT-large, validation", "BERT-large, seven of them, validation")
    + ("BERT-large after TriviaQA, validation",),
    {"exact_match": (78.6, 80.8, 84.1, 85.8, 84.2), "f1": (85.8, 88.5, 90.9, 91.8, 91.1)},
    percent=True,
)
GPT = ("OpenAI GPT, test",)
# (data set, its configuration) -> the table of a paper. WNLI is not in the paper.
TABLES = {
    ("nyu-mll/glue", "mnli"): _glue(accuracy=(76.4, 82.1, 84.6, 86.7), accuracy_mm=(76.1, 81.4, 83.4, 85.9)),
    ("nyu-mll/glue", "qqp"): _glue(f1=(64.8, 70.3, 71.2, 72.1)),
    ("nyu-mll/glue", "qnli"): _glue(accuracy=(79.8, 87.4, 90.5, 92.7)),
    ("nyu-mll/glue", "sst2"): _glue(accuracy=(90.4, 91.3, 93.5, 94.9)),
    ("nyu-mll/glue", "cola"): _glue(matthews_correlation=(36.0, 45.4, 52.1, 60.5)),
    ("nyu-mll/glue", "stsb"): _glue(spearmanr=(73.3, 80.0, 85.8, 86.5)),
    ("nyu-mll/glue", "mrpc"): _glue(f1=(84.9, 82.3, 88.9, 89.3)),
    ("nyu-mll/glue", "rte"): _glue(accuracy=(56.8, 56.0, 66.4, 70.1)),
    ("conll2003", None): CONLL,  # a folder of the published files
    ("lhoestq/conll2003", None): CONLL,
    ("allenai/swag", "regular"): SWAG,
    ("ehovy/race", "all"): Published(
        f"{RADFORD}, table 3", GPT, {"accuracy": (59.0,), "accuracy_middle": (62.9,), "accuracy_high": (57.4,)}
    ),
    ("stanfordnlp/snli", "plain_text"): Published(f"{RADFORD}, table 2", GPT, {"accuracy": (89.9,)}),
    ("allenai/scitail", "snli_format"): Published(f"{RADFORD}, table 2", GPT, {"accuracy": (88.3,)}),
    ("rajpurkar/squad", None): SQUAD,
    ("rajpurkar/squad_v2", None): SQUAD_2,
    ("storycloze", None): Published(f"{RADFORD}, table 3", GPT, {"accuracy": (86.5,)}),
}


def comparison(scores: dict[str, float], data_set: str, configuration: str | None) -> str:
    """A Markdown table of `scores` and the papers' scores, on the papers' scale; empty if no paper has scores.

    The keys of `scores` are the metrics in `TABLES`. They are measured on the validation set; the papers often report
    the test set, so the table names the split of each column.
    """
    table = TABLES.get((data_set, configuration))
    if table is None or not scores.keys() & table.scores.keys():
        return ""
    unit, factor = ("percent", 1) if table.percent else ("times 100", 100)
    rows = [
        f"| {metric} | " + " | ".join(f"{score:.1f}" for score in (factor * scores[metric], *paper_scores)) + " |"
        for metric, paper_scores in table.scores.items()
        if metric in scores
    ]
    names = "".join(f" | {name}" for name in table.systems)
    head = f"| {unit} | this model, validation{names} |"
    lines = [head, "|---" * (len(table.systems) + 2) + "|", *rows]
    return f"\nCompared with the systems of {table.source}:\n\n" + "\n".join(lines) + "\n"
