"""Questions with choices: what each source's rows become, and what is wrong with a broken file."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from datasets import Dataset, DatasetDict

import run_swag
from elmo_gpt_bert import metrics
from elmo_gpt_bert.tasks.choices import STORIES, TASKS, read_files, read_folder, read_hub
from tests.support.choices_sample import SIZES, choices, context, right, write_csv, write_json, write_own, write_task
from tests.support.glue_sample import text


SPLITS = list(SIZES)


def lines_of(path: Path) -> list[str]:
    """The lines of a csv whose fields have no line breaks."""
    return path.read_text(encoding="utf-8").splitlines()


def read(root: Path, task_name: str) -> DatasetDict:
    return read_folder(write_task(root, task_name), TASKS[task_name], SPLITS)


# What is published


def test_swag_reads_the_first_sentence_and_the_second_with_each_ending(tmp_path):
    data = read(tmp_path, "swag")
    for split, size in SIZES.items():
        assert data[split]["context"][:] == [context(row) for row in range(size)]
        assert data[split]["choices"][:] == [[f"she {ending}" for ending in choices(row, 4)] for row in range(size)]
    assert data["train"]["label"][:] == [right(row, 4) for row in range(SIZES["train"])]
    assert set(data["train"]["label"]) == {0, 1, 2, 3} and "label" not in data["test"].column_names


def test_race_reads_article_and_question_and_tells_its_schools_apart(tmp_path):
    data = read(tmp_path, "race")
    for split, size in SIZES.items():
        numbers = [row for row in range(size) if row // 2 % 2 == 0] + [row for row in range(size) if row // 2 % 2]
        assert data[split]["context"][:] == [f"{context(row // 2 * 2)} is it {row} ?" for row in numbers]
        assert data[split]["choices"][:] == [choices(row, 4) for row in numbers]
        assert data[split]["label"][:] == [right(row, 4) for row in numbers]
        assert data[split]["part"][:] == [("middle", "high")[row // 2 % 2] for row in numbers]


def test_the_folder_of_race_may_be_given_itself(tmp_path):
    folder = write_task(tmp_path, "race")
    above, itself = (read_folder(path, TASKS["race"], ["test"])["test"] for path in (folder, folder / "RACE"))
    assert above[:] == itself[:]


def test_half_a_surrogate_pair_in_an_article_is_one_clear_error(tmp_path):
    folder = write_task(tmp_path, "race")
    path = min((folder / "RACE" / "test").rglob("*.txt"))
    path.write_text(path.read_text(encoding="utf-8").replace('"article": "', '"article": "\\ud83d'), encoding="utf-8")
    with pytest.raises(ValueError, match=f"{path.name}: .* half a surrogate pair: write both"):
        read_folder(folder, TASKS["race"], ["test"])


def test_a_single_story_is_one_clear_error(tmp_path):
    folder = write_task(tmp_path, "storycloze")
    header, story, *_ = csv.reader(lines_of(folder / STORIES))
    write_csv(folder / STORIES, header, [story])
    with pytest.raises(ValueError, match="a single story cannot be both trained on and validated on: add others"):
        read_folder(folder, TASKS["storycloze"], ["train"])


def test_story_cloze_keeps_a_fifth_of_its_stories_for_validation(tmp_path):
    data = read(tmp_path, "storycloze")
    rows = {row["context"]: row for row in [*data["train"], *data["validation"]]}
    assert len(data["train"]) == 11 and len(data["validation"]) == 3
    assert rows.keys() == {" ".join(text(row, column) for column in range(4)) for row in range(14)}
    first = rows[" ".join(text(0, column) for column in range(4))]
    assert first["choices"] == choices(0, 2) and first["label"] == right(0, 2)
    assert data["test"]["label"][:] == [right(row, 2) for row in range(SIZES["test"])]


def test_the_stories_are_divided_as_in_the_released_code(tmp_path):
    folder = write_task(tmp_path, "storycloze")
    header, (_, _, *others), *_ = csv.reader(lines_of(folder / STORIES))
    write_csv(folder / STORIES, header, [["id", f"story{number}", *others] for number in range(1871)])
    data = read_folder(folder, TASKS["storycloze"], ["train", "validation"])
    order = np.random.RandomState(3535999445).permutation(1871)  # its seed, and what scikit-learn does with it
    for split, numbers in {"validation": order[:374], "train": order[374:]}.items():
        assert [row.split()[0] for row in data[split]["context"]] == [f"story{number}" for number in numbers]


def hub_rows(task_name: str, folder: Path, split: str) -> list[dict]:
    """A published split as the Hub has it: numbers for SWAG's labels, one row a question of RACE."""
    path = folder / TASKS[task_name].files[split]
    if task_name == "swag":
        return [{**row, "label": int(row.get("label", -1))} for row in csv.DictReader(lines_of(path))]
    passages = [
        json.loads(file.read_text(encoding="utf-8"))
        for part in ("middle", "high")
        for file in sorted((path / part).iterdir())
    ]
    lists = ("questions", "options", "answers")
    return [
        {"example_id": passage["id"], "article": passage["article"], "question": q, "options": o, "answer": a}
        for passage in passages
        for q, o, a in zip(*(passage[name] for name in lists), strict=True)
    ]


