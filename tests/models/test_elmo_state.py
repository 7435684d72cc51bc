"""Where sentences start: from zeros, from a stored state, or, as released, from where the batch before ended."""

import pytest
import torch

from modeling import ElmoModel
from tests.support.elmo_reference import Reference, batch_of, small_model


K = 12
FIRST = [["the", "first", "row"], ["a", "much", "longer", "second", "row"], ["third"]]
SECOND = [["it", "goes", "on", "and", "on"], ["short"], []]
THIRD = [["now", "only", "two"], ["rows", "."]]


def layers_of(model: ElmoModel, sentences: list[list[str]]) -> list[torch.Tensor]:
    states = model(batch_of(sentences, K), output_hidden_states=True).hidden_states
    return [torch.stack([layer[row, : len(words)] for layer in states]) for row, words in enumerate(sentences)]


def test_carried_states_go_on_row_by_row_as_released():
    model = small_model(state="carry")
    reference, states = Reference(model), [(None, None)] * 3
    for batch in (FIRST, SECOND, THIRD, FIRST):  # a row that a batch lacks keeps its state for the next that has it
        for row, found in enumerate(layers_of(model, batch)):
            wanted, states[row] = reference.sentence(batch[row], states[row])
            torch.testing.assert_close(found.double(), torch.stack(wanted), atol=1e-5, rtol=1e-5)


def test_a_reset_state_is_a_new_beginning():
    model = small_model(state="carry")
    before = layers_of(model, FIRST)
    assert not torch.allclose(layers_of(model, FIRST)[0], before[0], atol=1e-3)
    model.reset_state()
    torch.testing.assert_close(layers_of(model, FIRST), before, atol=0, rtol=0)


def test_a_row_that_no_batch_has_had_starts_from_zeros():
    model = small_model(state="carry")
    layers_of(model, FIRST[:1])
    (_, second, _) = layers_of(model, FIRST)
    torch.testing.assert_close(second, layers_of(small_like(model, "zero"), FIRST)[1], atol=1e-6, rtol=0)


def small_like(model: ElmoModel, state: str) -> ElmoModel:
    other = small_model(state=state)
    other.load_state_dict(model.state_dict())
    return other


def test_warm_sentences_start_where_the_warming_ones_ended():
    model = small_model(state="warm")
    model.warm_up(FIRST)
    reference, states = Reference(model), (None, None)
    for words in FIRST:
        _, states = reference.sentence(words, states)
    for words, found in zip(SECOND, layers_of(model, SECOND), strict=True):
        wanted, _ = reference.sentence(words, states)
        torch.testing.assert_close(found.double(), torch.stack(wanted), atol=1e-5, rtol=1e-5)


def test_warming_again_is_no_different():
    model = small_model(state="warm")
    model.train()
    model.warm_up(FIRST)
    once = model.initial_hidden.clone(), model.initial_cell.clone()
    model.warm_up(FIRST)
    assert torch.equal(model.initial_hidden, once[0]) and torch.equal(model.initial_cell, once[1])
    assert model.training and model.config.state == "warm" and model.carried is None


def test_before_it_is_warmed_a_model_starts_from_zeros():
    model = small_model(state="warm")
    torch.testing.assert_close(layers_of(model, FIRST), layers_of(small_like(model, "zero"), FIRST), atol=0, rtol=0)


def test_the_warm_state_is_saved_with_the_model(tmp_path):
    model = small_model(state="warm")
    model.warm_up(FIRST)
    model.save_pretrained(tmp_path)
    torch.testing.assert_close(layers_of(ElmoModel.from_pretrained(tmp_path), SECOND), layers_of(model, SECOND))


@pytest.mark.slow
def test_warming_brings_vectors_close_to_the_released_behaviour(data, tmp_path):
    """Of the released miniature, where a state that has run for a while is what published vectors were made with."""
    import json

    from elmo_gpt_bert.convert.elmo import convert

    files = data / "elmo_tiny"
    convert(str(files / "options.json"), str(files / "lm_weights.hdf5"), str(tmp_path / "elmo"))
    texts = json.loads((files / "lm_embeddings_sentences.json").read_text())
    sentences = [text.split() for file in texts for text in file[:5]]
    vectors = {}
    for state in ("zero", "warm", "carry"):
        model = ElmoModel.from_pretrained(tmp_path / "elmo", state=state)
        vectors[state] = model.embed(sentences, batch_size=3, layers="all")[3:]

    def error(state: str) -> float:
        """The median, at the words where a direction starts."""
        pairs = zip(vectors[state], vectors["carry"], strict=True)
        off = [torch.cat([(a - b)[-1, 0, :16], (a - b)[-1, -1, 16:]]).abs().max() for a, b in pairs]
        return torch.stack(off).median().item()

    assert error("warm") < 0.1 * error("zero")


def test_warming_needs_a_sentence_and_a_graph_keeps_no_state():
    with pytest.raises(ValueError, match="warm_up needs at least one sentence"):
        small_model().warm_up([])
    with pytest.raises(ValueError, match='config.state="carry" cannot be traced'):
        torch.export.export(small_model(state="carry"), (), {"input_ids": batch_of(FIRST, K)}, strict=False)


def test_a_copy_of_data_parallel_says_that_it_cannot_carry_a_state():
    model = small_model(state="carry")
    copy = model._replicate_for_data_parallel()
    copy._buffers = model._buffers
    copy._parameters = model._parameters
    with pytest.raises(ValueError, match="nn.DataParallel drops its copies"):
        copy(batch_of(FIRST, K))
