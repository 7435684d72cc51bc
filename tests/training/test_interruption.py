"""Runs that Ctrl-C or a scheduler ends, which save a checkpoint and go on from it to the same bits."""

import os
import signal
import time

import pytest
import transformers

import run_glue
from elmo_gpt_bert.training import checkpoints, command_line, loop
from elmo_gpt_bert.training.command_line import Interrupted
from tests.support.processes import fork, wait
from tests.support.tiny_run import load_config
from tests.training.test_resume import NONE, outcome, run_with_dropout


@pytest.fixture
def flags(tmp_path) -> list[str]:
    return run_with_dropout(tmp_path, NONE)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> tuple[bytes, dict]:
    """The outcome of the run that nothing has stopped."""
    folder = tmp_path_factory.mktemp("whole")
    run_glue.main([*run_with_dropout(folder, NONE), "--output_dir", str(folder / "out")])
    return outcome(folder / "out")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_told_to_stop_saves_and_goes_on_to_the_same_bits(flags, whole, tmp_path, monkeypatch, number):
    argv = [*flags, "--output_dir", str(tmp_path / "out")]
    update = loop._Training.update

    def told_at_7(self, *args):
        update(self, *args)
        if self.progress.update == 7:
            os.kill(os.getpid(), number)

    handlers = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with monkeypatch.context() as patch:
        patch.setattr(loop._Training, "update", told_at_7)
        with pytest.raises(
            command_line.Interrupted, match=r"stopped at update 7 of 10.*checkpoint-7 is complete.*--resume"
        ):
            run_glue.main(argv)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == handlers
    run_glue.main([*argv, "--resume"])
    assert outcome(tmp_path / "out") == whole


@pytest.mark.slow
def test_workers_let_a_run_that_is_told_to_stop_with_them_save_and_go_on(flags, whole, tmp_path, monkeypatch, capfd):
    argv = [*flags, "--output_dir", str(tmp_path / "out")]
    update = loop._Training.update

    def wait_at_7(self, *args):
        update(self, *args)
        if self.progress.update == 7:
            (tmp_path / "at-7").touch()
            while not self.signals:
                time.sleep(0.01)

    def with_workers() -> None:
        os.setpgid(0, 0)
        run_glue.main([*argv, "--dataloader_num_workers", "2"])

    with monkeypatch.context() as patch:
        patch.setattr(loop._Training, "update", wait_at_7)
        (started,) = fork(with_workers)
    while started.is_alive() and not (tmp_path / "at-7").exists():
        time.sleep(0.01)
    os.killpg(started.pid, signal.SIGTERM)  # all processes of the run, as a scheduler does
    assert wait([started]) == [130]
    error = capfd.readouterr().err
    assert "checkpoint-7 is complete" in error and error.count("stopping after this update") == 1
    run_glue.main([*argv, "--resume"])  # without workers
    assert outcome(tmp_path / "out") == whole


@pytest.mark.slow
def test_of_two_processes_one_that_is_told_to_stop_stops_both(flags, tmp_path, monkeypatch, capfd):
    argv = [*flags, "--output_dir", str(tmp_path / "out")]
    update = loop._Training.update

    def second_is_told(self, *args):
        update(self, *args)
        if self.progress.update == 4 and self.accelerator.process_index == 1:
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(loop._Training, "update", second_is_told)
        assert wait(fork(lambda: run_glue.main(argv), 2)) == [130, 130]
    assert capfd.readouterr().err.count("stopped at update 4 of 6") == 2
    assert wait(fork(lambda: run_glue.main([*argv, "--resume"]), 2)) == [0, 0]
    assert wait(fork(lambda: run_glue.main([*argv, "--output_dir", str(tmp_path / "whole")]), 2)) == [0, 0]
    assert outcome(tmp_path / "out") == outcome(tmp_path / "whole")


def test_a_run_told_to_stop_in_its_last_update_stops_too(flags, tmp_path, monkeypatch):
    argv = [*flags, "--output_dir", str(tmp_path / "out"), "--max_steps", "5"]
    update = loop._Training.update

    def told_at_5(self, *args):
        update(self, *args)
        if self.progress.update == 5:
            os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(loop._Training, "update", told_at_5)
        with pytest.raises(Interrupted, match="stopped at update 5 of 5.*--resume"):
            run_glue.main(argv)
    run_glue.main([*argv, "--resume"])
    assert outcome(tmp_path / "out")[1]["train_updates"] == 5


def test_a_run_told_to_stop_after_its_last_update_ends_at_once(flags, tmp_path, monkeypatch):
    def told(self, *_, **__) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        pytest.fail("went on")

    monkeypatch.setattr(checkpoints.Checkpoints, "check_weights", told)
    monkeypatch.setattr(checkpoints.Checkpoints, "save", lambda *_: None)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background processes ignore it
    try:
        with pytest.raises(KeyboardInterrupt):
            run_glue.main([*flags, "--output_dir", str(tmp_path / "out"), "--max_steps", "1"])
    finally:
        signal.signal(signal.SIGINT, before)


def test_ctrl_c_while_a_model_loads_is_no_error_of_the_model(run, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(transformers.AutoConfig, "from_pretrained", interrupted)
    with pytest.raises(KeyboardInterrupt):
        load_config(run(model_name_or_path="a/b"))


def test_a_scheduler_may_say_it_twice():
    with command_line.stop_signals() as received:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.01)
        assert received == [signal.SIGTERM, signal.SIGTERM]


def test_a_second_interruption_acts_at_once():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background processes ignore it
    try:
        interrupt_twice()
    finally:
        signal.signal(signal.SIGINT, before)


def interrupt_twice() -> None:
    with command_line.stop_signals() as received, pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
        assert received == [signal.SIGINT]
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(1)
