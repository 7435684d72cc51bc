"""The papers' scores that a model card shows beside its own."""

import pytest

from elmo_gpt_bert import metrics
from elmo_gpt_bert.metrics.entities import entity_scores
from elmo_gpt_bert.metrics.squad_scores import best_thresholds, mark, squad1_scores, squad2_scores
from elmo_gpt_bert.tasks.choices import TASKS as CHOICES
from elmo_gpt_bert.tasks.glue import TASKS
from elmo_gpt_bert.training.reporting import COMPARED, comparison
from tests.conftest import ROOT


GLUE = {(task.hub, task.hub_configuration or name): task.metric for name, task in TASKS.items()}
CHOOSING = {task.hub or (name, None) for name, task in CHOICES.items()}
ANSWERING = {("rajpurkar/squad", None), ("rajpurkar/squad_v2", None)}


def scores_of_perfection(data_set: tuple[str, str | None]) -> dict[str, float]:
    """What the metrics of a data set give where all is right."""
    if data_set in ANSWERING:
        answers, references = {"a": "b"}, {"a": ["b"]}
        marks = mark(answers, references)
        return squad1_scores(answers, references) | squad2_scores(marks) | best_thresholds(marks)
    if data_set in GLUE:
        return metrics.load(GLUE[data_set]).compute(predictions=[0, 1], references=[0, 1])
    if data_set in CHOOSING:
        parts = ["middle", "high"]
        return metrics.load("choices").compute(predictions=[0, 1], references=[0, 1], parts=parts)
    tags = [["O"], ["B-LOC"]]
    return entity_scores(tags, tags)


def table_of(data_set: tuple[str, str | None]) -> list[list[str]]:
    """The cells of the table in a card, for a model without any mistake; the first row has the names of columns."""
    names = COMPARED[name_of(data_set)]["data"][name_of(data_set)]
    perfect = scores_of_perfection(data_set)
    text = comparison({name: perfect[name.removesuffix("_mm")] for name in names}, *data_set)
    return [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]


def name_of(data_set: tuple[str, str | None]) -> str:
    return " ".join(filter(None, data_set))


@pytest.mark.parametrize("name", COMPARED)
def test_the_papers_scores_are_of_metrics_that_we_have_and_on_their_scale(name):
    data_set, _, configuration = name.partition(" ")
    (_, *columns), *rows = table_of((data_set, configuration or None))
    assert [row[0] for row in rows] == [*COMPARED[name]["data"][name]]
    assert all(len(row) == 1 + len(columns) and row[1] == "100.0" for row in rows)


@pytest.mark.parametrize(
    ("recipe", "data_set", "system"),
    [
        ("bert/swag", ("allenai/swag", "regular"), "BERT-base, validation"),
        ("bert/swag_large", ("allenai/swag", "regular"), "BERT-large, validation"),
        ("gpt/choices", ("allenai/swag", "regular"), "OpenAI GPT, test"),
        ("elmo/swag", ("allenai/swag", "regular"), "ESIM+ELMo, validation"),
        ("elmo/swag_baseline", ("allenai/swag", "regular"), "ESIM+GloVe, validation"),
        ("bert/squad", ("rajpurkar/squad", None), "BERT-base, validation"),
        ("bert/squad_large", ("rajpurkar/squad", None), "BERT-large, validation"),
        ("bert/squad_large", ("rajpurkar/squad", None), "BERT-large, seven of them, validation"),
        ("bert/squad_large", ("rajpurkar/squad", None), "BERT-large after TriviaQA, validation"),
        ("elmo/squad", ("rajpurkar/squad", None), "BiDAF+ELMo, test"),
        ("bert/squad_v2_large", ("rajpurkar/squad_v2", None), "BERT-large, validation"),
    ],
)
def test_a_recipe_expects_what_the_papers_table_says(recipe, data_set, system):
    head, *rows = table_of(data_set)
    expected = (ROOT / "configs" / f"{recipe}.yaml").read_text(encoding="utf-8").split("# Expected")[1]
    for row in rows:
        assert row[head.index(system)] in expected


def test_the_papers_have_scores_on_all_tasks_but_one():
    data_sets = {name_of(data_set) for data_set in GLUE.keys() | CHOOSING | ANSWERING}
    assert data_sets - COMPARED.keys() == {"nyu-mll/glue wnli"}


def test_a_card_names_the_split_that_the_paper_scored():
    assert "BERT-large, test" in comparison({"f1": 0.9}, "nyu-mll/glue", "mrpc")
    table = comparison({"f1": 0.9, "accuracy": 0.99}, "lhoestq/conll2003", None)
    assert "| f1 | 90.0 | 95.7 | 96.4 | 96.6 | 96.1 |" in table and "BERT-large, validation" in table


def test_scores_that_are_percentages_already_stay_as_they_are():
    table = comparison({"exact_match": 80.78, "f1": 88.5}, "rajpurkar/squad", None)
    assert "| percent | this model, validation | BiDAF+ELMo, test | BERT-base, validation | BERT-large, vali" in table
    assert "| exact_match | 80.8 | 78.6 | 80.8 | 84.1 | 85.8 | 84.2 |" in table
    assert "| f1 | 88.5 | 85.8 | 88.5 | 90.9 | 91.8 | 91.1 |" in table


def test_of_squad_2_only_the_score_with_the_best_threshold_is_compared():
    scores = {"exact_match": 70.0, "f1": 73.0, "best_exact": 71.0, "best_f1": 74.0}
    (row,) = [line for line in comparison(scores, "rajpurkar/squad_v2", None).splitlines() if "74.0" in line]
    assert row == "| best_f1 | 74.0 | 81.9 |" and "70.0" not in comparison(scores, "rajpurkar/squad_v2", None)


def test_a_card_of_data_that_no_paper_has_compares_nothing():
    scores = {"accuracy": 0.5}
    assert comparison(scores, "nyu-mll/glue", "wnli") == comparison(scores, "text", None) == ""
    assert comparison(scores, "nyu-mll/glue", "mrpc") == ""  # the paper has F1
    assert comparison({"f1": 73.0}, "rajpurkar/squad_v2", None) == ""  # the paper has it with its best threshold
