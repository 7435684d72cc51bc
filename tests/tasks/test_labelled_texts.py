"""Files of one's own: several classes for a text, a metric of one's own, and predictions beside the file's columns."""

import csv
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, f1_score
from transformers import AutoConfig, pipeline

import run_glue
from elmo_gpt_bert.tasks.labelled_texts import predictions_csv
from elmo_gpt_bert.training.flags import parse_arguments
from tests.support.glue_sample import text, write_csv, write_model, write_task, write_vocabulary
from tests.support.run_samples import elmo, gpt


NAMES = ("angry", "long", "short")
SETS = [["long"], ["angry", "short"], [], ["short"], ["angry", "long"], ["short", "angry", "long"], ["long"], []]


@pytest.fixture
def flags(tmp_path) -> list[str]:
    """A run on a tiny model of random weights, for a test to add its data and its parts to."""
    model, vocabulary = write_model(tmp_path), write_vocabulary(tmp_path)
    return [
        *("--model_name_or_path", str(model), "--tokenizer_name", str(vocabulary), "--max_seq_length", "32"),
        *("--output_dir", str(tmp_path / "out"), "--max_steps", "2", "--learning_rate", "0.01"),
    ]


def write_json(path: Path, labels: list) -> str:
    rows = [{"id": row, "text": text(row, 1), "label": label} for row, label in enumerate(labels)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def as_flags(sets: list[list[str]]) -> list[list[float]]:
    return [[float(name in names) for name in NAMES] for names in sets]


def read_predictions(folder: Path) -> list[dict[str, str]]:
    with (folder / "predictions.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


# Any number of classes for a text


def test_a_text_has_any_number_of_classes(tmp_path, flags, capsys):
    file = write_json(tmp_path / "a.json", SETS)
    results = run_glue.main([*flags, "--train_file", file, "--validation_file", file, "--do_train", "--do_eval"])
    assert "3 classes, of which a text has any number: angry, long, short" in capsys.readouterr().out
    out = str(tmp_path / "out")
    config = AutoConfig.from_pretrained(out)
    assert config.problem_type == "multi_label_classification" and config.id2label == dict(enumerate(NAMES))

    words = ["--model_name_or_path", out, "--max_seq_length", "32", "--output_dir", str(tmp_path / "again")]
    again = run_glue.main([*words, "--validation_file", file, "--test_file", file, "--do_eval", "--do_predict"])
    assert again["eval_loss"] == pytest.approx(results["eval_loss"])
    rows = read_predictions(tmp_path / "again")
    assert [row["id"] for row in rows] == list(map(str, range(len(SETS))))
    assert [json.loads(row["label"]) for row in rows] == SETS
    scores = [json.loads(row["score"]) for row in rows]
    classify = pipeline("text-classification", model=out, top_k=None)
    for row, score in zip(rows, scores, strict=True):
        expected = {each["label"]: each["score"] for each in classify(row["text"])[0]}
        assert score == pytest.approx(expected, abs=1e-4)
        assert json.loads(row["prediction"]) == [name for name in NAMES if expected[name] > 0.5]
    predicted = as_flags([json.loads(row["prediction"]) for row in rows])
    for name, value in (
        ("f1_micro", f1_score(as_flags(SETS), predicted, average="micro", zero_division=0)),
        ("f1_macro", f1_score(as_flags(SETS), predicted, average="macro", zero_division=0)),
        ("accuracy", accuracy_score(as_flags(SETS), predicted)),
    ):
        assert again[f"eval_{name}"] == pytest.approx(value)
    probabilities = np.array([list(score.values()) for score in scores])
    right = np.where(np.array(as_flags(SETS)) == 1, probabilities, 1 - probabilities)
    assert again["eval_loss"] == pytest.approx(-np.log(right).mean(), abs=1e-3)


def test_names_and_flags_of_classes_are_the_same_labels(tmp_path, flags):
    results = []
    for name, labels in (("names", SETS), ("flags", as_flags(SETS))):
        file = write_json(tmp_path / f"{name}.json", labels)
        words = ["--train_file", file, "--validation_file", file, "--do_train", "--do_eval", "--overwrite_output_dir"]
        results.append(run_glue.main([*flags, *words, "--label_names", ",".join(NAMES)]))
    assert {key: value for key, value in results[0].items() if "runtime" not in key} == {
        key: value for key, value in results[1].items() if "runtime" not in key
    }
    config = AutoConfig.for_model("bert")
    task, data = run_glue.load_data(
        run_glue.GlueArguments(model_name_or_path="m", output_dir="o", train_file=file, do_train=True), config
    )
    assert task.labels == ("0", "1", "2") and data["train"]["label"][:3] == [["1"], ["0", "2"], []]


def test_an_update_of_two_batches_is_that_of_one(tmp_path, flags):
    file = write_json(tmp_path / "a.json", SETS)
    words = [*flags, "--train_file", file, "--do_train", "--overwrite_output_dir"]
    losses = [
        run_glue.main([*words, *f"--per_device_train_batch_size {size} --gradient_accumulation_steps {steps}".split()])
        for size, steps in ((8, 1), (3, 3))
    ]
    assert losses[0]["train_loss"] == pytest.approx(losses[1]["train_loss"], rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["gpt", "elmo"])
def test_the_other_models_learn_any_number_of_classes(tmp_path, family):
    file = write_json(tmp_path / "a.json", SETS)
    model = gpt(tmp_path) if family == "gpt" else elmo(tmp_path, "glue")
    more = ["--do_eval", "--max_steps", "1", "--output_dir", str(tmp_path / "out"), "--max_seq_length", "32"]
    results = run_glue.main([*model, "--train_file", file, "--validation_file", file, "--do_train", *more])
    assert 0 < results["eval_loss"] < 2 and "eval_f1_micro" in results


def test_a_model_of_any_number_of_classes_is_not_evaluated_as_one_of_one(tmp_path, flags):
    file = write_json(tmp_path / "a.json", SETS)
    run_glue.main([*flags, "--train_file", file, "--do_train"])
    words = ["--model_name_or_path", str(tmp_path / "out"), "--output_dir", str(tmp_path / "again"), "--do_eval"]
    one = write_csv(tmp_path / "b.csv", ["angry", "short", "long"])  # each a set of one
    assert "eval_f1_micro" in run_glue.main([*words, "--max_seq_length", "32", "--validation_file", one])
    write_task(tmp_path, "RTE")
    task = ["--task_name", "rte", "--data_dir", str(tmp_path), "--overwrite_output_dir"]
    message = "gives a text any number of classes, but the task has one class: train it on this task first"
    with pytest.raises(ValueError, match=message):
        run_glue.main([*words, *task])


def test_lists_are_not_evaluated_by_a_model_of_one_class(tmp_path, flags):
    train = write_csv(tmp_path / "a.csv", ["angry", "short", "long"])
    run_glue.main([*flags, "--train_file", train, "--do_train"])
    words = ["--model_name_or_path", str(tmp_path / "out"), "--output_dir", str(tmp_path / "again"), "--do_eval"]
    with pytest.raises(ValueError, match="gives a text one class, but the task has any number of classes"):
        run_glue.main([*words, "--validation_file", write_json(tmp_path / "b.json", SETS)])


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([["a"], ["b", "b"]], r"a.json:2: label is \['b', 'b'\]: a list of names has each name once; write 0.0 and"),
        ([["a"], ["b", None]], r"a.json:2: label is \['b', None\]: a list has names of classes, or 0.0 or 1.0"),
        ([["a"], ["b", " "]], "a.json:2: label is .*: a list has names of classes, or 0.0"),
        ([["a"], [True, False]], "a.json:2: label is .*: a list has names of classes, or 0.0"),
        ([[0.0, 1.0], [0.5, 1.0]], r"a.json:2: label is \[0.5, 1.0\]: its numbers must be 0.0 or 1.0"),
        ([[0.0, 1.0], [0.0, 1.0, 1.0]], r"a.json, example 2: the label .* is not a list of 2 numbers, as others are"),
        ([[0.0, 1.0], ["b"]], r"a.json, example 2: the label .* is not a list of 2 numbers, as others are"),
        ([[0.0, 1.0], "b"], r"a.json, example 2: the label 'b' is not a list of 2 numbers, as others are"),
        ([["a"], []], "a.json: the lists name the class 'a' alone: add examples of another class"),
        ([[], []], "a.json: the lists name no class: add examples of another class"),
        ([[0, 1], [1, 0]], "a.json: every text has the same classes: add others, or write 0.0 and 1.0 for flags"),
    ],
)
def test_a_mistake_in_a_list_of_labels_is_one_error(tmp_path, flags, labels, message):
    with pytest.raises(ValueError, match=message):
        run_glue.main([*flags, "--train_file", write_json(tmp_path / "a.json", labels), "--do_train"])


