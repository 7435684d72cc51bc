"""What happened to a folder since its SHA256SUMS was written, as sha256sum sees it too; and how --resume takes it."""

import errno
import json
import os
import random
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

import run_glue
from elmo_gpt_bert.training import files, loop, output_folder
from elmo_gpt_bert.training.errors import FileError
from elmo_gpt_bert.training.files import sync
from elmo_gpt_bert.training.output_folder import SHA256SUMS, damage, verify_checksums, write_checksums
from tests.training.test_resume import NONE, outcome, run_with_dropout


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "folder" / "below").mkdir(parents=True)
    for name, size in {
        "config.json": 20,
        "model.safetensors": 3_000_000,
        "below/empty file": 0,
        "README.md": 9,
    }.items():
        (tmp_path / "folder" / name).write_bytes(random.Random(name).randbytes(size))
    write_checksums(tmp_path / "folder")
    return tmp_path / "folder"


def sha256sum(folder) -> int:
    if shutil.which("sha256sum") is None:
        pytest.skip("there is no sha256sum")
    command = ["sha256sum", "--check", "--strict", "--status", SHA256SUMS]
    return subprocess.run(command, cwd=folder, check=False).returncode


def test_a_whole_folder_is_whole_for_us_and_for_sha256sum(folder):
    assert damage(folder) is None and sha256sum(folder) == 0
    verify_checksums(folder)


def test_every_file_is_listed_but_the_card_and_the_list(folder):
    lines = (folder / SHA256SUMS).read_text(encoding="utf-8").splitlines()
    assert [line[66:] for line in lines] == ["below/empty file", "config.json", "model.safetensors"]


def cut(path):
    path.write_bytes(path.read_bytes()[:-312])


def lengthen(path):
    path.write_bytes(path.read_bytes() + b"x")


def flip(path):
    content = bytearray(path.read_bytes())
    content[2_000_001] ^= 1
    path.write_bytes(content)


def replace_by_folder(path):
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (cut, "model.safetensors was changed"),
        (lengthen, "model.safetensors was changed"),
        (flip, "model.safetensors was changed"),
        (lambda path: path.unlink(), "model.safetensors is not a file of the folder"),
        (replace_by_folder, "model.safetensors is not a file of the folder"),
    ],
)
def test_each_damage_is_named_and_is_one_for_sha256sum(folder, change, message):
    assert damage(folder) is None  # so that what is remembered of the folder is from before
    change(folder / "model.safetensors")
    assert damage(folder).startswith(message) and sha256sum(folder) != 0
    with pytest.raises(OSError, match=rf"{folder}: {message}.* Copy the folder again or, .* delete its SHA256SUMS"):
        verify_checksums(folder)


def test_a_card_may_be_edited_and_notes_added(folder):
    (folder / "README.md").write_text("better", encoding="utf-8")
    (folder / "notes.txt").write_text("mine", encoding="utf-8")
    assert damage(folder) is None


@pytest.mark.parametrize(
    "name",
    ["adapter_config.json", "adapter_model.safetensors", "model-00001-of-00002.safetensors", "pytorch_model.bin"]
    + ["generation_config.json", "tokenizer.model", "vocab.txt", "added_tokens.json", "modeling_own.py"]
    + ["model.safetensors.index.json", "chat_template.jinja", "optimizer.safetensors", "PYTORCH_MODEL.BIN"],
)
def test_a_file_that_was_added_and_would_be_read_is_damage(folder, name):
    (folder / name).write_text("{}", encoding="utf-8")
    assert damage(folder) == f"{name} is not in SHA256SUMS, but would be read"
    with pytest.raises(OSError, match=rf"{name} is not .* delete its SHA256SUMS"):
        verify_checksums(folder)


def test_what_nobody_reads_beside_a_model_is_no_damage(folder):
    names = [
        "metrics.json",
        "predictions.json",
        "nbest_predictions.json",
        "null_odds.json",
        "predictions.tsv",
        ".lock",
    ]
    names += ["plot.py", "handler.py", "data.pkl", "model-Q8_0.gguf"]  # the user's own, which nothing reads
    for name in [*names, "outputs-0123456789abcdef.safetensors", ".gitattributes", "LICENSE"]:
        (folder / name).write_text("{}", encoding="utf-8")
    for name in ("checkpoint-3", "runs"):
        (folder / name).mkdir()
        (folder / name / "config.json").write_text("{}", encoding="utf-8")
    assert damage(folder) is None


def relist(folder, name):
    """SHA256SUMS with one file more, as whoever planted that file would write it."""
    text = (folder / SHA256SUMS).read_text(encoding="utf-8")
    (folder / SHA256SUMS).write_text(f"{text}{'0' * 64}  {name}\n", encoding="utf-8")


def test_a_list_that_names_what_is_no_file_of_the_folder_is_told_at_once(folder):
    os.mkfifo(folder / "pipe")
    (folder / "device").symlink_to("/dev/zero")
    for name in ("pipe", "device"):
        write_checksums(folder)
        relist(folder, name)
        assert damage(folder) == f"{name} is not a file of the folder"
    for name in ("../outside", "below/../../outside", "/dev/zero", "x" * 300, "null\0byte"):
        write_checksums(folder)
        relist(folder, name)
        assert damage(folder) == f"{name[:200]} is not a file of the folder"


