"""The paper's GPT (Radford et al. 2018): configuration, model, task heads and tokenizer."""
