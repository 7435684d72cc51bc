"""The paper's BERT (Devlin et al. 2018): configuration and model."""
