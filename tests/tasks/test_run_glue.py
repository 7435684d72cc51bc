"""Whole runs of the script on GLUE's tasks and on files of one's own."""

import csv
import json
import re
import shlex
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from accelerate.state import AcceleratorState
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertTokenizer,
    PreTrainedModel,
    pipeline,
)

import run_glue
from elmo_gpt_bert.tasks.glue import EVERY_TASK, GlueTask, class_names, featurize, make_features, read_folder
from elmo_gpt_bert.training import loading
from elmo_gpt_bert.training.flags import parse_arguments
from tests.support.glue_sample import (
    FOLDERS,
    LABELS,
    SIZES,
    WORDS,
    write_csv,
    write_model,
    write_task,
    write_vocabulary,
)
from tests.support.processes import fork, wait
from tests.support.tiny_run import load_tokenizer


@pytest.fixture
def flags(tmp_path) -> list[str]:
    """A run on a tiny model of random weights, for a test to add its data and its parts to."""
    model, vocabulary = write_model(tmp_path), write_vocabulary(tmp_path)
    return [
        *("--model_name_or_path", str(model), "--tokenizer_name", str(vocabulary), "--max_seq_length", "32"),
        *("--output_dir", str(tmp_path / "out"), "--max_steps", "2", "--learning_rate", "0.001"),
    ]


OWN = {"a.csv": ["ok", "bad"] * 4, "b.csv": ["bad", "ok"], "c.csv": ["", "", ""]}


def predictions(folder: Path) -> list[str]:
    """Those for a task's test set, or for a file of one's own."""
    if (folder / "predictions.csv").exists():
        with (folder / "predictions.csv").open(encoding="utf-8", newline="") as file:
            return [row["prediction"] for row in csv.DictReader(file)]
    header, *rows = (folder / "predictions.tsv").read_text(encoding="utf-8").splitlines()
    assert header == "index\tprediction" and [row.split("\t")[0] for row in rows] == list(map(str, range(len(rows))))
    return [row.split("\t")[1] for row in rows]


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ([], "there are no data: name them by one of --task_name, --train_file"),
        (["--task_name", "xnli"], "--task_name must be one of cola, sst2"),
        (["--data_dir", "x", "--train_file", "y"], "--data_dir x has no effect with --train_file y: leave out one"),
        (["--task_name", "rte", "--train_file", "y"], "--task_name rte has no effect with --train_file y"),
        (
            ["--task_name", "rte", "--problem_type", "regression"],
            "--problem_type regression has no effect with --task_name rte",
        ),
        (["--task_name", "rte", "--max_train_samples", "0"], "--max_train_samples must be positive, not 0"),
        (["--task_name", "rte", "--max_predict_samples", "-1"], "--max_predict_samples must be positive, not -1"),
        (["--task_name", "ax"], "--task_name ax has no data to train on: train on mnli"),
        (["--task_name", "hans"], "--task_name hans has no data to train on: train on mnli"),
        (
            ["--task_name", "rte", "--label_column_name", "x"],
            "--label_column_name x has no effect with --task_name rte",
        ),
        (["--task_name", "rte", "--label_names", "a,b"], "--label_names a,b has no effect with --task_name rte"),
        (["--train_file", "y", "--label_names", "a,b,a"], "--label_names a,b,a must be two or more different names"),
        (["--train_file", "y", "--label_names", "a"], "--label_names a must be two or more different names"),
        (["--train_file", "y", "--label_names", "a,b,a"], "different names, as in a,b: a is there twice"),
        (
            ["--train_file", "y", "--label_names", "a,b,"],
            "different names, as in a,b: one is empty",
        ),
        (
            ["--train_file", "y", "--label_names", "a,b", "--problem_type", "regression"],
            "--label_names are those of cl",
        ),
        (["--train_file", "y", "--text_column_names", "a,label"], "a,label has the column of the labels, label"),
        (
            ["--train_file", "y", "--text_column_names", "a", "--label_column_name", "a"],
            "--text_column_names a has the column of the labels, a",
        ),
        (["--train_file", "y", "--text_column_names", "a,b,c"], "must be one column or two, as in a,b, not a,b,c"),
    ],
)
def test_flags_that_contradict_the_data_are_refused(flags, capsys, extra, message):
    with pytest.raises(SystemExit):
        run_glue.main([*flags, "--do_train", *extra])
    assert message in capsys.readouterr().err


