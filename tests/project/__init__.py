"""The guides, the layout of the code, and what is released."""
