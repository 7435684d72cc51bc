"""Named entities: what is read, in which scheme it is, and what is written."""

import gzip
import json
import re
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features, Value
from datasets import Sequence as ListOf

import run_ner
from elmo_gpt_bert.metrics.entities import entity_scores
from elmo_gpt_bert.tasks.ner.data import (
    convert_tags,
    count_entities,
    detect_scheme,
    entity_types,
    find_folder_files,
    label_names,
    read_files,
    read_hub,
)
from elmo_gpt_bert.tasks.ner.features import conll_text, predicted_tags
from tests.tools.test_entities import slow_conlleval


REUTERS = """\
-DOCSTART- -X- O O

EU NNP I-NP I-ORG
rejects VBZ I-VP O
German JJ I-NP I-MISC
call NN I-NP O

Peter NNP I-NP I-PER
Blackburn NNP I-NP I-PER

-DOCSTART- -X- O O

BRUSSELS NNP I-NP I-LOC
Leeds NNP I-NP B-LOC
"""
WORDS = [["EU", "rejects", "German", "call"], ["Peter", "Blackburn"], ["BRUSSELS", "Leeds"]]
TAGS = [["I-ORG", "O", "I-MISC", "O"], ["I-PER", "I-PER"], ["I-LOC", "B-LOC"]]


@pytest.fixture
def write(tmp_path):
    """Writes a file and gives its name."""

    def _write(content: str | bytes, name: str = "a.conll") -> str:
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(tmp_path / name)

    return _write


def read(file: str, split: str = "train", **options: str) -> Dataset:
    return read_files({split: file}, **options)[1][split]


def json_lines(*rows: object) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


# CoNLL columns


def test_words_tags_and_documents_of_conll_2003(write):
    scheme, data = read_files({"train": write(REUTERS), "validation": write(REUTERS, "eng.testa")})
    assert scheme == "iob1"
    assert data["train"][:] == data["validation"][:] == {"words": WORDS, "tags": TAGS, "document": [1, 1, 2]}


def test_wnut17_is_read_whole(data):
    folder = data / "ner" / "wnut17"
    if not folder.is_dir():
        pytest.skip(f"no data at {folder}")
    files = {"train": "train.conll", "validation": "dev.conll", "test": "test.conll"}
    scheme, splits = read_files({split: str(folder / name) for split, name in files.items()})
    assert scheme == "iob2" and [len(splits[split]) for split in files] == [3394, 1009, 1287]
    for split, name in files.items():
        lines = [line for line in (folder / name).read_bytes().decode().split("\n") if line.strip("\t")]
        pairs = chain.from_iterable(zip(row["words"], row["tags"], strict=True) for row in splits[split])
        assert [f"{word}\t{tag}" for word, tag in pairs] == lines
    types = entity_types(splits["train"]["tags"])
    assert types == ["corporation", "creative-work", "group", "location", "person", "product"]


@pytest.mark.parametrize("blank", ["", "\t", "  ", "\r", "\n\n"])
def test_a_line_without_text_ends_a_sentence(write, blank):
    data = read(write(f"\n{blank}\nEU\tB-ORG\n{blank}\nLeeds\tB-LOC"))
    assert data[:] == {"words": [["EU"], ["Leeds"]], "tags": [["B-ORG"], ["B-LOC"]]}


@pytest.mark.parametrize(
    "content",
    ["EU\tB-ORG\nis\tO\n", "EU B-ORG\nis O\n", "EU   B-ORG \nis O \n", "EU \t B-ORG\nis\tO\n"]
    + ["EU\tB-ORG\r\nis\tO\r\n", "\ufeffEU B-ORG\nis O", "EU NNP B-ORG\nis VBZ O\n"],
)
def test_tabs_spaces_byte_order_marks_and_carriage_returns(write, content):
    assert read(write(content))[:] == {"words": [["EU", "is"]], "tags": [["B-ORG", "O"]]}


@pytest.mark.parametrize("separator", ["\t", " "])
@pytest.mark.parametrize("word", ["1\u00a0000", "\u00a0", "a\u2028b", "\u3000", "\ufeff", "a\x85b", "a\x0bb\x1cc"])
def test_only_tabs_spaces_and_newlines_part_words(write, separator, word):
    data = read(write(f"is{separator}O\n{word}{separator}B-X\n"))
    assert data[:] == {"words": [["is", word]], "tags": [["O", "B-X"]]}


