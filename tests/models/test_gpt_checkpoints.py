"""Folders of GPT: its heads that others lack, new words, the published file; test_checkpoints has what BERT shares."""

import json

import pytest
import torch
from safetensors.torch import load_file
from transformers import OpenAIGPTConfig, OpenAIGPTDoubleHeadsModel

from modeling import ZooGPTConfig, ZooGPTForSequenceClassification, ZooGPTLMHeadModel
from tests.support.gpt_cases import AGES, OWN_HEADS, case, pair, zoo
from tests.support.model_cases import assert_same_tensors, rewrite


# `config.json` as the Hub has it for openai-gpt, keys without a meaning in this zoo included.
PUBLISHED = """{"afn": "gelu", "architectures": ["OpenAIGPTLMHeadModel"], "attn_pdrop": 0.1, "embd_pdrop": 0.1,
"initializer_range": 0.02, "layer_norm_epsilon": 1e-05, "model_type": "openai-gpt", "n_ctx": 512, "n_embd": 768,
"n_head": 12, "n_layer": 12, "n_positions": 512, "n_special": 0, "predict_special_tokens": true, "resid_pdrop": 0.1,
"summary_activation": null, "summary_first_dropout": 0.1, "summary_proj_to_labels": true,
"summary_type": "cls_index", "summary_use_proj": true,
"task_specific_params": {"text-generation": {"do_sample": true, "max_length": 50}}, "vocab_size": 40478}"""


@pytest.mark.parametrize("head", OWN_HEADS)
def test_a_head_that_the_stock_library_lacks_comes_back_as_it_was_saved(head, tmp_path, log):
    ours = zoo(head)
    ours.save_pretrained(tmp_path)
    again = type(ours).from_pretrained(tmp_path)
    assert_same_tensors(again, ours)
    assert again.config.architectures == [f"ZooGPT{head}"]
    assert log() == ""


def test_a_classifier_of_both_orders_is_not_announced_as_the_stock_one_that_reads_a_single_order(tmp_path):
    zoo("ForSequenceClassification", both_orders=True).save_pretrained(tmp_path)
    assert ZooGPTConfig.from_pretrained(tmp_path).architectures == ["ZooGPTForSequenceClassification"]
    zoo("LMHeadModel", both_orders=True).save_pretrained(tmp_path)
    assert ZooGPTConfig.from_pretrained(tmp_path).architectures == ["OpenAIGPTLMHeadModel"]


def test_a_folder_that_named_our_class_names_the_stock_one_when_its_configuration_is_saved_again(tmp_path):
    zoo("LMHeadModel").save_pretrained(tmp_path)
    config = ZooGPTConfig.from_pretrained(tmp_path)
    config.architectures = ["ZooGPTLMHeadModel"]
    config.save_pretrained(tmp_path)
    assert ZooGPTConfig.from_pretrained(tmp_path).architectures == ["OpenAIGPTLMHeadModel"]


def test_transformers_double_heads_read_what_multiple_choice_saves(tmp_path, log):
    ours, this = zoo("ForMultipleChoice"), case("ForMultipleChoice")
    ours.save_pretrained(tmp_path)
    stock = OpenAIGPTDoubleHeadsModel.from_pretrained(tmp_path).eval()
    assert log() == ""
    last = (this.real * torch.arange(this.real.shape[-1])).argmax(-1)
    scores = stock(**this.for_stock, mc_token_ids=last).mc_logits
    torch.testing.assert_close(ours(**this.inputs).logits, scores, atol=1e-5, rtol=1e-5)
    assert stock.lm_head.weight is stock.transformer.tokens_embed.weight


@pytest.mark.parametrize("age", ["as it is", *AGES])
def test_a_language_model_fills_a_classifier_and_only_the_classifier_is_news(age, tmp_path, log):
    stock, _ = pair("LMHeadModel", tmp_path)
    rewrite(tmp_path, AGES.get(age, dict))
    ours = ZooGPTForSequenceClassification.from_pretrained(tmp_path)
    assert_same_tensors(ours.transformer, stock.transformer)
    assert "score.weight" in log() and "UNEXPECTED" not in log() and "transformer." not in log().split("score")[1]


def test_the_head_and_the_words_stay_one_matrix(tmp_path):
    ours = zoo("LMHeadModel")
    known = ours.lm_head.weight.detach().clone()
    ours.resize_token_embeddings(103)
    ours.save_pretrained(tmp_path)
    for model in (ours, type(ours).from_pretrained(tmp_path)):
        assert model.lm_head.weight is model.get_input_embeddings().weight is model.get_output_embeddings().weight
        assert model.lm_head.weight.shape == (103, 36) and model.config.vocab_size == 103
        assert torch.equal(model.lm_head.weight[:97], known)
        assert "lm_head.weight" not in load_file(tmp_path / "model.safetensors")
    this = case("LMHeadModel")
    assert ZooGPTLMHeadModel.from_pretrained(tmp_path)(**this.inputs).logits.shape == (*this.real.shape, 103)


@pytest.mark.parametrize("head", ["Model", "LMHeadModel", "ForSequenceClassification"])
def test_rows_for_new_tokens_are_drawn_as_the_weights_were(head):
    ours = zoo(head, initializer_range=0.05)
    known = ours.get_input_embeddings().weight.detach().clone() + 3  # a mean that new rows must not take over
    ours.get_input_embeddings().weight.data.copy_(known)
    ours.resize_token_embeddings(97 + 800)
    words = ours.get_input_embeddings().weight
    assert torch.equal(words[:97], known)
    drawn = words[97:].detach()  # 28,800 numbers
    assert abs(drawn.mean()) < 0.002 and abs(drawn.std() / 0.05 - 1) < 0.03
    below = (drawn.flatten().sort().values / 0.05)[[655, 4570, 14400, 24230, 28145]]  # quantiles of the normal
    torch.testing.assert_close(below, torch.tensor([-2.0, -1.0, 0.0, 1.0, 2.0]), atol=0.1, rtol=0)


def test_rows_for_new_tokens_may_be_means_on_request():
    ours = zoo("LMHeadModel")
    ours.get_input_embeddings().weight.data += 3
    ours.resize_token_embeddings(120, mean_resizing=True)
    assert abs(ours.get_input_embeddings().weight[97:].mean() - 3) < 0.1


def test_the_published_configuration_loads_and_saves_unchanged(tmp_path):
    (tmp_path / "config.json").write_text(PUBLISHED)
    ours = ZooGPTConfig.from_pretrained(tmp_path)
    expected = OpenAIGPTConfig.from_pretrained(tmp_path)
    assert (ours.hidden_size, ours.num_hidden_layers, ours.num_attention_heads) == (768, 12, 12)
    assert (ours.lm_loss_weight, ours.both_orders, ours.pad_token_id) == (0, False, None)
    ours.save_pretrained(tmp_path / "ours")
    written = json.loads((tmp_path / "ours" / "config.json").read_text())
    published = json.loads(PUBLISHED)
    assert {name: written.get(name) for name in published} == published
    again = OpenAIGPTConfig.from_pretrained(tmp_path / "ours").to_dict()
    assert {name: again[name] for name in expected.to_dict()} == expected.to_dict()
