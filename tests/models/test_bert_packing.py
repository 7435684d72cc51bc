"""Computing the real tokens only: what is skipped, that nothing leaks, and where shapes stay as they are."""

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, DataCollatorWithFlattening

from modeling import ZooBertConfig, ZooBertModel, ZooGPTConfig, ZooGPTModel
from modeling.bert.modeling_bert import ZooBertIntermediate
from modeling.shared import modeling_attention, modeling_packing
from modeling.shared.modeling_packing import find_sequences
from tests.support.bert_cases import COLUMNS, ROWS, assert_same_gradients, assert_same_outputs, batch, case, pair


def rows_by_the_definition(mask, starts):
    """The slow way: walk over the rows, begin a sequence at each start, keep what is not masked."""
    sequences = []
    for row, (kept, begins) in enumerate(zip(mask.tolist(), starts.tolist(), strict=True)):
        for column, is_start in enumerate(begins):
            if is_start:
                sequences.append([])
            if kept[column]:
                sequences[-1].append(row * len(begins) + column)
    return [sequence for sequence in sequences if sequence]


@pytest.mark.parametrize("trial", range(20))
def test_the_packed_layout_is_what_walking_over_the_rows_gives(trial):
    torch.manual_seed(trial)
    mask = batch(holes=trial % 2 == 0)["attention_mask"]
    starts = (torch.arange(mask.shape[1]) == 0).repeat(ROWS, 1)
    if trial % 3:
        for row in range(ROWS):  # a second sequence begins somewhere
            starts[row, int(torch.randint(1, mask.shape[1], ()))] = True
    found = find_sequences(mask.shape, mask.device, mask, starts if trial % 3 else None)
    expected = sorted(rows_by_the_definition(mask, starts), key=len)

    lengths = [length for count, length in found.groups for _ in range(count)]
    assert lengths == [len(sequence) for sequence in expected]
    assert [part.tolist() for part in found.tokens.split(lengths)] == expected
    assert found.tokens[found.starts].tolist() == [sequence[0] for sequence in expected]
    assert found.tokens[found.starts[found.rows]].tolist() == [row * mask.shape[1] for row in range(ROWS)]


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("head", ["Model", "ForSequenceClassification", "ForMaskedLM"])
def test_attention_on_a_grid_gives_what_attention_in_groups_gives(head, attention, tmp_path, monkeypatch):
    stock, ours = pair(head, tmp_path, attention)
    this = case(head, holes=True)
    monkeypatch.setattr(modeling_packing, "GROUPED_DEVICES", ())  # as on every device but the CPU
    monkeypatch.setattr(modeling_packing, "FEW_TOKENS", 0)
    monkeypatch.setattr(modeling_attention, "_attend_in_groups", None)
    assert_same_outputs(ours(**this.inputs), stock(**this.inputs), this.real)
    if this.labels:
        for model in (stock, ours):
            model(**this.inputs, **this.labels).loss.backward()
        assert_same_gradients(ours, stock)


def small(model_class: type, dropout: float) -> torch.nn.Module:
    sizes = {"vocab_size": 61, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3}
    if model_class is ZooBertModel:
        return ZooBertModel(ZooBertConfig(**sizes, intermediate_size=40, attention_probs_dropout_prob=dropout))
    return ZooGPTModel(ZooGPTConfig(**sizes, attn_pdrop=dropout))


