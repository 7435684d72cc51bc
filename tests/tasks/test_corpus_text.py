"""Text of every format is read as documents and sentences, or one clear error tells where it cannot be."""

import bz2
import csv
import gzip
import io
import json
import lzma
import random
import re
import time

import pyarrow
import pytest
from pyarrow import parquet

from elmo_gpt_bert.tasks.pretraining import text
from elmo_gpt_bert.tasks.pretraining.text import TextSource, find_files, pieces, read_documents, split_sentences
from elmo_gpt_bert.training.errors import InputError, UserError


DOCUMENTS = ["A cat sat.\nIt purred.", "Zoë slept. Dr. Ode did not.", "One line"]
PLAIN = "\n\n".join(DOCUMENTS).encode() + b"\n"


def zstandard(content: bytes) -> bytes:
    sink = pyarrow.BufferOutputStream()
    with pyarrow.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(content)
    return sink.getvalue().to_pybytes()


COMPRESSORS = {"": bytes, ".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress, ".zst": zstandard}


def write(path, content: bytes):
    path.write_bytes(content)
    return path


def stripped(path, **options) -> list[str]:
    return [document.strip() for document in read_documents(path, **options)]


# Documents


@pytest.mark.parametrize("suffix", COMPRESSORS)
@pytest.mark.parametrize("name", ["page.txt", "page.tokens", "page", "page.jsonl", "page.json"])
def test_each_format_and_compression_gives_the_same_documents(tmp_path, name, suffix):
    lines = "".join(json.dumps({"n": 1, "text": document}) + "\n" for document in [*DOCUMENTS, "", " \n "]).encode()
    content = lines if ".json" in name else PLAIN
    assert stripped(write(tmp_path / f"{name}{suffix}", COMPRESSORS[suffix](content))) == DOCUMENTS


@pytest.mark.parametrize("suffix", COMPRESSORS)
def test_csv_gives_the_same_documents(tmp_path, suffix):
    content = io.StringIO(newline="")
    csv.writer(content).writerows([["n", "body"], *enumerate([*DOCUMENTS, "", " \n "])])
    path = write(tmp_path / f"page.csv{suffix}", COMPRESSORS[suffix](content.getvalue().encode()))
    assert stripped(path, column="body") == DOCUMENTS


def test_tab_separated_columns_have_no_quoting(tmp_path):
    path = write(tmp_path / "page.tsv", b'n\ttext\n1\t"A cat sat.\n2\tIt, too.\n')
    assert stripped(path) == ['"A cat sat.', "It, too."]


def test_parquet_gives_the_same_documents(tmp_path):
    path = tmp_path / "page.parquet"
    parquet.write_table(pyarrow.table({"n": [1, 2, 3, 4], "body": [*DOCUMENTS, "  "]}), path)
    assert stripped(path, column="body") == DOCUMENTS


def test_a_file_without_blank_lines_is_one_document_and_with_files_every_file_is(tmp_path):
    one_line_each = write(tmp_path / "lines.txt", b"First.\r\nSecond.\r\n")
    assert stripped(one_line_each) == ["First.\r\nSecond."]
    assert stripped(write(tmp_path / "blank.txt", PLAIN), documents="files") == [PLAIN.decode().strip()]


def test_empty_documents_vanish_and_blank_lines_of_white_space_separate(tmp_path):
    path = write(tmp_path / "page.txt", "\ufeff\n\n \t\nOne.\n \r\n\n\nTwo.\n\u3000\nThree.\n\u00a0\n".encode())
    assert stripped(path) == ["One.", "Two.", "Three."]
    assert stripped(write(tmp_path / "empty.txt", b"")) == []


def test_lines_may_end_with_a_carriage_return_alone(tmp_path):
    assert stripped(write(tmp_path / "page.txt", PLAIN.replace(b"\n", b"\r"))) == DOCUMENTS
    mixed = write(tmp_path / "mixed.txt", b"One\rtwo.\r\n\r\nThree.")
    assert stripped(mixed) == ["One\rtwo.", "Three."]


def test_a_document_beyond_the_limit_is_cut_at_the_end_of_a_line(tmp_path, monkeypatch):
    monkeypatch.setattr(text, "LONGEST_DOCUMENT", 20)
    lines = [f"line {number}" for number in range(9)]
    documents = stripped(write(tmp_path / "page.txt", "\n".join(lines).encode()))
    assert len(documents) > 1 and "\n".join(documents).split("\n") == lines


def test_files_are_named_by_patterns_lists_and_names_with_commas(tmp_path):
    names = ["b.txt", "a.txt", "c.md", "d,e.txt"]
    paths = {name: write(tmp_path / name, b"x") for name in names}
    assert find_files(f"{tmp_path}/*.txt", "--train_file") == [paths["a.txt"], paths["b.txt"], paths["d,e.txt"]]
    assert find_files(f"{paths['c.md']}, {tmp_path}/[ab].txt", "--train_file") == [
        paths["c.md"],
        paths["a.txt"],
        paths["b.txt"],
    ]
    assert find_files(str(paths["d,e.txt"]), "--train_file") == [paths["d,e.txt"]]


@pytest.mark.parametrize(
    "name, problem",
    [("none.txt", "no such file"), ("*.none", "no file matches"), ("", "FOLDER/\\*.txt"), (",", "names no")],
)
def test_a_name_without_a_file_is_one_error(tmp_path, name, problem):
    with pytest.raises(UserError, match=f"^--train_file .*{problem}") as caught:
        find_files(name if name == "," else f"{tmp_path}/{name}", "--train_file")
    assert "\n" not in str(caught.value)


# Text that cannot be read


@pytest.mark.parametrize(
    "name, content, problem",
    [
        ("a.txt", b"fine\n\nso f\xe9te", "a.txt:3: not UTF-8"),
        ("a.txt", "fine".encode("utf-16-le"), "a.txt:1: a NUL byte.* UTF-16"),
        ("a.txt.gz", gzip.compress(b"fine\n\n\xff", mtime=0), "a.txt.gz:3: not UTF-8"),
        ("a.txt", b"\xef\xbb\xbffine \xe9", "a.txt:1: not UTF-8"),
        ("a.jsonl", b'{"text": "fine"}\n{"text": "f\xe9te"}', "a.jsonl:2: not UTF-8"),
        ("a.jsonl", b'{"text": "fine"}\n{"text": ', "a.jsonl:2: not JSON"),
        ("a.jsonl", b'\n["fine"]', "a.jsonl:2: not a JSON object"),
        ("a.jsonl", b'{"body": "fine"}', "a.jsonl:1: no column text among body. Name .* --text_column"),
        ("a.jsonl", b'{"text": null}', "a.jsonl:1: the column text is no string, but None.* --text_column"),
        ("a.jsonl", rb'{"text": "ab\ud83d"}', r"a.jsonl:1: .* half a surrogate pair: write both"),
        ("a.csv", b"body,n\nfine,1\n", "a.csv:2: no column text among body, n. Name .* --text_column"),
        ("a.csv", b"text,n\nfine, but,1\n", "a.csv:2: 3 columns instead of 2"),
        ("a.csv", b'text,n\n"fine', "a.csv:2: not csv"),
        ("a.tsv", b"text\tn\nfine\n", "a.tsv:2: 1 column instead of 2"),
        ("a.csv", b"text;n\nfine;1\n", "a.csv:1: a csv file has commas .* and not semicolons or tabs: save it"),
        ("a.csv", b"text\tn\nfine\t1\n", "a.csv:1: a csv file has commas .* and not semicolons or tabs: save it"),
        ("a.tsv", b"n\ttext\r1\tfine\r", "a.tsv: its lines end with a carriage return alone"),
        ("a.csv", b"text\nf\xe9te\n", "a.csv:2: not UTF-8"),
        ("a.parquet", b"PAR1 or not", "a.parquet is damaged or no parquet file"),
        ("a.txt.xz", b"not xz", "a.txt.xz is damaged or cut short"),
    ],
)
def test_text_that_cannot_be_read_is_one_error_with_its_place(tmp_path, name, content, problem):
    with pytest.raises(UserError, match=problem) as caught:
        list(read_documents(write(tmp_path / name, content)))
    assert "\n" not in str(caught.value) and str(tmp_path) in str(caught.value)


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz", "a.jsonl", "a.csv", "a.parquet"])
def test_a_file_that_is_not_there_is_one_error(tmp_path, name):
    with pytest.raises(FileNotFoundError, match=f"(?i)cannot read {tmp_path}/{name}: no such file"):
        list(read_documents(tmp_path / name))


@pytest.mark.parametrize("suffix", [suffix for suffix in COMPRESSORS if suffix])
def test_a_file_that_was_cut_short_is_one_error(tmp_path, suffix):
    content = COMPRESSORS[suffix](b"".join(b"%d sheep\n\n" % number for number in range(30_000)))
    path = write(tmp_path / f"a.txt{suffix}", content[:-9])
    with pytest.raises(OSError, match=f"a.txt{suffix} is damaged or cut short .*: get it again"):
        list(read_documents(path))


@pytest.mark.parametrize("values, problem", [([1, 2], "is no string, but 1"), (["a", None], "is no string, but None")])
def test_a_parquet_column_without_text_is_one_error(tmp_path, values, problem):
    parquet.write_table(pyarrow.table({"text": values}), tmp_path / "a.parquet")
    with pytest.raises(UserError, match=f"a.parquet: the column text {problem}.* --text_column"):
        list(read_documents(tmp_path / "a.parquet"))
    with pytest.raises(UserError, match="no column body among text"):
        list(read_documents(tmp_path / "a.parquet", column="body"))


@pytest.mark.parametrize(
    "fields, problem",
    [
        ({}, "comes from --train_file or --dataset_name: give one of them"),
        ({"train_file": "a.txt", "dataset_name": "a/b"}, "comes from --train_file or --dataset_name: give one of"),
        ({"train_file": "a.txt", "validation_split_percentage": 100.0}, "100.0: must be at least 0 and below 100"),
        ({"train_file": "a.txt", "validation_split_percentage": -1.0}, "-1.0: must be at least 0 and below 100"),
    ],
)
def test_a_source_that_names_no_text_or_no_share_is_refused(fields, problem):
    with pytest.raises(InputError, match=problem):
        TextSource(**fields)


# Sentences


@pytest.mark.parametrize(
    "sentences",
    [
        ["Mr. Smith met J. R. Tolkien.", "He said “Hi!”", "Then No. 5 left."],
        ["He met\u00a0Mr. Smith and\tMr. Jones.", "They\u3000left."],
        ["It was I.", "Nobody in the U.S. Army saw e.g. Tom, 3.5 in. tall."],
        ["'Tis so...", "“And more?” asked he.", "(Yes.)", "No.", "Never!?", "3 went."],
        ["我来了。", "你呢？", "「好。」", "他说。"],
        ["The end . . . of a"],
        ["Été.", "Österreich."],
    ],
)
def test_sentences_end_at_marks_before_a_capital_but_not_after_abbreviations(sentences):
    space = "" if "。" in sentences[0] else " "
    assert split_sentences(space.join(sentences)) == sentences


def test_a_line_always_ends_a_sentence_and_with_lines_nothing_else_does():
    assert split_sentences("One\ntwo. Three.\n\n four ") == ["One", "two.", "Three.", "four"]
    assert split_sentences("One\ntwo . Three .\r\n\n four ", "lines") == ["One", "two . Three .", "four"]


def test_a_long_row_of_dots_is_read_in_a_moment():
    line, begin = "Contents " + "." * 40_000 + "x", time.process_time()
    assert split_sentences(line) == [line]
    assert time.process_time() - begin < 3


def test_splitting_loses_nothing_but_white_space():
    rng = random.Random(0)
    alphabet = ["A", "b", "Mr", "U.S", ".", "!", "?", "…", "”", '"', "(", " ", "  ", "\t", "\n", "5", "。", "”", "'"]
    for _ in range(300):
        document = "".join(rng.choices(alphabet, k=rng.randrange(40)))
        joined = "".join(split_sentences(document))
        assert re.sub(r"\s", "", joined) == re.sub(r"\s", "", document)


def test_pieces_are_of_the_size_and_keep_the_order():
    documents = ["x" * size for size in (3, 9, 1, 1, 1, 20, 2)]
    assert list(pieces(documents, 10)) == [documents[:2], documents[2:6], documents[6:]]
    assert list(pieces([], 10)) == []
