"""Whole runs of run_squad.py: what every model learns, scores and writes, however it is computed."""

import json
import re
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from huggingface_hub import ModelCard
from safetensors.torch import load_file

import run_squad
from elmo_gpt_bert.metrics.squad_scores import mark, squad2_scores
from elmo_gpt_bert.tasks.squad.answering import find_answers
from elmo_gpt_bert.tasks.squad.features import make_features, make_windows
from elmo_gpt_bert.training import task
from elmo_gpt_bert.training.flags import parse_arguments
from elmo_gpt_bert.training.task import outputs_file_name
from modeling import ElmoConfig, ElmoForQuestionAnswering, ElmoTokenizer, ZooBertForQuestionAnswering
from tests.support.glue_sample import VOCABULARY, WORDS
from tests.support.gpt_sample import write_gpt_model
from tests.support.processes import fork, wait
from tests.support.squad_sample import make_articles, rows_of, write_squad
from tests.tasks.test_run_squad import ALL, SHAPE, SHORT, bert, folder, read


FILES = ("predictions", "nbest_predictions", "null_odds")


def rest(tmp_path: Path) -> list[str]:
    """What a run needs beside its model."""
    return [*SHAPE, "--learning_rate", "0.01", "--output_dir", str(tmp_path / "out")]


def elmo(tmp_path: Path, **changes: object) -> list[str]:
    """BiDAF in odd, unequal sizes, without dropout, with its tokenizer."""
    sizes = {"filters": [[1, 4], [2, 5]], "char_embedding_size": 3, "hidden_size": 6, "cell_size": 7, "rnn_size": 5}
    sizes |= {"classifier_size": 6, "num_word_vectors": len(WORDS) + 2, "word_vector_size": 3}
    config = ElmoConfig(**(sizes | {"mix_dropout": 0.0, "task_dropout": 0.0} | changes))
    ElmoForQuestionAnswering(config).save_pretrained(tmp_path / "elmo")
    (tmp_path / "words.txt").write_text("\n".join(WORDS), encoding="utf-8")
    ElmoTokenizer(words_file=str(tmp_path / "words.txt")).save_pretrained(tmp_path / "elmo")
    return ["--model_name_or_path", str(tmp_path / "elmo"), *rest(tmp_path)]


def gpt(tmp_path: Path) -> list[str]:
    return ["--model_name_or_path", str(write_gpt_model(tmp_path)), *rest(tmp_path)]


MODELS = {
    "bert": bert,
    "gpt": gpt,
    "bidaf": partial(elmo, use_elmo=False),
    "bidaf with elmo": partial(elmo, elmo_placement="both", num_mixes=2),
}


@pytest.fixture
def flags(tmp_path) -> list[str]:
    return [*bert(tmp_path), "--overwrite_output_dir"]


@pytest.fixture(params=["1.1", "2.0"])
def version(request) -> str:
    return request.param