@pytest.mark.parametrize("model_class", [ZooBertModel, ZooGPTModel])
@pytest.mark.parametrize(
    ("dtype", "dropout", "has_amx", "is_used"),
    [
        (torch.bfloat16, 0.1, True, False),
        (torch.bfloat16, 0.0, True, True),
        (torch.bfloat16, 0.0, False, False),
        (None, 0.1, False, True),
    ],
)
def test_sdpa_attends_except_in_bfloat16_with_dropout_and_in_training_without_amx(
    model_class, dtype, dropout, has_amx, is_used, monkeypatch
):
    """With dropout, sdpa would compute it in float32, in ordinary operations."""
    calls = []

    def counted(*args, **kwargs):
        calls.append(kwargs["dropout_p"])
        return scaled_dot_product_attention(*args, **kwargs)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", counted)
    monkeypatch.setattr(modeling_attention, "has_amx", lambda: has_amx)
    model, ids = small(model_class, dropout).train(), torch.randint(1, 61, (2, 7))
    with torch.autocast("cpu", dtype, enabled=dtype is not None):
        model(ids)
    assert calls == ([dropout] * 2 if is_used else [])
    with torch.no_grad(), torch.autocast("cpu", dtype, enabled=dtype is not None):
        model.eval()(ids)
    assert calls[-2:] == [0.0] * 2


