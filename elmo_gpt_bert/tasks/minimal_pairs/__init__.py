"""Minimal pairs: which of two sentences, one of them ungrammatical, a language model finds more probable."""
