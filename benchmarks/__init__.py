"""Compares this zoo with other implementations, with the same weights in one process: `python -m benchmarks`."""

import time


STARTED = time.monotonic()  # of the command, before it imports what takes long
