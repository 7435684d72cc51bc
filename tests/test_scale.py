"""Runs spread over processes: how they are launched, and that they compute what one process does."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import psutil
import pytest
import torch
from accelerate import DeepSpeedPlugin, FullyShardedDataParallelPlugin
from accelerate.commands import launch
from accelerate.commands.config import config_args
from accelerate.utils import prepare_deepspeed_cmd_env, prepare_multi_gpu_env
from safetensors.torch import load_file
from transformers.modeling_layers import GradientCheckpointingLayer

import run_glue
from elmo_gpt_bert.training import launching, waiting
from modeling.bert import modeling_bert
from tests.conftest import ROOT
from tests.glue_sample import write_model, write_task, write_vocabulary
from tests.processes import fork, wait


CONFIGURATIONS = sorted((ROOT / "configs" / "accelerate").glob("*.yaml"))
ONE = ["--per_device_train_batch_size", "4"]  # nine examples: the last update of an epoch has one
TWO = ["--per_device_train_batch_size", "1", "--gradient_accumulation_steps", "2"]  # and one process has none of it


@pytest.fixture
def flags(tmp_path) -> Callable[..., list[str]]:
    """Flags of a run on a tiny model and task that writes to the folder of this name; each change counts."""
    write_task(tmp_path, "RTE")
    model, vocabulary = write_model(tmp_path), write_vocabulary(tmp_path)
    common = ["--model_name_or_path", str(model), "--tokenizer_name", str(vocabulary), "--max_seq_length", "32"]
    common += ["--task_name", "rte", "--data_dir", str(tmp_path), "--do_train", "--do_eval"]
    # Where a gradient is nothing but rounding, Adam's small epsilon would make it a whole step.
    common += ["--learning_rate", "0.01", "--weight_decay", "0.1", "--max_grad_norm", "0.3", "--adam_epsilon", "0.001"]
    common += ["--layerwise_lr_decay", "0.9", "--warmup_ratio", "0.2", "--num_train_epochs", "2", "--group_by_length"]
    return lambda name, *more: [*common, "--output_dir", str(tmp_path / name), *more]


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
    args.deepspeed_fields_from_accelerate_config = ""
    environment = prepare_deepspeed_cmd_env(args)[1] if args.use_deepspeed else prepare_multi_gpu_env(args)
    return args, {name: value for name, value in environment.items() if os.environ.get(name) != value}


def test_each_configuration_starts_its_kind_of_processes():
    kinds = {path.stem: launched(path.stem)[0] for path in CONFIGURATIONS}
    found = {
        name: [kind for kind in ("multi_gpu", "use_fsdp", "use_deepspeed", "tpu") if getattr(args, kind)]
        for name, args in kinds.items()
    }
    deepspeed = dict.fromkeys(["deepspeed_zero2", "deepspeed_zero3"], ["use_deepspeed"])
    assert found == {
        "cpu": ["multi_gpu"],
        "multi_gpu": ["multi_gpu"],
        "multi_node": ["multi_gpu"],
        "fsdp2": ["use_fsdp"],
        "tpu": ["tpu"],
        **deepspeed,
    }
    for args in kinds.values():  # the run's own flags say these, and are recorded
        assert args.mixed_precision == "no" and args.gradient_accumulation_steps is None


def test_the_configurations_of_sharding_mean_what_they_say(monkeypatch):
    for name, value in launched("fsdp2")[1].items():
        monkeypatch.setenv(name, value)
    plugin = FullyShardedDataParallelPlugin()
    assert plugin.fsdp_version == 2 and plugin.reshard_after_forward and not plugin.cpu_ram_efficient_loading
    assert plugin.state_dict_type.name == "SHARDED_STATE_DICT"
    assert [getattr(modeling_bert, name) for name in plugin.transformer_cls_names_to_wrap]
    for stage in (2, 3):
        for name, value in launched(f"deepspeed_zero{stage}")[1].items():
            monkeypatch.setenv(name, value)
        plugin = DeepSpeedPlugin()
        assert plugin.zero_stage == stage and plugin.zero3_save_16bit_model == (stage == 3)


# Launches


def start_script(command: list[str], **environment: str) -> subprocess.CompletedProcess:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "false"} | environment
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)


def accelerate_launch(*words: str) -> list[str]:
    return [shutil.which("accelerate", path=Path(sys.executable).parent), "launch", *words]


@pytest.mark.slow
def test_a_launch_that_accelerate_does_not_spread_stops_before_it_trains(flags, tmp_path):
    done = start_script([*accelerate_launch("--cpu", "--num_processes", "2"), "run_glue.py", *flags("out")])
    assert done.returncode != 0
    assert "run_glue.py: error: 2 processes were asked for, but each would run alone" in done.stderr
    assert "ACCELERATE_USE_CPU=true torchrun" in done.stderr and not (tmp_path / "out").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="GPUs would take the processes")
def test_processes_of_torchrun_that_find_no_gpu_stop_before_they_train(flags, tmp_path, capfd):
    join = waiting._join

    def join_and_wait(timeout: int) -> None:
        join(timeout)
        time.sleep(1)

    def run() -> None:
        os.environ["ACCELERATE_USE_CPU"] = "false"
        if os.environ["RANK"] == "1":  # goes on when the first, where the two met, has stopped
            waiting._join = join_and_wait
        run_glue.main(flags("out"))

    assert wait(fork(run, count=2)) == [1, 1]
    assert "2 processes were asked for, but each would run alone" in capfd.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        (["python", "/bin/accelerate", "launch", "--cpu", "--num_processes", "2", "run_glue.py"], 2),
        (["python", "/bin/accelerate-launch", "--num-processes=3", "run_glue.py", "--num_processes", "9"], 3),
        (["python", "-m", "accelerate.commands.launch", "--config_file", "FILE", "run_glue.py"], 4),
        (["python", "/bin/accelerate", "launch", "run_glue.py"], 5),
        (["python", "/bin/accelerate", "launch", "--cpu", "run_glue.py"], 1),  # does not read the default file
        (["python", "/bin/accelerate", "launch", "--num_processes", "1", "run_glue.py"], 1),
        (["python", "/bin/accelerate", "test"], 1),
        (["bash", "launch", "--num_processes", "2"], 1),
        (psutil.AccessDenied(1), 1),
    ],
)
def test_what_accelerate_was_asked_for_is_read_as_it_reads_it(tmp_path, monkeypatch, words, asked):
    for name, processes in (("own", 4), ("default", 5)):
        (tmp_path / name).write_text(f"distributed_type: MULTI_CPU\nnum_processes: {processes}\n", encoding="utf-8")
    monkeypatch.setattr(config_args, "default_config_file", str(tmp_path / "default"))

    def command_line(self) -> list[str]:
        if isinstance(words, Exception):
            raise words
        return [str(tmp_path / "own") if word == "FILE" else word for word in words]

    monkeypatch.setattr(psutil.Process, "cmdline", command_line)
    if asked == 1:
        launching.check_launch()
        return
    with pytest.raises(RuntimeError, match=f"{asked} processes were asked for"):
        launching.check_launch()


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


def test_everything_at_once_on_two_processes_gives_the_results_of_one(flags, tmp_path):
    more = ["--gradient_checkpointing", "--mixed_precision", "bf16", "--pad_to_max_length"]
    assert wait(fork(partial(run_glue.main, flags("two", *TWO, *more)), count=2)) == [0, 0]
    run_glue.main(flags("one", *ONE, *more))
    assert_same(tmp_path / "two", tmp_path / "one", score=1e-3, weight=1e-2)


def test_each_process_draws_its_own_dropout_and_the_run_repeats_itself(flags, tmp_path):
    write_model(tmp_path, hidden_dropout_prob=0.3)
    whole = ["--pad_to_max_length"]  # both processes draw as many numbers
    for name in ("two", "again"):
        assert wait(fork(partial(run_glue.main, flags(name, *TWO, *whole)), count=2)) == [0, 0]
    assert_same(tmp_path / "two", tmp_path / "again", score=0, weight=0)
    run_glue.main(flags("one", *ONE, *whole))
    two, one = (outcome(tmp_path / name)[0]["train_loss"] for name in ("two", "one"))
    assert 0 < abs(two - one) < 0.05
    states = [
        torch.load(tmp_path / "two" / "checkpoint-6" / f"random_states_{rank}.pkl", weights_only=False)
        for rank in (0, 1)
    ]
    assert not torch.equal(*(state["torch_manual_seed"] for state in states))


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
