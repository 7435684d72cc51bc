"""Releases of ELMoForManyLangs convert to the model that their code computes, or are refused in one line."""

import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from elmo_gpt_bert.convert import manylangs
from elmo_gpt_bert.convert.elmo import convert, main
from modeling import ElmoModel, ElmoTokenizer
from tests.support import releases
from tests.support.manylangs_reference import (
    CHARACTERS,
    MISTAKES,
    SENTENCES,
    SPECIALS,
    WORDS,
    Reference,
    random_tensors,
    sizes,
    write_pickle,
    write_release,
)
from tests.support.releases import remove


def converted(release: Path, **flags: object) -> Path:
    output = release.parent / "converted"
    convert(flags.pop("options", None), str(release), str(output), **flags)
    return output


def assert_refused(release: Path, message: str, **flags: object) -> None:
    releases.assert_refused(converted, release, (ValueError, OSError), message, **flags)


def layers_of(folder: Path, sentences: list[list[str]], **options: object) -> list[np.ndarray]:
    """The layers (L + 1, words, 2P) of each sentence, all in one call."""
    model, tokenizer = AutoModel.from_pretrained(folder, **options), AutoTokenizer.from_pretrained(folder)
    return [layers.numpy() for layers in model.embed(sentences, tokenizer=tokenizer, layers="all")]


def assert_close(ours: list[np.ndarray], theirs: list[np.ndarray]) -> None:
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5, rtol=1e-5)


@pytest.fixture
def release(tmp_path) -> Path:
    return write_release(tmp_path / "release")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A converted release."""
    return converted(write_release(tmp_path_factory.mktemp("manylangs") / "release"))


# The vectors of the released code


@pytest.fixture(scope="module")
def recorded(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("recorded") / "converted"


def recording(data: Path, output: Path) -> tuple[list[list[str]], list[list[int]], dict[str, np.ndarray]]:
    """The sentences, the calls that carry states, and the released code's vectors; converts the model once."""
    tiny = data / "manylangs_tiny"
    if not tiny.is_dir():
        pytest.skip(f"no {tiny}, the vectors that the released code computed")
    if not output.exists():
        convert(None, str(tiny / "model"), str(output))
    texts = json.loads((tiny / "sentences.json").read_text(encoding="utf-8"))
    return texts["sentences"], texts["carried_calls"], np.load(tiny / "expected.npz")


def test_sentences_one_by_one_have_the_released_vectors(data, recorded):
    sentences, _, expected = recording(data, recorded)
    model, tokenizer = ElmoModel.from_pretrained(recorded), ElmoTokenizer.from_pretrained(recorded)
    for number, sentence in enumerate(sentences):
        (layers,) = model.embed([sentence], tokenizer=tokenizer, layers="all")
        (mean,) = model.embed([sentence], tokenizer=tokenizer)
        np.testing.assert_allclose(layers, expected[f"alone_{number}"], atol=1e-5, rtol=0)
        np.testing.assert_allclose(mean, expected[f"alone_{number}_mean"], atol=1e-5, rtol=0)


def test_sentences_of_one_call_have_the_released_vectors(data, recorded):
    sentences, _, expected = recording(data, recorded)
    model, tokenizer = ElmoModel.from_pretrained(recorded), ElmoTokenizer.from_pretrained(recorded)
    means = model.embed(sentences, tokenizer=tokenizer)
    for number, (layers, mean) in enumerate(zip(layers_of(recorded, sentences), means, strict=True)):
        np.testing.assert_allclose(layers, expected[f"batch_{number}"], atol=1e-5, rtol=0)
        np.testing.assert_allclose(mean, expected[f"batch_{number}_mean"], atol=1e-5, rtol=0)


def test_carried_states_give_the_released_vectors_of_later_calls(data, recorded):
    sentences, calls, expected = recording(data, recorded)
    model, tokenizer = ElmoModel.from_pretrained(recorded, state="carry"), ElmoTokenizer.from_pretrained(recorded)
    for call, numbers in enumerate(calls):
        vectors = model.embed([sentences[number] for number in numbers], tokenizer=tokenizer, layers="all")
        for row, layers in enumerate(vectors):
            np.testing.assert_allclose(layers, expected[f"carried_{call}_{row}"], atol=1e-5, rtol=0)


