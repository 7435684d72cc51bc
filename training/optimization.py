"""What a run's parameters learn with: the optimizer, one learning rate a layer, top layers that start anew."""

import itertools
import math
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from transformers import PreTrainedModel

from training.arguments import RunArguments


def count_updates(examples: int, args: RunArguments, processes: int) -> tuple[int, int]:
    """(updates of the whole run, updates an epoch) over `examples`."""
    per_update = args.per_device_train_batch_size * args.gradient_accumulation_steps * processes
    per_epoch = math.ceil(examples / per_update)
    total = args.max_steps if args.max_steps > 0 else math.ceil(round(args.num_train_epochs * per_epoch, 6))
    return total, per_epoch


def warm_up_updates(args: RunArguments, total: int) -> int:
    """How many of the `total` updates have a rising learning rate."""
    return args.warmup_steps or math.ceil(round(args.warmup_ratio * total, 6))  # 0.1 * 30 is a little more than 3


LENGTH = ("max_steps", "num_train_epochs", "updates")
WARM_UP = ("warmup_ratio", "warmup_steps", "warm-up")


def schedule(examples: int, args: RunArguments, processes: int) -> dict[str, int]:
    """What `may_differ` must know of a run over so many `examples`, for its identity."""
    total, per_epoch = count_updates(examples, args, processes)
    return {"updates": total, "updates an epoch": per_epoch, "warm-up": warm_up_updates(args, total)}


def may_differ(ours: dict[str, Any], theirs: dict[str, Any], checkpoint: Path, update: int) -> set[str]:
    """What of their identities may differ between a run and the longer one that goes on from its `checkpoint`.

    A run may be longer where it has done until `update` what the longer one would have done: its learning rate does
    not depend on its end. Raises ValueError, with what to do instead, where another length was asked for in vain.
    """
    changed = [name for name in LENGTH[:2] if ours[name] != theirs.get(name)]
    same_warm_up = ours["warm-up"] == theirs.get("warm-up")
    if same_warm_up and ours["updates"] == theirs["updates"]:
        return {*LENGTH, *WARM_UP}  # the same in other words
    if not changed or "updates" not in theirs:
        return set()
    reason = None
    if ours["updates"] < theirs["updates"]:
        reason = f"that run has {theirs['updates']} updates, and goes on to as many or more"
    elif not ours["lr_scheduler_type"].startswith("constant"):
        reason = f"with --lr_scheduler_type {ours['lr_scheduler_type']} the learning rate depends on the last update"
    elif not same_warm_up:
        reason = f"its warm-up has {theirs['warm-up']} updates, not {ours['warm-up']}; --warmup_steps keeps it"
    elif update == theirs["updates"] and _chose_at_its_end(theirs):
        reason = f"it chose among models after update {update}, its last, where a longer run evaluates none"
    if reason:
        raise ValueError(
            f"{checkpoint} is of a run with {changed[0]} {theirs[changed[0]]}, not {ours[changed[0]]}: {reason}. To "
            f"train on from there, begin another run with --model_name_or_path {checkpoint} and its own --output_dir"
        )
    return {*LENGTH, *WARM_UP}


def _chose_at_its_end(run: dict[str, Any]) -> bool:
    """Whether the best model, or early stopping, depends on an evaluation that took place because the run ended."""
    chooses = run["load_best_model_at_end"] or run["early_stopping_patience"] is not None
    by_steps = run["eval_strategy"] == "steps" or (run["eval_strategy"] is None and run["eval_steps"] is not None)
    return chooses and run["updates"] % (run["eval_steps"] if by_steps else run["updates an epoch"]) != 0


def build_optimizer(model: PreTrainedModel, args: RunArguments) -> torch.optim.AdamW:
    """AdamW, or BertAdam, that decays matrices and embeddings but not biases and LayerNorms, as both papers.

    By dimension, not by name: lists of names miss a model's own LayerNorms. With `layerwise_lr_decay` the groups of
    parameters differ in their learning rates too, the top's first; schedulers scale each group's own.
    """
    depths = _depths(model) if args.layerwise_lr_decay != 1 else {}
    groups = defaultdict(list)
    for parameter in model.parameters():  # each once, tied or not
        if parameter.requires_grad:
            groups[depths.get(parameter, 0), parameter.dim() <= 1].append(parameter)
    settings = [
        {
            "params": groups[depth, flat],
            "lr": args.learning_rate * args.layerwise_lr_decay**depth,
            "weight_decay": 0.0 if flat else args.weight_decay,
        }
        for depth, flat in sorted(groups)
    ]
    devices = {parameter.device.type for parameters in groups.values() for parameter in parameters}
    fused = devices <= {"cpu", "cuda", "mps", "xpu"}
    betas = (args.adam_beta1, args.adam_beta2)
    optimizer = BertAdam if args.optim == "bert_adam" else torch.optim.AdamW
    return optimizer(settings, lr=args.learning_rate, betas=betas, eps=args.adam_epsilon, fused=fused)


