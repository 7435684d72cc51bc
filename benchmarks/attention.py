"""Attention in training by itself, forward and backward, without dropout.

Plain products against torch's fused attention (sdpa), between which the models choose in `attention_implementation` of
modeling_attention.py: these rows tell whether the choice suits a processor. Also, sequences of different lengths,
which the models pack, against sdpa on the padded batch. A row is a function as in bert.py.
"""

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace

import torch
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from modeling.shared.modeling_attention import attend as attend_to
from modeling.shared.modeling_attention import eager_attention_forward
from modeling.shared.modeling_packing import find_sequences

from .bert import PASSES, lengths_of, make_batches
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
            items=lambda index: count * tokens,
        )

    return build


def attend_padded(states: list[torch.Tensor], mask: torch.Tensor) -> torch.Tensor:
    """Queries, keys and values (B, T, A, D) under a mask (B, T) -> (B, T, A * D), by sdpa."""
    states = (state.transpose(1, 2) for state in states)
    output = torch.nn.functional.scaled_dot_product_attention(*states, attn_mask=mask[:, None, None, :].bool())
    return output.transpose(1, 2).flatten(2)


def attend_packed(lengths_name: str) -> Build:
    """32 sequences of these lengths: ours as a model attends to packed ones, the baseline by sdpa with a mask."""
    layer = SimpleNamespace(is_causal=False, training=True, config=SimpleNamespace(_attn_implementation="sdpa"))

    def build(precision: str, baseline_precision: str, tiny: bool, device: torch.device) -> Contest:
        inputs = make_batches(lengths_name, tiny)
        batch = inputs.batches[0]
        mask = batch["attention_mask"].to(device)
        packing = find_sequences(tuple(mask.shape), device, mask, None)
        heads, size = (5, 4) if tiny else (HEADS, HEAD_SIZE)
        generator = torch.Generator().manual_seed(0)
        numbers = [torch.randn(*mask.shape, heads, size, generator=generator) for _ in NAMES]

        def ours(states: list[torch.Tensor]) -> torch.Tensor:
            """Queries, keys and values (1, N, A, D) -> (1, N, A * D)."""
            kwargs = {"packing": packing, "scaling": size**-0.5, "dropout": 0.0}
            return attend_to(sdpa_attention_forward, layer, *states, **kwargs)[0]

        def real(states: torch.Tensor) -> torch.Tensor:
            """(B, T, ...) -> (1, N, ...), in the order of the packed tokens."""
            return packing.pack(states)

        def side(name: str, attention: Callable, take: Callable, precision: str) -> Side:
            """`take` makes what the side works on of the padded batch."""
            gradient, *states = (take(tensor.to(device, model_dtype(precision))) for tensor in numbers)
            gradient = gradient.flatten(-2) * (1 if take is real else mask[..., None])
            states = [state.detach().requires_grad_() for state in states]

            def run(index: int) -> tuple[torch.Tensor, ...]:
                with switches(precision):
                    output = attention(states)
                    return output, *torch.autograd.grad(output, states, gradient)

            def check() -> Outputs:
                outputs = run(0) if take is real else map(real, run(0))
                return {name: tensor.detach() for name, tensor in zip(NAMES, outputs, strict=True)}

            return Side(name, run, check)

        pairs = sum(length**2 for length in lengths_of(batch))
        return Contest(
            side("zoo", ours, real, precision),
            side("sdpa", partial(attend_padded, mask=mask), lambda states: states, baseline_precision),
            inputs.work,
            tolerance(precision, baseline_precision, device=device),
            Need("products", lambda index: PASSES * 2 * 2 * pairs * heads * size),
            device,
            items=lambda index: len(packing.tokens),
        )

    return build


ROWS: dict[str, tuple[str, Build]] = {
    f"attention-{length}": ("attention of 12 heads, forward and backward", attend(sequences, length))
    for sequences, length in ((32, 24), (8, 128), (4, 384))
}
