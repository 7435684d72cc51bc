"""What the page says of a sentence is what plain loops, run_blimp.py and the pipelines say of it."""

from collections import Counter
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics.pairwise import cosine_similarity
from transformers import AutoModelForTokenClassification, AutoTokenizer, BertModel, BertTokenizer, pipeline

import modeling
from elmo_gpt_bert.analysis.representations import load_encoder, word_vectors
from elmo_gpt_bert.analysis.senses import LABELLED, accuracies, read_labelled, vectors_of
from elmo_gpt_bert.explorer.drawing import describe_verdict, describe_word, draw_attention, draw_neighbours
from elmo_gpt_bert.explorer.entities import entities_of, load_tagger, tag_words
from elmo_gpt_bert.explorer.language_models import LanguageModel, attend, load_language_model
from elmo_gpt_bert.explorer.neighbours import find_neighbours, read_index, sense_accuracies
from elmo_gpt_bert.explorer.surprisal import score_sentence
from elmo_gpt_bert.training.errors import InputError, MissingFileError
from modeling import (
    ElmoTokenClassificationPipeline,
    ZooBertConfig,
    ZooBertForTokenClassification,
)
from tests.support.analysis_sample import TEXT
from tests.support.ner_sample import write_elmo
from tests.support.pairs_sample import PAIRS, WORD_PIECES, write_bert, write_bilm, write_gpt
from tests.tasks.test_minimal_pairs import bilm_scores, log_p


WRITERS = {"ELMo": write_bilm, "GPT": write_gpt, "BERT": write_bert}
INVISIBLE = "\u200b"  # a space of no width, which BERT leaves out
SENTENCE = "is the plot not a dull film ?"  # plot and dull are several pieces for BERT, most words for GPT


@pytest.fixture(autouse=True)
def _zoo():
    modeling.register()


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Path:
    """A folder for the models, none of which any test changes."""
    return tmp_path_factory.mktemp("models")


@cache
def model_of(family: str, folder: Path) -> LanguageModel:
    return load_language_model(family, str(WRITERS[family](folder)))


def test_the_words_of_a_sentence_add_up_to_its_score_in_run_blimp_and_so_the_same_one_of_two_is_preferred(models):
    for family in WRITERS:
        scorer = (model := model_of(family, models)).scorer
        # film's and 0.5 are other words for BERT's tokenizer than for the page
        for pair in [*PAIRS, ("the film's plot is 0.5.", "the plot's film is 0.5.")]:
            with torch.no_grad():
                outputs = scorer(**scorer.collate(scorer.encode(list(pair[:2]))))
            expected = sum(outputs.values()) / -np.log(2)
            scored = [score_sentence(model, sentence) for sentence in pair[:2]]
            assert [each.bits for each in scored] == pytest.approx(expected.tolist(), abs=1e-4), (family, pair)
            better = "neither" if expected[0] == expected[1] else ("first", "second")[int(expected[1] < expected[0])]
            assert better in describe_verdict(*scored)


@torch.no_grad()
def test_a_masked_models_word_is_masked_as_a_whole_and_uncovered_piece_by_piece(models):
    model, tokenizer = model_of("BERT", models).scorer.model, BertTokenizer.from_pretrained(models / "bert")
    ids = tokenizer(SENTENCE)["input_ids"]
    pieces = tokenizer.convert_ids_to_tokens(ids)
    begin = pieces.index("du")
    expected = 0.0
    for shown in range(3):  # du ##l ##l
        copy = [*ids[: begin + shown], *[tokenizer.mask_token_id] * (3 - shown), *ids[begin + 3 :]]
        expected -= log_p(model(torch.tensor([copy])).logits[0, begin + shown], ids[begin + shown]) / np.log(2)
    word = score_sentence(model_of("BERT", models), SENTENCE).words[5]
    assert (word.word, word.pieces) == ("dull", ["du", "##l", "##l"])
    assert word.bits == pytest.approx([expected], abs=1e-4)
    assert word.probability == pytest.approx(2**-expected)


