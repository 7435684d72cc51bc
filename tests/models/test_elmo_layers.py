"""What ELMo's task networks share: the words they read, their character CNN and their BiLSTM."""

import pytest
import torch
from torch import nn

from modeling import ElmoConfig
from modeling.elmo.modeling_elmo_layers import BiLSTM, ElmoTaskCharacters, ElmoTaskModel, VariationalDropout
from modeling.elmo.tokenization_elmo_spelling import ByteSpelling


WORD_PADDING = ByteSpelling.marks.word_padding
SIZES = {
    "max_characters_per_token": 9,
    "char_embedding_size": 4,
    "filters": [[1, 3], [2, 4]],
    "num_highway_layers": 1,
    "hidden_size": 10,
    "cell_size": 7,
    "num_word_vectors": 13,
    "word_vector_size": 6,
    "task_char_filters": 5,
    "mix_dropout": 0.0,
}
# Rows of words (1) and padding on either side, on both, in between; a row without words.
MASK = torch.tensor(
    [[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [0, 0, 1, 1, 1], [0, 1, 0, 1, 0], [0] * 5, [0, 0, 1, 0, 0]]
).bool()


def make_model(**changes) -> ElmoTaskModel:
    model = ElmoTaskModel(ElmoConfig(**(SIZES | changes)))
    model.post_init()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)
    return model.eval()


def make_inputs() -> dict[str, torch.Tensor]:
    ids = torch.randint(1, 258, (*MASK.shape, 9)) * MASK.unsqueeze(-1)
    return {"input_ids": ids, "vector_ids": torch.randint(1, 13, MASK.shape) * MASK, "attention_mask": MASK.long()}


# The words


@pytest.mark.parametrize("placement", ["input", "output", "both", "after_first_rnn"])
def test_a_word_is_its_vector_its_characters_and_the_mix_side_by_side(placement):
    model = make_model(elmo_placement=placement, num_mixes=2)
    inputs = make_inputs()
    words, mask, late, hidden_states = model.embed_words(**inputs, output_hidden_states=True)
    elmo = model.elmo(inputs["input_ids"], inputs["attention_mask"], output_hidden_states=True)
    parts = [model.word_vectors(inputs["vector_ids"]), model.characters(inputs["input_ids"])]
    parts += [elmo.mixes[:, 0]] if placement in ("input", "both") else []
    wanted = torch.cat(parts, -1)[MASK]
    assert wanted.shape[-1] == model.word_size
    torch.testing.assert_close(words[MASK], wanted)
    assert torch.equal(mask, MASK) and not words[~MASK].any()
    if placement == "input":
        assert late is None and model.late_size == 0
    else:
        assert torch.equal(late, elmo.mixes[:, 1 if placement == "both" else 0])
        assert late.shape[-1] == model.late_size and not torch.equal(elmo.mixes[:, 0], elmo.mixes[:, 1])
    assert all(map(torch.equal, hidden_states, elmo.hidden_states))


def test_without_a_mask_words_are_what_is_not_zero():
    model, inputs = make_model(), make_inputs()
    wanted = model.embed_words(**inputs)
    del inputs["attention_mask"]
    assert all(map(torch.equal, model.embed_words(**inputs)[:2], wanted[:2]))
    vectors = make_model(use_elmo=False, task_char_filters=0)
    assert torch.equal(vectors.embed_words(None, vector_ids=inputs["vector_ids"]).mask, MASK)


def test_layers_computed_before_give_the_same_words():
    model, inputs = make_model(task_char_filters=0), make_inputs()
    wanted = model.embed_words(**inputs)
    layers = torch.stack(model.elmo(inputs["input_ids"], MASK, output_hidden_states=True).hidden_states, 2)
    vectors = inputs["vector_ids"]
    found = model.embed_words(None, MASK, vector_ids=vectors, layer_states=layers)
    torch.testing.assert_close(found.words, wanted.words)
    torch.testing.assert_close(model.embed_words(None, vector_ids=vectors, layer_states=layers).words, wanted.words)
    by_layer = layers.transpose(1, 2).contiguous().transpose(1, 2)  # as `embed` returns them
    assert torch.equal(model.embed_words(None, layer_states=by_layer, vector_ids=vectors).mask, MASK)
    without_words = model.embed_words(None, layer_states=layers[:, :0], vector_ids=vectors[:, :0])
    assert without_words.words.shape == (len(MASK), 0, model.word_size)


