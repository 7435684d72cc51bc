"""Tokenizers, configurations and models, whole and broken."""

import json
import sys

import pytest
import torch
import transformers
from transformers import AutoModelForSequenceClassification

import loading
from tests.glue_sample import VOCABULARY, write_model
from tests.tiny_run import prepare, weights


def test_a_config_json_gives_random_weights_of_the_chosen_implementation(run):
    for implementation, name in (
        ("zoo", "ZooBertForSequenceClassification"),
        ("transformers", "BertForSequenceClass"),
    ):
        _, _, model, _ = prepare(run(implementation=implementation, output_dir=f"{run().output_dir}-{implementation}"))
        assert type(model).__name__.startswith(name) and model.config.hidden_size == 12


def test_the_attention_implementation_is_passed_on(run):
    assert prepare(run(attn_implementation="eager"))[2].config._attn_implementation == "eager"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"model_type": "bert", "hiden_size": 12}, "bert has no hiden_size"),
        ({"hidden_size": 12}, "does not name its family"),
        ([1], "odd.json must hold one JSON object"),
        (None, "odd.json is not JSON"),
    ],
)
def test_a_config_json_that_is_not_understood_is_an_error(run, tmp_path, content, message):
    path = tmp_path / "odd.json"
    path.write_text(json.dumps(content) if content else "{", encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        loading.load_config(run(model_name_or_path=str(path)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_name_or_path": "./absent.json"}, "absent.json: no such file"),
        ({"model_name_or_path": "./absent"}, "absent: no such folder"),
        ({"tokenizer_name": "./absent.txt"}, "absent.txt: no such file"),
        ({"tokenizer_name": "../a/b"}, "no such folder"),
        ({"model_name_or_path": "nobody/nothing"}, "HF_HUB_OFFLINE=1"),
    ],
)
def test_what_is_not_there_is_one_error_with_its_remedy(run, monkeypatch, changes, message):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    args = run(**changes)
    with pytest.raises(OSError, match=message):
        loading.load_config(args) and loading.load_tokenizer(args)


def test_a_folder_without_a_tokenizer_is_told_from_a_missing_network(run, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(OSError, match="--tokenizer_name may name a vocab.txt"):
        loading.load_tokenizer(run(tokenizer_name=str(tmp_path / "empty")))


def test_a_broken_tokenizer_is_an_error_that_names_its_folder(run, tmp_path):
    loading.load_tokenizer(run()).save_pretrained(tmp_path / "saved")
    (tmp_path / "saved" / "tokenizer.json").write_text("[1]", encoding="utf-8")
    with pytest.raises(OSError, match="cannot load a tokenizer from .*saved"):
        loading.load_tokenizer(run(tokenizer_name=str(tmp_path / "saved")))


def test_a_vocabulary_larger_than_the_models_is_an_error(run, tmp_path):
    args = run(model_name_or_path=str(write_model(tmp_path, vocab_size=20)))
    with pytest.raises(ValueError, match=f"has {len(VOCABULARY)} entries, the model .* only 20"):
        loading.load_model(AutoModelForSequenceClassification, args, loading.load_tokenizer(args))


def test_a_vocab_file_is_read_in_the_casing_asked_for(run):
    lower = loading.load_tokenizer(run())
    cased = loading.load_tokenizer(run(do_lower_case=False))
    assert lower.tokenize("The NA plot") == ["the", "na", "plot"]
    assert cased.tokenize("The NA plot") == ["[UNK]", "NA", "plot"]


def test_a_new_head_is_announced_and_the_rest_is_the_checkpoints(run, tmp_path, capsys):
    _, tokenizer, model, _ = prepare(run())
    model.save_pretrained(tmp_path / "saved")
    args = run(model_name_or_path=str(tmp_path / "saved"))
    wider = loading.load_model(AutoModelForSequenceClassification, args, tokenizer, num_labels=3)
    assert "newly initialised" in (line := capsys.readouterr().out) and "classifier.weight" in line
    assert wider.classifier.weight.shape[0] == 3
    assert torch.equal(weights(wider.base_model), weights(model.base_model))


def test_weights_that_contradict_the_configuration_are_an_error(run, tmp_path):
    _, tokenizer, model, _ = prepare(run())
    model.save_pretrained(tmp_path / "saved")
    args = run(model_name_or_path=str(tmp_path / "saved"))
    with pytest.raises(ValueError, match="disagree on the size of bert.embeddings.position"):
        loading.load_model(AutoModelForSequenceClassification, args, tokenizer, max_position_embeddings=41)


def test_weights_cut_short_are_an_error_that_names_the_folder(run, tmp_path):
    _, tokenizer, model, _ = prepare(run())
    model.save_pretrained(tmp_path / "saved")
    weights_file = tmp_path / "saved" / "model.safetensors"
    weights_file.write_bytes(weights_file.read_bytes()[:-50])
    args = run(model_name_or_path=str(tmp_path / "saved"))
    with pytest.raises(OSError, match=r"cannot load .*saved: a .safetensors file is broken or cut short"):
        loading.load_model(AutoModelForSequenceClassification, args, tokenizer)


def test_an_unknown_attention_is_not_blamed_on_the_folder(run, tmp_path):
    _, tokenizer, model, _ = prepare(run())
    model.save_pretrained(tmp_path / "saved")
    args = run(model_name_or_path=str(tmp_path / "saved"), attn_implementation="foo")
    with pytest.raises(ValueError, match="foo") as info:
        loading.load_model(AutoModelForSequenceClassification, args, tokenizer)
    assert "folder" not in str(info.value)


def test_the_transformers_implementation_is_stock_also_for_a_folder_with_the_zoos_code(run, tmp_path):
    _, tokenizer, model, _ = prepare(run())
    model.save_pretrained(tmp_path / "saved")
    assert (tmp_path / "saved" / "modeling_bert.py").exists()
    args = run(model_name_or_path=str(tmp_path / "saved"), implementation="transformers")
    loaded = loading.load_model(AutoModelForSequenceClassification, args, tokenizer)
    assert type(loaded) is transformers.BertForSequenceClassification


def test_a_checkpoints_own_code_runs_only_when_trusted(run, tmp_path, monkeypatch):
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    _, tokenizer, model, _ = prepare(run(implementation="transformers"))
    folder = tmp_path / "strange"
    model.save_pretrained(folder)
    (folder / "strange.py").write_text(
        "from transformers import BertConfig, BertForSequenceClassification\n"
        "class StrangeConfig(BertConfig):\n    model_type = 'strange'\n"
        "class Strange(BertForSequenceClassification):\n    config_class = StrangeConfig\n",
        encoding="utf-8",
    )
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    auto_map = {"AutoConfig": "strange.StrangeConfig", "AutoModelForSequenceClassification": "strange.Strange"}
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "strange", "auto_map": auto_map}), "utf-8")
    with pytest.raises(ValueError, match="trust_remote_code"):
        loading.load_model(AutoModelForSequenceClassification, run(model_name_or_path=str(folder)), tokenizer)
    args = run(model_name_or_path=str(folder), trust_remote_code=True)
    loaded = loading.load_model(AutoModelForSequenceClassification, args, tokenizer)
    assert type(loaded).__name__ == "Strange" and torch.equal(weights(loaded), weights(model))
