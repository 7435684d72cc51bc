"""Hooks see what they see in transformers' models: whoever listens inside gets padded states, rows and columns."""

from contextlib import contextmanager
from functools import partial

import accelerate
import pytest
import torch
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from torch.distributed.fsdp import fully_shard
from torch.nn.modules.module import register_module_forward_hook
from torch.utils.flop_counter import FlopCounterMode
from transformers import PreTrainedModel, Trainer, TrainingArguments
from transformers.integrations.neftune import neftune_post_forward_hook
from transformers.modeling_layers import GradientCheckpointingLayer

from modeling.shared.modeling_packing import Packing
from tests.support import bert_cases, gpt_cases


BERT_HEADS = ["Model", *bert_cases.HEADS]
GPT_HEADS = ["Model", "LMHeadModel", "ForSequenceClassification"]
EACH_HEAD = pytest.mark.parametrize(
    "cases, head", [(bert_cases, head) for head in BERT_HEADS] + [(gpt_cases, head) for head in GPT_HEADS]
)
EACH_FAMILY = pytest.mark.parametrize(
    "cases, head", [(bert_cases, "ForTokenClassification"), (gpt_cases, "LMHeadModel")]
)


@pytest.fixture
def packs(monkeypatch):
    """Whether a call of the model computes real tokens only."""
    calls, pack = [], Packing.pack

    def recorded(self, tensor):
        calls.append(tensor)
        return pack(self, tensor)

    monkeypatch.setattr(Packing, "pack", recorded)

    def packs(model: PreTrainedModel, **inputs) -> bool:
        calls.clear()
        model(**inputs)
        return bool(calls)

    return packs


def first_state(cases, model: PreTrainedModel) -> torch.nn.Module:
    """The module that turns words into the states which the layers read."""
    return model.base_model.embeddings if cases is bert_cases else model.base_model.drop


def inputs_of(cases, head: str) -> tuple[dict, dict, torch.Tensor]:
    """What ours takes, what transformers' takes, and where tokens are."""
    case = cases.case(head)
    ours = case.inputs if cases is bert_cases else case.inputs | {"use_cache": False}
    return ours, case.inputs if cases is bert_cases else case.for_stock, case.real.flatten(0, -2)


def outputs_of_modules(model: PreTrainedModel, inputs: dict) -> dict[str, torch.Tensor]:
    """What hooks on all modules see, by the modules' names, of those that give one tensor."""
    seen = {}

    def record(module, args, output, name):
        if torch.is_tensor(output):
            seen[name] = output

    handles = [module.register_forward_hook(partial(record, name=name)) for name, module in model.named_modules()]
    model(**inputs)
    for handle in handles:  # transformers' GPTs share their activation
        handle.remove()
    return seen


@EACH_HEAD
@torch.no_grad()
def test_a_hook_on_any_module_sees_what_it_sees_in_the_stock_model(cases, head, tmp_path):
    models, (ours, stock, real) = cases.pair(head, tmp_path), inputs_of(cases, head)
    seen = [outputs_of_modules(model, inputs) for model, inputs in zip(models, (stock, ours), strict=True)]
    compared = [name for name in seen[0] if name in seen[1] and name != "score"]  # which scores every token there
    assert len(compared) > 20
    for name in compared:
        expected, actual = seen[0][name], seen[1][name]
        assert actual.shape == expected.shape, name
        if expected.shape[:2] == real.shape:
            actual, expected = actual[real], expected[real]
        torch.testing.assert_close(
            actual, expected, atol=1e-5, rtol=1e-5, msg=lambda text, name=name: f"{name}: {text}"
        )


@EACH_FAMILY
def test_a_hook_that_changes_a_column_changes_that_token(cases, head, tmp_path):
    models, (ours, stock, real) = cases.pair(head, tmp_path), inputs_of(cases, head)
    logits = []
    for model, inputs in zip(models, (stock, ours), strict=True):
        before = model(**inputs).logits
        first_state(cases, model).register_forward_hook(
            lambda module, args, output: output.index_fill(1, torch.tensor(1), 0.0)
        )
        logits.append(model(**inputs).logits)
        assert not torch.allclose(logits[-1][real], before[real], atol=1e-3)
    torch.testing.assert_close(logits[1][real], logits[0][real], atol=1e-5, rtol=1e-5)


@EACH_FAMILY
def test_a_hook_that_only_watches_changes_no_output(cases, head, tmp_path):
    _, model = cases.pair(head, tmp_path)
    inputs, _, _ = inputs_of(cases, head)
    before = model(**inputs).logits
    first_state(cases, model).register_forward_hook(lambda *args: None)
    torch.testing.assert_close(model(**inputs).logits, before, atol=1e-5, rtol=1e-5)


