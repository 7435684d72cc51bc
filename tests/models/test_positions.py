"""Positions are positions, as in transformers: what separates the sequences of a row is said in other words."""

import pytest
import torch

from tests.support import bert_cases, gpt_cases
from tests.support.families import EACH_FAMILY


UNPAD = pytest.mark.parametrize("unpad", [True, False], ids=["packed", "padded"])
COLUMNS = 7
WITH_A_HOLE = torch.tensor([[1, 1, 0, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0, 0], [1, 0, 1, 1, 0, 1, 0]])
POSITIONS = {
    "shuffled": [3, 1, 0, 2, 5, 4, 6],
    "reversed": [6, 5, 4, 3, 2, 1, 0],
    "all zero": [0] * COLUMNS,
    "one behind": [1, 0, 1, 2, 3, 4, 5],
    "ends at zero": [1, 2, 3, 4, 5, 6, 0],
}
RESTARTING = {"at zero": [0, 1, 2, 3, 0, 1, 2], "at two": [2, 3, 4, 5, 2, 3, 4], "tokens alone": [0, 0, 1, 2, 0, 0, 1]}


def assert_same_states(ours, stock, inputs: dict[str, torch.Tensor], **options) -> None:
    """The states of real tokens are those of the stock model."""
    real = inputs.get("attention_mask", torch.ones_like(inputs["input_ids"])).bool()
    with torch.no_grad():
        states, expected = ours(**inputs, **options)[0], stock(**inputs)[0]
    torch.testing.assert_close(states[real], expected[real], atol=1e-5, rtol=1e-5)


def assert_parts_are_as_alone(states, stock, ids: torch.Tensor, parts: list[tuple], first: int = 0) -> None:
    """The (row, start, stop) parts of (B, T, H) states are those of each part alone, with positions from `first`."""
    for row, start, stop in parts:
        positions = torch.arange(first, first + stop - start).unsqueeze(0)
        with torch.no_grad():
            expected = stock(ids[row : row + 1, start:stop], position_ids=positions)[0]
        torch.testing.assert_close(states[row : row + 1, start:stop], expected, atol=1e-5, rtol=1e-5)


@EACH_FAMILY
@UNPAD
def test_any_positions_are_read_as_by_the_stock_model(cases, unpad, tmp_path):
    stock, ours = cases.pair("Model", tmp_path)
    for rows, kinds in ((1, POSITIONS), (3, POSITIONS | RESTARTING)):
        ids = torch.randint(1, 90, (rows, COLUMNS))
        for positions in kinds.values():
            for position_ids in (torch.tensor(positions).expand(rows, -1), torch.tensor(positions)):
                if position_ids.dim() == 2 or cases is gpt_cases:  # the stock BERT takes no other without segments
                    assert_same_states(ours, stock, {"input_ids": ids, "position_ids": position_ids}, unpad=unpad)


@EACH_FAMILY
@pytest.mark.parametrize("head", ["Model", "LMHeadModel", "ForMaskedLM", "ForSequenceClassification"])
def test_inputs_without_names_are_in_the_order_of_the_stock_model(cases, head, tmp_path):
    if head == {bert_cases: "LMHeadModel", gpt_cases: "ForMaskedLM"}[cases]:
        pytest.skip("not a head of this model")
    stock, ours = cases.pair(head, tmp_path)
    inputs = (torch.ones(2, COLUMNS), torch.randint(0, 2, (2, COLUMNS)), torch.tensor([POSITIONS["shuffled"]]))
    embeddings = torch.randn(2, COLUMNS, 36)
    with torch.no_grad():
        states, expected = (model(None, *inputs, embeddings)[0] for model in (ours, stock))
    torch.testing.assert_close(states, expected, atol=1e-5, rtol=1e-5)


@EACH_FAMILY
@UNPAD
def test_positions_beside_padding_are_read_as_by_the_stock_model(cases, unpad, tmp_path):
    stock, ours = cases.pair("Model", tmp_path)
    roberta = WITH_A_HOLE.cumsum(1) * WITH_A_HOLE + 1  # padding has the position 1
    for mask, position_ids in (
        (WITH_A_HOLE, roberta),
        (WITH_A_HOLE, (roberta - 2).clamp(min=0)),
        (WITH_A_HOLE[:1], roberta[:1]),
        (WITH_A_HOLE[:1], torch.tensor([RESTARTING["at zero"]])),
        (WITH_A_HOLE[1:2], torch.tensor([[0, 1, 2, 3, 0, 0, 0]])),
    ):
        ids = torch.randint(1, 90, mask.shape)
        inputs = {"input_ids": ids, "attention_mask": mask, "position_ids": position_ids}
        assert_same_states(ours, stock, inputs, unpad=unpad)


