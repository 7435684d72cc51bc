"""Tokenizers, configurations and models, whole and broken: never a wrong model, never an error without a remedy."""

import json
import os
import random
import sys
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
)

from elmo_gpt_bert.training import launching, loading, output_folder
from elmo_gpt_bert.training.arguments import ModelSource
from elmo_gpt_bert.training.errors import UserError
from modeling import ZooBertConfig
from tests.support.glue_sample import VOCABULARY, write_model
from tests.support.ner_sample import write_elmo
from tests.support.tiny_run import Arguments, load_config, load_tokenizer, weights
from tests.support.tiny_run import load_model as load


@pytest.fixture
def saved(run, tmp_path):
    """The folder of a classifier and its tokenizer."""
    load(run()).save_pretrained(tmp_path / "saved")
    load_tokenizer(run()).save_pretrained(tmp_path / "saved")
    return tmp_path / "saved"


@pytest.fixture
def fine_tuning(run, saved) -> Arguments:
    """A run that trains what is in `saved`."""
    return run(model_name_or_path=str(saved), tokenizer_name=None)


@pytest.fixture
def evaluation(run, saved) -> Arguments:
    """A run that does not train what is in `saved`."""
    return run(model_name_or_path=str(saved), tokenizer_name=None, do_train=False, do_eval=True)


def rewrite(folder, change) -> None:
    """Replaces a folder's weights by what `change` makes of them."""
    tensors = load_file(folder / "model.safetensors")
    save_file(change(tensors), folder / "model.safetensors", metadata={"format": "pt"})


def configure(path, **values) -> None:
    """Changes fields of a JSON file."""
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | values), encoding="utf-8")


# Configurations


def test_a_config_json_gives_random_weights_of_the_chosen_implementation(run):
    for implementation, prefix in (("zoo", "ZooBert"), ("transformers", "Bert")):
        model = load(run(implementation=implementation))
        assert type(model).__name__ == f"{prefix}ForSequenceClassification" and model.config.hidden_size == 12


def test_loading_leaves_the_auto_classes_to_the_implementation_that_was_chosen(saved):
    source = ModelSource(str(saved))
    for implementation, family in (("transformers", transformers.BertConfig), ("zoo", ZooBertConfig)):
        launching.choose_implementation(implementation)
        config, tokenizer = loading.load_config(source), loading.load_tokenizer(source)
        model = loading.load_model(AutoModelForSequenceClassification, source, config, tokenizer, train=False)
        assert type(config) is type(model.config) is type(transformers.AutoConfig.for_model("bert")) is family


def test_outputs_have_names_where_the_configuration_asks_for_tuples(fine_tuning, saved):
    configure(saved / "config.json", return_dict=False)
    assert load(fine_tuning)(torch.tensor([[1, 2, 3]])).logits.shape[0] == 1


def test_the_attention_implementation_is_passed_on(run):
    assert load(run(attn_implementation="eager")).config._attn_implementation == "eager"


# Tokenizers


def test_a_vocab_file_is_read_in_the_casing_asked_for(run):
    lower = load_tokenizer(run())
    cased = load_tokenizer(run(do_lower_case=False))
    assert lower.tokenize("The NA plot") == ["the", "na", "plot"]
    assert cased.tokenize("The NA plot") == ["[UNK]", "NA", "plot"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"it has no \[CLS\], \[MASK\], \[PAD\], \[SEP\], \[UNK\]"),
        ("\n".join(VOCABULARY).replace("[UNK]", "<unk>").encode(), r"it has no \[UNK\]"),
        ("\n".join(VOCABULARY).replace("[CLS]", "<cls>").encode(), r"it has no \[CLS\]"),
        ("\n".join(VOCABULARY).encode("utf-16"), "utf-8"),
        ("\n".join([*VOCABULARY, VOCABULARY[7]]).encode(), f"'{VOCABULARY[7]}' stands in line 8 and in line"),
        ("\r".join(VOCABULARY).encode(), r"Missing \[UNK\] token from the vocabulary"),
    ],
)
def test_a_vocab_file_that_is_not_berts_is_an_error(run, tmp_path, content, message):
    (tmp_path / "odd.txt").write_bytes(content)
    with pytest.raises(ValueError, match=f"cannot load .*odd.txt: .*{message}"):
        load_tokenizer(run(tokenizer_name=str(tmp_path / "odd.txt")))


