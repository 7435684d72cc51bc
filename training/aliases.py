"""The flags of transformers' own example scripts, past and present, that have another name or no place here.

A flag that a script has itself is its own, whatever stands here. Keys of recipes are flags, too.
"""

from collections.abc import Container

from training.errors import InputError


# Their flag -> ours with the same values.
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

# Flag -> each value that we know by other words, and our flags for it: none where it says what is so here anyway.
VALUES: dict[str, dict[str, dict[str, str]]] = {
    "bf16": {"true": {"mixed_precision": "bf16"}, "false": {}},
    "dataloader_drop_last": {"false": {}},
    "dataloader_pin_memory": {"true": {}},
    "fp16": {"true": {"mixed_precision": "fp16"}, "false": {}},
    "label_all_tokens": {"false": {}},
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
    "with_tracking": {"true": {"report_to": "all"}},
}

LAUNCH = "accelerate launch --config_file configs/accelerate/FILE.yaml spreads a run: multi_gpu, fsdp2, deepspeed_..."
PRECISION = "--mixed_precision no, fp16 or bf16 says how to compute, when evaluating, too"
LOADER = "--dataloader_num_workers is all that can be said of how batches are made ready"
LOGIN = "log in with `hf auth login`, or set HF_TOKEN: a token has no place among recorded arguments"
COMPILE = "the scripts do not compile: they leave padding out, so each batch has another shape"
CPU = "ACCELERATE_USE_CPU=true in the environment keeps a run on the CPU"
UPLOAD = "--push_to_hub uploads the output folder once, at the end, to the main branch of --hub_model_id"
EVALUATE = "--eval_strategy and --eval_steps say when to evaluate: all of a set, whose outputs are gathered on the CPU"
SAVE = "a checkpoint holds all that --resume needs; with --save_strategy no only the final model is saved"
REDUCE = "lower --per_device_train_batch_size, and raise --gradient_accumulation_steps by the same factor"
CURVES = "curves carry the name of --output_dir, TensorBoard's are in OUTPUT_DIR/runs; the project is elmo-gpt-bert"
PRINTED = "the main process prints losses each --logging_steps, and scores; a bar is drawn on terminals alone"
RESUME = "--resume goes on from the newest checkpoint in --output_dir, to the same bits"
OPTIMIZER = "--optim has adamw and bert_adam, whose settings are --adam_beta1, --adam_beta2 and --adam_epsilon"
SCHEDULE = "--lr_scheduler_type, --warmup_steps or --warmup_ratio make the schedule"
DATA = "give --data_dir, --train_file, --validation_file and --test_file, or what else --help lists under data"
COLUMNS = "the guide of this script, at the top of its file, names the columns that it reads"
BATCHES = "an update weighs all its examples, or labelled tokens, equally, and the last batch is used, too"
UNKNOWN = "there is no such thing here, leave it out"

# What to say of all others.
HINTS: dict[str, str] = {
    flag: hint
    for flags, hint in (
        ("bf16 fp16 bf16_full_eval fp16_full_eval half_precision_backend fp16_backend fp16_opt_level", PRECISION),
        ("tf32", "--matmul_precision highest, high or medium says how float32 is multiplied"),
        ("torch_compile torch_compile_backend torch_compile_mode torchdynamo jit_mode_eval", COMPILE),
        ("use_cpu no_cuda use_mps_device use_ipex", CPU),
        ("fsdp fsdp_config deepspeed parallelism_config accelerator_config local_rank tpu_num_cores", LAUNCH),
        ("ddp_backend ddp_bucket_cap_mb ddp_broadcast_buffers ddp_find_unused_parameters ddp_timeout", LAUNCH),
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
            "--metric_for_best_model knows that losses are better when lower, and scores when higher",
        ),
        ("save_only_model save_on_each_node save_safetensors enable_jit_checkpoint checkpointing_steps", SAVE),
        ("ignore_data_skip restore_callback_states_from_checkpoint", RESUME),
        ("hub_token push_to_hub_token token use_auth_token", LOGIN),
        ("hub_strategy hub_always_push hub_revision push_to_hub_organization", UPLOAD),
        ("run_name project logging_dir trackio_space_id trackio_bucket_id trackio_static_space_id", CURVES),
        ("with_tracking", "--report_to names who draws the curves"),
        ("log_level log_level_replica log_on_each_node disable_tqdm logging_strategy logging_first_step", PRINTED),
        ("logging_nan_inf_filter", "a loss that is not a number stops the run"),
        ("data_seed", "--seed also decides on the order of the examples"),
        (
            "full_determinism",
            "on CPU a run repeats itself to the bit, with as many threads; GPUs have no such mode here",
        ),
        ("config_name", "give a configuration's JSON as --model_name_or_path, or change fields by --config_overrides"),
        ("model_type", "a checkpoint, or a configuration's JSON, as --model_name_or_path knows its model"),
        ("cache_dir", "HF_HOME in the environment says where downloads are kept"),
        ("model_revision", "download it with `hf download ID --revision R --local-dir FOLDER`, and give the folder"),
        ("ignore_mismatched_sizes", "a head of another size is made anew in any case"),
        (
            "use_fast_tokenizer use_slow_tokenizer",
            "--tokenizer_name decides; its fast tokenizer is used if it has one",
        ),
        ("dataset_name dataset_config_name", DATA),
        ("text_column_name text_column_names label_column_name", COLUMNS),
        ("remove_unused_columns label_names", "each script gives its model the columns that it reads"),
        ("label_all_tokens", "the first sub-word of a word carries its tag, as in the paper"),
        ("return_entity_level_metrics", "the scores of each type are always reported"),
        ("overwrite_cache", "texts are tokenised anew in each run, unless there is a --state_cache or --window_cache"),
        ("use_cache", "training keeps no keys and values"),
        ("label_smoothing_factor neftune_noise_alpha use_liger_kernel liger_kernel_config past_index", UNKNOWN),
        ("debug skip_memory_metrics tpu_metrics_debug include_tokens_per_second", UNKNOWN),
        ("include_num_input_tokens_seen", UNKNOWN),
    )
    for flag in flags.split()
}


def translate(flag: str, values: list[str], own: Container[str]) -> dict[str, list[str]] | None:
    """The flags of a script, of those it has of its `own`, that stand for one of transformers' and its values.

    None where it is known to neither. A flag without a value is true. Raises ValueError, with what to do instead,
    where there is nothing like it.
    """
    value = values[0].lower() if values else "true"
    if len(values) <= 1 and value in VALUES.get(flag, {}):
        return {name: [ours] for name, ours in VALUES[flag][value].items()}
    if flag == "resume_from_checkpoint":  # where it names one, flags.py checks that it is the run's own
        return {"resume": ["false" if value == "false" else "true"]}
    if flag == "warmup_steps" and _is_share(value):  # of the updates, as transformers 5 has it
        return {"warmup_ratio": values}
    if flag in ("eval_steps", "logging_steps", "save_steps") and _is_share(value):
        raise InputError(f"{values[0]} would be a share of the updates, which is not known here: give their number")
    for name in (flag, NAMES.get(flag)):
        if name in own:
            return {name: values}
    if flag in HINTS:
        raise InputError(HINTS[flag])
    return None


def _is_share(value: str) -> bool:
    try:
        return 0 < float(value) < 1
    except ValueError:
        return False
