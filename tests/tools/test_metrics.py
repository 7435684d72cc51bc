"""GLUE's scores against scikit-learn and scipy, from any directory, without network."""

import os
import subprocess
import sys

import evaluate
import numpy as np
import pytest
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

from elmo_gpt_bert import metrics
from tests.conftest import ROOT


ACCURACY_TASKS = ["sst2", "mnli", "qnli", "rte", "wnli"]


def score(task: str, predictions: object, references: object) -> dict[str, float]:
    return metrics.load(task).compute(predictions=predictions, references=references)


@pytest.fixture
def classes() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    return rng.integers(0, 2, 50), rng.integers(0, 2, 50)


@pytest.mark.parametrize("task", ACCURACY_TASKS)
def test_most_tasks_count_right_answers(task, classes):
    assert score(task, *classes) == {"accuracy": pytest.approx(np.mean(classes[0] == classes[1]))}


@pytest.mark.parametrize("task", ["mrpc", "qqp"])
def test_paraphrases_are_scored_by_f1_and_accuracy(task, classes):
    predictions, references = classes
    expected = {"f1": f1_score(references, predictions), "accuracy": accuracy_score(references, predictions)}
    scores = score(task, predictions, references)
    assert scores == pytest.approx(expected) and list(scores) == list(expected)  # the first chooses the best model


def test_cola_is_scored_by_matthews_correlation(classes):
    predictions, references = classes
    expected = matthews_corrcoef(references, predictions)
    assert score("cola", predictions, references) == {"matthews_correlation": pytest.approx(expected)}


def test_similarity_is_scored_by_both_correlations():
    rng = np.random.default_rng(4)
    references = rng.uniform(0, 5, 40)
    predictions = references**2 + rng.normal(size=40)
    expected = {
        "spearmanr": spearmanr(references, predictions).statistic,
        "pearson": pearsonr(references, predictions).statistic,
    }
    scores = score("stsb", predictions, references)
    assert scores == pytest.approx(expected) and list(scores) == list(expected)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("task", "expected"),
    [("cola", {"matthews_correlation": 0.0}), ("mrpc", {"accuracy": 0.5, "f1": 0.0})],
)
def test_answering_with_one_class_is_worth_nothing(task, expected):
    assert score(task, [0, 0, 0, 0], [0, 1, 0, 1]) == expected


def test_one_class_on_both_sides_gives_numbers():
    assert score("cola", [1, 1], [1, 1]) == {"matthews_correlation": 0.0}
    assert score("qqp", [0, 0], [0, 0]) == {"accuracy": 1.0, "f1": 0.0}


def test_a_single_class_is_counted_where_it_is_predicted_or_present():
    """Not where it is absent, too, as for a question of yes and no."""
    scores = score("multi_label", [[1], [0], [0], [1], [0]], [[1], [1], [0], [0], [0]])
    assert scores == pytest.approx({"f1_micro": 1 / 2, "f1_macro": 1 / 2, "accuracy": 3 / 5})


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("predictions", [[2.5, 2.5, 2.5], [0.0, 0.0, 0.0]])
def test_a_constant_prediction_correlates_with_nothing(predictions):
    assert score("stsb", predictions, [1.0, 2.0, 4.5]) == {"pearson": 0.0, "spearmanr": 0.0}
    assert score("stsb", [1.0, 2.0, 4.5], predictions) == {"pearson": 0.0, "spearmanr": 0.0}


def test_a_prediction_that_is_no_number_does_not_become_a_score():
    assert np.isnan(score("stsb", [1.0, float("nan"), 2.0], [1.0, 2.0, 4.5])["pearson"])


def test_an_unknown_task_is_refused_with_the_list():
    with pytest.raises(KeyError, match="'snli' is no configuration: choose one of cola, sst2, .*, choices, hans"):
        metrics.load("snli")


@pytest.mark.slow
def test_the_module_loads_from_any_directory_without_a_home_and_leaves_nothing_there(tmp_path):
    command = "from elmo_gpt_bert.metrics import load; "
    command += "print(load('rte').compute(predictions=[1, 0], references=[1, 1]))"
    before = sorted(ROOT.joinpath("elmo_gpt_bert", "metrics").rglob("*.json"))
    env = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "XDG_"))}
    env |= {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "HOME": "/proc/no-home"}
    result = subprocess.run(
        [sys.executable, "-c", command], cwd=tmp_path, env=env, capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "{'accuracy': 0.5}"
    assert list(tmp_path.iterdir()) == []
    assert sorted(ROOT.joinpath("elmo_gpt_bert", "metrics").rglob("*.json")) == before


@pytest.mark.parametrize(
    ("task", "inputs"),
    [
        ("rte", {"predictions": [1, 0], "references": [1, 1]}),
        ("hans", {"predictions": [1, 0], "references": [1, 1], "parts": ["", "a"]}),
    ],
)
def test_the_metric_needs_no_cache_that_can_be_written(monkeypatch, task, inputs):
    for cache in ("HF_MODULES_CACHE", "HF_METRICS_CACHE"):
        monkeypatch.setattr(evaluate.config, cache, "/proc/no-home")
    assert metrics.load(task).compute(**inputs)


def test_evaluate_itself_loads_the_file():
    module = evaluate.load(str(ROOT / "elmo_gpt_bert" / "metrics" / "glue.py"), "cola")
    assert module.compute(predictions=[1, 0, 1], references=[1, 0, 0]) == {"matthews_correlation": pytest.approx(0.5)}
