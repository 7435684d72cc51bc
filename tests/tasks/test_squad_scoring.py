"""run_squad.py --predictions_file: a file of answers to SQuAD is scored without a model."""

import json
import math
from pathlib import Path

import pytest

import run_squad
from elmo_gpt_bert.training.command_line import run_command
from tests.support.squad_sample import make_articles, rows_of, write_squad


GROUPS = [f"{prefix}{name}" for prefix in ("", "HasAns_", "NoAns_") for name in ("exact", "f1", "total")]
BEST = ["best_exact", "best_exact_thresh", "best_f1", "best_f1_thresh"]


class Files:
    """Data, predictions that are all right and, to make them all right, probabilities; and the words to score them."""

    def __init__(self, folder: Path, version: str) -> None:
        self.folder, self.version = folder, version
        self.data = write_squad(folder / "dev.json", version)
        answers = {row["id"]: row["answers"]["text"] for row in rows_of(make_articles(version))}
        self.predictions = {name: texts[0] if texts else "" for name, texts in answers.items()}
        self.null_odds = {name: 0.25 if texts else 0.75 for name, texts in answers.items()}

    def write(self, name: str, content: object) -> str:
        path = self.folder / name
        path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
        return str(path)

    def arguments(self, *flags: str, null_odds: bool = True) -> list[str]:
        words = ["--do_eval", "--predictions_file", self.write("predictions.json", self.predictions)]
        words += ["--validation_file", self.data, *flags]
        if self.version == "1.1":
            return words
        words.append("--version_2_with_negative")
        return [*words, "--null_odds_file", self.write("null_odds.json", self.null_odds)] if null_odds else words


@pytest.fixture
def files(tmp_path) -> Files:
    return Files(tmp_path, "2.0")


@pytest.fixture
def files_1(tmp_path) -> Files:
    return Files(tmp_path, "1.1")


@pytest.fixture
def score(capsys):
    """Scores the files; gives what is printed, and what is said on stderr."""

    def run(argv: list[str]) -> tuple[dict[str, float], str]:
        scores = run_squad.main(argv)
        out, err = capsys.readouterr()
        assert json.loads(out) == scores
        return scores, err

    return run


def test_answers_to_version_1_have_two_scores(files_1, score):
    assert score(files_1.arguments(null_odds=False)) == ({"exact_match": 100, "f1": 100}, "")
    name, text = next((name, text) for name, text in files_1.predictions.items() if text == "not bad")
    files_1.predictions[name] = "bad"
    scores, _ = score(files_1.arguments(null_odds=False))
    wrong = 100 / len(files_1.predictions)
    assert scores == pytest.approx({"exact_match": 100 - wrong, "f1": 100 - wrong / 3}), text


def test_answers_to_version_2_have_scores_of_questions_with_and_without_answers(files, score):
    scores, _ = score(files.arguments(null_odds=False))
    assert list(scores) == GROUPS and scores["total"] == len(files.predictions)
    assert {scores[name] for name in GROUPS if "total" not in name} == {100}


def test_log_odds_give_the_best_thresholds_and_change_no_prediction(files, score):
    files.predictions = {name: text or "good" for name, text in files.predictions.items()}
    files.null_odds = {name: 7.5 if value > 0.5 else -2.5 for name, value in files.null_odds.items()}
    scores, _ = score(files.arguments())
    assert list(scores) == [*GROUPS, *BEST]
    assert scores["NoAns_exact"] == 0 and scores["HasAns_exact"] == 100
    assert (scores["best_f1"], scores["best_f1_thresh"]) == (100, -2.5)


def test_equal_probabilities_are_taken_in_the_order_of_their_file(files, score):
    files.predictions = {name: text or "good" for name, text in files.predictions.items()}
    answerable_first = sorted(files.null_odds, key=files.null_odds.get)
    files.null_odds = dict.fromkeys(answerable_first, 0.5)
    assert score(files.arguments())[0]["best_exact"] == 100
    files.null_odds = dict.fromkeys(answerable_first[::-1], 0.5)
    assert score(files.arguments())[0]["best_exact"] < 100


def test_what_is_empty_already_keeps_the_best_scores_lower(files, score):
    files.null_odds = {name: -5.0 if text else 9.0 for name, text in files.predictions.items()}
    files.null_odds["0-0"] = 5.0  # has an answer
    files.predictions = {name: text or "good" for name, text in files.predictions.items()}
    whole, _ = score(files.arguments())
    assert (whole["best_exact"], whole["best_exact_thresh"], whole["best_f1"]) == (100, 5, 100)
    files.predictions |= {name: "" for name, value in files.null_odds.items() if value > 0}
    cut, _ = score(files.arguments())
    assert cut["best_exact"] == cut["best_f1"] == pytest.approx(100 - 100 / len(files.predictions))


def test_the_data_may_be_lines_with_the_hubs_columns(files, score):
    expected = score(files.arguments())
    files.data = files.write("dev.jsonl", "\n".join(map(json.dumps, rows_of(make_articles("2.0")))))
    assert score(files.arguments()) == expected


@pytest.mark.parametrize(("version", "counted"), [("1.1", "each counts as wrong"), ("2.0", "no score counts them")])
def test_missing_predictions_are_counted_aloud(tmp_path, score, version, counted):
    files = Files(tmp_path, version)
    number = len(files.predictions)
    del files.predictions["0-0"]
    scores, said = score(files.arguments(null_odds=False))
    counts = f"1 of {number} questions have no prediction, the first is 0-0: {counted}"
    assert said == f"{tmp_path / 'predictions.json'}: {counts}\n"
    if version == "1.1":
        assert scores["exact_match"] == pytest.approx(100 - 100 / number)
    else:
        assert (scores["exact"], scores["total"]) == (100, number - 1)


