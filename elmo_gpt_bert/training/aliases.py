"""The flags of transformers' example scripts, past and present, that have another name or form in this project.

A flag that a script has itself is not looked up here. Keys of recipes are flags, too.
"""

from typing import Any


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

# A flag of both -> transformers' value -> this project's.
CHOICES = {"optim": {"adamw_torch": "adamw", "adamw_torch_fused": "adamw"}}

# transformers' flag -> its value -> the flags that it sets here: none if the value is the only behaviour.
VALUES: dict[str, dict[str, dict[str, Any]]] = {
    "auto_find_batch_size": {"false": {}},
    "bf16": {"true": {"mixed_precision": "bf16"}, "false": {"bf16": "false"}},  # for `switch_off`
    "bf16_full_eval": {"false": {}},
    "dataloader_drop_last": {"false": {}},
    "dataloader_pin_memory": {"true": {}},
    "fp16": {"true": {"mixed_precision": "fp16"}, "false": {"fp16": "false"}},
    "fp16_full_eval": {"false": {}},
    "ignore_mismatched_sizes": {"true": {}},
    "label_all_tokens": {"false": {}},
    "label_smoothing_factor": {"0": {}, "0.0": {}},
    "logging_strategy": {"steps": {}},
    "no_cuda": {"false": {}},
    "overwrite_cache": {"true": {}, "false": {}},
    "remove_unused_columns": {"true": {}},
    "resume_from_checkpoint": {"true": {"resume": True}, "false": {"resume": False}},  # or a path
    "return_entity_level_metrics": {"true": {}},
    "save_safetensors": {"true": {}},
    "tf32": {"true": {"matmul_precision": "high"}, "false": {"matmul_precision": "highest"}},
    "torch_compile_backend": {"inductor": {}},
    "train_sampling_strategy": {
        "random": {"group_by_length": False},
        "group_by_length": {"group_by_length": True},
    },
    "use_cache": {"false": {}},
    "use_cpu": {"false": {}},
    "use_fast_tokenizer": {"true": {}},
    "with_tracking": {"true": {"report_to": "all"}, "false": {}},
}

PRECISION = "--mixed_precision auto, no, fp16 or bf16 sets the precision, for evaluation, too"
COMPILE = "--torch_compile compiles by inductor"
CPU = "ACCELERATE_USE_CPU=true in the environment keeps a run on the CPU"
LAUNCH = "accelerate launch --config_file configs/accelerate/FILE.yaml distributes a run: multi_gpu, fsdp2, ..."
LOGIN = "log in with `hf auth login`, or set HF_TOKEN: arguments are recorded, so they must not hold a token"
CURVES = "trackers name a run of the project elmo-gpt-bert after --output_dir; TensorBoard writes to OUTPUT_DIR/runs"
PRINTED = "the main process prints scores and, every --logging_steps, losses; only terminals show a progress bar"
TOKENIZER = "the fast tokenizer of --tokenizer_name is used if there is one"

# transformers' flag -> what to do instead, for flags and values that have no translation.
HINTS = {
    "bf16": PRECISION,
    "fp16": PRECISION,
    "bf16_full_eval": PRECISION,
    "fp16_full_eval": PRECISION,
    "torch_compile_backend": COMPILE,
    "use_cpu": CPU,
    "no_cuda": CPU,
    "accelerator_config": LAUNCH,
    "ddp_backend": LAUNCH,
    "ddp_find_unused_parameters": LAUNCH,
    "deepspeed": LAUNCH,
    "fsdp": LAUNCH,
    "fsdp_config": LAUNCH,
    "local_rank": LAUNCH,
    "hub_token": LOGIN,
    "push_to_hub_token": LOGIN,
    "token": LOGIN,
    "use_auth_token": LOGIN,
    "logging_dir": CURVES,
    "run_name": CURVES,
    "disable_tqdm": PRINTED,
    "log_level": PRINTED,
    "logging_first_step": PRINTED,
    "logging_strategy": PRINTED,
    "use_fast_tokenizer": TOKENIZER,
    "use_slow_tokenizer": TOKENIZER,
    "auto_find_batch_size": "lower --per_device_train_batch_size, and raise --gradient_accumulation_steps as much",
    "cache_dir": "the environment variable HF_HOME sets where downloads are kept",
    "checkpointing_steps": "--save_strategy and --save_steps say when to save a checkpoint",
    "config_name": "give a configuration JSON as --model_name_or_path, or change fields by --config_overrides",
    "data_seed": "--seed also sets the order of the examples",
    "dataset_name": "give --data_dir, --train_file, --validation_file and --test_file, or what --help lists for data",
    "full_determinism": "on CPU, runs with as many threads compute the same bits; GPUs have no such mode here",
    "greater_is_better": "--metric_for_best_model says it: losses are better when lower, other metrics when higher",
    "hub_strategy": "--push_to_hub uploads the output folder once, at the end",
    "model_revision": "download it with `hf download ID --revision R --local-dir FOLDER`, and give the folder",
    "model_type": "the checkpoint or configuration JSON in --model_name_or_path says which model it is",
    "preprocessing_num_workers": "tokenizers use all processors by themselves",
    "save_only_model": "a checkpoint holds all that --resume needs; --save_strategy no saves only the final model",
}
