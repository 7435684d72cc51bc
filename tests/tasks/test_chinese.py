"""Chinese text: split as Google's code splits it, with the real vocabularies, and classified from a csv file."""

import csv
import json
import unicodedata
from functools import cache
from pathlib import Path

import pytest

import run_glue
from tests.conftest import ROOT
from tests.support.tiny_run import load_tokenizer


# The rules of google-research/bert's tokenization.py: the blocks whose every character is a word, ...
CJK = (
    range(0x4E00, 0xA000),  # unified ideographs
    range(0x3400, 0x4DC0),  # extension A
    range(0x20000, 0x2A6E0),  # B
    range(0x2A700, 0x2B740),  # C
    range(0x2B740, 0x2B820),  # D
    range(0x2B820, 0x2CEB0),  # E
    range(0xF900, 0xFB00),  # compatibility
    range(0x2F800, 0x2FA20),  # compatibility, supplement
)
# ... but the tokenizers library lets extension E begin at U+2B920. No vocabulary has a piece with what is between.
NOT_SPLIT = range(0x2B820, 0x2B920)
# A longer word is unknown: 100 characters in transformers, 200 in Google's code.
LONGEST = 100

# name -> is text lower-cased? As Google's validate_case_matches_checkpoint says of the releases.
LOWER_CASED = {"chinese": True, "uncased": True, "cased": False}
TEXTS = {
    "simplified": "这家酒店的房间很干净，服务员也非常热情。下次还会再来！",
    "traditional": "這間飯店的房間很乾淨，服務員也非常熱情。「下次還會再來！」",
    "mixed": "BERT-Base模型有12层、768维，于2018年10月发布（arXiv:1810.04805），准确率94.7%。",
    "no spaces around Latin": "我用iPhone拍照然后upload到GitHub上",
    "full-width forms": "ＢＥＲＴ　ａｂｃ１２３％！？～",
    "punctuation": "《红楼梦》——第三回……“林黛玉”、‘贾宝玉’；〔注〕【完】·〇々〆",
    "kana": "東京タワーへ行きました。ｶﾀｶﾅとひらがな、がぎぐげご",
    "hangul": "대한민국의 수도는 서울이다. 漢字와 한글 ㄱㄴㄷ",
    "bopomofo": "ㄅㄆㄇㄈ注音",
    "extension A": "㐀㐁abc㐂䶵",
    "extension B": "𠀀𠀁abc𠮷野家𪛖",
    "extensions C and D": "𪜀𫜴𫝀abc𫠝",
    "compatibility": "豈更車賈滑x丽丸乁y",
    "radicals and strokes": "⼀⼁⺀⺁㇀㇁",
    "enclosed": "①②㈱㊗️㎏㍿",
    "accents": "Café naïve Ünïcödé ÉCOLE Ångström İstanbul Straße Tiếng Việt",
    "combining accents": "e\u0301cole 漢\u0301字 n\u0303",
    "other scripts": "Привет, Ёлка! ΑΒΓ άέή हिन्दी ภาษาไทย العَرَبِيَّة עִבְרִית",
    "control characters": "中\x00文\x07a\u200bb\u200d\ufeffc\ufffdd\x85e\x1ff",
    "white space": "\t中\n文\r\n a\u00a0b\u3000c\u2003d\u2028e\u2029f  ",
    "symbols": "a+b=c, 10€ $5 ¥100 ￥100 x^2 `code` ~tilde | ° ± × ÷ → ★ ♥ ©",
    "emoji": "好吃😀👍🏽！❤️",
    "of the longest length": "a" * LONGEST + " " + "b" * (LONGEST + 1) + " " + "1" * LONGEST,
    "long after splitting": "中" * (LONGEST + 1) + "a-" * LONGEST,
    "long with accents": "é" * LONGEST + " " + "é" * (LONGEST + 1) + " " + "e\u0301" * (LONGEST + 1),
    "numbers": "3.14159 1,234,567 １２３ 一二三 Ⅷ ½ 2⁵",
    "unknown pieces": "abcꙮ 字ꙮ字",
    "nothing": "",
    "nothing but space": " \u3000\t",
}


