"""Every benchmark runs, compares what it claims to compare, and stops when the two sides disagree."""

import dataclasses
import functools
import json
import lzma
import os
import statistics
import subprocess
import time
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import Dataset
from tokenizers import BertWordPieceTokenizer
from transformers import BertTokenizerFast, OpenAIGPTTokenizer
from transformers.cache_utils import DynamicLayer, StaticLayer

import modeling.bert.modeling_bert
import run_glue
from benchmarks import bert, elmo, gpt, gpu, measure, precision, scripts, squad
from benchmarks.__main__ import DEFAULT_SETTINGS, ROWS, main
from benchmarks.measure import Contest, DifferentResults, Side
from elmo_gpt_bert import starting
from elmo_gpt_bert.tasks.squad.features import make_windows
from elmo_gpt_bert.training.arguments import ModelSource
from elmo_gpt_bert.training.runs import command as command_of_run
from modeling import ZooGPTLMHeadModel
from modeling.elmo import modeling_elmo, modeling_elmo_characters
from modeling.gpt import modeling_gpt, modeling_gpt_tasks
from modeling.shared import modeling_heads
from tests.models.test_gpt_tokenizer import read_release
from tests.support.processes import fork, wait


pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("_little_work")]


def tiny_run(row: str, *arguments: str):
    (result,) = main([row, "--size", "tiny", "--pairs", "1", *arguments])
    return result


def contest(outputs: torch.Tensor, expected: torch.Tensor, tolerance: float = 1e-4) -> Contest:
    sides = [
        Side(name, lambda index: None, lambda value=value: {"logits": value})
        for name, value in (("one", outputs), ("another", expected))
    ]
    return Contest(*sides, work="two numbers", tolerance=tolerance)


def word_pieces(lines: list[str], vocabulary: Path) -> list[int]:
    """How many each line has. Pieces end where words do, so each word is split once; the lines have a million."""
    tokenizer = BertWordPieceTokenizer(str(vocabulary), lowercase=True)
    words = sorted({word for line in lines for word in line.split()})
    found = tokenizer.encode_batch(words, add_special_tokens=False)
    pieces = {word: len(encoding.ids) for word, encoding in zip(words, found, strict=True)}
    return [sum(pieces[word] for word in line.split()) for line in lines]


def windows_of(question: int, context: int, longest: int = 384, stride: int = 128) -> list[int]:
    """The tokens of each window of a question and a context of so many. Windows share `stride` of the context."""
    question, starts = min(question, 64) + 3, [0]  # [CLS] and two times [SEP]
    room = longest - question
    while starts[-1] + room < context:
        starts.append(starts[-1] + room - stride)
    return [question + min(room, context - start) for start in starts]


@pytest.fixture
def _no_process_and_no_compiler(monkeypatch):
    """No process measures memory, and torch traces what it compiles without making code, which takes half a minute."""
    monkeypatch.setattr(bert, "peak_memory", lambda work, *args: work(*args) or 1.0)
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))


# Where torch traces what it compiles: our layers of each family, and transformers' model. The other rows only hand
# theirs over to it.
TRACED = {"gpu-base-mlm-128-both-compiled", "gpu-gpt-512-compiled"}
# When tiny, each of these is another row once more, which has a smaller model or fewer tokens. A graph of ONNX with
# more than one sentence is tested in test_benchmarks_serving.py.
AGAIN = {"elmo-full", "elmo-training-small", "serving-32-onnx", "gpu-12m", "gpu-base-mlm-512"}
AGAIN |= {"gpu-large-mlm-128", "gpu-large-checkpointing"}

# One row a model in every setting, and each other row in the type that it is measured in by default. That the others
# compare the same things in bf16, too, the tests below show, where they stop.
SWITCHED = product(("base-sst2", "elmo-small", "gpt-sst2", "attention-24"), ("portable", "medium", "mixed", "bf16"))
PLAIN = ((row, "bf16" if row in gpu.ROWS else "fp32") for row in ROWS if row not in AGAIN)


