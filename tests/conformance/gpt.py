"""What transformers' own test suites need to know to run over the zoo's GPT.

Read by a harness that assembles the tester mixins of transformers' source distribution (models, configurations,
tokenizers, generation, training, pipelines) around the classes named here:
`run_conformance.py tests/conformance/gpt.py --overlay FOLDER`, where `FOLDER` is a checkout of transformers, because
the source distribution lacks the tests of generation.
"""

from unittest import mock

from transformers import PreTrainedModel


MARKS = ".,!?'-0123456789"
MERGES = [("t", "h"), ("th", "e</w>"), ("i", "s</w>"), ("a", "n"), ("an", "d</w>")]


def build_tokenizer():
    from modeling import ZooGPTTokenizer

    characters = [*map(chr, range(ord("a"), ord("z") + 1)), *MARKS]
    tokens = ["<unk>", *characters, *(f"{character}</w>" for character in characters), *map("".join, MERGES)]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    return ZooGPTTokenizer(vocab=vocabulary, merges=MERGES, model_max_length=512)


def inputs(tester, config):
    """A mask with holes, but not at the last token: there heads read, transformers' whatever its mask says."""
    from tests.test_modeling_common import ids_tensor, random_attention_mask

    shape = [tester.batch_size, tester.seq_length]
    mask = random_attention_mask(shape)
    mask[:, -1] = 1
    return {"input_ids": ids_tensor(shape, config.pad_token_id), "attention_mask": mask}


def resizing(name):
    """That test of the mixin, which wants new words to be the mean of all; here they are that on request only."""

    def resize(test):
        from tests.test_modeling_common import ModelTesterMixin

        from modeling import ZooGPTPreTrainedModel

        mean = PreTrainedModel.resize_token_embeddings
        with mock.patch.object(ZooGPTPreTrainedModel, "resize_token_embeddings", mean):
            getattr(ModelTesterMixin, name)(test)

    return {name: resize}


HEADS = {
    "LMHeadModel": "causal-lm",
    "ForSequenceClassification": "sequence-classification",
    "ForMultipleChoice": "multiple-choice",
    "ForTokenClassification": "token-classification",
    "ForQuestionAnswering": "question-answering",
}
STOCK = ("Model", "LMHeadModel", "ForSequenceClassification")

SPEC = {
    "name": "ZooGPT",
    "sys_path": ["../.."],
    "import_modules": ["modeling"],
    "config": "modeling:ZooGPTConfig",
    "config_kwargs": {
        "vocab_size": 99,
        "n_positions": 512,
        "n_embd": 32,
        "n_layer": 2,
        "n_head": 4,
        "pad_token_id": 98,
        # two passes in training mode are comparable without it
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
        "summary_first_dropout": 0.0,
    },
    "config_test_kwargs": {"n_embd": 36},
    "models": {
        "modeling:ZooGPTModel": "base",
        **{f"modeling:ZooGPT{head}": task for head, task in HEADS.items()},
    },
    "inputs": inputs,
    "tester_attributes": {"causal_lm_class": "modeling:ZooGPTLMHeadModel"},
    "mixins": ["training", "pipeline"],
    "pipeline_models": {
        "feature-extraction": "modeling:ZooGPTModel",
        "text-generation": "modeling:ZooGPTLMHeadModel",
        "text-classification": "modeling:ZooGPTForSequenceClassification",
        "token-classification": "modeling:ZooGPTForTokenClassification",
        "zero-shot": "modeling:ZooGPTForSequenceClassification",
    },
    "attributes": {
        **resizing("test_resize_tokens_embeddings"),
        **resizing("test_resize_embeddings_untied"),
    },
    "stock_models": {f"modeling:ZooGPT{name}": f"transformers:OpenAIGPT{name}" for name in STOCK},
    "remote_code": {
        "modeling:ZooGPTModel": "AutoModel",
        "modeling:ZooGPTLMHeadModel": "AutoModelForCausalLM",
        **{f"modeling:ZooGPT{head}": f"AutoModel{head}" for head in HEADS if head.startswith("For")},
    },
    "tokenizer": {"class": "modeling:ZooGPTTokenizer", "build": build_tokenizer, "backend": "tokenizers"},
}
