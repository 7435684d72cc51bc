"""While a text is generated, weights are packed once for all steps; a change of the weights is never missed."""

import copy
import gc
import weakref
from threading import Thread

import pytest
import torch
import torch.nn as nn
from torch.nn.utils import parametrize
from transformers import LogitsProcessorList

from modeling.gpt import modeling_gpt as kept
from modeling.shared import modeling_onednn as onednn
from tests.support.gpt_cases import SIZES, zoo


WEIGHTS = 4 * SIZES["n_layer"] + 1
IDS = torch.tensor([[5, 17, 3], [8, 2, 60]])
NEVER = 10**9


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(kept, "PRODUCTS_BEFORE_PACKING", 3)


@pytest.fixture
def copies(monkeypatch) -> list[weakref.ref]:
    """References to the packed copies."""
    made, pack = [], kept.packed

    def packed(*args):
        copy = pack(*args)
        made.append(weakref.ref(copy))
        return copy

    monkeypatch.setattr(kept, "packed", packed)
    return made


@pytest.fixture
def model():
    torch.manual_seed(0)
    return zoo("LMHeadModel")


def generate(model, new: int = 9, **options) -> list[torch.Tensor]:
    """The scores of every step."""
    options = {"do_sample": False, "max_new_tokens": new, "pad_token_id": 0} | options
    output = model.generate(
        IDS, attention_mask=torch.ones_like(IDS), return_dict_in_generate=True, output_logits=True, **options
    )
    return output.logits


def without_packing(monkeypatch, function):
    with monkeypatch.context() as patch:
        patch.setattr(kept, "PRODUCTS_BEFORE_PACKING", NEVER)
        return function()


