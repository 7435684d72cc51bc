"""Multiple choice on SWAG (Devlin et al. 2018, table 4)."""

from ..rows import Comparison, Published, Table
from .paper_runs import BASE, ELMO_SWAG, ELMO_SWAG_BASELINE, LARGE, SWAG_GLOVE, bert_swag, gpt_choices, with_cells


COLUMN, DEV, TEST = "accuracy, dev", "BERT's paper, table 4: dev", "BERT's paper, table 4: test"
ROWS = {
    "ESIM with GloVe": ELMO_SWAG_BASELINE,
    "ESIM with ELMo": ELMO_SWAG,
    "OpenAI GPT": gpt_choices("swag"),
    "BERT-base": bert_swag(BASE),
    "BERT-large": bert_swag(LARGE),
}
FIGURES = {
    "ESIM with GloVe": {DEV: 51.9, TEST: 52.7},
    "ESIM with ELMo": {DEV: 59.1, TEST: 59.2},
    "OpenAI GPT": {TEST: 78.0},
    "BERT-base": {DEV: 81.6},
    "BERT-large": {DEV: 86.6, TEST: 86.3},
}

SWAG = Table(
    name="swag",
    title="Multiple choice on SWAG",
    heads=("system",),
    columns=(COLUMN,),
    rows=(SWAG_GLOVE, *(with_cells(row, ((line,), COLUMN, "eval_accuracy")) for line, row in ROWS.items())),
    published=tuple(
        Published((line,), column, value) for line, values in FIGURES.items() for column, value in values.items()
    ),
    notes=("The labels of the test set are not published. The paper has 88.0 for people.",),
    budget="paper",
    comparisons=(Comparison(COLUMN, DEV),),
)
