"""GPT's heads: the token they read, both orders of a pair, the language modeling loss beside theirs, choices, tags."""

import math
import re

import pytest
import torch
from torch.nn.functional import cross_entropy, mse_loss

from modeling.gpt import modeling_gpt_tasks
from tests.support.gpt_cases import (
    DELIMITER,
    EXTRACT,
    OWN_HEADS,
    batch,
    case,
    padded,
    pair,
    pairs_of_sentences,
    zoo,
)
from tests.support.model_cases import LABELS, ROWS, on_the_left


LENGTHS = [(3, 5), (1, 1), (6, 2), (4, 4), (2, 7), (1, 9)]
SIDE = pytest.mark.parametrize("side", ["right", "left"])


def placed(inputs, side):
    return on_the_left(inputs) if side == "left" else inputs


def rows_of(inputs):
    """The real tokens of each row, as a list of lists."""
    return [row[kept.bool()].tolist() for row, kept in zip(inputs["input_ids"], inputs["attention_mask"], strict=True)]


def turned(row):
    """start, A, delimiter, B, extract -> start, B, delimiter, A, extract."""
    middle = row.index(DELIMITER)
    return [row[0], *row[middle + 1 : -1], DELIMITER, *row[1:middle], row[-1]]


@pytest.mark.parametrize("head", ["ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering"])
def test_it_makes_no_difference_where_the_padding_is(head):
    ours = zoo(head)
    inputs = batch([4, 1, 9, 9, 2])
    left = on_the_left(inputs)
    right_, left_ = (ours(**given)[0] for given in (inputs, left))
    if head != "ForSequenceClassification":
        real, real_left = (given["attention_mask"].bool() for given in (inputs, left))
        right_, left_ = right_[real], left_[real_left]
    torch.testing.assert_close(left_, right_, atol=1e-5, rtol=1e-5)
    alone = [ours(input_ids=torch.tensor([row]))[0][0] for row in rows_of(inputs)]
    alone = torch.stack(alone) if head == "ForSequenceClassification" else torch.cat(alone)
    torch.testing.assert_close(right_, alone, atol=1e-5, rtol=1e-5)


@SIDE
def test_a_choice_is_read_at_its_last_token_wherever_its_padding_is(side):
    ours = zoo("ForMultipleChoice")
    rows = batch([3, 7, 2, 5, 6, 1])
    inputs = {name: tensor.unflatten(0, (2, 3)) for name, tensor in placed(rows, side).items()}
    logits = ours(**inputs).logits
    alone = torch.stack([ours(input_ids=torch.tensor([[row]])).logits[0, 0] for row in rows_of(rows)])
    torch.testing.assert_close(logits, alone.view(2, 3), atol=1e-5, rtol=1e-5)


def test_without_a_mask_the_padding_token_tells_the_last_one_as_in_the_stock_model(tmp_path):
    stock, ours = pair("ForSequenceClassification", tmp_path)
    inputs = batch()
    inputs["input_ids"][0, 0] = 0  # the padding token inside a row is no padding
    for ids in (inputs["input_ids"], on_the_left(inputs)["input_ids"]):
        torch.testing.assert_close(ours(input_ids=ids).logits, stock(input_ids=ids).logits, atol=1e-5, rtol=1e-5)
    ours.config.pad_token_id = None  # then the last column is the last token
    full = inputs["input_ids"][inputs["attention_mask"].bool().all(1)]
    torch.testing.assert_close(ours(input_ids=full).logits, stock(input_ids=full).logits, atol=1e-5, rtol=1e-5)


@SIDE
def test_similarity_is_the_sum_of_both_orders(side):
    ours = zoo("ForSequenceClassification", both_orders=True)
    inputs = pairs_of_sentences(LENGTHS)
    logits = ours(**placed(inputs, side)).logits
    swapped = padded([turned(row) for row in rows_of(inputs)])
    torch.testing.assert_close(ours(**placed(swapped, side)).logits, logits, atol=1e-6, rtol=1e-6)
    ours.config.both_orders = False
    expected = ours(**inputs).logits + ours(**swapped).logits  # linear, without bias: score(h + g)
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)
    assert (ours(**inputs).logits - ours(**swapped).logits).abs().max() > 0.1  # or the test could not fail


