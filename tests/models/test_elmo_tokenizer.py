"""ELMo's tokenizer: the released ids, text and words, pairs, padding, truncation, and the way back."""

import itertools
import json
import random

import numpy as np
import pytest
import torch
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import (
    AutoTokenizer,
    DataCollatorForMultipleChoice,
    DataCollatorForTokenClassification,
    DataCollatorWithPadding,
    PreTrainedTokenizerFast,
)

from modeling import ElmoConfig, ElmoTokenizer
from modeling.elmo.tokenization_elmo_spelling import ByteSpelling, boundary_rows
from tests.support.strangers import run_stranger
from tests.support.tiny_run import load_tokenizer


WORDS = ["Zoë", "", "a", "<S>", "</S>", "</s>", "[PAD]", "a\x00b", "\ud83d", "x\ud83dy", "日本語", "👩‍👧", "é" * 30]
WORDS += ["a" * 47, "a" * 48, "a" * 49, "a" * 47 + "é", "é" * 10_000, "a b", "\n"]


def released_row(word: str, width: int = 50) -> list[int]:
    """One id after the other, as the released code numbers them, and one more for each."""
    if word in ("<S>", "</S>"):
        row = [258, {"<S>": 256, "</S>": 257}[word], 259]
    else:
        row = [258]
        for byte in word.encode("utf-8", "ignore"):
            if len(row) < width - 1:
                row.append(byte)
        row.append(259)
    while len(row) < width:
        row.append(260)
    return [number + 1 for number in row]


@pytest.fixture
def tokenizer() -> ElmoTokenizer:
    return ElmoTokenizer()


@pytest.fixture
def vocabularies(tmp_path) -> dict[str, str]:
    """Files of both vocabularies."""
    (tmp_path / "lm.txt").write_text("<S>\n</S>\n<UNK>\nthe\n!!!MAXTERMID\nFilm\n", encoding="utf-8")
    (tmp_path / "vectors.txt").write_text("the\nFilm\nfilm\nnon\xa0breaking\n", encoding="utf-8")
    return {"vocab_file": str(tmp_path / "lm.txt"), "words_file": str(tmp_path / "vectors.txt")}


# Character ids


def test_a_word_has_the_released_ids_plus_one():
    letters = [chr(code) for code in (*range(32, 127), 0, 233, 0x3B1, 0x4E2D, 0x1F600, 0xD800)]
    drawn = random.Random(0)
    words = WORDS + ["".join(drawn.choices(letters, k=drawn.randint(0, 60))) for _ in range(300)]
    for width in (3, 7, 50):
        assert ByteSpelling(width).rows(words).tolist() == [released_row(word, width) for word in words]


def test_the_rows_of_a_sentence_s_begin_and_end_are_the_released_ones():
    assert boundary_rows(262, 5, False) == [[259, 257, 260, 261, 261], [259, 258, 260, 261, 261]]


def test_no_words_are_no_rows():
    assert ByteSpelling(50).rows([]).shape == (0, 50)


@pytest.mark.parametrize("word", [None, 1.5, b"film", ["film"]])
def test_what_is_no_word_is_named_with_its_place(word, tokenizer):
    with pytest.raises(ValueError, match=r"word 1 of \['the', .*\] is .*: words must be strings"):
        tokenizer([["a", "b"], ["the", word]], is_split_into_words=True)


def test_ids_turn_into_words_again(tokenizer):
    words = ["Zoë", "", "<S>", "</S>", "a\x00b", "日本語", "[PAD]"]
    assert tokenizer.convert_ids_to_tokens(tokenizer.convert_tokens_to_ids(words)) == words
    assert tokenizer.convert_ids_to_tokens(tokenizer.convert_tokens_to_ids("Zoë")) == "Zoë"


def test_a_character_that_was_cut_in_two_turns_into_the_replacement_character(tokenizer):
    assert tokenizer.decode(tokenizer(["a" * 47 + "é"], is_split_into_words=True)["input_ids"]) == "a" * 47 + "\ufffd"


