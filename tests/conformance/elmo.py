"""What transformers' own test suites need to know to run over ELMo.

Read by a harness that assembles the tester mixins of transformers' source distribution (models, configurations,
tokenizers, training, pipelines) around the classes named here: `run_conformance.py tests/conformance/elmo.py`.
"""

import torch


CHARACTERS = 12


def build_tokenizer():
    from modeling import ElmoTokenizer

    return ElmoTokenizer(max_characters_per_token=CHARACTERS)


def inputs(tester, config):
    """Rows of two sentences of random letters. The mask is as random as that of other models: with holes in it."""
    from tests.test_modeling_common import ids_tensor, random_attention_mask

    shape = [tester.batch_size, tester.seq_length]
    second = torch.arange(tester.seq_length) >= tester.seq_length // 2
    return {
        "input_ids": ids_tensor([*shape, CHARACTERS], 256) + 1,
        "attention_mask": random_attention_mask(shape),
        "token_type_ids": second.long().expand(shape).contiguous(),
    }


def _prepare_for_class(test, inputs_dict, model_class, return_labels=False):
    """As the mixin's, which gives choices to two dimensions only; and labels for pre-training, a word each."""
    from tests.test_modeling_common import ModelTesterMixin

    ids = inputs_dict["input_ids"]
    rest = {name: value for name, value in inputs_dict.items() if name != "input_ids"}
    found = ModelTesterMixin._prepare_for_class(test, rest, model_class, return_labels=return_labels)
    if model_class.__name__ == "ElmoForMultipleChoice":
        ids = ids.unsqueeze(1).expand(-1, test.model_tester.num_choices, -1, -1).contiguous()
    if model_class.__name__ == "ElmoForPreTraining" and return_labels:
        found["labels"] = torch.zeros(ids.shape[:2], dtype=torch.long)
    return {"input_ids": ids.clone(), **found}


def _create_text_training_batch(test, batch_size, seq_length, vocab_size):
    """As the mixin's, nineteen words over and over, spelt out: the words to be predicted are those read."""
    words = torch.arange(seq_length) % 19 + 1
    spelt = (words[:, None] + torch.arange(CHARACTERS)) % 26 + ord("a")
    return {"input_ids": spelt.expand(batch_size, -1, -1), "labels": words.expand(batch_size, -1)}


def get_clean_sequence(test, tokenizer, with_prefix_space=False, max_length=20, min_length=5):
    """Text that decoding its ids gives back. The mixin looks for it among the words of the vocabulary: here, bytes."""
    text = "all of these words have spaces between them and nothing else"
    return text, tokenizer.encode(text)


def _own_models(test):
    """For `torch.compile(fullgraph=True)` and `torch.export`, which take all classes but one."""
    from own_tests import OwnTesterMixin

    with torch._dynamo.config.patch(allow_rnn=True):  # torch's own LSTM needs it as well
        for model_class, model, batch in OwnTesterMixin._own_models(test):
            if model_class.__name__ != "ElmoForPreTraining":  # it computes the words that are there, no padding
                yield model_class, model, batch


HEADS = {
    "ForPreTraining": "pretraining",
    "ForTokenClassification": "token-classification",
    "ForSequenceClassification": "sequence-classification",
    "ForMultipleChoice": "multiple-choice",
    "ForQuestionAnswering": "question-answering",
}

ROWS = "expects a word's id to be a number; here it is a row of them"
ADDED = "adds a token; words are read by their characters, so there are none to add, and the tokenizer says so"
WARNED = "expects a warning that the model cannot index so many tokens; this one reads rows of any length"

SPEC = {
    "name": "Elmo",
    "sys_path": ["../.."],
    "import_modules": ["modeling"],
    "config": "modeling:ElmoConfig",
    "config_kwargs": {
        "max_characters_per_token": CHARACTERS,
        "char_embedding_size": 4,
        "filters": [[1, 8], [2, 8]],
        "num_highway_layers": 1,
        "hidden_size": 16,
        "cell_size": 12,
        "lm_vocab_size": 31,
        "num_sampled": 0,
        "task_char_filters": 4,
        "rnn_size": 6,
        "classifier_size": 10,
        # every parameter has a gradient, and two passes are comparable
        "freeze_bilm": False,
        "hidden_dropout_prob": 0.0,
        "mix_dropout": 0.0,
        "task_dropout": 0.0,
    },
    "config_test_kwargs": {"hidden_size": 32},
    "config_common_properties": ["hidden_size", "num_hidden_layers", "vocab_size"],
    "models": {
        "modeling:ElmoModel": "base",
        **{f"modeling:Elmo{head}": task for head, task in HEADS.items()},
    },
    "inputs": inputs,
    "tester_attributes": {"causal_lm_class": "modeling:ElmoForPreTraining"},
    "mixins": ["training", "pipeline"],
    "pipeline_models": {
        "feature-extraction": "modeling:ElmoModel",
        "text-classification": "modeling:ElmoForSequenceClassification",
        "zero-shot": "modeling:ElmoForSequenceClassification",
    },
    "attributes": {
        "has_attentions": False,
        "test_resize_embeddings": False,
        "training_overfit_seq_length": 32,
        "training_overfit_learning_rate": 5e-3,
        "training_grad_norm_reduction_threshold": 0.0,  # of a gradient that is small with the first weights
        "_prepare_for_class": _prepare_for_class,
        "_create_text_training_batch": _create_text_training_batch,
        "_own_models": _own_models,
    },
    "remote_code": {
        "modeling:ElmoModel": "AutoModel",
        **{f"modeling:Elmo{head}": f"AutoModel{head}" for head in HEADS},
    },
    "waive": {
        "test_load_with_mismatched_shapes": "its last call gives ids of two dimensions",
    },
    "tokenizer": {
        "class": "modeling:ElmoTokenizer",
        "build": build_tokenizer,
        "backend": "python",
        "attributes": {"get_clean_sequence": get_clean_sequence},
        "waive": {
            "test_bos_token_with_add_bos_token_false": ADDED,
            "test_bos_token_with_add_bos_token_true": ADDED,
            "test_get_vocab": ADDED,
            "test_save_and_load_tokenizer": ADDED,
            "test_tokenize_special_tokens": ADDED,
            "test_encode_basic_padding": ROWS,
            "test_encode_plus_with_padding_0": ROWS,
            "test_encode_plus_with_padding_1": ROWS,
            "test_padding_with_attention_mask": ROWS,
            "test_tokenizers_common_ids_setters": ROWS,
            "test_maximum_encoding_length_single_input": WARNED,
            "test_maximum_encoding_length_pair_input": WARNED,
        },
    },
}
