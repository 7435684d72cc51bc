"""The results of a run: their entries in metrics.json, and the list of the files that hold them."""

import errno
import json
import os
from pathlib import Path

import pytest

from elmo_gpt_bert.training import launching
from elmo_gpt_bert.training.errors import FileError, InputError
from elmo_gpt_bert.training.files import new_file, new_folder
from elmo_gpt_bert.training.output_folder import ResultFiles, read_result_files, record_result_files
from elmo_gpt_bert.training.results import Results, Scores, SeedSpread, goodness
from elmo_gpt_bert.training.samples import Samples
from tests.tiny_run import Arguments


SAMPLES = {
    "train": Samples(4, 9),
    "validation": Samples(5, 5),
    "validation_mm": Samples(5, 6),
    "test": Samples(2, None),
}
ENTITIES = {
    kind: {"f1": 0.5, "precision": 0.25, "recall": 1.0, "number": number}
    for number, kind in enumerate(["PER", "creative-work", "loss", "mm", "a_mm", "a"])
}
SQUAD = {"exact_match": 50.0, "f1": 60.0, "total": 4, "HasAns_f1": 70.0, "HasAns_total": 3, "best_f1": 61.0}
SQUAD |= {"best_f1_thresh": -1.5}
PHENOMENA = {  # some names look like the end of others
    kind: {"accuracy": 0.5, "forward_accuracy": 0.25, "backward_accuracy": 1.0, "number": number}
    for number, kind in enumerate(["syntax", "order_syntax", "mm", "order_mm", "order", "accuracy"])
}
RESULTS = {
    "classes": Results(
        0.25,
        12,
        validation={suffix: Scores({"accuracy": 0.5}, {}, 2, 0.7) for suffix in ("", "_mm")},
        seconds={"train": 1.0, "eval": 0.5, "save": 0.25, "start": 2.0},
        samples=SAMPLES,
    ),
    "a regression": Results(validation={"": Scores({"spearmanr": 0.5, "pearson": -0.25}, loss=1.5)}),
    "entities": Results(
        0.5, 3, 2, {"": Scores({"f1": 0.5, "accuracy": 0.75}, ENTITIES, 3, 0.5)}, {"": Scores({"f1": 0.0})}
    ),
    "minimal pairs": Results(
        validation={"": Scores({"accuracy": 0.5, "forward_accuracy": 0.25, "backward_accuracy": 1.0}, PHENOMENA)}
    ),
    "answers": Results(validation={"": Scores(SQUAD)}, test={"": Scores({"exact_match": 1.0})}),
    "predictions": Results(seconds={"predict": 1.0}, samples={"test": Samples(3, 3)}),
}


@pytest.mark.parametrize("kind", RESULTS)
def test_results_are_read_back_from_metrics_json_as_they_were(kind):
    record = json.loads(json.dumps(RESULTS[kind].flat() | {"seed": 42, "args": {}, "versions": {}, "runs": {}}))
    assert Results.read(record) == RESULTS[kind]


def test_metrics_json_has_the_names_that_people_script_against():
    flat = RESULTS["classes"].flat()
    assert list(flat)[:8] == [
        *("train_loss", "train_updates", "eval_accuracy", "eval_predicted_classes", "eval_loss"),
        *("eval_accuracy_mm", "eval_predicted_classes_mm", "eval_loss_mm"),
    ]
    assert {"train_runtime", "eval_runtime", "save_runtime", "start_runtime"} < flat.keys()
    assert {name: flat[name] for name in flat if "samples" in name} == {
        **{"train_samples": 4, "train_samples_total": 9, "eval_samples": 5, "eval_samples_total": 5},
        **{"eval_samples_mm": 5, "eval_samples_total_mm": 6, "predict_samples": 2},
    }
    assert RESULTS["entities"].flat()["eval_f1_creative-work"] == 0.5 and "best_update" in RESULTS["entities"].flat()


def test_counts_and_thresholds_are_not_scores():
    (scores,) = RESULTS["answers"].validation.values()
    assert list(scores.scores) == ["exact_match", "f1", "HasAns_f1", "best_f1"]
    spread = SeedSpread.of([RESULTS["answers"], RESULTS["answers"]])
    assert "eval_HasAns_total_mean" in spread.flat() and spread.flat()["test_exact_match_std"] == 0


def test_the_main_score_is_the_first_and_a_loss_is_better_when_it_is_lower():
    validation = RESULTS["classes"].validation | {"_mm": Scores({"accuracy": 0.25}, loss=0.1)}
    assert goodness(validation, None) == 0.5 and goodness(validation, "accuracy_mm") == 0.25
    assert goodness(validation, "eval_loss_mm") == -0.1
    with pytest.raises(InputError, match="metric f1 is none of accuracy, loss, accuracy_mm, loss_mm"):
        goodness(validation, "f1")


COUNTS = [("classes", "predicted_classes_mm"), ("answers", "HasAns_total"), ("entities", "number_PER")]


@pytest.mark.parametrize("results, count", COUNTS)
def test_a_count_chooses_no_model(results, count):
    assert f"eval_{count}" in RESULTS[results].flat()
    with pytest.raises(InputError, match=f"metric {count} is none of"):
        goodness(RESULTS[results].validation, count)


def test_the_files_of_one_script_go_when_another_overwrites_its_folder(run, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    names = ["predictions.tsv", "nbest_predictions.json", "outputs-1.safetensors"]
    record_result_files(out, predictions=names[:1])
    record_result_files(out, predictions=names[1:2], outputs=names[2:])
    assert read_result_files(out) == ResultFiles(sorted(names[:2]), names[2:])
    for name in [*names, "notes.txt"]:
        (out / name).touch()
    args = run(overwrite_output_dir=True)
    assert type(args) is Arguments
    with launching.lock_output_folder(args):
        launching.remove_earlier_results(args, launching.make_accelerator(args))
    assert [path.name for path in out.iterdir()] == ["notes.txt"]


def test_a_run_that_fails_before_its_first_file_leaves_nothing_that_refuses_the_next(run, tmp_path):
    out, args = tmp_path / "out", run()
    with pytest.raises(OSError, match="full"), launching.lock_output_folder(args):
        record_result_files(out, predictions=["predictions.tsv"])
        raise OSError("full")
    assert not out.exists()
    out.mkdir()
    record_result_files(out, predictions=["predictions.tsv"])  # by a run that was killed
    with launching.lock_output_folder(args):
        pass
    assert out.is_dir()  # it was there before


@pytest.mark.parametrize(
    "content",
    [
        "[",
        "[]",
        "{}",
        '{"predictions": ["../a"], "outputs": []}',
        '{"predictions": [".."], "outputs": []}',
        '{"predictions": 1}',
    ],
)
def test_a_damaged_list_of_files_is_one_line_and_removes_nothing(tmp_path, content):
    (tmp_path / ".results.json").write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match=r"results\.json.*(is not JSON|remove it)") as error:
        read_result_files(tmp_path)
    assert "\n" not in str(error.value)


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
