"""What the tables of zoo-reproduce read, in miniature: data in the layouts of --data_root, and tiny models."""

import lzma
from pathlib import Path

import torch
from transformers import BertTokenizer

from modeling import ZooBertConfig, ZooBertForMaskedLM
from tests.support.choices_sample import write_task as write_choices
from tests.support.glue_sample import VOCABULARY, WORDS
from tests.support.glue_sample import write_task as write_glue
from tests.support.gpt_sample import write_gpt_model
from tests.support.ner_sample import write_conll
from tests.support.ner_sample import write_folder as write_ner
from tests.support.pairs_sample import write_bilm, write_pairs
from tests.support.pretraining_sample import write_text
from tests.support.squad_sample import write_folder as write_squad


def compress(path: Path) -> None:
    path.with_name(f"{path.name}.xz").write_bytes(lzma.compress(path.read_bytes()))
    path.unlink()


def write_data(root: Path) -> Path:
    """A folder for --data_root."""
    for name in ("glue", "ner/wnut17", "swag", "blimp", "books"):
        (root / name).mkdir(parents=True)
    for folder in ("CoLA", "SST-2", "RTE"):
        write_glue(root / "glue", folder)
    for split, start in {"train": 0, "dev": 12, "test": 18}.items():
        write_conll(root / "ner" / "wnut17" / f"{split}.conll", range(start, start + 6), document=0)
    write_squad(root / "squad")
    choices = write_choices(root / "swag", "swag")
    for split, name in {"train": "train", "dev": "val", "test": "test"}.items():
        (choices / f"{name}.csv").rename(root / "swag" / f"codah_{split}.csv")
    compress(write_pairs(root / "blimp" / "blimp.jsonl"))
    for seed, name in enumerate(("train-00.txt", "train-01.txt", "valid.txt")):
        compress(write_text(root / "books", name, documents=40, seed=seed))
    return root


def write_paper_data(root: Path) -> Path:
    """A folder for --data_root with data sets of the papers in their published layouts, and vectors of words."""
    for name in ("glue", "glove"):
        (root / name).mkdir(parents=True)
    write_glue(root / "glue", "MRPC")
    write_ner(root / "conll2003")
    (write_choices(root, "race") / "RACE").rename(root / "RACE")
    vectors = [f"{word} {number} 0.5 -1\n" for number, word in enumerate(WORDS)]
    (root / "glove" / "glove.6B.50d.txt").write_text("".join(vectors), encoding="utf-8")
    return root


def write_models(folder: Path) -> dict[str, Path]:
    """family -> a language model of 5 layers that reads as much as the small ones, with its tokenizer."""
    folder.mkdir()
    sizes = {"hidden_size": 12, "num_hidden_layers": 5, "num_attention_heads": 3, "intermediate_size": 20}
    torch.manual_seed(1)
    ZooBertForMaskedLM(ZooBertConfig(vocab_size=len(VOCABULARY), **sizes)).save_pretrained(folder / "bert")
    BertTokenizer(vocab={token: number for number, token in enumerate(VOCABULARY)}).save_pretrained(folder / "bert")
    gpt = write_gpt_model(folder, n_positions=512, n_layer=5)
    return {"bert": folder / "bert", "gpt": gpt, "elmo": write_bilm(folder)}
