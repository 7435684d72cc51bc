"""BERT from left to right: transformers' BertLMHeadModel, packed rows, and what its classifiers read."""

import pytest
import torch
import transformers

import modeling
from tests.support.bert_cases import LABELS, SIZES, batch, case, pair
from tests.support.model_cases import assert_same_gradients, assert_same_outputs, on_the_left


UNPAD = pytest.mark.parametrize("unpad", [True, False], ids=["packed", "padded"])
ATTENTION = pytest.mark.parametrize("attention", ["eager", "sdpa"])


def decoders(head: str, folder, attention: str = "sdpa"):
    """transformers' model, and ours loaded from what it saves."""
    return pair(head, folder, attention, is_decoder=True)


@UNPAD
@ATTENTION
@pytest.mark.parametrize("holes", [False, True], ids=["lengths", "holes"])
def test_logits_losses_and_gradients_are_those_of_the_stock_decoder(attention, holes, unpad, tmp_path):
    stock, ours = decoders("LMHeadModel", tmp_path, attention)
    this = case("ForMaskedLM", holes)
    losses = []
    for model, inputs in ((stock, this.inputs), (ours, this.inputs | {"unpad": unpad})):
        losses.append(model.train()(**inputs, **this.labels).loss)
        losses[-1].backward()
    torch.testing.assert_close(*losses, atol=1e-5, rtol=1e-5)
    assert_same_gradients(ours, stock)
    recorded = {"output_hidden_states": True, "output_attentions": attention == "eager"}
    for options in ({}, recorded):
        expected = stock.eval()(**this.inputs, use_cache=False, **options)
        assert_same_outputs(ours.eval()(**this.inputs, unpad=unpad, **options), expected, this.real)


@pytest.mark.parametrize("head", ["ForMaskedLM", "ForTokenClassification", "ForQuestionAnswering"])
def test_heads_that_read_every_token_are_the_stock_ones(head, tmp_path):
    stock, ours = decoders(head, tmp_path)
    this = case(head)
    expected, output = (model(**this.inputs, **this.labels) for model in (stock, ours))
    torch.testing.assert_close(output.loss, expected.loss, atol=1e-5, rtol=1e-5)
    if head == "ForMaskedLM":
        assert_same_outputs(ours(**this.inputs), stock(**this.inputs), this.real)


@pytest.mark.parametrize("labels", ["labels", "shift_labels"])
def test_labels_on_padding_and_shifted_ones_count_as_in_the_stock_decoder(labels, tmp_path):
    stock, ours = decoders("LMHeadModel", tmp_path)
    inputs = batch()
    ids = inputs["input_ids"]
    inputs |= {"labels": ids, labels: ids if labels == "labels" else ids.roll(-1, 1)}
    torch.testing.assert_close(ours(**inputs).loss, stock(**inputs).loss, atol=1e-5, rtol=1e-5)


@UNPAD
@ATTENTION
@pytest.mark.parametrize("length", [11, 18])  # the row of one document is padded, or not
def test_documents_of_a_packed_row_are_computed_as_if_alone(attention, unpad, length, tmp_path):
    _, ours = decoders("LMHeadModel", tmp_path, attention)
    rows = [[5, 9, 4], [length]]
    ids = torch.randint(1, SIZES["vocab_size"], (2, 18))
    numbers = torch.full_like(ids, -1)
    documents = []
    for row, lengths in enumerate(rows):
        start = 0
        for size in lengths:
            numbers[row, start : start + size] = len(documents)
            documents.append((row, start, size))
            start += size
    logits = ours(ids, seq_idx=numbers, unpad=unpad).logits
    for row, start, size in documents:
        alone = ours(ids[row : row + 1, start : start + size]).logits[0]
        torch.testing.assert_close(logits[row, start : start + size], alone, atol=1e-5, rtol=1e-5)


# Classifiers read the last token


HEADS = {"ForSequenceClassification": "classifier", "ForNextSentencePrediction": "cls.seq_relationship"}