def test_a_word_may_have_spaces_between_tabs(write):
    assert read(write("New York\tB-LOC\n"))["words"][0] == ["New York"]


@pytest.mark.parametrize(("text", "label"), [("2", "3"), ("-3", "-2")])
def test_other_columns_are_chosen_by_their_numbers(write, text, label):
    data = read(write("1 EU B-ORG _\n2 is O _\n"), text_column=text, label_column=label)
    assert data[:] == {"words": [["EU", "is"]], "tags": [["B-ORG", "O"]]}


def test_a_test_set_may_be_words_alone(write):
    assert read_files({"test": write("EU\nis\n\nLeeds\n")})[1]["test"][:] == {"words": [["EU", "is"], ["Leeds"]]}
    assert read_files({"test": write(json_lines({"tokens": ["EU"]}), "a.json")})[1]["test"][:] == {"words": [["EU"]]}
    scheme, data = read_files({"test": write("EU\n\u00a0\n")})
    assert scheme is None and data["test"][:] == {"words": [["EU", "\u00a0"]]}


# JSON lines, the Hub


@pytest.mark.parametrize(("words", "tags"), [("words", "tags"), ("tokens", "ner_tags"), ("w", "t")])
def test_json_lines_say_the_same(write, words, tags):
    names = {"text_column": words, "label_column": tags} if words == "w" else {}
    rows = [{words: row, tags: of, "document": name} for row, of, name in zip(WORDS, TAGS, "aab", strict=True)]
    assert read(write(json_lines(*rows), "a.jsonl"), **names)[:] == read(write(REUTERS))[:]


@pytest.mark.parametrize("ending", ["json", "jsonl", "ndjson", "JSON", "jsonl.gz", "ndjson.GZ"])
def test_json_lines_are_told_by_the_end_of_the_name_before_that_of_compression(write, ending):
    content = json_lines({"words": ["EU", "is"], "tags": ["B-ORG", "O"]}).encode()
    path = write(gzip.compress(content) if ending.lower().endswith("gz") else content, f"a.{ending}")
    assert read(path, "test")["words"][:] == [["EU", "is"]]


def test_rows_that_are_a_document_mark_are_no_sentences(write):
    words = [["-DOCSTART-"], ["a", "b"], ["-DOCSTART-"], ["c"]]
    rows = [{"words": row, "tags": ["O"] * len(row)} for row in words]
    data = read(write(json_lines(*rows), "a.json"))
    assert data[:] == {"words": [["a", "b"], ["c"]], "tags": [["O", "O"], ["O"]], "document": [1, 2]}


def test_sentences_without_words_are_left_out_and_counted(write, capsys):
    path = write(json_lines({"words": [], "tags": []}, {"words": ["a"], "tags": ["O"]}), "a.json")
    assert read(path)[:] == {"words": [["a"]], "tags": [["O"]]}
    assert f"{path}: 1 sentences without words left out" in capsys.readouterr().out


@pytest.fixture
def hub(tmp_path):
    """A folder that `datasets` reads like a repository of the Hub, with numbers for tags as most have."""
    names = ["O", *(f"{prefix}-{name}" for name in ("PER", "ORG", "LOC", "MISC") for prefix in "BI")]
    features = Features(
        {"id": Value("string"), "tokens": ListOf(Value("string")), "ner_tags": ListOf(ClassLabel(names=names))}
    )
    numbers = [[names.index(tag) for tag in convert_tags(tags, "iob2")] for tags in TAGS]
    for split in ("train", "validation"):
        rows = Dataset.from_dict({"id": list("012"), "tokens": WORDS, "ner_tags": numbers}, features=features)
        rows.to_parquet(tmp_path / "hub" / f"{split}-00000-of-00001.parquet")
    return str(tmp_path / "hub")


