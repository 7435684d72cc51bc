"""What `pip install elmo-gpt-bert` brings works without the checkout: imports, and a run of each command."""

import json
import multiprocessing
import os
import re
import runpy
import subprocess
import sys
from importlib.metadata import distribution, requires
from pathlib import Path

import pytest
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import elmo_gpt_bert
import modeling
from elmo_gpt_bert.scripts import COMMAND
from elmo_gpt_bert.training.flags import CONFIGS
from tests.support import choices_sample, ner_sample, pairs_sample, pretraining_sample, squad_sample
from tests.support.glue_sample import write_task, write_vocabulary


BIN = Path(sys.executable).parent
INSTALLED = distribution("elmo-gpt-bert")
COMMANDS = sorted(entry.name for entry in INSTALLED.entry_points if entry.group == "console_scripts")
TINY = ["--model_name_or_path", "configs/bert/tiny.json", "--tokenizer_name", "vocab.txt"]
SHORT = ["--max_steps", "2", "--per_device_train_batch_size", "2"]


def call(folder: Path, name: str, *words: object, status: int = 0) -> str:
    """What the command prints, run in the folder; a name with a dot is that of a module, which `python -m` runs."""
    with (folder / "printed.txt").open("w+", encoding="utf-8") as printed:
        program = name if "." in name else str(BIN / f"{COMMAND}{name}")
        arguments = folder, program, list(map(str, words)), printed.fileno()
        # Forked, so that what the commands share is imported once.
        process = multiprocessing.get_context("fork").Process(target=run_program, args=arguments)
        process.start()
        process.join()
        printed.seek(0)
        text = printed.read()
    assert process.exitcode == status, text
    return text


def run_program(folder: Path, program: str, words: list[str], output: int) -> None:
    """What the command's file, or the module, does in a process whose output goes to that descriptor."""
    os.chdir(folder)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", 1, "utf-8") for number in (1, 2))
    sys.argv = [program, *words]
    (runpy.run_path if Path(program).is_file() else runpy.run_module)(program, run_name="__main__")


