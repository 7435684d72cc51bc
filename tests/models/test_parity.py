"""The zoo's BERT and GPT compute what transformers' do, whatever is given, asked for and recorded, for every head."""

import copy
from itertools import product

import pytest
import torch
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPast, BaseModelOutputWithPoolingAndCrossAttentions

from tests.support import bert_cases, gpt_cases
from tests.support.bert_cases import LABELS
from tests.support.families import EACH_FAMILY, each
from tests.support.model_cases import Tensors, assert_same_gradients, assert_same_outputs, on_the_left


UNPAD = pytest.mark.parametrize("unpad", [True, False], ids=["packed", "padded"])
ATTENTION = pytest.mark.parametrize("attention", ["eager", "sdpa"])
BERT, GPT = ["Model", *bert_cases.HEADS], ["Model", *gpt_cases.STOCK_HEADS]

WAYS = [*product([True, False], ["eager", "sdpa"])]  # packed or not, and how attention is computed


@each("head", BERT, GPT)
@torch.no_grad()
def test_outputs_are_the_stock_models(cases, head, tmp_path):
    stock, ours = cases.pair(head, tmp_path)
    for holes in (False, True):
        this = cases.case(head, holes)
        expected = stock(**this.for_stock)
        for unpad, attention in WAYS:
            ours.set_attn_implementation(attention)
            assert_same_outputs(ours(**this.inputs, unpad=unpad), expected, this.real)


@each("head", bert_cases.HEADS, gpt_cases.STOCK_HEADS)
def test_losses_and_gradients_are_the_stock_models(cases, head, tmp_path):
    """Of BERT, a head that reads all states and one that reads the first, in all ways; the others in two."""
    in_all = cases is gpt_cases or head in ("ForMaskedLM", "ForSequenceClassification")
    ways = WAYS if in_all else [(True, "sdpa"), (False, "eager")]
    stock, ours = cases.pair(head, tmp_path)
    this = cases.case(head, holes=True)
    for training in (False, True):
        expected = loss_with_gradients(stock.train(training), this.for_stock | this.labels)
        for unpad, attention in ways:
            ours.set_attn_implementation(attention)
            found = loss_with_gradients(ours.train(training), this.inputs | this.labels | {"unpad": unpad})
            torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
            assert_same_gradients(ours, stock)


def loss_with_gradients(model: PreTrainedModel, inputs: Tensors) -> torch.Tensor:
    """The losses of a model, whose parameters get the gradients of their sum alone."""
    model.zero_grad()
    output = model(**inputs)
    losses = torch.stack([output[name] for name in ("loss", "mc_loss") if name in output])
    losses.sum().backward()
    return losses.detach()


RATES = {
    bert_cases: {"hidden_dropout_prob": 0.3, "attention_probs_dropout_prob": 0.2, "classifier_dropout": 0.5},
    gpt_cases: {"resid_pdrop": 0.3, "embd_pdrop": 0.2, "attn_pdrop": 0.4, "summary_first_dropout": 0.5},
}


@each("head", BERT, ["Model", "LMHeadModel"])  # transformers' GPT drops nothing before its classes
def test_dropout_falls_where_it_does_in_the_stock_model(cases, head, tmp_path):
    stock, ours = cases.pair(head, tmp_path, "eager", **RATES[cases])
    ours.config.unpad = False  # both draw as many numbers, for all tokens
    this = cases.case(head)
    outputs = []
    for model, inputs in ((ours, this.inputs), (stock, this.for_stock)):
        torch.manual_seed(1)
        outputs.append(model.train()(**inputs, **this.labels))
    assert_same_outputs(*outputs, this.real)
    evaluated = ours.eval()(**this.inputs, **this.labels)
    assert (outputs[0][-1] - evaluated[-1]).abs().max() > 0.1


