"""Computing the real tokens only, and the last one alone where no other is read: what is skipped, and no leaks."""

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, DataCollatorWithFlattening

from modeling.gpt.modeling_gpt import ZooGPTMLP
from modeling.shared import modeling_attention, modeling_packing
from tests.support.gpt_cases import (
    COLUMNS,
    LABELS,
    ROWS,
    STOCK_HEADS,
    assert_same_gradients,
    assert_same_outputs,
    batch,
    case,
    on_the_left,
    pair,
    zoo,
)


ATTENTION = pytest.mark.parametrize("attention", ["eager", "sdpa"])
UNEVEN = [5, 9, 2, 5, 4, 6, 3]


@ATTENTION
@pytest.mark.parametrize("head", ["Model", *STOCK_HEADS])
def test_attention_on_a_grid_gives_what_attention_in_groups_gives(head, attention, tmp_path, monkeypatch):
    stock, ours = pair(head, tmp_path, attention)
    this = case(head, holes=True)
    monkeypatch.setattr(modeling_packing, "GROUPED_DEVICES", ())  # as on every device but the CPU
    monkeypatch.setattr(modeling_packing, "FEW_TOKENS", 0)
    monkeypatch.setattr(modeling_attention, "_attend_in_groups", None)
    assert_same_outputs(ours(**this.inputs), stock(**this.for_stock), this.real)
    if this.labels:
        for model, inputs in ((stock, this.for_stock), (ours, this.inputs)):
            model(**inputs, **this.labels).loss.backward()
        assert_same_gradients(ours, stock)


@pytest.mark.parametrize(
    ("head", "lm_loss_weight", "last_block"),
    [("ForSequenceClassification", 0, 7), ("ForSequenceClassification", 0.5, 36), ("LMHeadModel", 0, 36)],
)
def test_padding_is_not_computed(head, lm_loss_weight, last_block, monkeypatch):
    ours = zoo(head, lm_loss_weight=lm_loss_weight)
    seen, forward = [], ZooGPTMLP.forward

    def recorded(self, states):  # not a hook, for which padding would be computed
        seen.append(states.shape[:-1])
        return forward(self, states)

    monkeypatch.setattr(ZooGPTMLP, "forward", recorded)
    inputs = batch(lengths=[2, 3, 19, 5, 3, 2, 2])
    labels = torch.randint(0, LABELS, (ROWS,)) if head != "LMHeadModel" else None
    ours(**inputs, labels=labels, use_cache=False)
    assert seen == [(1, 36), (1, 36), (1, last_block)]  # 36 real tokens of 133, and 7 extract tokens
    seen.clear()
    ours(**inputs, labels=labels, use_cache=False, unpad=False)
    assert seen == [(7, 19), (7, 19), (7, 19 if last_block == 36 else 1)]


def test_the_state_of_padding_is_zero_unless_it_is_asked_for():
    ours = zoo("Model", use_cache=False)
    this = case("Model")
    assert not ours(**this.inputs).last_hidden_state[~this.real].any()
    assert ours(**this.inputs, unpad=False).last_hidden_state[~this.real].all()


def four_dimensional(inputs):
    """Which tokens each one sees: those before it, and some after it."""
    columns = inputs["input_ids"].shape[1]
    seen = torch.rand(len(inputs["input_ids"]), 1, columns, columns) < 0.3
    return inputs | {"attention_mask": seen | torch.ones(columns, columns, dtype=torch.bool).tril()}


def in_rows_of_two(inputs):
    """Two sequences a row, the second beginning in the fourth column."""
    columns = inputs["input_ids"].shape[1]
    return inputs | {"seq_idx": torch.tensor([0] * 3 + [1] * (columns - 3)).expand(len(inputs["input_ids"]), -1)}


BATCHES = {
    "uneven": lambda: batch(UNEVEN),
    "even": lambda: batch([6] * 4),
    "no mask": lambda: {"input_ids": batch([6] * 4)["input_ids"]},
    "left padding": lambda: on_the_left(batch(UNEVEN)),
    "holes": lambda: batch(holes=True),
    "a mask for each pair": lambda: four_dimensional(batch(UNEVEN)),
    "one token": lambda: batch([1, 1, 1]),
    "one token among others": lambda: batch([1, 7, 1, 3]),
    "nothing but padding": lambda: (
        batch([5, 2, 4]) | {"attention_mask": torch.tensor([[1] * 5, [0] * 5, [1] * 4 + [0]])}
    ),
    "packed": lambda: in_rows_of_two(batch([6] * 4)),
    "packed and padded": lambda: in_rows_of_two(batch(UNEVEN)),
}


