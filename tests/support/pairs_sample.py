"""Minimal pairs in BLiMP's columns, and tiny language models of three kinds that read them."""

import json
from pathlib import Path

import torch
from transformers import BertTokenizer, GPT2Config, GPT2LMHeadModel

from modeling import ElmoConfig, ElmoForPreTraining, ElmoTokenizer, ZooBertConfig, ZooBertForMaskedLM
from tests.support.glue_sample import VOCABULARY, WORDS
from tests.support.gpt_sample import write_gpt_model


# Of 2 to 9 words; the last pair differs only in case, which the tokenizers do not see.
PAIRS = [
    ("the film is good .", "the film good is .", "order_1", "order", "syntax"),
    ("the cast is not very good .", "the cast is very not good .", "order_1", "order", "syntax"),
    ("a plot , but a dull plot ?", "a plot , but dull a plot ?", "order_2", "order", "syntax"),
    ("not bad", "bad not", "order_2", "order", "syntax"),
    ("is a film a plot ?", "is a film a cast , or is a plot ?", "length", "size", "semantics"),
    ("The film is dull .", "the film is dull .", "case", "size", "semantics"),
]
WORD_PIECES = [
    *(word for word in VOCABULARY if word not in ("plot", "good", "dull")),
    "pl",
    "##ot",
    "go",
    "##o",
    "##d",
]
WORD_PIECES += ["du", "##l"]  # "du ##l ##l": three pieces of one word


def write_pairs(path: Path, pairs: list[tuple] = PAIRS) -> Path:
    lines = []
    for number, (good, bad, uid, term, field) in enumerate(pairs):
        names = {"UID": uid, "linguistics_term": term, "field": field, "pairID": str(number)}
        lines.append(json.dumps({"sentence_good": good, "sentence_bad": bad} | names))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def write_bert(folder: Path) -> Path:
    """A masked language model, several of whose words are more than one piece."""
    sizes = {"hidden_size": 12, "num_hidden_layers": 3, "num_attention_heads": 3, "intermediate_size": 20}
    config = ZooBertConfig(vocab_size=len(WORD_PIECES), max_position_embeddings=19, initializer_range=0.5, **sizes)
    torch.manual_seed(1)
    ZooBertForMaskedLM(config).save_pretrained(folder / "bert")
    BertTokenizer(vocab={token: number for number, token in enumerate(WORD_PIECES)}).save_pretrained(folder / "bert")
    return folder / "bert"


def write_gpt(folder: Path) -> Path:
    torch.manual_seed(1)
    return write_gpt_model(folder, initializer_range=0.5)


def write_gpt2(folder: Path) -> Path:
    """transformers' GPT-2. Its tokenizer of word pieces begins each sentence with [CLS] and has no padding token."""
    sizes = {"n_embd": 12, "n_layer": 2, "n_head": 3, "n_positions": 19, "vocab_size": len(WORD_PIECES)}
    torch.manual_seed(1)
    GPT2LMHeadModel(GPT2Config(initializer_range=0.5, **sizes)).save_pretrained(folder / "gpt2")
    tokenizer = BertTokenizer(vocab={token: number for number, token in enumerate(WORD_PIECES)})
    tokenizer.pad_token = None
    tokenizer.save_pretrained(folder / "gpt2")
    return folder / "gpt2"


def write_bilm(folder: Path, **changes: object) -> Path:
    """A biLM that knows all words of the pairs but "cast" and "or"."""
    words = ["<S>", "</S>", "<UNK>", *(word for word in WORDS if word != "cast"), ".", ",", "?"]
    (folder / "vocab.txt").write_text("\n".join(words), encoding="utf-8")
    sizes = {"filters": [[1, 4], [2, 5]], "char_embedding_size": 3, "hidden_size": 6, "cell_size": 7}
    torch.manual_seed(1)
    model = ElmoForPreTraining(ElmoConfig(lm_vocab_size=len(words), **(sizes | changes)))
    with torch.no_grad():
        model.lm_head.weight *= 30  # otherwise all words are about as probable
    model.save_pretrained(folder / "elmo")
    ElmoTokenizer(vocab_file=str(folder / "vocab.txt")).save_pretrained(folder / "elmo")
    return folder / "elmo"
