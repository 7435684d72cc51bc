"""What all scripts of this project share. Data moves once, in one direction:

    recipe + flags -> args -> the script's run() builds model, tokenizer and a Task -> carry_out()
    -> the results as in metrics.json, predictions, model folder with its card

A module imports only from modules above it in this list:

    errors         exceptions for mistakes that a user can correct
    files          reads and writes text, JSON and tensors; checksums, digests: checks of files and data
    memory         kept for the next update of a run on the CPU, and given back to the system
    environment    versions and hardware
    output_folder  the files in OUTPUT_DIR
    arguments      the flags of a run and their values; aliases: transformers' names for them; flags: reads them
    command_line   one-line errors, signals, and output that outlives its reader
    results        the entries of metrics.json: scores, seconds, and how many examples a run uses
    optimization   optimizer and learning rate schedule
    processes      joins the processes of a run, and makes them agree
    identity       which run the files in OUTPUT_DIR belong to, and whether it has finished
    machine        the precision and the batches of a run on this machine
    launching      prepares the output folder, the Accelerator and the trackers of a run
    loading        checks and loads tokenizer, configuration and model; hub: pushes them
    batches        chooses the examples of each batch; prediction: computes the model's outputs
    task           the interface between a script and this package
    state_cache    the states of a frozen model, kept on disk; ensembles: the mean of several runs' outputs
    checkpoints    what --resume reads
    loop           train()
    cards          the model card, from the template card.md; published: the papers' scores that it shows
    reporting      writes metrics.json, the model folder and its card
    seeds          one run for each seed
    runs           carry_out() for one run, repeat() for one or several

To run on several processes, start the same command with `accelerate launch` or `torchrun`. On CPU use
`ACCELERATE_USE_CPU=true torchrun --nproc_per_node 2 run_X.py ...`.
"""
