"""Builds the optimizer and its learning rate schedule, with layer-wise rates."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from elmo_gpt_bert.training.arguments import RunArguments
from elmo_gpt_bert.training.errors import InputError, PackageError, Parameter
from elmo_gpt_bert.training.layers import divide, gather, layers_of, parameters_below


if TYPE_CHECKING:
    from transformers import PreTrainedModel


OPTIM = Parameter("optim")
AT_ONCE = 2**23  # numbers in the matrices that Muon orthogonalizes at once: 14 of BERT-base's square ones


def samples_of_update(args: RunArguments, processes: int) -> int:
    """The number of samples, or examples, that all processes together train on in an update."""
    return args.per_device_train_batch_size * args.gradient_accumulation_steps * processes


def count_updates(examples: int, args: RunArguments, processes: int) -> tuple[int, int]:
    """(updates of the whole run, updates of an epoch) for this number of `examples`."""
    per_epoch = math.ceil(examples / samples_of_update(args, processes))
    epochs = max(math.ceil(round(args.num_train_epochs * per_epoch, 6)), 1)
    return args.max_steps if args.max_steps > 0 else epochs, per_epoch


def warm_up_updates(args: RunArguments, total: int) -> int:
    """The number of updates, out of `total`, in which the learning rate rises."""
    return args.warmup_steps or math.ceil(round(args.warmup_ratio * total, 6))  # 0.1 * 30 is a little more than 3


def decay_updates(args: RunArguments, total: int) -> int:
    """The number of updates, the last of `total`, in which a stable learning rate falls; at least one."""
    return max(math.ceil(round((0.1 if args.decay_ratio is None else args.decay_ratio) * total, 6)), 1)


def schedule(args: RunArguments, updates: int) -> dict[str, int]:
    """The numbers that the learning rates of a run with this number of `updates` depend on, for its identity."""
    numbers = {"updates": updates, "warm-up": warm_up_updates(args, updates)}
    if args.lr_scheduler_type == "warmup_stable_decay":
        numbers["decay"] = decay_updates(args, updates)
    return numbers


def build_optimizer(model: PreTrainedModel, args: RunArguments) -> torch.optim.Optimizer:
    """The optimizer of --optim. Matrices and embeddings decay, biases and LayerNorms do not, as in both papers.

    Adagrad is the biLM's: its sums of squares start at 1, as in the released code, so that torch's epsilon of 1e-10
    vanishes in comparison. It adds the decay to the gradient; the other optimizers decay the weights themselves.
    """
    groups = _parameter_groups(model, args)
    devices = {parameter.device.type for group in groups for parameter in group["params"]}
    if args.optim == "adagrad":
        return torch.optim.Adagrad(groups, initial_accumulator_value=1.0, fused=devices == {"cpu"})
    fused = devices <= {"cpu", "cuda", "mps", "xpu"}
    settings = {"betas": (args.adam_beta1, args.adam_beta2), "eps": args.adam_epsilon, "fused": fused}
    if args.optim == "muon":
        return MuonWithAdamW(groups, **settings)
    optimizer = BertAdam if args.optim == "bert_adam" else torch.optim.AdamW
    return optimizer(groups, lr=args.learning_rate, **settings)


def _parameter_groups(model: PreTrainedModel, args: RunArguments) -> list[dict[str, Any]]:
    """The trained parameters in groups for an optimizer, each with its learning rate and weight decay.

    What decays is told apart by dimension: a list of names would miss LayerNorms that a model names differently. With
    `layerwise_lr_decay`, each layer's parameters are groups with their own learning rate, from the top layer down; a
    scheduler scales the rate of each group. For Muon, hidden matrices are groups of their own, marked `muon`.
    """
    depths = _depths(model) if args.layerwise_lr_decay != 1 else {}
    hidden = _hidden_matrices(model) if args.optim == "muon" else set()
    groups = defaultdict(list)
    for parameter in model.parameters():  # tied ones come once
        if parameter.requires_grad:
            groups[depths.get(parameter, 0), parameter.dim() <= 1, parameter in hidden].append(parameter)
    return [
        {
            "params": groups[depth, flat, muon],
            "lr": args.learning_rate * args.layerwise_lr_decay**depth,
            "weight_decay": 0.0 if flat else args.weight_decay,
        }
        | ({"muon": muon} if args.optim == "muon" else {})
        for depth, flat, muon in sorted(groups)
    ]


def _hidden_matrices(model: PreTrainedModel) -> set[nn.Parameter]:
    """The matrices of the base model, except embeddings. Heads are above the base model.

    Raises ValueError if none of them is trained.
    """
    embeddings = {module.weight for module in model.modules() if isinstance(module, nn.Embedding)}
    hidden = {parameter for parameter in model.base_model.parameters() if parameter.dim() == 2} - embeddings
    if not any(parameter.requires_grad for parameter in hidden):
        raise InputError(OPTIM, f" muon trains hidden matrices, and {type(model).__name__} trains none: choose adamw")
    return hidden


class MuonWithAdamW(torch.optim.Optimizer):
    """Muon (Jordan et al. 2024) for the groups with `muon`: true, AdamW for the others.

    Muon orthogonalizes the average gradient of a hidden matrix by Newton and Schulz's iteration. Its update is scaled
    to the size of AdamW's (Liu et al. 2025, arXiv 2502.16982, section 2.2), so that one learning rate and one weight
    decay, those of AdamW, serve all groups.

    Both are torch's optimizers. They share the groups and the state of this one, which schedules and checkpoints see
    as a single optimizer. Matrices of one shape are orthogonalized at once: torch's loop over all of them starts many
    times as many kernels, and on a GPU their starts take longer than the products. Results are torch's, rounded to
    bfloat16 at other places. Raises ImportError if torch is older than 2.9, which has no Muon.
    """

    def __init__(self, groups: list[dict[str, Any]], **adamw: Any) -> None:
        """Args: adamw: the settings of AdamW other than learning rate and weight decay, which the groups have."""
        if not hasattr(torch.optim, "Muon"):
            raise PackageError(OPTIM, f" muon needs torch 2.9 or later, not {torch.__version__}: update torch")
        super().__init__(groups, {})
        self.muon = torch.optim.Muon(self._select(muon=True), adjust_lr_fn="match_rms_adamw")
        self.adamw = torch.optim.AdamW(self._select(muon=False), **adamw)
        self._share()

    def _select(self, muon: bool) -> list[dict[str, Any]]:
        return [group for group in self.param_groups if group["muon"] == muon]

    def _share(self) -> None:
        """Gives the groups and the state of this optimizer to both of its parts."""
        self.muon.param_groups, self.adamw.param_groups = self._select(muon=True), self._select(muon=False)
        self.muon.state = self.adamw.state = self.state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Called by `load_state_dict`, which makes new groups and a new state."""
        super().__setstate__(state)
        self._share()

    def step(self, closure: Callable[[], torch.Tensor] | None = None) -> torch.Tensor | None:
        """One update of all groups; returns the loss that `closure` computes, if it is given."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.muon.param_groups:
            self._step_muon(group)
        self.adamw.step()
        return loss

    @torch.no_grad()
    def _step_muon(self, group: dict[str, Any]) -> None:
        """What `torch.optim.Muon.step` does for a group."""
        parameters, gradients, averages = [], [], []
        self.muon._init_group(group, parameters, gradients, averages)
        if not parameters:
            return
        torch._foreach_lerp_(averages, gradients, 1 - group["momentum"])
        torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
        alike = defaultdict(list)
        for each in zip(parameters, gradients, averages, strict=True):
            alike[each[0].shape, each[0].device].append(each)
        for (shape, _), rows in alike.items():
            at_once = max(1, AT_ONCE // shape.numel())
            for start in range(0, len(rows), at_once):
                parameters, gradients, averages = zip(*rows[start : start + at_once], strict=True)
                updates = torch._foreach_lerp(gradients, averages, group["momentum"])  # Nesterov's
                stack = torch.stack(updates).bfloat16()
                matrices = orthogonalize(stack.mT, group).mT if shape[0] > shape[1] else orthogonalize(stack, group)
                size = group["lr"] * 0.2 * max(shape) ** 0.5  # as "match_rms_adamw"
                torch._foreach_add_(parameters, matrices.unbind(0), alpha=-size)


def orthogonalize(matrices: torch.Tensor, group: dict[str, Any]) -> torch.Tensor:
    """(matrices, rows, columns) -> the same with singular values near 1, by Newton and Schulz's iteration.

    `group` has its coefficients and the number of its steps, as `torch.optim.Muon` does.
    """
    a, b, c = group["ns_coefficients"]
    norms = torch.linalg.vector_norm(matrices, dim=(1, 2), keepdim=True)
    matrices = matrices / norms.clamp(min=group["eps"])  # no singular value is above 1
    for _ in range(group["ns_steps"]):
        squares = matrices @ matrices.mT
        polynomials = torch.baddbmm(squares, squares, squares, beta=b, alpha=c)
        matrices = torch.baddbmm(matrices, polynomials, matrices, beta=a)
    return matrices


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


def gather_state(optimizer: torch.optim.Optimizer, names: Mapping[nn.Parameter, str]) -> dict[str, torch.Tensor]:
    """The state of an optimizer of this file, as in {"bert.pooler.dense.weight.exp_avg": ...}, tensors alone.

    A parameter without a gradient has no state. Learning rates and weight decays are left out, because arguments and
    schedule give them. Empty except on the main process. Every process must call it.

    names: of the parameters
    """
    return gather(
        {
            f"{names[parameter]}.{key}": tensor
            for parameter in _parameters(optimizer)
            for key, tensor in optimizer.state.get(parameter, {}).items()
        }
    )


@torch.no_grad()
def load_state(
    optimizer: torch.optim.Optimizer, names: Mapping[nn.Parameter, str], state: Mapping[str, torch.Tensor]
) -> None:
    """Gives the optimizer what `gather_state` returned, which all processes need."""
    parameters = _parameters(optimizer)
    places = {names[parameter]: place for place, parameter in enumerate(parameters)}
    loaded: dict[int, dict[str, torch.Tensor]] = defaultdict(dict)
    for name, tensor in state.items():
        name, _, key = name.rpartition(".")
        parameter = parameters[places[name]]
        if key == "step":  # a number, whose device and type the optimizer chooses
            loaded[places[name]][key] = tensor.clone()  # as a part of the file, it would be lost with it
        else:  # in the layout of the parameter, which fused kernels expect
            loaded[places[name]][key] = torch.empty_like(parameter).copy_(divide(tensor, parameter))
    optimizer.load_state_dict({"state": loaded, "param_groups": optimizer.state_dict()["param_groups"]})


def _parameters(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    """In the order in which `state_dict` numbers them."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def build_schedule(optimizer: torch.optim.Optimizer, args: RunArguments, updates: int) -> LambdaLR:
    """The learning rate schedule of a run with this number of `updates`.

    The learning rate of warmup_stable_decay is the same for runs of any length until it falls (Hu et al. 2024, arXiv
    2404.06395, section 4), so that the length may be chosen late.

    Do not pass it to Accelerator.prepare: a prepared scheduler takes one step for each process.
    """
    from transformers import get_scheduler  # the import takes seconds, which --help does not need

    options = None
    if args.lr_scheduler_type == "warmup_stable_decay":
        options = {"num_decay_steps": decay_updates(args, updates), "decay_type": "linear"}
    return get_scheduler(args.lr_scheduler_type, optimizer, warm_up_updates(args, updates), updates, options)


def move_schedule(scheduler: LambdaLR, update: int) -> None:
    """Moves a new schedule to its state after `update`; its learning rates depend only on that number."""
    scheduler.load_state_dict({**scheduler.state_dict(), "last_epoch": update - 1, "_step_count": update + 1})
    scheduler.step()


def _depths(model: PreTrainedModel) -> dict[nn.Parameter, int]:
    """parameter -> how many times its learning rate is decayed. Pooler and heads have no entry and no decay.

    It is 1 for the top layer, one more for each layer below it, and one more for the embeddings, so that each rate is
    smaller than the one above it by the same factor (Howard and Ruder 2018, section 3.2). Depths are counted as in the
    code of Zhang et al. 2021; ELECTRA's code adds one for layers and embeddings.
    """
    layers = layers_of(model, Parameter("layerwise_lr_decay"))
    depths = {p: depth for depth, layer in enumerate(reversed(layers), start=1) for p in layer.parameters()}
    return dict.fromkeys(parameters_below(model, layers), len(layers) + 1) | depths
