"""What every script of this project shares. Data moves once, in one direction:

    recipe + flags -> args -> the script's run() builds model, tokenizer and a Task -> carry_out()
    -> Results -> metrics.json, predictions, model folder with its card

A module imports only from those above it in this list:

    errors         mistakes that a user can mend
    files          text, JSON and tensors, read with suspicion and written whole; checksums, digests, pickles
    clock          seconds; environment: versions and hardware
    arguments      the flags of a run and what they may be; aliases: what others call them; flags: reads them
    command_line   errors in one line, signals, output without a reader
    results        scores, and what metrics.json holds; samples: how much of the data a run takes
    output_folder  what stands in OUTPUT_DIR; identity: which run it is of
    optimization   optimizer and schedule
    launching      the output folder and the processes of a run
    loading        tokenizer, configuration and model; folders: what is looked at before a library opens it
    batches        which examples a batch holds; prediction: what a model computes for each example
    task           what is special about a script
    state_cache    the states of a frozen model; ensembles: the mean of several runs' outputs
    checkpoints    what --resume reads
    loop           train()
    cards          the model card, with the papers' scores of published
    reporting      metrics.json, the model folder and its card; hub: the repository that a run is pushed to
    seeds          one run a seed
    runs           carry_out() for one run, repeat() for one or several

On several processes, `accelerate launch` or `torchrun` starts the same command; on CPU it is
`ACCELERATE_USE_CPU=true torchrun --nproc_per_node 2 run_X.py ...`.
"""
