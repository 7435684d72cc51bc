"""Runs that go on with another number of processes, on machines that are lost or share no folder, and that wait."""

import contextlib
import json
import multiprocessing
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from multiprocessing.process import BaseProcess as Process
from multiprocessing.synchronize import Barrier
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch
from safetensors.torch import load_file
from torch.distributed import DistStoreError, TCPStore
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

import run_glue
from elmo_gpt_bert.training import checkpoints, global_batch, loop, rendezvous, waiting
from elmo_gpt_bert.training.checksums import write_checksums
from elmo_gpt_bert.training.errors import InputError, LaunchError
from tests.conftest import ROOT
from tests.glue_sample import write_model, write_task, write_vocabulary
from tests.launched import kill_after
from tests.processes import fork, wait
from tests.run_samples import make_run
from tests.test_resume import outcome
from tests.tiny_run import prepare


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


# Another number of processes


def test_a_run_goes_on_with_other_numbers_of_processes_and_says_that_dropout_draws_others(flags, tmp_path, capfd):
    two = [*flags, *with_batch(2, "--max_steps", "2")]
    assert wait(fork(partial(run_glue.main, two), 2)) == [0, 0], capfd.readouterr().err
    run_glue.main([*flags, *with_batch(2, "--max_steps", "4", "--resume", accumulated=2)])
    said = (
        "was written by 2 processes, now there are 1: each update keeps its samples, and dropout draws other numbers"
    )
    assert capfd.readouterr().out.count(said) == 1
    four = [*flags, *with_batch(1, "--max_steps", "7", "--resume")]
    assert wait(fork(partial(run_glue.main, four), 4)) == [0] * 4, capfd.readouterr().err
    assert capfd.readouterr().out.count("was written by 1 processes, now there are 4") == 1
    run_glue.main([*flags, *with_batch(4, "--max_steps", "7"), "--output_dir", str(tmp_path / "whole")])
    assert_close(tmp_path / "out", tmp_path / "whole")
    with pytest.raises(ValueError, match=r"with samples of an update 4, not 2 \(--per_device_train_batch_size x"):
        run_glue.main([*flags, *with_batch(2, "--max_steps", "7", "--resume")])


@pytest.mark.parametrize("script", ["glue", "ner", "squad", "swag"])
def test_each_script_goes_on_with_two_one_and_two_processes_over_the_ends_of_epochs(script, tmp_path, capfd):
    main, argv = make_run(tmp_path, f"bert {script}")
    two = [*argv, *with_batch(2, "--output_dir", str(tmp_path / "out"), "--resume")]  # three to six updates an epoch
    assert wait(fork(partial(main, [*two, "--max_steps", "2"]), 2)) == [0, 0], capfd.readouterr().err
    main([*two, "--gradient_accumulation_steps", "2", "--max_steps", "5"])
    assert wait(fork(partial(main, [*two, "--max_steps", "9"]), 2)) == [0, 0], capfd.readouterr().err
    main([*argv, *with_batch(4), "--max_steps", "9", "--output_dir", str(tmp_path / "whole")])
    assert_close(tmp_path / "out", tmp_path / "whole")
    said = capfd.readouterr().out
    assert "epoch 2/2" in said and "was written by 2 processes, now there are 1" in said
    assert "was written by 1 processes, now there are 2" in said


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
        batch, steps = global_batch.share(size, largest)
        possible = [each for each in range(1, largest + 1) if size % each == 0]
        assert batch * steps == size and batch == max(possible)


def test_a_run_that_is_restarted_by_its_launcher_keeps_its_batch(run, tmp_path, capsys):
    def began(processes: int, **sizes: int) -> None:
        (tmp_path / "out").mkdir(exist_ok=True)
        values = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 1, "processes": processes}
        (tmp_path / "out" / ".batch.json").write_text(json.dumps(values | sizes), encoding="utf-8")

    def sizes(**changes: object) -> tuple[int, int]:
        args = global_batch.keep_global_batch(run(**changes))
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
    global_batch.write_batch(tmp_path / "out", run(), processes=2)  # of four examples each
    monkeypatch.setattr(global_batch, "PartialState", lambda: SimpleNamespace(num_processes=3, is_main_process=True))
    with pytest.raises(InputError, match="2 processes and 8 examples in an update, which 3 processes cannot share"):
        global_batch.keep_global_batch(run(resume=True))


