"""The parts of the page show what was computed, with text escaped; a mistake is one sentence and leaves the rest."""

import re
import sys
from pathlib import Path
from unittest.mock import patch

import pytest

from elmo_gpt_bert.explorer import __main__ as app
from elmo_gpt_bert.explorer import panels as panels_module
from elmo_gpt_bert.explorer.drawing import describe_verdict, describe_word, draw_scores, highlight, percent
from elmo_gpt_bert.explorer.language_models import load_language_model
from elmo_gpt_bert.explorer.panels import Panels
from elmo_gpt_bert.explorer.surprisal import ScoredSentence, ScoredWord, score_sentence
from elmo_gpt_bert.training.errors import InputError, MissingFileError, PackageError
from tests.support.analysis_sample import TEXT
from tests.support.pairs_sample import write_bert, write_bilm, write_gpt
from tests.tools.test_explorer import write_tagger


SENTENCE = "is the plot not a dull film ?"


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> dict[str, str]:
    """family -> the folder of its model; one that was loaded stays."""
    folder = tmp_path_factory.mktemp("models")
    writers = {"ELMo": write_bilm, "GPT": write_gpt, "BERT": write_bert}
    return {family: str(write(folder)) for family, write in writers.items()}


@pytest.fixture
def panels(models, tmp_path) -> Panels:
    return Panels({**models}, None)


def text_of(html: str) -> str:
    return " ".join(re.sub("<[^>]*>", " ", html).split())


def alerts(html: str) -> list[str]:
    return re.findall(r'role="alert">([^<]*)<', html)


def test_each_column_has_each_word_with_its_bits(panels):
    html = panels.scores(SENTENCE, "")
    for family, name in panels.models.items():
        column = html.partition(f"<h3>{family}</h3>")[2].partition("</section>")[0]
        scored = score_sentence(load_language_model(family, name), SENTENCE)
        bits = [f"{sum(word.bits):.1f}" if word.bits else "–" for word in scored.words]
        bits += [f"{edge:.1f}" for edge in scored.edges]
        assert re.findall('class="number">([^<]*)<', column) == bits and name in column
        assert f"{scored.bits:.1f} bits in all" in column
    assert "(3 pieces)" in html and "not predicted: nothing is before it" in html and alerts(html) == []


def test_two_sentences_are_side_by_side_with_what_each_model_prefers(panels):
    html = panels.scores(SENTENCE, "the film is good .")
    assert html.count("bits in all") == 6
    for family, name in panels.models.items():
        one, two = (
            score_sentence(load_language_model(family, name), text) for text in (SENTENCE, "the film is good .")
        )
        better = "first" if one.bits < two.bits else "second"
        column = text_of(html.partition(f"<h3>{family}</h3>")[2].partition("</section>")[0])
        assert f"Prefers the {better} sentence, by {abs(one.bits - two.bits):.1f} bits." in column
    assert describe_verdict(ScoredSentence([]), ScoredSentence([])) == "Prefers neither: both are equally probable."


def test_the_widths_of_bars_are_in_proportion_to_their_bits():
    words = [ScoredWord("a", ["a"], [20.0]), ScoredWord("b", ["b"], [5.0, 10.0]), ScoredWord("c", ["c"], [])]
    widths = re.findall(r"left: ([\d.]+)%; width: ([\d.]+)%", draw_scores([ScoredSentence(words)]))
    assert widths == [("0.00", "100.00"), ("0.00", "25.00"), ("25.00", "50.00")]
    assert "&lt;0.01%" in draw_scores([ScoredSentence(words)])
    assert [percent(p) for p in (1.0, 0.25, 0.0123, 0.0001, 0.00001)] == ["100%", "25%", "1.2%", "0.01%", "<0.01%"]


def test_a_word_of_which_only_the_first_piece_is_not_predicted_says_so():
    word = ScoredWord("plot", ["pl", "ot"], [3.0], is_partial=True)
    assert describe_word(word) == "3.00 bits; pieces: pl ot; its first piece is not predicted: nothing is before it"


def test_neighbours_are_shown_for_each_layer_of_each_model(panels, tmp_path):
    (path := tmp_path / "index.txt").write_text(TEXT, encoding="utf-8")
    shown = text_of(panels.neighbours(SENTENCE, 7, True, str(path)))
    for layer in ("characters", "LSTM 2", "embeddings", "layer 2", "layer 3"):
        assert layer in shown
    assert "The index has 34 words in 5 sentences." in shown and "The film is a good film ." in shown
    nothing = text_of(panels.neighbours("zebra", 1, True, str(path)))
    assert nothing.count("The index has no other occurrence of this word.") == 3 + 3 + 4


def test_what_users_write_is_text_and_no_html(panels, tmp_path):
    (path := tmp_path / "index.txt").write_text("<b>A film</b> & <script>alert(1)</script> .", encoding="utf-8")
    attack = "<script>film</script> &"
    tagger = write_tagger(tmp_path / "tagger", ["O", "B-<i>", "I-<i>"])
    for html in [
        panels.scores(attack, ""),
        panels.neighbours("film " + attack, 1, False, str(path)),
        panels.entities("film " + attack, tagger),
        panels.attention("BERT", attack, 1, 1),
        panels.entities(attack, "<script>"),
    ]:
        assert "<script" not in html and "<i>" not in html
    assert "&lt;" in panels.scores(attack, "")
    assert "<th>Best tags</th>" in (found := panels.entities("film " + attack, tagger)) and "<td>&lt;</td>" in found
    assert highlight("a<b", [((0, 1), 7, "<")]).count("&lt;") == 2


