"""Builds the optimizer and its learning rate schedule, with layer-wise rates, and reinitializes top layers."""

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
    """(updates of the whole run, updates of an epoch) for this number of `examples`."""
    per_update = args.per_device_train_batch_size * args.gradient_accumulation_steps * processes
    per_epoch = math.ceil(examples / per_update)
    total = args.max_steps if args.max_steps > 0 else math.ceil(round(args.num_train_epochs * per_epoch, 6))
    return total, per_epoch


def warm_up_updates(args: RunArguments, total: int) -> int:
    """The number of updates, out of `total`, in which the learning rate rises."""
    return args.warmup_steps or math.ceil(round(args.warmup_ratio * total, 6))  # 0.1 * 30 is a little more than 3


def schedule(examples: int, args: RunArguments, processes: int) -> dict[str, int]:
    """The numbers that the learning rates of a run depend on, for its identity."""
    total, per_epoch = count_updates(examples, args, processes)
    return {"updates": total, "updates an epoch": per_epoch, "warm-up": warm_up_updates(args, total)}


def build_optimizer(model: PreTrainedModel, args: RunArguments) -> torch.optim.AdamW:
    """AdamW or BertAdam. Matrices and embeddings decay, biases and LayerNorms do not, as in both papers.

    They are told apart by dimension: a list of names would miss LayerNorms that a model names differently. With
    `layerwise_lr_decay`, each layer's parameters are groups with their own learning rate, from the top layer down; a
    scheduler scales the rate of each group.
    """
    depths = _depths(model) if args.layerwise_lr_decay != 1 else {}
    groups = defaultdict(list)
    for parameter in model.parameters():  # tied ones come once
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

    AdamW divides m by 1 - b1^t and v by 1 - b2^t, where t counts the updates, because both averages start at zero.
    This optimizer does not, so that its early updates are up to 6.6 times as large (for betas 0.9 and 0.999). On small
    data sets that makes fine-tuning unstable (Zhang et al. 2021, section 4).

    If t is infinite, both divisors are 1. So this class is AdamW with t starting at infinity, and uses its kernels.
    """

    def _init_group(self, group: dict[str, Any], *lists: list) -> bool:
        """Collects the group's tensors as AdamW does, and sets t of parameters with their first gradient."""
        new_parameters = [p for p in group["params"] if p.grad is not None and not self.state.get(p)]
        has_complex = super()._init_group(group, *lists)
        for parameter in new_parameters:
            self.state[parameter]["step"].fill_(math.inf)
        return has_complex


def build_schedule(optimizer: torch.optim.Optimizer, args: RunArguments, updates: int) -> LambdaLR:
    """The learning rate schedule of a run with this number of `updates`.

    Do not pass it to Accelerator.prepare: a prepared scheduler takes one step for each process.
    """
    return get_scheduler(args.lr_scheduler_type, optimizer, warm_up_updates(args, updates), updates)


def move_schedule(scheduler: LambdaLR, update: int) -> None:
    """Moves a new schedule to its state after `update`; its learning rates depend only on that number."""
    scheduler.load_state_dict({**scheduler.state_dict(), "last_epoch": update - 1, "_step_count": update + 1})
    scheduler.step()


@torch.no_grad()
def reinitialize_layers(model: PreTrainedModel, count: int) -> None:
    """Gives new random weights to the top `count` layers and what is above them in the base model (BERT's pooler).

    The top layers are specialised in the task of pre-training, so that they transfer least (Zhang et al. 2021, section
    5). The weights come from torch's random generator. Raises ValueError if the model has fewer layers.
    """
    if count == 0:
        return
    count_parameter = Parameter("count", "reinit_layers")
    layers = _layers(model, count_parameter)
    if count > len(layers):
        raise InputError(count_parameter, f" {count}: {type(model).__name__} has {len(layers)} layers, give no more")
    # A new model is built, because some modules draw their weights when they are built and have no way to do it again.
    new_model = type(model)(model.config).base_model
    lowest = next(layers[-count].parameters())
    parameters = model.base_model.named_parameters()
    for name, parameter in itertools.dropwhile(lambda item: item[1] is not lowest, parameters):
        parameter.copy_(new_model.get_parameter(name))


def _depths(model: PreTrainedModel) -> dict[nn.Parameter, int]:
    """parameter -> how many times its learning rate is decayed. Pooler and heads have no entry and no decay.

    It is 1 for the top layer, one more for each layer below it, and one more for the embeddings, so that each rate is
    smaller than the one above it by the same factor (Howard and Ruder 2018, section 3.2). Depths are counted as in the
    code of Zhang et al. 2021; ELECTRA's code adds one for layers and embeddings.
    """
    layers = _layers(model, Parameter("layerwise_lr_decay"))
    depths = {p: depth for depth, layer in enumerate(reversed(layers), start=1) for p in layer.parameters()}
    below = itertools.takewhile(lambda parameter: parameter not in depths, model.base_model.parameters())
    return dict.fromkeys(below, len(layers) + 1) | depths


def _layers(model: PreTrainedModel, parameter: Parameter) -> nn.ModuleList:
    """The layers, the lowest first. Modules that the base model lists before them are below, those after them above.

    Raises ValueError for models that share weights between layers, or that have no single list of layers.
    """
    count = getattr(model.config, "num_hidden_layers", None)
    lists = [part for part in model.base_model.modules() if isinstance(part, nn.ModuleList) and len(part) == count]
    if len(lists) != 1:
        raise InputError(
            parameter,
            f" needs a model with one list of its config.num_hidden_layers ({count}) layers; {type(model).__name__} "
            f"has {len(lists)} such lists: leave ",
            parameter,
            " out",
        )
    return lists[0]
