"""LoRA (Hu et al. 2021, arXiv 2106.09685): a small adapter on a model whose own weights stay as they are.

    python examples/lora.py run_glue configs/bert/sst2_small.yaml --data_dir glue --output_dir adapters/sst2
    python examples/lora.py run_ner configs/bert/wnut17_small.yaml --data_dir wnut17 --output_dir adapters/wnut17

The first word is the script whose data, features and scores are used; the others are its flags. peft adds to each
projection W x of a layer the product B A x of two matrices of rank 16 (section 4.1), and Trainer trains them with the
classifier. OUTPUT_DIR receives the adapter, metrics.json with its scores, and base.json with the checksum of the model
that it belongs to. The scripts read it as any --model_name_or_path, and refuse it with other weights below it.
"""

import argparse
import importlib
from pathlib import Path

import torch
from accelerate import Accelerator
from peft import LoraConfig, get_peft_model
from transformers import Trainer, TrainingArguments, set_seed

from elmo_gpt_bert.training.files import file_digest, write_json
from elmo_gpt_bert.training.flags import parse_arguments
from elmo_gpt_bert.training.task import evaluate, results_of


ARGUMENTS = {"run_glue": "GlueArguments", "run_ner": "NerArguments"}
KINDS = {"run_glue": "SEQ_CLS", "run_ner": "TOKEN_CLS"}
RANK = 16


def main(argv: list[str] | None = None) -> dict[str, float]:
    parser = argparse.ArgumentParser("examples/lora.py", description=__doc__.splitlines()[0])
    parser.add_argument("script", choices=ARGUMENTS, help="whose data, features and scores are used")
    parser.add_argument("flags", nargs=argparse.REMAINDER, help="of the script")
    name, words = vars(parser.parse_args(argv)).values()
    script = importlib.import_module(f"elmo_gpt_bert.scripts.{name}")
    args = parse_arguments(getattr(script, ARGUMENTS[name]), words)
    set_seed(args.seed)
    task = script.load(args)
    checksum = file_digest(Path(args.model_name_or_path, "model.safetensors"))
    task.featurize(args)
    layers, new = r".*encoder\.layer.*\.(query|key|value|dense)", ["classifier", "pooler"]  # which a masked LM lacks
    adapter = LoraConfig(
        task_type=KINDS[name], r=RANK, lora_alpha=2 * RANK, target_modules=layers, modules_to_save=new
    )
    task.model = model = get_peft_model(task.model, adapter)
    model.print_trainable_parameters()
    settings = TrainingArguments(
        output_dir=args.output_dir,
        learning_rate=args.learning_rate,
        per_device_train_batch_size=args.per_device_train_batch_size,
        num_train_epochs=args.num_train_epochs,
        max_steps=args.max_steps,
        warmup_steps=args.warmup_ratio,  # below 1, it is a share of the updates
        weight_decay=args.weight_decay,
        bf16=args.mixed_precision == "bf16",
        use_cpu=not torch.cuda.is_available(),
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        seed=args.seed,
    )
    Trainer(model, settings, data_collator=task.collate, train_dataset=task.features["train"]).train()
    compute = task.build_compute(args, Accelerator())
    results = results_of({name: evaluate(task, split, compute) for name, split in task.evaluation_splits.items()})
    model.save_pretrained(args.output_dir)
    write_json(Path(args.output_dir, "metrics.json"), results)
    base = {name: getattr(model.config, name) for name in ("id2label", "problem_type")}
    write_json(Path(args.output_dir, "base.json"), {"sha256": checksum} | base)
    print(results)
    return results


if __name__ == "__main__":
    main()
