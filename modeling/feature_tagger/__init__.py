"""BERT's feature-based tagger (Devlin et al. 2018, section 5.3): configuration and model."""
