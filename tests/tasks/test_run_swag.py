"""Whole runs of the script on questions with choices: what a model reads, how it is scored, what stays behind."""

import csv
import json
import re
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from datasets import Dataset, DatasetDict
from safetensors.torch import load_file
from transformers import AutoModelForMultipleChoice, DataCollatorForMultipleChoice

import run_swag
from elmo_gpt_bert.tasks.choices import collate, encode, featurize, make_features
from elmo_gpt_bert.training.flags import parse_arguments
from elmo_gpt_bert.training.task import Description
from modeling import ElmoConfig, ElmoForMultipleChoice, ElmoTokenizer, ZooBertForMultipleChoice
from tests.support.choices_sample import SIZES, choices, context, right, write_csv, write_own, write_task
from tests.support.glue_sample import WORDS, write_model, write_vocabulary
from tests.support.gpt_sample import write_gpt_model
from tests.support.processes import fork, wait
from tests.support.tiny_run import load_tokenizer


@pytest.fixture
def flags(tmp_path) -> list[str]:
    """A run on a tiny model of random weights, for a test to add its data and its parts to."""
    model, vocabulary = write_model(tmp_path), write_vocabulary(tmp_path)
    return [
        *("--model_name_or_path", str(model), "--tokenizer_name", str(vocabulary), "--max_seq_length", "32"),
        *("--output_dir", str(tmp_path / "out"), "--learning_rate", "0.01", "--overwrite_output_dir"),
    ]


@pytest.fixture
def swag(tmp_path) -> list[str]:
    return ["--task_name", "swag", "--data_dir", str(write_task(tmp_path, "swag"))]


@pytest.fixture
def tokenizer(flags):
    return load_tokenizer(parse_arguments(run_swag.SwagArguments, [*flags, "--train_file", "a", "--do_train"]))


SHORT = ["--max_steps", "2", "--save_strategy", "no"]
ALL = ["--do_train", "--do_eval", "--do_predict"]
LEARNS = ["--save_strategy", "no", "--eval_strategy", "no", "--learning_rate", "0.03"]


def write_elmo(folder: Path, **changes: object) -> Path:
    """A checkpoint of ESIM in odd, unequal sizes, without dropout, with its tokenizer."""
    sizes = {"filters": [[1, 4], [2, 5]], "char_embedding_size": 3, "hidden_size": 6, "cell_size": 7, "rnn_size": 5}
    sizes |= {"classifier_size": 6, "num_word_vectors": len(WORDS) + 2, "word_vector_size": 3}
    config = ElmoConfig(**(sizes | {"mix_dropout": 0.0, "task_dropout": 0.0} | changes))
    ElmoForMultipleChoice(config).save_pretrained(folder / "elmo")
    (folder / "words.txt").write_text("\n".join(WORDS), encoding="utf-8")
    words = {"words_file": str(folder / "words.txt")} if config.num_word_vectors else {}
    ElmoTokenizer(**words).save_pretrained(folder / "elmo")
    return folder / "elmo"


def predictions(folder: Path) -> list[int]:
    with (folder / "predictions.csv").open(encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    assert header == ["", "pred"] and [row[0] for row in rows] == list(map(str, range(len(rows))))
    return [int(choice) for _, choice in rows]


def scores(results: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in results.items() if re.match("(eval|test)_(?!runtime|samples)", name)}


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ([], "there are no data: name them by one of --task_name, --train_file"),
        (["--task_name", "swag", "--train_file", "y"], "--task_name swag has no effect with --train_file y"),
        (["--task_name", "hellaswag"], "--task_name must be one of swag, race, storycloze, not hellaswag"),
        (["--data_dir", "x"], "--data_dir holds the data of a task: give its --task_name"),
        (["--data_dir", "x", "--train_file", "y"], "--data_dir x has no effect with --train_file y: leave out one"),
        (["--task_name", "storycloze"], "storycloze is not on the Hub: ask its authors for the data"),
        (["--task_name", "swag", "--max_eval_samples", "0"], "--max_eval_samples must be positive, not 0"),
    ],
)
def test_flags_that_contradict_the_data_are_refused(flags, capsys, extra, message):
    with pytest.raises(SystemExit):
        run_swag.main([*flags, "--do_train", *extra])
    assert message in capsys.readouterr().err


# What the model reads


