"""--push_to_hub and `hf upload` against a Hub on the loopback interface: what goes up, and what is said where not."""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub
import pytest
from hf_xet import XetAuthenticationError
from huggingface_hub import ModelCard, constants
from huggingface_hub.utils import filter_repo_objects

import run_glue
from elmo_gpt_bert.training import runs
from elmo_gpt_bert.training.output_folder import write_checksums
from elmo_gpt_bert.training.reporting import LEFT_OUT, create_repository, push
from tests.project.test_house import commands
from tests.support.glue_sample import write_model, write_task, write_vocabulary
from tests.support.hub_server import HubServer, log_in


PUSHED = {"README.md", "SHA256SUMS", "config.json", "metrics.json", "model.safetensors", "runs/1/hparams.yml"}
PUSHED |= {"tokenizer.json"}


@pytest.fixture
def hub(monkeypatch, tmp_path) -> Iterator[HubServer]:
    """A Hub that this process is logged in to."""
    with HubServer() as server:
        log_in(monkeypatch, server, tmp_path / "cache")
        monkeypatch.setattr("time.sleep", lambda seconds: None)  # between two tries
        yield server


@pytest.fixture
def flags(tmp_path) -> list[str]:
    """A short run of RTE in miniature that is pushed."""
    flags = ["--model_name_or_path", str(write_model(tmp_path)), "--max_steps", "2", "--max_seq_length", "24"]
    flags += ["--tokenizer_name", str(write_vocabulary(tmp_path)), "--output_dir", str(tmp_path / "out")]
    flags += ["--task_name", "rte", "--data_dir", str(write_task(tmp_path, "RTE")), "--do_train", "--do_eval"]
    return [*flags, "--do_predict", "--push_to_hub"]