def test_a_folder_without_tokenizer_is_not_taken_for_one_without_words(evaluation, saved):
    for path in saved.glob("tokenizer*"):
        path.unlink()
    with pytest.raises(ValueError, match="no tokenizer files.* --tokenizer_name may name a vocab.txt"):
        load_tokenizer(evaluation)


@pytest.mark.parametrize("kind", ["two tokens with one id", "an added token with the id of a word"])
def test_a_tokenizer_that_gives_an_id_twice_is_refused(evaluation, saved, kind):
    path = saved / "tokenizer.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    if kind == "two tokens with one id":
        content["model"]["vocab"]["other"] = 7
    else:
        del content["model"]["vocab"][VOCABULARY[7]]
        content["added_tokens"].append(content["added_tokens"][0] | {"id": len(VOCABULARY), "content": "[NEW]"})
    path.write_text(json.dumps(content), encoding="utf-8")
    configure(saved / "tokenizer_config.json", tokenizer_class="PreTrainedTokenizerFast")
    with pytest.raises(ValueError, match=r"cannot load .*saved: its tokens '.*' and '.*' have the same id, \d+"):
        load_tokenizer(evaluation)


@pytest.mark.parametrize("damage", ["a list", "half", "a panic of the library"])
def test_a_broken_tokenizer_is_an_error_that_names_its_folder(evaluation, saved, damage):
    path = saved / "tokenizer.json"
    text = path.read_text(encoding="utf-8")
    strange = json.loads(text)
    del strange["post_processor"]["special_tokens"]["[SEP]"]
    contents = {"a list": "[1]", "half": text[: len(text) // 2], "a panic of the library": json.dumps(strange)}
    path.write_text(contents[damage], encoding="utf-8")
    configure(saved / "tokenizer_config.json", tokenizer_class="PreTrainedTokenizerFast")  # takes the file as it is
    with pytest.raises(ValueError, match=r"cannot load .*saved: .* --tokenizer_name may name a vocab.txt") as info:
        load_tokenizer(evaluation)
    assert ("tokenizer.json is not JSON" in str(info.value)) == (damage == "half")
    assert ("PanicException" in str(info.value)) == (damage == "a panic of the library")


@pytest.mark.parametrize("kind", ["BertTokenizer", "PreTrainedTokenizerFast"])
def test_a_tokenizer_whose_unknown_token_is_no_entry_is_refused_and_not_met_in_the_data(evaluation, saved, kind):
    content = json.loads((saved / "tokenizer.json").read_text(encoding="utf-8"))
    content["model"]["vocab"]["other"] = content["model"]["vocab"].pop("[UNK]")
    content["added_tokens"] = [token for token in content["added_tokens"] if token["content"] != "[UNK]"]
    (saved / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    configure(saved / "tokenizer_config.json", tokenizer_class=kind)
    with pytest.raises(ValueError, match="cannot load .*saved: .*UNK"):
        load_tokenizer(evaluation)


@pytest.mark.parametrize(
    ("file", "part"),
    [("config.json", load_config), ("tokenizer_config.json", load_tokenizer)]
    + [("tokenizer.json", load_tokenizer), ("vocab.json", load_tokenizer)],
)
def test_a_key_twice_or_endless_nesting_in_a_file_is_refused(evaluation, saved, file, part):
    text = (saved / file).read_text(encoding="utf-8") if (saved / file).is_file() else "{}"
    for content, problem in (
        ('{"a": 1, "a": 2,' + text[1:], "the name 'a' 2 times"),
        ("[" * 99_999, "nested too deeply"),
    ):
        (saved / file).write_text(content.replace(",}", "}"), encoding="utf-8")
        with pytest.raises(ValueError, match=f"cannot load .*saved: {file} is not JSON .*{problem}") as raised:
            part(evaluation)
        assert "\n" not in str(raised.value)


def test_the_padding_is_the_tokenizers_where_the_configuration_has_none(run, tmp_path):
    sizes = {"vocab_size": 37, "n_embd": 12, "n_layer": 1, "n_head": 3, "n_positions": 40}
    path = tmp_path / "gpt2.json"
    path.write_text(json.dumps({"model_type": "gpt2", "eos_token_id": 3, "bos_token_id": 3, **sizes}))
    args = run(model_name_or_path=str(path))
    model = load(args).eval()
    batch = load_tokenizer(args)(["a film", "a very good film ."], padding=True, return_tensors="pt")
    ids, mask = batch["input_ids"], batch["attention_mask"]
    alone = model(input_ids=ids[:1, : mask[0].sum()]).logits
    torch.testing.assert_close(
        model(input_ids=ids, attention_mask=mask).logits[:1], alone
    )  # the end of the text, not the padding's


def test_a_tokenizer_without_padding_is_one_error(evaluation, saved):
    tokenizer = load_tokenizer(evaluation)
    tokenizer.pad_token = None
    tokenizer.save_pretrained(saved)
    configure(saved / "tokenizer_config.json", tokenizer_class="PreTrainedTokenizerFast", pad_token=None)
    with pytest.raises(ValueError, match="saved has no padding token, .*give its folder as --tokenizer_name"):
        load_tokenizer(evaluation)


def test_a_vocabulary_larger_than_the_models_is_an_error(run, tmp_path):
    with pytest.raises(ValueError, match=f"has {len(VOCABULARY)} entries, the model .* only 20"):
        load(run(model_name_or_path=str(write_model(tmp_path, vocab_size=20))))


def test_an_entry_numbered_beyond_the_models_is_an_error(evaluation, saved):
    path = saved / "tokenizer.json"
    tokenizer = json.loads(path.read_text(encoding="utf-8"))
    tokenizer["model"]["vocab"]["film"] = 91
    path.write_text(json.dumps(tokenizer), encoding="utf-8")
    with pytest.raises(ValueError, match="has 92 entries, the model .* only 37"):
        load(evaluation)


# Weights that fit


def test_what_was_saved_is_what_is_loaded(evaluation, saved, capsys):
    tensors = load_file(saved / "model.safetensors")
    model = load(evaluation)
    assert model.dtype == torch.float32 and model.state_dict().keys() == tensors.keys()
    assert all(torch.equal(tensor, tensors[name]) for name, tensor in model.state_dict().items())
    assert capsys.readouterr().out == ""


def test_a_new_head_is_announced_and_the_rest_is_the_checkpoints(fine_tuning, capsys):
    model = load(fine_tuning)
    wider = load(fine_tuning, num_labels=3)
    assert "newly initialised" in (line := capsys.readouterr().out) and "classifier.weight" in line
    assert wider.classifier.weight.shape[0] == 3
    assert torch.equal(weights(wider.base_model), weights(model.base_model))


def test_a_new_head_is_an_error_where_nothing_trains_it(evaluation, saved):
    with pytest.raises(ValueError, match="saved does not hold classifier.bias, classifier.weight.*: train first"):
        load(evaluation, num_labels=3)
    rewrite(saved, lambda tensors: {name: tensor for name, tensor in tensors.items() if "classifier" not in name})
    with pytest.raises(ValueError, match="saved does not hold classifier.bias, classifier.weight.*: train first"):
        load(evaluation)


def test_a_masked_language_model_gives_its_body_to_a_classifier_and_back(run, tmp_path, saved, capsys):
    load(run(), AutoModelForMaskedLM).save_pretrained(tmp_path / "mlm")
    args = run(model_name_or_path=str(tmp_path / "mlm"))
    classifier = load(args)
    assert "bert.pooler.dense.weight" in capsys.readouterr().out  # a masked language model has none
    assert torch.equal(weights(classifier.bert.encoder), weights(load(args, AutoModelForMaskedLM).bert.encoder))
    mlm = load(run(model_name_or_path=str(saved)), AutoModelForMaskedLM)
    assert "cls.predictions.bias" in capsys.readouterr().out
    own = load_file(saved / "model.safetensors")
    assert torch.equal(mlm.bert.encoder.layer[1].output.dense.weight, own["bert.encoder.layer.1.output.dense.weight"])


@pytest.mark.parametrize("implementation", ["zoo", "transformers"])
def test_a_body_alone_fills_a_head_and_a_head_the_body_alone(run, saved, tmp_path, implementation):
    body = load(run(model_name_or_path=str(saved), implementation=implementation), AutoModel)
    body.save_pretrained(tmp_path / "body")
    args = run(model_name_or_path=str(tmp_path / "body"), implementation=implementation)
    assert torch.equal(weights(load(args).base_model), weights(body))
    own = load_file(saved / "model.safetensors")
    assert all(torch.equal(tensor, own[f"bert.{name}"]) for name, tensor in body.state_dict().items())


@pytest.mark.parametrize("implementation", ["zoo", "transformers"])
def test_old_names_and_buffers_and_other_heads_are_no_error(run, saved, evaluation, implementation):
    model = load(evaluation)

    def age(tensors):
        others = {
            "cls.predictions.bias": torch.zeros(37),
            "qa_outputs.weight": torch.zeros(2, 12),
            "bert.embeddings.position_ids": torch.arange(40)[None],
        }
        names = {name: name.replace("Norm.weight", "Norm.gamma").replace("Norm.bias", "Norm.beta") for name in tensors}
        return {names[name]: tensor for name, tensor in tensors.items()} | others

    rewrite(saved, age)
    args = run(model_name_or_path=str(saved), do_train=False, do_eval=True, implementation=implementation)
    assert torch.equal(weights(load(args)), weights(model))


@pytest.mark.parametrize("implementation", ["zoo", "transformers"])
def test_old_checkpoints_of_gpt_may_have_saved_their_buffers(run, tmp_path, implementation):
    config = transformers.OpenAIGPTConfig(vocab_size=37, n_embd=12, n_layer=2, n_head=3, n_positions=40)
    model = transformers.OpenAIGPTForSequenceClassification(config)
    model.save_pretrained(tmp_path / "gpt")
    rewrite(tmp_path / "gpt", lambda tensors: tensors | {"transformer.h.0.attn.bias": torch.ones(1, 1, 40, 40)})
    args = run(model_name_or_path=str(tmp_path / "gpt"), do_train=False, do_eval=True, implementation=implementation)
    loaded = load(args)
    assert type(loaded).__module__.startswith("transformers.") == (implementation == "transformers")
    assert torch.equal(weights(loaded), weights(model))


def test_the_transformers_implementation_is_stock_also_for_a_folder_with_the_zoos_code(run, saved):
    assert (saved / "modeling_bert.py").exists()
    model = load(run(model_name_or_path=str(saved), implementation="transformers"))
    assert type(model) is transformers.BertForSequenceClassification


# Weights that do not


@pytest.mark.parametrize("implementation", ["zoo", "transformers"])
@pytest.mark.parametrize("auto_class", [AutoModelForSequenceClassification, AutoModel])
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"num_hidden_layers": 3}, "lacks .*encoder.layer.2.attention.output.LayerNorm.bias, .* and 13 more"),
        ({"num_hidden_layers": 1}, "has no .*encoder.layer.1.attention.output.LayerNorm.bias, .* and 13 more"),
        ({"max_position_embeddings": 41}, "disagree on the size of .*embeddings.position_embeddings.weight"),
        ({"vocab_size": 10**12}, "disagree on the size of .*embeddings.word_embeddings.weight"),
        ({"hidden_size": 3 * 10**8}, "disagree on the size of .* more"),
        ({"hidden_size": 3 * 10**18}, "overflow"),
        ({"hidden_act": "gemu"}, "gemu"),
    ],
)
def test_weights_that_contradict_the_configuration_are_an_error(
    run, saved, implementation, auto_class, values, message
):
    configure(saved / "config.json", **values)
    with pytest.raises(ValueError, match=f"saved: .*{message}.* copy it again"):
        load(run(model_name_or_path=str(saved), implementation=implementation), auto_class)


