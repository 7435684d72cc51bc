"""What is read: the published layouts, the Hub, and files of one's own."""

import json
from pathlib import Path
from unicodedata import normalize

import pytest
from datasets import Dataset, DatasetDict
from datasets.exceptions import DatasetNotFoundError
from transformers import AutoConfig

import run_glue
from elmo_gpt_bert.tasks import glue as table
from elmo_gpt_bert.tasks.rows import read_csv, read_tsv
from tests.support.glue_sample import FOLDERS, LABELLED_TESTS, LABELS, SIZES, text, write_csv, write_task


def load(config: object = None, **changes: object) -> tuple[table.GlueTask, DatasetDict]:
    """The data of a run with these arguments."""
    args = run_glue.GlueArguments(model_name_or_path="m", output_dir="o", **changes)
    return run_glue.load_data(args, config or AutoConfig.for_model("bert"))


def read(task_name: str, data_dir: Path, *parts: str) -> tuple[table.GlueTask, DatasetDict]:
    return load(task_name=task_name, data_dir=str(data_dir), **{f"do_{part}": True for part in parts})


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
        unlabelled = split.startswith("test") and folder not in LABELLED_TESTS
        assert set(rows.column_names) == columns | (set() if unlabelled else {"label"})
    written = LABELS.get(folder, ["0", "1"])
    first = [float(label) if task_name == "stsb" else label for label in written]
    expected = [task.labels[int(label)] if task.labels and label in ("0", "1") else label for label in first]
    assert data["train"]["label"][: len(written)] == expected


@pytest.mark.parametrize(
    ("task_name", "columns"),
    [("cola", [3]), ("sst2", [0]), ("mrpc", [3, 4]), ("stsb", [7, 8]), ("qqp", [3, 4])]
    + [("mnli", [8, 9]), ("qnli", [1, 2]), ("rte", [1, 2]), ("wnli", [1, 2]), ("snli", [5, 6]), ("scitail", [0, 1])],
)
def test_the_text_comes_from_the_right_columns(tmp_path, task_name, columns):
    write_task(tmp_path, FOLDERS[task_name])
    _, data = read(task_name, tmp_path, "train")
    row = data["train"][4]
    assert [row[name] for name in ("text", "text_pair") if name in row] == [text(4, column) for column in columns]


def test_the_classes_have_the_numbers_of_the_hubs_data_set():
    assert {name: task.labels for name, task in table.TASKS.items()} == {
        "cola": ("unacceptable", "acceptable"),
        "sst2": ("negative", "positive"),
        "mrpc": ("not_equivalent", "equivalent"),
        "stsb": (),
        "qqp": ("not_duplicate", "duplicate"),
        "mnli": ("entailment", "neutral", "contradiction"),
        "qnli": ("entailment", "not_entailment"),
        "rte": ("entailment", "not_entailment"),
        "wnli": ("not_entailment", "entailment"),
        "snli": ("entailment", "neutral", "contradiction"),
        "scitail": ("entails", "neutral"),  # by name there
    }
    assert table.DIAGNOSTICS["ax"].labels == table.TASKS["mnli"].labels


@pytest.mark.parametrize(
    ("task_name", "sizes"), [("cola", (8551, 1043, 1063)), ("sst2", (67349, 872, 1821)), ("rte", (2490, 277, 3000))]
)
def test_the_published_files_are_read_whole(task_name, sizes, data):
    _, splits = read(task_name, data / "glue", "train", "eval", "predict")
    assert tuple(len(splits[split]) for split in ("train", "validation", "test")) == sizes


def test_the_data_folder_may_be_the_tasks_own(tmp_path):
    folder = write_task(tmp_path, "RTE")
    assert read("rte", folder, "train")[1]["train"][:] == read("rte", tmp_path, "train")[1]["train"][:]


def test_of_microsofts_paraphrases_the_test_pairs_are_read_but_train_and_dev_are_not_mixed(tmp_path):
    folder = write_task(tmp_path, "MRPC")
    expected = read("mrpc", tmp_path, "predict")[1]["test"][:]
    (folder / "test.tsv").rename(folder / "msr_paraphrase_test.txt")
    assert read("mrpc", tmp_path, "predict")[1]["test"][:] == expected
    (folder / "train.tsv").rename(folder / "msr_paraphrase_train.txt")
    message = "has no train.tsv: msr_paraphrase_train.txt .* from the Hub, without --data_dir"
    with pytest.raises(FileNotFoundError, match=message):
        read("mrpc", tmp_path, "train")


