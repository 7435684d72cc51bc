"""A trained model saved in bfloat16, in half the space, loads here, in transformers, and by its code."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import (
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForPreTraining,
    AutoTokenizer,
    BertForMaskedLM,
    OpenAIGPTLMHeadModel,
    PreTrainedModel,
)

import modeling
import run_pretraining
from tests.support.pretraining_sample import flags
from tests.support.strangers import load_and_save_again


HEADS = {"masked_lm": AutoModelForMaskedLM, "causal_lm": AutoModelForCausalLM, "bilm": AutoModelForPreTraining}
STOCK = {"masked_lm": BertForMaskedLM, "causal_lm": OpenAIGPTLMHeadModel}


@pytest.fixture(scope="module", params=HEADS)
def run(request, tmp_path_factory) -> tuple[str, Path]:
    """The kind of a model, and the output folder of the run that trained it, with a checkpoint."""
    folder = tmp_path_factory.mktemp(request.param)
    length = ["--max_steps", "2", "--save_strategy", "steps", "--save_steps", "1", "--save_total_limit", "2"]
    length += ["--report_to", "none"]  # drawing takes longer than the run
    run_pretraining.main([*flags(folder, request.param), *length, "--output_dir", str(folder / "trained")])
    return request.param, folder / "trained"


def copy(kind: str, source: Path, output: Path, **options: str) -> PreTrainedModel:
    """Saves the model of `source` in bfloat16, as docs/pretraining.md does; returns it."""
    modeling.register()
    model = HEADS[kind].from_pretrained(source, dtype=torch.bfloat16)
    model.save_pretrained(output, **options)
    AutoTokenizer.from_pretrained(source).save_pretrained(output)
    return model


def rounded(source: Path) -> dict[str, torch.Tensor]:
    return {name: tensor.bfloat16() for name, tensor in load_file(source / "model.safetensors").items()}


def assert_same(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> None:
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        assert ours[name].dtype == tensor.dtype and torch.equal(ours[name], tensor), name


def test_the_weights_are_those_of_the_run_rounded_and_load_in_float32_where_that_is_asked_for(run, tmp_path):
    kind, trained = run
    copy(kind, trained, tmp_path / "small")
    assert_same(load_file(tmp_path / "small" / "model.safetensors"), rounded(trained))
    assert HEADS[kind].from_pretrained(tmp_path / "small").dtype == torch.bfloat16
    expected = HEADS[kind].from_pretrained(trained, dtype=torch.bfloat16).float().state_dict()
    assert_same(HEADS[kind].from_pretrained(tmp_path / "small", dtype=torch.float32).state_dict(), expected)
    tokenizers = [AutoTokenizer.from_pretrained(path) for path in (trained, tmp_path / "small")]
    assert tokenizers[0]("The old man saw it.") == tokenizers[1]("The old man saw it.")


def test_a_copy_in_several_files_is_the_same_model(run, tmp_path):
    kind, trained = run
    copy(kind, trained, tmp_path / "parts", max_shard_size="4KB")
    parts = [load_file(path) for path in (tmp_path / "parts").glob("model-*.safetensors")]
    assert len(parts) > 1
    assert_same({name: tensor for part in parts for name, tensor in part.items()}, rounded(trained))
    whole = copy(kind, trained, tmp_path / "whole").state_dict()
    assert_same(HEADS[kind].from_pretrained(tmp_path / "parts").state_dict(), whole)


def test_a_checkpoint_of_a_run_has_a_copy_too(run, tmp_path):
    kind, trained = run
    checkpoint = trained / "checkpoint-1"
    copy(kind, checkpoint, tmp_path / "small")
    assert_same(load_file(tmp_path / "small" / "model.safetensors"), rounded(checkpoint))


def test_transformers_own_class_computes_the_same(run, tmp_path):
    kind, trained = run
    if kind not in STOCK:
        pytest.skip("transformers has no ELMo")
    model = copy(kind, trained, tmp_path / "small").float().eval()
    stock, info = STOCK[kind].from_pretrained(tmp_path / "small", dtype=torch.float32, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    ids = torch.randint(5, 80, (3, 9))
    torch.testing.assert_close(stock.eval()(ids).logits, model(ids).logits, atol=1e-5, rtol=1e-5)


@pytest.mark.slow
def test_a_copy_loads_by_its_code_where_this_package_is_not_installed(run, tmp_path):
    kind, trained = run
    model = copy(kind, trained, tmp_path / "small").eval()
    ids = torch.randint(1, 260, (3, 5, 12)) if kind == "bilm" else torch.randint(5, 80, (3, 9))
    load_and_save_again(tmp_path / "strangers", {f"small {HEADS[kind].__name__}": (model, {"input_ids": ids})})
