"""Whole runs on a language model: its task's tokens are added and trained, and every way of running agrees."""

import json
import shutil
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import run_glue
import run_ner
from tests.support.glue_sample import write_task
from tests.support.gpt_sample import vocabulary, write_gpt_model
from tests.support.ner_sample import write_folder
from tests.support.processes import fork, wait


PAPER = "lm_loss_weight=0.5,both_orders=true"


@pytest.fixture
def mrpc(tmp_path) -> list[str]:
    """A run that learns to compare sentences, read in both orders, and to predict their words."""
    write_task(tmp_path, "MRPC")
    model = ["--model_name_or_path", str(write_gpt_model(tmp_path)), "--config_overrides", PAPER]
    return [*model, *data(tmp_path), "--do_train", "--learning_rate", "0.01", "--num_train_epochs", "2"]


def data(folder: Path) -> list[str]:
    return ["--task_name", "mrpc", "--data_dir", str(folder), "--do_eval", "--max_seq_length", "40"]


def scores(folder: Path) -> dict[str, float]:
    record = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
    return {name: record[name] for name in ("eval_f1", "eval_accuracy", "eval_loss")}


def test_a_saved_folder_scores_as_the_run_that_wrote_it(tmp_path, mrpc):
    out, again = tmp_path / "out", tmp_path / "again"
    first = run_glue.main([*mrpc, "--do_predict", "--output_dir", str(out)])
    assert first["train_loss"] > first["eval_loss"] + 1  # the language model's share, in training only
    saved = ["--model_name_or_path", str(out), *data(tmp_path), "--do_predict"]
    run_glue.main([*saved, "--output_dir", str(again)])
    assert scores(again) == scores(out)
    assert (again / "predictions.tsv").read_text() == (out / "predictions.tsv").read_text()


@pytest.mark.slow
def test_two_processes_give_the_results_of_one(tmp_path, mrpc):
    one, two = tmp_path / "one", tmp_path / "two"
    common = [*mrpc, "--group_by_length", "--adam_epsilon", "0.001", "--save_strategy", "no"]
    spread = ["--per_device_train_batch_size", "1", "--gradient_accumulation_steps", "2", "--output_dir", str(two)]
    assert wait(fork(partial(run_glue.main, [*common, *spread]), count=2)) == [0, 0]
    run_glue.main([*common, "--per_device_train_batch_size", "4", "--output_dir", str(one)])
    assert scores(two) == pytest.approx(scores(one), abs=1e-6)
    weights = [load_file(folder / "model.safetensors") for folder in (one, two)]
    torch.testing.assert_close(*weights, rtol=0, atol=1e-5)


def test_a_run_goes_on_where_it_stopped_to_the_same_weights(tmp_path, mrpc):
    out, again = tmp_path / "out", tmp_path / "again"
    saving = ["--save_strategy", "steps", "--save_steps", "1", "--save_total_limit", "9"]
    common = [*mrpc, *saving, "--config_overrides", f"{PAPER},resid_pdrop=0.2"]
    run_glue.main([*common, "--output_dir", str(out)])
    again.mkdir()
    shutil.copytree(out / "checkpoint-1", again / "checkpoint-1")
    run_glue.main([*common, "--output_dir", str(again), "--resume"])
    whole, resumed = (load_file(folder / "model.safetensors") for folder in (out, again))
    assert len(whole["transformer.tokens_embed.weight"]) == len(vocabulary()) + 3
    assert all(torch.equal(weight, resumed[name]) for name, weight in whole.items())


@pytest.mark.parametrize("words", ["bert", "released"])
def test_a_language_model_tags_words(tmp_path, words):
    model = write_gpt_model(tmp_path)
    path = model / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | {"words": words}), encoding="utf-8")
    common = ["--data_dir", str(write_folder(tmp_path / "data")), "--do_eval", "--max_seq_length", "40"]
    common += ["--document_context", "--output_dir"]
    flags = ["--model_name_or_path", str(model), "--do_train", "--max_steps", "20", "--eval_steps", "20"]
    learned = run_ner.main([*flags, "--learning_rate", "0.03", *common, str(tmp_path / "out")])
    assert learned["eval_loss"] < 1  # from log(5)
    again = run_ner.main(["--model_name_or_path", str(tmp_path / "out"), *common, str(tmp_path / "again")])
    assert again["eval_loss"] == learned["eval_loss"] and again["eval_f1"] == learned["eval_f1"]
