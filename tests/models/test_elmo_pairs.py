"""What the networks of two sentences have in common: exact under padding, saved, traced, frozen, without ELMo."""

import pytest
import torch

import modeling
from modeling import ElmoForMultipleChoice, ElmoForQuestionAnswering, ElmoForSequenceClassification
from modeling.elmo.modeling_elmo_layers import attend, max_pool, mean_pool
from tests.support.elmo_pair_cases import (
    LENGTHS,
    MODELS,
    SIZES,
    batch_for,
    build,
    labels_for,
    make_model,
    make_row,
    scores_of,
)


EACH = pytest.mark.parametrize("model_class", MODELS, ids=lambda each: each.__name__.removeprefix("ElmoFor"))
PLACES = pytest.mark.parametrize("placement", ["input", "both"])
ROWS = [make_row(*lengths) for lengths in LENGTHS]


@EACH
@PLACES
@torch.no_grad()
def test_a_row_has_the_same_scores_alone_in_any_batch_order_and_padding(placement, model_class):
    model = make_model(model_class, elmo_placement=placement)
    expected = [scores_of(model, batch_for(model, [row]))[0] for row in ROWS]
    for padding in ({}, {"extra": 3}, {"side": "left"}, {"side": "left", "extra": 2}):
        found = scores_of(model, batch_for(model, ROWS, **padding))
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    found = scores_of(model, batch_for(model, ROWS[::-1]))
    torch.testing.assert_close(found, expected[::-1], atol=1e-5, rtol=1e-5)


@EACH
@pytest.mark.parametrize("lengths", [(4, 0), (0, 4)], ids=["second", "first"])
def test_an_empty_sentence_leaves_scores_and_gradients_finite(lengths, model_class):
    model = make_model(model_class)
    batch = batch_for(model, [make_row(*lengths), make_row(3, 2)])
    scores = scores_of(model, batch)
    assert all(row.isfinite().all() for row in scores)
    sum(row.clamp(min=-100).sum() for row in scores).backward()
    assert all(each.grad.isfinite().all() for each in model.parameters() if each.grad is not None)


@EACH
@torch.no_grad()
def test_batches_of_no_words_and_of_no_rows_are_computed_too(model_class):
    model = make_model(model_class)
    alone = scores_of(model, batch_for(model, [make_row(0, 0)]))
    beside = scores_of(model, batch_for(model, [make_row(0, 0), *ROWS]))
    torch.testing.assert_close(alone, beside[:1], atol=1e-5, rtol=1e-5)
    assert scores_of(model, {name: each[:0] for name, each in batch_for(model, ROWS).items()}) == []


@EACH
def test_every_part_learns_and_a_frozen_bilm_does_not(model_class):
    model = make_model(model_class, elmo_placement="both").train()
    scores = torch.cat([row.flatten() for row in scores_of(model, batch_for(model, ROWS))])
    scores[scores > -100].square().sum().backward()
    still = {name for name, each in model.named_parameters() if each.grad is None or not each.grad.any()}
    frozen = {name for name, _ in model.named_parameters() if name.startswith(("elmo.token_encoder", "elmo.layers"))}
    assert frozen == still


@EACH
def test_a_frozen_bilms_layers_may_be_kept_instead_of_computed(model_class):
    model = make_model(model_class)
    batch = batch_for(model, ROWS)
    output = model(**batch, output_hidden_states=True)
    kept = torch.stack(output.hidden_states, 2)  # (B, T, layers, H)
    if batch["input_ids"].dim() == 4:
        kept = kept.unsqueeze(1)
    expected = scores_of(model, batch)
    torch.testing.assert_close(scores_of(model, batch | {"layer_states": kept}), expected)
    different = scores_of(model, batch | {"layer_states": torch.zeros_like(kept)})
    assert not torch.allclose(different[0], expected[0])


@EACH
def test_the_baseline_has_no_bilm(model_class):
    model = make_model(model_class, use_elmo=False)
    assert not [name for name, _ in model.named_parameters() if name.startswith("elmo.")]
    assert model(**batch_for(model, ROWS), **labels_for(model, len(ROWS))).loss.isfinite()


@EACH
def test_the_weights_of_the_mixes_are_kept_small_by_the_loss(model_class):
    losses = []
    for penalty in (0.0, 0.5):
        torch.manual_seed(0)
        model = make_model(model_class, mix_l2=penalty)
        losses.append(model(**batch_for(model, ROWS), **labels_for(model, len(ROWS))).loss)
    torch.testing.assert_close(losses[1] - losses[0], 0.5 * model.elmo.mixes[0].weights.square().sum())


