"""Compares this zoo with other implementations, with the same weights in one process: `python -m benchmarks`."""
