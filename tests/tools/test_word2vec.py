"""examples/word2vec.py and examples/word_similarity.py: the articles' equations, gensim beside them, and scores."""

import json
import re
import sys
from collections import Counter
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import torch
from gensim.models import KeyedVectors
from gensim.models import Word2Vec as Gensim
from scipy.stats import spearmanr
from torch.nn import functional
from transformers import BertTokenizer

import run_ner
from elmo_gpt_bert.convert.vectors import convert, read_vectors
from elmo_gpt_bert.tasks.pretraining.text import read_documents, split_sentences
from elmo_gpt_bert.training.errors import InputError, PackageError, UserError
from examples import word2vec, word_similarity
from examples.word2vec import NEGATIVES, SIZE, WINDOW, Text, Word2Vec, contexts, drop_frequent, read_sentences, train
from examples.word_similarity import input_embeddings, read_pairs, similarity
from modeling import (
    ElmoModel,
    ElmoTokenizer,
    ZooBertConfig,
    ZooBertForMaskedLM,
    ZooBertForSequenceClassification,
    ZooGPTModel,
    ZooGPTTokenizer,
)
from tests.support.glue_sample import VOCABULARY, write_model, write_vocabulary
from tests.support.gpt_sample import write_gpt_model
from tests.support.ner_sample import write_elmo, write_folder
from tests.support.pretraining_sample import write_text


SIMILAR = "boat\tkite\t7.5\nboat\tletter\t3\nman\tgirl\t9\nsaw\tfound\t6\nold\tunicorn\t1\nThree\tred\t2.5\n"


@pytest.fixture
def file(tmp_path) -> Path:
    return write_text(tmp_path, documents=60)


@pytest.fixture
def similar(tmp_path) -> Path:
    path = tmp_path / "similar.txt"
    path.write_text(SIMILAR)
    return path


@pytest.fixture
def text(file) -> Text:
    return Text(read_sentences(str(file), None), min_count=1)


def words_of(file: Path) -> list[list[str]]:
    """The words of each sentence, as ELMo's language model reads them."""
    sentences = [sentence for document in read_documents(file) for sentence in split_sentences(document)]
    return [ElmoTokenizer().tokenize(sentence) for sentence in sentences]


# The text


def test_the_words_are_those_that_elmo_reads(file, text):
    sentences = words_of(file)
    assert read_sentences(str(file), None) == text.sentences == sentences
    counts = Counter(word for sentence in sentences for word in sentence)
    assert text.words == sorted(counts, key=lambda word: (-counts[word], word))
    assert text.counts.tolist() == [counts[word] for word in text.words]
    assert [text.words[token] for token in text.tokens] == [word for sentence in sentences for word in sentence]
    assert text.sentence.tolist() == [place for place, sentence in enumerate(sentences) for _ in sentence]


