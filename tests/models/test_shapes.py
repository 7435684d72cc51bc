"""Masks, segments, positions and labels must have a number for each token: other shapes are refused, never guessed."""

import random

import pytest
import torch
from transformers import DynamicCache, PreTrainedModel

from tests.models import test_elmo_ecosystem
from tests.support import bert_cases, gpt_cases


HEADS = [(bert_cases, head) for head in ("Model", "ForMaskedLM", "ForTokenClassification")]
HEADS += [(gpt_cases, head) for head in ("Model", "LMHeadModel")]
RANGES = {"attention_mask": (0, 2), "token_type_ids": (0, 2), "position_ids": (1, 9), "labels": (0, 2)}


def fits(name: str, shape: tuple, tokens: tuple) -> bool:
    """A mask and labels have the tokens' shape; segments and positions may be the same for all rows."""
    if name in ("attention_mask", "labels"):
        return shape == tokens
    try:
        return shape != () and torch.broadcast_shapes(shape, tokens) == tokens
    except RuntimeError:
        return False


def draw(rng: random.Random, head: str) -> dict[str, torch.Tensor]:
    """Token ids, and one or two other arguments that may have any shape near theirs."""
    tokens = rows, columns = rng.choice([(3, 5), (1, 5), (3, 1)])
    near = [tokens, tokens, (rows, columns + 1), (rows, columns - 1), (1, columns), (columns,), (rows + 1, columns)]
    near += [
        (rows - 1, columns),
        (rows, 1),
        (1, 1),
        (rows * columns,),
        (columns, rows),
        (rows, columns, 1),
        (),
        (rows,),
    ]
    inputs = {"input_ids": torch.randint(1, 90, tokens)}
    for name in rng.sample([name for name in RANGES if name != "labels" or head != "Model"], rng.choice([1, 2])):
        inputs[name] = torch.randint(*RANGES[name], rng.choice(near))
        if name == "attention_mask" and inputs[name].dim() > 1:
            inputs[name][..., :1] = 1  # no row of nothing but padding
    return inputs


def outcome(model: PreTrainedModel, inputs: dict) -> torch.Tensor | Exception:
    try:
        output = model(**inputs)
        return output["loss" if "labels" in inputs else 0]
    except Exception as error:  # noqa: BLE001 (whatever the stock model raises)
        return error


@pytest.mark.parametrize("cases, head", HEADS)
@torch.no_grad()
def test_what_does_not_fit_is_refused_by_name_and_what_does_is_read_as_by_the_stock_model(cases, head, tmp_path):
    stock, ours = cases.pair(head, tmp_path)
    rng, refused, read = random.Random(0), 0, 0
    for _ in range(120):
        inputs = draw(rng, head)
        tokens = tuple(inputs["input_ids"].shape)
        wrong = {name: each for name, each in inputs.items() if not fits(name, tuple(each.shape), tokens)}
        expected, found = outcome(stock, inputs), outcome(ours, inputs)
        if wrong:
            refused += isinstance(expected, Exception)
            assert isinstance(found, ValueError), f"{ {name: each.shape for name, each in inputs.items()} }: {found}"
            named = [name for name in wrong if str(found).startswith(f"{name} is {tuple(wrong[name].shape)}, ")]
            assert named and str(tokens) in str(found), found
        elif isinstance(expected, Exception):  # its BERT takes positions of one dimension only beside segments
            assert inputs["position_ids"].dim() == 1 and cases is bert_cases, expected
        else:
            read += 1
            assert torch.is_tensor(found), f"{ {name: each.shape for name, each in inputs.items()} }: {found}"
            real = torch.ones(tokens, dtype=torch.bool)
            if expected.dim() > 1 and "attention_mask" in inputs:
                real = inputs["attention_mask"].bool()
            pair = (found, expected) if expected.dim() < 2 else (found[real], expected[real])
            torch.testing.assert_close(*pair, atol=1e-5, rtol=1e-5, equal_nan=True)
    assert refused > 30 and read > 15


