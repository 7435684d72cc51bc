"""Matrix products by oneDNN are torch's, for tensors however they lie in memory, with their gradients."""

import importlib.util

import pytest
import torch
import torch.nn as nn
from torch.utils.flop_counter import FlopCounterMode, flop_registry

import modeling
from modeling.shared import modeling_onednn as onednn


LAYOUTS = {
    "rows side by side": lambda: torch.randn(7, 5),
    "many rows": lambda: torch.randn(75, 5),
    "three dimensions": lambda: torch.randn(2, 3, 5),
    "three dimensions and many rows": lambda: torch.randn(7, 19, 5),
    "transposed": lambda: torch.randn(5, 7).T,
    "columns of a wider tensor": lambda: torch.randn(7, 9)[:, 2:7],
    "every other row": lambda: torch.randn(14, 5)[::2],
    "one row": lambda: torch.randn(1, 5),
    "one row many times": lambda: torch.randn(1, 5).expand(7, 5),
    "one number": lambda: torch.randn(1, 1).expand(7, 5),
    "windows that overlap": lambda: torch.randn(2, 13).unfold(1, 5, 2),
    "windows of one row": lambda: torch.randn(1, 80).unfold(1, 5, 2),
}


@pytest.fixture
def parameters():
    return torch.randn(6, 5), torch.randn(6)


def with_gradients(function, inputs, weight, bias) -> list[torch.Tensor]:
    leaves = [part.detach().clone().requires_grad_() for part in (weight, bias)]
    outputs = function(inputs, *leaves)
    loss = (outputs * torch.arange(outputs.numel()).view(outputs.shape).sin()).sum()
    return [outputs.detach(), *torch.autograd.grad(loss, leaves)]


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_products_and_gradients_of_the_weights_are_torchs(layout, parameters):
    inputs = layout()
    assert onednn.is_faster(inputs, parameters[0]), "this build of torch has no oneDNN"
    for found, wanted in zip(
        with_gradients(onednn.linear, inputs, *parameters),
        with_gradients(nn.functional.linear, inputs, *parameters),
        strict=True,
    ):
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)


def test_another_device_is_asked_nothing_but_its_name(monkeypatch):
    """A GPU would wait for each question before each product."""
    monkeypatch.setattr(onednn, "_pays", None)
    layer = onednn.Linear(3, 5, device="meta")
    assert layer(torch.zeros(2, 3, device="meta")).shape == (2, 5)


def test_gradients_of_the_inputs_are_torchs(parameters):
    for shape in ((7, 5), (2, 3, 5), (1, 5), (75, 5), (7, 19, 5)):
        inputs = torch.randn(shape, requires_grad=True)
        grads = []
        for function in (onednn.linear, nn.functional.linear):
            outputs = function(inputs, *parameters)
            grads += torch.autograd.grad((outputs**2).sum(), inputs)
            grads += torch.autograd.grad(function(inputs, *parameters).sum(), inputs)  # an expanded gradient
        torch.testing.assert_close(grads[:2], grads[2:], atol=1e-5, rtol=1e-5)


def test_torchs_counter_counts_products_and_their_gradients(parameters):
    inputs = torch.randn(4, 8, 5, requires_grad=True)  # no rows to fill up
    weight, bias = (part.requires_grad_() for part in parameters)
    with FlopCounterMode(display=False) as counter:
        onednn.linear(inputs, weight, bias).sum().backward()
    assert list(counter.get_flop_counts()["Global"]) == [torch.ops.mkldnn._linear_pointwise]
    assert counter.get_total_flops() == 3 * 2 * 32 * 5 * 6
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        onednn.product(inputs.flatten(0, 1), onednn.packed(weight, onednn.WORTH_PACKING), bias)
    assert counter.get_total_flops() == 2 * 32 * 5 * 6


def test_the_formula_of_the_counter_is_registered_once_for_all_copies_of_the_code(parameters):
    registered = flop_registry[torch.ops.mkldnn._linear_pointwise]
    spec = importlib.util.spec_from_file_location("modeling.shared.modeling_onednn_copy", onednn.__file__)
    copied = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(copied)
    assert flop_registry[torch.ops.mkldnn._linear_pointwise] is registered
    copied.SMALL = 0
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        copied.linear(torch.randn(4, 8, 5), *parameters)
    assert counter.get_total_flops() == 2 * 32 * 5 * 6


