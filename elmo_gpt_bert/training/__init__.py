"""What all scripts of this project share. Data moves once, in one direction:

    recipe + flags -> args -> run_task() loads model, tokenizer and Task by the script, makes features -> carry_out()
    -> the results as in metrics.json, predictions, model folder with its card

A module imports only from modules above it in this list:

    errors         exceptions for mistakes that a user can correct
    files          reads and writes text, JSON and tensors; digests of files
    output_folder  the files in OUTPUT_DIR, and their SHA256SUMS
    arguments      the flags of a run and their values; flags: reads them, and translates those of transformers
    command_line   one-line errors, and signals
    results        the entries of metrics.json: scores, seconds, and how many examples a run uses
    optimization   finds, freezes and compiles a model's layers; optimizer and learning rate schedule
    memory         kept for the next update of a run on the CPU, and given back to the system
    processes      joins the processes of a run, and makes them agree; their versions, processor and threads
    identity       which run the files in OUTPUT_DIR belong to, and whether it has finished; digests of data and models
    batches        the examples of each update, and how their batches are loaded
    log            trackers, and the curves of log.jsonl
    launching      prepares output folder, Accelerator, precision and batches of a run on this machine
    loading        checks and loads tokenizer, configuration and model
    task           the interface between a script and this package; outputs of a model or their mean, and their scores
    checkpoints    what --resume reads
    loop           train()
    reporting      writes metrics.json, the model folder and its card, from card.md with the papers' scores, and pushes
                   them to the Hub
    runs           run_task() and carry_out() for one run, repeat() for one or several seeds

To run on several processes, start the same command with `accelerate launch` or `torchrun`. On CPU use
`ACCELERATE_USE_CPU=true torchrun --nproc_per_node 2 run_X.py ...`.
"""
