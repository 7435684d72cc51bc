"""The papers' tables: their commands, their published figures, and what is said of ours beside them."""

import csv
import dataclasses
import importlib
import json
import math
import os
import random
import re
import statistics
import sys
from pathlib import Path

import pytest
import torch
from scipy.stats import norm

from elmo_gpt_bert.convert import vectors
from elmo_gpt_bert.reproduction import __main__ as reproduce
from elmo_gpt_bert.reproduction import report, runner
from elmo_gpt_bert.reproduction.report import reach, verdict
from elmo_gpt_bert.reproduction.runner import Folders, Step, plan
from elmo_gpt_bert.reproduction.tables import MODELS, TABLES, Place, Row, Table
from elmo_gpt_bert.training.identity import run_identity
from tests.conftest import ROOT
from tests.project.test_guides import parser_of
from tests.support.reproduction_sample import write_models, write_paper_data


TABLES_OF_PAPERS = {name: budgets["paper"] for name, budgets in TABLES.items() if "paper" in budgets}


@pytest.fixture
def repository_root(monkeypatch):
    monkeypatch.chdir(ROOT)


# Their commands


@pytest.fixture(scope="module")
def commands() -> dict[str, list[Step]]:
    """The steps of each table for somebody who has only downloaded what is not on the Hub."""
    folders = Folders(Path("data"), MODELS["paper"], Path("runs"))
    return {name: plan(table, folders, seeds=1) for name, table in TABLES_OF_PAPERS.items()}


@pytest.mark.slow
def test_the_scripts_accept_every_command_with_the_models_and_data_of_the_hub(commands, repository_root):
    parser = parser_of(vectors)
    every = {step.row.name: step for of_table in commands.values() for step in of_table}
    for step in every.values():
        if step.row.is_run:
            args = runner.parse(step)
            assert args.do_train and args.do_eval and args.output_dir == str(step.output)
        else:
            parser.parse_args(step.words)


def test_a_run_of_several_tables_is_the_same_in_all_of_them(commands):
    words = {}
    for step in (step for of_table in commands.values() for step in of_table):
        assert words.setdefault(step.output, step.words) == step.words
    shared = {step.row.name for step in commands["glue"]} & {step.row.name for step in commands["gpt_tasks"]}
    assert "gpt/cola" in shared


def test_what_one_table_would_remove_and_another_one_needs_is_kept(commands):
    needed = {name for of_table in commands.values() for step in of_table for name in step.row.needs}
    assert needed and all(step.kept for of_table in commands.values() for step in of_table if step.row.name in needed)


def test_data_come_from_the_folder_if_they_are_there_and_otherwise_from_the_hub(tmp_path, repository_root):
    folders = Folders(tmp_path, MODELS["paper"], tmp_path)

    def words(name: str) -> list[str]:
        return next(step for step in plan(TABLES["glue"]["paper"], folders, 1) if step.row.name == name).words

    (tmp_path / "glue" / "MNLI").mkdir(parents=True)
    assert str(tmp_path / "glue") in words("bert_base/mnli") and "--data_dir" not in words("bert_base/cola")
    assert "google-bert/bert-large-uncased" in words("bert_large/cola")


def test_a_large_model_reads_the_batch_of_the_recipe_in_smaller_parts(commands, repository_root):
    for of_table in commands.values():
        for large in (step for step in of_table if step.row.family == "bert-large"):
            small = [step for step in of_table if step.row.name == large.row.name.replace("large", "base")]
            for base in small:
                sizes = [runner.parse(step) for step in (base, large)]
                batches = [each.per_device_train_batch_size * each.gradient_accumulation_steps for each in sizes]
                assert batches[0] == batches[1] or large.row.task == "squad_v2"  # whose base model is not the paper's


def test_the_guide_has_the_tables_of_each_budget():
    guide = (ROOT / "docs" / "reproduce.md").read_text(encoding="utf-8")
    for budget in MODELS:
        part = guide.partition(f"### Tables of `--budget {budget}`")[2].partition("\n#")[0]
        named = re.findall(r"^\| `(\w+)` \|", part, flags=re.MULTILINE)
        assert sorted(named) == sorted(name for name, budgets in TABLES.items() if budget in budgets)
        for name in MODELS[budget]:
            assert f"`{name}`" in guide.partition("## Models")[2]


# Their figures