@pytest.mark.usefixtures("_no_process_and_no_compiler")
@pytest.mark.parametrize(("row", "setting"), [*SWITCHED, *PLAIN])
def test_every_row_runs_in_every_setting(row, setting):
    with torch.compiler.set_stance("default" if row in TRACED else "force_eager"):
        result = tiny_run(row, "--settings", setting)
    assert result.setting == setting and result.difference <= result.tolerance
    assert result.cpu_ms > 0 and result.baseline_cpu_ms > 0 and result.pairs == 1


@pytest.mark.parametrize("row", [*bert.ROWS, "gpu-base-pairs", "gpu-large-mlm-128"])
@pytest.mark.parametrize("setting", ["fp32", "bf16"])
def test_a_row_stops_when_our_bert_computes_something_else(row, setting, monkeypatch):
    def without_norm(self, hidden_states, residual):
        return self.dense(hidden_states) + residual

    monkeypatch.setattr(modeling.bert.modeling_bert.ZooBertResidual, "forward", without_norm)
    with pytest.raises(DifferentResults, match="Nothing was timed"):
        tiny_run(row, "--settings", setting)


@pytest.mark.parametrize("row", ["finetuning", "masked-lm"])
def test_a_training_row_stops_when_only_a_gradient_differs(row, monkeypatch):
    forward = modeling.bert.modeling_bert.ZooBertIntermediate.forward
    monkeypatch.setattr(
        modeling.bert.modeling_bert.ZooBertIntermediate, "forward", lambda self, states: forward(self, states.detach())
    )
    with pytest.raises(DifferentResults):
        tiny_run(row, "--settings", "fp32")


def test_a_difference_beyond_the_tolerance_names_both_sides_and_the_limit():
    with pytest.raises(DifferentResults, match="one and another differ by 1.0e-03 .* 1e-04 is allowed"):
        measure.assert_equal(contest(torch.tensor([0.0, 1.001]), torch.tensor([0.0, 1.0])))
    assert measure.assert_equal(contest(torch.tensor([1.0, 2.5]), torch.tensor([1.0, 2.0]), 0.25)) == 0.25


@pytest.mark.parametrize("position", [0, 1])
def test_not_a_number_is_a_difference(position):
    outputs = torch.ones(2)
    outputs[position] = float("nan")
    with pytest.raises(DifferentResults):
        measure.assert_equal(contest(outputs, torch.ones(2)))


def test_outputs_that_cannot_be_compared_are_one_clear_error():
    with pytest.raises(DifferentResults, match="logits has two shapes"):
        measure.assert_equal(contest(torch.ones(3), torch.ones(3, 1)))
    with pytest.raises(DifferentResults, match="'loss'.*'logits'"):
        measure.largest_difference({"loss": torch.ones(1)}, {"logits": torch.ones(1)})


def test_the_sides_take_turns_on_the_same_inputs():
    turns = []
    sides = [Side(name, lambda index, name=name: turns.append((name, index)), dict) for name in "AB"]
    timing = measure.take_turns(Contest(*sides, work="", tolerance=0), pairs=3, seconds=0.0)
    assert turns[-6:] == [("A", 0), ("B", 0), ("A", 1), ("B", 1), ("A", 2), ("B", 2)]
    assert len(timing.cpu_ratios) == len(timing.wall_ratios) == 3


def test_a_side_that_works_three_times_as_long_has_a_ratio_of_three(monkeypatch):
    worked = [0.0]
    monkeypatch.setattr(measure.time, "process_time", lambda: sum(worked))
    monkeypatch.setattr(measure.time, "perf_counter", lambda: 2 * sum(worked))
    sides = [Side(name, lambda index, cost=cost: worked.append(cost), dict) for name, cost in (("A", 1.0), ("B", 3.0))]
    timing = measure.take_turns(Contest(*sides, work="", tolerance=0), pairs=3, seconds=8.0)
    assert timing.cpu_ratios == timing.wall_ratios == [3.0, 3.0, 3.0]
    assert (timing.cpu_seconds, timing.baseline_wall_seconds) == (1.0, 6.0)
    # Four runs of the quicker side fill a turn of eight seconds. Two trials come before the turns.
    assert sum(worked) == 3 * 4 * (1.0 + 3.0) + 2 * (1.0 + 3.0)


