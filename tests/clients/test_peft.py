"""peft's prefix tuning: keys and values in front of the text's."""

import peft
import pytest
import torch
from peft import PrefixTuningConfig
from transformers import BertModel

from tests.clients.tiny_models import SENTENCES, bert_pair, gpt_pair
from tests.support.peft_cases import needs_the_peft_of_transformers, show_the_old_name


@pytest.mark.parametrize(
    ("head", "task"),
    [("ForSequenceClassification", "SEQ_CLS"), ("ForTokenClassification", "TOKEN_CLS")],
)
def test_a_learned_prefix_of_bert_acts_as_in_the_stock_model(head, task, tmp_path, monkeypatch):
    show_the_old_name(BertModel, monkeypatch)
    *models, tokenizer = bert_pair(head, tmp_path)
    batch = tokenizer(SENTENCES, padding=True, return_tensors="pt")
    real = batch["attention_mask"].bool()
    labels = torch.tensor([1, 0, 2, 1, 0, 3])
    batch["labels"] = labels if task == "SEQ_CLS" else torch.where(real, labels.unsqueeze(1), -100)
    outcomes = []
    for model in models:
        plain = model(**batch).logits
        tuned = peft.get_peft_model(model, PrefixTuningConfig(task_type=task, num_virtual_tokens=3)).eval()
        prefix = tuned.prompt_encoder.default.embedding.weight
        prefix.data = torch.linspace(-1, 1, prefix.numel()).view_as(prefix).sin()
        output = tuned(**batch)
        assert not torch.allclose(output.logits, plain, atol=1e-2)
        output.loss.backward()
        outcomes.append((output, prefix.grad))
    (stock, stock_gradient), (ours, our_gradient) = outcomes
    shown = real if task == "TOKEN_CLS" else slice(None)
    torch.testing.assert_close(ours.logits[shown], stock.logits[shown], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(our_gradient, stock_gradient, atol=1e-5, rtol=1e-4)


@needs_the_peft_of_transformers
def test_a_prefix_of_gpt_that_holds_a_texts_keys_and_values_is_that_text(tmp_path):
    """transformers' GPT keeps no keys and values, so peft has nowhere to put a prefix there."""
    stock, ours, tokenizer = gpt_pair("LMHeadModel", tmp_path)
    text = tokenizer(SENTENCES[0], return_tensors="pt")
    batch = tokenizer(SENTENCES, padding=True, return_tensors="pt")
    real = batch["attention_mask"].bool()
    size = text["input_ids"].shape[1]
    cache = ours(**text, use_cache=True).past_key_values
    states = [tensor[0].transpose(0, 1).flatten(1) for layer in cache.layers for tensor in (layer.keys, layer.values)]
    tuned = peft.get_peft_model(ours, PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=size)).eval()
    tuned.prompt_encoder.default.embedding.weight.data = torch.cat(states, 1).detach()

    joined = {name: torch.cat([text[name].expand(len(SENTENCES), -1), batch[name]], 1) for name in text}
    expected = stock(**joined).logits[:, size:]
    torch.testing.assert_close(tuned(**batch).logits[real], expected[real], atol=1e-5, rtol=1e-5)
    twice = torch.cat([text["input_ids"]] * 2, 1)
    expected = stock.generate(twice, max_new_tokens=7, do_sample=False)[:, 2 * size :]
    assert torch.equal(tuned.generate(**text, max_new_tokens=7, do_sample=False)[:, size:], expected)