def test_decoding_takes_a_word_an_example_or_a_batch(tokenizer):
    batch = tokenizer(["The film .", "", "Good"], padding=True, return_tensors="pt")["input_ids"]
    texts = ["The film .", "", "Good"]
    assert tokenizer.decode(batch, skip_special_tokens=True) == texts
    assert tokenizer.batch_decode(batch.tolist(), skip_special_tokens=True) == texts
    assert tokenizer.decode(batch[0]) == "The film ."
    assert tokenizer.decode(batch[0, 1]) == "film" and tokenizer.decode(66) == "<0x41>"
    assert tokenizer.decode(batch[2].numpy()) == "Good [PAD] [PAD]"
    assert tokenizer.decode([]) == "" and tokenizer.decode([[], []]) == ["", ""]


def test_padding_is_the_only_special_token(tokenizer):
    rows = tokenizer(["a bc d", "x y"], padding=True, return_tensors="np")["input_ids"]
    for row in (rows[1], rows[1].tolist()):
        assert tokenizer.get_special_tokens_mask(row, already_has_special_tokens=True) == [0, 0, 1]
    assert tokenizer.all_special_ids == [0]


def test_rows_of_another_width_are_refused(tokenizer):
    with pytest.raises(ValueError, match="a row of 20 ids is no word of this tokenizer, whose words have 50"):
        tokenizer.decode(ByteSpelling(20).rows(["film"]))


def test_the_vocabulary_is_that_of_the_characters(tokenizer):
    vocabulary = tokenizer.get_vocab()
    assert len(tokenizer) == tokenizer.vocab_size == ElmoConfig().vocab_size
    assert sorted(vocabulary.values()) == list(range(262))
    name = {number: text for text, number in vocabulary.items()}
    assert [name[number] for number in tokenizer("A")["input_ids"][0][:4]] == ["<W>", "<0x41>", "</W>", "<W_PAD>"]
    assert tokenizer.convert_ids_to_tokens(66) == "<0x41>"
    assert tokenizer.pad_token_id == 0 and tokenizer.num_special_tokens_to_add(pair=True) == 0


def test_no_token_can_be_added(tokenizer):
    with pytest.raises(ValueError, match="<ent>, <rel>: no token can be added"):
        tokenizer.add_tokens(["<ent>", "<rel>"])
    with pytest.raises(ValueError, match="<ent>: no token can be added"):
        tokenizer.add_special_tokens({"additional_special_tokens": ["<ent>"]})
    with pytest.raises(ValueError, match="<pad>: no token can be added"):
        tokenizer.pad_token = "<pad>"
    assert len(tokenizer) == 262 and tokenizer.all_special_tokens == ["[PAD]"]


def test_the_width_of_a_word_is_saved(tmp_path):
    ElmoTokenizer(max_characters_per_token=20).save_pretrained(tmp_path)
    loaded = ElmoTokenizer.from_pretrained(tmp_path)
    assert loaded("film")["input_ids"] == [released_row("film", 20)]
    with pytest.raises(ValueError, match="max_characters_per_token=2"):
        ElmoTokenizer(max_characters_per_token=2)


# Text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The film, they say, was good.", "The film , they say , was good ."),
        ("It's Zoë's; don't ask.", "It 's Zoë 's ; don 't ask ."),
        ("They’ll see, won’t they?", "They ’ll see , won ’t they ?"),
        (
            "Mr. O'Neil of the U.S. paid $1,000.50 at 10:30 p.m.",
            "Mr. O'Neil of the U.S. paid $ 1,000.50 at 10:30 p.m.",
        ),
        ('"State-of-the-art" (AT&T) -- wow...', '" State-of-the-art " ( AT&T ) -- wow ...'),
        ("It did n't -LRB- so `` they '' say -RRB- .", "It did n't -LRB- so `` they '' say -RRB- ."),
        ("हिन्दी e\u0301te\u0301", "हिन्दी e\u0301te\u0301"),
        ("a\tb\u00a0c\n\nd", "a b c d"),
        ("\ue000", "\ue000"),
    ],
)
def test_text_falls_into_words(text, words, tokenizer):
    assert tokenizer.tokenize(text) == words.split()
    encoding = tokenizer(text, return_offsets_mapping=True)
    assert [text[begin:end] for begin, end in encoding["offset_mapping"]] == words.split()
    assert encoding["input_ids"] == [released_row(word) for word in words.split()]