def test_flags_are_refused_where_names_have_no_order(tmp_path, flags):
    train, validation = write_json(tmp_path / "a.json", SETS), write_json(tmp_path / "b.json", as_flags(SETS))
    words = [*flags, "--train_file", train, "--validation_file", validation, "--do_train", "--do_eval"]
    with pytest.raises(ValueError, match="b.json, example 1: a list of numbers, but the train file has names, which"):
        run_glue.main(words)
    run_glue.main([*words, "--label_names", ",".join(NAMES)])


def test_flags_without_a_train_file_need_names_in_an_order_as_with_one(tmp_path):
    file = write_json(tmp_path / "a.json", as_flags(SETS))
    with pytest.raises(ValueError, match="a.json, example 1: a list of numbers, but the model has names, which are"):
        evaluated(file, dict(enumerate(NAMES)))
    of_names = evaluated(file, dict(enumerate(NAMES)), label_names="long,short,angry")
    assert of_names[:3] == [["short"], ["long", "angry"], []]
    for numbers in ("0 1 2", "1 2 3", "9 10 11", "LABEL_0 LABEL_1 LABEL_2"):
        zero, one, two = numbers.split()
        assert evaluated(file, {0: zero, 1: one, 2: two})[:3] == [[one], [zero, two], []]
    with pytest.raises(ValueError, match="the model has names, which are in no order: .* or give --label_names"):
        evaluated(file, {0: "1", 1: "0", 2: "2"})


