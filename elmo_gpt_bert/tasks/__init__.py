"""What the scripts share with the tests and with other code: a file, or a folder, for each kind of task.

Each has, in this order: the table of the tasks of this kind, where there are several; the readers of examples
read_hub, read_folder (the published files) and read_files (the user's own); the makers of model inputs, make_features,
and collate for a batch; and where an argmax is not enough, what makes tags or answers of the model's outputs. Of named
entities, `states` keeps the states of a frozen model on disk.

All share rows, which reads files and data sets of the Hub, columns, for files of CoNLL, and features, which makes a
row of each example and tells what a tokenizer knows.
"""
