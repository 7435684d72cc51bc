"""What `embed` gives: chosen layers, the vectors of boundaries, one vector a sentence."""

import logging

import pytest
import torch
import torch.nn as nn

from modeling import ElmoTokenizer
from modeling.elmo.modeling_elmo import logger
from tests.models.test_elmo_bilm import SENTENCES, K
from tests.support.elmo_reference import BEGIN, END, Reference, small_model


@pytest.mark.parametrize("changes", [{}, {"state": "warm", "use_skip_connections": False}], ids=["zero", "warm"])
def test_embed_gives_the_boundaries_their_vectors(changes):
    model = small_model(**changes)
    reference, sentences = Reference(model), [*SENTENCES, []]
    for words, found in zip(sentences, model.embed(sentences, 2, "all", boundaries=True), strict=True):
        forward, _ = reference.direction([BEGIN, *words, END], "forward", None)
        backward, _ = reference.direction([END, *words[::-1], BEGIN], "backward", None)
        for layer, ahead, behind in zip(found, forward, backward, strict=True):
            wanted = torch.stack([torch.cat(pair) for pair in zip(ahead, behind[::-1], strict=True)])
            torch.testing.assert_close(layer.double(), wanted.detach(), atol=1e-6, rtol=0)
    mixed = model.embed(sentences, boundaries=True)
    for found, layers in zip(mixed, model.embed(sentences, 2, "all", boundaries=True), strict=True):
        torch.testing.assert_close(found, layers.mean(0), atol=1e-6, rtol=0)


@pytest.mark.parametrize("boundaries", [False, True])
def test_embed_chooses_layers_and_pools_words(boundaries):
    model, choices = small_model(), {"boundaries": boundaries}
    nn.init.normal_(model.mixes[0].weights)
    nn.init.constant_(model.mixes[0].gamma, 1.7)
    every = model.embed(SENTENCES, layers="all", **choices)
    of_layers = {"top": every[0][2], "mean": every[0].mean(0), 0: every[0][0], 1: every[0][1], 2: every[0][2]}
    of_layers["mix"] = 1.7 * torch.einsum("l,lth->th", model.mixes[0].layer_weights, every[0])
    for layers, wanted in of_layers.items():
        found = model.embed(SENTENCES, layers=layers, **choices)
        torch.testing.assert_close(found[0], wanted.detach(), atol=1e-6, rtol=0)
        pooled = model.embed(SENTENCES, layers=layers, pooling="max", **choices)
        torch.testing.assert_close(pooled[0], wanted.detach().amax(0), atol=1e-6, rtol=0)
    pooled = model.embed(SENTENCES, layers="all", pooling="mean", **choices)
    torch.testing.assert_close(pooled, [layers.mean(1) for layers in every], atol=1e-6, rtol=0)


def test_embed_finds_the_words_of_a_tokenizer_that_pads_on_the_left():
    model = small_model()
    tokenizer = ElmoTokenizer(max_characters_per_token=K, padding_side="left")
    for boundaries in (False, True):
        found = model.embed(SENTENCES, tokenizer=tokenizer, boundaries=boundaries)
        torch.testing.assert_close(found, model.embed(SENTENCES, boundaries=boundaries), atol=1e-6, rtol=0)


def test_strings_of_one_word_each_are_pointed_out_once(caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    logger.warning_once.cache_clear()
    model = small_model()
    for sentences in (["the cat", "Zoë"], [["the", "cat"], ["Zoë"]], ["Zoë"]):
        model.embed(sentences)
    assert not caplog.records
    for _ in range(2):
        assert [tuple(vectors.shape) for vectors in model.embed(["the", "cat"])] == [(1, 14)] * 2
    (record,) = caplog.records
    assert "['the', 'cat']: each string is read as a sentence of one word" in record.message


def test_normalised_layers_have_a_mean_over_words_alone():
    model = small_model(mix_layer_norm=True)
    plain, with_boundaries = model.embed(SENTENCES), model.embed(SENTENCES, boundaries=True)
    torch.testing.assert_close([vectors[1:-1] for vectors in with_boundaries], plain, atol=1e-6, rtol=0)


@pytest.mark.parametrize("state", ["carry", "warm"])
def test_boundaries_change_no_vector_of_a_word_and_no_state(state):
    models = [small_model(state=state) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    for _ in range(2):  # the second time from the carried state
        plain, with_boundaries = models[0].embed(SENTENCES), models[1].embed(SENTENCES, boundaries=True)
        torch.testing.assert_close([vectors[1:-1] for vectors in with_boundaries], plain, atol=1e-6, rtol=0)
