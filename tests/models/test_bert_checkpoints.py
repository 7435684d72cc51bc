"""Folders of published checkpoints load and save unchanged, whatever their age, and nothing else passes for one."""

import json
import logging

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    BertConfig,
    BertModel,
)
from transformers.models.auto import modeling_auto

import modeling
from modeling import ZooBertConfig, ZooBertForMaskedLM, ZooBertForPreTraining, ZooBertForSequenceClassification
from tests.support.bert_cases import HEADS, SIZES, batch, pair
from tests.support.strangers import code_followed, code_in


@pytest.fixture
def log(caplog):
    """What transformers tells the user, as text."""
    transformers.utils.logging.set_verbosity_warning()
    transformers.utils.logging.enable_propagation()
    caplog.set_level(logging.WARNING)
    yield lambda: caplog.text
    transformers.utils.logging.disable_propagation()


@pytest.mark.parametrize("head", ["Model", *HEADS])
def test_what_we_save_is_the_stock_checkpoint_bit_for_bit(head, tmp_path, log):
    stock, ours = pair(head, tmp_path / "stock")
    ours.save_pretrained(tmp_path / "ours")
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("stock", "ours"))
    assert sorted(before) == sorted(after)
    assert all(torch.equal(before[name], after[name]) for name in before)
    again = type(stock).from_pretrained(tmp_path / "ours")
    for name, tensor in again.state_dict().items():
        assert torch.equal(tensor, stock.state_dict()[name])
    assert log() == ""


@pytest.mark.parametrize("head", ["Model", *HEADS])
def test_a_fresh_model_of_ours_is_a_checkpoint_for_the_stock_class_that_it_names(head, tmp_path):
    ours = getattr(modeling, f"ZooBert{head}")(ZooBertConfig(**SIZES)).eval()
    ours.save_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())
    assert written["model_type"] == "bert" and written["architectures"] == [f"Bert{head}"]
    named = getattr(transformers, written["architectures"][0])
    stock, report = named.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"))
    inputs = batch()
    if head == "ForMultipleChoice":
        inputs = {name: tensor.unsqueeze(1) for name, tensor in inputs.items()}
    real = inputs["attention_mask"].bool()
    name = "start_logits" if head == "ForQuestionAnswering" else 0
    mine, theirs = ours(**inputs)[name], stock.eval()(**inputs)[name]
    if mine.shape[:2] == real.shape:
        mine, theirs = mine[real], theirs[real]
    torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-5)


def rewrite(folder, change, name="model.safetensors"):
    """Replace the tensors of a saved folder by what `change` makes of them."""
    tensors = change(load_file(folder / "model.safetensors"))
    (folder / "model.safetensors").unlink()
    if name.endswith(".bin"):
        torch.save(tensors, folder / name)
    else:
        save_file(tensors, folder / name, metadata={"format": "pt"})


AGES = {
    "gamma and beta": lambda tensors: {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
        for name, tensor in tensors.items()
    },
    "position_ids": lambda tensors: (
        tensors | {"bert.embeddings.position_ids": torch.arange(SIZES["max_position_embeddings"]).unsqueeze(0)}
    ),
    "untied copies": lambda tensors: (
        tensors
        | {
            "cls.predictions.decoder.weight": tensors["bert.embeddings.word_embeddings.weight"].clone(),
            "cls.predictions.decoder.bias": tensors["cls.predictions.bias"].clone(),
        }
    ),
}


@pytest.mark.parametrize("file", ["model.safetensors", "pytorch_model.bin"])
@pytest.mark.parametrize("age", AGES)
def test_old_files_load(age, file, tmp_path, log):
    stock, _ = pair("ForPreTraining", tmp_path)
    rewrite(tmp_path, AGES[age], file)
    ours = ZooBertForPreTraining.from_pretrained(tmp_path)
    for name, tensor in ours.state_dict().items():
        assert torch.equal(tensor, stock.state_dict()[name]), name
    assert log() == ""


def test_a_base_checkpoint_fills_a_head_and_a_heads_checkpoint_the_base(tmp_path, log):
    stock, _ = pair("Model", tmp_path / "base")
    head = ZooBertForSequenceClassification.from_pretrained(tmp_path / "base")
    assert "classifier.weight" in log()  # newly initialised: the user's business
    assert torch.equal(head.bert.pooler.dense.weight, stock.pooler.dense.weight)
    head.save_pretrained(tmp_path / "head")
    base = modeling.ZooBertModel.from_pretrained(tmp_path / "head")
    for name, tensor in stock.state_dict().items():
        assert torch.equal(base.state_dict()[name], tensor), name