def test_words_like_null_and_quotes_stay_text(tmp_path):
    path = write_task(tmp_path, "SST-2") / "dev.tsv"
    path.write_text('sentence\tlabel\nnull\t0\nNA\t1\n"a\t1\nb" , "c"\t0\r\n', encoding="utf-8")
    assert read("sst2", tmp_path, "eval")[1]["validation"]["text"][:] == ["null", "NA", '"a', 'b" , "c"']


def test_the_broken_lines_of_qqp_are_skipped_and_counted(tmp_path, capsys):
    path = write_task(tmp_path, "QQP") / "train.tsv"
    rewrite(path, "\n3\t3", "\nbroken\tline\n3\t3")
    assert len(read("qqp", tmp_path, "train")[1]["train"]) == SIZES["train"]
    assert f"{path}: 1 of 10 lines skipped" in capsys.readouterr().out
    rewrite(path.with_name("test.tsv"), "\n3\t", "\nbroken\tline\n3\t")
    with pytest.raises(ValueError, match="test.tsv:5: 2 columns instead of 3"):  # a prediction would lose its place
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


@pytest.mark.parametrize(("byte", "message"), [(b"\xe9", "not UTF-8"), (b"\0", "a NUL byte: the file is not text")])
def test_bytes_that_are_no_text_are_one_error_with_their_line(tmp_path, byte, message):
    path = write_task(tmp_path, "RTE") / "train.tsv"
    path.write_bytes(path.read_bytes().replace(b"\n1\t", b"\n1\t" + byte, 1))
    with pytest.raises(ValueError, match=f"train.tsv:3: {message}"):
        read("rte", tmp_path, "train")


@pytest.mark.parametrize("content", ["", "index\tsentence1\tsentence2\tlabel\n"])
def test_a_file_without_examples_is_an_error(tmp_path, content):
    (write_task(tmp_path, "RTE") / "train.tsv").write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match="train.tsv holds no examples"):
        read("rte", tmp_path, "train")


@pytest.mark.parametrize(
    ("task_name", "folder", "message"),
    [
        ("rte", "MNLI", "has no dev.tsv: --data_dir is not the folder of RTE"),
        ("rte", "SST-2", "dev.tsv:2: no column sentence1, sentence2 among sentence, label"),
        ("cola", "SST-2", "dev.tsv:1: 2 columns instead of 4"),
        ("rte", "WNLI", "dev.tsv:2: unknown label '0', RTE has entailment, not_entailment"),
        ("wnli", "RTE", "dev.tsv:2: unknown label 'not_entailment', WNLI has 0, 1"),
        ("stsb", "RTE", "dev.tsv:2: no column score among index, sentence1, sentence2, label"),
    ],
)
def test_the_folder_of_another_task_is_an_error(tmp_path, task_name, folder, message):
    write_task(tmp_path, folder)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        read(task_name, tmp_path / folder, "eval")


def test_a_data_folder_that_does_not_exist_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match="^--data_dir .*nowhere: no such folder"):
        read("rte", tmp_path / "nowhere", "eval")


def test_files_that_the_run_does_not_need_may_be_absent(tmp_path):
    folder = write_task(tmp_path, "RTE")
    for name in ("train.tsv", "test.tsv"):
        (folder / name).unlink()
    assert set(read("rte", tmp_path, "eval")[1]) == {"validation"}


# SNLI and SciTail