def test_the_first_delimiter_counts_and_token_types_move_with_their_tokens():
    ours = zoo("ForSequenceClassification", both_orders=True)
    row = [94, 7, 8, DELIMITER, 9, DELIMITER, 10, 11, EXTRACT, 0]
    second = [94, 9, DELIMITER, 10, 11, DELIMITER, 7, 8, EXTRACT, 0]
    types, their_second = torch.arange(10), torch.tensor([0, 4, 5, 6, 7, 3, 1, 2, 8, 9])
    mask = torch.tensor([[1] * 9 + [0]])
    both = ours(input_ids=torch.tensor([row]), attention_mask=mask, token_type_ids=types.unsqueeze(0)).logits
    ours.config.both_orders = False
    expected = sum(
        ours(input_ids=torch.tensor([ids]), attention_mask=mask, token_type_ids=of.unsqueeze(0)).logits
        for ids, of in ((row, types), (second, their_second))
    )
    torch.testing.assert_close(both, expected, atol=1e-5, rtol=1e-5)


@SIDE
def test_padding_delimits_nothing_also_where_its_token_is_the_delimiter(side):
    ours = zoo("ForSequenceClassification", both_orders=True)
    inputs = placed(pairs_of_sentences(LENGTHS), side)
    logits = ours(**inputs).logits
    inputs["input_ids"][inputs["attention_mask"] == 0] = DELIMITER
    torch.testing.assert_close(ours(**inputs).logits, logits)


def test_both_orders_need_a_delimiter_in_every_row_and_words():
    ours = zoo("ForSequenceClassification", both_orders=True)
    inputs = pairs_of_sentences(LENGTHS)
    with pytest.raises(ValueError, match="both_orders finds the two sentences by their tokens: give input_ids"):
        ours(inputs_embeds=torch.randn(2, 5, 36))
    inputs["input_ids"][2, 7] = 5
    with pytest.raises(ValueError, match=r"row 2 has no delimiter \(sep_token_id=95\).*task_inputs=True"):
        ours(**inputs)
    ours.config.sep_token_id = None
    with pytest.raises(ValueError, match=r"row 0 has no delimiter \(sep_token_id=None\)"):
        ours(**inputs)


def lm_loss_by_loops(model, row):
    """The mean of -log P(token | tokens before) over a row's tokens after its first, one forward pass a token."""
    words = model.transformer.tokens_embed.weight
    losses = []
    for end in range(1, len(row)):
        state = model.transformer(torch.tensor([row[:end]]), use_cache=False).last_hidden_state[0, -1]
        scores = [float(state @ word) for word in words]
        highest = max(scores)
        total = math.fsum(math.exp(score - highest) for score in scores)
        losses.append(math.log(total) + highest - scores[row[end]])
    return math.fsum(losses) / max(len(losses), 1)


@SIDE
@pytest.mark.parametrize("both_orders", [False, True])
def test_the_language_modeling_loss_of_a_classifier_is_its_formula(both_orders, side):
    ours = zoo("ForSequenceClassification", lm_loss_weight=0.3, both_orders=both_orders).double()
    inputs, labels = pairs_of_sentences(LENGTHS), torch.randint(0, LABELS, (len(LENGTHS),))
    output = ours(**placed(inputs, side), labels=labels)
    with torch.no_grad():
        rows = rows_of(inputs)
        losses = [lm_loss_by_loops(ours, row) for row in rows + ([turned(row) for row in rows] if both_orders else [])]
    expected = cross_entropy(output.logits, labels).item() + 0.3 * math.fsum(losses) / len(losses)
    assert output.loss.item() == pytest.approx(expected, abs=1e-6)  # cross-entropies are single precision


