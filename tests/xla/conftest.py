"""What the tests on XLA share: runs on both sides, the graphs that were compiled, and a table of what was seen."""

import os


os.environ.setdefault("PJRT_DEVICE", "CPU")  # XLA's own client for processors, unless there is a TPU
# Graphs are compiled much faster, and run more slowly. That they are right does not depend on it.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true")

import importlib  # noqa: E402
import json  # noqa: E402
import subprocess  # noqa: E402
import sys  # noqa: E402
from collections.abc import Callable, Iterator  # noqa: E402
from dataclasses import dataclass, field  # noqa: E402
from pathlib import Path  # noqa: E402

import pytest  # noqa: E402
import torch  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from torch_xla.debug import metrics  # noqa: E402

from elmo_gpt_bert.training import loop  # noqa: E402
from tests.conftest import ROOT  # noqa: E402


ROWS: list[list[str]] = []  # of the table that is shown at the end


def graphs() -> int:
    """How many graphs this process has compiled."""
    return (metrics.metric_data("CompileTime") or [0])[0]


def compile_seconds() -> float:
    return (metrics.metric_data("CompileTime") or [0, 0])[1] / 1e9


@dataclass
class Run:
    """A run that has ended: its folder and, on XLA, how many graphs were compiled until the end of each update."""

    folder: Path
    graphs: list[int] = field(default_factory=list)

    @property
    def losses(self) -> list[float]:
        """Of each update."""
        lines = map(json.loads, (self.folder / "log.jsonl").read_text(encoding="utf-8").splitlines())
        return [line["train_loss"] for line in lines if "train_loss" in line]

    @property
    def weights(self) -> dict[str, torch.Tensor]:
        return load_file(self.folder / "model.safetensors")

    @property
    def scores(self) -> dict[str, float]:
        values = json.loads((self.folder / "metrics.json").read_text(encoding="utf-8"))
        return {name: value for name, value in values.items() if name.startswith("eval_") and "runtime" not in name}


@pytest.fixture(scope="session")
def cpu() -> Iterator[subprocess.Popen]:
    command = [sys.executable, "-m", "tests.xla.on_cpu"]
    environment = os.environ | {"USE_TORCH_XLA": "0", "ACCELERATE_USE_CPU": "true"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=ROOT, env=environment, **pipes) as process:
        yield process
        process.stdin.close()


@pytest.fixture
def run_on_cpu(cpu) -> Callable[..., Run]:
    def run(script: str, flags: list[str], output: Path) -> Run:
        cpu.stdin.write(json.dumps([script, [*flags, "--output_dir", str(output)]]) + "\n")
        cpu.stdin.flush()
        assert cpu.stdout.readline() == "done\n", "the run on the CPU has failed"
        return Run(output)

    return run


@pytest.fixture
def run_on_xla(monkeypatch) -> Callable[..., Run]:
    def run(script: str, flags: list[str], output: Path) -> Run:
        found, compute = Run(output), loop.run_pending

        def compute_and_count(accelerator: object) -> None:
            compute(accelerator)
            found.graphs.append(graphs())

        with monkeypatch.context() as patch:
            patch.setattr(loop, "run_pending", compute_and_count)
            importlib.import_module(script).main([*flags, "--output_dir", str(output)])
        return found

    return run


@pytest.fixture
def tell(request) -> Iterator[Callable[..., None]]:
    """Notes what a test has seen, for the table: the greatest difference to the CPU, and the graphs of the test."""
    before = graphs(), compile_seconds()
    name = request.node.name.removeprefix("test_").replace("_", " ")

    def note(what: str, difference: float) -> None:
        compiled, seconds = graphs() - before[0], compile_seconds() - before[1]
        ROWS.append([what or name, f"{difference:.1e}", str(compiled), f"{seconds:.0f}"])

    return note


def pytest_terminal_summary(terminalreporter) -> None:
    terminalreporter.write_line("\n| what | greatest difference | graphs | seconds to compile |\n|---|---|---|---|")
    for row in ROWS:
        terminalreporter.write_line(f"| {' | '.join(row)} |")