def write_snli_json(folder: Path) -> None:
    """The dev file as the release has it beside the tab-separated one: an object a line."""
    header, *rows = (folder / "snli_1.0_dev.txt").read_text(encoding="utf-8").splitlines()
    objects = [dict(zip(header.split("\t"), row.split("\t"), strict=True)) for row in rows]
    lines = [json.dumps(row | {"annotator_labels": [row["label1"]]}) for row in objects]
    (folder / "snli_1.0_dev.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def test_both_kinds_of_snlis_files_say_the_same(tmp_path):
    folder = write_task(tmp_path, "SNLI")
    expected = read("snli", folder, "eval")[1]["validation"][:]
    write_snli_json(folder)
    (folder / "snli_1.0_dev.txt").unlink()
    assert read("snli", folder, "eval")[1]["validation"][:] == expected


@pytest.mark.parametrize("suffix", ["txt", "jsonl"])
def test_pairs_that_the_annotators_did_not_agree_on_are_left_out_and_counted(tmp_path, capsys, suffix):
    folder = write_task(tmp_path, "SNLI")
    whole = read("snli", folder, "eval")[1]["validation"]
    path = folder / f"snli_1.0_dev.{suffix}"
    rewrite(folder / "snli_1.0_dev.txt", "\nentailment", "\n-")
    if suffix == "jsonl":
        write_snli_json(folder)
    data = read("snli", folder, "eval")[1]["validation"]
    assert data[:] == whole.select([0, 2, 3, 4])[:]
    assert f"{path}: 1 of 5 examples left out, they have no gold label" in capsys.readouterr().out


def test_a_file_without_any_gold_label_is_an_error(tmp_path):
    path = write_task(tmp_path, "SNLI") / "snli_1.0_test.txt"
    header, row, *_ = path.read_text(encoding="utf-8").splitlines()
    path.write_text(f"{header}\n{row.replace('neutral', '-', 1)}\n", encoding="utf-8")
    with pytest.raises(ValueError, match="snli_1.0_test.txt holds no examples with a gold label"):
        read("snli", tmp_path, "predict")


def test_the_quotes_of_scitail_are_text(tmp_path):
    path = write_task(tmp_path, "SciTail") / "scitail_1.0_train.tsv"
    path.write_text('"Water is wet.\tIt is wet\tentails\nIce "floats"\tIce"\tneutral\n', encoding="utf-8")
    assert read("scitail", tmp_path, "train")[1]["train"][:] == {
        "text": ['"Water is wet.', 'Ice "floats"'],
        "text_pair": ["It is wet", 'Ice"'],
        "label": ["entails", "neutral"],
    }


@pytest.mark.parametrize(
    ("task_name", "name", "old", "new", "message"),
    [
        (
            "snli",
            "snli_1.0_train.txt",
            "\nentailment",
            "\nmaybe",
            "unknown label 'maybe', SNLI has entailment",
        ),
        ("snli", "snli_1.0_train.txt", "sentence2\t", "hypothesis\t", "no column sentence2 among gold_label, "),
        ("snli", "snli_1.0_dev.jsonl", '"sentence1": "', '"sentence1": 7, "x": "', "sentence1 is 7, not text"),
        ("snli", "snli_1.0_dev.jsonl", "{", "", "not JSON"),
        ("scitail", "scitail_1.0_train.tsv", "\tentails", "\t-", "unknown label '-', SciTail has entails, neutral"),
        ("scitail", "scitail_1.0_train.tsv", "\tentails", "\tentails\t", "4 columns instead of 3"),
    ],
)
def test_a_mistake_in_snli_or_scitail_is_one_error_with_its_line(tmp_path, task_name, name, old, new, message):
    folder = write_task(tmp_path, FOLDERS[task_name])
    if name.endswith("jsonl"):
        write_snli_json(folder)
    rewrite(folder / name, old, new)
    with pytest.raises(ValueError, match=rf"{name}:\d: {message}"):
        read(task_name, tmp_path, "train", "eval")


# The Hub


def as_on_the_hub(task: table.GlueTask, local: DatasetDict) -> DatasetDict:
    """The same examples under the Hub's names: columns, splits, labels as numbers, -1 where there is none."""
    hub = {}
    for split, rows in local.items():
        labels = list(rows["label"]) if "label" in rows.column_names else [-1] * len(rows)
        if task.hub_label == "label":
            labels = [task.labels.index(label) if isinstance(label, str) else label for label in labels]
        else:
            labels = [{"entails": "entailment"}.get(label, label) for label in labels]
        columns = {task.hub_label: labels}
        columns |= {column: list(rows[name]) for column, name in zip(task.text, table.TEXT, strict=True)}
        columns |= {column: list(rows[column]) for column in task.metric_columns.values()}
        hub[task.splits[split].hub] = Dataset.from_dict({**columns, "idx": range(len(rows))})
    return DatasetDict(hub)


@pytest.mark.parametrize(
    ("task_name", "names"),
    [(name, ("nyu-mll/glue", name)) for name in ("mrpc", "stsb", "mnli")]
    + [("snli", ("stanfordnlp/snli", "plain_text")), ("scitail", ("allenai/scitail", "snli_format"))],
)
def test_the_hubs_columns_and_class_numbers_mean_the_same(tmp_path, monkeypatch, task_name, names):
    write_task(tmp_path, FOLDERS[task_name])
    task, local = read(task_name, tmp_path, "train", "eval", "predict")
    asked = []
    hub = as_on_the_hub(task, local)
    monkeypatch.setattr("datasets.load_dataset", lambda *names, **options: asked.append((names, options)) or hub)
    _, data = load(task_name=task_name, do_train=True, do_eval=True, do_predict=True)
    assert asked == [(names, {"revision": None})]
    assert {split: data[split][:] for split in data} == {split: local[split][:] for split in local}


def test_the_hubs_pairs_without_a_gold_label_are_left_out_and_counted(monkeypatch, capsys):
    rows = {"premise": ["a", "b", "c"], "hypothesis": ["x", "y", "z"], "label": [2, -1, 0]}
    hub = DatasetDict({"validation": Dataset.from_dict(rows)})
    monkeypatch.setattr("datasets.load_dataset", lambda *names, **options: hub)
    _, data = load(task_name="snli", do_eval=True)
    assert data["validation"][:] == {
        "text": ["a", "c"],
        "text_pair": ["x", "z"],
        "label": ["contradiction", "entailment"],
    }
    assert "stanfordnlp/snli, validation: 1 of 3 examples left out, they have no gold" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("offline", "message"), [(False, "set HF_HUB_OFFLINE=1 to use only"), (True, "not in the cache: unset it")]
)
def test_without_network_the_error_names_what_helps(monkeypatch, offline, message):
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", offline)
    with pytest.raises(OSError, match=f"{message}.*, or give --data_dir with the published files"):
        load(task_name="rte", do_train=True)


