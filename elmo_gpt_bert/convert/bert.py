"""Google's release of BERT -> a folder that `from_pretrained` reads, here and in transformers.

    pip install -e ".[convert]"
    cd uncased_L-12_H-768_A-12
    python -m elmo_gpt_bert.convert.bert --checkpoint bert_model.ckpt --config bert_config.json --vocab vocab.txt \\
        --output ../bert-base-uncased

The release (https://github.com/google-research/bert) is a TensorFlow checkpoint, a configuration and a vocabulary. Of
the checkpoint, `.index` and `.data-*` are read; the graph in `.meta` is not needed. Checkpoints of its
`run_pretraining.py` have the same form. TensorFlow checks the checksum of every tensor, so a damaged file is an error.

`"hidden_act": "gelu"` stays "gelu", the exact GELU that the code of the first releases computes, as in transformers'
own conversions. Google's later code (from commit bee6030 on) computes the tanh approximation under the same name and
does not say which models were trained with it. If yours was, write "gelu_new" into its bert_config.json.

Nothing in a release says whether text is to be lower-cased. A vocabulary with one of the letters A to Z is taken for a
cased one, any other for an uncased one. For Google's releases, the Chinese one included, this agrees with the list in
their code (`validate_case_matches_checkpoint` in tokenization.py). A cased vocabulary of another script needs
`--do_lower_case false`.
"""

import re
import string
from collections import Counter
from pathlib import Path
from typing import Annotated

from huggingface_hub.errors import StrictDataclassError
from transformers import BertTokenizer
from transformers.activations import ACT2FN

from elmo_gpt_bert.convert.files import build_model, command_line, new_folder, read_checkpoint, write_model
from elmo_gpt_bert.training.errors import InputError, as_user_errors
from elmo_gpt_bert.training.files import shown
from modeling.bert.configuration_bert import ZooBertConfig
from modeling.bert.modeling_bert import ZooBertForPreTraining
from modeling.released import AS_IS, DENSE, name_all, read_json, read_text


# The release's name, ours, and how to convert. The names of layer N begin with bert/encoder/layer_N/ and
# bert.encoder.layer.N.
LAYER = (
    ("attention/self/query/kernel", "attention.self.query.weight", DENSE),
    ("attention/self/query/bias", "attention.self.query.bias", AS_IS),
    ("attention/self/key/kernel", "attention.self.key.weight", DENSE),
    ("attention/self/key/bias", "attention.self.key.bias", AS_IS),
    ("attention/self/value/kernel", "attention.self.value.weight", DENSE),
    ("attention/self/value/bias", "attention.self.value.bias", AS_IS),
    ("attention/output/dense/kernel", "attention.output.dense.weight", DENSE),
    ("attention/output/dense/bias", "attention.output.dense.bias", AS_IS),
    ("attention/output/LayerNorm/gamma", "attention.output.LayerNorm.weight", AS_IS),
    ("attention/output/LayerNorm/beta", "attention.output.LayerNorm.bias", AS_IS),
    ("intermediate/dense/kernel", "intermediate.dense.weight", DENSE),
    ("intermediate/dense/bias", "intermediate.dense.bias", AS_IS),
    ("output/dense/kernel", "output.dense.weight", DENSE),
    ("output/dense/bias", "output.dense.bias", AS_IS),
    ("output/LayerNorm/gamma", "output.LayerNorm.weight", AS_IS),
    ("output/LayerNorm/beta", "output.LayerNorm.bias", AS_IS),
)
TABLE = (
    ("bert/embeddings/word_embeddings", "bert.embeddings.word_embeddings.weight", AS_IS),  # also the masked LM head's
    ("bert/embeddings/position_embeddings", "bert.embeddings.position_embeddings.weight", AS_IS),
    ("bert/embeddings/token_type_embeddings", "bert.embeddings.token_type_embeddings.weight", AS_IS),
    ("bert/embeddings/LayerNorm/gamma", "bert.embeddings.LayerNorm.weight", AS_IS),
    ("bert/embeddings/LayerNorm/beta", "bert.embeddings.LayerNorm.bias", AS_IS),
    *((f"bert/encoder/layer_{{}}/{row[0]}", f"bert.encoder.layer.{{}}.{row[1]}", row[2]) for row in LAYER),
    ("bert/pooler/dense/kernel", "bert.pooler.dense.weight", DENSE),
    ("bert/pooler/dense/bias", "bert.pooler.dense.bias", AS_IS),
    ("cls/predictions/transform/dense/kernel", "cls.predictions.transform.dense.weight", DENSE),
    ("cls/predictions/transform/dense/bias", "cls.predictions.transform.dense.bias", AS_IS),
    ("cls/predictions/transform/LayerNorm/gamma", "cls.predictions.transform.LayerNorm.weight", AS_IS),
    ("cls/predictions/transform/LayerNorm/beta", "cls.predictions.transform.LayerNorm.bias", AS_IS),
    ("cls/predictions/output_bias", "cls.predictions.bias", AS_IS),
    ("cls/seq_relationship/output_weights", "cls.seq_relationship.weight", AS_IS),  # (out, in) there, too
    ("cls/seq_relationship/output_bias", "cls.seq_relationship.bias", AS_IS),
)
# run_pretraining.py also saves the step and Adam's two averages of each variable. The releases lack these.
UNREAD_TENSORS = ("global_step", "/adam_m", "/adam_v")
REMEDY = (
    "Take both from the same release. Only pre-training checkpoints can be converted, not those of Google's "
    "fine-tuning scripts, which lack the heads"
)

