"""The zoo's GPT computes what transformers' OpenAI GPT computes: outputs, losses and gradients, for every head."""

import copy

import pytest
import torch
from transformers.modeling_outputs import BaseModelOutputWithPast

from tests.support.gpt_cases import (
    LABELS,
    STOCK_HEADS,
    assert_same_gradients,
    assert_same_outputs,
    batch,
    case,
    on_the_left,
    pair,
)


UNPAD = pytest.mark.parametrize("unpad", [True, False], ids=["packed", "padded"])
ATTENTION = pytest.mark.parametrize("attention", ["eager", "sdpa"])


@UNPAD
@ATTENTION
@pytest.mark.parametrize("holes", [False, True], ids=["lengths", "holes"])
@pytest.mark.parametrize("head", ["Model", *STOCK_HEADS])
def test_outputs_are_the_stock_models(head, attention, holes, unpad, tmp_path):
    stock, ours = pair(head, tmp_path, attention)
    this = case(head, holes)
    with torch.no_grad():
        assert_same_outputs(ours(**this.inputs, unpad=unpad), stock(**this.for_stock), this.real)


@UNPAD
@ATTENTION
@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("head", STOCK_HEADS)
def test_losses_and_gradients_are_the_stock_models(head, attention, training, unpad, tmp_path):
    stock, ours = pair(head, tmp_path, attention)
    this = case(head, holes=True)
    losses = []
    for model, inputs in ((stock, this.for_stock), (ours, this.inputs | {"unpad": unpad})):
        output = model.train(training)(**inputs, **this.labels)
        losses.append(torch.stack([output.loss, output.get("mc_loss", output.loss)]))
        losses[-1].sum().backward()
    torch.testing.assert_close(*losses, atol=1e-5, rtol=1e-5)
    assert_same_gradients(ours, stock)


@UNPAD
@pytest.mark.parametrize("head", ["Model", *STOCK_HEADS])
def test_in_double_precision_nothing_is_left_but_rounding(head, unpad, tmp_path):
    stock, ours = (model.double() for model in pair(head, tmp_path))
    this = case(head, holes=True)
    assert_same_outputs(ours(**this.inputs, unpad=unpad), stock(**this.for_stock), this.real, atol=1e-12)


@UNPAD
def test_gradients_flow_through_the_base_models_outputs(unpad, tmp_path):
    stock, ours = pair("Model", tmp_path)
    this = case("Model")
    weights = torch.randn(*this.real.shape, 36) * this.real.unsqueeze(-1)
    for model, extra in ((stock, {}), (ours, {"unpad": unpad})):
        (model(**this.inputs, **extra).last_hidden_state * weights).sum().backward()
    assert_same_gradients(ours, stock, atol=1e-4)


@pytest.mark.parametrize("head", ["LMHeadModel", "DoubleHeadsModel"])
def test_labels_on_padding_count_as_they_do_in_the_stock_model(head, tmp_path):
    stock, ours = pair(head, tmp_path)
    this = case(head)
    this.labels["labels"] = this.inputs["input_ids"]  # padding's ids are labels as well
    losses = []
    for model, inputs in ((stock, this.for_stock), (ours, this.inputs)):
        losses.append(model.train()(**inputs, **this.labels).loss)
        losses[-1].backward()
    torch.testing.assert_close(*losses, atol=1e-5, rtol=1e-5)
    assert_same_gradients(ours, stock)


def test_labels_may_come_shifted(tmp_path):
    _, ours = pair("LMHeadModel", tmp_path)
    this = case("LMHeadModel")
    labels = this.labels["labels"]
    shifted = torch.cat([labels[:, 1:], torch.full_like(labels[:, :1], -100)], 1)
    losses = [ours(**this.inputs, labels=labels, **given).loss for given in ({}, {"shift_labels": shifted})]
    torch.testing.assert_close(*losses)


