"""What every test relies on: no network, one thread a process, quiet libraries, the registries as they were."""

import os
from pathlib import Path


os.environ.setdefault("HF_HUB_OFFLINE", "1")  # before huggingface_hub reads it
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from accelerate.state import AcceleratorState  # noqa: E402

import modeling  # noqa: E402


ROOT = Path(__file__).resolve().parent.parent
transformers.utils.logging.disable_progress_bar()


@pytest.fixture(autouse=True)
def _process_as_it_was():
    """What a run sets for its whole process is undone: each test starts like a fresh one."""
    torch.set_num_threads(1)  # tests run side by side, and models this small lose time to a second thread
    torch.manual_seed(0)
    verbosity = transformers.utils.logging.get_verbosity()
    yield
    transformers.utils.logging.set_verbosity(verbosity)
    torch.set_float32_matmul_precision("highest")
    AcceleratorState._reset_state(True)
    modeling.unregister()


@pytest.fixture
def data() -> Path:
    """The folder of real data sets: $ZOO_DATA, or ../shared/data beside the checkout."""
    folder = Path(os.environ.get("ZOO_DATA", ROOT.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"no data at {folder}; set ZOO_DATA to the folder that holds glue/, vocab/, ...")
    return folder