@pytest.mark.parametrize("both_orders", [False, True])
def test_without_a_mask_or_a_padding_token_every_token_counts(both_orders):
    ours = zoo("ForSequenceClassification", lm_loss_weight=0.3, both_orders=both_orders, pad_token_id=None)
    inputs = pairs_of_sentences([(3, 5), (4, 4), (1, 7)])
    assert inputs["attention_mask"].all()
    output = ours(inputs["input_ids"], labels=torch.tensor([0, 1, 1]))
    torch.testing.assert_close(output.loss, ours(**inputs, labels=torch.tensor([0, 1, 1])).loss)


@SIDE
@pytest.mark.parametrize("choices", [2, 4, 5])
def test_the_language_modeling_loss_of_choices_is_its_formula(choices, side):
    ours = zoo("ForMultipleChoice", lm_loss_weight=0.5).double()
    rows = batch(torch.randint(1, 8, (3 * choices,)).tolist())
    inputs = {name: tensor.unflatten(0, (3, choices)) for name, tensor in placed(rows, side).items()}
    labels = torch.randint(0, choices, (3,))
    output = ours(**inputs, labels=labels)
    assert output.logits.shape == (3, choices)
    with torch.no_grad():
        losses = [lm_loss_by_loops(ours, row) for row in rows_of(rows)]
    expected = cross_entropy(output.logits, labels).item() + 0.5 * math.fsum(losses) / len(losses)
    assert output.loss.item() == pytest.approx(expected, abs=1e-6)  # cross-entropies are single precision


def task(head, side="right", **changes):
    """A head with the language modeling loss, and six examples for it."""
    ours = zoo(head, lm_loss_weight=0.5, **changes)
    inputs = placed(pairs_of_sentences(LENGTHS), side)
    if head == "ForMultipleChoice":
        inputs = {name: torch.stack([tensor, tensor.roll(1, 0)], 1) for name, tensor in inputs.items()}
    return ours, inputs | {"labels": torch.randint(0, 2, (len(LENGTHS),))}


TASKS = pytest.mark.parametrize(
    ("head", "changes"),
    [
        ("ForSequenceClassification", {}),
        ("ForSequenceClassification", {"both_orders": True}),
        ("ForMultipleChoice", {}),
    ],
    ids=["classification", "similarity", "choice"],
)


@SIDE
@TASKS
def test_traced_programs_have_the_same_language_modeling_loss(head, changes, side, monkeypatch):
    ours, inputs = task(head, side, **changes)
    losses, gradients = [], []
    for traced in (False, True):
        if traced:  # as torch.compile, torch.export and TPUs see it
            monkeypatch.setattr(modeling_gpt_tasks, "is_opaque", lambda *given: True)
        ours.zero_grad()
        losses.append(ours(**inputs).loss)
        losses[-1].backward()
        gradients.append([parameter.grad for parameter in ours.parameters()])
    torch.testing.assert_close(*losses)
    torch.testing.assert_close(*gradients, atol=1e-5, rtol=1e-5)


@TASKS
def test_the_language_modeling_loss_reaches_the_words_it_predicts(head, changes):
    ours, inputs = task(head, **changes)
    inputs["input_ids"].clamp_(min=1)
    never_read = 93  # only as a rival of the words that are predicted
    inputs["input_ids"][inputs["input_ids"] == never_read] = 92
    gradients = []
    for weight in (0.0, 0.5):
        ours.config.lm_loss_weight = weight
        ours.zero_grad()
        ours(**inputs).loss.backward()
        gradients.append(ours.transformer.tokens_embed.weight.grad[never_read])
    assert not gradients[0].any() and gradients[1].all()


@pytest.mark.parametrize("labels", ["labels", None])
def test_a_weight_of_zero_or_no_labels_leave_the_head_as_it_is(labels, tmp_path):
    stock, ours = pair("ForSequenceClassification", tmp_path)
    this = case("ForSequenceClassification")
    ours.config.lm_loss_weight = 0.0 if labels else 0.5
    given = this.inputs | (this.labels if labels else {})
    mine, theirs = ours(**given), stock(**given)
    torch.testing.assert_close(mine.logits, theirs.logits, atol=1e-5, rtol=1e-5)
    assert (mine.loss is None) == (labels is None)
    if labels:
        torch.testing.assert_close(mine.loss, theirs.loss, atol=1e-5, rtol=1e-5)


