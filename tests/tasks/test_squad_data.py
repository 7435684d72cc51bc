"""Questions about contexts: what each source's rows become, and what is wrong with a broken file."""

import gc
import json
from pathlib import Path

import pytest
from datasets import Dataset, DatasetDict

from elmo_gpt_bert.tasks.squad.data import FEATURES, read_files, read_folder, read_hub
from tests.support.choices_sample import write_json
from tests.support.squad_sample import SENTENCES, make_articles, rows_of, write_folder, write_squad


SPLITS = ["train", "validation"]
VERSIONS = {"1.1": False, "2.0": True}


def article(context: str, *questions: dict) -> list[dict]:
    """The data of one context."""
    return [{"title": "a", "paragraphs": [{"context": context, "qas": list(questions)}]}]


def question(text: str = "film", start: object = 4, **changes: object) -> dict:
    """One on "the film is good"; None leaves a field out."""
    whole = {"id": "q1", "question": "what ?", "answers": [{"text": text, "answer_start": start}], **changes}
    return {name: value for name, value in whole.items() if value is not None}


def read_one(path: Path, data: list[dict], split: str = "train", version_2: bool = False) -> Dataset:
    return read_files({split: write_squad(path / "a.json", articles=data)}, version_2)[split]


def error_of(path: Path, *given: object, **options: object) -> str:
    with pytest.raises(ValueError) as error:
        read_one(path, *given, **options)
    message = str(error.value)
    assert "a.json" in message and "\n" not in message and len(message) < 700
    return message


# What is published


@pytest.mark.parametrize("version", VERSIONS)
def test_the_published_files_become_one_row_a_question(tmp_path, version):
    data = read_folder(write_folder(tmp_path, version), SPLITS, VERSIONS[version])
    expected = {
        "train": rows_of(make_articles(version)),
        "validation": rows_of(make_articles(version, SENTENCES["dev"], answers=3, first=100)),
    }
    assert {split: data[split].to_list() for split in SPLITS} == expected
    assert all(data[split].features == FEATURES for split in SPLITS)
    assert {len(row["answers"]["text"]) for row in data["validation"]} == ({0, 3} if VERSIONS[version] else {3})


@pytest.mark.parametrize("version", VERSIONS)
def test_the_hubs_rows_mean_the_same_as_the_published_files(tmp_path, monkeypatch, version):
    local = read_folder(write_folder(tmp_path, version), SPLITS, VERSIONS[version])
    hub, calls = {}, []
    for split, name in zip(SPLITS, ("train", "dev"), strict=True):
        official = json.loads((tmp_path / f"{name}-v{version}.json").read_text(encoding="utf-8"))
        hub[split] = Dataset.from_list(rows_of(official["data"]))
    monkeypatch.setattr("datasets.load_dataset", lambda name, *_, **options: calls.append(name) or DatasetDict(hub))
    data = read_hub("rajpurkar/squad", SPLITS, VERSIONS[version])
    assert calls == ["rajpurkar/squad"]
    assert {split: data[split][:] for split in SPLITS} == {split: local[split][:] for split in SPLITS}
    with pytest.raises(ValueError, match="rajpurkar/squad has no test split, but train, validation: give --test_file"):
        read_hub("rajpurkar/squad", ["test"], VERSIONS[version])


def test_the_dev_set_of_squad_is_read_as_it_stands(data):
    examples = read_folder(data / "squad", ["validation"], version_2=False)["validation"]
    official = json.loads((data / "squad" / "dev-v1.1.json").read_text(encoding="utf-8"))
    assert len(examples) == 10570 and examples.to_list() == rows_of(official["data"])


@pytest.mark.slow
def test_the_training_set_of_squad_is_read_whole(data):
    assert len(read_folder(data / "squad", ["train"], version_2=False)["train"]) == 87599


# Files


def test_lines_with_the_hubs_columns_are_the_same_data_as_the_official_layout(tmp_path):
    articles = make_articles("2.0", answers=2)
    official = read_files({"train": write_squad(tmp_path / "a.json", "2.0", articles)}, True)["train"]
    lines = read_files({"train": write_json(tmp_path / "a.jsonl", rows_of(articles))}, True)["train"]
    assert official[:] == lines[:] and official.features == lines.features


