"""transformers' Auto classes find the zoo's BERT and GPT where a user asks for them, and only there."""

import pytest
import transformers
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    OpenAIGPTTokenizer,
)
from transformers.models.auto import modeling_auto
from transformers.models.auto.tokenization_auto import REGISTERED_TOKENIZER_CLASSES

import modeling
from modeling import ZooBertConfig, ZooGPTTokenizer
from modeling.bert import configuration_bert
from modeling.gpt import configuration_gpt
from tests.support import bert_cases, gpt_cases
from tests.support.bert_cases import SIZES, pair
from tests.support.families import EACH_FAMILY, class_of, each
from tests.support.gpt_sample import merges, vocabulary


MAPS = {bert_cases: configuration_bert.AUTO_MAP, gpt_cases: configuration_gpt.AUTO_MAP}


@EACH_FAMILY
def test_importing_the_zoo_takes_nothing_over(cases, tmp_path):
    stock, _ = cases.pair("Model", tmp_path)
    assert type(AutoConfig.from_pretrained(tmp_path)) is cases.STOCK_CONFIG
    assert type(AutoModel.from_pretrained(tmp_path)) is type(stock)


@pytest.mark.parametrize("registered", [False, True])
@EACH_FAMILY
def test_the_zoos_configuration_finds_the_zoos_models(cases, registered):
    if registered:
        modeling.register()
    for auto, reference in MAPS[cases].items():
        if auto != "AutoConfig":
            decodes = {"is_decoder": True} if cases is bert_cases and auto == "AutoModelForCausalLM" else {}
            model = getattr(transformers, auto).from_config(cases.CONFIG(**cases.SIZES, **decodes))
            assert reference == f"{type(model).__module__.rpartition('.')[2]}.{type(model).__name__}"
            assert type(model).__module__.startswith("modeling.")


@EACH_FAMILY
def test_every_auto_class_that_has_the_stock_model_has_ours(cases):
    autos = [getattr(modeling_auto, name) for name in modeling_auto.__all__ if name.startswith("AutoModel")]
    maps = {auto.__name__: auto._model_mapping for auto in autos}
    kind = cases.STOCK_CONFIG.model_type
    stock = {name for name, models in maps.items() if models is not None and kind in models._model_mapping}
    ours = MAPS[cases].keys() - {"AutoConfig"}
    assert stock == ours if cases is bert_cases else stock < ours  # our GPT has heads of its own


@each("auto, head", [("AutoModelForMaskedLM", "ForMaskedLM")], [("AutoModelForCausalLM", "LMHeadModel")])
def test_registering_takes_a_family_over_and_unregistering_gives_it_back(cases, auto, head, tmp_path):
    stock, _ = cases.pair("ForSequenceClassification", tmp_path)
    for _ in range(2):  # twice in a row is harmless
        modeling.register()
    assert type(AutoConfig.from_pretrained(tmp_path)) is cases.CONFIG
    ours = class_of(cases, "ForSequenceClassification")
    assert type(AutoModelForSequenceClassification.from_pretrained(tmp_path)) is ours
    assert type(getattr(transformers, auto).from_pretrained(tmp_path)) is class_of(cases, head)
    for _ in range(2):
        modeling.unregister()
    assert type(AutoConfig.from_pretrained(tmp_path)) is cases.STOCK_CONFIG
    assert type(AutoModelForSequenceClassification.from_pretrained(tmp_path)) is type(stock)


def test_an_encoder_refuses_to_decode(tmp_path):
    pair("ForMaskedLM", tmp_path)
    modeling.register()
    remedy = r"is_decoder=True, or load .* with transformers.BertLMHeadModel, or call modeling.unregister\(\) first"
    with pytest.raises(ValueError, match=remedy):
        AutoModelForCausalLM.from_pretrained(tmp_path)
    with pytest.raises(ValueError, match=remedy):
        AutoModelForCausalLM.from_config(ZooBertConfig(**SIZES))
    assert transformers.BertLMHeadModel.from_pretrained(tmp_path).config.model_type == "bert"
    modeling.unregister()
    assert type(AutoModelForCausalLM.from_pretrained(tmp_path)) is transformers.BertLMHeadModel


def test_gpts_tokenizer_is_the_stock_one_until_it_is_registered(tmp_path):
    OpenAIGPTTokenizer(vocab=vocabulary(), merges=merges()).save_pretrained(tmp_path)
    assert type(AutoTokenizer.from_pretrained(tmp_path)) is OpenAIGPTTokenizer
    for _ in range(2):
        modeling.register()
    assert type(AutoTokenizer.from_pretrained(tmp_path)) is ZooGPTTokenizer
    for _ in range(2):
        modeling.unregister()
    assert type(AutoTokenizer.from_pretrained(tmp_path)) is OpenAIGPTTokenizer


def test_unregistering_leaves_a_tokenizer_that_someone_else_registered(monkeypatch):
    monkeypatch.setitem(REGISTERED_TOKENIZER_CLASSES, "OpenAIGPTTokenizer", OpenAIGPTTokenizer)
    modeling.unregister()
    assert REGISTERED_TOKENIZER_CLASSES["OpenAIGPTTokenizer"] is OpenAIGPTTokenizer
    modeling.register()
    modeling.unregister()
    assert "OpenAIGPTTokenizer" not in REGISTERED_TOKENIZER_CLASSES
