"""GPT on the real tokens only, or on the last one alone where no other is read; test_packing has what BERT shares."""

import pytest
import torch

from modeling.shared import modeling_packing
from tests.support.gpt_cases import batch, case, pair, zoo
from tests.support.model_cases import ROWS, assert_same_gradients, flattened, on_the_left


ATTENTION = pytest.mark.parametrize("attention", ["eager", "sdpa"])
UNEVEN = [5, 9, 2, 5, 4, 6, 3]


def four_dimensional(inputs):
    """Which tokens each one sees: those before it, and some after it."""
    columns = inputs["input_ids"].shape[1]
    seen = torch.rand(len(inputs["input_ids"]), 1, columns, columns) < 0.3
    return inputs | {"attention_mask": seen | torch.ones(columns, columns, dtype=torch.bool).tril()}


def in_rows_of_two(inputs):
    """Two sequences a row, the second beginning in the fourth column."""
    columns = inputs["input_ids"].shape[1]
    return inputs | {"seq_idx": torch.tensor([0] * 3 + [1] * (columns - 3)).expand(len(inputs["input_ids"]), -1)}


BATCHES = {
    "uneven": lambda: batch(UNEVEN),
    "even": lambda: batch([6] * 4),
    "no mask": lambda: {"input_ids": batch([6] * 4)["input_ids"]},
    "left padding": lambda: on_the_left(batch(UNEVEN)),
    "holes": lambda: batch(holes=True),
    "a mask for each pair": lambda: four_dimensional(batch(UNEVEN)),
    "one token": lambda: batch([1, 1, 1]),
    "one token among others": lambda: batch([1, 7, 1, 3]),
    "nothing but padding": lambda: (
        batch([5, 2, 4]) | {"attention_mask": torch.tensor([[1] * 5, [0] * 5, [1] * 4 + [0]])}
    ),
    "packed": lambda: in_rows_of_two(batch([6] * 4)),
    "packed and padded": lambda: in_rows_of_two(batch(UNEVEN)),
}


