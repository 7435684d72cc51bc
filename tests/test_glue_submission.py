"""The leaderboard's zip."""

import json
import zipfile
from pathlib import Path

import pytest

import glue_submission
import run_glue
from elmo_gpt_bert.tasks.glue.table import EVERY_TASK
from elmo_gpt_bert.training.command_line import run_command
from elmo_gpt_bert.training.errors import FileError
from tests.glue_sample import write_model, write_vocabulary
from tests.processes import heavy_imports


pytestmark = pytest.mark.slow


SIZES = {
    "CoLA.tsv": 1063,
    "SST-2.tsv": 1821,
    "MRPC.tsv": 1725,
    "STS-B.tsv": 1379,
    "QQP.tsv": 390965,
    "MNLI-m.tsv": 9796,
    "MNLI-mm.tsv": 9847,
    "QNLI.tsv": 5463,
    "RTE.tsv": 3000,
    "WNLI.tsv": 146,
    "AX.tsv": 1104,
}
PREDICTIONS = "predictions.tsv"
NUMBERED = ["CoLA.tsv", "SST-2.tsv", "MRPC.tsv", "QQP.tsv", "WNLI.tsv"]


def write_predictions(path: Path, predictions: list[str]) -> None:
    lines = ["index\tprediction", *(f"{index}\t{prediction}" for index, prediction in enumerate(predictions))]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


@pytest.fixture
def runs(tmp_path, monkeypatch) -> dict[str, Path]:
    """task -> a folder as run_glue.py leaves it, with every label among the predictions. QQP is cut short."""
    monkeypatch.setitem(glue_submission.FILES, "qqp", [glue_submission.File("QQP.tsv", 40)])
    folders = {}
    for task_name, files in glue_submission.FILES.items():
        folder = folders[task_name] = tmp_path / task_name
        folder.mkdir()
        record = {"args": {"task_name": task_name}}
        (folder / "metrics.json").write_text(json.dumps(record), encoding="utf-8")
        labels = EVERY_TASK[task_name].labels or ("-0.2500", "2.5000", "5.1250")
        for file in files:
            write_predictions(folder / file.predictions, [labels[index % len(labels)] for index in range(file.lines)])
    return folders


@pytest.fixture
def submit(runs, tmp_path):
    """Runs the script on all runs, or on those given; gives name -> lines of what is in the zip."""

    def run(folders: list[Path] | None = None) -> dict[str, list[str]]:
        path = tmp_path / "submission.zip"
        glue_submission.main(["--output", str(path), *map(str, folders or runs.values())])
        with zipfile.ZipFile(path) as archive:
            assert archive.testzip() is None
            return {name: archive.read(name).decode("utf-8").splitlines() for name in archive.namelist()}

    return run


def test_the_servers_files_have_the_sizes_of_the_published_test_files():
    assert {file.name: file.lines for files in glue_submission.FILES.values() for file in files} == SIZES


def test_the_zip_holds_the_servers_files_with_their_header_and_a_line_for_each_example(submit):
    files = submit()
    assert {name: len(lines) - 1 for name, lines in files.items()} == SIZES | {"QQP.tsv": 40}
    for lines in files.values():
        assert lines[0] == "index\tprediction"
        assert [line.split("\t")[0] for line in lines[1:4] + lines[-1:]] == ["0", "1", "2", str(len(lines) - 2)]


def test_labels_are_names_where_the_server_wants_names_and_numbers_elsewhere(submit):
    answers = {name: {line.split("\t")[1] for line in lines[1:]} for name, lines in submit().items()}
    entailment = {"entailment", "not_entailment"}
    inference = {"entailment", "neutral", "contradiction"}
    assert answers == dict.fromkeys(NUMBERED, {"0", "1"}) | dict.fromkeys(["QNLI.tsv", "RTE.tsv"], entailment) | {
        **dict.fromkeys(["MNLI-m.tsv", "MNLI-mm.tsv", "AX.tsv"], inference),
        "STS-B.tsv": {"0.0000", "2.5000", "5.0000"},  # clipped here, not in the run's own predictions
    }
    assert submit()["MRPC.tsv"][1:3] == ["0\t0", "1\t1"]  # not_equivalent is 0


def test_the_two_halves_of_mnli_are_not_exchanged(runs, submit):
    write_predictions(runs["mnli"] / "predictions_mm.tsv", ["neutral"] * SIZES["MNLI-mm.tsv"])
    files = submit()
    assert set(files["MNLI-mm.tsv"][1:]) == {f"{index}\tneutral" for index in range(SIZES["MNLI-mm.tsv"])}
    assert files["MNLI-m.tsv"][1] == "0\tentailment"


def test_the_same_predictions_give_the_same_bytes(submit, tmp_path):
    submit()
    first = (tmp_path / "submission.zip").read_bytes()
    submit()
    assert (tmp_path / "submission.zip").read_bytes() == first


def edit(path: Path, old: str, new: str) -> None:
    content = path.read_text(encoding="utf-8")
    assert old in content
    path.write_text(content.replace(old, new, 1), encoding="utf-8")