@torch.no_grad()
def test_a_causal_models_word_has_all_of_its_pieces_but_nothing_predicts_the_first(models):
    scorer = (model := model_of("GPT", models)).scorer
    ids = scorer.tokenizer("plot is bad")["input_ids"]
    logits = scorer.model(torch.tensor([ids])).logits[0]
    bits = [-log_p(logits[place - 1], ids[place]) / np.log(2) for place in range(1, len(ids))]
    plot, verb, bad = score_sentence(model, "plot is bad").words
    assert [len(word.pieces) for word in (plot, verb, bad)] == [4, 1, 3] and plot.is_partial and not bad.is_partial
    assert [*plot.bits, *verb.bits, *bad.bits] == pytest.approx([sum(bits[:3]), bits[3], sum(bits[4:])], abs=1e-4)
    first = score_sentence(model, "film is").words[0]
    assert first.pieces == ["film"] and first.bits == [] and first.probability is None and not first.is_partial


def test_a_bilms_word_is_predicted_in_both_directions_and_so_are_the_ends(models):
    scorer = (model := model_of("ELMo", models)).scorer
    scored = score_sentence(model, SENTENCE)
    both = np.array([word.bits for word in scored.words])
    with torch.no_grad():
        outputs = scorer.model(**scorer.tokenizer([SENTENCE.split()], is_split_into_words=True, return_tensors="pt"))
    targets = scorer.tokenizer.word_targets(SENTENCE.split())
    for bits, logits in zip(both.T, (outputs.logits[0], outputs.reverse_logits[0]), strict=True):
        assert bits == pytest.approx(
            [-log_p(row, target) / np.log(2) for row, target in zip(logits, targets, strict=True)], abs=1e-4
        )
    expected = [-score / np.log(2) for score in bilm_scores(scorer.model, scorer.tokenizer, SENTENCE)]
    assert both.sum(0) + scored.edges == pytest.approx(expected, abs=1e-4)
    assert [word.is_unknown for word in score_sentence(model, "the cast or film").words] == [False, True, True, False]


@pytest.mark.parametrize("family", WRITERS)
def test_neighbours_are_the_words_with_the_highest_cosines_in_each_layer(family, models, tmp_path):
    model = model_of(family, models)
    (path := tmp_path / "index.txt").write_text(TEXT, encoding="utf-8")
    index, words = read_index(str(path)), SENTENCE.split()
    encoder = load_encoder(model.name)  # another way to the same vectors
    of_index, query = word_vectors(encoder, index.sentences), word_vectors(encoder, [words])[:, 6]
    flat = [word for sentence in index.sentences for word in sentence]
    for same_word in (False, True):
        layers = find_neighbours(model, index, words, 6, same_word=same_word, shown=99)
        chosen = [place for place, word in enumerate(flat) if not same_word or word.lower() == "film"]
        assert list(layers) == encoder.layers
        for neighbours, vectors, of_query in zip(layers.values(), of_index, query, strict=True):
            cosines = cosine_similarity(vectors[chosen], of_query[None])[:, 0]
            ours = np.repeat([each.cosine for each in neighbours], [each.count for each in neighbours])
            np.testing.assert_allclose(ours, np.sort(cosines)[::-1], atol=2e-5)
            assert neighbours[0].word.lower() == flat[chosen[cosines.argmax()]].lower()


def test_occurrences_that_are_equally_near_are_one_neighbour_and_the_sentence_is_not_its_own(models, tmp_path):
    model = model_of("ELMo", models)
    (path := tmp_path / "index.txt").write_text(TEXT, encoding="utf-8")
    words = ["Not", "a", "very", "bad", "film", "."]
    characters = find_neighbours(model, read_index(str(path)), words, 4, same_word=True)["characters"]
    assert [(each.word, each.count) for each in characters] == [("film", 3)]  # the fourth is in the sentence
    assert characters[0].left == "The" and characters[0].right == "is a good film ."


