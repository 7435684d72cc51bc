"""GPT's loss without the logits of a whole batch is the loss with them, and so are its gradients."""

import copy
from unittest.mock import patch

import pytest
import torch

from modeling.gpt import modeling_gpt
from tests.support.gpt_cases import assert_same_gradients, case, zoo


IGNORED = -100
WORDS = 97


def shifted(labels: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.pad(labels[:, 1:], (0, 1), value=IGNORED)


def padded_batch() -> dict[str, torch.Tensor]:
    this = case("LMHeadModel", holes=True)
    return this.inputs | this.labels


def packed_batch() -> dict[str, torch.Tensor]:
    """Two rows of documents of several lengths; nothing is predicted across their ends."""
    lengths = ((5, 9, 4), (11, 1, 6))
    ids = torch.randint(1, WORDS, (2, 18))
    positions = torch.stack([torch.cat([torch.arange(length) for length in row]) for row in lengths])
    targets = torch.where(shifted(positions) > 0, shifted(ids), IGNORED)
    numbers = (positions == 0).cumsum(1)
    return {"input_ids": ids, "seq_idx": numbers, "labels": targets, "shift_labels": targets}


CASES = {
    "labels": padded_batch,
    "labels on padding": lambda: (batch := padded_batch()) | {"labels": batch["input_ids"]},
    "shifted labels": lambda: (batch := padded_batch()) | {"shift_labels": shifted(batch["labels"])},
    "packed rows": packed_batch,
    "weighted": lambda: packed_batch() | {"num_items_in_batch": torch.tensor(50)},
}


@pytest.fixture
def few_scores(monkeypatch):
    """Room for the scores of five tokens at a time."""
    monkeypatch.setattr("modeling.shared.modeling_heads.SCORES_AT_ONCE", 5 * WORDS)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_loss_and_gradients_are_those_with_logits(name, training, few_scores):
    model, inputs = zoo("LMHeadModel").train(training), CASES[name]()
    plain = copy.deepcopy(model)
    expected, output = plain(**inputs), model(**inputs, skip_logits=True)
    assert output.logits is None and set(output) == {"loss"}
    torch.testing.assert_close(output.loss, expected.loss, rtol=1e-6, atol=1e-6)
    (3 * expected.loss).backward()
    (3 * output.loss).backward()
    assert_same_gradients(model, plain, atol=1e-6)
    with torch.no_grad():
        torch.testing.assert_close(model(**inputs, skip_logits=True).loss, expected.loss, rtol=1e-6, atol=1e-6)


def test_no_more_scores_are_computed_than_there_is_room_for(few_scores):
    model, inputs = zoo("LMHeadModel").train(), packed_batch()
    rows = []

    def count(states: torch.Tensor, words: torch.Tensor, bias: None = None) -> torch.Tensor:
        if len(words) == WORDS:
            rows.append(len(states))
        return torch.nn.functional.linear(states, words)

    with patch("modeling.shared.modeling_heads.linear", count):
        model(**inputs, skip_logits=True).loss.backward()
    assert max(rows) <= 8 and len(rows) == -(-int((inputs["shift_labels"] != IGNORED).sum()) // 5)


def test_a_head_that_is_more_than_its_weight_is_called():
    model, inputs = zoo("LMHeadModel").train(), packed_batch()
    head = model.lm_head
    expected = model(**inputs, skip_logits=True).loss
    seen = []
    handle = head.register_forward_hook(lambda module, arguments, scores: seen.append(scores.shape))
    watched = model(**inputs, skip_logits=True).loss
    handle.remove()
    assert seen == [(int((inputs["shift_labels"] != IGNORED).sum()), WORDS)]

    class Doubled(torch.nn.Module):
        """As an adapter, it adds something to what the head computes."""

        weight = head.weight

        def forward(self, states: torch.Tensor) -> torch.Tensor:
            return 2 * head(states)

    model.lm_head = Doubled()
    adapted = [model(**inputs, skip_logits=skip).loss for skip in (True, False)]
    torch.testing.assert_close(watched, expected)
    torch.testing.assert_close(*adapted)
    assert not torch.isclose(adapted[0], expected)


def test_a_traced_program_has_the_same_loss(monkeypatch):
    model, inputs = zoo("LMHeadModel").train(), packed_batch()
    expected = model(**inputs, skip_logits=True).loss
    monkeypatch.setattr(modeling_gpt, "is_opaque", lambda tensor: True)  # as torch.compile and torch.export see it
    output = model(**inputs, skip_logits=True)
    assert output.logits is None
    torch.testing.assert_close(output.loss, expected)


def test_in_bfloat16_the_loss_is_as_near_as_with_logits():
    model, inputs = zoo("LMHeadModel").train(), packed_batch()
    expected = model(**inputs).loss
    with torch.autocast("cpu", torch.bfloat16):
        losses = [model(**inputs, skip_logits=skip).loss for skip in (True, False)]
    assert all(loss.dtype == torch.float32 for loss in losses)
    for loss in losses:
        torch.testing.assert_close(loss, expected, rtol=0.02, atol=0)


def test_without_labels_there_is_nothing_to_return():
    with pytest.raises(ValueError, match="^skip_logits=True returns nothing but the loss: give labels"):
        zoo("LMHeadModel")(input_ids=torch.tensor([[1, 2]]), skip_logits=True)
