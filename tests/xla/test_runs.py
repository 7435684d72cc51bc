"""Runs on XLA that stop and go on, recompute activations, round to bfloat16, or are launched by accelerate."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.conftest import ROOT
from tests.xla.cases import COMMON, RUNS, bert, glue, pretraining


DROPOUT = {"hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.2}
EACH_TWO = ["--save_strategy", "steps", "--save_steps", "2", "--eval_strategy", "steps", "--eval_steps", "2"]


def with_dropout(folder: Path) -> list[str]:
    best = ["--load_best_model_at_end", "--metric_for_best_model", "loss"]
    return ["run_glue", *COMMON, *bert(folder, **DROPOUT), *glue(folder), *EACH_TWO, *best]


def with_tied_weights(folder: Path) -> list[str]:
    return ["run_pretraining", *COMMON, *pretraining(folder, "causal_lm"), *EACH_TWO]


@pytest.mark.parametrize("write", [with_dropout, with_tied_weights])
def test_a_run_goes_on_to_the_same_bits(write, tmp_path, run_on_xla, tell):
    script, *flags = write(tmp_path)
    whole = run_on_xla(script, flags, tmp_path / "whole")
    stopped = shutil.copytree(whole.folder, tmp_path / "stopped")
    shutil.rmtree(stopped / "checkpoint-4")
    for name in ("model.safetensors", "metrics.json"):
        (stopped / name).unlink()
    resumed = run_on_xla(script, [*flags, "--resume"], stopped)
    assert len(resumed.graphs) == 2 and resumed.losses == whole.losses
    differences = [(resumed.weights[name] - weight).abs().max().item() for name, weight in whole.weights.items()]
    tell(f"resumed, {write.__name__.replace('_', ' ')}", max(differences))
    assert max(differences) == 0


@pytest.mark.parametrize("frozen", [[], ["--freeze_layers", "1"]], ids=["all", "upper"])
def test_recomputed_activations_give_the_same_weights_with_dropout_too(frozen, tmp_path, run_on_xla, tell):
    flags = [*COMMON, *bert(tmp_path, **DROPOUT), *glue(tmp_path), *frozen]
    kept = run_on_xla("run_glue", flags, tmp_path / "kept")
    recomputed = run_on_xla("run_glue", [*flags, "--gradient_checkpointing"], tmp_path / "recomputed")
    tell("recomputed activations", max(abs(a - b) for a, b in zip(kept.losses, recomputed.losses, strict=True)))
    assert recomputed.losses == pytest.approx(kept.losses, abs=1e-5)
    torch.testing.assert_close(recomputed.weights, kept.weights, rtol=0, atol=1e-4)


def test_bfloat16_rounds_as_on_the_cpu(tmp_path, run_on_cpu, run_on_xla, tell):
    script, write = RUNS["BERT, GLUE"]
    flags = [*COMMON, *write(tmp_path), "--mixed_precision", "bf16"]
    expected, found = run_on_cpu(script, flags, tmp_path / "cpu"), run_on_xla(script, flags, tmp_path / "xla")
    tell("BERT, GLUE, bfloat16", max(abs(a - b) for a, b in zip(found.losses, expected.losses, strict=True)))
    assert found.losses == pytest.approx(expected.losses, abs=1e-2)


# The launcher


def launch(processes: int, flags: list[str]) -> subprocess.CompletedProcess:
    command = [str(Path(sys.executable).parent / "accelerate"), "launch", "--num_processes", str(processes)]
    command += ["--config_file", "configs/accelerate/tpu.yaml", "run_glue.py", *flags]
    return subprocess.run(command, cwd=ROOT, env=os.environ, capture_output=True, text=True)


def test_the_launcher_runs_the_script_as_a_command(tmp_path):
    flags = [*COMMON, *bert(tmp_path), *glue(tmp_path), "--output_dir", str(tmp_path / "out")]
    done = launch(1, flags)
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "out" / "metrics.json").read_text(encoding="utf-8"))
    assert record["hardware"]["device"].startswith("XLA on ") and ", on xla\n" in done.stdout
