"""The precisions that a side can work in, by the names that the settings of `python -m benchmarks` are made of.

"highest" is fp32 as torch ships, "medium" the same with torch's switch for matrix products at that word, "portable"
fp32 without the products that oneDNN computes, "bf16" a bf16 model, or bf16 autocast where it trains.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from .measure import largest_difference


# Largest difference relative to the largest value. fp32 sums in another order; bf16 keeps 8 bits of each product's
# factors, and twelve layers of it leave two or three correct ones in a logit.
FP32_TOLERANCE, BF16_TOLERANCE = 1e-4, 5e-2


@contextmanager
def matmul_precision(name: str) -> Iterator[None]:
    """torch's global switch for fp32 matrix products, put back afterwards."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(name)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@contextmanager
def onednn(enabled: bool) -> Iterator[None]:
    """torch's global switch for oneDNN, put back afterwards."""
    before = torch.backends.mkldnn.enabled
    torch.backends.mkldnn.enabled = enabled
    try:
        yield
    finally:
        torch.backends.mkldnn.enabled = before


@contextmanager
def switches(precision: str) -> Iterator[None]:
    with matmul_precision("medium" if precision == "medium" else "highest"), onednn(precision != "portable"):
        yield


@contextmanager
def inference(precision: str) -> Iterator[None]:
    with torch.inference_mode(), switches(precision):
        yield


def forward_backward(loss: Callable[[], torch.Tensor], precision: str) -> torch.Tensor:
    """Computes a loss and its gradients in that precision; returns the loss."""
    with switches(precision):
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            value = loss()
        value.backward()
    return value.detach()


def gradients(model: torch.nn.Module) -> torch.Tensor:
    """All of them side by side; zeros of a parameter that took no part."""
    collected = []
    for _, parameter in sorted(model.named_parameters()):
        collected.append(torch.zeros_like(parameter) if parameter.grad is None else parameter.grad)
    return torch.cat([gradient.flatten() for gradient in collected])


def model_dtype(precision: str) -> torch.dtype:
    """Of a model that infers."""
    return torch.bfloat16 if precision == "bf16" else torch.float32


def medium_rounds() -> bool:
    """Whether "medium" rounds fp32 factors to bf16 on this chip. It may; chips without AMX keep them as they are."""
    factors = torch.rand(256, 256, generator=torch.Generator().manual_seed(0))
    with matmul_precision("highest"):
        exact = torch.nn.functional.linear(factors, factors)
    with matmul_precision("medium"):
        fast = torch.nn.functional.linear(factors, factors)
    return largest_difference({"product": fast}, {"product": exact}) > 1e-5


def tolerance(*precisions: str) -> float:
    """Of the difference between sides that work in these."""
    rounds = "bf16" in precisions or ("medium" in precisions and medium_rounds())
    return BF16_TOLERANCE if rounds else FP32_TOLERANCE