def load(path: Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8"))


def written(output: Path) -> dict[str, bytes]:
    """The files of answers in an output folder."""
    names = [f"{name}{suffix}.json" for name in FILES for suffix in ("", "_validation")]
    return {name: (output / name).read_bytes() for name in names if (output / name).is_file()}


def scores(results: dict) -> dict[str, float]:
    return {k: v for k, v in results.items() if re.match("(eval|test)_(?!runtime|samples)", k)}


def saved(output: Path, *extra: str) -> list[str]:
    """A run on the model that another run has left."""
    return ["--model_name_or_path", str(output), *SHAPE, "--output_dir", str(output.parent / "again"), *extra]


def assert_official(output: Path, rows: list[dict], version: str, suffix: str = "", threshold: float = 0.0) -> None:
    """The files hold what the official ones hold, of all questions, in order, and agree with each other."""
    predictions, nbest = (load(output / f"{name}{suffix}.json") for name in FILES[:2])
    contexts = {row["id"]: row["context"] for row in rows}
    assert list(predictions) == list(nbest) == list(contexts)
    assert (output / f"null_odds{suffix}.json").exists() == (version == "2.0")
    odds = load(output / f"null_odds{suffix}.json") if version == "2.0" else dict.fromkeys(contexts, -1e9)
    assert list(odds) == list(contexts) and all(isinstance(value, float) for value in odds.values())
    for name, entries in nbest.items():
        texts = [entry["text"] for entry in entries]
        assert all(list(entry) == ["text", "probability", "start_logit", "end_logit"] for entry in entries)
        assert len(set(texts)) == len(texts) and all(text in contexts[name] for text in texts)
        assert sum(entry["probability"] for entry in entries) == pytest.approx(1)
        totals = [entry["start_logit"] + entry["end_logit"] for entry in entries]
        assert totals[:20] == sorted(totals[:20], reverse=True)
        best = next(text for text in texts if text)
        assert predictions[name] == ("" if odds[name] > threshold else best) and ("" in texts) == (version == "2.0")
        if version == "2.0":
            assert odds[name] == pytest.approx(totals[texts.index("")] - totals[texts.index(best)], abs=1e-5)


# Every model


@pytest.mark.parametrize(
    ("model", "version"),
    [("bert", "1.1"), ("bert", "2.0"), ("gpt", "2.0"), ("bidaf", "1.1"), ("bidaf with elmo", "2.0")],
)
def test_every_model_trains_answers_and_answers_again_from_its_folder(tmp_path, model, version):
    squad, out = folder(tmp_path, version), tmp_path / "out"
    results = run_squad.main([*MODELS[model](tmp_path), *squad, *ALL, *SHORT])
    record = load(out / "metrics.json")
    assert {**results, "save_runtime": 0} == {**{name: record[name] for name in results}, "save_runtime": 0}
    names = ["exact_match", "f1"]
    if version == "2.0":
        groups = [f"{group}_{name}" for group in ("HasAns", "NoAns") for name in ("exact", "f1", "total")]
        best = [f"best_{name}" for name in ("exact", "exact_thresh", "f1", "f1_thresh")]
        names += ["total", *groups, *best]
    assert list(scores(results)) == [f"eval_{name}" for name in names]
    assert 0 <= results["eval_exact_match"] <= results["eval_f1"] <= 100
    assert {"train_loss", "train_updates", "start_runtime", "load_runtime", "tokenize_runtime", "train_runtime"} | {
        "eval_runtime",
        "predict_runtime",
    } <= results.keys()

    dev = rows_of(load(tmp_path / f"squad{version}" / f"dev-v{version}.json")["data"])
    assert_official(out, dev, version, "_validation")
    test = rows_of(make_articles(version, (4, 2), first=200))
    odds = load(out / "null_odds_validation.json").values() if version == "2.0" else []
    best = results.get("eval_best_f1_thresh", 0.0)
    assert_official(out, test, version, threshold=best if best in odds else -1e9)

    again = saved(out, *squad, "--do_eval", "--do_predict")
    assert scores(run_squad.main(again)) == scores(results)
    assert written(tmp_path / "again") == written(out) and len(written(out)) == (6 if version == "2.0" else 4)


def test_the_scores_are_those_of_the_official_files(tmp_path, flags, version, capsys):
    squad, out = folder(tmp_path, version), tmp_path / "out"
    test = write_squad(tmp_path / "labelled.json", version, make_articles(version, (3, 6), answers=3, first=50))
    argv = [*flags, *squad, *ALL, "--test_file", test, "--max_steps", "20", "--save_strategy", "no"]
    argv += ["--eval_strategy", "no"]
    results = run_squad.main(argv)
    data = str(tmp_path / f"squad{version}" / f"dev-v{version}.json")
    for split, file, suffix in (("eval", data, "_validation"), ("test", test, "")):
        words = ["--do_eval", "--predictions_file", str(out / f"predictions{suffix}.json"), "--validation_file", file]
        extra = ["--version_2_with_negative", "--null_odds_file", str(out / f"null_odds{suffix}.json")]
        capsys.readouterr()
        run_squad.main([*words, *(extra if version == "2.0" else [])])
        official = json.loads(capsys.readouterr().out)
        ours = {name.removeprefix(f"{split}_"): v for name, v in scores(results).items() if name.startswith(split)}
        ours["exact" if version == "2.0" else "exact_match"] = ours.pop("exact_match")
        assert ours == official


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "updates", "rate", "contexts"),
    [("bert", "150", "0.01", (2, 1, 2, 1)), ("gpt", "35", "0.02", (2, 1)), ("bidaf", "35", "0.02", (2, 1))],
)
def test_a_model_learns_what_it_is_asked(tmp_path, model, updates, rate, contexts):
    train = write_squad(tmp_path / "train.json", articles=make_articles(sentences=contexts))
    data = ["--train_file", train, "--validation_file", train, "--do_train", "--do_eval", "--save_strategy", "no"]
    data += ["--max_steps", updates, "--eval_steps", updates, "--lr_scheduler_type", "cosine", "--learning_rate", rate]
    results = run_squad.main([*MODELS[model](tmp_path), *data])
    assert results["eval_exact_match"] == 100 and results["train_loss"] < 2


