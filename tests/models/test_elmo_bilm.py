"""The biLM: the released vectors, a slow reference, and that nothing but a sentence decides on its vectors."""

import copy
import json

import h5py
import numpy as np
import pytest
import torch

import modeling.elmo.modeling_elmo_characters as characters
from elmo_gpt_bert.convert.elmo import convert
from modeling import ElmoModel
from modeling.elmo import modeling_elmo_lstm
from modeling.elmo.configuration_elmo import LEAST
from modeling.elmo.modeling_elmo_lstm import run_both
from modeling.elmo.tokenization_elmo_spelling import ByteSpelling
from tests.support.elmo_reference import Reference, batch_of, small_config, small_model


SENTENCES = [
    ["The", "cat", "sat", "on", "a", "very-very-long", "mat", "."],
    ["Zoë"],
    ["the", "cat", "is", "the", "cat", "is", "the", "cat", "is", "here"],
    ["naïve", "€", "x"],
]
# For gradients and clips, which take longer; with a word that is cut.
SHORT_SENTENCES = [SENTENCES[0][3:], SENTENCES[1], SENTENCES[3]]
K = 12
VARIANTS = {
    "as published": {},
    "cells and projections clipped": {"cell_clip": 0.4, "proj_clip": 0.15},
    "nothing clipped": {"cell_clip": None, "proj_clip": None},
    "no skip connections": {"use_skip_connections": False},
    "three layers": {"num_hidden_layers": 3},
    "one layer, no highway": {"num_hidden_layers": 1, "num_highway_layers": 0},
    "tanh over characters": {"char_activation": "tanh"},
    "no projections": {"cell_size": 7, "filters": [[1, 3], [3, 4]]},
}


def layers_of(model: ElmoModel, sentences: list[list[str]], **kwargs) -> list[torch.Tensor]:
    """(L + 1, words, H) of each sentence, from one right-padded batch."""
    states = model(batch_of(sentences, K), output_hidden_states=True, **kwargs).hidden_states
    return [torch.stack([layer[row, : len(words)] for layer in states]) for row, words in enumerate(sentences)]


# Against other implementations


@pytest.fixture
def released(data, tmp_path):
    """(folder of the converted release, its sentences: three files of ten)."""
    files = data / "elmo_tiny"
    convert(str(files / "options.json"), str(files / "lm_weights.hdf5"), str(tmp_path / "elmo"))
    texts = json.loads((files / "lm_embeddings_sentences.json").read_text())
    return tmp_path / "elmo", [[text.split() for text in file] for file in texts]


def test_the_released_vectors_are_reproduced(released, data):
    folder, sentences = released
    model = ElmoModel.from_pretrained(folder, state="carry").eval()
    for number, batch in enumerate(zip(*sentences, strict=True)):  # of three, the state carried from row to row
        found = model.embed(batch, batch_size=3, layers="all")
        for file, vectors in enumerate(found):
            stored = h5py.File(data / "elmo_tiny" / f"lm_embeddings_{file}.hdf5")[str(number)][...]
            forward, backward = vectors[-1].chunk(2, -1)
            np.testing.assert_allclose(np.stack([forward, backward]), stored, atol=1e-5)


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_every_layer_is_what_one_word_and_one_gate_at_a_time_give(changes):
    model = small_model(**changes)
    reference = Reference(model)
    for words, found in zip(SENTENCES, layers_of(model, SENTENCES), strict=True):
        wanted, _ = reference.sentence(words)
        torch.testing.assert_close(found.double(), torch.stack(wanted), atol=1e-5, rtol=1e-5)


def test_the_clips_of_these_tests_are_reached():
    clipped, free = (small_model(**VARIANTS[name]) for name in ("cells and projections clipped", "nothing clipped"))
    free.load_state_dict(clipped.state_dict())
    one, other = (
        torch.cat([layer.flatten() for layer in layers_of(model, SHORT_SENTENCES)]) for model in (clipped, free)
    )
    assert (one - other).abs().max() > 0.1


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_every_gradient_is_what_one_word_and_one_gate_at_a_time_give(changes):
    model = small_model(freeze_bilm=False, **changes)
    reference = Reference(model)
    factors = [torch.randn(len(words), model.config.hidden_size) for words in SHORT_SENTENCES]
    found = layers_of(model, SHORT_SENTENCES)
    sum((layer * factor).sum() for layer, factor in zip(found, factors, strict=True)).backward()
    wanted = [torch.stack(reference.sentence(words)[0]) for words in SHORT_SENTENCES]
    sum((layer * factor.double()).sum() for layer, factor in zip(wanted, factors, strict=True)).backward()
    for name, parameter in model.named_parameters():
        if "mixes" not in name:
            theirs = reference.w[name].grad
            if name.endswith("char_embeddings.weight"):
                theirs[0] = 0
            torch.testing.assert_close(
                parameter.grad.double(), theirs, atol=1e-5, rtol=2e-4, msg=f"{name}: {{}}".format
            )