def results(folder: Path) -> dict:
    return json.loads((folder / "metrics.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the commands run: a vocabulary, and the data of the tasks in miniature."""
    folder = tmp_path_factory.mktemp("work")
    write_vocabulary(folder)
    write_task(folder, "SST-2")
    ner_sample.write_folder(folder / "ner")
    squad_sample.write_folder(folder / "squad")
    choices_sample.write_task(folder, "swag")
    pairs_sample.write_pairs(folder / "pairs.jsonl")
    pretraining_sample.write_text(folder)
    return folder


@pytest.fixture(scope="session")
def classifier(work: Path) -> Path:
    """The output folder of zoo-run-glue."""
    call(work, "run-glue", "configs/bert/sst2_scratch.yaml", *TINY, *SHORT, "--data_dir", ".", "--output_dir", "glue")
    return work / "glue"


@pytest.fixture(scope="session")
def language_model(work: Path) -> Path:
    """The output folder of zoo-run-pretraining."""
    kind = pretraining_sample.flags(work, "masked_lm")
    call(work, "run-pretraining", *kind, "--max_steps", "2", "--output_dir", "lm")
    return work / "lm"


def test_the_package_is_imported_from_where_it_was_installed():
    for module in (elmo_gpt_bert, modeling):
        assert Path(module.__file__).is_relative_to(INSTALLED.locate_file(""))
    assert INSTALLED.version == elmo_gpt_bert.__version__


def test_only_two_names_are_added_to_those_of_other_packages():
    files = [file for file in INSTALLED.files if file.parts[0] != ".." and ".dist-info" not in file.parts[0]]
    assert {file.parts[0] for file in files} == {"elmo_gpt_bert", "modeling"}


def test_all_recipes_are_there_and_parse():
    recipes = {path.parent.name for path in CONFIGS.rglob("*.yaml")}
    assert recipes == {"accelerate", "bert", "elmo", "gpt"} and (CONFIGS / "slurm.sh").is_file()
    assert CONFIGS.is_relative_to(INSTALLED.locate_file(""))


# Those that the tests below run, and app.
RUN = [
    "app",
    "convert-bert",
    "convert-elmo",
    "convert-gpt",
    "convert-vectors",
    "extract",
    "reproduce",
    "run-blimp",
    "run-glue",
    "run-ner",
    "run-pretraining",
    "run-squad",
    "run-swag",
]


def test_each_command_is_run_here():
    assert [command.removeprefix(COMMAND) for command in COMMANDS] == RUN
    called = re.findall(r'call\(\s*work, "([a-z-]+)"', Path(__file__).read_text(encoding="utf-8"))
    assert {*RUN} <= {*called}


def test_a_command_shows_its_help_in_a_process_of_its_own(work):
    process = subprocess.run([BIN / f"{COMMAND}run-glue", "--help"], cwd=work, capture_output=True, text=True)
    assert process.returncode == 0 and process.stdout.startswith("usage: zoo-run-glue "), process.stderr


def test_a_command_whose_extra_is_missing_shows_its_help(work):
    assert call(work, "app", "--help").startswith("usage: zoo-app ")


def test_a_classifier_is_trained_and_loads(classifier):
    assert 0 <= results(classifier)["eval_accuracy"] <= 1
    model = AutoModelForSequenceClassification.from_pretrained(classifier)
    tokenizer = AutoTokenizer.from_pretrained(classifier)
    assert model(**tokenizer("the film is good", return_tensors="pt")).logits.shape == (1, 2)


def test_a_tagger_is_trained(work):
    call(
        work, "run-ner", "configs/bert/wnut17_scratch.yaml", *TINY, *SHORT, "--data_dir", "ner", "--output_dir", "tags"
    )
    assert "eval_f1" in results(work / "tags")


def test_questions_are_answered_and_the_answers_scored(work):
    recipe = "configs/bert/squad_scratch.yaml"
    call(work, "run-squad", recipe, *TINY, *SHORT, "--data_dir", "squad", "--output_dir", "answers")
    answers = next((work / "answers").glob("predictions*.json"))
    file = ["--predictions_file", answers, "--validation_file", work / "squad" / "dev-v1.1.json"]
    scores = call(work, "run-squad", "--do_eval", *file)
    assert f'"f1": {results(work / "answers")["eval_f1"]:.4f}'[:10] in scores


def test_an_ending_is_chosen(work):
    (work / "codah").mkdir()
    for split, rows in (("train", range(6)), ("dev", range(3)), ("test", range(3))):
        choices_sample.write_own(work / "codah" / f"codah_{split}.csv", rows)
    call(work, "run-swag", "configs/bert/codah_scratch.yaml", *TINY, *SHORT, "--output_dir", "endings")
    assert "eval_accuracy" in results(work / "endings")


def test_a_model_is_pre_trained_and_scored_on_pairs(work, language_model):
    model = ["--model_name_or_path", language_model, "--data_file", "pairs.jsonl"]
    call(work, "run-blimp", *model, "--output_dir", "pairs")
    assert "eval_accuracy" in results(work / "pairs")


def test_converters_name_themselves_and_what_they_lack(work):
    assert call(work, "convert-bert", status=2).startswith("zoo-convert-bert: error: ")
    assert call(work, "convert-elmo", status=2).startswith("zoo-convert-elmo: error: ")
    assert call(work, "convert-gpt", status=2).startswith("zoo-convert-gpt: error: ")
    assert call(work, "convert-vectors", status=2).startswith("zoo-convert-vectors: error: ")


def test_vectors_of_a_text_are_written(work, language_model):
    flags = ["--model_name_or_path", language_model, "--text_file", "text.txt", "--output_dir", "vectors"]
    call(work, "extract", *flags)
    assert (work / "vectors" / "vectors-00000.safetensors").is_file()


def test_a_table_of_runs_is_planned_with_the_recipes_of_the_package(work):
    planned = call(work, "reproduce", "pretraining_pays", "--dry_run", "--only", "sst2", "--seeds", "1")
    assert "zoo-run-glue configs/bert/sst2_small.yaml" in planned  # there is no run_glue.py


def test_errors_and_help_name_the_command(work):
    assert call(work, "run-glue", status=2).splitlines()[-1].startswith("zoo-run-glue: error: ")
    run = [*TINY, *SHORT, "--do_train", "--output_dir", "x"]
    wrong = call(work, "run-glue", *run, "--data_dir", ".", "--task_name", "rte", status=1)
    assert wrong.splitlines()[-1].startswith("zoo-run-glue: error: ")
    assert call(work, "reproduce", "--help").startswith("usage: zoo-reproduce ")


def test_a_command_whose_package_is_missing_says_how_to_install_it(work):
    shown = call(work, "app", "--elmo", "elmo", "--gpt", "gpt", "--bert", "bert", status=1)
    (gradio,) = [words for words in requires("elmo-gpt-bert") if re.fullmatch('gradio.*extra == "app"', words)]
    needed = gradio.split(";")[0].removeprefix("gradio").split(",")
    assert sorted(re.search('pip install "gradio(.*)"', shown)[1].split(",")) == sorted(needed)


def test_the_word2vec_of_a_table_is_installed(work):
    call(work, "elmo_gpt_bert.scripts.word2vec", "--train_file", "text.txt", "--output_dir", "w2v")
    assert (work / "w2v" / "vectors.txt").is_file()
