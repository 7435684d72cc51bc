"""Memory that was freed goes back to the system, also from between blocks that are still in use."""

import platform
import subprocess
import sys

import pytest

from elmo_gpt_bert.training import memory
from tests.conftest import ROOT
from tests.run_samples import make_run


# Blocks of 100,000 bytes are below what the C library asks the system for one by one.
HOLES = """
from pathlib import Path
from elmo_gpt_bert.training.memory import release

def resident():
    return 4096 * int(Path("/proc/self/statm").read_text().split()[1])

blocks = [bytearray(100_000) for _ in range(1000)]
kept = blocks[::2]
del blocks
before = resident()
release()
print(before - resident())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc keeps memory in this way")
def test_holes_between_blocks_in_use_go_back_to_the_system():
    done = subprocess.run([sys.executable, "-c", HOLES], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert int(done.stdout) > 30_000_000, done.stderr  # of 50 million bytes


def test_training_gives_memory_back_again_and_again(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(memory, "release", lambda: calls.append(1))
    main, argv = make_run(tmp_path, "bert glue")
    main([*argv, "--max_steps", str(2 * memory.UPDATES + 1), "--output_dir", str(tmp_path / "out")])
    assert len(calls) == 2
