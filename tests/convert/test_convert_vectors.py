"""Word vectors in every published format, or words to learn them for, become a folder that the task networks read."""

import gzip
import json
import struct
import tracemalloc
from codecs import BOM_UTF8
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file
from transformers import AutoTokenizer

from elmo_gpt_bert.convert.vectors import FASTTEXT, convert, count_words, main, read_vectors
from elmo_gpt_bert.tasks.ner.data import read_files
from elmo_gpt_bert.training.errors import InputError
from modeling import ElmoConfig, ElmoForPreTraining, ElmoForTokenClassification, ElmoModel, ElmoTokenizer
from modeling.elmo.configuration_elmo import AUTO_MAP
from tests.support.tiny_run import Arguments, load_model


SIZES = {
    "hidden_size": 6,
    "cell_size": 5,
    "char_embedding_size": 2,
    "filters": [[1, 3], [2, 4]],
    "num_highway_layers": 1,
    "max_characters_per_token": 9,
    "rnn_size": 3,
    "rnn_layers": 1,
    "classifier_size": 4,
    "lm_vocab_size": 5,
}
WORDS = ["the", ",", "naïve", "</s>", "Paris", "日本", "don\u00a0't"]  # no-break spaces are in real files, too
TABLE = np.random.default_rng(0).normal(size=(len(WORDS), 4)).astype(np.float32)


# Writers of the formats


def in_text(words=WORDS, table=TABLE, header=False, end="") -> bytes:
    lines = [f"{len(words)} {table.shape[1]}\n"] if header else []
    lines += [f"{word} {' '.join(map(str, row))}{end}\n" for word, row in zip(words, table.tolist(), strict=True)]
    return "".join(lines).encode()


def in_binary(words=WORDS, table=TABLE, end=b"\n") -> bytes:
    rows = [word.encode() + b" " + row.astype("<f4").tobytes() + end for word, row in zip(words, table, strict=True)]
    return f"{len(words)} {table.shape[1]}\n".encode() + b"".join(rows)


def fasttext_model(
    words=WORDS, buckets=11, spans=(3, 5), version=12, kind=2, quantised=False
) -> tuple[bytes, np.ndarray]:
    """The file that fastText saves, with random rows, and these rows: the words' and then the buckets'."""
    rows = np.random.default_rng(1).normal(size=(len(words) + buckets, 4)).astype(np.float32)
    labels = ["__label__a"]
    content = struct.pack("<2i", 793712314, version)
    content += struct.pack("<12id", 4, 5, 5, 1, 5, 1, 2, kind, buckets, *spans, 100, 1e-4)
    content += struct.pack("<3i2q", len(words) + 1, len(words), 1, 1000, -1)
    for number, word in enumerate(words + labels):
        content += word.encode() + b"\0" + struct.pack("<qb", 9 - number, number >= len(words))
    content += struct.pack("<?2q", quantised, *rows.shape) + rows.tobytes()
    return content + struct.pack("<?2q", False, 1, 4) + rows[:1].tobytes(), rows  # and the output matrix


def fnv(text: str) -> int:
    """FNV-1a of 32 bits, in which fastText takes bytes as signed numbers."""
    number = 0x811C9DC5
    for byte in text.encode():
        signed = struct.unpack("b", bytes([byte]))[0]
        number = (number ^ (signed % 2**32)) * 0x01000193 % 2**32
    return number


def fasttext_vector(word: str, number: int, rows: np.ndarray, buckets: int, shortest: int, longest: int) -> np.ndarray:
    marked, mine = f"<{word}>", [number]
    for first in range(len(marked)) if word != "</s>" else ():
        for last in range(first + 1, len(marked) + 1):
            piece = marked[first:last]
            if shortest <= len(piece) <= longest and not (len(piece) == 1 and first in (0, len(marked) - 1)):
                mine.append(len(WORDS) + fnv(piece) % buckets)
    return rows[mine].astype(np.float64).mean(0)


