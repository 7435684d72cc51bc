"""Static word vectors: the text they read, GloVe's counts and steps, gensim's training, and word similarity."""

import json
import sys
import tracemalloc
from collections import Counter
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import torch
from gensim.models import KeyedVectors
from scipy.stats import spearmanr
from transformers import BertTokenizer

import run_ner
import run_vectors
from elmo_gpt_bert.convert.vectors import convert, read_vectors
from elmo_gpt_bert.tasks.pretraining.sources import TextSource, is_held_out
from elmo_gpt_bert.tasks.pretraining.text import read_documents, split_sentences
from elmo_gpt_bert.tasks.vectors import glove
from elmo_gpt_bert.tasks.vectors.data import _with_vocabulary, read_text
from elmo_gpt_bert.tasks.vectors.glove import Glove, count_neighbours, make_batches, train_glove
from elmo_gpt_bert.tasks.vectors.models import embed_words
from elmo_gpt_bert.tasks.vectors.similarity import read_pairs, score
from elmo_gpt_bert.tasks.vectors.word2vec import train_word2vec, vectors_of
from elmo_gpt_bert.training.errors import InputError, PackageError, UserError
from modeling import ElmoModel, ElmoTokenizer, ZooBertConfig, ZooBertForMaskedLM, ZooGPTModel, ZooGPTTokenizer
from tests.glue_sample import VOCABULARY, write_model, write_vocabulary
from tests.gpt_sample import write_gpt_model
from tests.ner_sample import write_elmo, write_folder
from tests.pretraining_sample import write_text


METHODS = ("skipgram", "cbow", "fasttext", "glove")
SIMILAR = "boat\tkite\t7.5\nboat\tletter\t3\nman\tgirl\t9\nsaw\tfound\t6\nold\tunicorn\t1\nThree\tred\t2.5\n"


@pytest.fixture
def file(tmp_path) -> Path:
    return write_text(tmp_path, documents=60)


@pytest.fixture
def similar(tmp_path) -> Path:
    path = tmp_path / "similar.txt"
    path.write_text(SIMILAR)
    return path


def source(file: Path, **changes) -> TextSource:
    return TextSource(**{"train_file": str(file), "validation_split_percentage": 0.0} | changes)


def words_of(file: Path) -> list[list[str]]:
    """The words of each sentence, as ELMo's language model reads them."""
    sentences = [sentence for document in read_documents(file) for sentence in split_sentences(document)]
    return [ElmoTokenizer().tokenize(sentence) for sentence in sentences]


# The text


def test_the_words_are_those_that_elmo_reads(file):
    text, sentences = read_text(source(file)), words_of(file)
    assert [*text.sentences()] == sentences
    counts = Counter(word for sentence in sentences for word in sentence)
    assert text.words == sorted(counts, key=lambda word: (-counts[word], word))
    assert text.counts.tolist() == [counts[word] for word in text.words] and text.total == counts.total()


