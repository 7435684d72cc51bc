"""What runs do for XLA, as far as it shows without torch_xla; tests/xla has the rest."""

import io
import sys

import numpy as np
import pytest
import torch
from accelerate import DistributedType, PartialState

import run_glue
from elmo_gpt_bert.training import processes
from elmo_gpt_bert.training.errors import InputError
from elmo_gpt_bert.training.optimization import recompute_activations
from elmo_gpt_bert.training.runs import command
from tests.support.tiny_run import prepare


@pytest.fixture
def as_on_xla(monkeypatch):
    """One process, and what it sends to all is written and read as torch_xla does it."""

    def send(objects: list, from_process: int) -> list:
        buffer = io.BytesIO()
        torch.save(objects, buffer)
        return torch.load(io.BytesIO(buffer.getvalue()), weights_only=True)

    monkeypatch.setattr(PartialState(), "distributed_type", DistributedType.XLA)
    monkeypatch.setattr(processes, "broadcast_object_list", send)


def test_arrays_and_errors_reach_all_processes_of_xla(as_on_xla):
    (outputs,) = processes.from_all({3: {"logits": np.arange(4.0)}})
    assert outputs[3]["logits"].tolist() == [0, 1, 2, 3]

    def fail() -> None:
        raise InputError("no such thing")

    with pytest.raises(InputError, match="no such thing"):
        processes.on_main(fail)


def test_more_processes_than_devices_of_xla_have_a_remedy_of_their_own(as_on_xla, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "8")
    with pytest.raises(RuntimeError, match="8 processes were asked for.* XLA has one device here: --num_processes 1"):
        processes.join_processes(60)


def test_the_only_process_of_xla_prints_what_a_run_says(as_on_xla, monkeypatch):
    monkeypatch.setattr(PartialState(), "local_process_index", -1)
    processes.join_processes(60)
    assert PartialState().is_local_main_process


def test_the_launcher_for_tpus_finds_what_to_run(monkeypatch, capsys):
    """It imports the script and calls `command` in it, with the script's words in `sys.argv`."""
    monkeypatch.setattr(sys, "argv", [run_glue.__file__, "--task_name", "nothing"])
    with pytest.raises(SystemExit):
        command()
    assert capsys.readouterr().err.count("\n") == 1


def test_recomputing_activations_warns_of_nothing(run, recwarn):
    accelerator, _, model, _ = prepare(run())
    recompute_activations(model, accelerator)
    assert any(getattr(module, "gradient_checkpointing", False) for module in model.modules())
    assert [str(warning.message) for warning in recwarn if warning.category is FutureWarning] == []