class BertAdam(torch.optim.AdamW):
    """The optimizer of BERT's released code (AdamWeightDecayOptimizer in its optimization.py):

        m <- b1 m + (1 - b1) g
        v <- b2 v + (1 - b2) g^2
        p <- p - lr (m / (sqrt(v) + eps) + weight_decay p)

    AdamW divides m by 1 - b1^t and v by 1 - b2^t, t counting the updates, because both averages start at zero; this
    optimizer does not, so its early updates are up to 6.6 times as long (betas 0.9 and 0.999). On small data sets that
    makes fine-tuning unstable (Zhang et al. 2021, section 4).

    Where t is infinite both divisors are 1: this is AdamW that counts from there, with all of AdamW's kernels.
    """

    def _init_group(self, group: dict[str, Any], *lists: list) -> bool:
        """Collects the group's tensors, as in AdamW, which makes a parameter's state at its first gradient."""
        new = [p for p in group["params"] if p.grad is not None and not self.state.get(p)]
        has_complex = super()._init_group(group, *lists)
        for parameter in new:
            self.state[parameter]["step"].fill_(math.inf)
        return has_complex


def move_schedule(scheduler: LambdaLR, update: int) -> None:
    """Puts a new schedule where it is after so many updates: their number is all that its learning rates depend on."""
    scheduler.load_state_dict({**scheduler.state_dict(), "last_epoch": update - 1, "_step_count": update + 1})
    scheduler.step()


@torch.no_grad()
def reinitialize_layers(model: PreTrainedModel, count: int) -> None:
    """Gives the `count` top layers, and what stands above them in the base model (BERT's pooler), new random weights.

    The layers nearest to pre-training's task are the worst start for another (Zhang et al. 2021, section 5). Weights
    come from torch's random generator. Raises ValueError where there are not so many layers.
    """
    if count == 0:
        return
    layers = _layers(model, "--reinit_layers")
    if count > len(layers):
        raise ValueError(f"--reinit_layers {count}: {type(model).__name__} has {len(layers)} layers, give no more")
    # A whole new model, because some modules draw their weights when they are made and cannot be told to again.
    new = type(model)(model.config).base_model
    first = next(layers[-count].parameters())
    for name, parameter in itertools.dropwhile(lambda item: item[1] is not first, model.base_model.named_parameters()):
        parameter.copy_(new.get_parameter(name))


def _depths(model: PreTrainedModel) -> dict[nn.Parameter, int]:
    """How many times the learning rate of a parameter is decayed; the rest, pooler and heads, not at all.

    1 for the top layer, one more for each layer below, and one more for the embeddings: each rate a factor below the
    one above it (Howard and Ruder 2018, section 3.2), counted as in the code of Zhang et al. 2021. In ELECTRA's code
    layers and embeddings have one more.
    """
    layers = _layers(model, "--layerwise_lr_decay")
    depths = {p: depth for depth, layer in enumerate(reversed(layers), start=1) for p in layer.parameters()}
    below = itertools.takewhile(lambda parameter: parameter not in depths, model.base_model.parameters())
    return dict.fromkeys(below, len(layers) + 1) | depths


def _layers(model: PreTrainedModel, flag: str) -> nn.ModuleList:
    """The layers, from the lowest; modules that the base model lists before them are below, those after them above.

    Raises ValueError for models that share one layer's weights or keep their layers otherwise.
    """
    count = getattr(model.config, "num_hidden_layers", None)
    found = [part for part in model.base_model.modules() if isinstance(part, nn.ModuleList) and len(part) == count]
    if len(found) != 1:
        raise ValueError(
            f"{flag} needs a model with one list of its config.num_hidden_layers ({count}) layers; "
            f"{type(model).__name__} has {len(found)} such lists: leave {flag} out"
        )
    return found[0]
