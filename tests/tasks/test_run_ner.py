"""Whole runs of the script on named entities: what a model reads, what it is scored on, what it leaves behind."""

import dataclasses
import json
import warnings
from functools import partial
from pathlib import Path

import pytest
import torch
from datasets import DatasetDict
from safetensors.torch import load_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from transformers import (
    AutoConfig,
    AutoModelForTokenClassification,
    BertTokenizer,
    PreTrainedTokenizerFast,
    pipeline,
)

import run_ner
from elmo_gpt_bert.metrics.entities import entity_scores
from elmo_gpt_bert.tasks.ner.features import class_names, make_features, widen
from elmo_gpt_bert.training.flags import parse_arguments
from modeling import FeatureTaggerForTokenClassification as FeatureTagger
from tests.support.glue_sample import VOCABULARY, write_model, write_vocabulary
from tests.support.ner_sample import SIZES, read_columns, sentence, write_conll, write_elmo, write_folder, write_json
from tests.support.processes import fork, wait
from tests.support.tiny_run import load_config, load_tokenizer


@pytest.fixture
def flags(tmp_path) -> list[str]:
    """A run on a tiny model of random weights, for a test to add its data and its parts to."""
    model, vocabulary = write_model(tmp_path), write_vocabulary(tmp_path)
    return [
        *("--model_name_or_path", str(model), "--tokenizer_name", str(vocabulary), "--max_seq_length", "32"),
        *("--output_dir", str(tmp_path / "out"), "--learning_rate", "0.01", "--overwrite_output_dir"),
    ]


@pytest.fixture
def conll(tmp_path) -> list[str]:
    return ["--data_dir", str(write_folder(tmp_path / "conll"))]


SHORT = ["--max_steps", "2", "--save_strategy", "no"]
ALL = ["--do_train", "--do_eval", "--do_predict"]
LEARNS = ["--save_strategy", "no", "--eval_strategy", "no", "--num_train_epochs", "10", "--learning_rate", "0.03"]
SMALL = ["--config_overrides", "rnn_size=7"]  # of a tagger on features


def record(folder: Path) -> dict:
    return json.loads((folder / "metrics.json").read_text(encoding="utf-8"))


# Whole runs


def test_a_tagger_learns_scores_each_type_and_predicts_in_columns(tmp_path, flags, conll):
    results = run_ner.main([*flags, *conll, *ALL, *LEARNS])
    assert results["eval_f1"] == results["eval_f1_WORK"] == results["eval_f1_PER"] == results["test_f1"] == 1
    assert results["eval_number_PER"] == sum(sentence(row)[1].count("B-PER") for row in range(1, 7))
    rows = read_columns(tmp_path / "out" / "predictions.conll")
    assert [[line[0] for line in row] for row in rows] == [sentence(row)[0] for row in range(2, 7)]
    assert all(tag == predicted for row in rows for _, tag, predicted in row)
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert "pipeline_tag: token-classification" in card and "| PER | 1.0000 | 1.0000 | 1.0000 | 4 |" in card


def test_evaluating_and_predicting_from_the_saved_folder_repeat_the_runs_numbers(tmp_path, flags, conll):
    first = run_ner.main([*flags, *conll, *ALL, *SHORT, "--tag_scheme", "bioes"])
    again = ["--model_name_or_path", str(tmp_path / "out"), *conll, "--max_seq_length", "32"]
    second = run_ner.main([*again, "--output_dir", str(tmp_path / "again"), "--do_eval", "--do_predict"])
    scores = [name for name in first if name.startswith(("eval_", "test_")) and not name.endswith("runtime")]
    assert [second[name] for name in scores] == pytest.approx([first[name] for name in scores]) and len(scores) > 10
    texts = [(tmp_path / name / "predictions.conll").read_text(encoding="utf-8") for name in ("out", "again")]
    assert texts[0] == texts[1]


def test_the_saved_folder_tags_text_in_a_pipeline(tmp_path, flags, conll):
    run_ner.main([*flags, *conll, "--do_train", *LEARNS])
    tag = pipeline("token-classification", model=str(tmp_path / "out"), aggregation_strategy="simple")
    found = tag("the a film plot cast is .")
    assert [(entity["entity_group"], entity["word"]) for entity in found] == [("WORK", "film plot"), ("PER", "cast")]


@pytest.mark.slow
@pytest.mark.parametrize(("scheme", "tag_scheme"), [("iob1", "bioes"), ("bioes", "iob2")])
def test_the_data_may_have_any_scheme_and_the_model_another(tmp_path, flags, scheme, tag_scheme):
    folder = write_folder(tmp_path / "conll", scheme=scheme)
    more = ["--data_dir", str(folder), "--tag_scheme", tag_scheme, *ALL]
    results = run_ner.main([*flags, *more, *LEARNS])
    assert results["eval_f1"] == results["eval_accuracy"] == results["test_accuracy"] == 1
    names = AutoConfig.from_pretrained(tmp_path / "out").id2label
    prefixes = "BIES" if tag_scheme == "bioes" else "BI"
    assert list(names.values()) == ["O", *(f"{p}-{t}" for t in ("PER", "WORK") for p in prefixes)]
    rows = read_columns(tmp_path / "out" / "predictions.conll")
    assert all(line[1] == line[2] for row in rows for line in row)


