"""Questions and words in many languages: answers are cut at their own characters, and a cased vocabulary keeps casing,
accents and every script.
"""

import json
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from tokenizers.normalizers import BertNormalizer
from transformers import AutoTokenizer, BertTokenizer

from elmo_gpt_bert.metrics.squad_scores import squad1_scores
from elmo_gpt_bert.tasks.squad.answering import find_answers
from elmo_gpt_bert.tasks.squad.data import read_files
from elmo_gpt_bert.tasks.squad.features import Windows, make_windows
from tests.support.chinese_sample import write_json
from tests.tasks.test_chinese import TEXTS, pieces, read_vocabulary, words
from tests.tasks.test_windows import answer_text


# XQuAD's layout: contexts of the tests' own, and answers to cut out of them.
CONTEXTS = {
    "zh": (
        "海州大桥于2003年5月1日通车，全长3260米，设计师是林小雨。",
        ["2003年5月1日", "3260米", "林小雨", "海州大桥"],
    ),
    "ja": (
        "東京タワーは1958年に完成した。高さは333メートルで、がっしりしている。",
        ["1958年", "333メートル", "東京タワー", "がっしり"],
    ),
    "th": ("แม่น้ำสายนี้ยาว ๓๗๐ กิโลเมตร และไหลผ่านเมืองเก่าที่สวยที่สุด", ["แม่น้ำ", "๓๗๐ กิโลเมตร", "เมืองเก่า", "ที่สุด"]),
    "ar": ("كَتَبَ الشّاعِرُ قَصيدةً طويلةً في سنة ١٩٥٢، ثم سافر إلى بغداد.", ["الشّاعِرُ", "قَصيدةً طويلةً", "١٩٥٢", "بغداد"]),
    "he": ("הַסֵּפֶר נִכְתַּב בשנת 1961 על ידי מֹשֶׁה כהן, בעיר \u200fחיפה.", ["הַסֵּפֶר", "1961", "מֹשֶׁה כהן", "חיפה"]),
    "fa": (
        "او کتاب\u200cهای زیادی می\u200cنویسد و در شیراز زندگی می\u200cکند.",
        ["کتاب\u200cهای زیادی", "شیراز", "می\u200cنویسد"],
    ),
    "hi": ("क्षितिज ने पुस्तक १९४७ में लिखी; वह श्री\u200dमान की मित्र थी।", ["क्षितिज", "१९४७", "श्री\u200dमान", "मित्र"]),
    "ta": ("கோவிலை மன்னர் 1010 ஆம் ஆண்டில் கட்டினார்.", ["மன்னர்", "1010 ஆம் ஆண்டில்", "கோவிலை"]),
    "vi": (
        "Cầu dài 260 mét được xây ở Đà Nẵng năm 1999, do ông Nguyễn Ường vẽ.",
        ["260 mét", "Đà Nẵng", "Nguyễn Ường"],
    ),
    "ko": ("그 다리는 1988년에 서울에서 완공되었고 길이는 12미터이다.", ["1988년", "서울", "12미터", "다리"]),
    "el": ("Η γέφυρα άνοιξε το 2004 στην Πάτρα, έργο του Ίωνα Ρήγα.", ["2004", "Πάτρα", "Ίωνα Ρήγα"]),
    "ru": (
        "Мост построил ИНЖЕНЕР Ёлкин в 1912 году; ширина — 8 м, район Ярый.",
        ["ИНЖЕНЕР Ёлкин", "1912 году", "8 м"],
    ),
    "tr": ("İstanbul'daki köprü IĞDIR'dan gelen Işıl'ındır, 1973.", ["İstanbul", "1973", "köprü", "IĞDIR"]),
    "emoji": (
        "Sie schrieb 👩\u200d👩\u200d👧 und 👍🏽, dann 🏳\ufe0f\u200d🌈 𝔘𝔫𝔦 𠮷野家 ab.",
        ["👩\u200d👩\u200d👧", "👍🏽", "𝔘𝔫𝔦", "𠮷野家"],
    ),
}
FORMS = ("NFC", "NFD")
LOWER_CASED = {"multilingual": False, "chinese": True}  # the kinds of vocabularies


def normalised(text: str, lower_case: bool) -> str:
    normalizer = BertNormalizer(lowercase=lower_case, strip_accents=None, clean_text=True, handle_chinese_chars=True)
    return normalizer.normalize_str(text)


@pytest.fixture(scope="module", params=LOWER_CASED)
def tokenizer(request, tmp_path_factory) -> BertTokenizer:
    """With every character of the samples, at the begin and within words: cased, or lower-cased without accents."""
    lower_case = LOWER_CASED[request.param]
    samples = [*(context for context, _ in CONTEXTS.values()), *TEXTS.values(), "? nan"]
    texts = [normalised(unicodedata.normalize(form, text), lower_case) for text in samples for form in FORMS]
    letters = sorted(set("".join(texts)) - set(" "))
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{letter}" for letter in letters)]
    path = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
    path.write_text("\n".join(vocabulary), encoding="utf-8")
    return BertTokenizer(str(path), do_lower_case=lower_case)


def write_xquad(path: Path, language: str, form: str) -> str:
    """A file in XQuAD's layout, that of SQuAD 1.1, with one answer to a question."""
    context, answers = (
        json.loads(unicodedata.normalize(form, json.dumps(part, ensure_ascii=False))) for part in CONTEXTS[language]
    )
    qas = [
        {"answers": [{"answer_start": context.index(text), "text": text}], "id": f"{number:024x}", "question": "?"}
        for number, text in enumerate(answers)
    ]
    return write_json(
        path, {"data": [{"paragraphs": [{"context": context, "qas": qas}], "title": "A"}], "version": "1.1"}
    )


