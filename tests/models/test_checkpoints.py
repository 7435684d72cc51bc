"""Folders of published checkpoints load and save unchanged, whatever their age, and nothing else passes for one."""

import json

import pytest
import torch
import transformers
from safetensors.torch import load_file
from transformers import AutoConfig

from modeling import ZooBertForMaskedLM, ZooGPTLMHeadModel
from tests.support import bert_cases, gpt_cases
from tests.support.families import class_of, each
from tests.support.model_cases import assert_same_outputs, assert_same_tensors, rewrite
from tests.support.strangers import code_followed, code_in


EACH_HEAD = each("head", ["Model", *bert_cases.HEADS], ["Model", *gpt_cases.STOCK_HEADS])


@EACH_HEAD
def test_what_we_save_is_the_stock_checkpoint_bit_for_bit(cases, head, tmp_path, log):
    stock, ours = cases.pair(head, tmp_path / "stock")
    assert_same_tensors(ours, stock)
    ours.save_pretrained(tmp_path / "ours")
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("stock", "ours"))
    named = {"lm_head.weight": "transformer.tokens_embed.weight"}  # of two names for one tensor a file has one
    before, after = ({named.get(name, name): tensor for name, tensor in file.items()} for file in (before, after))
    assert sorted(before) == sorted(after)
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert_same_tensors(type(stock).from_pretrained(tmp_path / "ours"), stock)
    assert log() == ""


@EACH_HEAD
def test_a_fresh_model_of_ours_is_a_checkpoint_for_the_stock_class_that_it_names(cases, head, tmp_path):
    ours, this = cases.zoo(head), cases.case(head)
    ours.save_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())
    assert written["model_type"] == cases.STOCK_CONFIG.model_type and written["architectures"] == [cases.STOCK + head]
    named = getattr(transformers, written["architectures"][0])
    stock, report = named.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"))
    assert_same_outputs(ours(**this.inputs), stock.eval()(**this.for_stock), this.real)


@pytest.mark.parametrize("file", ["model.safetensors", "pytorch_model.bin"])
@each(
    "head, age",
    [("ForPreTraining", age) for age in bert_cases.AGES],
    [("LMHeadModel", age) for age in gpt_cases.AGES],
)
def test_old_files_load(cases, head, age, file, tmp_path, log):
    stock, _ = cases.pair(head, tmp_path)
    rewrite(tmp_path, cases.AGES[age], file)
    ours = class_of(cases, head).from_pretrained(tmp_path)
    assert_same_tensors(ours, stock)
    assert ours.get_output_embeddings().weight is ours.get_input_embeddings().weight
    assert log() == ""


@each("new", ["classifier.weight"], ["score.weight"])
def test_a_base_checkpoint_fills_a_head_and_a_heads_checkpoint_the_base(cases, new, tmp_path, log):
    stock, _ = cases.pair("Model", tmp_path / "base")
    head = class_of(cases, "ForSequenceClassification").from_pretrained(tmp_path / "base")
    assert new in log()  # newly initialised: the user's business
    assert_same_tensors(head.base_model, stock)
    head.save_pretrained(tmp_path / "head")
    assert_same_tensors(class_of(cases, "Model").from_pretrained(tmp_path / "head"), stock)


@each("head", ["ForMaskedLM"], ["LMHeadModel"])
def test_shards_load_and_are_saved(cases, head, tmp_path):
    stock, _ = cases.pair(head, tmp_path / "stock")
    stock.save_pretrained(tmp_path / "shards", max_shard_size="20KB")
    assert (tmp_path / "shards" / "model.safetensors.index.json").is_file()
    again = class_of(cases, head).from_pretrained(tmp_path / "shards")
    again.save_pretrained(tmp_path / "ours", max_shard_size="20KB")
    for model in (again, type(stock).from_pretrained(tmp_path / "ours")):
        assert_same_tensors(model, stock)


class BertSubclass(ZooBertForMaskedLM):
    """What a user derives from a class of the zoo."""


class GPTSubclass(ZooGPTLMHeadModel):
    """What a user derives from a class of the zoo."""


SUBCLASSES = {bert_cases: BertSubclass, gpt_cases: GPTSubclass}
TASKS = {
    bert_cases: [*bert_cases.HEADS, "ForCausalLM", "ForTextEncoding"],
    gpt_cases: [*gpt_cases.OWN_HEADS, "ForSequenceClassification", "ForCausalLM", "ForPreTraining"],
}


