"""Scores without fine-tuning, against plain loops over a model's probabilities, and their places in pre-training."""

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from sklearn.metrics import matthews_corrcoef, roc_auc_score

import run_pretraining
from elmo_gpt_bert.analysis import zero_shot
from elmo_gpt_bert.tasks.minimal_pairs import BidirectionalScorer, MaskedScorer
from elmo_gpt_bert.tasks.pretraining.corpus import Corpus
from elmo_gpt_bert.training.arguments import ModelSource
from elmo_gpt_bert.training.errors import InputError
from elmo_gpt_bert.training.identity import EPOCH_SAMPLES, FINAL_LENGTH, SAMPLES
from elmo_gpt_bert.training.loading import load_tokenizer
from modeling import ElmoForPreTraining, ZooBertForMaskedLM, ZooGPTLMHeadModel
from tests.support.glue_sample import text, write_task
from tests.support.pairs_sample import PAIRS, write_bert, write_bilm, write_gpt, write_pairs
from tests.support.pretraining_sample import flags


DEV = [text(row, 0) for row in range(5)]  # of glue_sample's SST-2, whose labels are 0, 1, 0, 1, 0
LABELS = np.array([0, 1, 0, 1, 0])
WORDS = ("bad", "good")  # "good" is three pieces for BERT


def scores_of(folder: Path, tmp_path: Path, *flags: str) -> dict:
    (row,) = zero_shot.main([str(folder), *flags, "--output_dir", str(tmp_path / "out")])
    return row


def sst2(tmp_path: Path) -> list[str]:
    return ["--sst2", str(write_task(tmp_path, "SST-2")), "--verbalizers", *WORDS]


def tokenizer_of(folder: Path):
    return load_tokenizer(ModelSource(str(folder)), for_task=False)


def check_sst2(row: dict, margins: list[float]) -> None:
    right = (np.array(margins) > 0) == (LABELS == 1)
    assert row["sst2_accuracy"] == pytest.approx(right.mean())
    assert row["sst2_auc"] == pytest.approx(roc_auc_score(LABELS, margins))


def log_probabilities(model, ids: list[int]) -> list[float]:
    """log p of each token but the first, given those before it."""
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0].log_softmax(-1)
    return [logits[place, token].item() for place, token in enumerate(ids[1:])]


def test_bert_reads_a_mask_in_the_words_place_one_token_after_the_other(tmp_path):
    folder = write_bert(tmp_path)
    model, tokenizer = ZooBertForMaskedLM.from_pretrained(folder).eval(), tokenizer_of(folder)
    scorer, prompts = MaskedScorer(model, tokenizer, "original"), [f"{sentence} very" for sentence in DEV]
    margins = {}
    for word in WORDS:
        pieces, expected = tokenizer(word, add_special_tokens=False)["input_ids"], []
        for prompt in prompts:
            start, total = tokenizer(prompt)["input_ids"][:-1], 0.0
            for number, piece in enumerate(pieces):
                masks = [tokenizer.mask_token_id] * (len(pieces) - number)
                row = torch.tensor([[*start, *pieces[:number], *masks, tokenizer.sep_token_id]])
                with torch.no_grad():
                    logits = model(row).logits[0, len(start) + number]
                total += logits.log_softmax(-1)[piece].item()
            expected.append(total)
        values = zero_shot.log_likelihoods(scorer, prompts, zero_shot.verbalized_rows(scorer, prompts, word))
        np.testing.assert_allclose(values[""], expected, rtol=1e-5)
        margins[word] = np.array(expected)
    ties = ["--blimp", str(write_pairs(tmp_path / "pairs.jsonl", PAIRS[-1:]))]
    row = scores_of(folder, tmp_path, *sst2(tmp_path), *ties)
    check_sst2(row, margins["good"] - margins["bad"])
    assert row["blimp_accuracy"] == 0.5


