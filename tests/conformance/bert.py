"""What transformers' own test suites need to know to run over the zoo's BERT.

Read by a harness that assembles the tester mixins of transformers' source distribution (models, configurations,
training, tensor parallelism) around the classes named here: `run_conformance.py tests/conformance/bert.py`.
"""

from transformers import BertTokenizer


WORDS = "[PAD] [UNK] [CLS] [SEP] [MASK] the a this is my name and cat dog sat on mat hello who are you i am paris"


def build_tokenizer():
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    pieces = [*WORDS.split(), *letters, *("##" + letter for letter in letters), *"0123456789.,!?'-()#"]
    return BertTokenizer(
        vocab={piece: index for index, piece in enumerate(dict.fromkeys(pieces))}, model_max_length=512
    )


HEADS = {
    "ForPreTraining": "pretraining",
    "ForMaskedLM": "masked-lm",
    "ForNextSentencePrediction": "next-sentence",
    "ForSequenceClassification": "sequence-classification",
    "ForTokenClassification": "token-classification",
    "ForQuestionAnswering": "question-answering",
    "ForMultipleChoice": "multiple-choice",
}

SPEC = {
    "name": "ZooBert",
    "sys_path": ["../.."],
    "import_modules": ["modeling"],
    "config": "modeling:ZooBertConfig",
    "config_kwargs": {
        "vocab_size": 99,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 36,
        "max_position_embeddings": 512,
        "type_vocab_size": 16,
        # ranks that hold different heads draw different dropout, so tensor parallelism is comparable without it
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    },
    "config_test_kwargs": {"hidden_size": 32, "num_attention_heads": 4},
    "models": {
        "modeling:ZooBertModel": "base",
        **{f"modeling:ZooBert{head}": task for head, task in HEADS.items()},
    },
    "tester_attributes": {"causal_lm_class": "modeling:ZooBertForMaskedLM"},
    "mixins": ["training", "pipeline", "tensor-parallel"],
    "pipeline_models": {
        "feature-extraction": "modeling:ZooBertModel",
        "fill-mask": "modeling:ZooBertForMaskedLM",
        "text-classification": "modeling:ZooBertForSequenceClassification",
        "token-classification": "modeling:ZooBertForTokenClassification",
        "zero-shot": "modeling:ZooBertForSequenceClassification",
    },
    "attributes": {"model_split_percents": [0.5, 0.8, 0.9]},
    "stock_models": {
        "modeling:ZooBertModel": "transformers:BertModel",
        **{f"modeling:ZooBert{head}": f"transformers:Bert{head}" for head in HEADS},
    },
    "remote_code": {
        "modeling:ZooBertModel": "AutoModel",
        **{f"modeling:ZooBert{head}": f"AutoModel{head}" for head in HEADS},
    },
    "waive": {
        "test_tp_generation": "an encoder does not generate",
        "test_tp_generation_quantized": "an encoder does not generate",  # skipped where torchao is not installed
    },
    "tokenizer": {"class": "transformers:BertTokenizer", "build": build_tokenizer, "test": False},
}
