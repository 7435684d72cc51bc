"""The frame of a run: its folder, its errors on the command line, its repetition over seeds."""

import dataclasses
import errno
import json
import os
import select
import shutil
import signal
import statistics
import sys
import time
import weakref
from dataclasses import asdict
from functools import partial
from pathlib import Path

import pytest
import torch
from huggingface_hub import ModelCard
from safetensors.torch import load_file

import run_glue
from elmo_gpt_bert.metrics.entities import split_tag
from elmo_gpt_bert.training import command_line, files, launching, loop, reporting, runs
from elmo_gpt_bert.training.errors import DivergedError, FileError, InputError
from elmo_gpt_bert.training.flags import parse_arguments
from elmo_gpt_bert.training.identity import run_identity
from elmo_gpt_bert.training.output_folder import verify_checksums, write_checksums
from elmo_gpt_bert.training.results import Clock
from tests.support.glue_sample import write_model, write_task, write_vocabulary
from tests.support.processes import fork, wait
from tests.support.tiny_run import Arguments


def short_run(folder: Path) -> list[str]:
    """A short run of RTE in miniature."""
    data = write_task(folder, "RTE")
    flags = ["--model_name_or_path", str(write_model(folder, hidden_dropout_prob=0.2))]
    flags += ["--tokenizer_name", str(write_vocabulary(folder)), "--task_name", "rte", "--data_dir", str(data)]
    flags += ["--max_seq_length", "24", "--learning_rate", "0.01"]
    return [*flags, "--do_train", "--do_eval", "--max_steps", "3", "--output_dir", str(folder / "out")]


@pytest.fixture
def flags(tmp_path) -> list[str]:
    return short_run(tmp_path)


@pytest.fixture(scope="module")
def two_seeds(tmp_path_factory) -> list[str]:
    """The command of a run that has finished with two seeds; its last word is the output folder."""
    folder = tmp_path_factory.mktemp("seeds")
    *flags, output = short_run(folder)
    run_glue.main([*flags, output, "--seeds", "2"])
    return ["--seeds", "2", *flags, output]


@pytest.fixture
def finished(two_seeds, tmp_path) -> list[str]:
    """The command of `two_seeds`, in a folder that the test may change."""
    *flags, output = two_seeds
    shutil.copytree(output, tmp_path / "out")
    return [*flags, str(tmp_path / "out")]


def metrics_of(folder: Path) -> dict:
    return json.loads((folder / "metrics.json").read_text(encoding="utf-8"))


# The output folder


