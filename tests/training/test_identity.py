"""Whether two runs are the same: by the content of what they read, whichever way it was named."""

import json
import shutil
from pathlib import Path

import pytest
from datasets import Dataset, DatasetDict
from safetensors.torch import load_file, save_file

import run_blimp
import run_glue
import run_ner
import run_pretraining
import run_squad
import run_swag
from elmo_gpt_bert.tasks import rows
from elmo_gpt_bert.training import loop, reporting, runs
from elmo_gpt_bert.training.flags import parse_arguments
from elmo_gpt_bert.training.identity import first_difference, read_finished, run_identity
from tests.support import choices_sample, glue_sample, ner_sample, squad_sample
from tests.support.tiny_run import Arguments


WAYS = (["--seeds", "2"], ["--save_strategy", "no"], [])
COMMON = {"model_name_or_path": "m", "output_dir": "o", "do_train": True, "do_eval": True}


@pytest.fixture
def flags(tmp_path) -> list[str]:
    """A short run of RTE in miniature."""
    flags = ["--model_name_or_path", str(glue_sample.write_model(tmp_path, hidden_dropout_prob=0.0))]
    flags += ["--tokenizer_name", str(glue_sample.write_vocabulary(tmp_path)), "--task_name", "rte"]
    flags += ["--data_dir", str(glue_sample.write_task(tmp_path, "RTE")), "--max_seq_length", "24", "--do_train"]
    return [*flags, "--do_eval", "--learning_rate", "0.01", "--max_steps", "2", "--output_dir", str(tmp_path / "out")]


def refused(argv: list[str], folder: Path, problem: str) -> None:
    """The run is refused in one line, and nothing in the folder has changed."""

    def content() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != ".batch.json"}

    before = content()
    digests = "[0-9a-f]{16}, not [0-9a-f]{16}: --resume continues the same run, another needs its own --output_dir"
    with pytest.raises(ValueError, match=f"is of a run with {problem} {digests}$"):
        run_glue.main([*argv, "--resume"])
    assert content() == before


@pytest.mark.parametrize("how", WAYS)
def test_a_finished_run_whose_labels_were_changed_in_place_is_refused(flags, tmp_path, how):
    run_glue.main([*flags, *how])
    for file, problem in (("dev.tsv", "validation data"), ("train.tsv", "training data")):
        path = tmp_path / "RTE" / file
        before = path.read_text(encoding="utf-8")
        text = before.replace("not_entailment", "X").replace("entailment", "not_entailment")
        path.write_text(text.replace("X", "entailment"), encoding="utf-8")
        refused([*flags, *how], tmp_path / "out", problem)
        path.write_text(before, encoding="utf-8")


def test_predictions_for_another_test_set_are_not_taken_for_those_of_this_one(flags, tmp_path):
    argv = [*flags, "--seeds", "2", "--do_predict"]
    run_glue.main(argv)
    path = tmp_path / "RTE" / "test.tsv"
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    path.write_text("".join(lines[:-1]), encoding="utf-8")
    refused(argv, tmp_path / "out", "test data")


@pytest.mark.parametrize("how", WAYS)
def test_no_other_tokenizer_is_written_over_a_finished_model(flags, tmp_path, how):
    run_glue.main([*flags, *how])
    path = tmp_path / "vocab.txt"
    first, *words = path.read_text(encoding="utf-8").splitlines()
    path.write_text("\n".join([first, *words[:3], *reversed(words[3:])]), encoding="utf-8")
    refused([*flags, *how], tmp_path / "out", "t[a-z ]+")  # the tokenizer, or the training data that it made


def test_seeds_of_two_models_are_not_averaged(flags, tmp_path):
    start = tmp_path / "start"
    run_glue.main([*flags, "--output_dir", str(start), "--save_strategy", "no"])
    argv = [*flags, "--model_name_or_path", str(start)]
    run_glue.main([*argv, "--seeds", "2"])
    weights = load_file(start / "model.safetensors")
    twice = {name: 2 * weight for name, weight in weights.items()}
    save_file(twice, start / "model.safetensors", {"format": "pt"})
    (start / "SHA256SUMS").unlink()
    refused([*argv, "--seeds", "3"], tmp_path / "out", "initial model")


def test_a_finished_model_is_not_written_again(flags, tmp_path):
    argv, path = [*flags, "--save_strategy", "no"], tmp_path / "out" / "model.safetensors"
    run_glue.main(argv)
    before = path.stat().st_mtime_ns
    run_glue.main([*argv, "--do_predict", "--resume"])
    assert path.stat().st_mtime_ns == before and (tmp_path / "out" / "predictions.tsv").is_file()