def featurized(tokenizer, length: int, contexts: list[str], texts: list[list[str]], **columns: list) -> dict:
    return featurize({"context": contexts, "choices": texts, **columns}, tokenizer, length)


def test_each_choice_is_the_second_text_after_its_context(tokenizer):
    features = featurized(
        tokenizer, 32, ["a film", "the cast"], [["good", "bad ."], ["dull", "not good"]], label=[1, 0]
    )
    assert [tokenizer.decode(ids) for ids in features["input_ids"][0]] == [
        "[CLS] a film [SEP] good [SEP]",
        "[CLS] a film [SEP] bad. [SEP]",
    ]
    assert features["token_type_ids"][1][1] == [0, 0, 0, 0, 1, 1, 1] and features["labels"] == [1, 0]
    assert "labels" not in featurized(tokenizer, 32, ["a"], [["good", "bad"]])


@pytest.mark.parametrize(
    ("length", "expected"),
    [
        (10, "[CLS] the plot is dull [SEP] good film. [SEP]"),
        (9, "[CLS] plot is dull [SEP] good film. [SEP]"),
        (7, "[CLS] dull [SEP] good film. [SEP]"),
        (6, "[CLS] is dull [SEP]. [SEP]"),  # the choice leaves the context no room: both give way
        (5, "[CLS] dull [SEP]. [SEP]"),
    ],
)
def test_the_beginning_of_the_context_gives_way(tokenizer, length, expected):
    side = tokenizer.truncation_side
    features = featurized(tokenizer, length, ["the plot is dull"] * 2, [["good film .", "bad"]] * 2)
    assert all(tokenizer.decode(row[0]) == expected for row in features["input_ids"])
    assert all(tokenizer.decode(row[1]).endswith("dull [SEP] bad [SEP]") for row in features["input_ids"])
    assert tokenizer.truncation_side == side


def test_an_empty_context_and_a_choice_of_any_length_are_read(tokenizer):
    features = featurized(tokenizer, 6, [""] * 2, [["good", "bad " * 9], ["bad " * 3, "a"]])
    assert [len(ids) for row in features["input_ids"] for ids in row] == [4, 6, 6, 4]


def test_the_mask_tells_padding_also_where_the_tokenizer_does_not_give_one_by_itself(tokenizer):
    tokenizer.model_input_names = ["input_ids"]
    assert featurized(tokenizer, 32, ["a film"], [["good", "bad ."]])["attention_mask"] == [[[1] * 6, [1] * 7]]


def test_a_batch_is_what_transformers_own_collator_makes_of_it(tokenizer):
    texts = [["good", "bad . dull"], ["not very good", "a"]]
    data = Dataset.from_dict(featurized(tokenizer, 32, ["a film", "the"], texts, label=[1, 0]))
    batch = collate([data[0], data[1]], tokenizer)
    expected = DataCollatorForMultipleChoice(tokenizer)([data[0], data[1]])
    assert batch.keys() == expected.keys() and batch["input_ids"].shape == (2, 2, 8)
    assert all(torch.equal(batch[name], expected[name]) for name in expected)
    unlabelled = data.remove_columns("labels")
    padded = collate([unlabelled[0]], tokenizer, padding="max_length", max_length=20)
    assert padded["input_ids"].shape == (1, 2, 20) and "labels" not in padded


def choosing(examples: dict, features: Dataset) -> run_swag.MultipleChoice:
    """A task of one validation set."""
    data = DatasetDict({"validation": Dataset.from_dict(examples)})
    return run_swag.MultipleChoice(data, {}, Description("multiple-choice"), features={"validation": features})


def test_the_loss_and_the_accuracy_are_those_of_the_right_choices():
    logits = [np.array(row, dtype=np.float32) for row in ([1, 3, 0], [2, 0, 0], [0, 0, 1])]
    data = Dataset.from_dict({"labels": [1, 2, 2]})
    task = choosing({"part": ["x", "x", "y", "beyond the limit"]}, data)
    scores = task.score("validation", {"logits": logits}, {"logits": logits})
    wanted = [np.log(np.exp(row).sum()) - row[label] for row, label in zip(logits, data["labels"], strict=True)]
    assert scores["loss"] == pytest.approx(np.mean(wanted)) and scores["predicted_classes"] == 3
    accuracies = [scores[name] for name in ("accuracy", "accuracy_x", "accuracy_y")]
    assert accuracies == pytest.approx([2 / 3, 1 / 2, 1])