@UNPAD
@EACH_FAMILY
def test_gradients_flow_through_the_base_models_outputs(cases, unpad, tmp_path):
    stock, ours = cases.pair("Model", tmp_path)
    this = cases.case("Model")
    weights = torch.randn(*this.real.shape, 36) * this.real.unsqueeze(-1)
    for model, extra in ((stock, {}), (ours, {"unpad": unpad})):
        output = model(**this.inputs, **extra)
        pooled = output.pooler_output.square().sum() if cases is bert_cases else 0
        ((output.last_hidden_state * weights).sum() + pooled).backward()
    assert_same_gradients(ours, stock, atol=1e-4)


@each(
    "head, changes",
    [("ForPreTraining", {"hidden_act": name, "layer_norm_eps": 0.3}) for name in ("gelu_new", "relu", "silu")],
    [("Model", {"afn": name, "layer_norm_epsilon": 0.3}) for name in ("gelu", "relu", "silu", "swish")],
)
def test_every_activation_and_epsilon_means_what_it_means_in_the_stock_model(cases, head, changes, tmp_path):
    stock, ours = cases.pair(head, tmp_path, **changes)
    this = cases.case(head)
    assert_same_outputs(ours(**this.inputs), stock(**this.inputs), this.real)


@each("head", ["ForMaskedLM", "ForPreTraining", "ForTokenClassification"], ["LMHeadModel"])
def test_labels_on_padding_count_as_they_do_in_the_stock_model(cases, head, tmp_path):
    stock, ours = cases.pair(head, tmp_path)
    this = cases.case(head)
    this.labels["labels"] = torch.randint(0, LABELS, this.real.shape)
    losses = []
    for model, inputs in ((stock, this.for_stock), (ours, this.inputs)):
        losses.append(model.train()(**inputs, **this.labels).loss)
        losses[-1].backward()
    torch.testing.assert_close(*losses, atol=1e-5, rtol=1e-5)
    assert_same_gradients(ours, stock)


@EACH_FAMILY
@pytest.mark.parametrize(
    ("problem_type", "labels"),
    [
        ("regression", torch.randn(7)),
        ("regression", torch.randn(7, LABELS)),
        ("multi_label_classification", torch.randint(0, 2, (7, LABELS)).float()),
        ("single_label_classification", torch.randint(0, LABELS, (7,))),
    ],
)
@pytest.mark.parametrize("told", [True, False], ids=["told", "inferred"])
def test_sequence_classification_covers_every_problem_type(cases, problem_type, labels, told, tmp_path):
    classes = 1 if problem_type == "regression" and labels.dim() == 1 else LABELS
    if not told and problem_type == "regression" and classes > 1:
        problem_type = "multi_label_classification"  # several floats a row mean that, unless the configuration says
        labels = labels.sigmoid()
    stock, ours = cases.pair("ForSequenceClassification", tmp_path, num_labels=classes)
    inputs, losses = cases.batch(), []
    for model in (stock, ours):
        model.config.problem_type = problem_type if told else None
        losses.append(model(**inputs, labels=labels).loss)
        losses[-1].backward()
        assert model.config.problem_type == problem_type
    torch.testing.assert_close(*losses)
    assert_same_gradients(ours, stock)


@each(
    "head",
    ["ForMaskedLM", "ForSequenceClassification", "ForQuestionAnswering"],
    ["LMHeadModel", "ForSequenceClassification"],
)
def test_ten_adamw_steps_stay_together(cases, head, tmp_path):
    stock, ours = cases.pair(head, tmp_path)
    steps = [cases.case(head, holes=index % 2 == 1) for index in range(10)]
    for model in (stock.train(), ours.train()):
        # A softmax does not see all scores shifted, so some biases have no gradient but rounding. A small epsilon
        # would make it a whole step.
        optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, eps=1e-5)
        for this in steps:
            model(**this.inputs, **this.labels).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    mine = dict(ours.named_parameters())
    for name, parameter in stock.named_parameters():
        torch.testing.assert_close(mine[name], parameter, atol=1e-4, rtol=0, msg=lambda text, name=name: name + text)
    this = cases.case(head)
    losses = [model(**this.inputs, **this.labels).loss for model in (ours, stock)]
    torch.testing.assert_close(*losses, atol=1e-4, rtol=0)