def test_data_that_the_hub_refuses_need_a_token(monkeypatch):
    def refused(*_, **__):
        raise DatasetNotFoundError("'x' is a gated dataset on the Hub.\nYou must be authenticated.")

    monkeypatch.setattr("datasets.load_dataset", refused)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    with pytest.raises(
        OSError, match=r"Hub. You must be authenticated. Check .* or set HF_TOKEN, or give --data_dir "
    ):
        load(task_name="rte", do_train=True)


# Files of one's own


@pytest.fixture
def own(tmp_path):
    """Writes a csv of these labels and gives its name."""
    return lambda name, *rest: write_csv(tmp_path / name, *rest)


def own_data(config: object = None, **changes: object) -> tuple[table.GlueTask, DatasetDict]:
    files = {"do_train": "train_file", "do_eval": "validation_file", "do_predict": "test_file"}
    return load(config, **{part: file in changes for part, file in files.items()}, **changes)


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


def test_names_that_python_reads_as_the_same_number_are_different_classes(own):
    names = ["+1", "01", "1", "1e1", "02"]
    task, data = own_data(train_file=own("a.csv", [*names, "1.0"]), validation_file=own("b.csv", ["01", "1.0", "+1"]))
    assert task.labels == ("+1", "01", "1", "02", "1e1")
    assert data["train"]["label"][:] == [*names, "1"] and data["validation"]["label"][:] == ["01", "1", "+1"]
    with pytest.raises(ValueError, match="b.csv, example 1: unknown label '1', known are 01, 02"):
        own_data(train_file=own("a.csv", ["01", "02"]), validation_file=own("b.csv", ["1"]))


def test_the_problem_type_may_be_told(own):
    whole, decimals = own("a.csv", ["1", "5", "3"]), own("b.csv", ["1.0", "1.5"])
    task, data = own_data(train_file=whole, problem_type="regression")
    assert task.labels == () and data["train"]["label"][:] == [1.0, 5.0, 3.0]
    assert own_data(train_file=decimals, problem_type="single_label_classification")[0].labels == ("1.0", "1.5")
    files = {"train_file": decimals, "validation_file": own("c.csv", ["1", "1.5"])}
    assert own_data(**files, problem_type="single_label_classification")[1]["validation"]["label"][:] == ["1.0", "1.5"]


@pytest.mark.parametrize(
    ("labels", "number"),
    [(["1.5", "inf"], 2), (["1.5", "2", "1e400"], 3), (["1", "nan", "2"], 2), (["N/A", "2.5", "3.5"], 1)],
)
def test_a_label_that_keeps_a_regression_from_being_one_is_an_error(own, labels, number):
    file = own("a.csv", labels)
    message = (
        f"a.csv, example {number}: the label '{labels[number - 1]}' is not a number, as others are.* --problem_type"
    )
    with pytest.raises(ValueError, match=message):
        own_data(train_file=file)
    task, _ = own_data(train_file=file, problem_type="single_label_classification")
    assert task.labels == tuple(sorted(labels))


def test_words_that_python_takes_for_numbers_are_classes_among_words(own):
    assert own_data(train_file=own("a.csv", ["nan", "inf", "bread"]))[0].labels == ("bread", "inf", "nan")


