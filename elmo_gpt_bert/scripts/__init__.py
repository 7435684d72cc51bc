"""The scripts as modules, such as `elmo_gpt_bert.scripts.run_glue`, for the commands that an installation brings.

In a checkout the scripts are at its root, where a reader looks for them, and `word2vec`, which makes the input of a
table of reproduce.py, is among the examples. A wheel has them in this folder.
"""

import runpy
import sys
from pathlib import Path


COMMAND = "zoo-"  # zoo-run-glue is run_glue.py

_ROOT = Path(__file__).resolve().parents[2]
if (_ROOT / "setup.py").is_file():
    __path__ += [str(_ROOT), str(_ROOT / "examples")]


def run() -> None:
    """Runs the script of the command in `sys.argv`, as `python SCRIPT.py` does."""
    name = Path(sys.argv[0]).stem.removeprefix(COMMAND).replace("-", "_")
    runpy.run_module(f"{__name__}.{name}", run_name="__main__", alter_sys=True)
