"""The tables of `reproduce.py`: what they are made of, how their runs are carried out, and how they are shown.

    rows      what a table is: rows that are runs of the scripts, cells that show their scores, published figures
    tables/   the tables, one module each, of two budgets
    steps     a row with a seed -> the command of a script, and whether it has been carried out
    running   carries out the steps, several at once, and goes on after one that fails
    records   what finished runs have measured, as one JSON file without paths
    verdicts  whether scores over seeds agree with a published figure
    report    a record -> markdown, CSV and a plot

Each module imports only from those above it.
"""
