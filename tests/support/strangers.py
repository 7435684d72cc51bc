"""Saved folders where this package is not installed: what they carry, and what a process of its own makes of them."""

import json
import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

import torch
from transformers import PreTrainedModel
from transformers.dynamic_module_utils import get_relative_import_files

from modeling.shared import modeling_onednn


STRANGER = """
import sys
from pathlib import Path
import torch
for package in ("modeling", "training", "tasks"):
    sys.modules[package] = None  # from here on importing it fails, also where it is installed
import transformers

folder = Path(sys.argv[1])
for case, (name, inputs, outputs) in torch.load(folder / "cases.pt").items():
    auto = getattr(transformers, case.rpartition(" ")[2])
    for place in (folder / case, folder / f"{case} again"):
        model = auto.from_pretrained(place, trust_remote_code=True)
        assert type(model).__name__ == name and type(model).__module__.startswith("transformers_modules."), model
        assert name in auto._model_mapping._model_mapping.values()  # where names are looked up
        with torch.no_grad():
            tensors = [tensor for tensor in model(**inputs).to_tuple() if torch.is_tensor(tensor)]
        torch.testing.assert_close(tensors, outputs, atol=1e-6, rtol=1e-6)
        model.save_pretrained(folder / f"{case} again")
        if (place / "tokenizer_config.json").exists():
            tokenizer = transformers.AutoTokenizer.from_pretrained(place, trust_remote_code=True)
            assert tokenizer("Zoe ran")["input_ids"] == tokenizer.convert_tokens_to_ids(["Zoe", "ran"])
            tokenizer.save_pretrained(folder / f"{case} again")
    print(name)
"""


def code_in(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("*.py")}


def code_followed(folder: Path) -> set[str]:
    """The files that a folder's auto_map names, and those that transformers finds that these import."""
    named = json.loads((folder / "config.json").read_text(encoding="utf-8"))["auto_map"].values()
    files = [folder / f"{reference.split('.')[0]}.py" for reference in named]
    return {Path(file).name for named_file in files for file in (named_file, *get_relative_import_files(named_file))}


def load_and_save_again(folder: Path, cases: dict[str, tuple[PreTrainedModel, dict[str, torch.Tensor]]]) -> None:
    """Saves each model, and has a stranger load it, compute the same, save it as "<case> again", and load that.

    The last word of a case is its Auto class; a tokenizer may be in the case's folder already.
    """
    expected = {}
    for case, (model, inputs) in cases.items():
        model.save_pretrained(folder / case)
        # As in a process of its own, where small products are torch's; in the tests they are oneDNN's.
        with torch.no_grad(), mock.patch.object(modeling_onednn, "SMALL", 2**20):
            outputs = [tensor for tensor in model(**inputs).to_tuple() if torch.is_tensor(tensor)]
        expected[case] = (type(model).__name__, inputs, outputs)
    torch.save(expected, folder / "cases.pt")
    env = os.environ | {"HF_MODULES_CACHE": str(folder / "modules"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-I", "-c", STRANGER, str(folder)]
    done = subprocess.run(command, cwd="/", env=env, capture_output=True, text=True, timeout=240)
    assert done.stdout.split() == [name for name, *_ in expected.values()], done.stderr[-3000:]
    for case in cases:
        again = folder / f"{case} again"
        assert code_followed(again) <= code_in(again) <= code_in(folder / case)
        for path in again.iterdir():
            if path.suffix in (".py", ".safetensors"):
                assert path.read_bytes() == (folder / case / path.name).read_bytes()
