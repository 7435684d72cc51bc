"""Layers that do not learn: what --freeze_layers freezes, what it leaves, and what it does in a run."""

import copy
import re

import pytest
import torch
import transformers
from safetensors.torch import load_file

import modeling
from elmo_gpt_bert.training.identity import first_difference
from elmo_gpt_bert.training.optimization import (
    build_optimizer,
    check_ties,
    freeze_layers,
    gather_weights,
    load_weights,
    reinitialize_layers,
)
from modeling import ElmoConfig, ElmoForSequenceClassification
from tests.support import tiny_run
from tests.support.bert_cases import SIZES, stock_config
from tests.support.tiny_run import fit, prepare, weights


LAYERS = SIZES["num_hidden_layers"]
GPT = {"vocab_size": 97, "n_positions": 41, "n_embd": 36, "n_layer": LAYERS, "n_head": 3}
# As many highways and mixes as layers.
ELMO = {"filters": [[1, 4], [2, 5]], "char_embedding_size": 3, "hidden_size": 6, "cell_size": 7, "num_labels": 2}
ELMO |= {"num_hidden_layers": LAYERS, "num_highway_layers": LAYERS, "rnn_size": 9, "rnn_layers": 1}


def elmo(freeze_bilm: bool = False) -> ElmoForSequenceClassification:
    return ElmoForSequenceClassification(ElmoConfig(**ELMO, freeze_bilm=freeze_bilm))


MODELS = {
    "BERT, classifier": lambda: modeling.ZooBertForSequenceClassification(stock_config()),
    "BERT, tied masked LM": lambda: modeling.ZooBertForMaskedLM(stock_config()),
    "BERT, stock": lambda: transformers.BertForSequenceClassification(stock_config()),
    "GPT, classifier": lambda: modeling.ZooGPTForSequenceClassification(modeling.ZooGPTConfig(**GPT)),
    "GPT, tied LM": lambda: modeling.ZooGPTLMHeadModel(modeling.ZooGPTConfig(**GPT)),
    "GPT, stock": lambda: transformers.OpenAIGPTLMHeadModel(transformers.OpenAIGPTConfig(**GPT)),
    "ELMo": elmo,
}


def layer_of(name: str) -> int | None:
    """The number of the layer that the parameter is in, 0 for what is below all layers; None for what is above."""
    layer = re.search(r"\b(?:encoder\.layer|h|elmo\.layers)\.(\d+)\.", name)
    if layer:
        return int(layer[1]) + 1
    return 0 if "embed" in name or "token_encoder" in name else None


@pytest.mark.parametrize("count", [None, 0, 2])
@pytest.mark.parametrize("model", MODELS)
def test_the_embeddings_and_the_lowest_layers_are_frozen_and_nothing_else(run, model, count):
    model = MODELS[model]()
    freeze_layers(model, count)
    optimized = {p for group in build_optimizer(model, run()).param_groups for p in group["params"]}
    depths = set()
    for name, parameter in model.named_parameters():
        depth = layer_of(name)
        depths.add(depth)
        is_frozen = count is not None and depth is not None and depth <= count
        assert parameter.requires_grad != is_frozen, name
        assert (parameter in optimized) != is_frozen, name
    assert depths >= {*range(LAYERS + 1)}


@pytest.mark.parametrize("changes", [{}, {"gradient_checkpointing": True}])
def test_a_run_moves_what_is_above_the_frozen_layers_only(run, data_set, changes):
    _, _, before, _ = prepare(run())
    _, trained = fit(run(freeze_layers=1, max_steps=2, weight_decay=0.1, **changes), data_set)
    for (name, parameter), old in zip(trained.named_parameters(), before.parameters(), strict=True):
        depth = layer_of(name)
        is_frozen = depth is not None and depth <= 1
        assert torch.equal(parameter, old) == is_frozen and parameter.requires_grad != is_frozen, name


def test_frozen_layers_train_the_rest_as_a_rate_of_zero_would(run, data_set):
    """The oracle: every parameter is trained, and the frozen ones are put back after each update."""
    settings = {"max_steps": 3, "max_grad_norm": 0.0}
    _, frozen = fit(run(freeze_layers=1, **settings), data_set)
    _, _, start, _ = prepare(run())
    low = {name: tensor for name, tensor in start.named_parameters() if layer_of(name) in (0, 1)}
    step = torch.optim.AdamW.step

    def step_and_put_back(self, *args, **kwargs):
        result = step(self, *args, **kwargs)
        with torch.no_grad():
            for name, parameter in learner.named_parameters():
                if name in low:
                    parameter.copy_(low[name])
        return result

    learner, load = None, tiny_run.load_model

    def load_and_keep(*args, **kwargs):
        nonlocal learner
        learner = load(*args, **kwargs)
        return learner

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.optim.AdamW, "step", step_and_put_back)
        patch.setattr(tiny_run, "load_model", load_and_keep)
        _, expected = fit(run(output_dir=run().output_dir + "2", **settings), data_set)
    torch.testing.assert_close(weights(frozen), weights(expected), rtol=0, atol=1e-6)


