"""What every test relies on: one thread a process, quiet libraries, the registries as they were, and a tiny run."""

import functools
import importlib.metadata
import logging
from pathlib import Path

import jinja2
import numpy as np
import pytest
import torch
import transformers
from accelerate.state import AcceleratorState
from datasets import Dataset

import modeling
from modeling.shared import modeling_onednn
from tests.conftest import spare_garbage_collection
from tests.support.glue_sample import VOCABULARY, WORDS, write_model, write_vocabulary
from tests.support.tiny_run import Arguments


transformers.utils.logging.disable_progress_bar()
modeling_onednn.SMALL = 0  # the tiny models of the tests take the way of large ones
# What each run of a script works out anew, and all of them alike: which packages are there, the template of a card.
importlib.metadata.metadata = functools.cache(importlib.metadata.metadata)
importlib.metadata.version = functools.cache(importlib.metadata.version)
jinja2.Template = functools.cache(jinja2.Template)


def pytest_fixture_setup(fixturedef: pytest.FixtureDef) -> None:
    """What several tests share begins with the same random numbers, whichever test asks for it first."""
    if fixturedef.scope != "function":
        seed()


def seed() -> None:
    """torch.manual_seed for the CPU alone: for other devices it would note each time from where it was called."""
    torch.default_generator.manual_seed(0)


@pytest.fixture(autouse=True, scope="module")
def _no_garbage():
    """Spares garbage collection what the libraries keep of a file's tests."""
    yield
    spare_garbage_collection()


@pytest.fixture(autouse=True)
def _process_as_it_was():
    """What a run sets for its whole process is undone: each test starts like a fresh one."""
    torch.set_num_threads(1)  # tests run side by side, and models this small lose time to a second thread
    seed()
    verbosity = transformers.utils.logging.get_verbosity()
    yield
    transformers.utils.logging.set_verbosity(verbosity)
    torch.set_float32_matmul_precision("highest")
    torch.use_deterministic_algorithms(False)
    torch.backends.cudnn.deterministic = False
    AcceleratorState._reset_state(True)
    modeling.unregister()


@pytest.fixture
def log(caplog):
    """What transformers tells the user, as text."""
    transformers.utils.logging.set_verbosity_warning()
    transformers.utils.logging.enable_propagation()
    caplog.set_level(logging.WARNING)
    yield lambda: caplog.text
    transformers.utils.logging.disable_propagation()


@pytest.fixture
def _without_compiler():
    """What a library compiles is computed as it stands: flex attention's code takes the compiler half a minute."""
    with torch.compiler.set_stance("force_eager"):
        yield


@pytest.fixture
def _little_work(monkeypatch):
    """The benchmarks measure what the machine can do with small matrices, and let each side work for a moment."""
    monkeypatch.setattr("benchmarks.limits.CPU_SIZE", 64)
    monkeypatch.setattr("benchmarks.limits.READ_BYTES", 2**12)
    monkeypatch.setattr("benchmarks.__main__.TURN_SECONDS", 0.01)
    monkeypatch.setattr("benchmarks.__main__.QUICK_TURN_SECONDS", 0.01)


@pytest.fixture
def run(tmp_path: Path):
    """Arguments of a run on a tiny model; keyword arguments change them."""
    flags = {
        "model_name_or_path": str(write_model(tmp_path)),
        "tokenizer_name": str(write_vocabulary(tmp_path)),
        "output_dir": str(tmp_path / "out"),
        "do_train": True,
        "per_device_train_batch_size": 4,
        "learning_rate": 0.01,
        "mixed_precision": "no",  # as `repeat` hands arguments to a run, without "auto"
        "matmul_precision": "highest",
    }
    return lambda **changes: Arguments(**(flags | changes))


@pytest.fixture
def data_set() -> Dataset:
    """21 examples of 3 to 14 tokens, labelled by whether "good" occurs."""
    rng = np.random.default_rng(0)
    low = len(VOCABULARY) - len(WORDS)
    rows = [[2, *rng.integers(low, len(VOCABULARY), size).tolist(), 3] for size in rng.integers(1, 13, 21)]
    good = VOCABULARY.index("good")
    return Dataset.from_dict({"input_ids": rows, "labels": [int(good in row) for row in rows]})
