"""What the scripts share with the tests and with other code: one folder for each kind of task, of the same shape.

    table     the tasks of this kind, where there are several
    data      readers of examples: read_hub, read_folder (as it was published), read_files
    features  examples -> model inputs: make_features, and collate for a batch
    decode    model outputs -> tags or answers, where an argmax is not enough

The modules rows and columns read files for all of them.
"""
