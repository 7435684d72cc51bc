"""Attention in training: plain products against torch's fused attention (sdpa), forward and backward, without dropout.

The models choose between the two in `attention_implementation` of modeling_packing.py. These rows tell whether the
choice suits a processor. A row is a function as in bert.py.
"""

from collections.abc import Callable
from types import SimpleNamespace

import torch

from modeling.shared.modeling_packing import eager_attention_forward

from .bert import PASSES
from .measure import Build, Contest, Need, Outputs, Side
from .precision import model_dtype, switches, tolerance


HEADS, HEAD_SIZE = 12, 64  # as in BERT-base and GPT
LAYER = SimpleNamespace(is_causal=False, training=True)  # what the function reads of its layer
Attention = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]  # (B, A, T, D) -> (B, T, A, D)
NAMES = ("output", "query", "key", "value")  # the output, and the gradients


def plain(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return eager_attention_forward(LAYER, query, key, value, None, scaling=query.shape[-1] ** -0.5)[0]


def fused(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.scaled_dot_product_attention(query, key, value).transpose(1, 2)


def attend(sequences: int, length: int) -> Build:
    """Sequences of the same length, which attend to all of their tokens."""

    def build(precision: str, baseline_precision: str, tiny: bool, device: torch.device) -> Contest:
        shape = (2, 5, 3, 4) if tiny else (sequences, length, HEADS, HEAD_SIZE)
        generator = torch.Generator().manual_seed(0)
        numbers = [torch.randn(shape, generator=generator) for _ in NAMES]  # the output's gradient comes first

        def side(name: str, attention: Attention, precision: str) -> Side:
            gradient, *states = (tensor.to(device, model_dtype(precision)) for tensor in numbers)
            states = [state.requires_grad_() for state in states]

            def run(index: int) -> tuple[torch.Tensor, ...]:
                with switches(precision):
                    with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
                        output = attention(*(state.transpose(1, 2) for state in states))
                    return output, *torch.autograd.grad(output, states, gradient)

            def check() -> Outputs:
                return {name: tensor.detach() for name, tensor in zip(NAMES, run(0), strict=True)}

            return Side(name, run, check)

        count, tokens, heads, size = shape
        return Contest(
            side("plain", plain, precision),
            side("sdpa", fused, baseline_precision),
            f"{count} x {tokens} tokens",
            tolerance(precision, baseline_precision, device=device),
            Need("products", lambda index: PASSES * 2 * 2 * count * heads * tokens**2 * size),
            device,
            tokens=lambda index: count * tokens,
        )

    return build


ROWS: dict[str, tuple[str, Build]] = {
    f"attention-{length}": ("attention of 12 heads, forward and backward", attend(sequences, length))
    for sequences, length in ((32, 24), (8, 128), (4, 384))
}
