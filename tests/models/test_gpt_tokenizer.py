"""GPT's tokenizer: transformers' ids, the release's words and byte pairs, and the inputs of the paper's tasks."""

import copy
import functools
import itertools
import json
import pickle
import random
import string
from pathlib import Path

import pytest
from datasets import Dataset
from transformers import AutoTokenizer, DataCollatorWithPadding, OpenAIGPTTokenizer, PreTrainedTokenizerFast

import modeling
from modeling.gpt.tokenization_gpt import ZooGPTTokenizer
from tests.support.strangers import run_stranger


MERGES = [("t", "h"), ("th", "e</w>"), ("i", "n</w>"), ("a", "n"), ("i", "n"), ("an", "d</w>"), ("h", "e</w>")]
# What transformers splits and the release splits otherwise; accents, scripts, control characters, marks.
PIECES = ["don't", "I'm", "cannot", "it's", "U.S.", "a.m.", "e.g.", "Mr", "Hello", "www.", "Ph.D.", "12", "5", "km"]
PIECES += ["''", "--", "...", "..", "&amp;", "°C", ":D", "<3", "<unk>", "</w>", "_start_", "e\u0301", "\r\n"]
PIECES += ["👩‍👧", "日本", "עברית", *" \n\t\x00\x7f\u00a0\u2028\ufeff\u00ad\u202e\ufe0f", *"Bm“”’—…´ﬁéİßΣ²😀"]
PIECES += string.punctuation

# Words as spaCy 2.0.13's rules give them, after ftfy 6.3.1 and the release's text_standardize, a space between two.
RELEASED = [
    ("Don't say it's over; she cannot and won't.", "do n't say it 's over ; she can not and wo n't ."),
    ("They're gonna tell us, I'd've thought.", "they 're gon na tell us , i 'd 've thought ."),
    ("Mr. Blum, Dr. Ito and Mrs. Oak live in the U.S.", "mr. blum , dr. ito and mrs. oak live in the u.s."),
    ("We met at 7 p.m. on Jan. 3, i.e. late in May.", "we met at 7 p.m. on jan. 3 , i.e. late in may."),
    ("It opens at 9am and costs $12.50 (or £9).", "it opens at 9 am and costs $ 12.50 ( or £ 9 ) ."),
    ("He ran 5km, weighed 70kg and lost 12% of it.", "he ran 5 km , weighed 70 kg and lost 12 % of it ."),
    ("A state-of-the-art idea - or was it?", "a state - of - the - art idea - or was it ?"),
    ('"Stop!" he cried... "No—never…"', '" stop ! " he cried ... " no - never ... "'),
    ("‘Tis the boss’s hat’s brim, isn’t it?", "' tis the boss 's hat 's brim , is n't it ?"),
    ("The dogs' bowls and James's cup.", "the dogs ' bowls and james 's cup ."),
    ("goin' nowhere, 'cause I told 'em so, y'all", "goin' nowhere , 'cause i told 'em so , y' all"),
    ("See www.example.org or ann@example.org today.", "see www.example.org or ann@example.org today ."),
    ("well done :D and thanks <3 #winning @home", "well done :d and thanks <3 # winning @home"),
    ("He said ``fine'' and '' left.", "he said `` fine '' and '' left ."),
    ("end.Start of a typo;and:another", "end . start of a typo ; and : another"),
    ("One line.\n\nNext line.\tTab\n", "one line . \n next line . tab"),
    ("either/or; 3*4=12, 2^8, C++ & R&D", "either / or ; 3 * 4=12 , 2 ^ 8 , c + + & r&d"),
    ("A. B. Smith came in 1999. Ask I. again.", "a. b. smith came in 1999 . ask i. again ."),
    (
        "He can’t’ve known the café’s ﬁnal naïve bill &amp; tip",
        "he ca n't 've known the café 's final naïve bill & tip",
    ),
    ("DON'T SHOUT, IT'S RUDE", "don't shout , it 's rude"),
    ("Wow!!! Really??? ---- ok ... ~~ [sic] {x}", "wow ! ! ! really ? ? ? ---- ok ... ~~ [ sic ] { x }"),
    ("whos there? thats im, hes; theyll say id", "who s there ? that s i m , he s ; they ll say i d"),
    ("It was 30°C. 😀😀 hot", "it was 30 ° c . 😀 😀 hot"),
    ("c'mon, let's go; what's up with John'll?", "c'mon , let 's go ; what 's up with john'll ?"),
]


