"""What a run leaves behind."""

import dataclasses
import errno
import importlib.util
import io
import json
import os
import platform
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import transformers
from huggingface_hub import ModelCard
from huggingface_hub.utils import filter_repo_objects
from safetensors import SafetensorError

import run_glue
import run_ner
import run_squad
from elmo_gpt_bert.training import command_line, launching, processes, reporting, runs
from elmo_gpt_bert.training.arguments import hub_model_id
from elmo_gpt_bert.training.command_line import start_of_script
from elmo_gpt_bert.training.files import write_text
from elmo_gpt_bert.training.flags import parse_arguments
from elmo_gpt_bert.training.output_folder import verify_checksums, write_checksums
from elmo_gpt_bert.training.reporting import model_card
from elmo_gpt_bert.training.results import Clock
from elmo_gpt_bert.training.task import Description
from tests.conftest import ROOT
from tests.support.tiny_run import Arguments, prepare, recipe, tiny_task


@pytest.fixture
def finished(run, data_set, tmp_path):
    """Trains a little and writes the results; gives the output folder."""

    def finish(**changes) -> Path:
        def once(args) -> dict[str, float]:
            accelerator, tokenizer, model, collate = prepare(args)
            parts = {"model": model, "tokenizer": tokenizer}
            task = tiny_task(data_set, {"": data_set}, collate, lambda outputs, _: {"accuracy": 0.75}, **parts)
            task.description = Description("text-classification", "nyu-mll/glue", "GLUE SST-2")
            return runs.carry_out(task, args, accelerator, Clock())

        runs.repeat(once, run(max_steps=2, task_name="sst2", **changes))
        return tmp_path / "out"

    return finish


def test_files_of_an_earlier_model_that_would_be_read_with_the_new_one_go(finished, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "merges.txt").write_text("of another tokenizer", encoding="utf-8")
    write_checksums(tmp_path / "out")
    (tmp_path / "out" / "notes.txt").write_text("mine", encoding="utf-8")
    out = finished(overwrite_output_dir=True)
    verify_checksums(out)
    assert not (out / "merges.txt").exists() and (out / "notes.txt").exists()


def test_an_earlier_runs_results_go_and_all_else_stays(run, tmp_path):
    stay = ["README.md", "checkpoint-notes.txt", "model.safetensors", "notes.txt", "predictions-of-others.txt"]
    (tmp_path / "out" / "checkpoint-5").mkdir(parents=True)
    go = ["metrics.json", "predictions.tsv", "predictions_mm.tsv", "outputs-0123456789abcdef.safetensors"]
    squad = ["predictions", "nbest_predictions", "null_odds"]
    go += [f"{name}{split}.json" for name in squad for split in ("", "_validation")]
    for name in [*go, *stay]:
        (tmp_path / "out" / name).touch()
    args = run(overwrite_output_dir=True)
    with launching.lock_output_folder(args):
        accelerator = launching.make_accelerator(args)
        assert (tmp_path / "out" / "metrics.json").exists()  # the run may still fail to load its data
        launching.remove_earlier_results(args, accelerator)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == stay


def test_the_next_command_reads_texts_as_training_has():
    def repeated(arguments: type, words: list[str], results: dict[str, float]) -> dict[str, object]:
        needed = ["--model_name_or_path", "m", "--output_dir", "o", "--train_file", "t", "--do_train"]
        return parse_arguments(arguments, [*needed, *words]).repeated_flags(results)

    words = ["--text_column_name", "my text", "--max_seq_length", "64", "--trust_remote_code"]
    expected = {"trust_remote_code": True, "max_seq_length": 64, "text_column_name": "my text"}
    assert repeated(run_ner.NerArguments, words, {}) == expected
    assert repeated(run_glue.GlueArguments, ["--text_column_names", "a,b"], {}) == {"text_column_names": "a,b"}
    assert repeated(run_squad.SquadArguments, ["--metric", "cmrc2018"], {}) == {"metric": "cmrc2018"}
    tuned = repeated(run_squad.SquadArguments, ["--version_2_with_negative"], {"eval_best_f1_thresh": -1.5})
    assert tuned == {"version_2_with_negative": True, "null_score_diff_threshold": -1.5}
    best = {"eval_best_f1": 50.0, "eval_best_f1_thresh": 0.0, "eval_NoAns_total": 1, "eval_total": 2}
    never = repeated(run_squad.SquadArguments, ["--version_2_with_negative"], best)  # no answer at all is best
    threshold = never["null_score_diff_threshold"]  # which argparse takes for a number
    assert threshold < -1e5 and re.fullmatch(r"-\d+\.\d+", str(threshold))