FORMATS = {
    "GloVe": in_text(),
    "GloVe, lines of Windows": in_text(end="\r"),
    "word2vec, text": in_text(header=True, end=" "),
    "fastText, text": in_text(header=True),
    "word2vec": in_binary(),
    "word2vec, without line feeds": in_binary(end=b""),
}


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "vectors"


@pytest.mark.parametrize("compressed", [False, True], ids=["plain", "gzip"])
@pytest.mark.parametrize("content", FORMATS.values(), ids=FORMATS)
def test_every_format_gives_the_same_words_and_vectors(content, compressed, path):
    marks = [b""] if content.startswith(FASTTEXT) else [b"", BOM_UTF8]
    for mark in marks:
        path.write_bytes(gzip.compress(mark + content) if compressed else mark + content)
        words, table = read_vectors(path)
        assert words == WORDS and table.dtype == np.float32
        np.testing.assert_array_equal(table, TABLE)


def test_the_hash_is_the_published_one():
    assert [fnv(text) for text in ("", "a", "foobar")] == [0x811C9DC5, 0xE40C292C, 0xBF9CF968]


@pytest.mark.parametrize("compressed", [False, True], ids=["plain", "gzip"])
@pytest.mark.parametrize("spans", [(3, 5), (1, 2), (0, 0)])
def test_a_fasttext_models_vectors_are_means_over_subwords(spans, compressed, path):
    content, rows = fasttext_model(spans=spans)
    path.write_bytes(gzip.compress(content) if compressed else content)
    words, table = read_vectors(path)
    assert words == WORDS
    expected = [fasttext_vector(word, number, rows, 11, *spans) for number, word in enumerate(WORDS)]
    np.testing.assert_allclose(table, expected, rtol=1e-5, atol=1e-6)


def test_an_old_supervised_fasttext_model_has_no_subwords(path):
    content, rows = fasttext_model(version=11, kind=3)
    path.write_bytes(content)
    np.testing.assert_array_equal(read_vectors(path)[1], rows[: len(WORDS)])


@pytest.mark.parametrize("header", [False, True])
def test_blank_lines_of_text_are_no_words(header, path):
    first, *others = in_text(header=header).splitlines(keepends=True)
    path.write_bytes(b"".join([first, b"\n", *others, b" \n"]))
    words, table = read_vectors(path)
    assert words == WORDS and np.array_equal(table, TABLE)


def test_words_may_have_spaces_in_text(path):
    path.write_bytes(in_text(["at name@example.com", ". . ."], TABLE[:2]))
    with pytest.raises(ValueError, match="line 1: could not convert"):  # nothing says yet how many are numbers
        read_vectors(path)
    path.write_bytes(in_text(["the", "at name@example.com", ". . ."], TABLE[:3]))
    assert read_vectors(path)[0] == ["the", "at name@example.com", ". . ."]


@pytest.mark.parametrize("make", [in_text, in_binary])
def test_of_a_word_that_is_there_twice_the_first_vector_counts(make, path):
    path.write_bytes(make([*WORDS, "the"], np.concatenate([TABLE, TABLE[:1] + 1])))
    words, table = read_vectors(path)
    assert words == WORDS and np.array_equal(table, TABLE)


CONTENTS = FORMATS | {"a fastText model": fasttext_model()[0]}


@pytest.mark.parametrize("content", CONTENTS.values(), ids=CONTENTS)
def test_only_wanted_words_are_kept(content, path):
    path.write_bytes(content)
    everything = dict(zip(*read_vectors(path), strict=True))
    words, table = read_vectors(path, {"naïve", "the", "absent"})
    assert words == ["the", "naïve"]
    np.testing.assert_array_equal(table, [everything[word] for word in words])


@pytest.mark.parametrize("content", CONTENTS.values(), ids=CONTENTS)
def test_a_file_without_any_of_the_wanted_words_is_one_error(content, path):
    path.write_bytes(content)
    with pytest.raises(InputError, match="vectors holds no vector for any word in --texts$"):
        read_vectors(path, {"absent"})