def slow_byte_pairs(word: str, ranks: dict[tuple[str, str], int]) -> list[str]:
    """The lowest rank first, at every place from the left, as long as there is one."""
    pieces = [*word[:-1], word[-1] + "</w>"]
    while True:
        known = [pair for pair in itertools.pairwise(pieces) if pair in ranks]
        if not known:
            return pieces
        first, second = min(known, key=ranks.get)
        merged = []
        for piece in pieces:
            if merged and (merged[-1], piece) == (first, second):
                merged[-1] = first + second
            else:
                merged.append(piece)
        pieces = merged


@functools.cache
def read_release(data: Path) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """The released vocabulary and merges, whose first line tells a version."""
    vocabulary = json.loads((data / "vocab" / "openai-gpt_encoder_bpe_40000.json").read_text(encoding="utf-8"))
    lines = (data / "vocab" / "openai-gpt_vocab_40000.bpe").read_text(encoding="utf-8").split("\n")[1:-1]
    return vocabulary, [tuple(line.split()) for line in lines]


def tiny_vocabulary() -> dict[str, int]:
    letters = string.ascii_lowercase + string.digits + string.punctuation + "éß°"
    pieces = ["<unk>", *letters, *(f"{letter}</w>" for letter in letters), *("".join(pair) for pair in MERGES)]
    return {piece: number for number, piece in enumerate([*pieces, "\n</w>"])}


def tiny(**changes) -> ZooGPTTokenizer:
    return ZooGPTTokenizer(vocab=tiny_vocabulary(), merges=MERGES, **changes)


def random_texts(count: int) -> list[str]:
    drawn = random.Random(0)
    return ["".join(drawn.choices(PIECES, k=drawn.randint(0, 9))) for _ in range(count)]


@pytest.fixture
def tokenizer() -> ZooGPTTokenizer:
    return tiny()


@pytest.fixture
def task() -> ZooGPTTokenizer:
    return tiny(task_inputs=True)


# Plain


def assert_same(ours, stock, texts):
    ask = {"return_offsets_mapping": True, "return_special_tokens_mask": True, "truncation": True, "max_length": 40}
    for text, other in zip(texts, reversed(texts), strict=True):
        for pair in ((text,), (text, other)):
            given, wanted = ours(*pair, **ask), stock(*pair, **ask)
            assert dict(given) == dict(wanted) and given.tokens() == wanted.tokens()
            assert given.word_ids() == wanted.word_ids() and given.sequence_ids() == wanted.sequence_ids()
            ids = given["input_ids"]
            assert ours.decode(ids, skip_special_tokens=True) == stock.decode(ids, skip_special_tokens=True)
            if not set(ids) & set(stock.all_special_ids):  # the stock decoder glues these to the next word
                assert ours.decode(ids) == stock.decode(ids)


def test_plain_is_transformers_own_tokenizer(tokenizer):
    assert_same(tokenizer, OpenAIGPTTokenizer(tiny_vocabulary(), MERGES), random_texts(500))


def test_plain_is_transformers_own_tokenizer_of_the_released_vocabulary(data):
    sentences = (data / "glue" / "SST-2" / "dev.tsv").read_text(encoding="utf-8").split("\n")[1:200]
    release = read_release(data)
    assert_same(ZooGPTTokenizer(*release), OpenAIGPTTokenizer(*release), [*sentences, *random_texts(300)])


def test_padding_is_the_unknown_token_which_the_mask_leaves_out(tokenizer):
    assert tokenizer.pad_token == "<unk>" and tokenizer.pad_token_id == 0
    batch = tokenizer(["a b c", "a"], padding=True)
    assert [ids.count(0) for ids in batch["input_ids"]] == [0, 2]
    assert batch["attention_mask"] == [[1, 1, 1], [1, 0, 0]] and "token_type_ids" not in batch


