"""The papers' scores that a model card shows beside its own."""

import metrics
from tasks.glue import TASKS
from training import published


def test_the_papers_scores_are_of_metrics_and_tasks_that_we_have():
    for (_, task_name), scores in published.SCORES.items():
        task = TASKS[task_name]
        metric = metrics.load(*task.metric).compute(predictions=[0, 1], references=[0, 1])
        assert {name.removesuffix("_mm") for name in scores} <= metric.keys()
        assert all(len(row) == len(published.SYSTEMS) for row in scores.values())
    assert TASKS.keys() - {task_name for _, task_name in published.SCORES} == {"wnli"}


def test_a_card_of_data_that_no_paper_has_compares_nothing():
    scores = {"accuracy": 0.5}
    assert published.comparison(scores, "nyu-mll/glue", "wnli") == published.comparison(scores, "text", None) == ""
    assert published.comparison(scores, "nyu-mll/glue", "mrpc") == ""  # the paper has F1
