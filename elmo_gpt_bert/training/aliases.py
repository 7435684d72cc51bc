"""Translates the flags of transformers' example scripts, past and present, that differ from this project's flags.

Keys of recipes are flags, too. A flag that a script has itself is never translated.
"""

from collections.abc import Container

from elmo_gpt_bert.training.errors import InputError


# transformers' flag -> this project's flag with the same values.
NAMES = {
    "activation_checkpointing": "gradient_checkpointing",
    "evaluation_strategy": "eval_strategy",
    "max_length": "max_seq_length",
    "max_train_steps": "max_steps",
    "num_warmup_steps": "warmup_steps",
    "per_gpu_eval_batch_size": "per_device_eval_batch_size",
    "per_gpu_train_batch_size": "per_device_train_batch_size",
    "push_to_hub_model_id": "hub_model_id",
    "text_column_name": "text_column_names",
    "tokenizer": "tokenizer_name",
}

# transformers' flag -> value -> the flags and values that replace it: none if the value is the only behaviour here.
VALUES: dict[str, dict[str, dict[str, str]]] = {
    "auto_find_batch_size": {"false": {}},
    "bf16": {"true": {"mixed_precision": "bf16"}, "false": {}},
    "bf16_full_eval": {"false": {}},
    "dataloader_drop_last": {"false": {}},
    "dataloader_pin_memory": {"true": {}},
    "fp16": {"true": {"mixed_precision": "fp16"}, "false": {}},
    "fp16_full_eval": {"false": {}},
    "ignore_mismatched_sizes": {"true": {}},
    "label_all_tokens": {"false": {}},
    "label_smoothing_factor": {"0": {}, "0.0": {}},
    "logging_strategy": {"steps": {}},
    "no_cuda": {"false": {}},
    "optim": {"adamw_torch": {"optim": "adamw"}, "adamw_torch_fused": {"optim": "adamw"}},
    "overwrite_cache": {"true": {}, "false": {}},
    "remove_unused_columns": {"true": {}},
    "return_entity_level_metrics": {"true": {}},
    "save_safetensors": {"true": {}},
    "tf32": {"true": {"matmul_precision": "high"}, "false": {"matmul_precision": "highest"}},
    "torch_compile": {"false": {}},
    "train_sampling_strategy": {
        "random": {"group_by_length": "false"},
        "group_by_length": {"group_by_length": "true"},
    },
    "use_cache": {"false": {}},
    "use_cpu": {"false": {}},
    "use_fast_tokenizer": {"true": {}},
    "with_tracking": {"true": {"report_to": "all"}, "false": {}},
}

LAUNCH = "accelerate launch --config_file configs/accelerate/FILE.yaml distributes a run: multi_gpu, fsdp2, ..."
PRECISION = "--mixed_precision no, fp16 or bf16 sets the precision, for evaluation, too"
LOADER = "--dataloader_num_workers is the only setting for preparing batches"
LOGIN = "log in with `hf auth login`, or set HF_TOKEN: arguments are recorded, so they must not hold a token"
COMPILE = "the scripts do not compile: models remove padding, so each batch has another shape"
CPU = "ACCELERATE_USE_CPU=true in the environment keeps a run on the CPU"
UPLOAD = "--push_to_hub uploads the output folder once, at the end, to the main branch of --hub_model_id"
EVALUATE = "--eval_strategy and --eval_steps set when to evaluate, always on a whole set; outputs are kept on the CPU"
SAVE = "a checkpoint holds everything that --resume needs; --save_strategy no saves only the final model"
REDUCE = "lower --per_device_train_batch_size, and raise --gradient_accumulation_steps by the same factor"
CURVES = "trackers name a run of the project elmo-gpt-bert after --output_dir; TensorBoard writes to OUTPUT_DIR/runs"
PRINTED = "the main process prints scores and, every --logging_steps, losses; only terminals show a progress bar"
RESUME = "--resume continues from the newest checkpoint in --output_dir, with the same random numbers and examples"
OPTIMIZER = "--optim has adamw and bert_adam, whose settings are --adam_beta1, --adam_beta2 and --adam_epsilon"
SCHEDULE = "--lr_scheduler_type, --warmup_steps or --warmup_ratio set the schedule"
DATA = "give --data_dir, --train_file, --validation_file and --test_file, or another flag that --help lists under data"
COLUMNS = "the text at the top of this script's file names the columns that it reads"
BATCHES = "an update weighs all its examples, or labelled tokens, equally, and an incomplete last batch is used"
UNKNOWN = "it is not supported here, leave it out"

