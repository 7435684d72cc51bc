"""The metrics: plain functions, and GLUE's also as an `evaluate` module, which needs neither a server nor a cache."""

import importlib
import tempfile
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    import evaluate


def load(name: str, config_name: str | None = None) -> "evaluate.EvaluationModule":
    """Loads the metric in the module NAME.py, e.g. `load("glue", "mrpc")`, which keeps its data in memory.

    The module is imported rather than loaded by `evaluate.load`, which copies modules to the user's home folder, where
    it may not be allowed to write.
    """
    import evaluate  # here, because it takes seconds, and scorers that load no metric do not need it

    module = importlib.import_module(f"{__name__}.{name}")
    classes = [item for item in vars(module).values() if isinstance(item, type) and issubclass(item, evaluate.Metric)]
    with tempfile.TemporaryDirectory() as folder:  # evaluate makes folders in it, but no files
        return classes[0](config_name, keep_in_memory=True, cache_dir=folder)
