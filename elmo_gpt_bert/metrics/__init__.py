"""The metrics: plain functions, and GLUE's also as an `evaluate` module, which needs neither a server nor a cache."""

import tempfile
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from elmo_gpt_bert.metrics.glue import Glue


def load(task: str) -> "Glue":
    """The metric of a task of GLUE, e.g. `load("mrpc")`, or another configuration of it. It keeps its data in memory.

    The module is imported rather than loaded by `evaluate.load`, which copies modules to the user's home folder, where
    it may not be allowed to write.
    """
    from elmo_gpt_bert.metrics.glue import Glue  # here: evaluate takes seconds, and other scorers do not need it

    with tempfile.TemporaryDirectory() as folder:  # evaluate makes folders in it, but no files
        return Glue(task, keep_in_memory=True, cache_dir=folder)
