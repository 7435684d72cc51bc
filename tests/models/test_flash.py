"""torch's flash attention over the sequences of a packed batch, the default on a GPU. It needs one; here a stand-in
computes the same, one sequence at a time, from what the operation is handed."""

from types import SimpleNamespace

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.bert import add_packing
from modeling.shared import modeling_attention, modeling_packing
from tests.support import bert_cases, gpt_cases
from tests.support.families import EACH_FAMILY
from tests.support.model_cases import assert_same_outputs


CALLS = []
HAS_FLASH = modeling_packing._has_flash.__wrapped__  # of which others keep the first answer


def reference_flash(
    query, key, value, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p, is_causal, return_debug_mask, *, scale
):
    """(N, A, D) of each; a query sees all keys of its sequence, or if causal those up to its own token."""
    assert cum_seq_q.dtype == cum_seq_k.dtype == torch.int32 and return_debug_mask is False
    assert query.dtype == key.dtype == value.dtype and query.stride(-1) == key.stride(-1) == value.stride(-1) == 1
    asked, known = cum_seq_q.tolist(), cum_seq_k.tolist()
    assert (asked[-1], known[-1]) == (len(query), len(key))
    assert (max_q, max_k) == tuple(max(b - a for a, b in zip(ends, ends[1:], strict=False)) for ends in (asked, known))
    CALLS.append(is_causal)
    outputs = []
    for index in range(len(asked) - 1):
        q = query[asked[index] : asked[index + 1]].transpose(0, 1)
        k, v = (states[known[index] : known[index + 1]].transpose(0, 1) for states in (key, value))
        outputs.append(scaled_dot_product_attention(q, k, v, dropout_p=dropout_p, is_causal=is_causal, scale=scale))
    return torch.cat(outputs, 1).transpose(0, 1), None, None, None, None


@pytest.fixture
def _on_gpu(monkeypatch):
    """The processor counts as a device with the operation, and float32 as a type that it computes."""
    CALLS.clear()
    changes = {"FLASH_DEVICES": ("cpu",), "GROUPED_DEVICES": (), "FLASH_TYPES": (torch.float32,), "FLASH_HEADS": (12,)}
    for name, value in (changes | {"FEW_TOKENS": 0, "_has_flash": lambda device: True}).items():
        monkeypatch.setattr(modeling_packing, name, value)
    monkeypatch.setattr(modeling_attention, "FLASH_OPERATION", reference_flash)


def on_a_grid(monkeypatch) -> None:
    monkeypatch.setattr(modeling_packing, "FLASH_DEVICES", ())


def test_the_operation_takes_what_it_is_given():
    operation = torch.ops.aten._flash_attention_forward.default
    assert modeling_packing.FLASH_OPERATION is operation
    arguments = {argument.name: str(argument.type) for argument in operation._schema.arguments}
    assert list(arguments)[:10] == modeling_packing.FLASH_ARGUMENTS
    assert [arguments[name] for name in ("max_q", "dropout_p", "is_causal")] == ["int", "float", "bool"]
    assert len(operation._schema.returns) == 5


def test_an_operation_with_other_arguments_is_not_used(monkeypatch):
    wanted = modeling_packing.FLASH_ARGUMENTS
    monkeypatch.setattr(modeling_packing, "FLASH_ARGUMENTS", [*wanted[:7], "is_causal", "dropout_p", wanted[9]])
    assert modeling_packing.find_flash_operation() is None


