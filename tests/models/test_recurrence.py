"""Loops over time in operations of static shapes, and XLA's loop with its gradients, which a plain loop stands for."""

import pytest
import torch
from torch import nn

from modeling import ElmoConfig, ElmoModel, FeatureTaggerConfig, FeatureTaggerForTokenClassification, ZooBertConfig
from modeling.elmo import modeling_elmo, modeling_elmo_crf
from modeling.feature_tagger import modeling_features
from modeling.shared import modeling_onednn, modeling_recurrence
from modeling.shared.modeling_recurrence import run_padded, scan


MASK = torch.tensor([[1, 1, 1, 0, 0], [0, 1, 1, 1, 1], [1, 0, 1, 0, 1]]).bool()


def plain_loop(step, state, columns, reverse=False):
    """What torch_xla computes: states, columns and outputs are tensors, or lists and tuples of them, or None."""
    steps = range(len(flat(columns)[0]))
    outputs = {}
    with torch.no_grad():
        for number in reversed(steps) if reverse else steps:
            state, outputs[number] = step(state, pick(columns, number))
    return state, stack([outputs[number] for number in steps])


def flat(tree) -> list[torch.Tensor]:
    return [tree] if torch.is_tensor(tree) else [tensor for part in tree for tensor in flat(part)]


def pick(tree, number: int):
    return tree[number] if torch.is_tensor(tree) else type(tree)(pick(part, number) for part in tree)


def stack(trees: list):
    if trees[0] is None:
        return None
    if torch.is_tensor(trees[0]):
        return torch.stack(trees)
    return type(trees[0])(stack(list(parts)) for parts in zip(*trees, strict=True))


class OnXla(torch.Tensor):
    """A tensor of the CPU that says that it is on XLA."""

    device = torch.device("xla", 0)


def scan_as_on_xla(step, state, columns, weights=()):
    tensors = (*state, *columns, *weights)
    outputs, *state = modeling_recurrence._Scan.apply(step, (len(state), len(columns)), *tensors)
    return state, outputs


@pytest.fixture
def on_xla(monkeypatch) -> None:
    """Tensors of the CPU take XLA's way."""
    monkeypatch.setattr(modeling_recurrence, "loop", plain_loop)
    monkeypatch.setattr(modeling_recurrence, "scan", scan_as_on_xla)
    monkeypatch.setattr(modeling_elmo_crf, "scan", scan_as_on_xla)


def step(state, column, weights):
    """One that keeps its state where it is told to, and whose second state nothing reads."""
    (hidden, count), (inputs, keeps) = state, column
    new = (inputs + hidden @ weights[0]).tanh()
    return (torch.where(keeps, hidden, new), count + 1), new * weights[1]


@pytest.mark.parametrize("length", [1, 4])
def test_xlas_loop_has_the_gradients_of_a_loop_written_out(length, on_xla):
    state = [torch.randn(2, 3, requires_grad=True), torch.zeros(2)]
    columns = [torch.randn(length, 2, 3, requires_grad=True), torch.rand(length, 2, 1) < 0.4]
    weights = [torch.randn(3, 3, requires_grad=True), torch.randn(3, requires_grad=True)]
    leaves = [tensor for tensor in (*state, *columns, *weights) if tensor.requires_grad]
    factors = torch.randn(length, 2, 3), torch.randn(2, 3)

    def results(run) -> list[torch.Tensor]:
        (end, count), outputs = run(step, state, columns, weights)
        total = (outputs * factors[0]).sum() + (end * factors[1]).sum()
        return [outputs, end, count, *torch.autograd.grad(total, leaves)]

    torch.testing.assert_close(results(scan_as_on_xla), results(scan))


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
@pytest.mark.parametrize("xla", [False, True])
def test_torchs_rnns_are_computed_row_by_row(kind, xla, request):
    if xla:
        request.getfixturevalue("on_xla")
    rnn, states = kind(4, 3, bidirectional=True), torch.randn(*MASK.shape, 4, requires_grad=True)
    found = run_padded(rnn, states, MASK)
    rows = [rnn(row[real])[0] for row, real in zip(states, MASK, strict=True)]
    wanted = torch.zeros_like(found)
    wanted[MASK] = torch.cat(rows)
    torch.testing.assert_close(found, wanted, atol=1e-6, rtol=0)
    leaves, weights = [states, *rnn.parameters()], torch.randn_like(found)
    gradients = (torch.autograd.grad((each * weights).sum(), leaves) for each in (found, wanted))
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


def test_a_crf_has_the_same_losses_gradients_and_tags_on_xla(request):
    crf = modeling_elmo_crf.ConditionalRandomField(5, ["O", "B-A", "I-A", "B-B", "I-B"])
    for parameter in crf.parameters():
        nn.init.normal_(parameter)
    emissions, labels = torch.randn(*MASK.shape, 5, requires_grad=True), torch.randint(5, MASK.shape)

    def results() -> list[torch.Tensor]:
        loss = crf.negative_log_likelihood(emissions, labels, MASK).sum()
        with torch.no_grad():
            logits = crf.max_marginals(emissions, MASK)
        return [loss, logits, *torch.autograd.grad(loss, [emissions, *crf.parameters()])]

    expected = results()
    request.getfixturevalue("on_xla")
    torch.testing.assert_close(results(), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("layers", [1, 2])
def test_the_tagger_on_frozen_states_scores_the_same_with_static_shapes(layers, monkeypatch):
    encoder = ZooBertConfig(vocab_size=20, hidden_size=6, num_hidden_layers=1, num_attention_heads=2)
    config = FeatureTaggerConfig(encoder=encoder, features="last", rnn_size=5, rnn_layers=layers, num_labels=3)
    model, states = FeatureTaggerForTokenClassification(config).eval(), torch.randn(*MASK.shape, 6)
    states = torch.stack([states] * 2, 2)
    inputs = {"attention_mask": torch.ones_like(MASK), "sentence_mask": MASK, "layer_states": states}
    expected = model(**inputs).logits
    monkeypatch.setattr(modeling_features, "needs_static_shapes", lambda tensor: True)
    torch.testing.assert_close(model(**inputs).logits, expected, atol=1e-6, rtol=0)


def test_tensors_on_xla_are_not_read():
    assert modeling_onednn.is_opaque(torch.empty(2, device="meta").as_subclass(OnXla))
    assert not modeling_onednn.is_opaque(torch.empty(2)) and not modeling_onednn.is_opaque(None)


def test_a_bilm_that_is_trained_has_dropout_with_static_shapes_too(monkeypatch):
    sizes = {"filters": [[1, 4], [2, 5]], "char_embedding_size": 3, "hidden_size": 6, "cell_size": 7}
    model = ElmoModel(ElmoConfig(**sizes, freeze_bilm=False, hidden_dropout_prob=0.5, mix_dropout=0.0))
    ids = torch.randint(1, 250, (*MASK.shape, 50))
    expected = model.eval()(ids, MASK).last_hidden_state
    monkeypatch.setattr(modeling_elmo, "needs_static_shapes", lambda tensor: True)
    torch.testing.assert_close(model(ids, MASK).last_hidden_state, expected, atol=1e-6, rtol=0)
    first, second = (model.train()(ids, MASK).last_hidden_state for _ in range(2))
    assert not torch.equal(first, second)
