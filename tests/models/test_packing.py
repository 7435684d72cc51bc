"""Computing the real tokens only, in BERT and GPT: what is skipped, that nothing leaks, and where shapes stay."""

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from modeling import ZooBertConfig, ZooBertModel, ZooGPTConfig, ZooGPTModel
from modeling.bert.modeling_bert import ZooBertIntermediate
from modeling.gpt.modeling_gpt import ZooGPTMLP
from modeling.shared import modeling_attention, modeling_packing
from modeling.shared.modeling_packing import find_sequences
from tests.support import bert_cases, gpt_cases
from tests.support.bert_cases import batch
from tests.support.families import EACH_FAMILY, each
from tests.support.model_cases import (
    COLUMNS,
    LABELS,
    ROWS,
    assert_same_gradients,
    assert_same_outputs,
    flattened,
    on_the_left,
)


UNEVEN = [5, 9, 2, 5, 4, 6, 3]
# Names of kernels in transformers that take the boundaries of sequences.
FLASH_KERNELS = [f"flash_attention_{release}" for release in (2, 3, 4)]
FLASH_KERNELS += [f"kernels-community/flash-attn{release}" for release in (2, 3)]
TWO_LAYERS = {bert_cases: {"num_hidden_layers": 2}, gpt_cases: {"n_layer": 2}}  # of which one is the last
INNER = {bert_cases: ZooBertIntermediate, gpt_cases: ZooGPTMLP}


@pytest.fixture
def _on_a_grid(monkeypatch):
    """Attention as on every device but the CPU."""
    monkeypatch.setattr(modeling_packing, "GROUPED_DEVICES", ())
    monkeypatch.setattr(modeling_packing, "FEW_TOKENS", 0)


# The plan


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


def test_the_plan_of_sequences_reads_nothing_back_from_the_device():
    mask = batch(lengths=[5, 9, 2])["attention_mask"]
    here, there = (
        modeling_packing.find_sequences(mask.shape, torch.device(device), mask, None) for device in ("cpu", "meta")
    )
    assert there.groups == here.groups == [(1, 2), (1, 5), (1, 9)]
    assert {tensor.device.type for tensor in (there.tokens, there.starts, there.rows, there.grid.tokens)} == {"meta"}
    assert there.grid.tokens.shape == here.grid.tokens.shape == (16,)


# Padded batches


@each(
    "head, changes, last",
    [("ForSequenceClassification", {}, 7)],
    [
        ("ForSequenceClassification", {"lm_loss_weight": 0}, 7),
        ("ForSequenceClassification", {"lm_loss_weight": 0.5}, 36),
        ("LMHeadModel", {}, 36),
    ],
)
def test_padding_is_not_computed(cases, head, changes, last, monkeypatch):
    """Nor does the last layer compute what no head reads."""
    ours, inner = cases.zoo(head, **changes), INNER[cases]
    seen, forward = [], inner.forward

    def recorded(self, states):  # not a hook, for which padding would be computed
        seen.append(states.shape[:-1])
        return forward(self, states)

    monkeypatch.setattr(inner, "forward", recorded)
    inputs = cases.batch(lengths=[2, 3, 19, 5, 3, 2, 2])
    labels = torch.randint(0, LABELS, (ROWS,)) if changes else None
    ours(**inputs, labels=labels)
    assert seen == [(1, 36), (1, 36), (1, last)]  # 36 real tokens of 133, and 7 of the classifier's
    seen.clear()
    ours(**inputs, labels=labels, unpad=False)
    assert seen == [(7, 19), (7, 19), (7, 19 if last == 36 else 1)]


@EACH_FAMILY
def test_the_state_of_padding_is_zero_unless_it_is_asked_for(cases):
    ours, this = cases.zoo("Model"), cases.case("Model")
    left = on_the_left(this.inputs)  # left padding is computed, then hidden
    assert not ours(**this.inputs).last_hidden_state[~this.real].any()
    assert not ours(**left).last_hidden_state[left["attention_mask"] == 0].any()
    assert ours(**this.inputs, unpad=False).last_hidden_state[~this.real].all()


@EACH_FAMILY
def test_a_row_of_nothing_but_padding_is_harmless(cases, tmp_path):
    stock, ours = cases.pair("ForSequenceClassification", tmp_path)
    inputs = cases.batch()
    inputs["attention_mask"][3] = 0
    mine, theirs = (model(**inputs).logits for model in (ours, stock))
    others = [row for row in range(ROWS) if row != 3]
    assert mine.isfinite().all()
    torch.testing.assert_close(mine[others], theirs[others], atol=1e-5, rtol=1e-5)


HEADS = ["ForSequenceClassification", "ForTokenClassification"]


