"""Outputs that runs keep, and their mean: scored and written as the outputs of one model are."""

import errno
import functools
import json
import os
import shutil
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from datasets import Dataset
from safetensors.numpy import load_file, save_file
from transformers import AutoModelForSequenceClassification

import run_glue
import run_ner
import run_swag
from elmo_gpt_bert.tasks.ner.data import convert_tags
from elmo_gpt_bert.training import files, task
from elmo_gpt_bert.training import runs as training_runs
from elmo_gpt_bert.training.flags import parse_arguments
from elmo_gpt_bert.training.loop import Trained
from modeling import ElmoForTokenClassification
from tests.support.choices_sample import write_task as write_choices
from tests.support.glue_sample import LABELS, SIZES, write_model, write_task, write_vocabulary
from tests.support.ner_sample import read_columns, sentence, write_elmo, write_folder
from tests.support.processes import fork, wait


pytestmark = pytest.mark.slow


BOTH = ["--do_eval", "--do_predict"]


def rte(folder: Path) -> list[str]:
    return ["--task_name", "rte", "--data_dir", str(write_task(folder, "RTE"))]


DATA = {
    "rte": rte,
    "stsb": lambda folder: ["--task_name", "stsb", "--data_dir", str(write_task(folder, "STS-B"))],
    "ner": lambda folder: ["--data_dir", str(write_folder(folder / "conll"))],
    "swag": lambda folder: ["--task_name", "swag", "--data_dir", str(write_choices(folder, "swag"))],
}
SCRIPTS = {"rte": run_glue, "stsb": run_glue, "ner": run_ner, "swag": run_swag}


def short_run(folder: Path) -> list[str]:
    """A run on a tiny model of random weights, other ones for each seed."""
    model, vocabulary = write_model(folder), write_vocabulary(folder)
    return [
        *("--model_name_or_path", str(model), "--tokenizer_name", str(vocabulary), "--max_seq_length", "32"),
        *("--learning_rate", "0.01", "--max_steps", "3", "--save_strategy", "no"),
    ]


@pytest.fixture
def flags(tmp_path) -> list[str]:
    return short_run(tmp_path)


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Callable[[str], tuple[list[Path], list[list[dict]], list[str]]]:
    """Trains three runs of a task, with other seeds and other batches, that keep their outputs; gives their folders,
    which no test may change, the outputs that each final model, loaded again, has for the validation and the test set,
    and the flags of the data.
    """

    @functools.cache
    def train(name: str) -> tuple[list[Path], list[list[dict]], list[str]]:
        top, script = tmp_path_factory.mktemp(name), SCRIPTS[name]
        flags, data, folders = short_run(top), DATA[name](top), [top / name for name in ("a", "b", "c")]
        for seed, folder in enumerate(folders):
            more = ["--seed", str(seed), "--per_device_eval_batch_size", str(1 + 2 * seed), "--save_outputs"]
            script.main([*flags, *data, "--do_train", *BOTH, *more, "--output_dir", str(folder)])
        outputs = [predicted(script, folder, top / "fresh", *data) for folder in folders]
        return folders, outputs, data

    return train


def predicted(script, model: Path, output: Path, *data: str) -> list[dict]:
    """What the model in a folder computes for the validation and the test set."""
    seen = []
    with pytest.MonkeyPatch.context() as patch:
        predict = task.predict
        patch.setattr(task, "predict", lambda *parts, **how: seen.append(predict(*parts, **how)) or seen[-1])
        script.main([*again(model, output), *data, *BOTH, "--overwrite_output_dir"])
    return seen


def again(model: Path, output: Path) -> list[str]:
    return ["--model_name_or_path", str(model), "--max_seq_length", "32", "--output_dir", str(output)]


def copied(folders: list[Path], target: Path) -> list[Path]:
    """To be changed."""
    return [Path(shutil.copytree(folder, target / folder.name)) for folder in folders]


def outputs_of_the_test_set(folder: Path) -> Path:
    return min(folder.glob("outputs-*"), key=lambda path: path.stat().st_size)  # it is the smaller one


def average(outputs: list[list[dict]], split: int, name: str = "logits") -> list[np.ndarray]:
    """By hand, of the validation (0) or the test set (1)."""
    return [np.mean(arrays, axis=0) for arrays in zip(*(each[split][name] for each in outputs), strict=True)]


