"""sentence-transformers and setfit on our BERT: vectors, training and folders are those of transformers' class."""

import copy

import pytest
import setfit
import torch
from datasets import Dataset
from sentence_transformers import (
    CrossEncoder,
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.sentence_transformer.losses import CosineSimilarityLoss, MultipleNegativesRankingLoss
from sentence_transformers.sentence_transformer.modules import Pooling
from sklearn.linear_model import LogisticRegression

import modeling
from tests.clients.tiny_models import SENTENCES, assert_trained_alike, bert_pair, training_arguments, training_losses


@pytest.fixture
def folder(tmp_path):
    """What our BERT saved, with its tokenizer."""
    _, ours, tokenizer = bert_pair("Model", tmp_path / "stock")
    ours.save_pretrained(tmp_path / "ours")
    tokenizer.save_pretrained(tmp_path / "ours")
    return tmp_path / "ours"


ORIGINS = {"stock": "transformers.", "registered": "modeling.", "remote code": "transformers_modules."}


def load(folder, way: str, kind: type = SentenceTransformer):
    """sentence-transformers' model of the folder; what computes in it is found the way that is asked for."""
    if way == "registered":
        modeling.register()
    model = kind(str(folder), device="cpu", trust_remote_code=way == "remote code")
    modeling.unregister()
    assert type(model[0].auto_model).__module__.startswith(ORIGINS[way])
    return model


OURS = pytest.mark.parametrize("way", ["registered", "remote code"])


@OURS
@pytest.mark.parametrize("pooling", ["mean", "cls", "max", "lasttoken"])
def test_vectors_of_uneven_sentences_are_those_of_the_stock_model(pooling, way, folder):
    models = [load(folder, kind) for kind in ("stock", way)]
    for model in models:
        model[1] = Pooling(36, pooling_mode=pooling)
    stock, ours = (model.encode(SENTENCES, batch_size=4, convert_to_tensor=True) for model in models)
    torch.testing.assert_close(ours, stock, atol=1e-5, rtol=1e-5)
    words, ours_too = (model.encode(SENTENCES, batch_size=4, output_value="token_embeddings") for model in models)
    for theirs, mine in zip(words, ours_too, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-5)


@OURS
def test_a_saved_sentence_model_gives_the_same_vectors_in_every_class(way, folder, tmp_path):
    model = load(folder, way)
    model.save_pretrained(str(tmp_path / "saved"))
    expected = model.encode(SENTENCES, convert_to_tensor=True)
    for kind in ("stock", "registered", "remote code"):
        vectors = load(tmp_path / "saved", kind).encode(SENTENCES, convert_to_tensor=True)
        torch.testing.assert_close(vectors, expected, atol=1e-5, rtol=1e-5)


PAIRS = {"sentence1": SENTENCES, "sentence2": SENTENCES[::-1]}
SCORED = PAIRS | {"score": [0.1, 0.9, 0.4, 0.4, 0.9, 0.1]}


@OURS
@pytest.mark.parametrize(("loss", "rows"), [(CosineSimilarityLoss, SCORED), (MultipleNegativesRankingLoss, PAIRS)])
def test_training_moves_the_weights_as_it_moves_the_stock_models(loss, rows, way, folder, tmp_path):
    models = [load(folder, kind) for kind in ("stock", way)]
    before = copy.deepcopy(models[0].state_dict())
    arguments = SentenceTransformerTrainingArguments(**training_arguments(tmp_path))
    rows = Dataset.from_dict(rows)
    stock, ours = (
        training_losses(SentenceTransformerTrainer(model, arguments, train_dataset=rows, loss=loss(model)))
        for model in models
    )
    assert ours == pytest.approx(stock, abs=1e-4)
    assert_trained_alike(models[1], models[0], before)


@OURS
def test_a_cross_encoder_scores_pairs_as_the_stock_model(way, tmp_path):
    _, ours, tokenizer = bert_pair("ForSequenceClassification", tmp_path / "stock", num_labels=1)
    ours.save_pretrained(tmp_path / "ours")
    tokenizer.save_pretrained(tmp_path / "ours")
    pairs = list(zip(SENTENCES, SENTENCES[::-1], strict=True))
    stock, model = (load(tmp_path / "ours", kind, CrossEncoder) for kind in ("stock", way))
    expected = stock.predict(pairs)
    assert expected.std() > 1e-2
    assert model.predict(pairs) == pytest.approx(expected, abs=1e-5)


def test_setfit_learns_what_it_learns_on_the_stock_model(folder, tmp_path):
    rows = Dataset.from_dict({"text": SENTENCES, "label": [1, 0, 0, 0, 1, 0]})
    arguments = {"max_steps": 4, "batch_size": 4, "report_to": "none", "save_strategy": "no"}
    probabilities = []
    for way in ("stock", "registered"):
        model = setfit.SetFitModel(model_body=load(folder, way), model_head=LogisticRegression(), labels=[0, 1])
        options = setfit.TrainingArguments(str(tmp_path), body_learning_rate=1e-3, **arguments)
        setfit.Trainer(model, options, train_dataset=rows).train()
        probabilities.append(model.predict_proba(SENTENCES))
    assert probabilities[0].std() > 1e-2
    torch.testing.assert_close(probabilities[1], probabilities[0], atol=1e-4, rtol=1e-4)
