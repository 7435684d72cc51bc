"""captum's attributions of a padded batch, token by token: complete, and those of transformers' class."""

import pytest
import torch
from captum.attr import LayerActivation, LayerGradientXActivation, LayerIntegratedGradients

from tests.clients.tiny_models import SENTENCES, bert_pair, gpt_pair


STEPS = 100


def bert_classifier(folder):
    stock, ours, tokenizer = bert_pair("ForSequenceClassification", folder)
    return tokenizer, [(model, model.bert.embeddings, model.bert.encoder.layer[1]) for model in (stock, ours)]


def gpt_classifier(folder):
    stock, ours, tokenizer = gpt_pair("ForSequenceClassification", folder)
    return tokenizer, [(model, model.transformer.tokens_embed, model.transformer.h[1]) for model in (stock, ours)]


def gpt_language_model(folder):
    stock, ours, tokenizer = gpt_pair("LMHeadModel", folder)
    return tokenizer, [(model, model.transformer.tokens_embed, model.transformer.h[1]) for model in (stock, ours)]


FAMILIES = pytest.mark.parametrize("family", [bert_classifier, gpt_classifier, gpt_language_model])


def scores_of(model):
    """(B, classes) from ids and mask; a language model's are those of what follows each sentence."""

    def scores(ids, mask):
        logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits
        return logits if logits.dim() == 2 else logits[torch.arange(len(mask)), mask.sum(1) - 1]

    return scores


@FAMILIES
def test_integrated_gradients_of_embeddings_are_complete_and_those_of_the_stock_model(family, tmp_path):
    tokenizer, models = family(tmp_path)
    batch = tokenizer(SENTENCES, padding=True, return_tensors="pt")
    ids, mask = batch["input_ids"], batch["attention_mask"]
    baselines = torch.where(mask.bool(), 1, ids)
    attributions = []
    for model, embeddings, _ in models:
        scores = scores_of(model)
        of_words = LayerIntegratedGradients(scores, embeddings).attribute(
            ids, baselines, additional_forward_args=(mask,), target=1, n_steps=STEPS
        )
        assert of_words.shape == (*ids.shape, model.config.hidden_size)
        change = (scores(ids, mask) - scores(baselines, mask))[:, 1]
        torch.testing.assert_close(of_words.sum((1, 2)), change, atol=2e-3, rtol=2e-3)
        attributions.append(of_words)
    torch.testing.assert_close(attributions[1], attributions[0], atol=1e-5, rtol=1e-5)


@FAMILIES
def test_a_layers_activations_and_their_gradients_come_token_by_token(family, tmp_path):
    tokenizer, models = family(tmp_path)
    batch = tokenizer(SENTENCES, padding=True, return_tensors="pt")
    ids, mask = batch["input_ids"], batch["attention_mask"]
    for method, options in ((LayerActivation, {}), (LayerGradientXActivation, {"target": 1})):
        stock, ours = (
            method(scores_of(model), layer).attribute(ids, additional_forward_args=(mask,), **options)
            for model, _, layer in models
        )
        stock, ours = (states[0] if isinstance(states, tuple) else states for states in (stock, ours))
        torch.testing.assert_close(ours[mask.bool()], stock[mask.bool()], atol=1e-5, rtol=1e-5)
