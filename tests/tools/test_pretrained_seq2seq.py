"""examples/pretrained_seq2seq.py: the equations, what begins as a language model, BLEU, and the command."""

import gzip
import json
import math
import random
import sys
from collections import Counter
from pathlib import Path
from unittest.mock import patch

import pytest
import torch

from elmo_gpt_bert.training.errors import PackageError, UserError
from examples import pretrained_seq2seq
from examples.pretrained_seq2seq import (
    BEGIN,
    END,
    PAD,
    VARIANTS,
    LanguageModel,
    Seq2Seq,
    batches,
    fit,
    pad,
    train_pieces,
    translator,
)


ENGLISH, GERMAN = ("dog", "cat", "man"), ("Hund", "Kater", "Mann")


@pytest.fixture(autouse=True)
def small():
    """Small models, the same in each test."""
    torch.manual_seed(0)
    sizes = {"H": 20, "PIECES": 300, "DROPOUT": 0.0, "LEARNING_RATE": 2e-2, "BATCH": 8, "LONGEST": 12}
    with patch.multiple(pretrained_seq2seq, **sizes):
        yield


@pytest.fixture
def data(tmp_path) -> Path:
    """Sentences that are translated word by word; one file is compressed, as those of Multi30k are."""
    draw = random.Random(0)
    for split, count in (("train", 60), ("val", 10), ("test_2016_flickr", 12)):
        rows = [[draw.randrange(3) for _ in range(draw.randint(3, 5))] for _ in range(count)]
        for language, words in (("en", ENGLISH), ("de", GERMAN)):
            text = "".join(" ".join(words[number] for number in row) + ".\n" for row in rows)
            (tmp_path / f"{split}.{language}").write_text(text, encoding="utf-8")
    with gzip.open(tmp_path / "train.de.gz", "wt", encoding="utf-8") as file:
        file.write((tmp_path / "train.de").read_text(encoding="utf-8"))
    (tmp_path / "train.de").unlink()
    return tmp_path


@pytest.fixture
def model() -> Seq2Seq:
    return Seq2Seq(LanguageModel(9), LanguageModel(11)).eval()


SOURCE = torch.tensor([[BEGIN, 5, 6, 7, END], [BEGIN, 8, END, PAD, PAD]])
TARGET = torch.tensor([[BEGIN, 4, END, PAD], [BEGIN, 10, 9, END]])


# The models


def test_a_language_models_loss_is_of_each_next_piece_without_the_padding():
    model, losses = LanguageModel(11).eval(), []
    for sentence in ([BEGIN, 4, END], [BEGIN, 10, 9, END]):
        states = model.lstm(model.embedding(torch.tensor([sentence])))[0][0]
        for state, piece in zip(states, sentence[1:], strict=False):
            losses.append(-(model.softmax.weight @ state + model.softmax.bias).log_softmax(0)[piece])
    torch.testing.assert_close(model.loss(TARGET), sum(losses) / 5)


def test_the_translator_attends_over_two_layers_and_adds_the_first_one_to_what_the_softmax_reads(model):
    losses = []
    for source, target in zip(SOURCE, TARGET, strict=True):
        source, target = source[source != PAD], target[target != PAD]
        first, low = model.source.lstm(model.source.embedding(source)[None])
        last, high = model.encoder(first)
        below = model.target.lstm(model.target.embedding(target[:-1])[None], low)[0]
        top = model.decoder(below, high)[0][0]
        for t, piece in enumerate(target[1:]):
            weights = torch.stack([top[t] @ h for h in last[0]]).exp()
            weights = weights / weights.sum()
            context = torch.cat([(weights[:, None] * layer[0]).sum(0) for layer in (first, last)])
            joined = model.join.weight @ torch.cat([top[t], context]) + model.join.bias
            scores = model.target.softmax.weight @ (below[0, t] + joined) + model.target.softmax.bias
            losses.append(-scores.log_softmax(0)[piece])
    torch.testing.assert_close(model.loss(SOURCE, TARGET), sum(losses) / 5)