def kept(folder: Path) -> dict[str, dict[str, np.ndarray]]:
    return {path.name: load_file(path) for path in folder.glob("outputs-*.safetensors")}


def ensemble(script, folders: list[Path], output: Path, *more: str) -> dict[str, float]:
    names = ",".join(map(str, folders))
    return script.main([*again(folders[-1], output), "--ensemble", names, *BOTH, *more])


def assert_close(ours: dict, theirs: dict) -> None:
    assert ours.keys() == theirs.keys() and len(ours) == 2
    for name, tensors in ours.items():
        for key in tensors:
            np.testing.assert_allclose(tensors[key], theirs[name][key], atol=1e-6)


def assert_scored_by_itself(results: dict, folders: list[Path]) -> None:
    """An ensemble is none of its members."""
    losses = [json.loads((folder / "metrics.json").read_text(encoding="utf-8"))["eval_loss"] for folder in folders]
    assert len({results["eval_loss"], *losses}) == 4


# The mean


def test_classes_are_those_of_the_mean_of_the_logits(tmp_path, runs):
    folders, outputs, data = runs("rte")
    results = ensemble(run_glue, folders, tmp_path / "mean", *data)
    logits = torch.from_numpy(np.stack(average(outputs, 0)))
    order = ["entailment", "not_entailment"]
    labels = torch.tensor([order.index(LABELS["RTE"][row % 2]) for row in range(SIZES["dev"])])
    assert results["eval_loss"] == pytest.approx(torch.nn.functional.cross_entropy(logits, labels).item())
    assert results["eval_accuracy"] == (logits.argmax(-1) == labels).double().mean().item()
    assert_scored_by_itself(results, folders)
    rows = (tmp_path / "mean" / "predictions.tsv").read_text(encoding="utf-8").splitlines()[1:]
    assert rows == [f"{row}\t{order[logits.argmax()]}" for row, logits in enumerate(average(outputs, 1))]


def test_a_regression_is_the_mean_of_the_numbers(tmp_path, runs):
    folders, outputs, data = runs("stsb")
    results = ensemble(run_glue, folders, tmp_path / "mean", *data)
    numbers = np.concatenate(average(outputs, 0))
    labels = [float(LABELS["STS-B"][row % 3]) for row in range(SIZES["dev"])]
    assert results["eval_loss"] == pytest.approx(np.mean((numbers - labels) ** 2))
    assert results["eval_pearson"] == pytest.approx(np.corrcoef(numbers, labels)[0, 1], abs=1e-3)  # numbers are close
    assert_scored_by_itself(results, folders)
    rows = (tmp_path / "mean" / "predictions.tsv").read_text(encoding="utf-8").splitlines()[1:]
    written = [float(row.split("\t")[1]) for row in rows]
    np.testing.assert_allclose(written, np.concatenate(average(outputs, 1)), atol=6e-5)


def test_tags_are_those_of_the_mean_at_each_token(tmp_path, runs):
    folders, outputs, data = runs("ner")
    results = ensemble(run_ner, folders, tmp_path / "mean", *data)
    assert_scored_by_itself(results, folders)
    names = ["O", "B-PER", "I-PER", "B-WORK", "I-WORK"]
    rows = read_columns(tmp_path / "mean" / "predictions.conll")
    assert len(rows) == len(outputs[0][1]["logits"])
    for number, (row, logits) in enumerate(zip(rows, average(outputs, 1), strict=True)):
        words, _ = sentence(number + 2)
        assert len(logits) == len(words) + 2  # a token a word, between [CLS] and [SEP]
        tags = [names[best] for best in logits[1:-1].argmax(-1)]
        assert [line[-1] for line in row] == convert_tags(tags, "iob2")


