"""`torch_varlen`: torch's flash attention over packed sequences. The kernel needs a GPU; here a stand-in computes the
same, one sequence at a time, from what the kernel is handed."""

import inspect
import sys

import pytest
import torch
from torch.nn.attention import varlen
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from modeling.shared import modeling_attention, modeling_packing
from tests import bert_cases, gpt_cases


CALLS = []


def reference_varlen_attn(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, scale, window_size):
    """(N, A, D) of each; a query sees all keys of its sequence, or with (-1, 0) those up to its own token."""
    assert window_size in ((-1, -1), (-1, 0)) and cu_seq_q.dtype == cu_seq_k.dtype == torch.int32
    asked, known = cu_seq_q.tolist(), cu_seq_k.tolist()
    assert (asked[-1], known[-1]) == (len(query), len(key))
    assert (max_q, max_k) == tuple(max(b - a for a, b in zip(ends, ends[1:], strict=False)) for ends in (asked, known))
    CALLS.append(window_size)
    outputs = []
    for index in range(len(asked) - 1):
        q = query[asked[index] : asked[index + 1]].transpose(0, 1)
        k, v = (states[known[index] : known[index + 1]].transpose(0, 1) for states in (key, value))
        outputs.append(scaled_dot_product_attention(q, k, v, is_causal=window_size == (-1, 0), scale=scale))
    return torch.cat(outputs, 1).transpose(0, 1)


@pytest.fixture
def _on_gpu(monkeypatch):
    """The processor counts as a device with the kernel, and float32 as a type that it computes."""
    CALLS.clear()
    # The copy of this file in a saved folder registers its own function when a test loads it in this process.
    monkeypatch.setitem(
        AttentionInterface._global_mapping, "torch_varlen", modeling_attention.varlen_attention_forward
    )
    monkeypatch.setattr(modeling_packing, "VARLEN_DEVICES", ("cpu",))
    monkeypatch.setattr(modeling_packing, "GROUPED_DEVICES", ())
    monkeypatch.setattr(modeling_attention, "VARLEN_TYPES", (torch.float32,))
    monkeypatch.setattr(modeling_attention, "HEAD_DIMS", (12,))
    monkeypatch.setattr(modeling_attention, "_kernel", lambda: reference_varlen_attn)


def test_the_stand_in_takes_what_torchs_kernel_takes():
    parameters = inspect.signature(varlen.varlen_attn).parameters
    ours = inspect.signature(reference_varlen_attn).parameters
    assert [name for name in parameters if name in ours] == list(ours)
    assert all(parameters[name].kind == ours[name].kind for name in ours)
    assert modeling_attention._kernel() is varlen.varlen_attn


@pytest.mark.usefixtures("_on_gpu")
@pytest.mark.parametrize("head", ["Model", *bert_cases.HEADS])
def test_bert_gives_the_stock_models_outputs_and_loss(head, tmp_path):
    stock, ours = bert_cases.pair(head, tmp_path)
    ours.set_attn_implementation("torch_varlen")
    this = bert_cases.case(head, holes=True)
    bert_cases.assert_same_outputs(ours(**this.inputs), stock(**this.inputs), this.real)
    assert CALLS == [(-1, -1)] * 3
    if this.labels:
        losses = ours.train()(**this.inputs, **this.labels).loss, stock(**this.inputs, **this.labels).loss
        torch.testing.assert_close(*losses, atol=1e-5, rtol=1e-5)


@pytest.mark.usefixtures("_on_gpu")
@pytest.mark.parametrize("head", ["Model", *gpt_cases.STOCK_HEADS, *gpt_cases.OWN_HEADS])
def test_gpt_gives_the_outputs_and_the_gradients_of_its_grid_of_sdpa(head):
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

    (expected, expected_gradients), calls = run(), len(CALLS)
    model.set_attn_implementation("torch_varlen")
    outputs, gradients = run()
    assert calls == 0 and len(CALLS) == 3 and (-1, 0) in CALLS
    gpt_cases.assert_same_outputs(outputs, expected, this.real)
    torch.testing.assert_close(gradients, expected_gradients, atol=1e-5, rtol=1e-5)