def test_gpt_compares_the_sentences_with_both_words_and_scores_cola_by_the_mean(tmp_path):
    folder = write_gpt(tmp_path)
    model, tokenizer = ZooGPTLMHeadModel.from_pretrained(folder).eval(), tokenizer_of(folder)

    def ids(sentence: str) -> list[int]:
        return tokenizer(sentence)["input_ids"]

    cola = write_task(tmp_path, "CoLA")
    row = scores_of(folder, tmp_path, *sst2(tmp_path), "--cola", str(cola))
    sums = [[sum(log_probabilities(model, ids(f"{sentence} very {word}"))) for word in WORDS] for sentence in DEV]
    check_sst2(row, [good - bad for bad, good in sums])
    means, labels = {}, {}
    for split in ("train", "dev"):  # no header line: the label in column 2, the text in column 4
        lines = [line.split("\t") for line in (cola / f"{split}.tsv").read_text().splitlines()]
        means[split] = np.array([np.mean(log_probabilities(model, ids(line[3]))) for line in lines])
        labels[split] = np.array([line[1] == "1" for line in lines])
    threshold = max(means["train"], key=lambda value: matthews_corrcoef(labels["train"], means["train"] >= value))
    expected = matthews_corrcoef(labels["dev"], means["dev"] >= threshold)
    assert row["cola_matthews"] == pytest.approx(expected)
    assert row["cola_auc"] == pytest.approx(roc_auc_score(labels["dev"], means["dev"]))
    row = scores_of(folder, tmp_path, "--sst2", str(tmp_path / "SST-2"), "--verbalizers", "good", "good")
    assert row["sst2_accuracy"] == row["sst2_auc"] == 0.5


def test_the_threshold_of_cola_is_the_best_for_the_training_set(monkeypatch):
    """A sentence is numbers: the log-probabilities of its tokens."""

    class Reader:
        def encode(self, texts: list[str]) -> list[list[float]]:
            return [[float(number) for number in text.split()] for text in texts]

        def count_scored(self, row: list[float]) -> int:
            return len(row)

    monkeypatch.setattr(zero_shot, "log_likelihoods", lambda _, texts, rows: {"": np.array([*map(sum, rows)])})
    yes, no = "acceptable", "unacceptable"
    train = {"text": ["-1 -1", "-2 -2 -2", "-3", "-4"], "label": [yes, yes, no, no]}
    validation = {"text": ["-1", "-2 -2", "-3", "-5"], "label": [yes, no, yes, no]}
    scores = zero_shot.score_cola(Reader(), *map(zero_shot.Dataset.from_dict, (train, validation)))
    assert scores == {"cola_matthews": 0.0, "cola_auc": 0.75}  # from -2 up; from -3 up would be better


def test_a_bilm_has_scores_of_each_direction_and_of_their_sum(tmp_path):
    folder = write_bilm(tmp_path)
    row = scores_of(folder, tmp_path, *sst2(tmp_path), "--blimp", str(write_pairs(tmp_path / "pairs.jsonl")))
    model = ElmoForPreTraining.from_pretrained(folder).eval()
    scorer = BidirectionalScorer(model, tokenizer_of(folder))
    margins = []
    for sentence in DEV:
        batch = scorer.collate(scorer.encode([f"{sentence} very {word}" for word in WORDS]))
        with torch.no_grad():
            bad, good = torch.stack([*scorer(**batch).values()], 1)  # (2 words, 2 directions)
        margins.append((good - bad).tolist())
        texts = [f"{sentence} very {word}" for word in WORDS]
        values = zero_shot.log_likelihoods(scorer, texts, scorer.encode(texts))
        for name, expected in {"": sum, "forward_": lambda both: both[0], "backward_": lambda both: both[1]}.items():
            np.testing.assert_allclose(values[name], [expected(bad), expected(good)], rtol=1e-5)
    check_sst2(row, [sum(both) for both in margins])
    for place, direction in enumerate(("forward_", "backward_")):
        own = {name.removeprefix(direction): value for name, value in row.items() if name.startswith(direction)}
        check_sst2(own, [both[place] for both in margins])
        assert 0 <= own["blimp_accuracy"] <= 1


