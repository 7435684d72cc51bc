"""examples/neural_lm.py: the equation, Kneser and Ney's smoothing, a biLM beside them, and the command."""

import json
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pytest
import torch

from elmo_gpt_bert.convert.vectors import read_vectors
from elmo_gpt_bert.training.errors import UserError
from examples import neural_lm
from examples.neural_lm import (
    BEGIN,
    END,
    UNKNOWN,
    NeuralLanguageModel,
    bilm_probabilities,
    choose_words,
    kneser_ney,
    neighbours,
    perplexity,
    probabilities,
    windows_of,
)
from examples.word2vec import read_sentences
from modeling import ElmoConfig, ElmoForPreTraining, ElmoTokenizer
from tests.support.pairs_sample import write_bilm
from tests.support.pretraining_sample import ELMO, write_text


@pytest.fixture
def file(tmp_path) -> Path:
    return write_text(tmp_path, documents=20)


@pytest.fixture
def sentences(file) -> list[list[str]]:
    return read_sentences(str(file), None)


# The text


def test_rare_words_and_words_that_the_bilm_lacks_are_unknown(tmp_path):
    sentences = [["a", "b", "a", "c"], ["b", "c", "a", "d"]]
    assert choose_words(sentences, 2) == ["<S>", "</S>", "<UNK>", "a", "b", "c"]
    (tmp_path / "vocab.txt").write_text("<S>\n</S>\n<UNK>\nc\na\nd\n", encoding="utf-8")
    ElmoTokenizer(vocab_file=str(tmp_path / "vocab.txt")).save_pretrained(tmp_path)
    assert choose_words(sentences, 2, str(tmp_path)) == ["<S>", "</S>", "<UNK>", "a", "c"]


def test_each_word_and_each_end_is_predicted_from_the_words_before_it_in_its_sentence():
    words = ["<S>", "</S>", "<UNK>", "a", "b"]
    rows = windows_of([["a", "b", "z"], ["b"]], words, n=3).tolist()
    assert rows == [[0, 0, 3], [0, 3, 4], [3, 4, 2], [4, 2, 1], [0, 0, 4], [0, 4, 1]]


# The network


@pytest.mark.parametrize("direct", [False, True])
def test_the_scores_are_those_of_equation_1(direct):
    torch.manual_seed(0)
    model, context = NeuralLanguageModel(7, direct, n=4), torch.tensor([[3, 0, 6], [1, 2, 2]])
    for row, scores in zip(context, model(context), strict=True):
        x = torch.cat([model.C.weight[word] for word in row])
        hidden = torch.tanh(model.H.bias + model.H.weight @ x)
        y = model.U.bias + model.U.weight @ hidden
        y = y + model.W.weight @ x if direct else y
        torch.testing.assert_close(scores, y)
    windows = torch.cat([context, torch.tensor([[5], [4]])], 1)
    expected = model(context).softmax(-1)[[0, 1], [5, 4]].detach().numpy()
    np.testing.assert_allclose(probabilities(model, windows), expected, rtol=1e-5)


def test_perplexity_is_the_geometric_mean_of_the_inverse_probability():
    assert perplexity(np.array([0.5, 0.125])) == pytest.approx(4)


def test_neighbours_have_the_nearest_directions():
    vectors = torch.tensor([[1.0, 0], [5, 1], [0, 1], [-1, 0]])
    assert neighbours(vectors, ["a", "b", "c", "d"], "a", 2) == ["b", "c"]


# Kneser and Ney


def slow_kneser_ney(train: list[list[int]], history: tuple[int, ...], word: int, n: int, words: int) -> float:
    """The same from counts in dictionaries, without the marks that fill up a window."""
    raw = Counter()
    for sentence in train:
        line = [BEGIN, *sentence, END]
        for end in range(1, len(line)):
            for begin in range(max(0, end - n + 1), end + 1):
                raw[tuple(line[begin : end + 1])] += 1
    before = defaultdict(set)
    for gram in raw:
        if len(gram) > 1:
            before[gram[1:]].add(gram[0])
    probability = 1 / (words - 1)
    for order in range(1, n + 1):
        if order - 1 > len(history):
            break
        context = history[len(history) - order + 1 :]
        is_top = order == n
        counts = {
            gram: raw[gram] if is_top or gram[0] == BEGIN else len(before[gram]) for gram in raw if len(gram) == order
        }
        n1, n2, n3, n4 = (max(1, sum(count == k for count in counts.values())) for k in (1, 2, 3, 4))
        y = n1 / (n1 + 2 * n2)
        discounts = [0, 1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3]
        discounts = [min(max(discount, 0), k) for k, discount in enumerate(discounts)]
        behind = {gram: count for gram, count in counts.items() if gram[:-1] == context}
        if not behind:
            break
        count = behind.get((*context, word), 0)
        removed = sum(discounts[min(each, 3)] for each in behind.values())
        probability = (count - discounts[min(count, 3)] + removed * probability) / sum(behind.values())
    return probability


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_smoothed_probabilities_are_those_of_plain_counts_and_sum_to_one(sentences, n):
    words = choose_words(sentences, 8)
    number = {word: place for place, word in enumerate(words)}
    train = [[number.get(word, UNKNOWN) for word in sentence] for sentence in sentences]
    windows = windows_of(sentences, words, n)
    for history in ((BEGIN,), (BEGIN, number["The"]), (BEGIN, 4, 4, 5, 6), tuple(windows[30, :-1].tolist())):
        while history[:2] == (BEGIN, BEGIN):
            history = history[1:]
        context = ([BEGIN] * n + [*history])[len(history) + 1 :]
        rows = torch.tensor([[*context, word] for word in range(1, len(words))])
        found = kneser_ney(windows.numpy(), rows.numpy(), len(words))
        assert found.sum() == pytest.approx(1) and found.min() > 0
        history = history[max(0, len(history) - n + 1) :]
        for word in (END, UNKNOWN, 5, number["boat"]):
            assert found[word - 1] == pytest.approx(slow_kneser_ney(train, history, word, n, len(words)))


