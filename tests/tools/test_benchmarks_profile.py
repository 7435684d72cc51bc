"""What a profile says takes the time of a step."""

import json

import pytest
import torch

from benchmarks import profile
from benchmarks.measure import Side


pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("_little_work")]


@pytest.mark.parametrize(
    ("kind", "work"),
    [
        ("products", lambda numbers: numbers @ numbers),
        ("copies", lambda numbers: numbers.T.contiguous()),
        ("zeros", lambda numbers: numbers.zero_()),
        ("random numbers", lambda numbers: numbers.bernoulli_(0.5)),
        ("random numbers", lambda numbers: numbers.uniform_()),
        ("other operations", lambda numbers: numbers.exp_()),
    ],
)
def test_a_profile_tells_what_takes_the_time(kind, work):
    numbers = torch.rand(1000, 1000)
    milliseconds, shares = profile.shares(Side("one", lambda index: work(numbers), dict), runs=3)
    assert milliseconds > 0 and sum(shares.values()) == pytest.approx(1)
    # Making a tensor for the result is another operation.
    assert {kind} <= {name for name, share in shares.items() if share > 0} <= {kind, "other operations", "calls"}


def test_a_profile_counts_both_passes_of_a_convolution_as_products():
    convolution, numbers = torch.nn.Conv1d(16, 256, 3), torch.rand(200, 16, 50)
    shares = profile.shares(Side("one", lambda index: convolution(numbers).sum().backward(), dict), runs=3)[1]
    assert shares["products"] > shares["other operations"]


def test_a_profile_has_a_line_for_each_side_and_setting(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(profile, "in_new_process", lambda work, *args: (work(*args), 1.0))  # not a new one, but here
    path = tmp_path / "shares.json"
    lines = profile.main(["masked-lm", "elmo-training", "--settings", "fp32", "--size", "tiny", "--json", str(path)])
    sides = [("masked-lm", "zoo"), ("masked-lm", "transformers"), ("elmo-training", "zoo"), ("elmo-training", "plain")]
    assert [(line["row"], line["side"]) for line in lines] == sides
    assert all(line["products"] > 0 and line["ms"] > 0 for line in lines)
    assert json.loads(path.read_text(encoding="utf-8"))["results"] == lines
    assert capsys.readouterr().out.count("\n| ") == 2 + len(lines)