def test_training_data_without_an_entity_are_one_error(tmp_path, flags):
    path = tmp_path / "outside.conll"
    path.write_text("a O\nb O\n\nc O\n", encoding="utf-8")
    with pytest.raises(ValueError, match="^the training data have no entity, all tags are O: .*label_column_name"):
        run_ner.main([*flags, "--train_file", str(path), "--do_train"])


def test_a_checkpoints_own_order_of_the_tags_stays(tmp_path, flags, conll):
    names = ["I-PER", "B-WORK", "O", "B-PER", "I-WORK"]
    args = parse_arguments(run_ner.NerArguments, [*flags, *conll, "--do_train"])
    _, data = run_ner.load_data(args)
    config = AutoConfig.for_model("bert", id2label=dict(enumerate(names)))
    assert class_names(data, config, train=True, tag_scheme="iob2", model_name="m") == (names, "iob2")
    config = AutoConfig.for_model("bert", id2label={0: "O", 1: "B-LOC"})
    wanted = ["O", "B-PER", "I-PER", "B-WORK", "I-WORK"]
    assert class_names(data, config, train=True, tag_scheme="iob2", model_name="m")[0] == wanted


def test_json_and_columns_of_the_same_sentences_are_the_same_data(tmp_path, flags):
    rows = range(8)
    files = [write_conll(tmp_path / "a.conll", rows), write_json(tmp_path / "a.json", [sentence(row) for row in rows])]
    argv = [*flags, *SHORT, "--do_train", "--do_eval"]
    results = [run_ner.main([*argv, "--train_file", file, "--validation_file", file]) for file in files]
    assert results[0]["eval_loss"] == results[1]["eval_loss"]


def test_a_test_file_without_tags_is_predicted_and_not_scored(tmp_path, flags, conll):
    run_ner.main([*flags, *conll, "--do_train", *SHORT])
    test = tmp_path / "words.txt"
    test.write_text("the\nfilm\n\nbad\n", encoding="utf-8")
    again = ["--model_name_or_path", str(tmp_path / "out"), "--test_file", str(test), "--max_seq_length", "32"]
    results = run_ner.main([*again, "--do_predict", "--output_dir", str(tmp_path / "again")])
    assert not [name for name in results if name.startswith("test_")]
    rows = read_columns(tmp_path / "again" / "predictions.conll")
    assert [[line[0] for line in row] for row in rows] == [["the", "film"], ["bad"]]
    assert all(len(line) == 2 for row in rows for line in row)


# Every word has a token


@pytest.mark.slow
def test_words_that_vanish_and_the_ends_of_long_sentences_are_learned_and_found(tmp_path, flags, capsys):
    """U+FE0F has no sub-word; of six words, [CLS] and [SEP] leave room for four tokens in a row of six."""
    odd = (["\ufe0f", "bad", "the", "bad", "bad", "cast"], ["B-PER", "B-PER", "O", "B-PER", "B-PER", "B-PER"])
    odds = [odd, (["\ufe0f"], ["B-PER"])]
    train = write_json(tmp_path / "train.json", [sentence(row) for row in range(12)] + odds * 4)
    test = write_json(tmp_path / "test.json", odds)
    files = ["--train_file", train, "--validation_file", test, "--test_file", test]
    results = run_ner.main([*flags, *files, *ALL, "--max_seq_length", "6", *LEARNS])
    assert "validation: 7 of 7 words have a token; 2 sentences in 3 rows" in capsys.readouterr().out
    predicted = [[line[2] for line in row] for row in read_columns(tmp_path / "out" / "predictions.conll")]
    assert predicted == [tags for _, tags in odds]
    assert results["eval_number_PER"] == 6 and results["eval_f1"] == results["test_f1"] == 1


def test_a_limit_counts_sentences_not_their_rows(tmp_path, flags, capsys):
    rows = [(["bad"] * 9, ["B-PER"] * 9), (["the"], ["O"]), (["film"], ["O"])]
    file = write_json(tmp_path / "a.json", rows)
    args = [*flags, "--train_file", file, "--validation_file", file]
    args += ["--do_train", "--do_eval", "--max_seq_length", "6"]
    results = run_ner.main([*args, "--max_steps", "1", "--max_eval_samples", "1"])
    assert "validation: 9 of 9 words have a token; 1 sentences in 3 rows" in capsys.readouterr().out
    assert results["eval_number_PER"] == 9 and results["eval_samples"] == 1