# Which hooks


def replaced(module):
    """Another `forward` in the place of the module's, as nnsight does it."""
    forward = module.forward
    module.forward = lambda *args: forward(*args)
    return lambda: delattr(module, "forward")


LISTENERS = {
    "forward": lambda module: module.register_forward_hook(lambda *args: None).remove,
    "forward pre": lambda module: module.register_forward_pre_hook(lambda *args: None).remove,
    "backward": lambda module: module.register_full_backward_hook(lambda *args: None).remove,
    "backward pre": lambda module: module.register_full_backward_pre_hook(lambda *args: None).remove,
    "partial": lambda module: module.register_forward_hook(partial(lambda *args: None, 1)).remove,
    "builtin": lambda module: module.register_forward_pre_hook({}.get).remove,
    "every module": lambda module: register_module_forward_hook(lambda *args: None).remove,
    "replaced": replaced,
}


@EACH_FAMILY
@pytest.mark.parametrize("listener", LISTENERS)
def test_padding_is_computed_while_someone_listens_and_only_then(cases, head, listener, packs, tmp_path):
    _, model = cases.pair(head, tmp_path)
    inputs, _, _ = inputs_of(cases, head)
    assert packs(model, **inputs)
    remove = LISTENERS[listener](first_state(cases, model))
    assert not packs(model, **inputs)
    assert packs(model, **inputs, unpad=True), "the argument did not win"
    remove()
    assert packs(model, **inputs)


@EACH_HEAD
def test_each_head_hands_the_argument_on(cases, head, packs, tmp_path):
    _, model = cases.pair(head, tmp_path)
    inputs, _, _ = inputs_of(cases, head)
    assert packs(model, **inputs) and not packs(model, **inputs, unpad=False)


def test_adapters_chosen_for_each_row_find_the_rows(packs, tmp_path):
    model = get_peft_model(
        bert_cases.pair("ForTokenClassification", tmp_path)[1], LoraConfig(target_modules=["query"])
    )
    inputs = bert_cases.case("ForTokenClassification").inputs
    rows = ["default", "__base__"] * 3 + ["default"]
    for name, parameter in model.named_parameters():
        if "lora" in name:
            parameter.data.normal_()
    mixed = model.eval()(**inputs, adapter_names=rows).logits
    whole = [model(**inputs).logits, model(**inputs, adapter_names=["__base__"] * 7).logits]
    assert not torch.allclose(*whole, atol=1e-2)
    expected = torch.stack([whole[name == "__base__"][row] for row, name in enumerate(rows)])
    real = inputs["attention_mask"].bool()
    torch.testing.assert_close(mixed[real], expected[real], atol=1e-4, rtol=1e-4)
    assert packs(model, **inputs)


@contextmanager
def recorded(model):
    model(**bert_cases.batch(), output_hidden_states=True)  # installs hooks that stay
    yield model


@contextmanager
def inputs_that_require_gradients(model):
    model.enable_input_require_grads()
    yield model


@contextmanager
def lora_with_checkpointing(model):
    model.gradient_checkpointing_enable()
    yield get_peft_model(model, LoraConfig(target_modules=["query"]))


@contextmanager
def on_disk(model):
    yield accelerate.cpu_offload(model, execution_device="cpu")


@contextmanager
def counted(model):
    with FlopCounterMode(display=False):
        yield model


@contextmanager
def sharded(model):
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
        for layer in model.bert.encoder.layer:
            fully_shard(layer, mesh=mesh)
        yield fully_shard(model, mesh=mesh)
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize(
    "prepare", [recorded, inputs_that_require_gradients, lora_with_checkpointing, on_disk, counted, sharded]
)
def test_hooks_that_take_any_shape_cost_no_padding(prepare, packs, tmp_path):
    _, model = bert_cases.pair("ForTokenClassification", tmp_path)
    with prepare(model) as prepared:
        assert (
            any(
                "forward" in vars(module) or module._forward_hooks or module._forward_pre_hooks
                for module in model.modules()
            )
            or torch.nn.modules.module._has_any_global_hook()
        ), "nothing listens"
        assert packs(prepared, **bert_cases.batch())


# Noise on the embeddings (NEFTune)


