"""Folders of GLUE, SNLI and SciTail in miniature, in their published layouts, one's own files, and a tiny model."""

import json
from pathlib import Path


WORDS = ["the", "a", "film", "plot", "cast", "is", "good", "bad", "dull", "not", "very", "but", "null", "na", "NA"]
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"\"'.,?0123456789", *WORDS]
SIZES = {"train": 9, "dev": 5, "test": 4}

# The header lines of the published files, and the labels as they write them.
HEADERS = {
    "CoLA": "source label judgement sentence",
    "SST-2": "sentence label",
    "MRPC": "Quality|#1 ID|#2 ID|#1 String|#2 String",
    "STS-B": "index genre filename year old_index source1 source2 sentence1 sentence2 score",
    "QQP": "id qid1 qid2 question1 question2 is_duplicate",
    "MNLI": "index promptID pairID genre sentence1_binary_parse sentence2_binary_parse "
    "sentence1_parse sentence2_parse sentence1 sentence2 label1 gold_label",
    "QNLI": "index question sentence label",
    "RTE": "index sentence1 sentence2 label",
    "WNLI": "index sentence1 sentence2 label",
    "SNLI": "gold_label sentence1_binary_parse sentence2_binary_parse sentence1_parse sentence2_parse "
    "sentence1 sentence2 captionID pairID label1 label2 label3 label4 label5",
    "SciTail": "sentence1 sentence2 gold_label",
}
LABELS = {
    "STS-B": ["0.000", "2.500", "4.800"],
    "MNLI": ["neutral", "entailment", "contradiction"],
    "QNLI": ["entailment", "not_entailment"],
    "RTE": ["not_entailment", "entailment"],
    "SNLI": ["neutral", "entailment", "contradiction"],
    "SciTail": ["neutral", "entails"],
}
LABEL_COLUMNS = {"label", "label1", "gold_label", "score", "is_duplicate", "Quality"}
TEXT = {"sentence", "sentence1", "sentence2", "question", "question1", "question2", "#1 String", "#2 String"}
FOLDERS = {
    "cola": "CoLA",
    "sst2": "SST-2",
    "mrpc": "MRPC",
    "stsb": "STS-B",
    "qqp": "QQP",
    "mnli": "MNLI",
    "qnli": "QNLI",
    "rte": "RTE",
    "wnli": "WNLI",
    "snli": "SNLI",
    "scitail": "SciTail",
}
FILES = {"SNLI": "snli_1.0_{}.txt", "SciTail": "scitail_1.0_{}.tsv"}  # of the others: {}.tsv
LABELLED_TESTS = set(FILES)


def text(row: int, column: int) -> str:
    """A few words, of another length in every row."""
    return " ".join(WORDS[(row * 5 + column * 3 + i) % len(WORDS)] for i in range(3 + row % 4)) + " ."


def columns_of(folder: str, split: str) -> list[str]:
    """GLUE's test files have no label, and those of CoLA, SST-2 and MRPC start with a number of their own."""
    header = HEADERS[folder].split("|" if "|" in HEADERS[folder] else " ")
    if split != "test" or folder in LABELLED_TESTS:
        return header
    if folder in ("CoLA", "SST-2"):
        return ["index", "sentence"]
    if folder == "QQP":
        return ["id", "question1", "question2"]
    return ["index", *header[1:]] if folder == "MRPC" else [name for name in header if name not in LABEL_COLUMNS]


def write_task(root: Path, folder: str) -> Path:
    """Writes one task's folder with its own file names, header lines and label spellings; returns the folder.

    Mismatched files have one row more than `SIZES` says.
    """
    path = root / folder
    path.mkdir(parents=True)
    halves = ["_matched", "_mismatched"] if folder == "MNLI" else [""]
    for split, size in SIZES.items():
        for half in halves if split != "train" else [""]:
            columns = columns_of(folder, split)
            headless = folder == "SciTail" or (folder == "CoLA" and split != "test")
            lines = [] if headless else ["\t".join(columns)]
            for row in range(size + (half == "_mismatched")):
                lines.append("\t".join(_value(folder, name, row, i) for i, name in enumerate(columns)))
            mark = "\ufeff" if folder == "MRPC" else ""
            name = FILES.get(folder, "{}.tsv").format(split + half)
            (path / name).write_text(mark + "\n".join(lines) + "\n", encoding="utf-8")
    return path


def _value(folder: str, name: str, row: int, column: int) -> str:
    if name in TEXT:
        return text(row, column)
    if name in LABEL_COLUMNS:
        labels = LABELS.get(folder, ["0", "1"])
        return labels[row % len(labels)]
    return str(row)


def write_csv(path: Path, labels: list[str], header: str = "text,label") -> str:
    """A file of one's own with one text for each label; gives its name."""
    rows = [f"{text(row, 1)},{label}" for row, label in enumerate(labels)]
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return str(path)


def write_vocabulary(root: Path) -> Path:
    path = root / "vocab.txt"
    path.write_text("\n".join(VOCABULARY) + "\n", encoding="utf-8")
    return path


def write_model(root: Path, **changes: object) -> Path:
    """A configuration of odd, unequal sizes, without dropout."""
    values = {
        "model_type": "bert",
        "vocab_size": len(VOCABULARY) + 2,
        "hidden_size": 12,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "intermediate_size": 20,
        "max_position_embeddings": 40,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }
    path = root / "config.json"
    path.write_text(json.dumps(values | changes), encoding="utf-8")
    return path
