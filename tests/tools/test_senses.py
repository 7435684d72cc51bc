"""Senses are told apart as plain loops say."""

import json
from collections import Counter
from itertools import groupby, islice
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from elmo_gpt_bert.analysis import frame, probe
from elmo_gpt_bert.analysis.representations import load_encoder
from elmo_gpt_bert.analysis.senses import (
    LABELLED,
    accuracies,
    baseline_accuracies,
    main,
    marked,
    read_labelled,
    sense_accuracy,
    vectors_of,
)
from elmo_gpt_bert.training.errors import InputError
from elmo_gpt_bert.training.launching import choose_implementation
from tests.project.test_house import commands
from tests.support.analysis_sample import write_models, write_senses, write_tags, write_vectors


@pytest.fixture(autouse=True)
def _zoo():
    choose_implementation("zoo")


def test_the_shipped_occurrences_are_balanced_enough_to_measure_with():
    occurrences = read_labelled(LABELLED)
    assert len(occurrences) == 351 == len({tuple(each.words) for each in occurrences})
    words = Counter(each.word for each in occurrences)
    assert len(words) == 8 and min(words.values()) >= 20
    assert min(Counter((each.word, each.sense) for each in occurrences).values()) >= 9


def accuracy_by_loop(vectors: np.ndarray, senses: list[str]) -> float:
    points = 0.0
    for number, vector in enumerate(vectors):
        cosines = {}
        for sense in {*senses}:
            others = [row for place, row in enumerate(vectors) if senses[place] == sense and place != number]
            center = np.mean(others, axis=0)
            cosines[sense] = center @ vector / np.linalg.norm(center) / np.linalg.norm(vector)
        points += max(cosines, key=cosines.get) == senses[number]
    return points / len(vectors)


def test_an_occurrence_is_right_if_the_mean_of_the_others_of_its_sense_is_nearest():
    rng = np.random.default_rng(0)
    senses = [*"aaaaaaabbbbccccc"]
    vectors = rng.normal(size=(16, 5)) + rng.normal(size=(3, 5))[["abc".index(sense) for sense in senses]]
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    expected = accuracy_by_loop(vectors, senses)
    assert 0.4 < expected < 1 and sense_accuracy(vectors, np.array(senses)) == expected


def test_one_vector_for_all_occurrences_has_the_accuracy_of_a_random_sense(tmp_path):
    occurrences = read_labelled(write_senses(tmp_path / "senses.tsv"))
    assert [each.word for each in occurrences] == ["cast"] * 4 + ["film"] * 4
    vectors = np.ones((8, 3)) / 3**0.5
    assert accuracies(vectors, occurrences) == baseline_accuracies(occurrences)["random sense"]
    assert baseline_accuracies(occurrences)["most frequent sense"] == {"cast": 0.5, "film": 0.5}


def test_a_word_is_marked_by_asterisks():
    occurrence = marked('"Don\'t *play* it," he said.', "game", "a test")
    assert occurrence.words[occurrence.place] == "play" and occurrence.words[:3] == ['"', "Don", "'t"]


@pytest.mark.parametrize(
    "row, problem",
    [
        ("play\tgame\tThey play .", "must mark one word"),
        ("play\tgame\t*They* *play* .", "must mark one word"),
        ("play\tgame\tThey *pl*ay .", "'pl' is not a whole word"),
        ("play\tgame\t*They* play .", "marks they, not play"),
        ("play\tgame\tThey *play* .", "play has fewer than two senses"),
        ("play\tgame\tThey *play* .\nplay\tmusic\tThey *play* it .", "play has a single sentence of the sense game"),
    ],
)
def test_a_row_that_cannot_be_measured_is_one_clear_error(row, problem, tmp_path):
    path = tmp_path / "senses.tsv"
    path.write_text(f"word\tsense\tsentence\n{row}\n", encoding="utf-8")
    with pytest.raises(InputError, match=problem):
        read_labelled(path)


@pytest.fixture
def flags(tmp_path) -> list[str]:
    labelled = ["--labelled_file", str(write_senses(tmp_path / "senses.tsv"))]
    return [*labelled, "--output_dir", str(tmp_path / "out")]


