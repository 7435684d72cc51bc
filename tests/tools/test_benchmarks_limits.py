"""The share of a limit that the benchmarks print: what a row needs, counted by torch, over what the machine can do."""

import argparse
import dataclasses
import json
import statistics
import subprocess
import time

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import GenerationMixin, PreTrainedModel
from transformers.initialization import no_init_weights

import benchmarks.__main__
from benchmarks import bert, elmo, gpt, gpu, limits, measure, precision, scripts, serving, squad
from benchmarks.__main__ import QUICK_SECONDS, ROWS, Report, header, main, print_table, table_line
from benchmarks.measure import CPU, Contest, Need, Seconds, Side
from benchmarks.reporting import describe_machine, extensions
from modeling import ElmoConfig, ElmoForPreTraining, ElmoModel


pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("_little_work")]


GPU = torch.device("cuda")


def flop_of(model: torch.nn.Module, batch: dict[str, torch.Tensor], train: bool = False) -> int:
    """What torch counts in a pass through our model, which leaves padding out; it cannot count in fused attention."""
    if hasattr(model, "set_attn_implementation"):
        model.set_attn_implementation("eager")
    with precision.switches("portable"), FlopCounterMode(display=False) as counter:
        output = model.train(train)(**batch)
        if train:
            output.loss.backward()
    return counter.get_total_flops()


def need_of(row: str) -> float:
    _, build = ROWS[row]
    return build("highest", "highest", True, CPU).need.amount(0)


# What a row needs


@pytest.mark.parametrize(
    ("row", "head", "batches", "train"),
    [
        ("base-sst2", "ForSequenceClassification", lambda: bert.make_batches("sst2-train", True), False),
        ("small-pairs", "ForSequenceClassification", lambda: bert.make_batches("pairs", True), False),
        ("finetuning", "ForSequenceClassification", lambda: bert.make_classified_batches(True), True),
        ("masked-lm", "ForMaskedLM", lambda: bert.make_masked_batches(True), True),
        ("gpu-large-squad", "ForSequenceClassification", lambda: bert.make_batches("squad-dev", True), True),
        ("gpu-base-mlm-512", "ForMaskedLM", lambda: bert.make_masked_batches(True), True),
    ],
)
def test_the_need_of_a_row_of_bert_is_what_torch_counts_in_our_model(row, head, batches, train):
    model = bert.make_models(head, "small", True, dropout=0.0)[bert.OURS]
    assert need_of(row) == flop_of(model, batches().batches[0], train)


