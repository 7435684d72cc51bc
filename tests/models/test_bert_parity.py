"""The zoo's BERT computes what transformers' BERT computes: outputs, losses and gradients, for every head."""

import copy
from itertools import product

import pytest
import torch
import transformers
from transformers.modeling_outputs import BaseModelOutput

from tests.support.bert_cases import HEADS, LABELS, assert_same_gradients, assert_same_outputs, batch, case, pair


UNPAD = pytest.mark.parametrize("unpad", [True, False], ids=["packed", "padded"])
ATTENTION = pytest.mark.parametrize("attention", ["eager", "sdpa"])


# All ways of the encoder with the model alone, and each head, which sees only the encoder's last states, with two that
# have nothing in common.
WAYS = [*product([True, False], ["eager", "sdpa"], [False, True])]
APART = [(True, "sdpa", True), (False, "eager", False)]


@pytest.mark.parametrize(
    ("head", "unpad", "attention", "holes"),
    [*(("Model", *way) for way in WAYS), *((head, *way) for head in HEADS for way in APART)],
)
def test_outputs_are_the_stock_models(head, unpad, attention, holes, tmp_path):
    stock, ours = pair(head, tmp_path, attention)
    this = case(head, holes)
    with torch.no_grad():
        assert_same_outputs(ours(**this.inputs, unpad=unpad), stock(**this.inputs), this.real)


# A head that reads all states and one that reads the first, in all ways; the others in two.
@pytest.mark.parametrize(
    ("head", "unpad", "attention", "training"),
    [
        *((head, *way) for head in ("ForMaskedLM", "ForSequenceClassification") for way in WAYS),
        *((head, *way) for head in HEADS if head not in ("ForMaskedLM", "ForSequenceClassification") for way in APART),
    ],
)
def test_losses_and_gradients_are_the_stock_models(head, unpad, attention, training, tmp_path):
    stock, ours = pair(head, tmp_path, attention)
    this = case(head, holes=True)
    losses = []
    for model, extra in ((stock, {}), (ours, {"unpad": unpad})):
        model.train(training)
        losses.append(model(**this.inputs, **this.labels, **extra).loss)
        losses[-1].backward()
    torch.testing.assert_close(*losses, atol=1e-5, rtol=1e-5)
    assert_same_gradients(ours, stock)


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("head", HEADS)
def test_in_double_precision_losses_and_gradients_are_as_exact_as_the_stock_models(head, training, tmp_path):
    stock, ours = (model.double().train(training) for model in pair(head, tmp_path))
    example = case(head)
    losses = [model(**example.inputs, **example.labels).loss for model in (ours, stock)]
    torch.testing.assert_close(*losses, atol=0, rtol=1e-12)
    for loss in losses:
        loss.backward()
    for name, parameter in stock.named_parameters():
        if parameter.grad is not None:
            torch.testing.assert_close(ours.get_parameter(name).grad, parameter.grad, atol=1e-12, rtol=1e-10)


@UNPAD
def test_gradients_flow_through_the_base_models_outputs(unpad, tmp_path):
    stock, ours = pair("Model", tmp_path)
    this = case("Model")
    weights = torch.randn(*this.real.shape, 36) * this.real.unsqueeze(-1)
    for model, extra in ((stock, {}), (ours, {"unpad": unpad})):
        output = model(**this.inputs, **extra)
        ((output.last_hidden_state * weights).sum() + output.pooler_output.square().sum()).backward()
    assert_same_gradients(ours, stock, atol=1e-4)


@pytest.mark.parametrize("activation", ["gelu_new", "relu", "silu"])
def test_every_activation_and_epsilon_means_what_it_means_in_the_stock_model(activation, tmp_path):
    stock, ours = pair("ForPreTraining", tmp_path, hidden_act=activation, layer_norm_eps=0.3)
    this = case("ForPreTraining")
    assert_same_outputs(ours(**this.inputs), stock(**this.inputs), this.real)