# Whole runs


def test_mnli_is_scored_on_both_halves_and_predicted_without_labels(tmp_path, flags):
    write_task(tmp_path, "MNLI")
    data = ["--task_name", "mnli", "--data_dir", str(tmp_path)]
    run_glue.main([*flags, *data, "--do_train", "--do_eval", "--do_predict", "--max_predict_samples", "3"])
    record = json.loads((tmp_path / "out" / "metrics.json").read_text(encoding="utf-8"))
    assert {"eval_accuracy", "eval_accuracy_mm"} <= record.keys()
    for name in ("predictions.tsv", "predictions_mm.tsv"):
        header, *rows = (tmp_path / "out" / name).read_text(encoding="utf-8").splitlines()
        assert header == "index\tprediction" and [row.split("\t")[0] for row in rows] == ["0", "1", "2"]
        assert {row.split("\t")[1] for row in rows} <= {"entailment", "neutral", "contradiction"}


@pytest.mark.parametrize("task_name", ["snli", "scitail"])
def test_a_test_set_with_labels_is_scored_beside_its_predictions(tmp_path, flags, task_name):
    folder = write_task(tmp_path, FOLDERS[task_name])
    data = ["--task_name", task_name, "--data_dir", str(folder)]
    results = run_glue.main([*flags, *data, "--do_train", "--do_predict", "--max_predict_samples", "3"])
    written = LABELS[folder.name]  # by turns, in the order of the rows
    labels = ["entailment" if label == "entails" else label for label in [*written, *written][:3]]
    right = [guess == label for guess, label in zip(predictions(tmp_path / "out"), labels, strict=True)]
    assert results["test_accuracy"] == pytest.approx(sum(right) / 3)
    assert set(predictions(tmp_path / "out")) <= {"entailment", "neutral", "contradiction"}


def test_a_pair_without_a_gold_label_keeps_its_number_in_the_test_set(tmp_path, flags):
    folder = write_task(tmp_path, "SNLI")
    file = folder / "snli_1.0_test.txt"
    header, first, second, *others = file.read_text(encoding="utf-8").splitlines()
    second = second.replace("entailment", "-")
    file.write_text("\n".join([header, first, second, *others]) + "\n", encoding="utf-8")
    run_glue.main([*flags, "--task_name", "snli", "--data_dir", str(folder), "--do_train", "--do_predict"])
    _, *rows = (tmp_path / "out" / "predictions.tsv").read_text(encoding="utf-8").splitlines()
    assert [row.split("\t")[0] for row in rows] == ["0", "2", "3"]


def test_a_model_card_names_the_data_set_and_its_paper(tmp_path, flags):
    write_task(tmp_path, "SNLI")
    data = ["--task_name", "snli", "--data_dir", str(tmp_path)]
    run_glue.main([*flags, *data, "--do_train", "--do_eval"])
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert "stanfordnlp/snli" in card and "trained on SNLI." in card and "89.9" in card


def test_a_regression_is_scored_by_correlations_and_predicts_numbers(tmp_path, flags):
    write_task(tmp_path, "STS-B")
    data = ["--task_name", "stsb", "--data_dir", str(tmp_path)]
    results = run_glue.main([*flags, *data, "--do_train", "--do_eval", "--do_predict"])
    assert {"eval_pearson", "eval_spearmanr"} <= results.keys()
    texts = read_folder(tmp_path, EVERY_TASK["stsb"], ["test"])["test"]
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    inputs = tokenizer(texts["text"][:], texts["text_pair"][:], padding=True, return_tensors="pt")
    numbers = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out")(**inputs).logits.flatten().tolist()
    assert list(map(float, predictions(tmp_path / "out"))) == pytest.approx(numbers, abs=1e-4)
    assert AutoConfig.from_pretrained(tmp_path / "out").problem_type == "regression"