def test_embeddings_are_no_words_to_predict():
    ours = zoo("ForSequenceClassification", lm_loss_weight=0.5)
    embeddings = torch.randn(2, 4, 36)
    with pytest.raises(ValueError, match="lm_loss_weight needs words to predict: give input_ids"):
        ours(inputs_embeds=embeddings, labels=torch.tensor([0, 1]))
    assert ours(inputs_embeds=embeddings).logits.shape == (2, LABELS)  # they may be classified


@pytest.mark.parametrize(
    ("head", "changes"),
    [
        ("ForSequenceClassification", {}),
        ("ForSequenceClassification", {"both_orders": True}),
        ("ForSequenceClassification", {"problem_type": "regression"}),
        ("ForSequenceClassification", {"problem_type": "multi_label_classification"}),
        ("ForMultipleChoice", {}),
    ],
)
def test_two_accumulated_batches_weigh_as_one(head, changes):
    ours, inputs = task(head, **changes)
    if "problem_type" in changes:
        inputs["labels"] = torch.rand(6, LABELS)
    count = inputs["labels"].numel() if "problem_type" in changes else 6
    whole = ours(**inputs, num_items_in_batch=count).loss
    parts = [{name: tensor[part] for name, tensor in inputs.items()} for part in (slice(0, 2), slice(2, 6))]
    torch.testing.assert_close(sum(ours(**part, num_items_in_batch=count).loss for part in parts), whole)
    torch.testing.assert_close(ours(**inputs).loss, whole)


@pytest.mark.parametrize("head", ["LMHeadModel", "ForTokenClassification"])
def test_two_accumulated_batches_of_tokens_weigh_as_one(head):
    ours, this = zoo(head), case(head)
    counted = this.labels["labels"][:, 1:] if head == "LMHeadModel" else this.labels["labels"]
    count = int((counted != -100).sum())
    given = this.inputs | this.labels
    parts = [{name: tensor[part] for name, tensor in given.items()} for part in (slice(0, 2), slice(2, ROWS))]
    summed = sum(ours(**part, num_items_in_batch=count).loss for part in parts)
    torch.testing.assert_close(summed, ours(**given).loss, atol=1e-5, rtol=1e-5)


def test_an_ignored_row_counts_in_no_class_loss():
    ours = zoo("ForSequenceClassification")
    inputs, labels = batch(), torch.randint(0, LABELS, (ROWS,))
    labels[2] = -100
    others = [row for row in range(ROWS) if row != 2]
    expected = ours(**{name: tensor[others] for name, tensor in inputs.items()}, labels=labels[others]).loss
    torch.testing.assert_close(ours(**inputs, labels=labels).loss, expected)


def test_a_score_is_squared_error_and_the_language_modeling_loss():
    ours = zoo("ForSequenceClassification", num_labels=1, both_orders=True, lm_loss_weight=0.5)
    inputs, labels = pairs_of_sentences(LENGTHS), torch.randn(len(LENGTHS)) * 5
    output = ours(**inputs, labels=labels)
    ours.config.both_orders = False
    rows = rows_of(inputs)
    with torch.no_grad():
        lm = [lm_loss_by_loops(ours, row) for row in rows + [turned(row) for row in rows]]
    expected = mse_loss(output.logits.squeeze(-1), labels) + 0.5 * sum(lm) / len(lm)
    torch.testing.assert_close(output.loss, expected, atol=1e-4, rtol=1e-5)


def test_inputs_without_choices_are_one_clear_error():
    ours = zoo("ForMultipleChoice")
    with pytest.raises(ValueError, match=re.escape("the inputs are (2, 5), but must be (rows, choices, tokens)")):
        ours(torch.ones(2, 5, dtype=torch.long))
    with pytest.raises(ValueError, match="exactly one of input_ids and inputs_embeds"):
        ours()


