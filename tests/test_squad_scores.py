"""The script that scores files of answers to SQuAD."""

import json
import math
import os
import sys
from pathlib import Path

import pytest

import squad_scores
from elmo_gpt_bert.training.command_line import run_command
from tests.processes import heavy_imports
from tests.squad_sample import make_articles, rows_of, write_squad


IMAGES = ["na_prob_hist_hasAns.png", "na_prob_hist_noAns.png", "pr_exact.png", "pr_f1.png", "pr_oracle.png"]
GROUPS = [f"{prefix}{name}" for prefix in ("", "HasAns_", "NoAns_") for name in ("exact", "f1", "total")]
BEST = ["best_exact", "best_exact_thresh", "best_f1", "best_f1_thresh"]
AVERAGES = ["pr_exact_ap", "pr_f1_ap", "pr_oracle_ap"]


class Files:
    """Data, predictions that are all right and, to make them all right, probabilities; and the script run on them."""

    def __init__(self, folder: Path, version: str) -> None:
        self.folder = folder
        self.data = write_squad(folder / "dev.json", version)
        answers = {row["id"]: row["answers"]["text"] for row in rows_of(make_articles(version))}
        self.predictions = {name: texts[0] if texts else "" for name, texts in answers.items()}
        self.no_answer = {name: 0.25 if texts else 0.75 for name, texts in answers.items()}

    def write(self, name: str, content: object) -> str:
        path = self.folder / name
        path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
        return str(path)

    def arguments(self, *flags: str, no_answer: bool = True) -> list[str]:
        argv = [self.data, self.write("predictions.json", self.predictions), *flags]
        return [*argv, "--na_prob_file", self.write("null_odds.json", self.no_answer)] if no_answer else argv


@pytest.fixture
def files(tmp_path) -> Files:
    return Files(tmp_path, "2.0")


@pytest.fixture
def files_1(tmp_path) -> Files:
    return Files(tmp_path, "1.1")


@pytest.fixture
def score(capsys):
    """Runs the script; gives what it prints, and what it says on stderr."""

    def run(argv: list[str]) -> tuple[dict[str, float], str]:
        squad_scores.main(argv)
        out, err = capsys.readouterr()
        return json.loads(out), err

    return run


def test_answers_to_version_1_have_two_scores(files_1, score):
    assert score(files_1.arguments(no_answer=False)) == ({"exact_match": 100, "f1": 100}, "")
    name, text = next((name, text) for name, text in files_1.predictions.items() if text == "not bad")
    files_1.predictions[name] = "bad"
    scores, _ = score(files_1.arguments(no_answer=False))
    wrong = 100 / len(files_1.predictions)
    assert scores == pytest.approx({"exact_match": 100 - wrong, "f1": 100 - wrong / 3}), text


def test_a_question_without_answer_makes_it_version_2(files, score):
    scores, _ = score(files.arguments(no_answer=False))
    assert list(scores) == GROUPS and scores["total"] == len(files.predictions)
    assert {scores[name] for name in GROUPS if "total" not in name} == {100}


def test_probabilities_of_no_answer_make_it_version_2(files_1, score):
    scores, _ = score(files_1.arguments())
    assert list(scores) == [*GROUPS[:6], *BEST, *AVERAGES]


def test_the_version_can_be_forced(files_1, score):
    scores, _ = score(files_1.arguments("--version", "2.0", no_answer=False))
    assert list(scores) == GROUPS[:6]


def test_probabilities_give_best_thresholds_and_average_precisions(files, score):
    files.predictions = {name: text or "good" for name, text in files.predictions.items()}
    scores, _ = score(files.arguments())
    assert list(scores) == [*GROUPS, *BEST, *AVERAGES]
    assert scores["NoAns_exact"] == 0 and scores["HasAns_exact"] == 100  # the threshold of 1 changes no prediction
    assert (scores["best_f1"], scores["best_f1_thresh"], scores["pr_f1_ap"]) == (100, 0.25, 100)
    scores, _ = score(files.arguments("--na_prob_thresh", "0.5"))
    assert scores["exact"] == scores["NoAns_exact"] == 100
    scores, _ = score(files.arguments("--na_prob_thresh", "0.2"))
    assert scores["HasAns_exact"] == 0 and scores["NoAns_exact"] == 100


def test_log_odds_above_1_are_no_answer_unless_the_threshold_is_infinite(files, score):
    """The default is the official script's."""
    files.no_answer = dict.fromkeys(files.predictions, 7.5)
    assert score(files.arguments())[0]["HasAns_exact"] == 0
    assert score(files.arguments("--na_prob_thresh", "inf"))[0]["HasAns_exact"] == 100


