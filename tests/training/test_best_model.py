"""Runs that diverge, end early, or keep the best of their models."""

import shutil
from pathlib import Path

import pytest
import torch
from datasets import Dataset

from elmo_gpt_bert.training import loop
from tests.support.tiny_run import checkpoint_names, fit, weights


# Divergence


def test_a_loss_that_is_not_a_number_names_the_last_good_checkpoint(run, data_set, monkeypatch):
    args = run(save_strategy="steps", save_steps=2, logging_steps=50)
    update = loop._Training.update

    def poisoned_at_5(self, share, examples):
        update(self, share * (float("nan") if self.progress.update == 4 else 1.0), examples)

    monkeypatch.setattr(loop._Training, "update", poisoned_at_5)
    with pytest.raises(
        FloatingPointError,
        match=r"the training loss is nan at update 5 of 18: lower --learning_rate \(peak 0.01\).*checkpoint-4 is the",
    ):
        fit(args, data_set)
    assert checkpoint_names(Path(args.output_dir)) == ["checkpoint-2", "checkpoint-4"]


def test_weights_that_are_not_numbers_are_never_saved(run, data_set, monkeypatch):
    args = run(save_strategy="steps", save_steps=2)
    update = loop._Training.update

    def poisoned_at_4(self, *rest):
        update(self, *rest)
        if self.progress.update == 4:
            next(self.model.parameters()).data[0, 0] = float("inf")

    monkeypatch.setattr(loop._Training, "update", poisoned_at_4)
    with pytest.raises(FloatingPointError, match="weight is not finite after update 4.*checkpoint-2 is the last good"):
        fit(args, data_set)
    assert checkpoint_names(Path(args.output_dir)) == ["checkpoint-2"]


def test_weights_that_fail_in_an_evaluation_name_the_last_good_checkpoint(run, data_set, monkeypatch):
    args = run(do_eval=True, save_strategy="steps", save_steps=2, eval_steps=5)
    message = "logits for example . are not finite, at update 5 of [0-9]*: lower .*checkpoint-4 is the last good"
    update = loop._Training.update

    def poisoned_at_5(self, *rest):
        update(self, *rest)
        if self.progress.update == 5:
            self.model.get_input_embeddings().weight.data[:] = float("nan")

    monkeypatch.setattr(loop._Training, "update", poisoned_at_5)
    with pytest.raises(FloatingPointError, match=message):
        fit(args, data_set, {"": data_set}, lambda *_: {"accuracy": 0.5})


def test_a_run_whose_last_update_breaks_its_weights_is_no_success(run, data_set, monkeypatch):
    update = loop._Training.update

    def broken_at_the_end(self, *rest):
        update(self, *rest)
        if self.progress.update == self.total:
            next(self.model.parameters()).data[0, 0] = float("inf")

    monkeypatch.setattr(loop._Training, "update", broken_at_the_end)
    message = "a weight is not finite after update 3 of 3: .* with a wider range; no checkpoint was saved$"
    with pytest.raises(FloatingPointError, match=message):
        fit(run(save_strategy="no", max_steps=3), data_set)


# The best model, and an early end


SCORES = [0.5, 0.7, 0.7, 0.8, 0.9, 0.8]  # of the evaluations, one an epoch of two updates


@pytest.fixture
def scored(run, data_set):
    """Trains with SCORES; gives (results, weights at the end, weights at each evaluation, args)."""

    def train(first: int = 0, **changes):
        seen: list[torch.Tensor] = []
        args = run(do_eval=True, num_train_epochs=6, per_device_train_batch_size=11, **changes)
        progress, nan = iter(SCORES[first:]), float("nan")

        def metrics(outputs, examples: Dataset) -> dict[str, float]:
            value = next(progress) if len(examples) == len(data_set) else nan  # a few examples try the metrics out
            return {"accuracy": value, "loss": 1 - value}

        watched = loop.evaluate

        def evaluate(task, split, compute, first=None):
            if first is None:
                seen.append(weights(compute.args[0]))
            return watched(task, split, compute, first)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(loop, "evaluate", evaluate)
            results, model = fit(args, data_set, {"": data_set}, metrics)
        return results, weights(model), seen, args

    return train


@pytest.mark.parametrize("metric", [None, "accuracy", "eval_accuracy", "loss"])
def test_the_best_model_is_kept_where_asked_for(scored, metric):
    results, final, seen, _ = scored(load_best_model_at_end=True, metric_for_best_model=metric)
    assert results["eval_accuracy"] == 0.9 and results["best_update"] == 10
    assert torch.equal(final, seen[4]) and not torch.equal(final, seen[5])


@pytest.mark.parametrize("metric", ["accuracy", "loss"])
def test_a_model_whose_score_is_undefined_is_better_than_no_other(scored, monkeypatch, metric):
    nan = float("nan")
    monkeypatch.setattr("tests.training.test_best_model.SCORES", [nan, nan, 0.7, nan, 0.8, nan])
    results, final, seen, _ = scored(
        load_best_model_at_end=True, metric_for_best_model=metric, early_stopping_patience=2
    )
    assert results["best_update"] == 10 and torch.equal(final, seen[4]) and results["eval_accuracy"] == 0.8


