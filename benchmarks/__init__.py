"""This zoo against other implementations: the same weights, in one process, taking turns. `python -m benchmarks`."""
