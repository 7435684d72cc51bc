"""The script run_pretraining.py: from raw text to a model, each objective, stopped and resumed at any moment."""

import json
import math
import os
import re
import shutil
import signal
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from safetensors.torch import load_file
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForPreTraining,
    AutoTokenizer,
    ByT5Tokenizer,
    LlamaConfig,
)

import run_blimp
import run_glue
import run_pretraining
from elmo_gpt_bert.tasks.pretraining.corpus import Corpus
from elmo_gpt_bert.training import log, loop
from elmo_gpt_bert.training.flags import parse_arguments
from elmo_gpt_bert.training.loading import positions
from elmo_gpt_bert.training.task import Description
from modeling import ElmoConfig, ElmoForPreTraining, ElmoModel, ElmoTokenizer
from tests.support.elmo_reference import small_model
from tests.support.glue_sample import write_task
from tests.support.pretraining_sample import MODELS, flags, write_text
from tests.support.processes import fork, wait
from tests.tasks.test_pretraining_streams import word_corpus


HEADS = {
    "masked_lm": AutoModelForMaskedLM,
    "next_sentence": AutoModelForPreTraining,
    "causal_lm": AutoModelForCausalLM,
    "bilm": AutoModelForPreTraining,
}
WITHOUT_DROPOUT = {
    "masked_lm": {"hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0},
    "next_sentence": {"hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0},
    "causal_lm": {"embd_pdrop": 0, "attn_pdrop": 0, "resid_pdrop": 0},
    "bilm": {"hidden_dropout_prob": 0},
}


@pytest.fixture(autouse=True)
def _no_curves(monkeypatch):
    """Drawing takes longer than these runs do: only the first model of `trained`, which is made before, is drawn."""
    monkeypatch.setattr(log, "draw_curves", lambda *_: False)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def assert_same_bits(folder: Path, other: Path) -> None:
    ours, theirs = weights(folder), weights(other)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def read_log(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


# From raw text to a model


@pytest.fixture(scope="module", params=MODELS)
def trained(request, tmp_path_factory) -> tuple[str, Path, dict[str, float]]:
    """A kind of model, the folder of a run that has trained it, and the run's metrics."""
    kind, folder = request.param, tmp_path_factory.mktemp(request.param)
    argv = [*flags(folder, kind), "--max_steps", "20", "--eval_steps", "10", "--logging_steps", "5"]
    with pytest.MonkeyPatch.context() as patch:
        if kind != "masked_lm":
            patch.setattr(log, "draw_curves", lambda records, path: path.write_text("\n".join(map(str, records))))
        return kind, folder, run_pretraining.main([*argv, "--output_dir", str(folder / "out")])


def test_a_line_of_the_log_has_the_losses_that_its_loss_is_made_of(trained):
    kind, folder, _ = trained
    parts = {"next_sentence": ["masked_lm", "next_sentence"], "bilm": ["forward", "backward"]}.get(kind, [])
    for line in [line for line in read_log(folder / "out") if "train_loss" in line]:
        losses = {name: value for name, value in line.items() if re.fullmatch("train_.+_loss", name)}
        assert list(losses) == [f"train_{name}_loss" for name in parts]
        if parts:  # the words of a row that are masked vary in number, so that the sum does not weigh as the parts do
            total = sum(losses.values()) / (2 if kind == "bilm" else 1)
            assert line["train_loss"] == pytest.approx(total, rel=1e-5 if kind == "bilm" else 0.01)


def test_each_objective_learns_from_raw_text_and_its_model_loads(trained):
    kind, folder, metrics = trained
    assert metrics["train_updates"] == 20 and metrics["eval_bits_per_byte"] > 0
    lines = read_log(folder / "out")
    assert [line["update"] for line in lines if "train_loss" in line] == [5, 10, 15, 20]
    first, last = (line["eval_perplexity"] for line in lines if "eval_perplexity" in line)
    assert last < first and last == metrics["eval_perplexity"]
    assert {"learning_rate", "grad_norm", "tokens_per_second"} <= lines[0].keys()
    if kind == "masked_lm":
        assert (folder / "out" / "curves.png").stat().st_size > 10_000
    else:
        assert (folder / "out" / "curves.png").read_text().splitlines() == [str(line) for line in lines]
    model, info = HEADS[kind].from_pretrained(folder / "out", output_loading_info=True)
    assert not any(info[problem] for problem in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert not any(torch.isnan(value).any() for value in model.state_dict().values())
    tokenizer = AutoTokenizer.from_pretrained(folder / "out")
    vectors = AutoModel.from_pretrained(folder / "out")(**tokenizer("the boat", return_tensors="pt"))
    assert vectors.last_hidden_state.isfinite().all()
    assert kind != "bilm" or model.elmo.initial_hidden.abs().max() > 0  # a warm state, of a training stream
    assert tokenizer.model_max_length == positions(model) or positions(model) is None


def test_a_trained_model_goes_on_with_other_text(trained, tmp_path):
    kind, folder, metrics = trained
    argv = [*flags(tmp_path, kind), "--model_name_or_path", str(folder / "out"), "--max_steps", "1"]
    argv += ["--train_file", str(write_text(tmp_path, "other.txt", seed=5)), "--learning_rate", "0"]
    again = run_pretraining.main([*argv, "--output_dir", str(tmp_path / "out")])
    difference = 1e-2 if kind == "bilm" else 1e-5  # a biLM begins to read where a stream of the training is
    assert again["eval_loss"] == pytest.approx(metrics["eval_loss"], abs=difference)


@pytest.mark.slow
def test_two_processes_evaluate_as_one(trained, tmp_path, monkeypatch):
    kind, folder, _ = trained
    argv = [*flags(tmp_path, kind), "--model_name_or_path", str(folder / "out"), "--do_train", "false"]
    monkeypatch.setattr(run_pretraining, "HELD_OUT_ROWS", 3)  # of a biLM, in all processes together
    monkeypatch.setattr(run_pretraining, "MOST_LEFT_OUT", 1)
    rows, sizes = (3, [[], []]) if kind == "bilm" else (6, [["--per_device_eval_batch_size", size] for size in "63"])
    argv += ["--max_eval_samples", str(rows + 1), "--output_dir"]  # of the last batch, the second process has none
    one = run_pretraining.main([*argv, str(tmp_path / "one"), *sizes[0]])
    two = [*argv, str(tmp_path / "two"), *sizes[1]]
    assert wait(fork(partial(run_pretraining.main, two), 2)) == [0, 0]
    metrics = json.loads((tmp_path / "two" / "metrics.json").read_text())
    for name in ("eval_loss", "eval_perplexity", "eval_bits_per_byte"):
        assert metrics[name] == pytest.approx(one[name], rel=1e-5)


@pytest.mark.slow
def test_two_processes_evaluate_a_bilm_in_training_as_one(tmp_path):
    argv = [*flags(tmp_path, "bilm", **WITHOUT_DROPOUT["bilm"]), "--max_steps", "4", "--max_grad_norm", "1"]
    argv += ["--save_strategy", "no", "--output_dir"]
    one = run_pretraining.main([*argv, str(tmp_path / "one")])
    two = [*argv, str(tmp_path / "two"), "--per_device_train_batch_size", "2"]
    assert wait(fork(partial(run_pretraining.main, two), 2)) == [0, 0]
    metrics = json.loads((tmp_path / "two" / "metrics.json").read_text())
    assert metrics["eval_loss"] == pytest.approx(one["eval_loss"], rel=2e-6)


def test_a_trained_model_is_scored_on_pairs_and_fine_tuned(trained, tmp_path):
    _, folder, _ = trained
    model = ["--model_name_or_path", str(folder / "out"), "--output_dir"]
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text('{"sentence_good": "The old man saw a boat.", "sentence_bad": "The saw old man boat a."}\n')
    assert run_blimp.main([*model, str(tmp_path / "pairs"), "--data_file", str(pairs)])["eval_accuracy"] in (0, 1)
    write_task(tmp_path, "SST-2")
    task = ["--task_name", "sst2", "--data_dir", str(tmp_path), "--max_seq_length", "20", "--max_steps", "1"]
    metrics = run_glue.main([*model, str(tmp_path / "sst2"), *task, "--do_train", "--do_eval"])
    assert 0 <= metrics["eval_accuracy"] <= 1


def test_a_bert_that_is_a_decoder_learns_from_left_to_right(tmp_path):
    argv = [*flags(tmp_path, "masked_lm", is_decoder=True), "--max_steps", "6", "--output_dir", str(tmp_path / "out")]
    metrics = run_pretraining.main(argv)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    assert type(model).__name__ == "ZooBertLMHeadModel" and metrics["eval_perplexity"] > 1
    tokens = torch.tensor([[7, 8, 9, 10]])
    changed = torch.tensor([[7, 8, 9, 11]])
    torch.testing.assert_close(model(tokens).logits[:, :3], model(changed).logits[:, :3])


# Stopped and resumed


def killed_at(update: int, argv: list[str]) -> None:
    """A run that is killed after an update."""
    original = loop._Training.between_updates

    def between_updates(self):
        original(self)
        if self.progress.update == update:
            os.kill(os.getpid(), signal.SIGKILL)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop._Training, "between_updates", between_updates)
        assert wait(fork(partial(run_pretraining.main, argv))) == [-signal.SIGKILL]


@pytest.mark.slow
@pytest.mark.parametrize("kind", MODELS)
def test_a_run_killed_twice_across_an_epoch_ends_with_the_same_bits(kind, tmp_path, capfd):
    argv = [*flags(tmp_path, kind), "--max_steps", "12", "--save_strategy", "steps", "--do_eval", "false"]
    argv += ["--logging_steps", "3"]
    write_text(tmp_path, documents=6)
    run_pretraining.main([*argv, "--save_steps", "12", "--output_dir", str(tmp_path / "whole")])
    assert re.search(r"epoch \d/[2-9]: train_loss", capfd.readouterr().out)
    argv += ["--save_steps", "3", "--output_dir", str(tmp_path / "out"), "--resume"]
    killed_at(4, argv)
    killed_at(11, argv)
    run_pretraining.main(argv)
    assert_same_bits(tmp_path / "out", tmp_path / "whole")
    ours, theirs = ([line["train_loss"] for line in read_log(tmp_path / name)] for name in ("out", "whole"))
    assert len(ours) == 4 and ours == theirs


@pytest.mark.slow
@pytest.mark.parametrize("kind", MODELS)
def test_a_run_goes_on_with_two_one_and_two_processes_over_the_end_of_an_epoch(kind, tmp_path, capfd):
    argv = [*flags(tmp_path, kind, **WITHOUT_DROPOUT[kind]), "--do_eval", "false"]
    argv += [] if kind == "bilm" else ["--adam_epsilon", "1e-3"]
    argv += ["--save_strategy", "steps", "--save_steps", "2", "--lr_scheduler_type", "constant"]
    write_text(tmp_path, documents=2)
    run_pretraining.main([*argv, "--max_steps", "6", "--output_dir", str(tmp_path / "one")])
    assert re.search(r"epoch \d/[2-9]: train_loss", capfd.readouterr().out)
    argv += ["--output_dir", str(tmp_path / "out")]
    two = [*argv, "--per_device_train_batch_size", "2", "--resume", "--max_steps"]
    assert wait(fork(partial(run_pretraining.main, [*two, "2"]), 2)) == [0, 0]
    accumulated = [*argv, "--per_device_train_batch_size", "1", "--gradient_accumulation_steps", "4"]
    run_pretraining.main([*accumulated, "--max_steps", "4", "--resume"])
    assert wait(fork(partial(run_pretraining.main, [*two, "6"]), 2)) == [0, 0]
    torch.testing.assert_close(weights(tmp_path / "out"), weights(tmp_path / "one"), rtol=0, atol=2e-5)


def test_workers_change_nothing(tmp_path):
    argv = [*flags(tmp_path, "masked_lm"), "--max_steps", "9", "--do_eval", "false"]
    run_pretraining.main([*argv, "--output_dir", str(tmp_path / "alone")])
    run_pretraining.main([*argv, "--output_dir", str(tmp_path / "helped"), "--dataloader_num_workers", "2"])
    assert_same_bits(tmp_path / "alone", tmp_path / "helped")


def test_another_number_of_samples_or_a_corpus_that_changed_is_another_run(tmp_path):
    argv = [*flags(tmp_path, "causal_lm"), "--max_steps", "4", "--output_dir", str(tmp_path / "out")]
    run_pretraining.main(argv)
    with pytest.raises(ValueError, match=r"samples of an update 4, not 8 \(.*\): --resume continues the same run"):
        run_pretraining.main([*argv, "--resume", "--gradient_accumulation_steps", "2"])
    write_text(tmp_path, seed=3)
    with pytest.raises(ValueError, match="was prepared from another text, .*choose another --corpus_dir"):
        run_pretraining.main([*argv, "--resume"])
    shutil.rmtree(tmp_path / "corpus-causal_lm")
    with pytest.raises(ValueError, match="is of a run with training data"):
        run_pretraining.main([*argv, "--resume"])


# The length of a run


def test_the_last_part_of_the_updates_has_longer_rows(tmp_path, monkeypatch):
    lengths = []
    compute = run_pretraining.MaskedLM.compute

    def recorded(self, model, batch, options):
        lengths.append(batch["input_ids"].shape[1])
        return compute(self, model, batch, options)

    monkeypatch.setattr(run_pretraining.MaskedLM, "compute", recorded)
    argv = [*flags(tmp_path, "masked_lm"), "--max_steps", "20", "--final_seq_length", "31", "--do_eval", "false"]
    run_pretraining.main([*argv, "--output_dir", str(tmp_path / "out"), "--pad_to_max_length"])
    assert lengths == [18] * 18 + [31] * 2
    lengths.clear()
    argv[argv.index("20")] = "4"  # of which a tenth is less than half an update
    run_pretraining.main([*argv, "--output_dir", str(tmp_path / "short"), "--pad_to_max_length"])
    assert lengths == [18] * 3 + [31]


@pytest.mark.slow
def test_a_run_goes_on_to_another_length_if_its_longer_rows_have_not_begun(tmp_path):
    argv = [*flags(tmp_path, "masked_lm"), "--final_seq_length", "31", "--final_share", "0.25", "--do_eval", "false"]
    argv += ["--lr_scheduler_type", "warmup_stable_decay", "--save_strategy", "steps", "--save_steps", "7"]
    run_pretraining.main([*argv, "--max_steps", "12", "--output_dir", str(tmp_path / "out")])
    shutil.rmtree(tmp_path / "out" / "checkpoint-12")
    with pytest.raises(
        ValueError,
        match="max_steps 12, not 8, and both do the same only up to update 6: resume from a checkpoint up to there",
    ):
        run_pretraining.main([*argv, "--max_steps", "8", "--output_dir", str(tmp_path / "out"), "--resume"])
    run_pretraining.main([*argv, "--max_steps", "16", "--output_dir", str(tmp_path / "out"), "--resume"])
    run_pretraining.main([*argv, "--max_steps", "16", "--output_dir", str(tmp_path / "whole")])
    assert_same_bits(tmp_path / "out", tmp_path / "whole")


def test_a_damaged_log_is_one_error_before_the_training(tmp_path):
    argv = [*flags(tmp_path, "causal_lm"), "--max_steps", "1", "--output_dir", str(tmp_path / "out"), "--resume"]
    (tmp_path / "out").mkdir()
    for content in (b"\0\0\0\n", b"[1]\n", b'{"loss": 1}\n', b"\xff\n"):
        (tmp_path / "out" / "log.jsonl").write_bytes(content)
        with pytest.raises(OSError, match="log.jsonl is damaged .*: remove it, or restore it from a copy"):
            run_pretraining.main(argv)
    assert not list((tmp_path / "out").glob("checkpoint-*"))


def test_curves_that_cannot_be_drawn_cost_no_model(tmp_path, monkeypatch):
    argv = [*flags(tmp_path, "causal_lm"), "--max_steps", "1", "--do_eval", "false"]
    argv += ["--output_dir", str(tmp_path / "out")]
    drawn = []
    monkeypatch.setattr(log, "draw_curves", lambda records, path: path.joinpath("x").touch())
    with pytest.raises(OSError):
        run_pretraining.main(argv)
    assert (tmp_path / "out" / "model.safetensors").is_file() and (tmp_path / "out" / "metrics.json").is_file()
    monkeypatch.setattr(log, "draw_curves", lambda records, path: drawn.extend(records))
    run_pretraining.main([*argv, "--resume"])
    assert [record["update"] for record in drawn] == [1]


# Held-out text


def test_the_perplexity_is_that_of_the_held_out_text(tmp_path):
    argv = [*flags(tmp_path, "causal_lm"), "--max_steps", "5", "--output_dir", str(tmp_path / "out")]
    metrics = run_pretraining.main([*argv, "--per_device_eval_batch_size", "3"])
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    text = (tmp_path / "held_out.txt").read_text()
    documents = [tokenizer(" ".join(each.split()), add_special_tokens=False).input_ids for each in text.split("\n\n")]
    tokens = [token for document in documents for token in document]
    begins = set(np.cumsum([0, *map(len, documents)]).tolist())
    total = count = 0
    for start in range(0, len(tokens), 13):
        row = tokens[start : start + 13]
        pieces = sorted({0, len(row)} | {begin - start for begin in begins if start < begin < start + len(row)})
        for begin, end in zip(pieces, pieces[1:], strict=False):
            logits = model(torch.tensor([row[begin:end]])).logits[0].log_softmax(-1)
            for place in range(start + begin, start + end):
                if place + 1 < len(tokens) and place + 1 not in begins:
                    total -= logits[place - start - begin, tokens[place + 1]].item()
                    count += 1
    assert metrics["eval_perplexity"] == pytest.approx(math.exp(total / count), rel=1e-5)
    size = sum(len(" ".join(each.split()).encode()) for each in text.split("\n\n"))
    bits = total / count * len(tokens) / math.log(2)  # a document's first token counts as much as the mean
    assert metrics["eval_bits_per_byte"] == pytest.approx(bits / size, rel=1e-5)


@pytest.mark.parametrize("implementation", ["zoo", "transformers"])
def test_a_model_that_reads_a_row_as_one_text_is_scored_so_and_the_run_says_it(tmp_path, capsys, implementation):
    argv = [*flags(tmp_path, "causal_lm"), "--max_steps", "2", "--implementation", implementation]
    metrics = run_pretraining.main([*argv, "--learning_rate", "0.1", "--output_dir", str(tmp_path / "out")])
    is_stock = implementation == "transformers"
    assert ("OpenAIGPTLMHeadModel reads the documents of a row as one text" in capsys.readouterr().out) == is_stock
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    text = (tmp_path / "held_out.txt").read_text().split("\n\n")
    documents = [tokenizer(" ".join(each.split()), add_special_tokens=False).input_ids for each in text]
    tokens = torch.tensor([token for document in documents for token in document])
    begins = {*np.cumsum([0, *map(len, documents)]).tolist()}
    losses = []
    for start in range(0, len(tokens), 13):
        scores = model(tokens[start : start + 13].unsqueeze(0)).logits[0].log_softmax(-1)
        stop = min(start + 14, len(tokens))
        losses += [-scores[at - 1 - start, tokens[at]].item() for at in range(start + 1, stop) if at not in begins]
    assert (metrics["eval_perplexity"] == pytest.approx(np.exp(np.mean(losses)), rel=1e-4)) == is_stock


@pytest.mark.parametrize(("words", "most_rows"), [(30, 1), (1279, 2), (40_000, 32)])
def test_nearly_all_of_a_bilms_held_out_text_is_read(tmp_path, words, most_rows):
    corpus = word_corpus(tmp_path, [[[3, 4, 5, 6]] * (words // 5)], split="validation")
    argv = [*flags(tmp_path, "bilm"), "--output_dir", "o"]
    args = parse_arguments(run_pretraining.PretrainingArguments, argv)
    objective = run_pretraining.build_objective("bilm", corpus, 20, None, small_model(), ElmoTokenizer(), args)
    assert objective.rows == most_rows
    read = objective.size * objective.length
    assert 0.95 * words <= read <= words or words - read < 20


def test_the_perplexity_of_a_bilm_does_not_depend_on_the_memory_of_a_machine(tmp_path):
    argv = [*flags(tmp_path, "bilm"), "--output_dir", str(tmp_path / "out"), "--per_device_eval_batch_size", "8"]
    with pytest.raises(ValueError, match="--per_device_eval_batch_size 8 has no effect: .* 32 rows at most: leave it"):
        run_pretraining.main(argv)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["masked_lm", "bilm"])
def test_a_run_that_does_not_evaluate_trains_on_the_same_text_where_the_held_out_file_is_missing(tmp_path, kind):
    argv = [*flags(tmp_path, kind), "--max_steps", "1", "--output_dir", str(tmp_path / "out")]
    run_pretraining.main([*argv, "--do_eval", "false"])
    (tmp_path / "held_out.txt").unlink()
    argv += ["--overwrite_output_dir"]
    run_pretraining.main([*argv, "--do_eval", "false"])  # the corpus is there
    for changes in ([], ["--do_eval", "false"]):
        command = [*argv, *changes, "--corpus_dir", str(tmp_path / "corpus")]
        if changes:
            assert run_pretraining.main(command).keys().isdisjoint({"eval_loss", "eval_perplexity"})
        else:
            with pytest.raises(FileNotFoundError, match="held_out.txt'?: no such file"):
                run_pretraining.main(command)
    corpora = [Corpus.open(tmp_path / name, "train") for name in (f"corpus-{kind}", "corpus")]
    tokens = [corpus.read(0, corpus.num_tokens) for corpus in corpora]
    assert np.array_equal(*tokens)


def test_runs_with_different_seeds_are_measured_on_the_same_masks_and_pairs(tmp_path):
    argv = [*flags(tmp_path, "next_sentence"), "--max_steps", "1", "--learning_rate", "0", "--output_dir"]
    run_pretraining.main([*argv, str(tmp_path / "model"), "--do_eval", "false"])
    argv += [str(tmp_path / "out"), "--model_name_or_path", str(tmp_path / "model"), "--overwrite_output_dir"]
    losses = [run_pretraining.main([*argv, "--seed", seed])["eval_loss"] for seed in ("42", "43")]
    assert losses[0] == losses[1]


def test_a_loss_that_is_not_finite_is_no_perplexity(tmp_path, monkeypatch):
    def diverged(self, model, batch, options):
        return compute(self, model, batch, options) * (1 if model.training else math.nan)

    compute = run_pretraining.CausalLM.compute
    monkeypatch.setattr(run_pretraining.CausalLM, "compute", diverged)
    argv = [*flags(tmp_path, "causal_lm"), "--max_steps", "1", "--output_dir", str(tmp_path / "out")]
    with pytest.raises(FloatingPointError, match="the loss on held-out text is not finite, at update 1"):
        run_pretraining.main(argv)


# Mistakes


@pytest.mark.parametrize(
    ("flag", "value"), [("load_best_model_at_end", "true"), ("early_stopping_patience", "2"), ("do_train", "false")]
)
def test_what_needs_held_out_text_is_refused_without_it_before_the_training(tmp_path, flag, value):
    argv = [*flags(tmp_path, "causal_lm"), "--max_steps", "1", "--output_dir", str(tmp_path / "out")]
    place = argv.index("--validation_file")
    argv[place : place + 2] = ["--validation_split_percentage", "0"]
    with pytest.raises(ValueError, match=f"--{flag}.* needs held-out text, and no document is held out"):
        run_pretraining.main([*argv, f"--{flag}", value])


@pytest.mark.parametrize("more", [["--batch_ramp_steps", "3"], ["--final_seq_length", "5", "--max_steps", "9"]])
def test_rows_of_a_bilm_do_not_change_while_they_continue(more, tmp_path):
    argv = [*flags(tmp_path, "bilm"), "--output_dir", str(tmp_path / "out"), *more]
    with pytest.raises(ValueError, match="of a biLM continues.*leave out --batch_ramp_steps and --final_seq_length$"):
        run_pretraining.main(argv)
    assert not (tmp_path / "corpus-bilm").exists()


def test_a_tokenizer_that_knows_no_case_is_not_made_with_one(tmp_path):
    argv = [*flags(tmp_path, "causal_lm"), "--output_dir", str(tmp_path / "out"), "--max_steps", "1"]
    with pytest.raises(ValueError, match="--do_lower_case false: ZooGPTTokenizer always converts text to lower case"):
        run_pretraining.main([*argv, "--do_lower_case", "false"])
    assert not (tmp_path / "corpus-causal_lm").exists()


def test_a_vocabulary_that_the_bilm_has_no_room_for_is_one_line_before_the_work(tmp_path):
    argv = [*flags(tmp_path, "bilm", lm_vocab_size=4), "--output_dir", str(tmp_path / "out"), "--max_steps", "1"]
    (tmp_path / "vocab.txt").write_text("<S>\n</S>\n<UNK>\nthe\nboat\n")
    ElmoTokenizer(str(tmp_path / "vocab.txt"), max_characters_per_token=12).save_pretrained(tmp_path / "words")
    problem = "has 5 words, the model .*bilm.json only 4: .* --config_overrides lm_vocab_size=5"
    with pytest.raises(ValueError, match=problem):
        run_pretraining.main([*argv, "--tokenizer_name", str(tmp_path / "words")])
    assert not (tmp_path / "corpus-bilm").exists()


def test_a_trained_bilm_keeps_its_words(tmp_path):
    argv = [*flags(tmp_path, "bilm"), "--max_steps", "1"]
    out, words, corpus = (str(tmp_path / name) for name in ("out", "words", "other"))
    run_pretraining.main([*argv, "--output_dir", out])
    (tmp_path / "vocab.txt").write_text("<S>\n</S>\n<UNK>\nthe\nboat\n")
    ElmoTokenizer(str(tmp_path / "vocab.txt"), max_characters_per_token=12).save_pretrained(words)
    again = [*argv, "--model_name_or_path", out, "--output_dir", str(tmp_path / "again"), "--corpus_dir", corpus]
    problem = "words has other words than the softmax of .*out: leave it out, or begin with a configuration"
    with pytest.raises(ValueError, match=problem):
        run_pretraining.main([*again, "--tokenizer_name", words])
    assert not Path(corpus).exists()
    run_pretraining.main([*again, "--tokenizer_name", out])


def test_a_trained_bilm_without_a_softmax_gets_one(tmp_path, capsys):
    argv = [*flags(tmp_path, "bilm"), "--max_steps", "1"]
    bilm, out = tmp_path / "bilm", tmp_path / "out"
    ElmoModel(ElmoConfig.from_pretrained(argv[1])).save_pretrained(bilm)
    ElmoTokenizer(max_characters_per_token=12).save_pretrained(bilm)
    run_pretraining.main([*argv, "--model_name_or_path", str(bilm), "--output_dir", str(out)])
    assert "newly initialised, not in " in capsys.readouterr().out
    softmax = ElmoForPreTraining.from_pretrained(out).lm_head
    assert len(softmax.weight) == len(ElmoTokenizer.from_pretrained(out).targets) > 3


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        (["--do_predict"], "unknown argument --do_predict; --help lists all flags"),
        (["--final_seq_length", "31"], "give their number, --max_steps"),
        (["--final_share", "0.5"], "--final_share 0.5 has no effect with --final_seq_length None"),
        (["--final_share", "0"], "--final_share 0.0 has no effect with --final_seq_length None: leave it out, or"),
        (
            ["--final_share", "0", "--final_seq_length", "31", "--max_steps", "9"],
            "--final_share 0 leaves no update for --final_seq_length: leave both out or, where a recipe has them, "
            "give --final_seq_length the length of --max_seq_length",
        ),
        (
            ["--config_overrides", "is_decoder=true", "--whole_word_mask"],
            "--whole_word_mask True is of a masked_lm, but this model learns causal_lm: leave it out",
        ),
        (["--mask_share", "0.8", "--random_share", "0.3"], "--mask_share and --random_share are 0.8 and 0.3"),
        (["--dataset_name", "some/text"], "--dataset_name some/text has no effect with --train_file"),
        (["--tokenizer_name", "words"], "ZooBertConfig does not read the tokens of ElmoTokenizer"),
        (["--objective", "causal_lm"], "sees the next words: add --config_overrides is_decoder=true"),
        (["--objective", "bilm"], "--objective bilm: ZooBertConfig learns masked_lm or causal_lm"),
        (["--max_seq_length", "41"], "--max_seq_length 41 is more than the model's 40 positions"),
        (
            ["--validation_split_percentage", "0"],
            "--validation_file is the held-out text: leave out --validation_split",
        ),
        (["--train_file", "nowhere/*.txt"], "--train_file nowhere/.*: no file matches this pattern"),
        (["--model_name_or_path", "vit.json"], "^ViTConfig has no head for a language model: choose another model$"),
        (
            ["--model_name_or_path", "llama.json", "--preprocessing_num_workers", "1"],
            "^no tokenizer class belongs to LlamaConfig: give --tokenizer_name$",
        ),
    ],
)
def test_a_mistake_is_one_line_before_the_work(tmp_path, monkeypatch, capsys, more, problem):
    monkeypatch.chdir(tmp_path)
    ElmoTokenizer().save_pretrained("words")
    for kind in ("vit", "llama"):
        Path(f"{kind}.json").write_text(json.dumps({"model_type": kind}), encoding="utf-8")
    with pytest.raises((SystemExit, ValueError, OSError)) as error:
        run_pretraining.main([*flags(tmp_path, "masked_lm"), "--output_dir", str(tmp_path / "out"), *more])
    message = capsys.readouterr().err if error.type is SystemExit else str(error.value)
    assert len(message.strip().splitlines()) == 1
    assert re.search(problem, message)


def test_the_card_names_a_data_set_of_the_hub(tmp_path):
    argv = ["--model_name_or_path", "gpt.json", "--output_dir", "out", "--dataset_name", "a/b"]
    args = parse_arguments(run_pretraining.PretrainingArguments, [*argv, "--dataset_config_name", "small"])
    assert run_pretraining.describe_data("causal_lm", args) == Description("text-generation", "a/b", "a/b", "small")
    args = parse_arguments(run_pretraining.PretrainingArguments, [*argv, "--validation_file", "mine.txt"])
    assert run_pretraining.describe_data("causal_lm", args) == Description("text-generation", trained_on="a/b")


def test_a_model_without_a_tokenizer_class_of_its_own_takes_one_that_is_named(tmp_path):
    ByT5Tokenizer().save_pretrained(tmp_path / "bytes")
    words = [*flags(tmp_path, "causal_lm"), "--output_dir", "out", "--tokenizer_name", str(tmp_path / "bytes")]
    args, config = parse_arguments(run_pretraining.PretrainingArguments, words), LlamaConfig(vocab_size=384)
    assert run_pretraining.choose_objective(config, args) == "causal_lm"
    text = run_pretraining.prepare_text(tmp_path / "corpus", config, args, Accelerator(cpu=True))
    assert isinstance(text.tokenizer, ByT5Tokenizer) and text.train.vocab_size == 384
    read = text.train.read(0, text.train.documents[0])
    assert text.tokenizer.decode(read).split() == (tmp_path / "text.txt").read_text().partition("\n\n")[0].split()


# Learning


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "updates", "batch", "copies", "rate"),  # an update has at most as many rows as the text
    [("masked_lm", "150", "12", 10, "0.015"), ("causal_lm", "60", "4", 1, "0.02")],
)
def test_a_model_learns_a_page_by_heart(kind, updates, batch, copies, rate, tmp_path):
    changes = {"hidden_size": 24} if kind == "masked_lm" else {"n_embd": 24}
    argv = [*flags(tmp_path, kind, **WITHOUT_DROPOUT[kind], **changes), "--max_steps", updates, "--do_eval", "false"]
    argv += ["--learning_rate", rate, "--per_device_train_batch_size", batch]
    page = write_text(tmp_path, "page.txt", 1)
    page.write_text(copies * (page.read_text() + "\n"))
    argv += ["--train_file", str(page), "--save_strategy", "no", "--warmup_steps", "20"]
    run_pretraining.main([*argv, "--logging_steps", "20", "--output_dir", str(tmp_path / "out")])
    losses = [line["train_loss"] for line in read_log(tmp_path / "out")]
    assert losses[0] > 2 and losses[-1] < {"causal_lm": 0.2, "masked_lm": 0.6}[kind]  # some masks hide too much