@pytest.mark.parametrize(
    ("program", "start"),
    [
        ("/usr/bin/zoo-run-glue", "zoo-run-glue"),
        (str(ROOT / "run_ner.py"), f"python {ROOT / 'run_glue.py'}"),
        ("/notebook/launcher.py", "python run_glue.py"),  # which calls run_glue.main
    ],
)
def test_a_command_starts_the_script_and_not_the_program_that_calls_it(monkeypatch, program, start):
    monkeypatch.setattr(sys, "argv", [program])
    assert start_of_script("run_glue") == start
    if "zoo-" not in start:
        assert start_of_script("extract", module="a.b") == "python -m a.b"


def test_a_notebook_of_an_installation_is_told_the_installed_command(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/notebook/launcher.py"])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)  # the scripts lie inside the package
    assert start_of_script("run_glue") == "zoo-run-glue"
    assert start_of_script("extract", module="elmo_gpt_bert.analysis.extraction") == "zoo-extract"


@pytest.mark.parametrize(
    ("program", "rank", "said"),
    [
        ("/usr/bin/zoo-run-glue", "0", "zoo-run-glue: imports torch and transformers ...\n"),
        ("/usr/bin/zoo-run-glue", "1", ""),
        ("/notebook/launcher.py", "0", ""),
    ],
)
def test_a_script_says_on_a_terminal_that_it_starts(monkeypatch, program, rank, said):
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(sys, "argv", [program])
    monkeypatch.setenv("LOCAL_RANK", rank)
    starting = importlib.util.find_spec("elmo_gpt_bert.starting")
    starting.loader.exec_module(importlib.util.module_from_spec(starting))  # anew, beside the one that is imported
    assert terminal.getvalue() == said


def test_a_module_that_python_runs_is_named_as_it_was_typed(monkeypatch):
    spec = SimpleNamespace(name="elmo_gpt_bert.explorer.__main__", origin="explorer/__main__.py")
    monkeypatch.setitem(sys.modules, "__main__", SimpleNamespace(__spec__=spec))
    monkeypatch.setattr(sys, "argv", [spec.origin])
    assert command_line.program() == "python -m elmo_gpt_bert.explorer"


def test_a_command_may_print_where_lines_are_not_buffered(monkeypatch):
    monkeypatch.setattr(sys, "stdout", output := io.StringIO())
    command_line.run_command(lambda: print("done"))
    assert output.getvalue() == "done\n"


def test_the_processor_has_a_name_on_other_systems_too(monkeypatch):
    def absent(path: Path, encoding: str) -> str:
        raise FileNotFoundError(path)

    monkeypatch.setattr(Path, "read_text", absent)
    assert processes.device_name(torch.device("cpu")) == (platform.processor() or platform.machine())


def test_metrics_json_holds_results_recipe_versions_and_hardware(finished):
    record = json.loads((finished() / "metrics.json").read_text(encoding="utf-8"))
    assert record["eval_accuracy"] == 0.75 and record["train_updates"] == 2 and record["seed"] == 42
    assert {"train_loss", "train_runtime", "eval_runtime"} <= record.keys()
    assert record["args"].keys() == {field.name for field in dataclasses.fields(Arguments)}
    assert record["versions"]["torch"] == torch.__version__
    assert record["hardware"]["threads"] == torch.get_num_threads() and record["hardware"]["processes"] == 1


def test_metrics_json_never_holds_what_json_has_no_word_for(run, data_set):
    args = run()
    Path(args.output_dir).mkdir()
    accelerator, tokenizer, model, collate = prepare(args)
    task, results = tiny_task(data_set, None, collate, model=model, tokenizer=tokenizer), {"eval_loss": float("nan")}
    with pytest.raises(ValueError, match="not JSON compliant"):
        reporting.write_results(task, results, args, accelerator, {}, {})
    assert not (Path(args.output_dir) / "metrics.json").exists()


def test_the_checkpoint_loads_with_stock_transformers(finished):
    folder = finished()
    model = transformers.BertForSequenceClassification.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    assert model(**tokenizer("a good film", return_tensors="pt")).logits.shape == (1, 2)


def test_the_model_card_has_the_score_and_a_recipe_that_repeats_the_run(finished, run, tmp_path):
    card = ModelCard.load(finished() / "README.md")
    (result,) = card.data.eval_results
    assert (result.dataset_type, result.metric_type, result.metric_value) == ("nyu-mll/glue", "accuracy", 0.75)
    text = card.text.split("```yaml\n")[1].split("```")[0]
    names = {"model_name_or_path": "config.json", "tokenizer_name": "vocab.txt", "output_dir": "out"}
    assert parse_arguments(Arguments, [recipe(tmp_path, text)]) == run(max_steps=2, task_name="sst2", **names)


def test_the_card_of_a_run_without_evaluation_says_so(run, tmp_path):
    args = run(task_name="own")
    _, _, model, _ = prepare(args)
    card = model_card(model, {"train_loss": 0.5}, Description("text-classification"), args, processes=2)
    assert "It was not evaluated." in card.text and card.data.eval_results is None and card.data.datasets is None
    assert "on 2 processes, so with batches of 8 examples" in card.text


def test_the_card_shows_the_papers_scores_for_the_same_metric_beside_ours(run):
    args = run(task_name="mnli")
    _, _, model, _ = prepare(args)
    data = Description("text-classification", "nyu-mll/glue", "GLUE MNLI", "mnli", "validation_matched")
    results = {"eval_accuracy": 0.8437, "eval_loss": 0.4, "eval_accuracy_mm": 0.84, "eval_loss_mm": 0.5}
    card = model_card(model, results, data, args, processes=1)
    assert "| accuracy | 0.8437 |" in card.text and "loss" not in card.text
    assert "| times 100 | this model, validation | BiLSTM+ELMo+Attn, test | OpenAI GPT, test | BERT-base" in card.text
    assert "| accuracy | 84.4 | 76.4 | 82.1 | 84.6 | 86.7 |" in card.text
    assert "| accuracy_mm | 84.0 | 76.1 | 81.4 | 83.4 | 85.9 |" in card.text
    measured = [(result.dataset_split, result.metric_type, result.metric_value) for result in card.data.eval_results]
    splits = ["validation_matched", "validation_mismatched"]
    assert measured == [(split, "accuracy", score) for split, score in zip(splits, (0.8437, 0.84), strict=True)]


@pytest.mark.parametrize("umask", [0o022, 0o007, 0o077])
def test_all_that_a_run_writes_follows_the_umask(finished, umask):
    before = os.umask(umask)
    try:
        folder = finished(do_eval=True, save_outputs=True)
    finally:
        os.umask(before)
    files = {path: path.stat().st_mode & 0o777 for path in folder.rglob("*") if path.is_file()}
    names = {path.relative_to(folder).as_posix() for path in files}
    assert {"model.safetensors", "checkpoint-2/model.safetensors", "README.md"} <= names
    assert any(name.startswith("outputs-") for name in names)
    assert set(files.values()) == {0o666 & ~umask}


def test_a_reader_never_finds_half_a_file(tmp_path, monkeypatch):
    path = tmp_path / "metrics.json"
    path.write_text("old", encoding="utf-8")
    monkeypatch.setattr("os.replace", lambda *_: pytest.fail("stopped here"))
    with pytest.raises(pytest.fail.Exception, match="stopped here"):
        write_text(path, "new")
    assert path.read_text(encoding="utf-8") == "old"


def test_a_disk_too_full_for_the_scores_is_an_error_with_a_remedy(tmp_path, monkeypatch):
    path = tmp_path / "metrics.json"
    path.write_text("old", encoding="utf-8")

    def full(path: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("elmo_gpt_bert.training.files.sync", full)
    with pytest.raises(OSError, match="cannot write .*metrics.json: No space left on device. Make room"):
        write_text(path, "new")
    assert path.read_text(encoding="utf-8") == "old" and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("checkpoint", "remedy"),
    [("checkpoint-2", "continues from the last checkpoint"), ("notes", "begins again: there is no checkpoint")],
)
def test_a_disk_too_full_for_the_model_is_one_line_that_says_how_to_go_on(tmp_path, checkpoint, remedy):
    def full(folder: Path, state_dict: dict) -> None:
        folder.mkdir()
        raise SafetensorError("Error while serializing:\nI/O error: No space left on device")

    (tmp_path / checkpoint).mkdir()
    task = SimpleNamespace(model=SimpleNamespace(save_pretrained=full))
    message = f"^cannot write {tmp_path}: Error while serializing: I/O error: No space left on device. Make"
    with pytest.raises(OSError, match=f"{message} room; the same command with --resume {remedy}$"):
        reporting.save_model(task, {}, ModelCard(""), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [checkpoint]


def test_the_folder_is_pushed_to_a_repository_made_before_the_work(finished, tmp_path, monkeypatch):
    calls = []

    class Api:
        def create_repo(self, repo_id, private, exist_ok):
            calls.append(("create", repo_id, private, exist_ok))
            return SimpleNamespace(repo_id=f"me/{repo_id}")

        def auth_check(self, repo_id, write):
            calls.append(("check", repo_id, write, not (tmp_path / "out" / "metrics.json").exists()))

        def list_repo_files(self, repo_id):
            return []

        def upload_folder(self, repo_id, folder_path, ignore_patterns, delete_patterns):
            files = ["model.safetensors", "checkpoint-2/optimizer.safetensors", "outputs-0123456789abcdef.safetensors"]
            sent = filter_repo_objects(files, ignore_patterns=ignore_patterns)
            calls.append(("upload", repo_id, Path(folder_path, "model.safetensors").exists(), list(sent)))

    monkeypatch.setattr("huggingface_hub.HfApi", Api)
    finished(push_to_hub=True, hub_model_id="mine")
    assert calls[:2] == [("create", "mine", None, True), ("check", "me/mine", True, True)]
    assert calls[2:] == [("upload", "me/mine", True, ["model.safetensors"])]


def test_the_repository_is_named_after_the_output_folder_by_default(run):
    assert hub_model_id(run(output_dir="runs/sst2/")) == "sst2"