@pytest.mark.parametrize(
    "table, line, column, value",
    [
        ("glue", ("BERT-base", "MNLI-mm"), "BERT's paper, table 1: test", 83.4),
        ("glue", ("BERT-large", "CoLA Matthews"), "BERT's paper, table 1: test", 60.5),
        ("glue", ("BERT-large", "MRPC accuracy"), "BERT's paper, tables 5 and 6: dev", 87.8),
        ("squad", ("SQuAD 1.1", "BERT-large, TriviaQA first"), "the papers: EM, test", 85.1),
        ("squad", ("SQuAD 2.0", "BERT-large"), "the papers: F1, dev", 81.9),
        ("swag", ("ESIM with ELMo",), "BERT's paper, table 4: dev", 59.1),
        ("conll2003", ("TagLM",), "the papers: F1, test", 91.93),
        ("feature_based", ("concatenation, last four layers",), "BERT's paper, table 7: CoNLL-2003 F1, dev", 96.1),
        ("ablations", ("left to right", "SQuAD F1"), "BERT's paper, table 5: dev", 77.8),
        ("model_sizes", ("6 layers of 768, 3 heads", "SST-2"), "BERT's paper, table 6: dev", 90.7),
        (
            "model_sizes",
            ("24 layers of 1024, 16 heads", "perplexity of masked words"),
            "BERT's paper, table 6: dev",
            3.23,
        ),
        ("masking", ("masked 0, same 20, random 80 %", "NER F1, fine-tuned"), "BERT's paper, table 8: dev", 94.8),
        ("gpt_tasks", ("choices", "RACE, high schools"), "GPT's paper, tables 2 to 4: test", 57.4),
        ("gpt_ablations", ("without pre-training", "STS-B Pearson"), "GPT's paper, table 5: test", 30.9),
        ("gpt_ablations", ("LSTM", "RTE"), "GPT's paper, table 5: test", 54.6),
        ("elmo_layers", ("layers", "the last one"), "ELMo's paper, tables 2 and 3: SQuAD F1, dev", 84.7),
        ("pretraining_pays", ("coreference F1, test", "end to end"), "with pre-training, in the papers", 70.4),
        ("perplexity", ("GPT",), "the papers", 18.4),
    ],
)
def test_a_figure_is_that_of_the_paper(table, line, column, value):
    assert TABLES_OF_PAPERS[table].published[line, column] == value


@pytest.mark.parametrize("name", TABLES_OF_PAPERS)
def test_the_title_of_a_column_of_figures_says_whose_they_are(name):
    table = TABLES_OF_PAPERS[name]
    assert all(re.search("paper|README", column) for column in table.published_columns)
    assert {column for _, column in table.published} == {*table.published_columns}  # none is in a column of ours


@pytest.mark.parametrize("name", TABLES_OF_PAPERS)
def test_only_scores_of_the_same_split_are_compared(name):
    for columns in TABLES_OF_PAPERS[name].comparisons.items():
        splits = [{*re.findall(r"\b(dev|test)\b", column)} for column in columns]
        assert splits[0] == splits[1]


# What is said of ours


def test_a_verdict_is_what_student_s_table_says():
    scores = [90.0, 91.0, 92.0]  # mean 91, standard deviation 1; the percentile for two degrees of freedom is 4.303
    assert reach(scores) == pytest.approx(4.303 * math.sqrt(4 / 3), abs=1e-3)
    assert verdict(scores, 95.9) == verdict(scores, 86.1) == "within the spread"
    assert verdict(scores, 96.1) == "below by 5.1" and verdict(scores, 85.9) == "above by 5.1"


def test_of_runs_like_ours_95_percent_are_within_the_spread():
    generator = random.Random(1)
    scores = [[norm.ppf(generator.random(), 80, 3) for _ in range(4)] for _ in range(600)]
    within = [abs(statistics.fmean(seeds) - last) <= reach(seeds) for *seeds, last in scores]
    assert statistics.fmean(within) == pytest.approx(0.95, abs=0.03)


def test_a_published_figure_is_rounded_and_one_run_has_no_verdict():
    assert verdict([88.54, 88.54], 88.5) == "within the spread"
    assert verdict([88.56, 88.56], 88.5) == "above by 0.1"
    assert verdict([88.5], 88.5) == "one run: no verdict"


def a_row(name: str, **flags: object) -> Row:
    return Row(name, "run_glue", "r.yaml", flags, scores={((name,), "dev"): "eval_accuracy"})


TABLE = Table(
    name="tiny",
    title="A table",
    heads=("model",),
    columns=("dev",),
    rows=(a_row("base"), a_row("large"), a_row("huge")),
    published={((name,), "a paper: dev"): value for name, value in (("base", 84.25), ("large", 91.0))},
    budget="paper",
    comparisons={"dev": "a paper: dev"},
)
RUNS = {"base": (0.84, 0.85), "large": (0.901, 0.9, 0.902), "huge": ()}
RECORD = {
    "rows": [
        {"name": name, "runs": {str(seed): {"metrics": {"eval_accuracy": value}} for seed, value in enumerate(values)}}
        for name, values in RUNS.items()
    ]
}