def test_peak_memory_is_of_the_process_that_worked_and_not_of_the_one_that_asked():
    here = b"1" * (500 * 2**20)
    # Not a function of this module: the new process would import all that the module does.
    work = "__import__('benchmarks.measure').measure._peak_here(), len(b'1' * 300 * 2**20)"
    (small, _), large = measure.in_new_process(eval, work)
    assert large - small == pytest.approx(300, abs=60)
    assert small < 500 <= len(here) / 2**20


def switches() -> tuple[str, bool, bool]:
    return torch.get_float32_matmul_precision(), torch.backends.mkldnn.enabled, torch.is_autocast_enabled("cpu")


def test_the_switches_are_put_back_after_an_error():
    before = switches()
    for name, found in (("medium", ("medium", True, False)), ("portable", ("highest", False, False))):
        with pytest.raises(KeyError), precision.inference(name):
            assert switches() == found
            raise KeyError
        assert switches() == before


@pytest.mark.parametrize(
    ("name", "forward", "backward"),
    [
        ("highest", ("highest", True, False), ("highest", True, False)),
        ("medium", ("medium", True, False), ("medium", True, False)),
        ("portable", ("highest", False, False), ("highest", False, False)),
        ("bf16", ("highest", True, True), ("highest", True, False)),
    ],
)
def test_a_step_runs_both_ways_in_the_precision_it_names(name, forward, backward):
    seen = []

    class Look(torch.autograd.Function):
        @staticmethod
        def forward(ctx, value):
            seen.append(switches())
            return value.clone()

        @staticmethod
        def backward(ctx, gradient):
            seen.append(switches())
            return gradient

    weight = torch.ones((), requires_grad=True)
    assert precision.forward_backward(lambda: Look.apply(weight), name) == 1
    assert seen == [forward, backward] and weight.grad == 1


@pytest.mark.parametrize(
    ("split", "name"), [("train", "sst2-train"), ("dev", "sst2-dev")], ids=["phrases", "sentences"]
)
def test_the_lengths_in_the_code_are_those_of_the_published_files(data, split, name):
    lines = (data / "glue" / "SST-2" / f"{split}.tsv").read_text(encoding="utf-8").splitlines()[1:]
    pieces = word_pieces([line.split("\t")[0] for line in lines], data / "vocab" / "bert-base-uncased-vocab.txt")
    lengths = [count + 2 for count in pieces]  # [CLS] and [SEP]
    assert bert.LENGTHS[name] == pytest.approx(np.quantile(lengths, bert.QUANTILES), abs=0.05)
    drawn = bert.draw_lengths(name, len(lengths)).float().mean()
    assert drawn == pytest.approx(statistics.mean(lengths), rel=0.03)


def test_the_lengths_of_windows_in_the_code_are_those_of_squad(data):
    document = json.loads((data / "squad" / "dev-v1.1.json").read_text(encoding="utf-8"))
    paragraphs = [paragraph for article in document["data"] for paragraph in article["paragraphs"]]
    asked = [(each["question"], paragraph["context"]) for paragraph in paragraphs for each in paragraph["qas"]]
    texts = sorted({text for pair in asked for text in pair})
    pieces = dict(zip(texts, word_pieces(texts, data / "vocab" / "bert-base-uncased-vocab.txt"), strict=True))
    lengths = [length for pair in asked for length in windows_of(*(pieces[text] for text in pair))]
    assert bert.LENGTHS["squad-dev"] == np.quantile(lengths, bert.QUANTILES).round().tolist()
    assert statistics.mean(lengths) == pytest.approx(176.0, abs=0.05)
    tokenizer = BertTokenizerFast(str(data / "vocab" / "bert-base-uncased-vocab.txt"))
    windows = make_windows(squad.load_examples(str(data / "squad"), 300), tokenizer).features["input_ids"]
    assert [*map(len, windows)] == lengths[: len(windows)]