@pytest.mark.parametrize(
    ("row", "passes"),
    [("gpt-sst2", 1), ("gpt-finetuning", 3), ("gpt-finetuning-lm", 3), ("gpt-lm", 3), ("gpt-lm-text", 3)],
)
def test_the_need_of_a_row_of_gpt_leaves_out_what_is_computed_and_not_read(row, passes):
    heads = {"gpt-lm": "LMHeadModel", "gpt-lm-text": "LMLoss"}
    inputs = {"gpt-lm": gpt.make_texts, "gpt-lm-text": gpt.make_paragraphs}
    batch = inputs.get(row, bert.make_classified_batches)(True).batches[0]
    head, has_language = heads.get(row, "ForSequenceClassification"), "lm" in row
    model = gpt.make_models(head, "small", True, lm_loss=row == "gpt-finetuning-lm")[gpt.OURS]
    lengths, layers, hidden = bert.lengths_of(batch), model.config.n_layer, model.config.n_embd
    masked = sum(n * (n - 1) // 2 for n in lengths)  # pairs of a query and a key after it
    unread = 2 * 2 * masked * hidden * (layers if has_language else layers - 1)
    if not has_language:  # queries of the last layer: one product makes them with the keys and values
        unread += 2 * (sum(lengths) - len(lengths)) * hidden * hidden
    if row == "gpt-lm":  # scores after the last tokens
        unread += 2 * len(lengths) * hidden * model.config.vocab_size
    counted = flop_of(model, batch, train=passes == 3)
    if row in ("gpt-finetuning-lm", "gpt-lm-text"):  # without logits, the loss fills the tokens up with rows of zeros
        assert 0.9 * counted < need_of(row) + passes * unread <= counted
    else:
        assert need_of(row) + passes * unread == counted


@pytest.mark.usefixtures("_known_limits")
def test_a_token_of_generation_reads_all_weights_but_the_table_of_positions():
    sizes = gpt.SIZES["tiny"]
    hidden, inner = sizes["n_embd"], 4 * sizes["n_embd"]
    attention = hidden * 3 * hidden + 3 * hidden + hidden * hidden + hidden
    feed_forward = hidden * inner + inner + inner * hidden + hidden
    weights = sizes["n_layer"] * (attention + feed_forward + 4 * hidden) + gpt.TINY_VOCABULARY * hidden
    _, build = ROWS["gpt-greedy"]
    for name, size in (("highest", 4), ("bf16", 2)):
        assert build(name, name, True, CPU).need.amount(0) == 4 * weights * size  # 4 tokens


@pytest.mark.parametrize("beams", [1, 3])
def test_the_need_of_generation_is_what_our_model_does_and_little_less(beams):
    """Ours computes the prompt once for each of its beams, and all of the scores that are masked in it."""
    model = gpt.make_models("LMHeadModel", "base", tiny=True)[gpt.OURS].eval()
    model.set_attn_implementation("eager")
    prompts = {name: each[:, -2:] for name, each in gpt.make_prompts(3, tiny=True).items()}  # without padding
    need = gpt.generation_flop(model.config, prompts, new_tokens=20, beams=beams)
    with precision.switches("portable"), FlopCounterMode(display=False) as counter:
        model.generate(**prompts, max_new_tokens=20, do_sample=False, num_beams=beams, eos_token_id=None)
    assert need < counter.get_total_flops() < 1.2 * need


def test_the_first_words_of_several_beams_need_no_more_than_that_of_one():
    prompts = gpt.make_prompts(3, tiny=True)
    config = gpt.make_models("LMHeadModel", "base", tiny=True)[gpt.OURS].config
    first, two = ([gpt.generation_flop(config, prompts, new, beams) for beams in (1, 4)] for new in (1, 2))
    assert first[1] == first[0] and two[1] - first[1] == 4 * (two[0] - first[0])


@pytest.mark.parametrize(("reads", "products", "limit"), [(3e8, 2e9, "reads"), (1e8, 2e9, "products")])
def test_generation_needs_what_takes_longer(reads, products, limit, monkeypatch):
    monkeypatch.setattr(limits, "matrix_peak", lambda device, dtype, setting: 1e9)
    monkeypatch.setattr(limits, "read_bandwidth", lambda device: 1e8)
    need = limits.tighter(CPU, "highest", reads, products)
    assert need.limit == limit and need.amount(0) == {"reads": reads, "products": products}[limit]


def make_elmo(model_class: type[PreTrainedModel], config: ElmoConfig) -> PreTrainedModel:
    """A model without random weights, which take longer to draw than to use."""
    with no_init_weights():
        model = model_class(config)
    for weight in model.parameters():
        weight.data.fill_(0.01)
    return model


def test_the_need_of_a_row_of_elmo_is_what_our_model_does_and_little_less():
    config = elmo.make_config("full", tiny=False)
    sentences = elmo.Text(tiny=False).sentences(2)
    with torch.inference_mode():
        counted = flop_of(make_elmo(ElmoModel, config), elmo.tokenize(sentences))
    assert elmo.flop(config, sentences) < counted < 1.05 * elmo.flop(config, sentences)


def test_the_need_of_pretraining_elmo_is_that_of_both_streams_and_their_sampled_words():
    config = elmo.make_config("small", tiny=False, lm_vocab_size=500, num_sampled=130)
    text = elmo.Text(tiny=False)
    streams = [text.sentences(16, 20) for _ in range(2)]
    ids = [elmo.tokenize(stream)["input_ids"] for stream in streams]
    labels = torch.randint(0, 500, (16, 20))
    batch = {"input_ids": ids[0], "labels": labels, "reverse_input_ids": ids[1], "reverse_labels": labels}
    need = elmo.PASSES * elmo.streams_flop(config, streams[0] + streams[1])
    counted = flop_of(make_elmo(ElmoForPreTraining, config), batch, train=True)
    assert need < counted < 1.05 * need


# The limits


@pytest.fixture
def _known_limits(monkeypatch):
    for module in ("benchmarks.__main__", "benchmarks.reporting", "benchmarks.limits"):
        monkeypatch.setattr(f"{module}.matrix_peak", lambda device, dtype, setting="highest": 1e9)
        monkeypatch.setattr(f"{module}.read_bandwidth", lambda device: 1e8)


@pytest.mark.usefixtures("_known_limits")
@pytest.mark.parametrize(("row", "limit", "most"), [("elmo-full", "products", 1e9), ("gpt-greedy", "reads", 1e8)])
def test_a_share_is_the_need_per_second_over_the_limit(row, limit, most):
    (result,) = main([row, "--size", "tiny", "--pairs", "1", "--settings", "fp32"])
    assert result.limit == limit
    for share, milliseconds in ((result.share, result.cpu_ms), (result.baseline_share, result.baseline_cpu_ms)):
        assert share == pytest.approx(need_of(row) / (milliseconds / 1000) / most)
    assert table_line(result)[9] == f"{100 * result.share:.0f} : {100 * result.baseline_share:.0f} {limit}"


def test_limits_are_measured_once_for_each_type_and_number_of_threads():
    for cached in (limits._matrix_peak, limits._read_bandwidth):
        cached.cache_clear()
    for _ in range(2):
        for threads in (1, 2):
            torch.set_num_threads(threads)
            assert limits.matrix_peak(CPU, torch.float32) > 0 < limits.matrix_peak(CPU, torch.bfloat16)
            assert limits.read_bandwidth(CPU) > 0
    assert (limits._matrix_peak.cache_info().misses, limits._read_bandwidth.cache_info().misses) == (4, 2)
    for cached in (limits._matrix_peak, limits._read_bandwidth):
        cached.cache_clear()


@pytest.mark.usefixtures("_known_limits")
def test_each_number_of_threads_has_a_table_of_its_own(tmp_path, capsys):
    file = tmp_path / "results.json"
    results = main(["small-pairs", "--size", "tiny", "--settings", "fp32", "--threads", "1", "2", "--json", str(file)])
    assert [result.threads for result in results] == [1, 2]
    written = json.loads(file.read_text())
    assert [limit["threads"] for limit in written["limits"]] == [1, 2]
    assert [result["share"] for result in written["results"]] == [result.share for result in results]
    heads = [line for line in capsys.readouterr().out.splitlines() if line.startswith("date ")]
    assert [f"threads {threads}, fp32 GFLOP/s 1, bf16 GFLOP/s 1, reads GB/s 0.1" in head for threads, head in
            enumerate(heads, 1)] == [True, True]  # fmt: skip


@pytest.mark.usefixtures("_known_limits")
def test_the_machine_is_described_with_its_instructions_for_short_numbers(monkeypatch):
    supported = {"_is_amx_tile_supported": True, "_is_avx512_bf16_supported": True, "_is_vnni_supported": False}
    for name, value in supported.items():
        monkeypatch.setattr(torch.cpu, name, lambda value=value: value)
    assert extensions() == ["AMX", "AVX512-bf16"]
    instructions = describe_machine()["instructions"]
    assert instructions == f"{torch.backends.cpu.get_cpu_capability()} AMX AVX512-bf16"


# On a GPU


def test_without_a_gpu_the_device_is_one_clear_error(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit):
        main(["--device", "cuda"])
    assert "--device cuda: torch finds no GPU here" in capsys.readouterr().err


def test_on_a_gpu_the_clock_is_that_on_the_wall_and_each_turn_ends_when_the_device_is_done(monkeypatch):
    events = []
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda device: events.append("done"))
    sides = [Side(name, lambda index, name=name: events.append(name), dict) for name in "AB"]
    need = Need("products", lambda index: 6.0)
    timing = measure.take_turns(Contest(*sides, "", 0, need, GPU), pairs=1, seconds=0.0)
    turns = ["done", "A", "done", "done", "B", "done"]
    assert events == 3 * turns, "A trial, then one turn of each side that loads kernels, and one that is timed."
    assert timing.rate == pytest.approx(6 / timing.wall_seconds)
    assert timing.baseline_rate == pytest.approx(6 / timing.baseline_wall_seconds)


