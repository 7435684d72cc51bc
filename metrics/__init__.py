"""The metrics, as `evaluate` modules in folders of their own: a run asks nobody's server for them, and no cache."""

import importlib
import tempfile
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    import evaluate


def load(name: str, config_name: str | None = None) -> "evaluate.EvaluationModule":
    """The module metrics/NAME/NAME.py, e.g. `load("glue", "mrpc")`; what it computes on is kept in memory.

    Imported, and not by `evaluate.load`, which copies modules to the user's home: that may not be writable.
    """
    import evaluate  # takes seconds, which a scorer that needs no module does without

    module = importlib.import_module(f"metrics.{name}.{name}")
    kinds = [kind for kind in vars(module).values() if isinstance(kind, type) and issubclass(kind, evaluate.Metric)]
    with tempfile.TemporaryDirectory() as folder:  # evaluate makes folders in it, and puts nothing there
        return kinds[0](config_name, keep_in_memory=True, cache_dir=folder)
