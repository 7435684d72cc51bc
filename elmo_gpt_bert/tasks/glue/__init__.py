"""GLUE and similar tasks: one or two texts with a class or, in a regression, a number."""
