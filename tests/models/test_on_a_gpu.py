"""What only a GPU can show of BERT and GPT in training. Without one, the same steps run on the CPU.

pytest tests/models/test_on_a_gpu.py
"""

import contextlib

import pytest
import torch

from benchmarks import gpt
from benchmarks.bert import OURS, STOCK, add_packing, make_batches, make_masked_batches, make_models
from benchmarks.precision import forward_backward
from modeling.shared.modeling_heads import IGNORED


ON_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if ON_GPU else "cpu")
TINY = not ON_GPU


def classified() -> dict:
    return make_batches("pairs", TINY).batches[0]


def masked() -> dict:
    """The last rows are padded."""
    batch = dict(make_masked_batches(TINY, rows=8).batches[0])
    columns = batch["input_ids"].shape[1] // 2
    for name, padding in (("attention_mask", 0), ("labels", IGNORED)):
        batch[name] = batch[name].clone()
        batch[name][1:, columns:] = padding
    return batch


def texts() -> dict:
    return gpt.make_paragraphs(TINY).batches[0]


STEPS = {
    "bert, classes": (make_models, "ForSequenceClassification", classified),
    "bert, masked words": (make_models, "ForMaskedLM", masked),
    "gpt, next words": (gpt.make_models, "LMHeadModel", texts),
}
each_step = pytest.mark.parametrize("step", STEPS)
each_way = pytest.mark.parametrize("packed", [False, True], ids=["as it is", "packed"])


def on_device(batch: dict, packed: bool) -> dict:
    batch = add_packing(batch) | {"unpad": True} if packed else batch
    return {name: value.to(DEVICE) if hasattr(value, "to") else value for name, value in batch.items()}


def train_once(model: torch.nn.Module, batch: dict, precision: str) -> tuple[float, torch.Tensor]:
    """The loss, and all gradients in one tensor of float64."""
    model.to(DEVICE).train().zero_grad()
    loss = forward_backward(lambda: model(**batch).loss, precision, DEVICE)
    return loss.item(), torch.cat([weight.grad.flatten().double() for weight in model.parameters()])


@each_step
@each_way
def test_a_step_gives_the_loss_and_the_gradients_of_transformers(step, packed):
    make, head, make_batch = STEPS[step]
    models, batch = make(head, "small", TINY, dropout=0.0), make_batch()
    inputs = {OURS: on_device(batch, packed), STOCK: on_device(batch, packed=False)}
    loss, exact = train_once(models[STOCK], inputs[STOCK], "highest")

    def distance(side: str, precision: str) -> float:
        of_side, gradients = train_once(models[side], inputs[side], precision)
        assert of_side == pytest.approx(loss, rel=1e-5 if precision == "highest" else 1e-2)
        return ((gradients - exact).norm() / exact.norm()).item()

    assert distance(OURS, "highest") < 1e-5
    assert distance(OURS, "bf16") < 1.2 * distance(STOCK, "bf16")


@contextlib.contextmanager
def waiting_is_an_error():
    if ON_GPU:
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        if ON_GPU:
            torch.cuda.set_sync_debug_mode("default")


@each_step
@each_way
def test_a_step_on_a_batch_with_its_packing_never_waits_for_the_gpu(step, packed):
    make, head, make_batch = STEPS[step]
    model = make(head, "small", TINY, dropout=0.1)[OURS].to(DEVICE).train()
    batch, options = make_batch(), {}
    if head == "LMHeadModel":  # as run_pretraining.py trains it
        batch["shift_labels"] = torch.nn.functional.pad(batch["labels"], (0, 1), value=IGNORED)[:, 1:]
        options = {"skip_logits": True}
    batch = on_device(add_packing(batch), packed)
    for turn in range(2):  # the first one loads kernels
        with waiting_is_an_error() if turn else contextlib.nullcontext():
            with torch.autocast(DEVICE.type, torch.bfloat16):
                loss = model(**batch, **options).loss
            loss.backward()
    assert loss.isfinite()


@each_step
def test_two_runs_with_one_seed_give_the_same_bits(step):
    make, head, make_batch = STEPS[step]
    batch = on_device(make_batch(), packed=True)

    def train() -> list[torch.Tensor]:
        model = make(head, "small", TINY, dropout=0.1)[OURS].to(DEVICE).train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        torch.manual_seed(7)
        for _ in range(5):
            with torch.autocast(DEVICE.type, torch.bfloat16):
                loss = model(**batch).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        return list(model.parameters())

    assert all(torch.equal(first, second) for first, second in zip(train(), train(), strict=True))
