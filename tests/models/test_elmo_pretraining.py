"""The biLM as a language model: eight steps of the released TensorFlow graph, and what its losses are made of."""

from functools import partial

import numpy as np
import pytest
import torch

from modeling import ElmoForPreTraining
from modeling.elmo import modeling_elmo_pretraining as pretraining
from modeling.elmo.modeling_elmo_pretraining import expected_count, sample_words
from tests.support.elmo_recording import UNROLL, batch, check_end, released_model
from tests.support.elmo_reference import BEGIN, END, Reference, batch_of, small_config


def steps_of_training(model: ElmoForPreTraining, arrays, norm: float, before=lambda number: None):
    """Yields (output, gradient norm) of each step of the released training, which this takes."""
    trained = [parameter for name, parameter in model.named_parameters() if "mixes" not in name]
    optimizer = torch.optim.Adagrad(trained, lr=0.2, initial_accumulator_value=1.0)
    for number in range(8):
        before(number)
        output = model(**batch(arrays, number))
        optimizer.zero_grad()
        (output.loss * UNROLL).backward()
        total = torch.stack([parameter.grad.norm() for parameter in trained]).norm()
        for parameter in trained:
            parameter.grad *= min(1.0, norm / total.item())
        optimizer.step()
        yield output, total.item()


@pytest.fixture
def full(data):
    return np.load(data / "elmo_training" / "full_softmax.npz")


@pytest.fixture
def sampled(data):
    return np.load(data / "elmo_training" / "sampled_softmax.npz")


def test_eight_steps_of_training_are_those_of_the_released_code(full):
    model = released_model(full)
    for number, (output, norm) in enumerate(steps_of_training(model, full, norm=1.0)):
        assert output.loss.item() == pytest.approx(full[f"loss{number}"], abs=1e-6)
        np.testing.assert_allclose(output.direction_losses.detach(), full[f"ind{number}"], atol=1e-6)
        assert norm == pytest.approx(full[f"gnorm{number}"], rel=2e-6)
    check_end(model, full)
    hidden, cell = model.elmo.carried
    for direction in range(2):
        for layer in range(2):
            number = 4 * direction + 2 * layer
            np.testing.assert_allclose(cell[layer, direction], full[f"state{number}"], atol=1e-6)
            np.testing.assert_allclose(hidden[layer, direction], full[f"state{number + 1}"], atol=1e-6)


def test_eight_steps_with_sampled_words_are_those_of_the_released_code(sampled, monkeypatch):
    model = released_model(sampled, num_sampled=8)
    draws = []  # of both directions

    def drawn(number: int) -> None:
        for direction in range(2):
            words = torch.tensor(sampled[f"cand{number}/{direction}/ids"]).long()
            # The released counts tell how often was drawn, and it is a whole number if our formula is theirs.
            ranks = words.double().numpy()
            probability = np.log((ranks + 2) / (ranks + 1)) / np.log(33)
            tries = np.log1p(-sampled[f"cand{number}/{direction}/samp"].astype(float)) / np.log1p(-probability)
            np.testing.assert_allclose(tries, tries.mean().round(), rtol=1e-4)
            draws.append((words, int(tries.mean().round())))
            targets = torch.tensor(sampled[f"batch{number}/next_token_id{'_reverse' if direction else ''}"]).flatten()
            found = expected_count(targets, 32, draws[-1][1])
            np.testing.assert_allclose(found, sampled[f"cand{number}/{direction}/true"][:, 0], rtol=1e-4)

    monkeypatch.setattr(pretraining, "sample_words", lambda *_: draws.pop(0))
    for number, (output, norm) in enumerate(steps_of_training(model, sampled, norm=10.0, before=drawn)):
        assert output.loss.item() == pytest.approx(sampled[f"loss{number}"], abs=1e-6)
        assert norm == pytest.approx(sampled[f"gnorm{number}"], rel=2e-6)
    check_end(model, sampled)


# The parts