def test_rare_words_are_left_out_as_if_they_were_not_in_the_text(file):
    counts = Counter(word for sentence in words_of(file) for word in sentence)
    limit = sorted(counts.values())[len(counts) // 2]
    text = read_text(source(file), min_count=limit)
    kept = [[word for word in sentence if counts[word] >= limit] for sentence in words_of(file)]
    assert [*text.sentences()] == [sentence for sentence in kept if sentence]
    assert text.total == counts.total() > len(text.numbers)
    largest = read_text(source(file), vocab_size=7)
    assert largest.words == read_text(source(file)).words[:7]


def test_the_text_ends_after_so_many_words_even_within_a_sentence(file):
    sentences = words_of(file)
    size = len(sentences[0]) + 2
    text = read_text(source(file), max_words=size)
    assert [*text.sentences()] == [sentences[0], sentences[1][:2]] and text.total == size


def test_the_vocabulary_takes_few_bytes_a_word_beside_those_of_the_text():
    numbers = np.random.default_rng(0).integers(0, 999, 3_000_000, np.int32)
    numbers[:50], ends = 999, np.arange(0, len(numbers) + 1, 20)  # the first sentences become empty
    distinct = [str(number) for number in range(1000)]
    kept = numbers != 999
    tracemalloc.start()
    text = _with_vocabulary(distinct, numbers, ends, min_count=51, vocab_size=None)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 * len(numbers)
    assert len(text.numbers) == kept.sum()
    np.testing.assert_array_equal(text.ends, np.append(0, np.cumsum(kept))[ends])


def test_documents_that_pre_training_holds_out_and_capitals_can_be_left_out(file):
    half = read_text(source(file, validation_split_percentage=50.0))
    documents = [document for document in read_documents(file) if not is_held_out(document, 0.5)]
    sentences = [sentence for document in documents for sentence in split_sentences(document)]
    assert [*half.sentences()] == [ElmoTokenizer().tokenize(sentence) for sentence in sentences] != words_of(file)
    assert {"The", "the"} <= {*read_text(source(file)).words}
    assert "The" not in read_text(source(file), lower_case=True).words


# GloVe


@pytest.mark.parametrize("window", [4, 300])  # the second one is wider than the text
def test_neighbours_are_counted_as_by_a_loop_over_all_pairs(window, file, monkeypatch):
    monkeypatch.setattr(glove, "BLOCK", 50)  # so that some pairs are in two blocks
    text = read_text(source(file), max_words=250, min_count=3)
    assert 2 * glove.BLOCK < len(text.numbers) < 300
    expected = np.zeros((len(text.words),) * 2)
    place = {word: number for number, word in enumerate(text.words)}
    for sentence in text.sentences():
        for i in range(len(sentence)):
            for j in range(len(sentence)):
                if 0 < abs(i - j) <= window:
                    expected[place[sentence[i]], place[sentence[j]]] += 1 / abs(i - j)
    np.testing.assert_allclose(count_neighbours(text, window).toarray(), expected, rtol=1e-5)


def test_an_update_of_glove_is_that_of_a_plain_loop():
    rng = np.random.default_rng(0)
    counts = glove.csr_array(np.where(rng.random((7, 7)) < 0.6, rng.exponential(60, (7, 7)), 0).astype(np.float32))
    model, batches = Glove(7, 3, rng), make_batches(counts, 8, rng)
    assert len(batches) > 2 and sum(len(batch.logs) for batch in batches) == counts.nnz
    parameters = [
        torch.tensor(array, requires_grad=True)
        for side in (model.words, model.contexts)
        for array in (side.vectors.copy(), side.biases.copy())
    ]
    adagrad = torch.optim.Adagrad(parameters, lr=0.1, initial_accumulator_value=1)
    words, word_biases, contexts, context_biases = parameters
    for batch in batches * 3:
        loss = torch.zeros(())
        for row, column in zip(batch.words[batch.rows], batch.contexts[batch.columns], strict=True):
            count = float(counts[row, column])
            error = words[row] @ contexts[column] + word_biases[row] + context_biases[column] - np.log(count)
            loss = loss + min(1, (count / 100) ** 0.75) * error**2 / 2
        adagrad.zero_grad()
        loss.backward()
        adagrad.step()
        assert model.update(batch, 0.1) == pytest.approx(loss.item(), rel=1e-4)
    np.testing.assert_allclose(model.vectors, (words + contexts).detach().numpy(), atol=1e-5)
    np.testing.assert_allclose(model.contexts.biases, context_biases.detach().numpy(), atol=1e-5)


def test_gloves_products_approach_the_logarithms_of_the_counts(file):
    text, losses = read_text(source(file)), []
    train_glove(text, 10, 3, 40, 0.5, 0, losses.append, batch_size=100)
    first, last = (float(line.rpartition(" ")[2]) for line in (losses[1], losses[-1]))
    assert last < first / 5


# word2vec and fastText


@pytest.mark.parametrize("method", METHODS)
def test_the_command_repeats_exactly_and_every_file_is_read_back(method, file, similar, tmp_path, capsys):
    flags = ["--method", method, "--train_file", str(file), "--vector_size", "9", "--num_train_epochs", "2"]
    flags += ["--similarity_files", str(similar), "--vocab_size", "25"]
    flags += ["--buckets", "50"] if method == "fasttext" else []
    first, second = (
        run_vectors.main([*flags, "--output_dir", str(tmp_path / name)]) | {"args": 0, "train_runtime": 0}
        for name in ("a", "b")
    )
    a, b = ((tmp_path / name / "vectors.txt").read_bytes() for name in ("a", "b"))
    assert a == b and {key for key in first if first[key] != second[key]} <= {"tokenize_runtime"}
    words, table = read_vectors(tmp_path / "a" / "vectors.txt")
    assert words == read_text(source(file), min_count=5, vocab_size=25).words and table.shape == (25, 9)
    if method == "fasttext":
        again, with_subwords = read_vectors(tmp_path / "a" / "vectors.bin")
        assert again == words
        np.testing.assert_allclose(with_subwords, table, atol=1e-6)
    assert "| similar | 4 of 6 |" in capsys.readouterr().out
    assert first["eval_covered_similar"] == 4
    args = json.loads((tmp_path / "a" / "metrics.json").read_text())["args"]
    assert (args["train_file"], args["similarity_files"]) == ("text.txt", ["similar.txt"])  # without their folders


@pytest.mark.parametrize("method, predicts_neighbours", [("skipgram", 1), ("cbow", 0), ("fasttext", 1)])
def test_each_method_is_the_one_that_it_is_called(method, predicts_neighbours, file):
    model = train_word2vec(read_text(source(file)), method, 6, 2, 1, 0.05, 1, 1, 10, lambda line: None)
    assert (model.sg, hasattr(model.wv, "vectors_ngrams")) == (predicts_neighbours, method == "fasttext")
    assert (model.vector_size, model.window, model.alpha, model.negative) == (6, 2, 0.05, 5)


def test_a_text_in_one_line_is_read_to_its_end(tmp_path):
    lines = [" ".join([name] * 10_000) for name in ("early", "late", "last")]
    trained = []
    for number, text in enumerate((" ".join(lines), "\n".join(lines))):
        path = tmp_path / f"{number}.txt"
        path.write_text(text)
        text = read_text(source(path))
        model = train_word2vec(text, "skipgram", 4, 2, 2, 0.05, 1, 1, 10, lambda line: None)
        trained.append(vectors_of(model, text.words))
    np.testing.assert_array_equal(*trained)


def test_words_with_the_same_neighbours_have_similar_vectors(file):
    text = read_text(source(file))
    model = train_word2vec(text, "skipgram", 12, 2, 40, 0.05, 1, 1, 10, lambda line: None)
    vectors = dict(zip(text.words, vectors_of(model, text.words), strict=True))
    cosine = np.corrcoef(vectors["saw"], vectors["found"])[0, 1]
    assert cosine > np.corrcoef(vectors["saw"], vectors["boat"])[0, 1]


# Word similarity


def random_vectors(words: list[str]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    return {word: rng.normal(size=5).astype(np.float32) for word in words}


def test_the_scores_are_those_of_gensim_and_of_scipy_with_means_for_missing_pairs(similar):
    vectors = random_vectors(["boat", "kite", "letter", "man", "girl", "saw", "found", "old"])
    theirs = KeyedVectors(5)
    theirs.add_vectors([*vectors], [*vectors.values()])
    _, spearman, missing = theirs.evaluate_word_pairs(similar, case_insensitive=False)
    ours = score(read_pairs(similar), vectors)
    assert (ours.pairs, ours.covered) == (6, 4) and missing == pytest.approx(100 * 2 / 6)
    assert ours.spearman == pytest.approx(spearman.statistic)
    cosines = [theirs.similarity(*pair) for pair in (("boat", "kite"), ("boat", "letter"), ("man", "girl"))]
    cosines.append(theirs.similarity("saw", "found"))
    expected = spearmanr([*cosines, *[np.mean(cosines)] * 2], [7.5, 3, 9, 6, 1, 2.5]).statistic
    assert ours.spearman_all == pytest.approx(expected)


def test_a_word_in_capitals_has_the_vector_of_its_lower_case_if_it_has_none(similar):
    vectors = random_vectors(["three", "red"])
    assert score(read_pairs(similar), vectors).covered == 1
    assert score(read_pairs(similar), vectors).spearman is None  # of a single pair


def test_published_layouts_of_word_similarity_are_read(tmp_path):
    path = tmp_path / "pairs"
    path.write_text("Word 1,Word 2,Human (mean)\nlove,sex,6.77\n")
    assert read_pairs(path) == [("love", "sex", 6.77)]
    path.write_text("word1\tword2\tPOS\tSimLex999\tconc(w1)\nold\tnew\tA\t1.58\t2.7\n")
    assert read_pairs(path) == [("old", "new", 1.58)]
    path.write_text("old\tnew\t1.58\nhard\teasy\n")
    with pytest.raises(InputError, match="'hard.teasy'|hard\\\\teasy"):
        read_pairs(path)


def test_models_give_words_the_vectors_of_their_first_layer(tmp_path):
    elmo = write_elmo(tmp_path / "elmo")
    vectors = embed_words(elmo, ["boat", "The"])
    layers = ElmoModel.from_pretrained(elmo).embed([["The", "boat"]], layers="all")[0]
    np.testing.assert_allclose(np.stack([vectors["The"], vectors["boat"]]), layers[0], atol=1e-6)
    gpt = str(write_gpt_model(tmp_path))
    table, tokenizer = (
        ZooGPTModel.from_pretrained(gpt).get_input_embeddings().weight,
        ZooGPTTokenizer.from_pretrained(gpt),
    )
    pieces = tokenizer.convert_tokens_to_ids(tokenizer.tokenize("boat"))
    assert len(pieces) > 1
    np.testing.assert_allclose(embed_words(gpt, ["boat"])["boat"], table[pieces].mean(0).detach().numpy(), atol=1e-6)


def test_a_masked_language_model_without_a_pooler_gives_vectors(tmp_path):
    bert = ZooBertForMaskedLM(ZooBertConfig.from_json_file(write_model(tmp_path)))
    bert.save_pretrained(tmp_path / "bert")
    BertTokenizer(str(write_vocabulary(tmp_path))).save_pretrained(tmp_path / "bert")
    row = bert.get_input_embeddings().weight[VOCABULARY.index("good")].detach().numpy()
    np.testing.assert_array_equal(embed_words(str(tmp_path / "bert"), ["good"])["good"], row)


# In ELMo's networks


def test_a_tagger_without_elmo_reads_the_vectors(file, tmp_path):
    run_vectors.main(["--train_file", str(file), "--vector_size", "7", "--output_dir", str(tmp_path / "vectors")])
    config = {"model_type": "elmo", "use_elmo": False, "rnn_size": 5, "rnn_layers": 1, "task_char_filters": 3}
    (tmp_path / "tagger.json").write_text(json.dumps(config))
    convert(str(tmp_path / "tagger.json"), str(tmp_path / "tagger"), str(tmp_path / "vectors" / "vectors.txt"))
    data = write_folder(tmp_path / "data")
    flags = ["--model_name_or_path", str(tmp_path / "tagger"), "--data_dir", str(data), "--do_train", "--do_eval"]
    metrics = run_ner.main([*flags, "--max_steps", "2", "--output_dir", str(tmp_path / "run")])
    assert 0 <= metrics["eval_f1"] <= 1


# Errors


def fails(*flags: str) -> str:
    with pytest.raises(UserError) as error:
        run_vectors.main([*map(str, flags)])
    assert "\n" not in str(error.value)
    return str(error.value)


def test_what_cannot_be_trained_or_scored_is_one_clear_error(file, similar, tmp_path):
    empty, out = tmp_path / "empty.txt", ["--output_dir", str(tmp_path / "out")]
    empty.write_text(" \n")
    assert "has no word" in fails("--train_file", empty, *out)
    assert "as often as min_count 999" in fails("--train_file", file, "--min_count", "999", *out)
    assert "no such file" in fails("--train_file", tmp_path / "nothing", *out)
    assert "give --train_file" in fails(*out)
    assert "--similarity_files" in fails("--vectors", file, *out)
    assert "--window must be positive, not 0" in fails("--train_file", file, "--window", "0", *out)
    assert "--seed must be at least 0 and below 2**32, not -1" in fails("--train_file", file, "--seed", "-1", *out)
    other = ["--similarity_files", similar, tmp_path / "other" / similar.name]
    assert "need different names, not similar, similar" in fails("--vectors", file, *other, *out)
    assert "--workers" in fails("--train_file", file, "--method", "glove", "--workers", "2", *out)
    assert "--buckets" in fails("--train_file", file, "--method", "glove", "--buckets", "2", *out)
    scored = ["--vectors", file, "--similarity_files", similar, *out]
    assert "--window is for training" in fails(*scored, "--window", "3")
    assert "no such file" in fails("--vectors", file, "--similarity_files", tmp_path / "no.txt", *out)
    (tmp_path / "other.txt").write_text("unheard 0.5 0.25\n")
    message = fails("--vectors", tmp_path / "other.txt", "--similarity_files", similar, *out)
    assert "other.txt holds no vector for any word in similarity_files" in message
    (tmp_path / "out" / "metrics.json").write_text("{}")
    assert "has results" in fails("--train_file", file, *out)


def test_a_diverged_run_leaves_no_vectors(file, tmp_path):
    flags = ["--train_file", file, "--method", "glove", "--learning_rate", "1e30", "--output_dir", tmp_path / "out"]
    with np.errstate(all="ignore"):
        assert "not finite: lower --learning_rate" in fails(*flags)
    assert [*(tmp_path / "out").iterdir()] == []


def test_an_unknown_flag_is_one_line(file, tmp_path, capsys):
    with pytest.raises(SystemExit) as caught:
        run_vectors.main(["--train_file", str(file), "--output_dir", str(tmp_path / "out"), "--validation_file", "x"])
    assert caught.value.code == 2
    assert capsys.readouterr().err.endswith("error: unknown argument --validation_file; --help lists all flags\n")


def test_a_full_disk_is_one_clear_error_and_leaves_no_half_file(file, tmp_path):
    with patch(
        "elmo_gpt_bert.tasks.vectors.files.open", side_effect=OSError(28, "No space left on device"), create=True
    ):
        message = fails("--train_file", file, "--output_dir", tmp_path / "out", "--num_train_epochs", "1")
    assert "vectors.txt: No space left on device" in message
    assert [*(tmp_path / "out").iterdir()] == []


def test_without_gensim_the_command_says_what_to_install_and_leaves_earlier_vectors(file, tmp_path):
    for name in ("vectors.txt", "metrics.json"):
        (tmp_path / name).touch()
    flags = ["--train_file", str(file), "--output_dir", str(tmp_path), "--overwrite_output_dir"]
    with patch.dict(sys.modules, {"gensim": None}), pytest.raises(PackageError, match=r"elmo-gpt-bert\[vectors\]"):
        run_vectors.main(flags)
    assert (tmp_path / "vectors.txt").exists() and (tmp_path / "metrics.json").exists()
