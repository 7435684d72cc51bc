"""BERT's parts, called one by one as transformers' are: to mix states, to attribute, to train against noise."""

import pytest
import torch
from transformers import DynamicCache
from transformers.masking_utils import create_bidirectional_mask

from tests.support.bert_cases import batch, pair


IDS = torch.tensor([[5, 9, 2, 7], [3, 1, 8, 6]])
SEGMENTS = torch.tensor([[0, 0, 1, 1], [0, 1, 1, 1]])
POSITIONS = torch.tensor([[3, 0, 2, 1]])


def assert_close(ours, stock) -> None:
    torch.testing.assert_close(ours, stock, atol=1e-5, rtol=1e-5)


@pytest.fixture
def models(tmp_path):
    return pair("Model", tmp_path)


@pytest.mark.parametrize(
    ("positional", "named"),
    [
        ((IDS,), {}),
        ((IDS, SEGMENTS), {}),
        ((IDS, SEGMENTS, POSITIONS), {}),
        ((IDS, None, POSITIONS), {}),
        ((IDS, None, None, None, 5), {}),
        ((), {"input_ids": IDS, "position_ids": POSITIONS, "token_type_ids": SEGMENTS}),
        ((None, SEGMENTS, None, torch.randn(2, 4, 36)), {}),
        ((), {"inputs_embeds": torch.randn(2, 4, 36)}),
    ],
)
def test_embeddings_take_what_the_stock_models_take(positional, named, models):
    stock, ours = (model.embeddings(*positional, **named) for model in models)
    assert_close(ours, stock)


def test_the_positions_of_embeddings_begin_behind_the_cache(models):
    """By the name of transformers 5.23; later ones call it cache_length."""
    stock, ours = models
    assert_close(ours.embeddings(IDS, past_key_values_length=5), stock.embeddings(IDS, None, None, None, 5))


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_the_encoder_takes_states_and_the_mask_that_transformers_makes(attention, models):
    stock, ours = models
    inputs, states = batch([5, 9, 2]), torch.randn(3, 9, 36)
    for model in models:
        model.set_attn_implementation(attention)
    mask = create_bidirectional_mask(stock.config, states, inputs["attention_mask"])
    real = inputs["attention_mask"].bool()
    to_add = torch.where(real, 0.0, torch.finfo(torch.float32).min)[:, None, None, :]
    for each in (None, mask, to_add):
        kept = torch.ones_like(real) if each is None else real
        expected, found = stock.encoder(states, each), ours.encoder(states, each)
        assert type(found) is type(expected) and found.keys() == expected.keys()
        assert_close(found[0][kept], expected.last_hidden_state[kept])
        found = ours.encoder(hidden_states=states, attention_mask=each, use_cache=False, output_attentions=False)
        assert_close(found.last_hidden_state[kept], expected[0][kept])


def test_a_layer_and_its_attention_take_states_and_a_mask(models):
    states, mask = torch.randn(3, 9, 36), torch.rand(3, 1, 9, 9) < 0.7
    mask |= torch.eye(9, dtype=torch.bool)
    stock, ours = (model.encoder.layer[1] for model in models)
    assert_close(ours(states, mask), stock(states, mask))
    assert_close(ours.attention(states, mask)[0], stock.attention(states, mask)[0])
    assert_close(ours.attention.self(states, mask)[0], stock.attention.self(states, mask)[0])


@pytest.mark.parametrize("name", ["encoder_hidden_states", "encoder_attention_mask", "past_key_values"])
def test_the_encoder_refuses_the_states_of_another(models, name):
    with pytest.raises(ValueError, match=f"{name}: .*no cross-attention. Use transformers.BertLMHeadModel"):
        models[1].encoder(torch.randn(2, 4, 36), **{name: torch.randn(2, 4, 36)})


def test_a_layer_by_itself_does_not_know_its_place_in_a_cache(models):
    with pytest.raises(ValueError, match="a cache holds the states of all layers: give the layer's `place`"):
        models[1].encoder.layer[0](torch.randn(2, 4, 36), layer_past=DynamicCache())


def test_the_pooler_reads_the_first_of_all_states(models):
    states = torch.randn(3, 9, 36)
    stock, ours = (model.pooler(states) for model in models)
    assert_close(ours, stock)


@pytest.mark.parametrize("head", ["ForMaskedLM", "ForNextSentencePrediction", "ForPreTraining"])
def test_the_heads_of_pre_training_take_states(head, tmp_path):
    stock, ours = (model.cls for model in pair(head, tmp_path))
    states = {"ForMaskedLM": [torch.randn(3, 9, 36)], "ForNextSentencePrediction": [torch.randn(3, 36)]}
    states = states.get(head, [torch.randn(3, 9, 36), torch.randn(3, 36)])
    assert_close(ours(*states), stock(*states))


def test_the_parts_in_a_row_are_the_model(models):
    stock, ours = models
    inputs = batch([9, 9, 9])
    embedded = ours.embeddings(inputs["input_ids"], inputs["token_type_ids"])
    states = ours.encoder(embedded).last_hidden_state
    expected = stock(**inputs)
    assert_close(states, expected.last_hidden_state)
    assert_close(ours.pooler(states), expected.pooler_output)