@pytest.mark.parametrize("context", [False, True])
def test_the_parts_of_a_long_sentence_are_whole_words_in_order(tmp_path, flags, context):
    words = ["bad.film", "the", "plot", "not", "good.bad.dull", "a", "cast", "is"]
    row = json.dumps({"words": words, "tags": ["O"] * 8, "document": 1})
    (tmp_path / "a.json").write_text(f"{row}\n", encoding="utf-8")
    args = [*flags, "--validation_file", str(tmp_path / "a.json"), "--do_eval", "--max_seq_length", "6"]
    features, tokens = features_of([*args, *["--document_context"] * context])
    numbers = [[word for word in row if word >= 0] for row in features["word"]]
    assert numbers == [[0, 1], [2, 3], [4], [5, 6, 7]] and features["example"] == [0] * 4
    # The word of five tokens is cut; with the document around it, a part fills its row.
    expected = ["bad . film the", "plot not", "good . bad .", "a cast is"]
    if context:
        expected = ["bad . film the", "the plot not", "good . bad .", "a cast is"]
    assert [" ".join(row[1:-1]) for row in tokens] == expected


def features_of(args: list[str], split: str = "validation"):
    """The features of a split, and the words of their tokens."""
    parsed = parse_arguments(run_ner.NerArguments, args)
    tokenizer = load_tokenizer(parsed)
    features = make(parsed, tokenizer, torch.nn.Identity(), ["O", "B-PER", "I-PER", "B-WORK", "I-WORK"])[split]
    return features, [tokenizer.convert_ids_to_tokens(ids) for ids in features["input_ids"]]


def make(args: run_ner.NerArguments, tokenizer, model, names: list[str]) -> DatasetDict:
    _, data = run_ner.load_data(args)
    options = {"length": args.max_seq_length, "limits": args.limits, "document_context": args.document_context}
    return make_features(data, tokenizer, model, names, "iob2", **options)


def test_the_first_sub_word_carries_the_tag(tmp_path, flags):
    file = write_json(tmp_path / "a.json", [(["bad.film", "\ufe0f", "plot"], ["B-WORK", "I-WORK", "I-WORK"])])
    features, tokens = features_of([*flags, "--validation_file", file, "--do_eval"])
    assert tokens == [["[CLS]", "bad", ".", "film", "[UNK]", "plot", "[SEP]"]]
    assert features["word"] == [[-1, 0, -1, -1, 1, 2, -1]]
    assert features["labels"] == [[-100, 3, -100, -100, 4, 4, -100]]


def test_a_pure_python_tokenizer_finds_the_same_words(tmp_path, flags, monkeypatch):
    file = write_json(tmp_path / "a.json", [(["bad.film", "\ufe0f", "plot", "cast"], ["O"] * 4), (["na"], ["O"])])
    args = [*flags, "--validation_file", file, "--do_eval", "--max_seq_length", "6"]
    fast = features_of(args)[0]
    monkeypatch.setattr(BertTokenizer, "is_fast", False)
    slow = features_of(args)[0]
    assert slow["word"] == fast["word"] == [[-1, 0, -1, -1, 1, -1], [-1, 2, 3, -1], [-1, 0, -1]]


def test_byte_level_words_are_those_after_a_space(tmp_path):
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {piece: number for number, piece in enumerate(["<pad>", *letters, "Ġb", "Ġba", "Ġbad"])}
    bpe = Tokenizer(models.BPE(vocabulary, [("Ġ", "b"), ("Ġb", "a"), ("Ġba", "d")]))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    PreTrainedTokenizerFast(tokenizer_object=bpe, pad_token="<pad>").save_pretrained(tmp_path / "bpe")
    file = write_json(tmp_path / "a.json", [(["bad", "bad", "ad"], ["O", "B-PER", "O"])])
    flags = ["--model_name_or_path", "m", "--tokenizer_name", str(tmp_path / "bpe"), "--output_dir", "o", "--do_eval"]
    features, tokens = features_of([*flags, "--validation_file", file])
    assert tokens == [["Ġbad", "Ġbad", "Ġ", "a", "d"]]
    assert features["word"] == [[0, 1, 2, -1, -1]]


def test_words_of_a_tokenizer_that_begins_each_text_with_a_space_get_no_second_one(tmp_path):
    vocabulary = {piece: number for number, piece in enumerate(["<pad>", "▁", *"abd", "▁b", "▁ba", "▁bad"])}
    bpe = Tokenizer(models.BPE(vocabulary, [("▁", "b"), ("▁b", "a"), ("▁ba", "d")]))
    bpe.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])  # as Llama 2's
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, pad_token="<pad>")
    tokenizer.save_pretrained(tmp_path / "bpe")
    file = write_json(tmp_path / "a.json", [(["bad", "bad", "ad"], ["O", "B-PER", "O"])])
    flags = ["--model_name_or_path", "m", "--tokenizer_name", str(tmp_path / "bpe"), "--output_dir", "o", "--do_eval"]
    features, tokens = features_of([*flags, "--validation_file", file])
    assert tokens == [tokenizer.tokenize("bad bad ad")] == [["▁bad", "▁bad", "▁", "a", "d"]]
    assert features["word"] == [[0, 1, 2, -1, -1]]