# The best model, and other seeds


def test_the_answers_are_those_of_the_best_model(tmp_path, flags, monkeypatch):
    """Which has the scores of the last one here, but not its answers."""
    squad, seen = folder(tmp_path), []
    score = run_squad.Answering.score

    def equal_scores(task, split, outputs, answers) -> dict[str, float]:
        seen.append(answers.predictions)
        return dict.fromkeys(score(task, split, outputs, answers), 0.5)

    monkeypatch.setattr(run_squad.Answering, "score", equal_scores)
    argv = [*flags, *squad, "--do_train", "--do_eval", "--num_train_epochs", "3", "--load_best_model_at_end"]
    results = run_squad.main([*argv, "--learning_rate", "0.1"])
    first, second, third = seen
    assert results["best_update"] * 3 == results["train_updates"] and first not in (second, third)
    assert load(tmp_path / "out" / "predictions_validation.json") == first
    monkeypatch.undo()
    run_squad.main(saved(tmp_path / "out", *squad, "--do_eval"))
    assert written(tmp_path / "again") == written(tmp_path / "out")


def test_the_best_model_may_be_that_of_any_score(tmp_path, flags, version):
    """Which is looked for in the scores of the first two windows, before a run takes its time."""
    argv = [*flags, *folder(tmp_path, version), "--do_train", "--do_eval", *SHORT, "--load_best_model_at_end"]
    argv += ["--metric_for_best_model"]
    name = "f1" if version == "1.1" else "best_f1"
    assert run_squad.main([*argv, name])["train_updates"] == 2
    if version == "2.0":  # the first two windows are of one kind only
        for name in ("HasAns_f1", "NoAns_f1"):
            assert run_squad.main([*argv, name, "--overwrite_output_dir"])["train_updates"] == 2
    with pytest.raises(ValueError, match="--metric_for_best_model accuracy is none of exact_match, f1"):
        run_squad.main([*argv, "accuracy"])


def test_a_run_whose_last_model_is_the_best_does_not_evaluate_it_again(tmp_path, flags, monkeypatch):
    calls, find = [], run_squad.find_answers
    monkeypatch.setattr(run_squad, "find_answers", lambda *args: calls.append(args) or find(*args))
    argv = [*flags, *folder(tmp_path), "--do_train", "--do_eval", *SHORT, "--eval_steps", "1"]
    run_squad.main(argv)
    assert len(calls) == 2


def test_of_several_seeds_the_best_ones_answers_are_kept(tmp_path, flags):
    argv = [*flags, *folder(tmp_path, "2.0"), *ALL, "--seeds", "2", "--num_train_epochs", "2"]
    results = run_squad.main(argv)
    out = tmp_path / "out"
    record = load(out / "metrics.json")
    each = [run["eval_exact_match"] for run in record["runs"].values()]
    assert len(each) == 2 and results["eval_exact_match"] == max(each)
    assert results["eval_f1_mean"] == pytest.approx(sum(run["eval_f1"] for run in record["runs"].values()) / 2)
    assert len(written(out)) == 6
    again = saved(out, *folder(tmp_path, "2.0"), "--do_eval", "--do_predict")
    assert run_squad.main(again)["eval_f1"] == results["eval_f1"]
    assert written(tmp_path / "again") == written(out)