def test_with_a_crf_tags_are_those_of_the_mean_of_the_best_sequences_scores(tmp_path):
    elmo, data = write_elmo(tmp_path / "elmo"), ["--data_dir", str(write_folder(tmp_path / "conll"))]
    names = ["O", "B-PER", "I-PER", "B-WORK", "I-WORK"]
    numbers = {"id2label": dict(enumerate(names)), "label2id": {name: number for number, name in enumerate(names)}}
    data += ["--tokenizer_name", elmo]
    folders, outputs = [tmp_path / name for name in ("a", "b", "c")], []
    for folder in folders:
        model = ElmoForTokenClassification.from_pretrained(elmo, **numbers, ignore_mismatched_sizes=True)
        model.classifier.weight.data.normal_(std=99)  # its inputs hardly differ
        model.save_pretrained(tmp_path / "model")
        run_ner.main([*again(tmp_path / "model", folder), *data, *BOTH, "--save_outputs"])
        outputs += [predicted(run_ner, tmp_path / "model", tmp_path / "fresh", *data)]
    ensemble(run_ner, folders, tmp_path / "mean", *data, "--model_name_or_path", str(tmp_path / "model"))
    mean, *each = (
        [[names[best] for best in logits.argmax(-1)] for logits in rows]
        for rows in (average(outputs, 1), *(run[1]["logits"] for run in outputs))
    )
    rows = read_columns(tmp_path / "mean" / "predictions.conll")
    assert [[line[-1] for line in row] for row in rows] == [convert_tags(tags, "iob2") for tags in mean]
    assert mean not in each and len({*chain(*mean)}) > 1


def test_choices_are_those_of_the_mean(tmp_path, runs):
    folders, outputs, data = runs("swag")
    results = ensemble(run_swag, folders, tmp_path / "mean", *data)
    assert_scored_by_itself(results, folders)
    rows = (tmp_path / "mean" / "predictions.csv").read_text(encoding="utf-8").splitlines()[1:]
    assert rows == [f"{row},{logits.argmax()}" for row, logits in enumerate(average(outputs, 1))]


def test_scores_as_low_as_float32_goes_have_a_mean(tmp_path):
    lowest = np.finfo(np.float32).min
    data_set = Dataset.from_dict({"input_ids": [[1, 2], [3, 4, 5]]})
    rows = [[np.array([run, lowest]), np.array([lowest, -run, 2.0])] for run in range(7)]
    for number, arrays in enumerate(rows):
        folder = tmp_path / f"run-{number}"
        folder.mkdir()
        outputs = {"start_logits": [array.astype(np.float32) for array in arrays]}
        task.save_outputs(outputs, data_set, {0: "x"}, folder)
    folders = task.members(f"{tmp_path}/run-*", str(tmp_path / "out"))
    mean = task.average(data_set, folders, "a model", {0: "x"})["start_logits"]
    assert [array.tolist() for array in mean] == [[3.0, lowest], [lowest, -3.0, 2.0]]
    assert all(array.dtype == np.float32 for array in mean)


def test_two_processes_keep_and_average_what_one_does(tmp_path, runs):
    folders, _, data = runs("rte")
    more = ["--save_outputs", "--per_device_eval_batch_size", "2"]
    ensemble(run_glue, folders, tmp_path / "one", *data, *more)

    def two() -> None:
        run_glue.main([*again(folders[0], tmp_path / "a2"), *data, *BOTH, *more])
        ensemble(run_glue, [tmp_path / "a2", *folders[1:]], tmp_path / "two", *data, *more)

    assert wait(fork(two, 2)) == [0, 0]
    assert_close(kept(tmp_path / "a2"), kept(folders[0]))
    assert_close(kept(tmp_path / "two"), kept(tmp_path / "one"))
    texts = {(tmp_path / name / "predictions.tsv").read_text(encoding="utf-8") for name in ("one", "two")}
    assert len(texts) == 1


def test_an_ensemble_may_be_of_ensembles(tmp_path, runs):
    folders, outputs, data = runs("rte")
    for name, pair in (("ab", folders[:2]), ("bc", folders[1:])):
        ensemble(run_glue, pair, tmp_path / name, *data, "--save_outputs")
    args = ["--ensemble", f"{tmp_path / 'ab'},{tmp_path / 'bc'}", "--save_outputs"]
    run_glue.main([*again(folders[0], tmp_path / "mean"), *args, *data, *BOTH])
    weighted = [outputs[0], outputs[1], outputs[1], outputs[2]]
    found = sorted((tensors["logits"] for tensors in kept(tmp_path / "mean").values()), key=len)
    for logits, split in zip(found, (1, 0), strict=True):  # the test set is the smaller one
        np.testing.assert_allclose(logits.reshape(-1, 2), average(weighted, split), atol=1e-6)


