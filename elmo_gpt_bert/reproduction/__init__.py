"""The tables of `zoo-reproduce`: what they are made of, how their runs are carried out, and how they are shown.

    tables.yaml  the tables: runs of the scripts, where their scores stand, and which figures stand beside them
    tables       reads them
    steps        a row with a seed -> the command of a script, and whether it has been carried out
    running      carries out the steps, several at once, and goes on after one that fails
    records      what finished runs have measured, as one JSON file without paths
    report       a record -> markdown with verdicts, CSV and a plot

Each module imports only from those above it. The papers' figures are in elmo_gpt_bert/training/papers.yaml.
"""