def test_the_news_text_that_the_published_models_read_stays_as_it_was_split(tokenizer, data):
    sentences = json.loads((data / "elmo_tiny" / "lm_embeddings_sentences.json").read_text(encoding="utf-8"))
    for text in itertools.chain.from_iterable(sentences):
        assert tokenizer.tokenize(text) == text.split()


def test_a_very_long_word_takes_no_longer_than_its_length(tokenizer):
    for text in ("a" * 10_000, "a-" * 5_000, "a." * 5_000, "'" * 10_000, "a's" * 3_000):
        assert "".join(tokenizer.tokenize(text)) == text


# One sentence and two


def test_two_sentences_are_the_words_of_both(tokenizer):
    encoding = tokenizer("the film", "was it good", return_special_tokens_mask=True)
    assert encoding["input_ids"] == [released_row(word) for word in ("the", "film", "was", "it", "good")]
    assert encoding["token_type_ids"] == [0, 0, 1, 1, 1]
    assert encoding["attention_mask"] == [1] * 5
    assert encoding["special_tokens_mask"] == [0] * 5


def test_every_way_to_give_pairs_is_the_same(tokenizer):
    expected = dict(tokenizer(["the film", "it"], ["was good", ""]))
    assert dict(tokenizer([("the film", "was good"), ("it", "")])) == expected
    assert dict(tokenizer([["the film", "was good"], ["it", ""]])) == expected
    words = {"is_split_into_words": True}
    assert dict(tokenizer([["the", "film"], ["it"]], [["was", "good"], []], **words)) == expected
    assert dict(tokenizer([(["the", "film"], ["was", "good"]), (["it"], [])], **words)) == expected


def test_an_empty_text_has_no_words_and_an_empty_list_no_texts(tokenizer):
    assert tokenizer("")["input_ids"] == tokenizer([], is_split_into_words=True)["input_ids"] == []
    assert tokenizer([])["input_ids"] == []
    assert tokenizer(["", "a"])["input_ids"] == [[], [released_row("a")]]
    for texts, shape in (("", (1, 0, 50)), ([], (0, 0, 50)), (["", ""], (2, 0, 50)), (["", "a b"], (2, 2, 50))):
        batch = tokenizer(texts, padding=True, return_tensors="pt")
        assert batch["input_ids"].shape == shape and batch["attention_mask"].shape == shape[:2]
        assert batch["input_ids"].dtype == torch.int64


@pytest.mark.parametrize("text", [None, 3, ["the", None], ["the", 1.5], [[]], [["a", "b", "c"]]])
def test_what_is_no_text_is_one_clear_error(text, tokenizer):
    with pytest.raises(ValueError, match="a text must be a string|specify either `text`"):
        tokenizer(text)


def test_words_need_a_list_of_them(tokenizer):
    with pytest.raises(ValueError, match="a text must be a list of words, but one is 'the film'"):
        tokenizer("the film", is_split_into_words=True)


def test_a_batch_needs_as_many_second_sentences(tokenizer):
    with pytest.raises(ValueError, match="there are 2 texts, but text_pair is not a list of as many"):
        tokenizer(["a", "b"], ["c"])