@pytest.mark.parametrize("name", ["bert.embeddings.LayerNorm.bias", "bert.encoder.layer.1.output.dense.weight"])
def test_a_weight_that_is_lacking_below_the_head_is_an_error(fine_tuning, saved, name):
    rewrite(saved, lambda tensors: {key: tensor for key, tensor in tensors.items() if key != name})
    with pytest.raises(ValueError, match=f"saved: the checkpoint lacks {name}"):
        load(fine_tuning)


def test_a_part_of_the_body_that_the_model_lacks_is_an_error(fine_tuning, saved):
    rewrite(saved, lambda tensors: tensors | {"bert.adapter.weight": torch.zeros(3)})
    with pytest.raises(ValueError, match="config.json has no bert.adapter.weight"):
        load(fine_tuning)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_weight_that_is_not_finite_is_an_error(fine_tuning, saved, value):
    name = "bert.encoder.layer.1.output.dense.weight"
    rewrite(saved, lambda tensors: tensors | {name: tensors[name].index_fill(0, torch.tensor(3), value)})
    with pytest.raises(ValueError, match=f"saved: not all of {name} is finite.* copy it again"):
        load(fine_tuning)


def test_integers_where_weights_belong_are_an_error(fine_tuning, saved):
    name = "bert.encoder.layer.1.output.dense.weight"
    rewrite(saved, lambda tensors: tensors | {name: tensors[name].view(torch.int32)})
    with pytest.raises(ValueError, match=f"holds integers for {name}"):
        load(fine_tuning)


