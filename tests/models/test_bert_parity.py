"""The zoo's BERT computes what transformers' BERT computes, where GPT has another test or no such thing."""

import pytest
import torch
import transformers

from tests.support.bert_cases import HEADS, batch, case, pair


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


def test_an_unknown_problem_type_is_an_error(tmp_path):
    _, ours = pair("ForSequenceClassification", tmp_path)
    ours.config.problem_type = "ranking"
    with pytest.raises(ValueError, match="'ranking' is not known; choose regression"):
        ours(**batch(), labels=torch.zeros(7))


@pytest.mark.skipif(transformers.__version__ < "5.21", reason="transformers records chosen states since 5.21")
def test_chosen_hidden_states_are_recorded_alone(tmp_path):
    stock, ours = pair("Model", tmp_path)
    this = case("Model")
    mine, theirs = (model(**this.inputs, output_hidden_states=[1, -1]).hidden_states for model in (ours, stock))
    assert [state is None for state in mine] == [state is None for state in theirs] == [True, False, True, False]
    torch.testing.assert_close(mine[1][this.real], theirs[1][this.real], atol=1e-5, rtol=1e-5)


def test_positions_of_one_row_hold_for_all_choices(tmp_path):
    stock, ours = pair("ForMultipleChoice", tmp_path)
    this = case("ForMultipleChoice")
    inputs = this.inputs | {"position_ids": torch.arange(3, 3 + this.real.shape[2]).unsqueeze(0)}
    torch.testing.assert_close(ours(**inputs).logits, stock(**inputs).logits, atol=1e-5, rtol=1e-5)


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


@pytest.mark.parametrize("given", [{"encoder_hidden_states": torch.ones(1, 2, 36)}, {"encoder_attention_mask": 1}])
def test_the_inputs_of_a_decoder_are_refused(given, tmp_path):
    _, ours = pair("ForMaskedLM", tmp_path)
    ours(**batch(), use_cache=True, encoder_hidden_states=None)  # of which an encoder takes no notice
    with pytest.raises(
        ValueError, match=f"{next(iter(given))}: ZooBert has no cache .*Use transformers.BertLMHeadModel"
    ):
        ours(**batch(), **given)
