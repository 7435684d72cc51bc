"""Whole runs of run_glue.py on ELMo's classifier: sentences, pairs and a regression, over a frozen biLM and words."""

import json
import os
import signal

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import run_glue
from elmo_gpt_bert.convert import vectors
from elmo_gpt_bert.tasks.glue import TASKS
from elmo_gpt_bert.training import loop
from modeling import ElmoConfig, ElmoForSequenceClassification, ElmoModel, ElmoTokenizer
from tests.support.glue_sample import FOLDERS, write_task
from tests.support.processes import fork, wait
from tests.support.run_samples import elmo


SIZES = {
    "filters": [[1, 4], [2, 5]],
    "char_embedding_size": 3,
    "num_highway_layers": 1,
    "hidden_size": 6,
    "cell_size": 7,
    "rnn_size": 5,
    "rnn_layers": 1,
    "classifier_size": 8,
}


@pytest.fixture(params=["sst2", "rte", "stsb"])
def flags(request, tmp_path) -> list[str]:
    """A run of 6 updates on a task in miniature, from a folder with a biLM and with vectors of the task's words."""
    data = write_task(tmp_path, FOLDERS[request.param])
    ElmoModel(ElmoConfig(**SIZES)).save_pretrained(tmp_path / "bilm")
    ElmoTokenizer().save_pretrained(tmp_path / "bilm")
    vectors.convert(str(tmp_path / "bilm"), str(tmp_path / "elmo"), texts=[str(data / "train.tsv")], size=6)
    flags = ["--model_name_or_path", str(tmp_path / "elmo"), "--task_name", request.param, "--data_dir", str(data)]
    flags += ["--do_train", "--do_eval", "--do_predict", "--max_seq_length", "7", "--max_steps", "6"]
    return [*flags, "--per_device_train_batch_size", "3", "--learning_rate", "0.01", "--save_steps", "3"]


def scores_of(results: dict) -> dict[str, float]:
    return {name: value for name, value in results.items() if name.startswith("eval_") and "runtime" not in name}


def test_a_run_trains_the_head_on_a_frozen_bilm_and_its_folder_repeats_the_numbers(flags, tmp_path):
    out, again = tmp_path / "out", tmp_path / "again"
    results = run_glue.main([*flags, "--output_dir", str(out)])
    classes, predictions = TASKS[flags[3]].classes, (out / "predictions.tsv").read_text(encoding="utf-8")
    said = [line.split("\t")[1] for line in predictions.splitlines()[1:]]
    assert len(said) == 4 and (set(said) <= set(classes) if classes else all(map(float, said)))

    model = AutoModelForSequenceClassification.from_pretrained(out)
    assert type(model) is ElmoForSequenceClassification and "vector_ids" in AutoTokenizer.from_pretrained(out)(
        "a film"
    )
    before, after = load_file(tmp_path / "elmo" / "model.safetensors"), load_file(out / "model.safetensors")
    changed = {name for name in after if name not in before or not torch.equal(after[name], before[name])}
    assert not [name for name in changed if name.startswith(("elmo.token_encoder.", "elmo.layers."))]
    assert {"word_vectors.weight", "elmo.mixes.0.weights", "classifier.weight"} <= changed

    evaluates = [flag for flag in flags if flag != "--do_train"]
    repeated = run_glue.main([*evaluates, "--model_name_or_path", str(out), "--output_dir", str(again)])
    assert scores_of(repeated) == pytest.approx(scores_of(results), abs=1e-6)
    assert (again / "predictions.tsv").read_text(encoding="utf-8") == predictions


@pytest.mark.parametrize("flags", ["sst2"], indirect=True)
def test_a_run_of_a_bilm_that_carries_its_state_does_not_depend_on_its_batches(flags, tmp_path, capsys):
    flags += ["--config_overrides", "state=carry,task_dropout=0,mix_dropout=0"]
    results = run_glue.main([*flags, "--output_dir", str(tmp_path / "out"), "--per_device_eval_batch_size", "1"])
    assert "each text starts from the stored state (warm), not where the last one ended" in capsys.readouterr().out
    others = [flag for flag in flags if flag not in ("--do_eval", "--do_predict")]
    run_glue.main([*others, "--output_dir", str(tmp_path / "unseen")])
    names = ("out", "unseen")
    weights, unseen = (load_file(tmp_path / name / "model.safetensors") for name in names)
    torch.testing.assert_close(weights, unseen, atol=0, rtol=0)  # an evaluation changes no state
    out = ["--model_name_or_path", str(tmp_path / "out"), *flags[2:6], "--do_eval", "--max_seq_length", "7"]
    again = run_glue.main([*out, "--output_dir", str(tmp_path / "again"), "--per_device_eval_batch_size", "64"])
    assert again["eval_loss"] == pytest.approx(results["eval_loss"], abs=1e-6)
    assert json.loads((tmp_path / "out" / "config.json").read_text())["state"] == "warm"


@pytest.mark.slow
@pytest.mark.parametrize("flags", ["stsb"], indirect=True)
def test_a_killed_run_goes_on_to_the_same_bits(flags, tmp_path, monkeypatch):
    def step(self, *_):
        if self.progress.update == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        return between(self)

    between = loop._Training.between_updates
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    flags += ["--save_strategy", "steps"]
    with monkeypatch.context() as patch:
        patch.setattr(loop._Training, "between_updates", step)
        assert wait(fork(lambda: run_glue.main([*flags, "--output_dir", str(killed)]))) == [-signal.SIGKILL]
    for folder, more in ((whole, []), (killed, ["--resume"])):
        run_glue.main([*flags, "--output_dir", str(folder), *more])
    records = [json.loads((folder / "metrics.json").read_text(encoding="utf-8")) for folder in (whole, killed)]
    assert scores_of(records[0]) == scores_of(records[1])
    for name in ("model.safetensors", "predictions.tsv"):
        assert (killed / name).read_bytes() == (whole / name).read_bytes()


def test_a_split_whose_only_text_has_no_words_is_evaluated_and_predicted(tmp_path):
    (tmp_path / "empty.csv").write_text('text,label\n"",0\n', encoding="utf-8")
    files = ["--validation_file", str(tmp_path / "empty.csv"), "--test_file", str(tmp_path / "empty.csv")]
    flags = [*elmo(tmp_path, "glue"), *files, "--do_eval", "--do_predict", "--save_outputs"]
    assert run_glue.main([*flags, "--output_dir", str(tmp_path / "out")])["eval_accuracy"] in (0, 1)
    predictions = (tmp_path / "out" / "predictions.csv").read_text(encoding="utf-8")
    assert predictions.splitlines()[1].startswith((",0,LABEL_0,", ",0,LABEL_1,"))