@pytest.fixture
def end(flags, capsys, monkeypatch):
    """Runs the command line; gives its exit status and its last line."""
    monkeypatch.setattr("sys.argv", ["run_glue.py"])

    def run(*more: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            runs.command(lambda: run_glue.main([*flags, *more]))
        error = capsys.readouterr().err
        assert "Traceback" not in error
        return ended.value.code, error.splitlines()[-1]

    return run


@pytest.fixture
def folder(tmp_path) -> Path:
    """The output folder of a run, as the scripts leave it."""
    folder = tmp_path / "rte"
    for name in ("config.json", "model.safetensors", "tokenizer.json", "metrics.json", "runs/1/hparams.yml"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("{}" + " " * len(name))
    write_checksums(folder)
    (folder / "README.md").write_text("# rte\n")
    for name in (
        "checkpoint-10/model.safetensors",
        "seed-1/metrics.json",
        "outputs-test.safetensors",
        ".batch.json",
    ):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("not for the Hub")
    return folder


def pushed_files(folder: Path) -> set[str]:
    """The files that belong on the Hub."""
    names = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    return {*filter_repo_objects(names, ignore_patterns=[*LEFT_OUT])}


def send(name: str, folder: Path) -> None:
    """Creates the repository and pushes the folder, as a run does before and after its work."""
    push(create_repository(name, private=False), folder)


def hf(words: list[str], hub: HubServer, home: Path) -> None:
    """Runs a command of the Hub's client, in a process of its own because it reads the Hub's address once."""
    assert words[0] == "hf"
    env = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    env |= {"HF_ENDPOINT": hub.url, "HF_TOKEN": hub.token, "HF_HUB_OFFLINE": "0", "HF_HOME": str(home)}
    program = Path(sys.executable).with_name("hf")
    process = subprocess.run([program, *words[1:]], env=env, capture_output=True, text=True, timeout=200)
    assert process.returncode == 0, process.stderr


def test_what_is_pushed_names_no_folder_of_this_machine(hub, flags, tmp_path):
    run_glue.main([*flags, "--report_to", "tensorboard", "--save_outputs"])
    files = hub.files("me/out")
    assert {"README.md", "metrics.json", "config.json", "model.safetensors", "predictions.tsv"} <= files.keys()
    assert [name for name, content in files.items() if str(tmp_path).encode() in content] == []
    assert not [name for name in files if name.startswith(("checkpoint", "outputs", "."))]
    assert [name for name in files if name.startswith("runs/") and name.endswith("hparams.yml")]
    assert files["metrics.json"] == (tmp_path / "out" / "metrics.json").read_bytes()
    asked = json.loads(files["metrics.json"])["args"]
    assert (asked["data_dir"], asked["model_name_or_path"], asked["hub_model_id"]) == ("RTE", "config.json", "me/out")
    assert 'from_pretrained("me/out")' in files["README.md"].decode()


@pytest.mark.parametrize("private", [False, True])
def test_the_repository_is_private_where_that_is_asked(hub, flags, private):
    run_glue.main([*flags, *(["--hub_private_repo"] if private else [])])
    assert hub.repos["me/out"].private == private


def test_without_a_login_a_run_ends_before_it_begins(hub, end, tmp_path, monkeypatch):
    monkeypatch.delenv("HF_TOKEN")
    status, line = end()
    assert status == 1 and line.endswith(": run `hf auth login` or set HF_TOKEN, or leave --push_to_hub out")
    assert not (tmp_path / "out").exists() and not hub.repos


def test_a_token_that_is_not_valid_is_told_from_one_that_may_not_write(hub, end, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    status, line = end()
    assert (
        status == 1 and "the Hub answered with an error (401): run `hf auth login`" in line and "hf_secret" not in line
    )
    monkeypatch.setenv("HF_TOKEN", hub.token)
    for place in ("create_repo", "check_write"):  # a new repository, and one that is there already
        hub.broken = {place: 403, "model_info": 404} if place == "create_repo" else {place: 403}
        status, line = end()
        assert status == 1 and "(403): let the token write there" in line and "--hub_model_id" in line
    assert not (tmp_path / "out").exists()


def test_a_hub_that_is_down_or_shut_off_is_told_before_the_work(hub, end, tmp_path, monkeypatch):
    hub.broken = {"create_repo": 500}
    status, line = end()
    assert status == 1 and "answered with an error (500): try again later, or leave --push_to_hub out" in line
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    status, line = end()
    assert status == 1 and "127.0.0.1:9: it cannot be reached (" in line and "check the network" in line
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    status, line = end()
    assert status == 1 and "HF_HUB_OFFLINE is set: unset it, or leave --push_to_hub out" in line
    assert not (tmp_path / "out").exists()


def test_a_name_that_the_hub_does_not_take_is_told_before_the_work(hub, end):
    status, line = end("--hub_model_id", "me/a name")
    assert status == 1 and "Repo id must" in line and "give another --hub_model_id" in line


@pytest.mark.parametrize("more", [[], pytest.param(["--seeds", "2"], marks=pytest.mark.slow)])
def test_a_hub_that_fails_after_the_work_costs_nothing_but_one_command(hub, end, tmp_path, more):
    hub.broken = {"commit": 403}
    status, line = end(*more)
    out = tmp_path / "out"
    assert status == 1 and line.startswith(f"run_glue.py: error: {out} is complete, but could not be pushed to me/out")
    hub.broken = {}
    hf(shlex.split(line.partition("Then: ")[2]), hub, tmp_path)
    assert hub.files("me/out").keys() == pushed_files(out)
    assert hub.files("me/out")["README.md"] == (out / "README.md").read_bytes()
    names = {path.name for path in out.iterdir()}
    assert {"README.md", "metrics.json", "model.safetensors", "predictions.tsv"} <= names and ".lock" not in names


def test_a_store_of_large_files_that_refuses_a_token_is_told_as_the_hub_is(hub, folder, monkeypatch):
    def refused(*_, **__):
        raise XetAuthenticationError("expired")

    monkeypatch.setattr(huggingface_hub.HfApi, "upload_folder", refused)
    with pytest.raises(OSError, match=r"\(403\): let the token write there, .* Then: hf upload me/rte "):
        send("me/rte", folder)


def test_nothing_of_an_earlier_model_stays_beside_the_one_that_is_pushed(hub, tmp_path):
    for name, files in (("first", ["model.safetensors.index.json", "vocab.txt"]), ("second", ["model.safetensors"])):
        (tmp_path / name).mkdir()
        for file in ["config.json", *files]:
            (tmp_path / name / file).write_text(name, encoding="utf-8")
        write_checksums(tmp_path / name)
    (tmp_path / "first" / "predictions.tsv").touch()
    (tmp_path / "first" / "notes.txt").touch()
    (tmp_path / "first" / "pytorch_model.gguf").touch()  # nobody but the user may remove it
    send("me/out", tmp_path / "first")
    send("me/out", tmp_path / "second")
    kept = {"SHA256SUMS", "config.json", "model.safetensors", "notes.txt", "pytorch_model.gguf"}
    assert hub.files("me/out").keys() == kept and hub.files("me/out")["config.json"] == b"second"


@pytest.mark.slow
def test_of_several_seeds_the_best_goes_up_alone(hub, flags, tmp_path):
    run_glue.main([*flags, "--seeds", "2"])
    files = hub.files("me/out")
    assert "All seeds:" in files["README.md"].decode() and "model.safetensors" in files
    assert not [name for name in files if name.startswith("seed")]
    assert not [name for name, content in files.items() if str(tmp_path).encode() in content]


@pytest.mark.slow
def test_the_guides_upload_of_a_named_run_is_what_the_run_would_push(hub, flags, tmp_path):
    assert flags.pop() == "--push_to_hub"
    run_glue.main([*flags, "--hub_model_id", "me/bert-rte", "--save_steps", "1", "--save_outputs", "--seeds", "2"])
    assert not hub.repos
    out = tmp_path / "out"
    (words,) = [words for words in commands("docs/hub.md") if words[:2] == ["hf", "upload"]]
    hf([str(out) if word == "runs/bert/glue/rte" else word for word in words], hub, tmp_path)
    files = hub.files("me/bert-rte")
    assert files.keys() == pushed_files(out) and {"model.safetensors", "predictions.tsv"} <= files.keys()
    assert hub.repos["me/bert-rte"].private and {path.name for path in out.iterdir()} > {"seed-42", "seed-43"}
    card = files["README.md"].decode()
    assert 'from_pretrained("me/bert-rte")' in card and ModelCard(card).data.model_name == "bert-rte"


def test_a_server_that_fails_for_a_while_is_asked_again(hub, folder):
    hub.broken = {"commit": [500, 503, 504, 502]}
    send("me/rte", folder)
    assert hub.files("me/rte").keys() == PUSHED and hub.broken == {"commit": []}


def test_a_server_that_stays_down_is_one_line_with_the_command_for_later(hub, folder):
    hub.broken = {"commit": 503}
    with pytest.raises(OSError, match=r"rte is complete, but could not be pushed to me/rte .*\(503\): try again"):
        send("me/rte", folder)
    hub.broken = {"commit": [403]}  # not a passing problem: no second try
    with pytest.raises(OSError, match=r"\(403\).* Then: hf upload me/rte \S*rte --exclude 'checkpoint-\*' "):
        send("me/rte", folder)
    send("me/rte", folder)
    assert hub.files("me/rte").keys() == PUSHED
    commits = len(hub.repos["me/rte"].commits)
    send("me/rte", folder)  # all is there
    assert len(hub.repos["me/rte"].commits) == commits


def test_a_folder_without_a_card_is_pushed_without_one(hub, folder):
    (folder / "README.md").unlink()
    send("rte", folder)
    assert hub.files("me/rte").keys() == PUSHED - {"README.md"}


def test_names_with_brackets_are_pushed_as_they_are(hub, folder):
    (folder / "notes [1].txt").write_text("x")
    (folder / "notes 1.txt").write_text("y")
    send("rte", folder)
    assert hub.files("me/rte").keys() == PUSHED | {"notes [1].txt", "notes 1.txt"}
