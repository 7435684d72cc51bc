"""The adapters of checkpoints/ are small, belong to the weights beside them, and do their task in a fresh clone."""

import json
import re

import pytest

import run_glue
from elmo_gpt_bert.explorer.entities import entities_of, load_tagger, tag_words
from elmo_gpt_bert.training.files import file_digest
from tests.conftest import ROOT


TAGGER, CLASSIFIER = "checkpoints/bert-books-wnut17", "checkpoints/bert-books-sst2"


@pytest.fixture(autouse=True)
def repository_root(monkeypatch):
    monkeypatch.chdir(ROOT)


@pytest.mark.parametrize("name", [TAGGER, CLASSIFIER])
def test_an_adapter_is_small_and_belongs_to_the_weights_beside_it(name):
    files = {path.name: path for path in (ROOT / name).iterdir()}
    assert files.keys() == {"README.md", "adapter_config.json", "adapter_model.safetensors", "base.json"}
    assert sum(path.stat().st_size for path in files.values()) <= 3e6
    for file in ("README.md", "adapter_config.json", "base.json"):
        assert not re.search(r"/work|/home|/root|/tmp", files[file].read_text(encoding="utf-8")), file
    base = json.loads(files["adapter_config.json"].read_text(encoding="utf-8"))["base_model_name_or_path"]
    digest = json.loads(files["base.json"].read_text(encoding="utf-8"))["sha256"]
    assert digest == file_digest(ROOT / base / "model.safetensors"), "other weights: train the adapter anew"


def test_the_tagger_finds_persons_and_places():
    sentence = "My friend John Smith lives in London ."
    entities = entities_of(tag_words(load_tagger(TAGGER), sentence))
    texts = [(sentence[slice(*entity.span)], entity.type) for entity in entities]
    assert texts == [("John Smith", "person"), ("London", "location")]


def test_the_classifier_knows_praise_from_blame(tmp_path):
    texts = {"a wonderful and moving film .": "positive", "a boring mess .": "negative"}
    texts |= {"one of the best films of the year": "positive", "the plot is dull and stupid .": "negative"}
    file = tmp_path / "new.csv"
    file.write_text("\n".join(["text,label", *(f"{text},{label}" for text, label in texts.items())]), encoding="utf-8")
    argv = ["--model_name_or_path", CLASSIFIER, "--validation_file", str(file), "--do_eval"]
    results = run_glue.main([*argv, "--output_dir", str(tmp_path / "out")])
    assert results["eval_accuracy"] == 1 and results["eval_loss"] < 0.4