# Types that training does not teach


def test_entities_of_types_that_training_lacks_are_missed_and_not_in_the_loss(tmp_path, flags, capsys):
    """What training calls WORK is LOC in the other files."""
    train = write_json(tmp_path / "train.json", [sentence(row) for row in range(12)])
    others = [(words, [tag.replace("WORK", "LOC") for tag in tags]) for words, tags in map(sentence, range(1, 7))]
    test = write_json(tmp_path / "test.json", others)
    files = ["--train_file", train, "--validation_file", test, "--test_file", test]
    results = run_ner.main([*flags, *files, *ALL, *LEARNS])
    printed = capsys.readouterr().out
    count = sum(tags.count("B-LOC") for _, tags in others)
    for split in ("validation", "test"):
        line = f"{split}: {count} entities are of types unknown to the training data ({count} of LOC); they count as"
        assert printed.count(line) == 1
    names = list(AutoConfig.from_pretrained(tmp_path / "out").id2label.values())
    assert names == ["O", "B-PER", "I-PER", "B-WORK", "I-WORK"]
    assert (results["eval_number_LOC"], results["eval_recall_LOC"], results["eval_recall_PER"]) == (count, 0, 1)

    rows = read_columns(tmp_path / "out" / "predictions.conll")
    columns = [[[line[place] for line in row] for row in rows] for place in (2, 1)]
    scores = entity_scores(*columns)
    assert {name: results[f"test_{name}"] for name in scores} == scores
    features, _ = features_of([*flags, "--validation_file", test, "--do_eval"])

    again = ["--model_name_or_path", str(tmp_path / "out"), "--max_seq_length", "32", "--do_eval"]
    again += ["--validation_file", test, "--output_dir", str(tmp_path / "again")]
    repeated = run_ner.main(again)
    assert scores_of(repeated) == pytest.approx(scores_of(results))
    assert f"are of types unknown to {tmp_path / 'out'} ({count} of LOC)" in capsys.readouterr().out
    model = AutoModelForTokenClassification.from_pretrained(tmp_path / "out").eval()
    assert {label for row in features["labels"] for label in row} == {-100, 0, 1}  # O and B-PER
    losses, seen = 0.0, 0
    for row in features:
        labels = torch.tensor([row["labels"]])
        with torch.no_grad():
            mean = model(torch.tensor([row["input_ids"]]), labels=labels).loss.item()
        count = int((labels >= 0).sum())
        losses, seen = losses + mean * count, seen + count
    assert results["eval_loss"] == pytest.approx(losses / seen, abs=1e-5)


@pytest.mark.parametrize("split", ["validation", "test"])
def test_data_whose_entities_are_all_of_other_types_are_refused(tmp_path, flags, split):
    train = write_json(tmp_path / "train.json", [sentence(row) for row in range(12)])
    other = write_json(tmp_path / "other.json", [(["film"], ["B-LOC"]), (["bad"], ["O"])])
    part = {"validation": "--do_eval", "test": "--do_predict"}[split]
    files = ["--train_file", train, "--do_train", f"--{split}_file", other, part]
    message = f"the training data: there are only entities of PER, WORK, but the {split} data have LOC: train on such"
    with pytest.raises(ValueError, match=message):
        run_ner.main([*flags, *files])


# Limits


@pytest.mark.parametrize("context", [[], ["--document_context"]])
def test_a_limit_takes_the_features_that_the_first_sentences_have_without_it(flags, conll, context):
    args = [*flags, *conll, "--do_eval", "--max_seq_length", "16", *context]
    whole, _ = features_of(args)
    for limit in (1, 2, 4):  # a window reads on behind the last of them
        assert features_of([*args, "--max_eval_samples", str(limit)])[0].to_list() == whole.to_list()[:limit]


def test_a_model_learns_the_tags_of_the_whole_file_also_where_few_sentences_are_taken(tmp_path, flags):
    file = write_json(tmp_path / "a.json", [(["film"], ["B-WORK"]), (["bad"], ["B-PER"])])
    run_ner.main([*flags, "--train_file", file, "--do_train", "--max_train_samples", "1", *SHORT])
    assert AutoConfig.from_pretrained(tmp_path / "out").id2label == dict(
        enumerate(["O", "B-PER", "I-PER", "B-WORK", "I-WORK"])
    )