def test_the_noise_of_neftune_is_scaled_by_the_columns(tmp_path):
    stock, ours = gpt_cases.pair("LMHeadModel", tmp_path)
    inputs, losses = gpt_cases.case("LMHeadModel"), []
    for model in (stock, ours):
        embeddings = model.train().get_input_embeddings()
        embeddings.neftune_noise_alpha = 5
        embeddings.register_forward_hook(neftune_post_forward_hook)
        torch.manual_seed(0)
        losses.append(model(**inputs.inputs, **inputs.labels).loss)
    torch.testing.assert_close(losses[1], losses[0], atol=1e-5, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("cases", [bert_cases, gpt_cases])
def test_trainer_adds_the_noise_as_to_the_stock_model(cases, tmp_path):
    rows = []
    for length in (3, 9, 5, 7):
        ids = torch.randint(1, 90, (length,)).tolist()
        rows.append({"input_ids": ids + [0] * (9 - length), "attention_mask": [1] * length + [0] * (9 - length)})
        rows[-1]["labels"] = length % 3
    losses = []
    for model in cases.pair("ForSequenceClassification", tmp_path):
        arguments = TrainingArguments(
            str(tmp_path), max_steps=4, per_device_train_batch_size=2, neftune_noise_alpha=5, seed=0,
            learning_rate=1e-3, report_to="none", disable_tqdm=True, use_cpu=True, save_strategy="no", logging_steps=1,
        )  # fmt: skip
        trainer = Trainer(model, arguments, train_dataset=Dataset.from_list(rows))
        trainer.train()
        losses.append([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
    assert len(losses[0]) == 4
    assert losses[1] == pytest.approx(losses[0], abs=1e-3)


# The configuration


@EACH_FAMILY
def test_the_configuration_decides_unless_the_call_does(cases, head, packs, tmp_path):
    stock, ours = cases.pair(head, tmp_path)
    inputs, for_stock, _ = inputs_of(cases, head)
    ours.config.unpad = False
    ours.save_pretrained(tmp_path / "saved")
    saved = type(ours).from_pretrained(tmp_path / "saved").eval()
    assert not saved.config.unpad and not packs(saved, **inputs)
    torch.testing.assert_close(saved(**inputs).logits, stock(**for_stock).logits, atol=1e-5, rtol=1e-5)  # padding too
    assert packs(saved, **inputs, unpad=True)
    saved.config.unpad = True
    assert packs(saved, **inputs) and not packs(saved, **inputs, unpad=False)


@pytest.mark.parametrize("cases", [bert_cases, gpt_cases])
@torch.no_grad()
def test_a_classifier_computes_all_tokens_where_someone_may_look_at_them(cases, monkeypatch, tmp_path):
    stock, ours = cases.pair("ForSequenceClassification", tmp_path)
    inputs, for_stock, real = inputs_of(cases, "ForSequenceClassification")
    seen = []
    for model, given in ((stock, for_stock), (ours, inputs)):
        handle = model.base_model.register_forward_hook(lambda module, args, output: seen.append(output[0]))
        model(**given)
        handle.remove()
    torch.testing.assert_close(seen[1][real], seen[0][real], atol=1e-5, rtol=1e-5)

    shapes = []
    layer = type(next(module for module in ours.modules() if isinstance(module, GradientCheckpointingLayer)))
    forward = layer.forward

    def listen(self, *args, **kwargs):  # which no look at the modules can find
        states = forward(self, *args, **kwargs)
        shapes.append(states.shape[:-1])
        return states

    monkeypatch.setattr(layer, "forward", listen)
    ours.config.unpad = False
    ours(**inputs)
    assert set(shapes) == {real.shape}


# Attentions


@EACH_HEAD
@torch.no_grad()
def test_attentions_are_given_whatever_the_attention_function_was(cases, head, tmp_path):
    stock, ours = cases.pair(head, tmp_path)
    stock.set_attn_implementation("eager")
    case = cases.case(head)
    inputs = case.inputs if cases is bert_cases else case.for_stock
    assert ours.config._attn_implementation == "sdpa"
    found = ours(**case.inputs, output_attentions=True)
    cases.assert_same_outputs(found, stock(**inputs, output_attentions=True), case.real)
    assert len(found.attentions) == 3
    assert ours(**case.inputs).get("attentions") is None


@pytest.mark.usefixtures("_without_compiler")
@EACH_FAMILY
def test_attention_that_has_none_to_show_says_what_to_do(cases, head, tmp_path):
    model = cases.pair(head, tmp_path)[1]
    model.set_attn_implementation("flex_attention")
    with pytest.raises(ValueError, match=r"'flex_attention' has none to show: call model.set_attn_implementation"):
        model(**cases.batch(), output_attentions=True)