@pytest.mark.parametrize(
    ("task_name", "asked"), [("swag", ("allenai/swag", "regular")), ("race", ("ehovy/race", "all"))]
)
def test_the_hubs_rows_mean_the_same_as_the_published_files(tmp_path, monkeypatch, task_name, asked):
    folder = write_task(tmp_path, task_name)
    local = read_folder(folder, TASKS[task_name], SPLITS)
    folder = folder / "RACE" if task_name == "race" else folder
    hub = {split: Dataset.from_list(hub_rows(task_name, folder, split)) for split in SPLITS}
    calls = []
    monkeypatch.setattr("datasets.load_dataset", lambda *names, **options: calls.append(names) or DatasetDict(hub))
    data = read_hub(TASKS[task_name], SPLITS)
    assert calls == [asked]
    assert {split: data[split][:] for split in SPLITS} == {split: local[split][:] for split in SPLITS}
    args = run_swag.SwagArguments(model_name_or_path="m", output_dir="o", task_name=task_name, do_eval=True)
    assert run_swag.load_data(args)["validation"][:] == local["validation"][:]


def test_codah_is_read_whole_though_some_first_sentences_are_empty(data):
    files = {split: data / "swag" / f"codah_{split}.csv" for split in ("train", "test")}
    examples = read_files(files)
    assert {split: len(rows) for split, rows in examples.items()} == {"train": 1665, "test": 555}
    assert examples["train"]["context"][:].count("") == 221
    assert all(len(row) == 4 for row in examples["train"]["choices"]) and set(examples["test"]["label"]) == {
        0,
        1,
        2,
        3,
    }


def test_real_rows_of_swag_are_read(data):
    rows = read_files({"validation": data / "swag" / "swag_sample.csv"})["validation"]
    assert len(rows) == 11 and rows[0]["label"] == 2
    assert rows[0]["context"] == "Students lower their eyes nervously."
    assert rows[0]["choices"][1] == "She turns with two students."


# Files of one's own


def test_csv_and_json_of_the_same_choices_are_the_same_data(tmp_path):
    rows = [{"context": context(row), "choices": choices(row, 3), "label": right(row, 3)} for row in range(6)]
    files = [write_own(tmp_path / "a.csv", range(6)), write_json(tmp_path / "a.jsonl", rows)]
    for name, write in {"b.json": str, "c.json": float, "d.json": "{}.0".format}.items():  # as pandas does: 1.0
        files.append(write_json(tmp_path / name, [{**row, "label": write(row["label"])} for row in rows]))
    read = [read_files({"train": file})["train"][:] for file in files]
    assert all(each == read[0] for each in read) and read[0]["label"] == [right(row, 3) for row in range(6)]


def test_a_question_follows_its_context(tmp_path):
    row = {"context": "a film .", "question": "is it good ?", "choices": ["no", 1], "label": 0}
    (example,) = read_files({"train": write_json(tmp_path / "a.json", [row])})["train"]
    assert example == {"context": "a film . is it good ?", "choices": ["no", "1"], "part": "", "label": 0}


@pytest.mark.parametrize("task_name", TASKS)
def test_the_columns_of_a_task_are_known_in_files_of_ones_own(tmp_path, task_name):
    folder = write_task(tmp_path, task_name)
    expected = read_folder(folder, TASKS[task_name], ["test"])["test"]
    file = folder / TASKS[task_name].files["test"]
    if task_name == "race":
        file = write_json(tmp_path / "race.json", hub_rows("race", folder / "RACE", "test"))
    assert read_files({"test": file})["test"][:] == expected[:]


