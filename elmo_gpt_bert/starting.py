"""Says on a terminal that a script of a run starts. The imports of torch and transformers after this take seconds."""

import os
import sys
import time
from pathlib import Path


BEGAN = time.perf_counter()  # counted by `Clock`
SCRIPT = Path(sys.argv[0]).name
if sys.stderr.isatty() and SCRIPT.startswith(("run_", "zoo-run-")) and os.environ.get("LOCAL_RANK", "0") == "0":
    sys.stderr.write(f"{SCRIPT}: imports torch and transformers ...\n")
