"""Memory that was freed stays for the next update, and goes back to the system now and then."""

import os
import platform
import subprocess
import sys

import pytest

from elmo_gpt_bert.training import memory
from tests.conftest import ROOT
from tests.support.run_samples import make_run


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


only_glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have other ways")


@only_glibc
def test_holes_between_blocks_in_use_go_back_to_the_system():
    done = subprocess.run([sys.executable, "-c", HOLES], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert int(done.stdout) > 30_000_000, done.stderr  # of 50 million bytes


# A block that was freed is there for a smaller one, without new pages: each is counted when it is first used.
PAGES = """
import resource
from elmo_gpt_bert.training.memory import keep_blocks

def new_pages(megabytes):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    b"x" * (megabytes * 1_000_000)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

keep_blocks()
new_pages(120)
print(new_pages(100))
"""


@only_glibc
@pytest.mark.parametrize(
    ("variable", "value"),
    [
        (None, None),
        ("MALLOC_MMAP_THRESHOLD_", "1000000"),
        ("MALLOC_TRIM_THRESHOLD_", "1000000"),
        ("GLIBC_TUNABLES", "glibc.malloc.trim_threshold=1000000"),
    ],
)
def test_a_large_block_stays_for_a_smaller_one_unless_the_user_says_otherwise(variable, value):
    chosen = {} if variable is None else {variable: value}
    done = subprocess.run(
        [sys.executable, "-c", PAGES], cwd=ROOT, capture_output=True, text=True, timeout=60, env=os.environ | chosen
    )
    assert (int(done.stdout) < 1000) == (variable is None), done.stderr


@pytest.mark.parametrize(
    ("most", "calls"),
    [(2**31, [(-3, 2**30), (-1, 2**31 - 1)]), (2**25, [(-3, 2**30), (-3, 2**25), (-1, 2**31 - 1)]), (0, [])],
)
def test_a_library_that_refuses_large_limits_gets_smaller_ones_or_none(most, calls, monkeypatch):
    made = []

    class Library:
        def mallopt(self, option: int, value: int) -> int:
            made.append((option, value))
            return int(option == memory.M_TRIM_THRESHOLD or value <= most)

    monkeypatch.setattr(memory, "_glibc", Library)
    memory.keep_blocks()
    assert made == (calls or [(-3, 2**30), (-3, 2**25)])


@pytest.mark.parametrize("error", [OSError("no library"), TypeError("a name is needed")])
def test_without_glibc_nothing_is_kept_or_given_back(error, monkeypatch):
    def missing(name: None) -> None:
        raise error

    monkeypatch.setattr("ctypes.CDLL", missing)
    monkeypatch.setattr(memory, "_glibc", memory._glibc.__wrapped__)  # which does not keep what it found before
    assert memory._glibc() is None
    memory.keep_blocks()
    memory.release()


def test_training_gives_memory_back_again_and_again(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(memory, "release", lambda: calls.append(1))
    main, argv = make_run(tmp_path, "bert glue")
    main([*argv, "--max_steps", str(2 * memory.UPDATES + 1), "--output_dir", str(tmp_path / "out")])
    assert len(calls) == 3  # and at the end
