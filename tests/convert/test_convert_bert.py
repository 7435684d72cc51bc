"""Google's release of BERT, written in miniature by TensorFlow, converts to the model that its code computes."""

import json
import shutil
import string
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoTokenizer, BertForPreTraining, BertTokenizer

from elmo_gpt_bert.convert.bert import convert, looks_uncased, main, read_checkpoint, read_vocabulary
from modeling import ZooBertForPreTraining
from tests.support import releases
from tests.support.releases import (
    LONG,
    cut,
    remove,
    write,
    write_checkpoint,
)


CONFIG = {
    "attention_probs_dropout_prob": 0.1,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.2,
    "hidden_size": 15,
    "initializer_range": 0.02,
    "intermediate_size": 23,
    "max_position_embeddings": 17,
    "num_attention_heads": 3,
    "num_hidden_layers": 2,
    "type_vocab_size": 4,
    "vocab_size": 31,
}
# What the Chinese and the multilingual release add.
UNREAD = {
    "directionality": "bidi",
    "pooler_fc_size": 768,
    "pooler_num_attention_heads": 12,
    "pooler_num_fc_layers": 3,
    "pooler_size_per_head": 128,
    "pooler_type": "first_token_transform",
}
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *string.ascii_lowercase]
DATA = "bert_model.ckpt.data-00000-of-00001"
INDEX = "bert_model.ckpt.index"


@pytest.fixture(scope="module")
def tf():
    return pytest.importorskip("tensorflow", reason='TensorFlow is not installed: pip install -e ".[convert]"')


def released_variables() -> dict[str, np.ndarray]:
    """Random values under the names and in the shapes that google-research/bert's modeling.py gives its variables."""
    hidden, inner = CONFIG["hidden_size"], CONFIG["intermediate_size"]
    shapes = {
        "bert/embeddings/word_embeddings": (CONFIG["vocab_size"], hidden),
        "bert/embeddings/position_embeddings": (CONFIG["max_position_embeddings"], hidden),
        "bert/embeddings/token_type_embeddings": (CONFIG["type_vocab_size"], hidden),
        "cls/predictions/output_bias": (CONFIG["vocab_size"],),
        "cls/seq_relationship/output_weights": (2, hidden),
        "cls/seq_relationship/output_bias": (2,),
    }
    dense = {"bert/pooler/dense": (hidden, hidden), "cls/predictions/transform/dense": (hidden, hidden)}
    norms = ["bert/embeddings/LayerNorm", "cls/predictions/transform/LayerNorm"]
    for layer in range(CONFIG["num_hidden_layers"]):
        scope = f"bert/encoder/layer_{layer}"
        dense |= {f"{scope}/attention/self/{name}": (hidden, hidden) for name in ("query", "key", "value")}
        dense |= {f"{scope}/attention/output/dense": (hidden, hidden)}
        dense |= {f"{scope}/intermediate/dense": (hidden, inner), f"{scope}/output/dense": (inner, hidden)}
        norms += [f"{scope}/attention/output/LayerNorm", f"{scope}/output/LayerNorm"]
    for scope, (inputs, outputs) in dense.items():
        shapes |= {f"{scope}/kernel": (inputs, outputs), f"{scope}/bias": (outputs,)}
    for scope in norms:
        shapes |= {f"{scope}/beta": (hidden,), f"{scope}/gamma": (hidden,)}
    rng = np.random.default_rng(0)
    # Embeddings as small as real ones, so that another epsilon shows; the rest large, so that another GELU does.
    spread = {name: 0.02 if name.endswith("embeddings") else 0.3 for name in shapes}
    return {
        name: rng.normal(float(name.endswith("gamma")), spread[name], shape).astype(np.float32)
        for name, shape in shapes.items()
    }


def write_texts(folder: Path, **changes: object) -> None:
    """bert_config.json and vocab.txt."""
    (folder / "bert_config.json").write_text(json.dumps(CONFIG | changes), encoding="utf-8")
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n", encoding="utf-8")