def test_a_verdict_stands_beside_ours_and_theirs_and_what_was_not_run_has_its_name(tmp_path):
    text = report.write_report(TABLE, RECORD, tmp_path)
    assert text.splitlines()[2:7] == [
        "| model | dev | a paper: dev | verdict: dev |",
        "| --- | --- | --- | --- |",
        "| base | 84.5 ± 0.7 (2) | 84.25 | within the spread |",
        "| large | 90.1 ± 0.1 (3) | 91.0 | below by 0.9 |",
        "| huge | – `huge` | – | – |",
    ]
    with open(tmp_path / "table.csv", encoding="utf-8", newline="") as file:
        lines = [{**line, "mean": round(float(line["mean"]), 6)} for line in csv.DictReader(file)]
    assert [[line[name] for name in ("model", "column", "mean", "seeds", "verdict")] for line in lines] == [
        ["base", "dev", 84.5, "2", "within the spread"],
        ["base", "a paper: dev", 84.25, "published", ""],
        ["large", "dev", 90.1, "3", "below by 0.9"],
        ["large", "a paper: dev", 91.0, "published", ""],
    ]


def test_one_run_has_no_deviation(tmp_path):
    columns = tuple(f"score {number}" for number in range(14))  # as many as blimp has
    row = Row("base", "run_glue", "r.yaml", {}, scores={(("base",), column): "eval_x" for column in columns})
    table = dataclasses.replace(TABLE, columns=columns, rows=(row,), published={}, comparisons={})
    record = {"rows": [{"name": "base", "runs": {"42": {"metrics": {"eval_x": 0.5}}}}]}
    report.write_report(table, record, tmp_path)
    with open(tmp_path / "table.csv", encoding="utf-8", newline="") as file:
        assert {(line["mean"], line["std"], line["seeds"]) for line in csv.DictReader(file)} == {("50.0", "", "1")}


# A table from end to end


@pytest.fixture(scope="module")
def miniature(tmp_path_factory) -> dict[str, str]:
    """The flags that name data and models in miniature."""
    root = tmp_path_factory.mktemp("paper")
    models = write_models(root / "models")
    names = {"bert-base": "bert", "bert-base-cased": "bert", "gpt": "gpt", "elmo": "elmo"}
    return {
        "data_root": str(write_paper_data(root / "data")),
        "models": {name: str(models[family]) for name, family in names.items()},
    }


@pytest.mark.slow
def test_a_table_of_a_paper_runs_and_goes_on_where_it_was(miniature, repository_root, tmp_path, monkeypatch, capsys):
    """Its runs are carried out in this process."""

    def start(step: Step, *_) -> runner.Job:
        importlib.import_module(step.row.script).main(step.words)
        return runner.Job(step, Ended(), "", 0.0)

    monkeypatch.setattr(runner, "start", start)
    words = ["glue", "--budget", "paper", "--only", "mrpc", "--model", "bert-base", "--output_dir", str(tmp_path)]
    words += ["--data_root", miniature["data_root"], "--models", f"bert-base={miniature['models']['bert-base']}"]
    reproduce.main([*words, "--seeds", "1"])
    shown = capsys.readouterr().out
    assert re.search(r"\| BERT-base \| MRPC accuracy \| \d+\.\d \(1\) \| 86.7 \| one run: no verdict \| – \|", shown)
    reproduce.main([*words, "--seeds", "2"])
    shown = capsys.readouterr().out
    assert "bert_base/mrpc, seed 42: had finished before" in shown
    runs = [tmp_path / "paper" / "runs" / "bert_base" / "mrpc" / f"seed-{seed}" for seed in (42, 43)]
    scores = [100 * json.loads((run / "metrics.json").read_text())["eval_accuracy"] for run in runs]
    ours = f"{statistics.fmean(scores):.1f} ± {statistics.stdev(scores):.1f} (2)"
    assert f"| BERT-base | MRPC accuracy | {ours} | 86.7 | {verdict(scores, 86.7)} | – | 84.1 |" in shown
    assert "| BERT-base | RTE | – `bert_base/rte` | – | – | 66.4 | 65.7 |" in shown
    for run in runs:
        assert (run / "README.md").is_file() and not (run / "model.safetensors").exists()
    record = json.loads((tmp_path / "paper" / "glue" / "record.json").read_text(encoding="utf-8"))
    row = next(row for row in record["rows"] if row["name"] == "bert_base/mrpc")
    assert record["budget"] == "paper" and row["runs"].keys() == {"42", "43"}
    paths = {"model_name_or_path": "google-bert/bert-base-uncased", "data_dir": "data/glue, or the Hub"}
    assert row["flags"] == {"task_name": "mrpc", **paths}


