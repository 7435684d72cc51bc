"""The example of LoRA: an adapter learns, is loaded with its own model, and with no other."""

import json
import shutil
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    BertTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

import run_glue
from elmo_gpt_bert.tasks.labelled_texts import MULTI_LABEL
from elmo_gpt_bert.training import loading
from elmo_gpt_bert.training.arguments import ModelSource
from elmo_gpt_bert.training.flags import parse_arguments
from elmo_gpt_bert.training.identity import run_identity
from elmo_gpt_bert.training.loading import load_config, load_model, load_tokenizer
from elmo_gpt_bert.training.output_folder import tokenizer_of
from examples import lora
from modeling import ZooBertConfig, ZooBertForMaskedLM
from tests.conftest import ROOT
from tests.support.glue_sample import write_csv, write_model, write_vocabulary
from tests.support.ner_sample import write_json
from tests.support.processes import fork, run_script, wait


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """A folder with `base`, a tiny BERT with random weights, and `adapter`, which has hardly learned."""
    folder = tmp_path_factory.mktemp("trained")
    ZooBertForMaskedLM(ZooBertConfig.from_pretrained(write_model(folder))).save_pretrained(folder / "base")
    BertTokenizer(vocab=str(write_vocabulary(folder))).save_pretrained(folder / "base")
    words = flags(folder, str(folder / "base"), write_csv(folder / "a.csv", ["ok", "bad"] * 4))
    lora.main(["run_glue", *words, "--max_steps", "1"])
    return folder


@pytest.fixture
def base(trained, tmp_path) -> str:
    """A copy of the tiny BERT."""
    return str(shutil.copytree(trained / "base", tmp_path / "base"))


