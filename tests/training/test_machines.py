"""Runs that go on with another number of processes, and on machines that are lost."""

import inspect
import json
import multiprocessing
import os
import signal
import socket
import time
from functools import partial
from multiprocessing.process import BaseProcess as Process
from multiprocessing.synchronize import Barrier
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch
from safetensors.torch import load_file
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

import run_glue
from elmo_gpt_bert.training import launching, loop
from elmo_gpt_bert.training.errors import InputError
from elmo_gpt_bert.training.identity import SAMPLES, first_difference, run_identity
from tests.support.glue_sample import write_model, write_task, write_vocabulary
from tests.support.processes import fork, wait
from tests.support.run_samples import make_run
from tests.training.test_resume import outcome


pytestmark = pytest.mark.slow


@pytest.fixture
def flags(tmp_path) -> list[str]:
    """A run of RTE in miniature: three updates an epoch, of 4, 4 and 1 examples, without dropout."""
    write_task(tmp_path, "RTE")
    argv = ["--model_name_or_path", str(write_model(tmp_path)), "--tokenizer_name", str(write_vocabulary(tmp_path))]
    argv += ["--task_name", "rte", "--data_dir", str(tmp_path), "--do_train", "--max_seq_length", "24"]
    argv += ["--learning_rate", "0.01", "--adam_epsilon", "0.001", "--lr_scheduler_type", "constant"]
    return [*argv, "--save_strategy", "steps", "--save_steps", "2", "--output_dir", str(tmp_path / "out")]


def with_batch(size: int, *more: str, accumulated: int = 1) -> list[str]:
    sizes = ["--per_device_train_batch_size", str(size), "--gradient_accumulation_steps", str(accumulated)]
    return [*sizes, *more]


def assert_close(folder: Path, other: Path) -> None:
    """The weights are equal up to the order of sums."""
    ours, theirs = (load_file(path / "model.safetensors") for path in (folder, other))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)


def kill_after(moment: int | None, argv: list[str]) -> None:
    """A run whose process is killed after this update."""
    update = loop._Training.update

    def update_and_end(self, *parts) -> None:
        update(self, *parts)
        if self.progress.update == moment:
            os.kill(os.getpid(), signal.SIGKILL)

    loop._Training.update = update_and_end
    run_glue.main(argv)


# Another number of processes