# What is kept


@pytest.mark.parametrize("best", [[], ["--load_best_model_at_end", "--metric_for_best_model", "loss"]])
def test_the_final_models_outputs_are_kept_and_not_those_on_the_way(tmp_path, flags, best):
    data = ["--task_name", "mnli", "--data_dir", str(write_task(tmp_path, "MNLI"))]
    more = ["--max_steps", "6", "--eval_steps", "1", "--save_outputs", *best, "--output_dir", str(tmp_path / "out")]
    results = run_glue.main([*flags, *data, "--do_train", *BOTH, *more])
    assert results.get("best_update", 6) < 6 or not best
    fresh = predicted(run_glue, tmp_path / "out", tmp_path / "fresh", *data)
    sizes = [SIZES["dev"], SIZES["dev"] + 1, SIZES["test"], SIZES["test"] + 1]
    assert [len(outputs["logits"]) for outputs in fresh] == sizes
    found = {len(tensors["logits.shapes"]): tensors["logits"] for tensors in kept(tmp_path / "out").values()}
    assert found.keys() == set(sizes)  # the mismatched test set has the texts of the matched validation set
    for outputs in fresh:
        np.testing.assert_allclose(found[len(outputs["logits"])], np.concatenate(outputs["logits"]), atol=1e-6)


def test_the_outputs_of_an_earlier_run_do_not_stay(tmp_path, flags):
    data = [*rte(tmp_path), "--output_dir", str(tmp_path / "out")]
    run_glue.main([*flags, *data, *BOTH, "--save_outputs"])
    assert len(kept(tmp_path / "out")) == 2
    run_glue.main([*flags, *data, *BOTH, "--overwrite_output_dir"])
    assert not kept(tmp_path / "out")


def test_each_seed_keeps_its_outputs_and_their_folder_stands_for_the_best(tmp_path, flags):
    data = rte(tmp_path)
    out = tmp_path / "out"
    argv = [*flags, *data, "--do_train", *BOTH, "--seeds", "3", "--save_outputs", "--output_dir", str(out)]
    best = run_glue.main(argv)
    folders = sorted(out.glob("seed-*"))
    assert [len(kept(folder)) for folder in (out, *folders)] == [0, 2, 2, 2]
    mean = [*again(out, tmp_path / "mean"), *data, *BOTH, "--overwrite_output_dir"]
    results = run_glue.main([*mean, "--ensemble", f"{out}/seed-*"])
    assert_scored_by_itself(results, folders)
    seed = json.loads((out / "metrics.json").read_text(encoding="utf-8"))["seed"]
    other = next(folder for folder in folders if folder.name != f"seed-{seed}")
    pairs = [f"{first},{other}" for first in (out, out / f"seed-{seed}")]
    losses = {run_glue.main([*mean, "--ensemble", pair])["eval_loss"] for pair in pairs}
    assert len(losses) == 1 and losses != {best["eval_loss"]}
    with pytest.raises(ValueError, match=f"has the run .*seed-{seed} twice"):
        run_glue.main([*mean, "--ensemble", f"{out},{out}/seed-*"])


def test_runs_that_were_replaced_are_no_part_of_a_pattern(tmp_path, flags, monkeypatch, capsys):
    data, out, train = rte(tmp_path), tmp_path / "out", training_runs.train
    monkeypatch.setattr(training_runs, "train", lambda *parts: collapsed(train(*parts), parts[2].seed == 43))
    argv = [*flags, *data, "--do_train", *BOTH, "--seeds", "2", "--max_restarts", "1", "--save_outputs"]
    run_glue.main([*argv, "--output_dir", str(out)])
    assert json.loads((out / "metrics.json").read_text(encoding="utf-8"))["replaced_runs"].keys() == {"43"}
    assert kept(out / "seed-43").keys() == kept(out / "seed-44").keys()  # it could be averaged in
    mean = [*again(out, tmp_path / "mean"), *data, *BOTH, "--overwrite_output_dir", "--ensemble"]
    results = run_glue.main([*mean, f"{out}/seed-*"])
    assert f"the mean of {out}/seed-42, {out}/seed-44\n" in capsys.readouterr().out
    assert run_glue.main([*mean, f"{out}/seed-42,{out}/seed-44"])["eval_loss"] == results["eval_loss"]
    assert run_glue.main([*mean, f"{out}/seed-42,{out}/seed-43"])["eval_loss"] != results["eval_loss"]  # asked for
    with pytest.raises(ValueError, match="has only runs that --max_restarts replaced: give two or more"):
        run_glue.main([*mean, f"{out}/seed-4[3]"])