@pytest.mark.parametrize("layout", ["tokenizer.json", "vocab.json"])
def test_transformers_folders_load(layout, tmp_path):
    stock = OpenAIGPTTokenizer(tiny_vocabulary(), MERGES)
    if layout == "tokenizer.json":
        stock.save_pretrained(tmp_path)
        (tmp_path / "tokenizer_config.json").unlink()  # published folders name no class
    else:
        (tmp_path / "vocab.json").write_text(json.dumps(tiny_vocabulary()), encoding="utf-8")
        merges = "".join(f"{first} {second}\n" for first, second in MERGES)
        (tmp_path / "merges.txt").write_text(f"#version: 0.2\n{merges}", encoding="utf-8")
    (tmp_path / "config.json").write_text('{"model_type": "openai-gpt"}')
    modeling.register()
    for loaded in (ZooGPTTokenizer.from_pretrained(tmp_path), AutoTokenizer.from_pretrained(tmp_path)):
        assert type(loaded) is ZooGPTTokenizer
        assert_same(loaded, stock, random_texts(50))


def test_a_template_of_one_s_own_is_kept(tmp_path):
    stock = OpenAIGPTTokenizer(tiny_vocabulary(), MERGES, bos_token="<s>", add_bos_token=True)
    stock.save_pretrained(tmp_path)
    assert stock("a").tokens() == ["<s>", "a</w>"]
    assert_same(ZooGPTTokenizer.from_pretrained(tmp_path), stock, random_texts(20))


# Byte pairs


def test_byte_pairs_are_formed_lowest_rank_first(tokenizer):
    assert tokenizer.tokenize("the then inand") == ["the</w>", "th", "e", "n</w>", "in", "and</w>"]
    ranks = {pair: rank for rank, pair in enumerate(MERGES)}
    drawn = random.Random(0)
    for _ in range(500):
        word = "".join(drawn.choices("thaneid", k=drawn.randint(1, 12)))
        assert tokenizer.tokenize(word) == slow_byte_pairs(word, ranks)


def test_the_released_byte_pairs_are_formed_lowest_rank_first(data):
    vocabulary, merges = read_release(data)
    assert len(vocabulary) == 40478 and vocabulary["<unk>"] == 0
    tokenizer, ranks = ZooGPTTokenizer(vocabulary, merges), {pair: rank for rank, pair in enumerate(merges)}
    drawn = random.Random(0)
    text = (data / "glue" / "RTE" / "dev.tsv").read_text(encoding="utf-8").lower()
    words = sorted({word for word in text.split() if word.isascii() and word.isalpha()})[::3]
    words += [
        "".join(drawn.choices(string.ascii_lowercase + "eeaaiinntthh", k=drawn.randint(1, 20))) for _ in range(500)
    ]
    for word in words:
        pieces = slow_byte_pairs(word, ranks)
        encoding = tokenizer(word)
        assert encoding.tokens() == pieces and encoding["input_ids"] == [vocabulary[piece] for piece in pieces]


# Inputs of the tasks


def test_task_inputs_start_and_end_with_the_released_tokens(task):
    size = len(tiny_vocabulary())
    assert task.convert_tokens_to_ids(["_start_", "_delimiter_", "_classify_"]) == [size, size + 1, size + 2]
    assert task("the in").tokens() == ["_start_", "the</w>", "in</w>", "_classify_"]
    pair = task("the", "in and", return_special_tokens_mask=True)
    assert pair.tokens() == ["_start_", "the</w>", "_delimiter_", "in</w>", "and</w>", "_classify_"]
    assert pair["special_tokens_mask"] == [1, 0, 1, 0, 0, 1] and "token_type_ids" not in pair
    assert pair.sequence_ids() == [None, 0, None, 1, 1, None]
    assert task.num_special_tokens_to_add() == 2 and task.num_special_tokens_to_add(pair=True) == 3


