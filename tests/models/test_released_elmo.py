"""`elmo_from_released`: a released ELMo in one call is the model that the converter writes."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from elmo_gpt_bert.convert.elmo import convert
from elmo_gpt_bert.training.errors import UserError
from modeling import ElmoModel, ElmoTokenizer, elmo_from_released
from modeling.released import AS_IS, as_parameters
from tests.convert.test_convert_elmo import FILES, HOSTILE, SENTENCES, TRAINING, our_layers, remove, rewrite, write
from tests.convert.test_convert_elmo import release as release  # a fixture


h5py = pytest.importorskip("h5py", reason='h5py is not installed: pip install -e ".[convert]"')

VARIANTS = {
    "two layers": {},
    "one layer without a residual": {"n_layers": 1, "use_skip_connections": False},
    "options of a training": {"n_characters": 261, **TRAINING},
}


def load(release: Path, **state: str) -> ElmoModel:
    return elmo_from_released(release / "options.json", release / "weights.hdf5", **state)


@pytest.mark.parametrize(
    ("changes", "state"), [*zip(VARIANTS.values(), ["warm", "zero", "carry"], strict=True)], ids=VARIANTS
)
def test_one_call_gives_the_model_that_the_converter_writes_bit_for_bit(changes, state, release, tmp_path):
    rewrite(release, **changes)
    ours = load(release, state=state)
    convert(str(release / "options.json"), str(release / "weights.hdf5"), str(tmp_path / "out"), state=state)
    theirs = ElmoModel.from_pretrained(tmp_path / "out")
    assert not ours.training and ours.config.state == state
    ours.save_pretrained(tmp_path / "saved")
    assert (tmp_path / "saved" / "config.json").read_bytes() == (tmp_path / "out" / "config.json").read_bytes()
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    for name, tensor in theirs.state_dict().items():
        assert torch.equal(ours.state_dict()[name], tensor), name
    for vectors, expected in zip(ours.embed(SENTENCES), theirs.embed(SENTENCES), strict=True):
        assert torch.equal(vectors, expected)


def test_what_a_training_keeps_beside_its_weights_is_left_out(release):
    expected = load(release).state_dict()
    with h5py.File(release / "weights.hdf5", "a") as file:
        file["global_step"], file["train_perplexity"], file["lm/Adagrad"] = 7, 39.5, np.ones(3)
    found = load(release).state_dict()
    assert found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in expected)


def test_released_vectors_are_reproduced(data):
    """Computed by the original TensorFlow code, in batches of three rows, each going on where it ended before."""
    tiny = data / "elmo_tiny"
    model = elmo_from_released(tiny / "options.json", tiny / "lm_weights.hdf5", state="carry")
    tokenizer = ElmoTokenizer(max_characters_per_token=model.config.max_characters_per_token)
    rows = json.loads((tiny / "lm_embeddings_sentences.json").read_text())
    files = [h5py.File(tiny / f"lm_embeddings_{row}.hdf5") for row in range(3)]
    for number, sentences in enumerate(zip(*rows, strict=True)):
        words = [sentence.split() for sentence in sentences]
        batch = tokenizer(words, is_split_into_words=True, padding=True, return_tensors="pt")
        with torch.no_grad():
            top = model(**batch, output_hidden_states=True).hidden_states[-1].numpy()
        for ours, file, sentence in zip(top, files, words, strict=True):
            theirs = np.concatenate(file[str(number)][()], axis=-1)
            np.testing.assert_allclose(ours[: len(sentence)], theirs, atol=1e-5, rtol=0)


def test_the_model_is_saved_as_a_folder_like_any_other(release, tmp_path):
    model = load(release)
    model.save_pretrained(tmp_path / "out")
    ElmoTokenizer(max_characters_per_token=11).save_pretrained(tmp_path / "out")
    assert not (tmp_path / "out" / "released_elmo.py").exists()  # it imports h5py, without which a folder must load
    model.config.state = "zero"
    for words in SENTENCES:
        (vectors,) = model.embed([words], layers="all")
        np.testing.assert_array_equal(vectors, np.stack(our_layers(tmp_path / "out", words)))


# Bad input

OF_THE_CONVERTER = {"no weights", "no vocabulary", "no softmax", "no <S>", "a word too few", "a word twice"}
OF_THE_CONVERTER |= {"no bias in the softmax", "a softmax of another size"}
BROKEN = [(damage, *expected) for name, (damage, *expected) in FILES.items() if name not in OF_THE_CONVERTER]
BROKEN += [
    (remove("weights.hdf5"), FileNotFoundError, "weights.hdf5: no such file"),
    (write("options.json", '{"lstm": {}, "lstm": {}}'), ValueError, "not JSON: an object has the name 'lstm' 2 times"),
    (write("options.json", "[" * 100_000), ValueError, "options.json is not JSON"),
    (write("options.json", '{"é": 1}'.encode("latin-1")), ValueError, "options.json is not UTF-8: 'utf-8' codec"),
]


@pytest.mark.parametrize(("damage", "error", "message"), BROKEN)
def test_a_file_that_is_missing_damaged_or_of_another_model_is_one_clear_error(damage, error, message, release):
    damage(release)
    with pytest.raises(error, match=message) as raised:
        load(release)
    assert "\n" not in str(raised.value) and len(str(raised.value)) < 2000
    assert not isinstance(raised.value, UserError)  # models import nothing of the scripts


@pytest.mark.parametrize(("write_file", "message"), HOSTILE.items(), ids=[write.__name__ for write in HOSTILE])
def test_hdf5_that_would_read_other_files_or_fill_the_memory_is_refused(write_file: Callable, message, release):
    with h5py.File(release / "weights.hdf5", "w") as file:
        write_file(file)
    with pytest.raises(ValueError, match=f"weights.hdf5: .*{message}"):
        load(release)


def test_without_h5py_the_error_says_what_to_install(release, monkeypatch):
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(ImportError, match=r"reading .*weights.hdf5 needs h5py .*: pip install h5py"):
        load(release)


def test_a_parameter_that_the_table_lacks_is_never_random():
    parameters = {name: torch.nn.Parameter(torch.zeros(2)) for name in ("a", "b.0", "b.1")}
    table, tensors = (
        (("w", "a", AS_IS), ("x{}", "b.{}", AS_IS)),
        {name: np.ones(2, "f4") for name in ("w", "x0", "x1")},
    )
    values = as_parameters(tensors, parameters, table, "weights", "options", "")
    assert {name: value.tolist() for name, value in values.items()} == dict.fromkeys(parameters, [1, 1])
    with pytest.raises(RuntimeError, match="the table lacks the parameters b.0, b.1"):
        as_parameters(tensors, parameters, table[:1], "weights", "options", "")