class Ended:
    """A process that has ended well."""

    returncode = 0

    def poll(self) -> int:
        return self.returncode


# One run of each kind: table -> row
KINDS = {"conll2003": "elmo/conll2003", "gpt_tasks": "gpt/race"}


@pytest.mark.parametrize("table, name", KINDS.items())
def test_a_row_has_the_scores_that_the_table_shows(table, name, miniature, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # recipes name caches
    models = MODELS["paper"] | miniature["models"]
    folders = Folders(Path(miniature["data_root"]), models, tmp_path / "out")
    planned = {step.row.name: step for step in plan(TABLES_OF_PAPERS[table], folders, seeds=1)}
    step = planned[name]
    for need in step.row.needs:
        importlib.import_module(planned[need].row.script).main(planned[need].words)
    importlib.import_module(step.row.script).main([*step.words, "--max_steps", "2"])
    metrics = json.loads((step.output / "metrics.json").read_text(encoding="utf-8"))
    assert {*step.row.scores.values()} <= metrics.keys()


# Several processes


def test_a_run_that_finished_in_several_processes_is_finished(tmp_path):
    (tmp_path / "recipe.yaml").write_text(
        "task_name: sst2\ndo_train: true\nper_device_train_batch_size: 16\ngradient_accumulation_steps: 2\n"
    )
    row = Row("run", "run_glue", str(tmp_path / "recipe.yaml"), {"model_name_or_path": Place("model", "bert")})
    step = Step(row, 42, Folders(tmp_path, {"bert": "bert"}, tmp_path / "out"))
    step.output.mkdir(parents=True)
    for batch, accumulation, finished in ((8, 1, True), (16, 1, False)):
        sizes = {"per_device_train_batch_size": batch, "gradient_accumulation_steps": accumulation}
        identity = run_identity(dataclasses.replace(runner.parse(step), **sizes), processes=4, absent=True)
        record = {"seed": 42, "args": sizes, "identity": identity, "hardware": {"processes": 4}}
        (step.output / "metrics.json").write_text(json.dumps(record), encoding="utf-8")
        if finished:
            assert runner.is_finished(step)
        else:
            with pytest.raises(ValueError, match="is of a run with samples of an update 64, not 32"):
                runner.is_finished(step)


@pytest.mark.parametrize(
    "visible, jobs, shares",
    [
        (None, 2, ["0,2", "1,3"]),
        (None, 1, ["0,1,2,3"]),
        (None, 5, ["0", "1", "2", "3", "0"]),
        ("4,6", 2, ["4", "6"]),
        ("7", 2, ["", ""]),
    ],
)
def test_jobs_share_the_gpus(visible, jobs, shares, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert runner.share_devices(jobs) == shares


def what_jobs_see(variable: str, tmp_path: Path, monkeypatch) -> list[str]:
    """The values that this variable has in three commands, two of which run at once."""
    monkeypatch.setattr(runner, "POLL_SECONDS", 0.01)
    program = f"import os, sys; print(os.environ['{variable}'], file=open(sys.argv[1], 'a'))"
    monkeypatch.setattr(runner, "executable", lambda step: [sys.executable, "-I", "-S", "-c", program, str(seen)])
    monkeypatch.setattr(runner, "is_finished", lambda step: False)
    seen = tmp_path / "seen"
    one = Row("a", "run_glue", flags={"data_dir": Place("data", ".")}, seeded=False)
    every = [dataclasses.replace(one, name=name) for name in "abc"]
    runner.run_steps([Step(row, None, Folders(tmp_path, {}, tmp_path)) for row in every], 2)
    lines = seen.read_text(encoding="utf-8").split()
    assert len(lines) == 3
    return lines


def test_a_job_sees_the_gpus_that_no_other_job_has(tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "share_devices", lambda jobs: ["3,1", "2,0"])
    assert {*what_jobs_see("CUDA_VISIBLE_DEVICES", tmp_path, monkeypatch)} == {"3,1", "2,0"}


@pytest.mark.parametrize(("chosen", "threads"), [(None, "4"), ("3", "3")])
def test_jobs_share_the_cores_unless_the_user_has_chosen_the_threads(chosen, threads, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if chosen:
        monkeypatch.setenv("OMP_NUM_THREADS", chosen)
    assert {*what_jobs_see("OMP_NUM_THREADS", tmp_path, monkeypatch)} == {threads}
