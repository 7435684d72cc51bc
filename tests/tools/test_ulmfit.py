"""examples/ulmfit.py: the equations, each step, what a variant leaves out, and the command."""

import json
import random
from pathlib import Path
from unittest.mock import patch

import pytest
import torch

from elmo_gpt_bert.training.errors import UserError
from examples import ulmfit
from examples.ulmfit import Classifier, adapt, classify, fit, inputs_of, layers_of, slanted
from modeling import ElmoConfig, ElmoForPreTraining, ElmoTokenizer
from tests.support.pretraining_sample import ELMO


WORDS = ["<S>", "</S>", "<UNK>", "a", "good", "bad", "film", "plot", "very", "the"]
SENTENCES = [["a", "very", "good", "film"], ["bad"], ["the", "plot", "is", "bad", "film"]]


@pytest.fixture
def folder(tmp_path) -> Path:
    torch.manual_seed(0)
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS) + "\n", encoding="utf-8")
    changes = {"lm_vocab_size": len(WORDS), "num_sampled": 0, "hidden_dropout_prob": 0.0}
    ElmoForPreTraining(ElmoConfig(**ELMO | changes)).save_pretrained(tmp_path / "bilm")
    tokenizer = ElmoTokenizer(vocab_file=str(tmp_path / "vocab.txt"), max_characters_per_token=12)
    tokenizer.save_pretrained(tmp_path / "bilm")
    return tmp_path / "bilm"


@pytest.fixture
def lm(folder) -> ElmoForPreTraining:
    return ElmoForPreTraining.from_pretrained(folder)


@pytest.fixture
def tokenizer(folder) -> ElmoTokenizer:
    return ElmoTokenizer.from_pretrained(folder)


def labelled(count: int, seed: int) -> list[tuple[list[str], int]]:
    draw, rows = random.Random(seed), []
    for _ in range(count):
        label = draw.randrange(2)
        rows.append(([draw.choice(["a", "the"]), ("bad", "good")[label], draw.choice(["film", "plot"])], label))
    return rows


# The equations


def test_the_learning_rate_is_that_of_equation_3():
    total, cut = 200, 20
    for t in range(total):
        p = t / cut if t < cut else 1 - (t - cut) / (cut * (1 / 0.1 - 1))
        assert slanted(t, total) == pytest.approx((1 + p * 31) / 32)
    rates = [slanted(t, 17) for t in range(17)]  # of which a tenth is no whole number
    assert max(rates) == rates[1] == 1 and min(rates) >= 1 / 32


def test_the_classifier_reads_the_last_state_the_maximum_and_the_mean_of_the_forward_direction(lm, tokenizer):
    model = Classifier(lm, 2).eval()
    scores = model(**inputs_of(tokenizer, SENTENCES))
    for sentence, found in zip(SENTENCES, scores, strict=True):
        states = lm.elmo.embed([sentence], layers="all", tokenizer=tokenizer)[0][
            -1, :, :6
        ]  # the first half is forward
        pooled = torch.cat([states[-1], states.amax(0), states.mean(0)])
        torch.testing.assert_close(model.blocks(pooled[None])[0], found)


def test_layers_are_those_of_the_forward_direction_from_the_top(lm):
    layers = layers_of(lm, lm.lm_head)
    expected = (lm.lm_head, lm.elmo.layers[1].forward_lstm, lm.elmo.layers[0].forward_lstm, lm.elmo.token_encoder)
    for layer, part in zip(layers, expected, strict=True):
        assert all(ours is theirs for ours, theirs in zip(layer, part.parameters(), strict=True))


@pytest.mark.parametrize("without", ["none", "discriminative", "slanted", "unfreezing"])
def test_each_layer_has_its_learning_rate_and_its_first_epoch(without):
    weights, rates, trained = [torch.nn.Parameter(torch.ones(())) for _ in range(3)], [], []

    def step(optimizer, *args):
        rates.append([group["lr"] for group in optimizer.param_groups])

    def loss(rows):
        trained.append([weight.requires_grad for weight in weights])
        return sum(weight * len(rows) for weight in weights)

    with patch("torch.optim.Adam.step", step):
        fit([[weight] for weight in weights], loss, 96, 4, 0.5, without)
    for t, row in enumerate(rates):
        top = 0.5 if without == "slanted" else 0.5 * slanted(t, 12)
        assert row == pytest.approx([top / (1 if without == "discriminative" else 2.6) ** depth for depth in range(3)])
    counts = [sum(row) for row in trained]
    assert counts == ([3] * 12 if without == "unfreezing" else [1] * 3 + [2] * 3 + [3] * 6)
    assert all(row == sorted(row, reverse=True) for row in trained)


def test_a_sentence_that_is_left_alone_in_a_batch_waits_for_the_next_epoch():
    weight, sizes = torch.nn.Parameter(torch.ones(())), []
    fit([[weight]], lambda rows: sizes.append(len(rows)) or weight * len(rows), 33, 2, 0.5, "none")
    assert sizes == [32, 32]


# The steps


def test_the_language_model_learns_the_sentences_of_the_task_and_the_general_one_stays(lm, tokenizer):
    def loss_of(model):
        inputs = tokenizer(SENTENCES[:1], is_split_into_words=True, return_tensors="pt")
        labels = torch.tensor([tokenizer.word_targets(SENTENCES[0])])
        with torch.no_grad():
            return model.eval()(**inputs, labels=labels).direction_losses

    before, backward = loss_of(lm), lm.elmo.layers[0].backward_lstm.recurrent.weight.clone()
    with patch.object(ulmfit, "LM_RATE", 0.06):
        adapted = adapt(lm, tokenizer, SENTENCES * 4, 16)
    assert loss_of(adapted)[0] < before[0] - 0.2 and loss_of(lm).equal(before)
    assert adapted.elmo.layers[0].backward_lstm.recurrent.weight.equal(backward)


