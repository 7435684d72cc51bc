"""What the scripts are made of. The models are in `modeling`, which imports nothing from here.

training      one loop, and all that a run needs around it: flags, loading, checkpoints, results
tasks         examples, features and decoding, a folder for each kind of task
convert       released checkpoints, word vectors and data -> what this project reads
metrics       the scores, as modules of `evaluate`
analysis      what models have learned, without fine-tuning them
explorer      the page in the browser, zoo-app
reproduction  the tables of the papers, zoo-reproduce
scripts       the scripts at the root of the repository, for an installation
"""

__version__ = "0.1.0"
