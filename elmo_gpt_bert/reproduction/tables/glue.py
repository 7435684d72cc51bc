"""GLUE (Devlin et al. 2018, table 1) with BERT-base, BERT-large and GPT."""

from ..rows import Comparison, Gap, Published, Table, published_in_lines
from .paper_runs import BASE, GLUE_TASKS, LARGE, bert_glue, glue_cells, gpt_glue


TEST, DEV = "BERT's paper, table 1: test", "BERT's paper, tables 5 and 6: dev"
OTHERS = "Hugging Face's README, bert-base-cased: dev"
BERT_BASE, BERT_LARGE, GPT = "BERT-base", "BERT-large", "OpenAI GPT"
AVERAGE = "average"
TITLES = ("MNLI-m", "MNLI-mm", "QQP F1", "QNLI", "SST-2", "CoLA Matthews", "STS-B Spearman", "MRPC F1", "RTE", AVERAGE)
ON_TEST = {
    BERT_BASE: (84.6, 83.4, 71.2, 90.5, 93.5, 52.1, 85.8, 88.9, 66.4, 79.6),
    BERT_LARGE: (86.7, 85.9, 72.1, 92.7, 94.9, 60.5, 86.5, 89.3, 70.1, 82.1),
    GPT: (82.1, 81.4, 70.3, 87.4, 91.3, 45.4, 80.0, 82.3, 56.0, 75.1),
    "BiLSTM+ELMo+Attn": (76.4, 76.1, 64.8, 79.8, 90.4, 36.0, 73.3, 84.9, 56.8, 71.0),
    "the best before GPT": (80.6, 80.1, 66.1, 82.3, 93.2, 35.0, 81.0, 86.0, 61.7, 74.0),
}
# Table 5 has the base model on dev, table 6 the large one. QNLI had another release then.
ON_DEV = {
    BERT_BASE: {"MNLI-m": 84.4, "MRPC accuracy": 86.7, "SST-2": 92.7},
    BERT_LARGE: {"MNLI-m": 86.6, "MRPC accuracy": 87.8, "SST-2": 93.7},
}
RERUNS = {
    "MNLI-m": 83.9,
    "MNLI-mm": 84.1,
    "QQP F1": 87.5,
    "QQP accuracy": 90.7,
    "QNLI": 90.7,
    "SST-2": 92.3,
    "CoLA Matthews": 56.5,
    "STS-B Spearman": 88.5,
    "STS-B Pearson": 88.6,
    "MRPC F1": 88.9,
    "MRPC accuracy": 84.1,
    "RTE": 65.7,
}
RUN = (BERT_BASE, BERT_LARGE, GPT)


def published() -> tuple[Published, ...]:
    figures = [*published_in_lines(ON_TEST, TITLES, TEST)]
    for system, values in ON_DEV.items():
        figures += [Published((system, title), DEV, value) for title, value in values.items()]
    figures += [Published((BERT_BASE, title), OTHERS, value) for title, value in RERUNS.items()]
    return tuple(figures)


GLUE = Table(
    name="glue",
    title="GLUE with BERT and GPT, fine-tuned",
    heads=("system", "score"),
    columns=("dev",),
    rows=(
        *(glue_cells(bert_glue(task, BASE), BERT_BASE) for task in GLUE_TASKS),
        *(glue_cells(bert_glue(task, LARGE), BERT_LARGE) for task in GLUE_TASKS),
        *(glue_cells(gpt_glue(task), GPT) for task in GLUE_TASKS),
    ),
    published=published(),
    gaps=tuple(
        Gap(
            (system, AVERAGE), "dev", "the average is of scores on the test sets, which the leaderboard's server gives"
        )
        for system in RUN
    )
    + tuple(
        Gap((system, title), "dev", "no recipe: the paper quotes these systems")
        for system in ON_TEST
        if system not in RUN
        for title in TITLES
    ),
    notes=(
        "The labels of the test sets are not published: --do_predict writes what the leaderboard takes. A verdict is "
        "for figures on dev, of which the paper has three for each BERT. The paper takes the best of four learning "
        "rates for each task, and for the large model the best of several runs; the recipes have one learning rate.",
    ),
    budget="paper",
    comparisons=(Comparison("dev", DEV),),
)