def test_the_reference_has_the_released_vectors(data, recorded):
    sentences, _, expected = recording(data, recorded)
    reference = Reference(data / "manylangs_tiny" / "model")
    for number, sentence in enumerate(sentences):
        np.testing.assert_allclose(reference.layers(sentence), expected[f"alone_{number}"], atol=1e-5, rtol=0)


# The vectors of the reference


def test_a_converted_model_computes_what_the_released_code_does(release):
    reference = Reference(release)
    assert_close(layers_of(converted(release), SENTENCES), [reference.layers(words) for words in SENTENCES])


@pytest.fixture(scope="module")
def right(folder) -> list[np.ndarray]:
    reference = Reference(folder.parent / "release")
    return [reference.layers(words) for words in SENTENCES]


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_would_be_noticed(mistake, folder, right):
    reference = Reference(folder.parent / "release", mistake=mistake)
    wrong = [reference.layers(words) for words in SENTENCES]
    assert max(np.abs(one - other).max() for one, other in zip(right, wrong, strict=True)) > 0.1


VARIANTS = {
    "characters only": {"word_dim": 0},
    "one layer": {"n_layers": 1},
    "three layers": {"n_layers": 3},
    "tanh": {"activation": "tanh"},
    "no clips": {"cell_clip": 0, "proj_clip": None},
    "no highway": {"n_highway": 0},
    "words and characters as many as projected": {"projection_dim": 19},
    "fewer cells than projected": {"dim": 4},
    "long words": {"max_characters_per_token": 30},
}


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_models_of_other_sizes_convert_too(changes, tmp_path):
    release = write_release(tmp_path / "release", **changes)
    reference = Reference(release)
    assert_close(layers_of(converted(release), SENTENCES), [reference.layers(words) for words in SENTENCES])


def test_random_words_have_the_references_vectors(folder):
    drawn = random.Random(0)
    letters = [*CHARACTERS, "\u2028", "\x00", "\ud83d", "\U0010ffff", "x", " "]
    words = ["".join(drawn.choices(letters, k=drawn.randint(0, 12))) for _ in range(60)]
    sentences = [[*words[start : start + 6], drawn.choice(WORDS)] for start in range(0, 60, 6)]
    reference = Reference(folder.parent / "release")
    assert_close(layers_of(folder, sentences), [reference.layers(words) for words in sentences])


def test_carried_states_go_on_row_by_row(folder):
    reference = Reference(folder.parent / "release")
    model, tokenizer = ElmoModel.from_pretrained(folder, state="carry"), ElmoTokenizer.from_pretrained(folder)
    for batch in (SENTENCES[:3], SENTENCES[3:], SENTENCES[1:]):  # rows that a smaller batch lacks keep their state
        ours = [layers.numpy() for layers in model.embed(batch, tokenizer=tokenizer, layers="all")]
        assert_close(ours, [reference.layers(words, row) for row, words in enumerate(batch)])


def test_the_mix_of_a_new_model_is_the_released_mean_of_the_layers(folder):
    model, tokenizer = ElmoModel.from_pretrained(folder), ElmoTokenizer.from_pretrained(folder)
    means = [vectors.numpy() for vectors in model.embed(SENTENCES, tokenizer=tokenizer)]
    assert_close(means, [layers.mean(0) for layers in layers_of(folder, SENTENCES)])


# The folder


def test_the_configuration_is_that_of_the_file_of_sizes(folder):
    saved = json.loads((folder / "config.json").read_text())
    expected = {
        "model_type": "elmo",
        "vocab_size": len(CHARACTERS + SPECIALS) + 1,
        "lexicon_size": len(WORDS) + 1,
        "lexicon_vector_size": 6,
        "max_characters_per_token": 9,
        "char_embedding_size": 4,
        "hidden_size": 10,
        "cell_size": 11,
        "cell_clip": 1.2,
        "proj_clip": 0.7,
        "use_skip_connections": True,
        "hidden_dropout_prob": 0.1,
        "state": "zero",
    }
    assert saved.items() >= expected.items()


