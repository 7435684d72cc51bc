"""The tables of `zoo-reproduce`: what they are made of, how their runs are carried out, and how they are shown.

    tables.yaml  the tables: runs of the scripts, where their scores stand, and which figures stand beside them
    tables       reads them
    runner       a row with a seed -> the command of a script, which is carried out unless it has been
    verify       what published weights compute, beside other code, before the table of that name is run
    report       finished runs -> one JSON file without paths, and markdown with verdicts, and CSV

Each module imports only from those above it. The papers' figures are in elmo_gpt_bert/training/papers.yaml.
"""