def test_equal_probabilities_are_taken_in_the_order_of_their_file(files, score):
    files.predictions = {name: text or "good" for name, text in files.predictions.items()}
    answerable_first = sorted(files.no_answer, key=files.no_answer.get)
    files.no_answer = dict.fromkeys(answerable_first, 0.5)
    assert score(files.arguments())[0]["best_exact"] == 100
    files.no_answer = dict.fromkeys(answerable_first[::-1], 0.5)
    assert score(files.arguments())[0]["best_exact"] < 100


def test_the_official_scripts_spelling_is_understood(files, score):
    argv = files.arguments("--na-prob-thresh", "0.2", no_answer=False)
    long, _ = score([*argv, "--na-prob-file", files.write("null_odds.json", files.no_answer)])
    short, _ = score([*argv[:2], "-n", files.write("null_odds.json", files.no_answer), "-t", "0.2"])
    assert long == short and long["HasAns_exact"] == 0


def test_what_is_empty_already_keeps_the_best_scores_lower(files, score):
    files.no_answer = {name: -5.0 if text else 9.0 for name, text in files.predictions.items()}
    files.no_answer["0-0"] = 5.0  # has an answer
    files.predictions = {name: text or "good" for name, text in files.predictions.items()}
    whole, _ = score(files.arguments())
    assert (whole["best_exact"], whole["best_exact_thresh"], whole["best_f1"]) == (100, 5, 100)
    files.predictions |= {name: "" for name, value in files.no_answer.items() if value > 0}
    cut, _ = score(files.arguments())
    assert cut["best_exact"] == cut["best_f1"] == pytest.approx(100 - 100 / len(files.predictions))


def test_the_data_may_be_lines_with_the_hubs_columns(files, score):
    expected = score(files.arguments())
    files.data = files.write("dev.jsonl", "\n".join(map(json.dumps, rows_of(make_articles("2.0")))))
    assert score(files.arguments()) == expected


def test_the_output_file_holds_what_is_printed(files, score, tmp_path):
    path = tmp_path / "new" / "scores.json"
    scores, _ = score(files.arguments("--out_file", str(path)))
    assert json.loads(path.read_text(encoding="utf-8")) == scores
    assert [file.name for file in path.parent.iterdir()] == ["scores.json"]


def test_an_output_that_cannot_be_written_is_one_error_and_leaves_the_old_one(files, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    path = tmp_path / "scores.json"
    path.write_text("earlier", encoding="utf-8")
    argv = files.arguments("--out_file", str(path))
    before = sorted(tmp_path.iterdir())
    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match=r"cannot write .*scores.json: No space left on device\. Give a place with room"):
        squad_scores.main(argv)
    assert path.read_text(encoding="utf-8") == "earlier" and sorted(tmp_path.iterdir()) == before


def test_curves_and_histograms_are_drawn_without_a_display(files, score, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)  # which would choose how to show them
    plain, _ = score(files.arguments())
    folder = tmp_path / "new" / "plots"
    scores, _ = score(files.arguments("--out_image_dir", str(folder)))
    assert scores == plain
    assert sorted(path.name for path in folder.iterdir()) == IMAGES
    assert all(path.read_bytes().startswith(b"\x89PNG\r\n") for path in folder.iterdir())


def test_data_without_unanswerable_questions_have_no_histogram_of_them(files_1, score, tmp_path):
    score(files_1.arguments("--out_image_dir", str(tmp_path / "plots")))
    assert sorted(path.name for path in (tmp_path / "plots").iterdir()) == [IMAGES[0], *IMAGES[2:]]


def test_data_without_answerable_questions_have_no_curves(files, score, tmp_path):
    articles = make_articles("2.0")
    for paragraph in (paragraph for article in articles for paragraph in article["paragraphs"]):
        paragraph["qas"] = [question for question in paragraph["qas"] if question["is_impossible"]]
    files.data = write_squad(tmp_path / "none.json", "2.0", articles)
    scores, _ = score(files.arguments("--out_image_dir", str(tmp_path / "plots")))
    assert not set(AVERAGES) & set(scores) and scores["NoAns_f1"] == 100
    assert [path.name for path in (tmp_path / "plots").iterdir()] == [IMAGES[1]]


def test_a_curve_shows_its_points_and_a_histogram_all_log_odds(files, monkeypatch, tmp_path):
    figures = []
    monkeypatch.setattr(squad_scores, "_png", lambda figure: figures.append(figure) or b"")
    files.no_answer = {name: -6.0 if text else 9.0 for name, text in files.predictions.items()}
    squad_scores.main(files.arguments("--out_image_dir", str(tmp_path / "plots")))
    (curve,) = figures[0].axes[0].lines
    answerable = sum(map(bool, files.predictions.values()))
    assert curve.get_drawstyle() == "steps-post"
    assert curve.get_xydata().tolist() == [[0, 1], [1, 1], [1, answerable / len(files.predictions)]]
    for figure, filled in zip(figures[3:], (0, 19), strict=True):
        bars = figure.axes[0].patches
        assert [bar.get_height() for bar in bars] == pytest.approx([float(place == filled) for place in range(20)])
        assert (bars[0].get_x(), bars[-1].get_x() + bars[-1].get_width()) == pytest.approx((-6, 9))


