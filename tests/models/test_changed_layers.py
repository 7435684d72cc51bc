"""Layers that are added, removed, shared, copied or moved after the model was made: each runs where it stands."""

import copy

import pytest
import torch
from transformers import DynamicCache

from tests.support import gpt_cases
from tests.support.families import EACH_FAMILY
from tests.support.model_cases import assert_same_gradients


def layers_of(model) -> torch.nn.ModuleList:
    return model.h if hasattr(model, "h") else model.encoder.layer


def append(layers):
    layers.append(copy.deepcopy(layers[0]))


def remove(layers):
    del layers[1]


def share(layers):
    layers[2] = layers[0]


def replace_by_a_copy(layers):
    layers[0] = copy.deepcopy(layers[2])


def swap(layers):
    layers[0], layers[2] = layers[2], layers[0]


CHANGES = pytest.mark.parametrize("change", [append, remove, share, replace_by_a_copy, swap])


@EACH_FAMILY
@CHANGES
def test_changed_layers_compute_what_those_of_the_stock_model_compute(cases, change, tmp_path):
    stock, ours = cases.pair("Model", tmp_path)
    for model in (stock, ours):
        change(layers_of(model))
    inputs = cases.batch([5, 9, 2])
    real = inputs["attention_mask"].bool()
    options = [{}, {"unpad": False}] + [{"use_cache": True}] * (cases is gpt_cases)
    with torch.no_grad():
        expected = stock(**inputs)[0][real]
        for each in options:
            torch.testing.assert_close(ours(**inputs, **each)[0][real], expected, atol=1e-5, rtol=1e-5)


@EACH_FAMILY
def test_a_shared_layer_that_is_computed_twice_has_the_stock_models_gradients(cases, tmp_path):
    stock, ours = cases.pair("Model", tmp_path)
    inputs = cases.batch([5, 9, 2])
    real = inputs["attention_mask"].bool()
    ours.train().activation_checkpointing_enable()
    for model in (stock, ours):
        layers_of(model).append(layers_of(model)[0])
        model(**inputs)[0][real].square().sum().backward()
    assert_same_gradients(ours, stock, atol=1e-4)


@EACH_FAMILY
def test_a_shared_layer_keeps_keys_for_each_of_its_places(cases, tmp_path):
    """A prefix of five tokens in front, as prefix tuning puts it there; its keys differ between the places."""
    _, ours = cases.pair("Model", tmp_path)
    apart = copy.deepcopy(ours)
    share(layers_of(ours))
    layers_of(apart)[2].load_state_dict(layers_of(apart)[0].state_dict())
    prefix = [(torch.randn(2, 3, 5, 12), torch.randn(2, 3, 5, 12)) for _ in range(3)]
    ids = torch.randint(1, 90, (2, 4))
    with torch.no_grad():
        states, expected = (model(ids, past_key_values=DynamicCache(prefix))[0] for model in (ours, apart))
    torch.testing.assert_close(states, expected)


@CHANGES
@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_text_is_generated_from_changed_layers_as_by_the_stock_model(change, cache, tmp_path):
    stock, ours = gpt_cases.pair("LMHeadModel", tmp_path)
    for model in (stock, ours):
        change(model.transformer.h)
        model.config.n_layer = len(model.transformer.h)
    ids, options = torch.randint(1, 90, (2, 4)), {"max_new_tokens": 6, "do_sample": False}
    texts = stock.generate(ids, **options), ours.generate(ids, cache_implementation=cache, **options)
    assert torch.equal(*texts)


def test_a_cache_of_the_number_of_layers_before_a_change_is_refused(tmp_path):
    _, ours = gpt_cases.pair("LMHeadModel", tmp_path)
    append(ours.transformer.h)
    with pytest.raises(ValueError, match=r"The cache has 3 layers and the model 4: set config\.n_layer to 4"):
        ours.generate(torch.randint(1, 90, (1, 4)), max_new_tokens=2)