@torch.no_grad()
def test_beside_a_cache_the_mask_covers_what_it_holds(tmp_path):
    model = gpt_cases.zoo("LMHeadModel")
    ids = torch.randint(1, 90, (3, 7))
    mask = torch.ones_like(ids)
    mask[1, :2] = 0
    expected = model(ids, attention_mask=mask, use_cache=False).logits[:, 5:]
    cache = model(ids[:, :5], attention_mask=mask[:, :5], use_cache=True).past_key_values
    positions = torch.arange(5, 7)
    with pytest.raises(ValueError, match=r"attention_mask is \(3, 2\), but must be \(3, 7\): .* after 5 in the cache"):
        model(ids[:, 5:], attention_mask=mask[:, 5:], past_key_values=cache, position_ids=positions)
    found = model(ids[:, 5:], attention_mask=mask, past_key_values=cache, position_ids=positions).logits
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    assert isinstance(cache, DynamicCache)


@pytest.mark.parametrize("cases, head", [(bert_cases, "ForMultipleChoice"), (gpt_cases, "ForMultipleChoice")])
@pytest.mark.parametrize("name", ["attention_mask", "token_type_ids", "position_ids"])
def test_choices_are_not_taken_for_rows(cases, head, name, tmp_path):
    model = cases.pair(head, tmp_path)[1] if cases is bert_cases else cases.zoo(head)
    ids = torch.randint(1, 90, (2, 3, 5))
    with pytest.raises(ValueError, match=rf"{name} is \(3, 2, 5\), but must be \(2, 3, 5\)"):
        model(ids, **{name: torch.ones(3, 2, 5, dtype=torch.long)})
    flat = model(ids, **{name: torch.ones(6, 5, dtype=torch.long)}).logits
    torch.testing.assert_close(model(ids, **{name: torch.ones(2, 3, 5, dtype=torch.long)}).logits, flat)


@pytest.mark.parametrize("head", ["ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering"])
def test_gpts_heads_look_at_the_mask_before_they_read_it(head):
    model, ids = gpt_cases.zoo(head, lm_loss_weight=0.5), torch.randint(1, 90, (3, 5))
    for shape in [(3, 4), (3, 6), (2, 5), (5,), (3, 0)]:
        mask = torch.ones(shape, dtype=torch.long)
        with pytest.raises(ValueError, match=r"attention_mask is .*, but must be \(3, 5\)"):
            model(ids, attention_mask=mask)


@pytest.mark.parametrize("cases", [bert_cases, gpt_cases])
@pytest.mark.parametrize("problem, labels", [(None, 3), ("regression", 3), ("multi_label_classification", 5)])
def test_a_label_for_each_row(cases, problem, labels, tmp_path):
    _, model = cases.pair("ForSequenceClassification", tmp_path, problem_type=problem)
    ids = torch.randint(1, 90, (2, 5))
    given = torch.ones(labels, dtype=torch.long if problem is None else torch.float)
    with pytest.raises(ValueError, match=rf"labels are \({labels},\), .* the scores are \(2, 5\)"):
        model(ids, labels=given)


@pytest.mark.parametrize("head", test_elmo_ecosystem.HEADS)
@pytest.mark.parametrize("name", ["attention_mask", "token_type_ids"])
def test_elmo_takes_a_number_for_each_word(head, name):
    model, inputs = test_elmo_ecosystem.build(head), test_elmo_ecosystem.batch(head)
    shape = inputs["input_ids"].shape[:-1]
    for wrong in [(*shape[:-1], shape[-1] + 1), (*shape[:-1], shape[-1] - 1), shape[:-1], (shape[0] + 1, *shape[1:])]:
        with pytest.raises(ValueError, match=name):
            model(**inputs | {name: torch.ones(wrong, dtype=torch.long)})


@pytest.mark.parametrize("head", test_elmo_ecosystem.TASKS)
@pytest.mark.parametrize("name", ["attention_mask", "token_type_ids", "input_ids"])
def test_the_baselines_too(head, name):
    model, inputs = test_elmo_ecosystem.build(head, use_elmo=False), test_elmo_ecosystem.batch(head)
    with pytest.raises(ValueError, match=name):
        model(**inputs | {name: torch.cat([inputs[name]] * 2, dim=inputs["attention_mask"].dim() - 1)})
