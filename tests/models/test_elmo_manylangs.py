"""A model of ELMoForManyLangs at work: its tokenizer, vectors of texts, every script, and which words it knows."""

import json
import string
from pathlib import Path

import numpy as np
import pytest
import torch
from huggingface_hub.errors import StrictDataclassClassValidationError
from transformers import AutoModelForTokenClassification, AutoTokenizer, pipeline

import run_glue
import run_ner
import run_pretraining
import run_squad
import run_swag
from elmo_gpt_bert.analysis.representations import load_encoder
from elmo_gpt_bert.convert import vectors
from elmo_gpt_bert.convert.elmo import convert
from examples.word_similarity import input_embeddings
from modeling import (
    ElmoConfig,
    ElmoForTokenClassification,
    ElmoModel,
    ElmoTokenClassificationPipeline,
    ElmoTokenizer,
)
from modeling.elmo.tokenization_elmo_spelling import CharacterSpelling
from tests.support import choices_sample, glue_sample, ner_sample, squad_sample
from tests.support.manylangs_reference import CHARACTERS, SENTENCES, WORDS, Reference, write_release


# A language of the words that the tests' data sets are made of, without some of its letters.
ENGLISH = [*(letter for letter in string.printable if letter not in string.whitespace + "zZ"), "é"]
ENGLISH_WORDS = [*WORDS[:4], *glue_sample.WORDS, ".", ",", "the", "film", "plot", "cast", "is", "very"]
SHORT = ["--max_steps", "2", "--save_strategy", "no", "--per_device_train_batch_size", "3", "--max_seq_length", "24"]
ALL = ["--do_train", "--do_eval", "--do_predict"]
TASK = "rnn_size=5,rnn_layers=1,classifier_size=6,task_char_filters=4"


def make(folder: Path, **changes: object) -> Path:
    convert(None, str(write_release(folder / "release", **changes)), str(folder / "model"))
    return folder / "model"


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """The folder of a model of the reference's language."""
    return make(tmp_path_factory.mktemp("reference"))


@pytest.fixture(scope="module")
def english(tmp_path_factory) -> Path:
    """The folder of a model that knows the words of the scripts' data."""
    words = list(dict.fromkeys(ENGLISH_WORDS))
    return make(tmp_path_factory.mktemp("english"), characters=ENGLISH, words=words)


@pytest.fixture
def elmo(model) -> ElmoModel:
    return ElmoModel.from_pretrained(model)


@pytest.fixture
def tokenizer(model) -> ElmoTokenizer:
    return ElmoTokenizer.from_pretrained(model)


# The tokenizer


def released_row(word: str, width: int = 9) -> list[int]:
    """One letter after the other: 1 unknown, then the characters; begin and end of a sentence, of a word, padding."""
    *marks, begin, end, padding = range(len(CHARACTERS) + 2, len(CHARACTERS) + 7)
    word = word[: width - 2]
    letters = [CHARACTERS.index(letter) + 2 if letter in CHARACTERS else 1 for letter in word]
    if word in ("<bos>", "<eos>"):
        letters = [marks[word == "<eos>"]]
    row = [begin, *letters, end]
    rows = ["<oov>", "<bos>", "<eos>", *WORDS[3:]]
    return row + [padding] * (width - len(row)) + [rows.index(word) + 1 if word in rows else 1]


def test_a_word_has_the_ids_of_its_characters_and_its_place_in_the_lexicon(tokenizer):
    words = [*sum(SENTENCES, []), *WORDS, "", "\ud83d", "我" * 10_000, "katakatk", "a\x00b", "[PAD]", "<W>"]
    assert tokenizer(words, is_split_into_words=True)["input_ids"] == [released_row(word) for word in words]
    assert tokenizer([], is_split_into_words=True)["input_ids"] == []


def test_without_a_lexicon_a_row_ends_with_the_letters():
    spelling = CharacterSpelling(9, CHARACTERS)
    assert spelling.rows(["Tao", ""]).tolist() == [released_row("Tao")[:-1], released_row("")[:-1]]
    assert CharacterSpelling(5, []).rows(["a\x00"]).tolist() == [[4, 1, 1, 5, 6]]