def test_each_row_knows_its_word_also_when_padded_and_cut_at_the_left(tokenizer):
    tokenizer.truncation_side = "left"
    texts, pairs = ["one two three", "one"], ["four five six", "two"]
    batch = tokenizer(texts, pairs, truncation=True, max_length=4, padding=True, padding_side="left")
    assert batch.tokens(0) == ["two", "three", "five", "six"] and batch.word_ids(0) == [1, 2, 1, 2]
    assert batch.sequence_ids(0) == [0, 0, 1, 1]
    assert batch.tokens(1) == ["[PAD]", "[PAD]", "one", "two"] and batch.word_ids(1) == [None, None, 0, 0]
    assert batch.sequence_ids(1) == [None, None, 0, 1]


TEXTS, PAIRS = ["one  two\nthree ", "one"], [" four five", "two six seven"]
LISTS = [["one", "two", "three"], ["one"]], [["four", "five"], ["two", "six", "seven"]]


@pytest.mark.parametrize(
    ("texts", "options"),
    [
        ((TEXTS,), {}),
        ((TEXTS, PAIRS), {}),
        ((TEXTS, PAIRS), {"padding_side": "left"}),
        ((TEXTS, PAIRS), {"truncation": "only_second", "max_length": 4}),
        (LISTS, {"is_split_into_words": True}),
    ],
    ids=["one sentence", "pairs", "padded at the left", "cut", "already split"],
)
def test_tokens_words_and_characters_find_each_other_as_with_a_fast_tokenizer(texts, options):
    words = WordLevel(dict.fromkeys(" ".join(TEXTS + PAIRS).split(), 1) | {"[PAD]": 0}, unk_token="[PAD]")
    model = Tokenizer(words)
    model.pre_tokenizer = WhitespaceSplit()
    fast = PreTrainedTokenizerFast(tokenizer_object=model, pad_token="[PAD]")
    ours, theirs = (each(*texts, padding=True, **options) for each in (ElmoTokenizer(split_by="spaces"), fast))
    for row in range(2):
        assert ours.word_ids(row) == theirs.word_ids(row)
        tokens = [(token,) for token, word in enumerate(theirs.word_ids(row)) if word is not None]
        anywhere = list(itertools.product(range(17), range(len(texts))))  # words or characters, and sentences
        words = [place for place in anywhere if theirs.word_to_tokens(row, *place) is not None]
        places = dict.fromkeys(("token_to_sequence", "token_to_word", "token_to_chars"), tokens)
        places |= dict.fromkeys(("char_to_token", "char_to_word", "word_to_tokens"), anywhere) | {
            "word_to_chars": words
        }
        for name, given in places.items():
            one, other = (getattr(each, name) for each in (ours, theirs))
            assert [one(row, *place) for place in given] == [other(row, *place) for place in given], name


def test_padding_has_no_sentence_no_word_and_no_characters(tokenizer):
    batch = tokenizer(["one two", "one"], padding=True)
    for find in (batch.token_to_sequence, batch.token_to_word, batch.token_to_chars):
        assert find(1, 1) is None and find(0, 1) is not None


# Padding


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize(
    ("padding", "length"),
    [
        ({"padding": True}, 3),
        ({"padding": "longest", "pad_to_multiple_of": 4}, 4),
        ({"padding": "max_length", "max_length": 5}, 5),
        ({"padding": "max_length", "max_length": 5, "pad_to_multiple_of": 4}, 8),
    ],
)
def test_padding_fills_up_with_zeros(padding, length, side, tokenizer, vocabularies):
    tokenizer = ElmoTokenizer(**vocabularies, padding_side=side)
    examples = [tokenizer("the", "Film it"), tokenizer("a"), tokenizer("")]
    for example in examples:
        example["special_tokens_mask"] = [0] * len(example["input_ids"])
    batch = tokenizer.pad(examples, **padding)
    wanted = {"input_ids": [0] * 50, "token_type_ids": 0, "attention_mask": 0, "vector_ids": 0}
    for name, value in {**wanted, "special_tokens_mask": 1}.items():
        for example, row in zip(examples, batch[name], strict=True):
            fill = [value] * (length - len(example[name]))
            assert row == (example[name] + fill if side == "right" else fill + example[name])