@pytest.mark.parametrize("task_name", ["qnli", "stsb"])
def test_evaluating_and_predicting_from_the_saved_folder_repeat_the_runs_numbers(tmp_path, flags, task_name):
    write_task(tmp_path, FOLDERS[task_name])
    data = ["--task_name", task_name, "--data_dir", str(tmp_path), "--max_seq_length", "32"]
    first = run_glue.main([*flags, *data, "--do_train", "--do_eval", "--do_predict"])
    again = ["--model_name_or_path", str(tmp_path / "out"), *data]
    second = run_glue.main([*again, "--output_dir", str(tmp_path / "eval"), "--do_eval"])
    run_glue.main([*again, "--output_dir", str(tmp_path / "predict"), "--do_predict"])
    scores = [name for name in first if name.startswith("eval_") and not name.endswith("runtime")]
    assert [second[name] for name in scores] == [first[name] for name in scores] and len(scores) >= 3
    assert predictions(tmp_path / "predict") == predictions(tmp_path / "out")
    assert not (tmp_path / "eval" / "model.safetensors").exists()


def test_the_saved_folder_names_its_labels(tmp_path, flags):
    write_task(tmp_path, "QNLI")
    run_glue.main([*flags, "--task_name", "qnli", "--data_dir", str(tmp_path), "--do_train"])
    assert pipeline("text-classification", model=str(tmp_path / "out"))("a film .")[0]["label"] in LABELS["QNLI"]


@pytest.mark.parametrize("names", [("equivalent", "not_equivalent"), ("EQUIVALENT", "Not equivalent")])
def test_a_checkpoint_that_numbers_or_writes_the_classes_otherwise_scores_the_same(tmp_path, flags, names):
    write_task(tmp_path, "MRPC")
    data = ["--task_name", "mrpc", "--data_dir", str(tmp_path), "--max_seq_length", "32"]
    first = run_glue.main([*flags, *data, "--do_train", "--do_eval", "--do_predict"])
    swapped = run_glue.AutoModelForSequenceClassification.from_pretrained(
        tmp_path / "out", id2label=dict(enumerate(names)), label2id={name: number for number, name in enumerate(names)}
    )
    with torch.no_grad():
        for parameter in swapped.classifier.parameters():
            parameter.copy_(parameter.flip(0))
    swapped.save_pretrained(tmp_path / "swapped")
    again = ["--model_name_or_path", str(tmp_path / "swapped"), "--tokenizer_name", str(tmp_path / "vocab.txt")]
    second = run_glue.main([*again, *data, "--output_dir", str(tmp_path / "again"), "--do_eval", "--do_predict"])
    for name in ("eval_accuracy", "eval_f1", "eval_loss"):
        assert second[name] == pytest.approx(first[name], abs=1e-6)
    assert predictions(tmp_path / "again") == predictions(tmp_path / "out")


def names_for(task_name: str, id2label: dict[int, str], train: bool = False) -> list[str]:
    config = AutoConfig.for_model("bert", id2label=id2label)
    return class_names(EVERY_TASK[task_name], config, train=train, model_name="m")


def test_the_classes_have_the_checkpoints_order_and_the_tasks_spelling():
    upper = {0: "CONTRADICTION", 1: "NEUTRAL", 2: "ENTAILMENT"}
    assert names_for("mnli", upper) == names_for("hans", upper) == ["contradiction", "neutral", "entailment"]
    assert names_for("ax", {0: "LABEL_0", 1: "LABEL_1", 2: "LABEL_2"}) == ["entailment", "neutral", "contradiction"]
    assert names_for("stsb", {0: "LABEL_0"}) == []
    assert names_for("rte", upper, train=True) == ["entailment", "not_entailment"]


