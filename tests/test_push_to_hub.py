"""push_to_hub.py and --push_to_hub: which files, what a dry run shows, tries and errors, results for benchmarks."""

import json
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub
import pytest
import yaml
from huggingface_hub import EvalResult, ModelCard, ModelCardData, constants, hf_api, parse_eval_result_entries

import push_to_hub
from elmo_gpt_bert.training import hub as pushing
from elmo_gpt_bert.training.checksums import write_checksums
from tests.hub_server import Dataset, HubServer


GLUE = "nyu-mll/glue"
TASKS = {"name": "GLUE", "tasks": [{"id": "cola", "config": "cola", "split": "validation"}]}
TASKS["tasks"].append({"id": "rte_task", "config": "rte", "split": "validation"})


@pytest.fixture
def hub(monkeypatch, tmp_path) -> Iterator[HubServer]:
    """A Hub that this process is logged in to, without waiting between tries."""
    huggingface_hub.utils.disable_progress_bars()
    with HubServer() as server:
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        template = server.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(hf_api, "ENDPOINT", server.url, raising=False)
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", "/nowhere")
        monkeypatch.setenv("HF_TOKEN", server.token)
        monkeypatch.setattr("time.sleep", lambda seconds: None)
        yield server


@pytest.fixture
def folder(tmp_path) -> Path:
    """The output folder of a run, as the scripts leave it."""
    folder = tmp_path / "rte"
    for name in ("config.json", "model.safetensors", "tokenizer.json", "metrics.json", "runs/1/hparams.yml"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("{}" + " " * len(name))
    scores = [("accuracy", 0.75, GLUE, "rte", "validation"), ("f1", 0.5, GLUE, "rte", "validation")]
    scores += [("accuracy", 0.9, "text", None, None)]
    results = [
        EvalResult("text-classification", name, name, metric, value, dataset_config=config, dataset_split=split)
        for metric, value, name, config, split in scores
    ]
    data = ModelCardData(model_name="rte", eval_results=results)
    code = 'model = AutoModel.from_pretrained("rte", trust_remote_code=True)'
    card = f"---\n{data.to_yaml()}\n---\n\n# rte\n\nrte is a task.\n\n## How to use\n\n```python\n{code}\n```\n"
    write_checksums(folder)
    (folder / "README.md").write_text(card)
    for name in (
        "checkpoint-10/model.safetensors",
        "seed-1/metrics.json",
        "outputs-test.safetensors",
        ".results.json",
    ):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("not for the Hub")
    return folder


PUSHED = {"README.md", "SHA256SUMS", "config.json", "metrics.json", "model.safetensors", "runs/1/hparams.yml"}
PUSHED |= {"tokenizer.json"}


def test_a_dry_run_shows_what_is_uploaded_and_needs_no_network(folder, capsys, monkeypatch):
    before = (folder / "README.md").read_bytes()
    monkeypatch.setattr("socket.socket.connect", None)  # whoever connects fails
    push_to_hub.main([str(folder), "--hub_model_id", "me/bert-rte", "--hub_private_repo", "--dry_run"])
    shown = capsys.readouterr().out
    assert "repository me/bert-rte on https://huggingface.co, private if it is new" in shown
    for name in PUSHED - {"README.md"}:
        assert f"| {name} | {(folder / name).stat().st_size:,} |" in shown
    assert "left out: .results.json, checkpoint-10, outputs-test.safetensors, seed-1\n" in shown
    assert "7 files, " in shown and "not for the Hub" not in shown
    assert (
        ".eval_results/glue-rte-validation.yaml, if nyu-mll/glue is a benchmark of the Hub: accuracy 0.7500" in shown
    )
    assert (
        "# bert-rte\n\nrte is a task." in shown and 'from_pretrained("me/bert-rte", trust_remote_code=True)' in shown
    )
    assert (folder / "README.md").read_bytes() == before and shown.endswith("dry run: nothing was uploaded\n")


def test_what_the_dry_run_shows_is_what_is_uploaded(hub, folder, capsys):
    push_to_hub.main([str(folder), "--hub_model_id", "me/bert-rte", "--dry_run"])
    shown = capsys.readouterr().out
    push_to_hub.main([str(folder), "--hub_model_id", "me/bert-rte"])
    files = hub.files("me/bert-rte")
    assert files.keys() == PUSHED
    assert {f"| {name} | {len(content):,} |" for name, content in files.items()} <= {*shown.splitlines()}
    card = files["README.md"].decode()
    assert card.strip() in shown and ModelCard(card).data.model_name == "bert-rte"


def test_a_server_that_fails_for_a_while_is_asked_again(hub, folder, capsys):
    failures = [500, 503, 504, 429, 502, 500, 500, 500]  # the client itself gives up after six
    hub.broken = {"create_repo": [500], "check_write": [503], "commit": failures}
    push_to_hub.main([str(folder), "--hub_model_id", "me/rte"])
    assert hub.files("me/rte").keys() == PUSHED
    errors = capsys.readouterr().err
    assert "answered with an error (500): next try in 1 seconds" in errors
    assert hub.broken == {"create_repo": [], "check_write": [], "commit": []}


def test_a_server_that_stays_down_is_one_line_with_the_command_for_later(hub, folder):
    hub.broken = {"commit": 503}
    with pytest.raises(OSError, match=r"rte is complete, but could not be pushed to me/rte .*\(503\): try again"):
        push_to_hub.main([str(folder), "--hub_model_id", "me/rte"])
    hub.broken = {"commit": [403]}  # not a passing problem: no second try
    with pytest.raises(OSError, match=r"\(403\).* Then: python push_to_hub.py .*rte --hub_model_id me/rte$"):
        push_to_hub.main([str(folder), "--hub_model_id", "me/rte"])
    push_to_hub.main([str(folder), "--hub_model_id", "me/rte"])
    assert hub.files("me/rte").keys() == PUSHED
    commits = len(hub.repos["me/rte"].commits)
    push_to_hub.main([str(folder), "--hub_model_id", "me/rte"])  # all is there
    assert len(hub.repos["me/rte"].commits) == commits


def test_scores_on_a_benchmark_of_the_hub_are_in_its_format_once_for_each_task(hub, folder):
    content = yaml.safe_dump(TASKS).encode()
    hub.datasets[GLUE] = Dataset(["language:en", "benchmark:official"], {"eval.yaml": content})
    push_to_hub.main([str(folder), "--hub_model_id", "me/rte"])
    files = hub.files("me/rte")
    assert files.keys() - PUSHED == {".eval_results/glue-rte-validation.yaml"}
    (entry,) = parse_eval_result_entries(yaml.safe_load(files[".eval_results/glue-rte-validation.yaml"]))
    assert (entry.dataset_id, entry.task_id, entry.value) == (GLUE, "rte_task", 0.75)
    assert entry.notes == "accuracy on the validation split"


@pytest.mark.parametrize(
    "dataset",
    [
        None,
        Dataset(["language:en"], {"eval.yaml": yaml.safe_dump(TASKS).encode()}),
        Dataset(["benchmark:official"], {}),
        Dataset(["benchmark:official"], {"eval.yaml": yaml.safe_dump({"tasks": TASKS["tasks"][:1]}).encode()}),
    ],
    ids=["absent", "no benchmark", "no tasks", "other tasks"],
)
def test_what_is_no_task_of_a_benchmark_has_no_such_file(hub, folder, dataset):
    if dataset is not None:
        hub.datasets[GLUE] = dataset
    push_to_hub.main([str(folder), "--hub_model_id", "me/rte"])
    assert hub.files("me/rte").keys() == PUSHED


def test_a_folder_that_is_missing_damaged_or_no_models_is_one_clear_error(hub, folder, tmp_path):
    with pytest.raises(FileNotFoundError, match="absent: no such folder"):
        push_to_hub.main([str(tmp_path / "absent")])
    (tmp_path / "empty").mkdir()
    for other in (tmp_path / "empty", tmp_path):  # the latter holds folders of runs
        with pytest.raises(ValueError, match=r"neither config.json nor metrics.json: give the output folder of a run"):
            push_to_hub.main([str(other), "--dry_run"])
    (folder / "model.safetensors").write_text(json.dumps({}))
    with pytest.raises(OSError, match="model.safetensors has 17 bytes less than it had"):
        push_to_hub.main([str(folder)])
    assert not hub.repos


def test_a_name_that_no_repository_can_have_is_an_error_of_the_dry_run_too(folder):
    for name in ("me/bert/rte", "my model"):
        with pytest.raises(ValueError, match=rf"cannot push to {name}: Repo id must .*: give another --hub_model_id"):
            push_to_hub.main([str(folder), "--hub_model_id", name, "--dry_run"])


def test_a_folder_without_a_card_is_pushed_without_one(hub, folder, capsys):
    (folder / "README.md").unlink()
    push_to_hub.main([str(folder), "--dry_run"])
    assert "repository rte of the user who is logged in" in (shown := capsys.readouterr().out)
    assert "no README.md: the repository will have no model card" in shown
    push_to_hub.main([str(folder)])
    assert hub.files("me/rte").keys() == PUSHED - {"README.md"}


def test_a_card_without_scores_has_the_name_of_the_repository_in_its_metadata_too(folder):
    (folder / "README.md").write_text("---\nmodel_name: rte\n---\n\n# rte\n", encoding="utf-8")
    card = ModelCard(push_to_hub.card_for(folder, "me/bert-rte"))
    assert card.data.model_name == "bert-rte" and card.text.strip() == "# bert-rte"
    (folder / "README.md").write_text("---\nlicense: mit\n---\n\n# Mine\n", encoding="utf-8")
    assert ModelCard(push_to_hub.card_for(folder, "me/bert-rte")).data.to_dict() == {"license": "mit"}


def test_names_with_brackets_are_pushed_as_they_are(folder):
    (folder / "notes [1].txt").write_text("x")
    (folder / "notes 1.txt").write_text("y")
    assert {"notes [1].txt", "notes 1.txt"} <= pushing.pushed_files(folder).keys()
