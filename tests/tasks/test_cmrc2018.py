"""Questions in the layouts of CMRC 2018 and DRCD, and their scorer against the official one's results.

The expected scores were computed by cmrc2018_evaluate.py (version 5, for SQuAD-style files) with NLTK 3.10.
"""

import json
from pathlib import Path

import pytest
from transformers import BertTokenizer

import run_squad
from elmo_gpt_bert.metrics.squad_scores import cmrc2018_scores, longest_shared_run, segments
from elmo_gpt_bert.tasks.squad.data import read_files
from elmo_gpt_bert.tasks.squad.features import make_windows
from tests.support.chinese_sample import ABSENT, SIMPLIFIED, characters, make_cmrc, make_drcd, write_json
from tests.support.glue_sample import write_model
from tests.tasks.test_windows import answer_text


# Answers, a prediction, exact match and F1.
OFFICIAL = [
    (["长江大桥"], "长江大桥", 1, 1),
    (["长江大桥"], "长江", 0, 2 / 3),
    (["长江大桥"], "大江长桥", 0, 1 / 4),
    (["南京市长江大桥"], "南京的长江大桥", 0, 4 / 7),
    (["四川成都", "成都市"], "成都", 0, 4 / 5),
    (["四川成都", "成都市"], "四川省成都市", 0, 2 / 3),
    (["猫和狗和鸟"], "狗和猫和鸟", 0, 2 / 5),
    (["《茶馆》"], "茶馆", 1, 1),
    (["“茶馆”、‘骆驼’"], "茶馆骆驼", 0, 4 / 9),
    (["一九四九年，北京"], "一九四九年北京。", 1, 1),
    (["他走了……"], "他走了", 0, 6 / 7),
    (["他走了…"], "他走了", 0, 6 / 7),
    (["12-15岁"], "1215岁", 1, 1),
    (["上午8:30"], "上午830", 1, 1),
    (["。"], "，", 1, 0),
    (["是!"], "是！", 0, 2 / 3),
    (["甲【乙】"], "甲乙", 0, 1 / 3),
    (["东经116°23′"], "东经116°", 0, 2 / 3),
    (["iPhone X手机"], "iphone x", 0, 2 / 3),
    (["iPhone-X手机"], "iphonex手机", 1, 1),
    (["大约3,000人"], "3,000人", 0, 2 / 3),
    (["大约3,000人"], "3000人", 0, 1 / 3),
    (["占12.5%左右"], "12.5%", 0, 4 / 7),
    (["2019年"], "19年", 0, 1 / 2),
    (["约10 km"], "10km", 0, 0),
    (["在New York大学"], "纽约New York 大学", 0, 8 / 11),
    (["Dr. Who和U.S. Army乐队."], "who和army", 0, 4 / 11),
    (["\"Hello\"(world), it's a dog's day."], "Hello world its a dogs day", 0, 1 / 10),
    (["Don't cry, we'll go..."], "do n't cry we 'll go", 0, 3 / 7),
    (["the Apple"], "Apple", 0, 2 / 3),
    (["C++语言"], "C语言", 1, 1),
    (["a@b.com、c#"], "a@b.com", 0, 4 / 7),
    (["1990—1995年"], "1990–1995年", 0, 1 / 2),
    (["rock 'n roll乐队"], "'n roll", 0, 4 / 7),
    (["㐂字"], "㐂", 0, 2 / 3),
    (["𠮷野家𠮷"], "𠮷野", 0, 2 / 3),
    (["龥龦"], "龥", 0, 2 / 3),
    (["東京タワー"], "東京タワ", 0, 2 / 3),
    (["한국 사람"], "한국", 0, 2 / 3),
    (["café"], "café", 0, 0),
    (["ＡＢＣ\u3000１２３"], "abc 123", 0, 0),
    (["全角\u3000空格"], "全角空格", 0, 1),
    ([" 北京 "], "北京", 1, 1),
    (["北 京"], "北京", 0, 1),
    (["北京"], "", 0, 0),
    (["北京"], " 。", 0, 0),
    (["39764.0"], "2008年11月", 0, 0),
]


