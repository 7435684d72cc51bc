"""The releases of ELMo, written in miniature, convert to the model that their code computes."""

import json
import re
import sys
import tracemalloc
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

from elmo_gpt_bert.convert.elmo import convert, main
from modeling import ElmoForPreTraining, ElmoModel, ElmoTokenizer
from modeling.elmo.released_elmo import WARM_UP
from tests.support import releases
from tests.support.releases import (
    cut,
    remove,
    write,
    write_checkpoint,
)


h5py = pytest.importorskip("h5py", reason='h5py is not installed: pip install -e ".[convert]"')

OPTIONS = {
    "lstm": {
        "dim": 7,
        "projection_dim": 5,
        "n_layers": 2,
        "cell_clip": 0.6,  # low enough to be reached
        "proj_clip": 0.4,
        "use_skip_connections": True,
    },
    "char_cnn": {
        "embedding": {"dim": 3},
        "n_characters": 262,
        "max_characters_per_token": 11,
        "filters": [[1, 3], [2, 4], [4, 6]],
        "n_highway": 2,
        "activation": "relu",
    },
}
# What the options of a training add.
TRAINING = {
    "bidirectional": True,
    "dropout": 0.2,
    "n_tokens_vocab": 17,
    "n_negative_samples_batch": 6,
    "all_clip_norm_val": 10.0,
    "batch_size": 128,
    "n_epochs": 10,
    "n_train_tokens": 768648884,
    "unroll_steps": 20,
}
WORDS = ["</S>", "<UNK>", "the", "<S>", ",", *"abcdefghijkl"]  # the special words may be anywhere
SENTENCES = [["The", "naïve", "antidisestablishmentarian", "."], ["No", "."]]


def options(**changes: object) -> dict:
    """OPTIONS with other values for some keys of its sections."""
    return {
        name: {key: changes.pop(key, value) for key, value in section.items()} for name, section in OPTIONS.items()
    } | changes


def released_tensors(given: dict) -> dict[str, np.ndarray]:
    """Random values under the names and in the shapes of a release with these options."""
    lstm, cnn = given["lstm"], given["char_cnn"]
    cells, size, letter = lstm["dim"], lstm["projection_dim"], cnn["embedding"]["dim"]
    features = sum(count for _, count in cnn["filters"])
    shapes = {"char_embed": (261, letter)}
    for number, (width, count) in enumerate(cnn["filters"]):
        shapes |= {f"CNN/W_cnn_{number}": (1, width, letter, count), f"CNN/b_cnn_{number}": (count,)}
    for number in range(cnn["n_highway"]):
        for part in ("transform", "carry"):
            shapes |= {f"CNN_high_{number}/W_{part}": (features, features), f"CNN_high_{number}/b_{part}": (features,)}
    if features != size:
        shapes |= {"CNN_proj/W_proj": (features, size), "CNN_proj/b_proj": (size,)}
    for direction in range(2):
        for layer in range(lstm["n_layers"]):
            cell = f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"
            shapes |= {f"{cell}/W_0": (2 * size, 4 * cells), f"{cell}/B": (4 * cells,)}
            if cells != size:
                shapes[f"{cell}/W_P_0"] = (cells, size)
    rng = np.random.default_rng(0)
    return {name: rng.normal(0, 0.7, shape).astype(np.float32) for name, shape in shapes.items()}


def softmax(rows: int = len(WORDS)) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    scores = {"softmax/W": rng.normal(size=(rows, 5)), "softmax/b": rng.normal(size=rows)}
    return {name: value.astype(np.float32) for name, value in scores.items()}


def write_hdf5(path: Path, tensors: dict[str, np.ndarray]) -> None:
    with h5py.File(path, "w") as file:
        for name, value in tensors.items():
            file[name] = value


@pytest.fixture
def release(tmp_path) -> Path:
    return write_release(tmp_path / "release")


def write_release(folder: Path) -> Path:
    """A released folder: options.json and weights.hdf5, beside vocab.txt and the softmax."""
    folder.mkdir()
    (folder / "options.json").write_text(json.dumps(OPTIONS))
    (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in WORDS))
    write_hdf5(folder / "weights.hdf5", released_tensors(OPTIONS))
    write_hdf5(folder / "softmax.hdf5", softmax())
    return folder


