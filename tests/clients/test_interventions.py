"""Who changes the state of one token changes that token: steering vectors by hooks, and nnsight."""

import pytest
import torch
from nnsight import NNsight

from tests.clients.tiny_models import SENTENCES, bert_pair, gpt_pair


def states_of(output):
    """A block of transformers' GPT returns its states in a list, the others return them alone."""
    return output[0] if isinstance(output, list) else output


def add_to_every_token(module, inputs, output):
    states_of(output).add_(direction(output))


def add_to_the_second_token(module, inputs, output):
    states_of(output)[:, 1] += direction(output)


def direction(output):
    return torch.linspace(-2, 2, states_of(output).shape[-1])


@pytest.mark.parametrize("hook", [add_to_every_token, add_to_the_second_token])
@pytest.mark.parametrize(
    ("pair", "head", "module"),
    [
        (bert_pair, "ForMaskedLM", "bert.encoder.layer.1"),
        (bert_pair, "ForMaskedLM", "bert.encoder.layer.1.intermediate.dense"),
        (gpt_pair, "LMHeadModel", "transformer.h.1"),
        (gpt_pair, "LMHeadModel", "transformer.h.1.mlp"),
        (gpt_pair, "LMHeadModel", "transformer.h.1.mlp.c_fc"),
    ],
)
def test_a_steering_vector_added_in_place_acts_as_in_the_stock_model(pair, head, module, hook, tmp_path):
    *models, tokenizer = pair(head, tmp_path)
    batch = tokenizer(SENTENCES, padding=True, return_tensors="pt")
    real = batch["attention_mask"].bool()
    batch["labels"] = torch.where(real, batch["input_ids"], -100)
    outputs, gradients = [], []
    for model in models:
        plain = model(**batch).logits[real]
        handle = model.get_submodule(module).register_forward_hook(hook)
        outputs.append(model(**batch))
        outputs[-1].loss.backward()
        gradients.append(model.get_input_embeddings().weight.grad)
        handle.remove()
        assert not torch.allclose(outputs[-1].logits[real], plain, atol=1e-2)
        torch.testing.assert_close(model(**batch).logits[real], plain, atol=1e-5, rtol=1e-5)
    stock, ours = outputs
    torch.testing.assert_close(ours.logits[real], stock.logits[real], atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(ours.loss, stock.loss, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(gradients[1], gradients[0], atol=1e-5, rtol=1e-4)


def test_a_steered_language_model_writes_what_the_stock_model_writes(tmp_path):
    *models, tokenizer = gpt_pair("LMHeadModel", tmp_path)
    prompts = tokenizer(SENTENCES, padding=True, padding_side="left", return_tensors="pt")
    written = []
    for model in models:
        plain = model.generate(**prompts, max_new_tokens=9, do_sample=False)
        model.transformer.h[1].register_forward_hook(add_to_every_token)
        written.append(model.generate(**prompts, max_new_tokens=9, do_sample=False))
        assert not torch.equal(written[-1], plain)
    assert torch.equal(written[1], written[0])


@pytest.mark.parametrize(
    ("pair", "head", "block"),
    [(bert_pair, "ForMaskedLM", "bert.encoder.layer.1"), (gpt_pair, "LMHeadModel", "transformer.h.1")],
)
def test_nnsight_replaces_the_state_of_one_token_of_a_padded_batch(pair, head, block, tmp_path):
    *models, tokenizer = pair(head, tmp_path)
    batch = tokenizer(SENTENCES, padding=True, return_tensors="pt") | {"use_cache": False}
    real = batch["attention_mask"].bool()
    logits = []
    for model in models:
        plain = model(**batch).logits[real]
        sight = NNsight(model)
        with sight.trace(**batch):
            states = states_of(sight.get(block).output)
            states[:, 1] = 0.5
            changed = sight.output.logits.save()
        assert not torch.allclose(changed[real], plain, atol=1e-2)
        logits.append(changed[real])
    torch.testing.assert_close(logits[1], logits[0], atol=1e-4, rtol=1e-5)
