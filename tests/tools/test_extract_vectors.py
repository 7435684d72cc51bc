"""zoo-extract writes what transformers' models and ElmoModel give for one line at a time."""

import errno
import json
import os
import signal
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from filelock import FileLock
from safetensors import safe_open
from safetensors.numpy import load_file
from transformers import AutoTokenizer, BertModel, GPT2Model, OpenAIGPTModel

from elmo_gpt_bert.analysis import extraction
from modeling import ElmoModel
from tests.support.analysis_sample import write_vectors
from tests.support.pairs_sample import write_bert, write_bilm, write_gpt, write_gpt2
from tests.support.processes import fork, wait
from tests.tools.test_representations import tokens_of


LINES = ["the film is dull .", "good plot", "", "a plot , but not a very good cast ?", "not bad", "the cast is good ."]
STOCK = [(write_bert, BertModel), (write_gpt, OpenAIGPTModel), (write_gpt2, GPT2Model)]


@pytest.fixture
def text(tmp_path) -> Path:
    """A file whose third line is empty."""
    path = tmp_path / "text.txt"
    path.write_text("\n".join(LINES) + "\n")
    return path


@pytest.fixture
def small_parts(monkeypatch) -> None:
    """Files of two lines."""
    monkeypatch.setattr(extraction, "LINES", 2)


@pytest.fixture
def _read_once(monkeypatch) -> None:
    """Where only what is computed counts, each model is loaded once, which takes longer than all of its vectors."""
    monkeypatch.setattr(extraction, "load_encoder", cache(extraction.load_encoder))


def extract(model: Path, text: Path, *flags: str, to: str = "out") -> dict:
    argv = ["--model_name_or_path", str(model), "--text_file", str(text), "--output_dir", str(text.parent / to)]
    return extraction.main([*argv, "--batch_size", "2", *flags])


def tensors(text: Path, to: str = "out") -> dict[str, np.ndarray]:
    """Those of all files."""
    return {
        name: value
        for path in sorted((text.parent / to).glob("*.safetensors"))
        for name, value in load_file(path).items()
    }


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name.startswith("vectors")}


@torch.no_grad()
def states_of(model, ids: list[int]) -> torch.Tensor:
    """(L, T, H), by transformers alone."""
    return torch.cat(model(torch.tensor([ids]), output_hidden_states=True).hidden_states)


# What the vectors are


@pytest.mark.parametrize("write, stock", STOCK)
def test_words_have_the_states_that_transformers_gives_for_their_line_alone(write, stock, text, tmp_path):
    folder = write(tmp_path)
    description = extract(folder, text, "--layers", "all", "--pieces", "mean")
    model, tokenizer = stock.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    for number, line in enumerate(LINES):
        vectors = tensors(text)[str(number)]
        assert vectors.shape[1] == len(line.split())
        if line:
            ids, places = tokens_of(line.split(), tokenizer)
            states = states_of(model, ids)
            expected = torch.stack([states[:, of_word].mean(1) for of_word in places], 1)
            np.testing.assert_allclose(vectors, expected, atol=1e-5)
    assert description["lines"] == 6 and description["empty_lines"] == 1
    assert description["vectors"] == sum(len(line.split()) for line in LINES)


def test_the_last_lines_count_files_and_lines_in_words_that_suit_one_of_them(text, tmp_path, capsys):
    extract(write_bert(tmp_path), text)
    vectors, lines, empty = capsys.readouterr().out.splitlines()[-3:]
    assert vectors.endswith(" A vector has 12 numbers (layer 3).")
    assert (lines, empty) == ("Lines of the text: 6. Files: 1.", "Lines without words: 1.")


@pytest.mark.parametrize("write, stock", STOCK)
def test_tokens_are_those_of_the_tokenizer_with_special_ones(write, stock, text, tmp_path):
    folder = write(tmp_path)
    extract(folder, text, "--vectors_of", "tokens", "--layers", "-1", "0")
    model, tokenizer = stock.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    with safe_open(tmp_path / "out" / "vectors-00000.safetensors", "np") as file:
        named = json.loads(file.metadata()["vectors"])["words"]
    for number, line in enumerate(LINES):
        ids = tokenizer(line)["input_ids"] if line else []
        assert named[number] == tokenizer.convert_ids_to_tokens(ids)
        if line:
            np.testing.assert_allclose(tensors(text)[str(number)], states_of(model, ids)[[-1, 0]], atol=1e-5)
    assert tensors(text)["2"].shape == (2, 0, model.config.hidden_size)


