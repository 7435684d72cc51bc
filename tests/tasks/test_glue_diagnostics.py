"""AX and HANS: what a model trained on MNLI is examined with."""

import json
from pathlib import Path

import pytest
import torch
from datasets import Dataset, DatasetDict
from sklearn.metrics import accuracy_score, matthews_corrcoef
from transformers import AutoConfig, BertForSequenceClassification, BertTokenizer

import run_glue
from elmo_gpt_bert import metrics
from tests.support.glue_sample import text, write_model, write_vocabulary


CLASSES = ["contradiction", "entailment", "neutral"]  # neither the Hub's order nor the alphabet's reverse
HEURISTICS = ["lexical_overlap", "subsequence", "constituent"]
ROWS = 24


@pytest.fixture
def checkpoint(tmp_path):
    """Saves an MNLI model whose answers vary, its classes numbered and written as asked; gives its folder."""

    def save(names: list[str]) -> Path:
        torch.manual_seed(0)
        path = tmp_path / "-".join(names)
        path.mkdir()
        ids = {"id2label": dict(enumerate(names)), "label2id": {name: number for number, name in enumerate(names)}}
        config = AutoConfig.from_pretrained(write_model(path, initializer_range=1.0), **ids)
        model = BertForSequenceClassification(config)
        tokenizer = BertTokenizer(vocab=str(write_vocabulary(path)))
        with torch.no_grad():
            model.classifier.bias.sub_(torch.stack(stock_logits(model, tokenizer)).mean(0))  # else one class wins all
            for parameter in model.classifier.parameters():
                parameter.copy_(parameter[[CLASSES.index(name.lower()) for name in names]])
        model.save_pretrained(path)
        tokenizer.save_pretrained(path)
        return path

    return save


