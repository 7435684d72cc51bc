"""The masked LM's logits in training, and its loss without them."""

import copy

import pytest
import torch

from modeling.bert.modeling_bert import ZooBertPredictionTransform
from tests.support.bert_cases import assert_same_gradients, case, pair


HEADS = pytest.mark.parametrize(("head", "name"), [("ForMaskedLM", "logits"), ("ForPreTraining", "prediction_logits")])


@HEADS
def test_logits_in_training_are_those_of_the_stock_model(head, name, tmp_path):
    stock, ours = pair(head, tmp_path)
    this = case(head)
    logits, expected = (model.train()(**this.inputs, **this.labels)[name] for model in (ours, stock))
    torch.testing.assert_close(logits[this.real], expected[this.real], atol=1e-5, rtol=1e-5)


@HEADS
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_loss_and_gradients_are_those_with_logits(head, name, training, tmp_path):
    _, plain = pair(head, tmp_path)
    ours, this = copy.deepcopy(plain.train(training)), case(head, holes=True)
    expected = plain(**this.inputs, **this.labels)
    output = ours(**this.inputs, **this.labels, skip_logits=True)
    assert name not in output and expected[name].isfinite().all()
    torch.testing.assert_close(output.loss, expected.loss, rtol=1e-6, atol=1e-6)
    for each in (expected, output):
        each.loss.backward()
    assert_same_gradients(ours, plain, atol=1e-6)


@HEADS
def test_without_logits_words_are_predicted_at_the_labelled_positions_only(head, name, tmp_path, monkeypatch):
    _, ours = pair(head, tmp_path)
    this = case(head)
    rows, forward = [], ZooBertPredictionTransform.forward

    def recorded(self, states):  # not a hook, for which all are predicted
        rows.append(states.shape[:-1])
        return forward(self, states)

    monkeypatch.setattr(ZooBertPredictionTransform, "forward", recorded)
    labelled = this.labels["labels"] != -100
    ours.train()(**this.inputs, **this.labels, skip_logits=True)
    assert rows == [(int(labelled.sum()),)]
    ours.cls.predictions.register_forward_hook(lambda *call: None)
    assert name not in ours(**this.inputs, **this.labels, skip_logits=True) and rows[-1] == this.real.shape


@HEADS
def test_without_labels_there_is_nothing_to_return(head, name, tmp_path):
    _, ours = pair(head, tmp_path)
    with pytest.raises(ValueError, match="^skip_logits=True returns the loss in place of logits: give labels"):
        ours(**case(head).inputs, skip_logits=True)


@pytest.mark.parametrize("changed", ["decoder", "forward", "hook", "loss", "double"])
def test_a_head_that_was_changed_is_called(changed, tmp_path):
    """The loss is otherwise computed from its weights, for a part of the words at a time."""
    _, ours = pair("ForMaskedLM", tmp_path)
    this, head = case("ForMaskedLM"), ours.cls.predictions
    plain = ours(**this.inputs, **this.labels, skip_logits=True).loss.item()
    if changed == "decoder":
        head.decoder = torch.nn.Sequential(head.decoder, torch.nn.Tanh())
    elif changed == "forward":
        head.forward = lambda states: head.decoder(head.transform(states)).tanh()
    elif changed == "hook":
        head.decoder.register_forward_hook(lambda module, states, scores: scores.tanh())
    elif changed == "loss":
        ours.loss_function = lambda logits, labels, **kwargs: logits.sum() * 0 + 5.0
    else:
        ours.double()
    loss = ours(**this.inputs, **this.labels, skip_logits=True).loss
    expected = ours(**this.inputs, **this.labels).loss
    torch.testing.assert_close(loss, expected, rtol=1e-12 if changed == "double" else 1e-6, atol=0)
    assert (abs(loss.item() - plain) > 1e-3) == (changed != "double")
