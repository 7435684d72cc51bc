"""The papers' scores that a model card shows beside its own."""

import metrics
from tasks.glue import TASKS
from training.published import TABLES, comparison


def test_the_papers_scores_are_of_metrics_and_tasks_that_we_have():
    for (data_set, task_name), table in TABLES.items():
        if data_set == "nyu-mll/glue":
            metric, predictions = metrics.load(*TASKS[task_name].metric), [0, 1]
        else:
            metric, predictions = metrics.load("entities"), [["O"], ["B-LOC"]]
        known = metric.compute(predictions=predictions, references=predictions)
        assert {name.removesuffix("_mm") for name in table.scores} <= known.keys()
        assert all(len(row) == len(table.systems) for row in table.scores.values())
    assert TASKS.keys() - {task_name for _, task_name in TABLES} == {"wnli"}


def test_a_card_names_the_split_that_the_paper_scored():
    assert "BERT-large, test" in comparison({"f1": 0.9}, "nyu-mll/glue", "mrpc")
    table = comparison({"f1": 0.9, "accuracy": 0.99}, "lhoestq/conll2003", None)
    assert "| f1 | 90.0 | 95.7 | 96.4 | 96.6 | 96.1 |" in table and "BERT-large, validation" in table


def test_a_card_of_data_that_no_paper_has_compares_nothing():
    scores = {"accuracy": 0.5}
    assert comparison(scores, "nyu-mll/glue", "wnli") == comparison(scores, "text", None) == ""
    assert comparison(scores, "nyu-mll/glue", "mrpc") == ""  # the paper has F1