def test_an_output_folder_with_content_is_kept_unless_told_otherwise(run, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("years of work", encoding="utf-8")
    with pytest.raises(FileExistsError, match="--overwrite_output_dir"), launching.lock_output_folder(run()):
        pytest.fail("claimed")
    for changes in ({"overwrite_output_dir": True}, {"resume": True}):
        with launching.lock_output_folder(run(**changes)):
            pass
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["thesis.txt"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seeds", "refused"),
    [
        ("1", ["--resume --weight_decay 0.1", "--overwrite_output_dir --freeze_layers 9"]),
        ("2", ["--overwrite_output_dir --data_dir no/such/folder"]),
    ],
)
def test_a_run_that_is_refused_leaves_the_results_that_it_would_have_replaced(
    flags, tmp_path, monkeypatch, seeds, refused
):
    def content() -> dict[Path, bytes]:
        paths = (tmp_path / "out").rglob("*")
        return {path: path.read_bytes() for path in paths if path.is_file() and path.name != ".batch.json"}

    new = lambda _, path: path.write_bytes(os.urandom(9)) > 0  # noqa: E731 - curves that are never the same again
    monkeypatch.setattr("elmo_gpt_bert.training.log.draw_curves", new)
    argv = [*flags, "--seeds", seeds, "--do_predict", "--max_steps", "2"]
    run_glue.main([*argv, "--report_to", "curves"])
    before = content()
    assert "curves.png" in {path.name for path in before}
    for wrong in refused:
        with pytest.raises((ValueError, OSError)):
            run_glue.main([*argv, *wrong.split()])
        assert content() == before


def test_an_output_folder_that_is_a_file_is_an_error(run, tmp_path):
    (tmp_path / "out").write_text("", encoding="utf-8")
    args = run(overwrite_output_dir=True)
    with pytest.raises(OSError, match="out: File exists. Choose another"), launching.lock_output_folder(args):
        pytest.fail("claimed")


def test_two_runs_do_not_write_to_one_folder(run, tmp_path):
    def hold() -> None:
        with launching.lock_output_folder(run()):
            (tmp_path / "held").touch()
            time.sleep(60)

    (other,) = fork(hold)
    while not (tmp_path / "held").exists():
        time.sleep(0.01)
    with (
        pytest.raises(BlockingIOError, match="another run is writing to --output_dir"),
        launching.lock_output_folder(run(resume=True)),
    ):
        pytest.fail("claimed")
    other.kill()
    wait([other])
    with launching.lock_output_folder(run(resume=True)):  # a killed run holds nothing
        pass


def test_a_seed_and_a_run_do_not_write_to_one_folder(run, tmp_path):
    def hold(args) -> dict[str, float]:
        (tmp_path / "held").touch()
        time.sleep(60)

    (other,) = fork(lambda: runs.repeat(hold, run(do_eval=True, seeds=2)))
    while not (tmp_path / "held").exists():
        time.sleep(0.01)
    alone = run(do_eval=True, resume=True, output_dir=str(tmp_path / "out" / "seed-42"))
    with pytest.raises(BlockingIOError, match="^another run is writing to --output_dir .*seed-42: choose another$"):
        runs.repeat(lambda _: pytest.fail("ran"), alone)
    other.kill()
    wait([other])
    with launching.lock_output_folder(alone), pytest.raises(BlockingIOError, match="seed-42: choose another$"):
        runs.repeat(lambda _: pytest.fail("ran"), run(do_eval=True, seeds=2, resume=True))


def test_an_output_folder_that_cannot_be_made_is_an_error_with_a_remedy(run, tmp_path):
    with pytest.raises(OSError, match="^cannot write .*: Not a directory. Choose another --output_dir$"):  # noqa: SIM117
        with launching.lock_output_folder(run(output_dir=str(write_vocabulary(tmp_path) / "below" / "a file"))):
            pytest.fail("claimed")


@pytest.mark.parametrize("name", ["/proc", "/proc/1/x", "locked"])
def test_an_output_folder_that_cannot_be_written_to_is_one_line_before_the_work(run, tmp_path, monkeypatch, name):
    folder = tmp_path / name
    if name == "locked":  # as a read-only folder is for anyone but root

        def refuse(*_) -> None:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder / ".lock"))

        folder.mkdir()
        monkeypatch.setattr(files.FileLock, "acquire", refuse)
    with (
        pytest.raises(OSError, match="^cannot write .*: [A-Z][a-z ]+. Choose another --output_dir$") as error,
        launching.lock_output_folder(run(output_dir=str(folder), overwrite_output_dir=True)),
    ):
        pytest.fail("claimed")
    assert isinstance(error.value, FileError)  # so that the command line shows one line


def test_a_run_that_is_refused_leaves_no_empty_folder(flags, tmp_path):
    with pytest.raises(ValueError, match="99 is more than"):
        run_glue.main([*flags, "--max_seq_length", "99"])
    assert not (tmp_path / "out").exists()


# The command line


def end_of(main, capsys) -> tuple[int, str]:
    with pytest.raises(SystemExit) as ended:
        runs.command(main)
    return ended.value.code, capsys.readouterr().err


def test_a_mistake_of_the_users_is_one_line_on_the_command_line(flags, capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["run_glue.py"])
    status, error = end_of(lambda: run_glue.main([*flags, "--max_seq_length", "99"]), capsys)
    assert (status, error) == (1, "run_glue.py: error: --max_seq_length 99 is more than the model's 40 positions\n")