def test_a_finished_run_is_resumed_to_the_same_files(tmp_path, version):
    argv = [*bert(tmp_path), *folder(tmp_path, version), *ALL, "--num_train_epochs", "2"]
    first = run_squad.main(argv)
    files = written(tmp_path / "out")
    second = run_squad.main([*argv, "--resume"])
    assert scores(second) == scores(first) and written(tmp_path / "out") == files


def test_a_run_goes_on_where_it_stopped_to_the_same_answers(tmp_path):
    argv = [*bert(tmp_path, hidden_dropout_prob=0.2), *folder(tmp_path), *ALL, "--num_train_epochs", "2"]
    argv += ["--save_strategy", "steps", "--save_steps", "2", "--save_total_limit", "9", "--group_by_length"]
    run_squad.main(argv)
    out, again = tmp_path / "out", tmp_path / "again"
    again.mkdir()
    shutil.copytree(out / "checkpoint-2", again / "checkpoint-2")
    run_squad.main([*argv, "--output_dir", str(again), "--resume"])
    assert written(again) == written(out) and len(written(out)) == 4


# Small sets, and sets of one kind


def kind(path: Path, impossible: bool, contexts: int) -> list[str]:
    """A validation file of 2.0 whose questions all have an answer, or none has."""
    articles = make_articles("2.0", (2, 7, 1)[:contexts], answers=3, first=100)
    for paragraph in (paragraph for article in articles for paragraph in article["paragraphs"]):
        paragraph["qas"] = [question for question in paragraph["qas"] if question["is_impossible"] == impossible]
    return ["--validation_file", write_squad(path / "kind.json", "2.0", articles)]


@pytest.mark.parametrize(("impossible", "contexts"), [(True, 3), (False, 3), (True, 1)])
def test_questions_of_one_kind_have_the_scores_of_that_kind_only(tmp_path, flags, impossible, contexts):
    argv = [*flags, *folder(tmp_path, "2.0"), *kind(tmp_path, impossible, contexts), *ALL, *SHORT]
    results = run_squad.main(argv)
    own, other = ("NoAns", "HasAns") if impossible else ("HasAns", "NoAns")
    assert results[f"eval_{own}_total"] == results["eval_total"] and not [name for name in results if other in name]
    assert results[f"eval_{own}_f1"] == results["eval_f1"]
    if impossible:  # then it is best to answer nothing, and so the test file gets no answers
        assert results["eval_best_f1"] == 100
        assert set(load(tmp_path / "out" / "predictions.json").values()) == {""}


def test_one_question_and_one_best_answer_are_enough(tmp_path, flags, version):
    limits = ["--max_train_samples", "1", "--max_eval_samples", "1", "--max_predict_samples", "1"]
    argv = [
        *flags,
        *folder(tmp_path, version),
        *ALL,
        *SHORT,
        *limits,
        "--n_best_size",
        "1",
        "--max_answer_length",
        "1",
    ]
    results = run_squad.main([*argv, "--load_best_model_at_end", "--save_strategy", "epoch"])
    assert results.get("eval_total", 1) == 1
    for suffix in ("", "_validation"):
        (prediction,) = load(tmp_path / "out" / f"predictions{suffix}.json").values()
        (entries,) = load(tmp_path / "out" / f"nbest_predictions{suffix}.json").values()
        assert entries[0]["text"] == prediction and len(prediction.split()) < 2
        assert len(entries) == 1 or (version == "2.0" and [entry["text"] for entry in entries[1:]] == [""])


# What others read