def evaluated(file: str, id2label: dict[int, str], **changes: str) -> list[list[str]]:
    """The labels of a file that a model of any number of these classes is evaluated on."""
    config = AutoConfig.for_model("bert", id2label=id2label, problem_type="multi_label_classification")
    names = {"model_name_or_path": "m", "output_dir": "o", "do_eval": True, "validation_file": file}
    return run_glue.load_data(run_glue.GlueArguments(**names, **changes), config)[1]["validation"]["label"][:]


@pytest.mark.parametrize("labels", [[[1, 0], [0, 1]], [[0, 1]], [[0, 1], [], [1, 0]]])
def test_whole_numbers_that_may_be_flags_of_two_classes_are_refused(tmp_path, labels):
    file = write_json(tmp_path / "a.json", labels)
    names = {"model_name_or_path": "m", "output_dir": "o", "do_train": True, "train_file": file}
    message = "a.json: every list holds 0 and 1, which as numbers of classes are both of long, short: write 0.0 and"
    with pytest.raises(ValueError, match=message):
        run_glue.load_data(run_glue.GlueArguments(**names, label_names="long,short"), AutoConfig.for_model("bert"))
    for options in ({}, {"label_names": "long,short"}):
        with pytest.raises(ValueError, match="a.json: every list holds 0 and 1"):
            evaluated(file, {0: "long", 1: "short"}, **options)


def test_whole_numbers_in_lists_of_several_lengths_or_of_more_classes_are_numbers_of_classes(tmp_path):
    file = write_json(tmp_path / "a.json", [[1, 0], [1]])
    assert evaluated(file, {0: "LABEL_0", 1: "LABEL_1"}) == [["LABEL_1", "LABEL_0"], ["LABEL_1"]]
    file = write_json(tmp_path / "b.json", [[1, 0], [0, 1]])
    assert evaluated(file, dict(enumerate("012"))) == [["1", "0"], ["0", "1"]]


