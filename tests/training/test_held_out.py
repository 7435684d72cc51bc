"""--validation_split_percentage: a part of the user's own file is evaluated on, and the rest is trained on."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from datasets import DatasetDict

import run_glue
import run_ner
import run_pretraining
import run_squad
import run_swag
from elmo_gpt_bert.training.flags import parse_arguments
from tests.support import choices_sample, glue_sample, ner_sample, squad_sample
from tests.support.run_samples import bert
from tests.support.tiny_run import recipe


PERCENTAGE = "--validation_split_percentage"
SHORT = ["--max_steps", "2", "--save_strategy", "no"]
LABELS = ["good", "bad"] * 20


def write_texts(path: Path) -> str:
    return glue_sample.write_csv(path.with_suffix(".csv"), LABELS)


def write_choices(path: Path) -> str:
    return choices_sample.write_own(path.with_suffix(".csv"), range(40))


def write_sentences(path: Path) -> str:
    return ner_sample.write_conll(path.with_suffix(".txt"), range(40))


def write_questions(path: Path) -> str:
    articles = squad_sample.make_articles("1.1", (3,) * 20)
    return squad_sample.write_squad(path.with_suffix(".json"), articles=articles)


def load_texts(args: run_glue.GlueArguments) -> DatasetDict:
    return run_glue.load_data(args, SimpleNamespace(num_labels=2, id2label={0: "bad", 1: "good"}, problem_type=None))[
        1
    ]


def load_sentences(args: run_ner.NerArguments) -> DatasetDict:
    return run_ner.load_data(args)[1]


SCRIPTS = {
    "glue": (run_glue, run_glue.GlueArguments, write_texts, load_texts),
    "swag": (run_swag, run_swag.SwagArguments, write_choices, run_swag.load_data),
    "ner": (run_ner, run_ner.NerArguments, write_sentences, load_sentences),
    "squad": (run_squad, run_squad.SquadArguments, write_questions, run_squad.load_data),
}
WINDOWS = ["--doc_stride", "8", "--max_query_length", "10"]


@pytest.fixture(params=SCRIPTS)
def script(request) -> str:
    return request.param


@pytest.fixture
def load(script, tmp_path) -> Callable[..., DatasetDict]:
    """The splits that the script reads of its file, by default those of training with an evaluation."""
    _, arguments, write, load_data = SCRIPTS[script]
    file = write(tmp_path / "own")

    def load(*words: str, purposes: tuple[str, ...] = ("--do_train", "--do_eval")) -> DatasetDict:
        flags = ["--model_name_or_path", "m", "--output_dir", "o", "--train_file", file, PERCENTAGE, "30"]
        return load_data(parse_arguments(arguments, [*flags, *purposes, *words]))

    return load


def load_file(module, file: str, *words: str) -> DatasetDict:
    """The splits that a script reads of the file, of which 30 % are held out."""
    _, arguments, _, load_data = next(entry for entry in SCRIPTS.values() if entry[0] is module)
    flags = ["--model_name_or_path", "m", "--output_dir", "o", "--train_file", file, PERCENTAGE, "30"]
    return load_data(parse_arguments(arguments, [*flags, "--do_train", "--do_eval", *words]))


def rows(data: DatasetDict, split: str) -> list[str]:
    """The rows, sorted, without the numbers that the documents of each split have."""
    return sorted(repr({name: value for name, value in row.items() if name != "document"}) for row in data[split])


def test_each_example_is_trained_on_or_evaluated_on(load):
    data, whole = load(), load(PERCENTAGE, "1e-9", purposes=("--do_train",))
    assert set(data) == {"train", "validation"} and len(data["validation"]) > 0
    assert sorted([*rows(data, "train"), *rows(data, "validation")]) == rows(whole, "train")


def test_the_same_examples_are_held_out_for_each_seed_and_purpose(load):
    data = load()
    assert rows(load("--seed", "7"), "validation") == rows(data, "validation")
    alone = load(purposes=("--do_eval",))
    assert set(alone) == {"validation"} and rows(alone, "validation") == rows(data, "validation")
    trained = load(purposes=("--do_train",))
    assert set(trained) == {"train"} and rows(trained, "train") == rows(data, "train")


def test_questions_about_one_context_stay_together(tmp_path):
    header = ["context", "question", "choice0", "choice1", "label"]
    rows = [[f"scene {number // 4}", f"and then {number % 4}", "a", "b", "0"] for number in range(40)]
    data = load_file(run_swag, choices_sample.write_csv(tmp_path / "own.csv", header, rows))
    scenes = {split: {context.split(" and")[0] for context in data[split]["context"]} for split in data}
    assert not scenes["train"] & scenes["validation"] and len(scenes["train"] | scenes["validation"]) == 10


def test_the_sentences_of_a_document_stay_together_and_equal_documents_do(tmp_path):
    data = load_file(run_ner, ner_sample.write_conll(tmp_path / "own.txt", range(60)))
    documents = [ner_sample.sentence(row)[0] for row in range(60)]
    documents = [documents[first : first + 3] for first in range(0, 60, 3)]
    words = {split: data[split]["words"] for split in data}
    for document in documents:
        assert sum(all(sentence in words[split] for sentence in document) for split in words) >= 1
    assert data["validation"]["document"][0] == 1 and len(data["train"]) + len(data["validation"]) == 60


def test_the_sentences_of_a_single_document_are_divided(tmp_path):
    data = load_file(run_ner, ner_sample.write_conll(tmp_path / "own.txt", range(60), document=60))
    assert len(data["train"]) + len(data["validation"]) == 60 and len(data["validation"]) > 0


def test_questions_are_evaluated_on_as_those_of_another_file(tmp_path):
    articles = squad_sample.make_articles("1.1", (3,) * 20)
    for article in articles:
        for paragraph in article["paragraphs"]:
            paragraph["qas"][0]["answers"] = [{"text": "nowhere at all", "answer_start": 0}]
    file = squad_sample.write_squad(tmp_path / "own.json", articles=articles)
    data = load_file(run_squad, file, "--locate_answers")
    starts = {split: [answers["answer_start"] for answers in data[split]["answers"]] for split in data}
    assert [-1] in starts["validation"] and [-1] not in starts["train"]  # they are scored, and not learned
    whole = len([question for each in articles for part in each["paragraphs"] for question in part["qas"]])
    assert len(data["train"]) + len(data["validation"]) == whole - (20 - starts["validation"].count([-1]))


def test_limits_count_after_the_split(load):
    limited, data = load("--max_eval_samples", "2", "--max_train_samples", "3"), load()
    for split, number in (("train", 3), ("validation", 2)):
        assert limited[split].to_list()[:number] == data[split].to_list()[:number]


def test_a_run_reports_its_two_parts_and_a_later_one_scores_the_same(script, tmp_path):
    module, _, write, _ = SCRIPTS[script]
    shape = WINDOWS if script == "squad" else []
    own = ["--train_file", write(tmp_path / "own"), PERCENTAGE, "30", "--max_seq_length", "32", *shape]
    out, again = str(tmp_path / "out"), str(tmp_path / "again")
    trained = module.main([*bert(tmp_path), *own, *SHORT, "--do_train", "--do_eval", "--output_dir", out])
    assert trained["train_samples"] == trained["train_samples_total"] > trained["eval_samples"] > 0
    evaluated = module.main(["--model_name_or_path", out, *own, "--do_eval", "--output_dir", again])
    for name in [name for name in trained if name.startswith("eval_") and name != "eval_runtime"]:
        assert evaluated[name] == pytest.approx(trained[name], abs=1e-5), name


def test_other_rows_of_a_longer_file_move_none(tmp_path):
    def held_out(file: str) -> set[str]:
        flags = ["--model_name_or_path", "m", "--output_dir", "o", "--train_file", file, PERCENTAGE, "30"]
        data = load_texts(parse_arguments(run_glue.GlueArguments, [*flags, "--do_train", "--do_eval"]))
        return set(data["validation"]["text"])

    files = [tmp_path / "short.csv", tmp_path / "long.csv"]
    for file, size in zip(files, (20, 40), strict=True):
        lines = [f"film {number},{label}" for number, label in enumerate(LABELS[:size])]
        file.write_text("\n".join(["text,label", *lines, ""]), encoding="utf-8")
    short, long = (held_out(str(file)) for file in files)
    assert short == {text for text in long if int(text.split()[1]) < 20} and len(short) < len(long)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ([PERCENTAGE, "0"], "must be between 0 and 100, not 0"),
        ([PERCENTAGE, "100"], "must be between 0 and 100, not 100"),
        ([PERCENTAGE, "10"], "10 is a part of the examples of --train_file: give it"),
        ([PERCENTAGE, "10", "--train_file", "a.csv", "--validation_file", "b.csv"], "--validation_file"),
        ([PERCENTAGE, "10", "--task_name", "rte"], "--task_name"),
    ],
)
def test_a_part_of_nothing_is_refused(words, problem, capsys):
    flags = ["--model_name_or_path", "m", "--output_dir", "o", "--do_train", "--do_eval"]
    with pytest.raises(SystemExit):
        parse_arguments(run_glue.GlueArguments, [*flags, *words])
    assert problem in capsys.readouterr().err


def test_a_run_that_only_predicts_divides_nothing(tmp_path, capsys):
    flags = ["--model_name_or_path", "m", "--output_dir", "o", "--do_predict", "--test_file", "c.csv"]
    with pytest.raises(SystemExit):
        parse_arguments(run_glue.GlueArguments, [*flags, "--train_file", "a.csv", PERCENTAGE, "10"])
    assert PERCENTAGE in capsys.readouterr().err
    trains = recipe(tmp_path, "do_train: true\ndo_eval: true\ntrain_file: a.csv\nvalidation_split_percentage: 10")
    predicts = ["--do_train", "false", "--do_eval", "false"]
    args = parse_arguments(run_glue.GlueArguments, [trains, *flags, *predicts])
    assert args.validation_split_percentage is None and args.files == {"test": "c.csv"}


@pytest.mark.parametrize(("share", "split"), [("1e-9", "validation"), ("99.9999999", "train")])
def test_a_share_that_leaves_a_split_without_examples_is_one_line(load, share, split):
    with pytest.raises(ValueError, match=f"leaves none of the [0-9]+ .* in .* for the {split} split: choose another"):
        load(PERCENTAGE, share)


def test_the_command_line_chooses_between_a_part_and_a_file(tmp_path):
    parse = lambda words: parse_arguments(run_glue.GlueArguments, words)  # noqa: E731
    flags = ["--model_name_or_path", "m", "--output_dir", "o", "--do_train", "--do_eval", "--train_file", "a.csv"]
    of_part = parse([recipe(tmp_path, "validation_file: b.csv"), *flags, PERCENTAGE, "10"])
    assert of_part.validation_file is None and of_part.files == {"train": "a.csv", "validation": "a.csv"}
    of_file = parse([recipe(tmp_path, "validation_split_percentage: 10"), *flags, "--validation_file", "b.csv"])
    assert of_file.validation_split_percentage is None and of_file.files == {"train": "a.csv", "validation": "b.csv"}


def test_the_command_line_chooses_between_a_part_and_a_file_of_text(tmp_path):
    parse = lambda words: parse_arguments(run_pretraining.PretrainingArguments, words)  # noqa: E731
    flags = ["--model_name_or_path", "m", "--output_dir", "o", "--train_file", "a.txt"]
    for share in (0, 10):
        args = parse([recipe(tmp_path, "validation_file: b.txt"), *flags, PERCENTAGE, str(share)])
        assert (args.validation_file, args.validation_split_percentage) == (None, share)
    args = parse([recipe(tmp_path, "validation_split_percentage: 10"), *flags, "--validation_file", "b.txt"])
    assert (args.validation_file, args.validation_split_percentage) == ("b.txt", None)


@pytest.mark.parametrize("source", ["--data_dir", "--dataset_name"])
def test_the_command_line_chooses_other_questions_than_a_part_and_a_part_of_others(source, tmp_path):
    flags = ["--model_name_or_path", "m", "--output_dir", "o", "--do_train", "--do_eval"]
    of_part = recipe(tmp_path, "train_file: a.json\nvalidation_split_percentage: 10")
    args = parse_arguments(run_squad.SquadArguments, [of_part, *flags, source, "d"])
    assert args.validation_split_percentage is None and args.files == {"train": None, "validation": None}
    of_folder = recipe(tmp_path, f"{source[2:]}: d")
    words = ["--train_file", "a.json", PERCENTAGE, "10"]
    args = parse_arguments(run_squad.SquadArguments, [of_folder, *flags, *words])
    assert (args.data_dir, args.dataset_name) == (None, None) and args.validation_split_percentage == 10