def test_the_card_names_task_and_data_and_has_scores_in_percent(tmp_path, flags, version):
    argv = [*flags, *folder(tmp_path, version), "--do_train", "--do_eval", *SHORT]
    results = run_squad.main(argv)
    card = ModelCard.load(tmp_path / "out" / "README.md")
    name = "rajpurkar/squad" if version == "1.1" else "rajpurkar/squad_v2"
    assert (card.data.datasets, card.data.pipeline_tag) == (name, "question-answering")
    told = {result.metric_type: result for result in card.data.eval_results}
    for result in told.values():
        assert (result.task_type, result.dataset_type, result.dataset_split) == (
            "question-answering",
            name,
            "validation",
        )
    for metric in ("exact_match", "f1"):
        assert told[metric].metric_value == results[f"eval_{metric}"] and results["eval_f1"] > 1
    assert not [metric for metric in told if metric.endswith(("total", "thresh", "loss"))]
    assert f"| {'f1' if version == '1.1' else 'best_f1'} | " in card.text.partition("Compared with the systems of")[2]


def test_the_card_of_files_of_ones_own_names_no_data_set(tmp_path, flags):
    own = ["--train_file", write_squad(tmp_path / "a.json"), "--validation_file", write_squad(tmp_path / "b.json")]
    run_squad.main([*flags, *own, "--do_train", "--do_eval", *SHORT])
    card = ModelCard.load(tmp_path / "out" / "README.md")
    assert card.data.datasets is None and "trained on the user's own files.\n" in card.text
    assert "Compared" not in card.text
    hub = parse_arguments(run_squad.SquadArguments, [*flags, "--dataset_name", "another/one", "--do_train"])
    assert run_squad.describe_data(hub).dataset_type == "another/one"


@pytest.mark.parametrize(
    ("split", "names", "shown"),
    [
        ("train", ["the user's own files", "rajpurkar/squad"], (None, None, "rajpurkar/squad")),
        ("validation", ["rajpurkar/squad", "the user's own files"], ("rajpurkar/squad", "en", "text")),
    ],
)
def test_a_card_tells_the_data_it_was_trained_on_from_those_it_was_scored_on(tmp_path, flags, split, names, shown):
    mine = write_squad(tmp_path / "mine.json", "1.1", make_articles("1.1", (1, 3), first=500))
    squad = folder(tmp_path)[:2]
    run_squad.main([*flags, *squad, f"--{split}_file", mine, "--do_train", "--do_eval", *SHORT])
    card = ModelCard.load(tmp_path / "out" / "README.md")
    assert f", trained on {names[0]}, and evaluated on {names[1]}.\n" in card.text
    assert {result.dataset_name for result in card.data.eval_results} == {names[1]}
    assert (card.data.datasets, card.data.language, card.data.eval_results[0].dataset_type) == shown
    assert "Compared with" not in card.text  # the papers' systems learned from the data that they are scored on


def test_an_ensemble_answers_with_the_mean_of_its_runs(tmp_path, flags, version):
    squad, out = folder(tmp_path, version), tmp_path / "out"
    run_squad.main([*flags, *squad, *ALL, *SHORT, "--seeds", "2", "--save_outputs"])
    runs = [*saved(out, *squad, "--do_eval", "--do_predict"), "--ensemble", f"{out}/seed-*"]
    results = run_squad.main(runs)
    args, tokenizer, data = read([*runs[:-2], "--overwrite_output_dir"])
    for split, suffix in (("validation", "_validation"), ("test", "")):
        windows = make_features(data, tokenizer, **args.window_shape)[split]
        kept = [load_file(out / f"seed-{seed}" / outputs_file_name(windows.features)) for seed in (42, 43)]
        assert not torch.equal(kept[0]["start_logits"], kept[1]["start_logits"])
        mean = {name: ((kept[0][name] + kept[1][name]) / 2).numpy() for name in ("start_logits", "end_logits")}
        ends = np.cumsum([len(row) for row in windows.features["input_ids"]])[:-1]
        mean = {name: np.split(values, ends) for name, values in mean.items()}
        found = find_answers(data[split], windows, mean, null_threshold=None if version == "1.1" else 0.0)
        assert found.best == {
            name: next(entry["text"] for entry in entries if entry["text"])
            for name, entries in load(tmp_path / "again" / f"nbest_predictions{suffix}.json").items()
        }
        if version == "2.0":
            assert load(tmp_path / "again" / f"null_odds{suffix}.json") == pytest.approx(found.null_odds, abs=1e-5)
    assert results["eval_f1"] >= results["eval_exact_match"] and len(written(tmp_path / "again")) >= 4


