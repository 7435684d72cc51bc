"""BERT on the real tokens only, where GPT has another test or no such thing; test_packing has what both do."""

import pytest
import torch

from modeling.shared import modeling_packing
from tests.support.bert_cases import batch, case, pair
from tests.support.model_cases import ROWS, flattened


def test_the_first_token_alone_is_the_first_of_all(tmp_path):
    _, ours = pair("Model", tmp_path)
    this = case("Model")
    for unpad in (True, False):
        every = ours(**this.inputs, unpad=unpad)
        first = ours(**this.inputs, unpad=unpad, first_token_only=True)
        assert first.last_hidden_state.shape == (ROWS, 1, 36)
        torch.testing.assert_close(first.last_hidden_state, every.last_hidden_state[:, :1])
        torch.testing.assert_close(first.pooler_output, every.pooler_output)
    recorded = ours(**this.inputs, first_token_only=True, output_hidden_states=True).hidden_states
    torch.testing.assert_close(recorded[1:3], ours(**this.inputs, output_hidden_states=True).hidden_states[1:3])


@pytest.mark.usefixtures("_without_compiler")
@pytest.mark.parametrize("attention", ["eager", "sdpa", "flex_attention"])
@pytest.mark.parametrize("way", ["in groups", "on a grid", "padded"])
def test_packed_rows_do_not_leak_into_each_other(attention, way, tmp_path, monkeypatch):
    if way == "on a grid":
        monkeypatch.setattr(modeling_packing, "GROUPED_DEVICES", ())
        monkeypatch.setattr(modeling_packing, "FEW_TOKENS", 0)
    unpad = way != "padded"
    stock, ours = pair("Model", tmp_path)
    ours.set_attn_implementation(attention)
    inputs = batch(lengths=[5, 9, 2, 5, 4, 6, 3])
    flat = flattened(inputs)
    with torch.no_grad():
        expected = stock(**inputs).last_hidden_state[inputs["attention_mask"].bool()]
        torch.testing.assert_close(ours(**flat, unpad=unpad).last_hidden_state[0], expected, atol=1e-5, rtol=1e-5)
        leaking = stock(**{name: flat[name] for name in ("input_ids", "position_ids", "token_type_ids")})
    assert (leaking.last_hidden_state[0] - expected).abs().max() > 0.01  # or the test could not fail


@pytest.mark.slow
def test_flex_attention_gives_the_stock_models_outputs(tmp_path):
    """In code that torch compiles, so in one layer, which computes every token."""
    stock, ours = pair("ForTokenClassification", tmp_path, num_hidden_layers=1)
    ours.set_attn_implementation("flex_attention")
    inputs = batch()
    # A thread: helpers would each import torch.
    with torch.no_grad(), torch._inductor.config.patch(compile_threads=1):
        found, real = ours(**inputs).logits, inputs["attention_mask"].bool()
    torch.testing.assert_close(found[real], stock(**inputs).logits[real], atol=1e-5, rtol=1e-5)


def test_padding_never_answers_a_question(tmp_path):
    _, ours = pair("ForQuestionAnswering", tmp_path)
    this = case("ForQuestionAnswering")
    for given in ({}, {"unpad": False}, this.labels):
        output = ours(**this.inputs, **given)
        for scores in (output.start_logits, output.end_logits):
            assert this.real.gather(1, scores.argmax(1, keepdim=True)).all()
            assert (scores[~this.real] == torch.finfo(scores.dtype).min).all()


@pytest.mark.slow
@pytest.mark.parametrize("head", ["ForMaskedLM", "ForQuestionAnswering"])
def test_a_compiled_training_step_has_the_stock_models_loss(head, tmp_path):
    stock, ours = pair(head, tmp_path, num_hidden_layers=1)
    this = case(head)
    torch._dynamo.reset()
    compiled = torch.compile(ours.train(), fullgraph=True, backend="aot_eager")
    loss = compiled(**this.inputs, **this.labels).loss
    torch.testing.assert_close(loss, stock(**this.inputs, **this.labels).loss, atol=1e-5, rtol=1e-5)
    loss.backward()
    assert all(parameter.grad is not None for parameter in ours.parameters())