def test_a_file_of_1_1_may_be_read_as_2_0(tmp_path):
    file = write_squad(tmp_path / "a.json")
    assert read_files({"train": file}, True)["train"][:] == read_files({"train": file}, False)["train"][:]


def test_a_byte_order_mark_and_a_title_that_is_missing_are_no_mistake(tmp_path):
    (plain,) = article("the film is good", question())
    del plain["title"]
    (tmp_path / "a.json").write_text("\ufeff" + json.dumps({"data": [plain]}), encoding="utf-8")
    (row,) = read_files({"train": str(tmp_path / "a.json")}, False)["train"]
    assert row["title"] == "" and row["context"] == "the film is good"


def test_plausible_answers_are_none(tmp_path):
    data = make_articles("2.0", (2,))
    assert data[0]["paragraphs"][0]["qas"][-1]["plausible_answers"]
    assert read_one(tmp_path, data, version_2=True)[-1]["answers"] == {"text": [], "answer_start": []}


NO_ANSWERS = {
    "none": None,
    "an empty list": [],
    "an empty text": [{"text": "", "answer_start": 0}],
    "blank texts": [{"text": " ", "answer_start": -1}, {"text": "", "answer_start": None}],
    "bare texts": ["", ""],
    "columns of empty texts": {"text": [""], "answer_start": [0]},
    "columns of one empty text": {"text": "", "answer_start": 0},
}


@pytest.mark.parametrize("answers", NO_ANSWERS.values(), ids=NO_ANSWERS)
def test_a_test_file_may_come_without_any_answers(tmp_path, answers):
    data = article("the film is good", question(answers=answers), question(id="q2", answers=answers))
    assert read_one(tmp_path, data, "test").column_names == ["id", "title", "context", "question"]
    assert "q1" in error_of(tmp_path, data, "validation")
    some = [*data, *article("the film is good", question(id="q3"))]
    assert "a.json has no answers to 2 of 3 questions: give answers to all, or to none" in error_of(
        tmp_path, some, "test"
    )


def test_in_2_0_no_answers_and_unknown_answers_are_two_things(tmp_path):
    impossible, known = question(answers=[], is_impossible=True), question(id="q2")
    rows = read_one(tmp_path, article("the film is good", impossible, known), "test", version_2=True)
    assert [row["text"] for row in rows["answers"]] == [[], ["film"]]
    unknown = question(id="q3", answers=None)
    message = error_of(tmp_path, article("the film is good", impossible, unknown), "test", version_2=True)
    assert "no answers to 1 of 2 questions" in message and message.endswith('need "is_impossible": true')


@pytest.mark.parametrize("answers", NO_ANSWERS.values(), ids=NO_ANSWERS)
@pytest.mark.parametrize("mark", [None, False])
def test_a_test_file_of_2_0_that_marks_no_question_as_impossible_has_no_labels(tmp_path, answers, mark):
    """Predicting nothing would be right for all of them."""
    questions = [question(id=name, answers=answers, is_impossible=mark) for name in ("q1", "q2")]
    data = article("the film is good", *questions)
    assert read_one(tmp_path, data, "test", version_2=True).column_names == ["id", "title", "context", "question"]


@pytest.mark.parametrize("answers", NO_ANSWERS.values(), ids=NO_ANSWERS)
def test_a_test_file_of_2_0_whose_questions_are_all_marked_as_impossible_is_labelled(tmp_path, answers):
    data = article("the film is good", question(answers=answers, is_impossible=True))
    (row,) = read_one(tmp_path, data, "test", version_2=True)
    assert row["answers"] == {"text": [], "answer_start": []}


def test_among_answers_an_empty_list_says_that_there_is_none_as_on_the_hub(tmp_path):
    """Whose columns have no is_impossible; but an empty text beside other answers says nothing."""
    rows = [question(), question(id="q2", answers={"text": [], "answer_start": []})]
    for row in rows:
        row["context"] = "the film is good"
    read = read_files({"test": write_json(tmp_path / "a.jsonl", rows)}, True)["test"]
    assert [row["text"] for row in read["answers"]] == [["film"], []]
    data = article("the film is good", question(), question(id="q2", answers=[{"text": "", "answer_start": 0}]))
    assert "no answers to 1 of 2 questions" in error_of(tmp_path, data, "test", version_2=True)


