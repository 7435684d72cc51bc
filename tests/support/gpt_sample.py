"""GPT in miniature: byte pairs that spell `glue_sample`'s words, their tokenizer, a configuration and a checkpoint."""

import json
from pathlib import Path

from modeling import ZooGPTConfig, ZooGPTLMHeadModel, ZooGPTTokenizer
from tests.support.glue_sample import WORDS


CHARACTERS = sorted({*"".join(WORDS).lower(), *"\"'.,?0123456789"})
WHOLE = ["the", "film", "good", "not", "is"]  # the other words are several tokens


def merges() -> list[tuple[str, str]]:
    """Those that make each of `WHOLE` one token, letter by letter from the left."""
    pairs = []
    for word in WHOLE:
        ends = [*word[:-1], f"{word[-1]}</w>"]
        pairs += [("".join(ends[:number]), ends[number]) for number in range(1, len(ends))]
    return pairs


def vocabulary() -> dict[str, int]:
    """As in the release: what is unknown, characters, characters that end a word, and what the merges make."""
    ends = [f"{character}</w>" for character in CHARACTERS]
    tokens = ["<unk>", *CHARACTERS, *ends, *map("".join, merges())]
    return {token: number for number, token in enumerate(tokens)}


def write_gpt_tokenizer(folder: Path, **options: object) -> Path:
    """The tokenizer as it comes with a language model, without the tokens of the tasks."""
    ZooGPTTokenizer(vocab=vocabulary(), merges=merges(), **options).save_pretrained(folder)
    return folder


def write_gpt_config(folder: Path, **changes: object) -> Path:
    """A configuration of odd, unequal sizes, without dropout."""
    values = {
        "model_type": ZooGPTConfig.model_type,
        "vocab_size": len(vocabulary()),
        "n_positions": 40,
        "n_embd": 12,
        "n_layer": 2,
        "n_head": 3,
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
        "summary_first_dropout": 0.0,
    }
    path = folder / "gpt.json"
    path.write_text(json.dumps(values | changes), encoding="utf-8")
    return path


def write_gpt_model(folder: Path, **changes: object) -> Path:
    """A folder with a language model of random weights, in those sizes, and its tokenizer."""
    values = json.loads(write_gpt_config(folder, **changes).read_text(encoding="utf-8"))
    ZooGPTLMHeadModel(ZooGPTConfig(**values)).save_pretrained(folder / "gpt")
    return write_gpt_tokenizer(folder / "gpt")