# transformers' flag -> what to do instead, for flags and values that have no translation.
HINTS: dict[str, str] = {
    flag: hint
    for flags, hint in (
        ("bf16 fp16 bf16_full_eval fp16_full_eval half_precision_backend fp16_backend fp16_opt_level", PRECISION),
        ("tf32", "--matmul_precision highest, high or medium sets the precision of float32 matrix products"),
        ("torch_compile torch_compile_backend torch_compile_mode torchdynamo jit_mode_eval", COMPILE),
        ("use_cpu no_cuda use_mps_device use_ipex", CPU),
        ("fsdp fsdp_config deepspeed parallelism_config accelerator_config local_rank tpu_num_cores", LAUNCH),
        ("ddp_backend ddp_bucket_cap_mb ddp_broadcast_buffers ddp_find_unused_parameters", LAUNCH),
        ("ddp_static_graph fsdp_min_num_params fsdp_transformer_layer_cls_to_wrap sharded_ddp xpu_backend", LAUNCH),
        ("mp_parameters ray_scope dispatch_batches split_batches", LAUNCH),
        ("dataloader_pin_memory dataloader_persistent_workers dataloader_prefetch_factor", LOADER),
        ("dataloader_multiprocessing_context dataloader_in_order", LOADER),
        ("preprocessing_num_workers", "tokenizers use all processors by themselves"),
        ("dataloader_drop_last average_tokens_across_devices", BATCHES),
        (
            "train_sampling_strategy length_column_name",
            "examples are shuffled; --group_by_length sorts them in blocks",
        ),
        ("auto_find_batch_size torch_empty_cache_steps", REDUCE),
        (
            "gradient_checkpointing_kwargs activation_checkpointing_kwargs",
            "--gradient_checkpointing takes no settings",
        ),
        ("optim_args optim_target_modules adafactor", OPTIMIZER),
        ("lr_scheduler_kwargs", SCHEDULE),
        ("eval_delay eval_on_start eval_do_concat_batches eval_use_gather_object eval_accumulation_steps", EVALUATE),
        ("include_for_metrics include_inputs_for_metrics batch_eval_metrics prediction_loss_only", EVALUATE),
        ("evaluate_during_training", EVALUATE),
        (
            "greater_is_better",
            "losses are better when lower, other metrics when higher; --metric_for_best_model needs no more",
        ),
        ("save_only_model save_on_each_node save_safetensors enable_jit_checkpoint checkpointing_steps", SAVE),
        ("ignore_data_skip restore_callback_states_from_checkpoint", RESUME),
        ("hub_token push_to_hub_token token use_auth_token", LOGIN),
        ("hub_strategy hub_always_push hub_revision push_to_hub_organization", UPLOAD),
        ("run_name project logging_dir trackio_space_id trackio_bucket_id trackio_static_space_id", CURVES),
        ("with_tracking", "--report_to names the trackers"),
        ("log_level log_level_replica log_on_each_node disable_tqdm logging_strategy logging_first_step", PRINTED),
        ("logging_nan_inf_filter", "a loss that is not a number stops the run"),
        ("data_seed", "--seed also sets the order of the examples"),
        (
            "full_determinism",
            "on CPU, runs with the same number of threads compute the same bits; there is no such mode for GPUs here",
        ),
        ("config_name", "give a configuration JSON as --model_name_or_path, or change fields by --config_overrides"),
        ("model_type", "the checkpoint or configuration JSON in --model_name_or_path says which model it is"),
        ("cache_dir", "the environment variable HF_HOME sets where downloads are kept"),
        ("model_revision", "download it with `hf download ID --revision R --local-dir FOLDER`, and give the folder"),
        ("ignore_mismatched_sizes", "a head of another size is always replaced by a new one"),
        (
            "use_fast_tokenizer use_slow_tokenizer",
            "the fast tokenizer of --tokenizer_name is used if there is one",
        ),
        ("dataset_name dataset_config_name", DATA),
        ("text_column_name text_column_names label_column_name", COLUMNS),
        ("remove_unused_columns label_names", "each script chooses the columns that its model reads"),
        ("label_all_tokens", "the first sub-word of a word has its tag, as in the paper"),
        ("return_entity_level_metrics", "the scores of each type of entity are always reported"),
        ("overwrite_cache", "texts are tokenized again in each run, except with --state_cache or --window_cache"),
        ("use_cache", "training does not cache keys and values"),
        ("label_smoothing_factor neftune_noise_alpha use_liger_kernel liger_kernel_config past_index", UNKNOWN),
        ("debug skip_memory_metrics tpu_metrics_debug include_tokens_per_second", UNKNOWN),
        ("include_num_input_tokens_seen", UNKNOWN),
    )
    for flag in flags.split()
}


def translate(flag: str, values: list[str], script_flags: Container[str]) -> dict[str, list[str]] | None:
    """The flags of a script, with their values, that replace a flag of transformers' example scripts.

    A flag in `script_flags` stays as it is. A flag without a value is true. Returns None if the flag is unknown here
    and in transformers. Raises ValueError, with what to do instead, if there is no replacement.
    """
    value = values[0].lower() if values else "true"
    if len(values) <= 1 and value in VALUES.get(flag, {}):
        return {name: [replacement] for name, replacement in VALUES[flag][value].items()}
    if flag == "resume_from_checkpoint":  # flags.py checks that a checkpoint is the one that --resume loads
        return {"resume": ["false" if value == "false" else "true"]}
    if flag == "warmup_steps" and _is_share(value):  # a share of the updates, as in transformers 5
        return {"warmup_ratio": values}
    if flag in ("eval_steps", "logging_steps", "save_steps") and _is_share(value):
        raise InputError(f"{values[0]} would be a share of the updates: give a number of updates instead")
    for name in (flag, NAMES.get(flag)):
        if name in script_flags:
            return {name: values}
    if flag in HINTS:
        raise InputError(HINTS[flag])
    return None


def _is_share(value: str) -> bool:
    try:
        return 0 < float(value) < 1
    except ValueError:
        return False