DROPOUT = {"hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.2}


def test_a_run_goes_on_with_other_numbers_of_processes_and_says_when_dropout_draws_others(flags, tmp_path, capfd):
    two = [*flags, *with_batch(2, "--max_steps", "2")]
    assert wait(fork(partial(run_glue.main, two), 2)) == [0, 0], capfd.readouterr().err
    run_glue.main([*flags, *with_batch(2, "--max_steps", "4", "--resume", accumulated=2)])
    assert capfd.readouterr().out.count("was written with processes 2, now 1: the last bits may differ\n") == 1
    four = [*flags, *with_batch(1, "--max_steps", "7", "--resume")]
    assert wait(fork(partial(run_glue.main, four), 4)) == [0] * 4, capfd.readouterr().err
    said = "was written with processes 1, now 4; per_device_train_batch_size 2, now 1: the last bits may differ, and "
    assert capfd.readouterr().out.count(f"{said}dropout draws other numbers\n") == 1
    run_glue.main([*flags, *with_batch(4, "--max_steps", "7"), "--output_dir", str(tmp_path / "whole")])
    assert_close(tmp_path / "out", tmp_path / "whole")
    with pytest.raises(ValueError, match=r"with samples of an update 4, not 2 \(--per_device_train_batch_size x"):
        run_glue.main([*flags, *with_batch(2, "--max_steps", "7", "--resume")])


def test_dropout_draws_the_same_numbers_whatever_the_number_of_processes(flags, tmp_path, capfd):
    write_model(tmp_path, **DROPOUT)
    two = [*flags, *with_batch(2, "--resume", "--max_steps")]
    assert wait(fork(partial(run_glue.main, [*two, "1"]), 2)) == [0, 0], capfd.readouterr().err
    run_glue.main([*two, "2", "--gradient_accumulation_steps", "2"])
    assert wait(fork(partial(run_glue.main, [*two, "4"]), 2)) == [0, 0], capfd.readouterr().err
    run_glue.main([*flags, *with_batch(2, "--max_steps", "4", accumulated=2), "--output_dir", str(tmp_path / "whole")])
    assert_close(tmp_path / "out", tmp_path / "whole")


@pytest.mark.parametrize("script", ["ner", "squad", "swag"])
def test_each_other_script_goes_on_with_two_one_and_two_processes_over_the_ends_of_epochs(script, tmp_path, capfd):
    main, argv = make_run(tmp_path, f"bert {script}")
    two = [*argv, *with_batch(2, "--output_dir", str(tmp_path / "out"), "--resume")]  # three to six updates an epoch
    assert wait(fork(partial(main, [*two, "--max_steps", "2"]), 2)) == [0, 0], capfd.readouterr().err
    main([*two, "--gradient_accumulation_steps", "2", "--max_steps", "4"])
    assert wait(fork(partial(main, [*two, "--max_steps", "7"]), 2)) == [0, 0], capfd.readouterr().err
    main([*argv, *with_batch(4), "--max_steps", "7", "--output_dir", str(tmp_path / "whole")])
    assert_close(tmp_path / "out", tmp_path / "whole")
    said = capfd.readouterr().out
    assert "epoch 2/2" in said and "was written with processes 2, now 1:" in said
    assert "was written with processes 1, now 2:" in said


def test_a_run_that_begins_before_all_processes_are_there_keeps_its_smaller_updates(flags, tmp_path, capfd):
    argv = [*flags, *with_batch(2, "--max_steps", "6", "--resume")]
    assert wait(fork(partial(kill_after, 3, argv))) == [-signal.SIGKILL]
    assert wait(fork(partial(run_glue.main, argv), 2)) == [0, 0], capfd.readouterr().err
    said = "began with 1 processes, now 2: --per_device_train_batch_size 1 --gradient_accumulation_steps 1 keep 2"
    assert said in capfd.readouterr().out
    run_glue.main([*argv, "--output_dir", str(tmp_path / "whole")])
    assert_close(tmp_path / "out", tmp_path / "whole")


@pytest.mark.parametrize("size", [1, 6, 12, 35])
def test_an_update_has_the_fewest_equal_batches_that_are_not_too_large(size):
    for largest in range(1, 40):
        batch, steps = launching.share(size, largest)
        possible = [each for each in range(1, largest + 1) if size % each == 0]
        assert batch * steps == size and batch == max(possible)


def test_a_run_that_is_restarted_by_its_launcher_keeps_its_batch(run, tmp_path, capsys):
    def began(processes: int, **sizes: int) -> None:
        (tmp_path / "out").mkdir(exist_ok=True)
        values = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 1, "processes": processes}
        (tmp_path / "out" / ".batch.json").write_text(json.dumps(values | sizes), encoding="utf-8")

    def sizes(**changes: object) -> tuple[int, int]:
        args = launching.keep_global_batch(run(**changes))
        return args.per_device_train_batch_size, args.gradient_accumulation_steps

    began(processes=3)
    assert sizes(resume=True) == (4, 3)
    assert "began with 3 processes, now 1" in capsys.readouterr().out
    assert sizes(resume=True, gradient_accumulation_steps=2) == (4, 2)  # of the user's own
    assert sizes() == (4, 1)
    assert json.loads((tmp_path / "out" / ".batch.json").read_text(encoding="utf-8"))["processes"] == 1
    (tmp_path / "out" / ".batch.json").unlink()
    (tmp_path / "out" / "checkpoint-2").mkdir()
    assert sizes(resume=True) == (4, 1) and not (tmp_path / "out" / ".batch.json").exists()