def test_ids_turn_into_words_again(tokenizer):
    words = ["Tao", "<bos>", "", "我", "a b", "\u3000", "<S>", "<eos>", "kat-kat", "<pad>"]
    ids = tokenizer(words, is_split_into_words=True)["input_ids"]
    assert tokenizer.convert_ids_to_tokens(ids) == words
    assert tokenizer.decode(ids[:4], skip_special_tokens=True) == "Tao  我"
    assert tokenizer.convert_ids_to_tokens(tokenizer(["Txo"])["input_ids"][0]) == ["T\ufffdo"]
    assert tokenizer.decode([[0] * 10]) == "[PAD]"


def test_ids_of_letters_alone_turn_into_words_and_marks_again(tmp_path):
    tokenizer, words = ElmoTokenizer.from_pretrained(make(tmp_path, word_dim=0)), ["Tao", "<bos>", "kat", "<eos>"]
    assert tokenizer.convert_ids_to_tokens(tokenizer(words, is_split_into_words=True)["input_ids"]) == words


def test_the_vocabulary_is_that_of_the_letters(tokenizer, elmo):
    vocabulary = tokenizer.get_vocab()
    assert sorted(vocabulary.values()) == list(range(elmo.config.vocab_size)) and vocabulary["我"] > 1
    assert len(tokenizer) == tokenizer.vocab_size == elmo.config.vocab_size
    assert tokenizer.convert_ids_to_tokens(1) == "<oov>"


def test_text_is_split_at_white_space_unless_the_tokenizer_says_otherwise(model):
    text = "它 很好,\u3000Tao's\t3.5 km\n"
    expected = {
        None: ["它", "很好,", "Tao's", "3.5", "km"],
        "spaces": ["它", "很好,", "Tao's", "3.5", "km"],
        "rules": ["它", "很好", ",", "Tao", "'s", "3.5", "km"],
        "characters": ["它", "很", "好", ",", "Tao", "'s", "3.5", "km"],
    }
    for split_by, words in expected.items():
        tokenizer = ElmoTokenizer.from_pretrained(model, split_by=split_by)
        assert tokenizer.tokenize(text) == words
        encoding = tokenizer(text, return_offsets_mapping=True)
        assert [text[begin:end] for begin, end in encoding["offset_mapping"]] == words
    assert ElmoTokenizer(split_by="characters").tokenize("It's 很好.") == ["It", "'s", "很", "好", "."]
    with pytest.raises(ValueError, match="split_by='words': choose one of rules, spaces, characters"):
        ElmoTokenizer(split_by="words")


def test_the_options_of_a_language_change_what_is_looked_up_and_nothing_else(model, tmp_path):
    plain = ElmoTokenizer.from_pretrained(model)
    reading = ElmoTokenizer.from_pretrained(model, full_width_to_ascii=True, nfc=True, split_by="spaces")
    reading.save_pretrained(tmp_path)
    for tokenizer in (reading, AutoTokenizer.from_pretrained(tmp_path)):
        encoding = tokenizer("Ｔａｏ e\u0301te\u0301 。 \u3000", return_offsets_mapping=True)
        assert encoding["input_ids"] == [released_row(word) for word in ("Tao", "été", "。")]
        assert encoding["offset_mapping"] == [(0, 3), (4, 9), (10, 11)] and encoding.tokens() == [
            "Ｔａｏ", "e\u0301te\u0301", "。",
        ]  # fmt: skip
    assert plain("Ｔａｏ")["input_ids"] == [released_row("Ｔａｏ")] != [released_row("Tao")]
    long = "e\u0301" * 7  # 14 characters, of which 7 are left before the word is cut
    assert reading(long)["input_ids"] == [released_row("é" * 7)]
    for code in (0xFF01, 0xFF0C, 0xFF5E):
        assert reading.convert_tokens_to_ids(chr(code)) == released_row(chr(code - 0xFEE0))
    for code in (0xFF00, 0xFF5F, 0x3000):
        assert reading.convert_tokens_to_ids([chr(code)]) == [released_row(chr(code))]


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("characters.json", "[", "characters.json is not JSON"),
        ("characters.json", '{"a": 1}', "characters.json must hold a JSON list of strings"),
        ("lexicon.json", "[1]", "lexicon.json must hold a JSON list of strings"),
        ("lexicon.json", '["a", "b", "a"]', "lexicon.json has 'a' more than once, again in entry 3"),
        ("lexicon.json", '["<oov>"]', "lexicon.json has '<oov>' more than once"),
        ("characters.json", '["<W>"]', "characters.json has '<W>' more than once"),
    ],
)
def test_damaged_lists_are_one_clear_error(file, content, message, tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / file).write_text(content)
    with pytest.raises(ValueError, match=message):
        ElmoTokenizer.from_pretrained(tmp_path)


