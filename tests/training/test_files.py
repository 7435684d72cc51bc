"""JSON that says one thing, and tensors that are as they were saved or refused."""

import json
import random

import numpy as np
import pytest
from safetensors.numpy import load_file

from elmo_gpt_bert.training.errors import FileError
from elmo_gpt_bert.training.files import load_tensors, new_folder, read_json, read_json_object, save_tensors


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": {"hidden_size": 1, "b": 2, "hidden_size": 3}}', "an object has the name 'hidden_size' 2 times"),
        ("[" * 200_000, "nested too deeply"),
        ('{"a": 1', "Expecting ',' delimiter"),
    ],
)
def test_json_that_says_two_things_or_none_is_refused_with_the_files_name(tmp_path, text, message):
    (tmp_path / "config.json").write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=f"^config.json is not JSON \\(.*{message}.*\\)$"):
        read_json(tmp_path / "config.json")


def test_json_of_any_kind_is_read_and_an_object_only_where_one_is_needed(tmp_path):
    content = {"a": [{"b": 1}, {"b": 2}], "c": {"a": None}}  # the same key in several objects
    (tmp_path / "a.json").write_text(json.dumps(content), encoding="utf-8")
    assert read_json(tmp_path / "a.json") == read_json_object(tmp_path / "a.json") == content
    (tmp_path / "a.json").write_text("[1, 2]", encoding="utf-8")
    assert read_json(tmp_path / "a.json") == [1, 2]
    with pytest.raises(ValueError, match=rf"{tmp_path}: a.json must be a JSON object, not \[1, 2\]"):
        read_json_object(tmp_path / "a.json")


def test_a_new_folder_takes_the_place_of_an_empty_one_and_of_no_other(tmp_path):
    for name in ("empty", "full"):
        (tmp_path / name).mkdir()
    (tmp_path / "full" / "notes.txt").touch()
    with new_folder(tmp_path / "empty") as folder:
        (folder / "a.txt").touch()
    assert [path.name for path in (tmp_path / "empty").iterdir()] == ["a.txt"]
    with pytest.raises(FileError, match="cannot write .*full: Directory not empty"), new_folder(tmp_path / "full"):
        pass
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a.txt", "empty", "full", "notes.txt"]


TENSORS = {"logits": np.arange(40, dtype=np.float32), "logits.shapes": np.full((20, 1), 2), "none": np.zeros((0, 3))}
METADATA = {"id2label": '{"0": "no"}', "versions": "{}"}


def test_tensors_come_back_and_are_a_safetensors_file_for_all(tmp_path):
    save_tensors(TENSORS, tmp_path / "a.safetensors", METADATA)
    (tensors, metadata), plain = load_tensors(tmp_path / "a.safetensors"), load_file(tmp_path / "a.safetensors")
    assert metadata == METADATA and tensors.keys() == plain.keys() == TENSORS.keys()
    for name, array in TENSORS.items():
        for other in (tensors[name], plain[name]):
            assert other.dtype == array.dtype and np.array_equal(other, array)
    assert [path.name for path in tmp_path.iterdir()] == ["a.safetensors"]


def test_no_change_of_any_bit_and_no_cut_gives_other_tensors(tmp_path):
    path, places = tmp_path / "a.safetensors", random.Random(0)
    save_tensors(TENSORS, path, METADATA)
    whole = path.read_bytes()
    for number in range(300):
        place = places.randrange(len(whole))
        changed = bytes([whole[place] ^ 1 << number % 8])
        path.write_bytes(whole[:place] + (changed + whole[place + 1 :] if number % 3 else b""))
        with pytest.raises(ValueError, match="it cannot be read|it was changed|it has no checksum"):
            load_tensors(path)
