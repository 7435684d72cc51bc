"""The rows of a server compute with what they say: eight bits, and a graph of ONNX for batches of any shape."""

import pytest
import torch

from benchmarks import serving
from benchmarks.__main__ import main, table_line
from benchmarks.bert import OURS, STOCK, draw_lengths, draw_sequences, make_models, pad


pytestmark = pytest.mark.slow


@pytest.fixture(params=[OURS, STOCK])
def model(request):
    return make_models("ForSequenceClassification", "base", tiny=True, dropout=0.0)[request.param].eval()


@pytest.fixture
def batches():
    sequences = draw_sequences(draw_lengths("sst2-dev", 8), tiny=True)
    return [pad(sequences[:3]), pad(sequences[3:])]


def test_a_graph_of_onnx_gives_the_logits_of_any_batch(model, batches):
    classify = serving.by_onnx(model, batches[0])
    for batch in batches:
        (logits,) = classify(batch)
        with torch.no_grad():
            torch.testing.assert_close(torch.from_numpy(logits), model(**batch).logits, atol=1e-5, rtol=1e-5)


def test_eight_bits_are_in_use_and_near(model, batches):
    classify = serving.in_int8(model, batches[0])
    with torch.no_grad():
        exact, rounded = model(**batches[0]).logits, classify(batches[0])
    error = (rounded - exact).norm() / exact.norm()
    assert 1e-4 < error < 0.2


@pytest.mark.parametrize("convert", [serving.in_int8, serving.by_onnx])
def test_what_is_converted_is_not_measured_on_a_gpu(convert):
    with pytest.raises(ValueError, match="in int8 and by ONNX are measured on the CPU, and not on cuda"):
        serving.serve(convert, rows=1)("bf16", "bf16", True, torch.device("cuda"))


def test_a_row_of_a_server_counts_sentences_for_each_second():
    (result,) = main(["serving-32", "--size", "tiny", "--pairs", "1", "--settings", "fp32"])
    assert result.items_per_second == pytest.approx(32_000 / result.cpu_ms, rel=1e-6)
    assert table_line(result)[-1].endswith(" sentences")