def rewrite(release: Path, **changes: object) -> dict[str, np.ndarray]:
    """A release of other sizes; its tensors."""
    given = options(**changes)
    tensors = released_tensors(given)
    (release / "options.json").write_text(json.dumps(given))
    write_hdf5(release / "weights.hdf5", tensors)
    return tensors


def converted(release: Path, weights: str = "weights.hdf5", **flags: str) -> Path:
    output = release.parent / "converted"
    convert(str(release / "options.json"), str(release / weights), str(output), **flags)
    return output


assert_refused = partial(releases.assert_refused, converted)


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    """What the folder holds, without the state to start from, which is computed."""
    state = ElmoModel.from_pretrained(folder).state_dict()
    return {name: value for name, value in state.items() if not name.startswith("initial_")}


def assert_same(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> None:
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


# What the release's code computes, one word and one step at a time


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def character_ids(word: str, width: int) -> list[int]:
    """As bilm-tf's training has them: 256 and 257 bound sentences, 258 and 259 words, 260 fills up."""
    inner = {"<S>": [256], "</S>": [257]}.get(word) or list(word.encode()[: width - 2])
    return [258, *inner, 259, *[260] * (width - 2 - len(inner))]


def word_vector(tensors, given, word):
    cnn = given["char_cnn"]
    activation = {"relu": lambda x: np.maximum(x, 0), "tanh": np.tanh}[cnn["activation"]]
    letters = tensors["char_embed"][character_ids(word, cnn["max_characters_per_token"])]
    features = []
    for number, (width, _) in enumerate(cnn["filters"]):
        kernel, bias = tensors[f"CNN/W_cnn_{number}"][0], tensors[f"CNN/b_cnn_{number}"]
        windows = [letters[start : start + width] for start in range(len(letters) - width + 1)]
        features.append(activation(np.max([np.tensordot(window, kernel, 2) for window in windows], axis=0) + bias))
    x = np.concatenate(features)
    for number in range(cnn["n_highway"]):
        part = {
            key: tensors[f"CNN_high_{number}/{key}"] for key in ("W_carry", "b_carry", "W_transform", "b_transform")
        }
        gate = sigmoid(x @ part["W_carry"] + part["b_carry"])
        x = gate * np.maximum(x @ part["W_transform"] + part["b_transform"], 0) + (1 - gate) * x
    return x @ tensors["CNN_proj/W_proj"] + tensors["CNN_proj/b_proj"] if "CNN_proj/W_proj" in tensors else x


def lstm(tensors, given, cell, inputs):
    """TensorFlow's LSTMCell: gates i, j, f, o of [x; h], 1 added to the forget gate, no clip without projection."""
    lstm = given["lstm"]
    kernel, bias, projection = (tensors.get(f"{cell}/{name}") for name in ("W_0", "B", "W_P_0"))
    c, h, outputs = np.zeros(lstm["dim"]), np.zeros(lstm["projection_dim"]), []
    for x in inputs:
        i, j, f, o = np.split(np.concatenate([x, h]) @ kernel + bias, 4)
        c = np.clip(sigmoid(f + 1) * c + sigmoid(i) * np.tanh(j), -lstm["cell_clip"], lstm["cell_clip"])
        h = sigmoid(o) * np.tanh(c)
        if projection is not None:
            h = np.clip(h @ projection, -lstm["proj_clip"], lstm["proj_clip"])
        outputs.append(h)
    return outputs


def released_layers(tensors, given, sentence) -> list[np.ndarray]:
    """All layers of one sentence, (words, both directions), from zeros."""
    vectors = [word_vector(tensors, given, word) for word in ("<S>", *sentence, "</S>")]
    sides = []
    for direction in range(2):
        states = vectors[:: 1 - 2 * direction]
        layers = [states]
        for layer in range(given["lstm"]["n_layers"]):
            outputs = lstm(tensors, given, f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell", states)
            adds = layer > 0 and given["lstm"]["use_skip_connections"]
            states = [output + state for output, state in zip(outputs, states, strict=True)] if adds else outputs
            layers.append(states)
        sides.append([np.array(states[:: 1 - 2 * direction])[1:-1] for states in layers])
    return [np.concatenate(pair, axis=-1) for pair in zip(*sides, strict=True)]


def our_layers(folder: Path, sentence: list[str]) -> list[np.ndarray]:
    model, tokenizer = ElmoModel.from_pretrained(folder, state="zero").eval(), AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        batch = tokenizer([sentence], is_split_into_words=True, return_tensors="pt")
        return [layer[0].numpy() for layer in model(**batch, output_hidden_states=True).hidden_states]


VARIANTS = {
    "as most releases": {},
    "without residual": {"use_skip_connections": False},
    "one layer": {"n_layers": 1},
    "three layers": {"n_layers": 3},
    "tanh": {"activation": "tanh"},
    "no highway": {"n_highway": 0},
    "words not projected": {"projection_dim": 7, "filters": [[1, 3], [3, 4]], "dim": 9},
    "states not projected": {"dim": 5},
    "no clips": {"cell_clip": 1e9, "proj_clip": 1e9},
    "options of a training": {"n_characters": 261, **TRAINING},
}


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_the_converted_model_computes_what_the_releases_code_does(changes, release):
    tensors = rewrite(release, **changes)
    folder = converted(release)
    for sentence in SENTENCES:
        for ours, theirs in zip(
            our_layers(folder, sentence), released_layers(tensors, options(**changes), sentence), strict=True
        ):
            np.testing.assert_allclose(ours, theirs, atol=1e-5, rtol=1e-5)


def test_the_references_clips_are_reached(release):
    _, first, second = released_layers(released_tensors(OPTIONS), OPTIONS, SENTENCES[0])
    assert np.isclose(np.abs(first), OPTIONS["lstm"]["proj_clip"]).any() and np.abs(second).max() > 0.4


def test_the_configuration_is_that_of_the_options(release):
    rewrite(release, **TRAINING, n_characters=261)
    saved = json.loads((converted(release, state="zero") / "config.json").read_text())
    expected = {
        "model_type": "elmo",
        "architectures": ["ElmoModel"],
        "vocab_size": 262,
        "hidden_size": 10,
        "cell_size": 7,
        "filters": OPTIONS["char_cnn"]["filters"],
        "cell_clip": 0.6,
        "proj_clip": 0.4,
        "use_skip_connections": True,
        "hidden_dropout_prob": 0.2,
        "lm_vocab_size": 17,
        "num_sampled": 6,
        "num_mixes": 1,
        "state": "zero",
    }
    assert saved.items() >= expected.items()


def test_no_clips_and_no_samples_are_told_by_the_options_too(release):
    rewrite(release, cell_clip=0, proj_clip=None, **(TRAINING | {"sample_softmax": False}))
    saved = json.loads((converted(release) / "config.json").read_text())
    assert saved["cell_clip"] is None and saved["proj_clip"] is None and saved["num_sampled"] == 0


def test_the_tokenizer_has_the_models_width(release):
    tokenizer = AutoTokenizer.from_pretrained(converted(release))
    assert type(tokenizer) is ElmoTokenizer and tokenizer.max_characters_per_token == 11


@pytest.mark.parametrize("zeros", [True, False], ids=["shifted for prediction", "trained with one too many"])
def test_a_table_of_262_characters_has_one_that_does_not_count(zeros, release):
    plain = weights_of(converted(release))
    tensors = released_tensors(OPTIONS)
    row = np.zeros((1, 3), np.float32) if zeros else np.ones((1, 3), np.float32)
    table = [row, tensors["char_embed"]] if zeros else [tensors["char_embed"], row]
    write_hdf5(release / "weights.hdf5", tensors | {"char_embed": np.concatenate(table)})
    (release.parent / "converted").rename(release.parent / "plain")
    assert_same(weights_of(converted(release)), plain)


# The state to start from


def test_the_stored_state_is_that_of_a_model_that_has_read_the_warm_up(release):
    folder = converted(release)
    model, tokenizer = ElmoModel.from_pretrained(folder, state="carry").eval(), AutoTokenizer.from_pretrained(folder)
    assert ElmoModel.from_pretrained(folder).config.state == "warm"
    for sentence in WARM_UP:
        model(**tokenizer([sentence.split()], is_split_into_words=True, return_tensors="pt"))
    assert model.initial_cell.abs().max() > 0
    torch.testing.assert_close(model.initial_hidden, model.carried[0][:, :, 0])
    torch.testing.assert_close(model.initial_cell, model.carried[1][:, :, 0])


# TensorFlow's checkpoints


@pytest.fixture(scope="module")
def tf():
    return pytest.importorskip("tensorflow", reason='TensorFlow is not installed: pip install -e ".[convert]"')


def variable(name: str) -> str:
    """The training's name of a tensor of the HDF5 file."""
    name = re.sub("RNN/MultiRNNCell/Cell(.)/LSTMCell", r"rnn/multi_rnn_cell/cell_\1/lstm_cell", name)
    name = name.replace("cell/W_0", "cell/kernel").replace("cell/W_P_0", "cell/projection/kernel")
    return "lm/" + name.replace("cell/B", "cell/bias")


@pytest.mark.parametrize("layers", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_training_checkpoint_converts_like_the_file_dumped_from_it(layers, tf, release):
    tensors = rewrite(release, n_layers=layers, **TRAINING, n_characters=261)
    dumped = weights_of(converted(release).rename(release.parent / "dumped"))
    variables = {variable(name): value for name, value in (tensors | softmax()).items()}
    if layers == 1:  # TensorFlow has no MultiRNNCell then
        variables = {name.replace("multi_rnn_cell/cell_0/", ""): value for name, value in variables.items()}
    slots = {f"{name}/Adagrad": value for name, value in variables.items()}
    counters = {"global_step": np.float32(7), "train_perplexity": np.float32(40)}
    write_checkpoint(tf, variables | slots | counters, release / "model.ckpt-7")
    folder = converted(release, "model.ckpt-7", vocab=str(release / "vocab.txt"))
    assert json.loads((folder / "config.json").read_text())["architectures"] == ["ElmoForPreTraining"]
    assert_same(weights_of(folder), dumped)


def test_a_checkpoint_of_the_released_training_has_its_loss(tf, data, tmp_path):
    """The first loss of the original TensorFlow graph, before any step."""
    arrays = np.load(data / "elmo_training" / "full_softmax.npz")
    lstm = {"dim": 16, "projection_dim": 8, "cell_clip": 0.4, "proj_clip": 0.1}
    cnn = {"n_characters": 261, "max_characters_per_token": 10, "embedding": {"dim": 4}}
    cnn["filters"] = [[1, 8], [2, 8], [3, 16], [4, 32], [5, 64]]
    given = options(**lstm, **cnn, dropout=0.0, sample_softmax=False)
    (tmp_path / "options.json").write_text(json.dumps(given))
    (tmp_path / "vocab.txt").write_text("\n".join(["<S>", "</S>", "<UNK>", *(f"word{n}" for n in range(29))]))
    variables = {name[5:-2]: arrays[name] for name in arrays.files if name.startswith("init/")}
    write_checkpoint(tf, variables, tmp_path / "model.ckpt")
    convert(*map(str, (tmp_path / "options.json", tmp_path / "model.ckpt", tmp_path / "out", tmp_path / "vocab.txt")))
    model = ElmoForPreTraining.from_pretrained(tmp_path / "out", state="carry").eval()
    ids = {name: torch.from_numpy(arrays[f"batch0/{name}"]).long() for name in ("tokens_characters", "next_token_id")}
    back = {name: torch.from_numpy(arrays[f"batch0/{name}_reverse"]).long() for name in ids}
    with torch.no_grad():
        output = model(
            input_ids=ids["tokens_characters"] + 1,
            labels=ids["next_token_id"],
            reverse_input_ids=back["tokens_characters"] + 1,
            reverse_labels=back["next_token_id"],
        )
    assert output.loss.item() == pytest.approx(float(arrays["loss0"]), abs=1e-6)


def test_one_of_the_checkpoints_files_names_them_all(tf, release):
    write_checkpoint(tf, {variable(n): v for n, v in released_tensors(OPTIONS).items()}, release / "model.ckpt")
    assert (converted(release, "model.ckpt.data-00000-of-00001") / "model.safetensors").is_file()


# The softmax and its words


def flags(release: Path) -> dict[str, str]:
    return {"vocab": str(release / "vocab.txt"), "softmax": str(release / "softmax.hdf5")}


def test_with_the_softmax_it_is_a_language_model_with_its_words(release):
    folder = converted(release, **flags(release))
    model, info = ElmoForPreTraining.from_pretrained(folder, output_loading_info=True)
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.word_targets(["<S>", "</S>", "<UNK>", "the", "never"]) == [0, 1, 2, 3, 2]
    numbers = tokenizer.word_targets(WORDS)
    assert model.config.lm_vocab_size == len(WORDS) and sorted(numbers) == list(range(len(WORDS)))
    np.testing.assert_array_equal(model.lm_head.weight.detach()[numbers], softmax()["softmax/W"])
    np.testing.assert_array_equal(model.lm_head.bias.detach()[numbers], softmax()["softmax/b"])


def test_the_softmax_may_be_in_the_same_file(release):
    apart = ElmoForPreTraining.from_pretrained(converted(release, **flags(release))).state_dict()
    (release.parent / "converted").rename(release.parent / "apart")
    write_hdf5(release / "weights.hdf5", released_tensors(OPTIONS) | softmax())
    folder = converted(release, vocab=str(release / "vocab.txt"))
    assert_same(ElmoForPreTraining.from_pretrained(folder).state_dict(), apart)


# AllenNLP's state dicts


def allennlp_state(tensors: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
    """What AllenNLP's `_ElmoBiLm` holds after it has read these tensors, by the rules of its `load_weights`."""
    cells, size = OPTIONS["lstm"]["dim"], OPTIONS["lstm"]["projection_dim"]
    words, state = "_token_embedder", {}
    state[f"{words}._char_embedding_weights"] = np.zeros((262, 3), np.float32)
    state[f"{words}._char_embedding_weights"][1:] = tensors["char_embed"]
    for number in range(len(OPTIONS["char_cnn"]["filters"])):
        kernel = tensors[f"CNN/W_cnn_{number}"].squeeze(0)
        state[f"{words}.char_conv_{number}.weight"] = np.einsum("wen->new", kernel)
        state[f"{words}.char_conv_{number}.bias"] = tensors[f"CNN/b_cnn_{number}"]
    for number in range(2):
        part = {
            name: tensors[f"CNN_high_{number}/{name}"].T
            for name in ("W_transform", "W_carry", "b_transform", "b_carry")
        }
        state[f"{words}._highways._layers.{number}.weight"] = np.vstack([part["W_transform"], -part["W_carry"]])
        state[f"{words}._highways._layers.{number}.bias"] = np.hstack([part["b_transform"], -part["b_carry"]])
    state[f"{words}._projection.weight"] = tensors["CNN_proj/W_proj"].T
    state[f"{words}._projection.bias"] = tensors["CNN_proj/b_proj"]
    gates = [*range(cells), *range(2 * cells, 3 * cells), *range(cells, 2 * cells), *range(3 * cells, 4 * cells)]
    for direction, name in enumerate(("forward", "backward")):
        for layer in range(2):
            cell, ours = f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell", f"_elmo_lstm.{name}_layer_{layer}"
            kernel, bias = tensors[f"{cell}/W_0"].T[gates], tensors[f"{cell}/B"][gates]
            bias[cells : 2 * cells] += 1
            state[f"{ours}.input_linearity.weight"] = kernel[:, :size]
            state[f"{ours}.state_linearity.weight"] = kernel[:, size:]
            state[f"{ours}.state_linearity.bias"] = bias
            state[f"{ours}.state_projection.weight"] = tensors[f"{cell}/W_P_0"].T
    return {name: torch.tensor(value) for name, value in state.items()}


MIXES = {
    **{f"scalar_mix_0.scalar_parameters.{layer}": torch.tensor([0.1 * layer]) for layer in range(3)},
    **{f"scalar_mix_1.scalar_parameters.{layer}": torch.tensor([1.0 - layer]) for layer in range(3)},
    "scalar_mix_0.gamma": torch.tensor([1.5]),
    "scalar_mix_1.gamma": torch.tensor([-2.0]),
}


def prefixed(state: dict[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    return {f"{prefix}{name}": value for name, value in state.items()}


@pytest.mark.parametrize("zipped", [True, False], ids=["today", "before torch 1.6"])
def test_allennlps_bilm_is_the_same_model(zipped, release):
    plain = weights_of(converted(release).rename(release.parent / "plain"))
    state = allennlp_state(released_tensors(OPTIONS)) | {"_word_embedding.weight": torch.ones(9, 5)}  # its cache
    torch.save(state, release / "best.th", _use_new_zipfile_serialization=zipped)
    assert_same(weights_of(converted(release, "best.th")), plain)


@pytest.mark.parametrize("prefix", ["", "text_field_embedder.token_embedder_elmo._elmo."])
def test_allennlps_elmo_keeps_its_mixes_wherever_it_is(prefix, release):
    plain = weights_of(converted(release).rename(release.parent / "plain"))
    state = prefixed(prefixed(allennlp_state(released_tensors(OPTIONS)), "_elmo_lstm.") | MIXES, prefix)
    others = {"tag_projection_layer.weight": torch.ones(3, 4)} if prefix else {}
    torch.save(state | others, release / "best.th")
    ours = weights_of(converted(release, "best.th"))
    mixes = {name: ours.pop(name) for name in list(ours) if name.startswith("mixes.")}
    assert_same(ours, {name: value for name, value in plain.items() if name in ours})
    expected = {
        "mixes.0.weights": torch.tensor([0.0, 0.1, 0.2]),
        "mixes.0.gamma": torch.tensor(1.5),
        "mixes.1.weights": torch.tensor([1.0, 0.0, -1.0]),
        "mixes.1.gamma": torch.tensor(-2.0),
    }
    assert_same(mixes, expected)


# Bad input


def configure(**changes: object):
    return write("options.json", json.dumps(options(**changes)))


def without(section: str):
    return write("options.json", json.dumps({name: value for name, value in OPTIONS.items() if name != section}))


def words(*lines: str):
    return write("vocab.txt", "\n".join(lines))


def tensors(softmax_file: bool = False, **changes: np.ndarray | None):
    """Others for some tensors of a file, by the end of their name; None: left out."""

    def change(release):
        path = release / ("softmax.hdf5" if softmax_file else "weights.hdf5")
        values = softmax() if softmax_file else released_tensors(OPTIONS)
        values |= {name: value for name, value in changes.items() if value is not None}
        write_hdf5(path, {name: value for name, value in values.items() if changes.get(name, 0) is not None})

    return change


def broken_bias() -> np.ndarray:
    bias = released_tensors(OPTIONS)["CNN/b_cnn_1"]
    bias[2] = np.nan
    return bias


CELL = "RNN_1/RNN/MultiRNNCell/Cell1/LSTMCell"
FILES = {
    "no options": (remove("options.json"), OSError, "options.json: no such file"),
    "no weights": (remove("weights.hdf5"), OSError, "weights.hdf5: no such file, nor a TensorFlow checkpoint"),
    "no vocabulary": (remove("vocab.txt"), OSError, "No such file.*vocab.txt"),
    "no softmax": (remove("softmax.hdf5"), OSError, "softmax.hdf5: no such file"),
    "weights cut": (cut("weights.hdf5"), OSError, "weights.hdf5 is not an HDF5 file, or is damaged .*again"),
    "weights empty": (cut("weights.hdf5", 0), OSError, "weights.hdf5 is not an HDF5 file"),
    "options cut": (cut("options.json"), ValueError, "options.json is not JSON"),
    "options a list": (write("options.json", "[1]"), ValueError, "one JSON object, not list"),
    "options empty": (write("options.json", "{}"), ValueError, "lacks the object lstm"),
    "word inputs": (without("char_cnn"), ValueError, "has no char_cnn: its biLM reads whole words"),
    "one direction": (configure(bidirectional=False), ValueError, "needs both directions"),
    "other characters": (configure(n_characters=60), ValueError, "n_characters must be 261 or 262, not 60"),
    "unknown key": (configure(layer_norm=True), ValueError, "options.json has the unknown layer_norm"),
    "size no number": (configure(dim="7"), ValueError, "dim must be a positive integer, not '7'"),
    "more projected than cells": (configure(dim=4), ValueError, "dim 4 is smaller than projection_dim 5"),
    "activation": (configure(activation="gelu"), ValueError, "char_activation"),
    "clip no number": (configure(cell_clip="three"), ValueError, "cell_clip"),
    "filter too wide": (configure(filters=[[12, 3]]), ValueError, "no wider than max_characters_per_token=11"),
    "sizes disagree": (
        configure(dim=8),
        ValueError,
        r"weights.hdf5 does not fit .*options.json: RNN_0/.*/W_0 is float32 \(10, 28\), but .* \(10, 32\)",
    ),
    "a layer too few": (configure(n_layers=3), ValueError, "lacks RNN_0/RNN/MultiRNNCell/Cell2/.* and 2 more"),
    "a layer too many": (configure(n_layers=1), ValueError, "unknown RNN_0/RNN/MultiRNNCell/Cell1/.* and 2 more"),
    "a tensor missing": (tensors(**{f"{CELL}/B": None}), ValueError, f"lacks {CELL}/B"),
    "a tensor too many": (tensors(turns=np.ones(2)), ValueError, "has the unknown turns"),
    "half precision": (
        tensors(char_embed=np.ones((261, 3), np.float16)),
        ValueError,
        r"char_embed is float16 \(261, 3\), but .* float32 \(261, 3\)",
    ),
    "not finite": (tensors(**{"CNN/b_cnn_1": broken_bias()}), ValueError, "not all numbers of CNN/b_cnn_1 are finite"),
    "no <S>": (words("<s>", *(w for w in WORDS if w != "<S>")), ValueError, "vocab.txt has no line <S>"),
    "a word too few": (words(*WORDS[:-1]), ValueError, "vocab.txt has 16 words, but softmax/W scores 17"),
    "a word twice": (words(*WORDS, "the"), ValueError, "vocab.txt has 'the' more than once"),
    "no bias in the softmax": (tensors(True, **{"softmax/b": None}), ValueError, "lacks softmax/b"),
    "a softmax of another size": (
        tensors(True, **{"softmax/W": np.ones((17, 4), np.float32)}),
        ValueError,
        r"softmax/W is float32 \(17, 4\), but .* \(17, 5\)",
    ),
}


@pytest.mark.parametrize(("damage", "error", "message"), FILES.values(), ids=FILES)
def test_a_file_that_is_missing_damaged_or_of_another_model_is_one_clear_error(damage, error, message, release):
    damage(release)
    assert_refused(release, error, message, **flags(release))


def test_a_file_cut_anywhere_never_gives_a_model(release):
    content = (release / "weights.hdf5").read_bytes()
    for place in np.random.default_rng(0).integers(len(content), size=20):
        (release / "weights.hdf5").write_bytes(content[:place])
        assert_refused(release, OSError, "weights.hdf5 is not an HDF5 file, or is damaged")


def external_storage(file):
    file.create_dataset("char_embed", (261, 3), "f4", external=[(str(Path(file.filename).parent / "secret"), 0, 3132)])


def external_link(file):
    file["char_embed"] = h5py.ExternalLink("secret", "/x")


def external_group(file):
    file["CNN"] = h5py.ExternalLink("/nowhere", "/")


def virtual_data_set(file):
    layout = h5py.VirtualLayout((261, 3), "f4")
    layout[:] = h5py.VirtualSource("secret", "x", (261, 3))
    file.create_virtual_dataset("char_embed", layout)


def nothing_stored(file):
    file.create_dataset("char_embed", (10**9, 3), "f4")


def many_chunks(file):
    file.create_dataset("char_embed", (10**6, 3000), "f4", chunks=(1000, 1000), compression="gzip")


def well_compressed(file):
    file.create_dataset("char_embed", data=np.zeros((10**5, 3), np.float32), compression="gzip")


def text(file):
    file["char_embed"] = "a text"


def no_value(file):
    file["char_embed"] = h5py.Empty("f4")


HOSTILE = {
    external_storage: "the values of char_embed are in another file",
    external_link: "the values of char_embed are in another file",
    external_group: "the values of CNN are in another file",
    virtual_data_set: "the values of char_embed are in another file",
    nothing_stored: "claim to have 12,000,000,000 bytes, but the file has 1,400: ",
    many_chunks: "claim to have 12,000,000,000 bytes, but the file has 1,400: ",
    well_compressed: "unpack it with h5repack -f NONE",
    text: "char_embed must hold numbers, not object",
    no_value: "char_embed must hold numbers, not float32",
}


@pytest.mark.parametrize(("write", "message"), HOSTILE.items(), ids=[write.__name__ for write in HOSTILE])
def test_hdf5_that_would_read_other_files_or_fill_the_memory_is_refused(write, message, release):
    with h5py.File(release / "secret", "w") as file:
        file["x"] = np.ones((261, 3), np.float32)
    with h5py.File(release / "weights.hdf5", "w") as file:
        write(file)
    tracemalloc.start()
    try:
        assert_refused(release, ValueError, f"weights.hdf5: .*{message}")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 10 << 20


def test_a_softmax_and_its_words_come_together(release):
    assert_refused(
        release, ValueError, "names the words of a softmax, but there is none", vocab=str(release / "vocab.txt")
    )
    assert_refused(release, ValueError, "softmax/W scores 17 words: .*--vocab$", softmax=str(release / "softmax.hdf5"))


STATES = {
    "no tensors": ({"model": {"weight": torch.ones(2)}}, "must hold a state dict"),
    "no biLM": ({"weight": torch.ones(2)}, "holds 0 tensors _token_embedder._char_embedding_weights"),
    "two biLMs": (
        prefixed(allennlp_state(released_tensors(OPTIONS)), "a.") | allennlp_state(released_tensors(OPTIONS)),
        "holds 2 tensors",
    ),
    "a key missing": (
        {name: v for name, v in allennlp_state(released_tensors(OPTIONS)).items() if "_projection.bias" not in name},
        "lacks _token_embedder._projection.bias",
    ),
    "a key too many": (
        allennlp_state(released_tensors(OPTIONS)) | {"_elmo_lstm.norm": torch.ones(2)},
        "has the unknown _elmo_lstm.norm",
    ),
    "a mix too short": (
        prefixed(allennlp_state(released_tensors(OPTIONS)), "_elmo_lstm.")
        | {name: value for name, value in MIXES.items() if name != "scalar_mix_1.scalar_parameters.2"},
        r"scalar_mix_1.scalar_parameters is float32 \(2,\), but .* \(3,\)",
    ),
}


@pytest.mark.parametrize(("state", "message"), STATES.values(), ids=STATES)
def test_another_state_dict_is_one_clear_error(state, message, release):
    torch.save(state, release / "best.th")
    assert_refused(release, ValueError, message, weights="best.th")


def test_a_damaged_state_dict_and_one_that_could_run_code_are_refused(release):
    torch.save(allennlp_state(released_tensors(OPTIONS)), release / "best.th")
    cut("best.th")(release)
    assert_refused(release, OSError, "best.th is not a state dict that torch.save wrote", weights="best.th")
    torch.save({"weight": Path("harmless")}, release / "best.th")
    assert_refused(release, OSError, "best.th is not a state dict that torch.save wrote", weights="best.th")


@pytest.mark.parametrize(("package", "name"), [("h5py", "weights.hdf5"), ("tensorflow", "model.ckpt")])
def test_without_the_package_that_reads_it_the_error_says_what_to_install(package, name, release, monkeypatch):
    (release / "model.ckpt.index").write_text("")
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=f"(?i)needs {package} .*pip install .*"):
        converted(release, name)


# The command


def command(release: Path) -> list[str]:
    files = {"options": "options.json", "weights": "weights.hdf5", "output": "../out"}
    return [word for flag, name in files.items() for word in (f"--{flag}", str(release / name))]


def test_the_command_converts_and_says_what_it_wrote(release, capsys):
    main([*command(release), "--state", "zero"])
    model = ElmoModel.from_pretrained(release.parent / "out")
    assert model.config.state == "zero"
    assert f"2 layers, {model.num_parameters():,} parameters, no softmax" in capsys.readouterr().out
