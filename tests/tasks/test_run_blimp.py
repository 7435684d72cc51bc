"""Whole runs of the script on minimal pairs: what is counted, what a run writes, which flags it has."""

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from accelerate.state import AcceleratorState
from huggingface_hub import ModelCard

import run_blimp
from elmo_gpt_bert.training.arguments import RunArguments, public_arguments
from elmo_gpt_bert.training.errors import UserError
from elmo_gpt_bert.training.flags import parse_arguments
from elmo_gpt_bert.training.results import read_record, read_results, scores_of, types_of
from tests.support.pairs_sample import PAIRS, write_bert, write_bilm, write_gpt, write_gpt2, write_pairs
from tests.support.processes import fork, wait


@pytest.fixture
def flags(tmp_path) -> list[str]:
    """A run on the tiny GPT and the sample of pairs."""
    pairs = ["--data_file", str(write_pairs(tmp_path / "pairs.jsonl"))]
    return ["--model_name_or_path", str(write_gpt(tmp_path)), *pairs, "--output_dir", str(tmp_path / "out")]


def predictions(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "predictions.jsonl").read_text(encoding="utf-8").splitlines()]


def accuracy(pairs: list[dict], direction: str = "") -> float:
    good, bad = (np.array([pair[f"{direction}{side}"] for pair in pairs]) for side in ("good", "bad"))
    return float(((good > bad) + (good == bad) / 2).mean())


@pytest.mark.parametrize("write", [write_gpt, write_bert, write_bilm, write_gpt2], ids=lambda write: write.__name__)
def test_a_pair_counts_if_the_good_sentence_is_more_probable_and_half_if_both_are_equal(write, flags, tmp_path):
    results = run_blimp.main([*flags, "--model_name_or_path", str(write(tmp_path))])
    scored = predictions(tmp_path / "out")
    assert [pair["UID"] for pair in scored] == [pair[2] for pair in PAIRS]
    assert [pair["pairID"] for pair in scored] == list(map(str, range(len(PAIRS))))
    assert (scored[-1]["good"] == scored[-1]["bad"]) == (write is not write_bilm)  # of the same tokens
    assert results["eval_accuracy"] == accuracy(scored) and results["eval_samples"] == len(PAIRS)
    for column in (2, 3, 4):
        for name in {pair[column] for pair in PAIRS}:
            of_name = [pair for pair, names in zip(scored, PAIRS, strict=True) if names[column] == name]
            assert results[f"eval_accuracy_{name}"] == accuracy(of_name)
            assert results[f"eval_number_{name}"] == len(of_name)


def test_a_bilm_is_scored_in_each_direction_and_by_their_sum(flags, tmp_path):
    results = run_blimp.main([*flags, "--model_name_or_path", str(write_bilm(tmp_path))])
    scored = predictions(tmp_path / "out")
    for pair in scored:
        for side in ("good", "bad"):
            assert pair[side] == pytest.approx(pair[f"forward_{side}"] + pair[f"backward_{side}"])
    for direction in ("forward_", "backward_"):
        assert results[f"eval_{direction}accuracy"] == accuracy(scored, direction)
        assert results[f"eval_{direction}accuracy_order_1"] == accuracy(scored[:2], direction)


def test_a_run_writes_scores_and_a_card_but_no_model(flags, tmp_path):
    out = tmp_path / "out"
    entries = run_blimp.main(flags)
    names = {path.name for path in out.iterdir() if not path.name.startswith(".")}
    assert names == {"metrics.json", "predictions.jsonl", "README.md"}
    record = read_record(out)
    scores, seconds, samples = read_results(record)
    assert scores | seconds | samples == {name: record[name] for name in (*entries, "save_runtime")}
    assert types_of(scores_of(scores)) == [
        *("syntax", "semantics", "order", "size", "order_1", "order_2", "length", "case")
    ]
    card = ModelCard.load(out / "README.md")
    (score,) = card.data.eval_results
    assert (score.task_type, score.dataset_name) == ("text-generation", "the user's own files")
    assert (score.metric_type, score.metric_value) == ("accuracy", record["eval_accuracy"])
    assert "`ZooGPTLMHeadModel` from `gpt` was evaluated" in card.text and "trained on" not in card.text
    assert f"| order_1 | {record['eval_accuracy_order_1']:.4f} | 2 |" in card.text
    assert "learning_rate" not in record["args"] and "data_file: pairs.jsonl" in card.text


def test_pairs_without_names_have_one_score(flags, tmp_path):
    path = tmp_path / "bare.csv"
    path.write_text("sentence_good,sentence_bad\nthe film is good,the good is film\n", encoding="utf-8")
    results = run_blimp.main([*flags, "--data_file", str(path)])
    assert not [name for name in results if name.startswith("eval_number")]
    assert predictions(tmp_path / "out")[0].keys() == {"good", "bad"}


