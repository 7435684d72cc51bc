"""torchao's weights of eight bits: the outputs are those of transformers' class, quantized alike."""

import pytest
import torch
from torchao.quantization import Int8WeightOnlyConfig, quantize_
from transformers import TorchAoConfig

from tests.clients.tiny_models import SENTENCES, bert_pair, gpt_pair


@pytest.mark.parametrize(
    ("pair", "head", "way"),
    [
        (bert_pair, "ForTokenClassification", "in place"),
        (bert_pair, "ForTokenClassification", "as it is loaded"),
        (gpt_pair, "LMHeadModel", "in place"),  # its other weights are no linear layers to torchao
    ],
)
def test_weights_of_eight_bits_give_the_logits_of_the_stock_model(pair, head, way, tmp_path):
    *models, tokenizer = pair(head, tmp_path)
    batch = tokenizer(SENTENCES, padding=True, return_tensors="pt")
    real = batch["attention_mask"].bool()
    plain = models[0](**batch).logits
    if way == "in place":
        for model in models:
            quantize_(model, Int8WeightOnlyConfig())
    else:
        quantized = TorchAoConfig(Int8WeightOnlyConfig())
        models = [type(model).from_pretrained(tmp_path, quantization_config=quantized) for model in models]
    stock, ours = (model(**batch).logits for model in models)
    assert not torch.equal(stock[real], plain[real])
    torch.testing.assert_close(ours[real], stock[real], atol=1e-4, rtol=1e-4)
