"""Windows against a loop over questions and over what the tokenizer itself makes of each pair of texts."""

import os
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from datasets import Dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import BertTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from elmo_gpt_bert.tasks.squad import features as module
from elmo_gpt_bert.tasks.squad.data import read_folder
from elmo_gpt_bert.tasks.squad.features import Windows, make_windows
from modeling import ElmoTokenizer, ZooGPTTokenizer
from tests.conftest import ROOT
from tests.support.glue_sample import WORDS, write_vocabulary
from tests.support.gpt_sample import write_gpt_tokenizer


def byte_pairs(texts: list[str], size: int = 400, prefix: bool = False, trim: bool = True) -> PreTrainedTokenizerFast:
    """A tokenizer like RoBERTa's, its byte pairs learned from `texts`: <s> question </s> </s> context </s>.

    With `prefix` a space comes before each text, without `trim` a token has the space before its word.
    """
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(prefix), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=size, special_tokens=special, initial_alphabet=alphabet)
    )
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), trim, prefix)
    names = {"cls_token": "<s>", "pad_token": "<pad>", "sep_token": "</s>", "bos_token": "<s>", "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)


def sentence_pieces(texts: list[str], pair: str, **options: object) -> PreTrainedTokenizerFast:
    """A tokenizer whose tokens have the space before their word; `pair` is what it makes of two texts."""
    special = {"<pad>": 0, "<unk>": 1, "[CLS]": 2, "[SEP]": 3}
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=99, special_tokens=[*special], unk_token="<unk>")
    tokenizer.train_from_iterator(texts, trainer)
    single = pair.partition("$B")[0].strip()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=single, pair=pair, special_tokens=[*special.items()]
    )
    names = {"unk_token": "<unk>", "pad_token": "<pad>", "sep_token": "[SEP]"}
    names |= {"cls_token": "[CLS]"} if "[CLS]" in pair else {}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names, **options)


def word_pieces(tmp_path: Path) -> BertTokenizer:
    return BertTokenizer(vocab=str(write_vocabulary(tmp_path)))


def small_gpt(tmp_path: Path, words: str) -> ZooGPTTokenizer:
    return ZooGPTTokenizer.from_pretrained(write_gpt_tokenizer(tmp_path, words=words), task_inputs=True)


SMALL = {
    "bert": word_pieces,
    "gpt": lambda tmp_path: small_gpt(tmp_path, "bert"),
    "gpt as released": lambda tmp_path: small_gpt(tmp_path, "released"),
    "byte pairs": lambda tmp_path: byte_pairs([" ".join(WORDS)]),
    "elmo": lambda tmp_path: ElmoTokenizer(),
}
FAST = [name for name in SMALL if name != "elmo"]


@pytest.fixture(params=SMALL)
def small(request, tmp_path) -> PreTrainedTokenizerBase:
    return SMALL[request.param](tmp_path)


@pytest.fixture(params=FAST)
def fast(request, tmp_path) -> PreTrainedTokenizerBase:
    return SMALL[request.param](tmp_path)


@pytest.fixture
def bert(tmp_path) -> BertTokenizer:
    return word_pieces(tmp_path)


def questions(*rows: tuple[str, ...]) -> Dataset:
    """Of (question, context) or (question, context, answer), the answer being the first such text, or None."""
    columns = {"id": [], "context": [], "question": [], "answers": []}
    for number, (question, context, *answer) in enumerate(rows):
        found = [text for text in answer if text is not None]
        columns["id"].append(f"q{number}")
        columns["context"].append(context)
        columns["question"].append(question)
        columns["answers"].append({"text": found, "answer_start": [context.index(text) for text in found]})
    return Dataset.from_dict(columns)


# The slow way


def slow_windows(
    examples: Dataset, tokenizer: PreTrainedTokenizerBase, max_length: int, stride: int
) -> Iterator[tuple[int, list[tuple[int, int] | None], dict[str, list]]]:
    """For each window its question, the characters of each of its tokens, None outside the context, and its row.

    Row and labels are those that transformers' own example of question answering is to make.
    """
    for number, example in enumerate(examples):
        encoded = tokenizer(
            example["question"].strip(),
            example["context"],
            truncation="only_second",
            max_length=max_length,
            stride=stride,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
            return_token_type_ids=True,
        )
        for window in range(len(encoded["input_ids"])):
            sides, offsets = encoded.sequence_ids(window), encoded["offset_mapping"][window]
            spans = [tuple(span) if side == 1 else None for side, span in zip(sides, offsets, strict=True)]
            row = {name: encoded[name][window] for name in ("input_ids", "token_type_ids", "attention_mask")}
            null = row["input_ids"].index(tokenizer.cls_token_id) if tokenizer.cls_token else 0
            row["start_positions"], row["end_positions"] = slow_answer(spans, null, example["answers"])
            yield number, spans, row