@pytest.fixture
def adapter(trained, tmp_path, base) -> Path:
    """A copy of the adapter, which belongs to the copy of the tiny BERT, and a.csv, its text, beside it."""
    shutil.copy(trained / "a.csv", tmp_path)
    folder = shutil.copytree(trained / "adapter", tmp_path / "adapter")
    config = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
    config["base_model_name_or_path"] = base
    (folder / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def flags(tmp_path: Path, base: str, file: str) -> list[str]:
    words = ["--model_name_or_path", base, "--train_file", file, "--validation_file", file, "--do_train", "--do_eval"]
    words += ["--output_dir", str(tmp_path / "adapter"), "--learning_rate", "0.01", "--max_steps", "60"]
    return [*words, "--max_seq_length", "32", "--per_device_train_batch_size", "4"]


def load(adapter: Path, head: type) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The adapter with its model, as the scripts load it."""
    source = ModelSource(str(adapter))
    tokenizer = load_tokenizer(source)
    return load_model(head, source, load_config(source), tokenizer, train=False), tokenizer


def test_an_adapter_learns_classes_and_its_base_stays(tmp_path, base):
    before = load_file(Path(base) / "model.safetensors")
    texts, labels = ["the film is", "the plot is"] * 4, ["ok", "bad"] * 4
    file = tmp_path / "a.csv"
    file.write_text("\n".join(["text,label", *map(",".join, zip(texts, labels, strict=True))]), encoding="utf-8")
    results = lora.main(["run_glue", *flags(tmp_path, base, str(file))])
    assert json.loads((tmp_path / "adapter" / "metrics.json").read_text(encoding="utf-8")) == results
    assert all(tensor.equal(before[name]) for name, tensor in load_file(Path(base) / "model.safetensors").items())
    model, tokenizer = load(tmp_path / "adapter", AutoModelForSequenceClassification)
    model.eval()
    assert model.config.id2label == {0: "bad", 1: "ok"}
    with torch.no_grad():
        logits = model(**tokenizer(texts, padding=True, return_tensors="pt")).logits
    loss = torch.nn.functional.cross_entropy(logits, torch.tensor([1, 0] * 4)).item()
    assert loss == pytest.approx(results["eval_loss"], abs=1e-5)
    assert loss < 0.5 and results["eval_accuracy"] == 1


def test_trainer_gets_the_flags_that_it_has_and_the_others_are_named(trained, tmp_path, monkeypatch, capsys):
    words = ["--gradient_accumulation_steps", "3", "--warmup_steps", "7", "--dataloader_num_workers", "2"]
    words += ["--max_grad_norm", "2.5", "--adam_beta2", "0.9", "--freeze_layers", "1", "--lr_scheduler_type", "cosine"]
    words += ["--implementation", "transformers"]
    monkeypatch.setattr(lora, "Trainer", lambda model, settings, **_: pytest.fail(json.dumps(settings.to_dict())))
    argv = ["run_glue", *flags(tmp_path, str(trained / "base"), str(trained / "a.csv")), *words]
    with pytest.raises(pytest.fail.Exception) as stopped:
        lora.main(argv)
    settings = json.loads(str(stopped.value))
    assert (settings["gradient_accumulation_steps"], settings["warmup_steps"]) == (3, 7)
    assert (settings["dataloader_num_workers"], settings["max_grad_norm"], settings["adam_beta2"]) == (2, 2.5, 0.9)
    assert "no effect here: --implementation --freeze_layers --lr_scheduler_type\n" in capsys.readouterr().out


def test_a_finished_run_is_not_written_over(trained, tmp_path, capsys):
    argv = flags(tmp_path, str(trained / "base"), str(trained / "a.csv"))
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "metrics.json").write_text("{}", encoding="utf-8")
    with pytest.raises(SystemExit):
        lora.main(["run_glue", *argv])
    assert "adapter holds a finished run: choose another --output_dir" in capsys.readouterr().err


def test_an_adapter_learns_the_tags_of_words(tmp_path, base):
    rows = [(["the", "film", "is"], ["O", "B-WORK", "O"]), (["the", "cast", "is"], ["O", "B-PER", "O"])] * 4
    results = lora.main(["run_ner", *flags(tmp_path, base, write_json(tmp_path / "a.json", rows))])
    model, _ = load(tmp_path / "adapter", AutoModelForTokenClassification)
    assert results["eval_loss"] < 1.6 and set(model.config.id2label.values()) >= {"O", "B-WORK", "B-PER"}


def test_an_adapter_of_other_weights_is_refused(adapter, base):
    weights = load_file(Path(base, "model.safetensors"))
    weights["bert.embeddings.LayerNorm.bias"] += 1
    save_file(weights, Path(base, "model.safetensors"))
    with pytest.raises(ValueError, match="adapter was trained on .*base with other weights than .*: train it anew"):
        load(adapter, AutoModelForSequenceClassification)


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ("classifier", "does not hold classifier.bias, classifier.weight"),
        ("layer.0.output", "disagree on bert.encoder.layer.0.output.dense.lora_A.*: copy it again"),
    ],
)
def test_a_part_that_an_adapter_lacks_is_never_random(part, message, adapter):
    file = adapter / "adapter_model.safetensors"
    save_file({name: weight for name, weight in load_file(file).items() if part not in name}, file)
    with pytest.raises(ValueError, match=message):
        load(adapter, AutoModelForSequenceClassification)


def test_an_adapter_has_its_own_tokenizer_or_that_of_its_model(adapter, tmp_path, base):
    assert tokenizer_of(str(adapter)) == base
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "its", "own"]
    BertTokenizer(vocab={word: number for number, word in enumerate(vocabulary)}).save_pretrained(adapter)
    assert load_tokenizer(ModelSource(str(adapter))).get_vocab().keys() == {*vocabulary}
    assert tokenizer_of(base) == base


def test_a_run_on_an_adapter_is_another_where_its_model_has_changed(adapter, base, tmp_path):
    (adapter / "base.json").write_text("{}", encoding="utf-8")  # as peft alone leaves an adapter
    file = str(tmp_path / "a.csv")
    argv = ["--model_name_or_path", str(adapter), "--validation_file", file, "--do_eval", "--output_dir", "out"]
    before = run_identity(parse_arguments(run_glue.GlueArguments, argv))
    assert before == run_identity(parse_arguments(run_glue.GlueArguments, argv))
    weights = load_file(Path(base, "model.safetensors"))
    save_file({name: 2 * weight for name, weight in weights.items()}, Path(base, "model.safetensors"))
    after = run_identity(parse_arguments(run_glue.GlueArguments, argv))
    assert {name for name in before if before[name] != after[name]} == {"initial model"}


@pytest.mark.parametrize(
    ("labels", "problem_type"),
    [([0.5, 1.5, 2.5, 4.0] * 2, "regression"), ([["ok"], ["bad", "ok"], [], ["bad"]] * 2, MULTI_LABEL)],
)
def test_an_adapter_for_numbers_or_for_several_labels_is_evaluated_as_it_was_trained(
    labels, problem_type, tmp_path, base
):
    file = tmp_path / "a.jsonl"
    rows = [{"text": f"the film is {number}", "label": label} for number, label in enumerate(labels)]
    file.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    trained = lora.main(["run_glue", *flags(tmp_path, base, str(file)), "--max_steps", "2"])
    assert load_config(ModelSource(str(tmp_path / "adapter"))).problem_type == problem_type
    argv = ["--model_name_or_path", str(tmp_path / "adapter"), "--validation_file", str(file), "--do_eval"]
    results = run_glue.main([*argv, "--max_seq_length", "32", "--output_dir", str(tmp_path / "out")])
    assert {name: results[name] for name in trained} == pytest.approx(trained, abs=1e-5)


@pytest.mark.parametrize("part", ["classifier.weight", "layer.0.output.dense.lora_A.weight"])
def test_weights_of_another_size_are_never_random(part, adapter):
    file = adapter / "adapter_model.safetensors"
    weights = load_file(file)
    (name,) = [name for name in weights if name.endswith(part) and "attention" not in name]
    save_file(weights | {name: torch.cat([weights[name], weights[name]])}, file)
    with pytest.raises(ValueError, match=r"disagree on .*: copy it again"):
        load(adapter, AutoModelForSequenceClassification)


def test_an_adapter_whose_model_is_not_here_is_one_clear_error(adapter, base):
    Path(base).rename(f"{base}-elsewhere")
    with pytest.raises(OSError, match=r"names its model .*base, and there is no .*: run from the folder in which"):
        load(adapter, AutoModelForSequenceClassification)


def test_an_adapter_without_the_name_of_its_model_is_one_clear_error(adapter):
    (adapter / "adapter_config.json").write_text("{}", encoding="utf-8")
    with pytest.raises(ValueError, match="does not name its model, base_model_name_or_path: copy it again"):
        load(adapter, AutoModelForSequenceClassification)


def test_an_adapter_without_peft_is_one_clear_error(adapter, monkeypatch):
    monkeypatch.setattr(loading, "is_peft_available", lambda: False)
    with pytest.raises(ImportError, match="adapter is an adapter, which peft reads: pip install peft"):
        load(adapter, AutoModelForSequenceClassification)


def test_an_adapter_that_does_not_name_its_classes_has_those_of_its_model(adapter, base):
    (adapter / "base.json").unlink()
    config = load_config(ModelSource(str(adapter)))
    assert config.id2label == load_config(ModelSource(base)).id2label and config.architectures is None


def test_a_script_evaluates_an_adapter_and_trains_no_other_on_it(adapter, tmp_path):
    argv = ["--model_name_or_path", str(adapter), "--max_seq_length", "32", "--output_dir", str(tmp_path / "out")]
    file = str(tmp_path / "a.csv")
    results = run_glue.main([*argv, "--validation_file", file, "--do_eval"])
    trained = json.loads((adapter / "metrics.json").read_text(encoding="utf-8"))
    assert results["eval_loss"] == pytest.approx(trained["eval_loss"], abs=1e-6)
    with pytest.raises(ValueError, match="adapter is an adapter, which is only evaluated here: train one with peft"):
        run_glue.main([*argv, "--train_file", file, "--do_train", "--overwrite_output_dir"])


@pytest.mark.slow
def test_the_program_finds_the_script_from_the_root_of_the_repository(monkeypatch, capfd):
    monkeypatch.chdir(ROOT)
    assert wait(fork(partial(run_script, Path("examples/lora.py"), "run_glue", "--nonsense"))) == [1]
    said = capfd.readouterr().err
    assert "unknown argument --nonsense" in said and "lora.py: error:" in said