@pytest.mark.parametrize(
    ("problem_type", "labels"),
    [
        ("regression", torch.randn(7)),
        ("regression", torch.randn(7, LABELS)),
        ("multi_label_classification", torch.randint(0, 2, (7, LABELS)).float()),
        ("single_label_classification", torch.randint(0, LABELS, (7,))),
    ],
)
def test_sequence_classification_covers_every_problem_type(problem_type, labels, tmp_path):
    classes = 1 if labels.dim() == 1 and labels.is_floating_point() else LABELS
    stock, ours = pair("ForSequenceClassification", tmp_path, num_labels=classes, problem_type=problem_type)
    inputs, losses = batch(), []
    for model in (stock, ours):
        losses.append(model(**inputs, labels=labels).loss)
        losses[-1].backward()
    torch.testing.assert_close(*losses)
    assert_same_gradients(ours, stock)


@pytest.mark.parametrize("head", ["LMHeadModel", "ForSequenceClassification"])
def test_twenty_adamw_steps_stay_together(head, tmp_path):
    stock, ours = pair(head, tmp_path)
    steps = [case(head, holes=index % 2 == 1) for index in range(20)]
    for model in (stock.train(), ours.train()):
        optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
        for this in steps:
            model(**this.inputs, **this.labels).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    mine = dict(ours.named_parameters())
    for name, parameter in stock.named_parameters():
        # A softmax does not see all keys shifted: the gradient of their bias is rounding noise that Adam scales up.
        told = torch.arange(len(parameter)) // 36 != 1 if name.endswith("c_attn.bias") else slice(None)
        torch.testing.assert_close(
            mine[name][told], parameter[told], atol=1e-4, rtol=0, msg=lambda text, name=name: name + text
        )


@pytest.mark.parametrize("activation", ["gelu", "relu", "silu", "swish"])
def test_every_activation_and_epsilon_of_the_files_means_what_it_means_in_the_stock_model(activation, tmp_path):
    stock, ours = pair("Model", tmp_path, afn=activation, layer_norm_epsilon=0.3)
    this = case("Model")
    assert_same_outputs(ours(**this.inputs), stock(**this.inputs), this.real)


@pytest.mark.parametrize("head", ["LMHeadModel", "DoubleHeadsModel"])
def test_dropout_falls_where_it_does_in_the_stock_model(head, tmp_path):
    rates = {"resid_pdrop": 0.3, "embd_pdrop": 0.2, "attn_pdrop": 0.4, "summary_first_dropout": 0.5}
    stock, ours = pair(head, tmp_path, "eager", **rates)
    this = case(head)
    outputs = []
    for model, inputs in ((ours, this.inputs | {"unpad": False}), (stock, this.for_stock)):
        torch.manual_seed(1)
        outputs.append(model.train()(**inputs))
    assert_same_outputs(*outputs, this.real)
    dropped, kept = outputs[0].logits, ours.eval()(**this.inputs).logits
    assert (dropped - kept).abs().max() > 0.1


@ATTENTION
@pytest.mark.parametrize("head", ["Model", *STOCK_HEADS])
def test_hidden_states_are_recorded_in_their_padded_shape(head, attention, tmp_path):
    stock, ours = pair(head, tmp_path, attention)
    this = case(head)
    mine = ours(**this.inputs, output_hidden_states=True)
    assert isinstance(mine.hidden_states, tuple) and len(mine.hidden_states) == 4
    assert_same_outputs(mine, stock(**this.for_stock, output_hidden_states=True), this.real)


@pytest.mark.parametrize("head", ["Model", *STOCK_HEADS])
def test_attentions_are_the_stock_models(head, tmp_path):
    stock, ours = pair(head, tmp_path, "eager")
    this = case(head)
    mine = ours(**this.inputs, output_attentions=True)
    assert len(mine.attentions) == 3
    assert_same_outputs(mine, stock(**this.for_stock, output_attentions=True), this.real)