@SIDE
def test_tags_are_a_linear_layer_on_every_token(side):
    ours = zoo("ForTokenClassification")
    inputs = placed(batch(), side)
    real = inputs["attention_mask"].bool()
    labels = torch.where(real, torch.randint(0, LABELS, real.shape), -100)
    output = ours(**inputs, labels=labels)
    losses = []
    for row, kept in enumerate(real):
        states = ours.transformer(inputs["input_ids"][row][kept].unsqueeze(0)).last_hidden_state[0]
        scores = states @ ours.classifier.weight.T + ours.classifier.bias
        torch.testing.assert_close(output.logits[row][kept], scores, atol=1e-5, rtol=1e-5)
        losses += [-scores[at].log_softmax(0)[tag] for at, tag in enumerate(labels[row][kept])]
    torch.testing.assert_close(output.loss, torch.stack(losses).mean(), atol=1e-5, rtol=1e-5)


@SIDE
def test_answers_are_a_softmax_over_the_real_tokens(side):
    ours = zoo("ForQuestionAnswering")
    inputs = placed(batch([4, 9, 2, 6]), side)
    real = inputs["attention_mask"].bool()
    bounds = [(int(kept.int().argmax()), int((kept * torch.arange(9)).argmax())) for kept in real]
    starts, ends = torch.tensor(bounds).T
    output = ours(**inputs, start_positions=starts, end_positions=ends)
    losses = []
    for row, kept in enumerate(real):
        states = ours.transformer(inputs["input_ids"][row][kept].unsqueeze(0)).last_hidden_state[0]
        scores = (states @ ours.qa_outputs.weight.T + ours.qa_outputs.bias).log_softmax(0)
        losses += [-scores[0, 0], -scores[-1, 1]]
    torch.testing.assert_close(output.loss, torch.stack(losses).mean(), atol=1e-5, rtol=1e-5)
    for logits in (output.start_logits, output.end_logits):
        assert (logits[~real] == torch.finfo(logits.dtype).min).all() and (logits[real].abs() < 100).all()
    padding = 8 if side == "right" else 0  # in the third row
    changed = [part.index_fill(0, torch.tensor([2]), padding) for part in (starts, ends)]
    output = ours(**inputs, start_positions=changed[0], end_positions=changed[1])
    counted = torch.stack(losses[:4] + losses[6:]).mean()  # an answer on padding does not count
    torch.testing.assert_close(output.loss, counted, atol=1e-5, rtol=1e-5)


def test_answers_in_embeddings_are_those_in_their_words():
    ours = zoo("ForQuestionAnswering")
    ids, places = torch.randint(1, 90, (2, 7)), {"start_positions": torch.tensor([0, 3])}
    places["end_positions"] = torch.tensor([2, 6])
    output = ours(inputs_embeds=ours.get_input_embeddings()(ids), **places)
    torch.testing.assert_close(output.loss, ours(ids, attention_mask=torch.ones_like(ids), **places).loss)


@pytest.mark.parametrize("head", ["ForSequenceClassification", "ForMultipleChoice", "ForTokenClassification"])
def test_the_classifiers_dropout_is_used_in_training(head):
    ours = zoo(head, summary_first_dropout=0.5)
    this = case(head)
    kept = ours(**this.inputs).logits
    torch.testing.assert_close(ours(**this.inputs).logits, kept)
    dropped = [ours.train()(**this.inputs).logits for _ in range(2)]
    assert (dropped[0] - dropped[1]).abs().max() > 0.1 and (dropped[0] - kept).abs().max() > 0.1


@pytest.mark.parametrize("head", ["ForSequenceClassification", *OWN_HEADS])
def test_a_head_keeps_no_cache_whoever_asks(head):
    ours, this = zoo(head), case(head)
    for asked in ({}, {"use_cache": True}, {"use_cache": False}):
        assert "past_key_values" not in ours(**this.inputs, **asked)
