"""Saved folders where this package is not installed: what they carry, and what a process of its own makes of them."""

import atexit
import functools
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
from tests.support.hub_server import HubServer


# Importing torch and transformers takes seconds of CPU. This process does so once, and has a child for each stranger.
# What the libraries read from the environment when they are imported, the child sets.
SERVER = """
import json, os, sys, traceback
for package in ("modeling", "elmo_gpt_bert", "tests"):
    sys.modules[package] = None  # from here on importing it fails, also where it is installed
from pathlib import Path
import torch
import transformers.models.auto.modeling_auto, transformers.pipelines, transformers.trainer
import transformers.models.bert.modeling_bert, transformers.models.openai.modeling_openai
from huggingface_hub import constants, hf_api
from transformers import dynamic_module_utils

def become(stranger):
    home = Path(stranger["home"])
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        os.dup2(os.open(home / name, os.O_RDWR | os.O_CREAT | os.O_TRUNC), number)
    os.chdir(stranger["cwd"])
    dynamic_module_utils.HF_MODULES_CACHE = str(home / "modules")
    if stranger["hub"]:
        constants.HF_HUB_OFFLINE, constants.HF_HUB_CACHE = False, str(home / "hub")
        constants.ENDPOINT = hf_api.ENDPOINT = hf_api.api.endpoint = stranger["hub"]
        constants.HUGGINGFACE_CO_URL_TEMPLATE = stranger["hub"] + "/{repo_id}/resolve/{revision}/{filename}"
        os.environ["HF_TOKEN"] = stranger["token"]
    sys.argv = ["-c", *stranger["words"]]
    exec(compile(stranger["program"], "stranger", "exec"), {"__name__": "__main__"})

for line in sys.stdin:
    child = os.fork()
    if child == 0:
        status = 0
        try:
            become(json.loads(line))
        except BaseException:
            traceback.print_exc()
            status = 1
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
STRANGER = """
import sys
from pathlib import Path
import torch
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


@functools.cache
def _server() -> subprocess.Popen:
    environment = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    environment |= dict.fromkeys(("HF_HUB_DISABLE_XET", "HF_HUB_DISABLE_PROGRESS_BARS", "OMP_NUM_THREADS"), "1")
    environment.pop("TRANSFORMERS_VERBOSITY", None)
    command, pipe = [sys.executable, "-I", "-c", SERVER], subprocess.PIPE
    server = subprocess.Popen(command, cwd="/", env=environment, stdin=pipe, stdout=pipe, text=True)
    atexit.register(server.wait)
    atexit.register(server.kill)  # called first
    return server


def run_stranger(
    program: str, *words: str, home: Path, cwd: Path | str = "/", hub: HubServer | None = None
) -> subprocess.CompletedProcess:
    """Runs a program where this package cannot be imported, and where `hub`, if given, is the Hub."""
    home.mkdir(parents=True, exist_ok=True)
    stranger = {"program": program, "words": words, "home": str(home), "cwd": str(cwd)}
    stranger |= {"hub": hub and hub.url, "token": hub and hub.token}
    server = _server()
    try:
        server.stdin.write(json.dumps(stranger) + "\n")
        server.stdin.flush()
        status = int(server.stdout.readline())
    except BaseException:  # also where the test's time is up: the next stranger has another server
        server.kill()
        _server.cache_clear()
        raise
    printed, errors = ((home / name).read_text(encoding="utf-8") for name in ("stdout", "stderr"))
    return subprocess.CompletedProcess(program, status, printed, errors)


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
    done = run_stranger(STRANGER, str(folder), home=folder / "stranger")
    assert done.stdout.split() == [name for name, *_ in expected.values()], done.stderr[-3000:]
    for case in cases:
        again = folder / f"{case} again"
        assert code_followed(again) <= code_in(again) <= code_in(folder / case)
        for path in again.iterdir():
            if path.suffix in (".py", ".safetensors"):
                assert path.read_bytes() == (folder / case / path.name).read_bytes()
