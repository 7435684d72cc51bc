"""The metrics, as `evaluate` modules in folders of their own, loaded by path: a run asks nobody's server for them."""

from pathlib import Path
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    import evaluate


def load(name: str, config_name: str | None = None) -> "evaluate.EvaluationModule":
    """The module metrics/NAME/NAME.py, e.g. `load("glue", "mrpc")`; what it computes on is kept in memory."""
    import evaluate  # takes seconds, which a scorer that needs no module does without

    path = Path(__file__).parent / name / f"{name}.py"
    return evaluate.load(str(path), config_name, keep_in_memory=True)