@UNPAD
@pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
@pytest.mark.parametrize("head", HEADS)
def test_a_classifier_reads_the_last_token_wherever_padding_is(head, left, unpad, tmp_path):
    _, ours = decoders(head, tmp_path)
    rows = batch()
    inputs = on_the_left(rows) if left else rows
    expected = []
    for ids, mask, types in zip(*(rows[name] for name in rows), strict=True):
        size = int(mask.sum())
        offset = len(mask) - size if left else 0  # the model counts positions from a row's first column
        states = ours.bert(
            ids[None, :size], token_type_ids=types[None, :size], position_ids=torch.arange(size)[None] + offset
        ).last_hidden_state
        pooled = ours.bert.pooler.dense(states[:, -1]).tanh()
        expected.append(ours.get_submodule(HEADS[head])(pooled)[0])
    torch.testing.assert_close(ours(**inputs, unpad=unpad).logits, torch.stack(expected), atol=1e-5, rtol=1e-5)
    recorded = ours(**inputs, unpad=unpad, output_hidden_states=True)
    torch.testing.assert_close(recorded.logits, torch.stack(expected), atol=1e-5, rtol=1e-5)


def test_a_choice_is_read_at_its_last_token_and_the_pooled_state_is_that_one(tmp_path):
    _, ours = decoders("ForMultipleChoice", tmp_path)
    this = case("ForMultipleChoice")
    this.inputs["input_ids"] *= this.inputs["attention_mask"]
    flat = {name: tensor.flatten(0, 1) for name, tensor in this.inputs.items()}
    model = ours.bert(**flat)
    last = flat["attention_mask"].sum(1) - 1
    pooled = ours.bert.pooler.dense(model.last_hidden_state[torch.arange(len(last)), last]).tanh()
    torch.testing.assert_close(model.pooler_output, pooled, atol=1e-5, rtol=1e-5)
    scores = ours.classifier(pooled).view(this.real.shape[:2])
    torch.testing.assert_close(ours(**this.inputs).logits, scores, atol=1e-5, rtol=1e-5)


def test_a_decoder_that_was_pre_trained_becomes_a_classifier_from_left_to_right(tmp_path):
    _, ours = decoders("LMHeadModel", tmp_path)
    ours.save_pretrained(tmp_path / "saved")
    classifier = modeling.ZooBertForSequenceClassification.from_pretrained(tmp_path / "saved", num_labels=LABELS)
    assert classifier.config.is_decoder
    assert torch.equal(classifier.bert.embeddings.word_embeddings.weight, ours.bert.embeddings.word_embeddings.weight)


# Files, and what is left out


def test_what_we_save_is_the_stock_decoders_and_the_other_way_round(tmp_path):
    stock, ours = decoders("LMHeadModel", tmp_path / "stock")
    assert ours.state_dict().keys() == stock.state_dict().keys()
    ours.save_pretrained(tmp_path / "ours")
    back = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours")
    assert type(back) is transformers.BertLMHeadModel and back.config.architectures == ["BertLMHeadModel"]
    for name, parameter in stock.state_dict().items():
        assert torch.equal(back.state_dict()[name], parameter), name
    modeling.register()
    try:
        again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours")
    finally:
        modeling.unregister()
    assert type(again) is modeling.ZooBertLMHeadModel


def test_generation_and_an_encoder_that_is_to_predict_are_one_clear_error(tmp_path):
    _, ours = decoders("LMHeadModel", tmp_path)
    with pytest.raises(ValueError, match="^generate: ZooBert has no cache .*Use transformers.BertLMHeadModel"):
        ours.generate(torch.tensor([[1, 2]]), max_new_tokens=2)
    with pytest.raises(ValueError, match="^use_cache: ZooBert has no cache"):
        ours(torch.tensor([[1, 2]]), use_cache=True)
    with pytest.raises(ValueError, match="^is_decoder=False: .* every token sees the one that the head predicts"):
        modeling.ZooBertLMHeadModel(modeling.ZooBertConfig(**SIZES))


@UNPAD
@ATTENTION
@pytest.mark.parametrize("is_decoder", [True, False])
def test_a_direction_that_is_changed_later_holds_for_every_batch_as_in_the_stock_model(
    is_decoder, attention, unpad, tmp_path
):
    stock, ours = pair("Model", tmp_path, attention, is_decoder=not is_decoder)
    this = case("Model")
    for model in (stock, ours):
        model.config.is_decoder = is_decoder
    expected = stock(**this.inputs, use_cache=False).last_hidden_state
    found = ours(**this.inputs, unpad=unpad).last_hidden_state
    torch.testing.assert_close(found[this.real], expected[this.real], atol=1e-5, rtol=0)


def test_an_encoder_that_is_asked_to_read_left_to_right_says_what_to_set(tmp_path):
    _, ours = pair("Model", tmp_path)
    with pytest.raises(ValueError, match="is_causal=True, but this is an encoder: set config.is_decoder=True"):
        ours(**case("Model").inputs, is_causal=True)