def test_where_random_states_are_missing_draws_follow_from_seed_and_update(run, tmp_path):
    accelerator, *_ = prepare(run())

    def draw(update: int, written_by: int, **changes: int) -> torch.Tensor:
        here = SimpleNamespace(accelerator=accelerator, args=run(**changes), path=str)
        checkpoints.Checkpoints._restore_draws(here, tmp_path, update, written_by)
        return torch.rand(3)

    first = draw(6, written_by=1)
    assert torch.equal(draw(6, written_by=2), first)
    assert not any(torch.equal(other, first) for other in (draw(7, written_by=1), draw(6, written_by=1, seed=1)))


def test_a_finished_seed_is_the_same_run_whatever_its_number_of_processes(run):
    def record(batch: int, processes: int) -> dict:
        sizes = {"per_device_train_batch_size": batch, "gradient_accumulation_steps": 1}
        return {"args": sizes, "hardware": {"processes": processes}}

    args = run(gradient_accumulation_steps=2)  # eight examples in an update, of one process
    assert global_batch.with_batch_of(record(2, processes=4), args) == run(per_device_train_batch_size=2)
    assert global_batch.with_batch_of(record(2, processes=2), args) == args
    assert global_batch.with_batch_of({"args": {}}, args) == args


# Machines without a shared folder


def as_on_two_machines(tmp_path: Path, argv: list[str]) -> None:
    """What one of two processes does, each on a machine with a folder of its own, in which the runs' folders are."""
    rank = int(os.environ["RANK"])
    os.environ["LOCAL_RANK"] = "0"

    def main(*more: str, folder: Path) -> None:
        run_glue.main([*argv, *more, "--output_dir", str(folder / "out")])

    machines = [tmp_path / "first", tmp_path / "second"]
    main("--max_steps", "4", folder=machines[rank])
    with pytest.raises(FileExistsError, match="--output_dir .*first/out exists and is not empty"):
        main("--max_steps", "4", folder=machines[rank])
    shutil.copytree(tmp_path / "first", tmp_path / f"of-{rank}")  # as it was
    with pytest.raises(ValueError, match=r"checkpoint-4 is with .* \(process 1\), and the run would go on from what"):
        main("--max_steps", "7", "--resume", folder=[tmp_path / "empty", tmp_path / "of-1"][rank])
    main("--max_steps", "7", "--resume", folder=machines[rank])
    main("--max_steps", "7", folder=tmp_path / "shared")


def test_machines_without_a_shared_folder_save_and_resume_through_the_first(flags, tmp_path, capfd):
    write_model(tmp_path, hidden_dropout_prob=0.2, attention_probs_dropout_prob=0.2)
    run = partial(as_on_two_machines, tmp_path, [*flags, *with_batch(2)])
    assert wait(fork(run, 2)) == [0, 0], capfd.readouterr().err
    assert outcome(tmp_path / "first" / "out") == outcome(tmp_path / "shared" / "out")
    assert not (tmp_path / "second").exists() and not (tmp_path / "empty" / "out").exists()
    hidden = [path for path in tmp_path.rglob(".*") if path.name.startswith(".")]
    assert hidden == []
    said = capfd.readouterr().out
    places = (
        r"--output_dir \S+first/out of \S+ \(process 0\) is not shared: .* none with \S+ \(process 1\); to --resume"
    )
    assert len(re.findall(places, said)) == 2 and "shared/out of" not in said
    assert "draws other numbers" not in said


# Waiting


