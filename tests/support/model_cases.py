"""What the tests of BERT and GPT share: tiny models and batches, and the comparison with transformers' model."""

import copy
import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import DataCollatorWithFlattening, PreTrainedModel


ROWS, COLUMNS, CHOICES, LABELS = 7, 19, 3, 5
Tensors = dict[str, torch.Tensor]


@dataclass
class Case:
    inputs: Tensors
    labels: Tensors
    real: torch.Tensor  # (B, T) or (B, K, T), where outputs of tokens are defined

    @property
    def for_stock(self) -> Tensors:
        """transformers' GPT knows masks of rows only, also where it takes choices."""
        return self.inputs | {"attention_mask": self.inputs["attention_mask"].flatten(0, -2)}


def draw_weights(model: PreTrainedModel) -> None:
    """Random weights large enough to tell mistakes."""
    for name, parameter in model.named_parameters():
        around = 1.0 if name.endswith(("LayerNorm.weight", "ln_1.weight", "ln_2.weight")) else 0.0
        parameter.data.normal_(around, 0.2 if parameter.dim() > 1 else 0.1)
    model.tie_weights()


def ready(ours: PreTrainedModel, attention: str) -> PreTrainedModel:
    """The model with random weights, in evaluation mode."""
    draw_weights(ours)
    ours.set_attn_implementation(attention)
    return ours.eval()


def load_ours(
    kind: type[PreTrainedModel], stock: PreTrainedModel, folder: Path, attention: str
) -> tuple[PreTrainedModel, PreTrainedModel]:
    """transformers' model with random weights, and ours loaded from what it saves."""
    draw_weights(stock)
    stock.save_pretrained(folder)
    return stock.eval(), kind.from_pretrained(folder, attn_implementation=attention).eval()


def built_once(pair: Callable) -> Callable:
    """`pair`, which makes a pair once: of one made from the same arguments and random numbers it hands out copies.

    They are what it would make again, in the folder too, and leave the random numbers where that would leave them.
    """

    @functools.lru_cache(maxsize=64)
    def slot(words: str, random: bytes) -> dict:
        """Of one pair, empty until it is built."""
        return {}

    @functools.wraps(pair)
    def copied(head: str, folder: Path, attention: str = "sdpa", **changes) -> tuple[PreTrainedModel, PreTrainedModel]:
        built = slot(repr((head, attention, sorted(changes.items()))), torch.get_rng_state().numpy().tobytes())
        if not built:
            models = pair(head, folder, attention, **changes)
            files = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
            built |= {"models": models, "files": files, "random": torch.get_rng_state()}
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in built["files"].items():
            (folder / name).write_bytes(content)
        torch.set_rng_state(built["random"])
        stock, ours = copy.deepcopy(built["models"])
        ours.config.name_or_path = str(folder)
        return stock, ours

    return copied


def random_mask(lengths: list[int] | None, holes: bool) -> torch.Tensor:
    """(7, 19) ones for rows of these lengths, or of random ones; with `holes`, zeros inside the rows too."""
    lengths = torch.tensor(lengths) if lengths else torch.randint(2, COLUMNS + 1, (ROWS,))
    columns = int(lengths.max())
    mask = (torch.arange(columns) < lengths.unsqueeze(1)).long()
    if holes:
        mask *= torch.randint(0, 2, mask.shape)
        mask[:, 0] = 1
    return mask


def on_the_left(inputs: Tensors) -> Tensors:
    """The same rows, the padding before them instead of behind."""
    spare = inputs["attention_mask"].shape[1] - inputs["attention_mask"].sum(1)
    return {
        name: torch.stack([row.roll(int(by), 0) for row, by in zip(tensor, spare, strict=True)])
        for name, tensor in inputs.items()
    }


def flattened(inputs: Tensors, labelled: bool = False) -> Tensors:
    """All rows end to end in one, as transformers' padding-free collator lays them; `labelled` for the next tokens."""
    real = inputs["attention_mask"].bool()
    rows = [{"input_ids": ids[kept].tolist()} for ids, kept in zip(inputs["input_ids"], real, strict=True)]
    flat = DataCollatorWithFlattening(return_flash_attn_kwargs=True)(rows)
    if not labelled:
        del flat["labels"]
    if "token_type_ids" in inputs:
        flat["token_type_ids"] = inputs["token_type_ids"][real].unsqueeze(0)
    return flat


def rewrite(folder: Path, change: Callable[[Tensors], Tensors], name: str = "model.safetensors") -> None:
    """Replaces the tensors of a saved folder by what `change` makes of them."""
    tensors = change(load_file(folder / "model.safetensors"))
    (folder / "model.safetensors").unlink()
    if name.endswith(".bin"):
        torch.save(tensors, folder / name)
    else:
        save_file(tensors, folder / name, metadata={"format": "pt"})


def assert_same_tensors(model: PreTrainedModel, expected: PreTrainedModel) -> None:
    assert sorted(model.state_dict()) == sorted(expected.state_dict())
    for name, tensor in expected.state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor), name


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