@EACH_FAMILY
@UNPAD
@pytest.mark.parametrize("kind", RESTARTING)
def test_positions_that_restart_divide_a_batch_of_one_row(cases, unpad, kind, tmp_path):
    stock, ours = cases.pair("Model", tmp_path)
    positions = RESTARTING[kind]
    ids = torch.randint(1, 90, (1, COLUMNS))
    for mask in (None, torch.ones_like(ids)):
        with torch.no_grad():
            states = ours(ids, attention_mask=mask, position_ids=torch.tensor([positions]), unpad=unpad)[0]
        starts = [column for column, position in enumerate(positions) if position == positions[0]] + [COLUMNS]
        parts = [(0, start, stop) for start, stop in zip(starts, starts[1:], strict=False)]
        assert_parts_are_as_alone(states, stock, ids, parts, first=positions[0])


@EACH_FAMILY
@UNPAD
def test_numbers_of_sequences_divide_the_rows_of_any_batch(cases, unpad, tmp_path):
    stock, ours = cases.pair("Model", tmp_path)
    ids = torch.randint(1, 90, (2, COLUMNS))
    numbers = torch.tensor([[0, 0, 0, 1, 1, 2, 2], [4, 4, 0, 0, 0, 0, 0]], dtype=torch.int32)
    parts = [(0, 0, 3), (0, 3, 5), (0, 5, 7), (1, 0, 2), (1, 2, 6)]
    mask = torch.ones_like(ids)
    mask[1, 6] = 0
    for given in ({}, {"position_ids": torch.tensor([[0, 1, 2, 0, 1, 0, 1], [0, 1, 0, 1, 2, 3, 4]])}):
        with torch.no_grad():
            states = ours(ids, attention_mask=mask, seq_idx=numbers, unpad=unpad, **given)[0]
        assert_parts_are_as_alone(states, stock, ids, parts)


@EACH_FAMILY
@UNPAD
def test_boundaries_divide_a_batch_of_one_row(cases, unpad, tmp_path):
    stock, ours = cases.pair("Model", tmp_path)
    ids = torch.randint(1, 90, (1, COLUMNS))
    boundaries = torch.tensor([0, 3, 3, 7], dtype=torch.int32)  # with an empty sequence
    lengths = {"max_length_q": 4, "max_length_k": 4}
    for given in ({}, {"position_ids": torch.tensor([[0, 1, 2, 0, 1, 2, 3]])}):
        with torch.no_grad():
            states = ours(ids, cu_seq_lens_q=boundaries, cu_seq_lens_k=boundaries, unpad=unpad, **lengths, **given)[0]
        assert_parts_are_as_alone(states, stock, ids, [(0, 0, 3), (0, 3, 7)])


@EACH_FAMILY
@pytest.mark.parametrize(
    ("rows", "given", "message"),
    [
        (2, {"cu_seq_lens_q": [0, 7]}, "cu_seq_lens_q divides a batch of one row, but this one has 2: give seq_idx"),
        (1, {"cu_seq_lens_q": [0, 6]}, r"must be the same rising numbers from 0 to 7, the tokens of the row"),
        (1, {"cu_seq_lens_q": [0, 5, 3, 7]}, "rising numbers from 0 to 7"),
        (1, {"cu_seq_lens_q": [0, 7], "cu_seq_lens_k": [0, 3, 7]}, "must be the same rising numbers"),
        (1, {"cu_seq_lens_k": [0, 7]}, "cu_seq_lens_q is None"),
        (2, {"seq_idx": [[0, 0, 0, 0, 1, 1, 1]]}, r"seq_idx is \(1, 7\), but must be \(2, 7\)"),
    ],
)
def test_boundaries_that_do_not_fit_are_refused(cases, rows, given, message, tmp_path):
    _, ours = cases.pair("Model", tmp_path)
    given = {name: torch.tensor(numbers) for name, numbers in given.items()}
    with pytest.raises(ValueError, match=message):
        ours(torch.randint(1, 90, (rows, COLUMNS)), **given)


def test_a_cache_that_holds_tokens_is_not_given_beside_boundaries():
    ours, ids = gpt_cases.zoo("Model"), torch.randint(1, 90, (1, COLUMNS))
    cache = ours(ids, use_cache=True).past_key_values
    for given in ({"seq_idx": torch.zeros_like(ids)}, {"cu_seq_lens_q": torch.tensor([0, COLUMNS])}):
        with pytest.raises(ValueError, match="A cache that holds tokens holds one sequence a row: leave out"):
            ours(ids, past_key_values=cache, **given)


@EACH_FAMILY
def test_a_mask_over_pairs_is_not_given_beside_boundaries(cases, tmp_path):
    _, ours = cases.pair("Model", tmp_path)
    ids = torch.randint(1, 90, (2, COLUMNS))
    mask = torch.ones(2, 1, COLUMNS, COLUMNS, dtype=torch.bool)
    with pytest.raises(ValueError, match="says which pairs of tokens see each other: leave out"):
        ours(ids, attention_mask=mask, seq_idx=torch.zeros_like(ids))
