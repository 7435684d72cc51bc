"""Tiny BERTs with odd, unequal sizes, the same weights in transformers' class and ours, and batches for every head."""

from dataclasses import dataclass

import torch
import transformers
from transformers import BertConfig, PreTrainedModel

import modeling


SIZES = {
    "vocab_size": 97,
    "hidden_size": 36,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "intermediate_size": 53,
    "max_position_embeddings": 41,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
ROWS, COLUMNS, CHOICES, LABELS = 7, 19, 3, 5
HEADS = [
    "ForPreTraining",
    "ForMaskedLM",
    "ForNextSentencePrediction",
    "ForSequenceClassification",
    "ForTokenClassification",
    "ForQuestionAnswering",
    "ForMultipleChoice",
]


def stock_config(head: str = "Model", **changes) -> BertConfig:
    labels = 2 if head in ("ForQuestionAnswering", "ForNextSentencePrediction") else LABELS
    return BertConfig(**(SIZES | {"num_labels": labels} | changes))


def pair(head: str, folder, attn_implementation: str = "sdpa", **changes) -> tuple[PreTrainedModel, PreTrainedModel]:
    """transformers' model with random weights large enough to tell mistakes, and ours loaded from what it saves."""
    stock = getattr(transformers, f"Bert{head}")(stock_config(head, **changes))
    for name, parameter in stock.named_parameters():
        around = 1.0 if name.endswith("LayerNorm.weight") else 0.0
        parameter.data.normal_(around, 0.2 if parameter.dim() > 1 else 0.1)
    stock.tie_weights()
    stock.set_attn_implementation(attn_implementation)
    stock.save_pretrained(folder)
    ours = getattr(modeling, f"ZooBert{head}").from_pretrained(folder, attn_implementation=attn_implementation)
    return stock.eval(), ours.eval()


def batch(lengths: list[int] | None = None, holes: bool = False) -> dict[str, torch.Tensor]:
    """(7, 19) token ids, segments and a mask of random lengths; with `holes`, zeros inside the rows too."""
    lengths = torch.tensor(lengths) if lengths else torch.randint(2, COLUMNS + 1, (ROWS,))
    columns = int(lengths.max())
    mask = (torch.arange(columns) < lengths.unsqueeze(1)).long()
    if holes:
        mask *= torch.randint(0, 2, mask.shape)
        mask[:, 0] = 1
    return {
        "input_ids": torch.randint(1, SIZES["vocab_size"], mask.shape) * mask,
        "attention_mask": mask,
        "token_type_ids": torch.randint(0, 2, mask.shape),
    }


@dataclass
class Case:
    inputs: dict[str, torch.Tensor]
    labels: dict[str, torch.Tensor]
    real: torch.Tensor  # (B, T), where outputs of tokens are defined


def case(head: str, holes: bool = False) -> Case:
    """Inputs and labels for a head; token labels stand on real tokens only, as data collators put them."""
    inputs = batch(holes=holes)
    real = inputs["attention_mask"].bool()
    rows = len(real)
    of_classes = torch.randint(0, LABELS, (rows,))
    of_two = torch.randint(0, 2, (rows,))
    words = torch.where(real & (torch.rand(real.shape) < 0.5), torch.randint(0, SIZES["vocab_size"], real.shape), -100)
    labels = {
        "Model": {},
        "ForPreTraining": {"labels": words, "next_sentence_label": of_two},
        "ForMaskedLM": {"labels": words},
        "ForNextSentencePrediction": {"labels": of_two},
        "ForSequenceClassification": {"labels": of_classes},
        "ForTokenClassification": {
            "labels": torch.where(real, torch.randint(0, LABELS, real.shape), torch.tensor(-100))
        },
        "ForQuestionAnswering": {"start_positions": of_two, "end_positions": of_two + 1},
        "ForMultipleChoice": {"labels": torch.randint(0, CHOICES, (rows,))},
    }[head]
    if head == "ForMultipleChoice":
        inputs = {name: torch.stack([tensor] * CHOICES, 1) for name, tensor in inputs.items()}
        inputs["input_ids"] = torch.randint(1, SIZES["vocab_size"], inputs["input_ids"].shape)
        real = inputs["attention_mask"].bool()
    return Case(inputs, labels, real)


def assert_same_outputs(ours, stock, real: torch.Tensor, atol: float = 1e-5) -> None:
    """Every output transformers' class gives, ours gives in the same shape; equal wherever it is defined."""
    for name, expected in stock.items():
        actual = ours[name]
        if isinstance(expected, tuple):
            assert len(actual) == len(expected), name
        for mine, theirs in zip(*((x if isinstance(x, tuple) else (x,)) for x in (actual, expected)), strict=True):
            assert mine.shape == theirs.shape, name
            if name == "attentions":  # (B, A, T, T): defined for the queries of real tokens
                mine, theirs = mine.transpose(1, 2), theirs.transpose(1, 2)
            if theirs.shape[:2] == real.shape:
                mine, theirs = mine[real], theirs[real]
            torch.testing.assert_close(
                mine, theirs, atol=atol, rtol=1e-5, msg=lambda text, name=name: f"{name}: {text}"
            )


def assert_same_gradients(ours: PreTrainedModel, stock: PreTrainedModel, atol: float = 1e-5) -> None:
    mine = dict(ours.named_parameters())
    for name, parameter in stock.named_parameters():
        if parameter.grad is not None:
            torch.testing.assert_close(
                mine[name].grad, parameter.grad, atol=atol, rtol=1e-5, msg=lambda t, n=name: n + t
            )
