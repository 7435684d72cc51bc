"""The example of LoRA: an adapter learns, is loaded with its own model, and with no other."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer, BertTokenizer

from examples import lora
from modeling import ZooBertConfig, ZooBertForMaskedLM
from tests.conftest import ROOT
from tests.support.glue_sample import write_csv, write_model, write_vocabulary
from tests.support.ner_sample import write_json


@pytest.fixture
def base(tmp_path) -> str:
    """A tiny BERT with random weights."""
    ZooBertForMaskedLM(ZooBertConfig.from_pretrained(write_model(tmp_path))).save_pretrained(tmp_path / "base")
    BertTokenizer(vocab=str(write_vocabulary(tmp_path))).save_pretrained(tmp_path / "base")
    return str(tmp_path / "base")


def flags(tmp_path: Path, base: str, file: str) -> list[str]:
    words = ["--model_name_or_path", base, "--train_file", file, "--validation_file", file, "--do_train", "--do_eval"]
    words += ["--output_dir", str(tmp_path / "adapter"), "--learning_rate", "0.02", "--max_steps", "60"]
    return [*words, "--max_seq_length", "32", "--per_device_train_batch_size", "4"]


def test_an_adapter_learns_classes_and_its_base_stays(tmp_path, base):
    before = load_file(Path(base) / "model.safetensors")
    texts, labels = ["the film is", "the plot is"] * 4, ["ok", "bad"] * 4
    file = tmp_path / "a.csv"
    file.write_text("\n".join(["text,label", *map(",".join, zip(texts, labels, strict=True))]), encoding="utf-8")
    results = lora.main(["run_glue", *flags(tmp_path, base, str(file))])
    assert json.loads((tmp_path / "adapter" / "metrics.json").read_text(encoding="utf-8")) == results
    assert all(tensor.equal(before[name]) for name, tensor in load_file(Path(base) / "model.safetensors").items())
    model, tokenizer = lora.load_adapter(tmp_path / "adapter", base).eval(), AutoTokenizer.from_pretrained(base)
    assert model.config.id2label == {0: "bad", 1: "ok"}
    with torch.no_grad():
        logits = model(**tokenizer(texts, padding=True, return_tensors="pt")).logits
    loss = torch.nn.functional.cross_entropy(logits, torch.tensor([1, 0] * 4)).item()
    assert loss == pytest.approx(results["eval_loss"], abs=1e-5)
    assert loss < 0.5 and results["eval_accuracy"] == 1


def test_an_adapter_learns_the_tags_of_words(tmp_path, base):
    rows = [(["the", "film", "is"], ["O", "B-WORK", "O"]), (["the", "cast", "is"], ["O", "B-PER", "O"])] * 4
    results = lora.main(["run_ner", *flags(tmp_path, base, write_json(tmp_path / "a.json", rows))])
    model = lora.load_adapter(tmp_path / "adapter", base)
    assert results["eval_loss"] < 1.6 and set(model.config.id2label.values()) >= {"O", "B-WORK", "B-PER"}


def test_an_adapter_of_other_weights_is_refused(tmp_path, base):
    lora.main(["run_glue", *flags(tmp_path, base, write_csv(tmp_path / "a.csv", ["ok", "bad"] * 4))])
    other = shutil.copytree(base, tmp_path / "other")
    weights = load_file(other / "model.safetensors")
    weights["bert.embeddings.LayerNorm.bias"] += 1
    save_file(weights, other / "model.safetensors")
    with pytest.raises(ValueError, match="adapter was trained on base with other weights than .*other: train it anew"):
        lora.load_adapter(tmp_path / "adapter", str(other))


def test_the_program_finds_the_script_from_the_root_of_the_repository():
    words = [sys.executable, "examples/lora.py", "run_glue", "--nonsense"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert "unknown argument --nonsense" in done.stderr and "Traceback" not in done.stderr, done.stderr