def test_words_without_characters_are_refused(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "characters.json").unlink()
    with pytest.raises(ValueError, match="lexicon.json has the words of a model, but characters_file"):
        ElmoTokenizer.from_pretrained(tmp_path)


# Vectors


def test_embed_takes_words_and_text_split_at_spaces(elmo, tokenizer):
    by_words, by_text, mixed = elmo.embed([["Tao", "été"], "Tao  été", ("Tao", "été")], tokenizer=tokenizer)
    assert torch.equal(by_words, by_text) and torch.equal(by_words, mixed)
    assert elmo.embed(["Tao"], tokenizer=tokenizer)[0].shape == (1, 10)


def test_the_words_of_a_sentence_in_place_of_a_list_of_sentences_are_refused(elmo, tokenizer):
    message = r"sentences are \['Tao', '我'\], strings without spaces: give a sentence's words as \[\[word, word\]\]"
    for call in (elmo.embed, elmo.warm_up):
        with pytest.raises(ValueError, match=message):
            call(["Tao", "我"], tokenizer=tokenizer)
        with pytest.raises(ValueError, match="sentences are 'Tao', one text: give a list"):
            call("Tao", tokenizer=tokenizer)


def test_without_its_tokenizer_or_with_another_the_model_says_which_it_needs(elmo, tmp_path):
    other = ElmoTokenizer.from_pretrained(make(tmp_path, words=WORDS[:9], characters=CHARACTERS[:-1]))
    byte = "reads 10 ids of a word, the letters below 30, but the tokenizer of bytes makes 9, below 262: give"
    for call in (elmo.embed, elmo.warm_up):
        with pytest.raises(ValueError, match=byte):
            call(["Tao"])
        with pytest.raises(ValueError, match="below 30, but this tokenizer makes 10, below 29"):
            call(["Tao"], tokenizer=other)


@pytest.mark.parametrize("size", [-1, 1, 3])
def test_a_lexicon_has_room_for_padding_unknown_words_and_the_ends_of_a_sentence(size):
    with pytest.raises(StrictDataclassClassValidationError, match=f"lexicon_size={size}: it must be 0, or 4 or more"):
        ElmoConfig(lexicon_size=size)
    assert ElmoConfig(lexicon_size=4).lexicon_size == 4


def test_ids_of_another_models_words_are_one_clear_error(elmo, tokenizer):
    ids = tokenizer("Tao été", return_tensors="pt")["input_ids"]
    ids[0, 0, -1] = len(WORDS) + 1
    with pytest.raises(ValueError, match="the last of each word's input_ids go from .* to 15, but lexicon_size is 15"):
        elmo(ids)
    with pytest.raises(ValueError, match=r"have 9 character ids a word, but the model is configured for 10 \(max"):
        elmo(ids[..., :-1])


def test_a_warm_state_is_that_after_sentences_of_the_language(model, elmo, tokenizer):
    elmo.warm_up([["Tao", "été"], "我 ,"], tokenizer=tokenizer)
    elmo.config.state = "warm"
    reference = Reference(model.parent / "release")
    for words in (["Tao", "été"], ["我", ","]):
        reference.layers(words, row=0)
    (ours,) = elmo.embed([SENTENCES[0]], tokenizer=tokenizer, layers="all")
    np.testing.assert_allclose(ours, reference.layers(SENTENCES[0], row=0), atol=1e-5)