@pytest.mark.parametrize(("answers", "prediction", "exact", "f1"), OFFICIAL)
def test_the_scores_are_those_of_the_official_script(answers, prediction, exact, f1):
    scores = cmrc2018_scores({"a": prediction}, {"a": answers})
    expected = {"exact_match": 100 * exact, "f1": 100 * f1, "average": 50 * (exact + f1)}
    assert scores == pytest.approx(expected)


def test_the_units_are_characters_and_the_words_between_them():
    text = "《夜雨》由ABC Records在2003年（第5版）发行，a 3,000-page book."
    assert segments(text) == ["夜", "雨", "由", "abc", "records", "在", "2003", "年", "第", "5", "版", "发", "行"] + [
        "a",
        "3,000page",
        "book",
        ".",
    ]


def test_the_longest_shared_run_is_that_of_a_loop_over_all_runs():
    for one in ("", "a", "abcab", "bcbcb", "xyz"):
        for other in ("", "b", "cabcab", "bcb", "zyx"):
            runs = [one[begin:end] for begin in range(len(one)) for end in range(begin, len(one) + 1)]
            assert longest_shared_run(one, other) == max((len(run) for run in runs if run in other), default=0)


def test_a_question_without_a_prediction_counts_nothing_and_others_are_ignored():
    scores = cmrc2018_scores({"a": "北京", "c": "上海"}, {"a": ["北京"], "b": ["上海"]})
    assert scores == {"exact_match": 50, "f1": 50, "average": 50}
    with pytest.raises(ValueError, match="question b has no answers, which CMRC 2018 does not know"):
        cmrc2018_scores({}, {"b": []})
    with pytest.raises(ValueError, match="there are no questions to score"):
        cmrc2018_scores({}, {})


def test_the_average_is_of_exact_match_and_f1():
    scores = cmrc2018_scores({"a": "长江"}, {"a": ["长江大桥", "长江桥"]})
    assert scores == pytest.approx({"exact_match": 0, "f1": 80, "average": 40})


# Files


def answers_of(split: str, path: str, **options: object) -> dict[str, list[tuple[str, int]]]:
    rows = read_files({split: path}, version_2=False, **options)[split]
    return {row["id"]: list(zip(*row["answers"].values(), strict=True)) for row in rows}


def test_the_published_layouts_are_read_whole(tmp_path):
    for content in (make_cmrc(flawed=False), make_drcd()):
        answers = answers_of("validation", write_json(tmp_path / "a.json", content))
        questions = [row for article in content["data"] for part in article["paragraphs"] for row in part["qas"]]
        assert answers == {
            row["id"]: [(answer["text"], answer["answer_start"]) for answer in row["answers"]] for row in questions
        }


def test_answers_that_are_not_at_their_place_are_refused_with_the_flag_that_looks_for_them(tmp_path):
    path = write_json(tmp_path / "a.json", make_cmrc())
    with pytest.raises(
        ValueError, match="is not at its answer_start, .*, or add --locate_answers to look for such ans"
    ):
        answers_of("validation", path)


def test_located_answers_are_at_the_nearest_place_and_what_occurs_nowhere_is_only_scored(tmp_path, capsys):
    path, (context, _) = write_json(tmp_path / "a.json", make_cmrc()), SIMPLIFIED[0]
    answers = answers_of("validation", path, locate=True)
    assert answers["DEV_0_QUERY_0"][0] == ("2003年5月1日", context.index("2003年5月1日"))
    assert answers["DEV_1_QUERY_2"][1] == (ABSENT, -1)
    train = answers_of("train", path, locate=True)
    assert train["DEV_1_QUERY_2"] == answers["DEV_1_QUERY_2"][:1] and len(train) == len(answers) == 7
    single = write_json(tmp_path / "b.json", make_cmrc(answers=1))
    capsys.readouterr()
    assert answers_of("train", single, locate=True).keys() == answers.keys() - {"DEV_1_QUERY_2"}
    assert (
        "train: 1 of 7 questions have no answer that occurs in their context; they are left out"
        in capsys.readouterr().out
    )


