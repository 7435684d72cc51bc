"""The vectors of words are those that plain loops find in the outputs of transformers' models."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, BertModel, GPT2Model, OpenAIGPTModel, PreTrainedModel, PreTrainedTokenizerBase

from elmo_gpt_bert.analysis.frame import short_names
from elmo_gpt_bert.analysis.representations import load_encoder, occurrence_vectors, word_vectors
from elmo_gpt_bert.training.errors import InputError, MissingFileError
from elmo_gpt_bert.training.launching import choose_implementation
from modeling import ElmoModel
from tests.support.analysis_sample import write_vectors
from tests.support.pairs_sample import write_bert, write_bilm, write_gpt, write_gpt2


SENTENCES = [
    ["the", "film", "is", "dull", "."],  # "dull" is three tokens of BERT's
    ["good", "plot"],
    ["a", "plot", ",", "but", "not", "a", "very", "good", "cast", "?"],
]


@pytest.fixture(autouse=True)
def _zoo():
    choose_implementation("zoo")


def tokens_of(words: list[str], tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[list[int]]]:
    """The ids of a sentence, with special tokens, and the places of each word's tokens."""
    pieces = [tokenizer(word, add_special_tokens=False)["input_ids"] for word in words]
    start = tokenizer("")["input_ids"][:1]
    end = tokenizer("")["input_ids"][1:]
    begins = np.cumsum([len(start), *map(len, pieces)])
    places = [list(range(begin, begin + len(ids))) for begin, ids in zip(begins, pieces, strict=False)]
    return [*start, *(number for ids in pieces for number in ids), *end], places


@torch.no_grad()
def vectors_by_loop(model: PreTrainedModel, folder: Path, pieces: str) -> np.ndarray:
    """(layers, words, size): one sentence at a time, one word at a time."""
    tokenizer, vectors = AutoTokenizer.from_pretrained(folder), []
    for words in SENTENCES:
        ids, places = tokens_of(words, tokenizer)
        states = torch.cat(model(torch.tensor([ids]), output_hidden_states=True).hidden_states)  # (L, T, H)
        for of_word in places:
            chosen = {"first": of_word[:1], "last": of_word[-1:], "mean": of_word}[pieces]
            vectors.append(sum(states[:, place] for place in chosen) / len(chosen))
    return torch.stack(vectors, 1).numpy()


@pytest.mark.parametrize("pieces", ["first", "last", "mean"])
@pytest.mark.parametrize("write, stock", [(write_bert, BertModel), (write_gpt, OpenAIGPTModel)])
def test_a_word_has_the_states_of_its_first_or_last_token_or_their_mean(write, stock, pieces, tmp_path):
    folder = write(tmp_path)
    vectors = word_vectors(load_encoder(str(folder), pieces=pieces), SENTENCES)
    expected = vectors_by_loop(stock.from_pretrained(folder).eval(), folder, pieces)
    np.testing.assert_allclose(vectors, expected, atol=1e-5)


@pytest.mark.parametrize(
    "write, stock, pieces", [(write_bert, BertModel, "first"), (write_gpt, OpenAIGPTModel, "last")]
)
def test_by_default_it_is_the_first_token_and_of_a_causal_model_the_last(write, stock, pieces, tmp_path):
    folder = write(tmp_path)
    vectors = word_vectors(load_encoder(str(folder)), SENTENCES)
    expected = vectors_by_loop(stock.from_pretrained(folder).eval(), folder, pieces)
    np.testing.assert_allclose(vectors, expected, atol=1e-5)


def test_a_model_whose_tokenizer_cannot_pad_is_read_too(tmp_path):
    folder = write_gpt2(tmp_path)
    encoder = load_encoder(str(folder))
    expected = vectors_by_loop(GPT2Model.from_pretrained(folder).eval(), folder, "last")
    np.testing.assert_allclose(word_vectors(encoder, SENTENCES), expected, atol=1e-5)
    assert encoder.layers == ["embeddings", "layer 1", "layer 2"]