def test_links_to_files_as_in_the_hubs_cache_are_followed(folder, tmp_path):
    (folder / "model.safetensors").rename(tmp_path / "blob")
    (folder / "model.safetensors").symlink_to(tmp_path / "blob")
    assert damage(folder) is None
    flip(tmp_path / "blob")
    assert damage(folder) == "model.safetensors was changed"


def test_a_folder_without_a_list_is_not_whole_but_may_be_loaded(folder):
    (folder / SHA256SUMS).unlink()
    assert damage(folder) == "there is no SHA256SUMS"
    verify_checksums(folder)


def test_a_list_of_sha256sums_own_is_understood(folder):
    sums = (folder / SHA256SUMS).read_text(encoding="utf-8")
    for mark in ("  ", " *"):  # text and binary mode
        (folder / SHA256SUMS).write_text(f"# a note\n{sums.replace('  ', mark)}", encoding="utf-8")
        assert damage(folder) is None
    cut(folder / "model.safetensors")
    assert damage(folder) == "model.safetensors was changed"


def test_a_line_of_the_list_that_is_cut_or_changed_is_told(folder):
    whole = (folder / SHA256SUMS).read_bytes()
    ends = [size for size in range(len(whole)) if b"\n" in whole[size - 1 : size + 1]]
    for size in set(range(len(whole))).difference(ends):
        (folder / SHA256SUMS).write_bytes(whole[:size])
        assert damage(folder) is not None, size
    for place in range(66):
        (folder / SHA256SUMS).write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        assert damage(folder) is not None or whole[place : place + 1] == b" ", place


def test_what_is_written_again_is_listed_anew(folder):
    flip(folder / "model.safetensors")
    write_checksums(folder)
    assert damage(folder) is None and sha256sum(folder) == 0


def test_all_is_on_the_disk_before_anyone_can_rely_on_it(folder, monkeypatch):
    synced = set()
    monkeypatch.setattr("elmo_gpt_bert.training.output_folder.sync", lambda path: synced.add(path))
    write_checksums(folder)
    assert synced == {folder, *folder.rglob("*")}


def test_files_and_folders_can_be_synced(folder):
    sync(folder)
    sync(folder / "config.json")
    with pytest.raises(FileNotFoundError):
        sync(folder / "absent")


def test_windows_opens_no_folder_and_syncs_what_may_be_written(folder, monkeypatch):
    monkeypatch.setattr(files, "WINDOWS", True)
    opened, opener = [], os.open
    monkeypatch.setattr(os, "open", lambda path, flags: opened.append((path, flags)) or opener(path, flags))
    sync(folder)
    sync(folder / "config.json")
    assert opened == [(folder / "config.json", os.O_RDWR)]


@pytest.mark.parametrize("name", [SHA256SUMS, "model.safetensors"])
def test_a_file_that_the_disk_does_not_give_is_damaged(name, folder, monkeypatch):
    def fail(path: Path, *_, **__):
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    monkeypatch.setattr(*((Path, "read_text") if name == SHA256SUMS else (output_folder, "file_digest")), fail)
    assert damage(folder).endswith(": Input/output error")


# A finished run that is resumed


def plant_adapter(folder: Path) -> None:
    config = {"peft_type": "LORA", "base_model_name_or_path": str(folder / "checkpoint-2")}
    (folder / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: torch.save([1], folder / "sentence_vectors.pt"),
        plant_adapter,
    ],
    ids=["a file more", "an adapter"],
)
def test_a_finished_run_whose_model_is_whole_is_never_trained_again(tmp_path, monkeypatch, change):
    argv = [*run_with_dropout(tmp_path, NONE), "--output_dir", str(tmp_path / "out")]
    run_glue.main([*argv, "--do_predict", "--output_dir", str(tmp_path / "whole")])
    run_glue.main(argv)
    before = outcome(tmp_path / "out")
    change(tmp_path / "out")
    monkeypatch.setattr(loop._Training, "update", lambda *_: pytest.fail("trained again"))
    run_glue.main([*argv, "--do_predict", "--resume"])
    assert outcome(tmp_path / "out") == before
    assert (tmp_path / "out" / "predictions.tsv").read_text() == (tmp_path / "whole" / "predictions.tsv").read_text()


def test_a_finished_run_whose_model_is_damaged_goes_on_from_a_checkpoint_and_says_why(tmp_path, capsys):
    out = tmp_path / "out"
    argv = [*run_with_dropout(tmp_path), "--output_dir", str(out)]
    run_glue.main(argv)
    whole = outcome(out)
    cut(out / "model.safetensors")
    run_glue.main([*argv, "--resume"])
    said = f"{out} holds a finished run, but model.safetensors was changed: it goes on from its last checkpoint\n"
    assert said in capsys.readouterr().out and outcome(out) == whole


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("model.safetensors", "model.safetensors was changed"),
        ("config.json", "config.json was changed"),
        (SHA256SUMS, "there is no SHA256SUMS"),
    ],
)
def test_a_finished_run_without_checkpoints_whose_model_may_be_another_is_one_error_that_changes_nothing(
    tmp_path, name, problem
):
    out = tmp_path / "out"
    argv = [*run_with_dropout(tmp_path, NONE), "--max_steps", "1", "--output_dir", str(out)]
    run_glue.main(argv)
    if name == SHA256SUMS:
        (out / name).unlink()
    else:
        cut(out / name)
    before = outcome(out)
    with pytest.raises(FileError, match=rf"out holds a finished run, but {problem}, so .*--overwrite_output_dir"):
        run_glue.main([*argv, "--resume"])
    assert outcome(out) == before