@pytest.mark.parametrize("strategy", ["epoch", "no"])
def test_the_best_model_is_kept_where_no_checkpoint_is_due(scored, monkeypatch, strategy):
    monkeypatch.setattr("tests.training.test_best_model.SCORES", [0.5, 0.7, 0.9, 0.8])
    results, final, seen, _ = scored(load_best_model_at_end=True, eval_steps=3, save_strategy=strategy)
    assert results["best_update"] == 9 and torch.equal(final, seen[2])  # within an epoch


def test_the_last_model_is_kept_by_default(scored):
    results, final, seen, _ = scored()
    assert results["eval_accuracy"] == 0.8 and "best_update" not in results and torch.equal(final, seen[5])


@pytest.mark.parametrize(
    ("scores", "evaluations", "best"),
    [
        ([0.5, 0.7, 0.7, 0.6, 0.9, 0.8], 4, 2),
        ([0.5, 0.4, 0.7, 0.6, 0.6, 0.9], 5, 3),  # a better one in between begins the count again
        ([0.5, 0.4, 0.7, 0.8, 0.6, 0.7], 6, 4),  # the patience ends with the run
    ],
)
def test_a_run_ends_early_after_evaluations_without_progress(scored, capsys, monkeypatch, scores, evaluations, best):
    monkeypatch.setattr("tests.training.test_best_model.SCORES", scores)
    results, final, seen, _ = scored(early_stopping_patience=2, load_best_model_at_end=True)
    assert len(seen) == evaluations and results["train_updates"] == 2 * evaluations
    assert results["best_update"] == 2 * best and torch.equal(final, seen[best - 1])
    assert ("stopped early" in capsys.readouterr().out) == (evaluations < 6)


@pytest.mark.parametrize("changes", [{}, {"eval_steps": 3}], ids=["after_an_epoch", "within_it"])
def test_a_run_that_ended_early_stays_so_when_resumed(scored, changes):
    results, final, _, _ = scored(early_stopping_patience=1, **changes)
    again, model, seen, _ = scored(early_stopping_patience=1, resume=True, **changes)
    assert seen == [] and torch.equal(model, final)
    assert {k: v for k, v in again.items() if "runtime" not in k} == {
        k: v for k, v in results.items() if "runtime" not in k
    }


def test_a_metric_that_does_not_exist_is_an_error_before_training(scored, monkeypatch):
    monkeypatch.setattr(loop._Training, "update", lambda *_: pytest.fail("trained"))
    with pytest.raises(ValueError, match="^--metric_for_best_model f1 is none of accuracy, loss"):
        scored(metric_for_best_model="f1")


def test_evaluations_may_come_between_epochs(run, data_set):
    updates = []
    args = run(do_eval=True, eval_steps=5)
    accuracy = lambda *_: {"accuracy": len(updates)}  # noqa: E731
    with pytest.MonkeyPatch.context() as patch:
        evaluate = loop._Training.evaluate
        patch.setattr(loop._Training, "evaluate", lambda self: updates.append(self.progress.update) or evaluate(self))
        fit(args, data_set, {"": data_set}, accuracy)
    assert updates == [5, 10, 15, 18]


def test_the_newest_checkpoints_and_the_best_remain(scored):
    _, _, _, args = scored(load_best_model_at_end=True, save_total_limit=1, early_stopping_patience=3)
    assert checkpoint_names(Path(args.output_dir)) == ["checkpoint-10", "checkpoint-12"]
    shutil.rmtree(args.output_dir)
    _, _, _, args = scored(save_strategy="steps", save_steps=3, save_total_limit=3)
    assert checkpoint_names(Path(args.output_dir)) == ["checkpoint-12", "checkpoint-6", "checkpoint-9"]


def test_each_checkpoint_that_remains_has_its_best_beside_it(scored, monkeypatch):
    monkeypatch.setattr("tests.training.test_best_model.SCORES", [0.5, 0.7, 0.7, 0.8, 0.6, 0.9])
    options = {"load_best_model_at_end": True, "save_total_limit": 2}
    _, final, _, args = scored(**options)
    folder = Path(args.output_dir)
    assert checkpoint_names(folder) == ["checkpoint-10", "checkpoint-12", "checkpoint-8"]
    (folder / "checkpoint-12" / "model.safetensors").write_bytes(b"")
    results, again, _, _ = scored(first=5, resume=True, **options)
    assert results["best_update"] == 12 and torch.equal(again, final)


def test_no_checkpoints_are_written_where_none_are_wanted(scored):
    _, _, _, args = scored(save_strategy="no")
    assert checkpoint_names(Path(args.output_dir)) == []