@pytest.mark.slow
@pytest.mark.parametrize(("make", "count"), [(in_text, 4_000), (in_binary, 40_000)], ids=["text", "binary"])
def test_of_a_large_file_only_what_is_wanted_is_in_memory(make, count, path):
    path.write_bytes(make([f"word{number}" for number in range(count)], np.tile(TABLE[0], (count, 12))))
    tracemalloc.start()
    try:
        words, _ = read_vectors(path, {"word7", "word3999"})
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert words == ["word7", "word3999"] and peak < path.stat().st_size / 2


def test_of_a_word_with_a_carriage_return_at_its_end_only_the_word_is_kept(path):
    words = ["the", "the\r", "of\r"]
    for content in (in_text(words, TABLE[:3]), in_binary(words, TABLE[:3])):
        path.write_bytes(content)
        assert read_vectors(path)[0] == ["the", "of"]


def test_the_published_vectors_are_read(data):
    path = data / "word_eval" / "glove.6B.100d.sample.txt.gz"
    words, table = read_vectors(path)
    first, *numbers = gzip.decompress(path.read_bytes()).decode().splitlines()[0].split()
    assert words[0] == first and table.shape == (100, 100)
    np.testing.assert_array_equal(table[0], np.array(numbers, np.float32))


# The folder


@pytest.fixture
def checkpoint(tmp_path) -> Path:
    return write_checkpoint(tmp_path / "checkpoint")


def write_checkpoint(folder: Path) -> Path:
    """A language model's folder, with a state to start from."""
    model = ElmoForPreTraining(ElmoConfig(**SIZES))
    model.elmo.warm_up([["a", "few", "words"]])
    model.save_pretrained(folder)
    ElmoTokenizer(max_characters_per_token=9).save_pretrained(folder)
    return folder


def configuration(tmp_path, **changes) -> Path:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "elmo"} | SIZES | changes))
    return path


@pytest.fixture
def folder(checkpoint, path, tmp_path) -> Path:
    path.write_bytes(FORMATS["GloVe"])
    convert(str(checkpoint), str(tmp_path / "out"), str(path))
    return tmp_path / "out"


def test_the_rows_are_padding_unknown_and_the_words_as_the_tokenizer_numbers_them(folder):
    rows = load_file(folder / "model.safetensors")["word_vectors.weight"].numpy()
    assert not rows[0].any()
    np.testing.assert_allclose(rows[1], TABLE.mean(0), rtol=1e-6)
    np.testing.assert_array_equal(rows[2:], TABLE)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    batch = tokenizer(
        [["The", "Paris", "paris", "naïve", "don\u00a0't"], [","]], is_split_into_words=True, padding=True
    )
    assert batch["vector_ids"] == [[2, 6, 1, 4, 8], [3, 0, 0, 0, 0]]
    assert tokenizer.max_characters_per_token == 9


def test_a_checkpoint_without_a_tokenizer_gets_one_of_its_width(checkpoint, path, tmp_path):
    (checkpoint / "tokenizer_config.json").unlink()
    path.write_bytes(FORMATS["GloVe"])
    convert(str(checkpoint), str(tmp_path / "out"), str(path))
    assert AutoTokenizer.from_pretrained(tmp_path / "out").max_characters_per_token == 9


def test_the_configuration_has_the_vectors_and_any_network_may_be_built_on_it(folder):
    config = ElmoConfig.from_pretrained(folder)
    assert (config.num_word_vectors, config.word_vector_size) == (len(WORDS) + 2, 4)
    assert config.architectures is None and config.hidden_size == SIZES["hidden_size"]