def test_the_gradient_of_the_mix_reaches_the_layers_that_are_returned():
    ids = batch_of(SENTENCES, K)
    outputs = small_model(freeze_bilm=False)(ids, output_hidden_states=True)
    words = (ids != 0).any(-1, keepdim=True)
    for gradient in torch.autograd.grad(outputs.last_hidden_state.sum(), outputs.hidden_states):
        torch.testing.assert_close(gradient, (words / 3).expand_as(gradient))


def test_gradients_reach_the_state_that_sentences_start_from():
    model = small_model(freeze_bilm=False)
    layer = model.layers[0]
    lstms = (layer.forward_lstm, layer.backward_lstm)
    sizes, rows = [3, 2, 2, 1], 8
    inputs = [torch.randn(rows, 7) for _ in range(2)]
    leaves = [torch.randn(2, 3, 7, requires_grad=True), torch.randn(2, 3, 11, requires_grad=True)]
    factors = [torch.randn(rows, 7) for _ in range(2)]
    gates = tuple(lstm.input(given) for lstm, given in zip(lstms, inputs, strict=True))
    weights = [lstm.step_weights for lstm in lstms]
    *found, state = run_both(gates, weights, tuple(leaves), sizes, (0.9, 0.3))

    wanted, ends = [], []
    for direction, lstm in enumerate(lstms):
        hidden, cell, steps = list(leaves[0][direction]), list(leaves[1][direction]), []  # of each sentence
        rows = iter(gates[direction])
        for size in sizes:
            for sentence in range(size):
                i, f, g, o = (next(rows) + lstm.recurrent.weight @ hidden[sentence]).split(11)
                cell[sentence] = (f.sigmoid() * cell[sentence] + i.sigmoid() * g.tanh()).clamp(-0.9, 0.9)
                squashed = o.sigmoid() * cell[sentence].tanh()
                hidden[sentence] = (lstm.projection.weight @ squashed).clamp(-0.3, 0.3)
                steps.append(hidden[sentence])
        wanted.append(torch.stack(steps))
        ends.append((torch.stack(hidden), torch.stack(cell)))
    for part, direction_ends in zip(state, zip(*ends, strict=True), strict=True):
        torch.testing.assert_close(part, torch.stack(direction_ends), atol=1e-6, rtol=1e-5)
    found, wanted = (torch.autograd.grad(each, leaves, factors) for each in (found, wanted))
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-4)


def test_two_sentences_of_a_row_are_read_apart():
    model = small_model()
    first, second = SENTENCES[0], SENTENCES[3]
    types = torch.tensor([[0] * len(first) + [1] * len(second)])
    (found,) = layers_of(model, [first + second], token_type_ids=types)
    torch.testing.assert_close(found, torch.cat(layers_of(model, [first, second]), 1), atol=1e-6, rtol=0)
    for others in (2 * types, 3 * types - 2):  # any but 0 and 1 count as the nearer one, in traced graphs too
        ids = batch_of([first + second], K)
        assert torch.equal(layers_of(model, [first + second], token_type_ids=others)[0], found)
        padded = torch.cat(model.padded_layers(ids, torch.ones(1, len(types[0])).bool(), others))
        torch.testing.assert_close(padded, found, atol=1e-6, rtol=0)


# Nothing but the sentence counts