def test_the_hubs_numbers_get_their_names(hub):
    scheme, data = read_hub(hub, ["train", "validation"])
    assert scheme == "iob2" and set(data) == {"train", "validation"}
    assert data["train"][:] == {"words": WORDS, "tags": [convert_tags(tags, "iob2") for tags in TAGS]}
    args = run_ner.NerArguments(model_name_or_path="m", output_dir="o", dataset_name=hub, do_eval=True)
    scheme, loaded = run_ner.load_data(args)
    assert scheme == "iob2" and loaded["validation"][:] == data["validation"][:]


def test_the_hub_is_asked_for_the_configuration_and_revision(monkeypatch):
    asked = []
    rows = DatasetDict({"test": Dataset.from_dict({"words": WORDS, "tags": TAGS})})
    monkeypatch.setattr("datasets.load_dataset", lambda *names, **options: asked.append((names, options)) or rows)
    scheme, data = read_hub("a/b", ["test"], "en", "refs/convert/parquet")
    assert asked == [(("a/b", "en"), {"revision": "refs/convert/parquet"})]
    assert scheme == "iob1" and data["test"][:] == {"words": WORDS, "tags": TAGS}


def test_what_the_hub_lacks_is_one_error(hub):
    with pytest.raises(ValueError, match="hub has no test split, but train, validation: give --test_file and"):
        read_hub(hub, ["train", "test"])
    with pytest.raises(
        ValueError, match="hub, train:0: no column pos among id, tokens, ner_tags: .* and --label_column_name choose"
    ):
        read_hub(hub, ["train"], label_column="pos")
    with pytest.raises(
        ValueError, match="cannot read .*hub from the Hub: BuilderConfig 'de' not found.* give --train_file"
    ):
        read_hub(hub, ["train"], "de")


def test_numbers_that_nothing_names_are_one_error(tmp_path):
    Dataset.from_dict({"tokens": [["a"]], "ner_tags": [[7]]}).to_parquet(tmp_path / "train.parquet")
    with pytest.raises(ValueError, match=r", train:0: ner_tags must be a list of strings, but is \[7\]"):
        read_hub(str(tmp_path), ["train"])


def test_without_network_the_error_names_what_helps(monkeypatch):
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(OSError, match="not in the cache: unset it, or give --train_file, --validation_file and"):
        read_hub("lhoestq/conll2003", ["train"])


def test_a_script_of_the_hub_is_one_error(monkeypatch):
    def refuse(*names: object, **options: object) -> None:
        raise RuntimeError("Dataset scripts are no longer supported, but found wnut_17.py")

    monkeypatch.setattr("datasets.load_dataset", refuse)
    with pytest.raises(
        ValueError, match="cannot read leondz/wnut_17 from the Hub: Dataset scripts .* give --train_file"
    ):
        read_hub("leondz/wnut_17", ["train"])


# Mistakes


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "a.conll holds no sentences"),
        ("-DOCSTART- -X- O O\n\n", "a.conll holds no sentences"),
        ("EU\nis\n", "a.conll:1: words and tags are both in column 1 of 1: a line is a word, a tab or a space, and"),
        ("EU B-ORG\n\nis VBZ O\n", "a.conll:3: 3 columns instead of 2"),
        ("EU B-ORG\nis\n", "a.conll:2: 1 column instead of 2"),
        ("EU\tB-ORG\n\tO\n", "a.conll:2: no word before the tab"),
        ("EU B-ORG\nis VBZ\n", "a.conll:2: 'VBZ', the tag of 'is', is none of O, B-TYPE, .* let --label_column_name"),
        ("EU\tB-ORG\nis\t\n", "a.conll:2: '', the tag of 'is', is none of"),
        ("EU B-ORG\nof X-ORG\n", "a.conll:2: 'X-ORG', the tag of 'of'"),
        ("EU B-\n", "a.conll:1: 'B-', the tag of 'EU'"),
        (
            "\n\nEU B-ORG\nis O\nus I-LOC\n",
            "a.conll:5: I-LOC after O is a mistake in IOB2.*, or give --data_scheme iob1",
        ),
        ("EU B-ORG\nus I-LOC\n", "a.conll:2: I-LOC after B-ORG is a mistake in IOB2"),
        ("EU B-ORG\nis O\nus S-LOC\n", "a.conll:2: O after B-ORG is a mistake in BIOES: correct it$"),
        ("us S-LOC\nEU B-ORG\n\n", "a.conll:2: the sentence's end after B-ORG is a mistake in BIOES"),
        ("us S-LOC\n\nEU E-ORG\n", "a.conll:3: E-ORG after the sentence's start is a mistake in BIOES"),
        ("EU B-ORG\ris O\r", "a.conll:1: a carriage return within the line: lines must end"),
        ("EU B-ORG\nis\tO\rus\tO\n", "a.conll:2: a carriage return within the line"),
        (b"EU B-ORG\nis\0 O\n", "a.conll:2: a NUL byte: the file is not text"),
        (b"EU B-ORG\n\xe9t\xe9 O\n", "a.conll:2: not UTF-8"),
    ],
)
def test_a_mistake_in_a_file_is_one_error_with_its_line(write, content, message):
    with pytest.raises(ValueError, match=message):
        read(write(content))