@pytest.fixture
def measured(monkeypatch) -> list[tuple[str, str]]:
    """The rows and settings that are measured, where nothing is."""
    done = []
    monkeypatch.setattr(benchmarks.__main__, "measure", lambda *args: done.append(args[:2]) or argparse.Namespace())
    monkeypatch.setattr(benchmarks.__main__, "table_line", lambda result: [])
    for function in ("describe_machine", "describe_limits"):
        monkeypatch.setattr(benchmarks.__main__, function, lambda device: {"threads": 1})
    return done


def test_the_rows_of_a_gpu_come_first_there_and_elsewhere_only_by_name(measured):
    args = argparse.Namespace(rows=[], settings=None, quick=False, size="full", pairs=3)
    print_table(args, CPU, Report(None))
    assert {row for row, _ in measured} == set(ROWS) - set(gpu.ROWS)
    measured.clear()
    print_table(args, GPU, Report(None))
    assert [row for row, setting in measured if setting == "bf16"][: len(gpu.ORDER) + 1] == [*gpu.ORDER, "base-sst2"]
    assert {setting for row, setting in measured if row in gpu.ORDER} == {"bf16"}
    here = set(ROWS) - set(gpu.ROWS) - set(serving.CONVERTED)  # which are for the CPU
    assert {row for row, setting in measured if setting == "fp32"} == here >= {"serving-1", "serving-32"}