@UNPAD
@ATTENTION
@each("head", ["Model", "ForSequenceClassification", "ForMaskedLM"], GPT)
def test_hidden_states_are_recorded_in_their_padded_shape(cases, head, attention, unpad, tmp_path):
    stock, ours = cases.pair(head, tmp_path, attention)
    this = cases.case(head)
    mine = ours(**this.inputs, output_hidden_states=True, unpad=unpad)
    assert isinstance(mine.hidden_states, tuple) and len(mine.hidden_states) == 4
    assert_same_outputs(mine, stock(**this.for_stock, output_hidden_states=True), this.real)


@UNPAD
@each("head", ["ForSequenceClassification"], ["LMHeadModel", "ForSequenceClassification"])
def test_gradients_reach_recorded_hidden_states(cases, head, unpad, tmp_path):
    stock, ours = cases.pair(head, tmp_path)
    this = cases.case(head)
    gradients = []
    for model, extra in ((stock, {}), (ours, {"unpad": unpad})):
        output = model(**this.inputs, **this.labels, **extra, output_hidden_states=True)
        output.hidden_states[1].retain_grad()
        output.loss.backward()
        gradients.append(output.hidden_states[1].grad[this.real])
    torch.testing.assert_close(*gradients, atol=1e-5, rtol=1e-5)


@each("head", ["Model", "ForSequenceClassification", "ForQuestionAnswering"], GPT)
def test_attentions_are_the_stock_models(cases, head, tmp_path):
    stock, ours = cases.pair(head, tmp_path, "eager")
    this = cases.case(head)
    mine = ours(**this.inputs, output_attentions=True)
    assert len(mine.attentions) == 3
    assert_same_outputs(mine, stock(**this.for_stock, output_attentions=True), this.real)


@UNPAD
@each("head", ["ForTokenClassification"], ["Model", "LMHeadModel"])
def test_embeddings_may_be_given_instead_of_ids(cases, head, unpad, tmp_path):
    stock, ours = cases.pair(head, tmp_path)
    this = cases.case(head)
    ids = this.inputs.pop("input_ids")
    outputs = []
    for model, extra in ((ours, {"unpad": unpad}), (stock, {})):
        embeddings = model.get_input_embeddings()(ids)
        outputs.append(model(inputs_embeds=embeddings, **this.inputs, **extra))
    assert_same_outputs(*outputs, this.real)


@UNPAD
@each(
    "head, left_out",
    [("ForMaskedLM", "token_type_ids"), ("ForMaskedLM", "attention_mask")],
    [(head, "attention_mask") for head in ("Model", "LMHeadModel", "ForSequenceClassification")],
)
def test_masks_and_segments_may_be_left_out(cases, head, left_out, unpad, tmp_path):
    stock, ours = cases.pair(head, tmp_path)
    this = cases.case(head)
    del this.inputs[left_out]
    real = torch.ones_like(this.real) if left_out == "attention_mask" else this.real
    assert_same_outputs(ours(**this.inputs, unpad=unpad), stock(**this.inputs), real)


@UNPAD
@each("head", ["Model"], ["Model", "LMHeadModel", "ForSequenceClassification"])
def test_positions_may_be_given(cases, head, unpad, tmp_path):
    stock, ours = cases.pair(head, tmp_path)
    this = cases.case(head)
    columns = torch.arange(this.real.shape[1])
    this.inputs["position_ids"] = columns + torch.randint(1, 9, (len(this.real), 1))  # no row restarts
    assert_same_outputs(ours(**this.inputs, unpad=unpad), stock(**this.inputs), this.real)


@EACH_FAMILY
def test_positions_of_one_row_hold_for_all(cases, tmp_path):
    stock, ours = cases.pair("Model", tmp_path)
    this = cases.case("Model")
    positions = torch.arange(3, 3 + this.real.shape[1])
    expected = stock(**this.inputs, position_ids=positions.unsqueeze(0))
    for same in (positions, positions.unsqueeze(0)):
        assert_same_outputs(ours(**this.inputs, position_ids=same), expected, this.real)


