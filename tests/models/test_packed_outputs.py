"""What a model returns of a packed batch, for BERT and GPT."""

import pytest
import torch

from tests.support import bert_cases, gpt_cases
from tests.support.families import EACH_FAMILY


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


@torch.no_grad()
@pytest.mark.parametrize("hidden", [False, True], ids=["alone", "beside all states"])
def test_the_last_token_of_a_row_of_several_sequences_is_that_of_all_tokens(hidden, tmp_path):
    _, model = gpt_cases.pair("Model", tmp_path)
    inputs = gpt_cases.batch([8, 12, 5])
    inputs["seq_idx"] = torch.tensor([[0] * 5 + [1] * 7, [0] * 4 + [1] * 3 + [2] * 5, [0] * 3 + [1] * 4 + [2] * 5])
    last = inputs["attention_mask"].sum(1) - 1  # in the third row, the last sequence is padding only
    every = model(**inputs).last_hidden_state[torch.arange(3), last]
    one = model(**inputs, last_token_only=True, output_hidden_states=hidden).last_hidden_state
    assert one.shape[1] == 1
    torch.testing.assert_close(one[:, 0], every)
    torch.testing.assert_close(model(**inputs, unpad=False).last_hidden_state[torch.arange(3), last], every)
