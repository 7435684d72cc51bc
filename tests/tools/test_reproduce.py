"""zoo-reproduce: its driver does what is left, whatever happened before."""

import csv
import errno
import json
import os
import re
import signal
import statistics
import sys
import time
from dataclasses import replace as changed
from pathlib import Path

import pytest

from elmo_gpt_bert.reproduction import __main__ as reproduce
from elmo_gpt_bert.reproduction import report, runner
from elmo_gpt_bert.reproduction.runner import Folders, Step, choose, plan
from elmo_gpt_bert.reproduction.tables import TABLES, Place, Row, Table
from elmo_gpt_bert.training import files, output_folder
from elmo_gpt_bert.training.errors import FileError, InputError, LaunchError
from elmo_gpt_bert.training.identity import run_identity
from tests.support.processes import fork, wait


# What stands in for the scripts: a run is told its identity, and takes no time. It notes that it ran.
FAKE = """
import json, sys, time
from pathlib import Path
flags = dict(zip(sys.argv[2::2], sys.argv[3::2]))
output = Path(flags["--output_dir"])
root = Path(flags["--data_dir"])
with open(root / "calls", "a") as calls:
    calls.write(f"{flags['--seed']} {flags['--learning_rate']}\\n")
while (root / "wait").exists():
    time.sleep(0.02)
if (root / "fail").exists() and (root / "fail").read_text() == flags["--seed"]:
    sys.exit("the disk is full")
seed, rate = int(flags["--seed"]), float(flags["--learning_rate"])
output.mkdir(exist_ok=True)
(output / "checkpoint-3").mkdir()
for name in ("model.safetensors", "README.md"):
    (output / name).touch()
record = {"eval_accuracy": 0.5 + 0.01 * seed * rate, "train_runtime": 60, "save_runtime": 1.5, "seed": seed}
record |= {"args": {}, "identity": json.loads(sys.argv[1])}
record |= {"versions": {"python": "3"}, "hardware": {"device": "abacus"}}
(output / "metrics.json").write_text(json.dumps(record))
"""
CONFIG = {"config_overrides": "hidden_dropout_prob=0"}
RECORD = '{"table": "tiny", "budget": "small", "environments": [{}], "rows": [{"name": "low", "runs": {%s}}]}'


def fake_row(name: str, rate: float, **options: object) -> Row:
    flags = {"model_name_or_path": Place("model", "bert"), "data_dir": Place("data", "data"), "learning_rate": rate}
    scores = {((name,), "score"): "eval_accuracy"}
    return Row(name, "run_glue", "recipe.yaml", flags, "", "t", "bert", scores, **options)


TABLE = Table(
    name="tiny",
    title="Two rates",
    heads=("rate",),
    columns=("score",),
    rows=(fake_row("low", 0.1), fake_row("high", 0.2)),
    published={(("low",), "a paper's"): 91.3},
    gaps={(("none",), "score"): "nobody has measured it"},
)


