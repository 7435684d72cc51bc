"""The probe is the classifier that its objective says, and its command measures every layer of every model."""

import json

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import log_softmax

from elmo_gpt_bert.analysis.probe import baseline_accuracies, main, probe_accuracy
from elmo_gpt_bert.tasks.columns import Sentence
from elmo_gpt_bert.training.errors import InputError
from tests.support.analysis_sample import write_models, write_tags, write_vectors
from tests.support.glue_sample import WORDS


def test_the_probe_minimises_the_mean_loss_and_half_the_penalty_times_the_squares_of_weights(monkeypatch):
    penalty = 0.5
    monkeypatch.setattr("elmo_gpt_bert.analysis.probe.PENALTY", penalty)
    rng = np.random.default_rng(0)
    points = [rng.normal(1, 2, (rows, 4)) for rows in (90, 1000)]
    directions = rng.normal(size=(4, 3))
    classes, references = ((x @ directions + rng.normal(0, 5, (len(x), 3))).argmax(1) for x in points)
    vectors, held_out = ((3 + x * [2, 0.5, 1, 6]).astype(np.float32) for x in points)

    def standardised(x):
        return (x - vectors.mean(0)) / vectors.std(0)

    def objective(parameters):
        weights, biases = parameters[:12].reshape(4, 3), parameters[12:]
        losses = -log_softmax(standardised(vectors) @ weights + biases, axis=1)[np.arange(90), classes]
        return losses.mean() + penalty / 2 * (weights**2).sum()

    best = minimize(objective, np.zeros(15), tol=1e-9).x
    predicted = (standardised(held_out) @ best[:12].reshape(4, 3) + best[12:]).argmax(1)
    expected = np.mean(predicted == references)
    assert 0.5 < expected < 0.7
    tags = np.array(["X", "NOUN", "VERB"])
    accuracy = probe_accuracy(vectors, tags[classes], held_out, tags[references])
    assert accuracy == pytest.approx(expected, abs=0.002)  # two of 1000 may lie on the border


def test_the_baselines_are_those_counted_by_hand():
    train = [Sentence(["a", "film", "film", "film", "film"], ["D", "N", "V", "N", "N"], "", 1)]
    validation = [Sentence(["a", "film", "film", "new", "old"], ["D", "N", "V", "N", "V"], "", 1)]
    # "a" is D, "film" is N, and so are the new words: 3 of 5. All are N: 2 of 5.
    baselines = baseline_accuracies(train, validation)
    assert baselines == {"each word's most frequent tag": 0.6, "most frequent tag": 0.4}


@pytest.fixture
def flags(tmp_path) -> list[str]:
    files = ["--train_file", str(write_tags(tmp_path / "train.tsv", range(12)))]
    files += ["--validation_file", str(write_tags(tmp_path / "dev.tsv", range(12, 18)))]
    return [*files, "--output_dir", str(tmp_path / "out")]


def test_the_command_measures_each_layer_of_each_model_with_its_own_and_with_random_weights(flags, tmp_path, capsys):
    scores = main([*flags, *write_models(tmp_path), "--random"])
    layers = {name: len(of) for name, of in scores.items()}
    assert layers == {"bert": 4, "bert, random weights": 4, "gpt": 3, "gpt, random weights": 3} | {
        "elmo": 3,
        "elmo, random weights": 3,
        "vectors.txt": 1,
    }
    record = json.loads((tmp_path / "out" / "probe.json").read_text(encoding="utf-8"))
    assert record["accuracy"] == scores and record["validation_words"] == sum(3 + row % 4 + 1 for row in range(12, 18))
    assert (tmp_path / "out" / "probe.png").read_bytes().startswith(b"\x89PNG")
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    assert [row[0].strip("| ") for row in rows[1:]] == [*scores, *record["baselines"]]
    assert rows[1][1].strip("*") == f"{scores['bert']['embeddings']:.1%}"


def test_a_layer_that_holds_the_tag_of_each_word_has_it_right(flags, tmp_path):
    path = write_vectors(tmp_path / "vectors.txt", [*WORDS, "."], size=20)  # "plot" alone has two tags
    scores = main([*flags, str(path)])
    baselines = json.loads((tmp_path / "out" / "probe.json").read_text(encoding="utf-8"))["baselines"]
    assert scores["vectors.txt"]["words"] == baselines["each word's most frequent tag"]


def test_as_many_sentences_are_trained_on_as_the_flag_says(flags, tmp_path):
    main([*flags, "--max_train_samples", "2", write_models(tmp_path)[-1]])
    record = json.loads((tmp_path / "out" / "probe.json").read_text(encoding="utf-8"))
    assert record["train_words"] == 4 + 5


def test_columns_are_chosen_by_their_numbers(flags, tmp_path):
    (vectors,) = write_models(tmp_path)[-1:]
    expected = main([*flags, vectors])
    for name in ("train.tsv", "dev.tsv"):
        lines = (tmp_path / name).read_text(encoding="utf-8").splitlines()
        swapped = ["\t".join(["1", *reversed(line.split("\t")), "_"]) if line else "" for line in lines]
        (tmp_path / name).write_text("\n".join(swapped), encoding="utf-8")
    assert main([*flags, vectors, "--text_column_name", "3", "--label_column_name", "2"]) == expected


def test_a_limit_of_no_sentences_is_one_clear_error(flags):
    with pytest.raises(InputError, match="--max_train_samples must be at least 1, not 0"):
        main([*flags, "model", "--max_train_samples", "0"])


@pytest.mark.parametrize(
    "content, problem",
    [
        ("", "holds no sentences"),
        ("the\tO\nfilm\tO\n", "have the tag O"),
        ("the\nfilm\n", "in column 1 of 1: a line is a word, a tab or a space, and its tag$"),
    ],
)
def test_a_file_from_which_nothing_is_learned_is_one_clear_error(content, problem, flags, tmp_path):
    (tmp_path / "train.tsv").write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match=problem):
        main([*flags, write_models(tmp_path)[-1]])