@pytest.mark.parametrize("kind", ["a language model", "a biLM alone", "a task network"])
def test_the_checkpoints_bilm_is_kept(kind, checkpoint, path, tmp_path):
    before = ElmoForPreTraining.from_pretrained(checkpoint).elmo.state_dict()
    path.write_bytes(FORMATS["GloVe"])
    if kind == "a biLM alone":
        ElmoModel.from_pretrained(checkpoint).save_pretrained(checkpoint)
    elif kind == "a task network":
        convert(str(checkpoint), str(tmp_path / "first"), str(path))
        ElmoForTokenClassification.from_pretrained(tmp_path / "first").save_pretrained(checkpoint)
    convert(str(checkpoint), str(tmp_path / "out"), str(path))
    after = ElmoForTokenClassification.from_pretrained(tmp_path / "out").elmo.state_dict()
    assert before["initial_cell"].any() and before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


TASKS = sorted(
    name for name in AUTO_MAP if name not in ("AutoConfig", "AutoTokenizer", "AutoModel", "AutoModelForPreTraining")
)


@pytest.mark.parametrize("auto", TASKS)
@pytest.mark.parametrize("kind", ["a checkpoint", "a configuration", "no biLM"])
def test_every_task_network_loads_it_for_training(kind, auto, checkpoint, path, tmp_path):
    path.write_bytes(FORMATS["GloVe"])
    if kind != "a checkpoint":
        checkpoint = configuration(tmp_path, use_elmo=kind != "no biLM")
    convert(str(checkpoint), str(tmp_path / "out"), str(path))
    run = Arguments(model_name_or_path=str(tmp_path / "out"), output_dir=str(tmp_path / "run"), do_train=True)
    model = load_model(run, getattr(transformers, auto))
    held = load_file(tmp_path / "out" / "model.safetensors")
    assert any(name.startswith("elmo.") for name in held) == (kind != "no biLM") == hasattr(model, "elmo")
    state = model.state_dict()
    assert all(torch.equal(state[name], value) for name, value in held.items())


# The texts


@pytest.fixture
def texts(tmp_path) -> list[str]:
    (tmp_path / "a.conll").write_text("-DOCSTART- -X- O O\n\nThe DT B\nnaïve\tJJ\tO\n\nthe DT O\nzyx NN O\n")
    (tmp_path / "b.tsv").write_bytes(gzip.compress(b"sentence\tlabel\nParis, it's zyx .\t1\n"))
    return [str(tmp_path / name) for name in ("a.conll", "b.tsv")]


def test_words_are_counted_in_columns_and_in_text(texts):
    columns, text = ([Path(path)] for path in texts)
    assert count_words(columns) == {"The": 1, "naïve": 1, "the": 1, "zyx": 1}
    expected = ["sentence", "label", "Paris", ",", "it", "'s", "zyx", ".", "1"]
    assert count_words(text) == dict.fromkeys(expected, 1)
    assert count_words(columns + text)["zyx"] == 2


EU = "EU NNP I-NP I-ORG\nrejects VBZ I-VP O\nGerman JJ I-NP I-MISC\n\n. . O O\n"
COLUMNS = {
    "eng.train.conll": ("-DOCSTART- -X- O O\n\n" + EU, ["EU", "rejects", "German", "."]),
    "wnut.CONLL": ("New York\tB-location\n's\tO\n\t\nit's\tO\n", ["New York", "'s", "it's"]),
    "windows.iob2": ("\ufeffEU B-ORG\r\nthe O\r\n", ["EU", "the"]),
    "leeds.bio": ("-X- O O\n\nLeeds B-LOC B-LOC\nin O O\n", ["Leeds", "in"]),
    "train.char.bmes": ("海 B-LOC\n南 E-LOC\n\n人 O\n", ["海", "南", "人"]),
    "words.conll": ("EU\nrejects\n\n.\n", ["EU", "rejects", "."]),
    "pos.conll": ("EU\tPROPN\nit's\tX\n", ["EU", "it's"]),
}


@pytest.mark.parametrize("compressed", [False, True], ids=["plain", "gzip"])
@pytest.mark.parametrize("name", COLUMNS)
def test_columns_are_told_by_the_end_of_their_name(name, compressed, tmp_path):
    text, words = COLUMNS[name]
    path = tmp_path / (f"{name}.gz" if compressed else name)
    path.write_bytes(gzip.compress(text.encode()) if compressed else text.encode())
    assert count_words([path]) == dict.fromkeys(words, 1)


