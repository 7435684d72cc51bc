"""The curves of a run: which there are, where they are drawn, and what happens without matplotlib."""

import sys

import pytest
from accelerate import PartialState

from elmo_gpt_bert.training.log import History, draw_curves, group_curves


RECORDS = [
    {"update": 2, "train_loss": 5.0, "train_loss_forward": 6.0, "learning_rate": 0.1, "device": "cpu"},
    {"update": 4, "train_loss": 4.0, "learning_rate": 0.2, "grad_norm": 3.5},
    {"update": 4, "eval_perplexity": 31.0, "eval_accuracy": 0.5},
    {"update": 6, "train_loss": float("nan"), "learning_rate": 0.1},
]


def test_a_curve_has_the_updates_at_which_its_number_was_logged_and_shares_a_panel_with_its_kind():
    panels = group_curves(RECORDS)
    assert list(panels) == ["loss", "perplexity", "learning_rate", "grad_norm", "eval_accuracy"]
    assert panels["loss"]["train_loss_forward"] == ([2], [6.0])
    assert panels["loss"]["train_loss"][0] == [2, 4, 6]
    assert panels["learning_rate"] == {"learning_rate": ([2, 4, 6], [0.1, 0.2, 0.1])}
    assert panels["perplexity"] == {"eval_perplexity": ([4], [31.0])}


@pytest.mark.slow
def test_curves_are_drawn_without_a_display_and_the_same_records_make_the_same_bytes(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)  # which would choose how to show them
    files = [tmp_path / name for name in ("curves.png", "again.png")]
    for file in files:
        draw_curves(RECORDS, file)
    assert files[0].read_bytes().startswith(b"\x89PNG\r\n")
    assert files[0].read_bytes() == files[1].read_bytes()
    assert sorted(tmp_path.iterdir()) == sorted(files)


def test_without_numbers_nothing_is_drawn(tmp_path):
    draw_curves([], tmp_path / "curves.png")
    draw_curves([{"update": 3}], tmp_path / "curves.png")
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_logged_nothing_has_no_curves(tmp_path):
    PartialState()
    History(tmp_path).finish()
    assert list(tmp_path.iterdir()) == []


def test_a_picture_that_cannot_be_written_is_one_error(tmp_path):
    with pytest.raises(OSError, match="^cannot write .*absent/curves.png: No such file or directory"):
        draw_curves(RECORDS[:1], tmp_path / "absent" / "curves.png")
