"""Senses are told apart as plain loops say, neighbours are the nearest, and what is shown comes from the text."""

import json
from collections import Counter
from itertools import groupby, islice
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from sklearn.metrics.pairwise import cosine_similarity

from elmo_gpt_bert.analysis import frame, probe
from elmo_gpt_bert.analysis.representations import load_encoder, word_vectors
from elmo_gpt_bert.analysis.senses import (
    LABELLED,
    accuracies,
    baseline_accuracies,
    find_neighbours,
    find_occurrences,
    main,
    marked,
    read_labelled,
    sense_accuracy,
    vectors_of,
)
from elmo_gpt_bert.training.errors import InputError
from elmo_gpt_bert.training.launching import choose_implementation
from tests.project.test_house import commands
from tests.support.analysis_sample import TEXT, write_models, write_senses, write_tags, write_vectors
from tests.support.pairs_sample import write_bert


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


def test_neighbours_are_the_occurrences_of_the_word_with_the_highest_cosines(tmp_path):
    path = tmp_path / "text.jsonl"
    path.write_text(json.dumps({"content": TEXT}), encoding="utf-8")
    text = find_occurrences(path, "content", {"film", "cast"}, 10)
    assert [each.words[each.place] for each in text] == ["film", "film", "film", "cast"]  # one of a sentence
    query = marked("is the *film* dull ?", None, "a test")
    encoder = load_encoder(str(write_bert(tmp_path)))
    (found,) = find_neighbours(encoder, [query], text)
    for layer, name in enumerate(encoder.layers):
        ours = word_vectors(encoder, [query.words])[layer][[2]]
        theirs = [word_vectors(encoder, [each.words])[layer][each.place] for each in text[:3]]
        cosines = cosine_similarity(ours, theirs)[0]
        for place, shown in zip(np.argsort(-cosines), found["neighbours"][name], strict=True):
            assert shown == f"{text[place].in_context()} ({cosines[place]:.2f})"


def test_a_text_with_one_occurrence_or_none_but_the_query_says_so(tmp_path):
    (tmp_path / "text.txt").write_text(TEXT, encoding="utf-8")
    text = find_occurrences(tmp_path / "text.txt", "text", {"cast"}, 10)[1:]
    encoder = load_encoder(str(write_bert(tmp_path)))
    queries = [marked("a dull *cast* .", None, "a test"), marked("The *cast* is not dull .", None, "a test")]
    single, none = (query["neighbours"]["layer 1"] for query in find_neighbours(encoder, queries, text))
    assert single[0].startswith("The **cast** is not dull . (") and single[1:] == ["", ""]
    assert none == ["the text has no other occurrence", "", ""]


def test_reading_ends_with_as_many_occurrences_of_each_word_as_are_asked_for(tmp_path):
    lines = [
        json.dumps({"text": line}) for line in ("The plot is bad .", "The film is bad .", "A film .", "The plot .")
    ]
    (tmp_path / "text.jsonl").write_text("\n".join([*lines, "[]"]), encoding="utf-8")
    occurrences = find_occurrences(tmp_path / "text.jsonl", "text", {"film"}, 1)
    assert [each.words for each in occurrences] == [["The", "film", "is", "bad", "."]]
    assert len(find_occurrences(tmp_path / "text.jsonl", "text", {"film", "plot"}, 2)) == 4
    with pytest.raises(InputError, match="text.jsonl"):
        find_occurrences(tmp_path / "text.jsonl", "text", {"film"}, 3)


def test_a_word_may_end_with_a_period(tmp_path):
    (tmp_path / "text.txt").write_text("Yesterday Mr. Smith came .", encoding="utf-8")
    assert [each.place for each in find_occurrences(tmp_path / "text.txt", "text", {"mr."}, 1)] == [1]


