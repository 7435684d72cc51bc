"""The suite: pytest, from the root of the repository."""
