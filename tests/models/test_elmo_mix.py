"""The scalar mix against its formula, and what is frozen."""

import pytest
import torch

from modeling import ElmoModel
from modeling.elmo.modeling_elmo import ElmoScalarMix
from tests.support.elmo_reference import batch_of, small_config, small_model


K = 12
SENTENCES = [["a", "few", "words"], ["one"], ["and", "some", "more", "of", "them"]]


def mix_of(**changes) -> ElmoScalarMix:
    mix = ElmoScalarMix(small_config(**changes))
    torch.nn.init.normal_(mix.weights)
    torch.nn.init.constant_(mix.gamma, 1.7)
    return mix


def test_a_mix_is_gamma_times_the_softmax_weighted_sum():
    mix, layers = mix_of(), [torch.randn(5, 14) for _ in range(3)]
    powers = [weight.exp() for weight in mix.weights]
    wanted = 1.7 * sum(power / sum(powers) * layer for power, layer in zip(powers, layers, strict=True))
    torch.testing.assert_close(mix(layers), wanted)


def test_a_new_mix_is_the_mean_of_the_layers():
    layers = [torch.randn(5, 14) for _ in range(3)]
    torch.testing.assert_close(ElmoScalarMix(small_config())(layers), torch.stack(layers).mean(0))


def test_a_mix_of_the_top_layer_only_ignores_the_weights():
    layers = [torch.randn(5, 14) for _ in range(3)]
    torch.testing.assert_close(mix_of(mix_top_layer_only=True)(layers), 1.7 * layers[-1])


def test_layers_are_normalised_by_one_mean_and_variance_over_words_and_dimensions():
    mix, layers = mix_of(mix_layer_norm=True), [3 + 2 * torch.randn(5, 14) for _ in range(3)]
    shares = mix.weights.softmax(0)
    wanted = 1.7 * sum(
        share * (layer - layer.mean()) / layer.std(correction=0) for share, layer in zip(shares, layers, strict=True)
    )
    torch.testing.assert_close(mix(layers), wanted)
    junk = [torch.cat([layer, torch.full((3, 14), 1e3)]) for layer in layers]  # padding is not among the words
    mask = torch.tensor([True] * 5 + [False] * 3)[:, None]
    torch.testing.assert_close(mix(junk, mask)[:5], wanted)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_as_many_words_as_a_batch_has_are_normalised_in_half_precision(dtype):
    layer = 30 + 20 * torch.randn(300, 1024)
    normalised = ElmoScalarMix.normalise(layer.to(dtype), None)
    assert normalised.dtype == dtype
    torch.testing.assert_close(normalised.float(), (layer - 30) / 20, atol=0.03, rtol=0.03)


def test_normalising_leaves_sentence_boundaries_and_padding_out():
    model = small_model(mix_layer_norm=True)
    outputs = model(batch_of(SENTENCES, K, width=9), output_hidden_states=True)
    words = (batch_of(SENTENCES, K, width=9) != 0).any(-1)
    layers = [layer[words] for layer in outputs.hidden_states]
    wanted = sum((layer - layer.mean()) / layer.std(correction=0) for layer in layers) / len(layers)
    torch.testing.assert_close(outputs.last_hidden_state[words], wanted, atol=1e-5, rtol=1e-5)


def test_several_mixes_read_the_same_layers():
    model = small_model(num_mixes=3)
    for number, mix in enumerate(model.mixes):
        torch.nn.init.constant_(mix.gamma, 1.0 + number)
    first, second, third = model(batch_of(SENTENCES, K)).mixes.unbind(1)
    torch.testing.assert_close(second, 2 * first)
    torch.testing.assert_close(third, 3 * first)


def test_weights_that_a_mix_of_the_top_layer_does_not_use_neither_learn_nor_count(tmp_path):
    model = small_model(mix_top_layer_only=True, mix_l2=0.01)
    torch.nn.init.normal_(model.mixes[0].weights)
    model.save_pretrained(tmp_path)
    for top_only in (model, ElmoModel.from_pretrained(tmp_path)):
        assert {name for name, p in top_only.named_parameters() if p.requires_grad} == {"mixes.0.gamma"}
        assert top_only.mix_penalty() == 0


def test_the_penalty_is_that_of_the_weights_before_their_softmax():
    model = small_model(num_mixes=2, mix_l2=0.01)
    for mix in model.mixes:
        torch.nn.init.normal_(mix.weights)
    wanted = 0.01 * sum(weight**2 for mix in model.mixes for weight in mix.weights.tolist())
    assert model.mix_penalty().item() == pytest.approx(wanted, rel=1e-5)


def test_a_frozen_bilm_learns_only_its_mix_and_drops_nothing():
    model = small_model(hidden_dropout_prob=0.5).train()
    assert {name for name, p in model.named_parameters() if p.requires_grad} == {"mixes.0.weights", "mixes.0.gamma"}
    ids = batch_of(SENTENCES, K)
    assert torch.equal(model(ids).last_hidden_state, model(ids).last_hidden_state)
    model(ids).last_hidden_state.sum().backward()
    assert model.mixes[0].weights.grad.abs().sum() > 0


def test_a_bilm_that_trains_drops_from_each_layers_input():
    model = small_model(hidden_dropout_prob=0.5, freeze_bilm=False)
    ids = batch_of(SENTENCES, K)
    exact = model(ids).last_hidden_state
    model.train()
    one, other = model(ids).last_hidden_state, model(ids).last_hidden_state
    assert not torch.equal(one, other) and not torch.equal(one, exact)
    words = model(ids, output_hidden_states=True).hidden_states[0]
    assert torch.equal(words, model.eval()(ids, output_hidden_states=True).hidden_states[0])  # none on the word layer


def test_what_is_dropped_from_a_layers_input_is_missing_in_its_skip_connection_too():
    model = small_model(hidden_dropout_prob=0.5, freeze_bilm=False).train()
    for parameter in model.layers[1].parameters():
        torch.nn.init.zeros_(parameter)  # so that its output is its input
    _, below, above = model(batch_of(SENTENCES * 20, K), output_hidden_states=True).hidden_states
    words = below != 0
    assert 0.45 < (above[words] == 0).float().mean() < 0.55
    torch.testing.assert_close(above[above != 0], 2 * below[above != 0])


def test_repeated_words_have_dropout_of_their_own():
    model = small_model(hidden_dropout_prob=0.5, freeze_bilm=False, num_hidden_layers=1).train()
    states = model(batch_of([["word"]] * 50, K), output_hidden_states=True).hidden_states[1][:, 0]
    assert len(states.unique(dim=0)) > 40


def test_the_mix_has_dropout_in_training():
    model = small_model(mix_dropout=0.5)
    ids = batch_of([["many", "words"]] * 200, K)
    exact = model(ids).last_hidden_state
    dropped = model.train()(ids).last_hidden_state
    zero = dropped == 0
    assert 0.45 < zero.float().mean() < 0.55
    torch.testing.assert_close(dropped[~zero], 2 * exact[~zero])


def test_what_is_frozen_stays_so_in_a_loaded_model(tmp_path):
    small_model(freeze_bilm=True).save_pretrained(tmp_path)
    model = ElmoModel.from_pretrained(tmp_path)
    assert {name for name, p in model.named_parameters() if p.requires_grad} == {"mixes.0.weights", "mixes.0.gamma"}
    assert all(p.requires_grad for p in ElmoModel.from_pretrained(tmp_path, freeze_bilm=False).parameters())