def test_files_of_single_texts_and_of_pairs_are_refused_in_one_run(tmp_path, flags):
    train = write_csv(tmp_path / "a.csv", ["angry", "short"] * 2)
    (tmp_path / "b.csv").write_text("sentence1,sentence2,label\na film,a plot,short\n", encoding="utf-8")
    words = [*flags, "--train_file", train, "--validation_file", str(tmp_path / "b.csv"), "--do_train", "--do_eval"]
    with pytest.raises(
        ValueError, match="files have one text for each example, others two: give all of them the same"
    ):
        run_glue.main(words)


def test_predictions_are_read_back_as_they_were_written(tmp_path, flags):
    texts = ["a\rfilm", "the plot,\nthe cast"]
    lines = [json.dumps({"text": each, "label": names}) for each, names in zip(texts, SETS, strict=False)]
    content = predictions_csv(lines, ['["long"]', "[]"], ["{}", "{}"])
    (tmp_path / "b.csv").write_bytes(content.encode())
    config = AutoConfig.for_model("bert", id2label=dict(enumerate(NAMES)), problem_type="multi_label_classification")
    names = {"model_name_or_path": "m", "output_dir": "o", "do_eval": True, "validation_file": str(tmp_path / "b.csv")}
    _, data = run_glue.load_data(run_glue.GlueArguments(**names), config)
    assert data["validation"]["text"][:] == texts and data["validation"]["label"][:] == SETS[:2]


def test_flags_are_of_the_classes_by_number_in_whatever_order_the_configuration_has_them(tmp_path):
    file = write_json(tmp_path / "a.json", as_flags(SETS))
    labels = evaluated(file, {2: "LABEL_2", 0: "LABEL_0", 1: "LABEL_1"})
    assert labels == [[f"LABEL_{NAMES.index(name)}" for name in sorted(names)] for names in SETS]


def test_a_number_is_no_class_by_its_place_where_names_are_numbers_themselves(tmp_path):
    file = write_csv(tmp_path / "a.csv", ["1", "2", "3", "0"])
    names = {"model_name_or_path": "m", "output_dir": "o", "do_train": True, "train_file": file}
    with pytest.raises(ValueError, match="example 4: unknown label '0', known are 1, 2, 3: --label_names must have"):
        run_glue.load_data(run_glue.GlueArguments(**names, label_names="1,2,3"), AutoConfig.for_model("bert"))


def test_flags_for_another_number_of_classes_are_refused(tmp_path, flags):
    train = write_json(tmp_path / "a.json", as_flags(SETS))
    validation = write_json(tmp_path / "b.json", [[0.0, 1.0]])
    with pytest.raises(ValueError, match="b.json, example 1: .* list of 2 numbers, but there are 3 classes: 0, 1, 2"):
        run_glue.main([*flags, "--train_file", train, "--validation_file", validation, "--do_train", "--do_eval"])


def test_the_problem_type_decides_for_names_and_against_lists(tmp_path, flags):
    words = [*flags, "--train_file", write_csv(tmp_path / "a.csv", ["angry", "short"] * 2), "--do_train"]
    run_glue.main([*words, "--problem_type", "multi_label_classification"])
    assert AutoConfig.from_pretrained(tmp_path / "out").problem_type == "multi_label_classification"
    lists = [*flags, "--train_file", write_json(tmp_path / "a.json", SETS), "--do_train", "--overwrite_output_dir"]
    for kind in ("regression", "single_label_classification"):
        with pytest.raises(ValueError, match=f"a.json, example 1: a list of labels, .* --problem_type is {kind}"):
            run_glue.main([*lists, "--problem_type", kind])


# Scores


def test_classes_are_scored_by_accuracy_and_f1(tmp_path, flags):
    file = write_csv(tmp_path / "a.csv", ["ok", "bad", "so so", "ok"])
    words = ["--train_file", file, "--validation_file", file, "--test_file", file, "--do_train", "--do_eval"]
    results = run_glue.main([*flags, *words, "--do_predict"])
    rows = read_predictions(tmp_path / "out")
    labels, predicted = ([row[name] for row in rows] for name in ("label", "prediction"))
    assert results["eval_accuracy"] == accuracy_score(labels, predicted)
    assert results["eval_f1_macro"] == pytest.approx(f1_score(labels, predicted, average="macro", zero_division=0))