def test_tags_that_are_numbers_get_the_names_of_a_list(write):
    """As `Dataset.to_json` writes them, without the names that the data set's features have."""
    rows = [{"tokens": ["EU", "is", "Old", "Europe"], "ner_tags": [1, 0, 1, 2]}, {"tokens": ["us"], "ner_tags": ["O"]}]
    path = write("".join(map(json_lines, rows)), "a.json")
    scheme, data = read_files({"train": path}, tag_names=["O", "B-LOC", "I-LOC"])
    assert scheme == "iob2" and data["train"]["tags"][:] == [["B-LOC", "O", "B-LOC", "I-LOC"], ["O"]]
    with pytest.raises(
        ValueError, match=r"a.json:1: ner_tags has the number 2, but --tag_names has 2 names, of 0 to 1$"
    ):
        read_files({"train": path}, tag_names=["O", "B-LOC"])
    with pytest.raises(ValueError, match=r"a.json:1: .*: --tag_names calls the number 1 'LOC', .*: write B-LOC where"):
        read_files({"train": path}, tag_names=["O", "LOC", "PER"])
    with pytest.raises(
        ValueError, match=r"a.json:2: ner_tags has the tag 'O', which is none of --tag_names: give all "
    ):
        read_files({"train": path}, tag_names=["B-X", "B-LOC", "I-LOC"])
    with pytest.raises(
        ValueError, match="--tag_names are those of tags that are numbers, in JSON lines, but .*b.conll"
    ):
        read_files({"train": write("EU B-LOC\n", "b.conll")}, tag_names=["O", "B-LOC"])


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"text": "EU"}, "no column words, tags among text: --text_column_name and --label_column_name"),
        ({"words": ["EU"]}, "no column tags among words"),
        ({"words": "EU", "tags": ["O"]}, "words must be a list of strings, but is 'EU'"),
        ({"words": "a\nb" * 9999, "tags": ["O"]}, r"words must be a list of strings, but is [^\n]{,99}$"),
        ({"words": ["EU"], "tags": [0]}, r"tags must be a list of strings, but is \[0\]"),
        ({"words": ["EU", "is"], "tags": ["O"]}, "2 words, but 1 tags"),
        ({"words": ["EU"], "tags": ["X"]}, "'X', the tag of 'EU', is none of O, B-TYPE, I-TYPE"),
        ({"words": ["EU"], "tags": ["PER"]}, ".*: write B-PER where an entity begins, and then I-PER"),
        ({"words": ["EU"], "tags": ["B_PER"]}, ".*: write it as B-PER, or let"),
        ({"words": ["EU"], "tags": ["o"]}, ".*: write it as O, or let"),
        ({"words": ["EU"], "tags": ["1"]}, ".*: write the name of each tag, not its number, or let"),
        ({"words": ["EU"], "tags": ["PER-B"]}, ".*: write it as B-PER, or let"),
        (
            {"words": ["EU"], "tags": [3]},
            r"tags must be a list of strings, but is \[3\]: give --tag_names, the names of 0,",
        ),
        ({"words": ["b" * 9999], "tags": ["X" * 9999]}, ".{,400}$"),
        ({"words": ["EU", "is"], "tags": ["B-y", "I-" + "x" * 9999]}, "'I-x.{,400}$"),
        ([], "not a JSON object"),
    ],
)
def test_a_mistake_in_json_is_one_error_with_its_line(write, row, message):
    first = "\n" if "text" in row else json_lines({"words": ["a"], "tags": ["O"]})
    path = write(first + json_lines(row), "a.json")
    with pytest.raises(ValueError, match=f"a.json:2: {message}"):
        read(path)


