"""Folders of published checkpoints load and save unchanged, whatever their age, and nothing else passes for one."""

import json
import logging

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, OpenAIGPTConfig

import modeling
from modeling import ZooGPTConfig, ZooGPTForSequenceClassification, ZooGPTLMHeadModel
from tests.support.gpt_cases import OWN_HEADS, SIZES, STOCK_HEADS, assert_same_outputs, case, pair, zoo
from tests.support.strangers import code_followed, code_in


# `config.json` as the Hub has it for openai-gpt, keys without a meaning in this zoo included.
PUBLISHED = """{"afn": "gelu", "architectures": ["OpenAIGPTLMHeadModel"], "attn_pdrop": 0.1, "embd_pdrop": 0.1,
"initializer_range": 0.02, "layer_norm_epsilon": 1e-05, "model_type": "openai-gpt", "n_ctx": 512, "n_embd": 768,
"n_head": 12, "n_layer": 12, "n_positions": 512, "n_special": 0, "predict_special_tokens": true, "resid_pdrop": 0.1,
"summary_activation": null, "summary_first_dropout": 0.1, "summary_proj_to_labels": true,
"summary_type": "cls_index", "summary_use_proj": true,
"task_specific_params": {"text-generation": {"do_sample": true, "max_length": 50}}, "vocab_size": 40478}"""


@pytest.fixture
def log(caplog):
    """What transformers tells the user, as text."""
    transformers.utils.logging.set_verbosity_warning()
    transformers.utils.logging.enable_propagation()
    caplog.set_level(logging.WARNING)
    yield lambda: caplog.text
    transformers.utils.logging.disable_propagation()


def assert_same_tensors(model, expected):
    assert sorted(model.state_dict()) == sorted(expected.state_dict())
    for name, tensor in expected.state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor), name


@pytest.mark.parametrize("head", ["Model", *STOCK_HEADS])
def test_what_we_save_is_the_stock_checkpoint_bit_for_bit(head, tmp_path, log):
    stock, ours = pair(head, tmp_path / "stock")
    assert_same_tensors(ours, stock)
    ours.save_pretrained(tmp_path / "ours")
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("stock", "ours"))
    named = {"lm_head.weight": "transformer.tokens_embed.weight"}  # of two names for one tensor a file has one
    before, after = ({named.get(name, name): tensor for name, tensor in file.items()} for file in (before, after))
    assert sorted(before) == sorted(after)
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert_same_tensors(type(stock).from_pretrained(tmp_path / "ours"), stock)
    assert log() == ""


@pytest.mark.parametrize("head", ["Model", *STOCK_HEADS])
def test_a_fresh_model_of_ours_is_a_checkpoint_for_the_stock_class_that_it_names(head, tmp_path):
    ours = zoo(head)
    ours.save_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())
    assert written["model_type"] == "openai-gpt" and written["architectures"] == [f"OpenAIGPT{head}"]
    named = getattr(transformers, written["architectures"][0])
    stock, report = named.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"))
    this = case(head)
    assert_same_outputs(ours(**this.inputs), stock.eval()(**this.for_stock), this.real)


@pytest.mark.parametrize("head", OWN_HEADS)
def test_a_head_that_the_stock_library_lacks_comes_back_as_it_was_saved(head, tmp_path, log):
    ours = zoo(head)
    ours.save_pretrained(tmp_path)
    again = type(ours).from_pretrained(tmp_path)
    assert_same_tensors(again, ours)
    assert again.config.architectures == [f"ZooGPT{head}"]
    assert log() == ""


def test_a_classifier_of_both_orders_is_not_announced_as_the_stock_one_that_reads_a_single_order(tmp_path):
    zoo("ForSequenceClassification", both_orders=True).save_pretrained(tmp_path)
    assert ZooGPTConfig.from_pretrained(tmp_path).architectures == ["ZooGPTForSequenceClassification"]
    zoo("LMHeadModel", both_orders=True).save_pretrained(tmp_path)
    assert ZooGPTConfig.from_pretrained(tmp_path).architectures == ["OpenAIGPTLMHeadModel"]


def test_a_folder_that_named_our_class_names_the_stock_one_when_its_configuration_is_saved_again(tmp_path):
    zoo("LMHeadModel").save_pretrained(tmp_path)
    config = ZooGPTConfig.from_pretrained(tmp_path)
    config.architectures = ["ZooGPTLMHeadModel"]
    config.save_pretrained(tmp_path)
    assert ZooGPTConfig.from_pretrained(tmp_path).architectures == ["OpenAIGPTLMHeadModel"]


def test_multiple_choice_and_double_heads_share_their_files(tmp_path, log):
    stock, double = pair("DoubleHeadsModel", tmp_path / "stock")
    double.save_pretrained(tmp_path / "double")
    ours = modeling.ZooGPTForMultipleChoice.from_pretrained(tmp_path / "double").eval()
    this = case("DoubleHeadsModel")
    expected = stock(**this.for_stock).mc_logits
    del this.inputs["mc_token_ids"]
    torch.testing.assert_close(ours(**this.inputs).logits, expected, atol=1e-5, rtol=1e-5)
    ours.save_pretrained(tmp_path / "ours")
    assert_same_tensors(type(double).from_pretrained(tmp_path / "ours"), stock)
    assert log() == ""


