"""The log of a run as a file, over runs that were stopped and resumed."""

import errno
import json
import os
from pathlib import Path

import pytest
from accelerate import PartialState

from elmo_gpt_bert.training import log
from elmo_gpt_bert.training.errors import FileError
from elmo_gpt_bert.training.log import History
from tests.support.tiny_run import fit


@pytest.fixture(autouse=True)
def no_picture(monkeypatch):
    PartialState()
    monkeypatch.setattr(log, "draw_curves", lambda records, path: path.write_text(str(len(records))))


def write_log(folder: Path, updates: list[int], resumes: bool, loss: float) -> list[tuple[int, float]]:
    """The lines of the file after a run, or a part of it, has logged these updates."""
    tracker = History(folder)
    if resumes:
        log.cut_log(folder, updates[0] - 1)
    for update in updates:
        tracker.log({"train_loss": loss}, step=update)
    tracker.finish()
    lines = map(json.loads, (folder / "log.jsonl").read_text().splitlines())
    return [(line["update"], line["train_loss"]) for line in lines]


def test_a_resumed_run_keeps_the_lines_before_it_and_makes_later_ones_anew(tmp_path):
    write_log(tmp_path, [2, 4, 6], resumes=True, loss=5.0)
    with (tmp_path / "log.jsonl").open("a") as file:
        file.write('{"update": 8, "tra')  # as the end of a process leaves it
    assert write_log(tmp_path, [4, 6], resumes=True, loss=3.0) == [(2, 5.0), (4, 3.0), (6, 3.0)]
    assert (tmp_path / "curves.png").read_text() == "3"


def test_a_run_that_goes_on_from_the_last_line_and_logs_no_more_draws_what_is_there(tmp_path):
    write_log(tmp_path, [2, 4], resumes=False, loss=5.0)
    before = (tmp_path / "log.jsonl").read_bytes()
    (tmp_path / "curves.png").unlink()
    History(tmp_path).finish()
    log.cut_log(tmp_path, 4)
    assert (tmp_path / "log.jsonl").read_bytes() == before and (tmp_path / "curves.png").read_text() == "2"


def test_a_disk_that_is_full_is_one_error(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    write_log(tmp_path, [2], resumes=False, loss=5.0)
    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(FileError, match="^cannot write .*log.jsonl: No space left on device. Make room") as raised:
        History(tmp_path).log({"train_loss": 5.0}, step=4)
    assert "\n" not in str(raised.value)


def test_a_damaged_log_is_one_error(tmp_path):
    (tmp_path / "log.jsonl").write_text('{"update": 2\n{"update": 4}\n')
    with pytest.raises(FileError, match="log.jsonl is damaged .*: remove it, or restore it from a copy"):
        log.cut_log(tmp_path, 1)


def test_a_run_that_a_full_disk_has_ended_goes_on_with_the_lines_up_to_its_checkpoint(run, data_set, monkeypatch):
    args = {"report_to": "curves", "logging_steps": 1, "save_steps": 2, "max_steps": 5}
    append = History.log

    def full(self, values, step, **_):
        append(self, values, step)
        if step == 4:
            raise FileError("cannot write log.jsonl: No space left on device")

    with monkeypatch.context() as patch, pytest.raises(FileError, match="No space left"):
        patch.setattr(History, "log", full)
        fit(run(**args), data_set)
    out = Path(run().output_dir)
    assert [line["update"] for line in log.read_log(out)] == [1, 2, 3, 4] and (out / "checkpoint-2").is_dir()
    fit(run(resume=True, **args), data_set)
    assert [line["update"] for line in log.read_log(out)] == [1, 2, 3, 4, 5]


def test_another_run_begins_another_log(run, data_set):
    args = {"report_to": "curves", "logging_steps": 1}
    fit(run(max_steps=3, **args), data_set)
    fit(run(max_steps=2, overwrite_output_dir=True, **args), data_set)
    assert [line["update"] for line in log.read_log(Path(run().output_dir))] == [1, 2]