@pytest.mark.parametrize("name", ["eng.train", "train.txt", "a.tsv", "conll"])
def test_files_of_other_names_are_text(name, tmp_path):
    (tmp_path / name).write_text(EU, encoding="utf-8")
    assert count_words([tmp_path / name]) == Counter(ElmoTokenizer().tokenize(EU))


def test_columns_under_another_name_that_begin_as_conlls_do_are_refused(tmp_path):
    (tmp_path / "eng.train").write_text("-DOCSTART- -X- O O\n\n" + EU, encoding="utf-8")
    with pytest.raises(
        ValueError, match="eng.train holds columns, not text: let its name end in .conll, .bmes, .bio, .iob2"
    ):
        count_words([tmp_path / "eng.train"])


def test_the_words_of_published_columns_are_those_that_run_ner_reads(data):
    path = data / "ner" / "wnut17" / "train.conll"
    if not path.is_file():
        pytest.skip(f"no data at {path}")
    sentences = read_files({"train": str(path)})[1]["train"]["words"]
    assert count_words([path]) == Counter(word for words in sentences for word in words)


def test_a_mistake_in_columns_is_one_error_with_its_line(tmp_path):
    (tmp_path / "eng.conll").write_text(EU * 40 + "two columns\n")
    with pytest.raises(ValueError, match="eng.conll:201: 2 columns instead of 4"):
        count_words([tmp_path / "eng.conll"])


def test_the_text_of_json_is_in_its_strings(tmp_path):
    path = tmp_path / "a.json"
    path.write_text('{"text": "Caf\\u00e9\\n\\"Blau\\"",\n"numbers": [3]}')
    assert count_words([path]) == dict.fromkeys(["text", "Café", '"', "Blau", "numbers"], 1) | {'"': 2}
    path.write_text('{"words": ["-DOCSTART-"]}')  # which begins columns in a file of text alone
    assert count_words([path]) == Counter(["words", *ElmoTokenizer().tokenize("-DOCSTART-")])


def test_half_a_surrogate_pair_in_json_is_one_clear_error(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "good"}\n{"text": "bad \\ud83d"}\n', encoding="utf-8")
    with pytest.raises(ValueError, match="a.jsonl: line 2 is not text: .* surrogates not allowed"):
        count_words([tmp_path / "a.jsonl"])


@pytest.mark.parametrize(("name", "compress"), [("A.JSON", bytes), ("a.json.gz", gzip.compress)])
def test_json_is_known_by_its_name_in_capitals_and_compressed_too(tmp_path, name, compress):
    (tmp_path / name).write_bytes(compress(b'{"text": "Caf\\u00e9"}'))
    assert count_words([tmp_path / name]) == {"text": 1, "Café": 1}


def test_words_of_the_texts_keep_their_vectors_as_they_are_or_in_lower_case(texts, path, checkpoint, tmp_path):
    path.write_bytes(in_text(["paris", "the", "naïve", "Zyx"], TABLE[:4]))
    convert(str(checkpoint), str(tmp_path / "out"), str(path), texts)
    assert list(AutoTokenizer.from_pretrained(tmp_path / "out").vectors) == ["paris", "the", "naïve"]
    rows = load_file(tmp_path / "out" / "model.safetensors")["word_vectors.weight"]
    np.testing.assert_array_equal(rows[2:], TABLE[:3])


def test_without_vectors_the_texts_words_get_some_to_be_learned(texts, tmp_path):
    model = str(configuration(tmp_path, use_elmo=False))
    convert(model, str(tmp_path / "twice"), texts=texts)
    assert list(AutoTokenizer.from_pretrained(tmp_path / "twice").vectors) == ["zyx"]
    for name in ("once", "again"):
        convert(model, str(tmp_path / name), texts=texts, size=400, min_count=1)
    once, again = (
        load_file(tmp_path / name / "model.safetensors")["word_vectors.weight"] for name in ("once", "again")
    )
    assert torch.equal(once, again) and once.shape == (2 + 12, 400)
    assert once[2:].var().item() == pytest.approx(1 / 400, rel=0.05)
    assert ElmoConfig.from_pretrained(tmp_path / "twice").word_vector_size == 100