@pytest.mark.parametrize("label", ["", "-1", "-1.0"])
def test_a_test_file_may_leave_its_labels_empty(tmp_path, label):
    file = write_csv(tmp_path / "a.csv", ["context", "choice0", "choice1", "label"], [["a", "b", "c", label]] * 2)
    assert "label" not in read_files({"test": file})["test"].column_names
    with pytest.raises(ValueError, match=f"a.csv:2: the label '{label.removesuffix('.0')}' is none of 0, 1"):
        read_files({"validation": file})


HEADER = "context,choice0,choice1,label\n"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", HEADER + "a,b,c,0\na,b,c,2\n", "a.csv:3: the label '2' is none of 0, 1, the labels of the choices"),
        ("a.csv", HEADER + "a,b,c,yes\n", "a.csv:2: the label 'yes' is none of 0, 1"),
        ("a.csv", HEADER + "a,b,c,A.0\n", "a.csv:2: the label 'A.0' is none of 0, 1"),
        ("a.csv", HEADER + "a,,c,0\n", "a.csv:2: choice0 is empty: give it a text, or leave the example out"),
        ("a.csv", HEADER + " ,b,c,0\n", "a.csv:2: context is empty"),
        ("a.csv", HEADER + "a,b,c\n", "a.csv:2: 3 columns instead of 4"),
        ("a.csv", HEADER, "a.csv holds no examples"),
        ("a.csv", "context,choice0,choice1\na,b,c\n", "a.csv:2: no column label among context, choice0, choice1"),
        ("a.csv", "context,choice0,label\na,b,0\n", "a.csv:2: an example must have at least two choices, not 1"),
        ("a.csv", "context,choice0,choice2,label\na,b,c,0\n", "the columns are context, choice0, choice2, label, but"),
        ("a.csv", "context,label\na,0\n", "a.csv:2: the columns are context, label, but should be label, context, "),
        ("a.csv", "text,choice0,choice1,label\na,b,c,0\n", "the columns are text, choice0, choice1, label, but"),
        ("a.csv", "context,choices,label\na,b,0\n", "choices is 'b', not a list; csv has choice0, choice1, ..."),
        ("a.csv", "context,choice0,choice0,label\na,b,c,0\n", "a.csv:1: the header has choice0 more than once"),
        ("a.json", '{"context": "a", "choices": ["b", "c"]', "a.json:1: not JSON"),
        (
            "a.json",
            '{"context": "a", "choices": ["b"], "label": 0}',
            "a.json:1: an example must have at least two",
        ),
        (
            "a.json",
            '{"context": "a", "choices": ["b", null], "label": 0}',
            "choice 1 of choices is None, neither text",
        ),
        ("a.json", '{"context": "a", "choices": ["b", ""], "label": 0}', "a.json:1: choice 1 of choices is empty"),
        ("a.json", '{"context": true, "choices": ["b", "c"], "label": 0}', "context is True, neither text nor a num"),
        ("a.json", '{"context": "a", "choices": ["b", "c"], "label": true}', "the label 'True' is none of 0, 1"),
        ("a.txt", "", "a.txt: your own file must be one of .csv, .json, .jsonl"),
        ("a.csv", '"a\nb",c\nd,e\n', "the columns are 'a\\nb', c, but"),
        ("a.json", '{"context": "a", "choices": "%s", "label": 0}' % ("b" * 9999), "choices is 'bbb"),
        ("a.json", '{"context": "a", "choices": ["b", "c"], "label": "%s"}' % ("d" * 9999), "the label 'ddd"),
    ],
)
def test_a_broken_file_of_ones_own_is_one_clear_error(tmp_path, name, content, message):
    (tmp_path / name).write_text(content, encoding="utf-8")
    with pytest.raises(ValueError) as error:
        read_files({"train": str(tmp_path / name)})
    assert message in str(error.value) and "\n" not in str(error.value) and len(str(error.value)) < 999