def test_processes_that_cannot_share_an_update_are_refused(run, tmp_path, monkeypatch):
    (tmp_path / "out").mkdir()
    began = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 1, "processes": 2}
    (tmp_path / "out" / ".batch.json").write_text(json.dumps(began), encoding="utf-8")
    monkeypatch.setattr(launching, "PartialState", lambda: SimpleNamespace(num_processes=3, is_main_process=True))
    with pytest.raises(InputError, match="2 processes and 8 examples in an update, which 3 processes cannot share"):
        launching.keep_global_batch(run(resume=True))


def test_a_finished_seed_is_the_same_run_whatever_its_number_of_processes(run):
    args, other = run(gradient_accumulation_steps=2), run(per_device_train_batch_size=2)
    identity = run_identity(args, processes=1)  # eight examples in an update
    assert first_difference(identity, run_identity(other, processes=4)) is None
    assert first_difference(identity, run_identity(other, processes=2)) == SAMPLES


# Folders


def as_on_two_machines(tmp_path: Path, argv: list[str]) -> None:
    """What one of two processes does, each on a machine with a folder of its own."""
    folder = tmp_path / os.environ["RANK"]
    with pytest.raises(
        InputError, match=r"--output_dir .*out is not shared: \S+ \(process 1\) does not see it: choose"
    ):
        run_glue.main([*argv, "--output_dir", str(folder / "out")])
    assert [path.name for path in (folder / "out").glob("*")] == ["checkpoint-2"] * ("--resume" in argv)


@pytest.mark.parametrize("resumes", [False, True])
def test_machines_that_do_not_share_the_output_folder_are_refused_and_nothing_is_left(resumes, flags, tmp_path, capfd):
    """Also where both have a checkpoint of the same name, which may be of another run."""
    for name in ("0/out/checkpoint-2", "1/out/checkpoint-2") if resumes else ("0", "1"):
        (tmp_path / name).mkdir(parents=True)
    flags = [*flags, *["--resume"] * resumes]
    assert wait(fork(partial(as_on_two_machines, tmp_path, flags), 2)) == [0, 0], capfd.readouterr().err


# A machine that is lost