# Bad input


def claims(size: int = 4, buckets: int = 11) -> bytes:
    """A fastText model whose first numbers say something else than the rest of it."""
    content = fasttext_model()[0]
    return content[:8] + struct.pack("<12i", size, 5, 5, 1, 5, 1, 2, 2, buckets, 3, 5, 100) + content[56:]


LONG = 2000  # characters, more than an error has
SIZE_LINE = TABLE.tolist()[0]
FILES = {
    "none": (None, OSError, "vectors: no such file"),
    "empty": (b"", ValueError, "vectors holds no vector"),
    "words only": (b"the\nof\n", ValueError, "line 1 has 0 numbers"),
    "a number too few": (in_text() + b"of 1 2 3\n", ValueError, "line 8 has 3 numbers after the word, not 4"),
    "a number too many": (in_text() + b"of 1 2 3 4 5\n", ValueError, "line 8 has 5 numbers after the word, not 4"),
    "a dimension that the first line denies": (in_text(header=True).replace(b"7 4", b"7 3", 1), ValueError, "line 2 "),
    "no number": (in_text() + b"of 1 2 x 4\n", ValueError, "line 8: could not convert string to float.*x"),
    "a word of any length": (in_text() + b"of 1 2 %b 4\n" % (b"x" * LONG), ValueError, "line 8: .could not convert"),
    "not finite": (in_text() + b"of 1 nan 3 4\n", ValueError, "the vector of 'of' is not finite"),
    "text cut in a line": (in_text()[:-60], ValueError, "line 7 has no line feed at its end"),
    "text cut after a line": (
        in_text(WORDS[:6], TABLE[:6], True).replace(b"6 4", b"7 4", 1),
        ValueError,
        "6 words, but .* says 7",
    ),
    "text with more": (in_text(header=True) + b"of 1 2 3 4\n", ValueError, "8 words, but .* says 7"),
    "binary with more": (
        in_binary().replace(b"7 4", b"6 4", 1),
        ValueError,
        "goes on after the 6 words of its first",
    ),
    "a binary word of two lines": (
        in_binary(["a\nb", *WORDS[1:]]),
        ValueError,
        r"the word b'a\\nb' holds a line feed",
    ),
    "a fastText word of two lines": (fasttext_model(["a\nb"])[0], ValueError, r"the word b'a\\nb' holds a line feed"),
    "binary cut in a vector": (in_binary()[:-9], OSError, "vectors is cut short or damaged"),
    "binary cut in a word": (in_binary()[:-19], OSError, "vectors is cut short or damaged"),
    "a fastText model cut in its matrix": (fasttext_model()[0][:-70], OSError, "vectors is cut short or damaged"),
    "a fastText model cut in its words": (fasttext_model()[0][:130], OSError, "vectors is cut short or damaged"),
    "a fastText model cut in its sizes": (fasttext_model()[0][:10], OSError, "vectors is cut short or damaged"),
    "a compressed fastText model": (fasttext_model(quantised=True)[0], ValueError, r"compressed model \(.ftz\)"),
    "a fastText model of other sizes": (
        fasttext_model()[0].replace(struct.pack("<2q", 18, 4), struct.pack("<2q", 17, 4)),
        ValueError,
        "17 rows of 4 numbers, for 7 words of 4",
    ),
    "a size that no vector has": (b"3 500000000\nthe 1 2\n", ValueError, "line 2 has 2 numbers .*, not 500000000"),
    "a size of 0": (b"3 0\nthe 1 2\n", ValueError, "line 2 has 2 numbers after the word, not any"),
    "more words than bytes": (b"500000000 2\nthe 1 2\n", ValueError, "1 words, but .* says 500000000"),
    "more binary words than bytes": (b"500000000 2\nthe \x80\0\0\0\0\0\0\0", OSError, "vectors is cut short"),
    "a size beyond all integers": (b"3 " + b"9" * 20 + b"\nthe 1 2\n", ValueError, "line 2 has 2 numbers"),
    "a word without an end": (b"3 2\nthe " + b"\x80" * 70_000, OSError, "vectors is cut short or damaged"),
    "a line without an end": (b"the 1" + bytes(2 << 20), ValueError, "line 1 has no line feed at its end"),
    "a fastText model without numbers": (claims(size=0), ValueError, "is damaged: vectors of 0 numbers"),
    "a fastText model of huge vectors": (
        claims(size=2**31 - 1),
        ValueError,
        "18 rows of 4 numbers, for 7 words of 21",
    ),
    "a fastText model of subwords in no bucket": (
        claims(buckets=0),
        ValueError,
        "is damaged: .* subwords in 0 buckets",
    ),
    "gzip cut": (gzip.compress(in_text())[:-20], OSError, "vectors is cut short or damaged"),
    "gzip damaged": (gzip.compress(in_text())[:-8] + b"12345678", OSError, "vectors is cut short or damaged"),
}