def test_the_threshold_is_the_best_of_all():
    draw = np.random.default_rng(3)
    for _ in range(5):
        scores = draw.integers(-4, 5, 30) / 2.0  # with ties
        labels = draw.random(30) < 0.3 + 0.1 * scores
        labels[:2] = [True, False]
        best = max(matthews_corrcoef(labels, scores >= value) for value in scores)
        threshold = zero_shot.best_threshold(scores, labels)
        assert matthews_corrcoef(labels, scores >= threshold) == pytest.approx(best)


def test_every_checkpoint_of_a_real_run_is_a_row_with_its_place_in_pre_training(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("elmo_gpt_bert.training.log.draw_curves", lambda *_: True)
    monkeypatch.setattr("elmo_gpt_bert.analysis.frame.write_picture", lambda *_: None)
    run = tmp_path / "gpt"
    steps = ["--max_steps", "5", "--save_strategy", "steps", "--save_steps", "2", "--save_total_limit", "3"]
    steps += ["--eval_steps", "2"]
    run_pretraining.main(
        [*flags(tmp_path, "causal_lm"), *steps, "--do_train", "--do_eval", "--batch_ramp_steps", "3"]
        + ["--report_to", "curves", "--output_dir", str(run)]
    )
    pairs = [("he saw the boat", "saw he boat the", "order", "order", "syntax")]
    data = ["--blimp", str(write_pairs(tmp_path / "pairs.jsonl", pairs)), "--output_dir", str(tmp_path / "out")]
    rows = zero_shot.main([str(run), *data, "--against", "epochs"])
    assert [row["updates"] for row in rows] == [2, 4, 5]
    assert all(row["run"] == "gpt" for row in rows)
    assert [row["tokens"] for row in rows] == [13 * samples for samples in (2 + 3, 2 + 3 + 4 + 4, 2 + 3 + 4 + 4 + 4)]
    rows_of_text = math.ceil(Corpus.open(tmp_path / "corpus-causal_lm", "train").num_tokens / 13)
    assert [row["epochs"] * rows_of_text * 13 for row in rows] == pytest.approx([row["tokens"] for row in rows])
    logged = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    assert {row["updates"]: row["eval_loss"] for row in rows} == {
        line["update"]: line["eval_loss"] for line in logged if "eval_loss" in line
    }
    assert json.loads((tmp_path / "out" / "zero_shot.json").read_text()) == rows
    assert "| run | updates | tokens | epochs | eval_loss | blimp_accuracy |" in capsys.readouterr().out
    assert zero_shot.main([str(run / "checkpoint-4"), *data]) == [rows[1]]


def test_tokens_read_are_those_of_all_rows_with_a_ramp_and_longer_rows_at_the_end():
    identity = {SAMPLES: 8, "batch_ramp_steps": 3, EPOCH_SAMPLES: 43, "max_seq_length": 13}
    longer = identity | {"final_seq_length": 31, FINAL_LENGTH: 6}
    for updates in (1, 3, 6, 9):
        samples = [math.ceil(8 * min(update, 3) / 3) for update in range(1, updates + 1)]
        tokens = sum(samples) * 13
        assert zero_shot.read_text_of(identity, updates) == {"tokens": tokens, "epochs": tokens / (43 * 13)}
        tokens = sum(samples[:6]) * 13 + sum(samples[6:]) * 31
        assert zero_shot.read_text_of(longer, updates) == {"tokens": tokens, "epochs": tokens / (43 * 13)}
    of_any_length = identity | {"max_seq_length": None}  # the script's default
    assert zero_shot.read_text_of(of_any_length, 5) == {"epochs": zero_shot.read_text_of(identity, 5)["epochs"]}
    assert zero_shot.read_text_of(longer | {"max_seq_length": None}, 5) == {}


def test_two_runs_are_two_curves_and_samples_are_spread_evenly(tmp_path):
    folder = write_gpt(tmp_path)
    for name in ("mlm", "ltr"):
        for update in (10, 2):
            shutil.copytree(folder, tmp_path / name / f"checkpoint-{update}")
    pairs = write_pairs(tmp_path / "pairs.jsonl", PAIRS * 2)
    argv = [str(tmp_path / "mlm"), str(tmp_path / "ltr"), "--blimp", str(pairs), "--max_samples", "4"]
    rows = zero_shot.main([*argv, "--output_dir", str(tmp_path / "out")])
    assert [(row["run"], row["updates"]) for row in rows] == [("mlm", 2), ("mlm", 10), ("ltr", 2), ("ltr", 10)]
    assert (tmp_path / "out" / "zero_shot.png").read_bytes().startswith(b"\x89PNG")
    figure = Figure()
    zero_shot.draw(figure, rows, ["blimp_accuracy"], "updates")
    mlm, ltr, chance = figure.axes[0].lines
    assert [curve.get_label() for curve in (mlm, ltr)] == ["mlm", "ltr"] and {*chance.get_ydata()} == {0.5}
    assert mlm.get_xydata().tolist() == [[row["updates"], row["blimp_accuracy"]] for row in rows[:2]]
    data = zero_shot.Dataset.from_dict({"text": [str(number) for number in range(10)]})
    assert zero_shot.spread(data, 4)["text"][:] == ["0", "3", "6", "9"]


def test_scores_of_models_without_a_place_are_in_the_table_only(tmp_path, monkeypatch):
    folders = {tmp_path / "gpt": {"updates": 2, "blimp": 0.6}, tmp_path / "elmo": {"forward_blimp": 0.5}}
    monkeypatch.setattr(zero_shot, "checkpoints_of", lambda folder: [(folder, folder)])
    monkeypatch.setattr(zero_shot, "describe", lambda run, folder: {})
    monkeypatch.setattr(zero_shot, "read_data", lambda args: None)
    monkeypatch.setattr(zero_shot, "score", lambda folder, data, pll: folders[folder])
    for folder in folders:
        folder.mkdir()
    rows = zero_shot.main([*map(str, folders), "--blimp", "x", "--output_dir", str(tmp_path / "out")])
    assert [row.get("forward_blimp") for row in rows] == [None, 0.5]
    assert (tmp_path / "out" / "zero_shot.png").is_file()


def test_what_cannot_be_scored_is_one_clear_error(tmp_path):
    folder, output = write_bilm(tmp_path), ["--output_dir", str(tmp_path / "out")]
    task = ["--sst2", str(write_task(tmp_path, "SST-2"))]
    with pytest.raises(ValueError, match="nothing to score: give at least one of --sst2, --cola, --blimp"):
        zero_shot.main([str(folder), *output])
    with pytest.raises(ValueError, match="does not know the word 'negative': choose others with --verbalizers"):
        zero_shot.main([str(folder), *task, *output])
    with pytest.raises(ValueError, match="all examples of SST-2 are negative: take more"):
        zero_shot.main([str(folder), *task, "--verbalizers", *WORDS, "--max_samples", "2", *output])
    with pytest.raises(InputError, match="does not know the word '': choose others"):
        zero_shot.main([str(write_bert(tmp_path)), *task, "--verbalizers", "", "good", *output])
    with pytest.raises(FileNotFoundError, match="--blimp .*nowhere: no such file or folder"):
        zero_shot.main([str(folder), "--blimp", str(tmp_path / "nowhere"), *output])
    with pytest.raises(FileNotFoundError, match="absent: no such folder"):
        zero_shot.main([str(tmp_path / "absent"), *task, *output])
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="empty is no model folder and holds no checkpoint-N"):
        zero_shot.main([str(tmp_path / "empty"), *task, *output])


@pytest.mark.parametrize(
    "sentence, problem",
    [
        ("film " * 17 + ".", "has 20 tokens, but the model reads at most 19: leave it out"),
        ("\u200b", "has no token that can be scored: leave it out"),
    ],
)
def test_a_sentence_that_cannot_be_scored_is_named(sentence, problem, tmp_path):
    (tmp_path / "train.tsv").write_text(f"a\t1\t\tthe film\na\t0\t\t{sentence}\n", encoding="utf-8")
    (tmp_path / "dev.tsv").write_text("a\t1\t\tthe film\na\t0\t\tfilm the\n", encoding="utf-8")
    with pytest.raises(InputError, match=problem):
        scores_of(write_bert(tmp_path), tmp_path, "--cola", str(tmp_path))
