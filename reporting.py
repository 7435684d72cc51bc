"""What a run leaves behind: metrics.json, the checkpoint and its model card, on disk and on the Hub."""

import dataclasses
import importlib.metadata
import json
import os
import platform
import re
from pathlib import Path

import huggingface_hub
import torch
import yaml
from accelerate import Accelerator
from huggingface_hub import EvalResult, ModelCard, ModelCardData
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from arguments import RunArguments, hub_model_id


def remove_earlier_results(args: RunArguments, accelerator: Accelerator) -> None:
    """Removes what an earlier run wrote of its own scores to output_dir: beside the new ones it would pass for theirs.

    To be called when all that a run reads has been read, so that a typo costs nothing. Checkpoint and card stay until
    a new one replaces them.
    """
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        for path in [*Path(args.output_dir).glob("predictions*.tsv"), Path(args.output_dir, "metrics.json")]:
            path.unlink(missing_ok=True)


def finish(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    results: dict[str, float],
    data: dict[str, str],
    args: RunArguments,
    accelerator: Accelerator,
) -> None:
    """Writes, after training, the checkpoint and its card, then metrics.json; pushes them; prints the results.

    `data` says what the scores were measured on: task_type, dataset_type, ... of huggingface_hub's EvalResult.
    """
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        output = Path(args.output_dir)
        if args.do_train:
            model.save_pretrained(output)
            tokenizer.save_pretrained(output)
            model_card(model, results, data, args, accelerator.num_processes).save(output / "README.md")
        record = {
            **results,
            "seed": args.seed,
            "args": dataclasses.asdict(args),
            "versions": versions(),
            "hardware": hardware(accelerator),
        }
        write_atomically(output / "metrics.json", json.dumps(record, indent=2, allow_nan=False) + "\n")
        for name, value in results.items():
            print(f"  {name:32}{value:12,d}" if isinstance(value, int) else f"  {name:32}{value:12.4f}")
        print(f"written to {output}: {', '.join(sorted(path.name for path in output.iterdir()))}")
        if args.push_to_hub:
            hub = huggingface_hub.HfApi()
            repo_id = hub.create_repo(hub_model_id(args), exist_ok=True).repo_id  # with its owner
            print(f"pushed to {hub.upload_folder(repo_id=repo_id, folder_path=output)}")
    accelerator.end_training()


def write_atomically(path: Path, text: str) -> None:
    """A reader finds the old file or the whole new one, never half of it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)


def versions() -> dict[str, str]:
    packages = ["transformers", "accelerate", "datasets", "elmo-gpt-bert"]
    found = {"python": platform.python_version(), "torch": torch.__version__}  # with its build, +cpu or +cu130
    for name in packages:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:  # run from a checkout
            found[name] = "not installed"
    return found


def hardware(accelerator: Accelerator) -> dict[str, str | int]:
    return {
        "device": device_name(accelerator.device),
        "machine": platform.machine(),
        "processes": accelerator.num_processes,
        "threads": torch.get_num_threads(),
    }


def device_name(device: torch.device) -> str:
    """The GPU's or the processor's own name."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        model = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text(encoding="utf-8"))
    except OSError:
        model = None
    return model.group(1) if model else platform.processor() or platform.machine()


def model_card(
    model: PreTrainedModel, results: dict[str, float], data: dict[str, str], args: RunArguments, processes: int
) -> ModelCard:
    """The Hub's README: the scores, for readers and as model-index, and the recipe that repeats the run."""
    beside = ("eval_loss", "eval_loss_mm", "eval_runtime")  # not scores of the task
    scores = {name: value for name, value in results.items() if name.startswith("eval_") and name not in beside}
    title = hub_model_id(args).split("/")[-1]
    card = ModelCardData(
        model_name=title,
        library_name="transformers",
        pipeline_tag=data["task_type"],
        base_model=None if Path(args.model_name_or_path).exists() else args.model_name_or_path,
        datasets=data["dataset_type"] if "/" in data["dataset_type"] else None,
        eval_results=[
            EvalResult(**data, metric_type=name.removeprefix("eval_"), metric_value=value)
            for name, value in scores.items()
        ]
        or None,
    )
    rows = [f"| {name.removeprefix('eval_')} | {value:.4f} |" for name, value in scores.items()]
    table = "\n".join(["| validation | score |", "|---|---|", *rows]) if rows else "It was not evaluated."
    origin = "random weights" if args.model_name_or_path.endswith(".json") else f"`{args.model_name_or_path}`"
    batch = args.per_device_train_batch_size * args.gradient_accumulation_steps * processes
    changed = {
        field.name: getattr(args, field.name)
        for field in dataclasses.fields(args)
        if getattr(args, field.name) != field.default
    }
    return ModelCard(f"""---
{card.to_yaml()}
---

# {title}

`{type(model).__name__}` from {origin}, trained on {data["dataset_name"]}.

{table}

The recipe that repeats this run, on {processes} process{"es" if processes > 1 else ""}, so with batches of {batch} \
examples; what it does not name has its default:

```yaml
{yaml.safe_dump(changed, sort_keys=False).strip()}
```
""")
