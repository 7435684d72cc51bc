"""What a release sends to the Hub."""

import re

import pytest

from tests import publishing
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
def test_all_models_are_loaded_from_where_they_were_published(capsys):
    publishing.main(["someone", "--dry"])
    printed = capsys.readouterr().out
    for name in NAMES:
        assert re.search(rf"^someone/{name}: \d+ tensors, as in checkpoints/{name}$", printed, re.MULTILINE)