def test_traced_graphs_and_gradients_read_the_lexicon_too(elmo, tokenizer):
    batch = tokenizer(SENTENCES[:2], is_split_into_words=True, padding=True, return_tensors="pt")
    layers = elmo.padded_layers(batch["input_ids"], batch["attention_mask"].bool(), None)  # what is traced
    expected = elmo(**batch, output_hidden_states=True).hidden_states
    for ours, theirs in zip(layers, expected, strict=True):
        torch.testing.assert_close(ours * batch["attention_mask"][..., None], theirs, atol=1e-5, rtol=1e-5)
    assert elmo.dummy_inputs["input_ids"].shape == (1, 2, 10)
    trained = ElmoModel(elmo.config, trains=True)
    trained(**batch).last_hidden_state.sum().backward()
    gradient = trained.token_encoder.lexicon_vectors.weight.grad
    places = {released_row(word)[-1] for word in sum(SENTENCES[:2], [])} | {2, 3}
    assert {*gradient.abs().sum(1).nonzero()[:, 0].tolist()} == places


def test_a_task_networks_characters_are_the_letters_only(model, tokenizer):
    """Words with the same characters and other places in a lexicon look the same to them."""
    network = ElmoForTokenClassification.from_pretrained(model, task_char_filters=4)
    ids = tokenizer("Tao été", return_tensors="pt")["input_ids"]
    other = ids.clone()
    other[..., -1] = 1
    assert torch.equal(network.characters(ids), network.characters(other))
    assert not torch.equal(network.elmo(ids).last_hidden_state, network.elmo(other).last_hidden_state)


# What of a text is known


def test_the_share_of_words_that_the_model_has_vectors_of_and_the_line_that_says_it(tokenizer):
    share, line = tokenizer.known_words(["Tao"] * 7 + ["Xtax", "我", "katakatk"])
    assert share == 0.9 and line == "the model has vectors of 90.0% of 10 words"
    share, line = tokenizer.known_words(["Tao"] * 3 + ["x"] + ["很好很好"] * 5)
    assert share == pytest.approx(1 / 3)
    assert line.startswith("the model has vectors of 33.3% of 9 words, but not of '很好很好', 'x': below 80%, ")
    assert tokenizer.known_words([])[0] == 1


def test_words_are_looked_up_as_the_model_reads_them(model):
    plain, reading = (ElmoTokenizer.from_pretrained(model, full_width_to_ascii=flag, nfc=flag) for flag in (0, 1))
    words = ["Ｔａｏ", "e\u0301te\u0301", "Tao"]
    assert plain.known_words(words)[0] == pytest.approx(1 / 3) and reading.known_words(words)[0] == 1


def test_a_model_without_vectors_of_words_has_none_to_count(tmp_path):
    characters_only = ElmoTokenizer.from_pretrained(make(tmp_path, word_dim=0))
    for tokenizer in (characters_only, ElmoTokenizer()):
        assert not tokenizer.has_lexicon
        with pytest.raises(ValueError, match="this model has no vectors of whole words to count"):
            tokenizer.known_words(["kata"])


def test_embed_warns_of_a_long_text_with_few_known_words(elmo, tokenizer, caplog):
    elmo.embed([["x"] * 60], tokenizer=tokenizer)
    elmo.embed([["Tao"] * 80 + ["x"] * 20], tokenizer=tokenizer)
    assert not caplog.records
    elmo.embed([["Tao"] * 79, ["x"] * 21], tokenizer=tokenizer)
    assert "vectors of 79.0% of 100 words, but not of 'x': below 80%" in caplog.text


# The scripts


def test_named_entities_with_and_without_the_cached_states(english, tmp_path, capsys):
    data = ["--data_dir", str(ner_sample.write_folder(tmp_path / "conll"))]
    flags = ["--model_name_or_path", str(english), *data, *ALL, *SHORT, "--output_dir", str(tmp_path / "out")]
    flags += ["--config_overrides", f"{TASK},task_dropout=0,mix_dropout=0", "--overwrite_output_dir"]
    plain = run_ner.main(flags)
    cached = run_ner.main([*flags, "--state_cache", str(tmp_path / "cache")])
    assert cached["eval_loss"] == pytest.approx(plain["eval_loss"], abs=1e-5)
    assert len(list((tmp_path / "cache").rglob("*.safetensors"))) == 3
    assert "train: the model has vectors of" in capsys.readouterr().out
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    tagger = AutoModelForTokenClassification.from_pretrained(tmp_path / "out")
    options = {"pipeline_class": ElmoTokenClassificationPipeline, "ignore_labels": []}
    tag = pipeline("token-classification", model=tagger, tokenizer=tokenizer, **options)
    text = "the  film is good."
    assert [text[word["start"] : word["end"]] for word in tag(text)] == ["the", "film", "is", "good."]