def test_the_record_of_a_finished_run_stays_that_of_its_training(flags, tmp_path, monkeypatch):
    first = run_glue.main([*flags, "--do_predict", "--max_predict_samples", "3"])
    before = json.loads((tmp_path / "out" / "metrics.json").read_text())
    monkeypatch.setattr(reporting, "hardware", lambda _: {"device": "another"})
    monkeypatch.setattr(reporting, "versions", lambda: {"torch": "another"})
    again = run_glue.main([*flags, "--resume"])
    after = json.loads((tmp_path / "out" / "metrics.json").read_text())
    changed = {"save_runtime", "start_runtime", "load_runtime", "tokenize_runtime", "eval_runtime", "args"}
    assert {name for name in before if before[name] != after.get(name)} <= changed
    assert {name for name in before["args"] if before["args"][name] != after["args"][name]} == {"resume"}
    assert again["predict_samples"] == first["predict_samples"] == 3


@pytest.mark.parametrize("how", ["--resume", "--overwrite_output_dir"])
def test_scores_of_another_model_are_not_put_beside_one_that_was_trained(flags, tmp_path, how):
    run_glue.main(flags)
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir() if path.is_file()}
    other = [*flags, "--do_train", "false", "--max_steps", "-1", how]
    with pytest.raises(ValueError, match="holds the scores of a model that was trained there: choose another --outp"):
        run_glue.main([word for word in other if word not in ("--learning_rate", "0.01")])
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir() if path.is_file()} == before


def test_a_run_begins_anew_over_a_record_that_is_damaged_or_of_another_program(flags, tmp_path):
    (tmp_path / "out").mkdir()
    for content in ('{"seed": 4', '{"eval_accuracy": 0.5}'):
        (tmp_path / "out" / "metrics.json").write_text(content)
        assert run_glue.main([*flags, "--overwrite_output_dir"])["train_updates"] == 2


@pytest.mark.parametrize("more", [["--seeds", "2"], ["--max_restarts", "1"]])
@pytest.mark.parametrize("finishes", [True, False])
def test_several_seeds_do_not_train_over_a_run_of_one(flags, tmp_path, monkeypatch, finishes, more):
    if finishes:
        run_glue.main([*flags, "--save_strategy", "no"])
    else:
        with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
            patch.setattr(runs, "write_results", lambda *_: 1 / 0)  # behind its last checkpoint
            run_glue.main(flags)
    with pytest.raises(ValueError, match="holds a run of one seed: --resume it without --seeds and --max_restarts"):
        run_glue.main([*flags, *more, "--resume"])


@pytest.mark.parametrize("how", WAYS)
def test_data_tokenizer_and_model_may_move_or_be_named_another_way(flags, tmp_path, monkeypatch, how):
    results = run_glue.main([*flags, *how])
    shutil.copytree(tmp_path / "RTE", tmp_path / "glue" / "RTE")
    names = ["--data_dir", str(tmp_path / "glue")]
    for flag, path, name in (("tokenizer_name", flags[3], "moved.txt"), ("model_name_or_path", flags[1], "m.json")):
        names += [f"--{flag}", str(shutil.move(path, tmp_path / name))]
    monkeypatch.setattr(loop._Training, "update", lambda *_: pytest.fail("trained again"))
    again = run_glue.main([*flags, *how, *names, "--resume"])
    assert again["eval_accuracy"] == results["eval_accuracy"] and again["eval_loss"] == results["eval_loss"]


MAY_CHANGE = {"save_strategy": "no", "save_steps": 7, "save_total_limit": 5, "logging_steps": 3}
MAY_CHANGE |= {"per_device_eval_batch_size": 2, "report_to": "tensorboard", "dataloader_num_workers": 1}
MAY_CHANGE |= {"gradient_checkpointing": True, "overwrite_output_dir": True, "output_dir": "other"}


@pytest.mark.parametrize("name", MAY_CHANGE)
def test_what_does_not_change_the_weights_may_change_when_a_run_is_resumed(run, name):
    assert run_identity(run(**{name: MAY_CHANGE[name]})) == run_identity(run())


def test_the_identity_in_metrics_shows_no_paths(flags, tmp_path):
    run_glue.main(flags)
    record = json.loads((tmp_path / "out" / "metrics.json").read_text(encoding="utf-8"))
    assert str(tmp_path) not in json.dumps(record)
    assert {"initial model", "tokenizer", "training data", "validation data"} <= record["identity"].keys()


# What each script reads


def of_script(folder: Path, script: str) -> tuple[object, list[Path]]:
    """(arguments of the script, the files that it reads)"""
    if script == "squad":
        data = squad_sample.write_folder(folder)
        files = [data / "train-v1.1.json", data / "dev-v1.1.json"]
        return run_squad.SquadArguments(data_dir=str(data), **COMMON), files
    if script == "ner":
        data = ner_sample.write_folder(folder / "ner")
        return run_ner.NerArguments(data_dir=str(data), **COMMON), [data / "train.txt", data / "valid.txt"]
    if script in ("race", "swag"):
        data = choices_sample.write_task(folder, script)
        paths = [path for path in data.rglob("*") if path.is_file()]
        files = sorted(path for path in paths if "test" not in str(path.relative_to(data)))
        return run_swag.SwagArguments(task_name=script, data_dir=str(data), **COMMON), files
    if script == "blimp":
        files = [folder / "a.jsonl"]
        words = {"model_name_or_path": "m", "output_dir": "o", "data_dir": str(folder)}
        args = run_blimp.BlimpArguments(**words)
    else:
        files = [folder / "a.txt", folder / "b.txt"]
        args = run_pretraining.PretrainingArguments(**COMMON, train_file=str(folder / "*.txt"))
    for file in files:
        file.write_text(file.name, encoding="utf-8")
    return args, files