def test_elmos_vectors_of_a_sentence_do_not_depend_on_those_read_before_it(tmp_path):
    encoder = load_encoder(str(write_bilm(tmp_path, state="carry")))
    first, again = (word_vectors(encoder, SENTENCES) for _ in range(2))
    np.testing.assert_array_equal(first, again)
    np.testing.assert_allclose(word_vectors(encoder, SENTENCES[1:])[:, :2], first[:, 5:7], atol=1e-6)


def test_elmo_gives_its_character_layer_and_both_directions_of_each_lstm_layer(tmp_path):
    folder = write_bilm(tmp_path)
    encoder = load_encoder(str(folder))
    model = ElmoModel.from_pretrained(folder)
    expected = torch.cat([model.embed([words], layers="all")[0] for words in SENTENCES], 1)
    np.testing.assert_allclose(word_vectors(encoder, SENTENCES), expected, atol=1e-5)
    assert encoder.layers == ["characters", "LSTM 1", "LSTM 2"]


def test_word_vectors_have_one_layer_in_which_an_unknown_word_is_zeros(tmp_path):
    path = write_vectors(tmp_path / "vectors.txt", ["the", "The", "film"])
    rows = np.loadtxt(path, usecols=range(1, 8))
    vectors = word_vectors(load_encoder(str(path), ["The", "Film", "cast"]), [["Film", "cast"], ["The"]])
    np.testing.assert_allclose(vectors, [[rows[2], np.zeros(7), rows[1]]], atol=1e-6)


def test_a_word_behind_the_models_last_position_is_zeros(tmp_path):
    folder = write_bert(tmp_path)  # of 19 positions
    vectors = word_vectors(load_encoder(str(folder)), [["good"] * 6])  # of three tokens each
    assert (np.abs(vectors).sum((0, 2)) > 0).tolist() == [True] * 6
    vectors = word_vectors(load_encoder(str(folder)), [["good"] * 7])
    assert (np.abs(vectors).sum((0, 2)) > 0).tolist() == [True] * 6 + [False]


def test_an_occurrence_is_one_word_of_each_sentence(tmp_path):
    encoder = load_encoder(str(write_bert(tmp_path)))
    chosen = occurrence_vectors(encoder, SENTENCES, [3, 1, 0])
    np.testing.assert_allclose(chosen, word_vectors(encoder, SENTENCES)[:, [3, 6, 7]], atol=1e-5)


@pytest.mark.parametrize("write", [write_bert, write_gpt, write_bilm])
def test_random_weights_are_others_of_the_same_sizes_and_the_same_each_time(write, tmp_path):
    folder = str(write(tmp_path))
    trained = word_vectors(load_encoder(folder), SENTENCES)
    first, again = (word_vectors(load_encoder(folder, random=True), SENTENCES) for _ in range(2))
    assert trained.shape == first.shape and not np.allclose(trained, first, atol=0.01)
    np.testing.assert_array_equal(first, again)


def test_short_names_are_as_long_as_it_takes_to_tell_models_apart():
    assert short_names(["runs/bert", "runs/gpt"]) == ["bert", "gpt"]
    assert short_names(["a/bert", "b/bert", "gpt"]) == ["a/bert", "b/bert", "gpt"]
    with pytest.raises(InputError, match="bert is given twice"):
        short_names(["bert", "./bert"])


def test_what_is_no_model_is_one_clear_error(tmp_path):
    with pytest.raises(MissingFileError, match="glove.txt: no such file"):
        load_encoder(str(tmp_path / "glove.txt"))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}))
    with pytest.raises(InputError, match="has no weights: give a model folder$"):
        load_encoder(str(tmp_path / "config.json"))


def test_no_sentences_have_no_vectors(tmp_path):
    encoder = load_encoder(str(write_vectors(tmp_path / "vectors.txt", ["film"])), ["film"])
    with pytest.raises(ValueError, match="there are no sentences, so there are no vectors"):
        word_vectors(encoder, [])


def test_vectors_of_other_words_are_one_clear_error_without_a_flag_of_another_command(tmp_path):
    path = write_vectors(tmp_path / "vectors.txt", ["film"])
    with pytest.raises(InputError, match="vectors.txt holds no vector for any word in the texts$"):
        load_encoder(str(path), ["cast"])