def slow_answer(spans: list[tuple[int, int] | None], null: int, answers: dict[str, list]) -> tuple[int, int]:
    """The columns of the answer's first and last token, or both `null`."""
    if not answers["text"]:
        return null, null
    begin = answers["answer_start"][0]
    end = begin + len(answers["text"][0])
    first = next(column for column, span in enumerate(spans) if span is not None)
    last = max(column for column, span in enumerate(spans) if span is not None)
    if spans[first][0] > begin or spans[last][1] < end:
        return null, null
    while first < len(spans) and spans[first] is not None and spans[first][0] <= begin:
        first += 1
    while spans[last] is not None and spans[last][1] >= end:
        last -= 1
    first, last = first - 1, last + 1
    while spans[first - 1] == spans[first]:  # which transformers leaves out: other tokens of one and the same letter
        first -= 1
    while spans[last + 1 : last + 2] == [spans[last]]:
        last += 1
    return first, last


def assert_the_same(windows: Windows, slow: list[tuple]) -> None:
    """`windows` have the slow one's rows, and know where their contexts stand in them."""
    numbers, spans, rows = zip(*slow, strict=True)
    assert windows.question.tolist() == list(numbers)
    for name in windows.features.column_names:
        assert windows.features[name][:] == [row[name] for row in rows], name
    for window, expected in enumerate(spans):
        column, tokens, first = (getattr(windows, name)[window] for name in ("column", "tokens", "first"))
        assert [place for place, span in enumerate(expected) if span] == [*range(column, column + tokens)]
        assert windows.spans[first : first + tokens].tolist() == [list(span) for span in expected if span]


@pytest.fixture(scope="module")
def squad() -> Dataset:
    """60 real questions about as many contexts: of 400 those with the most letters beyond ASCII, and 20 others."""
    folder = Path(os.environ.get("ZOO_DATA", ROOT.parent / "shared" / "data")) / "squad"
    if not (folder / "dev-v1.1.json").is_file():
        pytest.skip(f"no SQuAD at {folder}; set ZOO_DATA to the folder that holds squad/, vocab/, ...")
    data = read_folder(folder, ["validation"], False)["validation"].select(range(0, 10400, 26))
    foreign = [sum(not letter.isascii() for letter in context) for context in data["context"]]
    ranked = sorted(range(len(data)), key=foreign.__getitem__, reverse=True)
    return data.select(sorted([*ranked[:40], *ranked[-20:]]))


def published(data: Path, name: str) -> PreTrainedTokenizerBase:
    folder = data / "vocab"
    if name == "bert uncased":
        return BertTokenizer(vocab=str(folder / "bert-base-uncased-vocab.txt"))
    if name == "bert cased":
        return BertTokenizer(vocab=str(folder / "bert-base-cased-vocab.txt"), do_lower_case=False)
    files = [str(folder / f"openai-gpt_{file}") for file in ("encoder_bpe_40000.json", "vocab_40000.bpe")]
    return ZooGPTTokenizer(*files, words="released" if "released" in name else "bert", task_inputs=True)


@pytest.mark.slow
@pytest.mark.parametrize(("max_length", "stride"), [(64, 16), (384, 128)])
@pytest.mark.parametrize("name", ["bert uncased", "bert cased", "gpt", "gpt as released", "byte pairs"])
def test_windows_of_real_questions_are_those_of_a_loop_over_the_tokenizers_own(data, squad, name, max_length, stride):
    tokenizer = byte_pairs(squad["context"][:], 8000) if name == "byte pairs" else published(data, name)
    windows = make_windows(squad, tokenizer, max_length, stride, train=True)
    assert len(squad) == 60 and len(windows.question) > (240 if max_length == 64 else 60)
    assert_the_same(windows, list(slow_windows(squad, tokenizer, max_length, stride)))


SENTENCE = "The Film is good , but the plot of it is not very good . Is the cast dull ?"
BY_HAND = [
    ("is it good ?", SENTENCE, "good"),
    ("  is it good ?\n", SENTENCE, "The"),  # at the very begin
    ("dull ?", SENTENCE, "?"),  # at the very end
    ("what is all ?", SENTENCE, SENTENCE),  # in no single window
    ("what of it ?", SENTENCE, "Fil"),  # inside a token, or a part of several
    ("what of it ?", SENTENCE, "ast du"),
    ("none ?", SENTENCE, None),
    ("is it ?", "good", "good"),
    ("is it ?", "  good\t\n not  ", "not"),
    ("[SEP] ?", "the [SEP] film [CLS] is", "film"),  # names of special tokens
]


