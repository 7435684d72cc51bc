"""Carries out scripts on the CPU without XLA, in one process for all tests: a line of JSON each, [script, flags]."""

import importlib
import json
import sys

from accelerate.state import AcceleratorState

import modeling


def serve() -> None:
    answers, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        script, flags = json.loads(line)
        importlib.import_module(script).main(flags)
        AcceleratorState._reset_state(True)
        modeling.unregister()
        answers.write("done\n")
        answers.flush()


if __name__ == "__main__":
    serve()
