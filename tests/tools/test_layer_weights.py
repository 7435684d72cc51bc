"""The weights of scalar mixes, read from the folders of task networks."""

import json
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import BertConfig, BertModel

from elmo_gpt_bert.analysis import layer_weights
from elmo_gpt_bert.training.errors import InputError
from modeling import ElmoConfig, ElmoForPreTraining, ElmoForTokenClassification, FeatureTaggerForTokenClassification


SIZES = {"filters": [[1, 4], [2, 5]], "char_embedding_size": 3, "hidden_size": 6, "cell_size": 7, "rnn_size": 9}


def write_tagger(folder: Path, seed: int = 0, **changes) -> Path:
    """An ELMo tagger whose mixes have random weights."""
    model = ElmoForTokenClassification(ElmoConfig(**(SIZES | changes)))
    randomise(model, seed)
    model.save_pretrained(folder)
    return folder


def randomise(model: torch.nn.Module, seed: int) -> None:
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith((".weights", ".gamma")):
                parameter.normal_()


def by_hand(folder: Path, module: str) -> tuple[list[float], float]:
    """The softmax, written out, of what the file holds."""
    tensors = load_file(folder / "model.safetensors")
    powers = [math.exp(weight) for weight in tensors[f"{module}.weights"].tolist()]
    return [power / sum(powers) for power in powers], tensors[f"{module}.gamma"].item()


def test_the_weights_of_both_mixes_are_the_softmax_of_those_in_the_file(tmp_path, capsys):
    folder = write_tagger(tmp_path / "ner", elmo_placement="both", num_hidden_layers=3, num_mixes=2)
    layer_weights.main([str(folder), "--output_dir", str(tmp_path / "out")])
    results = json.loads((tmp_path / "out" / "layer_weights.json").read_text())["ner"]
    lines = capsys.readouterr().out.splitlines()
    assert list(results) == ["input", "output"]
    for number, (place, values) in enumerate(results.items()):
        shares, gamma = by_hand(folder, f"elmo.mixes.{number}")
        assert values["weights"] == pytest.approx(shares) and values["gamma"] == pytest.approx(gamma)
        assert (values["layers"], values["seeds"]) == ([0, 1, 2, 3], 1)
        cells = [f"{value:.2f}" for value in (*shares, gamma)]
        assert lines[2 + number] == f"| ner | {place} | {' | '.join(cells)} | 1 |"


def test_the_gamma_of_an_old_layer_norm_is_no_mix(tmp_path):
    folder = write_tagger(tmp_path / "ner")
    tensors = load_file(folder / "model.safetensors")
    save_file(tensors | {"norm.LayerNorm.gamma": torch.ones(3)}, folder / "model.safetensors")
    (folder / "SHA256SUMS").unlink(missing_ok=True)
    assert [*layer_weights.read_mixes(folder)] == ["elmo.mixes.0"]


def test_seeds_are_summed_up_by_their_mean_and_deviation(tmp_path, capsys):
    folders = [write_tagger(tmp_path / "ner" / f"seed-{seed}", seed) for seed in range(3)]
    write_tagger(tmp_path / "ner" / "checkpoint-7")  # is no seed
    layer_weights.main([str(tmp_path / "ner"), "--output_dir", str(tmp_path / "out")])
    values = json.loads((tmp_path / "out" / "layer_weights.json").read_text())["ner"]["input"]
    shares, gammas = zip(*(by_hand(folder, "elmo.mixes.0") for folder in folders), strict=True)
    assert values["seeds"] == 3
    assert values["weights"] == pytest.approx(torch.tensor(shares).mean(0).tolist())
    assert values["weights_std"] == pytest.approx(torch.tensor(shares).std(0).tolist())
    assert values["gamma_std"] == pytest.approx(torch.tensor(gammas).std().item())
    assert f"{torch.tensor(gammas).mean():.2f} ± {torch.tensor(gammas).std():.2f} | 3 |" in capsys.readouterr().out


def test_a_mix_of_berts_last_layers_has_their_numbers_and_stands_beside_elmos(tmp_path):
    config = BertConfig(vocab_size=20, hidden_size=12, num_hidden_layers=5, num_attention_heads=3, intermediate_size=8)
    tagger = FeatureTaggerForTokenClassification.from_encoder(
        BertModel(config), features="weighted_sum_last_four", rnn_size=3, num_labels=2
    )
    randomise(tagger, 1)
    tagger.save_pretrained(tmp_path / "bert")
    elmo = write_tagger(tmp_path / "elmo")
    mixes = layer_weights.main([str(tmp_path / "bert"), str(elmo), "--output_dir", str(tmp_path / "out")])
    assert [*mixes["bert"]["input"].layers] == [2, 3, 4, 5] and [*mixes["elmo"]["input"].layers] == [0, 1, 2]
    assert mixes["bert"]["input"].weights[0] == pytest.approx(by_hand(tmp_path / "bert", "combine")[0])
    assert (tmp_path / "out" / "layer_weights.png").read_bytes().startswith(b"\x89PNG")


def test_a_mix_of_the_top_layer_alone_gives_it_all_the_weight(tmp_path):
    folder = write_tagger(tmp_path / "top", mix_top_layer_only=True)
    mixes = layer_weights.main([str(folder), "--output_dir", str(tmp_path / "out")])
    assert mixes["top"]["input"].weights.tolist() == [[0, 0, 1]]


def test_folders_without_a_mix_or_of_different_networks_are_one_clear_error(tmp_path):
    output = ["--output_dir", str(tmp_path / "out")]
    with pytest.raises(FileNotFoundError, match="is no model folder and holds none"):
        layer_weights.main([str(tmp_path), *output])
    BertModel(
        BertConfig(vocab_size=20, hidden_size=12, num_hidden_layers=1, num_attention_heads=3, intermediate_size=8)
    ).save_pretrained(tmp_path / "bert")
    with pytest.raises(ValueError, match="bert has no mix of layers"):
        layer_weights.main([str(tmp_path / "bert"), *output])
    ElmoForPreTraining(ElmoConfig(lm_vocab_size=5, **SIZES)).save_pretrained(tmp_path / "bilm")
    with pytest.raises(ValueError, match="elmo has no mix of layers whose weights were learned"):
        layer_weights.main([str(tmp_path / "bilm"), *output])
    write_tagger(tmp_path / "seeds" / "a")
    write_tagger(tmp_path / "seeds" / "b", num_hidden_layers=3)
    with pytest.raises(ValueError, match="b mixes other layers than .*a: give them as two runs"):
        layer_weights.main([str(tmp_path / "seeds"), *output])
    (tmp_path / "seeds" / "a" / "model.safetensors").write_bytes(b"\0" * 50)
    with pytest.raises(InputError, match="model.safetensors: "):
        layer_weights.main([str(tmp_path / "seeds"), *output])