@pytest.mark.parametrize("head", ["ForSequenceClassification", "ForTokenClassification", "ForMaskedLM"])
def test_the_unused_heads_of_a_pretraining_checkpoint_are_no_news(head, tmp_path, log):
    pair("ForPreTraining", tmp_path)
    getattr(modeling, f"ZooBert{head}").from_pretrained(tmp_path)
    assert "seq_relationship" not in log() and "UNEXPECTED" not in log()
    assert ("classifier" in log()) == (head != "ForMaskedLM")


@pytest.mark.parametrize("head", ["Model", "ForMaskedLM", "ForSequenceClassification"])
def test_heads_that_no_bert_has_are_news_as_they_are_for_the_stock_model(head, tmp_path):
    stock, ours = pair(head, tmp_path)
    rewrite(tmp_path, lambda tensors: tensors | {"cls.species.weight": torch.ones(2, 36)})
    for model in (stock, ours):
        report = type(model).from_pretrained(tmp_path, output_loading_info=True)[1]
        assert set(report["unexpected_keys"]) == {"cls.species.weight"}


def test_a_checkpoint_without_pooler_says_so_where_it_matters(tmp_path, log):
    _, ours = pair("ForMaskedLM", tmp_path)
    modeling.ZooBertModel.from_pretrained(tmp_path, add_pooling_layer=False)
    assert log() == ""
    modeling.ZooBertModel.from_pretrained(tmp_path)
    assert "pooler.dense.weight" in log() and "MISSING" in log()


def test_shards_load_and_are_saved(tmp_path):
    stock, ours = pair("ForMaskedLM", tmp_path / "stock")
    stock.save_pretrained(tmp_path / "shards", max_shard_size="20KB")
    assert (tmp_path / "shards" / "model.safetensors.index.json").is_file()
    again = ZooBertForMaskedLM.from_pretrained(tmp_path / "shards")
    again.save_pretrained(tmp_path / "ours", max_shard_size="20KB")
    back = transformers.BertForMaskedLM.from_pretrained(tmp_path / "ours")
    for name, tensor in again.state_dict().items():
        assert torch.equal(stock.state_dict()[name], tensor) and torch.equal(back.state_dict()[name], tensor)


class Subclass(ZooBertForMaskedLM):
    """What a user derives from a class of the zoo."""


@pytest.mark.parametrize("what", ["configuration", "model", "subclass", "wrapped by FSDP"])
def test_whatever_is_saved_brings_the_code_its_folder_names(what, tmp_path):
    config = ZooBertConfig(**SIZES)
    model = Subclass(config) if what == "subclass" else ZooBertForMaskedLM(config)
    if what == "wrapped by FSDP":  # accelerate and FSDP2 make such a class of the model's, in a module of torch
        wrapped = type("FSDPZooBertForMaskedLM", (ZooBertForMaskedLM,), {"__module__": "torch.distributed.fsdp"})
        model.__class__ = wrapped
    (config if what == "configuration" else model).save_pretrained(tmp_path)
    named = json.loads((tmp_path / "config.json").read_text())["auto_map"]
    others = {"AutoConfig", "AutoModel", "AutoModelForCausalLM", "AutoModelForTextEncoding"}
    assert {f"AutoModelFor{head.removeprefix('For')}" for head in HEADS} | others == named.keys()
    assert code_in(tmp_path) == code_followed(tmp_path) >= {f"{each.split('.')[0]}.py" for each in named.values()}
    config = AutoConfig.from_pretrained(tmp_path, trust_remote_code=True)
    kinds = {"configuration": None, "subclass": ["Subclass"]}
    assert config.architectures == kinds.get(what, ["BertForMaskedLM"])
    again = AutoModelForMaskedLM.from_config(config, trust_remote_code=True)
    assert type(again).__module__.startswith("transformers_modules.")
    assert type(again).__name__ in modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES.values()


