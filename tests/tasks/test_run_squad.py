"""The script's arguments, the questions that it reads, their windows as it keeps them, and what it refuses."""

import json
from pathlib import Path

import pytest
import torch
from datasets import Dataset, DatasetDict
from safetensors.torch import load_file
from transformers import AutoModelForQuestionAnswering

import run_squad
from elmo_gpt_bert.tasks.squad import features
from elmo_gpt_bert.training.flags import parse_arguments
from elmo_gpt_bert.training.results import first_examples
from tests.support.glue_sample import write_model, write_vocabulary
from tests.support.squad_sample import make_articles, rows_of, write_folder, write_squad
from tests.support.tiny_run import load_tokenizer, recipe


SHAPE = ["--max_seq_length", "32", "--doc_stride", "8", "--max_query_length", "10"]  # most contexts are longer
SHORT = ["--max_steps", "2", "--save_strategy", "no"]
ALL = ["--do_train", "--do_eval", "--do_predict"]


def bert(tmp_path: Path, **changes: object) -> list[str]:
    """A run on a tiny model of random weights."""
    names = ["--model_name_or_path", str(write_model(tmp_path, **changes))]
    names += ["--tokenizer_name", str(write_vocabulary(tmp_path)), "--output_dir", str(tmp_path / "out")]
    return [*names, *SHAPE, "--learning_rate", "0.01"]


def folder(tmp_path: Path, version: str = "1.1") -> list[str]:
    """The data, with a test file that has no answers."""
    data = write_folder(tmp_path / f"squad{version}", version)
    articles = make_articles(version, (4, 2), first=200)
    for paragraph in (paragraph for article in articles for paragraph in article["paragraphs"]):
        for question in paragraph["qas"]:
            for name in ("answers", "is_impossible", "plausible_answers"):
                question.pop(name, None)
    flags = ["--data_dir", str(data), "--test_file", write_squad(tmp_path / f"test{version}.json", version, articles)]
    return [*flags, "--version_2_with_negative"] if version == "2.0" else flags


@pytest.fixture
def flags(tmp_path) -> list[str]:
    return bert(tmp_path)


@pytest.fixture
def squad(tmp_path) -> list[str]:
    return folder(tmp_path)


def read(argv: list[str]):
    """(arguments, tokenizer, data) of a run."""
    args = parse_arguments(run_squad.SquadArguments, argv)
    return args, load_tokenizer(args), first_examples(run_squad.load_data(args), args.limits)


# Arguments


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["--do_predict"], "--do_predict answers the questions of a --test_file"),
        (["--max_query_length", "0"], "--max_query_length must be positive, not 0"),
        (["--n_best_size", "0"], "--n_best_size must be positive, not 0"),
        (["--max_answer_length", "-1"], "--max_answer_length must be positive, not -1"),
        (["--doc_stride", "-1"], "--doc_stride must be 0 or more, not -1"),
        (["--null_score_diff_threshold", "1"], "is for questions without answers: add --version_2_with_negative"),
        (["--null_score_diff_threshold", "0"], "is for questions without answers: add --version_2_with_negative"),
        (["--null_score_diff_threshold", "nan", "--version_2_with_negative"], "must be a finite number, not nan"),
        (["--max_eval_samples", "0"], "--max_eval_samples must be positive, not 0"),
        (["--do_stride", "1"], "unknown argument --do_stride; did you mean --doc_stride?"),
    ],
)
def test_flags_that_make_no_sense_are_one_line(flags, capsys, extra, message):
    with pytest.raises(SystemExit):
        run_squad.main([*flags, "--do_train", "--data_dir", "x", *extra])
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["--data_dir", "nowhere"], "--data_dir nowhere: no such folder"),
        (["--train_file", "nowhere.json"], "cannot read nowhere.json: No such file or directory"),
        (["--train_file", "train.csv"], "train.csv: a file must be .json, with the official layout, or .jsonl"),
        (["DATA", "--max_seq_length", "41"], "--max_seq_length 41 is more than the model's 40 positions"),
        (["DATA", "--max_seq_length", "3"], "--max_seq_length 3 must be more than the 3 special tokens"),
        (["DATA", "--doc_stride", "24"], "leaves no more than --doc_stride 24 tokens of --max_seq_length for its"),
        (["DATA", "--version_2_with_negative"], "has no train-v2.0.json, but train-v1.1.json: to read SQuAD 1.1, "),
    ],
)
def test_data_and_lengths_that_do_not_fit_stop_a_run_before_it_removes_anything(
    tmp_path, flags, squad, extra, message
):
    earlier = tmp_path / "out" / "predictions.json"
    earlier.parent.mkdir()
    earlier.write_text("{}", encoding="utf-8")
    extra = [word for part in extra for word in (squad[:2] if part == "DATA" else [part])]
    with pytest.raises((ValueError, OSError)) as error:
        run_squad.main([*flags, "--do_train", "--overwrite_output_dir", *extra])
    assert message in str(error.value) and "\n" not in str(error.value)
    assert earlier.is_file()