def test_task_inputs_are_turned_on_and_off(tokenizer, task):
    plain = tokenizer("the", "in")["input_ids"]
    tokenizer.task_inputs = True
    assert tokenizer("the", "in") == task("the", "in") and len(tokenizer) == tokenizer.vocab_size + 3
    tokenizer.task_inputs = True
    assert len(tokenizer) == tokenizer.vocab_size + 3
    tokenizer.task_inputs = False
    assert tokenizer("the", "in")["input_ids"] == plain and len(tokenizer) == tokenizer.vocab_size + 3
    assert not tokenizer.task_inputs and tokenizer.num_special_tokens_to_add(pair=True) == 0


def test_no_special_tokens_are_added_when_they_are_not_wanted(task):
    assert task("the", "in", add_special_tokens=False).tokens() == ["the</w>", "in</w>"]


def test_the_mask_of_special_tokens_is_that_of_the_template(task, tokenizer):
    first, second = ([3, 4], [5])
    assert task.get_special_tokens_mask(first) == [1, 0, 0, 1]
    assert task.get_special_tokens_mask(first, second) == [1, 0, 0, 1, 0, 1]
    assert tokenizer.get_special_tokens_mask(first, second) == [0, 0, 0]
    ids = task("the", "in")["input_ids"]
    assert task.get_special_tokens_mask(ids, already_has_special_tokens=True) == [1, 0, 1, 0, 1]


def test_decoded_inputs_can_be_read_and_encoded_again(task):
    ids = task("The in", "and the.")["input_ids"]
    assert task.decode(ids) == "_start_ the in _delimiter_ and the . _classify_"
    assert task.decode(ids, skip_special_tokens=True) == "the in and the ."
    assert task(task.decode(ids), add_special_tokens=False)["input_ids"] == ids
    assert task.batch_decode([ids, ids[:2]], skip_special_tokens=True) == ["the in and the .", "the"]


def words_of(tokenizer: ZooGPTTokenizer, text: str) -> list[str]:
    """The words of a text without unknown characters, before byte pairs are formed."""
    library = tokenizer.backend_tokenizer
    return [word for word, _ in library.pre_tokenizer.pre_tokenize_str(library.normalizer.normalize_str(text))]


def assert_decodes_to_its_words(tokenizer: ZooGPTTokenizer, texts: list[str]) -> None:
    decoded = 0
    for text in texts:
        encoding = tokenizer(text, add_special_tokens=False)
        spelled = [
            piece.removesuffix("</w>") + " " * (piece.endswith("</w>") or piece == "<unk>")
            for piece in encoding.tokens()
        ]
        assert tokenizer.decode(encoding["input_ids"]) == "".join(spelled).removesuffix(" ")
        if not set(encoding["input_ids"]) & set(tokenizer.all_special_ids):
            assert tokenizer.decode(encoding["input_ids"]) == " ".join(words_of(tokenizer, text))
            decoded += 1
    assert decoded > len(texts) / 4


@pytest.mark.parametrize("words", ["bert", "released"])
@pytest.mark.parametrize("task_inputs", [False, True])
def test_decoded_text_has_its_words_with_one_space_between(words, task_inputs):
    texts = [text.replace("_start_", "") for text in random_texts(500)]
    assert_decodes_to_its_words(tiny(words=words, task_inputs=task_inputs), texts)


@pytest.mark.parametrize("words", ["bert", "released"])
def test_decoded_text_of_the_released_vocabulary_has_its_words_with_one_space_between(words, data):
    sentences = (data / "glue" / "SST-2" / "dev.tsv").read_text(encoding="utf-8").split("\n")[1:300]
    pairs = (data / "glue" / "RTE" / "dev.tsv").read_text(encoding="utf-8").split("\n")[1:200]
    assert_decodes_to_its_words(ZooGPTTokenizer(*read_release(data), words=words), [*sentences, *pairs])