def test_without_matplotlib_plots_are_one_error_that_says_what_to_install(files, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r'--out_image_dir needs matplotlib.*pip install "elmo-gpt-bert\[plots\]"'):
        squad_scores.main(files.arguments("--out_image_dir", str(tmp_path / "plots")))
    assert not (tmp_path / "plots").exists()
    squad_scores.main(files.arguments())


@pytest.mark.parametrize(("version", "counted"), [("1.1", "each counts as wrong"), ("2.0", "no score counts them")])
def test_missing_predictions_are_counted_aloud(tmp_path, score, version, counted):
    files = Files(tmp_path, version)
    number = len(files.predictions)
    del files.predictions["0-0"]
    scores, said = score(files.arguments(no_answer=False))
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
        squad_scores.main(argv)


@pytest.mark.parametrize("value", ["0.5", None, True, [0.5], math.nan, math.inf, 10**400])
def test_probabilities_that_are_no_numbers_are_refused(files, value):
    files.no_answer["0-0"] = value
    with pytest.raises(ValueError, match=r"null_odds.json: 0-0 has .*, which is no number"):
        squad_scores.main(files.arguments())


def test_probabilities_of_every_prediction_are_needed(files):
    del files.no_answer["0-0"]
    with pytest.raises(
        ValueError, match="null_odds.json lacks 1 questions that have predictions, the first is 0-0: give"
    ):
        squad_scores.main(files.arguments())
    del files.predictions["0-0"]
    squad_scores.main(files.arguments())


@pytest.mark.parametrize("number", [0, 1])
def test_a_missing_file_is_one_error(files, number):
    argv = files.arguments()
    argv[number] += ".json"
    with pytest.raises(FileNotFoundError, match="cannot read .*No such file"):
        squad_scores.main(argv)


@pytest.mark.parametrize(
    ("flags", "no_answer", "message"),
    [
        (["--na_prob_thresh", "0.5"], False, "--na_prob_thresh 0.5 needs .* add --na_prob_file"),
        (["--out_image_dir", "plots"], False, "--out_image_dir plots needs .* add --na_prob_file"),
        (["--na_prob_thresh", "nan"], True, "--na_prob_thresh nan is not a number: inf leaves all predictions"),
        (["--version", "1.1"], True, "null_odds.json is for SQuAD 2.0: leave it out, or --version 1.1"),
        (["--version", "1.1"], False, "5 questions have no answer, the first is 0-none: in SQuAD 1.1 every question"),
    ],
)
def test_arguments_that_do_not_go_together_are_refused(files, flags, no_answer, message):
    with pytest.raises(ValueError, match=message):
        squad_scores.main(files.arguments(*flags, no_answer=no_answer))


def test_the_command_ends_with_one_line(files, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["squad_scores.py", *files.arguments("--version", "1.1")])
    with pytest.raises(SystemExit, match="1"):
        run_command(squad_scores.main)
    odds = files.folder / "null_odds.json"
    remedy = "leave it out, or --version 1.1"
    assert capsys.readouterr().err == f"squad_scores.py: error: --na_prob_file {odds} is for SQuAD 2.0: {remedy}\n"


def test_scoring_waits_for_no_package_that_takes_seconds_to_import(files):
    code = "import squad_scores; squad_scores.main(sys.argv[1:])"
    assert heavy_imports(code, *files.arguments()) == set()


def test_data_without_any_label_are_not_scored(files):
    """Of which the empty answer to every question would be right."""
    rows = [row | {"answers": {"text": [], "answer_start": []}} for row in rows_of(make_articles("2.0"))]
    files.data = files.write("dev.jsonl", "\n".join(map(json.dumps, rows)))
    with pytest.raises(ValueError, match=r"dev.jsonl: no question .* has an answer, and \d+ are not marked"):
        squad_scores.main(files.arguments())


def test_the_published_questions_are_all_right_with_their_first_answers(data, tmp_path, score):
    path = data / "squad" / "dev-v1.1.json"
    articles = json.loads(path.read_text(encoding="utf-8"))["data"]
    predictions = {row["id"]: row["answers"]["text"][0] for row in rows_of(articles)}
    file = tmp_path / "predictions.json"
    file.write_text(json.dumps(predictions), encoding="utf-8")
    assert score([str(path), str(file)]) == ({"exact_match": 100, "f1": 100}, "")