def question(**changes: object) -> dict:
    """Of one of the rows of a file; None leaves a column out."""
    row = {"id": "a", "context": "the film is good", "question": "is it ?"}
    row |= {"answers": {"text": ["film"], "answer_start": [4]}} | changes
    return {name: value for name, value in row.items() if value is not None}


BROKEN = {
    "'film' is not at its answer_start, 5, in characters from 0: correct it, or add --locate_answers": question(
        answers={"text": ["film"], "answer_start": [5]}
    ),
    "context is empty (' '): give it a text": question(context=" "),
    "question is empty ('')": question(question=""),
    "no context among": question(context=None),
    "no answers among": question(answers=None),
    "there is no answer: to read SQuAD 2.0, add --version_2_with_negative": question(
        answers={"text": [], "answer_start": []}
    ),
    "question a ('is it ?') has a context without a token": question(
        context="\u200b", answers={"text": ["\u200b"], "answer_start": [0]}
    ),
}


@pytest.mark.parametrize("message", BROKEN)
def test_a_broken_question_is_one_line_that_names_it(tmp_path, flags, message):
    rows = [question(id="q"), BROKEN[message]]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    with pytest.raises(ValueError) as error:
        run_squad.main([*flags, "--train_file", str(tmp_path / "a.jsonl"), "--do_train"])
    assert message in str(error.value) and "\n" not in str(error.value)
    assert not [path for path in (tmp_path / "out").glob("*") if not path.name.startswith(".")]


def test_squad_2_is_not_read_as_squad_1(tmp_path, flags):
    with pytest.raises(ValueError, match="is_impossible is true: to read SQuAD 2.0, add --version_2_with_negative"):
        run_squad.main([*flags, "--train_file", write_squad(tmp_path / "a.json", "2.0"), "--do_train"])


def test_a_checkpoint_without_a_head_for_answers_does_not_predict(tmp_path, flags, squad):
    run_squad.main([*flags, *squad, "--do_train", *SHORT])
    model = AutoModelForQuestionAnswering.from_pretrained(tmp_path / "out")
    model.base_model.save_pretrained(tmp_path / "base")
    again = ["--model_name_or_path", str(tmp_path / "base"), *squad, "--do_eval", "--output_dir", str(tmp_path / "x")]
    with pytest.raises(ValueError, match="base does not hold qa_outputs.bias, .* train first, with --do_train"):
        run_squad.main([*again, "--tokenizer_name", str(tmp_path / "vocab.txt"), "--max_seq_length", "32"])


# Data


def test_sample_limits_count_questions_and_not_windows(flags, squad):
    limits = ["--max_train_samples", "6", "--max_eval_samples", "2", "--max_predict_samples", "99"]
    args, tokenizer, data = read([*flags, *squad, *ALL, *limits])
    assert {split: len(rows) for split, rows in data.items()} == {"train": 6, "validation": 2, "test": 5}
    windows = features.make_features(data, tokenizer, **args.window_shape)
    assert {split: windows[split].question[-1] + 1 for split in data} == {"train": 6, "validation": 2, "test": 5}
    assert len(windows["train"].question) > 6


@pytest.mark.parametrize("version", ["1.1", "2.0"])
def test_the_hub_the_folder_and_files_give_the_same_questions(tmp_path, flags, monkeypatch, version):
    source, asked = write_folder(tmp_path / "squad", version), []
    official = [
        json.loads((source / f"{name}-v{version}.json").read_text(encoding="utf-8")) for name in ("train", "dev")
    ]
    hub = [Dataset.from_list(rows_of(content["data"])) for content in official]
    hub = DatasetDict(train=hub[0], validation=hub[1])
    monkeypatch.setattr("datasets.load_dataset", lambda *names, **options: asked.append(names[0]) or hub)
    files = [str(source / f"{name}-v{version}.json") for name in ("train", "dev")]
    found = []
    for data in (["--dataset_name", "a/b"], ["--data_dir", str(source)], ["--train_file", files[0]]):
        data = [*data, "--validation_file", files[1]] if data[0] == "--train_file" else data
        argv = [*flags, *data, "--do_train", "--do_eval"]
        found.append(read([*argv, "--version_2_with_negative"] if version == "2.0" else argv)[2])
    assert set(asked) == {"a/b"} and len(found[0]["train"]) == (12 if version == "1.1" else 17)
    assert all(each[split].to_list() == found[0][split].to_list() for each in found for split in each)