@pytest.mark.usefixtures("_read_once")
def test_a_sentence_has_the_mean_of_its_tokens_or_the_first_or_last_one(text, tmp_path):
    folder = write_bert(tmp_path)
    model, tokenizer = BertModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    ways = {"mean": lambda states: states[1:-1].mean(0), "first": lambda states: states[0]}
    for pieces, choose in (ways | {"last": lambda states: states[-1]}).items():
        extract(folder, text, "--vectors_of", "sentences", "--pieces", pieces, to=pieces)
        found = tensors(text, pieces)["vectors"]
        for row, line in zip(found, LINES, strict=True):
            expected = choose(states_of(model, tokenizer(line)["input_ids"])[-1]) if line else torch.zeros(12)
            np.testing.assert_allclose(row, expected, atol=1e-5)
    extract(folder, text, "--vectors_of", "sentences", to="default")
    np.testing.assert_array_equal(tensors(text, "default")["vectors"], tensors(text, "mean")["vectors"])


@pytest.mark.usefixtures("_read_once")
def test_elmo_gives_what_embed_gives_for_one_sentence(text, tmp_path):
    folder = write_bilm(tmp_path)
    model = ElmoModel.from_pretrained(folder)
    text.write_text("The film isn't dull.\nA good plot\n")
    extract(folder, text, "--layers", "all", to="words")
    extract(folder, text, "--layers", "all", "--vectors_of", "tokens", to="tokens")
    extract(folder, text, "--layers", "2", "--vectors_of", "sentences", to="sentences")
    for number, line in enumerate(text.read_text().splitlines()):
        (words,), (tokens,) = (model.embed([each], layers="all") for each in (line.split(), line))
        np.testing.assert_allclose(tensors(text, "words")[str(number)], words, atol=1e-5)
        np.testing.assert_allclose(tensors(text, "tokens")[str(number)], tokens, atol=1e-5)
        np.testing.assert_allclose(tensors(text, "sentences")["vectors"][number], tokens[2].mean(0), atol=1e-5)
    assert tensors(text, "tokens")["0"].shape[1] > tensors(text, "words")["0"].shape[1]


@pytest.mark.usefixtures("_read_once")
def test_layers_are_stacked_averaged_or_concatenated_in_the_order_that_is_asked_for(text, tmp_path):
    folder = write_bert(tmp_path)
    extract(folder, text, "--layers", "all", to="all")
    extract(folder, text, "--layers=-1,-2", "--combine_layers", "concatenate", to="long")
    description = extract(folder, text, "--layers", "1", "3", "--combine_layers", "mean", to="mean")
    extract(folder, text, to="last")
    assert description["names_of_layers"] == ["layer 1", "layer 3"]
    for number, (*_, one, two, three) in tensors(text, "all").items():
        np.testing.assert_array_equal(tensors(text, "long")[number], np.concatenate([three, two], -1))
        np.testing.assert_allclose(tensors(text, "mean")[number], (one + three) / 2, atol=1e-6)
        np.testing.assert_array_equal(tensors(text, "last")[number], three)


@pytest.mark.usefixtures("_read_once")
def test_parquet_has_the_numbers_of_safetensors_and_the_words(text, tmp_path, small_parts):
    folder = write_gpt(tmp_path)
    layers = ["--layers", "0", "-1"]
    for unit in ("words", "tokens", "sentences"):
        extract(folder, text, *layers, "--vectors_of", unit, to=f"{unit}/a")
        extract(folder, text, *layers, "--vectors_of", unit, "--format", "parquet", to=f"{unit}/b")
        files = sorted((tmp_path / unit / "b").glob("*.parquet"))
        assert len(files) == 3
        rows = [row for path in files for row in pq.read_table(path).to_pylist()]
        assert [row["line"] for row in rows] == list(range(6))
        if unit == "sentences":
            assert [row["text"] for row in rows] == LINES
            files = sorted((tmp_path / unit / "a").glob("*.safetensors"))
            expected = np.concatenate([load_file(path)["vectors"] for path in files])
        else:
            expected = [tensors(text, f"{unit}/a")[str(number)] for number in range(6)]
        for row, vectors in zip(rows, expected, strict=True):
            assert unit != "words" or row["words"] == LINES[row["line"]].split()
            for column, of_layer in zip(list(row)[2:], vectors, strict=True):
                np.testing.assert_array_equal(np.reshape(row[column], of_layer.shape), of_layer)
        assert list(rows[0])[2:] == ["layer_0", "layer_2"]