def test_an_interruption_is_one_line_on_the_command_line(capsys):
    def main() -> None:
        raise command_line.Interrupted("stopped at update 3 of 9. --resume goes on")

    assert end_of(main, capsys) == (130, "stopped at update 3 of 9. --resume goes on\n")

    def interrupted_elsewhere() -> None:
        raise KeyboardInterrupt

    status, message = end_of(interrupted_elsewhere, capsys)
    assert status == 130 and message.startswith("interrupted: ")


def test_sigterm_outside_training_is_one_line_that_says_what_to_do():
    def told() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)

    started, reading = command_on_a_pipe(told)
    with open(reading, "rb") as output:
        assert output.readline() == b"interrupted: what was finished is kept, and --resume continues from it\n"
    wait([started])


@pytest.mark.parametrize("name", ["model_name_or_path", "tokenizer_name", "data_dir", "output_dir"])
def test_a_path_with_too_long_a_name_is_one_line(name, flags, capsys):
    status, error = end_of(lambda: run_glue.main([*flags, f"--{name}", "x" * 300]), capsys)
    assert status == 1 and len(error.splitlines()) == 1


def test_a_mistake_of_the_code_keeps_its_traceback():
    with pytest.raises(ValueError, match="invalid literal"):
        runs.command(lambda: json.loads("[1]", parse_int=lambda _: int("x")))
    with pytest.raises(KeyError):
        runs.command(lambda: {}["a bug"])
    with pytest.raises(ValueError, match="no tag of an entity"):  # of this project's own library code
        runs.command(lambda: split_tag("L-ORG"))


def test_a_mistake_of_the_users_shows_its_traceback_where_that_is_asked_for(flags, capsys, monkeypatch):
    monkeypatch.setenv("ZOO_TRACEBACK", "1")
    with pytest.raises(InputError, match="^--max_seq_length 99 is more than the model's 40 positions$"):
        runs.command(lambda: run_glue.main([*flags, "--max_seq_length", "99"]))
    monkeypatch.setenv("ZOO_TRACEBACK", "0")
    assert end_of(lambda: run_glue.main([*flags, "--max_seq_length", "99"]), capsys)[0] == 1


def command_on_a_pipe(main) -> tuple:
    """The process of a command whose standard output and error are a pipe, and the end of it that is read."""
    reading, writing = os.pipe()

    def run() -> None:
        os.close(reading), os.dup2(writing, 1), os.dup2(writing, 2)
        sys.stdout, sys.stderr = open(1, "w", 1, closefd=False), open(2, "w", 1, closefd=False)  # noqa: SIM115
        runs.command(main)

    (started,) = fork(run)
    os.close(writing)
    return started, reading


def test_a_line_reaches_a_log_file_when_it_is_printed():
    started, reading = command_on_a_pipe(lambda: (print("update 50/300"), time.sleep(60)))
    ready, _, _ = select.select([reading], [], [], 20)
    assert ready and os.read(reading, 100) == b"update 50/300\n"
    started.kill()
    wait([started])


# Start


def test_half_precision_that_the_processor_does_not_have_is_an_error(run):
    with pytest.raises(ValueError, match="fp16 needs a GPU: on CPU use bf16 or no"):
        launching.make_accelerator(run(mixed_precision="fp16"))


def test_a_tracker_that_is_not_installed_is_an_error(run, monkeypatch):
    monkeypatch.setattr("accelerate.tracking._available_trackers", [])
    monkeypatch.setattr("accelerate.tracking.is_wandb_available", lambda: False)
    with pytest.raises(ImportError, match="--report_to wandb needs a package that is not installed: pip"):
        launching.make_accelerator(run(report_to="wandb"))


def test_matmul_precision_changes_only_when_asked(run):
    launching.make_accelerator(run())
    assert torch.get_float32_matmul_precision() == "highest"
    launching.make_accelerator(run(matmul_precision="medium"))
    assert torch.get_float32_matmul_precision() == "medium"