@pytest.fixture
def ax(tmp_path) -> Path:
    """The diagnostics' folder, with the file of the leaderboard and the one that has the labels."""
    folder = tmp_path / "diagnostic"
    folder.mkdir()
    full = ["Lexical Semantics\tPredicate-Argument Structure\tLogic\tKnowledge\tDomain\tPremise\tHypothesis\tLabel"]
    full += [f"\t\tNegation\t\tNews\t{text(i, 1)}\t{text(i, 2)}\t{CLASSES[i % 3]}" for i in range(ROWS)]
    plain = ["index\tsentence1\tsentence2"] + [f"{i}\t{text(i, 1)}\t{text(i, 2)}" for i in range(ROWS)]
    for name, lines in (("diagnostic-full.tsv", full), ("diagnostic.tsv", plain)):
        (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


@pytest.fixture
def hans(tmp_path) -> Path:
    """The folder of the published file, in its columns."""
    columns = "gold_label sentence1_binary_parse sentence2_binary_parse sentence1_parse sentence2_parse "
    columns += "sentence1 sentence2 pairID heuristic subcase template"
    lines = ["\t".join(columns.split())]
    for i in range(ROWS):
        label = "entailment" if i % 4 < 2 else "non-entailment"
        values = [label, *["(parse)"] * 4, text(i, 1), text(i, 2), f"ex{i}", HEURISTICS[i % 3], "le_passive", "temp1"]
        lines.append("\t".join(values))
    (tmp_path / "heuristics_evaluation_set.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return tmp_path


def examine(checkpoint: Path, output: Path, *flags: str) -> dict[str, float]:
    model = ["--model_name_or_path", str(checkpoint), "--max_seq_length", "32"]
    return run_glue.main([*model, "--output_dir", str(output), *flags])


def stock_logits(model: BertForSequenceClassification, tokenizer: BertTokenizer) -> list[torch.Tensor]:
    """One example at a time."""
    return [model.eval()(**tokenizer(text(i, 1), text(i, 2), return_tensors="pt")).logits[0] for i in range(ROWS)]


def answers(checkpoint: Path) -> list[str]:
    """The stock model's, in lower case."""
    model = BertForSequenceClassification.from_pretrained(checkpoint)
    logits = stock_logits(model, BertTokenizer.from_pretrained(checkpoint))
    guesses = [model.config.id2label[example.argmax().item()].lower() for example in logits]
    assert set(guesses) == set(CLASSES)  # else the tests below could not fail
    return guesses


# AX


@pytest.mark.parametrize("names", [CLASSES, ["NEUTRAL", "CONTRADICTION", "ENTAILMENT"]])
def test_ax_is_predicted_in_the_files_order_by_the_names_of_the_checkpoints_classes(checkpoint, ax, tmp_path, names):
    folder = checkpoint(names)
    examine(folder, tmp_path / "out", "--task_name", "ax", "--data_dir", str(tmp_path), "--do_predict")
    header, *rows = (tmp_path / "out" / "predictions.tsv").read_text(encoding="utf-8").splitlines()
    assert header == "index\tprediction"
    assert rows == [f"{i}\t{answer}" for i, answer in enumerate(answers(folder))]


def test_ax_is_scored_by_matthews_correlation_of_three_classes(checkpoint, ax, tmp_path):
    folder = checkpoint(CLASSES)
    results = examine(folder, tmp_path / "out", "--task_name", "ax", "--data_dir", str(ax), "--do_eval")
    labels = [CLASSES[i % 3] for i in range(ROWS)]
    assert results["eval_matthews_correlation"] == pytest.approx(matthews_corrcoef(labels, answers(folder)))


def test_the_hub_has_ax_without_labels(monkeypatch, checkpoint, ax, tmp_path):
    folder = checkpoint(CLASSES)
    rows = {"premise": [text(i, 1) for i in range(ROWS)], "hypothesis": [text(i, 2) for i in range(ROWS)]}
    hub = DatasetDict({"test": Dataset.from_dict({**rows, "label": [-1] * ROWS})})
    monkeypatch.setattr("datasets.load_dataset", lambda *names, **options: hub)
    examine(folder, tmp_path / "hub", "--task_name", "ax", "--do_predict")
    examine(folder, tmp_path / "zip", "--task_name", "ax", "--do_predict", "--data_dir", str(ax))
    texts = [(tmp_path / source / "predictions.tsv").read_text(encoding="utf-8") for source in ("hub", "zip")]
    assert texts[0] == texts[1]
    with pytest.raises(ValueError, match="the Hub has ax without labels: give --data_dir with .* diagnostic-full.tsv"):
        examine(folder, tmp_path / "eval", "--task_name", "ax", "--do_eval")


# HANS


def by_the_published_script(guesses: list[str]) -> dict[str, float]:
    """The rule of evaluate_heur_output.py: one share of right guesses for each heuristic and gold label."""
    counts: dict[tuple[str, str], list[bool]] = {}
    for i, guess in enumerate(guesses):
        gold = "entailment" if i % 4 < 2 else "non-entailment"
        formatted = "entailment" if guess == "entailment" else "non-entailment"
        counts.setdefault((HEURISTICS[i % 3], gold), []).append(formatted == gold)
    suffixes = {"entailment": "entailed", "non-entailment": "non_entailed"}
    scores = {f"{heuristic}_{suffixes[gold]}": sum(right) / len(right) for (heuristic, gold), right in counts.items()}
    return scores | {"accuracy": sum(map(sum, counts.values())) / ROWS}


@pytest.mark.parametrize("names", [CLASSES, ["ENTAILMENT", "NEUTRAL", "CONTRADICTION"]])
def test_hans_scores_what_its_published_script_does_whatever_the_numbers_of_the_classes(
    checkpoint, hans, tmp_path, names
):
    folder = checkpoint(names)
    results = examine(folder, tmp_path / "out", "--task_name", "hans", "--data_dir", str(hans), "--do_eval")
    for name, score in by_the_published_script(answers(folder)).items():
        assert results[f"eval_{name}"] == pytest.approx(score)
    assert results["eval_predicted_classes"] == 2
    assert json.loads((tmp_path / "out" / "metrics.json").read_text(encoding="utf-8"))["eval_accuracy"] > 0


def test_the_loss_on_hans_is_that_of_both_kinds_of_non_entailment_together(checkpoint, hans, tmp_path):
    folder = checkpoint(CLASSES)
    results = examine(folder, tmp_path / "out", "--task_name", "hans", "--data_dir", str(hans), "--do_eval")
    losses = []
    model = BertForSequenceClassification.from_pretrained(folder)
    for i, logits in enumerate(stock_logits(model, BertTokenizer.from_pretrained(folder))):
        contradiction, entailment, neutral = logits.double().softmax(-1)
        losses.append(-(entailment if i % 4 < 2 else contradiction + neutral).log().item())
    assert results["eval_loss"] == pytest.approx(sum(losses) / ROWS, rel=1e-4)


def test_the_first_examples_of_hans_are_scored_without_the_groups_they_lack(checkpoint, hans, tmp_path):
    flags = ["--task_name", "hans", "--data_dir", str(hans), "--do_eval", "--max_eval_samples", "2"]
    results = examine(checkpoint(CLASSES), tmp_path / "out", *flags)
    assert {"eval_lexical_overlap", "eval_lexical_overlap_entailed", "eval_subsequence"} <= results.keys()
    assert not any("constituent" in name or "non_entailed" in name for name in results)


def test_the_hubs_hans_is_the_published_file(monkeypatch, hans):
    arguments = {"model_name_or_path": "m", "output_dir": "o", "task_name": "hans", "do_eval": True}
    config = AutoConfig.for_model("bert")
    _, local = run_glue.load_data(run_glue.GlueArguments(**arguments, data_dir=str(hans)), config)
    rows = local["validation"]
    labels = [("entailment", "non-entailment").index(label) for label in rows["label"]]
    columns = {"premise": list(rows["text"]), "hypothesis": list(rows["text_pair"]), "label": labels}
    hub = DatasetDict({"validation": Dataset.from_dict({**columns, "heuristic": list(rows["heuristic"])})})
    asked = []
    monkeypatch.setattr("datasets.load_dataset", lambda *names, **options: asked.append((names, options)) or hub)
    _, data = run_glue.load_data(run_glue.GlueArguments(**arguments), config)
    assert asked == [(("jhu-cogsci/hans", None), {"revision": "refs/convert/parquet"})]
    assert data["validation"][:] == rows[:]


def test_hans_has_nothing_to_predict_for_a_leaderboard():
    with pytest.raises(ValueError, match="--task_name hans has no test split"):
        run_glue.GlueArguments(model_name_or_path="m", output_dir="o", task_name="hans", do_predict=True)


def test_trusting_every_heuristic_gets_half_of_hans():
    heuristic = [name for name in HEURISTICS for _ in range(4)]
    inputs = {"predictions": [0] * 12, "references": [0, 0, 1, 1] * 3, "parts": heuristic}
    scores = metrics.load("hans").compute(**inputs)
    assert scores["accuracy"] == accuracy_score([0, 0, 1, 1] * 3, [0] * 12) == 0.5
    for name in HEURISTICS:
        assert scores[f"{name}_entailed"] == 1.0 and scores[f"{name}_non_entailed"] == 0.0