@pytest.mark.usefixtures("_on_gpu")
def test_a_single_query_of_a_causal_layer_sees_its_whole_sequence():
    model, inputs = gpt_cases.zoo("ForSequenceClassification"), gpt_cases.batch()
    expected = model(**inputs).logits
    model.set_attn_implementation("torch_varlen")
    torch.testing.assert_close(model(**inputs).logits, expected, atol=1e-5, rtol=1e-5)
    assert CALLS == [(-1, 0), (-1, 0), (-1, -1)]


@pytest.mark.usefixtures("_on_gpu")
def test_sequences_in_packed_rows_stay_apart(tmp_path):
    stock, ours = bert_cases.pair("Model", tmp_path)
    ours.set_attn_implementation("torch_varlen")
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
    stock, ours = bert_cases.pair("Model", tmp_path, attn_implementation="eager")
    ours.set_attn_implementation("torch_varlen")
    full = bert_cases.batch(lengths=[19] * 7)
    bert_cases.assert_same_outputs(ours(**full), stock(**full), full["attention_mask"].bool())
    this = bert_cases.case("Model")
    bert_cases.assert_same_outputs(
        ours(**this.inputs, output_attentions=True), stock(**this.inputs, output_attentions=True), this.real
    )
    assert CALLS == []


@pytest.mark.usefixtures("_on_gpu")
def test_generation_with_padding_on_the_left_writes_the_same_tokens():
    model, prompts = gpt_cases.zoo("LMHeadModel"), gpt_cases.on_the_left(gpt_cases.batch())
    expected = model.generate(**prompts, max_new_tokens=9, do_sample=False)
    model.set_attn_implementation("torch_varlen")
    assert torch.equal(model.generate(**prompts, max_new_tokens=9, do_sample=False), expected)


def test_on_a_device_without_the_kernel_it_is_sdpa(tmp_path, monkeypatch):
    monkeypatch.setattr(modeling_attention, "_kernel", None)
    stock, ours = bert_cases.pair("ForSequenceClassification", tmp_path, attn_implementation="torch_varlen")
    this = bert_cases.case("ForSequenceClassification", holes=True)
    bert_cases.assert_same_outputs(ours(**this.inputs), stock(**this.inputs), this.real)


@pytest.mark.usefixtures("_on_gpu")
@pytest.mark.parametrize("cases", [bert_cases, gpt_cases], ids=["bert", "gpt"])
@pytest.mark.parametrize("lacking", ["dropout", "VARLEN_TYPES", "HEAD_DIMS", "_kernel"])
def test_what_the_kernel_does_not_take_is_what_sdpa_computes(cases, lacking, tmp_path, monkeypatch):
    _, model = cases.pair("Model", tmp_path)
    if lacking == "dropout":
        for module in model.train().modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.25
    else:
        monkeypatch.setattr(modeling_attention, lacking, (lambda: None) if lacking == "_kernel" else ())
    for lengths in ([5, 9, 2], [9, 9, 9]):  # a batch with padding, and one without
        inputs, states = cases.batch(lengths), []
        for attention in ("sdpa", "torch_varlen"):
            model.set_attn_implementation(attention)
            torch.manual_seed(0)
            states.append(model(**inputs).last_hidden_state)
        torch.testing.assert_close(*states)
    assert not CALLS


def test_an_earlier_torch_has_no_such_kernel(monkeypatch):
    monkeypatch.setattr(varlen, "varlen_attn", lambda query, key, value, *boundaries, is_causal=False: query)
    assert modeling_attention._kernel.__wrapped__() is None
    monkeypatch.setitem(sys.modules, "torch.nn.attention.varlen", None)
    assert modeling_attention._kernel.__wrapped__() is None