@pytest.mark.parametrize(("content", "error", "message"), FILES.values(), ids=FILES)
def test_a_file_that_is_missing_damaged_or_no_vectors_is_one_clear_error(content, error, message, path, tmp_path):
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(error, match=f"(?s){message}") as raised:
        convert(str(configuration(tmp_path)), str(tmp_path / "out"), str(path))
    assert len(str(raised.value)) < LONG
    assert {entry.name for entry in tmp_path.iterdir()} <= {"vectors", "config.json"}


CALLS = {
    "nothing to read": ({"vectors": None}, "give --vectors or --texts"),
    "another size": ({"size": 5}, "^--size 5, but the vectors of .* have 4 numbers"),
    "no word in common": ({"texts": ["other.txt"]}, "holds no vector for any word in --texts"),
    "a text without words": ({"texts": ["empty.conll"]}, "no word in .*empty.conll"),
    "a text that is no JSON": ({"texts": ["escape.json"]}, "escape.json: line 1 is not text: Invalid"),
    "a text that is not UTF-8": ({"texts": ["latin.txt"]}, "latin.txt: line 2 is not text: 'utf-8' codec"),
    "a text cut short": ({"texts": ["cut.txt.gz"]}, "cut.txt.gz is cut short or damaged"),
    "vectors without numbers": ({"vectors": None, "texts": ["other.txt"], "size": 0}, "^--size 0"),
    "words too rare": (
        {"vectors": None, "texts": ["other.txt"]},
        "no word of --texts occurs as often as --min_count 2",
    ),
}


@pytest.mark.parametrize(("given", "message"), CALLS.values(), ids=CALLS)
def test_what_does_not_fit_together_is_one_clear_error(given, message, path, tmp_path):
    path.write_bytes(FORMATS["GloVe"])
    (tmp_path / "other.txt").write_text("other words")
    (tmp_path / "empty.conll").write_text("\n-DOCSTART- O\n")
    (tmp_path / "escape.json").write_text(r'{"text": "\x"}')
    (tmp_path / "latin.txt").write_bytes("one\nna\xefve\n".encode("latin-1"))
    (tmp_path / "cut.txt.gz").write_bytes(gzip.compress(b"other words")[:-9])
    given = {"vectors": str(path)} | given
    if "texts" in given:
        given["texts"] = [str(tmp_path / name) for name in given["texts"]]
    with pytest.raises((OSError, ValueError), match=message):
        convert(str(configuration(tmp_path)), str(tmp_path / "out"), **given)
    assert not (tmp_path / "out").exists()


