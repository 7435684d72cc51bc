"""CUDA graphs of the biLM's recurrence. They need a GPU; here a stand-in records the operations of a graph and
computes them again on the same tensors, as a GPU does."""

import inspect
from contextlib import contextmanager, nullcontext

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.__main__ import main
from modeling import ElmoForPreTraining
from modeling.elmo import modeling_elmo_graphs
from tests.models.test_elmo_bilm import SENTENCES, VARIANTS, K
from tests.support.elmo_reference import batch_of, small_config, small_model


class Recorder(TorchDispatchMode):
    """Keeps the operations that are computed inside, with the tensors that they read and write."""

    def __init__(self, calls: list):
        super().__init__()
        self.calls = calls

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        self.calls.append((function, args, kwargs or {}, result))
        return result


CAPTURES = []


class Graph:
    """In the place of `torch.cuda.CUDAGraph`."""

    def __init__(self):
        self.calls = []
        CAPTURES.append(self)

    def replay(self) -> None:
        for function, args, kwargs, result in self.calls:
            for old, new in zip(tree_leaves(result), tree_leaves(function(*args, **kwargs)), strict=True):
                if old.data_ptr() != new.data_ptr():  # else a view, or written in place
                    old.copy_(new)


@contextmanager
def capturing(graph: Graph, pool: tuple, stream: "Stream", capture_error_mode: str):
    """In the place of `torch.cuda.graph`, which computes nothing: what a graph will write is not a number yet."""
    with Recorder(graph.calls):
        yield
    inputs, written = set(), {}
    for _, args, kwargs, result in graph.calls:
        read = [part for part in tree_leaves((args, kwargs)) if torch.is_tensor(part)]
        inputs |= {tensor.untyped_storage().data_ptr() for tensor in read} - written.keys()
        for tensor in tree_leaves(result):
            if (address := tensor.untyped_storage().data_ptr()) not in inputs:
                written[address] = tensor
    for tensor in written.values():
        tensor.fill_(torch.nan)


class Stream:
    """In the place of `torch.cuda.Stream`, on a machine that computes one thing after another."""

    cuda_stream = 0

    def wait_stream(self, other: "Stream") -> None:
        assert isinstance(other, Stream)


@pytest.fixture
def graphs(monkeypatch):
    """The processor counts as a GPU. Chunks are short, so that these sentences need several."""
    CAPTURES.clear()
    monkeypatch.setenv("ZOO_CUDA_GRAPHS", "1")
    modeling_elmo_graphs._grid_of.cache_clear()
    for name, value in {"DEVICES": ("cpu",), "_kept": {}, "CHUNK": 3}.items():
        monkeypatch.setattr(modeling_elmo_graphs, name, value)
    stand_ins = {"CUDAGraph": Graph, "graph": capturing, "Stream": Stream, "current_stream": Stream}
    for name, value in (stand_ins | {"stream": nullcontext, "graph_pool_handle": tuple}).items():
        monkeypatch.setattr(torch.cuda, name, value)
    return monkeypatch


def test_the_stand_in_takes_what_torchs_capture_takes():
    expected = ["cuda_graph", "pool", "stream", "capture_error_mode"]
    assert [name for name in inspect.signature(torch.cuda.graph).parameters if name in expected] == expected
    assert callable(torch.cuda.CUDAGraph.replay) and callable(torch.cuda.graph_pool_handle)


