"""Runs that are killed, damaged or out of space, and go on as if nothing had been."""

import errno
import functools
import json
import os
import pickle
import random
import re
import resource
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers

import run_glue
from elmo_gpt_bert.training import checkpoints, files, loop, output_folder, reporting, results, runs
from elmo_gpt_bert.training.errors import FileError
from elmo_gpt_bert.training.output_folder import write_checksums
from tests.support.glue_sample import write_model, write_task, write_vocabulary
from tests.support.processes import fork, wait
from tests.support.tiny_run import checkpoint_names, recipe


EACH_SECOND = ("--save_strategy", "steps", "--save_steps", "2")
NONE = ("--save_strategy", "no")


def run_with_dropout(tmp_path: Path, saving: tuple[str, ...] = EACH_SECOND) -> list[str]:
    """A run of 10 updates of RTE in miniature, five an epoch, with dropout and a checkpoint every second update."""
    data = write_task(tmp_path, "RTE")
    model = write_model(tmp_path, hidden_dropout_prob=0.2, attention_probs_dropout_prob=0.2)
    flags = ["--model_name_or_path", str(model), "--tokenizer_name", str(write_vocabulary(tmp_path)), "--do_train"]
    flags += ["--do_eval", "--task_name", "rte", "--data_dir", str(data), "--max_seq_length", "24"]
    flags += ["--per_device_train_batch_size", "2", "--learning_rate", "0.01"]
    replaced = recipe(tmp_path, "num_train_epochs: 2\nwarmup_ratio: 0.3\n")  # in some tests, by flags of other names
    return [replaced, *flags, *saving]


@pytest.fixture
def flags(tmp_path) -> list[str]:
    return run_with_dropout(tmp_path)


def outcome(folder: Path) -> tuple[bytes, dict]:
    """The model's bytes, and what metrics.json says of the run itself."""
    record = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
    other = {name for name in record if name.endswith("_runtime") or name.startswith("predict_")}
    other |= set(results.RUN_KEYS)
    return (folder / "model.safetensors").read_bytes(), {k: v for k, v in record.items() if k not in other}


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> tuple[bytes, dict]:
    """The outcome of the run that nothing has stopped."""
    folder = tmp_path_factory.mktemp("whole")
    run_glue.main([*run_with_dropout(folder), "--output_dir", str(folder / "out")])
    return outcome(folder / "out")


def killed_until_done(argv: list[str], processes: int, kills: int, seconds: float) -> None:
    """Kills the run, of so many seconds, at `kills` random moments, to be resumed, and then lets it finish."""
    moments = random.Random(0)
    for _ in range(kills):
        started = fork(lambda: run_glue.main([*argv, "--resume"]), processes)
        time.sleep(moments.uniform(0, seconds))
        for process in started:
            process.kill()
        wait(started)
    assert wait(fork(lambda: run_glue.main([*argv, "--resume"]), processes)) == [0] * processes


@pytest.mark.slow
@pytest.mark.parametrize(
    "extra",
    [
        ["--gradient_accumulation_steps", "3", "--group_by_length", "true", "--num_train_epochs", "12"],
        [
            *("--eval_steps", "4", "--load_best_model_at_end", "--optim", "bert_adam", "--save_total_limit", "1"),
            *("--num_train_epochs", "6"),
        ],
    ],
    ids=["accumulating", "evaluating"],
)
def test_a_run_killed_at_random_moments_ends_with_the_same_bits(flags, tmp_path, extra):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    started = time.perf_counter()
    run_glue.main([*flags, *extra, "--output_dir", str(whole)])
    seconds = time.perf_counter() - started
    killed_until_done([*flags, *extra, "--output_dir", str(killed)], processes=1, kills=4, seconds=seconds)
    assert outcome(killed) == outcome(whole)