def test_predictions_are_the_table_that_the_leaderboard_of_swag_takes(tmp_path):
    probabilities = np.random.default_rng(0).dirichlet(np.ones(4), size=12)
    table = pd.DataFrame(probabilities, columns=[f"ending{number}" for number in range(4)])
    table["pred"] = probabilities.argmax(1)
    table.to_csv(tmp_path / "released.csv", columns=["pred"])  # csv_predict.py of the release
    files = choosing({}, Dataset.from_dict({})).write("test", {"logits": list(np.log(probabilities))})
    (tmp_path / "predictions.csv").write_text(files.pop("predictions.csv"), encoding="utf-8", newline="")
    assert not files and (tmp_path / "predictions.csv").read_bytes() == (tmp_path / "released.csv").read_bytes()
    assert pd.read_csv(tmp_path / "predictions.csv", index_col=0)["pred"].tolist() == predictions(tmp_path)


# Whole runs


def test_a_model_learns_to_choose_and_predicts_without_labels(tmp_path, flags, swag):
    results = run_swag.main([*flags, *swag, *ALL, *LEARNS, "--num_train_epochs", "12"])
    assert results["eval_accuracy"] == 1 and results["eval_loss"] < 0.1 and "test_accuracy" not in results
    assert predictions(tmp_path / "out") == [right(row, 4) for row in range(SIZES["test"])]
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert "pipeline_tag: multiple-choice" in card and "| accuracy | 100.0 | 51.9 | 59.1 | 78.0 |" in card
    assert "trained on SWAG" in card and "datasets: allenai/swag" in card