@cache
def is_cjk(character: str) -> bool:
    return any(ord(character) in block for block in CJK)


@cache
def is_punctuation(character: str) -> bool:
    """Of Unicode's kind P, or ASCII that is neither letter, digit, space nor control."""
    ascii_sign = 33 <= ord(character) <= 126 and not character.isalnum()
    return ascii_sign or unicodedata.category(character).startswith("P")


def clean(text: str) -> str:
    """Control and format characters and U+FFFD vanish; tabs, line ends and kind Zs are spaces."""
    spaced = "".join(" " if c in "\t\n\r" or unicodedata.category(c) == "Zs" else c for c in text)
    return "".join(c for c in spaced if c != "\ufffd" and unicodedata.category(c) not in ("Cc", "Cf"))


def words(text: str, lower_case: bool) -> list[str]:
    found = []
    for word in "".join(f" {c} " if is_cjk(c) else c for c in clean(text)).split():
        if lower_case:
            decomposed = unicodedata.normalize("NFD", word.lower())
            word = "".join(c for c in decomposed if unicodedata.category(c) != "Mn")
        found += "".join(f" {c} " if is_punctuation(c) else c for c in word).split()
    return found


def pieces(word: str, vocabulary: dict[str, int]) -> list[str]:
    """From the left, the longest piece there is; a word with a rest that has none is unknown as a whole."""
    found, start = [], 0
    while start < len(word):
        candidates = (("##" if start else "") + word[start:end] for end in range(len(word), start, -1))
        piece = next((candidate for candidate in candidates if candidate in vocabulary), None)
        if piece is None or len(word) > LONGEST:
            return ["[UNK]"]
        found.append(piece)
        start += len(piece.removeprefix("##") if start else piece)
    return found


@cache
def read_vocabulary(path: Path) -> dict[str, int]:
    with path.open(encoding="utf-8", newline="\n") as file:
        return {line.removesuffix("\n"): number for number, line in enumerate(file)}


TOKENIZERS = {}  # of the released vocabularies that a test has asked for


@pytest.fixture(params=LOWER_CASED)
def released(request, data, run):
    """(our tokenizer, the rules as a function of a text) on a released vocabulary."""
    path, lower_case = data / "vocab" / f"bert-base-{request.param}-vocab.txt", LOWER_CASED[request.param]
    if path not in TOKENIZERS:
        TOKENIZERS[path] = load_tokenizer(run(tokenizer_name=str(path), do_lower_case=lower_case))
    tokenizer, vocabulary = TOKENIZERS[path], read_vocabulary(path)

    def rules(text: str) -> list[int]:
        return [vocabulary[piece] for word in words(text, lower_case) for piece in pieces(word, vocabulary)]

    return tokenizer, rules


def assert_same(tokenizer, rules, texts: list[str]) -> None:
    for text, ids in zip(texts, tokenizer(texts, add_special_tokens=False)["input_ids"], strict=True):
        expected = rules(text)
        assert ids == expected, (text, *map(tokenizer.convert_ids_to_tokens, (ids, expected)))


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_text_is_split_by_the_released_rules(text, released):
    assert_same(*released, [text])


@pytest.mark.slow
def test_the_pieces_of_a_vocabulary_are_found_where_the_rules_find_them(released):
    """All but plain letters and digits, and of those every fourth."""
    tokenizer, rules = released
    pieces = dict.fromkeys(piece.removeprefix("##") for piece in tokenizer.get_vocab())
    texts = [piece for piece in pieces if piece not in tokenizer.all_special_tokens]
    texts = [text for number, text in enumerate(texts) if number % 4 == 0 or not (text.isascii() and text.isalnum())]
    assert len(texts) > 7000
    assert_same(tokenizer, rules, [f"{text} 字{text}。a{text}" for text in texts])