def test_rare_words_are_left_out_as_if_they_were_not_in_the_text(file):
    counts = Counter(word for sentence in words_of(file) for word in sentence)
    limit = sorted(counts.values())[len(counts) // 2]
    text = Text(read_sentences(str(file), None), limit)
    assert text.sentences == [[word for word in sentence if counts[word] >= limit] for sentence in words_of(file)]
    assert 0 < len(text.tokens) < counts.total() and text.counts.min() >= limit


def test_the_text_ends_after_so_many_words_even_within_a_sentence(file):
    sentences = words_of(file)
    assert read_sentences(str(file), len(sentences[0]) + 2) == [sentences[0], sentences[1][:2]]


# The equations


@pytest.mark.parametrize("method", ["skipgram", "cbow"])
def test_an_update_is_a_step_along_the_gradient_of_equation_4(text, method):
    torch.manual_seed(1)
    model = Word2Vec(text)
    model.outputs = torch.randn_like(model.outputs)
    targets = torch.tensor([3, 3, 1, 0])
    places, is_there = torch.tensor([[1], [2], [1], [4]]), torch.ones(4, 1)
    if method == "cbow":
        places = torch.tensor([[1, 2, 5], [2, 2, 0], [1, 0, 7], [4, 9, 0]])
        is_there = torch.tensor([[1.0, 1, 1], [1, 1, 0], [1, 0, 1], [1, 0, 0]])
    inputs, outputs = (table.clone().requires_grad_() for table in (model.inputs, model.outputs))
    negatives = torch.randint(6, (4, NEGATIVES))  # some of which are the target
    assert (negatives == targets[:, None]).any()
    with patch("torch.searchsorted", return_value=negatives):
        value = model.update(places, is_there, targets, rate=0.1)

    values = []
    for place, there, target, others in zip(places, is_there, targets, negatives, strict=True):
        rows = inputs[place[there == 1]]
        mean = rows.mean(0)
        # The released code's gradient: each word of a window moves as if the others did not share the mean with it.
        h = mean.detach() + (rows - rows.detach()).sum(0)
        values.append(functional.logsigmoid(outputs[target] @ h))
        values[-1] = values[-1] + sum(functional.logsigmoid(-outputs[w] @ h) for w in others if w != target)
    sum(values).backward()
    assert value == pytest.approx(sum(values).item() / 4, rel=1e-5)
    torch.testing.assert_close(model.inputs, (inputs + 0.1 * inputs.grad).detach())
    torch.testing.assert_close(model.outputs, (outputs + 0.1 * outputs.grad).detach())


def test_negative_words_are_drawn_by_their_frequency_to_the_power_of_three_quarters(text):
    torch.manual_seed(0)
    model, drawn = Word2Vec(text), []
    search = torch.searchsorted
    with patch("torch.searchsorted", lambda *words: drawn.append(search(*words)) or drawn[-1]):
        for _ in range(200):
            model.update(torch.zeros(500, 1).long(), torch.ones(500, 1), torch.zeros(500).long(), rate=0.0)
    expected = text.counts**0.75 / (text.counts**0.75).sum()
    shares = torch.cat(drawn).flatten().bincount(minlength=len(text.words)) / (200 * 500 * NEGATIVES)
    torch.testing.assert_close(shares, expected, rtol=0.1, atol=1e-4)


def test_words_are_dropped_as_by_the_released_code(text):
    torch.manual_seed(0)
    with patch.object(word2vec, "FREQUENT", 0.02):
        kept = sum(drop_frequent(text)[0].bincount(minlength=len(text.words)) for _ in range(300)) / 300
    over = 0.02 / (text.counts / text.counts.sum())
    expected = (over.sqrt() + over).clamp(max=1) * text.counts
    assert expected[0] < text.counts[0] and expected[-1] == text.counts[-1]
    torch.testing.assert_close(kept, expected, rtol=0.05, atol=0.05)


def test_a_context_has_random_width_and_ends_with_the_sentence():
    torch.manual_seed(0)
    tokens, sentence = torch.randperm(300), torch.arange(300) // 47
    reaches, begin = [], 0
    for words, around, is_near in contexts(tokens, sentence):
        for place, (row, near) in enumerate(zip(around, is_near, strict=True), start=begin):
            assert words[place - begin] == tokens[place]
            offsets = [*range(-WINDOW, 0), *range(1, WINDOW + 1)]
            shown = {offset: int(word) for offset, word, there in zip(offsets, row, near, strict=True) if there}
            inside = [at for at in offsets if 0 <= place + at < 300 and sentence[place + at] == sentence[place]]
            reach = max(map(abs, shown), default=0)
            assert shown == {at: int(tokens[place + at]) for at in inside if abs(at) <= reach}
            if len(inside) == len(offsets):
                reaches.append(reach)
        begin += len(words)
    assert begin == 300
    shares = np.bincount(reaches, minlength=WINDOW + 1)[1:] / len(reaches)
    np.testing.assert_allclose(shares, 1 / WINDOW, atol=0.12)


@pytest.mark.parametrize("method", ["skipgram", "cbow"])
def test_the_learning_rate_falls_linearly_to_zero(text, method):
    rates = []
    with patch.object(Word2Vec, "update", lambda self, places, is_there, targets, rate: rates.append(rate) or 0.0):
        train(text, method, seed=0)
    first = {"skipgram": 0.025, "cbow": 0.05}[method]
    assert rates[0] == first and rates == sorted(rates, reverse=True) and 0 < rates[-1] < first / 4
    steps = -np.diff(rates)
    assert steps.max() < 1.5 * np.median(steps)


@pytest.mark.parametrize("method", ["skipgram", "cbow"])
def test_words_alone_in_their_sentences_teach_nothing(method, monkeypatch):
    monkeypatch.setattr(word2vec, "WORDS_AT_ONCE", 2)
    monkeypatch.setattr(word2vec, "drop_frequent", lambda text: (text.tokens, text.sentence))
    learned, update = [], Word2Vec.update
    monkeypatch.setattr(Word2Vec, "update", lambda self, *given: learned.append(given[2]) or update(self, *given))
    vectors = train(Text([["a", "b"], ["c"], ["d"]], min_count=1), method, seed=0)
    assert np.isfinite(vectors).all() and {tuple(sorted(targets.tolist())) for targets in learned} == {(0, 1)}


@pytest.mark.parametrize("method", ["skipgram", "cbow"])
def test_words_with_the_same_neighbours_have_similar_vectors(text, method):
    with patch.object(word2vec, "EPOCHS", 30), patch.object(word2vec, "WORDS_AT_ONCE", 16):
        vectors = dict(zip(text.words, train(text, method, seed=0), strict=True))
    ours = np.corrcoef(vectors["saw"], vectors["found"])[0, 1]
    assert ours > np.corrcoef(vectors["saw"], vectors["boat"])[0, 1]


# The command


def test_the_command_repeats_exactly_and_its_files_are_read_back(file, tmp_path, capsys):
    flags = ["--train_file", str(file), "--compare", "gensim", "--max_train_words", "900"]
    for name in ("a", "b"):
        word2vec.main([*flags, "--output_dir", str(tmp_path / name)])
    for name in ("vectors.txt", "gensim.txt"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
        words, table = read_vectors(tmp_path / "a" / name)
        assert words == Text(read_sentences(str(file), 900), 5).words and table.shape == (len(words), SIZE)
        KeyedVectors.load_word2vec_format(str(tmp_path / "a" / name))
    assert re.search(r"skipgram, epoch 5 of 5: equation 4 is -\d\.\d{4}\n$", capsys.readouterr().out)


@pytest.mark.parametrize("method", ["skipgram", "cbow"])
def test_gensim_learns_with_the_same_settings(text, method):
    models = []
    with patch("gensim.models.Word2Vec", lambda **settings: models.append(Gensim(**settings)) or models[-1]):
        table = word2vec.train_gensim(text, method, seed=3)
    (model,) = models
    assert table.shape == (len(text.words), SIZE) and model.wv.index_to_key == text.words
    assert (model.sg, model.cbow_mean, model.window, model.negative) == (method == "skipgram", 1, WINDOW, NEGATIVES)
    assert (model.sample, model.ns_exponent, model.alpha) == (1e-3, 0.75, {"skipgram": 0.025, "cbow": 0.05}[method])


def test_a_tagger_without_elmo_reads_the_vectors(file, tmp_path):
    word2vec.main(["--train_file", str(file), "--max_train_words", "900", "--output_dir", str(tmp_path / "vectors")])
    config = {"model_type": "elmo", "use_elmo": False, "rnn_size": 5, "rnn_layers": 1, "task_char_filters": 3}
    (tmp_path / "tagger.json").write_text(json.dumps(config))
    convert(str(tmp_path / "tagger.json"), str(tmp_path / "tagger"), str(tmp_path / "vectors" / "vectors.txt"))
    data = write_folder(tmp_path / "data")
    flags = ["--model_name_or_path", str(tmp_path / "tagger"), "--data_dir", str(data), "--do_train", "--do_eval"]
    metrics = run_ner.main([*flags, "--max_steps", "2", "--output_dir", str(tmp_path / "run")])
    assert 0 <= metrics["eval_f1"] <= 1


def fails(*words: object, program=word2vec) -> str:
    with pytest.raises(UserError) as error:
        program.main([*map(str, words)])
    assert "\n" not in str(error.value)
    return str(error.value)


def test_what_cannot_be_trained_is_one_clear_error(file, tmp_path):
    empty, out = tmp_path / "empty.txt", ["--output_dir", tmp_path / "out"]
    empty.write_text(" \n")
    assert "no word of the text occurs --min_count 5 times" in fails("--train_file", empty, *out)
    assert "no word of the text occurs --min_count 999 times" in fails("--train_file", file, "--min_count", 999, *out)
    assert "no such file" in fails("--train_file", tmp_path / "nothing", *out)
    assert "must be positive, not 0" in fails("--train_file", file, "--max_train_words", 0, *out)
    (tmp_path / "out" / "vectors.txt").touch()
    assert "has vectors: choose another" in fails("--train_file", file, *out)


def test_a_full_disk_is_one_clear_error_and_leaves_no_half_file(file, tmp_path):
    out = tmp_path / "out"
    with patch("os.replace", side_effect=OSError(28, "No space left on device")):
        message = fails("--train_file", file, "--output_dir", out)
    assert "vectors.txt: No space left on device" in message and [*out.iterdir()] == []


def test_without_gensim_the_command_says_what_to_install_before_it_reads_the_text(file, tmp_path):
    flags = ["--train_file", str(file), "--output_dir", str(tmp_path / "out"), "--compare", "gensim"]
    with patch.dict(sys.modules, {"gensim": None}), pytest.raises(PackageError, match=r"pip install gensim$"):
        word2vec.main(flags)
    assert not (tmp_path / "out").exists()


# Word similarity


def random_vectors(words: list[str]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    return {word: rng.normal(size=5).astype(np.float32) for word in words}


def test_the_scores_are_those_of_gensim_and_of_scipy(similar):
    vectors = random_vectors(["boat", "kite", "letter", "man", "girl", "saw", "found", "old"])
    theirs = KeyedVectors(5)
    theirs.add_vectors([*vectors], [*vectors.values()])
    _, spearman, missing = theirs.evaluate_word_pairs(similar, case_insensitive=False)
    score, number = similarity(read_pairs(similar), vectors)
    assert number == 4 and missing == pytest.approx(100 * 2 / 6)
    assert score == pytest.approx(100 * spearman.statistic)
    cosines = [theirs.similarity(*pair) for pair in (("boat", "kite"), ("boat", "letter"), ("man", "girl"))]
    expected = spearmanr([*cosines, theirs.similarity("saw", "found")], [7.5, 3, 9, 6]).statistic
    assert score == pytest.approx(100 * expected)


def test_a_word_in_capitals_has_the_vector_of_its_lower_case_if_it_has_none(similar):
    vectors = random_vectors(["three", "red"])
    score, number = similarity(read_pairs(similar), vectors)
    assert number == 1 and np.isnan(score)  # of a single pair


def test_published_layouts_of_word_similarity_are_read(tmp_path):
    path = tmp_path / "pairs"
    path.write_text("Word 1,Word 2,Human (mean)\nlove,sex,6.77\n")
    assert read_pairs(path) == [("love", "sex", 6.77)]
    path.write_text("word1\tword2\tPOS\tSimLex999\tconc(w1)\nold\tnew\tA\t1.58\t2.7\n")
    assert read_pairs(path) == [("old", "new", 1.58)]
    for broken in ("old\tnew\t1.58\nhard\teasy\n", "old\tnew\t1.58\nhard\teasy\thigh\n", ""):
        path.write_text(broken)
        with pytest.raises(InputError, match="pairs must have two words and a score in each line"):
            read_pairs(path)


def test_models_give_words_the_vectors_of_their_first_layer(tmp_path):
    elmo = write_elmo(tmp_path / "elmo")
    vectors = input_embeddings(elmo, ["boat", "The"])
    layers = ElmoModel.from_pretrained(elmo).embed([["The", "boat"]], layers="all")[0]
    np.testing.assert_allclose(np.stack([vectors["The"], vectors["boat"]]), layers[0], atol=1e-6)
    gpt = str(write_gpt_model(tmp_path))
    table, tokenizer = (
        ZooGPTModel.from_pretrained(gpt).get_input_embeddings().weight,
        ZooGPTTokenizer.from_pretrained(gpt),
    )
    pieces = tokenizer.convert_tokens_to_ids(tokenizer.tokenize("boat"))
    assert len(pieces) > 1
    found = input_embeddings(gpt, ["boat"])["boat"]
    np.testing.assert_allclose(found, table[pieces].mean(0).detach().numpy(), atol=1e-6)


@pytest.mark.parametrize("head", [ZooBertForMaskedLM, ZooBertForSequenceClassification])
def test_a_model_gives_vectors_whatever_its_head(tmp_path, head, capsys):
    bert = head(ZooBertConfig.from_json_file(write_model(tmp_path)))
    bert.save_pretrained(tmp_path / "bert")
    BertTokenizer(str(write_vocabulary(tmp_path))).save_pretrained(tmp_path / "bert")
    row = bert.get_input_embeddings().weight[VOCABULARY.index("good")].detach().numpy()
    np.testing.assert_array_equal(input_embeddings(str(tmp_path / "bert"), ["good"])["good"], row)
    pairs = tmp_path / "pairs.txt"
    pairs.write_text("good\tbad\t2\ngood\tdull\t1\nfilm\tplot\t3\n")
    file = tmp_path / "vectors.txt"
    file.write_text("good 1 0\nbad 1 1\nfilm 0 1\nplot 0 1\ndull 0 1\n")
    word_similarity.main([str(file), str(tmp_path / "bert"), "--similarity_files", str(pairs)])
    head_line, _, of_file, of_model = capsys.readouterr().out.splitlines()
    assert head_line == "| vectors | pairs |" and of_file == f"| {file} | 100.0 (3 pairs) |"
    assert re.fullmatch(r"\| \S+bert \| -?\d+\.\d \(3 pairs\) \|", of_model)


def test_what_cannot_be_scored_is_one_clear_error(similar, tmp_path):
    pairs = ["--similarity_files", similar]
    (tmp_path / "other.txt").write_text("unheard 0.5 0.25\n")
    message = fails(tmp_path / "other.txt", *pairs, program=word_similarity)
    assert "other.txt holds no vector for any word in --similarity_files" in message
    message = fails(tmp_path / "nothing", *pairs, program=word_similarity)
    assert "nothing is neither a file of vectors nor a model: " in message
    (tmp_path / "bad.txt").write_text("one two\n")
    for name, message in (("bad.txt", "two words and a score"), ("no.txt", "No such file")):
        assert message in fails(tmp_path, "--similarity_files", tmp_path / name, program=word_similarity)