def test_race_is_scored_on_both_schools_and_on_its_test_set(tmp_path, flags):
    data = ["--task_name", "race", "--data_dir", str(write_task(tmp_path, "race"))]
    results = run_swag.main([*flags, *data, *ALL, *SHORT])
    for split, size in (("eval", SIZES["validation"]), ("test", SIZES["test"])):
        middle = sum(row // 2 % 2 == 0 for row in range(size))
        parts = middle * results[f"{split}_accuracy_middle"] + (size - middle) * results[f"{split}_accuracy_high"]
        assert results[f"{split}_accuracy"] == pytest.approx(parts / size)
    assert list(results)[2] == "eval_accuracy"  # the first score chooses the best model


def test_story_cloze_is_scored_where_its_answers_are_known(tmp_path, flags):
    folder = write_task(tmp_path, "storycloze")
    data = ["--task_name", "storycloze", "--data_dir", str(folder)]
    results = run_swag.main([*flags, *data, *ALL, *SHORT])
    assert {"eval_accuracy", "test_accuracy"} <= results.keys()
    rows = [right(row, 2) for row in range(SIZES["test"])]
    assert results["test_accuracy"] == pytest.approx(np.mean(np.equal(predictions(tmp_path / "out"), rows)))


@pytest.mark.parametrize("implementation", ["zoo", "transformers"])
def test_evaluating_and_predicting_from_the_saved_folder_repeat_the_runs_numbers(tmp_path, flags, implementation):
    data = ["--task_name", "race", "--data_dir", str(write_task(tmp_path, "race")), "--max_seq_length", "32"]
    data += ["--implementation", implementation]
    first = run_swag.main([*flags, *data, *ALL, *SHORT])
    again = ["--model_name_or_path", str(tmp_path / "out"), *data, "--output_dir", str(tmp_path / "again")]
    second = run_swag.main([*again, "--do_eval", "--do_predict"])
    assert scores(second) == scores(first) and len(scores(first)) == 10
    assert predictions(tmp_path / "again") == predictions(tmp_path / "out")
    assert not (tmp_path / "again" / "model.safetensors").exists()


def test_a_checkpoint_without_a_head_for_choices_does_not_predict(tmp_path, flags, swag):
    run_swag.main([*flags, *swag, "--do_train", *SHORT])
    model = AutoModelForMultipleChoice.from_pretrained(tmp_path / "out")
    model.base_model.save_pretrained(tmp_path / "base")
    again = ["--model_name_or_path", str(tmp_path / "base"), *swag, "--do_eval", "--output_dir", str(tmp_path / "x")]
    with pytest.raises(ValueError, match="base does not hold classifier.bias, .* train first, with --do_train"):
        run_swag.main([*again, "--tokenizer_name", str(tmp_path / "vocab.txt"), "--max_seq_length", "32"])


@pytest.mark.parametrize(
    ("length", "message"), [("41", "41 is more than the model's 40 positions"), ("3", "3 must be more than the 3")]
)
def test_a_length_that_the_model_or_its_special_tokens_do_not_fit_is_an_error(flags, swag, length, message):
    with pytest.raises(ValueError, match=f"--max_seq_length {message}"):
        run_swag.main([*flags, *swag, "--do_train", "--max_seq_length", length])


MODELS = {
    "bert": write_model,
    "gpt": write_gpt_model,
    "esim with elmo": lambda folder: write_elmo(folder, num_word_vectors=0, hidden_size=20),
    "esim with word vectors": lambda folder: write_elmo(folder, use_elmo=False),
}


@pytest.mark.slow
@pytest.mark.parametrize(("model", "number"), [*zip(MODELS, (10, 3, 5, 2), strict=True)])
def test_every_model_learns_from_files_of_ones_own_with_any_number_of_choices(tmp_path, flags, model, number):
    checkpoint = MODELS[model](tmp_path)
    flags += ["--model_name_or_path", str(checkpoint)]
    flags += [] if model == "bert" else ["--tokenizer_name", str(checkpoint)]
    flags += ["--train_file", write_own(tmp_path / "a.csv", range(9), number)]
    flags += ["--validation_file", write_own(tmp_path / "b.csv", range(5), 2)]  # as many as it likes
    flags += ["--test_file", write_own(tmp_path / "c.csv", range(5), number, label=False)]
    results = run_swag.main([*flags, *ALL, *LEARNS, "--max_steps", "15"])
    assert results["eval_accuracy"] == 1 and "test_accuracy" not in results
    assert predictions(tmp_path / "out") == [right(row, number) for row in range(5)]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ([*choices(1, 3), "3"], "a.csv:3: the label '3' is none of 0, 1, 2, the labels of the choices"),
        ([*choices(1, 3), "-1"], "a.csv:3: the label '-1' is none of 0, 1, 2"),
        ([*choices(1, 3), ""], "a.csv:3: the label '' is none of 0, 1, 2"),
        ([*choices(1, 2), "1"], "a.csv:3: 4 columns instead of 5"),
        ([*choices(1, 4), "1"], "a.csv:3: 6 columns instead of 5"),
        ([*choices(1, 2), "", "1"], "a.csv:3: choice2 is empty: give it a text, or leave the example out"),
    ],
)
def test_another_number_of_choices_and_a_label_outside_them_stop_a_run_before_it_writes(tmp_path, flags, row, message):
    header = ["context", "choice0", "choice1", "choice2", "label"]
    file = write_csv(tmp_path / "a.csv", header, [[context(0), *choices(0, 3), "2"], [context(1), *row]])
    with pytest.raises(ValueError) as error:
        run_swag.main([*flags, "--train_file", file, "--do_train"])
    assert message in str(error.value) and "\n" not in str(error.value)
    assert not [path for path in (tmp_path / "out").glob("*") if not path.name.startswith(".")]


def test_sample_limits_take_the_first_examples(flags, swag):
    limits = ["--max_train_samples", "3", "--max_predict_samples", "99", "--do_train", "--do_predict"]
    args = parse_arguments(run_swag.SwagArguments, [*flags, *swag, *limits])
    options = {"length": args.max_seq_length, "limits": args.limits}
    features = make_features(run_swag.load_data(args), load_tokenizer(args), **options)
    assert {split: len(rows) for split, rows in features.items()} == {"train": 3, "test": SIZES["test"]}
    assert features["train"]["labels"][:] == [right(row, 4) for row in range(3)]


def test_zoo_and_transformers_give_the_same_metrics(flags, swag):
    ours, theirs = (
        run_swag.main([*flags, *swag, "--do_train", "--do_eval", "--num_train_epochs", "2", "--implementation", name])
        for name in ("zoo", "transformers")
    )
    for name in ("train_loss", "eval_loss", "eval_accuracy"):
        assert ours[name] == pytest.approx(theirs[name], abs=1e-5)


def test_a_model_of_characters_and_words_chooses_too(tmp_path, swag):
    model = ["--model_name_or_path", str(write_elmo(tmp_path)), "--output_dir", str(tmp_path / "out")]
    results = run_swag.main([*model, *swag, *ALL, *SHORT, "--max_seq_length", "8", "--group_by_length"])
    assert 0 <= results["eval_accuracy"] <= 1 and len(predictions(tmp_path / "out")) == SIZES["test"]


