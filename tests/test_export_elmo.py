"""What a release holds, written from a folder of ours, and read back."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from modeling import ElmoForPreTraining, ElmoForTokenClassification, ElmoModel, ElmoTokenizer
from modeling.convert_elmo import convert
from modeling.export_elmo import export, main
from tests.elmo_reference import small_config, small_model


h5py = pytest.importorskip("h5py", reason='h5py is not installed: pip install -e ".[convert]"')

WORDS = ["<S>", "</S>", "<UNK>", *"abcdefghijklmn"]


def tensors_of(path: Path) -> dict[str, np.ndarray]:
    items = {}
    with h5py.File(path) as file:
        file.visititems(items.__setitem__)
        return {name: item[()] for name, item in items.items() if isinstance(item, h5py.Dataset)}


def write_tokenizer(folder: Path, width: int, words: list[str] | None = None) -> None:
    if words is not None:
        folder.mkdir(exist_ok=True)
        (folder / "words").write_text("".join(f"{word}\n" for word in words))
    ElmoTokenizer(vocab_file=words and str(folder / "words"), max_characters_per_token=width).save_pretrained(folder)


def test_a_converted_release_is_exported_as_it_was(data, tmp_path):
    tiny = data / "elmo_tiny"
    convert(str(tiny / "options.json"), str(tiny / "lm_weights.hdf5"), str(tmp_path / "ours"))
    export(str(tmp_path / "ours"), str(tmp_path / "released"))
    ours, theirs = tensors_of(tmp_path / "released" / "weights.hdf5"), tensors_of(tiny / "lm_weights.hdf5")
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert tensor.dtype == theirs[name].dtype and tensor.shape == theirs[name].shape, name
        if name.endswith("/B"):  # our model has the forget gate's bias with 1, so its last bits are gone
            np.testing.assert_allclose(tensor, theirs[name], atol=2**-24, rtol=0)
            tensor, theirs[name] = (np.delete(bias, np.s_[128:192]) for bias in (tensor, theirs[name]))
        assert np.array_equal(tensor, theirs[name]), name
    options = json.loads((tmp_path / "released" / "options.json").read_text())
    assert options.items() >= json.loads((tiny / "options.json").read_text()).items()
    assert {path.name for path in (tmp_path / "released").iterdir()} == {"options.json", "weights.hdf5"}


VARIANTS = {
    "as most releases": {},
    "three layers without residual, no projections": {
        "num_hidden_layers": 3, "use_skip_connections": False, "filters": [[1, 3], [3, 4]], "cell_size": 7,
        "proj_clip": None
    },
    "one layer, tanh, no highway, no clips": {
        "num_hidden_layers": 1, "char_activation": "tanh", "num_highway_layers": 0, "cell_clip": None,
        "proj_clip": None
    },
}  # fmt: skip


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_what_is_exported_is_read_back_bit_for_bit(changes, tmp_path):
    model = ElmoForPreTraining(small_config(num_sampled=6, hidden_dropout_prob=0.2, **changes))
    torch.nn.init.normal_(model.lm_head.bias)
    for name, parameter in model.named_parameters():
        if name.endswith("input.bias"):
            torch.nn.init.normal_(parameter, 1)
    model.save_pretrained(tmp_path / "ours")
    write_tokenizer(tmp_path / "ours", 12, WORDS)
    main(["--model_name_or_path", str(tmp_path / "ours"), "--output", str(tmp_path / "released")])
    options, weights, softmax, vocab = (
        str(tmp_path / "released" / name) for name in ("options.json", "weights.hdf5", "softmax.hdf5", "vocab.txt")
    )
    assert Path(vocab).read_text().split() == WORDS
    convert(options, weights, str(tmp_path / "back"), vocab, softmax, state="zero")
    back = ElmoForPreTraining.from_pretrained(tmp_path / "back")
    assert back.config.to_diff_dict().keys() - {"mix_dropout", "dtype"} <= model.config.to_diff_dict().keys()
    values = back.state_dict()
    for name, parameter in model.named_parameters():
        if name.endswith("input.bias"):  # without the forget gate's 1, small ones have fewer bits
            torch.testing.assert_close(values[name], parameter.data, atol=2**-25, rtol=0)
            is_small = parameter.abs() < 0.5
            values[name], parameter = values[name][~is_small], parameter[~is_small]
        if "mixes" not in name:
            assert torch.equal(values[name], parameter), name


def test_of_a_task_network_the_bilm_is_exported(tmp_path):
    model = ElmoForTokenClassification(small_config(num_mixes=2, num_labels=3))
    model.save_pretrained(tmp_path / "tagger")
    write_tokenizer(tmp_path / "tagger", 12)
    export(str(tmp_path / "tagger"), str(tmp_path / "released"))
    table = tensors_of(tmp_path / "released" / "weights.hdf5")["char_embed"]
    assert np.array_equal(table, model.elmo.token_encoder.char_embeddings.weight[1:].detach())


def test_what_no_release_can_hold_is_one_clear_error(tmp_path):
    def folder(name: str, model, words: list[str] | None = None) -> str:
        model.save_pretrained(tmp_path / name)
        write_tokenizer(tmp_path / name, 12, words)
        return str(tmp_path / name)

    output = str(tmp_path / "out")
    with pytest.raises(ValueError, match="proj_clip=3.0 clips states that are not projected"):
        export(folder("clipped", small_model(cell_size=7)), output)
    with pytest.raises(ValueError, match="softmax over 17 words, but a vocab.txt of 4"):
        export(folder("fewer", ElmoForPreTraining(small_config()), [*WORDS[:4]]), output)
    with pytest.raises(ValueError, match="holds no ELMo: it lacks "):
        export(
            folder("baseline", ElmoForTokenClassification(small_config(use_elmo=False, num_word_vectors=9))), output
        )
    with pytest.raises(FileExistsError, match="output .* already holds something"):
        export(folder("ours", small_model()), str(tmp_path))
    assert not Path(output).exists() and ElmoModel.from_pretrained(tmp_path / "ours")
