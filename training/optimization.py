"""The optimizer, the schedule of its learning rate, one rate a layer, and top layers that start from new weights."""

import itertools
import math
from collections import defaultdict
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from transformers import PreTrainedModel, get_scheduler

from training.arguments import RunArguments
from training.errors import InputError, Parameter


def count_updates(examples: int, args: RunArguments, processes: int) -> tuple[int, int]:
    """(updates of the whole run, updates an epoch) over `examples`."""
    per_update = args.per_device_train_batch_size * args.gradient_accumulation_steps * processes
    per_epoch = math.ceil(examples / per_update)
    total = args.max_steps if args.max_steps > 0 else math.ceil(round(args.num_train_epochs * per_epoch, 6))
    return total, per_epoch


def warm_up_updates(args: RunArguments, total: int) -> int:
    """How many of the `total` updates have a rising learning rate."""
    return args.warmup_steps or math.ceil(round(args.warmup_ratio * total, 6))  # 0.1 * 30 is a little more than 3


def schedule(examples: int, args: RunArguments, processes: int) -> dict[str, int]:
    """What decides on the learning rates of a run over so many `examples`, for its identity."""
    total, per_epoch = count_updates(examples, args, processes)
    return {"updates": total, "updates an epoch": per_epoch, "warm-up": warm_up_updates(args, total)}


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


def build_schedule(optimizer: torch.optim.Optimizer, args: RunArguments, updates: int) -> LambdaLR:
    """The learning rates of a run of so many `updates`.

    It must not be prepared by accelerate, whose schedules tick once a process.
    """
    return get_scheduler(args.lr_scheduler_type, optimizer, warm_up_updates(args, updates), updates)


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
    name = Parameter("count", "reinit_layers")
    layers = _layers(model, name)
    if count > len(layers):
        raise InputError(name, f" {count}: {type(model).__name__} has {len(layers)} layers, give no more")
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
    layers = _layers(model, Parameter("layerwise_lr_decay"))
    depths = {p: depth for depth, layer in enumerate(reversed(layers), start=1) for p in layer.parameters()}
    below = itertools.takewhile(lambda parameter: parameter not in depths, model.base_model.parameters())
    return dict.fromkeys(below, len(layers) + 1) | depths


def _layers(model: PreTrainedModel, parameter: Parameter) -> nn.ModuleList:
    """The layers, from the lowest; modules that the base model lists before them are below, those after them above.

    Raises ValueError for models that share one layer's weights or keep their layers otherwise.
    """
    count = getattr(model.config, "num_hidden_layers", None)
    found = [part for part in model.base_model.modules() if isinstance(part, nn.ModuleList) and len(part) == count]
    if len(found) != 1:
        raise InputError(
            parameter,
            f" needs a model with one list of its config.num_hidden_layers ({count}) layers; {type(model).__name__} "
            f"has {len(found)} such lists: leave ",
            parameter,
            " out",
        )
    return found[0]