def test_a_torch_without_the_operation_has_none(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(torch.ops, "aten", SimpleNamespace())
        assert modeling_packing.find_flash_operation() is None


@pytest.mark.usefixtures("_on_gpu")
@pytest.mark.parametrize("head", ["Model", *bert_cases.HEADS])
def test_bert_gives_the_stock_models_outputs_and_loss(head, tmp_path):
    stock, ours = bert_cases.pair(head, tmp_path)
    this = bert_cases.case(head, holes=True)
    assert_same_outputs(ours(**this.inputs), stock(**this.inputs), this.real)
    assert CALLS == [False] * 3
    if this.labels:
        losses = ours.train()(**this.inputs, **this.labels).loss, stock(**this.inputs, **this.labels).loss
        torch.testing.assert_close(*losses, atol=1e-5, rtol=1e-5)


@pytest.mark.usefixtures("_on_gpu")
@pytest.mark.parametrize("head", ["Model", *gpt_cases.STOCK_HEADS, *gpt_cases.OWN_HEADS])
def test_gpt_gives_the_outputs_and_the_gradients_of_its_grid_of_sdpa(head, monkeypatch):
    model = gpt_cases.zoo(head)
    this = gpt_cases.case(head)

    def run():
        model.zero_grad()
        outputs = model(**this.inputs, **this.labels, use_cache=False)
        (outputs.loss if this.labels else outputs.last_hidden_state.square().mean()).backward()
        gradients = {
            name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None
        }
        return outputs, gradients

    outputs, gradients = run()
    assert len(CALLS) == 3 and True in CALLS
    on_a_grid(monkeypatch)
    expected, expected_gradients = run()
    assert len(CALLS) == 3
    assert_same_outputs(outputs, expected, this.real)
    torch.testing.assert_close(gradients, expected_gradients, atol=1e-5, rtol=1e-5)


@pytest.mark.usefixtures("_on_gpu")
def test_a_single_query_of_a_causal_layer_sees_its_whole_sequence(monkeypatch):
    model, inputs = gpt_cases.zoo("ForSequenceClassification"), gpt_cases.batch()
    logits = model(**inputs).logits
    assert CALLS == [True, True, False]
    on_a_grid(monkeypatch)
    torch.testing.assert_close(logits, model(**inputs).logits, atol=1e-5, rtol=1e-5)


@pytest.mark.usefixtures("_on_gpu")
def test_sequences_in_packed_rows_stay_apart(tmp_path):
    stock, ours = bert_cases.pair("Model", tmp_path)
    inputs = bert_cases.batch(lengths=[5, 9, 2, 5, 4, 6, 3])
    real = inputs["attention_mask"].bool()
    flat = {name: tensor[real].unsqueeze(0) for name, tensor in inputs.items() if name != "attention_mask"}
    flat["position_ids"] = torch.arange(real.shape[1]).expand_as(real)[real].unsqueeze(0)
    expected = stock(**inputs).last_hidden_state[real]
    for unpad in (True, False):  # without packing, by a mask of sdpa
        torch.testing.assert_close(ours(**flat, unpad=unpad).last_hidden_state[0], expected, atol=1e-5, rtol=1e-5)
    assert len(CALLS) == 3


@pytest.mark.usefixtures("_on_gpu")
def test_what_is_not_packed_goes_to_sdpa_and_attentions_are_written_out(tmp_path):
    stock, ours = bert_cases.pair("Model", tmp_path, "eager")
    full = bert_cases.batch(lengths=[19] * 7)
    assert_same_outputs(ours(**full), stock(**full), full["attention_mask"].bool())
    this = bert_cases.case("Model")
    assert_same_outputs(
        ours(**this.inputs, output_attentions=True), stock(**this.inputs, output_attentions=True), this.real
    )
    assert CALLS == []


@pytest.mark.usefixtures("_on_gpu")
@EACH_FAMILY
@pytest.mark.parametrize(
    "lacking", ["FLASH_DEVICES", "FLASH_TYPES", "FLASH_HEADS", "_has_flash", "switched off", "eager"]
)
def test_what_the_operation_does_not_take_is_computed_on_a_grid(cases, lacking, tmp_path, monkeypatch):
    """Such as everything on a T4 or a V100, whose capability is below 8.0."""
    _, model = cases.pair("Model", tmp_path)
    if lacking == "eager":
        model.set_attn_implementation("eager")
    inputs = cases.batch([5, 9, 2])
    expected = model(**inputs, unpad=False).last_hidden_state
    assert not CALLS
    if lacking.isupper():
        monkeypatch.setattr(modeling_packing, lacking, ())
    elif lacking == "_has_flash":
        monkeypatch.setattr(modeling_packing, lacking, lambda device: False)
    elif lacking == "switched off":
        monkeypatch.setattr(torch.backends.cuda, "flash_sdp_enabled", lambda: False)
    found = model(**inputs).last_hidden_state
    real = inputs["attention_mask"].bool()
    torch.testing.assert_close(found[real], expected[real], atol=1e-5, rtol=1e-5)
    assert not CALLS


@pytest.mark.parametrize(
    ("implementation", "dtype", "head_size", "way"),
    [
        ("sdpa", torch.bfloat16, 64, "flash"),
        ("sdpa", torch.float16, 64, "flash"),
        ("sdpa", torch.float16, 192, "flash"),
        ("sdpa", torch.float32, 64, "grid"),
        ("sdpa", None, 64, "grid"),
        ("sdpa", torch.bfloat16, 60, "grid"),
        ("sdpa", torch.bfloat16, 200, "grid"),
        ("eager", torch.bfloat16, 64, "grid"),
        ("flash_attention_2", torch.bfloat16, 64, "named"),
        ("flash_attention_4", torch.bfloat16, 64, "named"),
        ("kernels-community/flash-attn3", torch.bfloat16, 64, "named"),
    ],
)
def test_the_function_the_type_and_the_size_of_heads_decide(implementation, dtype, head_size, way, monkeypatch):
    monkeypatch.setattr(modeling_packing, "_has_flash", lambda device: True)
    config = SimpleNamespace(_attn_implementation=implementation)
    assert modeling_packing.way_to_attend(config, torch.device("cuda"), dtype, head_size) == way
    on_cpu = modeling_packing.way_to_attend(config, torch.device("cpu"), dtype, head_size)
    assert on_cpu == ("named" if way == "named" else "groups")


@pytest.mark.parametrize(
    ("hip", "built", "capability", "known", "has"),
    [
        (None, True, (8, 0), True, True),
        (None, True, (9, 0), True, True),
        (None, True, (7, 5), True, False),
        (None, False, (9, 0), True, False),
        (None, True, (9, 0), False, False),
        ("6.4", True, (9, 4), True, False),
    ],
)
def test_the_gpu_and_the_build_decide(hip, built, capability, known, has, monkeypatch):
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(torch.backends.cuda, "is_flash_attention_available", lambda: built)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(modeling_packing, "FLASH_OPERATION", print if known else None)
    assert HAS_FLASH(torch.device("cuda", 0)) == has


def gradients(model: torch.nn.Module, inputs: dict) -> torch.Tensor:
    """Those of all weights in one tensor."""
    model.zero_grad()
    model(**inputs).last_hidden_state.float().square().mean().backward()
    return torch.cat([weight.grad.flatten() for weight in model.parameters() if weight.grad is not None])


@pytest.mark.usefixtures("_on_gpu")
@EACH_FAMILY
def test_a_t4_trains_in_fp16_on_a_grid(cases, tmp_path, monkeypatch):
    monkeypatch.setattr(modeling_packing, "FLASH_TYPES", (torch.float16,))
    monkeypatch.setattr(modeling_packing, "_has_flash", HAS_FLASH)
    monkeypatch.setattr(torch.backends.cuda, "is_flash_attention_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    _, model = cases.pair("Model", tmp_path)
    inputs = cases.batch([5, 9, 2])
    exact = gradients(model.train(), inputs)
    with torch.autocast("cpu", torch.float16):
        assert (gradients(model, inputs) - exact).norm() < 0.02 * exact.norm()
        assert not CALLS
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
        assert (gradients(model, inputs) - exact).norm() < 0.02 * exact.norm()
    assert len(CALLS) == 3


@pytest.mark.usefixtures("_on_gpu")
@EACH_FAMILY
def test_checkpointing_attends_twice_and_gives_the_same_gradients(cases, tmp_path):
    _, model = cases.pair("Model", tmp_path)
    inputs = add_packing(cases.batch([5, 9, 2]))
    expected = gradients(model.train(), inputs)
    assert len(CALLS) == 3
    model.activation_checkpointing_enable()
    torch.testing.assert_close(gradients(model, inputs), expected)
    assert len(CALLS) == 3 + 2 * 3


@pytest.mark.usefixtures("_on_gpu")
@EACH_FAMILY
def test_dropout_is_the_operations(cases, tmp_path, monkeypatch):
    _, model = cases.pair("Model", tmp_path)
    for module in model.train().modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    for name, module in model.named_modules():
        if name.endswith(("self.dropout", "attn_dropout")):
            module.p = 0.25
    inputs, rates = cases.batch([5, 9, 2]), []

    def flash(*args, **kwargs):
        rates.append(args[7])
        return reference_flash(*args, **kwargs)

    monkeypatch.setattr(modeling_attention, "FLASH_OPERATION", flash)
    model(**inputs)
    model.eval()(**inputs)
    assert rates == [0.25] * 3 + [0.0] * 3


@pytest.mark.usefixtures("_on_gpu")
def test_autocast_casts_what_the_operation_reads(tmp_path, monkeypatch):
    monkeypatch.setattr(modeling_packing, "FLASH_TYPES", (torch.bfloat16,))
    _, model = bert_cases.pair("Model", tmp_path)
    query = model.encoder.layer[0].attention.self.query
    query.register_forward_hook(lambda module, args, output: output.float())  # as an adapter in float32 does
    inputs = bert_cases.batch([5, 9, 2])
    with torch.autocast("cpu", torch.bfloat16):
        found = model(**inputs, unpad=True).last_hidden_state
    assert len(CALLS) == 3
    expected, real = model(**inputs, unpad=False).last_hidden_state, inputs["attention_mask"].bool()
    assert (found[real].float() - expected[real]).abs().max() < 0.05 * expected.abs().max()


def test_a_small_batch_has_no_mask_where_flash_attention_alone_is_allowed(monkeypatch):
    monkeypatch.setattr(modeling_packing, "READ_DEVICES", ())
    ids = torch.ones(2, 3, dtype=torch.long)
    assert modeling_packing.counts_as_padded(ids, ids, None)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        assert not modeling_packing.counts_as_padded(ids, ids, None)
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]):
        assert modeling_packing.counts_as_padded(ids, ids, None)