@UNPAD
@pytest.mark.parametrize("head", ["LMHeadModel", "ForSequenceClassification"])
def test_gradients_reach_recorded_hidden_states(head, unpad, tmp_path):
    stock, ours = pair(head, tmp_path)
    this = case(head)
    gradients = []
    for model, extra in ((stock, {}), (ours, {"unpad": unpad})):
        output = model(**this.inputs, **this.labels, **extra, output_hidden_states=True)
        output.hidden_states[1].retain_grad()
        output.loss.backward()
        gradients.append(output.hidden_states[1].grad[this.real])
    torch.testing.assert_close(*gradients, atol=1e-5, rtol=1e-5)


@UNPAD
@pytest.mark.parametrize("head", ["Model", "LMHeadModel"])
def test_embeddings_may_be_given_instead_of_ids(head, unpad, tmp_path):
    stock, ours = pair(head, tmp_path)
    this = case(head)
    ids = this.inputs.pop("input_ids")
    outputs = []
    for model, extra in ((ours, {"unpad": unpad}), (stock, {})):
        embeddings = model.get_input_embeddings()(ids)
        outputs.append(model(inputs_embeds=embeddings, **this.inputs, **extra))
    assert_same_outputs(*outputs, this.real)


@UNPAD
@pytest.mark.parametrize("head", ["Model", *STOCK_HEADS])
def test_token_types_are_further_words(head, unpad, tmp_path):
    stock, ours = pair(head, tmp_path)
    this = case(head)
    this.inputs["token_type_ids"] = torch.randint(0, 97, this.real.shape)
    assert_same_outputs(ours(**this.inputs, unpad=unpad), stock(**this.for_stock), this.real)


@pytest.mark.parametrize("head", ["Model", "LMHeadModel", "ForSequenceClassification"])
def test_the_mask_may_be_left_out(head, tmp_path):
    stock, ours = pair(head, tmp_path)
    this = case(head)
    del this.inputs["attention_mask"]
    assert_same_outputs(ours(**this.inputs), stock(**this.inputs), this.real)


@UNPAD
@pytest.mark.parametrize("head", ["Model", "LMHeadModel", "ForSequenceClassification"])
def test_positions_may_be_given(head, unpad, tmp_path):
    stock, ours = pair(head, tmp_path)
    this = case(head)
    this.inputs["position_ids"] = torch.arange(this.real.shape[1]) + torch.randint(1, 9, (len(this.real), 1))
    assert_same_outputs(ours(**this.inputs, unpad=unpad), stock(**this.inputs), this.real)


def test_positions_of_one_row_hold_for_all(tmp_path):
    stock, ours = pair("Model", tmp_path)
    this = case("Model")
    positions = torch.arange(3, 3 + this.real.shape[1])
    expected = stock(**this.inputs, position_ids=positions.unsqueeze(0))
    for same in (positions, positions.unsqueeze(0)):
        assert_same_outputs(ours(**this.inputs, position_ids=same), expected, this.real)


@ATTENTION
@pytest.mark.parametrize("given", [False, True], ids=["by columns", "given"])
@pytest.mark.parametrize("head", ["Model", "LMHeadModel"])
def test_left_padding_gives_what_the_stock_model_gives(head, given, attention, tmp_path):
    stock, ours = pair(head, tmp_path, attention)
    inputs = on_the_left(case(head).inputs)
    real = inputs["attention_mask"].bool()
    if given:  # counted from each row's first token, as its user wants them
        inputs["position_ids"] = (real.cumsum(1) - 1).clamp(min=0)
    assert_same_outputs(ours(**inputs), stock(**inputs), real)


@ATTENTION
@pytest.mark.parametrize("head", ["Model", "ForSequenceClassification"])
def test_a_mask_for_every_pair_of_tokens_is_taken_as_it_is(head, attention, tmp_path):
    stock, ours = pair(head, tmp_path, attention)
    this = case(head)
    columns = this.real.shape[1]
    visible = torch.rand(len(this.real), 1, columns, columns) < 0.7  # also of what comes later
    visible |= torch.eye(columns, dtype=torch.bool)
    for block in stock.base_model.h:
        block.attn.bias = visible.float()  # where transformers keeps the triangle
    del this.inputs["attention_mask"]
    this.inputs["input_ids"].clamp_(min=1)  # which token is a row's last, such a mask does not tell
    everywhere = torch.ones_like(this.real)
    assert_same_outputs(ours(**this.inputs, attention_mask=visible), stock(**this.inputs), everywhere)
    added = torch.zeros(visible.shape).masked_fill(~visible, torch.finfo(torch.float32).min)
    assert_same_outputs(ours(**this.inputs, attention_mask=added), stock(**this.inputs), everywhere)


