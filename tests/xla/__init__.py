"""Runs and models on XLA, against the same on the CPU: `make test-xla`, in an environment of its own."""