def test_the_labelled_index_says_the_senses_of_neighbours_and_how_often_a_layer_tells_them(models):
    model, index = model_of("BERT", models), read_index(None)
    occurrences = [each for each in read_labelled(LABELLED) if each.word == "bank"]
    expected = {
        layer: accuracies(vectors, occurrences)["bank"]
        for layer, vectors in zip(model.encoder.layers, vectors_of(model.encoder, occurrences), strict=True)
    }
    assert sense_accuracies(model, index, "Bank") == pytest.approx(expected)
    assert sense_accuracies(model, index, "the") == {}
    layers = find_neighbours(model, index, ["They", "sat", "on", "the", "bank", "."], 4, same_word=True, shown=200)
    senses = Counter(each.sense for each in layers["layer 3"] if each.count == 1)
    assert senses["river"] > 5 and senses["money"] > 5 and senses.keys() <= {"river", "money", None}
    html = draw_neighbours("BERT", layers, expected)
    assert html.count(" open>") == 1 and '">river</small>' in html
    best = max(expected, key=lambda layer: (expected[layer], list(expected).index(layer)))
    assert f'>{expected[best]:.0%}</span><span class="word">{best}<' in html.partition(" open>")[2]


def test_an_index_leaves_long_sentences_out_and_an_empty_or_missing_one_is_an_error(tmp_path):
    (path := tmp_path / "index.txt").write_text("A plot .\n" + "word " * 61 + "\nThe end .", encoding="utf-8")
    index = read_index(str(path))
    assert index.sentences == [["A", "plot", "."], ["The", "end", "."]] and not index.is_whole
    (empty := tmp_path / "empty.txt").write_text("\n", encoding="utf-8")
    with pytest.raises(InputError, match="has no sentence"):
        read_index(str(empty))
    with pytest.raises(MissingFileError, match="no such file"):
        read_index(str(tmp_path / "none.txt"))
    assert len(read_index(None).sentences) == 351


def test_an_index_ends_where_it_has_the_most_words(tmp_path, monkeypatch):
    monkeypatch.setattr("elmo_gpt_bert.explorer.neighbours.MOST_WORDS", 65)
    ten = " ".join(["word"] * 10)
    (path := tmp_path / "index.txt").write_text("\n".join([ten] * 7 + ["The end ."]), encoding="utf-8")
    index = read_index(str(path))
    assert index.sentences == [ten.split()] * 6 and not index.is_whole


# Fine-tuned models


def write_tagger(folder: Path, names: list[str]) -> str:
    """A BERT with random weights, large enough that all tags occur."""
    sizes = {"hidden_size": 12, "num_hidden_layers": 1, "num_attention_heads": 3, "intermediate_size": 20}
    labels = {"id2label": dict(enumerate(names)), "label2id": {name: number for number, name in enumerate(names)}}
    torch.manual_seed(3)
    config = ZooBertConfig(vocab_size=len(WORD_PIECES), max_position_embeddings=9, initializer_range=1.5, **sizes)
    config.update(labels)
    ZooBertForTokenClassification(config).save_pretrained(folder)
    BertTokenizer(vocab={token: number for number, token in enumerate(WORD_PIECES)}).save_pretrained(folder)
    return str(folder)


def test_entities_and_scores_are_those_of_the_pipelines(tmp_path):
    short = ["the plot is bad", "a dull film , not", "is the cast bad ?", "not very good"]
    bert = write_tagger(tmp_path / "bert", ["O", "B-PER", "I-PER", "B-WORK", "I-WORK"])
    torch.manual_seed(5)
    for name, pipeline_class in ((bert, None), (write_elmo(tmp_path / "elmo"), ElmoTokenClassificationPipeline)):
        model = AutoModelForTokenClassification.from_pretrained(name)
        model.config.id2label = {0: "O", 1: "B-PER"} if pipeline_class else model.config.id2label
        model.save_pretrained(name)
        if pipeline_class:
            AutoTokenizer.from_pretrained(name).save_pretrained(name)
        find = pipeline(
            "token-classification",
            model=AutoModelForTokenClassification.from_pretrained(name),
            tokenizer=AutoTokenizer.from_pretrained(name),
            aggregation_strategy="first",
            pipeline_class=pipeline_class,
        )
        found = 0
        for sentence in short:
            entities = entities_of(tag_words(load_tagger(name), sentence))
            expected = find(sentence)
            assert [(each.type, each.span) for each in entities] == [
                (each["entity_group"], (each["start"], each["end"])) for each in expected
            ]
            assert [each.score for each in entities] == pytest.approx([float(each["score"]) for each in expected])
            found += len(entities)
        assert found


