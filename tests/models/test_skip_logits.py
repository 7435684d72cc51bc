"""A language model's loss without the logits of a whole batch is the loss with them, and so are its gradients."""

import copy
from unittest.mock import patch

import pytest
import torch

from modeling.bert import modeling_bert
from modeling.bert.modeling_bert import ZooBertPredictionTransform
from modeling.gpt import modeling_gpt
from tests.support import bert_cases, gpt_cases
from tests.support.families import each
from tests.support.model_cases import Tensors, assert_same_gradients


IGNORED = -100
WORDS = 97
LOGITS = {"ForMaskedLM": "logits", "ForPreTraining": "prediction_logits", "LMHeadModel": "logits"}
EACH_BERT = pytest.mark.parametrize("head", ["ForMaskedLM", "ForPreTraining"])
EACH_LANGUAGE_MODEL = each("head", ["ForMaskedLM"], ["LMHeadModel"])


def shifted(labels: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.pad(labels[:, 1:], (0, 1), value=IGNORED)


def batch_of(cases, head: str) -> Tensors:
    this = cases.case(head, holes=True)
    return this.inputs | this.labels


def with_labels_on_padding(cases, head: str) -> Tensors:
    batch = batch_of(cases, head)
    return batch | {"labels": batch["input_ids"]}


def with_shifted_labels(cases, head: str) -> Tensors:
    batch = batch_of(cases, head)
    return batch | {"shift_labels": shifted(batch["labels"])}


def packed(cases, head: str) -> Tensors:
    """Two rows of documents of several lengths; GPT predicts nothing across their ends."""
    lengths = ((5, 9, 4), (11, 1, 6))
    ids = torch.randint(1, WORDS, (2, 18))
    positions = torch.stack([torch.cat([torch.arange(length) for length in row]) for row in lengths])
    targets = torch.where(shifted(positions) > 0, shifted(ids), IGNORED)
    numbers = (positions == 0).cumsum(1)
    labels = {"labels": targets} | ({"shift_labels": targets} if cases is gpt_cases else {})
    return {"input_ids": ids, "seq_idx": numbers} | labels


def weighted(cases, head: str) -> Tensors:
    return packed(cases, head) | {"num_items_in_batch": torch.tensor(50)}


FOR_BOTH = {"labels": batch_of, "labels on padding": with_labels_on_padding, "packed rows": packed}
KINDS = FOR_BOTH | {"shifted labels": with_shifted_labels, "weighted": weighted}
# BERT's masked words have no shifted labels, and its pre-training has no count of labels: it has two kinds of them.
OF_BERT = {"ForMaskedLM": [*FOR_BOTH, "weighted"], "ForPreTraining": FOR_BOTH}


@pytest.fixture
def _few_scores(monkeypatch):
    """Room for the scores of five tokens at a time."""
    monkeypatch.setattr("modeling.shared.modeling_heads.SCORES_AT_ONCE", 5 * WORDS)


@pytest.mark.usefixtures("_few_scores")
@each(
    "head, kind",
    [(head, kind) for head, kinds in OF_BERT.items() for kind in kinds],
    [("LMHeadModel", kind) for kind in KINDS],
)
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_loss_and_gradients_are_those_with_logits(cases, head, kind, training):
    model, inputs = cases.zoo(head).train(training), KINDS[kind](cases, head)
    plain = copy.deepcopy(model)
    expected, output = plain(**inputs), model(**inputs, skip_logits=True)
    assert set(output) == set(expected) - {LOGITS[head]} and expected[LOGITS[head]].isfinite().all()
    torch.testing.assert_close(output.loss, expected.loss, rtol=1e-6, atol=1e-6)
    (3 * expected.loss).backward()
    (3 * output.loss).backward()
    assert_same_gradients(model, plain, atol=1e-6)
    with torch.no_grad():
        torch.testing.assert_close(model(**inputs, skip_logits=True).loss, expected.loss, rtol=1e-6, atol=1e-6)


@pytest.mark.usefixtures("_few_scores")
@EACH_LANGUAGE_MODEL
def test_no_more_scores_are_computed_than_there_is_room_for(cases, head):
    model, inputs = cases.zoo(head).train(), packed(cases, head)
    rows = []

    def count(states: torch.Tensor, words: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        if len(words) == WORDS:
            rows.append(len(states))
        return torch.nn.functional.linear(states, words, bias)

    with patch("modeling.shared.modeling_heads.linear", count):
        model(**inputs, skip_logits=True).loss.backward()
    assert max(rows) <= 8 and len(rows) == -(-int((inputs["labels"] != IGNORED).sum()) // 5)


@EACH_BERT
def test_logits_in_training_are_those_of_the_stock_model(head, tmp_path):
    stock, ours = bert_cases.pair(head, tmp_path)
    this = bert_cases.case(head)
    logits, expected = (model.train()(**this.inputs, **this.labels)[LOGITS[head]] for model in (ours, stock))
    torch.testing.assert_close(logits[this.real], expected[this.real], atol=1e-5, rtol=1e-5)


@EACH_BERT
def test_without_logits_words_are_predicted_at_the_labelled_positions_only(head, monkeypatch):
    ours, this = bert_cases.zoo(head), bert_cases.case(head)
    rows, forward = [], ZooBertPredictionTransform.forward

    def recorded(self, states):  # not a hook, for which all are predicted
        rows.append(states.shape[:-1])
        return forward(self, states)

    monkeypatch.setattr(ZooBertPredictionTransform, "forward", recorded)
    labelled = this.labels["labels"] != IGNORED
    ours.train()(**this.inputs, **this.labels, skip_logits=True)
    assert rows == [(int(labelled.sum()),)]
    ours.cls.predictions.register_forward_hook(lambda *call: None)
    assert LOGITS[head] not in ours(**this.inputs, **this.labels, skip_logits=True) and rows[-1] == this.real.shape


def test_gpts_head_that_is_watched_is_called_for_the_labelled_tokens_only():
    model, inputs = gpt_cases.zoo("LMHeadModel").train(), packed(gpt_cases, "LMHeadModel")
    expected = model(**inputs, skip_logits=True).loss
    seen = []
    model.lm_head.register_forward_hook(lambda module, arguments, scores: seen.append(scores.shape))
    torch.testing.assert_close(model(**inputs, skip_logits=True).loss, expected)
    assert seen == [(int((inputs["shift_labels"] != IGNORED).sum()), WORDS)]


class Doubled(torch.nn.Module):
    """As an adapter, it adds something to what the product with all words computes."""

    def __init__(self, product: torch.nn.Module):
        super().__init__()
        self.product = product

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return 2 * self.product(states)


@each(
    "head, changed",
    [("ForMaskedLM", changed) for changed in ("replaced", "forward", "hook", "forward of the head", "loss", "double")],
    [("LMHeadModel", changed) for changed in ("replaced", "forward", "hook", "loss")],  # its loss is one of float32
)
def test_a_head_that_was_changed_is_called(cases, head, changed):
    """The loss is otherwise computed from its weights, for a part of the words at a time."""
    model, inputs = cases.zoo(head), batch_of(cases, head)
    plain, product = model(**inputs, skip_logits=True).loss.item(), model.get_output_embeddings()
    if changed == "replaced":
        holder, name = (model.cls.predictions, "decoder") if cases is bert_cases else (model, "lm_head")
        setattr(holder, name, Doubled(product))
    elif changed == "forward":
        product.forward = lambda states: (states @ product.weight.T).tanh()
    elif changed == "forward of the head":
        within = model.cls.predictions
        within.forward = lambda states: within.decoder(within.transform(states)).tanh()
    elif changed == "hook":
        product.register_forward_hook(lambda module, states, scores: scores.tanh())
    elif changed == "loss":
        model.loss_function = lambda logits, labels, **kwargs: logits.sum() * 0 + 5.0
    else:
        model.double()
    loss, expected = (model(**inputs, skip_logits=skip).loss for skip in (True, False))
    torch.testing.assert_close(loss, expected, rtol=1e-12 if changed == "double" else 1e-6, atol=0)
    assert (abs(loss.item() - plain) > 1e-3) == (changed != "double")


def test_gpts_replaced_loss_reads_all_scores_however_many_are_to_be_kept():
    model, inputs = gpt_cases.zoo("LMHeadModel"), batch_of(gpt_cases, "LMHeadModel")
    expected, stock = model(**inputs, skip_logits=True).loss, model.loss_function
    model.loss_function = lambda **arguments: 2 * stock(**arguments)
    torch.testing.assert_close(model(**inputs, skip_logits=True, logits_to_keep=2).loss, 2 * expected)


@pytest.mark.parametrize("kind", FOR_BOTH)
@EACH_LANGUAGE_MODEL
def test_a_traced_program_has_the_same_loss(cases, head, kind, monkeypatch):
    model, inputs = cases.zoo(head).train(), KINDS[kind](cases, head)
    expected = model(**inputs, skip_logits=True).loss
    for module in (modeling_bert, modeling_gpt):  # as torch.compile and torch.export see it
        monkeypatch.setattr(module, "is_opaque", lambda tensor: True)
    output = model(**inputs, skip_logits=True)
    assert output.logits is None
    torch.testing.assert_close(output.loss, expected)


@EACH_LANGUAGE_MODEL
def test_in_bfloat16_the_loss_is_as_near_as_with_logits(cases, head):
    model, inputs = cases.zoo(head).train(), packed(cases, head)
    expected = model(**inputs).loss
    with torch.autocast("cpu", torch.bfloat16):
        losses = [model(**inputs, skip_logits=skip).loss for skip in (True, False)]
    assert all(loss.dtype == torch.float32 for loss in losses)
    for loss in losses:
        torch.testing.assert_close(loss, expected, rtol=0.02, atol=0)


@each(
    "head, said",
    [(head, "the loss in place of logits") for head in ("ForMaskedLM", "ForPreTraining")],
    [("LMHeadModel", "nothing but the loss")],
)
def test_without_labels_there_is_nothing_to_return(cases, head, said):
    with pytest.raises(ValueError, match=f"^skip_logits=True returns {said}: give labels"):
        cases.zoo(head)(**cases.case(head).inputs, skip_logits=True)
