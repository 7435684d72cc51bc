"""What of a model is trained, and how: its layers, which may start anew or be frozen, optimizer and learning rates.

Also gathers all weights, recomputes activations, and compiles layers.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from accelerate import Accelerator, DistributedType, PartialState
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from elmo_gpt_bert.training.arguments import RunArguments
from elmo_gpt_bert.training.errors import InputError, PackageError


if TYPE_CHECKING:
    from transformers import PreTrainedModel


AT_ONCE = 2**23  # numbers in the matrices that Muon orthogonalizes at once: 14 of BERT-base's square ones
# Batches that are packed or whole, of one row or several, layers that read one token, and those above frozen ones each
# have graphs of their own, which torch counts together. By default it gives up after 8.
GRAPHS = 64
TRAINS = "let the model train them, as ELMo with --config_overrides freeze_bilm=false"


# Optimizer and learning rates


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

    What decays is told apart by dimension: a list of names would miss LayerNorms that a model names differently. For
    Muon, hidden matrices are a group of their own, marked `muon`.
    """
    hidden = _hidden_matrices(model) if args.optim == "muon" else set()
    groups = defaultdict(list)
    for parameter in model.parameters():  # tied ones come once
        if parameter.requires_grad:
            groups[parameter.dim() <= 1, parameter in hidden].append(parameter)
    return [
        {
            "params": groups[flat, muon],
            "lr": args.learning_rate,
            "weight_decay": 0.0 if flat else args.weight_decay,
        }
        | ({"muon": muon} if args.optim == "muon" else {})
        for flat, muon in sorted(groups)
    ]


def _hidden_matrices(model: PreTrainedModel) -> set[nn.Parameter]:
    """The matrices of the base model, except embeddings. Heads are above the base model.

    Raises ValueError if none of them is trained.
    """
    embeddings = {module.weight for module in model.modules() if isinstance(module, nn.Embedding)}
    hidden = {parameter for parameter in model.base_model.parameters() if parameter.dim() == 2} - embeddings
    if not any(parameter.requires_grad for parameter in hidden):
        raise InputError(f"--optim muon trains hidden matrices, and {type(model).__name__} trains none: choose adamw")
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
            raise PackageError(f"--optim muon needs torch 2.9 or later, not {torch.__version__}: update torch")
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

    options, warm_up = None, warm_up_updates(args, updates)
    if args.lr_scheduler_type == "warmup_stable_decay":
        falls = max(0, min(decay_updates(args, updates), updates - warm_up))  # only once it has risen
        options = {"num_decay_steps": falls, "decay_type": "linear"}
    return get_scheduler(args.lr_scheduler_type, optimizer, warm_up, updates, options)


def learning_rates(args: RunArguments, updates: int) -> Callable[[int], float]:
    """The learning rate of each update of a run with this number of `updates`, as a share of its peak."""
    optimizer = torch.optim.SGD([torch.zeros(1)])
    return build_schedule(optimizer, args, updates).lr_lambdas[0]


def move_schedule(scheduler: LambdaLR, update: int) -> None:
    """Moves a new schedule to its state after `update`; its learning rates depend only on that number."""
    scheduler.load_state_dict({**scheduler.state_dict(), "last_epoch": update - 1, "_step_count": update + 1})
    scheduler.step()


# Layers and weights


def make_divisible(model: PreTrainedModel) -> None:
    """Gives the model only weights that FSDP can divide; `gather_weights` undoes it.

    A weight without a dimension gets one of length 1. A bias that two modules share, as in BERT's head, stays in the
    one that adds it, the target of the tie: FSDP groups this module with the embeddings, and refuses the other.
    """
    model.scalars = {name for name, weight in model.named_parameters() if weight.dim() == 0}
    for path in model.scalars:
        module, _, name = path.rpartition(".")
        weight = model.get_parameter(path)
        setattr(model.get_submodule(module), name, nn.Parameter(weight.detach().reshape(1), weight.requires_grad))
    ties = model.all_tied_weights_keys
    model.shared_biases = {to: source for to, source in ties.items() if model.get_parameter(to).dim() == 1}
    for source in model.shared_biases.values():
        module, _, name = source.rpartition(".")
        model.get_submodule(module).register_parameter(name, None)
    kept = {to: source for to, source in ties.items() if to not in model.shared_biases}
    model.all_tied_weights_keys = model._tied_weights_keys = kept  # the second one of this instance only