@pytest.mark.parametrize("limit", ["6", "7"])
def test_a_limit_that_leaves_nothing_out_is_not_mentioned(flags, conll, limit, capsys):
    run_ner.main([*flags, *conll, "--do_train", "--do_eval", *SHORT, "--max_eval_samples", limit])
    assert "train 12, validation 6 sentences" in capsys.readouterr().out


def test_nothing_is_hashed_for_a_cache_that_is_not_used(flags, conll, monkeypatch):
    hashed = []
    monkeypatch.setattr("datasets.fingerprint.Hasher.update", lambda self, value: hashed.append(type(value)))
    features_of([*flags, *conll, "--do_eval"])
    assert not {list, partial} & set(hashed)


# Document context


def test_a_window_is_filled_with_its_document_the_sentence_in_the_middle():
    tokens = list(range(101))  # a token a word
    assert widen((40, 50), (0, 100), tokens, 30) == (30, 60)
    assert widen((40, 50), (38, 100), tokens, 30) == (38, 68)  # what one side lacks, the other gets
    assert widen((40, 50), (0, 55), tokens, 30) == (25, 55)
    assert widen((40, 50), (38, 55), tokens, 30) == (38, 55)
    assert widen((40, 50), (0, 100), tokens, 31) == (30, 61)
    assert widen((40, 90), (0, 100), tokens, 30) == (40, 90)  # cut later


def test_a_window_holds_whole_words():
    tokens = [0, 3, 6, 9, 12, 15, 16, 17, 18]  # of words of three tokens, five times, and of one
    assert widen((3, 4), (0, 8), tokens, 10) == (2, 6)  # 3 before, 3 + 1 after
    assert widen((4, 5), (0, 8), tokens, 10) == (3, 8)  # 3 before, 3 after, and no room for 3 more
    assert widen((3, 4), (0, 5), tokens, 10) == (2, 5)
    assert widen((1, 2), (0, 4), tokens, 11) == (0, 3)


