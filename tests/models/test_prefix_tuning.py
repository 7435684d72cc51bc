"""peft's prompt learning on our models: prefixes of keys and values, and prompts of embeddings."""

import pytest
import torch
from peft import PrefixTuningConfig, PromptEncoderConfig, PromptTuningConfig, get_peft_model
from transformers import BertModel, DynamicCache

from tests.support import bert_cases, gpt_cases
from tests.support.families import EACH_FAMILY
from tests.support.peft_cases import needs_the_peft_of_transformers, show_the_old_name


TASKS = {
    "ForSequenceClassification": "SEQ_CLS",
    "ForTokenClassification": "TOKEN_CLS",
    "ForQuestionAnswering": "QUESTION_ANS",
}
PREFIXES = [{}, {"prefix_projection": True, "encoder_hidden_size": 11}]


def assert_learns_alike(cases, head: str, folder, attention: str, config) -> None:
    """Loss, logits and the gradients of what is learned are the stock model's."""
    this, outputs, gradients = cases.case(head), [], []
    for model in cases.pair(head, folder, attention):
        torch.manual_seed(0)
        tuned = get_peft_model(model, config)
        outputs.append(tuned(**this.inputs, **this.labels))
        outputs[-1].loss.backward()
        gradients.append({name: each.grad for name, each in tuned.named_parameters() if each.grad is not None})
    for name, expected in outputs[0].items():
        torch.testing.assert_close(
            outputs[1][name], expected, atol=1e-5, rtol=1e-5, msg=lambda text, name=name: f"{name}: {text}"
        )
    assert gradients[0].keys() == gradients[1].keys()
    assert any("prompt_encoder" in name and gradient.any() for name, gradient in gradients[0].items())
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("fields", PREFIXES, ids=["plain", "projected"])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("head", TASKS)
def test_bert_learns_the_prefix_that_the_stock_model_learns(head, attention, fields, tmp_path, monkeypatch):
    show_the_old_name(BertModel, monkeypatch)
    config = PrefixTuningConfig(task_type=TASKS[head], num_virtual_tokens=4, **fields)
    assert_learns_alike(bert_cases, head, tmp_path, attention, config)


@pytest.mark.parametrize("method", [PromptTuningConfig, PromptEncoderConfig])
def test_bert_learns_the_prompt_that_the_stock_model_learns(method, tmp_path):
    config = method(task_type="SEQ_CLS", num_virtual_tokens=4)
    assert_learns_alike(bert_cases, "ForSequenceClassification", tmp_path, "sdpa", config)


@torch.no_grad()
def test_behind_keys_and_values_padding_still_never_answers(tmp_path):
    _, ours = bert_cases.pair("ForQuestionAnswering", tmp_path)
    inputs, cache = bert_cases.batch([9, 4, 6]), DynamicCache()
    for layer in range(3):
        cache.update(torch.randn(3, 3, 2, 12), torch.randn(3, 3, 2, 12), layer)
    real = inputs["attention_mask"].bool()
    inputs["attention_mask"] = torch.cat([torch.ones(3, 2, dtype=torch.long), inputs["attention_mask"]], 1)
    outputs = ours(**inputs, past_key_values=cache)
    for logits in (outputs.start_logits, outputs.end_logits):
        assert torch.equal(logits > torch.finfo(logits.dtype).min, real)


@EACH_FAMILY
def test_what_stands_in_front_must_be_a_cache(cases):
    class PagedAttentionCache:
        """The cache of continuous batching is no `Cache` either."""

    for cache in ((), PagedAttentionCache()):
        with pytest.raises(ValueError, match=f"the cache is a {type(cache).__name__}; give a DynamicCache"):
            cases.zoo("Model")(**cases.batch(), past_key_values=cache)


@needs_the_peft_of_transformers
@torch.no_grad()
def test_gpt_generates_behind_a_prefix_what_it_predicts_there():
    model = gpt_cases.zoo("LMHeadModel")
    tuned = get_peft_model(model, PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4)).eval()
    for parameter in tuned.prompt_encoder.parameters():
        parameter.normal_()
    ids = torch.randint(1, 90, (2, 5))
    generated = tuned.generate(input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=4)
    for _ in range(4):
        logits = tuned(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
        ids = torch.cat([ids, logits[:, -1:].argmax(-1)], 1)
    assert torch.equal(generated, ids)
    assert not torch.equal(ids, model.generate(ids[:, :5], max_new_tokens=4)), "the prefix changed nothing"


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("weight", [0.0, 0.5])
def test_gpts_classifier_reads_behind_keys_and_values_what_it_reads_behind_their_tokens(weight, side):
    """Padding changes nothing, and the language model's loss is that of the row's own tokens."""
    model = gpt_cases.zoo("ForSequenceClassification", lm_loss_weight=weight)
    front, labels = torch.tensor([[5, 6, 7], [7, 8, 9]]), torch.tensor([1, 0])
    own = [torch.tensor([[11, 12, 13, 14]]), torch.tensor([[21, 22]])]
    padded = torch.tensor([[11, 12, 13, 14], [21, 22, 0, 0] if side == "right" else [0, 0, 21, 22]])
    cache = model.transformer(front, use_cache=True).past_key_values
    mask = torch.cat([torch.ones_like(front), (padded != 0).long()], 1)
    output = model(padded, attention_mask=mask, past_key_values=cache, labels=labels)
    losses = []
    for row, tokens in enumerate(own):
        whole = torch.cat([front[row : row + 1], tokens], 1)
        torch.testing.assert_close(output.logits[row], model(whole).logits[0], atol=1e-5, rtol=1e-5)
        states = model.transformer(whole).last_hidden_state[0, 3:-1]
        scores = states @ model.transformer.tokens_embed.weight.T
        losses.append(torch.nn.functional.cross_entropy(scores, tokens[0, 1:]))
    expected = torch.nn.functional.cross_entropy(output.logits, labels) + weight * torch.stack(losses).mean()
    torch.testing.assert_close(output.loss, expected, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_gpts_classifier_reads_keys_and_values_also_where_it_finds_padding_itself():
    model = gpt_cases.zoo("ForSequenceClassification")
    front, padded = torch.tensor([[5, 6, 7], [7, 8, 9]]), torch.tensor([[11, 12, 13, 14], [21, 22, 0, 0]])
    mask = torch.cat([torch.ones_like(front), (padded != 0).long()], 1)
    logits = []
    for options in ({}, {"attention_mask": mask}):
        cache = model.transformer(front, use_cache=True).past_key_values
        logits.append(model(padded, past_key_values=cache, **options).logits)
    torch.testing.assert_close(*logits, atol=1e-5, rtol=1e-5)


def test_gpts_classifier_learns_a_prefix_and_both_orders_take_none():
    model = gpt_cases.zoo("ForSequenceClassification")
    tuned = get_peft_model(model, PrefixTuningConfig(task_type="SEQ_CLS", num_virtual_tokens=4))
    ids = torch.tensor([[11, 12, 13], [21, 22, 23]])
    tuned(input_ids=ids, attention_mask=torch.ones_like(ids), labels=torch.tensor([0, 1])).loss.backward()
    assert tuned.prompt_encoder["default"].embedding.weight.grad.any()
    model.config.both_orders = True
    with pytest.raises(ValueError, match="both_orders reads two rows a pair"):
        tuned(input_ids=ids, attention_mask=torch.ones_like(ids))
