"""How much of pre-training each layer carries: scores by the number of transferred layers (GPT's figure 2, left)."""

from dataclasses import replace as changed

from ..rows import Cell, Row, Table, model
from .paper_runs import gpt_choices, gpt_glue, with_cells
from .tasks import COLA, SST2


NUM_LAYERS = 5  # of the models in checkpoints/
GPT_LAYERS = 12
FAMILIES = ("gpt", "bert")


def rows() -> tuple[Row, ...]:
    """One for each family, task and number of layers that begin with random weights, from none to all."""
    return tuple(
        Row(
            f"{task.name}/{family}_{NUM_LAYERS - count}_layers",
            task.script,
            f"configs/{family}/{task.name}_small.yaml",
            task.flags | {"model_name_or_path": model(family), "reinit_layers": count},
            "",
            task.name,
            family,
            (
                Cell(
                    (family.upper(), f"embeddings and {NUM_LAYERS - count} of {NUM_LAYERS} layers"),
                    task.title,
                    task.metric,
                ),
            ),
        )
        for family in FAMILIES
        for count in range(NUM_LAYERS, -1, -1)
        for task in (COLA, SST2)
    )


LAYERS_SMALL = Table(
    name="layers",
    title="Fine-tuning with some of the pre-trained layers, dev",
    heads=("model", "transferred"),
    columns=(COLA.title, SST2.title),
    rows=rows(),
    notes=(
        "The other layers, above those, begin with random weights. GPT's figure 2 has such a curve for RACE and "
        "MultiNLI, without numbers.",
    ),
)


def paper_rows() -> tuple[Row, ...]:
    """GPT's own: with all layers, these are the runs of its tasks."""
    every = []
    for count in range(GPT_LAYERS, -1, -1):
        line = ("GPT", f"embeddings and {GPT_LAYERS - count} of {GPT_LAYERS} layers")
        for row, column in ((gpt_choices("race"), "RACE accuracy"), (gpt_glue("mnli"), "MNLI-m accuracy")):
            if count:
                flags = dict(row.flags) | {"reinit_layers": count}
                row = changed(row, name=f"gpt_{GPT_LAYERS - count}_layers/{row.task}", flags=flags)
            every.append(with_cells(row, (line, column, "eval_accuracy")))
    return tuple(every)


LAYERS_PAPER = changed(
    LAYERS_SMALL,
    columns=("RACE accuracy", "MNLI-m accuracy"),
    rows=paper_rows(),
    budget="paper",
    title="GPT fine-tuned with some of the pre-trained layers, dev",
)