@pytest.mark.slow
@pytest.mark.parametrize("released", ["chinese"], indirect=True)
def test_cjk_characters_are_words_of_their_own(released):
    """At the ends of each block, all those that decompose, and of the others every eleventh."""
    for block in CJK:
        ends = {*block[:300], *block[-300:], *block[::11]}
        characters = [chr(code) for code in block if code in ends or unicodedata.decomposition(chr(code))]
        assert_same(*released, [f"a{c}b" for c in characters if ord(c) not in NOT_SPLIT])
    assert_same(*released, [chr(code) for code in NOT_SPLIT])


def test_a_pair_is_framed_and_has_two_segments(released):
    tokenizer, rules = released
    first, second = rules("房间很干净"), rules("Really?")
    features = tokenizer("房间很干净", "Really?")
    cls, sep = tokenizer.cls_token_id, tokenizer.sep_token_id
    assert features["input_ids"] == [cls, *first, sep, *second, sep]
    assert features["token_type_ids"] == [0] * (len(first) + 2) + [1] * (len(second) + 1)


# From a csv file to predictions

PRAISE = ["很好", "干净", "舒服", "热情", "推荐"]
BLAME = ["很差", "肮脏", "难受", "冷漠", "失望"]
NOUNS = ["酒店", "房间", "服务", "早餐", "位置", "价格", "电脑", "屏幕", "键盘", "电池"]
NOUNS += ["音响", "质量", "包装", "快递", "这本书", "故事", "电影", "音乐", "味道", "老板"]


def reviews(nouns: list[str]) -> list[tuple[str, str]]:
    return [
        (label, f'{noun}真的{verdict}，"{noun}"就是这样, 3个人都说{verdict}！')
        for noun in nouns
        for label, verdicts in (("好评", PRAISE), ("差评", BLAME))
        for verdict in verdicts
    ]


def write_csv(path: Path, rows: list[tuple], header: tuple) -> Path:
    """As Excel saves "CSV UTF-8": with a byte order mark and CRLF."""
    with path.open("w", encoding="utf-8-sig", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def flags_of(values: dict[str, object]) -> list[str]:
    return [word for name, value in values.items() for word in (f"--{name}", str(value))]


@pytest.mark.slow
def test_a_classifier_learns_from_a_chinese_csv_file_and_predicts(data, tmp_path):
    sizes = {"hidden_size": 36, "num_hidden_layers": 1, "num_attention_heads": 3, "intermediate_size": 53}
    sizes |= {"initializer_range": 0.2, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    published = json.loads((ROOT / "configs" / "bert" / "base_chinese.json").read_text(encoding="utf-8"))
    (tmp_path / "config.json").write_text(json.dumps(published | sizes), encoding="utf-8")
    model, new = tmp_path / "model", reviews(NOUNS[17:])
    values = {
        "model_name_or_path": tmp_path / "config.json",
        "tokenizer_name": data / "vocab" / "bert-base-chinese-vocab.txt",
        "train_file": write_csv(tmp_path / "train.csv", reviews(NOUNS[:14]), ("label", "text")),
        "validation_file": write_csv(tmp_path / "dev.csv", reviews(NOUNS[14:17]), ("label", "text")),
        "learning_rate": 0.003,
        "num_train_epochs": 7,
        "eval_strategy": "no",
        "save_strategy": "no",
        "output_dir": model,
    }
    results = run_glue.main(["--do_train", "--do_eval", *flags_of(values)])
    assert results["eval_accuracy"] == 1
    assert json.loads((model / "config.json").read_text(encoding="utf-8"))["id2label"] == {"0": "好评", "1": "差评"}

    values = {
        "model_name_or_path": model,
        "test_file": write_csv(tmp_path / "new.csv", [(text,) for _, text in new], ("text",)),
        "output_dir": tmp_path / "predictions",
    }
    run_glue.main(["--do_predict", *flags_of(values)])
    with (tmp_path / "predictions" / "predictions.csv").open(encoding="utf-8", newline="") as file:
        assert [(row["prediction"], row["text"]) for row in csv.DictReader(file)] == [tuple(each) for each in new]
