# /// script
# requires-python = ">=3.11"
# dependencies = ["elmo-gpt-bert==0.1.0"]
# ///
"""Collects the predictions of runs into the zip that the GLUE leaderboard (gluebenchmark.com/submit) takes.

    python run_glue.py configs/bert/cola.yaml --do_predict       # and so on for the nine tasks, and
    python run_glue.py --model_name_or_path runs/bert/mnli --task_name ax --do_predict --output_dir runs/bert/ax
    python glue_submission.py --output submission.zip runs/bert/cola runs/bert/sst2 runs/bert/mrpc runs/bert/stsb \\
        runs/bert/qqp runs/bert/mnli runs/bert/qnli runs/bert/rte runs/bert/wnli runs/bert/ax

The metrics.json of each folder says which task it holds. The server's requirements, and their sources:

- Eleven files without folders in the zip, those of MNLI's two parts and of the diagnostics among them. Their names are
  in jiant's benchmarks.py (github.com/nyu-mll/jiant). A submission that lacks one of them fails
  (examples/glue_benchmark of keras-team/keras-hub).
- The columns index and prediction under a header, without quotes. Predictions are names of classes for MNLI, QNLI, RTE
  and AX, numbers from 0 to 5 for STS-B, and numbers of classes for the others (write_glue_preds in src/evaluate.py of
  jiant's first releases).
- One line for each example of the published test files. The data set card of nyu-mll/glue has their numbers.
"""

import argparse
import math
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from elmo_gpt_bert.tasks.glue.table import EVERY_TASK, GlueTask
from elmo_gpt_bert.tasks.rows import columns, read_json, read_tsv
from elmo_gpt_bert.training.command_line import run_command
from elmo_gpt_bert.training.errors import FileError, InputError, MissingFileError
from elmo_gpt_bert.training.files import new_file, plain, shown


@dataclass(frozen=True)
class File:
    """A file of the zip, and the run's file that it is made from."""

    name: str
    lines: int  # without the header
    predictions: str = "predictions.tsv"  # in the run's folder


FILES = {
    "cola": [File("CoLA.tsv", 1063)],
    "sst2": [File("SST-2.tsv", 1821)],
    "mrpc": [File("MRPC.tsv", 1725)],
    "stsb": [File("STS-B.tsv", 1379)],
    "qqp": [File("QQP.tsv", 390965)],
    "mnli": [File("MNLI-m.tsv", 9796), File("MNLI-mm.tsv", 9847, "predictions_mm.tsv")],
    "qnli": [File("QNLI.tsv", 5463)],
    "rte": [File("RTE.tsv", 3000)],
    "wnli": [File("WNLI.tsv", 146)],
    "ax": [File("AX.tsv", 1104)],
}
HIGHEST_SIMILARITY = 5.0


def main(argv: list[str] | None = None) -> None:
    """Writes the zip that `argv`, by default the command line, asks for."""
    parser = argparse.ArgumentParser(description="the GLUE leaderboard's zip from the predictions of runs")
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="output folder of run_glue.py --do_predict")
    parser.add_argument("--output", required=True, type=Path, metavar="ZIP", help="the file to write; is replaced")
    args = parser.parse_args(argv)
    write_zip(contents(runs_by_task(args.runs)), args.output)
    print(f"written to {args.output}: {', '.join(file.name for files in FILES.values() for file in files)}")


def runs_by_task(folders: list[Path]) -> dict[str, Path]:
    """The folder of each task. Raises ValueError when a task has no run or two, or a folder holds no run of a task."""
    runs: dict[str, Path] = {}
    for folder in folders:
        task_name = _task_name(folder)
        if task_name in runs:
            raise InputError(f"{runs[task_name]} and {folder} both hold {task_name}: give one of them")
        runs[task_name] = folder
    if missing := [task_name for task_name in FILES if task_name not in runs]:
        raise InputError(f"no run of {', '.join(missing)}: the server takes all tasks or none")
    return runs


def _task_name(folder: Path) -> str:
    """The task of the run in the folder, as its metrics.json says."""
    path = folder / "metrics.json"
    if not path.is_file():
        raise MissingFileError(f"{folder} holds no run: it has no metrics.json")
    try:
        task_name = read_json(path)["args"]["task_name"]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} is not what run_glue.py writes: it does not name its task") from error
    if task_name not in list(FILES):  # a list, because the value may be of any type of JSON
        name = plain(str(task_name)) if task_name else "a run on your own files"
        raise InputError(f"{path}: {name} is not a task of the leaderboard")
    return task_name


def contents(runs: dict[str, Path]) -> dict[str, str]:
    """The text of each file in the zip, by its name."""
    return {
        file.name: "".join(f"{line}\n" for line in _lines(runs[task_name] / file.predictions, file, task_name))
        for task_name, files in FILES.items()
        for file in files
    }


def _lines(path: Path, file: File, task_name: str) -> Iterator[str]:
    """Yields the lines of a file in the zip. Raises ValueError if the server would refuse the predictions."""
    if not path.is_file():
        raise MissingFileError(f"{path} does not exist: repeat the run with --do_predict")
    yield "index\tprediction"
    count = 0
    for line, row in read_tsv(path):
        if isinstance(row, str):
            raise InputError(f"{path}:{line}: {row}")
        index, prediction = columns(row, ("index", "prediction"), path, line)
        if index != str(count):
            raise InputError(f"{path}:{line}: the index is {shown(index)} instead of {count}")
        yield f"{index}\t{_for_server(prediction, EVERY_TASK[task_name], f'{path}:{line}')}"
        count += 1
    if count != file.lines:
        raise InputError(
            f"{path} has {count:,} predictions, but {task_name}'s published test file {file.lines:,} examples: "
            "predict all of it, without --max_predict_samples"
        )


def _for_server(prediction: str, task: GlueTask, where: str) -> str:
    """The prediction as the server reads it: a class's name or number, or a similarity from 0 to 5."""
    if task.labels:
        if prediction not in task.labels:
            raise InputError(f"{where}: unknown label {shown(prediction)}, {task.folder} has {', '.join(task.labels)}")
        return str(task.labels.index(prediction)) if task.numbered else prediction
    try:
        similarity = float(prediction)
    except ValueError:
        similarity = math.nan
    if not math.isfinite(similarity):
        raise InputError(f"{where}: {shown(prediction)} is not a number")
    return f"{min(max(similarity, 0.0), HIGHEST_SIMILARITY):.4f}"


def write_zip(texts: dict[str, str], path: Path) -> None:
    """Writes the zip, whole or not at all. The same predictions give the same bytes."""
    if not path.parent.is_dir():
        raise MissingFileError(f"--output {path}: there is no folder {path.parent}: create it, or name another")
    if path.is_dir():
        raise FileError(f"--output {path} is a folder: name a file in it")
    remedy = "Name an --output where there is room and you may write"
    with new_file(path, remedy) as temporary, zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in texts.items():
            archive.writestr(zipfile.ZipInfo(name), text, zipfile.ZIP_DEFLATED)  # with the date 1980, not today's


if __name__ == "__main__":
    run_command(main)
