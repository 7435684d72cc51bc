"""A corpus on disk reads as one row of tokens."""

import json
import pickle
import shutil
import struct
import time

import numpy as np
import pytest

from elmo_gpt_bert.tasks.pretraining.corpus import MANIFEST, VERSION, Corpus, Manifest, write_manifest
from elmo_gpt_bert.training.errors import UserError
from tests.support.corpus_sample import random_documents, write_corpus


@pytest.fixture
def documents():
    return random_documents(23, vocab_size=91)


@pytest.fixture
def corpus(tmp_path, documents):
    return write_corpus(tmp_path, documents, vocab_size=91)


def sentences_of(documents) -> list[list[int]]:
    return [sentence for document in documents for sentence in document]


def row_of(documents) -> list[int]:
    return [token for sentence in sentences_of(documents) for token in sentence]


def test_the_tokens_of_all_documents_are_one_row(corpus, documents):
    row = row_of(documents)
    assert corpus.num_tokens == len(row)
    assert corpus.read(0, len(row)).tolist() == row
    for start, stop in np.sort(np.random.default_rng(1).integers(0, len(row) + 1, (40, 2))):
        tokens = corpus.read(start, stop)
        assert tokens.dtype == np.int64 and tokens.tolist() == row[start:stop]


def test_tokens_beyond_the_row_are_an_error(corpus):
    for start, stop in ((-1, 2), (5, 4), (0, corpus.num_tokens + 1)):
        with pytest.raises(IndexError, match=f"the corpus has {corpus.num_tokens}"):
            corpus.read(start, stop)


@pytest.mark.parametrize("unit", ["documents", "sentences"])
def test_ends_number_and_find_units_as_plain_lists_do(corpus, documents, unit):
    units = sentences_of(documents) if unit == "sentences" else [row_of([document]) for document in documents]
    ends, expected = getattr(corpus, unit), np.cumsum([len(each) for each in units])
    holders = np.repeat(np.arange(len(units)), [len(each) for each in units])
    assert len(ends) == len(units)
    assert ends[np.arange(len(units))].tolist() == expected.tolist()
    assert ends[np.array([[3, 0], [len(units) - 1, 3]])].tolist() == [
        [expected[3], expected[0]],
        [expected[-1], expected[3]],
    ]
    assert int(ends[4]) == expected[4]
    assert ends.find(np.arange(corpus.num_tokens)).tolist() == holders.tolist()
    assert int(ends.find(7)) == holders[7]
    for start, stop in np.random.default_rng(2).integers(0, corpus.num_tokens + 1, (60, 2)):
        assert ends.between(start, stop).tolist() == [end for end in expected if start < end <= stop]
    with pytest.raises(IndexError):
        ends[len(units)]


def test_a_corpus_goes_through_pickle_as_paths_only(corpus, documents):
    corpus.read(0, corpus.num_tokens)
    corpus.sentences.find(np.arange(corpus.num_tokens))
    content = pickle.dumps(corpus)
    copy = pickle.loads(content)
    assert len(content) < 5000 and copy._tokens._values is None and copy.sentences._values is None
    assert copy.read(0, copy.num_tokens).tolist() == row_of(documents)
    assert copy.num_bytes == corpus.num_bytes


def test_words_have_rows_of_characters(tmp_path):
    characters = np.random.default_rng(3).integers(0, 262, (70_000, 5)).astype(np.uint16)
    corpus = write_corpus(tmp_path, [[[69_999, 3], [4]]], vocab_size=11, characters=characters)
    assert corpus.vocab_size == 11 and corpus.read(0, 3).tolist() == [69_999, 3, 4]
    assert np.array_equal(pickle.loads(pickle.dumps(corpus)).characters, characters)
    assert isinstance(corpus.characters, np.memmap) and len(pickle.dumps(corpus)) < 5000


@pytest.mark.parametrize("numbers, size", [(65_536, 2), (65_537, 4)])
def test_the_files_are_plain_integers(tmp_path, numbers, size):
    """In struct's formats H or I for tokens, q for ends."""
    documents = [*random_documents(4, numbers), [[numbers - 1]]]
    write_corpus(tmp_path, documents, numbers)
    row, ends = row_of(documents), np.cumsum([len(row_of([document])) for document in documents])
    assert (tmp_path / "train.tokens").read_bytes() == struct.pack(f"<{len(row)}{'H' if size == 2 else 'I'}", *row)
    assert (tmp_path / "train.documents").read_bytes() == struct.pack(f"<{len(ends)}q", *ends)


@pytest.mark.parametrize("suffix", [".tokens", ".documents", ".sentences"])
@pytest.mark.parametrize("damage", ["is missing", "has 6 bytes"])
def test_a_missing_or_cut_file_is_one_error(corpus, suffix, damage):
    path = corpus.folder / f"train{suffix}"
    content = path.read_bytes()
    path.unlink()
    if damage != "is missing":
        path.write_bytes(content[:6])
    with pytest.raises(UserError, match=f"train{suffix} is damaged: it {damage}"):
        Corpus.open(corpus.folder)


@pytest.mark.parametrize(
    "change, problem",
    [
        ({"version": 99}, f"manifest.json is of version 99, this program reads {VERSION}. Prepare .* another folder"),
        ({"pages": 7}, "manifest.json was changed .*'pages'.*. Prepare the corpus in another folder"),
    ],
)
def test_a_manifest_of_another_version_or_with_other_entries_is_one_error(corpus, change, problem):
    path = corpus.folder / MANIFEST
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(UserError, match=problem):
        Corpus.open(corpus.folder)


def test_what_is_no_corpus_or_lacks_the_split_is_one_error(tmp_path, corpus):
    with pytest.raises(FileNotFoundError, match="no prepared corpus"):
        Corpus.open(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="no split 'test', but train"):
        Corpus.open(corpus.folder, "test")


def test_a_billion_tokens_open_at_once(tmp_path):
    """The file of tokens is sparse, so it takes no room. The documents have 1000 tokens."""
    with (tmp_path / "train.tokens").open("wb") as file:
        file.truncate(2 * 10**9)
    np.arange(1000, 10**9 + 1, 1000).tofile(tmp_path / "train.documents")
    shutil.copy(tmp_path / "train.documents", tmp_path / "train.sentences")
    files = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    write_manifest(tmp_path, Manifest(30_522, 2, "a tokenizer", {"train": 5 * 10**9}, files))
    begin = time.process_time()
    corpus = Corpus.open(tmp_path)
    assert corpus.num_tokens == 10**9 and len(corpus.documents) == 10**6
    assert corpus.read(999_999_000, 10**9).shape == (1000,) and int(corpus.documents.find(123_456_789)) == 123_456
    assert time.process_time() - begin < 0.5