def test_a_run_with_frozen_layers_goes_on_from_its_checkpoint_bit_by_bit(run, data_set):
    options = {"freeze_layers": 1, "lr_scheduler_type": "constant", "save_strategy": "steps", "save_steps": 3}
    _, whole = fit(run(max_steps=6, **options), data_set)
    other = run().output_dir + "2"
    fit(run(output_dir=other, max_steps=3, **options), data_set)
    _, resumed = fit(run(output_dir=other, max_steps=6, resume=True, **options), data_set)
    assert torch.equal(weights(resumed), weights(whole))
    with pytest.raises(ValueError, match="is of a run with freeze_layers 1, not None"):
        fit(run(output_dir=other, max_steps=6, resume=True, **(options | {"freeze_layers": None})), data_set)


def test_an_argument_that_a_checkpoint_is_too_old_to_have_is_no_difference_unless_it_is_given():
    assert first_difference({"seed": 1, "freeze_layers": None}, {"seed": 1}) is None
    assert first_difference({"seed": 1, "freeze_layers": 0}, {"seed": 1}) == "freeze_layers"
    assert first_difference({"seed": 1}, {"seed": 1, "gone": 2}) == "gone"


def test_elmos_layers_start_anew_where_they_are_trained_also_if_other_lists_are_as_long():
    model = elmo()
    before = copy.deepcopy(model.state_dict())
    torch.manual_seed(8)
    reinitialize_layers(model, 1)
    changed = {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])}
    assert changed and {layer_of(name) for name in changed} == {LAYERS}


def test_what_cannot_be_frozen_or_renewed_is_one_clear_error():
    model = MODELS["BERT, classifier"]()
    with pytest.raises(ValueError, match=f"^--freeze_layers {LAYERS + 1}: .* has {LAYERS} layers, give no more$"):
        freeze_layers(model, LAYERS + 1)
    with pytest.raises(
        ValueError, match=f"^--freeze_layers 2 and --reinit_layers 2 are more than the {LAYERS} layers of ZooBert"
    ):
        freeze_layers(model, 2, reinitialized=2)
    with pytest.raises(ValueError, match="does not train them in any case: .* --config_overrides freeze_bilm=false$"):
        freeze_layers(elmo(freeze_bilm=True), 1)
    with pytest.raises(ValueError, match="does not train its layers, which would stay random: .*freeze_bilm=false$"):
        reinitialize_layers(elmo(freeze_bilm=True), 1)
    assert all(parameter.requires_grad for parameter in model.parameters())
    freeze_layers(model, LAYERS)
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert {name.split(".")[-2] for name in trained} == {"dense", "classifier"} and len(trained) == 4  # the pooler's
    with pytest.raises(ValueError, match=f"^--freeze_layers {LAYERS} leaves nothing of ZooGPTLMHeadModel to train"):
        freeze_layers(MODELS["GPT, tied LM"](), LAYERS)
    pictures = transformers.ResNetConfig(embedding_size=4, hidden_sizes=[4], depths=[1], layer_type="basic")
    with pytest.raises(
        ValueError, match="^--freeze_layers needs layers, and ResNetConfig names no number of them: leave --f"
    ):
        freeze_layers(transformers.ResNetForImageClassification(pictures), 1)


# All weights


@pytest.mark.parametrize("name", MODELS)
def test_gathered_weights_are_those_of_the_models_folder_and_stay_tied_when_they_are_loaded(name, tmp_path):
    saved, model = MODELS[name](), MODELS[name]()
    saved.save_pretrained(tmp_path)
    weights = gather_weights(saved)
    torch.testing.assert_close(weights, load_file(tmp_path / "model.safetensors"), rtol=0, atol=0)
    load_weights(model, weights)
    torch.testing.assert_close(model.state_dict(), saved.state_dict(), rtol=0, atol=0)
    assert all(model.get_parameter(a) is model.get_parameter(b) for a, b in model.all_tied_weights_keys.items())


def test_the_weights_of_a_model_with_more_layers_are_refused():
    larger = modeling.ZooGPTLMHeadModel(modeling.ZooGPTConfig(**GPT | {"n_layer": LAYERS + 1}))
    with pytest.raises(ValueError, match=rf"the weights and the model differ in transformer\.h\.{LAYERS}\."):
        load_weights(MODELS["GPT, tied LM"](), gather_weights(larger))


MATRICES = [f"bert.encoder.layer.{number}.output.dense.weight" for number in (0, 1)]


class SharesAMatrix(modeling.ZooBertForSequenceClassification):
    """As the code that comes with a checkpoint may be: two layers have one matrix."""

    def __init__(self, config):
        super().__init__(config)
        first, second = self.bert.encoder.layer[:2]
        second.output.dense.weight = first.output.dense.weight


class SaysSo(SharesAMatrix):
    _tied_weights_keys = {MATRICES[1]: MATRICES[0]}


def test_tied_weights_that_the_class_does_not_declare_stop_a_run_before_it_trains(run, data_set, monkeypatch):
    monkeypatch.setattr(tiny_run, "load_model", lambda *args, **kwargs: SharesAMatrix(stock_config()))
    message = f"SharesAMatrix ties {' and '.join(MATRICES)} without saying so, and could not be saved: add "
    message += f"{SaysSo._tied_weights_keys} to the _tied_weights_keys of its class"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        fit(run(max_steps=1), data_set)
    monkeypatch.setattr(tiny_run, "load_model", lambda *args, **kwargs: SaysSo(stock_config()))
    fit(run(max_steps=1), data_set)


@pytest.mark.parametrize("name", MODELS)
def test_the_models_declare_what_they_tie(name):
    check_ties(MODELS[name]())