@pytest.mark.parametrize(("start", "place"), [(-1, 0), (0, 0), (1, 0), (2, 3), (3, 3), (5, 6), (99, 6)])
def test_of_several_places_the_nearest_is_taken(tmp_path, start, place):
    row = {
        "id": "a",
        "context": "北京、北京、北京。",
        "question": "?",
        "answers": {"text": ["北京"], "answer_start": [start]},
    }
    (tmp_path / "a.jsonl").write_text(json.dumps(row), encoding="utf-8")
    assert answers_of("train", str(tmp_path / "a.jsonl"), locate=True) == {"a": [("北京", place)]}


def test_training_data_without_any_answer_in_its_place_are_refused(tmp_path):
    content = make_cmrc(answers=1)
    for article in content["data"]:
        for row in article["paragraphs"][0]["qas"]:
            row["answers"] = [{"text": ABSENT, "answer_start": -1}]
    with pytest.raises(ValueError, match="7 of 7 questions have no answer .*: there is nothing to learn"):
        answers_of("train", write_json(tmp_path / "a.json", content), locate=True)


@pytest.mark.parametrize("content", [make_cmrc(), make_drcd()], ids=["cmrc", "drcd"])
def test_every_answer_is_found_after_tokenisation(data, tmp_path, content):
    tokenizer = BertTokenizer(str(data / "vocab" / "bert-base-chinese-vocab.txt"))
    path = write_json(tmp_path / "a.json", content)
    examples = read_files({"train": path}, version_2=False, locate=True)["train"]
    windows = make_windows(examples, tokenizer, 48, 12, train=True)
    found = {}
    for window, number in enumerate(windows.question.tolist()):
        text = answer_text(windows, window, examples[number]["context"])
        found.setdefault(number, set()).add(text)
    recovered = [row["answers"]["text"][0] in found[number] for number, row in enumerate(examples)]
    print(f"answers recovered: {sum(recovered)} of {len(recovered)}")
    assert all(recovered) and len(recovered) == (7 if content["version"] == "v1.0" else 3)


# Commands


@pytest.fixture
def flags(tmp_path) -> list[str]:
    """A model of a few parameters whose vocabulary has the characters of the sample."""
    config = json.loads(Path(write_model(tmp_path, max_position_embeddings=128)).read_text(encoding="utf-8"))
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *characters()]
    pieces += [f"##{character}" for character in characters() if character.isascii()]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces), encoding="utf-8")
    sizes = {"vocab_size": len(pieces), "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    (tmp_path / "config.json").write_text(json.dumps(config | sizes), encoding="utf-8")
    values = ["--model_name_or_path", str(tmp_path / "config.json"), "--tokenizer_name", str(tmp_path / "vocab.txt")]
    return [*values, "--max_seq_length", "64", "--doc_stride", "16", "--output_dir", str(tmp_path / "out")]


def test_a_model_learns_cmrc_and_its_files_are_scored_alike(tmp_path, flags, capsys):
    train = write_json(tmp_path / "train.json", make_cmrc("TRAIN", answers=1))
    dev = write_json(tmp_path / "dev.json", make_cmrc())
    files = ["--train_file", train, "--validation_file", dev, "--metric", "cmrc2018", "--locate_answers"]
    work = ["--do_train", "--do_eval", "--learning_rate", "0.01", "--num_train_epochs", "2"]
    results = run_squad.main([*flags, *files, *work])
    scores = {name: results[f"eval_{name}"] for name in ("exact_match", "f1", "average")}
    predictions = json.loads((tmp_path / "out" / "predictions_validation.json").read_text(encoding="utf-8"))
    answers = answers_of("validation", dev, locate=True)
    assert scores == pytest.approx(
        cmrc2018_scores(predictions, {name: [text for text, _ in pairs] for name, pairs in answers.items()})
    )
    assert all(any(text in context for context, _ in SIMPLIFIED) for text in predictions.values())
    capsys.readouterr()
    file = ["--predictions_file", str(tmp_path / "out" / "predictions_validation.json"), "--validation_file", dev]
    run_squad.main(["--do_eval", *file, "--metric", "cmrc2018"])
    assert json.loads(capsys.readouterr().out) == pytest.approx(scores)


def test_the_metric_is_for_questions_with_answers(tmp_path, flags):
    with pytest.raises(SystemExit):
        run_squad.main(
            [*flags, "--validation_file", "a.json", "--do_eval", "--metric", "cmrc2018"]
            + ["--version_2_with_negative"]
        )