@pytest.mark.parametrize(("max_length", "stride"), [(100, 3), (32, 5), (32, 0), (32, 6)])
def test_windows_of_texts_by_hand_are_those_of_a_loop(fast, max_length, stride):
    rows = [row for row in BY_HAND if fast.cls_token != "[CLS]" or "[CLS]" not in row[1]]  # the loop would not know
    examples = questions(*rows)
    windows = make_windows(examples, fast, max_length, stride, train=True)
    assert_the_same(windows, list(slow_windows(examples, fast, max_length, stride)))


TYPED = {"model_input_names": ["input_ids", "token_type_ids", "attention_mask"]}
UNLIKE = {
    "a space before each text": lambda texts: byte_pairs(texts, 280, prefix=True, trim=False),
    "spaces in tokens": lambda texts: byte_pairs(texts, 280, trim=False),
    "like ALBERT": lambda texts: sentence_pieces(texts, "[CLS] $A [SEP] $B:1 [SEP]:1", **TYPED),
    "like XLNet": lambda texts: sentence_pieces(texts, "$A [SEP] $B:1 [SEP]:1 [CLS]:2", padding_side="left", **TYPED),
    "like T5": lambda texts: sentence_pieces(texts, "$A [SEP] $B [SEP]", truncation_side="left"),
    "two separators": lambda texts: sentence_pieces(texts, "[CLS] $A [SEP] [SEP] $B [SEP]"),
    "nothing of its own": lambda texts: sentence_pieces(texts, "$A $B:1", **TYPED),
}


@pytest.mark.parametrize("name", UNLIKE)
def test_windows_of_any_tokenizer_are_those_of_a_loop(name, monkeypatch):
    monkeypatch.setattr(module, "ROWS", 2)
    monkeypatch.setattr(module, "TEXTS", 3)
    tokenizer = UNLIKE[name]([" ".join(WORDS), SENTENCE])
    examples = questions(*[row for row in BY_HAND if "[CLS]" not in row[1]])
    windows = make_windows(examples, tokenizer, 32, 5, train=True)
    assert set(windows.features.column_names) == {*tokenizer.model_input_names, "start_positions", "end_positions"}
    assert len(windows.question) > len(examples)
    tokenizer.truncation_side = "right"
    assert_the_same(windows, list(slow_windows(examples, tokenizer, 32, 5)))


def test_the_token_of_no_answer_is_the_tokenizers_own_and_none_of_the_texts(fast):
    (row,) = (windows := make_windows(questions((fast.cls_token, f"good {fast.cls_token}")), fast, 90, 3)).features
    assert row["input_ids"].count(fast.cls_token_id) == 3
    assert windows.null[0] in (0, len(row["input_ids"]) - 1) and row["input_ids"][windows.null[0]] == fast.cls_token_id


def test_elmo_reads_the_words_of_the_question_and_then_those_of_the_context(tmp_path):
    (tmp_path / "words.txt").write_text("\n".join(WORDS), encoding="utf-8")
    tokenizer = ElmoTokenizer(words_file=str(tmp_path / "words.txt"))
    windows = make_windows(questions(*BY_HAND), tokenizer, 12, 3, train=True)
    window = 0
    for number, (question, context, answer) in enumerate(BY_HAND):
        asked, words = tokenizer.tokenize(question), tokenizer.tokenize(context)
        spans = windows.spans[windows.first[window] :][: len(words)].tolist()
        assert [context[begin:end] for begin, end in spans] == words
        start = context.index(answer or "")
        end = start + len(answer or "")
        answered = [place for place, (a, b) in enumerate(spans) if a < end and b > start]
        for begin in range(0, max(len(words) - 3, 1), 12 - len(asked) - 3):
            part = words[begin : begin + 12 - len(asked)]
            row = dict(tokenizer(asked, part, is_split_into_words=True))
            held = answered and begin <= answered[0] and answered[-1] < begin + len(part)
            first, last = (len(asked) + answered[place] - begin if held else 0 for place in (0, -1))
            row |= {"start_positions": first, "end_positions": last}
            assert windows.features[window] == row and "vector_ids" in row
            assert (windows.question[window], windows.null[window]) == (number, 0)
            assert (windows.column[window], windows.tokens[window]) == (len(asked), len(part))
            window += 1
    assert window == len(windows.question)


# Answers