@pytest.mark.parametrize("split", SPLITS)
def test_data_to_learn_or_score_that_mark_no_question_as_impossible_have_answers(tmp_path, split):
    data = article("the film is good", *(question(id=name, answers=[]) for name in ("q1", "q2")))
    message = error_of(tmp_path, data, split, version_2=True)
    assert message.endswith(
        "a.json: no question that was read has an answer, and 2 are not marked as impossible, the first is 'q1': "
        'give answers or, if there are none, "is_impossible": true'
    )
    marked = article("the film is good", question(answers=[], is_impossible=True))
    assert len(read_one(tmp_path, marked, split, version_2=True)) == 1


def test_an_empty_text_beside_an_answer_is_a_mistake_in_a_test_file_too(tmp_path):
    answers = [{"text": "film", "answer_start": 4}, {"text": "", "answer_start": 0}]
    message = error_of(tmp_path, article("the film is good", question(answers=answers)), "test")
    assert "an answer's text is empty ('')" in message


# The first questions only


@pytest.mark.parametrize("enabled", [False, True])
def test_the_collector_of_cycles_is_afterwards_as_it_was_also_where_a_file_is_broken(tmp_path, enabled):
    file = write_json(tmp_path / "a.jsonl", [*rows_of(make_articles("1.1")), {"question": "Who?"}])
    was_enabled = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        with pytest.raises(ValueError, match="no context"):
            read_files({"train": file}, False)
        assert gc.isenabled() == enabled
    finally:
        (gc.enable if was_enabled else gc.disable)()


ODD = [
    ("combining marks", "le cafe\u0301 n'e\u0301tait pas ouvert", "cafe\u0301"),
    ("emoji beyond the first plane", "😀👩\u200d👩\u200d👧 the 🎬 is good", "🎬 is"),
    ("right to left", "הסרט \u200fטוב מאוד וגם الفيلم جيد", "الفيلم"),
    ("not normalised", "Å is \u212b is A\u030a", "\u212b"),
    ("odd spaces", " \u00a0the\u2028film\u3000is good", "film\u3000is"),
    ("1 MB", "the plot is dull . " * 55_000 + "the film is good", "film"),
]


@pytest.mark.parametrize(("context", "answer"), [case[1:] for case in ODD], ids=[case[0] for case in ODD])
def test_odd_text_stays_as_it_is(tmp_path, context, answer):
    (row,) = read_one(tmp_path, article(context, question(answer, context.index(answer))))
    assert row["context"] == context and row["answers"] == {"text": [answer], "answer_start": [context.index(answer)]}


# What annotation tools write


@pytest.mark.parametrize("placeholder", ['[{"text": "", "answer_start": -1}]', '[{"text": " ", "answer_start": 0}]'])
@pytest.mark.parametrize("split", [*SPLITS, "test"])
def test_an_empty_answer_of_a_question_that_is_marked_as_impossible_is_none(tmp_path, split, placeholder):
    marked = question(answers=json.loads(placeholder), is_impossible=True)
    data = article("the film is good", marked, question(id="q2"))
    rows = read_one(tmp_path, data, split, version_2=True)
    assert rows["answers"][:] == [{"text": [], "answer_start": []}, {"text": ["film"], "answer_start": [4]}]


def test_numbers_are_ids_and_questions_without_an_id_are_numbered(tmp_path):
    questions = [question(id=17), question(id=None), question(id="q1"), question(id=None)]
    assert read_one(tmp_path, article("the film is good", *questions), "test")["id"][:] == ["17", "2", "q1", "4"]
    message = error_of(tmp_path, article("the film is good", question(id=2), question(id=None)), "test")
    assert "question 2: its id '2' is also that of " in message


def test_a_question_without_an_id_has_its_number_in_the_file_also_where_a_part_is_held_out(tmp_path):
    texts = [f"the film is good in {number}" for number in range(12)]
    data = [part for text in texts for part in article(text, question(id=None))]
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"data": data}), encoding="utf-8")
    parts = read_files({"train": str(path), "validation": str(path)}, False, held_out=40)
    for rows in parts.values():
        assert 0 < len(rows) < len(texts)
        assert rows["id"][:] == [str(texts.index(context) + 1) for context in rows["context"]]


