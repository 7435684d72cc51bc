"""`--torch_compile`: one graph for all layers and for all shapes, and the run that it is without."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from accelerate import DistributedType
from torch._dynamo.testing import CompileCounter
from torch._dynamo.utils import counters

import run_glue
from benchmarks.bert import add_packing
from benchmarks.overhead import as_on_a_gpu
from elmo_gpt_bert.training import launching, optimization
from elmo_gpt_bert.training.identity import run_identity
from tests.support import bert_cases, elmo_pair_cases
from tests.support.families import EACH_FAMILY
from tests.support.glue_sample import write_model, write_task, write_vocabulary
from tests.support.tiny_run import Arguments


# Of 8 batches.
LENGTHS = ([5, 9, 2], [8, 3, 6], [12, 4, 7], [2, 2, 13], [10, 11, 3], [6, 5, 4], [9, 14, 8], [3, 15, 5])


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


@pytest.mark.slow
@EACH_FAMILY
def test_packed_batches_of_eight_sizes_are_two_graphs_without_a_break(cases, tmp_path, monkeypatch):
    """One graph of all layers for the first size, one for all others; the last layer, which reads one token, has two.

    All batches have as many sequences. The stand-in of a GPU takes packed batches by their boundaries, as its flash
    attention does.
    """
    _, model = cases.pair("ForSequenceClassification", tmp_path)
    batches = [add_packing(cases.batch(lengths)) for lengths in LENGTHS]
    counter = compile_to_nothing(monkeypatch)
    with as_on_a_gpu(packed=True):
        expected = [model(**batch)[0] for batch in batches]
        with optimization.compiled_layers(model, "default"):
            found = [model(**batch)[0] for batch in batches]
    torch.testing.assert_close(found, expected)
    assert counter.frame_count == 4
    assert not counters["graph_break"]


def test_full_rows_are_one_graph(tmp_path, monkeypatch):
    _, model = bert_cases.pair("ForMaskedLM", tmp_path)
    counter = compile_to_nothing(monkeypatch)
    batch = add_packing(bert_cases.batch([9, 9]))
    with as_on_a_gpu(packed=True), optimization.compiled_layers(model.train(), "default"):
        model(**batch).logits.sum().backward()
        model(**batch).logits.sum().backward()
    assert counter.frame_count == 1


@pytest.mark.slow
def test_all_kinds_of_batches_in_one_run_stay_below_the_limit_of_graphs(tmp_path, monkeypatch):
    """Packed and whole batches, of one row and of several, above frozen layers: torch would make 8 graphs at most."""
    _, model = bert_cases.pair("ForSequenceClassification", tmp_path)
    optimization.freeze_layers(model, 1)
    kinds = ([5, 9, 2], [8, 3, 6], [9, 9, 9], [7, 7, 7], [6, 6], [9], [12], [4, 13, 8])
    batches = [add_packing(bert_cases.batch(lengths)) for lengths in kinds]
    counter = compile_to_nothing(monkeypatch)
    with as_on_a_gpu(packed=True), optimization.compiled_layers(model.train(), "default"):
        for batch in batches * 2:
            seen = counter.frame_count
            model(**batch).logits.sum().backward()
    assert 8 < counter.frame_count == seen < optimization.GRAPHS


@pytest.mark.parametrize("mode", ["max-autotune", "reduce-overhead"])
def test_layers_are_compiled_in_the_mode_that_is_asked_for_and_only_within_the_context(mode, tmp_path, monkeypatch):
    modes = []
    monkeypatch.setattr(torch, "compile", lambda call, mode: modes.append(mode) or (lambda *_, **__: 1 / 0))
    _, model = bert_cases.pair("Model", tmp_path)
    batch = bert_cases.batch()
    with pytest.raises(ZeroDivisionError), optimization.compiled_layers(model, mode):
        model(**batch)
    assert modes == [mode] * 3
    model(**batch)


def test_elmo_refuses_in_one_line():
    model = elmo_pair_cases.build(elmo_pair_cases.MODELS[0])
    refused = pytest.raises(ValueError, match="^--torch_compile: ELMo's layers are loops over time")
    with refused, optimization.compiled_layers(model, "default"):
        pass


@pytest.mark.parametrize("kind", [DistributedType.FSDP, DistributedType.XLA])
def test_fsdp_and_xla_refuse(kind, tmp_path):
    args = Arguments(model_name_or_path="x", output_dir=str(tmp_path), do_train=True, torch_compile=True)
    accelerator = SimpleNamespace(distributed_type=kind, gradient_accumulation_steps=1)
    with pytest.raises(ValueError, match=f"--torch_compile is for one process, or .*, and not for {kind.value}"):
        launching._check_launcher(args, accelerator)


def test_only_a_run_with_the_flag_has_it_in_its_identity(tmp_path):
    """So a run that was begun before there was such a flag may be resumed."""
    given = {"model_name_or_path": str(write_model(tmp_path)), "tokenizer_name": str(write_vocabulary(tmp_path))}
    given |= {"output_dir": "x", "do_train": True}
    assert "torch_compile" not in run_identity(Arguments(**given))
    assert run_identity(Arguments(**given, torch_compile=True))["torch_compile"] is True


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
    """Without dropout, whose draws differ. Scores are those of the model that is not compiled.

    One layer, batches that all have several rows, and a graph that takes any number of tokens from the first on: each
    graph more costs C++ compilers ten seconds.
    """
    words = [*flags, "--per_device_train_batch_size", "3", "--config_overrides"]
    words.append("num_hidden_layers=1,hidden_dropout_prob=0,attention_probs_dropout_prob=0")
    run_glue.main([*words, "--output_dir", str(tmp_path / "plain")])
    assert not counters["stats"]
    one_graph = torch._dynamo.config.patch(assume_static_by_default=False)
    with one_graph, torch._inductor.config.patch({"compile_threads": 1, "cpp.simdlen": 1}):
        run_glue.main([*words, "--output_dir", str(tmp_path / "compiled"), "--torch_compile"])
    assert counters["stats"]["unique_graphs"] >= 1 and not counters["graph_break"]
    assert scores(tmp_path / "compiled") == pytest.approx(scores(tmp_path / "plain"), rel=1e-4)