def test_the_command_measures_each_layer(flags, tmp_path, capsys):
    results = main([*flags, *write_models(tmp_path)])
    out = tmp_path / "out"
    assert json.loads((out / "senses.json").read_text(encoding="utf-8")) == results
    assert (out / "senses.png").read_bytes().startswith(b"\x89PNG")
    encoder, occurrences = load_encoder(str(tmp_path / "bert")), read_labelled(tmp_path / "senses.tsv")
    expected = accuracies(vectors_of(encoder, occurrences)[-1], occurrences)
    assert results["words"]["bert"]["layer 3"] == expected
    assert results["words"]["vectors.txt"]["words"] == results["baselines"]["random sense"]
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("| bert, ")] and lines[-1].startswith("| random sense | 50.0% |")


def test_a_plot_is_in_percent_and_no_two_of_its_lines_look_alike():
    scores = {"BERT": [0.4, 0.7, 0.8], "BERT, random weights": [0.4, 0.4, 0.4], "GPT": [0.4, 0.5], "word2vec": [0.4]}
    layers = {name: {f"layer {number}": score for number, score in enumerate(of)} for name, of in scores.items()}
    references = {"most frequent sense": 0.5, "random sense": 0.4}
    figure = Figure(layout="constrained")
    frame.draw_layers(figure, layers, references, "the title", "the measure")
    figure.draw_without_rendering()
    (axes,) = figure.axes
    assert (axes.get_title(), axes.get_ylabel()) == ("the title", "the measure")
    assert {"40%", "60%", "80%"} <= {tick.get_text() for tick in axes.get_yticklabels()}
    colors = {line.get_label(): line.get_color() for line in axes.get_lines()}
    assert [*colors] == [*scores, *references]
    assert colors["BERT"] == colors.pop("BERT, random weights") and len({*colors.values()}) == len(colors)


def test_models_have_the_names_that_the_command_line_gives_them(flags, tmp_path):
    paths = [str(write_vectors(tmp_path / f"{name}.txt", ["the", "film"])) for name in ("a", "b")]
    results = main([*paths, *flags, "--names", "word2vec", "GloVe"])
    assert [*results["words"]] == ["word2vec", "GloVe"]
    for names in (["word2vec"], ["word2vec", "word2vec"]):
        with pytest.raises(InputError, match="--names needs 2 different names, .*, and has .: word2vec"):
            main([*paths, *flags, "--names", *names])


@pytest.mark.slow
def test_the_commands_of_the_guide_run(tmp_path, monkeypatch, capsys):
    models = write_models(tmp_path)
    monkeypatch.chdir(tmp_path)
    for folder in ("checkpoints", "pos"):
        Path(folder).mkdir()
    names = ["checkpoints/bert-books", "checkpoints/gpt-books", "checkpoints/elmo-books", "glove.txt"]
    for model, name in zip(models, names, strict=True):
        Path(model).rename(name)
    header, *rows = LABELLED.read_text(encoding="utf-8").splitlines()
    few = [row for _, of_sense in groupby(rows, lambda row: row.split("\t")[:2]) for row in islice(of_sense, 2)]
    Path("senses.tsv").write_text("\n".join([header, *few]) + "\n", encoding="utf-8")
    monkeypatch.setattr("elmo_gpt_bert.analysis.senses.LABELLED", Path("senses.tsv"))
    monkeypatch.setattr(frame, "write_picture", lambda *_: None)  # other tests draw
    for name, rows in {"train": range(9), "dev": range(9, 14)}.items():
        write_tags(Path(f"pos/{name}.tsv"), rows)
    run = {"elmo_gpt_bert.analysis.probe": probe.main, "elmo_gpt_bert.analysis.senses": main}
    shown = [words[2:] for words in commands("docs/analysis.md") if words[:2] == ["python", "-m"] and words[2] in run]
    for module, *words in shown:
        run[module](words)
    assert {words[0] for words in shown} == {*run} and len(shown) == 2
    files = {f"{path.parent.name}/{path.name}" for path in Path("runs").glob("*/*.json")}
    assert {"probe/probe.json", "senses/senses.json"} <= files
    assert "| elmo-books, LSTM 1 | " in capsys.readouterr().out
