"""The log of a run as a file, over runs that were stopped and resumed."""

import errno
import json
import os
from pathlib import Path

import pytest
from accelerate import PartialState

from elmo_gpt_bert.training import files, log
from elmo_gpt_bert.training.errors import FileError
from elmo_gpt_bert.training.log import History


@pytest.fixture(autouse=True)
def no_picture(monkeypatch):
    PartialState()
    monkeypatch.setattr(log, "draw_curves", lambda records, path: path.write_text(str(len(records))))


def write_log(folder: Path, updates: list[int], resumes: bool, loss: float) -> list[tuple[int, float]]:
    """The lines of the file after a run, or a part of it, has logged these updates."""
    tracker = History(folder, resumes)
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


def test_another_run_begins_another_log(tmp_path):
    write_log(tmp_path, [2, 4], resumes=False, loss=5.0)
    assert write_log(tmp_path, [6], resumes=False, loss=3.0) == [(6, 3.0)]


def test_a_disk_that_is_full_for_a_while_ends_no_run_and_costs_no_line(tmp_path, monkeypatch, capsys):
    def full(path: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    tracker = History(tmp_path, resumes=False)
    with monkeypatch.context() as patch:
        patch.setattr(files, "sync", full)
        for update in (2, 4):
            tracker.log({"train_loss": 5.0}, step=update)
    warning = capsys.readouterr().err
    assert warning.count("No space left on device") == 1 and "The run goes on" in warning
    tracker.log({"train_loss": 5.0}, step=6)
    assert [line["update"] for line in log.read_log(tmp_path)] == [2, 4, 6]


def test_a_damaged_log_is_one_error(tmp_path):
    (tmp_path / "log.jsonl").write_text('{"update": 2\n{"update": 4}\n')
    with pytest.raises(FileError, match="log.jsonl is damaged .*: remove it, or restore it from a copy"):
        History(tmp_path, resumes=True).log({}, step=6)
