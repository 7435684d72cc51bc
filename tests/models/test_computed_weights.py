"""Weights that hooks compute (torch's pruning, weight_norm and spectral_norm) are the weights that models use."""

from collections.abc import Iterator

import peft
import pytest
import torch
from torch.nn.utils import prune, remove_spectral_norm, remove_weight_norm, spectral_norm, weight_norm

from tests.models.test_elmo_ecosystem import HEADS, PLAIN, batch, build


WAYS = {
    "prune": (lambda layer, name: prune.random_unstructured(layer, name, 0.3), prune.remove),
    "weight_norm": (weight_norm, remove_weight_norm),
    "spectral_norm": (spectral_norm, remove_spectral_norm),
}


def weights_of(model: torch.nn.Module, way: str) -> Iterator[tuple[torch.nn.Module, str]]:
    """The modules and the names of the weights that can be computed in this way: only pruning takes vectors."""
    for part in list(model.modules()):
        for name, weight in list(part.named_parameters(recurse=False)):
            if weight.dim() > (0 if way == "prune" else 1):
                yield part, name


def loss_of(model: torch.nn.Module, inputs: dict) -> torch.Tensor:
    output = model(**inputs)
    return output.last_hidden_state.square().mean() if output.get("loss") is None else output.loss


def assert_uses_what_hooks_compute(model: torch.nn.Module, inputs: dict, way: str) -> None:
    """The weights that were trained are those that the model uses, with the hooks and without."""
    put_on, take_off = WAYS[way]
    computed = list(weights_of(model, way))
    for part, name in computed:
        put_on(part, name)
    learned = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer, before = torch.optim.SGD(learned, lr=0.1), loss_of(model.eval(), inputs).item()
    for _ in range(2):
        optimizer.zero_grad()
        loss_of(model.train(), inputs).backward()
        optimizer.step()
    with torch.no_grad():
        expected = loss_of(model.eval(), inputs).item()
        for part, name in computed:
            take_off(part, name)
        assert loss_of(model, inputs).item() == pytest.approx(expected, rel=1e-5)
    assert expected != pytest.approx(before, rel=1e-4)


@pytest.mark.parametrize(
    "way, head", [("prune", head) for head in HEADS] + [(way, HEADS[2]) for way in ("weight_norm", "spectral_norm")]
)
def test_elmo_uses_the_weights_that_hooks_compute(way, head):
    model = build(head, freeze_bilm=False, **PLAIN)
    assert_uses_what_hooks_compute(model, batch(head, labels=head != "Model"), way)


def test_a_sampled_softmax_uses_the_weights_that_hooks_compute():
    head = "ModelForPreTraining"
    model = build(head, freeze_bilm=False, num_sampled=5, state="zero", **PLAIN)
    rows = batch(head)["input_ids"].clamp(min=1)
    labels = torch.randint(0, model.config.lm_vocab_size, (2, *rows.shape[:2]))
    streams = {"input_ids": rows, "reverse_input_ids": rows.flip(1), "labels": labels[0], "reverse_labels": labels[1]}
    samples = {"sampled_words": torch.tensor([[0, 1, 2, 4, 7], [1, 2, 3, 5, 9]]), "num_draws": torch.tensor([6, 8])}
    assert_uses_what_hooks_compute(model, streams | samples, "prune")


def test_lora_on_the_product_of_two_words_is_refused():
    head = "ModelForQuestionAnswering"
    model = peft.get_peft_model(build(head), peft.LoraConfig(target_modules=["product"]))
    with pytest.raises(NotImplementedError, match="would have no effect: leave this layer out of .* target_modules"):
        model(**batch(head))
