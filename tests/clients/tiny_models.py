"""transformers' model, ours on the same weights, and the tokenizer of both: what a client is given."""

from pathlib import Path

import torch
from torch import nn
from transformers import BertTokenizer, PreTrainedModel, PreTrainedTokenizerBase, Trainer

from modeling import ZooGPTTokenizer
from tests.support import bert_cases, gpt_cases
from tests.support.glue_sample import VOCABULARY
from tests.support.gpt_sample import merges, vocabulary


# Of 2 to 9 words, so that most rows of a batch are padded.
SENTENCES = [
    "the film is good",
    "a very good film , but the plot is dull .",
    "not bad",
    "the cast is not very good .",
    "the plot is not good , but not bad ?",
    "is a dull film bad ?",
]
LINE_BREAK = "\n</w>"
Pair = tuple[PreTrainedModel, PreTrainedModel, PreTrainedTokenizerBase]


def bert_pair(head: str, folder: Path, **changes: object) -> Pair:
    """transformers' BERT and ours, and their tokenizer; `folder` has stock weights and the tokenizer."""
    stock, ours = bert_cases.pair(head, folder, vocab_size=len(VOCABULARY), **changes)
    BertTokenizer(vocab={token: number for number, token in enumerate(VOCABULARY)}).save_pretrained(folder)
    return stock, ours, BertTokenizer.from_pretrained(folder)


def gpt_pair(head: str, folder: Path, **changes: object) -> Pair:
    """transformers' GPT and ours, and our tokenizer, where a line break ends a text; `folder` is as above."""
    words = vocabulary() | {LINE_BREAK: len(vocabulary())}
    stock, ours = gpt_cases.pair(head, folder, vocab_size=len(words), **changes)
    ZooGPTTokenizer(vocab=words, merges=merges(), eos_token=LINE_BREAK).save_pretrained(folder)
    return stock, ours, ZooGPTTokenizer.from_pretrained(folder)


def training_arguments(folder: Path, **changes: object) -> dict[str, object]:
    """A few steps of plain gradient descent on batches of 3 sentences, each step's loss in the log."""
    values = {
        "output_dir": str(folder),
        "max_steps": 4,
        "per_device_train_batch_size": 3,
        "learning_rate": 0.1,
        "optim": "sgd",
        "lr_scheduler_type": "constant",
        "logging_steps": 1,
        "report_to": "none",
        "save_strategy": "no",
        "disable_tqdm": True,
        "use_cpu": True,
    }
    return values | changes


def training_losses(trainer: Trainer) -> list[float]:
    """Train; one loss a step."""
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def assert_trained_alike(ours: nn.Module, stock: nn.Module, before: dict[str, torch.Tensor]) -> None:
    """transformers' model is another than `before`, and ours has become the same."""
    after, mine = stock.state_dict(), ours.state_dict()
    assert max((after[name] - weights).abs().max() for name, weights in before.items()) > 1e-2
    for name, weights in after.items():
        torch.testing.assert_close(mine[name], weights, atol=1e-5, rtol=1e-4, msg=lambda t, n=name: f"{n}: {t}")
