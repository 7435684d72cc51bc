"""The demo of `make demo`: a sample written for it, and the run that learns it from random weights."""
