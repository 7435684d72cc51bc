"""The zoo's GPT computes what transformers' OpenAI GPT computes, where BERT has another test or no such thing."""

import pytest
import torch

from tests.support.gpt_cases import STOCK_HEADS, batch, case, pair
from tests.support.model_cases import assert_same_outputs


UNPAD = pytest.mark.parametrize("unpad", [True, False], ids=["packed", "padded"])
ATTENTION = pytest.mark.parametrize("attention", ["eager", "sdpa"])


@UNPAD
@pytest.mark.parametrize("head", ["Model", *STOCK_HEADS])
def test_in_double_precision_nothing_is_left_but_rounding(head, unpad, tmp_path):
    stock, ours = (model.double() for model in pair(head, tmp_path))
    this = case(head, holes=True)
    assert_same_outputs(ours(**this.inputs, unpad=unpad), stock(**this.for_stock), this.real, atol=1e-12)


def test_labels_may_come_shifted(tmp_path):
    _, ours = pair("LMHeadModel", tmp_path)
    this = case("LMHeadModel")
    labels = this.labels["labels"]
    shifted = torch.cat([labels[:, 1:], torch.full_like(labels[:, :1], -100)], 1)
    losses = [ours(**this.inputs, labels=labels, **given).loss for given in ({}, {"shift_labels": shifted})]
    torch.testing.assert_close(*losses)


@UNPAD
@pytest.mark.parametrize("head", ["Model", *STOCK_HEADS])
def test_token_types_are_further_words(head, unpad, tmp_path):
    stock, ours = pair(head, tmp_path)
    this = case(head)
    this.inputs["token_type_ids"] = torch.randint(0, 97, this.real.shape)
    assert_same_outputs(ours(**this.inputs, unpad=unpad), stock(**this.for_stock), this.real)


OF_EACH_ROW = torch.arange(14).reshape(7, 2) % 6
A_MASK = torch.arange(42).reshape(7, 6) % 4 == 0


@pytest.mark.parametrize(
    "kept",
    [0, 1, 4, torch.tensor([0, 3]), OF_EACH_ROW, A_MASK],
    ids=["all", "one", "four", "chosen", "chosen in each row", "mask"],
)
def test_logits_of_the_wanted_tokens_alone(kept, tmp_path):
    stock, ours = pair("LMHeadModel", tmp_path)
    inputs = batch(lengths=[6] * 7)
    mine, theirs = (model(**inputs, logits_to_keep=kept).logits for model in (ours, stock))
    torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("head", STOCK_HEADS)
@pytest.mark.parametrize("labelled", [False, True])
def test_a_batch_without_rows_gives_what_the_stock_model_gives(head, labelled, tmp_path):
    stock, ours = pair(head, tmp_path)
    this = case(head)
    inputs = {name: tensor[:0] for name, tensor in this.inputs.items()}
    labels = {name: tensor[:0] for name, tensor in this.labels.items()} if labelled else {}
    expected = stock(**inputs | {"attention_mask": inputs["attention_mask"].flatten(0, -2)}, **labels)
    found = ours(**inputs, **labels)
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, equal_nan=True)
    without_mask = {name: tensor for name, tensor in inputs.items() if name != "attention_mask"}
    assert ours(**without_mask).logits.shape == expected.logits.shape


def test_a_bias_of_the_predicted_words_counts_as_in_the_stock_model(tmp_path):
    models, this = pair("LMHeadModel", tmp_path), case("LMHeadModel")
    bias = torch.randn(97)
    outputs = []
    for model in models:
        model.lm_head.bias = torch.nn.Parameter(bias.clone())
        outputs.append(model(**this.inputs, **this.labels))
        outputs[-1].loss.backward()
    torch.testing.assert_close(outputs[1].loss, outputs[0].loss, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(models[1].lm_head.bias.grad, models[0].lm_head.bias.grad, atol=1e-6, rtol=1e-4)