@pytest.mark.parametrize("asked", [False, True])
def test_algorithms_are_deterministic_only_when_asked(run, asked, monkeypatch):
    monkeypatch.setattr(os, "environ", dict(os.environ))
    launching.make_accelerator(run(full_determinism=asked))
    assert torch.are_deterministic_algorithms_enabled() == torch.backends.cudnn.deterministic == asked
    assert ("CUBLAS_WORKSPACE_CONFIG" in os.environ) == asked  # without it, products on a GPU would be errors


def test_the_time_of_a_run_is_split_without_gaps(flags, tmp_path, monkeypatch):
    monkeypatch.setattr(Clock, "startup_seconds", 0.0)
    parts = ["start", "load", "tokenize", "train", "eval", "save", "predict"]
    shares = []
    for _ in range(3):  # another process may interrupt a run anywhere
        started = time.perf_counter()
        run_glue.main([*flags, "--do_predict", "--overwrite_output_dir"])
        passed = time.perf_counter() - started
        seconds = {k: v for k, v in metrics_of(tmp_path / "out").items() if k.endswith("_runtime")}
        assert seconds.keys() == {f"{part}_runtime" for part in parts} and min(seconds.values()) > 0
        shares.append(sum(seconds.values()) / passed)
        if shares[-1] > 0.9:
            break
    assert 0.9 < max(shares) < 1, shares


# Seeds


def test_several_seeds_are_the_single_runs_and_the_best_is_kept(flags, tmp_path):
    results = run_glue.main([*flags, "--seeds", "3", "--seed", "5", "--metric_for_best_model", "loss"])
    single = {}
    for seed in (5, 6, 7):
        folder = str(tmp_path / f"single-{seed}")
        single[seed] = run_glue.main([*flags, "--seed", str(seed), "--output_dir", folder])["eval_loss"]
    best = min(single, key=single.get)
    record = metrics_of(tmp_path / "out")
    assert {int(seed): each["eval_loss"] for seed, each in record["runs"].items()} == single
    assert record["seed"] == best and record["eval_loss"] == results["eval_loss"] == single[best]
    losses = list(single.values())
    assert record["eval_loss_mean"] == pytest.approx(sum(losses) / 3)
    assert record["eval_loss_median"] == sorted(losses)[1]
    assert record["eval_loss_std"] == pytest.approx(statistics.stdev(losses))
    assert (record["eval_loss_min"], record["eval_loss_max"]) == (min(losses), max(losses))
    folders = [tmp_path / "out", tmp_path / f"single-{best}"]
    kept, alone = (load_file(folder / "model.safetensors") for folder in folders)
    assert all(torch.equal(kept[name], alone[name]) for name in alone)


@pytest.mark.slow
def test_of_the_seeds_that_were_not_best_only_the_results_remain_and_with_other_predictions_they_are_refused(
    flags, tmp_path
):
    argv, out = [*flags, "--seeds", "2", "--do_predict"], tmp_path / "out"
    run_glue.main(argv)
    assert list(out.rglob("*.safetensors")) == [out / "model.safetensors"]
    best = metrics_of(out)["seed"]
    (other,) = {42, 43} - {best}
    kept = sorted(path.name for path in (out / f"seed-{other}").iterdir())
    assert kept == ["metrics.json", "predictions.tsv"]
    assert (out / "predictions.tsv").exists()
    card = ModelCard.load(out / "README.md")
    assert f"This is seed {best}, the best of 2 on the validation set" in card.text and card.data.model_name == "out"
    with pytest.raises(ValueError, match="seed-42 is of a run with max_predict_samples None, not 1"):
        run_glue.main([*argv, "--resume", "--max_predict_samples", "1"])


