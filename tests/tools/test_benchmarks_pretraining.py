"""The benchmark of pre-training compares the same work, on transformers' models, and stops where it differs."""

import json
import time

import pytest
from transformers import BertForMaskedLM, OpenAIGPTLMHeadModel

import modeling
import run_pretraining
from benchmarks import measure, plain_pretraining, pretraining
from benchmarks.measure import DifferentResults
from elmo_gpt_bert.tasks.pretraining.causal import CausalLM
from elmo_gpt_bert.tasks.pretraining.masked import MaskedLM


pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("_little_work", "_without_compiler")]


def run_here(work, *args):
    """In place of a new process."""
    modeling.unregister()
    return work(*args), 1000.0


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bench")
    text = pretraining.write_text(folder / "text.txt", tiny=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pretraining, "in_new_process", run_here)
        yield pretraining.Bench(text, folder, "tiny", pairs=1)


def test_every_loop_is_timed_against_that_of_transformers(bench):
    head, *rows = bench.training()
    assert [row[:3] for row in rows] == [
        ["masked", "3 x 19 tokens, vocabulary 150", "zoo : transformers"],
        ["causal", rows[1][1], "zoo : transformers"],
    ]
    for row in rows:
        cells = dict(zip(head, row, strict=True))
        rates = [float(rate.replace(",", "")) for rate in cells["tokens / CPU second"].split(" : ")]
        assert min(rates) > 0 and len(rates) == 2
        assert cells["peak MB"] == "1,000 : 1,000"


@pytest.mark.parametrize(("name", "expected"), [("masked", BertForMaskedLM), ("causal", OpenAIGPTLMHeadModel)])
def test_the_baseline_trains_transformers_model_on_batches_of_the_same_size(bench, name, expected, monkeypatch):
    trainers = []

    class Recorded(plain_pretraining.Trainer):
        def train(self):
            trainers.append(self)

    monkeypatch.setattr(plain_pretraining, "Trainer", Recorded)
    prepared = bench.prepare(name)
    job = prepared.job
    run_here(plain_pretraining.train, prepared.model, prepared.rows, name == "masked", 3, 2, bench.folder / "out")
    (trainer,) = trainers
    assert type(trainer.model) is expected and trainer.args.max_steps == 2
    batch = next(iter(trainer.get_train_dataloader()))
    assert batch["input_ids"].shape == (job.batch_size, job.length)
    sizes = json.loads((prepared.model / "config.json").read_text(encoding="utf-8"))
    assert trainer.model.config.vocab_size == sizes["vocab_size"] == len(prepared.tokenizer)


def test_batches_are_timed_against_those_of_transformers_collators(bench):
    _, *rows = bench.collators()
    assert [row[0] for row in rows] == ["masked", "causal"]


@pytest.mark.parametrize("name", ["masked", "causal"])
def test_nothing_is_timed_where_batches_differ(bench, name, monkeypatch):
    kind, change = {
        "masked": (MaskedLM, lambda batch: batch | {"labels": batch["labels"].where(batch["labels"] % 3 > 0, -100)}),
        "causal": (CausalLM, lambda batch: batch | {"input_ids": batch["input_ids"].roll(1)}),
    }[name]
    make = kind.batch
    monkeypatch.setattr(kind, "batch", lambda self, samples: change(make(self, samples)))
    with pytest.raises(DifferentResults, match="Nothing was timed"):
        pretraining.compare_collators(bench.prepare(name), 3, pairs=1, seconds=0.0)


def test_the_loops_time_is_without_that_of_the_preparation(bench, monkeypatch):
    load = run_pretraining.load_model

    def load_slowly(*args, **options):
        time.sleep(0.2)
        return load(*args, **options)

    monkeypatch.setattr(run_pretraining, "load_model", load_slowly)
    flags, seconds = bench.prepare("causal").flags(updates=1), []
    _, whole = measure.timed(lambda: seconds.append(run_here(pretraining.train_zoo, flags)[0]))
    ((cpu, wall),) = seconds
    assert cpu > 0 and 0 < wall < whole - 0.2


def test_a_table_that_does_not_exist_is_an_error(capsys):
    with pytest.raises(SystemExit):
        pretraining.main(["nothing"])
    assert "no table is called nothing" in capsys.readouterr().err


def test_text_that_is_not_there_is_an_error(tmp_path, capsys):
    with pytest.raises(SystemExit):
        pretraining.main(["collators", "--size", "tiny", "--text", str(tmp_path / "none.txt")])
    shown = capsys.readouterr()
    assert f"--text {tmp_path / 'none.txt'}: no such file" in shown.err and not shown.out