SENTENCES = [["the", "cat", "sat"], ["on"], [], ["the", "long", "mat", "it", "is"]]
WORDS = torch.tensor([[3, 4, 5, 0, 0], [6, 0, 0, 0, 0], [0, 0, 0, 0, 0], [3, 7, 8, 9, 10]])
LABELS = torch.where(WORDS > 0, WORDS, -100)


def language_model(**changes) -> ElmoForPreTraining:
    torch.manual_seed(1)
    model = ElmoForPreTraining(small_config(**changes))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape) * 0.3)
    return model.eval()


def test_each_direction_predicts_every_word_and_the_boundary_it_reaches():
    model = language_model()
    reference = Reference(model.elmo)
    weight, bias = model.lm_head.weight.double(), model.lm_head.bias.double()
    forward, backward, rows = [], [], []
    for words, numbers in zip(SENTENCES, WORDS.tolist(), strict=True):
        if not words:
            rows.append(torch.zeros(2).double())
            continue
        numbers = numbers[: len(words)]
        sums = []
        for losses, order, side, targets in (
            (forward, [BEGIN, *words, END], "forward", [*numbers, 1]),
            (backward, [END, *words[::-1], BEGIN], "backward", [*numbers[::-1], 0]),
        ):
            layers, _ = reference.direction(order, side, None)
            scores = [weight @ state + bias for state in layers[-1][:-1]]
            found = [score.logsumexp(0) - score[target] for score, target in zip(scores, targets, strict=True)]
            losses += found
            sums.append(-torch.stack(found).sum())
        rows.append(torch.stack(sums))
    output = model(batch_of(SENTENCES, 12), labels=LABELS)
    means = torch.stack([torch.stack(losses).mean() for losses in (forward, backward)])
    torch.testing.assert_close(output.direction_losses.double(), means, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(output.loss.double(), means.mean(), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(output.log_likelihoods.double(), torch.stack(rows), atol=1e-4, rtol=1e-5)


def test_without_labels_the_scores_of_each_word_are_those_its_loss_is_made_of():
    model = language_model()
    ids = batch_of(SENTENCES, 12)
    scores = model(ids)
    for row, words in enumerate(SENTENCES):
        for place in range(len(words)):
            only = torch.full_like(LABELS, -100)
            only[row, place] = WORDS[row, place]
            found = model(ids, labels=only).log_likelihoods[row]
            both = [
                logits[row, place].log_softmax(0)[WORDS[row, place]]
                for logits in (scores.logits, scores.reverse_logits)
            ]
            others = torch.full_like(LABELS, -100)
            others[row, place] = 2
            there = model(ids, labels=others).log_likelihoods[row]  # the boundaries are in both
            instead = [logits[row, place].log_softmax(0)[2] for logits in (scores.logits, scores.reverse_logits)]
            torch.testing.assert_close(found - there, torch.stack(both) - torch.stack(instead), atol=1e-5, rtol=1e-5)


def test_a_pair_counts_as_the_sum_of_its_sentences():
    model = language_model()
    pair, types = batch_of([SENTENCES[0] + SENTENCES[3]], 12), torch.tensor([[0] * 3 + [1] * 5])
    labels = torch.cat([WORDS[0, :3], WORDS[3]])[None]
    both = model(pair, token_type_ids=types, labels=labels).log_likelihoods
    apart = model(batch_of(SENTENCES, 12), labels=LABELS).log_likelihoods
    torch.testing.assert_close(both[0], apart[0] + apart[3], atol=1e-5, rtol=1e-5)


def test_rows_of_one_sentence_are_scored_the_same_with_token_types_and_beside_pairs():
    model, ids = language_model(), batch_of(SENTENCES, 12)
    expected = model(ids, labels=LABELS).log_likelihoods
    types = torch.zeros(ids.shape[:2], dtype=torch.long)
    assert torch.equal(model(ids, token_type_ids=types, labels=LABELS).log_likelihoods, expected)
    types[0, 1:] = 1
    beside = model(ids, token_type_ids=types, labels=LABELS).log_likelihoods
    torch.testing.assert_close(beside[1:], expected[1:], atol=1e-5, rtol=1e-5)
    assert (beside[0] - expected[0]).abs().min() > 1e-3


def test_many_predictions_are_scored_in_pieces_with_the_same_gradient(monkeypatch):
    model = language_model()
    batch = {"input_ids": batch_of(SENTENCES, 12), "labels": LABELS}

    def results() -> list[torch.Tensor]:
        model.zero_grad()
        loss = model(**batch).loss
        loss.backward()
        return [loss.detach(), *(p.grad for name, p in model.named_parameters() if "mixes" not in name)]

    whole, pieces, checkpoint = results(), [], pretraining.checkpoint

    def counted(function, *given, **flags) -> torch.Tensor:
        pieces.append(len(given[0]))
        return checkpoint(function, *given, **flags)

    monkeypatch.setattr(pretraining, "AT_ONCE", 5)
    monkeypatch.setattr(pretraining, "checkpoint", counted)
    torch.testing.assert_close(results(), whole, atol=1e-6, rtol=1e-5)
    assert pieces == [5, 5, 2] * 2  # nine words and three boundaries in each direction


@pytest.mark.slow
def test_what_sampled_rivals_add_up_to_is_expected_to_be_what_all_rivals_do():
    head = language_model(lm_vocab_size=60).lm_head
    states, targets = 0.3 * torch.randn(40, 7), torch.randint(0, 60, (40,))
    scores = head(states).double().detach()
    target = scores.gather(1, targets[:, None])[:, 0]
    wanted = scores.exp().sum(1) - target.exp()
    found = []
    for _ in range(2000):
        words, draws = sample_words(60, 25, states.device)
        expected = expected_count(targets, 60, draws), expected_count(words, 60, draws)
        with torch.no_grad():
            losses = head.sampled_losses(states, targets, words, expected).double()
        found.append(losses.expm1() * (target.exp() / expected[0]))  # loss = log(1 + rivals / target)
    torch.testing.assert_close(torch.stack(found).mean(0), wanted, atol=0, rtol=0.06)


@pytest.mark.parametrize("is_half", [False, True], ids=["float32", "bfloat16 autocast"])
def test_a_sampled_loss_is_the_cross_entropy_of_the_target_and_the_sample(is_half):
    head = language_model(lm_vocab_size=60).lm_head
    sampled, targets = torch.tensor([50, 3, 7, 0, 21]), torch.tensor([3, 8, 50, 7, 1, 8])  # some targets are sampled
    expected = torch.rand(6), torch.rand(5)
    states = 3 * torch.randn(6, 7)

    def plain(states: torch.Tensor) -> torch.Tensor:
        scores = head(states)[:, sampled] - expected[1].log()
        scores = scores.masked_fill(targets[:, None] == sampled, -torch.inf)
        true = head(states).gather(1, targets[:, None]) - expected[0].log()[:, None]
        return torch.nn.functional.cross_entropy(torch.cat([true, scores], 1), torch.zeros(6).long(), reduction="none")

    results = []
    for losses in (plain, lambda states: head.sampled_losses(states, targets, sampled, expected)):
        inputs = states.clone().requires_grad_()
        head.zero_grad()
        with torch.autocast("cpu", enabled=is_half):
            loss = losses(inputs.bfloat16() if is_half else inputs)
        (loss * torch.arange(1.0, 7.0)).sum().backward()
        results.append([loss.detach(), inputs.grad, head.weight.grad, head.bias.grad])
    tolerance = {"atol": 0.5, "rtol": 0.1} if is_half else {"atol": 1e-5, "rtol": 1e-5}
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, **tolerance)


def test_sampled_words_are_different_ones_found_as_often_as_their_probability_says():
    counts, total, expected = torch.zeros(50), 4000, torch.zeros(50)
    for _ in range(total):
        words, draws = sample_words(50, 10, torch.device("cpu"))
        assert len(words.unique()) == 10 <= draws and 0 <= words.min() <= words.max() < 50
        counts[words] += 1
        expected += expected_count(torch.arange(50), 50, draws)
    torch.testing.assert_close(counts / total, expected / total, atol=0.03, rtol=0)


def test_a_target_that_was_sampled_is_not_its_own_rival():
    head = language_model().lm_head
    states, targets = torch.randn(3, 7), torch.tensor([2, 5, 7])
    one = torch.ones(3), torch.ones(3)
    with_target = head.sampled_losses(states, targets, torch.tensor([5, 9, 11]), one)[1]
    alone = head.sampled_losses(states, targets, torch.tensor([9, 11]), (torch.ones(3), torch.ones(2)))[1]
    torch.testing.assert_close(with_target, alone)


def test_training_samples_and_evaluation_does_not():
    model = language_model(num_sampled=5)
    batch = {"input_ids": batch_of(SENTENCES, 12), "labels": LABELS}
    exact = model(**batch).loss
    assert torch.equal(model(**batch).loss, exact)
    model.train()
    assert len({model(**batch).loss.item() for _ in range(5)}) > 1


def test_the_softmax_has_dropout_of_its_own():
    model = language_model(hidden_dropout_prob=0.5).train()
    model.elmo.eval()
    losses = {model(batch_of(SENTENCES, 12), labels=LABELS).loss.item() for _ in range(5)}
    assert len(losses) == 5


@torch.no_grad()
def test_a_layer_adds_the_input_that_dropout_has_left(monkeypatch):
    """As in the released code, where dropout is outside of the skip connection."""
    model = language_model().eval()
    layer, call = model.elmo.layers[1], partial(model, batch_of(SENTENCES, 12), output_hidden_states=True)
    forward = layer.forward
    with monkeypatch.context() as patch:
        zeros = lambda *inputs: (torch.zeros_like(each) for each in inputs)  # noqa: E731
        patch.setattr(layer, "forward", lambda a, b, *rest, **more: forward(*zeros(a, b), *rest, **more))
        of_nothing = call().hidden_states[2]
    layer.train().dropout.p = 1.0
    assert of_nothing.any()
    torch.testing.assert_close(call().hidden_states[2], of_nothing)


def test_the_language_model_trains_even_where_its_configuration_freezes_it(tmp_path):
    """All but the mixes, which it does not read: DistributedDataParallel would wait for their gradients."""
    model = language_model(freeze_bilm=True)
    model.save_pretrained(tmp_path)
    for trained in (model.train(), ElmoForPreTraining.from_pretrained(tmp_path).train()):
        trained(batch_of(SENTENCES, 12), labels=LABELS).loss.backward()
        assert trained.elmo.layers.training
        for name, parameter in trained.named_parameters():
            assert parameter.requires_grad == (parameter.grad is not None) == ("mixes" not in name), name


def test_a_stream_may_come_in_pieces_and_is_evaluated_against_all_words():
    """As the released `test` does: one word at a time, the state carried, no dropout, no samples."""
    model = language_model(state="carry", num_sampled=5, hidden_dropout_prob=0.5)
    rows, steps = 2, 5
    ids = [batch_of([["a", "b", "a", "c", "d"], ["e", "f", "a", "b", "g"]], 12) for _ in range(2)]
    ids[1] = ids[1].flip(1)
    labels = torch.randint(0, 17, (2, rows, steps))

    def losses(size: int) -> torch.Tensor:
        model.elmo.reset_state()
        found = []
        for start in range(0, steps, size):
            piece = slice(start, start + size)
            given = {"input_ids": ids[0][:, piece], "reverse_input_ids": ids[1][:, piece]}
            given |= {"labels": labels[0][:, piece], "reverse_labels": labels[1][:, piece]}
            found.append(model(**given).direction_losses)
        return torch.stack(found).mean(0)

    whole = losses(steps)
    torch.testing.assert_close(losses(1), whole, atol=1e-5, rtol=1e-5)
    reference, found = Reference(model.elmo), []
    for words, targets in zip((["a", "b", "a", "c", "d"], ["e", "f", "a", "b", "g"]), labels[0].tolist(), strict=True):
        states = torch.stack(reference.direction(words, "forward", None)[0][-1]).float()
        found.append(torch.nn.functional.cross_entropy(model.lm_head(states), torch.tensor(targets)))
    torch.testing.assert_close(whole[0], torch.stack(found).mean(), atol=1e-5, rtol=1e-5)


def test_streams_of_static_shapes_have_the_same_loss(monkeypatch):
    model, ids = language_model(), batch_of([["a", "b", "a", "c"], ["e", "f", "a", "b"]], 12)
    labels = torch.tensor([[3, -100, 5, 16], [-100, -100, 0, 1]])
    streams = {"input_ids": ids, "reverse_input_ids": ids.flip(1), "labels": labels, "reverse_labels": labels.flip(1)}
    expected = model(**streams).direction_losses
    monkeypatch.setattr(pretraining, "is_opaque", lambda tensor: True)  # as in a traced graph
    torch.testing.assert_close(model(**streams).direction_losses, expected)


def test_sentences_may_go_on_where_those_before_ended():
    model = language_model(state="carry")
    batch = {"input_ids": batch_of(SENTENCES, 12), "labels": LABELS}
    first, second = (model(**batch).log_likelihoods for _ in range(2))
    model.config.state = "zero"
    torch.testing.assert_close(first, model(**batch).log_likelihoods, atol=1e-5, rtol=1e-5)
    reference, states = Reference(model.elmo), None
    weight, bias = model.lm_head.weight.double(), model.lm_head.bias.double()
    for _ in range(2):
        layers, states = reference.direction([BEGIN, "the", "cat", "sat", END], "forward", states)
    scores = torch.stack([weight @ state + bias for state in layers[-1][:-1]]).log_softmax(1)
    wanted = scores.gather(1, torch.tensor([[3], [4], [5], [1]])).sum()
    torch.testing.assert_close(second[0, 0].double(), wanted, atol=1e-4, rtol=1e-5)


def test_the_softmax_begins_as_released():
    head = ElmoForPreTraining(small_config(lm_vocab_size=5000)).lm_head
    assert head.weight.std().item() == pytest.approx(7**-0.5, rel=0.03) and not head.bias.any()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"labels": torch.full((4, 5), 17)}, "labels go from 1 to 17, but lm_vocab_size is 17"),
        (
            {"labels": None, "reverse_input_ids": batch_of(SENTENCES, 12)},
            "streams need input_ids and reverse_input_ids",
        ),
        ({"reverse_labels": LABELS}, "streams need input_ids and reverse_input_ids"),
        (
            {"reverse_input_ids": batch_of(SENTENCES, 12), "reverse_labels": LABELS[:, :4]},
            r"but these are \(4, 5, 12\), \(4, 5, 12\), \(4, 5\), \(4, 4\)",
        ),
        (
            {name: batch_of(SENTENCES, 9) for name in ("input_ids", "reverse_input_ids")} | {"reverse_labels": LABELS},
            r"\(rows, words, 12\) .* but these are \(4, 5, 9\)",
        ),
        (
            {"reverse_input_ids": batch_of(SENTENCES, 12), "reverse_labels": LABELS, "num_draws": torch.ones(2)},
            r"sampled_words and num_draws are None and \(2,\), not \(2, words\) and \(2,\)",
        ),
        ({"labels": LABELS[:, :4]}, r"labels are \(4, 4\), not \(4, 5\): the number of each word"),
    ],
)
def test_labels_that_do_not_fit_are_one_clear_error(changes, message):
    inputs = {"input_ids": batch_of(SENTENCES, 12), "labels": LABELS} | changes
    with pytest.raises(ValueError, match=message):
        language_model()(**inputs)