@pytest.mark.parametrize("words", ["bert", "released"])
def test_unknown_special_and_added_tokens_are_words_of_their_own_when_decoded(words, tmp_path):
    tokenizer = tiny(words=words, task_inputs=True)
    tokenizer.add_tokens(["anan"])
    tokenizer.add_special_tokens({"mask_token": "<gap>"})
    tokenizer.task_inputs = False
    text = "the 日 anan and <gap> in <unk> _delimiter_ he"
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "openai-gpt"}')
    stock = PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"))
    for reader in (tokenizer, ZooGPTTokenizer.from_pretrained(tmp_path), stock):
        assert reader.decode(reader(text)["input_ids"]) == text.replace("日", "<unk>")
    assert tokenizer.decode(tokenizer(text)["input_ids"], skip_special_tokens=True) == "the anan and in he"


def test_a_token_is_added_once(tokenizer):
    before = len(tokenizer)
    assert [tokenizer.add_tokens(["<name>"]) for _ in range(2)] == [1, 0] and len(tokenizer) == before + 1


@pytest.mark.parametrize("words", ["bert", "released"])
def test_an_added_token_that_is_normalized_has_a_space_after_it_too(words):
    tokenizer = tiny(words=words)
    tokenizer.add_tokens(["An-An", "HEHE"])
    decoded = tokenizer.decode(tokenizer("the An-An HEHE in")["input_ids"])
    assert decoded == {"bert": "the an-an hehe in", "released": "the an - an hehe in"}[words]


# The end of a text


def test_the_end_of_task_inputs_is_the_paper_s_end_token_and_a_plain_tokenizer_has_none(tokenizer, task, tmp_path):
    assert tokenizer.eos_token is tokenizer.eos_token_id is None
    assert (task.eos_token, task.eos_token_id) == ("_classify_", task("the")["input_ids"][-1])
    task.task_inputs = False
    task.save_pretrained(tmp_path)
    assert ZooGPTTokenizer.from_pretrained(tmp_path).eos_token == "_classify_"
    assert tiny(task_inputs=True, eos_token="!</w>").eos_token == "!</w>"


@pytest.mark.parametrize("words", ["bert", "released"])
def test_the_line_break_may_end_texts_without_a_new_token(words, tokenizer, tmp_path):
    tiny(words=words).save_pretrained(tmp_path)
    ending = ZooGPTTokenizer.from_pretrained(tmp_path, eos_token="\n</w>")
    assert len(ending) == len(tokenizer) and ending.eos_token_id == tiny_vocabulary()["\n</w>"]
    plain = tiny(words=words)("the man, he")["input_ids"]
    ended = ending("the man, he" + ending.eos_token)["input_ids"]  # as for supervised fine-tuning
    assert ended == [*plain, ending.eos_token_id] and ending("the man, he")["input_ids"] == plain
    assert ending.decode(ending.eos_token_id) == "\n"  # what an evaluation harness stops at
    assert ending.decode(ended) == "the man , he \n"
    assert ending.decode(ended, skip_special_tokens=True) == "the man , he"
    batch = ending(["the man" + ending.eos_token, "he"], padding=True)
    assert batch["input_ids"][0][-1] != ending.pad_token_id  # padding is no end of text


def test_the_name_of_a_special_token_within_a_text_is_that_token_unless_text_is_asked_for(task, tokenizer):
    assert task("a _delimiter_ b").tokens() == ["_start_", "a</w>", "_delimiter_", "b</w>", "_classify_"]
    as_text = task("a _classify_", split_special_tokens=True)
    assert as_text.tokens() == ["_start_", "a</w>", "_</w>", *"classif", "y</w>", "_</w>", "_classify_"]
    assert as_text["input_ids"][1:-1] == tokenizer("a _classify_")["input_ids"]


