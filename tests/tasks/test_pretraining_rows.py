"""The partition of a corpus into rows."""

import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from elmo_gpt_bert.tasks.pretraining import masked
from elmo_gpt_bert.tasks.pretraining.masked import Segments, find_rows, open_rows, target_lengths
from elmo_gpt_bert.training.errors import UserError
from tests.support.corpus_sample import random_documents, write_corpus


@pytest.fixture(scope="module")
def documents():
    """Short and long documents, and sentences that are longer than a row."""
    long = [[7] * length for length in (3, 90, 2, 41, 1)]
    return [*random_documents(40, 50, longest=9), long, *random_documents(40, 50, longest=3, seed=1), [[4] * 100]]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory, documents):
    return write_corpus(tmp_path_factory.mktemp("corpus"), documents, vocab_size=50)


def plain_rows(documents, segments: str, length: int) -> list[int]:
    """Row by row, sentence by sentence: the number of tokens of each row."""
    capacity = length - (3 if segments == "next_sentence" else 2)
    sentences, row, offset, used = [], 0, 0, 0
    for number, document in enumerate(documents):
        for sentence in document:
            cuts = range(0, len(sentence), capacity)
            sentences += [(number, min(capacity, len(sentence) - cut)) for cut in cuts]
    rows, previous = [], None
    for number, size in sentences:
        separators = int(number != previous)
        if segments == "full_sentences":
            ends = previous is not None and used + separators + size > capacity
        elif segments == "document_sentences":
            ends = previous is not None and (separators or used + size > capacity)
        else:  # the released loop: a row ends behind the sentence that reaches the target
            ends = previous is not None and (separators or used >= target_lengths(np.array([row]), capacity)[0])
        if ends:
            rows.append(offset - row)
            row, used, separators = offset, 0, 0
        used += size + (separators if segments == "full_sentences" and previous is not None and used else 0)
        offset, previous = offset + size, number
    return [*rows, offset - row]


@pytest.mark.parametrize("segments", Segments)
@pytest.mark.parametrize("length", [8, 13, 64, 500])
def test_rows_are_those_of_a_plain_loop_whatever_the_blocks(corpus, documents, segments, length):
    expected = plain_rows(documents, segments, length)
    for block in (1, 37, 10**6):
        starts = np.concatenate([*find_rows(corpus, segments, length, block)])
        assert np.diff(starts, append=corpus.num_tokens).tolist() == expected


def test_a_tenth_of_the_targets_is_shorter():
    targets = target_lengths(np.arange(20_000), 30)
    short = targets < 30
    expected = 0.1 * 28 / 29  # a short target is from 2 to 30
    assert abs(short.mean() - expected) < 4 * (expected * (1 - expected) / len(targets)) ** 0.5
    assert sorted(set(targets)) == list(range(2, 31))


def test_the_partition_is_made_once(tmp_path, documents):
    corpus = write_corpus(tmp_path, documents, 50)
    rows = open_rows(corpus, Segments.FULL_SENTENCES, 16)
    (path,) = (tmp_path / "rows").glob("*.rows")
    time = path.stat().st_mtime_ns
    assert len(open_rows(corpus, Segments.FULL_SENTENCES, 16)) == len(rows) and path.stat().st_mtime_ns == time
    starts, stops = rows.bounds(np.arange(len(rows)))
    assert starts[0] == 0 and stops[-1] == corpus.num_tokens and np.array_equal(starts[1:], stops[:-1])
    others = [(Segments.NEXT_SENTENCE, 16), (Segments.FULL_SENTENCES, 9)]
    assert all(len(open_rows(corpus, *other)) != len(rows) for other in others)


def test_processes_that_start_together_make_the_partition_once(tmp_path, documents, monkeypatch):
    corpus, made = write_corpus(tmp_path, documents, 50), []
    monkeypatch.setattr(masked, "find_rows", lambda *arguments: made.append(1) or find_rows(*arguments))
    with ThreadPoolExecutor(4) as pool:
        all_rows = [*pool.map(lambda _: open_rows(corpus, Segments.FULL_SENTENCES, 16), range(4))]
    assert len(made) == 1 and len({len(rows) for rows in all_rows}) == 1


def test_pickled_rows_are_a_path(corpus):
    rows = open_rows(corpus, Segments.FULL_SENTENCES, 16)
    before = rows.bounds(np.array([3, 1]))
    pickled = pickle.dumps(rows)
    assert len(pickled) < 1000 and np.array_equal(pickle.loads(pickled).bounds(np.array([3, 1])), before)


def test_next_sentences_need_another_document(tmp_path):
    corpus = write_corpus(tmp_path, [[[1, 2], [3]]], 50)
    with pytest.raises(
        UserError, match="training text in .* is one document: separate its documents by blank lines, or "
    ):
        open_rows(corpus, Segments.NEXT_SENTENCE, 16)
    assert len(open_rows(corpus, Segments.FULL_SENTENCES, 16)) == 1
    held_out = write_corpus(tmp_path / "held_out", [[[1, 2], [3]]], 50, split="validation")
    with pytest.raises(
        UserError, match="hold out more by --validation_file or --validation_split_percentage, or choose"
    ):
        open_rows(held_out, Segments.NEXT_SENTENCE, 16)


def test_rows_have_room_for_text(corpus):
    for segments, least in ((Segments.NEXT_SENTENCE, 5), (Segments.FULL_SENTENCES, 4)):
        with pytest.raises(UserError, match=f"has no room for text in rows of {segments}: use {least} or more"):
            open_rows(corpus, segments, least - 1)
        assert len(open_rows(corpus, segments, least)) > 0
