"""Every recipe under configs/ says where it comes from, fits its script, and runs."""

import json
import re
from pathlib import Path

import pytest
import torch
import yaml
from transformers import AutoConfig, AutoModelForPreTraining

import run_glue
from tests.conftest import ROOT
from tests.glue_sample import FOLDERS, text, write_model, write_task, write_vocabulary
from training.arguments import parse_arguments
from training.loading import load_config


RECIPES = sorted(ROOT.glob("configs/bert/*.yaml"))
ARCHITECTURES = sorted(ROOT.glob("configs/bert/*.json"))
# Millions of parameters with both pre-training heads, as Turc et al. 2019 (arXiv 1908.08962) count them.
MILLIONS = {"tiny": 4.4, "mini": 11.3, "small": 29.1, "medium": 41.7, "base": 110.1}


@pytest.fixture(autouse=True)
def repository_root(monkeypatch):
    """Recipes name their files from the repository's root."""
    monkeypatch.chdir(ROOT)


def names(paths: list[Path]) -> list[str]:
    return [path.stem for path in paths]


def test_there_is_a_recipe_for_every_task():
    assert set(FOLDERS) == set(run_glue.TASKS) <= set(names(RECIPES))


@pytest.mark.parametrize("recipe", RECIPES, ids=names(RECIPES))
def test_a_recipe_says_its_source_and_what_to_expect(recipe):
    header = "".join(line for line in recipe.read_text(encoding="utf-8").splitlines(True) if line.startswith("#"))
    assert re.search(r"^# Source: .*(section|this project)", header, flags=re.MULTILINE)
    expected = re.search(r"^# Expected: (.*)", header, flags=re.MULTILINE | re.DOTALL).group(1)
    assert re.search(r"\d\d\.\d", expected) and ("dev" in expected or "test" in expected)


@pytest.mark.parametrize("recipe", RECIPES, ids=names(RECIPES))
def test_a_recipe_fits_its_script(recipe):
    args = parse_arguments(run_glue.GlueArguments, [str(recipe.relative_to(ROOT))])
    assert args.do_train and args.do_eval and args.output_dir == f"runs/bert/{recipe.stem}"
    assert recipe.stem.removesuffix("_scratch") == (args.task_name or Path(args.train_file).parent.name)
    if args.model_name_or_path.endswith(".json"):
        assert load_config(args).max_position_embeddings >= args.max_seq_length


def write_data(folder: Path, recipe: dict) -> dict[str, Path]:
    """The recipe's task in GLUE's layout, or its csv files of the user's own; returns the flags that name them."""
    if "task_name" in recipe:
        write_task(folder, FOLDERS[recipe["task_name"]])
        return {"data_dir": folder}
    files = {flag: folder / Path(recipe[flag]).name for flag in ("train_file", "validation_file")}
    for path in files.values():
        rows = [f"{row % 2},{text(row, 0)}" for row in range(8)]
        path.write_text("\n".join(["label,text", *rows]), encoding="utf-8")
    return files


@pytest.mark.parametrize("recipe", RECIPES, ids=names(RECIPES))
def test_a_recipe_runs(recipe, tmp_path):
    changes = {
        "model_name_or_path": write_model(tmp_path, max_position_embeddings=256),
        "tokenizer_name": write_vocabulary(tmp_path),
        **write_data(tmp_path, yaml.safe_load(recipe.read_text(encoding="utf-8"))),
        "output_dir": tmp_path / "out",
        "max_train_samples": 8,
        "max_steps": 2,
    }
    run_glue.main([str(recipe), *(word for name, value in changes.items() for word in (f"--{name}", str(value)))])
    record = json.loads((tmp_path / "out" / "metrics.json").read_text(encoding="utf-8"))
    assert any(name.startswith("eval_") and 0 <= abs(record[name]) <= 1 for name in record)
    assert {"README.md", "config.json", "model.safetensors"} <= {path.name for path in (tmp_path / "out").iterdir()}


@pytest.mark.parametrize("path", ARCHITECTURES, ids=names(ARCHITECTURES))
def test_an_architecture_holds_only_what_its_family_has(path):
    values = json.loads(path.read_text(encoding="utf-8"))
    config = AutoConfig.for_model(values["model_type"])
    assert values.keys() <= config.to_dict().keys()
    assert values["hidden_size"] == 64 * values["num_attention_heads"] == values["intermediate_size"] // 4


@pytest.mark.parametrize("name", MILLIONS)
def test_the_published_sizes_have_their_number_of_parameters(name):
    values = json.loads((ROOT / "configs" / "bert" / f"{name}.json").read_text(encoding="utf-8"))
    with torch.device("meta"):
        model = AutoModelForPreTraining.from_config(AutoConfig.for_model(**values))
    assert model.num_parameters() / 1e6 == pytest.approx(MILLIONS[name], abs=0.06)