def test_a_test_file_has_tags_in_all_its_rows_or_in_none(write):
    rows = [{"words": ["EU"]}, {"words": ["is"]}, {"words": ["us"], "tags": ["B-LOC"]}]
    for row, order in ((1, rows), (2, rows[::-1])):
        path = write(json_lines(*order), "a.json")
        with pytest.raises(ValueError, match=f"a.json:{row}: no column tags among words: --text_column_name and --la"):
            read(path, "test")
    assert read(write(json_lines(*rows[:2]), "a.json"), "test").column_names == ["words"]


@pytest.mark.parametrize("column", ["0", "3", "-3", "word", "1.5", "²"])
def test_a_column_that_a_file_has_not_is_one_error(write, column):
    with pytest.raises(ValueError, match=f"a.conll:1: --text_column_name {column} is none of the 2 columns: they"):
        read(write("EU B-ORG\n"), text_column=column)


def test_files_that_cannot_be_read_are_one_error(write, tmp_path):
    with pytest.raises(OSError, match="cannot read .*none.conll: No such file"):
        read(str(tmp_path / "none.conll"))
    with pytest.raises(ValueError, match="a.csv: csv has no place for sentences"):
        read(write("EU,B-ORG\n", "a.csv"))
    with pytest.raises(ValueError, match="a.csv.gz: csv has no place for sentences"):
        read(write(gzip.compress(b"EU,B-ORG\n"), "a.csv.gz"), "test")
    for space in ("", " "):
        content = f'{{"words":{space}["EU"],{space}"tags":{space}["B-ORG"]}}\n'
        with pytest.raises(ValueError, match="a.txt:1: a JSON object, .* columns: let the file's name end in .jsonl"):
            read(write(content, "a.txt"), "test")
    assert read(write("{\nEU\n", "b.txt"), "test")["words"][:] == [["{", "EU"]]
    with pytest.raises(ValueError, match="this run needs --validation_file"):
        read_files({"train": write(REUTERS), "validation": None})


def test_the_train_file_decides_which_files_of_a_folder_are_read(tmp_path):
    def files(*splits: str) -> list[str]:
        return [Path(file).name for file in find_folder_files(tmp_path, splits).values()]

    for name in ("eng.train", "eng.testa", "eng.testb", "valid.txt", "test.txt"):
        (tmp_path / name).touch()
    assert files("train", "validation", "test") == ["eng.train", "eng.testa", "eng.testb"]
    assert files("test") == ["eng.testb"] and files("validation") == ["eng.testa"]
    (tmp_path / "eng.testb").unlink()
    with pytest.raises(FileNotFoundError, match=f"{re.escape(str(tmp_path))} holds eng.train, but no eng.testb: "):
        files("test")
    (tmp_path / "eng.testb").touch()
    (tmp_path / "train.txt").touch()
    message = "holds both train.txt and eng.train: .* --train_file, --validation_file and --test_file"
    with pytest.raises(ValueError, match=message):
        files("test")


def test_without_a_train_file_the_files_that_are_needed_decide(tmp_path):
    for name in ("dev.conll", "test.conll", "test.txt"):
        (tmp_path / name).touch()
    found = find_folder_files(tmp_path, ["validation", "test"])
    assert [Path(file).name for file in found.values()] == ["dev.conll", "test.conll"]
    with pytest.raises(ValueError, match="holds both test.txt and test.conll: "):
        find_folder_files(tmp_path, ["test"])


# Schemes

SAME = {  # one word, two entities of a type side by side, three words, another type right after
    "iob1": "O I-PER O I-PER B-PER O I-LOC I-LOC I-LOC I-PER",
    "iob2": "O B-PER O B-PER B-PER O B-LOC I-LOC I-LOC B-PER",
    "bioes": "O S-PER O S-PER S-PER O B-LOC I-LOC E-LOC S-PER",
}


@pytest.mark.parametrize("source", SAME)
@pytest.mark.parametrize("target", SAME)
def test_each_scheme_becomes_each_other(source, target):
    assert convert_tags(SAME[source].split(), target) == SAME[target].split()
    assert detect_scheme([SAME[source].split()]) == source