@pytest.mark.parametrize("head", ["Model", *HEADS])
def test_dropout_falls_where_it_does_in_the_stock_model(head, tmp_path):
    rates = {"hidden_dropout_prob": 0.3, "attention_probs_dropout_prob": 0.2, "classifier_dropout": 0.5}
    stock, ours = pair(head, tmp_path, "eager", **rates)
    ours.config.unpad = False  # both draw as many numbers, for all tokens
    this = case(head)
    outcomes = []
    for model in (ours, stock):
        torch.manual_seed(1)
        outputs = model.train()(**this.inputs, **this.labels)
        outcomes.append(outputs.last_hidden_state[this.real] if head == "Model" else outputs.loss)
    torch.testing.assert_close(*outcomes, atol=1e-5, rtol=1e-5)
    if head != "Model":
        evaluated = ours.eval()(**this.inputs, **this.labels).loss
        assert (outcomes[0] - evaluated).abs() > 1e-3


@pytest.mark.parametrize("head", ["ForMaskedLM", "ForPreTraining", "ForTokenClassification"])
def test_labels_on_padding_count_as_they_do_in_the_stock_model(head, tmp_path):
    stock, ours = pair(head, tmp_path)
    this = case(head)
    this.labels["labels"] = torch.randint(0, LABELS, this.real.shape)
    losses = []
    for model in (stock, ours):
        losses.append(model.train()(**this.inputs, **this.labels).loss)
        losses[-1].backward()
    torch.testing.assert_close(*losses, atol=1e-5, rtol=1e-5)
    assert_same_gradients(ours, stock)


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
def test_sequence_classification_covers_every_problem_type(problem_type, labels, told, tmp_path):
    classes = 1 if problem_type == "regression" and labels.dim() == 1 else LABELS
    if not told and problem_type == "regression" and classes > 1:
        problem_type = "multi_label_classification"  # several floats a row mean that, unless the configuration says
        labels = labels.sigmoid()
    stock, ours = pair("ForSequenceClassification", tmp_path, num_labels=classes)
    inputs, losses = batch(), []
    for model in (stock, ours):
        model.config.problem_type = problem_type if told else None
        losses.append(model(**inputs, labels=labels).loss)
        assert model.config.problem_type == problem_type
    torch.testing.assert_close(*losses)


def test_an_unknown_problem_type_is_an_error(tmp_path):
    _, ours = pair("ForSequenceClassification", tmp_path)
    ours.config.problem_type = "ranking"
    with pytest.raises(ValueError, match="'ranking' is not known; choose regression"):
        ours(**batch(), labels=torch.zeros(7))


@pytest.mark.parametrize("head", ["ForMaskedLM", "ForSequenceClassification", "ForQuestionAnswering"])
def test_twenty_adamw_steps_stay_together(head, tmp_path):
    stock, ours = pair(head, tmp_path)
    steps = [case(head, holes=index % 2 == 1) for index in range(20)]
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
    this = case(head)
    losses = [model(**this.inputs, **this.labels).loss for model in (ours, stock)]
    torch.testing.assert_close(*losses, atol=1e-4, rtol=0)


@UNPAD
@ATTENTION
@pytest.mark.parametrize("head", ["Model", "ForSequenceClassification", "ForMaskedLM"])
def test_hidden_states_are_recorded_in_their_padded_shape(head, attention, unpad, tmp_path):
    stock, ours = pair(head, tmp_path, attention)
    this = case(head)
    mine = ours(**this.inputs, output_hidden_states=True, unpad=unpad)
    assert isinstance(mine.hidden_states, tuple) and len(mine.hidden_states) == 4
    assert_same_outputs(mine, stock(**this.inputs, output_hidden_states=True), this.real)


@pytest.mark.skipif(transformers.__version__ < "5.21", reason="transformers records chosen states since 5.21")
def test_chosen_hidden_states_are_recorded_alone(tmp_path):
    stock, ours = pair("Model", tmp_path)
    this = case("Model")
    mine, theirs = (model(**this.inputs, output_hidden_states=[1, -1]).hidden_states for model in (ours, stock))
    assert [state is None for state in mine] == [state is None for state in theirs] == [True, False, True, False]
    torch.testing.assert_close(mine[1][this.real], theirs[1][this.real], atol=1e-5, rtol=1e-5)