def perfect(windows: Windows) -> dict[str, list[np.ndarray]]:
    """The outputs of a model that knows all answers of training windows."""
    outputs = {"start_logits": [], "end_logits": []}
    for row in windows.features:
        for name, place in (("start_logits", "start_positions"), ("end_logits", "end_positions")):
            logits = np.full(len(row["input_ids"]), -9.0)
            logits[row[place]] = 9.0
            outputs[name].append(logits)
    return outputs


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("language", CONTEXTS)
def test_answers_are_cut_at_their_own_characters(tmp_path, tokenizer, language, form):
    path = write_xquad(tmp_path / "xquad.json", language, form)
    examples = read_files({"train": path}, version_2=False)["train"]
    windows = make_windows(examples, tokenizer, 300, 10, train=True)
    texts = [answer_text(windows, number, row["context"]) for number, row in enumerate(examples)]
    assert texts == [row["answers"]["text"][0] for row in examples]
    answers = find_answers(examples, windows, perfect(windows), max_answer_length=40)
    references = {row["id"]: row["answers"]["text"] for row in examples}
    assert squad1_scores(answers.predictions, references)["exact_match"] == 100
    assert answers.predictions == {name: text for name, (text,) in references.items()}


@pytest.mark.parametrize("language", CONTEXTS)
def test_long_contexts_give_the_same_answers_in_windows(tmp_path, tokenizer, language):
    path = write_xquad(tmp_path / "xquad.json", language, "NFC")
    examples = read_files({"train": path}, version_2=False)["train"]
    windows = make_windows(examples, tokenizer, 31, 22, train=True)
    assert len(windows.question) > len(examples)
    answers = find_answers(examples, windows, perfect(windows), max_answer_length=40)
    assert answers.predictions == {row["id"]: row["answers"]["text"][0] for row in examples}


def test_every_answer_of_all_languages_is_recovered(tmp_path, tokenizer):
    found = total = 0
    for form in FORMS:
        for language in CONTEXTS:
            path = write_xquad(tmp_path / "xquad.json", language, form)
            examples = read_files({"train": path}, version_2=False)["train"]
            windows = make_windows(examples, tokenizer, 300, 10, train=True)
            for number, row in enumerate(examples):
                found += answer_text(windows, number, row["context"]) == row["answers"]["text"][0]
                total += 1
    print(f"answers recovered: {found} of {total}")
    assert found == total == 2 * sum(len(answers) for _, answers in CONTEXTS.values())


# Multilingual words


def texts_of_all_scripts() -> list[str]:
    samples = [*(context for context, _ in CONTEXTS.values()), *TEXTS.values()]
    return [unicodedata.normalize(form, text) for text in samples for form in FORMS]


@pytest.mark.parametrize("tokenizer", ["multilingual"], indirect=True)
def test_a_cased_vocabulary_keeps_casing_accents_and_every_script(tokenizer):
    vocabulary = tokenizer.get_vocab()
    for text in texts_of_all_scripts():
        expected = [piece for word in words(text, lower_case=False) for piece in pieces(word, vocabulary)]
        tokens = tokenizer.tokenize(text)
        assert tokens == expected, text
        if "[UNK]" not in tokens:  # but of words of more than 100 characters
            joined = "".join(token.removeprefix("##") if len(token) > 2 else token for token in tokens)
            assert joined == "".join(words(text, lower_case=False)), text


SETTINGS = {
    "the Hub's": ({"do_lower_case": False}, "Élan İZMİR"),
    "strip_accents null": ({"do_lower_case": False, "strip_accents": None}, "Élan İZMİR"),
    "strip_accents false": ({"do_lower_case": False, "strip_accents": False}, "Élan İZMİR"),
    "strip_accents true": ({"do_lower_case": False, "strip_accents": True}, "Elan IZMIR"),
    "lower case with accents": ({"do_lower_case": True, "strip_accents": False}, "élan i̇zmi̇r"),
    "lower case": ({"do_lower_case": True}, "elan izmir"),
}


@pytest.mark.parametrize(("settings", "text"), SETTINGS.values(), ids=SETTINGS)
def test_a_saved_tokenizer_keeps_accents_unless_it_says_otherwise(tmp_path, settings, text):
    """The files are those of the published folders: a vocab.txt and a tokenizer_config.json."""
    letters = sorted(set("".join(example for _, example in SETTINGS.values())) - {" "})
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{letter}" for letter in letters)]
    (tmp_path / "vocab.txt").write_text("\n".join(vocabulary), encoding="utf-8")
    config = {"tokenizer_class": "BertTokenizer", **settings}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    AutoTokenizer.from_pretrained(tmp_path).save_pretrained(tmp_path / "again")
    for folder in (tmp_path, tmp_path / "again"):
        tokens = AutoTokenizer.from_pretrained(folder).tokenize("Élan İZMİR")
        assert "".join(f" {token}" if token[:2] != "##" else token[2:] for token in tokens).strip() == text


def test_the_published_multilingual_vocabulary_follows_the_released_rules(data):
    path = data / "vocab" / "bert-base-multilingual-cased-vocab.txt"
    if not path.is_file():
        pytest.skip(f"no {path}")
    vocabulary, tokenizer = read_vocabulary(path), BertTokenizer(str(path), do_lower_case=False)
    for text in texts_of_all_scripts():
        expected = [piece for word in words(text, lower_case=False) for piece in pieces(word, vocabulary)]
        assert tokenizer.tokenize(text) == expected, text