@pytest.mark.parametrize("state", ["zero", "warm"])
def test_a_sentence_has_the_same_vectors_alone_in_any_batch_in_any_order_under_any_padding(state):
    model = small_model(state=state)
    model.warm_up([["A", "first", "sentence"], ["and", "another"]])
    alone = [layers_of(model, [words])[0] for words in SENTENCES]
    for order in ([0, 1, 2, 3], [2, 0, 3, 1], [1, 1, 3]):
        batch = [SENTENCES[number] for number in order]
        for number, found in zip(order, layers_of(model, batch), strict=True):
            torch.testing.assert_close(found, alone[number], atol=1e-6, rtol=0)
    ids = batch_of(SENTENCES, K, side="left", width=20)
    states = torch.stack(model(ids, output_hidden_states=True).hidden_states, 1)
    for row, words in enumerate(SENTENCES):
        torch.testing.assert_close(states[row, :, 20 - len(words) :], alone[row], atol=1e-6, rtol=0)
        assert not states[row, :, : 20 - len(words)].any()


@pytest.mark.parametrize("state", ["zero", "warm"])
def test_one_call_does_not_depend_on_the_call_before(state):
    model = small_model(state=state)
    first = model(batch_of(SENTENCES, K)).last_hidden_state
    model(batch_of(SENTENCES[::-1], K))
    assert torch.equal(model(batch_of(SENTENCES, K)).last_hidden_state, first)


def test_the_mask_decides_what_is_a_word_and_without_one_the_ids_do():
    model = small_model()
    ids = batch_of(SENTENCES, K)
    mask = (ids != 0).any(-1)
    junk = torch.where(mask[..., None], ids, torch.randint(1, 262, ids.shape))
    found = model(junk, attention_mask=mask.long()).last_hidden_state
    assert torch.equal(found, model(ids).last_hidden_state)


def test_empty_sentences_and_empty_batches_have_no_vectors():
    model = small_model()
    (_, empty, last) = layers_of(model, [SENTENCES[0], [], SENTENCES[1]])
    assert empty.shape == (3, 0, 14)
    torch.testing.assert_close(last, layers_of(model, [SENTENCES[1]])[0], atol=1e-6, rtol=0)
    for shape in ((0, 5, K), (2, 0, K), (0, 0, K), (2, 3, K)):
        assert model(torch.zeros(shape, dtype=torch.long)).last_hidden_state.shape == (*shape[:2], 14)


@pytest.mark.parametrize("onednn", [True, False])
def test_two_threads_compute_what_one_does(onednn):
    model = small_model(freeze_bilm=False)

    def results(threads: int) -> list[torch.Tensor]:
        torch.set_num_threads(threads)
        model.zero_grad()
        states = model(batch_of(SENTENCES, K)).last_hidden_state
        states.square().sum().backward()
        return [states.detach(), *(parameter.grad for parameter in model.parameters())]

    with torch.backends.mkldnn.flags(enabled=onednn):
        for one, two in zip(results(1), results(2), strict=True):
            torch.testing.assert_close(two, one, atol=1e-6, rtol=1e-6)


def test_gradients_of_the_recurrence_come_in_few_sizes(monkeypatch):
    """Each size of a product costs memory that is never given back."""
    met, product = set(), modeling_elmo_lstm.product
    monkeypatch.setattr(modeling_elmo_lstm, "product", lambda *args: met.add(args[0].shape) or product(*args))
    for rows in range(300, 700):
        one, other = torch.randn(rows, 12), torch.randn(rows, 5)
        found = modeling_elmo_lstm._transposed_product(one, other)
        torch.testing.assert_close(found, one.T @ other, atol=1e-4, rtol=1e-4)
    assert len(met) < 20


def test_without_onednn_the_results_are_the_same():
    model = small_model(freeze_bilm=False)

    def results() -> list[torch.Tensor]:
        model.zero_grad()
        states = model(batch_of(SENTENCES, K)).last_hidden_state
        states.square().sum().backward()
        return [states.detach(), *(parameter.grad for parameter in model.parameters())]

    with_it = results()
    with torch.backends.mkldnn.flags(enabled=False):
        torch.testing.assert_close(results(), with_it, atol=1e-5, rtol=1e-4)


# Words


def test_columns_that_are_left_out_decide_nothing():
    encoder = small_model(filters=[[1, 4], [2, 3], [4, 30]]).token_encoder
    words = ["x" * number for number in range(11)] * 20 + ["yz", "é"] * 30  # in groups of like length
    rows = torch.tensor(ByteSpelling(K).rows(words))
    whole = encoder.pool(rows)
    only_padding = encoder.pool(torch.full((1, K), 261))
    assert (whole == only_padding).any(0)[7:].sum() > 5  # of the widest filter's maxima, some are of no character
    torch.testing.assert_close(encoder.pool_by_length(rows), whole, atol=1e-6, rtol=0)