def test_gradients_reach_recorded_hidden_states_while_packed(tmp_path):
    stock, ours = pair("ForSequenceClassification", tmp_path)
    this = case("ForSequenceClassification")
    gradients = []
    for model in (stock, ours):
        output = model(**this.inputs, **this.labels, output_hidden_states=True)
        output.hidden_states[1].retain_grad()
        output.loss.backward()
        gradients.append(output.hidden_states[1].grad[this.real])
    torch.testing.assert_close(*gradients, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("head", ["Model", "ForSequenceClassification", "ForQuestionAnswering"])
def test_attentions_are_the_stock_models(head, tmp_path):
    stock, ours = pair(head, tmp_path, "eager")
    this = case(head)
    mine = ours(**this.inputs, output_attentions=True)
    assert len(mine.attentions) == 3
    assert_same_outputs(mine, stock(**this.inputs, output_attentions=True), this.real)


@UNPAD
def test_embeddings_may_be_given_instead_of_ids(unpad, tmp_path):
    stock, ours = pair("ForTokenClassification", tmp_path)
    this = case("ForTokenClassification")
    ids = this.inputs.pop("input_ids")
    outputs = []
    for model, extra in ((ours, {"unpad": unpad}), (stock, {})):
        embeddings = model.get_input_embeddings()(ids)
        outputs.append(model(inputs_embeds=embeddings, **this.inputs, **extra))
    assert_same_outputs(*outputs, this.real)


@UNPAD
@pytest.mark.parametrize("left_out", ["token_type_ids", "attention_mask"])
def test_masks_and_segments_may_be_left_out(left_out, unpad, tmp_path):
    stock, ours = pair("ForMaskedLM", tmp_path)
    this = case("ForMaskedLM")
    del this.inputs[left_out]
    real = torch.ones_like(this.real) if left_out == "attention_mask" else this.real
    assert_same_outputs(ours(**this.inputs, unpad=unpad), stock(**this.inputs), real)


@UNPAD
def test_positions_may_be_given(unpad, tmp_path):
    stock, ours = pair("Model", tmp_path)
    this = case("Model")
    positions = torch.arange(this.real.shape[1]) + torch.randint(1, 9, (len(this.real), 1))  # no row restarts
    assert_same_outputs(
        ours(**this.inputs, position_ids=positions, unpad=unpad),
        stock(**this.inputs, position_ids=positions),
        this.real,
    )


def test_positions_of_one_row_hold_for_all(tmp_path):
    stock, ours = pair("Model", tmp_path / "base")
    this = case("Model")
    positions = torch.arange(3, 3 + this.real.shape[1])
    expected = stock(**this.inputs, position_ids=positions.unsqueeze(0))
    for same in (positions, positions.unsqueeze(0)):
        assert_same_outputs(ours(**this.inputs, position_ids=same), expected, this.real)
    stock, ours = pair("ForMultipleChoice", tmp_path / "choices")
    this = case("ForMultipleChoice")
    inputs = this.inputs | {"position_ids": torch.arange(3, 3 + this.real.shape[2]).unsqueeze(0)}
    torch.testing.assert_close(ours(**inputs).logits, stock(**inputs).logits, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("head", ["Model", "ForSequenceClassification"])
def test_left_padding_gives_what_the_stock_model_gives(head, tmp_path):
    stock, ours = pair(head, tmp_path)
    this = case(head)
    inputs = {name: tensor.flip(1) for name, tensor in this.inputs.items()}
    assert_same_outputs(ours(**inputs), stock(**inputs), this.real.flip(1))


def test_a_mask_for_every_pair_of_tokens_is_taken_as_it_is(tmp_path):
    stock, ours = pair("ForSequenceClassification", tmp_path)
    this = case("ForSequenceClassification")
    visible = torch.rand(len(this.real), 1, *[this.real.shape[1]] * 2) < 0.7
    visible |= torch.eye(this.real.shape[1], dtype=torch.bool)
    inputs = this.inputs | {"attention_mask": visible}
    torch.testing.assert_close(ours(**inputs).logits, stock(**inputs).logits, atol=1e-5, rtol=1e-5)


def test_outputs_come_as_tuples_on_request(tmp_path):
    stock, ours = pair("ForPreTraining", tmp_path)
    this = case("ForPreTraining")
    mine, theirs = (model(**this.inputs, **this.labels, return_dict=False) for model in (ours, stock))
    assert [tensor.shape for tensor in mine] == [tensor.shape for tensor in theirs]


def test_the_weights_of_the_stock_head_are_those_of_ours(tmp_path):
    stock, ours = pair("ForMaskedLM", tmp_path)
    weights = {name: weight + 1 for name, weight in stock.state_dict().items()}
    ours.load_state_dict(weights)
    assert torch.equal(ours.cls.predictions.bias, weights["cls.predictions.bias"])


def test_resized_embeddings_keep_their_head(tmp_path):
    stock, ours = pair("ForMaskedLM", tmp_path)
    this = case("ForMaskedLM")
    for model in (stock, ours):
        model.resize_token_embeddings(103, mean_resizing=False)
        assert model.cls.predictions.decoder.weight is model.get_input_embeddings().weight
        assert model.cls.predictions.bias.shape == (103,)
    known = ours(**this.inputs).logits[this.real][:, :97], stock(**this.inputs).logits[this.real][:, :97]
    torch.testing.assert_close(*known, atol=1e-5, rtol=1e-5)
    with torch.no_grad():
        for model in (stock, ours):
            decoder = torch.nn.Linear(36, 97)
            decoder.weight.copy_(model.get_input_embeddings().weight[:97])
            decoder.bias.copy_(torch.arange(97) / 97)
            model.set_output_embeddings(decoder)
    replaced = ours(**this.inputs).logits[this.real], stock(**this.inputs).logits[this.real]
    torch.testing.assert_close(*replaced, atol=1e-5, rtol=1e-5)


def test_half_precision_stays_as_close_as_the_stock_model_is_to_itself(tmp_path):
    stock, ours = pair("ForSequenceClassification", tmp_path)
    this = case("ForSequenceClassification")
    exact = stock(**this.inputs).logits
    stock_error = (copy.deepcopy(stock).bfloat16()(**this.inputs).logits - exact).abs().max()
    our_error = (ours.bfloat16()(**this.inputs).logits - exact).abs().max()
    assert our_error < 2 * stock_error + 1e-3


def test_exactly_one_kind_of_input_is_wanted(tmp_path):
    _, ours = pair("Model", tmp_path)
    with pytest.raises(ValueError, match="exactly one of input_ids and inputs_embeds"):
        ours()


@pytest.mark.parametrize("given", [{"encoder_hidden_states": torch.ones(1, 2, 36)}, {"encoder_attention_mask": 1}])
def test_the_inputs_of_a_decoder_are_refused(given, tmp_path):
    _, ours = pair("ForMaskedLM", tmp_path)
    ours(**batch(), use_cache=True, encoder_hidden_states=None)  # of which an encoder takes no notice
    with pytest.raises(
        ValueError, match=f"{next(iter(given))}: ZooBert has no cache .*Use transformers.BertLMHeadModel"
    ):
        ours(**batch(), **given)


def test_an_input_longer_than_the_positions_is_one_clear_error(tmp_path):
    _, ours = pair("Model", tmp_path)
    with pytest.raises(ValueError, match="reaches position 42 and the model has 41: pass truncation=True"):
        ours(torch.ones(1, 42, dtype=torch.long))


def test_the_base_model_returns_transformers_output_type(tmp_path):
    _, ours = pair("Model", tmp_path)
    output = ours(**batch())
    assert isinstance(output, BaseModelOutput.__mro__[1]) and list(output) == ["last_hidden_state", "pooler_output"]
