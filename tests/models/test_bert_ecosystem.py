"""BERT in several processes and in sequence-to-sequence models; what GPT has, too, is in test_ecosystem."""

import copy

import pytest
import torch
import transformers

import modeling
from modeling import ZooBertConfig
from tests.support import bert_cases
from tests.support.bert_cases import SIZES, batch, case, pair
from tests.support.sharded_step import assert_same_step


@pytest.mark.slow
@pytest.mark.parametrize("way", ["tp_size", "fsdp_size"])
def test_two_processes_that_share_the_weights_compute_the_same_step(way, tmp_path):
    ours = modeling.ZooBertForMaskedLM(ZooBertConfig(**(SIZES | {"hidden_size": 32, "num_attention_heads": 4})))
    this = case("ForMaskedLM")
    assert_same_step(ours, this.inputs | this.labels, way, tmp_path)


def test_a_sequence_to_sequence_model_of_two_berts_is_refused_after_registering(tmp_path):
    pair("ForMaskedLM", tmp_path / "bert")
    make = transformers.EncoderDecoderModel.from_encoder_decoder_pretrained
    message = r"^add_cross_attention=True: .*no cross-attention\. .* give that one after modeling\.unregister\(\)\.$"
    modeling.register()
    try:
        with pytest.raises(ValueError, match=message):
            make(tmp_path / "bert", tmp_path / "bert")
        modeling.unregister()
        make(tmp_path / "bert", tmp_path / "bert").save_pretrained(tmp_path / "both")
        modeling.register()
        with pytest.raises(ValueError, match=message):
            transformers.EncoderDecoderModel.from_pretrained(tmp_path / "both")
    finally:
        modeling.unregister()


def test_the_encoder_of_a_sequence_to_sequence_model_may_be_ours(tmp_path):
    """Such a model reads the encoder's configuration again, as transformers' own class."""
    stock, ours = pair("Model", tmp_path)
    decoder = transformers.BertLMHeadModel(bert_cases.stock_config(is_decoder=True, add_cross_attention=True))
    inputs = {"input_ids": batch()["input_ids"], "labels": batch()["input_ids"]}
    losses, texts = [], []
    for encoder in (stock, ours):
        model = transformers.EncoderDecoderModel(encoder=encoder, decoder=copy.deepcopy(decoder)).eval()
        model.config.decoder_start_token_id, model.config.pad_token_id = 1, 0
        losses.append(model(**inputs).loss)
        texts.append(model.generate(inputs["input_ids"], max_new_tokens=5, decoder_start_token_id=1, pad_token_id=0))
    torch.testing.assert_close(losses[1], losses[0])
    assert torch.equal(texts[1], texts[0])