def rewrite(folder, change, name="model.safetensors"):
    """Replace the tensors of a saved folder by what `change` makes of them."""
    tensors = change(load_file(folder / "model.safetensors"))
    (folder / "model.safetensors").unlink()
    if name.endswith(".bin"):
        torch.save(tensors, folder / name)
    else:
        save_file(tensors, folder / name, metadata={"format": "pt"})


TRIANGLE = torch.ones(41, 41).tril().view(1, 1, 41, 41)
AGES = {
    "unprefixed": lambda tensors: {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()},
    "triangles": lambda tensors: (
        tensors | {f"transformer.h.{index}.attn.bias": TRIANGLE.clone() for index in range(SIZES["n_layer"])}
    ),
    "untied copy": lambda tensors: tensors | {"lm_head.weight": tensors["transformer.tokens_embed.weight"].clone()},
}
AGES["the first release"] = lambda tensors: AGES["unprefixed"](AGES["triangles"](tensors))


@pytest.mark.parametrize("file", ["model.safetensors", "pytorch_model.bin"])
@pytest.mark.parametrize("age", AGES)
def test_old_files_load(age, file, tmp_path, log):
    stock, _ = pair("LMHeadModel", tmp_path)
    rewrite(tmp_path, AGES[age], file)
    ours = ZooGPTLMHeadModel.from_pretrained(tmp_path)
    assert_same_tensors(ours, stock)
    assert ours.lm_head.weight is ours.transformer.tokens_embed.weight
    assert log() == ""


@pytest.mark.parametrize("age", ["as it is", *AGES])
def test_a_language_model_fills_a_classifier_and_only_the_classifier_is_news(age, tmp_path, log):
    stock, _ = pair("LMHeadModel", tmp_path)
    rewrite(tmp_path, AGES.get(age, dict))
    ours = ZooGPTForSequenceClassification.from_pretrained(tmp_path)
    assert_same_tensors(ours.transformer, stock.transformer)
    assert "score.weight" in log() and "UNEXPECTED" not in log() and "transformer." not in log().split("score")[1]


def test_a_base_checkpoint_fills_a_head_and_a_heads_checkpoint_the_base(tmp_path, log):
    stock, _ = pair("Model", tmp_path / "base")
    head = ZooGPTForSequenceClassification.from_pretrained(tmp_path / "base")
    assert "score.weight" in log()  # newly initialised: the user's business
    head.save_pretrained(tmp_path / "head")
    assert_same_tensors(modeling.ZooGPTModel.from_pretrained(tmp_path / "head"), stock)


def test_shards_load_and_are_saved(tmp_path):
    stock, _ = pair("LMHeadModel", tmp_path / "stock")
    stock.save_pretrained(tmp_path / "shards", max_shard_size="20KB")
    assert (tmp_path / "shards" / "model.safetensors.index.json").is_file()
    again = ZooGPTLMHeadModel.from_pretrained(tmp_path / "shards")
    again.save_pretrained(tmp_path / "ours", max_shard_size="20KB")
    for model in (again, transformers.OpenAIGPTLMHeadModel.from_pretrained(tmp_path / "ours")):
        assert_same_tensors(model, stock)


@pytest.mark.parametrize("head", ["LMHeadModel", "DoubleHeadsModel"])
def test_the_head_and_the_words_stay_one_matrix(head, tmp_path):
    ours = zoo(head)
    known = ours.lm_head.weight.detach().clone()
    ours.resize_token_embeddings(103)
    ours.save_pretrained(tmp_path)
    for model in (ours, type(ours).from_pretrained(tmp_path)):
        assert model.lm_head.weight is model.get_input_embeddings().weight is model.get_output_embeddings().weight
        assert model.lm_head.weight.shape == (103, 36) and model.config.vocab_size == 103
        assert torch.equal(model.lm_head.weight[:97], known)
        assert "lm_head.weight" not in load_file(tmp_path / "model.safetensors")
    this = case("LMHeadModel")
    assert ZooGPTLMHeadModel.from_pretrained(tmp_path)(**this.inputs).logits.shape == (*this.real.shape, 103)


@pytest.mark.parametrize("head", ["Model", "LMHeadModel", "ForSequenceClassification"])
def test_rows_for_new_tokens_are_drawn_as_the_weights_were(head):
    ours = zoo(head, initializer_range=0.05)
    known = ours.get_input_embeddings().weight.detach().clone() + 3  # a mean that new rows must not take over
    ours.get_input_embeddings().weight.data.copy_(known)
    ours.resize_token_embeddings(97 + 800)
    words = ours.get_input_embeddings().weight
    assert torch.equal(words[:97], known)
    drawn = words[97:].detach()  # 28,800 numbers
    assert abs(drawn.mean()) < 0.002 and abs(drawn.std() / 0.05 - 1) < 0.03
    below = (drawn.flatten().sort().values / 0.05)[[655, 4570, 14400, 24230, 28145]]  # quantiles of the normal
    torch.testing.assert_close(below, torch.tensor([-2.0, -1.0, 0.0, 1.0, 2.0]), atol=0.1, rtol=0)


