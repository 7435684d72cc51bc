"""The cache under its two names: `past_key_values` up to transformers 5.23, `cache` since 5.24."""

import warnings

import pytest
import torch
from transformers import DynamicCache, Trainer, TrainingArguments
from transformers.utils import generic

from modeling.shared.modeling_packing import CACHE
from tests.support import bert_cases, gpt_cases


NAMES = ["cache", "past_key_values"]
HEADS = ["Model", "LMHeadModel", "ForSequenceClassification", "ForTokenClassification"]
FRONT = torch.tensor([[5, 6, 7], [7, 8, 9]])
WORDS = torch.tensor([[11, 12, 13, 14], [21, 22, 23, 24]])


def front_of(model) -> DynamicCache:
    """The keys and values of `FRONT`."""
    base = getattr(model, "transformer", model)
    return base(FRONT, use_cache=True)[CACHE]


@pytest.fixture
def deprecations_raise(monkeypatch):
    """Whatever transformers says about an old name, once or each time, is an error."""

    def refuse(message, *args, **kwargs):
        raise AssertionError(message)

    monkeypatch.setattr(generic.logger, "warning_once", refuse)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*past_key_values", category=FutureWarning)
        yield


@torch.no_grad()
@pytest.mark.usefixtures("deprecations_raise")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("head", HEADS)
def test_gpt_reads_behind_a_cache_of_either_name_what_it_reads_behind_its_tokens(head, name):
    model = gpt_cases.zoo(head)
    whole = model(torch.cat([FRONT, WORDS], 1))[0]
    behind = model(WORDS, **{name: front_of(model)})[0]
    expected = whole if head == "ForSequenceClassification" else whole[:, 3:]
    torch.testing.assert_close(behind, expected, atol=1e-5, rtol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("head", ["Model", "ForQuestionAnswering", "ForMaskedLM"])
def test_bert_reads_the_same_behind_a_cache_of_either_name(head, tmp_path):
    _, ours = bert_cases.pair(head, tmp_path)
    inputs = bert_cases.batch([9, 9, 9])
    inputs["attention_mask"] = torch.ones(3, 2 + inputs["input_ids"].shape[1], dtype=torch.long)
    layers = [(torch.randn(3, 3, 2, 12), torch.randn(3, 3, 2, 12)) for _ in range(3)]
    first, second = (ours(**inputs, **{name: DynamicCache(layers)})[0] for name in NAMES)
    assert torch.equal(first, second)
    assert not torch.allclose(first, ours(**inputs | {"attention_mask": None})[0], atol=1e-3)


@pytest.mark.parametrize("head", HEADS)
def test_a_cache_under_both_names_is_refused(head):
    model = gpt_cases.zoo(head)
    with pytest.raises(ValueError, match="cache and past_key_values are two names of the same argument"):
        model(WORDS, cache=DynamicCache(), past_key_values=DynamicCache())


@pytest.mark.usefixtures("deprecations_raise")
@pytest.mark.parametrize("implementation", ["dynamic", "static"])
def test_generation_uses_the_name_of_the_installed_release(implementation):
    model, steps = gpt_cases.zoo("LMHeadModel"), []
    model.transformer.h[0].register_forward_pre_hook(lambda module, inputs: steps.append(inputs[0].shape[1]))
    kept = model.generate(WORDS, max_new_tokens=5, do_sample=False, cache_implementation=implementation)
    assert steps == [4, 1, 1, 1, 1]  # all tokens once: the cache that one step returned reached the next
    assert torch.equal(kept, model.generate(WORDS, max_new_tokens=5, do_sample=False, use_cache=False))


def test_trainer_predicts_logits_and_no_cache(tmp_path):
    model = gpt_cases.zoo("LMHeadModel")
    arguments = TrainingArguments(tmp_path, report_to=[], use_cpu=True)
    rows = [{"input_ids": row} for row in WORDS]
    predictions = Trainer(model, arguments).predict(rows).predictions
    torch.testing.assert_close(torch.from_numpy(predictions), model(WORDS).logits, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_gradient_checkpointing_leaves_the_cache_out(name):
    """The backward pass computes each layer again, and would append its keys and values a second time."""
    model, gradients = gpt_cases.zoo("LMHeadModel").train(), []
    for cache in ({}, {name: DynamicCache()}):
        if cache:
            model.gradient_checkpointing_enable()
        model.zero_grad()
        model(WORDS, labels=WORDS, **cache).loss.backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
    assert cache[name].get_seq_length() == 0
    torch.testing.assert_close(*gradients, atol=1e-6, rtol=1e-5)
