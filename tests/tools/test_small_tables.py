"""The tables of zoo-reproduce: the scripts accept their commands, and a run of each kind runs in miniature."""

import importlib
import json
from dataclasses import replace as changed
from pathlib import Path

import pytest

from elmo_gpt_bert.reproduction import __main__ as reproduce
from elmo_gpt_bert.reproduction import runner
from elmo_gpt_bert.reproduction.report import read_runs
from elmo_gpt_bert.reproduction.runner import Folders, Step, plan
from elmo_gpt_bert.reproduction.tables import MODELS, TABLES
from tests.conftest import ROOT
from tests.project.test_guides import parser_of
from tests.support.reproduction_sample import write_data, write_models


SMALL, OF_THE_PAPERS = (
    [budgets[budget] for budgets in TABLES.values() if budget in budgets] for budget in ("small", "paper")
)


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> Folders:
    root = tmp_path_factory.mktemp("reproduce")
    models = write_models(root / "models")
    models |= {f"{family}-small": models[family] for family in list(models)} | {"minilm": str(models["bert"])}
    return Folders(write_data(root / "data"), models, root / "runs")


@pytest.fixture
def repository_root(monkeypatch):
    monkeypatch.chdir(ROOT)


@pytest.mark.parametrize("record", sorted(ROOT.glob("docs/records/*.json")), ids=lambda path: path.stem)
def test_the_records_are_of_todays_recipes_data_and_models(record, data, repository_root):
    table = TABLES[record.stem]["small"]
    steps_of_table = plan(table, Folders(data, MODELS["small"], Path("runs")), 3)
    assert read_runs(record, table, steps_of_table)  # raises for a run that would be another one today


@pytest.mark.parametrize("table", SMALL, ids=lambda table: table.name)
def test_the_scripts_accept_every_command_of_a_table(table, folders, repository_root):
    for step in plan(table, folders, seeds=1):
        if step.row.is_run:
            assert runner.parse(step).seed == (step.seed or 42)
        else:
            parser_of(importlib.import_module(step.row.script)).parse_args(step.words)


@pytest.mark.parametrize("table", [*SMALL, *OF_THE_PAPERS], ids=lambda table: f"{table.name}, {table.budget}")
def test_each_line_of_a_table_has_a_run_a_reason_or_a_publication(table):
    cells = [cell for row in table.rows for cell in row.scores]
    ours = {*cells}
    assert len(cells) == len(ours)  # no two runs claim a cell
    assert not table.gaps.keys() & ours
    published = {line for line, column in table.published if column in table.columns}
    for line in table.lines:
        missing = {column for column in table.columns if (line, column) not in ours | table.gaps.keys()}
        assert not missing or line in published, (line, missing)


def test_the_flags_of_a_row_are_those_of_its_line(folders, repository_root):
    planned = {table.name: {step.row.name: step for step in plan(table, folders, seeds=1)} for table in SMALL}
    without = runner.parse(planned["pretraining_pays"]["cola/elmo_no_bilm"])
    assert {"use_elmo=false", "rnn_size=150"} <= {*without.config_overrides.split(",")}  # the row's and the recipe's
    assert Path(without.model_name_or_path).name == "config.json"  # random weights
    pretrained = runner.parse(planned["pretraining_pays"]["cola/elmo_features"])
    assert "use_elmo" not in pretrained.config_overrides and Path(pretrained.model_name_or_path).name == "elmo_words"
    head_alone = runner.parse(planned["pretraining_pays"]["cola/bert_features"])
    assert (head_alone.freeze_layers, head_alone.learning_rate) == (5, 1e-3)
    assert runner.parse(planned["pretraining_pays"]["cola/bert_fine_tuned"]).freeze_layers is None
    tagger = runner.parse(planned["pretraining_pays"]["wnut17/bert_features"])
    assert (tagger.freeze_layers, tagger.features) == (None, "concat_last_four")
    for name in ("random", "fine_tuned"):
        along = runner.parse(planned["pretraining_pays"][f"squad/elmo_{name}"])
        assert "freeze_bilm=false" in along.config_overrides and along.learning_rate == 5e-4
    masks = planned["ablations"]["wnut17/masks_0_20_80"]
    assert [line for line, _ in masks.row.scores] == [("masked 0, same 20, random 80 %",)]
    pretraining = planned["ablations"]["pretraining/masks_0_20_80"]
    assert masks.words[masks.words.index("--model_name_or_path") + 1] == str(pretraining.output)
    assert (runner.parse(pretraining).mask_share, runner.parse(pretraining).random_share) == (0, 0.8)
    half_way = planned["ablations"]["sst2/base_500_updates"]
    assert str(planned["ablations"]["pretraining/base"].output / "checkpoint-500") in half_way.words
    for count in range(6):
        step = planned["layers"][f"cola/gpt_{count}_layers"]
        assert runner.parse(step).reinit_layers == 5 - count
        assert [line for line, _ in step.row.scores] == [("GPT", f"embeddings and {count} of 5 layers")]