def test_a_translation_has_the_best_piece_at_each_step_and_stops_at_the_end(model):
    for source, row in zip(SOURCE, model.translate(SOURCE), strict=True):
        *memory, ends = model.encode(source[source != PAD][None])
        pieces = [BEGIN]
        while len(pieces) <= pretrained_seq2seq.LONGEST:
            scores, _ = model.decode(torch.tensor([pieces]), memory, ends)
            if scores[0, -1].argmax() == END:
                break
            pieces.append(int(scores[0, -1].argmax()))
        assert row == pieces[1:]


# What is trained


@pytest.mark.parametrize("variant", VARIANTS)
def test_each_variant_leaves_out_what_it_names(variant):
    lms = [LanguageModel(9), LanguageModel(11)]
    rows = [[4, 5], [6, 7, 8]]
    begins, read = [], []

    def stop(model, loss, val, steps):
        begins.append([torch.equal(part.lstm.weight_hh_l0, lm.lstm.weight_hh_l0) for part, lm in parts(model, lms)])
        assert all(part.lstm.weight_hh_l0 is not lm.lstm.weight_hh_l0 for part, lm in parts(model, lms))
        torch.manual_seed(1)
        with patch.object(LanguageModel, "loss", lambda self, text: read.append(text) or torch.tensor(4.0)):
            begins.append(loss().item())
        begins.append(model.loss(pad(rows), pad(rows)).item())
        return 0.0

    with patch.object(pretrained_seq2seq, "fit", stop):
        translator(lms, [rows, rows], [[[3]], [[4]]], [pad(rows), pad(rows)], VARIANTS[variant], 1)
    same, loss, alone = begins
    left_out = VARIANTS[variant]
    assert same == ["encoder" not in left_out, "decoder" not in left_out]
    if "lm-loss" in left_out:
        assert read == [] and loss == pytest.approx(alone, rel=1e-5)
    else:
        assert [text.tolist() for text in read] == [[[BEGIN, 3, END]], [[BEGIN, 4, END]]]
        assert loss == pytest.approx((alone + 4 + 4) / 3, rel=1e-5)


def parts(model: Seq2Seq, lms: list[LanguageModel]):
    return zip((model.source, model.target), lms, strict=True)


def test_training_lowers_the_loss_and_keeps_the_best_weights():
    model, rows = LanguageModel(9), [[4, 5, 6], [4, 5, 7], [8]]
    text, held_out = batches(rows), pad(rows)
    before = model.loss(held_out).item()
    best = fit(model, lambda: model.loss(*next(text)), [held_out], 30)
    assert best < before - 0.5
    model.eval()
    assert model.loss(held_out).item() == pytest.approx(best)
    losses = iter([3.0, 1.0, 2.0])
    model.loss, weights = lambda batch: torch.tensor(next(losses)), []
    rate = torch.nn.Parameter(torch.zeros(()))
    model.rate = rate
    kept = fit(model, lambda: weights.append(rate.item()) or rate * 1.0, [held_out], 3)
    assert kept == 1 and weights[2] == rate.item() < weights[1]  # the weights after the second update


def test_pairs_stay_pairs_and_an_epoch_has_each_once():
    left, right = [[number] for number in range(3, 23)], [[number, number] for number in range(3, 23)]
    text, seen = batches(left, right), []
    for _ in range(3):
        source, target = next(text)
        assert source[:, 1].tolist() == target[:, 1].tolist() == target[:, 2].tolist()
        seen += source[:, 1].tolist()
    assert sorted(seen) == [*range(3, 23)] and seen != sorted(seen)


def test_pieces_are_put_together_again_as_they_were():
    texts = ["Ein Mann im T-Shirt, der (laut) lacht.", "Zwölf Männer – auf der Straße!"]
    tokenizer = train_pieces(texts * 3)
    assert tokenizer.to_str() == train_pieces(texts * 3).to_str()
    for row, text in zip(tokenizer.encode_batch(texts), texts, strict=True):
        assert tokenizer.decode(row.ids).strip() == text and min(row.ids) > END


