"""SQuAD: questions about contexts, whose answers are spans of them."""