@pytest.mark.parametrize(
    ("task_name", "file", "old", "new", "message"),
    [
        ("wnli", PREDICTIONS, "145\t", "", "predictions.tsv:147: 1 column instead of 2"),
        (
            "wnli",
            "predictions.tsv",
            "\n145\tentailment",
            "",
            "has 145 predictions, but wnli's .* 146 examples",
        ),
        ("wnli", PREDICTIONS, "\n7\t", "\n8\t", "predictions.tsv:9: the index is '8' instead of 7"),
        (
            "wnli",
            "predictions.tsv",
            "\tentailment",
            "\tneutral",
            "predictions.tsv:3: unknown label 'neutral', WNLI has",
        ),
        ("rte", PREDICTIONS, "\tentailment", "\tLABEL_0", "predictions.tsv:2: unknown label 'LABEL_0', RTE has"),
        ("stsb", PREDICTIONS, "2.5000", "nan", "predictions.tsv:3: 'nan' is not a number"),
        ("stsb", PREDICTIONS, "2.5000", "high", "predictions.tsv:3: 'high' is not a number"),
        (
            "cola",
            "predictions.tsv",
            "prediction",
            "label",
            "predictions.tsv:2: no column prediction among index, label",
        ),
        ("cola", "metrics.json", "cola", "snli", "metrics.json: snli is not a task of the leaderboard"),
        (
            "cola",
            "metrics.json",
            '"cola"',
            "null",
            "metrics.json: a run on your own files is not a task of",
        ),
        ("cola", "metrics.json", "args", "no", "metrics.json is not what run_glue.py writes"),
        ("cola", "metrics.json", "{", "", "metrics.json is not what run_glue.py writes"),
        pytest.param("cola", "metrics.json", "{", "[" * 10**6, "metrics.json is not what", id="deep"),
        ("cola", "metrics.json", "{", '{"args": {}, ', "metrics.json is not what run_glue.py writes"),
        ("cola", "metrics.json", '"cola"', '["cola"]', r"metrics.json: \['cola'\] is not a task of the leaderboard"),
        pytest.param(
            "cola",
            "metrics.json",
            "cola",
            "x" * 10**6,
            r"metrics.json: 'x{35,40}\.\.\.x{35,40}' is not a task of",
            id="a long name",
        ),
        pytest.param(
            "rte",
            PREDICTIONS,
            "entailment",
            "x" * 10**6,
            r"tsv:2: unknown label 'x{35,40}\.\.\.x{35,40}', ",
            id="a long label",
        ),
        ("cola", "metrics.json", "cola", "rte", "cola and .*rte both hold rte: give one of them"),
    ],
)
def test_what_the_server_would_not_take_is_one_error_and_no_zip(
    runs, submit, tmp_path, task_name, file, old, new, message
):
    edit(runs[task_name] / file, old, new)
    (tmp_path / "submission.zip").write_bytes(b"earlier")
    with pytest.raises(ValueError, match=message):
        submit()
    assert (tmp_path / "submission.zip").read_bytes() == b"earlier"
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*runs, "submission.zip"])


def test_a_missing_task_is_one_error(runs, submit):
    with pytest.raises(ValueError, match="no run of qqp, ax: the server takes all tasks or none"):
        submit([folder for task_name, folder in runs.items() if task_name not in ("qqp", "ax")])


@pytest.mark.parametrize(
    ("removed", "message"),
    [
        ("predictions_mm.tsv", "predictions_mm.tsv does not exist: repeat the run with --do_predict"),
        ("metrics.json", "mnli holds no run: it has no metrics.json"),
    ],
)
def test_a_run_that_is_not_whole_is_one_error(runs, submit, removed, message):
    (runs["mnli"] / removed).unlink()
    with pytest.raises(FileNotFoundError, match=message):
        submit()


def test_an_output_that_cannot_be_written_is_one_error(runs, tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no folder .*nowhere"):
        glue_submission.main(["--output", str(tmp_path / "nowhere" / "a.zip"), *map(str, runs.values())])
    with pytest.raises(FileError, match="^--output .*cola is a folder: name a file in it"):
        glue_submission.main(["--output", str(tmp_path / "cola"), *map(str, runs.values())])


def test_a_full_disk_is_one_error_and_leaves_the_old_zip(runs, submit, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    (tmp_path / "submission.zip").write_bytes(b"earlier")
    monkeypatch.setattr(zipfile.ZipFile, "writestr", full)
    with pytest.raises(
        OSError, match=r"cannot write .*zip: No space left on device\. Name an --output where there is"
    ):
        submit()
    assert (tmp_path / "submission.zip").read_bytes() == b"earlier"
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*runs, "submission.zip"])


def test_the_command_ends_with_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["glue_submission.py", "--output", str(tmp_path / "a.zip"), str(tmp_path)])
    with pytest.raises(SystemExit, match="1"):
        run_command(glue_submission.main)
    assert capsys.readouterr().err == f"glue_submission.py: error: {tmp_path} holds no run: it has no metrics.json\n"


def test_the_zip_waits_for_no_package_that_takes_seconds_to_import(tmp_path, runs):
    code = "import glue_submission as script; script.FILES['qqp'] = [script.File('QQP.tsv', 40)]"
    code += "; script.main(sys.argv[1:])"
    assert heavy_imports(code, "--output", str(tmp_path / "a.zip"), *map(str, runs.values())) == set()


@pytest.mark.parametrize("task_name", ["cola", "sst2", "rte"])
def test_a_run_on_the_published_test_file_is_what_the_server_wants(tmp_path, data, runs, submit, task_name):
    flags = ["--model_name_or_path", str(write_model(tmp_path)), "--tokenizer_name", str(write_vocabulary(tmp_path))]
    flags += ["--task_name", task_name, "--data_dir", str(data / "glue"), "--do_predict", "--max_seq_length", "8"]
    run_glue.main([*flags, "--output_dir", str(runs[task_name]), "--overwrite_output_dir"])
    (file,) = glue_submission.FILES[task_name]
    test_file = data / "glue" / EVERY_TASK[task_name].folder / "test.tsv"
    published = [line.split("\t")[0] for line in test_file.read_text(encoding="utf-8").splitlines()]
    assert [line.split("\t")[0] for line in submit()[file.name]] == published  # header included
