"""BERT from left to right is fine-tuned as such, and a BiLSTM above it sees both sides: table 5 of its paper."""

import json
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import (
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

import modeling
import run_glue
import run_ner
import run_squad
from elmo_gpt_bert.training.launching import choose_implementation
from modeling import FeatureTaggerForTokenClassification, ZooBertConfig, ZooBertModel, ZooGPTConfig, ZooGPTModel
from tests.support.glue_sample import VOCABULARY, write_model, write_task, write_vocabulary
from tests.support.ner_sample import write_folder
from tests.support.squad_sample import make_articles


PLACE = 4  # of a row of 9 tokens


@pytest.fixture
def flags(tmp_path) -> list[str]:
    return [
        *("--model_name_or_path", str(write_model(tmp_path, is_decoder=True, initializer_range=0.5))),
        *("--tokenizer_name", str(write_vocabulary(tmp_path)), "--do_train", "--max_steps", "2"),
        *("--learning_rate", "0.01", "--save_strategy", "no", "--max_seq_length", "32"),
        *("--output_dir", str(tmp_path / "out")),
    ]


def trained(tmp_path: Path, auto_class: type) -> torch.nn.Module:
    choose_implementation("zoo")
    return auto_class.from_pretrained(tmp_path / "out").eval()


def rows_that_differ_at(place: int) -> torch.Tensor:
    ids = torch.randint(5, len(VOCABULARY), (9,)).repeat(2, 1)
    ids[1, place] = (ids[0, place] - 5 + 1) % (len(VOCABULARY) - 5) + 5
    return ids


def changes(tensor: torch.Tensor) -> list[bool]:
    """Whether the vectors or numbers of two rows differ at each token."""
    first, second = tensor.reshape(2, tensor.shape[1], -1)
    return [not torch.allclose(a, b, atol=1e-6) for a, b in zip(first, second, strict=True)]


CAUSAL = [False] * PLACE + [True] * (9 - PLACE)  # what a change at PLACE reaches


def test_a_fine_tuned_classifier_reads_the_last_token_and_its_states_see_no_later_one(tmp_path, flags):
    write_task(tmp_path, "SST-2")
    run_glue.main([*flags, "--task_name", "sst2", "--data_dir", str(tmp_path)])
    model = trained(tmp_path, AutoModelForSequenceClassification)
    assert type(model) is modeling.ZooBertForSequenceClassification and model.config.is_decoder
    with torch.no_grad():
        outputs = model(rows_that_differ_at(PLACE), output_hidden_states=True)
    assert all(changes(states) == CAUSAL for states in outputs.hidden_states[1:])
    assert not torch.allclose(*outputs.logits, atol=1e-6)


@pytest.mark.parametrize("script", ["run_ner", "run_squad"])
def test_no_token_of_a_fine_tuned_tagger_or_reader_depends_on_a_later_one(tmp_path, flags, script):
    if script == "run_ner":
        run_ner.main([*flags, "--data_dir", str(write_folder(tmp_path / "conll"))])
        model = trained(tmp_path, AutoModelForTokenClassification)
    else:
        (tmp_path / "train.json").write_text(json.dumps({"version": "1.1", "data": make_articles()}))
        windows = ["--doc_stride", "8", "--max_query_length", "8"]
        run_squad.main([*flags, "--train_file", str(tmp_path / "train.json"), *windows])
        model = trained(tmp_path, AutoModelForQuestionAnswering)
    with torch.no_grad():
        outputs = model(rows_that_differ_at(PLACE))
    for name in ("logits", "start_logits", "end_logits"):
        assert name not in outputs or changes(outputs[name]) == CAUSAL


def test_a_bilstm_above_it_learns_with_it_and_sees_both_sides(tmp_path, flags):
    args = [*flags, "--data_dir", str(write_folder(tmp_path / "conll")), "--features", "last", "--weight_decay", "0.1"]
    run_ner.main([*args, "--config_overrides", "freeze_encoder=false,rnn_size=5,rnn_layers=1"])
    model = trained(tmp_path, AutoModelForTokenClassification)
    assert type(model) is FeatureTaggerForTokenClassification and model.config.encoder.is_decoder
    ids = rows_that_differ_at(PLACE)
    with torch.no_grad():
        states = model.encode(ids, None, None).hidden_states[-1]
        logits = model(ids).logits
    assert changes(states) == CAUSAL and all(changes(logits))


@pytest.mark.parametrize("frozen", [True, False])
def test_an_encoder_gets_the_gradient_of_the_whole_network_unless_it_is_frozen(frozen):
    """The oracle: the same network put together by hand."""
    sizes = {"vocab_size": 30, "hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3}
    encoder = ZooBertModel(ZooBertConfig(**sizes, intermediate_size=8, is_decoder=True, hidden_dropout_prob=0.0))
    options = {"features": "last", "rnn_size": 4, "rnn_layers": 1, "dropout": 0.0, "num_labels": 3}
    model = FeatureTaggerForTokenClassification.from_encoder(encoder, freeze_encoder=frozen, **options).train()
    encoder.config.attention_probs_dropout_prob = 0.0
    for layer in encoder.encoder.layer:
        layer.attention.self.dropout.p = 0.0
    assert encoder.training != frozen
    ids, labels = torch.randint(0, 30, (2, 5)), torch.randint(0, 3, (2, 5))
    model(ids, labels=labels).loss.backward()
    weight = encoder.encoder.layer[0].output.dense.weight
    if frozen:
        assert weight.grad is None and not weight.requires_grad
        return
    gradient = weight.grad.clone()
    model.zero_grad()
    states = model.rnn(encoder(ids).last_hidden_state)[0]
    torch.nn.functional.cross_entropy(model.classifier(states).flatten(0, 1), labels.flatten()).backward()
    torch.testing.assert_close(gradient, weight.grad, atol=1e-6, rtol=1e-5)
    unused = {
        name for name, parameter in model.named_parameters() if parameter.requires_grad and parameter.grad is None
    }
    assert unused == set()


@pytest.mark.parametrize("frozen", [True, False])
def test_an_encoder_without_a_pooler_is_trained_as_a_whole_unless_it_is_frozen(frozen):
    encoder = ZooGPTModel(ZooGPTConfig(vocab_size=30, n_embd=12, n_layer=1, n_head=3))
    model = FeatureTaggerForTokenClassification.from_encoder(
        encoder, freeze_encoder=frozen, features="last", rnn_size=4
    )
    assert {parameter.requires_grad for parameter in model.encoder.parameters()} == {not frozen}


def small_tagger(**options) -> FeatureTaggerForTokenClassification:
    sizes = {"vocab_size": 30, "hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3}
    encoder = ZooBertModel(ZooBertConfig(**sizes, intermediate_size=8))
    return FeatureTaggerForTokenClassification.from_encoder(encoder, rnn_size=4, features="last", **options)


def assert_learns(model: torch.nn.Module, name: str) -> None:
    """A step in training reaches the parameters whose names hold `name`."""
    ids, labels = torch.randint(0, 30, (2, 5)), torch.randint(0, 2, (2, 5))
    model.train()(input_ids=ids, labels=labels).loss.backward()
    assert all(part.grad is not None for key, part in model.named_parameters() if name in key)


def test_what_a_user_unfreezes_is_trained():
    model = small_tagger()
    model.encoder.encoder.requires_grad_(True)
    assert_learns(model, "encoder.encoder.")
    assert model.encoder.training and not model.encoder.embeddings.word_embeddings.weight.requires_grad


def test_adapters_in_a_frozen_encoder_learn():
    assert_learns(get_peft_model(small_tagger(), LoraConfig(target_modules=["query"])), "lora")


def test_a_loaded_tagger_has_a_frozen_encoder(tmp_path):
    small_tagger().save_pretrained(tmp_path)
    model = FeatureTaggerForTokenClassification.from_pretrained(tmp_path).train()
    assert not any(part.requires_grad for part in model.encoder.parameters()) and not model.encoder.training
    assert all(part.requires_grad for part in model.rnn.parameters())


def test_states_of_an_encoder_that_is_trained_are_not_cached(tmp_path, flags):
    args = [*flags, "--data_dir", str(write_folder(tmp_path / "conll")), "--features", "last"]
    with pytest.raises(ValueError, match="the states of ZooBertModel are trained"):
        run_ner.main([*args, "--config_overrides", "freeze_encoder=false", "--state_cache", str(tmp_path / "cache")])