METRIC = """
import datasets
import evaluate


class Wrong(evaluate.Metric):
    def _info(self):
        value = datasets.Value("int64")
        features = datasets.Features({"predictions": value, "references": value})
        return evaluate.MetricInfo(description="", citation="", inputs_description="", features=features)

    def _compute(self, predictions, references):
        wrong = sum(one != other for one, other in zip(predictions, references))
        return {"wrong": RESULT}
"""


@pytest.fixture
def metric(tmp_path):
    """Writes a metric with this result and gives the name of its file."""

    def write(result: str) -> str:
        path = tmp_path / "wrong.py"
        path.write_text(METRIC.replace("RESULT", result), encoding="utf-8")
        return str(path)

    return write


def test_a_metric_of_ones_own_stands_beside_the_others(tmp_path, flags, metric):
    file = write_csv(tmp_path / "a.csv", ["ok", "bad", "so so", "ok"])
    words = ["--train_file", file, "--validation_file", file, "--do_train", "--do_eval"]
    results = run_glue.main([*flags, *words, "--metric_name", metric("wrong / 4")])
    assert results["eval_wrong"] == 1 - results["eval_accuracy"]
    assert next(name for name in results if name.startswith("eval_")) == "eval_accuracy"


def test_a_metric_that_has_no_number_is_left_out_of_the_results(tmp_path, flags, metric, capsys):
    file = write_csv(tmp_path / "a.csv", ["ok", "bad", "so so", "ok"])
    words = ["--train_file", file, "--validation_file", file, "--do_train", "--do_eval"]
    results = run_glue.main([*flags, *words, "--metric_name", metric("float('nan')")])
    assert "eval_wrong" not in results and "eval_accuracy" in results
    assert "{'wrong': nan} is no number, so it is left out" in capsys.readouterr().out


def test_a_metric_that_has_no_number_yet_may_choose_the_best_model(tmp_path, flags, metric):
    file = write_csv(tmp_path / "a.csv", ["ok", "bad", "so so", "ok"])
    words = [*flags, "--train_file", file, "--validation_file", file, "--do_train", "--do_eval"]
    words += ["--metric_name", metric("float('nan') if wrong else 1.0"), "--load_best_model_at_end"]
    words += ["--metric_for_best_model"]
    results = run_glue.main([*words, "wrong", "--load_best_model_at_end", "--eval_steps", "1"])
    assert results["best_update"] == 1 and "eval_wrong" not in results
    with pytest.raises(ValueError, match="--metric_for_best_model right is none of accuracy, f1_macro, wrong, loss"):
        run_glue.main([*words, "right", "--overwrite_output_dir"])


def test_a_seed_for_which_a_metric_has_no_number_is_not_the_best(tmp_path, flags, monkeypatch):
    file, values = write_csv(tmp_path / "a.csv", ["ok", "bad", "so so", "ok"]), iter([-0.5, float("nan")])

    def load(*_: object) -> SimpleNamespace:
        result = {"luck": next(values)}  # of a seed
        return SimpleNamespace(compute=lambda **_: result)

    monkeypatch.setattr(run_glue, "load_metric", load)
    words = [*flags, "--train_file", file, "--validation_file", file, "--do_train", "--do_eval", "--seeds", "2"]
    results = run_glue.main([*words, "--metric_name", "luck", "--metric_for_best_model", "luck"])
    assert results["eval_luck"] == -0.5 and "eval_luck_mean" not in results and "eval_accuracy_mean" in results


def test_a_metric_of_another_content_makes_another_run(tmp_path, flags, metric):
    file = write_csv(tmp_path / "a.csv", ["ok", "bad"] * 4)
    words = [*flags, "--train_file", file, "--validation_file", file, "--do_train", "--do_eval"]
    run_glue.main([*words, "--metric_name", metric("wrong / 8")])
    with pytest.raises(ValueError, match="metric data"):
        run_glue.main([*words, "--metric_name", metric("wrong / 4"), "--resume"])


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ("[1, 2]", "does not score these labels .* choose another"),
        ("int('x')", "does not score these labels .invalid"),
    ],
)
def test_a_metric_that_suits_no_labels_is_an_error_before_the_work(tmp_path, flags, metric, result, message):
    file = write_csv(tmp_path / "a.csv", ["ok", "bad"])
    words = ["--train_file", file, "--validation_file", file, "--do_train", "--do_eval"]
    with pytest.raises(ValueError, match=f"^--metric_name .*{message}"):
        run_glue.main([*flags, *words, "--metric_name", metric(result)])
    assert not (tmp_path / "out" / "metrics.json").exists()