@pytest.mark.parametrize("head", ["ForSequenceClassification", "ForMaskedLM"])
def test_in_bfloat16_the_gradients_of_plain_products_are_as_close_to_float32_as_those_of_sdpa(
    head, tmp_path, monkeypatch
):
    _, ours = pair(head, tmp_path, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    this = case(head, holes=True)

    def gradients(dtype: torch.dtype, has_amx: bool) -> torch.Tensor:
        monkeypatch.setattr(modeling_attention, "has_amx", lambda: has_amx)
        ours.zero_grad()
        with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
            ours(**this.inputs, **this.labels).loss.backward()
        return torch.cat([weight.grad.flatten() for weight in ours.parameters() if weight.grad is not None])

    exact = gradients(torch.float32, has_amx=False)
    plain, fused = ((gradients(torch.bfloat16, has_amx) - exact).norm() for has_amx in (False, True))
    assert 0 < plain < 1.2 * fused


def test_padding_and_packing_are_inverse_where_tokens_are():
    mask = batch()["attention_mask"]
    states = torch.randn(*mask.shape, 3)
    found = find_sequences(mask.shape, mask.device, mask, None)
    torch.testing.assert_close(found.unpack(found.pack(states)), states * mask.unsqueeze(-1))


@pytest.mark.parametrize(
    "mask",
    [None, torch.ones(2, 3), torch.tensor([[0, 1, 1], [1, 1, 1]]), torch.tensor([[1, 1, 0], [0, 0, 0]])],
    ids=["none", "all ones", "padded on the left", "an empty row"],
)
def test_a_batch_is_left_as_it_is_when_packing_gains_nothing_or_a_row_begins_with_padding(mask):
    assert find_sequences((2, 3), torch.device("cpu"), mask, None) is None


def test_padding_is_not_computed(tmp_path, monkeypatch):
    _, ours = pair("ForSequenceClassification", tmp_path)
    seen, forward = [], ZooBertIntermediate.forward

    def recorded(self, states):  # not a hook, for which padding would be computed
        seen.append(states.shape[:-1])
        return forward(self, states)

    monkeypatch.setattr(ZooBertIntermediate, "forward", recorded)
    inputs = batch(lengths=[2, 3, 19, 5, 3, 2, 2])
    ours(**inputs)
    assert seen == [(1, 36), (1, 36), (1, 7)]  # 36 real tokens of 133, then [CLS] alone
    seen.clear()
    ours(**inputs, unpad=False)
    assert seen == [(7, 19), (7, 19), (7, 1)]


def test_the_state_of_padding_is_zero_unless_it_is_asked_for(tmp_path):
    _, ours = pair("Model", tmp_path)
    this = case("Model")
    flipped = {name: tensor.flip(1) for name, tensor in this.inputs.items()}  # left padding is computed, then hidden
    assert not ours(**this.inputs).last_hidden_state[~this.real].any()
    assert not ours(**flipped).last_hidden_state[~this.real.flip(1)].any()
    assert ours(**this.inputs, unpad=False).last_hidden_state[~this.real].all()


def test_a_row_of_nothing_but_padding_is_harmless(tmp_path):
    stock, ours = pair("ForSequenceClassification", tmp_path)
    inputs = batch()
    inputs["attention_mask"][3] = 0
    mine, theirs = (model(**inputs).logits for model in (ours, stock))
    others = [row for row in range(ROWS) if row != 3]
    assert mine.isfinite().all()
    torch.testing.assert_close(mine[others], theirs[others], atol=1e-5, rtol=1e-5)


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


def test_a_sentence_gets_the_same_output_in_any_company(tmp_path):
    _, ours = pair("ForSequenceClassification", tmp_path)
    inputs = batch()
    together = ours(**inputs).logits
    order = torch.randperm(ROWS)
    shuffled = ours(**{name: tensor[order] for name, tensor in inputs.items()}).logits
    torch.testing.assert_close(shuffled, together[order], atol=1e-5, rtol=1e-5)
    for row, length in enumerate(inputs["attention_mask"].sum(1).tolist()):
        alone = ours(**{name: tensor[row : row + 1, :length] for name, tensor in inputs.items()}).logits
        torch.testing.assert_close(alone, together[row : row + 1], atol=1e-5, rtol=1e-5)


def flattened(inputs):
    """All rows end to end in one, as transformers' padding-free collator lays them."""
    lengths = inputs["attention_mask"].sum(1).tolist()
    rows = [{"input_ids": ids[:length].tolist()} for ids, length in zip(inputs["input_ids"], lengths, strict=True)]
    flat = DataCollatorWithFlattening(return_flash_attn_kwargs=True)(rows)
    segments = torch.cat([row[:length] for row, length in zip(inputs["token_type_ids"], lengths, strict=True)])
    return flat | {"token_type_ids": segments.unsqueeze(0)}


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
    flat = {name: tensor for name, tensor in flattened(inputs).items() if name != "labels"}
    with torch.no_grad():
        expected = stock(**inputs).last_hidden_state[inputs["attention_mask"].bool()]
        torch.testing.assert_close(ours(**flat, unpad=unpad).last_hidden_state[0], expected, atol=1e-5, rtol=1e-5)
        leaking = stock(**{name: flat[name] for name in ("input_ids", "position_ids", "token_type_ids")})
    assert (leaking.last_hidden_state[0] - expected).abs().max() > 0.01  # or the test could not fail


def test_a_packed_row_may_be_longer_than_the_models_positions(tmp_path):
    stock, ours = pair("Model", tmp_path)
    inputs = batch(lengths=[19, 17, 19, 12])  # 67 tokens in one row, 41 positions
    flat = {name: tensor for name, tensor in flattened(inputs).items() if name != "labels"}
    expected = stock(**inputs).last_hidden_state[inputs["attention_mask"].bool()]
    torch.testing.assert_close(ours(**flat).last_hidden_state[0], expected, atol=1e-5, rtol=1e-5)
    flat["position_ids"] = flat["position_ids"] + 30
    with pytest.raises(ValueError, match="reaches position 49 and the model has 41"):
        ours(**flat)


def test_short_sequences_packed_beside_a_long_one_are_not_spread_over_a_grid_of_its_length(tmp_path, monkeypatch):
    monkeypatch.setattr(modeling_packing, "GROUPED_DEVICES", ())
    monkeypatch.setattr(modeling_packing, "FEW_TOKENS", 0)
    monkeypatch.setattr(modeling_attention, "_attend_on_a_grid", None)
    stock, ours = pair("Model", tmp_path)
    inputs = batch(lengths=[19, 2, 2, 2, 2, 2, 2])  # 31 tokens, a grid of 7 x 19
    flat = {name: tensor for name, tensor in flattened(inputs).items() if name != "labels"}
    expected = stock(**inputs).last_hidden_state[inputs["attention_mask"].bool()]
    torch.testing.assert_close(ours(**flat).last_hidden_state[0], expected, atol=1e-5, rtol=1e-5)


def test_the_plan_of_sequences_reads_nothing_back_from_the_device():
    mask = batch(lengths=[5, 9, 2])["attention_mask"]
    here, there = (
        modeling_packing.find_sequences(mask.shape, torch.device(device), mask, None) for device in ("cpu", "meta")
    )
    assert there.groups == here.groups == [(1, 2), (1, 5), (1, 9)]
    assert {tensor.device.type for tensor in (there.tokens, there.starts, there.rows, there.cells)} == {"meta"}
    assert there.cells.shape == here.cells.shape == (16,)


@pytest.mark.parametrize("attention", ["flash_attention_2", "mine"])
def test_packed_rows_are_refused_where_nothing_would_keep_them_apart(attention, tmp_path, monkeypatch):
    monkeypatch.setitem(AttentionInterface._global_mapping, attention, reference_flash_attention)
    _, ours = pair("Model", tmp_path)
    ours.config._attn_implementation_internal = attention
    flat = {name: tensor for name, tensor in flattened(batch()).items() if name != "labels"}
    with pytest.raises(ValueError, match=f"'{attention}' keeps them apart only where padding is not computed"):
        ours(**flat, unpad=False)


def test_the_pooled_output_of_a_packed_row_is_its_first_sequences(tmp_path):
    stock, ours = pair("ForSequenceClassification", tmp_path)
    inputs = batch(lengths=[5, 9, 2, 5, 4, 6, 3])
    flat = {name: tensor for name, tensor in flattened(inputs).items() if name != "labels"}
    torch.testing.assert_close(ours(**flat).logits, stock(**inputs).logits[:1], atol=1e-5, rtol=1e-5)


def test_packed_rows_may_have_padding_and_padding_inside(tmp_path):
    stock, ours = pair("ForTokenClassification", tmp_path)
    inputs = batch(lengths=[8, 12])
    inputs["seq_idx"] = torch.tensor([[0] * 5 + [1] * 7, [0] * 4 + [1] * 3 + [2] * 5])
    inputs["attention_mask"][1, 4:7] = 0  # a sequence of nothing but padding
    logits = ours(**inputs).logits
    for row, start, stop in ((0, 0, 5), (0, 5, 8), (1, 0, 4), (1, 7, 12)):
        alone = {name: tensor[row : row + 1, start:stop] for name, tensor in inputs.items() if name != "seq_idx"}
        torch.testing.assert_close(logits[row : row + 1, start:stop], stock(**alone).logits, atol=1e-5, rtol=1e-5)


def reference_flash_attention(module, query, key, value, attention_mask, scaling=None, **kwargs):
    """What a varlen kernel computes, one sequence at a time, from the boundaries it was handed."""
    assert attention_mask is None and query.shape[0] == 1
    asked, known = kwargs["cu_seq_lens_q"].tolist(), kwargs["cu_seq_lens_k"].tolist()
    lengths = [[stop - start for start, stop in zip(ends, ends[1:], strict=False)] for ends in (asked, known)]
    assert (kwargs["max_length_q"], kwargs["max_length_k"]) == tuple(map(max, lengths))
    outputs = [
        scaled_dot_product_attention(
            query[:, :, asked[index] : asked[index + 1]],
            key[:, :, known[index] : known[index + 1]],
            value[:, :, known[index] : known[index + 1]],
            scale=scaling,
        )
        for index in range(len(asked) - 1)
    ]
    return torch.cat(outputs, 2).transpose(1, 2), None


@pytest.mark.parametrize("head", ["Model", "ForSequenceClassification"])
def test_a_flash_kernel_is_handed_the_boundaries_of_the_sequences(head, tmp_path, monkeypatch):
    monkeypatch.setitem(AttentionInterface._global_mapping, "flash_attention_2", reference_flash_attention)
    stock, ours = pair(head, tmp_path)
    ours.config._attn_implementation_internal = "flash_attention_2"  # its setter wants the package and a GPU
    this = case(head, holes=True)
    assert_same_outputs(ours(**this.inputs), stock(**this.inputs), this.real)


def test_an_attention_function_of_the_users_own_gets_the_whole_batch(tmp_path, monkeypatch):
    shapes = []

    def attention(module, query, key, value, attention_mask, **kwargs):
        shapes.append(query.shape)
        return query.transpose(1, 2), None

    monkeypatch.setitem(AttentionInterface._global_mapping, "mine", attention)
    _, ours = pair("Model", tmp_path)
    ours.set_attn_implementation("mine")
    inputs = batch()
    ours(**inputs)
    assert shapes == [(ROWS, 3, inputs["input_ids"].shape[1], 12)] * 3


@pytest.mark.slow
def test_flex_attention_gives_the_stock_models_outputs(tmp_path):
    stock, ours = pair("ForSequenceClassification", tmp_path)
    ours.set_attn_implementation("flex_attention")
    inputs = batch()
    with torch.no_grad():
        torch.testing.assert_close(ours(**inputs).logits, stock(**inputs).logits, atol=1e-5, rtol=1e-5)


def test_padding_never_answers_a_question(tmp_path):
    _, ours = pair("ForQuestionAnswering", tmp_path)
    this = case("ForQuestionAnswering")
    for given in ({}, {"unpad": False}, this.labels):
        output = ours(**this.inputs, **given)
        for scores in (output.start_logits, output.end_logits):
            assert this.real.gather(1, scores.argmax(1, keepdim=True)).all()
            assert (scores[~this.real] == torch.finfo(scores.dtype).min).all()


@pytest.mark.slow
def test_one_compiled_graph_serves_every_mask(tmp_path):
    _, ours = pair("ForSequenceClassification", tmp_path)
    graphs = []

    def count(graph, example_inputs):
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    compiled = torch.compile(ours, fullgraph=True, backend=count)
    for lengths in ([COLUMNS] * ROWS, [3, 19, 4, 5, 6, 7, 8], [19, 19, 2, 2, 2, 2, 2]):
        inputs = batch(lengths=lengths)
        torch.testing.assert_close(compiled(**inputs).logits, ours(**inputs).logits, atol=1e-5, rtol=1e-5)
    assert len(graphs) == 1


@pytest.mark.slow
@pytest.mark.parametrize("head", ["ForMaskedLM", "ForTokenClassification", "ForQuestionAnswering"])
def test_a_compiled_training_step_has_the_stock_models_loss(head, tmp_path):
    stock, ours = pair(head, tmp_path)
    this = case(head)
    torch._dynamo.reset()
    compiled = torch.compile(ours.train(), fullgraph=True, backend="aot_eager")
    loss = compiled(**this.inputs, **this.labels).loss
    torch.testing.assert_close(loss, stock(**this.inputs, **this.labels).loss, atol=1e-5, rtol=1e-5)
    loss.backward()
    assert all(parameter.grad is not None for parameter in ours.parameters())


@pytest.mark.slow
def test_a_compiled_model_keeps_packed_rows_apart(tmp_path):
    _, ours = pair("Model", tmp_path)
    flat = flattened(batch(lengths=[5, 9, 2, 5, 4, 6, 3]))
    inputs = {name: flat[name] for name in ("input_ids", "position_ids", "token_type_ids")}
    torch._dynamo.reset()
    with torch.no_grad():
        compiled = torch.compile(ours, fullgraph=True, backend="eager")
        for positions in (inputs["position_ids"], inputs["position_ids"].flip(1)):  # which divide the row, or do not
            inputs["position_ids"] = positions
            states = compiled(**inputs).last_hidden_state
            torch.testing.assert_close(states, ours(**inputs).last_hidden_state, atol=1e-5, rtol=1e-5)