@pytest.fixture(scope="module")
def written(tf, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("release")
    write_texts(folder)
    write_checkpoint(tf, released_variables(), folder / "bert_model.ckpt")
    assert {path.name for path in folder.iterdir()} > {DATA, INDEX, "bert_model.ckpt.meta"}
    return folder


@pytest.fixture
def release(written, tmp_path) -> Path:
    """A copy of the release for one test to damage."""
    return Path(shutil.copytree(written, tmp_path / "release"))


def flags(release: Path, output: Path) -> dict[str, str]:
    return {
        "checkpoint": str(release / "bert_model.ckpt"),
        "config": str(release / "bert_config.json"),
        "vocab": str(release / "vocab.txt"),
        "output": str(output),
    }


def converted(release: Path, **options: object) -> Path:
    output = release.parent / "converted"
    convert(**flags(release, output), **options)
    return output


assert_refused = partial(releases.assert_refused, converted)


# What a test does to its copy


def configure(**changes: object):
    return lambda release: write_texts(release, **changes)


def tokens(*pieces: str):
    return write("vocab.txt", "\n".join(pieces))


# What the release's code computes


def layer_norm(tf, x, variables, scope):
    """tf.contrib.layers.layer_norm over the last axis."""
    mean, variance = tf.nn.moments(x, axes=[-1], keepdims=True)
    return tf.nn.batch_normalization(
        x, mean, variance, variables[f"{scope}/beta"], variables[f"{scope}/gamma"], variance_epsilon=1e-12
    )


def dense(tf, x, variables, scope):
    return tf.matmul(x, variables[f"{scope}/kernel"]) + variables[f"{scope}/bias"]


def exact_gelu(tf, x):
    return x * 0.5 * (1.0 + tf.math.erf(x / np.sqrt(2.0).astype(np.float32)))


def approximate_gelu(tf, x):
    return x * 0.5 * (1.0 + tf.tanh(np.sqrt(2 / np.pi).astype(np.float32) * (x + 0.044715 * tf.pow(x, 3))))


def attention(tf, x, adder, variables, scope):
    """Rows, columns, heads and head size by reshape and transpose; `adder` (B, 1, 1, T) is -10000 at padding."""
    (rows, columns, hidden), heads = x.shape, CONFIG["num_attention_heads"]

    def split(name):
        states = dense(tf, x, variables, f"{scope}/{name}")
        return tf.transpose(tf.reshape(states, [rows, columns, heads, hidden // heads]), [0, 2, 1, 3])

    scores = tf.matmul(split("query"), split("key"), transpose_b=True) / np.sqrt(hidden // heads).astype(np.float32)
    context = tf.matmul(tf.nn.softmax(scores + adder), split("value"))
    return tf.reshape(tf.transpose(context, [0, 2, 1, 3]), [rows, columns, hidden])


def released_model(tf, values, batch, activation) -> tuple[list[np.ndarray], np.ndarray, np.ndarray]:
    """The hidden states of all layers, the logits of the words and of the next sentence, as in modeling.py."""
    variables = {name: tf.Variable(value) for name, value in values.items()}
    ids, mask, segments = (batch[name].numpy() for name in ("input_ids", "attention_mask", "token_type_ids"))
    table = variables["bert/embeddings/word_embeddings"]
    x = tf.gather(table, ids)
    x += tf.matmul(tf.one_hot(segments, CONFIG["type_vocab_size"]), variables["bert/embeddings/token_type_embeddings"])
    x += variables["bert/embeddings/position_embeddings"][: ids.shape[1]]
    states = [layer_norm(tf, x, variables, "bert/embeddings/LayerNorm")]
    adder = (1.0 - mask[:, None, None, :].astype(np.float32)) * -10000.0
    for layer in range(CONFIG["num_hidden_layers"]):
        scope, x = f"bert/encoder/layer_{layer}", states[-1]
        context = attention(tf, x, adder, variables, f"{scope}/attention/self")
        context = dense(tf, context, variables, f"{scope}/attention/output/dense")
        x = layer_norm(tf, context + x, variables, f"{scope}/attention/output/LayerNorm")
        inner = activation(tf, dense(tf, x, variables, f"{scope}/intermediate/dense"))
        inner = dense(tf, inner, variables, f"{scope}/output/dense")
        states.append(layer_norm(tf, inner + x, variables, f"{scope}/output/LayerNorm"))
    pooled = tf.tanh(dense(tf, states[-1][:, 0], variables, "bert/pooler/dense"))
    words = activation(tf, dense(tf, states[-1], variables, "cls/predictions/transform/dense"))
    words = layer_norm(tf, words, variables, "cls/predictions/transform/LayerNorm")
    words = tf.matmul(words, table, transpose_b=True) + variables["cls/predictions/output_bias"]
    sentence = tf.matmul(pooled, variables["cls/seq_relationship/output_weights"], transpose_b=True)
    sentence += variables["cls/seq_relationship/output_bias"]
    return [state.numpy() for state in states], words.numpy(), sentence.numpy()


@pytest.mark.parametrize("model_class", [ZooBertForPreTraining, BertForPreTraining], ids=["zoo", "transformers"])
@pytest.mark.parametrize(("hidden_act", "activation"), [("gelu", exact_gelu), ("gelu_new", approximate_gelu)])
def test_the_converted_model_computes_what_the_releases_code_does(hidden_act, activation, model_class, tf, release):
    write_texts(release, hidden_act=hidden_act)
    model, info = model_class.from_pretrained(converted(release), output_loading_info=True)
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    mask = (torch.arange(11) < torch.tensor([11, 4, 7]).unsqueeze(1)).long()
    batch = {
        "input_ids": torch.randint(CONFIG["vocab_size"], mask.shape),
        "attention_mask": mask,
        "token_type_ids": torch.randint(CONFIG["type_vocab_size"], mask.shape),
    }
    states, words, sentence = released_model(tf, released_variables(), batch, activation)
    with torch.no_grad():
        ours = model.eval()(**batch, output_hidden_states=True)
    real = mask.bool()
    close = partial(torch.testing.assert_close, atol=1e-5, rtol=1e-5)
    for mine, theirs in zip([*ours.hidden_states, ours.prediction_logits], [*states, words], strict=True):
        close(mine[real], torch.from_numpy(theirs)[real])
    close(ours.seq_relationship_logits, torch.from_numpy(sentence))


def test_the_configuration_is_the_releases(release):
    write_texts(release, **UNREAD)
    saved = json.loads((converted(release) / "config.json").read_text())
    assert saved.items() >= CONFIG.items() and not saved.keys() & UNREAD.keys()
    assert (saved["model_type"], saved["layer_norm_eps"], saved["pad_token_id"]) == ("bert", 1e-12, 0)


@pytest.mark.slow
def test_a_pre_training_run_of_ones_own_converts_without_its_optimizer(tf, release):
    variables = released_variables()
    plain = ZooBertForPreTraining.from_pretrained(converted(release)).state_dict()
    slots = {f"{name}/{slot}": value for name, value in variables.items() for slot in ("adam_m", "adam_v")}
    write_checkpoint(tf, variables | slots | {"global_step": np.array(7, np.int64)}, release / "bert_model.ckpt")
    shutil.rmtree(release.parent / "converted")
    again = ZooBertForPreTraining.from_pretrained(converted(release)).state_dict()
    assert plain.keys() == again.keys() and all(torch.equal(plain[name], again[name]) for name in plain)


# The tokenizer


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_the_tokenizer_numbers_pieces_by_their_line(line_end, release):
    (release / "vocab.txt").write_bytes(line_end.join(VOCABULARY).encode())
    tokenizer = AutoTokenizer.from_pretrained(converted(release))
    assert type(tokenizer) is BertTokenizer and len(tokenizer) == CONFIG["vocab_size"]
    assert tokenizer.convert_ids_to_tokens(range(len(tokenizer))) == VOCABULARY
    assert tokenizer("a É z").input_ids == [2, 5, 9, 30, 3]
    assert tokenizer.model_max_length == CONFIG["max_position_embeddings"]


def test_padding_has_the_number_that_the_vocabulary_gives_it(release):
    (release / "vocab.txt").write_text("\n".join([*VOCABULARY[1:], "[PAD]"]), encoding="utf-8")
    folder = converted(release)
    numbers = [each.from_pretrained(folder).pad_token_id for each in (AutoConfig, AutoTokenizer)]
    assert numbers == [len(VOCABULARY) - 1] * 2


@pytest.mark.parametrize(
    ("capital", "told", "lower_cased"),
    [(False, None, True), (True, None, False), (False, False, False), (True, True, True)],
)
def test_casing_is_the_vocabularys_unless_told(capital, told, lower_cased, release):
    tokens(*VOCABULARY[:-1], "B" if capital else "z")(release)
    tokenizer = AutoTokenizer.from_pretrained(converted(release, do_lower_case=told))
    assert tokenizer.tokenize("b B") == ["b", "b" if lower_cased else "B" if capital else "[UNK]"]


@pytest.mark.parametrize(("name", "uncased"), [("uncased", True), ("cased", False), ("chinese", True)])
def test_the_casing_of_released_vocabularies_is_recognised(name, uncased, data):
    assert looks_uncased(read_vocabulary(data / "vocab" / f"bert-base-{name}-vocab.txt")) == uncased


# Bad input


FILES = {
    "no index": (remove(INDEX), OSError, "bert_model.ckpt.*up to .index"),
    "no data": (remove(DATA), OSError, "No such file.*download them again"),
    "no config": (remove("bert_config.json"), OSError, "bert_config.json: no such file"),
    "no vocabulary": (remove("vocab.txt"), OSError, "vocab.txt: no such file"),
    "index cut": (cut(INDEX), OSError, "cannot read the checkpoint .*bert_model.ckpt"),
    "data cut": (cut(DATA), OSError, "cannot read the checkpoint .*bert_model.ckpt"),
    "config cut": (cut("bert_config.json"), ValueError, "bert_config.json is not JSON"),
    "config too deep": (write("bert_config.json", "[" * 100_000), ValueError, "bert_config.json is not JSON"),
    "config says twice": (write("bert_config.json", '{"a": 1, "a": 2}'), ValueError, "is not JSON.*name 'a' 2 times"),
    "config of a huge number": (write("bert_config.json", "9" * 9999), ValueError, "bert_config.json is not JSON"),
    "config a list": (write("bert_config.json", "[1]"), ValueError, "one JSON object, not list"),
    "not UTF-8": (write("vocab.txt", b"\xff\n"), ValueError, "vocab.txt is not UTF-8"),
    "key missing": (
        write("bert_config.json", "{}"),
        ValueError,
        "lacks attention_probs_dropout_prob, .* and 7 more: is it",
    ),
    "key unknown": (
        configure(use_turns=True),
        ValueError,
        "json has the unknown use_turns: is it the bert_config.json of the",
    ),
    "size no number": (configure(hidden_size="15"), ValueError, "hidden_size .*integer, not '15'"),
    "size zero": (configure(num_attention_heads=0), ValueError, "num_attention_heads .*positive.*not 0"),
    "heads do not divide": (configure(num_attention_heads=4), ValueError, "not a multiple"),
    "activation": (configure(hidden_act="gleu"), ValueError, "hidden_act 'gleu'"),
    "rate no number": (configure(initializer_range="x"), ValueError, "initializer_range"),
    "vocabulary short": (tokens(*VOCABULARY[:-1]), ValueError, "has 30 entries, but .*json says vocab_size 31"),
    "value of any length": (configure(hidden_size="x" * LONG), ValueError, "hidden_size must be a positive integer"),
    "rate of any length": (configure(initializer_range="x" * LONG), ValueError, "initializer_range"),
    "key of any length": (configure(**{"x" * LONG: 1}), ValueError, "has the unknown 'xxx"),
    "piece of any length twice": (
        tokens(*VOCABULARY, *["x" * LONG] * 2),
        ValueError,
        "vocab.txt has 'xxx.*' 2 times, not once",
    ),
    "piece twice": (tokens(*VOCABULARY[:-1], "a"), ValueError, "has 'a' 2 times, not once: is it the vocab.txt"),
    "no [MASK]": (tokens(*VOCABULARY[:4], "<MASK>", *VOCABULARY[5:]), ValueError, r"vocab.txt has '\[MASK\]' 0 times"),
    "sizes disagree": (
        configure(intermediate_size=24),
        ValueError,
        r"layer_0/intermediate/dense/kernel is float32 \(15, 23\), but .* \(15, 24\)",
    ),
    "a layer too few": (configure(num_hidden_layers=3), ValueError, "lacks bert/encoder/layer_2/.* and 12 more"),
    "a layer too many": (configure(num_hidden_layers=1), ValueError, "unknown bert/encoder/layer_1/.* and 12 more"),
}


@pytest.mark.parametrize(("damage", "error", "message"), FILES.values(), ids=FILES)
def test_a_file_that_is_missing_damaged_or_of_another_model_is_one_clear_error(damage, error, message, release):
    damage(release)
    assert_refused(release, error, message)


NEW = np.zeros((15, 2), np.float32)
TENSORS = {
    "missing": ({"bert/pooler/dense/bias": None}, "lacks bert/pooler/dense/bias"),
    "extra": ({"bert/turns": NEW}, "has the unknown bert/turns"),
    "half precision": (
        {"cls/predictions/output_bias": np.zeros(31, np.float16)},
        r"cls/predictions/output_bias is float16 \(31,\), but .* float32 \(31,\)",
    ),
    "transposed": (
        {"cls/seq_relationship/output_weights": NEW},
        r"cls/seq_relationship/output_weights is float32 \(15, 2\), but .* \(2, 15\)",
    ),
    "fine-tuned": (
        {name: None for name in released_variables() if name.startswith("cls/")} | {"output_weights": NEW},
        "lacks cls/.* has the unknown output_weights.*fine-tuning",
    ),
}


@pytest.mark.parametrize(("changes", "message"), TENSORS.values(), ids=TENSORS)
def test_a_checkpoint_with_other_tensors_is_one_error_that_names_them(changes, message, tf, release):
    variables = {name: value for name, value in (released_variables() | changes).items() if value is not None}
    write_checkpoint(tf, variables, release / "bert_model.ckpt")
    assert_refused(release, ValueError, f"bert_model.ckpt does not fit .*{message}")


def test_a_training_that_diverged_is_one_error(tf, release):
    diverged = {"bert/pooler/dense/bias": np.full(15, np.inf, np.float32)}
    write_checkpoint(tf, released_variables() | diverged, release / "bert_model.ckpt")
    assert_refused(release, ValueError, "not all numbers of bert/pooler/dense/bias are finite. Its training diverged")


def test_a_folder_whose_checkpoint_file_could_lead_anywhere_is_refused(release):
    elsewhere = release.rename(release.parent / "elsewhere")
    release.mkdir()
    (release / "checkpoint").write_text(f'model_checkpoint_path: "{elsewhere / "bert_model.ckpt"}"')
    with pytest.raises(ValueError, match="release is a folder: name the path that its checkpoint's files share"):
        read_checkpoint(str(release))


@pytest.mark.parametrize("name", [DATA, INDEX])
def test_a_flipped_bit_or_a_lost_end_never_gives_other_weights(name, release):
    prefix, path = str(release / "bert_model.ckpt"), release / name
    whole, content, rng = read_checkpoint(prefix), path.read_bytes(), np.random.default_rng(0)
    refused = 0
    for place in rng.integers(len(content), size=60):
        flipped = bytearray(content)
        flipped[place] ^= 1 << rng.integers(8)
        for damaged in (flipped, content[:place]):
            path.write_bytes(damaged)
            try:
                tensors = read_checkpoint(prefix)
            except OSError:
                refused += 1
            else:  # the index ends in padding that no checksum covers
                assert name == INDEX and len(damaged) == len(content)
                assert tensors.keys() == whole.keys()
                assert all(np.array_equal(tensors[tensor], whole[tensor]) for tensor in whole)
    assert refused == 120 if name == DATA else refused > 100


def test_a_folder_that_cannot_be_made_is_one_error(release):
    with pytest.raises(OSError, match="cannot write .*vocab.txt/out: .* Name a place with room"):
        convert(**flags(release, release / "vocab.txt" / "out"))


@pytest.mark.parametrize("name", [INDEX, DATA, "bert_model.ckpt.meta"])
def test_one_of_the_checkpoints_files_names_them_all(name, release):
    convert(**flags(release, release.parent / "converted") | {"checkpoint": str(release / name)})
    assert (release.parent / "converted" / "model.safetensors").is_file()


def test_without_tensorflow_the_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    write_texts(tmp_path)
    with pytest.raises(ImportError, match=r"needs TensorFlow .*pip install .*\[convert\]"):
        convert(**flags(tmp_path, tmp_path / "converted"))


# The command


def command(release: Path) -> list[str]:
    return [word for flag, value in flags(release, release.parent / "out").items() for word in (f"--{flag}", value)]


def test_the_command_converts_and_says_what_it_wrote(release, capsys):
    main([*command(release), "--do_lower_case", "false"])
    model = ZooBertForPreTraining.from_pretrained(release.parent / "out")
    said = capsys.readouterr().out
    assert f"2 layers, {model.num_parameters():,} parameters, cased text" in said
    assert AutoTokenizer.from_pretrained(release.parent / "out").do_lower_case is False