def test_a_cut_data_set_is_marked_and_has_no_entry_in_the_model_index(flags, tmp_path):
    results = run_blimp.main([*flags, "--max_eval_samples", "3"])
    assert (results["eval_samples"], results["eval_samples_total"]) == (3, len(PAIRS))
    card = ModelCard.load(tmp_path / "out" / "README.md")
    assert card.data.eval_results is None and "the first 3 of 6 examples" in card.text


def test_blimp_is_named_in_the_card(flags, tmp_path, monkeypatch):
    monkeypatch.setattr(run_blimp, "is_blimp", lambda pairs: True)
    run_blimp.main(flags)
    (score,) = ModelCard.load(tmp_path / "out" / "README.md").data.eval_results
    assert (score.dataset_type, score.dataset_name, score.dataset_split) == ("nyu-mll/blimp", "BLiMP", "train")


@pytest.mark.slow
def test_two_processes_score_as_one(flags, tmp_path):
    one, two = tmp_path / "out", tmp_path / "two"
    batches = ["--per_device_eval_batch_size", "3"]
    assert wait(fork(partial(run_blimp.main, [*flags, *batches, "--output_dir", str(two)]), count=2)) == [0, 0]
    run_blimp.main([*flags, *batches])
    for mine, expected in zip(predictions(two), predictions(one), strict=True):
        assert [mine[side] for side in ("good", "bad")] == pytest.approx([expected["good"], expected["bad"]])


@pytest.mark.slow
@pytest.mark.parametrize("write", [write_gpt, write_bert, write_bilm], ids=lambda write: write.__name__)
def test_bfloat16_moves_the_scores_a_little(write, flags, tmp_path):
    flags += ["--model_name_or_path", str(write(tmp_path))]
    run_blimp.main(flags)
    AcceleratorState._reset_state(True)
    run_blimp.main([*flags, "--mixed_precision", "bf16", "--output_dir", str(tmp_path / "rounded")])
    exact, rounded = (np.array([pair["good"] for pair in predictions(tmp_path / name)]) for name in ("out", "rounded"))
    assert 0 < np.abs(exact - rounded).max() < 0.01 * np.abs(exact).max()


# Flags


def test_the_script_has_no_flags_of_training(flags, capsys):
    args = parse_arguments(run_blimp.BlimpArguments, flags)
    assert args.do_eval and not args.do_train and args.learning_rate == RunArguments.learning_rate
    with pytest.raises(SystemExit):
        parse_arguments(run_blimp.BlimpArguments, ["--help"])
    shown = capsys.readouterr().out
    assert "--pll" in shown and "--per_device_eval_batch_size" in shown
    for flag in ("learning_rate", "do_train", "save_steps", "resume", "seeds", "push_to_hub", "report_to"):
        assert f"--{flag}" not in shown.split("usage", 1)[1] and flag not in public_arguments(args)
        with pytest.raises(SystemExit):
            parse_arguments(run_blimp.BlimpArguments, [*flags, f"--{flag}", "1"])
        assert f"--{flag}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["--data_dir", "x"], "give the pairs by one of --data_dir, --data_file"),
        (["--do_eval", "false"], "nothing to do: give --do_eval"),
        (["--pll", "both"], "invalid choice: 'both'"),
    ],
)
def test_flags_that_contradict_each_other_are_one_line(extra, message, flags, capsys):
    with pytest.raises(SystemExit):
        parse_arguments(run_blimp.BlimpArguments, [*flags, *extra])
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_how_tokens_are_masked_is_no_flag_for_a_model_that_masks_none(flags):
    with pytest.raises(UserError, match="--pll within_word_l2r is for masked models, not ZooGPTConfig: leave it out"):
        run_blimp.main([*flags, "--pll", "within_word_l2r"])


def test_results_are_not_written_over_the_model_or_over_other_results(flags, tmp_path, capsys):
    with pytest.raises(SystemExit):
        run_blimp.main([*flags, "--output_dir", str(tmp_path / "gpt"), "--overwrite_output_dir"])
    assert "is the model's folder, whose card would be lost" in capsys.readouterr().err
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("years of work", encoding="utf-8")
    with pytest.raises(UserError, match="not empty: choose another, or --overwrite_output_dir$"):
        run_blimp.main(flags)


def test_a_model_without_its_language_models_head_is_refused(flags, tmp_path):
    from modeling import ZooBertConfig, ZooBertModel

    folder = write_bert(tmp_path)
    ZooBertModel(ZooBertConfig.from_pretrained(folder)).save_pretrained(folder)
    with pytest.raises(UserError, match="does not hold cls.predictions.*: choose a checkpoint that was saved with"):
        run_blimp.main([*flags, "--model_name_or_path", str(folder)])