def test_the_dictionaries_are_in_the_order_of_the_converted_rows(folder):
    assert json.loads((folder / "characters.json").read_text()) == CHARACTERS
    assert json.loads((folder / "lexicon.json").read_text()) == WORDS[3:]
    model = ElmoModel.from_pretrained(folder)
    encoder = model.token_encoder
    tensors = random_tensors(sizes(), len(CHARACTERS + SPECIALS), len(WORDS))["token_embedder.pkl"]
    released = tensors["char_emb_layer.embedding.weight"]
    row = {token: number for number, token in enumerate(CHARACTERS + SPECIALS)}
    order = ["<oov>", *CHARACTERS, "<bos>", "<eos>", "<eow>", "<bow>", "<pad>"]
    assert torch.equal(encoder.char_embeddings.weight[1:], released[[row[token] for token in order]])
    assert torch.equal(encoder.lexicon_vectors.weight[1:], tensors["word_emb_layer.embedding.weight"])
    assert not encoder.char_embeddings.weight[0].any() and not encoder.lexicon_vectors.weight[0].any()


def test_rows_may_be_in_any_order(release):
    """Training with vectors of words puts these first; the special words are then anywhere."""
    expected = layers_of(converted(release).rename(release.parent / "plain"), SENTENCES)
    state = torch.load(release / "token_embedder.pkl", weights_only=True)
    for file, table in (("char.dic", "char_emb_layer"), ("word.dic", "word_emb_layer")):
        lines = (release / file).read_text(encoding="utf-8").split("\n")[:-1]
        order = torch.randperm(len(lines)).tolist()  # the new row of each
        tokens = [line.rpartition("\t")[0] for line in lines]
        shuffled = [f"{token}\t{order[number]}" for number, token in enumerate(tokens)]
        (release / file).write_text("\r\n".join(reversed(shuffled)), encoding="utf-8", newline="")
        state[f"{table}.embedding.weight"] = state[f"{table}.embedding.weight"][torch.tensor(order).argsort()]
    write_pickle(release / "token_embedder.pkl", state)
    assert_close(layers_of(converted(release), SENTENCES), expected)


def test_a_saved_model_is_the_same_again(folder, tmp_path):
    model, tokenizer = AutoModel.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    model.save_pretrained(tmp_path / "again")
    tokenizer.save_pretrained(tmp_path / "again")
    for name in ("characters.json", "lexicon.json", "model.safetensors"):
        assert (tmp_path / "again" / name).read_bytes() == (folder / name).read_bytes()
    for ours, theirs in zip(layers_of(tmp_path / "again", SENTENCES), layers_of(folder, SENTENCES), strict=True):
        assert np.array_equal(ours, theirs)


def test_the_file_of_sizes_is_the_one_given_else_that_beside_the_configuration(release):
    (release / "sizes.json").rename(release / "other.json")
    (release / "config.json").unlink()
    reference = Reference(release, json.loads((release / "other.json").read_text()))
    folder = converted(release, options=str(release / "other.json"))
    assert_close(layers_of(folder, SENTENCES), [reference.layers(words) for words in SENTENCES])


def test_without_a_file_of_sizes_a_model_of_the_published_sizes_converts(release, monkeypatch):
    expected = layers_of(converted(release).rename(release.parent / "plain"), SENTENCES)
    published = json.loads((release / "sizes.json").read_text())
    published.pop("classifier")
    monkeypatch.setattr(manylangs, "PUBLISHED", published)
    (release / "sizes.json").unlink()
    assert_close(layers_of(converted(release), SENTENCES), expected)


def test_a_softmax_of_the_training_is_left_out_and_said(release, capsys):
    (release / "classifier.pkl").write_bytes(b"anything")
    converted(release)
    assert f"{release / 'classifier.pkl'}, the softmax of the training, is left out" in capsys.readouterr().out


def test_characters_without_full_width_punctuation_are_told(release, capsys):
    converted(release).rename(release.parent / "plain")
    assert "full-width" not in capsys.readouterr().out  # its char.dic has one
    lines = (release / "char.dic").read_text(encoding="utf-8").replace("，", "。")
    (release / "char.dic").write_text(lines, encoding="utf-8")
    converted(release).rename(release.parent / "told")
    assert "char.dic has no full-width punctuation, so the model does not know it" in capsys.readouterr().out
    folder = converted(release, full_width_to_ascii=True)
    assert "full-width" not in capsys.readouterr().out
    tokenizer = ElmoTokenizer.from_pretrained(folder)
    assert tokenizer.full_width_to_ascii and tokenizer("我 ，")["input_ids"] == tokenizer("我 ,")["input_ids"]