CONFIGURATIONS = {
    "another family": ({"model_type": "bert"}, 'with "model_type": "elmo"'),
    "an unknown field": ({"rnn_sizes": 3}, "config.json: ELMo has no rnn_sizes"),
    "an impossible value": ({"hidden_size": 7}, "config.json: .*hidden_size=7 is odd"),
}


@pytest.mark.parametrize(("changes", "message"), CONFIGURATIONS.values(), ids=CONFIGURATIONS)
def test_a_configuration_that_is_not_elmos_is_one_clear_error(changes, message, path, tmp_path):
    path.write_bytes(FORMATS["GloVe"])
    with pytest.raises(ValueError, match=message):
        convert(str(configuration(tmp_path, **changes)), str(tmp_path / "out"), str(path))


def test_a_checkpoint_of_another_family_or_one_that_lacks_weights_is_one_clear_error(checkpoint, path, tmp_path):
    path.write_bytes(FORMATS["GloVe"])
    for changes, message in (
        ({"num_hidden_layers": 3}, "does not hold .*layers.2"),
        ({"model_type": "bert"}, "must be a model of ELMo, not of bert"),
    ):
        saved = json.loads((checkpoint / "config.json").read_text())
        (checkpoint / "config.json").write_text(json.dumps(saved | changes))
        with pytest.raises(ValueError, match=message):
            convert(str(checkpoint), str(tmp_path / "out"), str(path))
    (checkpoint / "config.json").write_text(json.dumps(saved | {"num_hidden_layers": 2, "model_type": "elmo"}))
    weights = (checkpoint / "model.safetensors").read_bytes()
    (checkpoint / "model.safetensors").write_bytes(weights[:-9])
    with pytest.raises(OSError, match=f"^cannot load {checkpoint}: .*") as caught:
        convert(str(checkpoint), str(tmp_path / "out"), str(path))
    assert "\n" not in str(caught.value)
    with pytest.raises(OSError, match="nowhere"):
        convert(str(tmp_path / "nowhere"), str(tmp_path / "out"), str(path))


def test_an_index_that_names_files_outside_the_checkpoint_is_one_clear_error(checkpoint, path, tmp_path):
    path.write_bytes(FORMATS["GloVe"])
    (checkpoint / "model.safetensors").rename(tmp_path / "secret.safetensors")
    index = {
        "metadata": {},
        "weight_map": dict.fromkeys(load_file(tmp_path / "secret.safetensors"), "../secret.safetensors"),
    }
    (checkpoint / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match="index.json names ../secret.safetensors, which is outside its folder"):
        convert(str(checkpoint), str(tmp_path / "out"), str(path))


@pytest.mark.parametrize(("name", "said"), [(["a"], r"\['a'\]"), (5, "5"), (None, "None")])
def test_an_index_that_names_no_files_is_one_clear_error(checkpoint, path, tmp_path, name, said):
    path.write_bytes(FORMATS["GloVe"])
    (checkpoint / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(ValueError, match=f"index.json names {said}, which is not a file"):
        convert(str(checkpoint), str(tmp_path / "out"), str(path))


# The command


def test_the_command_converts_and_says_what_it_wrote(texts, path, tmp_path, capsys):
    path.write_bytes(FORMATS["GloVe"])
    model, output = str(configuration(tmp_path)), str(tmp_path / "out")
    main(["--model", model, "--vectors", str(path), "--texts", *texts, "--output", output])
    assert f"{output}: 4 words of 4 numbers, and a biLM" in capsys.readouterr().out
    assert (tmp_path / "out" / "words.txt").read_text(encoding="utf-8").split("\n") == [
        "the",
        ",",
        "naïve",
        "Paris",
        "",
    ]


def test_a_configuration_of_this_project_is_found_from_every_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("the film is good and the cast is good", encoding="utf-8")
    main(["--model", "configs/elmo/tagger.json", "--texts", "text.txt", "--size", "3", "--output", "words"])
    config = ElmoConfig.from_pretrained("words")
    assert (config.num_word_vectors, config.word_vector_size) == (3 + 2, 3)  # "the", "is", "good"