def answer_text(windows: Windows, window: int, context: str) -> str | None:
    """What the window is trained on, cut from the original text; None for "no answer"."""
    row = windows.features[window]
    if row["start_positions"] == windows.null[window]:
        assert row["end_positions"] == windows.null[window]
        return None
    first = windows.first[window] - windows.column[window]
    begin, end = windows.spans[first + row["start_positions"], 0], windows.spans[first + row["end_positions"], 1]
    return context[begin:end]


def test_an_answer_is_in_every_window_that_holds_all_of_it_and_nowhere_else(small):
    context = " ".join(f"the {number} film is good ." for number in range(9))
    examples = questions(("is it ?", context, "5 film"), ("is it ?", context, "film is good . the 1 film"))
    windows = make_windows(examples, small, 24, 9, train=True)
    for window, number in enumerate(windows.question):
        (answer,), (begin,) = examples[int(number)]["answers"].values()
        spans = windows.spans[windows.first[window] :][: windows.tokens[window]]
        whole = spans[0, 0] <= begin and begin + len(answer) <= spans[-1, 1]
        assert answer_text(windows, window, context) == (answer if whole else None)
    held = [answer_text(windows, window, context) for window in range(len(windows.question))]
    assert "5 film" in held and None in held


UNICODE = {
    "combining marks": ("un cafe\u0301 noir et the\u0301 vert", "cafe\u0301"),
    "an emoji of several characters": ("what 👩\u200d👩\u200d👧 said 👍🏽 !", "👩\u200d👩\u200d👧"),
    "right to left": ("אני אומר שָׁלוֹם עולם", "שָׁלוֹם"),
    "characters that tokenizers drop": ("a\u200b so\u00adft \ufeff good \u0007 end", "so\u00adft"),
    "characters that become several": ("ﬁne ½ Ⅳ İstanbul ß", "İstanbul"),
    "characters beyond the first plane": ("𝔘𝔫𝔦 𝔠𝔬𝔡𝔢 good", "𝔠𝔬𝔡𝔢"),
    "no spaces": ("日本語のテスト", "日本語"),
    "line ends of all kinds": ("the\r\nfilm\u2028is\u0085good", "film"),
}


@pytest.mark.parametrize("case", UNICODE)
def test_the_tokens_of_an_answer_lead_back_to_its_own_characters(small, case):
    context, answer = UNICODE[case]
    windows = make_windows(questions(("what ?", context, answer)), small, 90, 10, train=True)
    found = answer_text(windows, 0, context)
    assert found.rstrip("\u0301") == answer.rstrip("\u0301") or answer in found  # a token may hold a neighbour too
    assert (np.diff(windows.spans, axis=0) >= 0).all()


def test_the_characters_of_one_letter_may_be_several_tokens(tmp_path):
    tokenizer = SMALL["byte pairs"](tmp_path)
    windows = make_windows(questions(("is it ?", "good 👍 film", "👍")), tokenizer, 60, 10, train=True)
    row = windows.features[0]
    assert row["end_positions"] - row["start_positions"] == 3  # four bytes
    assert answer_text(windows, 0, "good 👍 film") == "👍"


def test_an_answer_of_which_no_character_is_in_a_token_is_no_answer(bert):
    examples = questions(("is it ?", "the \u200b film", "\u200b"), ("is it ?", "the \u200b film", "film"))
    windows = make_windows(examples, bert, 24, 3, train=True)
    assert [answer_text(windows, window, "the \u200b film") for window in (0, 1)] == [None, "film"]


# Room


def test_a_long_question_gives_way_to_the_context(fast):
    long = "is the film not good . " * 30
    windows = make_windows(questions((long, SENTENCE), ("is it ?", SENTENCE)), fast, 48, 9, max_query_length=7)
    for window, number in enumerate(windows.question):
        row, column = windows.features["input_ids"][window], windows.column[window]
        asked = fast(long if number == 0 else "is it ?", add_special_tokens=False)["input_ids"][:7]
        assert len(row) <= 48 and row[1 : 1 + len(asked)] == asked
        assert (
            row[column : column + windows.tokens[window]]
            == [*fast(SENTENCE, add_special_tokens=False)["input_ids"]][windows.first[window] :][
                : windows.tokens[window]
            ]
        )
    read = {int(window): windows.tokens[windows.question == window].sum() for window in (0, 1)}
    total = len(fast(SENTENCE, add_special_tokens=False)["input_ids"])
    assert all(tokens >= total for tokens in read.values())