@pytest.mark.parametrize("way", ["in groups", "on a grid", "padded"])
@ATTENTION
@pytest.mark.parametrize("kind", BATCHES)
def test_the_last_token_alone_is_the_last_of_all(kind, attention, way, monkeypatch):
    if way == "on a grid":
        monkeypatch.setattr(modeling_packing, "GROUPED_DEVICES", ())
        monkeypatch.setattr(modeling_packing, "FEW_TOKENS", 0)
    ours = zoo("Model", attention)
    inputs = BATCHES[kind]()
    mask = inputs.get("attention_mask", torch.ones_like(inputs["input_ids"]))
    mask = torch.ones_like(inputs["input_ids"]) if mask.dim() == 4 else mask
    last = (mask * torch.arange(mask.shape[1])).argmax(1)
    states, gradients = [], []
    for asked in ({}, {"last_token_only": True}):
        ours.zero_grad()
        state = ours(**inputs, unpad=way != "padded", **asked).last_hidden_state
        states.append(state if asked else state[torch.arange(len(last)), last].unsqueeze(1))
        told = mask.any(1)  # a row of nothing but padding has no last token; its state is finite and means nothing
        states[-1][told].square().sum().backward()
        gradients.append([parameter.grad for parameter in ours.parameters()])
    assert states[1].shape == (len(last), 1, 36) and states[1].isfinite().all()
    torch.testing.assert_close(states[1][told], states[0][told], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(gradients[1], gradients[0], atol=1e-4, rtol=1e-4)


def test_the_last_token_alone_leaves_recorded_states_whole():
    ours = zoo("Model", "eager")
    this = case("Model")
    asked = {"output_hidden_states": True, "output_attentions": True}
    whole, last = (ours(**this.inputs, **asked, last_token_only=only) for only in (False, True))
    torch.testing.assert_close(last.hidden_states, whole.hidden_states)
    torch.testing.assert_close(last.attentions, whole.attentions)
    assert last.last_hidden_state.shape == (ROWS, 1, 36)


@ATTENTION
def test_a_cache_keeps_packed_rows_apart_as_well(attention):
    ours = zoo("LMHeadModel", attention)
    inputs = in_rows_of_two(batch(UNEVEN))
    real = inputs["attention_mask"].bool()
    kept, plain = (ours(**inputs, use_cache=use_cache) for use_cache in (True, False))
    assert kept.past_key_values.get_seq_length() == 9
    torch.testing.assert_close(kept.logits[real], plain.logits[real], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("way", ["in groups", "on a grid", "padded"])
@ATTENTION
def test_packed_rows_are_the_separate_rows(attention, way, tmp_path, monkeypatch):
    if way == "on a grid":
        monkeypatch.setattr(modeling_packing, "GROUPED_DEVICES", ())
        monkeypatch.setattr(modeling_packing, "FEW_TOKENS", 0)
    stock, ours = pair("LMHeadModel", tmp_path, attention)
    inputs = batch(UNEVEN)
    real = inputs["attention_mask"].bool()
    flat = flattened(inputs, labelled=True)
    labels = inputs["input_ids"].masked_fill(~real, -100)
    expected, output = stock(**inputs, labels=labels), ours(**flat, unpad=way != "padded")
    torch.testing.assert_close(output.logits[0], expected.logits[real], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(output.loss, expected.loss, atol=1e-5, rtol=1e-5)
    leaking = stock(**{name: flat[name] for name in ("input_ids", "position_ids")}).logits[0]
    assert (leaking - expected.logits[real]).abs().max() > 0.01  # or the test could not fail
    for loss in (expected.loss, output.loss):
        loss.backward()
    assert_same_gradients(ours, stock)


@pytest.mark.usefixtures("_without_compiler")
def test_flex_attention_keeps_packed_rows_apart_and_finds_the_last_token(tmp_path):
    stock, ours = pair("Model", tmp_path, "flex_attention")
    inputs = batch(UNEVEN)
    flat = flattened(inputs)
    flat = {name: flat[name] for name in ("input_ids", "position_ids")} | {"use_cache": False}
    with torch.no_grad():  # on the CPU it has no backward pass
        expected = stock(**inputs).last_hidden_state[inputs["attention_mask"].bool()]
        torch.testing.assert_close(ours(**flat).last_hidden_state[0], expected, atol=1e-5, rtol=1e-5)
        last = ours(**flat, last_token_only=True).last_hidden_state[0]
        torch.testing.assert_close(last, expected[-1:], atol=1e-5, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("head", ["LMHeadModel", "ForSequenceClassification"])
def test_a_compiled_training_step_has_the_same_loss_and_gradients(head):
    ours = zoo(head, lm_loss_weight=0.5, n_layer=1).train()
    this = case(head)
    torch._dynamo.reset()
    losses, gradients = [], []
    for model in (ours, torch.compile(ours, fullgraph=True, backend="aot_eager")):
        ours.zero_grad()
        losses.append(model(**this.inputs, **this.labels).loss)
        losses[-1].backward()
        gradients.append([parameter.grad for parameter in ours.parameters()])
    torch.testing.assert_close(*losses, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(*gradients, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("place", ["the call", "the configuration"])
@pytest.mark.parametrize("devices", [("cpu",), ()], ids=["groups", "grid"])
@ATTENTION
def test_is_causal_false_shows_each_token_its_whole_sequence(attention, devices, place, monkeypatch):
    monkeypatch.setattr(modeling_packing, "GROUPED_DEVICES", devices)
    monkeypatch.setattr(modeling_packing, "FEW_TOKENS", 0)
    model, inputs = zoo("Model", attention), batch(UNEVEN)
    rows = [ids[:length].unsqueeze(0) for ids, length in zip(inputs["input_ids"], UNEVEN, strict=True)]
    everything = [torch.ones(1, 1, length, length, dtype=torch.bool) for length in UNEVEN]
    wanted = [model(row, attention_mask=mask).last_hidden_state[0] for row, mask in zip(rows, everything, strict=True)]
    options = {"is_causal": False} if place == "the call" else {}
    model.config.is_causal = False if place == "the configuration" else None
    for row, states in zip(rows, wanted, strict=True):
        torch.testing.assert_close(model(row, **options).last_hidden_state[0], states, atol=1e-5, rtol=0)
    for computed in ({}, {"unpad": False}, {"output_attentions": True}, {"last_token_only": True}):
        found = model(**inputs, **options, **computed).last_hidden_state
        for states, length, expected in zip(found, UNEVEN, wanted, strict=True):
            few = computed.get("last_token_only")
            torch.testing.assert_close(states[: 1 if few else length], expected[-1 if few else 0 :], atol=1e-5, rtol=0)
