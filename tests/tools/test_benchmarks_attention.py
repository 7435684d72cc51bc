"""The rows of the benchmarks that compare plain products of attention with sdpa."""

import pytest
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import attention
from benchmarks.__main__ import main
from benchmarks.measure import CPU, DifferentResults


pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("_little_work")]


@pytest.mark.parametrize("row", attention.ROWS)
@pytest.mark.parametrize("setting", ["fp32", "bf16"])
def test_a_row_stops_when_only_a_gradient_differs(row, setting, monkeypatch):
    plain = attention.plain
    monkeypatch.setattr(attention, "plain", lambda query, key, value: plain(query, key.detach() + 0 * key, value))
    with pytest.raises(DifferentResults, match="Nothing was timed"):
        main([row, "--size", "tiny", "--settings", setting])


@pytest.mark.parametrize("row", attention.ROWS)
def test_what_a_row_needs_is_what_torch_counts(row):
    _, build = attention.ROWS[row]
    contest = build("portable", "portable", True, CPU)
    with FlopCounterMode(display=False) as counter:
        contest.side.run(0)
    assert contest.need.amount(0) == counter.get_total_flops()


@pytest.mark.parametrize("row", ["gpu-attention-sst2", "gpu-attention-squad"])
@pytest.mark.parametrize("setting", ["fp32", "bf16"])
def test_a_packed_row_stops_when_only_a_gradient_differs(row, setting, monkeypatch):
    attend_to = attention.attend_to

    def changed(function, layer, query, key, *rest, **options):
        return attend_to(function, layer, query, key.detach() + 0 * key, *rest, **options)

    monkeypatch.setattr(attention, "attend_to", changed)
    with pytest.raises(DifferentResults, match="Nothing was timed"):
        main([row, "--size", "tiny", "--settings", setting])
