"""Questions on SQuAD 1.1 and 2.0 (Devlin et al. 2018, tables 2 and 3; Peters et al. 2018, tables 1 to 3)."""

from ..rows import Comparison, Gap, Row, Table, published_in_columns
from .paper_runs import (
    BASE,
    ELMO_SQUAD,
    ELMO_SQUAD_BASELINE,
    LARGE,
    SQUAD_GLOVE,
    SQUAD_WORDS,
    bert_squad,
    bert_squad_2,
    bert_triviaqa,
    with_cells,
)


EM, F1 = "EM, dev", "F1, dev"
EM_DEV, F1_DEV, EM_TEST, F1_TEST = (f"the papers: {split}" for split in (EM, F1, "EM, test", "F1, test"))
ONE, TWO = "SQuAD 1.1", "SQuAD 2.0"
# (data, system) -> EM and F1 on dev, EM and F1 on test. ELMo's are those of its own paper.
FIGURES = {
    (ONE, "BiDAF without ELMo"): (None, 80.8, None, 81.1),
    (ONE, "BiDAF with ELMo"): (None, 85.6, 78.6, 85.8),
    (ONE, "BERT-base"): (80.8, 88.5, None, None),
    (ONE, "BERT-large"): (84.1, 90.9, None, None),
    (ONE, "BERT-large, TriviaQA first"): (84.2, 91.1, 85.1, 91.8),
    (ONE, "seven of BERT-large"): (85.8, 91.8, None, None),
    (ONE, "seven of BERT-large, TriviaQA first"): (86.2, 92.2, 87.4, 93.2),
    (ONE, "R.M. Reader"): (78.9, 86.3, None, None),
    (ONE, "R.M. Reader, ensemble"): (81.2, 87.9, None, None),
    (ONE, "people"): (None, None, 82.3, 91.2),
    (TWO, "BERT-base"): (None, None, None, None),
    (TWO, "BERT-large"): (78.7, 81.9, 80.0, 83.1),
}
THRESHOLD = "the paper's EM has the threshold that is best for F1; the scripts report the best EM and the best F1"
QUOTED = "no recipe: the paper quotes these systems"
SEVEN = "the paper's models differ in their pre-training, too; docs/runs.md has the commands for runs of several seeds"


def of_1(row: Row, system: str) -> Row:
    return with_cells(row, ((ONE, system), EM, "eval_exact_match"), ((ONE, system), F1, "eval_f1"))


def of_2(row: Row, system: str) -> Row:
    return with_cells(row, ((TWO, system), F1, "eval_best_f1"))


def rows() -> tuple[Row, ...]:
    triviaqa, after_triviaqa = bert_triviaqa()
    return (
        SQUAD_GLOVE,
        of_1(ELMO_SQUAD_BASELINE, "BiDAF without ELMo"),
        SQUAD_WORDS,
        of_1(ELMO_SQUAD, "BiDAF with ELMo"),
        of_1(bert_squad(BASE), "BERT-base"),
        of_1(bert_squad(LARGE), "BERT-large"),
        triviaqa,
        of_1(after_triviaqa, "BERT-large, TriviaQA first"),
        of_2(bert_squad_2(BASE), "BERT-base"),
        of_2(bert_squad_2(LARGE), "BERT-large"),
    )


def gaps() -> tuple[Gap, ...]:
    reasons = {(TWO, system): THRESHOLD for system in ("BERT-base", "BERT-large")}
    every = [Gap(line, EM, reason) for line, reason in reasons.items()]
    for data, system in FIGURES:
        if system.startswith(("seven", "R.M.", "people")):
            reason = SEVEN if system.startswith("seven") else QUOTED
            every += [Gap((data, system), column, reason) for column in (EM, F1)]
    return tuple(every)


SQUAD = Table(
    name="squad",
    title="Questions on SQuAD",
    heads=("data", "system"),
    columns=(EM, F1),
    rows=rows(),
    published=published_in_columns(FIGURES, (EM_DEV, F1_DEV, EM_TEST, F1_TEST)),
    gaps=gaps(),
    notes=("SQuAD 2.0: F1 with the threshold of no answer that is best for it on dev, as in the paper.",),
    budget="paper",
    comparisons=(Comparison(EM, EM_DEV), Comparison(F1, F1_DEV)),
)