def layers_and_gradients(model, ids):
    model.zero_grad()
    outputs = model(ids, output_hidden_states=True)
    layers = outputs.hidden_states
    sum((layer * torch.arange(layer.numel()).view_as(layer).cos()).sum() for layer in layers).backward()
    return layers, {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("state", ["zero", "warm"])
@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_layers_and_gradients_are_those_of_the_loop(changes, state, graphs):
    model = small_model(freeze_bilm=False, **changes | {"state": state})
    model.initial_hidden.normal_(0, 0.1)
    model.initial_cell.normal_(0, 0.1)
    ids = batch_of(SENTENCES, K)
    found = layers_and_gradients(model, ids)
    assert len(CAPTURES) == 2  # one graph forward and one backward serve all layers and chunks
    graphs.setenv("ZOO_CUDA_GRAPHS", "0")
    torch.testing.assert_close(found, layers_and_gradients(model, ids), atol=1e-5, rtol=1e-5)
    assert len(CAPTURES) == 2


def test_the_language_model_learns_the_same_and_carries_its_state(graphs):
    def train() -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = ElmoForPreTraining(small_config(freeze_bilm=False, state="carry", cell_clip=0.4, proj_clip=0.15))
        optimizer = torch.optim.SGD(model.parameters(), 0.5)
        losses = []
        for _ in range(3):
            ids, labels = torch.randint(1, 200, (2, 5, 7, K)), torch.randint(0, 17, (2, 5, 7))
            loss = model(ids[0], labels=labels[0], reverse_input_ids=ids[1], reverse_labels=labels[1]).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()  # a graph reads the new weights
            losses.append(loss.detach())
        return [*losses, *model.parameters()]

    found = train()
    assert len(CAPTURES) == 2
    graphs.setenv("ZOO_CUDA_GRAPHS", "0")
    torch.testing.assert_close(found, train(), atol=1e-5, rtol=1e-5)


def test_a_graph_that_was_captured_without_gradients_serves_inference_only(graphs):
    model, ids = small_model(freeze_bilm=False), batch_of(SENTENCES, K)
    with torch.inference_mode():
        expected = model(ids).last_hidden_state.clone()
    with torch.no_grad():
        torch.testing.assert_close(model(ids).last_hidden_state, expected, atol=0, rtol=0)
    assert len(CAPTURES) == 1
    model(ids).last_hidden_state.sum().backward()
    assert len(CAPTURES) == 3 and model.layers[0].forward_lstm.recurrent.weight.grad.abs().sum() > 0
    graphs.setenv("ZOO_CUDA_GRAPHS", "")
    with torch.no_grad():
        torch.testing.assert_close(model(ids).last_hidden_state, expected, atol=1e-5, rtol=1e-5)


def test_batches_of_up_to_eight_sentences_of_any_length_share_a_graph(graphs):
    model = small_model()
    for sentences in (SENTENCES, SENTENCES[:1], 2 * SENTENCES, [["a"]] * 5):
        vectors = model.embed(sentences)
        graphs.setenv("ZOO_CUDA_GRAPHS", "0")
        torch.testing.assert_close(vectors, model.embed(sentences), atol=1e-5, rtol=1e-5)
        graphs.setenv("ZOO_CUDA_GRAPHS", "1")
    assert len(CAPTURES) == 1
    model.embed(3 * SENTENCES)
    assert len(CAPTURES) == 2


def test_too_many_graphs_are_given_up_at_once(graphs):
    graphs.setattr(modeling_elmo_graphs, "KEPT_GRAPHS", 2)
    model = small_model()
    for count, captures in ((1, 1), (9, 2), (1, 2), (17, 3), (1, 4), (17, 4)):
        model.embed([["a"]] * count)
        assert len(CAPTURES) == captures


def test_each_stream_and_each_precision_of_products_has_graphs_of_its_own(graphs):
    model, ids = small_model(), batch_of(SENTENCES, K)
    for stream, precision, captures in ((0, "highest", 1), (1, "highest", 2), (1, "medium", 3), (0, "highest", 3)):
        graphs.setattr(Stream, "cuda_stream", stream)
        graphs.setattr(modeling_elmo_graphs, "_precision", lambda precision=precision: precision)
        model(ids)
        assert len(CAPTURES) == captures
    assert len(modeling_elmo_graphs._kept) == 2


def test_the_precision_of_products_is_that_which_torch_is_set_to():
    before = torch.get_float32_matmul_precision()
    found = []
    for precision in ("highest", "high"):
        torch.set_float32_matmul_precision(precision)
        found.append(modeling_elmo_graphs._precision())
    torch.set_float32_matmul_precision(before)
    assert found[0] != found[1]


def test_a_batch_without_rows_needs_no_graph(graphs):
    assert small_model()(torch.zeros(0, 3, K, dtype=torch.long)).last_hidden_state.shape == (0, 3, 14)
    assert not CAPTURES


def test_bfloat16_is_as_close_as_that_of_the_loop(graphs):
    model, ids = small_model(), batch_of(SENTENCES, K)
    graphs.setenv("ZOO_CUDA_GRAPHS", "0")
    exact = model(ids).last_hidden_state
    loop = model.bfloat16()(ids).last_hidden_state
    graphs.setenv("ZOO_CUDA_GRAPHS", "1")
    found = model(ids).last_hidden_state
    assert found.dtype == torch.bfloat16 and CAPTURES
    assert (found.float() - exact).abs().max() < 1.5 * (loop.float() - exact).abs().max()


def test_autocast_trains_in_bfloat16(graphs):
    model, ids = small_model(freeze_bilm=False), batch_of(SENTENCES, K)
    found = {}
    for setting in ("1", "0"):
        graphs.setenv("ZOO_CUDA_GRAPHS", setting)
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            model(ids).last_hidden_state.float().square().sum().backward()
        found[setting] = torch.cat([p.grad.flatten() for name, p in model.named_parameters() if "mixes" not in name])
    assert found["1"].dtype == torch.float32
    assert (found["1"] - found["0"]).norm() < 0.02 * found["0"].norm()


def test_a_counter_of_flops_sees_the_operations(graphs):
    model, ids, counts = small_model(), batch_of(SENTENCES, K), []
    for setting in ("1", "0"):
        graphs.setenv("ZOO_CUDA_GRAPHS", setting)
        with FlopCounterMode(display=False) as counter:
            model(ids)
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[1] and not CAPTURES


def test_without_the_variable_or_a_gpu_there_are_none(graphs):
    graphs.setattr(modeling_elmo_graphs, "DEVICES", ("cuda",))
    small_model().embed(SENTENCES)
    assert not CAPTURES
    graphs.setenv("ZOO_CUDA_GRAPHS", "yes")
    with pytest.raises(ValueError, match="ZOO_CUDA_GRAPHS=yes: set it to 1"):
        small_model().embed(SENTENCES)


@pytest.mark.slow
@pytest.mark.parametrize("row", ["gpu-elmo-graphs", "gpu-elmo-training-cudnn"])
def test_rows_of_benchmarks_compute_ours_by_graphs_and_the_baseline_without(row, graphs):
    (result,) = main([row, "--size", "tiny", "--settings", "fp32", "--pairs", "2"])
    assert result.side == "zoo, CUDA graphs" and result.difference <= 1e-5
    assert len(CAPTURES) == (2 if "training" in row else 1)