def test_padding_in_the_call_or_afterwards_is_the_same_in_every_type(tokenizer):
    texts, pairs = ["the film", "", "a b c"], ["it", "was good", ""]
    batch = tokenizer(texts, pairs, padding=True)
    examples = [tokenizer(*both) for both in zip(texts, pairs, strict=True)]
    arrays = [{name: np.array(values, dtype=np.int32) for name, values in example.items()} for example in examples]
    tensors = [{name: torch.tensor(values) for name, values in example.items()} for example in examples]
    assert dict(tokenizer.pad(examples)) == dict(tokenizer.pad(dict(tokenizer(texts, pairs)))) == dict(batch)
    for given, kind in ((examples, "np"), (arrays, None), (examples, "pt"), (tensors, None)):
        padded = tokenizer.pad(given, return_tensors=kind)
        assert all(isinstance(values, torch.Tensor if given is tensors or kind == "pt" else np.ndarray)
                   for values in padded.values())  # fmt: skip
        assert {name: values.tolist() for name, values in padded.items()} == dict(batch)
    again = tokenizer.pad(
        tokenizer(texts, pairs, padding=True, return_tensors="pt"), padding="max_length", max_length=9
    )
    assert again["input_ids"].shape == (3, 9, 50) and again["attention_mask"].sum() == 8


def test_one_example_is_padded_as_one(tokenizer):
    padded = tokenizer.pad(tokenizer("the film"), padding="max_length", max_length=3, return_tensors="pt")
    assert padded["input_ids"].shape == (3, 50) and padded["attention_mask"].tolist() == [1, 1, 0]
    assert tokenizer.pad({"input_ids": []}, padding="max_length", max_length=2)["input_ids"] == [[0] * 50] * 2
    assert tokenizer.pad({"input_ids": [[]]}, padding="max_length", max_length=2)["attention_mask"] == [[0, 0]]


def test_lengths_count_words_and_padding(tokenizer):
    assert tokenizer(["a b c", "d"], return_length=True)["length"] == [3, 1]
    assert tokenizer(["a b c", "d"], padding=True, return_length=True, return_tensors="pt")["length"].tolist() == [
        3,
        3,
    ]
    assert tokenizer("a b", return_length=True)["length"] == 2


def test_what_belongs_to_no_word_is_passed_on(tokenizer):
    padded = tokenizer.pad([{**tokenizer("a b"), "labels": 1}, {**tokenizer("c"), "labels": 0}], return_tensors="pt")
    assert padded["labels"].tolist() == [1, 0]


def test_tensors_of_unequal_sentences_need_padding(tokenizer):
    with pytest.raises(ValueError, match="set padding=True"):
        tokenizer(["a b", "c"], return_tensors="pt")
    with pytest.raises(ValueError, match="padding_side='middle'"):
        tokenizer(["a b", "c"], padding=True, padding_side="middle")


def test_features_of_another_tokenizer_are_refused(tokenizer):
    with pytest.raises(ValueError, match=r"input_ids of an example has the shape \(2,\), not \('words', 50\)"):
        tokenizer.pad([{"input_ids": [7, 8]}, {"input_ids": [9]}])
    with pytest.raises(ValueError, match=r"pad needs examples with input_ids, but was given \['ids'\]"):
        tokenizer.pad([{"ids": [7, 8]}])


# Truncation


def words_left(first: int, second: int, limit: int) -> tuple[int, int]:
    """One word after the other, from the longer sentence, of equal ones from the second."""
    while first + second > limit:
        first, second = (first - 1, second) if first > second else (first, second - 1)
    return first, second