@pytest.mark.parametrize("other", ["article", "sent1", "InputSentence1"])
def test_questions_about_one_context_stay_together_whatever_else_a_row_holds(tmp_path, other):
    rows = [{"context": str(n // 2), "choices": choices(0, 2), "label": 0, other: str(n % 3)} for n in range(40)]
    (tmp_path / "a.json").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    data = read_files(dict.fromkeys(("train", "validation"), str(tmp_path / "a.json")), held_out=50.0)
    parts = [{*map(str, data[split]["context"])} for split in ("train", "validation")]
    assert all(parts) and not parts[0] & parts[1] and data["train"].num_rows == 2 * len(parts[0])


def test_columns_that_are_wrong_are_named_with_their_row_where_a_part_is_held_out_too(tmp_path):
    (tmp_path / "a.csv").write_text("text,choice0,choice1,label\n" + "a,b,c,0\n" * 9, encoding="utf-8")
    with pytest.raises(ValueError, match="a.csv:2: the columns are text, choice0, choice1, label, but should be"):
        read_files({"train": str(tmp_path / "a.csv")}, held_out=20.0)


def test_examples_with_other_numbers_of_choices_do_not_share_a_file(tmp_path):
    rows = [{"context": "a", "choices": choices(0, number), "label": 0} for number in (3, 3, 2)]
    with pytest.raises(ValueError, match="a.json:3: 2 choices, but the first example has 3: put examples with anoth"):
        read_files({"train": write_json(tmp_path / "a.json", rows)})


def test_labels_for_some_examples_only_are_an_error(tmp_path):
    rows = [{"context": "a", "choices": ["b", "c"], **label} for label in ({"label": 0}, {}, {"label": None})]
    with pytest.raises(ValueError, match="a.json has no label for 2 of 3 examples: give all of them, or none"):
        read_files({"test": write_json(tmp_path / "a.json", rows)})


def test_a_split_without_a_file_names_the_flag(tmp_path):
    with pytest.raises(ValueError, match="this run needs --validation_file"):
        read_files({"validation": None})


# Broken folders


def test_a_folder_that_is_not_the_tasks_is_an_error_that_names_it(tmp_path):
    with pytest.raises(FileNotFoundError, match="^--data_dir .*nowhere: no such folder"):
        read_folder(tmp_path / "nowhere", TASKS["swag"], SPLITS)
    for task_name, file in {"swag": "train.csv", "race": "train", "storycloze": STORIES}.items():
        with pytest.raises(FileNotFoundError, match=f"has no {file}: --data_dir is not the folder of"):
            read_folder(tmp_path, TASKS[task_name], SPLITS)


def test_a_folder_of_race_without_files_is_an_error(tmp_path):
    folder = write_task(tmp_path, "race")
    for file in (folder / "RACE" / "dev" / "high").iterdir():
        file.unlink()
    with pytest.raises(FileNotFoundError, match="dev/high holds no .txt files: --data_dir is not the folder of RACE"):
        read_folder(folder, TASKS["race"], SPLITS)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "0.txt: not JSON"),
        ("[]", "0.txt: a file of RACE is one object with article"),
        (
            '{"article": "a", "questions": ["b"], "options": [], "answers": ["A"]}',
            "equal length, the lists questions",
        ),
        (
            '{"article": "a", "questions": ["b"], "options": [["c", "d"]], "answers": ["C"]}',
            "'C' is none of A, B, th",
        ),
        ('{"article": "a", "questions": ["b"], "options": [["c"]], "answers": ["A"]}', "question 1: an example must"),
        ('{"article": "a", "questions": ["b"], "options": ["c"], "answers": ["A"]}', "options is 'c', not a list"),
        ("\xff", "0.txt:1: not UTF-8"),
        ("[" * 200_000, "nested too deeply"),
        ('{"article": "a", "article": "b", "questions": [], "options": [], "answers": []}', "name 'article' 2 times"),
    ],
)
def test_a_broken_passage_of_race_is_one_clear_error(tmp_path, content, message):
    folder = write_task(tmp_path, "race")
    (folder / "RACE" / "train" / "middle" / "0.txt").write_bytes(content.encode("latin-1"))
    with pytest.raises(ValueError) as error:
        read_folder(folder, TASKS["race"], SPLITS)
    assert message in str(error.value) and "middle/0.txt" in str(error.value)


def test_a_published_file_that_lacks_a_column_is_an_error(tmp_path):
    folder = write_task(tmp_path, "swag")
    write_csv(folder / "val.csv", ["sent1", "sent2", "ending0", "ending1", "ending2", "label"], [["a"] * 6])
    with pytest.raises(ValueError, match=r"val.csv:2: no column ending3 among sent1, sent2, ending0"):
        read_folder(folder, TASKS["swag"], SPLITS)


# Scores


def test_accuracy_counts_right_choices_in_all_and_in_each_part():
    inputs = {"predictions": [0, 1, 2, 3, 0], "references": [0, 1, 0, 3, 1], "parts": ["a", "b", "a", "b", "b"]}
    scores = metrics.load("choices").compute(**inputs)
    assert scores == pytest.approx({"accuracy": 3 / 5, "accuracy_a": 1 / 2, "accuracy_b": 2 / 3})
    assert metrics.load("choices").compute(**inputs | {"parts": [""] * 5}) == {"accuracy": 3 / 5}
