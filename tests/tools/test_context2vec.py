"""examples/context2vec.py: the equations, the blanks, other models beside it, and the command."""

import json
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from torch.nn import functional
from transformers import BertTokenizer

from elmo_gpt_bert.convert.vectors import read_vectors
from elmo_gpt_bert.training.errors import UserError
from examples import context2vec
from examples.context2vec import MARKS, MASK, Context2Vec, batches, draw_blanks, fill_by, load_fill, score
from modeling import ElmoConfig, ElmoForPreTraining, ElmoTokenizer, ZooBertConfig, ZooBertForMaskedLM
from tests.support.glue_sample import VOCABULARY, write_model, write_vocabulary
from tests.support.pretraining_sample import ELMO, write_text


@pytest.fixture
def file(tmp_path) -> Path:
    return write_text(tmp_path, documents=30)


@pytest.fixture
def model() -> Context2Vec:
    torch.manual_seed(0)
    model = Context2Vec(torch.tensor([9, 4, 2, 1]))
    torch.nn.init.normal_(model.t.weight, std=0.1)
    return model


def context_of(model: Context2Vec, sentence: torch.Tensor, place: int) -> torch.Tensor:
    """Equations 1 to 3 for one word: each LSTM reads what stands on its side, and nothing else."""
    before = torch.tensor([0, *sentence[:place].tolist()])
    behind = torch.tensor([1, *sentence[place + 1 :].flip(0).tolist()])
    left = model.lLS(model.left_words(before)[None])[0][0, -1]
    right = model.rLS(model.right_words(behind)[None])[0][0, -1]
    hidden = functional.relu(model.L1.weight @ torch.cat([left, right]) + model.L1.bias)
    return model.L2.weight @ hidden + model.L2.bias


SENTENCES = torch.tensor([[3, 6, 2, 4, 3], [5, 2, 3, 6, 4]])


def test_a_contexts_vector_is_that_of_equations_1_to_3(model):
    for sentence, vectors in zip(SENTENCES, model(SENTENCES), strict=True):
        for place, vector in enumerate(vectors):
            torch.testing.assert_close(vector, context_of(model, sentence, place))


def test_the_objective_is_equation_4_over_the_words_that_have_vectors(model):
    negatives, values = torch.randint(4, (2, 5, 3)), []
    for row, sentence in enumerate(SENTENCES):
        for place, word in enumerate(sentence):
            if word >= MARKS:
                c = context_of(model, sentence, place)
                values.append(functional.logsigmoid(model.t.weight[word - MARKS] @ c))
                for other in negatives[row, place]:
                    values[-1] = values[-1] + functional.logsigmoid(-model.t.weight[other] @ c)
    assert len(values) == 8
    torch.testing.assert_close(model.objective(SENTENCES, negatives), sum(values) / 8)
    assert model.objective(torch.full((1, 2), 2), negatives[:1, :2]) == 0  # no word with a vector


def test_negative_words_are_drawn_by_their_frequency_to_the_power_of_three_quarters(model):
    torch.manual_seed(0)
    shares = model.draw_negatives(SENTENCES.repeat(400, 1)).flatten().bincount(minlength=4) / 40000
    expected = torch.tensor([9.0, 4, 2, 1]) ** 0.75
    torch.testing.assert_close(shares, expected / expected.sum(), rtol=0.05, atol=0)


def test_the_probability_of_a_word_is_that_of_equation_5(model):
    sentence, noise = SENTENCES[0], torch.tensor([9.0, 4, 2, 1]) ** 0.75
    weights = noise / noise.sum() * torch.exp(model.t.weight @ context_of(model, sentence, 3))
    torch.testing.assert_close(model.shares(sentence, 3).float(), weights / weights.sum())
    changed = sentence.clone()
    changed[3] = 6  # the word in the blank is not read
    torch.testing.assert_close(model.shares(changed, 3), model.shares(sentence, 3))


def test_a_batch_has_sentences_of_one_length_and_an_epoch_has_each_once():
    torch.manual_seed(0)
    sentences = [[length + MARKS] * length for length in (1, 2, 7, 7, 64, 65, 2, 30) for _ in range(9)]
    parts = [*batches(sentences)]
    assert all(part.numel() <= context2vec.WORDS_AT_ONCE for part in parts)
    rows = sorted(row for part in parts for row in part.tolist())
    assert rows == sorted(sentence for sentence in sentences if 1 < len(sentence) < 65)
    assert [len(row) for part in parts for row in part.tolist()] != sorted(len(row) for row in rows)


# Blanks


def test_a_blank_hides_one_word_of_a_sentence():
    sentences = [
        ["the", "old", "man", "saw", "The", "boat"],
        ["too", "short"],
        ["no", "word", "of", "them", "is", "here"],
    ]
    for seed in range(9):
        ((text, word),) = draw_blanks(sentences, {"man", "boat", "too"}, 5, seed)
        assert word in ("man", "boat") and text.replace(MASK, word).split() == sentences[0]
    assert draw_blanks(sentences * 4, {"man", "boat"}, 3, 0) == draw_blanks(sentences * 4, {"man", "boat"}, 3, 0)
    assert len(draw_blanks(sentences * 4, {"man", "boat"}, 3, 0)) == 3


