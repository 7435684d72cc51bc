"""BiDAF with self-attention for question answering: against a slow one, "no answer", its loss, and that it learns."""

import pytest
import torch
import torch.nn as nn

from modeling import ElmoForQuestionAnswering
from modeling.elmo.modeling_elmo_tasks import span_loss
from tests.support.elmo_pair_cases import (
    LEARNS,
    VECTORS,
    Row,
    build,
    collate,
    fit,
    make_model,
    make_row,
    slow_attend,
    slow_linear,
    slow_rnn,
    words_of,
)


LOWEST = torch.finfo(torch.float32).min


def slow_trilinear(scores: nn.Module, word: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    products = [scores.product.weight[0, i] * word[i] * other[i] for i in range(len(word))]
    return scores.first.weight[0] @ word + scores.second.weight[0] @ other + sum(products)


def slow_scores(model: nn.Module, row: Row) -> torch.Tensor:
    """(words, 2): start and end scores of each word of one row, a word at a time."""
    sentences, late = words_of(model, row)
    states = [slow_rnn(model.sentence_rnn, words) for words in sentences]
    if late is not None:
        states = [[torch.cat(both) for both in zip(*each, strict=True)] for each in zip(states, late, strict=True)]
    context = slow_self_attention(model.self_attention, slow_bi_attention(model, *states))
    start_states = slow_rnn(model.span.start_rnn, context)
    end_states = slow_rnn(model.span.end_rnn, [torch.cat(both) for both in zip(context, start_states, strict=True)])
    starts = [slow_linear(model.span.start, state) for state in start_states]
    ends = [slow_linear(model.span.end, state) for state in end_states]
    size = 2 * model.config.rnn_size
    expected = torch.cat([slow_attend(starts, start_states, size), slow_attend(ends, end_states, size)])
    no_answer = slow_linear(model.span.no_answer, slow_linear(model.span.hidden, expected).clamp(min=0))
    question = [no_answer, *[torch.full((2,), LOWEST)] * (len(states[0]) - 1)] if states[0] else []
    return torch.stack([*question, *[torch.cat(both) for both in zip(starts, ends, strict=True)]])


def slow_bi_attention(model: nn.Module, question: list[torch.Tensor], context: list[torch.Tensor]):
    size, trilinear = model.attention.scores.first.in_features, model.attention.scores
    scores = [[slow_trilinear(trilinear, word, other) for other in question] for word in context]
    summary = slow_attend([max(each, default=torch.zeros(())) for each in scores], context, size)
    read = []
    for word, each in zip(context, scores, strict=True):
        seen = slow_attend(each, question, size)
        read.append(slow_linear(model.projection, torch.cat([word, seen, word * seen, word * summary])).clamp(min=0))
    return read


def slow_self_attention(layer: nn.Module, context: list[torch.Tensor]) -> list[torch.Tensor]:
    states, read = slow_rnn(layer.rnn, context), []
    for i, state in enumerate(states):
        others = [other for j, other in enumerate(states) if j != i] + [torch.zeros_like(state)]
        scores = [slow_trilinear(layer.scores, state, other) for other in others[:-1]] + [layer.nothing[0]]
        seen = slow_attend(scores, others, len(state))
        added = slow_linear(layer.projection, torch.cat([seen, state, seen * state])).clamp(min=0)
        read.append(context[i] + added)
    return read


@pytest.mark.parametrize("lengths", [(3, 4), (1, 1), (4, 0), (0, 3)], ids=str)
@pytest.mark.parametrize("placement", ["input", "output", "both", None])
def test_scores_are_those_of_the_slow_network(placement, lengths):
    changes = {"elmo_placement": placement} if placement else {"use_elmo": False}
    model = make_model(ElmoForQuestionAnswering, **changes)
    row = make_row(*lengths)
    with torch.no_grad():
        output = model(**collate([row, make_row(2, 6)]))
        scores = torch.stack([output.start_logits[0], output.end_logits[0]], -1)
        expected = slow_scores(model, row)
    torch.testing.assert_close(scores[: len(expected)], expected, atol=1e-5, rtol=1e-5)
    assert (scores[len(expected) :] == LOWEST).all()


@pytest.mark.parametrize("side", ["right", "left"])
def test_answers_start_and_end_in_the_context_or_at_the_rows_first_word(side):
    output = make_model(ElmoForQuestionAnswering)(**collate([make_row(3, 2), make_row(1, 4)], side, extra=1))
    found = [(row > LOWEST).nonzero().flatten().tolist() for row in output.start_logits]
    assert found == ([[0, 3, 4], [0, 1, 2, 3, 4]] if side == "right" else [[1, 4, 5], [1, 2, 3, 4, 5]])
    assert torch.equal(output.end_logits > LOWEST, output.start_logits > LOWEST)


def test_the_loss_is_the_mean_of_both_cross_entropies_and_leaves_impossible_positions_out():
    model = make_model(ElmoForQuestionAnswering)
    batch = collate([make_row(2, 3), make_row(1, 2), make_row(3, 3), make_row(2, 2)])
    starts = torch.tensor([3, 0, 1, 99])  # of the last two, a word of the question and no column at all
    ends = torch.tensor([4, 2, 5, -7])
    output = model(**batch, start_positions=starts, end_positions=ends)
    start_losses = -output.start_logits.log_softmax(1)[[0, 1], starts[:2]]
    end_losses = -output.end_logits.log_softmax(1)[[0, 1, 2], ends[:3]]
    torch.testing.assert_close(output.loss, (start_losses.mean() + end_losses.mean()) / 2)
    as_columns = {"start_positions": starts.unsqueeze(1), "end_positions": ends.unsqueeze(1)}
    torch.testing.assert_close(model(**batch, **as_columns).loss, output.loss)
    assert model(**batch, start_positions=starts).loss is None


def test_two_accumulated_batches_of_answers_weigh_as_one():
    model, rows = make_model(ElmoForQuestionAnswering), [make_row(2, 3), make_row(1, 2), make_row(3, 3)]
    places = {"start_positions": torch.tensor([3, 1, 4]), "end_positions": torch.tensor([4, 2, 5])}

    def loss(part: slice, **count: int) -> torch.Tensor:
        return model(**collate(rows[part]), **{name: each[part] for name, each in places.items()}, **count).loss

    parts = [loss(part, num_items_in_batch=3) for part in (slice(0, 1), slice(1, 3))]
    torch.testing.assert_close(sum(parts), loss(slice(0, 3)))


def test_the_loss_is_zero_where_no_position_counts_or_there_is_no_word():
    for width in (0, 3):
        logits = torch.randn(2, width, requires_grad=True)
        loss = span_loss(logits, torch.tensor([7, -1]), torch.ones(2, width, dtype=torch.bool))
        (gradient,) = torch.autograd.grad(loss, logits)
        assert loss == 0 and not gradient.any()


def test_at_first_a_word_would_rather_look_at_others_than_at_none():
    model = build(ElmoForQuestionAnswering)
    assert model.self_attention.nothing == -1  # beside scores around 0, as in the released code
    for name, parameter in model.named_parameters():
        if "_rnn." in name or ".rnn." in name:
            limit = (6 / sum(parameter.shape)) ** 0.5 if parameter.dim() > 1 else 0
            assert parameter.abs().max() <= limit and parameter.std() >= 0.6 * limit / 3**0.5, name


@pytest.mark.slow
def test_it_learns_to_find_the_word_asked_for_and_that_it_is_not_there():
    rows, positions = [make_row(1, 4, seed) for seed in range(40)], torch.arange(40) % 5  # 0: it is not there
    for row, position in zip(rows, positions, strict=True):
        asked, context = row.vector_ids[0].clone(), row.vector_ids[1:]
        context[context == asked] = asked % (VECTORS - 1) + 1  # another word
        row.vector_ids[position] = asked
    batch = collate(rows)
    model = build(ElmoForQuestionAnswering, **LEARNS)
    assert fit(model, **batch, start_positions=positions, end_positions=positions) < 0.1
    output = model(**batch)
    assert (output.start_logits.argmax(1) == positions).all() and (output.end_logits.argmax(1) == positions).all()
