"""A tagger on the states of an encoder, as users of transformers handle it."""

import copy

import pytest
import torch
from torch import nn

from modeling import (
    ElmoConfig,
    ElmoForTokenClassification,
    FeatureTaggerForTokenClassification,
    ZooBertConfig,
    ZooBertModel,
)


IDS = torch.tensor([[3, 7, 11, 2], [5, 4, 9, 8]])
LABELS = torch.tensor([[0, 1, 2, 0], [2, 2, 1, 0]])


def make_tagger(dtype: torch.dtype = torch.float32, **fields) -> FeatureTaggerForTokenClassification:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 4, "num_attention_heads": 2, "intermediate_size": 24}
    encoder = ZooBertModel(ZooBertConfig(vocab_size=13, max_position_embeddings=9, **sizes)).to(dtype)
    return FeatureTaggerForTokenClassification.from_encoder(encoder, rnn_size=5, num_labels=3, **fields)


def replica(model: nn.Module) -> nn.Module:
    """What nn.DataParallel calls on another GPU: a copy whose parameters are plain tensors."""
    copies = {module: module._replicate_for_data_parallel() for module in model.modules()}
    for module, copied in copies.items():
        copied._former_parameters = {}
        for name, child in module._modules.items():
            copied._modules[name] = None if child is None else copies[child]
        for name, parameter in module._parameters.items():
            setattr(copied, name, None if parameter is None else parameter * 1)
            if parameter is not None:
                copied._former_parameters[name] = getattr(copied, name)
        copied._buffers = dict(module._buffers)
    return copies[model]


def trained_parts(model: nn.Module, called: nn.Module, **inputs) -> set[str]:
    model.zero_grad(set_to_none=True)
    called(**inputs, labels=LABELS).loss.backward()
    return {name for name, parameter in model.named_parameters() if parameter.grad is not None}


@pytest.mark.parametrize("frozen", [True, False])
def test_a_replica_trains_what_the_model_trains(frozen):
    tagger = make_tagger(freeze_encoder=frozen).train()
    trained = trained_parts(tagger, tagger, input_ids=IDS)
    assert trained_parts(tagger, replica(tagger), input_ids=IDS) == trained
    assert any(name.startswith("encoder.") for name in trained) != frozen


def test_a_replica_of_elmos_tagger_reads_states():
    sizes = {"char_embedding_size": 4, "filters": [[1, 8]], "hidden_size": 6, "cell_size": 7, "rnn_size": 5}
    tagger = ElmoForTokenClassification(ElmoConfig(**sizes, num_highway_layers=1, num_labels=3))
    states = {"layer_states": torch.randn(2, 4, 3, 6), "attention_mask": torch.ones(2, 4)}
    assert trained_parts(tagger, replica(tagger), **states) == trained_parts(tagger, tagger, **states)


def test_a_resized_tagger_is_loaded_with_its_size(tmp_path):
    tagger = make_tagger()
    tagger.resize_token_embeddings(17)
    tagger.save_pretrained(tmp_path)
    loaded = FeatureTaggerForTokenClassification.from_pretrained(tmp_path)
    loaded.resize_token_embeddings(19)
    loaded.save_pretrained(tmp_path)
    again = FeatureTaggerForTokenClassification.from_pretrained(tmp_path)
    assert again.get_input_embeddings().weight.shape == (19, 16) and again.config.encoder.vocab_size == 19
    torch.testing.assert_close(again(IDS).logits, tagger.eval()(IDS).logits)


@pytest.mark.parametrize("attention", ["eager", "sdpa", "flex_attention"])
def test_the_encoder_attends_as_it_is_told(attention):
    tagger = make_tagger()
    tagger.set_attn_implementation(attention)
    assert tagger.encoder.config._attn_implementation == attention


@pytest.mark.parametrize("features", ["weighted_sum_all", "weighted_sum_last_four", "concat_last_four", "last"])
def test_an_encoder_in_half_precision_has_a_head_in_float32(features):
    tagger = make_tagger(torch.bfloat16, features=features).eval()
    whole = copy.deepcopy(tagger).float()
    with torch.no_grad():
        logits, expected = tagger(IDS).logits, whole(IDS).logits
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits, expected, atol=0.02, rtol=0.02)