@pytest.mark.parametrize(
    "bias",
    [torch.arange(12.0)[::2], torch.ones(1).expand(6), torch.arange(6.0).bfloat16().float(), None],
    ids=["every other number", "one number many times", "side by side", "none"],
)
def test_a_bias_may_lie_in_memory_as_it_likes(bias, parameters):
    weight, _ = parameters
    for inputs in (torch.randn(7, 5), torch.randn(75, 5)):
        found = onednn.linear(inputs, weight, bias)
        torch.testing.assert_close(found, nn.functional.linear(inputs, weight, bias), atol=1e-5, rtol=1e-5)


def test_a_single_vector_and_a_bias_of_another_type_are_torchs(parameters):
    weight, bias = (part.requires_grad_() for part in parameters)
    layer = onednn.Linear(5, 6)
    for inputs in (torch.randn(5), torch.randn(5).requires_grad_()):
        assert torch.equal(onednn.linear(inputs, weight, bias), nn.functional.linear(inputs, weight, bias))
        assert torch.equal(layer(inputs), nn.functional.linear(inputs, layer.weight, layer.bias))
    for product in (onednn.linear, nn.functional.linear):
        with pytest.raises(RuntimeError, match="dtype"):
            product(torch.randn(7, 5), weight, bias.bfloat16())


def test_products_come_in_few_sizes(monkeypatch, parameters):
    """Each size costs memory that is never given back."""
    met = set()
    product = onednn.product
    monkeypatch.setattr(onednn, "product", lambda *args: met.add(args[0].shape) or product(*args))
    for rows in range(1, 1025):
        outputs = onednn.linear(torch.randn(rows, 5), *parameters)
        assert len(outputs) == rows
    numbers = sorted(rows for rows, _ in met)
    assert len(numbers) <= 15 + 8 * 7 and all(b <= 1.125 * a + 1 for a, b in zip(numbers, numbers[1:], strict=False))


@pytest.mark.parametrize(("rows", "transposed", "own"), [(1, True, False), (1, False, True), (2, True, True)])
def test_one_row_goes_to_torch_if_the_weight_lies_as_inputs_by_outputs(rows, transposed, own, monkeypatch, parameters):
    """There a step of generation takes as long, and the row is neither copied nor filled up."""
    called, product = [], onednn.product
    monkeypatch.setattr(onednn, "product", lambda *args: called.append(args) or product(*args))
    inputs, weight = torch.randn(rows, 5), parameters[0]
    weight = weight.T.contiguous().T if transposed else weight
    torch.testing.assert_close(onednn.linear(inputs, weight), inputs @ weight.T, atol=1e-5, rtol=1e-5)
    assert bool(called) == own


@pytest.mark.parametrize("products", [1, onednn.WORTH_PACKING])
def test_packed_weights_give_the_same(products, parameters):
    inputs = torch.randn(7, 5)
    weight = onednn.packed(parameters[0], products)
    torch.testing.assert_close(onednn.product(inputs, weight), inputs @ parameters[0].T, atol=1e-5, rtol=1e-5)


def test_other_types_switched_off_onednn_and_autocast_are_torchs_own(parameters):
    inputs, weight = torch.randn(7, 5), parameters[0]
    assert not onednn.is_faster(inputs.double(), weight.double()) and not onednn.is_faster(inputs[:0], weight)
    with torch.backends.mkldnn.flags(enabled=False):
        assert not onednn.is_faster(inputs, weight)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not onednn.is_faster(inputs, weight)
        assert onednn.linear(inputs, weight).dtype == torch.bfloat16


def test_a_build_that_computes_something_else_is_not_used(parameters, monkeypatch):
    onednn._works.cache_clear()
    monkeypatch.setattr(onednn, "product", lambda inputs, weight, bias=None: inputs @ weight.T + 1)
    try:
        assert not onednn.is_faster(torch.randn(7, 5), parameters[0])
    finally:
        onednn._works.cache_clear()