@pytest.mark.parametrize("what", ["configuration", "model", "subclass", "wrapped by FSDP"])
@each("head, auto", [("ForMaskedLM", "AutoModelForMaskedLM")], [("LMHeadModel", "AutoModelForCausalLM")])
def test_whatever_is_saved_brings_the_code_its_folder_names(cases, head, auto, what, tmp_path):
    config, subclass = cases.CONFIG(**cases.SIZES), SUBCLASSES[cases]
    model = (subclass if what == "subclass" else class_of(cases, head))(config)
    if what == "wrapped by FSDP":  # accelerate and FSDP2 make such a class of the model's, in a module of torch
        name = f"FSDP{type(model).__name__}"
        model.__class__ = type(name, (type(model),), {"__module__": "torch.distributed.fsdp"})
    (config if what == "configuration" else model).save_pretrained(tmp_path)
    named = json.loads((tmp_path / "config.json").read_text())["auto_map"]
    assert named.keys() == {"AutoConfig", "AutoModel", *(f"AutoModel{task}" for task in TASKS[cases])}
    assert code_in(tmp_path) == code_followed(tmp_path) >= {f"{each.split('.')[0]}.py" for each in named.values()}
    config = AutoConfig.from_pretrained(tmp_path, trust_remote_code=True)
    kinds = {"configuration": None, "subclass": [subclass.__name__]}
    assert config.architectures == kinds.get(what, [cases.STOCK + head])
    auto = getattr(transformers, auto)
    again = auto.from_config(config, trust_remote_code=True)
    assert type(again).__module__.startswith("transformers_modules.")
    assert type(again).__name__ in auto._model_mapping._model_mapping.values()  # where names are looked up


@pytest.mark.parametrize("damage", ["cut in half", "another size"])
@each(
    "head, name",
    [("ForMaskedLM", "cls.predictions.transform.dense.bias")],
    [("LMHeadModel", "transformer.h.0.ln_1.bias")],
)
def test_a_damaged_file_is_an_error_that_names_it(cases, head, name, damage, tmp_path):
    cases.pair(head, tmp_path)
    if damage == "cut in half":
        whole = (tmp_path / "model.safetensors").read_bytes()
        (tmp_path / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    else:
        rewrite(tmp_path, lambda tensors: tensors | {name: torch.zeros(5)})
    with pytest.raises(Exception, match="(?i)model.safetensors|incomplete|mismatch"):
        class_of(cases, head).from_pretrained(tmp_path)


REFUSED_BY_BERT = [
    ({"position_embedding_type": "relative_key"}, "absolute positions only"),
    ({"hidden_size": 37}, "hidden_size=37 is not a multiple of num_attention_heads=3"),
    ({"num_hidden_layers": 1.5}, "num_hidden_layers"),
]
REFUSED_BY_GPT = [
    ({"n_embd": 37}, "n_embd=37 is not a multiple of n_head=3"),
    ({"hidden_size": 37}, "n_embd=37 is not a multiple of n_head=3"),
    ({"afn": "tanh"}, "afn='tanh' is none of gelu, relu, silu, swish"),
    ({"summary_type": "mean"}, "summary_type='mean': .* which is summary_type='cls_index'. Load this checkpoint"),
    ({"summary_use_proj": False}, "summary_use_proj=False: ZooGPT's heads are linear"),
    ({"summary_activation": "tanh"}, "summary_activation='tanh': ZooGPT's heads are linear"),
    ({"summary_proj_to_labels": False}, "summary_proj_to_labels=False: ZooGPT's heads are linear"),
    ({"lm_loss_weight": -0.5}, "lm_loss_weight=-0.5 must not be negative"),
    ({"n_layer": 1.5}, "n_layer"),
    ({"both_orders": "yes"}, "both_orders"),
]


@each("field, message", REFUSED_BY_BERT, REFUSED_BY_GPT)
def test_a_configuration_that_the_model_cannot_compute_is_refused(cases, field, message, tmp_path):
    values = {name: value for name, value in cases.SIZES.items() if not (name == "n_embd" and "hidden_size" in field)}
    with pytest.raises(Exception, match=message):
        cases.CONFIG(**(values | field))
    values |= {"model_type": cases.STOCK_CONFIG.model_type} | field
    (tmp_path / "config.json").write_text(json.dumps(values))
    with pytest.raises(Exception, match=message):
        cases.CONFIG.from_pretrained(tmp_path)


@each("millions, unknown", [(109, "use_cache")], [(117, None)])  # BERT: "110M" in section 3, and no cache
def test_the_defaults_are_the_published_model(cases, millions, unknown):
    published, ours = cases.STOCK_CONFIG().to_dict(), cases.CONFIG().to_dict()
    different = {name for name in published.keys() - {unknown} if ours[name] != published[name]}
    assert different <= {"transformers_version", "architectures"}
    with torch.device("meta"):
        parameters = sum(parameter.numel() for parameter in class_of(cases, "Model")(cases.CONFIG()).parameters())
    assert round(parameters / 1e6) == millions


@each("head, width", [("ForPreTraining", "hidden_size")], [("ForMultipleChoice", "n_embd")])
def test_random_weights_follow_the_configuration(cases, head, width):
    model = class_of(cases, head)(cases.CONFIG(**(cases.SIZES | {width: 240, "initializer_range": 0.05})))
    for name, parameter in model.named_parameters():
        if name.endswith(("LayerNorm.weight", "ln_1.weight", "ln_2.weight")):
            assert torch.all(parameter == 1)
        elif name.endswith("bias"):
            assert torch.all(parameter == 0)
        elif parameter.numel() > 5000:
            assert abs(parameter.std().item() / 0.05 - 1) < 0.05, name
