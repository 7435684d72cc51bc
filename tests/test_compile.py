"""`--torch_compile`: one graph for all layers and for all shapes, and the run that it is without."""

import json
from pathlib import Path

import pytest
import torch
from torch._dynamo.testing import CompileCounter
from torch._dynamo.utils import counters

import modeling
import run_glue
from benchmarks.overhead import as_on_a_gpu
from elmo_gpt_bert.training import layers
from tests import bert_cases, gpt_cases
from tests.glue_sample import write_model, write_task, write_vocabulary


LENGTHS = (
    [5, 9, 2],
    [8, 3, 6],
    [12, 4, 7],
    [2, 2, 13],
    [10, 11, 3],
    [6, 5, 4],
    [9, 14, 8],
    [3, 15, 5],
)  # of 8 batches
add_packing = modeling.DataCollatorWithPacking(dict)


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def compile_to_nothing(monkeypatch) -> CompileCounter:
    """Layers are traced as for inductor, and the graphs computed as they are. Returns the counter of the graphs."""
    counter, compile = CompileCounter(), torch.nn.Module.compile
    monkeypatch.setattr(torch.nn.Module, "compile", lambda self, mode: compile(self, backend=counter, fullgraph=True))
    return counter


@pytest.mark.parametrize("head", ["Model", "ForSequenceClassification"])
@pytest.mark.parametrize("cases", [bert_cases, gpt_cases], ids=["bert", "gpt"])
def test_packed_batches_of_eight_sizes_are_at_most_three_graphs_without_a_break(cases, head, tmp_path, monkeypatch):
    """One graph of all layers for the first size, one for all others; a last layer that reads one token has its own.

    The stand-in of a GPU takes packed batches by their boundaries, as torch's flash attention does there.
    """
    _, model = cases.pair(head, tmp_path)
    batches = [add_packing(cases.batch(lengths)) for lengths in LENGTHS]
    counter = compile_to_nothing(monkeypatch)
    with as_on_a_gpu(packed=True):
        expected = [model(**batch)[0] for batch in batches]
        with layers.compiled_layers(model, "default"):
            found = [model(**batch)[0] for batch in batches]
    torch.testing.assert_close(found, expected)
    assert counter.frame_count <= (3 if head == "Model" else 6)
    assert not counters["graph_break"]


def test_full_rows_are_one_graph(tmp_path, monkeypatch):
    _, model = bert_cases.pair("ForMaskedLM", tmp_path)
    counter = compile_to_nothing(monkeypatch)
    batch = add_packing(bert_cases.batch([9, 9]))
    with as_on_a_gpu(packed=True), layers.compiled_layers(model.train(), "default"):
        model(**batch).logits.sum().backward()
        model(**batch).logits.sum().backward()
    assert counter.frame_count == 1


@pytest.fixture
def flags(tmp_path) -> list[str]:
    write_task(tmp_path, "RTE")
    model, vocabulary = write_model(tmp_path), write_vocabulary(tmp_path)
    words = ["--model_name_or_path", str(model), "--tokenizer_name", str(vocabulary), "--max_seq_length", "32"]
    words += ["--task_name", "rte", "--data_dir", str(tmp_path), "--do_train", "--do_eval"]
    return [*words, "--max_steps", "3", "--logging_steps", "1", "--per_device_train_batch_size", "4"]


def scores(folder: Path) -> dict[str, float]:
    record = json.loads((folder / "metrics.json").read_text())
    return {name: record[name] for name in ("train_loss", "eval_loss", "eval_accuracy")}


@pytest.mark.slow
def test_a_compiled_run_computes_what_a_run_computes(flags, tmp_path):
    """Without dropout, whose draws differ. Scores are those of the model that is not compiled."""
    words = [*flags, "--config_overrides", "hidden_dropout_prob=0,attention_probs_dropout_prob=0"]
    run_glue.main([*words, "--output_dir", str(tmp_path / "plain")])
    assert not counters["stats"]
    run_glue.main([*words, "--output_dir", str(tmp_path / "compiled"), "--torch_compile"])
    assert counters["stats"]["unique_graphs"] >= 1 and not counters["graph_break"]
    assert scores(tmp_path / "compiled") == pytest.approx(scores(tmp_path / "plain"), rel=1e-4)