def test_the_first_values_of_the_word_layer_are_those_of_the_released_training():
    wide = {"filters": [[1, 40], [3, 80]], "char_embedding_size": 20, "hidden_size": 120}
    relu, tanh = (ElmoModel(small_config(char_activation=name, **wide)).token_encoder for name in ("relu", "tanh"))
    assert 0.049 < relu.convolutions[1].weight.abs().max() <= 0.05
    for part, std in (
        (tanh.convolutions[1], (3 * 20) ** -0.5),
        (relu.projection, 120**-0.5),
        (relu.highways[1].transform, 120**-0.5),
        (relu.highways[1].carry, 120**-0.5),
    ):
        assert part.weight.std().item() == pytest.approx(std, rel=0.05) and part.weight.abs().max() > 3 * std
    assert not any(part.bias.any() for part in (*relu.convolutions, *tanh.convolutions, relu.projection))


def test_rows_that_share_a_number_are_told_apart(monkeypatch):
    monkeypatch.setattr(characters, "hash_rows", lambda rows: rows[:, 0])  # all words begin alike
    model = small_model()
    found = layers_of(model, SENTENCES)
    monkeypatch.undo()
    torch.testing.assert_close(found, layers_of(model, SENTENCES), atol=1e-6, rtol=0)


def test_each_word_of_a_batch_is_computed_once():
    model = small_model()
    computed = []
    model.token_encoder.register_forward_pre_hook(lambda module, inputs: computed.append(len(inputs[0])))
    layers_of(model, SENTENCES)
    words = {word for sentence in SENTENCES for word in sentence}
    assert computed == [len(words) + 2]  # with <S> and </S>


def test_another_table_of_characters_is_read():
    other = copy.deepcopy(model := small_model())
    table = torch.nn.Embedding.from_pretrained(torch.randn_like(model.get_input_embeddings().weight))
    model.set_input_embeddings(table)
    assert model.get_input_embeddings() is table
    other.get_input_embeddings().weight.data.copy_(table.weight)
    for found, wanted in zip(layers_of(model, SENTENCES), layers_of(other, SENTENCES), strict=True):
        torch.testing.assert_close(found, wanted, atol=0, rtol=0)


# What `embed` and bad input give


def test_embed_takes_words_or_text_and_gives_each_sentence_its_vectors_in_order():
    model = small_model()
    model.train()
    plain = layers_of(model, SENTENCES)
    for found, wanted in zip(model.embed(SENTENCES, batch_size=2, layers="all"), plain, strict=True):
        torch.testing.assert_close(found, wanted, atol=1e-6, rtol=0)
    texts = ["the cat is here", "", "Zoë"]
    mixed = model.embed(texts)
    assert [tuple(vectors.shape) for vectors in mixed] == [(4, 14), (0, 14), (1, 14)]
    torch.testing.assert_close(mixed[2], plain[1].mean(0), atol=1e-6, rtol=0)
    assert model.training and model.embed([]) == []


@pytest.mark.parametrize("layers", ["mix", "all"])
def test_embed_gives_the_same_where_the_configuration_asks_for_tuples(layers):
    model = small_model()
    expected = model.embed(SENTENCES, layers=layers)
    model.config.return_dict = False
    torch.testing.assert_close(model.embed(SENTENCES, layers=layers), expected, atol=0, rtol=0)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"sentences": "the cat"}, "sentences are 'the cat', one text: give a list"),
        ({"layers": "last"}, "layers='last': choose"),
        ({"layers": 3}, "layers=3: choose .* or a number from 0 to 2"),
        ({"layers": -1}, "layers=-1: choose"),
        ({"layers": True}, "layers=True: choose"),
        ({"pooling": "sum"}, "pooling='sum': choose mean or max, or None"),
        ({"sentences": [["on"], []], "pooling": "mean"}, "sentence 1 has no words, so no mean"),
        ({"batch_size": -1}, "batch_size=-1: a batch has one sentence or more"),
        ({"sentences": [["on"], ["the", 3]]}, r"word 1 of \['the', 3\] is 3, of type int"),
    ],
)
def test_what_embed_cannot_read_is_one_clear_error_and_changes_nothing(given, message):
    model = small_model().train()
    with pytest.raises(ValueError, match=message):
        model.embed(**({"sentences": SENTENCES} | given))
    assert model.training