@pytest.mark.parametrize(
    "changes",
    [
        {"use_elmo": False},
        {"elmo_placement": "output"},
        {"elmo_placement": "after_first_rnn"},
    ],
)
def test_a_network_that_would_read_nothing_is_one_clear_error(changes):
    with pytest.raises(ValueError, match="no words to read.*num_word_vectors=0"):
        make_model(num_word_vectors=0, task_char_filters=0, **changes)


@pytest.mark.parametrize(
    ("changes", "given", "message"),
    [
        ({}, {"vector_ids": None}, "no vector_ids are given"),
        ({}, {"vector_ids": torch.full(MASK.shape, 13)}, "vector_ids hold 13.*num_word_vectors=13"),
        ({}, {"vector_ids": torch.full(MASK.shape, -1)}, "vector_ids hold -1"),
        ({"use_elmo": False}, {"input_ids": None}, "task_char_filters=5, but there are no input_ids"),
        ({}, {"input_ids": None, "vector_ids": None, "attention_mask": None}, "Give input_ids"),
    ],
)
def test_inputs_that_are_missing_or_do_not_fit_are_one_clear_error(changes, given, message):
    with pytest.raises(ValueError, match=message):
        make_model(**changes).embed_words(**(make_inputs() | given))


def test_word_vectors_stay_as_they_are_when_frozen():
    assert make_model().word_vectors.weight.requires_grad
    assert not make_model(freeze_word_vectors=True).word_vectors.weight.requires_grad


def test_the_penalty_on_the_mix_counts_once_in_a_step():
    model = make_model(mix_l2=0.3, num_mixes=2)
    penalty = 0.3 * sum(mix.weights.square().sum() for mix in model.elmo.mixes)
    labels = [torch.tensor([1, 0, -100]), torch.tensor([2, -100, -100])]
    torch.testing.assert_close(model.add_mix_penalty(torch.tensor(2.0), labels[0]), 2 + penalty)
    shares = [model.add_mix_penalty(torch.tensor(0.0), part, num_items_in_batch=3) for part in labels]
    torch.testing.assert_close(sum(shares), penalty)
    assert make_model().add_mix_penalty(torch.tensor(2.0), labels[0]) == 2


# The character CNN


def spell(length: int) -> list[int]:
    """The 9 ids of a word of so many characters, its begin and end marks among them."""
    return torch.randint(1, 256, (length,)).tolist() + [WORD_PADDING] * (9 - length)


@pytest.mark.parametrize("width", [1, 3, 5, 11])
def test_characters_are_the_greatest_of_the_windows_within_the_word(width):
    model = ElmoTaskCharacters(ElmoConfig(task_char_filters=4, task_char_width=width, task_char_embedding_size=3))
    nn.init.normal_(model.convolution.weight)
    words = [spell(length) for length in (3, 1, 9, 4, 3)]
    found = model(torch.tensor([words]))
    for word, vector in zip(words, found[0], strict=True):
        letters = [model.embeddings.weight[letter] for letter in word if letter != WORD_PADDING]
        letters += [torch.zeros(3)] * (width - len(letters))  # a word shorter than a window
        windows = [
            sum(model.convolution.weight[:, :, i] @ letters[start + i] for i in range(width)) + model.convolution.bias
            for start in range(len(letters) - width + 1)
        ]
        torch.testing.assert_close(vector, torch.stack(windows).amax(0).relu())
    assert found.any()


def test_repeated_words_are_computed_once_and_no_further_than_the_longest():
    model = ElmoTaskCharacters(ElmoConfig(task_char_filters=4))
    computed = []
    model.convolution.register_forward_hook(lambda module, args, output: computed.append(output.shape))
    words = torch.tensor([spell(5), spell(3), [0] * 9])
    text = words[torch.tensor([[0, 1, 0, 0], [1, 1, 2, 2]])]
    found = model(text)
    assert computed == [(3, 4, 3)]  # distinct words, one of them padding; filters; windows of 3 in 5 characters
    torch.testing.assert_close(found, model._convolve(text.flatten(0, 1)).view(2, 4, 4))


def test_a_character_that_fills_a_word_up_has_no_part_in_it():
    model = ElmoTaskCharacters(ElmoConfig(task_char_filters=4, task_char_width=5))
    words = torch.tensor([[spell(3), spell(6)]])
    wider = nn.functional.pad(words, (0, 4), value=WORD_PADDING)
    torch.testing.assert_close(model(words), model(wider))
    model(words).sum().backward()
    assert not model.embeddings.weight.grad[WORD_PADDING].any() and model.embeddings.weight.grad.any()


# The BiLSTM


def make_rnn(late_size: int = 0) -> BiLSTM:
    rnn = BiLSTM(4, 3, layers=2, late_size=late_size)
    for parameter in rnn.parameters():
        nn.init.normal_(parameter, std=0.6)
    return rnn.eval()