def test_predictions_for_other_questions_are_left_out_aloud(files, score):
    expected, _ = score(files.arguments())
    files.predictions |= {"other-1": "good", "other-2": "bad"}
    scores, said = score(files.arguments())
    assert said.endswith("2 predictions are for other questions, the first is other-1: no score counts them\n")
    assert scores == expected


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "predictions.json: not JSON"),
        (["good"], r"must hold a JSON object, id -> text, not \['good'\]"),
        ({"0-0": None}, "0-0 has None, which is no text"),
        ({"0-0": {"text": "good"}}, r"0-0 has \{'text': 'good'\}, which is no text"),
        ({}, r"has no prediction for any of \d+ questions: is it for other data\?"),
        ({"other": "good"}, r"has no prediction for any of \d+ questions: is it for other data\?"),
        pytest.param("[" * 10**6, r"predictions.json: not JSON \(nested too deeply\)$", id="deep"),
        ('{"0-0": "good", "0-0": "bad"}', r"not JSON \(an object has the name '0-0' 2 times: keep one of them\)$"),
        ({"\n" * 999: 1}, r"predictions.json: '[\\n]+\.\.\.[\\n]+' has 1, which is no text$"),
    ],
)
def test_predictions_that_are_none_are_refused(files, content, message):
    argv = files.arguments()
    files.write("predictions.json", content)
    with pytest.raises(ValueError, match=message):
        run_squad.main(argv)


@pytest.mark.parametrize("value", ["0.5", None, True, [0.5], math.nan, math.inf, 10**400])
def test_probabilities_that_are_no_numbers_are_refused(files, value):
    files.null_odds["0-0"] = value
    with pytest.raises(ValueError, match=r"null_odds.json: 0-0 has .*, which is no number"):
        run_squad.main(files.arguments())


def test_probabilities_of_every_prediction_are_needed(files):
    del files.null_odds["0-0"]
    with pytest.raises(
        ValueError, match="null_odds.json lacks 1 questions that have predictions, the first is 0-0: give"
    ):
        run_squad.main(files.arguments())
    del files.predictions["0-0"]
    run_squad.main(files.arguments())


def test_flags_may_have_dashes(tmp_path, score):
    argv = Files(tmp_path, "1.1").arguments()
    assert score([word.replace("_", "-") if word.startswith("--") else word for word in argv]) == score(argv)


@pytest.mark.parametrize("flag", ["--predictions_file", "--validation_file", "--null_odds_file"])
def test_a_missing_file_is_one_error(files, flag):
    argv = files.arguments()
    argv[argv.index(flag) + 1] += ".json"
    with pytest.raises(FileNotFoundError, match="cannot read .*No such file"):
        run_squad.main(argv)


def test_data_without_any_label_are_not_scored(files):
    """Of which the empty answer to every question would be right."""
    rows = [row | {"answers": {"text": [], "answer_start": []}} for row in rows_of(make_articles("2.0"))]
    files.data = files.write("dev.jsonl", "\n".join(map(json.dumps, rows)))
    with pytest.raises(ValueError, match=r"dev.jsonl: no question .* has an answer, and \d+ are not marked"):
        run_squad.main(files.arguments())


@pytest.mark.slow
def test_the_published_questions_are_all_right_with_their_first_answers(data, tmp_path, score):
    path = data / "squad" / "dev-v1.1.json"
    articles = json.loads(path.read_text(encoding="utf-8"))["data"]
    predictions = {row["id"]: row["answers"]["text"][0] for row in rows_of(articles)}
    file = tmp_path / "predictions.json"
    file.write_text(json.dumps(predictions), encoding="utf-8")
    words = ["--do_eval", "--predictions_file", str(file), "--validation_file", str(path)]
    assert score(words) == ({"exact_match": 100, "f1": 100}, "")


@pytest.mark.parametrize(
    ("version", "flags", "message"),
    [
        ("1.1", ["--null_odds_file", "odds.json"], "--null_odds_file odds.json is .* add --version_2_with_negative"),
        ("2.0", ["--metric", "cmrc2018"], "--metric cmrc2018 is for questions with answers: leave"),
        ("2.0", ["--do_eval", "false"], "--predictions_file is scored, by --do_eval: give both"),
    ],
)
def test_arguments_that_do_not_go_together_are_refused(tmp_path, version, flags, message):
    with pytest.raises(ValueError, match=message):
        run_squad.main(Files(tmp_path, version).arguments(*flags))


def test_data_of_version_2_need_its_flag(files):
    words = [word for word in files.arguments(null_odds=False) if word != "--version_2_with_negative"]
    with pytest.raises(ValueError, match="is_impossible is true: to read SQuAD 2.0, add .*version_2"):
        run_squad.main(words)


def test_a_flag_of_a_run_is_refused_beside_a_file_of_predictions(files, capsys):
    with pytest.raises(SystemExit):
        run_squad.main(files.arguments("--model_name_or_path", "runs/bert/squad"))
    assert "unknown argument --model_name_or_path" in capsys.readouterr().err


def test_the_command_ends_with_one_line(files, monkeypatch, capsys):
    words = files.arguments("--metric", "cmrc2018")
    words[1:3] = [f"--predictions_file={words[2]}"]
    monkeypatch.setattr("sys.argv", ["run_squad.py", *words])
    with pytest.raises(SystemExit, match="1"):
        run_command(run_squad.main)
    message = "--metric cmrc2018 is for questions with answers: leave --version_2_with_negative out"
    assert capsys.readouterr().err == f"run_squad.py: error: {message}\n"
