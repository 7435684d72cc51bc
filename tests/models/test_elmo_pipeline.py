"""Pipelines over ELMo's networks: transformers' own, and the one for tagging, where a word is a row of characters."""

import json

import pytest
import torch
from transformers import (
    AutoModel,
    AutoModelForPreTraining,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PreTrainedModel,
    pipeline,
)

from modeling import ElmoConfig, ElmoTokenizer
from modeling.elmo.pipeline_elmo import ElmoFillMaskPipeline, ElmoTokenClassificationPipeline


SIZES = {
    "char_embedding_size": 3,
    "filters": [[1, 4], [2, 5]],
    "num_highway_layers": 1,
    "hidden_size": 14,
    "cell_size": 9,
    "lm_vocab_size": 11,
    "num_sampled": 0,
    "rnn_size": 6,
    "classifier_size": 8,
}
TAGS = ("O", "B-PER", "I-PER", "E-PER", "S-PER")
TEXT = "Zoë met Mr. O'Neil, in Rome."
WORDS = ["Zoë", "met", "Mr.", "O'Neil", ",", "in", "Rome", "."]


def network(auto_class: type, labels: tuple[str, ...] = ()) -> PreTrainedModel:
    """With weights so large that no two words and no two tags look alike."""
    names = {"id2label": dict(enumerate(labels)), "label2id": {name: i for i, name in enumerate(labels)}}
    model = auto_class.from_config(ElmoConfig(**SIZES, constrain_tags=False, **(names if labels else {}))).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.7)
    return model


@pytest.fixture
def tagger():
    return pipeline(
        "token-classification",
        model=network(AutoModelForTokenClassification, TAGS),
        tokenizer=ElmoTokenizer(),
        pipeline_class=ElmoTokenClassificationPipeline,
        ignore_labels=[],
    )


class Says(torch.nn.Module):
    """A model that finds given tags, whatever it reads."""

    def __init__(self, tags: list[str]):
        super().__init__()
        self.tags = tags

    def forward(self, **inputs: torch.Tensor) -> dict[str, torch.Tensor]:
        tags = torch.tensor([[TAGS.index(tag) for tag in self.tags]])
        return {"logits": 9.0 * torch.nn.functional.one_hot(tags, len(TAGS))}


def saying(tagger, tags: str):
    """The tagger's pipeline with the model's answers replaced."""
    answers = Says(tags.split())
    answers.config, answers.device, answers.dtype = tagger.model.config, tagger.model.device, torch.float32
    tagger.model = answers
    return tagger


def test_each_word_has_the_model_s_tag_and_score_and_its_place_in_the_text(tagger):
    inputs = ElmoTokenizer()(TEXT, return_tensors="pt")
    with torch.inference_mode():
        scores = tagger.model(**inputs).logits[0].softmax(-1)
    found = tagger(TEXT)
    assert [row["word"] for row in found] == [TEXT[row["start"] : row["end"]] for row in found] == WORDS
    assert [row["index"] for row in found] == list(range(8))
    assert [row["entity"] for row in found] == [TAGS[best] for best in scores.argmax(-1)]
    assert [row["score"] for row in found] == pytest.approx(scores.amax(-1).tolist(), abs=1e-6)
    assert len({row["entity"] for row in found}) > 1


def test_tags_to_be_ignored_are_left_out(tagger):
    tagger = saying(tagger, "S-PER O B-PER I-PER O O O O")
    assert [row["word"] for row in tagger(TEXT, ignore_labels=["O"])] == ["Zoë", "Mr.", "O'Neil"]


@pytest.mark.parametrize("strategy", ["simple", "first", "average", "max"])
@pytest.mark.parametrize("tags", ["B-PER O B-PER I-PER O O B-PER O", "S-PER O B-PER E-PER O O S-PER O"])
def test_words_of_one_entity_are_put_together_by_every_strategy(strategy, tags, tagger):
    found = saying(tagger, tags)(TEXT, aggregation_strategy=strategy, ignore_labels=["O"])
    assert [(row["entity_group"], row["word"], TEXT[row["start"] : row["end"]]) for row in found] == [
        ("PER", "Zoë", "Zoë"),
        ("PER", "Mr. O'Neil", "Mr. O'Neil"),
        ("PER", "Rome", "Rome"),
    ]