# The command


def plain_bleu(translations: list[list[str]], references: list[list[str]]) -> float:
    """Papineni et al. 2002 over a corpus: the geometric mean of the precisions of 1 to 4 words, and the brevity."""
    logs = []
    for n in range(1, 5):
        matches = total = 0
        for translation, reference in zip(translations, references, strict=True):
            ours, theirs = (
                Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))
                for words in (translation, reference)
            )
            matches, total = matches + (ours & theirs).total(), total + ours.total()
        logs.append(math.log(matches / total) / 4)
    lengths = sum(map(len, translations)), sum(map(len, references))
    return 100 * math.exp(sum(logs) + min(0, 1 - lengths[1] / lengths[0]))


def words_of(file: Path) -> list[list[str]]:
    return [line.replace(".", " .").split() for line in file.read_text(encoding="utf-8").splitlines()]


@pytest.mark.slow
def test_the_command_repeats_exactly_and_learns_to_translate(data, tmp_path):
    flags = ["--data_dir", str(data), "--pairs", "40", "--lm_steps", "10"]
    for name, steps in {"b": "8", "c": "8", "a": "80"}.items():
        results = pretrained_seq2seq.main([*flags, "--max_steps", steps, "--output_dir", str(tmp_path / name)])
    for name in ("metrics.json", "none.de"):
        assert (tmp_path / "b" / name).read_bytes() == (tmp_path / "c" / name).read_bytes()
    assert json.loads((tmp_path / "a/metrics.json").read_text(encoding="utf-8")) == results
    assert results["pairs"] == 40 and results["none_loss"] < 1 and results["none_bleu"] > 20
    found = plain_bleu(words_of(tmp_path / "a/none.de"), words_of(data / "test_2016_flickr.de"))
    assert results["none_bleu"] == pytest.approx(found, abs=1e-3)


def test_language_models_read_what_is_not_paired_or_else_the_pairs(data, tmp_path):
    read = []
    with patch.object(pretrained_seq2seq, "batches", lambda *sides: read.append(sides) or batches(*sides)):
        for pairs in ("40", "60"):
            flags = ["--data_dir", str(data), "--pairs", pairs, "--lm_steps", "1", "--max_steps", "1"]
            pretrained_seq2seq.main([*flags, "--output_dir", str(tmp_path / pairs)])
    assert [len(side) for sides in read for side in sides] == [20, 20, 40, 40, 20, 20, 60, 60, 60, 60, 60, 60]


def fails(*words: object) -> str:
    with pytest.raises(UserError) as error:
        pretrained_seq2seq.main([*map(str, words)])
    assert "\n" not in str(error.value)
    return str(error.value)


def test_what_cannot_be_trained_is_one_clear_error(data, tmp_path):
    flags = ["--data_dir", data, "--output_dir", tmp_path / "out"]
    assert "--pairs must be positive, not 0" in fails(*flags, "--pairs", 0)
    assert "No such file" in fails("--data_dir", tmp_path / "nothing", "--output_dir", tmp_path / "out")
    (data / "val.de").write_text("Ein Satz.\n", encoding="utf-8")
    assert "have 10 and 1 lines: get them again" in fails(*flags)
    (tmp_path / "out").mkdir(exist_ok=True)
    (tmp_path / "out/metrics.json").touch()
    assert "has results: choose another" in fails(*flags)


def test_without_sacrebleu_the_command_says_what_to_install_before_it_trains(data, tmp_path):
    absent = {"sacrebleu.metrics": None}
    with patch.dict(sys.modules, absent), pytest.raises(PackageError, match="pip install sacrebleu"):
        pretrained_seq2seq.main(["--data_dir", str(data), "--output_dir", str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()