def test_the_labels_of_step_2_are_the_words_of_each_sentence(lm, tokenizer):
    seen = []

    def forward(self, input_ids, attention_mask, labels):
        seen.append((input_ids, labels))
        loss = self.lm_head.weight.sum()
        return type("Output", (), {"direction_losses": torch.stack([loss, loss * torch.nan])})

    torch.manual_seed(0)
    with patch.object(ElmoForPreTraining, "forward", forward):
        adapt(lm, tokenizer, SENTENCES, 1)
    ((ids, labels),) = seen
    rows = {tuple(row.tolist()) for row in labels}
    assert rows == {(3, 8, 4, 6, -100), (5, -100, -100, -100, -100), (9, 7, 2, 5, 6)}
    assert ((ids != 0).any(-1) == (labels != -100)).all()


@pytest.mark.slow
def test_the_classifier_learns_and_its_language_model_is_a_copy(lm, tokenizer):
    with torch.no_grad():
        for weight in lm.elmo.parameters():  # states of a useful size, which the few averages of variances reach
            weight.mul_(3)
    before, accuracies = lm.elmo.layers[1].forward_lstm.recurrent.weight.clone(), []
    train, dev = labelled(64, 0), labelled(40, 1)
    for others in (dev, [(words, 1 - label) for words, label in dev]):
        torch.manual_seed(0)
        with patch.object(ulmfit, "RATE", 0.04):
            accuracies.append(classify(lm, tokenizer, train, others, 8, "none"))
    assert accuracies[0] > 0.9 and accuracies[1] == pytest.approx(1 - accuracies[0])
    assert lm.elmo.layers[1].forward_lstm.recurrent.weight.equal(before)


# The command


@pytest.fixture
def data(tmp_path) -> Path:
    (tmp_path / "SST-2").mkdir()
    for split, count in (("train", 50), ("dev", 20)):
        rows = [f"{' '.join(words)} \t{label}\n" for words, label in labelled(count, count)]
        (tmp_path / f"SST-2/{split}.tsv").write_text("sentence\tlabel\n" + "".join(rows), encoding="utf-8")
    return tmp_path


@pytest.mark.slow
def test_the_command_repeats_exactly_and_scores_each_variant(folder, data, tmp_path):
    flags = ["--model_name_or_path", str(folder), "--data_dir", str(data), "--max_train_samples", "30"]
    flags += ["--num_train_epochs", "2", "--without", *ulmfit.VARIANTS]
    given, step_3 = [], classify
    with patch.object(ulmfit, "classify", lambda lm, *rest: given.append((lm, *rest)) or step_3(lm, *rest)):
        results = ulmfit.main([*flags, "--output_dir", str(tmp_path / "a")])
    assert ulmfit.main([*flags, "--output_dir", str(tmp_path / "b")]) == results
    assert (tmp_path / "a/metrics.json").read_bytes() == (tmp_path / "b/metrics.json").read_bytes()
    assert json.loads((tmp_path / "a/metrics.json").read_text(encoding="utf-8")) == results
    assert {f"{name}_accuracy" for name in ulmfit.VARIANTS} <= results.keys()
    assert (results["train_samples"], results["lm_samples"], results["eval_samples"]) == (30, 50, 20)
    # What each variant begins with: the released weights, random ones, or those of step 2.
    weights = ElmoForPreTraining.from_pretrained(folder).elmo.layers[0].forward_lstm.input.weight
    by_name = {rest[-1]: lm.elmo.layers[0].forward_lstm.input.weight for lm, *rest in given}
    assert by_name["lm"].equal(weights) and by_name["none"] is by_name["slanted"] is by_name["unfreezing"]
    assert 0 < (by_name["none"] - weights).abs().max() < 0.1 < (by_name["pretraining"] - weights).abs().max()
    assert all(len(rest[1]) == 30 and len(rest[2]) == 20 for _, *rest in given)


def test_without_step_2_nothing_is_adapted(folder, data, tmp_path, monkeypatch):
    monkeypatch.setattr(ulmfit, "adapt", lambda *_: pytest.fail("step 2"))
    flags = ["--model_name_or_path", str(folder), "--data_dir", str(data), "--max_train_samples", "4"]
    flags += ["--num_train_epochs", "1", "--without", "lm", "pretraining"]
    results = ulmfit.main([*flags, "--output_dir", str(tmp_path / "out")])
    assert [name for name in results if name.endswith("accuracy")] == ["lm_accuracy", "pretraining_accuracy"]


def fails(*words: object) -> str:
    with pytest.raises(UserError) as error:
        ulmfit.main([*map(str, words)])
    assert "\n" not in str(error.value)
    return str(error.value)


def test_what_cannot_be_trained_is_one_clear_error(folder, data, tmp_path):
    model, out = ["--model_name_or_path", folder], ["--output_dir", tmp_path / "out"]
    assert "no such folder" in fails(*model, "--data_dir", tmp_path / "nothing", *out)
    message = fails("--model_name_or_path", tmp_path / "nothing", "--data_dir", data, *out)
    assert "is no biLM" in message
    flags = [*model, "--data_dir", data, *out]
    assert "--max_train_samples must be 2 or more, not 1" in fails(*flags, "--max_train_samples", 1)
    assert "--num_lm_epochs must be 1 or more, not 0" in fails(*flags, "--num_lm_epochs", 0)
    (tmp_path / "out").mkdir()
    (tmp_path / "out/metrics.json").touch()
    assert "has results: choose another" in fails(*flags)
