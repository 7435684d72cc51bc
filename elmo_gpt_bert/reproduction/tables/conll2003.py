"""Named entities on CoNLL-2003 (Devlin et al. 2018, table 7; Peters et al. 2017 and 2018)."""

from ..rows import Comparison, Gap, Row, Table, published_in_columns
from .paper_runs import (
    BASE,
    CONLL_GLOVE,
    CONLL_WORDS,
    ELMO_CONLL,
    ELMO_CONLL_BASELINE,
    ELMO_CONLL_TAGLM,
    LARGE,
    bert_conll,
    with_cells,
)


DEV, TEST = "F1, dev", "F1, test"
PAPER_DEV, PAPER_TEST = "BERT's paper, table 7: F1, dev", "the papers: F1, test"
# system -> dev and test. On test, ELMo, TagLM and the baseline have the figures of their own papers.
FIGURES = {
    "tagger without ELMo": (None, 90.15),
    "TagLM": (None, 91.93),
    "tagger with ELMo": (95.7, 92.22),
    "BERT-base": (96.4, 92.4),
    "BERT-large": (96.6, 92.8),
    "CVT, several tasks": (None, 92.6),
}


def both(row: Row, system: str) -> Row:
    return with_cells(row, ((system,), DEV, "eval_f1"), ((system,), TEST, "test_f1"))


CONLL2003 = Table(
    name="conll2003",
    title="Named entities on CoNLL-2003",
    heads=("system",),
    columns=(DEV, TEST),
    rows=(
        CONLL_GLOVE,
        both(ELMO_CONLL_BASELINE, "tagger without ELMo"),
        CONLL_WORDS,
        both(ELMO_CONLL_TAGLM, "TagLM"),
        both(ELMO_CONLL, "tagger with ELMo"),
        both(bert_conll(BASE), "BERT-base"),
        both(bert_conll(LARGE), "BERT-large"),
    ),
    published=published_in_columns({(system,): values for system, values in FIGURES.items()}, (PAPER_DEV, PAPER_TEST)),
    gaps=tuple(
        Gap(("CVT, several tasks",), column, "no recipe: BERT's paper quotes this system") for column in (DEV, TEST)
    ),
    notes=("The papers' figures of ELMo and BERT are means of five runs. ELMo's standard deviation on test is 0.10.",),
    budget="paper",
    comparisons=(Comparison(DEV, PAPER_DEV), Comparison(TEST, PAPER_TEST)),
)
