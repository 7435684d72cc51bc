"""What a run needs on XLA, which records operations and computes them as graphs, each compiled for its shapes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from accelerate import Accelerator, DistributedType
from accelerate.utils import SAFE_WEIGHTS_NAME
from safetensors.torch import load_file
from torch import nn


if TYPE_CHECKING:
    from transformers import PreTrainedModel


def on_xla(accelerator: Accelerator) -> bool:
    return accelerator.distributed_type == DistributedType.XLA


def run_pending(accelerator: Accelerator) -> None:
    """Computes an update, which XLA has only recorded."""
    if on_xla(accelerator):
        import torch_xla

        torch_xla.sync()


def draw_seed(seed: int, update: int, process: int) -> int:
    """The seed of what a process draws from an update on: dropout differs between processes."""
    return int(np.random.SeedSequence((seed, update, process)).generate_state(1)[0])


def seed_update(accelerator: Accelerator, seed: int, update: int) -> None:
    """Makes the draws of an update depend on nothing else, so that a resumed run repeats them.

    XLA's random state changes with each graph that is computed, also with those of evaluations and checkpoints.
    """
    if on_xla(accelerator):
        from torch_xla.core import xla_model

        xla_model.set_rng_state(draw_seed(seed, update, accelerator.process_index))


def load_weights(models: list[nn.Module], folder: str) -> None:
    """Loads the weights of a checkpoint, as a hook of accelerate, and takes the model out of what it has to load.

    It would compare the addresses of tensors to find those that are shared, and XLA's tensors have none.
    Raises ValueError if the checkpoint has others than the model's weights.
    """
    model, state = models.pop(), load_file(Path(folder, SAFE_WEIGHTS_NAME))
    tensors = model.state_dict(keep_vars=True)
    loaded = {id(tensors[name]) for name in state.keys() & tensors.keys()}
    wrong = [name for name, tensor in tensors.items() if id(tensor) not in loaded] + [*(state.keys() - tensors.keys())]
    if wrong:
        raise ValueError(f"{folder} and the model differ in {', '.join(wrong)}")
    model.load_state_dict(state, strict=False)  # a tied weight is there once


def recompute_activations(model: PreTrainedModel, accelerator: Accelerator) -> None:
    """Keeps the inputs of each layer only, and computes its activations again in the backward pass."""
    model.activation_checkpointing_enable()
    if on_xla(accelerator):  # torch's function knows no XLA, whose compiler would moreover undo it
        from torch_xla.utils.checkpoint import checkpoint

        model._set_gradient_checkpointing(gradient_checkpointing_func=checkpoint)
        model.enable_input_require_grads()  # a layer gets gradients only if its input has one, as above frozen layers