def test_pairs_of_sentences_with_vectors_of_a_task_network(english, tmp_path):
    data = glue_sample.write_task(tmp_path, glue_sample.FOLDERS["rte"])
    vectors.convert(str(english), str(tmp_path / "elmo"), texts=[str(data / "train.tsv")], size=6)
    words = (tmp_path / "elmo" / "words.txt").read_text(encoding="utf-8").split("\n")
    assert (tmp_path / "elmo" / "lexicon.json").read_bytes() == (english / "lexicon.json").read_bytes()
    assert any(not word.isalnum() for word in words)  # text is split at spaces, as this tokenizer does
    flags = ["--model_name_or_path", str(tmp_path / "elmo"), "--task_name", "rte", "--data_dir", str(data), *ALL]
    results = run_glue.main([*flags, *SHORT, "--config_overrides", TASK, "--output_dir", str(tmp_path / "out")])
    assert 0 <= results["eval_accuracy"] <= 1
    again = ["--model_name_or_path", str(tmp_path / "out"), *flags[2:6], "--do_eval", "--max_seq_length", "24"]
    repeated = run_glue.main([*again, "--output_dir", str(tmp_path / "again")])
    assert repeated["eval_loss"] == pytest.approx(results["eval_loss"], abs=1e-6)


def test_questions(english, tmp_path):
    data = squad_sample.write_folder(tmp_path / "squad")
    flags = ["--model_name_or_path", str(english), "--data_dir", str(data), "--do_train", "--do_eval"]
    flags += [*SHORT, "--max_query_length", "10", "--doc_stride", "6", "--config_overrides", TASK]
    results = run_squad.main([*flags, "--output_dir", str(tmp_path / "out")])
    assert 0 <= results["eval_exact_match"] <= results["eval_f1"] <= 100
    answers = json.loads((tmp_path / "out" / "predictions_validation.json").read_text(encoding="utf-8"))
    articles = squad_sample.make_articles("1.1", squad_sample.SENTENCES["dev"], 3, 100)
    contexts = [paragraph["context"] for article in articles for paragraph in article["paragraphs"]]
    assert answers and all(any(answer in context for context in contexts) for answer in answers.values())


def test_choices(english, tmp_path):
    data = ["--task_name", "swag", "--data_dir", str(choices_sample.write_task(tmp_path, "swag"))]
    flags = ["--model_name_or_path", str(english), *data, *ALL, *SHORT, "--output_dir", str(tmp_path / "out")]
    assert 0 <= run_swag.main([*flags, "--config_overrides", TASK])["eval_accuracy"] <= 1


def test_a_language_model_of_such_a_network_is_not_trained(english, tmp_path):
    (tmp_path / "text.txt").write_text("the film is good .\n" * 30)
    flags = ["--model_name_or_path", str(english), "--train_file", str(tmp_path / "text.txt"), "--max_steps", "1"]
    with pytest.raises(ValueError, match="spells words by the characters of a language, but only a language model"):
        run_pretraining.main([*flags, "--output_dir", str(tmp_path / "out")])


def test_its_layers_and_its_words_without_context_can_be_analysed(english):
    sentences = [["the", "film"], ["good"]]
    model, tokenizer = ElmoModel.from_pretrained(english), ElmoTokenizer.from_pretrained(english)
    expected = model.embed(sentences, tokenizer=tokenizer, layers="all")
    for ours, theirs in zip(load_encoder(str(english)).read_words(sentences), expected, strict=True):
        np.testing.assert_allclose(ours.states, theirs, atol=1e-6)
    np.testing.assert_allclose(input_embeddings(str(english), ["good"])["good"], expected[1][0, 0], atol=1e-6)
