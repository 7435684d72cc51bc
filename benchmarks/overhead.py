"""What a step of BERT takes before its numbers are computed: the calls for which a GPU waits on small batches.

Twelve layers are so narrow, and the batches so short, that the CPU time of a step is that of its calls, in Python and
in torch. The processor stands for a GPU: nothing is grouped by length, and queries, keys and values are one product.
A batch that carries its packing goes to a stand-in of torch's flash attention, which takes as many calls. Another one
is so small that it is computed with its padding. So few tokens weigh nothing. Results are compared without the
stand-in.
"""

import contextlib
from collections.abc import Iterator
from unittest import mock

import torch

from modeling.shared import modeling_attention, modeling_onednn, modeling_packing

from .bert import (
    OURS,
    PASSES,
    STOCK,
    add_packing,
    classifier_flop,
    draw_sequences,
    lengths_of,
    loss_and_gradients,
    make_models,
    on,
    pad,
)
from .measure import Build, Contest, Need, Outputs, Side
from .precision import forward_backward, tolerance


LENGTHS = (2, 6, 3, 5)  # tokens of the rows
BATCHES = 4


def attend_to_all(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *arguments: object, **scale: float):
    """Takes (N, A, D) states as torch's flash attention does, in one call, but each token sees all sequences."""
    states = (state.transpose(0, 1).unsqueeze(0) for state in (query, key, value))  # (1, A, N, D)
    output = torch.nn.functional.scaled_dot_product_attention(*states)
    return output.squeeze(0).transpose(0, 1), None, None, None, None


@contextlib.contextmanager
def as_on_a_gpu(packed: bool) -> Iterator[None]:
    """The processor counts as a GPU, whose batches are all packed, or all computed with their padding."""
    device = {"GROUPED_DEVICES": (), "READ_DEVICES": (), "FLASH_DEVICES": ("cpu",)}
    flash = {"FLASH_HEADS": range(1000), "FLASH_TYPES": (torch.float32, torch.bfloat16), "_has_flash": bool}
    few = {"FEW_TOKENS": 0} if packed else {}
    attention = {"TOGETHER_DEVICES": ("cpu",), "FLASH_OPERATION": attend_to_all}
    attention |= {"_is_for_sdpa": lambda query, dropout: query.numel() > 0}
    with (
        mock.patch.multiple(modeling_packing, **device, **flash, **few),
        mock.patch.multiple(modeling_attention, **attention),
        mock.patch.object(modeling_onednn, "DEVICES", ()),
    ):
        yield


def step(packed: bool) -> Build:
    """Forward and backward of sequence classification."""

    def build(precision: str, baseline_precision: str, tiny: bool, device: torch.device) -> Contest:
        sequences = draw_sequences(torch.tensor(LENGTHS * BATCHES), tiny=True)
        stacks = [sequences[start : start + len(LENGTHS)] for start in range(0, len(sequences), len(LENGTHS))]
        batches = [pad(stack) | {"labels": torch.arange(len(LENGTHS)) % 2} for stack in stacks]
        inputs = {OURS: [add_packing(batch) for batch in batches] if packed else batches, STOCK: batches}
        inputs = {name: [on(device, batch) for batch in each] for name, each in inputs.items()}
        models = make_models("ForSequenceClassification", "narrow", tiny, dropout=0.0)

        def side(name: str, precision: str) -> Side:
            model = models[name].train().to(device)

            def run(index: int) -> None:
                batch = inputs[name][index % BATCHES]
                with as_on_a_gpu(packed):
                    forward_backward(lambda: model(**batch).loss, precision, device)

            def check() -> Outputs:
                return loss_and_gradients(model, inputs[name][0], precision)

            return Side(name, run, check)

        config = models[OURS].config
        return Contest(
            side(OURS, precision),
            side(STOCK, baseline_precision),
            f"{len(LENGTHS)} rows of {min(LENGTHS)} to {max(LENGTHS)} tokens, {'packed' if packed else 'padded'}",
            tolerance(precision, baseline_precision, device=device),
            Need("products", lambda index: PASSES * classifier_flop(config, batches[index % BATCHES])),
            device,
            items=lambda index: sum(lengths_of(batches[index % BATCHES])),
        )

    return build


TITLE = "12 x 12, forward and backward"
ROWS: dict[str, tuple[str, Build]] = {
    "overhead-padded": (TITLE, step(packed=False)),
    "overhead-packed": (TITLE, step(packed=True)),
}
