"""The results of a run: their entries in metrics.json, and the list of the files that hold them."""

import errno
import json
import os
from pathlib import Path

import pytest

import run_ner
from elmo_gpt_bert.training import launching, runs
from elmo_gpt_bert.training.errors import FileError, InputError
from elmo_gpt_bert.training.files import new_file, new_folder
from elmo_gpt_bert.training.reporting import score_table
from elmo_gpt_bert.training.results import (
    check_metric,
    count_samples,
    describe_results,
    goodness,
    main_scores,
    read_results,
    scores_of,
    spread_of_seeds,
    types_of,
    without_types,
)
from tests.support.glue_sample import write_model, write_vocabulary
from tests.support.ner_sample import write_conll
from tests.support.tiny_run import Arguments
from tests.training.test_resume import NONE


KINDS = ["PER", "creative-work", "loss", "mm", "a_mm", "a"]
ENTITIES = {"eval_f1": 0.5, "eval_accuracy": 0.75}
for number, kind in enumerate(KINDS):
    of_kind = {"f1": 0.5, "precision": 0.25, "recall": 1.0, "number": number}
    ENTITIES |= {f"eval_{name}_{kind}": value for name, value in of_kind.items()}
ENTITIES |= {"eval_predicted_classes": 3, "eval_loss": 0.5, "test_f1": 0.0}
PHENOMENA = {"eval_accuracy": 0.5, "eval_forward_accuracy": 0.25, "eval_backward_accuracy": 1.0}
for number, kind in enumerate(["syntax", "order_syntax", "mm", "order_mm", "order", "accuracy"]):
    of_kind = {"accuracy": 0.5, "forward_accuracy": 0.25, "backward_accuracy": 1.0, "number": number}
    PHENOMENA |= {f"eval_{name}_{kind}": value for name, value in of_kind.items()}  # some look like others' ends
SQUAD = {"eval_exact_match": 50.0, "eval_f1": 60.0, "eval_total": 4, "eval_HasAns_f1": 70.0, "eval_HasAns_total": 3}
SQUAD |= {"eval_best_f1": 61.0, "eval_best_f1_thresh": -1.5, "test_exact_match": 1.0}
CLASSES = {
    f"eval_{name}{suffix}": value
    for suffix in ("", "_mm")
    for name, value in {"accuracy": 0.5, "predicted_classes": 2, "loss": 0.7}.items()
}


def test_scores_seconds_and_numbers_of_examples_are_read_back_from_metrics_json():
    seconds = {"train_runtime": 1.0, "eval_runtime": 0.5, "save_runtime": 0.25, "start_runtime": 2.0}
    samples = {"train_samples": 4, "train_samples_total": 9, "eval_samples": 5, "eval_samples_total": 5}
    samples |= {"eval_samples_mm": 5, "eval_samples_total_mm": 6, "predict_samples": 2}
    training = {"train_loss": 0.25, "train_updates": 12, "best_update": 2}
    record = training | CLASSES | samples | seconds | {"seed": 42, "args": {}, "versions": {}, "runs": {}}
    assert read_results(json.loads(json.dumps(record))) == (training | CLASSES, seconds, samples)
    assert scores_of(record) == {name.removeprefix("eval_"): value for name, value in CLASSES.items()}
    of_type = {"eval_number_runtime": 1, "eval_f1_runtime": 0.5, "eval_f1_samples": 0.5}
    assert read_results(of_type) == (of_type, {}, {})


@pytest.mark.parametrize(
    ("results", "names"),
    [
        (ENTITIES, ["f1", "accuracy", "predicted_classes", "loss"]),
        (PHENOMENA, ["accuracy", "forward_accuracy", "backward_accuracy"]),
    ],
)
def test_the_scores_of_single_types_are_told_by_their_number(results, names):
    assert list(without_types(scores_of(results))) == names


def test_numbers_of_examples_have_the_names_that_people_script_against():
    data = {"train": range(9), "validation": range(9), "validation_mm": range(10), "test": range(1)}
    assert count_samples(data, {"train": 4, "validation": None, "test": 2}) == {
        **{"train_samples": 4, "train_samples_total": 9, "eval_samples": 9, "eval_samples_total": 9},
        **{"eval_samples_mm": 10, "eval_samples_total_mm": 10, "predict_samples": 1, "predict_samples_total": 1},
    }


def test_counts_and_thresholds_are_not_scores():
    assert list(main_scores(scores_of(SQUAD))) == ["exact_match", "f1", "HasAns_f1", "best_f1"]
    spread = spread_of_seeds([SQUAD, SQUAD])
    assert "eval_HasAns_total_mean" in spread and spread["test_exact_match_std"] == 0


