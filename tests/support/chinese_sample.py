"""Chinese text in the layouts in which data sets are published, all of it written for the tests."""

import json
import re
from pathlib import Path


# Entities in brackets, among letters, digits, signs, full-width forms, a rare character and an emoji.
SENTENCES = [
    "[PER 林小雨]昨天从[LOC 杭州]去了[LOC 上海]。",
    "[ORG 东海大学]的[PER 王一]教授说：“［注］天气很好！”",
    "他在[ORG ABC公司]工作了１２年，月薪3.5万元。",
    "[LOC 中][LOC 日]两国的代表昨天在[LOC 北京]见面。",
    "这里没有名字，只有😀和\u3000空格。",
    "[PER 𠮷田]先生住在[LOC 大阪]，喜欢吃面。",
    "[ORG 第二中学]请[PER 赵敏]、[PER 钱多多]和[PER 孙丽]唱歌。",
    "[LOC 黄山]很高。",
]
FIELDS = {"msra": ("\t", "iob2"), "bmes": (" ", "bmes")}  # the layouts, with what parts columns and the scheme


def parse(marked: str) -> tuple[list[str], list[tuple[str, int, int]]]:
    """The characters of a sentence, and its entities: type, first character, and the first one after it."""
    characters, entities = [], []
    for kind, name, other in re.findall(r"\[([A-Z]+) ([^\]]+)\]|([^\[\]])", marked):
        if kind:
            entities.append((kind, len(characters), len(characters) + len(name)))
        characters += name or other
    return characters, entities


def tag(marked: str, scheme: str) -> tuple[list[str], list[str]]:
    """The characters of a sentence and their tags, in IOB2 or BMES."""
    characters, entities = parse(marked)
    tags = ["O"] * len(characters)
    for kind, begin, end in entities:
        prefixes = ["B", *"I" * (end - begin - 1)]
        if scheme == "bmes":
            prefixes = ["B", *"M" * (end - begin - 2), "E"] if end - begin > 1 else ["S"]
        tags[begin:end] = [f"{prefix}-{kind}" for prefix in prefixes]
    return characters, tags


def write_columns(path: Path, layout: str = "msra", sentences: list[str] | None = None) -> str:
    """A file with a character and its tag a line, and a blank line after each sentence; gives the file's name."""
    separator, scheme = FIELDS[layout]
    blocks = []
    for sentence in SENTENCES if sentences is None else sentences:
        blocks.append(
            "".join(f"{character}{separator}{tag}\n" for character, tag in zip(*tag(sentence, scheme), strict=True))
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(blocks), encoding="utf-8")
    return str(path)


def write_entities(folder: Path, layout: str = "msra") -> Path:
    """The files of a data set: for `bmes` train.char.bmes and so on, else train.txt, valid.txt and test.txt."""
    names = ("train", "dev", "test") if layout == "bmes" else ("train", "valid", "test")
    for name in names:
        write_columns(folder / (f"{name}.char.bmes" if layout == "bmes" else f"{name}.txt"), layout)
    return folder


# Contexts, and questions with the answers that two people gave.
SIMPLIFIED = [
    (
        "清河大桥（Qinghe Bridge）是一座公路桥，位于海州市。大桥于1998年动工，2003年5月1日通车，全长3,260米，"
        "总投资12.5亿元。大桥由海州第二建筑公司建造，设计师是林小雨。",
        [
            ("清河大桥是什么时候通车的？", ["2003年5月1日", "2003年"]),
            ("大桥全长多少？", ["3,260米", "全长3,260米"]),
            ("谁设计了大桥？", ["林小雨", "设计师是林小雨"]),
            ("大桥花了多少钱？", ["12.5亿元", "总投资12.5亿元"]),
        ],
    ),
    (
        "《夜雨》是王一在2010年发行的专辑，共有10首歌。专辑由ABC唱片公司制作，得到了“年度最佳专辑”奖。"
        "歌迷说：“听了夜雨，就想回家。”",
        [
            ("专辑有几首歌？", ["10首", "10首歌"]),
            ("哪家公司制作了专辑？", ["ABC唱片公司", "ABC唱片公司"]),
            ("专辑得到了什么奖？", ["“年度最佳专辑”奖", "年度最佳专辑"]),
        ],
    ),
]
TRADITIONAL = [
    (
        "東海大學圖書館建於1965年，藏書約80萬冊。圖書館一樓有咖啡廳，營業時間為上午9點至下午6點；二樓為閱覽室，"
        "可容納350人。",
        [
            ("圖書館建於哪一年?", ["1965年", "1965"]),
            ("閱覽室可以容納多少人?", ["350人", "350"]),
            ("哪一樓有咖啡廳?", ["一樓", "圖書館一樓"]),
        ],
    )
]
ABSENT = "39764.0"  # an answer that no context has, as a spreadsheet made some of CMRC's


def make_cmrc(split: str = "DEV", answers: int = 2, flawed: bool = True) -> dict:
    """CMRC 2018's SQuAD-style JSON. `flawed`: the first answer is one character off, the last one occurs nowhere."""
    articles = []
    for number, (context, questions) in enumerate(SIMPLIFIED):
        name, qas = f"{split}_{number}", []
        for place, (question, texts) in enumerate(questions):
            spans = [{"text": text, "answer_start": context.index(text)} for text in texts[:answers]]
            qas.append({"question": question, "id": f"{name}_QUERY_{place}", "answers": spans})
        articles.append({"paragraphs": [{"id": name, "context": context, "qas": qas}], "id": name, "title": ""})
    if flawed:
        articles[0]["paragraphs"][0]["qas"][0]["answers"][0]["answer_start"] += 1
        articles[-1]["paragraphs"][0]["qas"][-1]["answers"][-1] = {"text": ABSENT, "answer_start": -1}
    return {"version": "v1.0", "data": articles}


def make_drcd(answers: int = 2) -> dict:
    """DRCD's JSON: ids of numbers, and each answer with an id of its own."""
    paragraphs = []
    for number, (context, questions) in enumerate(TRADITIONAL, start=1):
        qas = []
        for place, (question, texts) in enumerate(questions, start=1):
            spans = [
                {"id": str(order), "text": text, "answer_start": context.index(text)}
                for order, text in enumerate(texts[:answers], start=1)
            ]
            qas.append({"id": f"1147-{number}-{place}", "question": question, "answers": spans})
        paragraphs.append({"context": context, "id": f"1147-{number}", "qas": qas})
    return {"version": "1.3", "data": [{"title": "東海大學", "id": "1147", "paragraphs": paragraphs}]}


def write_json(path: Path, content: dict) -> str:
    """Writes the file and gives its name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
    return str(path)


def characters() -> list[str]:
    """Every character of the text, for vocabularies."""
    texts = [
        *SENTENCES,
        *(text for context, questions in SIMPLIFIED + TRADITIONAL for text in (context, str(questions))),
    ]
    return sorted(set("".join(texts).lower()) - set(" \n\u3000"))
