"""Runs spread over processes: how they are launched, and that they compute what one process does."""

import json
import os
import re
import subprocess
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
import torch
from accelerate import FullyShardedDataParallelPlugin
from accelerate.commands import launch
from accelerate.utils import prepare_multi_gpu_env
from safetensors.torch import load_file
from transformers.modeling_layers import GradientCheckpointingLayer

import run_glue
from elmo_gpt_bert.training import command_line, launching, processes
from modeling.bert import modeling_bert
from tests.conftest import ROOT
from tests.support.glue_sample import write_model, write_task, write_vocabulary
from tests.support.processes import fork, wait
from tests.support.tiny_run import fit


CONFIGURATIONS = sorted((ROOT / "configs" / "accelerate").glob("*.yaml"))
ONE = ["--per_device_train_batch_size", "4"]  # nine examples: the last update of an epoch has one
TWO = ["--per_device_train_batch_size", "1", "--gradient_accumulation_steps", "2"]  # and one process has none of it


def run_in(folder: Path) -> Callable[..., list[str]]:
    """Flags of a run on a tiny model and task that writes to the folder of this name; each change counts."""
    write_task(folder, "RTE")
    model, vocabulary = write_model(folder), write_vocabulary(folder)
    common = ["--model_name_or_path", str(model), "--tokenizer_name", str(vocabulary), "--max_seq_length", "32"]
    common += ["--task_name", "rte", "--data_dir", str(folder), "--do_train", "--do_eval"]
    # Where a gradient is nothing but rounding, Adam's small epsilon would make it a whole step.
    common += ["--learning_rate", "0.01", "--weight_decay", "0.1", "--max_grad_norm", "0.3", "--adam_epsilon", "0.001"]
    common += ["--warmup_ratio", "0.2", "--num_train_epochs", "2", "--group_by_length"]
    return lambda name, *more: [*common, "--output_dir", str(folder / name), *more]


@pytest.fixture
def flags(tmp_path) -> Callable[..., list[str]]:
    return run_in(tmp_path)


def outcome(folder: Path) -> tuple[dict, dict[str, torch.Tensor]]:
    """(metrics.json, the weights that were saved)"""
    return json.loads((folder / "metrics.json").read_text(encoding="utf-8")), load_file(folder / "model.safetensors")


def assert_same(folder: Path, other: Path, score: float = 1e-6, weight: float = 1e-5) -> None:
    (ours, weights), (theirs, expected) = outcome(folder), outcome(other)
    for name in ("train_loss", "eval_loss", "eval_accuracy"):
        assert ours[name] == pytest.approx(theirs[name], abs=score), name
    torch.testing.assert_close(weights, expected, rtol=0, atol=weight)


# The configurations for `accelerate launch`


def launched(configuration: str, *more: str) -> tuple[object, dict[str, str]]:
    """What `accelerate launch` makes of the file: its arguments, and what it adds to its processes' environment."""
    file = ROOT / "configs" / "accelerate" / f"{configuration}.yaml"
    words = ["--config_file", str(file), "--num_processes", "2", "--main_process_port", "0", *more, "run_glue.py"]
    args, *_ = launch._validate_launch_command(launch.launch_command_parser().parse_args(words))
    environment = prepare_multi_gpu_env(args)
    return args, {name: value for name, value in environment.items() if os.environ.get(name) != value}


def test_each_configuration_starts_its_kind_of_processes():
    kinds = {path.stem: launched(path.stem)[0] for path in CONFIGURATIONS}
    found = {
        name: [kind for kind in ("multi_gpu", "use_fsdp", "tpu") if getattr(args, kind)]
        for name, args in kinds.items()
    }
    assert found == {
        "cpu": ["multi_gpu"],
        "multi_gpu": ["multi_gpu"],
        "multi_node": ["multi_gpu"],
        "fsdp2": ["use_fsdp"],
        "tpu": ["tpu"],
    }
    for args in kinds.values():  # the run's own flags say these, and are recorded
        assert args.mixed_precision == "no" and args.gradient_accumulation_steps is None


def test_the_configuration_of_sharding_means_what_it_says(monkeypatch):
    for name, value in launched("fsdp2")[1].items():
        monkeypatch.setenv(name, value)
    plugin = FullyShardedDataParallelPlugin()
    assert plugin.fsdp_version == 2 and plugin.reshard_after_forward and not plugin.cpu_ram_efficient_loading
    assert [getattr(modeling_bert, name) for name in plugin.transformer_cls_names_to_wrap]


# Launches


def test_a_launch_that_accelerate_does_not_spread_stops_before_it_trains(flags, tmp_path, monkeypatch, capfd):
    """`accelerate launch` in this process; the one that it starts is forked, with the environment that it gets."""
    started = []

    class Started:
        def __init__(self, command: list[str], env: dict[str, str]) -> None:
            _, script, *words = command
            started.append(script)

            def run() -> None:
                os.environ |= env
                monkeypatch.setattr("sys.argv", [script])
                command_line.run_command(lambda: run_glue.main(words))

            self.processes = fork(run)

        def wait(self) -> None:
            self.returncode, *_ = wait(self.processes)

    monkeypatch.setattr(launch.subprocess, "Popen", Started)
    words = ["--cpu", "--num_processes", "2", "run_glue.py", *flags("out")]
    with pytest.raises(subprocess.CalledProcessError):
        launch.launch_command(launch.launch_command_parser().parse_args(words))
    assert started == ["run_glue.py"]
    said = capfd.readouterr().err
    assert "run_glue.py: error: MASTER_ADDR is 127.0.0.1, as a launcher of several" in said
    assert "ACCELERATE_USE_CPU=true torchrun" in said and not (tmp_path / "out").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="GPUs would take the processes")