@pytest.mark.parametrize("way", ["in groups", "on a grid", "padded"])
@ATTENTION
@pytest.mark.parametrize("kind", BATCHES)
def test_the_last_token_alone_is_the_last_of_all(kind, attention, way, monkeypatch):
    if way == "on a grid":
        monkeypatch.setattr(modeling_packing, "GROUPED_DEVICES", ())
        monkeypatch.setattr(modeling_packing, "FEW_TOKENS", 0)
    ours = zoo("Model", attention, use_cache=False)
    inputs = BATCHES[kind]()
    mask = inputs.get("attention_mask", torch.ones_like(inputs["input_ids"]))
    mask = torch.ones_like(inputs["input_ids"]) if mask.dim() == 4 else mask
    last = (mask * torch.arange(mask.shape[1])).argmax(1)
    states, gradients = [], []
    for asked in ({}, {"last_token_only": True}):
        ours.zero_grad()
        state = ours(**inputs, unpad=way != "padded", **asked).last_hidden_state
        states.append(state if asked else state[torch.arange(len(last)), last].unsqueeze(1))
        told = mask.any(1)  # a row of nothing but padding has no last token; its state is finite and means nothing
        states[-1][told].square().sum().backward()
        gradients.append([parameter.grad for parameter in ours.parameters()])
    assert states[1].shape == (len(last), 1, 36) and states[1].isfinite().all()
    torch.testing.assert_close(states[1][told], states[0][told], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(gradients[1], gradients[0], atol=1e-4, rtol=1e-4)


def test_the_last_token_alone_leaves_recorded_states_whole():
    ours = zoo("Model", "eager", use_cache=False)
    this = case("Model")
    asked = {"output_hidden_states": True, "output_attentions": True}
    whole, last = (ours(**this.inputs, **asked, last_token_only=only) for only in (False, True))
    torch.testing.assert_close(last.hidden_states, whole.hidden_states)
    torch.testing.assert_close(last.attentions, whole.attentions)
    assert last.last_hidden_state.shape == (ROWS, 1, 36)


@ATTENTION
def test_a_cache_keeps_packed_rows_apart_as_well(attention):
    ours = zoo("LMHeadModel", attention)
    inputs = in_rows_of_two(batch(UNEVEN))
    real = inputs["attention_mask"].bool()
    kept, plain = (ours(**inputs, use_cache=use_cache) for use_cache in (True, False))
    assert kept.past_key_values.get_seq_length() == 9
    torch.testing.assert_close(kept.logits[real], plain.logits[real], atol=1e-5, rtol=1e-5)


def test_a_row_of_nothing_but_padding_is_harmless(tmp_path):
    stock, ours = pair("ForSequenceClassification", tmp_path)
    inputs = batch()
    inputs["attention_mask"][3] = 0
    mine, theirs = (model(**inputs).logits for model in (ours, stock))
    others = [row for row in range(ROWS) if row != 3]
    assert mine.isfinite().all()
    torch.testing.assert_close(mine[others], theirs[others], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("head", ["ForSequenceClassification", "LMHeadModel", "ForTokenClassification"])
def test_a_row_gets_the_same_output_in_any_company(head):
    ours = zoo(head)
    inputs = batch()
    together = ours(**inputs).logits
    order = torch.randperm(ROWS)
    shuffled = ours(**{name: tensor[order] for name, tensor in inputs.items()}).logits
    real = inputs["attention_mask"].bool() if together.dim() == 3 else torch.ones(ROWS, dtype=torch.bool)
    torch.testing.assert_close(shuffled[real[order]], together[order][real[order]], atol=1e-5, rtol=1e-5)
    for row, length in enumerate(inputs["attention_mask"].sum(1).tolist()):
        alone = ours(**{name: tensor[row : row + 1, :length] for name, tensor in inputs.items()}).logits
        torch.testing.assert_close(alone[0], together[row][:length] if together.dim() == 3 else together[row])


def flattened(inputs):
    """All rows end to end in one, as transformers' padding-free collator lays them, labels included."""
    lengths = inputs["attention_mask"].sum(1).tolist()
    rows = [{"input_ids": ids[:length].tolist()} for ids, length in zip(inputs["input_ids"], lengths, strict=True)]
    return DataCollatorWithFlattening(return_flash_attn_kwargs=True)(rows)


@pytest.mark.parametrize("way", ["in groups", "on a grid", "padded"])
@ATTENTION
def test_packed_rows_are_the_separate_rows(attention, way, tmp_path, monkeypatch):
    if way == "on a grid":
        monkeypatch.setattr(modeling_packing, "GROUPED_DEVICES", ())
        monkeypatch.setattr(modeling_packing, "FEW_TOKENS", 0)
    stock, ours = pair("LMHeadModel", tmp_path, attention)
    inputs = batch(UNEVEN)
    real = inputs["attention_mask"].bool()
    flat = flattened(inputs)
    labels = inputs["input_ids"].masked_fill(~real, -100)
    expected, output = stock(**inputs, labels=labels), ours(**flat, unpad=way != "padded")
    torch.testing.assert_close(output.logits[0], expected.logits[real], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(output.loss, expected.loss, atol=1e-5, rtol=1e-5)
    leaking = stock(**{name: flat[name] for name in ("input_ids", "position_ids")}).logits[0]
    assert (leaking - expected.logits[real]).abs().max() > 0.01  # or the test could not fail
    for loss in (expected.loss, output.loss):
        loss.backward()
    assert_same_gradients(ours, stock)


def test_a_packed_row_may_be_longer_than_the_models_positions(tmp_path):
    stock, ours = pair("LMHeadModel", tmp_path)
    inputs = batch(lengths=[19, 17, 19, 12])  # 67 tokens in one row, 41 positions
    flat = flattened(inputs)
    expected = stock(**inputs).logits[inputs["attention_mask"].bool()]
    torch.testing.assert_close(ours(**flat).logits[0], expected, atol=1e-5, rtol=1e-5)
    flat["position_ids"] = flat["position_ids"] + 30
    with pytest.raises(ValueError, match="reaches position 49 and the model has 41"):
        ours(**flat)


def test_short_sequences_packed_beside_a_long_one_are_not_spread_over_a_grid_of_its_length(tmp_path, monkeypatch):
    monkeypatch.setattr(modeling_packing, "GROUPED_DEVICES", ())
    monkeypatch.setattr(modeling_packing, "FEW_TOKENS", 0)
    monkeypatch.setattr(modeling_attention, "_attend_on_a_grid", None)
    stock, ours = pair("LMHeadModel", tmp_path)
    inputs = batch(lengths=[19, 2, 2, 2, 2, 2, 2])  # 31 tokens, a grid of 7 x 19
    expected = stock(**inputs).logits[inputs["attention_mask"].bool()]
    torch.testing.assert_close(ours(**flattened(inputs)).logits[0], expected, atol=1e-5, rtol=1e-5)


def test_packed_rows_may_have_padding_and_padding_inside(tmp_path):
    stock, ours = pair("LMHeadModel", tmp_path)
    inputs = batch(lengths=[8, 12])
    inputs["seq_idx"] = torch.tensor([[0] * 5 + [1] * 7, [0] * 4 + [1] * 3 + [2] * 5])
    inputs["attention_mask"][1, 4:7] = 0  # a sequence of nothing but padding
    logits = ours(**inputs, use_cache=False).logits
    for row, start, stop in ((0, 0, 5), (0, 5, 8), (1, 0, 4), (1, 7, 12)):
        alone = {name: tensor[row : row + 1, start:stop] for name, tensor in inputs.items() if name != "seq_idx"}
        torch.testing.assert_close(logits[row : row + 1, start:stop], stock(**alone).logits, atol=1e-5, rtol=1e-5)


def test_a_classifier_reads_the_last_sequence_of_a_packed_row(tmp_path):
    stock, ours = pair("ForSequenceClassification", tmp_path)
    inputs = batch(UNEVEN)
    flat = {name: tensor for name, tensor in flattened(inputs).items() if name != "labels"}
    torch.testing.assert_close(ours(**flat).logits, stock(**inputs).logits[-1:], atol=1e-5, rtol=1e-5)


def reference_flash_attention(module, query, key, value, attention_mask, scaling=None, **kwargs):
    """What a causal varlen kernel computes, one sequence at a time, from the boundaries it was handed.

    A single query stands at the end of its sequence, as the kernels align the two.
    """
    assert attention_mask is None and query.shape[0] == 1 and module.is_causal
    asked, known = kwargs["cu_seq_lens_q"].tolist(), kwargs["cu_seq_lens_k"].tolist()
    lengths = [[stop - start for start, stop in zip(ends, ends[1:], strict=False)] for ends in (asked, known)]
    assert (kwargs["max_length_q"], kwargs["max_length_k"]) == tuple(map(max, lengths))
    outputs = [
        scaled_dot_product_attention(
            query[:, :, asked[index] : asked[index + 1]],
            key[:, :, known[index] : known[index + 1]],
            value[:, :, known[index] : known[index + 1]],
            torch.ones(lengths[0][index], lengths[1][index]).tril(lengths[1][index] - lengths[0][index]).bool(),
            scale=scaling,
        )
        for index in range(len(asked) - 1)
    ]
    return torch.cat(outputs, 2).transpose(1, 2), None


@pytest.mark.parametrize("head", ["Model", *STOCK_HEADS])
def test_a_flash_kernel_is_handed_the_boundaries_of_the_sequences(head, tmp_path, monkeypatch):
    monkeypatch.setitem(AttentionInterface._global_mapping, "flash_attention_2", reference_flash_attention)
    stock, ours = pair(head, tmp_path)
    ours.config.use_cache = False  # a cache has padding
    ours.config._attn_implementation_internal = "flash_attention_2"  # its setter wants the package and a GPU
    this = case(head, holes=True)
    assert_same_outputs(ours(**this.inputs), stock(**this.for_stock), this.real)


@pytest.mark.parametrize("attention", ["flash_attention_2", "mine"])
def test_packed_rows_are_refused_where_nothing_would_keep_them_apart(attention, monkeypatch):
    monkeypatch.setitem(AttentionInterface._global_mapping, attention, reference_flash_attention)
    ours = zoo("Model", use_cache=False)
    ours.config._attn_implementation_internal = attention
    flat = {name: tensor for name, tensor in flattened(batch()).items() if name != "labels"}
    with pytest.raises(ValueError, match=f"'{attention}' keeps them apart only where padding is not computed"):
        ours(**flat, unpad=False)


def test_an_attention_function_of_the_users_own_gets_the_whole_batch(monkeypatch):
    shapes = []

    def attention(module, query, key, value, attention_mask, **kwargs):
        shapes.append(query.shape)
        return query.transpose(1, 2), None

    monkeypatch.setitem(AttentionInterface._global_mapping, "mine", attention)
    ours = zoo("Model", "mine", use_cache=False)
    inputs = batch()
    ours(**inputs)
    assert shapes == [(ROWS, 3, inputs["input_ids"].shape[1], 12)] * 3


@pytest.mark.usefixtures("_without_compiler")
def test_flex_attention_keeps_packed_rows_apart_and_finds_the_last_token(tmp_path):
    stock, ours = pair("Model", tmp_path, "flex_attention")
    inputs = batch(UNEVEN)
    flat = flattened(inputs)
    flat = {name: flat[name] for name in ("input_ids", "position_ids")} | {"use_cache": False}
    with torch.no_grad():  # on the CPU it has no backward pass
        expected = stock(**inputs).last_hidden_state[inputs["attention_mask"].bool()]
        torch.testing.assert_close(ours(**flat).last_hidden_state[0], expected, atol=1e-5, rtol=1e-5)
        last = ours(**flat, last_token_only=True).last_hidden_state[0]
        torch.testing.assert_close(last, expected[-1:], atol=1e-5, rtol=1e-5)


@pytest.mark.slow
def test_one_compiled_graph_serves_every_mask():
    ours = zoo("ForSequenceClassification")
    graphs = []

    def count(graph, example_inputs):
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    compiled = torch.compile(ours, fullgraph=True, backend=count)
    for lengths in ([COLUMNS] * ROWS, [3, 19, 4, 5, 6, 7, 8], [19, 19, 2, 2, 2, 2, 2]):
        inputs = batch(lengths=lengths)
        for given in (inputs, on_the_left(inputs)):
            torch.testing.assert_close(compiled(**given).logits, ours(**given).logits, atol=1e-5, rtol=1e-5)
    assert len(graphs) == 1


@pytest.mark.slow
@pytest.mark.parametrize("head", ["LMHeadModel", "ForSequenceClassification"])
def test_a_compiled_training_step_has_the_same_loss_and_gradients(head):
    ours = zoo(head, lm_loss_weight=0.5).train()
    this = case(head)
    torch._dynamo.reset()
    losses, gradients = [], []
    for model in (ours, torch.compile(ours, fullgraph=True, backend="aot_eager")):
        ours.zero_grad()
        losses.append(model(**this.inputs, **this.labels).loss)
        losses[-1].backward()
        gradients.append([parameter.grad for parameter in ours.parameters()])
    torch.testing.assert_close(*losses, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(*gradients, atol=1e-5, rtol=1e-5)


@pytest.mark.slow
def test_a_compiled_model_keeps_packed_rows_apart():
    ours = zoo("Model", use_cache=False)
    flat = flattened(batch(UNEVEN))
    inputs = {name: flat[name] for name in ("input_ids", "position_ids")}
    torch._dynamo.reset()
    with torch.no_grad():
        compiled = torch.compile(ours, fullgraph=True, backend="eager")(**inputs).last_hidden_state
        torch.testing.assert_close(compiled, ours(**inputs).last_hidden_state, atol=1e-5, rtol=1e-5)
