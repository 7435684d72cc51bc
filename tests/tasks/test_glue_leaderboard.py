"""The files for the GLUE leaderboard that run_glue.py --do_predict writes, and the guide's command that packs them."""

import dataclasses
import shutil
import subprocess
import zipfile
from pathlib import Path

import numpy as np
import pytest
from datasets import Dataset

import run_glue
from elmo_gpt_bert.tasks.glue import EVERY_TASK, LeaderboardFile
from elmo_gpt_bert.training.output_folder import PREDICTION_FILES
from elmo_gpt_bert.training.task import Description
from tests.project.test_house import blocks
from tests.support.glue_sample import write_model, write_task, write_vocabulary


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
FEW = SIZES | {"QQP.tsv": 3909}
NUMBERED = ["CoLA.tsv", "SST-2.tsv", "MRPC.tsv", "QQP.tsv", "WNLI.tsv"]
FILES = [(task, split, file) for task in EVERY_TASK.values() for split, file in task.leaderboard.items()]


def write(task_name: str, split: str, names: list[str], outputs: np.ndarray) -> dict[str, list[str]]:
    """name -> lines of what a run writes; the model has these classes and, for each example, a row of outputs."""
    glue_task = EVERY_TASK[task_name]
    args = run_glue.GlueArguments(model_name_or_path="m", output_dir="o", task_name=task_name, do_predict=True)
    data = {split: Dataset.from_dict({})}
    task = run_glue.Classification(data, {}, Description("text-classification"), glue_task, names, args)
    return {name: text.splitlines() for name, text in task.write(split, {"logits": list(outputs)}).items()}


@pytest.fixture(scope="module")
def files() -> dict[str, list[str]]:
    """name -> lines of the leaderboard's files, with every label among the predictions.

    The models have the task's classes in reverse order. QQP has a hundredth of its examples.
    """
    few = dataclasses.replace(EVERY_TASK["qqp"], leaderboard={"test": LeaderboardFile("QQP.tsv", FEW["QQP.tsv"])})
    written = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(EVERY_TASK, "qqp", few)
        for name, task in EVERY_TASK.items():
            for split, file in task.leaderboard.items():
                written[file.name] = written_for(name, split, [*reversed(task.labels)], file.examples)[file.name]
    return written


def written_for(task_name: str, split: str, names: list[str], examples: int) -> dict[str, list[str]]:
    if names:
        outputs = np.eye(len(names))[np.arange(examples) % len(names)]
    else:
        outputs = np.resize([-0.25, 2.5, 5.125], examples)[:, None]
    ours = write(task_name, split, names, outputs)
    file = EVERY_TASK[task_name].leaderboard[split]
    assert ours.keys() == {f"predictions{split.removeprefix('test')}.tsv", file.name}
    return ours


def test_the_files_have_the_names_and_the_sizes_of_the_published_test_sets():
    assert {file.name: file.examples for _, _, file in FILES} == SIZES


@pytest.mark.slow
def test_each_file_has_the_header_and_a_line_for_each_example(files):
    assert {name: len(lines) - 1 for name, lines in files.items()} == FEW
    for lines in files.values():
        assert lines[0] == "index\tprediction"
        assert [line.split("\t")[0] for line in lines[1:4] + lines[-1:]] == ["0", "1", "2", str(len(lines) - 2)]


def test_labels_are_names_where_the_server_wants_names_and_numbers_elsewhere(files):
    answers = {name: {line.split("\t")[1] for line in lines[1:]} for name, lines in files.items()}
    entailment = {"entailment", "not_entailment"}
    inference = {"entailment", "neutral", "contradiction"}
    assert answers == dict.fromkeys(NUMBERED, {"0", "1"}) | dict.fromkeys(["QNLI.tsv", "RTE.tsv"], entailment) | {
        **dict.fromkeys(["MNLI-m.tsv", "MNLI-mm.tsv", "AX.tsv"], inference),
        "STS-B.tsv": {"0.0000", "2.5000", "5.0000"},  # clipped here, not in the run's own predictions
    }
    assert files["MRPC.tsv"][1:3] == ["0\t1", "1\t0"]  # equivalent, the first class of this model, is 1