@pytest.mark.parametrize("part", ["articles", "paragraphs", "questions"])
def test_a_list_of_articles_of_paragraphs_or_of_questions_is_read(tmp_path, part):
    articles = article("the film is good", question(), question(id="q2"))
    paragraphs = articles[0]["paragraphs"]
    questions = [{"context": "the film is good"} | each for each in paragraphs[0]["qas"]]
    content = {"articles": articles, "paragraphs": paragraphs, "questions": questions}[part]
    file = tmp_path / "list.json"
    file.write_text(json.dumps(content), encoding="utf-8")
    rows = read_files({"train": str(file)}, False)["train"].remove_columns("title")
    assert rows.to_list() == read_one(tmp_path, articles).remove_columns("title").to_list()


# Mistakes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"id": 5.5}, "article 1, paragraph 1, question 1: id is 5.5, not text"),
        ({"id": True}, "article 1, paragraph 1, question 1: id is True, not text"),
        ({"question": None}, "question 1, id 'q1': no question among "),
        ({"question": " "}, "question 1, id 'q1': question is empty (' '): give it a text, or leave the question out"),
        ({"question": ["what ?"]}, "id 'q1': question is ['what ?'], not text"),
        ({"answers": None}, "question 1, id 'q1': no answers among title, context, id, question"),
        ({"answers": "film"}, "id 'q1': answers is 'film', neither a list of objects with text and answer_start nor"),
        ({"answers": ""}, "id 'q1': answers is '', neither a list"),
        ({"answers": ["film"]}, "answers is ['film'], neither a list of objects"),
        (
            {"answers": [{"text": "film"}]},
            "answers is [{'text': 'film'}], neither a list of objects with text and ans",
        ),
        ({"answers": {"text": ["film"], "answer_start": []}}, "two lists of these names and equal lengths"),
        ({"answers": {"text": "f", "answer_start": [4]}}, "two lists of these names and equal lengths"),
        ({"text": ""}, "id 'q1': an answer's text is empty ('')"),
        ({"text": 5}, "id 'q1': an answer's text is 5, not text"),
        ({"start": "4"}, "id 'q1': answer_start of 'film' is '4', not an integer"),
        ({"start": 4.0}, "answer_start of 'film' is 4.0, not an integer"),
        ({"start": True}, "answer_start of 'film' is True, not an integer"),
        (
            {"start": 5},
            "id 'q1': 'film' is not at its answer_start, 5, in characters from 0: correct it, or",
        ),
        ({"start": -1}, "'film' is not at its answer_start, -1, in characters from 0"),
        ({"start": -12}, "'film' is not at its answer_start, -12"),  # where it is, counted from the end
        ({"start": 16}, "'film' is not at its answer_start, 16"),
        ({"start": 10**30}, "'film' is not at its answer_start, 1000"),
        ({"text": "plot"}, "'plot' is not at its answer_start, 4"),
        ({"text": "m " * 10**6}, "id 'q1': 'm m m"),
        ({"answers": []}, "id 'q1': there is no answer: to read SQuAD 2.0, add --version_2_with_negative"),
        (
            {"answers": [], "is_impossible": True},
            "is_impossible is true: to read SQuAD 2.0, add --version_2_with_negative",
        ),
        ({"is_impossible": True}, "is_impossible is true, but there is the answer 'film'"),
        ({"is_impossible": 1}, "is_impossible is 1, neither true nor false"),
    ],
)
def test_a_broken_question_is_one_clear_error(tmp_path, changes, message):
    content = json.dumps({"data": article("the film is good", question(**changes))})
    (tmp_path / "a.json").write_text(content, encoding="utf-8")
    with pytest.raises(ValueError) as error:
        read_files({"train": str(tmp_path / "a.json")}, False)
    assert message in str(error.value) and "a.json, article 1, paragraph 1, question 1" in str(error.value)
    assert "\n" not in str(error.value) and len(str(error.value)) < 500