def test_the_mask_of_a_small_batch_is_where_the_states_are(monkeypatch):
    monkeypatch.setattr(modeling_packing, "READ_DEVICES", ())
    model, ids = bert_cases.zoo("Model"), torch.ones(2, 3, dtype=torch.long)
    plan = modeling_packing.make_plan(model, ids, ids, None, None, {}, None, None, 64)
    assert plan.is_padded
    mask = modeling_attention.create_mask(model.config, torch.empty(2, 3, 8, device="meta"), plan, None, False)
    assert mask.device.type == "meta" and mask.shape == (2, 1, 3, 3)


@pytest.mark.usefixtures("_on_gpu")
def test_a_small_batch_is_computed_with_its_padding_unless_it_carries_its_packing(tmp_path, monkeypatch):
    stock, ours = bert_cases.pair("Model", tmp_path)
    this = bert_cases.case("Model", holes=True)
    tokens = this.inputs["input_ids"].numel()
    for few, calls in ((tokens + 1, 0), (tokens, 3)):
        monkeypatch.setattr(modeling_packing, "FEW_TOKENS", few)
        assert_same_outputs(ours(**this.inputs), stock(**this.inputs), this.real)
        assert len(CALLS) == calls
    monkeypatch.setattr(modeling_packing, "FEW_TOKENS", tokens + 1)
    assert_same_outputs(ours(**this.inputs, unpad=True), stock(**this.inputs), this.real)
    assert len(CALLS) == 6
    batch = add_packing(this.inputs)
    assert_same_outputs(ours(**batch), stock(**this.inputs), this.real)
    assert len(CALLS) == 9
    on_a_grid(monkeypatch)
    monkeypatch.setattr(modeling_attention, "_attend_on_a_grid", None)
    assert_same_outputs(ours(**batch), stock(**this.inputs), this.real)


