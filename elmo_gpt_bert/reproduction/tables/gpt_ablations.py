"""What GPT's pre-training and its auxiliary loss are worth (Radford et al. 2018, table 5)."""

from ..rows import Gap, Row, Table, published_in_lines
from .paper_runs import GLUE_SCORES, glue_cells, gpt_glue, gpt_random, gpt_without_lm


PAPER = "GPT's paper, table 5: test"
TITLES = ("CoLA Matthews", "SST-2", "MRPC F1", "STS-B Pearson", "QQP F1", "MNLI-m", "QNLI", "RTE")
AVERAGE = "average"
FULL, RANDOM, WITHOUT_LM, LSTM = "GPT", "without pre-training", "without the auxiliary loss", "LSTM"
FIGURES = {
    FULL: (45.4, 91.3, 82.3, 82.0, 70.3, 81.8, 88.1, 56.0, 74.7),
    RANDOM: (18.9, 84.0, 79.4, 30.9, 65.5, 75.7, 71.2, 53.8, 59.9),
    WITHOUT_LM: (47.9, 92.0, 84.9, 83.2, 69.8, 81.1, 86.9, 54.4, 75.0),
    LSTM: (30.3, 90.5, 83.2, 71.8, 68.1, 73.7, 81.1, 54.6, 69.1),
}
VARIANTS = {FULL: gpt_glue, RANDOM: gpt_random, WITHOUT_LM: gpt_without_lm}


def rows() -> tuple[Row, ...]:
    tasks = {score.title: score.task for score in GLUE_SCORES}
    return tuple(
        glue_cells(make(tasks[title]), variant, titles=TITLES)
        for variant, make in VARIANTS.items()
        for title in TITLES
    )


GPT_ABLATIONS = Table(
    name="gpt_ablations",
    title="GPT with and without parts of its training",
    heads=("training", "score"),
    columns=("dev",),
    rows=rows(),
    published=published_in_lines(FIGURES, (*TITLES, AVERAGE), PAPER),
    gaps=(
        *(Gap((LSTM, title), "dev", "no recipe: the scripts have no LSTM in GPT's place") for title in TITLES),
        *(
            Gap((variant, AVERAGE), "dev", "the average is of scores on the test sets, which the server gives")
            for variant in FIGURES
        ),
    ),
    notes=(
        "The labels of the test sets are not published: compare the differences between the lines. The paper does not "
        "say which half of MNLI its figures are of; ours are of the matched one.",
    ),
    budget="paper",
)