def cut(first: int, second: int, room: int, strategy: str) -> tuple[int, int]:
    """How many tokens of each text are left."""
    while first + second > room:
        longest_is_first = first > second if strategy == "longest_first" else strategy == "only_first"
        first, second = (first - 1, second) if longest_is_first else (first, second - 1)
    return first, second


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("strategy", ["longest_first", "only_first", "only_second"])
def test_truncation_keeps_the_marks_of_a_pair(strategy, side, task):
    task.truncation_side = side
    letters = string.ascii_lowercase
    for first, second, limit in itertools.product((6, 8), (5, 7), (12, 13, 15)):
        texts = letters[:first], letters[10 : 10 + second]
        tokens = task(*(" ".join(text) for text in texts), truncation=strategy, max_length=limit).tokens()
        assert len(tokens) == min(limit, first + second + 3)
        middle = tokens.index("_delimiter_")
        assert tokens[0] == "_start_" and tokens[-1] == "_classify_"
        for text, kept in ((texts[0], tokens[1:middle]), (texts[1], tokens[middle + 1 : -1])):
            kept = "".join(kept).replace("</w>", "")
            assert text.endswith(kept) if side == "left" else text.startswith(kept)
        if strategy != "longest_first":
            assert (middle - 1, len(tokens) - middle - 2) == cut(first, second, limit - 3, strategy)


def test_what_overflows_comes_in_windows_with_all_marks(task):
    windows = task(
        "a b", "c d e f g", truncation="only_second", max_length=8, stride=1, return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )  # fmt: skip
    assert [task.decode(ids) for ids in windows["input_ids"]] == [
        "_start_ a b _delimiter_ c d e _classify_",
        "_start_ a b _delimiter_ e f g _classify_",
    ]
    assert windows["offset_mapping"][1][4:7] == [(4, 5), (6, 7), (8, 9)]


# Saved, copied, collated


@pytest.mark.parametrize("words", ["bert", "released"])
@pytest.mark.parametrize("task_inputs", [False, True])
def test_a_saved_tokenizer_is_the_same_again(words, task_inputs, tmp_path):
    tokenizer = tiny(words=words, task_inputs=task_inputs, padding_side="left", model_max_length=512)
    expected = [dict(tokenizer(text, "the é")) for text in random_texts(100)]
    tokenizer.save_pretrained(tmp_path / "saved")
    loaded = ZooGPTTokenizer.from_pretrained(tmp_path / "saved")
    loaded.save_pretrained(tmp_path / "again")
    copies = [loaded, ZooGPTTokenizer.from_pretrained(tmp_path / "again")]
    copies += [AutoTokenizer.from_pretrained(tmp_path / "again"), pickle.loads(pickle.dumps(loaded))]
    for other in [*copies, copy.deepcopy(tokenizer)]:
        assert type(other) is ZooGPTTokenizer
        assert (other.words, other.task_inputs, other.padding_side) == (words, task_inputs, "left")
        assert other.model_max_length == 512 and len(other) == len(tokenizer)
        assert [dict(other(text, "the é")) for text in random_texts(100)] == expected
    saved, again = ((tmp_path / name / "tokenizer.json").read_bytes() for name in ("saved", "again"))
    assert saved == again


def test_task_inputs_turned_on_or_off_later_are_saved(tokenizer, tmp_path):
    for value in (True, False):
        tokenizer.task_inputs = value
        tokenizer.save_pretrained(tmp_path)
        loaded = ZooGPTTokenizer.from_pretrained(tmp_path)
        assert loaded.task_inputs is value and loaded("a", "b") == tokenizer("a", "b")
        assert len(loaded) == len(tokenizer)


def test_what_a_folder_says_can_be_changed_when_it_is_loaded(tmp_path):
    tiny(task_inputs=True).save_pretrained(tmp_path)
    loaded = ZooGPTTokenizer.from_pretrained(tmp_path, task_inputs=False, words="released")
    assert loaded("don't", "a").tokens() == ["d", "o</w>", "n", "'", "t</w>", "a</w>"]


