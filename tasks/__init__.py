"""What the scripts and the tests know of tasks: one folder for each kind, all of the same shape.

    data      the readers: from the Hub, from a folder as it was published, or from files -> examples
    features  examples -> what a model reads
    decode    what a model gives -> tags or answers, where that is more than the largest score

What readers share stands beside the folders: rows and columns of files.
"""