# Which product


@pytest.fixture
def processor(monkeypatch):
    """Sets whether the processor has AMX, and what ZOO_ONEDNN says, as if the process had just started."""

    def fresh() -> None:
        onednn.has_amx.cache_clear()
        onednn._setting.cache_clear()

    def start(amx: bool, setting: str | None = None) -> None:
        monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)
        monkeypatch.delenv(onednn.VARIABLE, raising=False)
        if setting is not None:
            monkeypatch.setenv(onednn.VARIABLE, setting)
        fresh()

    yield start
    fresh()


@pytest.mark.parametrize(
    ("amx", "setting", "once", "often"),
    [
        (False, None, True, True),
        (False, "", True, True),
        (True, None, False, True),
        (True, "1", True, True),
        (True, "0", False, False),
        (False, "0", False, False),
    ],
)
def test_the_processor_chooses_the_product_unless_the_environment_does(
    amx, setting, once, often, processor, parameters, monkeypatch
):
    processor(amx, setting)
    called, product = [], onednn.product
    monkeypatch.setattr(onednn, "product", lambda *args: called.append(args) or product(*args))
    inputs, weight = torch.randn(7, 5), parameters[0]
    torch.testing.assert_close(onednn.linear(inputs, weight), inputs @ weight.T, atol=1e-5, rtol=1e-5)
    assert bool(called) == onednn.is_faster(inputs, weight) == once
    assert onednn.is_faster(inputs, weight, onednn.WORTH_PACKING) == often
    assert onednn.can_multiply(inputs, weight)


def test_a_processor_with_amx_asks_no_more_about_a_single_product(processor, parameters, monkeypatch):
    processor(amx=True)
    monkeypatch.setattr(onednn, "can_multiply", lambda *tensors: pytest.fail("which takes microseconds"))
    inputs = torch.randn(7, 5)
    torch.testing.assert_close(onednn.linear(inputs, parameters[0]), inputs @ parameters[0].T, atol=1e-5, rtol=1e-5)


def test_a_build_that_does_not_tell_of_amx_uses_onednn(processor, monkeypatch):
    processor(amx=True)
    monkeypatch.delattr(torch.cpu, "_is_amx_tile_supported")
    assert onednn.is_chosen()


def test_an_unknown_choice_is_one_clear_error(processor, parameters):
    processor(amx=False, setting="yes")
    with pytest.raises(ValueError, match="ZOO_ONEDNN=yes: set it to 1 for oneDNN's products, to 0 for torch's"):
        onednn.linear(torch.randn(7, 5), parameters[0])


def test_a_small_product_is_torchs(monkeypatch):
    """There the way to oneDNN takes longer than the product."""
    called, product = [], onednn.product
    monkeypatch.setattr(onednn, "SMALL", 7 * 5 * 6)
    monkeypatch.setattr(onednn, "product", lambda *args: called.append(args) or product(*args))
    inputs, weight = torch.randn(8, 5), torch.randn(6, 5)
    for rows, own in ((6, False), (7, True), (8, True)):
        called.clear()
        onednn.linear(inputs[:rows], weight)
        assert bool(called) == own


@pytest.mark.filterwarnings("ignore")
def test_layers_that_get_the_plain_type_are_quantized():
    """torch's old quantization asks for the type itself."""
    model = modeling.ZooBertModel(modeling.ZooBertConfig(vocab_size=61, hidden_size=24, num_attention_heads=3)).eval()
    ids = torch.randint(1, 61, (2, 7))
    expected = model(ids).last_hidden_state
    layers = [layer for layer in model.modules() if isinstance(layer, torch.nn.Linear)]
    for layer in layers:
        layer.__class__ = torch.nn.Linear
    torch.testing.assert_close(model(ids).last_hidden_state, expected, atol=1e-5, rtol=1e-5)
    small = torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear})
    assert not any(type(layer) is torch.nn.Linear for layer in small.modules())
    assert 0 < (small(ids).last_hidden_state - expected).abs().max() < 0.5