def test_a_run_ends_with_a_command_that_uses_the_model(tmp_path, flags, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/usr/bin/zoo-run-glue"])
    for name, labels in OWN.items():
        write_csv(tmp_path / name, labels)
    run_glue.main(
        [*flags, "--train_file", str(tmp_path / "a.csv"), "--validation_file", str(tmp_path / "b.csv")]
        + ["--do_train", "--do_eval", "--output_dir", str(tmp_path / "my model")]
    )
    seconds, written, following = capsys.readouterr().out.splitlines()[-3:]
    assert re.fullmatch(r"seconds: start [\d.]+, .*train [\d.]+, .*save [\d.]+; [\d.]+ in all", seconds)
    assert written == f"written to {tmp_path / 'my model'}: model, README.md (its card), metrics.json"
    introduction, command, *words = shlex.split(following)
    assert (introduction, command) == ("next:", "zoo-run-glue")
    run_glue.main([str(tmp_path / "c.csv") if word == "FILE" else word for word in words])
    assert len(predictions(tmp_path / "my model-predictions")) == len(OWN["c.csv"])
    printed = capsys.readouterr().out
    assert "metrics.json, predictions.csv\n" in printed and "next:" not in printed  # it has trained nothing


def test_an_order_of_the_classes_that_is_only_assumed_is_said(capsys):
    names_for("rte", {0: "LABEL_0", 1: "LABEL_1"})
    assert capsys.readouterr().out == (
        "m does not name its classes: they are taken for entailment, not_entailment, in this order\n"
    )
    names_for("rte", {0: "LABEL_0", 1: "LABEL_1"}, train=True)
    names_for("rte", {0: "ENTAILMENT", 1: "NOT_ENTAILMENT"})
    names_for("stsb", {0: "LABEL_0"})
    assert capsys.readouterr().out == ""


def test_names_that_differ_in_nothing_but_case_stay_apart():
    task = GlueTask("", ("sentence",), ("No", "no"), ("glue", "rte"))
    config = AutoConfig.for_model("bert", id2label={0: "NO", 1: "nO"})
    assert class_names(task, config, train=True, model_name="m") == [
        "No",
        "no",
    ]  # the task's: nothing says which is which


def test_the_output_of_a_regression_may_have_any_name():
    assert names_for("stsb", {0: "similarity"}) == names_for("stsb", {0: "LABEL_0"}) == []


@pytest.mark.parametrize(
    ("task_name", "id2label", "message"),
    [
        ("rte", {0: "neutral", 1: "entailment", 2: "contradiction"}, "m tells neutral, .* apart, but the task is ent"),
        ("rte", {0: "LABEL_0"}, "m predicts a number, but the task is entailment, not_entailment"),
        ("stsb", {0: "no", 1: "yes"}, "m tells no, yes apart, but the task is a regression: train it on this task"),
        ("hans", {0: "entailment", 1: "not_entailment"}, "entailment, neutral, contradiction: train it on mnli first"),
        ("rte", {1: "entailment", 2: "not_entailment"}, "m: id2label must number the classes from 0"),
        ("rte", {0: "entailment", 1: "entailment"}, "m tells entailment, entailment apart"),
    ],
)
def test_a_checkpoint_that_cannot_be_of_the_task_is_refused(task_name, id2label, message):
    with pytest.raises(ValueError, match=message):
        names_for(task_name, id2label)


def test_a_checkpoint_of_another_task_is_not_evaluated(tmp_path, flags):
    write_task(tmp_path, "QNLI")
    write_task(tmp_path, "MNLI")
    run_glue.main([*flags, "--task_name", "mnli", "--data_dir", str(tmp_path), "--do_train"])
    again = ["--model_name_or_path", str(tmp_path / "out"), "--output_dir", str(tmp_path / "again"), "--do_eval"]
    with pytest.raises(
        ValueError, match="tells entailment, neutral, contradiction apart, but the task is entailment, "
    ):
        run_glue.main([*again, "--task_name", "qnli", "--data_dir", str(tmp_path), "--max_seq_length", "32"])


def test_files_of_ones_own_train_and_the_checkpoint_predicts_on_others(tmp_path, flags):
    train, validation, test = (write_csv(tmp_path / name, labels) for name, labels in OWN.items())
    files = ["--train_file", train, "--validation_file", validation]
    results = run_glue.main([*flags, *files, "--do_train", "--do_eval"])
    assert 0 <= results["eval_accuracy"] <= 1
    again = ["--model_name_or_path", str(tmp_path / "out"), "--output_dir", str(tmp_path / "again")]
    run_glue.main([*again, "--test_file", test, "--max_seq_length", "32", "--do_predict"])
    rows = predictions(tmp_path / "again")
    assert len(rows) == 3 and set(rows) <= {"ok", "bad"}


def test_a_checkpoint_without_names_for_its_classes_is_evaluated_by_their_numbers(tmp_path, flags):
    config = AutoConfig.from_pretrained(tmp_path)
    run_glue.AutoModelForSequenceClassification.from_config(config).save_pretrained(tmp_path / "unnamed")
    validation, test = write_csv(tmp_path / "a.csv", ["1", "0", "1.0"]), write_csv(tmp_path / "b.csv", [""])
    files = ["--validation_file", validation, "--test_file", test]
    model = ["--model_name_or_path", str(tmp_path / "unnamed")]
    results = run_glue.main([*flags, *model, *files, "--do_eval", "--do_predict"])
    assert 0 <= results["eval_accuracy"] <= 1
    assert predictions(tmp_path / "out")[0] in ("LABEL_0", "LABEL_1")


@pytest.mark.parametrize("labels", [["pos", "neg", "pos", "neg"], ["1", "0", "1", "neg"]])
def test_label_names_are_those_of_the_models_classes_and_of_numbers(tmp_path, flags, labels):
    """An untrained classifier without names for its classes: with the names turned round, what was right is wrong."""
    config = AutoConfig.from_pretrained(tmp_path)
    run_glue.AutoModelForSequenceClassification.from_config(config).save_pretrained(tmp_path / "unnamed")
    file = write_csv(tmp_path / "a.csv", labels)
    model = ["--model_name_or_path", str(tmp_path / "unnamed"), "--validation_file", file, "--do_eval"]
    files = [*flags, *model, "--test_file", file, "--do_predict", "--overwrite_output_dir"]
    right = run_glue.main([*files, "--label_names", "neg, pos"])["eval_accuracy"]
    assert set(predictions(tmp_path / "out")) <= {"neg", "pos"}
    if "1" not in labels:
        assert run_glue.main([*files, "--label_names", "pos,neg"])["eval_accuracy"] == pytest.approx(1 - right)
    with pytest.raises(ValueError, match="unknown label '(pos|neg)', known are bad, ok: --label_names must have"):
        run_glue.main([*files, "--label_names", "bad,ok"])
    with pytest.raises(ValueError, match="tells LABEL_0, LABEL_1 apart, but --label_names are neg, pos, x: give"):
        run_glue.main([*files, "--label_names", "neg,pos,x"])


def test_label_names_set_the_order_in_training_and_are_saved(tmp_path, flags):
    file = write_csv(tmp_path / "a.csv", ["ok", "bad"] * 4)
    run_glue.main([*flags, "--train_file", file, "--do_train", "--label_names", "ok,bad,never"])
    assert AutoConfig.from_pretrained(tmp_path / "out").id2label == {0: "ok", 1: "bad", 2: "never"}


def test_a_model_that_has_the_classes_keeps_their_order_and_says_so(tmp_path, flags, capsys):
    file = write_csv(tmp_path / "a.csv", ["ok", "bad"] * 4)
    first = str(tmp_path / "first")
    run_glue.main([*flags, "--train_file", file, "--do_train", "--output_dir", first, "--label_names", "bad,ok"])
    again = ["--model_name_or_path", first, "--train_file", file, "--do_train", "--max_steps", "1"]
    again += ["--max_seq_length", "32", "--output_dir", str(tmp_path / "out"), "--overwrite_output_dir"]
    run_glue.main([*again, "--label_names", "bad,ok"])
    assert "--label_names" not in capsys.readouterr().out
    run_glue.main([*again, "--label_names", "ok,bad"])
    line = f"the classes are in the order bad, ok, as {first} has them, and not in that of --label_names ok,bad\n"
    assert line in capsys.readouterr().out
    assert AutoConfig.from_pretrained(tmp_path / "out").id2label == {0: "bad", 1: "ok"}


@pytest.mark.parametrize("flag", ["overwrite_output_dir", "resume"])
def test_an_evaluation_does_not_replace_the_results_in_the_folder_of_its_model(tmp_path, flag):
    folders = {"model_name_or_path": str(tmp_path), "output_dir": f"{tmp_path}/.", flag: True}
    with pytest.raises(ValueError, match=f"^--{flag} without --do_train would remove .* choose another --output_dir$"):
        run_glue.GlueArguments(**folders, task_name="rte", do_eval=True)
    with pytest.raises(ValueError, match="choose another --output_dir; .* --do_predict --resume"):
        run_glue.GlueArguments(**folders, task_name="rte", do_predict=True)
    run_glue.GlueArguments(**folders, task_name="rte", do_train=True, do_predict=True)


@pytest.mark.parametrize("name", ["checkpoint-2", "seed-43", "seed-43/checkpoint-2"])
def test_a_run_does_not_remove_the_model_that_it_begins_with(tmp_path, name):
    model = tmp_path / "out" / name
    model.mkdir(parents=True)
    folders = {"model_name_or_path": str(model), "output_dir": str(tmp_path / "out"), "task_name": "rte"}
    with pytest.raises(ValueError, match=f"^--overwrite_output_dir would remove {model}, which the run begins with: "):
        run_glue.GlueArguments(**folders, overwrite_output_dir=True, do_train=True)
    with pytest.raises(ValueError, match="^--overwrite_output_dir without --do_train would remove the results"):
        run_glue.GlueArguments(**folders, overwrite_output_dir=True, do_eval=True)
    tokenizer = folders | {"model_name_or_path": "bert.json", "tokenizer_name": str(model)}
    with pytest.raises(ValueError, match=f"would remove {model}"):
        run_glue.GlueArguments(**tokenizer, overwrite_output_dir=True, do_train=True)
    run_glue.GlueArguments(
        **folders | {"output_dir": str(tmp_path / "other")}, overwrite_output_dir=True, do_train=True
    )
    run_glue.GlueArguments(**folders, resume=True, do_train=True)


@pytest.mark.parametrize("name", ["num_labels=3", "id2label={}", "do_sample=true,label2id={}"])
def test_what_the_data_decide_is_not_overridden(name):
    field = name.partition("=")[0] if name.startswith(("num", "id")) else "label2id"
    with pytest.raises(ValueError, match=f"^--config_overrides {field} has no effect"):
        run_glue.GlueArguments(
            model_name_or_path="x", output_dir="y", task_name="rte", do_train=True, config_overrides=name
        )


def test_sample_limits_take_the_first_examples(tmp_path, flags):
    write_task(tmp_path, "RTE")
    args = parse_arguments(
        run_glue.GlueArguments,
        [*flags, "--task_name", "rte", "--data_dir", str(tmp_path), "--do_train", "--do_eval"]
        + ["--max_train_samples", "3", "--max_eval_samples", "99"],
    )
    task, data = run_glue.load_data(args, AutoConfig.for_model("bert"))
    options = {"length": args.max_seq_length, "limits": args.limits}
    features = make_features(data, load_tokenizer(args), list(task.labels), **options)
    assert {split: len(rows) for split, rows in features.items()} == {"train": 3, "validation": SIZES["dev"]}
    assert features["train"]["labels"][:] == [task.labels.index(label) for label in data["train"]["label"][:3]]


def test_more_positions_than_the_model_has_are_an_error(flags, tmp_path):
    write_task(tmp_path, "RTE")
    with pytest.raises(ValueError, match="--max_seq_length 41 is more than the model's 40 positions"):
        run_glue.main(
            [*flags, "--task_name", "rte", "--data_dir", str(tmp_path), "--do_eval", "--max_seq_length", "41"]
        )


def model_of(model_type: str, **changes: object) -> PreTrainedModel:
    sizes = {"vocab_size": 60, "hidden_size": 12, "num_hidden_layers": 1, "num_attention_heads": 3, **changes}
    return run_glue.AutoModelForSequenceClassification.from_config(AutoConfig.for_model(model_type, **sizes))


@pytest.mark.parametrize(
    ("model_type", "changes", "longest"),
    [
        ("bert", {"max_position_embeddings": 66}, 66),
        ("roberta", {"max_position_embeddings": 66, "pad_token_id": 1}, 64),
        ("longformer", {"max_position_embeddings": 66, "pad_token_id": 1, "attention_window": 4}, 64),
        ("bloom", {"pad_token_id": 1}, None),  # its positions are relative
        ("gpt2", {"n_positions": 66, "pad_token_id": 1}, 66),
    ],
)
def test_the_positions_are_as_many_as_a_text_may_have_tokens(model_type, changes, longest):
    model = model_of(model_type, **changes)
    assert loading.positions(model) == longest
    ids = torch.full((1, longest or 100), 5)
    assert model(input_ids=ids).logits.isfinite().all()
    if longest:
        with pytest.raises((IndexError, RuntimeError)):
            model(input_ids=torch.full((1, longest + 1), 5))


def test_more_tokens_than_the_tokenizer_allows_are_an_error(flags, tmp_path):
    args = parse_arguments(run_glue.GlueArguments, [*flags, "--task_name", "rte", "--do_eval"])
    model, tokenizer = model_of("bloom"), load_tokenizer(args)
    loading.check_length(args.max_seq_length, model, tokenizer, pair=True)
    tokenizer.model_max_length = 31
    with pytest.raises(ValueError, match="^--max_seq_length 32 is more than the tokenizer's 31 tokens"):
        loading.check_length(args.max_seq_length, model, tokenizer, pair=True)


@pytest.mark.parametrize("length", ["3", "0", "-1"])
def test_a_length_without_room_for_text_is_an_error(flags, tmp_path, length):
    write_task(tmp_path, "RTE")
    data = ["--task_name", "rte", "--data_dir", str(tmp_path), "--do_eval"]
    with pytest.raises(ValueError, match=f"--max_seq_length {length} must be more than the 3 special tokens"):
        run_glue.main([*flags, *data, "--max_seq_length", length])


@pytest.mark.parametrize("lengths", [(3, 12), (12, 3), (9, 8), (7, 7), (5, 6)])
def test_a_pair_that_is_too_long_is_cut_by_the_released_rule(tmp_path, lengths):
    first, second = (WORDS[:count] for count in lengths)
    pair, kept = {"text": [" ".join(first)], "text_pair": [" ".join(second)]}, (list(first), list(second))
    while sum(map(len, kept)) > 11 - 3:  # _truncate_seq_pair of the released run_classifier.py
        max(reversed(kept), key=len).pop()
    tokenizer = BertTokenizer(str(write_vocabulary(tmp_path)))
    (ids,) = featurize(pair, tokenizer, ["a"], length=11)["input_ids"]
    assert tokenizer.convert_ids_to_tokens(ids) == ["[CLS]", *kept[0], "[SEP]", *kept[1], "[SEP]"]


@pytest.fixture
def rte(tmp_path, flags):
    """Trains and evaluates on the tiny RTE with further flags; gives the results."""
    write_task(tmp_path, "RTE")
    common = [*flags, "--task_name", "rte", "--data_dir", str(tmp_path), "--do_train", "--do_eval"]
    return lambda *more: run_glue.main([*common, "--overwrite_output_dir", *more])


def test_zoo_and_transformers_give_the_same_metrics(rte):
    ours, theirs = rte("--implementation", "zoo"), rte("--implementation", "transformers")
    for name in ("train_loss", "eval_loss", "eval_accuracy"):
        assert ours[name] == pytest.approx(theirs[name], abs=1e-5)


def test_mixed_precision_scores_about_the_same(rte):
    exact = rte()
    AcceleratorState._reset_state(True)
    mixed = rte("--mixed_precision", "bf16")
    assert 0 < abs(mixed["eval_loss"] - exact["eval_loss"]) < 0.05


def test_padding_to_the_full_length_changes_nothing(rte):
    plain, padded = rte(), rte("--pad_to_max_length")
    assert padded["eval_loss"] == pytest.approx(plain["eval_loss"], abs=1e-5)


def test_two_processes_give_the_results_of_one(tmp_path, flags, rte):
    batches = ["--max_steps", "5", "--group_by_length", "--do_predict"]
    one = rte(*batches, "--per_device_train_batch_size", "4")
    predictions = (tmp_path / "out" / "predictions.tsv").read_text(encoding="utf-8")
    spread = [*flags, "--task_name", "rte", "--data_dir", str(tmp_path), "--do_train", "--do_eval", *batches]
    spread += ["--per_device_train_batch_size", "1", "--gradient_accumulation_steps", "2", "--overwrite_output_dir"]
    assert wait(fork(partial(run_glue.main, spread), count=2)) == [0, 0]
    two = json.loads((tmp_path / "out" / "metrics.json").read_text(encoding="utf-8"))
    assert two["hardware"]["processes"] == 2
    for name in ("train_loss", "eval_loss", "eval_accuracy"):
        assert two[name] == pytest.approx(one[name], abs=1e-5)
    assert (tmp_path / "out" / "predictions.tsv").read_text(encoding="utf-8") == predictions


def test_the_predictions_of_an_earlier_run_do_not_stay_beside_newer_scores(tmp_path, rte):
    rte("--do_predict", "--max_steps", "1")
    assert (tmp_path / "out" / "predictions.tsv").exists()
    with pytest.raises(ValueError, match="max_seq_length"):
        rte("--max_seq_length", "1000")
    assert (tmp_path / "out" / "predictions.tsv").exists()  # a mistake costs nothing
    rte("--max_steps", "1")
    assert not (tmp_path / "out" / "predictions.tsv").exists()