@pytest.mark.slow
def test_two_processes_killed_at_random_moments_end_with_the_same_bits(flags, tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    flags += ["--gradient_accumulation_steps", "2", "--num_train_epochs", "6"]
    started = time.perf_counter()
    assert wait(fork(lambda: run_glue.main([*flags, "--output_dir", str(whole)]), 2)) == [0, 0]
    seconds = time.perf_counter() - started
    killed_until_done([*flags, "--output_dir", str(killed)], processes=2, kills=2, seconds=seconds)
    assert outcome(killed) == outcome(whole)


MOMENTS = {
    "while the state is written": (checkpoints, "write_checksums"),
    "before it has its name": (files.os, "replace"),
    "while the model is written": (output_folder, "write_checksums"),
    "before metrics.json": (reporting, "write_json"),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_run_killed_at_the_worst_moments_ends_with_the_same_bits(flags, whole, tmp_path, monkeypatch, moment):
    killed = tmp_path / "killed"
    with monkeypatch.context() as patch:
        patch.setattr(*MOMENTS[moment], lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        assert wait(fork(lambda: run_glue.main([*flags, "--output_dir", str(killed)]))) == [-signal.SIGKILL]
    run_glue.main([*flags, "--output_dir", str(killed), "--resume"])
    assert outcome(killed) == whole
    assert not [path.name for path in killed.iterdir() if path.name.startswith(".")]


# Damage


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.fixture(scope="module")
def after_7_updates(tmp_path_factory) -> Path:
    """The folder of a run that was killed after 7 updates, and so has the checkpoints 4 and 6."""

    def step(self, *_):
        if self.progress.update == 7:
            os.kill(os.getpid(), signal.SIGKILL)
        return between(self)

    between = loop._Training.between_updates
    folder = tmp_path_factory.mktemp("stopped")
    argv = [*run_with_dropout(folder), "--output_dir", str(folder / "out")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop._Training, "between_updates", step)
        assert wait(fork(lambda: run_glue.main(argv))) == [-signal.SIGKILL]
    assert checkpoint_names(folder / "out") == ["checkpoint-4", "checkpoint-6"]
    return folder / "out"


@pytest.fixture
def stopped(flags, after_7_updates, tmp_path) -> list[str]:
    """The command of that run, in a folder that the test may change."""
    shutil.copytree(after_7_updates, tmp_path / "out")
    for path in tmp_path.glob("out/checkpoint-*/progress.json"):  # which names the model's folder
        progress = path.read_text(encoding="utf-8")
        path.write_text(progress.replace(str(after_7_updates.parent), str(tmp_path)), encoding="utf-8")
        write_checksums(path.parent)
    return [*flags, "--output_dir", str(tmp_path / "out")]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: cut(folder / "model.safetensors"), "model.safetensors was changed"),
        (lambda folder: flip(folder / "optimizer.safetensors"), "optimizer.safetensors was changed"),
        (
            lambda folder: (folder / "optimizer.safetensors").unlink(),
            "optimizer.safetensors is not a file of the folder",
        ),
        (lambda folder: (folder / "SHA256SUMS").unlink(), "there is no SHA256SUMS"),
    ],
)
def test_a_damaged_checkpoint_is_told_and_the_one_before_it_used(stopped, whole, tmp_path, capsys, damage, message):
    damage(tmp_path / "out" / "checkpoint-6")
    run_glue.main([*stopped, "--resume"])
    printed = capsys.readouterr().out
    assert f"checkpoint-6: {message}" in printed and "resumed from" in printed and "checkpoint-4\n" in printed
    assert outcome(tmp_path / "out") == whole


def test_a_best_checkpoint_that_is_damaged_is_never_taken_for_the_best(flags, tmp_path):
    argv = [*flags, "--output_dir", str(tmp_path / "out"), "--load_best_model_at_end", "--save_total_limit", "1"]
    run_glue.main(argv)
    best = json.loads((tmp_path / "out" / "metrics.json").read_text(encoding="utf-8"))["best_update"]
    flip(tmp_path / "out" / f"checkpoint-{best}" / "model.safetensors")
    (tmp_path / "out" / "metrics.json").unlink()  # as of a run that was killed before its end
    with pytest.raises(OSError, match=f"checkpoint-{best}: model.safetensors was changed. Remove it and the later"):
        run_glue.main([*argv, "--resume"])