def test_a_quick_table_of_a_gpu_has_its_rows_only_and_compiles_last(measured):
    args = argparse.Namespace(rows=[], settings=None, quick=True, size="full", pairs=3)
    print_table(args, GPU, Report(None))
    assert [row for row, _ in measured] == gpu.ORDER and {*gpu.ORDER} == {*gpu.ROWS, *gpu.RUNS}
    compiled = [row for row in gpu.ORDER if "compiled" in row]
    assert gpu.ORDER[-len(compiled) :] == compiled and len(compiled) == 6
    # Two starts of a machine with an H200 took 34 and 42 seconds; the rest is for the limits of the GPU.
    assert 50 + sum(map(gpu.expected_seconds, gpu.ORDER)) <= QUICK_SECONDS == 400


@pytest.mark.parametrize(
    ("row", "mode"), [("gpu-base-sst2-compiled", "default"), ("gpu-base-sst2-graphs-compiled", "reduce-overhead")]
)
def test_layers_are_compiled_in_the_mode_of_their_row(row, mode, monkeypatch):
    modes = []
    monkeypatch.setattr(bert, "compile_layers", lambda model, mode: modes.append(mode))
    gpu.ROWS[row][1]("bf16", "bf16", True, CPU)
    assert modes == [mode]


@pytest.mark.parametrize(("row", "cache"), [("greedy", None), ("greedy-static-compiled", "static")])
def test_generation_has_the_cache_of_its_row_and_the_baseline_has_its_own(row, cache, monkeypatch):
    given = []
    monkeypatch.setattr(GenerationMixin, "generate", lambda self, **options: given.append(options))
    contest = gpu.ROWS[f"gpu-gpt-{row}"][1]("bf16", "bf16", True, CPU)
    for side in (contest.side, contest.baseline):
        side.run(0)
    assert [options.get("cache_implementation") for options in given] == [cache, None]


def test_a_quick_table_leaves_out_what_would_end_too_late_and_the_file_names_it(measured, tmp_path, capsys):
    late = time.monotonic() - QUICK_SECONDS + 20  # for 20 seconds more
    row = "gpu-base-mlm-128-both-compiled"
    argv = ["gpt-sst2", row, "--quick", "--size", "tiny", "--json", str(tmp_path / "quick.json")]
    main(argv, started=late)
    assert measured == [("gpt-sst2", "bf16")]
    assert f"unmeasured: {row}" in capsys.readouterr().out
    written = json.loads((tmp_path / "quick.json").read_text(encoding="utf-8"))
    assert len(written["results"]) == 1
    assert written["unmeasured"] == [row]