def command(release: Path) -> list[str]:
    return ["--weights", str(release), "--output", str(release.parent / "out")]


def test_the_command_converts_and_says_what_it_wrote(release, capsys):
    main([*command(release), "--nfc"])
    model, tokenizer = (cls.from_pretrained(release.parent / "out") for cls in (ElmoModel, ElmoTokenizer))
    said = f"2 layers, {model.num_parameters():,} parameters, {len(CHARACTERS)} characters, {len(WORDS) - 3} words"
    assert said in capsys.readouterr().out
    assert tokenizer.nfc and model.config.state == "zero"


# Bad input


def replace(name: str, old: str, new: str):
    def change(release):
        text = (release / name).read_bytes()
        assert text.count(old.encode()) == 1
        (release / name).write_bytes(text.replace(old.encode(), new.encode()))

    return change


def folder_instead(name: str):
    def change(release):
        (release / name).unlink()
        (release / name).mkdir()

    return change


def config(**values: object):
    return lambda release: (release / "config.json").write_text(json.dumps(values))


def given(**changes: object):
    return lambda release: (release / "sizes.json").write_text(json.dumps(sizes(**changes)))


def without(section: str, key: str | None = None):
    def change(release):
        values = sizes()
        values.pop(section) if key is None else values[section].pop(key)
        (release / "sizes.json").write_text(json.dumps(values))

    return change


def tensor(file: str, name: str, change):
    """Another tensor by this name, or none."""

    def apply(release):
        state = torch.load(release / file, weights_only=True)
        value = change(state.get(name))
        state = {key: old for key, old in state.items() if key != name} | ({} if value is None else {name: value})
        write_pickle(release / file, state)

    return apply


def pickled(value: object):
    return lambda release: torch.save(value, release / "encoder.pkl")


def diverged(value: torch.Tensor) -> torch.Tensor:
    value[0] = float("nan")
    return value


def no_file_of_sizes(release: Path) -> None:
    (release / "sizes.json").unlink()


