"""What happened to a folder since its SHA256SUMS was written, as sha256sum sees it too."""

import random
import shutil
import subprocess

import pytest

from training.checksums import NAME, damage, sync, verify_checksums, write_checksums


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
    command = ["sha256sum", "--check", "--strict", "--status", NAME]
    return subprocess.run(command, cwd=folder, check=False).returncode


def test_a_whole_folder_is_whole_for_us_and_for_sha256sum(folder):
    assert damage(folder) is None and sha256sum(folder) == 0
    verify_checksums(folder)


def test_every_file_is_listed_but_the_card_and_the_list(folder):
    lines = (folder / NAME).read_text(encoding="utf-8").splitlines()
    assert [line[66:] for line in lines if line[0] != "#"] == ["below/empty file", "config.json", "model.safetensors"]


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
        (cut, "model.safetensors has 312 bytes less than it had"),
        (lengthen, "model.safetensors has 1 bytes more"),
        (flip, "model.safetensors was changed"),
        (lambda path: path.unlink(), "model.safetensors: No such file"),
        (replace_by_folder, "model.safetensors "),
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


def test_a_folder_without_a_list_is_not_whole_but_may_be_loaded(folder):
    (folder / NAME).unlink()
    assert damage(folder) == "there is no SHA256SUMS"
    verify_checksums(folder)


def test_a_list_of_sha256sums_own_is_understood(folder):
    sums = [line for line in (folder / NAME).read_text(encoding="utf-8").splitlines(True) if line[0] != "#"]
    for mark in ("  ", " *"):  # text and binary mode
        (folder / NAME).write_text("".join(sums).replace("  ", mark), encoding="utf-8")
        assert damage(folder) is None
    cut(folder / "model.safetensors")
    assert damage(folder) == "model.safetensors was changed"


def test_a_list_that_is_cut_anywhere_or_changed_is_no_list(folder):
    whole = (folder / NAME).read_bytes()
    for size in range(len(whole)):
        (folder / NAME).write_bytes(whole[:size])
        assert damage(folder) is not None, size
    for place in range(len(whole)):
        (folder / NAME).write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        assert damage(folder) is not None, place


def test_what_is_written_again_is_listed_anew(folder):
    flip(folder / "model.safetensors")
    write_checksums(folder)
    assert damage(folder) is None and sha256sum(folder) == 0


def test_all_is_on_the_disk_before_anyone_can_rely_on_it(folder, monkeypatch):
    synced = set()
    monkeypatch.setattr("training.checksums.sync", lambda path: synced.add(path))
    write_checksums(folder)
    assert synced == {folder, *folder.rglob("*")}


def test_files_and_folders_can_be_synced(folder):
    sync(folder)
    sync(folder / "config.json")
    with pytest.raises(FileNotFoundError):
        sync(folder / "absent")
