"""Folders that hold more or less than a head of BERT needs; what GPT has, too, is in test_checkpoints."""

import pytest
import torch

import modeling
from tests.support.bert_cases import pair
from tests.support.model_cases import rewrite


@pytest.mark.parametrize("head", ["ForSequenceClassification", "ForTokenClassification", "ForMaskedLM"])
def test_the_unused_heads_of_a_pretraining_checkpoint_are_no_news(head, tmp_path, log):
    pair("ForPreTraining", tmp_path)
    getattr(modeling, f"ZooBert{head}").from_pretrained(tmp_path)
    assert "seq_relationship" not in log() and "UNEXPECTED" not in log()
    assert ("classifier" in log()) == (head != "ForMaskedLM")


@pytest.mark.parametrize("head", ["Model", "ForMaskedLM", "ForSequenceClassification"])
def test_heads_that_no_bert_has_are_news_as_they_are_for_the_stock_model(head, tmp_path):
    stock, ours = pair(head, tmp_path)
    rewrite(tmp_path, lambda tensors: tensors | {"cls.species.weight": torch.ones(2, 36)})
    for model in (stock, ours):
        report = type(model).from_pretrained(tmp_path, output_loading_info=True)[1]
        assert set(report["unexpected_keys"]) == {"cls.species.weight"}


def test_a_checkpoint_without_pooler_says_so_where_it_matters(tmp_path, log):
    _, ours = pair("ForMaskedLM", tmp_path)
    modeling.ZooBertModel.from_pretrained(tmp_path, add_pooling_layer=False)
    assert log() == ""
    modeling.ZooBertModel.from_pretrained(tmp_path)
    assert "pooler.dense.weight" in log() and "MISSING" in log()