@pytest.mark.usefixtures("_on_gpu")
@pytest.mark.parametrize("few", [0, 10**6], ids=["large", "small"])
def test_a_copy_of_data_parallel_is_computed(few, tmp_path, monkeypatch):
    stock, ours = bert_cases.pair("Model", tmp_path)
    this = bert_cases.case("Model", holes=True)
    for module in ours.modules():  # as in `nn.parallel.replicate`, whose copies have tensors and no parameters
        vars(module).update({name: weight.detach() for name, weight in module._parameters.items()})
        module._parameters = {}
    monkeypatch.setattr(modeling_packing, "FEW_TOKENS", few)
    assert_same_outputs(ours(**this.inputs), stock(**this.inputs), this.real)


@pytest.mark.usefixtures("_on_gpu")
@pytest.mark.parametrize("dropout", [0.0, 0.25])
def test_a_kernel_that_the_user_put_in_the_place_of_torchs_gets_no_dropout(dropout, monkeypatch):
    monkeypatch.setattr(torch.nn.attention, "current_flash_attention_impl", lambda: "FA3")
    model = gpt_cases.zoo("Model").train()
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = dropout if name.endswith("attn_dropout") else 0.0
    model(**gpt_cases.batch())
    assert len(CALLS) == (0 if dropout else 3)


@pytest.mark.usefixtures("_on_gpu")
def test_embeddings_without_a_weight_of_their_own_are_no_hindrance(tmp_path):
    stock, ours = bert_cases.pair("Model", tmp_path)
    this = bert_cases.case("Model", holes=True)

    class Wrapped(torch.nn.Module):
        def __init__(self, table):
            super().__init__()
            self.table = table

        def forward(self, ids):
            return self.table(ids)

    ours.set_input_embeddings(Wrapped(ours.get_input_embeddings()))
    assert_same_outputs(ours(**this.inputs), stock(**this.inputs), this.real)
    assert len(CALLS) == 3


@pytest.mark.usefixtures("_on_gpu")
def test_the_operation_is_told_that_tokens_see_those_after_them():
    model, inputs = gpt_cases.zoo("Model"), gpt_cases.batch()
    packed, padded = (model(**inputs, is_causal=False, unpad=unpad).last_hidden_state for unpad in (True, False))
    real = inputs["attention_mask"].bool()
    assert CALLS == [False] * 3
    torch.testing.assert_close(packed[real], padded[real], atol=1e-5, rtol=0)