def test_the_main_score_is_the_first_and_a_loss_is_better_when_it_is_lower():
    results = CLASSES | {"eval_accuracy_mm": 0.25, "eval_loss_mm": 0.1}
    assert goodness(results, None) == 0.5 and goodness(results, "accuracy_mm") == 0.25
    assert goodness(results, "eval_loss_mm") == -0.1
    lower = ["forward_perplexity", "backward_loss", "masked_lm_loss", "next_sentence_loss", "smape", "MAE", "rmse_mm"]
    higher = ["f1_loss", "recall_error", "loss_accuracy", "exact_answer"]  # of types and metrics with such names
    assert [goodness({f"eval_{name}": 2.0}, name) for name in lower + higher] == [-2.0] * 7 + [2.0] * 4
    with pytest.raises(InputError, match="--metric_for_best_model f1 is none of accuracy, loss, accuracy_mm, loss_mm"):
        check_metric(results, "f1")


COUNTS = [(CLASSES, "predicted_classes_mm"), (SQUAD, "HasAns_total"), (ENTITIES, "number_PER")]


@pytest.mark.parametrize("results, count", COUNTS)
def test_a_count_chooses_no_model(results, count):
    assert f"eval_{count}" in results
    with pytest.raises(InputError, match=f"--metric_for_best_model {count} is none of"):
        check_metric(results, count)


ENTRIES = {
    "eval_f1": 0.5,
    "eval_f1_loss": 0.75,
    "eval_precision_loss": 0.5,
    "eval_recall_loss": 1.0,
    "eval_number_loss": 7,
    "eval_f1_a_b-c": 0.25,
    "eval_precision_a_b-c": 0.125,
    "eval_recall_a_b-c": 0.0,
    "eval_number_a_b-c": 12,
    "eval_loss": 0.3,
    "eval_accuracy_mm": 0.25,
    "eval_accuracy": 0.75,
    "test_f1": 0.5,
    "test_f1_loss": 0.5,
}


def test_a_types_scores_are_told_from_those_of_the_whole():
    overall = {"f1": 0.5, "loss": 0.3, "accuracy_mm": 0.25, "accuracy": 0.75}
    assert without_types(scores_of(ENTRIES)) == overall
    assert without_types(scores_of(ENTRIES, "test")) == {"f1": 0.5, "f1_loss": 0.5}
    assert score_table(ENTRIES).splitlines()[5:] == [
        "",
        "| type | precision | recall | f1 | number |",
        "|---|---|---|---|---|",
        "| loss | 0.5000 | 1.0000 | 0.7500 | 7 |",
        "| a_b-c | 0.1250 | 0.0000 | 0.2500 | 12 |",
    ]
    other = {"eval_f1": 0.5, "test_number_PER": 3}
    assert "number" not in score_table(other) and types_of(scores_of(other, "test")) == ["PER"]


def test_seeds_that_found_entities_of_different_types_are_summarised():
    extra = {"eval_f1_LOC": 0.0, "eval_precision_LOC": 0.0, "eval_recall_LOC": 0.0, "eval_number_LOC": 0}

    def spread(*runs: dict[str, float]) -> dict[str, float]:
        return spread_of_seeds(runs)

    summary = spread({"eval_f1": 0.25, **extra}, {"eval_f1": 0.75})
    assert summary == spread({"eval_f1": 0.25}, {"eval_f1": 0.75}) and summary["eval_f1_median"] == 0.5


def test_the_best_model_by_the_score_of_a_type_called_loss_is_the_one_of_the_highest():
    def score(metric: str | None) -> float:
        return goodness(ENTRIES, metric)

    assert (score("f1_loss"), score("loss"), score("eval_loss"), score(None)) == (0.75, -0.3, -0.3, 0.5)


