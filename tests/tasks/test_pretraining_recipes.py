"""Every recipe of pre-training says where it comes from and what to expect, fits the script, and runs."""

import re
from pathlib import Path

import pytest
import torch
import yaml

import modeling
import run_pretraining
from elmo_gpt_bert.training import log
from elmo_gpt_bert.training.flags import parse_arguments
from elmo_gpt_bert.training.loading import load_config
from tests.conftest import ROOT
from tests.support.glue_sample import write_model, write_vocabulary
from tests.support.gpt_sample import write_gpt_model
from tests.support.pretraining_sample import MODELS, write_config, write_text


RECIPES = sorted(ROOT.glob("configs/*/pretraining*.yaml"))
NAMES = [f"{path.parent.name}/{path.stem}" for path in RECIPES]
KINDS = {"bert": "masked_lm", "gpt": "causal_lm", "elmo": "bilm"}


@pytest.fixture(autouse=True)
def repository_root(monkeypatch):
    """Recipes name their files from the repository's root."""
    monkeypatch.chdir(ROOT)


@pytest.fixture(autouse=True)
def _no_curves(monkeypatch):
    """Drawing takes longer than these runs do; test_run_pretraining.py draws."""
    monkeypatch.setattr(log, "draw_curves", lambda *_: False)


@pytest.fixture(params=RECIPES, ids=NAMES)
def recipe(request) -> Path:
    return request.param


def test_each_family_has_the_papers_recipe_and_a_small_one():
    assert {f"{family}/{name}" for family in KINDS for name in ("pretraining", "pretraining_small")} <= set(NAMES)


def test_a_recipe_says_its_source_and_what_to_expect(recipe):
    header = "".join(line for line in recipe.read_text(encoding="utf-8").splitlines(True) if line.startswith("#"))
    assert re.search(r"^# Source: .*(section|this project)", header, flags=re.MULTILINE)
    expected = re.search(r"^# Expected: (.*)", header, flags=re.MULTILINE | re.DOTALL).group(1)
    assert re.search(r"perplexity \d|accuracy \d|not measured", expected)


def tiny(folder: Path, recipe: Path) -> list[str]:
    """The flags that name a tiny model of the recipe's family, and text."""
    content, family = yaml.safe_load(recipe.read_text(encoding="utf-8")), recipe.parent.name
    sizes = {"gpt": {"n_positions": 512}, "bert": {"max_position_embeddings": 512}, "elmo": {}}[family]
    if not content["model_name_or_path"].endswith(".json"):
        flags = ["--model_name_or_path", write_model(folder, **sizes), "--tokenizer_name", write_vocabulary(folder)]
    else:
        flags = ["--model_name_or_path", write_config(folder, KINDS[family], **sizes)]
    if content["model_name_or_path"].endswith(".json") and "tokenizer_name" in content:
        # That of checkpoints/elmo-books.
        tokenizer, size = content["tokenizer_name"], "lm_vocab_size=20000,max_characters_per_token=50"
        if family != "elmo":
            tokenizer, size = (
                write_vocabulary(folder) if family == "bert" else write_gpt_model(folder),
                "vocab_size=400",
            )
        overrides = filter(None, [content.get("config_overrides"), size])
        flags += ["--tokenizer_name", tokenizer, "--config_overrides", ",".join(overrides)]
    text = ["--train_file", str(write_text(folder)), "--validation_file", str(write_text(folder, "other.txt", 4, 1))]
    return [*map(str, flags), *text]


@pytest.mark.parametrize("family, name", [("bert", "27m"), ("gpt", "27m"), ("elmo", "bilm_27m")])
def test_the_second_size_of_a_minutes_recipe_has_about_27_million_parameters(family, name):
    argv = [f"configs/{family}/pretraining_gpu.yaml", "--model_name_or_path", f"configs/{family}/{name}.json"]
    args = parse_arguments(run_pretraining.PretrainingArguments, argv)
    modeling.register()
    with torch.device("meta"):
        model = run_pretraining.OBJECTIVES[KINDS[family]].from_config(load_config(args.source))
    assert 26e6 < model.num_parameters() < 27.5e6


def test_a_recipe_fits_the_script(recipe):
    args = parse_arguments(run_pretraining.PretrainingArguments, [str(recipe.relative_to(ROOT))])
    assert args.output_dir == f"runs/{recipe.parent.name}/{recipe.stem}" and args.do_train and args.do_eval
    is_shipped = args.model_name_or_path.startswith("checkpoints/") and (ROOT / args.model_name_or_path).is_dir()
    assert is_shipped or args.model_name_or_path.startswith(("configs/", "runs/"))


@pytest.mark.slow
def test_a_recipe_runs(recipe, tmp_path):
    argv = [str(recipe), *tiny(tmp_path, recipe), "--output_dir", str(tmp_path / "out"), "--max_steps", "3"]
    argv += ["--per_device_train_batch_size", "2", "--gradient_accumulation_steps", "1", "--mixed_precision", "no"]
    argv += ["--batch_ramp_steps", "0", "--eval_steps", "3", "--dataloader_num_workers", "0"]
    argv += ["--report_to", "none"]
    metrics = run_pretraining.main([*argv, "--preprocessing_num_workers", "1", "--max_eval_samples", "2"])
    assert metrics["train_updates"] == 3 and metrics["eval_perplexity"] > 1
    assert MODELS[KINDS[recipe.parent.name]]["model_type"] in (tmp_path / "out" / "config.json").read_text()