# Parts, and going on


def test_a_text_is_split_so_that_the_vectors_of_a_part_fit_into_memory(tmp_path, monkeypatch):
    path = tmp_path / "text.txt"
    path.write_text("ab cd\n" * 7 + "x" * 90 + "\nab\n")
    monkeypatch.setattr(extraction, "MEMORY", 200)
    plan = extraction.make_plan(path, 10)  # a byte of text may be a vector of 10 bytes, so a part has up to 20 bytes
    assert [*map(len, plan.parts)] == [3, 3, 1, 1, 1]
    assert [len(part) for part in extraction.make_plan(path, 0).parts] == [9]


@pytest.mark.parametrize(("kind", "files"), [("words", 6), ("sentences", 1)])
def test_only_vectors_of_sentences_are_few_enough_for_any_length_of_a_part(kind, files, text, tmp_path, monkeypatch):
    monkeypatch.setattr(extraction, "MEMORY", 1)
    extract(write_bert(tmp_path), text, "--vectors_of", kind)
    assert len([*(tmp_path / "out").glob("vectors-*.safetensors")]) == files


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["safetensors", "parquet"])
def test_a_run_that_is_killed_at_any_time_goes_on_to_the_same_bytes(kind, text, tmp_path, small_parts, monkeypatch):
    folder, out = write_bert(tmp_path), tmp_path / "out"
    flags = ["--format", kind, "--resume"]
    whole = extract(folder, text, *flags, to="whole")
    assert len(whole["files"]) == 3
    replace, dies_at = os.replace, ""

    def die(source, target) -> None:
        if Path(target).name == dies_at:
            os.kill(os.getpid(), signal.SIGKILL)  # the file is written, but has its temporary name
        replace(source, target)

    monkeypatch.setattr("os.replace", die)
    for dies_at in (".settings.json", f"vectors-00001.{kind}", "vectors.json"):
        assert wait(fork(lambda: extract(folder, text, *flags))) == [-signal.SIGKILL]
        assert {path.name for path in out.iterdir()} >= {".lock", f".{dies_at}.new"}
        assert {*contents(out)} <= {*whole["files"]} - {dies_at}
        earlier = {path: path.stat().st_mtime_ns for path in out.iterdir() if path.name in contents(out)}
    dies_at = ""
    assert extract(folder, text, *flags) == whole
    assert contents(out) == contents(tmp_path / "whole")
    assert {path: path.stat().st_mtime_ns for path in earlier} == earlier and len(earlier) == 3
    (out / f"vectors-00002.{kind}").write_bytes(b"cut short")
    extract(folder, text, *flags)
    assert contents(out) == contents(tmp_path / "whole")
    dies_at = f"vectors-00001.{kind}"
    (out / dies_at).unlink()
    assert wait(fork(lambda: extract(folder, text, *flags))) == [-signal.SIGKILL]
    assert not (out / "vectors.json").exists()  # which would say that all files are there
    dies_at = ""
    extract(folder, text, *flags)
    assert contents(out) == contents(tmp_path / "whole")
    with pytest.raises(FileExistsError, match="has vectors: choose another, --resume, or give --overwrite_output_dir"):
        extract(folder, text, "--format", kind)