def test_the_files_of_one_script_go_when_another_overwrites_its_folder(run, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    names = ["predictions.tsv", "nbest_predictions.json", "outputs-1.safetensors", "RTE.tsv"]
    of_user = ["model-predictions.tsv", "notes.txt", "predictions.txt", "rte.tsv"]
    for name in [*names, *of_user]:
        (out / name).touch()
    args = run(overwrite_output_dir=True)
    assert type(args) is Arguments
    with launching.lock_output_folder(args):
        launching.remove_earlier_results(args, launching.make_accelerator(args))
    assert sorted(path.name for path in out.iterdir()) == of_user


def test_a_run_that_fails_before_its_first_file_leaves_nothing_that_refuses_the_next(run, tmp_path):
    out, args = tmp_path / "out", run()
    with pytest.raises(OSError, match="full"), launching.lock_output_folder(args):
        raise OSError("full")
    assert not out.exists()
    out.mkdir()
    launching.keep_global_batch(run(do_train=True))  # of a run that was killed
    assert (out / ".batch.json").is_file()
    with launching.lock_output_folder(args):
        pass
    assert out.is_dir()  # it was there before


@pytest.mark.parametrize("create", [new_file, new_folder])
def test_what_fails_on_the_way_leaves_what_was_there(tmp_path, create):
    path = tmp_path / "kept"
    if create is new_file:
        path.write_text("old", encoding="utf-8")
    before = sorted(tmp_path.rglob("*"))

    def write(temporary: Path) -> None:
        if create is new_folder:
            temporary = temporary / "file"
        temporary.write_text("half", encoding="utf-8")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with (
        pytest.raises(FileError, match=r"cannot write .*kept: No space left on device\. Name another"),
        create(path, "Name another") as temporary,
    ):
        write(temporary)
    with pytest.raises(KeyboardInterrupt), create(path) as temporary:
        raise KeyboardInterrupt
    assert sorted(tmp_path.rglob("*")) == before


def test_the_spread_is_of_scores_that_all_seeds_have():
    """A finished seed has those of a test set that --do_predict of another command read."""
    runs = [{"eval_f1": 0.5, "test_f1": 0.25}, {"eval_f1": 1.0}]
    assert spread_of_seeds(runs).keys() == spread_of_seeds([{"eval_f1": 0.5}]).keys()
    assert spread_of_seeds(runs)["eval_f1_mean"] == 0.75


def test_a_type_that_only_the_model_sees_chooses_no_model():
    seen = {"eval_f1": 0.5, "eval_f1_PER": 0.5, "eval_number_PER": 2, "eval_f1_LOC": 0.0, "eval_number_LOC": 0}
    assert goodness(seen, "f1_PER") == 0.5
    check_metric(seen, "f1_PER")
    with pytest.raises(InputError, match="f1_LOC is none of f1, f1_PER$"):
        check_metric(seen, "f1_LOC")


def test_a_type_is_not_called_as_a_statistic_over_seeds_is(run):
    runs._check_names(ENTITIES)
    results = ENTITIES | {"test_f1_min": 0.5, "test_number_min": 1}
    with pytest.raises(InputError, match="^the type min has the name of a statistic over seeds"):
        runs.repeat(lambda _: results, run(do_eval=True, seeds=2))


@pytest.mark.parametrize("saving", [NONE, ()])
def test_scores_of_one_test_set_are_never_beside_the_name_of_another(tmp_path, saving):
    words = f"--model_name_or_path {write_model(tmp_path)} --tokenizer_name {write_vocabulary(tmp_path)} --do_train"
    data = write_conll(tmp_path / "data.txt", range(6))
    words += f" --do_eval --train_file {data} --validation_file {data} --max_seq_length 32 --max_steps 2"
    argv, other = [*words.split(), *saving, "--output_dir", str(tmp_path / "out")], tmp_path / "untagged.txt"
    other.write_text("film\n\ncast\n", encoding="utf-8")
    first = run_ner.main([*argv, "--do_predict", "--test_file", data])
    assert run_ner.main([*argv, "--resume"])["test_f1_PER"] == first["test_f1_PER"]
    argv += ["--resume", "--do_predict", "--test_file", str(other)]
    if saving == NONE:
        with pytest.raises(ValueError, match="out is of a run with test data .*: --resume continues the same run"):
            run_ner.main(argv)
    else:  # the model is that of the last checkpoint
        assert not [name for name in run_ner.main(argv) if name.startswith("test_")]


# What the console shows


def test_types_and_seeds_are_shown_as_tables_and_all_other_results_line_by_line():
    results = {"train_updates": 1200, "eval_f1": 0.5, "eval_precision": 0.25, "eval_f1_PER": 0.125}
    results |= {"eval_precision_PER": 1.0, "eval_number_PER": 2345, "eval_f1_LOC": 0.0, "eval_number_LOC": 0}
    seeds = spread_of_seeds([{"eval_f1": 0.5}, {"eval_f1": 0.25}])
    assert describe_results(results | seeds).splitlines() == [
        "  train_updates    1,200",
        "  eval_f1         0.5000",
        "  eval_precision  0.2500",
        "",
        "  eval     precision      f1  number",
        "  PER         1.0000  0.1250   2,345",
        "  LOC                 0.0000       0",
        "  overall     0.2500  0.5000",
        "",
        "  seeds      mean  median     std     min     max",
        "  eval_f1  0.3750  0.3750  0.1768  0.2500  0.5000",
    ]


def test_a_score_that_ends_like_a_statistic_of_seeds_is_a_line():
    assert describe_results({"eval_accuracy_mean": 0.5}) == "  eval_accuracy_mean  0.5000"


@pytest.mark.parametrize("results", [ENTITIES, PHENOMENA, SQUAD, CLASSES])
def test_each_result_has_a_line_or_a_cell_in_a_table(results):
    lines, *tables = describe_results(results).split("\n\n")
    assert lines.split()[::2] == [
        f"{prefix}_{name}" for prefix in ("eval", "test") for name in without_types(scores_of(results, prefix))
    ]
    kinds = types_of(scores_of(results))
    assert [[row.split()[0] for row in table.splitlines()] for table in tables] == [["eval", *kinds, "overall"]][
        : len(kinds)
    ]
    assert sum(len(row.split()) - 1 for table in tables for row in table.splitlines()[1:-1]) == len(results) - len(
        lines.splitlines()
    )