@pytest.fixture
def fake(tmp_path, monkeypatch) -> Path:
    """A directory with what the tiny table reads, whose runs are fake ones; gives the folder with their calls."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(TABLES, "tiny", {"small": TABLE})
    monkeypatch.setattr(runner, "POLL_SECONDS", 0.01)
    Path("recipe.yaml").write_text("task_name: sst2\ndo_train: true\n", encoding="utf-8")
    Path("run_glue.py").touch()
    Path("fake.py").write_text(FAKE, encoding="utf-8")
    Path("data/data").mkdir(parents=True)
    Path("bert").mkdir()

    def executable(step: Step) -> list[str]:
        identity = json.dumps(run_identity(runner.parse(step), absent=True))
        return [sys.executable, "-I", "-S", "fake.py", identity, *step.words[1:]]  # starts at once: no packages

    monkeypatch.setattr(runner, "executable", executable)
    return Path("data/data")


def run(*flags: str) -> None:
    reproduce.main(["tiny", "--models", "bert=bert", *flags])


def calls(folder: Path) -> list[str]:
    return (folder / "calls").read_text().splitlines() if (folder / "calls").is_file() else []


def read_record(name: str = "runs/reproduce/tiny/record.json") -> dict:
    return json.loads(Path(name).read_text(encoding="utf-8"))


# The driver


def test_a_table_runs_its_rows_over_seeds_and_shows_mean_and_spread(fake, capsys):
    run("--record", "docs/tiny.json")
    assert sorted(calls(fake)) == sorted(f"{seed} {rate}" for rate in (0.1, 0.2) for seed in (42, 43, 44))
    scores = {
        name: [100 * (0.5 + 0.01 * seed * rate) for seed in (42, 43, 44)]
        for name, rate in (("low", 0.1), ("high", 0.2))
    }
    shown = capsys.readouterr().out
    for name, published in (("low", "91.3"), ("high", "–")):
        mean, std = statistics.fmean(scores[name]), statistics.stdev(scores[name])
        assert f"| {name} | {mean:.1f} ± {std:.1f} (3) | {published} |" in shown
    assert "| none | – (a) | – |" in shown and "(a) nobody has measured it" in shown
    with open("runs/reproduce/tiny/table.csv", encoding="utf-8") as file:
        rows = {(row["rate"], row["column"]): row for row in csv.DictReader(file)}
    assert float(rows["high", "score"]["std"]) == pytest.approx(statistics.stdev(scores["high"]))
    assert rows["low", "a paper's"]["seeds"] == "published"
    assert read_record() == read_record("docs/tiny.json")


def test_a_record_has_the_numbers_of_metrics_json_and_no_path(fake, tmp_path):
    run("--seeds", "1", "--output_dir", str(tmp_path / "elsewhere"), "--data_root", str(tmp_path / "data"))
    text = (tmp_path / "elsewhere" / "tiny" / "record.json").read_text(encoding="utf-8")
    assert str(tmp_path) not in text
    record = json.loads(text)
    low, high = record["rows"]
    metrics = json.loads((tmp_path / "elsewhere/tiny/high/seed-42/metrics.json").read_text(encoding="utf-8"))
    (entry,) = high["runs"].values()
    assert entry["metrics"] == {name: metrics[name] for name in ("eval_accuracy", "train_runtime", "save_runtime")}
    assert entry["seconds"] == 61.5 and high["runs"].keys() == {"42"}
    assert record["environments"] == [{name: metrics[name] for name in ("versions", "hardware")}]
    assert low["recipe"] == "recipe.yaml"
    assert low["flags"] == {"model_name_or_path": "checkpoints/bert-books", "data_dir": "data/data"} | {
        "learning_rate": 0.1
    }


def test_what_has_finished_is_not_run_again_and_more_seeds_are_added(fake):
    run("--seeds", "1")
    run("--seeds", "2")
    assert calls(fake) == ["42 0.1", "42 0.2", "43 0.1", "43 0.2"]


def test_a_record_of_another_machine_brings_its_runs(fake, capsys):
    run("--seeds", "2", "--record", "docs/tiny.json")
    before = read_record("docs/tiny.json")
    there = ["--output_dir", "there", "--record", "docs/tiny.json"]
    run("--seeds", "3", "--model", "bert", *there)
    assert calls(fake)[4:] == ["44 0.1", "44 0.2"]
    assert "docs/tiny.json has 4 runs, which are not made again" in capsys.readouterr().out
    after = read_record("docs/tiny.json")
    assert after == read_record("there/tiny/record.json")
    for old, new in zip(before["rows"], after["rows"], strict=True):
        assert list(new["runs"]) == ["42", "43", "44"] and old["runs"].items() <= new["runs"].items()
    run("--seeds", "1", *there)  # fewer seeds than recorded: the others stay
    assert read_record("docs/tiny.json") == after and len(calls(fake)) == 6


def test_a_record_that_another_command_has_written_to_keeps_its_runs(fake):
    (fake / "wait").touch()
    (started,) = fork(lambda: run("--seeds", "1", "--record", "docs/tiny.json"))
    deadline = time.monotonic() + 60
    while not calls(fake):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    (fake / "wait").unlink()
    run("--seeds", "2", "--output_dir", "there", "--record", "docs/tiny.json")
    assert wait([started]) == [0]
    assert [list(row["runs"]) for row in read_record("docs/tiny.json")["rows"]] == [["42", "43"], ["42", "43"]]


def test_another_model_of_the_hub_is_another_run(tmp_path):
    row = Row("low", "run_glue", flags={"model_name_or_path": Place("hub model", "gpt")}, scores=TABLE.rows[0].scores)
    table = Table("t", "", ("rate",), ("score",), (row,))
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "config.json").write_text("{}", encoding="utf-8")
    digests = [
        runner.digest(step)
        for name in ("openai-community/openai-gpt", "another/gpt", str(tmp_path / "copy"))
        for step in plan(table, Folders(tmp_path, {"gpt": name}, tmp_path), seeds=1)
    ]
    assert len({*digests}) == 3 and None not in digests


def test_the_digest_of_a_row_that_begins_with_one_seed_of_another_has_no_number_of_seeds(tmp_path):
    first = Row("first", "run_glue")
    second = Row("second", "run_glue", flags={"model_name_or_path": Place("row", "first", "seed-42")})
    table = Table("t", "", ("rate",), ("score",), (first, second))
    one, three = (plan(table, Folders(tmp_path, {}, tmp_path), seeds)[-1] for seeds in (1, 3))
    assert runner.digest(one) == runner.digest(three) is not None


def test_a_recorded_run_needs_no_model_that_is_not_here(fake):
    run("--seeds", "1", "--record", "docs/tiny.json")
    Path("bert").rename("away")
    run("--seeds", "1", "--record", "docs/tiny.json", "--output_dir", "there")
    assert [len(row["runs"]) for row in read_record("there/tiny/record.json")["rows"]] == [1, 1]
    assert len(calls(fake)) == 2


def test_a_record_of_other_settings_is_neither_used_nor_overwritten(fake):
    run("--seeds", "1", "--record", "docs/tiny.json")
    before = Path("docs/tiny.json").read_bytes()
    changes = {
        "recipe.yaml": "task_name: sst2\ndo_train: true\nnum_train_epochs: 9\n",
        "bert/SHA256SUMS": "0 model.safetensors\n",
    }
    for path, text in changes.items():
        earlier = Path(path).read_text(encoding="utf-8") if Path(path).exists() else None
        Path(path).write_text(text, encoding="utf-8")
        with pytest.raises(InputError, match="a run of low, seed 42, with other flags, recipe, data or model"):
            run("--seeds", "1", "--record", "docs/tiny.json")
        Path(path).write_text(earlier, encoding="utf-8") if earlier else Path(path).unlink()
    Path("recipe.yaml").write_text("# a comment\ntask_name: sst2\ndo_train: true\n", encoding="utf-8")
    run("--seeds", "1", "--record", "docs/tiny.json")
    assert Path("docs/tiny.json").read_bytes() == before and len(calls(fake)) == 2


@pytest.mark.parametrize(
    "text, problem",
    [
        ('{"table": "blimp", "budget": "small"}', "docs.json is the record of blimp, --budget small"),
        ('{"table": "tiny", "budget": "small"}', "docs.json is no record of a table: KeyError('environments')"),
        ("[]", "docs.json is no record of a table: TypeError"),
        ("{", "docs.json"),
        (RECORD % '"x": {"environment": 0, "metrics": {}}', "docs.json is no record of a table: TypeError"),
        (RECORD % '"42": {"environment": 0}', "docs.json is no record of a table: KeyError('metrics')"),
    ],
)
def test_a_file_that_is_no_record_of_the_table_is_one_clear_error(fake, text, problem):
    Path("docs.json").write_text(text, encoding="utf-8")
    with pytest.raises(InputError) as error:
        run("--record", "docs.json")
    assert problem in str(error.value)
    assert Path("docs.json").read_text(encoding="utf-8") == text
    with pytest.raises(InputError, match="--record data is a folder"):
        run("--record", "data")
    assert not calls(fake)


def test_what_only_recorded_rows_need_is_not_made(tmp_path):
    scores = TABLE.rows[0].scores
    first = Row("first", "run_pretraining", scores=scores, seeded=False)
    flags = {"model_name_or_path": Place("row", "first")}
    second = Row("second", "run_glue", flags=flags, scores=scores, family="bert")
    every = plan(Table("t", "", ("rate",), ("score",), (first, second)), Folders(tmp_path, {}, tmp_path), seeds=2)
    recorded = [("first", "42"), ("second", "42")]
    assert [step.name for step in choose(every, [], [], recorded)] == ["first", "second, seed 43"]
    assert not choose(every, [], [], [*recorded, ("second", "43")])
    recorded = [("second", "42"), ("second", "43")]  # the first has a score of its own
    assert [step.name for step in choose(every, [], [], recorded)] == ["first"]
    assert not choose(every, [], ["bert"], recorded)


def test_all_rows_are_run_with_a_seed_before_the_next_seed(tmp_path):
    scores = TABLE.rows[0].scores
    rows = (Row("random", "run_glue", scores=scores), Row("words", "run_ner", scores=scores, seeded=False))
    rows += (Row("trained", "run_glue", flags={"vectors": Place("row", "words")}, scores=scores),)
    every = plan(Table("t", "", ("rate",), ("score",), rows), Folders(tmp_path, {}, tmp_path), seeds=2)
    names = ["random, seed 42", "words", "trained, seed 42", "random, seed 43", "trained, seed 43"]
    assert [step.name for step in choose(every, [], [], [])] == names
    assert [step.name for step in choose(every, [], [], [("random", "42"), ("words", "42")])] == names[1:]


def test_a_finished_run_keeps_its_results_only(fake, monkeypatch):
    kept = fake_row("kept", 0.3, keeps_model=True)
    monkeypatch.setitem(TABLES, "tiny", {"small": changed(TABLE, rows=(*TABLE.rows, kept))})
    run("--seeds", "1")
    folders = {
        name: {path.name for path in Path(f"runs/reproduce/tiny/{name}/seed-42").iterdir()} for name in ("low", "kept")
    }
    assert folders == {
        "low": {"metrics.json", "README.md"},
        "kept": {"metrics.json", "README.md", "model.safetensors"},
    }


def test_checkpoints_that_another_row_begins_with_stay(tmp_path):
    scores, files = TABLE.rows[0].scores, {"metrics.json", "README.md", "model.safetensors", "checkpoint-3"}
    first = Row("first", "run_pretraining", seeded=False)
    for start, expected in (("checkpoint-3", files), ("", files - {"checkpoint-3"})):
        second = Row("second", "run_glue", flags={"model_name_or_path": Place("row", "first", start)}, scores=scores)
        step, _ = plan(Table("t", "", ("rate",), ("score",), (first, second)), Folders(tmp_path, {}, tmp_path), 1)
        (step.output / "checkpoint-3").mkdir(parents=True, exist_ok=True)
        for name in files - {"checkpoint-3"}:
            (step.output / name).touch()
        runner.complete(step)
        assert {path.name for path in step.output.iterdir()} == expected


def test_a_run_that_fails_is_reported_and_the_others_go_on(fake, capsys):
    (fake / "fail").write_text("43")
    with pytest.raises(LaunchError, match="2 of 6 steps failed: low, seed 43; high, seed 43"):
        run()
    assert len(calls(fake)) == 6
    shown = capsys.readouterr().out
    assert "low, seed 43: FAILED: the disk is full" in shown
    assert re.search(r"\| high \| \d+\.\d ± \d\.\d \(2\) ", shown)
    (fake / "fail").unlink()
    run()
    assert len(calls(fake)) == 8


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_driver_that_is_killed_goes_on_where_it_was(fake, number):
    run("--seeds", "1", "--only", "t")
    (fake / "wait").touch()
    (started,) = fork(lambda: run("--jobs", "2"))
    deadline = time.monotonic() + 60
    while len(calls(fake)) < 4 and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(started.pid, number)
    assert wait([started]) == [130 if number == signal.SIGTERM else -number]
    finished_late = number == signal.SIGKILL  # its two commands live on
    (fake / "wait").unlink()
    while finished_late and len(list(Path("runs/reproduce/tiny").glob("*/seed-4[34]/metrics.json"))) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    run()
    expected = 4 + (2 if finished_late else 4)
    assert len(calls(fake)) == expected
    assert [len(row["runs"]) for row in read_record()["rows"]] == [3, 3]


def test_two_steps_run_at_once(fake):
    (fake / "wait").touch()
    (started,) = fork(lambda: run("--seeds", "1", "--jobs", "2"))
    deadline = time.monotonic() + 60
    while len(calls(fake)) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    (fake / "wait").unlink()
    assert wait([started]) == [0]


def test_results_of_other_settings_are_neither_shown_nor_lost(fake, capsys):
    run("--seeds", "1", "--record", "before.json")
    Path("recipe.yaml").write_text("task_name: sst2\ndo_train: true\nnum_train_epochs: 9\n", encoding="utf-8")
    with pytest.raises(LaunchError, match="2 of 2 steps failed"):
        run("--seeds", "1")
    assert "low/seed-42 is of a run with num_train_epochs 3.0, not 9.0: --resume" in capsys.readouterr().out
    assert [row["runs"] for row in read_record()["rows"]] == [{}, {}]
    assert Path("runs/reproduce/tiny/low/seed-42/metrics.json").is_file() and len(calls(fake)) == 2


def test_a_file_that_changes_during_a_run_fails_that_run_only(fake, capsys):
    (fake / "wait").touch()
    (started,) = fork(lambda: run("--seeds", "1"))
    deadline = time.monotonic() + 60
    while not calls(fake):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    Path("bert/config.json").write_text("{}", encoding="utf-8")
    (fake / "wait").unlink()
    assert wait([started]) == [1]
    assert len(calls(fake)) == 2 and [len(row["runs"]) for row in read_record()["rows"]] == [0, 1]


def test_a_step_that_cannot_begin_fails_alone(fake, monkeypatch, capsys):
    make_folder = files.make_folder

    def disk_is_full_once(folder: Path) -> None:
        if folder.name == "low":
            raise FileError("cannot write low: No space left on device")
        make_folder(folder)

    monkeypatch.setattr(files, "make_folder", disk_is_full_once)
    with pytest.raises(LaunchError, match="1 of 2 steps failed: low, seed 42"):
        run("--seeds", "1")
    assert "low, seed 42: FAILED: cannot write low: No space left on device" in capsys.readouterr().out
    assert calls(fake) == ["42 0.2"]


def test_a_step_whose_folder_cannot_be_tidied_fails_alone(fake, monkeypatch, capsys):
    tidy = output_folder.remove_all_but_results

    def disk_fails_once(folder: Path, keep_card: bool) -> None:
        if folder.parent.name == "low":
            raise OSError(errno.EIO, "Input/output error")
        tidy(folder, keep_card=keep_card)

    monkeypatch.setattr(output_folder, "remove_all_but_results", disk_fails_once)
    with pytest.raises(LaunchError, match="1 of 2 steps failed: low, seed 42"):
        run("--seeds", "1")
    assert re.search(r"low, seed 42: FAILED: cannot write \S+: Input/output error\.", capsys.readouterr().out)
    assert calls(fake) == ["42 0.1", "42 0.2"]


def test_a_recipe_with_a_wrong_key_is_named_before_anything_runs(fake, capsys):
    Path("recipe.yaml").write_text("task_name: sst2\nnum_train_epocs: 9\n", encoding="utf-8")
    with pytest.raises(LaunchError, match="2 of 2 steps failed"):
        run("--seeds", "1")
    problem = "recipe.yaml: unknown key num_train_epocs; did you mean num_train_epochs?"
    assert f"low, seed 42: FAILED: {problem}" in capsys.readouterr().out
    assert not calls(fake)


def test_a_run_whose_data_lack_a_phenomenon_leaves_its_cell_empty():
    runs = {seed: {"metrics": metrics} for seed, metrics in (("42", {"eval_accuracy": 0.5}), ("43", {}))}
    rows = [{"name": "low", "runs": runs}, {"name": "high", "runs": {"42": {"metrics": {}}}}]
    assert report.scores(TABLE, {"rows": rows}) == {(("low",), "score"): [50.0]}


@pytest.mark.parametrize(("script", "factor"), [("run_squad", 1), ("run_pretraining", 1), ("run_ner", 100)])
def test_the_scores_of_squad_are_percentages_already_and_perplexities_are_none(script, factor):
    table = changed(TABLE, rows=(changed(TABLE.rows[0], script=script),))
    rows = [{"name": "low", "runs": {"42": {"metrics": {"eval_accuracy": 88.5}}}}]
    assert report.scores(table, {"rows": rows}) == {(("low",), "score"): [88.5 * factor]}


def test_results_of_another_model_in_the_same_folder_are_not_taken_for_these(fake):
    run("--seeds", "1")
    Path("bert/model.safetensors").write_text("0", encoding="utf-8")
    with pytest.raises(LaunchError, match="2 of 2 steps failed"):
        run("--seeds", "1")


def test_rows_wait_for_those_that_they_need_and_fail_with_them(tmp_path):
    first = Row("first", "run_pretraining", flags={"config_overrides": "a=1"}, seeded=False)
    flags = {"model_name_or_path": Place("row", "first")}
    second = Row("second", "run_glue", flags=flags, scores=TABLE.rows[0].scores)
    table = Table("t", "", ("rate",), ("score",), (first, second))
    one, other = plan(table, Folders(tmp_path, {}, tmp_path), seeds=1)
    assert one.kept and not other.kept and str(tmp_path / "first") in other.words
    waiting = [other, one]
    assert runner.take_next(waiting, []) is one
    assert runner.take_next(waiting, [runner.Job(one, None, "", 0)]) is None
    assert runner.take_next(waiting, []) is other and not waiting
    with pytest.raises(LaunchError, match="^it needs first$"):
        runner.has_to_run(other, {"first": "no space"})


def a_conversion(program: str, monkeypatch) -> Step:
    """A step that reads a model and a text; in place of the script, it runs this program."""
    monkeypatch.setattr(runner, "executable", lambda step: [sys.executable, "-I", "-S", "-c", program])
    flags = {"model": Place("model", "bert"), "texts": Place("data", "text")}
    flags |= {"config": "net.json", "vectors": Place("row", "trained", "vectors.txt")}
    row = Row("words", "elmo_gpt_bert.convert.vectors", flags=flags, seeded=False)
    Path("runs/trained").mkdir(parents=True)
    return Step(row, None, Folders(Path("data"), {"bert": "bert"}, Path("runs")))


def test_a_conversion_with_other_input_is_made_anew(fake, monkeypatch):
    step = a_conversion("", monkeypatch)
    paths = ("bert/SHA256SUMS", "bert/config.json", "data/text", "net.json", "runs/trained/vectors.txt")
    for path in paths:
        for name in paths:
            Path(name).write_text("before", encoding="utf-8")
        runner.start(step, 1, "").process.wait()
        assert not step.output.exists() and not runner.is_finished(step)
        step.output.mkdir()
        assert not runner.is_finished(step)
        runner.complete(step)
        assert runner.is_finished(step)
        checksums = (step.output / "SHA256SUMS").read_bytes()
        runner.complete(step)  # as of a step that had finished before
        assert (step.output / "SHA256SUMS").read_bytes() == checksums
        Path(path).write_text("after", encoding="utf-8")
        assert not runner.is_finished(step)


def test_a_conversion_whose_input_changes_meanwhile_has_failed(fake, monkeypatch):
    step = a_conversion("import os; os.mkdir('runs/words'); open('data/text', 'w').write('after')", monkeypatch)
    Path("data/text").write_text("before", encoding="utf-8")
    job = runner.start(step, 1, "")
    assert job.process.wait() == 0
    with pytest.raises(InputError, match="^a file that it reads has changed since it began$"):
        runner.finish(job)
    assert not runner.is_finished(step)


def test_a_model_that_is_missing_is_named(fake, capsys):
    with pytest.raises(LaunchError):
        reproduce.main(["tiny", "--seeds", "1"])
    shown = capsys.readouterr().out
    assert "checkpoints/bert-books does not exist: name its place with --data_root or --models" in shown


@pytest.mark.parametrize(
    "flags, problem",
    [
        (["--budget", "paper"], "--budget paper: tiny has only --budget small"),
        (["--only", "mnli"], "--only mnli is none of t, which tiny has"),
        (["--model", "gpt"], "--model gpt is none of bert"),
        (["--models", "gtp=x"], "--models gtp=x must be NAME=FOLDER, with one of the names bert, gpt"),
    ],
)
def test_a_wrong_flag_is_one_clear_error(fake, flags, problem):
    with pytest.raises(InputError) as error:
        reproduce.main(["tiny", *flags])
    assert problem in str(error.value)


def test_a_number_of_seeds_or_jobs_that_is_none_is_one_clear_error(fake, capsys):
    for flag in ("--seeds", "--jobs"):
        with pytest.raises(SystemExit):
            reproduce.main(["tiny", flag, "0"])
        assert f"argument {flag}: must be positive, not 0" in capsys.readouterr().err


def test_a_dry_run_prints_commands_and_does_nothing(fake, capsys):
    run("--dry_run", "--seeds", "1")
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == (
        "python run_glue.py recipe.yaml --model_name_or_path bert --data_dir data/data --learning_rate 0.1 --seed 42 "
        "--output_dir runs/reproduce/tiny/low/seed-42 --resume"
    )
    assert len(shown) == 2 and not Path("runs").exists()