@pytest.mark.parametrize(
    ("model_class", "features"),
    [
        (ElmoForSequenceClassification, [21, 6, 12, 24, 9]),  # each LSTM's input, what is pooled, the hidden layer
        (ElmoForMultipleChoice, [21, 3, 24, 9]),
        (ElmoForQuestionAnswering, [21, 6, 6, 6, 6]),  # each GRU's input up to the attentions, and what it gives
    ],
    ids=[each.__name__.removeprefix("ElmoFor") for each in MODELS],
)
def test_dropout_is_on_what_each_layer_reads_and_the_same_for_all_words_of_a_row(model_class, features, monkeypatch):
    model, dropped = make_model(model_class), []

    def dropout(states, p, training=True, inplace=False):
        if training and p == SIZES["task_dropout"]:
            dropped.append(states.shape)
        return states

    monkeypatch.setattr("torch.nn.functional.dropout", dropout)
    model(**batch_for(model, ROWS))
    assert dropped == []
    model.train()(**batch_for(model, ROWS))
    assert [shape[-1] for shape in dropped] == features
    assert all(len(shape) == 2 or shape[1] == 1 for shape in dropped)


# Without the biLM, which all networks call in one place: test_elmo_ecosystem.py exports the classifier with it.
@pytest.mark.slow
@pytest.mark.parametrize("model_class", [ElmoForQuestionAnswering, ElmoForMultipleChoice])
@torch.no_grad()
def test_a_traced_graph_computes_the_same_for_rows_of_other_lengths(model_class):
    model = make_model(model_class, use_elmo=False, rnn_layers=1)
    traced_on = batch_for(model, [make_row(2, 1), make_row(1, 1)])
    graph = torch.export.export(model, (), traced_on, strict=False).module()
    batch = batch_for(model, [make_row(1, 2), make_row(1, 0)], side="left")
    torch.testing.assert_close(scores_of(graph, batch), scores_of(model, batch), atol=1e-5, rtol=1e-5)


@EACH
@torch.no_grad()
def test_it_is_the_same_after_saving_and_loading(model_class, tmp_path):
    model = make_model(model_class, elmo_placement="both")
    model.save_pretrained(tmp_path)
    again = model_class.from_pretrained(tmp_path)
    torch.testing.assert_close(scores_of(again, batch_for(model, ROWS)), scores_of(model, batch_for(model, ROWS)))
    names = {path.name for path in tmp_path.iterdir()}
    assert {"modeling_heads.py", "modeling_elmo_layers.py"} <= names


@EACH
def test_a_network_on_a_bilm_from_a_folder_begins_with_finite_weights(model_class, tmp_path):
    modeling.ElmoModel(modeling.ElmoConfig(**SIZES)).save_pretrained(tmp_path)
    model = model_class.from_pretrained(tmp_path)
    torch.testing.assert_close(
        model.elmo.layers[0].forward_lstm.input.weight,
        modeling.ElmoModel.from_pretrained(tmp_path).layers[0].forward_lstm.input.weight,
    )
    fresh = build(model_class)
    for (name, loaded), built in zip(model.named_parameters(), fresh.parameters(), strict=True):
        assert loaded.abs().max() <= 4 * built.abs().max(), name


@EACH
@torch.no_grad()
def test_half_precision_stays_close(model_class):
    model = build(model_class).eval()
    exact = scores_of(model, batch_for(model, ROWS))
    rounded = scores_of(model.bfloat16(), batch_for(model, ROWS))
    for row, near in zip(exact, rounded, strict=True):
        possible = row > torch.finfo(torch.bfloat16).min / 2
        torch.testing.assert_close(near.float()[possible], row[possible], atol=0.02, rtol=0.02)


@EACH
def test_taglms_place_for_the_bilm_is_refused(model_class):
    with pytest.raises(ValueError, match='"after_first_rnn" is TagLM.*choose "input", "output" or "both"'):
        build(model_class, elmo_placement="after_first_rnn")


@pytest.mark.parametrize(
    ("model_class", "first"), [(ElmoForQuestionAnswering, "question"), (ElmoForMultipleChoice, "context")]
)
def test_without_token_types_the_second_text_is_unknown_and_that_is_one_clear_error(model_class, first):
    model = make_model(model_class)
    batch = batch_for(model, [make_row(2, 3), make_row(2, 1)])
    del batch["token_type_ids"]
    with pytest.raises(ValueError, match=f"token_type_ids is missing: 0 for the words of the {first}, 1 for"):
        model(**batch)


def test_what_sees_nothing_is_zero():
    scores, states = torch.randn(2, 3, 4), torch.randn(2, 4, 5)
    visible = torch.zeros(2, 3, 4, dtype=torch.bool)
    visible[0, 1, 2] = True
    seen = attend(scores, states, visible)
    torch.testing.assert_close(seen[0, 1], states[0, 2])
    seen[0, 1] = 0
    assert not seen.any()


def test_pooling_counts_the_words_of_the_mask_alone():
    states = -torch.rand(3, 4, 2) - 1
    mask = torch.tensor([[0, 1, 1, 0], [1, 1, 1, 1], [0, 0, 0, 0]]).bool()
    torch.testing.assert_close(max_pool(states, mask)[0], torch.maximum(states[0, 1], states[0, 2]))
    torch.testing.assert_close(mean_pool(states, mask)[0], (states[0, 1] + states[0, 2]) / 2)
    torch.testing.assert_close(mean_pool(states, mask)[1], states[1].mean(0))
    assert not max_pool(states, mask)[2].any() and not mean_pool(states, mask)[2].any()