@each("head", [*HEADS, "ForMaskedLM"], [*HEADS, "LMHeadModel"])
def test_a_row_gets_the_same_output_in_any_company(cases, head):
    ours, inputs = cases.zoo(head), cases.batch()
    together = ours(**inputs).logits
    order = torch.randperm(ROWS)
    shuffled = ours(**{name: tensor[order] for name, tensor in inputs.items()}).logits
    real = inputs["attention_mask"].bool() if together.dim() == 3 else torch.ones(ROWS, dtype=torch.bool)
    torch.testing.assert_close(shuffled[real[order]], together[order][real[order]], atol=1e-5, rtol=1e-5)
    for row, length in enumerate(inputs["attention_mask"].sum(1).tolist()):
        alone = ours(**{name: tensor[row : row + 1, :length] for name, tensor in inputs.items()}).logits
        torch.testing.assert_close(alone[0], together[row][:length] if together.dim() == 3 else together[row])


# Attention


@pytest.mark.usefixtures("_on_a_grid")
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@each("head", ["Model", "ForSequenceClassification", "ForMaskedLM"], ["Model", *gpt_cases.STOCK_HEADS])
def test_attention_on_a_grid_gives_what_attention_in_groups_gives(cases, head, attention, tmp_path, monkeypatch):
    monkeypatch.setattr(modeling_attention, "_attend_in_groups", None)
    stock, ours = cases.pair(head, tmp_path, attention)
    this = cases.case(head, holes=True)
    assert_same_outputs(ours(**this.inputs), stock(**this.for_stock), this.real)
    if this.labels:
        for model, inputs in ((stock, this.for_stock), (ours, this.inputs)):
            model(**inputs, **this.labels).loss.backward()
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


@each("head", ["ForSequenceClassification", "ForMaskedLM"], ["ForSequenceClassification", "LMHeadModel"])
def test_in_bfloat16_the_gradients_of_plain_products_are_as_close_to_float32_as_those_of_sdpa(
    cases, head, monkeypatch
):
    ours, this = cases.zoo(head), cases.case(head, holes=True)

    def gradients(dtype: torch.dtype, has_amx: bool) -> torch.Tensor:
        monkeypatch.setattr(modeling_attention, "has_amx", lambda: has_amx)
        ours.zero_grad()
        with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
            ours(**this.inputs, **this.labels).loss.backward()
        return torch.cat([weight.grad.flatten() for weight in ours.parameters() if weight.grad is not None])

    exact = gradients(torch.float32, has_amx=False)
    plain, fused = ((gradients(torch.bfloat16, has_amx) - exact).norm() for has_amx in (False, True))
    assert 0 < plain < 1.2 * fused


def reference_flash_attention(module, query, key, value, attention_mask, scaling=None, **kwargs):
    """What a varlen kernel computes, one sequence at a time, from the boundaries it was handed.

    A single causal query stands at the end of its sequence, as the kernels align the two.
    """
    assert attention_mask is None and query.shape[0] == 1
    asked, known = kwargs["cu_seq_lens_q"].tolist(), kwargs["cu_seq_lens_k"].tolist()
    lengths = [[stop - start for start, stop in zip(ends, ends[1:], strict=False)] for ends in (asked, known)]
    assert (kwargs["max_length_q"], kwargs["max_length_k"]) == tuple(map(max, lengths))
    outputs = []
    for index, (queries, keys) in enumerate(zip(*lengths, strict=True)):
        seen = torch.ones(queries, keys, dtype=torch.bool)
        outputs.append(
            scaled_dot_product_attention(
                query[:, :, asked[index] : asked[index + 1]],
                key[:, :, known[index] : known[index + 1]],
                value[:, :, known[index] : known[index + 1]],
                seen.tril(keys - queries) if module.is_causal else seen,
                scale=scaling,
            )
        )
    return torch.cat(outputs, 2).transpose(1, 2), None


@pytest.mark.parametrize("kernel", FLASH_KERNELS)
@each("head", ["Model", "ForSequenceClassification"], ["Model", *gpt_cases.STOCK_HEADS])
def test_a_flash_kernel_is_handed_the_boundaries_of_the_sequences(cases, head, kernel, tmp_path, monkeypatch):
    monkeypatch.setitem(AttentionInterface._global_mapping, kernel, reference_flash_attention)
    stock, ours = cases.pair(head, tmp_path)
    ours.config._attn_implementation_internal = kernel  # its setter wants the package and a GPU
    this = cases.case(head, holes=True)
    assert_same_outputs(ours(**this.inputs), stock(**this.for_stock), this.real)


@EACH_FAMILY
def test_an_attention_function_of_the_users_own_gets_the_whole_batch(cases, monkeypatch):
    shapes = []

    def attention(module, query, key, value, attention_mask, **kwargs):
        shapes.append(query.shape)
        return query.transpose(1, 2), None

    monkeypatch.setitem(AttentionInterface._global_mapping, "mine", attention)
    ours, inputs = cases.zoo("Model", "mine"), cases.batch()
    ours(**inputs)
    assert shapes == [(ROWS, 3, inputs["input_ids"].shape[1], 12)] * 3


# Rows of several sequences