def test_a_word_is_marked_by_asterisks():
    occurrence = marked('"Don\'t *play* it," he said.', "game", "a test")
    assert occurrence.words[occurrence.place] == "play" and occurrence.words[:3] == ['"', "Don", "'t"]
    assert occurrence.in_context() == '" Don \'t **play** it , " he said .'


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
    (tmp_path / "text.txt").write_text(TEXT, encoding="utf-8")
    labelled = ["--labelled_file", str(write_senses(tmp_path / "senses.tsv"))]
    return [*labelled, "--text_file", str(tmp_path / "text.txt"), "--output_dir", str(tmp_path / "out")]


def test_the_command_measures_each_layer_and_shows_the_neighbours_of_each_sense(flags, tmp_path, capsys):
    results = main([*flags, *write_models(tmp_path)])
    out = tmp_path / "out"
    assert json.loads((out / "senses.json").read_text(encoding="utf-8")) == results
    assert (out / "senses.png").read_bytes().startswith(b"\x89PNG")
    encoder, occurrences = load_encoder(str(tmp_path / "bert")), read_labelled(tmp_path / "senses.tsv")
    expected = accuracies(vectors_of(encoder, occurrences)[-1], occurrences)
    assert results["words"]["bert"]["layer 3"] == expected
    assert results["words"]["vectors.txt"]["words"] == results["baselines"]["random sense"]
    assert [query["sense"] for query in results["neighbours"]["gpt"]] == ["good", "bad", "good", "bad"]
    shown = capsys.readouterr().out
    assert (
        "Nearest to: A good **film** ." in shown
        and "| vectors.txt | words | 3 of 3 occurrences are equally near |" in shown
    )


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
    assert [*results["words"]] == [*results["neighbours"]] == ["word2vec", "GloVe"]
    for names in (["word2vec"], ["word2vec", "word2vec"]):
        with pytest.raises(InputError, match="--names needs 2 different names, .*, and has .: word2vec"):
            main([*paths, *flags, "--names", *names])


def test_a_sentence_on_the_command_line_is_asked_for_alone(flags, tmp_path):
    results = main([*flags, str(write_bert(tmp_path)), "--sentence", "is the *film* good ?"])
    (query,) = results["neighbours"]["bert"]
    assert query["sentence"] == "is the **film** good ?" and len(query["neighbours"]["layer 1"]) == 3


@pytest.mark.parametrize(
    "more, problem",
    [
        (["--sentence", "a *plott* ."], "no sentence of at most 60 words with plott"),
        (["--sentence", "a plot ."], "--sentence: .* must mark one word"),
        (["--max_occurrences", "0"], "--max_occurrences must be at least 1, not 0"),
    ],
)
def test_a_word_that_is_nowhere_is_one_clear_error(more, problem, flags, tmp_path):
    with pytest.raises(InputError, match=problem):
        main([*flags, "model", *more])


def test_a_sentence_without_a_text_is_one_clear_error(tmp_path):
    with pytest.raises(InputError, match="--sentence needs a --text_file"):
        main(["model", "--output_dir", str(tmp_path), "--sentence", "a *plot* ."])


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
    Path("held_out.txt").write_text("The play is bad . They play . A good play ?", encoding="utf-8")
    for name, rows in {"train": range(9), "dev": range(9, 14)}.items():
        write_tags(Path(f"pos/{name}.tsv"), rows)
    run = {"elmo_gpt_bert.analysis.probe": probe.main, "elmo_gpt_bert.analysis.senses": main}
    shown = [words[2:] for words in commands("docs/analysis.md") if words[:2] == ["python", "-m"] and words[2] in run]
    for module, *words in shown:
        run[module](words)
    assert {words[0] for words in shown} == {*run} and len(shown) == 3
    files = {f"{path.parent.name}/{path.name}" for path in Path("runs").glob("*/*.json")}
    assert {"probe/probe.json", "senses/senses.json", "neighbours/senses.json"} <= files
    assert "| elmo-books | LSTM 1 | " in capsys.readouterr().out
