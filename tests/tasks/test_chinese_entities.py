"""Entities in the columns of Chinese data sets, a character a line: read, tokenised, learned and scored."""

from pathlib import Path

import pytest
import torch
from transformers import BertTokenizer

import run_ner
from elmo_gpt_bert.metrics.entities import entity_scores
from elmo_gpt_bert.tasks.ner.data import count_entities, entity_types, find_folder_files, label_names, read_files
from elmo_gpt_bert.tasks.ner.features import make_features
from modeling import ElmoTokenizer
from tests.support.chinese_sample import SENTENCES, characters, parse, tag, write_columns, write_entities
from tests.support.glue_sample import write_model
from tests.support.ner_sample import read_columns, write_elmo
from tests.support.ner_sample import write_json as write_rows


LAYOUTS = {"msra": "iob2", "bmes": "bioes"}  # with the scheme in which the tags are read


def spans(tags: list[str]) -> set[tuple[str, int, int]]:
    """The entities of well-formed IOB2 or BIOES: type, first character, last character."""
    found, begin = set(), None
    for place, name in enumerate(tags):
        prefix, _, kind = name.partition("-")
        begin = place if prefix in ("B", "S") else begin
        following = tags[place + 1] if place + 1 < len(tags) else "O"
        if prefix != "O" and (prefix in ("E", "S") or (prefix in ("B", "I") and following[0] not in "IE")):
            found.add((kind, begin, place))
    return found


# What is read


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_published_columns_are_read_with_all_characters_and_entities(tmp_path, layout):
    scheme, data = read_files({"train": write_columns(tmp_path / "a.txt", layout)})
    assert scheme == LAYOUTS[layout] and data["train"]["words"][:] == [parse(text)[0] for text in SENTENCES]
    for tags, text in zip(data["train"]["tags"], SENTENCES, strict=True):
        assert spans(tags) == {(kind, begin, end - 1) for kind, begin, end in parse(text)[1]}
    assert count_entities(data["train"]["tags"]) == {"PER": 6, "LOC": 7, "ORG": 3}
    assert entity_types(data["train"]["tags"]) == ["LOC", "ORG", "PER"]


def test_folders_with_the_names_of_the_chinese_data_sets_are_found(tmp_path):
    for layout, scheme in LAYOUTS.items():
        found, data = read_files(
            find_folder_files(write_entities(tmp_path / layout, layout), ["train", "validation", "test"])
        )
        assert found == scheme and {len(data[split]) for split in data} == {len(SENTENCES)}


def test_bmes_is_bioes_with_another_name_for_i():
    _, tags = tag("[ORG 第二中学]请[PER 赵敏]和[PER 王]", "bmes")
    assert tags == ["B-ORG", "M-ORG", "M-ORG", "E-ORG", "O", "B-PER", "E-PER", "O", "S-PER"]


def test_in_iob2_m_is_a_mistake(tmp_path):
    with pytest.raises(ValueError, match="'M-ORG', the tag of '二', is none of O, B-TYPE, I-TYPE"):
        read_files({"train": write_columns(tmp_path / "a.txt", "bmes", SENTENCES[6:])}, scheme="iob2")


def test_a_segmenters_tags_without_types_and_a_type_that_begins_with_m_are_read(tmp_path):
    (tmp_path / "a.txt").write_text("海 B\n州 M\n市 E\n的 S\n", encoding="utf-8")
    assert read_files({"train": str(tmp_path / "a.txt")})[1]["train"]["tags"][:] == [["B", "I", "E", "S"]]
    (tmp_path / "b.txt").write_text("三 B-M-1\n米 E-M-1\n", encoding="utf-8")
    assert read_files({"train": str(tmp_path / "b.txt")})[1]["train"]["tags"][:] == [["B-M-1", "E-M-1"]]


# What is scored


def test_bioes_is_scored_by_whole_entities_as_sets_of_spans():
    gold = [[name.replace("M-", "I-") for name in tag(text, "bmes")[1]] for text in SENTENCES]
    guess = [list(tags) for tags in gold]
    guess[0][:3] = ["O", "B-PER", "E-PER"]  # the end of a name
    guess[2] = ["O"] * len(guess[2])
    guess[3][:2] = ["B-LOC", "E-LOC"]  # two entities of one character taken for one
    guess[7][:3] = ["B-PER", "E-PER", "S-PER"]  # another type, and one too many
    pairs = [(spans(expected), spans(found)) for expected, found in zip(gold, guess, strict=True)]
    right, predicted, present = (
        sum(map(len, sets)) for sets in ([a & b for a, b in pairs], [b for _, b in pairs], [a for a, _ in pairs])
    )
    scores = entity_scores(guess, gold)
    assert (right, predicted, present) == (11, 15, 16)
    assert scores["precision"] == 11 / 15 and scores["recall"] == 11 / 16 and scores["f1"] == pytest.approx(22 / 31)
    of_type = {name.removesuffix("_ORG"): value for name, value in scores.items() if name.endswith("_ORG")}
    assert of_type == {"f1": 0.8, "precision": 1, "recall": 2 / 3, "number": 3}
    assert entity_scores(gold, gold)["f1"] == 1


