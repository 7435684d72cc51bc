"""The curves of a run in TensorBoard's files. tests/clients has the other trackers."""

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from elmo_gpt_bert.training import launching, log
from tests.support.tiny_run import fit


RATES = {2: 0.01 / 3, 4: 0.01, 6: 0.01 / 3}  # of six updates, three of them warm-up


def test_tensorboard_receives_losses_and_learning_rates(run, data_set, tmp_path):
    fit(run(report_to="tensorboard", logging_steps=2, max_steps=6, warmup_ratio=0.5), data_set)
    (events,) = (tmp_path / "out" / "runs").glob("events*")
    curves = EventAccumulator(str(events)).Reload()
    assert {event.step: event.value for event in curves.Scalars("learning_rate")} == pytest.approx(RATES)
    assert [event.step for event in curves.Scalars("train_loss")] == [2, 4, 6]


@pytest.mark.parametrize("stops_early", [False, True])
def test_a_run_of_fewer_updates_than_logging_steps_reports_its_loss_once(run, data_set, tmp_path, stops_early):
    changes = {"max_steps": 5, "eval_steps": 1, "do_eval": True, "early_stopping_patience": 2 if stops_early else None}
    scores = {"": data_set}, lambda *_: {"accuracy": 0.5}
    results, _ = fit(run(report_to="tensorboard", **changes), data_set, *scores)
    (events,) = (tmp_path / "out" / "runs").glob("events*")
    curves = EventAccumulator(str(events)).Reload()
    (event,) = curves.Scalars("train_loss")
    assert event.step == results["train_updates"] == (3 if stops_early else 5)
    assert event.value == pytest.approx(results["train_loss"])


def test_a_run_that_stops_early_where_a_log_line_is_due_reports_its_loss_once(run, data_set, capsys):
    changes = {"max_steps": 5, "eval_steps": 1, "do_eval": True, "early_stopping_patience": 2, "logging_steps": 3}
    fit(run(**changes), data_set, {"": data_set}, lambda *_: {"accuracy": 0.5})
    lines = capsys.readouterr().out.splitlines()
    assert len([line for line in lines if "learning_rate" in line]) == 1
    assert "stopped early: update 1 was better" in lines


@pytest.mark.parametrize(
    ("trackers", "remedy"),
    [
        ("tensorboard", "Mend it, or choose another tracker"),
        ("curves,wandb", "WANDB_MODE=offline keeps wandb's curves here"),
    ],
)
def test_a_tracker_that_cannot_start_is_one_line_with_its_remedy(run, monkeypatch, trackers, remedy):
    def start(*_, **__):
        raise OSError("no space\nleft.")

    accelerator = launching.make_accelerator(run(report_to="none"))
    monkeypatch.setattr(accelerator, "init_trackers", start)
    with pytest.raises(RuntimeError, match=f"^--report_to {trackers}: no space left. {remedy}$"):
        log.start_trackers(run(report_to=trackers), accelerator, 0)


def test_a_new_training_has_no_curves_of_the_one_that_it_overwrites(run, data_set, tmp_path):
    fit(run(report_to="curves,tensorboard", max_steps=2), data_set)
    (tmp_path / "out" / "runs" / "notes.txt").touch()
    fit(run(overwrite_output_dir=True, max_steps=1, save_strategy="no"), data_set)
    assert [path for path in (tmp_path / "out").rglob("*") if path.is_file()] == [tmp_path / "out/runs/notes.txt"]