def test_a_sentence_that_is_too_long_for_the_tagger_is_read_in_parts(tmp_path):
    tagger = load_tagger(write_tagger(tmp_path / "bert", ["O", "B-PER", "I-PER"]))  # of 9 positions
    words = tag_words(tagger, "the plot is bad , the film is not very good , is the cast bad ?")
    assert len(words) == 17 and all(sum(score for _, score in word.best) == pytest.approx(1) for word in words)


# Attention


def test_attention_is_that_of_transformers_model(models):
    model = model_of("BERT", models)
    modeling.unregister()
    stock = BertModel.from_pretrained(models / "bert", attn_implementation="eager")
    modeling.register()
    inputs = model.scorer.tokenizer(SENTENCE, return_tensors="pt")
    with torch.no_grad():
        layers = stock(**inputs, output_attentions=True).attentions
    for layer, head in ((1, 2), (3, 1)):
        ours = attend(model, SENTENCE, layer, head)
        np.testing.assert_allclose(ours.weights, layers[layer - 1][0, head - 1], atol=1e-5)
    np.testing.assert_allclose(attend(model, SENTENCE, 2, None).weights, layers[1][0].mean(0), atol=1e-5)
    assert ours.tokens == ["[CLS]", *model.scorer.tokenizer.tokenize(SENTENCE), "[SEP]"]
    inner = ours.without_ends()
    assert inner.tokens == ours.tokens[1:-1] and inner.ends.tolist() == [False] * len(inner.tokens)
    np.testing.assert_array_equal(inner.weights, ours.weights[1:-1, 1:-1])
    assert draw_attention(inner).count("<tr>") == 1 + len(inner.tokens)
    assert inner.share == pytest.approx(1 - inner.weights.sum(1).mean(), abs=1e-6) and inner.share > 0


def test_a_causal_model_attends_to_nothing_behind_a_token(models):
    weights = attend(model_of("GPT", models), SENTENCE, 2, 1).weights
    assert np.triu(weights, 1).max() == 0 and weights.sum(1) == pytest.approx(1)


# Mistakes


def test_mistakes_are_one_sentence_each(models, tmp_path):
    bert, gpt = model_of("BERT", models), str(write_gpt(tmp_path))
    (_, word, _) = score_sentence(bert, f"film {INVISIBLE} is").words
    assert describe_word(word) == "not predicted: the model has no token for it" and word.bits == []
    for mistake, message in [
        (lambda: score_sentence(bert, " "), "The sentence is empty"),
        (lambda: score_sentence(bert, "film " * 101), "101 words: shorten it to 100"),
        (lambda: score_sentence(bert, "film " * 20), "22 tokens, but .* reads at most 19"),
        (lambda: score_sentence(bert, INVISIBLE), "has no token for this sentence: write a few words"),
        (lambda: attend(bert, INVISIBLE, 1, 1), "has no token for this sentence: write a few words"),
        (
            lambda: find_neighbours(bert, read_index(None), ["film", INVISIBLE], 1, same_word=False),
            r"has no token for word 2, '\\u200b': choose another word",
        ),
        (lambda: load_language_model("BERT", gpt), "is not a masked language model, it belongs in the column of GPT"),
        (lambda: load_language_model("BERT", " "), "No model is named"),
        (lambda: load_language_model("ELMo", str(tmp_path / "none")), "no such folder"),
        (lambda: load_tagger(bert.name), "which run_ner.py did not train: name a folder that run_ner.py trained"),
    ]:
        with pytest.raises((InputError, MissingFileError), match=message) as caught:
            mistake()
        assert "\n" not in str(caught.value)