def test_context_is_read_but_neither_learned_nor_scored(flags, conll):
    args = [*flags, *conll, "--do_eval", "--max_seq_length", "16"]
    alone, words = features_of(args)
    features, tokens = features_of([*args, "--document_context"])
    for row in range(SIZES["valid.txt"]):
        own = words[row][1:-1]
        places = [place for place, word in enumerate(features["word"][row]) if word >= 0]
        first = places[0]
        assert tokens[row][first : first + len(own)] == own
        kept = [label for label in features["labels"][row] if label >= 0]
        assert kept == [label for label in alone["labels"][row] if label >= 0]
    assert {len(row) for row in tokens} == {16}  # full: each document has three sentences
    documents = [[word for row in range(a, a + 3) for word in words[row][1:-1]] for a in (0, 3)]
    for row, window in enumerate(tokens):
        text = " ".join(documents[row // 3])
        assert " ".join(window[1:-1]) in text


def test_context_of_the_sentences_that_are_left_out_is_still_there(flags, conll):
    args = [*flags, *conll, "--do_eval", "--max_seq_length", "16", "--document_context"]
    assert features_of([*args, "--max_eval_samples", "1"])[1][0] == features_of(args)[1][0]


def test_a_tagger_on_features_is_told_the_sentence_only_where_there_is_context(flags, conll):
    args = parse_arguments(run_ner.NerArguments, [*flags, *conll, "--do_eval", "--max_seq_length", "16"])
    for context in (False, True):
        asked = dataclasses.replace(args, document_context=context)
        row = make(asked, load_tokenizer(args), FeatureTagger, ["O"])["validation"][0]
        assert ("sentence_mask" in row) == context
    assert [word >= 0 for word in row["word"]] == [bool(kept) for kept in row["sentence_mask"]] and 0 in row["word"]


def test_the_sentence_is_all_sub_words_of_its_words(tmp_path, flags):
    texts = [["the", "film"], ["bad.film", "plot"], ["dull"]]
    rows = [json.dumps({"words": words, "tags": ["O"] * len(words), "document": 1}) for words in texts]
    (tmp_path / "a.json").write_text("\n".join(rows), encoding="utf-8")
    parsed = [*flags, "--validation_file", str(tmp_path / "a.json"), "--do_eval", "--document_context"]
    args = parse_arguments(run_ner.NerArguments, parsed)
    row = make(args, load_tokenizer(args), FeatureTagger, ["O"])["validation"][1]
    assert row["word"] == [-1, -1, -1, 0, -1, -1, 1, -1, -1]  # [CLS] the film bad . film plot dull [SEP]
    assert row["sentence_mask"] == [0, 0, 0, 1, 1, 1, 1, 0, 0]


def test_data_that_do_not_tell_documents_apart_give_no_context(tmp_path, flags):
    folder = write_folder(tmp_path / "conll", document=0)
    with pytest.raises(ValueError, match="--document_context needs documents: lines with -DOCSTART-, or a column"):
        run_ner.main([*flags, "--data_dir", str(folder), "--do_eval", "--do_train", "--document_context"])


# Models that stay as they are


@pytest.fixture
def elmo(tmp_path) -> str:
    return write_elmo(tmp_path / "elmo")


def scores_of(results: dict) -> dict[str, float]:
    return {name: value for name, value in results.items() if name.startswith("eval_") and "runtime" not in name}


@pytest.mark.slow
@pytest.mark.parametrize("context", [[], ["--document_context"]])
def test_states_from_the_cache_give_the_scores_of_the_model_itself(tmp_path, flags, conll, context):
    args = [*flags, *conll, *context, *ALL, *SHORT, "--features", "weighted_sum_all", *SMALL]
    plain = run_ner.main(args)
    expected = (tmp_path / "out" / "predictions.conll").read_text(encoding="utf-8")
    for _ in range(2):  # written, and read
        cached = run_ner.main([*args, "--state_cache", str(tmp_path / "cache")])
        assert scores_of(cached) == pytest.approx(scores_of(plain), abs=1e-6)
        assert cached["train_loss"] == pytest.approx(plain["train_loss"], abs=1e-6)
        assert (tmp_path / "out" / "predictions.conll").read_text(encoding="utf-8") == expected
    assert AutoConfig.from_pretrained(tmp_path / "out").features == "weighted_sum_all"


def test_a_saved_tagger_on_features_is_a_checkpoint_like_any_other(tmp_path, flags, conll):
    first = run_ner.main([*flags, *conll, "--do_train", "--do_eval", *SHORT, "--features", "last", *SMALL])
    again = ["--model_name_or_path", str(tmp_path / "out"), *conll, "--max_seq_length", "32", "--do_eval"]
    second = run_ner.main([*again, "--output_dir", str(tmp_path / "again"), "--state_cache", str(tmp_path / "c")])
    assert scores_of(second) == pytest.approx(scores_of(first), abs=1e-6)


def test_overrides_reach_the_tagger_on_features_and_the_model_below(tmp_path, flags, conll):
    overrides = "rnn_size=5,hidden_act=relu,rnn_layers=1,dropout=0.25,layer_norm_eps=1e-5"
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # torch's, where one layer has dropout between layers
        run_ner.main([*flags, *conll, "--do_train", *SHORT, "--features", "last", "--config_overrides", overrides])
    config = AutoConfig.from_pretrained(tmp_path / "out")
    assert (config.rnn_size, config.rnn_layers, config.dropout) == (5, 1, 0.25)
    assert (config.encoder.hidden_act, config.encoder.layer_norm_eps) == ("relu", 1e-5)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ("rnn_size=0", "--features last: rnn_size=0 must be at least 1"),
        ("rnn_layers=-1", "--features last: rnn_layers=-1 must be at least 1"),
        ("dropout=1", "--features last: dropout=1 must be at least 0 and below 1"),
        ("rnn_size=much", "--features last: .*rnn_size"),
        ("features=embeddings", "bert has no features. Correct it or --config_overrides"),
    ],
)
def test_overrides_that_no_tagger_on_features_can_have_are_one_clear_error(flags, conll, overrides, message):
    with pytest.raises(ValueError, match=message):
        run_ner.main([*flags, *conll, "--do_train", "--features", "last", "--config_overrides", overrides])


def test_an_override_without_a_value_is_a_wrong_flag(flags, conll, capsys):
    with pytest.raises(SystemExit):
        run_ner.main([*flags, *conll, "--do_train", "--features", "last", "--config_overrides", "rnn_size"])
    assert "must be fields and values, as in a=1,b=true, not 'rnn_size'" in capsys.readouterr().err


def test_without_features_the_taggers_fields_are_not_the_models(flags, conll):
    with pytest.raises(ValueError, match="bert has no rnn_size"):
        run_ner.main([*flags, *conll, "--do_train", "--config_overrides", "rnn_size=5"])


@pytest.mark.slow
def test_elmos_tagger_runs_with_and_without_the_cache(tmp_path, elmo, conll):
    args = ["--model_name_or_path", elmo, *conll, *ALL, "--tag_scheme", "bioes", "--output_dir", str(tmp_path / "out")]
    args += ["--config_overrides", "task_dropout=0,mix_dropout=0", "--overwrite_output_dir", "--learning_rate", "0.1"]
    args += ["--num_train_epochs", "10", "--save_strategy", "no", "--per_device_train_batch_size", "4"]
    args += ["--eval_steps", "30"]
    plain = run_ner.main(args)
    cached = run_ner.main([*args, "--state_cache", str(tmp_path / "cache")])
    assert scores_of(cached) == pytest.approx(scores_of(plain), abs=1e-4)
    assert plain["eval_f1"] > 0.9
    assert len(list((tmp_path / "cache").rglob("*.safetensors"))) == 3