@pytest.mark.slow
def test_seeds_that_have_finished_are_not_run_again(flags, tmp_path, monkeypatch):
    argv = [*flags, "--seeds", "3", "--max_steps", "2", "--save_strategy", "steps", "--save_steps", "1"]
    train = runs.train

    def killed_in_the_second(*parts):
        if parts[2].seed == 43:
            os.kill(os.getpid(), signal.SIGKILL)
        return train(*parts)

    monkeypatch.setattr(runs, "train", killed_in_the_second)
    assert wait(fork(lambda: run_glue.main(argv))) == [-signal.SIGKILL]
    seen = []
    monkeypatch.setattr(runs, "train", lambda *parts: seen.append(parts[2].seed) or train(*parts))
    resumed = run_glue.main([*argv, "--resume"])
    assert seen == [43, 44]
    whole = run_glue.main([*argv, "--output_dir", str(tmp_path / "whole")])
    assert {k: v for k, v in resumed.items() if "runtime" not in k} == {
        k: v for k, v in whole.items() if "runtime" not in k
    }
    seen.clear()
    run_glue.main([*argv, "--resume", "--seeds", "4"])  # one more, later
    assert seen == [45] and len(metrics_of(tmp_path / "out")["runs"]) == 4
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert card.count("This is seed") == 1 and "the best of 4 on the validation set" in card
    with pytest.raises(ValueError, match="seed-42 is of a run with learning_rate 0.01, not 0.5"):
        run_glue.main([*argv, "--resume", "--learning_rate", "0.5"])


def test_the_model_of_a_seed_is_gone_when_the_next_begins(flags, monkeypatch):
    models, train = [], runs.train

    def begin(task, *parts):
        assert [other() for other in models] == [None] * len(models)
        models.append(weakref.ref(task.model))
        return train(task, *parts)

    monkeypatch.setattr(runs, "train", begin)
    run_glue.main([*flags, "--seeds", "2", "--max_steps", "1", "--mixed_precision", "bf16", "--save_strategy", "no"])
    assert len(models) == 2


@pytest.mark.slow
def test_seeds_of_data_that_only_have_the_same_name_are_not_resumed(two_seeds, finished, tmp_path):
    record = metrics_of(tmp_path / "out" / "seed-42")
    assert record["args"]["data_dir"] == "RTE" and str(Path(two_seeds[-1]).parent) not in json.dumps(record)
    other = write_task(tmp_path / "other", "RTE")
    run_glue.main([*finished, "--resume", "--data_dir", str(other)])  # a copy
    path = other / "train.tsv"
    path.write_text(path.read_text(encoding="utf-8").replace("good", "bad"), encoding="utf-8")
    with pytest.raises(ValueError, match="seed-42 is of a run with training data"):
        run_glue.main([*finished, "--resume", "--data_dir", str(other)])


def test_a_disk_that_is_full_when_a_seed_has_finished_is_one_line(flags, monkeypatch):
    replace = os.replace

    def full(source, target) -> None:
        if Path(target).name == "metrics.json":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        replace(source, target)

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(OSError, match=r"cannot write .*metrics\.json: No space left on device\. Make room"):
        run_glue.main([*flags, "--seeds", "2"])


@pytest.mark.slow
def test_finished_seeds_are_not_resumed_where_a_file_they_read_has_changed(flags, tmp_path):
    for name in ("train.csv", "dev.csv"):
        (tmp_path / name).write_text("sentence,label\ngood,1\nbad,0\ngood film,1\n", encoding="utf-8")
    own = flags[: flags.index("--task_name")] + flags[flags.index("--max_seq_length") :]
    data = ["--train_file", str(tmp_path / "train.csv"), "--validation_file", str(tmp_path / "dev.csv")]
    run_glue.main([*own, *data, "--seeds", "2"])
    parts = {"dev.csv": "validation data", "config.json": "initial model", "vocab.txt": "tokenizer"}
    for changed, part in parts.items():
        path = tmp_path / changed
        before = path.read_text(encoding="utf-8")
        path.write_text(before.replace("bad", "good").replace("0.2", "0.3"), encoding="utf-8")
        with pytest.raises(ValueError, match=f"seed-42 is of a run with {part} [0-9a-f]{{16}}, not"):
            run_glue.main([*own, *data, "--seeds", "2", "--resume"])
        path.write_text(before, encoding="utf-8")