# What is tokenised


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("length", [6, 16, 128])
@pytest.mark.parametrize("model", ["bert-base-chinese", "elmo"])
def test_no_character_is_lost(data, tmp_path, capsys, layout, length, model):
    vocabulary = data / "vocab" / "bert-base-chinese-vocab.txt"
    tokenizer = ElmoTokenizer() if model == "elmo" else BertTokenizer(str(vocabulary))
    scheme, splits = read_files({"validation": write_columns(tmp_path / "a.txt", layout)})
    names = label_names(entity_types(splits["validation"]["tags"]), scheme)
    options = {"length": length, "limits": {"validation": None}}
    features = make_features(splits, tokenizer, torch.nn.Identity(), names, scheme, **options)["validation"]
    read = [[] for _ in SENTENCES]
    for row in features:
        assert len(row["input_ids"]) <= length
        for word, label in zip(row["word"], row["labels"], strict=True):
            if word >= 0:
                read[row["example"]].append((word, names[label]))
    for of_sentence, tags in zip(read, splits["validation"]["tags"], strict=True):
        assert of_sentence == list(enumerate(tags))
    total = sum(len(parse(text)[0]) for text in SENTENCES)
    assert run_ner.describe_words(splits["validation"], features).startswith(
        f"{total} of {total} words have a token; 8"
    )


# Runs


@pytest.fixture
def bert(tmp_path) -> list[str]:
    """A small BERT with the characters of the sample."""
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *characters()]
    (tmp_path / "vocab.txt").write_text("\n".join(vocabulary), encoding="utf-8")
    sizes = {"vocab_size": len(vocabulary), "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    config = write_model(tmp_path, **sizes)
    return ["--model_name_or_path", str(config), "--tokenizer_name", str(tmp_path / "vocab.txt")]


def train(tmp_path: Path, model: list[str], files: dict[str, str], *extra: str) -> tuple[dict, list]:
    """A run that learns its files by heart; gives its results and the predictions."""
    flags = [word for name, value in files.items() for word in (f"--{name}", value)]
    work = ["--do_train", "--do_eval", "--do_predict", "--max_seq_length", "16", "--learning_rate", "0.02"]
    out = [
        "--per_device_train_batch_size",
        "2",
        "--eval_strategy",
        "no",
        "--save_strategy",
        "no",
        "--output_dir",
        str(tmp_path / "out"),
        *extra,
    ]
    results = run_ner.main([*model, *flags, *work, *out])
    return results, read_columns(tmp_path / "out" / "predictions.conll")


@pytest.mark.slow
def test_bert_learns_the_entities_of_a_chinese_folder(tmp_path, bert):
    folder = {"data_dir": str(write_entities(tmp_path / "data", "bmes"))}
    results, lines = train(tmp_path, bert, folder, "--num_train_epochs", "14", "--tag_scheme", "bioes")
    assert results["eval_f1"] == results["test_f1"] == 1 and results["eval_number_PER"] == 6
    written = [[line[0] for line in row] for row in lines]
    assert written == [parse(text)[0] for text in SENTENCES]
    assert {line[2][0] for row in lines for line in row} == {*"OBIES"}


@pytest.mark.parametrize("unit", ["characters", "words"])
def test_elmo_reads_characters_or_words(tmp_path, unit):
    """Each character is a word to ELMo, or the words of a segmenter are."""
    texts = [parse(text)[0] for text in SENTENCES]
    file = write_columns(tmp_path / "a.txt", "bmes")
    if unit == "words":
        texts = [["林小雨", "昨天", "从", "杭州", "去", "了", "上海"], ["他", "在", "ABC", "公司", "工作"]]
        tags = [["S-PER", "O", "O", "S-LOC", "O", "O", "S-LOC"], ["O", "O", "B-ORG", "E-ORG", "O"]]
        file = write_rows(tmp_path / "a.json", list(zip(texts, tags, strict=True)))
    files = dict.fromkeys(("train_file", "validation_file", "test_file"), file)
    elmo = ["--model_name_or_path", write_elmo(tmp_path / "elmo"), "--tag_scheme", "bioes"]
    results, lines = train(tmp_path, elmo, files, "--max_steps", "2")
    assert 0 <= results["eval_f1"] <= 1 and results["eval_number_LOC"] == (7 if unit == "characters" else 2)
    assert [[line[0] for line in row] for row in lines] == texts