# One run of each kind: table -> rows
KINDS = {
    "pretraining_pays": [
        "cola/bert_random",
        "cola/bert_features",
        "squad/bert_features",
        "codah/bert_random_features",
        "squad/elmo_random",
        "squad/elmo_fine_tuned",
        "cola/elmo_no_bilm",
        "cola/elmo_fine_tuned",
        "cola/elmo_skipgram",
        "cola/elmo_features_skipgram",
    ],
    "published_encoder": ["cola/minilm", "rte/minilm_random"],
    "blimp": ["elmo_small", "bert_within_word"],
    "ablations": ["pretraining/base", "cola/left_to_right", "wnut17/left_to_right_bilstm"],
}


@pytest.mark.slow
@pytest.mark.parametrize("table, name", [(table, name) for table, names in KINDS.items() for name in names])
def test_a_row_of_a_table_runs(table, name, folders, repository_root):
    """In this process, a few updates of it, after those that it needs."""
    planned = {step.row.name: step for step in plan(TABLES[table]["small"], folders, seeds=1)}
    for step in with_needs(planned, name):
        if step.output.is_dir():
            continue
        if step.row.script.startswith("run_"):
            step = shortened(step)
        importlib.import_module(step.row.script).main(step.words)
        if not step.row.is_run:
            assert not runner.is_finished(step)
            runner.complete(step)
        assert runner.is_finished(step)
    step = planned[name]
    metrics = json.loads((step.output / "metrics.json").read_text(encoding="utf-8"))
    wanted = {*step.row.scores.values()}
    if table == "blimp":  # whose pairs in miniature have other phenomena
        wanted = {"eval_accuracy"}
    assert wanted <= metrics.keys()
    runner.complete(step)
    assert (step.output / "metrics.json").is_file()
    card = (step.output / "README.md").read_text(encoding="utf-8")
    assert ("# Scores of" in card) == (table == "blimp")
    assert (step.output / "model.safetensors").is_file() == (bool(step.kept) and table != "blimp")


def with_needs(planned: dict[str, Step], name: str) -> list[Step]:
    """The step, after those that it needs."""
    return [step for need in sorted(planned[name].row.needs) for step in with_needs(planned, need)] + [planned[name]]


def shortened(step: Step) -> Step:
    """A few updates of a run; of a model that begins at random, with a size for tests instead of the recipe's."""
    flags, overrides = dict(step.row.flags), step.row.overrides
    if step.row.script != "run_blimp":
        flags |= {"max_steps": 2, "per_device_train_batch_size": 2}
    if step.row.script == "run_pretraining":
        flags |= {"preprocessing_num_workers": 1, "max_eval_samples": 3}
        flags |= {"max_seq_length": 24, "report_to": "none"}
    if step.row.script == "run_pretraining" or "hidden_size" in overrides:
        overrides = ",".join(filter(None, [overrides, "hidden_size=24,intermediate_size=37"]))
    return changed(step, row=changed(step.row, flags=flags, overrides=overrides))


@pytest.mark.slow
def test_a_command_runs_as_a_user_would_type_it(folders, repository_root, monkeypatch, tmp_path, capsys):
    row = next(row for row in TABLES["layers"]["small"].rows if row.name == "cola/bert_0_layers")
    monkeypatch.setitem(TABLES, "one", {"small": changed(TABLES["layers"]["small"], name="one", rows=(row,))})
    words = ["one", "--seeds", "1", "--data_root", str(folders.data), "--output_dir", str(tmp_path)]
    reproduce.main([*words, "--models", f"bert={folders.models['bert']}"])
    reproduce.main([*words, "--models", f"bert={folders.models['bert']}"])
    assert "cola/bert_0_layers, seed 42: had finished before" in capsys.readouterr().out
    metrics = json.loads((tmp_path / "one/cola/bert_0_layers/seed-42/metrics.json").read_text(encoding="utf-8"))
    (entry,) = json.loads((tmp_path / "one/record.json").read_text())["rows"][0]["runs"].values()
    assert entry["metrics"].items() <= metrics.items()
    assert entry["environment"] == 0