def collapsed(trained: Trained, yes: bool) -> Trained:
    trained.results["eval_predicted_classes"] = 1 if yes else 2
    return trained


@pytest.mark.parametrize(
    "content",
    [b"", b'{"seed": 4', b'{"seed": 4, "seed": 5}', b"[1]", b"\xff\xfe", b"[" * 100_000]
    + [b'{"runs": {}}', b'{"runs": {}, "seed": "../../a"}', b'{"runs": 1, "seed": 4}'],
)
def test_a_damaged_record_of_a_run_is_one_line(run, tmp_path, content):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    (tmp_path / "b" / "metrics.json").write_bytes(content)
    args = run(do_train=False, do_eval=True, ensemble=f"{tmp_path}/a,{tmp_path}/b")
    with pytest.raises(ValueError, match=r"b/metrics.json is .*: copy it again, or repeat its run$") as error:
        task.members(args.ensemble, args.output_dir)
    assert "\n" not in str(error.value)


def test_seeds_that_kept_no_outputs_are_not_resumed_for_them(tmp_path, flags):
    data = rte(tmp_path)
    argv = [*flags, *data, "--do_train", "--do_eval", "--seeds", "2", "--output_dir", str(tmp_path / "out")]
    run_glue.main(argv)
    with pytest.raises(ValueError, match="seed-42 has no saved outputs: --save_outputs with --model_name_or_path"):
        run_glue.main([*argv, "--resume", "--save_outputs"])


def test_a_disk_too_full_for_the_outputs_is_an_error_with_a_remedy(tmp_path, flags, monkeypatch):
    def full(path: Path) -> None:
        if "outputs" in path.name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files, "sync", full)
    data = [*rte(tmp_path), "--output_dir", str(tmp_path / "out")]
    with pytest.raises(OSError, match=r"cannot write .*outputs-\w+.safetensors: .*No space left .*Make room, choose"):
        run_glue.main([*flags, *data, "--do_eval", "--save_outputs"])
    assert not (tmp_path / "out").exists()  # the same command can be given again


# What has no mean


def test_flags_that_contradict_each_other_are_refused(flags, capsys):
    for more, message in (
        (["--do_train", "--ensemble", "a,b"], "averages runs that were trained before: give --do_train false"),
        (["--do_train", "--save_outputs"], "--save_outputs keeps what --do_eval and --do_predict compute"),
    ):
        with pytest.raises(SystemExit):
            parse_arguments(run_glue.GlueArguments, [*flags, "--task_name", "rte", "--output_dir", "o", *more])
        assert message in capsys.readouterr().err


def test_folders_that_are_no_ensemble_cost_no_results(tmp_path, flags):
    out = tmp_path / "out"
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    data = rte(tmp_path)
    run_glue.main([*flags, *data, "--do_eval", "--output_dir", str(out)])
    (out / "seed-42").mkdir()
    for names, message in (
        ("a,nowhere", "there is no folder '.*nowhere'"),
        ("a,none-*", r"there is no folder '.*none-\*'"),
        ("a,", "there is no folder ''"),
        ("a", "is one run: give two or more, with commas between them"),
        ("a,b,a/../b", "has the run .*a/../b twice"),
        ("a,out", "out holds .*out, a run of --ensemble: choose another"),
        ("a,out/seed-42", "out holds .*out/seed-42, a run of --ensemble: choose another"),
    ):
        given = ",".join(name and f"{tmp_path}/{name}" for name in names.split(","))
        with pytest.raises((ValueError, FileNotFoundError), match=message):
            run_glue.main([*flags, *data, "--do_eval", "--ensemble", given, "--output_dir", str(out), "--resume"])
    assert (out / "metrics.json").exists()