@pytest.mark.parametrize("changes", [{"text": "\ud83d", "start": 0}, {"question": "\udc00 ?"}])
def test_half_a_surrogate_pair_is_one_clear_error(tmp_path, changes):
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"data": article("the film is good", question(**changes))}), encoding="utf-8")
    with pytest.raises(
        ValueError, match=rf"^{path}: .* is half a surrogate pair: write both halves, or the character$"
    ):
        read_files({"train": str(path)}, False)


@pytest.mark.parametrize("context", ["", " \n\u00a0"])
def test_an_empty_context_is_an_error(tmp_path, context):
    message = error_of(tmp_path, article(context, question()))
    assert f"question 1, id 'q1': context is empty ({context!r})" in message


def test_a_context_that_is_missing_is_an_error(tmp_path):
    data = article("the film is good", question())
    del data[0]["paragraphs"][0]["context"]
    assert "article 1, paragraph 1, question 1, id 'q1': no context among title, id, question, answers" in error_of(
        tmp_path, data
    )


def test_of_misplaced_answers_the_first_one_is_named(tmp_path):
    data = article("the film is the film", *(question(start=start, id=f"q{start}") for start in (4, 5, 6, 16)))
    message = error_of(tmp_path, data)
    assert "question 2, id 'q5': 'film' is not at its answer_start, 5, in characters from 0" in message
    assert message.endswith(": correct it, or add --locate_answers to look for such answers")


def test_places_that_count_bytes_are_an_error(tmp_path):
    context = "the \N{CLAPPER BOARD} film"
    start = len(context[: context.index("film")].encode())
    assert f"is not at its answer_start, {start}" in error_of(tmp_path, article(context, question(start=start)))


def test_an_id_that_occurs_twice_in_one_split_is_an_error_where_predictions_are_kept_by_it(tmp_path):
    data = article("the film is good", question())
    file = write_squad(tmp_path / "b.json", articles=data)
    assert len(read_files({"train": file, "validation": file}, False)) == 2
    for split in ("validation", "test"):
        message = error_of(tmp_path, [*data, *data], split)
        assert "article 2, paragraph 1, question 1: its id 'q1' is also that of " in message
        assert message.endswith("a.json, article 1, paragraph 1, question 1: give it another id")


def test_ids_may_occur_twice_in_training_data_as_in_sets_joined_to_one(tmp_path):
    data = [*article("the film is good", question()), *article("a dull film", question(start=7))]
    rows = read_one(tmp_path, data)
    assert rows["id"][:] == ["q1", "q1"] and [row["answer_start"] for row in rows["answers"]] == [[4], [7]]


def test_an_answer_that_is_not_impossible_must_be_there_in_2_0(tmp_path):
    data = article("the film is good", question(answers=[], is_impossible=False))
    assert "is_impossible is false, but there is no answer" in error_of(tmp_path, data, version_2=True)


def test_2_0_read_as_1_1_names_the_parameter(tmp_path):
    message = error_of(tmp_path, make_articles("2.0"))
    assert "article 1, paragraph 1, question 2, id '0-none': is_impossible is true: to read SQuAD 2.0" in message


