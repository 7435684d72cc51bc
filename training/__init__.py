"""What every script of this project shares. Data moves once, in one direction:

    recipe + flags -> args -> the script builds model, data, collate, metrics -> train() / predict()
    -> metrics.json, checkpoint, model card

    command_line  a script's errors, one line each; needs nothing but Python
    flags         recipe and flags -> args, with arguments, what they may be, and aliases, what others call them
    files         JSON and tensors, read with suspicion and written whole
    runs          one run or several: signals, clock, seeds
    launching     the output folder and the processes of a run
    loading       tokenizer, configuration and model, with folders, what is looked at before a library opens it
    loop          train() and predict(), with optimization and checkpoints
    ensembles     the mean of several runs' outputs, which they kept on disk
    features      the states of a frozen model, kept on disk between epochs and runs
    samples       how much of the data a run takes
    reporting     metrics.json, model and card, with cards and published
    hub           the repository that a run is pushed to

On several processes, `accelerate launch` or `torchrun` starts the same command; on CPU it is
`ACCELERATE_USE_CPU=true torchrun --nproc_per_node 2 run_X.py ...`.
"""