def test_a_validation_example_without_a_label_is_an_error(own):
    with pytest.raises(ValueError, match="b.csv:3: label is empty"):
        own_data(train_file=own("a.csv", ["ok", "bad"]), validation_file=own("b.csv", ["ok", ""]))


def test_a_long_text_and_blank_lines_and_columns_are_read(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("text,label,,\n" + "x" * 200_000 + ",1,,\n\ny,2,,\n\n", encoding="utf-8")
    assert [len(words) for words in own_data(train_file=str(path))[1]["train"]["text"]] == [200_000, 1]
    path = tmp_path / "a.JSONL"
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


@pytest.mark.parametrize("suffix", ["csv", "tsv"])
def test_empty_lines_are_no_rows_however_many_columns_there_are(suffix, tmp_path):
    for header, row in (("text", "good"), ("text,label", "good,1")):
        lines = ["", header, row, "", row, "", ""]
        text = "\n".join(lines).replace(",", "\t" if suffix == "tsv" else ",")
        (tmp_path / f"a.{suffix}").write_text(text, encoding="utf-8")
        read = {"csv": read_csv, "tsv": read_tsv}[suffix]
        assert [line for line, _ in read(tmp_path / f"a.{suffix}")] == [3, 5]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "text,label\nx,é\ny,e\u0301\n", r"a.csv: the classes 'e\\u0301' and '\\xe9' are one name in"),
        (
            "a.json",
            '{"text": "x", "label": ["é", "e\u0301"]}\n{"text": "y", "label": []}',
            "a.json: the classes .* in two Unicode forms",
        ),
        ("a.txt", "", "a.txt: your own file must be one of .csv, .tsv, .json, .jsonl"),
        ("a.csv", "words,label\nx,y\n", "a.csv has the columns words, label: the texts must be in sentence, in text"),
        (
            "a.csv",
            "text,class\nx,y\n",
            "a.csv:2: no column label among text, class: .* and --label_column_name choose",
        ),
        ("a.csv", "text,label\0\nx,y\n", "a.csv:1: a NUL byte"),
        ("a.csv", "text,label\nx,y\nz\n", "a.csv:3: 1 column instead of 2"),
        ("a.tsv", 'text\tlabel\n"x\ny"\tz\n', "a.tsv:2: 1 column instead of 2: tsv has no quotes around a text"),
        ("a.tsv", 'text\tlabel\n"x"\t"y"\n"a"\t"b"\n', "a.tsv: all values stand in quotes, which tsv does not have"),
        ("a.csv", "text , label\nx,y\n", "a.csv has the columns 'text ', ' label': the texts must be in"),
        ("a.json", '[{"text": "x", "label": "y"}]', "a.json:1: not a JSON object; a file holds one object a line"),
        ("a.csv", 'text,label\nx,y\n"z,y\nx,y\n', "a.csv:3: not csv .*: close each quote"),
        ("a.csv", "text,label\rx,y\r", "a.csv:1: not csv .* end lines with"),
        ("a.csv", "text,text,label\nx,y,z\n", "a.csv:1: the header has text more than once"),
        ("a.tsv", "text\tlabel\tlabel\nx\ty\tz\n", "a.tsv:1: the header has label more than once"),
        ("a.csv", ",,text,label\n,,x,y\n,1,z,y\n", "a.csv:3: 2 columns have no name, and one holds '1': name each"),
        ("a.csv", "text,label\nx,y\nz, \n", "a.csv:3: label is empty: name the class"),
        ("a.csv", "text,label\nx,\"['joy', 'fear']\"\n", "a.csv:2: label is .*, which is no list of JSON: write "),
        ("a.csv", "text,label\nx,[0. 1.]\n", r"a.csv:2: label is '\[0. 1.\]', which is no list of JSON: write "),
        ("a.json", '{"text": "x", "label": null}', "a.json:1: label is None, neither text nor a number"),
        ("a.json", '{"text": ["x", "y"], "label": 1}', r"a.json:1: text is \['x', 'y'\], neither text nor a number"),
        ("a.csv", "text,label\nx,y\nz,y\n", "a.csv: every label is 'y': add examples of another class"),
        ("a.csv", "text,label\n", "a.csv holds no examples"),
        ("a.json", '{"text": "x", "label": 1}\n[{', "a.json:2: not JSON"),
        ("a.json", "[1]", "a.json:1: not a JSON object"),
        ("a.json", '{"text": "x", "label": NaN}', "a.json:1: not JSON .NaN is no JSON value"),
        ("a.json", '{"text": "\\ud83d", "label": 1}', r"a.json:1: .* half a surrogate pair: write both"),
        ("a.csv", '"a\nb",c\nd,e\n', r"a.csv has the columns 'a\\nb', c: the texts must be"),
        ("a.csv", ",".join(map(str, range(999))) + "\n" + "," * 998, "a.csv has the columns .{,400}$"),
        ("a.csv", "text,label\nx,1.5\nz," + "y" * 9999 + "\n", "a.csv, example 2: the label .{,400}$"),
    ],
)
def test_a_mistake_in_ones_own_file_is_one_error(tmp_path, name, content, message):
    (tmp_path / name).write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        own_data(train_file=str(tmp_path / name))