@pytest.mark.parametrize("side", ["left", "right"])
def test_longest_first_takes_word_by_word_from_the_longer_sentence(side, tokenizer):
    tokenizer.truncation_side = side
    names = [[f"{letter}{number}" for number in range(6)] for letter in "ab"]
    for first, second, limit in itertools.product(range(6), range(6), range(8)):
        given = names[0][:first], names[1][:second]
        kept = words_left(first, second, limit)
        cut = [words[:n] if side == "right" else words[len(words) - n :] for words, n in zip(given, kept, strict=True)]
        encoding = tokenizer(*given, is_split_into_words=True, truncation=True, max_length=limit)
        assert encoding.tokens() == [*cut[0], *cut[1]]
        assert encoding["token_type_ids"] == [0] * kept[0] + [1] * kept[1]


def test_only_one_sentence_is_cut_where_that_is_asked_for(tokenizer):
    pair = "a b c d", "x y z"
    assert tokenizer(*pair, truncation="only_first", max_length=5).tokens() == list("abxyz")
    assert tokenizer(*pair, truncation="only_second", max_length=5).tokens() == list("abcdx")
    assert tokenizer("a b c", truncation=True, max_length=2).tokens() == ["a", "b"]
    with pytest.raises(ValueError, match="max_length=-1: an example has 0 words or more"):
        tokenizer("a b c", truncation=True, max_length=-1)
    for strategy, texts in (("only_second", pair), ("only_second", pair[:1]), ("only_first", ("a", "x y z w"))):
        with pytest.raises(ValueError, match=f"truncation='{strategy}' cannot bring .* words down to max_length=3"):
            tokenizer(*texts, truncation=strategy, max_length=3)


def test_nothing_overflows(tokenizer):
    with pytest.raises(ValueError, match="ELMo reads text of any length"):
        tokenizer("a b c", truncation=True, max_length=2, return_overflowing_tokens=True)
    assert len(tokenizer("a " * 3000, truncation=True)["input_ids"]) == 3000


# Vocabularies


def test_words_have_their_rows_of_the_vectors_also_in_lower_case(vocabularies):
    tokenizer = ElmoTokenizer(**vocabularies)
    assert tokenizer.word_vector_ids(["the", "The", "Film", "FILM", "film", "x", "non\xa0breaking"]) == [
        2, 2, 3, 4, 4, 1, 5,
    ]  # fmt: skip
    batch = tokenizer(["The film", "x"], ["it", "the"], padding=True, return_tensors="pt")
    assert batch["vector_ids"].tolist() == [[2, 4, 1], [1, 2, 0]]
    assert set(tokenizer.model_input_names) == set(batch)


def test_the_language_model_s_targets_are_the_released_lines(vocabularies):
    tokenizer = ElmoTokenizer(vocab_file=vocabularies["vocab_file"])
    assert tokenizer.word_targets(["the", "Film", "film", "</S>"]) == [3, 4, 2, 1]
    assert "vector_ids" not in tokenizer("the film")


def test_the_numbers_that_the_model_predicts_itself_are_those_of_its_marks_in_any_vocabulary(tmp_path):
    (tmp_path / "lm.txt").write_text("the\n</S>\n<UNK>\na\n<S>\n")
    tokenizer = ElmoTokenizer(vocab_file=str(tmp_path / "lm.txt"))
    assert tokenizer.word_targets(["<S>", "</S>", "<UNK>", "the", "a"]) == [0, 1, 2, 3, 4]


def test_both_vocabularies_are_saved_and_loaded(vocabularies, tmp_path):
    folder = tmp_path / "saved"
    ElmoTokenizer(**vocabularies).save_pretrained(folder)
    for _ in range(2):  # what was loaded is saved again
        tokenizer = AutoTokenizer.from_pretrained(folder)
        assert type(tokenizer) is ElmoTokenizer
        assert tokenizer.word_targets(["Film", "x"]) == [4, 2]
        assert tokenizer.word_vector_ids(["FILM", "non\xa0breaking"]) == [4, 5]
        folder = tmp_path / "again"
        tokenizer.save_pretrained(folder)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("vocab_file", "<S>\nthe\n", "has no line </S>, <UNK>"),
        ("vocab_file", "<S>\n</S>\n<UNK>\nthe\n the\n", "'the' more than once, again in line 5"),
        ("vocab_file", "!!!MAXTERMID\n<S>\n</S>\n<UNK>\na\na\n!!!MAXTERMID", "'a' more than once, again in line 6"),
        ("words_file", "the\nfilm\nthe\n", "'the' more than once, again in line 3"),
        ("words_file", b"\xff\xfe", "is not UTF-8"),
        ("words_file", "the\rfilm\r", "no line of it ends with a line feed"),
        ("vocab_file", "<S>\r</S>\r<UNK>\rthe", "no line of it ends with a line feed"),
    ],
)
def test_a_broken_vocabulary_is_one_clear_error(name, content, message, tmp_path):
    path = tmp_path / "broken.txt"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError, match=f"broken.txt:? .*{message}"):
        ElmoTokenizer(**{name: str(path)})