def test_the_lengths_of_paragraphs_in_the_code_are_those_of_books(data):
    tokenizer = OpenAIGPTTokenizer(*read_release(data))
    with lzma.open(data / "books" / "valid.txt.xz", "rt", encoding="utf-8") as file:
        paragraphs = [line for line in file.read().splitlines() if line.strip()]
    lengths = np.minimum([len(ids) for ids in tokenizer(paragraphs[::10])["input_ids"]], 128)
    assert bert.LENGTHS["paragraphs"] == np.quantile(lengths, bert.QUANTILES).round().tolist()
    assert lengths.mean() == pytest.approx(52.8, abs=0.05)


def test_the_stand_in_for_pairs_has_the_mean_and_the_padding_it_claims():
    rows = bert.draw_lengths("pairs", 32 * 2000).view(-1, 32).double()
    assert rows.mean() == pytest.approx(39, abs=0.5)
    assert rows.amax(1).sum() * 32 / rows.sum() == pytest.approx(1.5, abs=0.05)


def test_the_json_file_holds_every_line_of_the_table(tmp_path, capsys):
    file = tmp_path / "results.json"
    main(["small-pairs", "finetuning", "--size", "tiny", "--settings", "fp32", "--json", str(file)])
    written = json.loads(file.read_text())
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert [result["row"] for result in written["results"]] == ["small-pairs", "finetuning"]
    assert [line.split(" | ")[0] for line in lines[2:]] == ["| small-pairs", "| finetuning"]
    assert [limits["threads"] for limits in written["limits"]] == [torch.get_num_threads()]


def test_an_unknown_row_is_one_clear_error(capsys):
    with pytest.raises(SystemExit):
        main(["bert-huge"])
    names = "bert, elmo, gpt, attention, overhead, serving, gpu, base-sst2"
    assert f"no row is called bert-huge; there are {names}" in capsys.readouterr().err


def test_the_name_of_a_model_stands_for_its_rows_and_settings(monkeypatch):
    lines = []
    monkeypatch.setattr("benchmarks.__main__.print_row", lambda row, setting, *_: lines.append((row, setting)))
    main(["elmo"])
    assert lines == [(row, setting) for row in elmo.ROWS for setting in DEFAULT_SETTINGS]


# ELMo


def without_highways(self, inputs: torch.Tensor) -> torch.Tensor:
    return inputs


@pytest.mark.parametrize("row", [row for row in elmo.ROWS if row not in AGAIN])
@pytest.mark.parametrize("setting", ["fp32", "bf16"])
def test_a_row_stops_when_our_elmo_computes_something_else(row, setting, monkeypatch):
    monkeypatch.setattr(modeling_elmo_characters.ElmoHighway, "forward", without_highways)
    with pytest.raises(DifferentResults, match="zoo and plain differ .* Nothing was timed"):
        tiny_run(row, "--settings", setting)


@pytest.mark.parametrize("clipped", [0, 1], ids=["cells", "projections"])
def test_a_row_stops_when_our_elmo_does_not_clip(clipped, monkeypatch):
    run_both = modeling_elmo.run_both

    def without_one_clip(*inputs):
        *inputs, clips = inputs
        return run_both(*inputs, tuple(None if index == clipped else limit for index, limit in enumerate(clips)))

    monkeypatch.setattr(modeling_elmo, "run_both", without_one_clip)
    with pytest.raises(DifferentResults):
        tiny_run("elmo-full", "--settings", "fp32")