def slow(rnn: BiLSTM, states: torch.Tensor, late: torch.Tensor | None = None) -> torch.Tensor:
    """torch's LSTMs on the words of each row alone."""
    found = states.new_zeros(*MASK.shape, rnn.output_size)
    for row, mask in enumerate(MASK):
        words = states[row, mask]
        for index, layer in enumerate(rnn.layers if len(words) else ()):
            words = layer(words)[0]
            if late is not None and index == 0:
                words = torch.cat([words, late[row, mask]], -1)
        if len(words):
            found[row, mask] = words
    return found


@pytest.mark.parametrize("late_size", [0, 2])
@pytest.mark.parametrize("way", ["biLM's recurrence", "torch's", "traced"])
def test_each_row_is_read_as_if_it_were_alone(way, late_size, monkeypatch):
    """Values and gradients, by each of the three ways to compute them."""
    if way != "biLM's recurrence":
        monkeypatch.setattr("modeling.elmo.modeling_elmo_layers.is_faster", lambda *tensors: False)
    if way == "traced":
        monkeypatch.setattr("modeling.elmo.modeling_elmo_layers.needs_static_shapes", lambda tensor: True)
    rnn = make_rnn(late_size)
    states = torch.randn(*MASK.shape, 4, requires_grad=True)
    late = torch.randn(*MASK.shape, late_size, requires_grad=True) if late_size else None
    weights = torch.randn(*MASK.shape, 6)
    found, wanted = rnn(states, MASK, late), slow(rnn, states, late)
    torch.testing.assert_close(found, wanted, atol=1e-6, rtol=0)
    assert not found[~MASK].any()
    parts = [states, *rnn.parameters()] + ([late] if late_size else [])
    gradients = torch.autograd.grad((wanted * weights).sum(), parts)
    for one, other in zip(torch.autograd.grad((found * weights).sum(), parts), gradients, strict=True):
        torch.testing.assert_close(one, other, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("shape", [(0, 5), (2, 0), (2, 5)])
def test_without_words_there_are_zeros(shape):
    rnn = make_rnn()
    assert torch.equal(rnn(torch.randn(*shape, 4), torch.zeros(shape).bool()), torch.zeros(*shape, 6))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_types_are_computed_as_torch_computes_them(dtype):
    rnn, states = make_rnn().to(dtype), torch.randn(*MASK.shape, 4, dtype=dtype)
    found = rnn(states, MASK)
    assert found.dtype == dtype
    torch.testing.assert_close(found, slow(rnn, states), atol=1e-2 if dtype == torch.bfloat16 else 1e-12, rtol=0)


@pytest.mark.parametrize("rows", [1, 2], ids=["one row", "rows of one length"])
def test_rows_of_one_length_are_read_in_bfloat16_on_every_processor(rows):
    rnn, states, mask = make_rnn(), torch.randn(rows, 5, 4), torch.ones(rows, 5, dtype=torch.bool)
    wanted = rnn(states, mask)
    with torch.autocast("cpu", torch.bfloat16):
        found = rnn(states, mask)
    torch.testing.assert_close(found.float(), wanted, atol=0.03, rtol=0)


@pytest.mark.slow
def test_a_traced_graph_computes_the_same():
    rnn, states = make_rnn(), torch.randn(*MASK.shape, 4)
    wanted = rnn(states, MASK)
    exported = torch.export.export(rnn, (states, MASK)).module()
    torch.testing.assert_close(exported(states, MASK), wanted, atol=1e-6, rtol=0)
    other = torch.randn(*MASK.shape, 4)  # the mask is data too
    torch.testing.assert_close(exported(other, MASK.flip(0)), rnn(other, MASK.flip(0)), atol=1e-6, rtol=0)


def test_dropout_is_the_same_for_all_words_of_a_row_and_none_in_evaluation():
    states = torch.ones(50, 4, 20)
    dropout = VariationalDropout(0.4)
    dropped = dropout(states)
    torch.testing.assert_close(dropped.unique(), torch.tensor([0, 1 / 0.6]))
    assert (dropped == dropped[:, :1]).all() and not (dropped == dropped[:1]).all()
    assert abs((dropped == 0).float().mean() - 0.4) < 0.06
    assert torch.equal(dropout.eval()(states), states)
    rnn = BiLSTM(4, 3, layers=2, dropout=0.5)
    inputs = torch.randn(*MASK.shape, 4)
    assert not torch.equal(rnn(inputs, MASK), rnn(inputs, MASK))
    assert torch.equal(rnn.eval()(inputs, MASK), rnn(inputs, MASK))