def test_malformed_tags_keep_their_entities():
    rng = np.random.default_rng(5)
    tags = ["O", *(f"{prefix}-{name}" for prefix in "BIES" for name in ("a", "b-c")), "B", "I"]
    for target in SAME:
        sentences = [rng.choice(tags, size).tolist() for size in rng.integers(0, 12, 60)]
        converted = [convert_tags(sentence, target) for sentence in sentences]
        scores = entity_scores(converted, sentences)
        assert scores["f1"] == 1 and scores["number_a"] > 50
        assert detect_scheme(converted) == target
        read_back = [convert_tags(convert_tags(sentence, "bioes"), target) for sentence in converted]
        assert read_back == converted


@pytest.mark.parametrize(
    ("tags", "scheme"),
    [
        ("O O", "iob2"),
        ("B-PER O", "iob2"),
        ("I-PER O", "iob1"),
        ("I O", "iob1"),
        ("I-PER B-PER", "iob1"),
        ("I-LOC B-PER", "iob2"),  # IOB1 has no B there; the first I is then a mistake
        ("O S-PER", "bioes"),
        ("B-PER E-PER", "bioes"),
    ],
)
def test_the_scheme_is_found_out(tags, scheme):
    assert detect_scheme([["O"], tags.split()]) == scheme


def test_told_that_they_are_iob1_malformed_tags_are_read(write):
    path = write("us I-LOC\n\nEU B-ORG\nin O\nus I-LOC\n")
    scheme, data = read_files({"train": path}, scheme="iob1")
    assert scheme == "iob1" and data["train"]["tags"][:] == [["I-LOC"], ["B-ORG", "O", "I-LOC"]]
    path = write("us B-LOC\n\nEU B-ORG\nin O\nus I-LOC\n")
    assert read_files({"train": path}, scheme="iob1")[0] == "iob2"  # as most tags are, and so all predictions


def test_bilou_is_read_as_bioes(write):
    path = write("U.N. U-ORG\nin O\nNew B-LOC\nYork I-LOC\nCity L-LOC\n")
    for scheme in (None, "bioes"):
        found, data = read_files({"train": path}, scheme=scheme)
        assert found == "bioes" and data["train"]["tags"][:] == [["S-ORG", "O", "B-LOC", "I-LOC", "E-LOC"]]
    with pytest.raises(ValueError, match="a.conll:1: 'U-ORG', the tag of 'U.N.', is none of O, B-TYPE, I-TYPE"):
        read(path, scheme="iob2")


def test_tags_in_another_scheme_than_was_said_are_an_error(write):
    with pytest.raises(ValueError, match="a.conll:2: O after B-LOC is a mistake in BIOES"):
        read(write("us B-LOC\nis O\n"), scheme="bioes")
    with pytest.raises(ValueError, match="a.conll:1: 'S-LOC', the tag of 'us', is none of O, B-TYPE, I-TYPE: correct"):
        read(write("us S-LOC\n"), scheme="iob2")


def test_entities_are_counted_in_every_scheme():
    for tags in SAME.values():
        assert count_entities([tags.split(), ["O"], tags.split()[-2:]]) == {"PER": 5, "LOC": 2}
    assert count_entities([["O"], []]) == {}


def test_the_labels_are_all_tags_of_the_types():
    assert entity_types([["O", "I-PER"], ["B-a-b", "O"]]) == ["PER", "a-b"]
    assert label_names(["PER", "a-b"], "iob1") == ["O", "B-PER", "I-PER", "B-a-b", "I-a-b"]
    assert label_names(["PER"], "bioes") == ["O", "B-PER", "I-PER", "E-PER", "S-PER"]
    assert label_names([""], "iob2") == ["O", "B", "I"]


# Predictions


def write_columns(path: Path, *columns: list) -> None:
    path.write_text(conll_text(*columns), encoding="utf-8")


