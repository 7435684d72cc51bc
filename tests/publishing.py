"""Publishes the shipped models on the Hub, each with its card and its code, under the name of an owner.

    python -m tests.publishing OWNER          with the rights of whoever is logged in (`hf auth login`)
    python -m tests.publishing OWNER --dry    to a Hub on this machine, with nobody's rights

In both cases each model is loaded again from there, by transformers and the code that was published, in a process that
cannot import this package, and must have the weights of the checkpoint.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from safetensors.torch import load_file
from transformers import AutoConfig, AutoTokenizer

import modeling
from tests.support.hub_server import HubServer


ROOT = Path(__file__).resolve().parent.parent
HEADS = {"bert": "AutoModelForMaskedLM", "openai-gpt": "AutoModelForCausalLM", "elmo": "AutoModelForPreTraining"}
# Arguments: of each model the folder to upload and the name on the Hub. Only the client of the Hub is imported.
UPLOAD = """
import sys
from huggingface_hub import HfApi
for folder, name in zip(sys.argv[1::2], sys.argv[2::2]):
    name = HfApi().create_repo(name, exist_ok=True).repo_id
    print("published", HfApi().upload_folder(repo_id=name, folder_path=folder))
"""
# Arguments: of each model the name on the Hub, the Auto class, and the file for the weights that were loaded.
CHECK = """
import sys
for package in ("modeling", "elmo_gpt_bert", "tests"):
    sys.modules[package] = None  # from here on importing it fails, also where it is installed
import transformers
from safetensors.torch import save_file
for name, auto, file in zip(sys.argv[1::3], sys.argv[2::3], sys.argv[3::3]):
    model = getattr(transformers, auto).from_pretrained(name, trust_remote_code=True)
    assert type(model).__module__.startswith("transformers_modules."), model
    tokenizer = transformers.AutoTokenizer.from_pretrained(name, trust_remote_code=True)
    assert tokenizer("the ship sailed")["input_ids"]
    tied = model.all_tied_weights_keys or {}
    save_file({key: value for key, value in model.state_dict().items() if key not in tied}, file)
"""


def published_folder(checkpoint: Path, folder: Path) -> None:
    """Writes what is published: the checkpoint, the code of its classes, and the card without links into the clone."""
    shutil.copytree(checkpoint, folder)
    modeling.register()
    config, tokenizer = AutoConfig.from_pretrained(checkpoint), AutoTokenizer.from_pretrained(checkpoint)
    modeling.unregister()
    config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    card = (checkpoint / "README.md").read_text(encoding="utf-8")
    (folder / "README.md").write_text(re.sub(r"\[([^\]]+)\]\(\.\./[^)]*\)", r"\1", card), encoding="utf-8")


def run(program: str, *words: object, **variables: str) -> None:
    """Runs a program in a process of its own, which reads the address of the Hub when it begins."""
    command = [sys.executable, "-I", "-c", program, *map(str, words)]
    quiet = {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "TRANSFORMERS_VERBOSITY": "error"}
    subprocess.run(command, cwd="/", env=os.environ | quiet | variables, check=True)


def publish(owner: str, work: Path, **variables: str) -> None:
    """Publishes each checkpoint as OWNER/NAME and compares what is loaded from there with it."""
    checkpoints = sorted(path.parent for path in (ROOT / "checkpoints").glob("*/config.json"))
    folders, checks = [], []
    for checkpoint in checkpoints:
        folder, name = work / checkpoint.name, f"{owner}/{checkpoint.name}"
        published_folder(checkpoint, folder)
        folders += [folder, name]
        checks += [name, HEADS[AutoConfig.from_pretrained(checkpoint).model_type], folder / "loaded.safetensors"]
    run(UPLOAD, *folders, **variables)
    run(CHECK, *checks, HF_HOME=str(work / "home"), **variables)
    for checkpoint in checkpoints:
        name, loaded = f"{owner}/{checkpoint.name}", load_file(work / checkpoint.name / "loaded.safetensors")
        weights = load_file(checkpoint / "model.safetensors")
        different = [
            key for key in weights if key not in loaded or not loaded[key].equal(weights[key].to(loaded[key]))
        ]
        if different:
            sys.exit(f"{name} has other weights than {checkpoint}: {', '.join(different)}")
        print(f"{name}: {len(weights)} tensors, as in {checkpoint.relative_to(ROOT)}")


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("owner", help="a user or an organisation of the Hub")
    parser.add_argument("--dry", action="store_true", help="publish to a Hub on this machine")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as work:
        if args.dry:
            with HubServer() as hub:
                publish(args.owner, Path(work), HF_ENDPOINT=hub.url, HF_TOKEN=hub.token, HF_HUB_OFFLINE="0")
        else:
            publish(args.owner, Path(work), HF_HUB_OFFLINE="0")


if __name__ == "__main__":
    main()
