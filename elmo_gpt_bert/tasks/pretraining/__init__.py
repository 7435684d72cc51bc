"""Pre-training: text, its shards of tokens on disk, and the objectives that are learned from them."""