@pytest.mark.parametrize("head", STOCK_HEADS)
def test_outputs_come_as_tuples_on_request(head, tmp_path):
    stock, ours = pair(head, tmp_path)
    this = case(head)
    mine, theirs = (
        model(**inputs, **this.labels, return_dict=False)
        for model, inputs in ((ours, this.inputs), (stock, this.for_stock))
    )
    assert [tensor.shape for tensor in mine] == [tensor.shape for tensor in theirs]


OF_EACH_ROW = torch.arange(14).reshape(7, 2) % 6
A_MASK = torch.arange(42).reshape(7, 6) % 4 == 0


@pytest.mark.parametrize(
    "kept",
    [0, 1, 4, torch.tensor([0, 3]), OF_EACH_ROW, A_MASK],
    ids=["all", "one", "four", "chosen", "chosen in each row", "mask"],
)
def test_logits_of_the_wanted_tokens_alone(kept, tmp_path):
    stock, ours = pair("LMHeadModel", tmp_path)
    inputs = batch(lengths=[6] * 7)
    mine, theirs = (model(**inputs, logits_to_keep=kept).logits for model in (ours, stock))
    torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_stays_as_close_as_the_stock_model_is_to_itself(dtype, tmp_path):
    stock, ours = pair("ForSequenceClassification", tmp_path)
    this = case("ForSequenceClassification")
    exact = stock(**this.inputs).logits
    stock_error = (copy.deepcopy(stock).to(dtype)(**this.inputs).logits - exact).abs().max()
    our_error = (ours.to(dtype)(**this.inputs).logits - exact).abs().max()
    assert our_error < 2 * stock_error + 1e-3


def test_exactly_one_kind_of_input_is_wanted(tmp_path):
    _, ours = pair("Model", tmp_path)
    for given in ({}, batch() | {"inputs_embeds": torch.ones(7, 19, 36)}):
        with pytest.raises(ValueError, match="exactly one of input_ids and inputs_embeds"):
            ours(**given)


@pytest.mark.parametrize("head", ["Model", "LMHeadModel", "ForSequenceClassification"])
def test_an_input_longer_than_the_positions_is_one_clear_error(head, tmp_path):
    _, ours = pair(head, tmp_path)
    with pytest.raises(ValueError, match="reaches position 42 and the model has 41: pass truncation=True"):
        ours(torch.ones(1, 42, dtype=torch.long))


def test_the_base_model_returns_transformers_output_type(tmp_path):
    _, ours = pair("Model", tmp_path)
    output = ours(**batch(), use_cache=False)
    assert isinstance(output, BaseModelOutputWithPast) and list(output) == ["last_hidden_state"]


@pytest.mark.parametrize("head", STOCK_HEADS)
@pytest.mark.parametrize("labelled", [False, True])
def test_a_batch_without_rows_gives_what_the_stock_model_gives(head, labelled, tmp_path):
    stock, ours = pair(head, tmp_path)
    this = case(head)
    inputs = {name: tensor[:0] for name, tensor in this.inputs.items()}
    labels = {name: tensor[:0] for name, tensor in this.labels.items()} if labelled else {}
    expected = stock(**inputs | {"attention_mask": inputs["attention_mask"].flatten(0, -2)}, **labels)
    found = ours(**inputs, **labels)
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, equal_nan=True)
    without_mask = {name: tensor for name, tensor in inputs.items() if name != "attention_mask"}
    assert ours(**without_mask).logits.shape == expected.logits.shape
