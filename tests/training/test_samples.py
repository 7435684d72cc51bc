"""How much of the data a run takes, where its scores stand: metrics.json, model card, console."""

import json
import math
from pathlib import Path
from types import ModuleType

import pytest
from huggingface_hub import ModelCard

import run_glue
import run_ner
import run_pretraining
import run_squad
import run_swag
from elmo_gpt_bert.tasks.pretraining.corpus import Corpus
from elmo_gpt_bert.training.results import part_used
from tests.support import choices_sample, glue_sample, ner_sample, pretraining_sample
from tests.tasks.test_run_squad import folder as squad_folder


LIMITS = ["--max_train_samples", "4", "--max_eval_samples", "3", "--max_predict_samples", "2"]


@pytest.fixture
def train(tmp_path, capsys):
    """Trains a tiny model by a script; gives what it printed, what metrics.json says, and the card."""

    def run(script: ModuleType, *flags: str) -> tuple[str, dict, ModelCard]:
        names = ["--model_name_or_path", str(glue_sample.write_model(tmp_path)), "--max_seq_length", "32"]
        names += ["--tokenizer_name", str(glue_sample.write_vocabulary(tmp_path))]
        short = ["--do_train", "--do_eval", "--do_predict", "--max_steps", "1", "--save_strategy", "no"]
        output = tmp_path / "out"
        script.main([*names, *short, *flags, "--output_dir", str(output)])
        record = json.loads((output / "metrics.json").read_text(encoding="utf-8"))
        return capsys.readouterr().out, record, ModelCard.load(output / "README.md")

    return run


def data_of(script: ModuleType, folder: Path) -> list[str]:
    if script is run_ner:
        return ["--data_dir", str(ner_sample.write_folder(folder / "conll2003"))]
    if script is run_squad:
        return ["--doc_stride", "4", "--max_query_length", "8", *squad_folder(folder)]
    if script is run_swag:
        return ["--task_name", "swag", "--data_dir", str(choices_sample.write_task(folder, "swag"))]
    return ["--task_name", "rte", "--data_dir", str(glue_sample.write_task(folder, "RTE"))]


# What tests' data hold: training examples, validation, test.
TOTALS = {run_glue: (9, 5, 4), run_ner: (12, 6, 5), run_squad: (12, 6, 5), run_swag: (9, 5, 4)}


@pytest.mark.parametrize("script", TOTALS, ids=lambda script: script.__name__)
def test_a_score_on_part_of_the_data_is_published_as_that(train, tmp_path, script):
    printed, record, card = train(script, *data_of(script, tmp_path), *LIMITS)
    for name, taken, total in zip(("train", "eval", "predict"), (4, 3, 2), TOTALS[script], strict=True):
        assert (record[f"{name}_samples"], record[f"{name}_samples_total"]) == (taken, total)
    trained, scored, _ = TOTALS[script]
    assert f"4 of {trained}" in printed and f"3 of {scored}" in printed and "2 of " in printed
    assert f"trained on the first 4 of {trained} examples of " in card.text
    assert f"| validation, the first 3 of {scored} examples | score |" in card.text
    assert card.data.eval_results is None and "Compared with the systems of" not in card.text


@pytest.mark.parametrize("script", TOTALS, ids=lambda script: script.__name__)
def test_a_score_on_all_of_the_data_is_the_data_sets(train, tmp_path, script):
    printed, record, card = train(script, *data_of(script, tmp_path))
    trained, scored, predicted = TOTALS[script]
    assert (record["train_samples"], record["eval_samples"], record["predict_samples"]) == TOTALS[script]
    assert " of " not in printed.split("train: ")[0] and "first" not in card.text
    assert card.data.eval_results and "Compared with the systems of" in card.text


def test_training_on_part_of_the_data_is_not_beside_a_paper_that_trained_on_all(train, tmp_path):
    _, record, card = train(run_glue, *data_of(run_glue, tmp_path), "--max_train_samples", "4")
    assert record["eval_samples"] == record["eval_samples_total"] == 5
    assert "the first 4 of 9 examples" in card.text and "| validation | score |" in card.text
    assert card.data.eval_results and "Compared with the systems of" not in card.text


def test_each_part_of_mnli_says_how_much_of_it_was_scored(train, tmp_path):
    data = ["--task_name", "mnli", "--data_dir", str(glue_sample.write_task(tmp_path, "MNLI"))]
    printed, record, card = train(run_glue, *data, "--max_eval_samples", "5")
    counts = {name: record[name] for name in record if name.startswith("eval_samples")}
    whole, cut = {"eval_samples": 5, "eval_samples_total": 5}, {"eval_samples_mm": 5, "eval_samples_total_mm": 6}
    assert counts == whole | cut and "validation 5, validation_mm 5 of 6" in printed
    assert "| validation; of the mismatched part, the first 5 of 6 examples | score |" in card.text
    assert card.data.eval_results is None and "Compared with the systems of" not in card.text


@pytest.mark.parametrize("kind", ["causal_lm", "bilm"])
def test_a_perplexity_on_part_of_the_held_out_text_is_published_as_that(tmp_path, kind):
    argv = [*pretraining_sample.flags(tmp_path, kind), "--max_steps", "1", "--report_to", "none"]
    argv += ["--save_strategy", "no", "--output_dir"]
    whole = run_pretraining.main([*argv, str(tmp_path / "whole")])
    part = run_pretraining.main([*argv, str(tmp_path / "part"), "--max_eval_samples", "2"])
    text = Corpus.open(tmp_path / f"corpus-{kind}", "validation")
    sentences = len((tmp_path / "held_out.txt").read_text(encoding="utf-8").split("\n")) - 4  # but blank lines
    total = (text.num_tokens + sentences) // 9 if kind == "bilm" else math.ceil(text.num_tokens / 13)
    assert whole["eval_samples"] == whole["eval_samples_total"] == part["eval_samples_total"] == total
    assert part["eval_samples"] == 2 and part["eval_perplexity"] != whole["eval_perplexity"]
    cards = [ModelCard.load(tmp_path / name / "README.md") for name in ("whole", "part")]
    assert cards[0].data.eval_results and "| validation | score |" in cards[0].text
    assert not cards[1].data.eval_results and f"| validation, the first 2 of {total} " in cards[1].text


@pytest.mark.slow
def test_seeds_and_their_spread_say_so_too(train, tmp_path):
    _, record, card = train(run_glue, *data_of(run_glue, tmp_path), *LIMITS, "--seeds", "2")
    assert record["eval_samples"] == 3 and not [name for name in record if name.startswith("eval_samples_mean")]
    assert "| validation, the first 3 of 5 examples | mean | median" in card.text


@pytest.mark.parametrize("results", [{}, {"train_samples": 2}])
def test_results_that_do_not_say_how_many_examples_there_are_name_no_part(results):
    assert part_used(results, "train") is None