def test_an_older_checkpoint_that_is_damaged_does_not_end_the_run(flags, tmp_path, monkeypatch):
    out, save = tmp_path / "out", checkpoints.Checkpoints.save

    def damage_the_first(self, progress) -> None:
        save(self, progress)
        if progress.update == 1:
            (out / "checkpoint-1" / "progress.json").write_text("[[", encoding="utf-8")

    monkeypatch.setattr(checkpoints.Checkpoints, "save", damage_the_first)
    argv = [*flags, "--output_dir", str(out), "--max_steps", "4", "--save_steps", "1", "--save_total_limit", "3"]
    run_glue.main([*argv, "--load_best_model_at_end", "--eval_steps", "2"])
    assert checkpoint_names(out) == ["checkpoint-2", "checkpoint-3", "checkpoint-4"]


def test_a_linked_checkpoint_is_used_and_what_it_leads_to_is_never_removed(stopped, whole, tmp_path):
    out, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    elsewhere.mkdir()
    for name in ("checkpoint-4", "checkpoint-6"):
        (out / name).rename(elsewhere / name)
        (out / name).symlink_to(elsewhere / name)
    run_glue.main([*stopped, "--resume"])
    assert outcome(out) == whole
    assert not [path for path in out.iterdir() if path.is_symlink()]
    assert len(list(elsewhere.glob("checkpoint-[46]/optimizer.safetensors"))) == 2


# Planted files


