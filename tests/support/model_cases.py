"""What the tests of BERT and GPT share: inputs and labels of a head, and the comparison with transformers' model."""

from dataclasses import dataclass

import torch
from transformers import PreTrainedModel


@dataclass
class Case:
    inputs: dict[str, torch.Tensor]
    labels: dict[str, torch.Tensor]
    real: torch.Tensor  # (B, T) or (B, K, T), where outputs of tokens are defined

    @property
    def for_stock(self) -> dict[str, torch.Tensor]:
        """transformers' GPT knows masks of rows only, also where it takes choices."""
        return self.inputs | {"attention_mask": self.inputs["attention_mask"].flatten(0, -2)}


def assert_same_outputs(ours, stock, real: torch.Tensor, atol: float = 1e-5) -> None:
    """Every output transformers' class gives, ours gives in the same shape; equal wherever it is defined."""
    for name, expected in stock.items():
        actual = ours[name]
        if isinstance(expected, tuple):
            assert len(actual) == len(expected), name
        for mine, theirs in zip(*((x if isinstance(x, tuple) else (x,)) for x in (actual, expected)), strict=True):
            if name == "hidden_states":  # of choices, transformers' GPT unflattens the last one alone
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