def saved_class(model: PreTrainedModel) -> type[PreTrainedModel]:
    """The class that save_pretrained names: FSDP2 gives a model a subclass of FSDPModule and of its class."""
    return next(kind for kind in type(model).__mro__ if not kind.__name__.startswith("FSDP"))


def saved_name(model: PreTrainedModel, name: str) -> str:
    """The name of a weight in the model's folder: its name before `make_divisible`."""
    return getattr(model, "shared_biases", {}).get(name, name)


def gather(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors on the CPU, whole where FSDP has divided them; empty except on the main process.

    Every process must call it.
    """
    is_main, gathered = PartialState().is_main_process, {}
    for name, tensor in tensors.items():
        whole = tensor.full_tensor() if _is_divided(tensor) else tensor
        if is_main:
            gathered[name] = whole.detach().cpu().contiguous()
    return gathered


def divide(whole: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
    """A whole tensor, which all processes have, in the shape of `part` and divided among processes if `part` is."""
    whole = whole.reshape(part.shape)  # a scalar may have length 1
    if not _is_divided(part):
        return whole
    from torch.distributed.tensor import distribute_tensor  # the import takes seconds, which --help does not need

    return distribute_tensor(whole.to(part.device), part.device_mesh, part.placements)


def _is_divided(tensor: torch.Tensor) -> bool:
    return hasattr(tensor, "full_tensor")  # FSDP's DTensor


def gather_weights(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """The weights as the model's folder has them; empty except on the main process. Every process must call it.

    Names and shapes are those of before `make_divisible`. A tied weight is there once: weights that were gathered from
    shards, or copied from a TPU, no longer share memory.
    """
    scalars = getattr(model, "scalars", ())
    return {
        saved_name(model, name): weight.reshape([]) if name in scalars else weight
        for name, weight in gather(_untied(model)).items()
    }


def load_weights(model: PreTrainedModel, weights: Mapping[str, torch.Tensor]) -> None:
    """Gives the model what `gather_weights` returned, which all processes need. Raises ValueError if names differ."""
    tensors = _untied(model)
    names = {name: saved_name(model, name) for name in tensors}
    if others := sorted({*names.values()} ^ weights.keys()):
        raise InputError(f"the weights and the model differ in {', '.join(others)}")
    state = {name: divide(weights[names[name]], tensor) for name, tensor in tensors.items()}
    model.load_state_dict(state, strict=False)  # strictly, tied weights would be missing


def _untied(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """The weights of the model, tied ones once."""
    return {name: weight for name, weight in model.state_dict().items() if name not in model.all_tied_weights_keys}


def check_ties(model: PreTrainedModel) -> None:
    """Raises ValueError for tied weights that the model's class does not declare.

    Neither a checkpoint nor the model's folder could hold them, which would show only after training.
    """
    names: dict[nn.Parameter | torch.Tensor, list[str]] = {}
    for name, weight in model.state_dict(keep_vars=True).items():
        if name not in model.all_tied_weights_keys:
            names.setdefault(weight, []).append(name)
    for source, *targets in names.values():
        if targets:
            raise InputError(
                f"{type(model).__name__} ties {' and '.join([source, *targets])} without saying so, and could not be "
                f"saved: add {dict.fromkeys(targets, source)} to the _tied_weights_keys of its class"
            )


@torch.no_grad()
def reinitialize_layers(model: PreTrainedModel, count: int) -> None:
    """Gives new random weights to the top `count` layers and what is above them in the base model (BERT's pooler).

    The top layers are specialised in the task of pre-training, so that they transfer least (Zhang et al. 2021, section
    5). The weights come from torch's random generator. Raises ValueError if the model has fewer layers, or if they are
    frozen.
    """
    if count == 0:
        return
    layers = layers_of(model, "--reinit_layers", count)
    lowest = next(layers[-count].parameters())
    if not lowest.requires_grad:
        raise InputError(
            f"--reinit_layers {count}: {type(model).__name__} does not train its layers, which would stay random: "
            f"{TRAINS}"
        )
    # A new model is built, because some modules draw their weights when they are built and have no way to do it again.
    new_model = type(model)(model.config).base_model
    parameters = model.base_model.named_parameters()
    for name, parameter in itertools.dropwhile(lambda item: item[1] is not lowest, parameters):
        parameter.copy_(new_model.get_parameter(name))


def freeze_layers(model: PreTrainedModel, count: int | None, reinitialized: int = 0) -> None:
    """Freezes the lowest `count` layers and what is below them, such as embeddings; None: freezes nothing.

    A frozen parameter gets no gradient, and the optimizer leaves it out. Dropout stays on, except in a biLM of which
    all layers are frozen. Raises ValueError if the model has fewer layers, if it does not train these anyway, or if
    some are among the `reinitialized` top layers.
    """
    if count is None:
        return
    layers, name = layers_of(model, "--freeze_layers", count), type(model).__name__
    if count + reinitialized > len(layers):
        raise InputError(
            f"--freeze_layers {count} and --reinit_layers {reinitialized} are more than the {len(layers)} layers of "
            f"{name}: new weights would not be trained"
        )
    of_layers = {*layers.parameters()}
    below = itertools.takewhile(lambda parameter: parameter not in of_layers, model.base_model.parameters())
    frozen = [*below, *layers[:count].parameters()]
    if not any(parameter.requires_grad for parameter in frozen):
        raise InputError(f"--freeze_layers {count}: {name} does not train them in any case: leave it out, or {TRAINS}")
    for parameter in frozen:
        parameter.requires_grad_(False)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise InputError(f"--freeze_layers {count} leaves nothing of {name} to train: freeze fewer layers")


def layers_of(model: PreTrainedModel, flag: str, needed: int = 0) -> nn.ModuleList:
    """The layers, the lowest first. Modules that the base model lists before them are below, those after them above.

    Raises ValueError for models that have fewer than the `needed` layers, that share weights between layers, or that
    have no single list of layers.
    """
    from transformers.modeling_layers import GradientCheckpointingLayer  # takes seconds, unless a model was loaded

    count = getattr(model.config, "num_hidden_layers", None)
    if count is None:
        problem = f"needs layers, and {type(model.config).__name__} names no number of them"
        raise InputError(f"{flag} {problem}: leave {flag} out")
    lists = [part for part in model.base_model.modules() if isinstance(part, nn.ModuleList) and len(part) == count]
    if len(lists) > 1:  # ELMo may have as many highways or mixes as layers
        lists = [part for part in lists if all(isinstance(each, GradientCheckpointingLayer) for each in part)]
    if len(lists) != 1:
        problem = f"needs one list of {count} layers, and {type(model).__name__} has {len(lists)} such lists"
        raise InputError(f"{flag} {problem}: leave {flag} out")
    if needed > count:
        raise InputError(f"{flag} {needed}: {type(model).__name__} has {count} layers, give no more")
    return lists[0]


def recompute_activations(model: PreTrainedModel, accelerator: Accelerator) -> None:
    """Keeps the inputs of each layer only, and computes its activations again in the backward pass."""
    model.activation_checkpointing_enable()
    if accelerator.distributed_type == DistributedType.XLA:
        # torch's function knows no XLA, whose compiler would moreover undo it.
        from torch_xla.utils.checkpoint import checkpoint

        model._set_gradient_checkpointing(gradient_checkpointing_func=checkpoint)
        model.enable_input_require_grads()  # a layer gets gradients only if its input has one, as above frozen layers


def compile_layers(model: PreTrainedModel, mode: str = "default") -> nn.ModuleList:
    """Lets torch compile the layers when they are called: one graph for all, and for all sizes. Returns the layers.

    They are compiled in place, so that weights keep their names. What is above and below them is not compiled: where
    the real tokens of a batch are depends on its values. Raises ValueError for ELMo, whose loop over time would become
    one graph without a loop, and for models without one list of layers.
    """
    if model.config.model_type == "elmo":
        raise InputError("--torch_compile: ELMo's layers are loops over time, which are not compiled: leave it out")
    layers = layers_of(model, "--torch_compile")
    for layer in layers:
        layer.compile(mode=mode)
    return layers


@contextlib.contextmanager
def compiled_layers(model: PreTrainedModel, mode: str) -> Iterator[None]:
    """Within the context, the layers are compiled, as by `compile_layers`, and into as many graphs as a run needs."""
    layers = compile_layers(model, mode)
    try:
        with torch._dynamo.config.patch(cache_size_limit=GRAPHS):  # since torch 2.7, another name of recompile_limit
            yield
    finally:
        for layer in layers:
            layer._compiled_call_impl = None  # what `compile` has set
