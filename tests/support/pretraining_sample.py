"""A small text, models of a few thousand parameters that learn it, and the flags of their runs."""

import json
import random
from pathlib import Path


BERT = {
    "model_type": "bert",
    "vocab_size": 90,
    "hidden_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 20,
    "max_position_embeddings": 40,
}
GPT = {"model_type": "openai-gpt", "vocab_size": 90, "n_positions": 24, "n_embd": 12, "n_layer": 2, "n_head": 3}
ELMO = {
    "model_type": "elmo",
    "hidden_size": 12,
    "cell_size": 10,
    "num_hidden_layers": 2,
    "num_highway_layers": 1,
    "filters": [[1, 4], [3, 5]],
    "char_embedding_size": 6,
    "max_characters_per_token": 12,
    "lm_vocab_size": 40,
    "num_sampled": 11,
}
MODELS = {"masked_lm": BERT, "next_sentence": BERT, "causal_lm": GPT, "bilm": ELMO}
FLAGS = {
    "masked_lm": ["--max_seq_length", "18"],
    "next_sentence": ["--max_seq_length", "22", "--segments", "next_sentence"],
    "causal_lm": ["--max_seq_length", "13"],
    "bilm": ["--max_seq_length", "9", "--optim", "adagrad", "--max_grad_norm", "10"],
}

SUBJECTS = ("the old man", "a girl", "her brother", "the captain", "nobody", "every child")
VERBS = ("saw", "found", "lost", "painted", "remembered", "sold")
OBJECTS = ("the boat", "a red kite", "three apples", "the letter", "his house", "the dog")


def write_text(folder: Path, name: str = "text.txt", documents: int = 14, seed: int = 0) -> Path:
    """Documents of 2 to 9 sentences, with blank lines between them."""
    draw = random.Random(seed)
    lines = []
    for _ in range(documents):
        for _ in range(draw.randint(2, 9)):
            words = [draw.choice(SUBJECTS), draw.choice(VERBS), draw.choice(OBJECTS)]
            words += ["near", draw.choice(OBJECTS)] if draw.random() < 0.5 else []
            lines.append(" ".join(words).capitalize() + ".")
        lines.append("")
    path = folder / name
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def write_config(folder: Path, kind: str, **changes: object) -> Path:
    path = folder / f"{kind}.json"
    path.write_text(json.dumps(MODELS[kind] | changes), encoding="utf-8")
    return path


def flags(folder: Path, kind: str, **changes: object) -> list[str]:
    """The flags of a run of this kind on the text, without --output_dir; `changes` are of the configuration."""
    return [
        *("--model_name_or_path", str(write_config(folder, kind, **changes))),
        *("--train_file", str(write_text(folder)), "--validation_file", str(write_text(folder, "held_out.txt", 4, 1))),
        *("--corpus_dir", str(folder / f"corpus-{kind}"), "--per_device_train_batch_size", "4"),
        *("--learning_rate", "0.1" if kind == "bilm" else "0.01", "--preprocessing_num_workers", "1"),
        *FLAGS[kind],
    ]