def test_vectors_of_another_model_text_or_layer_are_not_mixed_with_those_that_are_there(text, tmp_path, small_parts):
    folder = write_bert(tmp_path)
    extract(folder, text)
    with pytest.raises(ValueError, match=r"out has vectors with other settings \(layers\): choose another folder"):
        extract(folder, text, "--resume", "--layers", "1")
    with pytest.raises(ValueError, match=r"with other settings \(model\)"):
        extract(write_gpt(tmp_path), text, "--resume", "--pieces", "first")
    (tmp_path / "out" / ".settings.json").unlink()  # as in a copy that leaves out hidden files
    with pytest.raises(ValueError, match=r"with other settings \(layers\)"):
        extract(folder, text, "--resume", "--layers", "1")
    text.write_text("another text\n")
    with pytest.raises(ValueError, match=r"with other settings \(text\)"):
        extract(folder, text, "--resume")
    extract(folder, text, "--overwrite_output_dir")
    assert sorted(contents(tmp_path / "out")) == ["vectors-00000.safetensors", "vectors.json"]


def test_a_folder_that_another_process_writes_to_is_left_alone(text, tmp_path):
    folder = write_bert(tmp_path)
    with FileLock(tmp_path / "out" / ".lock"), pytest.raises(BlockingIOError, match="another run is writing to"):
        extract(folder, text)
    assert not contents(tmp_path / "out")


def test_a_full_disk_is_one_line_and_what_was_written_stays(text, tmp_path, small_parts, monkeypatch):
    folder, write = write_bert(tmp_path), extraction.save_file

    def full(arrays, path, metadata) -> None:
        if "00001" in path.name:
            path.write_bytes(b"the beginning")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(arrays, path, metadata)

    monkeypatch.setattr(extraction, "save_file", full)
    with pytest.raises(OSError, match="cannot write .*00001.safetensors: No space left on device. Make room, then"):
        extract(folder, text)
    assert [*contents(tmp_path / "out")] == ["vectors-00000.safetensors"]
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"vectors-00000.safetensors", ".settings.json"}


# Bad input


@pytest.mark.usefixtures("_read_once")
def test_a_line_that_is_too_long_is_an_error_or_cut_where_that_is_asked_for(text, tmp_path, small_parts):
    folder = write_bert(tmp_path)  # of 19 positions
    text.write_text("the film\n" * 2 + "the film\n" + "bad " * 18 + "\n")
    with pytest.raises(ValueError, match=r"text.txt:4: the line has 20 tokens, and the model reads 19: split it, or"):
        extract(folder, text)
    description = extract(folder, text, "--resume", "--truncate")
    vectors = tensors(text)["3"]
    assert (np.abs(vectors).sum(-1) > 0).tolist() == [True] * 17 + [False]
    assert description["truncated_lines"] == [3]
    extract(folder, text, "--vectors_of", "tokens", "--truncate", to="tokens")
    assert len(tensors(text, "tokens")["3"]) == 19


@pytest.mark.usefixtures("_read_once")
def test_what_cannot_be_read_is_one_clear_error_before_anything_is_written(text, tmp_path):
    folder = write_bert(tmp_path)
    with pytest.raises(FileNotFoundError, match="cannot read .*absent.txt: No such file"):
        extract(folder, text.with_name("absent.txt"))
    with pytest.raises(ValueError, match="--layers 4: the model has the layers 0 to 3, or -4 to -1"):
        extract(folder, text, "--layers", "4")
    with pytest.raises(ValueError, match="--layers 3 -1 names a layer twice"):
        extract(folder, text, "--layers", "3", "-1")
    with pytest.raises(ValueError, match="is a file of word vectors, not a model"):
        extract(write_vectors(tmp_path / "glove.txt", ["the"]), text)
    with pytest.raises(ValueError, match="leave it out with --vectors_of tokens"):
        extract(folder, text, "--vectors_of", "tokens", "--pieces", "mean")
    with pytest.raises(ValueError, match="--batch_size must be at least 1, not 0"):
        extract(folder, text, "--batch_size", "0")
    text.write_bytes(b"the film\n\xff\n")
    with pytest.raises(ValueError, match="text.txt:2: not UTF-8"):
        extract(folder, text)
    text.write_bytes(b"")
    with pytest.raises(ValueError, match="text.txt has no lines"):
        extract(folder, text)
    assert not (tmp_path / "out").exists()