def test_a_split_has_its_file_and_the_others_the_folder_that_replaces_the_data_set_of_a_recipe(tmp_path, flags, squad):
    own = write_squad(tmp_path / "own.json", articles=make_articles(sentences=(1,), first=300))
    path = recipe(tmp_path, "dataset_name: a/b")
    _, _, data = read([path, *flags, *squad, "--validation_file", own, *ALL])
    assert len(data["train"]) == 12 and data["validation"]["id"][:] == ["300-0"] and len(data["test"]) == 5


def test_ids_that_occur_twice_in_training_data_mix_nothing_up(tmp_path, flags):
    """Windows, answers and weights are those of the same data with unique ids."""
    articles, twice = make_articles(), make_articles()
    for number, qas in enumerate(part["qas"] for article in twice for part in article["paragraphs"]):
        for each in qas:
            each["id"] = f"{number % 2}"
    outputs = []
    for name, data in (("unique", articles), ("twice", twice)):
        out = tmp_path / name
        file = write_squad(tmp_path / f"{name}.json", articles=data)
        run_squad.main([*flags, "--train_file", file, "--do_train", *SHORT, "--output_dir", str(out)])
        outputs.append(load_file(out / "model.safetensors"))
    assert all(torch.equal(outputs[0][name], outputs[1][name]) for name in outputs[0])


@pytest.mark.parametrize("answers", [[], [{"text": "", "answer_start": 0}]])
@pytest.mark.parametrize("version", ["1.1", "2.0"])
def test_a_test_file_whose_answers_are_empty_is_answered_and_not_scored(tmp_path, flags, capsys, version, answers):
    articles = make_articles(version, (4, 2), first=200)
    for part in (part for article in articles for part in article["paragraphs"]):
        part["qas"] = [{"id": each["id"], "question": each["question"], "answers": answers} for each in part["qas"]]
    file = write_squad(tmp_path / "empty.json", articles=articles)
    argv = [*flags, *folder(tmp_path, version), "--do_train", "--do_predict", *SHORT]
    plain = run_squad.main(argv)
    predictions = (tmp_path / "out" / "predictions.json").read_bytes()
    results = run_squad.main([*argv, "--test_file", file, "--overwrite_output_dir"])
    assert results.keys() == plain.keys() and not [name for name in results if name.startswith("test_")]
    assert (tmp_path / "out" / "predictions.json").read_bytes() == predictions
    assert f"test: {file} has no answers to score against: predictions only\n" in capsys.readouterr().out


# Windows


def test_only_questions_to_learn_from_have_places_of_answers(flags, squad):
    args, tokenizer, data = read([*flags, *squad, "--do_train"])
    both = DatasetDict({"train": data["train"], "validation": data["train"]})
    for split, windows in features.make_features(both, tokenizer, **args.window_shape).items():
        assert ("start_positions" in windows.features.column_names) == (split == "train")


def test_a_batch_is_padded_on_the_right_where_answers_are_columns(flags, squad):
    args, tokenizer, data = read([*flags, *squad, "--do_train"])
    tokenizer.padding_side = "left"
    rows = list(features.make_features(data, tokenizer, **args.window_shape)["train"].features)
    short, long = min(rows, key=lambda row: len(row["input_ids"])), max(rows, key=lambda row: len(row["input_ids"]))
    batch = features.collate([short, long], tokenizer)
    size = len(short["input_ids"])
    assert batch["input_ids"][0].tolist() == short["input_ids"] + [0] * (32 - size)
    assert batch["attention_mask"].sum(1).tolist() == [size, 32]
    for name in ("start_positions", "end_positions"):
        assert torch.equal(batch[name], torch.tensor([short[name], long[name]]))
    assert features.collate([short], tokenizer, padding="max_length", max_length=32)["input_ids"].shape == (1, 32)


@pytest.mark.parametrize("threshold", [0.0, 1.0])
def test_a_threshold_needs_questions_without_answers_for_every_caller(threshold):
    values = {"model_name_or_path": "m", "output_dir": "o", "do_eval": True, "data_dir": "d"}
    with pytest.raises(ValueError, match="is for questions without answers: add --version_2_with_negative"):
        run_squad.SquadArguments(**values, null_score_diff_threshold=threshold)