def test_rows_for_new_tokens_may_be_means_on_request():
    ours = zoo("LMHeadModel")
    ours.get_input_embeddings().weight.data += 3
    ours.resize_token_embeddings(120, mean_resizing=True)
    assert abs(ours.get_input_embeddings().weight[97:].mean() - 3) < 0.1


class Subclass(ZooGPTLMHeadModel):
    """What a user derives from a class of the zoo."""


@pytest.mark.parametrize("what", ["configuration", "model", "subclass"])
def test_whatever_is_saved_brings_the_code_its_folder_names(what, tmp_path):
    config = ZooGPTConfig(**SIZES)
    saved = {"configuration": config, "model": ZooGPTLMHeadModel(config), "subclass": Subclass(config)}[what]
    saved.save_pretrained(tmp_path)
    named = json.loads((tmp_path / "config.json").read_text())["auto_map"]
    heads = {f"AutoModel{head}" for head in (*OWN_HEADS, "ForSequenceClassification", "ForCausalLM", "ForPreTraining")}
    assert heads | {"AutoConfig", "AutoModel"} == named.keys()
    assert code_in(tmp_path) == code_followed(tmp_path) >= {f"{each.split('.')[0]}.py" for each in named.values()}
    config = AutoConfig.from_pretrained(tmp_path, trust_remote_code=True)
    again = AutoModelForCausalLM.from_config(config, trust_remote_code=True)
    assert type(again).__module__.startswith("transformers_modules.")


@pytest.mark.parametrize("damage", ["cut in half", "another size"])
def test_a_damaged_file_is_an_error_that_names_it(damage, tmp_path):
    pair("LMHeadModel", tmp_path)
    if damage == "cut in half":
        whole = (tmp_path / "model.safetensors").read_bytes()
        (tmp_path / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    else:
        rewrite(tmp_path, lambda tensors: tensors | {"transformer.h.0.ln_1.bias": torch.zeros(5)})
    with pytest.raises(Exception, match="(?i)model.safetensors|incomplete|mismatch"):
        ZooGPTLMHeadModel.from_pretrained(tmp_path)


@pytest.mark.parametrize(
    ("field", "message"),
    [
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
    ],
)
def test_a_configuration_that_this_decoder_cannot_compute_is_refused(field, message, tmp_path):
    values = {name: value for name, value in SIZES.items() if not (name == "n_embd" and "hidden_size" in field)}
    with pytest.raises(Exception, match=message):
        ZooGPTConfig(**(values | field))
    (tmp_path / "config.json").write_text(json.dumps(values | {"model_type": "openai-gpt"} | field))
    with pytest.raises(Exception, match=message):
        ZooGPTConfig.from_pretrained(tmp_path)


def test_the_published_configuration_loads_and_saves_unchanged(tmp_path):
    (tmp_path / "config.json").write_text(PUBLISHED)
    ours = ZooGPTConfig.from_pretrained(tmp_path)
    expected = OpenAIGPTConfig.from_pretrained(tmp_path)
    assert (ours.hidden_size, ours.num_hidden_layers, ours.num_attention_heads) == (768, 12, 12)
    assert (ours.lm_loss_weight, ours.both_orders, ours.pad_token_id) == (0, False, None)
    ours.save_pretrained(tmp_path / "ours")
    written = json.loads((tmp_path / "ours" / "config.json").read_text())
    published = json.loads(PUBLISHED)
    assert {name: written.get(name) for name in published} == published
    again = OpenAIGPTConfig.from_pretrained(tmp_path / "ours").to_dict()
    assert {name: again[name] for name in expected.to_dict()} == expected.to_dict()


def test_the_defaults_are_the_published_model():
    published = OpenAIGPTConfig().to_dict()
    ours = ZooGPTConfig().to_dict()
    different = {name for name in published if ours[name] != published[name]}
    assert different <= {"transformers_version", "architectures"}
    with torch.device("meta"):
        parameters = sum(parameter.numel() for parameter in modeling.ZooGPTModel(ZooGPTConfig()).parameters())
    assert round(parameters / 1e6) == 117


def test_random_weights_follow_the_configuration():
    model = modeling.ZooGPTDoubleHeadsModel(ZooGPTConfig(**(SIZES | {"n_embd": 240, "initializer_range": 0.05})))
    for name, parameter in model.named_parameters():
        if name.endswith(("ln_1.weight", "ln_2.weight")):
            assert torch.all(parameter == 1)
        elif name.endswith("bias"):
            assert torch.all(parameter == 0)
        elif parameter.numel() > 5000:
            assert abs(parameter.std().item() / 0.05 - 1) < 0.05, name
