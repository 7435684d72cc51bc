"""Which of ELMo's layers a task reads, and where (Peters et al. 2018, tables 2 and 3), on SQuAD."""

from ..rows import Comparison, Published, Table
from .paper_runs import (
    ELMO_SQUAD,
    ELMO_SQUAD_BASELINE,
    SQUAD_GLOVE,
    SQUAD_WORDS,
    elmo_squad_variant,
    with_cells,
)


COLUMN, PAPER = "SQuAD F1, dev", "ELMo's paper, tables 2 and 3: SQuAD F1, dev"
LAYERS, PLACE = "layers", "place"
INPUT = "elmo_placement=input,num_mixes=1"
# line -> the run and the figure
ROWS = {
    (LAYERS, "no ELMo"): (ELMO_SQUAD_BASELINE, 80.8),
    (LAYERS, "the last one"): (elmo_squad_variant("last_layer", f"{INPUT},mix_top_layer_only=true"), 84.7),
    (LAYERS, "all, λ = 1"): (elmo_squad_variant("lambda_1", f"{INPUT},mix_l2=1"), 85.0),
    (LAYERS, "all, λ = 0.001"): (elmo_squad_variant("lambda_0001", f"{INPUT},mix_l2=0.001"), 85.2),
    (PLACE, "input"): (elmo_squad_variant("input", INPUT), 85.1),
    (PLACE, "input and output"): (ELMO_SQUAD, 85.6),
    (PLACE, "output"): (elmo_squad_variant("output", "elmo_placement=output,num_mixes=1"), 84.8),
}

ELMO_LAYERS = Table(
    name="elmo_layers",
    title="ELMo's layers, and its place in the network for SQuAD",
    heads=("what differs", "variant"),
    columns=(COLUMN,),
    rows=(
        SQUAD_GLOVE,
        SQUAD_WORDS,
        *(with_cells(row, (line, COLUMN, "eval_f1")) for line, (row, _) in ROWS.items()),
    ),
    published=tuple(Published(line, PAPER, value) for line, (_, value) in ROWS.items()),
    notes=(
        "λ is the weight of the penalty on the mix of layers. Where λ is not named, it is the recipe's. The paper has "
        "both tables for other tasks, too, for which there are no recipes.",
    ),
    budget="paper",
    comparisons=(Comparison(COLUMN, PAPER),),
)
