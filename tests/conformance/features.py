"""What transformers' own test suites need to know to run over the tagger on a frozen encoder's states.

Read by a harness that assembles the tester mixins of transformers' source distribution (models, configurations)
around the class named here: `run_conformance.py tests/conformance/features.py`.
"""

ENCODER = {
    "model_type": "bert",
    "vocab_size": 99,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 36,
    "max_position_embeddings": 64,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}


def inputs(tester, config):
    from tests.test_modeling_common import ids_tensor, random_attention_mask

    shape = [tester.batch_size, tester.seq_length]
    return {"input_ids": ids_tensor(shape, ENCODER["vocab_size"]), "attention_mask": random_attention_mask(shape)}


LSTM = "the tagger's LSTM reads packed sequences, which torch does not trace"
TAGGER = "modeling:FeatureTaggerForTokenClassification"

SPEC = {
    "name": "FeatureTagger",
    "sys_path": ["../.."],
    "import_modules": ["modeling"],
    "config": "modeling:FeatureTaggerConfig",
    "config_kwargs": {"encoder": ENCODER, "features": "weighted_sum_all", "rnn_size": 6, "dropout": 0.0},
    "config_test_kwargs": {"features": "last"},
    "config_common_properties": ["features", "rnn_size"],
    "has_text_modality": False,
    "models": {TAGGER: "token-classification"},
    "inputs": inputs,
    "tester_attributes": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4},
    "mixins": [],
    "attributes": {"test_resize_embeddings": False},
    "remote_code": {TAGGER: "AutoModelForTokenClassification"},
    "waive": {
        "test_own_compile_fullgraph": LSTM,
        "test_own_torch_export": LSTM,
        "test_can_capture_specific_layers_hidden_states": "the encoder always gives all layers, to make features of",
        "test_retain_grad_hidden_states_attentions": "the encoder is frozen, so its layers have no gradients",
        "test_correct_missing_keys": "an encoder's folder does not say what tagger to build; `from_encoder` does that",
    },
}
