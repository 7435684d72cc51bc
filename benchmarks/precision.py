"""The precisions of a side. The settings of `python -m benchmarks` are pairs of them.

"highest" is fp32 with torch's defaults, except that cuDNN does not round factors either. "medium" is fp32 with
`torch.set_float32_matmul_precision("medium")`. "portable" is fp32 without oneDNN. "bf16" is a model in bf16, or bf16
autocast in training.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType

import torch

from .measure import CPU, largest_difference


# The largest difference relative to the largest value. In fp32, only the order of sums differs. bf16 keeps 8 bits of
# the factors of each product; after twelve layers, two or three bits of a logit are right.
FP32_TOLERANCE, BF16_TOLERANCE = 1e-4, 5e-2


@contextmanager
def matmul_precision(name: str) -> Iterator[None]:
    """Sets torch's global precision of fp32 matrix products, and restores it afterwards."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(name)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@contextmanager
def switched(backend: ModuleType, name: str, value: bool) -> Iterator[None]:
    """Sets a switch of one of `torch.backends` for all of torch, and restores it afterwards."""
    before = getattr(backend, name)
    setattr(backend, name, value)
    try:
        yield
    finally:
        setattr(backend, name, before)


@contextmanager
def switches(precision: str) -> Iterator[None]:
    setting = matrix_setting(precision)
    with (
        matmul_precision(setting),
        switched(torch.backends.mkldnn, "enabled", precision != "portable"),
        switched(torch.backends.cudnn, "allow_tf32", setting != "highest"),  # as cuDNN rounds by default
    ):
        yield


@contextmanager
def inference(precision: str) -> Iterator[None]:
    with torch.inference_mode(), switches(precision):
        yield


def forward_backward(loss: Callable[[], torch.Tensor], precision: str, device: torch.device = CPU) -> torch.Tensor:
    """Computes a loss and its gradients in that precision; returns the loss."""
    with switches(precision):
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
            value = loss()
        value.backward()
    return value.detach()


def gradients(model: torch.nn.Module) -> torch.Tensor:
    """All gradients in one vector, with zeros for parameters that have none."""
    collected = []
    for _, parameter in sorted(model.named_parameters()):
        collected.append(torch.zeros_like(parameter) if parameter.grad is None else parameter.grad)
    return torch.cat([gradient.flatten() for gradient in collected])


def model_dtype(precision: str) -> torch.dtype:
    """The type of a model in inference."""
    return torch.bfloat16 if precision == "bf16" else torch.float32


def matrix_setting(precision: str) -> str:
    """torch's precision of fp32 matrix products in that precision of a side."""
    return "medium" if precision == "medium" else "highest"


def medium_rounds(device: torch.device = CPU) -> bool:
    """Whether "medium" rounds fp32 factors on this chip. Processors without AMX do not round them; GPUs may."""
    factors = torch.rand(256, 256, generator=torch.Generator().manual_seed(0)).to(device)
    with matmul_precision("highest"):
        exact = torch.nn.functional.linear(factors, factors)
    with matmul_precision("medium"):
        fast = torch.nn.functional.linear(factors, factors)
    return largest_difference({"product": fast}, {"product": exact}) > 1e-5


def tolerance(*precisions: str, device: torch.device = CPU) -> float:
    """The largest difference that is allowed between sides in these precisions."""
    rounds = "bf16" in precisions or ("medium" in precisions and medium_rounds(device))
    return BF16_TOLERANCE if rounds else FP32_TOLERANCE
