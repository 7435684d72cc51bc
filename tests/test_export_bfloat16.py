"""A trained model stored in half the space loads as it was, with its scores on its card."""

import json
import re
from pathlib import Path

import pytest
import torch
from huggingface_hub import ModelCard
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoModelForPreTraining, AutoTokenizer

import run_blimp
import run_pretraining
from elmo_gpt_bert.training.checksums import SHA256SUMS
from elmo_gpt_bert.training.errors import UserError
from modeling.export_bfloat16 import export, main
from tests.pairs_sample import write_pairs
from tests.pretraining_sample import flags


HEADS = {"masked_lm": AutoModelForMaskedLM, "causal_lm": AutoModelForCausalLM, "bilm": AutoModelForPreTraining}


@pytest.fixture(scope="module", params=HEADS)
def run(request, tmp_path_factory) -> tuple[str, Path]:
    """The kind of a model, and a folder with the run that trained it, "trained", and its scores, "scores"."""
    folder = tmp_path_factory.mktemp(request.param)
    changes = {"n_positions": 40} if request.param == "causal_lm" else {}  # for the text that the card's code makes
    length = ["--max_steps", "2", "--save_strategy", "steps", "--save_steps", "1", "--save_total_limit", "2"]
    length += ["--report_to", "none"]  # drawing takes longer than the run
    run_pretraining.main([*flags(folder, request.param, **changes), *length, "--output_dir", str(folder / "trained")])
    pairs = ["--data_file", str(write_pairs(folder / "pairs.jsonl"))]
    scores = ["--output_dir", str(folder / "scores")]
    run_blimp.main(["--model_name_or_path", str(folder / "trained"), *pairs, *scores])
    return request.param, folder


@pytest.mark.slow
def test_the_weights_are_those_of_the_run_rounded_to_bfloat16_and_load_in_float32(run, tmp_path):
    kind, folder = run
    export(str(folder / "trained"), str(tmp_path / "small"))
    before, after = (load_file(path / "model.safetensors") for path in (folder / "trained", tmp_path / "small"))
    assert before.keys() == after.keys() and {tensor.dtype for tensor in after.values()} == {torch.bfloat16}
    expected = HEADS[kind].from_pretrained(folder / "trained")
    expected.load_state_dict({name: tensor.bfloat16().float() for name, tensor in expected.state_dict().items()})
    model = HEADS[kind].from_pretrained(tmp_path / "small")
    for name, tensor in model.state_dict().items():
        assert tensor.dtype == torch.float32 and torch.equal(tensor, expected.state_dict()[name]), name
    tokenizers = [AutoTokenizer.from_pretrained(path) for path in (folder / "trained", tmp_path / "small")]
    assert tokenizers[0]("The old man saw it.") == tokenizers[1]("The old man saw it.")


def test_the_folder_has_no_code_and_asks_for_none(run, tmp_path):
    _, folder = run
    main(["--model", str(folder / "trained"), "--output", str(tmp_path / "small")])
    names = {path.name for path in (tmp_path / "small").iterdir()}
    assert names > {"config.json", "model.safetensors", "tokenizer_config.json", "README.md"}
    assert not [name for name in names if name.endswith(".py") or name in ("metrics.json", SHA256SUMS)]
    for name in ("config.json", "tokenizer_config.json"):
        assert "auto_map" not in json.loads((tmp_path / "small" / name).read_text())
    assert "trust_remote_code" not in (tmp_path / "small" / "README.md").read_text()


def test_the_card_has_the_scores_of_the_evaluations_and_its_code_runs(run, tmp_path, monkeypatch):
    _, folder = run
    main(
        ["--model", str(folder / "trained"), "--output", str(tmp_path / "small"), "--evaluations", f"{folder}/scores"]
    )
    card = ModelCard.load(tmp_path / "small" / "README.md")
    assert card.data.model_name == "small" and "\n# small\n" in card.text
    trained, scores = (json.loads((folder / name / "metrics.json").read_text()) for name in ("trained", "scores"))
    values = {result.metric_type: result.metric_value for result in card.data.eval_results}
    assert values["perplexity"] == trained["eval_perplexity"] and values["accuracy"] == scores["eval_accuracy"]
    table = card.text.partition("## Scores on ")[2].partition("## How to use")[0]
    assert f"| accuracy | {scores['eval_accuracy']:.4f} |" in table and "| type | accuracy" in table
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", card.text, flags=re.DOTALL)
    assert blocks
    for block in blocks:
        exec(block, {})


def test_a_checkpoint_is_exported_without_what_resumes_its_run_and_without_a_card(run, tmp_path):
    kind, folder = run
    checkpoint = folder / "trained" / "checkpoint-1"
    export(str(checkpoint), str(tmp_path / "small"))
    names = {path.name for path in (tmp_path / "small").iterdir()}
    assert names > {"config.json", "model.safetensors", "tokenizer_config.json"}
    assert (
        not [name for name in names if name.endswith((".py", ".bin", ".pkl", ".md"))] and "progress.json" not in names
    )
    before, after = (load_file(path / "model.safetensors") for path in (checkpoint, tmp_path / "small"))
    assert all(torch.equal(tensor.bfloat16(), after[name]) for name, tensor in before.items())
    assert HEADS[kind].from_pretrained(tmp_path / "small").dtype == torch.float32
    with pytest.raises(UserError, match="checkpoint-1 is a checkpoint and has no card for their scores"):
        export(str(checkpoint), str(tmp_path / "other"), [str(folder / "scores")])


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda folder: (folder / SHA256SUMS).unlink(), "there is no SHA256SUMS. Give the output folder"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"0" * 50), "model.safetensors has .* less"),
        (lambda folder: (folder / "README.md").unlink(), "README.md: no such file"),
        (lambda folder: (folder.parent / "small").mkdir() or (folder.parent / "small" / "notes").touch(), "already"),
    ],
)
def test_a_folder_that_cannot_be_exported_is_one_clear_error(run, tmp_path, spoil, message):
    _, folder = run
    (tmp_path / "trained").mkdir()
    for path in filter(Path.is_file, (folder / "trained").iterdir()):
        (tmp_path / "trained" / path.name).write_bytes(path.read_bytes())
    spoil(tmp_path / "trained")
    with pytest.raises(UserError, match=message):
        export(str(tmp_path / "trained"), str(tmp_path / "small"))
    assert not (tmp_path / "small" / "config.json").exists()


def test_a_run_that_trained_is_no_evaluation(run, tmp_path):
    _, folder = run
    with pytest.raises(UserError, match="evaluations .*trained: its README.md is not the card of a run that only"):
        export(str(folder / "trained"), str(tmp_path / "small"), [str(folder / "trained")])