@pytest.mark.parametrize("damage", ["cut in half", "another size"])
def test_a_damaged_file_is_an_error_that_names_it(damage, tmp_path):
    pair("ForMaskedLM", tmp_path)
    if damage == "cut in half":
        whole = (tmp_path / "model.safetensors").read_bytes()
        (tmp_path / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    else:
        rewrite(tmp_path, lambda tensors: tensors | {"cls.predictions.transform.dense.bias": torch.zeros(5)})
    with pytest.raises(Exception, match="(?i)model.safetensors|incomplete|mismatch"):
        ZooBertForMaskedLM.from_pretrained(tmp_path)


def test_importing_the_zoo_takes_nothing_over(tmp_path):
    pair("ForMaskedLM", tmp_path)
    assert type(AutoConfig.from_pretrained(tmp_path)) is BertConfig
    assert type(AutoModel.from_pretrained(tmp_path)) is BertModel


def test_the_zoos_configuration_finds_the_zoos_models():
    config = ZooBertConfig(**SIZES)
    assert type(AutoModel.from_config(config)) is modeling.ZooBertModel
    assert type(AutoModelForMaskedLM.from_config(config)) is ZooBertForMaskedLM


def test_registering_takes_bert_over_and_unregistering_gives_it_back(tmp_path):
    pair("ForSequenceClassification", tmp_path)
    for _ in range(2):  # twice in a row is harmless
        modeling.register()
    assert type(AutoConfig.from_pretrained(tmp_path)) is ZooBertConfig
    assert type(AutoModelForSequenceClassification.from_pretrained(tmp_path)) is ZooBertForSequenceClassification
    for _ in range(2):
        modeling.unregister()
    assert type(AutoModelForSequenceClassification.from_pretrained(tmp_path)).__module__.startswith("transformers.")


def test_every_auto_class_is_covered_and_an_encoder_refuses_to_decode(tmp_path):
    pair("ForMaskedLM", tmp_path)
    modeling.register()
    for auto, reference in modeling.bert.configuration_bert.AUTO_MAP.items():
        if auto != "AutoConfig":
            config = ZooBertConfig(**SIZES, is_decoder=auto == "AutoModelForCausalLM")
            model = getattr(transformers, auto).from_config(config)
            assert reference == f"{type(model).__module__.rpartition('.')[2]}.{type(model).__name__}"
    autos = [getattr(modeling_auto, name) for name in modeling_auto.__all__ if name.startswith("AutoModel")]
    stock = {auto.__name__ for auto in autos if BertConfig in (auto._model_mapping or ())}
    assert stock == modeling.bert.configuration_bert.AUTO_MAP.keys() - {"AutoConfig"}
    remedy = r"is_decoder=True, or load .* with transformers.BertLMHeadModel, or call modeling.unregister\(\) first"
    with pytest.raises(ValueError, match=remedy):
        AutoModelForCausalLM.from_pretrained(tmp_path)
    with pytest.raises(ValueError, match=remedy):
        AutoModelForCausalLM.from_config(ZooBertConfig(**SIZES))
    assert transformers.BertLMHeadModel.from_pretrained(tmp_path).config.model_type == "bert"
    modeling.unregister()
    assert type(AutoModelForCausalLM.from_pretrained(tmp_path)) is transformers.BertLMHeadModel


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ({"position_embedding_type": "relative_key"}, "absolute positions only"),
        ({"hidden_size": 37}, "hidden_size=37 is not a multiple of num_attention_heads=3"),
        ({"num_hidden_layers": 1.5}, "num_hidden_layers"),
    ],
)
def test_a_configuration_that_this_encoder_cannot_compute_is_refused(field, message, tmp_path):
    with pytest.raises(Exception, match=message):
        ZooBertConfig(**(SIZES | field))
    BertConfig(**SIZES).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | field))
    with pytest.raises(Exception, match=message):
        ZooBertConfig.from_pretrained(tmp_path)


def test_the_defaults_are_berts_base():
    published = BertConfig().to_dict()
    ours = ZooBertConfig().to_dict()
    assert {name: ours[name] for name in SIZES} == {name: published[name] for name in SIZES}
    parameters = sum(parameter.numel() for parameter in modeling.ZooBertModel(ZooBertConfig()).parameters())
    assert round(parameters / 1e6) == 109  # "110M" in section 3


def test_random_weights_follow_the_configuration():
    model = ZooBertForPreTraining(ZooBertConfig(**(SIZES | {"hidden_size": 240, "initializer_range": 0.05})))
    for name, parameter in model.named_parameters():
        if name.endswith("LayerNorm.weight"):
            assert torch.all(parameter == 1)
        elif name.endswith("bias"):
            assert torch.all(parameter == 0)
        elif parameter.numel() > 5000:
            assert abs(parameter.std().item() / 0.05 - 1) < 0.05, name