def test_scores_count_first_answers_and_first_five():
    answers = {"a [MASK]": list("vwxyz"), "b [MASK]": list("wvxyz"), "c [MASK]": list("qrstu")}
    blanks = [(text, "w") for text in answers]
    results = score({"m": lambda text, candidates, count: answers[text]}, blanks, [])
    assert results == {"m_accuracy": pytest.approx(1 / 3), "m_top5": pytest.approx(2 / 3)}


def test_the_answers_are_the_candidates_with_the_largest_shares(model):
    fill = fill_by(model, {"a": 3, "b": 4, "c": 5, "d": 6})
    shares = model.shares(torch.tensor([5, 2, 3]), 1)
    best = max("acd", key=lambda word: shares["abcd".index(word)])
    answers = fill(f"c {MASK} a", ["a", "c", "d"], 5)
    assert answers[0] == best and sorted(answers) == ["a", "c", "d"]


def test_a_bert_fills_the_blank_with_what_its_mask_predicts(tmp_path):
    bert = ZooBertForMaskedLM(ZooBertConfig.from_json_file(write_model(tmp_path))).eval()
    bert.save_pretrained(tmp_path / "bert")
    tokenizer = BertTokenizer(str(write_vocabulary(tmp_path)))
    tokenizer.save_pretrained(tmp_path / "bert")
    fill, known = load_fill(str(tmp_path / "bert"))
    candidates = ["good", "bad", "film"]
    assert known >= {*candidates}
    inputs = tokenizer("the [MASK] plot", return_tensors="pt")
    with torch.no_grad():
        scores = bert(**inputs).logits[0, 2]
    ranked = sorted(candidates, key=lambda word: -scores[VOCABULARY.index(word)])
    assert fill("the [MASK] plot", candidates, 2) == ranked[:2]


def test_a_bilm_fills_the_blank_with_the_product_of_its_directions(tmp_path):
    words = ["<S>", "</S>", "<UNK>", "the", "boat", "saw", "kite", "old"]
    (tmp_path / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    tokenizer = ElmoTokenizer(vocab_file=str(tmp_path / "vocab.txt"), max_characters_per_token=12)
    bilm = ElmoForPreTraining(ElmoConfig(**ELMO | {"lm_vocab_size": len(words)})).eval()
    for part in (bilm, tokenizer):
        part.save_pretrained(tmp_path / "bilm")
    fill, known = load_fill(str(tmp_path / "bilm"))
    assert known == {*words}
    inputs = tokenizer(["the", MASK, "saw"], is_split_into_words=True, return_tensors="pt")
    with torch.no_grad():
        output = bilm(**inputs)
    scores = output.logits[0, 1].log_softmax(-1) + output.reverse_logits[0, 1].log_softmax(-1)
    ranked = sorted(["boat", "kite", "old"], key=lambda word: -scores[words.index(word)])
    assert fill("the [MASK] saw", ["boat", "kite", "old"], 5) == ranked


# The command


@pytest.mark.slow
def test_the_command_repeats_exactly_and_learns_what_fits_a_blank(file, tmp_path, capsys):
    flags = ["--train_file", str(file), "--validation_file", str(file)]
    flags += ["--max_eval_samples", "40", "--blanks", "The old man saw [MASK] red kite ."]
    sizes = {"EMBEDDING": 16, "CELLS": 24, "H": 20, "WORDS_AT_ONCE": 100, "LEARNING_RATE": 2e-2}
    with patch.multiple(context2vec, **sizes):
        for name in ("b", "c"):
            context2vec.main([*flags, "--num_train_epochs", "2", "--output_dir", str(tmp_path / name)])
        capsys.readouterr()
        results = context2vec.main([*flags, "--num_train_epochs", "14", "--output_dir", str(tmp_path / "a")])
    for name in ("metrics.json", "vectors.txt"):
        assert (tmp_path / "b" / name).read_bytes() == (tmp_path / "c" / name).read_bytes()
    assert json.loads((tmp_path / "a/metrics.json").read_text(encoding="utf-8")) == results
    assert read_vectors(tmp_path / "a/vectors.txt")[1].shape[1] == 20
    shown = capsys.readouterr().out
    values = [float(line.rsplit(" ", 1)[1]) for line in shown.splitlines() if "equation 4 is" in line]
    assert values[13] > values[0] + 1
    assert results["context2vec_accuracy"] > 0.3 and results["eval_samples"] == 40
    assert "The old man saw [MASK] red kite . context2vec: a" in shown


def fails(*words: object) -> str:
    with pytest.raises(UserError) as error:
        context2vec.main([*map(str, words)])
    assert "\n" not in str(error.value)
    return str(error.value)


def test_what_cannot_be_trained_or_compared_is_one_clear_error(file, tmp_path):
    empty, out = tmp_path / "empty.txt", ["--output_dir", tmp_path / "out"]
    empty.write_text(" \n")
    files = ["--train_file", file, "--validation_file", file]
    assert "occurs --min_count 999 times" in fails(*files, "--min_count", 999, *out)
    assert "has no word to hide" in fails("--train_file", file, "--validation_file", empty, *out)
    assert "must be positive, not 0" in fails(*files, "--num_train_epochs", 0, *out)
    assert "must have [MASK] once" in fails(*files, "--blanks", "no mask here", *out)
    message = fails(*files, "--compare", tmp_path / "nothing", *out)
    assert f"--compare {tmp_path / 'nothing'} is no folder of a biLM or a BERT" in message
    (tmp_path / "out/metrics.json").touch()
    assert "has results: choose another" in fails(*files, *out)