@pytest.mark.parametrize("row", ["elmo-training", "elmo-pretraining"])
def test_an_elmo_training_row_stops_when_only_a_gradient_differs(row, monkeypatch):
    forward = modeling_elmo_characters.ElmoHighway.forward
    monkeypatch.setattr(
        modeling_elmo_characters.ElmoHighway, "forward", lambda self, inputs: forward(self, inputs.detach())
    )
    with pytest.raises(DifferentResults):
        tiny_run(row, "--settings", "fp32")


def test_made_up_sentences_have_the_lengths_and_the_repetitions_that_they_claim():
    text = elmo.Text(tiny=False)
    batches = [text.sentences(elmo.BATCH_SIZE) for _ in range(100)]
    lengths = [len(sentence) for batch in batches for sentence in batch]
    assert statistics.mean(lengths) == pytest.approx(22, abs=0.5) and max(lengths) <= 80
    assert statistics.stdev(np.log(lengths)) == pytest.approx(0.6, abs=0.03)
    words = [[word for sentence in batch for word in sentence] for batch in batches]
    assert statistics.mean(len(set(batch)) / len(batch) for batch in words) == pytest.approx(0.61, abs=0.01)


def test_made_up_words_are_as_long_as_those_of_real_sentences(data):
    text = (data / "pos" / "ud-english-train.tsv").read_text(encoding="utf-8")
    sentences = [[line.split("\t")[0] for line in lines.splitlines()] for lines in text.strip().split("\n\n")]
    np.random.default_rng(0).shuffle(sentences)
    batches = [sentences[start : start + 32] for start in range(0, len(sentences) - 31, 32)]
    lengths = [[len(word.encode()) for word in {word for words in batch for word in words}] for batch in batches]
    found = np.quantile(np.concatenate(lengths), elmo.QUANTILES[:-1])
    assert elmo.WORD_LENGTHS[:-1] == pytest.approx(list(found), abs=0.05)
    assert elmo.WORD_LENGTHS[-1] == pytest.approx(statistics.median(map(max, lengths)), abs=1)


# GPT


@pytest.mark.parametrize("row", gpt.ROWS)
@pytest.mark.parametrize("setting", ["fp32", "bf16"])
def test_a_row_stops_when_our_gpt_computes_something_else(row, setting, monkeypatch):
    monkeypatch.setattr(modeling_gpt.ZooGPTMLP, "forward", lambda self, hidden_states: hidden_states)
    with pytest.raises(DifferentResults, match="zoo and transformers differ .* Nothing was timed"):
        tiny_run(row, "--settings", setting)


@pytest.mark.parametrize("row", ["gpt-greedy", "gpt-greedy-batch", "gpt-greedy-batch16", "gpt-beams"])
@pytest.mark.parametrize("setting", ["fp32", "bf16"])
def test_a_generation_row_stops_when_the_cache_is_wrong(row, setting, monkeypatch):
    update = DynamicLayer.update
    monkeypatch.setattr(DynamicLayer, "update", lambda self, key, value, *rest: update(self, key, 4 * value, *rest))
    with pytest.raises(DifferentResults):
        tiny_run(row, "--settings", setting)


def test_the_row_of_a_static_cache_stops_when_that_cache_is_wrong(monkeypatch):
    update = StaticLayer.update
    monkeypatch.setattr(StaticLayer, "update", lambda self, key, value, *rest: update(self, key, 4 * value, *rest))
    with pytest.raises(DifferentResults):
        tiny_run("gpu-gpt-greedy-static-compiled", "--settings", "bf16")


def test_a_generation_row_stops_when_only_the_tokens_differ(monkeypatch):
    generate = ZooGPTLMHeadModel.generate
    monkeypatch.setattr(ZooGPTLMHeadModel, "generate", lambda *args, **options: generate(*args, **options).roll(1, 1))
    with pytest.raises(DifferentResults):
        tiny_run("gpt-greedy", "--settings", "fp32")