# The biLM


def test_the_bilm_predicts_the_same_words_and_gives_unk_the_rest(tmp_path):
    words = ["<S>", "</S>", "<UNK>", "the", "boat", "saw", "kite", "old"]
    config = ElmoConfig(**ELMO | {"lm_vocab_size": len(words)})
    (tmp_path / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    tokenizer = ElmoTokenizer(vocab_file=str(tmp_path / "vocab.txt"), max_characters_per_token=12)
    torch.manual_seed(0)
    model = ElmoForPreTraining(config).eval()
    model.save_pretrained(tmp_path / "bilm")
    tokenizer.save_pretrained(tmp_path / "bilm")
    sentences = [["the", "old", "boat"], ["kite", "unheard"]]
    found = [*bilm_probabilities(str(tmp_path / "bilm"), ["<S>", "</S>", "<UNK>", "the", "boat"], sentences)]
    for sentence, shares in zip(sentences, found, strict=True):
        inputs = tokenizer(sentence, is_split_into_words=True, return_tensors="pt")
        scores = model(**inputs).logits[0].softmax(-1)
        for place, word in enumerate(sentence):
            others = 1 - scores[place, [1, 3, 4]].sum()
            expected = scores[place, words.index(word)] if word in ("the", "boat") else others
            assert shares[place] == pytest.approx(expected.item(), rel=1e-5)
    labels = torch.tensor([[3, 7, 4]])
    inputs = tokenizer(sentences[0], is_split_into_words=True, return_tensors="pt")
    with torch.no_grad():
        scores = model(**inputs).logits[0].log_softmax(-1)
        forward = model(**inputs, labels=labels).log_likelihoods[0, 0]
    end = forward - scores[[0, 1, 2], labels[0]].sum()
    assert np.log(found[0][-1]) == pytest.approx(end.item(), abs=1e-4)


# The command


def test_the_command_repeats_exactly_and_the_network_learns(file, tmp_path, capsys):
    flags = ["--train_file", str(file), "--validation_file", str(file), "--num_train_epochs", "12"]
    for name in ("a", "b"):
        results = neural_lm.main([*flags, "--output_dir", str(tmp_path / name)])
    for name in ("metrics.json", "vectors.txt"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert json.loads((tmp_path / "a/metrics.json").read_text(encoding="utf-8")) == results
    words, table = read_vectors(tmp_path / "a/vectors.txt")
    assert len(words) == results["words"] and table.shape[1] == neural_lm.M
    losses = [float(line.rsplit(" ", 1)[1]) for line in capsys.readouterr().out.splitlines() if "-log P is" in line]
    assert losses[11] < losses[0] - 0.5
    best = min(results["eval_perplexity_neural"], results["eval_perplexity_kneser_ney"])
    assert 1 < best < len(words) / 4 and results["eval_perplexity_mixture"] < 1.5 * best


def test_the_command_scores_a_bilm_on_the_same_words(file, tmp_path):
    bilm = str(write_bilm(tmp_path))
    flags = ["--train_file", str(file), "--validation_file", str(file), "--bilm", bilm, "--num_train_epochs", "1"]
    results = neural_lm.main([*flags, "--max_eval_words", "40", "--output_dir", str(tmp_path / "out")])
    words = choose_words(neural_lm.read_sentences(str(file), None), 5, bilm)
    shares = [*bilm_probabilities(bilm, words, neural_lm.read_sentences(str(file), 40))]
    assert results["eval_perplexity_bilm"] == perplexity(np.concatenate(shares)) > 1


def fails(*words: object) -> str:
    with pytest.raises(UserError) as error:
        neural_lm.main([*map(str, words)])
    assert "\n" not in str(error.value)
    return str(error.value)


def test_what_cannot_be_trained_is_one_clear_error(file, tmp_path):
    empty, out = tmp_path / "empty.txt", ["--output_dir", tmp_path / "out"]
    empty.write_text(" \n")
    files = ["--train_file", file, "--validation_file", file]
    assert "occurs --min_count 999 times: lower it" in fails(*files, "--min_count", 999, *out)
    assert "has no words: give another" in fails("--train_file", file, "--validation_file", empty, *out)
    message = fails("--train_file", file, "--validation_file", tmp_path / "nothing", *out)
    assert "validation_file" in message and "no such file" in message
    assert "must be positive, not 0" in fails(*files, "--num_train_epochs", 0, *out)
    assert "is no folder of a biLM" in fails(*files, "--bilm", tmp_path / "nothing", *out)
    (tmp_path / "out/metrics.json").touch()
    assert "has results: choose another" in fails(*files, *out)