def test_a_window_moves_on_by_one_token_at_least(bert):
    context = "the film is good . " * 5
    windows = make_windows(questions(("is it ?", context)), bert, 12, 5)  # [CLS] is it ? [SEP] 6 tokens [SEP]
    assert windows.first.tolist() == [*range(20)] and set(windows.tokens) == {6}
    with pytest.raises(ValueError) as error:
        make_windows(questions(("good", "film"), ("is it ?", context)), bert, 12, 6)
    assert str(error.value) == (
        "question q1 ('is it ?') leaves no more than --doc_stride 6 tokens of --max_seq_length for its context, so "
        "that windows would not move on: give a lower --doc_stride or --max_query_length, or a higher --max_seq_length"
    )


LOST = "\u200b\u200d"  # BERT reads nothing of it


@pytest.mark.parametrize("rows", [[("is it ?", LOST)], [("is it ?", "good"), ("is it ?", LOST)]])
def test_a_context_without_tokens_is_one_clear_error(bert, rows):
    with pytest.raises(ValueError, match=r"question q\d \('is it \?'\) has a context without a token"):
        make_windows(questions(*rows), bert)


@pytest.mark.parametrize("others", [[], [("is it ?", "not good")]])
def test_a_question_without_tokens_is_asked_where_the_tokenizer_adds_its_own(bert, others):
    windows = make_windows(questions((LOST, "the film", "film"), *others), bert, train="film" in others)
    assert bert.decode(windows.features[0]["input_ids"]) == "[CLS] [SEP] the film [SEP]"


@pytest.mark.parametrize("others", [[], [("is it ?", "not good")]])
def test_a_question_without_words_is_one_clear_error_where_the_tokenizer_adds_nothing(others):
    with pytest.raises(ValueError, match=r"question q0 \(' '\) has no token for this tokenizer, which adds no"):
        make_windows(questions((" ", "the film"), *others), ElmoTokenizer())


def test_a_tokenizer_that_does_not_tell_where_its_tokens_stand_is_refused(monkeypatch, bert):
    call = BertTokenizer._encode_plus
    monkeypatch.setattr(
        BertTokenizer,
        "_encode_plus",
        lambda self, *args, **options: call(self, *args, **options | {"return_offsets_mapping": False}),
    )
    with pytest.raises(
        ValueError, match="BertTokenizer does not return the offsets of its tokens: choose a fast token"
    ):
        make_windows(questions(("is it ?", "good")), bert)


def test_a_tokenizer_that_puts_the_second_text_first_is_refused(bert):
    pair = processors.TemplateProcessing(single="$A", pair="$B:1 $A:0", special_tokens=[])
    bert.backend_tokenizer.post_processor = pair
    with pytest.raises(ValueError, match="BertTokenizer does not put a pair's first text before its second"):
        make_windows(questions(("is it ?", "good")), bert)


def test_a_long_context_is_tokenised_once(bert, monkeypatch):
    read, call = [], BertTokenizer._encode_plus
    monkeypatch.setattr(BertTokenizer, "_encode_plus", lambda self, **given: read.append(given) or call(self, **given))
    make_windows(questions((LOST, "good film " * 99), ("is it ?", "good film " * 99)), bert)
    assert str(read).count("good film " * 99) == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert", "elmo"])
def test_a_context_of_a_megabyte_is_read_to_its_end(tmp_path, name):
    context = f"good {'bad' * 12} film " * 24_000 + "very dull"
    started = time.process_time()
    windows = make_windows(questions(("is it ?", context, "very dull")), SMALL[name](tmp_path), train=True)
    assert time.process_time() - started < 30
    assert len(context) > 2**20 and len(windows.question) > 280
    assert answer_text(windows, len(windows.question) - 1, context) == "very dull"


def test_windows_take_little_more_memory_than_they_have(tmp_path, monkeypatch):
    """ELMo's words have 50 numbers each, 13 million words in SQuAD's windows."""
    monkeypatch.setattr(module, "ROWS", 100)
    examples = questions(*[("is it ?", "good film " * 75)] * 1000)
    tracemalloc.start()
    try:
        windows = make_windows(examples, ElmoTokenizer(), train=True)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert 1.5e7 < windows.features.data.nbytes < peak < 1.6 * windows.features.data.nbytes


def test_the_first_windows_are_windows(small):
    windows = make_windows(questions(*BY_HAND), small, 32, 5, train=True)
    few = windows.head(4)
    assert few.features.to_list() == windows.features.to_list()[:4] and len(few.question) == 4
    assert [answer_text(few, window, SENTENCE) for window in range(4)] == [
        answer_text(windows, window, SENTENCE) for window in range(4)
    ]
