"""Tiny BERTs with odd, unequal sizes, the same weights in transformers' class and ours, and batches for every head."""

from pathlib import Path

import torch
import transformers
from transformers import BertConfig, PreTrainedModel

import modeling
from modeling import ZooBertConfig
from tests.support.model_cases import CHOICES, LABELS, Case, Tensors, built_once, load_ours, random_mask, ready


STOCK, STOCK_CONFIG, OURS, CONFIG = "Bert", BertConfig, "ZooBert", ZooBertConfig  # how names of classes begin
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
HEADS = [
    "ForPreTraining",
    "ForMaskedLM",
    "ForNextSentencePrediction",
    "ForSequenceClassification",
    "ForTokenClassification",
    "ForQuestionAnswering",
    "ForMultipleChoice",
]
OF_TWO = ["ForQuestionAnswering", "ForNextSentencePrediction"]
# What older files of ForPreTraining hold.
AGES = {
    "gamma and beta": lambda tensors: {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
        for name, tensor in tensors.items()
    },
    "position_ids": lambda tensors: (
        tensors | {"bert.embeddings.position_ids": torch.arange(SIZES["max_position_embeddings"]).unsqueeze(0)}
    ),
    "untied copies": lambda tensors: (
        tensors
        | {
            "cls.predictions.decoder.weight": tensors["bert.embeddings.word_embeddings.weight"].clone(),
            "cls.predictions.decoder.bias": tensors["cls.predictions.bias"].clone(),
        }
    ),
}


def stock_config(head: str = "Model", **changes) -> BertConfig:
    labels = 2 if head in OF_TWO else LABELS
    return BertConfig(**(SIZES | {"num_labels": labels} | changes))


def zoo(head: str, attention: str = "sdpa", **changes) -> PreTrainedModel:
    """One of our classes with random weights, in evaluation mode."""
    labels = 2 if head in OF_TWO else LABELS
    return ready(
        getattr(modeling, f"ZooBert{head}")(ZooBertConfig(**(SIZES | {"num_labels": labels} | changes))), attention
    )


@built_once
def pair(head: str, folder: Path, attention: str = "sdpa", **changes) -> tuple[PreTrainedModel, PreTrainedModel]:
    """transformers' model with random weights, and ours loaded from what it saves."""
    stock = getattr(transformers, f"Bert{head}")(stock_config(head, **changes))
    stock.set_attn_implementation(attention)
    return load_ours(getattr(modeling, f"ZooBert{head}"), stock, folder, attention)


def batch(lengths: list[int] | None = None, holes: bool = False) -> Tensors:
    """(7, 19) token ids, segments and a mask of random lengths; with `holes`, zeros inside the rows too."""
    mask = random_mask(lengths, holes)
    return {
        "input_ids": torch.randint(1, SIZES["vocab_size"], mask.shape) * mask,
        "attention_mask": mask,
        "token_type_ids": torch.randint(0, 2, mask.shape),
    }


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