def test_without_a_vocabulary_its_numbers_are_refused(tokenizer):
    with pytest.raises(ValueError, match="no vocab.txt"):
        tokenizer.word_targets(["the"])
    with pytest.raises(ValueError, match="no words.txt"):
        tokenizer.word_vector_ids(["the"])


# At home in transformers and datasets


def test_a_run_loads_it_from_a_folder_without_any_vocabulary(tokenizer, tmp_path, run):
    tokenizer.save_pretrained(tmp_path / "elmo")
    loaded = load_tokenizer(run(tokenizer_name=str(tmp_path / "elmo")))
    assert type(loaded) is ElmoTokenizer and dict(loaded("Zoë")) == dict(tokenizer("Zoë"))


@pytest.mark.slow
def test_its_folder_loads_where_this_package_is_not_installed(vocabularies, tmp_path):
    folder = tmp_path / "saved"
    ElmoTokenizer(**vocabularies, max_characters_per_token=9).save_pretrained(folder)
    stranger = (
        "from transformers import AutoTokenizer\n"
        f"tokenizer = AutoTokenizer.from_pretrained({str(folder)!r}, trust_remote_code=True)\n"
        "print(tokenizer('The film')['vector_ids'], tokenizer.word_targets(['the']), tokenizer('é')['input_ids'])\n"
    )
    done = run_stranger(stranger, home=tmp_path / "stranger", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[0] == f"[2, 4] [3] {[released_row('é', 9)]}"


def test_the_collators_take_its_examples(tokenizer):
    examples = [{**tokenizer("the film"), "labels": [1, 2]}, {**tokenizer("a"), "labels": [3]}]
    batch = DataCollatorForTokenClassification(tokenizer)(examples)
    assert batch["input_ids"].shape == (2, 2, 50) and batch["labels"].tolist() == [[1, 2], [3, -100]]

    classes = [{**tokenizer("the film", "it"), "label": 1}, {**tokenizer("a"), "label": 0}]
    batch = DataCollatorWithPadding(tokenizer, pad_to_multiple_of=4)(classes)
    assert batch["input_ids"].shape == (2, 4, 50) and batch["labels"].tolist() == [1, 0]
    assert batch["token_type_ids"].tolist() == [[0, 0, 1, 0], [0, 0, 0, 0]]

    choices = [{**tokenizer(["the film", "a"], ["was good", "b"]), "labels": 1}]
    batch = DataCollatorForMultipleChoice(tokenizer)(choices)
    assert batch["attention_mask"].tolist() == [[[1, 1, 1, 1], [1, 1, 0, 0]]]
    assert batch["input_ids"].view(1, 2, 4, 50)[0, 1, 1].tolist() == released_row("b")


def test_a_data_set_stores_its_ids_in_four_bytes_and_gives_them_back(tokenizer):
    texts = ["the film", "", "Zoë's"]
    rows = Dataset.from_dict({"text": texts}).map(
        lambda batch: tokenizer(batch["text"]), batched=True, remove_columns="text", keep_in_memory=True
    )
    assert rows.features["input_ids"].feature.feature.dtype == "int32"
    assert [dict(row) for row in rows] == [dict(tokenizer(text)) for text in texts]