@pytest.mark.parametrize("validation", [["bad", "ok"], ["bad", "so so"], ["so so", "ok"]])
def test_a_metric_that_suits_no_class_that_only_the_train_file_has_is_an_error_before_the_work(
    tmp_path, flags, metric, validation
):
    """F1 of two classes, say, is an error as soon as the model predicts a third one."""
    files = ["--train_file", write_csv(tmp_path / "a.csv", ["bad", "ok", "so so"])]
    files += ["--validation_file", write_csv(tmp_path / "b.csv", validation), "--do_train", "--do_eval"]
    name = metric("int('x') if len({*predictions, *references}) > 2 else wrong")
    args = parse_arguments(run_glue.GlueArguments, [*flags, *files, "--metric_name", name])
    with pytest.raises(ValueError, match="^--metric_name .* does not score these labels .invalid"):
        run_glue.load(args).featurize(args)


def test_a_metric_whose_name_is_reported_anyway_is_refused(tmp_path, flags, metric):
    file, path = write_csv(tmp_path / "a.csv", ["ok", "bad"]), Path(metric("1.0"))
    path.write_text(path.read_text(encoding="utf-8").replace('{"wrong"', '{"loss"'), encoding="utf-8")
    words = ["--train_file", file, "--validation_file", file, "--do_train", "--do_eval", "--metric_name", str(path)]
    with pytest.raises(ValueError, match="^--metric_name .*wrong.py gives loss, which is reported anyway: leave it"):
        run_glue.main([*flags, *words])


def test_a_metric_that_is_nowhere_is_one_error(tmp_path, flags):
    file = write_csv(tmp_path / "a.csv", ["ok", "bad"])
    words = ["--train_file", file, "--validation_file", file, "--do_train", "--do_eval"]
    with pytest.raises(ValueError, match="^--metric_name none.py cannot be loaded .*: give its file, or its name on"):
        run_glue.main([*flags, *words, "--metric_name", "none.py"])


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--do_predict", "--test_file", "a.csv"], "--metric_name x has no effect with --do_eval False"),
        (["--do_train", "--train_file", "a.csv"], "--metric_name x has no effect with --do_eval False"),
        (["--do_eval", "--task_name", "rte"], "--metric_name x has no effect with --task_name rte"),
    ],
)
def test_a_metric_without_effect_is_refused(flags, capsys, more, message):
    with pytest.raises(SystemExit):
        run_glue.main([*flags, *more, "--metric_name", "x"])
    assert message in capsys.readouterr().err


# Predictions


def test_the_columns_of_a_test_file_stay_with_their_predictions(tmp_path, flags):
    run_glue.main([*flags, "--train_file", write_csv(tmp_path / "a.csv", ["ok", "bad"] * 2), "--do_train"])
    content = 'id,when,text\n7,"12, May","a film\nof two lines"\n8,,"good ""film"""\n9,x,bad\n'
    (tmp_path / "b.csv").write_text(content, encoding="utf-8")
    words = ["--model_name_or_path", str(tmp_path / "out"), "--output_dir", str(tmp_path / "again"), "--do_predict"]
    words += ["--test_file", str(tmp_path / "b.csv"), "--max_seq_length", "32", "--max_predict_samples", "2"]
    run_glue.main(words)
    first, second = read_predictions(tmp_path / "again")
    assert list(first) == ["id", "when", "text", "prediction", "score"]
    assert (first["id"], first["when"], first["text"]) == ("7", "12, May", "a film\nof two lines")
    assert (second["id"], second["when"], second["text"]) == ("8", "", 'good "film"')
    classify = pipeline("text-classification", model=str(tmp_path / "out"))
    for row in (first, second):
        (expected,) = classify(row["text"])
        assert (row["prediction"], float(row["score"])) == (
            expected["label"],
            pytest.approx(expected["score"], abs=1e-4),
        )