# The keys of bert_config.json: those that are required ...
SIZES = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
    "type_vocab_size",
)
OTHERS = ("hidden_act", "hidden_dropout_prob", "attention_probs_dropout_prob", "initializer_range")
# ... and those of the Chinese and the multilingual release that no released code reads.
UNREAD = (
    "directionality",
    "pooler_fc_size",
    "pooler_num_attention_heads",
    "pooler_num_fc_layers",
    "pooler_size_per_head",
    "pooler_type",
)
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def convert(
    checkpoint: Annotated[str, "the path that the checkpoint's files share, e.g. .../bert_model.ckpt, or one of them"],
    config: Annotated[str, "bert_config.json"],
    vocab: Annotated[str, "vocab.txt"],
    output: Annotated[str, "the folder to write; must be new or empty"],
    do_lower_case: Annotated[
        bool | None,
        "true or false; default: false if the vocabulary has one of the letters A to Z, else true",
    ] = None,
) -> None:
    """Writes a folder with the model with both heads, its tokenizer, and our code; none if a file is broken.

    Raises:
        ImportError: when TensorFlow is not installed.
        OSError: when a file is missing or damaged, or `output` holds something.
        ValueError: when a file differs from the release's, or the three files do not fit together.
    """
    new_folder(output)
    with as_user_errors("", ImportError):
        model_config, tokens = read_config(Path(config)), read_vocabulary(Path(vocab))
    if len(tokens) != model_config.vocab_size:
        raise InputError(
            f"{vocab} has {len(tokens)} entries, but {config} says vocab_size {model_config.vocab_size}: "
            "take both from the same release"
        )
    model_config.pad_token_id = tokens.index("[PAD]")
    if do_lower_case is None:
        do_lower_case = looks_uncased(tokens)
    prefix = re.sub(r"\.(index|meta|data-\d+-of-\d+)$", "", checkpoint)  # the path that its files share
    tensors = read_checkpoint(prefix, UNREAD_TENSORS)
    model = build_model(ZooBertForPreTraining, model_config, tensors, TABLE, prefix, config, REMEDY)
    tokenizer = BertTokenizer(
        vocab={token: number for number, token in enumerate(tokens)},
        do_lower_case=do_lower_case,
        model_max_length=model_config.max_position_embeddings,
    )

    write_model(output, model, tokenizer)
    casing = "lower-cased" if do_lower_case else "cased"
    print(f"{output}: {model_config.num_hidden_layers} layers, {model.num_parameters():,} parameters, {casing} text")


def read_config(path: Path) -> ZooBertConfig:
    """bert_config.json as our configuration."""
    values = read_json(path)
    required = {*SIZES, *OTHERS}
    differences = (("lacks", required - values.keys()), ("has the unknown", values.keys() - required - {*UNREAD}))
    problems = [f"{what} {name_all(sorted(names))}" for what, names in differences if names]
    if problems:
        raise InputError(f"{path} {' and '.join(problems)}: is it the bert_config.json of the release?")
    for name in SIZES:
        if type(values[name]) is not int or values[name] <= 0:
            raise InputError(f"{path}: {name} must be a positive integer, not {shown(values[name])}")
    with as_user_errors(f"{path}: ", StrictDataclassError):
        config = ZooBertConfig(**{name: values[name] for name in SIZES + OTHERS})
    if config.hidden_act not in ACT2FN:
        raise InputError(
            f"{path}: hidden_act {shown(config.hidden_act)} is not one of transformers' {', '.join(ACT2FN)}"
        )
    return config


def read_vocabulary(path: Path) -> list[str]:
    """The word pieces of vocab.txt, one a line, in the order of their ids."""
    tokens = read_text(path).removesuffix("\n").split("\n")  # not splitlines(): U+2028 is a Chinese word piece
    counts = Counter(tokens)
    wrong = [token for token in (*SPECIAL, *counts) if counts[token] != 1]
    if wrong:
        times = f"{shown(wrong[0])} {counts[wrong[0]]} times"
        raise InputError(f"{path} has {times}, not once: is it the vocab.txt of the release?")
    return tokens


def looks_uncased(tokens: list[str]) -> bool:
    """Whether no entry is a single letter A to Z. A cased vocabulary has every letter of its language as an entry."""
    return not set(string.ascii_uppercase) & set(tokens)


def main(argv: list[str] | None = None) -> None:
    command_line(convert, argv)


if __name__ == "__main__":
    main()