class Planted:
    """What makes a folder when it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple:
        return os.mkdir, (str(self.folder),)


PICKLES = ["optimizer.bin", "optimizer.pt", "random_states_0.pkl", "custom_checkpoint_0.pkl", "scheduler.bin"]
PICKLES += ["scaler.pt", "pytorch_model.bin", "pytorch_model_fsdp.bin", "parts/of_a_model.pt"]


def test_no_planted_pickle_is_read_whatever_its_name(stopped, whole, tmp_path):
    mark, folder = tmp_path / "mark", tmp_path / "out" / "checkpoint-6"
    for number, name in enumerate(PICKLES):
        write = torch.save if number % 2 else lambda planted, path: path.write_bytes(pickle.dumps(planted, protocol=2))
        (folder / name).parent.mkdir(exist_ok=True)
        write(Planted(mark), folder / name)
    write_checksums(folder)
    run_glue.main([*stopped, "--resume"])
    assert outcome(tmp_path / "out") == whole and not mark.exists()
    pickle.loads(pickle.dumps(Planted(mark)))
    assert mark.exists()  # so that the above means something


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "plan.safetensors"])
def test_a_pickle_in_the_place_of_tensors_is_one_line(stopped, tmp_path, name):
    mark, folder = tmp_path / "mark", tmp_path / "out" / "checkpoint-6"
    shutil.rmtree(folder.with_name("checkpoint-4"))
    for other in ("pytorch_model.bin", name):
        torch.save(Planted(mark), folder / other)
    write_checksums(folder)
    with pytest.raises(ValueError, match="checkpoint-6 is damaged, so remove it, .*header") as raised:
        run_glue.main([*stopped, "--resume"])
    assert not mark.exists() and "\n" not in str(raised.value)


def test_a_checkpoint_has_no_pickle(stopped, tmp_path):
    files = [path for path in (tmp_path / "out" / "checkpoint-6").rglob("*") if path.is_file()]
    assert {path.suffix for path in files} == {".json", ".py", ".safetensors", ""}
    assert [path.name for path in files if not path.suffix] == ["SHA256SUMS"]


# Another run


def test_the_same_texts_with_other_labels_are_another_run(stopped, tmp_path):
    path = tmp_path / "RTE" / "train.tsv"
    lines = path.read_text(encoding="utf-8").replace("not_entailment", "X").replace("entailment", "not_entailment")
    path.write_text(lines.replace("X", "entailment"), encoding="utf-8")
    with pytest.raises(ValueError, match="is of a run with training data"):
        run_glue.main([*stopped, "--resume"])


def test_another_validation_file_is_another_run(stopped, tmp_path):
    path = tmp_path / "RTE" / "dev.tsv"
    path.write_text(path.read_text(encoding="utf-8").replace("good", "bad"), encoding="utf-8")
    with pytest.raises(ValueError, match="is of a run with validation data [0-9a-f]{16}, not"):
        run_glue.main([*stopped, "--resume"])


def test_another_configuration_behind_the_models_name_is_another_run(stopped, tmp_path):
    path = Path(stopped[2])
    config = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(config | {"hidden_dropout_prob": 0.3}), encoding="utf-8")
    with pytest.raises(ValueError, match="is of a run with config.hidden_dropout_prob 0.2, not 0.3"):
        run_glue.main([*stopped, "--resume"])


def test_the_number_of_threads_may_change(stopped, monkeypatch, capsys):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 99)
    run_glue.main([*stopped, "--resume"])
    assert "resumed from" in (said := capsys.readouterr().out) and "was written with" not in said


@pytest.mark.slow
def test_seeds_that_are_resumed_on_other_data_are_refused_before_they_train(tmp_path, monkeypatch):
    argv = [
        *run_with_dropout(tmp_path, NONE),
        "--output_dir",
        str(tmp_path / "out"),
        "--max_steps",
        "2",
        "--seeds",
        "2",
    ]
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(output_folder, "remove_all_but_results", lambda folder: (_ for _ in ()).throw(KeyboardInterrupt))
        patch.setattr(runs, "goodness", lambda scores, metric: 0.0)
        run_glue.main(argv)
    shutil.rmtree(tmp_path / "out" / "seed-43")
    again = shutil.copytree(tmp_path / "out", tmp_path / "again")
    path = tmp_path / "RTE" / "train.tsv"
    before = path.read_text(encoding="utf-8")
    path.write_text(before.replace("not_entailment", "entailment"), encoding="utf-8")
    with pytest.raises(ValueError, match="seed-42 is of a run with training data"):
        run_glue.main([*argv, "--resume"])
    path.write_text(before, encoding="utf-8")
    results = run_glue.main([*argv, "--output_dir", str(again), "--resume"])
    assert {"eval_accuracy_mean"} <= results.keys()


def test_nothing_begins_again_where_all_checkpoints_are_damaged(stopped, tmp_path):
    for name in ("checkpoint-4", "checkpoint-6"):
        cut(tmp_path / "out" / name / "model.safetensors")
    with pytest.raises(OSError, match=r"all checkpoints are damaged \(.*checkpoint-6.*checkpoint-4.*remove them"):
        run_glue.main([*stopped, "--resume"])


@pytest.mark.parametrize(
    ("flag", "value", "message"),
    [
        ("--learning_rate", "0.02", "is of a run with learning_rate 0.01, not 0.02"),
        ("--num_train_epochs", "9", "is of a run with num_train_epochs 2.0, not 9.0"),
        ("--max_train_samples", "8", "is of a run with max_train_samples None, not 8"),
    ],
)
def test_another_run_does_not_go_on_from_this_ones_checkpoint(stopped, flag, value, message):
    with pytest.raises(ValueError, match=message):
        run_glue.main([*stopped, "--resume", flag, value])


CONSTANT = ["--lr_scheduler_type", "constant", "--warmup_ratio", "0"]
WARMED = ["--lr_scheduler_type", "constant_with_warmup"]
BEST = ["--load_best_model_at_end", "--eval_steps", "2"]
PATIENT = ["--early_stopping_patience", "1", "--eval_steps", "1", "--learning_rate", "0"]  # it ends after two updates


@pytest.fixture(scope="module")
def longer_run(tmp_path_factory) -> Callable[..., tuple[bytes, dict]]:
    """The outcome of a run of these flags that nothing has stopped, whose checkpoints do not matter."""

    @functools.cache
    def outcome_of(*words: str) -> tuple[bytes, dict]:
        folder = tmp_path_factory.mktemp("longer")
        run_glue.main([*run_with_dropout(folder, NONE), *CONSTANT, *words, "--output_dir", str(folder / "out")])
        return outcome(folder / "out")

    return outcome_of


@pytest.mark.slow
@pytest.mark.parametrize(
    ("save", "shorter", "longer"),
    [
        ("epoch", ["--num_train_epochs", "1"], ["--num_train_epochs", "2"]),
        ("steps", ["--num_train_epochs", "1"], ["--max_steps", "7"]),
        ("epoch", ["--max_steps", "3"], ["--max_steps", "7"]),  # in the middle of an epoch
        ("steps", ["--max_steps", "3"], ["--max_steps", "7"]),
        (
            "steps",
            ["--max_steps", "4", *WARMED, "--warmup_ratio", "0.5"],
            ["--max_steps", "7", *WARMED, "--warmup_steps", "2"],
        ),
        ("epoch", ["--max_steps", "6", *BEST], ["--max_steps", "8", *BEST]),
        ("steps", ["--max_steps", "6", *PATIENT], ["--max_steps", "9", *PATIENT]),
        ("epoch", ["--max_steps", "2", *PATIENT], ["--max_steps", "9", *PATIENT]),
    ],
)
def test_a_finished_run_goes_on_to_the_bits_of_a_longer_one(tmp_path, longer_run, shorter, longer, save):
    saving = EACH_SECOND if save == "steps" else ("--save_strategy", save)
    argv = [*run_with_dropout(tmp_path, saving), *CONSTANT, "--output_dir", str(tmp_path / "out")]
    run_glue.main([*argv, *shorter])
    run_glue.main([*argv, *longer, "--resume"])
    assert outcome(tmp_path / "out") == longer_run(*longer)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shorter", "refused"),
    [
        (
            "",
            {
                "--max_steps 9": "of a run with max_steps 7, not 9, and both do the same only up to update 2:",
                "--max_steps 9 --per_device_train_batch_size 3": "the same only up to update 2",
                "--per_device_train_batch_size 3": "with samples of an update 2, not 3 (--per_device_train_batch_size",
            },
        ),
        (
            "--lr_scheduler_type constant --warmup_ratio 0",
            {"--max_steps 6": "the same only up to update 5: resume"},
        ),
        ("--lr_scheduler_type constant_with_warmup", {"--max_steps 20": "the same only up to update 1: resume"}),
        (
            "--lr_scheduler_type constant --warmup_ratio 0 --load_best_model_at_end --eval_steps 2",
            # After the seventh, its last, only the shorter one evaluates.
            {"--max_steps 9": "the same only up to update 6: resume"},
        ),
    ],
)
def test_a_run_whose_past_depends_on_its_length_says_what_to_do_instead(flags, tmp_path, shorter, refused):
    argv = [*flags, "--warmup_ratio", "0.1", "--max_steps", "7", "--output_dir", str(tmp_path / "out")]
    argv += shorter.split()
    run_glue.main(argv)
    for longer, message in refused.items():
        with pytest.raises(ValueError, match=re.escape(message)) as error:
            run_glue.main([*argv, *longer.split(), "--resume"])
        if "max_steps" in longer:
            last = tmp_path / "out" / "checkpoint-7"
            assert f"begin another run with --model_name_or_path {last}" in str(error.value)


STABLE = ["--lr_scheduler_type", "warmup_stable_decay", "--warmup_ratio", "0", "--warmup_steps", "2"]


@pytest.mark.slow
def test_a_run_goes_on_from_a_checkpoint_to_another_length_if_its_learning_rate_has_not_fallen(flags, tmp_path):
    """The length and share of the decay by which it begins to fall at the checkpoint, and a greater length."""
    argv = [*flags, *STABLE, "--save_steps", "4", "--save_total_limit", "3", "--output_dir"]
    run_glue.main([*argv, str(tmp_path / "out"), "--max_steps", "10"])
    for update in (8, 10):
        shutil.rmtree(tmp_path / "out" / f"checkpoint-{update}")
    for number, length in enumerate((["--max_steps", "7", "--decay_ratio", "0.4"], ["--max_steps", "13"])):
        resumed, whole = tmp_path / f"resumed-{number}", tmp_path / f"whole-{number}"
        shutil.copytree(tmp_path / "out", resumed)
        run_glue.main([*argv, str(resumed), *length, "--resume"])
        run_glue.main([*argv, str(whole), *length])
        assert outcome(resumed) == outcome(whole)


@pytest.mark.slow
def test_a_run_whose_learning_rate_has_fallen_has_no_other_length(tmp_path):
    argv = [*run_with_dropout(tmp_path, ("--save_strategy", "steps")), *STABLE, "--output_dir", str(tmp_path / "out")]
    argv += ["--decay_ratio", "0.2"]
    run_glue.main([*argv, "--max_steps", "10"])
    for length, stable in (("5", 4), ("30", 9)):
        with pytest.raises(ValueError, match=f"not {length}, and both do the same only up to update {stable}:"):
            run_glue.main([*argv, "--max_steps", length, "--resume"])


def test_the_same_length_in_other_words_is_the_same_run(stopped, whole, tmp_path):
    run_glue.main([*stopped, "--resume", "--max_steps", "10", "--warmup_ratio", "0", "--warmup_steps", "3"])
    assert outcome(tmp_path / "out") == whole


def test_what_changes_no_weight_may_change_when_a_run_is_resumed(stopped, whole, tmp_path):
    run_glue.main([*stopped, "--resume", "--logging_steps", "2", "--save_steps", "7", "--do_predict"])
    assert outcome(tmp_path / "out") == whole
    assert (tmp_path / "out" / "predictions.tsv").exists()


@pytest.mark.slow
def test_a_run_goes_on_where_its_data_have_moved_and_its_flags_are_in_other_words(stopped, flags, tmp_path):
    moved = shutil.move(tmp_path / "RTE", tmp_path / "moved")
    words = ["--gradient_checkpointing", "--eval_strategy", "epoch", "--data_dir", str(moved)]
    run_glue.main([*stopped, "--resume", *words])
    run_glue.main([*flags, *words, "--output_dir", str(tmp_path / "whole"), "--gradient_checkpointing", "false"])
    assert outcome(tmp_path / "out") == outcome(tmp_path / "whole")


def test_a_folder_with_a_run_is_neither_overwritten_nor_resumed_unasked(stopped):
    with pytest.raises(FileExistsError, match="--resume the run in it, or --overwrite_output_dir"):
        run_glue.main(stopped)


def test_overwriting_removes_the_earlier_runs_checkpoints(stopped, tmp_path):
    run_glue.main([*stopped, "--overwrite_output_dir", "--max_steps", "3"])
    assert checkpoint_names(tmp_path / "out") == ["checkpoint-2", "checkpoint-3"]


def test_a_finished_run_is_resumed_without_training(flags, tmp_path, monkeypatch):
    argv = [*flags, "--output_dir", str(tmp_path / "out")]
    run_glue.main(argv)
    before = outcome(tmp_path / "out")
    monkeypatch.setattr(loop._Training, "update", lambda *_: pytest.fail("trained again"))
    run_glue.main([*argv, "--resume"])
    assert outcome(tmp_path / "out") == before


@pytest.mark.slow
def test_a_finished_run_without_checkpoints_predicts_without_training(tmp_path, monkeypatch, capsys):
    argv, out = run_with_dropout(tmp_path, NONE), tmp_path / "out"
    run_glue.main([*argv, "--do_predict", "--output_dir", str(tmp_path / "whole")])
    run_glue.main([*argv, "--output_dir", str(out)])
    before = outcome(out)
    monkeypatch.setattr(loop._Training, "update", lambda *_: pytest.fail("trained again"))
    run_glue.main([*argv, "--output_dir", str(out), "--do_predict", "--resume"])
    assert outcome(out) == before
    assert (out / "predictions.tsv").read_text() == (tmp_path / "whole" / "predictions.tsv").read_text()
    with pytest.raises(ValueError, match="out is of a run with learning_rate 0.01, not 0.02: --resume continues"):
        run_glue.main([*argv, "--output_dir", str(out), "--resume", "--learning_rate", "0.02"])
    assert outcome(out) == before
    (out / "model.safetensors").unlink()
    with pytest.raises(pytest.fail.Exception, match="trained again"):
        run_glue.main([*argv, "--output_dir", str(out), "--resume"])
    assert "model.safetensors is not a file of the folder: it is trained again\n" in capsys.readouterr().out


def test_a_checkpoint_is_a_folder_for_from_pretrained(stopped, tmp_path):
    folder = tmp_path / "out" / "checkpoint-6"
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    stock = transformers.BertForSequenceClassification.from_pretrained(folder)
    runs_on = run_glue.main(
        [
            stopped[0],
            "--model_name_or_path",
            str(folder),
            *stopped[5:],
            "--output_dir",
            str(tmp_path / "next"),
            "--max_steps",
            "1",
        ]
    )
    assert stock(**tokenizer("a good film", return_tensors="pt")).logits.shape == (1, 2)
    assert runs_on["train_updates"] == 1


# A full disk


def with_files_of_at_most(size: int, function) -> None:
    """As on a full disk: the system refuses to write more, whoever asks."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    function()