def test_a_row_of_a_quick_table_that_fails_is_recorded_and_the_next_begins(tmp_path, monkeypatch, capsys):
    """And the file has each row as soon as it is measured."""
    file, measure_row, seen = tmp_path / "quick.json", benchmarks.__main__.measure, []

    def measure_or_fail(row, *rest):
        seen.append(json.loads(file.read_text(encoding="utf-8")))
        if row == "gpu-attention-squad":
            raise torch.OutOfMemoryError("no room\nfor 3 GiB")
        if row == "gpu-run-fp16":
            raise subprocess.CalledProcessError(1, "run", stderr="a warning\nrun.py: error: no scaler\nErrors: 1")
        return measure_row(row, *rest)

    monkeypatch.setattr(benchmarks.__main__, "measure", measure_or_fail)
    rows = ["gpu-attention-sst2", "gpu-attention-squad", "gpu-12m", "gpu-run-fp16"]
    argv = [*rows, "--quick", "--size", "tiny", "--json", str(file)]
    with pytest.raises(SystemExit, match="2 rows failed: gpu-attention-squad, gpu-run-fp16"):
        main(argv)
    written = json.loads(file.read_text(encoding="utf-8"))
    assert [each["row"] for each in written["results"]] == ["gpu-attention-sst2", "gpu-12m"]
    reasons = [failure["reason"] for failure in written["failures"]]
    assert reasons == ["OutOfMemoryError: no room for 3 GiB", "CalledProcessError: run.py: error: no scaler"]
    assert "gpu-attention-squad FAILED: OutOfMemoryError" in capsys.readouterr().out
    assert [len(before["results"]) for before in seen] == [0, 1, 1, 2] and seen[0]["limits"]
    with pytest.raises(torch.OutOfMemoryError):  # of any other table
        main(["gpu-attention-squad", "--size", "tiny"])


def test_a_run_is_started_by_accelerate_and_its_line_has_what_it_measured(tmp_path, monkeypatch):
    """Without a GPU, it is the CPU's. A stand-in writes what the run was started with."""
    written = {"train_loss": 0.5, "eval_accuracy": 0.75}
    (tmp_path / "run_glue.py").write_text(
        "import json, os, sys; from pathlib import Path\n"
        f"values = {written} | {{'words': sys.argv[1:], 'world': os.environ.get('WORLD_SIZE')}}\n"
        "Path(sys.argv[-1], 'metrics.json').write_text(json.dumps(values))\n"
        f"Path({str(tmp_path)!r}, 'seen.json').write_text(json.dumps(values))\n"
    )
    monkeypatch.setattr(scripts, "ROOT", tmp_path)
    (result,) = main(["gpu-run-fp16", "--size", "tiny"])
    assert (result.train_loss, result.eval_accuracy) == (0.5, 0.75) and result.seconds > 0
    assert "train loss 0.500, dev accuracy 0.750" in table_line(result)[2]
    seen = json.loads((tmp_path / "seen.json").read_text(encoding="utf-8"))
    assert seen["world"] is None and seen["words"][-4:-1] == ["--mixed_precision", "fp16", "--output_dir"]
    for name, config in (("gpu-run-multi-gpu", "multi_gpu"), ("gpu-run-fsdp2", "fsdp2")):
        words = gpu.RUNS[name].launcher
        assert words[words.index("--config_file") + 1] == f"configs/accelerate/{config}.yaml"
        assert words[words.index("--num_processes") + 1] == "1"


