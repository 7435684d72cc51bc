"""Processes that prepare batches (--dataloader_num_workers): results do not depend on them, and on GPUs they run."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import run_blimp
from elmo_gpt_bert.training import batches, loop
from tests.conftest import ROOT
from tests.support.pairs_sample import write_gpt, write_pairs
from tests.support.run_samples import make_run
from tests.support.tiny_run import fit


RUNS = ["bert glue", "bert squad", "bert swag", "elmo ner", "masked_lm", "bilm"]  # each script, each kind of batches
CPU, GPU = torch.device("cpu"), torch.device("cuda")


def numbers(folder: Path) -> dict[str, object]:
    """metrics.json without the times."""
    record = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
    return {name: value for name, value in record.items() if isinstance(value, float) and "runtime" not in name}


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_the_workers_of_each_script_change_no_bit(name, tmp_path):
    main, argv = make_run(tmp_path, name)
    argv += ["--max_steps", "2", "--per_device_train_batch_size", "4", "--save_strategy", "no"]
    for workers in ("0", "2"):
        main([*argv, "--dataloader_num_workers", workers, "--output_dir", str(tmp_path / workers)])
    alone, helped = (load_file(tmp_path / workers / "model.safetensors") for workers in ("0", "2"))
    assert all(torch.equal(helped[name], weight) for name, weight in alone.items())
    assert numbers(tmp_path / "0") == numbers(tmp_path / "2")


def test_the_workers_of_the_script_on_pairs_change_no_bit(tmp_path):
    argv = [
        "--model_name_or_path",
        str(write_gpt(tmp_path)),
        "--data_file",
        str(write_pairs(tmp_path / "pairs.jsonl")),
    ]
    for workers in ("0", "2"):
        run_blimp.main([*argv, "--dataloader_num_workers", workers, "--output_dir", str(tmp_path / workers)])
    alone, helped = ((tmp_path / workers / "predictions.jsonl").read_text() for workers in ("0", "2"))
    assert helped == alone and numbers(tmp_path / "0") == numbers(tmp_path / "2")


def test_a_worker_that_is_killed_is_one_clear_error_and_ends_the_others(tmp_path, monkeypatch):
    main, argv = make_run(tmp_path, "bert glue")
    update, others = loop._Training.update, {*multiprocessing.active_children()}  # of earlier tests

    def kill_at_3(self, *args):
        update(self, *args)
        if self.progress.update == 3:
            os.kill(({*multiprocessing.active_children()} - others).pop().pid, signal.SIGKILL)

    monkeypatch.setattr(loop._Training, "update", kill_at_3)
    argv += ["--max_steps", "300", "--per_device_train_batch_size", "1", "--output_dir", str(tmp_path / "out")]
    with pytest.raises(
        RuntimeError, match=r"batches was killed, .*: start again with fewer --dataloader_num_workers$"
    ):
        main([*argv, "--dataloader_num_workers", "2"])
    assert multiprocessing.active_children() == []


def test_a_process_with_too_many_open_files_does_not_blame_a_worker():
    def rebuild_storage_fd():
        raise RuntimeError("received 0 items of ancdata")

    with pytest.raises(RuntimeError, match="^received 0 items"), batches.worker_errors():
        rebuild_storage_fd()


# Of a run: an error in the middle of an update, whose traceback keeps the loader and so its workers.
BROKEN = """
import sys
from elmo_gpt_bert.training import loop
from elmo_gpt_bert.training.command_line import run_command
import run_glue

def backward(self, *args):
    raise RuntimeError("out of memory")

loop._Training.backward = backward
run_command(lambda: run_glue.main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_a_run_with_workers_ends_after_an_error(tmp_path):
    _, argv = make_run(tmp_path, "bert glue")
    argv += ["--max_steps", "300", "--per_device_train_batch_size", "1", "--output_dir", str(tmp_path / "out")]
    command = [sys.executable, "-c", BROKEN, *argv, "--dataloader_num_workers", "1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and "RuntimeError: out of memory" in done.stderr


def test_the_tokens_of_a_batch_are_counted_without_padding():
    ids = torch.ones(2, 5, dtype=torch.long)
    mask = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
    assert batches.count_real_tokens({"input_ids": ids, "attention_mask": mask}) == 8
    assert batches.count_real_tokens({"input_ids": ids}) == 10
    assert batches.count_real_tokens({"input_ids": ids[..., None].expand(2, 5, 50)}) == 10  # ELMo's


@pytest.mark.parametrize(
    ("chosen", "device", "start", "processors", "processes", "expected"),
    [
        (None, CPU, "fork", 16, 1, 0),
        (None, GPU, "fork", 16, 1, 4),
        (None, GPU, "fork", 16, 8, 1),
        (None, GPU, "fork", 1, 1, 0),
        (None, GPU, "spawn", 16, 1, 0),
        (0, GPU, "fork", 16, 1, 0),
        (7, CPU, "spawn", 2, 1, 7),
    ],
)
def test_batches_are_prepared_by_default_where_a_gpu_would_wait_for_them(
    chosen, device, start, processors, processes, expected, monkeypatch
):
    monkeypatch.setattr(multiprocessing, "get_start_method", lambda: start)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(processors)), raising=False)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(processes))
    assert batches.count_workers(chosen, device) == expected


@pytest.mark.parametrize(("device", "inside"), [("cuda", 1), ("xla", 1), ("cpu", 3)])
def test_beside_a_gpu_training_uses_one_thread_of_the_cpu_and_gives_the_others_back(
    run, data_set, monkeypatch, device, inside
):
    trained_with = []
    step, one_thread = loop._Training.step, loop.one_thread_beside
    monkeypatch.setattr(loop, "one_thread_beside", lambda _: one_thread(torch.device(device)))
    monkeypatch.setattr(
        loop._Training, "step", lambda self: trained_with.append(torch.get_num_threads()) or step(self)
    )
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        fit(run(max_steps=2), data_set)
        assert trained_with == [inside] * 2 and torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(threads)