T, E = "token_embedder.pkl", "encoder.pkl"
LAST = len(CHARACTERS + SPECIALS) - 1
REFUSED = {
    "no dictionary": (remove("char.dic"), "release is not a release of ELMoForManyLangs, which has char.dic"),
    "no pickle": (remove(E), "which has encoder.pkl: name the folder with this file"),
    "no words": (remove("word.dic"), "word.dic: no such file"),
    "a folder of words": (folder_instead("word.dic"), "cannot read .*word.dic: .*Is a directory"),
    "no configuration": (remove("config.json"), "config.json: no such file"),
    "no path of sizes": (config(seed=1), "config.json: config_path must name the file of sizes, not be None"),
    "no file of sizes": (
        no_file_of_sizes,
        r"token_embedder.pkl does not fit the published sizes \(.*release has no file of sizes 'sizes.json'\): "
        ".* Give the file of this model's sizes as --options$",
    ),
    "not UTF-8": (lambda release: (release / "char.dic").write_bytes(b"\xff\t0\n"), "char.dic is not UTF-8"),
    "three fields": (
        replace("word.dic", "Tao\t6", "Tao\tx\t6"),
        r"word.dic, line 7: 'Tao\\tx\\t6' is not a token, a tab and a row",
    ),
    "no number": (replace("char.dic", "é\t6\n", "é\tsix\n"), r"char.dic, line 7: 'é\\tsix' is not a token"),
    "a negative row": (replace("char.dic", "é\t6\n", "é\t-6\n"), r"line 7: 'é\\t-6' is not"),
    "an endless number": (replace("char.dic", "é\t6\n", f"é\t{'6' * 5000}\n"), r"line 7: 'é\\t66"),
    "an empty line": (replace("char.dic", "é\t6\n", "é\t6\n\n"), "char.dic, line 8: '' is not a token"),
    "a row twice": (replace("char.dic", "é\t6\n", "é\t7\n"), "char.dic: 'é' and '我' both have the row 7"),
    "a row beyond": (
        replace("char.dic", "é\t6\n", "é\t99\n"),
        f"char.dic: 'é' has the row 99, but .*token_embedder.pkl has only {LAST + 1} in char_emb_layer",
    ),
    "a token less": (
        replace("word.dic", "Tao\t6\n", ""),
        "word.dic has 13 tokens, but .*token_embedder.pkl has 14 rows in word_emb_layer.*: no token has the row 6",
    ),
    "a token twice": (replace("word.dic", "tao\t7", "Tao\t7"), "word.dic has 13 tokens, .* no token has the row 6"),
    "two lines of white space": (
        replace("word.dic", "Tao\t6\n", " \t6\n"),
        "word.dic has 13 tokens, .* no token has the row 6",
    ),
    "no <oov>": (replace("word.dic", "<oov>", "<unk>"), "word.dic has no line <oov>"),
    "no <pad>": (replace("word.dic", "<pad>", "<padding>"), "word.dic has no line <pad>"),
    "no <bow>": (replace("char.dic", "<bow>", "<w>"), "char.dic has no line <bow>"),
    "dictionaries mixed up": (
        lambda release: (release / "char.dic").write_bytes((release / "word.dic").read_bytes()),
        "char.dic has no line <eow>",
    ),
    "a name of ours": (replace("char.dic", "é\t6", "[PAD]\t6"), r"has '\[PAD\]' more than once"),
    "a tensor missing": (tensor(T, "projection.bias", lambda _: None), f"{T} .*lacks projection.bias"),
    "a table missing": (
        tensor(T, "word_emb_layer.embedding.weight", lambda _: None),
        f"{T} lacks word_emb_layer.embedding.weight, the rows of word.dic",
    ),
    "a table of another shape": (
        tensor(T, "char_emb_layer.embedding.weight", torch.flatten),
        rf"{T} has another shape than a table, \(\d+,\), of char_emb_layer",
    ),
    "a tensor unknown": (tensor(E, "norm", lambda _: torch.ones(2)), f"{E} does not fit .*has the unknown norm"),
    "a tensor of another shape": (
        tensor(E, "forward_layer_1.state_projection.weight", torch.t),
        rf"{E} does not fit .*sizes.json: forward_layer_1.state_projection.weight is float32 \(11, 5\), .*\(5, 11\)",
    ),
    "a tensor of another type": (
        tensor(E, "backward_layer_0.state_linearity.bias", torch.Tensor.double),
        f"{E}: backward_layer_0.state_linearity.bias is torch.float64, but must be torch.float32",
    ),
    "a sparse tensor": (tensor(T, "projection.weight", torch.Tensor.to_sparse), "is torch.sparse_coo, but must be"),
    "a training that diverged": (
        tensor(T, "convolutions.1.bias", diverged),
        f"{T}: not all numbers of convolutions.1.bias are finite. Its training diverged",
    ),
    "more than tensors": (pickled({"a": torch.ones(2), "b": [1]}), f"{E} must hold a state dict"),
    "more numbers than the file": (
        pickled({"a": torch.ones(1).expand(10**6, 10**6)}),
        f"{E}: its tensors claim to have 4,000,000,000,000 bytes, more than the file",
    ),
    "a list": (pickled([torch.ones(2)]), f"{E} must hold a state dict"),
    "code": (pickled({"a": Path("harmless")}), f"{E} is not a state dict that torch.save wrote"),
    "a layer too few": (given(n_layers=3), "lacks backward_layer_2.* and 4 more"),
    "a layer too many": (given(n_layers=1), "has the unknown backward_layer_1"),
    "millions of layers": (given(n_layers=10**6), "is it the file of sizes. It asks for 1000000 layers"),
    "millions of highways": (given(n_highway=10**7), "is it the file of sizes. It asks for 10000000 layers"),
    "endless cells": (given(dim=10**20), "sizes.json: empty"),
    "a word LSTM": (
        given(encoder={**sizes()["encoder"], "name": "lstm"}),
        "sizes.json: is it the file of sizes. encoder must have the name elmo and the keys .*, but is {'name': 'lstm'",
    ),
    "a character LSTM": (
        given(token_embedder={**sizes()["token_embedder"], "name": "lstm"}),
        "sizes.json: is it the file of sizes. token_embedder must have the name cnn and the keys .*'name': 'lstm'",
    ),
    "words only": (given(char_dim=0), "sizes.json: is it the file of sizes.* char_embedding_size=0"),
    "activation": (given(activation="gelu"), "sizes.json: .*char_activation.*gelu"),
    "a filter too wide": (given(filters=[[10, 3]]), "no wider than max_characters_per_token=9"),
    "filters of another kind": (given(filters=[[1, 3, 5]]), r"filters=\[\[1, 3, 5\]\]: each must be \(width, count\)"),
    "a size no number": (given(dim="11"), r"is it the file of sizes.* expected int, got str \(value: '11'\)"),
    "no size": (given(projection_dim=None), "sizes.json: is it the file of sizes.*'NoneType'"),
    "a size of numbers": (given(projection_dim=[1]), "sizes.json: is it the file of sizes.* expected int, got list"),
    "a size beyond the tensors": (given(dim=10**12), r"input_linearity.weight is float32 \(44, 5\), but .*4000000"),
    "a size beyond all memory": (given(projection_dim=10**18), "sizes.json: Storage size calculation overflowed"),
    "a clip no number": (given(cell_clip="three"), "sizes.json: .*cell_clip"),
    "a clip below 0": (given(proj_clip=-1), "sizes.json: .*proj_clip=-1"),
    "no section": (without("encoder"), "is it the file of sizes. encoder must have .*, but is None"),
    "no key": (
        without("encoder", "cell_clip"),
        "is it the file of sizes. encoder must have .* cell_clip, .*, but is",
    ),
    "a key unknown": (given(layer_norm=True), "sizes.json has the unknown layer_norm"),
    "states not projected": (given(dim=5), "does not fit .*sizes.json: it has the unknown .*state_projection"),
    "characters not projected": (
        given(word_dim=0, projection_dim=13),
        "does not fit .*sizes.json: it has the unknown projection.bias, projection.weight",
    ),
}


