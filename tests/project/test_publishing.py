"""What a release sends to the Hub."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.publishing import ROOT, published_folder


NAMES = ["bert-books", "elmo-books", "gpt-books"]


@pytest.mark.parametrize("name", NAMES)
def test_a_published_model_has_its_code_and_a_card_without_links_into_the_clone(name, tmp_path):
    checkpoint, folder = ROOT / "checkpoints" / name, tmp_path / name
    published_folder(checkpoint, folder)
    assert (folder / "model.safetensors").read_bytes() == (checkpoint / "model.safetensors").read_bytes()
    assert list(folder.glob("modeling_*.py")) and list(folder.glob("configuration_*.py"))
    cards = [(place / "README.md").read_text(encoding="utf-8") for place in (checkpoint, folder)]
    links = [re.findall(r"\]\(([^)]+)\)", card) for card in cards]
    assert any(link.startswith("..") for link in links[0])
    assert links[1] == [link for link in links[0] if not link.startswith("..")]


@pytest.mark.slow
def test_all_models_are_loaded_from_where_they_were_published():
    command = [sys.executable, "-m", "tests.publishing", "someone", "--dry"]
    done = subprocess.run(command, cwd=Path(ROOT), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    for name in NAMES:
        assert re.search(rf"^someone/{name}: \d+ tensors, as in checkpoints/{name}$", done.stdout, re.MULTILINE)