LAYOUT = "the official layout is one object with data, a list of articles with paragraphs"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", "", "a.json: not JSON"),
        ("a.json", '{"data": [', "a.json: not JSON"),
        ("a.json", '{"id": "1"}\n{"id": "2"}\n', "a file with one object a line is called .jsonl"),
        ("a.json", '{"data": [' + "9" * 5000 + "]}", "a.json: not JSON (Exceeds the limit"),
        pytest.param("a.json", "[" * 10**6, "a.json: not JSON (nested too deeply)", id="deep lists"),
        pytest.param("a.json", '{"a":' * 10**6, "a.json: not JSON (nested too deeply)", id="deep objects"),
        ("a.json", '{"data": [], "data": [1]}', "a.json: not JSON (an object has the name 'data' 2 times: keep one"),
        ("a.json", "[]", "a.json holds no questions"),
        ("a.json", "[1]", f"a.json, article 1: 1 is not an object: {LAYOUT}"),
        ("a.json", '[{"text": "a"}]', f"article 1: no list paragraphs in {{'text': 'a'}}: {LAYOUT}"),
        ("a.json", '{"version": "1.1"}', "a.json: no list data in {'version': '1.1'}: the official layout"),
        ("a.json", '{"data": {"a": 1}}', "a.json: no list data in {'data': {'a': 1}}"),
        ("a.json", '{"data": ["a"]}', f"a.json, article 1: 'a' is not an object: {LAYOUT}"),
        ("a.json", '{"data": [{"title": "a"}]}', "a.json, article 1: no list paragraphs in {'title': 'a'}"),
        ("a.json", '{"data": [{"paragraphs": [{"context": "a"}]}]}', "article 1, paragraph 1: no list qas in"),
        ("a.json", '{"data": [{"paragraphs": [{"qas": [1]}]}]}', "paragraph 1, question 1: 1 is not an object"),
        ("a.json", '{"data": [{"paragraphs": []}]}', "a.json holds no questions"),
        ("a.json", '{"data": []}', "a.json holds no questions"),
        ("a.json", '{"data": \n\0}', "a.json:2: a NUL byte"),
        ("a.json", "\xff", "a.json:1: not UTF-8"),
        ("a.jsonl", "", "a.jsonl holds no questions"),
        ("a.jsonl", '\n{"id": "1"', "a.jsonl:2: not JSON"),
        ("a.jsonl", "[]", "a.jsonl:1: not a JSON object"),
        pytest.param("a.jsonl", "\n" + "[" * 10**6, "a.jsonl:2: not JSON (nested too deeply)", id="a deep line"),
        ("a.jsonl", '{"id": "1", "id": "2"}', "a.jsonl:1: not JSON (an object has the name 'id' 2 times: keep one"),
        pytest.param("a.jsonl", json.dumps({"a\n" * 999: 1}), "answers among 'a\\na", id="a long name"),
        pytest.param("a.jsonl", json.dumps({f"{n}": 1 for n in range(9999)}), "18, 19, ...", id="many names"),
        ("a.jsonl", '{"id": "1", "title": "a"}', "a.jsonl:1, id '1': no context, question, answers among id"),
        ("a.jsonl", '{"data": []}', "a.jsonl:1: this is the official layout, whose files are called .json"),
        ("a.csv", "", "a.csv: a file must be .json, with the official layout, or .jsonl"),
    ],
)
def test_a_broken_file_is_one_clear_error(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content.encode("latin-1"))
    with pytest.raises(ValueError) as error:
        read_files({"train": str(tmp_path / name)}, False)
    assert message in str(error.value) and "\n" not in str(error.value) and len(str(error.value)) < 500


def test_a_file_that_is_missing_is_an_error_that_names_it(tmp_path):
    with pytest.raises(FileNotFoundError, match="cannot read .*a.json: No such file"):
        read_files({"train": str(tmp_path / "a.json")}, False)
    with pytest.raises(ValueError, match="this run needs --validation_file"):
        read_files({"validation": None}, False)


@pytest.mark.parametrize(
    ("version", "remedy"), [("1.1", "leave --version_2_with_negative out"), ("2.0", "add --version_2_with_negative")]
)
def test_a_folder_of_the_other_version_names_the_parameter(tmp_path, version, remedy):
    other = {"1.1": "2.0", "2.0": "1.1"}[version]
    message = f"has no train-v{other}.json, but train-v{version}.json: to read SQuAD {version}, {remedy}$"
    with pytest.raises(FileNotFoundError, match=message):
        read_folder(write_folder(tmp_path, version), SPLITS, VERSIONS[other])


def test_a_folder_without_the_files_is_an_error_that_names_them(tmp_path):
    with pytest.raises(FileNotFoundError, match="^--data_dir .*nowhere: no such folder"):
        read_folder(tmp_path / "nowhere", SPLITS, False)
    with pytest.raises(FileNotFoundError, match="has no train-v1.1.json: --data_dir is not the folder of SQuAD 1.1"):
        read_folder(tmp_path, SPLITS, False)
    with pytest.raises(FileNotFoundError, match="has no test-v2.0.json: .* or give --test_file"):
        read_folder(write_folder(tmp_path, "2.0"), ["test"], True)