def test_a_full_disk_keeps_the_checkpoint_before_and_says_how_to_go_on(stopped, whole, tmp_path, capfd):
    out = tmp_path / "out"
    limit = (out / "checkpoint-6" / "optimizer.safetensors").stat().st_size - 1
    assert wait(fork(lambda: with_files_of_at_most(limit, lambda: run_glue.main([*stopped, "--resume"])))) == [1]
    error = capfd.readouterr().err.splitlines()[-1]
    assert "cannot write" in error and "checkpoint-8" in error
    assert f"{out / 'checkpoint-6'} is complete: the same command with --resume continues from it" in error
    assert checkpoint_names(out) == ["checkpoint-4", "checkpoint-6"]
    assert not list(out.glob(".checkpoint-*"))
    run_glue.main([*stopped, "--resume"])
    assert outcome(out) == whole


def test_of_two_processes_one_with_a_full_disk_ends_both_with_one_line(flags, tmp_path, monkeypatch, capfd):
    def full(*_) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def run() -> None:
        with pytest.raises(FileError, match=r"cannot write .*checkpoint-2: .*Make room\. No checkpoint has"):
            run_glue.main([*flags, "--output_dir", str(tmp_path / "out")])

    monkeypatch.setattr(checkpoints, "save_file", full)
    assert wait(fork(run, 2)) == [0, 0], capfd.readouterr().err
    assert not list((tmp_path / "out").glob("*checkpoint-*"))


@pytest.mark.slow
def test_a_disk_too_full_for_the_model_keeps_the_earlier_one_and_the_checkpoint(flags, tmp_path, capfd):
    out = tmp_path / "out"
    argv = [*flags, "--output_dir", str(out)]
    run_glue.main(argv)
    before = outcome(out)
    limit = (out / "model.safetensors").stat().st_size - 1
    # Without its results the run has not finished. Resumed from the checkpoint of its end, it writes only the model.
    (out / "metrics.json").unlink()
    assert wait(fork(lambda: with_files_of_at_most(limit, lambda: run_glue.main([*argv, "--resume"])))) == [1]
    error = capfd.readouterr().err.splitlines()[-1]
    assert "cannot write" in error and "--resume continues from the last checkpoint" in error
    assert (out / "model.safetensors").read_bytes() == before[0] and not (out / ".saving").exists()
    run_glue.main([*argv, "--resume"])
    assert outcome(out) == before