@pytest.mark.slow
def test_a_folder_loads_in_a_process_without_this_package(tmp_path):
    folder, text = tmp_path / "saved", "The man's “hat”\ndon't!"
    tokenizer = tiny(words="released", task_inputs=True)
    tokenizer.save_pretrained(folder)
    (folder / "config.json").write_text('{"model_type": "openai-gpt"}')
    stranger = (
        "from transformers import AutoTokenizer\n"
        f"folder, text = {str(folder)!r}, {text!r}\n"
        "print(AutoTokenizer.from_pretrained(folder)(text, 'in')['input_ids'])\n"
        "for _ in range(2):\n"
        "    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)\n"
        "    print(tokenizer(text, 'in')['input_ids'], type(tokenizer).__name__, tokenizer.words)\n"
        "    folder += '-again'; tokenizer.save_pretrained(folder)\n"
        "tokenizer.task_inputs = False\n"
        "print(tokenizer(text)['input_ids'])\n"
    )
    done = run_stranger(stranger, home=tmp_path / "stranger", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    ids, ours, again, plain = done.stdout.strip().split("\n")
    assert ids == str(tokenizer(text, "in")["input_ids"])
    assert ours == again == f"{ids} ZooGPTTokenizer released"
    assert plain == str(tokenizer(text)["input_ids"][1:-1])


@pytest.mark.parametrize("side", ["left", "right"])
def test_the_collator_pads_its_examples(side, task):
    task.padding_side = side
    batch = DataCollatorWithPadding(task)([task("a b", "c"), task("a")])
    end = task.cls_token_id
    assert batch["input_ids"][1].tolist() == ([0, 0, 0] if side == "left" else []) + task("a")["input_ids"] + (
        [0, 0, 0] if side == "right" else []
    )
    lasts = batch["attention_mask"].cumsum(1).argmax(1)  # of the last real token
    assert batch["input_ids"].gather(1, lasts[:, None]).flatten().tolist() == [end, end]


def test_a_data_set_is_mapped(task):
    rows = Dataset.from_dict({"text": ["the", "in and", ""]})
    rows = rows.map(lambda batch: task(batch["text"]), batched=True, remove_columns="text", keep_in_memory=True)
    assert [dict(row) for row in rows] == [dict(task(text)) for text in ("the", "in and", "")]


# Words


@pytest.mark.parametrize(("text", "words"), RELEASED)
def test_released_words_are_spacy_s(text, words):
    tokenizer = tiny(words="released")
    encoding = tokenizer(text)
    assert encoding.word_ids()[-1] + 1 == len(words.split(" "))
    spelled = tokenizer.backend_tokenizer.normalizer.normalize_str(text)
    assert [word for word, _ in tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str(spelled)] == words.split(
        " "
    )


def test_a_line_break_is_a_token_within_the_released_text_and_none_around_it():
    tokenizer = tiny(words="released")
    assert tokenizer("\n\na \r\n \u2028 b\n").tokens() == ["a</w>", "\n</w>", "b</w>"]
    assert tokenizer("\n \t").tokens() == tokenizer("").tokens() == []
    assert tokenizer.decode(tokenizer("a\nb")["input_ids"]) == "a \n b"


def test_released_words_keep_accents_which_bert_s_lose(tokenizer):
    assert tokenizer.tokenize("É") == ["e</w>"]
    assert tiny(words="released").tokenize("E\u0301 é") == ["é</w>", "é</w>"]


@pytest.mark.parametrize("words", ["bert", "released"])
def test_offsets_point_into_the_text_as_it_was(words):
    tokenizer = tiny(words=words)
    text = "I can't—won't say “it's” … &amp; the\n\nU.S. costs $5.50, Mr.Élan"
    encoding = tokenizer(text, return_offsets_mapping=True)
    spans = zip(encoding["offset_mapping"], encoding.tokens(), strict=True)
    found = [(text[begin:end].lower(), token.replace("</w>", "")) for (begin, end), token in spans]
    changed = {"—": "-", "“": '"', "”": '"', "’": "'", "…": "...", ";": "&", "\n\n": "\n"}
    changed["é"] = {"bert": "e", "released": "é"}[words]
    for given, piece in found:
        assert piece in (given, "<unk>") or changed.get(given, "")[: len(piece)] == piece
    assert found.count(("u", "u")) == 1 and ("$", "$") in found


def test_offsets_of_any_text_go_forward():
    tokenizer = tiny(words="released")
    for text in random_texts(3000):
        ends = [0]
        for begin, end in tokenizer(text, return_offsets_mapping=True)["offset_mapping"]:
            assert ends[-1] - 1 <= begin <= end <= len(text)  # one character may give two tokens
            ends.append(end)


@pytest.mark.parametrize("words", ["bert", "released"])
def test_given_words_fall_apart_further_but_know_their_number(words):
    encoding = tiny(words=words)(["can't", "", "a"], is_split_into_words=True)
    apart = {"bert": ["c", "a", "n</w>", "'</w>", "t</w>"], "released": ["c", "a</w>", "n", "'", "t</w>"]}
    assert encoding.tokens() == [*apart[words], "a</w>"]
    assert encoding.word_ids() == [0, 0, 0, 0, 0, 2]


def test_words_are_chosen_once():
    with pytest.raises(ValueError, match="words='spacy': text is split into words by one of 'bert', 'released'"):
        tiny(words="spacy")
    with pytest.raises(AttributeError):
        tiny().words = "released"


# What goes wrong


def test_a_vocabulary_needs_the_unknown_token():
    with pytest.raises(ValueError, match="the vocabulary lacks unk_token='<unk>'"):
        ZooGPTTokenizer({"a": 0, "a</w>": 1}, [])
    assert ZooGPTTokenizer({"[U]": 0, "a</w>": 1}, [], unk_token="[U]").pad_token == "[U]"


def test_two_tokens_with_one_id_are_refused_added_ones_too():
    with pytest.raises(ValueError, match="have the same id, 5: number the n tokens of the vocabulary from 0 to n - 1"):
        ZooGPTTokenizer(tiny_vocabulary() | {"twice": 5}, MERGES)
    with_a_hole = tiny_vocabulary()
    last = max(with_a_hole.values())
    del with_a_hole["°"]
    tokenizer = ZooGPTTokenizer(with_a_hole, MERGES)
    with pytest.raises(ValueError, match=f"have the same id, {last}: number the n tokens"):
        tokenizer.task_inputs = True
    with pytest.raises(ValueError, match=f"have the same id, {last}: number the n tokens"):
        ZooGPTTokenizer(with_a_hole, MERGES, eos_token="<end>")


@pytest.mark.parametrize("merge", [("t", "q?</w>"), ("q", "q")])
def test_merges_need_their_pieces_in_the_vocabulary(merge):
    with pytest.raises(ValueError, match="out of vocabulary: are vocab and merges of one tokenizer"):
        ZooGPTTokenizer(tiny_vocabulary(), [*MERGES, merge])


@pytest.mark.parametrize("text", ["a \ud83d b", ["a", "b\udc00"], [("a", "\ud83d")]])
def test_half_a_character_is_one_clear_error(text, tokenizer):
    with pytest.raises(ValueError, match="half a character, a lone surrogate"):
        tokenizer(text)


def test_what_is_no_text_stays_transformers_error(tokenizer):
    with pytest.raises(ValueError, match="text input must be of type `str`"):
        tokenizer(3)
    with pytest.raises(TypeError, match="TextEncodeInput must be"):
        tokenizer(["a", 3])


@pytest.mark.slow
@pytest.mark.parametrize("words", ["bert", "released"])
@pytest.mark.parametrize("text", ["a", "'", ".", " ", "\n", "a'", "5m", "!", "😀", "don't", "$", "`"])
def test_a_very_long_text_takes_no_longer_than_its_length(words, text):
    encoding = tiny(words=words)("a" + text * (100_000 // len(text)) + "b", return_offsets_mapping=True)
    begin, end = encoding["offset_mapping"][-1]
    assert encoding.tokens()[0].startswith("a") and begin < end == 100_000 // len(text) * len(text) + 2


@pytest.mark.parametrize("words", ["bert", "released"])
def test_characters_without_an_id_are_unknown_one_by_one(words):
    tokenizer = tiny(words=words)
    assert tokenizer("שלום")["input_ids"] == [0] * 4
    assert tokenizer("a 👩‍👧 b").tokens()[0] == "a</w>" and tokenizer("a 👩‍👧 b").tokens()[-1] == "b</w>"
