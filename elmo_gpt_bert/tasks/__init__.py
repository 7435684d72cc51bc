"""What the scripts share with the tests and with other code: one folder for each kind of task, all of the same shape.

    table     the tasks of this kind, where there are several
    data      readers of examples: read_hub, read_folder (the published files), read_files (the user's own)
    features  examples -> model inputs: make_features, and collate for a batch
    decode    model outputs -> tags or answers, where an argmax is not enough

All of them share the modules rows and columns, which read files, and features.
"""
