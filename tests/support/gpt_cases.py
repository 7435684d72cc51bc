"""Tiny GPTs with odd, unequal sizes, the same weights in transformers' class and ours, and batches for every head."""

from pathlib import Path

import torch
import transformers
from transformers import OpenAIGPTConfig, PreTrainedModel

import modeling
from modeling import ZooGPTConfig
from tests.support.model_cases import CHOICES, LABELS, Case, Tensors, built_once, load_ours, random_mask, ready


STOCK, STOCK_CONFIG, OURS, CONFIG = "OpenAIGPT", OpenAIGPTConfig, "ZooGPT", ZooGPTConfig  # how names of classes begin
SIZES = {
    "vocab_size": 97,
    "n_positions": 41,
    "n_embd": 36,
    "n_layer": 3,
    "n_head": 3,
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
    "summary_first_dropout": 0.0,
    "pad_token_id": 0,
}
START, DELIMITER, EXTRACT = 94, 95, 96  # as the release places them, right after the words
STOCK_HEADS = ["LMHeadModel", "ForSequenceClassification"]
OWN_HEADS = ["ForMultipleChoice", "ForTokenClassification", "ForQuestionAnswering"]
TRIANGLE = torch.ones(41, 41).tril().view(1, 1, 41, 41)
# What older files of LMHeadModel hold.
AGES = {
    "unprefixed": lambda tensors: {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()},
    "triangles": lambda tensors: (
        tensors | {f"transformer.h.{index}.attn.bias": TRIANGLE.clone() for index in range(SIZES["n_layer"])}
    ),
    "untied copy": lambda tensors: tensors | {"lm_head.weight": tensors["transformer.tokens_embed.weight"].clone()},
}
AGES["the first release"] = lambda tensors: AGES["unprefixed"](AGES["triangles"](tensors))


def zoo(head: str, attention: str = "sdpa", **changes) -> PreTrainedModel:
    """One of our classes with random weights, in evaluation mode."""
    config = ZooGPTConfig(**(SIZES | {"num_labels": LABELS, "sep_token_id": DELIMITER} | changes))
    return ready(getattr(modeling, f"ZooGPT{head}")(config), attention)


@built_once
def pair(head: str, folder: Path, attention: str = "sdpa", **changes) -> tuple[PreTrainedModel, PreTrainedModel]:
    """transformers' model with random weights, and ours loaded from what it saves."""
    stock = getattr(transformers, f"OpenAIGPT{head}")(OpenAIGPTConfig(**(SIZES | {"num_labels": LABELS} | changes)))
    return load_ours(getattr(modeling, f"ZooGPT{head}"), stock, folder, attention)


def batch(lengths: list[int] | None = None, holes: bool = False) -> Tensors:
    """(7, 19) token ids and a mask of random lengths; with `holes`, zeros inside the rows too."""
    mask = random_mask(lengths, holes)
    return {"input_ids": torch.randint(1, START, mask.shape) * mask, "attention_mask": mask}


def pairs_of_sentences(lengths: list[tuple[int, int]]) -> Tensors:
    """Rows "start, A, delimiter, B, extract" of sentences of these lengths, padded on the right."""
    rows = [
        [START, *torch.randint(1, START, (one,)), DELIMITER, *torch.randint(1, START, (other,)), EXTRACT]
        for one, other in lengths
    ]
    return padded(rows)


def padded(rows: list[list[int]]) -> Tensors:
    """Token ids and their mask, padded with 0 on the right."""
    columns = max(map(len, rows))
    ids = torch.tensor([[int(word) for word in row] + [0] * (columns - len(row)) for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (columns - len(row)) for row in rows])
    return {"input_ids": ids, "attention_mask": mask}


def case(head: str, holes: bool = False) -> Case:
    """Inputs and labels for a head; token labels stand on real tokens only, as data collators put them."""
    inputs = batch(holes=holes)
    rows = len(inputs["input_ids"])
    if head == "ForMultipleChoice":
        choices = [inputs, *(batch(inputs["attention_mask"].sum(1).tolist()) for _ in range(CHOICES - 1))]
        columns = min(tensors["input_ids"].shape[1] for tensors in choices)
        inputs = {name: torch.stack([each[name][:, :columns] for each in choices], 1) for name in inputs}
    real = inputs["attention_mask"].bool()
    words = torch.where(real & (torch.rand(real.shape) < 0.7), inputs["input_ids"], -100)
    bounds = torch.randint(0, 2, (rows,))
    choice = torch.randint(0, CHOICES, (rows,))
    labels = {
        "Model": {},
        "LMHeadModel": {"labels": words},
        "ForSequenceClassification": {"labels": torch.randint(0, LABELS, (rows,))},
        "ForMultipleChoice": {"labels": choice},
        "ForTokenClassification": {"labels": torch.where(real, torch.randint(0, LABELS, real.shape), -100)},
        "ForQuestionAnswering": {"start_positions": bounds, "end_positions": bounds + 1},
    }[head]
    return Case(inputs, labels, real)