def stopped_in_turn(tmp_path: Path, argv: list[str]) -> None:
    """What one of two processes does: in the first run, each stops in one update; in the last, the second is lost."""
    rank, update = int(os.environ["RANK"]), loop._Training.update
    waiting.PATIENCE, waiting.PULSE = 1.0, 0.1

    def update_and_stop(self, *parts):
        update(self, *parts)
        if self.progress.update == 1 + 2 * rank:
            os.kill(os.getpid(), signal.SIGSTOP)

    def update_and_end(self, *parts):
        update(self, *parts)
        if self.progress.update == 2 and rank == 1:
            os._exit(3)

    loop._Training.update = update_and_stop
    run_glue.main([*argv, "--output_dir", str(tmp_path / "stopped")])
    group = torch.distributed.distributed_c10d._get_default_group()
    assert group._get_backend(torch.device("cpu")).options._timeout == timedelta(seconds=77)
    loop._Training.update = update
    run_glue.main([*argv, "--output_dir", str(tmp_path / "whole")])
    loop._Training.update = update_and_end
    with pytest.raises(LaunchError, match=r"process 0 lost another one, or waited for it for more than 77 s \(--ddp"):
        run_glue.main([*argv, "--output_dir", str(tmp_path / "lost")])


def test_a_process_that_waits_says_for_whom_and_goes_on_to_the_same_bits(flags, tmp_path, capfd):
    argv = [*flags, *with_batch(2, "--max_steps", "5", "--ddp_timeout", "77")]
    processes, said = fork(partial(stopped_in_turn, tmp_path, argv), 2), ""
    # The first process keeps the store, and does not answer for it either.
    for rank, which in enumerate(
        (r", or its launcher, which does not answer at \S+", r" of \S+, which does not answer")
    ):
        waits = rf"process {1 - rank} of \S+ has been at update {1 + 2 * rank} for \d+ s: it waits for process {rank}"
        while not re.search(rf"{waits}{which}\. It gives up after 77 s, --ddp_timeout\n", said):
            assert [each.exitcode for each in processes] == [None, None], said
            time.sleep(0.05)
            said += capfd.readouterr().err
        os.kill(processes[rank].pid, signal.SIGCONT)
    assert wait(processes) == [0, 3]
    said += capfd.readouterr().err
    assert outcome(tmp_path / "stopped") == outcome(tmp_path / "whole")
    assert {*re.findall(r"process (\d) of \S+ goes on after \d+ s\n", said)} == {"0", "1"}
    assert all(rank != peer for rank, peer in re.findall(r"process (\d) of .* it waits for process (\d)", said))


# Checkpoints of another version


def test_a_checkpoint_that_names_its_number_of_processes_goes_on(flags, tmp_path, capsys):
    run_glue.main([*flags, *with_batch(4, "--max_steps", "2")])
    path = tmp_path / "out" / "checkpoint-2" / "progress.json"
    record = json.loads(path.read_text(encoding="utf-8"))
    identity = record["identity"]
    assert identity.pop("samples of an update") == 4 and identity.pop("sharding") is None
    identity |= {"processes": 1, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 1}
    path.write_text(json.dumps(record | {"identity": identity | {"distribution": "NO"}}), encoding="utf-8")
    write_checksums(path.parent)
    run_glue.main([*flags, *with_batch(4, "--max_steps", "4", "--resume")])
    assert "draws other numbers" not in capsys.readouterr().out
    run_glue.main([*flags, *with_batch(4, "--max_steps", "4"), "--output_dir", str(tmp_path / "whole")])
    assert outcome(tmp_path / "out") == outcome(tmp_path / "whole")
    with pytest.raises(ValueError, match="with samples of an update 4, not 3"):
        run_glue.main([*flags, *with_batch(3, "--max_steps", "4", "--resume")])
    (tmp_path / "out" / "checkpoint-4" / "random_states_0.pkl").unlink()  # of a machine without a shared folder
    write_checksums(tmp_path / "out" / "checkpoint-4")
    run_glue.main([*flags, *with_batch(2, "--max_steps", "4", "--resume", accumulated=2)])
    assert "checkpoint-4 has no random states for 1 of the processes: each update" in capsys.readouterr().out