def test_rows_of_one_size_share_what_is_drawn_and_train_copies_of_it(monkeypatch):
    drawn = []
    make_model = bert.make_model
    monkeypatch.setattr(
        bert, "make_model", lambda *args, **changes: drawn.append(args[0]) or make_model(*args, **changes)
    )
    size = {"hidden_size": 24}  # which no other test draws
    first = bert.make_models("ForMaskedLM", "small", True, dropout=0.0, **size)
    first[bert.OURS].bert.embeddings.word_embeddings.weight.data.zero_()
    second = bert.make_models("ForMaskedLM", "small", True, dropout=0.0, **size)
    assert drawn == [bert.OURS, bert.STOCK]
    for model in second.values():
        assert model.bert.embeddings.word_embeddings.weight.abs().sum() > 0
        assert model.get_output_embeddings().weight is model.get_input_embeddings().weight


def test_a_table_has_tokens_for_each_second_and_on_a_gpu_the_memory_that_a_run_adds(monkeypatch):
    def timed(work, device):
        work()
        return Seconds(cpu=2.0, wall=4.0)

    monkeypatch.setattr(measure, "timed", timed)
    (result,) = main(["gpu-base-pairs", "--size", "tiny", "--quick"])
    batches = bert.make_batches("pairs", True).batches
    tokens = [int(batches[pair % len(batches)]["attention_mask"].sum()) for pair in range(3)]
    rate = statistics.median(tokens) / 2.0
    assert result.items_per_second == result.baseline_items_per_second == rate and result.peak_mb is None
    assert header(CPU)[-1] == "per second" and table_line(result)[-1] == f"{rate:,.0f} : {rate:,.0f} tokens"
    held = {"now": 7 * 2**20, "peak": 9 * 2**20}
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: held["now"])
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: held.update(peak=held["now"]))
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: held["peak"])
    side = Side("A", lambda index: held.update(peak=12 * 2**20), dict)
    peak = benchmarks.__main__.peak_of(side, GPU)
    assert peak == 5
    result = dataclasses.replace(result, device="cuda", peak_mb=peak, baseline_peak_mb=6.0)
    result = dataclasses.replace(result, items_per_second=12345.0, baseline_items_per_second=678.0)
    assert table_line(result)[-2:] == ["5 : 6", "12,345 : 678 tokens"]
    assert len(table_line(result)) == len(header(GPU))


def test_the_first_ratio_of_a_table_is_that_of_the_devices_clock():
    (result,) = main(["small-pairs", "--size", "tiny", "--pairs", "1", "--settings", "fp32"])
    result = dataclasses.replace(result, cpu_ratio=2.0, wall_ratio=3.0)
    for device, first, second in ((CPU, "cpu", "wall"), (GPU, "wall", "cpu")):
        line = dict(zip(header(device), table_line(dataclasses.replace(result, device=device.type)), strict=True))
        names = ("CPU time ratio", "wall") if device == CPU else ("wall ratio", "CPU time")
        assert line[names[0]].startswith(f"**{getattr(result, f'{first}_ratio'):.2f}**")
        assert line[names[1]] == f"{getattr(result, f'{second}_ratio'):.2f}"


def test_inputs_are_moved_to_the_device():
    inputs = bert.make_masked_batches(True).to(torch.device("meta"))
    assert {values.device.type for batch in inputs.batches for values in batch.values()} == {"meta"}


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (main, ["base-sst2", "--size", "tiny"]),
        (squad.main, ["answers", "--size", "tiny"]),
    ],
)
def test_results_that_could_not_be_written_are_refused_before_anything_is_measured(command, words, tmp_path, capsys):
    for path in (tmp_path, tmp_path / "none" / "results.json"):
        with pytest.raises(SystemExit):
            command([*words, "--json", str(path)])
        shown = capsys.readouterr()
        assert f"--json: {path} must be a file in a folder that exists" in shown.err and not shown.out


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("side", [bert.OURS, bert.STOCK])
def test_the_memory_of_a_row_with_checkpointing_is_measured_with_it(side, checkpointing, monkeypatch):
    measured = []
    monkeypatch.setattr(bert, "make_step", lambda model, *_: measured.append(model) or (lambda index: None))
    setup = bert.Setup(checkpointing=checkpointing)
    bert.two_steps(side, "ForMaskedLM", bert.make_masked_batches, setup, "fp32", True, CPU)
    assert [model.is_gradient_checkpointing for model in measured] == [checkpointing]
