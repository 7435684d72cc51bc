"""The curves of a run, in the files of trackers that take seconds to start."""

import contextlib
import json
import os
import sqlite3
import subprocess
import sys
from functools import partial

import pytest
from accelerate.tracking import WandBTracker
from wandb.errors import UsageError

from elmo_gpt_bert.training import launching, log
from elmo_gpt_bert.training.arguments import TRACKERS
from tests.conftest import ROOT
from tests.support.glue_sample import write_model, write_task, write_vocabulary
from tests.support.processes import fork, run_script, wait
from tests.training.test_trackers import RATES


def test_all_trackers_are_those_that_are_installed(run, monkeypatch):
    def names() -> list[str]:
        return [getattr(tracker, "name", tracker) for tracker in log.trackers_of(run(report_to="all"))]

    assert names() == list(TRACKERS)
    monkeypatch.setattr(log, "get_available_trackers", lambda: ["mlflow", "trackio"])
    assert names() == ["trackio", "curves"]


def test_a_tracker_that_cannot_begin_is_one_line_with_a_remedy(run, monkeypatch):
    accelerator = launching.make_accelerator(run(report_to="wandb"))
    monkeypatch.setattr(WandBTracker, "start", lambda _: (_ for _ in ()).throw(UsageError("No API key.")))
    with pytest.raises(RuntimeError, match="--report_to wandb: No API key. WANDB_MODE=offline keeps"):
        log.start_trackers(run(report_to="wandb"), accelerator, 0)


@pytest.fixture
def flags(tmp_path, monkeypatch):
    """Of RTE in miniature, to be run in a process of its own, where a tracker may leave its threads."""
    monkeypatch.chdir(tmp_path)
    flags = ["--model_name_or_path", write_model(tmp_path), "--tokenizer_name", write_vocabulary(tmp_path)]
    flags += ["--task_name", "rte", "--data_dir", write_task(tmp_path, "RTE"), "--max_seq_length", "24"]
    flags += ["--do_train", "--do_eval", "--output_dir", "out", "--max_steps", "6", "--logging_steps", "2"]
    return [*map(str, flags), "--warmup_ratio", "0.5", "--learning_rate", "0.01", "--report_to"]


def test_wandb_receives_the_curves_and_keeps_them_in_the_output_folder(flags, tmp_path):
    # A fresh process: other clients' libraries disturb the import of TensorFlow, which TensorBoard asks for.
    command = [sys.executable, ROOT / "run_glue.py", *flags, "tensorboard", "wandb"]
    subprocess.run(command, env=os.environ | {"WANDB_MODE": "offline"}, check=True, timeout=120)
    (folder,) = (tmp_path / "out" / "wandb").glob("offline-run-*")
    (records,) = folder.glob("*.wandb")
    content = records.read_bytes()
    assert b"train_loss" in content and b"learning_rate" in content and b"eval_accuracy" in content
    assert [*(tmp_path / "out" / "runs").glob("events*")]  # TensorBoard's, beside them


def test_trackio_receives_the_curves(flags, tmp_path, monkeypatch):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    assert wait(fork(partial(run_script, ROOT / "run_glue.py", *flags, "trackio"))) == [0]
    with contextlib.closing(sqlite3.connect(tmp_path / "trackio" / "elmo-gpt-bert.db")) as database:
        rows = database.execute("select step, metrics from metrics where run_name = 'out'").fetchall()
    curves = [(step, json.loads(values)) for step, values in rows]
    rates = {step: values["learning_rate"] for step, values in curves if "learning_rate" in values}
    assert rates == pytest.approx(RATES) and any("eval_accuracy" in values for _, values in curves)