def assert_same(scores, expected, tolerance: float = 1e-5) -> None:
    assert len(scores) == len(expected)
    torch.testing.assert_close(scores, expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("options", [{}, {"num_beams": 3}, {"cache_implementation": "static"}, {"use_cache": False}])
def test_each_weight_is_packed_once_for_all_steps_and_released_at_the_end(model, copies, options, monkeypatch):
    scores = generate(model, **options)
    assert len(copies) == WEIGHTS
    gc.collect()
    assert not any(copy() for copy in copies)
    assert_same(scores, without_packing(monkeypatch, lambda: generate(model, **options)))
    generate(model, **options)
    assert len(copies) == 2 * WEIGHTS


def test_a_short_text_and_a_call_of_the_model_pack_nothing(model, copies):
    generate(model, new=2)
    with torch.no_grad():
        for _ in range(5):
            model(IDS)
    assert not copies


def test_an_error_releases_the_copies(model, copies):
    def fail(ids, scores):
        if ids.shape[1] > 8:
            raise KeyError("five steps later")
        return scores

    with pytest.raises(KeyError, match="five steps later"):
        generate(model, logits_processor=LogitsProcessorList([fail]))
    gc.collect()
    assert len(copies) == WEIGHTS and not any(copy() for copy in copies)
    assert kept._kept.get() is None


def test_an_assistant_packs_its_weights_once_for_the_whole_text(model, copies):
    assistant = zoo("LMHeadModel", n_layer=1)
    options = {"do_sample": False, "max_new_tokens": 20, "pad_token_id": 0}
    model.generate(IDS[:1], attention_mask=torch.ones_like(IDS[:1]), assistant_model=assistant, **options)
    assert len(copies) == WEIGHTS + 4 + 1


def test_threads_do_not_share_copies(model, copies, monkeypatch):
    expected, found = without_packing(monkeypatch, lambda: generate(model)), []
    threads = [Thread(target=lambda: found.append(generate(model))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(copies) == 2 * WEIGHTS
    for scores in found:
        assert_same(scores, expected)


# Weights that change


class Half(nn.Module):
    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight / 2


def step(model) -> None:
    with torch.enable_grad():
        model(IDS, labels=IDS).loss.backward()
    torch.optim.AdamW(model.parameters(), lr=0.1).step()


def load_other_weights(model, assign: bool) -> None:
    torch.manual_seed(1)
    model.load_state_dict(zoo("LMHeadModel").state_dict(), assign=assign)
    model.tie_weights()


def projection(model) -> nn.Module:
    return model.transformer.h[1].mlp.c_fc


def replace(model) -> None:
    projection(model).weight = nn.Parameter(projection(model).weight.detach() / 2)


def replace_data(model) -> None:
    projection(model).weight.data = projection(model).weight.data / 2


NOTICED = {
    "changed in place": lambda model: projection(model).weight.detach().mul_(0.5),
    "replaced": replace,
    "moved": replace_data,
    "trained": step,
    "loaded": lambda model: load_other_weights(model, assign=False),
    "loaded instead": lambda model: load_other_weights(model, assign=True),
    "parametrized": lambda model: parametrize.register_parametrization(projection(model), "weight", Half()),
    "hooked": lambda model: projection(model).register_forward_hook(lambda module, inputs, output: output / 2),
    "hooked before": lambda model: projection(model).register_forward_pre_hook(lambda _, inputs: (inputs[0] / 2,)),
}
BETWEEN_CALLS = NOTICED | {
    "changed by way of data": lambda model: projection(model).weight.data.mul_(0.5),
    "converted": lambda model: model.to(torch.bfloat16),
    "converted and back": lambda model: model.to(torch.bfloat16).float(),
    "converted to a type that is not packed": lambda model: model.double(),
}


@pytest.mark.parametrize("change", BETWEEN_CALLS)
def test_a_change_between_two_texts_is_never_missed(model, change, monkeypatch):
    before = generate(model)
    BETWEEN_CALLS[change](model)
    expected = without_packing(monkeypatch, lambda: generate(copy.deepcopy(model)))
    after = generate(model)
    if after[0].dtype != torch.bfloat16:  # whose last bits depend on the product
        assert_same(after, expected)
    else:
        assert (after[0] - expected[0]).float().norm() < 0.02 * expected[0].float().norm()
    assert change.startswith("converted") or not torch.allclose(after[0], before[0], atol=1e-2)


@pytest.mark.parametrize("change", NOTICED)
def test_a_change_in_the_middle_of_a_text_is_noticed(model, change, monkeypatch):
    def run() -> list[torch.Tensor]:
        changed = copy.deepcopy(model)

        def change_once(ids, scores):
            if ids.shape[1] == IDS.shape[1] + 5:
                NOTICED[change](changed)
            return scores

        return generate(changed, new=14, logits_processor=LogitsProcessorList([change_once]))

    assert_same(run(), without_packing(monkeypatch, run))


def test_adapters_are_added_to_packed_weights_and_merged_ones_are_packed_anew(model, copies, monkeypatch):
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(target_modules=["c_attn", "c_fc"], fan_in_fan_out=True, init_lora_weights=False)
    adapted = peft.get_peft_model(model, config).eval()
    expected = without_packing(monkeypatch, lambda: generate(adapted))
    assert_same(generate(adapted), expected)
    assert len(copies) == WEIGHTS  # a LoRA layer's own matrices are torch's
    adapted.merge_adapter()
    assert_same(generate(adapted), expected, tolerance=1e-4)
    assert_same(generate(adapted.unmerge_adapter() or adapted.merge_and_unload()), expected, tolerance=1e-4)


# Weights that are not packed


def test_weights_loaded_for_each_product_are_neither_packed_nor_kept_in_memory(model, copies):
    """As accelerate does it when the weights of a model lie on the disk."""
    loaded = []

    def load(module, inputs):
        module.weight = nn.Parameter(module.weight.detach().clone(), requires_grad=False)
        loaded.append(weakref.ref(module.weight))

    projection(model).register_forward_pre_hook(load)
    alive = []
    count = LogitsProcessorList([lambda ids, scores: alive.append(sum(w() is not None for w in loaded)) or scores])
    generate(model, logits_processor=count)
    assert len(copies) == WEIGHTS - 1 and alive == [1] * 9


@pytest.mark.parametrize("reason", ["ZOO_ONEDNN=0", "oneDNN switched off", "autocast", "float64", "inference tensors"])
def test_weights_that_onednn_cannot_or_may_not_multiply_are_not_packed(model, copies, reason, monkeypatch):
    expected = without_packing(monkeypatch, lambda: generate(model))
    if reason == "float64":
        model.double()
    if reason == "inference tensors":
        with torch.inference_mode():
            for module in model.modules():
                for name, weight in list(module.named_parameters(recurse=False)):
                    setattr(module, name, nn.Parameter(weight.clone(), requires_grad=False))
    if reason == "ZOO_ONEDNN=0":
        monkeypatch.setattr(onednn, "_setting", lambda: False)
    with (
        torch.backends.mkldnn.flags(enabled=reason != "oneDNN switched off"),
        torch.autocast("cpu", dtype=torch.bfloat16, enabled=reason == "autocast"),
    ):
        scores = generate(model)
    assert not copies
    if reason != "autocast":
        assert_same([score.float() for score in scores], [score.float() for score in expected])


def test_layers_that_need_a_gradient_pack_nothing(model):
    states = torch.randn(2, 5, SIZES["n_embd"], requires_grad=True)
    layer = projection(model)
    torch.testing.assert_close(layer(states), states @ layer.weight + layer.bias, atol=1e-5, rtol=1e-5)
    token = kept._kept.set({})
    try:
        for _ in range(5):
            assert layer(states).requires_grad
        assert not kept._kept.get()
    finally:
        kept._kept.reset(token)