@ATTENTION
@pytest.mark.parametrize("given", [False, True], ids=["by columns", "given"])
@each("head", ["Model", "ForSequenceClassification"], ["Model", "LMHeadModel"])
def test_left_padding_gives_what_the_stock_model_gives(cases, head, given, attention, tmp_path):
    stock, ours = cases.pair(head, tmp_path, attention)
    inputs = on_the_left(cases.case(head).inputs)
    real = inputs["attention_mask"].bool()
    if given:  # counted from each row's first token, as its user wants them
        inputs["position_ids"] = (real.cumsum(1) - 1).clamp(min=0)
    assert_same_outputs(ours(**inputs), stock(**inputs), real)


@ATTENTION
@each("head", *[["Model", "ForSequenceClassification"]] * 2)
def test_a_mask_for_every_pair_of_tokens_is_taken_as_it_is(cases, head, attention, tmp_path):
    stock, ours = cases.pair(head, tmp_path, attention)
    this = cases.case(head)
    columns = this.real.shape[1]
    visible = torch.rand(len(this.real), 1, columns, columns) < 0.7  # also of what comes later
    visible |= torch.eye(columns, dtype=torch.bool)
    added = torch.zeros(visible.shape).masked_fill(~visible, torch.finfo(torch.float32).min)
    del this.inputs["attention_mask"]
    this.inputs["input_ids"].clamp_(min=1)  # which token is a row's last, such a mask does not tell
    if cases is bert_cases:
        expected = stock(**this.inputs, attention_mask=added)
    else:
        for block in stock.base_model.h:
            block.attn.bias = visible.float()  # where transformers keeps the triangle
        expected = stock(**this.inputs)
    for mask in (visible, added):
        assert_same_outputs(ours(**this.inputs, attention_mask=mask), expected, torch.ones_like(this.real))


@each("head", ["ForPreTraining"], gpt_cases.STOCK_HEADS)
def test_outputs_come_as_tuples_on_request(cases, head, tmp_path):
    stock, ours = cases.pair(head, tmp_path)
    this = cases.case(head)
    mine, theirs = (
        model(**inputs, **this.labels, return_dict=False)
        for model, inputs in ((ours, this.inputs), (stock, this.for_stock))
    )
    assert [tensor.shape for tensor in mine] == [tensor.shape for tensor in theirs]


@EACH_FAMILY
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_stays_as_close_as_the_stock_model_is_to_itself(cases, dtype, tmp_path):
    stock, ours = cases.pair("ForSequenceClassification", tmp_path)
    this = cases.case("ForSequenceClassification")
    exact = stock(**this.inputs).logits
    stock_error = (copy.deepcopy(stock).to(dtype)(**this.inputs).logits - exact).abs().max()
    our_error = (ours.to(dtype)(**this.inputs).logits - exact).abs().max()
    assert our_error < 2 * stock_error + 1e-3


@EACH_FAMILY
def test_exactly_one_kind_of_input_is_wanted(cases, tmp_path):
    _, ours = cases.pair("Model", tmp_path)
    for given in ({}, cases.batch() | {"inputs_embeds": torch.ones(7, 19, 36)}):
        with pytest.raises(ValueError, match="exactly one of input_ids and inputs_embeds"):
            ours(**given)


@each("head", ["Model"], ["Model", "LMHeadModel", "ForSequenceClassification"])
def test_an_input_longer_than_the_positions_is_one_clear_error(cases, head, tmp_path):
    _, ours = cases.pair(head, tmp_path)
    with pytest.raises(ValueError, match="reaches position 42 and the model has 41: pass truncation=True"):
        ours(torch.ones(1, 42, dtype=torch.long))


def test_the_base_models_return_transformers_output_types(tmp_path):
    for cases, kind, names in (
        (bert_cases, BaseModelOutputWithPoolingAndCrossAttentions, ["last_hidden_state", "pooler_output"]),
        (gpt_cases, BaseModelOutputWithPast, ["last_hidden_state"]),
    ):
        _, ours = cases.pair("Model", tmp_path / kind.__name__)
        output = ours(**cases.batch(), use_cache=False)
        assert isinstance(output, kind) and list(output) == names
