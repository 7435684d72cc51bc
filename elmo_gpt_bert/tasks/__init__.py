"""What the scripts share with the tests and with other code: one folder for each kind of task, all of the same shape.

    table     the tasks of this kind, where there are several
    data      readers of examples: read_hub, read_folder (the published files), read_files (the user's own)
    features  examples -> model inputs: make_features, and collate for a batch
    decode    model outputs -> tags or answers, where an argmax is not enough
    states    of named entities: the states of a frozen model, kept on disk

The modules beside the folders are shared: rows reads files and data sets of the Hub, columns files of CoNLL, and
compressed opens them; features makes a row of each example; language_models tells what a model and its tokenizer are.
"""
