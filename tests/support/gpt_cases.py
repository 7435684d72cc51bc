"""Tiny GPTs with odd, unequal sizes, the same weights in transformers' class and ours, and batches for every head."""

from dataclasses import dataclass
from pathlib import Path

import torch
import transformers
from transformers import OpenAIGPTConfig, PreTrainedModel

import modeling
from modeling import ZooGPTConfig


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
ROWS, COLUMNS, CHOICES, LABELS = 7, 19, 3, 5
STOCK_HEADS = ["LMHeadModel", "DoubleHeadsModel", "ForSequenceClassification"]
OWN_HEADS = ["ForMultipleChoice", "ForTokenClassification", "ForQuestionAnswering"]


def draw_weights(model: PreTrainedModel) -> None:
    """Random weights large enough to tell mistakes."""
    for name, parameter in model.named_parameters():
        around = 1.0 if name.endswith(("ln_1.weight", "ln_2.weight")) else 0.0
        parameter.data.normal_(around, 0.2 if parameter.dim() > 1 else 0.1)
    model.tie_weights()


def zoo(head: str, attention: str = "sdpa", **changes) -> PreTrainedModel:
    """One of our classes with random weights, in evaluation mode."""
    config = ZooGPTConfig(**(SIZES | {"num_labels": LABELS, "sep_token_id": DELIMITER} | changes))
    model = getattr(modeling, f"ZooGPT{head}")(config)
    draw_weights(model)
    model.set_attn_implementation(attention)
    return model.eval()


def pair(head: str, folder: Path, attention: str = "sdpa", **changes) -> tuple[PreTrainedModel, PreTrainedModel]:
    """transformers' model with random weights, and ours loaded from what it saves."""
    stock = getattr(transformers, f"OpenAIGPT{head}")(OpenAIGPTConfig(**(SIZES | {"num_labels": LABELS} | changes)))
    draw_weights(stock)
    stock.save_pretrained(folder)
    ours = getattr(modeling, f"ZooGPT{head}").from_pretrained(folder, attn_implementation=attention)
    return stock.eval(), ours.eval()


def batch(lengths: list[int] | None = None, holes: bool = False) -> dict[str, torch.Tensor]:
    """(7, 19) token ids and a mask of random lengths; with `holes`, zeros inside the rows too."""
    lengths = torch.tensor(lengths) if lengths else torch.randint(2, COLUMNS + 1, (ROWS,))
    columns = int(lengths.max())
    mask = (torch.arange(columns) < lengths.unsqueeze(1)).long()
    if holes:
        mask *= torch.randint(0, 2, mask.shape)
        mask[:, 0] = 1
    return {"input_ids": torch.randint(1, START, mask.shape) * mask, "attention_mask": mask}


def pairs_of_sentences(lengths: list[tuple[int, int]]) -> dict[str, torch.Tensor]:
    """Rows "start, A, delimiter, B, extract" of sentences of these lengths, padded on the right."""
    rows = [
        [START, *torch.randint(1, START, (one,)), DELIMITER, *torch.randint(1, START, (other,)), EXTRACT]
        for one, other in lengths
    ]
    return padded(rows)


def padded(rows: list[list[int]]) -> dict[str, torch.Tensor]:
    """Token ids and their mask, padded with 0 on the right."""
    columns = max(map(len, rows))
    ids = torch.tensor([[int(word) for word in row] + [0] * (columns - len(row)) for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (columns - len(row)) for row in rows])
    return {"input_ids": ids, "attention_mask": mask}


def on_the_left(inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The same rows, the padding before them instead of behind."""
    spare = inputs["attention_mask"].shape[1] - inputs["attention_mask"].sum(1)
    return {
        name: torch.stack([row.roll(int(by), 0) for row, by in zip(tensor, spare, strict=True)])
        for name, tensor in inputs.items()
    }


@dataclass
class Case:
    inputs: dict[str, torch.Tensor]
    labels: dict[str, torch.Tensor]
    real: torch.Tensor  # (B, T) or (B, K, T), where outputs of tokens are defined

    @property
    def for_stock(self) -> dict[str, torch.Tensor]:
        """transformers' GPT knows masks of rows only, also where it takes choices."""
        return self.inputs | {"attention_mask": self.inputs["attention_mask"].flatten(0, -2)}


def case(head: str, holes: bool = False) -> Case:
    """Inputs and labels for a head; token labels stand on real tokens only, as data collators put them."""
    inputs = batch(holes=holes)
    rows = len(inputs["input_ids"])
    if head in ("DoubleHeadsModel", "ForMultipleChoice"):
        choices = [inputs, *(batch(inputs["attention_mask"].sum(1).tolist()) for _ in range(CHOICES - 1))]
        columns = min(tensors["input_ids"].shape[1] for tensors in choices)
        inputs = {name: torch.stack([each[name][:, :columns] for each in choices], 1) for name in inputs}
    real = inputs["attention_mask"].bool()
    words = torch.where(real & (torch.rand(real.shape) < 0.7), inputs["input_ids"], -100)
    bounds = torch.randint(0, 2, (rows,))
    choice = torch.randint(0, CHOICES, (rows,))
    if head == "DoubleHeadsModel":
        inputs["mc_token_ids"] = (real * torch.arange(real.shape[-1])).argmax(-1)
    labels = {
        "Model": {},
        "LMHeadModel": {"labels": words},
        "DoubleHeadsModel": {"labels": words, "mc_labels": choice},
        "ForSequenceClassification": {"labels": torch.randint(0, LABELS, (rows,))},
        "ForMultipleChoice": {"labels": choice},
        "ForTokenClassification": {"labels": torch.where(real, torch.randint(0, LABELS, real.shape), -100)},
        "ForQuestionAnswering": {"start_positions": bounds, "end_positions": bounds + 1},
    }[head]
    return Case(inputs, labels, real)


def assert_same_outputs(ours, stock, real: torch.Tensor, atol: float = 1e-5) -> None:
    """Every output transformers' class gives, ours gives too; equal wherever it is defined."""
    for name, expected in stock.items():
        actual = ours[name]
        if isinstance(expected, tuple):
            assert len(actual) == len(expected), name
        for mine, theirs in zip(*((x if isinstance(x, tuple) else (x,)) for x in (actual, expected)), strict=True):
            if name == "hidden_states":  # of choices, transformers unflattens the last one alone
                theirs = theirs.flatten(0, -3)
            assert mine.shape == theirs.shape, name
            if name == "attentions":  # (B, A, T, T): defined for the queries of real tokens
                mine, theirs = mine.transpose(1, 2), theirs.transpose(1, 2)
            for defined in (real, real.flatten(0, -2)):
                if theirs.shape[: defined.dim()] == defined.shape:
                    mine, theirs = mine[defined], theirs[defined]
            torch.testing.assert_close(
                mine, theirs, atol=atol, rtol=1e-5, msg=lambda text, name=name: f"{name}: {text}"
            )


def assert_same_gradients(ours: PreTrainedModel, stock: PreTrainedModel, atol: float = 1e-5) -> None:
    mine = dict(ours.named_parameters())
    compared = [name for name, parameter in stock.named_parameters() if parameter.grad is not None]
    assert len(compared) > 30
    for name in compared:
        expected = stock.get_parameter(name).grad
        torch.testing.assert_close(mine[name].grad, expected, atol=atol, rtol=1e-5, msg=lambda t, n=name: n + t)