def test_nothing_of_an_earlier_model_stands_beside_the_best_seeds(flags, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "merges.txt").write_text("of another tokenizer", encoding="utf-8")
    write_checksums(tmp_path / "out")
    run_glue.main([*flags, "--seeds", "2", "--overwrite_output_dir"])
    verify_checksums(tmp_path / "out")
    assert not (tmp_path / "out" / "merges.txt").exists()


def test_a_damaged_record_of_a_seed_is_one_line(finished, tmp_path):
    (tmp_path / "out" / "seed-43" / "metrics.json").write_text("{", encoding="utf-8")
    with pytest.raises(ValueError, match=r"seed-43/metrics.json is damaged \(.*\): copy it again, or repeat its run"):
        run_glue.main([*finished, "--resume"])


def fake_run(scores: dict[int, tuple[float, int]]):
    """A run whose accuracy and number of predicted classes follow from the seed, and the seeds it was called with.

    The loss is lower where more classes are predicted.
    """
    seen = []

    def run(args) -> dict[str, float]:
        seen.append(args.seed)
        accuracy, classes = scores[args.seed]
        results = {"eval_accuracy": accuracy, "eval_predicted_classes": classes, "eval_loss": 1 / classes}
        folder = Path(args.output_dir)
        folder.mkdir(parents=True, exist_ok=True)
        record = results | {"seed": args.seed, "args": asdict(args), "identity": run_identity(args)}
        record["hardware"] = {"processes": 1}
        for name, text in (
            ("metrics.json", json.dumps(record)),
            ("README.md", "card"),
            ("w", "w"),
        ):
            (folder / name).write_text(f"{text}", encoding="utf-8")
        return results

    return run, seen


def test_runs_that_collapsed_to_one_class_are_replaced_by_further_seeds(run, tmp_path, capsys):
    fake, seen = fake_run({42: (0.6, 1), 43: (0.55, 2), 44: (0.58, 2)})
    results = runs.repeat(fake, run(do_eval=True, seeds=2, max_restarts=1))
    assert seen == [42, 43, 44] and results["eval_accuracy"] == 0.58
    record = metrics_of(tmp_path / "out")
    assert record["runs"].keys() == {"43", "44"} and record["replaced_runs"].keys() == {"42"}
    assert [path.parent.name for path in (tmp_path / "out").rglob("w")] == ["out"]  # the weights
    assert "seed 42 predicts one class only" in capsys.readouterr().out


def test_a_collapsed_run_counts_where_no_restart_is_left(run, tmp_path):
    fake, seen = fake_run({42: (0.6, 1), 43: (0.5, 1), 44: (0.58, 2)})
    results = runs.repeat(fake, run(do_eval=True, seeds=2, max_restarts=1))
    assert seen == [42, 43, 44] and results["eval_accuracy"] == 0.58 and results["eval_accuracy_mean"] == 0.54


def test_restarts_serve_a_single_run_too(run, tmp_path):
    fake, seen = fake_run({42: (0.6, 1), 43: (0.5, 2)})
    assert runs.repeat(fake, run(do_eval=True, max_restarts=3))["eval_accuracy"] == 0.5 and seen == [42, 43]
    assert (tmp_path / "out" / "w").exists()


def test_seeds_that_have_finished_are_told_again_where_the_best_ones_card_was_removed(run, tmp_path):
    fake, _ = fake_run({42: (0.6, 2), 43: (0.5, 2)})
    args = run(do_eval=True, seeds=2)
    first = runs.repeat(fake, args)
    (tmp_path / "out" / "README.md").unlink()
    assert runs.repeat(fake, dataclasses.replace(args, resume=True)) == first
    assert not (tmp_path / "out" / "README.md").exists()