def test_processes_of_torchrun_that_find_no_gpu_stop_before_they_train(flags, tmp_path, capfd):
    def run() -> None:
        os.environ["ACCELERATE_USE_CPU"] = "false"
        run_glue.main(flags("out"))

    assert wait(fork(run, count=2)) == [1, 1]
    assert "2 processes were asked for, but each would run alone" in capfd.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("WORLD_SIZE", "2", "2 processes were asked for, but each would run alone .* CPU: .* torchrun"),
        ("MASTER_ADDR", "gpu-7", "MASTER_ADDR is gpu-7, .* but WORLD_SIZE is not set, .* CPU: .* torchrun"),
        ("ACCELERATE_USE_DEEPSPEED", "true", "DeepSpeed, which the scripts do not support: .*/fsdp2.yaml divides"),
    ],
)
def test_a_launch_that_cannot_spread_the_run_is_one_error(monkeypatch, name, value, message):
    processes.join_processes(60)
    monkeypatch.setenv(name, value)
    with pytest.raises(RuntimeError, match=message):
        processes.join_processes(60)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("MIXED_PRECISION", "bf16", "the launcher was told mixed_precision bf16, the run no: give --mixed_precision"),
        ("GRADIENT_ACCUMULATION_STEPS", "4", "the launcher was told gradient_accumulation_steps 4: give"),
    ],
)
def test_what_only_the_run_can_do_is_not_left_to_the_launcher(run, monkeypatch, name, value, message):
    monkeypatch.setenv(f"ACCELERATE_{name}", value)
    with pytest.raises(ValueError, match=message):
        launching.make_accelerator(run())


# Several processes, everything at once


@pytest.mark.slow
def test_everything_at_once_on_two_processes_gives_the_results_of_one(flags, tmp_path):
    more = ["--gradient_checkpointing", "--mixed_precision", "bf16", "--pad_to_max_length", "--num_train_epochs", "1"]

    def run() -> None:
        run_glue.main(flags("two", *TWO, *more, "--ddp_timeout", "77"))
        group = torch.distributed.distributed_c10d._get_default_group()
        assert group._get_backend(torch.device("cpu")).options._timeout == timedelta(seconds=77)

    assert wait(fork(run, count=2)) == [0, 0]
    run_glue.main(flags("one", *ONE, *more))
    assert_same(tmp_path / "two", tmp_path / "one", score=1e-3, weight=1e-2)


@pytest.mark.parametrize(("dropout", "losses"), [(0.3, 4), (0.0, 1)])
def test_each_update_drops_other_units(run, data_set, tmp_path, capsys, dropout, losses):
    """Of one example at a learning rate of zero, so that nothing else changes its loss."""
    model = str(write_model(tmp_path, hidden_dropout_prob=dropout))
    args = run(model_name_or_path=model, learning_rate=0.0, logging_steps=1, num_train_epochs=4, save_strategy="no")
    fit(args, data_set.select([0]))
    assert len({*re.findall(r"update \d/4: train_loss ([\d.]+)", capsys.readouterr().out)}) == losses


@pytest.mark.slow
def test_dropout_draws_by_the_micro_batch_whichever_process_computes_it(flags, tmp_path):
    write_model(tmp_path, hidden_dropout_prob=0.3)
    once = ["--num_train_epochs", "1"]
    for name in ("two", "again"):
        assert wait(fork(partial(run_glue.main, flags(name, *TWO, *once)), count=2)) == [0, 0]
    assert_same(tmp_path / "two", tmp_path / "again", score=0, weight=0)
    run_glue.main(flags("alone", "--per_device_train_batch_size", "1", "--gradient_accumulation_steps", "4", *once))
    assert_same(tmp_path / "two", tmp_path / "alone")
    run_glue.main(flags("one", *ONE, *once))
    two, one = (outcome(tmp_path / name)[0]["train_loss"] for name in ("two", "one"))
    assert 1e-4 < abs(two - one) < 0.05


@pytest.mark.parametrize("implementation", ["zoo", "transformers"])
def test_padded_to_one_length_every_batch_has_one_shape(flags, implementation, monkeypatch):
    shapes, run_layer = set(), GradientCheckpointingLayer.__call__

    def recorded(layer: torch.nn.Module, states: torch.Tensor, *args, **kwargs) -> torch.Tensor:
        shapes.add(tuple(states.shape))
        return run_layer(layer, states, *args, **kwargs)

    monkeypatch.setattr(GradientCheckpointingLayer, "__call__", recorded)  # a hook would ask for padding
    more = ["--pad_to_max_length", "--per_device_eval_batch_size", "4", "--implementation", implementation]
    run_glue.main(flags("out", *ONE, *more))
    assert shapes == {(4, 32, 12)}
