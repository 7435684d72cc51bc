"""How a script ends on the command line. Imports nothing that takes time: scripts that need no model start at once."""

import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from training.streams import lasting_streams


ROOT = Path(__file__).resolve().parent.parent
OWN = {ROOT, *(ROOT / name for name in ("metrics", "modeling", "tasks", "training"))}


def run_command(main: Callable[[], object], interrupted: str = "interrupted") -> None:
    """Runs a script's `main`; what a user can mend ends it with one line and status 1, Ctrl-C with status 130.

    Errors from below this project's own files keep their traceback: they are nobody's mistake in a command.
    `interrupted` is what Ctrl-C says where the exception itself says nothing.
    """
    with lasting_streams():
        _call(main, interrupted)


def _call(main: Callable[[], object], interrupted: str) -> None:
    try:
        main()
    except KeyboardInterrupt as stop:
        sys.stderr.write(f"{str(stop) or interrupted}\n")
        sys.exit(130)
    except (OSError, ValueError, ArithmeticError, RuntimeError, ImportError) as error:
        raised_in = Path(traceback.extract_tb(error.__traceback__)[-1].filename).parent
        if raised_in not in OWN:
            raise
        sys.stderr.write(f"{Path(sys.argv[0]).name}: error: {error}\n")
        sys.exit(1)