def test_predictions_are_written_as_conlleval_reads_them(tmp_path):
    path = tmp_path / "predictions.conll"
    guess = [["I-ORG", "O", "O", "O"], ["I-PER", "O"], ["I-LOC", "I-LOC"]]
    write_columns(path, WORDS, guess, TAGS, [1, 1, 2])
    lines = """-X- O O

EU I-ORG I-ORG
rejects O O
German I-MISC O
call O O

Peter I-PER I-PER
Blackburn I-PER O

-X- O O

BRUSSELS I-LOC I-LOC
Leeds B-LOC I-LOC

"""
    assert path.read_text(encoding="utf-8") == lines
    write_columns(path, WORDS[2:], guess[2:])
    assert path.read_text(encoding="utf-8") == "BRUSSELS I-LOC\nLeeds I-LOC\n\n"


def conlleval(path: Path) -> dict[str, float]:
    """What the script prints of a file: it counts every line but blank ones and those whose first column is -X-."""
    guess, gold = [[]], [[]]
    rows = [line.split(" ") if line else [] for line in path.read_text(encoding="utf-8").splitlines()]
    assert {len(row) for row in rows} <= {0, 3}  # it stops where their number changes
    for row in rows:
        if not row or row[0] == "-X-":
            guess.append([])
            gold.append([])
        else:
            gold[-1].append(row[1])
            guess[-1].append(row[2])
    return slow_conlleval(guess, gold)


@pytest.mark.parametrize("documents", [[1, 1, 2], [0, 1, 2], [1, 2, 3], None])
def test_conlleval_gives_predictions_the_scores_that_are_reported(tmp_path, documents):
    guess = [["I-ORG", "O", "O", "O"], ["I-PER", "O"], ["I-LOC", "I-LOC"]]
    write_columns(tmp_path / "predictions.conll", WORDS, guess, TAGS, documents)
    scores = entity_scores(guess, TAGS)
    assert conlleval(tmp_path / "predictions.conll") == pytest.approx(scores) and scores["accuracy"] == 5 / 8


def test_what_is_written_is_read_again(tmp_path, write):
    path = tmp_path / "predictions.conll"
    data = read(write("a DT I-NP O\n\n" + REUTERS))
    assert data["document"][:] == [0, 1, 1, 2]
    write_columns(path, data["words"], data["tags"], data["tags"], data["document"])
    assert read(str(path))[:] == read(str(path), label_column="2")[:] == data[:]


def test_words_that_look_like_marks_are_words(tmp_path, write):
    assert read(write("a O\n-X- B-X\n\n-X- O\n\nb O\n"))[:] == {
        "words": [["a", "-X-"], ["b"]],
        "tags": [["O", "B-X"], ["O"]],
        "document": [0, 1],
    }
    words, tags = [["-X-", "-DOCSTART-", "a"]], [["O", "B-X", "I-X"]]
    write_columns(tmp_path / "predictions.conll", words, [["O", "O", "O"]], tags)
    assert conlleval(tmp_path / "predictions.conll")["accuracy"] == 1 / 3
    assert read(str(tmp_path / "predictions.conll"), label_column="2")["tags"][:] == tags


def test_a_word_with_white_space_stays_one_column(tmp_path):
    path = tmp_path / "predictions.conll"
    write_columns(path, [["New York", "a\tb\r\n", "", "1\u00a0000"]], [["B-a b", "I-a b", "O", "O"]])
    assert path.read_bytes().decode() == "New_York B-a_b\na_b__ I-a_b\n_ O\n1\u00a0000 O\n\n"


def test_a_word_without_a_token_is_outside_entities():
    examples = Dataset.from_dict({"words": [["New", "\ufe0f", "York", "is"]]})
    features = Dataset.from_dict({"example": [0, 0], "word": [[-1, 0, -1], [-1, 2, 3]]})
    logits = [np.eye(3)[[2, 1, 0]], np.eye(3)[[0, 2, 0]]]
    assert predicted_tags({"logits": logits}, features, examples, ["O", "B-LOC", "I-LOC"], "iob2") == [
        ["B-LOC", "O", "B-LOC", "O"]
    ]


def test_a_word_without_a_prediction_is_an_error(tmp_path):
    for guess in ([["O"]], [["O", "O"], ["O"]]):
        with pytest.raises(ValueError, match="zip"):
            write_columns(tmp_path / "predictions.conll", [["a", "b"]], guess)
    assert list(tmp_path.iterdir()) == []
