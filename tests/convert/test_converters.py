"""What each converter promises, whatever it reads: a whole folder or none, and errors of one line."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Annotated

import pytest
from transformers import BertTokenizer

from elmo_gpt_bert.convert import bert, vectors
from elmo_gpt_bert.convert.files import command_line
from modeling import ElmoTokenizer, ZooGPTTokenizer
from tests.convert import test_convert_bert, test_convert_gpt, test_convert_manylangs, test_convert_vectors
from tests.support.manylangs_reference import write_release
from tests.support.releases import assert_refused
from tests.support.strangers import code_followed, code_in


@dataclass
class Converter:
    release: Path
    convert: Callable[[Path], Path]  # a release into the folder "converted" beside it
    main: Callable[[list[str]], None]
    command: list[str]
    file: str  # of the release, the one that is read first
    tokenizer: type
    code: set[str]  # files of code beside those that the configuration names


def converter_of(tests: ModuleType, folder: Path, file: str, tokenizer: type, *code: str) -> Converter:
    """The converter of another file of tests."""
    return Converter(folder, tests.converted, tests.main, tests.command(folder), file, tokenizer, set(code))


def of_bert(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Converter:
    folder.mkdir()
    test_convert_bert.write_texts(folder)
    # TensorFlow takes seven seconds to import, and test_convert_bert reads a checkpoint with it.
    monkeypatch.setattr(bert, "read_checkpoint", lambda *_: test_convert_bert.released_variables())
    return converter_of(test_convert_bert, folder, "bert_config.json", BertTokenizer)


def of_gpt(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Converter:
    test_convert_gpt.write_release(folder)
    return converter_of(test_convert_gpt, folder, "params_shapes.json", ZooGPTTokenizer, "tokenization_gpt.py")


def of_elmo(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Converter:
    from tests.convert import test_convert_elmo  # skips the test without h5py

    test_convert_elmo.write_release(folder)
    return converter_of(test_convert_elmo, folder, "options.json", ElmoTokenizer, "pipeline_elmo.py")


def of_manylangs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Converter:
    write_release(folder)
    return converter_of(test_convert_manylangs, folder, "config.json", ElmoTokenizer, "pipeline_elmo.py")


def of_vectors(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Converter:
    test_convert_vectors.write_checkpoint(folder)
    (folder / "glove.txt").write_bytes(test_convert_vectors.in_text())
    command = ["--model", str(folder), "--vectors", str(folder / "glove.txt"), "--output", str(folder.parent / "out")]

    def converted(folder: Path) -> Path:
        vectors.convert(str(folder), str(folder.parent / "converted"), str(folder / "glove.txt"))
        return folder.parent / "converted"

    return Converter(folder, converted, vectors.main, command, "glove.txt", ElmoTokenizer, {"pipeline_elmo.py"})


@pytest.fixture(params=[of_bert, of_gpt, of_elmo, of_manylangs, of_vectors], ids=lambda make: make.__name__[3:])
def converter(request, tmp_path, monkeypatch) -> Converter:
    return request.param(tmp_path / "release", monkeypatch)


def test_converting_twice_gives_the_same_folder_with_the_zoos_code_and_no_other(converter):
    first = converter.convert(converter.release).rename(converter.release.parent / "first")
    again = converter.convert(converter.release)
    assert {path.name: path.read_bytes() for path in first.iterdir()} == {
        path.name: path.read_bytes() for path in again.iterdir()
    }
    assert code_in(again) == code_followed(again) | converter.code


def test_a_folder_in_use_is_refused_and_left_as_it_is(converter):
    output = converter.release.parent / "converted"
    output.mkdir()
    (output / "notes.txt").write_text("mine")
    assert_refused(
        converter.convert, converter.release, FileExistsError, "^--output .*converted already holds something"
    )
    assert (output / "notes.txt").read_text() == "mine"


def test_a_full_disk_leaves_no_half_made_folder(converter, monkeypatch):
    """The disk is full when the tokenizer is written."""

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(converter.tokenizer, "save_pretrained", full)
    message = "cannot write .*No space left.* Name a place with room"
    assert_refused(converter.convert, converter.release, OSError, message)


def test_the_commands_error_is_one_line(converter, capsys):
    missing = converter.release / converter.file
    missing.unlink()
    with pytest.raises(SystemExit, match="1"):
        converter.main(converter.command)
    assert capsys.readouterr().err.partition(": ")[2] == f"error: {missing}: no such file\n"


def test_the_systems_error_about_a_file_is_one_line(capsys):
    def convert(file: Annotated[str, "a file"]) -> None:
        raise PermissionError(13, "Permission denied", file)

    with pytest.raises(SystemExit, match="1"):
        command_line(convert, ["--file", "secret.txt"])
    assert capsys.readouterr().err.partition(": ")[2] == "error: [Errno 13] Permission denied: 'secret.txt'\n"