@pytest.mark.slow
@pytest.mark.parametrize(("metric", "best"), [(None, 43), ("accuracy", 43), ("loss", 44)])
def test_the_best_seed_is_that_of_the_chosen_metric(run, tmp_path, metric, best):
    fake, _ = fake_run({42: (0.5, 2), 43: (0.6, 2), 44: (0.55, 3)})
    runs.repeat(fake, run(do_eval=True, seeds=3, metric_for_best_model=metric))
    assert metrics_of(tmp_path / "out")["seed"] == best


def test_choosing_among_models_needs_evaluation(capsys):
    argv = ["--model_name_or_path", "m", "--output_dir", "o", "--do_train"]
    for flag in (["--seeds", "2"], ["--load_best_model_at_end"], ["--early_stopping_patience", "1"]):
        with pytest.raises(SystemExit):
            parse_arguments(Arguments, [*argv, *flag])
        assert "a run needs --do_train and --do_eval" in capsys.readouterr().err


def test_a_seed_that_diverges_is_replaced_and_where_it_may_not_be_named(run, tmp_path):
    fake, seen = fake_run({43: (0.5, 2), 44: (0.6, 2)})

    def diverging(args) -> dict[str, float]:
        if args.seed == 42:
            raise DivergedError("the training loss is nan")
        return fake(args)

    assert runs.repeat(diverging, run(do_eval=True, seeds=2, max_restarts=1))["eval_accuracy"] == 0.6
    assert metrics_of(tmp_path / "out")["replaced_runs"] == {"42": {"error": "the training loss is nan"}}
    with pytest.raises(FloatingPointError, match="seed 42: the training loss is nan; --max_restarts lets other seeds"):
        runs.repeat(diverging, run(do_eval=True, seeds=2, output_dir=str(tmp_path / "other")))


@pytest.mark.slow
def test_a_seed_that_diverged_and_was_replaced_is_not_run_again(run, tmp_path):
    fake, _ = fake_run({42: (0.4, 2), 43: (0.5, 2), 44: (0.6, 2)})
    started = []

    def diverging(args) -> dict[str, float]:
        started.append(args.seed)
        if args.seed == 42 and args.learning_rate > 0.001:
            raise DivergedError("the training loss is nan")
        if started == [42, 43, 44]:
            raise InputError("stopped in the third")
        return fake(args)

    flags = {"do_eval": True, "seeds": 2, "max_restarts": 1, "learning_rate": 0.01}
    with pytest.raises(InputError, match="stopped"):
        runs.repeat(diverging, run(**flags))
    runs.repeat(diverging, run(**flags, resume=True))
    assert started == [42, 43, 44, 44]
    assert metrics_of(tmp_path / "out")["replaced_runs"] == {"42": {"error": "the training loss is nan"}}
    with pytest.raises(FloatingPointError, match="seed 42: the training loss is nan; --max_restarts lets"):
        runs.repeat(diverging, run(**flags | {"max_restarts": 0}, resume=True))
    with pytest.raises(ValueError, match="seed-43 is of a run with learning_rate 0.01, not 0.001"):
        runs.repeat(diverging, run(**flags | {"learning_rate": 0.001}, resume=True))
    assert started == [42, 43, 44, 44, 42]  # at another learning rate its outcome is open


def test_the_curves_of_a_seed_that_diverges_are_drawn_before_the_next_begins(flags, tmp_path, monkeypatch):
    update = loop._Training.update

    def diverging(self, losses, items):
        update(self, losses * float("nan") if self.args.seed == 42 and self.progress.update == 2 else losses, items)

    monkeypatch.setattr(loop._Training, "update", diverging)
    monkeypatch.setattr("elmo_gpt_bert.training.log.draw_curves", lambda records, path: path.touch() or True)
    argv = [*flags, "--max_restarts", "1", "--max_steps", "3", "--logging_steps", "1", "--report_to", "curves"]
    run_glue.main(argv)
    assert all((tmp_path / "out" / f"seed-{seed}" / "curves.png").exists() for seed in (42, 43))