def test_cached_layers_stand_for_the_words():
    model = small_model(num_mixes=2, mix_layer_norm=True)
    ids = batch_of(SENTENCES, K)
    computed = model(ids, output_hidden_states=True)
    states = torch.stack(computed.hidden_states, 2)
    again = model(ids, attention_mask=(ids != 0).any(-1), layer_states=states, output_hidden_states=True)
    torch.testing.assert_close(again.to_tuple(), computed.to_tuple(), atol=1e-6, rtol=0)
    states[0, 1] = 0  # a word all the same
    masked = model(attention_mask=(ids != 0).any(-1), layer_states=states).mixes
    assert torch.equal(model(ids, layer_states=states).mixes, masked)
    assert not torch.equal(model(layer_states=states).mixes, masked)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({}, "input_ids are None, not .rows, words, 12."),
        ({"input_ids": torch.ones(2, 12, dtype=torch.long)}, r"input_ids are \(2, 12\), not"),
        ({"input_ids": torch.ones(2, 3, 50, dtype=torch.long)}, "have 50 character ids a word, .* configured for 12"),
        (
            {"input_ids": torch.ones(2, 3, 12, dtype=torch.long), "attention_mask": torch.ones(2, 4)},
            r"attention_mask is \(2, 4\), not \(2, 3\)",
        ),
        (
            {"input_ids": torch.ones(2, 3, 12, dtype=torch.long), "token_type_ids": torch.ones(2, 4).long()},
            r"token_type_ids is \(2, 4\), not \(2, 3\)",
        ),
        ({"input_ids": torch.full((2, 3, 12), 262)}, "input_ids go from 262 to 262, but vocab_size is 262"),
        ({"input_ids": torch.full((2, 3, 12), -1)}, "input_ids go from -1 to -1"),
        ({"layer_states": torch.ones(2, 3, 2, 14)}, r"layer_states have \(2, 14\) .* configured for \(3, 14\)"),
        ({"layer_states": torch.ones(2, 3, 3, 7)}, r"layer_states have \(3, 7\) .* configured for \(3, 14\)"),
    ],
)
def test_inputs_of_another_shape_are_one_clear_error(inputs, message):
    with pytest.raises(ValueError, match=message):
        small_model()(**inputs)


def test_bfloat16_is_close_and_its_cells_stay_in_float32(released):
    folder, sentences = released
    exact, rounded = (ElmoModel.from_pretrained(folder, dtype=dtype) for dtype in (torch.float32, torch.bfloat16))
    texts = [sentence for file in sentences for sentence in file]
    one, other = (torch.cat(model.embed(texts), 0).float() for model in (exact, rounded))
    assert ((one - other).square().mean() / one.square().mean()).sqrt() < 0.01
    assert torch.nn.functional.cosine_similarity(one, other).min() > 0.999
    carrying = ElmoModel.from_pretrained(folder, dtype=torch.bfloat16, state="carry")
    carrying.embed(texts)
    hidden, cell = carrying.carried
    assert hidden.dtype == torch.bfloat16 and (cell != cell.bfloat16()).float().mean() > 0.9


def test_a_sentence_may_be_read_with_autocast():
    model = small_model(freeze_bilm=False)
    exact = model(batch_of(SENTENCES, K)).last_hidden_state
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = model(batch_of(SENTENCES, K)).last_hidden_state
        rounded.float().square().sum().backward()
    torch.testing.assert_close(rounded.float(), exact, atol=0.05, rtol=0.05)
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in model.layers.parameters())


def test_a_configuration_that_cannot_be_is_refused():
    for changes, message in (
        ({"hidden_size": 7}, "odd"),
        ({"filters": [[13, 4]]}, "no wider than max_characters_per_token=12"),
        ({"state": "hot"}, "zero"),
        ({"filters": [[1, 0]]}, "each must be .width, count."),
        ({"filters": []}, "there must be one"),
        ({"cell_clip": 0.0}, "cell_clip=0.0: it must be above 0; None"),
        ({"proj_clip": -1.0}, "proj_clip=-1.0: it must be above 0; None"),
        ({"mix_dropout": 1.5}, "mix_dropout=1.5: a probability"),
        ({"elmo_placement": "both"}, "num_mixes=1; set num_mixes=2"),
        *(({name: least - 1}, f"{name}={least - 1}: it must be {least} or more") for name, least in LEAST.items()),
    ):
        with pytest.raises(Exception, match=message):
            small_config(**changes)
