"""torch's switch for oneDNN's products: on where it rounds nothing, and only there."""

import pytest
import torch

import modeling
from modeling import matmul


@pytest.fixture(autouse=True)
def _asked_anew():
    matmul.rounds_on_cpu.cache_clear()
    yield
    matmul.rounds_on_cpu.cache_clear()


@pytest.mark.parametrize("shape", [(3, 5, 7), (64, 64, 64), (333, 768, 512)])
def test_products_stay_as_exact_as_they_are(shape):
    rows, inner, columns = shape
    inputs, weight = torch.randn(rows, inner), torch.randn(columns, inner)
    exact = (inputs.double() @ weight.double().T).float()
    before = (torch.nn.functional.linear(inputs, weight) - exact).abs().max()
    is_on = modeling.enable_fast_cpu_matmul()
    assert torch.get_float32_matmul_precision() == ("medium" if is_on else "highest")
    assert (torch.nn.functional.linear(inputs, weight) - exact).abs().max() <= 3 * before


def test_a_processor_that_rounds_is_found_and_left_as_it_is(monkeypatch):
    linear = torch.nn.functional.linear

    def rounded(*tensors):
        if torch.get_float32_matmul_precision() == "medium":
            tensors = [tensor.bfloat16() for tensor in tensors]
        return linear(*tensors).float()

    monkeypatch.setattr(torch.nn.functional, "linear", rounded)
    assert matmul.rounds_on_cpu()
    assert not modeling.enable_fast_cpu_matmul()
    assert torch.get_float32_matmul_precision() == "highest"


@pytest.mark.parametrize("precision", ["high", "medium"])
def test_what_the_program_has_chosen_stays(precision):
    torch.set_float32_matmul_precision(precision)
    assert modeling.enable_fast_cpu_matmul() == (precision == "medium")
    assert torch.get_float32_matmul_precision() == precision