def test_a_regression_has_no_score_beside_its_number(tmp_path, flags):
    run_glue.main([*flags, "--train_file", write_csv(tmp_path / "a.csv", ["1.5", "2"]), "--do_train"])
    words = ["--model_name_or_path", str(tmp_path / "out"), "--output_dir", str(tmp_path / "again"), "--do_predict"]
    run_glue.main([*words, "--test_file", write_csv(tmp_path / "b.csv", ["", ""]), "--max_seq_length", "32"])
    rows = read_predictions(tmp_path / "again")
    assert list(rows[0]) == ["text", "label", "prediction"]
    model = run_glue.AutoModelForSequenceClassification.from_pretrained(tmp_path / "out")
    tokenizer = run_glue.load_tokenizer(
        run_glue.GlueArguments(
            model_name_or_path=str(tmp_path / "out"), output_dir="o", test_file="b.csv", do_predict=True
        ).source
    )
    with torch.no_grad():
        numbers = [model(**tokenizer(row["text"], return_tensors="pt")).logits.item() for row in rows]
    assert [float(row["prediction"]) for row in rows] == pytest.approx(numbers, abs=1e-4)


def test_objects_with_other_columns_have_empty_cells():
    rows = [{"text": "a", "tags": ["x"], "n": 1}, {"text": "b", "more": None}]
    content = predictions_csv([*map(json.dumps, rows)], ["ok", "bad"], ["0.9", "0.8"])
    lines = ["text,tags,n,more,prediction,score", 'a,"[""x""]",1,,ok,0.9', "b,,,,bad,0.8", ""]
    assert content == "\r\n".join(lines)


def test_a_column_that_predictions_add_is_refused_before_the_work(tmp_path, flags):
    run_glue.main([*flags, "--train_file", write_csv(tmp_path / "a.csv", ["ok", "bad"] * 2), "--do_train"])
    test = write_csv(tmp_path / "b.csv", ["1"], "text,score")
    words = ["--model_name_or_path", str(tmp_path / "out"), "--output_dir", str(tmp_path / "again"), "--do_predict"]
    with pytest.raises(ValueError, match="b.csv:2: the column score has a name that predictions.csv adds: rename it"):
        run_glue.main([*words, "--test_file", test])


def test_a_finished_run_that_is_resumed_keeps_its_predictions(tmp_path, flags):
    train, test = write_csv(tmp_path / "a.csv", ["ok", "bad"] * 2), write_csv(tmp_path / "b.csv", [""] * 3)
    words = [*flags, "--train_file", train, "--do_train", "--save_strategy", "steps", "--save_steps", "1"]
    run_glue.main([*words, "--test_file", test, "--do_predict", "--save_outputs"])
    before = {path.name for path in (tmp_path / "out").iterdir() if path.is_file()}
    run_glue.main([*words, "--resume"])
    after = {path.name for path in (tmp_path / "out").iterdir() if path.is_file()}
    assert after == before and any(name.startswith("outputs-") for name in after)


def test_an_ensemble_of_one_class_and_of_any_number_is_refused(tmp_path, flags):
    lists, words = write_json(tmp_path / "a.json", SETS), write_csv(tmp_path / "b.csv", list(NAMES))
    test = ["--test_file", write_csv(tmp_path / "c.csv", [""] * 2), "--do_predict"]
    for name, file in (("several", lists), ("one", words)):
        out = ["--output_dir", str(tmp_path / name)]
        run_glue.main([*flags, "--train_file", file, "--do_train", *test, "--save_outputs", *out])
    ensemble = ["--ensemble", f"{tmp_path / 'one'},{tmp_path / 'several'}", "--output_dir", str(tmp_path / "mean")]
    model = ["--model_name_or_path", str(tmp_path / "one"), "--max_seq_length", "32"]
    with pytest.raises(ValueError, match="several was trained on the labels .*multi_label_classification.*, .*one on"):
        run_glue.main([*model, *test, *ensemble])