def test_a_bilm_whose_states_change_is_not_cached(tmp_path, elmo, conll):
    args = ["--model_name_or_path", elmo, *conll, "--do_train", "--output_dir", str(tmp_path / "out")]
    with pytest.raises(ValueError, match="the states of ElmoModel are trained"):
        run_ner.main([*args, "--config_overrides", "freeze_bilm=false", "--state_cache", str(tmp_path / "cache")])


# What is refused


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ([], "there are no data: name them by one of --dataset_name, --data_dir, --train_file"),
        (["--data_dir", "x", "--train_file", "y"], "--data_dir x has no effect with --train_file y: leave out one"),
        (["--data_dir", "x", "--dataset_config_name", "y"], "--dataset_config_name y has no effect with --data_dir x"),
        (["--data_dir", "x", "--tag_scheme", "iob1"], "invalid choice: 'iob1'"),
        (["--data_dir", "x", "--max_eval_samples", "0"], "--max_eval_samples must be positive, not 0"),
        (["--train_file", "y", "--text_column_name", "1", "--label_column_name", "1"], "are both 1"),
    ],
)
def test_flags_that_contradict_the_data_are_refused(flags, capsys, extra, message):
    with pytest.raises(SystemExit):
        run_ner.main([*flags, "--do_train", *extra])
    assert message in capsys.readouterr().err


def test_features_are_for_training(flags, capsys):
    with pytest.raises(SystemExit):
        run_ner.main([*flags, "--data_dir", "x", "--do_eval", "--features", "last"])
    assert "--features last has no effect with --do_train False" in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--gradient_checkpointing", "--reinit_layers"])
def test_flags_for_the_training_of_the_model_below_are_refused_with_features(flags, conll, flag):
    value = ["1"] if "reinit" in flag else []
    with pytest.raises(ValueError, match=f"leave {flag} out"):
        run_ner.main([*flags, *conll, "--do_train", "--features", "last", flag, *value])


def test_features_of_more_layers_than_the_model_has_are_refused(flags, conll):
    with pytest.raises(ValueError, match="--features concat_last_four: .* needs an encoder of 4 layers, .* has 2"):
        run_ner.main([*flags, *conll, "--do_train", "--features", "concat_last_four"])


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ("hidden_dropout=0", "bert has no hidden_dropout. Correct it or --config_overrides"),
        (
            "hidden_dropout_prob",
            "--config_overrides must be fields and values, as in a=1,b=true, not 'hidden_dropout_",
        ),
        ("hidden_dropout_prob=much", "hidden_dropout_prob"),
        ("num_attention_heads=5", "hidden_size=12 is not a multiple of num_attention_heads=5"),
    ],
)
@pytest.mark.parametrize("saved", [False, True])
def test_overrides_that_the_configuration_cannot_have_are_one_clear_error(tmp_path, flags, overrides, message, saved):
    args = parse_arguments(run_ner.NerArguments, [*flags, "--data_dir", "x", "--do_train"])
    if saved:
        load_config(args).save_pretrained(tmp_path / "saved")
        args = dataclasses.replace(args, model_name_or_path=str(tmp_path / "saved"))
    with pytest.raises(ValueError, match=message):
        load_config(dataclasses.replace(args, config_overrides=overrides))
    changed = load_config(dataclasses.replace(args, config_overrides="hidden_dropout_prob=0.3,hidden_act=relu"))
    assert (changed.hidden_dropout_prob, changed.hidden_act) == (0.3, "relu")


def test_a_folder_without_the_files_is_an_error_that_names_them(tmp_path, flags):
    with pytest.raises(FileNotFoundError, match="no such folder"):
        run_ner.main([*flags, "--data_dir", str(tmp_path / "nowhere"), "--do_train"])
    with pytest.raises(FileNotFoundError, match="does not hold train.txt; or eng.train; or train.conll"):
        run_ner.main([*flags, "--data_dir", str(tmp_path), "--do_train"])


@pytest.mark.parametrize(
    "names", [("eng.train", "eng.testa", "eng.testb"), ("train.conll", "dev.conll", "test.conll")]
)
def test_the_published_names_of_the_files_are_found(tmp_path, flags, names):
    for name in names:
        write_conll(tmp_path / name, range(6))
    assert record_of(tmp_path, flags)["eval_number_PER"] > 0


def record_of(folder: Path, flags: list[str]) -> dict:
    run_ner.main([*flags, "--data_dir", str(folder), *ALL, *SHORT])
    return record(folder / "out")


@pytest.mark.parametrize("length", ["2", "0", "-1"])
def test_a_length_without_room_for_words_is_an_error(flags, conll, length):
    with pytest.raises(ValueError, match=f"--max_seq_length {length} must be more than the 2 special tokens"):
        run_ner.main([*flags, *conll, "--do_train", "--max_seq_length", length])


