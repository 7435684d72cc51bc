"""The kinds of tasks, one folder each, all of the same shape. The scripts and the tests use them.

    table     the tasks of this kind, where there are several
    data      where examples come from: read_hub, read_folder (as it was published) and read_files
    features  examples -> what a model reads: make_features, and collate for a batch of it
    decode    what a model gives -> tags or answers, where that takes more than the largest score

The modules rows and columns read files for all of them.
"""