def test_a_language_model_reads_its_own_tokens_around_context_and_choice_and_learns_both_losses(tmp_path, swag):
    data = [*swag, "--max_seq_length", "40", "--do_eval", "--do_predict"]
    model = ["--model_name_or_path", str(write_gpt_model(tmp_path)), "--config_overrides", "lm_loss_weight=0.5"]
    first = run_swag.main([*model, *data, "--do_train", *SHORT, "--output_dir", str(tmp_path / "out")])
    assert first["train_loss"] > first["eval_loss"] + 1  # the language model's share, in training only
    saved = ["--model_name_or_path", str(tmp_path / "out"), *data, "--output_dir", str(tmp_path / "again")]
    assert scores(run_swag.main(saved)) == scores(first)
    assert predictions(tmp_path / "again") == predictions(tmp_path / "out")
    tokenizer = load_tokenizer(parse_arguments(run_swag.SwagArguments, saved))
    (row,) = encode(["the film is"], ["not good"], tokenizer, 7)
    assert tokenizer.decode(row["input_ids"]) == "_start_ film is _delimiter_ not good _classify_"


# However a run is computed


@pytest.mark.slow
def test_two_processes_give_the_results_of_one(tmp_path, flags, swag):
    common = [*flags, *swag, *ALL, "--num_train_epochs", "2", "--group_by_length", "--adam_epsilon", "0.001"]
    common += ["--save_strategy", "no", "--eval_strategy", "no"]
    one, two = tmp_path / "one", tmp_path / "two"
    spread = ["--per_device_train_batch_size", "1", "--gradient_accumulation_steps", "2", "--output_dir", str(two)]
    assert wait(fork(partial(run_swag.main, [*common, *spread]), count=2)) == [0, 0]
    results = run_swag.main([*common, "--per_device_train_batch_size", "4", "--output_dir", str(one)])
    record = json.loads((two / "metrics.json").read_text(encoding="utf-8"))
    assert record["hardware"]["processes"] == 2
    for name in ("train_loss", "eval_loss", "eval_accuracy"):
        assert record[name] == pytest.approx(results[name], abs=1e-6)
    weights = [load_file(folder / "model.safetensors") for folder in (one, two)]
    torch.testing.assert_close(*weights, rtol=0, atol=1e-5)
    assert predictions(one) == predictions(two)


def test_a_run_goes_on_where_it_stopped_to_the_same_weights(tmp_path, flags, swag):
    write_model(tmp_path, hidden_dropout_prob=0.2)
    common = [*flags, *swag, "--do_train", "--do_eval", "--num_train_epochs", "2", "--group_by_length"]
    common += ["--overwrite_output_dir", "false", "--save_strategy", "steps", "--save_steps", "1"]
    common += ["--save_total_limit", "9"]
    run_swag.main(common)
    out, again = tmp_path / "out", tmp_path / "again"
    whole = load_file(out / "model.safetensors")
    again.mkdir()
    shutil.copytree(out / "checkpoint-1", again / "checkpoint-1")
    run_swag.main([*common, "--output_dir", str(again), "--resume"])
    resumed = load_file(again / "model.safetensors")
    assert all(torch.equal(weight, resumed[name]) for name, weight in whole.items())
    first, second = (json.loads((folder / "metrics.json").read_text(encoding="utf-8")) for folder in (out, again))
    assert scores(first) == scores(second)


def test_padded_to_one_length_every_batch_has_one_shape_and_the_scores_stay(flags, swag, monkeypatch):
    common = [*flags, *swag, "--do_train", "--do_eval", "--max_steps", "1", "--per_device_eval_batch_size", "8"]
    plain = run_swag.main(common)
    shapes, forward = set(), ZooBertForMultipleChoice.forward

    def record(self, **batch):
        shapes.update(tuple(batch[name].shape) for name in ("input_ids", "attention_mask", "token_type_ids"))
        return forward(self, **batch)

    monkeypatch.setattr(ZooBertForMultipleChoice, "forward", record)
    padded = run_swag.main([*common, "--pad_to_max_length"])
    assert shapes == {(8, 4, 32)}
    for name in ("train_loss", "eval_loss", "eval_accuracy"):
        assert padded[name] == pytest.approx(plain[name], abs=1e-5)
