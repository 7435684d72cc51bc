"""Pre-training: text becomes shards of token numbers, and an objective makes batches of them."""