# A machine that is lost


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
    os.environ |= {"ACCELERATE_USE_CPU": "true", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1"}
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
    assert "out/checkpoint-2 was written by 2 processes, now there are 1" in said
    run_glue.main([*flags, *with_batch(4, "--max_steps", "6"), "--output_dir", str(tmp_path / "whole")])
    assert_close(tmp_path / "out", tmp_path / "whole")


def test_a_job_that_lost_a_machine_is_queued_again_and_ends_with_the_same_bits(flags, tmp_path, capfd):
    write_model(tmp_path, hidden_dropout_prob=0.2, attention_probs_dropout_prob=0.2)
    job = [*flags, *with_batch(2, "--max_steps", "6", "--resume")]
    other = lose(start_agents(job, (2, 2), loses=True), tmp_path / "out" / "checkpoint-2", capfd)
    assert wait([other], 250) == [1] and not (tmp_path / "out" / "metrics.json").exists()
    assert re.search(r"process \d lost another one, or waited for it .* --resume goes on", capfd.readouterr().err)
    assert wait(start_agents(job, (2, 2), loses=False), 120) == [0, 0], capfd.readouterr().err
    assert "resumed from" in capfd.readouterr().out
    assert wait(fork(partial(run_glue.main, [*job, "--output_dir", str(tmp_path / "whole")]), 2)) == [0, 0]
    assert outcome(tmp_path / "out") == outcome(tmp_path / "whole")


# A process that is killed


LAUNCHERS = {  # as many restarts as there are kills
    "torchrun": ["--standalone", "--nproc-per-node", "2", "--max-restarts", "2"],
    "accelerate": ["--config_file", "configs/accelerate/cpu.yaml", "--main_process_port", "0", "--max_restarts", "2"],
}


def launch(launcher: str, argv: list[str], seconds: float = 500) -> tuple[int, str]:
    """Starts a launcher by itself; its status, negative if it did not end in time, and what it and its run said."""
    command = [sys.executable, "-m", "tests.launched", launcher, *LAUNCHERS[launcher], "run_glue.py", *argv]
    environment = os.environ | {"ACCELERATE_USE_CPU": "true"}
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=said, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(seconds)
        finally:
            with contextlib.suppress(ProcessLookupError):  # all have ended
                os.killpg(process.pid, signal.SIGKILL)
        said.seek(0)
        return process.wait(), said.read()


@pytest.mark.timeout(600)  # three starts of everything
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_launcher_starts_a_run_again_whose_processes_are_killed_and_it_ends_with_the_same_bits(
    flags, tmp_path, launcher
):
    write_model(tmp_path, hidden_dropout_prob=0.2, attention_probs_dropout_prob=0.2)
    argv = [*flags, *with_batch(2, "--max_steps", "7", "--resume")]
    status, said = launch(launcher, argv)
    assert status == 0, said
    assert [f"checkpoint-{update}\n" in said for update in (2, 4, 6)] == [True, True, False], said
    assert wait(fork(partial(run_glue.main, [*argv, "--output_dir", str(tmp_path / "whole")]), 2)) == [0, 0]
    assert outcome(tmp_path / "out") == outcome(tmp_path / "whole")


@pytest.mark.parametrize(("processes", "kind"), [("1", RuntimeError), ("2", LaunchError)])
def test_only_one_of_several_processes_can_lose_another(processes, kind, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", processes)
    with pytest.raises(RuntimeError) as error, waiting._lost_processes_in_one_line(60):
        raise RuntimeError("a socket of something else is closed")
    assert error.type is kind


def test_processes_of_a_start_meet_and_are_not_misled_by_a_name_of_an_earlier_one():
    connect = partial(TCPStore, "127.0.0.1", timeout=timedelta(seconds=20), wait_for_workers=False)
    launchers, store = connect(0, is_master=True), connect(0, is_master=True)
    launchers.set("zoo/name/1", "of one that has ended")
    with ThreadPoolExecutor() as pool:
        other = pool.submit(rendezvous._follow, connect(launchers.port), "127.0.0.1", "1", timedelta(seconds=20))
        rendezvous._invite(launchers, store, 2, 20)
        assert other.result().port == store.port
    with pytest.raises(DistStoreError, match=r"processes \[1, 2\] have not come") as error:
        rendezvous._invite(launchers, connect(0, is_master=True), 3, 0)
    assert waiting.LOST.search(str(error.value))
