"""The classifier of sentences and pairs: against a slow one, its losses, and that it learns."""

import pytest
import torch
import torch.nn as nn

from modeling import ElmoForSequenceClassification
from tests.support.elmo_pair_cases import (
    LEARNS,
    Row,
    build,
    collate,
    fit,
    make_model,
    make_row,
    slow_attend,
    slow_linear,
    slow_max,
    slow_rnn,
    words_of,
)


def slow_logits(model: nn.Module, row: Row) -> torch.Tensor:
    """The scores of one row, a word at a time."""
    sentences, late = words_of(model, row)
    states = [slow_rnn(model.sentence_rnn, words) for words in sentences]
    size = 2 * model.config.rnn_size
    if states[1]:
        compared = []
        for own, other in (states, states[::-1]):
            seen = [slow_attend([word @ each for each in other], other, size) for word in own]
            compared.append(slow_rnn(model.pair_rnn, [torch.cat(both) for both in zip(own, seen, strict=True)]))
        states = compared
    if late is not None:
        states = [[torch.cat(both) for both in zip(*each, strict=True)] for each in zip(states, late, strict=True)]
        size += model.config.hidden_size
    u, v = (slow_max(each, size) for each in states)
    hidden = slow_linear(model.hidden, torch.cat([u, v, (u - v).abs(), u * v])).tanh()
    return slow_linear(model.classifier, hidden)


@pytest.mark.parametrize("lengths", [(5, 0), (3, 4), (1, 6), (0, 2)], ids=str)
@pytest.mark.parametrize("placement", ["input", "output", "both", None])
def test_scores_are_those_of_the_slow_network(placement, lengths):
    changes = {"elmo_placement": placement} if placement else {"use_elmo": False}
    model = make_model(ElmoForSequenceClassification, num_labels=3, rnn_layers=2, **changes)
    row = make_row(*lengths)
    others = [make_row(6, 2), make_row(3, 0)]  # beside which it is padded, as a pair and as a sentence
    with torch.no_grad():
        torch.testing.assert_close(
            model(**collate([row, *others])).logits[0], slow_logits(model, row), atol=1e-5, rtol=1e-5
        )


def test_a_sentence_alone_is_the_same_without_token_types():
    model = make_model(ElmoForSequenceClassification)
    batch = collate([make_row(5, 0), make_row(3, 0)])
    expected = model(**batch).logits
    del batch["token_type_ids"]
    torch.testing.assert_close(model(**batch).logits, expected)


@pytest.mark.parametrize("lengths", [(4, 0), (4, 3)], ids=["sentences", "pairs"])
def test_every_parameter_has_a_gradient_as_distributed_training_wants(lengths):
    model = make_model(ElmoForSequenceClassification)
    model(**collate([make_row(*lengths), make_row(*lengths, seed=1)]), labels=torch.tensor([0, 1])).loss.backward()
    missing = [name for name, each in model.named_parameters() if each.requires_grad and each.grad is None]
    assert missing == []


@pytest.mark.parametrize(
    ("num_labels", "labels", "problem"),
    [
        (1, [0.5, -1.0], "regression"),
        (3, [2, 0], "single_label_classification"),
        (3, [[1.0, 0.0, 1.0], [0.0, 1.0, 1.0]], "multi_label_classification"),
    ],
)
def test_labels_tell_the_problem_and_its_loss(num_labels, labels, problem):
    model = make_model(ElmoForSequenceClassification, num_labels=num_labels)
    batch, labels = collate([make_row(3, 2), make_row(4, 0)]), torch.tensor(labels)
    output = model(**batch, labels=labels)
    log_odds = output.logits.detach()
    expected = {
        "regression": lambda: (log_odds.squeeze(1) - labels).square().mean(),
        "single_label_classification": lambda: -log_odds.softmax(1)[[0, 1], labels].log().mean(),
        "multi_label_classification": lambda: -(log_odds.sigmoid() - 1 + labels).abs().log().mean(),
    }[problem]()
    assert model.config.problem_type == problem
    torch.testing.assert_close(output.loss.detach(), expected)
    items = labels.numel()
    eighth = model(**batch, labels=labels, num_items_in_batch=8 * items).loss.detach()  # of 8 batches, accumulated
    torch.testing.assert_close(8 * eighth, expected)


@pytest.mark.slow
def test_it_learns_whether_two_sentences_share_a_word():
    model = build(ElmoForSequenceClassification, **LEARNS)
    rows = [make_row(2, 3, seed) for seed in range(32)]
    for row in rows[::2]:
        row.vector_ids[4] = row.vector_ids[1]
    labels = torch.tensor([bool(set(row.vector_ids[:2].tolist()) & set(row.vector_ids[2:].tolist())) for row in rows])
    batch, labels = collate(rows), labels.long()
    assert fit(model, **batch, labels=labels) < 0.1
    assert (model(**batch).logits.argmax(1) == labels).all()