def test_single_entities_side_by_side_stay_apart(tagger):
    found = saying(tagger, "S-PER S-PER B-PER E-PER B-PER I-PER E-PER O")(TEXT, aggregation_strategy="simple")
    assert [row["word"] for row in found] == ["Zoë", "met", "Mr. O'Neil", ", in Rome", "."]


def test_an_unknown_strategy_is_refused(tagger):
    with pytest.raises(ValueError, match="best is not a valid AggregationStrategy"):
        tagger(TEXT, aggregation_strategy="best")


def test_given_words_have_their_places_in_the_text_they_make(tagger):
    words = ["U.S.A", "Mr.", "isn't"]
    for delimiter in (" ", "", " | "):
        (found,) = tagger([words], is_split_into_words=True, delimiter=delimiter)
        text = delimiter.join(words)
        assert [text[row["start"] : row["end"]] for row in found] == [row["word"] for row in found] == words
    with pytest.raises(ValueError, match="a sentence must be a list of words, not 'Zoë'"):
        tagger("Zoë", is_split_into_words=True)
    with pytest.raises(ValueError, match="a sentence must be a string .*, not "):
        tagger([words])


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_batch_of_texts_finds_what_each_alone_does(side, tagger):
    tagger.tokenizer.padding_side = side
    texts = [TEXT, "Rome", "She met Zoë in Rome"]
    alone, batch = [tagger(text) for text in texts], tagger(texts, batch_size=3)
    keys = ("word", "entity", "start", "end")
    assert [[[row[k] for k in keys] for row in rows] for rows in batch] == [
        [[row[k] for k in keys] for row in rows] for rows in alone
    ]
    for ours, theirs in zip(batch, alone, strict=True):
        assert [row["score"] for row in ours] == pytest.approx([row["score"] for row in theirs], abs=1e-5)


def test_a_text_without_words_has_no_tags(tagger):
    assert tagger(["", TEXT], batch_size=2)[0] == []
    assert tagger("") == []


def test_transformers_own_pipelines_take_texts_and_pairs():
    model = network(AutoModelForSequenceClassification)
    classify = pipeline("text-classification", model=model, tokenizer=ElmoTokenizer(), top_k=None)
    inputs = ElmoTokenizer()([TEXT, "it"], ["She met Zoë .", ""], padding=True, return_tensors="pt")
    with torch.inference_mode():
        scores = model(**inputs).logits.softmax(-1)
    pairs = [{"text": TEXT, "text_pair": "She met Zoë ."}, {"text": "it", "text_pair": ""}]
    for batch_size in (1, 2):
        for found, expected in zip(classify(pairs, batch_size=batch_size), scores, strict=True):
            assert {row["label"]: row["score"] for row in found} == pytest.approx(
                {f"LABEL_{number}": score.item() for number, score in enumerate(expected)}, abs=1e-5
            )


def test_feature_extraction_gives_a_vector_for_each_word():
    model = network(AutoModel)
    extract = pipeline("feature-extraction", model=model, tokenizer=ElmoTokenizer(), return_tensors=True)
    for batch_size in (1, 2):
        vectors = extract([TEXT, "Rome"], batch_size=batch_size)
        with torch.inference_mode():
            expected = model(**ElmoTokenizer()(TEXT, return_tensors="pt")).last_hidden_state
        torch.testing.assert_close(vectors[0], expected, atol=1e-5, rtol=1e-5)
        assert vectors[1].shape[-1] == 14


LEXICON = ["<S>", "</S>", "<UNK>", "the", "cat", "sat", "met", "on", "Rome", ".", "Zoë"]


@pytest.fixture
def fill(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(LEXICON), encoding="utf-8")
    return pipeline(
        "fill-mask",
        model=network(AutoModelForPreTraining),
        tokenizer=ElmoTokenizer(tmp_path / "vocab.txt"),
        pipeline_class=ElmoFillMaskPipeline,
    )


def products(fill, before: list[str], after: list[str]) -> torch.Tensor:
    """p(word | words before) p(word | words behind), from two texts of which each direction reads only its side."""
    with torch.inference_mode():
        ahead, behind = (
            fill.model(**fill.tokenizer(words, is_split_into_words=True, return_tensors="pt"))
            for words in ([*before, "x"], ["y", *after])
        )
    return ahead.logits[0, -1].softmax(-1) * behind.reverse_logits[0, 0].softmax(-1)