def test_a_model_that_cannot_be_loaded_leaves_the_other_columns(panels, tmp_path):
    panels.models["GPT"] = str(tmp_path / "none")
    (path := tmp_path / "index.txt").write_text(TEXT, encoding="utf-8")
    for html in (panels.scores(SENTENCE, ""), panels.neighbours(SENTENCE, 7, False, str(path))):
        assert alerts(html) == [f"{tmp_path / 'none'}: no such folder"]
        assert html.count("<section") == 3 and "ELMo" in html and "BERT" in html


def test_mistakes_are_shown_as_one_sentence(panels, tmp_path):
    bert = panels.models["BERT"]
    for html, message in [
        (panels.scores(" ", ""), "The sentence is empty: write a few words."),
        (panels.neighbours("", 1, False, ""), "The sentence is empty: write a few words."),
        (panels.neighbours("a " * 10_000, 1, False, ""), "The sentence has 10,000 words: shorten it to 100 or fewer."),
        (panels.entities("a" * 50_000, bert), "has 50,000 characters: shorten it to 2,000 or fewer."),
        (panels.neighbours(SENTENCE, None, False, ""), "No word is chosen: choose one of the sentence."),
        (panels.neighbours(SENTENCE, 1, False, "none.txt"), "none.txt: no such file. Name a text file of sentences."),
        (panels.neighbours(SENTENCE, 1, False, str(tmp_path)), f"{tmp_path}: no such file"),
        (panels.entities(SENTENCE, ""), "No model is named"),
        (panels.entities(SENTENCE, bert), "which run_ner.py did not train: name a folder"),
        (panels.attention("GPT", "", 1, 1), "The sentence is empty"),
    ]:
        (shown,) = alerts(html)
        assert message in shown and "\n" not in shown
    assert panels.words(" ") == [] and panels.words("a film") == [("a", 1), ("film", 2)]


def test_an_unforeseen_error_is_a_sentence_too_and_its_traceback_is_for_the_terminal(panels, capsys):
    with patch.object(panels_module, "score_sentence", side_effect=RuntimeError("broken")):
        html = panels.scores(SENTENCE, "")
    assert alerts(html) == ["This did not work (RuntimeError); the terminal says more."] * 3
    assert "Traceback" not in html and "Traceback" in capsys.readouterr().err


def test_a_page_for_other_computers_reads_only_what_its_command_line_names(panels, tmp_path):
    private, named = tmp_path / "private.txt", tmp_path / "index.txt"
    for path in (private, named):
        path.write_text(TEXT, encoding="utf-8")
    page = Panels(panels.models, frozenset({str(named)}))
    assert page.readable_name(str(named)) == str(named)
    for path in (private, "google-bert/bert-base-uncased"):
        with pytest.raises(InputError, match="open to other computers"):
            page.readable_name(str(path))
    assert page.readable_name(" ") == "" and panels.readable_name(str(private)) == str(private)


def test_the_sliders_have_as_many_layers_and_heads_as_the_models(panels, tmp_path):
    assert [panels.attention_sizes(family) for family in ("GPT", "BERT")] == [(2, 3), (3, 3)]
    panels.models["BERT"] = str(tmp_path / "none")
    assert panels.attention_sizes("BERT") == (12, 12)
    assert "no attention" in panels.no_attention()


# The command


def test_mistakes_on_the_command_line_are_one_line_errors(tmp_path):
    with pytest.raises(MissingFileError, match="--index_file none.txt: no such file"):
        app.main(["--index_file", "none.txt"])
    with pytest.raises(InputError, match="--server_port must be between 1 and 65535, not 0"):
        app.main(["--server_port", "0"])
    with patch.dict(sys.modules, {"gradio": None}), pytest.raises(PackageError, match="pip install .gradio"):
        app.main([])


def test_elsewhere_than_in_the_root_of_the_repository_the_models_have_to_be_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(MissingFileError, match="checkpoints/gpt-books: no such folder; .* name a model with --gpt"):
        app.main(["--elmo", "my/elmo", "--bert", "google-bert/bert-base-uncased"])
    args = app.parse(["--elmo", "my/elmo", "--gpt", "my/gpt", "--bert", "google-bert/bert-base-uncased"])
    assert (args.elmo, args.gpt, args.bert) == ("my/elmo", "my/gpt", "google-bert/bert-base-uncased")


def test_the_page_is_for_this_computer_and_the_shipped_models_by_default():
    args = app.parse([])
    assert args.server_name == "127.0.0.1"
    assert [Path(args.elmo), Path(args.gpt), Path(args.bert)] == [
        Path("checkpoints", f"{family}-books") for family in ("elmo", "gpt", "bert")
    ]
