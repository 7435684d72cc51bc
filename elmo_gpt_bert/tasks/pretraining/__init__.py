"""Pre-training: text, its tokens on disk, and the objectives that are learned from them."""