def test_the_two_halves_of_mnli_are_not_exchanged():
    for split, names in (
        ("test", {"predictions.tsv", "MNLI-m.tsv"}),
        ("test_mm", {"predictions_mm.tsv", "MNLI-mm.tsv"}),
    ):
        examples = SIZES["MNLI-m.tsv" if split == "test" else "MNLI-mm.tsv"]
        assert (
            write("mnli", split, ["neutral", "entailment", "contradiction"], np.eye(3)[[0] * examples]).keys() == names
        )


def test_a_part_of_a_test_set_has_no_file_for_the_leaderboard_and_the_run_says_so(tmp_path, capsys):
    write_task(tmp_path, "WNLI")
    flags = ["--model_name_or_path", str(write_model(tmp_path)), "--tokenizer_name", str(write_vocabulary(tmp_path))]
    flags += ["--task_name", "wnli", "--data_dir", str(tmp_path), "--do_train", "--max_steps", "1"]
    flags += ["--max_seq_length", "8", "--output_dir", str(tmp_path / "out")]
    run_glue.main(flags)
    (tmp_path / "out" / "WNLI.tsv").write_text("index\tprediction\n")  # as of an earlier test file
    run_glue.main([*flags, "--resume", "--do_predict", "--max_predict_samples", "3"])
    assert (tmp_path / "out" / "predictions.tsv").exists() and not (tmp_path / "out" / "WNLI.tsv").exists()
    note = "no WNLI.tsv for the leaderboard: it has to predict all 146 examples of the published test set\n"
    assert note in capsys.readouterr().out


def test_an_upload_replaces_these_files_of_an_earlier_model_like_its_other_predictions():
    assert [name for name in SIZES if not PREDICTION_FILES.fullmatch(name)] == []
    assert not PREDICTION_FILES.fullmatch("notes.tsv")


@pytest.mark.skipif(shutil.which("zip") is None, reason="there is no zip here")
def test_the_guides_command_packs_the_eleven_files_and_names_one_that_is_missing(tmp_path):
    for task, _, file in FILES:
        folder = tmp_path / "runs" / "bert" / "glue" / task.folder
        folder.mkdir(parents=True, exist_ok=True)
        for name in (file.name, "predictions.tsv"):
            (folder / name).write_text(name, encoding="utf-8")
    (command,) = [block for block in blocks("docs/glue.md", "bash") if "zip --junk-paths" in block]
    command = command[command.index("zip --junk-paths") :]
    (tmp_path / "runs/bert/glue/WNLI/WNLI.tsv").rename(tmp_path / "WNLI.tsv")
    lacking = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True)
    assert "name not matched: runs/bert/glue/*/WNLI.tsv" in lacking.stdout + lacking.stderr
    (tmp_path / "submission.zip").unlink()
    (tmp_path / "WNLI.tsv").rename(tmp_path / "runs/bert/glue/WNLI/WNLI.tsv")
    subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, check=True)
    with zipfile.ZipFile(tmp_path / "submission.zip") as archive:
        assert {name: archive.read(name).decode() for name in archive.namelist()} == {name: name for name in SIZES}


@pytest.mark.slow
@pytest.mark.parametrize("task_name", ["cola", "rte"])
def test_a_run_on_the_published_test_file_has_a_line_for_each_of_its_examples(tmp_path, data: Path, task_name):
    flags = ["--model_name_or_path", str(write_model(tmp_path)), "--tokenizer_name", str(write_vocabulary(tmp_path))]
    flags += ["--task_name", task_name, "--data_dir", str(data / "glue"), "--do_predict", "--max_seq_length", "32"]
    run_glue.main([*flags, "--output_dir", str(tmp_path / "out")])
    task = EVERY_TASK[task_name]
    published = (data / "glue" / task.folder / "test.tsv").read_text(encoding="utf-8").splitlines()
    written = (tmp_path / "out" / task.leaderboard["test"].name).read_text(encoding="utf-8").splitlines()
    assert [line.split("\t")[0] for line in written] == [line.split("\t")[0] for line in published]
