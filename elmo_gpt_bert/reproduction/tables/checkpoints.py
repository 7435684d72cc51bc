"""The scores that decide whether other weights take the place of those of checkpoints/: grammar and two tasks."""

from ..rows import Row, Table
from .blimp import BLIMP_SMALL
from .paper_runs import with_cells
from .pretraining_pays import PRETRAINING_PAYS_SMALL
from .tasks import COLA, SST2


LINES = {"bert": ("BERT",), "gpt": ("GPT",), "elmo": ("biLM",)}
COLUMNS = {"blimp": "BLiMP accuracy", SST2.name: SST2.title, COLA.name: COLA.title}


def rows() -> list[Row]:
    """Rows of the other tables: each model on all pairs, and fine-tuned; ELMo's networks get their words first."""
    found = {row.name: row for row in (*BLIMP_SMALL.rows, *PRETRAINING_PAYS_SMALL.rows)}
    chosen = [with_cells(found[family], (line, COLUMNS["blimp"], "eval_accuracy")) for family, line in LINES.items()]
    for task in (SST2, COLA):
        chosen.append(found[f"{task.name}/elmo_words"])
        for family, line in LINES.items():
            row = found[f"{task.name}/{family}_fine_tuned"]
            chosen.append(with_cells(row, (line, COLUMNS[task.name], task.metric)))
    return chosen


CHECKPOINTS = Table(
    name="checkpoints",
    title="The models of checkpoints/, or those that --models names",
    heads=("model",),
    columns=tuple(COLUMNS.values()),
    rows=tuple(rows()),
    notes=("SST-2 and CoLA: dev, fine-tuned, the biLM along with a network on it.",),
)