STATES = each("head", ["Model"], ["LMHeadModel"])


@STATES
def test_a_packed_row_may_be_longer_than_the_models_positions(cases, head, tmp_path):
    stock, ours = cases.pair(head, tmp_path)
    inputs = cases.batch(lengths=[19, 17, 19, 12])  # 67 tokens in one row, 41 positions
    flat = flattened(inputs)
    expected = stock(**inputs)[0][inputs["attention_mask"].bool()]
    torch.testing.assert_close(ours(**flat)[0].squeeze(0), expected, atol=1e-5, rtol=1e-5)
    flat["position_ids"] = flat["position_ids"] + 30
    with pytest.raises(ValueError, match="reaches position 49 and the model has 41"):
        ours(**flat)


@pytest.mark.usefixtures("_on_a_grid")
@STATES
def test_short_sequences_packed_beside_a_long_one_are_not_spread_over_a_grid_of_its_length(
    cases, head, tmp_path, monkeypatch
):
    monkeypatch.setattr(modeling_attention, "_attend_on_a_grid", None)
    stock, ours = cases.pair(head, tmp_path)
    inputs = cases.batch(lengths=[19, 2, 2, 2, 2, 2, 2])  # 31 tokens, a grid of 7 x 19
    expected = stock(**inputs)[0][inputs["attention_mask"].bool()]
    torch.testing.assert_close(ours(**flattened(inputs))[0].squeeze(0), expected, atol=1e-5, rtol=1e-5)


@each("head", ["ForTokenClassification"], ["LMHeadModel"])
def test_packed_rows_may_have_padding_and_padding_inside(cases, head, tmp_path):
    stock, ours = cases.pair(head, tmp_path)
    inputs = cases.batch(lengths=[8, 12])
    inputs["seq_idx"] = torch.tensor([[0] * 5 + [1] * 7, [0] * 4 + [1] * 3 + [2] * 5])
    inputs["attention_mask"][1, 4:7] = 0  # a sequence of nothing but padding
    logits = ours(**inputs).logits
    for row, start, stop in ((0, 0, 5), (0, 5, 8), (1, 0, 4), (1, 7, 12)):
        alone = {name: tensor[row : row + 1, start:stop] for name, tensor in inputs.items() if name != "seq_idx"}
        torch.testing.assert_close(logits[row : row + 1, start:stop], stock(**alone).logits, atol=1e-5, rtol=1e-5)


@each("read", [0], [-1])
def test_of_a_packed_row_bert_classifies_the_first_sequence_and_gpt_the_last(cases, read, tmp_path):
    stock, ours = cases.pair("ForSequenceClassification", tmp_path)
    inputs = cases.batch(UNEVEN)
    expected = stock(**inputs).logits[[read]]
    torch.testing.assert_close(ours(**flattened(inputs)).logits, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("attention", ["flash_attention_2", "mine"])
@EACH_FAMILY
def test_packed_rows_are_refused_where_nothing_would_keep_them_apart(cases, attention, monkeypatch):
    monkeypatch.setitem(AttentionInterface._global_mapping, attention, reference_flash_attention)
    ours = cases.zoo("Model")
    ours.config._attn_implementation_internal = attention
    with pytest.raises(ValueError, match=f"'{attention}' keeps them apart only where padding is not computed"):
        ours(**flattened(cases.batch()), unpad=False)


# Compiled


@pytest.mark.slow
@EACH_FAMILY
def test_one_compiled_graph_serves_every_mask(cases):
    ours = cases.zoo("ForSequenceClassification", **TWO_LAYERS[cases])
    graphs = []

    def count(graph, example_inputs):
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    compiled = torch.compile(ours, fullgraph=True, backend=count)
    for lengths in ([COLUMNS] * ROWS, [3, 19, 4, 5, 6, 7, 8], [19, 19, 2, 2, 2, 2, 2]):
        inputs = cases.batch(lengths=lengths)
        for given in (inputs, on_the_left(inputs)):
            torch.testing.assert_close(compiled(**given).logits, ours(**given).logits, atol=1e-5, rtol=1e-5)
    assert len(graphs) == 1


@pytest.mark.slow
@EACH_FAMILY
def test_a_compiled_model_keeps_packed_rows_apart(cases):
    ours, inputs = cases.zoo("Model", **dict.fromkeys(TWO_LAYERS[cases], 1)), flattened(cases.batch(UNEVEN))
    inputs = {name: inputs[name] for name in ("input_ids", "position_ids", "token_type_ids") if name in inputs}
    torch._dynamo.reset()
    with torch.no_grad():
        compiled = torch.compile(ours, fullgraph=True, backend="eager")
        for positions in (inputs["position_ids"], inputs["position_ids"].flip(1)):  # which divide the row, or do not
            inputs["position_ids"] = positions
            states = compiled(**inputs).last_hidden_state
            torch.testing.assert_close(states, ours(**inputs).last_hidden_state, atol=1e-5, rtol=1e-5)