def test_a_length_beyond_the_encoders_positions_is_an_error_under_features_too(flags, conll):
    with pytest.raises(ValueError, match="--max_seq_length 41 is more than the model's 40 positions"):
        run_ner.main([*flags, *conll, "--do_train", "--features", "last", "--max_seq_length", "41"])


def test_training_data_of_which_nothing_is_left_is_an_error(tmp_path, flags, monkeypatch):
    monkeypatch.setattr(BertTokenizer, "unk_token", None, raising=False)
    file = write_json(tmp_path / "a.json", [(["\ufe0f"], ["B-PER"])])
    with pytest.raises(ValueError, match="no word of the training data has a token"):
        run_ner.main([*flags, "--train_file", file, "--do_train"])


def test_a_checkpoint_that_does_not_know_the_datas_entities_is_refused(tmp_path, flags, conll):
    run_ner.main([*flags, *conll, "--do_train", *SHORT])
    file = write_json(tmp_path / "a.json", [(["film"], ["B-LOC"])])
    again = ["--model_name_or_path", str(tmp_path / "out"), "--output_dir", str(tmp_path / "again"), "--do_eval"]
    message = "out: there are only entities of PER, WORK, but the validation data have LOC: train on such"
    with pytest.raises(ValueError, match=message):
        run_ner.main([*again, "--validation_file", file, "--max_seq_length", "32"])


def test_a_checkpoint_of_no_tags_is_not_evaluated(flags, conll):
    args = parse_arguments(run_ner.NerArguments, [*flags, *conll, "--do_eval"])
    _, data = run_ner.load_data(args)
    with pytest.raises(ValueError, match="tells LABEL_0, LABEL_1 apart, which are not tags of entities: train it"):
        class_names(data, AutoConfig.for_model("bert"), train=False, tag_scheme="iob2", model_name="m")


def test_a_tokenizer_of_another_model_is_an_error(tmp_path, flags, conll):
    (tmp_path / "long.txt").write_text("\n".join([*VOCABULARY, *(f"x{n}" for n in range(9))]), encoding="utf-8")
    with pytest.raises(ValueError, match="choose the tokenizer the model was made for"):
        run_ner.main([*flags, *conll, "--do_train", "--tokenizer_name", str(tmp_path / "long.txt")])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "holds no sentences"),
        ("the O\nfilm X\n", "a.conll:2: 'X', the tag of 'film', is none of O"),
        ("the\nfilm\n", "a.conll:1: words and tags are both in column 1 of 1"),
    ],
)
def test_a_broken_file_is_an_error_that_says_where(tmp_path, flags, content, message):
    (tmp_path / "a.conll").write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        run_ner.main([*flags, "--train_file", str(tmp_path / "a.conll"), "--do_train"])


# Several processes


@pytest.mark.slow
@pytest.mark.parametrize("family", ["bert", "elmo"])
def test_two_processes_and_accumulated_steps_weigh_tags_as_one_process_does(tmp_path, flags, conll, elmo, family):
    """However sentences of different lengths are divided, each labelled word counts the same."""
    if family == "elmo":
        flags = [*flags, "--model_name_or_path", elmo, "--tokenizer_name", elmo]
        flags += [
            "--config_overrides",
            "task_dropout=0,mix_dropout=0,mix_l2=0.01,freeze_bilm=false,hidden_dropout_prob=0",
        ]
    # Where a gradient is nothing but rounding, Adam's small epsilon would make it a whole step.
    args = [*flags, *conll, "--do_train", "--do_eval", "--do_predict", "--adam_epsilon", "0.001", "--max_steps", "4"]
    args += ["--save_strategy", "no", "--eval_strategy", "no"]
    one = [*args, "--per_device_train_batch_size", "4", "--output_dir", str(tmp_path / "one")]
    two = ["--per_device_train_batch_size", "1", "--gradient_accumulation_steps", "2"]
    assert wait(fork(lambda: run_ner.main([*args, *two, "--output_dir", str(tmp_path / "two")]), count=2)) == [0, 0]
    run_ner.main(one)
    ours, theirs = record(tmp_path / "two"), record(tmp_path / "one")
    assert ours["hardware"]["processes"] == 2
    assert scores_of(ours) == pytest.approx(scores_of(theirs), abs=1e-5)
    assert ours["train_loss"] == pytest.approx(theirs["train_loss"], abs=1e-5)
    weights = [load_file(tmp_path / name / "model.safetensors") for name in ("two", "one")]
    torch.testing.assert_close(*weights, rtol=0, atol=1e-5)
    predictions = [(tmp_path / name / "predictions.conll").read_text(encoding="utf-8") for name in ("two", "one")]
    assert predictions[0] == predictions[1]