@pytest.mark.parametrize("script", ["squad", "ner", "race", "swag", "blimp", "pretraining"])
def test_every_file_that_a_script_reads_counts_and_no_other(tmp_path, script):
    args, files = of_script(tmp_path, script)
    before = run_identity(args)
    (tmp_path / "notes.md").write_text("seen", encoding="utf-8")
    assert files and run_identity(args) == before and str(tmp_path) not in json.dumps(before)
    for file in files:
        file.write_text(file.read_text(encoding="utf-8") + " ", encoding="utf-8")
        now = run_identity(args)
        (changed,) = [name for name in now if now[name] != before[name]]
        assert changed in ("training data", "validation data")
        before = now


def test_a_pattern_and_a_list_of_the_same_files_are_the_same_text(tmp_path):
    args, files = of_script(tmp_path, "pretraining")

    def listed(files: list[Path]) -> dict:
        names = ",".join(map(str, files))
        return run_identity(run_pretraining.PretrainingArguments(**COMMON, train_file=names))

    assert listed(files) == run_identity(args) != listed(files[::-1])


@pytest.mark.parametrize(
    "kind, name, repository",
    [
        (run_ner.NerArguments, {"dataset_name": "a/b"}, "a/b"),
        (run_squad.SquadArguments, {"dataset_name": "a/b"}, "a/b"),
        (run_pretraining.PretrainingArguments, {"dataset_name": "a/b"}, "a/b"),
        (run_swag.SwagArguments, {"task_name": "swag"}, "allenai/swag"),
    ],
)
def test_a_data_set_of_the_hub_counts_by_its_version(monkeypatch, kind, name, repository):
    texts, args = ["good"], kind(**name, **COMMON)

    def load(*_, **__) -> DatasetDict:
        return DatasetDict({"train": Dataset.from_dict({"text": texts})})

    def version() -> str:
        rows._load_once.cache_clear()
        return run_identity(args)["training data"]

    monkeypatch.setattr("datasets.load_dataset", load)
    first = version()
    assert first.startswith(f"{repository}@") and version() == first
    texts.append("bad")
    assert version() != first


def test_a_data_set_whose_revision_is_fixed_counts_by_that():
    args = run_glue.GlueArguments(**COMMON | {"do_train": False}, task_name="hans")
    assert run_identity(args)["validation data"] == "jhu-cogsci/hans@refs/convert/parquet"


def test_a_model_of_the_hub_counts_by_its_commit(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    args = Arguments(**COMMON | {"model_name_or_path": "a/b"})

    def model(commit: str) -> str:
        cached = tmp_path / "models--a--b"
        for path, text in (("refs/main", commit), (f"snapshots/{commit}/config.json", "{}")):
            (cached / path).parent.mkdir(parents=True, exist_ok=True)
            (cached / path).write_text(text, encoding="utf-8")
        return run_identity(args)["initial model"]

    nowhere, one, other = run_identity(args), model("1" * 40), model("2" * 40)
    assert (nowhere["initial model"], one, other) == ("a/b", f"a/b@{'1' * 40}", f"a/b@{'2' * 40}")
    assert first_difference(nowhere, run_identity(args)) is None  # where no version is in the cache
    assert first_difference({"initial model": one}, {"initial model": other}) == "initial model"
    assert first_difference({"initial model": "a/c"}, {"initial model": other}) == "initial model"


def test_a_table_counts_runs_whose_data_and_models_are_not_here(flags, tmp_path):
    run_glue.main(flags)
    shutil.rmtree(tmp_path / "RTE")
    args = parse_arguments(run_glue.GlueArguments, [*flags, "--tokenizer_name", "no/tokenizer"])
    assert read_finished(tmp_path / "out", args, absent=True)["train_updates"] == 2
    with pytest.raises(FileNotFoundError, match="RTE has no train.tsv"):
        read_finished(tmp_path / "out", args)


def test_a_model_counts_without_the_tokenizer_and_the_state_of_its_training(tmp_path):
    for name in (
        "config.json",
        "model.safetensors",
        "vocab.txt",
        "optimizer.safetensors",
        "optimizer.pt",
        "notes.txt",
    ):
        (tmp_path / name).write_text(name, encoding="utf-8")
    args = Arguments(**COMMON | {"model_name_or_path": str(tmp_path)})

    def changed(file: str) -> list[str]:
        before = run_identity(args)
        (tmp_path / file).write_text("changed", encoding="utf-8")
        return [name for name, value in run_identity(args).items() if value != before[name]]

    assert changed("config.json") == changed("model.safetensors") == ["initial model"]
    assert changed("vocab.txt") == ["tokenizer"]
    assert changed("optimizer.safetensors") == changed("optimizer.pt") == changed("notes.txt") == []
