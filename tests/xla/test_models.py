"""Models on XLA, without a run: what they generate, ELMo's vectors, and what makes a program wait or compile again."""

from collections.abc import Callable

import pytest
import torch
import torch_xla
from torch import nn
from torch_xla.debug import metrics

from modeling import (
    ElmoConfig,
    ElmoForTokenClassification,
    ElmoModel,
    ElmoTokenizer,
    ZooBertConfig,
    ZooBertForTokenClassification,
    ZooGPTConfig,
    ZooGPTForSequenceClassification,
    ZooGPTLMHeadModel,
)
from tests.support.elmo_pair_cases import LENGTHS, MODELS, batch_for, make_model, make_row, scores_of
from tests.xla.cases import ELMO


GPT = {"vocab_size": 50, "n_positions": 64, "n_embd": 12, "n_layer": 2, "n_head": 3}
BERT = {"vocab_size": 50, "hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3}
BERT |= {"intermediate_size": 20, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
TEXTS = [["the", "old", "man", "saw", "a", "red", "kite"], ["nobody"], ["a", "girl", "sold", "three", "apples"]]


def on_xla(model: nn.Module) -> nn.Module:
    return model.to(torch_xla.device())


def spread(model: nn.Module) -> nn.Module:
    """With weights large enough for every part to matter."""
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model.eval()


@pytest.mark.parametrize("options", [{}, {"cache_implementation": "static"}, {"use_cache": False}], ids=str)
def test_gpt_generates_the_same_tokens(options, tell):
    """The second prompt is padded on the left, and the tokens reach beyond 16 columns."""
    model = spread(ZooGPTLMHeadModel(ZooGPTConfig(**GPT)))
    prompts = torch.randint(3, 50, (2, 11))
    mask = torch.ones_like(prompts)
    mask[1, :4], prompts[1, :4] = 0, 1
    options = options | {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 1}
    expected = model.generate(prompts, attention_mask=mask, **options)
    inputs = {"attention_mask": mask.to(torch_xla.device()), **options}
    found = on_xla(model).generate(prompts.to(torch_xla.device()), **inputs).cpu()
    tell(f"GPT generates, {options}", float((found != expected).sum()))
    assert torch.equal(found, expected)


def test_elmos_vectors_are_the_same(tell):
    model, tokenizer = spread(ElmoModel(ElmoConfig(**ELMO))), ElmoTokenizer()
    expected = model.embed(TEXTS, layers="all", tokenizer=tokenizer)
    found = on_xla(model).embed(TEXTS, layers="all", tokenizer=tokenizer)
    tell("ELMo's vectors", max((a - b).abs().max().item() for a, b in zip(found, expected, strict=True)))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=0)


@pytest.mark.parametrize("model_class", MODELS)
def test_networks_of_two_sentences_give_the_same_scores(model_class, tell):
    model = make_model(model_class, elmo_placement="both")
    batch = batch_for(model, [make_row(*lengths) for lengths in LENGTHS], side="left", extra=2)
    with torch.no_grad():
        expected = scores_of(model, batch)
        on_xla(model)
        found = scores_of(model, {name: tensor.to(torch_xla.device()) for name, tensor in batch.items()})
    found = [scores.cpu() for scores in found]
    tell(model_class.__name__, max((a - b).abs().max().item() for a, b in zip(found, expected, strict=True)))
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def bert_tagger() -> tuple[nn.Module, dict]:
    ids, mask = torch.randint(1, 50, (3, 9)), torch.ones(3, 9, dtype=torch.long)
    mask[0, 5:] = 0
    labels = torch.randint(3, (3, 9)).masked_fill(mask == 0, -100)
    inputs = {"input_ids": ids, "attention_mask": mask, "labels": labels}
    return ZooBertForTokenClassification(ZooBertConfig(**BERT, num_labels=3)), inputs


def gpt_in_both_orders() -> tuple[nn.Module, dict]:
    ids, mask = torch.randint(3, 50, (3, 9)), torch.ones(3, 9, dtype=torch.long)
    ids[:, 4], mask[0, 7:] = 2, 0
    special = {"sep_token_id": 2, "pad_token_id": 1, "both_orders": True, "lm_loss_weight": 0.5, "num_labels": 3}
    inputs = {"input_ids": ids, "attention_mask": mask, "labels": torch.tensor([0, 1, 2])}
    return ZooGPTForSequenceClassification(ZooGPTConfig(**GPT, **special)), inputs


def elmo_tagger(words: int = 7) -> tuple[nn.Module, dict]:
    ids, mask = torch.randint(1, 250, (3, words, 50)), torch.ones(3, words, dtype=torch.long)
    mask[0, 5:] = 0
    inputs = {"input_ids": ids, "attention_mask": mask, "labels": torch.randint(3, (3, words))}
    return ElmoForTokenClassification(ElmoConfig(**ELMO, num_labels=3)), inputs


def record_pass(model: nn.Module, inputs: dict) -> torch.Tensor:
    """The loss of a forward and a backward pass, which XLA has not computed."""
    inputs = {name: tensor.to(torch_xla.device()) for name, tensor in inputs.items()}
    loss = on_xla(model).train()(**inputs).loss
    loss.backward()
    return loss


@pytest.mark.parametrize("make", [bert_tagger, gpt_in_both_orders, elmo_tagger])
def test_no_pass_waits_for_the_device_or_leaves_it(make: Callable):
    model, inputs = make()
    on_xla(model)
    torch_xla.sync()
    metrics.clear_counters()
    record_pass(model, inputs)
    assert [name for name in metrics.counter_names() if name.startswith("aten::")] == []


def test_the_graph_of_a_training_step_of_elmo_is_as_large_for_64_words_as_for_8():
    sizes = []
    for words in (8, 64):
        model, inputs = elmo_tagger(words)
        loss = record_pass(model, inputs)
        gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        sizes.append(len(torch_xla._XLAC._get_xla_tensors_hlo([loss, *gradients]).splitlines()))
    assert sizes[1] == pytest.approx(sizes[0], rel=0.01)
