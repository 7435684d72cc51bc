"""The scripts as modules, such as `elmo_gpt_bert.scripts.run_glue`, for the commands that an installation brings.

In a checkout the scripts are at its root, where a reader looks for them, and `word2vec`, which makes the input of a
table, is among the examples. A wheel has them in this folder.
"""

import importlib
import sys
from pathlib import Path

from elmo_gpt_bert.training.command_line import COMMAND


_ROOT = Path(__file__).resolve().parents[2]
if (_ROOT / "setup.py").is_file():
    __path__ += [str(_ROOT), str(_ROOT / "examples")]


def run() -> None:
    """Runs the script of the command in `sys.argv`, as `python SCRIPT.py` does. Errors and help name the command."""
    name = Path(sys.argv[0]).stem.removeprefix(COMMAND).replace("-", "_")
    main = importlib.import_module(f"{__name__}.{name}").main
    from elmo_gpt_bert.training.runs import command  # the script has imported it

    command(main)
