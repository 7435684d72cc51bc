"""GLUE and its like: one or two texts and a class, or a number."""