def test_weights_cut_short_are_an_error_that_names_the_file(fine_tuning, saved):
    path = saved / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(ValueError, match=r"saved: model.safetensors is broken or cut short .*copy it again"):
        load(fine_tuning)


def test_a_header_longer_than_any_memory_is_an_error(fine_tuning, saved):
    path = saved / "model.safetensors"
    path.write_bytes((2**62).to_bytes(8, "little") + path.read_bytes()[8:])
    with pytest.raises(ValueError, match=r"saved: model.safetensors is broken or cut short"):
        load(fine_tuning)


def test_a_folder_without_weights_is_an_error(fine_tuning, saved):
    (saved / "model.safetensors").unlink()
    with pytest.raises(OSError, match=r"saved: .*model.safetensors.* copy it again"):
        load(fine_tuning)


def test_shards_load_and_one_that_lacks_is_an_error(evaluation, saved):
    model = load(evaluation)
    (saved / "model.safetensors").unlink()
    model.save_pretrained(saved, max_shard_size="5KB")
    assert torch.equal(weights(load(evaluation)), weights(model))
    shards = sorted(saved.glob("model-*.safetensors"))
    content = shards[1].read_bytes()
    shards[1].unlink()
    with pytest.raises(OSError, match=rf"saved: .*{shards[1].name}.* copy it again"):
        load(evaluation)
    first = next(iter(load_file(shards[0])))
    shards[1].write_bytes(content)
    save_file({name: t for name, t in load_file(shards[0]).items() if name != first}, shards[0], {"format": "pt"})
    with pytest.raises(ValueError, match=f"lacks {first}"):  # though the index names it
        load(evaluation)
    (saved / "model.safetensors.index.json").write_text("{", encoding="utf-8")
    with pytest.raises(ValueError, match="saved: model.safetensors.index.json is not JSON"):
        load(evaluation)