def test_a_header_of_very_many_columns_is_read_at_once(tmp_path):
    (tmp_path / "a.csv").write_text(",".join(map(str, range(100_000))) + ",7\n", encoding="utf-8")
    with pytest.raises(ValueError, match="a.csv:1: the header has 7 more than once"):
        own_data(train_file=str(tmp_path / "a.csv"))


def test_a_class_may_have_a_name_in_brackets(own):
    names = ["[don't know]", "[joy]", "[no joy]"]
    task, data = own_data(train_file=own("a.csv", names))
    assert list(task.labels) == names and data["train"]["label"][:] == names


def test_a_label_that_training_does_not_know_is_an_error(own):
    with pytest.raises(ValueError, match="b.csv, example 2: unknown label 'new', known are bad, ok"):
        own_data(train_file=own("a.csv", ["ok", "bad"]), validation_file=own("b.csv", ["ok", "new"]))


def test_columns_with_other_names_are_read_under_them(own, tmp_path):
    names = {"text_column_names": "review", "label_column_name": "sentiment"}
    files = {"train_file": own("a.csv", ["1", "0"], "review,sentiment"), "test_file": own("b.csv", [""], "review,id")}
    task, data = own_data(**files, **names)
    assert task.labels == ("0", "1") and data["train"][0] == {"text": text(0, 1), "label": "1"}
    assert data["test"].column_names == ["text", "row"]
    (tmp_path / "c.csv").write_text("label,问题,回答\n0,几点?,三点\n1,谁?,我\n", encoding="utf-8")
    task, data = own_data(train_file=str(tmp_path / "c.csv"), text_column_names="问题,回答")
    assert len(task.text) == 2 and data["train"][1] == {"text": "谁?", "text_pair": "我", "label": "1"}


@pytest.mark.parametrize(("text_columns", "missing"), [("review", "review"), ("text,reply", "reply")])
def test_a_misspelt_column_is_one_error_with_those_that_exist(own, text_columns, missing):
    with pytest.raises(ValueError, match=f"a.csv:2: no column {missing} among text, label: --text_column_names and"):
        own_data(train_file=own("a.csv", ["ok", "bad"]), text_column_names=text_columns)


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="needs the devices of Unix")
def test_a_device_which_has_no_end_is_one_error(tmp_path):
    (tmp_path / "a.csv").symlink_to("/dev/zero")
    with pytest.raises(OSError, match="cannot read .*a.csv: it is a device, not a file"):
        own_data(train_file=str(tmp_path / "a.csv"))


def test_a_file_that_cannot_be_opened_is_one_error(tmp_path):
    (tmp_path / "folder.csv").mkdir()
    for name, message in [("none.csv", "none.csv: No such file"), ("folder.csv", "folder.csv: Is a directory")]:
        with pytest.raises(OSError, match=f"cannot read .*{message}"):
            own_data(train_file=str(tmp_path / name))


def test_labels_are_the_checkpoints_where_nothing_is_trained(own):
    config = AutoConfig.for_model("bert", id2label={0: "bad", 1: "ok"})
    assert own_data(config, validation_file=own("a.csv", ["ok"]))[0].labels == ("bad", "ok")
    with pytest.raises(ValueError, match="a.csv, example 1: unknown label 'fine', known are bad, ok"):
        own_data(config, validation_file=own("a.csv", ["fine"]))
    config = AutoConfig.for_model("bert", id2label={0: "bad", 1: "déjà"})
    message = (
        r"example 1: the label 'de\\u0301ja\\u0300' looks like 'd\\xe9j\\xe0', which is known, .*: convert the files"
    )
    with pytest.raises(ValueError, match=message):
        own_data(config, validation_file=own("a.csv", [normalize("NFD", "déjà")]))
