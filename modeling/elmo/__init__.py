"""ELMo (Peters et al. 2018): configuration, biLM, task networks, tokenizer and pipeline."""
