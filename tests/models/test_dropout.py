"""Dropout is made of `nn.Dropout` modules, so that whoever switches these off has switched dropout off."""

import pytest
import torch
from torch import nn
from transformers import PreTrainedModel

from tests.models import test_elmo_ecosystem
from tests.support import bert_cases, gpt_cases
from tests.tasks import test_state_cache


RATE = 0.4
BERT = dict.fromkeys(["hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout"], RATE)
GPT = dict.fromkeys(["resid_pdrop", "embd_pdrop", "attn_pdrop", "summary_first_dropout"], RATE)
ELMO = dict.fromkeys(["hidden_dropout_prob", "mix_dropout", "task_dropout"], RATE)


def bert(head: str, folder) -> tuple[PreTrainedModel, dict]:
    case = bert_cases.case(head)
    return bert_cases.pair(head, folder, **BERT)[1], case.inputs | case.labels


def gpt(head: str, folder) -> tuple[PreTrainedModel, dict]:
    case = gpt_cases.case(head)
    return gpt_cases.zoo(head, use_cache=False, **GPT), case.inputs | case.labels


def elmo(head: str, folder) -> tuple[PreTrainedModel, dict]:
    model = test_elmo_ecosystem.build(head, freeze_bilm=False, **ELMO)
    return model, test_elmo_ecosystem.batch(head, labels=head != "Model")


def feature_tagger(head: str, folder) -> tuple[PreTrainedModel, dict]:
    model = test_state_cache.tagger()
    inputs = test_state_cache.batch()
    return model, inputs | {"labels": inputs["attention_mask"]}


CLASSES = [
    *((bert, head) for head in ("Model", *bert_cases.HEADS)),
    *((gpt, head) for head in ("Model", *gpt_cases.STOCK_HEADS, *gpt_cases.OWN_HEADS)),
    *((elmo, head) for head in test_elmo_ecosystem.HEADS),
    (feature_tagger, "ForTokenClassification"),
]


def outcome(model: PreTrainedModel, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """The loss; of a base model, which has none, its states."""
    output = model(**inputs)
    return output["last_hidden_state" if output.get("loss") is None else "loss"]


@pytest.mark.parametrize("build, head", CLASSES, ids=[f"{build.__name__}-{head}" for build, head in CLASSES])
@torch.no_grad()
def test_a_model_whose_dropout_modules_are_off_trains_on_what_it_evaluates(build, head, tmp_path):
    model, inputs = build(head, tmp_path)
    evaluated = outcome(model.eval(), inputs)
    model.train()
    assert not torch.equal(outcome(model, inputs), outcome(model, inputs)), "there was no dropout to switch off"
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0  # as TRL's disable_dropout does
    torch.testing.assert_close(outcome(model, inputs), evaluated, atol=1e-6, rtol=1e-5)
    assert torch.equal(outcome(model, inputs), outcome(model, inputs))


@pytest.mark.parametrize(
    "cases, head",
    # GPT's classifiers have dropout in the paper only.
    [(bert_cases, head) for head in bert_cases.HEADS] + [(gpt_cases, "LMHeadModel")],
)
def test_there_are_as_many_modules_as_in_the_stock_model(cases, head, tmp_path):
    stock, ours = cases.pair(head, tmp_path, **(BERT if cases is bert_cases else GPT))
    counts = [sum(isinstance(module, nn.Dropout) for module in model.modules()) for model in (stock, ours)]
    assert counts[0] == counts[1] > 0
