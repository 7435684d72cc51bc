"""The models inside other people's libraries: each result equals that of transformers' class on the same weights.

The libraries are the extra "clients" of pyproject.toml. `make test-clients` installs them and runs these tests, the
suite does without both.
"""