# However a run is computed


@pytest.mark.slow
@pytest.mark.parametrize(("model", "version"), [("bert", "1.1"), ("gpt", "2.0"), ("bidaf", "2.0")])
def test_two_processes_give_the_results_of_one(tmp_path, model, version):
    common = [*MODELS[model](tmp_path), *folder(tmp_path, version), *ALL, "--max_steps", "3", "--adam_epsilon", "0.01"]
    common += ["--save_strategy", "no", "--eval_strategy", "no"]
    common += ["--pad_to_max_length"] if model == "bert" else []  # whose loss is over padding too
    one, two = tmp_path / "one", tmp_path / "two"
    spread = ["--per_device_train_batch_size", "1", "--gradient_accumulation_steps", "2", "--output_dir", str(two)]
    assert wait(fork(partial(run_squad.main, [*common, *spread]), count=2)) == [0, 0]
    results = run_squad.main([*common, "--per_device_train_batch_size", "4", "--output_dir", str(one)])
    record = load(two / "metrics.json")
    assert record["hardware"]["processes"] == 2
    for name, value in scores(results).items():
        assert record[name] == pytest.approx(value, abs=1e-4)
    weights = [load_file(output / "model.safetensors") for output in (one, two)]
    torch.testing.assert_close(*weights, rtol=0, atol=1e-5)
    for name in written(one):
        if name.startswith("predictions"):
            assert load(one / name) == load(two / name)
        else:
            assert load(one / name).keys() == load(two / name).keys()


@pytest.mark.parametrize("model", ["bert", "bidaf"])
def test_padded_to_one_length_the_answers_stay(tmp_path, model, monkeypatch):
    common = [*MODELS[model](tmp_path), *folder(tmp_path, "2.0"), *ALL, *SHORT, "--overwrite_output_dir"]
    run_squad.main(common)
    plain, shapes, collate = written(tmp_path / "out"), set(), run_squad.collate

    def record(*args, **options) -> dict:
        batch = collate(*args, **options)
        shapes.add(batch["attention_mask"].shape[1])
        return batch

    monkeypatch.setattr(run_squad, "collate", record)
    results = run_squad.main([*common, "--pad_to_max_length"])
    assert shapes == {32} and results["train_updates"] == 2
    padded = written(tmp_path / "out")
    for name in ("predictions.json", "predictions_validation.json"):
        assert padded[name] == plain[name]


def test_transformers_own_bert_gives_the_answers_of_the_zoos(tmp_path, flags, capsys):
    squad = folder(tmp_path, "2.0")
    run_squad.main([*flags, *squad, "--do_train", *SHORT])
    found = []
    for name in ("zoo", "transformers"):
        argv = saved(tmp_path / "out", *squad, "--do_eval", "--do_predict", "--implementation", name)
        results = run_squad.main([*argv, "--overwrite_output_dir"])
        found.append((results["eval_f1"], *(load(tmp_path / "again" / f"{file}.json") for file in FILES)))
    printed = capsys.readouterr().out
    assert "load: ZooBertForQuestionAnswering" in printed and "load: BertForQuestionAnswering" in printed
    (f1, predictions, _, odds), theirs = found
    assert (f1, predictions) == theirs[:2] and odds == pytest.approx(theirs[3], abs=1e-4)


def test_the_model_reads_no_more_than_its_own_columns(tmp_path, flags, monkeypatch):
    seen, forward = set(), ZooBertForQuestionAnswering.forward

    def record(self, **batch):
        seen.update(batch)
        return forward(self, **batch)

    monkeypatch.setattr(ZooBertForQuestionAnswering, "forward", record)
    run_squad.main([*flags, *folder(tmp_path), *ALL, *SHORT])
    assert seen == {"input_ids", "token_type_ids", "attention_mask", "start_positions", "end_positions"}


# No answer