@pytest.mark.parametrize("row", ["gpt-finetuning", "gpt-finetuning-lm", "gpt-lm", "gpt-lm-text"])
def test_a_gpt_training_row_stops_when_only_a_gradient_differs(row, monkeypatch):
    forward = modeling_gpt.ZooGPTMLP.forward
    monkeypatch.setattr(modeling_gpt.ZooGPTMLP, "forward", lambda self, states: forward(self, states.detach()))
    with pytest.raises(DifferentResults):
        tiny_run(row, "--settings", "fp32")


@pytest.mark.parametrize("factor", [0.9, 1.1])
def test_the_row_with_a_language_modeling_loss_stops_when_its_weight_differs(factor, monkeypatch):
    monkeypatch.setattr(modeling_gpt_tasks, "word_loss", lambda *given: factor * modeling_heads.word_loss(*given))
    with pytest.raises(DifferentResults):
        tiny_run("gpt-finetuning-lm", "--settings", "fp32")


def test_the_baseline_of_that_row_reads_scores_in_the_order_of_memory(monkeypatch):
    """As transformers' losses do. Over (B, V, T), the step takes 1.4 times as long in fp32 and 1.6 times in bf16."""
    cross_entropy, read = torch.nn.functional.cross_entropy, []

    def recorded(scores, targets, **options):
        read.append(scores.dim() == 2 and scores.is_contiguous())
        return cross_entropy(scores, targets, **options)

    monkeypatch.setattr(torch.nn.functional, "cross_entropy", recorded)
    model = gpt.make_models("ForSequenceClassification", "small", tiny=True, lm_loss=True)[gpt.STOCK]
    model(**bert.make_classified_batches(True).batches[0])
    assert read == [True, True]


# Whole runs


@pytest.fixture
def _forked(monkeypatch):
    """The commands of `scripts` are forks of this process, which has imported torch and transformers already."""

    def run_forked(command: list[str], cwd: Path, env: dict[str, str], **_) -> subprocess.CompletedProcess:
        _, _, *flags = command  # the interpreter, and run_glue.py

        def work() -> None:
            os.chdir(cwd)
            os.environ.update(env)
            starting.BEGAN = time.perf_counter()  # as in a process of its own
            command_of_run(lambda: run_glue.main(flags))

        (status,) = wait(fork(work))
        return subprocess.CompletedProcess(command, status, stderr="")

    monkeypatch.setattr(subprocess, "run", run_forked)


@pytest.mark.usefixtures("_forked")
def test_whole_runs_are_timed_from_the_command_to_the_last_file(tmp_path, monkeypatch):
    timed_run, records = scripts.timed_run, []
    monkeypatch.setattr(scripts, "timed_run", lambda *args: records.append(timed_run(*args)) or records[-1])
    tables = scripts.main(["by-length", "--size", "tiny", "--pairs", "1", "--json", str(tmp_path / "tables.json")])
    head, *rows, accuracy = tables["by-length"]
    assert [row[0] for row in rows] == [*scripts.PARTS, "the whole command"]
    for row, name in zip(rows, [*(f"{part}_runtime" for part in scripts.PARTS), "seconds"], strict=True):
        assert row[1] == " : ".join(f"{record[name]:.1f}" for record in records)
    for record in records:
        assert 0 < sum(record[f"{part}_runtime"] for part in scripts.PARTS) < record["seconds"]
    assert json.loads((tmp_path / "tables.json").read_text(encoding="utf-8"))["by-length"] == tables["by-length"]