ENVIRONMENT = {"ACCELERATE_USE_CPU": "true", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1"}


def be_an_agent() -> None:
    """In a process that does what torchrun does. Its records need no names of the functions that write them.

    To find these out of a stack as deep as that of a test takes more time than all the rest.
    """
    os.environ |= ENVIRONMENT
    inspect.stack = lambda *_: []


def run_until_lost(argv: list[str], is_lost: bool) -> None:
    """The work of a process. On the machine that is lost it stays at its third update, until it is killed."""
    update = loop._Training.update

    def update_and_wait(self, *parts) -> None:
        update(self, *parts)
        while self.progress.update == 3 and is_lost:
            time.sleep(1)

    loop._Training.update = update_and_wait
    run_glue.main(argv)


def agent(argv: list[str], port: int, machines: tuple[int, int], ready: Barrier, is_host: bool, is_lost: bool) -> None:
    """What torchrun does on each of so many `machines`, at least and at most. They meet at the host."""
    be_an_agent()
    ready.wait(60)
    # On a busy machine, the second agent may still come seconds after the first, which would then begin alone. Each
    # sign of life of the first makes the second one try again, so it has to come more rarely than a try takes.
    meeting = {"is_host": is_host, "last_call_timeout": 20, "keep_alive_interval": 3, "keep_alive_max_attempt": 3}
    config = LaunchConfig(
        min_nodes=machines[0],
        max_nodes=machines[1],
        nproc_per_node=1,
        run_id="run",
        rdzv_backend="c10d",
        rdzv_endpoint=f"127.0.0.1:{port}",
        local_addr="127.0.0.1",  # no name server is asked
        rdzv_configs=meeting,
        max_restarts=1 if machines[0] == 1 else 0,
        start_method="fork",  # its processes need not import everything again
    )
    elastic_launch(config, run_until_lost)(argv, is_lost)


def start_agents(argv: list[str], machines: tuple[int, int], loses: bool) -> list[Process]:
    """The agent of the machine at which the two meet, and that of the other one, which may be lost."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    start = partial(agent, argv, port, machines, multiprocessing.get_context("fork").Barrier(2))
    return [*fork(partial(start, is_host=True, is_lost=False)), *fork(partial(start, is_host=False, is_lost=loses))]


def lose(agents: list[Process], checkpoint: Path, capfd) -> Process:
    """Kills the second machine when the checkpoint is there, as where the power fails; the other one."""
    other, lost = agents
    while not checkpoint.exists():
        assert other.is_alive() and lost.is_alive(), capfd.readouterr().err
        time.sleep(0.05)
    for process in [*psutil.Process(lost.pid).children(recursive=True), lost]:
        process.kill()
    return other


def test_a_machine_that_is_lost_leaves_the_other_to_finish_the_run(flags, tmp_path, capfd):
    agents = start_agents([*flags, *with_batch(2, "--max_steps", "6", "--resume")], (1, 2), loses=True)
    other = lose(agents, tmp_path / "out" / "checkpoint-2", capfd)
    assert wait([other], 250) == [0], capfd.readouterr().err
    said = capfd.readouterr().out
    assert "--per_device_train_batch_size 2 --gradient_accumulation_steps 2 keep 4 examples in an update" in said, said
    assert "out/checkpoint-2 was written with processes 2, now 1:" in said
    run_glue.main([*flags, *with_batch(4, "--max_steps", "6"), "--output_dir", str(tmp_path / "whole")])
    assert_close(tmp_path / "out", tmp_path / "whole")


def test_a_job_that_lost_a_machine_is_queued_again_and_ends_with_the_same_bits(flags, tmp_path, capfd):
    write_model(tmp_path, **DROPOUT)
    job = [*flags, *with_batch(2, "--max_steps", "6", "--resume")]
    other = lose(start_agents(job, (2, 2), loses=True), tmp_path / "out" / "checkpoint-2", capfd)
    assert wait([other], 250) == [1] and not (tmp_path / "out" / "metrics.json").exists()
    assert wait(start_agents(job, (2, 2), loses=False), 120) == [0, 0], capfd.readouterr().err
    assert "resumed from" in capfd.readouterr().out
    assert wait(fork(partial(run_glue.main, [*job, "--output_dir", str(tmp_path / "whole")]), 2)) == [0, 0]
    assert outcome(tmp_path / "out") == outcome(tmp_path / "whole")


# A process that is killed


UPDATES = {("0", "1"): 3, ("1", "0"): 5}  # (start, process) -> the update after which it is killed, one in each start


def run_and_be_killed(argv: list[str]) -> None:
    """What each process of torchrun does."""
    kill_after(UPDATES.get((os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["RANK"])), argv)


def torchrun(argv: list[str]) -> None:
    """What `torchrun --standalone --nproc-per-node 2 --max-restarts 2` does: as many restarts as there are kills."""
    be_an_agent()
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=2,
        run_id="run",
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        local_addr="127.0.0.1",
        max_restarts=2,
        start_method="fork",
    )
    elastic_launch(config, run_and_be_killed)(argv)


def test_torchrun_starts_a_run_again_whose_processes_are_killed_and_it_ends_with_the_same_bits(flags, tmp_path, capfd):
    write_model(tmp_path, **DROPOUT)
    argv = [*flags, *with_batch(2, "--max_steps", "7", "--resume")]
    statuses, (said, errors) = wait(fork(partial(torchrun, argv)), 250), capfd.readouterr()
    assert statuses == [0], errors
    assert [f"checkpoint-{update}\n" in said for update in (2, 4, 6)] == [True, True, False], said
    assert wait(fork(partial(run_glue.main, [*argv, "--output_dir", str(tmp_path / "whole")]), 2)) == [0, 0]
    assert outcome(tmp_path / "out") == outcome(tmp_path / "whole")
