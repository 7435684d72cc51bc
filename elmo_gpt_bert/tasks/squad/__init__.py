"""SQuAD: questions about contexts whose answers are spans of these contexts."""