@pytest.mark.parametrize("outside", ["../secret.safetensors", "/etc/secret.safetensors", "a/../../secret.safetensors"])
def test_an_index_that_names_files_outside_its_folder_is_refused(evaluation, saved, outside):
    (saved / "model.safetensors").rename(saved.parent / "secret.safetensors")
    index = {"metadata": {}, "weight_map": dict.fromkeys(load_file(saved.parent / "secret.safetensors"), outside)}
    (saved / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    with pytest.raises(ValueError, match=f"index.json names {outside}, which is outside its folder: copy the weights"):
        load(evaluation)


class Malice:
    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


def test_pickled_weights_load_but_code_among_them_does_not_run(evaluation, saved, tmp_path):
    model = load(evaluation)
    tensors = load_file(saved / "model.safetensors")
    (saved / "model.safetensors").unlink()
    torch.save(tensors, saved / "pytorch_model.bin")
    assert torch.equal(weights(load(evaluation)), weights(model))
    marker = tmp_path / "marker"
    for new_format in (True, False):
        malice = tensors | {"classifier.bias": Malice(f"touch {marker}")}
        torch.save(malice, saved / "pytorch_model.bin", _use_new_zipfile_serialization=new_format)
        with pytest.raises(ValueError, match="more than tensors.*converted to model.safetensors by someone you trust"):
            load(evaluation)
        assert not marker.exists()
    torch.load(saved / "pytorch_model.bin", weights_only=False)
    assert marker.exists()  # so it would have


@pytest.mark.parametrize("new_format", [True, False])
def test_pickled_weights_that_are_cut_or_changed_are_an_error(evaluation, saved, new_format):
    path = saved / "pytorch_model.bin"
    torch.save(load_file(saved / "model.safetensors"), path, _use_new_zipfile_serialization=new_format)
    (saved / "model.safetensors").unlink()
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[whole.index(load(evaluation).classifier.weight.detach().numpy().tobytes())] ^= 1
    contents = [whole[:size] for size in (0, 100, len(whole) // 2, len(whole) - 1)]
    for content in contents + [flipped] * new_format:  # the old format has no checksums
        path.write_bytes(content)
        with pytest.raises(ValueError, match="pytorch_model.bin is broken.* copy it again"):
            load(evaluation)


def test_a_head_that_the_family_lacks_is_an_error(fine_tuning, run):
    with pytest.raises(ValueError, match="saved: ZooBertConfig has no AutoModelForSpeech.* another --implementation"):
        load(fine_tuning, transformers.AutoModelForSpeechSeq2Seq)
    with pytest.raises(ValueError, match="saved: is_decoder=False: .* does not decode, .*BertLMHeadModel"):
        load(fine_tuning, AutoModelForCausalLM)
    args = run(implementation="transformers", model_name_or_path=fine_tuning.model_name_or_path)
    with pytest.raises(ValueError, match="saved: BertConfig has no AutoModelForSpeech.* another --implementation"):
        load(args, transformers.AutoModelForSpeechSeq2Seq)


def test_an_unknown_attention_is_not_blamed_on_the_folder(run, saved):
    with pytest.raises(ValueError, match='"foo".*Correct it or this run\'s arguments'):
        load(run(model_name_or_path=str(saved), attn_implementation="foo"))


@pytest.mark.parametrize("file", ["", "config.json"])
def test_an_attention_is_refused_by_a_model_that_attends_to_nothing(run, tmp_path, file):
    folder = write_elmo(tmp_path / "elmo")
    args = run(model_name_or_path=str(Path(folder, file)), tokenizer_name=folder, attn_implementation="sdpa")
    with pytest.raises(ValueError, match=r"^cannot load .*: Elmo\w+ does not support an attention implementation"):
        load(args, transformers.AutoModelForTokenClassification)


def test_a_package_that_lacks_is_one_line_from_here(run, saved, monkeypatch):
    monkeypatch.setitem(sys.modules, "flash_attn", None)
    with pytest.raises(ImportError, match=r"^cannot load .*saved: .*Flash.*or --attn_implementation.$") as info:
        load(run(model_name_or_path=str(saved), attn_implementation="flash_attention_2"))
    assert info.traceback[-1].path.name == "loading.py"  # so a script's command prints the message alone

    def lacking(*_, **__):
        raise ImportError("\nT5Tokenizer requires sentencepiece.\nMore lines.")

    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", lacking)
    with pytest.raises(ImportError, match=r"saved: T5Tokenizer requires sentencepiece\. Install it, or choose"):
        load_tokenizer(run(tokenizer_name=str(saved)))


def test_a_checkpoints_own_code_runs_only_when_trusted(run, saved, monkeypatch, tmp_path):
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    (saved / "strange.py").write_text(
        "from transformers import BertConfig, BertForSequenceClassification\n"
        "class StrangeConfig(BertConfig):\n    model_type = 'strange'\n"
        "class Strange(BertForSequenceClassification):\n    config_class = StrangeConfig\n",
        encoding="utf-8",
    )
    auto_map = {"AutoConfig": "strange.StrangeConfig", "AutoModelForSequenceClassification": "strange.Strange"}
    configure(saved / "config.json", model_type="strange", auto_map=auto_map)
    with pytest.raises(ValueError, match="--trust_remote_code"):
        load(run(model_name_or_path=str(saved)))
    loaded = load(run(model_name_or_path=str(saved), trust_remote_code=True))
    tensors = load_file(saved / "model.safetensors")
    assert type(loaded).__name__ == "Strange" and torch.equal(loaded.classifier.weight, tensors["classifier.weight"])


# Checksums, and damage anywhere


@pytest.mark.parametrize("part", [load_tokenizer, load_config, load])
def test_a_folder_with_checksums_loads_only_as_it_was_written(evaluation, saved, part):
    output_folder.write_checksums(saved)
    (saved / "notes.txt").write_text("mine", encoding="utf-8")
    part(evaluation)
    configure(saved / "config.json", hidden_dropout_prob=0.2)
    with pytest.raises(OSError, match="saved: config.json .* delete its SHA256SUMS"):
        part(evaluation)
    (saved / "SHA256SUMS").unlink()
    part(evaluation)


def damage(content: bytes, rng: random.Random, end: int) -> bytes:
    """Cuts `content`, or changes one bit or up to four bytes of its first `end`."""
    kind = rng.choice(["cut", "bit", "bytes"])
    if kind == "cut":
        return content[: rng.randrange(end)]
    damaged = bytearray(content)
    if kind == "bit":
        damaged[rng.randrange(end)] ^= 1 << rng.randrange(8)
    for _ in range(rng.randrange(1, 5) if kind == "bytes" else 0):
        damaged[rng.randrange(end)] = rng.randrange(256)
    return bytes(damaged)


# How often each is damaged: most changes of weights and words are none that could be told, and the model is loaded.
FILES = {"config.json": 40, "header": 40, "tokenizer.json": 40, "tokenizer_config.json": 30}
FILES |= {"model.safetensors": 12, "vocab.txt": 12}


@pytest.mark.slow
@pytest.mark.parametrize("file", FILES)
def test_damage_anywhere_is_an_error_or_leaves_the_weights_as_they_are(run, saved, tmp_path, file):
    """Without checksums no more can be told: a changed weight is a weight, a changed word of a vocabulary a word."""
    path = {"header": saved / "model.safetensors", "vocab.txt": tmp_path / "vocab.txt"}.get(file, saved / file)
    words = str(path) if file == "vocab.txt" else None
    args = run(model_name_or_path=str(saved), tokenizer_name=words, do_train=False, do_eval=True)
    whole, tensors = path.read_bytes(), load_file(saved / "model.safetensors")
    header = 8 + int.from_bytes(whole[:8], "little")
    rng = random.Random(file)
    for _ in range(FILES[file]):
        path.write_bytes(damage(whole, rng, header if file == "header" else len(whole)))
        try:
            model = load(args)
        except (OSError, ValueError) as error:
            assert isinstance(error, UserError), error
            assert (words or str(saved)) in str(error), error
            assert any(remedy in str(error) for remedy in ("opy it again", "choose the", "train first")), error
            continue
        changed = path.read_bytes()[:header] == whole[:header] and path.name == "model.safetensors"
        expected = load_file(path) if changed else tensors
        assert model.state_dict().keys() == expected.keys()
        assert all(torch.equal(tensor, expected[name]) for name, tensor in model.state_dict().items())


def test_damage_anywhere_is_noticed_with_checksums(evaluation, saved):
    output_folder.write_checksums(saved)
    rng = random.Random(0)
    for path in sorted(set(saved.iterdir()) - {saved / "SHA256SUMS"}):
        whole = path.read_bytes()
        for _ in range(20):
            path.write_bytes(damage(whole, rng, len(whole)))
            if path.read_bytes() != whole:
                with pytest.raises(OSError, match=f"saved: {path.name} .*delete its SHA256SUMS"):
                    load_tokenizer(evaluation)
        path.write_bytes(whole)
        load_tokenizer(evaluation)
