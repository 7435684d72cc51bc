"""Features of a frozen BERT against fine-tuning it (Devlin et al. 2018, table 7), on CoNLL-2003 or, small, WNUT-17."""

from dataclasses import replace as changed

from ..rows import Cell, Comparison, Published, Row, Table, model
from .paper_runs import bert_conll, bert_features, with_cells
from .tasks import WNUT17


COLUMN, PAPER = "WNUT-17 F1, dev", "BERT's paper, table 7: CoNLL-2003 F1, dev"
LAYERS = {
    "embeddings": ("embeddings", 91.0),
    "second_to_last": ("second-to-last layer", 95.6),
    "last": ("last layer", 94.9),
    "weighted_sum_last_four": ("weighted sum, last four layers", 95.9),
    "concat_last_four": ("concatenation, last four layers", 96.1),
    "weighted_sum_all": ("weighted sum, all layers", 95.5),
}
FLAGS = WNUT17.flags | {"model_name_or_path": model("bert")}


def row(name: str, line: str, recipe: str, **flags: str) -> Row:
    cells = (Cell((line,), COLUMN, WNUT17.metric),)
    return Row(name, "run_ner", f"configs/bert/{recipe}.yaml", FLAGS | flags, "", "wnut17", "bert", cells)


FEATURE_BASED_SMALL = Table(
    name="feature_based",
    title="BERT as features for a BiLSTM, and fine-tuned",
    heads=("what the tagger reads",),
    columns=(COLUMN,),
    rows=(
        row("fine_tuned", "fine-tuned BERT", "wnut17_small"),
        *(row(name, line, "wnut17_features_concat_last_four", features=name) for name, (line, _) in LAYERS.items()),
    ),
    published=(
        Published(("fine-tuned BERT",), PAPER, 96.4),
        *(Published((line,), PAPER, value) for line, value in LAYERS.values()),
    ),
    notes=("The paper's BERT has 12 layers and 768 states, and reads whole documents.",),
)

CONLL, FINE_TUNED = "CoNLL-2003 F1, dev", "fine-tuned BERT"

FEATURE_BASED_PAPER = changed(
    FEATURE_BASED_SMALL,
    columns=(CONLL,),
    rows=(
        with_cells(bert_conll(), ((FINE_TUNED,), CONLL, "eval_f1")),
        *(with_cells(bert_features(name), ((line,), CONLL, "eval_f1")) for name, (line, _) in LAYERS.items()),
    ),
    notes=("The paper's figure of fine-tuning is a mean of five runs.",),
    budget="paper",
    comparisons=(Comparison(CONLL, PAPER),),
)