def test_a_run_that_fails_is_shown(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(scripts, "ROOT", tmp_path)
    fails = "import argparse, sys; argparse.ArgumentParser('run_glue.py').error(' '.join(sys.argv[1:3]))"
    (tmp_path / "run_glue.py").write_text(fails, encoding="utf-8")
    with pytest.raises(subprocess.CalledProcessError):
        scripts.timed_run(["--task_name", "nothing"])
    assert "run_glue.py: error: --task_name nothing" in capsys.readouterr().err


def test_a_table_that_does_not_exist_is_an_error(capsys):
    with pytest.raises(SystemExit):
        scripts.main(["nothing"])
    assert "no table is called nothing" in capsys.readouterr().err


# SQuAD, before and after the model


@pytest.fixture(scope="module")
def squad_work() -> squad.Work:
    return squad.Work(squad.load_examples(None, questions=6), squad.load_tokenizer(ModelSource("demo/vocab.txt")))


def test_rows_of_squad_need_no_data(tmp_path, capsys):
    path = tmp_path / "squad.json"
    document = squad.main(["--size", "tiny", "--pairs", "2", "--json", str(path)])
    assert [result["row"] for result in document["results"]] == list(squad.ROWS)
    for result in document["results"]:
        assert result["work"].startswith("2 questions, ") and len(result["cpu_ratios"]) == 2
        assert result["cpu_ratio"] == statistics.median(result["cpu_ratios"]) > 0
    assert json.loads(path.read_text(encoding="utf-8")) == document
    printed = capsys.readouterr().out
    assert all(f"| {row} | 2 questions, " in printed for row in squad.ROWS)


def test_windows_of_squad_are_compared_where_an_accent_is_a_character_of_its_own(squad_work):
    examples = squad_work.examples.map(lambda example: {"context": f"{example['context']} the cafe\u0301"})
    marked = squad.Work(examples, squad_work.tokenizer)
    measure.assert_equal(squad.ROWS["windows-validation"](marked))
    assert (marked.windows(train=False).spans[:, 1] == len(examples["context"][0])).any()


@pytest.mark.parametrize("row", [row for row in squad.ROWS if row.startswith("windows")])
@pytest.mark.parametrize("name", ["input_ids", "token_type_ids"])
def test_a_row_of_squad_stops_when_one_number_of_a_window_differs(row, name, squad_work, monkeypatch):
    _change_windows(monkeypatch, name)
    with pytest.raises(DifferentResults, match="zoo and run_qa.* Nothing was timed"):
        squad.measure(row, squad_work, pairs=1)


@pytest.mark.parametrize("name", ["start_positions", "end_positions"])
def test_a_row_of_squad_stops_when_one_answer_is_expected_elsewhere(name, squad_work, monkeypatch):
    _change_windows(monkeypatch, name)
    with pytest.raises(DifferentResults):
        squad.measure("windows-train", squad_work, pairs=1)


@pytest.mark.parametrize("name", ["question", "column", "spans"])
def test_a_row_of_squad_stops_when_one_token_stands_elsewhere(name, squad_work, monkeypatch):
    _change_windows(monkeypatch, name)
    with pytest.raises(DifferentResults):
        squad.measure("windows-validation", squad_work, pairs=1)


def _change_windows(monkeypatch, name: str) -> None:
    """Adds 1 to the last number of one column of what is measured."""
    make = squad.make_windows

    def changed(*args, **options):
        windows = make(*args, **options)
        if hasattr(windows, name):
            values = getattr(windows, name).copy()
            values.reshape(-1)[-1] += 1
            return dataclasses.replace(windows, **{name: values})
        columns = windows.features[:]
        if isinstance(columns[name][-1], list):
            columns[name][-1][-1] += 1
        else:
            columns[name][-1] += 1
        return dataclasses.replace(windows, features=Dataset.from_dict(columns))

    monkeypatch.setattr(squad, "make_windows", changed)


def test_a_row_of_squad_stops_when_one_answer_differs(squad_work, monkeypatch):
    find = squad.find_answers

    def changed(*args, **options):
        answers = find(*args, **options)
        answers.predictions["5"] += "s"
        return answers

    monkeypatch.setattr(squad, "find_answers", changed)
    with pytest.raises(DifferentResults):
        squad.measure("answers", squad_work, pairs=1)


def test_a_row_of_squad_that_does_not_exist_is_an_error(capsys):
    with pytest.raises(SystemExit):
        squad.main(["nothing"])
    assert "no table is called nothing" in capsys.readouterr().err
