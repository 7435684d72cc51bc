"""GPT on the tasks of its paper (Radford et al. 2018, tables 2 to 4)."""

from ..rows import Comparison, Gap, Published, Row, Table
from .paper_runs import GLUE_SCORES, gpt_choices, gpt_glue, with_cells


DEV, TEST = "dev", "test"
PAPER, GLUE_ON_TEST = "GPT's paper, tables 2 to 4: test", "GPT's paper, GLUE: test server"
NO_LABELS = "the labels of GLUE's test sets are not published"
# (kind, score) -> the figure. Of GLUE's tasks in the order of the paper's tables.
OWN_TEST = {
    ("inference", "SNLI"): 89.9,
    ("inference", "SciTail"): 88.3,
    ("choices", "Story Cloze"): 86.5,
    ("choices", "RACE"): 59.0,
    ("choices", "RACE, middle schools"): 62.9,
    ("choices", "RACE, high schools"): 57.4,
}
GLUE = {
    "MNLI-m": 82.1,
    "MNLI-mm": 81.4,
    "QNLI": 88.1,
    "RTE": 56.0,
    "CoLA Matthews": 45.4,
    "SST-2": 91.3,
    "MRPC F1": 82.3,
    "STS-B Pearson": 82.0,
    "QQP F1": 70.3,
}
AVERAGE = "average"


def rows() -> tuple[Row, ...]:
    tests = [
        (gpt_glue("snli"), {"SNLI": "accuracy"}),
        (gpt_glue("scitail"), {"SciTail": "accuracy"}),
        (gpt_choices("storycloze"), {"Story Cloze": "accuracy"}),
        (
            gpt_choices("race"),
            {
                "RACE": "accuracy",
                "RACE, middle schools": "accuracy_middle",
                "RACE, high schools": "accuracy_high",
            },
        ),
    ]
    kinds = {title: kind for kind, title in OWN_TEST}
    every = [
        with_cells(
            row,
            *(((kinds[title], title), DEV, f"eval_{metric}") for title, metric in scores.items()),
            *(((kinds[title], title), TEST, f"test_{metric}") for title, metric in scores.items()),
        )
        for row, scores in tests
    ]
    shown = {score.title: score for score in GLUE_SCORES if score.title in GLUE}
    for task in dict.fromkeys(shown[title].task for title in GLUE):
        scores = [score for score in shown.values() if score.task == task]
        every.append(with_cells(gpt_glue(task), *((("GLUE", each.title), DEV, each.metric) for each in scores)))
    return tuple(every)


GPT_TASKS = Table(
    name="gpt_tasks",
    title="GPT, fine-tuned",
    heads=("kind", "score"),
    columns=(DEV, TEST),
    rows=rows(),
    published=(
        *(Published(line, PAPER, value) for line, value in OWN_TEST.items()),
        *(Published(("GLUE", title), GLUE_ON_TEST, value) for title, value in GLUE.items()),
        Published(("GLUE", AVERAGE), GLUE_ON_TEST, 72.8),
    ),
    gaps=(
        *(Gap(("GLUE", title), TEST, NO_LABELS) for title in (*GLUE, AVERAGE)),
        Gap(("GLUE", AVERAGE), DEV, "the average is of scores on the test sets, which the leaderboard's server gives"),
    ),
    notes=(
        "The paper's QNLI is of the task's first release; BERT's paper has 87.4 for GPT on today's. On Story Cloze "
        "the model trains on stories of the validation set, as in the paper, and dev is the rest of them.",
    ),
    budget="paper",
    comparisons=(Comparison(TEST, PAPER),),
)
