"""LoRA (Hu et al. 2021, arXiv 2106.09685): a small adapter on a model whose own weights stay as they are.

    python examples/lora.py run_glue configs/bert/sst2_small.yaml --data_dir glue --output_dir adapters/sst2
    python examples/lora.py run_ner configs/bert/wnut17_small.yaml --data_dir wnut17 --output_dir adapters/wnut17

The first word is the script whose data, features and scores are used; the others are its flags, as far as Trainer has
them. To each projection W x of a layer, peft adds the product B A x of two matrices of rank 16 (section 4.1).
OUTPUT_DIR receives the adapter, metrics.json with its scores, and base.json with the checksum of its model. Scripts
read it as any --model_name_or_path, and refuse it with other weights below it.
"""

import argparse
import importlib
from dataclasses import fields
from pathlib import Path

import torch
from accelerate import Accelerator
from peft import LoraConfig, get_peft_model
from transformers import Trainer, TrainingArguments, set_seed

from elmo_gpt_bert.training.arguments import EVALUATION, RunArguments
from elmo_gpt_bert.training.files import file_digest, write_json
from elmo_gpt_bert.training.flags import parse_arguments
from elmo_gpt_bert.training.task import evaluate, results_of


ARGUMENTS = {"run_glue": "GlueArguments", "run_ner": "NerArguments"}
KINDS = {"run_glue": "SEQ_CLS", "run_ner": "TOKEN_CLS"}
RANK = 16
TAKEN = {"learning_rate", "per_device_train_batch_size", "gradient_accumulation_steps", "num_train_epochs", "seed"}
TAKEN |= {"weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon", "max_grad_norm", "max_steps"}
USED = {*EVALUATION, *TAKEN, "do_train", "warmup_steps", "warmup_ratio", "pad_to_max_length"}
USED -= {"implementation", "matmul_precision"}  # Trainer has neither: the class is transformers'


def main(argv: list[str] | None = None) -> dict[str, float]:
    parser = argparse.ArgumentParser("examples/lora.py", description=__doc__.splitlines()[0])
    parser.add_argument("script", choices=ARGUMENTS, help="whose data, features and scores are used")
    parser.add_argument("flags", nargs=argparse.REMAINDER, help="of the script")
    name, words = vars(parser.parse_args(argv)).values()
    script = importlib.import_module(f"elmo_gpt_bert.scripts.{name}")
    args = parse_arguments(getattr(script, ARGUMENTS[name]), words)
    if Path(args.output_dir, "metrics.json").exists() and not args.overwrite_output_dir:
        parser.error(f"{args.output_dir} holds a finished run: choose another --output_dir")
    rest = {field.name: field.default for field in fields(RunArguments) if field.name not in USED}
    print("no effect here:", *[f"--{name}" for name, usual in rest.items() if vars(args)[name] != usual] or ["none"])
    set_seed(args.seed)
    task = script.load(args)
    checksum = file_digest(Path(args.model_name_or_path, "model.safetensors"))
    task.featurize(args)
    layers, new = r".*encoder\.layer.*\.(query|key|value|dense)", ["classifier", "pooler"]  # which a masked LM lacks
    lora = LoraConfig(task_type=KINDS[name], r=RANK, lora_alpha=2 * RANK, target_modules=layers, modules_to_save=new)
    task.model = model = get_peft_model(task.model, lora)
    model.print_trainable_parameters()
    settings = TrainingArguments(
        **{name: getattr(args, name) for name in TAKEN},
        output_dir=args.output_dir,
        dataloader_num_workers=args.dataloader_num_workers or 0,
        fp16=args.mixed_precision == "fp16",
        warmup_steps=args.warmup_steps or args.warmup_ratio,  # below 1, it is a share of the updates
        bf16=args.mixed_precision == "bf16",
        use_cpu=not torch.cuda.is_available(),
        save_strategy="no",
    )
    Trainer(model, settings, data_collator=task.collate, train_dataset=task.features["train"]).train()
    compute = task.build_compute(args, Accelerator())
    results = results_of({name: evaluate(task, split, compute) for name, split in task.evaluation_splits.items()})
    model.save_pretrained(args.output_dir)
    write_json(Path(args.output_dir, "metrics.json"), results)
    base = {name: getattr(model.config, name) for name in ("id2label", "problem_type")}
    write_json(Path(args.output_dir, "base.json"), {"sha256": checksum} | base)
    return results


if __name__ == "__main__":
    print(main())
