"""What a model returns of a packed batch, for BERT and GPT, and what its layers see of it."""

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from modeling.shared import modeling_attention
from tests import bert_cases, gpt_cases


EACH_FAMILY = pytest.mark.parametrize("cases", [bert_cases, gpt_cases], ids=["bert", "gpt"])


def layers_of(cases, model) -> torch.nn.ModuleList:
    return model.base_model.encoder.layer if cases is bert_cases else model.base_model.h


@pytest.mark.parametrize(
    ("cases", "head"),
    [(bert_cases, head) for head in ("Model", *bert_cases.HEADS)]
    + [(gpt_cases, head) for head in ("Model", "LMHeadModel", "ForSequenceClassification")],
)
@pytest.mark.parametrize("given", [{}, {"output_hidden_states": True}], ids=["states", "all states"])
@torch.no_grad()
def test_a_configuration_without_return_dict_gives_the_same_in_a_tuple(cases, head, given, tmp_path):
    _, model = cases.pair(head, tmp_path)
    inputs = cases.case(head).inputs
    expected = model(**inputs, **given).to_tuple()
    model.config.return_dict = False
    torch.testing.assert_close(model(**inputs, **given), expected)
    assert model(**inputs, **given, return_dict=True).to_tuple()[0].equal(expected[0])


@EACH_FAMILY
@pytest.mark.parametrize("lengths", [[5, 9, 2], [9, 9, 9]], ids=["padded", "full"])
def test_gradients_reach_every_recorded_state(cases, lengths, tmp_path):
    _, model = cases.pair("ForSequenceClassification", tmp_path)
    outputs = model(**cases.batch(lengths), labels=torch.tensor([0, 1, 2]), output_hidden_states=True)
    for gradient in torch.autograd.grad(outputs.loss, outputs.hidden_states):
        assert gradient.abs().sum() > 0


@EACH_FAMILY
@torch.no_grad()
def test_one_token_of_a_model_without_layers_is_that_of_its_embeddings(cases, tmp_path):
    _, model = cases.pair("Model", tmp_path)
    del layers_of(cases, model)[:]
    inputs, only = cases.batch([5, 9, 2]), "first_token_only" if cases is bert_cases else "last_token_only"
    every = model(**inputs).last_hidden_state
    last = inputs["attention_mask"].sum(1) - 1
    columns = torch.zeros_like(last) if cases is bert_cases else last
    one = model(**inputs, **{only: True}).last_hidden_state
    torch.testing.assert_close(one[:, 0], every[torch.arange(3), columns])


@EACH_FAMILY
@torch.no_grad()
def test_rows_of_any_length_are_multiplied_in_few_sizes(cases, tmp_path, monkeypatch):
    """oneDNN compiles and keeps a program for each size."""
    _, model = cases.pair("Model", tmp_path)
    sizes, layer = set(), type(layers_of(cases, model)[0])
    forward = layer.forward

    def recorded(self, hidden_states, *args, **kwargs):  # not a hook, for which padding would be computed
        sizes.add(hidden_states.shape[1])
        return forward(self, hidden_states, *args, **kwargs)

    monkeypatch.setattr(layer, "forward", recorded)
    real = set()
    for count in range(40):
        lengths = [19, *torch.randint(1, 19, (1 + count % 13,)).tolist()]
        inputs = cases.batch(lengths)
        mask = inputs["attention_mask"].bool()
        real.add(int(mask.sum()))
        states = model(**inputs).last_hidden_state
        expected = model(**inputs, unpad=False).last_hidden_state
        sizes.discard(mask.shape[1])  # of the batch with its padding
        torch.testing.assert_close(states[mask], expected[mask], atol=1e-5, rtol=1e-5)
        assert not states[~mask].any()
    assert len(real) > 25 and len(sizes) < 25
    assert all(size.bit_length() < 5 or size % 2 ** (size.bit_length() - 4) == 0 for size in sizes)


@EACH_FAMILY
@pytest.mark.parametrize(("precision", "short"), [("highest", 128), ("medium", 128), ("medium", 8)])
@pytest.mark.parametrize("lengths", [[9, 5, 9], [9, 9, 9]], ids=["padded", "full"])
def test_short_sequences_are_not_left_to_sdpa_where_products_are_onednns(
    cases, precision, short, lengths, tmp_path, monkeypatch
):
    _, model = cases.pair("Model", tmp_path)
    calls = []
    monkeypatch.setattr(
        torch.nn.functional,
        "scaled_dot_product_attention",
        lambda *args, **kwargs: calls.append(1) or scaled_dot_product_attention(*args, **kwargs),
    )
    monkeypatch.setattr(modeling_attention, "SHORT", short)
    inputs = cases.batch(lengths)
    expected = model(**inputs).last_hidden_state
    calls.clear()
    torch.set_float32_matmul_precision(precision)
    torch.testing.assert_close(model(**inputs).last_hidden_state, expected, atol=1e-5, rtol=1e-5)
    assert bool(calls) == (precision == "highest" or short < 9)
    calls.clear()
    model.double()(**inputs)
    assert calls  # oneDNN does not multiply float64
