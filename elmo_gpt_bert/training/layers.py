"""Finds the layers of a model, gives new weights to the top ones, freezes the lowest ones, and gathers all weights.

Also compiles layers, and recomputes their activations.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import torch
from accelerate import Accelerator, DistributedType, PartialState
from torch import nn

from elmo_gpt_bert.training.errors import InputError, Parameter


if TYPE_CHECKING:
    from transformers import PreTrainedModel


REINIT, FREEZE = Parameter("count", "reinit_layers"), Parameter("count", "freeze_layers")
COMPILE = Parameter("torch_compile")
# Batches that are packed or whole, of one row or several, layers that read one token, and those above frozen ones each
# have graphs of their own, which torch counts together. By default it gives up after 8.
GRAPHS = 64
TRAINS = ("let the model train them, as ELMo with ", Parameter("config_overrides"), " freeze_bilm=false")


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
    layers = layers_of(model, REINIT)
    _check_count(model, layers, REINIT, count)
    lowest = next(layers[-count].parameters())
    if not lowest.requires_grad:
        raise InputError(
            REINIT, f" {count}: {type(model).__name__} does not train its layers, which would stay random: ", TRAINS
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
    layers, name = layers_of(model, FREEZE), type(model).__name__
    _check_count(model, layers, FREEZE, count)
    if count + reinitialized > len(layers):
        sizes = f" {reinitialized} are more than the {len(layers)} layers of {name}: new weights would not be trained"
        raise InputError(FREEZE, f" {count} and ", REINIT, sizes)
    frozen = [*parameters_below(model, layers), *layers[:count].parameters()]
    if not any(parameter.requires_grad for parameter in frozen):
        raise InputError(FREEZE, f" {count}: {name} does not train them in any case: leave it out, or ", TRAINS)
    for parameter in frozen:
        parameter.requires_grad_(False)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise InputError(FREEZE, f" {count} leaves nothing of {name} to train: freeze fewer layers")


def parameters_below(model: PreTrainedModel, layers: nn.ModuleList) -> list[nn.Parameter]:
    """The parameters of the base model below its layers, such as embeddings."""
    inside = {*layers.parameters()}
    return [*itertools.takewhile(lambda parameter: parameter not in inside, model.base_model.parameters())]


def layers_of(model: PreTrainedModel, parameter: Parameter) -> nn.ModuleList:
    """The layers, the lowest first. Modules that the base model lists before them are below, those after them above.

    Raises ValueError for models that share weights between layers, or that have no single list of layers.
    """
    from transformers.modeling_layers import GradientCheckpointingLayer  # takes seconds, unless a model was loaded

    count = getattr(model.config, "num_hidden_layers", None)
    lists = [part for part in model.base_model.modules() if isinstance(part, nn.ModuleList) and len(part) == count]
    if len(lists) > 1:  # ELMo may have as many highways or mixes as layers
        lists = [part for part in lists if all(isinstance(each, GradientCheckpointingLayer) for each in part)]
    if len(lists) != 1:
        raise InputError(
            parameter,
            f" needs a model with one list of its config.num_hidden_layers ({count}) layers; {type(model).__name__} "
            f"has {len(lists)} such lists: leave ",
            parameter,
            " out",
        )
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
        raise InputError(COMPILE, ": ELMo's layers are loops over time, which are not compiled: leave it out")
    layers = layers_of(model, COMPILE)
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


def not_compiled() -> contextlib.AbstractContextManager[None]:
    """Within the context, compiled layers are computed as if they were not: to evaluate, or to count operations."""
    return torch.compiler.set_stance("force_eager")


def _check_count(model: PreTrainedModel, layers: nn.ModuleList, parameter: Parameter, count: int) -> None:
    if count > len(layers):
        raise InputError(parameter, f" {count}: {type(model).__name__} has {len(layers)} layers, give no more")