def f1_with(threshold: float, output: Path, rows: list[dict]) -> float:
    """That of the best answers of the validation set, with "" where no answer scores more than the threshold."""
    nbest, odds = (load(output / f"{name}_validation.json") for name in ("nbest_predictions", "null_odds"))
    predictions = {
        name: "" if odds[name] > threshold else next(e["text"] for e in entries if e["text"])
        for name, entries in nbest.items()
    }
    assert predictions.keys() == {row["id"] for row in rows}
    return squad2_scores(mark(predictions, {row["id"]: row["answers"]["text"] for row in rows}))["f1"]


@pytest.mark.parametrize(("right", "null"), [(True, -20), (False, -20), (True, 20)])
def test_the_threshold_for_the_test_file_is_the_best_for_the_validation_set(tmp_path, flags, monkeypatch, right, null):
    """Of models that answer every question at 0, or none, one is right where there is an answer, and one never."""
    squad, out, again, used = folder(tmp_path, "2.0"), tmp_path / "out", tmp_path / "again", []
    run_squad.main([*flags, *squad, "--do_train", *SHORT])
    argv = saved(out, *squad, "--do_eval", "--do_predict")
    args, tokenizer, data = read(argv)
    labelled = make_windows(data["validation"], tokenizer, **args.window_shape, train=True).features
    rng = np.random.default_rng(0)

    def predict(model, data_set, **options) -> dict[str, list[np.ndarray]]:
        outputs = {"start_logits": [], "end_logits": []}
        for row in labelled if len(data_set) == len(labelled) else data_set:
            for name, rows in outputs.items():
                rows.append(rng.normal(size=len(row["input_ids"])).astype(np.float32))
                verb = np.flatnonzero(np.equal(row["input_ids"], VOCABULARY.index("is")))[-1]
                rows[-1][row.get(name.replace("logits", "positions"), 0) if right else verb] += 8
                rows[-1][0] += null
        return outputs

    find = run_squad.find_answers
    monkeypatch.setattr(run_squad, "find_answers", lambda *args: used.append(args[-1]) or find(*args))
    monkeypatch.setattr(task, "predict", predict)
    results = run_squad.main(argv)
    rows = rows_of(load(tmp_path / "squad2.0" / "dev-v2.0.json")["data"])
    odds = load(again / "null_odds_validation.json")
    best = max(f1_with(threshold, again, rows) for threshold in (-1e9, *odds.values()))
    assert (
        len(used) == 2
        and used[0] == 0
        and (used[1] < 0) == (null < 0)
        and best == pytest.approx(100 if right else 100 / 3)
    )
    assert f1_with(used[1], again, rows) == best == pytest.approx(results["eval_best_f1"])
    assert results["eval_f1"] == f1_with(0, again, rows) < best
    test = {name: value > used[1] for name, value in load(again / "null_odds.json").items()}
    assert test == {name: not text for name, text in load(again / "predictions.json").items()}


@pytest.mark.parametrize(("threshold", "empty"), [("1000", False), ("-1000", True)])
def test_a_threshold_that_is_given_counts_for_both_sets(tmp_path, flags, threshold, empty):
    argv = [*flags, *folder(tmp_path, "2.0"), *ALL, *SHORT, "--null_score_diff_threshold", threshold]
    results = run_squad.main(argv)
    for suffix in ("", "_validation"):
        texts = load(tmp_path / "out" / f"predictions{suffix}.json").values()
        assert all((text == "") == empty for text in texts)
    assert results["eval_NoAns_exact"] == (100 if empty else 0)


def test_without_a_validation_set_the_threshold_is_nought(tmp_path, flags):
    squad = folder(tmp_path, "2.0")
    run_squad.main([*flags, *squad, "--do_train", *SHORT])
    run_squad.main(saved(tmp_path / "out", *squad, "--do_predict"))
    predictions, odds = (load(tmp_path / "again" / f"{name}.json") for name in ("predictions", "null_odds"))
    assert {name: not text for name, text in predictions.items()} == {name: value > 0 for name, value in odds.items()}
    assert not (tmp_path / "again" / "predictions_validation.json").exists()