@pytest.mark.parametrize("name", ["ner", "swag"])
def test_outputs_that_one_run_lacks_are_told_before_earlier_results_go(tmp_path, runs, name):
    folders, _, data = runs(name)
    folders, script = copied(folders, tmp_path), SCRIPTS[name]
    out = tmp_path / "mean"
    ensemble(script, folders, out, *data)
    before = {path: path.read_bytes() for path in out.iterdir() if path.is_file()}
    outputs_of_the_test_set(folders[1]).unlink()
    with pytest.raises(FileNotFoundError, match="b has no outputs for these [45] examples"):
        ensemble(script, folders, out, *data, "--overwrite_output_dir")
    assert {path: path.read_bytes() for path in out.iterdir() if path.is_file()} == before


@pytest.fixture
def pair(tmp_path, runs):
    """Two runs that kept their outputs for RTE's validation set, and their ensemble with further flags."""
    trained, _, data = runs("rte")
    folders = copied(trained[:2], tmp_path)
    for folder in folders:
        outputs_of_the_test_set(folder).unlink()
    argv = [*again(tmp_path / "a", tmp_path / "mean"), *data, "--ensemble", f"{folders[0]},{folders[1]}"]
    return SimpleNamespace(folders=folders, data=data, main=lambda *more: run_glue.main([*argv, "--do_eval", *more]))


@pytest.mark.parametrize(
    "more", [["--do_predict"], ["--max_seq_length", "9"], ["--max_eval_samples", "3"], ["--tokenizer_name", "other"]]
)
def test_outputs_for_other_inputs_are_not_used(pair, tmp_path, more):
    (tmp_path / "other").mkdir()
    words = write_vocabulary(tmp_path / "other")
    words.write_text("\n".join(sorted(words.read_text(encoding="utf-8").split())), encoding="utf-8")
    more = [str(words) if word == "other" else word for word in more]
    with pytest.raises(FileNotFoundError, match="a has no outputs for these [345] examples: it was run on other data"):
        pair.main(*more)


def test_a_model_that_numbers_the_classes_otherwise_is_refused(pair, tmp_path):
    names = ("not_entailment", "entailment")
    numbers = {"id2label": dict(enumerate(names)), "label2id": {name: number for number, name in enumerate(names)}}
    AutoModelForSequenceClassification.from_pretrained(pair.folders[1], **numbers).save_pretrained(tmp_path / "other")
    shutil.rmtree(pair.folders[1])
    argv = [
        *again(tmp_path / "other", pair.folders[1]),
        "--tokenizer_name",
        str(write_vocabulary(tmp_path)),
        *pair.data,
    ]
    run_glue.main([*argv, "--do_eval", "--save_outputs"])
    with pytest.raises(ValueError, match="b was trained on the labels .*not_.*, .*a on {.*: only outputs for the"):
        pair.main()


def flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 4
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda path: os.truncate(path, path.stat().st_size - 4), "it cannot be read: "),
        (lambda path: flip(path, -3), "it was changed"),
        (lambda path: save_file(load_file(path), path), "it has no checksum"),
    ],
)
def test_a_file_that_was_cut_short_or_changed_is_refused(pair, damage, problem):
    (path,) = pair.folders[1].glob("outputs-*")
    damage(path)
    with pytest.raises(OSError, match=rf"b/outputs-\w+.safetensors: {problem}.*\. Copy it again, or repeat its run"):
        pair.main()


@pytest.mark.parametrize(
    ("name", "shape"),
    [("logits", (3,)), ("scores", (2,))],
)
def test_outputs_of_other_shapes_are_refused(pair, monkeypatch, name, shape):
    (path,) = pair.folders[1].glob("outputs-*")
    monkeypatch.setattr(task, "outputs_file_name", lambda _: path.name)
    labels = {0: "entailment", 1: "not_entailment"}
    task.save_outputs({name: [np.zeros(shape, np.float32)] * SIZES["dev"]}, None, labels, path.parent)
    with pytest.raises(ValueError, match=r"b and \S+a have outputs of different shapes: only"):
        pair.main()