def test_a_word_is_as_probable_as_both_directions_say(fill):
    found = fill("Zoë met [MASK], in Rome.", top_k=20)
    wanted = products(fill, ["Zoë", "met"], [",", "in", "Rome", "."])[3:]
    assert [row["token"] for row in found] == (3 + wanted.argsort(descending=True)).tolist()
    assert [row["score"] for row in found] == pytest.approx((wanted / wanted.sum()).sort().values.flip(0).tolist())
    assert all(row["token_str"] == LEXICON[row["token"]] for row in found)
    assert found[0]["sequence"] == f"Zoë met {found[0]['token_str']} , in Rome ."
    assert fill([["Zoë", "met", "[MASK]", ",", "in", "Rome", "."]])[0] == found[:5]


def test_targets_are_compared_with_each_other(fill):
    found = fill("the cat ___ .", targets=["sat", "met", "sat"], mask="___")
    wanted = products(fill, ["the", "cat"], ["."])
    wanted = {word: float(wanted[LEXICON.index(word)]) for word in ("sat", "met")}
    total = sum(wanted.values())
    assert {row["token_str"]: row["score"] for row in found} == pytest.approx(
        {word: score / total for word, score in wanted.items()}
    )


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_batch_fills_what_each_text_alone_does(side, fill):
    fill.tokenizer.padding_side = side
    texts = ["Zoë met the cat on the [MASK].", "[MASK]", "the [MASK]"]
    alone, batch = [fill(text) for text in texts], fill(texts, batch_size=3)
    for ours, theirs in zip(batch, alone, strict=True):
        assert [row["sequence"] for row in ours] == [row["sequence"] for row in theirs]
        assert [row["score"] for row in ours] == pytest.approx([row["score"] for row in theirs], abs=1e-5)


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("the cat", {}, r"'the cat' has \[MASK\] 0 times, but must have it once"),
        ("[MASK] or [MASK]", {}, r"has \[MASK\] 2 times"),
        ("the [MASK]", {"targets": ["dog"]}, r"\['dog'\] are not among the language model's words"),
        ("the [MASK]", {"targets": []}, r"targets=\[\]"),
        ("the [MASK]", {"targets": ()}, r"targets=\(\)"),
        ("the [MASK]", {"targets": ["cat", "<UNK>"]}, r"\['<UNK>'\] are not among"),
        ("the [MASK]", {"mask": ""}, 'mask="": name what stands'),
        ("the [MASK]", {"top_k": 0}, "top_k=0: ask for one word or more"),
    ],
)
def test_what_cannot_be_filled_is_one_clear_error(text, options, message, fill):
    with pytest.raises(ValueError, match=message):
        fill(text, **options)


def test_without_the_words_of_the_softmax_there_is_nothing_to_fill_in():
    with pytest.raises(ValueError, match=r"the tokenizer has no vocab\.txt"):
        pipeline(
            "fill-mask",
            model=network(AutoModelForPreTraining),
            tokenizer=ElmoTokenizer(),
            pipeline_class=ElmoFillMaskPipeline,
        )


def test_the_folder_of_a_language_model_names_its_pipeline(fill, tmp_path):
    fill.model.save_pretrained(tmp_path)
    fill.tokenizer.save_pretrained(tmp_path)
    loaded = pipeline("fill-mask", model=str(tmp_path), trust_remote_code=True)
    assert type(loaded).__name__ == "ElmoFillMaskPipeline"
    assert loaded("the [MASK] .") == fill("the [MASK] .")


def test_a_folder_names_the_pipeline_of_its_own_model_alone(fill, tmp_path):
    """Such as that of a classifier, or a tagger, that started from a language model."""
    fill.model.save_pretrained(tmp_path / "AutoModelForPreTraining")
    tasks = []
    for source, auto_class in (
        (AutoModelForPreTraining, AutoModelForSequenceClassification),
        (AutoModelForPreTraining, AutoModelForTokenClassification),
        (AutoModelForTokenClassification, AutoModelForPreTraining),
    ):
        folder = tmp_path / auto_class.__name__
        auto_class.from_pretrained(tmp_path / source.__name__).save_pretrained(folder)
        tasks.append([*json.loads((folder / "config.json").read_text()).get("custom_pipelines", {})])
    assert tasks == [[], ["token-classification"], ["fill-mask"]]
