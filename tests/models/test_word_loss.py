"""The losses over all words, in parts, are the cross-entropy of all scores at once."""

import pytest
import torch
import torch.nn as nn

from modeling.shared import modeling_heads
from modeling.shared.modeling_heads import word_loss


def inputs(rows: int = 37, words: int = 53, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(rows, 11, generator=generator).to(dtype).requires_grad_()
    table = torch.randn(words, 11, generator=generator).to(dtype).requires_grad_()
    return [states, table, torch.randint(words, (rows,), generator=generator), torch.rand(rows, generator=generator)]


def at_once(states, words, targets, weights) -> torch.Tensor:
    scores = (states @ words.T).float()
    return (nn.functional.cross_entropy(scores, targets, reduction="none") * weights).sum()


def with_gradients(loss, states, words, targets, weights) -> list[torch.Tensor]:
    value = loss(states, words, targets, weights)
    return [value.detach(), *torch.autograd.grad(3 * value, (states, words))]


@pytest.mark.parametrize("rows_in_cache", [1, 4, 1000])
@pytest.mark.parametrize("rows_at_once", [1, 5, 18, 37, 1000])
def test_loss_and_gradients_are_those_of_all_scores_at_once(rows_at_once, rows_in_cache, monkeypatch):
    monkeypatch.setattr(modeling_heads, "SCORES_AT_ONCE", rows_at_once * 53)
    monkeypatch.setattr(modeling_heads, "SCORES_IN_CACHE", rows_in_cache * 53)
    found, wanted = with_gradients(word_loss, *inputs()), with_gradients(at_once, *inputs())
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("rows_at_once", [5, 1000])
def test_a_bias_is_added_and_gets_its_gradient(rows_at_once, weighted, monkeypatch):
    monkeypatch.setattr(modeling_heads, "SCORES_AT_ONCE", rows_at_once * 53)
    states, words, targets, weights = inputs()
    bias = torch.randn(53, generator=torch.Generator().manual_seed(1)).requires_grad_()
    found = word_loss(states, words, targets, weights if weighted else None, bias)
    losses = nn.functional.cross_entropy(states @ words.T + bias, targets, reduction="none")
    wanted = (losses * weights if weighted else losses).sum()
    trained = (states, words, bias)
    parts = zip(*(torch.autograd.grad(3 * loss, trained) for loss in (found, wanted)), strict=True)
    for one, other in [(found, wanted), *parts]:
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)
    second = [
        torch.autograd.grad(torch.autograd.grad(loss(), bias, create_graph=True)[0].square().sum(), states)[0]
        for loss in (
            lambda: word_loss(states, words, targets, None, bias),
            lambda: nn.functional.cross_entropy(states @ words.T + bias, targets, reduction="sum"),
        )
    ]
    torch.testing.assert_close(*second, atol=1e-5, rtol=1e-5)


def test_a_gpu_computes_more_scores_at_once(products, monkeypatch):
    monkeypatch.setattr(modeling_heads, "SCORES_AT_ONCE", 8 * 53)
    monkeypatch.setattr(modeling_heads, "SCORES_AT_ONCE_ON_GPU", 16 * 53)
    parts = [
        modeling_heads._parts(torch.empty(37, 11, device=device), torch.empty(53, 11)) for device in ("cpu", "meta")
    ]
    assert [[part.start for part in each] for each in parts] == [[0, 8, 16, 24, 32], [0, 13, 26]]


def test_the_words_of_a_large_batch_are_one_part_on_a_gpu():
    """256 x 128 tokens of which 15 % are predicted, among BERT's words."""
    words = torch.empty(30522, 768, device="meta")
    parts = [list(modeling_heads._parts(torch.empty(4915, 768, device=device), words)) for device in ("cpu", "meta")]
    assert [len(each) for each in parts] == [5, 1]


@pytest.fixture
def products(monkeypatch):
    """A list that gets the number of rows of every product."""
    rows, linear = [], modeling_heads.linear
    monkeypatch.setattr(modeling_heads, "linear", lambda *given: rows.append(len(given[0])) or linear(*given))
    return rows


def test_no_more_scores_are_there_at_a_time_than_allowed(products, monkeypatch):
    monkeypatch.setattr(modeling_heads, "SCORES_AT_ONCE", 8 * 53)
    word_loss(*inputs()).backward()
    assert max(products[::3]) == 8  # of scores; errors follow for states and for words


@pytest.mark.parametrize("trained", ["states", "words"])
def test_only_what_is_trained_gets_a_gradient_and_costs_a_product(trained, products):
    states, words, *rest = inputs()
    wanted = dict(zip(("states", "words"), with_gradients(at_once, *inputs())[1:], strict=True))[trained] / 3
    given = {"states": (states, words.detach()), "words": (states.detach(), words)}[trained]
    word_loss(*given, *rest).backward()
    assert len(products) == 2
    leaf, other = (states, words) if trained == "states" else (words, states)
    torch.testing.assert_close(leaf.grad, wanted, atol=1e-5, rtol=1e-5)
    assert other.grad is None


def test_where_nothing_is_trained_or_recorded_no_gradient_is_computed(products):
    states, words, *rest = inputs()
    loss = word_loss(states.detach(), words.detach(), *rest)
    for context in (torch.no_grad(), torch.inference_mode()):
        with context:
            assert word_loss(states, words, *rest) == loss
    assert len(products) == 3 and not loss.requires_grad


def test_the_loss_of_half_precision_scores_is_computed_in_single():
    given = inputs(rows=19, words=2003, dtype=torch.bfloat16)
    torch.testing.assert_close(word_loss(*given), at_once(*given), atol=0, rtol=1e-6)


def test_half_precision_adds_the_parts_up_in_single(monkeypatch):
    states, words, targets, weights = inputs(rows=700, words=53, dtype=torch.bfloat16)
    whole = with_gradients(word_loss, states, words, targets, weights)[2]
    monkeypatch.setattr(modeling_heads, "SCORES_AT_ONCE", 53)  # 700 parts
    parts = with_gradients(word_loss, states, words, targets, weights)[2]
    assert parts.dtype == torch.bfloat16 and (parts - whole).float().norm() < 0.005 * whole.float().norm()


def test_half_precision_keeps_gradients_of_small_weights():
    states, words, targets, weights = inputs(rows=19, words=2003, dtype=torch.bfloat16)
    found = with_gradients(word_loss, states, words, targets, weights * 1e-6)
    exact = [part.detach().float().requires_grad_() for part in (states, words)]
    wanted = with_gradients(at_once, *exact, targets, weights * 1e-6)
    for one, other in zip(found, wanted, strict=True):
        assert (one.float() - other).norm() < 0.02 * other.norm()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_gives_gradients_in_the_weights_own_type_however_small(dtype):
    states, words, targets, weights = inputs(words=2003)
    wanted = with_gradients(at_once, *inputs(words=2003)[:3], weights * 1e-6)
    with torch.autocast("cpu", dtype):
        found = with_gradients(word_loss, states, words, targets, weights * 1e-6)
    for one, other in zip(found, wanted, strict=True):
        assert one.dtype == torch.float32 and (one - other).norm() < 0.02 * other.norm()


def test_no_rows_have_no_loss():
    states, words, targets, weights = inputs(rows=0)
    loss = word_loss(states, words, targets, weights)
    loss.backward()
    assert loss == 0 and not words.grad.any()
