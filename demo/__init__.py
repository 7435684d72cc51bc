"""The demo of `make demo`: the models of `checkpoints/`, and a sample written for it, on which BERT is fine-tuned."""
