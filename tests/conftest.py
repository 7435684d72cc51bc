"""Where the tests are, their settings, and their fixtures, which only a process that runs tests imports."""

import gc
import os
from pathlib import Path

import pytest


os.environ.setdefault("HF_HUB_OFFLINE", "1")  # before huggingface_hub reads it
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("ZOO_ONEDNN", "1")  # the same products are tested on every processor

ROOT = Path(__file__).resolve().parent.parent


def pytest_configure(config: pytest.Config) -> None:
    """Spares the process that only hands tests to its workers (-n) the imports of the fixtures, ten seconds of CPU."""
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        config.pluginmanager.import_plugin("tests.fixtures")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that fork come first: a fork costs more, the more memory the process has come to hold."""
    items.sort(key=lambda item: not hasattr(item.module, "fork"))


def pytest_collection_finish() -> None:
    """Spares garbage collection what the imports have made; --seeds collects after each seed."""
    spare_garbage_collection()


def spare_garbage_collection() -> None:
    """What is there now is never searched again."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def data() -> Path:
    """The folder of real data sets: $ZOO_DATA, or ../shared/data beside the checkout."""
    folder = Path(os.environ.get("ZOO_DATA", ROOT.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"no data at {folder}; set ZOO_DATA to the folder that holds glue/, vocab/, ...")
    return folder
