"""Chooses the precision of a run: what `auto` stands for in --mixed_precision and --matmul_precision."""

import contextlib
import dataclasses
import os
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch
from accelerate import PartialState
from transformers import PreTrainedConfig

from elmo_gpt_bert.training.arguments import AUTO, RunArguments
from elmo_gpt_bert.training.files import read_json_object
from elmo_gpt_bert.training.output_folder import DIVERGED, METRICS
from elmo_gpt_bert.training.processes import on_main


Arguments = TypeVar("Arguments", bound=RunArguments)
Precision = dict[str, str]  # by the names of the flags

FLOAT32: Precision = {"mixed_precision": "no", "matmul_precision": "highest"}
BFLOAT16: Precision = {"mixed_precision": "bf16", "matmul_precision": "high"}
# The files with a run's identity, seen from its output folder or from a checkpoint of it.
RECORDS = (METRICS, "progress.json", "checkpoint-*/progress.json")
RECORDS += (f"seed-*/{METRICS}", f"seed-*/{DIVERGED}", "seed-*/checkpoint-*/progress.json")


def choose_precision(args: Arguments) -> Arguments:
    """The arguments with a precision in place of `auto`; a line on the console says where it is not float32.

    A run that --resume continues keeps its precision, unless the launcher was told one. On a GPU that computes in
    bfloat16, a run that trains takes bf16, and one that only evaluates takes what the run of its model recorded. ELMo
    stays in float32, because its scores in bf16 have not been measured. Every process must call it.
    """
    precision, reason = on_main(partial(_choose, args))
    changes = {name: value for name, value in precision.items() if getattr(args, name) == AUTO}
    name = changes.get("mixed_precision", "no")
    if name != "no":
        PartialState().print(f"--mixed_precision auto: {name}, as {reason}; --mixed_precision no computes in float32")
    return dataclasses.replace(args, **changes)


def _choose(args: RunArguments) -> tuple[Precision, str]:
    """The precision that `auto` stands for, and a reason."""
    saved = _recorded(Path(args.output_dir)) if args.resume and args.do_train else {}
    launched = os.environ.get("ACCELERATE_MIXED_PRECISION")
    if launched in ("fp16", "bf16"):
        return FLOAT32 | saved | {"mixed_precision": launched}, "the launcher was told"
    if saved:
        return FLOAT32 | saved, f"the run in {args.output_dir} began"
    gpu = _gpu_with_bfloat16()
    if gpu is None or args.mixed_precision != AUTO:
        return FLOAT32, ""
    if not args.do_train:
        return FLOAT32 | _recorded(Path(args.model_name_or_path)), f"the run of {args.model_name_or_path} computed"
    return (FLOAT32, "") if _is_elmo(args.model_name_or_path) else (BFLOAT16, f"the GPU {gpu} has it")


def _recorded(folder: Path) -> Precision:
    """The precision of the run that wrote to a folder; empty where no record of it can be read."""
    for path in (path for name in RECORDS for path in folder.glob(name)):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):  # damaged: others report it
            identity = read_json_object(path)["identity"]
            return {name: identity[name] for name in FLOAT32}
    return {}


def _gpu_with_bfloat16() -> str | None:
    """The name of this process's GPU if it computes in bfloat16; None on other devices."""
    device = PartialState().device
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < (8, 0):
        return None
    return torch.cuda.get_device_name(device)


def _is_elmo(name: str) -> bool:
    """Whether a model is of the family of ELMo, by its configuration alone."""
    with contextlib.suppress(Exception):  # `load_config` reports what is wrong with it
        return PreTrainedConfig.get_config_dict(name)[0]["model_type"] == "elmo"
    return False
