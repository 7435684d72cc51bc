"""The nine published layouts, files of one's own, and whole runs of the script on them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from accelerate.state import AcceleratorState
from datasets import Dataset, DatasetDict
from transformers import AutoConfig, pipeline

import loading
import run_glue
from arguments import parse_arguments
from tests.conftest import ROOT
from tests.glue_sample import FOLDERS, LABELS, SIZES, text, write_model, write_task, write_vocabulary


@pytest.fixture
def flags(tmp_path) -> list[str]:
    """A run on a tiny model of random weights, for a test to add its data and its parts to."""
    model, vocabulary = write_model(tmp_path), write_vocabulary(tmp_path)
    return [
        *("--model_name_or_path", str(model), "--tokenizer_name", str(vocabulary), "--max_seq_length", "32"),
        *("--output_dir", str(tmp_path / "out"), "--max_steps", "2", "--learning_rate", "0.001"),
    ]


def read(task_name: str, data_dir: Path, *parts: str) -> tuple[run_glue.Task, DatasetDict]:
    """The data of a run with these parts."""
    args = run_glue.GlueArguments(
        model_name_or_path="m",
        output_dir="o",
        task_name=task_name,
        data_dir=str(data_dir),
        **{f"do_{part}": True for part in parts},
    )
    return run_glue.load_data(args, AutoConfig.for_model("bert"))


def rewrite(path: Path, old: str, new: str) -> None:
    content = path.read_text(encoding="utf-8")
    assert old in content
    path.write_text(content.replace(old, new, 1), encoding="utf-8")


# The published layouts


@pytest.mark.parametrize("task_name", FOLDERS)
def test_each_tasks_folder_is_read_in_its_own_layout(tmp_path, task_name):
    folder = FOLDERS[task_name]
    write_task(tmp_path, folder)
    task, data = read(task_name, tmp_path, "train", "eval", "predict")
    columns = {"text", "text_pair"} if len(task.text) == 2 else {"text"}
    sizes = {"train": SIZES["train"], "validation": SIZES["dev"], "test": SIZES["test"]}
    if task_name == "mnli":
        sizes |= {"validation_mm": SIZES["dev"] + 1, "test_mm": SIZES["test"] + 1}
    assert {split: len(rows) for split, rows in data.items()} == sizes
    for split, rows in data.items():
        assert set(rows.column_names) == columns | (set() if split.startswith("test") else {"label"})
    written = LABELS.get(folder, ["0", "1"])
    first = [float(label) if task_name == "stsb" else label for label in written]
    expected = [task.labels[int(label)] if task.labels and label in ("0", "1") else label for label in first]
    assert data["train"]["label"][: len(written)] == expected


@pytest.mark.parametrize(
    ("task_name", "columns"), [("cola", [3]), ("mrpc", [3, 4]), ("mnli", [8, 9]), ("qqp", [3, 4])]
)
def test_the_text_comes_from_the_right_columns(tmp_path, task_name, columns):
    write_task(tmp_path, FOLDERS[task_name])
    _, data = read(task_name, tmp_path, "train")
    row = data["train"][4]
    assert [row[name] for name in ("text", "text_pair") if name in row] == [text(4, column) for column in columns]


@pytest.mark.parametrize(
    ("task_name", "sizes"), [("cola", (8551, 1043, 1063)), ("sst2", (67349, 872, 1821)), ("rte", (2490, 277, 3000))]
)
def test_the_published_files_are_read_whole(task_name, sizes, data):
    _, splits = read(task_name, data / "glue", "train", "eval", "predict")
    assert tuple(len(splits[split]) for split in ("train", "validation", "test")) == sizes


def test_the_data_folder_may_be_the_tasks_own(tmp_path):
    folder = write_task(tmp_path, "RTE")
    assert read("rte", folder, "train")[1]["train"][:] == read("rte", tmp_path, "train")[1]["train"][:]


def test_the_microsoft_paraphrase_files_are_read_too(tmp_path):
    folder = write_task(tmp_path, "MRPC")
    expected = read("mrpc", tmp_path, "train")[1]["train"][:]
    (folder / "train.tsv").rename(folder / "msr_paraphrase_train.txt")
    assert read("mrpc", tmp_path, "train")[1]["train"][:] == expected


def test_words_like_null_and_quotes_stay_text(tmp_path):
    path = write_task(tmp_path, "SST-2") / "dev.tsv"
    path.write_text('sentence\tlabel\nnull\t0\nNA\t1\n"a\t1\nb" , "c"\t0\r\n', encoding="utf-8")
    assert read("sst2", tmp_path, "eval")[1]["validation"]["text"][:] == ["null", "NA", '"a', 'b" , "c"']


def test_the_broken_lines_of_qqp_are_skipped_and_counted(tmp_path, capsys):
    path = write_task(tmp_path, "QQP") / "train.tsv"
    rewrite(path, "\n3\t3", "\nbroken\tline\n3\t3")
    assert len(read("qqp", tmp_path, "train")[1]["train"]) == SIZES["train"]
    assert f"{path}: 1 of 10 lines skipped" in capsys.readouterr().out
    rewrite(path.with_name("test.tsv"), "\n3\t3", "\nbroken\tline\n3\t3")
    with pytest.raises(ValueError, match="test.tsv:5: 2 columns instead of 5"):  # a prediction would lose its place
        read("qqp", tmp_path, "predict")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("sentence2", "sentence3", "train.tsv:2: no column sentence2 among index, sentence1, sentence3, label"),
        ("\tentailment", "\tmaybe", "train.tsv:3: unknown label 'maybe', RTE has entailment, not_entailment"),
        ("\tentailment", "", "train.tsv:3: 3 columns instead of 4"),
        ("\tentailment", "\tentailment\tmore", "train.tsv:3: 5 columns instead of 4"),
    ],
)
def test_a_mistake_in_a_file_is_one_error_with_its_line(tmp_path, old, new, message):
    rewrite(write_task(tmp_path, "RTE") / "train.tsv", old, new)
    with pytest.raises(ValueError, match=message):
        read("rte", tmp_path, "train")


@pytest.mark.parametrize("score", ["high", "nan", ""])
def test_a_score_that_is_no_number_is_one_error_with_its_line(tmp_path, score):
    rewrite(write_task(tmp_path, "STS-B") / "train.tsv", "\t2.500", f"\t{score}")
    with pytest.raises(ValueError, match=f"train.tsv:3: the label '{score}' is not a number"):
        read("stsb", tmp_path, "train")


def test_a_file_in_another_encoding_is_one_error_with_its_line(tmp_path):
    path = write_task(tmp_path, "RTE") / "train.tsv"
    path.write_bytes(path.read_bytes().replace(b"\n1\t", b"\n1\t\xe9", 1))
    with pytest.raises(ValueError, match="train.tsv:3: not UTF-8"):
        read("rte", tmp_path, "train")


@pytest.mark.parametrize("content", ["", "index\tsentence1\tsentence2\tlabel\n"])
def test_a_file_without_examples_is_an_error(tmp_path, content):
    (write_task(tmp_path, "RTE") / "train.tsv").write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match="train.tsv holds no examples"):
        read("rte", tmp_path, "train")


def test_a_folder_of_another_task_is_an_error(tmp_path):
    write_task(tmp_path, "MNLI")
    with pytest.raises(FileNotFoundError, match="has no dev.tsv: --data_dir is not the folder of RTE"):
        read("rte", tmp_path / "MNLI", "eval")


def test_files_that_the_run_does_not_need_may_be_absent(tmp_path):
    folder = write_task(tmp_path, "RTE")
    for name in ("train.tsv", "test.tsv"):
        (folder / name).unlink()
    assert set(read("rte", tmp_path, "eval")[1]) == {"validation"}


# The Hub


@pytest.mark.parametrize("task_name", ["mrpc", "stsb", "mnli"])
def test_the_hubs_columns_and_class_numbers_mean_the_same(tmp_path, monkeypatch, task_name):
    write_task(tmp_path, FOLDERS[task_name])
    task, local = read(task_name, tmp_path, "train", "eval", "predict")
    hub = {}
    for split, (name, _) in (run_glue.MNLI_SPLITS if task_name == "mnli" else run_glue.SPLITS).items():
        rows = local[split]
        labels = [-1] * len(rows) if "label" not in rows.column_names else list(rows["label"])
        numbers = [task.labels.index(label) if isinstance(label, str) else label for label in labels]
        texts = dict(zip(task.text, (list(rows["text"]), list(rows["text_pair"])), strict=True))
        hub[name] = Dataset.from_dict({**texts, "label": numbers, "idx": range(len(rows))})
    asked = []
    monkeypatch.setattr(run_glue, "load_dataset", lambda *names: asked.append(names) or DatasetDict(hub))
    args = run_glue.GlueArguments(
        model_name_or_path="m", output_dir="o", task_name=task_name, do_train=True, do_eval=True, do_predict=True
    )
    _, data = run_glue.load_data(args, AutoConfig.for_model("bert"))
    assert asked == [("nyu-mll/glue", task_name)]
    assert {split: data[split][:] for split in data} == {split: local[split][:] for split in local}


def test_without_network_the_error_names_what_helps(flags, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(OSError, match="give --data_dir with the GLUE zip's folders"):
        run_glue.main([*flags, "--task_name", "rte", "--do_train"])


# Files of one's own


@pytest.fixture
def own(tmp_path):
    """Writes a csv of these labels and gives its name."""

    def write(name: str, labels: list[str], header: str = "text,label") -> str:
        path = tmp_path / name
        rows = [f"{text(i, 1)},{label}" for i, label in enumerate(labels)]
        path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
        return str(path)

    return write


def own_data(**changes) -> tuple[run_glue.Task, DatasetDict]:
    parts = {"do_train": "train_file" in changes, "do_eval": "validation_file" in changes, "do_predict": True}
    parts["do_predict"] = "test_file" in changes
    args = run_glue.GlueArguments(model_name_or_path="m", output_dir="o", **(parts | changes))
    return run_glue.load_data(args, AutoConfig.for_model("bert"))


def test_the_labels_of_ones_own_are_those_of_the_train_file_in_order(own):
    task, data = own_data(train_file=own("a.csv", ["ok", "bad", "so so"]), validation_file=own("b.csv", ["bad"]))
    assert task.labels == ("bad", "ok", "so so") and data["validation"]["label"][:] == ["bad"]
    assert own_data(train_file=own("c.csv", ["10", "9", "2"]))[0].labels == ("2", "9", "10")


def test_labels_with_decimals_make_a_regression(own):
    task, data = own_data(train_file=own("a.csv", ["1", "2.5", "-3"]))
    assert task.labels == () and data["train"]["label"][:] == [1.0, 2.5, -3.0]


def test_whole_numbers_are_the_same_classes_however_they_are_written(own):
    ids = ["10.0", "9", "12345678901234567891"]
    task, data = own_data(train_file=own("a.csv", ids), validation_file=own("b.csv", ["9.0", "10"]))
    assert task.labels == ("9", "10", "12345678901234567891")
    assert data["train"]["label"][:] == ["10", "9", ids[2]] and data["validation"]["label"][:] == ["9", "10"]


def test_the_problem_type_may_be_told(own):
    whole, decimals = own("a.csv", ["1", "5", "3"]), own("b.csv", ["1.0", "1.5"])
    task, data = own_data(train_file=whole, problem_type="regression")
    assert task.labels == () and data["train"]["label"][:] == [1.0, 5.0, 3.0]
    assert own_data(train_file=decimals, problem_type="single_label_classification")[0].labels == ("1.0", "1.5")


def test_a_validation_example_without_a_label_is_an_error(own):
    with pytest.raises(ValueError, match="b.csv:3: label is ''"):
        own_data(train_file=own("a.csv", ["ok", "bad"]), validation_file=own("b.csv", ["ok", ""]))


def test_a_long_text_and_blank_lines_and_columns_are_read(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("text,label,,\n" + "x" * 200_000 + ",1,,\n\ny,2,,\n\n", encoding="utf-8")
    assert [len(words) for words in own_data(train_file=str(path))[1]["train"]["text"]] == [200_000, 1]
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "x", "label": 1}\n\n{"text": 2, "label": 2}\n\n', encoding="utf-8")
    assert own_data(train_file=str(path))[1]["train"]["text"][:] == ["x", "2"]


def test_csv_tsv_and_json_say_the_same(tmp_path):
    texts, labels = ['a "good" film', "null"], ["yes", "no"]
    (tmp_path / "a.csv").write_text('sentence,label\n"a ""good"" film",yes\nnull,no\n', encoding="utf-8")
    (tmp_path / "a.tsv").write_text('sentence\tlabel\na "good" film\tyes\nnull\tno\n', encoding="utf-8")
    rows = [json.dumps({"sentence": words, "label": label}) for words, label in zip(texts, labels, strict=True)]
    (tmp_path / "a.jsonl").write_text("\n".join(rows), encoding="utf-8")
    for suffix in ("csv", "tsv", "jsonl"):
        data = own_data(train_file=str(tmp_path / f"a.{suffix}"))[1]["train"]
        assert data[:] == {"text": texts, "label": labels}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", "", "a.txt: a file of your own is one of .csv, .tsv, .json, .jsonl"),
        ("a.csv", "words,label\nx,y\n", "a.csv has the columns words, label: the text's must be sentence, text"),
        ("a.csv", "text,class\nx,y\n", "a.csv:2: no column label among text, class"),
        ("a.csv", "text,label\nx,y\nz\n", "a.csv:3: 1 columns instead of 2"),
        ("a.csv", 'text,label\nx,y\n"z,y\nx,y\n', "a.csv:3: not csv .*: close each quote"),
        ("a.csv", "text,label\rx,y\r", "a.csv:1: not csv .* end lines with"),
        ("a.csv", "text,text,label\nx,y,z\n", "a.csv:1: the header has text more than once"),
        ("a.tsv", "text\tlabel\tlabel\nx\ty\tz\n", "a.tsv:1: the header has label more than once"),
        ("a.csv", "text,label\nx,y\nz, \n", "a.csv:3: label is ' ', neither text nor a number"),
        ("a.json", '{"text": "x", "label": null}', "a.json:1: label is None, neither text nor a number"),
        ("a.json", '{"text": ["x", "y"], "label": 1}', r"a.json:1: text is \['x', 'y'\], neither text nor a number"),
        ("a.csv", "text,label\nx,y\nz,y\n", "a.csv: every label is 'y': add examples of another class"),
        ("a.csv", "text,label\n", "a.csv holds no examples"),
        ("a.json", '{"text": "x", "label": 1}\n[{', "a.json:2: not JSON"),
        ("a.json", "[1]", "a.json:1: not a JSON object"),
    ],
)
def test_a_mistake_in_ones_own_file_is_one_error(tmp_path, name, content, message):
    (tmp_path / name).write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        own_data(train_file=str(tmp_path / name))


def test_a_label_that_training_does_not_know_is_an_error(own):
    with pytest.raises(ValueError, match="b.csv, example 2: unknown label 'new', known are bad, ok"):
        own_data(train_file=own("a.csv", ["ok", "bad"]), validation_file=own("b.csv", ["ok", "new"]))


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ([], "either --task_name or --train_file"),
        (["--task_name", "snli"], "--task_name snli is none of cola, sst2"),
        (["--data_dir", "x", "--train_file", "y"], "--data_dir holds the data of a --task_name"),
        (["--task_name", "rte", "--train_file", "y"], "either --task_name or --train_file"),
        (["--task_name", "rte", "--problem_type", "regression"], "--problem_type says what to train"),
        (["--task_name", "rte", "--max_train_samples", "0"], "--max_train_samples must be positive, not 0"),
        (["--task_name", "rte", "--max_predict_samples", "-1"], "--max_predict_samples must be positive, not -1"),
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


def test_a_regression_is_scored_by_correlations_and_predicts_numbers(tmp_path, flags):
    write_task(tmp_path, "STS-B")
    data = ["--task_name", "stsb", "--data_dir", str(tmp_path)]
    results = run_glue.main([*flags, *data, "--do_train", "--do_eval", "--do_predict"])
    assert {"eval_pearson", "eval_spearmanr"} <= results.keys()
    rows = (tmp_path / "out" / "predictions.tsv").read_text(encoding="utf-8").splitlines()[1:]
    assert all(abs(float(row.split("\t")[1])) < 10 for row in rows)
    assert AutoConfig.from_pretrained(tmp_path / "out").problem_type == "regression"


def test_the_saved_checkpoint_scores_the_same_again_and_names_its_labels(tmp_path, flags):
    write_task(tmp_path, "QNLI")
    data = ["--task_name", "qnli", "--data_dir", str(tmp_path), "--max_seq_length", "32"]
    first = run_glue.main([*flags, *data, "--do_train", "--do_eval"])
    again = ["--model_name_or_path", str(tmp_path / "out"), "--output_dir", str(tmp_path / "again")]
    second = run_glue.main([*again, *data, "--do_eval"])
    assert second["eval_loss"] == pytest.approx(first["eval_loss"], abs=1e-6)
    assert not (tmp_path / "again" / "model.safetensors").exists()
    assert pipeline("text-classification", model=str(tmp_path / "out"))("a film .")[0]["label"] in LABELS["QNLI"]


def test_a_checkpoint_that_numbers_the_classes_otherwise_keeps_its_numbers_and_its_f1(tmp_path, flags):
    write_task(tmp_path, "MRPC")
    data = ["--task_name", "mrpc", "--data_dir", str(tmp_path), "--max_seq_length", "32"]
    first = run_glue.main([*flags, *data, "--do_train", "--do_eval"])
    folder = tmp_path / "out"
    swapped = run_glue.AutoModelForSequenceClassification.from_pretrained(
        folder, id2label={0: "equivalent", 1: "not_equivalent"}, label2id={"equivalent": 0, "not_equivalent": 1}
    )
    with torch.no_grad():
        for parameter in swapped.classifier.parameters():
            parameter.copy_(parameter.flip(0))
    swapped.save_pretrained(folder)
    again = ["--model_name_or_path", str(folder), "--output_dir", str(tmp_path / "again"), "--do_eval"]
    second = run_glue.main([*again, *data])
    for name in ("eval_accuracy", "eval_f1", "eval_loss"):
        assert second[name] == pytest.approx(first[name], abs=1e-6)


def test_a_checkpoint_of_another_task_is_not_evaluated(tmp_path, flags):
    write_task(tmp_path, "QNLI")
    write_task(tmp_path, "MNLI")
    run_glue.main([*flags, "--task_name", "mnli", "--data_dir", str(tmp_path), "--do_train"])
    again = ["--model_name_or_path", str(tmp_path / "out"), "--output_dir", str(tmp_path / "again"), "--do_eval"]
    with pytest.raises(
        ValueError, match="tells entailment, neutral, contradiction apart, but the task is entailment, "
    ):
        run_glue.main([*again, "--task_name", "qnli", "--data_dir", str(tmp_path), "--max_seq_length", "32"])


def test_files_of_ones_own_train_and_the_checkpoint_predicts_on_others(tmp_path, flags, own):
    files = ["--train_file", own("a.csv", ["ok", "bad"] * 4), "--validation_file", own("b.csv", ["bad", "ok"])]
    results = run_glue.main([*flags, *files, "--do_train", "--do_eval"])
    assert 0 <= results["eval_accuracy"] <= 1
    again = ["--model_name_or_path", str(tmp_path / "out"), "--output_dir", str(tmp_path / "again")]
    test = ["--test_file", own("c.csv", ["", "", ""]), "--max_seq_length", "32"]
    run_glue.main([*again, *test, "--do_predict"])
    rows = (tmp_path / "again" / "predictions.tsv").read_text(encoding="utf-8").splitlines()[1:]
    assert len(rows) == 3 and {row.split("\t")[1] for row in rows} <= {"ok", "bad"}


def test_a_checkpoint_without_names_for_its_classes_is_evaluated_by_their_numbers(tmp_path, flags, own):
    config = AutoConfig.from_pretrained(tmp_path)
    run_glue.AutoModelForSequenceClassification.from_config(config).save_pretrained(tmp_path / "unnamed")
    files = ["--validation_file", own("a.csv", ["1", "0", "1.0"]), "--test_file", own("b.csv", [""])]
    model = ["--model_name_or_path", str(tmp_path / "unnamed")]
    results = run_glue.main([*flags, *model, *files, "--do_eval", "--do_predict"])
    assert 0 <= results["eval_accuracy"] <= 1
    assert (tmp_path / "out" / "predictions.tsv").read_text(encoding="utf-8").split()[-1] in ("LABEL_0", "LABEL_1")


def test_sample_limits_take_the_first_examples(tmp_path, flags):
    write_task(tmp_path, "RTE")
    args = parse_arguments(
        run_glue.GlueArguments,
        [*flags, "--task_name", "rte", "--data_dir", str(tmp_path), "--do_train", "--do_eval"]
        + ["--max_train_samples", "3", "--max_eval_samples", "99"],
    )
    task, data = run_glue.load_data(args, AutoConfig.for_model("bert"))
    features = run_glue.tokenize(data, loading.load_tokenizer(args), list(task.labels), args)
    assert {split: len(rows) for split, rows in features.items()} == {"train": 3, "validation": SIZES["dev"]}
    assert features["train"]["labels"][:] == [task.labels.index(label) for label in data["train"]["label"][:3]]


def test_more_positions_than_the_model_has_are_an_error(flags, tmp_path):
    write_task(tmp_path, "RTE")
    with pytest.raises(ValueError, match="--max_seq_length 41 is more than the model's 40 positions"):
        run_glue.main(
            [*flags, "--task_name", "rte", "--data_dir", str(tmp_path), "--do_eval", "--max_seq_length", "41"]
        )


@pytest.mark.parametrize("length", ["3", "0", "-1"])
def test_a_length_without_room_for_text_is_an_error(flags, tmp_path, length):
    write_task(tmp_path, "RTE")
    data = ["--task_name", "rte", "--data_dir", str(tmp_path), "--do_eval"]
    with pytest.raises(ValueError, match=f"--max_seq_length {length} must be more than the 3 special tokens"):
        run_glue.main([*flags, *data, "--max_seq_length", length])


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
    batches = ["--max_steps", "5", "--num_train_epochs", "2", "--group_by_length", "--do_predict"]
    one = rte(*batches, "--per_device_train_batch_size", "4")
    predictions = (tmp_path / "out" / "predictions.tsv").read_text(encoding="utf-8")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "run_glue.py"]
    command += [*flags, "--task_name", "rte", "--data_dir", str(tmp_path), "--do_train", "--do_eval", *batches]
    command += ["--per_device_train_batch_size", "1", "--gradient_accumulation_steps", "2", "--overwrite_output_dir"]
    environment = os.environ | {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"}
    subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True)
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