@pytest.mark.parametrize(("damage", "message"), REFUSED.values(), ids=REFUSED)
def test_a_file_that_is_missing_damaged_or_of_another_model_is_one_clear_error(damage, message, release):
    damage(release)
    assert_refused(release, message)


def test_what_a_folder_has_no_use_for_is_refused(release):
    assert_refused(release, "vocab words.txt: .*release is a folder, which has no softmax", vocab="words.txt")
    assert_refused(release, "softmax s.hdf5: .*release is a folder, which has no softmax", softmax="s.hdf5")
    assert_refused(release, "--state warm needs sentences of the model's language", state="warm")
    with pytest.raises(ValueError, match="weights.hdf5 comes with an options.json: give it as --options"):
        convert(None, "weights.hdf5", str(release.parent / "out"))


@pytest.mark.parametrize("file", [T, E])
def test_a_pickle_cut_anywhere_never_gives_a_model(file, release):
    content = (release / file).read_bytes()
    for place in np.random.default_rng(0).integers(len(content), size=12):
        (release / file).write_bytes(content[:place])
        assert_refused(release, f"{file} is not a state dict that torch.save wrote, or is damaged")


@pytest.mark.slow
@pytest.mark.parametrize("file", ["char.dic", "word.dic"])
def test_a_dictionary_with_random_changes_gives_a_model_or_one_clear_error(file, release, monkeypatch):
    monkeypatch.setattr(manylangs, "write_model", lambda *_: None)
    content, drawn, outcomes = (release / file).read_bytes(), random.Random(0), set()
    for _ in range(60):
        changed = bytearray(content)
        for _ in range(drawn.randint(1, 3)):
            changed[drawn.randrange(len(changed))] = drawn.choice(b"\t\n\r 0159<>a\x00\xe3\xff")
        (release / file).write_bytes(bytes(changed))
        try:
            converted(release)
            outcomes.add("a model")
        except (ValueError, OSError) as error:
            assert file in str(error) and "\n" not in str(error)
            outcomes.add("an error")
    assert outcomes == {"a model", "an error"}