def test_the_model_of_one_seed_never_stands_beside_the_scores_of_another(run, tmp_path):
    fake, _ = fake_run({42: (0.6, 2), 43: (0.5, 2), 44: (0.55, 2)})
    runs.repeat(fake, run(do_eval=True, seeds=3))
    record = metrics_of(tmp_path / "out")
    assert record["seed"] == 42
    with pytest.raises(ValueError, match="seed-44 was not the best .*its model was removed"):
        runs.repeat(fake, run(do_eval=True, seed=43, seeds=2, resume=True))
    assert metrics_of(tmp_path / "out") == record


def test_runs_of_several_seeds_are_not_resumed_as_one(finished):
    with pytest.raises(ValueError, match="holds runs of several seeds: --resume them with --seeds"):
        run_glue.main([*finished, "--resume", "--seeds", "1"])
    with pytest.raises(ValueError, match="seed-42 has no predictions: --do_predict with --model_name_or_path"):
        run_glue.main([*finished, "--resume", "--do_predict"])


@pytest.mark.parametrize("seeds", [1, 2])
def test_runs_of_several_seeds_are_not_resumed_where_their_folders_are_gone(finished, tmp_path, seeds):
    out = tmp_path / "out"
    best = metrics_of(out)["seed"]
    for folder in out.glob("seed-*"):
        shutil.rmtree(folder)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    with pytest.raises(
        ValueError, match=r"holds runs of several seeds, and its folder seed-\d+ is gone: choose another"
    ):
        run_glue.main([*finished, "--resume", "--seeds", str(seeds), "--seed", str(best)])
    assert {name: (out / name).read_bytes() for name in before} == before


@pytest.mark.slow
def test_overwriting_leaves_nothing_of_earlier_seeds(flags, tmp_path, monkeypatch):
    out = tmp_path / "out"
    run_glue.main([*flags, "--seeds", "3", "--do_predict"])
    (out / "seed-study").mkdir()  # the user's own
    monkeypatch.setattr(loop._Training, "run", lambda *_: pytest.fail("killed in the first seed"))
    with pytest.raises(pytest.fail.Exception):
        run_glue.main([*flags, "--seeds", "2", "--overwrite_output_dir"])
    assert not (out / "predictions.tsv").exists() and not (out / "metrics.json").exists()
    assert sorted(path.name for path in out.glob("seed-*")) == ["seed-42", "seed-study"]


def test_a_single_run_that_overwrites_those_of_several_seeds_can_be_resumed(finished, tmp_path):
    argv = [*finished, "--seeds", "1"]
    single = run_glue.main([*argv, "--overwrite_output_dir"])
    assert list((tmp_path / "out").glob("seed-*")) == []
    assert run_glue.main([*argv, "--resume"])["eval_loss"] == single["eval_loss"]


@pytest.mark.slow
def test_a_kill_while_the_best_is_moved_leaves_what_finishes_it(flags, tmp_path):
    argv = [*flags, "--seeds", "2"]
    whole = tmp_path / "whole"
    run_glue.main([*argv, "--output_dir", str(whole)])
    replace, out = os.replace, tmp_path / "out"

    def killed_at(moment: int):
        moves = []

        def move(source, target):
            if Path(source).parent.parent == Path(target).parent == out:
                if len(moves) == moment:
                    os.kill(os.getpid(), signal.SIGKILL)
                moves.append(source)
            replace(source, target)

        reporting.os.replace = move  # of this process, which is forked
        run_glue.main([*argv, "--resume"])

    for moment in (0, 7, 5):  # before the first file, in the middle of the thirteen, and before the last
        assert wait(fork(partial(killed_at, moment))) == [-signal.SIGKILL]
    run_glue.main([*argv, "--resume"])
    assert (out / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    assert sorted(path.name for path in out.iterdir()) == sorted(path.name for path in whole.iterdir())
    assert metrics_of(out)["eval_accuracy_mean"] == metrics_of(whole)["eval_accuracy_mean"]
