"""What a run needs on XLA, which records operations and computes them as graphs, each compiled for its shapes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from accelerate import Accelerator, DistributedType


if TYPE_CHECKING:
    from transformers import PreTrainedModel


def on_xla(accelerator: Accelerator) -> bool:
    return accelerator.distributed_type == DistributedType.XLA


def run_pending(accelerator: Accelerator) -> None:
    """Computes an update, which XLA has only recorded."""
    if on_xla(accelerator):
        import torch_xla

        torch_xla.sync()


def recompute_activations(model: PreTrainedModel, accelerator: Accelerator) -> None:
    """Keeps the inputs of each layer only, and computes its activations again in the backward pass."""
    model.activation_checkpointing_enable()
    if on_xla(accelerator):  # torch's function knows no XLA, whose compiler would moreover undo it
        from torch_xla.utils.checkpoint import checkpoint

        model._set_gradient_checkpointing(gradient_checkpointing_func=checkpoint)
        model.enable_input_require_grads()  # a layer gets gradients only if its input has one, as above frozen layers
